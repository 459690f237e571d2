//! Compares what a trace says of each kernel with the truth.
//!
//! Everything here is plain values. The caller decides how a trace is read. So a test can change
//! what was read and see that the verdict changes with it.
//!
//! A kernel is identified in both by the call that launched it and, in a graph, by its node. Its
//! match is right when the trace names the operations that it carried: the same number, of the
//! same functions, with the same buffers, peers, roots and sizes, on the same communicator.
//! Operations of a program's loop may agree in all of that. The sequence numbers that the trace
//! gives to such operations must therefore also rise in the order in which their kernels were
//! launched. Where they do not, and the kernels come from a graph, the match is to another run of
//! the graph. That is counted separately, and is a fault too.

mod order;
mod times;

use std::collections::{BTreeMap, HashMap};

use self::order::{naive, numbers, out_of_order, runs};
use crate::time::DeviceTimer;
use crate::truth::{Kernel, Line, Operation, Process};

/// What identifies a kernel: the correlation id of its launch and, in a graph, its node, else 0.
pub type Key = (u32, u64);

/// What a trace says of one process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// Its kernels.
    pub kernels: Vec<SeenKernel>,
    /// The work of channels, where the trace says when the GPU did it.
    pub channels: Vec<SeenChannel>,
    /// Records that CUPTI dropped, as the recording reports it.
    pub dropped: u64,
    /// Buffers of records that the recording had no room for, as it reports.
    pub discarded: u64,
    /// Kernels left out of the trace because, it says, they had not ended when CUPTI was flushed
    /// by force.
    pub unfinished: u64,
    /// Records left out of the trace because, it says, they cannot be true: by CUPTI's times the
    /// kernel has not ended yet.
    pub refused: u64,
    /// The least and the most by which CUPTI's times may be late, in ns, consistent with
    /// everything the recording knows, as it reports.
    pub cupti_off: [Option<i64>; 2],
    /// How often the trace notes that CUPTI's times are off, and that a GPU's timer was set.
    pub remarks: [u64; 2],
}

/// A kernel as a trace shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenKernel {
    /// What identifies it.
    pub key: Key,
    /// The device.
    pub device: u32,
    /// The stream's id.
    pub stream: u32,
    /// The kernel's name in the symbol table.
    pub symbol: String,
    /// When it began, on the host's boot clock, in ns.
    pub begin: i64,
    /// When it ended.
    pub end: i64,
    /// How far both may be off, as the trace states, in ns.
    pub error: i64,
    /// What it carried.
    pub claim: Claim,
    /// The spans of the KernelLaunches from which an arrow leads to it, on the host's boot clock
    /// in ns.
    pub arrows: Vec<[i64; 2]>,
}

/// One piece of work of a channel as a trace shows it, with the GPU's stamp mapped onto the host's
/// clock.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenChannel {
    /// The operation it worked on, by the trace.
    pub name: String,
    /// The channel.
    pub channel: u32,
    /// The GPU's stamp of its beginning, which identifies it in the truth.
    pub timer_start: u64,
    /// When it began, on the host's boot clock, in ns.
    pub begin: i64,
    /// When it ended, if the trace says so.
    pub end: Option<i64>,
    /// How far both may be off, as the trace states, in ns.
    pub error: i64,
}

/// What a kernel carried, by the trace.
#[derive(Debug, Clone, PartialEq)]
pub enum Claim {
    /// The application's.
    Application,
    /// NCCL's, but what it carried is unknown, for this reason.
    Unmatched(String),
    /// It carried operations.
    Operations {
        /// How that is known, as the trace words it: `exact_launch_bracket`.
        method: String,
        /// The communicator's hash.
        comm: Option<u64>,
        /// In a graph, which run of the captured launch it was, counted from 1.
        run: Option<u64>,
        /// How many.
        count: u64,
        /// Those that are shown; of many, only the first.
        shown: Vec<SeenOperation>,
    },
}

