//! `ncclscope merge`: a trace is a sequence of packets, so traces on one clock are merged by
//! concatenation. What only all of them together show is added. Traces of other hosts are rewritten
//! onto the clock of the first.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Take, Write};
use std::path::{Path, PathBuf};

pub(super) mod abreast;
mod archive;
mod evidence;
mod job;
mod members;
mod moved;
mod numbers;
mod origin;
mod remark;
mod sound;

use self::abreast::{Piece, Pieces};
use self::evidence::{Evidence, Looking, Shared};
use self::job::LeftOut;
use self::members::{Labels, Members};
use self::moved::Move;
use self::numbers::{Numbers, Renumbered};
use self::origin::Origin;
use self::remark::Marks;
use self::sound::Sound;
use super::LISTED;
use super::beside::{self, Fate, Joined};
use super::compare::runs;
use super::diagnose::{self, Seen};
use super::progress::Stage;
use super::survey::attempts;
use crate::cli::reason::Reason;
use crate::clock::hosts;
use crate::import::{self, Format};
use crate::model::ids::ProcessTag;
use crate::sys;
use crate::trace::fields::{trace, trace_packet};
use crate::trace::job::Diagnosis;
use crate::trace::names;
use crate::trace::reader::wire::{Field, fields, put_bytes};
use crate::trace::reader::{self, Extent, blocks};
use crate::trace::writer::tag_of_sequence;

/// Up to this many bytes of traces are also diagnosed: that takes about ten seconds on one core.
const DIAGNOSED: u64 = 100 << 20;
/// How a message describes orders of events that cannot all be true.
pub(super) const CONTRADICT: &str = "of these contradict the others";

/// What to merge.
#[derive(Debug, clap::Args)]
pub(super) struct Wish {
    /// Traces, or folders with them
    #[arg(required = true, value_name = "FOLDER|FILE")]
    traces: Vec<PathBuf>,
    /// The file to write; it must not exist. If it ends in .tar: an archive of the unchanged
    /// traces, for Perfetto v58 and newer
    #[arg(short, long)]
    output: PathBuf,
    /// The file of the tool that held CUPTI in the same run (Nsight Systems or PyTorch's profiler)
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,
    /// If there are several runs, take this one, by its name (`SLURM_JOB_ID=17` or just `17`)
    #[arg(long)]
    run: Option<String>,
}

