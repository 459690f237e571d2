//! A trace as OpenTelemetry's spans and metrics, sent to a collector. docs/otlp.md has the mapping.
//!
//! It uses the same rows as the tables: each operation is a span; operations, the proxy's transfers
//! and losses add up to metrics. Ids are hashes of what they stand for, so ranks agree on the id of
//! an operation, and sending again makes the same ids.

mod send;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use prost::Message;
use rustc_hash::FxHashMap;

use self::proto::any_value::Value;
use self::proto::metric::Data;
use self::proto::number_data_point::Value as Number;
use self::proto::span::SpanKind;
use self::proto::{
    AggregationTemporality, AnyValue, ExportMetricsServiceRequest, ExportTraceServiceRequest, Histogram,
    HistogramDataPoint, InstrumentationScope, KeyValue, Metric, NumberDataPoint, Resource, ResourceMetrics,
    ResourceSpans, ScopeMetrics, ScopeSpans, Span, Sum,
};
use self::send::{Collector, Signal};
use super::rows::{self, Cell, Process, Sink};
use super::schema::{Name, TABLES};
use crate::cli::Reason;

/// OTLP's messages, generated from `proto/otlp.proto`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/otlp.rs"));
}

/// Spans of a request, and their bytes, at most.
const SPANS: usize = 512;
const BYTES: usize = 1 << 20;
/// The most sets of attributes of all metrics of a process: OpenTelemetry's own limit. Beyond it,
/// further ones are counted together.
const SERIES: usize = 2_000;
/// OpenTelemetry's name for what was counted together.
const OVERFLOW: &str = "otel.metric.overflow";
/// The version of the semantic conventions whose names are used.
const CONVENTIONS: &str = "https://opentelemetry.io/schemas/1.37.0";
/// The default of `service.name`.
const SERVICE: &str = "nccl-job";
/// The upper bounds of durations, s.
const BOUNDS: [f64; 25] = [
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0,
    5.0, 10.0, 20.0, 50.0, 100.0,
];

/// What was sent of a trace.
#[derive(Clone, Copy, Default)]
struct Sent {
    spans: u64,
    points: u64,
}

/// Sends traces, several in parallel.
pub(super) fn send(traces: &[PathBuf], endpoint: &str, job: Option<&str>, out: &mut dyn Write) -> Result<(), Reason> {
    let collector = Collector::new(endpoint)?;
    let told = Told::new(job)?;
    let one = |path: &Path, threads| {
        if collector.has_failed() {
            return None;
        }
        let mut spans = Spans { collector: &collector, told: &told, trace: path, processes: FxHashMap::default() };
        let sent = rows::read(path, threads, &mut spans).and_then(|read| Ok((spans.finish()?, read.err())));
        Some(match sent {
            Ok((sent, fault)) => (Some(sent), fault),
            Err(reason) => (None, Some(reason)),
        })
    };
    let (mut whole, mut all) = (0, Sent::default());
    let take = |sent: Sent| {
        whole += 1;
        all = Sent { spans: all.spans + sent.spans, points: all.points + sent.points };
    };
    let mut reasons = super::abreast("sending", traces, one, take);
    once(&mut reasons);
    let (Sent { spans, points }, requests) = (all, collector.requests());
    writeln!(
        out,
        "{endpoint}: {whole} of {} traces sent, {spans} spans and {points} data points; {requests} requests",
        traces.len()
    )
    .map_err(Reason::Output)?;
    match collector.rejected() {
        (0, None) => {}
        (0, Some(remark)) => writeln!(out, "the collector warns: {remark}").map_err(Reason::Output)?,
        (number, remark) => reasons.push(Reason::Refused(format!(
            "{endpoint} accepted part of it and rejected {number} spans or data points: {}",
            remark.unwrap_or("it does not say why")
        ))),
    }
    Reason::all(reasons)
}

