//! A first look through a trace: when it is, its tracks, processes, communicators and operations.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::events::{Event, Sequences};
use super::join;
use super::packets::{Extent, packets};
use super::wire::fields;
use crate::trace::fields::{
    nccl, process_descriptor, thread_descriptor, track_descriptor, track_event::r#type as kind,
};

/// What is found in one trace, or in several that are looked at as one.
#[derive(Default)]
pub(super) struct Survey {
    /// The first and the last time in it.
    pub(super) span: Option<(u64, u64)>,
    pub(super) slices: u64,
    pub(super) tracks: HashMap<u64, Track>,
    pub(super) communicators: BTreeMap<u64, Communicator>,
    /// Operations as the host handed them over, and NCCL's kernels: from when to when, in the order of the file. What
    /// has no end ends when it begins.
    pub(super) operations: Vec<(u64, u64)>,
    pub(super) kernels: Vec<(u64, u64)>,
    /// Operations, NCCL's kernels and the proxy's work on operations that have no end, in the order of their begins.
    pub(super) unfinished: Vec<Unfinished>,
    /// Records that were dropped.
    pub(super) dropped: u64,
    /// Bytes of the files that are trace.
    pub(super) extents: Vec<(PathBuf, Extent)>,
}

/// A track as it is described, and what lies on it.
#[derive(Default)]
pub(super) struct Track {
    pub(super) parent: Option<u64>,
    pub(super) name: String,
    /// The pid of the process that it stands for, or of the thread.
    pub(super) pid: Option<u64>,
    pub(super) is_process: bool,
    /// The file that described it.
    file: usize,
    /// Communicators that slices on it name.
    pub(super) communicators: Vec<u64>,
    /// Operations on it, their bytes, and how many of them are drawn while the GPU worked on them.
    pub(super) operations: u64,
    pub(super) bytes: u64,
    pub(super) runs: u64,
    open: Vec<(Open, Unfinished)>,
}

/// A slice that was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unfinished {
    pub(super) begin: u64,
    /// Its name and number, where it is the work on an operation.
    pub(super) name: String,
    pub(super) track: u64,
    /// That it has not ended is not known: only its end is not.
    pub(super) may_be_done: bool,
}

/// An open slice, by its place in the survey's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Operation(usize),
    Kernel(usize),
    /// The proxy's work on an operation.
    Proxy,
    /// An operation that is not known to be done.
    NotDone,
    Other,
}

/// What a trace says of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Communicator {
    pub(super) name: Option<String>,
    pub(super) ranks: Option<u64>,
}

impl Survey {
    /// Looks through traces.
    ///
    /// # Errors
    ///
    /// When one cannot be read, or is no trace.
    pub(super) fn of(paths: &[PathBuf]) -> Result<Survey, String> {
        let mut survey = Survey::default();
        for path in paths {
            super::must_be_trace(path)?;
            let extent = survey.look(path)?;
            survey.extents.push((path.clone(), extent));
        }
        let open = survey.tracks.values_mut().flat_map(|track| std::mem::take(&mut track.open));
        survey.unfinished = open.filter(|(open, _)| *open != Open::Other).map(|(_, slice)| slice).collect();
        survey.unfinished.sort_by(|one, other| (one.begin, &one.name).cmp(&(other.begin, &other.name)));
        Ok(survey)
    }

    /// Looks through one more trace.
    fn look(&mut self, path: &Path) -> Result<Extent, String> {
        let mut sequences = Sequences::default();
        packets(path, |raw| {
            let packet = sequences.take(raw).map_err(|reason| format!("{}: {reason}", path.display()))?;
            if let Some(descriptor) = packet.descriptor {
                let twin = self.describe(descriptor);
                if let Some((other, _)) = twin.and_then(|file| self.extents.get(file)) {
                    return Err(join::twins(other, path));
                }
            }
            if let Some(time) = packet.time {
                let (first, last) = self.span.unwrap_or((time, time));
                self.span = Some((first.min(time), last.max(time)));
            }
            if let (Some(event), Some(time)) = (&packet.event, packet.time) {
                let category = match event.kind {
                    kind::TYPE_SLICE_BEGIN => sequences.category(packet.sequence, event),
                    _ => String::new(),
                };
                self.event(event, time, &category, || sequences.name(packet.sequence, event));
            }
            Ok(())
        })
    }

    /// Takes a track; answers the earlier file that has the same process, which must not be.
    fn describe(&mut self, descriptor: &[u8]) -> Option<usize> {
        let mut uuid = 0;
        let mut track = Track { file: self.extents.len(), ..Track::default() };
        for field in fields(descriptor) {
            let part = |number| fields(field.bytes()).find(|part| part.number == number);
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            match field.number {
                track_descriptor::UUID => uuid = field.uint(),
                track_descriptor::PARENT_UUID => track.parent = Some(field.uint()),
                track_descriptor::NAME => track.name = text(field.bytes()),
                track_descriptor::PROCESS => {
                    track.is_process = true;
                    track.pid = part(process_descriptor::PID).map(|pid| pid.uint());
                    track.name =
                        part(process_descriptor::PROCESS_NAME).map_or_else(String::new, |name| text(name.bytes()));
                }
                track_descriptor::THREAD => track.pid = part(thread_descriptor::PID).map(|pid| pid.uint()),
                _ => {}
            }
        }
        let known = self.tracks.entry(uuid).or_default();
        let twin = (known.is_process && known.file != track.file).then_some(known.file);
        *known = Track { communicators: std::mem::take(&mut known.communicators), ..track };
        twin
    }

