//! Sets the library's link flags and turns `proto/` into Rust types; nothing else.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libncclscope.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
