//! The script language of the scripted host: a flat list, one call per line.
//!
//! There are no variables and no loops. Lines run strictly in the order written, each on the thread
//! it names, and each begins when the previous one has returned. One script runs through all
//! interface versions: what a version lacks is left out.
//!
//! ```text
//! # One AllReduce between two nodes, as NCCL 2.28 and later report it.
//! user  init  world comm=0x5c09e rank=0 nranks=2 nodes=2 name="data parallel"
//! user  start g world GroupApi groupDepth=1
//! user  state g GroupStartApiStop
//! user  start api world CollApi parent=g func=AllReduce count=4Mi datatype=ncclFloat32 stream=0x10
//! user  stop  api
//! user  state g GroupEndApiStart
//! user  start launch world KernelLaunch parent=g stream=0x10
//! user  sleep 6us
//! user  stop  launch
//! user  start plan world Group
//! user  start ar world Coll parent=api group=plan func=AllReduce count=4Mi datatype=ncclFloat32 nChannels=2
//! user  stop  ar
//! user  stop  plan
//! user  stop  g
//! proxy name  "NCCL Progress 0"
//! proxy start op world ProxyOp parent=ar channelId=0 peer=1 nSteps=1 chunkSize=512Ki isSend=1
//! proxy state op OpInProgress
//! proxy start step world ProxyStep parent=op step=0
//! proxy state step StepSendGpuWait
//! proxy sleep 40us
//! proxy state step StepSendPeerWait
//! proxy state step StepSendWait value=524288
//! proxy sleep 90us
//! proxy stop  step
//! proxy stop  op
//! proxy end
//! user  finalize world
//! user  unload
//! user  exit 0
//! ```
//!
//! # Lines
//!
//! `THREAD VERB arguments`, separated by spaces; `#` begins a comment. Within `"..."` spaces are
//! part of the word, and `\"`, `\\` and `\xNN` stand for a quote, a backslash and any byte. A
//! thread begins when it is first named; `main` is the process's own. At the end of the script the
//! remaining threads stay as they are while the process exits.
//!
//! - `name TEXT`: gives the system's thread this name, cut to 15 bytes as NCCL does
//! - `load`: opens the plugin, which `init` otherwise does
//! - `init LABEL comm=N rank=N nranks=N [nodes=N] [name=TEXT]`: opens the plugin if needed and
//!   calls `init`
//! - `start LABEL CTX KIND [parent=H] [group=H] [FIELD=VALUE]...`: `startEvent`, with the fields of
//!   C
//! - `state H STATE [value=V] [steps=N] [noargs]`: `recordEventState`; `noargs` passes null,
//!   `steps` is for v1 to v3
//! - `stop H`: `stopEvent`
//! - `finalize CTX`: `finalize`, after which the communicator's name is overwritten
//! - `mask [value=N]`: reports the activation mask, and sets it as NCCL's RAS service does
//! - `text LABEL TEXT`: a text with an address of its own; when repeated, another content at that
//!   address
//! - `call FUNCTION [library=NAME]`: calls `int f(void)` of the plugin, or of that library
//! - `name-comm [TEXT]`: calls `ncclscope_name_comm`, with null if there is no text
//! - `step NUMBER`: calls `ncclscope_step`
//! - `race FUNCTION...`: calls such functions of the plugin a hundred times each, concurrently,
//!   each on its own thread
//! - `storm FUNCTION...`: the same, but continues in the background until the process ends
//! - `kernel NAME [for=TIME] [wait=0]`: launches a kernel with this symbol and waits until it has
//!   run; with `wait=0` the next one of the stream overlaps it; see [`crate::gpu`]
//! - `nvtx push TEXT [domain=TEXT]`, `nvtx pop [domain=TEXT]`, `nvtx mark TEXT`,
//!   `nvtx start LABEL TEXT`, `nvtx end LABEL`: calls NVTX; in a domain with a registered string
//! - `host-node N [for=TIME]`: launches a graph in which the node with this id runs a host
//!   function, and waits for it
//! - `subscribe LABEL`, `unsubscribe LABEL`: another tool takes CUPTI, or releases it
//! - `profile LABEL`, `unprofile LABEL`: another tool takes CUPTI's buffers without subscribing, as
//!   described in [`crate::company`], and ends its profile: the answer is its number of kernels
//! - `share LABEL`, `unshare LABEL`: another tool that shares CUPTI subscribes, as described in
//!   [`crate::sharer`], and unsubscribes: the answer is its number of kernels
//! - `clock LABEL`: another tool gives CUPTI a clock that ticks 2.1 times a ns, as PyTorch's does
//! - `sleep TIME`: `20us`, `5ms`, `1s`
//! - `wait-for FILE`: waits until there is a file with this name
//! - `end`: ends the thread and waits until it has ended; naming it again begins another
//! - `unload`: closes the plugin, as NCCL does after the last `finalize`
//! - `fork [NAME]`: the child plays the later lines of the thread NAME (`child`), then calls
//!   `_exit(0)`; the parent waits for it, then skips them
//! - `exit N`: exits as `main` does when it returns
//! - `_exit N`, `abort`, `kill SIGNAL`: ends the process more abruptly
//!
//! `H` is the label of a `start`, `null`, or `raw:0x1234`; `CTX` likewise, with the label of an
//! `init`. Labels stay usable after a stop, and name the last event that got them. A label is null
//! if the version lacks the kind or the plugin did not want the event. Such a null gets no stop and
//! no states, as in NCCL; the word `null` does.
//!
//! `KIND` and `STATE` are names from [`crate::layout`], or `type:N` and `state:N`.
//!
//! A value is a number (`-1`, `0x10`, `true`, `16Mi`), `null`, `raw:N`, a label where a handle
//! belongs, or a time of day in nanoseconds: `now`, `now-20us`, `now+2ms`, or in ticks of a clock: `100MHz:now`. If the field is a text,
//! the value is the text itself, `fresh:TEXT` for the same text at a new address, or `@LABEL` for
//! the text of a `text` line.
//!
//! Events and states of network plugins take `net=ib device= wr_id= opcode= qp= length=` or
//! `net=socket fd= op= length=` instead of `id` and `data`. The structure is overwritten as soon as
//! the call returns.

