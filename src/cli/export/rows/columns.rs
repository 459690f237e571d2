//! What is in the rows of each table, from the arguments of events.

use std::collections::BTreeMap;

use super::{Cell, Open, Rows, Sink, Step};
use crate::cli::Reason;
use crate::cli::export::schema::Name;
use crate::model::time::HostNs;
use crate::model::timeline::Delay;
use crate::model::word::Word;
use crate::summary::Cell as Said;
use crate::trace::fields::{nccl, transport};
use crate::trace::reader::proto::ncclscope::{MatchedBy, Transport};
use crate::trace::reader::wire::fields;
use crate::trace::reader::{Event, Numbered};
use crate::trace::words::track;

/// Communicators as they are written.
#[derive(Default)]
pub(super) struct Comms(Numbered<String>);

impl Comms {
    fn text(&mut self, comm: Option<u64>) -> Option<&str> {
        let comm = comm.filter(|comm| *comm != 0)?;
        let text = self.0.entry(comm);
        if text.is_empty() {
            *text = format!("{comm:016x}");
        }
        Some(text)
    }
}

/// The most peers of a process.
const PEERS: usize = 1 << 16;

/// The peers of a process: by their communicator, as its hash or that of its name, and their rank.
#[derive(Default)]
pub(super) struct Peers(BTreeMap<(u64, i32), Peer>);

struct Peer {
    /// Only where there is no hash.
    comm_name: Box<str>,
    hash: Option<u64>,
    by_network: bool,
}

impl Peers {
    /// Takes the peer of an event of the proxy, if it says how data gets there.
    pub(super) fn of_proxy(&mut self, event: &Event<'_>) {
        let [transport, comm, peer] = event.uints([nccl::TRANSPORT, nccl::COMM, nccl::PEER]);
        if let (Some(transport), Some(peer)) = (transport, peer) {
            self.add(comm, "", peer, transport == transport::net);
        }
    }

    fn add(&mut self, comm: Option<u64>, name: &str, peer: u64, by_network: bool) {
        let key = (comm.unwrap_or_else(|| crate::cli::export::hash(&[name.as_bytes()])), peer as i32);
        let has_room = self.0.len() < PEERS;
        match self.0.get_mut(&key) {
            Some(known) => known.by_network |= by_network,
            None if has_room => drop(self.0.insert(key, Peer { comm_name: name.into(), hash: comm, by_network })),
            None => {}
        }
    }
}

/// Numbers and texts among an event's arguments.
pub(super) struct Args<'a, const N: usize, const T: usize> {
    pub(super) numbers: [Option<u64>; N],
    pub(super) texts: [&'a str; T],
}

impl<'a, const N: usize, const T: usize> Args<'a, N, T> {
    // Inlined, so that the numbers are constants in it.
    #[inline(always)]
    pub(super) fn of(args: &'a [u8], numbers: [u32; N], texts: [u32; T]) -> Args<'a, N, T> {
        let mut found = Args { numbers: [None; N], texts: [""; T] };
        for field in fields(args) {
            // Of two, the later one counts.
            if let Some(place) = numbers.iter().position(|wanted| *wanted == field.number) {
                found.numbers[place] = Some(field.uint());
            } else if let Some(place) = texts.iter().position(|wanted| *wanted == field.number) {
                found.texts[place] = std::str::from_utf8(field.bytes()).unwrap_or_default();
            }
        }
        found
    }
}

/// Makes variables of an event's arguments, each with the name of its field.
macro_rules! args_of {
    ($args:expr; numbers: $($number:ident)*; texts: $($text:ident)*;) => {
        #[allow(non_snake_case, reason = "the names are those of constants")]
        let Args { numbers: [$($number),*], texts: [$($text),*] } =
            Args::of($args, [$(nccl::$number),*], [$(nccl::$text),*]);
    };
}

/// One of NCCL's words, by its number or in full.
fn word<'a>(number: Option<u64>, text: &'a str) -> Cell<'a> {
    let known = number.and_then(|number| Word(u16::try_from(number).ok()?).spelling());
    known.filter(|known| !known.is_empty()).unwrap_or(text).into()
}

