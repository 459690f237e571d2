//! Kineto's JSON as PyTorch's profiler writes it: Chrome trace events, plain or gzipped, read event
//! by event.
//!
//! Times are decimal microseconds from `baseTimeNanoseconds`, which may come after the events. They
//! are read as decimals, not as floating-point numbers, which lose digits of times since 1970. Of a
//! file that was cut off, everything before the cut is read. The names of fields and categories are
//! those in libkineto's `output_json.cpp` and of the activities it writes, including AMD's.

mod arrows;
mod asked;
mod event;
mod owners;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::error::Category;

use self::arrows::Arrows;
use self::asked::{Asked, group_name};
use self::event::{DeviceProperties, Distributed, Event, Id, nanoseconds};
use self::owners::Owners;
use super::{
    BYTE_ORDER_MARK, Carried, Clock, Communicator, Copy, CudaCall, Error, Kernel, Place, Process, Profile, Range,
    SINCE_1970, Source, Span, Tool,
};
use crate::model::activity::{Api, CopyKind};
use crate::model::time::FileNs;

/// How many faulty events are described individually.
const FAULTS: usize = 8;
/// The supported schema.
const SCHEMA: u64 = 1;

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<Profile, Error> {
    let mut file = BufReader::new(File::open(path)?);
    let is_gzip = file.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    let mut inner: Box<dyn BufRead> =
        if is_gzip { Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file))) } else { Box::new(file) };
    let position = Rc::new(Cell::new(0));
    // If it cannot be decompressed, the parser will say so.
    if inner.fill_buf().is_ok_and(|text| text.starts_with(BYTE_ORDER_MARK)) {
        inner.consume(BYTE_ORDER_MARK.len());
        position.set(BYTE_ORDER_MARK.len() as u64);
    }
    let position_of = Rc::clone(&position);
    let mut reader = Reader { position: Rc::clone(&position), ..Reader::default() };
    let mut json = serde_json::Deserializer::from_reader(Counted { inner, position });
    let result = reader.deserialize(&mut json).and_then(|()| json.end());
    if let Err(error) = result {
        reader.fault(&error, position_of.get(), is_gzip)?;
    }
    reader.finish()
}

/// Counts the bytes that the parser takes, one by one, so that a fault has a position.
struct Counted<R> {
    inner: R,
    position: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.position.set(self.position.get() + length as u64);
        Ok(length)
    }
}

#[derive(Default)]
struct Reader {
    position: Rc<Cell<u64>>,
    profile: Profile,
    /// Processes by the file's ids. In the file GPUs are processes, too, but not here.
    processes: HashMap<Id, usize>,
    /// Names of processes and threads, which may come before anything else about them.
    names: Vec<(Id, Option<i64>, String)>,
    /// Texts that are repeated thousands of times.
    texts: HashMap<String, Arc<str>>,
    owners: Owners,
    arrows: Arrows,
    asked: Asked,
    /// Events that have begun, by thread, outermost first.
    begun: HashMap<(Id, Id), Vec<Event>>,
    base: Option<i64>,
    schema: Option<u64>,
    distributed: Distributed,
    events: u64,
    has_events: bool,
    /// By category: how many events the model has no place for.
    left_out: BTreeMap<String, u64>,
    /// Ends without a begin.
    unbegun: u64,
    faults: Vec<String>,
    more_faults: u64,
}

impl Reader {
    fn deserialize<'de, D: Deserializer<'de>>(&mut self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(Top(self))
    }

    /// Reports what is wrong with the file. A file that is only cut off gives a remark, if some of
    /// it was read.
    fn fault(&mut self, error: &serde_json::Error, position: u64, is_gzip: bool) -> Result<(), Error> {
        let text = if is_gzip { " of the unpacked text" } else { "" };
        let at = format!("byte {position}{text} (line {}, column {})", error.line(), error.column());
        let behind = match self.events {
            0 => "before the first event".to_owned(),
            events => format!("after event {events}"),
        };
        let kind = error.classify();
        let is_cut = kind == Category::Eof || error.io_error_kind() == Some(io::ErrorKind::UnexpectedEof);
        if is_cut && self.events > 0 {
            self.profile.notes.push(format!(
                "the file ends at {at}, {behind}: the process was killed while writing, or the copy is incomplete; \
                 anything after this point is missing, such as names, ranks and versions"
            ));
            return Ok(());
        }
        Err(match kind {
            _ if is_cut => Error::Damaged(format!(
                "the JSON ends at {at}, {behind}: the process was killed while writing, or the copy is incomplete"
            )),
            Category::Io => Error::Damaged(format!(
                "failed to read further at {at}, {behind}: {error}; the file is damaged, copy it again"
            )),
            kind if self.events == 0 && (!self.has_events || kind == Category::Data) => {
                Error::Foreign(format!("this is not a Kineto trace: {error}, at {at}"))
            }
            _ => Error::Damaged(format!(
                "malformed JSON at {at}, {behind}: {error}; have PyTorch's profiler write it again"
            )),
        })
    }

