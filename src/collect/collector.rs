//! The collector: one thread that drains the rings in time order and draws the records.
//!
//! Records stay in their rings until nothing earlier can arrive (`WINDOW`), so holding them back
//! needs no extra memory. A host time can be converted only once a later clock reading exists; each
//! pass takes that reading first.
//!
//! This is the I/O around the [`Pipeline`]: every clock, ring, buffer and limit that the pipeline
//! depends on is read here and passed on as an [`Input`], also to the capture if there is one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cupti_sys::records::Walker;

use super::endpoint::Endpoint;
use super::file::{Disk, RESERVE, Stopped, TraceFile};
use super::order::{self, Source};
use super::watch::Watch;
use crate::capture::write::Encoder;
use crate::clock::host;
use crate::cupti::clock::Reading;
use crate::cupti::decode::Outside;
use crate::cupti::intake::Standing;
use crate::cupti::{self, Taker};
use crate::model::event::MAX_WORDS;
use crate::model::ids::RingId;
use crate::model::time::{HostNs, Ticks};
use crate::pipeline::input::{Begin, Ending, Input, Level, remark};
use crate::pipeline::{CHUNK, Pipeline};
use crate::record::recorder;
use crate::record::ring::{Reader, Rings};
use crate::trace::names;
use crate::{fault, memory, message, sys};

/// The thread's name; another copy of this library recognises by it that this one records.
pub(crate) const THREAD: &str = "ncclscope";

/// How long to wait for the thread to start.
const START_WAIT: Duration = Duration::from_secs(1);

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
/// How often the thread checks meanwhile that there is still room: this free part of the pool, in
/// percent.
const LOOK_PERIOD: Duration = Duration::from_millis(50);
const ROOM: u32 = 75;
/// The percentage of the size limit above which proxy steps are left out.
const STEPS_UNTIL_PERCENT: u64 = 80;

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

/// The running collector, as the rest of the process sees it.
pub struct Handle {
    requests: Arc<Requests>,
    disk: Disk,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Requests {
    state: Mutex<RequestState>,
    wake: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct RequestState {
    /// Calls of [`Handle::sync`], and how many of them were carried out. A caller that waited in
    /// vain has said so, and until its call is carried out nobody waits.
    asked: u64,
    carried_out: u64,
    in_vain: u64,
    /// The same for [`Handle::take_kernels`].
    take_asked: u64,
    taken: u64,
    close: bool,
    started: bool,
    ended: bool,
    /// Remarks to draw, each at its own time.
    notes: Vec<(HostNs, &'static str, String)>,
    /// CUPTI's records, if CUPTI was taken after the recording had started.
    kernels: Option<cupti::Reader>,
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
    dropped: u64,
    /// The smallest part of the pool of rings that was free, in percent.
    least_free: u32,
    has_brackets: bool,
    watch: Watch,
    speaks: bool,
    says_standstill: bool,
    summary: Wanted,
    /// When the summary and the metrics were last made.
    summed_up: Instant,
    measured: Option<Instant>,
    endpoint: Option<Endpoint>,
}

/// Where everything that was read goes: through the pipeline into the file, and into the capture.
struct Outlet {
    pipeline: Pipeline,
    capture: Option<Encoder>,
    file: TraceFile,
    max_size: u64,
    last_flush: Instant,
    /// CUPTI's last known standing.
    standing: Standing,
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
                memory::on_our_thread(|| {
                    theirs.lock().started = true;
                    theirs.done.notify_all();
                    Run::new(self).run(&theirs);
                });
            });
            if catch_unwind(run).is_err() {
                recorder::switch_off();
                fault::say(format_args!("ended the recording; the trace file keeps everything up to here"));
            }
            let mut state = theirs.lock();
            state.ended = true;
            theirs.done.notify_all();
        };
        let thread = sys::without_signals(|| std::thread::Builder::new().name(THREAD.into()).spawn(body))?;
        let handle = Handle { requests, disk, thread: Some(thread) };
        // By then it has its name, and all that it needs from libc.
        handle.wait(handle.requests.lock(), START_WAIT, |state| state.started);
        Ok(handle)
    }
}

