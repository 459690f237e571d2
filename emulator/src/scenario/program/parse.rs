//! Reads a program.

use std::collections::HashMap;

use super::walk::Walk;
use super::{By, Communicator, Error, Lend, Made, Operation, Program, Split, Statement, VARIABLES, Verb, WORLD, What};
use crate::scenario::units::{self, Kind, Size, Time};
use elements::words::{Datatype, Reduction};

impl Program {
    /// Reads a program for a job with this many ranks.
    ///
    /// # Errors
    ///
    /// Names the line, and says what is allowed there.
    pub fn parse(text: &str, ranks: u32) -> Result<Program, Error> {
        let mut parser = Parser { ranks, ..Parser::default() };
        let lines: Vec<_> = text.lines().collect();
        // A communicator that no statement creates must be known before the statements that use
        // it.
        let made = lines.iter().any(|line| {
            let words = tokens(line);
            words.first() == Some(&"communicator") && words.get(1) == Some(&WORLD)
        });
        if !made {
            parser.declare(Communicator {
                name: WORLD.into(),
                line: 0,
                split: None,
                groups: vec![(0..ranks).collect()],
            });
        }
        let mut lines = lines.into_iter().enumerate().map(|(index, line)| (index + 1, line));
        let mut statements = parser.block(&mut lines, None)?;
        let any_other = parser.communicators.len() > 1;
        if !made && (parser.uses_world || !any_other) {
            statements.insert(0, Statement { line: 0, verb: Verb::Create(0) });
        }
        let program = Program { statements, communicators: parser.communicators, sites: parser.sites };
        Walk::all(&program, ranks)?;
        Ok(program)
    }
}

/// The words of a line without its comment; the language's punctuation marks are separate words.
fn tokens(line: &str) -> Vec<&str> {
    let line = line.split('#').next().unwrap_or_default();
    let mut words = Vec::new();
    for word in line.split_whitespace() {
        let mut rest = word;
        while let Some(at) = rest.find([',', '{', '}', '=', '%', '/', '<']) {
            if at > 0 {
                words.push(&rest[..at]);
            }
            words.push(&rest[at..=at]);
            rest = &rest[at + 1..];
        }
        if !rest.is_empty() {
            words.push(rest);
        }
    }
    words
}

/// Where a statement is allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Allowed {
    /// In a group and in a capture too.
    Everywhere,
    /// In a capture too.
    NotInGroup,
    /// In neither.
    Outside,
}

use Allowed::{Everywhere, NotInGroup, Outside};

/// Where each statement is allowed, and how it is written.
const USAGE: &[(&str, Allowed, &str)] = &[
    ("communicator", Outside, "communicator NAME = all | ranks 0,2 | stride K | blocks K | split PARENT by rank % K"),
    ("create", Outside, "create COMMUNICATOR"),
    ("finalize", Outside, "finalize COMMUNICATOR"),
    ("destroy", Outside, "destroy COMMUNICATOR"),
    ("abort", Outside, "abort COMMUNICATOR"),
    ("all_reduce", Everywhere, "all_reduce SIZE TYPE OP [in place] [symmetric] [on COMMUNICATOR]"),
    ("all_gather", Everywhere, "all_gather SIZE TYPE [in place] [symmetric] [on COMMUNICATOR]"),
    ("reduce_scatter", Everywhere, "reduce_scatter SIZE TYPE OP [in place] [symmetric] [on COMMUNICATOR]"),
    ("broadcast", Everywhere, "broadcast SIZE TYPE root RANK [in place] [symmetric] [on COMMUNICATOR]"),
    ("reduce", Everywhere, "reduce SIZE TYPE OP root RANK [in place] [symmetric] [on COMMUNICATOR]"),
    ("send", Everywhere, "send SIZE TYPE from RANK to RANK [on COMMUNICATOR]"),
    ("send_recv", Everywhere, "send_recv ring SIZE TYPE [on COMMUNICATOR]"),
    ("all_to_all", Everywhere, "all_to_all SIZE TYPE [native] [symmetric] [on COMMUNICATOR]"),
    ("gather", Everywhere, "gather SIZE TYPE root RANK [native] [symmetric] [on COMMUNICATOR]"),
    ("scatter", Everywhere, "scatter SIZE TYPE root RANK [native] [symmetric] [on COMMUNICATOR]"),
    ("group", Everywhere, "group {"),
    ("compute", NotInGroup, "compute NAME TIME [to TIME]"),
    ("wait", NotInGroup, "wait COMMUNICATOR"),
    ("sync", Outside, "sync"),
    ("sleep", Outside, "sleep TIME"),
    ("ahead", Outside, "ahead N"),
    ("repeat", Everywhere, "repeat N {"),
    ("only", Everywhere, "only ranks 0,1 {"),
    ("except", Everywhere, "except rank 2 {"),
    ("capture", Outside, "capture NAME {"),
    ("replay", Outside, "replay NAME [N times] [on COMMUNICATOR]"),
    ("instantiate", Outside, "instantiate NAME of [clone of|child] GRAPH"),
    ("update", Outside, "update NAME {"),
    ("release", Outside, "release"),
    ("acquire", Outside, "acquire"),
    ("environment", Outside, "environment NCCL_PROTO=LL"),
    ("hang", Outside, "hang"),
    ("exit", Outside, "exit at once"),
];

