//! What CUPTI returned, handed over to its decoder.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cupti_sys::records::{Library, Own, Walker};

use super::buffers::Taken;
use super::clock::Reading;
use super::decode::{Outside, Process};
use super::flush::{self, Desk, ENDS};
use super::intake::{Source, Standing};
use super::shared::Shared;
use super::{Change, GivenUp};
use crate::model::time::HostNs;
use crate::sys;

/// The longest time that a completed buffer waits for the next reading of the clocks, in ns.
const PATIENCE_NS: u64 = 5_000_000_000;

/// What CUPTI returns, for the one thread that drains it.
pub struct Reader {
    pub(super) shared: &'static Shared,
    pub(super) desk: Arc<Desk>,
    pub(super) source: Source,
    pub(super) process: Process,
    /// Completed, but not handed over yet.
    pub(super) pending: Vec<Taken>,
    /// How many forced flushes were reported.
    pub(super) forced: u64,
    /// The last buffer was returned while CUPTI was given up.
    pub(super) gives_up: bool,
    /// The fatal failures that were reported.
    pub(super) fatal: u64,
}

/// Takes what a [`Reader`] hands over: an [`super::intake::Intake`], and whatever else keeps it.
pub trait Taker {
    /// A reading of the clocks.
    fn reading(&mut self, reading: &Reading);
    /// Whether times up to `until` can be converted as well as they ever will be.
    fn covers(&self, until: HostNs) -> bool;
    /// A buffer that contains nothing later than `now`.
    fn buffer(&mut self, now: HostNs, bytes: &[u8], walker: impl Walker, outside: &mut impl Outside);
    /// Whether CUPTI was being given up or taken over when it returned the next buffer, at this
    /// time: that one may contain kernels that have not ended.
    fn gives_up(&mut self, time: HostNs, gives_up: bool);
    /// What was lost so far; called after the buffers.
    fn stands(&mut self, standing: Standing);
}

impl Reader {
    /// The shape of its records.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// Hands over what CUPTI has returned since the last call. If CUPTI has a foreign clock, a
    /// buffer is held until there is a later reading of that clock. Once CUPTI is given up,
    /// everything is handed over at once: its next owner may finalize it, and with it the names of
    /// kernels.
    pub fn drain(&mut self, taker: &mut impl Taker) {
        let is_over = self.desk.has_ended();
        self.drain_until(taker, |taker, now, at| is_over || taker.covers(at) || now.since(at) > PATIENCE_NS);
    }

    /// Asks for one forced flush: CUPTI then also returns records of kernels that have not ended,
    /// and never returns them again.
    pub fn force(&self) {
        self.desk.force();
    }

    /// Takes back that request, if the flush has not begun. Whether [`Reader::take_forced`] will
    /// still tell of one.
    pub fn leave(&self) -> bool {
        self.desk.leave() > self.forced
    }

    /// When a forced flush began, the first time this is called after the flush. Its buffers are
    /// those of the next [`Reader::drain`].
    pub fn take_forced(&mut self) -> Option<HostNs> {
        let (forced, at) = self.desk.forced();
        (std::mem::replace(&mut self.forced, forced) < forced).then_some(at)
    }

    /// When CUPTI was given up since the last call, in order.
    pub(crate) fn take_given_up(&self) -> [Option<GivenUp>; ENDS] {
        self.desk.take_given_up()
    }

    /// Whether CUPTI fell silent or spoke again since the last call. Call it after taking what
    /// CUPTI returned.
    pub fn take_change(&self) -> Option<Change> {
        let contact = &self.shared.contact;
        self.desk.change(contact, || contact.beyond(self.shared.pool.room()))
    }

    /// Like [`Reader::drain`], for the last time: nothing waits for anything.
    pub fn finish(&mut self, taker: &mut impl Taker) {
        self.drain_until(taker, |_, _, _| true);
    }

    fn drain_until<T: Taker>(&mut self, taker: &mut T, is_ready: impl Fn(&T, HostNs, HostNs) -> bool) {
        // While buffers are read, their subscriber stays: CUPTI follows its handle.
        let (is_over, subscriber) = (self.desk.has_ended(), self.desk.subscriber());
        // Before the clocks are read: what is returned later may have times after a step of the
        // wall clock that no reading shows yet.
        let began = HostNs(sys::boottime_ns());
        self.shared.pool.take(&mut self.pending);
        for reading in self.desk.take_readings() {
            taker.reading(&reading);
        }
        // The wall clock may have been set since CUPTI was flushed.
        taker.reading(&flush::read_host());
        let now = HostNs(sys::boottime_ns());
        // After that, what is returned by the end comes after its mark.
        let emptied = self.desk.emptied();
        let ready = self.pending.iter().take_while(|taken| is_ready(taker, now, HostNs(taken.at))).count();
        for taken in self.pending.drain(..ready) {
            let gives_up = emptied.iter().any(|span| span.contains(&HostNs(taken.at)));
            if std::mem::replace(&mut self.gives_up, gives_up) || gives_up {
                taker.gives_up(HostNs(taken.at), gives_up);
            }
            // SAFETY: CUPTI returned this buffer, and keeps the names in it.
            let mut outside = unsafe { self.process.asked() };
            let bytes = self.shared.pool.bytes(&taken);
            match subscriber.as_ref().filter(|subscriber| subscriber.has_returned(HostNs(taken.at))) {
                Some(subscriber) => taker.buffer(now, bytes, subscriber.walker(), &mut outside),
                // Returned after we had unsubscribed.
                None if self.shared.shares.load(Ordering::Relaxed) => taker.buffer(now, bytes, Own, &mut outside),
                None => {
                    // SAFETY: the library stays mapped, and it answered in this process.
                    let walker = unsafe { Library::new(self.shared.api.cuptiActivityGetNextRecord) };
                    taker.buffer(now, bytes, walker, &mut outside);
                }
            }
            self.shared.pool.give_back(taken);
        }
        let unread = self.pending.first().map(|taken| HostNs(taken.at));
        self.desk.read_up_to(unread.map_or(began, |unread| unread.min(began)));
        if let Some(subscriber) = subscriber.filter(|_| is_over && self.pending.is_empty()) {
            self.desk.let_go(&subscriber);
        }
        let standing = self.standing();
        taker.stands(standing);
    }

    fn standing(&mut self) -> Standing {
        let (shared, desk, pool) = (self.shared, &self.desk, self.shared.pool.lost());
        let fatal = shared.fatal.load(Ordering::Relaxed);
        if fatal > desk.detached() {
            self.fatal = fatal;
        }
        Standing {
            dropped: desk.dropped.load(Ordering::Relaxed),
            discarded_buffers: pool.buffers,
            discarded_bytes: pool.bytes,
            refused_requests: pool.refused,
            foreign_buffers: pool.foreign,
            failed_flushes: desk.failed.load(Ordering::Relaxed),
            flush_failure: desk.last_failure.load(Ordering::Relaxed),
            overdue: desk.overdue.load(Ordering::Relaxed),
            failures: shared.failures.load(Ordering::Relaxed),
            fatal: self.fatal,
            last_failure: shared.last_failure.load(Ordering::Relaxed),
        }
    }
}
