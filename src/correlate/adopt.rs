//! Finds the owner of a kernel whose launch was not seen, by its channels: the match by stream and
//! device timer.
//!
//! The channels of a plan ran inside its kernel. Once the GPU's timer is known to a few
//! microseconds, the stamps of a plan either lie in exactly one kernel, or they decide nothing. An
//! ambiguous plan stays open until other kernels have found their plans. Where the stream of a plan
//! is known, no kernel of another stream is its own.
//!
//! A GPU that several processes share takes turns: a kernel that waits for its turn may be longer
//! than its channels by milliseconds (seen on H200). Another kernel that happens to fit better is
//! not its plan's for that. So all kernels around a plan count as possible, whatever their length;
//! but a kernel that is much longer than the plan is only given to it where the stream agrees.
//!
//! Before the timer is known, its offset is searched for: the one that puts the most plans of a
//! communicator into kernels at once ([`bootstrap`]). Kernels in a perfectly even rhythm fit at
//! many offsets; then nothing is concluded.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::clock::device::{DeviceClock, Pair};
use crate::model::activity::{Kernel, Place};
use crate::model::ids::Handle;
use crate::model::time::{GpuNs, HostNs};
use crate::model::timeline::Unmatched;
use crate::model::word::Word;

/// How much longer a kernel may be than its channels if it has the GPU for itself, in ns. On H100
/// it is 3.1 to 3.7 us, most of it before the channels. The rest is room for other GPUs.
const SLACK_NS: u64 = 100_000;
/// A kernel whose times have a larger error than this, in ns, is not considered.
const WORST_KERNEL_ERROR_NS: u64 = 100_000;
/// How long a kernel may wait for its turn on a shared GPU, in ns. A turn takes milliseconds.
const TURN_NS: u64 = 100_000_000;
/// How long before its first channel a kernel may begin, in ns: the slack, and room for errors.
const HEAD_NS: u64 = SLACK_NS + 2 * WORST_KERNEL_ERROR_NS;
/// Plans that must agree on the offset of a timer.
const AGREEING: usize = 5;
/// Plans that are searched together; drift shifts plans that are far apart in time.
const TOGETHER: usize = 24;
/// How many such sets are searched in one pass.
const ATTEMPTS: usize = 16;
/// The largest drift of a timer, in parts per million.
const DRIFT_PPM: u64 = 200;

/// A kernel of NCCL's whose launch is not known.
#[derive(Debug)]
pub(super) struct Orphan {
    pub(super) kernel: Kernel,
    /// Why its launch is not known.
    pub(super) reason: Unmatched,
    /// When it arrived here.
    pub(super) since: HostNs,
}

/// A plan without a kernel.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) key: Handle,
    pub(super) context: Handle,
    /// Its communicator's device, if that is known.
    pub(super) device: Option<u32>,
    /// The earliest start and the latest stop of its channels.
    pub(super) first: GpuNs,
    pub(super) last: GpuNs,
    /// How much older than the true time a stamp may be, in ns.
    pub(super) step: u64,
    /// How many channels were seen.
    pub(super) channels: u32,
    /// The functions of its operations.
    pub(super) functions: Vec<Word>,
    /// Its stream, if that is known.
    pub(super) place: Option<Place>,
    /// When it began according to the host alone, and the error of that in ns.
    pub(super) range: Option<(HostNs, u64)>,
}

impl Candidate {
    /// Whether this kernel could belong to the plan, by everything that does not depend on a clock.
    fn could_be(&self, kernel: &Kernel) -> bool {
        let channels = self.last.0 - self.first.0;
        let room = 2 * self.step + 2 * u64::from(kernel.span.error_ns) + self.drift();
        let length = kernel.span.end.since(kernel.span.start) + room;
        self.device.is_none_or(|device| device == kernel.place.device)
            && u64::from(kernel.span.error_ns) <= WORST_KERNEL_ERROR_NS
            && self.channels <= kernel.grid[0]
            && self.may_run(&kernel.name)
            && channels <= length
    }

