//! What NCCL's events do: they start, stop and change their state.

use std::sync::Arc;

use super::channels::Facts;
use super::kernels::SILENT_BROADCASTS;
use super::known::{Details, Known, Work};
use super::numbers::{Called, collectives};
use super::{COPY_ENGINE, Correlator, Out, Started, find};
use crate::model::event::{self, Event, Kind};
use crate::model::ids::{Handle, RingId};
use crate::model::state;
use crate::model::time::{GpuNs, HostNs};
use crate::model::timeline::{Comm, Doubt, Moment, Operation, Texts, Thread, ThreadId, What};
use crate::model::word::Word;

/// Communicators of one second whose `init` is remembered.
const INITS: usize = 64;

impl Correlator {
    pub(super) fn thread(&mut self, ring: RingId, tid: i32, name: &str, out: &mut Out<'_>) {
        let id = ThreadId(self.threads);
        self.threads += 1;
        self.rings.insert(ring, (id, tid));
        out.say(What::Thread(Thread { id, tid, name: name.trim_end_matches('\0') }));
    }

    pub(super) fn comm_init(&mut self, ring: RingId, init: &event::CommInit, out: &mut Out<'_>) {
        let name = self.name(ring, init.name);
        let comm = self.comms.add(init, name);
        if let Some(device) = comm.device {
            self.channels.comm_on(init.context, device);
        }
        out.say(What::CommInit(comm));
        if self.inits.len() < INITS
            && let Some(&(_, tid)) = self.rings.get(&ring)
        {
            self.inits.push((out.now, tid));
        }
    }

    /// A communicator has ended, so the one that ended longest ago is forgotten.
    pub(super) fn forget_after(&mut self, context: Handle) {
        self.numbers.forget(context);
        if let Some(oldest) = self.comms.end(context) {
            self.moved.remove(&oldest);
            self.proxy.connections.retain(|(context, ..)| *context != oldest);
            self.channels.forget(oldest);
        }
    }

    pub(super) fn start(
        &mut self,
        ring: RingId,
        id: Handle,
        parent: Handle,
        context: Handle,
        event: &Event,
        out: &mut Out<'_>,
    ) {
        let (thread, tid) = match self.rings.get(&ring) {
            Some(&owner) => owner,
            None => {
                // The record that names the ring's thread was lost.
                self.thread(ring, 0, "unknown", out);
                self.rings[&ring]
            }
        };
        let here = Moment { tid, time: out.now };
        let kind = event.kind();
        let mut known = Known { kind, thread, context, start: out.now, stops: 0, details: Details::None };
        let doubt = self.doubt_of_parent(parent, kind);
        match kind {
            Kind::Group => {
                let since = self.plans.group(id, thread, context, out.now);
                self.channels.run(id, context, since);
            }
            _ => self.plans.something_else(thread),
        }
        let started = &Started { id, parent, context, thread, here, event, doubt };
        match *event {
            Event::GroupApi(_) => known.details = Details::Group { marks: [None; 2] },
            Event::CollApi(event::CollApi { captured, .. }) | Event::P2pApi(event::P2pApi { captured, .. }) => {
                let captured = captured.is_set();
                if captured && self.comms.get(&context).is_some_and(|comm| comm.nodes > 1) {
                    self.numbers.defers(context);
                }
                known.details = Details::Call { captured, replays: 0, number: None, group: parent, made: here };
            }
            Event::Coll(_) | Event::P2p(_) => known.details = self.handed_over(started, out),
            Event::ProxyOp(op) => known.details = self.start_proxy_op(started, op, out),
            Event::ProxyStep(step) => return self.start_step(known, id, parent, step.step, out),
            Event::KernelCh(channel) => {
                let (operation, group) = match self.events.details(parent) {
                    Some(Details::Operation(operation, group, _)) => (Some(Arc::clone(operation)), *group),
                    _ => (None, Handle::NONE),
                };
                let (channel, start) = (channel.channel, self.stamp(context, channel.start.0));
                let facts = Facts { id, channel, phase: None, operation, doubt, start };
                self.work(parent, |work| work.channels[0] += 1);
                let run = self.channels.begin(group, context, facts, out.now);
                known.details = Details::Channel { run, operation: parent };
            }
            Event::KernelPhase(phase) => {
                let run = match self.events.details(parent) {
                    Some(Details::Channel { run, .. }) => *run,
                    _ => Handle::NONE,
                };
                let name = self.text(phase.phase).unwrap_or_else(|| "phase".into());
                let start = self.stamp(context, phase.start.0);
                let (channel, phase) = (phase.channel, Some((phase.phase_id, name)));
                let facts = Facts { id, channel, phase, operation: None, doubt, start };
                let run = self.channels.begin(run, context, facts, out.now);
                known.details = Details::Channel { run, operation: Handle::NONE };
            }
            Event::NetPlugin(ref net) => out.say(What::NetBegin { id, thread, net: &net.net }),
            Event::Unknown(unknown) => {
                self.doubts.unknown_types += 1;
                out.say(What::Unknown { thread, bits: unknown.bits });
            }
            Event::CeColl(_) => {
                let (captured, group) = (false, Handle::NONE);
                known.details = Details::Call { captured, replays: 0, number: None, group, made: here };
            }
            Event::KernelLaunch(launch) => {
                if self.plans.calls.has_numbers(parent, context) {
                    self.numbers.launched(context, parent, out.now);
                }
                self.plans.launch(id, context, parent, launch.stream, here);
            }
            Event::ProxyCtrl(_) | Event::Group(_) | Event::CeSync(_) | Event::CeBatch(_) => {}
        }
        if is_host_call(kind) {
            self.call_begins(started, out);
        }
        self.events.insert(id, known);
        // Emits samples that were displaced.
        self.say_ready(out.sink);
    }

