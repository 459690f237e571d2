//! Runs of the scripted host that leave traces, from a test.
//!
//! ```no_run
//! use ncclscope_tests::play::Play;
//! use ncclscope_tests::recording::Recording;
//!
//! let recording = Recording::of("user init world comm=1 rank=0 nranks=2\n\
//!                                user start g world Group\n\
//!                                user stop g\n\
//!                                user finalize world");
//! assert_eq!(recording.timeline().named("Group").len(), 1);
//! ```

use crate::perfetto::Trace;
use crate::play::{self, Finished, Outcome, Play};
use crate::timeline::Timeline;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// How long a load may take.
const LOAD_LIMIT: Duration = Duration::from_secs(120);

/// A folder of traces, gone when this is.
#[derive(Debug)]
pub struct Traces(TempDir);

impl Traces {
    /// A fresh folder, without traces.
    ///
    /// # Panics
    ///
    /// When there can be none.
    pub fn new() -> Traces {
        Traces(tempfile::tempdir().expect("a folder for traces"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The traces in it and in its folders, in the order of their names.
    ///
    /// # Panics
    ///
    /// When the folder cannot be read.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut folders = vec![self.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("the folder can be read") {
                let path = entry.expect("the folder can be read").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "perfetto-trace") {
                    files.push(path);
                }
            }
        }
        files.sort();
        files
    }

    /// The only trace.
    ///
    /// # Panics
    ///
    /// When there is none, or more than one.
    #[track_caller]
    pub fn file(&self) -> PathBuf {
        match &self.files()[..] {
            [file] => file.clone(),
            files => panic!("{} traces instead of one: {files:?}", files.len()),
        }
    }

    /// The only trace, loaded.
    ///
    /// # Panics
    ///
    /// When there is none, or more than one, or it cannot be loaded.
    #[track_caller]
    pub fn open(&self) -> Trace {
        let file = self.file();
        Trace::open(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    }
}

impl Default for Traces {
    fn default() -> Self {
        Traces::new()
    }
}

/// A script that was played, and the traces that it left.
#[derive(Debug)]
pub struct Recording {
    /// How the play went.
    pub outcome: Outcome,
    /// What it left.
    pub traces: Traces,
}

impl Recording {
    /// Plays a script through the newest interface, with everything recorded. It must end well.
    ///
    /// # Panics
    ///
    /// When it does not.
    #[track_caller]
    pub fn of(script: &str) -> Recording {
        let recording = Recording::by(Play::new(script).env("NCCLSCOPE_PRESET", "full"));
        let Outcome { status, signal, stderr, .. } = &recording.outcome;
        assert_eq!((*status, *signal), (Some(0), None), "{stderr}");
        recording
    }

    /// Plays in whatever way is asked for, in the folder of the traces.
    ///
    /// # Panics
    ///
    /// When the host cannot be run, or its time is up.
    #[track_caller]
    pub fn by(play: Play) -> Recording {
        let traces = Traces::new();
        // Never below the free space of the machine that runs the test: a setting that follows wins.
        let play = play.env_default("NCCLSCOPE_MIN_FREE", "0").env_default("NCCLSCOPE_OUTPUT", traces.path());
        let outcome = match play.folder(traces.path()).run() {
            Ok(outcome) => outcome,
            Err(error) => panic!("{error}"),
        };
        Recording { outcome, traces }
    }

    /// What the only trace shows, in which nothing is wrong and no slice is open.
    ///
    /// # Panics
    ///
    /// When something is.
    #[track_caller]
    pub fn timeline(&self) -> Timeline {
        let trace = self.traces.open();
        assert_sound(&trace, 0);
        Timeline::read(&trace)
    }

    /// The names of the script's threads, by their numbers.
    pub fn threads(&self) -> BTreeMap<i32, String> {
        self.outcome.calls.iter().map(|call| (call.tid, call.thread.clone())).collect()
    }

    /// How many calls the plugin had to record: starts, stops and states, but for those on a null handle.
    pub fn calls(&self) -> u64 {
        let recorded = self.outcome.calls.iter().filter(|call| match call.verb.as_str() {
            "start" => call.status.is_some(),
            "stop" | "state" => call.status.is_some() && call.handle != Some(0),
            _ => false,
        });
        recorded.count() as u64
    }

    /// What the plugin said on standard error, without what stands in front of each line.
    pub fn said(&self) -> Vec<&str> {
        said(&self.outcome.stderr)
    }
}

/// The plugin's lines in a text, without its name, host and process in front.
pub fn said(stderr: &str) -> Vec<&str> {
    let lines = stderr.lines().filter(|line| line.starts_with("ncclscope["));
    lines.filter_map(|line| Some(line.split_once("]: ")?.1)).collect()
}

/// Requires that nothing is wrong with a trace in which that many slices are open on purpose.
///
/// # Panics
///
/// When something is wrong, with all of it.
#[track_caller]
pub fn assert_sound(trace: &Trace, open_slices: u64) {
    let problems = crate::perfetto::Check::new().open_slices(open_slices).run(trace);
    let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

/// A load that was sent, what it says of itself, and the traces that it left.
#[derive(Debug)]
pub struct Load {
    /// The host's own account.
    pub report: Json,
    /// What the plugin wrote to standard error.
    pub stderr: String,
    /// What it left.
    pub traces: Traces,
}

impl Load {
    /// Sends a load: `arguments` are those of `scripted-host flood` but for the plugin, `settings` the environment.
    ///
    /// # Panics
    ///
    /// When it does not end well.
    #[track_caller]
    pub fn send(arguments: &str, settings: &[(&str, &str)]) -> Load {
        let traces = Traces::new();
        let host = play::host_path().unwrap_or_else(|error| panic!("{error}"));
        let plugin = play::plugin_path().unwrap_or_else(|error| panic!("{error}"));
        let mut command = Command::new(host);
        play::clean_environment(&mut command);
        command.arg("flood").arg("--plugin").arg(plugin).args(arguments.split_whitespace());
        command.env("NCCLSCOPE_OUTPUT", traces.path()).env("NCCLSCOPE_MIN_FREE", "0").envs(settings.iter().copied());
        command.current_dir(traces.path());
        let finished = play::run(&mut command, "", LOAD_LIMIT).unwrap_or_else(|error| panic!("{error}"));
        let Finished { status, stdout, stderr } = finished;
        assert!(status.success(), "the load ended with {status}: {stderr}");
        let report = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"));
        Load { report, stderr, traces }
    }

    /// A figure of the host's account.
    ///
    /// # Panics
    ///
    /// When there is none of that name.
    #[track_caller]
    pub fn sent(&self, name: &str) -> u64 {
        self.report[name].as_u64().unwrap_or_else(|| panic!("no figure `{name}` in {}", self.report))
    }
}
