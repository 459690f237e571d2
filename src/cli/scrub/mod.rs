//! `ncclscope scrub`: makes traces that can be shared.
//!
//! ```text
//!   files -> known (first reading: which texts name something) -> packet (second reading) -> copies
//!            words (the vocabulary, everything else is replaced)    stand (what stands for what)
//! ```
//!
//! It keeps what it knows and replaces the rest, never the other way round: fields that this build
//! does not know are left out; a word in a text is kept only if ncclscope, NCCL or CUDA uses it
//! ([`words`]), and otherwise a stand-in takes its place. The same text has the same stand-in in
//! all files of one call, so that the copies can still be merged and diagnosed.

mod kind;
mod known;
mod packet;
mod stand;
#[cfg(test)]
mod tests;
mod words;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use self::known::Known;
use self::stand::StandIns;
use super::compare::runs;
use crate::cli::progress::Stage;
use crate::cli::reason::Reason;
use crate::trace::fields::trace;
use crate::trace::reader::Extent;
use crate::trace::reader::blocks::packed;
use crate::trace::reader::wire::put_bytes;

/// How many bytes of packets are compressed together.
const CHUNK: usize = 256 << 10;

/// What to copy.
#[derive(clap::Args)]
pub(super) struct Wish {
    /// Traces of ncclscope, also merged ones, or folders with them
    #[arg(required = true, value_name = "FILE|FOLDER")]
    traces: Vec<PathBuf>,
    /// The copy of one file; for several files or a folder, a folder for their copies. It must not
    /// exist
    #[arg(short, long, value_name = "FILE|FOLDER")]
    output: PathBuf,
    /// Keep the names of the application's kernels and of its ranges (NVTX, PyTorch)
    #[arg(long)]
    keep_names: bool,
}

pub(super) fn run(wish: &Wish, out: &mut dyn Write) -> Result<(), Reason> {
    super::must_be_new(&wish.output)?;
    let files = files(&wish.traces)?;
    let is_folder = files.len() > 1 || wish.traces.iter().any(|path| path.is_dir());
    let bytes = |path: &PathBuf| std::fs::metadata(path).map_or(0, |facts| facts.len());
    let stage =
        Stage::begin(format!("scrubbing {}", counted(files.len(), "file")), 2 * files.iter().map(bytes).sum::<u64>());
    let mut names = StandIns::new(wish.keep_names);
    let mut copies = Vec::new();
    for path in &files {
        let known = Known::read(path, &mut names)?;
        stage.advance(bytes(path));
        let name = match known.rank() {
            Some(rank) => format!("rank-{rank}.perfetto-trace"),
            None => format!("trace-{}.perfetto-trace", copies.len() + 1),
        };
        copies.push(name);
    }
    let outputs = if is_folder {
        std::fs::create_dir(&wish.output).map_err(Reason::write(&wish.output))?;
        // Two files may claim the same rank.
        let mut taken = std::collections::HashSet::new();
        let numbered = |(at, name): (usize, String)| match taken.insert(name.clone()) {
            true => wish.output.join(name),
            false => wish.output.join(format!("trace-{}-of-{name}", at + 1)),
        };
        copies.into_iter().enumerate().map(numbered).collect()
    } else {
        vec![wish.output.clone()]
    };
    let (mut size, mut cut_off) = (0, Vec::new());
    for (path, output) in files.iter().zip(&outputs) {
        let copied = copy(path, output, &mut names);
        let (bytes_written, extent) = copied.inspect_err(|_| {
            // A damaged file may not be what it seems.
            outputs.iter().for_each(|output| drop(std::fs::remove_file(output)));
            if is_folder {
                let _ = std::fs::remove_dir(&wish.output);
            }
        })?;
        size += bytes_written;
        if extent.unfinished > 0 {
            cut_off.push((path, extent.unfinished));
        }
        stage.advance(bytes(path));
    }
    drop(stage);
    for (path, bytes) in cut_off {
        let _ = writeln!(out, "{}: left out an unfinished packet of {bytes} bytes", path.display());
    }
    writeln!(
        out,
        "{}: {}, {}; replaced {}",
        wish.output.display(),
        counted(files.len(), "trace"),
        crate::trace::names::size(size),
        names.said()
    )
    .map_err(Reason::Output)
}

/// The traces that are named, and those in the folders that are named.
fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>, Reason> {
    let files = runs::traces(named)?;
    for path in &files {
        match crate::import::format(path) {
            Ok(crate::import::Format::Perfetto) => {}
            Ok(_) => {
                return Err(Reason::file(path)(
                    "only traces of ncclscope can be scrubbed, and this is a file of another tool: what it may contain is not \
                     known here. ncclscope import makes a trace of it, which can be scrubbed",
                ));
            }
            Err(_) => super::must_be_trace(path)?,
        }
    }
    Ok(files)
}

/// Writes the copy of a file. Returns its size in bytes, and how much of the file it is of.
fn copy(path: &Path, output: &Path, names: &mut StandIns) -> Result<(u64, Extent), Reason> {
    let mut file = BufWriter::new(super::create(output, false)?);
    let (mut pending, mut written) = (Vec::new(), 0);
    let mut flush = |pending: &mut Vec<u8>, file: &mut BufWriter<File>| -> Result<(), Reason> {
        let packet = packed(pending).map_err(Reason::write(output))?;
        pending.clear();
        written += packet.len() as u64;
        file.write_all(&packet).map_err(Reason::write(output))
    };
    let extent = super::read_trace(path, |packet| {
        if let Some(copy) = packet::scrubbed(packet, names).map_err(Reason::file(path))? {
            put_bytes(&mut pending, trace::PACKET, &copy);
        }
        if pending.len() >= CHUNK { flush(&mut pending, &mut file) } else { Ok(()) }
    })?;
    if !pending.is_empty() {
        flush(&mut pending, &mut file)?;
    }
    file.flush().map_err(Reason::write(output))?;
    Ok((written, extent))
}

fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
