//! A trace as a reader understands it. Reading refuses whatever Perfetto would drop or misplace.

use super::*;

/// Id of the delta clock.
const DELTA: u32 = 64;
const BOOTTIME: u32 = 6;

/// A trace as a reader understands it.
#[derive(Default)]
pub(super) struct Picture {
    /// In order of their description.
    pub(super) tracks: Vec<TrackDescriptor>,
    /// In order of the file.
    pub(super) events: Vec<Drawn>,
}

/// An event with everything resolved.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Drawn {
    pub(super) kind: Type,
    pub(super) track: u64,
    pub(super) time: u64,
    pub(super) category: String,
    pub(super) name: String,
    pub(super) correlation: Option<u64>,
    pub(super) flows: Vec<u64>,
    pub(super) value: Option<i64>,
    pub(super) args: Nccl,
}

/// What a sequence of packets has said so far.
#[derive(Default)]
struct Stream {
    time: u64,
    track: u64,
    names: HashMap<u64, String>,
    categories: HashMap<u64, String>,
}

impl Picture {
    /// Reads a trace. Panics at anything that Perfetto would drop or misplace.
    pub(super) fn read(bytes: &[u8]) -> Picture {
        let mut picture = Picture::default();
        let mut streams = HashMap::new();
        reader::decoded(bytes, |packet| picture.packet(packet, &mut streams)).expect("a whole trace");
        picture
    }

    fn packet(&mut self, packet: TracePacket, streams: &mut HashMap<u32, Stream>) {
        let sequence = packet.trusted_packet_sequence_id();
        assert!(sequence > 0 && sequence < 1 << 31, "sequence id {sequence}");
        if packet.sequence_flags() == 1 {
            assert!(streams.insert(sequence, Stream::default()).is_none(), "sequence {sequence} begins once");
        }
        let stream = streams.get_mut(&sequence).expect("a sequence begins with a cleared state");
        for clock in packet.clock_snapshot.iter().flat_map(|snapshot| &snapshot.clocks) {
            if clock.clock_id() == DELTA {
                assert!(clock.is_incremental());
                stream.time = clock.timestamp();
            }
        }
        if let Some(defaults) = &packet.trace_packet_defaults {
            assert_eq!(defaults.timestamp_clock_id(), DELTA);
            stream.track = defaults.track_event_defaults.as_ref().expect("a default track").track_uuid();
        }
        for entry in packet.interned_data.iter().flat_map(|data| &data.event_names) {
            assert!(stream.names.insert(entry.iid(), entry.name().to_owned()).is_none(), "a name is defined once");
        }
        for entry in packet.interned_data.iter().flat_map(|data| &data.event_categories) {
            stream.categories.insert(entry.iid(), entry.name().to_owned());
        }
        if let Some(track) = &packet.track_descriptor
            // The root is no track; it says how processes are ordered.
            && track.uuid() != 0
        {
            assert!(self.track(track.uuid()).is_none(), "track {} is described once", track.uuid());
            assert!(track.parent_uuid.is_none_or(|parent| self.track(parent).is_some()), "parents come first");
            self.tracks.push(track.clone());
        }
        let Some(event) = &packet.track_event else { return };
        let time = match packet.timestamp_clock_id {
            Some(clock) => {
                assert_eq!(clock, BOOTTIME);
                packet.timestamp()
            }
            None => {
                stream.time += packet.timestamp();
                stream.time
            }
        };
        let name = match event.name_iid {
            Some(iid) => stream.names.get(&iid).expect("a name is defined before its use").clone(),
            None => event.name().to_owned(),
        };
        let category = |iid: &u64| stream.categories.get(iid).expect("a category is defined before its use").clone();
        let drawn = Drawn {
            kind: event.r#type(),
            track: event.track_uuid.unwrap_or(stream.track),
            time,
            category: event.category_iids.iter().map(category).collect(),
            name,
            correlation: event.correlation_id,
            flows: event.flow_ids.clone(),
            value: event.counter_value,
            args: event.nccl.clone().unwrap_or_default(),
        };
        let track = self.track(drawn.track).expect("tracks are described before their events");
        assert_eq!(track.counter.is_some(), drawn.kind == Type::Counter, "counters are on tracks of their own");
        self.events.push(drawn);
    }

    pub(super) fn track(&self, uuid: u64) -> Option<&TrackDescriptor> {
        self.tracks.iter().find(|track| track.uuid() == uuid)
    }

