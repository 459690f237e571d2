//! What a process alone can say about what holds it up (pure): how its GPU spent the time, and in
//! which operation it did nothing but communicate.
//!
//! One rank sees that it waits, not for whom. So these are shares of its own time, and
//! `ncclscope diagnose` finds the cause in the traces of all ranks.
//!
//! Time counts from one kernel of NCCL to a later one, so that neither what comes before the first
//! step nor what comes after the last counts. The beginning of a job is left out, too: at each
//! doubling of the time so far the sums are kept, and those at an eighth to a quarter of the whole
//! are subtracted at the end.

use std::collections::BTreeMap;

use crate::model::activity::{Place, Span};
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::{Entry, Owner, What};
use crate::trace::names::{self, CarriedName, duration};
use crate::trace::writer::Name as _;

/// With fewer kernels of NCCL, nothing is said.
const ENOUGH: u64 = 5;
/// The least share of the time that is worth a line: as in `ncclscope diagnose`.
const MUCH: f64 = 0.15;
/// How many kinds of operations are told apart on a GPU.
const KINDS: usize = 256;
/// How many sums of earlier times are kept.
const MARKS: usize = 3;

/// What the GPUs of a process did.
#[derive(Debug)]
pub(super) struct Gist {
    /// The process's rank and the number of ranks, if known.
    world: Option<(u32, u32)>,
    gpus: BTreeMap<u32, Gpu>,
    /// Not everything was seen, so nothing can be said.
    is_doubtful: bool,
}

#[derive(Debug, Default)]
struct Gpu {
    /// The time accounted for so far; and when own work and communication that have begun by then
    /// end.
    until: HostNs,
    own_end: HostNs,
    communication_end: HostNs,
    /// The kernel of NCCL that runs longest, by its place in `kinds`.
    running: Option<usize>,
    /// Kernels had not ended that CUPTI will report nothing more about.
    has_lost: bool,
    /// When it was forced to return these, unless that time is accounted for; and for how long
    /// kernels without a record ran, ns.
    flushes: Vec<HostNs>,
    unrecorded: u64,
    /// When the first kernel of NCCL began.
    first: Option<HostNs>,
    /// Own work, communication alone and idle time since the last kernel of NCCL began, ns.
    pending: [u64; 3],
    sums: Sums,
    kinds: Vec<Kind>,
    by_key: BTreeMap<(Handle, u64), usize>,
    /// Sums at the last doublings of the time since the first kernel of NCCL; the oldest first.
    marks: Vec<(u32, Sums)>,
}

/// Time since the first kernel of NCCL, ns.
#[derive(Clone, Debug, Default)]
struct Sums {
    /// The application's kernels and copies ran.
    own: u64,
    /// Only NCCL's kernels did.
    exposed: u64,
    idle: u64,
    /// Kernels of NCCL.
    kernels: u64,
    /// By kind: the part of `exposed`, and the kernels' number and durations.
    kinds: Vec<[u64; 3]>,
}

/// Operations of the same name on one communicator.
#[derive(Debug)]
struct Kind {
    name: String,
    /// Its shortest kernel, ns.
    quickest: u64,
}

impl Gist {
    pub(super) fn new(world: Option<(u32, u32)>) -> Gist {
        Gist { world, gpus: BTreeMap::new(), is_doubtful: false }
    }

    /// Kernels or copies may be missing.
    pub(super) fn doubt(&mut self) {
        self.is_doubtful = true;
    }

    /// Takes an entry. Kernels and copies of a GPU come in order of their begin, nearly.
    #[inline]
    pub(super) fn take(&mut self, entry: &Entry<'_>) {
        match &entry.what {
            What::Kernel { kernel, owner: Owner::Application } => self.own(kernel.place, kernel.span),
            What::Copy { copy, of: None } => self.own(copy.place, copy.span),
            What::Kernel { kernel, owner } => self.communication(kernel.place, kernel.span, owner),
            What::Copy { copy, of: Some(_) } => self.gpu(copy.place).communicates(copy.span, None),
            What::Unfinished { kernel, .. } => self.gpu(kernel.place).has_lost = true,
            _ => {}
        }
    }

    /// CUPTI was forced to return its buffers, with their content of this time: kernels that had
    /// not ended have no record.
    pub(super) fn flushed_by_force(&mut self, time: HostNs) {
        for gpu in self.gpus.values_mut().filter(|gpu| gpu.has_lost) {
            gpu.has_lost = false;
            gpu.flushes.push(time);
        }
    }

    fn gpu(&mut self, place: Place) -> &mut Gpu {
        self.gpus.entry(place.device).or_default()
    }

