//! What the ranks of a job do: a small language with one statement per line.
//!
//! All ranks run the same program, as the processes of a training job do. A rank skips statements
//! on communicators that it does not belong to. `#` begins a comment.
//!
//! ```text
//! communicator dp = stride 2             # ranks 0, 2, 4, ... and ranks 1, 3, 5, ...
//! communicator tp = blocks 2             # ranks 0, 1 and ranks 2, 3, ...
//!
//! repeat 3 {
//!   compute forward 3 ms
//!   all_reduce 16 MiB bf16 sum in place on dp
//!   group {
//!     all_gather 1 MiB f32 on tp
//!     reduce_scatter 1 MiB f32 sum on tp
//!   }
//!   wait dp
//!   compute optimizer 1 ms
//! }
//! ```
//!
//! # The model
//!
//! The model is PyTorch's. A rank has a stream on which it computes, and one more for each
//! communicator. An operation waits for earlier computation, and later computation runs beside it
//! until a `wait`. The host does not wait before `sync`. At the end of the program it waits for
//! everything and destroys the remaining communicators.
//!
//! Ranks within an operation (`root`, `from`, `to`) are those of the communicator; elsewhere they
//! are those of the job. `SIZE` is the count passed to the call, times the size of an element. So
//! it is the size of each rank's contribution to an `all_gather`, of each rank's result of a
//! `reduce_scatter`, and of the data for each peer in an `all_to_all`.
//!
//! | statement | what it does |
//! | --- | --- |
//! | `communicator NAME = all` | makes a communicator of all ranks |
//! | `communicator NAME = ranks 2,0` | of these ranks, in this order |
//! | `communicator NAME = stride K` | one for each remainder of the rank by `K` |
//! | `communicator NAME = blocks K` | one for each `K` consecutive ranks |
//! | `communicator NAME = split PARENT by rank % K [reversed]` | `ncclCommSplit` |
//! | `destroy NAME`, `abort NAME` | ends it, even with work in flight |
//! | `create NAME` | makes it again |
//! | `finalize NAME` | `ncclCommFinalize`; only `destroy` may follow |
//! | `all_reduce SIZE TYPE OP [in place] [on NAME]` | also `reduce_scatter` |
//! | `all_gather SIZE TYPE [in place] [on NAME]` | |
//! | `reduce SIZE TYPE OP root R [in place] [on NAME]` | |
//! | `broadcast SIZE TYPE root R [in place] [on NAME]` | |
//! | `send SIZE TYPE from A to B [on NAME]` | one rank sends, the other receives |
//! | `send_recv ring SIZE TYPE [on NAME]` | each sends to the next rank, in a group |
//! | `all_to_all SIZE TYPE [native] [on NAME]` | sends and receives in a group |
//! | `gather SIZE TYPE root R [native] [on NAME]` | likewise; also `scatter` |
//! | `... symmetric [on NAME]` | a collective or a `native` call on symmetric windows |
//! | `group { ... }` | `ncclGroupStart`, operations, `ncclGroupEnd` |
//! | `compute NAME TIME` | a kernel of the application |
//! | `compute NAME TIME to TIME` | the same, each time of another length on each rank |
//! | `wait NAME` | later computation waits for the communicator's operations |
//! | `sync` | the host waits for everything |
//! | `sleep TIME` | the host waits |
//! | `ahead N` | the host waits until its GPU has reached the `ahead` N before this one |
//! | `repeat N { ... }` | |
//! | `only ranks 0,1 { ... }`, `except rank 2 { ... }` | for some ranks only |
//! | `capture NAME { ... }` | captures operations and computation as a CUDA graph |
//! | `replay NAME [N times] [on COMMUNICATOR]` | launches that graph on a stream |
//! | `instantiate NAME of GRAPH` | makes another executable graph of a captured one |
//! | `instantiate NAME of clone of GRAPH` | the same, from a clone |
//! | `instantiate NAME of child GRAPH` | the same, from a graph with it as a child graph |
//! | `update NAME { ... }` | captures again and calls `cudaGraphExecUpdate` |
//! | `release` | calls `ncclscope_release`: CUPTI is lent |
//! | `acquire` | calls `ncclscope_acquire`: CUPTI is taken back |
//! | `environment NAME=VALUE` | for communicators made later: `NCCL_ALGO`, `NCCL_PROTO` |
//! | `hang` | the rank stops; later the job is killed, as intended |
//! | `exit at once` | `_exit(0)`, without destroying communicators |
//!
//! All of a rank's `compute NAME TIME to TIME` take the same part of their range the n-th time:
//! those of one step work on the same data.
//!
//! `split` also takes `rank / K` and `rank < K`; with the latter the other ranks get no
//! communicator. `native` calls NCCL's own function (`ncclAlltoAll`) where NCCL has it. `symmetric`
//! uses memory of `ncclMemAlloc`, registered as symmetric windows; it needs `peer_access` and
//! `virtual_memory` in `[gpu]`. `replay` uses the stream of computation, or that of the
//! communicator.
//!
//! `TYPE` is one of `i8 u8 i32 u32 i64 u64 f16 bf16 f32 f64`, `OP` one of `sum prod min max avg`.
//! Without `on`, an operation uses `world`, which is created at the start unless the program
//! creates it.

