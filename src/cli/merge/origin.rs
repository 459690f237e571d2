//! Where files come from: whether they share a clock, and whether they come from the same run.
//!
//! A host's clock counts from its boot, so files of one boot share a clock, whatever the hosts'
//! names: containers have names of their own. Files from versions that did not record the boot are
//! compared by the offset of their clock from the wall clock. Files come from the same run if they
//! have a communicator in common or were recorded at the same time, unless the run's name says
//! otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::super::{read_trace, survey};
use crate::cli::reason::Reason;
use crate::config;
use crate::import::knowledge::{duration, utc};
use crate::import::{Clock, Span};
use crate::model::time::{FileNs, HostNs, Shift};
use crate::trace::fields::nccl;
use crate::trace::reader::{self, Event, Packet, TracePacket};
use crate::trace::words::{attribute, instant};
use crate::trace::writer::TRACK_BITS;

/// By how much the wall clock may be set while a job runs, in ns: if only the host's name says that
/// a boot is the same, and if nothing does.
const SET_NS: u64 = 60_000_000_000;
const STEERED_NS: u64 = 1_000_000_000;

/// What a file says about itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Origin {
    path: PathBuf,
    /// The tags of its processes.
    pub(super) tags: BTreeSet<u64>,
    /// Each tag with the process's name and pid, which tell it from others with the same tag.
    processes: BTreeSet<(u64, String)>,
    /// Its ranks: tag, NCCL's hash of the communicator, and the rank there.
    ranks: BTreeSet<(u64, u64, u64)>,
    /// Their ids on their host.
    pub(super) pids: BTreeSet<i32>,
    /// The tags of what earlier merges drew into it.
    pub(super) merges: BTreeSet<u64>,
    pub(super) hosts: BTreeSet<String>,
    pub(super) boots: BTreeSet<String>,
    /// The names of its run.
    runs: BTreeSet<String>,
    /// `None` if it does not say how it was made.
    kind: Option<Kind>,
    /// To the time since 1970.
    pub(super) to_utc: Option<Shift>,
    /// From its first to its last time.
    pub(super) span: Option<Span>,
    /// NCCL's hashes of its communicators.
    communicators: BTreeSet<u64>,
}

/// The clock that a file's times are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The host's clock: ncclscope recorded it.
    Recorded,
    /// The wall clock, or another tool's own clock: it was imported.
    Imported,
}

impl Origin {
    pub(super) fn of(path: &Path) -> Origin {
        Origin { path: path.to_owned(), ..Origin::default() }
    }

    /// What the beginning of a file says about its clock.
    pub(super) fn head(path: &Path) -> Result<Origin, Reason> {
        let mut origin = Origin::of(path);
        let read = read_trace(path, |packet| {
            origin.look(packet);
            // The rest of the file has nothing to add.
            if origin.tells_clock() { Err("".into()) } else { Ok(()) }
        });
        match read {
            Err(reason) if !origin.tells_clock() => Err(reason),
            _ => Ok(origin),
        }
    }

    fn tells_clock(&self) -> bool {
        !self.boots.is_empty() && self.to_utc.is_some()
    }

    /// Takes the next packet.
    pub(super) fn look(&mut self, packet: &Packet<'_>) {
        if let Some(descriptor) = packet.track_descriptor()
            && let Some(process) = &descriptor.process
        {
            self.tags.insert(descriptor.uuid() >> TRACK_BITS);
            self.pids.insert(process.pid());
            let who = format!("{} {}", process.process_name(), process.own_pid());
            self.processes.insert((descriptor.uuid() >> TRACK_BITS, who));
            self.hosts.extend(survey::host(process.process_name()).map(str::to_owned));
        }
        if let Some(event) = &packet.event {
            self.event(event, packet.time.unwrap_or_default().into());
        } else if packet.descriptor.is_none()
            && let Ok(packet) = packet.decode()
        {
            self.said(&packet);
        }
    }

    fn said(&mut self, packet: &TracePacket) {
        self.to_utc = self.to_utc.or_else(|| Clock::of_file("", reader::to_utc_ns(packet)).to_utc);
        for said in packet.trace_attributes.iter().flat_map(|it| &it.attribute) {
            match said.key() {
                attribute::BOOT => drop(self.boots.insert(said.string_value().to_owned())),
                attribute::MERGED => self.merges.extend(said.string_value().parse::<u64>()),
                attribute::RUN => drop(self.runs.insert(said.string_value().to_owned())),
                attribute::TOOL => drop(self.kind.get_or_insert(Kind::Imported)),
                _ => {}
            }
        }
    }

