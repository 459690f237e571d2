//! The yardstick: what a trace says of each kernel, held against the truth.
//!
//! Everything here is plain values. Who reads the trace, and how, is the caller's business; so a test can change what was read
//! and see that the judgement changes with it.
//!
//! A kernel is known in both by the call that launched it and, in a graph, by its node. Its match is right when the operations
//! that the trace names are those that it carried: as many, of the same functions, with the same buffers, peers, roots and
//! sizes, on the same communicator. Operations of a program's loop may agree in all of that. Therefore the numbers that the
//! trace gives those that agree must also rise in the order in which their kernels were launched. Where they do not, and the
//! kernels are those of a graph, the match is to another run of it: counted apart, and a fault all the same.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use crate::time::DeviceTimer;
use crate::truth::{Kernel, Line, Operation, Process};

/// What identifies a kernel: the correlation id of its launch and, in a graph, its node, else 0.
pub type Key = (u32, u64);

/// What a trace says of one process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// Its kernels.
    pub kernels: Vec<SeenKernel>,
    /// The work of channels, as far as the trace says when the GPU did it.
    pub channels: Vec<SeenChannel>,
    /// Records that CUPTI dropped, by the recording's own account.
    pub dropped: u64,
    /// Buffers of records that the recording had no room for, by its own account.
    pub discarded: u64,
    /// Kernels that the trace says had not ended when CUPTI was flushed by force, and so are not in it.
    pub unfinished: u64,
}

/// A kernel as a trace shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenKernel {
    /// Which one it is.
    pub key: Key,
    /// The device.
    pub device: u32,
    /// The stream's id.
    pub stream: u32,
    /// The kernel, as in the symbol table.
    pub symbol: String,
    /// When it began, on the host's boot clock, in ns.
    pub begin: i64,
    /// When it ended.
    pub end: i64,
    /// How far both may be off, by the trace's own account.
    pub error: i64,
    /// Whose it is.
    pub claim: Claim,
}

/// One piece of work of a channel as a trace shows it, with the GPU's stamp mapped onto the host's clock.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenChannel {
    /// What it worked on, by the trace.
    pub name: String,
    /// The channel.
    pub channel: u32,
    /// The GPU's stamp of its beginning, by which it is known in the truth.
    pub timer_start: u64,
    /// When it began, on the host's boot clock, in ns.
    pub begin: i64,
    /// When it ended, if the trace says.
    pub end: Option<i64>,
    /// How far both may be off, by the trace's own account.
    pub error: i64,
}

/// Whose a kernel is, by the trace.
#[derive(Debug, Clone, PartialEq)]
pub enum Claim {
    /// The application's.
    Application,
    /// NCCL's, and nobody knows what it carried, for this reason.
    Unmatched(String),
    /// It carried operations.
    Operations {
        /// How that is known, in the trace's word: `exact_launch_bracket`.
        method: String,
        /// The communicator's hash.
        comm: Option<u64>,
        /// In a graph, which run of the captured launch it was, from 1.
        run: Option<u64>,
        /// How many.
        count: u64,
        /// Those that are shown; of many, the first.
        shown: Vec<SeenOperation>,
    },
}

/// An operation that a kernel carried, by the trace. What is missing was not told.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeenOperation {
    /// `AllReduce`, `Send`, ...
    pub function: String,
    /// The address it read from.
    pub send: Option<u64>,
    /// The address it wrote to; a receive has its only buffer in [`SeenOperation::send`].
    pub receive: Option<u64>,
    /// Bytes, as the call counts them.
    pub bytes: Option<u64>,
    /// The peer or the root.
    pub root: Option<i32>,
    /// Its number among those of its communicator, function and, for sends and receives, peer.
    pub number: Option<u64>,
    /// The id that it has in the traces of all ranks.
    pub id: Option<u64>,
}

/// What is demanded of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Every kernel is there, and each of which NCCL tells an operation is matched.
    Whole,
    /// Every kernel is there, and none is matched wrongly.
    NeverWrong,
    /// As [`Demand::Whole`] of the kernels whose records were not lost, by the recording's own account.
    WholeButDropped,
    /// As [`Demand::NeverWrong`] of the kernels whose records were not lost, by the recording's own account.
    NeverWrongButDropped,
    /// There are no kernels.
    Nothing,
}

/// How a trace, or several, stood the test.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// Kernels that ran with operations of which NCCL tells a profiler.
    pub kernels: u64,
    /// Those matched rightly, by method.
    pub right: BTreeMap<String, u64>,
    /// Those matched to what they did not carry, by method.
    pub wrong: BTreeMap<String, u64>,
    /// Those matched to another run of the graph that they ran from.
    pub other_run: u64,
    /// Those of the right ones that carried operations of which NCCL tells nothing besides those that the trace names.
    pub part: u64,
    /// Those of which the trace says that it does not know, by reason.
    pub unmatched: BTreeMap<String, u64>,
    /// Kernels of operations of which NCCL tells nothing, matched rightly all the same, and not matched.
    pub untold: (u64, u64),
    /// Kernels that ran and are not in the trace, the application's among them.
    pub missing: u64,
    /// Kernels that are not in the trace because CUPTI was lent while they ran or were launched.
    pub lent: u64,
    /// Those of the right ones of which the trace does not say which run of their graph they were.
    pub open: u64,
    /// Kernels in the trace that never ran, or ran once and are there twice.
    pub invented: u64,
    /// Records that CUPTI dropped, by the recording's own account.
    pub dropped: u64,
    /// Buffers of records that the recording had no room for, by its own account.
    pub discarded: u64,
    /// Kernels that the trace says had not ended when CUPTI was flushed by force, and so are not in it.
    pub unfinished: u64,
    /// Ids that stand for different operations in the traces of two ranks. NCCL numbers operations when it hands them over, which
    /// ranks may do in another order where graphs are replayed; so this is counted and no fault.
    pub torn: u64,
    /// What matching by stream and order alone would have reached.
    pub naive: Naive,
    /// The clocks, by the times of kernels.
    pub clock: Clock,
    /// Pieces of work of channels whose time on the GPU is told.
    pub channels: u64,
    /// Those of them that no kernel stamped.
    pub unknown_channels: u64,
    /// The GPUs' timers, by the times of channels.
    pub timer: Clock,
    /// The same by those alone that began a second or more after the first on their GPU, where the trace has kernels.
    pub later: Clock,
    /// A sentence about each of the first faults.
    pub examples: Vec<String>,
}

