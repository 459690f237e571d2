//! Leaves out what the settings do not ask for (pure).
//!
//! It stands between the correlator, which sees everything and so matches as without a filter, and
//! the tracks. An operation is judged once, when it is asked for; its hand-over, kernel, channels
//! and the proxy's work for it share its fate. A group of calls is drawn if something in it is.
//!
//! What is left out is counted, and still watched: a hang shows in the trace of any job.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::event::Event;
use crate::model::ids::Handle;
use crate::model::selection::{Numbers, Selection};
use crate::model::time::HostNs;
use crate::model::timeline::{Comm, Doubt, Entry, LeftOut, Operation, Owner, ProxyOp, ThreadId, What};
use crate::model::word::Word;
use crate::trace::names;

/// How many calls and operations that were left out are remembered, for the events that follow
/// them. Beyond it, the oldest are forgotten, and the events that follow them are drawn.
const REMEMBERED: usize = 32 << 10;
/// Nested calls of a thread.
const DEPTH: usize = 8;
/// Communicators and functions that are counted.
const COUNTED: usize = 4096;

/// What happens to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is drawn.
    Drawn,
    /// It is left out, but watched.
    LeftOut,
}

/// Judges entries in the order of the correlator.
#[derive(Debug)]
pub(super) struct Filter {
    selection: Selection,
    /// It leaves out nothing of NCCL's.
    wants_all_calls: bool,
    begin: HostNs,
    /// This process's rank in the job and their number.
    world: Option<(u32, u32)>,
    /// How many operations were asked for so far: of all kinds, and by communicator and function.
    asked: u64,
    counts: FxHashMap<(Handle, Word), u64>,
    operations: Span,
    steps: Span,
    left_out: Remembered,
    threads: FxHashMap<ThreadId, Vec<Open>>,
    /// The thread of each call that has not returned.
    calls: FxHashMap<Handle, ThreadId>,
    figures: LeftOut,
}

/// The time range of a range of numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    since: Option<HostNs>,
    until: Option<HostNs>,
}

impl Span {
    /// The number holds from `time` on.
    fn learn(&mut self, numbers: Option<Numbers>, number: u64, time: HostNs) {
        let Some(numbers) = numbers else { return };
        if number >= numbers.first {
            self.since.get_or_insert(time);
        }
        if numbers.are_over(number) {
            self.until.get_or_insert(time);
        }
    }

    fn contains(&self, time: HostNs) -> bool {
        self.since.is_some_and(|since| time >= since) && self.until.is_none_or(|until| time < until)
    }
}

/// Calls and operations that were left out, the latest ones.
#[derive(Debug, Default)]
struct Remembered {
    known: FxHashSet<Handle>,
    order: VecDeque<Handle>,
}

