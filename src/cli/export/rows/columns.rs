//! What is in the rows of each table, from the arguments of events.

use super::{Cell, Open, Rows, Sink, Step};
use crate::cli::Reason;
use crate::cli::export::schema::Name;
use crate::model::time::HostNs;
use crate::model::word::Word;
use crate::summary::Cell as Said;
use crate::trace::fields::nccl;
use crate::trace::reader::Numbered;
use crate::trace::reader::proto::ncclscope::MatchedBy;
use crate::trace::reader::wire::fields;
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

/// One of NCCL's words, by its number or in full.
fn word<'a>(number: Option<u64>, text: &'a str) -> Cell<'a> {
    let known = number.and_then(|number| Word(u16::try_from(number).ok()?).spelling());
    known.filter(|known| !known.is_empty()).unwrap_or(text).into()
}

fn matched_by(number: Option<u64>) -> Cell<'static> {
    let known = number.and_then(|number| MatchedBy::try_from(i32::try_from(number).ok()?).ok());
    known.filter(|by| *by != MatchedBy::MatchAbsent).map(|by| by.as_str_name()).into()
}

impl<S: Sink> Rows<'_, S> {
    pub(super) fn operation(
        &mut self,
        place: usize,
        args: &[u8],
        mark: Option<u64>,
        [handed_over, begin, end]: [Option<HostNs>; 3],
    ) -> Result<(), Reason> {
        let Args {
            numbers:
                [
                    comm,
                    replay,
                    function,
                    seq,
                    error,
                    bytes,
                    count,
                    datatype,
                    algorithm,
                    protocol,
                    channels,
                    peer,
                    root,
                    by,
                    operations,
                    tid,
                    step,
                ],
            texts: [comm_name, function_text, datatype_text, algorithm_text, protocol_text, range, doubt],
        } = Args::of(
            args,
            [
                nccl::COMM,
                nccl::REPLAY,
                nccl::FUNCTION,
                nccl::SEQ,
                nccl::TIME_ERROR_NS,
                nccl::BYTES,
                nccl::COUNT,
                nccl::DATATYPE,
                nccl::ALGORITHM,
                nccl::PROTOCOL,
                nccl::CHANNELS,
                nccl::PEER,
                nccl::ROOT,
                nccl::MATCH,
                nccl::OPERATIONS,
                nccl::TID,
                nccl::NVTX_STEP,
            ],
            [
                nccl::COMM_NAME,
                nccl::FUNCTION_TEXT,
                nccl::DATATYPE_TEXT,
                nccl::ALGORITHM_TEXT,
                nccl::PROTOCOL_TEXT,
                nccl::NVTX_RANGE,
                nccl::DOUBT,
            ],
        );
        let process = &self.processes[place];
        let row = [
            Cell::Number(process.id),
            self.comms.text(comm).unwrap_or(comm_name).into(),
            mark.into(),
            replay.into(),
            word(function, function_text),
            seq.into(),
            begin.into(),
            begin.and_then(|begin| Some(end?.since(begin))).into(),
            error.into(),
            handed_over.into(),
            bytes.into(),
            count.into(),
            word(datatype, datatype_text),
            word(algorithm, algorithm_text),
            word(protocol, protocol_text),
            channels.into(),
            peer.into(),
            root.into(),
            matched_by(by),
            operations.into(),
            tid.into(),
            range.into(),
            step.into(),
            doubt.into(),
        ];
        self.sink.row(process, Name::Operations, &row)
    }

    pub(super) fn kernel(&mut self, place: usize, open: &Open, end: Option<HostNs>) -> Result<(), Reason> {
        let Args {
            numbers: [error, by, comm, operations, device, stream, graph, node, replay, correlation, grid, block],
            texts: [kernel, comm_name, doubt],
        } = Args::of(
            &open.args,
            [
                nccl::TIME_ERROR_NS,
                nccl::MATCH,
                nccl::COMM,
                nccl::OPERATIONS,
                nccl::DEVICE,
                nccl::STREAM_ID,
                nccl::GRAPH,
                nccl::GRAPH_NODE,
                nccl::REPLAY,
                nccl::CORRELATION,
                nccl::GRID,
                nccl::BLOCK,
            ],
            [nccl::KERNEL, nccl::COMM_NAME, nccl::DOUBT],
        );
        let process = &self.processes[place];
        let row = [
            Cell::Number(process.id),
            Cell::Time(open.begin),
            end.map(|end| end.since(open.begin)).into(),
            error.into(),
            kernel.into(),
            matched_by(by),
            self.comms.text(comm).unwrap_or(comm_name).into(),
            operations.into(),
            device.into(),
            stream.into(),
            graph.into(),
            node.into(),
            replay.into(),
            correlation.into(),
            grid.into(),
            block.into(),
            doubt.into(),
        ];
        self.sink.row(process, Name::Kernels, &row)
    }

    pub(super) fn channel(&mut self, place: usize, open: &Open, end: Option<HostNs>) -> Result<(), Reason> {
        let Args { numbers: [error, comm, channel, phase, device, stream, start, stop], texts: [comm_name, doubt] } =
            Args::of(
                &open.args,
                [
                    nccl::TIME_ERROR_NS,
                    nccl::COMM,
                    nccl::CHANNEL,
                    nccl::PHASE,
                    nccl::DEVICE,
                    nccl::STREAM_ID,
                    nccl::GPU_START_NS,
                    nccl::GPU_STOP_NS,
                ],
                [nccl::COMM_NAME, nccl::DOUBT],
            );
        let process = &self.processes[place];
        let row = [
            Cell::Number(process.id),
            Cell::Time(open.begin),
            end.map(|end| end.since(open.begin)).into(),
            error.into(),
            self.comms.text(comm).unwrap_or(comm_name).into(),
            open.mark.into(),
            channel.into(),
            phase.into(),
            device.into(),
            stream.into(),
            start.into(),
            stop.into(),
            doubt.into(),
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
        let Args { numbers: [channel, number], texts: [doubt] } =
            Args::of(&open.args, [nccl::CHANNEL, nccl::STEP], [nccl::DOUBT]);
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
            channel.into(),
            number.into(),
            step.bytes.into(),
            gpu,
            peer,
            network,
            flush,
            doubt.into(),
        ];
        self.sink.row(process, Name::ProxySteps, &row)
    }

    pub(super) fn communicator(&mut self, place: usize, track: u64, args: &[u8], time: HostNs) -> Result<(), Reason> {
        let Args { numbers: [comm, rank, ranks, nodes, device, version, interface], texts: [name] } = Args::of(
            args,
            [nccl::COMM, nccl::RANK, nccl::RANKS, nccl::NODES, nccl::DEVICE, nccl::NCCL_VERSION, nccl::INTERFACE],
            [nccl::COMM_NAME],
        );
        let process = &self.processes[place];
        let label = self.tracks.get(track).and_then(|track| Some(track.name.split_once(track::RANK)?.0));
        let row = [
            Cell::Number(process.id),
            self.comms.text(comm).unwrap_or(name).into(),
            Cell::Time(time),
            name.into(),
            label.into(),
            rank.into(),
            ranks.into(),
            nodes.into(),
            device.into(),
            version.into(),
            interface.into(),
        ];
        self.sink.row(process, Name::Communicators, &row)
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