fn matched_by(number: Option<u64>) -> Cell<'static> {
    let known = number.and_then(|number| MatchedBy::try_from(i32::try_from(number).ok()?).ok());
    known.filter(|by| *by != MatchedBy::MatchAbsent).map(|by| by.as_str_name()).into()
}

fn delay(why: Delay) -> &'static str {
    match why {
        Delay::Asleep => "asleep",
        Delay::Append => "append",
        Delay::Busy => "busy",
    }
}

impl<S: Sink> Rows<'_, S> {
    pub(super) fn operation(
        &mut self,
        place: usize,
        args: &[u8],
        mark: Option<u64>,
        [handed_over, begin, end]: [Option<HostNs>; 3],
        why: Option<Delay>,
    ) -> Result<(), Reason> {
        args_of! { args;
            numbers: COMM REPLAY FUNCTION SEQ TIME_ERROR_NS BYTES COUNT DATATYPE ALGORITHM PROTOCOL CHANNELS PEER
                ROOT MATCH OPERATIONS TID NVTX_STEP PROXY_WAIT_NS;
            texts: COMM_NAME FUNCTION_TEXT DATATYPE_TEXT ALGORITHM_TEXT PROTOCOL_TEXT NVTX_RANGE DOUBT;
        }
        if let Some(peer) = PEER {
            self.processes[place].peers.add(COMM, COMM_NAME, peer, false);
        }
        let process = &self.processes[place];
        let row = [
            Cell::Number(process.id),
            self.comms.text(COMM).unwrap_or(COMM_NAME).into(),
            mark.into(),
            REPLAY.into(),
            word(FUNCTION, FUNCTION_TEXT),
            SEQ.into(),
            begin.into(),
            begin.and_then(|begin| Some(end?.since(begin))).into(),
            TIME_ERROR_NS.into(),
            handed_over.into(),
            BYTES.into(),
            COUNT.into(),
            word(DATATYPE, DATATYPE_TEXT),
            word(ALGORITHM, ALGORITHM_TEXT),
            word(PROTOCOL, PROTOCOL_TEXT),
            CHANNELS.into(),
            PEER.into(),
            ROOT.into(),
            matched_by(MATCH),
            OPERATIONS.into(),
            TID.into(),
            NVTX_RANGE.into(),
            NVTX_STEP.into(),
            DOUBT.into(),
            PROXY_WAIT_NS.into(),
            why.map(delay).into(),
        ];
        self.sink.row(process, Name::Operations, &row)
    }

    pub(super) fn kernel(&mut self, place: usize, open: &Open, end: Option<HostNs>) -> Result<(), Reason> {
        args_of! { &open.args;
            numbers: TIME_ERROR_NS MATCH COMM OPERATIONS DEVICE STREAM_ID GRAPH GRAPH_NODE REPLAY CORRELATION GRID
                BLOCK;
            texts: KERNEL COMM_NAME DOUBT;
        }
        let process = &self.processes[place];
        let row = [
            Cell::Number(process.id),
            Cell::Time(open.begin),
            end.map(|end| end.since(open.begin)).into(),
            TIME_ERROR_NS.into(),
            KERNEL.into(),
            matched_by(MATCH),
            self.comms.text(COMM).unwrap_or(COMM_NAME).into(),
            OPERATIONS.into(),
            DEVICE.into(),
            STREAM_ID.into(),
            GRAPH.into(),
            GRAPH_NODE.into(),
            REPLAY.into(),
            CORRELATION.into(),
            GRID.into(),
            BLOCK.into(),
            DOUBT.into(),
        ];
        self.sink.row(process, Name::Kernels, &row)
    }

    pub(super) fn channel(&mut self, place: usize, open: &Open, end: Option<HostNs>) -> Result<(), Reason> {
        args_of! { &open.args;
            numbers: TIME_ERROR_NS COMM CHANNEL PHASE DEVICE STREAM_ID GPU_START_NS GPU_STOP_NS;
            texts: COMM_NAME DOUBT;
        }
        let process = &self.processes[place];
        let row = [
            Cell::Number(process.id),
            Cell::Time(open.begin),
            end.map(|end| end.since(open.begin)).into(),
            TIME_ERROR_NS.into(),
            self.comms.text(COMM).unwrap_or(COMM_NAME).into(),
            open.mark.into(),
            CHANNEL.into(),
            PHASE.into(),
            DEVICE.into(),
            STREAM_ID.into(),
            GPU_START_NS.into(),
            GPU_STOP_NS.into(),
            DOUBT.into(),
        ];
        self.sink.row(process, Name::ChannelTimes, &row)
    }

    pub(super) fn step(
        &mut self,
        place: usize,
        open: &Open,
        end: Option<HostNs>,
        step: Step,
        is_send: bool,
    ) -> Result<(), Reason> {
        args_of! { &open.args;
            numbers: CHANNEL STEP;
            texts: DOUBT;
        }
        let process = &self.processes[place];
        let [gpu, peer, network, flush] = step.waits.map(|ns| Cell::from(Some(ns)));
        let row = [
            Cell::Number(process.id),
            Cell::Time(open.begin),
            end.map(|end| end.since(open.begin)).into(),
            self.comms.text(step.connection.and_then(|it| it.comm)).into(),
            open.mark.into(),
            step.connection.map_or(Cell::None, |it| Cell::Number(it.peer.into())),
            Cell::Text(if is_send { "send" } else { "receive" }),
            CHANNEL.into(),
            STEP.into(),
            step.bytes.into(),
            gpu,
            peer,
            network,
            flush,
            DOUBT.into(),
        ];
        self.sink.row(process, Name::ProxySteps, &row)
    }

    pub(super) fn communicator(&mut self, place: usize, track: u64, args: &[u8], time: HostNs) -> Result<(), Reason> {
        args_of! { args;
            numbers: COMM RANK RANKS NODES DEVICE NCCL_VERSION INTERFACE;
            texts: COMM_NAME;
        }
        let process = &self.processes[place];
        let label = self.tracks.get(track).and_then(|track| Some(track.name.split_once(track::RANK)?.0));
        let row = [
            Cell::Number(process.id),
            self.comms.text(COMM).unwrap_or(COMM_NAME).into(),
            Cell::Time(time),
            COMM_NAME.into(),
            label.into(),
            RANK.into(),
            RANKS.into(),
            NODES.into(),
            DEVICE.into(),
            NCCL_VERSION.into(),
            INTERFACE.into(),
        ];
        self.sink.row(process, Name::Communicators, &row)
    }

    pub(super) fn peers(&mut self, place: usize) -> Result<(), Reason> {
        let Peers(peers) = std::mem::take(&mut self.processes[place].peers);
        let process = &self.processes[place];
        for ((_, rank), Peer { comm_name, hash, by_network }) in &peers {
            let transport = if *by_network { Transport::Net } else { Transport::NotVisible };
            let row = [
                Cell::Number(process.id),
                self.comms.text(*hash).unwrap_or(comm_name).into(),
                Cell::Number((*rank).into()),
                Cell::Text(transport.as_str_name()),
            ];
            self.sink.row(process, Name::Peers, &row)?;
        }
        Ok(())
    }

    /// What the recording says about itself.
    pub(super) fn about(&mut self, place: usize, remark: Option<&str>) -> Result<(), Reason> {
        let process = &self.processes[place];
        let id = Cell::Number(process.id);
        let mut report = process.summary.report();
        remark.into_iter().for_each(|remark| report.add_loss(&process.summary, "file", remark));
        for table in &report.tables {
            let name = match table.name {
                "environment" => Name::Environment,
                "losses" => Name::Losses,
                _ => continue,
            };
            for row in &table.rows {
                // The first cell is the rank, which is in the path.
                let said = row[1..].iter().map(|cell| match cell {
                    Said::Empty => Cell::None,
                    Said::Text(text) => Cell::Text(text),
                    Said::Number(number) => Cell::from(Some(*number)),
                });
                let row: Vec<Cell<'_>> = std::iter::once(id).chain(said).collect();
                self.sink.row(process, name, &row)?;
            }
        }
        let [clock_error, least, most] = process.ended.unwrap_or_default();
        let row = [
            id,
            process.boot.as_deref().into(),
            process.host().into(),
            Cell::Number(process.pid),
            process.first.into(),
            process.first.map(|_| process.last).into(),
            Cell::Flag(process.ended.is_some()),
            process.to_utc.map_or(Cell::None, Cell::Number),
            clock_error.into(),
            least.into(),
            most.into(),
        ];
        self.sink.row(process, Name::ClockBounds, &row)
    }
}
