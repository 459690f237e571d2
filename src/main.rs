//! ncclscope
fn main() {}