/// Leaves out what was said before: traces that are sent at the same time fail for the same reason.
fn once(reasons: &mut Vec<Reason>) {
    let mut said = BTreeSet::new();
    reasons.retain(|reason| said.insert(reason.to_string()));
}

/// What all resources have in common.
struct Told<'a> {
    job: Option<&'a str>,
    attributes: Vec<KeyValue>,
    /// The columns of operations that are attributes of a span: their place, and the attribute's
    /// name.
    columns: Vec<(usize, String)>,
}

impl Told<'_> {
    fn new(job: Option<&str>) -> Result<Told<'_>, Reason> {
        let mut attributes: Vec<KeyValue> =
            send::pairs("OTEL_RESOURCE_ATTRIBUTES")?.into_iter().map(|(key, value)| text(&key, &value)).collect();
        let service = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
        if service.is_some() || attributes.iter().all(|it| it.key != "service.name") {
            attributes.retain(|it| it.key != "service.name");
            attributes.push(text("service.name", service.as_deref().unwrap_or(SERVICE)));
        }
        let columns = TABLES[Name::Operations as usize].columns.iter().enumerate();
        let columns = columns.filter(|(_, column)| !matches!(column.name, "process" | "begin" | "duration_ns"));
        let named = |name: &str| if name == "tid" { "thread.id".to_owned() } else { format!("nccl.{name}") };
        let columns = columns.map(|(place, column)| (place, named(column.name))).collect();
        Ok(Told { job, attributes, columns })
    }
}

/// The spans and metrics of a trace.
struct Spans<'a> {
    collector: &'a Collector,
    told: &'a Told<'a>,
    trace: &'a Path,
    processes: FxHashMap<i64, Batch>,
}

/// What is not sent yet of a process.
#[derive(Default)]
struct Batch {
    resource: Resource,
    /// The job's name, which is in the ids.
    job: Box<str>,
    to_utc: i64,
    /// The first and the last time.
    times: [u64; 2],
    spans: Vec<Span>,
    bytes: usize,
    sent: u64,
    /// When the last row began, and how many before it did so.
    last: (u64, u64),
    metrics: Metrics,
}

impl Sink for Spans<'_> {
    fn row(&mut self, process: &Process, table: Name, row: &[Cell<'_>]) -> Result<(), Reason> {
        if !self.processes.contains_key(&process.id()) {
            let batch = Batch::new(self.told, process, self.trace)?;
            self.processes.insert(process.id(), batch);
        }
        let Some(batch) = self.processes.get_mut(&process.id()) else { return Ok(()) };
        batch.times = process.span().map(|time| time.0.saturating_add_signed(batch.to_utc));
        let of = Row { table, cells: row };
        match table {
            Name::Operations => {
                batch.metrics.operation(&of);
                batch.operation(self.told, process, &of);
                if batch.spans.len() >= SPANS || batch.bytes >= BYTES {
                    batch.send(self.collector)?;
                }
            }
            Name::ProxySteps => batch.metrics.step(&of),
            Name::Losses => batch.metrics.loss(&of),
            _ => {}
        }
        Ok(())
    }
}

impl Spans<'_> {
    /// Sends what is left, and the metrics.
    fn finish(self) -> Result<Sent, Reason> {
        if self.processes.is_empty() {
            return Err(Reason::file(self.trace)("no process recorded by ncclscope is in this Perfetto trace"));
        }
        let mut sent = Sent::default();
        for mut batch in self.processes.into_values() {
            batch.send(self.collector)?;
            sent.spans += batch.sent;
            sent.points += batch.metrics.len();
            let metrics = std::mem::take(&mut batch.metrics).messages(batch.times);
            if !metrics.is_empty() {
                let scope_metrics = vec![ScopeMetrics { scope: Some(scope()), metrics }];
                let schema_url = CONVENTIONS.to_owned();
                let resource_metrics =
                    vec![ResourceMetrics { resource: Some(batch.resource), scope_metrics, schema_url }];
                self.collector.send(Signal::Metrics, &ExportMetricsServiceRequest { resource_metrics })?;
            }
        }
        Ok(sent)
    }
}

