//! The thread that makes CUPTI return its buffers: regularly, on request, and at the end.
//!
//! A flush may block for as long as the driver likes. So nobody else flushes, one flush runs at a
//! time, and whoever waits for one has a time limit. A flush never happens in a callback and holds
//! no lock of ours.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cupti_sys::bindings as cupti;

use super::clock::{Reading, Stamp};
use super::contact::{Contact, Unheard};
use super::share::Subscriber;
use super::shared::Shared;
use super::subscription::Subscription;
use super::{Cause, Change, GivenUp, Silence};
use crate::model::time::HostNs;
use crate::{fault, sys, threads};

/// Tries for one reading; the tightest one counts.
const READING_TRIES: u32 = 3;
/// Readings kept if the collector does not take them.
const MAX_READINGS: usize = 256;
/// Times that are kept apart at which CUPTI returned everything, until its buffers were read.
const SPANS: usize = 4;
/// Ends of subscriptions that are kept until the collector takes them.
pub(super) const ENDS: usize = 8;

/// The flushing thread, as seen by the rest of the process.
pub(super) struct Flusher {
    shared: &'static Shared,
    desk: Arc<Desk>,
}

/// What the flushing thread and other threads exchange. NCCL's threads wait for the lock of the
/// state, so nobody allocates under it.
#[derive(Default)]
pub(super) struct Desk {
    state: Mutex<State>,
    wake: Condvar,
    done: Condvar,
    /// Readings of the clocks that the collector has not taken yet.
    readings: Mutex<Vec<Reading>>,
    /// The subscriber that shares CUPTI, until its buffers were read.
    subscriber: Mutex<Option<Arc<Subscriber>>>,
    /// Records that CUPTI says it dropped.
    pub(super) dropped: AtomicU64,
    /// Number of flushes that failed; the code of the last is in `last_failure`.
    pub(super) failed: AtomicU64,
    /// Flushes that took longer than a caller waited.
    pub(super) overdue: AtomicU64,
    pub(super) last_failure: AtomicU32,
}

#[derive(Default)]
struct State {
    /// Flushes requested, and done. Until the one of a caller that waited in vain is done, nobody
    /// waits.
    asked: u64,
    carried_out: u64,
    in_vain: u64,
    /// Forced flushes requested, begun, and done, and when the last one began.
    force_asked: u64,
    force_begun: u64,
    forced: u64,
    forced_at: HostNs,
    /// Requests to take back what another tool may have taken, and how many of them were done;
    /// CUPTI's answer to the last one, with the silence that it ended.
    again_asked: u64,
    taken_again: u64,
    again: Again,
    /// A silence that a forced flush has proven and that is not reported yet; the contact before
    /// the silence that was reported.
    silence: Option<Unheard>,
    silent_since: Option<u64>,
    release: bool,
    /// Giving it up because the process ends.
    process_ends: bool,
    /// When CUPTI was made to return everything, but for the requested forced flushes:
    /// subscriptions were given up, or buffers taken over. As long as buffers from then may not
    /// have been read.
    emptied: [Range<HostNs>; SPANS],
    /// Ends of subscriptions that the collector has not taken yet, in order.
    given_up: [Option<GivenUp>; ENDS],
    ended: bool,
    /// How often CUPTI had detached itself before this subscription.
    detached: u64,
}

/// CUPTI's answer, and the silence that ended, if there was one; its details only if it had not
/// been reported yet.
pub(super) type Again = (u32, Option<Option<Silence>>);

