//! `ncclscope cut`: writes a part of a trace as a trace of its own.
//!
//! The file is never held in memory but read several times: to learn its times and contents, to
//! choose what is kept, and to copy that. If only times are given, the choice is made in the first
//! pass; the last one skips packets of which nothing is kept. What is kept is copied as it stands,
//! including fields that this build does not know. Only three things are rewritten: times, because
//! they count from the packet before; interned names, which move to the first packet that now uses
//! them; and arrows that have lost their other end.

mod choose;
mod copy;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::LISTED;
use super::survey::{Looking, Survey, label};
use crate::cli::reason::Reason;
use crate::model::selection::{self, Ranks, Window};
use crate::model::time::HostNs;
use crate::trace::fields::track_event::r#type as kind;
use crate::trace::names;
use crate::trace::writer::TRACK_BITS;
use choose::{Choice, Chooser, END, Filter};

/// What to keep; everything if nothing is said.
#[derive(clap::Args)]
pub(super) struct Wish {
    /// The trace
    trace: PathBuf,
    /// The file to write; it must not exist
    #[arg(short, long)]
    output: PathBuf,
    /// From when to when, counted from the trace's start as the viewer does: 1.5s..2s,
    /// 300ms..400ms, 10s.. or ..1min
    ///
    /// Units: ns, us, ms, s, min, h.
    #[arg(long, value_name = "A..B")]
    time: Option<Window>,
    /// Ranks in the job, as a list with ranges: 0,4,8-12
    #[arg(long)]
    ranks: Option<Ranks>,
    /// A communicator, by its name, its name on tracks or its hash; may be given more than once
    ///
    /// What belongs to other communicators is left out. What belongs to none stays: the
    /// application's kernels and ranges.
    #[arg(long = "comm", value_name = "NAME")]
    communicators: Vec<String>,
    /// Leave out the single transfers of the network proxy, which are most of a large trace
    #[arg(long)]
    no_steps: bool,
}

pub(super) fn run(wish: &Wish, out: &mut dyn Write) -> Result<(), Reason> {
    let Wish { trace: path, output, .. } = wish;
    super::must_be_new(output)?;
    let (survey, early) = look(wish)?;
    let filter = filter(path, &survey, wish)?;
    let choice = match early.filter(|chooser| *chooser.filter() == filter) {
        Some(chooser) => chooser.done(&survey),
        None => Choice::make(path, &survey, &filter)?,
    };
    if choice.slices == 0 {
        return Err(Reason::Refused(format!("no slice of {} is in this cut; {}", path.display(), contents(path)?)));
    }
    let file = super::create(output, false)?;
    let copied = copy::copy(path, &choice, &filter, output, &mut BufWriter::new(file));
    let bytes = copied.inspect_err(|_| {
        // Half a cut is of no use. If it cannot be removed, the first error is still the one to
        // report.
        let _ = std::fs::remove_file(output);
    })?;
    for (path, extent) in survey.extents.iter().filter(|(_, extent)| extent.unfinished > 0) {
        let _ = writeln!(out, "{}: left out an unfinished packet of {} bytes", path.display(), extent.unfinished);
    }
    let _ = writeln!(
        out,
        "{}: {} of {} slices, {} of {} tracks, {}",
        output.display(),
        choice.slices,
        survey.slices,
        choice.tracks.len(),
        survey.tracks.len(),
        names::size(bytes)
    );
    Ok(())
}

/// Looks through a trace. If only times are given, chooses at once, and looks at nothing else than
/// times and what tracks are. Then it takes the first time in the file as the earliest, which it
/// nearly always is.
fn look(wish: &Wish) -> Result<(Survey, Option<Chooser>), Reason> {
    let path = &wish.trace;
    if wish.ranks.is_some() || !wish.communicators.is_empty() {
        return Ok((Survey::of_one(path)?, None));
    }
    super::must_be_trace(path)?;
    let (mut looking, mut span, mut slices) = (Looking::default(), None, 0);
    let (mut early, mut is_first) = (None::<Chooser>, true);
    let extent = super::read_trace(path, |packet| {
        if packet.event.is_none() {
            looking.take(packet);
        }
        if let Some(time) = packet.time {
            let (first, last) = span.unwrap_or((time, time));
            span = Some((first.min(time), last.max(time)));
            slices += u64::from(packet.event.as_ref().is_some_and(|event| event.kind == kind::TYPE_SLICE_BEGIN));
        }
        if is_first && (packet.event.is_some() || packet.time.is_some()) {
            is_first = false;
            early = packet.time.map(|first| Chooser::of_all_tracks(wish.filter(first)));
        }
        early.iter_mut().for_each(|chooser| chooser.packet(packet));
        Ok(())
    })?;
    let mut survey = Survey { span, slices, extents: vec![(path.clone(), extent)], ..looking.done() };
    early.iter().flat_map(Chooser::tracks).for_each(|uuid| _ = survey.tracks.entry(uuid).or_default());
    Ok((survey, early))
}

