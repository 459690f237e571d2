//! When records were made, and which of them are taken now.

use crate::clock::align::{Due, HostClock, Pair};
use crate::model::time::{HostNs, Ticks};
use crate::trace::names;

/// Before all records.
const NEVER: Ticks = Ticks(0);
/// No record is later than the last reading by so many ticks, which are a day or more.
const FAR: u64 = 1 << 48;

/// The host's clock, and how far it has come.
pub(super) struct Clock {
    host: HostClock,
    /// The clock before it went back, while records from then may come.
    before: Option<HostClock>,
    /// Which records are taken in this pass, up to when on the host's clock, and how long they
    /// wait, in ns.
    due: Due,
    limit: HostNs,
    window_ns: u64,
}

impl Clock {
    /// A clock with its first reading.
    pub(super) fn new(first: Pair) -> Clock {
        let due = Due { until: first.ticks, from: None };
        Clock { host: HostClock::new(first), before: None, due, limit: first.host, window_ns: 0 }
    }

    /// The host's time at the newest reading.
    pub(super) fn now(&self) -> HostNs {
        self.host.last().host
    }

    /// Which records are taken in this pass.
    pub(super) fn due(&self) -> Due {
        self.due
    }

    /// Whether records wait for another reading, because a clock has just gone back.
    pub(super) fn waits(&self) -> bool {
        self.due.until == NEVER
    }

    /// Takes a reading of both clocks. It closes a piece of the host's clock, and so determines up
    /// to when records are taken. If a clock has gone back, says so.
    pub(super) fn pass(&mut self, pair: Pair, window_ns: u64) -> Option<String> {
        let before = self.host.last();
        self.window_ns = window_ns;
        if pair.ticks < before.ticks || pair.host < before.host {
            return Some(self.go_back(pair));
        }
        self.host.add(pair);
        // The window in ticks, at the rate of the last piece: accurate enough for a waiting time.
        let host_ns = pair.host.since(before.host).max(1);
        let ticks = pair.ticks.0.saturating_sub(before.ticks.0);
        let window = (u128::from(ticks) * u128::from(window_ns) / u128::from(host_ns)) as u64;
        let until = Ticks(pair.ticks.0.saturating_sub(window));
        // Once the clock comes to the times that it had before, they cannot be told apart.
        let from = self.due.from.filter(|from| until < *from);
        if from.is_none() {
            self.before = None;
        }
        self.due = Due { until, from };
        (self.limit, _) = self.host.to_host(until);
        None
    }

    /// A clock has gone back, as when a process or a virtual machine is restored from a copy. All
    /// records from before are taken now, by the clock as it was. Newer ones wait for the reading
    /// that ends the first piece of the new one.
    #[cold]
    fn go_back(&mut self, pair: Pair) -> String {
        let last = self.host.last();
        let (whose, back, which) = if pair.host < last.host {
            ("the host's clock", last.host.since(pair.host), "Until it has caught up, times")
        } else {
            let (there, _) = self.host.to_host(pair.ticks);
            ("the recorder's clock", last.host.since(there), "Calls since the reading before")
        };
        // If only the host's clock went back, nothing tells which records are newer.
        let from = if pair.ticks < last.ticks { self.due.until } else { NEVER };
        self.limit = last.host.min(pair.host);
        self.due = Due { until: NEVER, from: Some(from) };
        self.before = Some(std::mem::replace(&mut self.host, HostClock::new(pair)));
        format!(
            "{whose} went back by {}, as when a process or a virtual machine is restored from a copy. {which} may \
             be off by as much",
            names::duration(back as f64)
        )
    }

    /// When a record was made; `None` if it is not due, or its time is impossible.
    #[inline]
    pub(super) fn time_of(&self, ticks: Ticks) -> Option<(HostNs, u32)> {
        if ticks <= self.due.until {
            return Some(self.host.to_host(ticks));
        }
        let before = self.before.as_ref().filter(|_| self.due.is_earlier(ticks))?;
        (ticks.0 < before.last().ticks.0.saturating_add(FAR)).then(|| before.to_host(ticks))
    }

    /// Up to when the correlator has all records, and may be given activities.
    pub(super) fn until(&self) -> HostNs {
        // One more window: a thread that was stopped after a launch hands its plan over long after
        // the kernel has ended.
        HostNs(self.limit.0.saturating_sub(self.window_ns))
    }
}