    /// NCCL hands over an operation.
    fn handed_over(&mut self, started: &Started<'_>, out: &mut Out<'_>) -> Details {
        let &Started { id, parent, context, thread, here, event, doubt } = started;
        let asked = match self.events.details(parent) {
            Some(Details::Call { made, .. }) => *made,
            _ => here,
        };
        let mut operation = self.operation(id, *event, out.now, asked);
        match &mut operation.event {
            Event::P2p(p2p) => operation.number = self.p2p_number(context, p2p, (parent, here)),
            Event::Coll(coll) => coll.seq = self.seq(context, coll, (parent, here)),
            _ => {}
        }
        let replay = self.replay(parent);
        let comm = self.comms.get(&context);
        if comm.is_some_and(|comm| miscounts(comm, &operation.event, replay)) {
            self.channels.distrust(context);
        }
        let call = if self.comms.get(&context).is_some_and(|comm| comm.interface >= 5) { parent } else { Handle::NONE };
        let operation = Arc::new(operation);
        out.say(What::OperationBegin { id, thread, call, comm, operation: &operation, replay, doubt });
        let (group, (is_captured, group_api)) = self.groups_of(event, parent);
        self.plans.operation(group, &operation, (parent, is_captured, group_api));
        Details::Operation(operation, group, Work::default())
    }

    /// A call on a host thread begins.
    fn call_begins(&mut self, started: &Started<'_>, out: &mut Out<'_>) {
        let &Started { id, parent, context, thread, here, event, doubt } = started;
        let mut operation = matches!(event, Event::CollApi(_) | Event::P2pApi(_) | Event::CeColl(_))
            .then(|| self.operation(id, *event, out.now, here));
        if let (Some(operation), Event::CollApi(call)) = (&mut operation, event) {
            operation.number = self.broadcast_number(context, call);
        }
        let asked_by = match event.kind() {
            Kind::KernelLaunch => self.plans.calls.of(parent, context),
            _ => Vec::new(),
        };
        let (comm, asked_by) = (self.comms.get(&context), &asked_by[..]);
        out.say(What::CallBegin { id, thread, comm, event, operation: operation.as_ref(), asked_by, doubt });
        match operation {
            Some(operation) if event.kind() == Kind::CeColl => {
                if let Some(Details::Call { group, .. }) = self.events.details(parent) {
                    self.plans.calls.carried(*group, parent);
                }
                self.copy_engine.insert(id, (context, operation), COPY_ENGINE);
            }
            Some(operation) => self.plans.calls.add(id, context, parent, &Arc::new(operation)),
            None => {}
        }
    }

