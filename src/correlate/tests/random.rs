//! Records of any content and order, and what must hold for the entries nevertheless.

use std::collections::HashMap;

use super::super::*;
use super::script::{PID, tag, zeroed};
use crate::model::event::{self, CommInit, Flag, Net, Network};
use crate::model::time::{GpuNs, Ticks};

/// A small pseudo-random generator; the same seed gives the same numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Records in an order and with contents that no NCCL would send: stops before their start or
/// repeated, states of other events, parents that are unknown, foreign or of any kind, threads that
/// come and go, times that run backwards. Only what the recorder itself guarantees holds here too:
/// no two events share a handle.
pub(crate) struct Records {
    random: Random,
    time: u64,
    next: u64,
    comms: Vec<Handle>,
}

impl Records {
    /// Nothing happens before this time.
    pub(crate) const BEGIN: u64 = 1_000_000;

    pub(crate) fn new(seed: u64) -> Records {
        Records { random: Random::new(seed), time: Self::BEGIN, next: 1, comms: Vec::new() }
    }

    /// Hands the next record to `take`.
    pub(crate) fn next(&mut self, take: impl FnOnce(RingId, HostNs, &Record<'_>)) {
        self.time += self.random.below(60);
        let late = if self.random.one_in(12) { self.random.below(300) } else { 0 };
        let time = HostNs(self.time.saturating_sub(late).max(Self::BEGIN));
        let ring = RingId(self.random.below(4) as u32);
        let body = self.body();
        take(ring, time, &Record { ticks: Ticks(time.0), body });
    }

    /// Nearly always a recent event; sometimes a future, an old or a foreign one, or none.
    fn handle(&mut self) -> Handle {
        let random = &mut self.random;
        let counter = match random.below(40) {
            0 => return Handle::NONE,
            1 => return Handle(ProcessTag::from_random(1).base() + random.below(8)),
            2 => self.next + random.below(3),
            3 => random.below(self.next + 1),
            _ => self.next.saturating_sub(1 + random.below(24)),
        };
        Handle(tag().base() + counter)
    }

    fn new_handle(&mut self) -> Handle {
        self.next += 1;
        Handle(tag().base() + self.next - 1)
    }

    fn context(&mut self) -> Handle {
        match self.random.below(16) {
            0 => self.handle(),
            _ if self.comms.is_empty() => Handle::NONE,
            _ => self.random.pick(&self.comms),
        }
    }

    fn word(&mut self) -> Word {
        match self.random.below(12) {
            0 => Word::ABSENT,
            1 => Word::LOST,
            2 | 3 => Word(Word::FIRST_TEXT.0 + self.random.below(6) as u16),
            _ => Word(self.random.below(44) as u16),
        }
    }

    fn net(&mut self) -> Net {
        let network = Network(self.random.below(4) as u8);
        Net { id: self.random.next() as i64, length: self.random.next(), network, ..Net::default() }
    }

    fn body(&mut self) -> Body<'static> {
        match self.random.below(100) {
            0..40 => {
                let (event, parent, context) = (self.event(), self.handle(), self.context());
                Body::Start { handle: self.new_handle(), parent, context, rank: 0, event }
            }
            40..68 => Body::Stop { handle: self.handle() },
            68..88 => {
                let argument = if self.random.one_in(3) { self.random.next() } else { 0 };
                // The progress thread's states are few among all states.
                let state = if self.random.one_in(3) { 13 + self.random.below(6) } else { self.random.below(34) };
                Body::State { handle: self.handle(), state: state as u16, argument, steps: 1 }
            }
            88..91 => Body::NetUpdate { handle: self.handle(), net: self.net() },
            91 | 92 => {
                let context = self.new_handle();
                self.comms.push(context);
                let (hash, name) = (self.random.below(3), self.word());
                let rank = self.random.below(4) as i32 - 1;
                let interface = 1 + self.random.below(7) as u8;
                Body::CommInit(CommInit { context, hash, rank, ranks: 4, name, interface, ..CommInit::default() })
            }
            93 => Body::CommFinalize { context: self.context() },
            94 => Body::CommIdentity { context: self.context(), hash: self.random.below(3), name: self.word() },
            95 | 96 => {
                let names: &[&[u8; 16]] = &[&[0; 16], b"NCCL Progress 0\0", &[0xff; 16]];
                Body::Thread { tid: self.random.below(9) as i32, name: *self.random.pick(names) }
            }
            97 => Body::ThreadEnd,
            _ => {
                let texts: &[&[u8]] = &[b"", b"dp", b"a text with \xff in it", &[b'x'; event::TEXT_BYTES]];
                let word = Word(Word::FIRST_TEXT.0 + self.random.below(6) as u16);
                Body::Text { word, text: self.random.pick(texts) }
            }
        }
    }