    pub(super) fn count(&self, kind: Type) -> u64 {
        self.events.iter().filter(|event| event.kind == kind).count() as u64
    }

    /// Slices without end.
    pub(super) fn open(&self) -> u64 {
        self.count(Type::SliceBegin) - self.count(Type::SliceEnd)
    }

    /// Asserts that slices nest on every track as intended: begins and ends in order of time, no
    /// end without a begin, one slice at a time in a lane, and only phases inside it.
    pub(super) fn check_nesting(&self) {
        const INNER: &[&str] = &[
            "GPU wait",
            "peer wait",
            "network wait",
            "flush wait",
            "posted",
            "remote FIFO wait",
            "transmitted",
            "received",
            "done",
            "sleep",
            "append",
        ];
        let mut tracks: HashMap<u64, (u64, u32)> = HashMap::new();
        // By track: the begin of the last operation that a kernel carried. All those that found no
        // lane have the same span.
        let mut carried: HashMap<u64, u64> = HashMap::new();
        for event in &self.events {
            let is_thread = self.track(event.track).is_some_and(|track| track.thread.is_some());
            let (last, depth) = tracks.entry(event.track).or_default();
            if event.kind == Type::SliceBegin && event.category == Category::Run.name() {
                let before = carried.insert(event.track, event.time);
                if before == Some(event.time) && *last > event.time {
                    (*last, *depth) = (event.time, 0);
                }
            }
            if matches!(event.kind, Type::SliceBegin | Type::SliceEnd) {
                assert!(event.time >= *last, "after {last}: {:?} {} at {}", event.kind, event.name, event.time);
                *last = event.time;
            }
            match event.kind {
                Type::SliceBegin => {
                    *depth += 1;
                    let fits = *depth == 1 || *depth == 2 && INNER.contains(&event.name.as_str());
                    assert!(is_thread || fits, "depth {depth} in a lane: {} at {}", event.name, event.time);
                }
                Type::SliceEnd => {
                    assert!(*depth > 0, "ends nothing: at {}", event.time);
                    *depth -= 1;
                }
                _ => {}
            }
        }
    }

    /// The tracks with anything on them, as lines.
    pub(super) fn lines(&self) -> String {
        let mut lines = String::new();
        for root in self.tracks.iter().filter(|track| track.parent_uuid.is_none()) {
            self.write_track(root, 0, &mut lines);
        }
        lines.trim_end().to_owned()
    }

    fn write_track(&self, track: &TrackDescriptor, depth: usize, lines: &mut String) {
        let at = lines.len();
        let indent = "  ".repeat(depth);
        let name = match (&track.process, &track.thread) {
            (Some(process), _) => process.process_name(),
            (_, Some(thread)) => thread.thread_name(),
            _ => track.name(),
        };
        let _ = writeln!(lines, "{indent}{name}");
        let before = lines.len();
        for line in self.slices(track.uuid()) {
            let _ = writeln!(lines, "{indent}  {line}");
        }
        let mut children: Vec<_> = self.tracks.iter().filter(|it| it.parent_uuid == track.uuid).collect();
        children.sort_by_key(|child| child.sibling_order_rank());
        for child in children {
            self.write_track(child, depth + 1, lines);
        }
        if lines.len() == before {
            // A track without events is not drawn.
            lines.truncate(at);
        }
    }

    fn slices(&self, track: u64) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        let mut open = Vec::new();
        for event in self.events.iter().filter(|event| event.track == track) {
            let Drawn { kind, time, name, args, value, .. } = event;
            let remark = |text: &Option<String>| text.as_ref().map_or(String::new(), |text| format!(" ({text})"));
            let remarks = format!("{}{}", remark(&args.doubt), remark(&args.note));
            match kind {
                Type::SliceBegin => {
                    open.push((lines.len(), time.to_string().len()));
                    lines.push(format!("{time}.. {name}{remarks}"));
                }
                Type::SliceEnd => {
                    let (line, at) = open.pop().expect("checked when nesting was");
                    lines[line].insert_str(at + 2, &time.to_string());
                    lines[line].push_str(&remarks);
                }
                Type::Counter => match value {
                    Some(0) => {}
                    value => lines.push(format!("{time} = {}", value.unwrap_or_default())),
                },
                _ => lines.push(format!("{time} {name}{remarks}")),
            }
        }
        lines
    }
}
