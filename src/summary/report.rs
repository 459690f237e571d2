//! The summary as tables of plain values, for people and for programs.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

#[cfg(feature = "cli")]
use super::Row;
use super::groups::{Group, OfGroup};
use super::rows::BUFFERS;
use super::table::{
    CALLS, COMMUNICATORS, Cell, ENVIRONMENT, GROUPS, LABELS, OF_BUFFERS, OF_GPUS, OF_LOSSES, OF_STRETCHES, OPERATIONS,
    PROXY, Table,
};
use super::{Arguments, Comm, Member, Operations, Peer, Summary, Times, Transfers, UNKNOWN, Wait};
use crate::model::event::Network;
use crate::model::selection::Ranks;
use crate::model::word::{Table as Words, Word};
use crate::trace::fields::nccl;
use crate::trace::names;
use crate::trace::wire::fields;
use crate::trace::words::attribute;

/// The version of the tables: columns keep their names and meanings, or this number changes.
pub const FORMAT_VERSION: u32 = 1;

/// The most characters of a list of ranks in a cell.
const RANGES: usize = 16;
/// The facts of a recording in the environment table, with their names for people.
pub(super) const ATTRIBUTES: [(&str, &str); 9] = [
    (attribute::VERSION, "ncclscope"),
    (attribute::NCCL_VERSION, "NCCL"),
    (attribute::CUPTI_RELEASE, "CUPTI, of CUDA"),
    (attribute::DRIVER, "driver"),
    (attribute::PRESET, "preset"),
    (attribute::EVENTS, "events"),
    (attribute::JOB, "job"),
    (attribute::RUN, "run"),
    (attribute::BOOT, "boot of the host"),
];

/// What neither NCCL's profiler interface nor CUPTI says, so that nobody looks for it.
const NOT_VISIBLE: [&str; 2] = ["CUDA that NCCL was built with", "name and version of the network plugin"];
const NOBODY_SAYS: &str = "not visible: the profiler interface does not say";

/// Losses and doubts, by their arguments in the recording's last remark and their names there.
pub(crate) const LOSSES: [(u32, &str); 30] = [
    (nccl::DROPPED, "dropped"),
    (nccl::DISCARDED, "discarded"),
    (nccl::OPERATIONS_LEFT_OUT, "operations_left_out"),
    (nccl::ACTIVITIES_LEFT_OUT, "activities_left_out"),
    (nccl::LATE, "late"),
    (nccl::DOUBLE_STOPS, "double_stops"),
    (nccl::UNKNOWN_HANDLES, "unknown_handles"),
    (nccl::FOREIGN_HANDLES, "foreign_handles"),
    (nccl::UNKNOWN_PARENTS, "unknown_parents"),
    (nccl::EVICTED_OPEN, "evicted_open"),
    (nccl::SILENT_PROXY_OPS, "silent_proxy_ops"),
    (nccl::UNKNOWN_TYPES, "unknown_types"),
    (nccl::LANES_MISSING, "lanes_missing"),
    (nccl::PANICS, "panics"),
    (nccl::KERNELS_UNMATCHED, "kernels_unmatched"),
    (nccl::KERNELS_CONTRADICTED, "kernels_contradicted"),
    (nccl::LAUNCHES_WITHOUT_KERNEL, "launches_without_kernel"),
    (nccl::LAUNCHES_LOST, "launches_lost"),
    (nccl::KERNELS_UNTIMED, "kernels_untimed"),
    (nccl::KERNELS_UNFINISHED, "kernels_unfinished"),
    (nccl::ACTIVITIES_IMPLAUSIBLE, "activities_implausible"),
    (nccl::ACTIVITIES_DROPPED, "activities_dropped"),
    (nccl::ACTIVITIES_DISCARDED, "activities_discarded"),
    (nccl::ACTIVITY_BUFFERS_DISCARDED, "activity_buffers_discarded"),
    (nccl::CHANNELS_UNMAPPED, "channels_unmapped"),
    (nccl::CHANNELS_IMPLAUSIBLE, "channels_implausible"),
    (nccl::MARKERS_UNPAIRED, "markers_unpaired"),
    (nccl::EXTERNAL_IDS_FOREIGN, "external_ids_foreign"),
    (nccl::TIMER_CONTRADICTIONS, "timer_contradictions"),
    (nccl::KERNELS_MISTIMED, "kernels_mistimed"),
];

/// The figures of a recording's last remark.
pub(super) fn figures(args: &[u8]) -> Vec<(u32, u64)> {
    fields(args).map(|field| (field.number, field.uint())).collect()
}

