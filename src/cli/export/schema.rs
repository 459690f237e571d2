//! The tables of `ncclscope export`: their columns, with types, units and meanings.
//!
//! The schema has a version. A newer one only adds columns at the end of a table, or tables, so
//! that a reader which knows an older version finds everything where it was; no column ever changes
//! its name, type, unit or meaning.

/// The version of the schema, which is in each file as `ncclscope.schema_version`.
pub(super) const VERSION: u32 = 2;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    /// An instant by the wall clock, ns since 1970 in UTC.
    Time,
    /// 64 bits.
    Long,
    /// 32 bits.
    Int,
    /// A text; the file has each different one once for each row group.
    Text,
    /// True or false.
    Flag,
}

/// A column.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) of: Type,
    /// Empty where it has none.
    pub(super) unit: &'static str,
    pub(super) about: &'static str,
}

/// A table. It is sorted by its first column of type [`Type::Time`], within each row group.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) columns: &'static [Column],
}

impl Table {
    /// The place of the column that it is sorted by.
    pub(super) fn sorted_by(&self) -> Option<usize> {
        self.columns.iter().position(|column| column.of == Type::Time)
    }
}

/// The tables, by their place in [`TABLES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Operations,
    Kernels,
    ChannelTimes,
    ProxySteps,
    Communicators,
    Environment,
    Losses,
    ClockBounds,
    Peers,
}

const fn column(name: &'static str, of: Type, unit: &'static str, about: &'static str) -> Column {
    Column { name, of, unit, about }
}

const PROCESS: Column = column(
    "process",
    Type::Long,
    "",
    "The recording process: the same number in all tables, and unique. A rank that was restarted has several",
);
const COMM: Column = column(
    "comm",
    Type::Text,
    "",
    "The communicator: NCCL's hash in hexadecimal, the same on all of its ranks; or its name, where there is no hash",
);
const BEGIN: Column = column(
    "begin",
    Type::Time,
    "ns since 1970, UTC",
    "When it began. All times of a host are on one clock: begin minus clock_bounds.utc_offset_ns is the time \
     since the host's boot",
);
const DURATION: Column = column("duration_ns", Type::Long, "ns", "How long it took; NULL if it had not ended");
const ERROR: Column = column(
    "time_error_ns",
    Type::Long,
    "ns",
    "How far its begin and end may be off on the host's clock; NULL if that is not known",
);
const DOUBT: Column = column("doubt", Type::Text, "", "Why this row may be wrong");
const OPERATION: Column = column(
    "operation",
    Type::Long,
    "",
    "The operation's mark. The rows of all ranks of an operation have the same comm, operation and replay, and \
     so do a send and its receive. NULL if not known",
);
const REPLAY: Column =
    column("replay", Type::Long, "", "Which run of a captured graph, counted from 1; NULL outside of graphs");
const DEVICE: Column = column("device", Type::Int, "", "The GPU, by CUDA's number in the process");
const STREAM: Column = column("stream", Type::Long, "", "CUPTI's number of the stream");
const CHANNEL: Column = column("channel", Type::Int, "", "NCCL's number of the channel");
const PEER: Column = column("peer", Type::Int, "", "The other rank, in the communicator");
const MATCH: Column = column(
    "matched_by",
    Type::Text,
    "",
    "How the kernel was matched to what it carried: exact_..., inferred_..., unmatched or contradicted; NULL if nothing \
     was matched",
);

