//! The collector: one thread that drains the rings in time order and draws the records.
//!
//! Records stay in their rings until nothing earlier can arrive (`WINDOW`), so holding them back
//! needs no extra memory. A host time can be converted only once a later clock reading exists; each
//! pass takes that reading first.
//!
//! This is the I/O around the pipeline: every clock, ring, buffer and limit that the pipeline
//! depends on is read here and passed on as an [`Input`].

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ahead::Ahead;
use super::endpoint::Endpoint;
use super::file::{Stopped, TraceFile};
use super::handle::{Handle, RequestState, Requests};
use super::order::{self, Source};
use super::outlet::Outlet;
use super::watch::Watch;
use crate::clock::host;
use crate::cupti;
use crate::model::event::MAX_WORDS;
use crate::model::ids::RingId;
use crate::model::time::Ticks;
use crate::pipeline::input::{Begin, Ending, Input, remark};
use crate::record::recorder;
use crate::record::ring::{Reader, Rings};
use crate::trace::names;
use crate::trace::not_done::Wish;
use crate::{fault, memory, message, sys, threads};

/// The thread's name; another copy of this library recognises by it that this one records.
pub(crate) const THREAD: &CStr = c"ncclscope";

/// How long a record waits in its ring for an earlier one from another thread. A thread publishes
/// within nanoseconds of reading the clock, unless the kernel preempts it in between.
const WINDOW: Duration = Duration::from_millis(50);
/// The window when the pool runs low: room matters more than order.
const SHORT_WINDOW: Duration = Duration::from_millis(1);
/// The pool runs low below this free part, in percent.
const LOW_POOL: u32 = 50;
/// Time between passes while there are records, and while there are none.
const BUSY_PERIOD: Duration = Duration::from_millis(10);
const IDLE_PERIOD: Duration = Duration::from_millis(100);
/// The same without a trace: nobody looks at it meanwhile, and records are cheapest in large
/// batches.
const CALM_PERIOD: Duration = Duration::from_millis(250);
/// How much earlier than due packets are handed to the file right after a sign of life: then the
/// file is as new as the sign, and shows best when its process was killed.
const EARLY: Duration = Duration::from_millis(500);
/// How often the thread checks meanwhile that there is still room: this free part of the pool, in
/// percent.
const LOOK_PERIOD: Duration = Duration::from_millis(50);
const ROOM: u32 = 75;

/// How long the file is waited for.
const FLUSH_WAIT: Duration = Duration::from_secs(10);

/// What the collector needs.
pub struct Collector {
    /// What the recording starts with.
    pub begin: Begin,
    /// The rings it drains.
    pub rings: &'static Rings,
    /// CUPTI's records; `None` if CUPTI was not available.
    pub kernels: Option<cupti::Reader>,
    /// Where packets are written.
    pub file: TraceFile,
    /// Most bytes that the file may have.
    pub max_size: u64,
    /// Packets are handed to the file at least this often.
    pub flush_period: Duration,
    /// Whether this process says on stderr at the end what it saw of the job.
    pub speaks: bool,
    /// Whether it says which operation stands still.
    pub says_standstill: bool,
    /// Where the summary goes.
    pub summary: Wanted,
}

/// Where the summary goes, and the metrics that are made of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Into a file beside the trace.
    pub file: bool,
    /// As comma-separated values.
    pub csv: bool,
    /// A few lines of it to stderr.
    pub stderr: bool,
    /// How often while the job runs; `None`: only at its end.
    pub period: Option<Duration>,
    /// The file for metrics.
    pub metrics: Option<PathBuf>,
    /// The port of the loopback interface that serves metrics.
    pub port: Option<u16>,
    /// How often metrics are made.
    pub metrics_period: Duration,
}

impl Wanted {
    /// Whether neither summary nor metrics are wanted.
    fn is_nothing(&self) -> bool {
        !self.file && !self.stderr && self.metrics.is_none() && self.port.is_none()
    }
}

struct RingSource {
    reader: Reader,
    rings: &'static Rings,
}

impl Source for RingSource {
    fn peek(&mut self) -> Option<Ticks> {
        self.reader.peek(self.rings).map(|(_, ticks)| Ticks(ticks))
    }
}

/// The thread's own state.
struct Run {
    out: Outlet,
    rings: &'static Rings,
    kernels: Option<cupti::Reader>,
    flush_period: Duration,
    sources: Vec<RingSource>,
    ahead: Ahead,
    /// The ring whose newest record is looked at next.
    looked_at: usize,
    dropped: u64,
    /// Launches and changes of graphs for which there was no room.
    lost: [u64; 2],
    /// The smallest part of the pool of rings that was free, in percent.
    least_free: u32,
    has_brackets: bool,
    watch: Watch,
    /// The last pass drew a sign of life.
    has_sign: bool,
    speaks: bool,
    says_standstill: bool,
    summary: Wanted,
    /// When the summary and the metrics were last made.
    summed_up: Instant,
    measured: Option<Instant>,
    endpoint: Option<Endpoint>,
}