    fn event(&mut self, event: Event) {
        self.events += 1;
        match event.ph.as_str() {
            "M" => self.name(&event),
            "X" => {
                let (start, duration) = (nanoseconds(event.ts.as_deref()), nanoseconds(event.dur.as_deref()));
                let (Some(start), Some(duration)) = (start, duration.filter(|duration| *duration >= 0)) else {
                    return self.complain(&event, "has no readable time or duration");
                };
                let Some(end) = start.checked_add(duration) else {
                    return self.complain(&event, "ends at an impossible time");
                };
                self.complete(&event, Span::of(start, end));
            }
            "B" => self.begun.entry((event.pid.clone(), event.tid.clone())).or_default().push(event),
            "E" => {
                let thread = (event.pid.clone(), event.tid.clone());
                let Some(begin) = self.begun.get_mut(&thread).and_then(Vec::pop) else {
                    self.unbegun += 1;
                    return;
                };
                let times = nanoseconds(begin.ts.as_deref()).zip(nanoseconds(event.ts.as_deref()));
                match times.filter(|(start, end)| start <= end) {
                    Some((start, end)) => self.complete(&begin, Span::of(start, end)),
                    None => self.complain(&begin, "has no readable begin or end"),
                }
            }
            "s" | "f" if event.cat == "ac2g" => self.arrow(&event),
            _ => {}
        }
    }

    /// An event with its begin and end.
    fn complete(&mut self, event: &Event, span: Span) {
        match event.cat.as_str() {
            "kernel" => self.kernel(event, span),
            "gpu_memcpy" | "gpu_memset" => self.copy(event, span),
            "cuda_runtime" | "cuda_driver" => self.cuda_call(event, span),
            "cpu_op" | "user_annotation" | "python_function" => self.range(event, span),
            other => {
                if other == "gpu_user_annotation" {
                    self.asked.annotate(&event.pid, event.tid.number, span, &event.name);
                }
                *self.left_out.entry(other.to_owned()).or_default() += 1;
            }
        }
    }

    fn arrow(&mut self, event: &Event) {
        let (Some(number), Some(time)) = (event.id.number, nanoseconds(event.ts.as_deref()).map(FileNs)) else {
            return self.complain(event, "is an arrow without a number or a time");
        };
        let ends = (&event.pid, &event.tid);
        if event.ph == "s" { self.arrows.begin(number, ends, time) } else { self.arrows.end(number, ends, time) }
    }

    fn complain(&mut self, event: &Event, what: &str) {
        if self.faults.len() < FAULTS {
            let (number, at) = (self.events, self.position.get());
            let Event { cat, name, .. } = event;
            self.faults.push(format!("event {number} (it ends at byte {at}): {cat} \"{name}\" {what}"));
        } else {
            self.more_faults += 1;
        }
    }

    fn name(&mut self, event: &Event) {
        let (Some(_), Some(name)) = (event.pid.number, &event.args.name) else { return };
        match (event.name.as_str(), event.tid.number) {
            ("process_name", _) => self.names.push((event.pid.clone(), None, name.clone())),
            ("thread_name", Some(tid)) => self.names.push((event.pid.clone(), Some(tid), name.clone())),
            _ => {}
        }
    }

    /// The process and thread of a host event that began at `start`.
    fn thread(&mut self, event: &Event, start: FileNs) -> Option<(usize, i64)> {
        let (Some(pid), Some(tid)) = (event.pid.number, event.tid.number) else {
            self.complain(event, "has no process or no thread");
            return None;
        };
        let process = *self.processes.entry(event.pid.clone()).or_insert_with(|| {
            let name = event.pid.label.clone();
            let rank = event.pid.rank();
            self.profile.processes.push(Process { pid, name, rank, threads: BTreeMap::new(), lost: 0 });
            self.profile.processes.len() - 1
        });
        self.owners.met(process, start);
        Some((process, tid))
    }