/// What stands for the rank in rows of all ranks together.
pub const ALL: &str = "all";

/// The tables of one or several processes.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order in which they are printed.
    pub tables: Vec<Table>,
}

/// What the proxy transferred between this process and a peer in one direction: a row of the table
/// of the proxy.
#[cfg(feature = "cli")]
#[derive(Clone, Debug)]
pub struct Link {
    /// The communicator's hash, and its name for people.
    pub hash: u64,
    /// See `hash`.
    pub communicator: String,
    /// The peer's rank in the communicator.
    pub peer: i32,
    /// Whether this process sends.
    pub is_send: bool,
    /// How many transfers.
    pub transfers: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long they waited for the network, summed over transfers that overlap, ns.
    pub network_wait_ns: u64,
}

/// How a row is labelled.
struct Who<'a> {
    summary: &'a Summary,
    rank: Cell,
}

impl Summary {
    /// The tables of this process.
    #[must_use]
    pub fn report(&self) -> Report {
        let who = Who { summary: self, rank: self.rank_name().into() };
        let table = |name, title, columns, rows| Table { name, title, columns, rows };
        Report {
            tables: vec![
                table("environment", "environment", ENVIRONMENT, who.environment()),
                table("communicators", "communicators", COMMUNICATORS, who.communicators()),
                table(
                    "operations",
                    "operations (times of kernels that carried nothing else)",
                    OPERATIONS,
                    who.operations(),
                ),
                table("groups", "kernels that carried several operations", GROUPS, who.groups()),
                table("calls", "host time of calls", CALLS, who.calls()),
                table("buffers", "alignment and reuse of buffers", OF_BUFFERS, who.buffers()),
                table("proxy", "what the proxy's transfers waited for", PROXY, who.proxy()),
                table("stretches", "collectives, in stretches", OF_STRETCHES, who.stretches()),
                table("gpus", "what the time of GPUs went into", OF_GPUS, Vec::new()),
                table("losses", "losses and doubts", OF_LOSSES, who.losses()),
            ],
        }
    }

    /// The rows for all ranks together, if this is their [sum](Summary::add_all).
    #[must_use]
    pub fn report_of_all(&self) -> Report {
        let who = Who { summary: self, rank: ALL.into() };
        let mut report = Report::empty();
        for table in &mut report.tables {
            table.rows = match table.name {
                "operations" => who.operations(),
                "groups" => who.groups(),
                "calls" => who.calls(),
                "proxy" => who.proxy(),
                _ => Vec::new(),
            };
        }
        report
    }

    /// The label of each row of operations, by its number.
    #[must_use]
    pub fn labels(&self) -> Table {
        let rank: Cell = self.rank_name().into();
        let label = |(key, _): &(Arguments, Operations)| {
            vec![
                rank.clone(),
                self.comm_name(key.comm).into(),
                self.function(key).into(),
                self.datatype(key).into(),
                key.count.into(),
                key.root.into(),
                key.peer.into(),
            ]
        };
        let rows = self.operations.rows.iter().map(label).collect();
        Table { name: "durations", title: "durations", columns: LABELS, rows }
    }

    /// The rows of the tables of operations and of groups, in their order.
    #[cfg(feature = "cli")]
    #[must_use]
    pub fn sorted_rows(&self) -> [Vec<Row>; 2] {
        let operations = self.sorted_operations().into_iter().map(|(at, _)| Row::Operation(at)).collect();
        [operations, self.sorted_groups().into_iter().map(|(at, _)| Row::Group(at)).collect()]
    }

    /// A row's communicator and operation, for people: `world` and `AllReduce 16 MiB f32`.
    #[cfg(feature = "cli")]
    #[must_use]
    pub fn title(&self, row: Row) -> [String; 2] {
        match row {
            Row::Operation(at) => {
                let (key, of) = &self.operations.rows[at as usize];
                [self.comm_name(key.comm), self.short_name(key, of.bytes(key))]
            }
            Row::Group(at) => {
                let (group, of) = &self.groups.rows[at as usize];
                [self.comm_name(group.comm()), self.group_title(group, of)]
            }
        }
    }

    /// This process's ranks in communicators: the communicator's hash and the rank.
    #[cfg(feature = "cli")]
    pub fn memberships(&self) -> impl Iterator<Item = (u64, i32)> {
        let of = |comm: &Comm| {
            let hash = comm.hash;
            comm.members.iter().filter_map(move |member| Some((hash, member.rank?))).collect::<Vec<_>>()
        };
        self.comms.iter().flat_map(of)
    }