use crate::host::{NetEvent, has_field};
use crate::layout::{self, Kind};
use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The thread that every process has.
pub const MAIN: &str = "main";

/// A script whose lines are all valid.
#[derive(Clone, Debug)]
pub struct Script {
    /// Its lines, without empty ones.
    pub lines: Vec<Line>,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its number, from 1.
    pub number: usize,
    /// The thread that runs it.
    pub thread: String,
    /// What the thread does.
    pub verb: Verb,
}

/// What a line does.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the module's text describes them")]
pub enum Verb {
    Name(Vec<u8>),
    Load,
    Unload,
    Init {
        label: String,
        comm: u64,
        rank: i32,
        nranks: i32,
        nodes: i32,
        name: Option<Vec<u8>>,
    },
    Start {
        label: String,
        context: Handle,
        kind: Type,
        parent: Handle,
        fields: Vec<(String, Argument)>,
    },
    State {
        handle: Handle,
        state: Type,
        argument: StateArgument,
    },
    Stop(Handle),
    Finalize(Handle),
    Mask(Option<i32>),
    Text {
        label: String,
        content: Vec<u8>,
    },
    Call {
        function: String,
        library: Option<String>,
    },
    NameComm(Option<String>),
    Step(u64),
    Race(Vec<String>),
    Storm(Vec<String>),
    Kernel {
        name: String,
        time: Duration,
        wait: bool,
    },
    HostNode {
        node: u64,
        time: Duration,
    },
    Nvtx(Nvtx),
    Subscribe(String),
    Unsubscribe(String),
    Profile(String),
    Unprofile(String),
    Share(String),
    Unshare(String),
    Clock(String),
    Sleep(Duration),
    /// `wait-for`
    WaitFor(PathBuf),
    End,
    Fork(String),
    Exit(i32),
    ExitNow(i32),
    Abort,
    Kill(i32),
}

impl Verb {
    /// Its word in the script.
    pub fn word(&self) -> &'static str {
        match self {
            Verb::Name(_) => "name",
            Verb::Load => "load",
            Verb::Unload => "unload",
            Verb::Init { .. } => "init",
            Verb::Start { .. } => "start",
            Verb::State { .. } => "state",
            Verb::Stop(_) => "stop",
            Verb::Finalize(_) => "finalize",
            Verb::Mask(_) => "mask",
            Verb::Text { .. } => "text",
            Verb::Call { .. } => "call",
            Verb::Race(_) => "race",
            Verb::Storm(_) => "storm",
            Verb::NameComm(_) => "name-comm",
            Verb::Step(_) => "step",
            Verb::Kernel { .. } => "kernel",
            Verb::HostNode { .. } => "host-node",
            Verb::Nvtx(_) => "nvtx",
            Verb::Subscribe(_) => "subscribe",
            Verb::Unsubscribe(_) => "unsubscribe",
            Verb::Profile(_) => "profile",
            Verb::Unprofile(_) => "unprofile",
            Verb::Share(_) => "share",
            Verb::Unshare(_) => "unshare",
            Verb::Clock(_) => "clock",
            Verb::Sleep(_) => "sleep",
            Verb::WaitFor(_) => "wait-for",
            Verb::End => "end",
            Verb::Fork(_) => "fork",
            Verb::Exit(_) => "exit",
            Verb::ExitNow(_) => "_exit",
            Verb::Abort => "abort",
            Verb::Kill(_) => "kill",
        }
    }
}

