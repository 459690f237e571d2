//! A synthetic job of any size: the trace of each rank is computed from the rank's number and drawn
//! by the profiler's own writer.
//!
//! Steps alternate between an operation of all ranks, whose transfers the proxy makes, and one of
//! each host's ranks. Each rank comes when it is done with its own work, and none leaves before the
//! last has come; so the truth is known. Each host has its own clock, with its own boot and drift.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use ncclscope::model::activity::{Kernel, Place, Span};
use ncclscope::model::event::{self, Event};
use ncclscope::model::ids::{Handle, ProcessTag};
use ncclscope::model::state;
use ncclscope::model::time::HostNs;
use ncclscope::model::timeline::{Comm, Entry, Method, Operation, Owner, ProxyOp, Thread, ThreadId, What};
use ncclscope::model::word::Word;
use ncclscope::trace::packer::Packer;
use ncclscope::trace::tracks::{Figures, ProcessInfo, Tracks};
use ncclscope::trace::words::{attribute, instant};
use ncclscope::trace::writer::Clocks;

/// From one step to the next, ns: longer than any step takes, so that none waits for the previous
/// one.
const STEP: u64 = 1_000_000;
/// The longest that a rank works on its own in a step, ns.
const WORK: u64 = 400_000;
/// How long an operation takes by default once all have come, and how much longer on some ranks,
/// ns.
const TRANSFER: u64 = 20_000;
const LEAVE: u64 = 2_000;
/// If ranks compute, when they are done in a step, ns; by how much that varies; and how much longer
/// a slow one takes, and with it each step.
const COMPUTE: u64 = 200_000;
const VARIES: u64 = 10_000;
const SLOW: u64 = 250_000;
/// The stated error of a kernel's times, ns.
const ERROR: u32 = 500;
/// When everything begins, by the wall clock, ns since 1970.
const WALL: u64 = 1_795_000_000_000_000_000;
/// NCCL's hash of the communicator of all ranks, and by how much those of the hosts' communicators
/// differ.
const WORLD: u64 = 0x1f2e_3d4c_5b6a_7988;
const HOST: u64 = 0x0101_0101_0101;
/// How many bytes of packets a recording compresses together.
const CHUNK: usize = 192 << 10;

/// A job whose hosts all have the same number of ranks.
pub(crate) struct Job {
    ranks: u32,
    hosts: u32,
    /// How many different marks the ranks have: as many as ranks if each has its own, as random
    /// marks nearly always are.
    pub(crate) marks: u32,
    /// The same for process ids.
    pub(crate) pids: u32,
    /// A rank whose kernels are lost.
    pub(crate) dark: Option<u32>,
    /// How long an operation takes once all have come, ns.
    pub(crate) transfer: u64,
    /// NCCL's version, as it counts them.
    pub(crate) nccl: u32,
    /// The name of the communicator of all ranks.
    pub(crate) world: String,
    /// The name of the job in the traces; empty for none.
    pub(crate) run: String,
    /// The ranks' own work is that of a kernel; and this rank is slow from this step on.
    slow: Option<(u32, u64)>,
    /// When the last rank came to each step: of all, or of each host.
    last: Vec<Vec<u64>>,
}

/// What was written for a rank.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    /// Slices, instants and counter values.
    pub(crate) events: u64,
    pub(crate) bytes: u64,
}

/// A host's clock: its readings as a function of the true time, which begins at 0.
#[derive(Clone, Copy)]
struct HostClock {
    at_start: u64,
    ppb: i64,
}

impl HostClock {
    fn reads(self, truth: u64) -> HostNs {
        let drifted = i128::from(truth) * i128::from(self.ppb) / 1_000_000_000;
        HostNs((self.at_start + truth).saturating_add_signed(drifted as i64))
    }
}

impl Job {
    /// A job of this many steps.
    pub(crate) fn new(ranks: u32, hosts: u32, steps: u64) -> Job {
        let each = ranks / hosts;
        assert!(each > 0 && each * hosts == ranks, "{ranks} ranks on {hosts} hosts");
        let job = Job {
            ranks,
            hosts,
            marks: ranks,
            pids: ranks,
            dark: None,
            transfer: TRANSFER,
            nccl: 23_007,
            world: "world".into(),
            run: "NCCLSCOPE_RUN_ID=synthetic".into(),
            slow: None,
            last: Vec::new(),
        };
        job.of(steps)
    }

    /// The same job with a kernel for the work of each rank, and with a rank that is slow from a
    /// step on.
    #[allow(dead_code)] // the measurement does not ask
    pub(crate) fn with_slow(self, rank: u32, from: u64) -> Job {
        let steps = self.last.len() as u64;
        Job { slow: Some((rank, from)), ..self }.of(steps)
    }

