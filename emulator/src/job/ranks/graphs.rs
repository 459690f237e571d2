//! Graphs that a rank captures, instantiates, updates and launches; and lending CUPTI in between.

use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::Arc;

use super::{Rank, Ranks};
use crate::cuda::host::{Exec, Graph};
use crate::cuda::{self, thread_id};
use crate::scenario::program::{Lend, Made, Statement};
use crate::time;
use crate::truth::{self, Line};

/// A graph, ready to be launched.
pub(super) struct Captured {
    // Dropped first.
    exec: Exec,
    graph: Arc<Graph>,
    /// Kept as an application would keep them.
    updates: Vec<Graph>,
    pub(super) uses: HashSet<usize>,
}

/// A capture of one rank.
struct Recorded {
    index: usize,
    graph: Graph,
    uses: HashSet<usize>,
    begin: (u64, u64),
    end: (u64, u64),
}

impl Ranks<'_> {
    /// Captures what statements do as one graph per rank.
    fn record(&mut self, body: &[Statement], active: &[usize]) -> Result<Vec<Recorded>, String> {
        let mut begun = Vec::with_capacity(active.len());
        for &index in active {
            self.select(index)?;
            let rank = &mut self.ranks[index];
            let (begin, result) = timed(|| rank.compute.begin_capture());
            result.map_err(|error| failed(rank, error))?;
            begun.push(begin);
            rank.capture = Some(HashSet::new());
        }
        self.block(body, active)?;
        let mut recorded = Vec::with_capacity(active.len());
        for (&index, begin) in active.iter().zip(begun) {
            let uses: Vec<usize> = self.ranks[index].capture.iter().flatten().copied().collect();
            for communicator in uses {
                self.wait(index, communicator)?;
            }
            self.select(index)?;
            let rank = &mut self.ranks[index];
            let uses = rank.capture.take().unwrap_or_default();
            let (end, graph) = timed(|| rank.compute.end_capture());
            let graph = graph.map_err(|error| failed(rank, error))?;
            recorded.push(Recorded { index, graph, uses, begin, end });
        }
        Ok(recorded)
    }

    pub(super) fn capture(&mut self, name: &str, body: &[Statement], active: &[usize]) -> Result<(), String> {
        for Recorded { index, graph, uses, begin, end } in self.record(body, active)? {
            self.select(index)?;
            let rank = &mut self.ranks[index];
            let (instantiate, exec) = timed(|| graph.instantiate());
            let exec = exec.map_err(|error| failed(rank, error))?;
            let thread = thread_id();
            self.job.nccl.truth.write(&Line::Capture(truth::Capture { thread, begin, end, instantiate }));
            rank.graphs.insert(name.into(), Captured { exec, graph: Arc::new(graph), updates: Vec::new(), uses });
        }
        Ok(())
    }

    /// Instantiates a captured graph once more.
    pub(super) fn instantiate(&mut self, name: &str, made: Made, of: &str, active: &[usize]) -> Result<(), String> {
        for &index in active {
            self.select(index)?;
            let rank = &mut self.ranks[index];
            let Captured { graph, uses, .. } = captured(rank, of)?;
            let uses = uses.clone();
            let graph = match made {
                Made::Itself => Arc::clone(graph),
                Made::Clone => Arc::new(graph.duplicate().map_err(|error| failed(rank, error))?),
                Made::Parent => Arc::new(graph.nest().map_err(|error| failed(rank, error))?),
            };
            let exec = graph.instantiate().map_err(|error| failed(rank, error))?;
            rank.graphs.insert(name.into(), Captured { exec, graph, updates: Vec::new(), uses });
        }
        Ok(())
    }

    /// Captures again, and updates an executable graph with the result.
    pub(super) fn update(&mut self, name: &str, body: &[Statement], active: &[usize]) -> Result<(), String> {
        for Recorded { index, graph, uses, .. } in self.record(body, active)? {
            self.select(index)?;
            let rank = &mut self.ranks[index];
            let world = rank.world;
            let known = rank.graphs.get_mut(name).ok_or_else(|| format!("rank {world} has no graph {name}"))?;
            known.exec.update(&graph).map_err(|error| format!("rank {world}: failed to update {name}: {error}"))?;
            known.updates.push(graph);
            known.uses.extend(uses);
        }
        Ok(())
    }

    pub(super) fn replay(&mut self, name: &str, times: u64, on: Option<usize>, active: &[usize]) -> Result<(), String> {
        for _ in 0..times {
            for &index in active {
                self.select(index)?;
                let rank = &self.ranks[index];
                let stream = match on {
                    Some(communicator) => match &rank.communicators[communicator] {
                        Some(communicator) => &communicator.stream,
                        None => continue,
                    },
                    None => &rank.compute,
                };
                let launched = captured(rank, name)?.exec.launch(stream);
                launched.map_err(|error| format!("rank {}: failed to launch {name}: {error}", rank.world))?;
            }
        }
        Ok(())
    }

    /// Asks the recording of this process to lend CUPTI or take it back, if there is one.
    pub(super) fn lend(&self, what: Lend) -> Result<(), String> {
        let name = match what {
            Lend::Release => c"ncclscope_release",
            Lend::Acquire => c"ncclscope_acquire",
        };
        // SAFETY: names are C strings; no library is loaded that is not there already.
        let function = unsafe {
            let library = libc::dlopen(c"libncclscope.so".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) }
        };
        if function.is_null() {
            return Ok(());
        }
        // SAFETY: the library's header gives both this type.
        let function = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> i32>(function) };
        let ((called, returned), answer) = timed(|| function());
        let release = what == Lend::Release;
        self.job.nccl.truth.write(&Line::Lend(truth::Lend { release, answer, called, returned }));
        if answer == 0 { Ok(()) } else { Err(format!("{} answered {answer}", name.to_string_lossy())) }
    }
}

fn failed(rank: &Rank, error: cuda::Error) -> String {
    format!("rank {}: failed to capture: {error}", rank.world)
}

fn captured<'r>(rank: &'r Rank, name: &str) -> Result<&'r Captured, String> {
    rank.graphs.get(name).ok_or_else(|| format!("rank {} has no graph {name}", rank.world))
}

/// When a call was made and when it returned, and its result.
fn timed<T>(call: impl FnOnce() -> T) -> ((u64, u64), T) {
    let called = time::now();
    let answer = call();
    ((called, time::now()), answer)
}
