//! What a file shows about the operations that ranks share: when its rank took part in a
//! collective, and when data left it for another rank or arrived from one. What all files show
//! together is in `shared`.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::time::{Bounded, HostNs};
use crate::trace::fields::{nccl, track_event::r#type as kind};
use crate::trace::reader::proto::ncclscope::{Function, MatchedBy};
use crate::trace::reader::{Event, Numbered, Packet};
use crate::trace::words::{Category, attribute, instant, remark, track, wait};
use crate::trace::writer::{TRACK_BITS, tag_of_sequence};

mod shared;

pub(super) use shared::Shared;

/// How many visits, and how many ends of transfers, are kept from all files.
const VISITS: usize = 2 << 20;
const ENDS: usize = 1 << 20;
/// How many are kept per file, at least.
const OF_FILE: usize = 512;
/// How many waits of one operation or of several are kept before they are added up.
const ADDED_UP: usize = 32 << 10;
/// How many replayed operations are remembered while their transfers arrive.
const REPLAYED: usize = 64 << 10;
/// The assumed error of a host's time if the recording has no last remark that states it, ns.
const UNSTATED_NS: u64 = 10_000;

/// A rank of a communicator, as one process's tracks show it.
pub(super) struct Member {
    /// The process's tag.
    pub(super) process: u64,
    /// The communicator, by NCCL's hash, and its name on the tracks.
    pub(super) comm: u64,
    pub(super) label: String,
    pub(super) rank: i32,
    /// The number of ranks in the communicator.
    pub(super) size: i32,
    /// The group that its tracks are in; `None` if it shares tracks with others.
    pub(super) group: Option<u64>,
    /// The number of its file's clock.
    pub(super) clock: usize,
    /// How an earlier merge put the process's times on that clock.
    pub(super) moved: Moved,
    /// How far the times of the process's threads may be off, ns.
    error_ns: u64,
}

/// How earlier merges put the times of a host on the clock of another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    /// What they say about it, which is the same for all processes of a host; nothing if they left
    /// its times as they were.
    said: String,
    /// How far off its times may be on that clock, ns.
    pub(super) error_ns: u64,
}

impl Moved {
    /// Takes what another merge says about it.
    fn again(&mut self, host: &str, error_ns: u64) {
        self.said.push_str(&format!("{host}: {error_ns}\n"));
        self.error_ns = self.error_ns.saturating_add(error_ns);
    }
}

/// Who waits for whom in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Others wait for this rank, and it waits for nobody.
    Gives,
    /// It waits for others, and nobody waits for it.
    Takes,
    Both,
}

/// An operation as all its ranks know it: NCCL's hash of the communicator, the operation's mark,
/// and the run of its graph.
type Operation = (u64, u64, u64);

/// One rank's part in an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visit {
    operation: Operation,
    pub(super) member: u32,
    error_ns: u32,
    /// When its kernel began and ended, on the file's clock.
    entered: HostNs,
    left: HostNs,
    pub(super) queued_ns: u64,
    pub(super) role: Role,
    /// Its kernel was matched exactly.
    is_exact: bool,
    pub(super) is_send_recv: bool,
    /// The other rank of a send or receive, by its number in the communicator.
    pub(super) peer: i32,
}

/// One end of a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    /// The same at both ends, and at no others: [`transfer`].
    transfer: u64,
    is_send: bool,
    member: u32,
    /// The track of its step.
    pub(super) track: u64,
    /// It was sent at this time or later, or it arrived at this time or earlier.
    at: HostNs,
}

/// A sample of limited size. What is kept depends on marks only, so all files keep the same
/// operations.
struct Sample<T> {
    kept: Vec<T>,
    /// Items with any of these bits in their mark are left out.
    left_out: u64,
    most: usize,
}

impl<T> Sample<T> {
    fn of(most: usize) -> Sample<T> {
        Sample { kept: Vec::new(), left_out: 0, most }
    }

    fn push(&mut self, item: T, mark: impl Fn(&T) -> u64) {
        if mark(&item) & self.left_out == 0 {
            self.kept.push(item);
        }
        if self.kept.len() > self.most {
            self.leave_out(self.left_out << 1 | 1, mark);
        }
    }

