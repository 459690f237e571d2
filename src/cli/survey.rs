//! A first pass over a trace: its time range, tracks, processes, communicators and operations.

pub(super) mod attempts;
mod calls;
mod looking;
mod settings;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

pub(super) use self::calls::{Call, Calls, OfFunction, Request, Requests, Transfer, Tuning};
use self::looking::{Begun, Open};
pub(super) use self::looking::{Looking, ends_with_its_comm};
#[cfg(test)]
pub(super) use self::settings::setting;
use super::Fault;
use super::merge::abreast;
use crate::cli::progress::Stage;
use crate::cli::reason::Reason;
use crate::model::ids::ProcessTag;
use crate::model::time::HostNs;
use crate::trace::names;
use crate::trace::reader::{self, Ends, Extent, Numbers, Packet, blocks};
use crate::trace::words;
use crate::trace::writer::TRACK_BITS;

/// No communicator has more ranks; a damaged file may say so.
const RANKS: u32 = 1 << 20;
/// How much earlier than others of its host a recording may end on a busy machine, ns.
pub(super) const LAG_NS: u64 = 5_000_000_000;

/// From this size on, bytes, only the ends of traces are read, or they are read first: all of them
/// take more than half a minute on one core.
pub(super) const LARGE: u64 = 1 << 30;

/// How many bytes these files have.
pub(super) fn size_of(files: &[PathBuf]) -> u64 {
    files.iter().map(|path| std::fs::metadata(path).map_or(0, |file| file.len())).sum()
}

/// How much of a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// All of it.
    Whole,
    /// Where possible, only its ends, with so many bytes of its beginning: enough to say what
    /// hangs.
    Ends(u64),
}

/// What is found in one trace, or in several that are treated as one.
#[derive(Default)]
pub(super) struct Survey {
    /// The first and the last time in it.
    pub(super) span: Option<(HostNs, HostNs)>,
    pub(super) slices: u64,
    pub(super) tracks: FxHashMap<u64, Track>,
    /// The tracks of processes, by pid. Containers have processes with the same pid.
    pub(super) by_pid: FxHashMap<u64, Vec<u64>>,
    /// By their recording, too: in it, each further GPU of a process has a track like a process's.
    pub(super) by_tag: FxHashMap<u64, Vec<u64>>,
    pub(super) communicators: BTreeMap<u64, Communicator>,
    /// The time ranges of operations as the host handed them over, and of NCCL's kernels, in the
    /// order of the file. Those without an end end when they begin. Empty unless `lists_work`:
    /// there may be millions.
    pub(super) lists_work: bool,
    pub(super) operations: Vec<(HostNs, HostNs)>,
    pub(super) kernels: Vec<(HostNs, HostNs)>,
    /// What may have hung: overdue operations, the work of channels and of the proxy on operations,
    /// and calls into NCCL, all without an end or until their communicator was finalized.
    pub(super) unfinished: Vec<Unfinished>,
    /// The processes, by their track.
    pub(super) processes: HashMap<u64, Process>,
    /// What the ranks asked for in their calls of collectives.
    pub(super) requests: Requests,
    /// How many records were dropped.
    pub(super) dropped: u64,
    /// How many bytes of each file are trace.
    pub(super) extents: Vec<(PathBuf, Extent)>,
    /// The parts that were read of files of which not all was read, by their number.
    pub(super) ends: BTreeMap<usize, Ends>,
    /// Tags of processes, by file, that a process of an earlier file drew, too.
    pub(super) namesakes: BTreeSet<(usize, u64)>,
}

