//! Walks through a program before it runs.

use std::collections::{HashMap, HashSet};

use super::{Error, Program, Statement, Verb};

/// A walk through the program as one rank, to find errors that would occur whenever it runs.
pub(super) struct Walk<'a> {
    program: &'a Program,
    rank: u32,
    /// The line of the current statement.
    line: usize,
    /// Each communicator's state.
    states: Vec<State>,
    /// How often each communicator has been created.
    made: Vec<u64>,
    /// The communicators that each graph uses.
    graphs: HashMap<&'a str, HashSet<usize>>,
    /// The graph being captured.
    capturing: Option<&'a str>,
    /// Whether the rank has stopped.
    ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Missing,
    There,
    Finalized,
    Gone,
}

impl<'a> Walk<'a> {
    /// Walks as every rank, and compares the communicators they create.
    pub(super) fn all(program: &'a Program, ranks: u32) -> Result<(), Error> {
        let mut made: Vec<Vec<u64>> = Vec::new();
        for rank in 0..ranks {
            let count = program.communicators.len();
            let mut walk = Walk {
                program,
                rank,
                line: 0,
                states: vec![State::Missing; count],
                made: vec![0; count],
                graphs: HashMap::new(),
                capturing: None,
                ended: false,
            };
            walk.block(&program.statements)?;
            made.push(walk.made);
        }
        for (index, communicator) in program.communicators.iter().enumerate() {
            // A rank of the parent takes part even in a split that leaves it out.
            let together = match communicator.split {
                Some(split) => &program.communicators[split.parent].groups,
                None => &communicator.groups,
            };
            for pair in together.iter().flat_map(|ranks| ranks.windows(2)) {
                let (one, other) = (made[pair[0] as usize][index], made[pair[1] as usize][index]);
                if one != other {
                    let message = format!(
                        "rank {} would make `{}` {} and rank {} {}, so neither could go on",
                        pair[0],
                        communicator.name,
                        times(one),
                        pair[1],
                        times(other)
                    );
                    return Err(Error { line: communicator.line.max(1), message });
                }
            }
        }
        Ok(())
    }

    fn block(&mut self, statements: &'a [Statement]) -> Result<(), Error> {
        for statement in statements {
            if self.ended {
                break;
            }
            self.line = statement.line;
            self.verb(&statement.verb)?;
        }
        Ok(())
    }

    fn verb(&mut self, verb: &'a Verb) -> Result<(), Error> {
        match verb {
            Verb::Create(index) => self.create(*index)?,
            Verb::Finalize(index) if self.is_member(*index) => {
                self.must_be_there(*index)?;
                self.states[*index] = State::Finalized;
            }
            Verb::Destroy(index) | Verb::Abort(index) if self.is_member(*index) => {
                if self.states[*index] != State::Finalized {
                    self.must_be_there(*index)?;
                }
                self.states[*index] = State::Gone;
                self.graphs.retain(|_, used| !used.contains(index));
            }
            Verb::Wait(index) if self.is_member(*index) => self.must_be_there(*index)?,
            Verb::Operation(operation) if self.is_member(operation.on) => {
                self.must_be_there(operation.on)?;
                if let Some(graph) = self.capturing {
                    self.graphs.entry(graph).or_default().insert(operation.on);
                }
            }
            Verb::Group(body) => self.block(body)?,
            // Later repetitions would find nothing that the second does not.
            Verb::Repeat(times, body) => (0..(*times).min(2)).try_for_each(|_| self.block(body))?,
            Verb::Only(ranks, body) if ranks.contains(&self.rank) => self.block(body)?,
            Verb::Capture(name, body) => {
                self.graphs.insert(name, HashSet::new());
                self.capture(name, body)?;
            }
            Verb::Update(name, body) => {
                self.must_be_captured(name)?;
                self.capture(name, body)?;
            }
            Verb::Instantiate(name, _, of) => {
                self.must_be_captured(of)?;
                let used = self.graphs.get(of.as_str()).cloned().unwrap_or_default();
                self.graphs.insert(name, used);
            }
            Verb::Replay(name, _, on) => {
                self.must_be_captured(name)?;
                if let Some(index) = on {
                    self.must_be_there(*index)?;
                }
            }
            Verb::Hang | Verb::Exit => self.ended = true,
            _ => {}
        }
        Ok(())
    }

    fn capture(&mut self, name: &'a str, body: &'a [Statement]) -> Result<(), Error> {
        self.capturing = Some(name);
        self.block(body)?;
        self.capturing = None;
        Ok(())
    }

    fn must_be_captured(&self, name: &str) -> Result<(), Error> {
        if self.graphs.contains_key(name) {
            return Ok(());
        }
        Err(self.error(format!(
            "rank {} has no graph `{name}` here: it was not captured, or a communicator that it uses is gone",
            self.rank
        )))
    }

    fn create(&mut self, index: usize) -> Result<(), Error> {
        let communicator = &self.program.communicators[index];
        if let Some(split) = communicator.split {
            if !self.is_member(split.parent) {
                return Ok(());
            }
            self.must_be_there(split.parent)?;
        }
        self.made[index] += 1;
        if !self.is_member(index) {
            return Ok(());
        }
        if matches!(self.states[index], State::There | State::Finalized) {
            return Err(self.error(format!("`{}` is there already: destroy it first", communicator.name)));
        }
        self.states[index] = State::There;
        Ok(())
    }

    fn is_member(&self, index: usize) -> bool {
        self.program.communicators[index].place(self.rank).is_some()
    }

    fn must_be_there(&self, index: usize) -> Result<(), Error> {
        let why = match self.states[index] {
            State::There => return Ok(()),
            State::Missing => "has not made it yet",
            State::Finalized => "has finalized it",
            State::Gone => "has ended it",
        };
        let name = &self.program.communicators[index].name;
        Err(self.error(format!("rank {} has no `{name}` here: it {why}", self.rank)))
    }

    fn error(&self, message: String) -> Error {
        Error { line: self.line.max(1), message }
    }
}

fn times(count: u64) -> String {
    match count {
        0 => "never".into(),
        1 => "once".into(),
        more => format!("{more} times"),
    }
}
