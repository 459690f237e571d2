//! The scripted host: a stand-in for NCCL that plays any sequence of calls through a built profiler
//! plugin, in all seven versions of the interface, without a GPU.
//!
//! * [`layout`] knows the position of every field, independently of the plugin.
//! * [`host`] loads a plugin and calls it as NCCL does: [`host::Plugin`].
//! * [`script`] is the language that scenarios are written in; [`player`] runs them.
//! * [`play`] runs them in a process of their own and collects the output: [`play::Play`].
//! * [`gpu`] is what a script can do with CUDA, with the emulated libraries.
//! * [`flood`] is the load test, [`quiet`] the one that forbids system calls and counts
//!   allocations.
//! * [`perfetto`] reads the resulting traces, [`timeline`] says what they show.
//! * [`ui`] is Perfetto's user interface in a browser.
//! * [`pypi`] are Prometheus's and Grafana's own readers.
//! * [`fault`] is the table of what is done to jobs and what holds.
//! * [`recording`] does all of it: plays scripts and checks the resulting traces.

pub mod company;
pub mod fault;
pub mod flood;
pub mod gpu;
pub mod host;
pub mod layout;
pub mod nvtx;
pub mod perfetto;
pub mod play;
pub mod player;
pub mod pypi;
pub mod quiet;
pub mod recording;
pub mod script;
pub mod sharer;
pub mod timeline;
pub mod ui;