    fn text(&mut self, text: &str) -> Arc<str> {
        match self.texts.get(text) {
            Some(known) => Arc::clone(known),
            None => {
                let shared: Arc<str> = text.into();
                self.texts.insert(text.to_owned(), Arc::clone(&shared));
                shared
            }
        }
    }

    fn kernel(&mut self, event: &Event, span: Span) {
        let args = &event.args;
        let kernel = Kernel {
            process: 0,
            span,
            place: place(event),
            correlation: event.correlation(),
            name: self.text(&event.name),
            grid: three(&args.grid),
            block: three(&args.block),
            graph_node: args.graph_node.unwrap_or(0),
            carried: Carried::default(),
        };
        if args.collective.is_some() && kernel.is_collective() {
            self.asked.attach(self.profile.kernels.len(), args);
        }
        if kernel.correlation == 0 {
            self.arrows.kernel(self.profile.kernels.len(), (&event.pid, &event.tid), span.start);
        }
        self.profile.kernels.push(kernel);
        self.owners.kernel(event.pid.clone(), span.start);
    }

    fn copy(&mut self, event: &Event, span: Span) {
        // `Memcpy HtoD (Pinned -> Device)`, `Memset (Device)`; in AMD's first releases
        // `CopyHostToDevice`.
        let kind = match event.name.as_str() {
            name if name.starts_with("Memset") || name.starts_with("FillBuffer") => CopyKind::Set,
            name if name.contains("HtoD") || name.contains("HostToDevice") => CopyKind::HostToDevice,
            name if name.contains("DtoH") || name.contains("DeviceToHost") => CopyKind::DeviceToHost,
            name if name.contains("DtoD") || name.contains("DeviceToDevice") => CopyKind::DeviceToDevice,
            name if name.contains("PtoP") => CopyKind::PeerToPeer,
            _ => CopyKind::Other(0),
        };
        let (place, correlation, bytes) = (place(event), event.correlation(), event.args.bytes);
        if correlation == 0 {
            self.arrows.copy(self.profile.copies.len(), (&event.pid, &event.tid), span.start);
        }
        self.profile.copies.push(Copy { process: 0, span, place, correlation, bytes, kind });
        self.owners.copy(event.pid.clone(), span.start);
    }

    fn cuda_call(&mut self, event: &Event, span: Span) {
        let Some((process, tid)) = self.thread(event, span.start) else { return };
        // Kineto puts AMD's calls under CUDA's runtime, too.
        let api = match event.cat.as_str() {
            _ if event.name.starts_with("hip") => Api::Hip,
            "cuda_driver" => Api::Driver,
            _ => Api::Runtime,
        };
        let call = CudaCall { process, tid, span, name: self.text(&event.name), api, correlation: event.correlation() };
        self.profile.cuda_calls.push(call);
    }

    fn range(&mut self, event: &Event, span: Span) {
        let Some((process, tid)) = self.thread(event, span.start) else { return };
        let (name, domain) = (self.text(&event.name), Some(self.text(&event.cat)));
        self.profile.ranges.push(Range { process, tid: Some(tid), span, name, domain });
    }

    fn finish(mut self) -> Result<Profile, Error> {
        if !self.has_events {
            return Err(Error::Foreign("this is JSON, but not a Kineto trace: it has no traceEvents".into()));
        }
        self.arrows.follow(&mut self.profile, &self.processes);
        self.owners.decide(&mut self.profile, &self.processes);
        self.asked.give(&mut self.profile, |kernel| self.owners.gpu(kernel));
        self.name_processes();
        self.groups();
        self.clock();
        self.note();
        let mut profile = self.profile;
        profile.world = self.distributed.world_size;
        profile.nccl_versions.extend(self.distributed.nccl_version.filter(|version| version != "unknown"));
        let version = self.schema.map_or("of unknown version".into(), |version| format!("schema {version}"));
        profile.source = Source { tool: Tool::Kineto, version, ..Source::default() };
        Ok(profile)
    }

    fn name_processes(&mut self) {
        for (pid, tid, name) in std::mem::take(&mut self.names) {
            let process = self.processes.get(&pid).map(|at| &mut self.profile.processes[*at]);
            match (process, tid) {
                (Some(process), None) => {
                    process.rank = process.rank.or_else(|| event::rank(&name));
                    process.name = match pid.label.as_str() {
                        "" => name,
                        label => format!("{name} {label}"),
                    };
                }
                (Some(process), Some(tid)) => drop(process.threads.insert(tid, name)),
                // In the file each GPU is a process, too, with the GPU's number.
                (None, _) => {}
            }
        }
        // A file states a single rank. Where several processes were merged, it belongs to one of
        // them, and it is not known which.
        if let [process] = &mut self.profile.processes[..] {
            process.rank = self.distributed.rank.or(process.rank);
        }
    }

