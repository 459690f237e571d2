//! Everything that the pipeline is told from outside, as plain values: a capture holds these, and a
//! replay passes them in again.

use crate::clock::align::Pair;
use crate::cupti::clock::Reading;
use crate::cupti::intake::{Source, Standing};
use crate::model::doing::{CpuWait, Doing};
use crate::model::ids::{ProcessTag, RingId};
use crate::model::selection::Selection;
use crate::model::time::HostNs;
use crate::trace::tracks::{ProcessInfo, Stages};
pub use crate::trace::words::remark;
use crate::trace::writer::Clocks;

/// What is known when a recording begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Begin {
    /// The process's tag.
    pub tag: ProcessTag,
    /// Its clocks.
    pub clocks: Clocks,
    /// Its names.
    pub process: ProcessInfo,
    /// How kernels are drawn as render stages, if at all.
    pub stages: Option<Stages>,
    /// What was wrong with the settings, one sentence each.
    pub complaints: Vec<String>,
    /// Facts for the viewer's overview page: names and values.
    pub attributes: Vec<(String, String)>,
    /// The text of the first remark: versions, settings, and the state of CUPTI.
    pub first_words: String,
    /// The name of the capture file, if one is made.
    pub capture: Option<String>,
    /// The first reading of the recorder's clock and the host's.
    pub first: Pair,
    /// Which part of it is drawn.
    pub selection: Selection,
}

/// One input of the pipeline. CUPTI's buffers have a call of their own,
/// [`super::Pipeline::buffer`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Input<'a> {
    /// A remark, at its time.
    Note {
        /// When.
        time: HostNs,
        /// Its subject, in two or three words.
        name: &'a str,
        /// The sentence.
        text: &'a str,
    },
    /// We hold CUPTI, and it will report kernels.
    Kernels(Source),
    /// From now on external ids name the launches.
    ExternalIds,
    /// A pass begins: a reading of both clocks, and how long records wait for earlier ones in this
    /// pass, in ns.
    Pass {
        /// The reading.
        pair: Pair,
        /// The waiting time.
        window_ns: u64,
    },
    /// The next record of all rings, in order of time.
    Record {
        /// The ring it comes from.
        ring: RingId,
        /// Its words.
        words: &'a [u64],
    },
    /// A reading of CUPTI's clock, or only of the host's two.
    Reading(Reading),
    /// What CUPTI has lost so far.
    Standing(Standing),
    /// Everything that CUPTI has returned is decoded. Activities that are old enough may be drawn;
    /// at the end, all of them.
    Due {
        /// Whether it is the end.
        all: bool,
    },
    /// Draw some of these, at most one chunk.
    Draw,
    /// No further record up to the time of this pass will come.
    Advance,
    /// The processor time of threads.
    Shares(&'a [Share]),
    /// For how long progress threads waited for a processor.
    CpuWaits(&'a [CpuWait]),
    /// How many records of all threads found no room so far.
    Dropped(u64),
    /// The file is nearly full, or full: less is drawn from now on.
    Level {
        /// How much.
        level: Level,
        /// Why, in a sentence.
        why: &'a str,
    },
    /// It is time to write what is pending.
    Flush,
    /// The recording ends.
    End(Ending),
}

/// The processor time of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The system's id.
    pub tid: i32,
    /// Its name.
    pub name: Box<str>,
    /// Percent of one processor since the previous reading.
    pub percent: i64,
    /// What it does now.
    pub doing: Doing,
    /// The processor that it ran on last.
    pub processor: Option<u32>,
}

/// How much is still drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Everything.
    All,
    /// The file is nearly full: the proxy's steps are left out.
    NoSteps,
    /// The file is full: open slices are ended. Everything is still followed, and what hangs is
    /// drawn, with regular signs of life.
    Hangs,
    /// Only open slices are ended.
    Ends,
}

/// The recorder's own figures at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// Records that found no room.
    pub dropped: u64,
    /// Panics caught in callbacks.
    pub panics: u64,
    /// Launches for which there was no room.
    pub lost_launches: u64,
}