impl Wish {
    /// What it excludes by time and kind, in a trace that begins at this time.
    fn filter(&self, first: HostNs) -> Filter {
        let (begin, end) = match &self.time {
            None => (HostNs(0), END),
            Some(window) => {
                (first.saturating_add(window.begin), window.end.map_or(END, |end| first.saturating_add(end)))
            }
        };
        Filter { begin, end, no_steps: self.no_steps, ..Filter::default() }
    }
}

/// Checks the wish against the trace.
fn filter(path: &Path, survey: &Survey, wish: &Wish) -> Result<Filter, Reason> {
    let (first, last) = survey.span.ok_or("nothing in this trace has a time").map_err(Reason::file(path))?;
    if let Some(window) = wish.time.as_ref().filter(|window| window.begin > last.since(first)) {
        return Err(Reason::Refused(format!("--time {window}: the trace is over by then; {}", contents(path)?)));
    }
    let mut filter = wish.filter(first);
    if let Some(wanted) = &wish.ranks {
        let ranks = survey.ranks();
        if ranks.values().all(Option::is_none) {
            return Err(Reason::Refused(format!(
                "--ranks: no process of {} knows its rank in the job; it was neither started by torchrun, mpirun or \
                 srun nor given NCCLSCOPE_RANK",
                path.display()
            )));
        }
        let kept = ranks.iter().filter(|(_, rank)| rank.is_some_and(|rank| wanted.contains(rank)));
        let kept: Vec<u64> = kept.map(|(process, _)| *process).collect();
        if kept.is_empty() {
            return Err(Reason::Refused(format!(
                "--ranks {wanted}: none of them is in the trace; {}",
                contents(path)?
            )));
        }
        let tag = |process: &u64| process >> TRACK_BITS;
        let of_kept: BTreeSet<u64> = kept.iter().map(tag).collect();
        filter.left_out = ranks.keys().map(tag).filter(|tag| !of_kept.contains(tag)).collect();
        filter.processes = Some(kept);
    }
    let shown = if wish.communicators.is_empty() { BTreeMap::new() } else { survey.shown_as() };
    for name in &wish.communicators {
        let same = |(hash, comm): &(&u64, &super::survey::Communicator)| {
            let mut shown = shown.get(*hash).into_iter().flatten();
            comm.name.as_deref() == Some(name) || is_hash(**hash, name) || shown.any(|it| is_shown(it, **hash, name))
        };
        let found: Vec<u64> = survey.communicators.iter().filter(same).map(|(hash, _)| *hash).collect();
        if found.is_empty() {
            return Err(Reason::Refused(format!(
                "--comm {name}: there is no such communicator in the trace; {}",
                contents(path)?
            )));
        }
        filter.communicators.get_or_insert_default().extend(found);
    }
    Ok(filter)
}

/// Whether a word is a communicator's hash: all of its digits, or the eight that its track shows.
fn is_hash(hash: u64, word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let word = word.strip_prefix("0x").unwrap_or(&word);
    word == format!("{hash:016x}") || word == names::short_hash(hash)
}

/// Whether this is what a communicator's tracks call it, such as `all` or `stride 8`, with or
/// without its hash.
fn is_shown(shown: &str, hash: u64, word: &str) -> bool {
    let plain = shown.strip_suffix(&names::short_hash(hash)).map(str::trim_end);
    shown == word || plain == Some(word)
}

/// The communicators of one name. If there are several, with the hashes by which to pick one of
/// them.
fn told_apart(label: &str, hashes: &[u64]) -> String {
    match hashes {
        [_] => label.to_owned(),
        hashes => {
            let hashes: Vec<_> = hashes.iter().map(|hash| names::short_hash(*hash)).collect();
            format!("{label} ({})", hashes.join(", "))
        }
    }
}

/// What there is to choose from.
fn contents(path: &Path) -> Result<String, Reason> {
    let survey = Survey::of_one(path)?;
    let duration = selection::duration(survey.duration());
    let ranks: Vec<u32> = survey.ranks().into_values().flatten().collect();
    let ranks = match Ranks::of(ranks) {
        ranks if ranks.is_empty() => "no known ranks".to_owned(),
        ranks => format!("ranks {ranks}"),
    };
    let shown = survey.shown_as();
    let mut by_label: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (hash, comm) in &survey.communicators {
        let shown = shown.get(hash).and_then(BTreeSet::first).map(|&name| name.to_owned());
        by_label.entry(shown.unwrap_or_else(|| label(*hash, comm))).or_default().push(*hash);
    }
    let mut comms: Vec<_> = by_label.iter().map(|(label, hashes)| told_apart(label, hashes)).collect();
    if let Some(more @ 1..) = comms.len().checked_sub(LISTED) {
        comms.truncate(LISTED);
        comms.push(format!("{more} more, which ncclscope info --json - lists"));
    }
    Ok(match &comms[..] {
        [] => format!("it lasts {duration} and has {ranks} and no communicator"),
        comms => format!("it lasts {duration} and has {ranks} and the communicators {}", comms.join(", ")),
    })
}
