//! Slices that may overlap, spread over lanes: tracks with the same name, which the viewer draws as
//! one.
//!
//! On a lane, slices follow each other and never overlap: Perfetto would silently draw wrong
//! durations. A slice may hold phases, one after the other. Every end lies at or after its begin,
//! and every begin at or after the previous end.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::args::Args;
use super::fields::nccl;
use super::names::Fixed;
use super::words::{Category, GIVEN_UP};
use super::writer::{Extra, Form, Name, Place, Sequence, Track, Writer};
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::summary::{Transfer, Wait};

/// The lanes of a trace, and the writer they draw with.
pub(super) struct Lanes {
    pub(super) writer: Writer,
    families: Vec<Family>,
    /// Where each open slice is.
    open: FxHashMap<Handle, Placed>,
    /// What the open transfers of the proxy waited for. They are few among the open slices.
    transfers: FxHashMap<Handle, Transfer>,
    /// Slices for which there was no lane.
    pub(super) missing: u64,
    /// Slices on shared tracks, of things that have no tracks of their own.
    pub(super) sharing: u64,
    /// Records were dropped: a slice may wait for an end that is lost.
    pub(super) lossy: bool,
    /// Transfers of the proxy that were given up for that reason, or with their communicator.
    pub(super) given_up: u64,
}

/// Tracks with the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FamilyId(usize);

impl FamilyId {
    /// Its number, from 0.
    pub(super) fn number(self) -> usize {
        self.0
    }
}

struct Family {
    name: String,
    place: Placing,
    /// Made with the first lane.
    sequence: Option<Sequence>,
    lanes: Vec<Lane>,
    max: usize,
    /// Additional lanes, for slices that found none of the others free.
    further: Vec<Further>,
    /// It is shared by things that have no tracks of their own.
    shared: bool,
}

/// A lane on which slices with equal times nest. Elsewhere unrelated slices never nest; here they
/// do, because otherwise they would not be drawn at all: a group may hand over hundreds of
/// operations at once, and its kernel carries all of them for as long as it runs.
struct Further {
    track: Track,
    /// The begin and end of the last slices on it, and how many there are.
    span: (HostNs, HostNs),
    depth: u32,
}

/// How deep slices may nest. Perfetto drops slices deeper than 512.
const DEPTH: u32 = 256;
/// Additional lanes per family. They hold a kernel of 4096 operations, the most that are
/// remembered.
const FURTHER: usize = 16;

/// Where a family's tracks belong.
#[derive(Clone, Copy)]
pub(super) struct Placing {
    pub(super) parent: Option<Track>,
    pub(super) rank: u32,
    pub(super) description: &'static str,
}

/// How a slice looks, apart from its arguments.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) category: Category,
    pub(super) name: &'a dyn Name,
    /// A number that all slices of one operation share, and with it their colour.
    pub(super) correlation: Option<u64>,
    /// Its arrows: see [`super::flows`].
    pub(super) flows: &'a [u64],
    /// The number of the peer of the proxy's to which it transfers.
    pub(super) transfers_to: Option<u32>,
    /// What it does first, and until when, for a slice whose end is known.
    pub(super) phase: Option<(&'static str, HostNs)>,
}

impl<'a> Look<'a> {
    pub(super) fn new(category: Category, name: &'a dyn Name) -> Look<'a> {
        Look { category, name, correlation: None, flows: &[], transfers_to: None, phase: None }
    }

    pub(super) fn of(self, correlation: Option<u64>) -> Look<'a> {
        Look { correlation, ..self }
    }

