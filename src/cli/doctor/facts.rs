//! What a machine has: the driver, copies of CUPTI and NCCL, space, permissions, and environment
//! variables. Libraries are looked for, not loaded.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object as _, ObjectSymbol as _, ReadCache};
use serde::Serialize;

use crate::cli::{library, nccl};
use crate::config::Config;
use crate::sys::descriptor::Descriptor;
use crate::sys::job;
use crate::sys::libraries::{Place, every, of_system, paths, places};

/// All facts.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Facts {
    pub(super) version: &'static str,
    pub(super) library: Option<PathBuf>,
    /// What is wrong with the library: that it was not found, or the loader's message.
    pub(super) library_fault: Option<String>,
    pub(super) driver: Driver,
    pub(super) cupti: Vec<CuptiCopy>,
    /// Processes of this machine that hold CUPTI now.
    pub(super) cupti_users: Vec<User>,
    pub(super) nccl: Vec<NcclCopy>,
    pub(super) output: Output,
    /// Free bytes of `/dev/shm`.
    pub(super) shared_memory: Option<u64>,
    /// The limit on a process's address space, in bytes; `None` without a limit.
    pub(super) address_limit: Option<u64>,
    /// Variables that are set and matter.
    pub(super) environment: Vec<(String, String)>,
    /// NCCL's configuration files that name a profiler plugin, with the line that does.
    pub(super) nccl_files: Vec<(PathBuf, String)>,
    /// What is wrong with the settings.
    pub(super) complaints: Vec<String>,
    pub(super) switched_off: bool,
}

/// The NVIDIA driver.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Driver {
    /// The version of the kernel module: `580.65.06`.
    pub(super) kernel: Option<String>,
    pub(super) library: Option<PathBuf>,
    pub(super) gpus: Vec<String>,
    /// Why the system does not let us open what is needed: the driver's own device, or all GPUs.
    pub(super) refused: Vec<String>,
}

impl Driver {
    /// The major version of the CUDA that it was made for.
    pub(super) fn cuda_major(&self) -> Option<u32> {
        let release: u32 = self.kernel.as_deref()?.split('.').next()?.parse().ok()?;
        Some(match release {
            580.. => 13,
            525.. => 12,
            _ => 11,
        })
    }
}

/// A copy of CUPTI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct CuptiCopy {
    pub(super) path: PathBuf,
    /// Where it was found from.
    pub(super) by: String,
    /// The major version of its CUDA.
    pub(super) major: u32,
    /// From its package or its file name.
    pub(super) version: Option<String>,
    /// The release of CUDA 13.2, which fails where it cannot use the driver.
    pub(super) is_13_2: bool,
}

/// A libnccl.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct NcclCopy {
    pub(super) path: PathBuf,
    pub(super) by: String,
    pub(super) release: Option<String>,
}

/// A process that uses CUPTI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct User {
    pub(super) pid: u32,
    pub(super) name: String,
    /// It also uses ncclscope.
    pub(super) is_recorded: bool,
}

/// Where traces would go.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Output {
    pub(super) folder: PathBuf,
    pub(super) refused: Option<String>,
    pub(super) free: Option<u64>,
    pub(super) max_size: u64,
    pub(super) min_free: u64,
}

/// Variables that others set and that matter to a recording.
const VARIABLES: [&str; 9] = [
    "NCCL_PROFILER_PLUGIN",
    "NCCL_CONF_FILE",
    "NCCL_ALLGATHERV_ENABLE",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "NSYS_PROFILING_SESSION_ID",
    "KINETO_USE_DAEMON",
    "TEARDOWN_CUPTI",
    "LD_PRELOAD",
];