/// The n-th kernel of NCCL's on a stream belongs to the n-th launch on that stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Naive {
    /// Kernels that this gets right.
    pub right: u64,
    /// Kernels that it takes for others.
    pub wrong: u64,
    /// Kernels for which it has no launch.
    pub unmatched: u64,
}

/// How far times were off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clock {
    /// The largest error of a beginning or an end, in ns.
    pub worst: i64,
    /// The largest error that the trace admitted, in ns.
    pub bound: i64,
    /// Those whose true beginning or end was outside of what the trace admitted.
    pub outside: u64,
    /// Those of which the trace admitted a larger error than they are long: then it says nothing.
    pub wide: u64,
}

/// How many faults are told one by one.
const EXAMPLES: usize = 8;

/// The length of the shortest kernel of NCCL's on a real GPU, in ns: from its beginning to the first stamp of a channel, and from
/// the last one to its end, 3.1 to 3.7 us pass. Emulated ones may be shorter.
const SHORTEST_NS: i64 = 3_100;
/// The same of a channel, by the same kernels: what is asked of the timers' bound.
const SHORTEST_CHANNEL_NS: i64 = 4_000;

/// Judges the trace of one process.
///
/// # Panics
///
/// When the truth does not begin with its process.
#[must_use]
pub fn judge(truth: &[Line], seen: &Seen) -> Verdict {
    let truth = Truth::new(truth);
    let mut verdict =
        Verdict { dropped: seen.dropped, discarded: seen.discarded, unfinished: seen.unfinished, ..Verdict::default() };
    let mut by_key: HashMap<Key, &SeenKernel> = HashMap::new();
    for kernel in &seen.kernels {
        let is_first = by_key.insert(kernel.key, kernel).is_none();
        if !is_first || !truth.by_key.contains_key(&kernel.key) {
            verdict.invented += 1;
            verdict.example(|| format!("{} {:?} never ran, or is there twice", kernel.symbol, kernel.key));
        }
    }
    let out_of_order = out_of_order(&truth, &by_key);
    let runs = runs(&truth);
    for kernel in &truth.kernels {
        let told = truth.is_told(kernel);
        verdict.kernels += u64::from(told);
        let Some(seen) = by_key.get(&key(kernel)) else {
            if truth.is_lent(kernel) {
                verdict.lent += 1
            } else {
                verdict.missing += 1
            }
            continue;
        };
        verdict.judge_times(&truth, kernel, seen);
        let fault = match &seen.claim {
            Claim::Application if !kernel.operations.is_empty() => Some("it is taken for the application's".to_owned()),
            Claim::Application => continue,
            Claim::Unmatched(_) if kernel.device_comm.is_none() => Some("it is none of NCCL's".to_owned()),
            Claim::Unmatched(reason) => {
                if told {
                    *verdict.unmatched.entry(reason.clone()).or_default() += 1;
                } else {
                    verdict.untold.1 += 1;
                }
                continue;
            }
            Claim::Operations { comm, run, count, shown, .. } => {
                let said = run.zip(runs.get(&seen.key)).filter(|(said, was)| said != *was);
                let said = said.map(|(said, was)| format!("this is run {was}, not {said}"));
                let order = said.or_else(|| out_of_order.get(&seen.key).cloned());
                match truth.difference(kernel, *comm, *count, shown) {
                    None if order.is_some() && kernel.graph.is_some() => {
                        verdict.other_run += 1;
                        verdict.example(|| format!("{} {:?}: {}", seen.symbol, seen.key, order.unwrap_or_default()));
                        continue;
                    }
                    fault => fault.or(order),
                }
            }
        };
        let method = if let Claim::Operations { method, .. } = &seen.claim { method } else { "" };
        match fault {
            Some(fault) => {
                *verdict.wrong.entry(method.to_owned()).or_default() += 1;
                verdict.example(|| format!("{} {:?}, {method}: {fault}", seen.symbol, seen.key));
            }
            None if told => {
                *verdict.right.entry(method.to_owned()).or_default() += 1;
                let Claim::Operations { count, run, .. } = &seen.claim else { continue };
                verdict.open += u64::from(kernel.graph.is_some() && run.is_none());
                verdict.part += u64::from(*count < kernel.operations.len() as u64);
            }
            None => verdict.untold.0 += 1,
        }
    }
    verdict.judge_channels(&truth, seen);
    verdict.naive = naive(&truth, seen);
    verdict
}

/// Judges the traces of all processes of a job, and whether an operation has the same id in all of them.
///
/// # Panics
///
/// As [`judge`].
#[must_use]
pub fn judge_job(processes: &[(Vec<Line>, Seen)]) -> Verdict {
    let mut verdict = Verdict::default();
    let mut ids: BTreeMap<u64, (&str, u64)> = BTreeMap::new();
    let mut torn: BTreeMap<u64, String> = BTreeMap::new();
    for (truth, seen) in processes {
        verdict.add(&judge(truth, seen));
        for operation in seen.kernels.iter().flat_map(SeenKernel::operations) {
            let Some((id, bytes)) = operation.id.zip(operation.bytes) else { continue };
            // A send and its receive have one id.
            let function = if operation.function == "Recv" { "Send" } else { operation.function.as_str() };
            let known = *ids.entry(id).or_insert((function, bytes));
            if known != (function, bytes) {
                torn.entry(id).or_insert_with(|| format!("{known:?} and {:?} have one id", (function, bytes)));
            }
        }
    }
    verdict.torn = torn.len() as u64;
    for text in torn.into_values() {
        verdict.example(|| text);
    }
    verdict
}