    /// Whether this kernel is about as long as the plan's channels, as it is if it has the GPU for
    /// itself.
    fn is_as_long(&self, kernel: &Kernel) -> bool {
        let room = 2 * self.step + 2 * u64::from(kernel.span.error_ns) + self.drift();
        let length = kernel.span.end.since(kernel.span.start);
        length.saturating_sub(self.last.0 - self.first.0) <= SLACK_NS + room
    }

    fn may_run(&self, name: &str) -> bool {
        may_carry(name, &self.functions)
    }

    /// Whether its channels ran in this kernel, by the GPU's timer.
    fn is_inside(&self, kernel: &Kernel, clock: &DeviceClock) -> bool {
        let (Some((first, first_error)), Some((last, last_error))) =
            (clock.to_host(self.first), clock.to_host(self.last))
        else {
            return false;
        };
        let room = u64::from(kernel.span.error_ns) + clock.step();
        first.0 + first_error + room >= kernel.span.start.0 && last.0 <= kernel.span.end.0 + last_error + room
    }

    /// How far the GPU's timer may drift from the host's clock while the channels run, in ns.
    fn drift(&self) -> u64 {
        (self.last.0 - self.first.0) / 1_000_000 * DRIFT_PPM
    }

    /// The lowest and highest offset (host less device) at which the plan lies in this kernel. They
    /// are in that order if the kernel could be the plan's.
    fn offsets(&self, kernel: &Kernel) -> (i64, i64) {
        let room = u64::from(kernel.span.error_ns) + self.step + self.drift();
        let room = i64::try_from(room).unwrap_or(i64::MAX >> 8);
        let low = kernel.span.start.0 as i64 - self.first.0 as i64 - room;
        (low, kernel.span.end.0 as i64 - self.last.0 as i64 + room)
    }
}

/// Whether a kernel of this name may carry operations with these functions. NCCL launches a kernel
/// that is specialised for one of them, or a generic one.
pub(super) fn may_carry(name: &str, functions: &[Word]) -> bool {
    const MADE_FOR: [(&str, &[Word]); 6] = [
        ("_AllReduce_", &[Word::ALL_REDUCE]),
        ("_AllGather_", &[Word::ALL_GATHER]),
        ("_ReduceScatter_", &[Word::REDUCE_SCATTER]),
        ("_Broadcast_", &[Word::BROADCAST]),
        ("_Reduce_", &[Word::REDUCE]),
        ("_SendRecv", &[Word::SEND, Word::RECV, Word::SEND_RECV]),
    ];
    let made_for = MADE_FOR.iter().find(|(part, _)| name.contains(part));
    made_for.is_none_or(|(_, made_for)| functions.iter().any(|function| made_for.contains(function)))
}

/// Kernels ordered by device and start.
struct ByStart<'a> {
    kernels: Vec<(usize, &'a Kernel)>,
    /// How long before its first channel a kernel may begin, in ns, if it waits for its turn.
    longest: u64,
}

