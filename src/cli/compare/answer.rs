//! The answer to "is it slower, and why" in one sentence.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::change::{Change, EFFECT, ENOUGH, Verdict};
use super::ranks::{Class, Way};
use super::slower::{Link, Part, Row, Slower};
use crate::cli::said;
use crate::import::knowledge::duration;

/// How many causes are named after the first.
const MORE: usize = 2;
/// How large another cause has to be, relative to the first, to be named with it.
const BESIDE: f64 = 0.2;
/// How much an idle GPU counts against a kernel that takes longer: the GPU may be idle because
/// another rank keeps its host waiting.
const IDLE: f64 = 0.7;
/// How much communication counts of which an unknown part is waiting: that may be the effect of
/// another cause.
const UNTOLD: f64 = 0.5;
/// The part of a step's growth that a cause has to explain if the step times alone do not show a
/// change.
const EXPLAINED: f64 = 0.5;
/// How many times more than any other link one link has to have lost to be named alone.
const STANDS_OUT: f64 = 1.5;
/// How many times the median a step is long; and by how much of the median step such ones have to
/// lengthen the average.
const LONG: f64 = 10.0;
const LONG_PART: f64 = 0.25;

/// The answer, as data and in words.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Answer {
    pub(crate) verdict: Verdict,
    /// By how much a step grew, ns; `None` without steps.
    pub(crate) step_growth: Option<f64>,
    /// What changed by itself, largest first.
    pub(crate) causes: Vec<Cause>,
    /// Ranks that wait longer or shorter for others, by about the same time.
    pub(crate) waiting: Vec<String>,
    pub(crate) text: String,
}

/// Something that changed by itself.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cause {
    pub(crate) part: Part,
    /// The ranks on which it changed.
    pub(crate) ranks: Vec<String>,
    /// What takes longer or shorter, largest first. If a step contains other work than before, what
    /// is new in it.
    pub(crate) what: Vec<String>,
    /// What the new work replaces.
    pub(crate) instead_of: Vec<String>,
    /// By how much it grew in a step, or in each execution, ns. 0 if a step contains other work and
    /// the noise hides what that costs.
    pub(crate) growth: f64,
    /// For a transfer that takes longer over one link: the sender and the receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<(String, String)>,
    pub(crate) text: String,
}

/// Words the answer.
pub(crate) fn of(slower: &Slower, is_kernels: bool) -> Answer {
    let names = Names(slower.ranks.iter().map(|rank| rank.a.clone()).collect());
    let (mut verdict, mut text) = headline(slower);
    let causes = causes(slower, &names, direction(verdict));
    if let Some(explained) = explained(slower, verdict, &causes) {
        (verdict, text) = (explained, taken(slower));
    }
    let direction = direction(verdict);
    let is_content = |cause: &Cause| !cause.instead_of.is_empty();
    let causes: Vec<Cause> =
        causes.into_iter().filter(|cause| direction * cause.growth >= 0.0 || is_content(cause)).collect();
    let waiting: Vec<&Row> = (slower.rows.iter())
        .filter(|row| {
            row.part == Part::Waits && row.change.verdict.is_change() && direction * row.change.growth() >= 0.0
        })
        .collect();
    match &causes[..] {
        [] if direction != 0.0 && slower.are_too_many => text.push_str(
            ", but what takes longer cannot be told: so many kinds of work on so many ranks, over so few steps, differ \
             as much by chance; compare runs with more steps",
        ),
        [] if direction != 0.0 && is_kernels && waiting.is_empty() => {
            verdict = Verdict::CannotTell;
            text = format!(
                "Cannot tell whether B is slower, because nothing that steps are made of changed beyond the noise of these runs, though {}",
                text.replacen("B's", "its", 1)
            );
        }
        [] if direction != 0.0 => text.push_str(&unexplained(slower, &waiting, &names)),
        [] => {}
        [first, more @ ..] => {
            text.push_str(if direction == 0.0 { "; but " } else { ": " });
            text.push_str(&first.text);
            text.push_str(&waiters(first, &waiting, &names, slower.steps.is_some()));
            // Where the first cause explains most, what may be waiting probably is its effect.
            let is_effect = |cause: &Cause| {
                let is_most = |steps: &Change| first.growth / steps.growth() >= EXPLAINED;
                let is_told = first.part != Part::Communicates && cause.part == Part::Communicates;
                is_told && slower.steps.as_ref().is_some_and(is_most)
            };
            // Where the noise hides the cost of other work, it may be large.
            let is_large = |cause: &Cause| cause.growth.abs() >= BESIDE * first.growth.abs() || cause.growth == 0.0;
            let counts = |cause: &&Cause| is_large(cause) && !is_effect(cause);
            let beside = more.iter().filter(counts).take(MORE);
            beside.for_each(|cause| text.push_str(&format!("; also, {}", cause.text)));
        }
    }
    text.push_str(&slower.steps.as_ref().and_then(long_ones).unwrap_or_default());
    text.push('.');
    let waiting: BTreeSet<String> = waiting.iter().flat_map(|row| row.ranks.clone()).collect();
    Answer {
        verdict,
        step_growth: slower.steps.map(|steps| steps.growth()),
        causes,
        waiting: waiting.into_iter().collect(),
        text,
    }
}

