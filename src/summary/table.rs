//! The tables and their columns.

/// A table.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name, the same in every format.
    pub name: &'static str,
    /// What it has, for people.
    pub title: &'static str,
    /// Its columns.
    pub columns: &'static [Column],
    /// Its rows, each with one cell per column.
    pub rows: Vec<Vec<Cell>>,
}

/// A column.
#[derive(Debug)]
pub struct Column {
    /// Its name for programs, with the unit.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// What its numbers are.
    pub kind: Kind,
}

/// What the numbers of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There are only texts.
    Text,
    /// Numbers without a unit.
    Number,
    /// Numbers for which 0 says nothing.
    Counter,
    /// Nanoseconds.
    Ns,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    Rate,
}

/// A cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Not known, or not defined.
    Empty,
    /// A text.
    Text(String),
    /// A number.
    Number(u64),
}

impl From<Option<u64>> for Cell {
    fn from(number: Option<u64>) -> Cell {
        number.map_or(Cell::Empty, Cell::Number)
    }
}

impl From<Option<i32>> for Cell {
    fn from(number: Option<i32>) -> Cell {
        number.and_then(|number| u64::try_from(number).ok()).into()
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Cell {
        Cell::Number(number)
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        if text.is_empty() { Cell::Empty } else { Cell::Text(text) }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        text.to_owned().into()
    }
}

macro_rules! columns {
    ($($function:ident: $kind:ident),+) => { $(
        const fn $function(name: &'static str, title: &'static str) -> Column {
            Column { name, title, kind: Kind::$kind }
        }
    )+ };
}

columns!(text: Text, number: Number, counter: Counter, ns: Ns, bytes: Bytes, rate: Rate);

const RANK: Column = text("rank", "rank");
const COMM: Column = text("communicator", "communicator");
const OPERATION: Column = text("operation", "operation");
const DATATYPE: Column = text("datatype", "datatype");
const COUNT: Column = number("count", "count");
const ROOT: Column = number("root", "root");
const NUMBER: Column = number("number", "number");

pub(super) const LABELS: &[Column] = &[RANK, COMM, OPERATION, DATATYPE, COUNT, ROOT, number("peer", "peer")];
pub(super) const ENVIRONMENT: &[Column] = &[RANK, text("name", "name"), text("value", "value")];
pub(super) const COMMUNICATORS: &[Column] = &[
    RANK,
    text("id", "id"),
    text("name", "name"),
    number("comm_rank", "its rank"),
    number("ranks", "ranks"),
    number("nodes", "nodes"),
    number("gpu", "GPU"),
    text("nccl", "NCCL"),
    number("interface", "interface"),
    ns("created_ns", "created after"),
    text("created_source", "source"),
];
pub(super) const OPERATIONS: &[Column] = &[
    RANK,
    COMM,
    OPERATION,
    DATATYPE,
    COUNT,
    bytes("bytes", "bytes"),
    ROOT,
    number("peer", "peer"),
    NUMBER,
    counter("graph", "from graphs"),
    counter("grouped", "in groups"),
    number("timed", "timed"),
    ns("kernel_min_ns", "min"),
    ns("kernel_median_ns", "median"),
    ns("kernel_p95_ns", "p95"),
    ns("kernel_p99_ns", "p99"),
    ns("kernel_max_ns", "max"),
    ns("kernel_total_ns", "total"),
    rate("algbw_bytes_per_s", "algbw"),
    rate("busbw_bytes_per_s", "busbw"),
    ns("enqueue_median_ns", "enqueue"),
    ns("enqueue_max_ns", "max enqueue"),
    counter("proxy_waits", "waited for proxy"),
    ns("proxy_wait_total_ns", "total wait for proxy"),
    text("algorithm", "algorithm"),
    text("protocol", "protocol"),
    text("channels", "channels"),
    counter("contradicted", "contradicted"),
    text("note", "note"),
];
pub(super) const GROUPS: &[Column] = &[
    RANK,
    COMM,
    text("operations", "operations"),
    bytes("bytes", "bytes"),
    NUMBER,
    ns("kernel_min_ns", "min"),
    ns("kernel_median_ns", "median"),
    ns("kernel_p95_ns", "p95"),
    ns("kernel_p99_ns", "p99"),
    ns("kernel_max_ns", "max"),
    ns("kernel_total_ns", "total"),
    rate("algbw_bytes_per_s", "algbw"),
    rate("busbw_bytes_per_s", "busbw"),
];
pub(super) const CALLS: &[Column] = &[
    RANK,
    COMM,
    OPERATION,
    DATATYPE,
    COUNT,
    ROOT,
    NUMBER,
    ns("host_min_ns", "min"),
    ns("host_median_ns", "median"),
    ns("host_p95_ns", "p95"),
    ns("host_p99_ns", "p99"),
    ns("host_max_ns", "max"),
    ns("host_total_ns", "total"),
];
pub(super) const OF_BUFFERS: &[Column] = &[
    RANK,
    COMM,
    OPERATION,
    DATATYPE,
    COUNT,
    number("peer", "peer"),
    counter("aligned_128", "at 128 bytes"),
    counter("aligned_16", "at 16 bytes"),
    counter("unaligned", "at neither"),
    counter("alignment_unknown", "unknown"),
    text("buffers", "different buffers"),
];
pub(super) const PROXY: &[Column] = &[
    RANK,
    COMM,
    text("direction", "direction"),
    number("peer", "peer"),
    number("operations", "operations"),
    ns("queued_total_ns", "queued"),
    number("transfers", "transfers"),
    bytes("bytes", "bytes"),
    ns("gpu_wait_ns", "waits for GPU"),
    ns("peer_wait_ns", "for peer"),
    ns("network_wait_ns", "for network"),
    ns("flush_wait_ns", "for flush"),
    ns("longest_wait_ns", "longest wait"),
];
/// For programs: 64 rows are too many for people.
pub(super) const OF_STRETCHES: &[Column] = &[
    RANK,
    text("id", "communicator's id"),
    number("first", "first collective"),
    NUMBER,
    ns("begin_ns", "began after"),
    ns("kernel_total_ns", "kernels took"),
];
pub(super) const OF_GPUS: &[Column] = &[
    RANK,
    number("gpu", "GPU"),
    ns("own_ns", "own kernels and copies"),
    ns("exposed_ns", "communication alone"),
    ns("idle_ns", "idle"),
];
pub(super) const OF_LOSSES: &[Column] = &[RANK, text("what", "what"), NUMBER, text("note", "note")];