/// A track's description, and what lies on it.
#[derive(Default)]
pub(super) struct Track {
    pub(super) parent: Option<u64>,
    pub(super) name: String,
    /// The pid of its process.
    pub(super) pid: Option<u64>,
    /// For a thread's track: the thread's id.
    pub(super) tid: Option<u64>,
    pub(super) is_process: bool,
    /// The pid that its process has on its host, if that is another one.
    pub(super) told_pid: Option<u64>,
    /// Communicators named on it: the first two, since of a track with several, none counts.
    pub(super) communicators: Vec<u64>,
    /// Operations on it, their bytes, and how many of them are drawn while the GPU worked on them.
    pub(super) operations: u64,
    pub(super) bytes: u64,
    pub(super) runs: u64,
    /// When the last of these began, and its mark.
    pub(super) ran: Option<(HostNs, Option<u64>)>,
    /// Collectives that were handed over on it.
    pub(super) handed_over: HandedOver,
    pub(super) calls: Calls,
    /// The version of NCCL's profiler interface, if the track shows how NCCL created the
    /// communicator.
    pub(super) interface: Option<u64>,
    /// Kernels ran on it.
    pub(super) has_kernels: bool,
    /// The longest time from the hand-over of an operation to the end of its kernel, or of one of
    /// its channels, ns.
    pub(super) longest_ns: u64,
    /// When something first and last began or ended on it. What ends with its communicator stood
    /// still.
    pub(super) moved: Option<(HostNs, HostNs)>,
    /// When its communicator was finalized.
    pub(super) finalized: Option<HostNs>,
    /// Calls on it were captured in a graph.
    captures: bool,
    reading: Reading,
}

/// Where the pass over a track's events is.
#[derive(Default)]
struct Reading {
    /// The communicator that was named last.
    named: Option<u64>,
    /// The last call for an operation.
    call: Option<Begun>,
    open: Vec<Open>,
}

/// The operations whose hand-over one track shows.
#[derive(Default)]
pub(super) struct HandedOver {
    /// The last operation, and when; and its mark, which is the same on all ranks.
    pub(super) last: Option<(String, HostNs)>,
    pub(super) mark: Option<u64>,
    /// The last collective, and when.
    pub(super) collective: Option<(Collective, HostNs)>,
    /// The longest time between two, ns.
    pub(super) gap_ns: u64,
    /// The newest collective of each function, where the file names these: at its restarts, and
    /// when it was full. With the longest time between two hand-overs by then, ns.
    pub(super) newest: Vec<Newest>,
    pub(super) told_gap_ns: u64,
}

/// A collective that a file names as the newest of its function: `AllReduce 1 MiB f32`, its number,
/// and when it was handed over.
pub(super) type Newest = (String, u64, HostNs);

/// A collective, with the numbers that all ranks use for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Collective {
    pub(super) correlation: u64,
    pub(super) name: String,
    pub(super) seq: u64,
}

/// Work on an operation that was begun and has no end, or none but that of its communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unfinished {
    pub(super) kind: Work,
    pub(super) begin: HostNs,
    /// Its index among all slices. Of those that begin together, the first comes first.
    pub(super) place: u64,
    pub(super) track: u64,
    /// The communicator, if known.
    pub(super) hash: Option<u64>,
    /// The operation's mark, which is the same on all ranks, and its name.
    pub(super) correlation: Option<u64>,
    pub(super) name: String,
    pub(super) seq: Option<u64>,
    pub(super) peer: Option<u32>,
    /// For a replayed graph: which run, counted from 1.
    pub(super) replay: Option<u64>,
    /// The recording's remark.
    pub(super) note: String,
    /// The recording says why this need not stand still.
    pub(super) is_doubted: bool,
}

/// Who has to do the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// The GPU, as far as known: the operation is overdue.
    Overdue,
    /// The GPU: one of its channels has begun with it.
    Channel,
    Proxy,
    /// The host: the call that asked for it does not return.
    Call,
}

/// What a trace says about a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Process {
    /// The first time in its file, and the last time on one of its tracks.
    pub(super) first: HostNs,
    pub(super) last: HostNs,
    /// How long it can have been alive after that without a sign in its trace, ns. `None` if it
    /// gives no regular sign of life.
    pub(super) silence_ns: Option<u64>,
    /// Its file, as an index into the survey's.
    pub(super) file: usize,
    /// The id of its host's boot, if known: several hosts may have the same name.
    pub(super) boot: Option<String>,
    /// What should be the same on all ranks: its driver, and variables of its environment with the
    /// trace's prefix. The prefix alone says that the recording has the environment.
    pub(super) settings: BTreeMap<String, String>,
    /// The UUID of its GPU, in hexadecimal digits, if known.
    pub(super) gpu: Option<String>,
    /// When its recording ended, if known.
    pub(super) ended: Option<HostNs>,
    /// Records of it were dropped.
    pub(super) is_lossy: bool,
    /// When records of kernels were last noticed to be lost.
    pub(super) lost_kernels: Option<HostNs>,
    /// Settings left out a part of it.
    pub(super) is_partial: bool,
    /// It captured calls in graphs.
    pub(super) captures: bool,
    /// Its file was full, so not all of what came after is known.
    pub(super) is_full: bool,
    /// Up to when a full file names the newest collectives.
    pub(super) alive: Option<HostNs>,
    /// Only the ends of its file were read.
    pub(super) is_tail: bool,
}

