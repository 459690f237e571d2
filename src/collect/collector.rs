//! The collector: one thread that drains the rings in order of time and draws what it finds.
//!
//! Records stay in their rings until nothing earlier can arrive (`WINDOW`), so holding them back costs no memory
//! of its own. A host time needs the clock reading that closes its piece, which each pass takes before it begins.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::activities::Activities;
use super::file::{Stopped, TraceFile};
use super::order::{self, Source};
use super::watch::{Share, Watch};
use crate::clock::align::HostClock;
use crate::clock::host;
use crate::correlate::Correlator;
use crate::cupti;
use crate::model::activity::Activity;
use crate::model::event::{self, Body, Kind, MAX_WORDS, Record};
use crate::model::ids::RingId;
use crate::model::time::{HostNs, Ticks};
use crate::model::timeline::{ChannelChecks, Matches};
use crate::record::recorder;
use crate::record::ring::{Reader, Rings};
use crate::trace::names;
use crate::trace::tracks::{Figures, Tracks};
use crate::{message, sys};

/// How long a record waits in its ring for an earlier one from another thread. A thread publishes within
/// nanoseconds of reading the clock, unless the kernel stops it in between.
const WINDOW: Duration = Duration::from_millis(50);
/// The window when the pool runs low: order matters less than room.
const SHORT_WINDOW: Duration = Duration::from_millis(1);
/// Free part of the pool, in percent, below which it runs low.
const LOW_POOL: u32 = 50;
/// Time between passes while there is something to do, and while there is nothing.
const BUSY_PERIOD: Duration = Duration::from_millis(10);
const IDLE_PERIOD: Duration = Duration::from_millis(100);
/// Bytes of packets that make a chunk; Perfetto wants compressed packets below 512 KiB.
const CHUNK: usize = 192 << 10;
/// The part of the size limit from which steps are left out.
const STEPS_UNTIL_PERCENT: u64 = 80;
/// Room at the end of the file for the ends of open slices and the last word.
const RESERVE: u64 = 128 << 10;

/// What the collector works on.
pub struct Collector {
    /// The rings it drains.
    pub rings: &'static Rings,
    /// The host's clock, with its first reading.
    pub clock: HostClock,
    /// Joins records.
    pub correlator: Correlator,
    /// Draws entries.
    pub tracks: Tracks,
    /// What CUPTI returns; none where it could not be had.
    pub kernels: Option<cupti::Reader>,
    /// Where packets go.
    pub file: TraceFile,
    /// Most bytes the file may have.
    pub max_size: u64,
    /// How often packets are handed to the file at least.
    pub flush_period: Duration,
}

/// The running collector, as the rest of the process sees it.
pub struct Handle {
    requests: Arc<Requests>,
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
    /// Synchronisations asked for and carried out.
    asked: u64,
    carried_out: u64,
    /// The same of requests to take what CUPTI has returned.
    take_asked: u64,
    taken: u64,
    close: bool,
    ended: bool,
    /// Remarks to draw, each at its time.
    notes: Vec<(HostNs, &'static str, String)>,
    /// What CUPTI returns, where it was taken later than the recording began.
    kernels: Option<cupti::Reader>,
}

/// How much is still drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    All,
    /// The file is nearly full: the proxy's steps are left out.
    NoSteps,
    /// Only what is open is ended.
    Ends,
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

/// The collector's own state.
struct Run {
    part: Collector,
    sources: Vec<RingSource>,
    activities: Activities,
    level: Level,
    recorded: u64,
    discarded: u64,
    dropped: u64,
    clock_error_ns: u32,
    /// Activities that came when the file was full.
    undrawn: u64,
    watch: Watch,
    last_flush: Instant,
}

impl Collector {
    /// Starts the collecting thread.
    ///
    /// # Errors
    ///
    /// What the operating system says against another thread.
    pub fn start(self) -> std::io::Result<Handle> {
        let requests = Arc::new(Requests::default());
        let theirs = Arc::clone(&requests);
        let body = move || {
            let run = AssertUnwindSafe(|| Run::new(self).run(&theirs));
            if catch_unwind(run).is_err() {
                recorder::switch_off();
                message::line(
                    "an internal error ended the recording; what is in the trace file remains. Please report it",
                );
            }
            let mut state = theirs.lock();
            state.ended = true;
            theirs.done.notify_all();
        };
        let thread = sys::without_signals(|| std::thread::Builder::new().name("ncclscope".into()).spawn(body))?;
        Ok(Handle { requests, thread: Some(thread) })
    }
}

impl Handle {
    /// Has everything recorded so far written to the file, and waits for it at most this long.
    pub fn sync(&self, limit: Duration) {
        let mut state = self.requests.lock();
        state.asked += 1;
        let asked = state.asked;
        self.requests.wake.notify_all();
        self.wait(state, limit, |state| state.carried_out >= asked);
    }

