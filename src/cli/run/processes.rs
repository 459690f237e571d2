//! The processes of a job, seen from outside: which of them have NCCL, which have our library, and
//! the environment they were started with.
//!
//! A look sees only what is there at that moment. What comes and goes between two looks is not
//! seen, so its absence proves nothing, except where a comment says so.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::library::{self, LIBRARY_PATH, PLUGIN};
use crate::cli::nccl;

/// A process of the job that has NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) pid: u32,
    /// The system's name for it.
    pub(super) name: String,
    /// Its libnccl.
    pub(super) nccl: PathBuf,
    /// The release that this libnccl states.
    pub(super) release: Option<String>,
    /// Our library is mapped.
    pub(super) has_library: bool,
    /// The values it was started with.
    pub(super) plugin: Option<String>,
    pub(super) library_path: Option<String>,
}

/// All processes that were seen.
#[derive(Debug)]
pub(super) struct Processes {
    proc: PathBuf,
    root: u32,
    /// By pid and start time, because pids are reused.
    seen: BTreeMap<(u32, u64), Seen>,
    releases: HashMap<PathBuf, Option<String>>,
}

impl Processes {
    /// For the job whose first process is `root`, seen through this `/proc`.
    pub(super) fn new(proc: &Path, root: u32) -> Processes {
        Processes { proc: proc.to_owned(), root, seen: BTreeMap::new(), releases: HashMap::new() }
    }

    /// Looks once more.
    pub(super) fn look(&mut self) {
        for (pid, start) in self.members() {
            if self.seen.get(&(pid, start)).is_some_and(|seen| seen.has_library) {
                continue;
            }
            if let Some(seen) = self.look_at(pid) {
                self.seen.insert((pid, start), seen);
            }
        }
    }

    /// Those that have or had NCCL.
    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.values().cloned().collect()
    }

    /// Whether there is a process with NCCL and all of them have our library, too.
    pub(super) fn all_well(&self) -> bool {
        !self.seen.is_empty() && self.seen.values().all(|seen| seen.has_library)
    }

    /// The job's processes: its first one and all descendants.
    fn members(&self) -> Vec<(u32, u64)> {
        let entries = fs::read_dir(&self.proc).into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        let mut starts: HashMap<u32, u64> = HashMap::new();
        for pid in pids {
            if let Some((parent, start)) = stat(&self.proc, pid) {
                children.entry(parent).or_default().push(pid);
                starts.insert(pid, start);
            }
        }
        let mut members = vec![self.root];
        let mut at = 0;
        while let Some(pid) = members.get(at).copied() {
            members.extend(children.get(&pid).into_iter().flatten());
            at += 1;
        }
        members.iter().filter_map(|pid| Some((*pid, *starts.get(pid)?))).collect()
    }

    fn look_at(&mut self, pid: u32) -> Option<Seen> {
        let folder = self.proc.join(pid.to_string());
        let maps = fs::read(folder.join("maps")).ok()?;
        let maps = String::from_utf8_lossy(&maps);
        // address, permissions, offset, device, inode, path
        let files = || maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
        let nccl = files().find(|file| nccl::is_nccl(file))?.to_owned();
        let has_library = files().any(|file| file.file_name().is_some_and(|name| name == library::NAME));
        // As the process sees it: it may be in a container.
        let inside = folder.join("root").join(nccl.strip_prefix("/").unwrap_or(&nccl));
        let release = self.releases.entry(nccl.clone()).or_insert_with(|| nccl::release(&inside)).clone();
        let environment = fs::read(folder.join("environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment);
        let variable = |name: &str| {
            let mut entries = environment.split('\0').filter_map(|entry| entry.split_once('='));
            entries.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        let name = fs::read_to_string(folder.join("comm")).unwrap_or_default().trim().to_owned();
        Some(Seen {
            pid,
            name,
            nccl,
            release,
            has_library,
            plugin: variable(PLUGIN),
            library_path: variable(LIBRARY_PATH),
        })
    }
}

/// A process's parent.
pub(super) fn parent(proc: &Path, pid: u32) -> Option<u32> {
    stat(proc, pid).map(|(parent, _)| parent).filter(|parent| *parent > 0)
}

/// A process's parent, and when it started, in the kernel's ticks.
fn stat(proc: &Path, pid: u32) -> Option<(u32, u64)> {
    let stat = fs::read(proc.join(pid.to_string()).join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The second field is the program's name in parentheses, and may contain anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.nth(1)?.parse().ok()?, fields.nth(17)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Proc(tempfile::TempDir);

    impl Proc {
        fn process(&self, pid: u32, parent: u32, start: u64, maps: &str, environment: &str) {
            let folder = self.0.path().join(pid.to_string());
            fs::create_dir_all(&folder).unwrap();
            let zeros = "0 ".repeat(16);
            fs::write(folder.join("stat"), format!("{pid} (a) b) S {parent} {zeros}0 {start} 0\n")).unwrap();
            fs::write(folder.join("maps"), maps).unwrap();
            fs::write(folder.join("environ"), environment).unwrap();
            fs::write(folder.join("comm"), "python3\n").unwrap();
        }
    }

    const NCCL: &str = "7f00-7f01 r--p 00000000 08:01 7 /v/nvidia/nccl/lib/libnccl.so.2\n";
    const OURS: &str = "7f02-7f03 r--p 00000000 08:01 8 /opt/n/libncclscope.so\n";

    #[test]
    fn only_descendants_with_nccl_are_seen() {
        let proc = Proc(tempfile::tempdir().unwrap());
        proc.process(10, 1, 5, "", "");
        proc.process(11, 10, 6, &format!("{NCCL}{OURS}"), "NCCL_PROFILER_PLUGIN=libncclscope.so\0A=b\0");
        proc.process(12, 11, 7, NCCL, "A=b\0");
        proc.process(13, 1, 7, NCCL, "");
        proc.process(14, 10, 7, "7f00-7f01 r--p 00000000 08:01 7 /v/libnccl-net.so\n", "");
        let mut processes = Processes::new(proc.0.path(), 10);
        processes.look();
        let seen = processes.seen();
        assert_eq!(seen.iter().map(|it| (it.pid, it.has_library)).collect::<Vec<_>>(), [(11, true), (12, false)]);
        assert_eq!(seen[0].plugin.as_deref(), Some("libncclscope.so"));
        assert_eq!((seen[1].plugin.as_deref(), seen[1].name.as_str()), (None, "python3"));
        assert!(!processes.all_well());
        // The library arrives with the first communicator.
        proc.process(12, 11, 7, &format!("{NCCL}{OURS}"), "A=b\0");
        processes.look();
        assert!(processes.all_well());
        // A process that has ended was seen all the same.
        fs::remove_dir_all(proc.0.path().join("12")).unwrap();
        processes.look();
        assert_eq!(processes.seen().len(), 2);
    }

    #[test]
    fn parents_are_found_after_any_program_name() {
        let proc = Proc(tempfile::tempdir().unwrap());
        proc.process(10, 3, 5, "", "");
        assert_eq!(parent(proc.0.path(), 10), Some(3));
        assert_eq!(parent(proc.0.path(), 11), None);
    }
}
