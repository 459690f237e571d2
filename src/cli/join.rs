//! `ncclscope join`: a trace is a run of packets, so traces are joined by writing one after the other; what only all of them know is added.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

mod members;
mod origin;

use self::members::Members;
use self::origin::Origin;
use super::beside::{self, Fate, Joined};
use crate::import::{self, Format};
use crate::trace::names;
use crate::trace::reader::{self, Sequences};

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
    let files = own.len() + foreign.len();
    let mut joined = concatenated(&own, out)?;
    match foreign[..] {
        [] => {}
        [theirs] if !own.is_empty() => joined.extend(beside(&joined, theirs, out)?),
        [theirs] => {
            return Err(format!(
                "{}: there is no trace of ncclscope to join it with; ncclscope import makes a trace of it alone",
                theirs.display()
            ));
        }
        _ => return Err("only one file of another tool can be joined at a time".into()),
    }
    let failed = |error| format!("failed to write {}: {error}", output.display());
    let mut file = super::create(output, false)?;
    file.write_all(&joined).map_err(failed)?;
    let _ = writeln!(out, "{}: {files} files, {}", output.display(), names::size(joined.len() as u64));
    Ok(())
}

/// The packets that put the kernels of the tool that held CUPTI under the operations of these traces.
fn beside(own: &[u8], theirs: &Path, out: &mut dyn Write) -> Result<Vec<u8>, String> {
    let ours = import::open_trace(own).map_err(|error| error.to_string())?;
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

/// The traces one after the other.
fn concatenated(traces: &[&PathBuf], out: &mut dyn Write) -> Result<Vec<u8>, String> {
    let mut joined = Vec::new();
    let mut owners: HashMap<u64, usize> = HashMap::new();
    let mut members = Members::default();
    let mut origins = Vec::new();
    for (at, path) in traces.iter().enumerate() {
        let mut bytes = super::read(path)?;
        let whole = reader::whole_length(&bytes);
        if whole == 0 && !bytes.is_empty() {
            return Err(format!("{}: {}", path.display(), reader::Error::NotATrace));
        }
        if whole < bytes.len() {
            let _ = writeln!(out, "{}: left out an unfinished packet of {} bytes", path.display(), bytes.len() - whole);
            bytes.truncate(whole);
        }
        let mut origin = Origin::of(path);
        look(&bytes, &mut members, &mut origin).map_err(|error| format!("{}: {error}", path.display()))?;
        for tag in &origin.tags {
            // One file may be named twice.
            if let Some(other) = owners.insert(*tag, at)
                && other != at
            {
                return Err(twins(traces[other], path));
            }
        }
        origins.push(origin);
        joined.extend_from_slice(&bytes);
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
    members.labels().given_to(joined).map_err(|error| error.to_string())
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

/// Goes through the packets of a trace.
fn look(bytes: &[u8], members: &mut Members, origin: &mut Origin) -> Result<(), reader::Error> {
    let mut sequences = Sequences::default();
    reader::packets(bytes, |mut packet| {
        let event = sequences.take(&mut packet);
        origin.look(&packet, event.as_ref());
        members.look(&packet, event);
    })
}
