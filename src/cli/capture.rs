//! What a capture contains, for `ncclscope info` and `ncclscope replay`.

use std::fs::File;
use std::io::{BufReader, Read as _, Write};
use std::path::Path;

use serde_json::{Value, json};

use crate::capture;
use crate::capture::read::{Chunks, Entry, Error};
use crate::capture::replay::{self, End};
use crate::cli::reason::Reason;
use crate::model::time::HostNs;
use crate::pipeline::input::{Begin, Input};
use crate::trace::names;

/// Whether a file is a capture. `false` if it cannot be read.
pub(super) fn is_capture(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(capture::MAGIC.len() as u64).read_to_end(&mut head));
    read.is_ok() && capture::is_capture(&head)
}

/// Describes what is in a capture.
pub(super) fn describe(path: &Path, out: &mut dyn Write) -> Result<Value, Reason> {
    let version = Chunks::open(open(path)?).map_err(Reason::file(path))?.version().to_owned();
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
    if let Some(error) = print().map_err(Reason::Output)? {
        return Err(Reason::file(path)(error));
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

pub(super) fn open(path: &Path) -> Result<BufReader<File>, Reason> {
    File::open(path).map(BufReader::new).map_err(Reason::read(path))
}

/// What a capture holds.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) begin: Option<Begin>,
    records: u64,
    buffers: u64,
    bytes: u64,
    last: HostNs,
}

impl Contents {
    pub(super) fn take(&mut self, entry: &Entry<'_>) {
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

    pub(super) fn figures(&self) -> String {
        let seconds = self.begin.as_ref().map_or(0, |begin| self.last.since(begin.first.host)) as f64 / 1e9;
        let buffers = match self.buffers {
            0 => "no buffers of CUPTI's".into(),
            count => format!("{count} buffers of CUPTI's with {}", names::size(self.bytes)),
        };
        format!("{seconds:.3} s, {} records, {buffers}", self.records)
    }

    /// Prints how the capture ended. The caller reports damage.
    pub(super) fn print_end(&self, end: Result<End, Error>, out: &mut dyn Write) -> std::io::Result<Option<Error>> {
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
