//! Lets the libraries that the emulator loads see its `clock_gettime`, its CUPTI hook and its network plugin.

fn main() {
    for symbol in ["clock_gettime", "recv", "ncclscope_emulator_attach", "ncclNetPlugin_v10"] {
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol={symbol}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
