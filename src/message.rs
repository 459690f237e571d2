//! What we tell the person at the terminal: one line each on stderr, rarely.
//!
//! Never from a callback other than `init`. Not through NCCL's logger: it is silent by default, and its WARN level
//! overwrites the application's last error.

/// Writes `ncclscope[host:pid]: text` to stderr, as one write, whatever becomes of it.
pub(crate) fn line(text: &str) {
    let line = format!("ncclscope[{}:{}]: {text}\n", crate::sys::host_name(), std::process::id());
    crate::sys::write_stderr(line.as_bytes());
}
