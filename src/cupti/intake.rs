//! Processes what CUPTI returned (pure): clock readings, records, losses.
//!
//! [`super::Reader`] gets them from the process; everything that it passes on is a plain value, so
//! a capture of these values can be processed again.

use cupti_sys::records::Walker;

use super::Note;
use super::absent::error_name;
use super::clock::{Change, CuptiClock, Reading};
use super::decode::{Asked, Counts, Decoder, Outside, Times};
use crate::model::activity::Activity;
use crate::model::time::HostNs;
use crate::releases::{self, FaultId};
use crate::trace::names;
use crate::trace::words::remark;

/// The CUPTI that the records come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The result of `cuptiGetVersion`.
    pub version: u32,
    /// The records requested from it, besides kernels.
    pub asked: Asked,
    /// Its own failures that CUPTI had reported before.
    pub failures: u64,
}

/// Counts about CUPTI and its buffers, all from the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Records that CUPTI says it dropped.
    pub dropped: u64,
    /// Buffers whose content was lost because no other buffer was free.
    pub discarded_buffers: u64,
    /// Bytes in these buffers.
    pub discarded_bytes: u64,
    /// Requests for a buffer that got none at all.
    pub refused_requests: u64,
    /// Returned buffers that were not ours.
    pub foreign_buffers: u64,
    /// Flushes that failed.
    pub failed_flushes: u64,
    /// The `CUptiResult` of the last failed flush.
    pub flush_failure: u32,
    /// Flushes that took longer than a caller waited.
    pub overdue: u64,
    /// Failures that CUPTI reported of itself.
    pub failures: u64,
    /// How many of these failures were fatal, up to the last one after which CUPTI was not taken
    /// again at once.
    pub fatal: u64,
    /// The `CUptiResult` of the last of these failures.
    pub last_failure: u32,
}

/// Decodes the records and reports what goes wrong.
pub struct Intake {
    clock: CuptiClock,
    decoder: Decoder,
    standing: Standing,
    /// The result of CUPTI's `cuptiGetVersion`.
    version: u32,
    notes: Vec<Note>,
    /// What has already been reported.
    said: Said,
}

#[derive(Default)]
struct Said {
    foreign: bool,
    latched: bool,
    discarded: bool,
    unreadable: bool,
    failures: u64,
    failed_flushes: bool,
    overdue: u64,
}

impl Intake {
    /// An intake for the records of this CUPTI.
    #[must_use]
    pub fn new(source: Source) -> Intake {
        Intake {
            clock: CuptiClock::default(),
            decoder: Decoder::new(source.version, source.asked),
            standing: Standing { failures: source.failures, ..Standing::default() },
            version: source.version,
            notes: Vec::new(),
            said: Said { failures: source.failures, ..Said::default() },
        }
    }

    /// From now on records of calls are requested for the external ids that come with them.
    pub fn expect_external_ids(&mut self) {
        self.decoder.carries_ids = true;
    }

    /// Takes a reading of the clocks.
    pub fn learn(&mut self, reading: &Reading) {
        let Some(change) = self.clock.add(reading) else { return };
        let (text, aloud) = match change {
            Change::Stepped(by) => {
                let (way, by) = (if by < 0 { "back" } else { "forward" }, names::duration(by.unsigned_abs() as f64));
                let text = format!(
                    "the wall clock was set {way} by {by}; GPU times around this moment are uncertain by as much"
                );
                (text, false)
            }
            Change::Foreign => {
                let text = "CUPTI's time is not the wall clock: another tool in the process gave it another clock. \
                            GPU times are converted by measuring that clock";
                (text.into(), !std::mem::replace(&mut self.said.foreign, true))
            }
            Change::Wall => ("CUPTI's time is the wall clock again".into(), false),
            Change::Boottime => ("CUPTI's time is CLOCK_BOOTTIME now".into(), false),
        };
        self.notes.push(Note { name: remark::CUPTI_CLOCK, text, aloud });
    }

    /// Whether times up to `until` can be converted as precisely as they ever will be.
    #[must_use]
    pub fn covers(&self, until: HostNs) -> bool {
        self.clock.covers(until)
    }

