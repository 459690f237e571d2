//! The shared vocabulary: plain data, and the arithmetic that belongs to it.
//!
//! Nothing here knows how a value was obtained or where it goes: no threads, no files, no pointers.

pub mod activity;
pub mod all_to_all;
pub mod doing;
pub mod event;
pub mod ids;
pub mod kinds;
pub mod selection;
pub mod state;
pub mod time;
pub mod timeline;
pub mod word;
