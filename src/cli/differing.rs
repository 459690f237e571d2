//! Settings that some ranks of a job have and the others do not: one host that was set up in
//! another way is a usual reason why its ranks are slow, or why a job hangs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use super::said;
use super::survey::Survey;
use crate::trace::names;
use crate::trace::words::attribute;
use crate::trace::writer::TRACK_BITS;

/// How many values are said, beside the usual one.
const VALUES: usize = 3;
/// A process that has a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// In the job.
    pub(super) rank: Option<u32>,
    pub(super) pid: u64,
    pub(super) file: PathBuf,
}

/// A setting that is not the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Differing {
    /// `NCCL_P2P_DISABLE`, `driver`, `GPU`.
    pub(super) name: String,
    /// The values, and who has them, the rarest first; `None` is unset.
    pub(super) values: Vec<(Option<String>, Vec<Owner>)>,
    /// More than half of the processes have the last one.
    pub(super) has_usual: bool,
}

impl Differing {
    fn unusual(&self) -> &[(Option<String>, Vec<Owner>)] {
        &self.values[..self.values.len() - usize::from(self.has_usual)]
    }

    /// Whether all of these processes, by their files and pids, have one value that is not the
    /// usual one.
    pub(super) fn sets_apart<'a>(&self, processes: impl Iterator<Item = (&'a Path, i64)> + Clone) -> bool {
        let is_of =
            |owner: &Owner, (file, pid): (&Path, i64)| owner.file == file && i64::try_from(owner.pid) == Ok(pid);
        let has = |owners: &[Owner], process| owners.iter().any(|owner| is_of(owner, process));
        let have = |owners: &[Owner]| processes.clone().all(|process| has(owners, process));
        processes.clone().next().is_some() && self.unusual().iter().any(|(_, owners)| have(owners))
    }
}

impl fmt::Display for Differing {
    /// `NCCL_P2P_DISABLE is 1 on ranks 4 to 7, and unset on the others`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: &Option<String>| value.as_deref().unwrap_or("unset").to_owned();
        let who = |owners: &[Owner]| match owners.iter().map(|it| it.rank).collect::<Option<Vec<u32>>>() {
            Some(ranks) => said::ranks(ranks),
            None => said::processes(owners.iter().map(|it| it.pid)),
        };
        let on = |(it, owners): &(Option<String>, Vec<Owner>)| format!("{} on {}", value(it), who(owners));
        let mut parts: Vec<String> = self.unusual().iter().take(VALUES).map(on).collect();
        let more = self.unusual().len().saturating_sub(VALUES);
        parts.extend((more > 0).then(|| format!("{more} more values elsewhere")));
        let usual = self.values.last().filter(|_| self.has_usual);
        parts.extend(usual.map(|(it, _)| format!("{} on the others", value(it))));
        write!(f, "{} is {}", self.name, parts.join(", and "))
    }
}

/// The settings in which the processes of these traces differ, and of which at least half of them
/// have one value: where each host has its own, none is odd.
pub(super) fn find(survey: &Survey) -> Vec<Differing> {
    let ranks = survey.ranks();
    let mut claimed = BTreeSet::new();
    // A process with several GPUs is drawn as several, with one tag.
    let mut by_tag: BTreeMap<u64, (Owner, BTreeMap<String, String>)> = BTreeMap::new();
    let mut uuids: Vec<&u64> = survey.processes.keys().collect();
    uuids.sort_unstable();
    for uuid in uuids {
        let (Some(process), Some(track)) = (survey.processes.get(uuid), survey.tracks.get(uuid)) else { continue };
        let Some((file, _)) = survey.extents.get(process.file) else { continue };
        let rank = ranks.get(uuid).copied().flatten();
        let (_, settings) = by_tag.entry(uuid >> TRACK_BITS).or_insert_with(|| {
            let pid = track.own_pid().unwrap_or_default();
            (Owner { rank, pid, file: file.clone() }, process.settings.clone())
        });
        if let Some(model) = model(&track.name) {
            settings.entry("GPU".to_owned()).or_insert_with(|| model.to_owned());
        }
    }
    // The attempts of a restarted job may well differ.
    if by_tag.values().any(|(owner, _)| owner.rank.is_some_and(|rank| !claimed.insert(rank))) {
        return Vec::new();
    }
    let all: Vec<_> = by_tag.into_values().collect();
    let names: BTreeSet<&String> = all.iter().flat_map(|(_, settings)| settings.keys()).collect();
    names.into_iter().filter_map(|name| differing(name, &all)).collect()
}

fn differing(name: &str, all: &[(Owner, BTreeMap<String, String>)]) -> Option<Differing> {
    let variable = name.strip_prefix(attribute::ENVIRONMENT);
    // What else there is, a recording may not know; and it may leave out its environment.
    let is_known = |settings: &BTreeMap<String, String>| match variable {
        Some(_) => settings.keys().any(|it| it.starts_with(attribute::ENVIRONMENT)),
        None => settings.contains_key(name),
    };
    let known = || all.iter().filter(|(_, settings)| is_known(settings));
    let mut values: BTreeMap<Option<&String>, Vec<&Owner>> = BTreeMap::new();
    known().for_each(|(owner, settings)| values.entry(settings.get(name)).or_default().push(owner));
    if values.len() < 2 {
        return None;
    }
    let mut values: Vec<(Option<String>, Vec<Owner>)> =
        values.into_iter().map(|(value, owners)| (value.cloned(), owners.into_iter().cloned().collect())).collect();
    values.sort_by_key(|(_, owners)| owners.len());
    let (count, most) = (known().count(), values.last().map_or(0, |(_, owners)| owners.len()));
    let name = variable.unwrap_or(name).to_owned();
    (2 * most >= count).then_some(Differing { name, values, has_usual: 2 * most > count })
}

