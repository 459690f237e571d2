//! Which of the job's ranks a communicator has: only all files together show it.
//!
//! A process knows its own rank in the job and in each of its communicators, so a communicator
//! without a name is recognised by its hash. If the files of all its members are merged and their
//! ranks are evenly spaced, its tracks are named by that: `stride 8 1f2e3d4c · rank 3 of 8`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::survey;
use super::evidence::Member;
use crate::model::selection::Ranks;
use crate::trace::fields::{trace_packet, track_descriptor};
use crate::trace::names;
use crate::trace::reader::wire::{fields, put_bytes};
use crate::trace::reader::{Nccl, Packet};
use crate::trace::words::{self, instant};
use crate::trace::writer::TRACK_BITS;

/// What separates the parts of a track's name.
const BETWEEN: &str = " · ";

/// The processes of several files and their communicators.
#[derive(Default)]
pub(super) struct Members {
    /// Ranks in the job, by process tag.
    ranks: HashMap<u64, u32>,
    /// All communicators that say which rank the process is, by NCCL's hash.
    groups: BTreeMap<u64, Group>,
    /// The number of ranks in the job, by process tag. A communicator that such a process calls
    /// `all` has every one of them.
    jobs: HashMap<u64, u32>,
    /// Processes with a communicator named `all`.
    named_all: BTreeSet<u64>,
}

/// Which ranks of a communicator are present.
#[derive(Default)]
struct Group {
    name: Option<String>,
    size: u32,
    /// The number of its hosts, as NCCL counts them.
    hosts: i32,
    /// Its ranks, each with the tags of the processes that claim to be it.
    ranks: BTreeMap<u32, BTreeSet<u64>>,
    /// Ranks that it cannot have.
    beyond: BTreeSet<u32>,
}

/// How many communicators are named one by one.
const SAID: usize = 4;

impl Group {
    /// Its ranks without a file.
    fn missing(&self) -> Ranks {
        Ranks::lacking(self.size, self.ranks.keys().copied())
    }

    /// Its name, or what stands for it.
    fn called(&self, hash: u64) -> String {
        self.name.clone().unwrap_or_else(|| names::short_hash(hash))
    }

    /// Adds a process that says that it is this rank of `size`.
    fn add(&mut self, rank: u32, size: u32, mark: u64) {
        self.size = size;
        if rank >= size {
            self.beyond.insert(rank);
        } else {
            self.ranks.entry(rank).or_default().insert(mark);
        }
    }

    /// What is impossible about its ranks.
    fn impossible(&self) -> Option<String> {
        if !self.beyond.is_empty() {
            let beyond = Ranks::of(self.beyond.iter().copied().collect());
            return Some(format!("a process says that it is its {} of {}", in_words(&beyond), self.size));
        }
        let twice = self.ranks.iter().filter(|(_, marks)| marks.len() > 1);
        let twice = Ranks::of(twice.map(|(rank, _)| *rank).collect());
        (!twice.is_empty()).then(|| format!("more than one process says that it is its {}", in_words(&twice)))
    }
}

/// `rank 3`, or `ranks 2-3`.
fn in_words(ranks: &Ranks) -> String {
    let ranks = ranks.to_string();
    format!("{} {ranks}", if ranks.contains(['-', ',']) { "ranks" } else { "rank" })
}

impl Members {
    /// Takes the next packet of a file.
    pub(super) fn look(&mut self, packet: &Packet<'_>) {
        if let Some(descriptor) = packet.track_descriptor() {
            let mark = descriptor.uuid() >> TRACK_BITS;
            if let Some(process) = &descriptor.process
                && let Some(rank) = survey::rank(process.process_name())
            {
                self.ranks.insert(mark, rank);
            }
            if let Some(size) = size_of_job(descriptor.name()) {
                self.jobs.insert(mark, size);
            }
        }
        let Some(event) = packet.event.as_ref().filter(|event| event.name == instant::COMM_INIT) else { return };
        let Nccl { comm: Some(hash), comm_name, rank: Some(rank), ranks: Some(size), nodes, .. } = event.nccl() else {
            return;
        };
        let mark = event.track >> TRACK_BITS;
        if let (Ok(rank), Ok(size)) = (u32::try_from(rank), u32::try_from(size)) {
            if comm_name.as_deref().is_some_and(|name| names::group_name(name) == names::ALL) {
                self.named_all.insert(mark);
            }
            let group = self.groups.entry(hash).or_default();
            group.name = comm_name.or(group.name.take());
            group.hosts = nodes.unwrap_or_default();
            group.add(rank, size, mark);
        }
    }