impl SeenKernel {
    /// The operations that the trace shows for it.
    fn operations(&self) -> &[SeenOperation] {
        if let Claim::Operations { shown, .. } = &self.claim { shown } else { &[] }
    }
}

impl Clock {
    /// Takes in one more thing of this length, so far off at its ends, of which so much was admitted.
    fn add(&mut self, off: &[i64], error: i64, long: i64) {
        let worst = off.iter().map(|it| it.abs()).max().unwrap_or_default();
        self.worst = self.worst.max(worst);
        self.bound = self.bound.max(error);
        self.outside += u64::from(worst > error);
        self.wide += u64::from(error > long.max(SHORTEST_NS));
    }

    fn join(&mut self, other: &Clock) {
        self.worst = self.worst.max(other.worst);
        self.bound = self.bound.max(other.bound);
        self.outside += other.outside;
        self.wide += other.wide;
    }
}

impl Verdict {
    /// Adds that of another process or job.
    pub fn add(&mut self, other: &Verdict) {
        let join = |to: &mut BTreeMap<String, u64>, from: &BTreeMap<String, u64>| {
            for (name, number) in from {
                *to.entry(name.clone()).or_default() += number;
            }
        };
        self.kernels += other.kernels;
        join(&mut self.right, &other.right);
        join(&mut self.wrong, &other.wrong);
        self.other_run += other.other_run;
        self.torn += other.torn;
        self.part += other.part;
        join(&mut self.unmatched, &other.unmatched);
        self.untold = (self.untold.0 + other.untold.0, self.untold.1 + other.untold.1);
        self.missing += other.missing;
        self.lent += other.lent;
        self.open += other.open;
        self.invented += other.invented;
        self.dropped += other.dropped;
        self.discarded += other.discarded;
        self.unfinished += other.unfinished;
        self.naive.right += other.naive.right;
        self.naive.wrong += other.naive.wrong;
        self.naive.unmatched += other.naive.unmatched;
        self.clock.join(&other.clock);
        self.channels += other.channels;
        self.unknown_channels += other.unknown_channels;
        self.timer.join(&other.timer);
        self.later.join(&other.later);
        let room = EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.iter().take(room).cloned());
    }

    /// Kernels matched rightly.
    #[must_use]
    pub fn all_right(&self) -> u64 {
        self.right.values().sum()
    }

    /// Kernels matched wrongly.
    #[must_use]
    pub fn all_wrong(&self) -> u64 {
        self.wrong.values().sum()
    }

    /// Kernels of which NCCL tells an operation and the trace does not know it.
    #[must_use]
    pub fn all_unmatched(&self) -> u64 {
        self.unmatched.values().sum()
    }

    /// What is not as demanded, a sentence each.
    #[must_use]
    pub fn faults(&self, demand: Demand) -> Vec<String> {
        let mut faults = Vec::new();
        let mut none = |number: u64, what: &str| {
            if number > 0 {
                faults.push(format!("{number} {what}"));
            }
        };
        none(self.all_wrong(), "matched wrongly");
        none(self.other_run, "matched to another run of their graph");
        none(self.invented, "in the trace that never ran");
        none(self.clock.outside, "outside of the stated error");
        none(self.clock.wide, "with a stated error larger than the kernel is long");
        none(self.unknown_channels, "channels that no kernel stamped");
        none(self.timer.outside, "channels outside of the stated error");
        none(self.timer.wide, "channels with a stated error larger than their kernel is long");
        let seen = self.all_right() + self.all_wrong() + self.other_run + self.all_unmatched();
        let missing = self.missing.saturating_sub(self.unfinished);
        match demand {
            Demand::Nothing => none(seen, "in a trace that should have none"),
            Demand::Whole | Demand::NeverWrong if self.discarded > 0 => {
                none(missing, &format!("missing in the trace, which tells of {} discarded buffers", self.discarded));
            }
            Demand::Whole | Demand::NeverWrong => none(missing, "missing in the trace"),
            // How many records a discarded buffer had, nobody knows.
            Demand::WholeButDropped | Demand::NeverWrongButDropped if self.discarded > 0 => {}
            Demand::WholeButDropped | Demand::NeverWrongButDropped => {
                none(missing.saturating_sub(self.dropped), "missing in the trace, and not counted as dropped");
            }
        }
        if matches!(demand, Demand::Whole | Demand::WholeButDropped) {
            none(self.all_unmatched(), "not matched");
        }
        if matches!(demand, Demand::Whole | Demand::NeverWrong) && seen == 0 && self.kernels > 0 {
            faults.push("no kernel was judged".to_owned());
        }
        faults
    }

    fn judge_times(&mut self, truth: &Truth<'_>, kernel: &Kernel, seen: &SeenKernel) {
        let off = [(seen.begin, kernel.start), (seen.end, kernel.end)].map(|(at, was)| at - truth.boot(was));
        let long = kernel.end.saturating_sub(kernel.start) as i64;
        let before = self.clock;
        self.clock.add(&off, seen.error, long);
        let when = (kernel.start as i64 - truth.process.clocks.reference as i64) as f64 / 1e9;
        let (symbol, key, error) = (&seen.symbol, seen.key, seen.error);
        if self.clock.outside > before.outside {
            self.example(|| format!("{symbol} {key:?}, {when:.3} s: off by {off:?} ns where {error} are stated"));
        }
        if self.clock.wide > before.wide {
            self.example(|| format!("{symbol} {key:?}, {when:.3} s: {long} ns long, {error} ns uncertain"));
        }
    }

    fn judge_channels(&mut self, truth: &Truth<'_>, seen: &Seen) {
        /// What a kernel stamped.
        struct Stamped {
            times: [i64; 2],
            /// How long the kernel is that it has to fit into. Where the trace has none, there is nothing to be judged by its time, and it may be as
            /// uncertain as it says.
            room: Option<i64>,
            /// A second or more after the first on this GPU.
            later: bool,
        }
        let shown: HashSet<Key> = seen.kernels.iter().map(|kernel| kernel.key).collect();
        let mut first: HashMap<u32, i64> = HashMap::new();
        let mut stamped: HashMap<(u32, u64), Vec<Stamped>> = HashMap::new();
        for (kernel, channel) in
            truth.kernels.iter().flat_map(|kernel| kernel.channels.iter().map(move |channel| (kernel, channel)))
        {
            // The stamps are those of a batch of works, each of which began later and ended earlier.
            let times = match truth.timers.get(&kernel.device) {
                Some(timer) => [timer.when(channel.timer_start), timer.when(channel.timer_end)],
                None => [channel.start, channel.end],
            };
            let times = times.map(|time| truth.boot(time));
            let room = shown.contains(&key(kernel)).then(|| (kernel.end - kernel.start) as i64);
            let later = times[0] - *first.entry(kernel.device).or_insert(times[0]) >= 1_000_000_000;
            stamped.entry((channel.channel, channel.timer_start)).or_default().push(Stamped { times, room, later });
        }
        for channel in &seen.channels {
            self.channels += 1;
            // Timers of two GPUs may show the same, and two works of a batch may begin within one step of theirs; then it is the one that fits
            // better.
            let off = |stamped: &Stamped| {
                let [start, end] = stamped.times;
                [channel.begin - start, channel.end.map_or(0, |at| at - end)]
            };
            let candidates = stamped.get(&(channel.channel, channel.timer_start)).into_iter().flatten();
            let Some(stamped) = candidates.min_by_key(|stamped| off(stamped).map(i64::abs).into_iter().max()) else {
                self.unknown_channels += 1;
                continue;
            };
            let off = off(stamped);
            let room = stamped.room.map_or(i64::MAX, |room| room.max(SHORTEST_CHANNEL_NS));
            let before = self.timer;
            self.timer.add(&off, channel.error, room);
            if stamped.later && stamped.room.is_some() {
                self.later.add(&off, channel.error, room);
            }
            let SeenChannel { name, channel: number, error, .. } = channel;
            if self.timer.outside > before.outside {
                self.example(|| format!("{name}, channel {number}: off by {off:?} ns where {error} are stated"));
            }
            if self.timer.wide > before.wide {
                let when = (stamped.times[0] - truth.boot(truth.process.clocks.reference)) as f64 / 1e9;
                self.example(|| {
                    format!("{name}, channel {number}, {when:.3} s: its kernel is {room} ns long, {error} ns uncertain")
                });
            }
        }
    }

    fn example(&mut self, text: impl FnOnce() -> String) {
        if self.examples.len() < EXAMPLES {
            self.examples.push(text());
        }
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}/{:.1} us", self.worst as f64 / 1e3, self.bound as f64 / 1e3)
    }
}

