//! Which process the work of each GPU belongs to, in files merged from several ranks: in Kineto's
//! JSON a GPU is a process of its own, identified only by its number.

use std::collections::{BTreeMap, HashMap};

use super::event::Id;
use crate::import::{Process, Profile};
use crate::model::time::FileNs;

/// What is known of the origin of each kernel and copy.
#[derive(Default)]
pub(super) struct Owners {
    kernels: Vec<Seen>,
    copies: Vec<Seen>,
    /// The last process seen, how often it changed, and how often time ran backwards at a change.
    last: Option<usize>,
    switches: usize,
    returns: usize,
    /// The latest time so far.
    latest: FileNs,
}

/// Where in the file a kernel or a copy was.
struct Seen {
    /// The GPU, as the file numbers it.
    gpu: Id,
    /// The last process seen before it.
    after: Option<usize>,
}

impl Owners {
    /// An event of a process at this time.
    pub(super) fn met(&mut self, process: usize, time: FileNs) {
        if self.last.replace(process) != Some(process) {
            self.switches += 1;
            self.returns += usize::from(time < self.latest);
        }
        self.latest = self.latest.max(time);
    }

    /// The next kernel.
    pub(super) fn kernel(&mut self, gpu: Id, time: FileNs) {
        self.kernels.push(Seen { gpu, after: self.last });
        self.latest = self.latest.max(time);
    }

    /// The next copy.
    pub(super) fn copy(&mut self, gpu: Id, time: FileNs) {
        self.copies.push(Seen { gpu, after: self.last });
        self.latest = self.latest.max(time);
    }

    /// Whether files were concatenated: each process is seen once, and each begins before the
    /// previous one has ended. In a file sorted by time, time never runs backwards.
    fn is_in_blocks(&self, processes: usize) -> bool {
        self.switches == processes && self.returns + 1 == processes
    }

    /// The GPU of a kernel.
    pub(super) fn gpu(&self, kernel: usize) -> Option<&Id> {
        self.kernels.get(kernel).map(|seen| &seen.gpu)
    }

    /// Gives each kernel and copy its process. The undecided ones go to processes that stand only
    /// for the GPUs, with a note.
    pub(super) fn decide(&self, profile: &mut Profile, ids: &HashMap<Id, usize>) {
        if profile.processes.is_empty() {
            return self.without_hosts(profile);
        }
        if profile.processes.len() == 1 {
            return;
        }
        let known = Known::of(self, profile, ids);
        let kernels = profile.kernels.iter().map(|it| (it.correlation, it.span.start));
        let copies = profile.copies.iter().map(|it| (it.correlation, it.span.start));
        let seen: Vec<&Seen> = self.kernels.iter().chain(&self.copies).collect();
        let mut owners: Vec<Option<usize>> = seen
            .iter()
            .zip(kernels.chain(copies))
            .map(|(seen, (call, start))| known.owner(seen, call, start))
            .collect();
        // The rest of a GPU's work belongs to the process it is known to have worked for, if there
        // is only one.
        let mut of_gpu: HashMap<&Id, Option<usize>> = HashMap::new();
        for (seen, owner) in seen.iter().zip(&owners).filter(|(_, owner)| owner.is_some()) {
            let known = of_gpu.entry(&seen.gpu).or_insert(*owner);
            if *known != *owner {
                *known = None;
            }
        }
        let mut strangers: BTreeMap<&Id, usize> = BTreeMap::new();
        let mut lost = 0_u64;
        for (seen, owner) in seen.iter().zip(&mut owners) {
            *owner = owner.or_else(|| of_gpu.get(&seen.gpu).copied().flatten());
            if owner.is_none() {
                lost += 1;
                *owner = Some(*strangers.entry(&seen.gpu).or_insert_with(|| {
                    let number = seen.gpu.number.map(|number| format!(" {number}")).unwrap_or_default();
                    add(profile, 0, format!("{} GPU{number}, of an unknown process", seen.gpu.label).trim().to_owned())
                }));
            }
        }
        if lost > 0 {
            profile.notes.push(format!(
                "several ranks are merged in this file; for {lost} kernels and copies the rank cannot be determined"
            ));
        }
        let mut owners = owners.into_iter().flatten();
        profile.kernels.iter_mut().zip(owners.by_ref()).for_each(|(kernel, owner)| kernel.process = owner);
        profile.copies.iter_mut().zip(owners).for_each(|(copy, owner)| copy.process = owner);
    }

    /// Files with only the GPUs' side: a process for each label, or a single one without labels.
    fn without_hosts(&self, profile: &mut Profile) {
        let mut labels: HashMap<&str, usize> = HashMap::new();
        let mut processes = Vec::new();
        for seen in self.kernels.iter().chain(&self.copies) {
            let label = seen.gpu.label.as_str();
            processes.push(*labels.entry(label).or_insert_with(|| {
                let added = add(profile, 0, label.to_owned());
                profile.processes[added].rank = seen.gpu.rank();
                added
            }));
        }
        let mut owners = processes.into_iter();
        profile.kernels.iter_mut().zip(owners.by_ref()).for_each(|(kernel, owner)| kernel.process = owner);
        profile.copies.iter_mut().zip(owners).for_each(|(copy, owner)| copy.process = owner);
        if profile.processes.is_empty() {
            add(profile, 0, String::new());
        }
        // Without a host side the file does not say which process it was.
        profile.notes.push("the file does not name its process".into());
    }
}

fn add(profile: &mut Profile, pid: i64, name: String) -> usize {
    profile.processes.push(Process { pid, name, rank: None, threads: BTreeMap::new(), lost: 0 });
    profile.processes.len() - 1
}

/// The clues to a process.
struct Known<'a> {
    ids: &'a HashMap<Id, usize>,
    /// Processes with a unique label.
    labels: HashMap<&'a str, Option<usize>>,
    /// By correlation id: the processes and times of calls.
    calls: HashMap<u32, Vec<(usize, FileNs)>>,
    /// The files were concatenated.
    is_in_blocks: bool,
}

impl<'a> Known<'a> {
    fn of(owners: &Owners, profile: &Profile, ids: &'a HashMap<Id, usize>) -> Known<'a> {
        let mut labels = HashMap::new();
        for (id, process) in ids.iter().filter(|(id, _)| !id.label.is_empty()) {
            labels.entry(id.label.as_str()).and_modify(|known| *known = None).or_insert(Some(*process));
        }
        let mut calls: HashMap<u32, Vec<(usize, FileNs)>> = HashMap::new();
        for call in profile.cuda_calls.iter().filter(|call| call.correlation != 0) {
            calls.entry(call.correlation).or_default().push((call.process, call.span.start));
        }
        Known { ids, labels, calls, is_in_blocks: owners.is_in_blocks(profile.processes.len()) }
    }

    fn owner(&self, seen: &Seen, correlation: u32, start: FileNs) -> Option<usize> {
        let labelled = || self.labels.get(seen.gpu.label.as_str()).copied().flatten();
        if let Some(process) = labelled().or_else(|| self.ids.get(&seen.gpu).copied()) {
            return Some(process);
        }
        let behind = seen.after.filter(|_| self.is_in_blocks);
        // Ranks of one program number their calls alike, so several may share an id.
        let calls = self.calls.get(&correlation).map_or(&[][..], Vec::as_slice);
        let mut callers: Vec<usize> =
            calls.iter().filter(|(_, at)| *at <= start).map(|(process, _)| *process).collect();
        callers.sort_unstable();
        callers.dedup();
        match callers[..] {
            [] => behind,
            [caller] => Some(caller),
            _ => behind.filter(|process| callers.contains(process)),
        }
    }
}
