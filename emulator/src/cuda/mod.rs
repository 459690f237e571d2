//! The CUDA that libnccl and the job run on: memory, streams, events, graphs, devices, launches.
//!
//! One process has one machine, made by [`install`]. libnccl reaches it through the functions of
//! [`runtime_table`], which overwrite its own. The job uses [`host`], a safe interface to the same
//! machine. Memory of a device is memory of the process, a stream is a thread with a queue, and
//! [`Kernels`] decides what an NCCL kernel does.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`host`] | what the job calls |
//! | `runtime`, `driver` | what libnccl calls, as C functions |
//! | `application` | the driver as other CUDA programs call it, and their kernels |
//! | `observe` | the observer: an emulated CUPTI |
//! | `device` | devices, contexts, which one is current |
//! | `stream`, `event` | queues of work, and points in them |
//! | `capture`, `graph` | capturing streams, and the graphs made of captures |
//! | `work`, `one_rank`, `memory_operations` | what is queued: kernels, copies, functions, waits |
//! | `memory`, `virtual_memory` | ranges of addresses and what they are |
//! | `registry`, `names`, `threads`, [`error`] | handles, kernels' names, threads, errors |

mod application;
mod capture;
pub(crate) mod device;
mod driver;
pub mod error;
mod event;
mod graph;
pub mod host;
mod memory;
mod memory_operations;
mod names;
mod observe;
mod one_rank;
mod registry;
mod runtime;
mod stream;
mod threads;
mod virtual_memory;
mod work;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

pub use error::Error;
pub(crate) use threads::id as thread_id;

use crate::time;
use crate::truth::{self, Truth};

/// What the machine is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How many GPUs this process sees; at most 16.
    pub devices: u32,
    /// CUDA's version as `cuDriverGetVersion` returns it: 13000 is 13.0.
    pub driver_version: i32,
    /// The compute capability of every GPU, in tenths: 80 is 8.0.
    pub compute_capability: u32,
    /// Whether `cuMem*` works, and with it NCCL's `NCCL_CUMEM_ENABLE=1`.
    pub virtual_memory: bool,
    /// Whether GPUs can access each other's memory.
    pub peer_access: bool,
    /// Whether calls are logged on stderr.
    pub trace: bool,
    /// The least time between the call that launches a kernel and the kernel's start, in ns.
    pub launch_latency_ns: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            devices: 1,
            driver_version: 13000,
            compute_capability: 80,
            virtual_memory: false,
            peer_access: false,
            trace: false,
            launch_latency_ns: 2000,
        }
    }
}

/// What NCCL's kernels do.
pub trait Kernels: Send + Sync {
    /// Runs a kernel to its end on the calling thread, which is the stream's, and returns the
    /// truth about it.
    fn run(&self, launch: &Launch) -> Ran;

    /// The time that a device's timer (`%globaltimer`) shows now. NCCL reads it with a kernel of
    /// its own since 2.32.
    fn timer(&self, device: u32) -> u64 {
        let _ = device;
        time::now()
    }
}

/// A kernel that is about to run.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The device.
    pub device: u32,
    /// The kernel's name, as in the symbol table.
    pub symbol: Arc<str>,
    /// Blocks.
    pub grid: [u32; 3],
    /// The arguments that it was passed.
    pub arguments: Arguments,
}

/// A kernel's arguments: a copy of the buffer that the launch passed, aligned to 16 bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    words: Arc<[u128]>,
    bytes: usize,
}

impl Arguments {
    /// Copies a buffer.
    pub fn new(bytes: &[u8]) -> Arguments {
        let words = bytes.chunks(16).map(|chunk| {
            let mut word = [0; 16];
            word[..chunk.len()].copy_from_slice(chunk);
            u128::from_ne_bytes(word)
        });
        Arguments { words: words.collect(), bytes: bytes.len() }
    }

    /// The buffer.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the words are initialised memory of at least this many bytes, and a byte has no
        // alignment.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.bytes) }
    }

    /// Where it begins; aligned to 16 bytes.
    pub fn as_ptr(&self) -> *const u8 {
        self.words.as_ptr().cast()
    }
}

impl std::fmt::Debug for Arguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}

/// The truth about a kernel that ran.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ran {
    /// When the first block began, in true ns.
    pub start: u64,
    /// When the last block ended, in true ns.
    pub end: u64,
    /// What it carried.
    pub operations: Vec<truth::Operation>,
    /// What each channel worked on, and when.
    pub channels: Vec<truth::Channel>,
    /// The device communicator.
    pub device_comm: Option<u64>,
    /// Whether it was cut short because the communicator was aborted.
    pub aborted: bool,
}

/// Makes the machine of this process. `symbols` gives the name of the symbol at an address of
/// libnccl.
///
/// # Panics
///
/// When it was called before, or when `config` asks for no GPU or for more than 16.
pub fn install(
    config: Config,
    symbols: impl Fn(*const c_void) -> Option<String> + Send + Sync + 'static,
    kernels: Box<dyn Kernels>,
    truth: Arc<Truth>,
) {
    assert!((1..=device::MAX_DEVICES).contains(&config.devices), "a machine has 1 to {} GPUs", device::MAX_DEVICES);
    let machine = Machine {
        devices: (0..config.devices).map(device::Device::new).collect(),
        config,
        symbols: Box::new(symbols),
        names: names::Names::default(),
        kernels,
        truth,
        memory: memory::Memory::default(),
        virtual_memory: virtual_memory::VirtualMemory::default(),
        streams: registry::Registry::default(),
        events: registry::Registry::default(),
        graphs: registry::Registry::default(),
        execs: registry::Registry::default(),
        user_objects: Mutex::default(),
        contexts: AtomicU32::new(0),
        graph_ids: AtomicU32::new(0),
        captures: AtomicU64::new(0),
    };
    assert!(MACHINE.set(machine).is_ok(), "a process has one machine");
}

/// The functions that overwrite libnccl's own, by name. `exists` says whether the library has a
/// function of that name. From that the table tells CUDA 12 from 13, where some functions of the
/// same name take other arguments.
pub fn runtime_table(exists: impl Fn(&str) -> bool) -> Vec<(&'static str, *const c_void)> {
    runtime::table(exists)
}

static MACHINE: OnceLock<Machine> = OnceLock::new();

/// All CUDA state of the process.
struct Machine {
    config: Config,
    symbols: Box<dyn Fn(*const c_void) -> Option<String> + Send + Sync>,
    names: names::Names,
    kernels: Box<dyn Kernels>,
    truth: Arc<Truth>,
    devices: Box<[device::Device]>,
    memory: memory::Memory,
    virtual_memory: virtual_memory::VirtualMemory,
    streams: registry::Registry<stream::Stream>,
    events: registry::Registry<event::Event>,
    graphs: registry::Registry<graph::Graph>,
    execs: registry::Registry<graph::Exec>,
    /// By handle, with the references that the user holds.
    user_objects: Mutex<HashMap<usize, (Arc<graph::UserObject>, u32)>>,
    contexts: AtomicU32,
    graph_ids: AtomicU32,
    captures: AtomicU64,
}

impl Machine {
    /// The name of the kernel at an address.
    fn name(&self, function: *const c_void) -> names::Name {
        self.names.of_function(function as usize, || (self.symbols)(function))
    }
}

fn machine() -> &'static Machine {
    MACHINE.get().expect("cuda::install makes the machine before anything is called")
}
