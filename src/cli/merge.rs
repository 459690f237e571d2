//! `ncclscope merge`: a trace is a run of packets, so traces of one clock are merged by writing one after the other; what only
//! all of them know is added. Those of other hosts are written anew, on the clock of the first.

use std::fs::{self, File};
use std::io::{Read as _, Write};
use std::path::{Path, PathBuf};

mod abreast;
mod evidence;
mod members;
mod moved;
mod numbers;
mod origin;
mod sound;

use self::abreast::{Piece, Pieces};
use self::evidence::Parts;
use self::members::{Labels, Members};
use self::moved::Move;
use self::numbers::{Numbers, Renumbered};
use self::origin::Origin;
use self::sound::Sound;
use super::beside::{self, Fate, Joined};
use super::progress::Stage;
use super::survey;
use crate::cli::reason::Reason;
use crate::clock::hosts;
use crate::import::{self, Format};
use crate::model::time::HostNs;
use crate::trace::fields::trace;
use crate::trace::names;
use crate::trace::reader::wire::{fields, put_bytes};
use crate::trace::reader::{self, Extent, blocks};

/// What is to be merged.
#[derive(Debug, clap::Args)]
pub(super) struct Wish {
    /// Traces, or folders with them
    #[arg(required = true, value_name = "FOLDER|FILE")]
    traces: Vec<PathBuf>,
    /// The file to write; it must not exist
    #[arg(short, long)]
    output: PathBuf,
    /// The file of the tool that held CUPTI in the same run (Nsight Systems or PyTorch's profiler)
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,
    /// Of several runs, this one: what names it (`SLURM_JOB_ID=17`, or `17` alone)
    #[arg(long)]
    run: Option<String>,
}

pub(super) fn run(wish: &Wish, out: &mut dyn Write) -> Result<(), Reason> {
    let Wish { traces, output, with, run } = wish;
    super::must_be_new(output)?;
    let named = files(traces)?;
    let together = Together::look(&named, run.as_deref(), out)?;
    let theirs = with.as_deref();
    if let (Some(theirs), true) = (theirs, together.files.iter().any(|file| file.moved.is_some())) {
        return Err(Reason::Refused(format!(
            "{}: another tool's file is of one host, and these traces are of several; merge it with those of its host, and the result with the others",
            theirs.display()
        )));
    }
    let own: Vec<&Path> = together.files.iter().map(|file| file.path).collect();
    let kernels = theirs.map(|theirs| beside(&own, theirs, out)).transpose()?.unwrap_or_default();
    let mut file = super::create(output, false)?;
    let written = abreast::write(output, &mut file, |pieces| {
        together.copy(pieces)?;
        pieces.put(Piece::Ready(kernels)).map_err(Reason::file(output))
    });
    let bytes = written.inspect_err(|_| {
        // Half a trace is of no use to anybody; that it cannot be removed is not the news.
        let _ = fs::remove_file(output);
    })?;
    let count = own.len() + usize::from(theirs.is_some());
    let _ = writeln!(out, "{}: {count} files, {}", output.display(), names::size(bytes));
    Ok(())
}

/// The files named, with those of folders by name.
fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>, Reason> {
    let mut files = Vec::new();
    for path in named {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let failed = Reason::read(path);
        let entries = fs::read_dir(path).map_err(failed)?;
        let mut found =
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        found.retain(|path| path.extension().is_some_and(|it| it == "perfetto-trace"));
        if found.is_empty() {
            return Err(Reason::file(path)("there is no trace (*.perfetto-trace) in this folder"));
        }
        found.sort();
        files.append(&mut found);
    }
    Ok(files)
}

/// Says why a file is not merged.
fn must_be_ours(path: &Path) -> Result<(), Reason> {
    if super::capture::is_capture(path) {
        return Err(Reason::file(path)("ncclscope replay makes a trace of a capture"));
    }
    match import::format(path).map_err(Reason::file(path))? {
        Format::Perfetto => Ok(()),
        _ => Err(Reason::file(path)(
            "this is another tool's file: --with puts its kernels under the operations of the traces of the same run, and ncclscope import makes a \
             trace of it alone",
        )),
    }
}

