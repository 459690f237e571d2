//! Lets the emulated CUDA libraries find the GPU of the scripted host when a test puts them beside
//! it.

fn main() {
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=ncclscope_emulator_attach");
    println!("cargo:rerun-if-changed=build.rs");
}
