//! Ranks that run the program: one for a process or a thread, several where a thread drives all GPUs of its host.
//!
//! Each rank has a stream on which it computes, and one more for each communicator, as in PyTorch. An operation's stream
//! waits for what was computed before; `wait` makes computation wait for the operations.

mod graphs;

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Job;
use super::data::{Data, Mismatch};
use super::nccl::{Caller, Handle, NcclBuffer, Passed, Window, c_number};
use crate::cuda;
use crate::cuda::host::{self, DeviceBuffer, Event, Exec, Graph, Stream};
use crate::kernel;
use crate::library::api::{CommHandle, Status};
use crate::scenario::program::{Exit, Operation, Statement, Verb, What};
use crate::scenario::random::mix;
use crate::scenario::words::Reduction;
use crate::truth::{self, Line};

/// The ranks of one thread.
pub(super) struct Ranks<'a> {
    job: &'a Job,
    ranks: Vec<Rank>,
    /// How many groups are open.
    depth: usize,
    /// Checks of operations that are not launched before their group ends.
    pending: Vec<Check>,
    /// The line of the statement, for messages.
    line: usize,
}

/// How ranks came to the end of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Everything is done and destroyed.
    Done,
    /// They left before that, on purpose.
    Left(Exit),
}

/// One rank.
struct Rank {
    world: u32,
    device: u32,
    compute: Stream,
    event: Event,
    /// By the communicators' index in the program.
    communicators: Vec<Option<Communicator>>,
    /// How often each communicator has been made.
    made: Vec<u64>,
    /// The communicators in the order in which they were made.
    order: Vec<usize>,
    /// The memory of each operation.
    memory: HashMap<usize, Memory>,
    /// How often each operation has been called.
    calls: HashMap<usize, u64>,
    graphs: HashMap<String, Captured>,
    /// The communicators that the graph being captured uses so far, while one is captured.
    capture: Option<HashSet<usize>>,
}

/// A rank's part of a communicator.
struct Communicator {
    handle: Handle,
    stream: Stream,
    rank: u32,
    size: u32,
    group: usize,
    windows: Vec<Window>,
    /// Results are not what they would be.
    aborted: Arc<AtomicBool>,
}

/// A graph, ready to be launched.
struct Captured {
    // Dropped first.
    exec: Exec,
    graph: Arc<Graph>,
    /// Kept as an application would keep them.
    updates: Vec<Graph>,
    uses: HashSet<usize>,
}

/// What an operation reads and writes.
#[derive(Clone)]
struct Memory {
    send: Region,
    receive: Region,
    /// The communicator with which it is registered, if it is.
    windows_of: Option<usize>,
}

/// A part of a buffer.
#[derive(Clone)]
struct Region {
    buffer: Arc<Buffer>,
    offset: usize,
    bytes: usize,
}

/// Memory of a GPU, from CUDA or from NCCL.
enum Buffer {
    Cuda(DeviceBuffer),
    Nccl(NcclBuffer),
}

impl Buffer {
    fn as_ptr(&self) -> *mut c_void {
        match self {
            Buffer::Cuda(buffer) => buffer.as_ptr(),
            Buffer::Nccl(buffer) => buffer.as_ptr(),
        }
    }
}

/// A comparison to be made once an operation is done.
struct Check {
    rank: usize,
    line: usize,
    operation: Operation,
    data: Data,
    memory: Memory,
}

impl Region {
    fn as_ptr(&self) -> *mut c_void {
        // SAFETY: the offset lies within the buffer.
        unsafe { self.buffer.as_ptr().byte_add(self.offset) }
    }

    /// The memory itself.
    ///
    /// # Safety
    ///
    /// Nobody else uses it meanwhile: only work in the order of the stream does.
    #[allow(clippy::mut_from_ref, reason = "the order of the stream keeps others out")]
    unsafe fn bytes(&self) -> &mut [u8] {
        // SAFETY: the buffer is that long and zeroed at first; the caller keeps others out.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().cast(), self.bytes) }
    }
}

