//! What was packed, where there is nothing else: an empty home, no variables, and neither Rust nor this repository on the PATH.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{ARCH, LIBRARY, PROGRAM, VERSION, archive, find_wheel, tree};
use crate::demo::{Built, Profile, RELEASE};
use crate::steps::{Failure, Outcome, Place, call, show};

/// The job: four ranks on two hosts.
const SCENARIO: &str = "training";
const RANKS: usize = 4;

/// How often the library is loaded to see how long that takes.
const LOADS: usize = 25;

/// An environment of its own.
struct Fresh {
    folder: PathBuf,
    /// Where programs are looked for.
    path: Vec<PathBuf>,
}

impl Fresh {
    /// An empty folder below the target folder. Whatever an earlier one of the name had is gone.
    fn new(place: &Place, name: &str) -> Result<Fresh, Failure> {
        let folder = place.target.join("fresh").join(name);
        let _ = fs::remove_dir_all(&folder);
        let made = fs::create_dir_all(folder.join("home"));
        made.map_err(|error| format!("failed to make {}: {error}", folder.display()))?;
        // A system may have a Rust of its own.
        let system = ["/usr/bin", "/bin"].into_iter().map(PathBuf::from);
        Ok(Fresh { folder, path: system.filter(|folder| !folder.join("cargo").exists()).collect() })
    }

    /// The same with a folder in front of the others on the PATH.
    fn with(mut self, programs: &Path) -> Fresh {
        self.path.insert(0, programs.to_owned());
        self
    }

    fn command(&self, words: &[&str]) -> Command {
        // `env` looks for the program on the new PATH; this process would look on its own.
        let mut command = Command::new("/usr/bin/env");
        let path: Vec<_> = self.path.iter().map(|folder| folder.display().to_string()).collect();
        command.args(["-i", &format!("PATH={}", path.join(":"))]);
        command.arg(format!("HOME={}", self.folder.join("home").display()));
        command.args(words).current_dir(&self.folder);
        command
    }

    /// What a command prints; it must end well.
    fn answer(&self, words: &[&str]) -> Result<String, Failure> {
        let mut command = self.command(words);
        println!("   {}", words.join(" "));
        let ended = command.stderr(Stdio::inherit()).output();
        let ended = ended.map_err(|error| format!("failed to start it: {error}"))?;
        let said = String::from_utf8_lossy(&ended.stdout).trim_end().to_owned();
        if ended.status.success() {
            return Ok(said);
        }
        let again = format!("cd {} && {}", self.folder.display(), show(&command));
        Err(Failure { reason: format!("{said}\n{}", ended.status), again: Some(again) })
    }
}

/// The wheel in a new virtual environment, and the unpacked archive.
pub(super) fn packages(place: &Place) -> Result<Outcome, Failure> {
    let job = emulated_job(place)?;

    let fresh = Fresh::new(place, "wheel")?;
    let environment = fresh.folder.join("venv");
    call(place.command("python3").args(["-m", "venv"]).arg(&environment))?;
    let fresh = fresh.with(&environment.join("bin"));
    let wheel = find_wheel(place, ARCH)?.display().to_string();
    fresh.answer(&["python", "-m", "pip", "install", "--quiet", "--no-index", &wheel])?;
    let library = try_out(&fresh, &job)?;
    agrees(&fresh, "python", None, &library)?;

    let folder = tree(place, ARCH);
    let fresh = Fresh::new(place, "archive")?;
    call(place.command("tar").arg("-xzf").arg(archive::of(&folder)).arg("-C").arg(&fresh.folder))?;
    let unpacked = fresh.folder.join(folder.file_name().unwrap_or_default());
    let fresh = fresh.with(&unpacked);
    let library = try_out(&fresh, &job)?;
    let python = environment.join("bin/python").display().to_string();
    agrees(&fresh, &python, Some(&unpacked.join("python")), &library)?;

    let others = super::ARCHITECTURES.iter().filter(|arch| **arch != ARCH && find_wheel(place, arch).is_ok());
    let others: Vec<&str> = others.copied().collect();
    Ok(match others.is_empty() {
        true => Outcome::Done,
        false => Outcome::Partly(format!("what was packed for {} does not run on this machine", others.join(", "))),
    })
}

