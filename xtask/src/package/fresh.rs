//! The packages in a bare environment: an empty home, no variables, and neither Rust nor this
//! repository on the PATH. The commands are those that README.md gives, and their output must be
//! what README.md shows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::first_page::{FirstPage, like};
use super::{ARCH, LIBRARY, PROGRAM, VERSION, archive, find_wheel, tree};
use crate::demo::{Built, Profile, RELEASE};
use crate::steps::{Failure, Outcome, Place, call, show};

/// The scenario: four ranks on two hosts.
const SCENARIO: &str = "training";
const RANKS: usize = 4;
/// The job's folder, below the one where it is started.
const JOB: &str = "job";

/// How often the library is loaded to measure how long that takes.
const LOADS: usize = 25;

/// An environment of its own.
struct Fresh {
    folder: PathBuf,
    /// The folders on the PATH.
    path: Vec<PathBuf>,
}

impl Fresh {
    /// An empty folder below the target folder. An earlier folder of that name is deleted.
    fn new(place: &Place, name: &str) -> Result<Fresh, Failure> {
        let folder = place.target.join("fresh").join(name);
        let _ = fs::remove_dir_all(&folder);
        let made = fs::create_dir_all(folder.join("home"));
        made.map_err(|error| format!("failed to make {}: {error}", folder.display()))?;
        // The system may have its own Rust.
        let system = ["/usr/bin", "/bin"].into_iter().map(PathBuf::from);
        Ok(Fresh { folder, path: system.filter(|folder| !folder.join("cargo").exists()).collect() })
    }

    /// The same with this folder first on the PATH.
    fn with(mut self, programs: &Path) -> Fresh {
        self.path.insert(0, programs.to_owned());
        self
    }

    fn command(&self, words: &[&str]) -> Command {
        // `env` looks for the program on the new PATH; this process would use its own.
        let mut command = Command::new("/usr/bin/env");
        let path: Vec<_> = self.path.iter().map(|folder| folder.display().to_string()).collect();
        command.args(["-i", &format!("PATH={}", path.join(":"))]);
        command.arg(format!("HOME={}", self.folder.join("home").display()));
        command.args(words).current_dir(&self.folder);
        command
    }

    /// The standard output and standard error of a shell command, which must succeed.
    fn types(&self, line: &str) -> Result<(String, String), Failure> {
        let mut command = self.command(&["sh", "-c", line]);
        println!("   {line}");
        let ended = command.output().map_err(|error| format!("failed to start it: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        let (said, aside) = (text(&ended.stdout), text(&ended.stderr));
        if ended.status.success() {
            return Ok((said, aside));
        }
        let again = format!("cd {} && {}", self.folder.display(), show(&command));
        Err(Failure { reason: format!("{said}\n{aside}\n{}", ended.status), again: Some(again) })
    }
}

/// The wheel in a new virtual environment, and the unpacked archive.
pub(super) fn packages(place: &Place) -> Result<Outcome, Failure> {
    let job = emulated_job(place)?;
    let page = FirstPage::read(place)?;

    let fresh = Fresh::new(place, "wheel")?;
    let environment = fresh.folder.join("venv");
    call(place.command("python3").args(["-m", "venv"]).arg(&environment))?;
    let fresh = fresh.with(&environment.join("bin"));
    find_wheel(place, ARCH)?;
    let install = page.line("Install", "pip install ")?;
    fresh.types(&install.replace("target/", &format!("{}/", place.target.display())))?;
    let library = try_out(&fresh, &page, &job)?;
    agrees(&fresh, "python", None, &library)?;

    let folder = tree(place, ARCH);
    let fresh = Fresh::new(place, "archive")?;
    // Its name begins like those of the traces' folders.
    let unpacked = fresh.folder.join("home");
    call(place.command("tar").arg("-xzf").arg(archive::of(&folder)).arg("-C").arg(&unpacked))?;
    let unpacked = unpacked.join(folder.file_name().unwrap_or_default());
    let fresh = fresh.with(&unpacked);
    let library = try_out(&fresh, &page, &job)?;
    let python = environment.join("bin/python").display().to_string();
    agrees(&fresh, &python, Some(&unpacked.join("python")), &library)?;

    let others = super::ARCHITECTURES.iter().filter(|arch| **arch != ARCH && find_wheel(place, arch).is_ok());
    let others: Vec<&str> = others.copied().collect();
    Ok(match others.is_empty() {
        true => Outcome::Done,
        false => Outcome::Partly(format!("what was packed for {} does not run on this machine", others.join(", "))),
    })
}

/// `cargo install`, and then what the installed program says about the missing library.
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
    try_out(&fresh, &FirstPage::read(place)?, &emulated_job(place)?)?;
    Ok(Outcome::Done)
}

/// The emulated job, for any installation.
fn emulated_job(place: &Place) -> Result<Command, Failure> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("the emulated job runs on x86-64 Linux only".to_owned().into());
    }
    let built = Built::new(place, Profile::Debug)?;
    let nccl = built.library(place, RELEASE)?;
    // Its output goes to the folder where it is started.
    built.job(place, &nccl, SCENARIO, Path::new(JOB))
}