impl Remembered {
    fn add(&mut self, id: Handle) {
        if !id.is_none() && self.known.insert(id) {
            self.order.push_back(id);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    fn has(&self, id: Handle) -> bool {
        self.known.contains(&id)
    }
}

/// A call that has not returned.
#[derive(Debug)]
struct Open {
    id: Handle,
    state: State,
}

#[derive(Debug)]
enum State {
    Drawn,
    LeftOut,
    /// It is drawn once something in it is.
    Held(Box<Held>),
}

/// The begin of a call that waits.
#[derive(Debug)]
struct Held {
    time: HostNs,
    comm: Option<Comm>,
    event: Event,
    doubt: Option<Doubt>,
}

impl Filter {
    /// A filter, if the selection leaves anything out.
    pub(super) fn new(selection: &Selection, begin: HostNs, world: Option<(u32, u32)>) -> Option<Filter> {
        (!selection.is_all()).then(|| Filter {
            selection: selection.clone(),
            begin,
            wants_all_calls: Selection { only_nccl: false, ..selection.clone() }.is_all(),
            world,
            asked: 0,
            counts: FxHashMap::default(),
            operations: Span::default(),
            steps: Span::default(),
            left_out: Remembered::default(),
            threads: FxHashMap::default(),
            calls: FxHashMap::default(),
            figures: LeftOut::default(),
        })
    }

    /// What was left out so far.
    pub(super) fn figures(&self) -> LeftOut {
        self.figures
    }

    /// The program begins a step.
    pub(super) fn step(&mut self, time: HostNs, step: u64) {
        self.steps.learn(self.selection.steps, step, time);
    }

    /// Judges an entry. If it is drawn, `out` gets it, after the held calls around it.
    pub(super) fn take(&mut self, entry: &Entry<'_>, out: &mut impl FnMut(&Entry<'_>, Fate)) {
        let time = entry.time;
        let is_drawn = match entry.what {
            What::CallBegin { .. } | What::CallEnd { .. } | What::OperationBegin { .. } if self.wants_all_calls => true,
            What::CallBegin { id, thread, comm, event, operation, asked_by, doubt } => {
                let is_drawn = match (operation, event) {
                    (Some(operation), _) => Some(self.asks(id, comm, operation, time)),
                    (None, Event::KernelLaunch(_)) if !asked_by.is_empty() => {
                        Some(asked_by.iter().any(|call| !self.left_out.has(*call)))
                    }
                    (None, Event::GroupApi(_) | Event::Group(_)) => None,
                    (None, _) => Some(self.is_inside_drawn(thread) && self.is_now(time)),
                };
                let state = match is_drawn {
                    Some(true) => State::Drawn,
                    Some(false) => State::LeftOut,
                    None => State::Held(Box::new(Held { time, comm: comm.cloned(), event: *event, doubt })),
                };
                if is_drawn == Some(true) {
                    self.draw_held(thread, out);
                }
                self.open(thread, Open { id, state }, matches!(event, Event::GroupApi(_)));
                match is_drawn {
                    Some(is_drawn) => is_drawn,
                    None => return,
                }
            }
            What::CallEnd { id, .. } => self.close(id),
            What::OperationBegin { id, thread, call, comm, operation, replay, .. } => {
                let is_drawn = match replay {
                    None if !call.is_none() => !self.left_out.has(call),
                    None => self.asks(id, comm, operation, time),
                    Some(run) => {
                        self.count(time);
                        let is_drawn = self.admits_run(comm, operation, u64::from(run), time);
                        self.figures.operations += u64::from(!is_drawn);
                        is_drawn
                    }
                };
                if is_drawn {
                    self.draw_held(thread, out);
                } else {
                    // This is also how kernels name it.
                    self.left_out.add(id);
                }
                is_drawn
            }
            What::ThreadEnd(thread) => {
                self.ended(thread);
                true
            }
            What::Kernel { ref owner, .. } => self.admits_kernel(owner, time),
            What::Copy { of: Some(of), .. } => !self.left_out.has(of.operation.id),
            What::Copy { .. } => self.admits_other(time, self.selection.only_nccl),
            What::CudaCall(_) | What::Range { .. } | What::HostFunction(_) | What::Overhead(_) => {
                self.admits_other(time, false)
            }
            What::ProxyOpBegin { ref proxy, .. }
            | What::ProxyOpsQueued { ref proxy, .. }
            | What::ProxyOpNever { ref proxy, .. }
            | What::StepBegin { proxy: Some(ref proxy), .. } => self.admits_proxy(proxy, time),
            What::StepBegin { proxy: None, .. } | What::Control { .. } | What::NetBegin { .. } => self.is_now(time),
            What::ChannelBegin { comm, operation, .. } => match operation {
                Some(operation) => !self.left_out.has(operation.id) && self.admits_comm(comm),
                None => self.admits_comm(comm) && self.is_now(time),
            },
            // The ends of entries that are not drawn are skipped when drawing. The rest is the
            // recording's own, or shows that something is wrong.
            _ => true,
        };
        out(entry, if is_drawn { Fate::Drawn } else { Fate::LeftOut });
    }

    /// An operation is asked for: whether it is drawn.
    fn asks(&mut self, id: Handle, comm: Option<&Comm>, operation: &Operation, time: HostNs) -> bool {
        self.count(time);
        let number = self.number(comm, operation);
        let is_drawn =
            number.is_multiple_of(self.selection.every.max(1)) && self.admits(comm, operation) && self.is_now(time);
        if !is_drawn {
            self.figures.operations += 1;
            self.left_out.add(id);
        }
        is_drawn
    }

    fn count(&mut self, time: HostNs) {
        self.operations.learn(self.selection.operations, self.asked, time);
        self.asked += 1;
    }

    /// The number of the operation among those of its communicator and function. All ranks ask for
    /// the same collectives in the same order, so they have the same numbers.
    fn number(&mut self, comm: Option<&Comm>, operation: &Operation) -> u64 {
        let key = (comm.map_or(Handle::NONE, |comm| comm.context), operation.func());
        if self.counts.len() >= COUNTED && !self.counts.contains_key(&key) {
            return 0;
        }
        let count = self.counts.entry(key).or_default();
        *count += 1;
        *count - 1
    }

    /// Whether an operation is drawn, judged by itself alone.
    fn admits(&self, comm: Option<&Comm>, operation: &Operation) -> bool {
        self.admits_comm(comm) && operation.bytes().is_none_or(|bytes| bytes >= self.selection.min_bytes)
    }

    /// Whether a run of a graph's operation is drawn; runs count from 1.
    fn admits_run(&self, comm: Option<&Comm>, operation: &Operation, run: u64, time: HostNs) -> bool {
        let is_one = run.saturating_sub(1).is_multiple_of(self.selection.every.max(1));
        is_one && self.admits(comm, operation) && self.is_now(time)
    }

    fn admits_comm(&self, comm: Option<&Comm>) -> bool {
        let Selection { ranks, comms, .. } = &self.selection;
        let Some(comm) = comm else { return comms.is_empty() };
        let is_rank = u32::try_from(comm.rank).map_or(true, |rank| ranks.as_ref().is_none_or(|it| it.contains(rank)));
        is_rank && (comms.is_empty() || comms.iter().any(|wanted| self.is_called(comm, wanted)))
    }

    /// Whether a communicator has this name: that of the program, that on tracks, or its hash.
    fn is_called(&self, comm: &Comm, wanted: &str) -> bool {
        let same = |name: &str| match wanted.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => name == wanted,
        };
        comm.name.as_deref().is_some_and(same)
            || same(&names::short_comm(comm, self.world))
            || comm.hash != 0 && (same(&names::short_hash(comm.hash)) || same(&format!("{:x}", comm.hash)))
    }