    /// Has what CUPTI returned so far decoded, and waits for it at most this long; whether that was enough. It is drawn when
    /// its time comes.
    pub fn take_kernels(&self, limit: Duration) -> bool {
        let mut state = self.requests.lock();
        state.take_asked += 1;
        let asked = state.take_asked;
        self.requests.wake.notify_all();
        self.wait(state, limit, |state| state.taken >= asked);
        let state = self.requests.lock();
        state.ended || state.taken >= asked
    }

    /// Ends the recording and closes the file, and waits for it at most this long.
    pub fn close(&mut self, limit: Duration) {
        let mut state = self.requests.lock();
        state.close = true;
        self.requests.wake.notify_all();
        let ended = self.wait(state, limit, |_| false);
        if ended && let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Has a remark drawn, at this time.
    pub fn note(&self, time: HostNs, name: &'static str, text: String) {
        let mut state = self.requests.lock();
        if !state.ended {
            state.notes.push((time, name, text));
        }
    }

    /// Has the kernels drawn that come from there. For a recording that began without.
    pub fn add_kernels(&self, kernels: cupti::Reader) {
        self.requests.lock().kernels = Some(kernels);
    }

    fn wait(&self, state: MutexGuard<'_, RequestState>, limit: Duration, done: impl Fn(&RequestState) -> bool) -> bool {
        let (state, _) = self
            .requests
            .done
            .wait_timeout_while(state, limit, |state| !state.ended && !done(state))
            .unwrap_or_else(PoisonError::into_inner);
        state.ended
    }
}

impl Requests {
    fn lock(&self) -> MutexGuard<'_, RequestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Run {
    fn new(mut part: Collector) -> Run {
        if part.kernels.is_some() {
            part.correlator.expect_kernels();
        }
        Run {
            part,
            sources: Vec::new(),
            activities: Activities::default(),
            level: Level::All,
            recorded: 0,
            discarded: 0,
            dropped: 0,
            clock_error_ns: 0,
            undrawn: 0,
            watch: Watch::default(),
            last_flush: Instant::now(),
        }
    }

    fn run(mut self, requests: &Requests) {
        let mut period = BUSY_PERIOD;
        loop {
            let (asked, take_asked, close, notes) = {
                let state = requests.lock();
                let wanted = |state: &RequestState| {
                    state.close || state.asked > state.carried_out || state.take_asked > state.taken
                };
                let (mut state, _) = requests
                    .wake
                    .wait_timeout_while(state, period, |state| !wanted(state))
                    .unwrap_or_else(PoisonError::into_inner);
                if let Some(kernels) = state.kernels.take() {
                    self.part.kernels.get_or_insert(kernels);
                    self.part.correlator.expect_kernels();
                }
                (state.asked, state.take_asked, state.close, std::mem::take(&mut state.notes))
            };
            if self.level != Level::Ends {
                notes.iter().for_each(|(time, name, text)| self.part.tracks.note(*time, name, text));
            }
            let urgent = close || asked > requests.lock().carried_out;
            let window = match () {
                () if urgent => Duration::ZERO,
                () if self.part.rings.free_percent() < LOW_POOL => SHORT_WINDOW,
                () => WINDOW,
            };
            let drained = self.pass(window);
            period = if drained { BUSY_PERIOD } else { IDLE_PERIOD };
            requests.lock().taken = take_asked;
            requests.done.notify_all();
            if close {
                return self.finish();
            }
            if urgent || self.last_flush.elapsed() >= self.part.flush_period {
                self.flush();
            }
            if urgent {
                self.part.file.flush(Duration::from_secs(10));
                requests.lock().carried_out = asked;
                requests.done.notify_all();
            }
        }
    }

