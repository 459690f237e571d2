//! The elements that emulated ranks send each other, and what NCCL's kernels compute with them.
//!
//! It is a crate of its own because only this part of the emulator has to be fast: tests are built
//! without optimisation, but for this (`Cargo.toml` of the workspace).

pub mod data;
pub mod reduce;
pub mod words;

/// Spreads the bits of a number.
pub fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
