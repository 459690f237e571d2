//! The sentences about a job.

use std::collections::{BTreeMap, BTreeSet};

use super::{LookAt, OfLink, Told, capitalized, look_at, percent};
use crate::cli::compare::ranks::{Class, UNRECORDED};
use crate::cli::diagnose::causes::{Cause, ENOUGH, Findings, Measure, Part, What};
use crate::cli::diagnose::graph::Item;
use crate::cli::diagnose::job::{Job, Link, RankFacts, often};
use crate::cli::diagnose::shares::OfRank;
use crate::cli::said;
use crate::trace::names::{duration, quoted, short};

/// The fraction of a step, or of all steps, that is worth mentioning.
const MUCH: f64 = 0.1;
/// How much the mean step must exceed the median for long steps to be mentioned, as a fraction; and
/// how many medians a single long step must take.
const LONG: f64 = 0.15;
const SINGLE: f64 = 20.0;
const WAITING_FOR_HOST: &str = "4. Is the GPU waiting for the host?";

/// Words the sentences about a job.
pub(super) struct Names<'a> {
    pub(super) job: &'a Job,
}

impl Names<'_> {
    fn number(&self, rank: usize) -> i64 {
        self.job.ranks[rank].number.map_or(rank as i64, i64::from)
    }

    /// `rank 2`, `ranks 0 and 1`, `every rank`.
    fn who(&self, ranks: &[usize]) -> String {
        let label = |rank: &usize| self.job.ranks[*rank].label.as_str();
        let number = |rank: &usize| self.job.ranks[*rank].number.and_then(|it| u32::try_from(it).ok());
        match ranks {
            [one] => label(one).to_owned(),
            all if all.len() == self.job.ranks.len() => "every rank".to_owned(),
            [] => "no rank".to_owned(),
            many => match many.iter().map(number).collect::<Option<Vec<u32>>>() {
                Some(numbers) => said::ranks(numbers),
                None => said::some(&many.iter().map(label).collect::<Vec<_>>()),
            },
        }
    }

    /// ` on node1`, ` on node1 and node2`; and which GPU one rank is, if its process has several.
    fn on(&self, ranks: &[usize]) -> String {
        let hosts = self.hosts(ranks);
        if hosts.is_empty() {
            return String::new();
        }
        let host = said::some(&hosts);
        match ranks {
            all if all.len() == self.job.ranks.len() => String::new(),
            [one] => match &self.job.ranks[*one] {
                RankFacts { gpu: Some(gpu), pid, number: Some(_), .. } => format!(" on {host} ({gpu} of pid {pid})"),
                _ => format!(" on {host}"),
            },
            _ => format!(" on {host}"),
        }
    }

    /// Whether other ranks run on its host.
    fn shares_host(&self, rank: usize) -> bool {
        let host = &self.job.ranks[rank].host;
        host.is_none() || self.job.ranks.iter().filter(|it| it.host == *host).count() > 1
    }

    fn hosts(&self, ranks: &[usize]) -> Vec<String> {
        let mut hosts: Vec<String> = ranks.iter().filter_map(|rank| self.job.ranks[*rank].host.clone()).collect();
        hosts.sort();
        hosts.dedup();
        hosts
    }

    /// A cause, in a sentence without its end.
    fn text(&self, cause: &Cause) -> String {
        let Cause { what, ranks, amounts, names, .. } = cause;
        let (who, on) = (self.who(ranks), self.on(ranks));
        let [own, others] = amounts.map(duration);
        let is_one = ranks.len() == 1 || ranks.len() == self.job.ranks.len();
        let s = if is_one { "s" } else { "" };
        let (its, gpus, have) = if is_one { ("its", "GPU", "has") } else { ("their", "GPUs", "have") };
        let names: Vec<_> = names.iter().map(|name| short(name)).collect();
        let name = names.first().map_or("", |name| name.as_ref());
        let more = match names.len() {
            0 | 1 => String::new(),
            2 => format!(", and `{}` takes longer, too", names[1]),
            more => format!(", and {} other kernels take longer, too", more - 1),
        };
        match what {
            What::Kernels if amounts[1] == 0.0 => {
                format!("{who}{on} run{s} `{name}` for {own} a step, which the other ranks do not{more}")
            }
            What::Kernels => {
                format!(
                    "{who}{on} compute{s} longer than the others: {its} `{name}` takes {own} a step instead of {others}{more}"
                )
            }
            What::Host => format!(
                "{who}{on} get{s} work from {its} host too late: {its} {gpus} {have} nothing to do for {own} a step, those of the others for {others}"
            ),
            What::Link => {
                let (link, is_one) = self.links(cause);
                let are = if is_one { "is" } else { "are" };
                let is_direct = self.job.uses.iter().any(|it| it.is_direct && cause.links.contains(&it.link));
                let within = if is_direct { " within a host" } else { "" };
                let shown = if is_direct { ", as far as kernels show" } else { "" };
                format!(
                    "{link} {are} slow: a transfer of {name} takes {own} there, on the other links{within} {others}{shown}"
                )
            }
            What::Stall => {
                let (link, is_one) = self.links(cause);
                let s = if is_one { "s" } else { "" };
                let what = if cause.is_once { "stood still once".into() } else { format!("stall{s} now and then") };
                format!("{link} {what}: {name} kept it busy for {own}, usually for {others}")
            }
            What::Processor => {
                let threads = if is_one { "thread" } else { "threads" };
                format!(
                    "{who}{on} lack{s} processor time: {its} proxy {threads} had to wait for it while transfers of {name} took {own} on {} instead of {others}",
                    self.links(cause).0
                )
            }
            What::GpuWait => {
                let near = |rank: &usize| self.shares_host(*rank);
                let or_next = if ranks.iter().any(near) { ", or the next on that host" } else { "" };
                format!(
                    "{who}{on} take{s} late what has arrived: for {name}, each transfer waits {own} for {its} {gpus}{or_next}, elsewhere {others}"
                )
            }
            What::Group => {
                let through = if cause.links.is_empty() { "" } else { "; there it goes through the network" };
                format!(
                    "{who}{on} exchange data slowly: {name} takes {own} once all of them have come, in other groups {others}{through}"
                )
            }
            What::StoodStill => {
                let did = match name {
                    "" => format!(
                        "for {own} {its} {gpus}, or one that gets data from there, took nothing of what had arrived"
                    ),
                    name => format!("{its} {gpus} did not end `{name}` for {own}, when those of the others had"),
                };
                format!("{who}{on} stood still once: {did}")
            }
            What::Pauses if cause.is_once => {
                format!("{who}{on} paused once: {its} {gpus} had nothing to do for {own}, usually for {others}")
            }
            What::Pauses => {
                let when = match cause.every {
                    Some(every) => format!("every {every} steps"),
                    None => "now and then".to_owned(),
                };
                format!(
                    "{when} {who}{on} pause{s}: {its} {gpus} {have} nothing to do for {own}, in other steps for {others}"
                )
            }
            What::HostBound => format!("the hosts are too slow: the GPUs have nothing to do for {own} of each step"),
            What::UnequalWork if cause.every.is_some() => format!(
                "{who}{on} {have} most of the work: {own} a step, where the ranks have {others} on average; most of the difference is `{name}`"
            ),
            What::UnequalWork => format!(
                "the work is unequal, and in each step another rank has most: {own} a step, where the ranks have {others} on average; most of the difference is `{name}`"
            ),
        }
    }

    /// The links of a cause: `the link from rank 1 to rank 2`, `the link between rank 1 and rank
    /// 2`, `the links of rank 2`, `the links of node3`; and whether it is one.
    fn links(&self, cause: &Cause) -> (String, bool) {
        let label = |rank: usize| self.job.ranks[rank].label.as_str();
        let all: Vec<&Link> = cause.links.iter().map(|link| &self.job.links[*link]).collect();
        let Some(first) = all.first() else { return (String::new(), true) };
        let peer = format!("peer {}", first.peer);
        let to = first.to.map_or(peer.as_str(), label);
        let on = cause.channel.map_or_else(String::new, |channel| format!(" on channel {channel}"));
        match all[1..] {
            [] => (format!("the link from {} to {to}{on}", label(first.from)), true),
            [back] if back.to == Some(first.from) && first.to == Some(back.from) => {
                (format!("the link between {} and {to}{on}", label(first.from)), true)
            }
            ref more => {
                let named = || match more {
                    [Link { from, to: Some(second), .. }] => {
                        let (from, second) = (label(*from), label(*second));
                        format!("the links from {} to {to} and from {from} to {second}{on}", label(first.from))
                    }
                    _ => format!("the link from {} to {to}{on} and {} more", label(first.from), more.len()),
                };
                (self.in_common(cause).unwrap_or_else(named), false)
            }
        }
    }

    /// What several links have in common: a rank, two hosts, or one. If more than these have it,
    /// two are too few.
    fn in_common(&self, cause: &Cause) -> Option<String> {
        let host = |rank: usize| self.job.ranks[rank].host.as_deref();
        let hosts = |link: &Link| Some([host(link.from)?, host(link.to?)?]).filter(|[from, to]| from != to);
        let direct: BTreeSet<usize> = self.job.uses.iter().filter(|it| it.is_direct).map(|it| it.link).collect();
        let is_direct = |link: usize| direct.contains(&link);
        let are_direct = is_direct(cause.links[0]);
        let known =
            (0..self.job.links.len()).filter(|link| cause.links.contains(link) || is_direct(*link) == are_direct);
        let known: Vec<&Link> = known.map(|link| &self.job.links[link]).collect();
        let named = |whose: String, is_of: &dyn Fn(&Link) -> bool| {
            let of_all = cause.links.iter().all(|link| is_of(&self.job.links[*link]));
            let (some, all) = (cause.links.len(), known.iter().filter(|link| is_of(link)).count());
            let count = if some < all { format!("{some} of the {all} links") } else { "the links".into() };
            (of_all && (some > 2 || some == all)).then(|| format!("{count} {whose}"))
        };
        let first = &self.job.links[cause.links[0]];
        let of_rank = |rank: usize| {
            named(format!("of {}", self.job.ranks[rank].label), &|link| link.from == rank || link.to == Some(rank))
        };
        let between = |[one, other]: [&str; 2]| {
            let is_between = |link: &Link| hosts(link).is_some_and(|ends| ends.contains(&one) && ends.contains(&other));
            named(format!("between {one} and {other}"), &is_between)
        };
        let of_host = |of: &str| named(format!("of {of}"), &|link| hosts(link).is_some_and(|ends| ends.contains(&of)));
        [Some(first.from), first.to]
            .into_iter()
            .flatten()
            .find_map(of_rank)
            .or_else(|| between(hosts(first)?))
            .or_else(|| hosts(first)?.into_iter().find_map(of_host))
    }

    pub(super) fn without(&self, cause: &Cause) -> String {
        match cause.what {
            What::Kernels if cause.amounts[1] == 0.0 => {
                let name = cause.names.first().map_or("", String::as_str);
                format!("without `{}` on {}", short(name), self.who(&cause.ranks))
            }
            What::Kernels => format!("if the kernels of {} took as long as the others'", self.who(&cause.ranks)),
            What::Host => format!("if the host of {} were as fast as the others'", self.who(&cause.ranks)),
            What::Link => format!("if {} were as fast as the others", self.links(cause).0),
            What::Stall => format!("if {} did not stall", self.links(cause).0),
            What::Processor => {
                let threads = if cause.ranks.len() == 1 { "thread" } else { "threads" };
                format!("if the proxy {threads} of {} never waited for a processor", self.who(&cause.ranks))
            }
            What::GpuWait => format!("if {} took what has arrived as fast as the others", self.who(&cause.ranks)),
            What::Group => format!("if {} exchanged data as fast as other groups", self.who(&cause.ranks)),
            What::StoodStill => format!("if {} had not stood still", self.who(&cause.ranks)),
            What::Pauses if cause.is_once => "without the pause".to_owned(),
            What::Pauses => "without the pauses".to_owned(),
            What::HostBound => "if the GPUs always had work".to_owned(),
            What::UnequalWork => "if the work were shared equally".to_owned(),
        }
    }

    pub(super) fn told(&self, cause: &Cause, found: &Findings) -> Told {
        let links: Vec<OfLink> = (cause.links.iter().map(|link| &self.job.links[*link]))
            .map(|link| OfLink {
                from: self.number(link.from),
                to: link.to.map_or(i64::from(link.peer), |to| self.number(to)),
            })
            .collect();
        Told {
            kind: cause.what,
            ranks: cause.ranks.iter().map(|rank| self.number(*rank)).collect(),
            hosts: self.hosts(&cause.ranks),
            link: links.first().copied(),
            links,
            channel: cause.channel,
            what: cause.names.clone(),
            every: cause.every,
            cost_ns: cause.cost.max(0.0) as u64,
            doubt_ns: (found.error + found.steps.spread) as u64,
            share: cause.cost / found.steps.mean.max(1.0),
            text: capitalized(&self.text(cause)),
            differing: Vec::new(),
            look_at: self.look_at(cause),
        }
    }

    fn look_at(&self, cause: &Cause) -> LookAt {
        let query = match cause.what {
            What::Kernels | What::UnequalWork | What::StoodStill => "1. Who comes late?",
            What::Link | What::Stall | What::Processor => "2. Which link is slow?",
            What::Group => "8. What bandwidth does each communicator reach?",
            What::GpuWait => "3. What does the proxy wait for: GPU, peer, network?",
            What::Host | What::Pauses | What::HostBound => WAITING_FOR_HOST,
        };
        self.look_at_step(cause.ranks.first().copied().unwrap_or(0), cause.step, cause.what.is_idleness(), query)
    }

    /// Where to see the longest step, if nothing explains why steps take long.
    pub(super) fn look_at_longest(&self, found: &Findings) -> Option<LookAt> {
        let is_long = has_long_steps(&found.usual) || has_a_long_step(&found.usual);
        let is_wanted = found.causes.is_empty() && is_long && self.job.has_kernels();
        is_wanted.then(|| self.look_at_step(0, found.usual.longest.1, true, WAITING_FOR_HOST))
    }

    fn look_at_step(&self, rank: usize, step: usize, with_idle: bool, query: &'static str) -> LookAt {
        let facts = &self.job.ranks[rank];
        let (from, to) = self.job.step_times(rank, step, with_idle);
        let (from_ns, to_ns) = (from - facts.begin.0, to - facts.begin.0);
        let file = quoted(&facts.file);
        LookAt {
            command: match facts.is_ours {
                true => look_at(&facts.file, from_ns, to_ns),
                false => format!("ncclscope import {file} -o it.perfetto-trace && ncclscope open it.perfetto-trace"),
            },
            file: facts.file.display().to_string(),
            step: self.job.numbering.first + step,
            from_ns,
            to_ns,
            query,
        }
    }

    /// Why nothing can be said.
    pub(super) fn cannot_tell(&self, found: &Findings, shares: &[OfRank]) -> Option<String> {
        let job = self.job;
        let step = found.steps.mean;
        let steps = job.steps.len();
        if let Some(parts) = &job.gaps {
            return Some(format!(
                "Cannot tell: the settings left out a part of what ran ({parts}); windows of time, operations or steps \
                 leave out nothing within them"
            ));
        }
        if !job.has_kernels() {
            let why = job.no_kernels.as_deref().unwrap_or("`ncclscope info` may say why");
            return Some(format!("Cannot tell: there are no kernels in these files: {why}"));
        }
        if !job.has_own_work() {
            let last = (0..job.ranks.len()).max_by(|one, other| shares[*one].last.total_cmp(&shares[*other].last));
            let much = (1.5 / job.ranks.len() as f64).max(MUCH);
            let last = last.filter(|rank| shares[*rank].last > much).map_or_else(String::new, |rank| {
                format!("; {} comes last most often, in {}", job.ranks[rank].label, percent(shares[rank].last))
            });
            return Some(format!(
                "Cannot tell what GPUs do between operations: the application's kernels are not in these files{last}"
            ));
        }
        if job.numbering.source.is_none() {
            let idle =
                shares.iter().map(|it| it.idle_ns / (it.own_ns + it.exposed_ns + it.waits_ns + it.idle_ns).max(1.0));
            let idle = idle.fold(1.0, f64::min);
            let idle = if idle > MUCH {
                format!(". The GPUs have nothing to do for {} of the time", percent(idle))
            } else {
                String::new()
            };
            let often = often(&job.kinds, job.graph.items.iter());
            return Some(format!(
                "Cannot tell: no steps repeat in these files; name what each step begins with, with --step{often}{idle}"
            ));
        }
        if steps < ENOUGH {
            return Some(format!("Cannot tell: it takes {ENOUGH} steps after warm-up; these files have {steps}"));
        }
        if found.error > 2.0 * MUCH * found.steps.median {
            return Some(format!(
                "Cannot tell, because a replay of the job is off by {} a step",
                duration(found.error)
            ));
        }
        if let Some(cause) = found.doubtful.first() {
            return Some(format!(
                "Cannot tell, because steps differ by {}, more than any cause explains; the most likely one is that {}",
                duration(found.steps.spread),
                self.text(cause)
            ));
        }
        if has_long_steps(&found.usual) {
            let (longest, at) = found.usual.longest;
            let what = match found.usual.long {
                1 => "one step takes much longer, and nothing shows that a rank or link is at fault",
                _ => "now and then a step takes much longer, and no rank or link is at fault in all of them",
            };
            return Some(format!(
                "Cannot tell: {what}. The median step takes {}, the mean is {}, and step {at} takes {}{}",
                duration(found.usual.median),
                duration(found.usual.mean),
                duration(longest),
                self.of_longest(found),
                at = job.numbering.first + at
            ));
        }
        let communicates = (0..job.ranks.len()).any(|rank| shares[rank].exposed_ns > MUCH * step);
        if job.ranks.len() > 1 && job.graph.meetings().len() == 0 && communicates {
            return Some(
                "Cannot tell: these files do not say which kernels of different ranks belong together".to_owned(),
            );
        }
        let waiting = (0..job.ranks.len()).find(|rank| {
            let OfRank { exposed_ns, waits_ns, .. } = shares[*rank];
            exposed_ns + waits_ns > MUCH * step
        });
        let Some(missing) = missing(job) else { return self.alone(shares, step).filter(|_| job.ranks.len() > 1) };
        let rank = waiting?;
        let OfRank { exposed_ns, waits_ns, .. } = shares[rank];
        Some(format!(
            "Cannot tell for whom the ranks wait. {missing}: {} spends {} of each step of {} in communication alone",
            job.ranks[rank].label,
            duration(exposed_ns + waits_ns),
            duration(step)
        ))
    }

    /// Of a healthy job: that one of its steps is long, if that is much of the time.
    pub(super) fn long_step(&self, found: &Findings) -> String {
        if !has_a_long_step(&found.usual) {
            return String::new();
        }
        let (longest, at) = found.usual.longest;
        let what = match self.of_longest(found) {
            what if what.is_empty() => ", and nothing shows why".to_owned(),
            what => what,
        };
        format!(". Step {} takes {}{what}", self.job.numbering.first + at, duration(longest))
    }

    /// What the longest step goes into, as the end of a sentence; empty if nothing stands out.
    fn of_longest(&self, found: &Findings) -> String {
        let job = self.job;
        let (_, step) = found.usual.longest;
        let part = found.of_longest.as_ref().map(|Part { kind, ns, rank }| {
            let (rank, ns) = (rank.map(|it| &job.ranks[it.0].label), duration(*ns));
            match (kind.map(|kind| &job.kinds[kind as usize]), rank) {
                (None, Some(rank)) => format!("the GPU of {rank} has nothing to do for {ns} of it"),
                (None, None) => format!("the GPUs have nothing to do for {ns} of it"),
                (Some(kind), _) if kind.class == Class::Communication => {
                    format!("{} takes {ns} of it", short(&kind.name))
                }
                (Some(kind), Some(rank)) => format!("`{}` on {rank} takes {ns} of it", short(&kind.name)),
                (Some(kind), None) => format!("`{}` takes {ns} of it", short(&kind.name)),
            }
        });
        let created = |rank: usize| {
            let (from, to) = job.step_times(rank, step, false);
            job.ranks[rank].created.iter().filter(move |it| (from..to).contains(&it.0.0)).map(|it| it.1.as_str())
        };
        let created: BTreeSet<&str> = match part {
            Some(_) => (0..job.ranks.len()).flat_map(created).collect(),
            None => BTreeSet::new(),
        };
        let created = match created.len() {
            0 => None,
            1 => created.first().map(|name| format!("communicator {name} is created in it")),
            many => Some(format!("{many} communicators are created in it")),
        };
        let all: Vec<String> = part.into_iter().chain(created).collect();
        if all.is_empty() { String::new() } else { format!(": {}", all.join(", and ")) }
    }

    /// Why nothing can be said if a rank is in kernels for long that are not matched to others.
    fn alone(&self, shares: &[OfRank], step: f64) -> Option<String> {
        let job = self.job;
        let (rank, ns, kind) = (0..job.ranks.len()).find_map(|rank| {
            let mut by_kind: BTreeMap<u32, i64> = BTreeMap::new();
            for item in job.looked_at(rank).filter(|item| job.graph.meetings_of(*item).next().is_none()) {
                let Item { kind, is_communication, .. } = job.graph.items[item];
                *by_kind.entry(kind).or_default() += if is_communication { job.graph.length(item) } else { 0 };
            }
            let each = by_kind.values().sum::<i64>() as f64 / job.steps.len().max(1) as f64;
            let ns = each.min(shares[rank].exposed_ns);
            let most = by_kind.into_iter().max_by_key(|it| it.1).filter(|_| ns > MUCH * step)?;
            Some((rank, ns, most.0))
        })?;
        Some(format!(
            "Cannot tell for whom the ranks wait: {} spends {} of each step of {} in NCCL kernels that cannot be \
             matched to those of other ranks, mostly in `{}`",
            job.ranks[rank].label,
            duration(ns),
            duration(step),
            short(&job.kinds[kind as usize].name)
        ))
    }

    pub(super) fn notes(&self, found: &Findings) -> Vec<String> {
        let job = self.job;
        let mut notes = job.notes.clone();
        if job.gaps.is_some() {
            notes.push("What the settings left out counts as idle time".to_owned());
        }
        let unrecorded: Vec<f64> =
            job.ranks.iter().filter(|it| it.unrecorded_ns > 0).map(|it| it.unrecorded_ns as f64).collect();
        if let Some(most) = unrecorded.iter().copied().reduce(f64::max) {
            notes.push(format!(
                "On {} of {} ranks GPUs worked for up to {} on {UNRECORDED}: none had ended for seconds, so CUPTI was \
                 flushed by force, which shows a hang and costs the records of what was still to run",
                unrecorded.len(),
                job.ranks.len(),
                duration(most)
            ));
        }
        if let Some(first) = found.fuller.first() {
            let (of, count) = (job.steps.len(), found.fuller.len());
            let (these, hold) = if count == 1 { ("1", "holds") } else { (&*count.to_string(), "hold") };
            notes.push(format!(
                "{these} of the {of} steps {hold} more work on every rank, as where a run is evaluated in between: the \
                 first is step {}",
                job.numbering.first + first
            ));
        }
        if job.ranks.len() > 1 && job.has_kernels() && job.graph.meetings().len() == 0 {
            notes.push(
                "Which kernels of different ranks belong together is not in these files, so waits are not known"
                    .to_owned(),
            );
        }
        if let Some(missing) = missing(job) {
            let which = if job.missing + job.without_kernels == 1 { "that rank" } else { "one of them" };
            notes.push(format!("{missing}, and {which} may be the cause"));
        }
        let hosts: BTreeSet<&Option<String>> = job.ranks.iter().map(|rank| &rank.host).collect();
        if job.links.is_empty() && hosts.len() > 1 && job.has_kernels() && found.steps.mean > 0.0 {
            let these = if job.numbering.is_of_ends { "at the ends of these files" } else { "in these files" };
            notes.push(format!(
                "There are no network transfers {these}, so links cannot be compared (NCCLSCOPE_PRESET=standard \
                 records them)"
            ));
        }
        if found.error > MUCH * found.steps.median.max(1.0) {
            notes.push(format!(
                "A replay of the job is off by {} a step: what a step would take without a cause is a rough estimate",
                duration(found.error)
            ));
        }
        notes
    }
}

