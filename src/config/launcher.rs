//! What launchers say of the job: its name, and the ranks.

/// Where a world rank may be found, best first. `SLURM_PROCID` comes last: under torchrun it is the node's.
/// Beside each, where the same launcher says how many there are.
pub(super) const RANKS: &[(&str, Option<&str>)] = &[
    ("NCCLSCOPE_RANK", Some("WORLD_SIZE")),
    ("RANK", Some("WORLD_SIZE")),
    ("OMPI_COMM_WORLD_RANK", Some("OMPI_COMM_WORLD_SIZE")),
    ("PMIX_RANK", None),
    ("PMI_RANK", Some("PMI_SIZE")),
    ("SLURM_PROCID", Some("SLURM_NTASKS")),
];
/// Names the run where somebody says so.
pub const RUN_ID: &str = "NCCLSCOPE_RUN_ID";
/// Where a job's name may be found.
const JOBS: &[&str] =
    &["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "PMIX_NAMESPACE", "TORCHELASTIC_RUN_ID"];

/// The variable by which a launcher names the job, and what it says.
fn launcher_job(variable: &dyn Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    let mut jobs = JOBS.iter().filter_map(|name| Some((*name, variable(name)?)));
    jobs.find(|(_, job)| !job.is_empty() && job != "none")
}

/// What names the run, with the variable that does: `NCCLSCOPE_RUN_ID=tuesday`, else the launcher's job.
#[must_use]
pub fn run(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let said = variable(RUN_ID).filter(|run| !run.trim().is_empty()).map(|run| (RUN_ID, run));
    let (name, run) = said.or_else(|| launcher_job(variable))?;
    Some(format!("{name}={}", run.trim()))
}

/// The job's name as its launcher gave it, made fit for a file name.
#[must_use]
pub fn job(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let (_, job) = launcher_job(variable)?;
    let fit = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    Some(job.replace(|letter| !fit(letter), "_"))
}
