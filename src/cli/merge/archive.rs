//! `ncclscope merge -o job.tar`: the traces as they are, with a manifest that says which process
//! and host each comes from and how far the hosts' clocks are apart.
//!
//! Perfetto reads the manifest from v58 on (its docs/reference/perfetto-manifest.md). Earlier
//! versions ignore it, and show traces of one clock correctly. In the manifest, a clock belongs to
//! a machine: one offset holds for all files of a machine, over their whole length.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Origin, Together, Whole};
use crate::cli::LISTED;
use crate::cli::reason::Reason;
use crate::clock::hosts::Offset;
use crate::import::Span;
use crate::model::time::{HostNs, Shift};
use crate::trace::names;
use crate::trace::words::attribute;

/// The name that Perfetto's own merges use. Perfetto recognises the file by its content.
const MANIFEST: &str = "perfetto_manifest.json";
/// Members are padded to a multiple of this length.
const BLOCK: usize = 512;
/// How differently two processes of a host may read its wall clock, ns. Perfetto aligns a machine's
/// further files by that clock.
const WALL_NS: u64 = 10_000;

/// Whether the name of the output file asks for an archive.
pub(super) fn is_meant(output: &Path) -> Result<bool, Reason> {
    let ends = |ending: &str| output.extension().is_some_and(|it| it.eq_ignore_ascii_case(ending));
    if ends("zip") {
        let tar = output.with_extension("tar");
        return Err(Reason::Refused(format!("an archive of traces is a tar: name it {}", tar.display())));
    }
    Ok(ends("tar"))
}

/// Writes the traces into an archive. Returns how many bytes that was.
pub(super) fn write(together: &Together<'_>, output: &mut File, out: &mut dyn Write) -> Result<u64, Reason> {
    let plan = Plan::of(&together.files);
    let mut written = 0;
    let manifest = plan.manifest(out).to_string();
    written += member(MANIFEST, manifest.len() as u64, &mut manifest.as_bytes(), output).map_err(Reason::Output)?;
    for (file @ Whole { path, extent, .. }, name) in together.files.iter().zip(&plan.members) {
        let mut source = file.open().map_err(Reason::read(path))?;
        written += member(name, extent.whole, &mut source, output)
            .map_err(Reason::failed(format!("copy {}", path.display())))?;
    }
    output.write_all(&[0; 2 * BLOCK]).map_err(Reason::Output)?;
    Ok(written + 2 * BLOCK as u64)
}

/// Writes a member of the archive.
fn member(name: &str, length: u64, source: &mut impl io::Read, output: &mut File) -> io::Result<u64> {
    let mut header = tar::Header::new_gnu();
    header.set_path(name)?;
    header.set_size(length);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_cksum();
    output.write_all(header.as_bytes())?;
    let copied = io::copy(source, output)?;
    if copied != length {
        return Err(io::Error::other(format!("it has {copied} bytes now, and had {length}")));
    }
    let rest = length.next_multiple_of(BLOCK as u64) - length;
    output.write_all(&[0; BLOCK][..rest as usize])?;
    Ok(BLOCK as u64 + length + rest)
}

/// What each file becomes in the archive.
struct Plan<'a> {
    /// The files' names there, in order.
    members: Vec<String>,
    /// The machine of each file.
    machine_of: Vec<usize>,
    machines: Vec<Machine<'a>>,
}

/// What Perfetto treats as one host: one clock, and its own process ids.
struct Machine<'a> {
    name: String,
    clock: usize,
    /// The index of its first file.
    first: usize,
    origins: Vec<&'a Origin>,
    /// From its clock to that of the first machine; `None` if they are the same.
    offset: Option<&'a Offset>,
    /// From the first to the last time of all files on its clock.
    span: Option<Span>,
}

