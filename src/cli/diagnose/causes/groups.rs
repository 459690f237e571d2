//! Groups of ranks whose collectives take longer than those of other groups (pure).
//!
//! Within a host NCCL reports no transfers, so no link there can be compared with another. But many
//! groups do the same, such as those of tensor parallelism: one of each host. Where collectives of
//! one take longer once all its ranks have come, a link or a GPU in it is slow.

use std::collections::{BTreeMap, BTreeSet};

use super::super::job::Job;
use super::super::load::SLOW;
use super::links::{shorten, shorten_meetings, together};
use super::{HABIT, Suspect, What, largest, median};

/// A collective of a group, without the time in which ranks wait for each other.
#[derive(Clone, Copy)]
struct Collective {
    step: usize,
    item: usize,
    /// How long the rank that came last took, ns.
    length: f64,
    /// The network had a part in it.
    is_carried: bool,
}

/// The collectives of one kind, by group: its ranks, in order.
type Groups = BTreeMap<Vec<usize>, Vec<Collective>>;

/// Groups whose collectives take longer than the same ones of other groups. Those that another
/// suspect already explains are left out.
pub(super) fn slow_groups(job: &Job, others: &[Suspect]) -> Vec<Suspect> {
    let mut slow: BTreeMap<Vec<usize>, Suspect> = BTreeMap::new();
    for ((kind, _), mut groups) in groups(job) {
        let name = &job.kinds[kind as usize].name;
        // The links of the network are compared elsewhere, unless only a few groups use it.
        let carried = groups.values().filter(|all| all[0].is_carried).count();
        if 2 * carried > groups.len() {
            groups.retain(|_, all| !all[0].is_carried);
        }
        if groups.len() > 1 && !others.iter().any(|it| it.names.contains(name)) {
            slow_ones(job, name, &groups, &mut slow);
        }
    }
    let mut suspects = together(within_each_other(slow.into_values().collect()));
    suspects.iter_mut().for_each(|suspect| shorten_meetings(job, suspect));
    suspects
}

fn slow_ones(job: &Job, name: &str, groups: &Groups, slow: &mut BTreeMap<Vec<usize>, Suspect>) {
    let means: Vec<BTreeMap<usize, f64>> = groups.values().map(|all| means(all)).collect();
    let mut by_step: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    means.iter().flatten().for_each(|(step, mean)| by_step.entry(*step).or_default().push(*mean));
    let usual: BTreeMap<usize, f64> = by_step.iter().map(|(step, means)| (*step, median(means))).collect();
    for ((ranks, all), own) in groups.iter().zip(&means) {
        let lengths: Vec<f64> = own.values().copied().collect();
        let usual_then: Vec<f64> = own.keys().map(|step| usual[step]).collect();
        let [each, middle] = [median(&lengths), median(&usual_then)];
        let longer = own.iter().filter(|(step, length)| **length >= SLOW * usual[step]).count() as f64;
        if each < SLOW * middle || longer < HABIT * own.len() as f64 {
            continue;
        }
        let suspect = slow.entry(ranks.clone()).or_insert_with(|| Suspect {
            what: What::Group,
            ranks: ranks.clone(),
            links: links_of(job, all),
            amounts: [each, middle],
            step: own.keys().nth(largest(&lengths)).copied().unwrap_or(job.steps.start),
            ..Suspect::default()
        });
        suspect.names.push(name.to_owned());
        for it in all {
            // A single very long one is another cause.
            shorten(job, it.item, (it.length.min(2.0 * each) - usual[&it.step]).max(0.0), suspect);
        }
    }
}

/// The links of the network that carried these.
fn links_of(job: &Job, all: &[Collective]) -> Vec<usize> {
    let carried = all.iter().filter(|it| it.is_carried);
    let items: BTreeSet<usize> = carried.flat_map(|it| job.graph.partners(it.item)).collect();
    let links: BTreeSet<usize> = job.uses.iter().filter(|it| items.contains(&it.item)).map(|it| it.link).collect();
    links.into_iter().collect()
}

/// What a collective takes in each step, on average, ns.
fn means(all: &[Collective]) -> BTreeMap<usize, f64> {
    let mut sums: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
    for it in all {
        let (sum, count) = sums.entry(it.step).or_default();
        *sum += it.length;
        *count += 1.0;
    }
    sums.into_iter().map(|(step, (sum, count))| (step, sum / count)).collect()
}