impl Flusher {
    /// Starts the thread, which owns the subscription from now on. The desk may come from an
    /// earlier thread that has ended.
    pub(super) fn start(subscription: Subscription, period: Duration, desk: Arc<Desk>) -> std::io::Result<Flusher> {
        let (shared, detached) = (subscription.shared(), subscription.detached());
        {
            let mut state = desk.lock();
            state.has_emptied();
            let (emptied, given_up) = (std::mem::take(&mut state.emptied), state.given_up);
            // The reader counts on.
            let State { forced, forced_at, .. } = *state;
            let (force_asked, force_begun) = (forced, forced);
            let counts = State { force_asked, force_begun, forced, forced_at, detached, ..State::default() };
            *state = State { emptied, given_up, ..counts };
        }
        desk.keep(Some(subscription.subscriber()).filter(|subscriber| subscriber.shares()).cloned());
        desk.note(read(subscription.subscriber()));
        let theirs = Arc::clone(&desk);
        let (shares, stops) = (subscription.subscriber().shares(), subscription.stops());
        let body = move || {
            let run = || run(subscription, period, &theirs);
            let end = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
                fault::say(format_args!("ended the collection of kernels"));
                Some((HostNs(sys::boottime_ns()), Cause::Panic))
            });
            let by = HostNs(sys::boottime_ns());
            theirs.ends(end.map(|(since, cause)| GivenUp { since, by, cause, shares, stops }));
        };
        threads::start(c"ncclscope flush", body).inspect_err(|_| {
            desk.lock().ended = true;
            desk.keep(None);
        })?;
        Ok(Flusher { shared, desk })
    }

    pub(super) fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    /// Whether the thread has the subscription, was not asked to give it up, and CUPTI has not
    /// detached itself since.
    pub(super) fn holds(&self) -> bool {
        let state = self.desk.lock();
        !state.release && !state.ended && self.shared.fatal.load(Ordering::Relaxed) == state.detached
    }

    /// Makes CUPTI return what is complete, and waits at most this long. False if that was too
    /// short, or was so for an earlier caller whose flush still goes on.
    pub(super) fn sync(&self, limit: Duration) -> bool {
        let mut state = self.desk.lock();
        state.asked += 1;
        let asked = state.asked;
        self.desk.wake.notify_all();
        if state.carried_out < state.in_vain && !state.ended {
            return false;
        }
        let in_time = self.desk.wait(state, limit, |state| state.carried_out >= asked);
        if !in_time {
            self.desk.lock().in_vain = asked;
        }
        in_time
    }

    /// Registers our buffers with CUPTI again and enables our kinds again; waits at most this long.
    /// `None` if that was too short.
    pub(super) fn again(&self, limit: Duration) -> Option<Again> {
        let mut state = self.desk.lock();
        state.again_asked += 1;
        let asked = state.again_asked;
        self.desk.wake.notify_all();
        if !self.desk.wait(state, limit, |state| state.taken_again >= asked) {
            return None;
        }
        let state = self.desk.lock();
        (state.taken_again >= asked).then_some(state.again)
    }

    /// Makes CUPTI return everything and gives up the subscription, for a while or because the
    /// process ends; waits at most this long. False if that was too short.
    pub(super) fn release(&self, process_ends: bool, limit: Duration) -> bool {
        let mut state = self.desk.lock();
        state.release = true;
        state.process_ends |= process_ends;
        self.desk.wake.notify_all();
        self.desk.wait(state, limit, |_| false)
    }
}

impl State {
    /// From now on CUPTI is made to return everything.
    fn empties(&mut self) {
        let (now, open) = (HostNs(sys::boottime_ns()), HostNs(u64::MAX));
        match self.emptied.iter_mut().find(|span| span.is_empty()) {
            Some(free) => *free = now..open,
            // Then what lies between counts, too.
            None => self.emptied.last_mut().into_iter().for_each(|last| last.end = open),
        }
    }

    /// It has returned everything.
    fn has_emptied(&mut self) {
        let now = HostNs(sys::boottime_ns());
        self.emptied.iter_mut().for_each(|span| span.end = span.end.min(now));
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a forced flush without waiting for it: CUPTI also returns what has not ended, and
    /// never returns it again. Where CUPTI is shared, nothing is forced: that would take it from
    /// the other subscribers too.
    pub(super) fn force(&self) {
        if self.subscriber().is_some() {
            return;
        }
        self.lock().force_asked += 1;
        self.wake.notify_all();
    }

    /// Forgets the requests for a forced flush that has not begun. Returns how many were begun.
    pub(super) fn leave(&self) -> u64 {
        let mut state = self.lock();
        state.force_asked = state.force_begun;
        state.force_begun
    }

    fn keep(&self, subscriber: Option<Arc<Subscriber>>) {
        // Dropped without the lock: that may unsubscribe.
        let before = {
            let mut kept = self.subscriber.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *kept, subscriber)
        };
        drop(before);
    }

