//! What a recording says about itself: its begin and end, remarks, losses, and what its threads
//! cost.

use rustc_hash::FxHashMap;

use super::canvas::Canvas;
use super::counters::Counter;
use super::fields::nccl;
use super::lanes::{FamilyId, Placing};
use super::names::{self, Fixed};
use super::proxy::Proxy;
use super::threads::Threads;
use super::words::{Category, attribute, instant, remark, track};
use super::writer::{Place, Track, Unit, Writer};
use crate::model::activity::{self, Device};
use crate::model::doing::{CpuWait, Doing};
use crate::model::time::HostNs;
use crate::model::timeline::{ChannelChecks, Doubts, LeftOut, Matches};

/// Threads whose CPU time is drawn.
const CPU_COUNTERS: usize = 64;
/// Threads that waited for a processor for this part of their time are worth a remark.
const MUCH: u64 = 100;
/// Threads whose doing is drawn, over the whole recording: communicators that are made again and
/// again bring new threads each time.
const DOING_TRACKS: usize = 1024;

/// The recording's own figures, for its final event.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Calls of NCCL's that were recorded.
    pub recorded: u64,
    /// Calls for which there was no room.
    pub dropped: u64,
    /// Calls that were recorded but not written, because the file had reached its maximum size.
    /// What hangs is drawn all the same.
    pub discarded: u64,
    /// Panics caught in callbacks.
    pub panics: u64,
    /// The largest error of a host time, in ns.
    pub clock_error_ns: u32,
    /// What was doubtful.
    pub doubts: Doubts,
    /// How the kernels were matched; `None` if CUPTI was not in use.
    pub matches: Option<Matches>,
    /// What was found about kernel channels; `None` without channels and kernels.
    pub channels: Option<ChannelChecks>,
    /// Launches for which there was no room.
    pub launches_lost: u64,
    /// What the settings left out; `None` if they leave nothing out.
    pub left_out: Option<LeftOut>,
}

impl Figures {
    /// Everything that is missing: NCCL's calls, launches, and CUPTI's records.
    fn lost(&self) -> u64 {
        let of_nccl = self.dropped + self.discarded + self.launches_lost;
        of_nccl + self.matches.map_or(0, |it| it.dropped + it.discarded + it.discarded_buffers)
    }
}

/// The recording's own tracks.
pub(super) struct Recording {
    group: Option<Track>,
    own: FamilyId,
    /// When it began.
    began: HostNs,
    drops: Option<Counter>,
    /// How many records were dropped, and up to when.
    dropped: (HostNs, u64),
    /// When buffers with kernels were lost.
    discarded: Option<HostNs>,
    /// The CPU time of threads, by the system's thread id.
    cpu: FxHashMap<i32, Option<Counter>>,
    /// How long progress threads wait for a processor, by the same id; and of those that did so for
    /// much of their time, what the worst one waited in how much time, its id, and how many there
    /// were.
    cpu_waits: FxHashMap<i32, Waited>,
    waited_most: (u64, u64, i32),
    waited: u64,
    /// What threads were doing when last sampled, and on which processor, by the same id.
    doing: FxHashMap<i32, Seen>,
    /// How many tracks there are for that, those of ended threads included.
    doing_tracks: usize,
}

/// How long a progress thread waited for a processor.
#[derive(Default)]
struct Waited {
    /// A thread that has never waited needs none.
    counter: Option<Counter>,
    /// The last value, in percent, and until when it was.
    percent: i64,
    until: HostNs,
    /// In all, and in how much time, in ns.
    ns: u64,
    of: u64,
}

/// What a thread was doing when last sampled.
struct Seen {
    family: FamilyId,
    at: HostNs,
    what: Option<(Doing, Option<u32>)>,
}

impl Waited {
    fn show(&mut self, writer: &mut Writer, time: HostNs, percent: i64) {
        if std::mem::replace(&mut self.percent, percent) != percent
            && let Some(counter) = self.counter
        {
            counter.set(writer, time, percent);
        }
    }
}

