//! Jobs of the real NCCL, on emulated GPUs, in one program. `cargo xtask e2e` fetches the library
//! and runs it.

mod accuracy;
mod clocks;
mod diagnosing;
mod e2e;
mod hangs;
mod launchers;
mod pairs;
mod queries;
mod support;
mod tables;
mod tracks;
