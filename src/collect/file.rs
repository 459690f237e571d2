//! The trace file and the one thread that writes it, so that a slow disk stalls nothing but itself.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::capture::file::CaptureFile;
use crate::pipeline::CHUNK;
use crate::sys::descriptor::Descriptor;
use crate::sys::output::{Append, Output};
use crate::threads::{self, queue};
use crate::trace::names;
use crate::trace::packer::Packer;
use crate::{fault, message, summary, sys};

/// Chunks waiting to be written. With more, the collector waits; then the rings fill, and what they
/// cannot hold is dropped and counted.
const QUEUE: usize = 4;
/// Room kept at the end of the file for the ends of open slices and the closing packets, in bytes.
pub const RESERVE: u64 = 128 << 10;
/// A write that takes longer is reported as hanging.
const HANGS: Duration = Duration::from_millis(700);
/// How long to wait for the thread to end once there is nothing more to write.
const END_WAIT: Duration = Duration::from_secs(1);

/// Why nothing more is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stopped {
    /// Writing goes on.
    No = 0,
    /// The file system is nearly full. The end of the recording is still written.
    NoSpace = 1,
    /// A write failed, and what follows would make no sense without it.
    Error = 2,
}

/// What the writing thread tells other threads.
#[derive(Debug, Default)]
struct Shared {
    /// The processor time of the thread, ns.
    cpu_ns: AtomicU64,
    /// Bytes in the file.
    written: AtomicU64,
    /// The same bytes before compression.
    packed: AtomicU64,
    /// Bytes of packets handed over and not yet written.
    queued: AtomicU64,
    /// When the thread's current disk access began, on `CLOCK_BOOTTIME` in ns; 0 if there is none.
    writing_since: AtomicU64,
    /// A message has said that the disk hangs.
    accused: AtomicBool,
    /// A message has said that the file system does not tell how much space is free.
    blind: AtomicBool,
    /// The number in the name of the summary, where there is no trace.
    summary_number: AtomicU32,
    stopped: AtomicU8,
    error: Mutex<String>,
    /// Why the capture ended before the recording.
    capture_ended: Mutex<Option<String>>,
}

/// Where chunks go.
pub struct TraceFile {
    sender: queue::Sender<Command>,
    shared: Arc<Shared>,
    path: PathBuf,
    /// The same, also after the program changes its directory.
    absolute: PathBuf,
    has_trace: bool,
    compresses: bool,
    capture: Option<PathBuf>,
}

/// How the thread gets its files. It is started before they exist, so that a thread that cannot be
/// started leaves none behind.
enum Start {
    /// The files exist.
    With(Box<Files>),
    /// The thread makes them and sends back their paths.
    Make(Make, queue::Sender<io::Result<Paths>>),
}

struct Files {
    /// None if only a summary or metrics are wanted.
    trace: Option<Output>,
    /// The trace's path, whether there is a trace or not.
    path: PathBuf,
    capture: Option<CaptureFile>,
}

/// The paths of the trace and the capture.
type Paths = (PathBuf, Option<PathBuf>);

/// Which files to make.
struct Make {
    folder: PathBuf,
    name: String,
    options: Options,
}

enum Command {
    /// Whole packets.
    Chunk(Vec<u8>),
    /// Whole entries of the capture.
    Capture(Vec<u8>),
    /// A text for a file of its own, in place of the one that is there.
    Text(Text),
    /// The same for the summary of a recording without a trace, with the end of its name: the file
    /// must not be another process's.
    Summary(Text, &'static str),
    /// Such a file is no longer needed.
    Remove(PathBuf),
    /// Answer once everything before this is in the file.
    Flush(queue::Sender<()>),
}

/// A text for a file of its own.
struct Text {
    /// In one word.
    what: &'static str,
    /// Absolute.
    path: PathBuf,
    text: String,
}

/// How the file is written.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether there is a trace at all.
    pub trace: bool,
    /// zlib packets.
    pub compress: bool,
    /// Free space to leave on the file system, in bytes.
    pub min_free: u64,
    /// Most bytes of the capture, if one is to be made.
    pub capture: Option<u64>,
    /// Permissions of the files, whatever the umask says. `None`: only their owner may read them.
    pub mode: Option<u32>,
}

