//! The summary: the totals of a recording, in bounded memory (pure).
//!
//! It adds up what is drawn. In the process, `trace` passes in each event as it draws it; for a
//! file, `cli::summary` passes in each event as it reads it. Both read the same bytes with
//! [`Facts`], so both give the same figures, to the last digit.
//!
//! ```text
//!  facts    what one event says            times    durations in bounded memory
//!  rows     what has the same arguments    groups   kernels that carry several operations
//!  traffic  bandwidths of nccl-tests       report   the summary as tables
//!  text     the tables for people          recording  what the recording says about itself
//!  stretches  who came late, for lack of a trace
//! ```

mod csv;
mod facts;
mod groups;
mod metrics;
mod recording;
mod report;
mod rows;
mod stretches;
mod table;
mod text;
mod times;
mod traffic;
mod transfers;

#[cfg(test)]
mod tests;

use rustc_hash::FxHashMap;

pub use csv::values;
pub use facts::Facts;
pub use groups::ALL_TO_ALL_V;
use groups::{Gathering, Group, OfGroup};
pub use metrics::Live;
use recording::{GPUS, Recording, cut, text};
#[cfg(all(test, feature = "cli"))]
pub(crate) use report::LOSSES;
#[cfg(feature = "cli")]
pub use report::Link;
pub use report::{ALL, FORMAT_VERSION, Report};
use rows::{Arguments, Operations, Rows, UNKNOWN};
use stretches::Stretches;
pub use table::{Cell, Column, Kind, Table};
pub use text::BLOCK;
use times::Room;
pub use times::Times;
pub use traffic::Traffic;
use transfers::{Peer, Transfers};
pub use transfers::{Transfer, Wait};

use crate::model::event::Network;
use crate::model::time::HostNs;
use crate::model::word::Word;
use crate::trace::fields::matched_by;

/// The endings of a summary's file name: as text for people, and as comma-separated values.
pub const ENDING: &str = "summary.txt";
/// See [`ENDING`].
pub const ENDING_CSV: &str = "summary.csv";

/// The most histograms, of all durations together. One usually takes 10 KiB, and 20 KiB at most.
const HISTOGRAMS: usize = 256;
/// Communicators that are kept.
const COMMS: usize = 1024;
/// The most texts that are not words of the table.
const TEXTS: usize = 512;

/// The totals of a recording.
#[derive(Debug)]
pub struct Summary {
    is_off: bool,
    recording: Recording,
    comms: Vec<Comm>,
    /// Communicators by their hash.
    hashes: FxHashMap<u64, u32>,
    texts: Vec<Box<str>>,
    operations: Rows<Arguments, Operations>,
    groups: Rows<Group, OfGroup>,
    gathering: Option<Gathering>,
    /// Kernels with several operations of which not all were seen.
    incomplete: u64,
    stretches: Stretches,
    calls: Rows<Arguments, Times>,
    peers: Rows<Peer, Transfers>,
    unfinished: u64,
    /// Networks whose plugin reported events, by the number of [`Network`].
    networks: u8,
    room: Room,
    last: Option<(Row, u64)>,
}

/// A row of the operations or of the groups, in order of appearance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Row {
    /// Kernels that carried one operation.
    Operation(u32),
    /// Kernels that carried several.
    Group(u32),
}

/// A communicator, as far as this process knows it.
#[derive(Debug)]
struct Comm {
    hash: u64,
    name: String,
    /// This process's ranks in it: one for each of its GPUs.
    members: Vec<Member>,
}

/// One rank of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    init: HostNs,
    rank: Option<i32>,
    ranks: Option<i32>,
    nodes: Option<i32>,
    device: Option<u64>,
    version: Option<u64>,
    interface: Option<u64>,
}

/// An operation whose kernel began.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    row: u32,
    /// For one of several operations of a kernel: how many these are.
    of: Option<u64>,
    part: groups::Part,
    queued_ns: Option<u64>,
    is_contradicted: bool,
}

impl Default for Summary {
    fn default() -> Summary {
        Summary::new()
    }
}

impl Summary {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Summary {
        Summary {
            is_off: false,
            recording: Recording::default(),
            comms: Vec::new(),
            hashes: FxHashMap::default(),
            texts: Vec::new(),
            operations: Rows::new(),
            groups: Rows::new(),
            gathering: None,
            incomplete: 0,
            stretches: Stretches::default(),
            calls: Rows::new(),
            peers: Rows::new(),
            unfinished: 0,
            networks: 0,
            room: Room(HISTOGRAMS),
            last: None,
        }
    }

    /// From here on nothing is added up, because nobody will ask.
    pub fn switch_off(&mut self) {
        self.is_off = true;
    }

