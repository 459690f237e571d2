//! From the rings to the file, on two threads of our own: one drains, joins and draws, one compresses and writes.

pub mod activities;
pub mod collector;
pub mod file;
pub mod order;
mod watch;
