//! All that the pipeline is told by the world, as plain values: what a capture holds, and what a replay tells it again.

use crate::clock::align::Pair;
use crate::cupti::clock::Reading;
use crate::cupti::intake::{Source, Standing};
use crate::model::ids::{ProcessTag, RingId};
use crate::model::time::HostNs;
use crate::trace::tracks::{ProcessInfo, Stages};
pub use crate::trace::words::remark;
use crate::trace::writer::Clocks;

/// What a recording knows when it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Begin {
    /// The process's mark.
    pub tag: ProcessTag,
    /// Its clocks.
    pub clocks: Clocks,
    /// Its names.
    pub process: ProcessInfo,
    /// How kernels are drawn as render stages, where they are.
    pub stages: Option<Stages>,
    /// What was wrong with the settings, one sentence each.
    pub complaints: Vec<String>,
    /// Facts for the viewer's overview page: names and values.
    pub attributes: Vec<(String, String)>,
    /// The first words: versions, settings, and what became of CUPTI.
    pub first_words: String,
    /// Where a capture is made, its file's name.
    pub capture: Option<String>,
    /// The first reading of the recorder's clock and the host's.
    pub first: Pair,
}

/// One thing that the pipeline is told. CUPTI's buffers have a call of their own, [`super::Pipeline::buffer`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Input<'a> {
    /// A remark, at its time.
    Note {
        /// When.
        time: HostNs,
        /// What about, in two or three words.
        name: &'a str,
        /// The sentence.
        text: &'a str,
    },
    /// CUPTI is ours, and kernels will come from there.
    Kernels(Source),
    /// Launches are named by external ids from now on.
    ExternalIds,
    /// A pass begins: a reading of both clocks, and how long records wait for earlier ones in it, in ns.
    Pass {
        /// The reading.
        pair: Pair,
        /// The waiting time.
        window_ns: u64,
    },
    /// The next record of all rings, by time.
    Record {
        /// Whose it is.
        ring: RingId,
        /// Its words.
        words: &'a [u64],
    },
    /// A reading of CUPTI's clock, or only of the host's two.
    Reading(Reading),
    /// What CUPTI lost so far.
    Standing(Standing),
    /// All that CUPTI has returned is decoded: what is old enough may be drawn, or, at the end, everything.
    Due {
        /// Whether it is the end.
        all: bool,
    },
    /// As much is drawn of that as makes a chunk.
    Draw,
    /// Nothing more comes of the time up to this pass's.
    Advance,
    /// What threads took of a processor.
    Shares(&'a [Share]),
    /// Records that found no room so far, of all threads.
    Dropped(u64),
    /// The file is nearly full, or full: less is drawn from now on.
    Level {
        /// How much.
        level: Level,
        /// Why, in a sentence.
        why: &'a str,
    },
    /// It is time to write what is there.
    Flush,
    /// The recording ends.
    End(Ending),
}

/// What a thread took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The system's id.
    pub tid: i32,
    /// Its name.
    pub name: Box<str>,
    /// Of one processor, since the reading before.
    pub percent: i64,
}

/// How much is still drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Everything.
    All,
    /// The file is nearly full: the proxy's steps are left out.
    NoSteps,
    /// Only what is open is ended.
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
