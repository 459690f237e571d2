//! The steps of a run: from the ranges that the program marked, or else from what repeats.
//!
//! What repeats is found by a kind of thing that divides everything a rank did into stretches of
//! the same content: a kernel that runs once per step or, if there is none, one that always runs
//! the same number of times. If there are several, the one with the shortest stretches is taken. A
//! few stretches may hold more than the others, as where a run is evaluated or saved in between.
//!
//! Where sizes change from step to step, other kernels compute each. Then what a rank communicates
//! divides a run that is looked at by itself; for comparing the work of two runs that is not
//! enough.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::ranks::{Class, Item, Rank, Ranks};
use crate::correlate::step_of;
use crate::import::{Profile, Span};
use crate::model::time::FileNs;
use crate::trace::names;

/// With fewer stretches, nothing counts as repeating.
const FEWEST: usize = 4;
/// With fewer, it cannot be said what holds up a job: the first ones warm up.
const MANY: usize = 6;
/// The fraction of the stretches, and of the time of what ran in them, that must have the same
/// content if something repeats strictly, and if it repeats.
const STRICT: f64 = 0.95;
const ALIKE: f64 = 0.8;
/// The fraction of the time, if what comes between steps takes long.
const MOST: f64 = 0.5;
/// How often what divides a rank's work may run in each step.
const MOST_OFTEN: usize = 256;
/// How many kinds are tried for that: those that run least often.
const RAREST: usize = 8;
/// How many stretches are looked at before all of them are.
const SAMPLE: usize = 16;
/// The fraction of what ran that must lie in marked steps for them to be used.
const INSIDE: f64 = 0.8;

/// How steps are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "by")]
pub(crate) enum Source {
    /// The program marked them with ranges.
    Ranges,
    /// Inferred.
    Repeats(Repeat),
}

/// What each inferred step begins with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Repeat {
    /// Its name.
    #[serde(rename = "from")]
    pub(crate) name: String,
    /// How often it runs in each step.
    pub(crate) times: usize,
}

impl Repeat {
    pub(crate) fn once(name: &str) -> Repeat {
        Repeat { name: name.to_owned(), times: 1 }
    }
}

/// When a rank's steps begin and the last one ends, in ns; and how that is known.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    pub(crate) source: Source,
    pub(crate) edges: Vec<FileNs>,
}

impl Steps {
    /// How long each one took.
    pub(crate) fn durations(&self) -> Vec<f64> {
        self.edges.windows(2).map(|edge| edge[1].since(edge[0]) as f64).collect()
    }
}

/// The steps of the same rank in two runs: both marked, or both by the same repeating thing, or
/// none.
pub(crate) fn of_both(
    [profile_a, profile_b]: [&Profile; 2],
    [ranks_a, ranks_b]: [&Ranks; 2],
    [a, b]: [&Rank; 2],
) -> Option<[Steps; 2]> {
    if let (Some(a), Some(b)) = (marked(profile_a, a), marked(profile_b, b)) {
        return Some([a, b]);
    }
    let (found_a, found_b) = (repeating(ranks_a, a), repeating(ranks_b, b));
    let both = found_a.iter().filter_map(|(name, one)| Some((one, found_b.get(name)?)));
    let best = both.min_by_key(|(a, b)| (a.grade.max(b.grade), a.items + b.items, a.first));
    match best {
        Some((a, b)) => Some([a.steps.clone(), b.steps.clone()]),
        // The contents of their steps differ, so what a step begins with may differ, too.
        None => Some([own(found_a)?, own(found_b)?]),
    }
}

/// The steps of what divides a rank by itself: those of the best grade, then the shortest, then the
/// first.
fn own(found: BTreeMap<Repeat, Repeating>) -> Option<Steps> {
    found.into_values().min_by_key(|it| (it.grade, it.items, it.first)).map(|it| it.steps)
}

