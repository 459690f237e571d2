//! `ncclscope replay`: the trace of a capture, once more. And what `ncclscope info` says of one.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read as _, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::info;
use crate::capture;
use crate::capture::read::{Chunks, Entry, Error};
use crate::capture::replay::{self, End, Replay};
use crate::model::time::HostNs;
use crate::pipeline::input::{Begin, Input};
use crate::trace::names;

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) fn run(path: &Path, output: Option<PathBuf>, out: &mut dyn Write) -> Result<(), String> {
    let output = output.unwrap_or_else(|| path.with_extension("replayed.perfetto-trace"));
    let version = Chunks::open(open(path)?).map_err(|error| said(path, &error))?.version().to_owned();
    let remark = (version != VERSION).then(|| {
        format!("by ncclscope {VERSION}, from a capture of {version}: it may differ from the trace of the recording")
    });
    let failed = |error| format!("failed to write {}: {error}", output.display());
    let file = super::create(&output, true)?;
    let mut file = BufWriter::new(file);
    let mut result = Ok(());
    let mut sink = |packets: &[u8]| {
        if result.is_ok() {
            result = file.write_all(packets);
        }
    };
    let (mut trace, mut contents) = (Replay::new(), Contents::default());
    let end = replay::walk(open(path)?, |entry| {
        contents.take(entry);
        trace.take(entry, remark.as_deref(), &mut sink);
    });
    trace.finish(&mut sink);
    result.and_then(|()| file.flush()).map_err(failed)?;
    drop(file);
    if contents.begin.is_none() {
        // There is nothing to be seen in an empty file.
        let _ = std::fs::remove_file(&output);
        let why = match end {
            Err(error) => error.to_string(),
            Ok(End::CutShort(why)) => format!("the capture ended before anything was in it: {why}"),
            Ok(End::Open | End::Closed) => "there is nothing in it but its head: the process was killed at once".into(),
        };
        return Err(format!("{}: {why}", path.display()));
    }
    let wrote = |error| format!("failed to write: {error}");
    writeln!(out, "{}: {}", path.display(), contents.figures()).map_err(wrote)?;
    if let Some(remark) = &remark {
        writeln!(out, "  replayed      {remark}").map_err(wrote)?;
    }
    let damage = contents.print_end(end, out).map_err(wrote)?;
    info::run(std::slice::from_ref(&output), None, out)?;
    match damage {
        Some(error) => Err(format!("{}: {error}. {} has all before it", path.display(), output.display())),
        None => Ok(()),
    }
}

/// Prints how it was decided whose the kernels of one launching call are.
pub(super) fn explain(path: &Path, correlation: u32, out: &mut dyn Write) -> Result<(), String> {
    let mut replay = Replay::explaining(correlation);
    let (mut found, mut written) = (false, Ok(()));
    let mut print = |steps: Vec<String>| {
        for step in steps {
            found = true;
            let indent = if step.starts_with("kernel ") { "" } else { "  " };
            written = std::mem::replace(&mut written, Ok(())).and_then(|()| writeln!(out, "{indent}{step}"));
        }
    };
    let end = replay::walk(open(path)?, |entry| {
        replay.take(entry, None, &mut |_| ());
        print(replay.take_explained());
    });
    written.map_err(|error| format!("failed to write: {error}"))?;
    end.map_err(|error| said(path, &error))?;
    if found { Ok(()) } else { Err(format!("{}: no kernel of the call {correlation} is in it", path.display())) }
}

/// Whether a file is a capture. One that cannot be read is not.
pub(super) fn is_capture(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(capture::MAGIC.len() as u64).read_to_end(&mut head));
    read.is_ok() && capture::is_capture(&head)
}

/// Says what is in a capture.
pub(super) fn describe(path: &Path, out: &mut dyn Write) -> Result<Value, String> {
    let version = Chunks::open(open(path)?).map_err(|error| said(path, &error))?.version().to_owned();
    let bytes = std::fs::metadata(path).map_or(0, |facts| facts.len());
    let mut contents = Contents::default();
    let end = replay::walk(open(path)?, |entry| contents.take(entry));
    let print = || {
        let size = names::size(bytes);
        writeln!(out, "{}: {size}, a capture of ncclscope {version}, format {}", path.display(), capture::FORMAT)?;
        if let Some(Begin { process, first_words, .. }) = &contents.begin {
            writeln!(out, "  process       {} (pid {})", process.name, process.pid)?;
            writeln!(out, "  note          {first_words}")?;
        }
        writeln!(out, "  holds         {}", contents.figures())?;
        contents.print_end(end, out)
    };
    if let Some(error) = print().map_err(|error| format!("failed to write: {error}"))? {
        return Err(said(path, &error));
    }
    Ok(json!({
        "kind": "capture",
        "file": path.display().to_string(),
        "bytes": bytes,
        "version": version,
        "process": contents.begin.as_ref().map(|begin| &begin.process.name),
        "records": contents.records,
        "buffers": contents.buffers,
        "buffer_bytes": contents.bytes,
    }))
}

fn open(path: &Path) -> Result<BufReader<File>, String> {
    File::open(path).map(BufReader::new).map_err(|error| format!("failed to read {}: {error}", path.display()))
}

fn said(path: &Path, error: &Error) -> String {
    format!("{}: {error}", path.display())
}

/// What a capture holds.
#[derive(Default)]
struct Contents {
    begin: Option<Begin>,
    records: u64,
    buffers: u64,
    bytes: u64,
    last: HostNs,
}

impl Contents {
    fn take(&mut self, entry: &Entry<'_>) {
        match entry {
            Entry::Begin(begin, _) => {
                self.last = begin.first.host;
                self.begin = Some((**begin).clone());
            }
            Entry::Input(Input::Record { .. }) => self.records += 1,
            Entry::Input(Input::Pass { pair, .. }) => self.last = pair.host,
            Entry::Buffer { bytes, .. } => {
                self.buffers += 1;
                self.bytes += bytes.len() as u64;
            }
            Entry::Input(_) | Entry::CutShort(_) => {}
        }
    }

    fn figures(&self) -> String {
        let seconds = self.begin.as_ref().map_or(0, |begin| self.last.since(begin.first.host)) as f64 / 1e9;
        let buffers = match self.buffers {
            0 => "no buffers of CUPTI's".into(),
            count => format!("{count} buffers of CUPTI's with {}", names::size(self.bytes)),
        };
        format!("{seconds:.3} s, {} records, {buffers}", self.records)
    }

    /// Says how it ended; what is damaged is for the caller to say.
    fn print_end(&self, end: Result<End, Error>, out: &mut dyn Write) -> std::io::Result<Option<Error>> {
        match end {
            Ok(End::Closed) => {}
            Ok(End::CutShort(why)) => writeln!(out, "  ended early   {why}")?,
            Ok(End::Open) => {
                writeln!(
                    out,
                    "  not closed    the recording has no last word: its process was killed, or is still running"
                )?;
            }
            Err(error @ Error::Cut { .. }) => writeln!(out, "  fault         {error}")?,
            Err(error) => return Ok(Some(error)),
        }
        Ok(None)
    }
}