impl<'a> Ranks<'a> {
    /// Makes ranks of the job ready to run its program.
    ///
    /// # Errors
    ///
    /// When the machine gives them no streams.
    pub(super) fn new(job: &'a Job, ranks: impl IntoIterator<Item = u32>) -> Result<Ranks<'a>, String> {
        let communicators = job.scenario.program.communicators.len();
        let make = |world: u32| {
            let device = job.scenario.device_of(world);
            host::set_device(device)?;
            Ok(Rank {
                world,
                device,
                compute: Stream::create()?,
                event: Event::create()?,
                communicators: (0..communicators).map(|_| None).collect(),
                made: vec![0; communicators],
                order: Vec::new(),
                memory: HashMap::new(),
                calls: HashMap::new(),
                graphs: HashMap::new(),
                capture: None,
            })
        };
        let ranks = ranks.into_iter().map(make).collect::<Result<_, cuda::Error>>();
        let ranks = ranks.map_err(|error| format!("failed to set up the GPUs: {error}"))?;
        Ok(Ranks { job, ranks, depth: 0, pending: Vec::new(), line: 0 })
    }

    /// Runs the program to its end.
    ///
    /// # Errors
    ///
    /// When a call fails; the text says which, and its line in the program.
    pub(super) fn run(&mut self) -> Result<Ending, String> {
        let all: Vec<usize> = (0..self.ranks.len()).collect();
        let program = &self.job.scenario.program;
        let ending = match self.block(&program.statements, &all) {
            Ok(None) => self.finish(&all).map(|()| Ending::Done),
            Ok(Some(ending)) => Ok(ending),
            Err(error) => Err(error),
        };
        let line = self.line;
        ending.map_err(|error| if line == 0 { error } else { format!("{error} (line {line} of the program)") })
    }

    /// Runs statements, for the ranks with these indices. An ending is that of the whole thread.
    fn block(&mut self, statements: &[Statement], active: &[usize]) -> Result<Option<Ending>, String> {
        for statement in statements {
            self.line = statement.line;
            if let Some(ending) = self.statement(&statement.verb, active)? {
                return Ok(Some(ending));
            }
        }
        Ok(None)
    }

    fn statement(&mut self, verb: &Verb, active: &[usize]) -> Result<Option<Ending>, String> {
        if active.is_empty() {
            return Ok(None);
        }
        match verb {
            Verb::Create(index) => self.create(*index, active)?,
            Verb::Finalize(index) => {
                self.each(*index, active, |ranks, rank| ranks.settle(rank, *index))?;
                self.each(*index, active, |ranks, rank| ranks.finalize(rank, *index))?;
            }
            Verb::Destroy(index) => self.destroy(*index, active)?,
            Verb::Abort(index) => self.each(*index, active, |ranks, rank| ranks.abort(rank, *index))?,
            Verb::Operation(operation) => self.operation(operation, active)?,
            Verb::Group(body) => {
                self.group_start(active)?;
                self.block(body, active)?;
                self.group_end(active)?;
            }
            Verb::Compute(name, duration) => {
                for &index in active {
                    self.compute(index, name, *duration)?;
                }
            }
            Verb::Wait(communicator) => {
                for &index in active {
                    self.wait(index, *communicator)?;
                }
            }
            Verb::Sync => self.sync(active)?,
            Verb::Sleep(duration) => std::thread::sleep(Duration::from_nanos(*duration)),
            Verb::Repeat(times, body) => {
                for _ in 0..*times {
                    if let Some(ending) = self.block(body, active)? {
                        return Ok(Some(ending));
                    }
                }
            }
            Verb::Only(only, body) => {
                let some = active.iter().copied().filter(|&index| only.contains(&self.ranks[index].world));
                let some: Vec<usize> = some.collect();
                return if some.is_empty() { Ok(None) } else { self.block(body, &some) };
            }
            Verb::Capture(name, body) => self.capture(name, body, active)?,
            Verb::Replay(name, times, on) => self.replay(name, *times, *on, active)?,
            Verb::Instantiate(name, made, of) => self.instantiate(name, *made, of, active)?,
            Verb::Update(name, body) => self.update(name, body, active)?,
            Verb::Lend(what) => self.lend(*what)?,
            Verb::Environment(name, value) => {
                // SAFETY: the variable was set when the process began, so its place in the environment is only overwritten
                // with another pointer, and the old text is never freed: a thread of NCCL that looks meanwhile
                // finds one or the other. This process has no second thread of ours that would set one.
                unsafe { std::env::set_var(name, value) };
            }
            Verb::Hang => {
                for &index in active {
                    self.job.meeting.hang(self.ranks[index].world)?;
                }
                loop {
                    std::thread::sleep(Duration::from_secs(3600));
                }
            }
            Verb::Exit(exit) => return Ok(Some(Ending::Left(*exit))),
        }
        Ok(None)
    }

    /// Does something for each active rank that has the communicator.
    fn each(
        &mut self,
        communicator: usize,
        active: &[usize],
        act: impl Fn(&mut Self, usize) -> Result<(), String>,
    ) -> Result<(), String> {
        for &index in active {
            if self.ranks[index].communicators[communicator].is_some() {
                self.select(index)?;
                act(self, index)?;
            }
        }
        Ok(())
    }

    /// Waits for everything, then destroys what is left.
    fn finish(&mut self, all: &[usize]) -> Result<(), String> {
        self.line = 0;
        self.sync(all)?;
        for &index in all {
            self.ranks[index].graphs.clear();
        }
        // The last made goes first, on all ranks of the thread before the next.
        while let Some(&communicator) = all.iter().find_map(|&index| self.ranks[index].order.last()) {
            self.destroy(communicator, all)?;
            for &index in all {
                self.ranks[index].order.retain(|&made| made != communicator);
            }
        }
        Ok(())
    }

    // ---- communicators

    fn create(&mut self, index: usize, active: &[usize]) -> Result<(), String> {
        let declared = &self.job.scenario.program.communicators[index];
        let name: &'static CStr = {
            // NCCL keeps the pointer as long as it likes.
            let name = CString::new(declared.name.as_str()).expect("a name has letters, digits, `_` and `-`");
            Box::leak(name.into_boxed_c_str())
        };
        let takes_part = |rank: &Rank| match declared.split {
            None => declared.place(rank.world).is_some(),
            Some(split) => rank.communicators[split.parent].is_some(),
        };
        let taking_part: Vec<usize> =
            active.iter().copied().filter(|&active| takes_part(&self.ranks[active])).collect();
        let mut handles: Vec<CommHandle> = vec![std::ptr::null_mut(); taking_part.len()];
        let mut config = self.job.nccl.config(name);
        // From here on NCCL writes there, until the group ends.
        let (handles_at, config_at) = (handles.as_mut_ptr(), &raw mut config);

        if declared.split.is_none() {
            for &index_of_rank in &taking_part {
                let rank = &self.ranks[index_of_rank];
                let place = declared.place(rank.world).expect("it takes part");
                if place.rank == 0 {
                    let meeting = self.meeting_name(index, place.group, rank.made[index]);
                    self.job.meeting.publish(&meeting, &self.job.nccl.unique_id()?)?;
                }
            }
        }
        let grouped = taking_part.len() > 1;
        if grouped {
            self.group_start(&taking_part)?;
        }
        for (number, &index_of_rank) in taking_part.iter().enumerate() {
            self.select(index_of_rank)?;
            let rank = &self.ranks[index_of_rank];
            let caller = Caller { rank: rank.world, communicator: &declared.name };
            let api = self.job.nccl.library.api();
            // SAFETY: within the vector, whose length is that of the loop.
            let handle_at = unsafe { handles_at.add(number) };
            if let Some(split) = declared.split {
                let parent = rank.communicators[split.parent].as_ref().expect("it takes part");
                let (color, key) = split.color_and_key(parent.rank);
                const NO_COLOR: i32 = -1;
                let color = color.map_or(NO_COLOR, c_number);
                self.job.nccl.call(caller, "CommSplit", Passed::nothing(), || {
                    // SAFETY: the parent is there; handle and configuration live until the group has ended.
                    unsafe { (api.comm_split)(parent.handle.0, color, key, handle_at, config_at) }
                })?;
            } else {
                let place = declared.place(rank.world).expect("it takes part");
                let id = self.job.meeting.learn(&self.meeting_name(index, place.group, rank.made[index]))?;
                let (rank, size) = (c_number(place.rank), c_number(place.size()));
                self.job.nccl.call(caller, "CommInitRank", Passed::nothing(), || {
                    // SAFETY: handle and configuration live until the group has ended.
                    unsafe { (api.comm_init_rank_config)(handle_at, size, id, rank, config_at) }
                })?;
            }
        }
        if grouped {
            self.group_end(&taking_part)?;
        }
        for (handle, index_of_rank) in handles.into_iter().zip(taking_part) {
            self.ranks[index_of_rank].made[index] += 1;
            if !handle.is_null() {
                self.adopt(index_of_rank, index, Handle(handle))?;
            }
        }
        Ok(())
    }

