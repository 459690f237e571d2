//! What follows from the facts about a machine (pure).

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use super::facts::{CuptiCopy, Facts, NcclCopy};
use crate::cli::{colour, library, nccl};
use crate::releases::{self, FAULTS, Fault, FaultId};
use crate::trace::names;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Grade {
    /// As it should be.
    Ok,
    /// Something is less than it could be, or worth knowing.
    Note,
    /// It keeps ncclscope from recording.
    Problem,
}

/// One thing that was checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) grade: Grade,
    /// What it is about.
    pub(super) about: &'static str,
    /// What was found.
    pub(super) found: String,
    /// Its consequence, unless that is obvious.
    pub(super) follows: Option<String>,
    /// What to do, if anything.
    pub(super) advice: Option<String>,
}

impl Finding {
    fn new(grade: Grade, about: &'static str, found: impl Into<String>) -> Finding {
        Finding { grade, about, found: found.into(), follows: None, advice: None }
    }

    fn so(mut self, follows: impl Into<String>) -> Finding {
        self.follows = Some(follows.into());
        self
    }

    fn advise(mut self, advice: impl Into<String>) -> Finding {
        self.advice = Some(advice.into());
        self
    }

    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let word = match self.grade {
            Grade::Ok => colour::paint(colour::GOOD, "ok      "),
            Grade::Note => colour::paint(colour::NOTE, "note    "),
            Grade::Problem => colour::paint(colour::BAD, "PROBLEM "),
        };
        writeln!(out, "{word} {:<14} {}", self.about, self.found)?;
        for (mark, text) in [("so", &self.follows), ("do", &self.advice)] {
            if let Some(text) = text {
                writeln!(out, "{:<23} {mark}: {text}", "")?;
            }
        }
        Ok(())
    }
}

const NOT_HERE: &str = "NCCL cannot run here; run doctor on a GPU node";

/// All findings, in the order in which a reader needs them.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut all = vec![library(facts)];
    all.extend(driver(facts));
    all.extend(cupti(facts));
    all.extend(nccl(facts));
    all.extend(environment(facts));
    all.extend(room(facts));
    all
}

fn library(facts: &Facts) -> Finding {
    match (&facts.library, &facts.library_fault) {
        (Some(path), None) => Finding::new(Grade::Ok, "ncclscope", format!("{}, {}", facts.version, path.display())),
        (Some(path), Some(fault)) => {
            Finding::new(Grade::Problem, "ncclscope", format!("{} cannot be loaded: {fault}", path.display()))
                .advise("install the wheel or the archive for this machine: they need glibc 2.28 and nothing else")
        }
        (None, fault) => Finding::new(Grade::Problem, "ncclscope", fault.clone().unwrap_or_default()),
    }
}

fn driver(facts: &Facts) -> Vec<Finding> {
    let driver = &facts.driver;
    let mut all = Vec::new();
    match (&driver.kernel, &driver.library) {
        (None, None) => return vec![Finding::new(Grade::Note, "driver", "no NVIDIA driver").so(NOT_HERE)],
        (Some(kernel), None) => all.push(
            Finding::new(Grade::Note, "driver", format!("{kernel}, but no libcuda.so.1"))
                .so(NOT_HERE)
                .advise("in a container: have its runtime bring the driver in (docker --gpus all, apptainer --nv)"),
        ),
        (None, Some(library)) => all.push(
            Finding::new(Grade::Note, "driver", format!("{}, but no driver in the kernel", library.display()))
                .so(NOT_HERE),
        ),
        (Some(kernel), Some(_)) => {
            let gpus = if driver.gpus.is_empty() { "no GPU".to_owned() } else { counted(&driver.gpus) };
            let grade = if driver.gpus.is_empty() { Grade::Note } else { Grade::Ok };
            all.push(Finding::new(grade, "driver", format!("{kernel}, {gpus}")));
        }
    }
    if let Some(refused) = driver.refused.first() {
        all.push(
            Finding::new(Grade::Problem, "permissions", refused.clone())
                .so("CUDA does not work for this user")
                .advise("ask to be added to the group that may use the GPUs, or for an allocation with GPUs"),
        );
    }
    all
}

