//! `ncclscope info`: what a trace holds, in a page.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::foreign;
use super::hang::{self, Hang};
use super::import::ENDED;
use super::replay;
use super::survey::{self, Survey};
use crate::import::{self, Format};
use crate::trace::names;
use crate::trace::reader::proto::ncclscope::Function;
use crate::trace::reader::proto::perfetto::protos::track_event::Type;
use crate::trace::reader::{self, Event, Nccl, Sequences, TracePacket};
use crate::trace::writer::TRACK_BITS;

pub(super) fn run(traces: &[PathBuf], out: &mut dyn Write) -> Result<(), String> {
    let failed = |error| format!("failed to write: {error}");
    let ours = |path: &PathBuf| !replay::is_capture(path) && matches!(import::format(path), Ok(Format::Perfetto));
    let ours: Vec<PathBuf> = traces.iter().filter(|path| ours(path)).cloned().collect();
    // A trace that cannot be read to its end says so below.
    let (survey, _) = Survey::of_what_can_be_read(&ours);
    hangs(&hang::find(&survey, &ours), out).map_err(failed)?;
    // One file that cannot be read hides none of the others.
    let faults: Vec<String> = traces.iter().filter_map(|path| describe(path, out).err()).collect();
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

/// Says what one file holds.
fn describe(path: &Path, out: &mut dyn Write) -> Result<(), String> {
    let failed = |error| format!("failed to write: {error}");
    if replay::is_capture(path) {
        return replay::describe(path, out);
    }
    if import::format(path).map_err(|error| format!("{}: {error}", path.display()))? != Format::Perfetto {
        let profile = import::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        return foreign::print(&profile, out).map_err(failed);
    }
    let bytes = super::read(path)?;
    let mut info = Info::default();
    let fault = reader::packets(&bytes, |packet| info.take(packet)).err();
    if matches!(fault, Some(reader::Error::NotATrace)) {
        return Err(format!("{}: {}", path.display(), reader::Error::NotATrace));
    }
    info.print(path, bytes.len(), fault, out).map_err(failed)
}

/// Where the job stands, before all else.
fn hangs(hangs: &[Hang], out: &mut dyn Write) -> std::io::Result<()> {
    for hang in hangs {
        let what = if hang.is_certain { "hang         " } else { "waits        " };
        writeln!(out, "{what} {hang}")?;
        for line in hang.details() {
            writeln!(out, "              {line}")?;
        }
    }
    Ok(())
}

/// Processes without a last word that are named.
const NAMED: usize = 16;

/// Communicators, and functions of them, that are named.
const COMMUNICATORS: usize = 64;

#[derive(Default)]
struct Info {
    processes: Vec<String>,
    /// The processes that were recorded, by their tag; a process with several GPUs is drawn as several.
    recordings: HashMap<u64, String>,
    sequences: Sequences,
    communicators: Vec<String>,
    /// Operations handed over, by communicator and function: how many, and their bytes.
    operations: BTreeMap<(u64, String), (u64, u64)>,
    slices: u64,
    instants: BTreeMap<String, u64>,
    notes: Vec<String>,
    /// The last words of recordings, and the tags of their processes.
    ended: Vec<u64>,
    ends: Vec<Nccl>,
    /// Processes that another tool recorded, whose import is complete.
    imported: Vec<u64>,
}

impl Info {
    fn take(&mut self, mut packet: TracePacket) {
        let event = self.sequences.take(&mut packet);
        if let Some(descriptor) = packet.track_descriptor
            && let Some(process) = &descriptor.process
        {
            let process = format!("{} (pid {})", process.process_name(), process.pid());
            // A process's further GPUs come after it.
            self.recordings.entry(descriptor.uuid() >> TRACK_BITS).or_insert_with(|| process.clone());
            self.processes.push(process);
        }
        let Some(Event { name, event, track, .. }) = event else { return };
        let kind = event.r#type();
        let nccl = event.nccl.unwrap_or_default();
        match kind {
            Type::SliceBegin => {
                self.slices += 1;
                // Of the slices that carry an operation, only the hand-over names the thread.
                if nccl.tid.is_some() && nccl.count.is_some() {
                    let function = nccl.function_text.clone().unwrap_or_else(|| match nccl.function() {
                        Function::Absent => "operation".into(),
                        function => function.as_str_name().to_owned(),
                    });
                    let entry = self.operations.entry((nccl.comm(), function)).or_default();
                    entry.0 += 1;
                    entry.1 = entry.1.saturating_add(nccl.bytes());
                }
            }
            Type::Instant => {
                match &*name {
                    "communicator init" => self.communicators.push(communicator(&nccl)),
                    "recording ended" => {
                        self.ended.push(track >> TRACK_BITS);
                        self.ends.push(nccl);
                    }
                    ENDED => self.imported.push(track >> TRACK_BITS),
                    "recording started" => self.notes.push(nccl.note().to_owned()),
                    _ if nccl.note.is_some() => self.notes.push(format!("{name}: {}", nccl.note())),
                    _ => {}
                }
                *self.instants.entry(name.to_string()).or_default() += 1;
            }
            _ => {}
        }
    }

    fn print(
        &self,
        path: &Path,
        bytes: usize,
        fault: Option<reader::Error>,
        out: &mut dyn Write,
    ) -> std::io::Result<()> {
        writeln!(out, "{}: {}, {} slices", path.display(), names::size(bytes as u64), self.slices)?;
        for process in &self.processes {
            writeln!(out, "  process       {process}")?;
        }
        for communicator in self.communicators.iter().take(COMMUNICATORS) {
            writeln!(out, "  communicator  {communicator}")?;
        }
        if let more @ 1.. = self.communicators.len().saturating_sub(COMMUNICATORS) {
            writeln!(out, "  communicator  {more} more")?;
        }
        for ((comm, function), (count, bytes)) in self.operations.iter().take(COMMUNICATORS) {
            writeln!(out, "  operations    {comm:016x} {function}: {count}, {} in all", names::size(*bytes))?;
        }
        if let more @ 1.. = self.operations.len().saturating_sub(COMMUNICATORS) {
            let rest = self.operations.values().skip(COMMUNICATORS);
            let (count, bytes) = rest.fold((0, 0_u64), |sum, of| (sum.0 + of.0, sum.1.saturating_add(of.1)));
            writeln!(
                out,
                "  operations    {more} more functions and communicators: {count}, {} in all",
                names::size(bytes)
            )?;
        }
        // One line for what was said often.
        let mut notes: BTreeMap<&str, u64> = BTreeMap::new();
        self.notes.iter().for_each(|note| *notes.entry(note).or_default() += 1);
        for (note, times) in notes {
            let times = if times > 1 { format!(" ({times} times)") } else { String::new() };
            writeln!(out, "  note          {note}{times}")?;
        }
        for (tag, end) in self.ended.iter().zip(&self.ends) {
            let process = match self.recordings.get(tag) {
                Some(process) if self.recordings.len() > 1 => format!("{process}: "),
                _ => String::new(),
            };
            writeln!(out, "  recorded      {process}{}", verdict(end))?;
        }
        if self.ends.iter().any(|end| end.kernels_application.is_some()) {
            writeln!(out, "  GPU kernels   {}", kernels(&self.ends))?;
        }
        if let Some(channels) = channels(&self.ends) {
            writeln!(out, "  GPU channels  {channels}")?;
        }
        let is_closed = |tag: &u64| self.ended.contains(tag) || self.imported.contains(tag);
        let open = self.recordings.iter().filter(|(tag, _)| !is_closed(tag));
        let mut open: Vec<&str> = open.map(|(_, process)| process.as_str()).collect();
        open.sort_by_key(|process| (survey::rank(process), *process));
        if !open.is_empty() {
            let missing = open.len();
            let rest = missing.saturating_sub(NAMED);
            let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
            open.truncate(NAMED);
            let names = open.join(", ");
            let what = match missing {
                1 => "this recording has no last word",
                _ => "these recordings have no last word",
            };
            let why = match is_being_written(path) {
                true => "it is still running",
                false => "still running or killed",
            };
            writeln!(out, "  not closed    {what}, {why}: {names}{more}")?;
        }
        if let Some(fault) = fault {
            writeln!(out, "  fault         {fault}")?;
        }
        Ok(())
    }
}

/// Whether a process of this machine that may be looked at has the file open for writing.
fn is_being_written(path: &Path) -> bool {
    let Ok(file) = fs::metadata(path) else { return false };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let files = processes.flat_map(|process| fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten());
    let mut same = files.filter(|entry| {
        fs::metadata(entry.path()).is_ok_and(|other| (other.dev(), other.ino()) == (file.dev(), file.ino()))
    });
    same.any(|entry| {
        // `flags:	0100001`: the last octal digit says for what it is open.
        let info = entry.path().to_string_lossy().replacen("/fd/", "/fdinfo/", 1);
        let info = fs::read_to_string(info).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        flags.is_some_and(|flags| flags.trim().ends_with(['1', '2']))
    })
}

fn communicator(nccl: &Nccl) -> String {
    // What its tracks call one that has no name begins or ends with this, unless they call it `all`.
    let short = || format!("(no name, {})", names::short_hash(nccl.comm()));
    let name = nccl.comm_name.clone().unwrap_or_else(|| if nccl.comm.is_some() { short() } else { "(no name)".into() });
    let unknown = |value: Option<i32>| value.map_or_else(|| "?".into(), |value| value.to_string());
    let version = match nccl.nccl_version() {
        0 => "NCCL of unknown version".to_owned(),
        number => format!("NCCL {}", names::nccl_version(number)),
    };
    // A process group of another tool's has neither hash nor interface.
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

/// What became of the kernels of all recordings together.
fn kernels(ends: &[Nccl]) -> String {
    let sum = |figure: fn(&Nccl) -> u64| ends.iter().map(figure).sum::<u64>();
    let figures = [
        (
            "of NCCL, exactly matched",
            sum(|end| end.kernels_launch_bracket() + end.kernels_external_id() + end.kernels_graph_node()),
        ),
        (
            "of NCCL, match inferred",
            sum(|end| end.kernels_call_bracket() + end.kernels_thread_order() + end.kernels_device_timer()),
        ),
        ("of NCCL, unmatched", sum(Nccl::kernels_unmatched)),
        ("of the application", sum(Nccl::kernels_application)),
    ];
    let losses = [
        ("launches without a kernel", sum(Nccl::launches_without_kernel)),
        ("of NCCL, missing because their times cannot be true", sum(Nccl::kernels_untimed)),
        ("launches lost", sum(Nccl::launches_lost)),
        ("that had not ended when CUPTI was flushed by force", sum(Nccl::kernels_unfinished)),
        ("records dropped by CUPTI", sum(Nccl::activities_dropped)),
        ("buffers lost", sum(Nccl::activity_buffers_discarded)),
        ("records left out at the size limit", sum(Nccl::activities_discarded)),
        ("records that cannot be true", sum(Nccl::activities_implausible)),
        ("external ids of others", sum(Nccl::external_ids_foreign)),
        ("NVTX markers without their other half", sum(Nccl::markers_unpaired)),
    ];
    let figures = figures.into_iter().filter(|(what, count)| *count > 0 || what.ends_with("matched"));
    let all = figures.chain(losses.into_iter().filter(|(_, count)| *count > 0));
    all.map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join("; ")
}

/// What kernel channels say, if there were any.
fn channels(ends: &[Nccl]) -> Option<String> {
    let sum = |figure: fn(&Nccl) -> u64| ends.iter().map(figure).sum::<u64>();
    let figures = [
        ("inside of their kernel", sum(Nccl::channels_inside_kernel)),
        ("of unknown kernels", sum(Nccl::channels_without_kernel)),
        ("without a time", sum(Nccl::channels_unmapped)),
        ("that cannot be true", sum(Nccl::channels_implausible)),
    ];
    let said: Vec<String> =
        figures.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{count} {what}")).collect();
    let (confirmed, contradicted) = (sum(Nccl::kernels_confirmed), sum(Nccl::kernels_contradicted));
    let kernels = match contradicted {
        0 => format!("{confirmed} matches of kernels confirmed"),
        _ => format!("{confirmed} matches of kernels confirmed, {contradicted} contradicted"),
    };
    (!said.is_empty()).then(|| format!("{}; {kernels}", said.join("; ")))
}

/// The recording's last word: all is well, or what is not.
fn verdict(end: &Nccl) -> String {
    let figures = [
        ("dropped for lack of room", end.dropped()),
        ("left out at the size limit", end.discarded()),
        ("late", end.late()),
        ("double stops", end.double_stops()),
        ("stops or states of unknown events", end.unknown_handles()),
        ("foreign handles", end.foreign_handles()),
        ("unknown parents", end.unknown_parents()),
        ("for other processes", end.foreign_events()),
        ("given up open", end.evicted_open()),
        ("proxy operations without progress", end.silent_proxy_ops()),
        ("unknown types or states", end.unknown_types()),
        ("without a lane", end.lanes_missing()),
        ("communicators without tracks of their own", end.communicators_sharing()),
        ("threads without tracks of their own", end.threads_sharing()),
        ("slices on tracks of several communicators, peers or threads", end.slices_sharing()),
        ("panics", end.panics()),
    ];
    let mut text = format!("{} calls of NCCL, times to {} ns", end.recorded(), end.clock_error_ns());
    for (what, count) in figures.into_iter().filter(|(_, count)| *count > 0) {
        text.push_str(&format!("; {count} {what}"));
    }
    text
}