impl TraceFile {
    /// Creates a new file in `folder`, readable by its owner unless the options say more:
    /// `name.perfetto-trace`, or with a number after the name if that exists. The capture beside it
    /// has the same name and the extension `capture`; if it cannot be made, a message says so, and
    /// the trace is made without it.
    ///
    /// The thread makes the files, and a disk that hangs is waited for at most `limit`; without a
    /// limit the calling thread makes them.
    ///
    /// # Errors
    ///
    /// The operating system's reason if it refuses the folder, the file or the thread.
    pub fn create(folder: &Path, name: &str, options: Options, limit: Option<Duration>) -> io::Result<TraceFile> {
        let shared = Arc::new(Shared::default());
        let (start, started) = queue::new(1);
        let (sender, receiver) = queue::new(QUEUE);
        let theirs = Arc::clone(&shared);
        threads::start(c"ncclscope write", move || {
            let run = || write_files(&started, options, &receiver, &theirs);
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                fault::say(format_args!("ended the writing of the file"));
                theirs.fail("writing failed");
            }
        })
        .map_err(|error| io::Error::new(error.kind(), format!("no thread to write it: {error}")))?;
        let make = Make { folder: folder.to_owned(), name: name.to_owned(), options };
        let (path, capture) = match limit {
            None => {
                let files = make.run(&shared)?;
                let paths = files.paths();
                // The thread is waiting for this.
                let _ = start.send(Start::With(Box::new(files)));
                paths
            }
            Some(limit) => {
                let (answer, made) = queue::new(1);
                let _ = start.send(Start::Make(make, answer));
                made.last_until(Instant::now() + limit).ok_or_else(|| {
                    let text = format!("its disk has not answered for {} s", limit.as_secs());
                    io::Error::new(io::ErrorKind::TimedOut, text)
                })??
            }
        };
        let compresses = options.compress;
        let absolute = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
        Ok(TraceFile { sender, shared, path, absolute, has_trace: options.trace, compresses, capture })
    }

    /// The state of the disk, for other threads.
    #[must_use]
    pub fn disk(&self) -> Disk {
        Disk { shared: Arc::clone(&self.shared), path: self.path.clone() }
    }

    /// The trace's path, whether there is a trace or not.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is a trace at all.
    #[must_use]
    pub fn has_trace(&self) -> bool {
        self.has_trace
    }

    /// Whether packets are compressed.
    #[must_use]
    pub fn compresses(&self) -> bool {
        self.compresses
    }

    /// The capture's path, if one is made.
    #[must_use]
    pub fn capture(&self) -> Option<&Path> {
        self.capture.as_deref()
    }

    /// Hands over whole entries of the capture; waits while too many chunks are queued.
    pub fn write_capture(&self, entries: Vec<u8>) {
        if !entries.is_empty() {
            // Fails only when the thread is gone.
            let _ = self.sender.send(Command::Capture(entries));
        }
    }

    /// The path of the summary beside the trace. Where there is no trace, it holds once the first
    /// summary was written.
    #[must_use]
    pub fn summary_path(&self, csv: bool) -> PathBuf {
        numbered(&self.path.with_extension(""), self.shared.summary_number.load(Ordering::Relaxed), ending(csv))
    }

    /// Hands over the summary, which gets a file of its own. Where there is no trace with a name of
    /// its own, a process of another container may have the same name.
    pub fn write_summary(&self, text: String, csv: bool) {
        let path = self.absolute.with_extension(ending(csv));
        let text = Text { what: "summary", path, text };
        let _ =
            self.sender.send(if self.has_trace { Command::Text(text) } else { Command::Summary(text, ending(csv)) });
    }

    /// Hands over metrics for this file. Nobody waits for them: if the queue is full, the next ones
    /// will do.
    pub fn write_metrics(&self, path: &Path, text: String) {
        let _ = self.sender.try_send(Command::Text(Text { what: "metrics", path: path.to_owned(), text }));
    }

    /// Removes the file of the metrics.
    pub fn remove_metrics(&self, path: &Path) {
        let _ = self.sender.send(Command::Remove(path.to_owned()));
    }

    /// Why the capture ended before the recording, if it did.
    #[must_use]
    pub fn capture_ended(&self) -> Option<String> {
        self.shared.capture_ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Hands over whole packets; waits while too many chunks are queued.
    pub fn write(&self, chunk: Vec<u8>) {
        if !chunk.is_empty() && self.has_trace && self.stopped() != Stopped::Error {
            self.shared.queued.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            // Fails only if the thread is gone; `stopped` says so from then on.
            let _ = self.sender.send(Command::Chunk(chunk));
        }
    }

    /// Waits until everything handed over is in the file, or the time is up.
    pub fn flush(&self, limit: Duration) {
        let (done, wait) = queue::new(1);
        let deadline = Instant::now() + limit;
        // While the disk hangs, the queue may be full.
        if self.sender.send_until(Command::Flush(done), deadline).is_ok() {
            let _ = wait.last_until(deadline);
        }
    }

    /// The processor time of the writing thread, ns.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        self.shared.cpu_ns.load(Ordering::Relaxed)
    }

    /// Bytes in the file.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.shared.written.load(Ordering::Relaxed)
    }

    /// An upper estimate of the file's size in bytes, once the queued packets and `more` bytes of
    /// packets are in it: twice what the compression so far predicts for them, or their full size
    /// if that is less.
    #[must_use]
    pub fn size_with(&self, more: u64) -> u64 {
        let (written, packed) = (self.size(), self.shared.packed.load(Ordering::Relaxed));
        let coming = self.shared.queued.load(Ordering::Relaxed) + more;
        let likely =
            if packed == 0 { coming } else { (u128::from(coming) * u128::from(written) / u128::from(packed)) as u64 };
        written + coming.min(2 * likely)
    }

    /// Whether and why writing has ended.
    #[must_use]
    pub fn stopped(&self) -> Stopped {
        match self.shared.stopped.load(Ordering::Relaxed) {
            0 => Stopped::No,
            1 => Stopped::NoSpace,
            _ => Stopped::Error,
        }
    }

    /// What went wrong, if something did.
    #[must_use]
    pub fn error(&self) -> String {
        self.shared.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes what is queued and ends the thread.
    pub fn close(self) {
        self.flush(Duration::from_secs(60));
    }
}

