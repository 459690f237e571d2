//! Exports the emulator's `clock_gettime`, its CUPTI hook and its network plugin to the libraries
//! that it loads.

fn main() {
    for symbol in ["clock_gettime", "recv", "accept", "ncclscope_emulator_attach", "ncclNetPlugin_v10"] {
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol={symbol}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
