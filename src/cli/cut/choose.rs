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
use crate::trace::reader::{Event, Numbered, Packet};
use crate::trace::words::{self, Category};
use crate::trace::writer::tag_of_sequence;

/// The end of a window without an end.
pub(super) const END: HostNs = HostNs(u64::MAX);

/// What to keep, in terms of this trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    /// The window, in the trace's time: what begins by `end` and ends after `begin`.
    pub(super) begin: HostNs,
    pub(super) end: HostNs,
    /// Processes by their tracks; all if `None`.
    pub(super) processes: Option<Vec<u64>>,
    /// The tags of the others.
    pub(super) left_out: FxHashSet<u64>,
    /// Communicators by their hashes; all if `None`.
    pub(super) communicators: Option<FxHashSet<u64>>,
    pub(super) no_steps: bool,
}

impl Filter {
    /// Whether it leaves out a packet with a time that is no event, by whose it is: a kernel as GPU
    /// work names its process in numbers only.
    pub(super) fn leaves_out(&self, packet: &Packet<'_>) -> bool {
        self.left_out.contains(&tag_of_sequence(packet.sequence))
    }
}

/// What is kept of one trace: its events, by their number in the file.
#[derive(Default)]
pub(super) struct Choice {
    kept: Vec<u64>,
    chunks: Vec<Chunk>,
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

/// A compressed packet of the file, or a run of others.
struct Chunk {
    /// Its position in the file.
    at: u64,
    is_packed: bool,
    /// The number of its first event.
    first: usize,
    /// It has facts about other packets, or about the whole trace.
    is_general: bool,
    /// The time range of its other packets, which only the window decides about.
    undecided: Option<(HostNs, HostNs)>,
    /// Times at its end, by sequence.
    times: Vec<(u64, HostNs)>,
}

impl Choice {
    /// Looks through a trace for what a filter keeps.
    pub(super) fn make(path: &Path, survey: &Survey, filter: &Filter) -> Result<Choice, Reason> {
        let mut chooser = Chooser::new(filter.clone(), scopes(survey, filter));
        read_trace(path, |packet| {
            chooser.packet(packet);
            Ok(())
        })?;
        Ok(chooser.done(survey))
    }

    /// The number of the first event of the chunk at this place, if one begins there.
    pub(super) fn first_at(&self, at: u64) -> Option<usize> {
        Some(self.chunks[self.chunk_at(at)?].first)
    }

    fn chunk_at(&self, at: u64) -> Option<usize> {
        self.chunks.binary_search_by_key(&at, |chunk| chunk.at).ok()
    }