impl Drop for TraceFile {
    /// Ends the thread, and waits a moment for it: it may have to remove an empty file.
    fn drop(&mut self) {
        self.sender.close(END_WAIT);
    }
}

/// The disk, as seen by threads that wait for it.
pub struct Disk {
    shared: Arc<Shared>,
    path: PathBuf,
}

impl Disk {
    /// How long to wait, if the caller would wait `limit`: not at all while the disk hangs and a
    /// message has said so.
    #[must_use]
    pub fn patience(&self, limit: Duration) -> Duration {
        let is_known = self.shared.accused.load(Ordering::Relaxed);
        if is_known && self.hangs().is_some() { Duration::ZERO } else { limit }
    }

    /// Says once that the disk hangs, if it does. Returns whether it does.
    pub fn accuse(&self) -> bool {
        let hangs = self.hangs();
        if let Some(taken) = hangs
            && !self.shared.accused.swap(true, Ordering::Relaxed)
        {
            message::formatted(format_args!(
                "{}: the disk hangs: a write has taken {:.1} s and has not returned. The job does not wait for it; \
                 records that do not fit in memory are dropped and counted",
                self.path.display(),
                taken.as_secs_f64(),
            ));
        }
        hangs.is_some()
    }

    /// How long the current write has taken, if that is too long.
    fn hangs(&self) -> Option<Duration> {
        let since = self.shared.writing_since.load(Ordering::Relaxed);
        let taken = Duration::from_nanos(sys::boottime_ns().saturating_sub(since));
        (since > 0 && taken >= HANGS).then_some(taken)
    }
}