/// Whether some steps are so long that the others do not show what the job's time goes into.
fn has_long_steps(steps: &Measure) -> bool {
    steps.mean > (1.0 + LONG) * steps.median && (steps.long > 1 || steps.longest.0 > SINGLE * steps.median)
}

/// Whether one step is long, and much of the time.
fn has_a_long_step(steps: &Measure) -> bool {
    steps.mean > (1.0 + LONG) * steps.median && steps.long == 1
}

/// How many ranks are missing, and why.
fn missing(job: &Job) -> Option<String> {
    let of = |ranks: usize| match ranks {
        1 => "The file of 1 rank".to_owned(),
        ranks => format!("The files of {ranks} ranks"),
    };
    Some(match (job.missing, job.without_kernels) {
        (0, 0) => return None,
        (0, 1) => "The file of 1 rank has no kernels".to_owned(),
        (0, without) => format!("{} have no kernels", of(without)),
        (1, 0) if !job.absent.is_empty() => format!("The file of {} is not here", said::ranks(job.absent.clone())),
        (1, 0) => "The file of 1 rank is not here".to_owned(),
        (_, 0) if !job.absent.is_empty() => format!("The files of {} are not here", said::ranks(job.absent.clone())),
        (missing, 0) => format!("{} are not here", of(missing)),
        (missing, without) => format!("{} are not here or have no kernels", of(missing + without)),
    })
}
