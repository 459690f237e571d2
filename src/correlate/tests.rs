//! Scenarios: what NCCL calls, line by line, against what the correlator makes of it, line by line.
//!
//! A line of a scenario is `TIME RING WHAT`; several on one source line are separated by `|`.
//!
//! | what | means |
//! | --- | --- |
//! | `thread TID NAME`, `ends` | the ring's thread appears, and is gone |
//! | `comm LABEL hash=.. rank=.. ranks=.. name=.. interface=..` | a communicator's `init` |
//! | `identity LABEL hash=.. name=..` | its identity, which v1 to v3 report later |
//! | `finalize LABEL` | its end |
//! | `text $N WORDS` | a recorded text, from then on a word like any other |
//! | `start LABEL KIND [in=COMM] [parent=LABEL] [group=LABEL] [FIELD=VALUE]` | an event |
//! | `stop LABEL`, `state LABEL STATE [argument=..] [steps=..]`, `update LABEL bytes=..` | |
//! | `launch corr=.. [in=LAUNCH] [group=LABEL]` | a kernel's launch, from CUPTI's callback |
//! | `node N in=LAUNCH`, `clone N of=M` | a node of a graph is made, or cloned |
//! | `kernel START corr=.. [node=..] [name=..]` | CUPTI reports a kernel, which ended at `TIME` |
//! | `advance` | time moves on to `TIME` |
//! | `copy START corr=.. [node=..]` | CUPTI reports a copy, which ended at `TIME` |
//! | `push N NAME [tid=..] [domain=..]`, `pop N` | CUPTI reports a range's begin, its end |
//! | `lost` | CUPTI reports that it lost records |
//! | `graph GRAPH corr=..` | a graph is launched; without the id, it is made |
//! | `finish`, alone on its line | the recording ends |
//! | `process`, alone on its line | what follows happens in another process |
//!
//! A label is an event or a communicator. A label that never starts is unknown to the correlator,
//! one that begins with `foreign` belongs to another process, and `none` is no event. An event
//! belongs to the communicator `C` unless `in=` says otherwise. In the expected text, `mark a`
//! stands for the first correlation number that occurs, `mark b` for the next different one.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::proxy::PENDING_OPS;
use super::*;
use crate::model::activity::{self, Kernel, Place, Span};
use crate::model::event::{CommInit, Flag, Net, Network};
use crate::model::time::Ticks;
use crate::model::timeline::{Around, CopyOf, Flaw, Owner, ProxyOp, Timing};

pub(crate) const PID: i32 = 4711;

/// The tag of the process that the tests play.
pub(crate) fn tag() -> ProcessTag {
    ProcessTag::from_random(0xabcde)
}

/// Compares what the correlator makes of a scenario with what it should.
#[track_caller]
fn check(input: &str, expected: &str) {
    let said = transcript(input);
    let expected: Vec<&str> = expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let expected = expected.join("\n");
    assert!(said == expected, "\n-- said --\n{said}\n-- expected --\n{expected}\n");
}

/// All entries, one per line, and after each process the doubts that were counted.
fn transcript(input: &str) -> String {
    let mut text = String::new();
    let mut marks = Vec::new();
    for process in input.split("process") {
        let mut player = Player::new();
        player.play(process, &mut |labels, entry| {
            // Checked against the rules below, but not printed.
            if matches!(entry.what, What::ProxyOpTaken { .. }) {
                return;
            }
            let _ = writeln!(text, "{} {}", entry.time.0, describe(labels, &mut marks, &entry.what));
        });
        let doubts = format!("{:?}", player.correlator.doubts());
        let doubts = doubts.trim_start_matches("Doubts { ").trim_end_matches(" }");
        let counted: Vec<&str> = doubts.split(", ").filter(|doubt| !doubt.ends_with(": 0")).collect();
        if !counted.is_empty() {
            let _ = writeln!(text, "{}", counted.join(", "));
        }
    }
    text.trim_end().to_owned()
}

/// Plays scenarios into a correlator.
pub(crate) struct Player {
    pub(crate) correlator: Correlator,
    pub(super) labels: Labels,
}

/// The handles of a scenario, by label.
#[derive(Default)]
pub(crate) struct Labels {
    names: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Labels {
    pub(super) fn handle(&mut self, label: &str) -> Handle {
        if label == "none" {
            return Handle::NONE;
        }
        let index = *self.numbers.entry(label.to_owned()).or_insert_with(|| {
            self.names.push(label.to_owned());
            self.names.len() - 1
        });
        let tag = if label.starts_with("foreign") { ProcessTag::from_random(1) } else { tag() };
        Handle(tag.base() + 1 + index as u64)
    }

    pub(crate) fn label(&self, handle: Handle) -> &str {
        let index = (handle.0 & ((1 << Handle::COUNTER_BITS) - 1)) as usize;
        self.names.get(index.wrapping_sub(1)).map_or("none", String::as_str)
    }
}

impl Player {
    pub(crate) fn new() -> Player {
        Player { correlator: Correlator::new(tag(), PID), labels: Labels::default() }
    }

