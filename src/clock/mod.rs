//! Clocks: how host time is read cheaply, and how one clock is mapped onto another with a stated
//! error.

pub mod align;
#[cfg(feature = "cli")]
pub mod chains;
pub mod device;
#[cfg(not(loom))]
pub mod host;
#[cfg(feature = "cli")]
pub mod hosts;
mod lines;
pub mod skew;
