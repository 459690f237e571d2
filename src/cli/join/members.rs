//! What files know together and none knows alone: which ranks of the job a communicator has.
//!
//! A process knows its own rank in the job and in each of its communicators, so that one without a name is told by its hash. Where the files of all
//! its members are joined and their ranks lie at equal distances, its tracks are named by that: `stride 8 1f2e3d4c · rank 3 of 8`.

use std::collections::{BTreeSet, HashMap};

use super::super::cut::Ranks;
use super::super::survey;
use crate::trace::fields::{trace_packet, track_descriptor};
use crate::trace::names;
use crate::trace::reader::wire::{fields, put_bytes};
use crate::trace::reader::{Nccl, Packet};
use crate::trace::words::instant;
use crate::trace::writer::TRACK_BITS;

/// What stands between the parts of a track's name.
const BETWEEN: &str = " · ";

/// The processes of several files and their communicators.
#[derive(Default)]
pub(super) struct Members {
    /// Ranks in the job, by process mark.
    ranks: HashMap<u64, u32>,
    /// Those without a name, by NCCL's hash.
    unnamed: HashMap<u64, Unnamed>,
}

#[derive(Default)]
struct Unnamed {
    size: i32,
    /// Its hosts, as NCCL counts them.
    hosts: i32,
    /// The marks of the processes that are this rank of it.
    marks: HashMap<i32, Vec<u64>>,
}

impl Members {
    /// Takes the next packet of a file.
    pub(super) fn look(&mut self, packet: &Packet<'_>) {
        if let Some(descriptor) = packet.track_descriptor()
            && let Some(process) = &descriptor.process
            && let Some(rank) = survey::rank(process.process_name())
        {
            self.ranks.insert(descriptor.uuid() >> TRACK_BITS, rank);
        }
        if let Some(event) = packet.event
            && event.name == instant::COMM_INIT
            && let Nccl { comm: Some(hash), comm_name: None, rank: Some(rank), ranks: Some(size), nodes, .. } =
                event.nccl()
        {
            let unnamed = self.unnamed.entry(hash).or_default();
            (unnamed.size, unnamed.hosts) = (size, nodes.unwrap_or_default());
            unnamed.marks.entry(rank).or_default().push(event.track >> TRACK_BITS);
        }
    }

    /// Ranks in the job that several processes are.
    pub(super) fn twice(&self) -> Ranks {
        let mut processes: HashMap<u32, usize> = HashMap::new();
        self.ranks.values().for_each(|rank| *processes.entry(*rank).or_default() += 1);
        Ranks::of(processes.into_iter().filter(|(_, count)| *count > 1).map(|(rank, _)| rank).collect())
    }

    /// What communicators are to be called that were called otherwise.
    pub(super) fn labels(&self) -> Labels {
        let mut labels = Labels::default();
        for (&hash, unnamed) in &self.unnamed {
            let Some(pattern) = self.ranks_of(unnamed).and_then(|ranks| pattern(&ranks, unnamed.hosts == 1)) else {
                continue;
            };
            let (old, new) =
                (names::unnamed_comm(hash, unnamed.hosts), format!("{pattern} {}", names::short_hash(hash)));
            for mark in unnamed.marks.values().flatten() {
                labels.0.entry(*mark).or_default().push((old.clone(), new.clone()));
            }
        }
        labels
    }

    /// The ranks in the job of a communicator's members, in its own order; none unless all are known.
    fn ranks_of(&self, unnamed: &Unnamed) -> Option<Vec<u32>> {
        let rank = |rank| match unnamed.marks.get(&rank)?[..] {
            [mark] => self.ranks.get(&mark).copied(),
            _ => None,
        };
        (0..unnamed.size).map(rank).collect()
    }
}

/// What ranks of the job have in common, where it says more than the hash does, and whether they stay on one host.
fn pattern(ranks: &[u32], is_one_host: bool) -> Option<String> {
    let &[first, second, ..] = ranks else { return None };
    let stride = second.checked_sub(first).filter(|stride| *stride > 0)?;
    if !ranks.windows(2).all(|pair| pair[0].checked_add(stride) == Some(pair[1])) {
        return None;
    }
    match stride {
        1 if is_one_host => None,
        1 => Some(format!("ranks {first}-{}", ranks[ranks.len() - 1])),
        _ => Some(format!("stride {stride}")),
    }
}

