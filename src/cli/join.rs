//! `ncclscope join`: a trace is a run of packets, so traces are joined by writing one after the other.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::trace::names;
use crate::trace::reader;

/// Uuids carry the process tag above this many bits, see `trace::writer`.
const TRACK_BITS: u32 = 16;

pub(super) fn run(traces: &[PathBuf], output: &Path, out: &mut dyn Write) -> Result<(), String> {
    let mut joined = Vec::new();
    let mut owners: HashMap<u64, &Path> = HashMap::new();
    for path in traces {
        let mut bytes = super::read(path)?;
        let whole = reader::whole_length(&bytes);
        if whole == 0 && !bytes.is_empty() {
            return Err(format!("{}: {}", path.display(), reader::Error::NotATrace));
        }
        if whole < bytes.len() {
            let _ = writeln!(out, "{}: left out an unfinished packet of {} bytes", path.display(), bytes.len() - whole);
            bytes.truncate(whole);
        }
        for tag in tags(&bytes).map_err(|error| format!("{}: {error}", path.display()))? {
            if let Some(other) = owners.insert(tag, path)
                && other != path
            {
                return Err(format!(
                    "{} and {} carry the same process mark, so their tracks would mix: they are the same recording, \
                     or a rare coincidence (one in a million a pair); join them in separate files",
                    other.display(),
                    path.display()
                ));
            }
        }
        joined.extend_from_slice(&bytes);
    }
    let failed = |error| format!("failed to write {}: {error}", output.display());
    let mut file = OpenOptions::new().write(true).create_new(true).open(output).map_err(failed)?;
    file.write_all(&joined).map_err(failed)?;
    let _ = writeln!(out, "{}: {} traces, {}", output.display(), traces.len(), names::size(joined.len() as u64));
    Ok(())
}

/// The process tags of a trace.
fn tags(bytes: &[u8]) -> Result<Vec<u64>, reader::Error> {
    let mut tags = Vec::new();
    reader::packets(bytes, |packet| {
        if let Some(descriptor) = packet.track_descriptor
            && descriptor.process.is_some()
        {
            tags.push(descriptor.uuid() >> TRACK_BITS);
        }
    })?;
    Ok(tags)
}