impl Recording {
    /// Starts at `time`, with nothing dropped.
    pub(super) fn new(canvas: &mut Canvas, time: HostNs) -> Recording {
        let group = canvas.group("ncclscope", 5, "What the recording says about itself: losses, doubts, limits.");
        let on = Place { parent: group, rank: Some(1), ..Place::default() };
        let drops = Counter::new(canvas.writer(), track::DROPS, Unit::Named("records"), on, time);
        let place = Placing { parent: group, rank: 0, description: "Begin, end and remarks of the recording." };
        let own = canvas.lanes.family("recording".into(), place, 1);
        let (cpu, doing) = (FxHashMap::default(), FxHashMap::default());
        let dropped = (time, 0);
        let mut recording = Recording {
            group,
            own,
            began: time,
            drops,
            dropped,
            discarded: None,
            cpu,
            cpu_waits: FxHashMap::default(),
            waited_most: (0, 0, 0),
            waited: 0,
            doing,
            doing_tracks: 0,
        };
        recording.dropped(canvas, time, 0);
        recording
    }

    /// Notes how many records were dropped up to `time`.
    pub(super) fn dropped(&mut self, canvas: &mut Canvas, time: HostNs, total: u64) {
        self.dropped = (time, total);
        canvas.lanes.lossy |= total > 0;
        if let Some(counter) = self.drops {
            counter.set(canvas.writer(), time, total as i64);
        }
    }

    /// A remark about the recording.
    pub(super) fn note(&mut self, canvas: &mut Canvas, time: HostNs, name: &str) {
        if name == remark::DISCARDED {
            self.discarded = Some(time);
        }
        canvas.aloud(|canvas| self.remark(canvas, time, name));
    }

    /// Notes again what was lost, after a restart of the file.
    pub(super) fn restarted(&mut self, canvas: &mut Canvas) {
        if let (time, total @ 1..) = self.dropped {
            canvas.aloud(|canvas| self.dropped(canvas, time, total));
        }
        if let Some(time) = self.discarded {
            canvas.args.clear();
            canvas.aloud(|canvas| canvas.instant(self.own, time, Category::Newest, &Fixed(remark::DISCARDED)));
        }
    }

    /// A thread took this share of a processor, in percent, since the last call.
    pub(super) fn cpu(
        &mut self,
        canvas: &mut Canvas,
        threads: &Threads,
        proxy: &Proxy,
        time: HostNs,
        (tid, name): (i32, &str),
        percent: i64,
    ) {
        let counter = match self.cpu.get(&tid) {
            Some(&counter) => counter,
            None if self.cpu.len() >= CPU_COUNTERS => None,
            None => {
                let (name, parent) = match threads.with_number(tid).find_map(|thread| proxy.group_of(thread)) {
                    Some(group) => ("CPU".to_owned(), Some(group)),
                    None if name.starts_with("ncclscope") => (format!("CPU · {name}"), self.group),
                    None => (format!("CPU · {name} ({tid})"), proxy.group()),
                };
                let description = "CPU time, as the kernel counts it, as a share of the previous second.";
                let place = Place { parent, rank: Some(0), description, ..Place::default() };
                let counter = Counter::new(canvas.writer(), &name, Unit::Named("%"), place, time);
                self.cpu.insert(tid, counter);
                counter
            }
        };
        if let Some(counter) = counter {
            counter.set(canvas.writer(), time, percent);
        }
    }

    /// For how long progress threads waited for a processor until `time`.
    pub(super) fn cpu_waits(
        &mut self,
        canvas: &mut Canvas,
        threads: &Threads,
        proxy: &Proxy,
        time: HostNs,
        waits: &[CpuWait],
    ) {
        let writer = canvas.writer();
        for &CpuWait { tid, since, ns } in waits {
            if self.cpu_waits.len() >= CPU_COUNTERS && !self.cpu_waits.contains_key(&tid) {
                continue;
            }
            let (waited, of) = (self.cpu_waits.entry(tid).or_default(), time.since(since).max(1));
            let percent = (u128::from(ns) * 100 / u128::from(of)).min(100) as i64;
            if percent > 0 && waited.counter.is_none() {
                let parent = threads.with_number(tid).find_map(|thread| proxy.group_of(thread));
                let description = "How much of the time the thread was ready to run and had no processor, as the kernel \
                                   counts it. While it waits, nothing moves between GPUs and the network.";
                let place = Place { parent, rank: Some(0), description, ..Place::default() };
                waited.counter = Counter::new(writer, track::CPU_WAIT, Unit::Named("%"), place, since);
            }
            waited.show(writer, since, percent);
            // A capture may say anything.
            (waited.ns, waited.of) = (waited.ns.saturating_add(ns), waited.of.saturating_add(of));
            waited.until = time;
        }
        // Threads that were not there have ended.
        let has_ended = |tid: &i32, _: &mut Waited| !waits.iter().any(|wait| wait.tid == *tid);
        for (tid, mut waited) in self.cpu_waits.extract_if(has_ended) {
            waited.show(writer, waited.until, 0);
            if waited.ns.saturating_mul(MUCH) > waited.of {
                self.waited += 1;
                self.waited_most = self.waited_most.max((waited.ns, waited.of, tid));
            }
        }
    }