/// A slow link slows down each group that has both its ends: the smallest one is named.
fn within_each_other(mut slow: Vec<Suspect>) -> Vec<Suspect> {
    slow.sort_by_key(|suspect| suspect.ranks.len());
    let mut smallest: Vec<Suspect> = Vec::new();
    for suspect in slow {
        let is_in_it = |it: &&mut Suspect| it.ranks.iter().all(|rank| suspect.ranks.contains(rank));
        match smallest.iter_mut().find(is_in_it) {
            Some(inner) => {
                inner.names.extend(suspect.names);
                inner.meetings.extend(suspect.meetings);
                inner.lengths.extend(suspect.lengths);
            }
            None => smallest.push(suspect),
        }
    }
    smallest
}

/// The collectives of groups in the steps that are looked at, by their kind, and by how many ranks
/// and hosts meet in one.
fn groups(job: &Job) -> BTreeMap<(u32, (usize, usize)), Groups> {
    let carried: BTreeSet<usize> = job.uses.iter().map(|it| it.item).collect();
    let mut by_kind: BTreeMap<(u32, (usize, usize)), Groups> = BTreeMap::new();
    for (meeting, members) in job.graph.meetings().enumerate() {
        let first = members[0] as usize;
        let kind = job.graph.items[first].kind;
        if members.len() == job.ranks.len()
            || !job.is_recorded(kind)
            || job.graph.meetings_of(first).next() != Some(meeting)
        {
            continue;
        }
        // Kernels that also exchange data with other ranks may wait for those.
        let is_like_first = |item: usize| {
            job.graph.items[item].kind == kind && job.graph.meetings_of(item).eq(job.graph.meetings_of(first))
        };
        if !job.graph.members_of(meeting).all(is_like_first) {
            continue;
        }
        let Some(step) = job.step_of(first).filter(|step| job.steps.contains(step)) else { continue };
        let ranks: Vec<usize> = members.iter().map(|item| job.graph.rank_of(*item)).collect();
        let hosts: BTreeSet<&Option<String>> = ranks.iter().map(|rank| &job.ranks[*rank].host).collect();
        let shape = (ranks.len(), hosts.len());
        let (length, is_carried) =
            (job.graph.length(first) as f64, job.graph.members_of(meeting).any(|item| carried.contains(&item)));
        let of_kind = by_kind.entry((kind, shape)).or_default();
        of_kind.entry(ranks).or_default().push(Collective { step, item: first, length, is_carried });
    }
    by_kind
}

#[cfg(test)]
mod tests {
    use super::super::find;
    use super::*;
    use crate::cli::compare::ranks::{Class, Kind};
    use crate::cli::diagnose::graph::{Graph, Item};
    use crate::cli::diagnose::job::{Link, RankFacts, Use};

    const RANKS: usize = 8;
    const STEPS: usize = 20;
    const US: i64 = 1_000;

    /// In each step ranks compute, meet in pairs and compute again; then those of a host meet, and
    /// then all do.
    struct Made {
        /// What a rank's first kernel takes in a step, us.
        work: fn(usize, usize) -> i64,
        /// What a pair's collective takes in a step once both have come, us.
        pair: fn(usize, usize) -> i64,
        /// The same for a host's.
        host: fn(usize) -> i64,
    }

    impl Made {
        const HEALTHY: Made =
            Made { work: |rank, step| 900 + (rank * 37 + step * 11) as i64 % 100, pair: |_, _| 300, host: |_| 400 };

        fn job(&self) -> Job {
            let (mut items, mut joined) = (vec![Vec::new(); RANKS], Vec::new());
            let (mut edges, mut now) = (vec![Vec::new(); RANKS], [0; RANKS]);
            for step in 0..STEPS {
                for rank in 0..RANKS {
                    edges[rank].push(items[rank].len());
                }
                for (phase, size) in [2, 4, RANKS].into_iter().enumerate() {
                    for group in 0..RANKS / size {
                        let members = group * size..(group + 1) * size;
                        for rank in members.clone() {
                            let work = US * if phase == 0 { (self.work)(rank, step) } else { 500 };
                            let kind = u32::from(phase > 0);
                            items[rank].push(Item { start: now[rank], end: now[rank] + work, kind, ..Item::default() });
                            now[rank] += work;
                        }
                        let length = [(self.pair)(group, step), (self.host)(group), 200][phase];
                        let end = members.clone().map(|rank| now[rank]).max().unwrap() + US * length;
                        for rank in members {
                            let kind = 2 + phase as u32;
                            let meeting =
                                Item { start: now[rank], end, kind, is_communication: true, ..Item::default() };
                            joined.push((
                                (step * 32 + phase * 8 + group) as u64,
                                rank as u32,
                                items[rank].len() as u32,
                            ));
                            items[rank].push(Item { stream: 1, ..meeting });
                            now[rank] = end;
                        }
                    }
                }
            }
            let kind = |class, name: &str| Kind { class, name: name.to_owned() };
            let facts = |rank: usize| RankFacts {
                label: format!("rank {rank}"),
                number: Some(rank as i32),
                host: Some(format!("node{}", rank / 4)),
                edges: edges[rank].clone(),
                ..RankFacts::default()
            };
            Job {
                ranks: (0..RANKS).map(facts).collect(),
                kinds: vec![
                    kind(Class::Kernel, "attention"),
                    kind(Class::Kernel, "mlp"),
                    kind(Class::Communication, "AllReduce 128 KiB bf16 on tp"),
                    kind(Class::Communication, "AllGather 4 MiB i8 on host"),
                    kind(Class::Communication, "AllReduce 4 B f32 on world"),
                ],
                steps: 1..STEPS - 1,
                graph: Graph::new(items, joined, (0..RANKS).collect()),
                ..Job::default()
            }
        }