    /// The process groups that the file lists.
    fn groups(&mut self) {
        if self.profile.processes.len() != 1 {
            return;
        }
        for config in &self.distributed.pg_config {
            let ranks = config.ranks();
            let own = self.distributed.rank.and_then(|rank| ranks.iter().position(|member| *member == rank));
            let own = own.and_then(|at| i32::try_from(at).ok());
            let known = self.asked.groups.get(&(0, config.pg_name.clone())).copied();
            if let Some(known) = known.map(|at| &mut self.profile.communicators[at]) {
                known.rank = own;
                known.ranks = known.ranks.or(config.pg_size);
                continue;
            }
            self.profile.communicators.push(Communicator {
                name: Some(group_name(&config.pg_name, &config.pg_desc)),
                ranks: config.pg_size,
                rank: own,
                members: (!ranks.is_empty()).then(|| format!("{ranks:?}")),
                ..Communicator::default()
            });
        }
    }

    /// Releases before `baseTimeNanoseconds` write the time since 1970. Times without either are on
    /// a clock of their own.
    fn clock(&mut self) {
        let first = self.profile.extent().unwrap_or_default().start;
        let base = self.base.unwrap_or(0);
        self.profile.clock = match first.saturating_add(base) > SINCE_1970 {
            true => Clock::of_file("the wall clock, by Kineto", Some(base)),
            false => Clock::of_file("a clock that the file does not name", None),
        };
    }

    fn note(&mut self) {
        let notes = &mut self.profile.notes;
        if let Some(schema) = self.schema.filter(|schema| *schema > SCHEMA) {
            notes.push(format!("its schema is {schema}; the newest supported one is {SCHEMA}, so it is read as that"));
        }
        if !self.left_out.is_empty() {
            let all: Vec<_> = self.left_out.iter().map(|(category, count)| format!("{count} {category}")).collect();
            notes.push(format!("events that are not imported: {}", all.join(", ")));
        }
        let unended: usize = self.begun.values().map(Vec::len).sum();
        if unended > 0 || self.unbegun > 0 {
            let unbegun = self.unbegun;
            notes.push(format!(
                "left out: begin events without an end ({unended}), end events without a begin ({unbegun})"
            ));
        }
        notes.extend(self.faults.iter().map(|fault| format!("left out: {fault}")));
        if self.more_faults > 0 {
            notes.push(format!("left out: {} more events that cannot be read", self.more_faults));
        }
    }
}

fn place(event: &Event) -> Place {
    let number = |value: Option<i64>| value.and_then(|it| u32::try_from(it).ok());
    let args = &event.args;
    Place {
        device: number(args.device.or(event.pid.number)).unwrap_or(0),
        context: number(args.context).unwrap_or(0),
        stream: number(args.stream.or(event.tid.number)).unwrap_or(0),
    }
}

fn three(numbers: &[u32]) -> [u32; 3] {
    [0, 1, 2].map(|at| numbers.get(at).copied().unwrap_or(0))
}

/// The whole file: an object with `traceEvents`, or only their array, as older writers produce.
struct Top<'a>(&'a mut Reader);

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with traceEvents")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => map.next_value_seed(Events(self.0))?,
                // Around the events, null and odd values are ignored.
                "baseTimeNanoseconds" => self.0.base = map.next_value::<Value>()?.as_i64(),
                "schemaVersion" => self.0.schema = map.next_value::<Value>()?.as_u64(),
                "distributedInfo" => {
                    self.0.distributed = serde_json::from_value(map.next_value()?).unwrap_or_default();
                }
                "deviceProperties" => {
                    let Value::Array(devices) = map.next_value()? else { continue };
                    let devices =
                        devices.into_iter().filter_map(|it| serde_json::from_value::<DeviceProperties>(it).ok());
                    let named = devices.filter(|device| !device.name.is_empty());
                    self.0.profile.devices = named.map(|device| (device.id, device.name)).collect();
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        Events(self.0).visit_seq(seq)
    }
}

/// The events, one after the other.
struct Events<'a>(&'a mut Reader);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.0.has_events = true;
        while let Some(event) = seq.next_element::<Event>()? {
            self.0.event(event);
        }
        Ok(())
    }
}