fn direction(verdict: Verdict) -> f64 {
    match verdict {
        Verdict::Slower => 1.0,
        Verdict::Faster => -1.0,
        Verdict::CannotTell | Verdict::Same | Verdict::TooFew => 0.0,
    }
}

/// If steps vary too much to show a change by themselves, they still grew if something in them grew
/// that explains most of it.
fn explained(slower: &Slower, verdict: Verdict, causes: &[Cause]) -> Option<Verdict> {
    let (steps, first) = (slower.steps.as_ref()?, causes.first()?);
    let growth = steps.growth();
    let is_most = first.growth / growth >= EXPLAINED && growth.abs() >= EFFECT * steps.a.median.min(steps.b.median);
    let found = if growth > 0.0 { Verdict::Slower } else { Verdict::Faster };
    (verdict == Verdict::CannotTell && is_most).then_some(found)
}

/// How long steps take, where the runs differ.
fn taken(slower: &Slower) -> String {
    slower.steps.as_ref().map_or_else(String::new, |steps| {
        let [a, b] = [duration(steps.a.median), duration(steps.b.median)];
        format!("B's steps take {b} instead of {a} ({})", percent(steps))
    })
}

/// Says where a few long steps make the steps of one run longer on average, which medians do not
/// show.
fn long_ones(steps: &Change) -> Option<String> {
    let [(a, more_a), (b, more_b)] = [&steps.a, &steps.b].map(|it| {
        let mean = it.sum / it.count as f64;
        (mean, mean - it.median)
    });
    let (name, run) = if more_a > more_b { ("A", &steps.a) } else { ("B", &steps.b) };
    let is_so = (more_a - more_b).abs() >= LONG_PART * steps.a.median && run.max >= LONG * run.median;
    let [a, b, longest] = [a, b, run.max].map(duration);
    is_so.then(|| {
        format!(
            ". On average they take {a} in A and {b} in B, because of a few long ones: the longest takes {longest} in {name}; \
             ncclscope diagnose looks for the cause"
        )
    })
}

/// Whether the second run is slower, and the beginning of the answer that says so.
fn headline(slower: &Slower) -> (Verdict, String) {
    let Some(steps) = &slower.steps else { return without_steps(slower) };
    let [a, b] = [duration(steps.a.median), duration(steps.b.median)];
    let grown = percent(steps);
    let part = |side: usize| format!("{:.0} %", 100.0 * steps.noise[side] / [steps.a, steps.b][side].median);
    let vary = format!("vary by {} within A and {} within B", part(0), part(1));
    let words = match steps.verdict {
        Verdict::Slower | Verdict::Faster => taken(slower),
        Verdict::Same => format!(
            "No difference beyond the noise of these runs: steps take {a} in A and {b} in B ({grown}), and {vary}"
        ),
        Verdict::CannotTell => {
            format!("Cannot tell whether B is slower, because steps {vary}: they take {a} in A and {b} in B ({grown})")
        }
        Verdict::TooFew => format!(
            "Cannot tell whether B is slower, because there are too few steps ({} and {} after warm-up, and {ENOUGH} are needed): they \
             take {a} in A and {b} in B",
            steps.a.count, steps.b.count
        ),
    };
    (steps.verdict, words)
}

