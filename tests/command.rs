//! The program `ncclscope`, in this process: what it does is in the library.

use std::ffi::OsStr;

use ncclscope::cli::{Failure, run};

/// Carries out a command; answers what it said.
///
/// # Errors
///
/// When it was not understood, or could not be done: with what it says of that.
pub(crate) fn ncclscope(words: &[impl AsRef<OsStr>]) -> Result<String, String> {
    let mut said = Vec::new();
    let words = [OsStr::new("ncclscope")].into_iter().chain(words.iter().map(AsRef::as_ref));
    match run(words, &mut said) {
        // All is said, and the exit status is a verdict.
        Ok(()) | Err(Failure::Exit(_)) => Ok(String::from_utf8_lossy(&said).into_owned()),
        Err(failure) => Err(failure.to_string()),
    }
}
