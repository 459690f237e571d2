//! A file's events, passed to the summaries of its processes in the order in which they were drawn.

use std::path::Path;

use rustc_hash::FxHashMap;

use crate::model::time::HostNs;
use crate::summary::{Facts, Row, Run, Summary, Transfer, Wait};
use crate::trace::fields::track_event::r#type as kind;
use crate::trace::reader::{self, Event, Extent, Packet};
use crate::trace::words::{Category, attribute, instant, track};
use crate::trace::writer::{TRACK_BITS, tag_of_sequence};

/// The totals of the processes of a file.
#[derive(Default)]
pub(super) struct Load {
    /// In the order of the file; `None` for processes that are no recording.
    pub(super) recorded: Vec<Option<Summary>>,
    processes: Vec<Summary>,
    /// Their tags, and their ids on their host.
    pub(super) tags: Vec<u64>,
    pub(super) pids: Vec<Option<i32>>,
    places: FxHashMap<u64, usize>,
    tracks: FxHashMap<u64, Track>,
    /// Peers by process, parent and name of the tracks of their operations.
    peers: FxHashMap<(u64, String), u32>,
    /// The tags of what a merge drew.
    merged: Vec<u64>,
    /// The first time of anything: from there the viewer counts.
    pub(super) first: Option<HostNs>,
    /// The kernel that ended last: when it began, and the operation's mark with the replay.
    ended: (HostNs, Option<(u64, u64)>),
}

/// A kernel whose duration was added up.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Lasted {
    /// Its process, in the order of the file, and the row there.
    pub(in crate::cli) process: usize,
    pub(in crate::cli) row: Row,
    pub(in crate::cli) begin: HostNs,
    pub(in crate::cli) ns: u64,
    /// What identifies its operation, the same on all ranks: its mark, and the replay.
    pub(in crate::cli) mark: Option<(u64, u64)>,
}

#[derive(Default)]
struct Track {
    parent: u64,
    name: String,
    open: Vec<Open>,
}

/// An open slice.
enum Open {
    Call(u32, HostNs),
    /// With its mark and replay.
    Run(Run, HostNs, Option<(u64, u64)>),
    Transfer(Transfer),
    Other,
}

impl Load {
    /// Reads a file as far as it can be read. `each` gets each kernel whose duration was added up.
    pub(super) fn read(path: &Path, mut each: impl FnMut(Lasted)) -> (Load, Result<Extent, reader::Error>) {
        let mut load = Load::default();
        let result = reader::read_file(path, |packet| {
            if let Some(process) = load.take(packet)
                && let Some((row, ns)) = load.processes[process].take_last()
            {
                let (begin, mark) = load.ended;
                each(Lasted { process, row, begin, ns, mark });
            }
            Ok(())
        });
        load.finish();
        (load, result)
    }

    /// Takes a packet; returns its process.
    fn take(&mut self, packet: &Packet<'_>) -> Option<usize> {
        self.first = self.first.into_iter().chain(packet.time).min();
        let Some(event) = &packet.event else {
            self.descriptor(packet);
            self.attributes(packet);
            return None;
        };
        let place = self.process(event.track >> TRACK_BITS);
        let time = packet.time.unwrap_or_default();
        match event.kind {
            kind::TYPE_SLICE_BEGIN => self.begin(place, event, time),
            kind::TYPE_SLICE_END => self.end(place, event, time),
            kind::TYPE_INSTANT => self.instant(place, event, time),
            _ => {}
        }
        Some(place)
    }

    /// The place of a process.
    fn process(&mut self, tag: u64) -> usize {
        *self.places.entry(tag).or_insert_with(|| {
            self.processes.push(Summary::new());
            self.tags.push(tag);
            self.pids.push(None);
            self.tags.len() - 1
        })
    }

    fn descriptor(&mut self, packet: &Packet<'_>) {
        let Some(descriptor) = packet.track_descriptor() else { return };
        let uuid = descriptor.uuid();
        // The first name counts: a process's further GPUs come after it.
        if let Some(process) = &descriptor.process {
            let place = self.process(uuid >> TRACK_BITS);
            self.processes[place].process(process.process_name());
            self.pids[place].get_or_insert(process.own_pid());
        }
        let track = self.tracks.entry(uuid).or_default();
        track.parent = descriptor.parent_uuid();
        descriptor.name().clone_into(&mut track.name);
    }

    fn attributes(&mut self, packet: &Packet<'_>) {
        let tag = tag_of_sequence(packet.sequence);
        for (key, value) in packet.attributes() {
            if key == attribute::MERGED {
                self.merged.extend(value.parse::<u64>());
            }
            let place = self.process(tag);
            self.processes[place].attribute(&key, &value);
        }
    }

