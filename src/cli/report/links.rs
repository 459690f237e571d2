//! How much each rank sent to each other rank, and how long that waited for the network: the rows
//! of the summary's table of the proxy, by the job's ranks (pure).

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::summary::{Link, Summary};

/// The most rows and columns of the matrix: beyond that, each stands for several ranks.
const SIDE: usize = 128;
/// Links that are listed.
const LISTED: usize = 2_000;

/// Who sent what to whom.
#[derive(Debug, Default, Serialize)]
pub(super) struct Links {
    /// The name of each row and column.
    labels: Vec<String>,
    /// How many ranks each of them stands for.
    each: usize,
    cells: Vec<Cell>,
    /// Those that waited longest for a transfer come first.
    links: Vec<OfLink>,
    /// How many there are.
    number: usize,
}

/// The links between the ranks of a row and those of a column.
#[derive(Debug, Default, Serialize)]
struct Cell {
    from: usize,
    to: usize,
    links: u64,
    transfers: u64,
    bytes: u64,
    /// Bytes per time that transfers waited for the network, on the slowest link; `None` where the
    /// sender's file is missing.
    bytes_per_s: Option<u64>,
    /// How long a transfer waited for the network on average, on the link where that was longest,
    /// ns.
    network_wait_ns: Option<u64>,
}

/// What a rank sent to another.
#[derive(Clone, Debug, Default, Serialize)]
struct OfLink {
    from: String,
    to: String,
    transfers: u64,
    bytes: u64,
    /// As in [`Cell`]; and in all, ns.
    bytes_per_s: Option<u64>,
    network_wait_ns: Option<u64>,
    network_wait_total_ns: Option<u64>,
}

/// What is known so far.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// The name of each process, and its rank in the job.
    processes: Vec<(String, Option<u32>)>,
    /// Which process is which rank of a communicator, by hash and rank.
    members: FxHashMap<(u64, i32), usize>,
    rows: Vec<(usize, Link)>,
}

/// One end of a link; ends are shown in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// A rank of the job, and a process of it.
    Rank(u32, usize),
    Process(usize),
    /// A rank of a communicator whose file is not here.
    Absent(String),
}

impl Gathered {
    pub(super) fn add(&mut self, process: &Summary) {
        let number = self.processes.len();
        let name = process.rank_name();
        let rank = name.parse().ok();
        let name = if rank.is_some() { format!("rank {name}") } else { name };
        self.processes.push((name, rank));
        self.members.extend(process.memberships().map(|member| (member, number)));
        self.rows.extend(process.links().map(|link| (number, link)));
    }

    fn end(&self, process: usize) -> End {
        self.processes[process].1.map_or(End::Process(process), |rank| End::Rank(rank, process))
    }

    fn name(&self, end: &End) -> String {
        match end {
            End::Rank(_, process) | End::Process(process) => self.processes[*process].0.clone(),
            End::Absent(name) => name.clone(),
        }
    }

    pub(super) fn finish(self) -> Links {
        // What the sender says, and what the receiver says.
        let mut known: BTreeMap<(End, End), [Option<Link>; 2]> = BTreeMap::new();
        for (process, link) in &self.rows {
            let own = self.end(*process);
            let absent = || End::Absent(format!("peer {} of {}", link.peer, link.communicator));
            let peer = self.members.get(&(link.hash, link.peer)).map_or_else(absent, |it| self.end(*it));
            let ends = if link.is_send { (own, peer) } else { (peer, own) };
            let said = &mut known.entry(ends).or_default()[usize::from(!link.is_send)];
            match said {
                None => *said = Some(link.clone()),
                Some(said) => {
                    said.transfers += link.transfers;
                    said.bytes = said.bytes.saturating_add(link.bytes);
                    said.network_wait_ns = said.network_wait_ns.saturating_add(link.network_wait_ns);
                }
            }
        }
        let mut ends: Vec<End> = known.keys().flat_map(|(from, to)| [from.clone(), to.clone()]).collect();
        ends.sort();
        ends.dedup();
        let places: BTreeMap<&End, usize> = ends.iter().zip(0..).collect();
        let each = ends.len().div_ceil(SIDE).max(1);
        let mut cells: BTreeMap<(usize, usize), Cell> = BTreeMap::new();
        let mut links = Vec::new();
        for ((from, to), [sent, received]) in &known {
            let Some(it) = sent.as_ref().or(received.as_ref()) else { continue };
            // A receiver waits for the network also while nothing is sent.
            let waited = sent.as_ref().map(|it| it.network_wait_ns);
            let rate = waited.filter(|ns| *ns > 0).map(|ns| rate(it.bytes, ns));
            let wait = waited.and_then(|ns| ns.checked_div(it.transfers));
            let place = (places[from] / each, places[to] / each);
            let cell = cells.entry(place).or_insert_with(|| Cell { from: place.0, to: place.1, ..Cell::default() });
            cell.links += 1;
            cell.transfers += it.transfers;
            cell.bytes = cell.bytes.saturating_add(it.bytes);
            cell.bytes_per_s = cell.bytes_per_s.into_iter().chain(rate).min();
            cell.network_wait_ns = cell.network_wait_ns.max(wait);
            links.push(OfLink {
                from: self.name(from),
                to: self.name(to),
                transfers: it.transfers,
                bytes: it.bytes,
                bytes_per_s: rate,
                network_wait_ns: wait,
                network_wait_total_ns: waited,
            });
        }
        links.sort_by_key(|it| std::cmp::Reverse(it.network_wait_ns));
        let number = links.len();
        links.truncate(LISTED);
        let names: Vec<String> = ends.iter().map(|end| self.name(end)).collect();
        Links { labels: several(&names, each), each, cells: cells.into_values().collect(), links, number }
    }
}

/// Bytes per second.
fn rate(bytes: u64, ns: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(ns)).try_into().unwrap_or(u64::MAX)
}

/// The names of groups of this many of them: `ranks 8–15`.
pub(super) fn several(names: &[String], each: usize) -> Vec<String> {
    let name = |names: &[String]| match names {
        [] => String::new(),
        [one] => one.clone(),
        [first, .., last] => match [first, last].map(|name| name.strip_prefix("rank ")) {
            [Some(first), Some(last)] => format!("ranks {first}–{last}"),
            _ => format!("{first} … {last}"),
        },
    };
    names.chunks(each.max(1)).map(name).collect()
}