/// `cargo install`, and then what its program says of the library that it lacks.
pub(super) fn cargo_install(place: &Place) -> Result<Outcome, Failure> {
    let fresh = Fresh::new(place, "install")?;
    let mut install = place.cargo();
    install.args(["install", "--quiet", "--locked", "--path", ".", "--root"]).arg(&fresh.folder);
    call(&mut install)?;
    let programs = fresh.folder.join("bin");
    let fresh = fresh.with(&programs);

    let ended = fresh.command(&[PROGRAM, "lib"]).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&ended.stderr);
    println!("   {PROGRAM} lib\n{said}");
    let advice = said.lines().find(|line| line.starts_with("  cargo build "));
    let Some(advice) = advice.filter(|_| !ended.status.success()) else {
        return Err("without a library it does not say how to build it".to_owned().into());
    };
    call(place.command("sh").args(["-c", advice]).env("CARGO_TARGET_DIR", "target"))?;
    try_out(&fresh, &emulated_job(place)?)?;
    Ok(Outcome::Done)
}

/// The emulated job, whatever was installed.
fn emulated_job(place: &Place) -> Result<Command, Failure> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("the emulated job runs on x86-64 Linux only".to_owned().into());
    }
    let built = Built::new(place, Profile::Debug)?;
    let nccl = built.library(place, RELEASE)?;
    // Its output lies where it is started.
    built.job(place, &nccl, SCENARIO, Path::new("job"))
}

/// Does what the first page says, with what is on the PATH; the library, as the program says.
fn try_out(fresh: &Fresh, job: &Command) -> Result<PathBuf, Failure> {
    let version = fresh.answer(&[PROGRAM, "--version"])?;
    if version != format!("{PROGRAM} {VERSION}") {
        return Err(format!("it is {version}").into());
    }
    println!("{}", fresh.answer(&[PROGRAM, "doctor"])?);
    let library = PathBuf::from(fresh.answer(&[PROGRAM, "lib"])?);
    if !library.is_file() || !library.starts_with(&fresh.folder) {
        return Err(format!("{} is not what was installed", library.display()).into());
    }

    let mut words = vec![PROGRAM, "run", "--"];
    let job = [job.get_program()].into_iter().chain(job.get_args());
    words.extend(job.filter_map(|word| word.to_str()));
    println!("{}", fresh.answer(&words)?);
    let mut traces = traces(&fresh.folder);
    traces.sort();
    let folders: std::collections::BTreeSet<_> = traces.iter().filter_map(|trace| trace.parent()).collect();
    if traces.len() != RANKS || folders.len() != 1 {
        return Err(format!("{} traces in {} folders, of {RANKS} ranks", traces.len(), folders.len()).into());
    }
    let traces: Vec<String> = traces.iter().map(|trace| trace.display().to_string()).collect();
    let mut words = vec![PROGRAM, "info"];
    words.extend(traces.iter().map(String::as_str));
    let info = fresh.answer(&words)?;
    println!("{info}");
    if info.matches("exactly matched").count() < RANKS {
        return Err("not every rank has kernels".to_owned().into());
    }
    time_loads(&library)?;
    Ok(library)
}

/// The traces that `ncclscope run` leaves where it was started.
fn traces(folder: &Path) -> Vec<PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let runs = entries(folder)
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ncclscope-")));
    let files = runs.flat_map(|run| entries(&run).collect::<Vec<_>>());
    files.filter(|path| path.extension().is_some_and(|end| end == "perfetto-trace")).collect()
}

/// The Python module must find the same library.
fn agrees(fresh: &Fresh, python: &str, modules: Option<&Path>, library: &Path) -> Result<(), Failure> {
    let variable = modules.map(|folder| format!("PYTHONPATH={}", folder.display()));
    let mut words: Vec<&str> = variable.iter().map(String::as_str).collect();
    words.extend([python, "-c", "import ncclscope; print(ncclscope.plugin_path())"]);
    let found = fresh.answer(&words)?;
    if Path::new(&found) != library {
        return Err(format!("the module says {found}, the program {}", library.display()).into());
    }
    println!("   {found}");
    Ok(())
}

/// Loads the library as NCCL does, in a new process each time, and says how long that took. It is no test: a machine may be busy.
fn time_loads(library: &Path) -> Result<(), Failure> {
    const PROGRAM: &str = "import ctypes, sys, time; began = time.perf_counter(); ctypes.CDLL(sys.argv[1]); print(time.perf_counter() - began)";
    let mut times = Vec::new();
    for _ in 0..LOADS {
        let said =
            Command::new("python3").args(["-c", PROGRAM]).arg(library).output().map_err(|error| error.to_string())?;
        let time = String::from_utf8_lossy(&said.stdout).trim().parse::<f64>();
        times.push(time.map_err(|_| format!("{LIBRARY} was not loaded: {}", String::from_utf8_lossy(&said.stderr)))?);
    }
    times.sort_by(f64::total_cmp);
    println!(
        "   {LIBRARY} is loaded in {:.2} ms (median of {LOADS}; least {:.2} ms)",
        times[LOADS / 2] * 1e3,
        times[0] * 1e3
    );
    Ok(())
}
