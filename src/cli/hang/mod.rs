//! Where a job hangs: the operation that the ranks wait in, who has come to it, and who has not.
//!
//! A recording shows what is overdue in its own process (`trace::not_done`, and the proxy's open work). Which rank the others wait
//! for only the traces of all of them tell: it is the one that never handed the operation over. Where no recording could tell what
//! is overdue, a rank that fell silent while others of its communicator went on says the same.
//!
//! `look` reads, `judge` decides.

mod job;
mod judge;
mod look;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;

use self::judge::judge;
use self::look::{Look, first_look};
use super::survey::Survey;
use crate::model::time::HostNs;

/// Nothing waits for long before this, ns.
const PATIENCE_NS: u64 = 2_000_000_000;
/// So much earlier than the others of its host a recording may end on a busy machine, ns.
const LAG_NS: u64 = 5_000_000_000;
/// A wait is a hang when it is so many times longer than what the job showed before.
const BEYOND: u64 = 3;
/// Sends and receives of one communicator that are named.
const PAIRS: usize = 16;
/// Ranks that are listed.
const LISTED: usize = 16;

/// An operation on which a job stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hang {
    /// What stands: `AllReduce 1 MiB f32`, and its number among those of its communicator.
    pub(super) name: String,
    pub(super) seq: Option<u64>,
    /// Of a replayed graph: which run, counted from 1.
    pub(super) replay: Option<u64>,
    /// The communicator, as its tracks call it, and its hash.
    pub(super) comm: String,
    pub(super) hash: u64,
    /// The ranks that it takes: of a collective all, of a send or receive two.
    pub(super) of: usize,
    /// It has a number on all ranks, so that who has come can be told.
    pub(super) is_numbered: bool,
    /// The hosts wait inside of the call that asks for it.
    pub(super) is_call: bool,
    /// Its ranks that have come, that have not, and whose files are not here.
    pub(super) came: Vec<u32>,
    pub(super) missing: Vec<Missing>,
    pub(super) unseen: Vec<u32>,
    /// When the first rank came, on the clock of its trace, and how long that was before the end, ns; and for how long the
    /// last that came has waited.
    pub(super) begin: HostNs,
    pub(super) age: u64,
    pub(super) waited: u64,
    /// Operations that were handed over behind it.
    pub(super) behind: u64,
    /// It waits longer than anything that the job showed before.
    pub(super) is_certain: bool,
    /// A rank that had come handed others over long after it.
    pub(super) has_paused: bool,
    /// What the recordings remark of it, with the rank.
    pub(super) notes: Vec<String>,
}

/// A rank that has not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    /// In the communicator, and in the job where that is known.
    pub(super) rank: u32,
    pub(super) world: Option<u32>,
    /// What it was last seen to do.
    pub(super) last: String,
    /// It waits in another operation that stands.
    pub(super) waits: Option<String>,
}

/// Where the job of these traces hangs: what others wait for first, and nothing where it does not. Of a trace that cannot be
/// read to its end, as far as it can.
pub(super) fn find(survey: &Survey, paths: &[PathBuf]) -> Vec<Hang> {
    let (mut job, member_of) = first_look(survey);
    let silent = job.silent();
    let last = |member: &usize| {
        let member = &job.members[*member];
        Some((member.hash, member.collective.as_ref()?.0.correlation))
    };
    let last: BTreeSet<_> = silent.iter().filter_map(last).collect();
    if job.standing.is_empty() && last.is_empty() {
        return Vec::new();
    }
    let wanted = job.standing.iter().map(|it| (it.key.0, it.key.1)).collect();
    let mut look = Look { job: &mut job, survey, member_of: &member_of, wanted, last, on: HashMap::new() };
    for path in paths {
        look.at(path);
    }
    job.stand_where_others_went_on();
    job.number();
    judge(&job)
}

impl fmt::Display for Hang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.seq.map_or_else(String::new, |seq| format!(", seq {seq}"));
        let replay = self.replay.map_or_else(String::new, |run| format!(", run {run} of its graph"));
        write!(f, "{}{number}{replay} on {}: ", self.name, self.comm)?;
        let waited = format!("{:.1} s", self.waited as f64 / 1e9);
        let (came, of) = (self.came.len(), self.of);
        match (&self.missing[..], &self.unseen[..]) {
            _ if !self.is_numbered => {
                let what = if self.is_call { "the call has not returned" } else { "it has not been seen to end" };
                let came = list(self.came.iter().map(u32::to_string));
                write!(f, "{what} for {waited} on these ranks: {came}. NCCL does not say which others have come")?;
            }
            ([], []) => write!(f, "all {of} ranks have come, and it has not been seen to end for {waited}")?,
            ([], unseen) => write!(
                f,
                "not seen to end for {waited}; {came} of {of} ranks have come, the files of the others are not here: {}",
                list(unseen.iter().map(u32::to_string))
            )?,
            (missing, unseen) => {
                let plain = missing.iter().all(|it| it.world.is_none_or(|world| world == it.rank));
                let name = |it: &Missing| match it.world {
                    Some(world) if !plain => format!("{} (rank {world} of the job)", it.rank),
                    _ => it.rank.to_string(),
                };
                write!(
                    f,
                    "{came} of {of} ranks have come and waited {waited}, missing: {}",
                    list(missing.iter().map(name))
                )?;
                if let [one] = missing {
                    write!(f, " ({})", one.last)?;
                }
                if !unseen.is_empty() {
                    let unseen = list(unseen.iter().map(u32::to_string));
                    write!(f, "; the files of these ranks are not here: {unseen}")?;
                }
            }
        }
        Ok(())
    }
}

impl Hang {
    /// What is worth knowing beside it, a line each.
    pub(super) fn details(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let several = self.missing.iter().filter(|_| self.missing.len() > 1).take(LISTED);
        lines.extend(several.map(|it| format!("rank {}: {}", it.rank, it.last)));
        let waits =
            self.missing.iter().filter_map(|it| Some(format!("rank {} waits in {}", it.rank, it.waits.as_ref()?)));
        lines.extend(waits.take(LISTED));
        lines.extend(self.notes.iter().cloned());
        if self.is_call {
            lines.push("the hosts wait inside the call, as when NCCL connects ranks for the first time".to_owned());
        }
        match self.behind {
            0 => {}
            1 => lines.push("1 operation of its communicator waits behind it".to_owned()),
            many => lines.push(format!("{many} operations of its communicator wait behind it")),
        }
        lines
    }
}

/// `1, 2, 5 and 3 more`
fn list(words: impl ExactSizeIterator<Item = String>) -> String {
    let more = words.len().saturating_sub(LISTED);
    let text = words.take(LISTED).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}
