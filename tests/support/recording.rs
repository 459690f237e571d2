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

/// The time limit of a load.
const LOAD_LIMIT: Duration = Duration::from_secs(120);

/// A folder of traces, removed on drop.
#[derive(Debug)]
pub struct Traces(TempDir);

impl Traces {
    /// A new folder, without traces.
    ///
    /// # Panics
    ///
    /// If it cannot be created.
    pub fn new() -> Traces {
        Traces(tempfile::tempdir().expect("a folder for traces"))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The traces in it and in its folders, sorted by name.
    ///
    /// # Panics
    ///
    /// If the folder cannot be read.
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
    /// If there is none, or more than one.
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
    /// If there is none, or more than one, or it cannot be loaded.
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
    /// If it does not.
    #[track_caller]
    pub fn of(script: &str) -> Recording {
        let recording = Recording::by(Play::new(script).env("NCCLSCOPE_PRESET", "full"));
        let Outcome { status, signal, stderr, .. } = &recording.outcome;
        assert_eq!((*status, *signal), (Some(0), None), "{stderr}");
        recording
    }

    /// Runs this play, in the folder of the traces.
    ///
    /// # Panics
    ///
    /// If the host cannot be run, or its time is up.
    #[track_caller]
    pub fn by(play: Play) -> Recording {
        let traces = Traces::new();
        // Independent of the machine's free disk space; a later setting takes precedence.
        let play = play.env_default("NCCLSCOPE_MIN_FREE", "0").env_default("NCCLSCOPE_OUTPUT", traces.path());
        let outcome = match play.folder(traces.path()).run() {
            Ok(outcome) => outcome,
            Err(error) => panic!("{error}"),
        };
        Recording { outcome, traces }
    }

    /// What the only trace shows. It must have no problems and no open slices.
    ///
    /// # Panics
    ///
    /// If it has.
    #[track_caller]
    pub fn timeline(&self) -> Timeline {
        let trace = self.traces.open();
        assert_sound(&trace, 0);
        Timeline::read(&trace)
    }

    /// The names of the script's threads, by thread id.
    pub fn threads(&self) -> BTreeMap<i32, String> {
        self.outcome.calls.iter().map(|call| (call.tid, call.thread.clone())).collect()
    }

    /// How many calls the plugin had to record: starts, stops and states, except those on a null
    /// handle.
    pub fn calls(&self) -> u64 {
        let recorded = self.outcome.calls.iter().filter(|call| match call.verb.as_str() {
            "start" => call.status.is_some(),
            "stop" | "state" => call.status.is_some() && call.handle != Some(0),
            _ => false,
        });
        recorded.count() as u64
    }

    /// The plugin's lines on standard error, without the prefix.
    pub fn said(&self) -> Vec<&str> {
        said(&self.outcome.stderr)
    }
}

/// The plugin's lines in a text, without the prefix of its name, host and process.
pub fn said(stderr: &str) -> Vec<&str> {
    let lines = stderr.lines().filter(|line| line.starts_with("ncclscope["));
    lines.filter_map(|line| Some(line.split_once("]: ")?.1)).collect()
}

/// Asserts that the job was not disturbed: every call succeeded, and it ended by itself.
///
/// # Panics
///
/// If it was.
#[track_caller]
pub fn assert_undisturbed(recording: &Recording) {
    let Outcome { status, signal, calls, stderr } = &recording.outcome;
    assert_eq!((*status, *signal), (Some(0), None), "{stderr}");
    for call in calls {
        assert_eq!(call.status.unwrap_or(0), 0, "line {}", call.line);
    }
}

/// Asserts that a trace has no problems, apart from this many slices that are open on purpose.
///
/// # Panics
///
/// If it has any, with all of them.
#[track_caller]
pub fn assert_sound(trace: &Trace, open_slices: u64) {
    let problems = crate::perfetto::Check::new().open_slices(open_slices).run(trace);
    let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

/// A load that was sent, its report, and the traces that it left.
#[derive(Debug)]
pub struct Load {
    /// The host's own report.
    pub report: Json,
    /// What the plugin wrote to standard error.
    pub stderr: String,
    /// What it left.
    pub traces: Traces,
}

impl Load {
    /// Sends a load. `arguments` are those of `scripted-host flood` except the plugin, `settings`
    /// the environment.
    ///
    /// # Panics
    ///
    /// If it does not end well.
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

    /// A figure in the host's report.
    ///
    /// # Panics
    ///
    /// If there is none with this name.
    #[track_caller]
    pub fn sent(&self, name: &str) -> u64 {
        self.report[name].as_u64().unwrap_or_else(|| panic!("no figure `{name}` in {}", self.report))
    }
}
