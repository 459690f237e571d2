//! From the rings to the file, on two threads of our own: one drains, joins and draws, one compresses and writes.
//!
//! What the first reads of the world goes through the [`pipeline`](crate::pipeline) as its input.

pub mod collector;
pub mod file;
pub mod order;
mod watch;
