//! What can be wrong with a trace, and the check for it.

use std::fmt;

use super::Trace;
use super::written::Written;

/// Checks for everything that can be wrong with a trace. First it is told what is wrong on purpose.
///
/// If two slices of a track overlap without nesting, Perfetto nests them anyway: it gives the first
/// end to the later begin. They are recognised by their kind, where no slice may contain another of
/// its own kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Check {
    open_slices: u64,
    of_no_program: bool,
}

impl Check {
    /// A check that allows for nothing.
    pub fn new() -> Check {
        Check::default()
    }

    /// This many slices have no end, such as those of operations that never finished.
    #[must_use]
    pub fn open_slices(mut self, count: u64) -> Check {
        self.open_slices = count;
        self
    }

    /// No program does what was recorded: calls may contain calls.
    #[must_use]
    pub fn of_no_program(mut self) -> Check {
        self.of_no_program = true;
        self
    }

    /// Everything wrong with the trace.
    pub fn run(&self, trace: &Trace) -> Vec<Problem> {
        let written = Written::read(trace.bytes());
        let mut problems = statistics(trace);
        problems.extend(self.counts(trace, &written));
        problems.extend(negative_durations(trace));
        if !self.of_no_program {
            problems.extend(overlaps(trace));
        }
        problems.extend(written.faults);
        problems
    }

    /// Compares what was written with what was imported.
    fn counts(&self, trace: &Trace, written: &Written) -> Vec<Problem> {
        let imported = |sql: &str| trace.rows(sql)[0].i64("n").cast_unsigned();
        let slices = imported("SELECT count(*) AS n FROM slice WHERE id NOT IN (SELECT id FROM gpu_slice)");
        let open = imported("SELECT count(*) AS n FROM slice WHERE dur = -1");
        let counters =
            imported("SELECT count(*) AS n FROM counter WHERE track_id NOT IN (SELECT id FROM gpu_counter_track)");
        let render_stages = imported("SELECT count(*) AS n FROM gpu_slice");
        let arrows = imported("SELECT count(*) AS n FROM flow");

        let mut problems = Vec::new();
        let mut compare = |what, written, imported| {
            if written != imported {
                problems.push(Problem::Lost { what, written, imported });
            }
        };
        compare("slices and instants", written.begins + written.instants, slices);
        compare("counter values", written.counters, counters);
        compare("render stages", written.render_stages, render_stages);
        let expected_arrows = written.flows.values().map(|flow| flow.arrows()).sum();
        compare("arrows", expected_arrows, arrows);

        // Where slices were lost, so were their ends.
        let closed = written.begins.saturating_sub(open);
        if slices == written.begins + written.instants && written.ends > closed {
            let suspects = written.tracks.iter().filter(|(_, track)| track.ends > track.begins);
            problems.push(Problem::EndsWithoutBegin {
                count: written.ends - closed,
                tracks: suspects.map(|(uuid, track)| format!("{} ({uuid})", track.name)).collect(),
            });
        }
        // What a thread was last seen doing is open until it is looked at again.
        let unfinished =
            "slice s JOIN track t ON s.track_id = t.id WHERE s.dur = -1 AND ifnull(t.name, '') NOT GLOB 'seen*'";
        let found = imported(&format!("SELECT count(*) AS n FROM {unfinished}"));
        if found != self.open_slices {
            let select = "SELECT printf('%s on %s', s.name, t.name) AS slice";
            let examples = trace.rows(&format!("{select} FROM {unfinished} ORDER BY s.ts LIMIT 3"));
            problems.push(Problem::OpenSlices {
                expected: self.open_slices,
                found,
                examples: examples.iter().map(|row| row.str("slice").to_owned()).collect(),
            });
        }
        problems
    }
}

/// Counters to which Perfetto gives mild severities although they mean malformed input. Which of
/// them exist depends on the release.
const DEFECTS: &[&str] = &[
    "flow_end_without_start",
    "flow_step_without_start",
    "interned_data_skipped_incremental_state_invalid",
    "interned_data_tokenizer_errors",
    "packet_skipped_seq_needs_incremental_state_invalid",
    "tokenizer_skipped_packets",
    "track_event_parser_errors",
    "track_event_tokenizer_errors",
    "track_hierarchy_missing_uuid",
];