/// All tables.
pub(super) const TABLES: [Table; 9] = [
    Table {
        name: "operations",
        about: "NCCL's operations, one row for each rank and run: from the begin to the end of the kernel that \
                carried them. If no kernel is known, begin is NULL",
        columns: &[
            PROCESS,
            COMM,
            OPERATION,
            REPLAY,
            column("function", Type::Text, "", "What it does: AllReduce, Send, ..."),
            column(
                "seq",
                Type::Long,
                "",
                "Which call of this function on this communicator; NULL for sends and receives",
            ),
            BEGIN,
            DURATION,
            ERROR,
            column(
                "handed_over",
                Type::Time,
                "ns since 1970, UTC",
                "When NCCL began to hand it over to the GPU and the proxy; NULL for replays, which the host does not \
                 hand over",
            ),
            column("bytes", Type::Long, "bytes", "The payload: count times the size of the datatype"),
            column("count", Type::Long, "elements", "How many elements"),
            column("datatype", Type::Text, "", "NCCL's name of the datatype"),
            column("algorithm", Type::Text, "", "NCCL's choice: RING, TREE, ..."),
            column("protocol", Type::Text, "", "NCCL's choice: LL, LL128, SIMPLE"),
            column("channels", Type::Int, "", "How many channels"),
            PEER,
            column("root", Type::Int, "", "The root rank, of rooted functions"),
            MATCH,
            column(
                "operations",
                Type::Int,
                "",
                "How many operations the kernel carried together, which share its time; NULL for one",
            ),
            column(
                "tid",
                Type::Int,
                "",
                "The thread that handed it over, by the kernel's thread id; NULL if that is not known",
            ),
            column("nvtx_range", Type::Text, "", "The program's innermost NVTX range around the call"),
            column("nvtx_step", Type::Long, "", "The number of the program's step around the call"),
            DOUBT,
            column(
                "proxy_wait_ns",
                Type::Long,
                "ns",
                "How long the kernel had run when the network proxy began the last of its work for it: it waited at most \
                 this long. NULL if the proxy began before the kernel, within time_error_ns of its begin, or after its \
                 end; if it had no work, or none is recorded (preset light); and if no kernel is known, or its match is \
                 contradicted",
            ),
            column(
                "proxy_wait_reason",
                Type::Text,
                "",
                "What the proxy did when the kernel began: asleep, append (it had not taken the work in) or busy (with \
                 other work). NULL without a wait; if the times are too close to tell, or the trace had no room to draw \
                 it; and up to NCCL 2.26, which does not report when work is taken in. Without the events ProxyCtrl, \
                 asleep is append",
            ),
        ],
    },
    Table {
        name: "kernels",
        about: "The kernels of all streams, NCCL's and the application's, from CUPTI",
        columns: &[
            PROCESS,
            BEGIN,
            DURATION,
            ERROR,
            column("kernel", Type::Text, "", "Its name as in the symbol table"),
            MATCH,
            COMM,
            column("operations", Type::Int, "", "How many operations it carried; NULL if that is not known"),
            DEVICE,
            STREAM,
            column("graph", Type::Long, "", "The executable graph that it ran from"),
            column("graph_node", Type::Long, "", "Its node in the graph"),
            REPLAY,
            column("correlation", Type::Long, "", "CUPTI's number of the launching call"),
            column("grid", Type::Long, "blocks", "Blocks in x; for NCCL's kernels, the channels"),
            column("block", Type::Long, "threads", "Threads for each block in x"),
            DOUBT,
        ],
    },
    Table {
        name: "channel_times",
        about: "When NCCL's channels ran in kernels, and the phases that newer releases report of them",
        columns: &[
            PROCESS,
            BEGIN,
            DURATION,
            ERROR,
            COMM,
            OPERATION,
            CHANNEL,
            column("phase", Type::Int, "", "The number of the phase; NULL for the whole"),
            DEVICE,
            STREAM,
            column("gpu_start_ns", Type::Long, "ns of the GPU's timer", "The GPU's own stamp, unconverted"),
            column("gpu_stop_ns", Type::Long, "ns of the GPU's timer", "The GPU's own stamp, unconverted"),
            DOUBT,
        ],
    },
    Table {
        name: "proxy_steps",
        about: "The single transfers of NCCL's network proxy, and what each waited for. A wait that had not ended counts \
                until the recording's end",
        columns: &[
            PROCESS,
            BEGIN,
            DURATION,
            COMM,
            OPERATION,
            PEER,
            column("direction", Type::Text, "", "send or receive"),
            CHANNEL,
            column("step", Type::Int, "", "The number of the transfer within its operation of the proxy"),
            column("bytes", Type::Long, "bytes", "What was transferred; NULL if NCCL did not say"),
            column("gpu_wait_ns", Type::Long, "ns", "For the GPU that fills or empties the buffer"),
            column("peer_wait_ns", Type::Long, "ns", "For the peer that has to make room"),
            column("network_wait_ns", Type::Long, "ns", "For the network"),
            column("flush_wait_ns", Type::Long, "ns", "For a flush"),
            DOUBT,
        ],
    },
    Table {
        name: "communicators",
        about: "The communicators, one row for each of their ranks",
        columns: &[
            PROCESS,
            COMM,
            column("created", Type::Time, "ns since 1970, UTC", "When it was initialised"),
            column("name", Type::Text, "", "The name that the application gave it"),
            column("label", Type::Text, "", "What the trace calls it"),
            column("comm_rank", Type::Int, "", "The rank in the communicator"),
            column("ranks", Type::Int, "", "How many ranks it has"),
            column("hosts", Type::Int, "", "How many hosts it has, as NCCL counts them"),
            DEVICE,
            column("nccl_version", Type::Int, "", "NCCL's version as a number: 23007 is 2.30.7"),
            column("interface", Type::Int, "", "The version of the profiler interface"),
        ],
    },
    Table {
        name: "environment",
        about: "What the recording says about its software, hardware and variables, as in `ncclscope summary`",
        columns: &[
            PROCESS,
            column("name", Type::Text, "", "What it is, or the variable"),
            column("value", Type::Text, "", "Its value"),
        ],
    },
    Table {
        name: "losses",
        about: "What the recording lost or doubts, as in `ncclscope summary`. No row means that nothing was lost",
        columns: &[
            PROCESS,
            column("what", Type::Text, "", "What was lost or is in doubt"),
            column("number", Type::Long, "", "How many"),
            column("note", Type::Text, "", "In words"),
        ],
    },
    Table {
        name: "clock_bounds",
        about: "One row for each process: its clock, and how far its times may be off. Clocks of one boot are one clock. \
                The order of the operations that two boots share relates their clocks (sql/tables/views.sql)",
        columns: &[
            PROCESS,
            column(
                "boot",
                Type::Text,
                "",
                "The id of the host's boot, which names the clock; NULL if it is not known, or if a merge put the times on another host's clock",
            ),
            column("host", Type::Text, "", "The host's name"),
            column("pid", Type::Long, "", "The process's id"),
            column("begin", Type::Time, "ns since 1970, UTC", "When the recording began"),
            column("last", Type::Time, "ns since 1970, UTC", "The last time in it"),
            column("is_closed", Type::Flag, "", "Whether it came to its end; otherwise it was killed or goes on"),
            column(
                "utc_offset_ns",
                Type::Long,
                "ns",
                "What was added to the time since the host's boot to get all times of this process; NULL, and nothing \
                 added, if the wall clock is not known. Wall clocks of hosts differ by milliseconds and more",
            ),
            column("clock_error_ns", Type::Long, "ns", "The largest error of a time of NCCL's threads"),
            column("cupti_off_least_ns", Type::Long, "ns", "How late CUPTI's times are at least; negative: early"),
            column("cupti_off_most_ns", Type::Long, "ns", "How late CUPTI's times may be at most; negative: early"),
        ],
    },
    Table {
        name: "peers",
        about: "The ranks to which a process sent and from which it received, in operations of its own or by its network \
                proxy: one row for each, up to 65,536 of a process",
        columns: &[
            PROCESS,
            column(
                "comm",
                Type::Text,
                "",
                "The communicator, as in the other tables; NULL for the proxy's work for another process (PXN)",
            ),
            PEER,
            column(
                "transport",
                Type::Text,
                "",
                "net: the network proxy transferred data to or from it, or has it queued. not_visible: nothing that NCCL \
                 reports shows it; it may be shared memory, peer to peer or CollNet, or the network where the proxy's \
                 events are not recorded or another process's proxy does the work",
            ),
        ],
    },
];