    /// What to say about how long progress threads waited for a processor, if it was much. They
    /// have all ended.
    pub(super) fn cpu_waited(&self) -> Option<String> {
        let (ns, of, tid) = self.waited_most;
        let [ns, of] = [ns, of].map(|ns| names::duration(ns as f64));
        let more = match self.waited {
            0 => return None,
            1 => String::new(),
            more => format!(", and {} more did so, too", more - 1),
        };
        Some(format!("proxy thread {tid} was ready to run and had no processor for {ns} of {of}{more}"))
    }

    /// What a thread of NCCL is doing now, and on which processor.
    pub(super) fn does(
        &mut self,
        canvas: &mut Canvas,
        threads: &Threads,
        proxy: &Proxy,
        time: HostNs,
        (tid, name): (i32, &str),
        (doing, processor): (Doing, Option<u32>),
    ) {
        if doing == Doing::Unknown || name.starts_with("ncclscope") {
            return;
        }
        if !self.doing.contains_key(&tid) {
            if self.doing.len() >= CPU_COUNTERS || self.doing_tracks >= DOING_TRACKS {
                return;
            }
            self.doing_tracks += 1;
            let group = threads.with_number(tid).find_map(|thread| proxy.group_of(thread));
            let (parent, name) = match group {
                Some(group) => (Some(group), track::DOES.to_owned()),
                None => (proxy.group(), format!("{} · {name} ({tid})", track::DOES)),
            };
            let description = "What the thread did when it was looked at, once a second, by what the kernel says. What it \
                               did in between is not known.";
            let family = canvas.lanes.family(name, Placing { parent, rank: 1, description }, 1);
            self.doing.insert(tid, Seen { family, at: time, what: None });
        }
        let Some(seen) = self.doing.get_mut(&tid) else { return };
        seen.at = time;
        if seen.what == Some((doing, processor)) {
            return;
        }
        if seen.what.replace((doing, processor)).is_some() {
            canvas.lanes.pop(seen.family, time, &[]);
        }
        canvas.args.clear().known(nccl::PROCESSOR, processor.map(u64::from));
        canvas.lanes.push(seen.family, time, doing.name(), &canvas.args);
    }

    /// All threads have been sampled: those that were not there have ended. At the end of the
    /// recording, all have.
    pub(super) fn looked(&mut self, canvas: &mut Canvas, time: HostNs, is_end: bool) {
        self.doing.retain(|_, seen| {
            let stays = seen.at == time && !is_end;
            if !stays && seen.what.take().is_some() {
                canvas.lanes.pop(seen.family, time, &[]);
            }
            stays
        });
    }

    /// A remark, with the arguments in [`Canvas::args`].
    pub(super) fn remark(&self, canvas: &mut Canvas, time: HostNs, name: &str) {
        let Canvas { summary, args, .. } = &mut *canvas;
        summary.remark(time, name, args.bytes());
        canvas.instant(self.own, time, Category::Ncclscope, &Fixed(name));
    }

    /// The process is alive, though the file is full.
    pub(super) fn alive(&self, canvas: &mut Canvas, time: HostNs) {
        canvas.args.clear();
        canvas.aloud(|canvas| canvas.instant(self.own, time, Category::Ncclscope, &Fixed(remark::ALIVE)));
    }

    /// A GPU of the process, once. CUPTI tells of it without a time, often before there is any
    /// record.
    pub(super) fn device(&self, canvas: &mut Canvas, time: HostNs, device: &Device) {
        if !canvas.processes.found(&mut canvas.lanes.writer, device) {
            return;
        }
        canvas.args.clear().uint(nccl::DEVICE, u64::from(device.device)).text(nccl::NOTE, &device.name);
        if device.uuid != Device::NO_UUID {
            let uuid: String = device.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
            canvas.args.text(nccl::UUID, &uuid);
        }
        self.remark(canvas, time.max(self.began), instant::GPU);
    }