/// `2 x NVIDIA H200`.
fn counted(names: &[String]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for name in names {
        match counts.iter_mut().find(|(known, _)| known == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    counts.iter().map(|(name, count)| format!("{count} x {name}")).collect::<Vec<_>>().join(", ")
}

/// The first few of many, and how many more there are.
fn the_first(all: &[String]) -> String {
    const NAMED: usize = 4;
    let named = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

fn cupti(facts: &Facts) -> Vec<Finding> {
    let mut all = Vec::new();
    let major = facts.driver.cuda_major();
    for copy in &facts.cupti {
        let CuptiCopy { path, by, version, .. } = copy;
        let version = version.as_deref().unwrap_or("of unknown version");
        let found = format!("CUDA {}, {version}: {} ({by})", copy.major, path.display());
        let finding = match major {
            Some(driver) if copy.major > driver => Finding::new(Grade::Note, "CUPTI", found).so(format!(
                "the driver is from CUDA {driver}; a process that loads this copy has no GPU kernels in its trace"
            )),
            _ if copy.is_13_2 => Finding::new(Grade::Note, "CUPTI", found)
                .so("CUPTI of CUDA 13.2 overflows the stack if it cannot use the driver; ncclscope then leaves it alone")
                .advise("use CUPTI of CUDA 13.3 or later"),
            _ => Finding::new(Grade::Ok, "CUPTI", found),
        };
        all.push(finding);
    }
    if facts.cupti.is_empty() {
        all.push(
            Finding::new(Grade::Note, "CUPTI", "no libcupti.so.12 or .13 where it was looked for")
                .so("a program that brings none has no GPU kernels in its trace; NCCL's calls, operations and the proxy are in it")
                .advise("pip install nvidia-cuda-cupti-cu12 (CUDA 13: nvidia-cuda-cupti), or NCCLSCOPE_CUPTI=/path/to/libcupti.so"),
        );
    }
    all.extend(cupti_faults(&facts.cupti));
    for is_recorded in [true, false] {
        let users = facts.cupti_users.iter().filter(|user| user.is_recorded == is_recorded);
        let users: Vec<String> = users.map(|user| format!("{} (pid {})", user.name, user.pid)).collect();
        if users.is_empty() {
            continue;
        }
        let have = if users.len() == 1 { "has" } else { "have" };
        let who = format!("{} {have} it loaded now", the_first(&users));
        all.push(if is_recorded {
            Finding::new(Grade::Note, "CUPTI's owner", format!("{who}, and ncclscope"))
                .so("while ncclscope holds CUPTI there, torch.profiler sees no GPU in that process")
        } else {
            Finding::new(Grade::Note, "CUPTI's owner", who).so(
                "CUPTI has one owner in a process; where that is another profiler, ncclscope records no GPU kernels",
            )
        });
    }
    all
}

/// The known faults of these copies of CUPTI that matter.
fn cupti_faults(copies: &[CuptiCopy]) -> Vec<Finding> {
    // The one has no consequences; the other is reported where the copy is.
    let is_told = |fault: &Fault| !matches!(fault.id, FaultId::NullBuffer | FaultId::Crash);
    FAULTS
        .iter()
        .filter(|fault| is_told(fault))
        .filter_map(|fault| {
            let mut of: Vec<String> = Vec::new();
            for name in copies.iter().filter_map(|copy| copy.version.as_deref()) {
                let had = releases::cupti_faults(name).find(|(other, _)| other.id == fault.id);
                let Some((_, is_certain)) = had else { continue };
                let text = if is_certain { name.to_owned() } else { format!("{name}, perhaps") };
                if !of.contains(&text) {
                    of.push(text);
                }
            }
            let found = format!("{}: {} ({})", of.join("; "), fault.what, fault.source);
            (!of.is_empty()).then(|| Finding::new(Grade::Note, "CUPTI's faults", found).so(fault.follows))
        })
        .collect()
}

fn nccl(facts: &Facts) -> Vec<Finding> {
    if facts.nccl.is_empty() {
        return vec![
            Finding::new(Grade::Note, "NCCL", "no libnccl.so.2 where it was looked for")
                .so("a program may bring its own, or have NCCL linked into it: ncclscope run says what it used"),
        ];
    }
    let is_too_old = |copy: &NcclCopy| {
        copy.release.as_deref().and_then(nccl::version).is_some_and(|version| releases::interface(version).is_none())
    };
    let all_too_old = facts.nccl.iter().all(is_too_old);
    let allgatherv_off = facts.variable("NCCL_ALLGATHERV_ENABLE").is_some_and(|value| value.trim() == "0");
    let mut all = Vec::new();
    for copy in &facts.nccl {
        let place = format!("{} ({})", copy.path.display(), copy.by);
        let Some(version) = copy.release.as_deref().and_then(nccl::version) else {
            all.push(Finding::new(Grade::Note, "NCCL", format!("of unknown release: {place}")));
            continue;
        };
        let name = names::nccl_version(version);
        let Some(interface) = releases::interface(version) else {
            let grade = if all_too_old { Grade::Problem } else { Grade::Note };
            all.push(
                Finding::new(grade, "NCCL", format!("{name}: {place}"))
                    .so("profiler plugins came with 2.23: what uses this one is not recorded")
                    .advise("pip install -U nvidia-nccl-cu12, or a newer PyTorch"),
            );
            continue;
        };
        let mut finding = Finding::new(Grade::Ok, "NCCL", format!("{name}, profiler interface v{interface}: {place}"));
        let faults = faults(version, interface, allgatherv_off);
        if !faults.is_empty() {
            finding = Finding { grade: Grade::Note, ..finding.so(faults.join("; ")) };
        }
        all.push(finding);
    }
    all
}

/// The known faults of a release.
fn faults(version: releases::Version, interface: u8, allgatherv_off: bool) -> Vec<String> {
    let mut faults = Vec::new();
    if version > releases::NEWEST {
        faults.push(format!("newer than any release that was tested, up to {}", names::nccl_version(releases::NEWEST)));
    }
    if version == 22703 {
        faults.push(
            "it takes no path in NCCL_PROFILER_PLUGIN, only a name that is found on LD_LIBRARY_PATH; ncclscope run \
             sets both"
                .into(),
        );
    }
    if let Some(reason) = releases::against_kernel_ch(Some(version), interface, allgatherv_off) {
        faults.push(format!("no GPU time per channel (--preset full): {reason}"));
    }
    if version >= 22900 && !allgatherv_off {
        faults.push("of a Broadcast it reports only the call, unless NCCL_ALLGATHERV_ENABLE=0".into());
    }
    faults
}

fn environment(facts: &Facts) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut note = |found: String, follows: &str, advice: &str| {
        all.push(Finding::new(Grade::Note, "environment", found).so(follows).advise(advice));
    };
    let is_ours = |value: &str| {
        let ours = facts.library.as_deref().unwrap_or(Path::new(library::NAME));
        library::is_ours(value.as_ref(), ours)
    };
    if let Some(value) = facts.variable("CUDA_INJECTION64_PATH").filter(|value| !is_ours(value)) {
        note(
            format!("CUDA_INJECTION64_PATH={value}"),
            "that tool takes CUPTI in cuInit, before ncclscope asks: NCCL's calls and the proxy are recorded, GPU kernels are not",
            "unset it, or join the two files afterwards (docs/beside-nsight.md)",
        );
    }
    if let Some(value) = facts.variable("NSYS_PROFILING_SESSION_ID") {
        note(
            format!("NSYS_PROFILING_SESSION_ID={value}"),
            "Nsight Systems profiles this shell and holds CUPTI: NCCL's calls and the proxy are recorded, GPU kernels are not",
            "join the two files afterwards (docs/beside-nsight.md)",
        );
    }
    if let Some(value) = facts.variable("KINETO_USE_DAEMON").filter(|value| *value != "0") {
        note(
            format!("KINETO_USE_DAEMON={value}"),
            "a daemon may start PyTorch's profiler at any time; it sees no GPU while ncclscope has CUPTI",
            "NCCLSCOPE_CUPTI=0 leaves CUPTI to it",
        );
    }
    if facts.variable("TEARDOWN_CUPTI") == Some("0") {
        note(
            "TEARDOWN_CUPTI=0".into(),
            "PyTorch keeps CUPTI once its profiler has used it, and ncclscope does not get it back",
            "set it to 1",
        );
    }
    if let Some(value) = facts.variable("NVTX_INJECTION64_PATH").filter(|value| !value.contains("libcupti")) {
        note(
            format!("NVTX_INJECTION64_PATH={value}"),
            "NVTX ranges go to that tool, and are not in the trace",
            "unset it where NCCLSCOPE_NVTX=1 is wanted",
        );
    }
    for (path, line) in &facts.nccl_files {
        note(
            format!("{} has {line}", path.display()),
            "it applies to programs that ncclscope run has not started",
            "nothing with ncclscope run: the environment overrides the file",
        );
    }
    for complaint in &facts.complaints {
        all.push(Finding::new(Grade::Note, "settings", complaint.clone()).advise("ncclscope settings lists them"));
    }
    if let Some(value) = facts.variable("NCCL_PROFILER_PLUGIN").filter(|value| !is_ours(value)) {
        all.push(
            Finding::new(Grade::Problem, "environment", format!("NCCL_PROFILER_PLUGIN={value}"))
                .so("NCCL loads that and not ncclscope; ncclscope run keeps what is set")
                .advise("unset it, or ncclscope run --replace"),
        );
    }
    if facts.switched_off {
        all.push(
            Finding::new(Grade::Problem, "settings", "they switch the recording off")
                .advise("unset NCCLSCOPE_ENABLE and NCCLSCOPE_PRESET"),
        );
    }
    if all.is_empty() {
        all.push(Finding::new(Grade::Ok, "environment", "no other profiler, no other plugin, no bad setting"));
    }
    all
}

/// Roughly what NCCL needs of shared memory for a few ranks. With less, it is known to fail in
/// containers.
const SHARED_MEMORY: u64 = 256 << 20;
/// How much address space ncclscope reserves.
const ADDRESSES: u64 = 200 << 20;

fn room(facts: &Facts) -> Vec<Finding> {
    let output = &facts.output;
    let folder = output.folder.display();
    let mut all = Vec::new();
    if let Some(refused) = &output.refused {
        all.push(
            Finding::new(Grade::Problem, "output", format!("traces cannot be written: {refused}"))
                .advise("ncclscope run --output FOLDER, or NCCLSCOPE_OUTPUT"),
        );
    } else {
        let size = names::size;
        let free = output.free.map_or_else(|| "an unknown amount".into(), size);
        let found = format!("{folder}, {free} free");
        all.push(match output.free {
            Some(free) if free < output.min_free => Finding::new(Grade::Problem, "output", found)
                .so(format!("recording stops when less than {} is free", size(output.min_free)))
                .advise("ncclscope run --output FOLDER, or a smaller NCCLSCOPE_MIN_FREE"),
            Some(free) if free < output.min_free + output.max_size => Finding::new(Grade::Note, "output", found)
                .so(format!(
                    "a trace may grow to {} per process; recording stops when less than {} is free",
                    size(output.max_size),
                    size(output.min_free)
                ))
                .advise("--max-size, or another --output"),
            _ => Finding::new(Grade::Ok, "output", found),
        });
    }
    match facts.shared_memory {
        Some(free) if free < SHARED_MEMORY => all.push(
            Finding::new(Grade::Note, "/dev/shm", format!("{} free", names::size(free)))
                .so("NCCL itself may fail to start its ranks there")
                .advise("docker run --shm-size=1g or --ipc=host; in Kubernetes an emptyDir of medium Memory"),
        ),
        Some(free) => all.push(Finding::new(Grade::Ok, "/dev/shm", format!("{} free", names::size(free)))),
        None => all.push(Finding::new(Grade::Note, "/dev/shm", "is not there").so("NCCL runs without shared memory")),
    }
    if let Some(limit) = facts.address_limit {
        let short = limit < ADDRESSES;
        let finding = Finding::new(
            if short { Grade::Problem } else { Grade::Note },
            "limits",
            format!("a process may use {} of address space (ulimit -v)", names::size(limit)),
        );
        all.push(
            finding.so(format!("ncclscope reserves up to {}", names::size(ADDRESSES))).advise("ulimit -v unlimited"),
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::facts::User;
    use super::*;

    /// A machine with nothing wrong.
    fn well() -> Facts {
        let mut facts = Facts { version: "0.1.0", library: Some("/opt/n/libncclscope.so".into()), ..Facts::default() };
        facts.driver.kernel = Some("580.65.06".into());
        facts.driver.library = Some("/usr/lib/libcuda.so.1".into());
        facts.driver.gpus = vec!["NVIDIA H200".into(); 8];
        facts.cupti = vec![copy_of_cupti(13)];
        facts.nccl = vec![copy_of_nccl("2.28.9+cuda13.0")];
        facts.output.free = Some(1 << 40);
        (facts.output.max_size, facts.output.min_free) = (2 << 30, 1 << 30);
        facts.shared_memory = Some(1 << 34);
        facts
    }

    fn copy_of_cupti(major: u32) -> CuptiCopy {
        let path = format!("/v/libcupti.so.{major}").into();
        CuptiCopy { path, by: "a toolkit".into(), major, version: None, is_13_2: false }
    }

    fn copy_of_nccl(release: &str) -> NcclCopy {
        NcclCopy { path: "/v/libnccl.so.2".into(), by: "Python".into(), release: Some(release.into()) }
    }

    #[track_caller]
    fn assert_found(change: impl FnOnce(&mut Facts), grade: Grade, words: &str) {
        let mut facts = well();
        change(&mut facts);
        let mut out = Vec::new();
        let all = findings(&facts);
        all.iter().try_for_each(|finding| finding.print(&mut out)).unwrap();
        let said = String::from_utf8(out).unwrap();
        let found = all.iter().find(|finding| {
            let mut out = Vec::new();
            finding.print(&mut out).unwrap();
            String::from_utf8(out).unwrap().contains(words)
        });
        assert_eq!(found.map(|found| found.grade), Some(grade), "{words}: {said}");
    }

    #[test]
    fn a_healthy_machine_has_no_other_findings() {
        let all = findings(&well());
        assert!(all.iter().all(|finding| finding.grade == Grade::Ok), "{all:?}");
        assert_found(|_| (), Grade::Ok, "580.65.06, 8 x NVIDIA H200");
        assert_found(|_| (), Grade::Ok, "2.28.9, profiler interface v5: /v/libnccl.so.2");
    }

    #[test]
    fn a_machine_without_a_gpu_has_no_problem() {
        let none = |facts: &mut Facts| facts.driver = Default::default();
        assert_found(none, Grade::Note, "no NVIDIA driver");
        let mut facts = well();
        none(&mut facts);
        (facts.cupti, facts.nccl) = (vec![], vec![]);
        assert!(findings(&facts).iter().all(|finding| finding.grade != Grade::Problem));
    }

    #[test]
    fn whatever_prevents_recording_is_a_problem() {
        let problem = |change: fn(&mut Facts), words| assert_found(change, Grade::Problem, words);
        problem(
            |it| (it.library, it.library_fault) = (None, Some("there is no libncclscope.so".into())),
            "there is no libncclscope.so",
        );
        problem(|it| it.library_fault = Some("GLIBC_2.28 not found".into()), "cannot be loaded: GLIBC_2.28 not found");
        problem(
            |it| it.driver.refused = vec!["/dev/nvidia0: Permission denied".into()],
            "/dev/nvidia0: Permission denied",
        );
        problem(|it| it.nccl = vec![copy_of_nccl("2.21.5+cuda12.4")], "profiler plugins came with 2.23");
        problem(
            |it| it.environment = vec![("NCCL_PROFILER_PLUGIN".into(), "other".into())],
            "NCCL_PROFILER_PLUGIN=other",
        );
        problem(|it| it.switched_off = true, "switch the recording off");
        problem(|it| it.output.refused = Some("/x: Read-only file system".into()), "traces cannot be written: /x");
        problem(|it| it.output.free = Some(1 << 20), "recording stops when less than 1 GiB");
        problem(|it| it.address_limit = Some(100 << 20), "100 MiB of address space");
    }

    #[test]
    fn a_partial_loss_is_a_note() {
        let note = |change: fn(&mut Facts), words| assert_found(change, Grade::Note, words);
        fn set(it: &mut Facts, name: &str, value: &str) {
            it.environment = vec![(name.into(), value.into())];
        }
        note(|it| it.nccl.push(copy_of_nccl("2.21.5+cuda12.4")), "profiler plugins came with 2.23");
        note(|it| it.nccl = vec![copy_of_nccl("2.27.7+cuda12.9")], "NCCL 2.27.7 can crash when asked for it");
        note(|it| it.nccl = vec![copy_of_nccl("2.27.3+cuda12.9")], "takes no path in NCCL_PROFILER_PLUGIN");
        note(
            |it| it.nccl = vec![copy_of_nccl("2.99.1+cuda14.0")],
            "newer than any release that was tested, up to 2.32.3",
        );
        note(|it| it.nccl = vec![], "no libnccl.so.2");
        note(|it| it.cupti = vec![], "no libcupti.so.12 or .13");
        note(|it| it.driver.kernel = Some("535.1".into()), "the driver is from CUDA 12");
        note(|it| it.cupti[0].is_13_2 = true, "overflows the stack");
        fn cupti(it: &mut Facts, versions: &[&str]) {
            let copy = |version: &&str| CuptiCopy { version: Some((*version).into()), ..copy_of_cupti(13) };
            it.cupti = versions.iter().map(copy).collect();
        }
        note(|it| cupti(it, &["13.0.85", "2025.3.1"]), "13.0.85; 2025.3.1: after some 25 million graph kernels");
        note(|it| cupti(it, &["13.0.85", "2025.3.1"]), "13.0.85, perhaps: it deadlocks when it is told to stop");
        note(|it| cupti(it, &["12.9.79"]), "so: record long jobs in parts");
        note(|it| cupti(it, &["12.9.79"]), "a kernel may get the name of an earlier one");
        note(|it| cupti(it, &["12.9.79"]), "so: with NCCLSCOPE_CUPTI_CLOCK=boottime");
        note(|it| set(it, "CUDA_INJECTION64_PATH", "/x/nsys.so"), "CUDA_INJECTION64_PATH=/x/nsys.so");
        note(|it| set(it, "KINETO_USE_DAEMON", "1"), "a daemon may start PyTorch's profiler");
        note(
            |it| it.nccl_files = vec![("/etc/nccl.conf".into(), "NCCL_PROFILER_PLUGIN=x".into())],
            "/etc/nccl.conf has NCCL_PROFILER_PLUGIN=x",
        );
        note(|it| it.complaints = vec!["NCCLSCOPE_PRESTE is not a setting".into()], "NCCLSCOPE_PRESTE");
        note(|it| it.shared_memory = Some(64 << 20), "--shm-size");
        note(|it| it.output.free = Some(2 << 30), "a trace may grow to 2 GiB");
    }

    #[test]
    fn one_note_names_all_processes_with_cupti() {
        let user = |pid, name: &str, is_recorded| User { pid, name: name.into(), is_recorded };
        assert_found(
            |it| it.cupti_users = vec![user(7, "nsys", false)],
            Grade::Note,
            "nsys (pid 7) has it loaded now\n",
        );
        let mut facts = well();
        facts.cupti_users = (1..=8).map(|pid| user(pid, "python3", pid > 2)).collect();
        let owners = findings(&facts).into_iter().filter(|it| it.about == "CUPTI's owner").map(|it| it.found);
        assert_eq!(
            owners.collect::<Vec<_>>(),
            [
                "python3 (pid 3), python3 (pid 4), python3 (pid 5), python3 (pid 6) and 2 more have it loaded now, and ncclscope",
                "python3 (pid 1), python3 (pid 2) have it loaded now",
            ]
        );
    }

    #[test]
    fn faults_of_other_cupti_releases_are_not_reported() {
        let mut facts = well();
        for (version, told) in [("13.5.25", 0), ("13.4.92", 2), ("12.3.101", 4)] {
            facts.cupti[0].version = Some(version.into());
            let of: Vec<_> = findings(&facts).into_iter().filter(|it| it.about == "CUPTI's faults").collect();
            assert_eq!(of.len(), told, "{version}: {of:?}");
            assert!(of.iter().all(|fault| fault.follows.is_some()));
        }
    }

    #[test]
    fn our_own_variables_do_not_conflict() {
        let ours = [("NCCL_PROFILER_PLUGIN", "libncclscope.so"), ("CUDA_INJECTION64_PATH", "/opt/n/libncclscope.so")];
        let mut facts = well();
        facts.environment = ours.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        assert!(findings(&facts).iter().all(|finding| finding.grade == Grade::Ok));
    }
}
