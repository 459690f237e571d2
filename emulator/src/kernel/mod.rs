//! The effects of NCCL's kernels that the host can see, and how long they take.
//!
//! A launch becomes a plan of works for each block, read from the arguments. A block is a thread
//! that plays the works of one channel, with the real data, over the connections that NCCL's host
//! side has made. On the other side of a connection is NCCL's proxy or the peer's kernel. They can
//! tell the difference only by the time it takes.
//!
//! ```text
//!  launch ─► plan ─► blocks ─► collective, point_to_point, broadcasts ─► primitive ─► reduce
//!              │        └ profiler                                         └ pace
//!              └ function: what the id in a batch means
//! ```
//!
//! | | played | not played |
//! | --- | --- | --- |
//! | AllReduce | ring, tree | CollNet, NVLS |
//! | AllGather, ReduceScatter, Broadcast, Reduce | ring | CollNet, NVLS, PAT |
//! | others | several broadcasts at once, sends and receives | symmetric kernels |
//! | protocols | Simple, LL | LL128 |
//! | reductions | all, on all types | |
//! | connections | peer access, shared memory, network | |
//! | buffers | private, shared | registered |
//!
//! In every release from 2.23 on NCCL uses trees only for AllReduce. A kernel that cannot be
//! played ends the process with the exit code 86 and a line on stderr that says what to set
//! instead.

mod block;
mod broadcasts;
mod collective;
mod function;
mod memory;
mod pace;
mod plan;
mod point_to_point;
mod primitive;
mod profiler;
mod unplayable;
mod workers;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use pace::{GpuPace, Link, Pace, Stall};

use self::block::Block;
use self::function::FunctionTable;
use self::plan::Plan;
use self::unplayable::Unplayable;
use self::workers::Workers;
use crate::cuda::{Kernels, Launch, Ran};
use crate::library::{Layout, Library, Unsuitable};
use crate::time;

/// NCCL's kernels, played on the processor.
pub struct NcclKernels {
    model: Model,
    pace: Arc<Pace>,
}

/// The least time between a kernel's start and its first stamp and between its last stamp and its
/// end, and by how much each varies: together 3.1 to 3.7 us on H100.
const HEAD_NS: u64 = 1_750;
const TAIL_NS: u64 = 1_350;
const VARIES_NS: u64 = 300;

/// The parts of a library that its kernels depend on.
struct Model {
    layout: Layout,
    /// NCCL's version: 23007 is 2.30.7.
    release: u32,
    functions: FunctionTable,
    workers: Workers,
}

impl NcclKernels {
    /// The kernels of this library, at the pace of this process's GPUs.
    ///
    /// # Errors
    ///
    /// When the library's table of device functions is missing or differs from the one known here.
    pub fn new(library: &Library, pace: Arc<Pace>) -> Result<NcclKernels, Unsuitable> {
        const TABLE: &str = "ncclDevFuncRowToId";

        let release = library.version();
        let entries = FunctionTable::entries(release);
        let address =
            library.symbols().address(TABLE).ok_or_else(|| Unsuitable::MissingSymbol { symbol: TABLE.into() })?;
        let size = library.symbols().size(TABLE).unwrap_or(0);
        if size != entries * size_of::<i32>() {
            return Err(Unsuitable::Unsupported(format!(
                "its {TABLE} has {size} bytes where {} are expected: this release of NCCL is not known here",
                entries * size_of::<i32>()
            )));
        }
        // SAFETY: a constant of the library, which stays loaded; its size gives the count.
        let ids = unsafe { std::slice::from_raw_parts(address as *const i32, entries) };
        let functions = FunctionTable::invert(release, ids).map_err(Unsuitable::Unsupported)?;
        let model = Model { layout: *library.layout(), release, functions, workers: Workers::default() };
        Ok(NcclKernels { model, pace })
    }

    fn play(&self, launch: &Launch) -> Result<Ran, Unplayable> {
        let gpu = self.pace.gpu(launch.device);
        let symbol = &*launch.symbol;
        if !symbol.contains("ncclDevKernel_") {
            return Err(Unplayable::kernel(symbol));
        }
        // SAFETY: NCCL launched this kernel of its own with these arguments.
        let plan = unsafe { Plan::read(&self.model, launch.arguments.as_bytes(), launch.grid[0]) }?;
        let halts = gpu.begin_kernel();
        let start = time::now();
        let played = self.model.workers.each(plan.shares.len(), |index| {
            let share = &plan.shares[index];
            let block = Block::new(&self.model, gpu, &plan.comm, share.channel, symbol, &halts);
            let (channels, stamped) = block.play(share);
            (channels, block.is_aborted(), stamped)
        });
        let end = time::now();
        // On a GPU a kernel has not begun while its blocks wait for a processor, as they do here,
        // and they do not wait for one before they end.
        let first = played.iter().map(|(.., [first, _])| *first).min();
        let last = played.iter().map(|(.., [_, last])| *last).max();
        let some = |instant: u64| instant % VARIES_NS;
        let start = first.map_or(start, |first| start.max(first.saturating_sub(HEAD_NS + some(first))));
        let end = last.map_or(end, |last| end.min(last + TAIL_NS + some(last)));
        let aborted = played.iter().any(|(_, aborted, _)| *aborted);
        Ok(Ran {
            start,
            end,
            operations: plan.operations,
            channels: played.into_iter().flat_map(|(channels, ..)| channels).collect(),
            device_comm: Some(plan.comm.place.address()),
            aborted,
        })
    }
}

impl Kernels for NcclKernels {
    fn run(&self, launch: &Launch) -> Ran {
        self.play(launch).unwrap_or_else(|why| why.refuse(&launch.symbol))
    }

    fn timer(&self, device: u32) -> u64 {
        self.pace.gpu(device).timer().at(time::now())
    }
}