    fn meeting_name(&self, index: usize, group: usize, made: u64) -> String {
        format!("{}.{group}.{made}", self.job.scenario.program.communicators[index].name)
    }

    /// Takes up a communicator that was just made.
    fn adopt(&mut self, index: usize, communicator: usize, handle: Handle) -> Result<(), String> {
        self.select(index)?;
        let declared = &self.job.scenario.program.communicators[communicator];
        let stream = Stream::create().map_err(|error| format!("failed to create a stream: {error}"))?;
        let rank = &mut self.ranks[index];
        let place = declared.place(rank.world).expect("NCCL made it for this rank");
        let (hash, device_comm) = self.job.nccl.insides(handle);
        self.job.nccl.truth.write(&Line::Communicator(truth::Communicator {
            name: declared.name.clone(),
            handle: handle.0 as u64,
            hash,
            device_comm,
            rank: place.rank,
            size: place.size(),
            world_rank: rank.world,
            device: rank.device,
        }));
        // A kernel knows its peers by their ranks in the communicator.
        for link in self.job.scenario.links.iter().filter(|link| link.from == rank.world) {
            if let Some(peer) = place.ranks.iter().position(|&member| member == link.to) {
                self.job.pace.gpu(rank.device).add_link(kernel::Link {
                    communicator: device_comm,
                    peer: peer as u32,
                    bandwidth: link.bandwidth,
                    latency_ns: link.latency_ns,
                });
            }
        }
        rank.communicators[communicator] = Some(Communicator {
            handle,
            stream,
            rank: place.rank,
            size: place.size(),
            group: place.group,
            windows: Vec::new(),
            aborted: Arc::default(),
        });
        rank.order.retain(|&made| made != communicator);
        rank.order.push(communicator);
        Ok(())
    }