/// An NVTX call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // NVTX's own words
pub enum Nvtx {
    Push { text: String, domain: Option<String> },
    Pop { domain: Option<String> },
    Mark(String),
    Start { label: String, text: String },
    End(String),
}

/// A handle or context, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handle {
    /// `null`
    Null,
    /// `raw:N`
    Raw(u64),
    /// The handle that an earlier line got.
    Label(String),
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Handle::Null => write!(f, "null"),
            Handle::Raw(bits) => write!(f, "raw:{bits:#x}"),
            Handle::Label(label) => write!(f, "{label}"),
        }
    }
}

/// The kind of an event or a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// A type of the interface.
    Named(&'static str),
    /// Any number.
    Number(u64),
}

/// The argument of a state.
#[derive(Clone, Debug)]
pub enum StateArgument {
    /// What NCCL passes when there is nothing to report.
    Default,
    /// Null.
    Null,
    /// A number, and for the ProxyOp states of v1 to v3 the steps.
    Value(Argument, Option<i32>),
    /// What a network plugin reports.
    Net(NetEvent),
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A number.
    Bits(u64),
    /// The time of day plus this many nanoseconds.
    Now(i64),
    /// The same in ticks of this many MHz.
    Ticks(u64, i64),
    /// A text that has one address per content.
    Text(Vec<u8>),
    /// A text at a new address.
    Fresh(Vec<u8>),
    /// The text of an earlier `text` line.
    Cell(String),
    /// A handle.
    Handle(Handle),
    /// What a network plugin reports.
    Net(NetEvent),
}

/// An invalid line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    /// What was expected.
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for ParseError {}

impl FromStr for Script {
    type Err = ParseError;

    fn from_str(source: &str) -> Result<Script, ParseError> {
        let mut parser = Parser::default();
        let mut lines = Vec::new();
        for (index, text) in source.lines().enumerate() {
            let number = index + 1;
            let fail = |message| ParseError { line: number, message };
            let mut words = words(text).map_err(fail)?;
            if words.is_empty() {
                continue;
            }
            let thread = words.remove(0).label("a thread").map_err(fail)?;
            let verb = parser.verb(&thread, Words(words.into_iter())).map_err(fail)?;
            lines.push(Line { number, thread, verb });
        }
        Ok(Script { lines })
    }
}

type Result<T, E = String> = std::result::Result<T, E>;

/// The labels of earlier lines.
#[derive(Default)]
struct Parser {
    events: HashSet<String>,
    contexts: HashSet<String>,
    texts: HashSet<String>,
}