/// The same for runs in which nothing repeats, from what each execution takes.
fn without_steps(slower: &Slower) -> (Verdict, String) {
    if slower.ranks.is_empty() {
        return (Verdict::CannotTell, "Cannot tell whether B is slower, because no rank is in both".into());
    }
    if slower.rows.is_empty() {
        let why = "Cannot tell whether B is slower, because nothing that ran in A ran in B often enough";
        return (Verdict::CannotTell, why.into());
    }
    let changed: Vec<&Row> = slower.rows.iter().filter(|row| row.part != Part::Waits).collect();
    let lost: f64 = changed.iter().filter(|row| row.change.verdict.is_change()).map(|row| row.lost).sum();
    let found = |verdict| changed.iter().any(|row| row.change.verdict == verdict);
    let verdict = match () {
        () if lost > 0.0 => Verdict::Slower,
        () if lost < 0.0 => Verdict::Faster,
        () if found(Verdict::CannotTell) => Verdict::CannotTell,
        () if found(Verdict::Same) => Verdict::Same,
        () => Verdict::TooFew,
    };
    let words = match verdict {
        Verdict::Slower => "No steps repeat in both runs; compared one by one, things take longer in B",
        Verdict::Faster => "No steps repeat in both runs; compared one by one, things take less time in B",
        Verdict::Same => {
            "No steps repeat in both runs; compared one by one, nothing differs beyond the noise of these runs"
        }
        Verdict::CannotTell => {
            "Cannot tell whether B is slower, because no steps repeat in both runs, and what runs varies much within each"
        }
        Verdict::TooFew => {
            "Cannot tell whether B is slower, because no steps repeat in both runs, and nothing runs often enough in both"
        }
    };
    (verdict, words.to_owned())
}

/// How much more or less, with its sign.
pub(super) fn grown(ns: f64) -> String {
    format!("{}{}", if ns < 0.0 { "-" } else { "+" }, duration(ns.abs()))
}

fn percent(change: &Change) -> String {
    match (100.0 * change.growth() / change.a.median.max(1.0)).round() {
        0.0 => "0 %".into(),
        percent => format!("{percent:+} %"),
    }
}

/// Names ranks briefly.
struct Names(Vec<String>);

impl Names {
    /// `rank 2`, `ranks 0 and 1`, `every rank`.
    fn say(&self, ranks: &[String]) -> String {
        let is_every = ranks.len() > 1 && self.0.iter().all(|rank| ranks.contains(rank));
        let number = |rank: &String| rank.strip_prefix("rank ")?.parse().ok();
        let numbers: Option<Vec<u32>> = ranks.iter().map(number).collect();
        match (ranks, numbers) {
            _ if is_every => "every rank".into(),
            ([one], _) => one.clone(),
            (_, Some(numbers)) => said::ranks(numbers),
            (_, None) => said::some(ranks),
        }
    }
}