    fn own(&mut self, place: Place, span: Span) {
        let gpu = self.gpu(place);
        gpu.advance(span.start);
        gpu.own_end = gpu.own_end.max(span.end);
    }

    fn communication(&mut self, place: Place, span: Span, owner: &Owner<'_>) {
        let world = self.world;
        let gpu = self.gpu(place);
        let kind = match owner {
            Owner::Operations { comm: Some(comm), operations, .. } if !operations.is_empty() => {
                let carried = CarriedName { comm: Some(*comm), operations };
                let known = gpu.by_key.get(&(comm.context, carried.key())).copied();
                known.or_else(|| {
                    let key = (comm.context, carried.key());
                    let at = (gpu.kinds.len() < KINDS).then_some(gpu.kinds.len())?;
                    let mut name = String::new();
                    carried.write(&mut name);
                    name.push_str(&format!(" on {}", names::short_comm(comm, world)));
                    gpu.kinds.push(Kind { name, quickest: u64::MAX });
                    gpu.sums.kinds.push([0; 3]);
                    gpu.by_key.insert(key, at);
                    Some(at)
                })
            }
            _ => None,
        };
        gpu.communicates(span, kind);
    }

    /// By GPU: how long the application's kernels ran, only NCCL's did, and none did, since NCCL's
    /// first kernel, ns.
    pub(super) fn totals(&self) -> Vec<(u32, [u64; 3])> {
        self.gpus.iter().map(|(device, gpu)| (*device, [gpu.sums.own, gpu.sums.exposed, gpu.sums.idle])).collect()
    }

    /// What this process saw, in a clause; `None` if it saw too little, or may have missed
    /// something.
    pub(super) fn told(&self) -> Option<String> {
        let unrecorded = self.gpus.values().map(|gpu| gpu.unrecorded).max().filter(|ns| *ns > 0);
        let more = unrecorded
            .map_or_else(String::new, |ns| format!("; for another {} its kernels have no record", duration(ns as f64)));
        Some(self.shares()? + &more)
    }

    /// How the GPU that lost most spent its time.
    fn shares(&self) -> Option<String> {
        if self.is_doubtful {
            return None;
        }
        let told = self.gpus.iter().filter_map(|(device, gpu)| Some((*device, gpu, gpu.since_the_beginning()?)));
        let lost = |sums: &Sums| sums.share(sums.exposed.max(sums.idle));
        let (device, gpu, sums) = told.max_by(|one, other| lost(&one.2).total_cmp(&lost(&other.2)))?;
        let whose = if self.gpus.len() > 1 { format!("GPU {device}") } else { "its GPU".to_owned() };
        let percent = |ns: u64| format!("{:.0} %", 100.0 * sums.share(ns));
        let (own, exposed, idle) = (percent(sums.own), percent(sums.exposed), percent(sums.idle));
        if lost(&sums) < MUCH {
            return Some(format!("{whose} ran the program's own kernels for {own} of the time"));
        }
        if sums.idle >= sums.exposed {
            return Some(format!(
                "{whose} had nothing to do for {idle} of the time ({own} were the program's own kernels, {exposed} communication alone)"
            ));
        }
        let most = sums.kinds.iter().zip(&gpu.kinds).max_by_key(|(sums, _)| sums[0]).filter(|(sums, _)| sums[1] > 0);
        let most = most.map_or_else(String::new, |([exposed, count, sum], kind)| {
            let each = duration(*sum as f64 / *count as f64);
            let quickest = duration(kind.quickest as f64);
            format!(", {} in {} ({each} each, {quickest} at best)", percent(*exposed), kind.name)
        });
        Some(format!("{whose} only communicated for {exposed} of the time{most}"))
    }
}

impl Gpu {
    /// Accounts for the time up to `now`.
    fn advance(&mut self, now: HostNs) {
        if now <= self.until {
            return;
        }
        let [own, communication] = [self.own_end, self.communication_end].map(|end| end.min(now).since(self.until));
        let mut idle = now.since(self.until) - own.max(communication);
        let until = self.until;
        if self.flushes.extract_if(.., |flush| *flush <= now).filter(|flush| *flush >= until).count() > 0 {
            self.unrecorded += std::mem::take(&mut idle);
        }
        let more = [own, communication.saturating_sub(own), idle];
        self.pending.iter_mut().zip(more).for_each(|(sum, ns)| *sum += ns);
        self.until = now;
    }

