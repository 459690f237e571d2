//! From inputs to packets (pure): a recording without its threads, clocks and files.
//!
//! ```text
//!  Input, CUPTI's buffers  ==>  clocks, correlator, tracks  ==>  chunks of packets
//! ```
//!
//! The collector passes in everything as it reads it, and writes the chunks that come out.
//! `ncclscope replay` passes in the same again, from a capture. Equal inputs make equal chunks,
//! byte for byte, as long as the caller takes a chunk after each input that leaves the pipeline
//! [full](Pipeline::is_full), and after [`Input::Flush`] and [`Input::End`].

pub mod activities;
mod clock;
mod filter;
mod gist;
pub mod input;
pub mod spoilt;

use cupti_sys::records::Walker;

use activities::Activities;
use clock::Clock;
use filter::{Fate, Filter};
use gist::Gist;
use input::{Begin, Ending, Input, Level, remark};
use spoilt::Spoilt;

use crate::clock::align::Due;
use crate::correlate::Correlator;
use crate::cupti::decode::Outside;
use crate::cupti::intake::{Intake, Source, Standing};
use crate::model::activity::{Activity, Edge, Marker};
use crate::model::event::{self, Body, Kind, Record};
use crate::model::ids::RingId;
use crate::model::time::HostNs;
use crate::model::timeline::{ChannelChecks, Entry, Matches};
use crate::releases::{self, FaultId};
use crate::summary::{Live, Summary};
use crate::trace::not_done::{Evidence, Wish};
use crate::trace::tracks::{Figures, Tracks};
use crate::trace::words::{ALIVE_NS, instant};

/// The size of a chunk, in bytes of packets; Perfetto wants compressed packets below 512 KiB.
pub const CHUNK: usize = 192 << 10;

/// How much later than kernels of the same time a marker may arrive: CUPTI is flushed every second.
const MARKERS_LATE_NS: u64 = 1_500_000_000;

/// The state of the recording itself.
///
/// It has more than twenty fields because, beside the stages, it keeps the figures of the
/// recording's final event, one each.
pub struct Pipeline {
    clock: Clock,
    correlator: Correlator,
    filter: Option<Filter>,
    tracks: Tracks,
    gist: Gist,
    intake: Option<Intake>,
    activities: Activities,
    level: Level,
    /// Up to when activities may be drawn; `None` while they are still arriving.
    due: Option<HostNs>,
    has_markers: bool,
    recorded: u64,
    discarded: u64,
    dropped: u64,
    clock_error_ns: u32,
    /// Activities that arrived when the file was full.
    undrawn: u64,
    /// When a full file was last given a sign of life.
    alive: HostNs,
    /// Failures after which CUPTI reports nothing more.
    fatal: u64,
    /// We hold CUPTI and get its records; and it is about to be released, so that kernels may
    /// arrive without an end.
    has_kernels: bool,
    gives_up: bool,
    spoilt: Spoilt,
    said_spoilt: bool,
    /// The step of the program that is under way.
    open_step: Option<Marker>,
    /// What `cuptiGetVersion` returned.
    version: u32,
    /// What is wanted of CUPTI.
    wish: Option<Wish>,
    /// When a kernel or a copy last ended, as far as CUPTI has returned them.
    gpu_moved: HostNs,
    said: Vec<String>,
}

