//! Perfetto's field numbers and ours, generated from `proto/`: one module per message, one constant
//! per field.

#![allow(missing_docs, unreachable_pub, dead_code)] // Perfetto's own names

include!(concat!(env!("OUT_DIR"), "/fields.rs"));

/// The descriptor of our typed arguments, which is written into the file.
pub const EXTENSION: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/extension.bin"));

/// Clock ids.
pub mod clock_id {
    pub const REALTIME: u64 = 1;
    pub const MONOTONIC: u64 = 3;
    pub const BOOTTIME: u64 = 6;
    /// The delta clock of a sequence: each time is the distance from the previous one.
    pub const DELTA: u64 = 64;
    /// A clock private to the first sequence. It keeps the snapshot of one file from being taken
    /// for another's.
    pub const PRIVATE: u64 = 65;
}