/// A block in which some statements are not allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Group,
    Capture,
}

#[derive(Default)]
struct Parser {
    ranks: u32,
    communicators: Vec<Communicator>,
    by_name: HashMap<String, usize>,
    sites: usize,
    uses_world: bool,
    within: Vec<Within>,
}

impl Parser {
    fn declare(&mut self, communicator: Communicator) -> usize {
        self.by_name.insert(communicator.name.clone(), self.communicators.len());
        self.communicators.push(communicator);
        self.communicators.len() - 1
    }

    /// The statements up to the brace that closes the block that `opened` describes; without one,
    /// all.
    fn block<'a>(
        &mut self,
        lines: &mut impl Iterator<Item = (usize, &'a str)>,
        opened: Option<usize>,
    ) -> Result<Vec<Statement>, Error> {
        let mut statements = Vec::new();
        while let Some((line, text)) = lines.next() {
            let words = tokens(text);
            match (words.as_slice(), opened) {
                ([], _) => {}
                (["}"], Some(_)) => return Ok(statements),
                (["}", ..], _) => {
                    let message = match opened {
                        Some(_) => "nothing follows a `}` on its line",
                        None => "a `}` that closes nothing",
                    };
                    return Err(Error { line, message: message.into() });
                }
                (words, _) => {
                    let mut words = Words::new(line, words);
                    let verb = self.statement(&mut words, text, lines)?;
                    statements.push(Statement { line, verb });
                }
            }
        }
        match opened {
            Some(line) => Err(Error { line, message: "this block is never closed: a line with `}` is missing".into() }),
            None => Ok(statements),
        }
    }