/// New labels of communicators: by process mark, the old one and the new one.
#[derive(Default)]
pub(super) struct Labels(HashMap<u64, Vec<(String, String)>>);

impl Labels {
    /// Whether any of these processes has a communicator with a new label.
    pub(super) fn concern(&self, marks: &BTreeSet<u64>) -> bool {
        marks.iter().any(|mark| self.0.contains_key(mark))
    }

    /// A packet that describes a track whose name changes.
    pub(super) fn packet(&self, packet: &[u8]) -> Option<Vec<u8>> {
        let descriptor = fields(packet).find(|field| field.number == trace_packet::TRACK_DESCRIPTOR)?.bytes();
        let part = |number| fields(descriptor).find(|field| field.number == number);
        let uuid = part(track_descriptor::UUID)?.uint();
        let name = String::from_utf8_lossy(part(track_descriptor::NAME)?.bytes()).into_owned();
        let new = self.name(uuid >> TRACK_BITS, &name)?;
        let described = replaced(descriptor, track_descriptor::NAME, new.as_bytes());
        Some(replaced(packet, trace_packet::TRACK_DESCRIPTOR, &described))
    }

    /// A track's name with a label of a communicator that has another one now: `busbw · 1f2e3d4c · rank 3 of 8`.
    fn name(&self, mark: u64, name: &str) -> Option<String> {
        let labels = self.0.get(&mark)?;
        let mut changes = false;
        let parts = name.split(BETWEEN).map(|part| {
            // One that was made several times has a number: `1f2e3d4c #2`.
            let changed = labels.iter().find_map(|(old, new)| {
                let rest = part.strip_prefix(old.as_str()).filter(|rest| rest.is_empty() || rest.starts_with(" #"))?;
                Some(format!("{new}{rest}"))
            });
            changes |= changed.is_some();
            changed.unwrap_or_else(|| part.to_owned())
        });
        let parts: Vec<_> = parts.collect();
        changes.then(|| parts.join(BETWEEN))
    }
}

/// A message with something else in one of its fields.
pub(super) fn replaced(message: &[u8], number: u32, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len() + value.len());
    for field in fields(message) {
        if field.number == number { put_bytes(&mut out, number, value) } else { out.extend_from_slice(field.raw) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_at_equal_distances_have_a_pattern() {
        for (ranks, is_one_host, told) in [
            (&[0, 8, 16, 24][..], false, Some("stride 8")),
            (&[1, 3], true, Some("stride 2")),
            (&[8, 9, 10, 11], false, Some("ranks 8-11")),
            (&[8, 9, 10, 11], true, None),
            (&[0, 1, 3], false, None),
            (&[3, 2, 1], false, None),
            (&[2, 2], false, None),
            (&[u32::MAX - 1, u32::MAX], false, Some("ranks 4294967294-4294967295")),
            (&[5], false, None),
            (&[], false, None),
        ] {
            assert_eq!(pattern(ranks, is_one_host).as_deref(), told, "{ranks:?}");
        }
    }

    #[test]
    fn a_label_is_found_in_every_kind_of_name() {
        let labels = Labels(HashMap::from([(7, vec![("1f2e3d4c".to_owned(), "stride 8 1f2e3d4c".to_owned())])]));
        for (name, new) in [
            ("1f2e3d4c · rank 3 of 8", Some("stride 8 1f2e3d4c · rank 3 of 8")),
            ("busbw · 1f2e3d4c · rank 3 of 8", Some("busbw · stride 8 1f2e3d4c · rank 3 of 8")),
            ("1f2e3d4c #2 · send → 4", Some("stride 8 1f2e3d4c #2 · send → 4")),
            ("1f2e3d4c5 · rank 3 of 8", None),
            ("dp · rank 3 of 8", None),
        ] {
            assert_eq!(labels.name(7, name).as_deref(), new, "{name}");
            assert_eq!(labels.name(8, name), None, "another process");
        }
    }
}