mod parse;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::HashSet;
use std::fmt;

use elements::words::{Datatype, Reduction};

/// A program that is valid for a number of ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// The statements, in order.
    pub statements: Vec<Statement>,
    /// The communicators, by their index in [`Verb`].
    pub communicators: Vec<Communicator>,
    /// How many [`Operation::site`]s there are.
    pub sites: usize,
}

/// One statement.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    /// Its line in the program, from 1; 0 if it was added.
    pub line: usize,
    /// What it does.
    pub verb: Verb,
}

/// What a statement does. Communicators are indices in [`Program::communicators`].
#[derive(Debug, Clone, PartialEq)]
pub enum Verb {
    /// Makes a communicator.
    Create(usize),
    /// `ncclCommFinalize`
    Finalize(usize),
    /// `ncclCommDestroy`
    Destroy(usize),
    /// `ncclCommAbort`
    Abort(usize),
    /// An operation.
    Operation(Operation),
    /// Operations within one group.
    Group(Vec<Statement>),
    /// A kernel of the application, and how long it takes at least and at most, in ns.
    Compute(String, u64, u64),
    /// Makes computation wait for a communicator's operations.
    Wait(usize),
    /// The host waits for everything.
    Sync,
    /// The host waits, in ns.
    Sleep(u64),
    /// The host waits until computation has reached the statement of this kind that came so many
    /// before.
    Ahead(u64),
    /// Repeats statements this many times.
    Repeat(u64, Vec<Statement>),
    /// Only these ranks, in order.
    Only(Vec<u32>, Vec<Statement>),
    /// Records a graph of this name.
    Capture(String, Vec<Statement>),
    /// Launches the graph this many times, on the stream of computation or on that of a
    /// communicator.
    Replay(String, u64, Option<usize>),
    /// Makes another executable graph, with the first name, of the captured graph with the last
    /// name.
    Instantiate(String, Made, String),
    /// Captures a graph and updates the executable graph of this name with it.
    Update(String, Vec<Statement>),
    /// Makes the recording lend CUPTI, or take it back.
    Lend(Lend),
    /// Sets a variable of the process.
    Environment(String, String),
    /// The rank stops.
    Hang,
    /// The process ends without destroying its communicators.
    Exit,
}

/// What an executable graph is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// A captured graph.
    Itself,
    /// A clone of it.
    Clone,
    /// A graph with it as a child graph.
    Parent,
}

/// What the recording is asked to do, by the functions of these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lend {
    /// `ncclscope_release`
    Release,
    /// `ncclscope_acquire`
    Acquire,
}

/// An operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    /// A number that identifies the operation in the text.
    pub site: usize,
    /// Its kind.
    pub what: What,
    /// Elements, as passed to the call.
    pub count: usize,
    /// Their type.
    pub datatype: Datatype,
    /// Whether it reads and writes the same memory.
    pub in_place: bool,
    /// Whether to call NCCL's own function instead of sends and receives.
    pub native: bool,
    /// Whether its memory is NCCL's, registered as symmetric windows.
    pub symmetric: bool,
    /// The communicator.
    pub on: usize,
}

/// The kinds of operation. Ranks are those of the communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "NCCL's documentation says what they are")]
pub enum What {
    AllReduce(Reduction),
    AllGather,
    ReduceScatter(Reduction),
    Broadcast { root: u32 },
    Reduce { reduction: Reduction, root: u32 },
    Send { from: u32, to: u32 },
    Ring,
    AllToAll,
    Gather { root: u32 },
    Scatter { root: u32 },
}

impl What {
    /// Its name in a program.
    pub fn word(self) -> &'static str {
        match self {
            What::AllReduce(_) => "all_reduce",
            What::AllGather => "all_gather",
            What::ReduceScatter(_) => "reduce_scatter",
            What::Broadcast { .. } => "broadcast",
            What::Reduce { .. } => "reduce",
            What::Send { .. } => "send",
            What::Ring => "send_recv ring",
            What::AllToAll => "all_to_all",
            What::Gather { .. } => "gather",
            What::Scatter { .. } => "scatter",
        }
    }

    /// The highest rank it names.
    fn highest_rank(self) -> u32 {
        match self {
            What::Broadcast { root } | What::Reduce { root, .. } | What::Gather { root } | What::Scatter { root } => {
                root
            }
            What::Send { from, to } => from.max(to),
            _ => 0,
        }
    }
}