/// The steps of a rank: those that the program marked, or else from what repeats, or from what
/// repeats of its communication. With a name: each from one thing of this name to the next.
pub(in crate::cli) fn of_one(profile: &Profile, ranks: &Ranks, rank: &Rank, name: Option<&str>) -> Option<Steps> {
    if let Some(name) = name {
        let is_it: Vec<bool> =
            ranks.kinds.iter().map(|kind| kind.name == name || names::short(&kind.name) == name).collect();
        let of_name = rank.items.iter().filter(|item| is_it[item.kind]);
        let edges: Vec<FileNs> = of_name.map(|item| item.span.start).collect();
        return (edges.len() > 1).then(|| Steps { source: Source::Repeats(Repeat::once(name)), edges });
    }
    let communicated = || repeating_among(ranks, rank, |class| class == Class::Communication);
    marked(profile, rank).or_else(|| own(repeating(ranks, rank))).or_else(|| own(communicated()))
}

/// The steps that the program marked.
fn marked(profile: &Profile, rank: &Rank) -> Option<Steps> {
    let mut starts: BTreeMap<u64, Span> = BTreeMap::new();
    for range in profile.ranges.iter().filter(|range| range.process == rank.process) {
        if let Some(number) = step_of(&range.name) {
            starts.entry(number).or_insert(range.span);
        }
    }
    // If the numbers run backwards, several loops use the same ones.
    let spans: Vec<Span> = starts.into_values().collect();
    if spans.len() < FEWEST || !spans.is_sorted() {
        return None;
    }
    // A GPU runs behind its host: its step begins with the first thing that was launched in the
    // host's step.
    let step = |at: FileNs| {
        spans.partition_point(|span| span.start <= at).checked_sub(1).filter(|step| at <= spans[*step].end)
    };
    let mut edges: Vec<Option<FileNs>> = vec![None; spans.len()];
    let mut inside = 0_usize;
    for item in &rank.items {
        if let Some(step) = step(item.launched.unwrap_or(item.span.start)) {
            inside += 1;
            edges[step].get_or_insert(item.span.start);
        }
    }
    let edges: Vec<FileNs> = edges.into_iter().flatten().collect();
    let is_whole = inside as f64 >= INSIDE * rank.items.len() as f64 && edges.is_sorted();
    (is_whole && edges.len() > FEWEST).then_some(Steps { source: Source::Ranges, edges })
}

/// How well something repeats; the best comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Grade {
    Strictly,
    Mostly,
    /// What comes between its stretches takes long.
    Interrupted,
    /// There are so few stretches that they may be made of many steps.
    Few,
}

struct Repeating {
    steps: Steps,
    grade: Grade,
    /// Items per step on average, in thousandths.
    items: usize,
    /// How many items of the rank come before the first one.
    first: usize,
}

/// Everything that divides what a rank did, without copies, into equal stretches.
fn repeating(ranks: &Ranks, rank: &Rank) -> BTreeMap<Repeat, Repeating> {
    // Programs copy whenever they please, and NCCL when it starts.
    repeating_among(ranks, rank, |class| class != Class::Copy)
}

