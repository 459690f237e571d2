//! `ncclscope import`: another tool's file as a trace with our layout, as far as its data goes.
//!
//! The code that draws our recordings draws it too, so tracks, names and arguments are the same.
//! What a tool does not know is left out: no time has an error bound, there are no proxy or channel
//! tracks, and a communicator has a track only where the file names it. The first and last remarks
//! of the trace say where it came from.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use crate::cli::reason::Reason;
use crate::correlate::History;
use crate::import::knowledge::utc;
use crate::import::ours::WORLD_RANKS;
use crate::import::{self, Clock, How, Profile, Tool};
use crate::model::activity::{self, Edge};
use crate::model::event::{CollApi, Event, P2p, P2pApi};
use crate::model::ids::{Handle, ProcessTag};
use crate::model::time::{FileNs, GpuTimer, HostNs, Shift, UtcNs};
use crate::model::timeline::{Around, Comm, Entry, Method, Moment, Operation, Owner, Texts, Unmatched, What};
use crate::model::word::Word;
use crate::sys;
use crate::trace::names;
use crate::trace::tracks::{ProcessInfo, Tracks};
use crate::trace::words::{attribute, instant, remark};
use crate::trace::writer::Clocks;

/// How many bytes of packets are kept in memory before they are written.
const CHUNK: usize = 1 << 20;
pub(super) fn run(input: &Path, output: &Path, out: &mut dyn Write) -> Result<(), Reason> {
    let mut profile = import::open(input).map_err(Reason::file(input))?;
    if profile.source.tool == Tool::Ncclscope || profile.source.imported {
        return Err(Reason::file(input)("this is a trace of ncclscope already; ncclscope open shows it"));
    }
    super::must_be_new(output)?;
    // On the wall clock if the file says when it was recorded, so that files of different days stay
    // days apart.
    if let Some(to_utc) = profile.clock.to_utc {
        let wall = Clock { to_utc: Some(Shift::default()), ..profile.clock.clone() };
        profile = profile.shifted(to_utc, &wall);
    }
    let Some(extent) = profile.extent() else {
        return Err(Reason::file(input)(format!("nothing in it could be drawn: {}", profile.notes.join("; "))));
    };
    if extent.start < FileNs(0) {
        let why = format!("its times begin before the zero of their clock, at {} ns", extent.start.0);
        return Err(Reason::file(input)(why));
    }
    let failed = Reason::write(output);
    let mut file = super::create(output, false)?;
    for process in 0..profile.processes.len() {
        if let Err(error) = Drawing::new(&profile, process, extent.start).draw(extent.end, &mut file) {
            // Half a trace would be in the way of the next attempt.
            let _ = std::fs::remove_file(output);
            return Err(failed(error));
        }
    }
    let size = file.metadata().map_or(0, |data| data.len());
    let _ = writeln!(
        out,
        "{}: {}, {}, {}, {}, {}, {}",
        output.display(),
        counted(profile.processes.len(), "process", "processes"),
        counted(profile.kernels.len(), "kernel", "kernels"),
        counted(profile.copies.len(), "copy", "copies"),
        counted(profile.cuda_calls.len(), "call into CUDA", "calls into CUDA"),
        counted(profile.ranges.len(), "range", "ranges"),
        names::size(size)
    );
    Ok(())
}

fn counted(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// One process, while it is drawn.
pub(super) struct Drawing<'a> {
    profile: &'a Profile,
    process: usize,
    tag: ProcessTag,
    tracks: Tracks,
    comms: Vec<Comm>,
    /// What its threads were doing, by their own account.
    history: History,
    /// Where its calls into CUDA were made, by correlation id.
    calls: HashMap<u32, Moment>,
    /// The caller draws the kernels.
    without_kernels: bool,
}

/// One thing to draw, by its index in the profile.
#[derive(Clone, Copy)]
enum Item {
    Kernel(usize),
    Copy(usize),
    CudaCall(usize),
}