impl Parser {
    fn verb(&mut self, thread: &str, mut words: Words) -> Result<Verb> {
        let verb = words.next("a verb")?;
        let verb = match verb.bytes.as_slice() {
            b"name" => Verb::Name(words.next("a name for the thread")?.bytes),
            b"load" => Verb::Load,
            b"unload" => Verb::Unload,
            b"init" => self.init(&mut words)?,
            b"start" => self.start(&mut words)?,
            b"state" => self.state(&mut words)?,
            b"stop" => Verb::Stop(self.event(&words.next("an event")?)?),
            b"finalize" => Verb::Finalize(self.context(&words.next("a context")?)?),
            b"mask" => {
                let mut options = words.options()?;
                let value = options.take("value").map(|word| int(&word)).transpose()?;
                options.done(&["value"])?;
                Verb::Mask(value)
            }
            b"text" => {
                let label = words.next("a label")?.label("a label")?;
                self.texts.insert(label.clone());
                Verb::Text { label, content: words.next("a text")?.bytes }
            }
            b"call" => {
                let function = words.next("a function")?.label("a function")?;
                let mut options = words.options()?;
                let library = options.take("library").map(|word| word.text().map(str::to_owned)).transpose()?;
                options.done(&["library"])?;
                Verb::Call { function, library }
            }
            b"name-comm" => {
                let name = words.next("a name").and_then(|name| name.text().map(str::to_owned)).ok();
                Verb::NameComm(name)
            }
            b"step" => Verb::Step(number(&words.next("a number")?)?),
            b"race" => Verb::Race(functions(&mut words)?),
            b"storm" => Verb::Storm(functions(&mut words)?),
            b"kernel" => {
                let name = words.next("a kernel's name")?.label("a kernel's name")?;
                let mut options = words.options()?;
                let run = options.take("for").map(|word| time(word.text()?)).transpose()?;
                let wait = options.take("wait").map(|word| number(&word)).transpose()? != Some(0);
                options.done(&["for", "wait"])?;
                Verb::Kernel { name, time: run.unwrap_or(Duration::from_micros(100)), wait }
            }
            b"host-node" => {
                let node = number(&words.next("a node's id")?)?;
                let mut options = words.options()?;
                let run = options.take("for").map(|word| time(word.text()?)).transpose()?;
                options.done(&["for"])?;
                Verb::HostNode { node, time: run.unwrap_or(Duration::from_micros(100)) }
            }
            b"nvtx" => {
                let call = words.next("push, pop, mark, start or end")?;
                let text = |words: &mut Words| words.next("a text")?.text().map(str::to_owned);
                Verb::Nvtx(match call.bytes.as_slice() {
                    b"push" => Nvtx::Push { text: text(&mut words)?, domain: domain(words.options()?)? },
                    b"pop" => Nvtx::Pop { domain: domain(words.options()?)? },
                    b"mark" => Nvtx::Mark(text(&mut words)?),
                    b"start" => {
                        let label = words.next("a label")?.label("a label")?;
                        Nvtx::Start { label, text: text(&mut words)? }
                    }
                    b"end" => Nvtx::End(words.next("a label")?.label("a label")?),
                    _ => return Err(format!("expected push, pop, mark, start or end, found {call}")),
                })
            }
            b"subscribe" => Verb::Subscribe(words.next("a label")?.label("a label")?),
            b"unsubscribe" => Verb::Unsubscribe(words.next("a label")?.label("a label")?),
            b"profile" => Verb::Profile(words.next("a label")?.label("a label")?),
            b"unprofile" => Verb::Unprofile(words.next("a label")?.label("a label")?),
            b"share" => Verb::Share(words.next("a label")?.label("a label")?),
            b"unshare" => Verb::Unshare(words.next("a label")?.label("a label")?),
            b"clock" => Verb::Clock(words.next("a label")?.label("a label")?),
            b"sleep" => Verb::Sleep(time(words.next("a time, such as 20us")?.text()?)?),
            b"wait-for" => Verb::WaitFor(words.next("a file")?.text()?.into()),
            b"end" if thread == MAIN => {
                return Err("expected another thread: `main` ends with the process".into());
            }
            b"end" => Verb::End,
            b"fork" => match words.optional() {
                Some(word) => Verb::Fork(word.label("a name for the child's thread")?),
                None => Verb::Fork("child".to_owned()),
            },
            b"exit" => Verb::Exit(int(&words.next("an exit status")?)?),
            b"_exit" => Verb::ExitNow(int(&words.next("an exit status")?)?),
            b"abort" => Verb::Abort,
            b"kill" => Verb::Kill(signal(&words.next("a signal")?)?),
            _ => {
                return Err(format!(
                    "expected a verb (name, load, unload, init, start, state, stop, finalize, mask, text, call, \
                     name-comm, step, race, storm, kernel, host-node, nvtx, subscribe, unsubscribe, profile, unprofile, share, unshare, clock, sleep, wait-for, end, fork, exit, _exit, abort, kill), found {verb}"
                ));
            }
        };
        match words.optional() {
            Some(word) => Err(format!("expected the end of the line after `{}`, found {word}", verb.word())),
            None => Ok(verb),
        }
    }

    fn init(&mut self, words: &mut Words) -> Result<Verb> {
        let label = words.next("a label for the communicator")?.label("a label")?;
        let mut options = words.options()?;
        let mut need = |name| options.take(name).ok_or_else(|| format!("expected {name}=NUMBER"));
        let comm = number(&need("comm")?)?;
        let rank = int(&need("rank")?)?;
        let nranks = int(&need("nranks")?)?;
        let nodes = options.take("nodes").map(|word| int(&word)).transpose()?.unwrap_or(1);
        let name = options.take("name").map(|word| word.bytes);
        options.done(&["comm", "rank", "nranks", "nodes", "name"])?;
        self.contexts.insert(label.clone());
        Ok(Verb::Init { label, comm, rank, nranks, nodes, name })
    }