    fn begin(&mut self, place: usize, event: &Event<'_>, time: HostNs) {
        let Load { processes, tracks, peers, .. } = self;
        let summary = &mut processes[place];
        let track = tracks.entry(event.track).or_default();
        let facts = || Facts::of(event.args());
        let open = match event.category {
            Some(Category::Api) => {
                let facts = facts();
                // Calls of threads that share a track are distinguished by their thread.
                let call = if facts.tid.is_none() { summary.call(&facts) } else { None };
                call.map_or(Open::Other, |call| Open::Call(call, time))
            }
            Some(Category::Operation) => {
                hand_over(summary, &facts());
                Open::Other
            }
            Some(Category::Run) => {
                let facts = facts();
                Open::Run(summary.run(&facts), time, event.correlation.map(|mark| (mark, facts.replay.unwrap_or(0))))
            }
            Some(Category::Proxy) => {
                if let Some(Open::Transfer(transfer)) = track.open.last_mut() {
                    transfer.waits(time, Wait::named(event.name), facts().bytes);
                    Open::Other
                } else {
                    let peer = peer(summary, track, peers, &facts());
                    peer.map_or(Open::Other, |peer| Open::Transfer(Transfer::new(peer, time)))
                }
            }
            Some(Category::Net) => {
                summary.network(&facts());
                Open::Other
            }
            _ => Open::Other,
        };
        track.open.push(open);
    }

    fn end(&mut self, place: usize, event: &Event<'_>, time: HostNs) {
        let Some(open) = self.tracks.get_mut(&event.track).and_then(|track| track.open.pop()) else { return };
        let summary = &mut self.processes[place];
        match open {
            // One that was cut has lost its end.
            Open::Call(call, begin) if Facts::of(event.args()).doubt.is_empty() => {
                summary.called(call, time.since(begin));
            }
            Open::Run(run, begin, mark) => {
                self.ended = (begin, mark);
                summary.ran(&run, begin, Some(time.since(begin)));
            }
            Open::Transfer(transfer) => match Facts::of(event.args()).is_given_up() {
                true => summary.not_transferred(),
                false => summary.transferred(transfer, time),
            },
            Open::Call(..) | Open::Other => {}
        }
    }

    fn instant(&mut self, place: usize, event: &Event<'_>, time: HostNs) {
        let summary = &mut self.processes[place];
        let facts = || Facts::of(event.args());
        match event.category {
            Some(Category::Operation) if event.name == instant::COMM_INIT => summary.comm_init(time, &facts()),
            // Slices that found no lane.
            Some(Category::Operation) => hand_over(summary, &facts()),
            Some(Category::Run) => {
                let run = summary.run(&facts());
                summary.ran(&run, time, None);
            }
            Some(Category::Net) if event.name == instant::NETWORK => summary.network(&facts()),
            Some(Category::Ncclscope) => summary.remark(time, event.name, event.args()),
            _ => {}
        }
    }

    fn finish(&mut self) {
        for (uuid, track) in &self.tracks {
            let Some(place) = self.places.get(&(uuid >> TRACK_BITS)) else { continue };
            for open in &track.open {
                if let Open::Transfer(_) = open {
                    self.processes[*place].not_transferred();
                }
            }
        }
        let processes = std::mem::take(&mut self.processes).into_iter().zip(&self.tags);
        // Tracks drawn by a merge are no recording, nor are tracks without a process.
        self.recorded = processes
            .map(|(summary, tag)| Some(summary).filter(|it| !self.merged.contains(tag) && it.process_name().is_some()))
            .collect();
    }
}

/// An operation is handed over; only then its thread is named.
fn hand_over(summary: &mut Summary, facts: &Facts<'_>) {
    if facts.tid.is_some() {
        summary.handed_over(facts);
    }
}

/// Notes an operation of the proxy's; for a transfer, returns the number of its peer.
fn peer(
    summary: &mut Summary,
    track: &Track,
    peers: &mut FxHashMap<(u64, String), u32>,
    facts: &Facts<'_>,
) -> Option<u32> {
    let is_send = |name: &str| name.contains(track::SEND.trim_end());
    if facts.step.is_some() {
        return match facts.peer.is_some() {
            true => Some(summary.peer(facts, is_send(&track.name))),
            false => peers.get(&(track.parent, track.name.strip_suffix(track::STEPS)?.to_owned())).copied(),
        };
    }
    if facts.steps.is_some() && facts.peer.is_some() {
        let peer = summary.peer(facts, is_send(&track.name));
        summary.proxy_operation(peer, facts.queued_ns);
        peers.insert((track.parent, track.name.clone()), peer);
    }
    None
}
