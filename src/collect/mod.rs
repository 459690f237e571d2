//! From the rings to the file, on two threads of our own: one drains, joins and draws, one compresses and writes.
//!
//! What the first reads of the world goes through the [`pipeline`] as [`input`], which knows nothing else; so the same can be done
//! again with what was kept of it.

pub mod activities;
pub mod collector;
pub mod file;
pub mod input;
pub mod order;
pub mod output;
pub mod pipeline;
pub mod spoilt;
mod watch;