    fn start(&mut self, words: &mut Words) -> Result<Verb> {
        let label = words.next("a label for the event")?.label("a label")?;
        let context = self.context(&words.next("a context")?)?;
        let kind = kind(&words.next("an event kind")?)?;
        let mut options = words.options()?;
        let parent = match options.take("parent") {
            Some(word) => self.event(&word)?,
            None => Handle::Null,
        };
        let mut fields = Vec::new();
        if let Some(word) = options.take("group") {
            fields.push(("parentGroup".to_owned(), Argument::Handle(self.event(&word)?)));
        }
        if let Some(network) = network(&mut options)? {
            fields.push(("net".to_owned(), Argument::Net(network)));
        }
        let known = match kind {
            Type::Named(name) => layout::kind(name),
            Type::Number(_) => None,
        };
        let member = known.and_then(|kind| kind.member);
        for (name, word) in options.0 {
            check_field(known, &name)?;
            let value = match member {
                Some(event) if layout::is_text(event, &name) => self.text(word)?,
                _ => self.number(&word)?,
            };
            fields.push((name, value));
        }
        let misplaced = |name: &str| known.is_some_and(|kind| !has_field(kind, name));
        if let Some((name, _)) = fields.iter().find(|(name, _)| misplaced(name)) {
            let name = if name == "parentGroup" { "group" } else { name };
            return Err(format!("expected no `{name}=`: this kind of event has none"));
        }
        self.events.insert(label.clone());
        Ok(Verb::Start { label, context, kind, parent, fields })
    }

    fn state(&mut self, words: &mut Words) -> Result<Verb> {
        let handle = self.event(&words.next("an event")?)?;
        let state = state(&words.next("a state")?)?;
        let mut options = words.options_with(&["noargs"])?;
        let argument = if options.take("noargs").is_some() {
            StateArgument::Null
        } else if let Some(network) = network(&mut options)? {
            StateArgument::Net(network)
        } else if let Some(value) = options.take("value") {
            let steps = options.take("steps").map(|word| int(&word)).transpose()?;
            StateArgument::Value(self.number(&value)?, steps)
        } else {
            StateArgument::Default
        };
        options.done(&["value", "steps", "net"])?;
        Ok(Verb::State { handle, state, argument })
    }

    fn event(&self, word: &Word) -> Result<Handle> {
        handle(word, &self.events, "an event: the label of an earlier `start`, `null` or raw:NUMBER")
    }

    fn context(&self, word: &Word) -> Result<Handle> {
        handle(word, &self.contexts, "a context: the label of an earlier `init`, `null` or raw:NUMBER")
    }

    fn text(&self, word: Word) -> Result<Argument> {
        if word.quoted {
            return Ok(Argument::Text(word.bytes));
        }
        let text = word.text().unwrap_or_default();
        if let Some(label) = text.strip_prefix('@') {
            return match self.texts.contains(label) {
                true => Ok(Argument::Cell(label.to_owned())),
                false => Err(format!("expected `@` and the label of an earlier `text`, found {word}")),
            };
        }
        if let Some(content) = text.strip_prefix("fresh:") {
            return Ok(Argument::Fresh(content.as_bytes().to_vec()));
        }
        if text == "null" || text.starts_with("raw:") {
            return Ok(Argument::Handle(handle(&word, &HashSet::new(), "an address")?));
        }
        Ok(Argument::Text(word.bytes))
    }

    fn number(&self, word: &Word) -> Result<Argument> {
        let text = word.text()?;
        if self.events.contains(text) || text == "null" || text.starts_with("raw:") {
            return Ok(Argument::Handle(self.event(word)?));
        }
        let (mhz, text) = match text.split_once("MHz:") {
            Some((mhz, rest)) => (mhz.parse::<u64>().ok(), rest),
            None => (None, text),
        };
        if let Some(offset) = text.strip_prefix("now") {
            let (sign, distance) = match offset.as_bytes().first() {
                None => (1, "0us"),
                Some(b'-') => (-1, &offset[1..]),
                Some(b'+') => (1, &offset[1..]),
                Some(_) => return Err(format!("expected now, now-TIME or now+TIME, found {word}")),
            };
            let nanoseconds = sign * i64::try_from(time(distance)?.as_nanos()).unwrap_or(i64::MAX);
            return Ok(mhz.map_or(Argument::Now(nanoseconds), |mhz| Argument::Ticks(mhz, nanoseconds)));
        }
        Ok(Argument::Bits(number(word)?))
    }
}

fn functions(words: &mut Words) -> Result<Vec<String>> {
    let mut functions = vec![words.next("a function")?.label("a function")?];
    while let Some(word) = words.optional() {
        functions.push(word.label("a function")?);
    }
    Ok(functions)
}

fn handle(word: &Word, labels: &HashSet<String>, expected: &str) -> Result<Handle> {
    let text = word.text()?;
    if text == "null" {
        return Ok(Handle::Null);
    }
    if let Some(bits) = text.strip_prefix("raw:") {
        let bits = parse_number(bits).ok_or_else(|| format!("expected raw:NUMBER, found {word}"))?;
        return Ok(Handle::Raw(bits));
    }
    match labels.contains(text) {
        true => Ok(Handle::Label(text.to_owned())),
        false => Err(format!("expected {expected}, found {word}")),
    }
}

