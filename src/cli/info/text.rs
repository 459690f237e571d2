//! What a trace contains, in words: each thing by itself, or many together.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use super::trust::{CALLS, KERNELS, Trust};
use super::{Info, Operations, sum};
use crate::cli::hang::list;
use crate::cli::{LISTED, colour, merge, survey};
use crate::model::selection::Ranks;
use crate::trace::names;
use crate::trace::reader::Nccl;

/// How many remarks of one name are printed.
const ALIKE: usize = 4;

impl Info {
    /// Prints what there is in it. `is_running`: processes are still writing it.
    pub(super) fn print(&self, is_running: bool, out: &mut dyn Write) -> io::Result<()> {
        self.print_processes(out)?;
        let communicators = self.by_communicator();
        for communicator in communicators.iter().take(LISTED) {
            writeln!(out, "  communicator  {communicator}")?;
        }
        if let more @ 1.. = communicators.len().saturating_sub(LISTED) {
            writeln!(out, "  communicator  {more} more")?;
        }
        let all = || self.operations.iter().map(|(of, operations)| (of, Operations::all(operations.values())));
        for ((comm, function), (count, bytes, untold)) in all().take(LISTED) {
            let untold = if untold > 0 { format!("; {untold} of them NCCL did not hand over") } else { String::new() };
            writeln!(out, "  operations    {comm:016x} {function}: {count}, {} in all{untold}", names::size(bytes))?;
        }
        if let more @ 1.. = self.operations.len().saturating_sub(LISTED) {
            let rest = all().skip(LISTED).map(|(_, sum)| sum);
            let (count, bytes) = rest.fold((0, 0_u64), |sum, of| (sum.0 + of.0, sum.1.saturating_add(of.1)));
            writeln!(
                out,
                "  operations    {more} more functions and communicators: {count}, {} in all",
                names::size(bytes)
            )?;
        }
        self.print_notes(out)?;
        self.print_recorded(out)?;
        if self.ends.iter().any(|end| end.kernels_application.is_some()) {
            writeln!(out, "  GPU kernels   {}", kernels(&self.ends))?;
        } else if self.kernels != (0, 0) && self.recordings.keys().any(|tag| !self.is_closed(tag)) {
            let (carried, others) = self.kernels;
            writeln!(out, "  GPU kernels   {carried} that carried operations, {others} others, as far as written")?;
        }
        if let Some(times) = times(&self.ends) {
            writeln!(out, "  GPU times     {times}")?;
        }
        if let Some(channels) = channels(&self.ends) {
            writeln!(out, "  GPU channels  {channels}")?;
        }
        self.print_open(is_running, out)
    }

    fn print_processes(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.processes.len() <= LISTED {
            return self.processes.iter().try_for_each(|process| writeln!(out, "  process       {process}"));
        }
        let mut hosts: Vec<_> =
            self.processes.iter().filter_map(|process| survey::host(without_pid(process))).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let on = match hosts.len() {
            0 => String::new(),
            1 => format!(" on {}", hosts[0]),
            count => format!(" on {count} hosts"),
        };
        let ranks = Ranks::of(self.processes.iter().filter_map(|process| survey::rank(process)).collect());
        let ranks = if ranks.is_empty() { String::new() } else { format!(": ranks {ranks}") };
        writeln!(out, "  processes     {}{on}{ranks}", self.recordings.len())
    }

    /// The communicators, each with its ranks in this trace.
    fn by_communicator(&self) -> Vec<String> {
        let (mut all, mut known) = (Vec::<(&Nccl, Vec<u32>)>::new(), HashMap::new());
        for of_rank in &self.communicators {
            let at = *known.entry(communicator(of_rank, "")).or_insert_with(|| {
                all.push((of_rank, Vec::new()));
                all.len() - 1
            });
            all[at].1.extend(of_rank.rank.and_then(|rank| u32::try_from(rank).ok()));
        }
        let ranks = |ranks: Vec<u32>| match &ranks[..] {
            [] => "rank ?".to_owned(),
            [rank] => format!("rank {rank}"),
            _ => format!("ranks {}", Ranks::of(ranks)),
        };
        all.into_iter().map(|(of, of_ranks)| communicator(of, &ranks(of_ranks))).collect()
    }