    /// What the proxy transferred, by communicator, direction and peer.
    #[cfg(feature = "cli")]
    pub fn links(&self) -> impl Iterator<Item = Link> {
        let known = self.peers.rows.iter().filter(|(_, of)| of.number > 0);
        known.filter_map(|(key, of)| {
            Some(Link {
                hash: self.comms.get(key.comm as usize)?.hash,
                communicator: self.comm_name(key.comm),
                peer: key.peer?,
                is_send: key.is_send,
                transfers: of.number,
                bytes: of.bytes,
                network_wait_ns: of.waits[Wait::Network as usize],
            })
        })
    }

    /// The rank in the job, or else the process.
    #[must_use]
    pub fn rank_name(&self) -> String {
        let process = names::without_gpu(&self.recording.process).0;
        let rank = process.split(" · ").next().and_then(|who| who.strip_prefix("rank "));
        rank.unwrap_or(process).to_owned()
    }

    /// A communicator's name for people: its own, or a short form of its hash.
    pub(super) fn comm_name(&self, comm: u32) -> String {
        match self.comms.get(comm as usize) {
            None => "unknown".into(),
            Some(Comm { name, .. }) if !name.is_empty() => names::group_name(name).to_owned(),
            Some(Comm { hash, .. }) => names::short_hash(*hash),
        }
    }

    /// The kinds of operations with their places, by the time of their kernels, longest first.
    pub(super) fn sorted_operations(&self) -> Vec<(u32, &(Arguments, Operations))> {
        let mut rows: Vec<_> = (0..).zip(&self.operations.rows).collect();
        rows.sort_by_key(|(_, (_, row))| Reverse(row.rank()));
        rows
    }

    pub(super) fn sorted_groups(&self) -> Vec<(u32, &(Group, OfGroup))> {
        let mut rows: Vec<_> = (0..).zip(&self.groups.rows).collect();
        rows.sort_by_key(|(_, (_, of))| Reverse(of.times.total()));
        rows
    }

    pub(super) fn function(&self, key: &Arguments) -> String {
        self.spelling(key.function).to_owned()
    }

    fn datatype(&self, key: &Arguments) -> String {
        if key.datatype == 0 { String::new() } else { self.spelling(key.datatype).to_owned() }
    }

    pub(super) fn group_name(&self, group: &Group) -> String {
        group.name(|word| self.spelling(word).to_owned())
    }

    /// Algorithm and bus bandwidth of operations with the same arguments.
    pub(super) fn bandwidth(&self, key: &Arguments, row: &Operations) -> Option<[u64; 2]> {
        let (rank, ranks) = self.rank(key.comm);
        let ranks = ranks?;
        let mut traffic = super::Traffic::default();
        let is_itself = key.peer.is_some() && key.peer == rank;
        let is_defined = traffic.add(Word(key.function), row.bytes(key)?, ranks, is_itself);
        is_defined
            .then(|| traffic.bandwidth(ranks, row.kernel.number(), row.kernel.total()))?
            .filter(|_| row.kernel.number() > 0)
    }

    /// `AlltoAllv 14 MiB`, with what a kernel moves on average.
    pub(super) fn group_title(&self, group: &Group, of: &OfGroup) -> String {
        let size = of.bytes().filter(|_| !group.is_rest()).map_or(String::new(), |it| format!(" {}", names::size(it)));
        format!("{}{size}", self.group_name(group))
    }

    pub(super) fn group_bandwidth(&self, group: &Group, of: &OfGroup) -> Option<[u64; 2]> {
        of.bandwidth(self.rank(group.comm()).1?)
    }

    /// What is lost or doubtful, and how often.
    pub(super) fn lost(&self) -> Vec<(&'static str, u64)> {
        let figures = self.recording.ended.as_deref().unwrap_or_default();
        let of = |field: u32| figures.iter().find(|(number, _)| *number == field).map_or(0, |(_, count)| *count);
        LOSSES.into_iter().map(|(field, name)| (name, of(field))).filter(|(_, count)| *count > 0).collect()
    }
}

impl Report {
    /// The tables without rows.
    #[must_use]
    pub fn empty() -> Report {
        let mut report = Summary::new().report();
        report.tables.iter_mut().for_each(|table| table.rows.clear());
        report
    }