pub(super) fn run(wish: &Wish, out: &mut dyn Write) -> Result<(), Reason> {
    let Wish { traces, output, with, run } = wish;
    super::must_be_new(output)?;
    let is_archive = archive::is_meant(output)?;
    if let (true, Some(theirs)) = (is_archive, with) {
        return Err(Reason::Refused(format!(
            "{}: an archive holds the files unchanged, and --with adds to the traces; name a .perfetto-trace to write",
            theirs.display()
        )));
    }
    let named = runs::traces(traces)?;
    let newest;
    let mut gathered = Gathered::look(&named, run.as_deref(), output, out)?;
    let is_doubtful = !gathered.members.twice().is_empty() || origin::judge(&gathered.origins).is_err();
    if is_doubtful && !origin::are_named_apart(&gathered.origins) {
        let (files, notes) = attempts::newest(gathered.files.iter().map(|it| it.0.to_owned()).collect());
        notes.iter().for_each(|note| drop(writeln!(out, "{note}")));
        if !notes.is_empty() {
            newest = files;
            gathered = Gathered::look(&newest, run.as_deref(), output, out)?;
        }
    }
    let together = Together::of(gathered, out)?;
    let theirs = with.as_deref();
    if let (Some(theirs), true) = (theirs, together.files.iter().any(|file| file.moved.is_some())) {
        return Err(Reason::Refused(format!(
            "{}: another tool's file covers one host, and these traces are from several; merge it with those of \
             its host first, then the result with the others",
            theirs.display()
        )));
    }
    let own: Vec<&Path> = together.files.iter().map(|file| file.path).collect();
    let kernels = theirs.map(|theirs| beside(&own, theirs, out)).transpose()?.unwrap_or_default();
    let diagnosis = if is_archive { Diagnosis::default() } else { together.diagnosis() };
    let mut file = super::create(output, false)?;
    let mut left_out = LeftOut::default();
    let written = if is_archive {
        archive::write(&together, &mut file, out)
    } else {
        abreast::write(output, &mut file, |pieces| {
            together.copy(pieces)?;
            pieces.put(Piece::Ready(kernels)).map_err(Reason::file(output))?;
            left_out = together.draw(&diagnosis, pieces).map_err(Reason::file(output))?;
            Ok(())
        })
    };
    let bytes = written.inspect_err(|_| {
        // Half a trace is of no use. If it cannot be removed, the first error is still the one to
        // report.
        let _ = fs::remove_file(output);
    })?;
    if together.shared.is_sample && !is_archive {
        let _ = writeln!(
            out,
            "who waited for whom is drawn for some of the collectives and transfers: there are too many to remember"
        );
    }
    let LeftOut { arrows, tracks } = left_out;
    if arrows > 0 {
        let what = if arrows == 1 { "arrow of a transfer is" } else { "arrows of transfers are" };
        let _ = writeln!(out, "{arrows} {what} left out: by these clocks data would arrive before it was sent");
    }
    if tracks > 0 {
        let _ =
            writeln!(out, "who waited for whom is not drawn for {tracks} communicators and ranks: there are too many");
    }
    let count = own.len() + usize::from(theirs.is_some());
    let files = if count == 1 { "file" } else { "files" };
    let _ = writeln!(out, "{}: {count} {files}, {}", output.display(), names::size(bytes));
    Ok(())
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

/// The packets that put the kernels of the tool that held CUPTI under the operations of these
/// traces.
fn beside(own: &[&Path], theirs: &Path, out: &mut dyn Write) -> Result<Vec<u8>, Reason> {
    let ours = import::open_traces(own).map_err(Reason::failed("read the traces"))?;
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

/// Traces that can be merged.
struct Together<'a> {
    files: Vec<Whole<'a>>,
    edits: Edits,
    /// The boot whose clock they are put on; empty if none says its own.
    boot: String,
    /// The operations that ranks share, and how each clock's times become those of the first.
    shared: Shared,
    moves: Vec<Option<Move>>,
}

/// What a trace says.
struct Looked {
    extent: Extent,
    origin: Origin,
    evidence: Evidence,
    members: Members,
    numbers: Numbers,
    /// The file with other tags, if another process has the same ones.
    copy: Option<File>,
}

/// How many new tags are tried for one that is taken.
const RANDOM_MARKS: usize = 1 << 16;

impl Looked {
    /// Looks through a trace, one of `count`, on this many threads.
    fn at(path: &Path, count: usize, threads: usize) -> Result<Looked, Reason> {
        must_be_ours(path)?;
        Looked::of(path, File::open(path).map_err(Reason::read(path))?, count, threads)
    }

    /// The same for an open file.
    fn of(path: &Path, file: File, count: usize, threads: usize) -> Result<Looked, Reason> {
        let (mut origin, mut looking) = (Origin::of(path), Looking::at_one_of(count));
        let (mut members, mut numbers) = (Members::default(), Numbers::default());
        let mut sound = Sound::default();
        let extent = reader::read_on(threads, file, |packet| {
            sound.look(packet)?;
            origin.look(packet);
            members.look(packet);
            numbers.look(packet);
            looking.look(packet);
            Ok(())
        })
        .map_err(|error: reader::Error| Reason::file(path)(error))?;
        if extent.whole == 0 {
            return Err(Reason::file(path)("there is no whole packet in it"));
        }
        Ok(Looked { extent, origin, evidence: looking.done(), members, numbers, copy: None })
    }

    /// The same with tags that no earlier file has. An error if one of those files contains the
    /// same recording.
    fn with_own_marks(self, path: &Path, earlier: &[Origin], beside: &Path, count: usize) -> Result<Looked, Reason> {
        if let Some(twin) = earlier.iter().find(|earlier| self.origin.has_twin_in(earlier)) {
            return Err(Reason::file(path)(format!("the same recording is in {}", twin.name())));
        }
        let is_taken = |mark: &u64| earlier.iter().any(|it| it.tags.contains(mark) || it.merges.contains(mark));
        let Origin { tags, merges, .. } = &self.origin;
        let taken: Vec<u64> = tags.union(merges).copied().filter(is_taken).collect();
        if taken.is_empty() {
            return Ok(self);
        }
        let mut marks = Marks::new();
        for mark in taken {
            let is_free = |new: &u64| !is_taken(new) && !tags.contains(new) && !merges.contains(new);
            let random = std::iter::repeat_with(|| u64::from(ProcessTag::from_random(sys::random()).bits()));
            let new = random.take(RANDOM_MARKS).find(|new| is_free(new) && marks.values().all(|it| it != new));
            marks.insert(mark, new.ok_or_else(|| Reason::file(path)("every process tag is taken"))?);
        }
        let copy = remark::copied(path, &marks, beside).map_err(Reason::failed(format!("copy {}", path.display())))?;
        let again = remark::again(&copy).map_err(Reason::read(path))?;
        Ok(Looked { copy: Some(copy), ..Looked::of(path, again, count, blocks::cores())? })
    }
}

/// A trace, and how it is copied.
struct Whole<'a> {
    path: &'a Path,
    /// What is read instead of it.
    copy: Option<File>,
    extent: Extent,
    origin: Origin,
    /// The number of its clock; 0 is the clock of the first trace.
    clock: usize,
    /// If its times are another host's: how they become those of the first.
    moved: Option<Move>,
}