/// The page about the tables, for docs/tables.md.
#[cfg(test)]
fn page() -> String {
    use std::fmt::Write as _;

    let mut page = String::new();
    for table in &TABLES {
        let _ = write!(page, "\n### {}\n\n{}.\n", table.name, table.about);
        page += "\n| column | type | unit | meaning |\n| --- | --- | --- | --- |\n";
        for Column { name, of, unit, about } in table.columns {
            let of = match of {
                Type::Time => "timestamp",
                Type::Long => "int64",
                Type::Int => "int32",
                Type::Text => "string",
                Type::Flag => "boolean",
            };
            let _ = writeln!(page, "| `{name}` | {of} | {unit} | {about} |");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `NCCLSCOPE_BLESS=1` renews it.
    #[test]
    fn the_page_has_all_tables_and_columns() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/tables.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once("## Schema, version ").expect("the section");
        let (_, after) = rest.split_once("\n## ").expect("a section after it");
        let renewed = format!("{before}## Schema, version {VERSION}\n{}\n## {after}", page());
        if std::env::var_os("NCCLSCOPE_BLESS").is_some_and(|value| value == "1") {
            std::fs::write(path, renewed).unwrap();
        } else {
            assert!(text == renewed, "docs/tables.md is not that of the code; NCCLSCOPE_BLESS=1 renews it");
        }
    }

    #[test]
    fn columns_have_different_names_and_tables_a_process() {
        for table in &TABLES {
            assert_eq!(table.columns[0].name, "process");
            let names: std::collections::BTreeSet<_> = table.columns.iter().map(|column| column.name).collect();
            assert_eq!(names.len(), table.columns.len(), "{}", table.name);
            for column in table.columns {
                assert_eq!(column.name.ends_with("_ns"), column.unit.starts_with("ns") && column.of != Type::Time);
            }
        }
    }
}
