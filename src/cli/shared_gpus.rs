//! GPUs that several ranks share. Usually that is a mistake in how a job was started, and it is
//! slow: the processes take turns on the GPU, and kernels of NCCL wait for those whose turn it is
//! not. Under MPS they run side by side, and compete.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::hang::list;
use super::survey::{self, Process, Survey};
use crate::trace::names;
use crate::trace::writer::TRACK_BITS;

/// A GPU, and who shares it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SharedGpu {
    /// As `nvidia-smi -L` writes it.
    pub(super) uuid: String,
    /// `GPU 0 (H200) on node17`, as the first of them calls it.
    pub(super) name: String,
    /// Their ranks in the job as far as known, and their process ids.
    pub(super) ranks: Vec<u32>,
    pub(super) pids: Vec<u64>,
}

impl SharedGpu {
    /// Further details, one per line.
    pub(super) fn details(&self) -> Vec<String> {
        vec![
            "they take turns on it or, under MPS, compete for it, and waits and gaps are partly due to that".to_owned(),
            "unless it is meant so, give each its own: see LOCAL_RANK and CUDA_VISIBLE_DEVICES".to_owned(),
        ]
    }
}

impl fmt::Display for SharedGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.ranks.len() == self.pids.len() {
            true => format!("ranks {}", list(self.ranks.iter().map(u32::to_string))),
            false => format!("processes {}", list(self.pids.iter().map(u64::to_string))),
        };
        write!(f, "{who} share a GPU: {}, {}", self.name, self.uuid)
    }
}

/// The GPUs on which several processes of these traces worked at the same time.
pub(super) fn find(survey: &Survey) -> Vec<SharedGpu> {
    let with_ranks = survey.tracks.iter().filter(|(_, track)| !track.communicators.is_empty());
    let users: BTreeSet<u64> = with_ranks.filter_map(|(uuid, _)| survey.process(*uuid)).collect();
    let mut by_gpu: BTreeMap<&str, Vec<(u64, &Process)>> = BTreeMap::new();
    for uuid in users {
        let Some(process) = survey.processes.get(&uuid) else { continue };
        if let Some(gpu) = &process.gpu {
            by_gpu.entry(gpu).or_default().push((uuid, process));
        }
    }
    by_gpu.into_iter().filter_map(|(gpu, users)| shared(survey, gpu, &users)).collect()
}

fn shared(survey: &Survey, gpu: &str, users: &[(u64, &Process)]) -> Option<SharedGpu> {
    // One that came after the other had ended shared nothing with it.
    let together = |(one, of_one): &(u64, &Process), (other, of_other): &(u64, &Process)| {
        let are_two = one >> TRACK_BITS != other >> TRACK_BITS;
        are_two && of_one.boot == of_other.boot && of_one.first < of_other.last && of_other.first < of_one.last
    };
    let users = users.iter().filter(|one| users.iter().any(|other| together(one, other)));
    let tracks: Vec<_> = users.filter_map(|(uuid, _)| survey.tracks.get(uuid)).collect();
    let first = tracks.first()?;
    let mut ranks: Vec<u32> = tracks.iter().filter_map(|track| survey::rank(&track.name)).collect();
    ranks.sort_unstable();
    let mut pids: Vec<u64> = tracks.iter().filter_map(|track| track.own_pid()).collect();
    pids.sort_unstable();
    let (process, _) = names::without_gpu(&first.name);
    let number = first.name[process.len()..].trim_start_matches(" · ");
    let name = match survey::host(process) {
        Some(host) => format!("{number} on {host}"),
        None => number.to_owned(),
    };
    Some(SharedGpu { uuid: as_nvidia_smi(gpu), name, ranks, pids })
}

/// `GPU-fb103c76-e945-32ef-7584-0ebc327626e8`
fn as_nvidia_smi(digits: &str) -> String {
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    match digits.len() {
        32 => format!("GPU-{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)),
        _ => digits.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::HostNs;

    /// Processes, each with its GPU and from when to when it ran; all have a communicator.
    fn survey(processes: &[(&str, &str, (u64, u64))]) -> Survey {
        let mut survey = Survey::default();
        for (tag, (name, gpu, (first, last))) in (1..).zip(processes) {
            let uuid = tag << TRACK_BITS;
            let track = survey.tracks.entry(uuid).or_default();
            (track.name, track.is_process, track.pid) = ((*name).to_owned(), true, Some(tag));
            let comm = survey.tracks.entry(uuid | 1).or_default();
            (comm.parent, comm.communicators) = (Some(uuid), vec![7]);
            let gpu = Some((*gpu).to_owned());
            let (first, last) = (HostNs(*first), HostNs(*last));
            survey.processes.insert(uuid, Process { first, last, gpu, ..Process::default() });
        }
        survey
    }

    #[test]
    fn ranks_with_the_same_gpu_at_the_same_time_share_it() {
        let one = "fb103c76e94532ef75840ebc327626e8";
        let found = find(&survey(&[
            ("rank 1 · vm · GPU 0 (H200)", one, (0, 50)),
            ("rank 0 · vm · GPU 0 (H200)", one, (20, 60)),
            ("rank 2 · vm · GPU 1 (H200)", "40", (0, 60)),
        ]));
        let said: Vec<String> = found.iter().map(ToString::to_string).collect();
        let expected = "ranks 0, 1 share a GPU: GPU 0 (H200) on vm, \
                        GPU-fb103c76-e945-32ef-7584-0ebc327626e8";
        assert_eq!(said, [expected]);
    }

    #[test]
    fn one_run_after_the_other_shares_nothing() {
        let found = find(&survey(&[
            ("rank 0 · vm · GPU 0 (H200)", "40", (0, 50)),
            ("rank 0 · vm · GPU 0 (H200)", "40", (50, 90)),
        ]));
        assert_eq!(found, []);
    }
}