impl Batch {
    fn new(told: &Told<'_>, process: &Process, trace: &Path) -> Result<Batch, Reason> {
        if !process.knows_utc() {
            return Err(Reason::file(trace)(
                "the recording does not say what time it was by the wall clock, which spans need; --parquet does not",
            ));
        }
        let job = process.job_or(told.job, trace)?;
        let mut attributes = told.attributes.clone();
        let own = [
            text("service.instance.id", &format!("{:016x}", process.id())),
            text("host.name", process.host()),
            int("process.pid", process.pid()),
            text("nccl.job", job),
        ];
        attributes.retain(|it| own.iter().all(|own| own.key != it.key));
        attributes.extend(own);
        attributes.extend(process.rank().map(|rank| int("nccl.rank", rank.into())));
        let (resource, job, to_utc) = (Resource { attributes }, job.into(), process.to_utc());
        Ok(Batch { resource, job, to_utc, ..Batch::default() })
    }

    /// An operation as a span.
    fn operation(&mut self, told: &Told<'_>, process: &Process, row: &Row<'_>) {
        let wall = |time: Cell<'_>| match time {
            Cell::Time(time) => Some(time.0.saturating_add_signed(self.to_utc)),
            _ => None,
        };
        let (begin, handed_over) = (wall(row.cell("begin")), wall(row.cell("handed_over")));
        let Some(start) = begin.or(handed_over) else { return };
        let duration = row.number("duration_ns").map(i64::cast_unsigned);
        // Unknown times are not made up: the span then has no length, and says why.
        let times = match (begin, duration) {
            (Some(_), Some(_)) => "kernel",
            (Some(_), None) => "begin of kernel",
            _ => "hand-over",
        };
        self.last = if self.last.0 == start { (start, self.last.1 + 1) } else { (start, 0) };
        let function = row.text("function");
        let trace_id = self.trace_id(process, row, start);
        let numbers = [start, self.last.1, process.id().cast_unsigned(), trace_id as u64, (trace_id >> 64) as u64];
        let parts: Vec<[u8; 8]> = numbers.map(u64::to_le_bytes).into();
        let span_id = hashed(&parts.iter().map(<[u8; 8]>::as_slice).collect::<Vec<_>>()) as u64;
        let mut attributes = vec![text("nccl.times", times)];
        attributes.extend(process.rank().map(|rank| int("nccl.rank", rank.into())));
        for (place, name) in &told.columns {
            attributes.extend(match row.cells[*place] {
                Cell::None => None,
                Cell::Time(time) => Some(int(name, time.0.cast_signed().saturating_add(self.to_utc))),
                Cell::Number(number) => Some(int(name, number)),
                Cell::Text(value) => Some(text(name, value)),
                Cell::Flag(flag) => Some(attribute(name, Value::BoolValue(flag))),
            });
        }
        let span = Span {
            trace_id: trace_id.max(1).to_be_bytes().into(),
            span_id: span_id.max(1).to_be_bytes().into(),
            name: function.unwrap_or("operation").to_owned(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: start,
            end_time_unix_nano: start + if times == "kernel" { duration.unwrap_or(0) } else { 0 },
            attributes,
        };
        self.bytes += span.encoded_len();
        self.spans.push(span);
    }