    fn statement<'a>(
        &mut self,
        words: &mut Words<'_>,
        text: &str,
        lines: &mut impl Iterator<Item = (usize, &'a str)>,
    ) -> Result<Verb, Error> {
        let verb = words.verb;
        if words.usage.is_none() {
            let known: Vec<_> = USAGE.iter().map(|(word, ..)| *word).collect();
            return Err(words.error(format!("there is no statement `{verb}`; there are {}", known.join(", "))));
        }
        self.allowed_here(words)?;
        let statement = match verb {
            "communicator" => return self.communicator(words).map(Verb::Create),
            "create" => Verb::Create(self.named(words)?),
            "finalize" => Verb::Finalize(self.named(words)?),
            "destroy" => Verb::Destroy(self.named(words)?),
            "abort" => Verb::Abort(self.named(words)?),
            "wait" => Verb::Wait(self.named(words)?),
            "compute" => {
                let name = words.name("a name")?.to_owned();
                let least = words.quantity::<Time>()?;
                let most = if words.take("to") { words.quantity::<Time>()? } else { least };
                if least > most {
                    return Err(words.wrong("the first time is not above the second"));
                }
                Verb::Compute(name, least, most)
            }
            "sync" => Verb::Sync,
            "sleep" => Verb::Sleep(words.quantity::<Time>()?),
            "ahead" => Verb::Ahead(words.number("how many")?),
            "hang" => Verb::Hang,
            "exit" => {
                words.expect("at")?;
                words.expect("once")?;
                Verb::Exit
            }
            "replay" => {
                let name = words.name("the name of a captured graph")?.to_owned();
                let mut on = if words.take("on") { Some(self.named(words)?) } else { None };
                let times = if words.is_at_end() { 1 } else { words.number("how many times")? };
                if !words.is_at_end() && !words.take("times") {
                    words.expect("time")?;
                }
                if on.is_none() && words.take("on") {
                    on = Some(self.named(words)?);
                }
                Verb::Replay(name, times, on)
            }
            "instantiate" => {
                let name = words.name("a name")?.to_owned();
                words.expect("of")?;
                let made = match () {
                    () if words.take("clone") => Made::Clone,
                    () if words.take("child") => Made::Parent,
                    () => Made::Itself,
                };
                if made == Made::Clone {
                    words.expect("of")?;
                }
                Verb::Instantiate(name, made, words.name("the name of a captured graph")?.to_owned())
            }
            "update" => {
                let name = words.name("the name of a captured graph")?.to_owned();
                words.opens()?;
                Verb::Update(name, self.block_within(Within::Capture, words.line, lines)?)
            }
            "release" => Verb::Lend(Lend::Release),
            "acquire" => Verb::Lend(Lend::Acquire),
            "environment" => return environment(words, text),
            "repeat" => {
                let times = words.number("how many times")?;
                words.opens()?;
                Verb::Repeat(times, self.block(lines, Some(words.line))?)
            }
            "only" | "except" => {
                let mut ranks = self.rank_list(words)?;
                if verb == "except" {
                    ranks = (0..self.ranks).filter(|rank| !ranks.contains(rank)).collect();
                }
                ranks.sort_unstable();
                words.opens()?;
                Verb::Only(ranks, self.block(lines, Some(words.line))?)
            }
            "group" => {
                words.opens()?;
                Verb::Group(self.block_within(Within::Group, words.line, lines)?)
            }
            "capture" => {
                let name = words.name("a name")?.to_owned();
                words.opens()?;
                Verb::Capture(name, self.block_within(Within::Capture, words.line, lines)?)
            }
            _ => self.operation(words)?,
        };
        words.end()?;
        Ok(statement)
    }

    fn block_within<'a>(
        &mut self,
        within: Within,
        line: usize,
        lines: &mut impl Iterator<Item = (usize, &'a str)>,
    ) -> Result<Vec<Statement>, Error> {
        self.within.push(within);
        let body = self.block(lines, Some(line));
        self.within.pop();
        body
    }

    fn allowed_here(&self, words: &Words<'_>) -> Result<(), Error> {
        let message = match (self.within.last(), words.allowed) {
            (Some(Within::Group), Some(NotInGroup | Outside)) => "be within a group: only operations can",
            (Some(Within::Capture), Some(Outside)) => "be captured: only operations, groups, `compute` and `wait` can",
            _ => return Ok(()),
        };
        Err(words.error(format!("`{}` cannot {message}", words.verb)))
    }