/// An operation that a kernel carried, by the trace. Absent fields were not given.
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
    /// Elements; for collectives only.
    pub count: Option<u64>,
    /// `ncclFloat32`, ...; for collectives only.
    pub datatype: Option<String>,
    /// `RING`, ...
    pub algorithm: Option<String>,
    /// `LL`, ...
    pub protocol: Option<String>,
    /// The peer or the root.
    pub root: Option<i32>,
    /// Its sequence number on its communicator for its function and, for sends and receives, its
    /// peer.
    pub number: Option<u64>,
    /// The id that it has in the traces of all ranks.
    pub id: Option<u64>,
}

/// What a trace must achieve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Every kernel is there, and each one whose operations NCCL reports is matched.
    Whole,
    /// Every kernel is there, and none is matched wrongly.
    NeverWrong,
    /// Like [`Demand::Whole`], for the kernels whose records were not lost according to the
    /// recording.
    WholeButDropped,
    /// Like [`Demand::NeverWrong`], for the kernels whose records were not lost according to the
    /// recording.
    NeverWrongButDropped,
    /// Records name other launches than their own. Exactly the wrong matches are reported as
    /// contradicted.
    Contradicted,
    /// There are no kernels.
    Nothing,
}

/// How one or several traces compare with the truth. Each figure is a column of the table, which
/// is why there are more than twenty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// Kernels that ran with operations that NCCL reports to profilers.
    pub kernels: u64,
    /// Those matched correctly, by method.
    pub right: BTreeMap<String, u64>,
    /// Those matched to operations they did not carry, by method.
    pub wrong: BTreeMap<String, u64>,
    /// Those whose match the trace itself calls contradicted: first those whose match and times
    /// are right all the same, then those where one of these is wrong.
    pub contradicted: [u64; 2],
    /// Those matched to another run of the graph that they ran from.
    pub other_run: u64,
    /// Of the right ones, those matched to another run of their graph because of a time that is
    /// off by more than stated.
    pub misled: u64,
    /// Of the right ones, those that also carried operations that NCCL does not report.
    pub part: u64,
    /// Those that the trace says it cannot match, by reason.
    pub unmatched: BTreeMap<String, u64>,
    /// Kernels whose operations NCCL does not report: matched correctly all the same, and not
    /// matched.
    pub untold: (u64, u64),
    /// Kernels that ran and are not in the trace, including the application's.
    pub missing: u64,
    /// Kernels that are not in the trace because CUPTI was lent while they ran or were launched.
    pub lent: u64,
    /// Of the right ones, those for which the trace does not say which run of their graph they
    /// were.
    pub open: u64,
    /// Kernels in the trace that never ran, or that ran once and appear twice.
    pub invented: u64,
    /// Records that CUPTI dropped, as the recording reports it.
    pub dropped: u64,
    /// Buffers of records that the recording had no room for, as it reports.
    pub discarded: u64,
    /// Kernels left out of the trace because, it says, they had not ended when CUPTI was flushed
    /// by force.
    pub unfinished: u64,
    /// Records that the trace says cannot be true.
    pub refused: u64,
    /// Ids that stand for different operations in the traces of two ranks. NCCL numbers operations
    /// when it hands them over, and where graphs are replayed ranks may do that in different
    /// orders. So this is counted but is no fault.
    pub torn: u64,
    /// What matching by stream and order alone would have reached.
    pub naive: Naive,
    /// Arrows that lead to a kernel from a launch that is not its own, and kernels with a launch
    /// but no arrow.
    pub arrows: [u64; 2],
    /// Kernels and channels whose times are off by more than their stated error plus what the
    /// recording says CUPTI's times may be off.
    pub unexplained: u64,
    /// Notes that CUPTI's times are off, and that a GPU's timer was set.
    pub remarks: [u64; 2],
    /// Errors of the clocks, by the times of kernels.
    pub clock: Clock,
    /// Pieces of channels' work for which the trace gives a time on the GPU.
    pub channels: u64,
    /// Of those, the ones that no kernel stamped.
    pub unknown_channels: u64,
    /// Errors of the GPUs' timers, by the times of channels.
    pub timer: Clock,
    /// The same for only those that began a second or more after the first on their GPU, where the
    /// trace has kernels.
    pub later: Clock,
    /// A sentence about each of the first faults.
    pub examples: Vec<String>,
}