    pub(super) fn stop(&mut self, id: Handle, out: &mut Out<'_>) {
        let Some(known) = find(&mut self.events, self.tag, &mut self.doubts, id) else { return };
        if known.stops > 0 {
            known.stops = known.stops.saturating_add(1);
            self.doubts.double_stops += 1;
            return;
        }
        match known.kind {
            Kind::KernelLaunch => self.plans.launched(id, known.thread),
            Kind::Group => {
                if let Some(handover) = self.plans.group_end(id) {
                    self.channels.handed_over(id, handover);
                }
            }
            _ => {}
        }
        match known.details {
            Details::Group { marks } => out.say(What::CallEnd { id, group_marks: marks }),
            Details::Operation(..) => out.say(What::OperationEnd { id }),
            Details::ProxyOp { ref mut steps, parent, .. } => {
                let (open, now, context) = (std::mem::take(steps), out.now, known.context);
                self.moves(context, now);
                self.work(parent, |work| (work.proxy[1], work.last) = (work.proxy[1] + 1, now));
                self.show_progress(id, out);
                self.end_steps(&open, out);
                out.say(What::ProxyOpEnd { id });
            }
            Details::Channel { run, operation } => {
                let (now, context) = (out.now, known.context);
                self.moves(context, now);
                // Some releases of NCCL mistake the reports of one operation for those of another.
                if !self.channels.distrusts(context) {
                    self.work(operation, |work| (work.channels[1], work.last) = (work.channels[1] + 1, now));
                }
                self.channels.end(run, id, out.now);
                self.say_ready(out.sink);
            }
            Details::Step { op, step, first, starts, .. } => {
                let context = known.context;
                self.moves(context, out.now);
                out.say(What::StepEnd { id: first, starts, stopped: true });
                if let Some(Details::ProxyOp { steps, .. }) = self.events.details_mut(op) {
                    steps.retain(|&(number, _)| number != step);
                }
            }
            Details::Call { .. } => out.say(What::CallEnd { id, group_marks: [None; 2] }),
            Details::None if known.kind == Kind::NetPlugin => out.say(What::NetEnd { id }),
            Details::None if is_host_call(known.kind) => out.say(What::CallEnd { id, group_marks: [None; 2] }),
            Details::None => {}
        }
        self.events.close(id);
    }

    pub(super) fn state(&mut self, id: Handle, number: u16, argument: u64, steps: i32, out: &mut Out<'_>) {
        let Some(known) = find(&mut self.events, self.tag, &mut self.doubts, id) else { return };
        let (thread, context) = (known.thread, known.context);
        match (number, &mut known.details) {
            (
                state::PROXY_STEP_SEND_GPU_WAIT..=state::PROXY_STEP_RECV_GPU_WAIT | state::PROXY_STEP_SEND_PEER_WAIT,
                Details::Step { first, phase, .. },
            ) => {
                // While the network refuses, NCCL reports the same at every turn.
                if *phase != number {
                    *phase = number;
                    let told = matches!(number, state::PROXY_STEP_SEND_WAIT | state::PROXY_STEP_RECV_FLUSH_WAIT);
                    let bytes = (told && argument > 0).then_some(argument);
                    out.say(What::StepPhase { id: *first, state: number, bytes });
                    // The GPU has written what is sent.
                    if number == state::PROXY_STEP_SEND_WAIT {
                        self.saw_work_of(id, out.now);
                    }
                }
            }
            (state::PROXY_CTRL_IDLE..=state::PROXY_CTRL_APPEND_END, _) if known.kind == Kind::ProxyCtrl => {
                self.control(thread, context, number, argument, out);
            }
            (state::PROXY_OP_SEND_POSTED..=state::PROXY_OP_RECV_DONE, Details::ProxyOp { .. }) => {
                // An operation that was closed as silent stays closed.
                if known.stops == 0 {
                    self.show_progress(id, out);
                    out.say(What::ProxyOpPhase { id, state: number, bytes: argument, steps });
                }
            }
            (state::PROXY_OP_IN_PROGRESS, Details::ProxyOp { .. }) => self.show_progress(id, out),
            (state::KERNEL_CH_STOP | state::KERNEL_PHASE_STOP, &mut Details::Channel { run, .. }) => {
                // Some releases stop a channel that they have not started, by the last one's
                // handle.
                if known.stops == 0 {
                    let stop = self.stamp(context, argument);
                    self.channels.stamp(run, id, stop);
                }
            }
            (state::GROUP_START_API_STOP, Details::Group { marks }) => {
                marks[0].get_or_insert(out.now);
            }
            (state::GROUP_END_API_START, Details::Group { marks }) => {
                marks[1].get_or_insert(out.now);
            }
            _ => self.doubts.unknown_types += 1,
        }
    }

