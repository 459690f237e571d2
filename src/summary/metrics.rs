//! The summary as metrics, in Prometheus's text format 0.0.4.
//!
//! Names and units are those of its conventions: counters end in `_total`, times are seconds, sizes
//! bytes. Rates are left to the reader: bus bandwidth is `rate(ncclscope_bus_bytes_total) /
//! rate(ncclscope_kernel_seconds_sum)`.
//!
//! Sources: <https://prometheus.io/docs/instrumenting/exposition_formats/> and
//! <https://prometheus.io/docs/practices/naming/>.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::times::Times;
use super::{Summary, Traffic, Wait};
use crate::model::word::Word;

/// Upper bounds of the buckets of kernel times, ns.
const BOUNDS: [u64; 19] = {
    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;
    const S: u64 = 1_000_000_000;
    [
        10 * US,
        25 * US,
        50 * US,
        100 * US,
        250 * US,
        500 * US,
        MS,
        5 * MS / 2,
        5 * MS,
        10 * MS,
        25 * MS,
        50 * MS,
        100 * MS,
        250 * MS,
        500 * MS,
        S,
        5 * S / 2,
        5 * S,
        10 * S,
    ]
};
/// How many peers of the proxy have series of their own: the first ones, because a counter whose
/// parts changed would fall.
const PEERS: usize = 64;

/// What a running recording knows in addition to its summary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// NCCL's calls that were recorded, and that found no room.
    pub recorded: u64,
    /// See `recorded`.
    pub dropped: u64,
    /// By GPU: how long the application's kernels ran, only NCCL's did, and none did, ns.
    pub gpus: Vec<(u32, [u64; 3])>,
    /// How long the first operation that is known not to have ended has stood still, ns.
    pub overdue_ns: u64,
}

/// The totals of one series of operations.
#[derive(Default)]
struct Sums {
    operations: u64,
    kernels: u64,
    ns: u64,
    /// How many kernels took at most as long as each bound; `None` if that is not known.
    buckets: Option<[u64; BOUNDS.len()]>,
    algorithm: u64,
    bus: u64,
    queued: [u64; 2],
}

impl Sums {
    fn add(&mut self, number: u64, kernel: &Times, moved: Option<[u64; 2]>) {
        let buckets = if self.kernels == 0 { Some([0; BOUNDS.len()]) } else { self.buckets };
        self.operations += number;
        self.kernels += kernel.number();
        self.ns = self.ns.saturating_add(kernel.total());
        self.buckets = buckets.zip(kernel.up_to(&BOUNDS)).map(|(mut sums, more)| {
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            sums
        });
        let [algorithm, bus] = moved.unwrap_or_default();
        (self.algorithm, self.bus) = (self.algorithm.saturating_add(algorithm), self.bus.saturating_add(bus));
    }
}

impl Summary {
    /// Its metrics. Without `live` it comes from a file.
    #[must_use]
    pub fn metrics(&self, live: Option<&Live>) -> String {
        let rank = self.rank_name();
        let mut out = Text { text: String::new(), rank: label(&rank) };
        self.recording(&mut out, live);
        self.operation_metrics(&mut out);
        self.proxy_metrics(&mut out);
        out.text
    }

    fn recording(&self, out: &mut Text, live: Option<&Live>) {
        out.head("recording_info", "gauge", "A recording: 1, with its process, and NCCL's version, in labels.");
        let nccl = self.comms.iter().flat_map(|comm| &comm.members).find_map(|it| it.version);
        let nccl = nccl.map(|version| crate::trace::names::nccl_version(version as u32)).unwrap_or_default();
        out.line("recording_info", &[("process", &self.recording.process), ("nccl", &nccl)], 1.0);
        let Some(Live { recorded, dropped, gpus, overdue_ns }) = live else { return };
        out.head("nccl_calls_total", "counter", "NCCL's calls of the profiler: recorded, or dropped for lack of room.");
        out.line("nccl_calls_total", &[("state", "recorded")], *recorded as f64);
        out.line("nccl_calls_total", &[("state", "dropped")], *dropped as f64);
        out.head(
            "overdue_seconds",
            "gauge",
            "For how long the first operation that is known not to have ended has stood still; 0 if none does.",
        );
        out.line("overdue_seconds", &[], seconds(*overdue_ns));
        out.head(
            "gpu_seconds_total",
            "counter",
            "Time of a GPU between NCCL's kernels: its own work, communication that nothing hides, idle.",
        );
        for (gpu, parts) in gpus {
            for (state, ns) in ["own", "exposed", "idle"].into_iter().zip(parts) {
                out.line("gpu_seconds_total", &[("gpu", &gpu.to_string()), ("state", state)], seconds(*ns));
            }
        }
    }