/// A simple matcher to compare with: the n-th NCCL kernel on a stream belongs to the n-th launch
/// on that stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Naive {
    /// Kernels that it matches correctly.
    pub right: u64,
    /// Kernels that it matches wrongly.
    pub wrong: u64,
    /// Kernels for which it has no launch.
    pub unmatched: u64,
}

/// How far times were off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clock {
    /// The largest error of a beginning or an end, in ns.
    pub worst: i64,
    /// The largest error that the trace stated, in ns.
    pub bound: i64,
    /// Those whose true beginning or end was outside the stated error.
    pub outside: u64,
    /// Those whose stated error exceeds their own length, so that it says nothing.
    pub wide: u64,
}

/// The trace's word for a run of a graph that was inferred from times.
const INFERRED: &str = "inferred_graph_replay";
/// The accuracy of CUPTI's times, with some margin, in ns.
const CUPTI_NS: i64 = 10_000;
/// The trace's word for a match that NCCL's own times contradict.
pub const CONTRADICTED: &str = "contradicted";
/// How many faults are described one by one.
const EXAMPLES: usize = 8;

/// Judges the trace of one process.
///
/// # Panics
///
/// When the truth does not begin with its process.
#[must_use]
pub fn judge(truth: &[Line], seen: &Seen) -> Verdict {
    let truth = Truth::new(truth);
    let mut verdict = Verdict {
        dropped: seen.dropped,
        discarded: seen.discarded,
        unfinished: seen.unfinished,
        refused: seen.refused,
        remarks: seen.remarks,
        ..Verdict::default()
    };
    let numbers = numbers(&truth, seen);
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
    let order = |seen: &SeenKernel, run: Option<u64>| {
        let said = run.zip(runs.get(&seen.key)).filter(|(said, was)| said != *was);
        let said = said.map(|(said, was)| format!("this is run {was}, not {said}"));
        said.or_else(|| out_of_order.get(&seen.key).or(numbers.get(&seen.key)).cloned())
    };
    for kernel in &truth.kernels {
        verdict.kernels += u64::from(truth.is_told(kernel));
        match by_key.get(&key(kernel)) {
            Some(found) => verdict.judge_kernel(&truth, kernel, found, seen.cupti_off, &order),
            None if truth.is_lent(kernel) => verdict.lent += 1,
            None => verdict.missing += 1,
        }
    }
    verdict.judge_channels(&truth, seen);
    verdict.naive = naive(&truth, seen);
    verdict
}

/// Judges the traces of all processes of a job, and whether an operation has the same id in all of
/// them.
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
            // A send and its receive share an id.
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

impl Verdict {
    /// Judges a kernel that is in the trace. `order` is what speaks against its run of a graph, or
    /// its place among others.
    fn judge_kernel(
        &mut self,
        truth: &Truth<'_>,
        kernel: &Kernel,
        seen: &SeenKernel,
        cupti_off: [Option<i64>; 2],
        order: &dyn Fn(&SeenKernel, Option<u64>) -> Option<String>,
    ) {
        let off = times::off(truth, kernel, seen);
        let method = if let Claim::Operations { method, .. } = &seen.claim { method } else { "" };
        if method != CONTRADICTED {
            self.judge_times(truth, kernel, seen, cupti_off);
        }
        self.judge_arrows(truth, kernel, seen);
        let fault = match &seen.claim {
            Claim::Application if !kernel.operations.is_empty() => Some("it is taken for the application's".to_owned()),
            Claim::Application => return,
            Claim::Unmatched(_) if kernel.device_comm.is_none() => Some("it is none of NCCL's".to_owned()),
            Claim::Unmatched(reason) => {
                if truth.is_told(kernel) {
                    *self.unmatched.entry(reason.clone()).or_default() += 1;
                } else {
                    self.untold.1 += 1;
                }
                return;
            }
            Claim::Operations { comm, run, count, shown, .. } => {
                let order = order(seen, *run);
                match truth.difference(kernel, *comm, *count, shown) {
                    // It was inferred from times that are wrong, which is counted.
                    None if method == INFERRED && off.iter().any(|off| off.abs() > seen.error) => {
                        self.misled += u64::from(order.is_some());
                        None
                    }
                    None if order.is_some() && kernel.graph.is_some() => {
                        self.other_run += 1;
                        self.example(|| format!("{} {:?}: {}", seen.symbol, seen.key, order.unwrap_or_default()));
                        return;
                    }
                    fault => fault.or(order),
                }
            }
        };
        if method == CONTRADICTED {
            // The stated error covers what may be wrong.
            let is_wrong = fault.is_some() || off.iter().any(|off| off.abs() > CUPTI_NS);
            self.contradicted[usize::from(is_wrong)] += 1;
            self.example(|| format!("{} {:?} is {method}: off by {off:?} ns, {fault:?}", seen.symbol, seen.key));
            return;
        }
        match fault {
            Some(fault) => {
                *self.wrong.entry(method.to_owned()).or_default() += 1;
                self.example(|| format!("{} {:?}, {method}: {fault}", seen.symbol, seen.key));
            }
            None if truth.is_told(kernel) => {
                *self.right.entry(method.to_owned()).or_default() += 1;
                let Claim::Operations { count, run, .. } = &seen.claim else { return };
                self.open += u64::from(kernel.graph.is_some() && run.is_none());
                self.part += u64::from(*count < kernel.operations.len() as u64);
            }
            None => self.untold.0 += 1,
        }
    }

