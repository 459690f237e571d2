//! The Perfetto writer (pure, up to the byte sink), and the reader that the command line and tests use.
//!
//! [`wire`] is protobuf's encoding, [`writer`] Perfetto's packets, [`args`] our typed arguments, [`names`] the
//! wording; `lanes` spreads what overlaps, and [`tracks`] decides what is drawn where.

pub mod args;
mod counters;
pub mod fields;
mod flows;
mod gpu;
mod host;
mod lanes;
pub mod names;
pub mod not_done;
mod outstanding;
mod proxy;
#[cfg(feature = "cli")]
pub mod reader;
mod stages;
pub mod tracks;
pub mod wire;
pub mod writer;

#[cfg(all(test, feature = "cli"))]
mod tests;