    /// If nothing is kept of the compressed packet at this place: the times at its end, by
    /// sequence.
    pub(super) fn passed(&self, at: u64, filter: &Filter) -> Option<&[(u64, HostNs)]> {
        let place = self.chunk_at(at)?;
        let chunk = &self.chunks[place];
        let end = self.chunks.get(place + 1).map_or(self.kept.len() * 64, |next| next.first);
        let is_kept = |number: usize| self.kept.get(number / 64).is_some_and(|word| word & 1 << (number % 64) != 0);
        let is_inside = |(first, last)| first <= filter.end && last >= filter.begin;
        let is_needed = !chunk.is_packed
            || chunk.is_general
            || chunk.undecided.is_some_and(is_inside)
            || (chunk.first..end).any(is_kept);
        (!is_needed).then_some(&chunk.times)
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
        let flows = event.flow.iter().chain(&event.more_flows).copied();
        self.keep_event((event.number, event.sequence), event.track, flows);
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

    /// Takes a slice, with those around it; and, if it ended, when and by which event.
    fn close(
        &mut self,
        filter: &Filter,
        slice: Held,
        around: &mut [Held],
        end: Option<(HostNs, (usize, u64), &Event<'_>)>,
    ) {
        let time = end.map_or(END, |(time, ..)| time);
        let overlaps = slice.begin <= filter.end && (time > filter.begin || slice.begin >= filter.begin);
        let is_kept = slice.holds_kept || overlaps && slice.is_wanted;
        if !is_kept {
            return;
        }
        self.slices += 1;
        self.keep(&slice);
        if let Some((_, place, end)) = end {
            self.keep_event(place, end.track, end.flows());
        }
        if let Some(around) = around.last_mut() {
            around.holds_kept = true;
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Scope {
    /// It belongs to a process that is left out.
    Left,
    /// Its slices belong to a communicator that is not wanted.
    Unwanted,
    #[default]
    Wanted,
}

fn scopes(survey: &Survey, filter: &Filter) -> Numbered<OnTrack> {
    let named = Named::of_all(survey);
    let scope = |uuid: u64| {
        if let Some(processes) = &filter.processes
            && survey.process(uuid).is_some_and(|process| !processes.contains(&process))
        {
            return Scope::Left;
        }
        let Some(wanted) = &filter.communicators else { return Scope::Wanted };
        match named.of(survey, uuid) {
            of if of.is_empty() || of.iter().any(|hash| wanted.contains(hash)) => Scope::Wanted,
            _ => Scope::Unwanted,
        }
    };
    let mut tracks = Numbered::<OnTrack>::default();
    survey.tracks.keys().for_each(|uuid| tracks.entry(*uuid).scope = scope(*uuid));
    tracks
}

/// What tracks whose slices name communicators are called.
struct Named<'a> {
    /// By their parents, with their names.
    tracks: FxHashMap<Option<u64>, Vec<(&'a str, &'a [u64])>>,
    /// The communicators of each name before a rank: `dp · rank 3 of 8`.
    labels: FxHashMap<&'a str, Vec<u64>>,
}

impl<'a> Named<'a> {
    fn of_all(survey: &'a Survey) -> Named<'a> {
        let (mut tracks, mut labels) = (FxHashMap::<_, Vec<_>>::default(), FxHashMap::<_, Vec<_>>::default());
        for track in survey.tracks.values().filter(|it| !it.name.is_empty() && !it.communicators.is_empty()) {
            tracks.entry(track.parent).or_default().push((track.name.as_str(), &track.communicators[..]));
        }
        for (hash, shown) in survey.shown_as() {
            shown.into_iter().for_each(|label| labels.entry(label).or_default().push(hash));
        }
        Named { tracks, labels }
    }

    /// The communicators that a track may be of whose slices name none, or that has no slices. It
    /// is that of the sibling whose name begins this track's name: transfers with a peer are drawn
    /// beside their operations. A counter says before that what it counts: `busbw · dp · rank 3 of
    /// 8`. What a merge drew about all ranks has no siblings, and says the name: `dp · ranks
    /// waiting`.
    fn of(&self, survey: &Survey, uuid: u64) -> &[u64] {
        let Some(track) = survey.tracks.get(&uuid).filter(|track| track.communicators.is_empty()) else { return &[] };
        let of_job = [words::track::FIRST_TO_LAST, words::track::WAITING];
        if let Some(label) = of_job.iter().find_map(|what| track.name.strip_suffix(what)) {
            return self.labels.get(label).map_or(&[], Vec::as_slice);
        }
        let siblings = self.tracks.get(&track.parent).map_or(&[][..], Vec::as_slice);
        let of_name =
            |begun: &str| siblings.iter().filter(|(name, _)| begun.starts_with(name)).max_by_key(|it| it.0.len());
        let counted = || of_name(track.name.split_once(" · ")?.1);
        match of_name(&track.name).or_else(counted) {
            Some(&(_, of)) if of.len() == 1 => of,
            _ => &[],
        }
    }
}

/// Chooses what a filter keeps.
#[derive(Default)]
pub(super) struct Chooser {
    filter: Filter,
    tracks: Numbered<OnTrack>,
    /// The last value of each counter before the window, and when it was counted.
    values: FxHashMap<u64, (HostNs, usize, u64)>,
    /// Tracks that had an instant of the recording itself.
    begun: FxHashSet<u64>,
    /// Communicators that were introduced, by the process's track of them.
    introduced: FxHashSet<(u64, u64)>,
    choice: Choice,
    /// The number of the next event.
    number: usize,
    /// The last times on the sequences of the current chunk.
    times: Numbered<HostNs>,
}

#[derive(Default)]
struct OnTrack {
    scope: Scope,
    /// Its open slices, outermost first.
    open: Vec<Held>,
}

/// What is remembered about an event.
struct Held {
    number: usize,
    sequence: u64,
    track: u64,
    begin: HostNs,
    flow: Option<u64>,
    more_flows: Vec<u64>,
    /// It is a transfer, or a part of one, and transfers are left out.
    is_left_out: bool,
    /// Only its time can exclude it.
    is_wanted: bool,
    /// A slice inside of it is kept.
    holds_kept: bool,
}

impl Chooser {
    /// For a filter that excludes no track.
    pub(super) fn of_all_tracks(filter: Filter) -> Chooser {
        Chooser::new(filter, Numbered::default())
    }

    fn new(filter: Filter, tracks: Numbered<OnTrack>) -> Chooser {
        Chooser { filter, tracks, ..Chooser::default() }
    }

    /// What it is for.
    pub(super) fn filter(&self) -> &Filter {
        &self.filter
    }

    /// The tracks that have events.
    pub(super) fn tracks(&self) -> impl Iterator<Item = u64> {
        self.tracks.iter().map(|(uuid, _)| *uuid)
    }

    /// Takes the next packet of the file.
    pub(super) fn packet(&mut self, packet: &Packet<'_>) {
        let Packet { at, is_packed, .. } = *packet;
        let is_in = |chunk: &Chunk| chunk.at == at || !chunk.is_packed && !is_packed;
        if !self.choice.chunks.last().is_some_and(is_in) {
            self.end_chunk();
            // Before the first one, something may have been that was not taken.
            let (first, is_general) = (self.number, self.choice.chunks.is_empty());
            self.choice.chunks.push(Chunk { at, is_packed, first, is_general, undecided: None, times: Vec::new() });
        }
        if let (Some(time), true) = (packet.time, packet.is_delta) {
            *self.times.entry(packet.sequence) = time;
        }
        let mut is_general = packet.has_state;
        match (&packet.event, packet.time) {
            (Some(event), time) => {
                self.event((self.number, packet.sequence), event, time.unwrap_or_default());
                self.number += 1;
            }
            (None, Some(_)) if self.filter.leaves_out(packet) => {}
            // For these, only the window decides, when they are copied.
            (None, Some(time)) => {
                self.choice.sequences.insert(packet.sequence);
                if let Some(chunk) = self.choice.chunks.last_mut() {
                    let (first, last) = chunk.undecided.unwrap_or((time, time));
                    chunk.undecided = Some((first.min(time), last.max(time)));
                }
            }
            (None, None) => is_general = true,
        }
        if is_general && let Some(chunk) = self.choice.chunks.last_mut() {
            chunk.is_general = true;
        }
    }

    fn end_chunk(&mut self) {
        let times = std::mem::take(&mut self.times).into_iter().collect();
        if let Some(chunk) = self.choice.chunks.last_mut() {
            chunk.times = times;
        }
    }

    fn event(&mut self, (number, sequence): (usize, u64), event: &Event<'_>, time: HostNs) {
        let Chooser { filter, tracks, values, choice, .. } = self;
        let track = tracks.entry(event.track);
        if track.scope == Scope::Left {
            return;
        }
        if event.kind == kind::TYPE_SLICE_END {
            if let Some(slice) = track.open.pop() {
                choice.close(filter, slice, &mut track.open, Some((time, (number, sequence), event)));
            }
            return;
        }
        let around = track.open.last();
        let is_left_out = filter.no_steps
            && (event.category == Some(Category::Net)
                || event.category == Some(Category::Proxy) && event.arg(nccl::STEP).is_some())
            || around.is_some_and(|around| around.is_left_out);
        let wanted = filter.communicators.as_ref();
        let is_wanted = !is_left_out
            && match (wanted.and_then(|wanted| Some((wanted, event.uint(nccl::COMM)?))), around) {
                (Some((wanted, hash)), _) => wanted.contains(&hash),
                (None, Some(around)) => around.is_wanted,
                (None, None) => track.scope == Scope::Wanted,
            };
        // What begins after the window is not kept.
        let mut flows = event.flows();
        let flow = if time <= filter.end { flows.next() } else { None };
        let held = Held {
            number,
            sequence,
            track: event.track,
            begin: time,
            flow,
            more_flows: if flow.is_some() { flows.collect() } else { Vec::new() },
            is_left_out,
            is_wanted,
            holds_kept: false,
        };
        let inside = (filter.begin..=filter.end).contains(&time);
        match event.kind {
            kind::TYPE_SLICE_BEGIN => track.open.push(held),
            kind::TYPE_COUNTER if !is_wanted => {}
            kind::TYPE_COUNTER if time < filter.begin => {
                let last = values.entry(event.track).or_insert((time, number, sequence));
                if time >= last.0 {
                    *last = (time, number, sequence);
                }
            }
            kind::TYPE_COUNTER => {
                if inside {
                    choice.keep(&held);
                }
            }
            _ => {
                if inside
                    && is_wanted
                    && let Some(around) = track.open.last_mut()
                {
                    around.holds_kept = true;
                }
                let is_lasting = self.is_lasting(event);
                if is_wanted && (inside || is_lasting) {
                    self.choice.keep(&held);
                }
            }
        }
    }

    /// Whether what an instant says holds from then on, or for the whole recording.
    fn is_lasting(&mut self, event: &Event<'_>) -> bool {
        let is_first = event.category == Some(Category::Ncclscope) && self.begun.insert(event.track);
        let [interface, ranks, comm, recorded, uuid] =
            event.uints([nccl::INTERFACE, nccl::RANKS, nccl::COMM, nccl::RECORDED, nccl::UUID]);
        // Other tools do not know an interface version.
        let introduces = comm.filter(|_| interface.or(ranks).is_some());
        let introduces = introduces.is_some_and(|hash| self.introduced.insert((event.track, hash)));
        is_first || introduces || recorded.or(uuid).is_some()
    }

    /// What is kept. At the end of the file, open slices stay open, and the counters' values are
    /// known.
    pub(super) fn done(mut self, survey: &Survey) -> Choice {
        self.end_chunk();
        let mut choice = self.choice;
        for (_, mut track) in self.tracks.into_iter() {
            while let Some(slice) = track.open.pop() {
                choice.close(&self.filter, slice, &mut track.open, None);
            }
        }
        for (track, (_, number, sequence)) in self.values {
            choice.counters.insert(number);
            choice.keep_event((number, sequence), track, std::iter::empty());
        }
        choice.add_parents(survey);
        choice
    }
}