impl Handle {
    /// Writes everything recorded so far to the file, and waits at most this long.
    pub fn sync(&self, limit: Duration) {
        let mut state = self.requests.lock();
        state.asked += 1;
        let asked = state.asked;
        self.requests.wake.notify_all();
        let limit = if state.is_late() { Duration::ZERO } else { self.disk.patience(limit) };
        if !self.wait(state, limit, |state| state.carried_out >= asked) && !self.disk.accuse() {
            self.accuse(asked, limit);
        }
    }

    /// Says that the thread does not answer, unless that is known.
    fn accuse(&self, asked: u64, waited: Duration) {
        let mut state = self.requests.lock();
        if state.carried_out < asked && !state.is_late() && !memory::is_over() {
            state.in_vain = asked;
            drop(state);
            message::formatted(format_args!(
                "the recording does not keep up: it has not answered for {} s. The job does not wait for it; records \
                 that find no room are dropped and counted",
                waited.as_secs(),
            ));
        }
    }

    /// Decodes what CUPTI has returned so far, and waits at most this long. True if that was
    /// enough. The kernels are drawn when their time comes.
    pub fn take_kernels(&self, limit: Duration) -> bool {
        let mut state = self.requests.lock();
        state.take_asked += 1;
        let asked = state.take_asked;
        self.requests.wake.notify_all();
        self.wait(state, limit, |state| state.taken >= asked)
    }