    fn finalize(&mut self, index: usize, communicator: usize) -> Result<(), String> {
        self.end(index, communicator, "CommFinalize", self.job.nccl.library.api().comm_finalize)
    }

    /// Ends a communicator on these ranks once its work is done on all of them.
    fn destroy(&mut self, communicator: usize, active: &[usize]) -> Result<(), String> {
        self.each(communicator, active, |ranks, rank| ranks.settle(rank, communicator))?;
        self.each(communicator, active, |ranks, rank| ranks.close_windows(rank, communicator))?;
        self.each(communicator, active, |ranks, rank| {
            ranks.end(rank, communicator, "CommDestroy", ranks.job.nccl.library.api().comm_destroy)?;
            ranks.ranks[rank].communicators[communicator] = None;
            Ok(())
        })
    }

    fn abort(&mut self, index: usize, communicator: usize) -> Result<(), String> {
        let rank = &mut self.ranks[index];
        if let Some(of_rank) = &rank.communicators[communicator] {
            of_rank.aborted.store(true, Ordering::SeqCst);
        }
        self.end(index, communicator, "CommAbort", self.job.nccl.library.api().comm_abort)?;
        let rank = &mut self.ranks[index];
        rank.graphs.retain(|_, graph| !graph.uses.contains(&communicator));
        // Its windows went with it.
        rank.memory.retain(|_, memory| memory.windows_of != Some(communicator));
        rank.communicators[communicator] = None;
        Ok(())
    }

    /// Waits for a communicator's operations and drops the graphs that use it, without which NCCL would wait for them.
    fn settle(&mut self, index: usize, communicator: usize) -> Result<(), String> {
        let rank = &mut self.ranks[index];
        let settled = rank.compute.synchronize().and_then(|()| match &rank.communicators[communicator] {
            Some(of_rank) => of_rank.stream.synchronize(),
            None => Ok(()),
        });
        rank.graphs.retain(|_, graph| !graph.uses.contains(&communicator));
        settled.map_err(|error| format!("rank {}: failed to wait for its streams: {error}", rank.world))
    }

    /// Calls one of the functions that end a communicator.
    fn end(
        &self,
        index: usize,
        communicator: usize,
        function: &str,
        call: unsafe extern "C" fn(CommHandle) -> Status,
    ) -> Result<(), String> {
        let rank = &self.ranks[index];
        let Some(of_rank) = &rank.communicators[communicator] else { return Ok(()) };
        let name = &self.job.scenario.program.communicators[communicator].name;
        let caller = Caller { rank: rank.world, communicator: name };
        // SAFETY: the communicator is there.
        self.job.nccl.call(caller, function, Passed::nothing(), || unsafe { call(of_rank.handle.0) })
    }

    // ---- groups

    fn group_start(&mut self, active: &[usize]) -> Result<(), String> {
        self.depth += 1;
        self.group(active, "GroupStart", self.job.nccl.library.api().group_start)
    }

    fn group_end(&mut self, active: &[usize]) -> Result<(), String> {
        self.group(active, "GroupEnd", self.job.nccl.library.api().group_end)?;
        self.depth -= 1;
        self.flush()
    }

    /// Opens or closes a group, for the first of these ranks as far as the truth is concerned.
    fn group(&self, active: &[usize], function: &str, call: unsafe extern "C" fn() -> Status) -> Result<(), String> {
        let caller = Caller { rank: self.ranks[active[0]].world, communicator: "" };
        // SAFETY: it takes nothing, and each end follows a start.
        self.job.nccl.call(caller, function, Passed::nothing(), || unsafe { call() })
    }