impl<'a> Plan<'a> {
    fn of(files: &'a [Whole<'a>]) -> Plan<'a> {
        let mut plan = Plan { members: Vec::new(), machine_of: Vec::new(), machines: Vec::new() };
        for (number, file) in files.iter().enumerate() {
            plan.members.push(plan.member(number, file.path));
            let known = plan.machines.iter().position(|machine| machine.may_have(file));
            let machine = known.unwrap_or_else(|| {
                let spans = files.iter().filter(|other| other.clock == file.clock).filter_map(|file| file.origin.span);
                plan.machines.push(Machine {
                    name: plan.machine_name(&file.origin),
                    clock: file.clock,
                    first: number,
                    origins: Vec::new(),
                    offset: file.moved.as_ref().map(|moved| &moved.offset),
                    span: spans
                        .reduce(|one, other| Span { start: one.start.min(other.start), end: one.end.max(other.end) }),
                });
                plan.machines.len() - 1
            });
            plan.machines[machine].origins.push(&file.origin);
            plan.machine_of.push(machine);
        }
        plan
    }

    /// A file's own name, unless it is taken, Perfetto would ignore it, or it is too long for a
    /// tar.
    fn member(&self, number: usize, path: &Path) -> String {
        let own = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let own = Some(own.to_owned()).filter(|own| !own.is_empty() && !own.starts_with('.') && own.len() <= 100);
        let others = (number..).map(|number| format!("file {number}.perfetto-trace"));
        let is_free = |name: &String| name != MANIFEST && !self.members.contains(name);
        own.into_iter().chain(others).find(is_free).unwrap_or_default()
    }

    /// The host's name, unless another machine has it already: two boots, or containers with equal
    /// process ids.
    fn machine_name(&self, origin: &Origin) -> String {
        super::named_apart(origin.host(), |name| self.machines.iter().any(|machine| machine.name == name))
    }

    /// Perfetto's manifest. Where one offset is less exact than what the traces show, a message
    /// says by how much.
    fn manifest(&self, out: &mut dyn Write) -> Value {
        let Some(reference) = self.machines.first().map(|machine| &self.members[machine.first]) else {
            return json!({});
        };
        let mut attributes = Map::new();
        let mut offsets: Vec<Option<i64>> = Vec::new();
        let shifted = || self.machines.iter().filter(|machine| machine.offset.is_some());
        let are_many = shifted().count() > LISTED;
        if let (true, Some(worst)) = (are_many, shifted().max_by_key(|machine| machine.shift().error_ns)) {
            let _ = writeln!(
                out,
                "in the archive the clock of each host has one offset for the whole trace, which Perfetto reads from v58 \
                 on: times are off by {} at worst, on {}",
                names::duration(worst.shift().error_ns as f64),
                worst.name
            );
        }
        for (number, machine) in self.machines.iter().enumerate() {
            let Shift { ns, error_ns } = machine.shift();
            offsets.push((number > 0).then_some(ns));
            if machine.offset.is_some() {
                let how = format!(
                    "in the archive its clock has one offset for the whole trace, which Perfetto reads from v58 \
                     on: its times are off by {} at worst",
                    names::duration(error_ns as f64)
                );
                if !are_many {
                    let _ = writeln!(out, "{}: {how}", machine.name);
                }
                attributes.insert(format!("{}{}", attribute::HOST_CLOCK, machine.name), how.into());
            }
        }
        let files = self.members.iter().enumerate().map(|(number, name)| {
            let machine = &self.machines[self.machine_of[number]];
            let mut file = json!({ "path": name, "machine": { "name": machine.name } });
            // A relation holds between machines, so it is stated with only one of their files.
            if let (true, Some(offset)) = (machine.first == number, offsets[self.machine_of[number]]) {
                file["clocks"] = json!({
                    "clock": "BOOTTIME",
                    "sync_to": { "file": reference, "clock": "BOOTTIME" },
                    "offset_ns": offset,
                });
            }
            file
        });
        json!({ "perfetto_manifest": {
            "version": 1,
            "trace_time": { "clock": "BOOTTIME", "file": reference },
            "files": files.collect::<Vec<_>>(),
            "attributes": attributes,
        } })
    }
}

impl Machine<'_> {
    /// Whether a file can belong to it.
    fn may_have(&self, file: &Whole<'_>) -> bool {
        let is_apart = |origin: &&Origin| {
            let by = file.origin.to(origin).map_or(0, |by| by.ns.unsigned_abs());
            !origin.pids.is_disjoint(&file.origin.pids) || self.first > 0 && by > WALL_NS
        };
        self.clock == file.clock && !self.origins.iter().any(is_apart)
    }

    /// From its times to those of the first machine, and the largest error that leaves.
    fn shift(&self) -> Shift {
        let mut shift = match (self.offset, self.span) {
            (Some(offset), Some(Span { start, end })) => offset.constant(start.in_trace(), end.in_trace()),
            (Some(offset), None) => offset.at(HostNs(0)),
            (None, _) => Shift::default(),
        };
        if self.origins.len() > 1 {
            shift.error_ns = shift.error_ns.saturating_add(WALL_NS);
        }
        shift
    }
}

#[cfg(test)]
mod tests {
    use super::super::moved::Move;
    use super::*;
    use crate::clock::hosts::Orders;
    use crate::model::time::FileNs;
    use crate::trace::reader::Extent;