impl Facts {
    /// Collects the facts.
    pub(super) fn look(python: &Path) -> Facts {
        let (library, library_fault) = match library::find() {
            Ok(path) => (Some(path.clone()), job::try_load(&path).err().map(|error| error.to_string())),
            Err(fault) => (None, Some(fault.to_string())),
        };
        let folders = folders(python);
        let config = Config::from_environment();
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let set = VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), variable(name)?)));
        Facts {
            version: env!("CARGO_PKG_VERSION"),
            library,
            library_fault,
            driver: driver(&folders),
            cupti: cupti(&folders),
            cupti_users: cupti_users(),
            nccl: every(&folders, "libnccl.so.2")
                .into_iter()
                .map(|(path, by)| NcclCopy { release: nccl::release(&path), path, by })
                .collect(),
            output: output(&config),
            shared_memory: free(Path::new("/dev/shm")),
            address_limit: address_limit(&fs::read_to_string("/proc/self/limits").unwrap_or_default()),
            environment: set.collect(),
            nccl_files: nccl_files(),
            complaints: config.complaints.clone(),
            switched_off: config.is_off(),
        }
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

fn driver(folders: &[Place]) -> Driver {
    let gpus = fs::read_dir("/proc/driver/nvidia/gpus").into_iter().flatten().flatten();
    let model = |path: PathBuf| {
        let text = fs::read_to_string(path.join("information")).ok()?;
        let model = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
        Some(model.trim().to_owned())
    };
    let devices = fs::read_dir("/dev").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_gpu = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let number = name.strip_prefix("nvidia");
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit()))
    };
    let refusal = |path: PathBuf| {
        let error = fs::File::options().read(true).write(true).open(&path).err()?;
        Some(format!("{}: {error}", path.display()))
    };
    let control = PathBuf::from("/dev/nvidiactl");
    let mut refused: Vec<String> = Some(control).filter(|path| path.exists()).and_then(refusal).into_iter().collect();
    let gpus_refused: Vec<_> = devices.filter(is_gpu).map(refusal).collect();
    // A job manager may give a job only some of a machine's GPUs.
    if gpus_refused.iter().all(Option::is_some) {
        refused.extend(gpus_refused.into_iter().flatten());
    }
    Driver {
        kernel: fs::read_to_string("/sys/module/nvidia/version").ok().map(|text| text.trim().to_owned()),
        library: every(folders, "libcuda.so.1").into_iter().next().map(|(path, _)| path),
        gpus: gpus.filter_map(|entry| model(entry.path())).collect(),
        refused,
    }
}

fn cupti(folders: &[Place]) -> Vec<CuptiCopy> {
    let found = [13, 12].into_iter().flat_map(|major| {
        let copies = every(folders, &format!("libcupti.so.{major}"));
        copies.into_iter().map(move |(path, by)| CuptiCopy {
            version: cupti_version(&path, major),
            is_13_2: is_13_2(&path),
            path,
            by,
            major,
        })
    });
    found.collect()
}

/// The version in the file's name, or that of the Python package that it comes from.
fn cupti_version(path: &Path, major: u32) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let name = real.file_name()?.to_string_lossy().into_owned();
    let number = name.strip_prefix("libcupti.so.").filter(|number| number.contains('.'));
    number.map(str::to_owned).or_else(|| {
        // .../site-packages/nvidia/<package>/lib/<library>, next to
        // nvidia_cuda_cupti-13.0.85.dist-info; the packages for CUDA 12 and 13 may both be there
        let packages =
            real.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == "nvidia"))?.parent()?;
        fs::read_dir(packages).ok()?.flatten().find_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let version = name.strip_suffix(".dist-info")?.strip_prefix("nvidia_cuda_cupti")?;
            let (_, version) = version.rsplit_once('-')?;
            version.starts_with(&format!("{major}.")).then(|| version.to_owned())
        })
    })
}

/// Judged from outside, by one function that this release added and one that came later.
fn is_13_2(path: &Path) -> bool {
    let read = || {
        let cache = ReadCache::new(fs::File::open(path).ok()?);
        let file = object::File::parse(&cache).ok()?;
        let exports =
            |name: &str| file.dynamic_symbols().any(|symbol| symbol.is_definition() && symbol.name() == Ok(name));
        Some(exports("cuptiActivityGetStructSize") && !exports("cuptiGetTimestamp_v2"))
    };
    read() == Some(true)
}

fn cupti_users() -> Vec<User> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut users: Vec<User> = pids
        .filter_map(|pid| {
            let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
            let maps = String::from_utf8_lossy(&maps);
            let has = |name: &str| {
                maps.lines().any(|line| line.rsplit('/').next().is_some_and(|file| file.starts_with(name)))
            };
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
            has("libcupti.so").then(|| User { pid, name, is_recorded: has(library::NAME) })
        })
        .collect();
    users.sort_by_key(|user| user.pid);
    users
}

