//! The model-checked part of this module: only the pool of buffers has several threads.

#[allow(dead_code)]
mod buffers;