    pub(super) fn with(self, flows: &'a [u64]) -> Look<'a> {
        Look { flows, ..self }
    }

    fn extra(&self, args: &'a Args) -> Extra<'a> {
        Extra { args: args.bytes(), correlation: self.correlation, flows: self.flows }
    }
}

struct Lane {
    track: Track,
    /// The time of its last event.
    last: HostNs,
    /// The slice that is open on it.
    open: Option<Handle>,
    /// What was drawn on it, for slices that nest. Few lanes have any.
    nested: Option<Box<Nested>>,
}

/// Slices that were drawn on a lane in order of their ends.
#[derive(Default)]
struct Nested {
    /// The outermost so far.
    outermost: VecDeque<(HostNs, HostNs)>,
    /// The end of the slices that are no longer remembered.
    closed: HostNs,
}

/// How many outermost slices of a lane are remembered. Nothing is drawn before the older ones'
/// ends.
const OUTERMOST: usize = 64;

impl Lane {
    /// Whether a slice crosses none that was drawn. Perfetto orders events of equal time as they
    /// were written. So a slice that begins together with an inner one, but was written after it,
    /// would be drawn inside it.
    fn has_room_around(&self, start: HostNs, end: HostNs) -> bool {
        let Some(nested) = &self.nested else { return true };
        let before = nested.outermost.iter().rfind(|(begin, _)| *begin <= start);
        end >= self.last && start >= before.map_or(nested.closed, |(_, end)| *end)
    }

    fn enclose(&mut self, start: HostNs, end: HostNs) {
        self.last = end;
        let Nested { outermost, closed } = &mut **self.nested.get_or_insert_default();
        while outermost.back().is_some_and(|(begin, _)| *begin >= start) {
            outermost.pop_back();
        }
        outermost.push_back((start, end));
        if outermost.len() > OUTERMOST
            && let Some((_, end)) = outermost.pop_front()
        {
            *closed = end;
        }
    }
}

#[derive(Clone, Copy)]
struct Placed {
    family: FamilyId,
    lane: usize,
    /// A phase is open inside it.
    phase: bool,
    /// After which restart of the trace it was begun.
    restart: u32,
}

/// A slice that has ended.
pub(super) struct Ended {
    /// When it ends as drawn.
    pub(super) time: HostNs,
    /// What it waited for, if it is a transfer of the proxy's.
    pub(super) transfer: Option<Transfer>,
}

/// From this many tracks in a file on, new things share tracks: the viewer gets slow with more than
/// a few thousand.
const OWN_TRACKS: u32 = 3_000;
/// From this many tracks on there are no further lanes either, except for shared families.
const LANES_UNTIL: u32 = 4_000;
/// Lanes of a shared family.
const SHARED_LANES: usize = 64;

impl Lanes {
    pub(super) fn new(writer: Writer) -> Lanes {
        Lanes {
            writer,
            families: Vec::new(),
            open: FxHashMap::default(),
            missing: 0,
            sharing: 0,
            lossy: false,
            transfers: FxHashMap::default(),
            given_up: 0,
        }
    }

    /// Whether new things may have tracks of their own.
    pub(super) fn is_roomy(&self) -> bool {
        self.writer.tracks() < OWN_TRACKS
    }

    /// A new family of at most `max` lanes. They are described when something is drawn on them.
    pub(super) fn family(&mut self, name: String, place: Placing, max: usize) -> FamilyId {
        self.families.push(Family {
            name,
            place,
            sequence: None,
            lanes: Vec::new(),
            max,
            further: Vec::new(),
            shared: false,
        });
        FamilyId(self.families.len() - 1)
    }

    /// A family shared by things that have none of their own; slices on it are counted.
    pub(super) fn shared_family(&mut self, name: String, place: Placing) -> FamilyId {
        let family = self.family(name, place, SHARED_LANES);
        self.families[family.0].shared = true;
        family
    }

    /// Whether a family is shared.
    pub(super) fn is_shared(&self, family: FamilyId) -> bool {
        self.families[family.0].shared
    }

    /// Begins a slice in a free lane. Without one it becomes an instant, which says so, its end is
    /// ignored, and the result is false.
    pub(super) fn begin(
        &mut self,
        family: FamilyId,
        id: Handle,
        time: HostNs,
        look: &Look<'_>,
        args: &mut Args,
    ) -> bool {
        self.sharing += u64::from(self.is_shared(family));
        let Some(lane) = self.free_lane(family, time) else {
            self.missing += 1;
            args.text(nccl::NOTE, "no free lane: begin only");
            if !self.further(family, (time, time), look, args) {
                self.instant(family, time, look.category, look.name, args);
            }
            return false;
        };
        self.families[family.0].lanes[lane].open = Some(id);
        self.open.insert(id, Placed { family, lane, phase: false, restart: self.writer.restarts() });
        if let Some(peer) = look.transfers_to {
            self.transfers.insert(id, Transfer::new(peer, time));
        }
        if let Some((sequence, track, time)) = self.lane_at(family, lane, time) {
            self.writer.begin(sequence, track, time, look.category, look.name, &look.extra(args));
        }
        true
    }

    /// Whether a slice is open that was begun before the last restart.
    pub(super) fn has_old(&self) -> bool {
        self.open.values().any(|placed| placed.restart != self.writer.restarts())
    }

    /// Transfers of the proxy that have begun and not ended.
    pub(super) fn transfers(&self) -> u64 {
        self.transfers.len() as u64
    }

    /// A slice whose end is known, in a lane that is free then. Without one it is nested in slices
    /// with equal times. Failing that too, it becomes an instant, which says so, and the result is
    /// false.
    pub(super) fn whole(
        &mut self,
        family: FamilyId,
        start: HostNs,
        end: HostNs,
        look: &Look<'_>,
        args: &mut Args,
    ) -> bool {
        self.sharing += u64::from(self.is_shared(family));
        let Some(lane) = self.free_lane(family, start) else {
            let is_drawn = self.further(family, (start, end), look, args);
            if !is_drawn {
                self.missing += 1;
                args.text(nccl::NOTE, "no free lane: begin only");
                self.instant(family, start, look.category, look.name, args);
            }
            return is_drawn;
        };
        if let Some((sequence, track, time)) = self.lane_at(family, lane, start) {
            self.writer.begin(sequence, track, time, look.category, look.name, &look.extra(args));
            if let Some((name, _)) = look.phase {
                self.writer.begin(sequence, track, time, Category::ProxyWait, &Fixed(name), &Extra::default());
            }
        }
        if let Some((_, until)) = look.phase
            && let Some((sequence, track, time)) = self.lane_at(family, lane, until.min(end))
        {
            self.writer.end(sequence, track, time, &Extra::default());
        }
        if let Some((sequence, track, time)) = self.lane_at(family, lane, end) {
            self.writer.end(sequence, track, time, &Extra::default());
        }
        true
    }

    /// Draws a slice that found no free lane on an additional one: after all slices there, or
    /// nested in the last ones if their times are equal. Returns false if there is no such lane.
    fn further(&mut self, family: FamilyId, span: (HostNs, HostNs), look: &Look<'_>, args: &Args) -> bool {
        let fits = |lane: &Further| lane.span.1 < span.0 || lane.span == span && lane.depth < DEPTH;
        let found = self.families[family.0].further.iter().position(fits);
        let found = found.or_else(|| self.new_further(family, span.0));
        let Family { sequence, further, .. } = &mut self.families[family.0];
        let (Some(lane), Some(sequence)) = (found.and_then(|at| further.get_mut(at)), *sequence) else {
            return false;
        };
        lane.depth = if lane.span == span { lane.depth + 1 } else { 1 };
        lane.span = span;
        self.writer.begin(sequence, lane.track, span.0, look.category, look.name, &look.extra(args));
        self.writer.end(sequence, lane.track, span.1, &Extra::default());
        true
    }

    fn new_further(&mut self, id: FamilyId, time: HostNs) -> Option<usize> {
        let family = &mut self.families[id.0];
        let crowded = !family.further.is_empty() && !family.shared && self.writer.tracks() >= LANES_UNTIL;
        if family.further.len() >= FURTHER || crowded {
            return None;
        }
        let Placing { parent, rank, description } = family.place;
        let place = Place { parent, rank: Some(rank), description, ..Place::default() };
        let track = self.writer.track(Form::Plain { name: &family.name }, place)?;
        if family.sequence.is_none() {
            family.sequence = Some(self.writer.sequence(track, time));
        }
        family.further.push(Further { track, span: (HostNs(0), HostNs(0)), depth: 0 });
        Some(family.further.len() - 1)
    }

    /// A slice whose end is known and which may contain slices drawn before it, in a lane where it
    /// crosses none. Without one it becomes an instant, which says so. All slices of a family are
    /// drawn this way, or none.
    pub(super) fn nested(&mut self, family: FamilyId, start: HostNs, end: HostNs, look: &Look<'_>, args: &mut Args) {
        self.sharing += u64::from(self.is_shared(family));
        let lanes = &self.families[family.0].lanes;
        let free = lanes.iter().position(|lane| lane.has_room_around(start, end));
        let lane = match free {
            Some(lane) => lane,
            None if self.new_lane(family, start) => self.families[family.0].lanes.len() - 1,
            None => {
                self.missing += 1;
                args.text(nccl::NOTE, "no free lane: begin only");
                return self.instant(family, start, look.category, look.name, args);
            }
        };
        let Family { sequence, lanes, .. } = &mut self.families[family.0];
        let (Some(sequence), Some(lane)) = (*sequence, lanes.get_mut(lane)) else { return };
        lane.enclose(start, end);
        self.writer.begin(sequence, lane.track, start, look.category, look.name, &look.extra(args));
        self.writer.end(sequence, lane.track, end, &Extra::default());
    }

    /// Ends a slice and the phase inside it, if it is open.
    pub(super) fn end(&mut self, id: Handle, time: HostNs, args: &Args) -> Option<Ended> {
        self.end_with(id, time, args, &[])
    }

    fn end_with(&mut self, id: Handle, time: HostNs, args: &Args, of_phase: &[u8]) -> Option<Ended> {
        let placed = self.open.remove(&id)?;
        let transfer = self.transfers.remove(&id);
        let (sequence, track, time) = self.lane_at(placed.family, placed.lane, time)?;
        if placed.phase {
            self.writer.end(sequence, track, time, &Extra { args: of_phase, ..Extra::default() });
        }
        let extra = Extra { args: args.bytes(), ..Extra::default() };
        self.writer.end(sequence, track, time, &extra);
        self.families[placed.family.0].lanes[placed.lane].open = None;
        Some(Ended { time, transfer })
    }

    /// Ends all slices that are open in these families, and the phases inside them. Returns which
    /// they were.
    pub(super) fn end_all(&mut self, families: &[FamilyId], time: HostNs, args: &Args) -> Vec<Handle> {
        if families.is_empty() {
            return Vec::new();
        }
        let is_in = |placed: &Placed| families.contains(&placed.family);
        let mut ids: Vec<_> = self.open.iter().filter(|(_, placed)| is_in(placed)).map(|(id, _)| *id).collect();
        // A fixed order, whatever the order of the map.
        ids.sort_unstable();
        for id in &ids {
            let ended = self.end_with(*id, time, args, args.bytes());
            self.given_up += u64::from(ended.is_some_and(|ended| ended.transfer.is_some()));
        }
        ids
    }

    /// Begins the next phase of an open slice: what it waits for, and its bytes, if that is known.
    pub(super) fn phase(
        &mut self,
        id: Handle,
        time: HostNs,
        name: &'static str,
        (wait, bytes): (Option<Wait>, Option<u64>),
        args: &Args,
    ) {
        let Lanes { open, families, transfers, .. } = self;
        let Some(placed) = open.get_mut(&id) else { return };
        let (family, lane, first) = (placed.family, placed.lane, !std::mem::replace(&mut placed.phase, true));
        if let Some(transfer) = transfers.get_mut(&id) {
            let drawn = families[family.0].lanes.get(lane).map_or(time, |lane| lane.last.max(time));
            transfer.waits(drawn, wait, bytes);
        }
        let Some((sequence, track, time)) = self.lane_at(family, lane, time) else { return };
        if !first {
            self.writer.end(sequence, track, time, &Extra::default());
        }
        let extra = Extra { args: args.bytes(), ..Extra::default() };
        self.writer.begin(sequence, track, time, Category::Proxy, &Fixed(name), &extra);
    }

    /// An instant on a family's first lane. It takes no room, so it may lie anywhere and keeps its
    /// own time.
    pub(super) fn instant(&mut self, family: FamilyId, time: HostNs, category: Category, name: &dyn Name, args: &Args) {
        self.mark(family, time, &Look::new(category, name), args);
    }

    /// The same with all that a slice has.
    pub(super) fn mark(&mut self, family: FamilyId, time: HostNs, look: &Look<'_>, args: &Args) {
        if !self.families[family.0].lanes.is_empty() || self.new_lane(family, time) {
            self.mark_on(family, 0, time, look, args);
        }
    }

    /// An instant of the network inside an open slice.
    pub(super) fn instant_inside(&mut self, id: Handle, time: HostNs, name: &dyn Name, args: &Args) {
        if let Some(&Placed { family, lane, .. }) = self.open.get(&id) {
            self.mark_on(family, lane, time, &Look::new(Category::Net, name), args);
        }
    }

    /// Opens a slice on the only lane of a family whose slices nest, as states do.
    pub(super) fn push(&mut self, family: FamilyId, time: HostNs, name: &'static str, args: &Args) {
        if let Some((sequence, track, time)) = self.lane_at(family, 0, time) {
            let extra = Extra { args: args.bytes(), ..Extra::default() };
            self.writer.begin(sequence, track, time, Category::Proxy, &Fixed(name), &extra);
        }
    }

    /// Ends the innermost slice that [`Lanes::push`] opened.
    pub(super) fn pop(&mut self, family: FamilyId, time: HostNs, args: &[u8]) {
        if let Some((sequence, track, time)) = self.lane_at(family, 0, time) {
            self.writer.end(sequence, track, time, &Extra { args, ..Extra::default() });
        }
    }

    fn mark_on(&mut self, family: FamilyId, lane: usize, time: HostNs, look: &Look<'_>, args: &Args) {
        let family = &self.families[family.0];
        if let (Some(sequence), Some(lane)) = (family.sequence, family.lanes.get(lane)) {
            self.writer.instant(sequence, lane.track, time, look.category, look.name, &look.extra(args));
        }
    }

    /// A lane with nothing open and nothing after `time`.
    fn free_lane(&mut self, family: FamilyId, time: HostNs) -> Option<usize> {
        let lanes = &self.families[family.0].lanes;
        if let Some(lane) = lanes.iter().position(|lane| lane.open.is_none() && lane.last <= time) {
            return Some(lane);
        }
        let lane = lanes.len();
        if self.new_lane(family, time) {
            return Some(lane);
        }
        self.lossy.then(|| self.free_by_force(family, time)).flatten()
    }

    /// Where records were dropped, a slice may wait for a stop that is lost, and would hold its
    /// lane for ever. The slice that has been quiet longest is given up.
    fn free_by_force(&mut self, family: FamilyId, time: HostNs) -> Option<usize> {
        let lanes = &self.families[family.0].lanes;
        let (lane, quiet) = lanes.iter().enumerate().min_by_key(|(_, lane)| lane.last)?;
        let id = quiet.open.filter(|_| quiet.last <= time)?;
        let mut args = Args::new();
        args.text(nccl::DOUBT, GIVEN_UP);
        let ended = self.end(id, time, &args);
        self.given_up += u64::from(ended.is_some_and(|ended| ended.transfer.is_some()));
        Some(lane)
    }

    fn new_lane(&mut self, id: FamilyId, time: HostNs) -> bool {
        let family = &mut self.families[id.0];
        let crowded = !family.lanes.is_empty() && !family.shared && self.writer.tracks() >= LANES_UNTIL;
        if family.lanes.len() >= family.max || crowded {
            return false;
        }
        let Placing { parent, rank, description } = family.place;
        let place = Place { parent, rank: Some(rank), description, ..Place::default() };
        let Some(track) = self.writer.track(Form::Plain { name: &family.name }, place) else { return false };
        if family.sequence.is_none() {
            family.sequence = Some(self.writer.sequence(track, time));
        }
        family.lanes.push(Lane { track, last: HostNs(0), open: None, nested: None });
        true
    }

    /// The lane for an event at `time`, or as soon after as the order of the lane allows.
    fn lane_at(&mut self, id: FamilyId, lane: usize, time: HostNs) -> Option<(Sequence, Track, HostNs)> {
        if self.families[id.0].lanes.is_empty() && !self.new_lane(id, time) {
            return None;
        }
        let family = &mut self.families[id.0];
        let sequence = family.sequence?;
        let lane = family.lanes.get_mut(lane)?;
        lane.last = lane.last.max(time);
        Some((sequence, lane.track, lane.last))
    }
}