    /// Draws what is older than `window`. Whether there was anything.
    fn pass(&mut self, window: Duration) -> bool {
        let rings = self.part.rings;
        let until = self.calibrate(window);
        for slot in self.sources.len() as u32..rings.used_slots() {
            self.sources.push(RingSource { reader: Reader::new(slot), rings });
        }
        let mut sources = std::mem::take(&mut self.sources);
        let before = self.recorded + self.discarded;
        let mut buffer = [0; MAX_WORDS];
        order::merge(&mut sources, until, |source| {
            let ring = RingId(source.reader.slot());
            let words = source.reader.read(rings, &mut buffer);
            self.take(ring, words);
        });
        self.sources = sources;
        let (until, _) = self.part.clock.to_host(until);
        // Once more the window: a thread that was stopped after a launch hands its plan over when the kernel has long ended.
        let until = HostNs(until.0.saturating_sub(window.as_nanos() as u64));
        self.take_activities(until, |reader, sink| reader.drain(sink));
        let Collector { correlator, tracks, .. } = &mut self.part;
        correlator.advance(until, &mut |entry| tracks.draw(entry));
        let now = self.part.clock.last().host;
        let tracks = &mut self.part.tracks;
        if self.watch.is_due(now) {
            for Share { tid, name, percent } in self.watch.look(now, &tracks.progress_threads()) {
                tracks.cpu(now, tid, &name, percent);
            }
        }
        let dropped = rings.dropped();
        if dropped > self.dropped {
            if self.dropped == 0 {
                message::line(
                    "records are being dropped: NCCL's threads are faster than the recording. The trace says how \
                     many and when; NCCLSCOPE_BUFFER_SIZE gives it more room, NCCLSCOPE_PRESET=light less to do",
                );
            }
            self.dropped = dropped;
            let now = self.part.clock.last().host;
            self.part.tracks.dropped(now, dropped);
        }
        self.recorded + self.discarded > before
    }

    /// Reads both clocks, which closes a piece of the host's clock, and returns the time up to which records are
    /// taken.
    fn calibrate(&mut self, window: Duration) -> Ticks {
        let pair = host::pair();
        let before = self.part.clock.last();
        self.part.clock.add(pair);
        if window.is_zero() {
            return pair.ticks;
        }
        // Ticks of the window at the rate of the last piece: near enough for a waiting time.
        let host_ns = pair.host.since(before.host).max(1);
        let ticks = pair.ticks.0.saturating_sub(before.ticks.0);
        let window = (u128::from(ticks) * window.as_nanos() / u128::from(host_ns)) as u64;
        Ticks(pair.ticks.0.saturating_sub(window))
    }

    fn take(&mut self, ring: RingId, words: &[u64]) {
        let Some(record) = Record::decode(words) else {
            // A record of another layout cannot be in a ring of this process; if it is, it is counted.
            self.discarded += 1;
            return;
        };
        if event::is_call(words[0]) {
            if self.level != Level::All && !self.wanted(&record) {
                self.discarded += 1;
                return;
            }
            self.recorded += 1;
        }
        let (time, error) = self.part.clock.to_host(record.ticks);
        self.clock_error_ns = self.clock_error_ns.max(error);
        let Collector { correlator, tracks, .. } = &mut self.part;
        correlator.push(ring, time, &record, &mut |entry| tracks.draw(entry));
        if self.part.tracks.pending_bytes() >= CHUNK {
            self.flush();
        }
    }

    /// Takes what CUPTI returned, and draws what ended up to `until`: records of that time have been taken, and of some more.
    fn take_activities(&mut self, until: HostNs, drain: impl FnOnce(&mut cupti::Reader, &mut dyn FnMut(Activity))) {
        let Some(mut reader) = self.part.kernels.take() else { return };
        if recorder::has_brackets() {
            self.part.correlator.expect_external_ids();
        }
        drain(&mut reader, &mut |activity| {
            if let Some(activity) = self.activities.push(activity) {
                self.draw_activity(&activity);
            }
            while let Some(activity) = self.activities.pop_excess() {
                self.draw_activity(&activity);
            }
        });
        while let Some(activity) = self.activities.pop(until) {
            self.draw_activity(&activity);
        }
        let now = self.part.clock.last().host;
        for note in reader.take_notes() {
            self.part.tracks.note(now, note.name, &note.text);
        }
        self.part.kernels = Some(reader);
    }

