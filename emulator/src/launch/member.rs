//! One process of a job that another launcher starts, such as torchrun or mpirun. It learns its
//! number from the environment, and meets the others in a folder that only this job uses.

use std::env;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::thread;
use std::time::{Duration, Instant};

use super::environment::RANK_VARIABLES;
use super::folder::{Folder, SCENARIO};
use super::{Error, Launch};
use crate::library::Library;
use crate::scenario::Layout;
use crate::time;
use crate::wheel;

/// The file in which the first process writes when the job began.
const BEGIN: &str = "begin";

/// How long the first process is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Becomes the process that the environment describes; returns why it could not.
pub fn become_member(launch: &Launch) -> Error {
    match prepare(launch) {
        Ok(mut command) => Error::System(format!("failed to start {}: {}", launch.program.display(), command.exec())),
        Err(error) => error,
    }
}

fn prepare(launch: &Launch) -> Result<std::process::Command, Error> {
    let failed = |error: std::io::Error| Error::System(format!("{}: {error}", launch.output.display()));
    let ranks = RANK_VARIABLES.iter().filter(|name| name.contains("RANK") && !name.starts_with("LOCAL"));
    let number = ranks.chain(&["SLURM_PROCID"]).find_map(|name| env::var(name).ok()?.parse::<u32>().ok());
    let number =
        number.ok_or_else(|| Error::Refused("no launcher has numbered this process (RANK and the like)".into()))?;
    let processes = launch.scenario.processes();
    if launch.scenario.layout != Layout::Processes || number >= processes {
        let name = &launch.scenario.name;
        return Err(Error::Refused(format!("{name} has {processes} processes, and this would be number {number}")));
    }
    let inspected = Library::inspect(&launch.nccl, &wheel::cache())
        .map_err(|reason| Error::Unsuitable(launch.nccl.clone(), reason))?;
    let release = inspected.release().map(str::to_owned);
    launch.release_is_new_enough(release.as_deref())?;
    let meeting = launch.output.join("meeting");
    fs::create_dir_all(&meeting).map_err(failed)?;
    let begin = launch.output.join(BEGIN);
    if number == 0 {
        if begin.exists() {
            return Err(Error::Refused(format!(
                "{}: another job ran there; name a new folder",
                launch.output.display()
            )));
        }
        fs::write(launch.output.join(SCENARIO), &launch.scenario.text).map_err(failed)?;
        let draft = launch.output.join("draft");
        fs::write(&draft, time::now().to_string()).and_then(|()| fs::rename(&draft, &begin)).map_err(failed)?;
    }
    let waits = Instant::now();
    let reference = loop {
        match fs::read_to_string(&begin) {
            Ok(text) => break text.parse().map_err(|_| Error::System(format!("{}: not a time", begin.display())))?,
            Err(_) if waits.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(Error::System(format!("{}: {error}", begin.display()))),
        }
    };
    launch.clocks_are_possible(reference)?;
    let lock = File::create(launch.output.join("lock")).map_err(failed)?;
    let folder = Folder { path: launch.output.clone(), meeting, _lock: lock };
    let command = launch.command(number, reference, &folder, release.as_deref());
    // The others still use it.
    std::mem::forget(folder);
    Ok(command)
}
