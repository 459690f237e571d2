//! Whether a launcher started this process as one of several, and the run's name if so, which is
//! the same in all of them (pure).

use std::path::Path;

use crate::sys;

/// Which variables of each launcher say so: the variable of the rank, the variables of the number
/// of ranks, and the variable of the number of ranks on this host.
const RANKS: [(&str, &[&str], Option<&str>); 5] = [
    ("OMPI_COMM_WORLD_RANK", &["OMPI_COMM_WORLD_SIZE"], Some("OMPI_COMM_WORLD_LOCAL_SIZE")),
    ("RANK", &["WORLD_SIZE"], Some("LOCAL_WORLD_SIZE")),
    ("PMIX_RANK", &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"], None),
    ("PMI_RANK", &["PMI_SIZE"], None),
    // Without a step, it is the script of a batch job.
    ("SLURM_STEP_ID", &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"], None),
];

/// The variables in which job managers name a job.
const JOBS: [&str; 3] = ["PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"];

/// What a launcher tells one of its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launcher {
    /// The run's name, the same in all of its processes; `None` if it has none.
    pub(super) run: Option<String>,
    /// The name of the run's folder after `ncclscope-`.
    pub(super) folder: String,
}

/// A process, as far as needed to tell runs apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ancestor {
    pub(super) pid: u32,
    /// When it started, in seconds since 1970.
    pub(super) start: u64,
}

/// The variable in which a launcher numbers its processes, if it started this process as one of
/// several.
pub(super) fn rank_variable(variable: &dyn Fn(&str) -> Option<String>) -> Option<&'static str> {
    let said = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
    let found = RANKS.iter().find(|(rank, ..)| said(rank).is_some())?;
    let size: Option<u32> = found.1.iter().find_map(|name| said(name)?.trim().parse().ok());
    // A shell of `srun --pty` is a job of one process, in which several runs may follow each other.
    (size != Some(1)).then_some(found.0)
}

/// What the launcher says; `ancestor` is the process that gave this one its rank.
pub(super) fn launcher(host: &str, ancestor: Option<Ancestor>, variable: &dyn Fn(&str) -> Option<String>) -> Launcher {
    let said = |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    let step = || Some(format!("{}.{}", said("SLURM_JOB_ID")?, said("SLURM_STEP_ID")?));
    let elastic = || said("TORCHELASTIC_RUN_ID").filter(|id| id != "none");
    let job = || JOBS.iter().find_map(|name| said(name));
    let named = said("PMIX_NAMESPACE").or_else(step).or_else(elastic).or_else(job);
    let time = ancestor.map_or_else(|| "unknown".into(), |ancestor| sys::utc(ancestor.start));
    if let Some(run) = named {
        return Launcher { folder: file_name(&run), run: Some(run) };
    }
    // Without a name from the launcher, the launcher process names the run, if all of its processes
    // are on this host.
    let on_this_host = RANKS.iter().any(|(_, sizes, local)| {
        let local = local.and_then(said);
        local.is_some() && local == sizes.iter().find_map(|name| said(name))
    });
    let by_process = ancestor.filter(|_| on_this_host).map(|it| format!("{host}-{time}-{}", it.pid));
    let by_address = || Some(format!("{}:{}", said("MASTER_ADDR")?, said("MASTER_PORT")?));
    Launcher { run: by_process.or_else(by_address), folder: time }
}

/// The process that gave this one its rank: the nearest ancestor without that variable or with
/// another value.
pub(super) fn ancestor(variable: &str) -> Option<Ancestor> {
    let value = std::env::var(variable).ok()?;
    let entry = format!("{variable}={value}").into_bytes();
    let mut pid = std::os::unix::process::parent_id();
    loop {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        if environment.split(|byte| *byte == 0).all(|other| other != entry) {
            return Some(Ancestor { pid, start: sys::start_of(pid)? });
        }
        pid = super::processes::parent(Path::new("/proc"), pid)?;
    }
}

/// A name that is valid as a file name.
pub(super) fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<T>(variables: &[(&str, &str)], ask: impl FnOnce(&dyn Fn(&str) -> Option<String>) -> T) -> T {
        ask(&|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    fn named(variables: &[(&str, &str)]) -> (Option<String>, String) {
        let agent = Ancestor { pid: 17, start: 1_795_200_300 };
        let Launcher { run, folder } = with(variables, |variable| launcher("node3", Some(agent), variable));
        (run, folder)
    }

    #[test]
    fn one_of_several_processes_is_recognised_by_its_launcher() {
        for (variables, expected) in [
            (&[][..], None),
            (&[("RANK", "0"), ("WORLD_SIZE", "8")], Some("RANK")),
            (&[("RANK", "0"), ("WORLD_SIZE", "1")], None),
            (&[("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4")], Some("OMPI_COMM_WORLD_RANK")),
            (&[("PMI_RANK", "1"), ("PMI_SIZE", "2")], Some("PMI_RANK")),
            // The script of a batch job has a rank, too.
            (&[("SLURM_PROCID", "0"), ("SLURM_JOB_ID", "4711"), ("SLURM_NTASKS", "8")], None),
            (&[("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "2"), ("SLURM_NTASKS", "8")], Some("SLURM_STEP_ID")),
            (&[("SLURM_STEP_ID", "2"), ("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_NTASKS", "8")], None),
        ] {
            assert_eq!(with(variables, rank_variable), expected, "{variables:?}");
        }
    }

    #[test]
    fn the_launchers_own_name_for_the_run_is_used() {
        let step = [("SLURM_JOB_ID", "4711"), ("SLURM_STEP_ID", "3")];
        assert_eq!(named(&step), (Some("4711.3".into()), "4711.3".into()));
        assert_eq!(named(&[("PMIX_NAMESPACE", "prterun-a@1")]), (Some("prterun-a@1".into()), "prterun-a_1".into()));
        assert_eq!(named(&[("TORCHELASTIC_RUN_ID", "mine")]).0.as_deref(), Some("mine"));
        assert_eq!(named(&[("PBS_JOBID", "12.pbs")]).0.as_deref(), Some("12.pbs"));
    }

    #[test]
    fn without_a_name_the_launcher_itself_names_the_run_of_one_host() {
        let torchrun =
            [("TORCHELASTIC_RUN_ID", "none"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
        let here: Vec<_> = torchrun.into_iter().chain([("LOCAL_WORLD_SIZE", "4")]).collect();
        assert_eq!(named(&here), (Some("node3-20261120-184500-17".into()), "20261120-184500".into()));
        let elsewhere: Vec<_> = torchrun.into_iter().chain([("LOCAL_WORLD_SIZE", "2")]).collect();
        assert_eq!(named(&elsewhere), (Some("a:1".into()), "20261120-184500".into()));
        assert_eq!(named(&[("PMI_RANK", "0")]).0, None);
    }
}