    // ---- operations

    fn operation(&mut self, operation: &Operation, active: &[usize]) -> Result<(), String> {
        let members = active.iter().copied().filter(|&index| self.ranks[index].communicators[operation.on].is_some());
        let members: Vec<usize> = members.collect();
        if members.is_empty() {
            return Ok(());
        }
        if operation.symmetric {
            self.open_windows(operation, &members)?;
        }
        let several =
            members.len() > 1 || self.native(operation).is_none() && !matches!(operation.what, What::Send { .. });
        let grouped = several && self.depth == 0;
        if grouped {
            self.group_start(&members)?;
        }
        for &index in &members {
            self.issue(index, operation)?;
        }
        if grouped { self.group_end(&members) } else { self.flush() }
    }

    /// Queues one rank's part of an operation, with what fills its memory before.
    fn issue(&mut self, index: usize, operation: &Operation) -> Result<(), String> {
        self.select(index)?;
        let memory = self.memory(index, operation)?;
        let rank = &mut self.ranks[index];
        let communicator = rank.communicators[operation.on].as_ref().expect("only members issue");
        let calls = rank.calls.entry(operation.site).or_default();
        let reduction = match operation.what {
            What::AllReduce(reduction) | What::ReduceScatter(reduction) | What::Reduce { reduction, .. } => {
                Some(reduction)
            }
            _ => None,
        };
        let seed = [operation.site as u64, communicator.group as u64, rank.made[operation.on], *calls];
        let seed = seed.into_iter().fold(self.job.scenario.seed, |seed, more| mix(seed ^ mix(more + 1)));
        *calls += 1;
        let data = Data { seed, datatype: operation.datatype, reduction };

        let mut replays = 0;
        let (filled, own) = (memory.clone(), communicator.rank);
        let fill = move || {
            // What is not written must not look right because it was right the time before. Both may be the same memory, so
            // each is used by itself.
            if filled.send.as_ptr() != filled.receive.as_ptr() {
                // SAFETY: the operations that use this memory come before and after this in the order of the stream.
                unsafe { filled.receive.bytes() }.fill(0xa5);
            }
            // SAFETY: as above.
            replay(data, &mut replays).fill(unsafe { filled.send.bytes() }, own);
        };
        let queued = rank
            .compute
            .record(&rank.event)
            .and_then(|()| communicator.stream.wait_event(&rank.event))
            .and_then(|()| communicator.stream.host_work(fill));
        queued.map_err(|error| format!("rank {}: failed to queue: {error}", rank.world))?;
        if let Some(uses) = &mut rank.capture {
            uses.insert(operation.on);
        }

        self.call(index, operation, &memory)?;
        self.pending.push(Check { rank: index, line: self.line, operation: operation.clone(), data, memory });
        Ok(())
    }

    /// The memory of a rank's part of an operation; the same each time.
    fn memory(&mut self, index: usize, operation: &Operation) -> Result<Memory, String> {
        let rank = &mut self.ranks[index];
        let communicator = rank.communicators[operation.on].as_ref().expect("only members issue");
        // A communicator that is made once more has the same size.
        if let Some(memory) = rank.memory.get(&operation.site) {
            return Ok(memory.clone());
        }
        let one = operation.count * operation.datatype.size();
        let all = one * communicator.size as usize;
        let own = one * communicator.rank as usize;
        let allocate = |bytes: usize| {
            let buffer = if operation.symmetric {
                self.job.nccl.allocate(bytes.max(1)).map(Buffer::Nccl)
            } else {
                host::malloc(bytes.max(1)).map(Buffer::Cuda).map_err(|error| error.to_string())
            };
            let failed = |error| format!("rank {}: failed to allocate {bytes} bytes: {error}", rank.world);
            buffer.map(Arc::new).map_err(failed)
        };
        let (send, receive) = match operation.what {
            What::AllGather | What::Gather { .. } => (one, all),
            What::ReduceScatter(_) | What::Scatter { .. } => (all, one),
            What::AllToAll => (all, all),
            _ => (one, one),
        };
        let memory = if operation.in_place {
            let buffer = allocate(send.max(receive))?;
            // The smaller part is this rank's own of the larger.
            let place = |bytes: usize| if bytes < send.max(receive) { own } else { 0 };
            let region = |bytes: usize| Region { buffer: Arc::clone(&buffer), offset: place(bytes), bytes };
            Memory { send: region(send), receive: region(receive), windows_of: None }
        } else {
            let region = |bytes: usize| Ok::<_, String>(Region { buffer: allocate(bytes)?, offset: 0, bytes });
            Memory { send: region(send)?, receive: region(receive)?, windows_of: None }
        };
        rank.memory.insert(operation.site, memory.clone());
        Ok(memory)
    }