    fn admits_kernel(&mut self, owner: &Owner<'_>, time: HostNs) -> bool {
        match *owner {
            Owner::Application => self.admits_other(time, self.selection.only_nccl),
            Owner::Unmatched(_) => self.is_now(time),
            Owner::Operations { comm, operations, replay: Some(run), .. } => {
                operations.iter().any(|operation| self.admits_run(comm, operation, run, time))
            }
            Owner::Operations { comm, operations, .. } => {
                self.admits_comm(comm) && operations.iter().any(|operation| !self.left_out.has(operation.id))
            }
        }
    }

    fn admits_proxy(&self, proxy: &ProxyOp<'_>, time: HostNs) -> bool {
        match proxy.operation {
            Some(operation) => !self.left_out.has(operation.id) && self.admits(proxy.comm, operation),
            None => self.admits_comm(proxy.comm) && self.is_now(time),
        }
    }

    /// Whether something that belongs to no operation is drawn.
    fn admits_other(&mut self, time: HostNs, is_unwanted: bool) -> bool {
        let is_drawn = !is_unwanted && self.is_now(time);
        self.figures.activities += u64::from(!is_drawn);
        is_drawn
    }

    /// Whether this time is in all of the windows.
    fn is_now(&self, time: HostNs) -> bool {
        let Selection { time: window, operations, steps, .. } = &self.selection;
        let since = time.since(self.begin);
        window.as_ref().is_none_or(|it| since >= it.begin && it.end.is_none_or(|end| since < end))
            && (operations.is_none() || self.operations.contains(time))
            && (steps.is_none() || self.steps.contains(time))
    }