    fn of(self, steps: u64) -> Job {
        let each = self.ranks / self.hosts;
        let last = |step: u64| {
            let of = |ranks: std::ops::Range<u32>| ranks.map(|rank| self.came(rank, step)).max().unwrap_or_default();
            match is_of_all(step) {
                true => vec![of(0..self.ranks)],
                false => (0..self.hosts).map(|host| of(host * each..(host + 1) * each)).collect(),
            }
        };
        Job { last: (0..steps).map(last).collect(), ..self }
    }

    /// When a rank comes to a step.
    fn came(&self, rank: u32, step: u64) -> u64 {
        let varies = mixed(u64::from(rank) << 32 | step, 3);
        let work = match self.slow {
            None => varies % WORK,
            Some((slow, from)) => COMPUTE + varies % VARIES + if rank == slow && step >= from { SLOW } else { 0 },
        };
        self.begin(step) + work
    }

    /// When a step begins.
    fn begin(&self, step: u64) -> u64 {
        (step + 1) * STEP + self.slow.map_or(0, |(_, from)| SLOW * step.saturating_sub(from))
    }

    fn host(&self, rank: u32) -> u32 {
        rank / (self.ranks / self.hosts)
    }

    /// Up to 20 ppm fast or slow, booted up to a day before, and with a wall clock that is right to
    /// a millisecond.
    fn clock(host: u32) -> HostClock {
        let (boot, drift) = (mixed(u64::from(host), 1), mixed(u64::from(host), 2));
        HostClock { at_start: 1_000_000_000_000 + boot % 86_400_000_000_000, ppb: (drift % 40_000) as i64 - 20_000 }
    }

    /// The name of a rank's file.
    pub(crate) fn name(&self, rank: u32) -> String {
        format!("node{}.{}.1795000000.perfetto-trace", self.host(rank), 1000 + rank)
    }

    /// When a rank enters and leaves a step, by the clock of the first host, ns.
    #[allow(dead_code)] // the measurement does not ask
    pub(crate) fn truth(&self, rank: u32, step: u64) -> [u64; 2] {
        [self.came(rank, step), self.left(rank, step)].map(|time| Job::clock(0).reads(time).0)
    }

    fn left(&self, rank: u32, step: u64) -> u64 {
        let last = &self.last[step as usize];
        let last = if is_of_all(step) { last[0] } else { last[self.host(rank) as usize] };
        last + self.transfer + mixed(u64::from(rank) << 32 | step, 4) % LEAVE
    }

    /// Writes the files of the first ranks to a folder.
    #[allow(dead_code)] // the measurement does not ask
    pub(crate) fn write_to(&self, folder: &Path, ranks: u32, compress: bool) {
        for rank in 0..ranks {
            let mut bytes = Vec::new();
            self.write(rank, compress, &mut bytes).unwrap();
            fs::write(folder.join(self.name(rank)), bytes).unwrap();
        }
    }

    /// Writes a rank's trace, as a recording would.
    pub(crate) fn write(&self, rank: u32, compress: bool, out: &mut impl Write) -> io::Result<Size> {
        let mut drawn = Rank::new(self, rank);
        let (mut packer, mut bytes) = (Packer::new(), 0);
        let mut put = |tracks: &mut Tracks| {
            let chunk = tracks.take();
            let packed = if compress { packer.pack(&chunk) } else { &chunk };
            bytes += packed.len() as u64;
            out.write_all(packed)
        };
        for step in 0..self.last.len() as u64 {
            drawn.step(step);
            if drawn.tracks.pending_bytes() >= CHUNK {
                put(&mut drawn.tracks)?;
            }
        }
        drawn.end(self.last.len() as u64);
        put(&mut drawn.tracks)?;
        let written = drawn.tracks.written();
        let events = written.begins + written.instants + written.counters;
        Ok(Size { events, bytes })
    }
}

/// Every other step has all ranks.
fn is_of_all(step: u64) -> bool {
    step.is_multiple_of(2)
}

/// A fixed pseudo-random number for these numbers.
fn mixed(n: u64, salt: u64) -> u64 {
    let n = (n ^ salt << 56).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 31).wrapping_mul(0xd6e8_feb8_6659_fd93);
    n ^ n >> 32
}

/// A rank that is being drawn.
struct Rank<'j> {
    job: &'j Job,
    rank: u32,
    clock: HostClock,
    tracks: Tracks,
    tag: ProcessTag,
    events: u64,
    world: Comm,
    host: Comm,
}