    /// Adds what another file says.
    pub(super) fn merge(&mut self, other: Members) {
        self.ranks.extend(other.ranks);
        for (hash, its) in other.groups {
            let group = self.groups.entry(hash).or_default();
            group.name = its.name.or(group.name.take());
            (group.size, group.hosts) = (its.size, its.hosts);
            its.ranks.into_iter().for_each(|(rank, marks)| group.ranks.entry(rank).or_default().extend(marks));
            group.beyond.extend(its.beyond);
        }
        self.jobs.extend(other.jobs);
        self.named_all.extend(other.named_all);
    }

    /// What all of them together show to be missing or impossible, one sentence each.
    pub(super) fn remarks(&self) -> Vec<String> {
        let twice = self.twice();
        let twice = (!twice.is_empty()).then(|| {
            format!(
                "more than one process says that it is {}: if these files are from several runs, merge \
                 only those of one",
                in_words(&twice)
            )
        });
        twice.into_iter().chain(self.impossible()).chain(self.missing()).collect()
    }

    /// Ranks without a file, one sentence each: those of the job if a communicator has all of them,
    /// otherwise those of each communicator.
    fn missing(&self) -> Vec<String> {
        let is_world = |group: &&Group| {
            group.ranks.iter().all(|(rank, marks)| marks.iter().all(|mark| self.ranks.get(mark) == Some(rank)))
        };
        let largest = self.groups.values().filter(is_world).max_by_key(|group| group.size);
        let known = self.groups.values().map(|group| group.size).max();
        if let Some(world) = largest.filter(|world| Some(world.size) == known) {
            let missing = world.missing();
            return if missing.is_empty() {
                Vec::new()
            } else {
                vec![format!("no file of {} of {}", in_words(&missing), world.size)]
            };
        }
        let torn: Vec<_> = self.groups.iter().filter(|(_, group)| !group.missing().is_empty()).collect();
        let mut lines: Vec<String> = torn
            .iter()
            .take(SAID)
            .map(|(hash, group)| {
                format!(
                    "communicator {}: no file of its {} of {}",
                    group.called(**hash),
                    in_words(&group.missing()),
                    group.size
                )
            })
            .collect();
        if torn.len() > SAID {
            lines.push(format!("{} more communicators have ranks without a file", torn.len() - SAID));
        }
        lines
    }

    /// What processes say about their ranks that is impossible, one sentence each.
    fn impossible(&self) -> Vec<String> {
        let jobs: BTreeSet<u32> =
            self.jobs.iter().filter(|(mark, _)| !self.named_all.contains(mark)).map(|(_, size)| *size).collect();
        let mut lines = Vec::new();
        if jobs.len() > 1 {
            let sizes: Vec<_> = jobs.iter().map(u32::to_string).collect();
            lines.push(format!("processes disagree on the size of the job: {} ranks", sizes.join(" and ")));
        }
        if let Some(size) = jobs.last() {
            let beyond: BTreeSet<u32> = self.ranks.values().copied().filter(|rank| rank >= size).collect();
            let beyond = Ranks::of(beyond.into_iter().collect());
            if !beyond.is_empty() {
                lines
                    .push(format!("a process says that it is rank {beyond}, and others that the job has {size} ranks"));
            }
        }
        let groups = || self.groups.iter().filter_map(|(hash, group)| Some((hash, group, group.impossible()?)));
        lines.extend(
            groups().take(SAID).map(|(hash, group, what)| format!("communicator {}: {what}", group.called(*hash))),
        );
        if let more @ 1.. = groups().count().saturating_sub(SAID) {
            lines.push(format!("{more} more communicators have ranks that cannot be"));
        }
        lines
    }

    /// Ranks in the job that several processes claim to be.
    pub(super) fn twice(&self) -> Ranks {
        let mut processes: HashMap<u32, usize> = HashMap::new();
        self.ranks.values().for_each(|rank| *processes.entry(*rank).or_default() += 1);
        Ranks::of(processes.into_iter().filter(|(_, count)| *count > 1).map(|(rank, _)| rank).collect())
    }

    /// The new names of communicators.
    pub(super) fn labels(&self) -> Labels {
        let mut labels = Labels::default();
        for (&hash, group) in self.groups.iter().filter(|(_, group)| group.name.is_none()) {
            let Some(pattern) = self.ranks_of(group).and_then(|ranks| pattern(&ranks, group.hosts == 1)) else {
                continue;
            };
            let (old, new) = (names::unnamed_comm(hash, group.hosts), format!("{pattern} {}", names::short_hash(hash)));
            for mark in group.ranks.values().flatten() {
                labels.0.entry(*mark).or_default().push((old.clone(), new.clone()));
            }
        }
        labels
    }

    /// The ranks in the job of a communicator's members, in the communicator's order; `None` unless
    /// all are known.
    fn ranks_of(&self, group: &Group) -> Option<Vec<u32>> {
        let rank = |marks: &BTreeSet<u64>| match marks.len() {
            1 => self.ranks.get(marks.first()?).copied(),
            _ => None,
        };
        (group.ranks.len() == group.size as usize).then(|| group.ranks.values().map(rank).collect())?
    }
}