    fn operation_metrics(&self, out: &mut Text) {
        let mut series: BTreeMap<(String, String), Sums> = BTreeMap::new();
        for (key, row) in &self.operations.rows {
            let sums = series.entry((self.comm_name(key.comm), self.function(key))).or_default();
            let (rank, ranks) = self.rank(key.comm);
            let moved = ranks.zip(row.bytes(key)).and_then(|(ranks, bytes)| {
                let mut traffic = Traffic::default();
                let is_itself = key.peer.is_some() && key.peer == rank;
                traffic
                    .add(Word(key.function), bytes, ranks, is_itself)
                    .then(|| traffic.moved(ranks, row.kernel.number()))
            });
            sums.add(row.numbers().iter().sum(), &row.kernel, moved);
            let [number, ns] = &mut sums.queued;
            (*number, *ns) = (*number + row.queued.number(), ns.saturating_add(row.queued.total()));
        }
        for (group, of) in &self.groups.rows {
            let sums = series.entry((self.comm_name(group.comm()), self.group_name(group))).or_default();
            let moved = self.rank(group.comm()).1.and_then(|ranks| of.moved(ranks));
            sums.add(of.times.number(), &of.times, moved);
        }
        let series: Vec<_> = series.iter().map(|((comm, operation), sums)| (Of { comm, operation }, sums)).collect();
        out.head(
            "operations_total",
            "counter",
            "Operations of each communicator and function; and kernels that carried several of them.",
        );
        for (of, sums) in &series {
            out.line("operations_total", &of.labels(), sums.operations as f64);
        }
        out.head("kernel_seconds", "histogram", "Times of NCCL's kernels by CUPTI, waiting for other ranks included.");
        for (of, sums) in series.iter().filter(|(_, sums)| sums.kernels > 0) {
            out.histogram("kernel_seconds", &of.labels(), sums);
        }
        for (name, help, bytes) in [
            (
                "algorithm_bytes_total",
                "Bytes of the operations in those kernels, as nccl-tests counts them.",
                (|sums| sums.algorithm) as fn(&Sums) -> u64,
            ),
            ("bus_bytes_total", "Bytes that each link carries for them, as nccl-tests counts them.", |sums| sums.bus),
        ] {
            out.head(name, "counter", help);
            for (of, sums) in series.iter().filter(|(_, sums)| sums.kernels > 0) {
                out.line(name, &of.labels(), bytes(sums) as f64);
            }
        }
        out.head(
            "enqueue_seconds",
            "summary",
            "From the hand-over of an operation by NCCL to the start of its kernel.",
        );
        for (of, sums) in series.iter().filter(|(_, sums)| sums.queued[0] > 0) {
            out.line("enqueue_seconds_sum", &of.labels(), seconds(sums.queued[1]));
            out.line("enqueue_seconds_count", &of.labels(), sums.queued[0] as f64);
        }
    }

    fn proxy_metrics(&self, out: &mut Text) {
        let mut series: BTreeMap<(String, &str, String), super::Transfers> = BTreeMap::new();
        for (at, (key, of)) in self.peers.rows.iter().enumerate() {
            let peer = key.peer.filter(|_| at < PEERS).map_or_else(|| "other".to_owned(), |peer| peer.to_string());
            let direction = if key.is_send { "send" } else { "receive" };
            let sums = series.entry((self.comm_name(key.comm), direction, peer)).or_default();
            sums.number += of.number;
            sums.bytes = sums.bytes.saturating_add(of.bytes);
            sums.waits.iter_mut().zip(of.waits).for_each(|(sum, wait)| *sum = sum.saturating_add(wait));
        }
        let labels = |(comm, direction, peer): &(String, &'static str, String)| {
            [("communicator", comm.clone()), ("direction", (*direction).to_owned()), ("peer", peer.clone())]
        };
        for (name, help, figure) in [
            (
                "proxy_transfers_total",
                "Transfers of the network proxy.",
                (|of| of.number) as fn(&super::Transfers) -> u64,
            ),
            ("proxy_bytes_total", "Their bytes.", |of| of.bytes),
        ] {
            out.head(name, "counter", help);
            for (key, of) in &series {
                let labels = labels(key);
                let labels: Vec<_> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
                out.line(name, &labels, figure(of) as f64);
            }
        }
        out.head(
            "proxy_wait_seconds_total",
            "counter",
            "What those transfers waited for, summed over transfers that overlap.",
        );
        for (key, of) in &series {
            for wait in Wait::ALL {
                let reason = wait.reason();
                let labels = labels(key);
                let mut labels: Vec<_> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
                labels.push(("reason", reason));
                out.line("proxy_wait_seconds_total", &labels, seconds(of.waits[wait as usize]));
            }
        }
    }
}

impl Wait {
    /// Its label.
    fn reason(self) -> &'static str {
        match self {
            Wait::Gpu => "gpu",
            Wait::Peer => "peer",
            Wait::Network => "network",
            Wait::Flush => "flush",
        }
    }
}

/// The communicator and the operation of a series.
struct Of<'a> {
    comm: &'a str,
    operation: &'a str,
}

impl Of<'_> {
    fn labels(&self) -> [(&'static str, &str); 2] {
        [("communicator", self.comm), ("operation", self.operation)]
    }
}

/// The text, and the label that all series have.
struct Text {
    text: String,
    rank: String,
}

impl Text {
    /// Begins a metric.
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP ncclscope_{name} {help}\n# TYPE ncclscope_{name} {kind}");
    }

    /// A sample.
    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let Text { text, rank } = self;
        let _ = write!(text, "ncclscope_{name}{{rank=\"{rank}\"");
        for (name, value) in labels {
            let _ = write!(text, ",{name}=\"{}\"", label(value));
        }
        let _ = writeln!(text, "}} {value}");
    }

    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], sums: &Sums) {
        let bucket = format!("{name}_bucket");
        for (bound, number) in BOUNDS.iter().zip(sums.buckets.iter().flatten()) {
            let bound = seconds(*bound).to_string();
            self.line(&bucket, &[labels, &[("le", &bound)]].concat(), *number as f64);
        }
        self.line(&bucket, &[labels, &[("le", "+Inf")]].concat(), sums.kernels as f64);
        self.line(&format!("{name}_sum"), labels, seconds(sums.ns));
        self.line(&format!("{name}_count"), labels, sums.kernels as f64);
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A label's value.
fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