impl Rank<'_> {
    fn new(job: &Job, rank: u32) -> Rank<'_> {
        let (host, each) = (job.host(rank), job.ranks / job.hosts);
        let clock = Job::clock(host);
        let start = clock.reads(0);
        let clocks =
            Clocks { boottime: start, monotonic: start.0, realtime: WALL + mixed(u64::from(host), 5) % 1_000_000 };
        let tag = ProcessTag::from_random(u64::from(rank % job.marks).wrapping_mul(0x9_3d47) & 0xf_ffff);
        let info = ProcessInfo {
            pid: 1000 + (rank % job.pids) as i32,
            name: format!("rank {rank} · node{host} · GPU {}", rank % each),
            labels: Vec::new(),
            rank: Some(rank),
            world_size: Some(job.ranks),
        };
        let mut tracks = Tracks::new(tag, clocks, &info);
        let boot = format!("{:08x}-0000-4000-8000-000000000000", mixed(u64::from(host), 6) >> 32);
        let said = [(attribute::BOOT, &*boot), (attribute::RUN, &*job.run)];
        tracks.attributes(&said[..if job.run.is_empty() { 1 } else { 2 }]);
        tracks.note(start, instant::STARTED, "synthetic");
        let comm = |number: u32, hash, name: &str, rank: u32, ranks: u32, nodes: u32| Comm {
            context: Handle(u64::from(tag.bits()) << Handle::COUNTER_BITS | u64::from(number)),
            number,
            hash,
            name: Some(name.into()),
            rank: rank as i32,
            ranks: ranks as i32,
            nodes: nodes as i32,
            interface: 6,
            version: job.nccl,
            device: Some(rank % each),
            timer: Default::default(),
        };
        let world = comm(1, WORLD, &job.world, rank, job.ranks, job.hosts);
        let host = comm(2, WORLD + (u64::from(host) + 1) * HOST, "tp", rank % each, each, 1);
        let mut drawn = Rank { job, rank, clock, tracks, tag, events: 2, world, host };
        for (id, name) in [(0, "python3"), (1, "NCCL Progress")] {
            let tid = 100_000 + 2 * rank as i32 + id as i32;
            drawn.at(0, What::Thread(Thread { id: ThreadId(id), tid, name }));
        }
        let comms = [drawn.world.clone(), drawn.host.clone()];
        comms.iter().for_each(|comm| drawn.at(0, What::CommInit(comm)));
        drawn
    }

    /// Draws what happens at a true time.
    fn at(&mut self, truth: u64, what: What<'_>) {
        self.tracks.draw(&Entry { time: self.clock.reads(truth), what });
    }

    fn id(&mut self) -> Handle {
        self.events += 1;
        Handle(u64::from(self.tag.bits()) << Handle::COUNTER_BITS | self.events)
    }

    fn step(&mut self, step: u64) {
        let (came, left) = (self.job.came(self.rank, step), self.job.left(self.rank, step));
        let comm = if is_of_all(step) { self.world.clone() } else { self.host.clone() };
        let (func, count) = if is_of_all(step) { (Word::ALL_REDUCE, 1 << 22) } else { (Word::ALL_GATHER, 1 << 20) };
        let [call, coll, launch] = [self.id(), self.id(), self.id()];
        let operation = |id, since, event| Operation { id, since, asked: None, event, texts: None, number: 0 };

        let asked = came - 30_000;
        let event =
            Event::CollApi(event::CollApi { count, func, datatype: Word::BFLOAT16, ..event::CollApi::default() });
        let asking = operation(call, self.clock.reads(asked), event);
        let thread = ThreadId(0);
        let (event, comm) = (&event, Some(&comm));
        self.at(
            asked,
            What::CallBegin { id: call, thread, comm, event, operation: Some(&asking), asked_by: &[], doubt: None },
        );
        let event = Event::Coll(event::Coll {
            seq: step / 2,
            func,
            datatype: Word::BFLOAT16,
            count,
            algorithm: Word::RING,
            protocol: Word::SIMPLE,
            channels: 8,
            ..event::Coll::default()
        });
        let handed = Arc::new(operation(coll, self.clock.reads(asked + 5_000), event));
        let begin =
            What::OperationBegin { id: coll, thread, call, comm, operation: &handed, replay: None, doubt: None };
        self.at(asked + 5_000, begin);
        self.at(asked + 9_000, What::OperationEnd { id: coll });
        self.at(asked + 12_000, What::CallEnd { id: call, group_marks: [None; 2] });
        if is_of_all(step) {
            self.transfer(comm, &handed, left - 15_000);
        }
        let kernel = |name: &str, from: u64, to: u64, stream| Kernel {
            span: Span { start: self.clock.reads(from), end: self.clock.reads(to), error_ns: ERROR },
            place: Place { device: self.world.device.unwrap_or(0), context: 1, stream },
            correlation: 2 * step as u32 + 1 + u32::from(stream == 13),
            graph_node: 0,
            graph: 0,
            grid: [8, 1, 1],
            block: [544, 1, 1],
            name: name.into(),
        };
        let before = step.checked_sub(1).map_or(came - COMPUTE, |before| self.job.left(self.rank, before) + 1_000);
        let work = kernel("forward", before, came - 1_000, 7);
        let kernel = kernel("ncclDevKernel_Generic", came, left, 13);
        if self.job.slow.is_some() {
            self.at(came, What::Kernel { kernel: &work, owner: Owner::Application });
        }
        let owner = Owner::Operations {
            method: Method::Bracket,
            comm,
            operations: &[handed],
            around: &[],
            late: &[],
            channels: &[],
            launch: Some(launch),
            replay: None,
            untold: 0,
        };
        if self.job.dark != Some(self.rank) {
            self.at(left, What::Kernel { kernel: &kernel, owner });
        }
    }

    /// An operation of the proxy with one transfer.
    fn transfer(&mut self, comm: Option<&Comm>, operation: &Operation, begin: u64) {
        let [op, step] = [self.id(), self.id()];
        let event = event::ProxyOp {
            pid: 1000 + self.rank as i32,
            peer: ((self.rank + 1) % self.job.ranks) as i32,
            channel: 0,
            steps: 1,
            chunk_bytes: 1 << 19,
            send: event::Flag(1),
            ..event::ProxyOp::default()
        };
        let proxy = ProxyOp { event, comm, operation: Some(operation), batch: 0, doubt: None };
        let thread = ThreadId(1);
        self.at(begin - 900, What::ProxyOpTaken { thread });
        self.at(begin, What::ProxyOpBegin { id: op, thread, proxy, queued_ns: 900, was_taken: true });
        self.at(begin, What::StepBegin { id: step, op, thread, step: 0, proxy: Some(proxy) });
        let waits = [state::PROXY_STEP_SEND_GPU_WAIT, state::PROXY_STEP_SEND_PEER_WAIT, state::PROXY_STEP_SEND_WAIT];
        for (number, state) in waits.into_iter().enumerate() {
            let bytes = (state == state::PROXY_STEP_SEND_WAIT).then_some(1 << 19);
            self.at(begin + 2_000 * number as u64, What::StepPhase { id: step, state, bytes });
        }
        self.at(begin + 12_000, What::StepEnd { id: step, starts: 1, stopped: true });
        self.at(begin + 12_500, What::ProxyOpEnd { id: op });
    }

    fn end(&mut self, steps: u64) {
        let end = self.job.begin(steps + 1);
        for comm in [self.host.clone(), self.world.clone()] {
            self.at(end, What::CommFinalize(&comm));
        }
        let figures = Figures { recorded: self.events, ..Figures::default() };
        self.tracks.finish(self.clock.reads(end), &figures);
    }
}