impl<'a> Drawing<'a> {
    fn new(profile: &'a Profile, process: usize, start: FileNs) -> Drawing<'a> {
        let about = &profile.processes[process];
        let who = match about.rank {
            Some(rank) => format!("rank {rank}"),
            None if about.name.is_empty() => "process".into(),
            None => about.name.clone(),
        };
        let name = match &profile.host {
            Some(host) => format!("{who} · {host}"),
            None => who,
        };
        let tag = ProcessTag::from_random(sys::random());
        let info = info(profile, process, name);
        Drawing::named(profile, process, start, tag, info, "how far they are off is not known", &origin(profile))
    }

    /// A process beside a recording of it with this name; the caller draws its kernels. It has an
    /// id of its own, because Perfetto would give its threads to whichever of the two comes last.
    pub(super) fn beside(
        profile: &'a Profile,
        process: usize,
        start: FileNs,
        tag: ProcessTag,
        name: &str,
        error: &str,
    ) -> Drawing<'a> {
        /// Above those of further GPUs.
        const BESIDE: i32 = 3 << 29;
        let mut info = info(profile, process, name.to_owned());
        info.labels.push(names::of_process(info.pid));
        info.pid |= BESIDE;
        Drawing { without_kernels: true, ..Drawing::named(profile, process, start, tag, info, error, &[]) }
    }

    pub(super) fn tracks(&mut self) -> &mut Tracks {
        &mut self.tracks
    }