fn kind(word: &Word) -> Result<Type> {
    let text = word.text()?;
    if let Some(bits) = text.strip_prefix("type:") {
        let bits = parse_number(bits).ok_or_else(|| format!("expected type:NUMBER, found {word}"))?;
        // A known kind given by number is still the known kind.
        let known = layout::kinds().iter().find(|kind| kind.bit == bits);
        return Ok(known.map_or(Type::Number(bits), |kind| Type::Named(kind.name)));
    }
    match layout::kind(text) {
        Some(kind) => Ok(Type::Named(kind.name)),
        None => {
            let names: Vec<_> = layout::kinds().iter().map(|kind| kind.name).collect();
            Err(format!("expected an event kind ({}, type:NUMBER), found {word}", names.join(", ")))
        }
    }
}

fn state(word: &Word) -> Result<Type> {
    let text = word.text()?;
    if let Some(number) = text.strip_prefix("state:") {
        let number = parse_number(number).ok_or_else(|| format!("expected state:NUMBER, found {word}"))?;
        return Ok(Type::Number(number));
    }
    match layout::state(text) {
        Some(state) => Ok(Type::Named(state.name)),
        None => {
            let names: Vec<_> = layout::states().iter().map(|state| state.name).collect();
            Err(format!("expected a state ({}, state:NUMBER), found {word}", names.join(", ")))
        }
    }
}

fn check_field(kind: Option<&Kind>, name: &str) -> Result<()> {
    match kind {
        Some(kind) if !has_field(kind, name) => {
            let names = kind.member.map(layout::field_names).unwrap_or_default();
            Err(format!("expected a field of {} (rank, {}), found `{name}`", kind.name, names.join(", ")))
        }
        None if !matches!(name, "rank" | "parentObj") => {
            Err(format!("expected no field but rank in an event of unknown kind, found `{name}`"))
        }
        _ => Ok(()),
    }
}

fn network(options: &mut Options) -> Result<Option<NetEvent>> {
    let Some(network) = options.take("net") else {
        return Ok(None);
    };
    let mut need = |name| match options.take(name) {
        Some(word) => number(&word),
        None => Err(format!("expected {name}=NUMBER with net={network}")),
    };
    match network.text()? {
        "ib" => Ok(Some(NetEvent::Ib {
            device: need("device")? as i32,
            wr_id: need("wr_id")?,
            opcode: need("opcode")? as i32,
            qp: need("qp")? as i32,
            length: need("length")?,
        })),
        "socket" => {
            Ok(Some(NetEvent::Socket { fd: need("fd")? as i32, op: need("op")? as i32, length: need("length")? }))
        }
        _ => Err(format!("expected net=ib or net=socket, found {network}")),
    }
}

fn signal(word: &Word) -> Result<i32> {
    const SIGNALS: [(&str, i32); 10] = [
        ("SIGHUP", libc::SIGHUP),
        ("SIGINT", libc::SIGINT),
        ("SIGQUIT", libc::SIGQUIT),
        ("SIGABRT", libc::SIGABRT),
        ("SIGBUS", libc::SIGBUS),
        ("SIGKILL", libc::SIGKILL),
        ("SIGUSR1", libc::SIGUSR1),
        ("SIGSEGV", libc::SIGSEGV),
        ("SIGUSR2", libc::SIGUSR2),
        ("SIGTERM", libc::SIGTERM),
    ];
    let text = word.text()?;
    match SIGNALS.iter().find(|(name, _)| *name == text) {
        Some((_, number)) => Ok(*number),
        None => Err(format!("expected a signal ({}), found {word}", SIGNALS.map(|(name, _)| name).join(", "))),
    }
}

fn number(word: &Word) -> Result<u64> {
    let number = parse_number(word.text()?);
    number.ok_or_else(|| format!("expected a number (-1, 0x10, true, 16Mi), found {word}"))
}

/// The domain of an NVTX call, if it has one.
fn domain(mut options: Options) -> Result<Option<String>> {
    let domain = options.take("domain").map(|word| word.text().map(str::to_owned)).transpose()?;
    options.done(&["domain"])?;
    Ok(domain)
}

fn int(word: &Word) -> Result<i32> {
    let number = number(word)? as i64;
    i32::try_from(number).map_err(|_| format!("expected a number of 32 bits, found {word}"))
}