/// What changed by itself, largest first, in this direction or in both.
fn causes(slower: &Slower, names: &Names, direction: f64) -> Vec<Cause> {
    let fits = |row: &&Row| row.change.verdict.is_change() && direction * row.change.growth() >= 0.0;
    let unit = if slower.steps.is_some() { " a step" } else { "" };
    let mut causes: Vec<Cause> = Vec::new();
    let rows: Vec<&Row> = slower.rows.iter().filter(|row| row.only.is_none()).filter(fits).collect();
    // For each rank, everything it does itself that changed in this direction.
    for part in [Part::Works, Part::Idles] {
        for sign in [1.0, -1.0] {
            let of_part = rows.iter().filter(|row| row.part == part && sign * row.change.growth() > 0.0);
            let mut ranks: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
            of_part.for_each(|row| ranks.entry(&row.ranks[0]).or_default().push(*row));
            causes.extend(of_ranks(part, &ranks, names, unit));
        }
    }
    let is_of_all = |row: &&&Row| matches!(row.part, Part::Transfers | Part::Communicates) && row.peer.is_none();
    let mut communication: BTreeMap<(Part, &str, bool), Vec<&Row>> = BTreeMap::new();
    for row in rows.iter().filter(is_of_all) {
        communication.entry((row.part, &row.what, row.change.growth() > 0.0)).or_default().push(*row);
    }
    causes.extend(communication.into_values().map(|rows| of_communication(rows, slower, names, unit)));
    causes.extend([1.0, -1.0].into_iter().filter_map(|sign| between(&rows, sign, slower, unit)));
    let counts = |part| match part {
        Part::Idles => IDLE,
        Part::Communicates => UNTOLD,
        Part::Works | Part::Transfers | Part::Waits => 1.0,
    };
    let weight = |cause: &Cause| cause.growth.abs() * counts(cause.part);
    causes.sort_by(|one, other| weight(other).total_cmp(&weight(one)));
    if let Some((content, most)) = other_contents(slower, names, direction) {
        let steps = slower.steps.filter(|_| direction != 0.0).map_or(0.0, |steps| steps.growth().abs());
        // What the noise hides may be as much as the first cause leaves unexplained.
        let rest = (steps - causes.first().map_or(0.0, |cause| cause.growth.abs())).max(0.0);
        let own = if content.growth == 0.0 { most.min(rest) } else { content.growth.abs() };
        let place = causes.partition_point(|cause| weight(cause) > own);
        causes.insert(place, content);
    }
    causes
}

/// Ranks whose own work changed or whose GPUs idle, with those that changed about as much as the
/// first.
fn of_ranks(part: Part, ranks: &BTreeMap<&str, Vec<&Row>>, names: &Names, unit: &str) -> Option<Cause> {
    let growth = |rows: &[&Row]| rows.iter().map(|row| row.change.growth()).sum::<f64>();
    let (_, most) = ranks.iter().max_by(|one, other| growth(one.1).abs().total_cmp(&growth(other.1).abs()))?;
    let all = growth(most);
    let alike: Vec<String> = (ranks.iter())
        .filter(|(_, rows)| growth(rows).abs() * 2.0 >= all.abs())
        .map(|(rank, _)| (*rank).to_owned())
        .collect();
    let mut rows = most.clone();
    rows.sort_by(|one, other| other.change.growth().abs().total_cmp(&one.change.growth().abs()));
    let longer = if all > 0.0 { "longer" } else { "less" };
    let who = names.say(&alike);
    let is_one = alike.len() == 1 || who == "every rank";
    let first = &rows[0].change;
    let (a, b) = (duration(first.a.median), duration(first.b.median));
    let text = match part {
        Part::Idles => {
            let verb = if is_one { "'s GPU idles" } else { " have GPUs that idle" };
            format!("{who}{verb} {longer}: {b}{unit} instead of {a}, for want of work from the host")
        }
        _ => {
            let verb = if is_one { "works" } else { "work" };
            let its = if is_one { "its" } else { "their" };
            let (sum, beside) = match rows.len() {
                1 => (String::new(), String::new()),
                2 => (format!(" ({}{unit})", grown(all)), format!(", and `{}` takes {longer} too", rows[1].what)),
                more => (format!(" ({}{unit})", grown(all)), format!(", and {} others take {longer} too", more - 1)),
            };
            let call = if rows[0].class == Some(Class::Call) { "call of " } else { "" };
            let name = &rows[0].what;
            format!("{who} {verb} {longer}{sum}: {its} {call}`{name}` takes {b}{unit} instead of {a}{beside}")
        }
    };
    let what = rows.iter().map(|row| row.what.clone()).collect();
    Some(Cause { part, ranks: alike, what, instead_of: Vec::new(), growth: all, link: None, text })
}