/// The packets that put the kernels of the tool that held CUPTI under the operations of these traces.
fn beside(own: &[&Path], theirs: &Path, out: &mut dyn Write) -> Result<Vec<u8>, Reason> {
    let ours = import::open_traces(own).map_err(|error| error.to_string())?;
    let profile = import::open(theirs).map_err(Reason::file(theirs))?;
    let (packets, joined) = beside::packets(&ours, profile).map_err(Reason::file(theirs))?;
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
    files: Vec<Whole<'a>>,
    edits: Edits,
    /// The boot whose clock they are put on; empty where none says its own.
    boot: String,
}

/// What a trace says.
struct Looked {
    extent: Extent,
    origin: Origin,
    parts: Parts,
    members: Members,
    numbers: Numbers,
}

impl Looked {
    /// Looks through a trace, one of so many, on so many threads.
    fn at(path: &Path, count: usize, threads: usize) -> Result<Looked, Reason> {
        must_be_ours(path)?;
        let (mut origin, mut parts) = (Origin::of(path), Parts::of_one_in(count));
        let (mut members, mut numbers) = (Members::default(), Numbers::default());
        let mut sound = Sound::default();
        let file = File::open(path).map_err(Reason::read(path))?;
        let extent = reader::read_on(threads, file, |packet| {
            sound.look(packet)?;
            origin.look(packet);
            members.look(packet);
            numbers.look(packet);
            if let Some(event) = &packet.event {
                parts.look(event, HostNs(packet.time.unwrap_or_default()));
            }
            Ok(())
        })
        .map_err(|error: reader::Error| Reason::file(path)(error))?;
        if extent.whole == 0 {
            return Err(Reason::file(path)("there is no whole packet in it"));
        }
        Ok(Looked { extent, origin, parts, members, numbers })
    }
}

/// A trace, and what becomes of it.
struct Whole<'a> {
    path: &'a Path,
    extent: Extent,
    origin: Origin,
    /// Where its times are another host's: how they become those of the first.
    moved: Option<Move>,
}

/// What changes in packets that describe tracks.
struct Edits {
    labels: Labels,
    numbers: Renumbered,
}