    /// Registers an operation's memory on all members before it is first used; that is a call that they make together.
    fn open_windows(&mut self, operation: &Operation, members: &[usize]) -> Result<(), String> {
        if self.ranks[members[0]].memory.contains_key(&operation.site) {
            return Ok(());
        }
        let name = &self.job.scenario.program.communicators[operation.on].name;
        let mut opened = Vec::new();
        for of_receive in [false, true] {
            let mut windows: Vec<Window> = vec![Window::none(); members.len()];
            // From here on NCCL writes there, until the group ends.
            let windows_at = windows.as_mut_ptr();
            let grouped = members.len() > 1;
            if grouped {
                self.group_start(members)?;
            }
            for (number, &index) in members.iter().enumerate() {
                self.select(index)?;
                let memory = self.memory(index, operation)?;
                let region = if of_receive { &memory.receive } else { &memory.send };
                let rank = &self.ranks[index];
                let communicator = rank.communicators[operation.on].as_ref().expect("only members issue");
                let caller = Caller { rank: rank.world, communicator: name };
                // SAFETY: the place is within the vector, which lives until the group has ended. The buffer lives until its
                // window is closed.
                unsafe {
                    let (buffer, window) = (region.buffer.as_ptr(), windows_at.add(number));
                    let whole = region.offset + region.bytes;
                    self.job.nccl.open_window(caller, communicator.handle, buffer, whole.max(1), window)?;
                }
            }
            if grouped {
                self.group_end(members)?;
            }
            opened.push(windows);
            // One buffer, one window.
            if operation.in_place {
                break;
            }
        }
        for windows in opened {
            for (window, &index) in windows.into_iter().zip(members) {
                let rank = &mut self.ranks[index];
                rank.communicators[operation.on].as_mut().expect("only members issue").windows.push(window);
                rank.memory.get_mut(&operation.site).expect("it was allocated above").windows_of = Some(operation.on);
            }
        }
        Ok(())
    }

    /// Closes the windows of a communicator and frees their memory.
    fn close_windows(&mut self, index: usize, communicator: usize) -> Result<(), String> {
        let rank = &mut self.ranks[index];
        let Some(of_rank) = &mut rank.communicators[communicator] else { return Ok(()) };
        let name = &self.job.scenario.program.communicators[communicator].name;
        let caller = Caller { rank: rank.world, communicator: name };
        for window in std::mem::take(&mut of_rank.windows) {
            self.job.nccl.close_window(caller, of_rank.handle, window)?;
        }
        rank.memory.retain(|_, memory| memory.windows_of != Some(communicator));
        Ok(())
    }