    fn event(&mut self, event: &Event<'_>, time: u64, category: &str, name: impl FnOnce() -> String) {
        let track = self.tracks.entry(event.track).or_default();
        match event.kind {
            kind::TYPE_SLICE_BEGIN => {
                self.slices += 1;
                let open = match category {
                    "operation" => {
                        track.operations += 1;
                        track.bytes = track.bytes.saturating_add(event.uint(nccl::BYTES).unwrap_or_default());
                        self.operations.push((time, time));
                        Open::Operation(self.operations.len() - 1)
                    }
                    "run" => {
                        track.operations += 1;
                        track.runs += 1;
                        track.bytes = track.bytes.saturating_add(event.uint(nccl::BYTES).unwrap_or_default());
                        Open::Other
                    }
                    "kernel" if event.arg(nccl::COMM).is_some() => {
                        self.kernels.push((time, time));
                        Open::Kernel(self.kernels.len() - 1)
                    }
                    "proxy" if event.arg(nccl::STEPS).is_some() => Open::Proxy,
                    "not done" => Open::NotDone,
                    _ => Open::Other,
                };
                let name = match (open, event.uint(nccl::SEQ)) {
                    (Open::Other, _) => String::new(),
                    (_, None) => name(),
                    (_, Some(seq)) => format!("{} (seq {seq})", name()),
                };
                let may_be_done = open == Open::NotDone;
                track.open.push((open, Unfinished { begin: time, name, track: event.track, may_be_done }));
            }
            kind::TYPE_SLICE_END => match track.open.pop() {
                Some((Open::Operation(index), _)) => self.operations[index].1 = time,
                Some((Open::Kernel(index), _)) => self.kernels[index].1 = time,
                _ => {}
            },
            _ => self.dropped = self.dropped.saturating_add(event.uint(nccl::DROPPED).unwrap_or_default()),
        }
        let Some(hash) = event.uint(nccl::COMM) else { return };
        if !track.communicators.contains(&hash) {
            track.communicators.push(hash);
        }
        let comm = self.communicators.entry(hash).or_default();
        // Other tools know of no interface.
        if [nccl::INTERFACE, nccl::RANK].iter().any(|number| event.arg(*number).is_some()) {
            comm.name = event.arg(nccl::COMM_NAME).map(|name| String::from_utf8_lossy(name.bytes()).into_owned());
            comm.ranks = event.uint(nccl::RANKS);
        }
    }

    /// The process that a track belongs to, by its track.
    pub(super) fn process(&self, track: u64) -> Option<u64> {
        let mut at = track;
        // A cycle would be the file's mistake.
        for _ in 0..64 {
            let found = self.tracks.get(&at)?;
            if found.is_process {
                return Some(at);
            }
            match (found.parent, found.pid) {
                (Some(parent), _) => at = parent,
                (None, pid) => {
                    let same = |(_, other): &(&u64, &Track)| other.is_process && pid.is_some() && other.pid == pid;
                    return self.tracks.iter().find(same).map(|(uuid, _)| *uuid);
                }
            }
        }
        None
    }

    /// The processes with their rank in the job, where it is known.
    pub(super) fn ranks(&self) -> BTreeMap<u64, Option<u32>> {
        let processes = self.tracks.iter().filter(|(_, track)| track.is_process);
        processes.map(|(uuid, track)| (*uuid, rank(&track.name))).collect()
    }

    /// What a communicator's tracks call it, `dp` in `dp · rank 3 of 8`. Several, where processes that do not know each other
    /// call it otherwise.
    pub(super) fn shown_as(&self, hash: u64) -> BTreeSet<&str> {
        let tracks = self.tracks.values().filter(|track| track.communicators == [hash]);
        tracks.filter_map(|track| Some(track.name.split_once(" · rank ")?.0)).collect()
    }

    /// How long the trace lasts, ns.
    pub(super) fn duration(&self) -> u64 {
        self.span.map_or(0, |(first, last)| last - first)
    }
}

/// The rank in the job that a process is named by: `rank 3 · node17`.
pub(super) fn rank(process: &str) -> Option<u32> {
    let digits = process.strip_prefix("rank ")?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// A communicator as people call it: its name, else its hash.
pub(super) fn label(hash: u64, comm: &Communicator) -> String {
    comm.name.clone().unwrap_or_else(|| format!("{hash:016x}"))
}
