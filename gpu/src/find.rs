//! Finds what a machine has: the driver, libnccl, libcupti, PyTorch, a toolkit, and our own files
//! beside the program.
//!
//! Nothing is loaded here. The places are PyTorch's folders, the library path, the system loader's
//! folders, and the folders of installed toolkits.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use ncclscope::sys::libraries::{self, Place, places};
use serde::Serialize;

/// The paths given on the command line.
#[derive(Args, Clone, Debug, Default)]
pub struct Wanted {
    /// The libnccl.so.2 to use.
    #[arg(long, value_name = "FILE")]
    pub nccl: Option<PathBuf>,
    /// The libcupti.so to use.
    #[arg(long, value_name = "FILE")]
    pub cupti: Option<PathBuf>,
    /// The profiler plugin, instead of the one beside this program.
    #[arg(long, value_name = "FILE")]
    pub plugin: Option<PathBuf>,
    /// The plugin that does nothing, instead of the one beside this program.
    #[arg(long, value_name = "FILE")]
    pub empty: Option<PathBuf>,
    /// The Python to ask for PyTorch.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub python: PathBuf,
    /// A folder with libcuda.so.1, where the system's loader does not look.
    #[arg(long, value_name = "FOLDER")]
    pub driver: Option<PathBuf>,
}

/// A file, and why that place was searched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Where it is.
    pub path: PathBuf,
    /// Why that place was searched.
    pub by: String,
}

/// PyTorch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Torch {
    /// Its version.
    pub version: String,
    /// The folder of packages where it is installed.
    pub packages: PathBuf,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// The driver's library.
    pub driver: Option<Found>,
    /// The version of the kernel's driver, `580.65.06`.
    pub driver_version: Option<String>,
    /// The libnccl, best first.
    pub nccl: Vec<Found>,
    /// The libcupti, best first.
    pub cupti: Vec<Found>,
    /// The runtime.
    pub cudart: Option<Found>,
    /// PyTorch.
    pub torch: Option<Torch>,
    /// The compiler of a toolkit.
    pub nvcc: Option<Found>,
    /// The run-time compiler.
    pub nvrtc: Option<Found>,
    /// The profiler.
    pub plugin: Option<Found>,
    /// The plugin that does nothing.
    pub empty: Option<Found>,
    /// The folder of Python programs.
    pub python: Option<PathBuf>,
    /// The processor.
    pub processor: String,
    /// The number of processors that this process may use.
    pub cores: usize,
    /// The operating system's kernel.
    pub kernel: String,
    /// The kernel's clock source: `tsc`.
    pub clock_source: String,
}

impl Machine {
    /// Searches the machine.
    #[must_use]
    pub fn look(wanted: &Wanted) -> Machine {
        let torch = torch(&wanted.python);
        let folders = folders(torch.as_ref());
        let own = own_folders();
        let said = |path: &Option<PathBuf>| path.clone().map(|path| Found { path, by: "the command line".into() });
        let mine = |name: &str| {
            let found = own.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
            found.map(|path| Found { path, by: "beside this program".into() })
        };
        let driver_folders: Vec<_> =
            places("the command line", wanted.driver.clone()).chain(folders.iter().cloned()).collect();
        let all = |names: &[&str], first: Option<Found>| -> Vec<Found> {
            let bundled = places("beside this program", own.iter().map(|folder| folder.join("lib")));
            let folders: Vec<_> = bundled.chain(folders.iter().cloned()).collect();
            let mut known = BTreeSet::new();
            let found = first.into_iter().chain(names.iter().flat_map(|name| every(&folders, name)));
            found.filter(|it| known.insert(it.path.canonicalize().unwrap_or_else(|_| it.path.clone()))).collect()
        };
        let of_toolkits = places("a toolkit", libraries::toolkits().into_iter().map(|folder| folder.join("bin")));
        let nvcc_folders: Vec<_> = places("PATH", libraries::paths("PATH")).chain(of_toolkits).collect();
        Machine {
            driver: every(&driver_folders, "libcuda.so.1").into_iter().next(),
            driver_version: read("/sys/module/nvidia/version"),
            nccl: all(&["libnccl.so.2"], said(&wanted.nccl)),
            cupti: all(&["libcupti.so.13", "libcupti.so.12"], said(&wanted.cupti)),
            cudart: all(&["libcudart.so.13", "libcudart.so.12"], None).into_iter().next(),
            nvcc: every(&nvcc_folders, "nvcc").into_iter().next(),
            nvrtc: all(&["libnvrtc.so.13", "libnvrtc.so.12"], None).into_iter().next(),
            plugin: said(&wanted.plugin).or_else(|| mine("libncclscope.so")),
            empty: said(&wanted.empty).or_else(|| mine("libncclscope_empty.so")),
            python: own.iter().map(|folder| folder.join("python")).find(|folder| folder.join("train.py").is_file()),
            torch,
            processor: processor(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            clock_source: read("/sys/devices/system/clocksource/clocksource0/current_clocksource").unwrap_or_default(),
        }
    }

    /// What is missing and required for every question.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let needed = [
            (self.driver.is_some(), "an NVIDIA driver (libcuda.so.1)"),
            (!self.nccl.is_empty(), "NCCL (libnccl.so.2: PyTorch brings it, or name one with --nccl)"),
            (self.plugin.is_some(), "the profiler (libncclscope.so beside ncclscope-gpu)"),
        ];
        needed.into_iter().filter(|(there, _)| !there).map(|(_, what)| what).collect()
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |found: Option<&Found>| {
            found.map_or("not found".into(), |found| format!("{} ({})", found.path.display(), found.by))
        };
        let version = self.driver_version.as_deref().unwrap_or("of unknown version");
        let torch = self.torch.as_ref();
        let torch = torch.map_or("not found".into(), |it| format!("{} in {}", it.version, it.packages.display()));
        let lines = [
            (
                "driver",
                one(self.driver.as_ref()) + &self.driver.as_ref().map_or(String::new(), |_| format!(", {version}")),
            ),
            ("libnccl", one(self.nccl.first())),
            ("libcupti", one(self.cupti.first())),
            ("libcudart", one(self.cudart.as_ref())),
            ("PyTorch", torch),
            ("nvcc", one(self.nvcc.as_ref())),
            ("nvrtc", one(self.nvrtc.as_ref())),
            ("profiler", one(self.plugin.as_ref())),
            ("empty plugin", one(self.empty.as_ref())),
            ("processor", format!("{}, {} to use", self.processor, self.cores)),
            ("kernel", format!("{}, clock source {}", self.kernel, self.clock_source)),
        ];
        lines.iter().try_for_each(|(what, found)| writeln!(f, "{what:<13} {found}"))
    }
}

