//! Overdue operations: a track of its own shows those of a communicator that should have ended. In a job that hangs they stay
//! open, also where no proxy is at work that would show it: between the GPUs of one host.
//!
//! An operation is done when its kernel has ended, or that of a later one of its communicator; or when all has ended that
//! NCCL's proxy and channels were doing for it. CUPTI holds back the record of a kernel that still runs, and with it the
//! records of kernels that ended before it. So where a communicator stands still, CUPTI is made to return everything, once:
//! what had ended is known then, and so is what had not. That costs the records of the kernels that are under way, which a
//! job that hangs does not miss. One that only paused does; so each pause doubles the time until the next flush.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::canvas::Canvas;
use super::comms::Comms;
use super::fields::nccl;
use super::lanes::Look;
use super::names::OperationName;
use super::outstanding::Overdue;
use super::words::Category;
use crate::model::activity;
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::{Comm, Operation, Owner};

const DESCRIPTION: &str = "Operations that should have ended and are not known to have, from their hand-over on; those of a \
                           graph from its launch on. The first one is what the others wait for.";
/// How long a communicator may stand still with an operation under way, ns.
const PATIENCE_NS: u64 = 3_000_000_000;
/// It is doubled so often at most: three minutes.
const DOUBLINGS: u32 = 6;
/// What ended on the GPU so shortly before a flush shows that it goes on, ns.
const RECENT_NS: u64 = 1_500_000_000;
/// How long a flush by force is waited for, ns.
const FLUSH_NS: u64 = 2_000_000_000;
/// Operations that were not handed over and are shown at a time.
const UNTOLD: usize = 64;
const NOT_ENDED: &str = "its kernel had not ended when CUPTI was flushed by force";
const NOT_SEEN: &str = "its kernel has not been seen to end: it may be done";
const MAY_BE_DONE: &str = "its kernel has not been seen to end, but kernels were lost or could not be matched in this process: it may be done";

/// What is known elsewhere of what is under way.
pub struct Evidence<'a> {
    /// When all that NCCL's proxy and channels did for an operation had ended.
    pub done: &'a dyn Fn(Handle) -> Option<HostNs>,
    /// When the proxy or a channel last moved in a communicator.
    pub moved: &'a dyn Fn(Handle) -> Option<HostNs>,
    /// The first launch of which no kernel has been seen, and NCCL tells nothing else: of a graph, or of a broadcast.
    pub launch: Option<HostNs>,
}

/// What is overdue, and what is known of a standstill.
#[derive(Debug, Default)]
pub(super) struct NotDone {
    /// What is handed over will be known to be done, and whether that of some was lost.
    expects_kernels: bool,
    kernels_missing: bool,
    state: State,
    /// How often what stood still went on.
    pauses: u32,
    /// By device: the first kernel that had not ended, by the id of its launch; its name, where it is not NCCL's.
    first: BTreeMap<u32, (u32, Option<Arc<str>>)>,
    unfinished: u64,
    /// Operations that had not ended and were not handed over: not shown yet; and shown, with their communicator.
    untold: Vec<Untold>,
    shown: Vec<(Handle, Handle)>,
}

#[derive(Debug, Default, Clone, Copy)]
enum State {
    /// All moves, as far as is known.
    #[default]
    Moving,
    /// CUPTI's buffers were asked for then.
    Asked(HostNs),
    /// They came, as they were then; or they did not come.
    Flushed(HostNs),
    Silent(HostNs),
}

/// An operation of which NCCL did not say that it was handed over: of a graph's replay, or a broadcast from 2.29 on.
#[derive(Debug)]
struct Untold {
    context: Handle,
    /// Which run of its graph, counted from 1.
    number: Option<u64>,
    /// When its graph was launched, or it was asked for.
    begin: HostNs,
    operation: Arc<Operation>,
}

impl NotDone {
    /// Whether the GPU's side of what is handed over from now on will be known.
    pub(super) fn expect_kernels(&mut self, canvas: &mut Canvas, comms: &mut Comms, expected: bool, now: HostNs) {
        self.expects_kernels = expected;
        if !expected {
            for context in comms.drawn.keys().copied().collect::<Vec<_>>() {
                self.give_up(canvas, comms, context, now, "from here on nothing is known of kernels");
            }
        }
    }

    /// Records of kernels were lost.
    pub(super) fn kernels_lost(&mut self) {
        self.kernels_missing = true;
    }

    /// Whose a kernel was. Of an operation whose hand-over is not known nobody will tell that it ended.
    pub(super) fn kernel(&mut self, owner: &Owner<'_>) {
        self.kernels_missing |= match owner {
            Owner::Operations { operations, .. } => operations.iter().any(|operation| operation.id.is_none()),
            Owner::Unmatched(_) => true,
            Owner::Application => false,
        };
    }