/// Everything that divides the items of these classes into equal stretches.
fn repeating_among(ranks: &Ranks, rank: &Rank, is_in: fn(Class) -> bool) -> BTreeMap<Repeat, Repeating> {
    let mut places: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let repeats = |item: &&Item| item.unrecorded.is_none() && is_in(ranks.kinds[item.kind].class);
    let items: Vec<&Item> = rank.items.iter().filter(repeats).collect();
    for (at, item) in items.iter().enumerate() {
        places.entry(item.kind).or_default().push(at);
    }
    // A sum over what lies before each item, in any order, and how long that ran. The difference of
    // two sums is the content between them, except with a chance of 1 in 2^64.
    let mut before = Vec::with_capacity(items.len());
    let (mut content, mut ran) = (0_u64, 0);
    // Communication takes as long as others are waited for, so it only counts without other work.
    let communicates = |item: &Item| ranks.kinds[item.kind].class == Class::Communication;
    let has_work = items.iter().any(|item| !communicates(item));
    for item in &items {
        before.push((content, ran));
        content = content.wrapping_add(mixed(item.kind as u64 + 1));
        ran += if has_work && communicates(item) { 0 } else { item.span.duration() };
    }
    let divided = |kind: usize, places: &[usize], times: usize| {
        let repeat = Repeat { name: ranks.kinds[kind].name.clone(), times };
        let found = stretches(&items, &before, places, &repeat)?;
        Some((repeat, found))
    };
    let mut once: BTreeMap<_, _> = places.iter().filter_map(|(kind, places)| divided(*kind, places, 1)).collect();
    if once.values().any(|it| it.grade <= Grade::Mostly) {
        return once;
    }
    // Steps of equal blocks, such as layers, have nothing that runs only once.
    let mut rarest: Vec<(usize, Vec<usize>)> = places.into_iter().filter(|(_, it)| it.len() > 2 * FEWEST).collect();
    rarest.sort_by_key(|(_, places)| places.len());
    let found = rarest.iter().take(RAREST).filter_map(|(kind, places)| {
        let most = (places.len() / (FEWEST + 1)).min(MOST_OFTEN);
        (2..=most).filter(|times| seem_alike(&before, places, *times)).find_map(|times| divided(*kind, places, times))
    });
    once.extend(found);
    once
}

/// Whether half of some stretches have the same content, if a thing runs this often in each.
fn seem_alike(before: &[(u64, u64)], places: &[usize], times: usize) -> bool {
    let apart = (places.len() / SAMPLE).max(1);
    let mut contents: Vec<u64> = places[times..]
        .iter()
        .zip(places)
        .step_by(apart)
        .map(|(end, begin)| before[*end].0.wrapping_sub(before[*begin].0))
        .collect();
    contents.sort_unstable();
    let most = contents.chunk_by(|a, b| a == b).map(<[u64]>::len).max();
    most.is_some_and(|most| 2 * most >= contents.len())
}

/// Spreads the bits of a number (the last step of splitmix64).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// `before` has the content before each item, and how long it ran, ns; `places` is where the thing
/// that divides the items is.
fn stretches(items: &[&Item], before: &[(u64, u64)], places: &[usize], repeat: &Repeat) -> Option<Repeating> {
    let edges: Vec<usize> = places.iter().step_by(repeat.times).copied().collect();
    let (&first, &last) = edges.first().zip(edges.last())?;
    let all = edges.len() - 1;
    if all < FEWEST {
        return None;
    }
    let ran = |from: usize, to: usize| before[to].1 - before[from].1;
    let mut contents: HashMap<u64, (usize, u64)> = HashMap::new();
    for ends in edges.windows(2) {
        let content = before[ends[1]].0.wrapping_sub(before[ends[0]].0);
        let entry = contents.entry(content).or_default();
        entry.0 += 1;
        entry.1 += ran(ends[0], ends[1]);
    }
    let (count, of_them) = contents.into_values().max()?;
    // A long pause in a step does not count: what it holds is what repeats.
    let (alike, of_time) = (count as f64 / all as f64, of_them as f64 / (ran(first, last) as f64).max(1.0));
    let grade = match alike.min(of_time) {
        _ if alike < ALIKE || of_time < MOST => return None,
        _ if all < MANY => Grade::Few,
        least if least >= STRICT => Grade::Strictly,
        least if least >= ALIKE => Grade::Mostly,
        _ => Grade::Interrupted,
    };
    // If it repeats at all, what lies before the first and after the last is only what a program
    // does around its steps.
    let is_most = (last - first) * 2 > items.len();
    is_most.then(|| Repeating {
        steps: Steps {
            source: Source::Repeats(repeat.clone()),
            edges: edges.iter().map(|at| items[*at].span.start).collect(),
        },
        grade,
        items: (last - first) * 1000 / all,
        first,
    })
}
