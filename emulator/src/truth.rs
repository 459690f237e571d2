//! The truth: what really happened on the emulated GPUs. There is one JSON object per line, and
//! one file per process.
//!
//! The profiler never reads it. Tests and benchmarks compare the trace with it. All times are true
//! time ([`crate::time`]) in ns unless a field says otherwise.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::time::{DeviceTimer, HostClocks};

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Line {
    /// The process; always the first line.
    Process(Process),
    /// One of its GPUs.
    Device(Device),
    /// A communicator of one of its ranks.
    Communicator(Communicator),
    /// A kernel that ran.
    Kernel(Kernel),
    /// Memory copied or set by a stream.
    Copy(Copy),
    /// A call of the application into NCCL.
    Call(Call),
    /// A message of the emulator's own network, recorded at both ends.
    Transfer(Transfer),
    /// A graph was captured and made executable.
    Capture(Capture),
    /// The recording was asked to lend CUPTI, or to take it back.
    Lend(Lend),
    /// How the job ended here; always the last line, and missing when the process was killed.
    End(End),
}

/// The process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// The host it pretends to run on, from 0.
    pub host: u32,
    /// The world ranks in it.
    pub ranks: Vec<u32>,
    /// NCCL's version as `ncclGetVersion` returns it.
    pub nccl: u32,
    /// The seed of the scenario.
    pub seed: u64,
    /// The errors of the host's clocks.
    pub clocks: HostClocks,
    /// NCCL's environment variables, `NCCL_*`.
    pub environment: BTreeMap<String, String>,
}

/// The environment variables of this process that NCCL reads.
pub fn nccl_environment() -> BTreeMap<String, String> {
    std::env::vars().filter(|(name, _)| name.starts_with("NCCL_")).collect()
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Its CUDA ordinal in this process.
    pub device: u32,
    /// Its model.
    #[serde(default)]
    pub name: String,
    /// Its UUID.
    #[serde(default)]
    pub uuid: [u8; 16],
    /// Its timer.
    pub timer: DeviceTimer,
}

/// A communicator, as one rank sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Communicator {
    /// Its name in the scenario.
    pub name: String,
    /// `ncclComm_t`.
    pub handle: u64,
    /// The communicator's hash in the profiler interface, if the library's debug information gives
    /// its offset.
    pub hash: Option<u64>,
    /// The device communicator, to which kernels refer, if the library's debug information gives
    /// its offset.
    pub device_comm: Option<u64>,
    /// This rank in it.
    pub rank: u32,
    /// Its size.
    pub size: u32,
    /// The world rank.
    pub world_rank: u32,
    /// The device of this rank.
    pub device: u32,
}

/// A kernel that ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// The correlation id of the call that launched it: one number per call into CUDA in the
    /// process.
    pub correlation: u32,
    /// The thread that made the call.
    pub thread: u32,
    /// When that call was made.
    pub called: u64,
    /// When it returned.
    pub returned: u64,
    /// The device.
    pub device: u32,
    /// The id of the context.
    pub context: u32,
    /// The stream's id.
    pub stream: u32,
    /// The stream's handle.
    pub stream_handle: u64,
    /// The kernel's name in the symbol table.
    pub symbol: String,
    /// Blocks.
    pub grid: u32,
    /// When the first block began.
    pub start: u64,
    /// When the last block ended.
    pub end: u64,
    /// The place in a graph that it ran from.
    pub graph: Option<GraphPlace>,
    /// The device communicator, for a kernel of NCCL.
    pub device_comm: Option<u64>,
    /// What it carried.
    pub operations: Vec<Operation>,
    /// What each channel worked on, and when.
    pub channels: Vec<Channel>,
    /// Whether it was cut short because the communicator was aborted.
    pub aborted: bool,
}

/// A node of an executable graph, in one replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphPlace {
    /// The id of the executable graph.
    pub exec: u32,
    /// The id of its node.
    pub node: u64,
    /// The id of the node it was cloned from.
    pub original_node: u64,
    /// How often the executable graph had been launched before.
    pub replay: u64,
}

/// An operation that a kernel carried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// `AllReduce`, `Send`, ...
    pub function: String,
    /// The address it read from, or 0.
    pub send: u64,
    /// The address it wrote to, or 0.
    pub receive: u64,
    /// Elements, for a collective; bytes, for a send or receive.
    pub count: u64,
    /// `ncclFloat32`, ..., as the kernel sees it.
    pub datatype: String,
    /// The root or the peer, or -1.
    pub root: i32,
    /// `RING`, `TREE`.
    pub algorithm: String,
    /// `LL`, `SIMPLE`.
    pub protocol: String,
    /// The first and the last channel.
    pub channels: (u32, u32),
}