    /// Whether nothing is added up.
    #[inline]
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.is_off
    }

    /// A communicator was initialised, or its identity became known.
    pub fn comm_init(&mut self, time: HostNs, facts: &Facts<'_>) {
        let at = self.known_comm(facts);
        let Some(comm) = self.comms.get_mut(at as usize) else { return };
        let Facts { rank, ranks, nodes, device, version, interface, .. } = *facts;
        let member = Member { init: time, rank, ranks, nodes, device, version, interface };
        let is_known = comm.members.iter().any(|it| Member { init: time, ..*it } == member);
        if !is_known && comm.members.len() < GPUS {
            comm.members.push(member);
        }
        if comm.name.is_empty() && !facts.comm_name.is_empty() {
            comm.name = text(facts.comm_name);
        }
    }

    /// An operation is handed over.
    pub fn handed_over(&mut self, facts: &Facts<'_>) {
        let row = self.operation(facts);
        if let Some(row) = self.operations.at(row) {
            row.handed_over.add(facts);
            row.describe(facts);
        }
    }

    /// The kernel of an operation began. [`Summary::ran`] must follow.
    pub fn run(&mut self, facts: &Facts<'_>) -> Run {
        let row = self.operation(facts);
        if let Some(row) = self.operations.at(row) {
            row.ran.add(facts);
            row.describe(facts);
            if let Some(ns) = facts.proxy_wait_ns {
                row.proxy_waits += 1;
                row.proxy_wait = row.proxy_wait.saturating_add(ns);
            }
        }
        Run {
            row,
            of: facts.operations.filter(|operations| *operations > 1),
            part: groups::Part::of(facts),
            queued_ns: facts.queued_ns,
            is_contradicted: facts.matched_by == Some(matched_by::contradicted),
        }
    }

    /// It ran from `start` on for this long; `None` if its end is not drawn.
    pub fn ran(&mut self, run: &Run, start: HostNs, ns: Option<u64>) {
        let Summary { operations, room, stretches, .. } = self;
        let Some((key, row)) = operations.rows.get_mut(run.row as usize) else { return };
        let comm = key.comm;
        if run.of.is_none() {
            stretches.add(comm, key.function, start, ns.filter(|_| !run.is_contradicted));
        }
        if run.is_contradicted {
            row.contradicted += 1;
        } else {
            if let Some(queued) = run.queued_ns {
                row.queued.add(queued, room);
            }
            match (ns, run.of) {
                (Some(ns), None) => {
                    row.kernel.add(ns, room);
                    self.last = Some((Row::Operation(run.row), ns));
                }
                (None, _) => {}
                (Some(_), Some(_)) => row.grouped += 1,
            }
        }
        if let Some(of) = run.of {
            self.gather(comm, run, of, start, ns);
        }
    }

    /// One of several operations of a kernel.
    fn gather(&mut self, comm: u32, run: &Run, of: u64, start: HostNs, ns: Option<u64>) {
        if self.gathering.as_ref().is_some_and(|it| !it.is(comm, of, start)) {
            self.incomplete += 1;
            self.gathering = None;
        }
        let (rank, ranks) = self.rank(comm);
        let gathering = self.gathering.get_or_insert_with(|| Gathering::new(comm, of, start, rank, ranks));
        gathering.add(&run.part, rank, ranks, ns, run.is_contradicted);
        if !gathering.is_whole() {
            return;
        }
        let Some(whole) = self.gathering.take() else { return };
        if let Some((group, moved, ns)) = whole.group(ranks) {
            let place = self.groups.place(group, Group::REST);
            if let Some(of) = self.groups.at(place) {
                of.add(ns, moved, &mut self.room);
                self.last = Some((Row::Group(place), ns));
            }
        }
    }

    /// This process's rank in a communicator, if it has only one, and the number of ranks.
    fn rank(&self, comm: u32) -> (Option<i32>, Option<u32>) {
        let Some(comm) = self.comms.get(comm as usize) else { return (None, None) };
        let ranks = comm.members.iter().find_map(|it| it.ranks).and_then(|ranks| u32::try_from(ranks).ok());
        let mut members = comm.members.iter();
        let rank = members.next().and_then(|first| first.rank).filter(|_| members.next().is_none());
        (rank, ranks.filter(|ranks| *ranks > 0))
    }

    /// A call for an operation was made; returns its number for [`Summary::called`].
    pub fn call(&mut self, facts: &Facts<'_>) -> Option<u32> {
        facts.count.is_some().then(|| {
            let key = Arguments { peer: None, ..self.arguments(facts) };
            self.calls.place(key, Arguments::REST)
        })
    }

    /// The call returned after this long.
    pub fn called(&mut self, call: u32, ns: u64) {
        if let Some(times) = self.calls.at(call) {
            times.add(ns, &mut self.room);
        }
    }

    /// The network plugin reported an event.
    pub fn network(&mut self, facts: &Facts<'_>) {
        let network = Network::from_id(facts.network.unwrap_or_default() as i64);
        self.networks |= 1 << network.0;
    }

    /// Takes the last duration that was added up: its row and the ns.
    pub fn take_last(&mut self) -> Option<(Row, u64)> {
        self.last.take()
    }

    /// The row of an operation's arguments.
    fn operation(&mut self, facts: &Facts<'_>) -> u32 {
        let key = self.arguments(facts);
        self.operations.place(key, Arguments::REST)
    }

    fn arguments(&mut self, facts: &Facts<'_>) -> Arguments {
        Arguments {
            comm: self.known_comm(facts),
            function: self.word(&facts.function),
            datatype: self.word(&facts.datatype),
            count: facts.count,
            root: facts.root,
            peer: facts.peer,
        }
    }

    /// The communicator that an event names.
    fn known_comm(&mut self, facts: &Facts<'_>) -> u32 {
        if facts.comm == 0 && facts.comm_name.is_empty() { UNKNOWN } else { self.comm(facts) }
    }

    /// The communicator with this hash or, where there is none, this name.
    fn comm(&mut self, facts: &Facts<'_>) -> u32 {
        let found = match facts.comm {
            0 => self.comms.iter().position(|it| it.hash == 0 && it.name.as_bytes() == facts.comm_name),
            hash => self.hashes.get(&hash).map(|at| *at as usize),
        };
        if let Some(found) = found {
            return found as u32;
        }
        if self.comms.len() >= COMMS {
            return UNKNOWN;
        }
        self.comms.push(Comm { hash: facts.comm, name: text(facts.comm_name), members: Vec::new() });
        let at = self.comms.len() as u32 - 1;
        self.hashes.insert(facts.comm, at);
        at
    }

    /// A number for a word: that of the table, or one for the text.
    fn word(&mut self, word: &facts::Word<'_>) -> u16 {
        if word.number != 0 || word.text.is_empty() {
            return word.number;
        }
        let word = String::from_utf8_lossy(word.text);
        let known = self.texts.iter().position(|known| **known == *word);
        let place = match known {
            Some(place) => place,
            None if self.texts.len() >= TEXTS => return u16::MAX,
            None => {
                self.texts.push(cut(&word).into());
                self.texts.len() - 1
            }
        };
        Word::FIRST_TEXT.0 + place as u16
    }

    /// The word with this number, as NCCL spells it.
    fn spelling(&self, number: u16) -> &str {
        let word = Word(number);
        if let Some(place) = number.checked_sub(Word::FIRST_TEXT.0)
            && let Some(text) = self.texts.get(usize::from(place))
        {
            return text;
        }
        word.spelling().unwrap_or(if number == u16::MAX { "others" } else { "operation" })
    }

    /// Adds another process's sums, whatever the ranks and peers are. Returns where its rows of
    /// operations and of groups are now.
    pub fn add_all(&mut self, other: &Summary) -> impl Fn(Row) -> Row + use<> {
        let (mut of_operations, mut of_groups) = (Vec::new(), Vec::new());
        let mut comms = Vec::new();
        for comm in &other.comms {
            let facts = Facts { comm: comm.hash, comm_name: comm.name.as_bytes(), ..Facts::default() };
            let at = self.comm(&facts);
            if let Some(ours) = self.comms.get_mut(at as usize)
                && let Some(first) = comm.members.first()
                && ours.members.is_empty()
            {
                let unlike = Member { rank: None, device: None, ..*first };
                ours.members.push(unlike);
            }
            comms.push(at);
        }
        let words: Vec<u16> =
            other.texts.iter().map(|text| self.word(&facts::Word { number: 0, text: text.as_bytes() })).collect();
        let translated = |number: u16| {
            let place = number.checked_sub(Word::FIRST_TEXT.0).map(usize::from);
            place.and_then(|place| words.get(place).copied()).unwrap_or(number)
        };
        let comm_of = |comm: u32| comms.get(comm as usize).copied().unwrap_or(UNKNOWN);
        let arguments = |key: &Arguments| Arguments {
            comm: comm_of(key.comm),
            function: translated(key.function),
            datatype: translated(key.datatype),
            peer: None,
            ..*key
        };
        let Summary { operations, groups, calls, peers, room, .. } = self;
        for (key, row) in &other.operations.rows {
            let place = operations.place(arguments(key), Arguments::REST);
            operations.at(place).into_iter().for_each(|ours| ours.add_all(row, room));
            of_operations.push(place);
        }
        for (key, of) in &other.groups.rows {
            let place = groups.place(key.with(comm_of(key.comm()), translated), Group::REST);
            groups.at(place).into_iter().for_each(|ours| ours.add_all(of, room));
            of_groups.push(place);
        }
        for (key, times) in &other.calls.rows {
            let place = calls.place(arguments(key), Arguments::REST);
            calls.at(place).into_iter().for_each(|ours| ours.add_all(times, room));
        }
        for (key, row) in &other.peers.rows {
            let place = peers.place(Peer { comm: comm_of(key.comm), peer: None, ..*key }, Peer::REST);
            peers.at(place).into_iter().for_each(|ours| ours.add_all(row));
        }
        move |row| match row {
            Row::Operation(at) => Row::Operation(of_operations[at as usize]),
            Row::Group(at) => Row::Group(of_groups[at as usize]),
        }
    }
}
