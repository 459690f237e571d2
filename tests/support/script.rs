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
//! - `capture N`: a launch is captured into a graph, as the node with this id
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
//! belongs, or a time of day in nanoseconds: `now`, `now-20us`, `now+2ms`, or in ticks of a clock:
//! `100MHz:now`. If the field is a text, the value is the text itself, `fresh:TEXT` for the same
//! text at a new address, or `@LABEL` for the text of a `text` line.
//!
//! Events and states of network plugins take `net=ib device= wr_id= opcode= qp= length=` or
//! `net=socket fd= op= length=` instead of `id` and `data`. The structure is overwritten as soon as
//! the call returns.

mod parser;
mod words;

use crate::host::NetEvent;
use parser::Parser;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use words::{Words, words};

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
    Capture(u64),
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
            Verb::Capture(_) => "capture",
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
