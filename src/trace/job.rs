//! What only the traces of all ranks together show: who waited for whom, and which send belongs to
//! which receive. `ncclscope merge` draws it beside the traces.
//!
//! ```text
//! Job                           the answer of `ncclscope diagnose`
//!   Diagnosis                   what makes the job slow, where it shows best
//!   dp · first to last rank     a slice for each collective, named by the rank that came last
//!   dp · ranks waiting          how many ranks wait for the last one
//! rank 3 · node17
//!   Communicators
//!     dp · rank 3 of 64 · waits   what the time of each collective went into: waiting, and the transfer
//! ```

use super::args::Args;
use super::counters::Counter;
use super::fields::nccl;
use super::lanes::{FamilyId, Lanes, Look, Placing};
use super::names::{Fixed, Text};
use super::words::{Category, attribute, slice, track};
use super::writer::{Clocks, Extra, Form, Place, Sequence, Track, Unit, Writer};
use crate::model::ids::ProcessTag;
use crate::model::time::HostNs;

/// Lanes per communicator.
const LANES: usize = 16;
/// How many communicators and ranks get tracks.
const OWN: u32 = 16_000;
/// After all other tracks of the communicators.
const LAST: u32 = u32::MAX >> 1;

/// Tracks about a whole job. They belong to no process, and lie beside those of all files.
pub struct JobTracks {
    lanes: Lanes,
    args: Args,
    group: Option<Track>,
    transfers: Option<Sequence>,
    /// How many arrows there are so far.
    arrows: u64,
    /// How many communicators and ranks have no tracks, because there are too many.
    left_out: u64,
    tag: ProcessTag,
}

/// The tracks of a rank in a communicator.
#[derive(Clone, Copy)]
pub struct RankTracks(FamilyId);

/// The tracks of a communicator.
#[derive(Clone, Copy)]
pub struct CommTracks {
    first_to_last: FamilyId,
    waiting: Option<Counter>,
}

/// What `ncclscope diagnose` says about a job: each from when to when, and in a sentence.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// The answer, over the steps that were looked at, or over the time for which the job hung.
    pub answer: Option<(HostNs, HostNs, String)>,
    /// What makes the job slow, each in the step in which it shows best.
    pub causes: Vec<(HostNs, HostNs, String)>,
}

/// A collective, or the sends and receives of one rank's kernel, and which rank came to it last.
#[derive(Clone, Debug)]
pub struct Collective {
    /// The operation's mark, as in the files.
    pub correlation: u64,
    /// When the first rank came.
    pub first: HostNs,
    /// How far the time from the first rank to the last one may be off, ns.
    pub first_error_ns: u64,
    /// When the last rank came.
    pub last: HostNs,
    /// The last rank, by its number in the communicator.
    pub last_rank: i32,
    /// How much later it came than the one before it, ns. `None` if all ranks wait for one rank
    /// anyway.
    pub late_ns: Option<u64>,
    /// How far `late_ns` may be off, by the clocks of both ranks, ns.
    pub late_error_ns: u64,
    /// How many ranks' parts are known.
    pub ranks: u32,
    /// How many sends and receives the kernel carried; 0 for a collective.
    pub transfers: u32,
    /// Why another rank may have been the last, whatever the clocks say.
    pub doubt: Option<String>,
}

/// One rank's part in a collective, or its sends and receives.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// When its kernel began.
    pub entered: HostNs,
    /// When it ended.
    pub left: HostNs,
    /// The time from its hand-over to the begin of its kernel, ns.
    pub queued_ns: u64,
    /// How far its wait may be off, ns.
    pub error_ns: u64,
    /// How long its sends waited for the GPU, the peer and the network, summed over sends that
    /// overlap, ns.
    pub sends: Option<[u64; 3]>,
}

impl Collective {
    /// Whether it is known who came last: nothing else is in doubt, and the clocks are good enough.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.doubt.is_none() && self.late_ns.is_none_or(|late| late > self.late_error_ns)
    }

    fn doubt(&self) -> Option<String> {
        let Collective { last_rank, late_ns, late_error_ns, .. } = self;
        let late = late_ns.filter(|_| !self.is_certain());
        let unclear = |late| {
            format!(
                "rank {last_rank} came {late} ns after the one before it, and their clocks are known to {late_error_ns} ns"
            )
        };
        self.doubt.clone().or_else(|| late.map(unclear))
    }
}