    /// NCCL's own function for an operation, if it has one and it is wanted.
    fn native(&self, operation: &Operation) -> Option<&'static str> {
        let api = self.job.nccl.library.api();
        match operation.what {
            What::AllReduce(_) => Some("AllReduce"),
            What::AllGather => Some("AllGather"),
            What::ReduceScatter(_) => Some("ReduceScatter"),
            What::Broadcast { .. } => Some("Broadcast"),
            What::Reduce { .. } => Some("Reduce"),
            What::Send { .. } | What::Ring => None,
            What::AllToAll => api.all_to_all.filter(|_| operation.native).map(|_| "AlltoAll"),
            What::Gather { .. } => api.gather.filter(|_| operation.native).map(|_| "Gather"),
            What::Scatter { .. } => api.scatter.filter(|_| operation.native).map(|_| "Scatter"),
        }
    }

    /// Calls NCCL for one rank's part of an operation.
    fn call(&self, index: usize, operation: &Operation, memory: &Memory) -> Result<(), String> {
        let nccl = &self.job.nccl;
        let api = nccl.library.api();
        let rank = &self.ranks[index];
        let communicator = rank.communicators[operation.on].as_ref().expect("only members issue");
        let name = &self.job.scenario.program.communicators[operation.on].name;
        let caller = Caller { rank: rank.world, communicator: name };
        let (comm, stream) = (communicator.handle.0, communicator.stream.handle());
        let (send, receive) = (memory.send.as_ptr(), memory.receive.as_ptr());
        let (count, datatype) = (operation.count, operation.datatype.number());
        let captured = rank.capture.is_some();
        let passed =
            |root: i32| Passed { count, datatype: Some(operation.datatype), send, receive, root, stream, captured };
        let op = Reduction::number;

        if let Some(function) = self.native(operation) {
            let root = match operation.what {
                What::Broadcast { root }
                | What::Reduce { root, .. }
                | What::Gather { root }
                | What::Scatter { root } => c_number(root),
                _ => -1,
            };
            // SAFETY: the communicator is there. The memory is as large as the function needs it, and lives until
            // the work on the stream is done, which holds it.
            return nccl.call(caller, function, passed(root), || unsafe {
                match operation.what {
                    What::AllReduce(reduction) => {
                        (api.all_reduce)(send, receive, count, datatype, op(reduction), comm, stream)
                    }
                    What::AllGather => (api.all_gather)(send, receive, count, datatype, comm, stream),
                    What::ReduceScatter(reduction) => {
                        (api.reduce_scatter)(send, receive, count, datatype, op(reduction), comm, stream)
                    }
                    What::Broadcast { .. } => (api.broadcast)(send, receive, count, datatype, root, comm, stream),
                    What::Reduce { reduction, .. } => {
                        (api.reduce)(send, receive, count, datatype, op(reduction), root, comm, stream)
                    }
                    What::AllToAll => {
                        let function = api.all_to_all.expect("it was found");
                        function(send, receive, count, datatype, comm, stream)
                    }
                    What::Gather { .. } => {
                        let function = api.gather.expect("it was found");
                        function(send, receive, count, datatype, root, comm, stream)
                    }
                    What::Scatter { .. } => {
                        let function = api.scatter.expect("it was found");
                        function(send, receive, count, datatype, root, comm, stream)
                    }
                    What::Send { .. } | What::Ring => unreachable!("they have no function of their own"),
                }
            });
        }

        let one = count * operation.datatype.size();
        let none = std::ptr::null_mut();
        // What goes to a peer begins that many elements into the send buffer; what comes from one, into the other.
        let send_to = |peer: u32, at: usize| {
            // SAFETY: the buffer has that many elements before and `count` from there on.
            let send = unsafe { send.byte_add(at * one) };
            let peer = c_number(peer);
            let passed = Passed { receive: none, send, ..passed(peer) };
            // SAFETY: as above, and the buffer lives until the work on the stream is done.
            nccl.call(caller, "Send", passed, || unsafe { (api.send)(send, count, datatype, peer, comm, stream) })
        };
        let receive_from = |peer: u32, at: usize| {
            // SAFETY: as for sending.
            let receive = unsafe { receive.byte_add(at * one) };
            let peer = c_number(peer);
            let passed = Passed { receive, send: none, ..passed(peer) };
            // SAFETY: as for sending.
            nccl.call(caller, "Recv", passed, || unsafe { (api.recv)(receive, count, datatype, peer, comm, stream) })
        };
        let (own, size) = (communicator.rank, communicator.size);
        match operation.what {
            What::Send { from, to } => {
                if own == from {
                    send_to(to, 0)?;
                } else if own == to {
                    receive_from(from, 0)?;
                }
            }
            What::Ring => {
                send_to((own + 1) % size, 0)?;
                receive_from((own + size - 1) % size, 0)?;
            }
            What::AllToAll => {
                for peer in 0..size {
                    send_to(peer, peer as usize)?;
                    receive_from(peer, peer as usize)?;
                }
            }
            What::Gather { root } => {
                send_to(root, 0)?;
                if own == root {
                    (0..size).try_for_each(|peer| receive_from(peer, peer as usize))?;
                }
            }
            What::Scatter { root } => {
                if own == root {
                    (0..size).try_for_each(|peer| send_to(peer, peer as usize))?;
                }
                receive_from(root, 0)?;
            }
            other => unreachable!("{} is a function of NCCL", other.word()),
        }
        Ok(())
    }

    /// Queues the checks, now that what they check is queued.
    fn flush(&mut self) -> Result<(), String> {
        if self.depth > 0 {
            return Ok(());
        }
        for check in std::mem::take(&mut self.pending) {
            let Check { rank: index, line, operation, data, memory } = check;
            self.select(index)?;
            let rank = &self.ranks[index];
            let Some(communicator) = &rank.communicators[operation.on] else { continue };
            let (own, size) = (communicator.rank, communicator.size);
            if !receives(operation.what, own) {
                continue;
            }
            let tally = Arc::clone(&self.job.tally);
            let aborted = Arc::clone(&communicator.aborted);
            let name = self.job.scenario.program.communicators[operation.on].name.clone();
            let (world, mut replays) = (rank.world, 0);
            let work = move || {
                let data = replay(data, &mut replays);
                if aborted.load(Ordering::SeqCst) {
                    return;
                }
                // SAFETY: the operations that use this memory come before and after this in the order of the stream.
                let received = unsafe { memory.receive.bytes() };
                let result = compare(&operation, &data, received, own, size);
                tally.count(&result, || {
                    format!("rank {world}: {} on `{name}`, rank {own} there, line {line}", operation.what.word())
                });
            };
            let queued = communicator.stream.host_work(work);
            queued.map_err(|error| format!("rank {}: failed to queue: {error}", rank.world))?;
        }
        Ok(())
    }

    // ---- computation, waiting, graphs

    fn compute(&mut self, index: usize, name: &str, duration: u64) -> Result<(), String> {
        self.select(index)?;
        let rank = &self.ranks[index];
        let duration = (duration as f64 * self.job.scenario.gpus[rank.world as usize].compute).round() as u64;
        let queued = rank.compute.compute(name, [108, 1, 1], [256, 1, 1], duration, || {});
        queued.map_err(|error| format!("rank {}: failed to launch {name}: {error}", rank.world))
    }

    /// What is computed from now on waits for a communicator's operations.
    fn wait(&mut self, index: usize, communicator: usize) -> Result<(), String> {
        self.select(index)?;
        let rank = &self.ranks[index];
        let Some(of_rank) = &rank.communicators[communicator] else { return Ok(()) };
        // A capture knows only what happened in it.
        if rank.capture.as_ref().is_some_and(|uses| !uses.contains(&communicator)) {
            return Ok(());
        }
        let queued = of_rank.stream.record(&rank.event).and_then(|()| rank.compute.wait_event(&rank.event));
        queued.map_err(|error| format!("rank {}: failed to wait: {error}", rank.world))
    }

    /// The host waits for everything.
    fn sync(&mut self, active: &[usize]) -> Result<(), String> {
        for &index in active {
            self.select(index)?;
            let rank = &self.ranks[index];
            let streams = rank.communicators.iter().flatten().map(|communicator| &communicator.stream);
            for stream in [&rank.compute].into_iter().chain(streams) {
                let done = stream.synchronize();
                done.map_err(|error| format!("rank {}: failed to wait for its streams: {error}", rank.world))?;
            }
            for (communicator, declared) in rank.communicators.iter().zip(&self.job.scenario.program.communicators) {
                let Some(communicator) = communicator else { continue };
                let caller = Caller { rank: rank.world, communicator: &declared.name };
                self.job.nccl.async_error(caller, communicator.handle)?;
            }
        }
        Ok(())
    }

    /// Makes a rank's GPU the current one.
    fn select(&self, index: usize) -> Result<(), String> {
        let rank = &self.ranks[index];
        host::set_device(rank.device).map_err(|error| format!("rank {}: failed to set its GPU: {error}", rank.world))
    }
}

