//! What is worse than being slow.

use std::fmt;

use super::differing::{self, Differing};
use super::hang::{self, Hang, Idle};
use super::mismatch::{self, Mismatch};
use super::running::Gone;
use super::shared_gpus::{self, SharedGpu};
use super::survey::Survey;

/// What keeps a job from going on, or has done so, as far as its traces show.
#[derive(Default)]
pub(super) struct Troubles {
    /// What the ranks do not agree on, that of earlier attempts last.
    pub(super) mismatches: Vec<Mismatch>,
    /// Where the job hangs or hung, what is over last.
    pub(super) hangs: Vec<Hang>,
    /// Nothing was asked of NCCL for a long time.
    pub(super) idle: Option<Idle>,
    /// The processes that ended before the others.
    pub(super) ended_first: Vec<Gone>,
    /// The GPUs that several ranks share.
    pub(super) shared_gpus: Vec<SharedGpu>,
    /// The settings that only some of the ranks have.
    pub(super) differing: Vec<Differing>,
}

/// What keeps a job from going on.
pub(super) enum Stuck<'a> {
    Mismatch(&'a Mismatch),
    Hang(&'a Hang),
}

impl fmt::Display for Stuck<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stuck::Mismatch(mismatch) => write!(f, "{}: {mismatch}", mismatch.what.kind()),
            Stuck::Hang(hang) => write!(f, "the job hangs: {hang}"),
        }
    }
}

impl Troubles {
    /// What these traces show.
    pub(super) fn of(survey: &Survey) -> Troubles {
        let (mismatches, hangs) = (mismatch::find(survey), hang::find(survey));
        let ended_first = hang::ended_first(survey, &hangs);
        let is_stuck = mismatches.iter().any(|it| !it.is_again)
            || !ended_first.is_empty()
            || hangs.iter().any(|hang| !hang.is_over());
        let idle = if is_stuck { None } else { hang::idle(survey) };
        let (shared_gpus, differing) = (shared_gpus::find(survey), differing::find(survey));
        Troubles { mismatches, hangs, idle, ended_first, shared_gpus, differing }
    }

    /// What certainly keeps the job from going on. A mismatch explains a hang.
    pub(super) fn stuck(&self) -> Option<Stuck<'_>> {
        let hang = || self.standing().find(|hang| hang.is_certain).map(Stuck::Hang);
        self.mismatches.first().filter(|it| !it.is_again).map(Stuck::Mismatch).or_else(hang)
    }

    /// The hangs that the job did not go on after.
    pub(super) fn standing(&self) -> impl Iterator<Item = &Hang> {
        self.hangs.iter().filter(|hang| !hang.is_over())
    }
}