impl JobTracks {
    /// `tag` must be one that no process of the files has. Nothing is drawn before `first`.
    #[must_use]
    pub fn new(tag: ProcessTag, first: HostNs) -> JobTracks {
        let mut writer = Writer::new(tag, Clocks { boottime: first, monotonic: 0, realtime: 0 });
        writer.attributes(&[(attribute::MERGED, &tag.bits().to_string())]);
        let place = Place { orders_children: true, ..Place::default() };
        let group = writer.track(Form::Plain { name: track::JOB }, place);
        JobTracks { lanes: Lanes::new(writer), args: Args::new(), group, transfers: None, arrows: 0, left_out: 0, tag }
    }

    /// The tracks of a rank; `group` is the uuid of its other tracks' group. `None` if there are
    /// too many.
    pub fn rank(&mut self, group: u64, label: &str, rank: i32, size: i32) -> Option<RankTracks> {
        let place = Placing {
            parent: Some(Track::elsewhere(group)),
            rank: LAST,
            description: "What the time of each operation went into on this rank: waiting for the last rank, and the transfer.",
        };
        let name = format!("{label}{}{rank} of {size}{}", track::RANK, track::WAITS);
        self.has_room().then(|| RankTracks(self.lanes.family(name, place, LANES)))
    }

    /// The tracks of a communicator whose first collective begins at `first`. `None` if there are
    /// too many.
    pub fn communicator(&mut self, label: &str, first: HostNs) -> Option<CommTracks> {
        if !self.has_room() {
            return None;
        }
        let place = |description| Placing { parent: self.group, rank: 0, description };
        let first_to_last =
            place("From the first rank's begin of each collective to the last one's. Named by who was last.");
        let first_to_last = self.lanes.family(format!("{label}{}", track::FIRST_TO_LAST), first_to_last, LANES);
        let description = "Ranks that have begun an operation and wait for another rank.";
        let place = Place { parent: self.group, rank: Some(0), description, ..Place::default() };
        let name = format!("{label}{}", track::WAITING);
        let waiting = Counter::new(&mut self.lanes.writer, &name, Unit::Named("ranks"), place, first);
        Some(CommTracks { first_to_last, waiting })
    }

    /// Draws what `ncclscope diagnose` says. The answer lies on the group itself, which is in view
    /// before anything is expanded.
    pub fn diagnosis(&mut self, Diagnosis { answer, causes }: &Diagnosis) {
        let description = "What `ncclscope diagnose` found, each in the step in which it shows best.";
        let place = Placing { parent: self.group, rank: 0, description };
        let tracks = self.lanes.family(track::DIAGNOSIS.to_owned(), place, LANES);
        for (begin, end, text) in causes {
            let name = Text(text);
            self.lanes.whole(tracks, *begin, *end, &Look::new(Category::Job, &name), self.args.clear());
        }
        if let (Some(group), Some((begin, end, text))) = (self.group, answer) {
            let writer = &mut self.lanes.writer;
            let sequence = writer.sequence(group, *begin);
            writer.begin(sequence, group, *begin, Category::Job, &Text(text), &Extra::default());
            writer.end(sequence, group, *end, &Extra::default());
        }
    }

    /// Draws which rank came last to a collective.
    pub fn collective(&mut self, tracks: CommTracks, it: &Collective) {
        self.args.clear().int(nccl::LAST_RANK, it.last_rank).uint(nccl::RANKS, it.ranks.into());
        if let Some(late) = it.late_ns {
            self.args.uint(nccl::LATE_NS, late).uint(nccl::TIME_ERROR_NS, it.late_error_ns);
        }
        let begin = || format!("the time from the first rank to the last one is known to {} ns", it.first_error_ns);
        let is_loose = it.first_error_ns > it.last.since(it.first) / 2;
        if let Some(doubt) = it.doubt().or_else(|| is_loose.then(begin)) {
            self.args.text(nccl::DOUBT, &doubt);
        }
        let name = if it.is_certain() { format!("rank {}", it.last_rank) } else { "not known who".to_owned() };
        let name = Text(&name);
        let look = Look::new(Category::Job, &name);
        self.lanes.whole(tracks.first_to_last, it.first, it.last, &look, &mut self.args);
    }