/// The end of a trace's name.
const TRACE: &str = "perfetto-trace";
/// File names tried for one process before it counts as an error.
const NAMES: u32 = 100;

impl Make {
    fn run(self, shared: &Shared) -> io::Result<Files> {
        let Make { folder: path, name, options } = self;
        let refuse = |path: &Path, error| {
            let mode = options.mode.unwrap_or_default();
            message::formatted(format_args!(
                "NCCLSCOPE_FILE_MODE={mode:o} could not be applied to {}: {error}",
                path.display()
            ));
        };
        // Who may read a file may also list its folder.
        let folder_mode = options.mode.map(|mode| mode | (mode & 0o444) >> 2);
        let folder = sys::folder::open(&path, folder_mode, |error| refuse(&path, error))?;
        // Everything that may be queued when the disk turns out to be full must still fit.
        // Compression usually leaves a quarter of it.
        let under_way = (QUEUE + 2) * CHUNK;
        let ahead = RESERVE + if options.compress { under_way / 2 } else { under_way } as u64;
        let name = path.join(name);
        let trace =
            options.trace.then(|| create_new(&folder, &name, TRACE, ahead)).transpose()?.map(|(trace, _)| trace);
        let path = trace.as_ref().map_or_else(|| numbered(&name, 0, TRACE), |it| it.path().to_owned());
        let permit = |file: &Output| {
            if let Some(mode) = options.mode {
                file.permit(mode).unwrap_or_else(|error| refuse(file.path(), error));
            }
        };
        if let Some(trace) = &trace {
            permit(trace);
            // Do not wait for the first flush: a job may end before it.
            check_space(trace, options.min_free, shared);
        }
        let capture = options.capture.and_then(|max_size| {
            let path = path.with_extension("capture");
            let say =
                |error| message::formatted(format_args!("no capture: failed to create {}: {error}", path.display()));
            CaptureFile::create(&folder, &path, max_size).map_err(say).ok()
        });
        capture.iter().for_each(|capture| permit(capture.output()));
        Ok(Files { trace, path, capture })
    }
}

impl Files {
    fn paths(&self) -> Paths {
        (self.path.clone(), self.capture.as_ref().map(|capture| capture.path().to_owned()))
    }

    fn remove(self) {
        self.trace.into_iter().for_each(Output::remove);
        self.capture.into_iter().for_each(CaptureFile::remove);
    }
}

/// Creates a file of this name and ending, or with a number after the name if that exists; returns
/// the number, too.
fn create_new(folder: &Descriptor, name: &Path, ending: &str, ahead: u64) -> io::Result<(Output, u32)> {
    let mut number = 0;
    loop {
        match Output::create(folder, numbered(name, number, ending), ahead) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < NAMES => number += 1,
            other => return other.map(|file| (file, number)),
        }
    }
}

fn numbered(name: &Path, number: u32, ending: &str) -> PathBuf {
    let mut path = name.as_os_str().to_owned();
    if number > 0 {
        path.push(format!("-{number}"));
    }
    path.push(format!(".{ending}"));
    path.into()
}

fn write_files(start: &queue::Receiver<Start>, options: Options, commands: &queue::Receiver<Command>, shared: &Shared) {
    let files = match start.receive() {
        Some(Start::With(files)) => *files,
        Some(Start::Make(make, answer)) => match make.run(shared) {
            Ok(files) => match answer.send(Ok(files.paths())) {
                Ok(()) => files,
                // The caller no longer waits for them.
                Err(_) => return files.remove(),
            },
            Err(error) => return drop(answer.send(Err(error))),
        },
        None => return,
    };
    let files = write_chunks(files, options, commands, shared);
    // A recording that never began leaves no file.
    match files.trace.as_ref().map(Output::length) {
        Some(0) => files.remove(),
        _ => files.trace.into_iter().for_each(Output::close),
    }
}