    /// Adds the verdict on another process or job.
    pub fn add(&mut self, other: &Verdict) {
        let join = |to: &mut BTreeMap<String, u64>, from: &BTreeMap<String, u64>| {
            for (name, number) in from {
                *to.entry(name.clone()).or_default() += number;
            }
        };
        self.kernels += other.kernels;
        join(&mut self.right, &other.right);
        join(&mut self.wrong, &other.wrong);
        self.contradicted = [0, 1].map(|at| self.contradicted[at] + other.contradicted[at]);
        self.other_run += other.other_run;
        self.misled += other.misled;
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
        self.refused += other.refused;
        self.naive.right += other.naive.right;
        self.naive.wrong += other.naive.wrong;
        self.naive.unmatched += other.naive.unmatched;
        self.arrows = [0, 1].map(|at| self.arrows[at] + other.arrows[at]);
        self.remarks = [0, 1].map(|at| self.remarks[at] + other.remarks[at]);
        self.unexplained += other.unexplained;
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

    /// Kernels whose operations NCCL reports but the trace does not know.
    #[must_use]
    pub fn all_unmatched(&self) -> u64 {
        self.unmatched.values().sum()
    }

    /// What falls short of the demand, a sentence each.
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
        none(self.contradicted[0], "matched rightly and called contradicted");
        if demand != Demand::Contradicted {
            none(self.contradicted[1], "matched wrongly, or drawn at a wrong time, and called contradicted");
        }
        none(self.invented, "in the trace that never ran");
        none(self.arrows[0], "arrows from another launch than the kernel's");
        none(self.arrows[1], "without an arrow from their launch");
        none(self.clock.outside, "outside of the stated error");
        none(self.clock.wide, "with a stated error larger than the kernel is long");
        none(self.unknown_channels, "channels that no kernel stamped");
        none(self.timer.outside, "channels outside of the stated error");
        none(self.timer.wide, "channels with a stated error larger than their kernel is long");
        let contradicted: u64 = self.contradicted.iter().sum();
        let seen = self.all_right() + self.all_wrong() + contradicted + self.other_run + self.all_unmatched();
        let missing = self.missing.saturating_sub(self.unfinished);
        match demand {
            Demand::Nothing => none(seen, "in a trace that should have none"),
            Demand::Whole | Demand::NeverWrong | Demand::Contradicted if self.discarded > 0 => {
                none(missing, &format!("missing in the trace, which tells of {} discarded buffers", self.discarded));
            }
            Demand::Whole | Demand::NeverWrong | Demand::Contradicted => none(missing, "missing in the trace"),
            // Nobody knows how many records a discarded buffer had.
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

    /// A kernel outside of graphs has an arrow from its own launch, and none from any other.
    fn judge_arrows(&mut self, truth: &Truth<'_>, kernel: &Kernel, seen: &SeenKernel) {
        let called = truth.boot(kernel.called);
        // The accuracy of the records' clock.
        const ERROR_NS: i64 = 1_000;
        let is_own = |[begin, end]: &&[i64; 2]| (begin - ERROR_NS..=end + ERROR_NS).contains(&called);
        let is_exact = matches!(&seen.claim, Claim::Operations { method, .. } if method == "exact_launch_bracket");
        let missing = is_exact && seen.arrows.is_empty();
        self.arrows[1] += u64::from(missing);
        if missing {
            self.example(|| format!("{} {:?} has no arrow from its launch", seen.symbol, seen.key));
        }
        let others = seen.arrows.iter().filter(|arrow| !is_own(arrow)).count() as u64;
        if kernel.graph.is_none() && others > 0 {
            self.arrows[0] += others;
            self.example(|| {
                format!("{} {:?} was launched at {called}, not in {:?}", seen.symbol, seen.key, seen.arrows)
            });
        }
    }

    fn example(&mut self, text: impl FnOnce() -> String) {
        if self.examples.len() < EXAMPLES {
            self.examples.push(text());
        }
    }
}

/// One process's truth, with indexes into it.
struct Truth<'a> {
    process: &'a Process,
    timers: HashMap<u32, &'a DeviceTimer>,
    kernels: Vec<&'a Kernel>,
    by_key: HashMap<Key, &'a Kernel>,
    /// The hash of each kernel's communicator and the line that gives it. Addresses are reused, so
    /// an address is resolved by the lines before it, and some releases reuse hashes.
    comms: HashMap<Key, (u64, usize)>,
    /// The spans in which CUPTI was lent.
    lent: Vec<[u64; 2]>,
}

/// What identifies a kernel in the truth.
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

