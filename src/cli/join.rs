//! `ncclscope join`: a trace is a run of packets, so traces are joined by writing one after the other; what only all of them know is added.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

mod members;
mod origin;

use self::members::{Labels, Members};
use self::origin::Origin;
use super::beside::{self, Fate, Joined};
use crate::import::{self, Format};
use crate::trace::names;
use crate::trace::reader::{self, Extent, blocks};

pub(super) fn run(traces: &[PathBuf], output: &Path, out: &mut dyn Write) -> Result<(), String> {
    super::must_be_new(output)?;
    let format = |path: &PathBuf| import::format(path).map_err(|error| format!("{}: {error}", path.display()));
    let (mut own, mut foreign) = (Vec::new(), Vec::new());
    for path in traces {
        if super::replay::is_capture(path) {
            let _ = writeln!(out, "{}: left out; ncclscope replay makes a trace of a capture", path.display());
            continue;
        }
        if format(path)? == Format::Perfetto { own.push(path) } else { foreign.push(path) }
    }
    let theirs = match foreign[..] {
        [] => None,
        [theirs] if !own.is_empty() => Some(theirs),
        [theirs] => {
            return Err(format!(
                "{}: there is no trace of ncclscope to join it with; ncclscope import makes a trace of it alone",
                theirs.display()
            ));
        }
        _ => return Err("only one file of another tool can be joined at a time".into()),
    };
    let members = Together::look(&own, out)?;
    let kernels = theirs.map(|theirs| beside(&own, theirs, out)).transpose()?.unwrap_or_default();
    let failed = |error: io::Error| format!("failed to write {}: {error}", output.display());
    let mut file = super::create(output, false)?;
    let written = members.copy(&mut file).and_then(|bytes| {
        file.write_all(&kernels).map_err(failed)?;
        Ok(bytes + kernels.len() as u64)
    });
    let bytes = written.inspect_err(|_| {
        // Half a trace is of no use to anybody; that it cannot be removed is not the news.
        let _ = fs::remove_file(output);
    })?;
    let _ = writeln!(out, "{}: {} files, {}", output.display(), own.len() + foreign.len(), names::size(bytes));
    Ok(())
}

/// The packets that put the kernels of the tool that held CUPTI under the operations of these traces.
fn beside(own: &[&PathBuf], theirs: &Path, out: &mut dyn Write) -> Result<Vec<u8>, String> {
    let ours = import::open_traces(own).map_err(|error| error.to_string())?;
    let mut profile = import::open(theirs).map_err(|error| format!("{}: {error}", theirs.display()))?;
    let (packets, joined) =
        beside::packets(&ours, &mut profile).map_err(|error| format!("{}: {error}", theirs.display()))?;
    for Joined { pid, clock, fate } in joined {
        let Fate { matched, by_capture, unmatched, application } = fate;
        let _ = writeln!(
            out,
            "{}: process {pid}: {} kernels of NCCL matched, {} unmatched, {application} of the application; {clock}",
            theirs.display(),
            matched + by_capture,
            unmatched.values().sum::<u64>()
        );
        if by_capture > 0 {
            let _ = writeln!(
                out,
                "  {by_capture} of the matched are inferred from the order in which their graphs were captured"
            );
        }
        for (reason, count) in unmatched {
            let _ = writeln!(out, "  {count} unmatched: {reason}");
        }
    }
    Ok(packets)
}

/// Traces that can be one.
struct Together<'a> {
    files: Vec<(&'a Path, Extent)>,
    origins: Vec<Origin>,
    labels: Labels,
}

impl<'a> Together<'a> {
    /// Looks through traces; an error says why they cannot be one.
    fn look(traces: &[&'a PathBuf], out: &mut dyn Write) -> Result<Together<'a>, String> {
        let (mut files, mut origins) = (Vec::new(), Vec::new());
        let mut owners: HashMap<u64, usize> = HashMap::new();
        let mut members = Members::default();
        for (at, path) in traces.iter().enumerate() {
            let mut origin = Origin::of(path);
            let extent = super::read_trace(path, |packet| {
                origin.look(packet);
                members.look(packet);
                Ok(())
            })?;
            if extent.unfinished > 0 {
                let (path, bytes) = (path.display(), extent.unfinished);
                let _ = writeln!(out, "{path}: left out an unfinished packet of {bytes} bytes");
            }
            for tag in &origin.tags {
                // One file may be named twice.
                if let Some(other) = owners.insert(*tag, at)
                    && other != at
                {
                    return Err(twins(traces[other], path));
                }
            }
            files.push((path.as_path(), extent));
            origins.push(origin);
        }
        if let Some(remark) = origin::judge(&origins)? {
            let _ = writeln!(out, "{remark}");
        }
        let twice = members.twice();
        if !twice.is_empty() {
            let _ = writeln!(
                out,
                "more than one process says that it is rank {twice}: where these files are of several runs, join those of one alone"
            );
        }
        Ok(Together { files, origins, labels: members.labels() })
    }

    /// Copies the traces one after the other; answers how many bytes that was.
    fn copy(&self, output: &mut File) -> Result<u64, String> {
        let mut written = 0;
        for ((path, extent), origin) in self.files.iter().zip(&self.origins) {
            let failed = |error: io::Error| format!("failed to copy {}: {error}", path.display());
            let source = File::open(path).map_err(failed)?.take(extent.whole);
            if !self.labels.concern(&origin.tags) {
                written += io::copy(&mut { source }, output).map_err(failed)?;
                continue;
            }
            blocks::rewritten(
                source,
                |packets| self.labels.given_to(packets),
                |packets| {
                    written += packets.len() as u64;
                    Ok(output.write_all(packets)?)
                },
            )
            .map_err(|error: reader::Error| format!("failed to copy {}: {error}", path.display()))?;
        }
        Ok(written)
    }
}

/// Why two traces cannot be one.
pub(super) fn twins(one: &Path, other: &Path) -> String {
    format!(
        "{} and {} carry the same process mark, so their tracks would mix: they are the same recording, \
         or a rare coincidence (one in a million a pair); join them in separate files",
        one.display(),
        other.display()
    )
}
