//! Whether CUPTI still gives us its records.
//!
//! A subscription does not say so: the last tool that registers functions for buffers gets all of
//! them, whoever subscribed, and any tool may disable kernels (Kineto does both since August 2026,
//! pytorch/kineto 7a3ba363). CUPTI then still calls back at launches, but no records of them
//! arrive. So launches are counted between one *contact* and the next. A contact is CUPTI's request
//! for a buffer, or its return of one.
//!
//! ```text
//! contact  launch launch launch ...  contact   each launch has a record in our buffers
//! contact  launch launch launch ... launch     more than they hold: no records of them come to us
//! contact  launch   [forced flush]             a flush of everything returns nothing: the same
//! ```

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Silence;
use crate::model::time::HostNs;

/// Launches beyond those that CUPTI's buffers have room for, before CUPTI counts as silent. CUPTI
/// may start a record later than the launch, when the GPU gets to it, and some thousands of
/// launches can queue there.
const MARGIN: u64 = 4096;
/// Contacts in which threads begin, rather than fill buffers.
const FIRST: u64 = 8;

/// Launches and contacts, from the first subscription to the end of the process. The counters may
/// be a few launches apart.
#[derive(Default)]
pub(super) struct Contact {
    /// Launches that began, and those that were made: they returned success and did not only add to
    /// a graph.
    begun: AtomicU64,
    made: AtomicU64,
    /// Whether a kernel has ever become a graph node: from then on graph launches count too.
    has_nodes: AtomicU64,
    /// Both counters at the last contact, its time in ns of `CLOCK_BOOTTIME`, and the number of
    /// contacts.
    heard_begun: AtomicU64,
    heard_made: AtomicU64,
    heard_at: AtomicU64,
    contacts: AtomicU64,
}

/// Launches since the last contact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unheard {
    pub(super) launches: u64,
    /// The time of that contact.
    pub(super) since: HostNs,
    /// Its number.
    pub(super) contact: u64,
}

impl From<Unheard> for Silence {
    fn from(Unheard { launches, since, .. }: Unheard) -> Silence {
        Silence { since, launches }
    }
}

impl Contact {
    /// A kernel launch begins.
    pub(super) fn begins(&self) {
        self.begun.fetch_add(1, Relaxed);
    }

    /// Whether there were so few contacts that there need not have been a launch: each thread that
    /// makes a context or a stream requests a buffer.
    pub(super) fn is_new(&self) -> bool {
        self.contacts.load(Relaxed) < FIRST
    }

    /// Whether CUPTI calls back at launches, as far as is known.
    pub(super) fn sees_launches(&self) -> bool {
        self.begun.load(Relaxed) > 0
    }

    /// The launch has ended with success.
    pub(super) fn made(&self) {
        self.made.fetch_add(1, Relaxed);
    }

    /// A graph launch has ended with success.
    pub(super) fn graph_made(&self) {
        if self.has_nodes.load(Relaxed) != 0 {
            self.begins();
            self.made();
        }
    }

    /// A kernel became a graph node: the launch that created it, if any, launched no kernel.
    pub(super) fn captured(&self) {
        self.made.fetch_sub(1, Relaxed);
        self.has_nodes.store(1, Relaxed);
    }

    /// A contact: CUPTI requests a buffer or returns one.
    pub(super) fn heard(&self, at: u64) {
        self.begin_anew(at);
        self.contacts.fetch_add(1, Relaxed);
    }

    /// Earlier launches no longer count.
    pub(super) fn begin_anew(&self, at: u64) {
        self.heard_begun.store(self.begun.load(Relaxed), Relaxed);
        self.heard_made.store(self.made.load(Relaxed), Relaxed);
        self.heard_at.store(at, Relaxed);
    }

    /// The launches since the last contact, without those that began before it and those that have
    /// not ended.
    pub(super) fn unheard(&self) -> Unheard {
        let since = |count: &AtomicU64, heard: &AtomicU64| count.load(Relaxed).wrapping_sub(heard.load(Relaxed)) as i64;
        let (begun, made) = (since(&self.begun, &self.heard_begun), since(&self.made, &self.heard_made));
        Unheard {
            launches: begun.min(made).max(0) as u64,
            since: HostNs(self.heard_at.load(Relaxed)),
            contact: self.contacts.load(Relaxed),
        }
    }

    /// Whether there has been no contact since `then`.
    pub(super) fn is_still(&self, then: &Unheard) -> bool {
        self.contacts.load(Relaxed) == then.contact
    }

    /// The launches since the last contact, if they are too many for buffers with room for this
    /// many records.
    pub(super) fn beyond(&self, room: u64) -> Option<Unheard> {
        Some(self.unheard()).filter(|unheard| unheard.launches > room + MARGIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(contact: &Contact) {
        contact.begins();
        contact.made();
    }

    #[test]
    fn only_recordable_launches_since_the_last_contact_count() {
        let contact = Contact::default();
        let unheard = |contact: &Contact| contact.unheard().launches;
        (0..3).for_each(|_| launch(&contact));
        assert_eq!(unheard(&contact), 3);
        // One that fails, one under way, and one captured into a graph.
        contact.begins();
        contact.begins();
        contact.begins();
        contact.captured();
        contact.made();
        assert_eq!(unheard(&contact), 3);
        contact.heard(7);
        assert_eq!(contact.unheard(), Unheard { launches: 0, since: HostNs(7), contact: 1 });
        // The launch under way ends: what was returned may include its record.
        contact.made();
        assert_eq!(unheard(&contact), 0);
        launch(&contact);
        assert_eq!(unheard(&contact), 1);
        contact.begin_anew(8);
        assert_eq!(contact.unheard(), Unheard { launches: 0, since: HostNs(8), contact: 1 });
        // More nodes than launches: a graph built by hand.
        (0..9).for_each(|_| contact.captured());
        assert_eq!(unheard(&contact), 0);
        contact.heard(9);
        contact.graph_made();
        assert_eq!(unheard(&contact), 1);
    }

    #[test]
    fn graph_launches_count_once_kernels_are_nodes() {
        let contact = Contact::default();
        contact.graph_made();
        assert_eq!(contact.unheard().launches, 0);
    }

    #[test]
    fn launches_that_fit_into_the_buffers_prove_nothing() {
        let contact = Contact::default();
        (0..100 + MARGIN).for_each(|_| launch(&contact));
        assert_eq!(contact.beyond(100), None);
        launch(&contact);
        let beyond = contact.beyond(100).unwrap();
        assert_eq!(beyond.launches, 101 + MARGIN);
        assert!(contact.is_still(&beyond));
        contact.heard(1);
        assert!(!contact.is_still(&beyond) && contact.beyond(0).is_none());
    }
}