    /// A kernel of NCCL, or a copy for it.
    fn communicates(&mut self, span: Span, kind: Option<usize>) {
        self.advance(span.start);
        let [own, exposed, idle] = std::mem::take(&mut self.pending);
        if self.first.is_some() {
            self.sums.own += own;
            self.sums.exposed += exposed;
            self.sums.idle += idle;
            if let Some(kind) = self.running {
                self.sums.kinds[kind][0] += exposed;
            }
        }
        let first = *self.first.get_or_insert(span.start);
        let doubling = span.start.since(first).checked_ilog2().unwrap_or(0);
        if self.marks.last().is_none_or(|(last, _)| *last < doubling) {
            if self.marks.len() == MARKS {
                self.marks.remove(0);
            }
            self.marks.push((doubling, self.sums.clone()));
        }
        self.sums.kernels += 1;
        if span.end > self.communication_end {
            (self.communication_end, self.running) = (span.end, kind);
        }
        if let Some(kind) = kind {
            let ns = span.end.since(span.start);
            let [_, count, sum] = &mut self.sums.kinds[kind];
            (*count, *sum) = (*count + 1, *sum + ns);
            self.kinds[kind].quickest = self.kinds[kind].quickest.min(ns);
        }
    }

    /// The sums without the beginning; `None` if there is too little.
    fn since_the_beginning(&self) -> Option<Sums> {
        let (_, mark) = self.marks.first()?;
        let mut sums = self.sums.clone();
        sums.own -= mark.own;
        sums.exposed -= mark.exposed;
        sums.idle -= mark.idle;
        sums.kernels -= mark.kernels;
        for (kind, before) in sums.kinds.iter_mut().zip(&mark.kinds) {
            kind.iter_mut().zip(before).for_each(|(sum, before)| *sum -= before);
        }
        (sums.kernels >= ENOUGH).then_some(sums)
    }
}