    fn communicator(&mut self, words: &mut Words<'_>) -> Result<usize, Error> {
        let name = words.name("a name")?.to_owned();
        if let Some(&index) = self.by_name.get(&name) {
            let line = self.communicators[index].line;
            return Err(
                words.error(format!("`{name}` is already declared in line {line}; `create {name}` makes it once more"))
            );
        }
        words.expect("=")?;
        let all = 0..self.ranks;
        let mut split = None;
        let how = words.word("how it is made")?;
        let groups = match how {
            "all" => vec![all.collect()],
            "ranks" => vec![words.list("ranks", self.ranks)?],
            "stride" => {
                let by = words.number_in("a stride", 1, self.ranks)?;
                (0..by).map(|first| all.clone().skip(first as usize).step_by(by as usize).collect()).collect()
            }
            "blocks" => {
                let by = words.number_in("a size", 1, self.ranks)?;
                all.collect::<Vec<_>>().chunks(by as usize).map(<[u32]>::to_vec).collect()
            }
            "split" => {
                let parent = self.named(words)?;
                words.expect("by")?;
                words.expect("rank")?;
                let mark = words.word("`%`, `/` or `<`")?;
                let by = words.number_in("a number", 1, self.ranks)?;
                let by = match mark {
                    "%" => By::Remainder(by),
                    "/" => By::Quotient(by),
                    "<" => By::Below(by),
                    other => return Err(words.wrong(&format!("expected `%`, `/` or `<`, not `{other}`"))),
                };
                let reversed = words.take("reversed");
                let how = Split { parent, by, reversed };
                split = Some(how);
                self.communicators[parent].groups.iter().flat_map(|ranks| split_group(&how, ranks)).collect()
            }
            other => {
                return Err(words.wrong(&format!("expected all, ranks, stride, blocks or split, not `{other}`")));
            }
        };
        words.end()?;
        Ok(self.declare(Communicator { name, line: words.line, split, groups }))
    }

    fn operation(&mut self, words: &mut Words<'_>) -> Result<Verb, Error> {
        if words.verb == "send_recv" {
            words.expect("ring")?;
        }
        let bytes = words.quantity::<Size>()?;
        let written = words.last_two();
        let datatype = words.word("a type")?;
        let Some(datatype) = Datatype::ALL.into_iter().find(|known| known.word() == datatype) else {
            let known: Vec<_> = Datatype::ALL.iter().map(|known| known.word()).collect();
            return Err(words.wrong(&format!("there is no type `{datatype}`; there are {}", known.join(", "))));
        };
        if bytes % datatype.size() as u64 != 0 {
            return Err(words.error(format!("{written} is not a whole number of {} elements", datatype.word())));
        }
        let what = match words.verb {
            "all_reduce" => What::AllReduce(words.reduction()?),
            "all_gather" => What::AllGather,
            "reduce_scatter" => What::ReduceScatter(words.reduction()?),
            "broadcast" => What::Broadcast { root: words.rank("root")? },
            "reduce" => What::Reduce { reduction: words.reduction()?, root: words.rank("root")? },
            "send" => What::Send { from: words.rank("from")?, to: words.rank("to")? },
            "send_recv" => What::Ring,
            "all_to_all" => What::AllToAll,
            "gather" => What::Gather { root: words.rank("root")? },
            "scatter" => What::Scatter { root: words.rank("root")? },
            other => unreachable!("`{other}` has a usage but no meaning"),
        };
        let mut in_place = false;
        let mut native = false;
        match what {
            What::AllToAll | What::Gather { .. } | What::Scatter { .. } => native = words.take("native"),
            What::Send { .. } | What::Ring => {}
            _ if words.take("in") => {
                words.expect("place")?;
                in_place = true;
            }
            _ => {}
        }
        let symmetric = self.symmetric(what, native, words)?;
        let on = if words.take("on") {
            self.named(words)?
        } else {
            self.by_name.get(WORLD).copied().ok_or_else(|| words.error("`world` is declared further down".into()))?
        };
        self.uses_world |= self.communicators[on].name == WORLD;
        let smallest = self.communicators[on].groups.iter().map(Vec::len).min().unwrap_or_default() as u32;
        if what.highest_rank() >= smallest {
            let name = &self.communicators[on].name;
            let rank = what.highest_rank();
            return Err(words.error(format!("there is no rank {rank} in `{name}`, which has {smallest}")));
        }
        if matches!(what, What::Send { from, to } if from == to) {
            return Err(words.error("a rank sends to itself only in a `send_recv ring` of one".into()));
        }
        self.sites += 1;
        let count = (bytes / datatype.size() as u64) as usize;
        let site = self.sites - 1;
        Ok(Verb::Operation(Operation { site, what, count, datatype, in_place, native, symmetric, on }))
    }