/// Follows the first page, with the programs on the PATH; returns the library that the program
/// names.
fn try_out(fresh: &Fresh, page: &FirstPage, job: &Command) -> Result<PathBuf, Failure> {
    let (version, _) = fresh.types(&format!("{PROGRAM} --version"))?;
    if version != format!("{PROGRAM} {VERSION}") {
        return Err(format!("it is {version}").into());
    }
    println!("{}", fresh.types(page.line("Install", "ncclscope doctor")?)?.0);
    let library = PathBuf::from(fresh.types(&format!("{PROGRAM} lib"))?.0);
    if !library.is_file() || !library.starts_with(&fresh.folder) {
        return Err(format!("{} is not what was installed", library.display()).into());
    }

    let quick_start = "Quick start";
    let run = page.line(quick_start, "ncclscope run ")?;
    let (before, launcher) = run.split_once(" -- ").ok_or_else(|| format!("{run} has no --"))?;
    println!("   in the place of {launcher}, the emulated job");
    let (_, mut said) = fresh.types(&format!("{before} -- {}", show(job)))?;
    // The emulator keeps the ranks' output; another launcher passes it on.
    for rank in 0..RANKS {
        let log = fresh.folder.join(JOB).join(format!("process-{rank}.log"));
        let text = fs::read_to_string(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        said = text + &said;
    }
    println!("{said}");
    let said: Vec<&str> = said.lines().filter(|line| line.starts_with(PROGRAM)).collect();
    let shapes: Vec<String> = said.iter().map(|line| like(line, &fresh.folder)).collect();
    let expected = page.said(quick_start);
    for line in &expected {
        let shape = like(line, Path::new("/job"));
        let is_so = |said: &String| match shape.strip_suffix('…') {
            Some(begin) => said.starts_with(begin),
            None => *said == shape,
        };
        if !shapes.iter().any(is_so) {
            return Err(format!("README.md has a line that was not said: {line}").into());
        }
    }
    if said.len() != expected.len() {
        return Err(format!("{} lines are ours; README.md has {}", said.len(), expected.len()).into());
    }

    let mut traces = traces(&fresh.folder);
    traces.sort();
    let folders: std::collections::BTreeSet<_> = traces.iter().filter_map(|trace| trace.parent()).collect();
    if traces.len() != RANKS || folders.len() != 1 {
        return Err(format!("{} traces in {} folders, of {RANKS} ranks", traces.len(), folders.len()).into());
    }
    // The page has the folder of another run.
    let theirs = expected.iter().find_map(|line| line.strip_prefix("ncclscope: next: ncclscope diagnose "));
    let theirs = theirs.ok_or_else(|| "README.md shows no line that says what to type next".to_owned())?;
    let ours = folders.first().and_then(|run| run.file_name()).unwrap_or_default().to_string_lossy();
    let typed = |begin| page.line(quick_start, begin).map(|line| line.replace(theirs, &ours));
    println!("{}", fresh.types(&typed("ncclscope diagnose ")?)?.0);
    let (info, _) = fresh.types(&typed("ncclscope info ")?)?;
    println!("{info}");
    if info.matches("exactly matched").count() < RANKS {
        return Err("not every rank has kernels".to_owned().into());
    }
    println!("{}", fresh.types(&typed("ncclscope merge ")?)?.0);
    time_loads(&library)?;
    Ok(library)
}

/// The traces that `ncclscope run` leaves in the folder where it was started.
fn traces(folder: &Path) -> Vec<PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let runs = entries(folder)
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ncclscope-")));
    let files = runs.flat_map(|run| entries(&run).collect::<Vec<_>>());
    files.filter(|path| path.extension().is_some_and(|end| end == "perfetto-trace")).collect()
}

/// The Python module must find the same library.
fn agrees(fresh: &Fresh, python: &str, modules: Option<&Path>, library: &Path) -> Result<(), Failure> {
    let variable = modules.map(|folder| format!("PYTHONPATH={} ", folder.display())).unwrap_or_default();
    let (found, _) =
        fresh.types(&format!("{variable}{python} -c 'import ncclscope; print(ncclscope.plugin_path())'"))?;
    if Path::new(&found) != library {
        return Err(format!("the module says {found}, the program {}", library.display()).into());
    }
    println!("   {found}");
    Ok(())
}

/// Loads the library as NCCL does, in a new process each time, and prints how long that took. This
/// is not a test, because the machine may be busy.
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