fn output(config: &Config) -> Output {
    let template = config.output.clone().unwrap_or_default();
    // Up to the first placeholder.
    let folder: PathBuf = Path::new(&template)
        .components()
        .take_while(|part| !part.as_os_str().to_string_lossy().contains('%'))
        .collect();
    let folder = env::current_dir().unwrap_or_default().join(folder);
    let there = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/")).to_owned();
    Output {
        refused: job::may_write(&folder).err().map(|error| error.to_string()),
        free: free(&there),
        folder,
        max_size: config.max_size,
        min_free: config.min_free,
    }
}

fn free(folder: &Path) -> Option<u64> {
    Descriptor::open(None, folder, 0).ok()?.free_bytes().ok()
}

fn address_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find(|line| line.starts_with("Max address space"))?;
    line.trim_start_matches("Max address space").split_whitespace().next()?.parse().ok()
}

/// NCCL's own configuration files, where they name a plugin.
fn nccl_files() -> Vec<(PathBuf, String)> {
    let home = env::var_os("HOME").map(|home| Path::new(&home).join(".nccl.conf"));
    let named = env::var_os("NCCL_CONF_FILE").map(PathBuf::from);
    let files = named.or(home).into_iter().chain(["/etc/nccl.conf".into()]);
    files
        .filter_map(|path| {
            let text = fs::read_to_string(&path).ok()?;
            let line = text.lines().find(|line| line.trim_start().starts_with("NCCL_PROFILER_PLUGIN"))?;
            Some((path, line.trim().to_owned()))
        })
        .collect()
}

/// Folders that may contain libraries, with what points to each.
fn folders(python: &Path) -> Vec<Place> {
    // PyPI's wheels, and PyTorch's own folder.
    const INSIDE: [&str; 5] =
        ["nvidia/nccl/lib", "nvidia/cu13/lib", "nvidia/cuda_cupti/lib", "nvidia/cu12/lib", "torch/lib"];
    let mut folders: Vec<Place> = places("LD_LIBRARY_PATH", paths("LD_LIBRARY_PATH")).collect();
    for packages in packages(python) {
        let by = format!("Python, {}", packages.display());
        folders.extend(places(&by, INSIDE.map(|folder| packages.join(folder))));
    }
    let conda = env::var_os("CONDA_PREFIX").map(|prefix| Path::new(&prefix).join("lib"));
    folders.extend(places("conda", conda));
    folders.extend(of_system());
    folders
}

/// Folders of Python packages: those of the Python that would run, and of the active environment.
fn packages(python: &Path) -> Vec<PathBuf> {
    let said = Command::new(python).args(["-c", "import sys; print('\\n'.join(sys.path))"]).output();
    let said = said.ok().filter(|output| output.status.success());
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let of_python = said.lines().filter(|line| line.ends_with("-packages")).map(PathBuf::from);
    let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let of_prefixes = prefixes.flat_map(|prefix| {
        let pythons = fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten().map(|entry| entry.path());
        pythons.map(|python| python.join("site-packages")).filter(|packages| packages.is_dir()).collect::<Vec<_>>()
    });
    let mut known = BTreeSet::new();
    of_python.chain(of_prefixes).filter(|packages| known.insert(packages.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_space_limit_is_read() {
        let head = "Limit                     Soft Limit           Hard Limit           Units     \n";
        let line = |limit: &str| {
            format!("{head}Max address space         {limit}            unlimited            bytes     \n")
        };
        assert_eq!(address_limit(&line("unlimited")), None);
        assert_eq!(address_limit(&line("1073741824")), Some(1 << 30));
    }

    #[test]
    fn the_driver_version_gives_its_cuda() {
        let of = |release: &str| Driver { kernel: Some(release.into()), ..Driver::default() }.cuda_major();
        assert_eq!([of("580.65.06"), of("535.104.05"), of("470.1"), of("x")], [Some(13), Some(12), Some(11), None]);
    }
}
