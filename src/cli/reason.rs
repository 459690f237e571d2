//! Why a command could not do what was asked, and how it says so: what was wrong, where, and what
//! to do.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An error from another part of the program.
type Cause = Box<dyn Error + Send + Sync>;

/// Why a command was not carried out.
#[derive(Debug)]
pub enum Reason {
    /// A file or a folder cannot be read.
    Read(PathBuf, io::Error),
    /// A file cannot be written.
    Write(PathBuf, io::Error),
    /// The file that was to be created exists.
    Exists(PathBuf),
    /// The output cannot be written.
    Output(io::Error),
    /// Something is wrong with a file.
    File(PathBuf, Cause),
    /// Something else failed: what, in words that follow "failed to", and why.
    Failed(String, Cause),
    /// What was asked for is impossible.
    Refused(String),
    /// Several files, with what is wrong with each.
    Several(Vec<Reason>),
}

impl Reason {
    /// What is wrong with several files, if there is anything.
    pub(super) fn all(mut reasons: Vec<Reason>) -> Result<(), Reason> {
        match reasons.len() {
            0 => Ok(()),
            1 => Err(reasons.remove(0)),
            _ => Err(Reason::Several(reasons)),
        }
    }

    /// For `map_err`: the file cannot be read.
    pub(super) fn read(path: &Path) -> impl Fn(io::Error) -> Reason + Copy {
        move |error| Reason::Read(path.to_owned(), error)
    }

    /// For `map_err`: the file cannot be written.
    pub(super) fn write(path: &Path) -> impl Fn(io::Error) -> Reason + Copy {
        move |error| Reason::Write(path.to_owned(), error)
    }

    /// For `map_err`: something is wrong with the file.
    pub(super) fn file<E: Into<Cause>>(path: &Path) -> impl Fn(E) -> Reason {
        move |what| Reason::File(path.to_owned(), what.into())
    }

    /// For `map_err`: `what`, in words that follow "failed to", could not be done.
    pub(super) fn failed<E: Into<Cause>>(what: impl Into<String>) -> impl Fn(E) -> Reason {
        let what = what.into();
        move |error| Reason::Failed(what.clone(), error.into())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Read(path, error) => write!(f, "failed to read {}: {error}", path.display()),
            Reason::Write(path, error) => write!(f, "failed to write {}: {error}", path.display()),
            Reason::Exists(path) => write!(f, "{} exists already; name another file, or remove it", path.display()),
            Reason::Output(error) => write!(f, "failed to write: {error}"),
            Reason::File(path, what) => write!(f, "{}: {what}", path.display()),
            Reason::Failed(what, error) => write!(f, "failed to {what}: {error}"),
            Reason::Refused(why) => f.write_str(why),
            Reason::Several(reasons) => reasons.iter().enumerate().try_for_each(|(at, reason)| {
                let between = if at > 0 { "\n" } else { "" };
                write!(f, "{between}{reason}")
            }),
        }
    }
}

impl Error for Reason {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Reason::Read(_, error) | Reason::Write(_, error) | Reason::Output(error) => Some(error),
            Reason::File(_, error) | Reason::Failed(_, error) => Some(&**error),
            Reason::Exists(_) | Reason::Refused(_) | Reason::Several(_) => None,
        }
    }
}

impl From<&str> for Reason {
    fn from(why: &str) -> Reason {
        Reason::Refused(why.into())
    }
}