    pub(crate) fn play(&mut self, input: &str, sink: &mut dyn FnMut(&Labels, &Entry<'_>)) {
        for line in input.split(['\n', '|']).map(str::trim).filter(|line| !line.is_empty()) {
            if line == "finish" {
                let labels = &self.labels;
                self.correlator.finish(&mut |entry| sink(labels, entry));
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let [time, ring, what @ ..] = &words[..] else { panic!("neither time nor ring: {line}") };
            let time = HostNs(time.parse().unwrap_or_else(|_| panic!("no time: {line}")));
            if let ["copy", start, fields @ ..] = what {
                let fields = Fields::new(fields);
                let Kernel { span, place, correlation, graph_node, .. } = kernel_of(start, time, &fields);
                let kind = activity::CopyKind::PeerToPeer;
                let copy = activity::Copy { span, place, correlation, graph_node, bytes: 1, kind };
                let labels = &self.labels;
                self.correlator.push_activity(&Activity::Copy(copy), &mut |entry| sink(labels, entry));
                continue;
            }
            if let ["kernel", start, fields @ ..] = what {
                let kernel = Activity::Kernel(kernel_of(start, time, &Fields::new(fields)));
                let labels = &self.labels;
                self.correlator.push_activity(&kernel, &mut |entry| sink(labels, entry));
                continue;
            }
            if let [how @ ("unfinished" | "untimed"), fields @ ..] = what {
                let Kernel { place, correlation, graph_node, name, .. } = kernel_of("0", time, &Fields::new(fields));
                let kernel = activity::Unfinished { place, correlation, graph_node, name };
                let kernel = if *how == "untimed" { Activity::Untimed(kernel) } else { Activity::Unfinished(kernel) };
                let labels = &self.labels;
                self.correlator.push_activity(&kernel, &mut |entry| sink(labels, entry));
                continue;
            }
            if let ["id", launch, fields @ ..] = what {
                let id = Activity::ExternalId {
                    id: self.labels.handle(launch),
                    correlation: Fields::new(fields).number("corr", 0),
                };
                let labels = &self.labels;
                self.correlator.push_activity(&id, &mut |entry| sink(labels, entry));
                continue;
            }
            if let Some(activity) = marker_of(time, what) {
                let labels = &self.labels;
                self.correlator.push_activity(&activity, &mut |entry| sink(labels, entry));
                continue;
            }
            if let ["lent"] = what {
                self.correlator.lent(time);
                continue;
            }
            if let ["distrust"] = what {
                self.correlator.distrust_graph_launches();
                continue;
            }
            if let ["records-lost"] = what {
                self.correlator.lost();
                continue;
            }
            if let ["advance"] = what {
                let labels = &self.labels;
                self.correlator.advance(time, &mut |entry| sink(labels, entry));
                continue;
            }
            let ring = RingId(ring.parse().unwrap_or_else(|_| panic!("no ring: {line}")));
            let body = self.body(what).unwrap_or_else(|| panic!("not a line of a scenario: {line}"));
            let labels = &self.labels;
            let record = Record { ticks: Ticks(time.0), body };
            self.correlator.push(ring, time, &record, &mut |entry| sink(labels, entry));
        }
    }

    fn body<'l>(&mut self, words: &[&'l str]) -> Option<Body<'l>> {
        let labels = &mut self.labels;
        Some(match *words {
            ["thread", tid, name] => {
                let mut bytes = [0; 16];
                bytes[..name.len()].copy_from_slice(name.as_bytes());
                Body::Thread { tid: tid.parse().ok()?, name: bytes }
            }
            ["ends"] => Body::ThreadEnd,
            ["text", word, text] => Body::Text { word: word_of(word), text: text.as_bytes() },
            ["comm", label, ref fields @ ..] => {
                let fields = Fields::new(fields);
                Body::CommInit(CommInit {
                    context: labels.handle(label),
                    hash: fields.number("hash", 0),
                    rank: fields.number("rank", -1),
                    ranks: fields.number("ranks", -1),
                    nodes: fields.number("nodes", -1),
                    name: fields.word("name", Word::ABSENT),
                    interface: fields.number("interface", 5),
                    device_plus_one: fields.number("device", 0),
                    version: fields.number("version", 0),
                    ..CommInit::default()
                })
            }
            ["identity", label, ref fields @ ..] => {
                let fields = Fields::new(fields);
                let name = fields.word("name", Word::ABSENT);
                Body::CommIdentity { context: labels.handle(label), hash: fields.number("hash", 0), name }
            }
            ["finalize", label] => Body::CommFinalize { context: labels.handle(label) },
            ["start", label, kind, ref fields @ ..] => {
                let fields = Fields::new(fields);
                let mut event = event_of(kind, &fields)?;
                let group = labels.handle(fields.get("group").unwrap_or("none"));
                match &mut event {
                    Event::Coll(coll) => coll.group = group,
                    Event::P2p(p2p) => p2p.group = group,
                    _ => {}
                }
                Body::Start {
                    handle: labels.handle(label),
                    parent: labels.handle(fields.get("parent").unwrap_or("none")),
                    context: labels.handle(fields.get("in").unwrap_or("C")),
                    rank: 0,
                    event,
                }
            }
            ["stop", label] => Body::Stop { handle: labels.handle(label) },
            ["launch", ref fields @ ..] => {
                let fields = Fields::new(fields);
                Body::Launch {
                    correlation: fields.number("corr", 0),
                    nccl: true,
                    launch: labels.handle(fields.get("in").unwrap_or("none")),
                    group: labels.handle(fields.get("group").unwrap_or("none")),
                }
            }
            ["node", node, ref fields @ ..] => {
                let launch = labels.handle(Fields::new(fields).get("in").unwrap_or("none"));
                Body::GraphNode { node: node.parse().ok()?, original: 0, launch }
            }
            ["clone", node, ref fields @ ..] => {
                let original = Fields::new(fields).number("of", 0);
                Body::GraphNode { node: node.parse().ok()?, original, launch: Handle::NONE }
            }
            ["update-graph", graph] => Body::GraphChange { graph: graph.parse().ok()? },
            ["graph", graph, ref fields @ ..] => {
                let correlation = Fields::new(fields).number("corr", 0);
                Body::GraphLaunch { graph: graph.parse().ok()?, correlation }
            }
            ["state", label, name, ref fields @ ..] => {
                let fields = Fields::new(fields);
                let state = (0..64).find(|&number| state::name(number) == Some(name)).or(name.parse().ok())?;
                let (argument, steps) = (fields.number("argument", 0), fields.number("steps", 0));
                Body::State { handle: labels.handle(label), state, argument, steps }
            }
            ["update", label, ref fields @ ..] => {
                let net = net_of(&Fields::new(fields));
                Body::NetUpdate { handle: labels.handle(label), net }
            }
            _ => return None,
        })
    }
}

/// The begin or end of a range, or the loss of some.
fn marker_of(time: HostNs, words: &[&str]) -> Option<Activity> {
    let (edge, id, name, fields) = match *words {
        ["push", id, name, ref fields @ ..] => (activity::Edge::Begin, id, name, Fields::new(fields)),
        ["pop", id, ref fields @ ..] => (activity::Edge::End, id, "", Fields::new(fields)),
        ["lost"] => return Some(Activity::Dropped(1)),
        _ => return None,
    };
    Some(Activity::Marker(activity::Marker {
        time,
        error_ns: 0,
        id: id.parse().expect("a range's number"),
        edge,
        tid: Some(fields.number("tid", 100)).filter(|tid| *tid != 0),
        thread: "python3".into(),
        name: name.into(),
        domain: fields.get("domain").map(Into::into),
    }))
}

fn kernel_of(start: &str, end: HostNs, fields: &Fields<'_>) -> Kernel {
    Kernel {
        span: Span { start: HostNs(start.parse().expect("a kernel's start")), end, error_ns: 0 },
        place: Place { device: fields.number("device", 0), context: 1, stream: fields.number("stream", 13) },
        correlation: fields.number("corr", 0),
        graph_node: fields.number("node", 0),
        graph: 0,
        grid: [2, 1, 1],
        block: [96, 1, 1],
        name: fields.get("name").unwrap_or("_Z41ncclDevKernel_AllReduce_Sum_f32_RING_LL").into(),
    }
}

/// `FIELD=VALUE`; a field without a value is a flag.
struct Fields<'l>(HashMap<&'l str, &'l str>);