    /// Draws one rank's part. The arrow leads through the parts of all ranks.
    pub fn part(&mut self, tracks: RankTracks, it: &Collective, part: &Part, arrow: Option<u64>) {
        let Part { entered, left, queued_ns, error_ns, sends } = *part;
        let (wait, transfer) = (it.last.since(entered), left.since(it.last.max(entered)));
        let mut arrow = arrow;
        let mut draw = |start: HostNs, end: HostNs, name: &str, doubt: Option<String>| {
            self.args
                .clear()
                .uint(nccl::WAIT_NS, wait)
                .uint(nccl::TRANSFER_NS, transfer)
                .uint(nccl::QUEUED_NS, queued_ns);
            self.args.int(nccl::LAST_RANK, it.last_rank).uint(nccl::TIME_ERROR_NS, error_ns);
            for (field, ns) in
                [nccl::GPU_WAIT_NS, nccl::PEER_WAIT_NS, nccl::NETWORK_WAIT_NS].iter().zip(sends.unwrap_or_default())
            {
                self.args.nonzero(*field, ns);
            }
            self.args.nonzero(nccl::OPERATIONS, it.transfers.into());
            if let Some(doubt) = doubt {
                self.args.text(nccl::DOUBT, &doubt);
            }
            let arrow = arrow.take();
            let name = Text(name);
            let look = Look::new(Category::Job, &name).of(Some(it.correlation)).with(arrow.as_slice());
            self.lanes.whole(tracks.0, start, end, &look, &mut self.args);
        };
        if wait > 0 {
            let doubt = (wait <= error_ns).then(|| format!("the clocks are known to {error_ns} ns"));
            let name = match it.is_certain() {
                true => format!("{}{}", slice::WAITS_FOR, it.last_rank),
                false => slice::WAITS.to_owned(),
            };
            draw(entered, it.last, &name, doubt.or_else(|| it.doubt()));
        }
        let early = it.last.since(left);
        let doubt = (early > error_ns).then(|| format!("it ended {early} ns before the last rank came"));
        draw(it.last.max(entered), left.max(it.last), slice::TRANSFER, doubt.or_else(|| it.doubt.clone()));
    }

    /// Draws how many ranks of a communicator wait; each change is added at its time.
    pub fn waiting(&mut self, tracks: CommTracks, changes: &mut [(HostNs, i64)]) {
        changes.sort_unstable();
        let mut count = 0;
        for (number, (time, change)) in changes.iter().enumerate() {
            count += change;
            if changes.get(number + 1).is_none_or(|next| next.0 > *time)
                && let Some(counter) = tracks.waiting
            {
                counter.set(&mut self.lanes.writer, *time, count);
            }
        }
    }

    /// Draws an arrow from when something was sent to when it had arrived, each on the track of its
    /// step, given by uuid.
    pub fn transfer(&mut self, sent: (u64, HostNs), arrived: (u64, HostNs)) {
        let arrow = self.arrow();
        for ((on, time), name) in [(sent, slice::SENT), (arrived, slice::ARRIVED)] {
            let on = Track::elsewhere(on);
            let sequence = *self.transfers.get_or_insert_with(|| self.lanes.writer.sequence(on, time));
            let extra = Extra { flows: &[arrow], ..Extra::default() };
            self.lanes.writer.instant(sequence, on, time, Category::Job, &Fixed(name), &extra);
        }
    }

    /// What was drawn since the last call, as whole packets.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        self.lanes.writer.take()
    }

    /// How many bytes are waiting to be taken.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.lanes.writer.pending_bytes()
    }

    /// How many communicators and ranks got no tracks.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    fn has_room(&mut self) -> bool {
        let has_room = self.lanes.writer.tracks() < OWN;
        self.left_out += u64::from(!has_room);
        has_room
    }

    /// A new arrow. Each is drawn from the slice that has it to the next one in time.
    pub fn arrow(&mut self) -> u64 {
        self.arrows += 1;
        self.tag.base() | self.arrows
    }
}