impl<'a> ByStart<'a> {
    fn new(orphans: &'a [Orphan]) -> ByStart<'a> {
        let mut kernels: Vec<_> = orphans.iter().map(|orphan| &orphan.kernel).enumerate().collect();
        kernels.sort_unstable_by_key(|(_, kernel)| (kernel.place.device, kernel.span.start));
        let lengths = kernels.iter().map(|(_, kernel)| kernel.span.end.since(kernel.span.start));
        let longest = lengths.max().unwrap_or(0).clamp(HEAD_NS, TURN_NS);
        ByStart { kernels, longest }
    }

    fn devices(&self) -> Vec<u32> {
        let mut devices: Vec<u32> = self.kernels.iter().map(|(_, kernel)| kernel.place.device).collect();
        devices.dedup();
        devices
    }

    /// The kernels of a device that may hold a channel which began at this time, within the error,
    /// and at most `head` ns after its kernel.
    fn around(&self, device: u32, begin: HostNs, error: u64, step: u64, head: u64) -> &[(usize, &'a Kernel)] {
        let from = (device, HostNs(begin.0.saturating_sub(error + head + 2 * step)));
        let to = (device, HostNs(begin.0 + error + step));
        let key = |(_, kernel): &(usize, &Kernel)| (kernel.place.device, kernel.span.start);
        let low = self.kernels.partition_point(|it| key(it) < from);
        let high = self.kernels.partition_point(|it| key(it) <= to);
        &self.kernels[low..high]
    }
}

/// The plan of each kernel (by its index in the list), where that is certain. `clocks` are the
/// timers by device.
pub(super) fn resolve(
    clocks: &FxHashMap<u32, DeviceClock>,
    orphans: &[Orphan],
    candidates: &[Candidate],
) -> Vec<(usize, Handle)> {
    let kernels = ByStart::new(orphans);
    let devices = kernels.devices();
    let mut open: Vec<(&Candidate, Vec<usize>)> = Vec::new();
    for candidate in candidates {
        let mut fitting: Vec<usize> = Vec::new();
        for &device in devices.iter().filter(|device| candidate.device.is_none_or(|known| known == **device)) {
            let Some(clock) = clocks.get(&device).filter(|clock| clock.is_settled()) else { continue };
            let Some((first, first_error)) = clock.to_host(candidate.first) else { continue };
            let error = first_error + WORST_KERNEL_ERROR_NS;
            let around = kernels.around(device, first, error, clock.step(), kernels.longest).iter();
            // Of a long time before, most have ended, which is soon seen.
            let alive = around.filter(|(_, it)| it.span.end.0 + error >= first.0);
            let fits = alive.filter(|(_, it)| candidate.could_be(it) && candidate.is_inside(it, clock));
            fitting.extend(fits.map(|(index, _)| index));
        }
        if let Some(place) = candidate.place {
            fitting.retain(|&index| orphans[index].kernel.place == place);
        }
        if !fitting.is_empty() {
            open.push((candidate, fitting));
        }
    }
    let mut found = Vec::new();
    let mut taken = vec![false; orphans.len()];
    loop {
        // Plans for which this is the only kernel. If there are two such plans, either would be a
        // guess.
        let mut only: FxHashMap<usize, (&Candidate, usize)> = FxHashMap::default();
        for (candidate, fitting) in &open {
            if let [kernel] = fitting[..] {
                only.entry(kernel).and_modify(|(_, plans)| *plans += 1).or_insert((candidate, 1));
            }
        }
        let before = found.len();
        found.extend(only.into_iter().filter_map(|(index, (candidate, plans))| {
            let kernel = &orphans[index].kernel;
            let agrees = candidate.is_as_long(kernel) || candidate.place == Some(kernel.place);
            (plans == 1 && agrees && !taken[index]).then_some((index, candidate.key))
        }));
        if found.len() == before {
            return found;
        }
        for (kernel, _) in &found[before..] {
            taken[*kernel] = true;
        }
        // A kernel that found its plan is out of the running, and so is the plan.
        for (_, fitting) in &mut open {
            fitting.retain(|kernel| !taken[*kernel]);
        }
        open.retain(|(_, fitting)| !fitting.is_empty());
    }
}

/// How the plans without a kernel relate to a kernel without a launch.
pub(super) fn explain(clock: Option<&DeviceClock>, kernel: &Kernel, candidates: &[Candidate]) -> String {
    let fitting: Vec<&Candidate> = candidates.iter().filter(|candidate| candidate.could_be(kernel)).collect();
    let (all, fit) = (candidates.len(), fitting.len());
    let inside = match clock.filter(|clock| clock.is_settled()) {
        None => "its GPU's timer is not known".into(),
        Some(clock) => {
            let inside = fitting.iter().filter(|candidate| candidate.is_inside(kernel, clock)).count();
            format!("by the GPU's timer, the channels of {inside} ran in it")
        }
    };
    format!(
        "candidates: {all} plans without a kernel; {fit} match its device, grid and name, and fit into it; {inside}"
    )
}

/// For devices whose timer is not known: kernels and channels that agree on its offset.
pub(super) fn bootstrap(
    clocks: &FxHashMap<u32, DeviceClock>,
    orphans: &[Orphan],
    candidates: &[Candidate],
) -> Vec<(u32, Vec<Pair>)> {
    let kernels = ByStart::new(orphans);
    let mut devices = kernels.devices();
    devices.retain(|device| !clocks.get(device).is_some_and(DeviceClock::is_settled));
    let mut by_comm: BTreeMap<Handle, Vec<&Candidate>> = BTreeMap::new();
    for candidate in candidates.iter().filter(|_| !devices.is_empty()) {
        by_comm.entry(candidate.context).or_default().push(candidate);
    }
    let mut found: Vec<(u32, Vec<Pair>)> = Vec::new();
    for mut plans in by_comm.into_values() {
        plans.sort_unstable_by_key(|plan| plan.first);
        for together in plans.chunks(TOGETHER).take(ATTEMPTS) {
            // A communicator is on one device. If two seem to fit, it is not known which.
            let mut agreed = devices.iter().filter_map(|&device| Some((device, agree(device, &kernels, together)?)));
            if let (Some((device, pairs)), None) = (agreed.next(), agreed.next()) {
                if found.iter().all(|(known, _)| *known != device) {
                    found.push((device, pairs));
                }
                break;
            }
        }
    }
    found
}

/// The range of offsets at which a plan lies in a kernel.
struct Range<'a> {
    low: i64,
    high: i64,
    plan: usize,
    orphan: usize,
    kernel: &'a Kernel,
}

/// The kernels of a device that hold the most plans at one offset, if no other offset comes close.
fn agree(device: u32, kernels: &ByStart<'_>, plans: &[&Candidate]) -> Option<Vec<Pair>> {
    let middle = plans.get(plans.len() / 2)?.first;
    let mut ranges: Vec<Range<'_>> = Vec::new();
    for (index, plan) in plans.iter().enumerate() {
        // Without a range from the host there is nothing to search in.
        let Some((begin, error)) = plan.range else { continue };
        let drift = ((plan.first.0.abs_diff(middle.0) / 1_000_000 + 1) * DRIFT_PPM) as i64;
        for &(orphan, kernel) in kernels.around(device, begin, error, plan.step, HEAD_NS) {
            if plan.could_be(kernel) && plan.is_as_long(kernel) {
                let (low, high) = plan.offsets(kernel);
                debug_assert!(low <= high, "a kernel that could be the plan's has an offset for it");
                ranges.push(Range { low: low - drift, high: high + drift, plan: index, orphan, kernel });
            }
        }
    }
    let counts = counts(&ranges, plans.len());
    let &(best, most) = counts.iter().max_by_key(|(_, count)| *count)?;
    if most < AGREEING || most * 10 < plans.len() * 8 {
        return None;
    }
    let chosen: Vec<&Range<'_>> = ranges.iter().filter(|it| (it.low..=it.high).contains(&best)).collect();
    // Rivals are offsets that none of the chosen ranges allows.
    let rivals = counts.iter().filter(|(offset, _)| chosen.iter().all(|it| !(it.low..=it.high).contains(offset)));
    if rivals.map(|(_, count)| *count).max().is_some_and(|second| second * 2 > most) {
        return None;
    }
    // A plan that lies in two kernels tells us nothing, and neither does a kernel that holds two
    // plans, as a long one does while the timer's step is not known.
    let is_alone = |range: &Range<'_>| chosen.iter().all(|it| (it.plan == range.plan) == (it.orphan == range.orphan));
    let alone = chosen.iter().filter(|range| is_alone(range));
    let pair = |it: &&Range<'_>| Pair { host: it.kernel.span, device: [plans[it.plan].first, plans[it.plan].last] };
    let pairs: Vec<Pair> = alone.map(pair).collect();
    (pairs.len() >= AGREEING).then_some(pairs)
}

/// How many plans lie in a kernel at each offset where that number grows.
fn counts(ranges: &[Range<'_>], plans: usize) -> Vec<(i64, usize)> {
    let begins = ranges.iter().map(|range| (range.low, 0, range.plan));
    // At one offset, ranges that begin come before ranges that end: the last offset is included.
    let mut edges: Vec<(i64, u8, usize)> = begins.chain(ranges.iter().map(|it| (it.high, 1, it.plan))).collect();
    edges.sort_unstable();
    let (mut open, mut inside) = (vec![0_u32; plans], 0);
    let mut counts = Vec::new();
    for (offset, end, plan) in edges {
        if end == 0 {
            inside += usize::from(open[plan] == 0);
            open[plan] += 1;
            counts.push((offset, inside));
        } else {
            open[plan] -= 1;
            inside -= usize::from(open[plan] == 0);
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::activity::Span;

    fn kernel(start: u64, end: u64, error_ns: u32) -> Kernel {
        let span = Span { start: HostNs(start), end: HostNs(end), error_ns };
        Kernel { grid: [2, 1, 1], name: "ncclDevKernel_Generic".into(), ..Kernel::during(span) }
    }

    fn plan(first: u64, last: u64) -> Candidate {
        Candidate {
            key: Handle::NONE,
            context: Handle::NONE,
            device: None,
            first: GpuNs(first),
            last: GpuNs(last),
            step: 32,
            channels: 2,
            functions: Vec::new(),
            place: None,
            range: None,
        }
    }

    #[test]
    fn each_possible_kernel_of_a_plan_allows_an_offset() {
        // Kernels that waited long for other ranks, with timers that are as fast or slow as is
        // allowed.
        for length in [20_000, 5_000_000, 800_000_000, 60_000_000_000_u64] {
            for ppm in [0, 100, DRIFT_PPM] {
                for error_ns in [0, 1_000] {
                    let kernel = kernel(1_000_000_000_000, 1_000_000_000_000 + length, error_ns);
                    let drift = length / 1_000_000 * ppm;
                    for channels in [length + drift, length - drift, length + drift + 64, length - 1_000] {
                        let plan = plan(5_000, 5_000 + channels);
                        let (low, high) = plan.offsets(&kernel);
                        assert!(
                            low <= high || !plan.could_be(&kernel) || !plan.is_as_long(&kernel),
                            "{length} {ppm} {error_ns} {channels}"
                        );
                    }
                    let whole = plan(5_000, 5_000 + length + drift);
                    assert!(whole.could_be(&kernel) && whole.is_as_long(&kernel));
                }
            }
        }
    }

    #[test]
    fn plans_that_fit_into_one_kernel_do_not_agree_on_a_timer() {
        let orphan = |start, end| Orphan {
            kernel: kernel(start, end, 1_000),
            reason: Unmatched::UnknownNode,
            since: HostNs(end),
        };
        // The first plan ran in this kernel. Those of the others have not arrived, and the step of
        // the timer is not known yet.
        let length = 13_000_000;
        let orphans = [orphan(50_000_000, 50_000_000 + length)];
        let begun = |n: u64| (5_000_000 + n * 2_500_000 + n * n * 150_000, 2_000_000 + n);
        let plans = (0..6).map(|n| {
            let (first, ran) = begun(n);
            let range = Some((HostNs(first + 45_000_000), 100_000_000));
            Candidate { step: length, range, ..plan(first, first + ran) }
        });
        let plans: Vec<Candidate> = plans.collect();
        assert_eq!(bootstrap(&FxHashMap::default(), &orphans, &plans), []);
        // With the kernels of all, their offset is found.
        let all: Vec<Orphan> =
            (0..6).map(begun).map(|(first, ran)| orphan(first + 45_000_000, first + 45_003_000 + ran)).collect();
        let plans: Vec<Candidate> = plans.into_iter().map(|plan| Candidate { step: 32, ..plan }).collect();
        let [(0, pairs)] = &bootstrap(&FxHashMap::default(), &all, &plans)[..] else { panic!("no offset") };
        assert_eq!(pairs.len(), 6);
    }
}
