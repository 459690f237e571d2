//! ncclscope: a NCCL profiler plugin that writes Perfetto traces.
//!
//! The path of an event, which is also the order of the modules:
//!
//! ```text
//! NCCL's threads           our threads                              disk
//! abi -> record  =======>  collect -> correlate -> trace  =======>  .perfetto-trace
//! ```
//!
//! `profiler` starts and stops all of it; [`model`] and [`clock`] lie underneath. ARCHITECTURE.md
//! has the map.

#[cfg(not(loom))]
pub mod abi;
pub mod record;

#[cfg(not(loom))]
pub mod capture;
pub mod clock;
#[cfg(not(loom))]
pub mod collect;
pub mod correlate;
#[cfg(not(loom))]
pub mod cupti;
#[cfg(loom)]
#[path = "cupti/loom.rs"]
mod cupti;
pub mod model;
#[cfg(not(loom))]
pub mod pipeline;
pub mod summary;
pub mod trace;

#[cfg(all(feature = "cli", not(loom)))]
pub mod cli;
pub mod config;
#[cfg(not(loom))]
mod fault;
#[cfg(all(feature = "cli", not(loom)))]
pub mod import;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
mod message;
pub mod process;
#[cfg(not(loom))]
mod profiler;
pub mod releases;
pub mod sys;
#[cfg(not(loom))]
mod threads;