impl Collector {
    /// Starts the collector's thread.
    ///
    /// # Errors
    ///
    /// The operating system's reason if it refuses a thread.
    pub fn start(self) -> std::io::Result<Handle> {
        let requests = Arc::new(Requests::default());
        let theirs = Arc::clone(&requests);
        let disk = self.file.disk();
        let body = move || {
            let run = AssertUnwindSafe(|| {
                theirs.lock().started = true;
                theirs.done.notify_all();
                Run::new(self).run(&theirs);
            });
            if catch_unwind(run).is_err() {
                recorder::switch_off();
                fault::say(format_args!("ended the recording; the trace file keeps everything up to here"));
            }
            let mut state = theirs.lock();
            state.ended = true;
            theirs.done.notify_all();
        };
        threads::start(THREAD, body)?;
        Ok(Handle::new(requests, disk))
    }
}

impl Run {
    fn new(part: Collector) -> Run {
        let Collector { begin, rings, kernels, file, max_size, flush_period, speaks, says_standstill, summary } = part;
        let endpoint = summary.port.and_then(|port| {
            let say = |error| message::line(&format!("no metrics at port {port} of 127.0.0.1: {error}"));
            Endpoint::open(port).map_err(say).ok()
        });
        let mut run = Run {
            ahead: Ahead::new(begin.first),
            looked_at: 0,
            out: Outlet::new(&begin, file, max_size, !summary.is_nothing()),
            rings,
            kernels: None,
            flush_period,
            sources: Vec::new(),
            dropped: 0,
            lost: [0; 2],
            least_free: 100,
            has_brackets: false,
            watch: Watch::default(),
            has_sign: false,
            speaks,
            says_standstill,
            summary,
            summed_up: Instant::now(),
            measured: None,
            endpoint,
        };
        run.attach(kernels);
        run
    }

    /// Takes over CUPTI's records, if there were none before.
    fn attach(&mut self, kernels: Option<cupti::Reader>) {
        if let Some(kernels) = kernels {
            let kernels = self.kernels.get_or_insert(kernels);
            self.out.feed(&Input::Kernels(kernels.source()));
        }
    }

    fn run(mut self, requests: &Requests) {
        let mut period = BUSY_PERIOD;
        loop {
            let (asked, take_asked, close, notes, given_up, kernels) = {
                let mut state = self.rest(requests, period);
                let notes = std::mem::take(&mut state.notes);
                // Under the lock: CUPTI is taken again, and noted so, only after it was given up.
                let given_up = self.kernels.as_ref().map(cupti::Reader::take_given_up).unwrap_or_default();
                (state.asked, state.take_asked, state.close, notes, given_up, state.kernels.take())
            };
            self.attach(kernels);
            let mut given_up = given_up.into_iter().flatten().peekable();
            for (time, name, text) in &notes {
                while let Some(given_up) = given_up.next_if(|it| it.by <= *time) {
                    self.given_up(&given_up);
                }
                message::detail(format_args!("{name}: {text}"));
                self.out.feed(&Input::Note { time: *time, name, text });
            }
            given_up.for_each(|given_up| self.given_up(&given_up));
            let urgent = close || asked > requests.lock().carried_out;
            let window = match () {
                () if urgent => Duration::ZERO,
                () if self.rings.free_percent() < LOW_POOL => SHORT_WINDOW,
                () => WINDOW,
            };
            let drained = self.pass(window);
            if urgent && self.out.pipeline.waits_for_clock() {
                std::thread::sleep(BUSY_PERIOD);
                self.pass(window);
            }
            period = match drained {
                _ if !self.out.file.has_trace() && self.rings.free_percent() >= ROOM => CALM_PERIOD,
                false => IDLE_PERIOD,
                true => BUSY_PERIOD,
            };
            requests.lock().taken = take_asked;
            requests.done.notify_all();
            if close {
                return self.finish();
            }
            self.tell();
            let early = if std::mem::take(&mut self.has_sign) { EARLY } else { Duration::ZERO };
            if urgent || self.out.last_flush.elapsed() + early >= self.flush_period {
                self.out.feed(&Input::Flush);
                self.out.flush();
            }
            if urgent {
                self.out.file.flush(FLUSH_WAIT);
                requests.lock().carried_out = asked;
                requests.done.notify_all();
            }
        }
    }

    fn given_up(&mut self, given_up: &cupti::GivenUp) {
        let text = given_up.to_string();
        message::detail(format_args!("{}: {text}", remark::RELEASED));
        self.out.feed(&Input::Note { time: given_up.since, name: remark::RELEASED, text: &text });
        self.out.feed(&Input::Note { time: given_up.by, name: remark::GIVEN_UP, text: "" });
    }