impl Pipeline {
    /// Starts a recording.
    #[must_use]
    pub fn new(begin: &Begin) -> Pipeline {
        let Begin { tag, clocks, process, .. } = begin;
        let mut tracks = Tracks::new(*tag, *clocks, process);
        if let Some(stages) = begin.stages {
            tracks.draw_render_stages(stages);
        }
        begin.complaints.iter().for_each(|complaint| tracks.note(clocks.boottime, remark::BAD_SETTING, complaint));
        let attributes: Vec<_> = begin.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        tracks.attributes(&attributes);
        tracks.note(clocks.boottime, instant::STARTED, &begin.first_words);
        if let Some(file) = &begin.capture {
            let text = format!(
                "everything this recording reads is kept in {file}; ncclscope replay makes the trace again from it"
            );
            tracks.note(clocks.boottime, remark::CAPTURE, &text);
        }
        let selection = &begin.selection;
        if !selection.is_all() {
            let parts: Vec<_> = selection.parts().iter().map(|(part, value)| format!("{part} {value}")).collect();
            tracks.note(clocks.boottime, remark::LEFT_OUT, &parts.join(", "));
        }
        Pipeline {
            clock: Clock::new(begin.first),
            correlator: Correlator::new(*tag, process.pid),
            filter: Filter::new(selection, clocks.boottime, process.rank.zip(process.world_size)),
            tracks,
            gist: Gist::new(process.rank.zip(process.world_size)),
            intake: None,
            activities: Activities::default(),
            level: Level::All,
            due: None,
            has_markers: false,
            recorded: 0,
            discarded: 0,
            dropped: 0,
            clock_error_ns: 0,
            undrawn: 0,
            alive: HostNs(0),
            fatal: 0,
            has_kernels: false,
            gives_up: false,
            spoilt: Spoilt::default(),
            said_spoilt: false,
            open_step: None,
            version: 0,
            wish: None,
            gpu_moved: HostNs(0),
            said: Vec::new(),
        }
    }

    /// Takes an input.
    #[inline]
    pub fn take(&mut self, input: &Input<'_>) {
        match *input {
            Input::Record { ring, words } => self.record(ring, words),
            ref other => self.take_other(other),
        }
    }

