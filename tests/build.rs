//! Lets the emulated CUDA libraries, when a test puts them beside the scripted host, find its GPU.

fn main() {
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=ncclscope_emulator_attach");
    println!("cargo:rerun-if-changed=build.rs");
}
