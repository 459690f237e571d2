//! The hot-path recorder, on NCCL's own threads.
//!
//! A callback reads the clock and writes one record into its thread's own ring. No lock,
//! allocation, system call, formatting or wait; a record that does not fit is dropped and counted.
//! A thread's first call is the exception: it takes a ring from the pool, records the thread's id
//! and name, and may allocate its thread-local storage.

#![cfg_attr(
    not(test),
    deny(
        clippy::allow_attributes_without_reason,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::integer_division_remainder_used,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable
    )
)]

#[cfg(not(loom))]
mod nodes;
#[cfg(not(loom))]
pub mod recorder;
pub mod ring;
pub(crate) mod sync;
#[cfg(not(loom))]
mod texts;