    fn event(&mut self, event: &Event<'_>, time: FileNs) {
        let all = self.span.unwrap_or(Span { start: time, end: time });
        self.span = Some(Span { start: all.start.min(time), end: all.end.max(time) });
        match event.name {
            // What another tool saw beside a recording is on the recording's clock.
            instant::STARTED => self.kind = Some(Kind::Recorded),
            instant::COMM_INIT => {
                let (mark, rank) = (event.track >> TRACK_BITS, event.uint(nccl::RANK).unwrap_or(0));
                if let Some(hash) = event.nccl().comm.filter(|hash| *hash != 0) {
                    self.communicators.insert(hash);
                    self.ranks.insert((mark, hash, rank));
                }
            }
            _ => {}
        }
    }

    /// Whether both contain the recording of one process: with the same name, pid and tag; or with
    /// the same name, pid and rank, if a merge gave it another tag.
    pub(super) fn has_twin_in(&self, other: &Origin) -> bool {
        let ranks = |of: &Origin, mark: u64| -> BTreeSet<(u64, u64)> {
            of.ranks.range((mark, 0, 0)..=(mark, u64::MAX, u64::MAX)).map(|(_, hash, rank)| (*hash, *rank)).collect()
        };
        self.processes.iter().any(|(mark, who)| {
            let others = || other.processes.iter().filter(|(_, its)| its == who).map(|(its, _)| *its);
            others().any(|its| its == *mark || !ranks(self, *mark).is_disjoint(&ranks(other, its)))
        })
    }

    /// Refuses a file that does not say that it belongs to this run.
    pub(super) fn must_be_of(&self, run: &str) -> Result<(), Reason> {
        let is_it = |known: &String| known == run || known.split_once('=').is_some_and(|(_, id)| id == run);
        if self.runs.iter().any(is_it) {
            return Ok(());
        }
        let runs: Vec<_> = self.runs.iter().cloned().collect();
        let said = if runs.is_empty() { "it names no run".into() } else { format!("it is of {}", runs.join(", ")) };
        Err(Reason::file(&self.path)(said))
    }

    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }

    pub(super) fn host(&self) -> String {
        self.hosts.iter().cloned().collect::<Vec<_>>().join(", ")
    }

    /// Its first and its last time.
    pub(super) fn ends(&self) -> impl Iterator<Item = HostNs> {
        self.span.into_iter().flat_map(|span| [span.start, span.end]).map(FileNs::in_trace)
    }

    /// The time it covers, as text.
    fn when(&self) -> String {
        let Some(span) = self.span else { return "at no time".into() };
        let length = duration(span.duration() as f64);
        match self.to_utc {
            Some(to_utc) => format!("from {} for {length}", utc(span.start.to_utc(to_utc))),
            None => format!("for {length}"),
        }
    }

    /// The shift to another file's clock, by the wall clocks of both.
    pub(super) fn to(&self, other: &Origin) -> Option<Shift> {
        Some(self.to_utc?.then(other.to_utc?.back()))
    }

    fn overlaps(&self, other: &Origin) -> bool {
        // Files of two boots are compared by the wall clocks, which are not far apart.
        let apart = other.to(self).filter(|_| !one_boot(self, other)).unwrap_or_default();
        match (self.span, other.span) {
            (Some(here), Some(there)) => here.overlaps(there.shifted(apart)),
            // What is not stated contradicts nothing.
            _ => true,
        }
    }
}

/// What files have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Common {
    /// For each file, the number of its clock; counted from 0 in the order of the files.
    pub(super) clocks: Vec<usize>,
    /// How well their times fit together, if there is something to say.
    pub(super) remark: Option<String>,
}

