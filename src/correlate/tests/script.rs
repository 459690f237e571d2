//! Scenarios: what NCCL calls, line by line, compared with what the correlator makes of it, line by
//! line.
//!
//! A line of a scenario is `TIME RING WHAT`; scenarios on one source line separate them with `|`.
//!
//! | what | means |
//! | --- | --- |
//! | `thread TID NAME`, `ends` | the ring's thread appears, and is gone |
//! | `comm LABEL hash=.. rank=.. ranks=.. name=.. interface=..` | a communicator's `init` |
//! | `identity LABEL hash=.. name=..`, `finalize LABEL` | what v1 to v3 tell later; its end |
//! | `text $N WORDS` | a recorded text, from then on a word like any other |
//! | `start LABEL KIND [in=COMM] [parent=LABEL] [group=LABEL] [FIELD=VALUE]` | an event, of the communicator `C` by default |
//! | `stop LABEL`, `state LABEL STATE [argument=..] [steps=..]`, `update LABEL bytes=..` | |
//! | `launch corr=.. [in=LAUNCH] [group=LABEL]` | a kernel's launch, as CUPTI's callback tells it |
//! | `node N in=LAUNCH`, `clone N of=M` | a node of a graph is made, or cloned |
//! | `kernel START corr=.. [node=..] [name=..]` | CUPTI reports a kernel, which ended at `TIME` |
//! | `advance` | the time advances to `TIME` |
//! | `copy START corr=.. [node=..]` | CUPTI reports a copy, which ended at `TIME` |
//! | `push N NAME [tid=..] [domain=..]`, `pop N`, `lost` | CUPTI reports a range's begin, its end, and that it lost records |
//! | `graph GRAPH corr=..` | a graph is launched; without the id: it is made |
//! | `finish`, alone on its line | the recording ends |
//! | `process`, alone on its line | what follows happens in another process |
//!
//! A label is an event or a communicator. A label that never starts is unknown to the correlator,
//! one that begins with `foreign` belongs to another process, and `none` is no event. In the
//! output, `mark a` stands for the first correlation number that occurs, `mark b` for the next
//! different one.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::super::*;
use crate::model::activity::{self, Kernel, Place, Span};
use crate::model::event::{self, CommInit, Flag, Net, Network};
use crate::model::state;
use crate::model::time::{GpuNs, Ticks};
use crate::model::timeline::{Around, Comm, CopyOf, Flaw, Late, Owner, ProxyOp, Thread, Timing};

pub(crate) const PID: i32 = 4711;

/// The tag of the process that the tests simulate.
pub(crate) fn tag() -> ProcessTag {
    ProcessTag::from_random(0xabcde)
}

/// Compares what the correlator makes of a scenario with the expected output.
#[track_caller]
pub(super) fn check(input: &str, expected: &str) {
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
            // Checked by the rules below, but not printed.
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
    pub(in crate::correlate) labels: Labels,
}

/// The handles of a scenario by their labels.
#[derive(Default)]
pub(crate) struct Labels {
    names: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Labels {
    pub(in crate::correlate) fn handle(&mut self, label: &str) -> Handle {
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
            let labels = &mut self.labels;
            if let Some(activity) = activity_of(labels, time, what) {
                self.correlator.push_activity(activity, &mut |entry| sink(labels, entry));
                continue;
            }
            match what {
                ["lent"] => self.correlator.lent(time),
                ["given-up"] => self.correlator.given_up(time),
                ["distrust"] => self.correlator.distrust_graph_launches(),
                ["records-lost"] => self.correlator.lost(time),
                ["launch-lost"] => self.correlator.launch_lost(),
                ["change-lost"] => self.correlator.change_lost(time),
                ["advance"] => self.correlator.advance(time, &mut |entry| sink(labels, entry)),
                _ => {
                    let ring = RingId(ring.parse().unwrap_or_else(|_| panic!("no ring: {line}")));
                    let body = self.body(what).unwrap_or_else(|| panic!("not a line of a scenario: {line}"));
                    let (labels, record) = (&self.labels, Record { ticks: Ticks(time.0), body });
                    self.correlator.push(ring, time, &record, &mut |entry| sink(labels, entry));
                }
            }
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
            ["update-node", node, ref fields @ ..] => {
                let fields = Fields::new(fields);
                let (source, graph) = (fields.number("to", 0), fields.number("graph", 0));
                Body::GraphUpdate { node: node.parse().ok()?, source, graph }
            }
            ["change-graph", graph] => Body::GraphChange { graph: graph.parse().ok()? },
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

/// What CUPTI reports in a line, if it does.
fn activity_of(labels: &mut Labels, time: HostNs, words: &[&str]) -> Option<Activity> {
    let (edge, id, name, fields) = match *words {
        ["kernel", start, ref fields @ ..] => {
            return Some(Activity::Kernel(kernel_of(start, time, &Fields::new(fields))));
        }
        ["copy", start, ref fields @ ..] => {
            let Kernel { span, place, correlation, graph_node, .. } = kernel_of(start, time, &Fields::new(fields));
            let kind = activity::CopyKind::PeerToPeer;
            return Some(Activity::Copy(activity::Copy { span, place, correlation, graph_node, bytes: 1, kind }));
        }
        [how @ ("unfinished" | "untimed"), ref fields @ ..] => {
            let Kernel { place, correlation, graph_node, name, .. } = kernel_of("0", time, &Fields::new(fields));
            let kernel = activity::Unfinished { place, correlation, graph_node, name };
            return Some(if how == "untimed" { Activity::Untimed(kernel) } else { Activity::Unfinished(kernel) });
        }
        ["id", launch, ref fields @ ..] => {
            let (id, correlation) = (labels.handle(launch), Fields::new(fields).number("corr", 0));
            return Some(Activity::ExternalId { id, correlation });
        }
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

pub(super) fn zeroed<T: bytemuck::Zeroable>() -> T {
    T::zeroed()
}

/// One entry in words: first its subject, then what is worth saying.
pub(in crate::correlate) fn describe(labels: &Labels, marks: &mut Vec<u64>, what: &What<'_>) -> String {
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
                Event::P2p(_) => format!(" number {}", operation.number),
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
        What::Control { thread, comm, state, appended, batch: _, brought } => {
            let mut appended = appended.map_or(String::new(), |appended| format!(" appended {appended}"));
            for (operation, count) in brought {
                appended += &format!(" {count} of {}", describe_carried(operation));
            }
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
                Owner::Operations { method, comm, operations, around, late, channels: _, launch, replay, untold } => {
                    let untold = if untold > 0 { format!(" and perhaps {untold} untold") } else { String::new() };
                    let around = |place: usize| around.get(place).map(describe_around);
                    let named = |(place, it): (usize, &Arc<Operation>)| {
                        format!("{}{}", describe_carried(it), around(place).unwrap_or_default())
                    };
                    let mut names: Vec<_> = operations.iter().enumerate().map(named).collect();
                    for (name, late) in names.iter_mut().zip(late) {
                        if let Some(Late { begun, why }) = late {
                            *name += &format!(" with the proxy at {} {why:?}", begun.0);
                        }
                    }
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

/// An operation that a kernel carried: function and count.
fn describe_carried(operation: &Operation) -> String {
    format!("{} {}", function(operation), operation.count())
}

/// The function, and its texts if there are any.
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