    /// CUPTI's times contradict NCCL's.
    pub(super) fn times_off(&self, canvas: &mut Canvas, time: HostNs, device: u32, [least, most]: [i64; 2]) {
        canvas.args.clear().uint(nccl::DEVICE, u64::from(device));
        for (field, bound) in [(nccl::CUPTI_OFF_LEAST_NS, least), (nccl::CUPTI_OFF_MOST_NS, most)] {
            if bound != i64::MIN && bound != i64::MAX {
                canvas.args.long(field, bound);
            }
        }
        let (way, by, what) = match least > 0 {
            true => ("late", least, "NCCL's threads saw the work of kernels before these begin"),
            false => ("early", -most, "kernels begin before the calls that launch them"),
        };
        let note = format!(
            "GPU {device}: at least {} too {way}: {what}; from here on the stated error of kernels covers this",
            names::duration(by as f64)
        );
        canvas.args.text(nccl::NOTE, &note);
        self.remark(canvas, time, remark::TIMES_OFF);
    }

    /// The match of a kernel that was already drawn is contradicted.
    pub(super) fn contradicted(
        &self,
        canvas: &mut Canvas,
        time: HostNs,
        place: activity::Place,
        (correlation, graph_node): (u32, u64),
    ) {
        canvas
            .args
            .clear()
            .uint(nccl::DEVICE, u64::from(place.device))
            .uint(nccl::STREAM_ID, u64::from(place.stream))
            .nonzero(nccl::CORRELATION, u64::from(correlation))
            .nonzero(nccl::GRAPH_NODE, graph_node)
            .text(
                nccl::NOTE,
                "a kernel that began here: NCCL's times of what it carried contradict its own; the match or a time \
                 is wrong",
            );
        self.remark(canvas, time, remark::CONTRADICTED);
    }

    /// A GPU's timer, or the host's clock, was set.
    pub(super) fn timer_step(&self, canvas: &mut Canvas, time: HostNs, device: u32, before: HostNs, by: i64) {
        let within = before.since(time);
        let note = format!("within {within} ns, between two kernels; or CUPTI's conversion of it was");
        canvas.args.clear().uint(nccl::DEVICE, u64::from(device)).long(nccl::TIMER_STEP_NS, by).text(nccl::NOTE, &note);
        self.remark(canvas, time, remark::TIMER_SET);
    }

    /// The final event. `comms` and `threads` are how many of these have no tracks of their own.
    pub(super) fn finish(&mut self, canvas: &mut Canvas, time: HostNs, figures: &Figures, [comms, threads]: [u64; 2]) {
        self.dropped(canvas, time, figures.dropped);
        canvas
            .args
            .clear()
            .uint(nccl::RECORDED, figures.recorded)
            .uint(nccl::DROPPED, figures.dropped)
            .uint(nccl::DISCARDED, figures.discarded)
            .uint(nccl::LANES_MISSING, canvas.lanes.missing)
            .uint(nccl::COMMUNICATORS_SHARING, comms)
            .uint(nccl::THREADS_SHARING, threads)
            .uint(nccl::SLICES_SHARING, canvas.lanes.sharing)
            .uint(nccl::PANICS, figures.panics)
            .uint(nccl::CLOCK_ERROR_NS, u64::from(figures.clock_error_ns))
            .doubts(&figures.doubts);
        if let Some(matches) = &figures.matches {
            canvas.args.matches(matches, figures.launches_lost);
        }
        if let Some(channels) = &figures.channels {
            canvas.args.channel_checks(channels);
        }
        if let Some(LeftOut { operations, activities }) = figures.left_out {
            let args = &mut canvas.args;
            args.uint(nccl::OPERATIONS_LEFT_OUT, operations).uint(nccl::ACTIVITIES_LEFT_OUT, activities);
        }
        self.remark(canvas, time, instant::ENDED);
        let lost = canvas.lanes.given_up + canvas.lanes.transfers();
        (0..lost).for_each(|_| canvas.summary.not_transferred());
        // In a merged file each recording has its own key.
        let key = format!("{}{} {}", attribute::LOST, canvas.processes.who, canvas.processes.pid);
        canvas.writer().attributes(&[(&key, &figures.lost().to_string())]);
    }
}
