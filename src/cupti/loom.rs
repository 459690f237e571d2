//! What of this module is model-checked: only the pool of buffers has threads that meet.

#[allow(dead_code)]
mod buffers;
