//! Ranks that run the program: one for each process or thread, or several where one thread drives
//! all GPUs of its host.
//!
//! Each rank has a stream on which it computes, and one more for each communicator, as in PyTorch.
//! An operation's stream waits for earlier computation; `wait` makes computation wait for the
//! operations.

mod calls;
mod communicators;
mod graphs;
mod memory;
mod operations;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use super::Job;
use super::nccl::{Caller, Passed};
use crate::cuda;
use crate::cuda::host::{self, Event, Stream};
use crate::library::api::Status;
use crate::scenario::program::{Statement, Verb};
use crate::scenario::random::Dice;
use crate::scenario::units::{Range, Time};
use communicators::Communicator;
use elements::mix;
use graphs::Captured;
use memory::Memory;
use operations::Check;

/// The ranks of one thread.
pub(super) struct Ranks<'a> {
    job: &'a Job,
    ranks: Vec<Rank>,
    /// How many groups are open.
    depth: usize,
    /// Checks of operations that are only launched when their group ends.
    pending: Vec<Check>,
    /// The line of the current statement, for messages.
    line: usize,
}

/// How the ranks ended the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Everything is done and destroyed.
    Done,
    /// They left earlier, on purpose.
    Left,
}

/// One rank.
struct Rank {
    world: u32,
    device: u32,
    compute: Stream,
    event: Event,
    /// By the communicators' indices in the program.
    communicators: Vec<Option<Communicator>>,
    /// How often each communicator has been created.
    made: Vec<u64>,
    /// The communicators in the order of their creation.
    order: Vec<usize>,
    /// The memory of each operation.
    memory: HashMap<usize, Memory>,
    /// How often each operation has been called.
    calls: HashMap<usize, u64>,
    /// How often each kernel whose length varies has been launched, by its line in the program.
    launches: HashMap<usize, u64>,
    /// One for each of the latest `ahead`.
    reached: VecDeque<Event>,
    graphs: HashMap<String, Captured>,
    /// The communicators used so far by the graph being captured, if one is.
    capture: Option<HashSet<usize>>,
}

impl<'a> Ranks<'a> {
    /// Prepares ranks of the job to run its program.
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
                launches: HashMap::new(),
                reached: VecDeque::new(),
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

    /// Runs statements for the ranks with these indices. An ending is that of the whole thread.
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
            Verb::Compute(name, least, most) => {
                for &index in active {
                    self.compute(index, name, *least, *most)?;
                }
            }
            Verb::Wait(communicator) => {
                for &index in active {
                    self.wait(index, *communicator)?;
                }
            }
            Verb::Sync => self.sync(active)?,
            Verb::Sleep(duration) => std::thread::sleep(Duration::from_nanos(*duration)),
            Verb::Ahead(count) => {
                for &index in active {
                    self.stay_ahead(index, *count)?;
                }
            }
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
                // SAFETY: the variable has been there since the process began, so only its pointer
                // changes, and the old text is never freed: a thread of NCCL that reads it finds
                // one or the other. No other thread of ours sets one.
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
            Verb::Exit => return Ok(Some(Ending::Left)),
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
        // The last one created goes first, on all ranks of the thread before the next.
        while let Some(&communicator) = all.iter().find_map(|&index| self.ranks[index].order.last()) {
            self.destroy(communicator, all)?;
            for &index in all {
                self.ranks[index].order.retain(|&made| made != communicator);
            }
        }
        Ok(())
    }

    fn group_start(&mut self, active: &[usize]) -> Result<(), String> {
        self.depth += 1;
        self.group(active, "GroupStart", self.job.nccl.library.api().group_start)
    }

    fn group_end(&mut self, active: &[usize]) -> Result<(), String> {
        self.group(active, "GroupEnd", self.job.nccl.library.api().group_end)?;
        self.depth -= 1;
        self.flush()
    }

    /// Runs `act` as one group, if it is to be one; then queues the checks.
    fn together(
        &mut self,
        ranks: &[usize],
        grouped: bool,
        act: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        if grouped {
            self.group_start(ranks)?;
        }
        act(self)?;
        if grouped { self.group_end(ranks) } else { self.flush() }
    }

    /// Opens or closes a group. The truth records it for the first of these ranks.
    fn group(&self, active: &[usize], function: &str, call: unsafe extern "C" fn() -> Status) -> Result<(), String> {
        let caller = Caller { rank: self.ranks[active[0]].world, communicator: "" };
        // SAFETY: it takes nothing, and each end follows a start.
        self.job.nccl.call(caller, function, Passed::nothing(), || unsafe { call() })
    }

    fn compute(&mut self, index: usize, name: &str, least: u64, most: u64) -> Result<(), String> {
        self.select(index)?;
        let rank = &mut self.ranks[index];
        let duration = if least == most {
            least
        } else {
            let launches = rank.launches.entry(self.line).or_default();
            let mut dice = Dice::new(mix(self.job.scenario.seed ^ mix(u64::from(rank.world) << 32 | *launches)));
            *launches += 1;
            dice.within(&Range::<Time>::new(least as f64, most as f64)).round() as u64
        };
        let duration = (duration as f64 * self.job.scenario.gpus[rank.world as usize].compute).round() as u64;
        let queued = rank.compute.compute(name, [108, 1, 1], [256, 1, 1], duration, || {});
        queued.map_err(|error| format!("rank {}: failed to launch {name}: {error}", rank.world))
    }

    /// Marks how far computation has been queued, and waits until it has reached the mark that was
    /// made `count` calls before.
    fn stay_ahead(&mut self, index: usize, count: u64) -> Result<(), String> {
        self.select(index)?;
        let rank = &mut self.ranks[index];
        let failed = |error: cuda::Error| format!("rank {}: failed to wait for its stream: {error}", rank.world);
        let here = Event::create().map_err(failed)?;
        rank.compute.record(&here).map_err(failed)?;
        rank.reached.push_back(here);
        while rank.reached.len() as u64 > count {
            let earlier = rank.reached.pop_front().expect("there is one");
            earlier.synchronize().map_err(failed)?;
        }
        Ok(())
    }

    /// Makes later computation wait for a communicator's operations.
    fn wait(&mut self, index: usize, communicator: usize) -> Result<(), String> {
        self.select(index)?;
        let rank = &self.ranks[index];
        let Some(of_rank) = &rank.communicators[communicator] else { return Ok(()) };
        // A capture only knows what happened inside it.
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
            for (place, communicator) in rank.communicators.iter().enumerate() {
                let Some(communicator) = communicator else { continue };
                self.job.nccl.async_error(self.caller(index, place), communicator.handle)?;
            }
        }
        Ok(())
    }

    /// The caller when a rank calls NCCL for a communicator.
    fn caller(&self, index: usize, communicator: usize) -> Caller<'a> {
        let communicator = &self.job.scenario.program.communicators[communicator].name;
        Caller { rank: self.ranks[index].world, communicator }
    }

    /// Makes a rank's GPU the current one.
    fn select(&self, index: usize) -> Result<(), String> {
        let rank = &self.ranks[index];
        host::set_device(rank.device).map_err(|error| format!("rank {}: failed to set its GPU: {error}", rank.world))
    }
}