impl<'a> Together<'a> {
    /// Looks through traces, and leaves out those that cannot be read, are there twice, or are of another run than the one that is named. An
    /// error says why the rest cannot be one.
    fn look(named: &'a [PathBuf], run: Option<&str>, out: &mut dyn Write) -> Result<Together<'a>, Reason> {
        let (mut files, mut origins, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        let (mut members, mut numbers) = (Members::default(), Numbers::default());
        // The first file of each clock.
        let (mut left_out, mut firsts) = (Vec::new(), Vec::<usize>::new());
        let size = |path: &PathBuf| fs::metadata(path).map_or(0, |facts| facts.len());
        let stage = Stage::begin(format!("looking through {} files", named.len()), named.iter().map(size).sum());
        let look = |path: &'a PathBuf, threads| Looked::at(path, named.len(), threads);
        abreast::look(named, look, |path, looked| {
            stage.advance(size(path));
            let looked = looked.and_then(|looked| {
                if let Some(other) = origins.iter().find(|other: &&Origin| !other.tags.is_disjoint(&looked.origin.tags))
                {
                    return Err(survey::twins(other.path(), path));
                }
                match run {
                    Some(run) => looked.origin.must_be_of(run).map(|()| looked),
                    None => Ok(looked),
                }
            });
            let Looked { extent, origin, parts: mut known, members: its_members, numbers: its_numbers } = match looked {
                Ok(looked) => looked,
                Err(reason) => return left_out.push(reason),
            };
            if extent.unfinished > 0 {
                let (path, bytes) = (path.display(), extent.unfinished);
                let _ = writeln!(out, "{path}: left out an unfinished packet of {bytes} bytes");
            }
            members.merge(its_members);
            numbers.merge(its_numbers);
            // Files of one clock know much the same, which is kept once: with the first of them.
            match firsts.iter().find(|first| origin::one_boot(&origins[**first], &origin)) {
                Some(first) => {
                    let first: &mut Parts = &mut parts[*first];
                    first.merge(known);
                    parts.push(Parts::of_one_in(named.len()));
                }
                None => {
                    firsts.push(parts.len());
                    known.shrink();
                    parts.push(known);
                }
            }
            files.push((path.as_path(), extent));
            origins.push(origin);
        });
        drop(stage);
        if files.is_empty() {
            return Err(left_out.into_iter().next().unwrap_or_else(|| "no trace was named".into()));
        }
        for reason in &left_out {
            let _ = writeln!(out, "left out: {reason}");
        }
        let mut common = origin::judge(&origins)?;
        // A host whose processes were killed before anything relates its clock to another's does not
        // keep the others apart.
        let is_alone = alone(&common.clocks, &files, &parts);
        if is_alone.contains(&true) && is_alone.contains(&false) {
            for (path, _) in files.iter().zip(&is_alone).filter(|(_, alone)| **alone).map(|(file, _)| file) {
                let _ = writeln!(
                    out,
                    "left out: {}: nothing in it relates the clock of its host to another's",
                    path.display()
                );
            }
            let mut keep = is_alone.iter().map(|is_alone| !is_alone).cycle();
            files.retain(|_| keep.next() == Some(true));
            origins.retain(|_| keep.next() == Some(true));
            parts.retain(|_| keep.next() == Some(true));
            common = origin::judge(&origins)?;
        }
        if let Some(remark) = &common.remark {
            let _ = writeln!(out, "{remark}");
        }
        let twice = members.twice();
        if !twice.is_empty() {
            let _ = writeln!(
                out,
                "more than one process says that it is rank {twice}: where these files are of several runs, merge those of one alone"
            );
        }
        for missing in members.missing() {
            let _ = writeln!(out, "{missing}");
        }
        let moves = moves(&origins, &common.clocks, parts)?;
        for Move { host, how, .. } in moves.iter().flatten() {
            let _ = writeln!(out, "{host}: {how}");
        }
        let boot = origins.first().and_then(|origin| origin.boots.first().cloned()).unwrap_or_default();
        let files = files.into_iter().zip(origins).zip(&common.clocks).map(|(((path, extent), origin), clock)| Whole {
            path,
            extent,
            origin,
            moved: moves[*clock].clone(),
        });
        let edits = Edits { labels: members.labels(), numbers: numbers.renumbered() };
        Ok(Together { files: files.collect(), edits, boot })
    }

    /// Copies the traces one after the other.
    fn copy(&'a self, pieces: &mut Pieces<'a>) -> Result<(), Reason> {
        let size = self.files.iter().map(|file| file.extent.whole).sum();
        let stage = Stage::begin(format!("writing {} files as one", self.files.len()), size);
        for Whole { path, extent, origin, moved } in &self.files {
            let fault = |error: reader::Error| format!("failed to copy {}: {error}", path.display());
            let source = File::open(path).map_err(reader::Error::Io).map_err(fault)?.take(extent.whole);
            match moved {
                Some(how) => {
                    let put = |packets| pieces.put(Piece::Packets(packets));
                    moved::copy(source, how, &self.boot, |packet| self.edits.packet(packet), put)
                }
                None if self.edits.concern(origin) => {
                    let put = |packets: &[u8]| pieces.put(Piece::Ready(packets.to_vec()));
                    blocks::rewritten(source, |packets| self.edits.packets(packets), put).map(drop)
                }
                None => pieces.put(Piece::File(path, source)),
            }
            .map_err(fault)?;
            stage.advance(extent.whole);
        }
        Ok(())
    }
}

/// For each file whether all those of its clock were cut off, and share no operation with those of
/// another clock.
fn alone(clocks: &[usize], files: &[(&Path, Extent)], parts: &[Parts]) -> Vec<bool> {
    let count = clocks.iter().max().map_or(0, |last| last + 1);
    let of = |clock| (0..files.len()).filter(move |file| clocks[*file] == clock);
    let share = |one, other| of(one).any(|one| of(other).any(|other| parts[other].share(&parts[one])));
    let is_cut = |clock| of(clock).all(|file| files[file].1.unfinished > 0);
    let is_alone = |clock| is_cut(clock) && !(0..count).any(|other| other != clock && share(clock, other));
    let alone: Vec<bool> = (0..count).map(is_alone).collect();
    clocks.iter().map(|clock| alone[*clock]).collect()
}

/// For each clock how its times become those of the first one.
fn moves(origins: &[Origin], clocks: &[usize], parts: Vec<Parts>) -> Result<Vec<Option<Move>>, Reason> {
    let count = clocks.iter().max().map_or(0, |last| last + 1);
    if count < 2 {
        return Ok(vec![None; count]);
    }
    let mut of_clocks: Vec<Parts> = (0..count).map(|_| Parts::of_one_in(count)).collect();
    for (clock, parts) in clocks.iter().zip(parts) {
        of_clocks[*clock].merge(parts);
    }
    let file = |clock: usize| &origins[clocks.iter().position(|it| *it == clock).unwrap_or_default()];
    let reference = file(0).host();
    let mut moves = vec![None];
    for (clock, offset) in hosts::solve(count, evidence::orders(&of_clocks)).into_iter().enumerate().skip(1) {
        let (host, inferred) = (file(clock).host(), of_clocks[clock].inferred);
        let offset = offset.ok_or_else(|| unrelated(file(clock), file(0), inferred))?;
        let us = |ns: u64| names::duration(ns as f64);
        let (least, most) = offset.errors();
        let mut how = format!(
            "its times are put on the clock of {reference} by the order of {} events on both, to {} at best and {} at worst",
            offset.orders,
            us(least),
            us(most)
        );
        if offset.contradictions > 0 {
            let (count, by) = (offset.contradictions, us(offset.contradiction_ns));
            how.push_str(&format!("; {count} of these contradict the others, by up to {by}, which is part of it"));
        }
        moves.push(Some(Move { offset, host, how }));
    }
    Ok(moves)
}

/// Why a file's clock cannot be put on that of another.
fn unrelated(file: &Origin, reference: &Origin, inferred: u64) -> String {
    let hosts = match (reference.host(), file.host()) {
        (one, other) if one == other => format!("{one} was booted between them"),
        (one, other) => format!("they are of different hosts, {one} and {other}"),
    };
    let mut why = format!(
        "{} and {} have no common clock: {hosts}, and nothing relates their clocks. That takes operations that both took part in, with their \
         kernels in the traces of both, in which each waited for the other",
        reference.name(),
        file.name()
    );
    if inferred > 0 {
        why.push_str(&format!("; {inferred} kernels whose operations are inferred do not count"));
    }
    why + ". Merge the files of each host alone"
}

impl Edits {
    /// Whether anything changes in a file.
    fn concern(&self, origin: &Origin) -> bool {
        self.labels.concern(&origin.tags) || self.numbers.concern(&origin.tags)
    }

    /// Packets one after the other, where one of them changes.
    fn packets(&self, packets: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let mut changes = false;
        for packet in fields(packets) {
            match self.packet(packet.bytes()) {
                Some(new) => {
                    put_bytes(&mut out, trace::PACKET, &new);
                    changes = true;
                }
                None => out.extend_from_slice(packet.raw),
            }
        }
        changes.then_some(out)
    }

    fn packet(&self, packet: &[u8]) -> Option<Vec<u8>> {
        let labelled = self.labels.packet(packet);
        self.numbers.packet(labelled.as_deref().unwrap_or(packet)).or(labelled)
    }
}

/// Refuses traces that can only be shown together once they are merged.
pub(super) fn must_share_clock(traces: &[PathBuf]) -> Result<(), Reason> {
    let origins = traces.iter().map(|path| Origin::head(path)).collect::<Result<Vec<_>, _>>()?;
    let Some((first, others)) = origins.split_first() else { return Ok(()) };
    match others.iter().find(|other| !origin::one_boot(first, other)) {
        Some(other) => Err(Reason::Refused(format!(
            "{} and {} are of two clocks; ncclscope merge puts them on one",
            first.name(),
            other.name()
        ))),
        None => Ok(()),
    }
}