    /// Whether no table has a row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.iter().all(|table| table.rows.is_empty())
    }

    /// Adds the rows of another.
    pub fn add(&mut self, other: Report) {
        for (ours, theirs) in self.tables.iter_mut().zip(other.tables) {
            ours.rows.extend(theirs.rows);
        }
    }

    /// Adds by GPU how long the application's kernels ran, only NCCL's did, and none did, ns.
    pub fn add_gpus(&mut self, of: &Summary, gpus: &[(u32, [u64; 3])]) {
        let Some(table) = self.tables.iter_mut().find(|table| table.name == "gpus") else { return };
        for (gpu, [own, exposed, idle]) in gpus {
            let row = [u64::from(*gpu), *own, *exposed, *idle].map(Cell::Number);
            table.rows.push([of.rank_name().into()].into_iter().chain(row).collect());
        }
    }

    /// Adds something that is lost or doubtful about a process.
    pub fn add_loss(&mut self, of: &Summary, what: &str, note: &str) {
        if let Some(losses) = self.tables.last_mut() {
            losses.rows.push(vec![of.rank_name().into(), what.into(), 1.into(), note.into()]);
        }
    }

    /// Joins the rows of the environment that several ranks have in common: their rank is `all`, if
    /// all have them, or else which ranks have them, such as `0-3`; of many ranges, how many ranks.
    pub fn join_environment(&mut self) {
        let Some(environment) = self.tables.first_mut() else { return };
        // There may be several recordings of a rank.
        let mut ranks = BTreeSet::new();
        let mut joined: Vec<(Vec<Cell>, BTreeSet<String>)> = Vec::new();
        let mut places = HashMap::new();
        for row in std::mem::take(&mut environment.rows) {
            let rank = if let Some(Cell::Text(rank)) = row.first() { rank.clone() } else { String::new() };
            ranks.insert(rank.clone());
            let place = *places.entry(format!("{:?}", row.get(1..))).or_insert(joined.len());
            match joined.get_mut(place) {
                Some((_, of)) => drop(of.insert(rank)),
                None => joined.push((row, BTreeSet::from([rank]))),
            }
        }
        for (row, of) in &mut joined {
            match (of.len(), row.first_mut()) {
                (1, _) | (_, None) => {}
                (number, Some(rank)) if number == ranks.len() => *rank = ALL.into(),
                (number, Some(rank)) => {
                    let numbers = of.iter().map(|rank| rank.parse().ok()).collect::<Option<Vec<u32>>>();
                    let ranges = numbers.map(|numbers| Ranks::of(numbers).to_string());
                    let short = ranges.filter(|ranges| ranges.len() <= RANGES);
                    *rank = short.unwrap_or_else(|| format!("{number} ranks")).into();
                }
            }
        }
        environment.rows = joined.into_iter().map(|(row, _)| row).collect();
    }
}

