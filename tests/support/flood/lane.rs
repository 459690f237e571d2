//! The sequences of calls that one thread sends.

use super::{Counts, Kind, Latency, empty, now};
use crate::host::{Arg, Context, Descriptor, Plugin, RawHandle, Slot, StateCall, Value};
use hdrhistogram::Histogram;
use std::thread;
use std::time::Duration;

/// One thread's part of a load.
pub struct Lane<'a> {
    pub(super) sender: Sender<'a>,
    kind: Kind,
    collective: Collective,
    proxies: [Proxy; 2],
    sequences: usize,
}

impl<'a> Lane<'a> {
    /// A load for the calling thread, whose calls are measured if `latency` is wanted.
    pub fn new(kind: Kind, latency: bool, plugin: &'a Plugin, context: &Context) -> Lane<'a> {
        Lane {
            sender: Sender { plugin, context: context.handle, counts: Counts::default(), latency: latency.then(empty) },
            kind,
            collective: Collective::new(plugin, context),
            proxies: [Proxy::new(plugin, context, true), Proxy::new(plugin, context, false)],
            sequences: 0,
        }
    }

    /// What was sent so far.
    pub fn counts(&self) -> Counts {
        self.sender.counts
    }

    /// How long the calls took so far, if that is measured.
    pub fn latency(&self) -> Option<Latency> {
        self.sender.latency.as_ref().map(super::latency)
    }

    /// Sends sequences until there were `calls` calls in all, at `rate` calls per second if given.
    pub fn send(&mut self, calls: u64, rate: Option<u64>) {
        const SHORTEST_SLEEP_NS: u64 = 100_000;
        let begin = now();
        while self.sender.counts.calls() < calls {
            self.sequence();
            if let Some(rate) = rate {
                let sent = u128::from(self.sender.counts.calls());
                let due = begin + (sent * 1_000_000_000 / u128::from(rate)) as u64;
                let early = due.saturating_sub(now());
                if early >= SHORTEST_SLEEP_NS {
                    thread::sleep(Duration::from_nanos(early));
                }
            }
        }
    }

    fn sequence(&mut self) {
        let turn = self.sequences;
        self.sequences += 1;
        let collective = match self.kind {
            Kind::Coll => true,
            Kind::Step => false,
            Kind::Mixed => turn.is_multiple_of(3),
        };
        match collective {
            true => self.collective.send(&mut self.sender),
            false => self.proxies[turn % 2].send(&mut self.sender, self.collective.last),
        }
    }
}

/// Makes calls and counts them.
pub(super) struct Sender<'a> {
    plugin: &'a Plugin,
    context: RawHandle,
    pub(super) counts: Counts,
    pub(super) latency: Option<Histogram<u64>>,
}

impl Sender<'_> {
    /// Starts an event, if the version has it.
    #[inline]
    fn start(&mut self, descriptor: &mut Option<Descriptor>) -> RawHandle {
        let Some(descriptor) = descriptor else {
            return RawHandle::NULL;
        };
        let plugin = self.plugin;
        let context = self.context;
        let started = self.timed(|| plugin.start_prepared(context, descriptor));
        self.counts.starts += 1;
        self.counts.null_handles += u64::from(started.handle.is_null());
        self.counts.errors += u64::from(started.status != 0);
        started.handle
    }

    /// Records a state, if the version has it and there is an event.
    #[inline]
    fn state(&mut self, handle: RawHandle, call: &mut Option<StateCall>) {
        let Some(call) = call else { return };
        if handle.is_null() {
            return;
        }
        let plugin = self.plugin;
        let status = self.timed(|| plugin.state_prepared(handle, call));
        self.counts.states += 1;
        self.counts.errors += u64::from(status != 0);
    }

    /// Stops an event, if there is one.
    #[inline]
    fn stop(&mut self, handle: RawHandle) {
        if handle.is_null() {
            return;
        }
        let plugin = self.plugin;
        let status = self.timed(|| plugin.stop(handle));
        self.counts.stops += 1;
        self.counts.errors += u64::from(status != 0);
    }

    #[inline]
    fn timed<T>(&mut self, call: impl FnOnce() -> T) -> T {
        match &mut self.latency {
            None => call(),
            Some(histogram) => {
                let before = now();
                let result = call();
                histogram.saturating_record(now() - before);
                result
            }
        }
    }
}

/// What a user's thread reports of a collective outside a group.
struct Collective {
    group_api: Option<Descriptor>,
    group_started: Option<StateCall>,
    group_ending: Option<StateCall>,
    coll_api: Option<Descriptor>,
    launch: Option<Descriptor>,
    group: Option<Descriptor>,
    coll: Option<Descriptor>,
    coll_group: Option<Slot>,
    coll_number: Option<Slot>,
    number: u64,
    /// The last Coll event, to which proxy operations belong.
    last: RawHandle,
}