    fn named(
        profile: &'a Profile,
        process: usize,
        start: FileNs,
        tag: ProcessTag,
        info: ProcessInfo,
        error: &str,
        origin: &[(&str, String)],
    ) -> Drawing<'a> {
        let time = start.in_trace();
        let begin = profile.clock.to_utc.map(|to_utc| start.to_utc(to_utc));
        let realtime = begin.map_or(0, |UtcNs(ns)| u64::try_from(ns).unwrap_or(0));
        let clocks = Clocks { boottime: time, monotonic: time.0, realtime };
        let mut tracks = Tracks::new(tag, clocks, &info);
        // Before anything else, because readers need it to interpret the rest.
        if !origin.is_empty() {
            tracks.attributes(&origin.iter().map(|(key, value)| (*key, value.as_str())).collect::<Vec<_>>());
        }
        let file = profile.source.path.file_name().unwrap_or_default().to_string_lossy();
        let clock = match begin {
            Some(begin) => format!("its times begin at {}", utc(begin)),
            None => "its times are related to no other clock".into(),
        };
        let note = format!(
            "by ncclscope {} from {file}, by {}; {clock}, on {}; {error}",
            env!("CARGO_PKG_VERSION"),
            source(profile),
            profile.clock.name
        );
        tracks.note(time, instant::IMPORT_STARTED, &note);
        let comms: Vec<Comm> = profile.communicators.iter().enumerate().map(|(at, it)| comm(profile, at, it)).collect();
        let own = profile.communicators.iter().zip(&comms).filter(|(communicator, _)| communicator.process == process);
        for (communicator, comm) in own {
            let said = [
                communicator.name.clone(),
                communicator.hash.map(|hash| format!("{hash:016x}")),
                communicator.ranks.map(|ranks| format!("{ranks} ranks")),
                communicator.rank.map(|rank| format!("rank {rank}")),
                communicator.members.as_ref().map(|members| format!("{WORLD_RANKS}{members}")),
            ];
            let what = if communicator.hash.is_some() { instant::COMM } else { instant::PROCESS_GROUP };
            tracks.note_comm(time, what, comm, &said.into_iter().flatten().collect::<Vec<_>>().join(", "));
        }
        for (&device, name) in &profile.devices {
            let device = activity::Device { device, name: name.as_str().into(), uuid: activity::Device::NO_UUID };
            tracks.draw(&Entry { time, what: What::Device(&device) });
        }
        if profile.source.tool == Tool::Kineto {
            tracks.ranges_by_pytorch();
        }
        if let Some(gaps) = &profile.gaps {
            tracks.note(time, remark::LEFT_OUT, gaps);
        }
        for note in &profile.notes {
            tracks.note(time, instant::IMPORT_NOTE, note);
        }
        let mut history = History::endless();
        markers(profile, process).iter().for_each(|marker| history.follow(marker));
        let own = profile.cuda_calls.iter().filter(|call| call.process == process);
        let numbered = own.filter(|call| call.correlation != 0);
        let calls = numbered.map(|call| (call.correlation, moment(call.tid, call.span))).collect();
        Drawing { profile, process, tag, tracks, comms, history, calls, without_kernels: false }
    }

    /// Draws everything up to `end`.
    pub(super) fn draw(mut self, end: FileNs, file: &mut dyn Write) -> std::io::Result<()> {
        let profile = self.profile;
        let own = |process: usize| process == self.process;
        let mut items: Vec<(FileNs, Item)> = Vec::new();
        let kernels = if self.without_kernels { &[] } else { &profile.kernels[..] };
        let kernels = kernels.iter().enumerate().filter(|(_, it)| own(it.process));
        items.extend(kernels.map(|(at, it)| (it.span.start, Item::Kernel(at))));
        let copies = profile.copies.iter().enumerate().filter(|(_, it)| own(it.process));
        items.extend(copies.map(|(at, it)| (it.span.start, Item::Copy(at))));
        let calls = profile.cuda_calls.iter().enumerate().filter(|(_, it)| own(it.process));
        items.extend(calls.map(|(at, it)| (it.span.start, Item::CudaCall(at))));
        items.sort_by_key(|(start, _)| *start);
        // Inner ranges first, as the tracks expect them.
        let mut ranges: Vec<usize> = (0..profile.ranges.len()).filter(|at| own(profile.ranges[*at].process)).collect();
        ranges.sort_by_key(|at| (profile.ranges[*at].span.end, Reverse(profile.ranges[*at].span.start)));

        let operations = operations(profile, self.tag);
        for (_, item) in items {
            match item {
                Item::Kernel(at) => self.kernel(at, &operations),
                Item::Copy(at) => self.copy(at),
                Item::CudaCall(at) => self.cuda_call(at),
            }
            self.write(CHUNK, file)?;
        }
        for at in ranges {
            self.range(at);
            self.write(CHUNK, file)?;
        }
        self.tracks.note(end.in_trace(), instant::IMPORT_ENDED, "everything that could be read is drawn");
        self.write(0, file)
    }

    fn write(&mut self, above: usize, file: &mut dyn Write) -> std::io::Result<()> {
        if self.tracks.pending_bytes() > above { file.write_all(&self.tracks.take()) } else { Ok(()) }
    }

    fn entry(&mut self, start: FileNs, what: What<'_>) {
        self.tracks.draw(&Entry { time: start.in_trace(), what });
    }

    fn kernel(&mut self, at: usize, operations: &Operations) {
        let (profile, kernel) = (self.profile, &self.profile.kernels[at]);
        let model = activity::Kernel {
            span: span(kernel.span),
            place: kernel.place,
            correlation: kernel.correlation,
            graph_node: kernel.graph_node,
            graph: 0,
            grid: kernel.grid,
            block: kernel.block,
            name: Arc::clone(&kernel.name),
        };
        let carried: Vec<Arc<Operation>> =
            kernel.carried.operations.iter().map(|at| Arc::clone(&operations[at])).collect();
        let first = kernel.carried.operations.first().and_then(|at| profile.operations[*at].communicator);
        let launched = self.calls.get(&kernel.correlation).copied();
        let around = |operation: &Arc<Operation>| Some(self.history.around(operation.asked.or(launched)?));
        let around: Vec<Around> = carried.iter().map(|operation| around(operation).unwrap_or_default()).collect();
        let comms = std::mem::take(&mut self.comms);
        let owner = match kernel.carried.how {
            _ if !kernel.is_collective() => Owner::Application,
            _ if carried.is_empty() && launched.is_some() => Owner::Unmatched(Unmatched::NotSaid),
            _ if carried.is_empty() => Owner::Unmatched(Unmatched::NotInFile),
            how => Owner::Operations {
                method: match how {
                    // Kineto links them by CUPTI's external ids.
                    How::Told => Method::External,
                    How::Named => Method::KernelName,
                    _ => Method::Range,
                },
                comm: first.map(|at| &comms[at]),
                operations: &carried,
                around: &around,
                late: &[],
                channels: &[],
                launch: None,
                replay: None,
                untold: 0,
            },
        };
        self.tracks.draw(&Entry { time: model.span.start, what: What::Kernel { kernel: &model, owner } });
        self.comms = comms;
    }

    fn copy(&mut self, at: usize) {
        let copy = &self.profile.copies[at];
        let model = activity::Copy {
            span: span(copy.span),
            place: copy.place,
            correlation: copy.correlation,
            graph_node: 0,
            bytes: copy.bytes.unwrap_or(0),
            kind: copy.kind,
        };
        self.entry(copy.span.start, What::Copy { copy: &model, of: None });
    }

    fn thread_name(&self, tid: i64) -> Arc<str> {
        self.profile.processes[self.process].threads.get(&tid).map_or("", String::as_str).into()
    }

    fn cuda_call(&mut self, at: usize) {
        let call = &self.profile.cuda_calls[at];
        let model = activity::CudaCall {
            span: span(call.span),
            api: call.api,
            name: Arc::clone(&call.name),
            tid: thread(call.tid),
            thread: self.thread_name(call.tid),
            correlation: call.correlation,
            result: 0,
        };
        self.entry(call.span.start, What::CudaCall(&model));
    }

    fn range(&mut self, at: usize) {
        let range = &self.profile.ranges[at];
        let is_mark = range.span.start == range.span.end;
        let marker = activity::Marker {
            time: range.span.start.in_trace(),
            error_ns: activity::Span::UNKNOWN_ERROR,
            id: 0,
            edge: if is_mark { Edge::Mark } else { Edge::Begin },
            tid: range.tid.map(thread),
            thread: range.tid.map_or_else(|| "".into(), |tid| self.thread_name(tid)),
            name: Arc::clone(&range.name),
            domain: range.domain.clone(),
        };
        let end = (!is_mark).then_some(range.span.end.in_trace());
        self.entry(range.span.start, What::Range { marker: &marker, end, is_open: false });
    }
}

