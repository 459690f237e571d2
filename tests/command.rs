//! The program `ncclscope`, run inside this process: its work is done by the library.

use std::ffi::OsStr;

use ncclscope::cli::{Failure, run};

/// Runs a command and returns its output.
///
/// # Errors
///
/// If the command was not understood or failed: its message.
pub(crate) fn ncclscope(words: &[impl AsRef<OsStr>]) -> Result<String, String> {
    let mut said = Vec::new();
    let words = [OsStr::new("ncclscope")].into_iter().chain(words.iter().map(AsRef::as_ref));
    match run(words, &mut said) {
        // All is said, and the exit status is a verdict.
        Ok(()) | Err(Failure::Exit(_)) => Ok(String::from_utf8_lossy(&said).into_owned()),
        Err(failure) => Err(failure.to_string()),
    }
}