    /// Whether none of the calls that this thread is in is left out.
    fn is_inside_drawn(&self, thread: ThreadId) -> bool {
        !self.threads.get(&thread).is_some_and(|open| open.iter().any(|call| matches!(call.state, State::LeftOut)))
    }

    fn open(&mut self, thread: ThreadId, call: Open, is_outermost: bool) {
        let open = self.threads.entry(thread).or_default();
        if is_outermost || open.len() >= DEPTH {
            // They have lost their stops.
            open.drain(..).for_each(|call| _ = self.calls.remove(&call.id));
        }
        self.calls.insert(call.id, thread);
        open.push(call);
    }

    /// A call has returned: whether its end is drawn.
    fn close(&mut self, id: Handle) -> bool {
        let Some(open) = self.calls.remove(&id).and_then(|thread| self.threads.get_mut(&thread)) else { return true };
        let Some(at) = open.iter().rposition(|call| call.id == id) else { return true };
        let is_drawn = matches!(open[at].state, State::Drawn);
        open.drain(at..).for_each(|call| _ = self.calls.remove(&call.id));
        is_drawn
    }

    fn ended(&mut self, thread: ThreadId) {
        for call in self.threads.remove(&thread).into_iter().flatten() {
            self.calls.remove(&call.id);
        }
    }

