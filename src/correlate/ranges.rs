//! NVTX ranges, whose begin and end CUPTI reports separately.

use super::bounded::Bounded;
use crate::model::activity::{Edge, Marker};
use crate::model::time::HostNs;

/// Ranges that are open at a time; a program that never ends its ranges must not use ever more
/// memory.
const OPEN: usize = 16 << 10;

/// The ranges that have begun.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    open: Bounded<u32, Marker>,
    /// Begins without an end, and ends without a begin.
    unpaired: u64,
}

impl Ranges {
    /// Takes a marker. Returns what is complete now: a range with its end, or a mark.
    pub(super) fn push(&mut self, marker: Marker) -> Option<(Marker, Option<HostNs>)> {
        match marker.edge {
            Edge::Mark => Some((marker, None)),
            Edge::Begin => {
                let before = self.open.remove(&marker.id);
                let forgotten = self.open.insert(marker.id, marker, OPEN);
                self.unpaired += u64::from(before.is_some()) + u64::from(forgotten.is_some());
                None
            }
            Edge::End => {
                let begin = self.open.remove(&marker.id);
                self.unpaired += u64::from(begin.is_none());
                begin.map(|begin| {
                    let end = marker.time.max(begin.time);
                    (begin, Some(end))
                })
            }
        }
    }

    /// The ranges that have not ended, oldest first.
    pub(super) fn finish(&mut self) -> Vec<Marker> {
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_values().collect();
        open.sort_by_key(|marker| marker.time);
        self.unpaired += open.len() as u64;
        open
    }

    pub(super) fn unpaired(&self) -> u64 {
        self.unpaired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker(id: u32, time: u64, edge: Edge) -> Marker {
        let (name, thread) = (format!("range {id}").into(), "".into());
        Marker { time: HostNs(time), error_ns: 0, id, edge, tid: None, thread, name, domain: None }
    }

    #[test]
    fn begins_and_ends_are_paired_by_id() {
        let mut ranges = Ranges::default();
        let mut push = |id, time, edge| ranges.push(marker(id, time, edge)).map(|(begin, end)| (begin.id, end));
        assert_eq!(push(1, 10, Edge::Begin), None);
        assert_eq!(push(2, 20, Edge::Begin), None);
        assert_eq!(push(3, 25, Edge::Mark), Some((3, None)));
        assert_eq!(push(1, 30, Edge::End), Some((1, Some(HostNs(30)))));
        assert_eq!(push(1, 31, Edge::End), None, "ended already");
        assert_eq!(push(4, 40, Edge::Begin), None);
        // With a step of the clock in between.
        assert_eq!(push(4, 39, Edge::End), Some((4, Some(HostNs(40)))));
        assert_eq!(push(5, 15, Edge::Begin), None);
        assert_eq!(ranges.unpaired(), 1);
        let open: Vec<_> = ranges.finish().iter().map(|marker| marker.id).collect();
        assert_eq!((open, ranges.unpaired()), (vec![5, 2], 3));
    }

    #[test]
    fn memory_is_bounded() {
        let mut ranges = Ranges::default();
        for id in 0..40_000 {
            ranges.push(marker(id, u64::from(id), Edge::Begin));
        }
        assert_eq!(ranges.unpaired(), 40_000 - OPEN as u64);
        assert_eq!((ranges.finish().len(), ranges.unpaired()), (OPEN, 40_000));
    }
}