    /// Whether CUPTI was asked for what has not ended, and has not answered.
    pub(super) fn is_forcing(&self) -> bool {
        matches!(self.state, State::Asked(_) | State::Silent(_))
    }

    /// Comes once a second, in whatever state the job is; kernels are drawn up to `drawn`, as far as CUPTI has returned them.
    /// Answers whether CUPTI has to be made to return everything.
    pub(super) fn tick(
        &mut self,
        canvas: &mut Canvas,
        comms: &mut Comms,
        now: HostNs,
        drawn: HostNs,
        evidence: &Evidence<'_>,
    ) -> bool {
        let patience = PATIENCE_NS << self.pauses.min(DOUBLINGS);
        let since = HostNs(drawn.0.saturating_sub(patience));
        let mut standing = Vec::new();
        let (mut moved, mut all_still) = (HostNs(0), true);
        for (context, comm) in &mut comms.drawn {
            comm.outstanding.settle(canvas.writer(), now);
            let last = comm.outstanding.moved().max((evidence.moved)(*context).unwrap_or(HostNs(0)));
            // Where none of its kernels is known, and others are not matched, its own may be among those.
            let is_known = comm.outstanding.is_drawn() || !self.kernels_missing;
            all_still &= last <= since;
            if is_known && last <= since && comm.outstanding.stands(since, evidence.done) {
                standing.push(*context);
                moved = moved.max(last);
            }
        }
        let launch = evidence.launch.filter(|launched| self.expects_kernels && all_still && *launched <= since);
        let stands = !standing.is_empty() || launch.is_some() || !self.untold.is_empty() || !self.shown.is_empty();
        let moved = moved.max(launch.unwrap_or(HostNs(0)));
        let wish = self.next_state(now, stands, moved);
        if matches!(self.state, State::Flushed(_) | State::Silent(_)) {
            self.show(canvas, comms, &standing, since);
        }
        end_what_is_done(canvas, comms);
        wish
    }

    /// CUPTI was made to return its buffers, as they were at `time`, and they have been taken; something last ended on the
    /// GPU at `moved`.
    ///
    /// Where that was just before, nothing stood: the host had only handed over enough for long, and CUPTI held back what
    /// had ended. What was under way has lost its record, and is not followed any more.
    /// Answers how many kernels had not ended.
    pub(super) fn flushed_by_force(&mut self, comms: &mut Comms, time: HostNs, moved: HostNs) -> u64 {
        self.state = State::Flushed(time);
        if moved.0 + RECENT_NS >= time.0 {
            self.untold.clear();
            comms.drawn.values_mut().for_each(|comm| comm.outstanding.forget_unfinished());
        }
        std::mem::take(&mut self.unfinished)
    }

    /// A kernel had not ended when CUPTI was made to return its record.
    pub(super) fn unfinished(
        &mut self,
        comms: &mut Comms,
        kernel: &activity::Unfinished,
        comm: Option<&Comm>,
        operations: &[Arc<Operation>],
        replay: Option<(u64, HostNs)>,
    ) {
        self.unfinished += 1;
        let name = comm.is_none().then(|| Arc::clone(&kernel.name));
        let first = self.first.entry(kernel.place.device).or_insert((kernel.correlation, name.clone()));
        if kernel.correlation < first.0 {
            *first = (kernel.correlation, name);
        }
        let Some(comm) = comm else { return };
        let Some(drawn) = comms.drawn.get_mut(&comm.context) else { return };
        for operation in operations {
            if replay.is_none() && drawn.outstanding.unfinished(operation.id) {
                continue;
            }
            drawn.comm.get_or_insert_with(|| Arc::new(comm.clone()));
            let (number, begin) = replay.unzip();
            let begin = begin.unwrap_or(operation.since);
            // Records come in no order. Of a graph's replays the first is the one that stands.
            if let Some(known) = self.untold.iter_mut().find(|it| it.operation.id == operation.id) {
                if number < known.number {
                    (known.number, known.begin) = (number, begin);
                }
            } else if self.untold.len() < UNTOLD {
                let (context, operation) = (comm.context, Arc::clone(operation));
                self.untold.push(Untold { context, number, begin, operation });
            }
        }
    }

    /// A kernel has ended by `now`, and nobody knows when. What it carried is not under way any more.
    pub(super) fn untimed(
        &mut self,
        canvas: &mut Canvas,
        comms: &mut Comms,
        now: HostNs,
        comm: Option<&Comm>,
        operations: &[Arc<Operation>],
    ) {
        self.kernels_lost();
        let Some(comm) = comm else { return };
        if let Some(drawn) = comms.drawn.get_mut(&comm.context) {
            operations.iter().for_each(|operation| drawn.outstanding.end(operation.id, now));
        }
        self.untold_done(canvas, comm.context, now);
    }