fn parse_number(text: &str) -> Option<u64> {
    if let Some(bits) = text.strip_prefix("0x") {
        return u64::from_str_radix(bits, 16).ok();
    }
    if let Some(number) = text.strip_prefix('-') {
        return number.parse::<i64>().ok().map(|number| -number as u64);
    }
    let (digits, unit) = match text.get(text.len().saturating_sub(2)..) {
        Some("Ki") => (&text[..text.len() - 2], 1 << 10),
        Some("Mi") => (&text[..text.len() - 2], 1 << 20),
        Some("Gi") => (&text[..text.len() - 2], 1 << 30),
        _ => (text, 1),
    };
    match digits {
        "true" => Some(1),
        "false" => Some(0),
        _ => digits.parse::<u64>().ok()?.checked_mul(unit),
    }
}

fn time(text: &str) -> Result<Duration> {
    let parse = || {
        let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
        let unit = match &text[unit_at..] {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            _ => return None,
        };
        text[..unit_at].parse::<u64>().ok()?.checked_mul(unit).map(Duration::from_nanos)
    };
    parse().ok_or_else(|| format!("expected a time (500ns, 20us, 5ms, 1s), found `{text}`"))
}

/// One word of a line.
#[derive(Clone, Debug)]
struct Word {
    bytes: Vec<u8>,
    /// Whether any of it was quoted, so that it can only be a text.
    quoted: bool,
}

impl Word {
    fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.bytes).map_err(|_| format!("expected text, found {self}"))
    }

    fn label(&self, expected: &str) -> Result<String> {
        let text = self.text()?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
        let number = text.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        match !text.is_empty() && text != "null" && !number && text.chars().all(plain) {
            true => Ok(text.to_owned()),
            false => Err(format!("expected {expected} made of letters, digits and _-./, found {self}")),
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.bytes.escape_ascii())
    }
}

/// The unread words of a line.
struct Words(std::vec::IntoIter<Word>);

impl Words {
    fn next(&mut self, expected: &str) -> Result<Word> {
        self.0.next().ok_or_else(|| format!("expected {expected}, found the end of the line"))
    }

    fn optional(&mut self) -> Option<Word> {
        self.0.next()
    }

    fn options(&mut self) -> Result<Options> {
        self.options_with(&[])
    }

    /// The rest of the line as `name=value`, or as one of the words in `alone`.
    fn options_with(&mut self, alone: &[&str]) -> Result<Options> {
        let mut options: Vec<(String, Word)> = Vec::new();
        for word in self.0.by_ref() {
            let (name, value) = match word.bytes.iter().position(|byte| *byte == b'=') {
                Some(at) => (&word.bytes[..at], &word.bytes[at + 1..]),
                None if alone.iter().any(|name| name.as_bytes() == word.bytes) => (&word.bytes[..], &[][..]),
                None => return Err(format!("expected NAME=VALUE, found {word}")),
            };
            let name = String::from_utf8_lossy(name).into_owned();
            if options.iter().any(|(known, _)| *known == name) {
                return Err(format!("expected `{name}` once"));
            }
            options.push((name, Word { bytes: value.to_vec(), quoted: word.quoted }));
        }
        Ok(Options(options))
    }
}

/// The `name=value` part of a line.
struct Options(Vec<(String, Word)>);

impl Options {
    fn take(&mut self, name: &str) -> Option<Word> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(at).1)
    }

    fn done(self, expected: &[&str]) -> Result<()> {
        match self.0.first() {
            Some((name, _)) => Err(format!("expected one of {}, found `{name}`", expected.join(", "))),
            None => Ok(()),
        }
    }
}