impl<'l> Fields<'l> {
    fn new(words: &[&'l str]) -> Fields<'l> {
        Fields(words.iter().map(|word| word.split_once('=').unwrap_or((word, "1"))).collect())
    }

    fn get(&self, field: &str) -> Option<&'l str> {
        self.0.get(field).copied()
    }

    fn number<N: std::str::FromStr>(&self, field: &str, or: N) -> N {
        self.get(field).map_or(or, |value| value.parse().unwrap_or_else(|_| panic!("no number: {field}={value}")))
    }

    fn word(&self, field: &str, or: Word) -> Word {
        self.get(field).map_or(or, word_of)
    }

    fn flag(&self, field: &str) -> Flag {
        Flag(self.number(field, 0))
    }
}

fn word_of(text: &str) -> Word {
    match text.strip_prefix('$') {
        Some("lost") => Word::LOST,
        Some(number) => Word(Word::FIRST_TEXT.0 + number.parse::<u16>().expect("a text's number")),
        None => Word::known(text.as_bytes()).unwrap_or_else(|| panic!("not a word of NCCL's: {text}")),
    }
}

fn net_of(fields: &Fields<'_>) -> Net {
    Net { id: 1 << 16 | 1, length: fields.number("bytes", 0), network: Network::INFINIBAND, ..Net::default() }
}

fn event_of(kind: &str, fields: &Fields<'_>) -> Option<Event> {
    let func = fields.word("func", Word::ALL_REDUCE);
    let datatype = fields.word("type", Word::FLOAT32);
    let count = fields.number("count", 256);
    let seq = fields.number("seq", 0);
    let captured = fields.flag("captured");
    let channel = fields.number("channel", 0);
    let gpu = GpuNs(fields.number("gpu", 0));
    Some(match kind {
        "GroupApi" => Event::GroupApi(event::GroupApi { depth: fields.number("depth", 1), captured, ..zeroed() }),
        "CollApi" => Event::CollApi(event::CollApi { func, datatype, count, captured, ..zeroed() }),
        "P2pApi" => Event::P2pApi(event::P2pApi { func, datatype, count, captured, ..zeroed() }),
        "KernelLaunch" => Event::KernelLaunch(event::KernelLaunch { stream: fields.number("stream", 0) }),
        "Group" => Event::Group(zeroed()),
        "Coll" => {
            let (algorithm, protocol) = (fields.word("algorithm", Word::RING), fields.word("protocol", Word::SIMPLE));
            let variant = fields.word("variant", Word::ABSENT);
            Event::Coll(event::Coll { seq, func, datatype, count, algorithm, protocol, variant, ..zeroed() })
        }
        "P2p" => Event::P2p(event::P2p { func, datatype, count, peer: fields.number("peer", 0), ..zeroed() }),
        "ProxyOp" => Event::ProxyOp(event::ProxyOp {
            pid: fields.number("pid", PID),
            peer: fields.number("peer", 0),
            steps: fields.number("steps", 1),
            channel,
            send: Flag(u8::from(fields.get("receive").is_none())),
            ..zeroed()
        }),
        "ProxyStep" => Event::ProxyStep(event::ProxyStep { step: fields.number("step", 0), ..zeroed() }),
        "ProxyCtrl" => Event::ProxyCtrl(zeroed()),
        "KernelCh" => Event::KernelCh(event::KernelCh { start: gpu, channel, ..zeroed() }),
        "KernelPhase" => {
            let (phase, phase_id) = (fields.word("name", Word::ABSENT), fields.number("phase", 0));
            Event::KernelPhase(event::KernelPhase { start: gpu, phase, phase_id, channel, ..zeroed() })
        }
        "NetPlugin" => Event::NetPlugin(event::NetPlugin { net: net_of(fields) }),
        "CeColl" => {
            let sync_strategy = fields.word("sync", Word::MULTICAST);
            Event::CeColl(event::CeColl { seq, func, datatype, count, sync_strategy, ..zeroed() })
        }
        "CeSync" => Event::CeSync(zeroed()),
        "CeBatch" => Event::CeBatch(zeroed()),
        "Unknown" => Event::Unknown(event::Unknown { bits: fields.number("bits", 0) }),
        _ => return None,
    })
}

fn zeroed<T: bytemuck::Zeroable>() -> T {
    T::zeroed()
}

/// An entry in words: first what it is about, then the details worth showing.
pub(super) fn describe(labels: &Labels, marks: &mut Vec<u64>, what: &What<'_>) -> String {
    let label = |id: Handle| labels.label(id);
    let comm_label = |comm: Option<&Comm>| comm.map_or(String::new(), |comm| format!(" {}", label(comm.context)));
    let doubt = |doubt: Option<Doubt>| doubt.map_or(String::new(), |doubt| format!(" [{}]", doubt.text()));
    let of = |operation: Option<&Operation>| operation.map_or(String::new(), |it| format!(" of {}", function(it)));
    let mut mark = |number: Option<u64>| match number {
        None => String::new(),
        Some(number) => {
            let index = marks.iter().position(|known| *known == number).unwrap_or_else(|| {
                marks.push(number);
                marks.len() - 1
            });
            format!(" mark {}", char::from(b'a' + index as u8))
        }
    };
    let proxy_op = |proxy: &ProxyOp<'_>| {
        let event::ProxyOp { channel, peer, send, .. } = proxy.event;
        let arrow = if send.is_set() { "->" } else { "<-" };
        let (comm, of, doubt) = (comm_label(proxy.comm), of(proxy.operation), doubt(proxy.doubt));
        format!("ch {channel} {arrow} {peer}{comm}{of}{doubt}")
    };
    match *what {
        What::Thread(Thread { id, tid, name }) => format!("thread {} = {tid} {name}", id.0),
        What::ThreadEnd(id) => format!("thread {} ends", id.0),
        What::CommInit(comm) => {
            let Comm { context, number, hash, ref name, rank, ranks, .. } = *comm;
            let name = name.as_deref().unwrap_or("-");
            format!("comm {} number {number} hash {hash} rank {rank} of {ranks} name {name}", label(context))
        }
        What::CommFinalize(comm) => format!("comm {} finalized", label(comm.context)),
        What::CallBegin { id, thread, comm, event, operation, asked_by, doubt: why } => {
            let operation = operation.map_or(String::new(), |it| format!(" {}", function(it)));
            let (kind, comm, why) = (event.kind().name(), comm_label(comm), doubt(why));
            let asked_by: String = asked_by.iter().map(|call| format!(" for {}", label(*call))).collect();
            format!("{kind} {} on {}{comm}{operation}{asked_by}{why}", label(id), thread.0)
        }
        What::CallEnd { id, group_marks } => {
            let marks = group_marks.map(|mark| mark.map_or(String::new(), |mark| format!(" mark {}", mark.0)));
            format!("call {} ends{}{}", label(id), marks[0], marks[1])
        }
        What::OperationBegin { id, thread, call: _, comm, operation, replay, doubt: why } => {
            let number = match operation.event {
                Event::P2p(_) => format!(" number {}", operation.p2p_number),
                _ => String::new(),
            };
            let replay = replay.map_or(String::new(), |replay| format!(" replay {replay}"));
            let (mark, name) = (mark(operation.correlation(comm)), function(operation));
            let (comm, why) = (comm_label(comm), doubt(why));
            format!("operation {} on {}{comm} {name}{number}{mark}{replay}{why}", label(id), thread.0)
        }
        What::OperationEnd { id } => format!("operation {} ends", label(id)),
        What::Unfinished { kernel, operations, replay, .. } => {
            let names: Vec<&str> = operations.iter().map(|operation| label(operation.id)).collect();
            format!("kernel {} had not ended: {names:?}, run {replay:?}", kernel.correlation)
        }
        What::Untimed { operations, .. } => {
            let names: Vec<&str> = operations.iter().map(|operation| label(operation.id)).collect();
            format!("a kernel has ended: {names:?}")
        }
        What::ProxyOpTaken { thread } => format!("proxy takes one on {}", thread.0),
        What::ProxyOpBegin { id, thread, ref proxy, queued_ns, was_taken: _ } => {
            format!("proxy {} on {} {} queued {queued_ns}", label(id), thread.0, proxy_op(proxy))
        }
        What::ProxyOpPhase { id, state, bytes, steps } => {
            format!("proxy {} {} bytes {bytes} steps {steps}", label(id), state_name(state))
        }
        What::ProxyOpEnd { id } => format!("proxy {} ends", label(id)),
        What::ProxyOpsQueued { thread, ref proxy, queued_ns, count, given_up } => {
            let proxy = proxy_op(proxy);
            format!("proxy queue of {count} on {} {proxy} queued {queued_ns} given up {given_up}", thread.0)
        }
        What::ProxyOpNever { thread, ref proxy } => format!("proxy never on {} {}", thread.0, proxy_op(proxy)),
        What::StepBegin { id, op, thread, step, ref proxy } => {
            let proxy = proxy.as_ref().map_or("of nothing known".into(), proxy_op);
            format!("step {} number {step} on {} under {}: {proxy}", label(id), thread.0, label(op))
        }
        What::StepPhase { id, state, bytes } => {
            let bytes = bytes.map_or(String::new(), |bytes| format!(" bytes {bytes}"));
            format!("step {} {}{bytes}", label(id), state_name(state))
        }
        What::StepEnd { id, starts, stopped } => {
            let how = if stopped { "" } else { " with its operation" };
            format!("step {} ends{how}, starts {starts}", label(id))
        }
        What::Control { thread, comm, state, appended } => {
            let appended = appended.map_or(String::new(), |appended| format!(" appended {appended}"));
            format!("control on {}{} {}{appended}", thread.0, comm_label(comm), state_name(state))
        }
        What::ChannelBegin { id, comm, channel, operation, timing, unreliable, doubt: why } => {
            let Channel { channel, start, phase } = channel;
            let phase = phase.map_or(String::new(), |(number, name)| format!(" phase {number} {name}"));
            let (comm, of, why) = (comm_label(comm), of(operation), doubt(why));
            let how = match timing {
                Timing::Gpu { place: Some(_), .. } => " in its kernel",
                Timing::Gpu { place: None, .. } => " by the timer",
                Timing::Seen(Flaw::NoStamp) => " no stamp",
                Timing::Seen(Flaw::ClockUnknown) => " no clock",
                Timing::Seen(flaw) => flaw.text(),
            };
            let unreliable = if unreliable { " unreliable" } else { "" };
            format!("channel {}{comm} ch {channel}{phase} gpu {}{how}{unreliable}{of}{why}", label(id), start.0)
        }
        What::ChannelEnd { id, stop, .. } => format!("channel {} ends gpu {}", label(id), stop.0),
        What::NetBegin { id, thread, net } => format!("net {} on {} bytes {}", label(id), thread.0, net.length),
        What::NetUpdate { id, net } => format!("net {} bytes {}", label(id), net.length),
        What::NetEnd { id } => format!("net {} ends", label(id)),
        What::Unknown { thread, bits } => format!("unknown {bits:#x} on {}", thread.0),
        What::Kernel { kernel, owner } => {
            let owner = match owner {
                Owner::Application => "of the application".to_owned(),
                Owner::Unmatched(reason) => format!("unmatched: {}", reason.text()),
                Owner::Operations { method, comm, operations, around, channels: _, launch, replay, untold } => {
                    let untold = if untold > 0 { format!(" and perhaps {untold} untold") } else { String::new() };
                    let around = |place: usize| around.get(place).map(describe_around);
                    let named = |(place, it): (usize, &Arc<Operation>)| {
                        format!("{}{}", describe_carried(it), around(place).unwrap_or_default())
                    };
                    let names: Vec<_> = operations.iter().enumerate().map(named).collect();
                    let launch = launch.map_or(String::new(), |launch| format!(" by {}", label(launch)));
                    let replay = replay.map_or(String::new(), |replay| format!(" replay {replay}"));
                    let comm = comm_label(comm);
                    format!("{}{comm}{launch}{replay}: {}{untold}", method.text(), names.join(" + "))
                }
            };
            format!("kernel to {} {owner}", kernel.span.end.0)
        }
        What::Contradicted { correlation, .. } => format!("kernel of {correlation} contradicted"),
        What::TimesOff { device, least, most } => format!("times of {device} late by {least} to {most}"),
        What::TimerStep { device, before, by } => format!("timer of {device} set by {by} before {}", before.0),
        What::Copy { copy, of } => {
            let of = of.map_or(String::new(), |CopyOf { comm, operation, method }| {
                format!(" {}{}: {}", method.text(), comm_label(comm), describe_carried(operation))
            });
            format!("copy to {}{of}", copy.span.end.0)
        }
        What::Range { .. } | What::CudaCall(_) | What::HostFunction(_) | What::Device(_) | What::Overhead(_) => {
            format!("{what:?}")
        }
    }
}

