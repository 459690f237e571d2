//! Profiles from any supported tool in one plain model: Nsight Systems' SQLite exports, Kineto's
//! JSON, and our own traces.
//!
//! ```text
//!   report.sqlite -> nsight --\
//!   trace.json.gz -> kineto ---> Profile -> cli::import, cli::compare, cli::info
//!   *.perfetto-trace -> ours -/
//! ```

use std::fmt;
use std::io::{self, Read as _};
use std::path::Path;

pub use crate::model::activity::Place;
use crate::model::time::FileNs;
use crate::trace::reader::{Ends, Packet, blocks};

pub mod kernel_name;
mod kineto;
pub mod knowledge;
mod nsight;
pub(crate) mod ours;
mod profile;

pub(crate) use self::profile::WALL_CLOCKS_NS;
pub use self::profile::{
    Carried, Clock, Communicator, Copy, CpuWait, CudaCall, Handover, How, Kernel, Launch, NcclCall, Operation, Process,
    Profile, Range, Request, Source, Span, Tool, Transfer,
};

/// Why a file cannot be read.
#[derive(Debug)]
pub enum Error {
    /// The operating system reports an error.
    Io(io::Error),
    /// The file has no bytes.
    Empty,
    /// It is in none of the known formats; with what it seems to be.
    Foreign(String),
    /// It is in a known format but damaged: what is wrong, and where.
    Damaged(String),
    /// Its version is not known, or it lacks something required; with what to do.
    Unsupported(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(error) => write!(f, "failed to read it: {error}"),
            Error::Empty => {
                write!(
                    f,
                    "the file is empty: the process that should have written it ended too early, or the disk was full"
                )
            }
            Error::Foreign(what) => write!(
                f,
                "{what}; supported are traces of ncclscope, SQLite exports of Nsight Systems (nsys export --type \
                 sqlite report.nsys-rep) and JSON of PyTorch's profiler (export_chrome_trace), also gzipped"
            ),
            Error::Damaged(reason) | Error::Unsupported(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Error::Io(error) = self { Some(error) } else { None }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Io(error)
    }
}

/// The format of a file, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One of our traces, or another Perfetto trace.
    Perfetto,
    /// An SQLite database.
    Sqlite,
    /// JSON, plain or gzipped.
    Json,
}

/// Times above this, in ns, are since 1970: no clock that starts at a boot or a session has run for
/// thirty years.
const SINCE_1970: FileNs = FileNs(1_000_000_000_000_000_000);
/// Some editors and scripts put this before UTF-8 text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Determines the format of a file by its first bytes.
///
/// # Errors
///
/// If the file cannot be read, is empty, or has none of the formats.
pub fn format(path: &Path) -> Result<Format, Error> {
    let file = std::fs::File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(Error::Unsupported("this is a folder; name the files in it, as in FOLDER/*.perfetto-trace".into()));
    }
    let mut head = Vec::new();
    file.take(64).read_to_end(&mut head)?;
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&head);
    // A Perfetto packet begins with a line feed, too, and its length may be the code of a brace.
    let is_text = head.iter().all(|byte| *byte >= b' ' || byte.is_ascii_whitespace());
    let text = if is_text { head.trim_ascii_start() } else { &[] };
    Ok(match head {
        [] => return Err(Error::Empty),
        _ if head.starts_with(b"SQLite format 3\0") => Format::Sqlite,
        [0x1f, 0x8b, ..] => Format::Json,
        _ if matches!(text.first(), Some(b'{' | b'[')) => Format::Json,
        [0x0a, ..] => Format::Perfetto,
        _ if crate::capture::is_capture(head) => {
            return Err(Error::Foreign("this is a capture of ncclscope: ncclscope replay makes a trace of it".into()));
        }
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            return Err(Error::Foreign("this is text in UTF-16: write it in UTF-8".into()));
        }
        [b'P', b'K', ..] => return Err(Error::Foreign("this is a ZIP archive: unpack it first".into())),
        _ if path.extension().is_some_and(|it| it == "tar") => {
            return Err(Error::Foreign("this is an archive: unpack it first".into()));
        }
        _ if head.starts_with(b"QDSTRM") || path.extension().is_some_and(|it| it == "nsys-rep" || it == "qdrep") => {
            return Err(Error::Foreign(
                "this is a report of Nsight Systems, in its own format: export it first".into(),
            ));
        }
        _ => {
            return Err(Error::Foreign("this is not a profile: its first bytes match no known format".into()));
        }
    })
}

/// How much of one of our traces is read. Other tools' files are read whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wanted {
    /// What ran; calls into NCCL as long as no kernel is found.
    #[default]
    Work,
    /// And all calls into NCCL, and its launches.
    Calls,
    /// And its plans, groups and hand-overs, and the arrows.
    Arrows,
}

/// Reads a file of any supported tool. Of our traces, plans, groups, hand-overs and arrows are left
/// out.
///
/// # Errors
///
/// See [`Error`].
pub fn open(path: &Path) -> Result<Profile, Error> {
    open_as(path, blocks::cores(), (Wanted::Calls, None), |_| {})
}

/// The same with as much as is wanted of one of our traces, or of its ends, read on this many
/// threads. `also` gets its packets, too, and `None` before a part that does not follow on the one
/// before it.
pub(crate) fn open_as(
    path: &Path,
    threads: usize,
    (wanted, ends): (Wanted, Option<Ends>),
    also: impl FnMut(Option<&Packet<'_>>),
) -> Result<Profile, Error> {
    let mut profile = match format(path)? {
        Format::Sqlite => nsight::read(path)?,
        Format::Json => kineto::read(path)?,
        Format::Perfetto => ours::read(&[path], threads, (wanted, ends), also)?,
    };
    profile.source.path = path.to_owned();
    profile.sort();
    Ok(profile)
}

/// Reads several of our traces as one profile, as far as they can be read, with everything.
///
/// # Errors
///
/// See [`Error`].
pub fn open_traces(paths: &[impl AsRef<Path>]) -> Result<Profile, Error> {
    let mut profile = ours::read(paths, blocks::cores(), (Wanted::Arrows, None), |_| {})?;
    profile.sort();
    Ok(profile)
}