/// What a trace says about a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Communicator {
    pub(super) name: Option<String>,
    pub(super) ranks: Option<u64>,
}

impl Process {
    /// Whether it shows no sign of life at this time, where it should if it were alive.
    pub(super) fn is_silent_at(&self, time: HostNs) -> bool {
        self.ended.is_none() && self.silence_ns.is_some_and(|silence| time.since(self.last) > silence)
    }
}

impl Survey {
    /// Looks through traces, and lists their operations and kernels, too.
    ///
    /// # Errors
    ///
    /// If one cannot be read, or is not a trace, or has a process tag that is in another one.
    pub(super) fn with_work(paths: &[PathBuf]) -> Result<Survey, Reason> {
        let (survey, looked) = Survey::of_what_can_be_read((true, Reach::Whole), paths, |(), _, _| {});
        if let Some(fault) = paths.iter().zip(looked).find_map(|(path, ((), fault))| Some(fault?.of(path))) {
            return Err(fault);
        }
        match survey.namesakes.first() {
            Some((file, _)) => Err(twins(&paths[*file])),
            None => Ok(survey),
        }
    }

    /// Looks through one trace.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is not a trace.
    pub(super) fn of_one(path: &Path) -> Result<Survey, Reason> {
        let (mut survey, looked) = Looking::at(path, blocks::cores(), (false, Reach::Whole), |_, _| ());
        let extent = looked.map_err(|fault| fault.of(path))?;
        survey.extents.push((path.to_owned(), extent));
        Ok(survey)
    }