    /// Whether a whole chunk is ready to be written.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.tracks.pending_bytes() >= CHUNK
    }

    /// Takes what is ready to be written: whole packets.
    #[must_use]
    pub fn chunk(&mut self) -> Vec<u8> {
        self.tracks.take()
    }

    /// Which records are taken in this pass.
    #[must_use]
    pub fn due(&self) -> Due {
        self.clock.due()
    }

    /// Whether records wait for another reading, because a clock has just gone back.
    #[must_use]
    pub fn waits_for_clock(&self) -> bool {
        self.clock.waits()
    }

    /// The host's time at the newest reading.
    #[must_use]
    pub fn now(&self) -> HostNs {
        self.clock.now()
    }

    /// How much is still drawn.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// NCCL's calls taken so far, drawn or not.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.recorded + self.discarded
    }

    /// Whether CUPTI's times up to this one can be converted as accurately as they ever will be.
    #[must_use]
    pub fn covers(&self, until: HostNs) -> bool {
        self.intake.as_ref().is_some_and(|intake| intake.covers(until))
    }

    /// Whether [`Input::Draw`] has something to draw.
    #[must_use]
    pub fn has_due(&mut self) -> bool {
        self.activities.has_due(self.due)
    }

    /// The system's ids of NCCL's progress threads that did anything.
    #[must_use]
    pub fn progress_threads(&self) -> Vec<i32> {
        self.tracks.progress_threads()
    }

    /// When communicators were initialised since the last call, and by which thread, by the
    /// system's id.
    #[must_use]
    pub fn take_inits(&mut self) -> Vec<(HostNs, i32)> {
        self.correlator.take_inits()
    }

    /// Messages for the user since the last call.
    #[must_use]
    pub fn take_said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.said)
    }

    /// Which operation has been standing still for long, in a clause; once for each standstill.
    #[must_use]
    pub fn take_standing(&mut self) -> Option<String> {
        self.tracks.not_done.take_standing(self.now())
    }

    /// What this process alone saw of what holds it up, in a clause.
    #[must_use]
    pub fn gist(&self) -> Option<String> {
        self.gist.told()
    }

    /// The totals of what was drawn so far.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        self.tracks.summary()
    }

    /// The figures that metrics have beside the summary.
    #[must_use]
    pub fn live(&self) -> Live {
        Live {
            recorded: self.recorded,
            dropped: self.dropped,
            gpus: self.gist.totals(),
            overdue_ns: self.tracks.not_done.overdue_ns(self.now()),
        }
    }

    /// From here on no trace is made; the summary stays the same.
    pub fn without_trace(&mut self) {
        self.tracks.without_trace();
        self.correlator.remember_less();
    }

    /// From here on no summary is made; the trace stays the same.
    pub fn without_summary(&mut self) {
        self.tracks.without_summary();
    }

    /// What is wanted of CUPTI; each wish is returned once.
    #[must_use]
    pub fn take_wish(&mut self) -> Option<Wish> {
        self.wish.take()
    }

    /// Restarts the trace after so many bytes of packets.
    #[cfg(feature = "cli")]
    pub(crate) fn restart_after(&mut self, bytes: usize) {
        self.tracks.restart_after(bytes);
    }

    /// From here on, keeps the correlator's decisions about the kernels of the call with this
    /// correlation id.
    #[cfg(feature = "cli")]
    pub fn explain(&mut self, correlation: u32) {
        self.correlator.explain(correlation);
    }

    /// These decisions since the last call, one per line.
    #[cfg(feature = "cli")]
    pub fn take_explained(&mut self) -> Vec<String> {
        self.correlator.take_explained()
    }

    /// Draws a remark at the current time, however full the file is. For remarks that are made
    /// once.
    pub fn remark(&mut self, name: &str, text: &str) {
        self.tracks.note(self.now(), name, text);
    }

    /// Takes a buffer of CUPTI's. Nothing in it is later than `now`.
    pub fn buffer(&mut self, now: HostNs, bytes: &[u8], walker: impl Walker, outside: &mut impl Outside) {
        let Some(mut intake) = self.intake.take() else { return };
        intake.decode(now, bytes, walker, outside, &mut |activity| self.activity(activity, now));
        self.notice_losses(&intake);
        self.intake = Some(intake);
    }

    fn notice_losses(&mut self, intake: &Intake) {
        if intake.may_miss_records() {
            self.tracks.not_done.kernels_lost();
            self.gist.doubt();
        }
    }

    fn take_other(&mut self, input: &Input<'_>) {
        match *input {
            Input::Note { time, name, text } => self.note(time, name, text),
            Input::Kernels(source) => self.kernels(source),
            Input::ExternalIds => {
                self.correlator.expect_external_ids();
                self.intake.iter_mut().for_each(Intake::expect_external_ids);
            }
            Input::Pass { pair, window_ns } => {
                self.due = None;
                let back = self.clock.pass(pair, window_ns);
                if let Some(text) = back.filter(|_| self.level != Level::Ends) {
                    self.tracks.note(pair.host, remark::WENT_BACK, &text);
                }
            }
            Input::Record { ring, words } => self.record(ring, words),
            Input::Reading(ref reading) => self.intake.iter_mut().for_each(|intake| intake.learn(reading)),
            Input::Standing(standing) => self.stands(standing),
            Input::Due { all } => self.due = Some(if all { HostNs(u64::MAX) } else { self.activities_until() }),
            Input::Draw => while !self.is_full() && self.draw_next() {},
            Input::Advance => {
                self.settle();
                let until = self.clock.until();
                let (correlator, mut draw) = self.stages();
                correlator.advance(until, &mut draw);
            }
            Input::Shares(shares) => {
                let now = self.now();
                let launches = self.correlator.unseen_launches();
                let (done, moved) = (|id| self.correlator.work_done(id), |id| self.correlator.moved(id));
                let evidence = Evidence { done: &done, moved: &moved, launches };
                self.wish = self.tracks.tick(now, self.activities_until(), &evidence).or(self.wish);
                // A full file must not go on growing by these.
                if self.level == Level::Hangs {
                    self.give_sign_of_life();
                } else if self.level != Level::Ends {
                    shares.iter().for_each(|share| {
                        self.tracks.thread(
                            now,
                            (share.tid, &share.name),
                            share.percent,
                            (share.doing, share.processor),
                        );
                    });
                    self.tracks.threads_looked_at(now);
                }
            }
            Input::CpuWaits(waits) => {
                let now = self.now();
                if self.level < Level::Hangs {
                    self.tracks.cpu_waits(now, waits);
                }
            }
            Input::Dropped(total) => self.lost(total),
            Input::Level { level, why } => {
                self.level = level;
                let name = match level {
                    Level::All | Level::NoSteps => remark::NO_STEPS,
                    Level::Hangs => {
                        self.tracks.file_is_full();
                        self.alive = self.now();
                        remark::FULL
                    }
                    Level::Ends => {
                        self.tracks.expect_kernels(false, self.now());
                        remark::STOPPED
                    }
                };
                self.tracks.note(self.now(), name, why);
            }
            Input::Flush => {}
            Input::End(ending) => self.end(ending),
        }
    }

    /// Acts on a remark, and draws it unless it is for the stages only.
    fn note(&mut self, time: HostNs, name: &str, text: &str) {
        if name == remark::FORCED {
            self.correlator.all_seen(time);
            self.gist.flushed_by_force(time);
            self.tracks.flushed_by_force(time, text, self.gpu_moved);
            return;
        }
        if name == remark::NOT_FORCED {
            self.tracks.not_done.not_forced();
            return;
        }
        if name == remark::GIVES_UP {
            self.gives_up = text.is_empty();
            return;
        }
        if name == remark::GIVEN_UP {
            self.correlator.given_up(time);
            return;
        }
        if name == remark::LAUNCH_LOST {
            self.correlator.launch_lost();
            return;
        }
        if name == remark::CHANGE_LOST {
            self.correlator.change_lost(time);
            return;
        }
        if name == remark::RELEASED {
            self.correlator.lent(time);
        }
        if self.level != Level::Ends {
            self.tracks.note(time, name, text);
            match name {
                remark::RELEASED => self.expect_kernels(false, time),
                remark::SILENT => {
                    self.expect_kernels(false, self.now());
                    self.said.push(text.to_owned());
                }
                remark::TAKEN | remark::TAKEN_AGAIN | remark::HEARD => {
                    self.expect_kernels(true, time);
                    let fault = releases::cupti_fault(self.version, FaultId::GraphLaunches);
                    if name == remark::TAKEN_AGAIN && fault.is_some() {
                        self.correlator.distrust_graph_launches();
                    }
                }
                _ => {}
            }
        }
    }

    fn kernels(&mut self, source: Source) {
        self.has_markers |= source.asked.markers;
        self.version = source.version;
        self.intake.get_or_insert_with(|| Intake::new(source));
        self.correlator.expect_kernels();
        self.expect_kernels(true, self.now());
    }

    /// Whether we hold CUPTI and get its records from this time on.
    fn expect_kernels(&mut self, has_kernels: bool, time: HostNs) {
        self.has_kernels = has_kernels;
        if has_kernels {
            self.gives_up = false;
            // No kernels are expected of earlier launches.
            self.correlator.all_seen(time);
        } else {
            self.gist.doubt();
        }
        self.say_expected(time);
    }

    fn say_expected(&mut self, time: HostNs) {
        self.tracks.expect_kernels(self.has_kernels && !self.spoilt.is_spoilt(), time);
    }

    /// Up to when activities are drawn.
    fn activities_until(&self) -> HostNs {
        // A kernel is drawn with the range around its call.
        let late = if self.has_markers { MARKERS_LATE_NS } else { 0 };
        HostNs(self.clock.until().0.saturating_sub(late))
    }

    fn record(&mut self, ring: RingId, words: &[u64]) {
        // A ring of this process cannot contain a record of another layout or of a later time. If
        // it does, the record is counted.
        let decoded = Record::decode(words);
        let time = decoded.as_ref().and_then(|record| self.clock.time_of(record.ticks));
        let Some((record, (time, error))) = decoded.zip(time) else {
            self.discarded += 1;
            return;
        };
        if event::is_call(words[0]) {
            if self.level != Level::All && !self.wanted(&record) {
                self.discarded += 1;
                return;
            }
            match self.level {
                Level::Hangs => self.discarded += 1,
                _ => self.recorded += 1,
            }
        }
        self.clock_error_ns = self.clock_error_ns.max(error);
        if let Body::Step { number } = record.body {
            return self.step(ring, (time, error), number);
        }
        let (correlator, mut draw) = self.stages();
        correlator.push(ring, time, &record, &mut draw);
    }

    /// The program begins a step: a range on its thread, which ends the one before.
    fn step(&mut self, ring: RingId, (time, error_ns): (HostNs, u32), number: u64) {
        if let Some(filter) = &mut self.filter {
            filter.step(time, number);
        }
        let Some(tid) = self.correlator.thread_of(ring) else { return };
        // CUPTI counts its ids up from 1.
        let id = self.open_step.as_ref().map_or(u32::MAX, |before| before.id - 1);
        let name = format!("step {number}").into();
        let domain = Some("ncclscope".into());
        let begin = Marker { time, error_ns, id, edge: Edge::Begin, tid: Some(tid), thread: "".into(), name, domain };
        if let Some(before) = self.open_step.replace(begin.clone()) {
            self.activity(Activity::Marker(Marker { time, error_ns, edge: Edge::End, ..before }), time);
        }
        self.activity(Activity::Marker(begin), time);
    }

    /// Whether a call is still drawn when the file is nearly or completely full.
    fn wanted(&self, record: &Record<'_>) -> bool {
        match record.body {
            Body::Start { event, .. } => {
                let is_step = matches!(event.kind(), Kind::ProxyStep | Kind::NetPlugin);
                self.level != Level::Ends && !is_step
            }
            Body::State { handle, .. } | Body::NetUpdate { handle, .. } => {
                self.level != Level::Ends && self.correlator.knows(handle)
            }
            Body::Stop { handle } => self.correlator.knows(handle),
            _ => true,
        }
    }

    fn stands(&mut self, standing: Standing) {
        if standing.fatal > self.fatal {
            self.fatal = standing.fatal;
            self.expect_kernels(false, self.now());
        }
        let Some(mut intake) = self.intake.take() else { return };
        let now = self.now();
        intake.stands(standing, &mut |activity| self.activity(activity, now));
        self.notice_losses(&intake);
        self.intake = Some(intake);
    }

    /// An activity with a time waits for the records of that time.
    fn activity(&mut self, activity: Activity, now: HostNs) {
        let activity = match activity {
            // CUPTI was not forced, so the kernel has ended and its record is damaged.
            Activity::Unfinished(kernel) if !self.tracks.not_done.is_forcing() && !self.gives_up => {
                Activity::Untimed(kernel)
            }
            // It cannot be known whether the kernel had not ended or its record is damaged.
            Activity::Unfinished(_) if self.gives_up || self.spoilt.is_spoilt() => {
                self.tracks.not_done.kernels_lost();
                Activity::Implausible
            }
            activity => activity,
        };
        match &activity {
            Activity::Kernel(_) => self.times_changed(Spoilt::good),
            Activity::Untimed(_) => self.times_changed(Spoilt::bad),
            _ => {}
        }
        match &activity {
            Activity::Kernel(kernel) => self.gpu_moved = self.gpu_moved.max(kernel.span.end),
            Activity::Untimed(_) => self.gpu_moved = self.now(),
            Activity::Copy(copy) => self.gpu_moved = self.gpu_moved.max(copy.span.end),
            _ => {}
        }
        if let Some(activity) = self.activities.push(activity, now) {
            self.draw(activity);
        }
    }

    /// A kernel arrived with times that are plausible, or not.
    #[inline]
    fn times_changed(&mut self, change: impl FnOnce(&mut Spoilt) -> Option<spoilt::Change>) {
        if let Some(change) = change(&mut self.spoilt) {
            self.times_are(change);
        }
    }

    #[cold]
    fn times_are(&mut self, change: spoilt::Change) {
        let now = self.now();
        if self.level == Level::Ends {
            return;
        }
        if change == spoilt::Change::Begins {
            let mut text = format!(
                "CUPTI reports kernels without times, or with impossible times: {} so far. They are missing from \
                 here on, so hangs cannot be seen from kernels",
                self.spoilt.count()
            );
            if let Some(fault) = releases::cupti_fault(self.version, FaultId::SpoiltTimes) {
                let (what, source) = (fault.what, fault.source);
                text.push_str(&format!(". This may be a known fault of this release: {what} ({source})"));
            }
            self.tracks.note(now, remark::SPOILT, &text);
            self.gist.doubt();
            if !std::mem::replace(&mut self.said_spoilt, true) {
                self.said.push(text);
            }
        } else {
            let text = format!("kernels have valid times again; {} had none", self.spoilt.count());
            self.tracks.note(now, remark::SOUND, &text);
        }
        self.say_expected(now);
    }

    /// Draws the next activity that is due. Returns false if there is none.
    fn draw_next(&mut self) -> bool {
        let next = self.activities.pop_excess().or_else(|| self.activities.pop(self.due?));
        next.is_some_and(|activity| {
            self.draw(activity);
            true
        })
    }

    fn draw(&mut self, activity: Activity) {
        if self.level >= Level::Hangs {
            self.undrawn += u64::from(!matches!(activity, Activity::ExternalId { .. }));
        }
        if self.level == Level::Ends {
            self.gist.doubt();
            return;
        }
        let (correlator, mut draw) = self.stages();
        correlator.push_activity(activity, &mut draw);
    }

    /// The correlator, and what takes its entries.
    fn stages(&mut self) -> (&mut Correlator, impl FnMut(&Entry<'_>)) {
        let Pipeline { correlator, filter, tracks, gist, .. } = self;
        (correlator, |entry| {
            gist.take(entry);
            match filter {
                None => tracks.draw(entry),
                Some(filter) => filter.take(entry, &mut |entry, fate| match fate {
                    Fate::Drawn => tracks.draw(entry),
                    Fate::LeftOut => tracks.watch(entry),
                }),
            }
        })
    }

    /// Shows that the process of a full file is alive, and how far it has come.
    fn give_sign_of_life(&mut self) {
        // What came later may not have been read.
        let until = self.clock.until();
        if until.since(self.alive) >= ALIVE_NS {
            self.alive = until;
            self.tracks.sign_of_life(until);
        }
    }

    /// Draws what is still due, and remarks about CUPTI.
    fn settle(&mut self) {
        if self.intake.is_none() {
            // Only the program's steps wait then.
            self.due = self.due.or(Some(self.activities_until()));
        }
        while self.draw_next() {}
        let (now, notes) = (self.now(), self.intake.as_mut().map(Intake::take_notes).unwrap_or_default());
        for note in notes {
            self.tracks.note(now, note.name, &note.text);
            if note.aloud {
                self.said.push(note.text);
            }
        }
    }

    fn lost(&mut self, total: u64) {
        // After the end lost records do not matter, and do not mean that the recording is slow.
        if self.dropped == 0 && self.level != Level::Ends {
            let text = "records are being dropped: NCCL's threads are faster than the recording. The trace says \
                        how many and when. A larger NCCLSCOPE_BUFFER_SIZE gives it more room; \
                        NCCLSCOPE_PRESET=light gives it less to do";
            self.said.push(text.into());
        }
        // A full file has room for the first time, and the total is in its final event.
        if self.level < Level::Hangs || self.dropped == 0 {
            self.tracks.dropped(self.now(), total);
        }
        self.dropped = total;
        self.correlator.lost(self.now());
    }

    fn end(&mut self, ending: Ending) {
        let now = self.now();
        if let Some(last) = self.open_step.take() {
            self.activity(Activity::Marker(Marker { time: now, edge: Edge::End, ..last }), now);
            self.due = Some(HostNs(u64::MAX));
        }
        self.settle();
        // What only becomes certain now is counted, even if there is no room to draw it.
        let draws = self.level == Level::All;
        let (correlator, mut draw) = self.stages();
        correlator.finish(&mut |entry| {
            if draws {
                draw(entry);
            }
        });
        drop(draw);
        let Pipeline { correlator, tracks, intake, .. } = self;
        let found = correlator.matches();
        let has_channels = intake.is_some() || found.channels != ChannelChecks::default();
        let matches = intake.as_ref().map(|intake| Matches {
            discarded_buffers: intake.lost_buffers(),
            discarded: self.undrawn,
            ..found
        });
        let figures = Figures {
            recorded: self.recorded,
            dropped: ending.dropped,
            discarded: self.discarded,
            panics: ending.panics,
            clock_error_ns: self.clock_error_ns,
            doubts: correlator.doubts(),
            matches,
            channels: has_channels.then_some(found.channels),
            launches_lost: ending.lost_launches,
            left_out: self.filter.as_ref().map(Filter::figures),
        };
        tracks.finish(now, &figures);
    }
}

#[cfg(all(test, feature = "cli"))]
mod full_tests;
#[cfg(test)]
mod tests;