    /// Something on this thread is drawn, and so are the calls around it.
    fn draw_held(&mut self, thread: ThreadId, out: &mut impl FnMut(&Entry<'_>, Fate)) {
        for call in self.threads.get_mut(&thread).into_iter().flatten() {
            if !matches!(call.state, State::Held(_)) {
                continue;
            }
            if let State::Held(held) = std::mem::replace(&mut call.state, State::Drawn) {
                let Held { time, comm, event, doubt } = &*held;
                let (id, comm) = (call.id, comm.as_ref());
                let what = What::CallBegin { id, thread, comm, event, operation: None, asked_by: &[], doubt: *doubt };
                out(&Entry { time: *time, what }, Fate::Drawn);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlate::tests::Player;

    const COMM: &str = "0 0 comm C hash=7 rank=0 ranks=8 interface=7";

    /// What a selection draws of this script: the times of calls, and the sizes of hand-overs and
    /// of what NCCL's kernels carry.
    fn drawn(selection: Selection, script: &str) -> (String, LeftOut) {
        let mut filter = Filter::new(&selection, HostNs(0), Some((3, 8))).expect("it leaves something out");
        let mut said = Vec::new();
        let mut out = |entry: &Entry<'_>, fate| match &entry.what {
            _ if fate == Fate::LeftOut => {}
            What::CallBegin { event, .. } => said.push(format!("{}@{}", event.kind().name(), entry.time.0)),
            What::OperationBegin { operation, .. } => said.push(format!("{}", operation.count())),
            What::Kernel { owner: Owner::Operations { operations, .. }, .. } => {
                said.push(format!("kernel of {}", operations[0].count()));
            }
            What::Kernel { .. } => said.push("kernel".into()),
            _ => {}
        };
        Player::new().play(&format!("{COMM}\n{script}"), &mut |_, entry| filter.take(entry, &mut out));
        (said.join(" "), filter.figures())
    }

    /// A collective in a group, with its calls.
    fn called(at: u64, count: u64) -> String {
        let facts = format!("func=AllReduce count={count} datatype=ncclInt8");
        format!(
            "{at} 0 start g{at} GroupApi | {at} 0 start a{at} CollApi parent=g{at} {facts} | {at} 0 stop a{at}
             {at} 0 start p{at} Group | {at} 0 start c{at} Coll parent=a{at} group=p{at} {facts} | {at} 0 stop c{at}
             {at} 0 stop p{at} | {at} 0 stop g{at}\n"
        )
    }

    /// A collective of an interface without calls.
    fn handed_over(at: u64, count: u64) -> String {
        let facts = format!("func=AllReduce count={count} datatype=ncclInt8");
        format!("{at} 0 start c{at} Coll {facts} | {at} 0 stop c{at}\n")
    }

    fn every(every: u64) -> Selection {
        Selection { every, ..Selection::default() }
    }

    #[test]
    fn a_group_is_drawn_with_the_first_call_in_it() {
        let small = Selection { min_bytes: 100, ..Selection::default() };
        let (said, figures) = drawn(small, &(called(10, 5) + &called(20, 500)));
        assert_eq!(said, "GroupApi@20 CollApi@20 Group@20 500");
        assert_eq!(figures, LeftOut { operations: 1, activities: 0 });
    }

    #[test]
    fn windows_of_time_hold_for_everything() {
        let window = Selection { time: Some("20ns..30ns".parse().unwrap()), ..Selection::default() };
        let kernels =
            "15 0 kernel 12 corr=91 name=gemm | 25 0 kernel 22 corr=92 name=gemm | 35 0 kernel 30 corr=93 name=gemm";
        let (said, figures) = drawn(window, &(called(10, 5) + &called(20, 6) + &called(30, 7) + kernels));
        assert_eq!(said, "GroupApi@20 CollApi@20 Group@20 6 kernel");
        assert_eq!(figures, LeftOut { operations: 2, activities: 2 });
    }

    #[test]
    fn without_calls_hand_overs_are_counted() {
        let script: String = (0..7).map(|at| handed_over(10 + at, at)).collect();
        let (said, figures) = drawn(every(3), &script);
        assert_eq!((said.as_str(), figures.operations), ("0 3 6", 4));
        let window = Selection { operations: Some("2..3".parse().unwrap()), ..Selection::default() };
        assert_eq!(drawn(window, &script).0, "2 3");
    }

    #[test]
    fn ranks_with_other_sends_between_them_draw_the_same_collectives() {
        let send = |at: u64| {
            format!("{at} 0 start s{at} P2p func=Send count=1 datatype=ncclInt8 peer=1 | {at} 0 stop s{at}\n")
        };
        let all: String = (0..9).map(|at| handed_over(10 * at, 100 + at)).collect();
        let sends: String = (0..9).map(|at| send(10 * at) + &handed_over(10 * at + 1, 100 + at)).collect();
        let collectives = |script: &str| {
            let said = drawn(every(4), script).0;
            said.split(' ').filter(|it| it.len() == 3).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(collectives(&sends), collectives(&all));
        assert_eq!(collectives(&all), ["100", "104", "108"]);
    }

    #[test]
    fn of_a_graph_one_of_n_runs_is_drawn() {
        let captured = "
            0 0 start g GroupApi captured | 0 0 start a CollApi parent=g count=9 captured | 1 0 stop a
            2 0 start l KernelLaunch parent=g | 2 0 launch corr=3 in=l group=g | 2 0 node 50 in=l | 3 0 stop l
            3 0 start p Group | 3 0 start x Coll parent=a group=p count=9 | 3 0 stop x | 3 0 stop p | 3 0 stop g
            4 0 clone 60 of=50 | 4 0 graph 9\n";
        let run = |n: u64| format!("{n}00 0 graph 9 corr={n} | {n}50 0 kernel {n}20 corr={n} node=60\n");
        let script = captured.to_owned() + &(1..=5).map(run).collect::<String>();
        let said = drawn(every(2), &script).0;
        assert_eq!(said.matches("kernel of 9").count(), 3, "runs 1, 3 and 5: {said}");
    }

    #[test]
    fn memory_is_bounded_and_what_is_forgotten_is_drawn() {
        let small = Selection { min_bytes: 100, ..Selection::default() };
        let mut filter = Filter::new(&small, HostNs(0), None).unwrap();
        let mut player = Player::new();
        let script: String = (0..40_000).map(|at| handed_over(at, 1)).collect();
        let mut drawn = 0;
        player.play(&format!("{COMM}\n{script}"), &mut |_, entry| {
            filter.take(entry, &mut |_, fate| drawn += u64::from(fate == Fate::Drawn));
        });
        assert_eq!((filter.left_out.known.len(), filter.left_out.order.len()), (REMEMBERED, REMEMBERED));
        assert_eq!(filter.figures().operations, 40_000);
    }
}