impl Whole<'_> {
    /// The part of it that is merged.
    fn open(&self) -> io::Result<Take<File>> {
        let file = self.copy.as_ref().map_or_else(|| File::open(self.path), remark::again)?;
        Ok(file.take(self.extent.whole))
    }
}

/// What changes in packets that describe tracks.
struct Edits {
    labels: Labels,
    numbers: Renumbered,
    /// The tags of what earlier merges drew, which is drawn again.
    drawn_before: BTreeSet<u64>,
}

/// What looking through the traces one by one gives.
#[derive(Default)]
struct Gathered<'a> {
    /// Each trace, how much of it is one, and what is read instead of it.
    files: Vec<(&'a Path, Extent, Option<File>)>,
    origins: Vec<Origin>,
    evidence: Vec<Evidence>,
    members: Members,
    numbers: Numbers,
}

impl<'a> Gathered<'a> {
    /// Looks through traces, and leaves out those that cannot be read, are duplicates, or come from
    /// a run other than the named one. An error if that is all of them.
    fn look(
        named: &'a [PathBuf],
        run: Option<&str>,
        beside: &Path,
        out: &mut dyn Write,
    ) -> Result<Gathered<'a>, Reason> {
        let (mut gathered, mut left_out) = (Gathered::default(), Vec::new());
        let size = |path: &PathBuf| fs::metadata(path).map_or(0, |facts| facts.len());
        let stage = Stage::begin(format!("looking through {} files", named.len()), named.iter().map(size).sum());
        let look = |path: &'a PathBuf, threads| Looked::at(path, named.len(), threads);
        abreast::look(named, look, |path, looked| {
            stage.advance(size(path));
            let looked = looked.and_then(|looked| {
                let looked = looked.with_own_marks(path, &gathered.origins, beside, named.len())?;
                match run {
                    Some(run) => looked.origin.must_be_of(run).map(|()| looked),
                    None => Ok(looked),
                }
            });
            let Looked { extent, origin, evidence, members, numbers, copy } = match looked {
                Ok(looked) => looked,
                Err(reason) => return left_out.push(reason),
            };
            if extent.unfinished > 0 {
                let (path, bytes) = (path.display(), extent.unfinished);
                let _ = writeln!(out, "{path}: left out an unfinished packet of {bytes} bytes");
            }
            gathered.members.merge(members);
            gathered.numbers.merge(numbers);
            gathered.files.push((path.as_path(), extent, copy));
            gathered.origins.push(origin);
            gathered.evidence.push(evidence);
        });
        drop(stage);
        if gathered.files.is_empty() {
            return Err(left_out.into_iter().next().unwrap_or_else(|| "no trace was named".into()));
        }
        for reason in &left_out {
            let _ = writeln!(out, "left out: {reason}");
        }
        Ok(gathered)
    }
}