    /// Looks through traces as far as they can be read, side by side. Says for each why it was not
    /// read to its end, and what `each` made of its packets and the numbers among the arguments of
    /// their events.
    pub(super) fn of_what_can_be_read<T: Default + Send>(
        (lists_work, reach): (bool, Reach),
        paths: &[PathBuf],
        each: impl Fn(&mut T, &Packet<'_>, &Numbers) + Sync,
    ) -> (Survey, Vec<(T, Option<Fault>)>) {
        let (mut all, mut looked) = (Survey::default(), Vec::new());
        let stage = match reach {
            Reach::Whole => Stage::begin(format!("reading {} files", paths.len()), size_of(paths)),
            Reach::Ends(_) => Stage::of_ends("reading", paths.len()),
        };
        let look = |path: &PathBuf, threads| {
            let mut made = T::default();
            let (survey, extent) =
                Looking::at(path, threads, (lists_work, reach), |packet, numbers| each(&mut made, packet, numbers));
            (made, survey, extent)
        };
        abreast::look(paths, look, |path, (made, survey, extent)| {
            looked.push((made, all.add(path, survey, extent).err()));
            stage.advance(size_of(std::slice::from_ref(path)));
        });
        all.sort_unfinished();
        (all, looked)
    }

    /// Adds a further trace, as far as it could be read. An error if that is not to its end, or if
    /// an earlier one has the same recording: a process with the same tag, name and pid. After the
    /// last one, [`Survey::sort_unfinished`] has to be called.
    pub(super) fn add(&mut self, path: &Path, other: Survey, extent: Result<Extent, Fault>) -> Result<Extent, Fault> {
        let file = self.extents.len();
        self.extents.push((path.to_owned(), *extent.as_ref().unwrap_or(&Extent::default())));
        self.ends.extend(other.ends.into_values().map(|ends| (file, ends)));
        for (uuid, track) in other.tracks.iter().filter(|(_, track)| track.is_process) {
            let Some(earlier) = self.tracks.get(uuid).filter(|known| known.is_process) else { continue };
            if (earlier.pid, &earlier.name) == (track.pid, &track.name) {
                return Err(Fault::Other(twins(path)));
            }
            self.namesakes.insert((file, uuid >> TRACK_BITS));
        }
        let requests = self.requests.put_all(other.requests);
        for (uuid, mut track) in other.tracks {
            track.calls.renumber(&requests);
            track.parent = track.parent.map(|parent| self.uuid(file, parent));
            let uuid = self.uuid(file, uuid);
            if !self.tracks.contains_key(&uuid) {
                self.put(uuid, track);
            }
        }
        for mut slice in other.unfinished {
            (slice.track, slice.place) = (self.uuid(file, slice.track), self.slices + slice.place);
            self.unfinished.push(slice);
        }
        let processes: Vec<_> =
            other.processes.into_iter().map(|(uuid, it)| (self.uuid(file, uuid), Process { file, ..it })).collect();
        self.processes.extend(processes);
        for (hash, communicator) in other.communicators {
            let known = self.communicators.entry(hash).or_default();
            if communicator != Communicator::default() {
                *known = communicator;
            }
        }
        self.operations.extend(other.operations);
        self.kernels.extend(other.kernels);
        self.span = self.span.into_iter().chain(other.span).reduce(|(a, b), (c, d)| (a.min(c), b.max(d)));
        self.slices += other.slices;
        self.dropped = self.dropped.saturating_add(other.dropped);
        extent
    }

    /// How many bytes of the files were read.
    pub(super) fn bytes_read(&self) -> u64 {
        let of = |(file, (path, _)): (usize, &(PathBuf, Extent))| {
            let length = size_of(std::slice::from_ref(path));
            self.ends.get(&file).map_or(length, |ends| ends.bytes(length))
        };
        self.extents.iter().enumerate().map(of).sum()
    }

    /// Calls `each` for every packet of a file that the survey looked at. If only the ends were
    /// read, these are the packets of the last part.
    pub(super) fn read_again(&self, file: usize, mut each: impl FnMut(&Packet<'_>)) {
        let part = self.ends.get(&file).map_or((0, u64::MAX), |ends| ends.parts()[1]);
        let mut read = || {
            reader::read_part(blocks::cores(), &mut File::open(&self.extents[file].0)?, part, |packet| {
                each(packet);
                Ok::<_, reader::Error>(())
            })
        };
        // The first pass has reported what cannot be read.
        let _ = read();
    }

    /// Sorts what has no end by when it began: once for all files, because a hung job has a lot.
    pub(super) fn sort_unfinished(&mut self) {
        self.unfinished.sort_by_key(|slice| (slice.begin, slice.place));
    }

    /// A track's uuid, unlike those of all other files.
    pub(super) fn uuid(&self, file: usize, uuid: u64) -> u64 {
        let beyond = (file as u64 + 1) << (TRACK_BITS + ProcessTag::BITS);
        if self.namesakes.contains(&(file, uuid >> TRACK_BITS)) { uuid | beyond } else { uuid }
    }

    fn put(&mut self, uuid: u64, track: Track) {
        let tag = Some(uuid >> TRACK_BITS);
        for (map, key) in [(&mut self.by_pid, track.pid), (&mut self.by_tag, tag)] {
            let Some(key) = key.filter(|_| track.is_process) else { continue };
            let known = map.entry(key).or_default();
            if !known.contains(&uuid) {
                known.push(uuid);
            }
        }
        self.tracks.insert(uuid, track);
    }

    /// The process that a track belongs to, by the process's track.
    pub(super) fn process(&self, track: u64) -> Option<u64> {
        let mut at = track;
        // Only a faulty file has a cycle.
        for _ in 0..64 {
            let found = self.tracks.get(&at)?;
            if found.is_process {
                return Some(at);
            }
            match (found.parent, found.pid) {
                (Some(parent), _) => at = parent,
                (None, pid) => {
                    let of_pid = self.by_pid.get(&pid?)?;
                    // The tag tells those with the same pid apart.
                    let near = of_pid.iter().find(|uuid| *uuid >> TRACK_BITS == at >> TRACK_BITS);
                    return near.or(if let [only] = &of_pid[..] { Some(only) } else { None }).copied();
                }
            }
        }
        None
    }

    /// A process, as in `pid 4711 on node17`, and which of its GPUs if it has several. One without
    /// a rank has no host in its name.
    pub(super) fn place(&self, process: u64) -> Option<String> {
        let track = self.tracks.get(&process)?;
        let place = format!("pid {} on {}", track.own_pid()?, host(&track.name)?);
        let has_several = self.by_tag.get(&(process >> TRACK_BITS)).is_some_and(|all| all.len() > 1);
        let gpu = names::without_gpu(&track.name).1.filter(|_| has_several);
        Some(gpu.map_or(place.clone(), |gpu| format!("{place}, GPU {gpu}")))
    }

    /// The host of a process: its name, and the id of its boot.
    pub(super) fn host(&self, process: u64) -> (Option<&str>, Option<&str>) {
        let name = self.tracks.get(&process).and_then(|track| host(&track.name));
        (name, self.processes.get(&process).and_then(|it| it.boot.as_deref()))
    }

    /// The processes of each run on each host, by their tracks. Those that share a communicator,
    /// directly or through others, are of one run; the files of several may have been given.
    pub(super) fn side_by_side(&self) -> Vec<Vec<u64>> {
        fn first(before: &HashMap<u64, u64>, mut process: u64) -> u64 {
            while let Some(next) = before.get(&process) {
                process = *next;
            }
            process
        }
        let (mut before, mut of_hash) = (HashMap::new(), HashMap::new());
        for (uuid, track) in self.tracks.iter().filter(|(_, track)| !track.communicators.is_empty()) {
            let Some(process) = self.process(*uuid) else { continue };
            for hash in &track.communicators {
                let (one, other) = (first(&before, process), first(&before, *of_hash.entry(*hash).or_insert(process)));
                if one != other {
                    before.insert(one.max(other), one.min(other));
                }
            }
        }
        let mut groups: HashMap<_, Vec<u64>> = HashMap::new();
        for process in self.processes.keys() {
            groups.entry((self.host(*process), first(&before, *process))).or_default().push(*process);
        }
        groups.into_values().collect()
    }

    /// The processes with their rank in the job, if known.
    pub(super) fn ranks(&self) -> BTreeMap<u64, Option<u32>> {
        let processes = self.tracks.iter().filter(|(_, track)| track.is_process);
        processes.map(|(uuid, track)| (*uuid, rank(&track.name))).collect()
    }

    /// Ranks in the job that several members of one communicator claim: processes have inherited
    /// the variable of a launcher that did not start them, or have several GPUs.
    pub(super) fn claimed_twice(&self) -> BTreeSet<u32> {
        let (mut claims, mut twice) = (HashMap::new(), BTreeSet::new());
        for (uuid, track) in self.tracks.iter().filter(|(_, track)| !track.communicators.is_empty()) {
            let process = self.process(*uuid).and_then(|process| self.tracks.get(&process));
            if let (Some((_, own, _)), Some(rank)) = (placed(&track.name), process.and_then(|it| rank(&it.name)))
                && let [hash] = track.communicators[..]
                && *claims.entry((hash, rank)).or_insert(own) != own
            {
                twice.insert(rank);
            }
        }
        twice
    }

    /// What communicators' tracks call them, by hash: `dp` in `dp · rank 3 of 8`. One has several
    /// names if processes that do not know each other use different ones.
    pub(super) fn shown_as(&self) -> BTreeMap<u64, BTreeSet<&str>> {
        let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for track in self.tracks.values() {
            if let ([hash], Some((name, _))) = (&track.communicators[..], track.name.split_once(words::track::RANK)) {
                all.entry(*hash).or_default().insert(name);
            }
        }
        all
    }

    /// How long the trace lasts, ns.
    pub(super) fn duration(&self) -> u64 {
        self.span.map_or(0, |(first, last)| last.since(first))
    }
}

impl Track {
    /// The pid of its process on its host.
    pub(super) fn own_pid(&self) -> Option<u64> {
        self.told_pid.or(self.pid)
    }
}

/// The rank in the job that is part of a process's name: `rank 3 · node17`.
pub(super) fn rank(process: &str) -> Option<u32> {
    let digits = process.strip_prefix("rank ")?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The host in a process's name, `rank 3 · node17` or `rank 3 · node17 · GPU 1`.
pub(super) fn host(process: &str) -> Option<&str> {
    names::without_gpu(process).0.split(" · ").nth(1)
}

/// The communicator, the rank and the number of ranks in a track's name: `world · rank 3 of 8 ·
/// handed over`.
pub(super) fn placed(track: &str) -> Option<(&str, u32, u32)> {
    let (label, rest) = track.split_once(words::track::RANK)?;
    let rest = rest.split(" · ").next()?;
    let (rank, ranks) = rest.split_once(" of ")?;
    Some((label, rank.parse().ok()?, ranks.parse().ok().filter(|ranks| *ranks <= RANKS)?))
}

/// A communicator's name for people: its name, or else its hash.
pub(super) fn label(hash: u64, comm: &Communicator) -> String {
    comm.name.clone().unwrap_or_else(|| format!("{hash:016x}"))
}

/// Why a trace cannot be shown together with the others.
fn twins(path: &Path) -> Reason {
    Reason::Refused(format!(
        "{} carries the same process tag as one of the other files, so their tracks would mix: they are the same \
         recording, or two processes drew the same random tag, which can happen in a job of a thousand; ncclscope merge \
         tells those apart",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::{Survey, TRACK_BITS, Track};

    #[test]
    fn a_thread_belongs_to_the_process_of_its_recording() {
        let track = |is_process| Track { is_process, pid: Some(7), ..Track::default() };
        let mut survey = Survey::default();
        for tag in 1..40 {
            survey.put(tag << TRACK_BITS | 1, track(true));
            survey.put(tag << TRACK_BITS | 2, track(false));
        }
        for tag in 1..40 {
            assert_eq!(survey.process(tag << TRACK_BITS | 2), Some(tag << TRACK_BITS | 1));
        }
        // Another tool's tracks have no tag: of several processes with its pid it may be anyone's.
        survey.put(50 << TRACK_BITS, track(false));
        assert_eq!(survey.process(50 << TRACK_BITS), None);
        survey.put(60 << TRACK_BITS, Track { pid: Some(8), ..track(true) });
        survey.put(61 << TRACK_BITS, Track { pid: Some(8), ..track(false) });
        assert_eq!(survey.process(61 << TRACK_BITS), Some(60 << TRACK_BITS));
    }

    #[test]
    fn a_gpu_is_no_host() {
        for (name, told_pid, said) in [
            ("rank 3 · node17 · GPU 3 (H200)", Some(5), Some("pid 5 on node17")),
            ("rank 3 · node17", None, Some("pid 8 on node17")),
            ("python3 · GPU 3 (H200)", None, None),
            ("python3", None, None),
        ] {
            let track = Track { name: name.into(), pid: Some(8), told_pid, is_process: true, ..Track::default() };
            let survey = Survey { tracks: [(1, track)].into_iter().collect(), ..Survey::default() };
            assert_eq!(survey.place(1).as_deref(), said, "{name}");
        }
    }

    #[test]
    fn a_process_with_several_gpus_says_which() {
        let gpu = |number| Track {
            name: format!("python3 · node17 · GPU {number} (H200)"),
            pid: Some(8),
            is_process: true,
            ..Track::default()
        };
        let (here, elsewhere) = (1 << TRACK_BITS, 2 << TRACK_BITS);
        let mut survey = Survey::default();
        survey.put(here | 1, gpu(0));
        survey.put(elsewhere | 1, gpu(0));
        survey.put(here | 2, gpu(3));
        assert_eq!(survey.place(here | 2).as_deref(), Some("pid 8 on node17, GPU 3"));
        assert_eq!(survey.place(elsewhere | 1).as_deref(), Some("pid 8 on node17"));
    }
}