fn describe_around(around: &Around) -> String {
    let range = around.range.as_ref().map_or(String::new(), |range| format!(" in {range}"));
    range + &around.step.map_or(String::new(), |step| format!(" of step {step}"))
}

/// An operation that a kernel carried: function and element count.
fn describe_carried(operation: &Operation) -> String {
    format!("{} {}", function(operation), operation.count())
}

/// Function and, where there are any, texts.
fn function(operation: &Operation) -> String {
    let texts = operation.texts.as_deref().map(|texts| {
        let all = [&texts.func, &texts.datatype, &texts.algorithm, &texts.protocol, &texts.variant];
        all.map(|text| text.as_deref().unwrap_or("-")).join(",")
    });
    texts.unwrap_or_else(|| operation.func().spelling().unwrap_or("?").to_owned())
}

fn state_name(number: u16) -> String {
    state::name(number).map_or(number.to_string(), str::to_owned)
}

/// What most scenarios begin with, and the entries for it.
const CAST: &str = "0 0 thread 100 python3 | 0 1 thread 200 NCCL | 0 0 comm C hash=7 rank=0 ranks=2";
const CAST_SAID: &str = "
    0 thread 0 = 100 python3
    0 thread 1 = 200 NCCL
    0 comm C number 1 hash 7 rank 0 of 2 name -";

/// A scenario with the usual cast.
#[track_caller]
fn check_with_cast(input: &str, expected: &str) {
    check(&format!("{CAST}\n{input}"), &format!("{CAST_SAID}\n{expected}"));
}

#[test]
fn an_unstopped_step_ends_with_its_operation() {
    // NCCL 2.24 to 2.26 does this when it finds two receives done at once.
    check_with_cast(
        "1 1 start p ProxyOp receive peer=1
         2 1 start s ProxyStep parent=p step=0
         3 1 start t ProxyStep parent=p step=1
         4 1 stop s
         9 1 stop p",
        "2 proxy p on 1 ch 0 <- 1 C [no parent] queued 1
         2 step s number 0 on 1 under p: ch 0 <- 1 C [no parent]
         3 step t number 1 on 1 under p: ch 0 <- 1 C [no parent]
         4 step s ends, starts 1
         9 step t ends with its operation, starts 1
         9 proxy p ends",
    );
}

// ---- operations ----

#[test]
fn an_operation_is_followed_from_the_call_to_the_network() {
    check_with_cast(
        "1 0 start g GroupApi
         2 0 start api CollApi parent=g
         3 0 stop api
         4 0 start launch KernelLaunch parent=g
         5 0 stop launch
         6 0 start plan Group
         7 0 start ar Coll parent=api seq=3
         8 0 stop ar
         9 0 stop plan
        10 0 stop g
        20 1 start p ProxyOp parent=ar peer=1 channel=2
        21 1 start s ProxyStep parent=p step=4
        22 1 stop s
        23 1 stop p
        30 0 finalize C",
        "1 GroupApi g on 0 C
         2 CollApi api on 0 C AllReduce
         3 call api ends
         4 KernelLaunch launch on 0 C for api
         5 call launch ends
         6 Group plan on 0 C
         7 operation ar on 0 C AllReduce mark a
         8 operation ar ends
         9 call plan ends
        10 call g ends
        21 proxy p on 1 ch 2 -> 1 C of AllReduce queued 1
        21 step s number 4 on 1 under p: ch 2 -> 1 C of AllReduce
        22 step s ends, starts 1
        23 proxy p ends
        30 comm C finalized",
    );
}

#[test]
fn a_group_knows_when_its_start_returned_and_its_end_was_called() {
    //  |-- ncclGroupStart --|   the user's calls   |-- ncclGroupEnd --|
    //  1                    3                      8                  9
    //                         a state that comes again changes nothing
    check_with_cast(
        "1 0 start g GroupApi
         3 0 state g GROUP_START_API_STOP
         4 0 state g GROUP_START_API_STOP
         8 0 state g GROUP_END_API_START
         9 0 stop g",
        "1 GroupApi g on 0 C
         9 call g ends mark 3 mark 8",
    );
}

#[test]
fn copy_engine_collectives_belong_to_their_call() {
    check_with_cast(
        "1 0 start ce CeColl func=AllGather
         2 0 start sync CeSync parent=ce
         3 0 stop sync
         4 0 start batch CeBatch parent=ce
         5 0 stop batch
         6 0 stop ce",
        "1 CeColl ce on 0 C AllGather [no parent]
         2 CeSync sync on 0 C
         3 call sync ends
         4 CeBatch batch on 0 C
         5 call batch ends
         6 call ce ends",
    );
}

#[test]
fn a_second_stop_casts_doubt_on_later_children_only() {
    check_with_cast(
        "1 0 start api CollApi parent=none
         2 0 stop api
         3 0 start before Coll parent=api
         4 0 stop api
         5 0 start after Coll parent=api
         6 0 stop before
         7 0 stop after
         8 0 stop after",
        "1 CollApi api on 0 C AllReduce [no parent]
         2 call api ends
         3 operation before on 0 C AllReduce mark a
         5 operation after on 0 C AllReduce mark a [parent was stopped twice]
         6 operation before ends
         7 operation after ends
         double_stops: 2",
    );
}

#[test]
fn a_parent_may_be_missing_unknown_or_foreign() {
    check_with_cast(
        "1 0 start a Coll
         2 0 start b Coll parent=lost
         3 0 start c Coll parent=foreign.api
         4 0 start g GroupApi parent=lost
         5 0 start plan Group parent=lost
         6 1 start control ProxyCtrl parent=lost
         7 0 start launch KernelLaunch parent=lost",
        "1 operation a on 0 C AllReduce mark a [no parent]
         2 operation b on 0 C AllReduce mark a [parent unknown]
         3 operation c on 0 C AllReduce mark a [parent in another process]
         4 GroupApi g on 0 C
         5 Group plan on 0 C
         7 KernelLaunch launch on 0 C [parent unknown]
         unknown_parents: 2",
    );
}

#[test]
fn stops_and_states_of_unknown_events_are_counted() {
    check_with_cast(
        "1 0 stop never
         2 0 state never GROUP_START_API_STOP
         3 0 stop foreign.call
         4 0 state foreign.call GROUP_START_API_STOP
         5 0 update foreign.net
         6 0 stop late
         7 0 start late GroupApi",
        "7 GroupApi late on 0 C
         unknown_handles: 3, foreign_handles: 3",
    );
}

#[test]
fn each_run_of_a_captured_call_has_a_number() {
    check_with_cast(
        "1 0 start api CollApi captured parent=none
         2 0 stop api
         3 0 start first Coll parent=api seq=1
         4 0 stop first
         5 0 start plain CollApi
         6 0 start once Coll parent=plain seq=2
         7 0 start second Coll parent=api seq=1",
        "1 CollApi api on 0 C AllReduce [no parent]
         2 call api ends
         3 operation first on 0 C AllReduce mark a replay 1
         4 operation first ends
         5 CollApi plain on 0 C AllReduce [no parent]
         6 operation once on 0 C AllReduce mark b
         7 operation second on 0 C AllReduce mark a replay 2",
    );
}

