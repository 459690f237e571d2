//! The tests that use the built library and the command line from outside, in one program: it is
//! linked once, and the tests wait in parallel. `load.rs` and `mutated.rs` are programs of their
//! own, because one needs the whole machine and the other measures its memory.

mod answers;
mod chain;
mod command;
mod comparing;
mod cupti;
mod cupti_absent;
mod cut;
mod files;
mod foreign;
mod hard_cases;
mod hostile;
mod json;
mod kineto;
mod lifecycle;
mod merging;
mod messages;
mod otlp;
mod quiet;
mod rccl;
mod real;
mod replaying;
mod reporting;
mod restarts;
mod scenarios;
mod scrubbing;
mod summing;
mod synthetic;
mod tables;
mod viewer;

#[path = "support/tests.rs"]
mod scripted_host;