/// What a communicator's ranks in the job have in common, if that says more than the hash does, and
/// whether they stay on one host.
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

/// The number of ranks in the job, from a track of a communicator that has all of them:
/// `all · rank 3 of 8`.
fn size_of_job(track: &str) -> Option<u32> {
    let (_, size) = track.strip_prefix(names::ALL)?.strip_prefix(words::track::RANK)?.split_once(" of ")?;
    size.parse().ok()
}

/// New labels of communicators, by process tag: the old one and the new one.
#[derive(Default)]
pub(super) struct Labels(HashMap<u64, Vec<(String, String)>>);

impl Labels {
    /// Whether any of these processes has a communicator with a new label.
    pub(super) fn concern(&self, marks: &BTreeSet<u64>) -> bool {
        marks.iter().any(|mark| self.0.contains_key(mark))
    }

    /// A packet that describes a track, if the track's name changes.
    pub(super) fn packet(&self, packet: &[u8]) -> Option<Vec<u8>> {
        let descriptor = fields(packet).find(|field| field.number == trace_packet::TRACK_DESCRIPTOR)?.bytes();
        let part = |number| fields(descriptor).find(|field| field.number == number);
        let uuid = part(track_descriptor::UUID)?.uint();
        let name = String::from_utf8_lossy(part(track_descriptor::NAME)?.bytes()).into_owned();
        let new = self.name(uuid >> TRACK_BITS, &name)?;
        let described = replaced(descriptor, track_descriptor::NAME, new.as_bytes());
        Some(replaced(packet, trace_packet::TRACK_DESCRIPTOR, &described))
    }

    /// What a rank's tracks call its communicator now.
    pub(super) fn of(&self, member: &Member) -> String {
        self.name(member.process, &member.label).unwrap_or_else(|| member.label.clone())
    }

    /// A track's name with its communicator's label replaced: `busbw · 1f2e3d4c · rank 3 of 8`.
    fn name(&self, mark: u64, name: &str) -> Option<String> {
        let labels = self.0.get(&mark)?;
        let mut changes = false;
        let parts = name.split(BETWEEN).map(|part| {
            // A communicator that was created several times has a number: `1f2e3d4c #2`.
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

/// A message with one of its fields replaced.
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
    fn evenly_spaced_ranks_have_a_pattern() {
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
    fn only_impossible_ranks_are_reported() {
        let file = |mark: u64, rank: u32, job: Option<u32>, group: (u32, u32)| {
            let mut file = Members { ranks: HashMap::from([(mark, rank)]), ..Members::default() };
            file.jobs.extend(job.map(|size| (mark, size)));
            file.groups.entry(0x1f2e_3d4c).or_default().add(group.0, group.1, mark);
            file
        };
        let said = |files: Vec<Members>| {
            let mut all = Members::default();
            files.into_iter().for_each(|file| all.merge(file));
            all.impossible()
        };
        // All ranks; ranks of several GPUs in one process; and a group of a larger job of unknown
        // size.
        for healthy in [
            vec![file(1, 0, Some(2), (0, 2)), file(2, 1, Some(2), (1, 2))],
            vec![file(1, 0, Some(2), (0, 2)), file(1, 0, Some(2), (1, 2))],
            vec![file(1, 4, None, (0, 2)), file(2, 9, None, (1, 2))],
        ] {
            assert_eq!(said(healthy), Vec::<String>::new());
        }
        assert_eq!(
            said(vec![file(1, 0, Some(2), (0, 2)), file(2, 5, None, (1, 2))]),
            ["a process says that it is rank 5, and others that the job has 2 ranks"]
        );
        assert_eq!(
            said(vec![file(1, 0, Some(2), (0, 2)), file(2, 1, Some(8), (1, 2))]),
            ["processes disagree on the size of the job: 2 and 8 ranks"]
        );
        assert_eq!(
            said(vec![file(1, 0, None, (1, 4)), file(2, 1, None, (1, 4)), file(3, 2, None, (2, 4))]),
            ["communicator 1f2e3d4c: more than one process says that it is its rank 1"]
        );
        assert_eq!(
            said(vec![file(1, 0, None, (0, 2)), file(2, 1, None, (7, 2))]),
            ["communicator 1f2e3d4c: a process says that it is its rank 7 of 2"]
        );
        // A communicator called `all` need not have all ranks.
        let mut named = file(1, 5, Some(2), (0, 2));
        named.named_all.insert(1);
        assert_eq!(said(vec![named]), Vec::<String>::new());
        assert_eq!(size_of_job("all · rank 3 of 8"), Some(8));
        for other in ["all · rank 3 of 8 · handed over", "all #2 · rank 3 of 8", "allgather · rank 3 of 8", "all"] {
            assert_eq!(size_of_job(other), None, "{other}");
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
