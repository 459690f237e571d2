//! Why a job left no trace, judged from what was seen of it (pure).

use std::collections::BTreeMap;
use std::path::Path;

use super::processes::Seen;
use crate::cli::nccl;
use crate::releases;
use crate::trace::names;

/// What was seen of the job and of what it left.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    /// The loader's complaint about the library.
    pub(super) not_loadable: Option<String>,
    /// `NCCL_PROFILER_PLUGIN` named something else from the start.
    pub(super) other_plugin: Option<String>,
    /// The settings switch recording off.
    pub(super) switched_off: bool,
    pub(super) processes: Vec<Seen>,
    /// The system's error for files in the folder.
    pub(super) not_writable: Option<String>,
    /// The number of empty trace files.
    pub(super) empty: usize,
    /// The job was killed by this signal.
    pub(super) signal: Option<i32>,
}

/// Why there is no trace, and what to do: the first cause that the evidence shows. `library` is the
/// one that should have been loaded.
pub(super) fn cause(evidence: &Evidence, library: &Path) -> String {
    if let Some(words) = &evidence.not_loadable {
        return format!("the library cannot be loaded here: {words}");
    }
    if let Some(other) = &evidence.other_plugin {
        return format!("NCCL_PROFILER_PLUGIN={other} was set before the job and kept; --replace overrides it");
    }
    if evidence.switched_off {
        return "the settings switch the recording off".into();
    }
    if evidence.empty > 0 {
        let how = match evidence.signal {
            Some(signal) => format!("the job was killed by signal {signal}"),
            None => "its process was killed".into(),
        };
        return format!(
            "{how} before any of the recording was flushed to its file; --flush-period flushes more often than \
             every second"
        );
    }
    let without = without_library(&evidence.processes, library);
    let told = |(why, pids): (&String, &Vec<u32>)| format!("{why} ({})", processes(pids));
    if let Some(first) = without.certain.first_key_value() {
        return told(first);
    }
    if evidence.processes.iter().any(|process| process.has_library) {
        return match &evidence.not_writable {
            Some(words) => {
                format!("NCCL loaded ncclscope, but its folder cannot be written: {words}. --output names another")
            }
            None => {
                "NCCL loaded ncclscope, but there is no trace where it should be; see what ncclscope said above".into()
            }
        };
    }
    without.open.first_key_value().map(told).unwrap_or_else(|| {
        "no process of the job was seen with NCCL (libnccl.so). Ranks on other machines, behind a daemon (srun, \
         docker) or with NCCL linked into them cannot be seen from here: there, put ncclscope run before the \
         program itself, not before the launcher"
            .into()
    })
}

/// Processes that had NCCL but not our library: why, and which ones, each cause once.
#[derive(Debug, Default)]
pub(super) struct Without {
    /// What kept the library out.
    pub(super) certain: BTreeMap<String, Vec<u32>>,
    /// Nothing that was seen kept it out. This includes processes that merely have NCCL loaded: a
    /// launcher that imports PyTorch, a data loader.
    open: BTreeMap<String, Vec<u32>>,
}

pub(super) fn without_library(seen: &[Seen], library: &Path) -> Without {
    let mut without = Without::default();
    for process in seen.iter().filter(|process| !process.has_library) {
        let (causes, why) = match why_without(process, library) {
            Some(why) => (&mut without.certain, why),
            None => (&mut without.open, not_loaded(process)),
        };
        causes.entry(why).or_default().push(process.pid);
    }
    without
}

/// What kept the library out of a process.
fn why_without(process: &Seen, library: &Path) -> Option<String> {
    let release = process.release.as_deref();
    if let Some(version) = release.and_then(nccl::version)
        && releases::interface(version).is_none()
    {
        return Some(format!(
            "NCCL is {}, and profiler plugins came with 2.23: {}",
            names::nccl_version(version),
            process.nccl.display()
        ));
    }
    match &process.plugin {
        None => {
            return Some(
                "NCCL_PROFILER_PLUGIN did not reach the program: its launcher does not pass the environment on. \
                 Put ncclscope run between the launcher and the program"
                    .into(),
            );
        }
        Some(other) if !crate::cli::library::is_ours(other.as_ref(), library) => {
            return Some(format!(
                "the program was started with NCCL_PROFILER_PLUGIN={other}: something on the way changed it"
            ));
        }
        Some(_) => {}
    }
    let home = library.parent().unwrap_or(Path::new("/"));
    let by_name = process.plugin.as_deref().is_some_and(|plugin| !plugin.contains('/'));
    let paths = process.library_path.as_deref().unwrap_or_default();
    (by_name && !std::env::split_paths(paths).any(|path| path == home)).then(|| {
        format!(
            "LD_LIBRARY_PATH did not reach the program with {}: something on the way changed it, and NCCL does not \
             find the library",
            home.display()
        )
    })
}

