//! The output: a folder of a few files, none of them large. Each is complete whenever the suite is
//! killed.
//!
//! ```text
//! report.md, report.json    the answers so far, and the running job
//! jobs.tar.gz               the jobs' results, logs, captures and traces, the most useful first,
//!                           until it is full
//! ```
//!
//! A thread writes the report every few seconds, and the archive when a job has left files. Each
//! file is written under another name and then replaces the previous one.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::report::Report;

/// The largest size of a file, in bytes.
pub const FILE: usize = 16 << 20;
/// The archive's name.
pub const ARCHIVE: &str = "jobs.tar.gz";
/// The time between two reports.
const PERIOD: Duration = Duration::from_secs(3);
/// An archive ends with two empty blocks.
const END: usize = 1024;

/// The folder and its content.
pub struct Home {
    shared: Arc<Shared>,
}

struct Shared {
    folder: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
    /// The largest size of a file, in bytes.
    limit: AtomicU64,
}

#[derive(Default)]
struct State {
    report: Option<Report>,
    /// The running job, and when it began.
    running: Option<(String, Instant)>,
    archive: Archive,
    is_archive_new: bool,
    is_over: bool,
}

/// Files of jobs, each compressed separately: a gzip stream may have several members.
#[derive(Default)]
struct Archive {
    members: Vec<Member>,
    left_out: Vec<String>,
}

/// A file of a job.
struct Member {
    name: String,
    rank: Rank,
    bytes: Vec<u8>,
}

/// The value of a file, highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// A process's results, and its log.
    Word,
    Capture,
    Trace,
}

impl Rank {
    /// `None` for files that only the job itself uses.
    fn of(path: &Path) -> Option<Rank> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => Some(Rank::Word),
            _ if name.starts_with("log-") => Some(Rank::Word),
            Some("capture") => Some(Rank::Capture),
            Some("perfetto-trace") => Some(Rank::Trace),
            _ => None,
        }
    }
}

impl Home {
    /// Makes the folder, and starts to write to it. If the process still runs at `until`, it is
    /// ended then.
    ///
    /// # Errors
    ///
    /// When there is no space for it.
    pub fn new(folder: &Path, until: Option<Instant>) -> Result<Home, String> {
        let failed = |error: std::io::Error| format!("failed to make {}: {error}", folder.display());
        fs::create_dir_all(folder).map_err(failed)?;
        let shared = Arc::new(Shared {
            folder: folder.to_owned(),
            // An empty archive is written at the start, so that there is always one.
            state: Mutex::new(State { is_archive_new: true, ..State::default() }),
            changed: Condvar::new(),
            limit: AtomicU64::new(FILE as u64),
        });
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new().name("home".into()).spawn(move || theirs.keep(until)).map_err(failed)?;
        Ok(Home { shared })
    }

    /// Sets the current report, and writes it before returning.
    ///
    /// # Errors
    ///
    /// When there is no space for it.
    pub fn report(&self, report: Report) -> Result<(), String> {
        let mut state = self.shared.lock();
        state.report = Some(report);
        self.shared.write(&mut state)
    }

    /// A job begins, as the report says from now on.
    pub fn begins(&self, job: &str) {
        let mut state = self.shared.lock();
        state.running = Some((job.to_owned(), Instant::now()));
        // A lack of space is reported at the end.
        let _ = self.shared.write(&mut state);
    }

    /// The job has ended, and left a folder.
    pub fn ends(&self, job: &str, folder: &Path) {
        let files = files_below(folder);
        let ranked = files.iter().filter_map(|file| Some((file, Rank::of(file)?)));
        let packed: Vec<_> = ranked.map(|(file, rank)| (file, Member::pack(job, folder, file, rank))).collect();
        let mut state = self.shared.lock();
        state.running = None;
        for (file, member) in packed {
            match member {
                Some(member) => state.archive.members.push(member),
                None => state.archive.left_out.push(name_of(job, folder, file)),
            }
        }
        state.archive.shrink(self.shared.limit.load(Relaxed) as usize);
        state.is_archive_new = true;
        self.shared.changed.notify_all();
    }

    /// Files of jobs that did not fit.
    #[must_use]
    pub fn left_out(&self) -> Vec<String> {
        self.shared.lock().archive.left_out.clone()
    }

