//! Chooses what is kept of a trace.
//!
//! A slice is kept, with its true begin and end, if it overlaps the window and no filter excludes
//! it, or if a slice inside of it is kept. Facts that everything else rests on (the recording's
//! first and last words, communicators, GPUs) are always kept, and drawn at the window's edge if
//! they lie outside. So is a counter's last value before the window.

use rustc_hash::{FxHashMap, FxHashSet};
use std::path::Path;

use super::super::read_trace;
use super::super::survey::Survey;
use crate::cli::reason::Reason;
use crate::model::time::HostNs;
use crate::trace::fields::nccl;
use crate::trace::fields::track_event::r#type as kind;
use crate::trace::reader::Event;
use crate::trace::words::Category;

/// The end of a window without an end.
pub(super) const END: HostNs = HostNs(u64::MAX);

/// What to keep, in terms of this trace.
#[derive(Debug, Default)]
pub(super) struct Filter {
    /// The window, in the trace's time: what begins by `end` and ends after `begin`.
    pub(super) begin: HostNs,
    pub(super) end: HostNs,
    /// Processes by their tracks; all if `None`.
    pub(super) processes: Option<Vec<u64>>,
    /// Communicators by their hashes; all if `None`.
    pub(super) communicators: Option<FxHashSet<u64>>,
    pub(super) no_steps: bool,
}

/// What is kept of one trace: its events, by their number in the file.
#[derive(Default)]
pub(super) struct Choice {
    kept: Vec<u64>,
    /// Counters' last values before the window.
    counters: FxHashSet<usize>,
    /// Tracks with something on them, and their parents.
    pub(super) tracks: FxHashSet<u64>,
    /// Sequences that these events are in.
    pub(super) sequences: FxHashSet<u64>,
    /// Kept ends of arrows, by the arrow.
    pub(super) flows: FxHashMap<u64, u32>,
    /// How many slices are kept.
    pub(super) slices: u64,
}

/// What happens to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Left,
    Kept,
    /// Kept, and drawn where the window begins or ends.
    Moved,
}

impl Choice {
    /// Looks through a trace for what a filter keeps.
    pub(super) fn make(path: &Path, survey: &Survey, filter: &Filter) -> Result<Choice, Reason> {
        let mut chooser = Chooser {
            filter,
            scopes: scopes(survey, filter),
            open: FxHashMap::default(),
            values: FxHashMap::default(),
            begun: FxHashSet::default(),
            introduced: FxHashSet::default(),
            choice: Choice::default(),
        };
        let mut number = 0;
        read_trace(path, |packet| {
            if let Some(event) = &packet.event {
                chooser.event((number, packet.sequence), event, packet.time.unwrap_or_default());
                number += 1;
            } else if packet.time.is_some() {
                // For these, only the window decides, when they are copied.
                chooser.choice.sequences.insert(packet.sequence);
            }
            Ok(())
        })?;
        chooser.finish();
        let mut choice = chooser.choice;
        choice.add_parents(survey);
        Ok(choice)
    }

    pub(super) fn fate(&self, number: usize, time: HostNs, filter: &Filter, event: &Event<'_>) -> Fate {
        if self.counters.contains(&number) {
            return Fate::Moved;
        }
        if self.kept.get(number / 64).is_none_or(|word| word & 1 << (number % 64) == 0) {
            return Fate::Left;
        }
        let inside = (filter.begin..=filter.end).contains(&time);
        if event.kind == kind::TYPE_INSTANT && !inside { Fate::Moved } else { Fate::Kept }
    }

    fn keep(&mut self, event: &Held) {
        self.keep_event((event.number, event.sequence), event.track, event.flows.iter().copied());
    }

    fn keep_event(&mut self, (number, sequence): (usize, u64), track: u64, flows: impl Iterator<Item = u64>) {
        let word = number / 64;
        if self.kept.len() <= word {
            self.kept.resize(word + 1, 0);
        }
        self.kept[word] |= 1 << (number % 64);
        self.tracks.insert(track);
        self.sequences.insert(sequence);
        for flow in flows {
            *self.flows.entry(flow).or_default() += 1;
        }
    }

    /// A track is shown within its parents, a thread within its process.
    fn add_parents(&mut self, survey: &Survey) {
        for track in self.tracks.clone() {
            self.tracks.extend(survey.process(track));
            let mut at = track;
            while let Some(parent) = survey.tracks.get(&at).and_then(|track| track.parent)
                && self.tracks.insert(parent)
            {
                at = parent;
            }
        }
    }
}

/// What a track says about slices on it that do not name a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// It belongs to a process that is left out.
    Left,
    /// Its slices belong to a communicator that is not wanted.
    Unwanted,
    Wanted,
}

fn scopes(survey: &Survey, filter: &Filter) -> FxHashMap<u64, Scope> {
    let scope = |uuid: u64| {
        if let Some(processes) = &filter.processes
            && survey.process(uuid).is_some_and(|process| !processes.contains(&process))
        {
            return Scope::Left;
        }
        let Some(wanted) = &filter.communicators else { return Scope::Wanted };
        match belongs(survey, uuid) {
            Some(hash) if !wanted.contains(&hash) => Scope::Unwanted,
            _ => Scope::Wanted,
        }
    };
    survey.tracks.keys().map(|uuid| (*uuid, scope(*uuid))).collect()
}

/// The communicator of a track whose slices name none. It is that of the sibling whose name begins
/// this track's name: transfers with a peer are drawn beside their operations.
fn belongs(survey: &Survey, uuid: u64) -> Option<u64> {
    let track = survey.tracks.get(&uuid)?;
    if !track.communicators.is_empty() {
        return None;
    }
    let siblings = survey.tracks.iter().filter(|(other, sibling)| {
        **other != uuid
            && sibling.parent == track.parent
            && !sibling.name.is_empty()
            && track.name.starts_with(&sibling.name)
            && !sibling.communicators.is_empty()
    });
    let (_, nearest) = siblings.max_by_key(|(_, sibling)| sibling.name.len())?;
    match nearest.communicators[..] {
        [hash] => Some(hash),
        _ => None,
    }
}

