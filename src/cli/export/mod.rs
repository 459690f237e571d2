//! `ncclscope export`: traces as tables that any engine reads.
//!
//! ```text
//!   trace -> rows (one pass, in bounded memory) -> files (Parquet, sorted, partitioned)
//!            schema (what the tables are)       -> otlp  (spans and figures, sent)
//! ```
//!
//! Each rank is written independently of the others, so that thousands can be written at the same
//! time on as many machines. Relating the ranks is left to the engine that reads the tables.

mod files;
mod otlp;
mod rows;
mod schema;

use std::fs::{self, File};
use std::io::{Read as _, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use serde::{Deserialize, Serialize};

use self::files::{Files, Written};
use super::progress::Stage;
use crate::cli::reason::Reason;
use crate::trace::names;
use crate::trace::reader::blocks;

/// The most traces exported in parallel: each holds a row group of each table.
const ABREAST: usize = 4;
/// The folder of notes on what was exported; engines skip names that begin with an underscore.
const DONE: &str = "_exported";
/// Bytes at the beginning of a trace that identify it, even while it grows.
const HEAD: u64 = 4 << 10;

/// What to export.
#[derive(clap::Args)]
pub(super) struct Wish {
    /// Traces, or folders with the traces of a job's ranks
    #[arg(required = true, value_name = "TRACE|FOLDER")]
    traces: Vec<PathBuf>,
    /// Write Parquet files into this folder, which may have other ranks and jobs in it
    #[arg(long, value_name = "FOLDER", conflicts_with = "otlp")]
    parquet: Option<PathBuf>,
    /// Send operations as spans, and figures as metrics, to this OpenTelemetry collector, by OTLP
    /// over HTTP: http://HOST:4318
    #[arg(long, value_name = "ENDPOINT")]
    otlp: Option<String>,
    /// What the job is called in what is written, instead of the name that the recording has
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
}

/// The note on an exported trace.
#[derive(Debug, Serialize, Deserialize)]
struct Done {
    schema_version: u32,
    trace: String,
    trace_bytes: u64,
    files: Vec<Written>,
}

/// The outcome for a trace.
enum Became {
    Written(Vec<Written>),
    /// It had been exported already.
    There,
}

pub(super) fn run(wish: &Wish, out: &mut dyn Write) -> Result<(), Reason> {
    let (traces, job) = (|| super::summary::files(&wish.traces), wish.job.as_deref());
    match (&wish.parquet, &wish.otlp) {
        (_, Some(endpoint)) => otlp::send(&traces()?, endpoint, job, out),
        (Some(folder), None) => parquet(&traces()?, folder, job, out),
        (None, None) => Err("say what to export to: --parquet FOLDER, or --otlp ENDPOINT".into()),
    }
}

/// Exports traces, several in parallel.
pub(super) fn parquet(traces: &[PathBuf], folder: &Path, job: Option<&str>, out: &mut dyn Write) -> Result<(), Reason> {
    let (mut written, mut whole, mut there) = (Vec::new(), 0, 0);
    let take = |became| match became {
        Became::Written(files) => {
            whole += 1;
            written.extend(files);
        }
        Became::There => there += 1,
    };
    let reasons = abreast("exporting", traces, |path, threads| Some(one(path, folder, job, threads)), take);
    let (rows, bytes) = written.iter().fold((0, 0), |(rows, bytes), it| (rows + it.rows, bytes + it.bytes));
    let already = if there > 0 { format!("; {there} were there already") } else { String::new() };
    let traces = if whole == 1 { "trace" } else { "traces" };
    writeln!(
        out,
        "{}: {whole} {traces} exported, {rows} rows in {} files, {}{already}",
        folder.display(),
        written.len(),
        names::size(bytes)
    )
    .map_err(Reason::Output)?;
    Reason::all(reasons)
}

/// The outcome for a trace, and what is wrong with it.
type Outcome<T> = (Option<T>, Option<Reason>);

/// Does something with each trace, several in parallel, and passes on the outcomes; stops after a
/// `None`. Returns what is wrong.
fn abreast<T: Send>(
    what: &str,
    traces: &[PathBuf],
    one: impl Fn(&Path, usize) -> Option<Outcome<T>> + Sync,
    mut take: impl FnMut(T),
) -> Vec<Reason> {
    let size = |path: &PathBuf| fs::metadata(path).map_or(0, |facts| facts.len());
    let stage = Stage::begin(format!("{what} {} traces", traces.len()), traces.iter().map(size).sum());
    let mut reasons = Vec::new();
    let next = AtomicUsize::new(0);
    let abreast = blocks::cores().min(ABREAST).min(traces.len()).max(1);
    // A core that has no trace of its own unpacks another's.
    let threads = (blocks::cores() / abreast).clamp(1, 2);
    thread::scope(|scope| {
        let (done, results) = channel();
        for _ in 0..abreast {
            let (done, next, one) = (done.clone(), &next, &one);
            scope.spawn(move || {
                while let Some(path) = traces.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some(outcome) = one(path, threads) else { return };
                    if done.send((path, outcome)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        for (path, (became, reason)) in results {
            became.into_iter().for_each(&mut take);
            reasons.extend(reason);
            stage.advance(size(path));
        }
    });
    reasons
}

/// Exports a trace, unless that was done already. A damaged trace is exported as far as it can be
/// read, and reported as wrong, too.
fn one(path: &Path, folder: &Path, job: Option<&str>, threads: usize) -> Outcome<Became> {
    let try_one = || -> Result<(Became, Option<Reason>), Reason> {
        let bytes = fs::metadata(path).map_err(Reason::read(path))?.len();
        let note = folder.join(DONE).join(note(path, job)?);
        if is_done(&note, folder, bytes) {
            return Ok((Became::There, None));
        }
        let mut files = Files::new(folder, path, job);
        let fault = rows::read(path, threads, &mut files)?.err();
        let files = files.finish()?;
        if files.is_empty() {
            return Err(fault
                .unwrap_or_else(|| Reason::file(path)("no process recorded by ncclscope is in this Perfetto trace")));
        }
        if fault.is_none() {
            let trace = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let done = Done { schema_version: schema::VERSION, trace, trace_bytes: bytes, files };
            write_note(&note, &done)?;
            return Ok((Became::Written(done.files), None));
        }
        Ok((Became::Written(files), fault))
    };
    match try_one() {
        Ok((became, reason)) => (Some(became), reason),
        Err(reason) => (None, Some(reason)),
    }
}

/// The name of the note on a trace. Traces in different folders may have the same name, and one
/// trace may be exported under several job names.
fn note(path: &Path, job: Option<&str>) -> Result<String, Reason> {
    let mut head = Vec::new();
    let file = File::open(path).map_err(Reason::read(path))?;
    file.take(HEAD).read_to_end(&mut head).map_err(Reason::read(path))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok(format!("{name}.{:016x}.json", hash(&[&head, job.unwrap_or_default().as_bytes()])))
}

/// Whether a trace of this many bytes was exported and all of its files are there.
fn is_done(note: &Path, folder: &Path, bytes: u64) -> bool {
    let Some(done) = fs::read(note).ok().and_then(|text| serde_json::from_slice::<Done>(&text).ok()) else {
        return false;
    };
    let is_there = |it: &Written| {
        fs::metadata(folder.join(&it.path)).is_ok_and(|facts| facts.is_file() && facts.len() == it.bytes)
    };
    (done.schema_version, done.trace_bytes) == (schema::VERSION, bytes) && done.files.iter().all(is_there)
}

/// Writes the note, which appears whole.
fn write_note(note: &Path, done: &Done) -> Result<(), Reason> {
    let folder = note.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(Reason::write(folder))?;
    let mut text = serde_json::to_vec_pretty(done).map_err(Reason::failed("write JSON"))?;
    text.push(b'\n');
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(Reason::write(note))?;
    file.write_all(&text).map_err(Reason::write(note))?;
    file.persist(note).map_err(|error| Reason::Write(note.to_owned(), error.error))?;
    Ok(())
}

/// FNV-1a: the same on every machine and in every version.
fn hash(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter().chain(&[0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