/// What Perfetto itself counted.
fn statistics(trace: &Trace) -> Vec<Problem> {
    let rows = trace.rows(
        "SELECT name, severity, sum(value) AS value, max(description) AS description FROM stats \
         WHERE value > 0 GROUP BY name, severity ORDER BY name",
    );
    let bad = rows
        .iter()
        .filter(|row| matches!(row.str("severity"), "error" | "data_loss") || DEFECTS.contains(&row.str("name")));
    bad.map(|row| Problem::Statistic {
        name: row.str("name").to_owned(),
        value: row.i64("value"),
        description: row.str("description").to_owned(),
    })
    .collect()
}

/// Slices that end before they begin.
fn negative_durations(trace: &Trace) -> Vec<Problem> {
    let negative = trace.rows(
        "SELECT coalesce(s.name, '') AS slice, coalesce(t.name, '') AS track, s.dur AS dur \
         FROM slice s JOIN track t ON s.track_id = t.id WHERE s.dur < -1",
    );
    let problems = negative.iter().map(|row| Problem::NegativeDuration {
        slice: row.str("slice").to_owned(),
        track: row.str("track").to_owned(),
        dur: row.i64("dur"),
    });
    problems.collect()
}

/// Slices of a recording that contain another of their kind. Nothing reported by NCCL or CUPTI
/// does, except operations of one kernel: beyond the number of lanes they nest, each as long as the
/// kernel.
fn overlaps(trace: &Trace) -> Vec<Problem> {
    let kind = |of: &str| {
        format!(
            "CASE WHEN {of}.category IN ('kernel', 'carried', 'run', 'operation', 'not done', 'net') THEN {of}.category \
             WHEN {of}.category = 'gpu' AND extract_arg({of}.arg_set_id, 'nccl.phase') IS NULL THEN 'gpu' \
             WHEN {of}.category NOT IN ('api', 'proxy') THEN NULL WHEN {of}.name GLOB 'nccl*' THEN 'call' \
             WHEN {of}.name GLOB 'step *' THEN 'step' WHEN {of}.name GLOB '* ch *' THEN 'channel' ELSE {of}.name END"
        )
    };
    let overlapping = trace.rows(&format!(
        "SELECT coalesce(held.name, '') AS slice, coalesce(around.name, '') AS holder, coalesce(t.name, '') AS track FROM slice held \
         JOIN slice around ON held.parent_id = around.id AND held.track_id = around.track_id JOIN track t ON held.track_id = t.id \
         WHERE held.dur != 0 AND around.dur != 0 AND {} = {} \
         AND NOT (held.category = 'run' AND held.ts = around.ts AND held.dur = around.dur) ORDER BY held.ts",
        kind("held"),
        kind("around")
    ));
    let Some(first) = overlapping.first() else { return Vec::new() };
    let of = |column: &str| first.str(column).to_owned();
    vec![Problem::Overlap { count: overlapping.len(), slice: of("slice"), holder: of("holder"), track: of("track") }]
}

