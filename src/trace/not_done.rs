//! Overdue operations: those of a communicator that should have ended are shown on a track of their
//! own. In a hanging job they stay open, even between GPUs of one host, where no proxy could show
//! the hang.
//!
//! An operation is done when its kernel, or that of a later operation of the communicator, has
//! ended; or when everything has ended that NCCL's proxy and channels were doing for it. CUPTI
//! holds back the record of a kernel that still runs, and with it the records of kernels that ended
//! before. So when a communicator stands still, CUPTI is forced to return everything, once: then it
//! is known which kernels had ended and which had not. The price is the records of kernels under
//! way. A hanging job does not miss them, but a job that only paused does. So each pause doubles
//! the time until the next flush.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::canvas::Canvas;
use super::comms::Comms;
use super::fields::nccl;
use super::lanes::Look;
use super::names::{self, OperationName, demangled};
use super::outstanding::Overdue;
use super::words::Category;
use super::words::overdue::{BEHIND_LOST, MAY_BE_DONE, NOT_ENDED, NOT_SEEN};
use super::writer::Name as _;
use crate::model::activity;
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::{Comm, Operation, Owner};

const DESCRIPTION: &str = "Overdue operations: not known to have ended although they should have. Each begins at \
                           its hand-over, or at the launch of its graph. The others wait for the first one.";
/// How long a communicator may stand still with an operation under way, in ns.
const PATIENCE_NS: u64 = 3_000_000_000;
/// How many times longer graphs may be launched while nothing is seen of them: in most jobs they
/// work, and something always runs.
const LAUNCHING: u64 = 10;
/// How often that time is doubled: up to three minutes.
const DOUBLINGS: u32 = 6;
/// If something ended on the GPU this shortly before a flush, the job is not standing still; in ns.
const RECENT_NS: u64 = 1_500_000_000;
/// How long to wait for a forced flush, in ns.
const FLUSH_NS: u64 = 2_000_000_000;
/// How long an operation must have stood still before a line on stderr says so, in ns. That time is
/// doubled with each pause, too.
const ALOUD_NS: u64 = 30_000_000_000;
/// How many operations without a reported hand-over are shown at a time.
const UNTOLD: usize = 64;

/// Evidence from elsewhere about operations under way.
pub struct Evidence<'a> {
    /// When everything that NCCL's proxy and channels did for an operation had ended.
    pub done: &'a dyn Fn(Handle) -> Option<HostNs>,
    /// When the proxy or a channel last made progress in a communicator.
    pub moved: &'a dyn Fn(Handle) -> Option<HostNs>,
    /// The first and the last launch without a known kernel that NCCL reports nothing else about:
    /// of a graph, or of a broadcast.
    pub launches: Option<(HostNs, HostNs)>,
}

/// What is wanted of CUPTI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// That it is forced to return everything.
    Force,
    /// That it is not, if that has not begun.
    Leave,
}

/// The overdue operations, and what is known about a standstill.
#[derive(Debug, Default)]
pub struct NotDone {
    /// Whether the ends of operations handed over from now on will be known, and whether the
    /// kernels of some are missing.
    expects_kernels: bool,
    kernels_missing: bool,
    state: State,
    /// CUPTI may be forced to return unfinished kernels from a wish for it until the answer,
    /// however late that comes.
    forces: bool,
    /// How often a standstill turned out to be a pause.
    pauses: u32,
    /// By device: the first kernel that had not ended, by the id of its launch, and its name if it
    /// is not NCCL's.
    first: BTreeMap<u32, (u32, Option<Arc<str>>)>,
    unfinished: u64,
    /// When the last flush took the records of kernels that the GPU was still to work through.
    lost: HostNs,
    /// Operations that had not ended and whose hand-over was not reported: those not yet shown, and
    /// those shown, with their communicator.
    untold: Vec<Untold>,
    shown: Vec<(Handle, Handle)>,
    /// The first operation of this standstill whose kernel is known not to have ended.
    stands: Option<Stands>,
}

/// An operation that stands still, for a line on stderr.
#[derive(Debug)]
struct Stands {
    since: HostNs,
    name: String,
    /// What the GPU had to finish before it.
    earlier: Option<String>,
    /// A line said so.
    is_said: bool,
}

#[derive(Debug, Default, Clone, Copy)]
enum State {
    /// As far as is known, everything makes progress.
    #[default]
    Moving,
    /// CUPTI's buffers were requested at this time.
    Asked(HostNs),
    /// The buffers arrived, with the content they had at that time; or they did not arrive.
    Flushed(HostNs),
    Silent(HostNs),
}

/// An operation whose hand-over NCCL did not report: of a graph's replay, or a broadcast from 2.29
/// on.
#[derive(Debug)]
struct Untold {
    context: Handle,
    /// Which run of its graph, counted from 1.
    number: Option<u64>,
    /// When its graph was launched, or when it was called.
    begin: HostNs,
    operation: Arc<Operation>,
}

