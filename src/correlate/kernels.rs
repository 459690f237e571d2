//! Kernels and copies: what they carried, by how they were launched.

use std::sync::Arc;

use super::plans::{Found, KernelKey};
use super::sessions::Call;
use super::{Correlator, trail};
use crate::model::activity::{self, Kernel, is_nccl};
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::{Around, CopyOf, Entry, Method, Moment, Operation, Owner, Unmatched, What};

/// From this release on NCCL does not report broadcasts, unless NCCL_ALLGATHERV_ENABLE=0.
pub(super) const SILENT_BROADCASTS: u32 = 22_900;

/// What a kernel carried.
pub(super) struct Carried<'a> {
    pub(super) context: Handle,
    pub(super) group: Handle,
    pub(super) operations: &'a [Arc<Operation>],
    pub(super) launch: Handle,
    pub(super) replay: Option<u64>,
    /// For a captured launch: where its graph was launched.
    pub(super) replayed: Option<Moment>,
    pub(super) untold: u32,
}

impl Correlator {
    /// A copy, which may belong to a collective of the copy engines.
    pub(super) fn copy(&mut self, copy: &activity::Copy, sink: &mut dyn FnMut(&Entry<'_>)) {
        let call = self.sessions.call(copy.correlation, copy.span.start);
        let (queued_by, method) = match copy.graph_node {
            0 => (self.copying.get(&call).copied(), Method::Bracket),
            node => (self.plans.behind(node, call).map(|behind| behind.launch), Method::GraphNode),
        };
        let of = queued_by.and_then(|id| self.copy_engine.get(&id));
        let of = of.map(|(context, operation)| CopyOf { comm: self.comms.get(context), operation, method });
        sink(&Entry { time: copy.span.start, what: What::Copy { copy, of } });
    }

    pub(super) fn kernel(&mut self, kernel: Kernel, sink: &mut dyn FnMut(&Entry<'_>)) {
        self.trail.say(&kernel, || [trail::kernel(&kernel)]);
        match self.claim(&kernel) {
            // Only NCCL's kernels wait: no external id is expected for others.
            Err(Unmatched::NoLaunch) if self.waiting.expects() && is_nccl(&kernel.name) => {
                self.trail.say(&kernel, || ["waits: an external id may name its launch".into()]);
                let (call, now) = (self.call_of(&kernel), self.last.max(kernel.span.end));
                if let Some(other) = self.waiting.push(call, kernel, now) {
                    self.claimed(other, Err(Unmatched::NoLaunch), sink);
                }
                self.give_up_waiting(self.last, sink);
            }
            claimed => self.claimed(kernel, claimed, sink),
        }
    }

    /// The call that launched a kernel, or its graph.
    fn call_of(&self, kernel: &Kernel) -> Call {
        self.sessions.call(kernel.correlation, kernel.span.start)
    }

    fn claim(&mut self, kernel: &Kernel) -> Result<Found, Unmatched> {
        let &Kernel { graph_node, place, span, .. } = kernel;
        let call = self.call_of(kernel);
        // Where CUPTI's times are off, they cannot say which run of its graph a kernel is.
        let span = Some(span).filter(|_| !self.are_times_off(place.device));
        let key = KernelKey { graph_node, call, device: place.device, name: &kernel.name, span };
        if graph_node != 0 {
            self.plans.graph_seen(graph_node, call, is_nccl(&kernel.name));
        }
        self.trail.say(kernel, || self.plans.explain(&key));
        let claimed = self.plans.claim(key, &|context| self.comms.get(&context)?.device);
        self.trail.say(kernel, || match &claimed {
            Ok(Found { method, operations, replay, .. }) => [trail::found(*method, operations, *replay)],
            Err(reason) => [format!("rule: none; {}", reason.text())],
        });
        claimed
    }

    /// A kernel that had not ended when CUPTI had to return its record. It is claimed, because no
    /// other record will follow.
    pub(super) fn unfinished(&mut self, kernel: &activity::Unfinished, sink: &mut dyn FnMut(&Entry<'_>)) {
        let &activity::Unfinished { graph_node, correlation, place, .. } = kernel;
        let call = self.sessions.call(correlation, self.last);
        let key = KernelKey { graph_node, call, device: place.device, name: &kernel.name, span: None };
        self.matches.unfinished += 1;
        let found = self.plans.claim(key, &|context| self.comms.get(&context)?.device).ok();
        let what = match &found {
            Some(Found { context, operations, replay, replayed, .. }) => {
                let launched = replayed.map(|moment| moment.time);
                What::Unfinished { kernel, comm: self.comms.get(context), operations, replay: replay.zip(launched) }
            }
            None => What::Unfinished { kernel, comm: None, operations: &[], replay: None },
        };
        sink(&Entry { time: self.last, what });
    }

    /// A kernel that ended at an unknown time. It is claimed, so that nobody waits for another
    /// record.
    pub(super) fn untimed(&mut self, kernel: &activity::Unfinished, sink: &mut dyn FnMut(&Entry<'_>)) {
        let &activity::Unfinished { graph_node, correlation, place, .. } = kernel;
        let call = self.sessions.call(correlation, self.last);
        let key = KernelKey { graph_node, call, device: place.device, name: &kernel.name, span: None };
        if graph_node != 0 {
            self.plans.graph_seen(graph_node, call, is_nccl(&kernel.name));
        }
        self.matches.implausible += 1;
        let found = self.plans.claim(key, &|context| self.comms.get(&context)?.device).ok();
        self.matches.untimed += u64::from(found.is_some() || is_nccl(&kernel.name));
        if let Some(Found { context, operations, .. }) = &found {
            sink(&Entry { time: self.last, what: What::Untimed { comm: self.comms.get(context), operations } });
        }
    }

    fn claimed(&mut self, mut kernel: Kernel, claimed: Result<Found, Unmatched>, sink: &mut dyn FnMut(&Entry<'_>)) {
        let call = self.call_of(&kernel);
        let overtaken = claimed.as_ref().ok().and_then(|found| self.streams.add(call, &kernel, found));
        let found = claimed.as_ref().ok().filter(|_| overtaken.is_none());
        let is_doubted = self.judge_times(&mut kernel, found, sink);
        match claimed {
            Ok(found) => {
                if let Some(other) = overtaken {
                    self.trail.say(&kernel, || {
                        ["its stream: it and another kernel did not begin in the order of their launches".into()]
                    });
                    [other, found.group].into_iter().for_each(|group| self.channels.contradict(group));
                    self.skews.entry(kernel.place.device).or_default().forget_trial();
                }
                self.owned(kernel, found, is_doubted, sink);
            }
            Err(reason) if is_nccl(&kernel.name) => {
                if !self.channels.adopt(&kernel, reason, self.last) {
                    return self.unmatched(&kernel, reason, sink);
                }
                self.trail.say(&kernel, || ["waits: its channels may identify its operation".into()]);
            }
            Err(_) => {
                self.matches.application += 1;
                self.trail.say(&kernel, || ["drawn as the application's: its name is not one of NCCL's".into()]);
                let what = What::Kernel { kernel: &kernel, owner: Owner::Application };
                sink(&Entry { time: kernel.span.start, what });
            }
        }
    }

    /// A call was made while an external id was pushed on its thread. Its kernel may already be
    /// here.
    pub(super) fn external_id(&mut self, id: Handle, correlation: u32, sink: &mut dyn FnMut(&Entry<'_>)) {
        if !id.is_from(self.tag) {
            self.matches.foreign_ids += 1;
            return;
        }
        let call = self.sessions.call(correlation, self.plans.launched_at(id).unwrap_or(self.last));
        self.plans.external_id(call, id);
        if let Some(kernel) = self.waiting.take(call) {
            let claimed = self.claim(&kernel);
            self.claimed(kernel, claimed, sink);
            self.say_ready(sink);
        }
    }

    /// Kernels that have waited long enough have no owner.
    pub(super) fn give_up_waiting(&mut self, now: HostNs, sink: &mut dyn FnMut(&Entry<'_>)) {
        while let Some(kernel) = self.waiting.give_up(now) {
            self.claimed(kernel, Err(Unmatched::NoLaunch), sink);
        }
    }

    pub(super) fn matched(
        &mut self,
        kernel: &Kernel,
        method: Method,
        carried: &Carried<'_>,
        sink: &mut dyn FnMut(&Entry<'_>),
    ) {
        *self.matches.by(method) += 1;
        self.trail.say(kernel, || [format!("drawn as {}", method.text())]);
        let &Carried { context, group, operations, launch, replay, replayed, untold } = carried;
        let comm = self.comms.get(&context);
        // In earlier releases each broadcast is reported sooner or later.
        let untold = if comm.is_some_and(|comm| comm.version >= SILENT_BROADCASTS) { untold } else { 0 };
        let launch = Some(launch).filter(|launch| !launch.is_none());
        let channels = if method == Method::Contradicted { &[][..] } else { &self.channels.sampled(group) };
        let around = &self.around(operations, replay.is_some(), replayed);
        let late = &self.late(operations, kernel.span);
        let owner = Owner::Operations { method, comm, operations, around, late, channels, launch, replay, untold };
        sink(&Entry { time: kernel.span.start, what: What::Kernel { kernel, owner } });
    }

    /// What the program was in when it called for these operations, or when it launched their
    /// graph.
    fn around(&self, operations: &[Arc<Operation>], is_replay: bool, replayed: Option<Moment>) -> Vec<Around> {
        if !self.history.has_threads() {
            return Vec::new();
        }
        let asked = |operation: &Arc<Operation>| if is_replay { replayed } else { operation.asked };
        let around = |operation| asked(operation).map_or(Around::default(), |moment| self.history.around(moment));
        operations.iter().map(around).collect()
    }

    pub(super) fn unmatched(&mut self, kernel: &Kernel, reason: Unmatched, sink: &mut dyn FnMut(&Entry<'_>)) {
        self.matches.unmatched += 1;
        self.trail.say(kernel, || [format!("drawn as unmatched: {}", reason.text())]);
        sink(&Entry { time: kernel.span.start, what: What::Kernel { kernel, owner: Owner::Unmatched(reason) } });
    }
}
