//! Gives the library the name under which CUPTI is found, and lets the tests act as the host
//! program.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcupti.so.13");
    // It is never unloaded, because the program calls into it for as long as it lives.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-link-arg-tests=-Wl,--export-dynamic-symbol=ncclscope_emulator_attach");
    println!("cargo:rerun-if-changed=build.rs");
}