    fn show(&mut self, canvas: &mut Canvas, comms: &mut Comms, standing: &[Handle], since: HostNs) {
        let mut overdue = Vec::new();
        for context in standing {
            let Some(comm) = comms.drawn.get_mut(context) else { continue };
            overdue.extend(comm.outstanding.overdue(since).map(|it| (*context, it)));
        }
        // In one order, whatever that of the map.
        overdue.sort_by_key(|(_, it)| (it.begin, it.operation.id));
        for (context, Overdue { begin, operation, is_unfinished }) in overdue {
            let doubt = match (is_unfinished, self.kernels_missing) {
                (true, _) => NOT_ENDED,
                (false, false) => NOT_SEEN,
                (false, true) => MAY_BE_DONE,
            };
            let overdue = Untold { context, number: None, begin, operation };
            self.begin(canvas, comms, &overdue, doubt);
        }
        for untold in std::mem::take(&mut self.untold) {
            self.shown.push((untold.context, untold.operation.id));
            self.begin(canvas, comms, &untold, NOT_ENDED);
        }
    }

    fn begin(&self, canvas: &mut Canvas, comms: &mut Comms, overdue: &Untold, doubt: &str) {
        let Untold { context, number, begin, operation } = overdue;
        let Some(family) = comms.not_done(canvas, *context, DESCRIPTION) else { return };
        let Some(comm) = comms.drawn.get(context).and_then(|drawn| drawn.comm.as_ref()) else { return };
        canvas.args.clear().operation(operation).of_comm(Some(comm)).text(nccl::DOUBT, doubt);
        if let Some(number) = number {
            canvas.args.uint(nccl::REPLAY, *number);
        }
        if let Some((_, Some(kernel))) = comm.device.and_then(|device| self.first.get(&device)) {
            canvas.args.text(nccl::NOTE, &format!("the GPU had not ended a kernel before it: {kernel}"));
        }
        let name = OperationName { operation, prefix: "" };
        let look = Look::new(Category::NotDone, &name).of(operation.correlation(Some(comm)));
        canvas.begin(family, shown(operation.id), *begin, &look);
    }

    /// A kernel of a communicator has ended: what was shown of it before and was not handed over has ended, too.
    pub(super) fn untold_done(&mut self, canvas: &mut Canvas, context: Handle, end: HostNs) {
        let State::Flushed(flushed) = self.state else { return };
        if end < flushed || self.shown.is_empty() {
            return;
        }
        canvas.args.clear();
        for (_, operation) in self.shown.extract_if(.., |(of, _)| *of == context) {
            canvas.end(shown(operation), end);
        }
    }

    /// What is under way in a communicator will not be known to end.
    pub(super) fn give_up(&mut self, canvas: &mut Canvas, comms: &mut Comms, context: Handle, now: HostNs, why: &str) {
        let Some(drawn) = comms.drawn.get_mut(&context) else { return };
        let mut given_up = drawn.outstanding.give_up();
        self.untold.retain(|it| it.context != context);
        given_up.extend(self.shown.extract_if(.., |(of, _)| *of == context).map(|(_, operation)| operation));
        for operation in given_up {
            canvas.args.clear().text(nccl::DOUBT, why);
            canvas.end(shown(operation), now);
        }
    }

    /// Whether an operation of `comm` that was handed over may have to be shown.
    pub(super) fn may_hang(&self, comm: &Comm) -> bool {
        // Up to interface v4 NCCL does not tell what is captured into a graph, and so runs later or never.
        self.expects_kernels && comm.interface >= 5
    }

    /// Something `stands` still, or nothing does; what stands last moved then. Whether CUPTI has to be flushed by force.
    fn next_state(&mut self, now: HostNs, stands: bool, moved: HostNs) -> bool {
        self.state = match self.state {
            State::Moving if stands => State::Asked(now),
            State::Asked(asked) if now.since(asked) > FLUSH_NS => State::Silent(asked),
            State::Flushed(_) | State::Silent(_) if !stands => {
                self.pauses += 1;
                State::Moving
            }
            // Something else came to stand, of which the flush told nothing.
            State::Flushed(flushed) | State::Silent(flushed) if moved > flushed => State::Asked(now),
            _ => return false,
        };
        let wish = matches!(self.state, State::Asked(_));
        if wish {
            self.first.clear();
        }
        wish
    }
}

/// Ends the slices of those whose end is known by now.
pub(super) fn end_what_is_done(canvas: &mut Canvas, comms: &mut Comms) {
    let mut ended: Vec<_> = comms.drawn.values_mut().flat_map(|drawn| drawn.outstanding.take_ended()).collect();
    ended.sort_unstable();
    canvas.args.clear();
    for (end, operation) in ended {
        canvas.end(shown(operation), end);
    }
}

/// The number of an operation's slice: the operation's, with a bit that no counter of events reaches, because its hand-over has that one.
fn shown(operation: Handle) -> Handle {
    Handle(operation.0 | 1 << (Handle::COUNTER_BITS - 1))
}

#[cfg(all(test, feature = "cli"))]
mod tests;