    /// Waits until something is asked for, or for this long.
    fn rest<'r>(&self, requests: &'r Requests, period: Duration) -> MutexGuard<'r, RequestState> {
        let wanted =
            |state: &RequestState| state.close || state.asked > state.carried_out || state.take_asked > state.taken;
        let (mut state, mut left) = (requests.lock(), period);
        loop {
            let look = if period > IDLE_PERIOD { left.min(LOOK_PERIOD) } else { period };
            (state, _) = requests
                .wake
                .wait_timeout_while(state, look, |state| !wanted(state))
                .unwrap_or_else(PoisonError::into_inner);
            left = left.saturating_sub(look);
            if left.is_zero() || wanted(&state) || self.rings.free_percent() < ROOM {
                return state;
            }
        }
    }

    /// Draws what is older than `window`. True if there was anything.
    fn pass(&mut self, window: Duration) -> bool {
        fault::at("pass");
        let rings = self.rings;
        self.least_free = self.least_free.min(rings.free_percent());
        let before = self.out.pipeline.calls();
        let known = rings.dropped();
        let pair = self.ahead.reads(host::pair());
        self.out.feed(&Input::Pass { pair, window_ns: window.as_nanos() as u64 });
        // What was lost is known before the records around it are taken. A record that is lost now
        // may be later than this pass, so the next one says it again.
        let dropped = rings.dropped();
        if dropped > self.dropped {
            self.out.feed(&Input::Dropped(dropped));
        }
        self.dropped = known;
        let lost = [recorder::lost_launches(), recorder::lost_changes()];
        for (place, name) in [remark::LAUNCH_LOST, remark::CHANGE_LOST].into_iter().enumerate() {
            if lost[place] > self.lost[place] {
                self.out.feed(&Input::Note { time: self.out.pipeline.now(), name, text: "" });
            }
        }
        self.lost = lost;
        for slot in self.sources.len() as u32..rings.used_slots() {
            self.sources.push(RingSource { reader: Reader::new(slot), rings });
        }
        let mut buffer = [0; MAX_WORDS];
        order::merge(&mut self.sources, self.out.pipeline.due(), |source| {
            let ring = RingId(source.reader.slot());
            let words = source.reader.read(rings, &mut buffer);
            fault::at("record");
            self.out.feed(&Input::Record { ring, words });
        });
        self.look_ahead();
        self.take_kernels(false);
        self.out.feed(&Input::Advance);
        let now = self.out.pipeline.now();
        if self.watch.are_waits_due(now) {
            let waits = self.watch.cpu_waits(now, &self.out.pipeline.progress_threads());
            self.out.feed(&Input::CpuWaits(&waits));
        }
        if self.watch.is_due(now) {
            let inits = self.out.pipeline.take_inits();
            let shares = self.watch.look(now, &self.out.pipeline.progress_threads(), &inits);
            self.out.feed(&Input::Shares(&shares));
            self.has_sign = true;
            if let (Some(wish), Some(reader)) = (self.out.pipeline.take_wish(), &self.kernels) {
                match wish {
                    Wish::Force => reader.force(),
                    Wish::Leave if reader.leave() => {}
                    Wish::Leave => self.out.feed(&Input::Note { time: now, name: remark::NOT_FORCED, text: "" }),
                }
            }
            if self.says_standstill
                && let Some(standing) = self.out.pipeline.take_standing()
            {
                message::line(&format!("{standing}; which rank is missing: ncclscope info {}", self.out.folder()));
            }
        }
        fault::confess();
        self.out.say();
        self.out.pipeline.calls() > before
    }

    /// Looks whether the newest record of a ring, of another in each pass, is from the future.
    fn look_ahead(&mut self) {
        self.looked_at = if self.looked_at + 1 < self.sources.len() { self.looked_at + 1 } else { 0 };
        let newest = self.sources.get(self.looked_at).and_then(|source| source.reader.newest(source.rings));
        if let Some(newest) = newest
            && let Some(ns) = self.ahead.sees(Ticks(newest), host::now)
        {
            let text = format!(
                "calls had times up to {} later than when they were read: the clocks of this machine's processors \
                 differ by at least as much, and so may the times of two threads",
                names::duration(ns as f64)
            );
            message::line(&text);
            self.out.feed(&Input::Note { time: self.out.pipeline.now(), name: remark::APART, text: &text });
        }
    }

    /// Takes CUPTI's records, and draws those that are old enough; at the end, all of them.
    fn take_kernels(&mut self, all: bool) {
        let Some(reader) = &mut self.kernels else { return };
        if !self.has_brackets && recorder::has_brackets() {
            self.has_brackets = true;
            self.out.feed(&Input::ExternalIds);
        }
        fault::at("decode");
        let forced = reader.take_forced();
        if all {
            reader.finish(&mut self.out);
        } else {
            reader.drain(&mut self.out);
        }
        if let Some(time) = forced {
            let text = "no kernel had ended for seconds; those still running have no record";
            self.out.feed(&Input::Note { time, name: remark::FORCED, text });
        }
        let now = self.out.pipeline.now();
        match self.kernels.as_ref().and_then(cupti::Reader::take_change) {
            Some(cupti::Change::Silent(silence)) => {
                self.out.feed(&Input::Note { time: silence.since, name: remark::SILENT, text: &silence.to_string() });
            }
            Some(cupti::Change::Heard) => {
                let text = "it returns records again, though ncclscope_acquire was not called";
                self.out.feed(&Input::Note { time: now, name: remark::HEARD, text });
            }
            None => {}
        }
        self.out.feed(&Input::Due { all });
        self.out.draw_due();
    }

    fn finish(mut self) {
        fault::at("end");
        self.take_kernels(true);
        let unheard = message::unheard();
        if unheard > 0 {
            let text = format!(
                "{unheard} lines for stderr were lost: nobody was reading it, or it now refers to another file"
            );
            self.out.feed(&Input::Note { time: self.out.pipeline.now(), name: remark::MESSAGES_LOST, text: &text });
        }
        let text = self.cost();
        self.out.feed(&Input::Note { time: self.out.pipeline.now(), name: remark::COST, text: &text });
        self.out.end(&Input::End(Ending {
            dropped: self.rings.dropped(),
            panics: recorder::panics(),
            lost_launches: recorder::lost_launches(),
        }));
        self.out.say();
        let (calls, dropped) = (self.out.pipeline.calls(), self.rings.dropped());
        let path = self.out.file.path().display();
        message::detail(format_args!("recording ended: {calls} calls from NCCL, {dropped} dropped; {path}"));
        self.last_words();
        self.out.file.close();
    }

    /// The memory that the recording used, as far as this thread saw it, and the processor time of
    /// its threads.
    fn cost(&self) -> String {
        let of = |bytes: usize| names::size(bytes as u64);
        let (rings, heap) = (100 - self.least_free, memory::most_held());
        format!(
            "at most {rings} % of {} for records, {} of {} for everything else; {} of processor time",
            of(self.rings.bytes()),
            of(heap),
            of(memory::bytes()),
            names::duration((sys::own_cpu_ns() + self.out.file.cpu_ns()) as f64),
        )
    }

    /// Makes the metrics, and the summary of a running job, if it is time.
    fn tell(&mut self) {
        let Wanted { period, metrics, metrics_period, .. } = &self.summary;
        if (metrics.is_some() || self.endpoint.is_some())
            && self.measured.is_none_or(|measured| measured.elapsed() >= *metrics_period)
        {
            self.measured = Some(Instant::now());
            fault::at("metrics");
            let text = self.out.pipeline.summary().metrics(Some(&self.out.pipeline.live()));
            if let Some(endpoint) = &self.endpoint {
                endpoint.serve(&text);
            }
            if let Some(path) = metrics {
                self.out.file.write_metrics(path, text);
            }
        }
        if period.is_some_and(|period| self.summed_up.elapsed() >= period) {
            self.summed_up = Instant::now();
            self.sum_up();
        }
    }

    /// The summary, into a file and in a few lines.
    fn sum_up(&self) {
        fault::at("summary");
        let Wanted { file, csv, stderr, .. } = self.summary;
        let summary = self.out.pipeline.summary();
        if file {
            let mut report = summary.report();
            if !self.out.file.has_trace() {
                // With a trace, ncclscope diagnose says more.
                report.add_gpus(summary, &self.out.pipeline.live().gpus);
            }
            self.out.file.write_summary(if csv { report.csv() } else { report.text() }, csv);
        }
        let mut block = if stderr { summary.block() } else { Vec::new() };
        if !block.is_empty() {
            if file && self.out.file.stopped() == Stopped::No {
                // Without a trace, its name is known once it is written.
                if !self.out.file.has_trace() {
                    self.out.file.flush(FLUSH_WAIT);
                }
                block.push(format!("  all of it: {}", self.out.file.summary_path(csv).display()));
            }
            message::block(&block);
        }
    }

    /// The last messages of the recording: the summary, and what the process alone can say about
    /// what holds it up. Together they are at most 20 lines.
    fn last_words(&self) {
        self.sum_up();
        if let Some(path) = &self.summary.metrics {
            self.out.file.remove_metrics(path);
        }
        if self.speaks
            && let Some(gist) = self.out.pipeline.gist()
        {
            let next = if self.out.file.has_trace() { "diagnose" } else { "summary" };
            message::remark(&format!("seen from one rank, {gist}; all ranks: ncclscope {next} {}", self.out.folder()));
        }
    }
}