    fn event(&mut self) -> Event {
        let [func, datatype, algorithm] = [self.word(), self.word(), self.word()];
        let random = &mut self.random;
        let captured = Flag(u8::from(random.one_in(3)));
        let count = if random.one_in(8) { random.next() } else { random.below(5) << 10 };
        let (seq, peer) = (random.below(4), random.below(5) as i32 - 1);
        let channel = random.below(3) as u8;
        let start = GpuNs(random.below(1000));
        // Operations, proxy operations and their steps are the most frequent.
        let more = [Kind::Coll, Kind::P2p, Kind::ProxyOp, Kind::ProxyOp, Kind::ProxyCtrl, Kind::ProxyCtrl];
        let kinds = [Kind::ALL, &more, &[Kind::ProxyStep; 5]].concat();
        match random.pick(&kinds) {
            Kind::GroupApi => Event::GroupApi(event::GroupApi { captured, ..zeroed() }),
            Kind::CollApi => Event::CollApi(event::CollApi { func, datatype, count, captured, ..zeroed() }),
            Kind::P2pApi => Event::P2pApi(event::P2pApi { func, datatype, count, captured, ..zeroed() }),
            Kind::KernelLaunch => Event::KernelLaunch(event::KernelLaunch { stream: seq }),
            Kind::Group => Event::Group(zeroed()),
            Kind::Coll => Event::Coll(event::Coll { seq, func, datatype, count, algorithm, ..zeroed() }),
            Kind::P2p => Event::P2p(event::P2p { func, datatype, count, peer, ..zeroed() }),
            Kind::ProxyOp => {
                let pid = if random.one_in(8) { 99 } else { PID };
                Event::ProxyOp(event::ProxyOp { pid, peer, channel, send: captured, ..zeroed() })
            }
            Kind::ProxyStep => Event::ProxyStep(event::ProxyStep { step: peer, ..zeroed() }),
            Kind::ProxyCtrl => Event::ProxyCtrl(zeroed()),
            Kind::KernelCh => Event::KernelCh(event::KernelCh { start, channel, ..zeroed() }),
            Kind::NetPlugin => Event::NetPlugin(event::NetPlugin { net: self.net() }),
            Kind::CeColl => {
                Event::CeColl(event::CeColl { func, datatype, count, sync_strategy: algorithm, ..zeroed() })
            }
            Kind::CeSync => Event::CeSync(zeroed()),
            Kind::CeBatch => Event::CeBatch(zeroed()),
            Kind::KernelPhase => {
                Event::KernelPhase(event::KernelPhase { start, phase: func, phase_id: channel, channel, ..zeroed() })
            }
            Kind::Unknown => Event::Unknown(event::Unknown { bits: 1 << 20 }),
        }
    }
}

/// What may happen to one event in the entries.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Call,
    Operation,
    ProxyOp,
    Step,
    Channel,
    Net,
}

/// Checks entries against what the trace relies on.
#[derive(Default)]
pub(super) struct Rules {
    /// The shape, and whether it has ended.
    begun: HashMap<Handle, (Shape, bool)>,
    threads: u32,
    /// Proxy operations that were reported as queued.
    taken: i64,
}

impl Rules {
    pub(super) fn hold(&mut self, what: &What<'_>) {
        match *what {
            What::ProxyOpTaken { .. } => self.taken += 1,
            What::ProxyOpBegin { was_taken: true, .. } => self.taken -= 1,
            What::ProxyOpsQueued { given_up, count, .. } => {
                assert!(given_up <= count);
                self.taken -= given_up as i64;
            }
            _ => {}
        }
        assert!(self.taken >= 0, "no more leave the queue than came");
        match *what {
            What::Thread(thread) => {
                assert_eq!(thread.id.0, self.threads, "threads are numbered one after the other");
                self.threads += 1;
            }
            What::CallBegin { id, thread, .. } => self.begin(id, Shape::Call, Some(thread)),
            What::OperationBegin { id, thread, .. } => self.begin(id, Shape::Operation, Some(thread)),
            What::ProxyOpBegin { id, thread, .. } => self.begin(id, Shape::ProxyOp, Some(thread)),
            What::StepBegin { id, thread, .. } => self.begin(id, Shape::Step, Some(thread)),
            What::ChannelBegin { id, .. } => self.begin(id, Shape::Channel, None),
            What::NetBegin { id, thread, .. } => self.begin(id, Shape::Net, Some(thread)),
            What::CallEnd { id, .. } => self.end(id, Shape::Call),
            What::OperationEnd { id } => self.end(id, Shape::Operation),
            What::ProxyOpEnd { id } => self.end(id, Shape::ProxyOp),
            What::StepEnd { id, .. } => self.end(id, Shape::Step),
            What::ChannelEnd { id, .. } => self.end(id, Shape::Channel),
            What::NetEnd { id } => self.end(id, Shape::Net),
            What::StepPhase { id, .. } => self.goes_on(id, Shape::Step),
            What::ProxyOpPhase { id, .. } => self.goes_on(id, Shape::ProxyOp),
            What::NetUpdate { id, .. } => self.goes_on(id, Shape::Net),
            What::ThreadEnd(thread)
            | What::Unknown { thread, .. }
            | What::Control { thread, .. }
            | What::ProxyOpTaken { thread }
            | What::ProxyOpsQueued { thread, .. }
            | What::ProxyOpNever { thread, .. } => assert!(thread.0 < self.threads, "a known thread"),
            What::CommInit(_)
            | What::CommFinalize(_)
            | What::Unfinished { .. }
            | What::Untimed { .. }
            | What::Kernel { .. }
            | What::Copy { .. }
            | What::CudaCall(_)
            | What::Range { .. }
            | What::HostFunction(_)
            | What::Device(_)
            | What::Overhead(_)
            | What::Contradicted { .. }
            | What::TimesOff { .. }
            | What::TimerStep { .. } => {}
        }
    }

    fn begin(&mut self, id: Handle, shape: Shape, thread: Option<ThreadId>) {
        assert!(thread.is_none_or(|thread| thread.0 < self.threads), "{id:?} begins on a known thread");
        let before = self.begun.insert(id, (shape, false));
        assert_eq!(before, None, "{id:?} begins once");
    }

    fn end(&mut self, id: Handle, shape: Shape) {
        let before = self.begun.insert(id, (shape, true));
        assert_eq!(before, Some((shape, false)), "{id:?} ends once, as what it began as");
    }

    fn goes_on(&self, id: Handle, shape: Shape) {
        assert_eq!(self.begun.get(&id).map(|it| it.0), Some(shape), "{id:?} goes on as what it began as");
    }
}