    fn print_notes(&self, out: &mut dyn Write) -> io::Result<()> {
        let errors: Option<Vec<_>> =
            self.clocks.iter().map(|(host, clock)| Some((host.as_str(), clock.error_ns?))).collect();
        let errors = errors.filter(|errors| errors.len() > LISTED);
        if let Some(errors) = &errors {
            writeln!(out, "  note          {}", merge::clocks(errors))?;
        }
        for (host, clock) in self.clocks.iter().filter(|(_, clock)| errors.is_none() || clock.contradicts()) {
            writeln!(out, "  note          {host}: {}", clock.how)?;
        }
        let mut by_name: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (note, times) in &self.notes {
            let times = if *times > 1 { format!(" ({times} times)") } else { String::new() };
            let name = note.split_once(": ").map_or(note.as_str(), |(name, _)| name);
            by_name.entry(name).or_default().push(format!("{note}{times}"));
        }
        for (name, notes) in by_name {
            notes.iter().take(ALIKE).try_for_each(|note| writeln!(out, "  note          {note}"))?;
            if let more @ 1.. = notes.len().saturating_sub(ALIKE) {
                writeln!(out, "  note          {name}: {more} more, with other figures or words")?;
            }
        }
        Ok(())
    }

    /// What the recordings' last remarks say about NCCL's calls. Of many, those that lost something
    /// are named.
    fn print_recorded(&self, out: &mut dyn Write) -> io::Result<()> {
        let are_many = self.ended.len() > LISTED;
        if are_many {
            writeln!(out, "  recorded      {} processes: {}", self.ended.len(), calls(&self.ends))?;
        }
        let is_doubtful = |end: &Nccl| CALLS.iter().any(|(_, figure, is_doubt)| *is_doubt && figure(end) > 0);
        let named = || self.ended.iter().zip(&self.ends).filter(|(_, end)| !are_many || is_doubtful(end));
        for (tag, end) in named().take(LISTED) {
            let process = match self.recordings.get(tag) {
                Some(process) if self.recordings.len() > 1 => format!("{process}: "),
                _ => String::new(),
            };
            writeln!(out, "  recorded      {process}{}", calls(std::slice::from_ref(end)))?;
        }
        if let more @ 1.. = named().count().saturating_sub(LISTED) {
            writeln!(out, "  recorded      {more} more with losses or doubts")?;
        }
        Ok(())
    }

    /// Names the recordings without an end, if there are any.
    fn print_open(&self, is_running: bool, out: &mut dyn Write) -> io::Result<()> {
        let open = self.recordings.iter().filter(|(tag, _)| !self.is_closed(tag));
        let mut open: Vec<&str> = open.map(|(_, process)| process.as_str()).collect();
        open.sort_by_key(|process| (survey::rank(process), *process));
        let what = match open.len() {
            0 => return Ok(()),
            1 => "this recording has no end",
            _ => "these recordings have no end",
        };
        let names = list(open.into_iter().map(str::to_owned));
        let why = match is_running {
            true => "it is still running",
            false => "still running or killed",
        };
        writeln!(out, "  {}    {what}, {why}: {names}", colour::paint(colour::NOTE, "not closed"))
    }
}

/// The first line about a file, or several.
pub(super) fn print_title(what: &str, bytes: u64, slices: u64, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{what}: {}, {slices} slices", names::size(bytes))
}

/// A verdict, or more about it in other words.
pub(super) fn print_verdict(trust: &Trust, words: &str, out: &mut dyn Write) -> io::Result<()> {
    let style = match trust {
        Trust::Full(_) => colour::GOOD,
        Trust::But(_) => colour::NOTE,
        Trust::Not(_) => colour::BAD,
    };
    writeln!(out, "  {}       {words}", colour::paint(style, "verdict"))
}

/// A process as it is listed, `rank 3 · node17 (pid 4711)`, without its pid.
fn without_pid(process: &str) -> &str {
    process.rsplit_once(" (pid ").map_or(process, |(name, _)| name)
}

/// A communicator, with its ranks here in words.
fn communicator(nccl: &Nccl, ranks: &str) -> String {
    // The track's name of an unnamed communicator begins or ends with this, unless it is `all`.
    let short = || format!("(no name, {})", names::short_hash(nccl.comm()));
    let name = nccl.comm_name.clone().unwrap_or_else(|| if nccl.comm.is_some() { short() } else { "(no name)".into() });
    let unknown = |value: Option<i32>| value.map_or_else(|| "?".into(), |value| value.to_string());
    let version = match nccl.nccl_version() {
        0 => "NCCL of unknown version".to_owned(),
        number => format!("NCCL {}", names::nccl_version(number)),
    };
    // Another tool's process group has neither hash nor interface version.
    if nccl.interface.is_none() {
        return format!("{name}: {ranks} of {}, {version}", unknown(nccl.ranks));
    }
    let hosts = if nccl.nodes == Some(1) { "host" } else { "hosts" };
    format!(
        "{:016x} {name}: {ranks} of {} on {} {hosts}, {version}, interface v{}",
        nccl.comm(),
        unknown(nccl.ranks),
        unknown(nccl.nodes),
        nccl.interface()
    )
}