#[test]
fn captured_calls_are_remembered_longer_but_not_for_ever() {
    let calls = |count: u32, captured: &str| -> String {
        (0..count)
            .map(|n| format!("1 0 start x{n}{captured} CollApi parent=g {captured} | 1 0 stop x{n}{captured}\n"))
            .collect()
    };
    let mut player = Player::new();
    let mut replays = Vec::new();
    let mut play = |input: &str| {
        player.play(input, &mut |_, entry| {
            if let What::OperationBegin { replay, doubt, .. } = entry.what {
                replays.push((replay, doubt));
            }
        });
    };
    play("0 0 start g GroupApi | 0 0 start api CollApi parent=g captured | 0 0 stop api");
    play(&calls(2_000, ""));
    play("1 0 start a Coll parent=api");
    play(&calls(17_000, "captured"));
    play("1 0 start b Coll parent=api | 1 0 start c Coll parent=x16999captured");
    assert_eq!(replays, [(Some(1), None), (None, Some(Doubt::ParentUnknown)), (Some(1), None)]);
}

// ---- correlation numbers, equal on all ranks ----

#[test]
fn a_message_has_the_same_unique_mark_on_both_sides() {
    check(
        "0 0 comm C hash=7 rank=0 ranks=3
         1 0 start a P2p func=Send peer=1
         2 0 start b P2p func=Send peer=1
         3 0 start c P2p func=Send peer=2
         4 0 start d P2p func=Recv peer=1
         process
         0 0 comm C hash=7 rank=1 ranks=3
         1 0 start e P2p func=Send peer=0
         2 0 start f P2p func=Recv peer=0
         3 0 start g P2p func=Recv peer=0
         process
         0 0 comm C hash=7 rank=2 ranks=3
         1 0 start h P2p func=Recv peer=0",
        "0 comm C number 1 hash 7 rank 0 of 3 name -
         1 thread 0 = 0 unknown
         1 operation a on 0 C Send number 0 mark a [no parent]
         2 operation b on 0 C Send number 1 mark b [no parent]
         3 operation c on 0 C Send number 0 mark c [no parent]
         4 operation d on 0 C Recv number 0 mark d [no parent]
         0 comm C number 1 hash 7 rank 1 of 3 name -
         1 thread 0 = 0 unknown
         1 operation e on 0 C Send number 0 mark d [no parent]
         2 operation f on 0 C Recv number 0 mark a [no parent]
         3 operation g on 0 C Recv number 1 mark b [no parent]
         0 comm C number 1 hash 7 rank 2 of 3 name -
         1 thread 0 = 0 unknown
         1 operation h on 0 C Recv number 0 mark c [no parent]",
    );
}

#[test]
fn a_collective_has_the_same_mark_on_all_ranks() {
    let rank = |rank: u32| {
        format!(
            "0 0 comm C hash=7 rank={rank} ranks=2 | 0 0 comm D hash=8 rank={rank} ranks=2
             1 0 start a Coll seq=1 | 2 0 start b Coll seq=2
             3 0 start c Coll seq=1 func=AllGather | 4 0 start d Coll seq=1 in=D"
        )
    };
    let said = |rank: u32| {
        format!(
            "0 comm C number 1 hash 7 rank {rank} of 2 name -
             0 comm D number 2 hash 8 rank {rank} of 2 name -
             1 thread 0 = 0 unknown
             1 operation a on 0 C AllReduce mark a [no parent]
             2 operation b on 0 C AllReduce mark b [no parent]
             3 operation c on 0 C AllGather mark c [no parent]
             4 operation d on 0 D AllReduce mark d [no parent]"
        )
    };
    check(&format!("{}\nprocess\n{}", rank(0), rank(1)), &format!("{}\n{}", said(0), said(1)));
}

#[test]
fn without_a_common_number_there_is_no_mark() {
    check(
        "0 0 thread 100 python3 | 0 0 comm C interface=2
         1 0 start a Coll parent=none | 2 0 start b Coll parent=none in=other | 3 0 start c P2p func=Send peer=1",
        "0 thread 0 = 100 python3
         0 comm C number 1 hash 0 rank -1 of -1 name -
         1 operation a on 0 C AllReduce [no parent]
         2 operation b on 0 AllReduce [no parent]
         3 operation c on 0 C Send number 0 [no parent]",
    );
}

// ---- communicators and texts ----

#[test]
fn up_to_v3_a_communicator_s_identity_comes_later() {
    check(
        "0 0 thread 100 python3 | 0 0 comm C interface=3
         1 0 text $1 dp
         2 0 identity C hash=7 name=$1
         3 0 start a Coll parent=none
         4 0 identity C hash=7 name=$1
         5 0 identity other hash=8 name=$1",
        "0 thread 0 = 100 python3
         0 comm C number 1 hash 0 rank -1 of -1 name -
         2 comm C number 1 hash 7 rank -1 of -1 name dp
         3 operation a on 0 C AllReduce mark a [no parent]",
    );
}

#[test]
fn recorded_texts_are_spelled_out() {
    check(
        "0 0 thread 100 python3 | 0 0 text $1 dp | 0 0 comm C hash=7 rank=0 ranks=1 name=$1
         1 0 text $2 AllShuffle | 1 0 text $3 ncclInt4
         2 0 start a Coll func=$2 type=$3 algorithm=$lost variant=$9
         3 0 start b CeColl sync=$2
         4 0 start c CollApi func=$2
         5 0 start k KernelPhase name=$3 phase=2
         6 0 start l KernelPhase
         7 0 comm D name=$lost
         finish",
        "0 thread 0 = 100 python3
         0 comm C number 1 hash 7 rank 0 of 1 name dp
         2 operation a on 0 C AllShuffle,ncclInt4,(text lost),SIMPLE,- mark a [no parent]
         3 CeColl b on 0 C AllReduce,ncclFloat32,-,-,AllShuffle [no parent]
         4 CollApi c on 0 C AllShuffle,ncclFloat32,-,-,- [no parent]
         7 comm D number 2 hash 0 rank -1 of -1 name (text lost)
         5 channel k C ch 0 phase 2 ncclInt4 gpu 0 no stamp [no parent]
         6 channel l C ch 0 phase 0 phase gpu 0 no stamp [no parent]",
    );
}

#[test]
fn the_end_of_a_communicator_that_never_began_is_counted() {
    check("1 0 finalize C | 2 0 finalize foreign.comm", "unknown_handles: 2");
}

// ---- the proxy ----

#[test]
fn a_proxy_operation_is_drawn_from_its_first_progress_on() {
    //  a  1|........state 19|====|
    //  b  2|........... step|=======|
    //  c  3|...............stop|         no step seen, and yet it is done
    //  d  4|..........               not yet
    check_with_cast(
        "1 1 start a ProxyOp parent=none
         2 1 start b ProxyOp parent=none
         3 1 start c ProxyOp parent=none
         4 1 start d ProxyOp parent=none
        10 1 state a PROXY_OP_IN_PROGRESS
        11 1 state a PROXY_OP_IN_PROGRESS
        20 1 start s ProxyStep parent=b
        30 1 stop c
        40 1 stop a",
        "10 proxy a on 1 ch 0 -> 0 C [no parent] queued 9
         20 proxy b on 1 ch 0 -> 0 C [no parent] queued 18
        20 step s number 0 on 1 under b: ch 0 -> 0 C [no parent]
         30 proxy c on 1 ch 0 -> 0 C [no parent] queued 27
        30 proxy c ends
        40 proxy a ends",
    );
}

#[test]
fn up_to_v3_the_states_of_a_proxy_operation_are_its_phases() {
    check_with_cast(
        "1 1 start p ProxyOp parent=none receive
         5 1 state p PROXY_OP_RECV_POSTED argument=0 steps=1
         6 1 state p PROXY_OP_RECV_RECEIVED argument=512 steps=1
         7 1 stop p",
        "5 proxy p on 1 ch 0 <- 0 C [no parent] queued 4
         5 proxy p PROXY_OP_RECV_POSTED bytes 0 steps 1
         6 proxy p PROXY_OP_RECV_RECEIVED bytes 512 steps 1
         7 proxy p ends",
    );
}

