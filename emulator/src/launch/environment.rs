//! The command line and the environment of each process of a job.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Launch;
use super::folder::{Folder, SCENARIO, folder_of_traces};
use crate::job;
use crate::scenario::{Layout, NetworkKind};
use crate::time::HostClocks;

impl Launch {
    /// The command of one process.
    pub(super) fn command(&self, number: u32, reference: u64, folder: &Folder, release: Option<&str>) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("rank");
        command.args(["--number", &number.to_string(), "--seed", &self.scenario.seed.to_string()]);
        command.args(["--reference", &reference.to_string()]);
        command.args(["--wall", &HostClocks::wall_at(reference).to_string()]);
        command.arg("--scenario").arg(folder.path.join(SCENARIO));
        command.arg("--nccl").arg(&self.nccl);
        command.arg("--meeting").arg(&folder.meeting);
        command.arg("--truth").arg(folder.file("truth", number, "jsonl"));
        command.arg("--tally").arg(folder.meeting.join(format!("tally-{number}")));
        if self.trace {
            command.arg("--trace");
        }
        // NCCL variables in the user's shell are meant for real jobs.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("NCCL_")) {
            command.env_remove(name);
        }
        for name in RANK_VARIABLES {
            command.env_remove(name);
        }
        command.envs(self.environment(number, folder, release));
        command
    }

    /// The environment of one process.
    pub(super) fn environment(
        &self,
        number: u32,
        folder: &Folder,
        release: Option<&str>,
    ) -> BTreeMap<OsString, OsString> {
        let scenario = &self.scenario;
        let mut environment: BTreeMap<OsString, OsString> = BTreeMap::new();
        let mut set = |name: &str, value: OsString| drop(environment.insert(name.into(), value));
        let host = scenario.host_of(number);
        // The processes of one host recognise each other by this, and hosts of different jobs
        // never meet.
        set("NCCL_HOSTID", format!("emulated-host-{host}").into());
        set("EMULATED_GPUS", scenario.ranks_per_host.to_string().into());
        for (name, value) in BASIC {
            set(name, value.into());
        }
        if scenario.machine.peer_access {
            set("NCCL_P2P_DISABLE", "0".into());
            set("NCCL_P2P_LEVEL", "SYS".into());
        }
        if scenario.machine.virtual_memory {
            set("NCCL_CUMEM_ENABLE", "1".into());
        }
        if scenario.network.kind == NetworkKind::Plugin {
            set("NCCL_NET_PLUGIN", "STATIC_PLUGIN".into());
            set("NCCL_NET", "emulated".into());
        }
        set("NCCL_DEBUG_FILE", folder.file("nccl", number, "log").into());
        if scenario.layout == Layout::Processes {
            for (name, value) in [
                ("RANK", number),
                ("WORLD_SIZE", scenario.ranks()),
                ("LOCAL_RANK", scenario.device_of(number)),
                ("LOCAL_WORLD_SIZE", scenario.ranks_per_host),
            ] {
                set(name, value.to_string().into());
            }
        }
        let mut libraries: Vec<PathBuf> = self.cupti.iter().cloned().collect();
        if self.cupti.is_some() {
            set(job::DRIVER, "1".into());
        }
        match &self.plugin {
            // The settings of `ncclscope run` are meant for this job.
            None => set("NCCL_PROFILER_PLUGIN", std::env::var_os("NCCL_PROFILER_PLUGIN").unwrap_or("none".into())),
            Some(plugin) => {
                let (value, folder) = plugin_variable(plugin, release);
                set("NCCL_PROFILER_PLUGIN", value);
                libraries.extend(folder);
                if std::env::var_os("NCCLSCOPE_OUTPUT").is_none() {
                    set("NCCLSCOPE_OUTPUT", folder_of_traces(&self.output).into());
                }
            }
        }
        if !libraries.is_empty() {
            let outer = std::env::var_os("LD_LIBRARY_PATH").filter(|paths| !paths.is_empty());
            let outer = outer.iter().flat_map(std::env::split_paths);
            if let Ok(paths) = std::env::join_paths(libraries.into_iter().chain(outer)) {
                set("LD_LIBRARY_PATH", paths);
            }
        }
        for (name, value) in scenario.nccl.iter().chain(scenario.nccl_of_hosts.get(&host).into_iter().flatten()) {
            set(name, value.into());
        }
        for (name, value) in &self.set {
            set(name, value.into());
        }
        environment
    }
}

/// Settings that make NCCL run here, unless the scenario overrides them. They include every
/// variable that a program may set while it runs.
pub const BASIC: [(&str, &str); 18] = [
    ("NCCL_SOCKET_IFNAME", "lo"),
    ("NCCL_NET", "Socket"),
    ("NCCL_NET_PLUGIN", "none"),
    ("NCCL_IB_DISABLE", "1"),
    // Kernels are played over shared memory and the network, with rings and trees, Simple and LL.
    ("NCCL_P2P_DISABLE", "1"),
    ("NCCL_SHM_DISABLE", "0"),
    ("NCCL_CUMEM_ENABLE", "0"),
    ("NCCL_CUMEM_HOST_ENABLE", "0"),
    ("NCCL_NVLS_ENABLE", "0"),
    ("NCCL_COLLNET_ENABLE", "0"),
    ("NCCL_PAT_ENABLE", "0"),
    ("NCCL_ALGO", "Ring,Tree"),
    ("NCCL_PROTO", "^LL128"),
    ("NCCL_MAX_NCHANNELS", "2"),
    ("NCCL_RAS_ENABLE", "0"),
    ("NCCL_DEBUG", "WARN"),
    // Ignore the user's configuration files.
    ("NCCL_CONF_FILE", "/dev/null"),
    ("NCCL_IGNORE_CPU_AFFINITY", "1"),
];

/// Variables from which programs learn their rank; those in the shell belong to another job.
pub(super) const RANK_VARIABLES: [&str; 8] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
];

/// The value of `NCCL_PROFILER_PLUGIN` for a plugin, and the folder that it needs on the library
/// path.
fn plugin_variable(plugin: &Path, release: Option<&str>) -> (OsString, Option<PathBuf>) {
    // 2.27.3 takes no paths: it looks for a name that begins with `lib` on the library path.
    if release.is_some_and(|release| release.split('+').next() == Some("2.27.3"))
        && let (Some(name), Some(folder)) = (plugin.file_name(), plugin.parent())
    {
        return (name.into(), Some(folder.into()));
    }
    (plugin.into(), None)
}