    /// A reading of the timer of a communicator's GPU.
    fn stamp(&self, context: Handle, reading: u64) -> GpuNs {
        self.comms.get(&context).map_or(GpuNs(reading), |comm| comm.timer.to_ns(reading))
    }

    /// Why a child of `parent` may be wrong. Counts an unknown parent.
    fn doubt_of_parent(&mut self, parent: Handle, kind: Kind) -> Option<Doubt> {
        if matches!(kind, Kind::GroupApi | Kind::Group | Kind::ProxyCtrl | Kind::Unknown) {
            return None;
        }
        if parent.is_none() {
            return Some(Doubt::ParentMissing);
        }
        if !parent.is_from(self.tag) {
            return Some(Doubt::ParentForeign);
        }
        match self.events.get(parent) {
            Some(known) if known.stops > 1 => Some(Doubt::ParentStoppedTwice),
            Some(_) => None,
            None => {
                self.doubts.unknown_parents += 1;
                Some(Doubt::ParentUnknown)
            }
        }
    }

    /// The Group that an operation is part of; whether its call was captured, and in which GroupApi
    /// it was made.
    fn groups_of(&self, event: &Event, parent: Handle) -> (Handle, (bool, Handle)) {
        let group = match event {
            Event::Coll(coll) => coll.group,
            Event::P2p(p2p) => p2p.group,
            _ => Handle::NONE,
        };
        let call = match self.events.details(parent) {
            Some(Details::Call { captured, group, .. }) => (*captured, *group),
            _ => (false, Handle::NONE),
        };
        // Up to v4, the parent is the Group.
        (if group.is_none() { parent } else { group }, call)
    }

    /// Which run of a captured call begins with a child of `parent`, counted from 1.
    fn replay(&mut self, parent: Handle) -> Option<u32> {
        match self.events.details_mut(parent) {
            Some(Details::Call { captured: true, replays, .. }) => {
                *replays += 1;
                Some(*replays)
            }
            _ => None,
        }
    }

    /// The call that asked for what is handed over here, unless that was captured.
    fn called(&self, parent: Handle, here: Moment) -> Option<Called> {
        match self.events.details(parent) {
            Some(&Details::Call { captured: false, group: group_api, made, .. }) => {
                Some(Called { group_api, at: made.time, is_deferred: made.tid != here.tid })
            }
            _ => None,
        }
    }

    /// The number of a collective on all ranks, by NCCL's.
    fn seq(&mut self, context: Handle, coll: &event::Coll, (parent, here): (Handle, Moment)) -> u64 {
        let Some(call) = self.called(parent, here).filter(|_| coll.seq != event::Coll::UNNUMBERED) else {
            return coll.seq;
        };
        let turn = self.numbers.turn(collectives(context, coll.func), call);
        let of_group = |group_api| self.plans.calls.collectives(group_api, context, coll.func);
        let before: u32 = match turn.is_early {
            true => self.numbers.waiting(context, call.at).map(of_group).sum(),
            false => 0,
        };
        coll.seq.saturating_add(u64::from(before)).saturating_sub(u64::from(turn.after))
    }

