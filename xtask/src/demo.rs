//! The whole project on any machine: the real NCCL runs a job on emulated GPUs, with the plugin
//! loaded.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use crate::steps::{self, Failure, Place, call, call_for};

/// The scenario if none is named.
const DEFAULT: &str = "straggler";

/// The NCCL release unless told otherwise.
pub(crate) const RELEASE: &str = "2.30.7";

const USAGE: &str = "\
usage: cargo xtask demo [SCENARIO] [--nccl VERSION or PATH] [--seed N]
       cargo xtask demo --list

  SCENARIO   a name from --list, or a file; straggler if none is given
  --nccl     a release to fetch from PyPI into your cache (2.30.7), or a libnccl.so.2 that you have
  --seed     another seed for what the scenario leaves to chance
";

pub(crate) fn run(words: &[String]) -> ExitCode {
    let Some(wish) = Wish::parse(words) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    steps::run_chore(|place| demo(place, &wish))
}

/// The command line.
#[derive(Debug, PartialEq)]
struct Wish {
    list: bool,
    scenario: String,
    nccl: String,
    seed: Option<String>,
}

impl Wish {
    fn parse(words: &[String]) -> Option<Wish> {
        let mut wish = Wish { list: false, scenario: DEFAULT.into(), nccl: RELEASE.into(), seed: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--list" => wish.list = true,
                "--nccl" => wish.nccl = words.next()?.clone(),
                "--seed" => wish.seed = Some(words.next()?.clone()),
                name if !name.starts_with('-') => wish.scenario = name.to_owned(),
                _ => return None,
            }
        }
        Some(wish)
    }
}

fn demo(place: &Place, wish: &Wish) -> Result<(), Failure> {
    let start = Instant::now();
    let built = Built::new(place, Profile::Quick)?;
    let after_build = start.elapsed();
    if wish.list {
        return call(place.command(built.program("emulator")).arg("list"));
    }
    let library = built.library(place, &wish.nccl)?;
    let after_fetch = start.elapsed();
    let joined = built.play(place, &library, &wish.scenario, wish.seed.as_deref())?;
    for verb in ["info", "diagnose"] {
        println!();
        // They say so in their exit code if the job was killed or hung.
        call_for(place.command(built.program("ncclscope")).arg(verb).arg(&joined), &[0, 1])?;
    }
    let shown = joined.strip_prefix(&place.root).unwrap_or(&joined).display();
    println!(
        "\nThe real NCCL ran on emulated GPUs: its calls, threads and order are real, the times are not performance.\n\
         The trace of all ranks is {}\n\
         Open it: {} open {shown}\n\
         or in https://ui.perfetto.dev, \"Open trace file\". Either way it stays on this machine.\n\
         What really happened is in {}/truth-*.jsonl.\n\
         (build {:.0} s, library {:.0} s, job and trace {:.0} s)",
        joined.display(),
        built.program("ncclscope").strip_prefix(&place.root).unwrap_or(&built.program("ncclscope")).display(),
        joined.parent().unwrap_or(&joined).display(),
        after_build.as_secs_f64(),
        (after_fetch - after_build).as_secs_f64(),
        (start.elapsed() - after_fetch).as_secs_f64()
    );
    Ok(())
}

/// How the programs are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Everything is optimised a little.
    Quick,
    /// What the tests use; the emulated GPUs are optimised all the same.
    Debug,
}

/// All programs and libraries that a demo needs.
pub(crate) struct Built {
    folder: PathBuf,
}

