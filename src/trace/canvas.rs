//! The shared state for drawing: the lanes, the arguments of the current event, and the processes
//! of the trace.

use super::args::Args;
use super::lanes::{Ended, FamilyId, Lanes, Look, Placing};
use super::processes::{ProcessInfo, Processes};
use super::words::Category;
use super::writer::{Clocks, Name, Track, Writer};
use crate::model::ids::{Handle, ProcessTag};
use crate::model::time::HostNs;
use crate::summary::{Facts, Summary};

/// Lanes for slices that rarely overlap.
pub(super) const LANES: usize = 32;
/// How many things of one kind get tracks of their own. The rest share one family, so that the
/// viewer stays usable.
pub(super) const FAMILIES: usize = 1024;

pub(super) struct Canvas {
    pub(super) lanes: Lanes,
    /// The arguments of the event that is drawn next.
    pub(super) args: Args,
    pub(super) processes: Processes,
    /// The totals of what is drawn.
    pub(super) summary: Summary,
    /// The file is full.
    pub(super) is_full: bool,
}

impl Canvas {
    pub(super) fn new(tag: ProcessTag, clocks: Clocks, process: &ProcessInfo) -> Canvas {
        let mut writer = Writer::new(tag, clocks);
        let processes = Processes::new(&mut writer, process);
        let mut summary = Summary::new();
        summary.process(&process.name);
        Canvas { lanes: Lanes::new(writer), args: Args::new(), processes, summary, is_full: false }
    }

    /// Adds up the arguments of the event that was just drawn, or is drawn next.
    pub(super) fn add_up<T>(&mut self, add: impl FnOnce(&mut Summary, &Facts<'_>) -> T) -> Option<T> {
        let Canvas { summary, args, .. } = self;
        (!summary.is_off()).then(|| add(summary, &Facts::of(args.bytes())))
    }

    /// Facts for the viewer's overview page.
    pub(super) fn attributes(&mut self, attributes: &[(&str, &str)]) {
        attributes.iter().for_each(|(name, value)| self.summary.attribute(name, value));
        self.writer().attributes(attributes);
    }

    pub(super) fn writer(&mut self) -> &mut Writer {
        &mut self.lanes.writer
    }

    /// Draws what a full file has room for, too.
    pub(super) fn aloud<T>(&mut self, draw: impl FnOnce(&mut Canvas) -> T) -> T {
        let before = self.writer().speak(true);
        let made = draw(self);
        self.writer().speak(before);
        made
    }

    /// The group of a GPU's communicators. Where the GPU is unknown, the group is in the process
    /// itself.
    pub(super) fn comms_group(&mut self, device: Option<u32>) -> Option<Track> {
        self.processes.comms(&mut self.lanes.writer, device)
    }

    /// The group of a GPU's streams.
    pub(super) fn gpu_group(&mut self, device: Option<u32>) -> Option<Track> {
        self.processes.gpu(&mut self.lanes.writer, device)
    }

    /// A group of the process that belongs to no GPU.
    pub(super) fn group(&mut self, name: &str, rank: u32, description: &str) -> Option<Track> {
        self.processes.group(&mut self.lanes.writer, name, rank, description)
    }

    /// A family for one of many things: with `own` lanes, or, without a number, one that many
    /// share.
    pub(super) fn family(&mut self, name: String, place: Placing, own: Option<usize>) -> FamilyId {
        match own {
            Some(lanes) => self.lanes.family(name, place, lanes),
            None => self.lanes.shared_family(name, place),
        }
    }

    /// Begins a slice: see [`Lanes::begin`].
    pub(super) fn begin(&mut self, family: FamilyId, id: Handle, time: HostNs, look: &Look<'_>) -> bool {
        self.lanes.begin(family, id, time, look, &mut self.args)
    }

    /// Ends a slice with what [`Canvas::args`] has.
    pub(super) fn end(&mut self, id: Handle, time: HostNs) -> Option<Ended> {
        self.lanes.end(id, time, &self.args)
    }

    /// Ends all slices that are open in these families with what [`Canvas::args`] has.
    pub(super) fn end_all(&mut self, families: &[FamilyId], time: HostNs) -> Vec<Handle> {
        self.lanes.end_all(families, time, &self.args)
    }

    /// A slice whose end is known: see [`Lanes::whole`].
    pub(super) fn whole(&mut self, family: FamilyId, (start, end): (HostNs, HostNs), look: &Look<'_>) -> bool {
        self.lanes.whole(family, start, end, look, &mut self.args)
    }

    /// A slice whose end is known, around others: see [`Lanes::nested`].
    pub(super) fn nested(&mut self, family: FamilyId, (start, end): (HostNs, HostNs), look: &Look<'_>) {
        self.lanes.nested(family, start, end, look, &mut self.args);
    }

    /// An instant that looks like a slice: see [`Lanes::mark`].
    pub(super) fn mark(&mut self, family: FamilyId, time: HostNs, look: &Look<'_>) {
        self.lanes.mark(family, time, look, &self.args);
    }

    pub(super) fn instant(&mut self, family: FamilyId, time: HostNs, category: Category, name: &dyn Name) {
        self.lanes.instant(family, time, category, name, &self.args);
    }
}