impl Sums {
    fn share(&self, ns: u64) -> f64 {
        ns as f64 / (self.own + self.exposed + self.idle).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::activity::{self, Kernel};
    use crate::model::event::{Coll, Event};
    use crate::model::timeline::{Comm, Method, Operation, Unmatched};
    use crate::model::word::Word;

    const GPU: Place = Place { device: 3, context: 1, stream: 7 };

    fn span(start: u64, end: u64) -> Span {
        Span { start: HostNs(start), end: HostNs(end), error_ns: 0 }
    }

    fn comm(name: &str) -> Comm {
        Comm::named(Handle(name.bytes().map(u64::from).sum()), name)
    }

    impl Gist {
        fn of_kernel(&mut self, place: Place, span: Span, owner: Owner<'_>) {
            let kernel = &Kernel { place, name: "kernel".into(), ..Kernel::during(span) };
            self.take(&Entry { time: span.start, what: What::Kernel { kernel, owner } });
        }

        fn computes(&mut self, start: u64, end: u64) {
            self.of_kernel(GPU, span(start, end), Owner::Application);
        }

        fn reduces(&mut self, start: u64, end: u64, on: &str) {
            let coll = Coll { func: Word::ALL_REDUCE, datatype: Word::FLOAT32, count: 256, ..Coll::default() };
            let (id, since) = (Handle(start), HostNs(0));
            let operation =
                Arc::new(Operation { id, since, asked: None, event: Event::Coll(coll), texts: None, number: 0 });
            self.of_kernel(GPU, span(start, end), Owner::of_one(&comm(on), &operation));
        }
    }

    /// Steps with these parts, in µs: computing, communicating, and the begin of what follows.
    fn steps(gist: &mut Gist, begin: u64, count: u64, [compute, communicate, idle]: [u64; 3]) -> u64 {
        let mut now = begin;
        for _ in 0..count {
            gist.computes(now, now + compute * 1000);
            now += compute * 1000;
            gist.reduces(now, now + communicate * 1000, "dp");
            now += (communicate + idle) * 1000;
        }
        now
    }

    fn told(steps_of: [u64; 3]) -> Option<String> {
        let mut gist = Gist::new(None);
        steps(&mut gist, 1_000_000_000, 100, steps_of);
        gist.told()
    }

    #[test]
    fn the_largest_part_of_the_time_is_named() {
        assert_eq!(told([90, 5, 5]).unwrap(), "its GPU ran the program's own kernels for 90 % of the time");
        assert_eq!(
            told([50, 10, 40]).unwrap(),
            "its GPU had nothing to do for 40 % of the time (50 % were the program's own kernels, 10 % communication alone)"
        );
        assert_eq!(
            told([50, 40, 10]).unwrap(),
            "its GPU only communicated for 40 % of the time, 40 % in AllReduce 1 KiB f32 on dp (40.0 µs each, 40.0 µs at best)"
        );
    }

    #[test]
    fn neither_the_first_steps_nor_what_comes_before_and_after_them_counts() {
        let mut gist = Gist::new(None);
        gist.computes(0, 1_000);
        // Loading takes ten times as long as everything else, and so does one of the first steps.
        let mut now = 10_000_000_000;
        now = steps(&mut gist, now, 2, [10, 10, 100_000]);
        now = steps(&mut gist, now, 20_000, [80, 20, 0]);
        gist.computes(now + 60_000_000_000, now + 60_000_001_000);
        assert_eq!(
            gist.told().unwrap(),
            "its GPU only communicated for 20 % of the time, 20 % in AllReduce 1 KiB f32 on dp (20.0 µs each, 10.0 µs at best)"
        );
    }

    #[test]
    fn communication_beside_other_kernels_is_not_alone() {
        let mut gist = Gist::new(None);
        for step in 0..100_u64 {
            let now = step * 100_000;
            gist.computes(now, now + 60_000);
            gist.reduces(now + 10_000, now + 80_000, "dp");
            gist.reduces(now + 50_000, now + 100_000, "tp");
        }
        let told = gist.told().unwrap();
        assert!(
            told.starts_with("its GPU only communicated for 40 % of the time, 40 % in AllReduce 1 KiB f32 on tp"),
            "{told}"
        );
    }

    #[test]
    fn copies_are_the_programs_own_work_unless_they_are_nccls() {
        let copies = |of: bool| {
            let mut gist = Gist::new(None);
            let coll = Coll { func: Word::ALL_GATHER, ..Coll::default() };
            let operation = Operation {
                id: Handle(1),
                since: HostNs(0),
                asked: None,
                event: Event::Coll(coll),
                texts: None,
                number: 0,
            };
            for step in 0..100_u64 {
                let now = step * 100_000;
                gist.reduces(now, now + 10_000, "dp");
                let copy = &activity::Copy {
                    span: span(now + 10_000, now + 100_000),
                    place: GPU,
                    correlation: 0,
                    graph_node: 0,
                    bytes: 1,
                    kind: activity::CopyKind::DeviceToDevice,
                };
                let of = of.then_some(crate::model::timeline::CopyOf {
                    comm: None,
                    operation: &operation,
                    method: Method::Bracket,
                });
                gist.take(&Entry { time: copy.span.start, what: What::Copy { copy, of } });
            }
            gist.told().unwrap()
        };
        assert_eq!(copies(false), "its GPU ran the program's own kernels for 90 % of the time");
        assert!(copies(true).starts_with("its GPU only communicated for 100 % of the time, 10 % in AllReduce"));
    }

    #[test]
    fn the_gpu_that_lost_most_is_named_if_there_are_several() {
        let mut gist = Gist::new(None);
        steps(&mut gist, 0, 100, [50, 10, 40]);
        let other = Place { device: 1, ..GPU };
        for step in 0..100_u64 {
            let now = step * 100_000;
            gist.of_kernel(other, span(now, now + 90_000), Owner::Unmatched(Unmatched::UnknownNode));
        }
        assert_eq!(gist.told().unwrap(), "GPU 1 only communicated for 90 % of the time");
    }

    #[test]
    fn a_gpu_with_kernels_without_a_record_is_not_idle() {
        let told = |has_lost: bool| {
            let mut gist = Gist::new(None);
            let now = steps(&mut gist, 0, 100, [50, 40, 10]);
            let name = "stuck".into();
            let kernel = &activity::Unfinished { place: GPU, correlation: 1, graph_node: 0, name };
            if has_lost {
                gist.take(&Entry {
                    time: HostNs(now),
                    what: What::Unfinished { kernel, comm: None, operations: &[], replay: None },
                });
            }
            gist.flushed_by_force(HostNs(now + 3_000_000));
            steps(&mut gist, now + 20_000_000, 100, [50, 40, 10]);
            gist.told().unwrap()
        };
        assert!(told(false).starts_with("its GPU had nothing to do for "), "{}", told(false));
        let told = told(true);
        assert!(told.starts_with("its GPU only communicated for 40 % of the time"), "{told}");
        assert!(told.ends_with("; for another 20.0 ms its kernels have no record"), "{told}");
    }

    #[test]
    fn nothing_is_said_of_what_was_hardly_seen_or_not_wholly() {
        assert_eq!(Gist::new(None).told(), None);
        let mut gist = Gist::new(None);
        steps(&mut gist, 0, 5, [50, 40, 10]);
        assert_eq!(gist.told(), None, "too few");
        steps(&mut gist, 10_000_000, 100, [50, 40, 10]);
        assert!(gist.told().is_some());
        gist.doubt();
        assert_eq!(gist.told(), None);
    }
}