struct Chooser<'a> {
    filter: &'a Filter,
    scopes: FxHashMap<u64, Scope>,
    /// The open slices of each track, outermost first.
    open: FxHashMap<u64, Vec<Held>>,
    /// The last value of each counter before the window, and when it was counted.
    values: FxHashMap<u64, (HostNs, usize, u64)>,
    /// Tracks that had an instant of the recording itself.
    begun: FxHashSet<u64>,
    /// Communicators that were introduced, by the process's track of them.
    introduced: FxHashSet<(u64, u64)>,
    choice: Choice,
}

/// What is remembered about an event.
struct Held {
    number: usize,
    sequence: u64,
    track: u64,
    begin: HostNs,
    flows: Vec<u64>,
    /// It is a transfer, or a part of one, and transfers are left out.
    is_left_out: bool,
    /// Only its time can exclude it.
    is_wanted: bool,
    /// A slice inside of it is kept.
    holds_kept: bool,
}

impl Chooser<'_> {
    fn event(&mut self, (number, sequence): (usize, u64), event: &Event<'_>, time: HostNs) {
        let category = Category::of(event.category);
        let scope = self.scopes.get(&event.track).copied().unwrap_or(Scope::Wanted);
        if scope == Scope::Left {
            return;
        }
        if event.kind == kind::TYPE_SLICE_END {
            let slice = self.open.get_mut(&event.track).and_then(Vec::pop);
            slice.into_iter().for_each(|slice| self.close(slice, Some((time, (number, sequence), event))));
            return;
        }
        let around = self.open.get(&event.track).and_then(|open| open.last());
        let is_left_out = self.filter.no_steps
            && (category == Some(Category::Net)
                || category == Some(Category::Proxy) && event.arg(nccl::STEP).is_some())
            || around.is_some_and(|around| around.is_left_out);
        let wanted = self.filter.communicators.as_ref();
        let is_wanted = !is_left_out
            && match (wanted.and_then(|wanted| Some((wanted, event.uint(nccl::COMM)?))), around) {
                (Some((wanted, hash)), _) => wanted.contains(&hash),
                (None, Some(around)) => around.is_wanted,
                (None, None) => scope == Scope::Wanted,
            };
        // What begins after the window is not kept.
        let flows = if time <= self.filter.end { event.flows().collect() } else { Vec::new() };
        let held = Held {
            number,
            sequence,
            track: event.track,
            begin: time,
            flows,
            is_left_out,
            is_wanted,
            holds_kept: false,
        };
        let inside = (self.filter.begin..=self.filter.end).contains(&time);
        match event.kind {
            kind::TYPE_SLICE_BEGIN => self.open.entry(event.track).or_default().push(held),
            kind::TYPE_COUNTER if time < self.filter.begin => {
                let last = self.values.entry(event.track).or_insert((time, number, sequence));
                if time >= last.0 {
                    *last = (time, number, sequence);
                }
            }
            kind::TYPE_COUNTER => {
                if inside {
                    self.choice.keep(&held);
                }
            }
            _ => {
                let is_lasting = self.is_lasting(event, category);
                if is_wanted && (inside || is_lasting) {
                    self.choice.keep(&held);
                    if inside && let Some(around) = self.open.get_mut(&event.track).and_then(|open| open.last_mut()) {
                        around.holds_kept = true;
                    }
                }
            }
        }
    }

    /// Whether what an instant says holds from then on, or for the whole recording.
    fn is_lasting(&mut self, event: &Event<'_>, category: Option<Category>) -> bool {
        let is_first = category == Some(Category::Ncclscope) && self.begun.insert(event.track);
        // Other tools do not know an interface version.
        let is_init = [nccl::INTERFACE, nccl::RANKS].iter().any(|number| event.arg(*number).is_some());
        let introduces = event.uint(nccl::COMM).filter(|_| is_init);
        let introduces = introduces.is_some_and(|hash| self.introduced.insert((event.track, hash)));
        is_first || introduces || [nccl::RECORDED, nccl::UUID].iter().any(|number| event.arg(*number).is_some())
    }

    /// Takes a slice; and, if it ended, when and by which event.
    fn close(&mut self, slice: Held, end: Option<(HostNs, (usize, u64), &Event<'_>)>) {
        let time = end.map_or(END, |(time, ..)| time);
        let Filter { begin, end: until, .. } = *self.filter;
        let overlaps = slice.begin <= until && (time > begin || slice.begin >= begin);
        let is_kept = slice.holds_kept || overlaps && slice.is_wanted;
        if !is_kept {
            return;
        }
        self.choice.slices += 1;
        self.choice.keep(&slice);
        if let Some((_, place, end)) = end {
            self.choice.keep_event(place, end.track, end.flows());
        }
        if let Some(around) = self.open.get_mut(&slice.track).and_then(|open| open.last_mut()) {
            around.holds_kept = true;
        }
    }

    /// At the end of the file: open slices stay open, and the counters' values are known.
    fn finish(&mut self) {
        let tracks: Vec<u64> = self.open.keys().copied().collect();
        for track in tracks {
            while let Some(slice) = self.open.get_mut(&track).and_then(Vec::pop) {
                self.close(slice, None);
            }
        }
        for (track, (_, number, sequence)) in std::mem::take(&mut self.values) {
            self.choice.counters.insert(number);
            self.choice.sequences.insert(sequence);
            self.choice.tracks.insert(track);
        }
    }
}
