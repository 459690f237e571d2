//! Why a command could not do what was asked, and how that is said: what was wrong, where, and what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a command was not carried out.
#[derive(Debug)]
pub enum Reason {
    /// A file or a folder cannot be read.
    Read(PathBuf, io::Error),
    /// A file cannot be written.
    Write(PathBuf, io::Error),
    /// What is said cannot be written.
    Output(io::Error),
    /// Something is wrong with a file.
    File(PathBuf, Box<dyn std::error::Error + Send + Sync>),
    /// What was asked for cannot be.
    Refused(String),
}

impl Reason {
    /// For `map_err`: the file cannot be read.
    pub(super) fn read(path: &Path) -> impl Fn(io::Error) -> Reason + Copy {
        move |error| Reason::Read(path.to_owned(), error)
    }

    /// For `map_err`: the file cannot be written.
    pub(super) fn write(path: &Path) -> impl Fn(io::Error) -> Reason + Copy {
        move |error| Reason::Write(path.to_owned(), error)
    }

    /// For `map_err`: something is wrong with the file.
    pub(super) fn file<E: Into<Box<dyn std::error::Error + Send + Sync>>>(path: &Path) -> impl Fn(E) -> Reason {
        move |what| Reason::File(path.to_owned(), what.into())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Read(path, error) => write!(f, "failed to read {}: {error}", path.display()),
            Reason::Write(path, error) => write!(f, "failed to write {}: {error}", path.display()),
            Reason::Output(error) => write!(f, "failed to write: {error}"),
            Reason::File(path, what) => write!(f, "{}: {what}", path.display()),
            Reason::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Reason {}

impl From<String> for Reason {
    fn from(why: String) -> Reason {
        Reason::Refused(why)
    }
}

impl From<&str> for Reason {
    fn from(why: &str) -> Reason {
        Reason::Refused(why.into())
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> String {
        reason.to_string()
    }
}
