//! Kineto's JSON, as PyTorch's profiler writes it: Chrome's trace events, plain or gzipped, read event by event.
//!
//! Times are microseconds with decimals, counted from `baseTimeNanoseconds`, which may stand behind the events. They are read as decimals,
//! not as floating-point numbers: those lose digits of times since 1970.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{
    Carried, Clock, Communicator, Copy, CudaCall, Error, How, Kernel, Operation, Place, Process, Profile, Range,
    Source, Span, Tool,
};
use crate::model::activity::CopyKind;
use crate::model::word::Word;

/// Faulty events that are described one by one.
const FAULTS: usize = 8;

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<Profile, Error> {
    let mut file = BufReader::new(File::open(path)?);
    let is_gzip = file.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    let position = Rc::new(Cell::new(0));
    let position_of = Rc::clone(&position);
    let inner: Box<dyn Read> =
        if is_gzip { Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file))) } else { Box::new(file) };
    let mut reader = Reader { position: Rc::clone(&position), ..Reader::default() };
    let mut json = serde_json::Deserializer::from_reader(Counted { inner, position });
    let result = reader.deserialize(&mut json).and_then(|()| json.end());
    result.map_err(|error| reader.fault(&error, position_of.get(), is_gzip))?;
    reader.finish()
}

/// Counts the bytes that the parser has taken, one by one, so that a fault has a position.
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

/// One of Chrome's events: what of it is used.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    ph: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    pid: Id,
    #[serde(default)]
    tid: Id,
    ts: Option<Box<RawValue>>,
    dur: Option<Box<RawValue>>,
    #[serde(default)]
    args: Arguments,
}

/// What events say beside their times.
#[derive(Default, Deserialize)]
struct Arguments {
    #[serde(default, deserialize_with = "lenient")]
    name: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    device: Option<i64>,
    #[serde(default, deserialize_with = "lenient")]
    context: Option<i64>,
    #[serde(default, deserialize_with = "lenient")]
    stream: Option<i64>,
    #[serde(default, deserialize_with = "lenient")]
    correlation: Option<i64>,
    #[serde(default, deserialize_with = "lenient")]
    bytes: Option<u64>,
    #[serde(default, deserialize_with = "lenient")]
    grid: Vec<u32>,
    #[serde(default, deserialize_with = "lenient")]
    block: Vec<u32>,
    #[serde(rename = "graph node id", default, deserialize_with = "lenient")]
    graph_node: Option<u64>,
    #[serde(rename = "Collective name", default, deserialize_with = "lenient")]
    collective: Option<String>,
    #[serde(rename = "In msg nelems", default, deserialize_with = "lenient")]
    elements_in: Option<u64>,
    #[serde(rename = "Out msg nelems", default, deserialize_with = "lenient")]
    elements_out: Option<u64>,
    #[serde(rename = "Group size", default, deserialize_with = "lenient")]
    group_size: Option<i32>,
    #[serde(rename = "dtype", default, deserialize_with = "lenient")]
    datatype: Option<String>,
    #[serde(rename = "Process Group Name", default, deserialize_with = "lenient")]
    group_name: Option<String>,
    #[serde(rename = "Process Group Description", default, deserialize_with = "lenient")]
    group_description: Option<String>,
    #[serde(rename = "Process Group Ranks", default, deserialize_with = "lenient")]
    group_ranks: Option<String>,
    #[serde(rename = "Src Rank", default, deserialize_with = "lenient")]
    source_rank: Option<i32>,
    #[serde(rename = "Dst Rank", default, deserialize_with = "lenient")]
    target_rank: Option<i32>,
    #[serde(rename = "Seq", default, deserialize_with = "lenient")]
    sequence: Option<u64>,
}

/// A value of the wanted type, or none: releases differ in what they write, and one odd argument says nothing against an event.
fn lenient<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Lenient<T> {
        Wanted(T),
        Other(IgnoredAny),
    }
    Ok(match Lenient::deserialize(deserializer)? {
        Lenient::Wanted(value) => value,
        Lenient::Other(IgnoredAny) => T::default(),
    })
}

