//! Gives the library the name under which CUDA's driver library is found, and lets the tests play the host program.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-link-arg-tests=-Wl,--export-dynamic-symbol=ncclscope_emulator_attach");
    println!("cargo:rerun-if-changed=build.rs");
}