/// Which files share a clock, provided that they come from the same run.
///
/// # Errors
///
/// Why they cannot be merged: a clock cannot be related to the others, or there are several runs.
pub(super) fn judge(files: &[Origin]) -> Result<Common, Reason> {
    let mut clocks: Vec<usize> = Vec::new();
    let mut firsts: Vec<&Origin> = Vec::new();
    for file in files {
        let mut known = None;
        for (number, first) in firsts.iter().enumerate() {
            if known.is_none() && one_clock(first, file)? {
                known = Some(number);
            }
        }
        clocks.push(known.unwrap_or_else(|| {
            firsts.push(file);
            firsts.len() - 1
        }));
    }
    if files.len() > 1 {
        one_run(files)?;
    }
    let imported = files.len() > 1 && files[0].kind == Some(Kind::Imported);
    let remark = imported.then(|| {
        "the times of imported files are put together by the wall clocks of their hosts, and how far these were apart is not known".into()
    });
    Ok(Common { clocks, remark })
}

/// Whether two files share a clock; an error if they do not and nothing can relate their clocks.
fn one_clock(one: &Origin, other: &Origin) -> Result<bool, Reason> {
    let refused =
        |why: String| Err(Reason::Refused(format!("{} and {} have no common clock: {why}", one.name(), other.name())));
    let is_imported = |file: &&Origin| file.kind == Some(Kind::Imported);
    let imported: Vec<&Origin> = [one, other].into_iter().filter(is_imported).collect();
    match imported[..] {
        [] => Ok(one_boot(one, other)),
        [imported] => refused(format!(
            "{} was imported from another tool's file; if that is from the same run, merge the tool's own file \
             with --with, which aligns it by the launches",
            imported.name()
        )),
        _ => match imported.iter().find(|file| file.to_utc.is_none()) {
            Some(file) => refused(format!("the file that {} was imported from does not say when it was", file.name())),
            None if !one.hosts.is_empty() && !other.hosts.is_empty() && one.hosts.is_disjoint(&other.hosts) => {
                refused(format!(
                    "they are of different hosts, {} and {}, and imported files do not say what relates their clocks",
                    one.host(),
                    other.host()
                ))
            }
            None => Ok(true),
        },
    }
}

/// Whether two recordings are of one boot and one clock. Time namespaces may give the containers of
/// one boot different clocks.
pub(super) fn one_boot(one: &Origin, other: &Origin) -> bool {
    let apart = one.to(other).map_or(0, |by| by.ns.unsigned_abs());
    if !one.boots.is_empty() && !other.boots.is_empty() {
        return !one.boots.is_disjoint(&other.boots) && apart <= SET_NS;
    }
    let same_host = !one.hosts.is_disjoint(&other.hosts);
    apart <= if same_host { SET_NS } else { STEERED_NS }
}

/// Checks that files come from the same run.
fn one_run(files: &[Origin]) -> Result<(), Reason> {
    // The files that are linked with the first one, directly or through others.
    let mut of_first: BTreeSet<usize> = BTreeSet::from([0]);
    let mut next = vec![0];
    while let Some(at) = next.pop()
        && of_first.len() < files.len()
    {
        for other in (0..files.len()).filter(|other| !of_first.contains(other)).collect::<Vec<_>>() {
            if why_apart(&files[at], &files[other]).is_none() {
                of_first.insert(other);
                next.push(other);
            }
        }
    }
    let Some(stranger) = (0..files.len()).find(|at| !of_first.contains(at)) else { return Ok(()) };
    let (one, other) = (&files[0], &files[stranger]);
    let why = why_apart(one, other).unwrap_or_default();
    // Imported files do not name a run.
    let advice = match one.kind {
        Some(Kind::Imported) => String::new(),
        _ => format!(", which {} in all its processes tells apart", config::RUN_ID),
    };
    Err(Reason::Refused(format!(
        "{} and {} are from two runs: {why}; merge the files of one run, with --run if they name it{advice}",
        one.name(),
        other.name()
    )))
}

/// Whether names of runs tell files apart. They do not if a job's ranks were restarted.
pub(super) fn are_named_apart(files: &[Origin]) -> bool {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut runs = files.iter().flat_map(|file| &file.runs).filter_map(|run| run.split_once('='));
    runs.any(|(variable, run)| *names.entry(variable).or_insert(run) != run)
}

