//! Whether the ranks of a job ask nothing of NCCL at its end (pure).
//!
//! A job may stand still outside of NCCL's operations: while a communicator is made, in its input,
//! in a checkpoint. NCCL reports nothing of that. But that nobody waits in an operation is an
//! answer, too.

use std::fmt;

use super::BEYOND;
use super::job::Job;
use crate::cli::survey::Process;

/// No shorter pause is worth a word, ns.
const IDLE_NS: u64 = 10_000_000_000;

/// A job whose ranks have handed over nothing for a long time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Idle {
    /// How long, ns.
    pub(in crate::cli) since_ns: u64,
    /// What was handed over last, as in `AllReduce 1 MiB f32, seq 9 on world`.
    last: String,
    /// That, and all before it, is known to have ended.
    has_ended: bool,
    /// The files of some ranks are not here.
    is_partial: bool,
}

impl Job {
    /// Whether all ranks are alive, and none has handed over anything for far longer than it ever
    /// paused, nor does its GPU work on anything else.
    pub(super) fn idle(&self) -> Option<Idle> {
        let mut newest: Option<(u64, String)> = None;
        let mut has_ended = true;
        for (index, member) in self.members.iter().enumerate() {
            let process = self.processes.get(&member.process)?;
            let is_alive = |it: &Process| it.ended.is_none() && it.silence_ns.is_some() && !self.is_cut(index);
            // Replays are not handed over, and may be known by their kernels only.
            if !is_alive(process) || process.is_lossy || process.captures && !member.has_runs {
                return None;
            }
            // What is captured in graphs shares a number, so that number does not show what ran
            // last.
            has_ended &= !process.captures && (member.has_ended || member.last.is_none());
            let (Some(moved), Some((name, time))) = (member.moved, &member.last) else { continue };
            let age = self.age(index, moved);
            let works = self.kernels.get(&member.process).is_some_and(|last| self.age(index, *last) < IDLE_NS);
            if works || age < IDLE_NS.max(member.gap_ns.saturating_mul(BEYOND)) {
                return None;
            }
            if newest.as_ref().is_none_or(|(least, _)| age < *least) {
                let seq = member.collective.as_ref().filter(|(_, at)| at == time).map(|(it, _)| it.seq);
                let seq = seq.map_or_else(String::new, |seq| format!(", seq {seq}"));
                newest = Some((age, format!("{name}{seq} on {}", member.label)));
            }
        }
        let is_partial = self.ranks.iter().any(|(hash, ranks)| self.of_comm(*hash).count() < *ranks as usize);
        newest.map(|(since_ns, last)| Idle { since_ns, last, has_ended, is_partial })
    }
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Idle { since_ns, last, has_ended, is_partial } = self;
        let seconds = *since_ns as f64 / 1e9;
        let ended = if *has_ended { ", and has ended" } else { "" };
        let who = if *is_partial { "none of these ranks" } else { "no rank" };
        write!(f, "{who} has handed over an operation for {seconds:.1} s; the last was {last}{ended}")
    }
}

impl Idle {
    /// What to look for, in lines.
    pub(in crate::cli) fn details(&self) -> Vec<String> {
        let so = match self.has_ended {
            true => "so the job does something else, or waits elsewhere",
            false => "whether that has ended is not known; the job may wait in it, or elsewhere",
        };
        let others =
            self.is_partial.then(|| "the files of other ranks are not here: they may wait for these".to_owned());
        others.into_iter().chain([format!("{so}: in ncclCommInitRank, in its input, in a checkpoint")]).collect()
    }
}