/// Where the program's own files may be: beside it, and in the repository that it was built in.
fn own_folders() -> Vec<PathBuf> {
    let Ok(program) = std::env::current_exe() else { return Vec::new() };
    let mut folders: Vec<PathBuf> = program.parent().map(Path::to_owned).into_iter().collect();
    // TARGET/debug/deps/test or TARGET/release/ncclscope-gpu: the repository is above the target
    // folder.
    for above in program.ancestors().skip(1).take(5) {
        folders.extend(
            [above.join("gpu"), above.to_owned()].into_iter().filter(|it| it.join("python/train.py").is_file()),
        );
    }
    folders
}

/// Folders that may contain libraries, each with the reason.
fn folders(torch: Option<&Torch>) -> Vec<Place> {
    // The wheels of PyPI, and conda's folder of libraries, which is that of Python itself.
    const INSIDE: [&str; 7] = [
        "nvidia/nccl/lib",
        "nvidia/cu13/lib",
        "nvidia/cuda_cupti/lib",
        "nvidia/cuda_nvrtc/lib",
        "nvidia/cuda_runtime/lib",
        "torch/lib",
        "../..",
    ];
    let of_torch = torch.into_iter().flat_map(|torch| INSIDE.map(|folder| torch.packages.join(folder)));
    let named = places("LD_LIBRARY_PATH", libraries::paths("LD_LIBRARY_PATH"));
    places("PyTorch", of_torch).chain(named).chain(libraries::of_system()).collect()
}

/// All files with a name in these folders, each once.
fn every(folders: &[Place], name: &str) -> Vec<Found> {
    libraries::every(folders, name).into_iter().map(|(path, by)| Found { path, by }).collect()
}

/// Asks Python for a PyTorch with CUDA, without importing it, which takes long.
fn torch(python: &Path) -> Option<Torch> {
    const ASK: &str = "import importlib.util, importlib.metadata as m, os, runpy\n\
        s = importlib.util.find_spec('torch')\n\
        assert runpy.run_path(os.path.join(os.path.dirname(s.origin), 'version.py'))['cuda']\n\
        print(m.version('torch')); print(os.path.dirname(os.path.dirname(s.origin)))";
    let output = Command::new(python).args(["-c", ASK]).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    Some(Torch { version: lines.next()?.to_owned(), packages: lines.next()?.into() })
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn processor() -> String {
    let text = read("/proc/cpuinfo").unwrap_or_default();
    let model =
        text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim()));
    model.unwrap_or("an unknown processor").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pytorch_without_cuda_is_ignored() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let python = folder.path().join("python");
        let path = folder.path().display();
        std::fs::write(&python, format!("#!/bin/sh\nPYTHONPATH='{path}' exec python3 \"$@\"\n")).unwrap();
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["torch", "torch-9.9.dist-info"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("torch/__init__.py"), "raise RuntimeError('it takes long')").unwrap();
        std::fs::write(folder.path().join("torch-9.9.dist-info/METADATA"), "Name: torch\nVersion: 9.9\n").unwrap();
        for (cuda, found) in [("None", None), ("'13.2'", Some("9.9"))] {
            std::fs::write(folder.path().join("torch/version.py"), format!("cuda = {cuda}\n")).unwrap();
            let torch = torch(&python);
            assert_eq!(torch.as_ref().map(|it| it.version.as_str()), found, "{cuda}");
            assert!(torch.is_none_or(|it| it.packages == folder.path().canonicalize().unwrap()));
        }
    }

    #[test]
    fn missing_parts_are_named() {
        let nothing = Machine::default();
        assert_eq!(nothing.missing().len(), 3);
        let found = || Found { path: "/x".into(), by: String::new() };
        let all = Machine { driver: Some(found()), nccl: vec![found()], plugin: Some(found()), ..nothing };
        assert!(all.missing().is_empty());
    }
}