/// The begins and ends of a process's ranges, in order of time. At equal times, inner ends come
/// first and outer begins before inner ones.
pub(super) fn markers(profile: &Profile, process: usize) -> Vec<activity::Marker> {
    let mut edges = Vec::new();
    for (at, range) in profile.ranges.iter().enumerate().filter(|(_, range)| range.process == process) {
        let import::Span { start, end } = range.span;
        if start < end {
            edges.push((start, true, Reverse(end), at));
            edges.push((end, false, Reverse(start), at));
        }
    }
    edges.sort_unstable();
    let marker = |(time, begins, _, at): (FileNs, bool, Reverse<FileNs>, usize)| {
        let range = &profile.ranges[at];
        activity::Marker {
            time: time.in_trace(),
            error_ns: activity::Span::UNKNOWN_ERROR,
            id: at as u32,
            edge: if begins { Edge::Begin } else { Edge::End },
            tid: range.tid.map(thread),
            thread: "".into(),
            name: Arc::clone(&range.name),
            domain: range.domain.clone(),
        }
    };
    edges.into_iter().map(marker).collect()
}

/// Where an imported trace comes from, in the form of its attributes.
fn origin(profile: &Profile) -> Vec<(&'static str, String)> {
    let source = &profile.source;
    let known = [
        (attribute::TOOL, Some(source.tool.to_string())),
        (attribute::TOOL_VERSION, Some(source.version.clone())),
        (attribute::TOOL_CLOCK, Some(profile.clock.name.clone())),
        (attribute::TOOL_HOST, profile.host.clone()),
        (attribute::TOOL_RANKS, profile.world.map(|world| world.to_string())),
        (attribute::NCCL_VERSION, profile.nccl_versions.first().cloned()),
    ];
    known.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

/// The tool and its version.
fn source(profile: &Profile) -> String {
    format!("{} {}", profile.source.tool, profile.source.version)
}

/// A process as it is drawn under this name.
fn info(profile: &Profile, process: usize, name: String) -> ProcessInfo {
    let rank = profile.processes[process].rank.and_then(|rank| rank.try_into().ok());
    let world_size = profile.world.and_then(|size| size.try_into().ok());
    let labels = vec![format!("imported from {}", source(profile))];
    ProcessInfo { pid: pid(profile, process), name, labels, rank, world_size }
}

/// The process id that a process has in the trace. If several ranks were merged in one file, two
/// may share an id, or have one that no system assigns; these get others.
fn pid(profile: &Profile, process: usize) -> i32 {
    /// Linux assigns no id above 2^22, and a process's further GPUs have the ids after its own.
    const MADE_UP: i32 = 1 << 30;
    let known = |at: usize| i32::try_from(profile.processes[at].pid).ok();
    let is_taken = (0..process).any(|before| known(before) == known(process));
    known(process).filter(|_| !is_taken).unwrap_or(MADE_UP + process as i32)
}

/// The start of a span on a thread.
fn moment(tid: i64, span: import::Span) -> Moment {
    Moment { tid: thread(tid), time: span.start.in_trace() }
}

/// The system's id of a thread. Kineto may have a larger number from `pthread_self`, whose lower
/// bits also tell threads apart.
fn thread(tid: i64) -> i32 {
    tid as i32
}

fn span(span: import::Span) -> activity::Span {
    let (start, end) = (span.start.in_trace(), span.end.max(span.start).in_trace());
    activity::Span { start, end, error_ns: activity::Span::UNKNOWN_ERROR }
}

fn comm(profile: &Profile, at: usize, communicator: &import::Communicator) -> Comm {
    let digits = |version: &String| {
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        next() * 10_000 + next() * 100 + next()
    };
    Comm {
        context: Handle(at as u64 + 1),
        number: at as u32 + 1,
        hash: communicator.hash.unwrap_or(0),
        name: communicator.name.as_deref().map(Into::into),
        rank: communicator.rank.unwrap_or(-1),
        ranks: communicator.ranks.unwrap_or(-1),
        nodes: -1,
        interface: 0,
        version: profile.nccl_versions.first().map_or(0, digits),
        device: communicator.device(),
        timer: GpuTimer::NANOSECONDS,
    }
}

/// The operations in the trace's own terms, each created once.
type Operations = HashMap<usize, Arc<Operation>>;

fn operations(profile: &Profile, tag: ProcessTag) -> Operations {
    let carried = profile.kernels.iter().flat_map(|kernel| &kernel.carried.operations);
    // Each gets a number of its own, because arrows are drawn between equal ones.
    let made = |at: usize| Arc::new(operation(&profile.operations[at], Handle(tag.base() + at as u64 + 1)));
    carried.map(|at| (*at, made(*at))).collect()
}

/// An operation as a call of the application, which is what other tools know. It leaves out
/// everything that only a hand-over says.
fn operation(of: &import::Operation, id: Handle) -> Operation {
    let func = Word::known(of.function.as_bytes()).unwrap_or(Word::ABSENT);
    let datatype = of.datatype.as_deref().and_then(|name| Word::known(name.as_bytes())).unwrap_or(Word::ABSENT);
    let text = |word: Word, text: Option<&str>| text.filter(|_| word == Word::ABSENT).map(Into::into);
    let texts = Texts {
        func: text(func, Some(&of.function)),
        datatype: text(datatype, of.datatype.as_deref()),
        ..Texts::default()
    };
    let has_texts = texts.func.is_some() || texts.datatype.is_some();
    // NVTX ranges of NCCL carry a size only.
    let (count, datatype) = match (of.count, of.bytes) {
        (None, Some(bytes)) if datatype == Word::ABSENT && texts.datatype.is_none() => (bytes, Word::BYTES),
        (count, _) => (count.unwrap_or(0), datatype),
    };
    let event = match (of.is_point_to_point(), of.peer) {
        (true, Some(peer)) => Event::P2p(P2p { count, peer, func, datatype, ..P2p::default() }),
        (true, None) => Event::P2pApi(P2pApi { count, func, datatype, ..P2pApi::default() }),
        (false, _) => {
            Event::CollApi(CollApi { count, func, datatype, root: of.root.unwrap_or(-1), ..CollApi::default() })
        }
    };
    let since = of.call.map_or(HostNs(0), |call| call.start.in_trace());
    let texts = has_texts.then(|| Box::new(texts));
    let asked = of.call.zip(of.tid).map(|(call, tid)| moment(tid, call));
    Operation { id, since, asked, event, texts, number: Operation::UNNUMBERED }
}
