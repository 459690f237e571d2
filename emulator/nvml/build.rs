//! Gives the library the name under which NCCL looks for NVML. A library loaded with that name is
//! found without a path.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