impl Built {
    /// Builds them.
    pub(crate) fn new(place: &Place, profile: Profile) -> Result<Built, Failure> {
        println!("building (a few minutes the first time)");
        let mut build = place.cargo();
        build.args(["build", "--quiet", "--lib", "--bins"]);
        let folder = match profile {
            Profile::Quick => {
                let emulated = ["", "-emulator", "-emulator-cupti", "-emulator-libcuda", "-emulator-nvml"];
                build
                    .args(["--profile", "quick"])
                    .args(emulated.iter().flat_map(|name| ["-p".to_owned(), format!("ncclscope{name}")]));
                "quick"
            }
            // Building the whole workspace avoids rebuilding what the tests use.
            Profile::Debug => {
                build.arg("--workspace");
                "debug"
            }
        };
        call(&mut build)?;
        Ok(Built { folder: place.target.join(folder) })
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The file of a release, fetched if needed; or the file that was named.
    pub(crate) fn library(&self, place: &Place, nccl: &str) -> Result<PathBuf, Failure> {
        if nccl.contains('/') {
            return Ok(PathBuf::from(nccl));
        }
        let mut command = place.command(self.program("emulator"));
        command.args(["fetch", nccl]).stderr(Stdio::inherit());
        let output = command.output().map_err(|error| format!("failed to start the emulator: {error}"))?;
        if !output.status.success() {
            return Err(format!("no NCCL {nccl}; to use one that you have: --nccl PATH/libnccl.so.2").into());
        }
        Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end()))
    }

    /// Runs a scenario; returns the trace of all its ranks. A scenario that ends with a kill on
    /// purpose has one too.
    pub(crate) fn play(
        &self,
        place: &Place,
        library: &Path,
        scenario: &str,
        seed: Option<&str>,
    ) -> Result<PathBuf, Failure> {
        let output = place.target.join("demo").join(Path::new(scenario).file_stem().unwrap_or_default());
        let _ = std::fs::remove_dir_all(&output);
        let traces = output.join("trace");
        let mut job = self.job(place, library, scenario, &output)?;
        job.arg("--plugin").arg(self.program("libncclscope.so"));
        job.args(seed.iter().flat_map(|seed| ["--seed", seed]));
        job.env("NCCLSCOPE_PRESET", "full");
        call(&mut job)?;

        let joined = output.join(output.file_name().unwrap_or_default()).with_extension("perfetto-trace");
        let files = std::fs::read_dir(&traces).map_err(|error| format!("{}: {error}", traces.display()))?;
        let mut files: Vec<PathBuf> = files.flatten().map(|entry| entry.path()).collect();
        files.sort();
        call(place.command(self.program("ncclscope")).arg("merge").arg("-o").arg(&joined).args(&files))?;
        Ok(joined)
    }

    /// The command for a scenario's job, with an emulated CUPTI and the plugin that the caller
    /// chooses.
    pub(crate) fn job(&self, place: &Place, library: &Path, scenario: &str, output: &Path) -> Result<Command, Failure> {
        let libraries = place.target.join("demo/lib");
        place_cupti(&self.folder, &libraries)?;
        let mut job = place.command(self.program("emulator"));
        job.args(["run", scenario, "--cupti"]).arg(&libraries);
        job.arg("--nccl").arg(library).arg("--output").arg(output);
        Ok(job)
    }
}

/// Puts the emulated driver and CUPTI into a folder, under the names that are looked for.
fn place_cupti(built: &Path, folder: &Path) -> Result<(), Failure> {
    let copy = || {
        std::fs::create_dir_all(folder)?;
        std::fs::copy(built.join("libemulated_cupti.so"), folder.join("libcupti.so.13"))?;
        std::fs::copy(built.join("libemulated_libcuda.so"), folder.join("libcuda.so.1"))
    };
    copy().map(|_| ()).map_err(|error| format!("failed to fill {}: {error}", folder.display()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<Wish> {
        Wish::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_understood_in_any_order() {
        let wish = parse("--seed 7 straggler --nccl 2.32.3").unwrap();
        assert_eq!(wish.scenario, "straggler");
        assert_eq!(wish.nccl, "2.32.3");
        assert_eq!(wish.seed.as_deref(), Some("7"));
        assert_eq!(parse("").unwrap().scenario, DEFAULT);
        assert!(parse("--list").unwrap().list);
    }

    #[test]
    fn unknown_words_are_refused() {
        assert_eq!(parse("--nccl"), None);
        assert_eq!(parse("--fast"), None);
    }
}
