//! CUPTI for emulated GPUs.
//!
//! Built as a library with CUPTI's SONAME, it serves a profiler as the real one does: it accepts a
//! subscription, makes callbacks at calls into CUDA, requests buffers, fills them with records of
//! the emulated GPUs' work, and returns them. The GPUs are in the host program, to which it
//! attaches through [`observe::ATTACH`]. Without a host program it answers as the real library
//! does on a machine without a driver. It can be one of six releases, and it can misbehave in the
//! ways that real ones do: see [`options`].
//!
//! Use that the real library would crash or hang on ends the process here, with a line on stderr
//! that gives the reason.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`release`], [`result`], [`layout`] | differences between releases: numbers, codes, records |
//! | [`names`] | functions of CUDA and CUPTI's numbers for them |
//! | `records`, [`walk`] | records as bytes, and stepping through them |
//! | `buffers` | the caller's buffers while CUPTI has them |
//! | `corrupt` | records that are not as they should be |
//! | `clock` | CUPTI's time |
//! | `objects` | contexts, streams, graphs, and their ids |
//! | `subscriber`, `calls` | the subscribers and their callbacks |
//! | [`nvtx`] | NVTX ranges of programs that load this library for NVTX |
//! | `tracer` | recording, CUPTI's own thread, flushing |
//! | [`api`] | the functions with their C interface |
//! | `rehearsal` | every callback that was asked for, for a test of the caller's functions |
//! | `process`, `hide`, [`place()`] | the host program, the symbol table, the file |
//!
//! Where the real library's behaviour could be observed without a GPU, or its headers state it,
//! this library does the same, and the tests compare it with both. The rest was put together from
//! what others report, and is not proven: on which thread buffers are requested and returned, that
//! callbacks name functions without their version, what a second subscriber is told, the numbers
//! of hardware channels, the registers of a kernel.
//!
//! Several subscribers are emulated as the headers of 13.3 to 13.5 describe them. Nobody has seen
//! the real ones here: what older functions do beside them, and what happens to buffers of a
//! subscriber that is gone, is not known, and is refused as misuse.
//!
//! Not emulated: records of synchronisation, events and memory; user-defined records; hardware
//! trace. The callbacks that announce a node or an executable graph before
//! it exists are not made.

pub mod api;
mod buffers;
mod calls;
mod clock;
mod corrupt;
mod hide;
pub mod layout;
pub mod names;
pub mod nvtx;
mod objects;
pub mod options;
mod place;
mod process;
mod records;
mod rehearsal;
pub mod release;
pub mod result;
mod subscriber;
mod tracer;
pub mod walk;

pub use place::place;