fn not_loaded(process: &Seen) -> String {
    let release = process.release.as_deref();
    let release = release.map_or_else(|| "NCCL".into(), |release| format!("NCCL {release}"));
    format!(
        "{release} was loaded and ncclscope was not: no communicator was created while ncclscope run was looking, or \
         NCCL could not load it; NCCL_DEBUG=INFO shows which"
    )
}

/// Processes by pid; a limited number of them.
pub(super) fn processes(pids: &[u32]) -> String {
    const NAMED: usize = 4;
    let named: Vec<String> = pids.iter().take(NAMED).map(u32::to_string).collect();
    let more = pids.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let what = if pids.len() == 1 { "process" } else { "processes" };
    format!("{what} {}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: &str = "/opt/n/libncclscope.so";

    fn seen(change: impl FnOnce(&mut Seen)) -> Seen {
        let mut seen = Seen {
            pid: 7,
            name: "python3".into(),
            nccl: "/v/libnccl.so.2".into(),
            release: Some("2.28.9+cuda13.0".into()),
            has_library: false,
            plugin: Some("libncclscope.so".into()),
            library_path: Some("/opt/n:/x".into()),
        };
        change(&mut seen);
        seen
    }

    #[track_caller]
    fn assert_cause(evidence: Evidence, words: &str) {
        let cause = cause(&evidence, Path::new(LIBRARY));
        assert!(cause.contains(words), "{cause}");
    }

    #[test]
    fn each_cause_is_found_from_the_evidence() {
        let of = |change: fn(&mut Seen)| Evidence { processes: vec![seen(change)], ..Evidence::default() };
        assert_cause(Evidence::default(), "no process of the job was seen with NCCL");
        assert_cause(
            of(|it| it.release = Some("2.21.5+cuda12.4".into())),
            "NCCL is 2.21.5, and profiler plugins came with 2.23",
        );
        assert_cause(of(|it| it.plugin = None), "NCCL_PROFILER_PLUGIN did not reach the program");
        assert_cause(of(|it| it.plugin = Some("none".into())), "started with NCCL_PROFILER_PLUGIN=none");
        assert_cause(of(|it| it.library_path = None), "LD_LIBRARY_PATH did not reach the program with /opt/n");
        assert_cause(
            of(|it| it.library_path = Some("/x".into())),
            "LD_LIBRARY_PATH did not reach the program with /opt/n",
        );
        assert_cause(of(|_| ()), "NCCL 2.28.9+cuda13.0 was loaded and ncclscope was not");
        assert_cause(of(|it| it.has_library = true), "see what ncclscope said above");
        let path = |it: &mut Seen| (it.plugin, it.library_path) = (Some(LIBRARY.into()), None);
        assert_cause(Evidence { processes: vec![seen(path)], ..Evidence::default() }, "and ncclscope was not");
        let refused = Evidence { not_writable: Some("/x: Permission denied".into()), ..of(|it| it.has_library = true) };
        assert_cause(refused, "its folder cannot be written: /x: Permission denied");
        let killed = Evidence { empty: 1, signal: Some(9), ..of(|it| it.has_library = true) };
        assert_cause(killed, "the job was killed by signal 9 before any of");
    }

    #[test]
    fn processes_that_merely_load_nccl_are_not_blamed_and_hide_no_cause() {
        // torchrun imports PyTorch, which has NCCL; its workers were started without the variable.
        let both = [seen(|_| ()), seen(|it| (it.pid, it.plugin) = (8, None))];
        let certain = without_library(&both, Path::new(LIBRARY)).certain;
        assert_eq!(certain.into_values().collect::<Vec<_>>(), [[8]]);
        assert_cause(Evidence { processes: both.into(), ..Evidence::default() }, "did not reach the program");
        let recorded = [seen(|_| ()), seen(|it| (it.pid, it.has_library) = (8, true))];
        let refused = Evidence { processes: recorded.into(), not_writable: Some("/x".into()), ..Evidence::default() };
        assert_cause(refused, "its folder cannot be written: /x");
    }

    #[test]
    fn causes_known_before_the_job_come_first() {
        let evidence = Evidence { processes: vec![seen(|it| it.plugin = None)], ..Evidence::default() };
        assert_cause(
            Evidence { not_loadable: Some("wrong ELF class".into()), ..evidence.clone() },
            "cannot be loaded here: wrong ELF class",
        );
        assert_cause(
            Evidence { other_plugin: Some("x".into()), ..evidence.clone() },
            "NCCL_PROFILER_PLUGIN=x was set before",
        );
        assert_cause(Evidence { switched_off: true, ..evidence }, "switch the recording off");
    }

    #[test]
    fn processes_with_the_same_cause_are_reported_together() {
        let two =
            [seen(|it| it.plugin = None), seen(|it| (it.pid, it.plugin) = (8, None)), seen(|it| it.has_library = true)];
        let causes = without_library(&two, Path::new(LIBRARY));
        assert_eq!(causes.certain.into_values().collect::<Vec<_>>(), [[7, 8]]);
        assert_eq!(processes(&[1, 2, 3, 4, 5, 6]), "processes 1, 2, 3, 4 and 2 more");
    }
}