    /// Writes everything.
    ///
    /// # Errors
    ///
    /// When there is no space for it.
    pub fn finish(&self) -> Result<(), String> {
        let mut state = self.shared.lock();
        state.is_over = true;
        self.shared.changed.notify_all();
        self.shared.write(&mut state)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, until: Option<Instant>) {
        let mut state = self.lock();
        while !state.is_over {
            // A lack of space is reported at the end.
            let _ = self.write(&mut state);
            let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
            if rest == Some(Duration::ZERO) {
                eprintln!("ncclscope-gpu: stopped at its time limit; the report has what was asked by then");
                std::process::exit(1);
            }
            let pause = rest.map_or(PERIOD, |rest| rest.min(PERIOD));
            state = self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn write(&self, state: &mut State) -> Result<(), String> {
        if state.is_archive_new {
            self.replace(ARCHIVE, &state.archive.bytes())?;
            state.is_archive_new = false;
        }
        let Some(report) = &mut state.report else { return Ok(()) };
        report.running = state.running.as_ref().map(|(job, since)| (job.clone(), since.elapsed().as_secs_f64()));
        report.left_out.clone_from(&state.archive.left_out);
        let json = serde_json::to_string_pretty(report).map_err(|error| error.to_string())?;
        // Whoever finds report.json finds the other one beside it.
        self.replace("report.md", report.markdown().as_bytes())?;
        self.replace("report.json", json.as_bytes())
    }

    /// Replaces the previous file.
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        let unfinished = self.folder.join(format!("{name}.unfinished"));
        let written = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, self.folder.join(name)));
        written.map_err(|error| format!("failed to write {name} to {}: {error}", self.folder.display()))
    }
}

impl Member {
    /// `None` if it cannot be read, or is too large by itself: large files here are compressed
    /// already.
    fn pack(job: &str, folder: &Path, file: &Path, rank: Rank) -> Option<Member> {
        if fs::metadata(file).is_ok_and(|it| it.len() > FILE as u64) {
            return None;
        }
        let content = fs::read(file).ok()?;
        let name = name_of(job, folder, file);
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_data(&mut header, &name, &content[..]).ok()?;
        let mut blocks = archive.into_inner().ok()?;
        blocks.truncate(blocks.len() - END);
        Some(Member { name, rank, bytes: compressed(&blocks)? })
    }
}

impl Archive {
    /// Leaves out the least valuable files until the rest fits.
    fn shrink(&mut self, limit: usize) {
        self.members.sort_by_key(|member| (member.rank, member.bytes.len()));
        let mut bytes: usize = self.members.iter().map(|member| member.bytes.len()).sum();
        // The end is a member of its own.
        while bytes + END > limit {
            let Some(member) = self.members.pop() else { break };
            bytes -= member.bytes.len();
            self.left_out.push(member.name);
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let end = compressed(&[0; END]).unwrap_or_default();
        self.members.iter().map(|member| &member.bytes).chain([&end]).flatten().copied().collect()
    }
}

fn compressed(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok()
}

fn name_of(job: &str, folder: &Path, file: &Path) -> String {
    format!("{job}/{}", file.strip_prefix(folder).unwrap_or(file).display())
}

/// All files in a folder and below it, in the order of their names.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(files_below(&entry.path())),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Read;

    fn random(bytes: usize) -> Vec<u8> {
        let mut state = 7_u64;
        let next = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        });
        next.take(bytes).collect()
    }

    /// The files of an archive, as read by other programs.
    fn content(folder: &Path) -> BTreeMap<String, Vec<u8>> {
        let file = fs::File::open(folder.join(ARCHIVE)).unwrap();
        let mut archive = tar::Archive::new(flate2::read::MultiGzDecoder::new(file));
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (entry.path().unwrap().display().to_string(), content)
        });
        entries.collect()
    }

    #[test]
    fn the_most_valuable_files_come_first_and_the_rest_is_named() {
        let (folder, job) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(job.path().join("trace")).unwrap();
        for (name, bytes) in [
            ("told-0.json", 100),
            ("log-0", 3000),
            ("trace/a.perfetto-trace", 40_000),
            ("trace/a.capture", 30_000),
            ("id-0", 5),
        ] {
            fs::write(job.path().join(name), random(bytes)).unwrap();
        }
        let home = Home::new(folder.path(), None).unwrap();
        home.shared.limit.store(40_000, Relaxed);
        home.ends("one", job.path());
        home.ends("two", job.path());
        home.finish().unwrap();
        let found = content(folder.path());
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        // One capture fit, after the results of both jobs.
        assert_eq!(names, ["one/log-0", "one/told-0.json", "one/trace/a.capture", "two/log-0", "two/told-0.json"]);
        assert_eq!(found["one/trace/a.capture"], random(30_000));
        let mut left_out = home.left_out();
        left_out.sort();
        assert_eq!(left_out, ["one/trace/a.perfetto-trace", "two/trace/a.capture", "two/trace/a.perfetto-trace"]);
        assert!(folder.path().join(ARCHIVE).metadata().unwrap().len() <= 40_000);
        // No other file is left there.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_empty_archive_is_valid() {
        let (folder, job) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let home = Home::new(folder.path(), None).unwrap();
        home.ends("none", job.path());
        home.finish().unwrap();
        assert!(content(folder.path()).is_empty());
    }
}