    /// Whether an operation uses symmetric windows, if it can.
    fn symmetric(&self, what: What, native: bool, words: &mut Words<'_>) -> Result<bool, Error> {
        if !words.take("symmetric") {
            return Ok(false);
        }
        let one_call = match what {
            What::Send { .. } | What::Ring => false,
            What::AllToAll | What::Gather { .. } | What::Scatter { .. } => native,
            _ => true,
        };
        if !one_call {
            return Err(words.error("only collectives and `native` calls can be `symmetric`".into()));
        }
        if !self.within.is_empty() {
            let message =
                "a `symmetric` operation cannot be within a group or captured: its windows are made before it";
            return Err(words.error(message.into()));
        }
        Ok(true)
    }

    /// The communicator whose name comes next.
    fn named(&mut self, words: &mut Words<'_>) -> Result<usize, Error> {
        let name = words.word("the name of a communicator")?;
        let Some(&index) = self.by_name.get(name) else {
            let mut known: Vec<_> = self.communicators.iter().map(|known| known.name.as_str()).collect();
            known.sort_unstable();
            return Err(
                words.error(format!("there is no communicator `{name}` so far; there are {}", known.join(", ")))
            );
        };
        self.uses_world |= name == WORLD;
        Ok(index)
    }

    fn rank_list(&self, words: &mut Words<'_>) -> Result<Vec<u32>, Error> {
        if !words.take("rank") {
            words.expect("ranks")?;
        }
        words.list("ranks", self.ranks)
    }
}

/// The groups that a communicator is split into.
fn split_group(how: &Split, ranks: &[u32]) -> Vec<Vec<u32>> {
    let mut colors: Vec<(u32, i32, u32)> = (0_u32..)
        .zip(ranks)
        .filter_map(|(rank, &member)| {
            let (color, key) = how.color_and_key(rank);
            Some((color?, key, member))
        })
        .collect();
    colors.sort_by_key(|&(color, key, _)| (color, key));
    colors.chunk_by(|a, b| a.0 == b.0).map(|group| group.iter().map(|member| member.2).collect()).collect()
}

/// `environment NAME=VALUE`, read from the text itself: a value may contain any punctuation.
fn environment(words: &Words<'_>, text: &str) -> Result<Verb, Error> {
    let text = text.split('#').next().unwrap_or_default();
    let assignment = text.trim().strip_prefix("environment").unwrap_or_default().trim();
    let Some((name, value)) = assignment.split_once('=').filter(|(name, value)| !(name.is_empty() || value.is_empty()))
    else {
        return Err(words.wrong("expected NAME=VALUE"));
    };
    if !VARIABLES.contains(&name) {
        return Err(words.error(format!(
            "`{name}` cannot be set here, only {}: NCCL reads others once; they belong in [nccl]",
            VARIABLES.join(", ")
        )));
    }
    if value.contains(char::is_whitespace) {
        return Err(words.error(format!("the value of `{name}` contains blanks")));
    }
    Ok(Verb::Environment(name.into(), value.into()))
}

/// The words of one statement, taken one after the other.
struct Words<'a> {
    line: usize,
    verb: &'a str,
    allowed: Option<Allowed>,
    usage: Option<&'static str>,
    words: &'a [&'a str],
    at: usize,
}