    fn leave_out(&mut self, bits: u64, mark: impl Fn(&T) -> u64) {
        if bits != self.left_out {
            self.left_out = bits;
            self.kept.retain(|item| mark(item) & bits == 0);
        }
    }
}

impl Visit {
    fn mark(&self) -> u64 {
        mixed(self.operation)
    }

    /// The operation's mark.
    pub(super) fn correlation(&self) -> u64 {
        self.operation.1
    }

    /// When the rank entered and when it left.
    pub(super) fn times(&self) -> [Bounded; 2] {
        [self.entered, self.left].map(|time| Bounded { time, error_ns: self.error_ns.into() })
    }
}

impl End {
    fn mark(&self) -> u64 {
        self.transfer
    }
}

/// A hash of what both ends of a transfer know: communicator and mark of the operation, who sends
/// to whom, channel and number.
fn transfer(operation: (u64, u64), from: i32, to: i32, channel: u64, step: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (operation, from, to, channel, step).hash(&mut hasher);
    hasher.finish()
}

/// A hash, whose bits are unrelated to what is hashed.
fn mixed((one, two, three): (u64, u64, u64)) -> u64 {
    (one ^ two.rotate_left(32) ^ three.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// What one file shows.
pub(super) struct Evidence {
    members: Vec<Member>,
    visits: Sample<Visit>,
    ends: Sample<End>,
    /// Some operations have several while a file is looked through.
    waits: Vec<Waited>,
    /// How many operations have a kernel that is only inferred.
    inferred: u64,
}

impl Evidence {
    fn leave_out(&mut self, bits: u64) {
        self.visits.leave_out(bits, Visit::mark);
        let comm = |member: u32| self.members[member as usize].comm;
        self.waits.retain(|((member, mark), _)| mixed((comm(*member), *mark, 0)) & bits == 0);
    }
}

/// Looks through a file.
pub(super) struct Looking {
    found: Evidence,
    /// How many of the waits were added up.
    added_up: usize,
    tracks: Numbered<OnTrack>,
    /// By process.
    moved: FxHashMap<u64, Moved>,
    /// Members by process and label, and by process and hash.
    by_label: FxHashMap<u64, FxHashMap<String, u32>>,
    by_hash: FxHashMap<(u64, u64), Vec<u32>>,
    /// Operations of graphs. Several may share a number, which may mean different operations on
    /// different ranks.
    replayed: FxHashSet<(u64, u64)>,
    oldest: VecDeque<(u64, u64)>,
    /// Where the matches of kernels were contradicted after they had been drawn: the process, and
    /// when the kernel began.
    contradicted: FxHashSet<(u64, u64)>,
}

/// A track, and what is open on it.
#[derive(Default)]
struct OnTrack {
    known: Option<Known>,
    /// There was an operation on it. From then on, all of its slices are in `runs`.
    has_runs: bool,
    /// Open slices; `None` for those with nothing to say.
    runs: Vec<Option<Visit>>,
    /// Open transfers, outermost first, and inside of them what they wait for.
    steps: Vec<Step>,
    /// How long the last operation's sends waited, by member and mark.
    waited: Option<Waited>,
}

/// What is open on a track of transfers.
#[derive(Clone, Copy)]
enum Step {
    /// A transfer of an operation: its mark, channel and number.
    Transfer(u64, u64, u64),
    /// Inside a transfer: since when the sending member waits, and for what.
    Wait {
        member: u32,
        mark: u64,
        what: usize,
        since: HostNs,
    },
    Other,
}

/// What sends wait for, in the order of [`Waits`].
const WAITS: [&str; 3] = [wait::GPU, wait::PEER, wait::NETWORK];

/// How long the sends of an operation waited on one rank in total, ns: for the GPU to fill a
/// buffer, for the peer to have room, for the network. The waits overlap.
pub(super) type Waits = [u64; 3];

/// The same with the operation: by member and mark.
type Waited = ((u32, u64), Waits);

/// A track that is read.
enum Known {
    /// Operations of a communicator: its label, and the group that it is in.
    Operations { label: String, group: u64 },
    /// Transfers from or to a peer.
    Transfers { label: String, peer: i32, is_send: bool },
}

impl Known {
    /// Recognised by its name: `dp · rank 3 of 8`, `dp · send → 4 · steps`.
    fn of(name: &str, group: u64) -> Option<Known> {
        if let Some(name) = name.strip_suffix(track::STEPS) {
            let (is_send, (label, peer)) = match name.split_once(track::SEND) {
                Some(parts) => (true, parts),
                None => (false, name.split_once(track::RECEIVE)?),
            };
            let peer = peer.trim_start_matches(['→', '←', ' ']).parse().ok()?;
            return Some(Known::Transfers { label: label.to_owned(), peer, is_send });
        }
        let (label, rank) = name.split_once(track::RANK)?;
        let is_run = rank.split_once(" of ").is_some_and(|(_, size)| size.bytes().all(|it| it.is_ascii_digit()));
        is_run.then(|| Known::Operations { label: label.to_owned(), group })
    }
}

impl Looking {
    /// For one of this many files.
    pub(super) fn at_one_of(files: usize) -> Looking {
        let share = |all: usize| (all / files.max(1)).max(OF_FILE);
        let found = Evidence {
            members: Vec::new(),
            visits: Sample::of(share(VISITS)),
            ends: Sample::of(share(ENDS)),
            waits: Vec::new(),
            inferred: 0,
        };
        Looking {
            found,
            added_up: 0,
            tracks: Numbered::default(),
            moved: FxHashMap::default(),
            by_label: FxHashMap::default(),
            by_hash: FxHashMap::default(),
            replayed: FxHashSet::default(),
            oldest: VecDeque::new(),
            contradicted: FxHashSet::default(),
        }
    }

    /// What was found, in no more memory than that takes: there may be thousands of files.
    pub(super) fn done(mut self) -> Evidence {
        for (_, track) in std::mem::take(&mut self.tracks).into_iter() {
            track.waited.into_iter().for_each(|waited| self.waited(waited));
        }
        self.add_up();
        let mut found = self.found;
        for visit in &mut found.visits.kept {
            let process = found.members[visit.member as usize].process;
            if visit.is_exact && self.contradicted.contains(&(process, visit.entered.0)) {
                (visit.is_exact, found.inferred) = (false, found.inferred + 1);
            }
        }
        for member in &mut found.members {
            member.moved = self.moved.get(&member.process).cloned().unwrap_or_default();
        }
        found.waits.shrink_to_fit();
        found.visits.kept.shrink_to_fit();
        found.ends.kept.shrink_to_fit();
        found
    }

    /// Takes the next packet of the file.
    pub(super) fn look(&mut self, packet: &Packet<'_>) {
        if let Some(descriptor) = packet.track_descriptor()
            && let Some(known) = Known::of(descriptor.name(), descriptor.parent_uuid())
        {
            self.tracks.entry(descriptor.uuid()).known = Some(known);
        }
        for (key, value) in packet.attributes() {
            if let (Some(host), Ok(error_ns)) = (key.strip_prefix(attribute::HOST_CLOCK_ERROR), value.parse()) {
                self.moved.entry(tag_of_sequence(packet.sequence)).or_default().again(host, error_ns);
            }
        }
        let (Some(event), Some(time)) = (&packet.event, packet.time) else { return };
        match event.kind {
            kind::TYPE_SLICE_BEGIN => self.begin(event, time),
            kind::TYPE_SLICE_END => {
                let Some(track) = self.tracks.get_mut(event.track) else { return };
                let (visit, step) = (track.runs.pop().flatten(), track.steps.pop());
                let mut before = None;
                if let Some(Step::Wait { member, mark, what, since }) = step {
                    let of = (member, mark);
                    if track.waited.is_none_or(|(last, _)| last != of) {
                        before = track.waited.replace((of, Waits::default()));
                    }
                    track.waited.iter_mut().for_each(|(_, waits)| waits[what] += time.since(since));
                }
                if let Some(mut visit) = visit {
                    visit.left = time;
                    self.visited(visit);
                }
                before.into_iter().for_each(|waited| self.waited(waited));
            }
            _ => self.instant(event, time),
        }
    }

    fn visited(&mut self, visit: Visit) {
        let visits = &mut self.found.visits;
        let before = visits.left_out;
        visits.push(visit, Visit::mark);
        let bits = visits.left_out;
        if bits != before {
            self.found.leave_out(bits);
        }
    }

    fn waited(&mut self, waited @ ((member, mark), _): Waited) {
        let Evidence { members, visits, waits, .. } = &mut self.found;
        if mixed((members[member as usize].comm, mark, 0)) & visits.left_out == 0 {
            waits.push(waited);
            if waits.len() > 2 * self.added_up.max(ADDED_UP) {
                self.add_up();
            }
        }
    }

    /// Adds up the waits of each operation, and puts them in order.
    fn add_up(&mut self) {
        let waits = &mut self.found.waits;
        // Nearly all are in order already.
        waits.sort_by_key(|(of, _)| *of);
        waits.dedup_by(|(of, its), (before, all)| {
            let is_same = of == before;
            if is_same {
                all.iter_mut().zip(its).for_each(|(all, ns)| *all += *ns);
            }
            is_same
        });
        self.added_up = waits.len();
    }

    fn instant(&mut self, event: &Event<'_>, time: HostNs) {
        let process = event.track >> TRACK_BITS;
        match event.name {
            instant::COMM_INIT => {
                let Some(comm) = event.uint(nccl::COMM) else { return };
                let (label, group) = match self.tracks.get(event.track).and_then(|track| track.known.as_ref()) {
                    Some(Known::Operations { label, group }) => (label.clone(), Some(*group)),
                    _ => (String::new(), None),
                };
                let number = self.found.members.len() as u32;
                if group.is_some() {
                    self.by_label.entry(process).or_default().insert(label.clone(), number);
                }
                self.by_hash.entry((process, comm)).or_default().push(number);
                self.found.members.push(Member {
                    process,
                    comm,
                    label,
                    rank: event.uint(nccl::RANK).unwrap_or(0) as i32,
                    size: event.uint(nccl::RANKS).unwrap_or(0) as i32,
                    group,
                    clock: 0,
                    moved: Moved::default(),
                    error_ns: UNSTATED_NS,
                });
            }
            remark::CONTRADICTED => {
                self.contradicted.insert((process, time.0));
            }
            instant::ENDED => {
                if let Some(error) = event.uint(nccl::CLOCK_ERROR_NS) {
                    self.found.members.iter_mut().filter(|it| it.process == process).for_each(|it| it.error_ns = error);
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, event: &Event<'_>, time: HostNs) {
        if event.category == Some(Category::Run) {
            let visit = self.visit(event, time);
            let track = self.tracks.entry(event.track);
            track.has_runs = true;
            track.runs.push(visit);
            return;
        }
        if event.category == Some(Category::Operation)
            && let ([Some(_), Some(comm)], Some(mark)) = (event.uints([nccl::REPLAY, nccl::COMM]), event.correlation)
        {
            self.is_replayed((comm, mark));
        }
        let Some(track) = self.tracks.get_mut(event.track) else { return };
        if track.has_runs {
            track.runs.push(None);
        }
        if event.category == Some(Category::Proxy)
            && let Some(Known::Transfers { label, peer, is_send }) = &track.known
        {
            let member = self.by_label.get(&(event.track >> TRACK_BITS)).and_then(|by_label| by_label.get(label));
            let step = match (&track.steps[..], event.correlation, member) {
                ([], Some(mark), _) => {
                    let [channel, step] = event.uints([nccl::CHANNEL, nccl::STEP]);
                    Step::Transfer(mark, channel.unwrap_or(0), step.unwrap_or(0))
                }
                (&[Step::Transfer(mark, channel, step)], _, Some(&member)) => {
                    let Member { comm, rank, .. } = self.found.members[member as usize];
                    let (from, to, phase) =
                        if *is_send { (rank, *peer, wait::PEER) } else { (*peer, rank, wait::FLUSH) };
                    if event.name == phase && !self.replayed.contains(&(comm, mark)) {
                        let transfer = transfer((comm, mark), from, to, channel, step);
                        let end = End { transfer, is_send: *is_send, member, track: event.track, at: time };
                        self.found.ends.push(end, End::mark);
                    }
                    let what = WAITS.iter().position(|it| *is_send && *it == event.name);
                    what.map_or(Step::Other, |what| Step::Wait { member, mark, what, since: time })
                }
                _ => Step::Other,
            };
            track.steps.push(step);
        }
    }

    fn is_replayed(&mut self, operation: (u64, u64)) {
        if self.replayed.insert(operation) {
            self.oldest.push_back(operation);
            if self.oldest.len() > REPLAYED
                && let Some(oldest) = self.oldest.pop_front()
            {
                self.replayed.remove(&oldest);
            }
        }
    }

    /// The rank whose operation this is; `None` if a process has several ranks in the communicator
    /// and its tracks do not tell them apart.
    fn member(&self, event: &Event<'_>, comm: u64) -> Option<u32> {
        let process = event.track >> TRACK_BITS;
        let known = self.tracks.get(event.track).and_then(|track| track.known.as_ref());
        if let Some(Known::Operations { label, .. }) = known
            && let Some(number) = self.by_label.get(&process).and_then(|by_label| by_label.get(label))
        {
            return Some(*number);
        }
        match self.by_hash.get(&(process, comm))?[..] {
            [number] => Some(number),
            _ => None,
        }
    }

    /// What a run of an operation shows so far; `None` if it is not certain which operation it is.
    fn visit(&mut self, event: &Event<'_>, time: HostNs) -> Option<Visit> {
        let [comm, error, replay, matched, root, function, queued_ns, peer] = event.uints([
            nccl::COMM,
            nccl::TIME_ERROR_NS,
            nccl::REPLAY,
            nccl::MATCH,
            nccl::ROOT,
            nccl::FUNCTION,
            nccl::QUEUED_NS,
            nccl::PEER,
        ]);
        let (comm, mark, error, run) = (comm?, event.correlation?, error?, replay.unwrap_or(0));
        let is_exact = match matched.and_then(|it| MatchedBy::try_from(it as i32).ok())? {
            MatchedBy::ExactGraphNode => run > 0,
            MatchedBy::ExactLaunchBracket | MatchedBy::ExactExternalId => true,
            MatchedBy::Unmatched | MatchedBy::Contradicted => return None,
            _ => false,
        };
        self.found.inferred += u64::from(!is_exact);
        let member = self.member(event, comm)?;
        let is_root = || i64::from(self.found.members[member as usize].rank) == root.unwrap_or(0) as i64;
        let function = Function::try_from(function? as i32).ok()?;
        let role = match function {
            Function::AllReduce | Function::AllGather | Function::ReduceScatter | Function::AlltoAll => Role::Both,
            Function::Send => Role::Gives,
            Function::Recv => Role::Takes,
            Function::Broadcast | Function::Scatter if is_root() => Role::Gives,
            Function::Broadcast | Function::Scatter => Role::Takes,
            Function::Reduce | Function::Gather if is_root() => Role::Takes,
            Function::Reduce | Function::Gather => Role::Gives,
            _ => return None,
        };
        Some(Visit {
            operation: (comm, mark, run),
            member,
            error_ns: error.min(u32::MAX.into()) as u32,
            entered: time,
            left: time,
            queued_ns: queued_ns.unwrap_or(0),
            role,
            is_exact,
            is_send_recv: matches!(function, Function::Send | Function::Recv),
            peer: peer.unwrap_or(0) as i32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlate::tests::{Player, tag};
    use crate::model::activity::Place;
    use crate::model::timeline::{Entry, What};
    use crate::trace::reader;
    use crate::trace::tracks::{ProcessInfo, Tracks};
    use crate::trace::writer::Clocks;

    pub(super) fn visit(operation: u64, member: u32, entered: u64) -> Visit {
        Visit {
            operation: (7, operation, 0),
            member,
            error_ns: 0,
            entered: HostNs(entered),
            left: HostNs(entered + 10),
            queued_ns: 0,
            role: Role::Both,
            is_exact: true,
            is_send_recv: false,
            peer: 0,
        }
    }

    #[test]
    fn tracks_are_recognised_by_their_names() {
        let known = |name: &str| match Known::of(name, 5) {
            Some(Known::Operations { label, group }) => format!("{label} in {group}"),
            Some(Known::Transfers { label, peer, is_send }) => {
                format!("{label} {} {peer}", if is_send { "to" } else { "from" })
            }
            None => String::new(),
        };
        for (name, told) in [
            ("dp · rank 3 of 8", "dp in 5"),
            ("stride 8 1f2e3d4c · rank 3 of 8", "stride 8 1f2e3d4c in 5"),
            ("dp · rank 3 of 8 · handed over", ""),
            ("dp · send → 4 · steps", "dp to 4"),
            ("dp · receive ← 12 · steps", "dp from 12"),
            ("dp · send → 4", ""),
            ("other peers · send · steps", ""),
            ("busbw", ""),
        ] {
            assert_eq!(known(name), told, "{name}");
        }
    }

    #[test]
    fn transfers_between_other_ranks_on_other_channels_are_others() {
        let mut all = FxHashSet::default();
        for from in 0..8 {
            for to in 0..8 {
                for (channel, step) in (0..8).flat_map(|channel| (0..8).map(move |step| (channel, step))) {
                    all.insert(transfer((7, 1), from, to, channel, step));
                }
            }
        }
        assert_eq!(all.len(), 8 * 8 * 8 * 8);
    }

    #[test]
    fn samples_of_all_files_keep_the_same_operations() {
        let (mut one, mut other) = (Sample::of(100), Sample::of(1_000));
        for number in 0..1_000 {
            one.push(visit(number, 0, 1), Visit::mark);
            other.push(visit(number, 1, 1), Visit::mark);
        }
        assert!(one.kept.len() <= 100 && one.kept.len() > 30 && other.left_out == 0);
        other.leave_out(one.left_out, Visit::mark);
        let marks = |of: &Sample<Visit>| of.kept.iter().map(|it| it.operation.1).collect::<Vec<_>>();
        assert_eq!(marks(&one), marks(&other));
    }

    #[test]
    fn a_match_that_was_contradicted_later_is_not_exact() {
        let clocks = Clocks { boottime: HostNs(0), monotonic: 0, realtime: 0 };
        let process = ProcessInfo { pid: 1, name: String::new(), labels: Vec::new(), rank: None, world_size: None };
        let mut tracks = Tracks::new(tag(), clocks, &process);
        let mut operations = "0 0 thread 100 python3 | 0 0 comm C hash=7 rank=0 ranks=2 interface=7".to_owned();
        for n in 1..=3 {
            operations += &format!(
                "\n{n} 0 start g{n} GroupApi | {n} 0 start a{n} CollApi parent=g{n} | {n} 0 stop a{n}
                 {n} 0 start l{n} KernelLaunch parent=g{n} | {n} 0 launch corr={n} in=l{n} group=g{n} | {n} 0 stop l{n}
                 {n} 0 start p{n} Group | {n} 0 start c{n} Coll parent=a{n} group=p{n} seq={n} | {n} 0 stop c{n}
                 {n} 0 stop p{n} | {n} 0 stop g{n} | {n}9 0 kernel {n}0 corr={n}"
            );
        }
        Player::new().play(&operations, &mut |_, entry| tracks.draw(entry));
        let place = Place { device: 0, context: 1, stream: 13 };
        tracks.draw(&Entry { time: HostNs(20), what: What::Contradicted { place, correlation: 2, graph_node: 0 } });
        let (mut looking, written) = (Looking::at_one_of(1), tracks.take());
        let look = |packet: &Packet<'_>| {
            looking.look(packet);
            Ok(())
        };
        reader::read::<reader::Error>(&written[..], look).unwrap();
        let found = looking.done();
        let visits: Vec<_> = found.visits.kept.iter().map(|it| (it.entered.0, it.is_exact)).collect();
        assert_eq!((visits, found.inferred), (vec![(10, true), (20, false), (30, true)], 1));
    }

    #[test]
    fn waits_of_an_operation_are_added_up_wherever_they_are() {
        let mut looking = Looking::at_one_of(1);
        looking.found.members.push(Member {
            process: 1,
            comm: 7,
            label: "dp".into(),
            rank: 0,
            size: 2,
            group: None,
            clock: 0,
            moved: Moved::default(),
            error_ns: 0,
        });
        // Three times those of each, the later operations first.
        let marks = ADDED_UP as u64;
        for n in 0..3 * marks {
            looking.waited(((0, marks - 1 - n / 3), [1, n % 3, 0]));
        }
        assert!(looking.found.waits.len() <= 2 * ADDED_UP + 1);
        let waits = looking.done().waits;
        assert_eq!(waits, (0..marks).map(|mark| ((0, mark), [3, 3, 0])).collect::<Vec<_>>());
    }
}