#[test]
fn a_silent_proxy_operation_is_reported_when_its_communicator_ends() {
    //  C  1 a|........................finalize   nothing ever came of it
    //     2 b|..state 19|                        made progress
    //  D  3 c|................................finish
    check_with_cast(
        "0 0 comm D hash=8 rank=0 ranks=2
         1 1 start a ProxyOp parent=none receive peer=1
         2 1 start b ProxyOp parent=none receive
         3 1 start c ProxyOp parent=none receive in=D
         4 1 state b PROXY_OP_IN_PROGRESS
         9 0 finalize C
        finish
        finish",
        "0 comm D number 2 hash 8 rank 0 of 2 name -
         4 proxy b on 1 ch 0 <- 0 C [no parent] queued 2
         1 proxy never on 1 ch 0 <- 1 C [no parent]
         9 comm C finalized
         3 proxy never on 1 ch 0 <- 0 D [no parent]
         silent_proxy_ops: 2",
    );
}

#[test]
fn an_operation_that_queues_on_its_connection_is_not_silent() {
    //  C  1 a|..state 19|        3 c|.......finalize   g, c and d are behind a; g came before it
    //                                                  was known that a is the network's
    //     2 b|........................finalize         another connection, still unknown
    //     5 e|........................finalize         NCCL flags the sends of NET
    //  D  7 f|..............................finish
    check_with_cast(
        "0 0 comm D hash=8 rank=0 ranks=2
         1 1 start a ProxyOp parent=none receive
         1 1 start g ProxyOp parent=none receive
         2 1 start b ProxyOp parent=none receive peer=1
         2 1 state a PROXY_OP_IN_PROGRESS
         3 1 start c ProxyOp parent=none receive
         4 1 start d ProxyOp parent=none receive
         5 1 start e ProxyOp parent=none peer=1
         7 1 start f ProxyOp parent=none in=D
         9 0 finalize C
         10 1 state c PROXY_OP_IN_PROGRESS
         11 1 stop c
        finish
        finish",
        "0 comm D number 2 hash 8 rank 0 of 2 name -
         2 proxy a on 1 ch 0 <- 0 C [no parent] queued 1
         2 proxy never on 1 ch 0 <- 1 C [no parent]
         9 proxy queue of 3 on 1 ch 0 <- 0 C [no parent] queued 8 given up 3
         9 proxy queue of 1 on 1 ch 0 -> 1 C [no parent] queued 4 given up 1
         9 comm C finalized
         11 proxy queue of 1 on 1 ch 0 -> 0 D [no parent] queued 4 given up 0
         double_stops: 1, silent_proxy_ops: 1",
    );
}

#[test]
fn the_oldest_silent_proxy_operation_is_given_up_when_there_are_too_many() {
    let flood: String = (0..PENDING_OPS).map(|n| format!("2 1 start x{n} ProxyOp parent=none receive\n")).collect();
    check_with_cast(
        &format!(
            "0 1 start b ProxyOp parent=none
             1 1 start a ProxyOp parent=none receive
             {flood}
             3 1 state a PROXY_OP_IN_PROGRESS
             4 1 stop a
             5 1 stop b"
        ),
        "1 proxy never on 1 ch 0 <- 0 C [no parent]
         3 proxy a on 1 ch 0 <- 0 C [no parent] queued 2
         4 proxy a ends
         5 proxy b on 1 ch 0 -> 0 C [no parent] queued 5
         5 proxy b ends
         silent_proxy_ops: 1",
    );
}

#[test]
fn with_pxn_a_proxy_works_for_another_process() {
    check_with_cast(
        "1 1 start p ProxyOp pid=99 in=foreign.comm parent=foreign.coll peer=3
         2 1 start s ProxyStep in=foreign.comm parent=p
         3 1 state s PROXY_STEP_SEND_GPU_WAIT
         4 1 stop s
         5 1 stop p
         6 1 start q ProxyOp pid=99 parent=none
         7 1 stop q",
        "2 proxy p on 1 ch 0 -> 3 [parent in another process] queued 1
         2 step s number 0 on 1 under p: ch 0 -> 3 [parent in another process]
         3 step s PROXY_STEP_SEND_GPU_WAIT
         4 step s ends, starts 1
         5 proxy p ends
         7 proxy q on 1 ch 0 -> 0 C [parent in another process] queued 1
         7 proxy q ends
         foreign_events: 2",
    );
}

#[test]
fn a_receive_that_the_network_refuses_stays_one_step() {
    //  handle r1  10|---
    //  handle r2       20|---               the same transfer, started again
    //  handle r3            30|---wait---|  40
    //  drawn      10|====================|  40, three starts
    check_with_cast(
        "1 1 start p ProxyOp parent=none receive
        10 1 start r1 ProxyStep parent=p step=5
        11 1 state r1 PROXY_STEP_RECV_WAIT
        20 1 start r2 ProxyStep parent=p step=5
        21 1 state r2 PROXY_STEP_RECV_WAIT
        25 1 start other ProxyStep parent=p step=6
        30 1 start r3 ProxyStep parent=p step=5
        31 1 state r3 PROXY_STEP_RECV_FLUSH_WAIT argument=512
        40 1 stop r3
        41 1 stop other
        50 1 start again ProxyStep parent=p step=5
        60 1 stop again",
        "10 proxy p on 1 ch 0 <- 0 C [no parent] queued 9
        10 step r1 number 5 on 1 under p: ch 0 <- 0 C [no parent]
        11 step r1 PROXY_STEP_RECV_WAIT
        25 step other number 6 on 1 under p: ch 0 <- 0 C [no parent]
        31 step r1 PROXY_STEP_RECV_FLUSH_WAIT bytes 512
        40 step r1 ends, starts 3
        41 step other ends, starts 1
        50 step again number 5 on 1 under p: ch 0 <- 0 C [no parent]
        60 step again ends, starts 1",
    );
}

#[test]
fn a_repeated_phase_is_said_once_and_only_two_states_have_a_size() {
    check_with_cast(
        "1 1 start p ProxyOp parent=none
         2 1 start s ProxyStep parent=p
         3 1 state s PROXY_STEP_SEND_GPU_WAIT argument=99
         4 1 state s PROXY_STEP_SEND_PEER_WAIT argument=99
         5 1 state s PROXY_STEP_SEND_WAIT argument=512
         6 1 state s PROXY_STEP_SEND_WAIT argument=512
         7 1 state s PROXY_STEP_RECV_WAIT argument=99
         8 1 state s PROXY_STEP_RECV_FLUSH_WAIT argument=256
         9 1 state s PROXY_STEP_RECV_GPU_WAIT argument=99
        10 1 state s PROXY_STEP_SEND_WAIT argument=0",
        "2 proxy p on 1 ch 0 -> 0 C [no parent] queued 1
         2 step s number 0 on 1 under p: ch 0 -> 0 C [no parent]
         3 step s PROXY_STEP_SEND_GPU_WAIT
         4 step s PROXY_STEP_SEND_PEER_WAIT
         5 step s PROXY_STEP_SEND_WAIT bytes 512
         7 step s PROXY_STEP_RECV_WAIT
         8 step s PROXY_STEP_RECV_FLUSH_WAIT bytes 256
         9 step s PROXY_STEP_RECV_GPU_WAIT
        10 step s PROXY_STEP_SEND_WAIT",
    );
}

#[test]
fn a_step_without_a_known_operation_stands_alone() {
    check_with_cast(
        "1 1 start s ProxyStep parent=lost step=2 | 2 1 start t ProxyStep parent=lost step=2 | 3 1 stop s | 4 1 stop t",
        "1 step s number 2 on 1 under lost: of nothing known
         2 step t number 2 on 1 under lost: of nothing known
         3 step s ends, starts 1
         4 step t ends, starts 1
         unknown_parents: 2",
    );
}

#[test]
fn the_states_of_the_progress_thread_are_drawn() {
    check_with_cast(
        "1 1 start a ProxyCtrl | 1 1 state a PROXY_CTRL_IDLE | 2 1 stop a
         3 1 start b ProxyCtrl | 3 1 state b PROXY_CTRL_APPEND | 4 1 state b PROXY_CTRL_APPEND_END argument=6 | 4 1 stop b",
        "1 control on 1 C PROXY_CTRL_IDLE
         3 control on 1 C PROXY_CTRL_APPEND
         4 control on 1 C PROXY_CTRL_APPEND_END appended 6",
    );
}