fn write_chunks(mut files: Files, options: Options, commands: &queue::Receiver<Command>, shared: &Shared) -> Files {
    let (mut packer, mut failed, mut summary) = (Packer::new(), Vec::new(), None);
    while let Some(command) = commands.receive() {
        fault::at("write");
        match command {
            Command::Chunk(chunk) => {
                let raw = chunk.len() as u64;
                let Some(trace) = &mut files.trace else { continue };
                if shared.stopped.load(Ordering::Relaxed) != Stopped::Error as u8 {
                    let packed = if options.compress { packer.pack(&chunk) } else { &chunk };
                    let result = shared.at_disk(|| trace.append(packed));
                    if !matches!(result, Append::Failed(_)) {
                        shared.packed.fetch_add(raw, Ordering::Relaxed);
                        shared.written.store(trace.length(), Ordering::Relaxed);
                    }
                    match result {
                        Append::Done => {}
                        Append::NearlyFull(error) => {
                            shared.stop(Stopped::NoSpace, &format!("{}: {error}", trace.path().display()));
                        }
                        Append::Failed(why) => {
                            let path = trace.path().display();
                            shared.stop(Stopped::Error, &format!("failed to write {path}: {why}"));
                        }
                    }
                }
                shared.queued.fetch_sub(raw, Ordering::Relaxed);
                shared.cpu_ns.store(sys::own_cpu_ns(), Ordering::Relaxed);
                shared.at_disk(|| check_space(trace, options.min_free, shared));
            }
            Command::Capture(entries) => {
                files.capture =
                    files.capture.and_then(|capture| shared.at_disk(|| write_entries(capture, &entries, shared)));
            }
            // There is no room, or no folder any more, and a message has said so.
            Command::Text(_) | Command::Summary(..) if shared.stopped.load(Ordering::Relaxed) != Stopped::No as u8 => {}
            Command::Text(text) => {
                let result = shared.at_disk(|| replace(&text, options.mode));
                complain(result, &text, &mut failed);
            }
            Command::Summary(mut text, ending) => {
                let result = shared.at_disk(|| match summary.clone() {
                    Some(path) => {
                        text.path = path;
                        replace(&text, options.mode)
                    }
                    None => begin_summary(&mut text, ending, options.mode, shared).map(|path| summary = Some(path)),
                });
                complain(result, &text, &mut failed);
            }
            Command::Remove(path) => drop(shared.at_disk(|| std::fs::remove_file(path))),
            Command::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
    files
}

/// Says once of each kind of text that it could not be written.
fn complain(result: io::Result<()>, text: &Text, failed: &mut Vec<&'static str>) {
    if let Err(error) = result
        && !failed.contains(&text.what)
    {
        let path = text.path.display();
        message::formatted(format_args!("no {}: failed to write {path}: {error}", text.what));
        failed.push(text.what);
    }
}

/// Writes the first summary of a recording without a trace, into a file that did not exist. Returns
/// its path.
fn begin_summary(text: &mut Text, ending: &str, mode: Option<u32>, shared: &Shared) -> io::Result<PathBuf> {
    let parent = text.path.parent().ok_or(io::ErrorKind::InvalidFilename)?;
    let folder = sys::folder::open(parent, None, |_| ())?;
    // The ending has a dot itself.
    let name = text.path.with_extension("").with_extension("");
    let (file, number) = create_new(&folder, &name, ending, 0)?;
    file.path().clone_into(&mut text.path);
    match replace(text, mode) {
        Ok(()) => {
            shared.summary_number.store(number, Ordering::Relaxed);
            Ok(text.path.clone())
        }
        Err(error) => {
            file.remove();
            Err(error)
        }
    }
}

fn ending(csv: bool) -> &'static str {
    if csv { summary::ENDING_CSV } else { summary::ENDING }
}

/// Writes a text into a new file, which then takes the place of the old one: whoever reads it finds
/// the one or the other.
fn replace(text: &Text, mode: Option<u32>) -> io::Result<()> {
    let (Some(parent), Some(name)) = (text.path.parent(), text.path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidFilename));
    };
    let folder = sys::folder::open(parent, None, |_| ())?;
    let mut draft = name.to_owned();
    draft.push(format!(".{}", std::process::id()));
    // One that an earlier process of this number left.
    let _ = folder.remove(&draft);
    let mut file = Output::create(&folder, parent.join(&draft), 0)?;
    if let Some(mode) = mode {
        file.permit(mode)?;
    }
    let written = match file.append(text.text.as_bytes()) {
        Append::Failed(why) => Err(io::Error::other(why.to_string())),
        Append::Done | Append::NearlyFull(_) => folder.rename(&draft, name),
    };
    if written.is_err() {
        let _ = folder.remove(&draft);
    }
    written
}

