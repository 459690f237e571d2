//! The Perfetto writer (pure, up to the byte sink), and the reader that the command line and tests
//! use.
//!
//! [`wire`] is protobuf's encoding, [`writer`] writes Perfetto's packets, [`packer`] compresses
//! many into one. [`args`] has our typed arguments, [`names`] the wording, and [`words`] the
//! strings that readers look for. `lanes` spreads what overlaps, and [`tracks`] decides what is
//! drawn where. Each kind of track has a state and a file of its own, and draws on the `canvas`:
//!
//! ```text
//!   canvas       lanes, the arguments of an event, `processes` with their GPUs
//!   threads      calls of host threads            host       calls into CUDA and ranges below them
//!   comms        operations, with `outstanding`   not_done   overdue operations
//!   proxy        operations and transfers         channels   channels whose kernel is not known
//!   gpu          kernels and copies by stream     stages     kernels as Perfetto's render stages
//!   recording    what the recording says about itself
//!   job          what only the traces of all ranks together tell
//! ```

pub mod args;
mod canvas;
mod channels;
mod comms;
mod counters;
pub mod fields;
mod flows;
mod gpu;
mod host;
#[cfg(feature = "cli")]
pub mod job;
mod lanes;
pub mod names;
pub mod not_done;
mod outstanding;
pub mod packer;
mod processes;
mod proxy;
#[cfg(feature = "cli")]
pub mod reader;
mod recording;
pub mod stages;
mod threads;
pub mod tracks;
pub mod wire;
pub mod words;
pub mod writer;

#[cfg(all(test, feature = "cli"))]
mod tests;