impl Operation {
    /// Bytes, as the call counts them.
    ///
    /// # Panics
    ///
    /// When the datatype's name does not end with the bits of an element.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        if matches!(self.function.as_str(), "Send" | "Recv") {
            return self.count;
        }
        let bits = self.datatype.trim_start_matches(|it: char| !it.is_ascii_digit());
        let bits: u64 = bits.parse().unwrap_or_else(|_| panic!("a datatype without bits: {}", self.datatype));
        self.count * bits / 8
    }
}

/// One piece of work of one channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Channel {
    /// The channel.
    pub channel: u32,
    /// The index in [`Kernel::operations`].
    pub operation: u32,
    /// The channel's work counter, as this device's profiler ring shows it, if the kernel stamped
    /// the work.
    pub counter: Option<u64>,
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// The device's timer when it began, as the kernel stamped it.
    pub timer_start: u64,
    /// The device's timer when it ended, as the kernel stamped it.
    pub timer_end: u64,
}

/// A copy or a memset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Copy {
    /// The correlation id of the call that caused it.
    pub correlation: u32,
    /// The device.
    pub device: u32,
    /// The stream's id.
    pub stream: u32,
    /// Bytes.
    pub bytes: u64,
    /// Whether it set memory instead of copying.
    pub set: bool,
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
}

/// A call of the application into NCCL.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The thread.
    pub thread: u32,
    /// The world rank.
    pub rank: u32,
    /// The communicator's name in the scenario.
    pub communicator: String,
    /// `AllReduce`, ...
    pub function: String,
    /// Elements, as passed.
    pub count: u64,
    /// The datatype, as in NCCL's `ncclDataType_t`: `ncclFloat32`.
    pub datatype: String,
    /// The address it reads from, or 0.
    pub send: u64,
    /// The address it writes to, or 0.
    pub receive: u64,
    /// The root or the peer, or -1.
    pub root: i32,
    /// The stream's handle.
    pub stream: u64,
    /// Whether the stream was capturing.
    pub captured: bool,
    /// When the call was made.
    pub called: u64,
    /// When it returned.
    pub returned: u64,
}

/// A request of one of NCCL's threads to the network, and when it was reported as done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// The thread that asked for it.
    pub thread: u32,
    /// Whether it sends.
    pub sends: bool,
    /// Bytes moved.
    pub bytes: u64,
    /// When NCCL called `isend` or `irecv`.
    pub called: u64,
    /// When that returned.
    pub returned: u64,
    /// When NCCL called the `test` that reported it as done.
    pub asked: u64,
    /// When that returned, not counting the time it took to write this.
    pub answered: u64,
}

/// A capture of one of the application's streams, whose graph was instantiated at once. One
/// thread's captures of several GPUs overlap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Capture {
    /// The thread.
    pub thread: u32,
    /// When the call that begins it was made, and when it returned.
    pub begin: (u64, u64),
    /// The same for the call that ends it.
    pub end: (u64, u64),
    /// The same for the instantiation.
    pub instantiate: (u64, u64),
}

/// A call of `ncclscope_release` or `ncclscope_acquire`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lend {
    /// Whether CUPTI was released.
    pub release: bool,
    /// The function's result.
    pub answer: i32,
    /// When it was called.
    pub called: u64,
    /// When it returned.
    pub returned: u64,
}

/// How the job ended in this process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// How many results were compared.
    pub checked: u64,
    /// How many of them were wrong.
    pub wrong: u64,
    /// Lines that could not be written.
    pub lost: u64,
}

/// The file of this process.
#[derive(Debug)]
pub struct Truth {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    lost: u64,
}

impl Truth {
    /// Creates the file.
    ///
    /// # Errors
    ///
    /// When it cannot be created.
    pub fn create(path: &Path) -> std::io::Result<Truth> {
        Ok(Truth { state: Mutex::new(State { file: File::create(path)?, lost: 0 }) })
    }

    /// Writes a line; lines that cannot be written are counted.
    pub fn write(&self, line: &Line) {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut text = serde_json::to_vec(line).expect("every line can be written as JSON");
        text.push(b'\n');
        // One write, so that a killed process leaves whole lines.
        if state.file.write_all(&text).is_err() {
            state.lost += 1;
        }
    }

    /// Lines that could not be written.
    pub fn lost(&self) -> u64 {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner).lost
    }
}

/// Reads a file of truth; its last line may be incomplete.
///
/// # Errors
///
/// When the file cannot be read, or a line other than the last is not one of ours.
pub fn read(path: &Path) -> Result<Vec<Line>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut lines = Vec::new();
    for (number, line) in text.split_inclusive('\n').enumerate() {
        match serde_json::from_str(line) {
            Ok(line) => lines.push(line),
            Err(_) if !line.ends_with('\n') => break,
            Err(error) => return Err(format!("{}:{}: {error}", path.display(), number + 1)),
        }
    }
    Ok(lines)
}
