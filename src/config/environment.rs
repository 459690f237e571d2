//! Which variables of the environment a trace may show. A variable that is not listed here may hold
//! a secret.

use std::ffi::OsString;

use super::Env;

/// Beginnings of names: NCCL's settings, and those of PyTorch's process groups on NCCL.
const BEGINNINGS: &[&str] = &["NCCL_", "TORCH_NCCL_"];

/// Other variables that change how NCCL and the GPU run, or say how a launcher placed the process.
const NAMES: &[&str] = &[
    "CUDA_AUTO_BOOST",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_DISABLE_PERF_BOOST",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_DATA_LOADING",
    "CUDA_MODULE_LOADING",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_SCALE_LAUNCH_QUEUES",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "TORCH_DISTRIBUTED_DEBUG",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_RANK",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_GPUS_ON_NODE",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_JOB_ID",
    "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_PARTITION",
    "SLURM_LOCALID",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_PROCID",
    "SLURM_RESTART_COUNT",
    "SLURM_STEP_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "FLUX_JOB_ID",
];
/// Variables of NCCL's that are left out: the address by which a job's ranks find each other, with
/// which anybody could join it.
const NEVER: &[&str] = &["NCCL_COMM_ID"];

/// Most variables, and most bytes of a value.
const VARIABLES: usize = 256;
const VALUE: usize = 256;
/// What stands for a value that is not shown.
const HIDDEN: &str = "(set)";

/// The variables that the trace may show, in order of their names.
#[must_use]
pub fn environment(wish: Env, variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<(String, String)> {
    if wish == Env::Off {
        return Vec::new();
    }
    let mut shown: Vec<(String, String)> = variables
        .filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| is_listed(name))?;
            Some((name, value.to_string_lossy().into_owned()))
        })
        .collect();
    shown.sort();
    shown.truncate(VARIABLES);
    for (_, value) in &mut shown {
        if wish == Env::Names {
            HIDDEN.clone_into(value);
        } else if value.len() > VALUE {
            let end = (0..=VALUE).rev().find(|at| value.is_char_boundary(*at)).unwrap_or_default();
            value.truncate(end);
            value.push('…');
        }
    }
    shown
}

fn is_listed(name: &str) -> bool {
    let begins = BEGINNINGS.iter().any(|beginning| name.starts_with(beginning));
    (begins || NAMES.contains(&name)) && !NEVER.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(wish: Env, variables: &[(&str, &str)]) -> String {
        let all = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let shown = environment(wish, all);
        shown.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn only_listed_variables_are_shown_and_their_values_only_on_request() {
        let all = [
            ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"),
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_COMM_ID", "10.0.0.1:4711"),
            ("NCCLSCOPE_OUTPUT", "/secret"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("WANDB_API_KEY", "secret"),
            ("CUDA_HOME", "/usr/local/cuda"),
            ("SLURM_JOB_ID", "17"),
            ("SLURM_JOB_USER", "somebody"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("HOME", "/home/somebody"),
        ];
        assert_eq!(shown(Env::List, &all), "NCCL_DEBUG=INFO SLURM_JOB_ID=17 TORCH_NCCL_TRACE_BUFFER_SIZE=2000");
        assert_eq!(shown(Env::Names, &all), "NCCL_DEBUG=(set) SLURM_JOB_ID=(set) TORCH_NCCL_TRACE_BUFFER_SIZE=(set)");
        assert_eq!(shown(Env::Off, &all), "");
    }

    #[test]
    fn long_values_and_many_variables_are_cut() {
        let long = "ü".repeat(VALUE);
        let cut = shown(Env::List, &[("NCCL_SOCKET_IFNAME", &long)]);
        assert!(cut.ends_with("ü…") && cut.len() < VALUE + 32, "{cut}");
        let many = (0..1000).map(|number| (format!("NCCL_{number}").into(), "".into()));
        assert_eq!(environment(Env::List, many).len(), VARIABLES);
    }
}