/// Something wrong with a trace. Displayed as one line.
#[derive(Clone, Debug, PartialEq)]
pub enum Problem {
    /// Perfetto counted errors, losses, or input it calls malformed.
    Statistic {
        /// Its name in Perfetto's table `stats`.
        name: String,
        /// How many.
        value: i64,
        /// Perfetto's own words, often empty.
        description: String,
    },
    /// Perfetto imported a different number of items than was written.
    Lost {
        /// The kind of item.
        what: &'static str,
        /// How many are in the packets.
        written: u64,
        /// How many Perfetto has.
        imported: u64,
    },
    /// Ends that closed nothing: nothing was begun, or it began later than the end.
    EndsWithoutBegin {
        /// How many.
        count: u64,
        /// The tracks with more ends than begins, with their uuids.
        tracks: Vec<String>,
    },
    /// The number of slices without an end differs from the expected one.
    OpenSlices {
        /// The number that [`Check::open_slices`] was given.
        expected: u64,
        /// How many there are.
        found: u64,
        /// Up to three of them.
        examples: Vec<String>,
    },
    /// A slice with a negative duration.
    NegativeDuration {
        /// Its name.
        slice: String,
        /// Its track's name.
        track: String,
        /// Its duration in ns.
        dur: i64,
    },
    /// Slices of one track that overlap.
    Overlap {
        /// How many.
        count: usize,
        /// The first of them.
        slice: String,
        /// The one in which it began.
        holder: String,
        /// Their track.
        track: String,
    },
    /// The file, or the content of a compressed packet, stops inside a packet.
    Incomplete {
        /// Where in the file the packet starts.
        offset: usize,
        /// How many bytes of it exist.
        bytes: usize,
    },
    /// A packet that is no protobuf message, or that contains something that is none.
    Malformed {
        /// Where in the file it starts.
        offset: usize,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Statistic { name, value, description } => match description.as_str() {
                "" => write!(f, "{name}: {value}"),
                words => write!(f, "{name}: {value}: {words}"),
            },
            Problem::Lost { what, written, imported } => write!(f, "{what}: {written} written, {imported} imported"),
            Problem::EndsWithoutBegin { count, tracks } => {
                write!(f, "ends without a begin before them: {count}")?;
                match tracks.as_slice() {
                    [] => Ok(()),
                    tracks => write!(f, ", on {}", tracks.join(", ")),
                }
            }
            Problem::OpenSlices { expected, found, examples } => {
                write!(f, "slices without an end: {found} instead of {expected}")?;
                match examples.as_slice() {
                    [] => Ok(()),
                    examples => write!(f, ", such as {}", examples.join(", ")),
                }
            }
            Problem::NegativeDuration { slice, track, dur } => {
                write!(f, "{slice} on {track} lasts {dur} ns")
            }
            Problem::Overlap { count, slice, holder, track } => {
                write!(f, "slices that overlap: {count}, such as {slice} in {holder} on {track}")
            }
            Problem::Incomplete { offset, bytes } => {
                write!(f, "incomplete packet at offset {offset}: {bytes} bytes of it")
            }
            Problem::Malformed { offset } => write!(f, "malformed packet at offset {offset}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::Error;
    use super::super::wire::Message;
    use super::*;

    const BOOTTIME: u64 = 6;
    const MONOTONIC: u64 = 3;

    const BEGIN: u64 = 1;
    const END: u64 = 2;
    const INSTANT: u64 = 3;
    const COUNTER: u64 = 4;

    const SEQUENCE: u64 = 7;
    const TRACK: u64 = 11;
    const COUNTER_TRACK: u64 = 12;

    /// One packet, as written in a file.
    fn packet(fields: Message) -> Vec<u8> {
        Message::new().bytes(1, fields).into_bytes()
    }

    /// A packet of the sequence's own.
    fn on_sequence() -> Message {
        Message::new().varint(10, SEQUENCE)
    }

    fn event(kind: u64, track: u64) -> Message {
        Message::new().varint(9, kind).varint(11, track)
    }

    fn named(kind: u64) -> Message {
        event(kind, TRACK).bytes(23, "AllReduce")
    }

    fn at(time: u64, event: Message) -> Vec<u8> {
        packet(on_sequence().varint(8, time).bytes(11, event))
    }

    fn track(fields: Message) -> Vec<u8> {
        packet(on_sequence().bytes(60, fields))
    }

    /// What every trace here starts with: a fresh sequence, a track, a counter.
    fn start() -> Vec<u8> {
        [
            packet(on_sequence().varint(13, 1)),
            track(Message::new().varint(1, TRACK).bytes(2, "stream 7")),
            track(Message::new().varint(1, COUNTER_TRACK).bytes(2, "bus bandwidth").bytes(8, "")),
        ]
        .concat()
    }

    fn trace(packets: &[Vec<u8>]) -> Trace {
        Trace::from_bytes([start(), packets.concat()].concat()).unwrap()
    }

    fn slice(begin: u64, end: u64) -> Vec<u8> {
        [at(begin, named(BEGIN)), at(end, event(END, TRACK))].concat()
    }

    fn render_stage(begin: u64, duration: u64) -> Vec<u8> {
        let stage = Message::new().varint(1, begin).varint(2, duration);
        let stage = stage.varint(3, 1).varint(4, 1);
        packet(on_sequence().varint(8, begin).bytes(53, stage))
    }

    fn compressed(packets: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
        encoder.write_all(packets).unwrap();
        packet(Message::new().bytes(50, encoder.finish().unwrap()))
    }

    /// Checks a trace with the usual start and these packets. Returns the problems as lines.
    fn check(packets: &[Vec<u8>]) -> String {
        lines(&trace(packets).check())
    }

    fn lines(problems: &[Problem]) -> String {
        problems.iter().map(|problem| format!("{problem}\n")).collect()
    }

    #[test]
    fn a_valid_trace_has_no_problem() {
        let defaults = Message::new().bytes(11, Message::new().varint(11, TRACK));
        let value = |time, value| at(time, event(COUNTER, COUNTER_TRACK).varint(30, value));
        let trace = trace(&[
            at(100, named(BEGIN).fixed64(47, 0xabcd)),
            at(110, event(BEGIN, TRACK).bytes(23, "inner")),
            at(120, event(END, TRACK)),
            at(120, event(END, TRACK)),
            at(130, named(INSTANT)),
            value(130, 5),
            value(140, 0),
            compressed(&slice(150, 160)),
            at(170, named(BEGIN).fixed64(48, 0xabcd)),
            // The end's track comes from the defaults.
            packet(on_sequence().bytes(59, defaults)),
            at(180, Message::new().varint(9, END)),
            at(190, event(INSTANT, TRACK).varint(31, COUNTER_TRACK).varint(12, 3)),
        ]);
        assert_eq!(lines(&trace.check()), "");
        assert_eq!(trace.text("SELECT count(*) AS n FROM slice"), "n\n6\n");
        assert_eq!(trace.text("SELECT count(*) AS n FROM counter"), "n\n3\n");
        assert_eq!(trace.text("SELECT count(*) AS n FROM flow"), "n\n1\n");
    }

    #[test]
    fn a_slice_may_be_open_on_purpose() {
        let trace = trace(&[slice(100, 110), at(120, named(BEGIN))]);
        assert_eq!(lines(&trace.check()), "slices without an end: 1 instead of 0, such as AllReduce on stream 7\n");
        assert_eq!(Check::new().open_slices(1).run(&trace), []);
        assert_eq!(
            lines(&Check::new().open_slices(2).run(&trace)),
            "slices without an end: 1 instead of 2, such as AllReduce on stream 7\n"
        );
    }

    #[test]
    fn an_end_before_its_begin() {
        assert_eq!(
            check(&[slice(100, 90)]),
            "ends without a begin before them: 1\n\
             slices without an end: 1 instead of 0, such as AllReduce on stream 7\n"
        );
    }

    #[test]
    fn overlapping_slices() {
        let begin = |category: &str| named(BEGIN).bytes(22, category);
        let two = |category: &str, second: &str| {
            let ends = [at(120, event(END, TRACK)), at(130, event(END, TRACK))].concat();
            check(&[at(100, begin(category)), at(110, begin(second)), ends])
        };
        assert_eq!(two("kernel", "kernel"), "slices that overlap: 1, such as AllReduce in AllReduce on stream 7\n");
        // A range may contain another with the same name.
        assert_eq!(two("nvtx", "nvtx"), "");
        assert_eq!(two("kernel", "carried"), "");
    }

    #[test]
    fn an_end_without_a_begin() {
        assert_eq!(
            check(&[slice(100, 110), at(120, event(END, TRACK))]),
            "ends without a begin before them: 1, on stream 7 (11)\n"
        );
    }

    #[test]
    fn an_unknown_interned_name() {
        let begin = event(BEGIN, TRACK).varint(10, 5);
        assert_eq!(check(&[at(100, begin), at(110, event(END, TRACK))]), "interned_data_tokenizer_errors: 1\n");
    }

    #[test]
    fn no_sequence_id() {
        let begin = packet(Message::new().varint(8, 100).bytes(11, named(BEGIN)));
        let end = packet(Message::new().varint(8, 110).bytes(11, event(END, TRACK)));
        assert_eq!(
            check(&[begin, end]),
            "track_event_tokenizer_errors: 2\nslices and instants: 1 written, 0 imported\n"
        );
    }

    #[test]
    fn a_parent_that_nothing_describes() {
        let orphan = Message::new().varint(1, 13).varint(5, 99).bytes(2, "orphan");
        let begin = event(BEGIN, 13).bytes(23, "AllReduce");
        assert_eq!(
            check(&[track(orphan), at(100, begin), at(110, event(END, 13))]),
            "track_event_parser_errors: 3\nslices and instants: 1 written, 0 imported\n"
        );
    }

    #[test]
    fn a_clock_that_leads_nowhere() {
        let packets = |kind, time| {
            let fields = on_sequence().varint(8, time).varint(58, 64);
            packet(fields.bytes(11, event(kind, TRACK)))
        };
        assert_eq!(
            check(&[packets(BEGIN, 100), packets(END, 110)]),
            "clock_sync_failure: 2\nslices and instants: 1 written, 0 imported\n"
        );
    }

    #[test]
    fn a_clock_snapshot_that_goes_back() {
        let reading = |clock, time| Message::new().varint(1, clock).varint(2, time);
        let snapshot = |boottime, monotonic| {
            let clocks = Message::new().bytes(1, reading(BOOTTIME, boottime)).bytes(1, reading(MONOTONIC, monotonic));
            packet(on_sequence().bytes(6, clocks))
        };
        assert_eq!(check(&[snapshot(1000, 500), snapshot(900, 400)]), "invalid_clock_snapshots: 1\n");
    }

    #[test]
    fn state_that_was_never_set_up() {
        let begin = Message::new().varint(10, 8).varint(13, 2).varint(8, 100);
        assert_eq!(
            check(&[packet(begin.bytes(11, named(BEGIN)))]),
            "tokenizer_skipped_packets: 1\nslices and instants: 1 written, 0 imported\n"
        );
    }

    #[test]
    fn a_counter_value_on_a_track_of_slices() {
        assert_eq!(
            check(&[at(100, event(COUNTER, TRACK).varint(30, 5))]),
            "track_event_tokenizer_errors: 1\ncounter values: 1 written, 0 imported\n"
        );
    }

    #[test]
    fn an_arrow_whose_end_comes_first() {
        assert_eq!(
            check(&[at(100, named(INSTANT).fixed64(48, 0xabcd)), at(110, named(INSTANT).fixed64(47, 0xabcd)),]),
            "arrows: 1 written, 0 imported\n"
        );
    }

    #[test]
    fn a_file_cut_inside_a_packet() {
        let mut bytes = [start(), slice(100, 110), slice(120, 130)].concat();
        bytes.truncate(bytes.len() - 3);
        assert_eq!(
            lines(&Trace::from_bytes(bytes).unwrap().check()),
            "slices without an end: 1 instead of 0, such as AllReduce on stream 7\n\
             incomplete packet at offset 111: 10 bytes of it\n"
        );
    }

    #[test]
    fn an_event_that_is_no_message() {
        let garbage = packet(on_sequence().varint(8, 120).bytes(11, [0x0b, 0x0b]));
        assert_eq!(check(&[slice(100, 110), garbage]), "track_event_parser_errors: 1\nmalformed packet at offset 87\n");
    }

    #[test]
    fn render_stages() {
        // Perfetto gives overlapping ones separate tracks.
        assert_eq!(check(&[render_stage(100, 10), render_stage(105, 10)]), "");
        let no_id = Message::new().varint(2, 10).varint(3, 1).varint(4, 1);
        let no_id = packet(on_sequence().varint(8, 120).bytes(53, no_id));
        assert_eq!(check(&[render_stage(100, 10), no_id]), "render stages: 2 written, 1 imported\n");
    }

    #[test]
    fn a_render_stage_with_a_negative_duration() {
        assert_eq!(
            check(&[render_stage(100, 5_u64.wrapping_neg())]),
            "render stage(1) on Unknown GPU Queue 1 lasts -5 ns\n"
        );
    }

    #[test]
    fn traces_that_perfetto_itself_refuses() {
        let mut raw = flate2::write::DeflateEncoder::new(Vec::new(), Default::default());
        raw.write_all(&slice(100, 110)).unwrap();
        let no_zlib_header = packet(Message::new().bytes(50, raw.finish().unwrap()));
        let cut_inside = compressed(&[slice(100, 110), vec![0x0a, 0x20, 0x08]].concat());
        let no_message = vec![0x0a, 0x02, 0x0b, 0x0b];
        for packet in [no_zlib_header, cut_inside, no_message] {
            let refused = Trace::from_bytes([start(), packet].concat());
            assert!(matches!(refused, Err(Error::Refused(_))));
        }
    }
}