/// A collective that takes longer by itself, or together with the waiting in it: on the ranks where
/// it changed most, and on those where it changed about as much.
fn of_communication(mut rows: Vec<&Row>, slower: &Slower, names: &Names, unit: &str) -> Cause {
    rows.sort_by(|one, other| other.change.growth().abs().total_cmp(&one.change.growth().abs()));
    let row = rows[0];
    let is_alike = |it: &&&Row| 2.0 * it.change.growth().abs() >= row.change.growth().abs();
    let alike: BTreeSet<&String> = rows.iter().filter(is_alike).flat_map(|row| &row.ranks).collect();
    let ranks: Vec<String> = names.0.iter().filter(|rank| alike.contains(rank)).cloned().collect();
    let who = names.say(&ranks);
    let [a, b] = [duration(row.change.a.median), duration(row.change.b.median)];
    let what = &row.what;
    let longer = if row.change.growth() > 0.0 { "longer" } else { "less time" };
    // The network may have changed elsewhere, too.
    let is_among_them =
        |link: &&Link| [&link.from, &link.to].iter().all(|end| alike.contains(end) || !names.0.contains(end));
    let links: Vec<&Link> = slower.links.iter().filter(is_among_them).collect();
    let count = links.len();
    let links = changed(links, row.change.verdict);
    let link = alone(&links).filter(|_| row.part == Part::Transfers);
    let text = match (row.part, link) {
        (Part::Communicates, _) => format!(
            "on {who} {what} takes {b}{unit} instead of {a}, and how much of that is waiting for other ranks cannot be told{}",
            if slower.is_partial { " without their files" } else { "" }
        ),
        (_, link) => {
            let by = match link {
                Some(link) => network(link),
                None if links.is_empty() => {
                    "no rank comes later, so it is a link or NCCL itself; these files do not show which".into()
                }
                None => networks(&links, count, names),
            };
            let on = if who == "every rank" { String::new() } else { format!(" on {who}") };
            format!("{what} takes {longer} by itself{on}, {b}{unit} instead of {a}: {by}")
        }
    };
    Cause {
        part: row.part,
        ranks,
        what: vec![what.clone()],
        instead_of: Vec::new(),
        growth: row.change.growth(),
        link: link.map(|link| (link.from.clone(), link.to.clone())),
        text,
    }
}

/// Sends and receives whose transfers changed in this direction: those of the link where they
/// changed most, and how many more links there are.
fn between(rows: &[&Row], sign: f64, slower: &Slower, unit: &str) -> Option<Cause> {
    // By sender and receiver, or two ranks that both send; and by the rank that saw it.
    let mut pairs: BTreeMap<(&str, &str, bool), BTreeMap<&str, Vec<&Row>>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.part == Part::Transfers && sign * row.change.growth() > 0.0) {
        let (own, Some(peer)) = (row.ranks[0].as_str(), &row.peer) else { continue };
        let other = peer.rank.as_str();
        let pair = match peer.way {
            Way::To => (own, other, false),
            Way::From => (other, own, false),
            Way::With => (own.min(other), own.max(other), true),
        };
        pairs.entry(pair).or_default().entry(own).or_default().push(row);
    }
    let growth = |rows: &[&Row]| rows.iter().map(|row| row.change.growth()).sum::<f64>();
    // Both ends saw the same, and a sender says what was sent.
    let of_pair = |(pair, mut ends): ((_, _, _), BTreeMap<_, Vec<_>>)| {
        let (_, rows) = ends.remove_entry(&pair.0).or_else(|| ends.pop_first())?;
        Some((pair, growth(&rows), rows))
    };
    let mut pairs: Vec<_> = pairs.into_iter().filter_map(of_pair).collect();
    pairs.sort_by(|one, other| other.1.abs().total_cmp(&one.1.abs()));
    let ((from, to, is_both), all, mut rows) = (!pairs.is_empty()).then(|| pairs.remove(0))?;
    rows.sort_by(|one, other| other.change.growth().abs().total_cmp(&one.change.growth().abs()));
    let first = rows[0];
    let longer = if sign > 0.0 { "longer" } else { "less time" };
    let whom = if is_both { format!("between {from} and {to}") } else { format!("from {from} to {to}") };
    let [a, b] = [duration(first.change.a.median), duration(first.change.b.median)];
    let by = (slower.links.iter().find(|it| it.from == from && it.to == to))
        .filter(|link| link.change.verdict == first.change.verdict)
        .map_or_else(|| "neither rank comes later, so it is the link or NCCL itself".to_owned(), network);
    let more = match pairs.iter().filter(|(_, other, _)| 2.0 * other.abs() >= all.abs()).count() {
        0 => String::new(),
        1 => "; one other link has the same".to_owned(),
        more => format!("; {more} other links have the same"),
    };
    Some(Cause {
        part: Part::Transfers,
        ranks: vec![from.to_owned(), to.to_owned()],
        what: rows.iter().map(|row| row.what.clone()).collect(),
        instead_of: Vec::new(),
        growth: all,
        link: (!is_both && more.is_empty()).then(|| (from.to_owned(), to.to_owned())),
        text: format!("{} {whom} takes {longer} by itself, {b}{unit} instead of {a}: {by}{more}", first.what),
    })
}

