//! The library as a profiler meets it: opened as a file, called through `dlsym`, with this program as the host of its GPUs.
//!
//! CUPTI is one to a process, and so is what its environment variable says. So each test that uses it runs in a process of its
//! own: see [`alone`].

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
mod symbols;
mod walkers;
mod without_driver;