    /// The number of a send or receive that the call `parent` asked for.
    fn p2p_number(&mut self, context: Handle, p2p: &event::P2p, (parent, here): (Handle, Moment)) -> u32 {
        if self.numbers.is_lossy() {
            return Operation::UNNUMBERED;
        }
        let pair = (context, p2p.peer, p2p.func);
        if let Some(call) = self.called(parent, here) {
            return self.numbers.called(pair, call);
        }
        match self.events.details_mut(parent) {
            Some(Details::Call { captured: true, number, .. }) => match *number {
                Some(number) => number,
                None => *number.insert(self.numbers.captured(pair)),
            },
            // Nobody knows whether it was captured.
            None if !parent.is_none() => self.numbers.uncounted(pair),
            _ => self.numbers.next(pair),
        }
    }

    /// The number of a broadcast that NCCL will not hand over, by its call.
    fn broadcast_number(&mut self, context: Handle, call: &event::CollApi) -> u32 {
        let is_silent = |comm: &Comm| comm.version >= SILENT_BROADCASTS;
        match call.func {
            Word::BROADCAST if self.comms.get(&context).is_some_and(is_silent) => match call.captured.is_set() {
                true => self.numbers.captured(collectives(context, Word::BROADCAST)),
                false => self.numbers.next(collectives(context, Word::BROADCAST)),
            },
            _ => Operation::UNNUMBERED,
        }
    }

    /// The operation that an event starts, with the texts it refers to.
    fn operation(&self, id: Handle, event: Event, since: HostNs, asked: Moment) -> Operation {
        let number = Operation::UNNUMBERED;
        let mut operation = Operation { id, since, asked: Some(asked), event, texts: None, number };
        let words = match event {
            Event::Coll(coll) => [coll.func, coll.datatype, coll.algorithm, coll.protocol, coll.variant],
            Event::CeColl(coll) => [coll.func, coll.datatype, Word::ABSENT, Word::ABSENT, coll.sync_strategy],
            _ => [operation.func(), operation.datatype(), Word::ABSENT, Word::ABSENT, Word::ABSENT],
        };
        if words.iter().any(|word| word.is_text() || *word == Word::LOST) {
            let [func, datatype, algorithm, protocol, variant] = words.map(|word| self.text(word));
            operation.texts = Some(Box::new(Texts { func, datatype, algorithm, protocol, variant }));
        }
        operation
    }

    /// A communicator's name, by its word and the thread that recorded it.
    pub(super) fn name(&mut self, ring: RingId, word: Word) -> Option<Box<str>> {
        if word == Word::NAME { self.names.remove(&ring) } else { self.text(word) }
    }

    /// The text of a word, whether NCCL's or recorded; `None` if it has none.
    pub(super) fn text(&self, word: Word) -> Option<Box<str>> {
        match word {
            Word::ABSENT => None,
            Word::LOST => Some("(text lost)".into()),
            _ => word.spelling().map(Into::into).or_else(|| self.texts.get(&word).cloned()),
        }
    }
}

/// Whether NCCL may mistake the reports of kernel channels for those of other operations from this
/// one on: up to 2.30.7, after the replay of a graph and, from 2.27.7 on, after a message to
/// oneself (docs/nccl-profiler-interface.md). An unknown release may do so.
fn miscounts(comm: &Comm, event: &Event, replay: Option<u32>) -> bool {
    let to_itself = matches!(event, Event::P2p(p2p) if p2p.peer == comm.rank);
    comm.version < 23_100 && (replay.is_some() || to_itself)
}

/// Whether an event is a call on a host thread, which nests with the others there.
fn is_host_call(kind: Kind) -> bool {
    use Kind::{CeBatch, CeColl, CeSync, CollApi, Group, GroupApi, KernelLaunch, P2pApi};
    matches!(kind, GroupApi | CollApi | P2pApi | KernelLaunch | Group | CeColl | CeSync | CeBatch)
}