/// The data of the next replay of a graph; eager work has one.
fn replay(data: Data, replays: &mut u64) -> Data {
    *replays += 1;
    Data { seed: mix(data.seed ^ mix(*replays)), ..data }
}

/// Whether a rank of the communicator is left with a result.
fn receives(what: What, own: u32) -> bool {
    match what {
        What::Reduce { root, .. } | What::Gather { root } => own == root,
        What::Send { to, .. } => own == to,
        _ => true,
    }
}

/// Compares what a rank received with what it should have.
fn compare(operation: &Operation, data: &Data, received: &[u8], own: u32, size: u32) -> Result<(), Mismatch> {
    let count = operation.count;
    match operation.what {
        What::AllReduce(_) | What::Reduce { .. } => data.check_reduced(received, size, 0),
        What::ReduceScatter(_) => data.check_reduced(received, size, own as usize * count),
        What::Broadcast { root } => data.check_copy(received, root, 0),
        What::Send { from, .. } => data.check_copy(received, from, 0),
        What::Ring => data.check_copy(received, (own + size - 1) % size, 0),
        What::Scatter { root } => data.check_copy(received, root, own as usize * count),
        What::AllGather | What::Gather { .. } | What::AllToAll => {
            let first = if operation.what == What::AllToAll { own as usize * count } else { 0 };
            let one = (count * operation.datatype.size()).max(1);
            for (peer, part) in received.chunks(one).enumerate() {
                data.check_copy(part, peer as u32, first)
                    .map_err(|wrong| Mismatch { element: wrong.element + peer * count, ..wrong })?;
            }
            Ok(())
        }
    }
}