/// A process or a thread: a number, or a word for what is none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Id(Option<i64>);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Id;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a name")
            }
            fn visit_i64<E>(self, number: i64) -> Result<Id, E> {
                Ok(Id(Some(number)))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Id, E> {
                Ok(Id(i64::try_from(number).ok()))
            }
            fn visit_str<E>(self, text: &str) -> Result<Id, E> {
                Ok(Id(text.parse().ok()))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// `distributedInfo`.
#[derive(Default, Deserialize)]
struct Distributed {
    rank: Option<i32>,
    world_size: Option<i32>,
    nccl_version: Option<String>,
    #[serde(default)]
    pg_config: Vec<GroupConfig>,
}

/// A process group of `distributedInfo`.
#[derive(Default, Deserialize)]
struct GroupConfig {
    #[serde(default)]
    pg_name: String,
    #[serde(default)]
    pg_desc: String,
    pg_size: Option<i32>,
    #[serde(default)]
    ranks: Vec<i32>,
}

#[derive(Deserialize)]
struct DeviceProperties {
    id: u32,
    #[serde(default)]
    name: String,
}

#[derive(Default)]
struct Reader {
    position: Rc<Cell<u64>>,
    profile: Profile,
    /// Processes by their number; GPUs are processes too in the file, and not here.
    processes: HashMap<i64, usize>,
    /// Names of processes and threads, which may come before anything else of these.
    names: Vec<(i64, Option<i64>, String)>,
    groups: HashMap<String, usize>,
    /// What is repeated thousands of times.
    texts: HashMap<String, Arc<str>>,
    base: Option<i64>,
    schema: Option<u64>,
    distributed: Distributed,
    events: u64,
    has_events: bool,
    /// By category, what there is no place for in the model.
    left_out: BTreeMap<String, u64>,
    faults: Vec<String>,
    more_faults: u64,
}

impl Reader {
    fn deserialize<'de, D: Deserializer<'de>>(&mut self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(Top(self))
    }

    fn fault(&self, error: &serde_json::Error, position: u64, is_gzip: bool) -> Error {
        let text = if is_gzip { " of the unpacked text" } else { "" };
        let at = format!("byte {position}{text} (line {}, column {})", error.line(), error.column());
        let behind = match self.events {
            0 => "before the first event".to_owned(),
            events => format!("behind event {events}"),
        };
        match error.classify() {
            serde_json::error::Category::Io => Error::Damaged(format!(
                "failed to read on at {at}, {behind}: {error}; the file is cut off or damaged, copy it again"
            )),
            serde_json::error::Category::Eof => Error::Damaged(format!(
                "the JSON ends at {at}, {behind}: the process was killed while it wrote, or the copy is not whole"
            )),
            kind if self.events == 0 && (!self.has_events || kind == serde_json::error::Category::Data) => {
                Error::Foreign(format!("this is no trace of Kineto's: {error}, at {at}"))
            }
            _ => Error::Damaged(format!(
                "malformed JSON at {at}, {behind}: {error}; PyTorch's profiler has to write it again"
            )),
        }
    }

    fn event(&mut self, event: &Event) {
        self.events += 1;
        if event.ph == "M" {
            return self.name(event);
        }
        if event.ph != "X" {
            return;
        }
        let (start, duration) = (nanoseconds(event.ts.as_deref()), nanoseconds(event.dur.as_deref()));
        let (Some(start), Some(duration)) = (start, duration.filter(|duration| *duration >= 0)) else {
            return self
                .complain(&format!("{} \"{}\" has no time or no duration that can be read", event.cat, event.name));
        };
        let Some(end) = start.checked_add(duration) else {
            return self.complain(&format!("{} \"{}\" ends beyond all time", event.cat, event.name));
        };
        let span = Span { start, end };
        match event.cat.as_str() {
            "kernel" => self.kernel(event, span),
            "gpu_memcpy" | "gpu_memset" => self.copy(event, span),
            "cuda_runtime" | "cuda_driver" => self.cuda_call(event, span),
            "cpu_op" | "user_annotation" | "python_function" => self.range(event, span),
            other => *self.left_out.entry(other.to_owned()).or_default() += 1,
        }
    }

    fn complain(&mut self, what: &str) {
        if self.faults.len() < FAULTS {
            self.faults.push(format!("event {} (it ends at byte {}): {what}", self.events, self.position.get()));
        } else {
            self.more_faults += 1;
        }
    }

    fn name(&mut self, event: &Event) {
        let (Some(pid), Some(name)) = (event.pid.0, &event.args.name) else { return };
        match (event.name.as_str(), event.tid.0) {
            ("process_name", _) => self.names.push((pid, None, name.clone())),
            ("thread_name", Some(tid)) => self.names.push((pid, Some(tid), name.clone())),
            _ => {}
        }
    }

    fn process(&mut self, pid: i64) -> usize {
        *self.processes.entry(pid).or_insert_with(|| {
            self.profile.processes.push(Process {
                pid,
                name: String::new(),
                rank: None,
                threads: BTreeMap::new(),
                lost: 0,
            });
            self.profile.processes.len() - 1
        })
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
        let name = self.text(&event.name);
        let args = &event.args;
        let mut kernel = Kernel {
            process: 0,
            span,
            place: place(event),
            correlation: args.correlation.and_then(|it| u32::try_from(it).ok()).unwrap_or(0),
            name,
            grid: three(&args.grid),
            block: three(&args.block),
            graph_node: args.graph_node.unwrap_or(0),
            carried: Carried::default(),
        };
        if kernel.is_nccl()
            && let Some(collective) = &args.collective
        {
            let operation = self.operation(args, collective);
            kernel.carried = Carried { count: 1, operations: vec![self.profile.operations.len()], how: How::Told };
            self.profile.operations.push(operation);
        }
        self.profile.kernels.push(kernel);
    }

    fn operation(&mut self, args: &Arguments, collective: &str) -> Operation {
        let function = function(collective);
        let datatype = args.datatype.as_deref().map(datatype);
        // NCCL counts what a rank puts in, and for a reduce-scatter and an all-gather what a rank has less of.
        let count = match function.as_str() {
            "ReduceScatter" | "Recv" => args.elements_out.or(args.elements_in),
            _ => args.elements_in.or(args.elements_out),
        };
        let size = datatype.as_ref().and_then(|(_, size)| *size);
        Operation {
            communicator: self.group(args),
            count,
            bytes: count.zip(size).and_then(|(count, size)| count.checked_mul(size)),
            datatype: datatype.map(|(name, _)| name),
            peer: match function.as_str() {
                "Send" => args.target_rank,
                "Recv" => args.source_rank,
                _ => None,
            },
            seq: args.sequence,
            function,
            ..Operation::default()
        }
    }

    fn group(&mut self, args: &Arguments) -> Option<usize> {
        let name = args.group_name.as_ref()?;
        if let Some(&known) = self.groups.get(name) {
            return Some(known);
        }
        let description = args.group_description.as_deref().filter(|text| !text.is_empty());
        self.profile.communicators.push(Communicator {
            name: Some(group_name(name, description.unwrap_or_default())),
            ranks: args.group_size,
            members: args.group_ranks.clone().filter(|ranks| !ranks.is_empty()),
            ..Communicator::default()
        });
        let new = self.profile.communicators.len() - 1;
        self.groups.insert(name.clone(), new);
        Some(new)
    }

    fn copy(&mut self, event: &Event, span: Span) {
        // `Memcpy HtoD (Pinned -> Device)`, `Memset (Device)`.
        let kind = match event.name.as_str() {
            name if name.starts_with("Memset") => CopyKind::Set,
            name if name.contains("HtoD") => CopyKind::HostToDevice,
            name if name.contains("DtoH") => CopyKind::DeviceToHost,
            name if name.contains("DtoD") => CopyKind::DeviceToDevice,
            name if name.contains("PtoP") => CopyKind::PeerToPeer,
            _ => CopyKind::Other(0),
        };
        let args = &event.args;
        self.profile.copies.push(Copy {
            process: 0,
            span,
            place: place(event),
            correlation: args.correlation.and_then(|it| u32::try_from(it).ok()).unwrap_or(0),
            bytes: args.bytes.unwrap_or(0),
            kind,
        });
    }

    fn cuda_call(&mut self, event: &Event, span: Span) {
        let (Some(pid), Some(tid)) = (event.pid.0, event.tid.0) else {
            return self.complain(&format!("{} without a process or a thread", event.name));
        };
        let call = CudaCall {
            process: self.process(pid),
            tid,
            span,
            name: self.text(&event.name),
            is_driver: event.cat == "cuda_driver",
            correlation: event.args.correlation.and_then(|it| u32::try_from(it).ok()).unwrap_or(0),
        };
        self.profile.cuda_calls.push(call);
    }

    fn range(&mut self, event: &Event, span: Span) {
        let (Some(pid), Some(tid)) = (event.pid.0, event.tid.0) else {
            return self.complain(&format!("{} without a process or a thread", event.name));
        };
        let range = Range {
            process: self.process(pid),
            tid: Some(tid),
            span,
            name: self.text(&event.name),
            domain: Some(self.text(&event.cat)),
        };
        self.profile.ranges.push(range);
    }

    fn finish(mut self) -> Result<Profile, Error> {
        if !self.has_events {
            return Err(Error::Foreign("this is JSON, but no trace of Kineto's: it has no traceEvents".into()));
        }
        if self.profile.processes.is_empty() {
            // Without a host side the file does not say which process it was.
            self.process(0);
            self.profile.notes.push("the file does not name its process".into());
        }
        let Distributed { rank, world_size, nccl_version, pg_config } = self.distributed;
        let mut profile = self.profile;
        for (pid, tid, name) in self.names {
            let process = self.processes.get(&pid).map(|at| &mut profile.processes[*at]);
            match (process, tid) {
                (Some(process), None) => process.name = name,
                (Some(process), Some(tid)) => drop(process.threads.insert(tid, name)),
                // The file has a process for each GPU too, by its number.
                (None, _) => {}
            }
        }
        if let [process] = &mut profile.processes[..] {
            process.rank = rank;
        }
        for config in pg_config {
            let members = format!("{:?}", config.ranks);
            let known = self.groups.get(&config.pg_name).map(|at| &mut profile.communicators[*at]);
            let at = rank.and_then(|rank| config.ranks.iter().position(|member| *member == rank));
            let own = at.and_then(|at| i32::try_from(at).ok());
            match known {
                Some(known) => {
                    known.rank = own;
                    known.ranks = known.ranks.or(config.pg_size);
                }
                None => profile.communicators.push(Communicator {
                    name: Some(group_name(&config.pg_name, &config.pg_desc)),
                    ranks: config.pg_size,
                    rank: own,
                    members: (!config.ranks.is_empty()).then_some(members),
                    ..Communicator::default()
                }),
            }
        }
        profile.world = world_size;
        profile.nccl_versions.extend(nccl_version);
        let version = self.schema.map_or("of unknown version".into(), |version| format!("schema {version}"));
        profile.source = Source { tool: Tool::Kineto, version, ..Source::default() };
        profile.clock = match self.base {
            Some(base) => Clock { name: "the wall clock, by Kineto".into(), to_utc_ns: Some(base) },
            // Releases before baseTimeNanoseconds write the time since 1970.
            None => Clock { name: "the wall clock, by Kineto".into(), to_utc_ns: Some(0) },
        };
        if !self.left_out.is_empty() {
            let all: Vec<_> = self.left_out.iter().map(|(category, count)| format!("{count} {category}")).collect();
            profile.notes.push(format!("events that are not taken over: {}", all.join(", ")));
        }
        profile.notes.extend(self.faults.iter().map(|fault| format!("left out: {fault}")));
        if self.more_faults > 0 {
            profile.notes.push(format!("left out: {} more events that cannot be read", self.more_faults));
        }
        Ok(profile)
    }
}

fn place(event: &Event) -> Place {
    let number = |value: Option<i64>| value.and_then(|it| u32::try_from(it).ok());
    let args = &event.args;
    Place {
        device: number(args.device.or(event.pid.0)).unwrap_or(0),
        context: number(args.context).unwrap_or(0),
        stream: number(args.stream.or(event.tid.0)).unwrap_or(0),
    }
}

fn three(numbers: &[u32]) -> [u32; 3] {
    [0, 1, 2].map(|at| numbers.get(at).copied().unwrap_or(0))
}

fn group_name(name: &str, description: &str) -> String {
    match description {
        "" | "undefined" => format!("process group {name}"),
        description => format!("{description} ({name})"),
    }
}

/// A function in NCCL's words, from PyTorch's: `allreduce`, `_allgather_base`, `all_to_allv`.
fn function(collective: &str) -> String {
    let plain: String = collective.trim_start_matches("nccl:").chars().filter(|it| *it != '_').collect();
    let plain = plain.to_ascii_lowercase();
    // The longer word first: `reducescatter` begins with `reduce`.
    let known = [
        ("allreduce", "AllReduce"),
        ("allgather", "AllGather"),
        ("alltoall", "AlltoAll"),
        ("reducescatter", "ReduceScatter"),
        ("broadcast", "Broadcast"),
        ("reduce", "Reduce"),
        ("gather", "Gather"),
        ("scatter", "Scatter"),
        ("send", "Send"),
        ("recv", "Recv"),
        // A barrier of PyTorch's is an all-reduce of one element.
        ("barrier", "AllReduce"),
    ];
    known
        .iter()
        .find(|(word, _)| plain.starts_with(word))
        .map_or_else(|| collective.to_owned(), |(_, name)| (*name).to_owned())
}

/// A datatype in NCCL's words and the bytes of an element, from PyTorch's: `Float`, `BFloat16`.
fn datatype(name: &str) -> (String, Option<u64>) {
    let word = match name {
        "Char" | "Bool" => Word::INT8,
        "Byte" => Word::UINT8,
        "Int" => Word::INT32,
        "UInt32" => Word::UINT32,
        "Long" => Word::INT64,
        "UInt64" => Word::UINT64,
        "Half" => Word::FLOAT16,
        "Float" => Word::FLOAT32,
        "Double" => Word::FLOAT64,
        "BFloat16" => Word::BFLOAT16,
        "Float8_e4m3fn" => Word::FLOAT8_E4M3,
        "Float8_e5m2" => Word::FLOAT8_E5M2,
        _ => return (name.to_owned(), None),
    };
    (word.spelling().unwrap_or(name).to_owned(), word.element_bytes())
}

/// Microseconds in decimals as nanoseconds, exactly; `None` where that is no number or beyond what fits.
fn nanoseconds(raw: Option<&RawValue>) -> Option<i64> {
    let text = raw?.get().trim_matches('"');
    if text.contains(['e', 'E']) {
        let value = text.parse::<f64>().ok()? * 1000.0;
        return (value.abs() < 9e18).then_some(value.round() as i64);
    }
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if !decimals.chars().all(|it| it.is_ascii_digit()) {
        return None;
    }
    let digits: String = decimals.chars().chain("000".chars()).take(3).collect();
    let micros = whole.parse::<i64>().ok()?.checked_mul(1000)?;
    let nanos = digits.parse::<i64>().ok()?;
    micros.checked_add(if whole.starts_with('-') { -nanos } else { nanos })
}

/// The whole file: an object with `traceEvents`, or their array alone, as older writers leave it.
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
                "baseTimeNanoseconds" => {
                    let base = map.next_value::<serde_json::Number>()?;
                    self.0.base =
                        Some(base.as_i64().ok_or_else(|| A::Error::custom("baseTimeNanoseconds is no time"))?);
                }
                "schemaVersion" => self.0.schema = map.next_value::<serde_json::Value>()?.as_u64(),
                "distributedInfo" => self.0.distributed = map.next_value()?,
                "deviceProperties" => {
                    let devices = map.next_value::<Vec<DeviceProperties>>()?;
                    self.0.profile.devices = devices.into_iter().map(|device| (device.id, device.name)).collect();
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
            self.0.event(&event);
        }
        Ok(())
    }
}