    /// A trace of a process: its host, its process id, its clock, and the reading of the host's
    /// wall clock.
    fn file(path: &'static str, host: &str, pid: i32, clock: usize, wall_ns: i64) -> Whole<'static> {
        let mut origin = Origin::of(Path::new(path));
        (origin.hosts, origin.pids) = ([host.into()].into(), [pid].into());
        origin.to_utc = Some(Shift { ns: wall_ns, error_ns: 0 });
        origin.span = Some(Span { start: FileNs(1_000_000_000), end: FileNs(11_000_000_000) });
        // The first host's clock is ahead, and the other's runs 100 ppm slower.
        let mut orders = Orders::default();
        for at in (1_000_000_000..=11_000_000_000).step_by(50_000_000) {
            let here = at + 3_000_000_000 + at / 10_000;
            orders.here_first(HostNs(here - 20_000), HostNs(at));
            orders.there_first(HostNs(here + 20_000), HostNs(at));
        }
        let moved = Move { offset: orders.solve().unwrap(), host: host.into(), how: String::new(), error_ns: 0 };
        let extent = Extent { whole: 1, unfinished: 0 };
        Whole { path: Path::new(path), copy: None, extent, origin, clock, moved: (clock > 0).then_some(moved) }
    }

    fn plan(files: &[Whole<'_>]) -> (Value, String) {
        let mut said = Vec::new();
        let mut manifest = Plan::of(files).manifest(&mut said);
        (manifest["perfetto_manifest"].take(), String::from_utf8(said).unwrap())
    }

    #[test]
    fn each_host_is_a_machine_and_states_its_clock_once() {
        let (manifest, said) = plan(&[
            file("a/0.perfetto-trace", "node1", 7, 0, 0),
            file("a/1.perfetto-trace", "node1", 8, 0, 0),
            file("b/2.perfetto-trace", "node2", 7, 1, 50),
            file("b/3.perfetto-trace", "node2", 8, 1, 90),
        ]);
        // In the middle of the span, the clocks are 3 s and 600 us apart.
        let offset = manifest["files"][2]["clocks"]["offset_ns"].as_i64().unwrap();
        assert!((offset - 3_000_600_000).abs() <= 20_000, "{offset}");
        let machine = |name: &str, host: &str| json!({ "path": name, "machine": { "name": host } });
        let mut first_of_node2 = machine("2.perfetto-trace", "node2");
        first_of_node2["clocks"] = json!({
            "clock": "BOOTTIME", "sync_to": { "file": "0.perfetto-trace", "clock": "BOOTTIME" }, "offset_ns": offset,
        });
        let files = [
            machine("0.perfetto-trace", "node1"),
            machine("1.perfetto-trace", "node1"),
            first_of_node2,
            machine("3.perfetto-trace", "node2"),
        ];
        assert_eq!(manifest["files"], json!(files));
        assert_eq!(manifest["trace_time"], json!({ "clock": "BOOTTIME", "file": "0.perfetto-trace" }));
        assert_eq!(manifest["version"], 1);
        // 500 us of drift towards either end, the remaining uncertainty, and two processes'
        // readings of the wall clock.
        let told = said.strip_prefix("node2: in the archive its clock has one offset").unwrap();
        let worst = told.split(" off by ").nth(1).unwrap().split(" µs").next().unwrap().parse::<f64>().unwrap();
        assert!((510.0..560.0).contains(&worst), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(manifest["attributes"]["ncclscope.clock.node2"].as_str().is_some_and(|how| said.contains(how)));
    }

    #[test]
    fn files_that_perfetto_would_mix_up_are_kept_apart() {
        let (manifest, _) = plan(&[
            file("a/0.perfetto-trace", "node1", 1, 0, 0),
            // A container with the same process id, and a file name that is taken.
            file("b/0.perfetto-trace", "node1", 1, 0, 0),
            // Another boot of a host with this name, and a hidden file, which Perfetto would
            // ignore.
            file("c/.hidden", "node1", 1, 1, 0),
            // The wall clock of node1 was set in between, which matters if its clock is not the
            // first machine's.
            file("d/3.perfetto-trace", "node1", 2, 1, 1_000_000),
            file("e/4.perfetto-trace", "node1", 3, 0, 1_000_000),
        ]);
        let files = manifest["files"].as_array().unwrap();
        let told = |file: &Value| {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            (text(&file["path"]), text(&file["machine"]["name"]), file["clocks"]["offset_ns"].as_i64())
        };
        let told: Vec<_> = files.iter().map(told).collect();
        let offset = told[2].2;
        assert!(offset.is_some_and(|ns| ns > 3_000_000_000), "{offset:?}");
        let expected = [
            ("0.perfetto-trace", "node1", None),
            ("file 1.perfetto-trace", "node1 (2)", Some(0)),
            ("file 2.perfetto-trace", "node1 (3)", offset),
            ("3.perfetto-trace", "node1 (4)", offset),
            ("4.perfetto-trace", "node1", None),
        ];
        assert_eq!(told, expected.map(|(path, machine, offset)| (path.to_owned(), machine.to_owned(), offset)));
    }
}