#[test]
fn network_events_begin_are_updated_and_end() {
    check_with_cast(
        "1 1 start p ProxyOp parent=none
         2 1 start s ProxyStep parent=p
         3 1 start n NetPlugin parent=s bytes=100
         4 1 update n bytes=50
         5 1 stop n",
        "2 proxy p on 1 ch 0 -> 0 C [no parent] queued 1
         2 step s number 0 on 1 under p: ch 0 -> 0 C [no parent]
         3 net n on 1 bytes 100
         4 net n bytes 50
         5 net n ends",
    );
}

#[test]
fn an_update_of_another_kind_of_event_is_counted() {
    check_with_cast(
        "1 0 start g GroupApi | 2 0 update g bytes=50 | 3 0 stop g",
        "1 GroupApi g on 0 C
         3 call g ends
         unknown_types: 1",
    );
}

// ---- the GPU's channels ----

#[test]
fn kernel_channels_belong_to_an_operation_and_phases_do_not() {
    // Here nothing relates the GPU's timer to the host's clock.
    check_with_cast(
        "1 0 start ar Coll
         2 0 stop ar
         5 1 start k KernelCh parent=ar channel=3 gpu=1000
         6 1 start f KernelPhase parent=k channel=3 phase=1 gpu=1000
         7 1 state f KERNEL_PHASE_STOP argument=1100
         8 1 stop f
         9 1 state k KERNEL_CH_STOP argument=1200
        10 1 stop k
        11 1 start l KernelCh parent=lost channel=4
        12 1 stop l
        finish",
        "1 operation ar on 0 C AllReduce mark a [no parent]
         2 operation ar ends
         6 channel f C ch 3 phase 1 phase gpu 1000 no clock
         8 channel f ends gpu 1100
         5 channel k C ch 3 gpu 1000 no clock of AllReduce
        10 channel k ends gpu 1200
        11 channel l C ch 4 gpu 0 no stamp [parent unknown]
        12 channel l ends gpu 0
         unknown_parents: 1",
    );
}

// ---- threads and time ----

#[test]
fn a_ring_passes_from_one_thread_to_the_next() {
    //  ring 0   |--- thread 100 ---|   |--- thread 101 ---|
    //            1 a               5    6 b
    check(
        "0 0 thread 100 first | 1 0 start a GroupApi | 5 0 ends | 6 0 thread 101 second | 7 0 start b GroupApi
         8 0 stop a",
        "0 thread 0 = 100 first
         1 GroupApi a on 0
         5 thread 0 ends
         6 thread 1 = 101 second
         7 GroupApi b on 1
         8 call a ends",
    );
}

#[test]
fn a_thread_with_a_lost_record_is_unknown_rather_than_its_predecessor() {
    check(
        "1 3 start a GroupApi | 2 3 start b GroupApi | 5 3 ends | 6 3 start c GroupApi",
        "1 thread 0 = 0 unknown
         1 GroupApi a on 0
         2 GroupApi b on 0
         5 thread 0 ends
         6 thread 1 = 0 unknown
         6 GroupApi c on 1",
    );
}

#[test]
fn a_late_record_is_counted_and_keeps_its_time() {
    check_with_cast(
        "10 0 start a GroupApi | 5 1 start b GroupApi | 10 0 stop a",
        "10 GroupApi a on 0 C
         5 GroupApi b on 1 C
         10 call a ends
         late: 1",
    );
}

// ---- what a newer NCCL may send ----

#[test]
fn unknown_types_and_states_are_counted_and_change_nothing() {
    check_with_cast(
        "1 0 start u Unknown bits=65536
         2 0 state u 40
         3 0 stop u
         4 0 start g GroupApi
         5 0 state g 40
         6 0 state g PROXY_STEP_SEND_WAIT argument=1
         7 0 state g PROXY_CTRL_IDLE
         8 0 state g KERNEL_CH_STOP argument=1
         9 0 stop g",
        "1 unknown 0x10000 on 0
         4 GroupApi g on 0 C
         9 call g ends
         unknown_types: 6",
    );
}

// ---- arbitrary input ----

/// A small generator of pseudo-random numbers; equal seeds give equal numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Records in an order and with contents that NCCL would never send: stops before their start or
/// twice, states of other events, parents that are unknown, foreign or of any kind, threads that
/// come and go, times that run backwards. Only what the recorder itself guarantees still holds: no
/// two events share a handle.
pub(crate) struct Records {
    random: Random,
    time: u64,
    next: u64,
    comms: Vec<Handle>,
}

impl Records {
    /// Nothing happens before this time.
    pub(crate) const BEGIN: u64 = 1_000_000;

    pub(crate) fn new(seed: u64) -> Records {
        Records { random: Random::new(seed), time: Self::BEGIN, next: 1, comms: Vec::new() }
    }

    /// Hands the next record to `take`.
    pub(crate) fn next(&mut self, take: impl FnOnce(RingId, HostNs, &Record<'_>)) {
        self.time += self.random.below(60);
        let late = if self.random.one_in(12) { self.random.below(300) } else { 0 };
        let time = HostNs(self.time.saturating_sub(late).max(Self::BEGIN));
        let ring = RingId(self.random.below(4) as u32);
        let body = self.body();
        take(ring, time, &Record { ticks: Ticks(time.0), body });
    }

    /// Nearly always a recent event; sometimes a future one, an old one, a foreign one or none.
    fn handle(&mut self) -> Handle {
        let random = &mut self.random;
        let counter = match random.below(40) {
            0 => return Handle::NONE,
            1 => return Handle(ProcessTag::from_random(1).base() + random.below(8)),
            2 => self.next + random.below(3),
            3 => random.below(self.next + 1),
            _ => self.next.saturating_sub(1 + random.below(24)),
        };
        Handle(tag().base() + counter)
    }

    fn new_handle(&mut self) -> Handle {
        self.next += 1;
        Handle(tag().base() + self.next - 1)
    }

    fn context(&mut self) -> Handle {
        match self.random.below(16) {
            0 => self.handle(),
            _ if self.comms.is_empty() => Handle::NONE,
            _ => self.random.pick(&self.comms),
        }
    }

    fn word(&mut self) -> Word {
        match self.random.below(12) {
            0 => Word::ABSENT,
            1 => Word::LOST,
            2 | 3 => Word(Word::FIRST_TEXT.0 + self.random.below(6) as u16),
            _ => Word(self.random.below(44) as u16),
        }
    }

    fn net(&mut self) -> Net {
        let network = Network(self.random.below(4) as u8);
        Net { id: self.random.next() as i64, length: self.random.next(), network, ..Net::default() }
    }

    fn body(&mut self) -> Body<'static> {
        match self.random.below(100) {
            0..40 => {
                let (event, parent, context) = (self.event(), self.handle(), self.context());
                Body::Start { handle: self.new_handle(), parent, context, rank: 0, event }
            }
            40..68 => Body::Stop { handle: self.handle() },
            68..88 => {
                let argument = if self.random.one_in(3) { self.random.next() } else { 0 };
                // Otherwise the few states of the progress thread would be rare.
                let state = if self.random.one_in(3) { 13 + self.random.below(6) } else { self.random.below(34) };
                Body::State { handle: self.handle(), state: state as u16, argument, steps: 1 }
            }
            88..91 => Body::NetUpdate { handle: self.handle(), net: self.net() },
            91 | 92 => {
                let context = self.new_handle();
                self.comms.push(context);
                let (hash, name) = (self.random.below(3), self.word());
                let rank = self.random.below(4) as i32 - 1;
                let interface = 1 + self.random.below(7) as u8;
                Body::CommInit(CommInit { context, hash, rank, ranks: 4, name, interface, ..CommInit::default() })
            }
            93 => Body::CommFinalize { context: self.context() },
            94 => Body::CommIdentity { context: self.context(), hash: self.random.below(3), name: self.word() },
            95 | 96 => {
                let names: &[&[u8; 16]] = &[&[0; 16], b"NCCL Progress 0\0", &[0xff; 16]];
                Body::Thread { tid: self.random.below(9) as i32, name: *self.random.pick(names) }
            }
            97 => Body::ThreadEnd,
            _ => {
                let texts: &[&[u8]] = &[b"", b"dp", b"a text with \xff in it", &[b'x'; event::TEXT_BYTES]];
                let word = Word(Word::FIRST_TEXT.0 + self.random.below(6) as u16);
                Body::Text { word, text: self.random.pick(texts) }
            }
        }
    }