impl Collective {
    fn new(plugin: &Plugin, context: &Context) -> Collective {
        let prepare =
            |kind: &str, fields: &[(&str, Value<'_>)]| plugin.descriptor(context, kind, fields, RawHandle::NULL);
        let stream = ("stream", 0x7000_1000_u64.into());
        let func = ("func", "AllReduce".into());
        let count = ("count", (4_u64 << 20).into());
        let datatype = ("datatype", "ncclBfloat16".into());
        let coll = prepare(
            "Coll",
            &[
                func,
                count,
                datatype,
                ("nChannels", 16.into()),
                ("nWarps", 17.into()),
                ("algo", "RING".into()),
                ("proto", "SIMPLE".into()),
            ],
        );
        let slot = |name| coll.as_ref().and_then(|coll| coll.slot(name));
        Collective {
            group_api: prepare("GroupApi", &[("groupDepth", 1.into())]),
            group_started: plugin.state_call("GroupStartApiStop", Arg::Default),
            group_ending: plugin.state_call("GroupEndApiStart", Arg::Default),
            coll_api: prepare("CollApi", &[func, count, datatype, stream]),
            launch: prepare("KernelLaunch", &[stream]),
            group: prepare("Group", &[]),
            coll_group: slot("parentGroup"),
            coll_number: slot("seqNumber"),
            coll,
            number: 0,
            last: RawHandle::NULL,
        }
    }

    fn send(&mut self, sender: &mut Sender<'_>) {
        let group_api = sender.start(&mut self.group_api);
        sender.state(group_api, &mut self.group_started);
        set_parent(&mut self.coll_api, group_api);
        let coll_api = sender.start(&mut self.coll_api);
        sender.stop(coll_api);
        sender.state(group_api, &mut self.group_ending);
        set_parent(&mut self.launch, group_api);
        let launch = sender.start(&mut self.launch);
        sender.stop(launch);
        let group = sender.start(&mut self.group);
        if let Some(coll) = &mut self.coll {
            // Up to v4 there is no field for the group: the group is the parent.
            match self.coll_group {
                Some(slot) => {
                    coll.set(slot, group.0);
                    coll.set_parent(coll_api);
                }
                None => coll.set_parent(group),
            }
            if let Some(slot) = self.coll_number {
                coll.set(slot, self.number);
            }
        }
        self.number += 1;
        self.last = sender.start(&mut self.coll);
        sender.stop(self.last);
        sender.stop(group);
        sender.stop(group_api);
    }
}

/// What a progress thread reports of a proxy operation.
struct Proxy {
    op: Option<Descriptor>,
    op_states: Vec<Option<StateCall>>,
    step: Option<Descriptor>,
    step_number: Option<Slot>,
    step_states: [Option<StateCall>; 3],
}

impl Proxy {
    const STEPS: u64 = 16;
    const CHUNK: u64 = 512 << 10;
    /// How many steps of an operation are under way at once.
    const IN_FLIGHT: usize = 8;

    fn new(plugin: &Plugin, context: &Context, is_send: bool) -> Proxy {
        let fields = [
            ("channelId", 3.into()),
            ("peer", 1.into()),
            ("nSteps", Proxy::STEPS.into()),
            ("chunkSize", Proxy::CHUNK.into()),
            ("isSend", is_send.into()),
        ];
        let (op_states, step_states) = match is_send {
            true => (
                ["OpInProgress", "OpSendPosted", "OpSendTransmitted", "OpSendDone"],
                ["StepSendGpuWait", "StepSendPeerWait", "StepSendWait"],
            ),
            false => (
                ["OpInProgress", "OpRecvPosted", "OpRecvReceived", "OpRecvDone"],
                ["StepRecvWait", "StepRecvFlushWait", "StepRecvGpuWait"],
            ),
        };
        let op_arg = Arg::Progress { trans_size: Proxy::CHUNK, steps: 1 };
        let step = plugin.descriptor(context, "ProxyStep", &[], RawHandle::NULL);
        Proxy {
            op: plugin.descriptor(context, "ProxyOp", &fields, RawHandle::NULL),
            op_states: op_states.map(|state| plugin.state_call(state, op_arg)).into(),
            step_number: step.as_ref().and_then(|step| step.slot("step")),
            step,
            step_states: step_states.map(|state| plugin.state_call(state, Arg::Value(Proxy::CHUNK))),
        }
    }

    fn send(&mut self, sender: &mut Sender<'_>, parent: RawHandle) {
        set_parent(&mut self.op, parent);
        let op = sender.start(&mut self.op);
        for state in &mut self.op_states {
            sender.state(op, state);
        }
        set_parent(&mut self.step, op);
        let mut in_flight = [RawHandle::NULL; Proxy::IN_FLIGHT];
        for number in 0..Proxy::STEPS {
            if let (Some(step), Some(slot)) = (&mut self.step, self.step_number) {
                step.set(slot, number);
            }
            let place = &mut in_flight[number as usize % Proxy::IN_FLIGHT];
            sender.stop(*place);
            *place = sender.start(&mut self.step);
            for state in &mut self.step_states {
                sender.state(*place, state);
            }
        }
        for step in in_flight {
            sender.stop(step);
        }
        sender.stop(op);
    }
}

fn set_parent(descriptor: &mut Option<Descriptor>, parent: RawHandle) {
    if let Some(descriptor) = descriptor {
        descriptor.set_parent(parent);
    }
}
