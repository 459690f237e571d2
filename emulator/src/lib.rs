//! The real libnccl on emulated GPUs.
//!
//! `README.md` beside this crate says what is emulated and what is not. The modules, bottom up:
//!
//! | module | what it is |
//! | --- | --- |
//! | [`time`] | the true clock, each host's clocks, each GPU's timer |
//! | [`truth`] | what really happened, as JSON lines |
//! | [`accuracy`] | compares what a trace says of each kernel with the truth |
//! | [`library`] | a libnccl: its symbols, layout and functions, and the jumps over its CUDA |
//! | [`cuda`] | the CUDA that those jumps lead to: memory, streams, graphs, devices |
//! | [`kernel`] | the effects of NCCL's kernels that the host can see, and how long they take |
//! | [`network`] | a network between the emulated hosts |
//! | [`scenario`] | a job described in a file |
//! | [`job`] | one process of that job: its ranks, their calls, whether the results are right |
//! | [`launch`] | all processes of a job: started, watched, ended |
//! | [`wheel`] | where a libnccl comes from |

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the emulator writes x86-64 instructions into libnccl and runs on x86-64 Linux only");

pub mod accuracy;
pub mod cuda;
pub mod job;
pub mod kernel;
pub mod launch;
pub mod library;
pub mod network;
pub mod scenario;
pub mod time;
pub mod truth;
pub mod wheel;