/// Splits a line into words, without its comment.
fn words(line: &str) -> Result<Vec<Word>> {
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'#' if word.is_none() => break,
            b' ' | b'\t' => words.extend(word.take()),
            b'"' => {
                let word = word.get_or_insert(Word { bytes: Vec::new(), quoted: true });
                word.quoted = true;
                quoted(&mut bytes, &mut word.bytes)?;
            }
            _ => word.get_or_insert(Word { bytes: Vec::new(), quoted: false }).bytes.push(byte),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Reads up to the closing quote.
fn quoted(source: &mut std::str::Bytes<'_>, content: &mut Vec<u8>) -> Result<()> {
    let open = || "expected a closing quote before the end of the line".to_owned();
    loop {
        match source.next().ok_or_else(open)? {
            b'"' => return Ok(()),
            b'\\' => match source.next().ok_or_else(open)? {
                escaped @ (b'"' | b'\\') => content.push(escaped),
                b'x' => {
                    let digits = [source.next().ok_or_else(open)?, source.next().ok_or_else(open)?];
                    let byte = std::str::from_utf8(&digits).ok().and_then(|d| u8::from_str_radix(d, 16).ok());
                    content.push(byte.ok_or("expected two hexadecimal digits after `\\x`")?);
                }
                _ => return Err("expected `\\\"`, `\\\\` or `\\xNN` after the backslash".into()),
            },
            byte => content.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_above_is_a_script() {
        let source = include_str!("script.rs");
        let example: Vec<_> = source
            .lines()
            .map_while(|line| line.strip_prefix("//!"))
            .skip_while(|line| *line != " ```text")
            .skip(1)
            .take_while(|line| *line != " ```")
            .collect();
        let script: Script = example.join("\n").parse().unwrap();
        assert_eq!(script.lines.len(), 29);
    }

    #[test]
    fn every_scenario_is_a_script() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let source = std::fs::read_to_string(&path).unwrap();
            if let Err(error) = source.parse::<Script>() {
                panic!("{}: {error}", path.display());
            }
            count += 1;
        }
        assert!(count > 0);
    }

    #[test]
    fn words_keep_what_is_in_quotes() {
        let words = words(r#"  user name "NCCL Progress 0"	x="a \"b\" \\ \xff" # "rest"#).unwrap();
        let words: Vec<_> = words.iter().map(|word| word.bytes.as_slice()).collect();
        let expected: [&[u8]; 4] = [b"user", b"name", b"NCCL Progress 0", b"x=a \"b\" \\ \xff"];
        assert_eq!(words, expected);
    }

    #[test]
    fn numbers_have_several_forms() {
        let cases = [
            ("7", Some(7)),
            ("-1", Some(u64::MAX)),
            ("0xff", Some(255)),
            ("true", Some(1)),
            ("16Mi", Some(16 << 20)),
            ("1Q", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_number(text), expected, "{text}");
        }
        assert_eq!(time("20us"), Ok(Duration::from_micros(20)));
        assert!(time("20").is_err());
    }

    #[test]
    fn values_take_the_shape_of_their_field() {
        let script = "u init w comm=1 rank=0 nranks=1\n\
                      u text t AllReduce\n\
                      u start a w Coll func=@t datatype=fresh:ncclInt8 algo=null proto=LL count=1Ki\n\
                      u start b w KernelCh parent=a pTimer=now-20us";
        let script: Script = script.parse().unwrap();
        let fields = |line: usize| match &script.lines[line].verb {
            Verb::Start { fields, .. } => fields.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>(),
            _ => Vec::new(),
        };
        let expected = [
            Argument::Cell("t".into()),
            Argument::Fresh(b"ncclInt8".to_vec()),
            Argument::Handle(Handle::Null),
            Argument::Text(b"LL".to_vec()),
            Argument::Bits(1024),
        ];
        assert_eq!(fields(2), expected);
        assert_eq!(fields(3), [Argument::Now(-20_000)]);
    }

    #[test]
    fn mistakes_are_explained() {
        let cases = [
            ("u", "line 1: expected a verb, found the end of the line"),
            ("u dance", "line 1: expected a verb (name, load"),
            ("\n\nu stop x", "line 3: expected an event: the label of an earlier `start`"),
            ("u init w comm=1 rank=0", "line 1: expected nranks=NUMBER"),
            ("u init w comm=1 rank=0 nranks=2 size=4", "line 1: expected one of comm, rank"),
            ("u init 0 comm=1 rank=0 nranks=2", "line 1: expected a label made of letters"),
            ("u start a null Coll fnc=AllReduce", "line 1: expected a field of Coll (rank, name"),
            ("u start a null Collective", "line 1: expected an event kind (Group, Coll"),
            ("u start a null type:0x100000 count=1", "line 1: expected no field but rank"),
            ("u start a null Coll net=socket fd=1 op=1 length=1", "line 1: expected no `net=`"),
            ("u start a null Group group=null", "line 1: expected no `group=`"),
            ("u start a null Coll func=AllReduce func=Send", "line 1: expected `func` once"),
            ("u start a null NetPlugin net=ib device=1", "line 1: expected wr_id=NUMBER with net=`ib`"),
            ("u state null Sleeping", "line 1: expected a state (OpSendPosted"),
            ("u stop null null", "line 1: expected the end of the line after `stop`, found `null`"),
            ("u sleep 5", "line 1: expected a time"),
            ("u kill SIGNOTHING", "line 1: expected a signal (SIGHUP"),
            ("u name \"NCCL", "line 1: expected a closing quote"),
            ("main end", "line 1: expected another thread"),
        ];
        for (script, expected) in cases {
            let error = script.parse::<Script>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{script:?}: {error}");
        }
    }
}