    /// Ends the recording and closes the file, and waits at most this long.
    pub fn close(&mut self, limit: Duration) {
        let mut state = self.requests.lock();
        state.close = true;
        self.requests.wake.notify_all();
        let ended = self.wait(state, self.disk.patience(limit), |_| false);
        if !ended {
            self.disk.accuse();
        } else if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Draws a remark at this time.
    pub fn note(&self, time: HostNs, name: &'static str, text: String) {
        let mut state = self.requests.lock();
        if !state.ended {
            state.notes.push((time, name, text));
        }
    }

    /// Draws the kernels of this reader from now on. For a recording that started without CUPTI.
    pub fn add_kernels(&self, kernels: cupti::Reader) {
        self.requests.lock().kernels = Some(kernels);
    }

    /// True if `done` came true in time, or the recording has ended.
    fn wait(&self, state: MutexGuard<'_, RequestState>, limit: Duration, done: impl Fn(&RequestState) -> bool) -> bool {
        if memory::is_over() {
            return state.ended;
        }
        let (state, _) = self
            .requests
            .done
            .wait_timeout_while(state, limit, |state| !state.ended && !done(state))
            .unwrap_or_else(PoisonError::into_inner);
        state.ended || done(&state)
    }
}

impl RequestState {
    /// Whether the thread is known not to answer.
    fn is_late(&self) -> bool {
        self.carried_out < self.in_vain
    }
}

impl Requests {
    fn lock(&self) -> MutexGuard<'_, RequestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Run {
    fn new(part: Collector) -> Run {
        let Collector { begin, rings, kernels, file, max_size, flush_period, speaks, says_standstill, summary } = part;
        let mut capture = file.capture().map(|_| Encoder::new());
        if let Some(capture) = &mut capture {
            capture.begin(&begin, file.compresses());
        }
        let mut pipeline = Pipeline::new(&begin);
        if summary.is_nothing() {
            pipeline.without_summary();
        }
        if !file.has_trace() {
            pipeline.without_trace();
        }
        let endpoint = summary.port.and_then(|port| {
            let say = |error| message::line(&format!("no metrics at port {port} of 127.0.0.1: {error}"));
            Endpoint::open(port).map_err(say).ok()
        });
        let standing = Standing::default();
        let mut run = Run {
            out: Outlet { pipeline, capture, file, max_size, last_flush: Instant::now(), standing },
            rings,
            kernels: None,
            flush_period,
            sources: Vec::new(),
            dropped: 0,
            least_free: 100,
            has_brackets: false,
            watch: Watch::default(),
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
            let (asked, take_asked, close, notes, kernels) = {
                let mut state = self.rest(requests, period);
                (state.asked, state.take_asked, state.close, std::mem::take(&mut state.notes), state.kernels.take())
            };
            self.attach(kernels);
            for (time, name, text) in &notes {
                message::detail(format_args!("{name}: {text}"));
                self.out.feed(&Input::Note { time: *time, name, text });
            }
            let urgent = close || asked > requests.lock().carried_out;
            let window = match () {
                () if urgent => Duration::ZERO,
                () if self.rings.free_percent() < LOW_POOL => SHORT_WINDOW,
                () => WINDOW,
            };
            let drained = self.pass(window);
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
            if urgent || self.out.last_flush.elapsed() >= self.flush_period {
                self.out.feed(&Input::Flush);
                self.out.flush();
            }
            if urgent {
                self.out.file.flush(Duration::from_secs(10));
                requests.lock().carried_out = asked;
                requests.done.notify_all();
            }
        }
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
        self.out.feed(&Input::Pass { pair: host::pair(), window_ns: window.as_nanos() as u64 });
        for slot in self.sources.len() as u32..rings.used_slots() {
            self.sources.push(RingSource { reader: Reader::new(slot), rings });
        }
        let mut buffer = [0; MAX_WORDS];
        order::merge(&mut self.sources, self.out.pipeline.limit(), |source| {
            let ring = RingId(source.reader.slot());
            let words = source.reader.read(rings, &mut buffer);
            fault::at("record");
            self.out.feed(&Input::Record { ring, words });
        });
        self.take_kernels(false);
        self.out.feed(&Input::Advance);
        let now = self.out.pipeline.now();
        if self.watch.is_due(now) {
            let inits = self.out.pipeline.take_inits();
            let shares = self.watch.look(now, &self.out.pipeline.progress_threads(), &inits);
            self.out.feed(&Input::Shares(&shares));
            if self.out.pipeline.take_wish_for_force()
                && let Some(reader) = &self.kernels
            {
                reader.force();
            }
            if self.says_standstill
                && let Some(standing) = self.out.pipeline.take_standing()
            {
                message::line(&format!("{standing}; which rank is missing: ncclscope info {}", self.out.folder()));
            }
        }
        fault::confess();
        let dropped = rings.dropped();
        if dropped > self.dropped {
            self.dropped = dropped;
            self.out.feed(&Input::Dropped(dropped));
        }
        self.out.say();
        self.out.pipeline.calls() > before
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
            let text = format!("{unheard} lines for stderr were lost: nobody reads it, or it is another file now");
            self.out.feed(&Input::Note { time: self.out.pipeline.now(), name: "messages lost", text: &text });
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
            message::remark(&format!(
                "seen from one rank, {gist}; all ranks: ncclscope diagnose {}",
                self.out.folder()
            ));
        }
    }
}

impl Outlet {
    #[inline]
    fn feed(&mut self, input: &Input<'_>) {
        self.pipeline.take(input);
        if let Some(capture) = &mut self.capture {
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

    fn draw_due(&mut self) {
        while self.pipeline.has_due() {
            self.feed(&Input::Draw);
        }
    }

    /// Draws the end of the recording, however full the file and memory are.
    fn end(&mut self, input: &Input<'_>) {
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
    fn flush(&mut self) {
        self.last_flush = Instant::now();
        self.write();
        let (file, max) = (&self.file, self.max_size);
        let reserve = RESERVE.min(max / 8);
        let level =
            if memory::is_short() || file.stopped() != Stopped::No || file.size_with(CHUNK as u64) + reserve > max {
                Level::Ends
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
            self.pipeline.remark("capture ended", &reason);
        }
    }

    /// Where the traces of the job are, for a command.
    fn folder(&self) -> String {
        names::quoted(self.file.path().parent().unwrap_or(Path::new(".")))
    }

    /// Prints the pipeline's messages.
    fn say(&mut self) {
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

    fn gives_up(&mut self, time: HostNs) {
        self.feed(&Input::Note { time, name: remark::GIVES_UP, text: "" });
    }

    fn stands(&mut self, standing: Standing) {
        if standing != self.standing {
            self.standing = standing;
            self.feed(&Input::Standing(standing));
        }
    }
}