/// What became of the kernels of all recordings together.
fn kernels(ends: &[Nccl]) -> String {
    let figures = KERNELS.iter().map(|(what, figure, _)| (what, sum(ends, *figure)));
    let said = figures.filter(|(what, count)| *count > 0 || what.ends_with("matched"));
    said.map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join("; ")
}

/// The error of CUPTI's times that NCCL's own times leave possible.
fn times(ends: &[Nccl]) -> Option<String> {
    let least = ends.iter().filter_map(|end| end.cupti_off_least_ns).min();
    let most = ends.iter().filter_map(|end| end.cupti_off_most_ns).max();
    let us = |ns: i64| names::duration(ns.unsigned_abs() as f64);
    let early =
        least.map(|ns| if ns > 0 { format!("late by at least {}", us(ns)) } else { format!("up to {} early", us(ns)) });
    let late =
        most.map(|ns| if ns < 0 { format!("early by at least {}", us(ns)) } else { format!("up to {} late", us(ns)) });
    let known: Vec<String> = early.into_iter().chain(late).collect();
    let of_nccl = [
        Nccl::kernels_launch_bracket,
        Nccl::kernels_graph_node,
        Nccl::kernels_graph_replay,
        Nccl::kernels_device_timer,
        Nccl::kernels_unmatched,
    ];
    let has_kernels = ends.iter().any(|end| of_nccl.iter().any(|figure| figure(end) > 0));
    match &known[..] {
        [] if has_kernels => Some("nothing that NCCL's threads saw bounds an error of CUPTI's".into()),
        [] => None,
        known => Some(format!("by what NCCL's threads saw, CUPTI's may be {}", known.join(" and "))),
    }
}

/// What kernel channels say, if there were any.
fn channels(ends: &[Nccl]) -> Option<String> {
    let sum = |figure| sum(ends, figure);
    let figures = [
        ("inside their kernel", sum(Nccl::channels_inside_kernel)),
        ("of unknown kernels", sum(Nccl::channels_without_kernel)),
        ("without a time", sum(Nccl::channels_unmapped)),
        ("that are impossible", sum(Nccl::channels_implausible)),
    ];
    let said: Vec<String> =
        figures.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{count} {what}")).collect();
    let confirmed = sum(Nccl::kernels_confirmed);
    (!said.is_empty()).then(|| format!("{}; {confirmed} matches of kernels confirmed", said.join("; ")))
}

/// What last remarks say about NCCL's calls.
fn calls(ends: &[Nccl]) -> String {
    let error_ns = ends.iter().map(Nccl::clock_error_ns).max().unwrap_or_default();
    let mut text = format!("{} calls from NCCL, times to {error_ns} ns", sum(ends, Nccl::recorded));
    for (what, figure, _) in CALLS {
        let count = sum(ends, *figure);
        if count > 0 {
            text.push_str(&format!("; {count} {what}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_remarks_of_one_name_do_not_hide_the_others() {
        let mut info = Info::default();
        (0..9).for_each(|ms| info.note(format!("cost: {ms} ms")));
        (0..2).for_each(|_| info.note("CUPTI lost: its buffers".to_owned()));
        let mut said = Vec::new();
        info.print(false, &mut said).unwrap();
        let said = String::from_utf8(said).unwrap();
        let notes: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("  note          ")).collect();
        let last = "cost: 5 more, with other figures or words";
        assert_eq!(
            notes,
            ["CUPTI lost: its buffers (2 times)", "cost: 0 ms", "cost: 1 ms", "cost: 2 ms", "cost: 3 ms", last]
        );
    }

    #[test]
    fn kernels_are_counted_before_there_is_an_end() {
        let mut info = Info { kernels: (40, 2), recordings: [(1, "rank 0".to_owned())].into(), ..Info::default() };
        let said = |info: &Info| {
            let mut said = Vec::new();
            info.print(false, &mut said).unwrap();
            String::from_utf8(said).unwrap()
        };
        let line = "  GPU kernels   40 that carried operations, 2 others, as far as written\n";
        assert!(said(&info).contains(line), "{}", said(&info));
        info.imported.push(1);
        assert!(!said(&info).contains("GPU kernels"), "ncclscope does not know what other tools lost");
    }
}
