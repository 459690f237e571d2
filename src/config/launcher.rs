//! What launchers say about the job: its name and its ranks.

/// Variables that may hold the world rank, best first. `SLURM_PROCID` comes last, because under
/// torchrun it is the node's. Next to each: the same launcher's variable for the number of ranks,
/// if it has one.
pub(super) const RANKS: &[(&str, Option<&str>)] = &[
    ("NCCLSCOPE_RANK", Some("WORLD_SIZE")),
    ("RANK", Some("WORLD_SIZE")),
    ("OMPI_COMM_WORLD_RANK", Some("OMPI_COMM_WORLD_SIZE")),
    ("PMIX_RANK", None),
    ("PMI_RANK", Some("PMI_SIZE")),
    ("SLURM_PROCID", Some("SLURM_NTASKS")),
];
/// Variables that hold a process's rank among those of its host.
const LOCAL_RANKS: &[&str] =
    &["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"];

/// The rank among those of the host, if the launcher says it.
pub(super) fn local_rank(variable: &dyn Fn(&str) -> Option<String>) -> Option<u32> {
    LOCAL_RANKS.iter().find_map(|name| variable(name)?.trim().parse().ok())
}

/// Names the run, if set.
pub const RUN_ID: &str = "NCCLSCOPE_RUN_ID";
/// Variables that may hold a job's name.
const JOBS: &[&str] =
    &["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "PMIX_NAMESPACE", "TORCHELASTIC_RUN_ID"];

/// The variable in which the launcher names the job, with its value.
fn launcher_job(variable: &dyn Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    let mut jobs = JOBS.iter().filter_map(|name| Some((*name, variable(name)?)));
    jobs.find(|(_, job)| !job.is_empty() && job != "none")
}

/// The name of the run, with the variable that gives it: `NCCLSCOPE_RUN_ID=tuesday`, otherwise the
/// launcher's job.
#[must_use]
pub(super) fn run(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let said = variable(RUN_ID).filter(|run| !run.trim().is_empty()).map(|run| (RUN_ID, run));
    let (name, run) = said.or_else(|| launcher_job(variable))?;
    Some(format!("{name}={}", run.trim()))
}

/// The job's name as its launcher gave it, made valid as a file name.
#[must_use]
pub fn job(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let (_, job) = launcher_job(variable)?;
    let fit = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    Some(job.replace(|letter| !fit(letter), "_"))
}