/// The GPU's model in a process's name: `H200` in `rank 3 · node17 · GPU 1 (H200)`.
fn model(process: &str) -> Option<&str> {
    let gpu = process.get(names::without_gpu(process).0.len()..)?;
    gpu.split_once(" (")?.1.strip_suffix(')')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::survey::{Process, setting};

    /// Processes with their names and settings, each in a file of its own.
    fn found(processes: &[(&str, &[(&str, &str)])]) -> Vec<Differing> {
        let mut survey = Survey::default();
        for (at, (name, settings)) in processes.iter().enumerate() {
            let uuid = (at as u64 + 1) << TRACK_BITS;
            let track = survey.tracks.entry(uuid).or_default();
            (track.name, track.is_process, track.pid) = ((*name).to_owned(), true, Some(70 + at as u64));
            let settings =
                settings.iter().filter_map(|(key, value)| Some((setting(key)?.to_owned(), (*value).to_owned())));
            survey.processes.insert(uuid, Process { file: at, settings: settings.collect(), ..Process::default() });
            survey.extents.push((format!("{at}").into(), Default::default()));
        }
        find(&survey)
    }

    fn said(processes: &[(&str, &[(&str, &str)])]) -> Vec<String> {
        found(processes).iter().map(ToString::to_string).collect()
    }

    const PLAIN: &[(&str, &str)] = &[("env.NCCL_ALGO", "Ring"), ("env.NCCL_HOSTID", "a")];
    const ODD: &[(&str, &str)] = &[("env.NCCL_ALGO", "Ring"), ("env.NCCL_HOSTID", "b"), ("env.NCCL_P2P_DISABLE", "1")];

    #[test]
    fn what_only_some_ranks_have_is_said() {
        let all = [("rank 0 · a", PLAIN), ("rank 1 · a", PLAIN), ("rank 2 · b", ODD)];
        assert_eq!(said(&all), ["NCCL_P2P_DISABLE is 1 on rank 2, and unset on the others"]);
        let alike = [("rank 0 · a", PLAIN), ("rank 1 · a", PLAIN), ("rank 2 · b", ODD), ("rank 3 · b", ODD)];
        assert_eq!(said(&alike), ["NCCL_P2P_DISABLE is unset on ranks 0 and 1, and 1 on ranks 2 and 3"]);
        let unnamed = [("python · a", PLAIN), ("python · a", PLAIN), ("python · b", ODD)];
        assert_eq!(said(&unnamed), ["NCCL_P2P_DISABLE is 1 on process 72, and unset on the others"]);
        assert_eq!(said(&all[..2]), [""; 0]);
    }

    #[test]
    fn gpus_and_drivers_differ_too() {
        let driver = |it| [(attribute::DRIVER, it), ("env.NCCL_ALGO", "Ring")];
        let (old, new) = (driver("580.65.06, CUDA 13.0"), driver("570.1, CUDA 12.8"));
        let all: [(&str, &[(&str, &str)]); 3] = [
            ("rank 0 · a · GPU 0 (H200)", &old),
            ("rank 1 · a · GPU 1 (H200)", &old),
            ("rank 2 · b · GPU 0 (H100)", &new),
        ];
        let gpu = "GPU is H100 on rank 2, and H200 on the others";
        assert_eq!(said(&all), [gpu, "driver is 570.1, CUDA 12.8 on rank 2, and 580.65.06, CUDA 13.0 on the others"]);
        // A recording may not know it.
        let unknown: &[(&str, &str)] = &[("env.NCCL_ALGO", "Ring")];
        assert_eq!(said(&[("rank 0 · a", &old), ("rank 1 · a", unknown), ("rank 2 · a", &[])]), [""; 0]);
    }

    #[test]
    fn where_each_has_its_own_none_is_odd() {
        let own = |it| [("env.NCCL_SOCKET_IFNAME", it)];
        let (one, two, three) = (own("eth1"), own("eth2"), own("eth3"));
        let each: [(&str, &[(&str, &str)]); 3] = [("rank 0 · a", &one), ("rank 1 · b", &two), ("rank 2 · c", &three)];
        assert_eq!(said(&each), [""; 0]);
        // Nor between the attempts of a restarted job.
        assert_eq!(said(&[("rank 0 · a", PLAIN), ("rank 0 · a", ODD), ("rank 1 · a", PLAIN)]), [""; 0]);
    }

    #[test]
    fn some_ranks_are_set_apart_by_a_value_that_all_of_them_have() {
        let found = found(&[("rank 0 · a", PLAIN), ("rank 1 · a", PLAIN), ("rank 2 · b", ODD), ("rank 3 · c", PLAIN)]);
        let apart = |ranks: &[usize]| {
            let files: Vec<PathBuf> = ranks.iter().map(|rank| rank.to_string().into()).collect();
            found[0].sets_apart(files.iter().zip(ranks).map(|(file, rank)| (file.as_path(), 70 + *rank as i64)))
        };
        assert_eq!([apart(&[2]), apart(&[2, 3]), apart(&[0]), apart(&[])], [true, false, false, false]);
    }
}
