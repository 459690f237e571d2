//! Whether CUPTI still gives us what it records.
//!
//! A subscription does not say so: who registers functions for buffers last gets all of them, whoever subscribed, and anybody may
//! disable kernels (Kineto does both since August 2026, pytorch/kineto 7a3ba363). Launches go on to be told to us then, and nothing comes of
//! them. So these are counted between one *contact* and the next: CUPTI asks for a buffer, or returns one.
//!
//! ```text
//!   contact   launch launch launch ...   contact      each launch has a record in a buffer of ours, and these are full one day
//!   contact   launch launch launch ... launch         more than they hold: the records are elsewhere, or nowhere
//!   contact   launch   [flush by force]               what returns everything returns nothing: likewise
//! ```

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Silence;
use crate::model::time::HostNs;

/// Launches beyond those that find room in the buffers that CUPTI has, before it counts as silent: it may begin a record later than
/// the launch, when the GPU gets to it, and some thousands of launches queue there.
const MARGIN: u64 = 4096;

/// What was launched and heard, from the first subscription to the end of the process. Its counters may be a few launches off
/// from each other.
#[derive(Default)]
pub(super) struct Contact {
    /// Launches that began, and those that were made: ended well, and not for a graph.
    begun: AtomicU64,
    made: AtomicU64,
    /// Whether a kernel ever became a node of a graph: what launches graphs counts from then on.
    has_nodes: AtomicU64,
    /// The same at the last contact, when that was in ns of `CLOCK_BOOTTIME`, and how many there were.
    heard_begun: AtomicU64,
    heard_made: AtomicU64,
    heard_at: AtomicU64,
    contacts: AtomicU64,
}

/// Launches since the last contact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unheard {
    pub(super) launches: u64,
    /// When that contact was.
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
    /// A launch of a kernel begins.
    pub(super) fn begins(&self) {
        self.begun.fetch_add(1, Relaxed);
    }

    /// It has ended, and well.
    pub(super) fn made(&self) {
        self.made.fetch_add(1, Relaxed);
    }

    /// A graph has been launched, and well.
    pub(super) fn graph_made(&self) {
        if self.has_nodes.load(Relaxed) != 0 {
            self.begins();
            self.made();
        }
    }

    /// A node of a graph was made: what launched it, if anything, launched no kernel.
    pub(super) fn captured(&self) {
        self.made.fetch_sub(1, Relaxed);
        self.has_nodes.store(1, Relaxed);
    }

    /// CUPTI asks for a buffer, or returns one.
    pub(super) fn heard(&self, at: u64) {
        self.begin_anew(at);
        self.contacts.fetch_add(1, Relaxed);
    }

    /// What was launched before is of no interest any more.
    pub(super) fn begin_anew(&self, at: u64) {
        self.heard_begun.store(self.begun.load(Relaxed), Relaxed);
        self.heard_made.store(self.made.load(Relaxed), Relaxed);
        self.heard_at.store(at, Relaxed);
    }

    /// What was launched since the last contact: neither what began before it, nor what has not ended.
    pub(super) fn unheard(&self) -> Unheard {
        let since = |count: &AtomicU64, heard: &AtomicU64| count.load(Relaxed).wrapping_sub(heard.load(Relaxed)) as i64;
        let (begun, made) = (since(&self.begun, &self.heard_begun), since(&self.made, &self.heard_made));
        Unheard {
            launches: begun.min(made).max(0) as u64,
            since: HostNs(self.heard_at.load(Relaxed)),
            contact: self.contacts.load(Relaxed),
        }
    }

    /// Whether there was no contact since then.
    pub(super) fn is_still(&self, then: &Unheard) -> bool {
        self.contacts.load(Relaxed) == then.contact
    }

    /// What was launched without finding room in buffers of so many records.
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
    fn what_has_a_record_counts_and_only_since_the_last_contact() {
        let contact = Contact::default();
        let unheard = |contact: &Contact| contact.unheard().launches;
        (0..3).for_each(|_| launch(&contact));
        assert_eq!(unheard(&contact), 3);
        // One that failed, one that is under way, and one for a graph.
        contact.begins();
        contact.begins();
        contact.begins();
        contact.captured();
        contact.made();
        assert_eq!(unheard(&contact), 3);
        contact.heard(7);
        assert_eq!(contact.unheard(), Unheard { launches: 0, since: HostNs(7), contact: 1 });
        // What was under way ends: its record may have been in what was returned.
        contact.made();
        assert_eq!(unheard(&contact), 0);
        launch(&contact);
        assert_eq!(unheard(&contact), 1);
        contact.begin_anew(8);
        assert_eq!(contact.unheard(), Unheard { launches: 0, since: HostNs(8), contact: 1 });
        // More nodes than launches: a graph that was made by hand.
        (0..9).for_each(|_| contact.captured());
        assert_eq!(unheard(&contact), 0);
        contact.heard(9);
        contact.graph_made();
        assert_eq!(unheard(&contact), 1);
    }

    #[test]
    fn graphs_count_where_kernels_are_nodes() {
        let contact = Contact::default();
        contact.graph_made();
        assert_eq!(contact.unheard().launches, 0);
    }

    #[test]
    fn what_buffers_may_hold_proves_nothing() {
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
