//! Gives the library the name of CUDA's driver library, and lets the tests act as the host
//! program.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-link-arg-tests=-Wl,--export-dynamic-symbol=ncclscope_emulator_attach");
    println!("cargo:rerun-if-changed=build.rs");
}
