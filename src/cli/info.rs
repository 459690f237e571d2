//! `ncclscope info`: the contents of a trace, on one page.

pub(super) mod json;
mod many;
mod text;
mod trust;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use self::many::Many;
use self::trust::{Trust, mixed_releases};
use super::Failure;
use super::Fault;
use super::LISTED;
use super::capture;
use super::colour;
use super::compare::runs;
use super::foreign;
use super::hang;
use super::merge;
use super::running::{are_being_written, ended_first};
use super::survey::{LARGE, Reach, Survey, size_of};
use super::troubles::Troubles;
use crate::cli::reason::Reason;
use crate::import::{self, Format};
use crate::model::ids::ProcessTag;
use crate::trace::fields::{nccl, track_event::r#type as kind};
use crate::trace::names;
use crate::trace::reader::proto::ncclscope::Function;
use crate::trace::reader::{self, Event, Extent, Nccl, Numbers, Packet};
use crate::trace::words::{attribute, instant};
use crate::trace::writer::TRACK_BITS;

/// Prints what the files contain, and writes it as JSON if asked to. The exit status says whether
/// the traces can be trusted. Of many or large traces the ends are read first, and without `whole`
/// nothing else if these show what is wrong.
pub(super) fn run(traces: &[PathBuf], json: Option<&Path>, whole: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let traces = &runs::named(traces).map_err(Failure::Trouble)?;
    let look = |out: &mut dyn Write| match look_at_ends(traces, if whole { u64::MAX } else { LARGE }, out) {
        Some((report, status)) => (report, status.map_err(Reason::Output)),
        None => look(traces, out),
    };
    let status = match json {
        None => look(out).1,
        Some(path) => super::must_be_new_json(path).and_then(|()| {
            // JSON on standard output stands alone.
            let (report, status) = if super::is_screen(path) { look(&mut std::io::sink()) } else { look(out) };
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
    let ours = ours(traces);
    let known: HashSet<&PathBuf> = ours.iter().collect();
    // If a trace cannot be read to its end, that is reported below.
    let (survey, infos) = Survey::of_what_can_be_read((false, Reach::Whole), &ours, Info::take);
    let found = Troubles::of(&survey);
    let communicators = infos.iter().flat_map(|(info, _)| &info.communicators);
    let mixed = if infos.len() > 1 { mixed_releases(communicators) } else { Vec::new() };
    let running = match infos.iter().all(|(info, _)| info.recordings.keys().all(|tag| info.is_closed(tag))) {
        true => vec![false; infos.len()],
        false => are_being_written(ours.iter().map(PathBuf::as_path)),
    };
    let mut looks = infos.into_iter().zip(survey.extents).zip(running);
    let mut reasons = Vec::from_iter(troubles(&found, &mixed, out).err().map(Reason::Output));
    let mut status = u8::from(!mixed.is_empty());
    let mut many = (ours.len() > LISTED).then(Many::default);
    let mut describe = |path: &PathBuf| match known.contains(path).then(|| looks.next()).flatten() {
        Some((((info, fault), (_, extent)), is_running)) => {
            let seen = Seen::of(path, info, extent, fault, is_running)?;
            status = status.max(seen.trust.as_ref().map_or(0, Trust::status));
            let value = seen.json();
            match &mut many {
                Some(many) => many.add(seen),
                None => seen.print(out).map_err(Reason::Output)?,
            }
            Ok(value)
        }
        None => describe_other(path, out),
    };
    // A file that cannot be read does not hide the others.
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
    if let Some(many) = many {
        status = status.max(many.status());
        reasons.extend(many.print(out).err().map(Reason::Output));
    }
    let mut report = json::troubles(&found);
    report["mixed_releases"] = mixed.into();
    report["files"] = files.into();
    (report, if reasons.is_empty() { Ok(status) } else { Err(Reason::Several(reasons)) })
}

/// If the traces have more bytes than this, looks at their ends. If these show that the ranks
/// disagree, where the job hangs or who ended first, prints it and returns it as JSON, with the
/// exit status.
fn look_at_ends(traces: &[PathBuf], bytes: u64, out: &mut dyn Write) -> Option<(Value, std::io::Result<u8>)> {
    let all = size_of(traces);
    if all <= bytes {
        return None;
    }
    let (survey, _) = Survey::of_what_can_be_read((false, Reach::Ends(reader::HEAD)), &ours(traces), |(), _, _| {});
    let found = Troubles::of(&survey);
    let hangs = found.standing().any(|hang| hang.is_certain);
    let is_told = hangs || found.mismatches.iter().any(|it| !it.is_again) || !found.ended_first.is_empty();
    if survey.ends.is_empty() || !is_told {
        return None;
    }
    let note = format!(
        "the ends of {} traces, of {} in all; ncclscope info --whole reads everything",
        survey.ends.len(),
        names::size(all)
    );
    let said = troubles(&found, &[], out)
        .and_then(|()| writeln!(out, "{} {note}", colour::paint(colour::NOTE, "read         ")));
    let mut report = json::troubles(&found);
    report["only_ends_read"] = true.into();
    // What was not read may have anything in it.
    Some((report, said.map(|()| 1)))
}

/// Those of the files that are traces.
fn ours(traces: &[PathBuf]) -> Vec<PathBuf> {
    let is_ours = |path: &PathBuf| !capture::is_capture(path) && matches!(import::format(path), Ok(Format::Perfetto));
    traces.iter().filter(|path| is_ours(path)).cloned().collect()
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

/// A line for those that are too many to be listed; the JSON has all.
fn not_listed(count: usize, what: &str) -> Option<String> {
    count
        .checked_sub(LISTED)
        .filter(|more| *more > 0)
        .map(|more| format!("and {more} more {what}, which the JSON lists"))
}

/// What is wrong with the job, and which ranks have another NCCL, before everything else.
fn troubles(found: &Troubles, mixed: &[String], out: &mut dyn Write) -> std::io::Result<()> {
    let Troubles { mismatches, hangs, idle, ended_first: gone, shared_gpus, differing } = found;
    let bad = |what| colour::paint(colour::BAD, what);
    let more_mismatches = not_listed(mismatches.len(), "mismatches");
    let mismatches =
        mismatches.iter().take(LISTED).map(|it| (bad("mismatch     "), it.to_string(), it.details.clone()));
    let (hangs, more) = hang::told(hangs.iter());
    let hangs = hangs.into_iter().map(|hang| {
        let what = format!("{:<13}", hang.verb());
        let colour = if hang.is_certain && !hang.is_over() { colour::BAD } else { colour::NOTE };
        (colour::paint(colour, &what), hang.to_string(), hang.details())
    });
    let note = |what| colour::paint(colour::NOTE, what);
    let gone = ended_first(gone).into_iter().map(|(text, details)| (note("ended first  "), text, details));
    let idle = idle.iter().map(|it| (note("idle         "), it.to_string(), it.details()));
    let more_shared = not_listed(shared_gpus.len(), "shared GPUs");
    let shared = shared_gpus.iter().take(LISTED).map(|it| (note("shared GPU   "), it.to_string(), it.details()));
    let mixed = mixed.iter().map(|it| (note("mixed NCCL   "), it.clone(), Vec::new()));
    let more_differing = not_listed(differing.len(), "settings that differ");
    let differing = differing.iter().take(LISTED).map(|it| (note("differs      "), it.to_string(), Vec::new()));
    let mixed = mixed.chain(differing);
    let line = |text: String| (note("             "), text, Vec::new());
    let mismatches = mismatches.chain(more_mismatches.map(line));
    let (hangs, shared) = (hangs.into_iter().chain(more.map(line)), shared.chain(more_shared.map(line)));
    let mixed = mixed.chain(more_differing.map(line));
    for (what, text, details) in mismatches.chain(hangs).chain(gone).chain(idle).chain(shared).chain(mixed) {
        writeln!(out, "{what} {text}")?;
        for line in details {
            writeln!(out, "              {line}")?;
        }
    }
    Ok(())
}

#[derive(Default)]
struct Info {
    processes: Vec<String>,
    /// The tracks of those in this file.
    described: HashSet<u64>,
    /// The recorded processes, by tag; a process with several GPUs is drawn as several.
    recordings: HashMap<u64, String>,
    communicators: Vec<Nccl>,
    /// Operations by communicator and function, and by process.
    operations: BTreeMap<(u64, Cow<'static, str>), BTreeMap<u64, Operations>>,
    slices: u64,
    /// Kernels that carried operations, and others.
    kernels: (u64, u64),
    /// The remarks, and how often each occurs.
    notes: BTreeMap<String, u64>,
    /// The versions of ncclscope that recorded it.
    versions: BTreeSet<String>,
    /// How the times of other hosts were put on its clock, by host.
    clocks: BTreeMap<String, HostClock>,
    /// How far off the times of any process may be then, ns: each merge adds to it.
    between_hosts_ns: Option<u64>,
    /// The recordings' last remarks, and the tags of their processes.
    ended: Vec<u64>,
    ends: Vec<Nccl>,
    /// Processes that another tool recorded and whose import is complete, and those drawn by a
    /// merge.
    imported: Vec<u64>,
}

/// How a host's times were put on the clock of another.
#[derive(Default)]
struct HostClock {
    how: String,
    /// How far off they may be then, ns; merges of earlier versions do not say.
    error_ns: Option<u64>,
}

impl HostClock {
    /// Whether the data that relates the two clocks contradicts itself.
    fn contradicts(&self) -> bool {
        self.how.contains(merge::CONTRADICT)
    }
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
    /// Adds another file's content; `file` is its number.
    fn add(&mut self, other: Info, file: usize) {
        // Processes of different files may have drawn the same tag.
        let apart = |tag: u64| tag | (file as u64 + 1) << ProcessTag::BITS;
        self.processes.extend(other.processes);
        self.recordings.extend(other.recordings.into_iter().map(|(tag, process)| (apart(tag), process)));
        self.communicators.extend(other.communicators);
        for (of, by_process) in other.operations {
            let all = self.operations.entry(of).or_default();
            all.extend(by_process.into_iter().map(|(tag, operations)| (apart(tag), operations)));
        }
        self.slices += other.slices;
        self.kernels = (self.kernels.0 + other.kernels.0, self.kernels.1 + other.kernels.1);
        for (note, times) in other.notes {
            *self.notes.entry(note).or_default() += times;
        }
        self.versions.extend(other.versions);
        self.clocks.extend(other.clocks);
        self.between_hosts_ns = self.between_hosts_ns.max(other.between_hosts_ns);
        self.ended.extend(other.ended.into_iter().map(apart));
        self.ends.extend(other.ends);
        self.imported.extend(other.imported.into_iter().map(apart));
    }

    fn take(&mut self, packet: &Packet<'_>, numbers: &Numbers) {
        match &packet.event {
            Some(event) if event.kind == kind::TYPE_SLICE_BEGIN => self.slice(event, numbers),
            Some(event) if event.kind == kind::TYPE_INSTANT => self.instant(event, numbers),
            Some(_) => {}
            None => {
                self.descriptor(packet);
                self.attributes(packet);
            }
        }
    }

    fn descriptor(&mut self, packet: &Packet<'_>) {
        if let Some(descriptor) = packet.track_descriptor()
            && let Some(process) = &descriptor.process
        {
            let process = format!("{} (pid {})", process.process_name(), process.own_pid());
            // A process's further GPUs come after it.
            self.recordings.entry(descriptor.uuid() >> TRACK_BITS).or_insert_with(|| process.clone());
            // A restart of the file describes it again.
            if self.described.insert(descriptor.uuid()) {
                self.processes.push(process);
            }
        }
    }

    fn attributes(&mut self, packet: &Packet<'_>) {
        let mut error_ns: Option<u64> = None;
        for (key, value) in packet.attributes() {
            if key == attribute::MERGED {
                self.imported.extend(value.parse::<u64>());
            }
            if let Some(host) = key.strip_prefix(attribute::HOST_CLOCK_ERROR) {
                let its = &mut self.clocks.entry(host.to_owned()).or_default().error_ns;
                *its = value.parse().ok();
                error_ns = its.map(|its| its.saturating_add(error_ns.unwrap_or(0))).or(error_ns);
            }
            if let Some(host) = key.strip_prefix(attribute::HOST_CLOCK) {
                self.clocks.entry(host.to_owned()).or_default().how = value;
            }
        }
        self.between_hosts_ns = self.between_hosts_ns.max(error_ns);
    }

    fn slice(&mut self, event: &Event<'_>, numbers: &Numbers) {
        self.slices += 1;
        // Of the slices that carry an operation, only the hand-over names the thread. A kernel's
        // operations are recognised by their match; the slices below a kernel are not counted.
        let has = |field| numbers.get(field).is_some();
        match (has(nccl::KERNEL), has(nccl::MATCH)) {
            (true, true) => self.kernels.0 += 1,
            (true, false) => self.kernels.1 += 1,
            _ => {}
        }
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

    /// Whether a process's recording has a last remark.
    fn is_closed(&self, tag: &u64) -> bool {
        self.ended.contains(tag) || self.imported.contains(tag)
    }
}

/// A trace that was read, as far as it could be.
struct Seen<'a> {
    path: &'a Path,
    bytes: u64,
    info: Info,
    trust: Option<Trust>,
    /// Why it could not be read to its end.
    fault: Option<String>,
    /// Processes are still writing it.
    is_running: bool,
}

impl<'a> Seen<'a> {
    /// # Errors
    ///
    /// If nothing of it could be read.
    fn of(
        path: &'a Path,
        info: Info,
        extent: Extent,
        fault: Option<Fault>,
        is_running: bool,
    ) -> Result<Seen<'a>, Reason> {
        let damage = match fault {
            // Here, two files with the same process are told apart, so each has its own.
            None | Some(Fault::Other(_)) => None,
            Some(Fault::Trace(error @ (reader::Error::NotATrace | reader::Error::Io(_)))) => {
                return Err(Fault::Trace(error).of(path));
            }
            Some(Fault::Trace(error)) => Some(error.to_string()),
        };
        let trust = Trust::of(&info, extent, damage.as_deref());
        let fault = damage.or_else(|| extent.remark());
        // Its recording is in the part that cannot be read.
        let trust = trust.or_else(|| fault.clone().filter(|_| info.recordings.is_empty()).map(Trust::Not));
        let bytes = fs::metadata(path).map_or(0, |file| file.len());
        Ok(Seen { path, bytes, info, trust, fault, is_running })
    }

    fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        text::print_title(&self.path.display().to_string(), self.bytes, self.info.slices, out)?;
        if let Some(trust) = &self.trust {
            text::print_verdict(trust, &trust.to_string(), out)?;
        }
        self.info.print(self.is_running, out)?;
        if let Some(fault) = &self.fault {
            writeln!(out, "  {}         {fault}", colour::paint(colour::BAD, "fault"))?;
        }
        Ok(())
    }
}

/// The sum of a figure over all recordings.
fn sum(ends: &[Nccl], figure: fn(&Nccl) -> u64) -> u64 {
    ends.iter().map(figure).sum()
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
