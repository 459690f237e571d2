//! ncclscope
