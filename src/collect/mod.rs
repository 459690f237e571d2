//! From the rings to the file, on two threads of our own: one drains, joins and draws, the other
//! compresses and writes.
//!
//! What the first thread reads from outside goes through the [`pipeline`](crate::pipeline) as
//! input.

mod ahead;
pub mod collector;
mod endpoint;
pub mod file;
pub mod handle;
pub mod order;
mod outlet;
mod watch;
