//! Where everything that was read goes: through the [`Pipeline`] into the file, and into the
//! capture.

use std::path::Path;
use std::time::Instant;

use cupti_sys::records::Walker;

use super::file::{RESERVE, Stopped, TraceFile};
use crate::capture::write::Encoder;
use crate::cupti::Taker;
use crate::cupti::clock::Reading;
use crate::cupti::decode::Outside;
use crate::cupti::intake::Standing;
use crate::model::time::HostNs;
use crate::pipeline::input::{Begin, Input, Level, remark};
use crate::pipeline::{CHUNK, Pipeline};
use crate::trace::names;
use crate::{fault, memory, message};

/// The percentage of the size limit above which proxy steps are left out.
const STEPS_UNTIL_PERCENT: u64 = 80;
/// This part of it is kept for hangs and signs of life: of 2 GB, enough for weeks.
const FOR_HANGS: u64 = 32;

/// The pipeline, the file and the capture.
pub(super) struct Outlet {
    pub(super) pipeline: Pipeline,
    capture: Option<Encoder>,
    pub(super) file: TraceFile,
    max_size: u64,
    pub(super) last_flush: Instant,
    /// CUPTI's last known standing.
    standing: Standing,
}

impl Outlet {
    pub(super) fn new(begin: &Begin, file: TraceFile, max_size: u64, sums_up: bool) -> Outlet {
        let mut capture = file.capture().map(|_| Encoder::new());
        if let Some(capture) = &mut capture {
            capture.begin(begin, file.compresses());
        }
        let mut pipeline = Pipeline::new(begin);
        if !sums_up {
            pipeline.without_summary();
        }
        if !file.has_trace() {
            pipeline.without_trace();
        }
        Outlet { pipeline, capture, file, max_size, last_flush: Instant::now(), standing: Standing::default() }
    }

    #[inline]
    pub(super) fn feed(&mut self, input: &Input<'_>) {
        self.pipeline.take(input);
        if let Some(capture) = &mut self.capture {
            fault::at("capture");
            capture.input(input);
        }
        self.after();
    }

    #[inline]
    fn after(&mut self) {
        if self.pipeline.is_full() || (memory::is_short() && self.pipeline.level() < Level::Ends) {
            self.flush();
        }
        if self.capture.as_ref().is_some_and(Encoder::is_full) {
            self.flush_capture();
        }
    }

    pub(super) fn draw_due(&mut self) {
        while self.pipeline.has_due() {
            self.feed(&Input::Draw);
        }
    }

    /// Draws the end of the recording, however full the file and memory are.
    pub(super) fn end(&mut self, input: &Input<'_>) {
        self.pipeline.take(input);
        if let Some(capture) = &mut self.capture {
            capture.input(input);
        }
        self.write();
        self.flush_capture();
    }

    fn write(&mut self) {
        let mut chunk = self.pipeline.chunk();
        // It may wait for the disk, and its capacity can be twice its size.
        chunk.shrink_to_fit();
        self.file.write(chunk);
    }

    /// Hands the packets to the file, and checks how full the file is.
    pub(super) fn flush(&mut self) {
        self.last_flush = Instant::now();
        self.write();
        let (file, max) = (&self.file, self.max_size);
        let reserve = RESERVE.min(max / 8);
        // Until the next flush, the file grows by a chunk at most.
        let with_chunks = |count: u64| file.size_with(count * CHUNK as u64) + reserve;
        let level = if memory::is_short() || file.stopped() != Stopped::No || with_chunks(1) > max {
            Level::Ends
        } else if with_chunks(2) + max / FOR_HANGS > max {
            Level::Hangs
        } else if file.size_with(0) > max / 100 * STEPS_UNTIL_PERCENT {
            Level::NoSteps
        } else {
            Level::All
        };
        if level > self.pipeline.level() {
            self.lower(level);
        }
        self.flush_capture();
    }

    /// Draws less from here on, and says why.
    fn lower(&mut self, level: Level) {
        let limit = names::size(self.max_size);
        let why = match (level, self.file.stopped()) {
            (Level::Ends, Stopped::No) if memory::is_short() => {
                format!(
                    "all of its memory (NCCLSCOPE_HEAP_SIZE, {}) is in use: from here on only the ends of open slices are \
                     written",
                    names::size(memory::bytes() as u64)
                )
            }
            (Level::Ends, Stopped::No) => {
                format!("NCCLSCOPE_MAX_SIZE ({limit}) reached: from here on only the ends of open slices are written")
            }
            (Level::Ends, _) => self.file.error(),
            (Level::Hangs, _) => format!(
                "NCCLSCOPE_MAX_SIZE ({limit}) reached: from here on it only shows what hangs, and every 10 s how far \
                 each communicator has come"
            ),
            _ => format!("80 % of NCCLSCOPE_MAX_SIZE ({limit}) reached: proxy steps are left out from here on"),
        };
        // The writing thread has already reported why it stopped.
        if self.file.stopped() == Stopped::No {
            message::line(&format!("{}: {why}", self.file.path().display()));
        }
        let input = Input::Level { level, why: &why };
        self.pipeline.take(&input);
        if let Some(capture) = &mut self.capture {
            capture.input(&input);
        }
    }

    /// Hands over what was captured. The end of the capture does not end the recording.
    fn flush_capture(&mut self) {
        let Some(capture) = &mut self.capture else { return };
        self.file.write_capture(capture.take());
        if let Some(reason) = self.file.capture_ended() {
            self.capture = None;
            self.pipeline.remark(remark::CAPTURE_ENDED, &reason);
        }
    }

    /// Where the traces of the job are, for a command.
    pub(super) fn folder(&self) -> String {
        names::quoted(self.file.path().parent().unwrap_or(Path::new(".")))
    }

    /// Prints the pipeline's messages.
    pub(super) fn say(&mut self) {
        self.pipeline.take_said().iter().for_each(|text| message::line(text));
    }
}

impl Taker for Outlet {
    fn reading(&mut self, reading: &Reading) {
        self.feed(&Input::Reading(*reading));
    }

    fn covers(&self, until: HostNs) -> bool {
        self.pipeline.covers(until)
    }

    fn buffer(&mut self, now: HostNs, bytes: &[u8], walker: impl Walker, outside: &mut impl Outside) {
        match &mut self.capture {
            None => self.pipeline.buffer(now, bytes, walker, outside),
            Some(capture) => capture.buffer(now, bytes, walker, outside, |walker, outside| {
                self.pipeline.buffer(now, bytes, walker, outside);
            }),
        }
        self.after();
        self.draw_due();
    }

    fn gives_up(&mut self, time: HostNs, gives_up: bool) {
        let text = if gives_up { "" } else { "no longer" };
        self.feed(&Input::Note { time, name: remark::GIVES_UP, text });
    }

    fn stands(&mut self, standing: Standing) {
        if standing != self.standing {
            self.standing = standing;
            self.feed(&Input::Standing(standing));
        }
    }
}