    /// The subscriber that shares CUPTI, if there is one and not all of its buffers were read.
    pub(super) fn subscriber(&self) -> Option<Arc<Subscriber>> {
        self.subscriber.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All buffers of this subscriber, which was given up, were read.
    pub(super) fn let_go(&self, subscriber: &Arc<Subscriber>) {
        if self.subscriber().is_some_and(|kept| Arc::ptr_eq(&kept, subscriber)) {
            self.keep(None);
        }
    }

    /// How many forced flushes were done, and when the last one began.
    pub(super) fn forced(&self) -> (u64, HostNs) {
        let state = self.lock();
        (state.forced, state.forced_at)
    }

    /// Whether CUPTI has stopped or resumed giving us its records since the last call. `beyond`
    /// says how many launches our buffers have no room for, if any.
    pub(super) fn change(&self, contact: &Contact, beyond: impl FnOnce() -> Option<Unheard>) -> Option<Change> {
        let mut state = self.lock();
        if let Some(last) = state.silent_since {
            let is_over = contact.unheard().contact != last;
            state.silent_since.take_if(|_| is_over).map(|_| Change::Heard)
        } else {
            let found = state.silence.take().filter(|found| contact.is_still(found));
            let unheard = found.or_else(beyond)?;
            state.silent_since = Some(unheard.contact);
            Some(Change::Silent(unheard.into()))
        }
    }

    /// When CUPTI was made to return everything, but for the requested forced flushes: kernels that
    /// it returned then may not have ended.
    pub(super) fn emptied(&self) -> [Range<HostNs>; SPANS] {
        self.lock().emptied.clone()
    }

    /// All buffers that CUPTI returned before this time were read.
    pub(super) fn read_up_to(&self, time: HostNs) {
        let mut state = self.lock();
        state.emptied.iter_mut().filter(|span| span.end <= time).for_each(|span| *span = Range::default());
    }

    /// The subscription has been given up; `None` because the process ends.
    fn ends(&self, given_up: Option<GivenUp>) {
        let mut state = self.lock();
        state.ended = true;
        // One that a panic has ended will not answer.
        state.force_begun = state.forced;
        if given_up.is_some() {
            // If there are too many, the last one counts: it says whether CUPTI is ours.
            let (free, last) = (state.given_up.iter().position(Option::is_none), ENDS - 1);
            state.given_up.get_mut(free.unwrap_or(last)).into_iter().for_each(|place| *place = given_up);
        }
        drop(state);
        self.done.notify_all();
    }

    /// The ends of subscriptions since the last call, in order, but for one because the process
    /// ends.
    pub(super) fn take_given_up(&self) -> [Option<GivenUp>; ENDS] {
        std::mem::take(&mut self.lock().given_up)
    }

    /// How often CUPTI had detached itself before it was taken last.
    pub(super) fn detached(&self) -> u64 {
        self.lock().detached
    }

    /// Whether the subscription has been given up.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Waits until `done`, or until the thread has ended. False if that took too long.
    fn wait(&self, state: MutexGuard<'_, State>, limit: Duration, done: impl Fn(&State) -> bool) -> bool {
        let (state, _) = self
            .done
            .wait_timeout_while(state, limit, |state| !state.ended && !done(state))
            .unwrap_or_else(PoisonError::into_inner);
        let in_time = state.ended || done(&state);
        if !in_time {
            self.overdue.fetch_add(1, Ordering::Relaxed);
        }
        in_time
    }

    fn note(&self, reading: Option<Reading>) {
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reading) = reading
            && readings.len() < MAX_READINGS
        {
            readings.push(reading);
        }
    }