    fn draw_activity(&mut self, activity: &Activity) {
        if self.level == Level::Ends {
            self.undrawn += u64::from(!matches!(activity, Activity::ExternalId { .. }));
            return;
        }
        let Collector { correlator, tracks, .. } = &mut self.part;
        correlator.push_activity(activity, &mut |entry| tracks.draw(entry));
        if self.part.tracks.pending_bytes() >= CHUNK {
            self.flush();
        }
    }

    /// Whether a call still goes into a file that is nearly or quite full.
    fn wanted(&self, record: &Record<'_>) -> bool {
        match record.body {
            Body::Start { event, .. } => {
                let is_step = matches!(event.kind(), Kind::ProxyStep | Kind::NetPlugin);
                self.level == Level::NoSteps && !is_step
            }
            Body::State { handle, .. } | Body::NetUpdate { handle, .. } => {
                self.level == Level::NoSteps && self.part.correlator.knows(handle)
            }
            Body::Stop { handle } => self.part.correlator.knows(handle),
            _ => true,
        }
    }

    /// Hands the packets to the file, and looks at how full it is.
    fn flush(&mut self) {
        self.last_flush = Instant::now();
        let chunk = self.part.tracks.take();
        self.part.file.write(chunk);
        let now = self.part.clock.last().host;
        let file = &self.part.file;
        let max = self.part.max_size;
        let reserve = RESERVE.min(max / 8);
        let level = if file.stopped() != Stopped::No || file.size_with(CHUNK as u64) + reserve > max {
            Level::Ends
        } else if file.size_with(0) > max / 100 * STEPS_UNTIL_PERCENT {
            Level::NoSteps
        } else {
            Level::All
        };
        if level > self.level {
            self.level = level;
            self.say_level(now, max);
        }
    }

    fn say_level(&mut self, now: HostNs, max: u64) {
        let path = self.part.file.path().display().to_string();
        let limit = names::size(max);
        let (name, note) = match (self.level, self.part.file.stopped()) {
            (Level::All, _) => return,
            (Level::NoSteps, _) => {
                let note = format!("80 % of NCCLSCOPE_MAX_SIZE ({limit}) reached: the proxy's steps are left out");
                ("steps left out", note)
            }
            (Level::Ends, Stopped::No) => {
                ("recording stopped", format!("NCCLSCOPE_MAX_SIZE ({limit}) reached: only open slices are ended"))
            }
            // Said by the writing thread.
            (Level::Ends, _) => {
                return self.part.tracks.note(now, "recording stopped", &self.part.file.error());
            }
        };
        message::line(&format!("{path}: {note}"));
        self.part.tracks.note(now, name, &note);
    }

    fn finish(mut self) {
        self.take_activities(HostNs(u64::MAX), |reader, sink| reader.finish(sink));
        let now = self.part.clock.last().host;
        let dropped = self.part.rings.dropped();
        let Collector { correlator, tracks, kernels, .. } = &mut self.part;
        // What is only now certain is counted, whether or not there is room to draw it.
        let draws = self.level == Level::All;
        correlator.finish(&mut |entry| {
            if draws {
                tracks.draw(entry);
            }
        });
        let found = correlator.matches();
        let has_channels = kernels.is_some() || found.channels != ChannelChecks::default();
        let matches = kernels.as_ref().map(|reader| {
            let lost = reader.losses();
            let discarded_buffers = lost.discarded_buffers + lost.refused_requests + lost.unreadable;
            Matches { discarded_buffers, discarded: self.undrawn, ..found }
        });
        let figures = Figures {
            recorded: self.recorded,
            dropped,
            discarded: self.discarded,
            panics: recorder::panics(),
            clock_error_ns: self.clock_error_ns,
            doubts: correlator.doubts(),
            matches,
            channels: has_channels.then_some(found.channels),
            launches_lost: recorder::lost_launches(),
        };
        tracks.finish(now, &figures);
        self.flush();
        self.part.file.close();
    }
}
