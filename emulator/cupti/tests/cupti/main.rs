//! The library as a profiler uses it: opened as a file, called through `dlsym`, with this program
//! as the host of its GPUs.
//!
//! There is one CUPTI per process, and its environment variable is read once. So each test that
//! uses it runs in a process of its own: see [`alone`].

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod alone;
mod consumer;
mod host;
mod library;
mod wheels;

mod buffers;
mod calls;
mod graphs;
mod headers;
mod misbehaviour;
mod misuse;
mod nvtx;
mod records;
mod sharing;
mod symbols;
mod walkers;
mod without_driver;
