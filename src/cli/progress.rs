//! How far a command has come: a line on stderr if that is a terminal, once the command has taken a
//! second.
//!
//! Most commands know nothing about it. How much of a file has been read can be seen from outside,
//! from the position of its descriptor. A file that is read without moving one (SQLite) is named
//! without a percentage. A command that goes through many files states their total size: a
//! [`Stage`].

use std::fs;
use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A command that takes no longer needs no progress line.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the position is read.
const PERIOD: Duration = Duration::from_millis(100);

/// A line that stays until this is dropped.
pub(super) struct Progress {
    line: Line,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Where it is shown.
#[derive(Clone)]
pub(super) struct Line {
    bar: ProgressBar,
    is_shown: Arc<AtomicBool>,
}

impl Progress {
    /// Starts to watch this process if stderr is a terminal. `otherwise` is shown while no file is
    /// read.
    pub(super) fn start(otherwise: &'static str) -> Option<Progress> {
        if !io::stderr().is_terminal() {
            return None;
        }
        IS_WATCHED.store(true, Ordering::Relaxed);
        let line = Line { bar: ProgressBar::new(0), is_shown: Arc::default() };
        let shown = line.clone();
        let (stop, stopped) = channel::<()>();
        let watch = move || {
            let mut pause = PATIENCE;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                shown.is_shown.store(true, Ordering::Relaxed);
                shown.show(staged().or_else(reading), otherwise);
                pause = PERIOD;
            }
        };
        let thread = thread::Builder::new().name("progress".into()).spawn(watch).ok()?;
        Some(Progress { line, stop: Some(stop), thread: Some(thread) })
    }

    pub(super) fn line(&self) -> Line {
        self.line.clone()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
        if self.line.is_shown.load(Ordering::Relaxed) {
            self.line.bar.finish_and_clear();
        }
    }
}

impl Line {
    /// Lets something else be written to the terminal.
    pub(super) fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        if self.is_shown.load(Ordering::Relaxed) { self.bar.suspend(write) } else { write() }
    }

    fn show(&self, reading: Option<Reading>, otherwise: &'static str) {
        let template =
            |template| ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        match reading {
            Some(Reading { what, at, size }) if at > 0 => {
                self.bar.set_message(what);
                self.bar.set_style(template("{msg} {bar:30} {percent} %"));
                self.bar.set_length(size);
                self.bar.set_position(at);
            }
            reading => {
                self.bar.set_style(template("{msg}"));
                self.bar.set_message(reading.map_or_else(|| otherwise.into(), |it| it.what));
            }
        }
        self.bar.tick();
    }
}

/// Many files that a command goes through, for as long as this exists. There is one at a time.
pub(super) struct Stage {
    /// Somebody watches it.
    is_watched: bool,
    /// Files count, not their bytes.
    counts: bool,
}

/// Whether stages are watched.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);
/// The current stage, and whether files count.
static STAGE: Mutex<Option<(Reading, bool)>> = Mutex::new(None);

impl Stage {
    /// Begins a stage: `what` is done with files of this many bytes in total.
    pub(super) fn begin(what: String, bytes: u64) -> Stage {
        Stage::of(Reading { what, at: 0, size: bytes }, false, IS_WATCHED.load(Ordering::Relaxed))
    }

    /// Begins a stage in which `what` is done with the ends of so many files.
    pub(super) fn of_ends(what: &str, files: usize) -> Stage {
        let stage = Reading { what: format!("{what} the ends of {files} files"), at: 0, size: files as u64 };
        Stage::of(stage, true, IS_WATCHED.load(Ordering::Relaxed))
    }

    fn of(stage: Reading, counts: bool, is_watched: bool) -> Stage {
        let stage = Some((stage, counts)).filter(|_| is_watched);
        let made = Stage { is_watched, counts };
        made.change(|current| *current = stage);
        made
    }

    fn change(&self, change: impl FnOnce(&mut Option<(Reading, bool)>)) {
        if self.is_watched {
            change(&mut STAGE.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// A file of this many bytes is done.
    pub(super) fn advance(&self, bytes: u64) {
        let done = if self.counts { 1 } else { bytes };
        self.change(|current| current.iter_mut().for_each(|(stage, _)| stage.at += done));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.change(|current| *current = None);
    }
}

/// What is being done with one file or many, how many bytes are done, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reading {
    what: String,
    at: u64,
    size: u64,
}

/// The current stage, with what has been read of the open files.
fn staged() -> Option<Reading> {
    let (stage, counts) = STAGE.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
    let read: u64 = if counts { 0 } else { open().map(|file| file.at).sum() };
    Some(Reading { at: (stage.at + read).min(stage.size), ..stage })
}

/// The largest file that this process has open for reading, and how much of it has been read.
fn reading() -> Option<Reading> {
    open().max_by_key(|file| file.size)
}

/// The files that this process has open for reading.
fn open() -> impl Iterator<Item = Reading> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok().filter(|number| *number > 2)?;
        let facts = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file)?;
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
        let of = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        // The last octal digit of `flags` is the access mode.
        let is_read = of("flags:")?.ends_with('0');
        let name = fs::read_link(entry.path()).ok()?.file_name()?.to_string_lossy().into_owned();
        is_read.then_some(Reading { what: format!("reading {name}"), at: of("pos:")?.parse().ok()?, size: facts.len() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek as _, SeekFrom};

    #[test]
    fn progress_is_read_from_the_descriptor() {
        let path = std::env::temp_dir().join(format!("ncclscope-progress-{}", std::process::id()));
        // Larger than whatever the other tests read, and it takes no space on the disk.
        fs::File::create(&path).unwrap().set_len(1 << 42).unwrap();
        let mut file = fs::File::open(&path).unwrap();
        let what = format!("reading {}", path.file_name().unwrap().to_string_lossy());
        assert_eq!(reading(), Some(Reading { what: what.clone(), at: 0, size: 1 << 42 }));
        file.seek(SeekFrom::Start(1 << 40)).unwrap();
        assert_eq!(reading(), Some(Reading { what: what.clone(), at: 1 << 40, size: 1 << 42 }));
        // One of four files is done, and a quarter of this one. What other tests read is far less.
        let stage = Stage::of(Reading { what: "joining".into(), at: 0, size: 4 << 42 }, false, true);
        stage.advance(1 << 42);
        let at = staged().map(|it| (it.what, it.at >> 40, it.size));
        assert_eq!(at, Some(("joining".to_owned(), 5, 4 << 42)));
        drop(stage);
        assert_eq!(staged(), None);
        // Of files whose ends are read, the bytes before them count for nothing.
        let stage = Stage::of(Reading { what: "reading the ends of 4 files".into(), at: 0, size: 4 }, true, true);
        stage.advance(1 << 42);
        assert_eq!(staged().map(|it| (it.at, it.size)), Some((1, 4)));
        drop(stage);
        drop(file);
        let written = fs::OpenOptions::new().write(true).open(&path).unwrap();
        assert_ne!(reading().map(|it| it.what), Some(what), "what is written is not read");
        drop(written);
        fs::remove_file(&path).unwrap();
    }
}