    /// Decodes a buffer in which nothing is later than `now`.
    pub fn decode(
        &mut self,
        now: HostNs,
        bytes: &[u8],
        walker: impl Walker,
        outside: &mut impl Outside,
        sink: &mut dyn FnMut(Activity),
    ) {
        let times = Times { clock: &self.clock, now };
        self.decoder.decode(bytes, walker, outside, times, sink);
        let Counts { unreadable, misshapen, .. } = self.decoder.counts;
        if unreadable + misshapen > 0 && !std::mem::replace(&mut self.said.unreadable, true) {
            let text = "CUPTI returned something that is no record of its release: of an unknown kind, too short or cut \
                 off. What cannot be read is lost, and the trace says how much";
            self.notes.push(Note { name: remark::DISCARDED, text: text.into(), aloud: true });
        }
        if self.clock.is_latched() && !std::mem::replace(&mut self.said.latched, true) {
            let mut text = String::from(
                "CUPTI keeps the wall clock for GPU times, though it was given CLOCK_BOOTTIME and reports using \
                 it. These times are read as wall-clock times; NCCLSCOPE_CUPTI_CLOCK=wall leaves it the wall clock",
            );
            if let Some(fault) = releases::cupti_fault(self.version, FaultId::LatchedClock) {
                text.push_str(&format!(". A known fault of this release: {} ({})", fault.what, fault.source));
            }
            self.notes.push(Note { name: remark::CUPTI_CLOCK, text, aloud: true });
        }
    }

    /// Takes the current counts. What goes wrong is reported once.
    pub fn stands(&mut self, now: Standing, sink: &mut dyn FnMut(Activity)) {
        if now.dropped > self.standing.dropped {
            sink(Activity::Dropped(now.dropped - self.standing.dropped));
        }
        self.standing = now;
        if now.discarded_buffers > 0 || now.refused_requests > 0 {
            let text = "kernel records are being discarded: CUPTI returns them faster than they can be recorded. The \
                 trace says how many";
            if !std::mem::replace(&mut self.said.discarded, true) {
                self.notes.push(Note { name: remark::DISCARDED, text: text.into(), aloud: true });
            }
        }
        if now.failures > self.said.failures {
            let aloud = self.said.failures == 0;
            self.said.failures = now.failures;
            let end = match now.fatal {
                0 => "",
                _ => "; there will be no more kernels, unless ncclscope_acquire takes CUPTI again",
            };
            let text = format!("CUPTI reports a failure of its own: {}{end}", error_name(now.last_failure));
            self.notes.push(Note { name: remark::CUPTI_FAILURE, text, aloud });
        }
        if now.failed_flushes > 0 && !std::mem::replace(&mut self.said.failed_flushes, true) {
            let text = format!("CUPTI refuses to return its records: {}", error_name(now.flush_failure));
            self.notes.push(Note { name: remark::CUPTI_FAILURE, text, aloud: false });
        }
        if now.overdue > self.said.overdue {
            let aloud = self.said.overdue == 0;
            self.said.overdue = now.overdue;
            let text = "CUPTI does not return its records in time: the last kernels may be missing";
            self.notes.push(Note { name: remark::KERNELS_LATE, text: text.into(), aloud });
        }
    }

    /// Buffers whose records were lost so far, wholly or in part.
    #[must_use]
    pub fn lost_buffers(&self) -> u64 {
        let Standing { discarded_buffers, refused_requests, .. } = self.standing;
        discarded_buffers + refused_requests + self.decoder.counts.unreadable
    }

    /// Whether records may be missing: lost so far, or in a buffer of another tool's, into which
    /// CUPTI may go on writing once it is ours.
    #[must_use]
    pub fn may_miss_records(&self) -> bool {
        let Standing { dropped, foreign_buffers, .. } = self.standing;
        self.lost_buffers() > 0 || dropped > 0 || foreign_buffers > 0
    }

    /// What was decoded so far, and CUPTI's last known standing.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (Counts, Standing) {
        (self.decoder.counts, self.standing)
    }

    /// Remarks for the trace since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }
}