        /// The kind, the ranks and the cost per step of each cause, us; and its operations.
        fn told(&self) -> Vec<(What, Vec<usize>, i64, Vec<String>)> {
            told(&self.job())
        }
    }

    fn told(job: &Job) -> Vec<(What, Vec<usize>, i64, Vec<String>)> {
        let cause = |it: super::super::Cause| (it.what, it.ranks, it.cost as i64 / US, it.names);
        find(job).causes.into_iter().map(cause).collect()
    }

    #[test]
    fn the_group_whose_collectives_take_longer_is_named_with_what_that_costs() {
        let made = Made { pair: |pair, _| if pair == 2 { 1_300 } else { 300 }, ..Made::HEALTHY };
        let told = made.told();
        let [(What::Group, ranks, 900..=1_000, names)] = &told[..] else { panic!("{told:?}") };
        assert_eq!((&ranks[..], &names[..]), (&[4, 5][..], &["AllReduce 128 KiB bf16 on tp".to_owned()][..]));
        assert_eq!(Made::HEALTHY.told(), []);
    }

    #[test]
    fn a_group_that_waits_for_a_late_rank_is_not_slow() {
        let made = Made { work: |rank, _| if rank == 5 { 2_000 } else { 900 }, ..Made::HEALTHY };
        let told = made.told();
        assert!(matches!(&told[..], [(What::Kernels, ranks, ..)] if ranks == &[5]), "{told:?}");
    }

    #[test]
    fn of_groups_within_each_other_the_smallest_is_named() {
        let pair = |pair: usize, _| if pair == 2 { 1_300 } else { 300 };
        let made = Made { pair, host: |host| if host == 1 { 1_600 } else { 400 }, ..Made::HEALTHY };
        let told = made.told();
        let [(What::Group, ranks, 2_000..=2_200, names)] = &told[..] else { panic!("{told:?}") };
        assert_eq!((&ranks[..], names.len()), (&[4, 5][..], 2));
    }

    #[test]
    fn what_is_slow_by_turns_or_everywhere_is_no_group_s_fault() {
        let told = |pair| Made { pair, ..Made::HEALTHY }.told();
        assert_eq!(told(|pair, step| if pair == 2 && step % 5 < 3 { 1_300 } else { 300 }), []);
        assert_eq!(told(|pair, step| if pair == step % 4 { 1_300 } else { 300 }), []);
        assert_eq!(told(|_, _| 1_300), []);
    }

    #[test]
    fn groups_are_only_compared_with_those_of_their_shape() {
        let made = Made { pair: |pair, _| if pair == 2 { 1_300 } else { 300 }, ..Made::HEALTHY };
        // Of this pair each rank is on a host of its own.
        let mut job = made.job();
        job.ranks[4].host = Some("node2".into());
        assert_eq!(told(&job), []);
    }

    #[test]
    fn what_the_network_carries_is_compared_by_link_unless_only_a_group_uses_it() {
        let made = Made { pair: |pair, _| if pair == 2 { 1_300 } else { 300 }, ..Made::HEALTHY };
        let carried = |ranks: &[usize]| {
            let mut job = made.job();
            job.links = ranks.iter().map(|from| Link { from: *from, to: Some(from ^ 1), peer: 1 }).collect();
            let items =
                ranks.iter().enumerate().flat_map(|(link, from)| job.graph.rank(*from).map(move |it| (link, it)));
            let items = items.filter(|(_, item)| job.graph.items[*item].kind == 2);
            job.uses = items.map(|(link, item)| Use { link, item, busy: 1e5, each: 1e5, ..Use::default() }).collect();
            find(&job).causes.into_iter().map(|it| (it.what, it.links)).collect::<Vec<_>>()
        };
        assert_eq!(carried(&[0, 1, 2, 3, 4, 5, 6, 7]), []);
        assert_eq!(carried(&[4, 5]), [(What::Group, vec![0, 1])]);
    }
}