/// What a link does, in words.
fn network(Link { from, to, change, .. }: &Link) -> String {
    let [a, b] = [duration(change.a.median), duration(change.b.median)];
    let longer = if change.growth() > 0.0 { "longer" } else { "less time" };
    format!("the network from {from} to {to} takes {longer}, {b} a transfer instead of {a}")
}

/// What several of so many links do, largest change first: from whom to whom, where all of them go
/// from some ranks to others, and where most.
fn networks(links: &[&Link], count: usize, names: &Names) -> String {
    let ends = |end: fn(&Link) -> &String| BTreeSet::from_iter(links.iter().map(|link| end(link).clone()));
    let (from, to) = (ends(|it| &it.from), ends(|it| &it.to));
    let who = |ranks: BTreeSet<String>| names.say(&Vec::from_iter(ranks));
    let whom = if from.is_disjoint(&to) { format!(", those from {} to {}", who(from), who(to)) } else { String::new() };
    let most = links.first().map_or_else(String::new, |link| format!("; most of all, {}", network(link)));
    format!("it is the network, on {} of {count} links{whom}{most}", links.len())
}

/// The links that changed this way, largest change first.
fn changed(mut links: Vec<&Link>, verdict: Verdict) -> Vec<&Link> {
    links.retain(|link| link.change.verdict == verdict);
    links.sort_by(|one, other| other.lost.abs().total_cmp(&one.lost.abs()));
    links
}

/// The one link that changed much more than the others.
fn alone<'a>(changed: &[&'a Link]) -> Option<&'a Link> {
    let (first, second) = (changed.first()?, changed.get(1));
    second.is_none_or(|second| first.lost.abs() >= STANDS_OUT * second.lost.abs()).then_some(*first)
}