impl NotDone {
    /// Sets whether the GPU's side will be known for operations handed over from now on.
    pub(super) fn expect_kernels(&mut self, canvas: &mut Canvas, comms: &mut Comms, expected: bool, now: HostNs) {
        self.expects_kernels = expected;
        if !expected {
            for context in comms.drawn.keys().copied().collect::<Vec<_>>() {
                self.give_up(canvas, comms, context, now, "from here on nothing is known about kernels");
            }
        }
    }

    /// Records of kernels were lost.
    pub fn kernels_lost(&mut self) {
        self.kernels_missing = true;
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn misses_kernels(&self) -> bool {
        self.kernels_missing
    }

    /// Notes a kernel's owner. The end of an operation without a known hand-over will not be
    /// reported.
    pub(super) fn kernel(&mut self, owner: &Owner<'_>) {
        self.kernels_missing |= match owner {
            Owner::Operations { operations, .. } => operations.iter().any(|operation| operation.id.is_none()),
            Owner::Unmatched(_) => true,
            Owner::Application => false,
        };
    }

    /// Whether CUPTI may be returning unfinished kernels by force.
    #[must_use]
    pub fn is_forcing(&self) -> bool {
        self.forces
    }

    /// CUPTI will not be forced to return unfinished kernels.
    pub fn not_forced(&mut self) {
        self.forces = false;
    }

    /// Called once a second, whatever the job is doing. Kernels are drawn up to `drawn`, as far as
    /// CUPTI has returned them. Returns what is wanted of CUPTI.
    pub(super) fn tick(
        &mut self,
        canvas: &mut Canvas,
        comms: &mut Comms,
        now: HostNs,
        drawn: HostNs,
        evidence: &Evidence<'_>,
    ) -> Option<Wish> {
        let patience = PATIENCE_NS << self.pauses.min(DOUBLINGS);
        let since = HostNs(drawn.0.saturating_sub(patience));
        let mut standing = Vec::new();
        let (mut moved, mut all_still) = (HostNs(0), true);
        for (context, comm) in &mut comms.drawn {
            comm.outstanding.settle(canvas.writer(), now);
            let last = comm.outstanding.moved().max((evidence.moved)(*context).unwrap_or(HostNs(0)));
            // If none of its kernels is known while others are unmatched, its own may be among
            // those.
            let is_known = comm.outstanding.is_drawn() || !self.kernels_missing;
            all_still &= last <= since;
            if is_known && last <= since && comm.outstanding.stands(since, evidence.done) {
                standing.push(*context);
                moved = moved.max(last);
            }
        }
        let long_since = HostNs(drawn.0.saturating_sub(LAUNCHING * patience));
        let is_still = |(first, last): &(HostNs, HostNs)| *last <= since || *first <= long_since;
        let launches = evidence.launches.filter(is_still).filter(|_| self.expects_kernels && all_still);
        let launch = launches.map(|(first, _)| first);
        let stands = !standing.is_empty() || launch.is_some() || !self.untold.is_empty() || !self.shown.is_empty();
        let moved = moved.max(launch.unwrap_or(HostNs(0)));
        let wish = self.next_state(now, stands, moved);
        if matches!(self.state, State::Flushed(_) | State::Silent(_)) {
            self.show(canvas, comms, &standing, since);
        }
        end_what_is_done(canvas, comms);
        wish
    }

    /// The operation that has stood still long enough for a line on stderr; once for each
    /// standstill.
    pub fn take_standing(&mut self, now: HostNs) -> Option<String> {
        let patience = ALOUD_NS << self.pauses.min(DOUBLINGS);
        let stands = self.stands.as_mut().filter(|it| !it.is_said && now.since(it.since) >= patience)?;
        stands.is_said = true;
        let Stands { since, name, earlier, .. } = stands;
        let earlier = earlier.as_ref().map_or_else(String::new, |earlier| format!(" ({earlier})"));
        Some(format!("{name} has not ended for {}{earlier}", names::duration(now.since(*since) as f64)))
    }

    /// How long the first operation whose kernel is known not to have ended has stood still, ns.
    #[must_use]
    pub fn overdue_ns(&self, now: HostNs) -> u64 {
        self.stands.as_ref().map_or(0, |stands| now.since(stands.since))
    }

    /// CUPTI was forced to return its buffers, and they have been processed. Their content is that
    /// of `time`. The last thing to end on the GPU ended at `moved`.
    ///
    /// If that was just before, the job was not standing still: the host had only handed over a lot
    /// of work, and CUPTI held back what had ended. Operations that were under way have lost their
    /// record, and are no longer followed. Returns how many kernels had not ended.
    pub(super) fn flushed_by_force(
        &mut self,
        canvas: &mut Canvas,
        comms: &mut Comms,
        time: HostNs,
        moved: HostNs,
    ) -> u64 {
        self.state = State::Flushed(time);
        self.forces = false;
        let unfinished = std::mem::take(&mut self.unfinished);
        if moved.0 + RECENT_NS >= time.0 && unfinished > 0 {
            self.untold.clear();
            self.lost = time;
            canvas.args.clear().text(nccl::DOUBT, "CUPTI was flushed by force, and lost the record of its kernel");
            for operation in comms.drawn.values_mut().flat_map(|comm| comm.outstanding.forget_unfinished()) {
                canvas.end(shown(operation), time);
            }
        }
        unfinished
    }

    /// A kernel had not ended when CUPTI was forced to return its record.
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
            // Records come in any order. The first replay of a graph is the one that stands still.
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

    /// A kernel ended by `now`, at an unknown time. What it carried is no longer under way.
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
        // A fixed order, whatever the order of the map.
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

    fn begin(&mut self, canvas: &mut Canvas, comms: &mut Comms, overdue: &Untold, doubt: &str) {
        let Untold { context, number, begin, operation } = overdue;
        let Some(family) = comms.not_done(canvas, *context, DESCRIPTION) else { return };
        let Some(drawn) = comms.drawn.get(context) else { return };
        let Some(comm) = &drawn.comm else { return };
        // The first kernel of this communicator that ends shows that those that were lost have
        // ended.
        let is_behind_lost = self.lost > HostNs(0) && drawn.ran <= self.lost;
        let doubt = if is_behind_lost { BEHIND_LOST } else { doubt };
        canvas.args.clear().operation(operation).of_comm(Some(comm)).text(nccl::DOUBT, doubt);
        canvas.args.known(nccl::REPLAY, *number);
        let earlier = match comm.device.and_then(|device| self.first.get(&device)) {
            Some((_, Some(kernel))) => {
                Some(format!("the GPU had not finished an earlier kernel: {}", demangled(kernel)))
            }
            _ => None,
        };
        if let Some(earlier) = &earlier {
            canvas.args.text(nccl::NOTE, earlier);
        }
        let name = OperationName { operation, prefix: "" };
        let look = Look::new(Category::NotDone, &name).of(operation.correlation(Some(comm)));
        canvas.aloud(|canvas| canvas.begin(family, shown(operation.id), *begin, &look));
        if doubt == NOT_ENDED && self.stands.as_ref().is_none_or(|stands| *begin < stands.since) {
            let mut text = String::new();
            name.write(&mut text);
            if let Some(seq) = operation.seq() {
                text.push_str(&format!(", seq {seq},"));
            }
            text.push_str(&format!(" on {}", names::short_comm(comm, canvas.processes.world())));
            self.stands = Some(Stands { since: *begin, name: text, earlier, is_said: false });
        }
    }

    /// A kernel of a communicator has ended. Shown operations whose hand-over was not reported have
    /// then ended, too.
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

    /// The ends of what is under way in a communicator will never be known.
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

    /// Whether an operation handed over in `comm` may have to be shown.
    pub(super) fn may_hang(&self, comm: &Comm) -> bool {
        // Up to interface v4 NCCL does not report which operations are captured into a graph, and
        // those run later or never.
        self.expects_kernels && comm.interface >= 5
    }

    /// `stands` is whether something stands still, and `moved` when that last made progress.
    /// Returns what is wanted of CUPTI.
    fn next_state(&mut self, now: HostNs, stands: bool, moved: HostNs) -> Option<Wish> {
        self.state = match self.state {
            State::Moving if stands => State::Asked(now),
            State::Asked(_) if !stands => State::Moving,
            State::Asked(asked) if now.since(asked) > FLUSH_NS => State::Silent(asked),
            State::Flushed(_) | State::Silent(_) if !stands => {
                self.pauses += 1;
                State::Moving
            }
            // Something new stands still, which the flush could not show.
            State::Flushed(flushed) | State::Silent(flushed) if moved > flushed => State::Asked(now),
            // The flush may have begun meanwhile.
            State::Moving if self.forces => return Some(Wish::Leave),
            _ => return None,
        };
        if !matches!(self.state, State::Flushed(_)) {
            self.stands = None;
        }
        match self.state {
            State::Asked(_) => {
                self.first.clear();
                // An earlier one is still to come, and what it does not show is asked for then.
                (!std::mem::replace(&mut self.forces, true)).then_some(Wish::Force)
            }
            State::Moving if self.forces => Some(Wish::Leave),
            _ => None,
        }
    }
}

/// Ends the slices of operations whose end is now known.
pub(super) fn end_what_is_done(canvas: &mut Canvas, comms: &mut Comms) {
    let mut ended: Vec<_> = comms.drawn.values_mut().flat_map(|drawn| drawn.outstanding.take_ended()).collect();
    ended.sort_unstable();
    canvas.args.clear();
    for (end, operation) in ended {
        canvas.end(shown(operation), end);
    }
}

/// The id of an operation's overdue slice: the operation's handle with a bit that no event counter
/// reaches, because the handle itself is the id of its hand-over slice.
fn shown(operation: Handle) -> Handle {
    Handle(operation.0 | 1 << (Handle::COUNTER_BITS - 1))
}

#[cfg(all(test, feature = "cli"))]
mod tests;
