//! `ncclscope info`: the contents of a trace, on one page.

pub(super) mod json;
mod trust;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use self::trust::{CALLS, KERNELS, Trust};
use super::Failure;
use super::Fault;
use super::capture;
use super::colour;
use super::compare::runs;
use super::foreign;
use super::hang::{self, Hang};
use super::merge;
use super::mismatch::{self, Mismatch};
use super::running::is_being_written;
use super::shared_gpus::{self, SharedGpu};
use super::survey::{self, Survey};
use crate::cli::reason::Reason;
use crate::import::{self, Format};
use crate::trace::fields::{nccl, track_event::r#type as kind};
use crate::trace::names;
use crate::trace::reader::proto::ncclscope::Function;
use crate::trace::reader::{self, Event, Extent, Nccl, Numbers, Packet};
use crate::trace::words::{attribute, instant};
use crate::trace::writer::TRACK_BITS;

/// Prints what the files contain, and writes it as JSON if asked to. The exit status says whether
/// the traces can be trusted.
pub(super) fn run(traces: &[PathBuf], json: Option<&Path>, out: &mut dyn Write) -> Result<(), Failure> {
    let traces = &runs::named(traces).map_err(Failure::Trouble)?;
    let status = match json {
        None => look(traces, out).1,
        Some(path) => super::must_be_new_json(path).and_then(|()| {
            // JSON on standard output stands alone.
            let (report, status) =
                if super::is_screen(path) { look(traces, &mut std::io::sink()) } else { look(traces, out) };
            super::write_json(path, &report, out)?;
            status
        }),
    };
    match status.map_err(Failure::Trouble)? {
        0 => Ok(()),
        status => Err(Failure::Exit(status)),
    }
}

/// Prints what a trace contains.
pub(super) fn say(trace: &PathBuf, out: &mut dyn Write) -> Result<(), Reason> {
    look(std::slice::from_ref(trace), out).1.map(drop)
}

/// Prints what the files contain. Returns it as JSON, with the exit status or the files that could
/// not be read.
fn look(traces: &[PathBuf], out: &mut dyn Write) -> (Value, Result<u8, Reason>) {
    let ours = |path: &PathBuf| !capture::is_capture(path) && matches!(import::format(path), Ok(Format::Perfetto));
    let ours: Vec<PathBuf> = traces.iter().filter(|path| ours(path)).cloned().collect();
    // If a trace cannot be read to its end, that is reported below.
    let (survey, infos) = Survey::of_what_can_be_read(false, &ours, Info::take);
    let (mismatches, found, shared) = (mismatch::find(&survey), hang::find(&survey), shared_gpus::find(&survey));
    let mut looks = infos.into_iter().zip(survey.extents);
    let mut reasons = Vec::from_iter(troubles(&mismatches, &found, &shared, out).err().map(Reason::Output));
    let mut status = 0;
    // A file that cannot be read does not hide the others.
    let mut describe = |path: &PathBuf| match ours.contains(path).then(|| looks.next()).flatten() {
        Some(((info, fault), (_, extent))) => {
            let (value, trust) = info.describe(path, extent, fault, out)?;
            status = status.max(trust.map_or(0, |trust| trust.status()));
            Ok(value)
        }
        None => describe_other(path, out),
    };
    let files: Vec<Value> = traces
        .iter()
        .map(|path| {
            describe(path).unwrap_or_else(|reason| {
                let (file, fault) = (path.display().to_string(), reason.to_string());
                reasons.push(reason);
                serde_json::json!({ "kind": "unreadable", "file": file, "fault": fault })
            })
        })
        .collect();
    let report = serde_json::json!({
        "format_version": json::FORMAT_VERSION,
        "mismatches": mismatches.iter().map(json::mismatch).collect::<Vec<_>>(),
        "hangs": found.iter().map(json::hang).collect::<Vec<_>>(),
        "shared_gpus": shared.iter().map(json::shared_gpu).collect::<Vec<_>>(),
        "files": files,
    });
    (report, if reasons.is_empty() { Ok(status) } else { Err(Reason::Several(reasons)) })
}

/// Describes a file that is not a trace.
fn describe_other(path: &Path, out: &mut dyn Write) -> Result<Value, Reason> {
    if capture::is_capture(path) {
        return capture::describe(path, out);
    }
    let profile = import::open(path).map_err(Reason::file(path))?;
    foreign::print(&profile, out).map_err(Reason::Output)?;
    foreign::json(&profile).map_err(Reason::failed("write JSON"))
}

/// What the ranks do not agree on, where the job hangs, and which ranks share a GPU, before everything
/// else.
fn troubles(mismatches: &[Mismatch], hangs: &[Hang], shared: &[SharedGpu], out: &mut dyn Write) -> std::io::Result<()> {
    let bad = |what| colour::paint(colour::BAD, what);
    let mismatches = mismatches.iter().map(|it| (bad("mismatch     "), it.to_string(), it.details.clone()));
    let hangs = hangs.iter().map(|hang| {
        let what = if hang.is_certain { bad("hang         ") } else { colour::paint(colour::NOTE, "waits        ") };
        (what, hang.to_string(), hang.details())
    });
    let note = |what| colour::paint(colour::NOTE, what);
    let shared = shared.iter().map(|it| (note("shared GPU   "), it.to_string(), it.details()));
    for (what, text, details) in mismatches.chain(hangs).chain(shared) {
        writeln!(out, "{what} {text}")?;
        for line in details {
            writeln!(out, "              {line}")?;
        }
    }
    Ok(())
}

/// How many processes without a last remark are named.
const NAMED: usize = 16;

/// How many communicators, and functions of each, are named.
const COMMUNICATORS: usize = 64;

#[derive(Default)]
struct Info {
    processes: Vec<String>,
    /// The recorded processes, by tag; a process with several GPUs is drawn as several.
    recordings: HashMap<u64, String>,
    communicators: Vec<Nccl>,
    /// Operations by communicator and function, and by process.
    operations: BTreeMap<(u64, Cow<'static, str>), BTreeMap<u64, Operations>>,
    slices: u64,
    /// The remarks, and how often each occurs.
    notes: BTreeMap<String, u64>,
    /// The versions of ncclscope that recorded it.
    versions: BTreeSet<String>,
    /// The data that relates the clocks of its hosts contradicts itself.
    clocks_contradict: bool,
    /// The recordings' last remarks, and the tags of their processes.
    ended: Vec<u64>,
    ends: Vec<Nccl>,
    /// Processes that another tool recorded and whose import is complete, and those drawn by a
    /// merge.
    imported: Vec<u64>,
}

/// Operations of one kind in one process: their number and their bytes.
#[derive(Clone, Copy, Default)]
struct Operations {
    /// Reported by NCCL, which does not report some replays of graphs and some broadcasts.
    handed_over: (u64, u64),
    /// Those with a known kernel; some have none.
    ran: (u64, u64),
}

impl Operations {
    /// The operations of all processes: the larger figure of each process, and how many NCCL did
    /// not hand over.
    fn all<'a>(each: impl Iterator<Item = &'a Operations>) -> (u64, u64, u64) {
        each.fold((0, 0, 0), |(count, bytes, untold), Operations { handed_over, ran }| {
            let more = if ran.0 > handed_over.0 { ran } else { handed_over };
            (count + more.0, bytes.saturating_add(more.1), untold + ran.0.saturating_sub(handed_over.0))
        })
    }
}

impl Info {
    fn take(&mut self, packet: &Packet<'_>, numbers: &Numbers) {
        if let Some(descriptor) = packet.track_descriptor()
            && let Some(process) = &descriptor.process
        {
            let told = process.process_labels.iter().find_map(|label| names::told_pid(label));
            let process = format!("{} (pid {})", process.process_name(), told.unwrap_or(process.pid()));
            // A process's further GPUs come after it.
            self.recordings.entry(descriptor.uuid() >> TRACK_BITS).or_insert_with(|| process.clone());
            self.processes.push(process);
        }
        let Some(event) = &packet.event else { return self.attributes(packet) };
        match event.kind {
            kind::TYPE_SLICE_BEGIN => self.slice(event, numbers),
            kind::TYPE_INSTANT => self.instant(event, numbers),
            _ => {}
        }
    }

    fn attributes(&mut self, packet: &Packet<'_>) {
        for (key, value) in packet.attributes() {
            if key == attribute::MERGED {
                self.imported.extend(value.parse::<u64>());
            }
            if let Some(host) = key.strip_prefix(attribute::HOST_CLOCK) {
                self.clocks_contradict |= value.contains(merge::CONTRADICT);
                self.note(format!("{host}: {value}"));
            }
        }
    }

    fn slice(&mut self, event: &Event<'_>, numbers: &Numbers) {
        self.slices += 1;
        // Of the slices that carry an operation, only the hand-over names the thread. A kernel's
        // operations are recognised by their match; the slices below a kernel are not counted.
        let has = |field| numbers.get(field).is_some();
        let ran = has(nccl::MATCH) && !has(nccl::KERNEL);
        if !has(nccl::COUNT) || !ran && !has(nccl::TID) {
            return;
        }
        let number = numbers.get(nccl::FUNCTION).and_then(|number| Function::try_from(number as i32).ok());
        let text = has(nccl::FUNCTION_TEXT).then(|| event.text(nccl::FUNCTION_TEXT)).flatten();
        let function = match (text, number) {
            (Some(text), _) => text.into(),
            (None, None | Some(Function::Absent)) => "operation".into(),
            (None, Some(function)) => function.as_str_name().into(),
        };
        let of = self.operations.entry((numbers.get(nccl::COMM).unwrap_or_default(), function)).or_default();
        let operations = of.entry(event.track >> TRACK_BITS).or_default();
        let (count, bytes) = if ran { &mut operations.ran } else { &mut operations.handed_over };
        *count += 1;
        *bytes = bytes.saturating_add(numbers.get(nccl::BYTES).unwrap_or_default());
    }

    fn instant(&mut self, event: &Event<'_>, numbers: &Numbers) {
        let note = || event.text(nccl::NOTE).unwrap_or_default();
        match event.name {
            instant::COMM_INIT => self.communicators.push(event.nccl()),
            instant::ENDED => {
                self.ended.push(event.track >> TRACK_BITS);
                self.ends.push(event.nccl());
            }
            instant::IMPORT_ENDED => self.imported.push(event.track >> TRACK_BITS),
            instant::STARTED => {
                let note = note();
                let program = note.split(';').next().and_then(|first| first.strip_prefix("ncclscope "));
                self.versions.extend(program.map(str::to_owned));
                self.note(note);
            }
            name if numbers.get(nccl::NOTE).is_some() => self.note(format!("{name}: {}", note())),
            _ => {}
        }
    }

    fn note(&mut self, text: String) {
        *self.notes.entry(text).or_default() += 1;
    }

    /// Prints what the trace contains, as far as it could be read.
    fn describe(
        &self,
        path: &Path,
        extent: Extent,
        fault: Option<Fault>,
        out: &mut dyn Write,
    ) -> Result<(Value, Option<Trust>), Reason> {
        let damage = match fault {
            // Here, two files with the same process are told apart, so each has its own.
            None | Some(Fault::Other(_)) => None,
            Some(Fault::Trace(error @ (reader::Error::NotATrace | reader::Error::Io(_)))) => {
                return Err(Fault::Trace(error).of(path));
            }
            Some(Fault::Trace(error)) => Some(error.to_string()),
        };
        let trust = Trust::of(self, extent, damage.as_deref());
        let fault = damage.or_else(|| extent.remark());
        let bytes = fs::metadata(path).map_or(0, |file| file.len());
        self.print(path, bytes, trust.as_ref(), fault.as_deref(), out).map_err(Reason::Output)?;
        Ok((self.json(path, bytes, trust.as_ref(), fault.as_deref()), trust))
    }

    /// Whether a process's recording has a last remark.
    fn is_closed(&self, tag: &u64) -> bool {
        self.ended.contains(tag) || self.imported.contains(tag)
    }

    fn print(
        &self,
        path: &Path,
        bytes: u64,
        trust: Option<&Trust>,
        fault: Option<&str>,
        out: &mut dyn Write,
    ) -> std::io::Result<()> {
        writeln!(out, "{}: {}, {} slices", path.display(), names::size(bytes), self.slices)?;
        if let Some(trust) = trust {
            let label = match trust {
                Trust::Full(_) => colour::paint(colour::GOOD, "verdict"),
                Trust::But(_) => colour::paint(colour::NOTE, "verdict"),
                Trust::Not(_) => colour::paint(colour::BAD, "verdict"),
            };
            writeln!(out, "  {label}       {trust}")?;
        }
        for process in &self.processes {
            writeln!(out, "  process       {process}")?;
        }
        for communicator in self.communicators.iter().take(COMMUNICATORS) {
            writeln!(out, "  communicator  {}", self::communicator(communicator))?;
        }
        if let more @ 1.. = self.communicators.len().saturating_sub(COMMUNICATORS) {
            writeln!(out, "  communicator  {more} more")?;
        }
        let all = || self.operations.iter().map(|(of, operations)| (of, Operations::all(operations.values())));
        for ((comm, function), (count, bytes, untold)) in all().take(COMMUNICATORS) {
            let untold = if untold > 0 { format!("; {untold} of them NCCL did not hand over") } else { String::new() };
            writeln!(out, "  operations    {comm:016x} {function}: {count}, {} in all{untold}", names::size(bytes))?;
        }
        if let more @ 1.. = self.operations.len().saturating_sub(COMMUNICATORS) {
            let rest = all().skip(COMMUNICATORS).map(|(_, sum)| sum);
            let (count, bytes) = rest.fold((0, 0_u64), |sum, of| (sum.0 + of.0, sum.1.saturating_add(of.1)));
            writeln!(
                out,
                "  operations    {more} more functions and communicators: {count}, {} in all",
                names::size(bytes)
            )?;
        }
        for (note, times) in &self.notes {
            let times = if *times > 1 { format!(" ({times} times)") } else { String::new() };
            writeln!(out, "  note          {note}{times}")?;
        }
        for (tag, end) in self.ended.iter().zip(&self.ends) {
            let process = match self.recordings.get(tag) {
                Some(process) if self.recordings.len() > 1 => format!("{process}: "),
                _ => String::new(),
            };
            writeln!(out, "  recorded      {process}{}", calls(end))?;
        }
        if self.ends.iter().any(|end| end.kernels_application.is_some()) {
            writeln!(out, "  GPU kernels   {}", kernels(&self.ends))?;
        }
        if let Some(times) = times(&self.ends) {
            writeln!(out, "  GPU times     {times}")?;
        }
        if let Some(channels) = channels(&self.ends) {
            writeln!(out, "  GPU channels  {channels}")?;
        }
        self.print_open(path, out)?;
        if let Some(fault) = fault {
            writeln!(out, "  {}         {fault}", colour::paint(colour::BAD, "fault"))?;
        }
        Ok(())
    }

    /// Names the recordings without an end, if there are any.
    fn print_open(&self, path: &Path, out: &mut dyn Write) -> std::io::Result<()> {
        let open = self.recordings.iter().filter(|(tag, _)| !self.is_closed(tag));
        let mut open: Vec<&str> = open.map(|(_, process)| process.as_str()).collect();
        open.sort_by_key(|process| (survey::rank(process), *process));
        let what = match open.len() {
            0 => return Ok(()),
            1 => "this recording has no end",
            _ => "these recordings have no end",
        };
        let rest = open.len().saturating_sub(NAMED);
        let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
        open.truncate(NAMED);
        let names = open.join(", ");
        let why = match is_being_written(path) {
            true => "it is still running",
            false => "still running or killed",
        };
        writeln!(out, "  {}    {what}, {why}: {names}{more}", colour::paint(colour::NOTE, "not closed"))
    }
}

fn communicator(nccl: &Nccl) -> String {
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
        return format!("{name}: rank {} of {}, {version}", unknown(nccl.rank), unknown(nccl.ranks));
    }
    let hosts = if nccl.nodes == Some(1) { "host" } else { "hosts" };
    format!(
        "{:016x} {name}: rank {} of {} on {} {hosts}, {version}, interface v{}",
        nccl.comm(),
        unknown(nccl.rank),
        unknown(nccl.ranks),
        unknown(nccl.nodes),
        nccl.interface()
    )
}

/// The sum of a figure over all recordings.
fn sum(ends: &[Nccl], figure: fn(&Nccl) -> u64) -> u64 {
    ends.iter().map(figure).sum()
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

/// What the recording's last remark says about NCCL's calls.
fn calls(end: &Nccl) -> String {
    let mut text = format!("{} calls from NCCL, times to {} ns", end.recorded(), end.clock_error_ns());
    for (what, figure, _) in CALLS {
        let count = figure(end);
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
    fn the_larger_count_of_each_process_is_used() {
        let of = |handed_over, ran| Operations { handed_over: (handed_over, 10 * handed_over), ran: (ran, 10 * ran) };
        // Replays that NCCL hands over on one rank and not on the other; lost kernels.
        for (each, all) in [
            (&[of(131, 131)][..], (131, 1310, 0)),
            (&[of(5, 131)], (131, 1310, 126)),
            (&[of(131, 131), of(5, 131)], (262, 2620, 126)),
            (&[of(131, 0)], (131, 1310, 0)),
            (&[of(131, 120), of(0, 7)], (138, 1380, 7)),
            (&[], (0, 0, 0)),
        ] {
            assert_eq!(Operations::all(each.iter()), all);
        }
    }
}