    /// Whether CUPTI was lent at any time between a kernel's launch and its end.
    fn is_lent(&self, kernel: &Kernel) -> bool {
        self.lent.iter().any(|[from, to]| kernel.called <= *to && kernel.end >= *from)
    }

    /// A true time on the host's boot clock.
    fn boot(&self, at: u64) -> i64 {
        self.process.clocks.boot_at(at)
    }

    /// Whether NCCL reports any operation of this kernel to profilers.
    fn is_told(&self, kernel: &Kernel) -> bool {
        !kernel.operations.is_empty() && !kernel.operations.iter().all(|operation| self.is_silent(operation))
    }

    /// Whether NCCL does not report an operation to profilers. Since 2.29 broadcasts take another
    /// path.
    fn is_silent(&self, operation: &Operation) -> bool {
        let another_way = self.process.nccl / 100 >= 229
            && self.process.environment.get("NCCL_ALLGATHERV_ENABLE").is_none_or(|value| value != "0");
        another_way && matches!(operation.function.as_str(), "Broadcast" | "AllGatherV")
    }

    /// How many of a kernel's operations NCCL reports, if only some.
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

/// A datatype without its sign: NCCL adds signed numbers as unsigned.
fn width(datatype: &str) -> String {
    datatype.to_ascii_lowercase().replace("uint", "int")
}

impl SeenOperation {
    /// Whether everything known of this operation is consistent with its being that one.
    fn can_be(&self, carried: &Operation) -> bool {
        let agrees = |told: Option<u64>, was: u64| told.is_none_or(|told| told == was);
        let says = |told: &Option<String>, was: &str| told.as_deref().is_none_or(|told| told.eq_ignore_ascii_case(was));
        // A call counts elements as its caller does, a hand-over as the kernel does.
        // Only the latter names an algorithm.
        let is_handed_over = self.algorithm.is_some();
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
            && (!is_handed_over || agrees(self.count, carried.count))
            && (!is_handed_over || self.datatype.as_deref().is_none_or(|told| width(told) == width(&carried.datatype)))
            && says(&self.algorithm, &carried.algorithm)
            && says(&self.protocol, &carried.protocol)
            && self.root.is_none_or(|root| carried.root < 0 || root == carried.root)
    }
}

#[cfg(test)]
mod tests;