    fn event(&mut self) -> Event {
        let [func, datatype, algorithm] = [self.word(), self.word(), self.word()];
        let random = &mut self.random;
        let captured = Flag(u8::from(random.one_in(3)));
        let count = if random.one_in(8) { random.next() } else { random.below(5) << 10 };
        let (seq, peer) = (random.below(4), random.below(5) as i32 - 1);
        let channel = random.below(3) as u8;
        let start = GpuNs(random.below(1000));
        // Most events are operations, proxy operations and their steps.
        let more = [Kind::Coll, Kind::P2p, Kind::ProxyOp, Kind::ProxyOp, Kind::ProxyCtrl, Kind::ProxyCtrl];
        let kinds = [Kind::ALL, &more, &[Kind::ProxyStep; 5]].concat();
        match random.pick(&kinds) {
            Kind::GroupApi => Event::GroupApi(event::GroupApi { captured, ..zeroed() }),
            Kind::CollApi => Event::CollApi(event::CollApi { func, datatype, count, captured, ..zeroed() }),
            Kind::P2pApi => Event::P2pApi(event::P2pApi { func, datatype, count, captured, ..zeroed() }),
            Kind::KernelLaunch => Event::KernelLaunch(event::KernelLaunch { stream: seq }),
            Kind::Group => Event::Group(zeroed()),
            Kind::Coll => Event::Coll(event::Coll { seq, func, datatype, count, algorithm, ..zeroed() }),
            Kind::P2p => Event::P2p(event::P2p { func, datatype, count, peer, ..zeroed() }),
            Kind::ProxyOp => {
                let pid = if random.one_in(8) { 99 } else { PID };
                Event::ProxyOp(event::ProxyOp { pid, peer, channel, send: captured, ..zeroed() })
            }
            Kind::ProxyStep => Event::ProxyStep(event::ProxyStep { step: peer, ..zeroed() }),
            Kind::ProxyCtrl => Event::ProxyCtrl(zeroed()),
            Kind::KernelCh => Event::KernelCh(event::KernelCh { start, channel, ..zeroed() }),
            Kind::NetPlugin => Event::NetPlugin(event::NetPlugin { net: self.net() }),
            Kind::CeColl => {
                Event::CeColl(event::CeColl { func, datatype, count, sync_strategy: algorithm, ..zeroed() })
            }
            Kind::CeSync => Event::CeSync(zeroed()),
            Kind::CeBatch => Event::CeBatch(zeroed()),
            Kind::KernelPhase => {
                Event::KernelPhase(event::KernelPhase { start, phase: func, phase_id: channel, channel, ..zeroed() })
            }
            Kind::Unknown => Event::Unknown(event::Unknown { bits: 1 << 20 }),
        }
    }
}

/// What may happen to an event in the entries.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Call,
    Operation,
    ProxyOp,
    Step,
    Channel,
    Net,
}

/// Checks the entries for what the trace relies on.
#[derive(Default)]
struct Rules {
    /// Shape, and whether it has ended.
    begun: HashMap<Handle, (Shape, bool)>,
    threads: u32,
    /// Proxy operations that are reported as queued.
    taken: i64,
}

impl Rules {
    fn hold(&mut self, what: &What<'_>) {
        match *what {
            What::ProxyOpTaken { .. } => self.taken += 1,
            What::ProxyOpBegin { was_taken: true, .. } => self.taken -= 1,
            What::ProxyOpsQueued { given_up, count, .. } => {
                assert!(given_up <= count);
                self.taken -= given_up as i64;
            }
            _ => {}
        }
        assert!(self.taken >= 0, "no more leave the queue than came");
        match *what {
            What::Thread(thread) => {
                assert_eq!(thread.id.0, self.threads, "threads are numbered one after the other");
                self.threads += 1;
            }
            What::CallBegin { id, thread, .. } => self.begin(id, Shape::Call, Some(thread)),
            What::OperationBegin { id, thread, .. } => self.begin(id, Shape::Operation, Some(thread)),
            What::ProxyOpBegin { id, thread, .. } => self.begin(id, Shape::ProxyOp, Some(thread)),
            What::StepBegin { id, thread, .. } => self.begin(id, Shape::Step, Some(thread)),
            What::ChannelBegin { id, .. } => self.begin(id, Shape::Channel, None),
            What::NetBegin { id, thread, .. } => self.begin(id, Shape::Net, Some(thread)),
            What::CallEnd { id, .. } => self.end(id, Shape::Call),
            What::OperationEnd { id } => self.end(id, Shape::Operation),
            What::ProxyOpEnd { id } => self.end(id, Shape::ProxyOp),
            What::StepEnd { id, .. } => self.end(id, Shape::Step),
            What::ChannelEnd { id, .. } => self.end(id, Shape::Channel),
            What::NetEnd { id } => self.end(id, Shape::Net),
            What::StepPhase { id, .. } => self.goes_on(id, Shape::Step),
            What::ProxyOpPhase { id, .. } => self.goes_on(id, Shape::ProxyOp),
            What::NetUpdate { id, .. } => self.goes_on(id, Shape::Net),
            What::ThreadEnd(thread)
            | What::Unknown { thread, .. }
            | What::Control { thread, .. }
            | What::ProxyOpTaken { thread }
            | What::ProxyOpsQueued { thread, .. }
            | What::ProxyOpNever { thread, .. } => assert!(thread.0 < self.threads, "a known thread"),
            What::CommInit(_)
            | What::CommFinalize(_)
            | What::Unfinished { .. }
            | What::Untimed { .. }
            | What::Kernel { .. }
            | What::Copy { .. }
            | What::CudaCall(_)
            | What::Range { .. }
            | What::HostFunction(_)
            | What::Device(_)
            | What::Overhead(_)
            | What::Contradicted { .. }
            | What::TimesOff { .. }
            | What::TimerStep { .. } => {}
        }
    }

    fn begin(&mut self, id: Handle, shape: Shape, thread: Option<ThreadId>) {
        assert!(thread.is_none_or(|thread| thread.0 < self.threads), "{id:?} begins on a known thread");
        let before = self.begun.insert(id, (shape, false));
        assert_eq!(before, None, "{id:?} begins once");
    }

    fn end(&mut self, id: Handle, shape: Shape) {
        let before = self.begun.insert(id, (shape, true));
        assert_eq!(before, Some((shape, false)), "{id:?} ends once, as what it began as");
    }

    fn goes_on(&self, id: Handle, shape: Shape) {
        assert_eq!(self.begun.get(&id).map(|it| it.0), Some(shape), "{id:?} goes on as what it began as");
    }
}

#[test]
fn ends_follow_their_begins_on_any_input() {
    for seed in 0..300 {
        let mut records = Records::new(seed);
        let mut correlator = Correlator::new(tag(), PID);
        let mut rules = Rules::default();
        for _ in 0..1500 {
            records.next(|ring, time, record| {
                correlator.push(ring, time, record, &mut |entry| rules.hold(&entry.what));
            });
        }
        correlator.finish(&mut |entry| rules.hold(&entry.what));
    }
}

#[test]
fn memory_is_bounded_on_any_input() {
    let mut records = Records::new(1);
    let mut correlator = Correlator::new(tag(), PID);
    for _ in 0..300_000 {
        records.next(|ring, time, record| correlator.push(ring, time, record, &mut |_| {}));
    }
    assert!(correlator.events.len() <= 128 << 10, "{}", correlator.events.len());
    assert!(correlator.pending.len() <= PENDING_OPS);
    assert!(correlator.p2p_numbers.len() <= PEERS);
    assert!(correlator.rings.len() <= 4);
}

#[test]
fn ended_communicators_are_forgotten() {
    let mut player = Player::new();
    for n in 0..20_000 {
        let context = Handle(tag().base() + 1 + n);
        for body in [
            Body::CommInit(CommInit { context, ..CommInit::default() }),
            Body::Start {
                handle: Handle(tag().base() + 100_000 + n),
                parent: Handle::NONE,
                context,
                rank: 0,
                event: Event::P2p(event::P2p { func: Word::SEND, ..zeroed() }),
            },
            Body::CommFinalize { context },
        ] {
            let record = Record { ticks: Ticks(n), body };
            player.correlator.push(RingId(0), HostNs(n), &record, &mut |_| {});
        }
    }
    let Correlator { comms, p2p_numbers, .. } = &player.correlator;
    assert!(comms.len() <= 4096, "{} communicators", comms.len());
    assert!(p2p_numbers.len() <= 4096, "{} counters of messages", p2p_numbers.len());
}