    /// The same on all ranks of an operation. An operation that nothing relates to other ranks has
    /// its own.
    fn trace_id(&self, process: &Process, row: &Row<'_>, start: u64) -> u128 {
        let comm = row.text("comm");
        let [mark, seq, replay] = ["operation", "seq", "replay"].map(|name| row.number(name));
        let replay = replay.unwrap_or(0).to_le_bytes();
        let job = self.job.as_bytes();
        match (comm, mark, seq, row.text("function")) {
            (Some(comm), Some(mark), ..) => hashed(&[b"mark", job, comm.as_bytes(), &mark.to_le_bytes(), &replay]),
            (Some(comm), None, Some(seq), Some(function)) => {
                hashed(&[b"seq", job, comm.as_bytes(), function.as_bytes(), &seq.to_le_bytes(), &replay])
            }
            _ => {
                let own = [start, self.last.1, process.id().cast_unsigned()].map(u64::to_le_bytes);
                hashed(&[b"own", job, &own[0], &own[1], &own[2]])
            }
        }
    }

    fn send(&mut self, collector: &Collector) -> Result<(), Reason> {
        let spans = std::mem::take(&mut self.spans);
        self.bytes = 0;
        if spans.is_empty() {
            return Ok(());
        }
        let number = spans.len() as u64;
        let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans }];
        let (resource, schema_url) = (Some(self.resource.clone()), CONVENTIONS.to_owned());
        let resource_spans = vec![ResourceSpans { resource, scope_spans, schema_url }];
        collector.send(Signal::Traces, &ExportTraceServiceRequest { resource_spans })?;
        self.sent += number;
        Ok(())
    }
}

/// The totals of a process, by attributes with few names and values, without times.
#[derive(Default)]
struct Metrics {
    operations: FxHashMap<Series, Operations>,
    bytes: FxHashMap<Series, u64>,
    waits: FxHashMap<Series, u64>,
    losses: FxHashMap<Series, u64>,
}