/// A communicator, or several with one name that have no rank in common.
#[derive(Debug, Clone, PartialEq)]
pub struct Communicator {
    /// Its name.
    pub name: String,
    /// The line of its declaration; 0 if it was added.
    pub line: usize,
    /// How it is split from another one, if it is.
    pub split: Option<Split>,
    /// The ranks of the job in each communicator of this name, in the order of their ranks there.
    pub groups: Vec<Vec<u32>>,
}

impl Communicator {
    /// Which group a rank of the job belongs to, and its rank there.
    pub fn place(&self, rank: u32) -> Option<Membership<'_>> {
        self.groups.iter().enumerate().find_map(|(index, ranks)| {
            let position = ranks.iter().position(|&member| member == rank)?;
            Some(Membership { group: index, rank: position as u32, ranks })
        })
    }
}

/// A rank's place in a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Membership<'a> {
    /// Which of the communicators with that name.
    pub group: usize,
    /// The rank in it.
    pub rank: u32,
    /// The ranks of the job that belong to it.
    pub ranks: &'a [u32],
}

impl Membership<'_> {
    /// How many ranks belong to it.
    pub fn size(&self) -> u32 {
        self.ranks.len() as u32
    }
}

/// How a communicator is split from another. Ranks are those of the parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// The parent.
    pub parent: usize,
    /// How ranks are grouped.
    pub by: By,
    /// Whether they are in reverse order.
    pub reversed: bool,
}

impl Split {
    /// The colour and key of a rank of the parent. Without a colour it gets no communicator.
    pub fn color_and_key(&self, rank: u32) -> (Option<u32>, i32) {
        let color = match self.by {
            By::Remainder(by) => Some(rank % by),
            By::Quotient(by) => Some(rank / by),
            By::Below(limit) => (rank < limit).then_some(0),
        };
        (color, if self.reversed { -(rank as i32) } else { rank as i32 })
    }
}

/// How the ranks of a parent are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// `rank % K`
    Remainder(u32),
    /// `rank / K`
    Quotient(u32),
    /// `rank < K`; the others get none.
    Below(u32),
}

/// What is wrong with a program, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The line of the program, from 1.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the program: {}", self.line, self.message)
    }
}

/// The variables that `environment` may set: NCCL reads them again for each communicator.
pub const VARIABLES: [&str; 2] = ["NCCL_ALGO", "NCCL_PROTO"];

/// The communicator of all ranks.
const WORLD: &str = "world";

impl Program {
    /// The variables that the program sets while it runs.
    pub fn variables(&self) -> HashSet<&str> {
        fn collect<'a>(statements: &'a [Statement], into: &mut HashSet<&'a str>) {
            for statement in statements {
                match &statement.verb {
                    Verb::Environment(name, _) => drop(into.insert(name)),
                    Verb::Repeat(_, body) | Verb::Only(_, body) => collect(body, into),
                    _ => {}
                }
            }
        }
        let mut names = HashSet::new();
        collect(&self.statements, &mut names);
        names
    }

    /// Changes how long kernels of the application take and hosts sleep, in ns.
    pub fn change_times(&mut self, change: &impl Fn(&mut u64)) {
        fn of(statements: &mut [Statement], change: &impl Fn(&mut u64)) {
            for statement in statements {
                match &mut statement.verb {
                    Verb::Compute(_, least, most) => [least, most].into_iter().for_each(change),
                    Verb::Sleep(ns) => change(ns),
                    Verb::Repeat(_, body)
                    | Verb::Only(_, body)
                    | Verb::Group(body)
                    | Verb::Capture(_, body)
                    | Verb::Update(_, body) => of(body, change),
                    _ => {}
                }
            }
        }
        of(&mut self.statements, change);
    }

    /// Whether an operation needs symmetric windows.
    pub fn needs_windows(&self) -> bool {
        any(&self.statements, &|verb| matches!(verb, Verb::Operation(operation) if operation.symmetric))
    }
}

/// Whether `such` is true for one of these statements or of those within them.
fn any(statements: &[Statement], such: &impl Fn(&Verb) -> bool) -> bool {
    statements.iter().any(|statement| {
        such(&statement.verb)
            || match &statement.verb {
                Verb::Repeat(_, body)
                | Verb::Only(_, body)
                | Verb::Group(body)
                | Verb::Capture(_, body)
                | Verb::Update(_, body) => any(body, such),
                _ => false,
            }
    })
}