impl Who<'_> {
    fn row(&self, cells: impl IntoIterator<Item = Cell>) -> Vec<Cell> {
        std::iter::once(self.rank.clone()).chain(cells).collect()
    }

    fn environment(&self) -> Vec<Vec<Cell>> {
        let it = self.summary;
        let mut rows = vec![("process".to_owned(), it.recording.process.clone())];
        for (name, title) in ATTRIBUTES {
            let values = it.recording.attributes.iter().filter(|(known, _)| known == name);
            rows.extend(values.map(|(_, value)| (title.to_owned(), value.clone())));
        }
        rows.push(("recording".into(), it.recording.started.clone()));
        for gpu in &it.recording.gpus {
            let uuid = if gpu.uuid.is_empty() { String::new() } else { format!(", UUID {}", gpu.uuid) };
            rows.push((format!("GPU {}", gpu.device), format!("{}{uuid}", gpu.name)));
        }
        let net: u64 = it.peers.rows.iter().map(|(_, peer)| peer.operations).sum();
        if net > 0 {
            rows.push(("transport NET".into(), format!("{net} operations of the proxy")));
        }
        for (network, name) in
            [(Network::INFINIBAND, "InfiniBand"), (Network::SOCKET, "sockets"), (Network::OTHER, "another one")]
        {
            if it.networks >> network.0 & 1 != 0 {
                rows.push(("network".into(), format!("{name}, by events of its plugin")));
            }
        }
        rows.extend(NOT_VISIBLE.map(|what| (what.to_owned(), NOBODY_SAYS.to_owned())));
        let mut variables: Vec<_> = it
            .recording
            .attributes
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix(attribute::ENVIRONMENT)?.to_owned(), value.clone())))
            .collect();
        variables.sort();
        rows.extend(variables);
        rows.retain(|(_, value)| !value.is_empty());
        rows.into_iter().map(|(name, value)| self.row([name.into(), value.into()])).collect()
    }

    fn communicators(&self) -> Vec<Vec<Cell>> {
        let it = self.summary;
        // Other tools' files do not say when one was created.
        let source = if it.recording.begin.is_some() { "NCCL's call of the profiler's init" } else { "" };
        let mut rows = Vec::new();
        for (at, comm) in it.comms.iter().enumerate() {
            for member in &comm.members {
                let Member { init, rank, ranks, nodes, device, version, interface } = *member;
                let version = version.map(|version| names::nccl_version(version as u32));
                rows.push(self.row([
                    if comm.hash == 0 { Cell::Empty } else { format!("{:016x}", comm.hash).into() },
                    it.comm_name(at as u32).into(),
                    rank.into(),
                    ranks.into(),
                    nodes.into(),
                    device.into(),
                    version.unwrap_or_default().into(),
                    interface.into(),
                    it.recording.begin.map(|begin| init.since(begin)).into(),
                    source.into(),
                ]));
            }
        }
        rows
    }

    /// Those of communicators in which the process has one rank.
    fn stretches(&self) -> Vec<Vec<Cell>> {
        let it = self.summary;
        let mut rows = Vec::new();
        for (comm, of) in it.stretches.iter() {
            let Some(Comm { hash, members, .. }) = it.comms.get(comm as usize) else { continue };
            if *hash == 0 || members.len() != 1 {
                continue;
            }
            for (at, stretch) in of.all.iter().enumerate() {
                rows.push(self.row([
                    format!("{hash:016x}").into(),
                    (at as u64 * of.width).into(),
                    stretch.number.into(),
                    it.recording.begin.map(|begin| stretch.begin.since(begin)).into(),
                    stretch.ns.into(),
                ]));
            }
        }
        rows.sort_by_key(|row| format!("{:?}", row[1]));
        rows
    }

    fn operations(&self) -> Vec<Vec<Cell>> {
        let it = self.summary;
        let row = |(key, row): &(Arguments, Operations)| {
            let [eager, graph] = row.numbers();
            let [algorithm, bus] = it.bandwidth(key, row).map_or([None; 2], |rates| rates.map(Some));
            let barrier = Word(key.function) == Word::ALL_REDUCE && key.count == Some(1);
            let channels = match row.channels {
                None => String::new(),
                Some((least, most)) if least == most => least.to_string(),
                Some((least, most)) => format!("{least}-{most}"),
            };
            let mut cells = vec![
                it.comm_name(key.comm).into(),
                it.function(key).into(),
                it.datatype(key).into(),
                key.count.into(),
                row.bytes(key).into(),
                key.root.into(),
                key.peer.into(),
                (eager + graph).into(),
                graph.into(),
                row.grouped.into(),
                row.kernel.number().into(),
            ];
            cells.extend(times(&row.kernel));
            cells.extend([
                algorithm.into(),
                bus.into(),
                row.queued.percentile(50).into(),
                row.queued.most().into(),
                row.proxy_waits.into(),
                Some(row.proxy_wait).filter(|_| row.proxy_waits > 0).into(),
                words(row.algorithms, Words::Algorithm).into(),
                words(row.protocols, Words::Protocol).into(),
                channels.into(),
                row.contradicted.into(),
                if barrier { "barrier?" } else { "" }.into(),
            ]);
            self.row(cells)
        };
        it.sorted_operations().into_iter().map(|(_, of)| row(of)).collect()
    }

    fn groups(&self) -> Vec<Vec<Cell>> {
        let it = self.summary;
        let row = |(group, of): &(Group, OfGroup)| {
            let [algorithm, bus] = it.group_bandwidth(group, of).map_or([None; 2], |rates| rates.map(Some));
            let mut cells = vec![
                it.comm_name(group.comm()).into(),
                it.group_name(group).into(),
                of.bytes().filter(|_| !group.is_rest()).into(),
                of.times.number().into(),
            ];
            cells.extend(times(&of.times));
            cells.extend([algorithm.into(), bus.into()]);
            self.row(cells)
        };
        it.sorted_groups().into_iter().map(|(_, of)| row(of)).collect()
    }

    fn calls(&self) -> Vec<Vec<Cell>> {
        let it = self.summary;
        let mut sorted: Vec<_> = it.calls.rows.iter().collect();
        sorted.sort_by_key(|(_, times)| Reverse(times.total()));
        let row = |(key, of): &(Arguments, Times)| {
            let mut cells = vec![
                it.comm_name(key.comm).into(),
                it.function(key).into(),
                it.datatype(key).into(),
                key.count.into(),
                key.root.into(),
                of.number().into(),
            ];
            cells.extend(times(of));
            self.row(cells)
        };
        sorted.into_iter().filter(|(_, of)| of.number() > 0).map(row).collect()
    }

    fn buffers(&self) -> Vec<Vec<Cell>> {
        let it = self.summary;
        let row = |(key, row): &(Arguments, Operations)| {
            let seen = row.seen();
            let known = seen.aligned_128 + seen.aligned_16 + seen.unaligned;
            let buffers = match row.buffers.len() {
                0 => String::new(),
                _ if row.more_buffers => format!("more than {BUFFERS}"),
                number => number.to_string(),
            };
            self.row([
                it.comm_name(key.comm).into(),
                it.function(key).into(),
                it.datatype(key).into(),
                key.count.into(),
                key.peer.into(),
                seen.aligned_128.into(),
                seen.aligned_16.into(),
                seen.unaligned.into(),
                seen.number().saturating_sub(known).into(),
                buffers.into(),
            ])
        };
        it.sorted_operations().into_iter().map(|(_, of)| row(of)).collect()
    }

    fn proxy(&self) -> Vec<Vec<Cell>> {
        let it = self.summary;
        let mut sorted: Vec<_> = it.peers.rows.iter().collect();
        sorted.sort_by_key(|(key, _)| (key.comm, !key.is_send, key.peer));
        let row = |(key, of): &(Peer, Transfers)| {
            let direction = match key {
                Peer { comm: UNKNOWN, peer: None, .. } => "",
                Peer { is_send: true, .. } => "send",
                Peer { is_send: false, .. } => "receive",
            };
            let waits = Wait::ALL.map(|wait| of.waits[wait as usize].into());
            let cells = [
                it.comm_name(key.comm).into(),
                direction.into(),
                key.peer.into(),
                of.operations.into(),
                of.queued.into(),
                of.number.into(),
                of.bytes.into(),
            ];
            self.row(cells.into_iter().chain(waits).chain([of.longest.into()]))
        };
        sorted.into_iter().map(row).collect()
    }

    fn losses(&self) -> Vec<Vec<Cell>> {
        let it = self.summary;
        let mut rows: Vec<Vec<Cell>> = Vec::new();
        let mut add = |what: &str, number: Cell, note: &str| rows.push(self.row([what.into(), number, note.into()]));
        if it.recording.ended.is_none() {
            add("no last word", 1.into(), "the recording goes on, or its process was killed: figures are not final");
        }
        for (what, count) in it.lost() {
            add(what, count.into(), "");
        }
        for (what, count, note) in [
            ("transfers_unfinished", it.unfinished, "transfers of the proxy whose end is not known: not added up"),
            ("groups_incomplete", it.incomplete, "kernels of which not all operations are known: not added up"),
            ("operations_sharing", it.operations.shared, "operations past the limit, in the row of others"),
            ("groups_sharing", it.groups.shared, "groups past the limit, in the row of others"),
            ("calls_sharing", it.calls.shared, "calls past the limit, in the row of others"),
            ("peers_sharing", it.peers.shared, "peers past the limit, in the row of others"),
        ] {
            if count > 0 {
                add(what, count.into(), note);
            }
        }
        if it.room.0 == 0 {
            add("percentiles_missing", Cell::Empty, "too many kinds of operations: the latest have no percentiles");
        }
        for (name, number, note) in &it.recording.remarks {
            add(name, (*number).into(), note);
        }
        rows
    }
}

/// The cells of durations: minimum, percentiles, maximum, total.
fn times(times: &Times) -> [Cell; 6] {
    let total = Some(times.total()).filter(|_| times.number() > 0);
    let [median, p95, p99] = [50, 95, 99].map(|percent| times.percentile(percent));
    [times.least(), median, p95, p99, times.most(), total].map(Cell::from)
}

/// The words of a table whose bits are set: `RING+TREE`.
fn words(bits: u64, table: Words) -> String {
    let known = (1..64).filter(|bit| bits >> bit & 1 != 0).map(Word).filter(|word| word.table() == Some(table));
    let known = known.filter_map(Word::spelling);
    known.chain((bits & 1 != 0).then_some("others")).collect::<Vec<_>>().join("+")
}