/// What happens to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// It ends early, inside of a packet.
    Cut,
    Empty,
    /// Another file is there under its name.
    Foreign,
    /// A part in its middle is overwritten.
    Overwritten,
    /// Its last third is zeros, as after a crash of the machine.
    ZeroedTail,
    /// Its content is there twice, one after the other.
    Doubled,
    /// It is the file of the rank after it.
    Twin,
}

impl Damage {
    pub(crate) const ALL: [Damage; 7] = [
        Damage::Cut,
        Damage::Empty,
        Damage::Foreign,
        Damage::Overwritten,
        Damage::ZeroedTail,
        Damage::Doubled,
        Damage::Twin,
    ];

    /// Damages a file; `next` gives the bytes of the next rank's file.
    pub(crate) fn wreak(self, bytes: &mut Vec<u8>, next: impl FnOnce() -> Vec<u8>) {
        let length = bytes.len();
        match self {
            Damage::Cut => bytes.truncate(length * 2 / 3),
            Damage::Empty => bytes.clear(),
            Damage::Foreign => *bytes = b"step 1: loss 3.14\n".repeat(100),
            Damage::Overwritten => {
                let stretch = &mut bytes[length / 2..length / 2 + 64];
                stretch.iter_mut().zip(0..).for_each(|(byte, n)| *byte = mixed(n, length as u64) as u8);
            }
            Damage::ZeroedTail => bytes[length * 2 / 3..].fill(0),
            Damage::Doubled => bytes.extend_from_within(..),
            Damage::Twin => *bytes = next(),
        }
    }
}