/// The attributes of a data point. Empty for everything beyond the limit.
type Series = Vec<(&'static str, Box<str>)>;

#[derive(Default)]
struct Operations {
    number: u64,
    bytes: u64,
    /// Of those whose duration is known.
    durations: Durations,
}

#[derive(Default)]
struct Durations {
    number: u64,
    ns: u64,
    least: u64,
    most: u64,
    buckets: [u64; BOUNDS.len() + 1],
}

impl Durations {
    fn add(&mut self, ns: u64) {
        self.least = if self.number == 0 { ns } else { self.least.min(ns) };
        self.most = self.most.max(ns);
        self.number += 1;
        self.ns += ns;
        // A bound belongs to the bucket below it.
        self.buckets[BOUNDS.partition_point(|bound| *bound < seconds(ns))] += 1;
    }
}

impl Metrics {
    fn operation(&mut self, row: &Row<'_>) {
        let series = row.series(&[("nccl.function", "function"), ("nccl.comm", "comm")]);
        let of = counted(&mut self.operations, series);
        of.number += 1;
        of.bytes += row.number("bytes").unwrap_or(0).cast_unsigned();
        if let Some(ns) = row.number("duration_ns").filter(|_| row.cell("begin") != Cell::None) {
            of.durations.add(ns.cast_unsigned());
        }
    }

    fn step(&mut self, row: &Row<'_>) {
        let comm = row.series(&[("nccl.comm", "comm")]);
        let with = |key, value: &str| [comm.clone(), vec![(key, value.into())]].concat();
        let direction = if row.text("direction") == Some("send") { "transmit" } else { "receive" };
        *counted(&mut self.bytes, with("network.io.direction", direction)) +=
            row.number("bytes").unwrap_or(0).cast_unsigned();
        for (wait, column) in [
            ("gpu", "gpu_wait_ns"),
            ("peer", "peer_wait_ns"),
            ("network", "network_wait_ns"),
            ("flush", "flush_wait_ns"),
        ] {
            if let Some(ns) = row.number(column).filter(|ns| *ns > 0) {
                *counted(&mut self.waits, with("nccl.wait", wait)) += ns.cast_unsigned();
            }
        }
    }

    fn loss(&mut self, row: &Row<'_>) {
        // Without a number, it happened once.
        let number = row.number("number").unwrap_or(1).cast_unsigned();
        *counted(&mut self.losses, row.series(&[("ncclscope.loss", "what")])) += number;
    }

    /// Data points.
    fn len(&self) -> u64 {
        let durations = self.operations.values().filter(|it| it.durations.number > 0).count();
        (2 * self.operations.len() + durations + self.bytes.len() + self.waits.len() + self.losses.len()) as u64
    }

    fn messages(self, [start, end]: [u64; 2]) -> Vec<Metric> {
        let point = |series: &Series, value: Number| NumberDataPoint {
            start_time_unix_nano: start,
            time_unix_nano: end,
            value: Some(value),
            attributes: attributes(series),
        };
        let whole = |number: u64| Number::AsInt(number.cast_signed());
        let of_all = |value: &dyn Fn(&Operations) -> u64| {
            self.operations.iter().map(|(series, of)| point(series, whole(value(of)))).collect()
        };
        let durations = self.operations.iter().filter(|(_, of)| of.durations.number > 0).map(|(series, of)| {
            let of = &of.durations;
            HistogramDataPoint {
                start_time_unix_nano: start,
                time_unix_nano: end,
                count: of.number,
                sum: Some(seconds(of.ns)),
                bucket_counts: of.buckets.into(),
                explicit_bounds: BOUNDS.into(),
                attributes: attributes(series),
                min: Some(seconds(of.least)),
                max: Some(seconds(of.most)),
            }
        });
        let histogram = Histogram {
            data_points: durations.collect(),
            aggregation_temporality: AggregationTemporality::Cumulative.into(),
        };
        let mut metrics = vec![
            sum(
                "nccl.operations",
                "{operation}",
                "Operations that were asked of NCCL; those of captured graphs count for each replay",
                of_all(&|of| of.number),
            ),
            sum("nccl.operation.io", "By", "The payload of these operations", of_all(&|of| of.bytes)),
        ];
        if !histogram.data_points.is_empty() {
            metrics.push(Metric {
                name: "nccl.operation.duration".into(),
                description: "How long the GPU took for operations, their waiting for other ranks included".into(),
                unit: "s".into(),
                data: Some(Data::Histogram(histogram)),
            });
        }
        metrics.extend([
            sum(
                "nccl.proxy.io",
                "By",
                "What NCCL's network proxy transferred",
                self.bytes.iter().map(|(series, bytes)| point(series, whole(*bytes))).collect(),
            ),
            sum(
                "nccl.proxy.wait",
                "s",
                "What the transfers of NCCL's network proxy waited for; waits of several transfers overlap",
                self.waits.iter().map(|(series, ns)| point(series, Number::AsDouble(seconds(*ns)))).collect(),
            ),
            sum(
                "ncclscope.losses",
                "{loss}",
                "What the recording lost or doubts",
                self.losses.iter().map(|(series, number)| point(series, whole(*number))).collect(),
            ),
        ]);
        metrics.retain(|metric| !matches!(&metric.data, Some(Data::Sum(sum)) if sum.data_points.is_empty()));
        metrics
    }
}

/// The place where something is counted.
fn counted<T: Default>(all: &mut FxHashMap<Series, T>, series: Series) -> &mut T {
    let series = if all.len() < SERIES || all.contains_key(&series) { series } else { Series::new() };
    all.entry(series).or_default()
}

fn attributes(series: &Series) -> Vec<KeyValue> {
    match series.is_empty() {
        true => vec![attribute(OVERFLOW, Value::BoolValue(true))],
        false => series.iter().map(|(key, value)| text(key, value)).collect(),
    }
}

fn sum(name: &str, unit: &str, description: &str, data_points: Vec<NumberDataPoint>) -> Metric {
    let sum =
        Sum { data_points, aggregation_temporality: AggregationTemporality::Cumulative.into(), is_monotonic: true };
    let (name, unit, description) = (name.to_owned(), unit.to_owned(), description.to_owned());
    Metric { name, description, unit, data: Some(Data::Sum(sum)) }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A row by the names of its columns.
struct Row<'a> {
    table: Name,
    cells: &'a [Cell<'a>],
}