impl<'a> Words<'a> {
    fn new(line: usize, words: &'a [&'a str]) -> Words<'a> {
        let known = USAGE.iter().find(|(verb, ..)| *verb == words[0]);
        let (allowed, usage) = known.map(|(_, allowed, usage)| (*allowed, *usage)).unzip();
        Words { line, verb: words[0], allowed, usage, words, at: 1 }
    }

    fn error(&self, message: String) -> Error {
        Error { line: self.line, message }
    }

    /// An error about how the statement is written.
    fn wrong(&self, message: &str) -> Error {
        self.error(format!("{message}; it is written `{}`", self.usage.unwrap_or_default()))
    }

    fn is_at_end(&self) -> bool {
        self.at == self.words.len()
    }

    fn word(&mut self, expected: &str) -> Result<&'a str, Error> {
        let word = self.words.get(self.at).ok_or_else(|| self.wrong(&format!("expected {expected}")))?;
        self.at += 1;
        Ok(word)
    }

    /// Takes a word if it comes next.
    fn take(&mut self, word: &str) -> bool {
        let next = self.words.get(self.at) == Some(&word);
        self.at += usize::from(next);
        next
    }

    fn expect(&mut self, word: &str) -> Result<(), Error> {
        if self.take(word) {
            return Ok(());
        }
        let found = self.words.get(self.at).map(|found| format!(", not `{found}`")).unwrap_or_default();
        Err(self.wrong(&format!("expected `{word}`{found}")))
    }

    fn name(&mut self, expected: &str) -> Result<&'a str, Error> {
        let word = self.word(expected)?;
        let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        if !plain || !word.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(self.wrong(&format!(
                "`{word}` is not a name: a name begins with a letter and has letters, digits, `_` and `-`"
            )));
        }
        Ok(word)
    }

    fn number(&mut self, expected: &str) -> Result<u64, Error> {
        let word = self.word(expected)?;
        match word.parse::<u64>() {
            Ok(number) if number <= 1_000_000 => Ok(number),
            _ => Err(self.wrong(&format!("expected {expected} as a number up to 1000000, not `{word}`"))),
        }
    }

    fn number_in(&mut self, expected: &str, least: u32, most: u32) -> Result<u32, Error> {
        let number = self.number(expected)?;
        u32::try_from(number)
            .ok()
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.error(format!("expected {expected} from {least} to {most}, not {number}")))
    }

    fn quantity<K: Kind>(&mut self) -> Result<u64, Error> {
        let expected = format!("a {} such as `{}`", K::NAME, K::EXAMPLE);
        let number = self.word(&expected)?;
        let unit = self.word(&expected)?;
        units::whole::<K>(&format!("{number} {unit}")).map_err(|message| self.wrong(&message))
    }

    fn last_two(&self) -> String {
        self.words[self.at - 2..self.at].join(" ")
    }

    fn reduction(&mut self) -> Result<Reduction, Error> {
        let word = self.word("a reduction")?;
        Reduction::ALL.into_iter().find(|known| known.word() == word).ok_or_else(|| {
            let known: Vec<_> = Reduction::ALL.iter().map(|known| known.word()).collect();
            self.wrong(&format!("there is no reduction `{word}`; there are {}", known.join(", ")))
        })
    }

    fn rank(&mut self, role: &str) -> Result<u32, Error> {
        self.expect(role)?;
        Ok(self.number("a rank")? as u32)
    }

    /// A list of ranks separated by commas.
    fn list(&mut self, expected: &str, ranks: u32) -> Result<Vec<u32>, Error> {
        let mut list = Vec::new();
        loop {
            let rank = self.number(expected)?;
            if rank >= u64::from(ranks) {
                return Err(self.error(format!("there is no rank {rank}: the job has {ranks}")));
            }
            if list.contains(&(rank as u32)) {
                return Err(self.error(format!("rank {rank} is named twice")));
            }
            list.push(rank as u32);
            if !self.take(",") {
                return Ok(list);
            }
        }
    }

    /// The brace that opens a block, at the end of its line.
    fn opens(&mut self) -> Result<(), Error> {
        self.expect("{")?;
        if self.is_at_end() { Ok(()) } else { Err(self.wrong("what is in a block begins on the next line")) }
    }

    fn end(&self) -> Result<(), Error> {
        match self.words.get(self.at) {
            None => Ok(()),
            Some(word) => Err(self.wrong(&format!("`{word}` is not expected here"))),
        }
    }
}