impl<'a> Together<'a> {
    /// Relates the clocks of the traces, and leaves out those that nothing relates to the others.
    /// An error says why they cannot be merged.
    fn of(gathered: Gathered<'a>, out: &mut dyn Write) -> Result<Together<'a>, Reason> {
        let Gathered { mut files, mut origins, evidence, members, numbers } = gathered;
        let mut common = origin::judge(&origins)?;
        let mut shared = Shared::of(evidence, &common.clocks);
        let is_alone = alone(&common.clocks, &files, &shared);
        if is_alone.contains(&true) && is_alone.contains(&false) {
            for (path, ..) in files.iter().zip(&is_alone).filter(|(_, alone)| **alone).map(|(file, _)| file) {
                let _ = writeln!(
                    out,
                    "left out: {}: nothing in it relates the clock of its host to another's",
                    path.display()
                );
            }
            keep(&mut files, &is_alone);
            keep(&mut origins, &is_alone);
            let mut before = std::mem::replace(&mut common, origin::judge(&origins)?).clocks;
            keep(&mut before, &is_alone);
            shared.keep(&before.into_iter().zip(common.clocks.iter().copied()).collect());
        }
        if let Some(remark) = &common.remark {
            let _ = writeln!(out, "{remark}");
        }
        members.remarks().iter().for_each(|line| drop(writeln!(out, "{line}")));
        let moves = moves(&origins, &common.clocks, &shared)?;
        say_clocks(&moves.iter().flatten().collect::<Vec<_>>(), out);
        let boot = origins.first().and_then(|origin| origin.boots.first().cloned()).unwrap_or_default();
        let files =
            files.into_iter().zip(origins).zip(&common.clocks).map(|(((path, extent, copy), origin), clock)| Whole {
                path,
                copy,
                extent,
                origin,
                clock: *clock,
                moved: moves[*clock].clone(),
            });
        let files: Vec<Whole<'_>> = files.collect();
        let drawn_before = files.iter().flat_map(|file| file.origin.merges.iter().copied()).collect();
        let edits = Edits { labels: members.labels(), numbers: numbers.renumbered(), drawn_before };
        Ok(Together { files, edits, boot, shared, moves })
    }

    /// Draws what only all of them together show; see [`job::draw`].
    fn draw(&self, diagnosis: &Diagnosis, pieces: &mut Pieces<'_>) -> Result<LeftOut, reader::Error> {
        let put = |packets| pieces.put(Piece::Packets(packets));
        job::draw(&self.shared, &self.moves, &self.edits.labels, self.tag(), diagnosis, put)
    }

    /// What `ncclscope diagnose` says about the job, on the common clock; nothing if its files are
    /// too large for that.
    fn diagnosis(&self) -> Diagnosis {
        if self.files.iter().map(|file| file.extent.whole).sum::<u64>() > DIAGNOSED {
            return Diagnosis::default();
        }
        let paths: Vec<PathBuf> = self.files.iter().map(|file| file.path.to_owned()).collect();
        let of_file = |seen: Seen| {
            let file = self.files.iter().find(|file| file.path == seen.file)?;
            let moved = |time| file.moved.as_ref().map_or(time, |how| how.offset.moved(time));
            Some((moved(seen.time.0), moved(seen.time.1), seen.text))
        };
        let (answer, causes) = diagnose::answer(&paths);
        Diagnosis { answer: answer.and_then(of_file), causes: causes.into_iter().filter_map(of_file).collect() }
    }

    /// A tag that no process has.
    fn tag(&self) -> ProcessTag {
        let is_free = |tag: &ProcessTag| {
            let bits = u64::from(tag.bits());
            self.files.iter().all(|file| !file.origin.tags.contains(&bits) && !file.origin.merges.contains(&bits))
        };
        loop {
            let tag = ProcessTag::from_random(sys::random());
            if is_free(&tag) {
                return tag;
            }
        }
    }

    /// Copies the traces one after the other.
    fn copy(&'a self, pieces: &mut Pieces<'a>) -> Result<(), Reason> {
        let size = self.files.iter().map(|file| file.extent.whole).sum();
        let stage = Stage::begin(format!("writing {} files as one", self.files.len()), size);
        for file @ Whole { path, extent, origin, moved, .. } in &self.files {
            let fault = Reason::failed::<reader::Error>(format!("copy {}", path.display()));
            let source = file.open().map_err(reader::Error::Io).map_err(&fault)?;
            match moved {
                Some(how) => {
                    let put = |packets| pieces.put(Piece::Packets(packets));
                    moved::copy(source, how, &self.boot, &self.edits, put)
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

/// For each file, whether all files of its clock were cut off and share nothing with files of
/// another clock. A host whose processes were killed before anything relates its clock to another
/// one must not prevent the merge of the others.
fn alone(clocks: &[usize], files: &[(&Path, Extent, Option<File>)], shared: &Shared) -> Vec<bool> {
    let related = shared.related_clocks();
    let is_cut = |clock| clocks.iter().zip(files).all(|(its, (_, extent, _))| *its != clock || extent.unfinished > 0);
    let count = clocks.iter().max().map_or(0, |last| last + 1);
    let alone: Vec<bool> = (0..count).map(|clock| is_cut(clock) && !related.contains(&clock)).collect();
    clocks.iter().map(|clock| alone[*clock]).collect()
}

/// Drops what belongs to files that are left out.
fn keep<T>(of_files: &mut Vec<T>, is_left_out: &[bool]) {
    let mut is_left_out = is_left_out.iter();
    of_files.retain(|_| is_left_out.next() == Some(&false));
}

/// For each clock, how its times become those of the first one.
fn moves(origins: &[Origin], clocks: &[usize], shared: &Shared) -> Result<Vec<Option<Move>>, Reason> {
    let count = clocks.iter().max().map_or(0, |last| last + 1);
    if count < 2 {
        return Ok(vec![None; count]);
    }
    let file = |clock: usize| &origins[clocks.iter().position(|it| *it == clock).unwrap_or_default()];
    let mut hosts = vec![named_apart(file(0).host(), |_| false)];
    let mut moves = vec![None];
    for (clock, offset) in hosts::solve(count, shared.orders()).into_iter().enumerate().skip(1) {
        let host = named_apart(file(clock).host(), |name| hosts.iter().any(|host| host == name));
        let reference = &hosts[0];
        let offset = offset.ok_or_else(|| unrelated(file(clock), file(0), shared.inferred(clock)))?;
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
            how.push_str(&format!("; {count} {CONTRADICT}, by up to {by}, which is part of it"));
        }
        let of_clock = || origins.iter().zip(clocks).filter(|(_, it)| **it == clock);
        let outside = of_clock().flat_map(|(file, _)| file.ends()).map(|time| offset.at(time).error_ns).max();
        let error_ns = outside.map_or(most, |outside| outside.max(most));
        if error_ns > most {
            how.push_str(&format!("; before the first and after the last of them, to {}", us(error_ns)));
        }
        hosts.push(host.clone());
        moves.push(Some(Move { offset, host, how, error_ns }));
    }
    Ok(moves)
}

/// Says how the hosts' times were put on one clock: for each host, or for many together. Those
/// whose data contradicts itself are always named.
fn say_clocks(moves: &[&Move], out: &mut dyn Write) {
    let are_many = moves.len() > LISTED;
    if are_many {
        let of_hosts: Vec<_> = moves.iter().map(|it| (it.host.as_str(), it.error_ns)).collect();
        let _ = writeln!(out, "{}", clocks(&of_hosts));
    }
    for Move { host, how, .. } in moves.iter().filter(|it| !are_many || it.how.contains(CONTRADICT)) {
        let _ = writeln!(out, "{host}: {how}");
    }
}

/// How the times of many hosts were put on another's clock, from how far off each may be then, in
/// ns.
pub(super) fn clocks(hosts: &[(&str, u64)]) -> String {
    let (worst, error_ns) = hosts.iter().max_by_key(|it| it.1).copied().unwrap_or_default();
    format!(
        "{} hosts: their times are put on the clock of another by the order of events on both, to {} at worst, on {worst}",
        hosts.len(),
        names::duration(error_ns as f64)
    )
}

/// The host's name, with a number if another one has it already: two boots, or containers that
/// chose the same name.
fn named_apart(host: String, is_taken: impl Fn(&str) -> bool) -> String {
    let host = if host.is_empty() { "host".to_owned() } else { host };
    let mut names = (1..).map(|number| if number == 1 { host.clone() } else { format!("{host} ({number})") });
    names.find(|name| !is_taken(name)).unwrap_or_default()
}

/// Why a file's clock cannot be related to that of another.
fn unrelated(file: &Origin, reference: &Origin, inferred: u64) -> Reason {
    let hosts = match (reference.host(), file.host()) {
        (one, other) if one == other => format!("{one} was booted between them"),
        (one, other) => format!("they are of different hosts, {one} and {other}"),
    };
    let mut why = format!(
        "{} and {} have no common clock: {hosts}, and nothing relates their clocks. That takes collectives in which \
         each waited for the other, with their kernels in the traces of both, or transfers between them in both directions",
        reference.name(),
        file.name()
    );
    if inferred > 0 {
        why.push_str(&format!("; {inferred} kernels whose operations are inferred do not count"));
    }
    Reason::Refused(why + ". Merge the files of each host separately")
}

impl Edits {
    /// Whether anything changes in a file.
    fn concern(&self, origin: &Origin) -> bool {
        self.labels.concern(&origin.tags) || self.numbers.concern(&origin.tags) || !origin.merges.is_empty()
    }

    /// Whether this sequence comes from an earlier merge, and so is drawn again.
    fn is_drawn_anew(&self, sequence: u64) -> bool {
        self.drawn_before.contains(&tag_of_sequence(sequence))
    }

    /// A series of packets, if any of them changes.
    fn packets(&self, packets: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let mut changes = false;
        for packet in fields(packets) {
            if !self.drawn_before.is_empty() && self.is_drawn_anew(sequence_of(packet.bytes())) {
                changes = true;
                continue;
            }
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

fn sequence_of(packet: &[u8]) -> u64 {
    let is_sequence = |it: &Field<'_>| it.number == trace_packet::TRUSTED_PACKET_SEQUENCE_ID;
    fields(packet).find(is_sequence).map_or(0, |it| it.uint())
}

/// Refuses traces that have to be merged before they can be shown together.
pub(super) fn must_share_clock(traces: &[PathBuf]) -> Result<(), Reason> {
    let origins = traces.iter().map(|path| Origin::head(path)).collect::<Result<Vec<_>, _>>()?;
    let Some((first, others)) = origins.split_first() else { return Ok(()) };
    match others.iter().find(|other| !origin::one_boot(first, other)) {
        Some(other) => Err(Reason::Refused(format!(
            "{} and {} use different clocks; ncclscope merge puts them on one",
            first.name(),
            other.name()
        ))),
        None => Ok(()),
    }
}
