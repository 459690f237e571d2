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
/// What the model of a process's GPU is called among its settings.
const GPU: &str = "GPU";

/// A process's settings, by their names.
type Settings = BTreeMap<String, String>;

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
            |owner: &Owner, (file, pid): (&Path, i64)| i64::try_from(owner.pid) == Ok(pid) && owner.file == file;
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
    let all = settings(survey);
    // The attempts of a restarted job may well differ.
    let mut claimed = BTreeSet::new();
    if all.iter().any(|(owner, _)| owner.rank.is_some_and(|rank| !claimed.insert(rank))) {
        return Vec::new();
    }
    names(&all).into_iter().filter_map(|name| differing(name, &all)).collect()
}

/// How the settings of two runs differ, in words: what all processes of a run have, and in what
/// those of one run differ.
pub(super) fn between([a, b]: [&Survey; 2]) -> Vec<String> {
    let (of_a, of_b) = (settings(a), settings(b));
    // The GPUs of both runs are compared anyway.
    let names: BTreeSet<&String> = names(&of_a).into_iter().chain(names(&of_b)).filter(|name| *name != GPU).collect();
    let both = names.into_iter().filter_map(|name| {
        let [a, b] = [value_of_all(name, &of_a)?, value_of_all(name, &of_b)?];
        let said = |value: Option<&String>| value.map_or("unset", |it| it).to_owned();
        (a != b).then(|| format!("{} is {} in A, and {} in B", name_to_say(name), said(a), said(b)))
    });
    let within = [("A", a, b), ("B", b, a)].into_iter().flat_map(|(name, one, other)| {
        let others: Vec<String> = find(other).iter().map(ToString::to_string).collect();
        let own = find(one).into_iter().map(|it| it.to_string()).filter(move |it| !others.contains(it));
        own.map(move |it| format!("in {name}, {it}"))
    });
    both.chain(within).collect()
}

/// What each process of these traces was set to.
fn settings(survey: &Survey) -> Vec<(Owner, Settings)> {
    let ranks = survey.ranks();
    // A process with several GPUs is drawn as several, with one tag.
    let mut by_tag: BTreeMap<u64, (Owner, Settings)> = BTreeMap::new();
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
            settings.entry(GPU.to_owned()).or_insert_with(|| model.to_owned());
        }
    }
    by_tag.into_values().collect()
}

fn names(all: &[(Owner, Settings)]) -> BTreeSet<&String> {
    all.iter().flat_map(|(_, settings)| settings.keys()).collect()
}

/// A variable, or what else a setting is.
fn name_to_say(name: &str) -> &str {
    name.strip_prefix(attribute::ENVIRONMENT).unwrap_or(name)
}

/// Whether a process's recording knows a setting: it may leave out its environment.
fn is_known(name: &str, settings: &Settings) -> bool {
    match name.strip_prefix(attribute::ENVIRONMENT) {
        Some(_) => settings.contains_key(attribute::ENVIRONMENT),
        None => settings.contains_key(name),
    }
}

/// The value that all processes have, where that is known of any, and all have the same.
fn value_of_all<'a>(name: &str, all: &'a [(Owner, Settings)]) -> Option<Option<&'a String>> {
    let known = all.iter().filter(|(_, settings)| is_known(name, settings));
    let values: BTreeSet<Option<&String>> = known.map(|(_, settings)| settings.get(name)).collect();
    (values.len() == 1).then(|| values.into_iter().next()).flatten()
}

fn differing(name: &str, all: &[(Owner, Settings)]) -> Option<Differing> {
    let known = || all.iter().filter(|(_, settings)| is_known(name, settings));
    let mut values: BTreeMap<Option<&String>, Vec<&Owner>> = BTreeMap::new();
    known().for_each(|(owner, settings)| values.entry(settings.get(name)).or_default().push(owner));
    if values.len() < 2 {
        return None;
    }
    let mut values: Vec<(Option<String>, Vec<Owner>)> =
        values.into_iter().map(|(value, owners)| (value.cloned(), owners.into_iter().cloned().collect())).collect();
    values.sort_by_key(|(_, owners)| owners.len());
    let (count, most) = (known().count(), values.last().map_or(0, |(_, owners)| owners.len()));
    let name = name_to_say(name).to_owned();
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
    fn survey(processes: &[(&str, &[(&str, &str)])]) -> Survey {
        let mut survey = Survey::default();
        for (at, (name, settings)) in processes.iter().enumerate() {
            let is_known = settings.iter().any(|(key, _)| key.starts_with(attribute::ENVIRONMENT));
            let uuid = (at as u64 + 1) << TRACK_BITS;
            let track = survey.tracks.entry(uuid).or_default();
            (track.name, track.is_process, track.pid) = ((*name).to_owned(), true, Some(70 + at as u64));
            let settings =
                settings.iter().filter_map(|(key, value)| Some((setting(key)?.to_owned(), (*value).to_owned())));
            let mut settings: Settings = settings.collect();
            if is_known {
                settings.insert(attribute::ENVIRONMENT.to_owned(), String::new());
            }
            survey.processes.insert(uuid, Process { file: at, settings, ..Process::default() });
            survey.extents.push((format!("{at}").into(), Default::default()));
        }
        survey
    }

    fn found(processes: &[(&str, &[(&str, &str)])]) -> Vec<Differing> {
        find(&survey(processes))
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
    fn a_rank_without_any_variable_of_nccl_s_has_none_of_them() {
        let bare: &[(&str, &str)] = &[("env.RANK", "2")];
        let odd: &[(&str, &str)] = &[("env.NCCL_P2P_DISABLE", "1")];
        let all = [("rank 0 · a", odd), ("rank 1 · a", odd), ("rank 2 · b", bare), ("rank 3 · b", &[])];
        assert_eq!(said(&all), ["NCCL_P2P_DISABLE is unset on rank 2, and 1 on the others"]);
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
    fn two_runs_differ_in_what_all_of_one_have_and_in_what_some_of_one_have() {
        let plain = survey(&[("rank 0 · a", PLAIN), ("rank 1 · a", PLAIN), ("rank 2 · b", PLAIN)]);
        let some = survey(&[("rank 0 · a", PLAIN), ("rank 1 · a", PLAIN), ("rank 2 · b", ODD)]);
        let all = survey(&[("rank 0 · a", ODD), ("rank 1 · a", ODD)]);
        let unknown = survey(&[("rank 0 · a", &[])]);
        assert_eq!(between([&plain, &all]), ["NCCL_P2P_DISABLE is unset in A, and 1 in B"]);
        let within = "NCCL_P2P_DISABLE is 1 on rank 2, and unset on the others";
        assert_eq!(between([&plain, &some]), [format!("in B, {within}")]);
        assert_eq!([between([&some, &some]), between([&plain, &plain]), between([&unknown, &all])], [[""; 0]; 3]);
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