/// Appends to the capture; returns `None` once the capture has ended.
fn write_entries(mut capture: CaptureFile, entries: &[u8], shared: &Shared) -> Option<CaptureFile> {
    let is_full = shared.stopped.load(Ordering::Relaxed) == Stopped::NoSpace as u8;
    let why = if is_full {
        shared.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    } else {
        let Err(why) = capture.append(entries) else { return Some(capture) };
        why.to_string()
    };
    let why = capture.end(&why);
    message::line(&why);
    *shared.capture_ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    None
}

impl Shared {
    /// Runs `work`, which may hang with the disk, so that others can see how long it takes.
    fn at_disk<T>(&self, work: impl FnOnce() -> T) -> T {
        self.writing_since.store(sys::boottime_ns(), Ordering::Relaxed);
        let result = work();
        self.writing_since.store(0, Ordering::Relaxed);
        result
    }

    /// Stops writing after an error that was reported.
    fn fail(&self, why: &str) {
        self.stopped.store(Stopped::Error as u8, Ordering::Relaxed);
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = why.to_owned();
    }

    /// Stops writing, and says why.
    fn stop(&self, stopped: Stopped, why: &str) {
        if self.stopped.fetch_max(stopped as u8, Ordering::Relaxed) < stopped as u8 {
            let error = format!("{why}; recording ended");
            message::line(&error);
            *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
        }
    }
}

/// Stops writing before the disk is full: the job's checkpoints matter more.
fn check_space(file: &Output, min_free: u64, shared: &Shared) {
    if shared.stopped.load(Ordering::Relaxed) != Stopped::No as u8 {
        return;
    }
    let path = file.path().display();
    match file.free_bytes() {
        Ok(free) if free < min_free => {
            let (free, floor) = (names::size(free), names::size(min_free));
            let why = format!("only {free} free at {path}, less than NCCLSCOPE_MIN_FREE ({floor})");
            shared.stop(Stopped::NoSpace, &why);
        }
        Ok(_) => {}
        Err(error) => {
            if !shared.blind.swap(true, Ordering::Relaxed) {
                message::formatted(format_args!(
                    "NCCLSCOPE_MIN_FREE cannot be enforced: failed to read the free space at {path}: {error}"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_name_have_summaries_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { trace: false, compress: false, min_free: 0, capture: None, mode: None };
        // As of two containers: the same host name, number and second.
        let both = [0, 1].map(|_| TraceFile::create(folder.path(), "host.7.1795200300", options, None).unwrap());
        for turn in 0..2 {
            for (number, file) in both.iter().enumerate() {
                file.write_summary(format!("{number} {turn}"), false);
                file.flush(Duration::from_secs(60));
            }
        }
        let paths = both.each_ref().map(|file| file.summary_path(false));
        let names = ["host.7.1795200300.summary.txt", "host.7.1795200300-1.summary.txt"];
        assert_eq!(paths, names.map(|name| folder.path().join(name)));
        assert_eq!(paths.map(|path| std::fs::read_to_string(path).unwrap()), ["0 1", "1 1"]);
        drop(both);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