impl<'a> Row<'a> {
    fn cell(&self, name: &str) -> Cell<'a> {
        let place = TABLES[self.table as usize].columns.iter().position(|column| column.name == name);
        place.map_or(Cell::None, |place| self.cells[place])
    }

    fn number(&self, name: &str) -> Option<i64> {
        let Cell::Number(number) = self.cell(name) else { return None };
        Some(number)
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        let Cell::Text(text) = self.cell(name) else { return None };
        Some(text)
    }

    /// Texts of columns as the attributes of a data point; one of them is never absent.
    fn series(&self, columns: &[(&'static str, &str)]) -> Series {
        columns.iter().map(|(key, column)| (*key, self.text(column).unwrap_or("unknown").into())).collect()
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope { name: "ncclscope".into(), version: env!("CARGO_PKG_VERSION").into() }
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn int(key: &str, value: i64) -> KeyValue {
    attribute(key, Value::IntValue(value))
}

/// FNV-1a of 128 bits, the same on every machine and in every version; its last bits are mixed,
/// since samplers look at the last 56.
fn hashed(parts: &[&[u8]]) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = parts.iter().flat_map(|part| part.iter().chain(&[0xff, 0]));
    let hash = bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(PRIME)
    });
    (hash ^ hash >> 64).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

#[cfg(test)]
mod tests {
    use super::super::schema::Type;
    use super::*;

    #[test]
    fn the_same_reason_is_said_once() {
        let refused = |why: &str| Reason::Refused(why.to_owned());
        let mut reasons = vec![refused("nobody listens"), refused("the answer is no"), refused("nobody listens")];
        once(&mut reasons);
        let said: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["nobody listens", "the answer is no"]);
    }

    #[test]
    fn columns_that_are_asked_for_are_there() {
        let has = |table: Name, name: &str, of: Type| {
            let column = TABLES[table as usize].columns.iter().find(|column| column.name == name);
            assert!(column.is_some_and(|column| column.of == of), "{table:?}.{name}");
        };
        for name in ["begin", "handed_over"] {
            has(Name::Operations, name, Type::Time);
        }
        for name in ["duration_ns", "operation", "seq", "replay", "bytes"] {
            has(Name::Operations, name, Type::Long);
        }
        for name in ["comm", "function"] {
            has(Name::Operations, name, Type::Text);
        }
        for name in ["gpu_wait_ns", "peer_wait_ns", "network_wait_ns", "flush_wait_ns", "bytes"] {
            has(Name::ProxySteps, name, Type::Long);
        }
        for name in ["direction", "comm"] {
            has(Name::ProxySteps, name, Type::Text);
        }
        has(Name::Losses, "what", Type::Text);
        has(Name::Losses, "number", Type::Long);
    }

    #[test]
    fn too_many_series_are_counted_together_and_say_so() {
        let mut all: FxHashMap<Series, u64> = FxHashMap::default();
        for n in 0..2 * SERIES {
            *counted(&mut all, vec![("nccl.comm", n.to_string().into())]) += 1;
        }
        assert_eq!((all.len(), all[&Series::new()]), (SERIES + 1, SERIES as u64));
        assert_eq!(attributes(&Series::new())[0].key, OVERFLOW);
    }

    #[test]
    fn a_duration_on_a_bound_is_below_it() {
        let mut durations = Durations::default();
        [1_000, 1_001, 2_000, 200_000_000_000].into_iter().for_each(|ns| durations.add(ns));
        assert_eq!((durations.buckets[0], durations.buckets[1], durations.buckets[BOUNDS.len()]), (1, 2, 1));
        assert_eq!((durations.least, durations.most, durations.number), (1_000, 200_000_000_000, 4));
    }
}