/// What the steps of one run contain and those of the other do not; and by how much it may at most
/// have changed them in this direction, ns. That it differs is certain even where its cost is not.
fn other_contents(slower: &Slower, names: &Names, direction: f64) -> Option<(Cause, f64)> {
    // Of some executions it may be unknown how much of them is waiting.
    let is_in_both = |it: &Row| {
        let is_same = |row: &Row| row.what == it.what && row.ranks.iter().any(|rank| it.ranks.contains(rank));
        slower.rows.iter().any(|row| row.only.is_none() && is_same(row))
    };
    let only = slower.rows.iter().filter(|row| row.only.is_some() && row.part != Part::Waits);
    let only: Vec<&Row> = only.filter(|row| !is_in_both(row)).collect();
    let of = |side: char| -> Vec<String> {
        let names: BTreeSet<&str> =
            only.iter().filter(|row| row.only == Some(side)).map(|row| row.what.as_str()).collect();
        names.into_iter().map(str::to_owned).collect()
    };
    let (in_a, in_b) = (of('A'), of('B'));
    // By how much each rank's steps grew, with the noise.
    let mut ranks: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for rank in only.iter().flat_map(|row| row.ranks.iter().map(move |rank| (rank, row))) {
        let sums = ranks.entry(rank.0).or_default();
        (sums.0, sums.1) = (sums.0 + rank.1.change.growth(), sums.1 + rank.1.change.noise());
    }
    let (growth, noise) = ranks.values().copied().max_by(|one, other| one.0.abs().total_cmp(&other.0.abs()))?;
    let is_noise = growth.abs() <= noise;
    if direction * growth < 0.0 && !is_noise {
        return None;
    }
    let alike: Vec<String> = (ranks.iter())
        .filter(|(_, own)| own.0.abs() * 2.0 >= growth.abs())
        .map(|(rank, _)| (*rank).to_owned())
        .collect();
    let who = names.say(&alike);
    let whose = if who == "every rank" { String::new() } else { format!(" on {who}") };
    let by = if is_noise { "at a cost that the noise hides".into() } else { format!("{} a step", grown(growth)) };
    let text = match (&in_a[..], &in_b[..]) {
        ([], new) => format!("they have {} as well{whose}, {by}", said::some(new)),
        (old, []) => format!("they have no {}{whose}, {by}", said::some(old)),
        (old, new) => format!("they have {} instead of {}{whose}, {by}", said::some(new), said::some(old)),
    };
    let part = only.first().map_or(Part::Works, |row| row.part);
    let (growth, most) = (if is_noise { 0.0 } else { growth }, direction * growth + noise);
    Some((Cause { part, ranks: alike, what: in_b, instead_of: in_a, growth, link: None, text }, most))
}

/// Who waits for the ranks of a cause, and in what.
fn waiters(cause: &Cause, waiting: &[&Row], names: &Names, is_step: bool) -> String {
    let row_fits = |row: &&&Row| {
        row.change.growth() * cause.growth > 0.0 && !row.ranks.iter().any(|rank| cause.ranks.contains(rank))
    };
    // What may be waiting itself makes nobody else wait, as far as is known.
    if cause.part == Part::Communicates {
        return String::new();
    }
    let rows: Vec<&&Row> = waiting.iter().filter(row_fits).collect();
    let most = rows.iter().max_by(|one, other| one.lost.abs().total_cmp(&other.lost.abs()));
    let Some(most) = most else { return String::new() };
    let ranks: BTreeSet<String> = rows.iter().flat_map(|row| row.ranks.clone()).collect();
    let ranks: Vec<String> = ranks.into_iter().collect();
    let is_rest = ranks.len() + cause.ranks.len() == names.0.len() && ranks.len() > 1;
    let who = if is_rest { "the others".to_owned() } else { names.say(&ranks) };
    let verb = if ranks.len() == 1 { "waits" } else { "wait" };
    let it = if cause.ranks.len() == 1 { "it" } else { "them" };
    let growth = most.change.growth();
    let less = if growth < 0.0 { " less" } else { "" };
    let unit = if is_step { " a step" } else { "" };
    format!("; {who} {verb}{less} for {it} in {} ({}{unit})", most.said(), grown(growth))
}

/// Why a change has no cause.
fn unexplained(slower: &Slower, waiting: &[&Row], names: &Names) -> String {
    let Some(most) = waiting.first() else { return ", and without kernels in both the cause is unknown".into() };
    let ranks: BTreeSet<String> = waiting.iter().flat_map(|row| row.ranks.clone()).collect();
    let waits = if ranks.len() == 1 { "waits" } else { "wait" };
    let who = names.say(&ranks.into_iter().collect::<Vec<_>>());
    let waits = if who == "every rank" { "waits" } else { waits };
    let whom = if slower.is_partial {
        "for whom is not in these files"
    } else {
        "and no rank's own work changed beyond the noise"
    };
    format!(
        ": {who} {waits} in {} for {} instead of {}, {whom}",
        most.said(),
        duration(most.change.b.median),
        duration(most.change.a.median)
    )
}