/// Why two files come from different runs; `None` if nothing they say shows that they do.
fn why_apart(one: &Origin, other: &Origin) -> Option<String> {
    if !one.communicators.is_disjoint(&other.communicators) {
        return None;
    }
    let of = |file: &Origin, variable: &str| -> Vec<String> {
        file.runs.iter().filter(|run| run.split('=').next() == Some(variable)).cloned().collect()
    };
    // Only names from the same variable are compared, because a process started by another launcher
    // may have a different one set.
    for run in &one.runs {
        let variable = run.split('=').next().unwrap_or_default();
        let theirs = of(other, variable);
        if theirs.contains(run) && variable == config::RUN_ID {
            return None;
        }
        if !theirs.is_empty() && !theirs.contains(run) {
            return Some(format!("{run} and {}, and no communicator is in both", theirs.join(", ")));
        }
    }
    if one.overlaps(other) {
        return None;
    }
    let nothing = if one.communicators.is_empty() || other.communicators.is_empty() {
        ""
    } else {
        ", and no communicator is in both"
    };
    Some(format!("they were not recorded at the same time, {} and {}{nothing}", one.when(), other.when()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wall(to_utc_ns: i64) -> Option<Shift> {
        Clock::of_file("", Some(to_utc_ns)).to_utc
    }

    fn span(start: i64, end: i64) -> Option<Span> {
        Some(Span::of(start, end))
    }

    /// A recording of node1, of the boot b1 that began 1000 s after 1970, from its 10th to its 20th
    /// second.
    fn recorded(path: &str) -> Origin {
        Origin {
            path: path.into(),
            hosts: ["node1".into()].into(),
            boots: ["b1".into()].into(),
            kind: Some(Kind::Recorded),
            to_utc: wall(1_000_000_000_000),
            span: span(10_000_000_000, 20_000_000_000),
            ..Origin::default()
        }
    }

    fn changed(change: impl FnOnce(&mut Origin)) -> Origin {
        let mut origin = recorded("b");
        change(&mut origin);
        origin
    }

    fn later(origin: &mut Origin) {
        origin.span = span(21_000_000_000, 30_000_000_000);
    }

    fn said(origin: &mut Origin, run: &str) {
        origin.runs.insert(run.into());
    }

    #[test]
    fn files_of_one_boot_share_a_clock() {
        for (other, same) in [
            (changed(|_| ()), true),
            // Containers and emulated hosts have names of their own.
            (changed(|it| it.hosts = ["node2".into()].into()), true),
            (changed(|it| it.boots = ["b2".into()].into()), false),
            (changed(|it| (it.boots, it.hosts) = (["b2".into()].into(), ["node2".into()].into())), false),
            (changed(|it| it.to_utc = wall(1_030_000_000_000)), true),
            (changed(|it| it.to_utc = wall(4_600_000_000_000)), false),
            // From a version that did not record the boot.
            (changed(|it| it.boots.clear()), true),
            (changed(|it| (it.boots, it.to_utc) = (BTreeSet::new(), wall(1_030_000_000_000))), true),
            (changed(|it| (it.boots, it.to_utc) = (BTreeSet::new(), wall(2_000_000_000_000))), false),
            (
                changed(|it| {
                    (it.boots, it.to_utc) = (BTreeSet::new(), wall(1_030_000_000_000));
                    it.hosts = ["node2".into()].into();
                }),
                false,
            ),
        ] {
            let alike = changed(|it| it.communicators = [7].into());
            let other = Origin { communicators: [7].into(), ..other };
            let common = judge(&[alike.clone(), other.clone(), alike]).unwrap();
            assert_eq!(common.clocks, if same { [0, 0, 0] } else { [0, 1, 0] }, "{other:?}");
        }
    }

    #[test]
    fn times_of_two_boots_are_compared_by_the_wall_clock() {
        let booted = |change: fn(&mut Origin)| {
            changed(|it| {
                // It was booted 5000 s later, and recorded at the same time.
                it.boots = ["b2".into()].into();
                it.to_utc = wall(6_000_000_000_000);
                it.span = span(-4_990_000_000_000, -4_985_000_000_000);
                change(it);
            })
        };
        assert_eq!(judge(&[recorded("a"), booted(|_| ())]).unwrap().clocks, [0, 1]);
        let days_later = booted(|it| it.span = recorded("a").span);
        assert!(judge(&[recorded("a"), days_later]).unwrap_err().to_string().contains("not recorded at the same time"));
    }

    #[test]
    fn files_of_one_run_are_joined_and_others_refused() {
        let one = |change: &dyn Fn(&mut Origin)| {
            let mut origin = recorded("a");
            change(&mut origin);
            origin
        };
        let dp: &dyn Fn(&mut Origin) = &|it| it.communicators = [7].into();
        let tp: &dyn Fn(&mut Origin) = &|it| it.communicators = [8].into();
        for (a, b, why) in [
            // Groups of one job that share no communicator run at the same time.
            (one(dp), changed(tp), None),
            (one(&|it| said(it, "SLURM_JOB_ID=1")), changed(|it| said(it, "SLURM_JOB_ID=1")), None),
            (one(&|it| said(it, "SLURM_JOB_ID=1")), changed(|it| said(it, "TORCHELASTIC_RUN_ID=x")), None),
            (
                one(&|it| said(it, "SLURM_JOB_ID=1")),
                changed(|it| said(it, "SLURM_JOB_ID=2")),
                Some("SLURM_JOB_ID=1 and SLURM_JOB_ID=2"),
            ),
            // One after the other.
            (one(dp), changed(|it| (later(it), dp(it)).1), None),
            (
                one(dp),
                changed(|it| (later(it), tp(it)).1),
                Some("they were not recorded at the same time, from 1970-01-01 00:16:50.000 UTC for 10.0 s and from"),
            ),
            // A job's second step, or its restart.
            (
                one(&|it| said(it, "SLURM_JOB_ID=1")),
                changed(|it| (later(it), said(it, "SLURM_JOB_ID=1")).1),
                Some("they were not recorded at the same time"),
            ),
            (
                one(&|it| said(it, "NCCLSCOPE_RUN_ID=tuesday")),
                changed(|it| (later(it), said(it, "NCCLSCOPE_RUN_ID=tuesday")).1),
                None,
            ),
        ] {
            let judged = judge(&[a, b]);
            match why {
                None => assert_eq!(judged.unwrap().clocks, [0, 0]),
                Some(why) => {
                    let reason = judged.expect_err(why).to_string();
                    assert!(reason.starts_with("a and b are from two runs: ") && reason.contains(why), "{reason}");
                    assert!(reason.contains("NCCLSCOPE_RUN_ID"), "{reason}");
                }
            }
        }
    }

    #[test]
    fn files_of_one_run_may_be_linked_through_others() {
        let (mut second, mut third) = (recorded("b"), recorded("c"));
        (second.span, third.span) = (span(15_000_000_000, 30_000_000_000), span(25_000_000_000, 40_000_000_000));
        assert_eq!(
            judge(&[recorded("a"), third.clone(), second]).unwrap().clocks,
            [0; 3],
            "what lies between them ties them"
        );
        assert!(judge(&[recorded("a"), third]).is_err());
        assert_eq!(judge(&[recorded("a")]).unwrap().clocks, [0]);
        assert_eq!(judge(&[]).unwrap(), Common::default());
    }

    #[test]
    fn imported_files_are_joined_by_the_wall_clock_or_not_at_all() {
        let imported = |path: &str, to_utc: Option<i64>| Origin {
            path: path.into(),
            kind: Some(Kind::Imported),
            to_utc: to_utc.and_then(wall),
            span: span(10_000_000_000, 20_000_000_000),
            ..Origin::default()
        };
        let remark = judge(&[imported("a", Some(0)), imported("b", Some(0))]).unwrap().remark;
        assert!(remark.is_some_and(|remark| remark.contains("wall clocks")));
        let mut elsewhere = [imported("a", Some(0)), imported("b", Some(0))];
        for (origin, host) in elsewhere.iter_mut().zip(["node1", "node2"]) {
            origin.hosts.insert(host.into());
        }
        let mut days_later = imported("b", Some(0));
        later(&mut days_later);
        for (files, why) in [
            ([imported("a", Some(0)), imported("b", None)], "b was imported from does not say when it was"),
            ([recorded("a"), imported("b", Some(0))], "b was imported from another tool's file"),
            ([imported("a", Some(0)), recorded("b")], "a was imported from another tool's file"),
            (elsewhere, "different hosts, node1 and node2"),
            ([imported("a", Some(0)), days_later], "not recorded at the same time"),
        ] {
            let reason = judge(&files).expect_err(why).to_string();
            assert!(reason.contains(why), "{reason}");
        }
    }
}
