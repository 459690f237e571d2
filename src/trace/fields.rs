//! Perfetto's field numbers and ours, generated from `proto/`: one module a message, one constant a field.

#![allow(missing_docs, unreachable_pub, dead_code)] // Perfetto's own names

include!(concat!(env!("OUT_DIR"), "/fields.rs"));

/// The descriptor of our typed arguments, for the file to carry.
pub const EXTENSION: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/extension.bin"));

/// Ids of clocks.
pub mod clock_id {
    pub const REALTIME: u64 = 1;
    pub const MONOTONIC: u64 = 3;
    pub const BOOTTIME: u64 = 6;
    /// The delta clock of a sequence: each time is the distance from the one before.
    pub const DELTA: u64 = 64;
    /// A clock private to the first sequence. With it the snapshot of one file is never taken for another's.
    pub const PRIVATE: u64 = 65;
}