    /// Whether there is a reading to take. Right after the start it says whether CUPTI tells the
    /// time.
    pub(super) fn has_readings(&self) -> bool {
        !self.readings.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The readings since the last call.
    pub(super) fn take_readings(&self) -> Vec<Reading> {
        std::mem::take(&mut *self.readings.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The body of the thread. Returns when giving up the subscription began, and why; `None` if the
/// process ends.
fn run(subscription: Subscription, period: Duration, desk: &Desk) -> Option<(HostNs, Cause)> {
    let (mut next, fatal) = (Instant::now() + period, subscription.detached());
    loop {
        let (asked, force_asked, forced, again_asked, taken_again, release, process_ends) = {
            let wanted = |state: &mut State| {
                state.release
                    || state.asked > state.carried_out
                    || state.force_asked > state.forced
                    || state.again_asked > state.taken_again
            };
            let rest = next.saturating_duration_since(Instant::now());
            let (mut state, _) = desk
                .wake
                .wait_timeout_while(desk.lock(), rest, |state| !wanted(state))
                .unwrap_or_else(PoisonError::into_inner);
            if !state.release {
                state.force_begun = state.force_asked;
            }
            let State { asked, force_asked, forced, again_asked, taken_again, release, process_ends, .. } = *state;
            (asked, force_asked, forced, again_asked, taken_again, release, process_ends)
        };
        fault::at("flush");
        let shared = subscription.shared();
        let unheard = shared.contact.unheard();
        if release {
            desk.note(read(subscription.subscriber()));
            desk.lock().empties();
            let since = HostNs(sys::boottime_ns());
            let subscriber = Arc::clone(subscription.subscriber());
            let result = subscription.end(process_ends);
            let found = desk.after_flush(shared, &subscriber, result, Some(unheard), fatal);
            desk.lock().silence = found;
            let has_failed = shared.fatal.load(Ordering::Relaxed) > fatal;
            let cause = if has_failed { Cause::Failure } else { Cause::Request };
            return (!process_ends).then_some((since, cause));
        }
        desk.note(read(subscription.subscriber()));
        let flag = if force_asked > forced { cupti::CUPTI_ACTIVITY_FLAG_FLUSH_FORCED } else { 0 };
        let began = HostNs(sys::boottime_ns());
        let subscriber = subscription.subscriber();
        let result = subscriber.flush(flag);
        let mut found = desk.after_flush(shared, subscriber, result, (force_asked > forced).then_some(unheard), fatal);
        if again_asked > taken_again {
            let was_told = desk.lock().silent_since.is_some();
            if !was_told && !subscriber.shares() && unheard.launches > 0 && shared.contact.is_still(&unheard) {
                // Whoever has the buffers gets everything in them before we take them over.
                desk.lock().empties();
                let result = subscriber.flush(cupti::CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
                desk.lock().has_emptied();
                found = desk.after_flush(shared, subscriber, result, Some(unheard), fatal);
            }
            let code = subscription.again();
            let mut state = desk.lock();
            (state.silence, state.silent_since) = (None, None);
            let silence = if was_told { Some(None) } else { found.take().map(|found| Some(found.into())) };
            (state.taken_again, state.again) = (again_asked, (code, silence));
        }
        let mut state = desk.lock();
        state.carried_out = asked;
        state.silence = found.or(state.silence);
        if force_asked > forced {
            (state.forced, state.forced_at) = (force_asked, began);
        }
        drop(state);
        desk.done.notify_all();
        next = Instant::now() + period;
    }
}

impl Desk {
    /// Takes the reading that ends a flush, and counts what CUPTI reports about it. For a forced
    /// flush, `unheard` has the launches without any record before it; they are returned if there
    /// is still no record of them. `fatal` is how often CUPTI had detached itself before.
    fn after_flush(
        &self,
        shared: &Shared,
        subscriber: &Subscriber,
        result: u32,
        unheard: Option<Unheard>,
        fatal: u64,
    ) -> Option<Unheard> {
        self.note(read(subscriber));
        let flushed = result;
        if result != cupti::CUPTI_SUCCESS {
            self.last_failure.store(result, Ordering::Relaxed);
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        let dropped = subscriber.take_dropped().unwrap_or(0);
        self.dropped.fetch_add(dropped as u64, Ordering::Relaxed);
        // A failure of CUPTI's, or records that it dropped, explain the silence and say more about
        // it.
        let is_explained =
            flushed != cupti::CUPTI_SUCCESS || dropped > 0 || shared.fatal.load(Ordering::Relaxed) > fatal;
        unheard.filter(|unheard| !is_explained && unheard.launches > 0 && shared.contact.is_still(unheard))
    }
}

/// Reads the host's clocks, without asking CUPTI.
pub(super) fn read_host() -> Reading {
    let boot_before = HostNs(sys::boottime_ns());
    let wall = sys::realtime_ns();
    let boot_after = HostNs(sys::boottime_ns());
    Reading { boot_before, wall_before: wall, cupti: None, wall_after: wall, boot_after }
}

/// Reads all clocks. `None` if CUPTI does not answer.
fn read(subscriber: &Subscriber) -> Option<Reading> {
    let bracket = || {
        let boot_before = HostNs(sys::boottime_ns());
        let wall_before = sys::realtime_ns();
        let stamp = subscriber.timestamp();
        let wall_after = sys::realtime_ns();
        let boot_after = HostNs(sys::boottime_ns());
        let cupti = stamp.map(Stamp);
        cupti.map(|_| Reading { boot_before, wall_before, cupti, wall_after, boot_after })
    };
    (0..READING_TRIES).filter_map(|_| bracket()).min_by_key(|reading| reading.boot_after.since(reading.boot_before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_every_end_count_until_they_were_read() {
        let desk = Desk::default();
        let now = || HostNs(sys::boottime_ns());
        let counts = |time: HostNs| desk.emptied().iter().any(|span| span.contains(&time));
        let times: Vec<_> = (0..2 * SPANS)
            .map(|_| {
                desk.lock().empties();
                let time = now();
                assert!(counts(time));
                std::thread::sleep(Duration::from_micros(10));
                desk.lock().has_emptied();
                time
            })
            .collect();
        assert!(times.iter().all(|&time| counts(time)) && !counts(now()));
        desk.read_up_to(times[1]);
        assert!(!counts(times[0]) && times[1..].iter().all(|&time| counts(time)));
        desk.read_up_to(now());
        assert!(!times.into_iter().any(counts));
    }
}
