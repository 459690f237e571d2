//! The scripted host.
fn main() {}