/// One process's truth, with what is looked up in it.
struct Truth<'a> {
    process: &'a Process,
    timers: HashMap<u32, &'a DeviceTimer>,
    kernels: Vec<&'a Kernel>,
    by_key: HashMap<Key, &'a Kernel>,
    /// The hash of each kernel's communicator and the line that tells of it. Addresses are used again, so they hold as far as
    /// the file has been read, and some releases use hashes again.
    comms: HashMap<Key, (u64, usize)>,
    /// From when to when CUPTI was lent.
    lent: Vec<[u64; 2]>,
}

/// What identifies a kernel of the truth.
#[must_use]
pub fn key(kernel: &Kernel) -> Key {
    (kernel.correlation, kernel.graph.map_or(0, |place| place.node))
}

impl<'a> Truth<'a> {
    fn new(lines: &'a [Line]) -> Truth<'a> {
        let process = lines.iter().find_map(|line| if let Line::Process(it) = line { Some(it) } else { None });
        let process = process.expect("the truth begins with its process");
        let mut hashes: HashMap<u64, (u64, usize)> = HashMap::new();
        let timers = HashMap::new();
        let mut truth = Truth {
            process,
            timers,
            kernels: Vec::new(),
            by_key: HashMap::new(),
            comms: HashMap::new(),
            lent: Vec::new(),
        };
        for (place, line) in lines.iter().enumerate() {
            match line {
                Line::Device(it) => {
                    truth.timers.insert(it.device, &it.timer);
                }
                Line::Lend(it) if it.release => truth.lent.push([it.called, u64::MAX]),
                Line::Lend(it) => truth.lent.iter_mut().for_each(|[_, end]| *end = it.returned.min(*end)),
                Line::Communicator(it) => hashes.extend(it.device_comm.zip(it.hash.map(|hash| (hash, place)))),
                Line::Kernel(it) => {
                    let hash = it.device_comm.and_then(|address| hashes.get(&address));
                    truth.comms.extend(hash.map(|hash| (key(it), *hash)));
                    truth.kernels.push(it);
                    truth.by_key.insert(key(it), it);
                }
                _ => {}
            }
        }
        truth
    }

    /// Whether CUPTI was lent at some time from a kernel's launch to its end.
    fn is_lent(&self, kernel: &Kernel) -> bool {
        self.lent.iter().any(|[from, to]| kernel.called <= *to && kernel.end >= *from)
    }

    /// A true time on the host's boot clock.
    fn boot(&self, at: u64) -> i64 {
        let clocks = &self.process.clocks;
        at as i64 + clocks.boot.at(at as i64 - clocks.reference as i64)
    }

    /// Whether NCCL tells a profiler of any operation that a kernel carries.
    fn is_told(&self, kernel: &Kernel) -> bool {
        !kernel.operations.is_empty() && !kernel.operations.iter().all(|operation| self.is_silent(operation))
    }

    /// Whether NCCL tells a profiler nothing about an operation. Since 2.29 broadcasts go another way.
    fn is_silent(&self, operation: &Operation) -> bool {
        let another_way = self.process.nccl / 100 >= 229
            && self.process.environment.get("NCCL_ALLGATHERV_ENABLE").is_none_or(|value| value != "0");
        another_way && matches!(operation.function.as_str(), "Broadcast" | "AllGatherV")
    }

    /// How many of a kernel's operations NCCL tells of, where these are some and not all.
    fn told_part(&self, kernel: &Kernel) -> Option<u64> {
        let told = kernel.operations.iter().filter(|operation| !self.is_silent(operation)).count();
        (told > 0 && told < kernel.operations.len()).then_some(told as u64)
    }

    /// What is wrong with the operations that the trace names for a kernel.
    fn difference(&self, kernel: &Kernel, comm: Option<u64>, count: u64, shown: &[SeenOperation]) -> Option<String> {
        if kernel.operations.is_empty() {
            return Some("it carried nothing".to_owned());
        }
        if let Some((named, (was, _))) = comm.zip(self.comms.get(&key(kernel)))
            && named != *was
        {
            return Some(format!("its communicator is {was:#x}, not {named:#x}"));
        }
        if count != kernel.operations.len() as u64 && self.told_part(kernel) != Some(count) {
            return Some(format!("it carried {} operations, not {count}", kernel.operations.len()));
        }
        let mut left: Vec<&Operation> = kernel.operations.iter().collect();
        for operation in shown {
            match left.iter().position(|carried| operation.can_be(carried)) {
                Some(place) => drop(left.swap_remove(place)),
                None => return Some(format!("it did not carry {operation:?}, but {:?}", kernel.operations)),
            }
        }
        None
    }
}

impl SeenOperation {
    /// Whether nothing that is known of this operation speaks against its being that one.
    fn can_be(&self, carried: &Operation) -> bool {
        let agrees = |told: Option<u64>, was: u64| told.is_none_or(|told| told == was);
        let broadcast = |function: &str| matches!(function, "Broadcast" | "AllGatherV");
        let is_function =
            self.function == carried.function || broadcast(&self.function) && broadcast(&carried.function);
        let buffers = match carried.function.as_str() {
            "Send" => agrees(self.send, carried.send),
            "Recv" => agrees(self.send, carried.receive),
            _ => agrees(self.send, carried.send) && agrees(self.receive, carried.receive),
        };
        is_function
            && buffers
            && agrees(self.bytes, carried.bytes())
            && self.root.is_none_or(|root| carried.root < 0 || root == carried.root)
    }
}

/// Which run of its captured launch each kernel of a graph was, from 1.
fn runs(truth: &Truth<'_>) -> HashMap<Key, u64> {
    let mut kernels: Vec<_> = truth.kernels.iter().filter_map(|kernel| Some((kernel, kernel.graph?))).collect();
    kernels.sort_by_key(|(kernel, _)| kernel.start);
    let mut counts: HashMap<u64, u64> = HashMap::new();
    let run = |(kernel, place): (&&Kernel, crate::truth::GraphPlace)| {
        let count = counts.entry(place.original_node).or_default();
        *count += 1;
        (key(kernel), *count)
    };
    kernels.into_iter().map(run).collect()
}

/// Kernels whose operations belong to another launch than theirs: their numbers do not rise in the order of the launches.
fn out_of_order(truth: &Truth<'_>, seen: &HashMap<Key, &SeenKernel>) -> HashMap<Key, String> {
    /// A communicator, an operation without its number, and whether the launch was captured. Numbers are given at the hand-over,
    /// which of different operations may come in another order than their launches, and so may that of replays.
    type Series = (usize, SeenOperation, bool);
    let mut series: BTreeMap<Series, Vec<(u64, Key, u64)>> = BTreeMap::new();
    for kernel in &truth.kernels {
        let Some(SeenKernel { claim: Claim::Operations { shown, .. }, .. }) = seen.get(&key(kernel)) else { continue };
        let Some(&(_, comm)) = truth.comms.get(&key(kernel)) else { continue };
        let captured = kernel.graph.is_some();
        let when = if captured { kernel.start } else { kernel.called };
        let mut first: BTreeMap<Series, u64> = BTreeMap::new();
        for operation in shown {
            let Some(number) = operation.number else { continue };
            let alike = SeenOperation { number: None, id: None, ..operation.clone() };
            let least = first.entry((comm, alike, captured)).or_insert(number);
            *least = number.min(*least);
        }
        for (of, number) in first {
            series.entry(of).or_default().push((when, key(kernel), number));
        }
    }
    let mut wrong = HashMap::new();
    for ((_, operation, captured), mut members) in series {
        members.sort_unstable();
        let numbers: Vec<u64> = members.iter().map(|(_, _, number)| *number).collect();
        let rising = longest_rising(&numbers, captured);
        let others = (0..numbers.len()).filter(|place| !rising[*place]);
        wrong.extend(others.map(|place| {
            let around = &numbers[place.saturating_sub(2)..numbers.len().min(place + 3)];
            let text = format!("{} number {} is out of order among {around:?}", operation.function, numbers[place]);
            (members[place].1, text)
        }));
    }
    wrong
}

/// Which members make up the longest series that rises, or, where `equal`, does not fall.
fn longest_rising(numbers: &[u64], equal: bool) -> Vec<bool> {
    // The place of the smallest last member of a series of each length, and for each place the one before it.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::new();
    for (place, number) in numbers.iter().enumerate() {
        let goes_on = |end: &usize| numbers[*end] < *number || equal && numbers[*end] == *number;
        let length = ends.partition_point(goes_on);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        ends.truncate(length.max(ends.len()));
        if length == ends.len() { ends.push(place) } else { ends[length] = place }
    }
    let mut chosen = vec![false; numbers.len()];
    let mut next = ends.last().copied();
    while let Some(place) = next {
        chosen[place] = true;
        next = before[place];
    }
    chosen
}

/// What matching by stream and order alone reaches on the same kernels. A captured launch counts once, just before its graph's
/// first run, on the stream that its kernels run on: that is the best it could hope for.
fn naive(truth: &Truth<'_>, seen: &Seen) -> Naive {
    let launch = |kernel: &Kernel| match kernel.graph {
        None => (kernel.correlation, 0),
        Some(place) => (0, place.original_node),
    };
    let mut kernels: Vec<&&Kernel> = truth.kernels.iter().filter(|kernel| !kernel.operations.is_empty()).collect();
    kernels.sort_by_key(|kernel| (kernel.called, kernel.graph.map(|place| place.node)));
    let mut known = HashSet::new();
    let mut launches: HashMap<(u32, u32), Vec<Key>> = HashMap::new();
    for kernel in kernels {
        if known.insert(launch(kernel)) {
            launches.entry((kernel.device, kernel.stream)).or_default().push(launch(kernel));
        }
    }
    let mut ran: Vec<&SeenKernel> = seen.kernels.iter().filter(|kernel| kernel.symbol.contains("nccl")).collect();
    ran.sort_by_key(|kernel| kernel.begin);
    let mut counts: HashMap<(u32, u32), usize> = HashMap::new();
    let mut naive = Naive::default();
    for kernel in ran {
        let Some(was) = truth.by_key.get(&kernel.key) else { continue };
        let stream = (kernel.device, kernel.stream);
        let place = counts.entry(stream).or_default();
        match launches.get(&stream).and_then(|launches| launches.get(*place)) {
            Some(taken) if *taken == launch(was) => naive.right += 1,
            Some(_) => naive.wrong += 1,
            None => naive.unmatched += 1,
        }
        *place += 1;
    }
    naive
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::HostClocks;
    use crate::truth::GraphPlace;

    const COMM: u64 = 0xc0;

    fn process() -> Line {
        Line::Process(Process {
            pid: 1,
            host: 0,
            ranks: vec![0],
            nccl: 23007,
            seed: 1,
            clocks: HostClocks::default(),
            environment: BTreeMap::new(),
        })
    }

    fn communicator() -> Line {
        Line::Communicator(crate::truth::Communicator {
            name: "world".into(),
            handle: 1,
            hash: Some(COMM),
            device_comm: Some(7),
            rank: 0,
            size: 2,
            world_rank: 0,
            device: 0,
        })
    }

    /// An AllReduce from 1000 us times `number` on, 100 us long, as every one of its loop.
    fn kernel(number: u32) -> Kernel {
        let start = u64::from(number) * 1_000_000;
        Kernel {
            correlation: number,
            thread: 1,
            called: start - 500_000,
            returned: start - 490_000,
            device: 0,
            context: 1,
            stream: 13,
            stream_handle: 0x13,
            symbol: "_Z17ncclDevKernel_All".into(),
            grid: 2,
            start,
            end: start + 100_000,
            graph: None,
            device_comm: Some(7),
            operations: vec![Operation {
                function: "AllReduce".into(),
                send: 0xa,
                receive: 0xb,
                count: 4,
                datatype: "ncclFloat32".into(),
                root: -1,
                algorithm: "RING".into(),
                protocol: "LL".into(),
                channels: (0, 1),
            }],
            channels: Vec::new(),
            aborted: false,
        }
    }

    /// What a trace says of it that is right in everything.
    fn seen(kernel: &Kernel) -> SeenKernel {
        let operation = SeenOperation {
            function: "AllReduce".into(),
            send: Some(0xa),
            receive: Some(0xb),
            bytes: Some(16),
            root: None,
            number: Some(u64::from(kernel.correlation)),
            id: Some(u64::from(kernel.correlation)),
        };
        SeenKernel {
            key: key(kernel),
            device: kernel.device,
            stream: kernel.stream,
            symbol: kernel.symbol.clone(),
            begin: kernel.start as i64,
            end: kernel.end as i64,
            error: 1_000,
            claim: Claim::Operations {
                method: "exact".into(),
                comm: Some(COMM),
                run: None,
                count: 1,
                shown: vec![operation],
            },
        }
    }

    fn job(kernels: &[Kernel]) -> (Vec<Line>, Seen) {
        let lines = [process(), communicator()].into_iter().chain(kernels.iter().cloned().map(Line::Kernel)).collect();
        (lines, Seen { kernels: kernels.iter().map(seen).collect(), ..Seen::default() })
    }

    fn operation(kernel: &mut SeenKernel) -> &mut SeenOperation {
        let Claim::Operations { shown, .. } = &mut kernel.claim else { panic!("it is matched") };
        &mut shown[0]
    }

    #[test]
    fn what_is_right_is_right() {
        let (truth, seen) = job(&[kernel(1), kernel(2), kernel(3)]);
        let verdict = judge(&truth, &seen);
        assert_eq!((verdict.kernels, verdict.all_right()), (3, 3), "{verdict:?}");
        assert_eq!(verdict.faults(Demand::Whole), [""; 0]);
        assert_eq!(verdict.naive, Naive { right: 3, wrong: 0, unmatched: 0 });
    }

    #[test]
    fn kernels_that_differ_in_nothing_but_their_number_cannot_be_swapped() {
        let (truth, mut seen) = job(&[kernel(1), kernel(2), kernel(3)]);
        let [first, second, _] = &mut seen.kernels[..] else { panic!("three") };
        std::mem::swap(&mut first.claim, &mut second.claim);
        let verdict = judge(&truth, &seen);
        assert_eq!(verdict.all_wrong(), 1, "{verdict:?}");
        assert_eq!(verdict.faults(Demand::NeverWrong), ["1 matched wrongly"]);
    }

    #[test]
    fn every_fact_about_an_operation_counts() {
        let changes: [fn(&mut SeenKernel); 7] = [
            |it| operation(it).function = "AllGather".into(),
            |it| operation(it).send = Some(0xc),
            |it| operation(it).receive = Some(0xc),
            |it| operation(it).number = Some(9),
            |it| it.claim = Claim::Application,
            |it| {
                let Claim::Operations { comm, .. } = &mut it.claim else { panic!("it is matched") };
                *comm = Some(COMM + 1);
            },
            |it| {
                let Claim::Operations { count, .. } = &mut it.claim else { panic!("it is matched") };
                *count = 2;
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let (truth, mut seen) = job(&[kernel(1), kernel(2), kernel(3)]);
            change(&mut seen.kernels[1]);
            assert_eq!(judge(&truth, &seen).all_wrong(), 1, "change {number}");
        }
    }

    #[test]
    fn sends_and_receives_are_known_by_peer_buffer_and_size() {
        let mut send = kernel(1);
        send.operations[0] = Operation {
            function: "Recv".into(),
            send: 0,
            receive: 0xb,
            count: 16,
            root: 3,
            ..send.operations[0].clone()
        };
        let right = SeenOperation {
            function: "Recv".into(),
            send: Some(0xb),
            receive: None,
            bytes: Some(16),
            root: Some(3),
            number: Some(0),
            id: None,
        };
        let wrong = [
            SeenOperation { root: Some(2), ..right.clone() },
            SeenOperation { send: Some(0xa), ..right.clone() },
            SeenOperation { bytes: Some(12), ..right.clone() },
        ];
        let judge_as = |operation: SeenOperation| {
            let (truth, mut seen) = job(std::slice::from_ref(&send));
            *self::operation(&mut seen.kernels[0]) = operation;
            judge(&truth, &seen).all_wrong()
        };
        assert_eq!(judge_as(right), 0);
        assert_eq!(wrong.map(judge_as), [1, 1, 1]);
    }

    #[test]
    fn a_clock_must_keep_its_word_and_the_word_must_mean_something() {
        let (truth, seen) = job(&[kernel(1), kernel(2), kernel(3)]);
        let mut late = seen.clone();
        late.kernels[1].begin += 1_001;
        let verdict = judge(&truth, &late);
        assert_eq!(verdict.clock, Clock { worst: 1_001, bound: 1_000, outside: 1, wide: 0 });
        assert_eq!(verdict.faults(Demand::NeverWrong), ["1 outside of the stated error"]);
        let mut vague = seen.clone();
        vague.kernels[1].error = 100_001;
        let verdict = judge(&truth, &vague);
        assert_eq!(verdict.clock, Clock { worst: 0, bound: 100_001, outside: 0, wide: 1 });
        assert_eq!(verdict.faults(Demand::NeverWrong).len(), 1);
        // No real kernel is as short as an emulated one may be.
        let short = Kernel { end: kernel(1).start + 500, ..kernel(1) };
        for (error, wide) in [(3_100, 0), (3_101, 1)] {
            let (truth, mut seen) = job(std::slice::from_ref(&short));
            seen.kernels[0].error = error;
            assert_eq!(judge(&truth, &seen).clock.wide, wide);
        }
    }

    #[test]
    fn what_is_missing_unmatched_or_made_up_is_found() {
        let (truth, seen) = job(&[kernel(1), kernel(2), kernel(3)]);
        let mut fewer = seen.clone();
        fewer.kernels.pop();
        assert_eq!(judge(&truth, &fewer).faults(Demand::Whole), ["1 missing in the trace"]);
        fewer.dropped = 1;
        assert_eq!(judge(&truth, &fewer).faults(Demand::WholeButDropped), [""; 0]);
        (fewer.dropped, fewer.discarded) = (0, 1);
        assert_eq!(judge(&truth, &fewer).faults(Demand::WholeButDropped), [""; 0]);
        let said = "1 missing in the trace, which tells of 1 discarded buffers";
        assert_eq!(judge(&truth, &fewer).faults(Demand::Whole), [said]);
        let mut unknown = seen.clone();
        unknown.kernels[0].claim = Claim::Unmatched("its launch was not seen".into());
        assert_eq!(judge(&truth, &unknown).faults(Demand::Whole), ["1 not matched"]);
        assert_eq!(judge(&truth, &unknown).faults(Demand::NeverWrong), [""; 0]);
        let mut more = seen.clone();
        more.kernels.push(seen.kernels[0].clone());
        assert_eq!(judge(&truth, &more).faults(Demand::Whole), ["1 in the trace that never ran"]);
        assert_eq!(judge(&truth, &seen).faults(Demand::Nothing).len(), 1);
        assert_eq!(judge(&truth, &Seen::default()).faults(Demand::Nothing), [""; 0]);
        assert!(!judge(&truth, &Seen::default()).faults(Demand::NeverWrong).is_empty());
        let nothing_ran = judge(&[process()], &Seen::default());
        assert_eq!(nothing_ran.faults(Demand::Whole), [""; 0]);
    }

    #[test]
    fn an_id_stands_for_one_operation_on_all_ranks() {
        let ranks = || [job(&[kernel(1), kernel(2)]), job(&[kernel(1), kernel(2)])];
        assert_eq!(judge_job(&ranks()).torn, 0);
        let mut other = ranks();
        operation(&mut other[1].1.kernels[0]).bytes = Some(32);
        assert_eq!(judge_job(&other).torn, 1);
    }

    #[test]
    fn what_nccl_tells_in_part_is_counted() {
        let mut both = kernel(1);
        both.operations.push(Operation { function: "Broadcast".into(), send: 1, ..both.operations[0].clone() });
        let (truth, mut seen) = job(&[both, kernel(2)]);
        let verdict = judge(&truth, &seen);
        assert_eq!((verdict.all_right(), verdict.part), (2, 1), "{verdict:?}");
        // The part that is told must be right.
        operation(&mut seen.kernels[0]).send = Some(9);
        assert_eq!(judge(&truth, &seen).all_wrong(), 1);
    }

    #[test]
    fn what_nccl_does_not_tell_is_not_demanded() {
        let mut broadcast = kernel(1);
        broadcast.operations[0].function = "Broadcast".into();
        let (truth, mut seen) = job(&[broadcast, kernel(2)]);
        seen.kernels[0].claim = Claim::Unmatched("all calls of its group have kernels of their own".into());
        let verdict = judge(&truth, &seen);
        assert_eq!((verdict.kernels, verdict.untold), (1, (0, 1)));
        assert_eq!(verdict.faults(Demand::Whole), [""; 0]);
    }

    #[test]
    fn order_alone_goes_wrong_at_the_second_run_of_a_graph() {
        // One node runs twice, and then something is launched as usual.
        let replay = |number: u32, replay: u64| Kernel {
            graph: Some(GraphPlace { exec: 1, node: 50, original_node: 5, replay }),
            ..kernel(number)
        };
        let (truth, seen) = job(&[replay(1, 0), replay(2, 1), kernel(3)]);
        let verdict = judge(&truth, &seen);
        assert_eq!(verdict.naive, Naive { right: 1, wrong: 1, unmatched: 1 });
        assert_eq!(verdict.faults(Demand::Whole), [""; 0], "the trace itself is right");
    }

    #[test]
    fn another_run_of_a_graph_is_another_operation() {
        let replay = |number: u32| Kernel {
            graph: Some(GraphPlace { exec: 1, node: 50, original_node: 5, replay: u64::from(number) - 1 }),
            ..kernel(number)
        };
        let (truth, mut seen) = job(&[replay(1), replay(2), replay(3)]);
        for (kernel, says) in seen.kernels.iter_mut().zip([1, 2, 3]) {
            let Claim::Operations { run, .. } = &mut kernel.claim else { panic!("it is matched") };
            *run = Some(says);
        }
        assert_eq!(judge(&truth, &seen).faults(Demand::Whole), [""; 0]);
        // By the number of the run, and by the numbers of the operations.
        let mut other = seen.clone();
        let Claim::Operations { run, .. } = &mut other.kernels[2].claim else { panic!("it is matched") };
        *run = Some(2);
        assert_eq!(judge(&truth, &other).other_run, 1);
        *operation(&mut seen.kernels[2]) = SeenOperation { number: Some(0), ..operation(&mut seen.kernels[2]).clone() };
        let verdict = judge(&truth, &seen);
        assert_eq!((verdict.other_run, verdict.all_wrong()), (1, 0));
        assert_eq!(verdict.faults(Demand::NeverWrong), ["1 matched to another run of their graph"]);
    }

    #[test]
    fn channels_are_known_by_their_stamps() {
        let mut stamping = kernel(1);
        let (start, end) = (stamping.start + 1_000, stamping.end - 1_000);
        stamping.channels.push(crate::truth::Channel {
            channel: 2,
            operation: 0,
            counter: Some(1),
            start,
            end,
            timer_start: 77,
            timer_end: 99,
        });
        let (truth, mut seen) = job(&[stamping]);
        let right = SeenChannel {
            name: "AllReduce".into(),
            channel: 2,
            timer_start: 77,
            begin: start as i64 + 40,
            end: Some(end as i64 - 50),
            error: 50,
        };
        let mut judge_as = |channel: SeenChannel| {
            seen.channels = vec![channel];
            judge(&truth, &seen)
        };
        let verdict = judge_as(right.clone());
        assert_eq!((verdict.channels, verdict.timer), (1, Clock { worst: 50, bound: 50, outside: 0, wide: 0 }));
        assert_eq!(verdict.faults(Demand::Whole), [""; 0]);
        for wrong in [
            SeenChannel { error: 49, ..right.clone() },
            SeenChannel { begin: right.begin + 11, ..right.clone() },
            SeenChannel { timer_start: 78, ..right.clone() },
            SeenChannel { error: 100_001, ..right.clone() },
        ] {
            assert_eq!(judge_as(wrong.clone()).faults(Demand::NeverWrong).len(), 1, "{wrong:?}");
        }
        // Where no kernel is shown, it may be as uncertain as it says, not more.
        seen.kernels.clear();
        let mut judge_as = |channel: SeenChannel| {
            seen.channels = vec![channel];
            judge(&truth, &seen).timer
        };
        assert_eq!(judge_as(SeenChannel { error: 100_001, ..right.clone() }).wide, 0);
        assert_eq!(judge_as(SeenChannel { error: 49, ..right.clone() }).outside, 1);
    }

    #[test]
    fn the_longest_rising_series_is_found() {
        assert_eq!(longest_rising(&[1, 3, 2, 4], false).iter().filter(|it| **it).count(), 3);
        assert_eq!(longest_rising(&[5, 1, 2, 3], false), [false, true, true, true]);
        assert_eq!(longest_rising(&[1, 1, 2], false).iter().filter(|it| **it).count(), 2);
        assert_eq!(longest_rising(&[1, 1, 2], true), [true, true, true]);
        assert_eq!(longest_rising(&[], true), [false; 0]);
    }
}
