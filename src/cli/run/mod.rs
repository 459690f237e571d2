//! `ncclscope run`: runs a job with the library loaded into it, and says what was recorded.
//!
//! The job's environment is prepared here; nothing else about the job changes. If a launcher
//! started several of us, only rank 0 stays to report; the others become the job itself. The
//! process that stays is transparent: signals sent to it reach the job once, and it ends as the job
//! ends.

mod cause;
mod launcher;
mod plan;
mod processes;
pub(super) mod signals;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use std::{env, thread};

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, FromArgMatches};

use self::cause::Evidence;
use self::launcher::Launcher;
use self::plan::Plan;
use self::processes::Processes;
use self::signals::PassingOn;
use super::compare::runs;
use super::{Failure, Reason, export, library, survey};
use crate::config::{Config, SETTINGS, Setting, Values};
use crate::sys::{self, job};
use crate::trace::names;
use crate::trace::reader::{self, proto::perfetto::protos::track_event::Type};
use crate::trace::words::instant;

/// The command line of `ncclscope run`.
#[derive(Args)]
pub(super) struct Wish {
    /// Record from the first kernel on: CUDA loads the library in cuInit, too, by
    /// CUDA_INJECTION64_PATH
    #[arg(long)]
    inject: bool,
    /// Override NCCL_PROFILER_PLUGIN and CUDA_INJECTION64_PATH if they name something else
    #[arg(long)]
    replace: bool,
    /// Only print what to export, for a script of your own
    #[arg(long)]
    print_env: bool,
    /// Also write the traces as tables after the job, into `tables` beside them
    ///
    /// Where a launcher starts several of us, each writes those of its own processes, on the node
    /// where they ran. The job's exit code stays; what cannot be written is said. docs/tables.md
    /// describes the tables.
    #[arg(long, value_enum, value_name = "FORMAT", verbatim_doc_comment)]
    export: Option<Export>,
    /// The library as the job finds it, if that is not the one of `ncclscope lib`
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// The job: a program, or a launcher with a program
    #[arg(trailing_var_arg = true, required_unless_present = "print_env", value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What traces are exported as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Export {
    /// Parquet files
    Parquet,
}

/// The settings as flags: `--max-size 4G` is `NCCLSCOPE_MAX_SIZE=4G`.
#[derive(Clone, Debug)]
struct Settings(Vec<(&'static str, String)>);

/// All settings but the rank, which is different in every process.
fn settable() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| setting.name != "NCCLSCOPE_RANK")
}

impl Args for Settings {
    fn augment_args(command: clap::Command) -> clap::Command {
        settable().fold(command, |command, setting| {
            let name = setting.name;
            let flag = name.trim_start_matches("NCCLSCOPE_").to_ascii_lowercase().replace('_', "-");
            let mut arg = Arg::new(name)
                .long(flag)
                .value_name(value_name(setting))
                .help(gist(setting.help))
                .long_help(folded(&format!(
                    "{name}: {}. Value: {}; default: {}",
                    setting.help, setting.values, setting.default
                )))
                .help_heading("Settings")
                .value_parser(move |value: &str| checked(name, value));
            if setting.is_switch() {
                arg = arg.num_args(0..=1).require_equals(true).default_missing_value("1");
            }
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Settings::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Settings, clap::Error> {
        let said = settable().filter_map(|it| Some((it.name, matches.get_one::<String>(it.name)?.clone())));
        Ok(Settings(said.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Settings::from_arg_matches(matches)?;
        Ok(())
    }
}

/// What stands for a setting's value in the help.
fn value_name(setting: &Setting) -> &'static str {
    const BEGINNINGS: [(&str, &str); 5] =
        [("path", "FILE"), ("folder", "FOLDER"), ("a list", "LIST"), ("two", "FROM..TO"), ("6", "MODE")];
    match setting.values {
        Values::Words(_) if setting.is_switch() => "0|1",
        Values::Words(_) => "WORD",
        Values::Bytes(..) => "SIZE",
        Values::Number(..) => "NUMBER",
        Values::Text(text) => {
            BEGINNINGS.iter().find(|(begin, _)| text.starts_with(begin)).map_or("TEXT", |(_, name)| name)
        }
    }
}

/// The first clause of a setting's help, for `-h`; of a long one, the part before a comma.
fn gist(help: &str) -> &str {
    const LONG: usize = 80;
    let until = |text: &'_ str, marks: &[&str]| marks.iter().filter_map(|mark| text.find(mark)).min();
    let clause = &help[..until(help, &[": ", "; ", ". "]).unwrap_or(help.len())];
    let end = until(clause, &[", "]).filter(|_| clause.len() > LONG);
    &clause[..end.unwrap_or(clause.len())]
}

/// A text in lines of at most 90 characters, if its words allow it.
fn folded(text: &str) -> String {
    const WIDTH: usize = 90;
    let mut lines = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let is_first = length == 0;
        length += word.chars().count() + usize::from(!is_first);
        if length > WIDTH {
            lines.push('\n');
            length = word.chars().count();
        } else if !is_first {
            lines.push(' ');
        }
        lines.push_str(word);
    }
    lines
}

/// A value that the library will accept. It is checked here, where the user can correct it.
fn checked(name: &str, value: &str) -> Result<String, Reason> {
    let variable = |asked: &str| (asked == name).then(|| value.to_owned());
    match Config::read(&variable, std::iter::empty()).complaints.first() {
        None => Ok(value.to_owned()),
        Some(complaint) => {
            let why = complaint.split("; using the default").next().unwrap_or_default();
            // The flag and the value are named before it.
            Err(why.trim_start_matches(&format!("{name}={value}: ")).into())
        }
    }
}

pub(super) fn run(wish: Wish, out: &mut dyn Write) -> Result<(), Failure> {
    if let Some(value) = wish.command.first().filter(|it| *it == "0" || *it == "1") {
        let value = value.display();
        return Err(Failure::Usage(clap::Error::raw(
            ErrorKind::ValueValidation,
            format!("{value} is no program; a switch has its value after a =, as in --nvtx={value}\n"),
        )));
    }
    let variable = |name: &str| env::var(name).ok();
    let library = match &wish.library {
        Some(library) => std::path::absolute(library).map_err(Reason::file(library))?,
        None => library::find()?,
    };
    let here = env::current_dir().map_err(Reason::failed("find the current folder"))?;
    let rank = launcher::rank_variable(&variable);
    let launcher = match rank {
        Some(rank) => launcher::launcher(&sys::host_name(), launcher::ancestor(rank), &variable),
        None => fresh(&variable),
    };
    let asked = plan::Wish { inject: wish.inject, replace: wish.replace, settings: wish.settings.0 };
    let plan = plan::plan(&asked, &library, &launcher, &here, &|name| env::var_os(name));
    if wish.print_env {
        plan.remarks.iter().for_each(|remark| say(remark));
        return Ok(out.write_all(plan::exports(&plan).as_bytes()).map_err(Reason::Output)?);
    }

    let mut command = Command::new(&wish.command[0]);
    command.args(&wish.command[1..]).envs(plan.variables.iter().map(|(name, value)| (name, value)));
    let started = |error: io::Error| {
        eprintln!("ncclscope: failed to start {}: {error}", wish.command[0].display());
        // The exit codes of a shell.
        Failure::Exit(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
    };
    let config = Config::read(&|name| plan.value(name).or_else(|| variable(name)), std::iter::empty());
    if rank.is_some() && !config.speaks() && wish.export.is_none() {
        return Err(started(command.exec()));
    }
    let how = Watching {
        switched_off: config.is_off(),
        rank,
        // Of several, only one says what became of the recording.
        is_quiet: rank.is_some() && !config.speaks(),
        export: wish.export,
    };
    let status = watched(&mut command, &plan, &library, how).map_err(started)?;
    match (status.signal(), status.code()) {
        (Some(signal), _) => job::end_by_signal(signal),
        (None, Some(0)) => Ok(()),
        (None, code) => Err(Failure::Exit(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))),
    }
}

/// A run without a name from a launcher.
fn fresh(variable: &dyn Fn(&str) -> Option<String>) -> Launcher {
    let now = sys::utc(sys::realtime_ns() / 1_000_000_000);
    let run = format!("{}-{now}-{}", sys::host_name(), std::process::id());
    let folder = match crate::config::job(variable) {
        Some(job) => format!("{job}-{now}"),
        None => now,
    };
    Launcher { run: Some(run), folder }
}

/// How a job is watched.
#[derive(Clone, Copy)]
struct Watching {
    switched_off: bool,
    /// The variable with our rank, where a launcher has started others like us.
    rank: Option<&'static str>,
    is_quiet: bool,
    export: Option<Export>,
}

/// Runs the job to its end, and says what became of the recording.
fn watched(command: &mut Command, plan: &Plan, library: &Path, how: Watching) -> io::Result<ExitStatus> {
    let Watching { switched_off, rank, is_quiet, export } = how;
    let inner = rank.is_some();
    let say = |line: &str| {
        if !is_quiet {
            say(line);
        }
    };
    plan.remarks.iter().for_each(|remark| say(remark));
    let not_loadable = job::try_load(library).err().map(|error| error.to_string());
    if let Some(words) = &not_loadable {
        say(&format!("the job will not be recorded: {words}"));
    }
    let not_writable = job::may_write(&plan.output).err().map(|error| error.to_string());
    if let Some(words) = &not_writable {
        say(&format!("the job will not be recorded: the folder of its traces cannot be written: {words}"));
    }
    // The folder of a launcher's run is shared by all its ranks, and by no other run.
    let before = if inner { Vec::new() } else { files(&plan.output) };

    let signals = PassingOn::take();
    let mut child = job::spawn_bound(command)?;
    let pid = child.id();
    signals.lead_to(Some(pid));
    let (end, ended) = channel::<()>();
    let looks = thread::Builder::new().name("processes".into()).spawn(move || {
        let mut processes = Processes::new(Path::new("/proc"), pid);
        let mut pause = Duration::from_millis(20);
        while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            processes.look();
            let longest = if processes.all_well() { Duration::from_secs(10) } else { Duration::from_secs(1) };
            pause = (pause * 3 / 2).min(longest);
        }
        processes.seen()
    });
    job::wait_for_end(pid);
    signals.lead_to(None);
    let status = child.wait()?;
    drop(end);
    let seen = looks.ok().and_then(|looks| looks.join().ok()).unwrap_or_default();

    let evidence = Evidence {
        not_loadable,
        other_plugin: plan.other_plugin.as_ref().map(|other| other.to_string_lossy().into_owned()),
        switched_off,
        processes: seen,
        not_writable,
        empty: 0,
        signal: status.signal(),
    };
    let new = files(&plan.output).into_iter().filter(|file| !before.contains(file));
    let (traces, summaries): (Vec<PathBuf>, Vec<PathBuf>) = new.partition(|file| runs::is_trace(file));
    let mut pids: Vec<u32> = evidence.processes.iter().map(|seen| seen.pid).collect();
    account(&traces, &summaries, evidence, library, inner).iter().for_each(|line| say(line));
    if export == Some(Export::Parquet) {
        pids.push(pid);
        let rank = rank.and_then(|variable| env::var(variable).ok()?.parse().ok());
        let is_own = |trace: &&PathBuf| !inner || is_own(trace, &pids, rank);
        export_parquet(&traces.iter().filter(is_own).cloned().collect::<Vec<_>>());
    }
    drop(signals);
    Ok(status)
}

/// Whether a trace comes from one of our processes on this host. Its name, `node7.4711.1795000000`,
/// has the process id; a process that was too short-lived to be seen is recognised by our rank.
fn is_own(trace: &Path, pids: &[u32], rank: Option<u32>) -> bool {
    let name = trace.file_name().unwrap_or_default().to_string_lossy();
    let Some(rest) = name.strip_prefix(&sys::host_name()).and_then(|rest| rest.strip_prefix('.')) else { return false };
    let pid = rest.split('.').next().and_then(|pid| pid.parse().ok());
    pid.is_some_and(|pid| pids.contains(&pid)) || rank.is_some() && rank_of(trace) == rank
}

/// The rank that the first process of a trace has.
fn rank_of(trace: &Path) -> Option<u32> {
    let mut rank = None;
    let found = reader::read_file::<reader::Error>(trace, |packet| {
        let descriptor = packet.track_descriptor();
        let Some(process) = descriptor.as_ref().and_then(|descriptor| descriptor.process.as_ref()) else {
            return Ok(());
        };
        rank = survey::rank(process.process_name());
        // No need to read on.
        Err(reader::Error::NotATrace)
    });
    rank.filter(|_| found.is_err())
}

/// Writes traces as tables beside them, and says so. The job has ended: nothing here changes its
/// exit code.
fn export_parquet(traces: &[PathBuf]) {
    let full: Vec<PathBuf> = traces.iter().filter(|trace| !is_empty(trace)).cloned().collect();
    let Some(folder) = full.first().and_then(|trace| trace.parent()) else { return };
    let mut said = Vec::new();
    let written = export::parquet(&full, &folder.join("tables"), None, &mut said);
    String::from_utf8_lossy(&said).lines().for_each(say);
    if let Err(reason) = written {
        say(&format!("not everything was exported: {reason}"));
    }
}

/// What became of the recording, one line each. If `inner`, other ranks may not have ended yet.
/// Where there are no traces, summaries may be all that was asked for.
fn account(
    traces: &[PathBuf],
    summaries: &[PathBuf],
    mut evidence: Evidence,
    library: &Path,
    inner: bool,
) -> Vec<String> {
    let (empty, full): (Vec<&PathBuf>, Vec<&PathBuf>) = traces.iter().partition(|trace| is_empty(trace));
    evidence.empty = empty.len();
    let mut lines = Vec::new();
    let (full, what, next) = match full.is_empty() {
        // There is nothing to make of one that is a text.
        true => {
            (summaries.iter().collect(), "summary", summaries.iter().any(|it| runs::is_table(it)).then_some("summary"))
        }
        false => (full, "trace", Some("diagnose")),
    };
    if full.is_empty() {
        lines.push(format!("nothing was recorded: {}", cause::cause(&evidence, library)));
        return lines;
    }
    let bytes = full.iter().filter_map(|trace| Some(fs::metadata(trace).ok()?.len())).sum();
    let unfinished = inner && !empty.is_empty();
    let (count, so_far) = if unfinished { (traces.len(), " so far") } else { (full.len(), "") };
    let files = match (count, what) {
        (1, what) => format!("1 {what}"),
        (count, "summary") => format!("{count} summaries"),
        (count, what) => format!("{count} {what}s"),
    };
    let mut folders: Vec<PathBuf> = full.iter().filter_map(|trace| trace.parent()).map(shown).collect();
    folders.dedup();
    let first = folders.first().cloned().unwrap_or_default();
    let place = match &folders[..] {
        [_] => first.display().to_string(),
        _ => format!("{} and {} more folders", first.display(), folders.len() - 1),
    };
    lines.push(format!("{files}, {}{so_far}, in {place}", names::size(bytes)));
    if !empty.is_empty() && !unfinished {
        lines.push(format!("{} more with nothing in them: their processes were killed within a second", empty.len()));
    }
    for (why, pids) in cause::without_library(&evidence.processes, library).certain {
        lines.push(format!("not recorded: {}: {why}", cause::processes(&pids)));
    }
    let folders: Vec<String> = folders.iter().map(|it| names::quoted(it)).collect();
    lines.extend(next.map(|next| format!("next: ncclscope {next} {}", folders.join(" "))));
    lines
}

/// A path as one would type it here.
fn shown(path: &Path) -> PathBuf {
    let here = env::current_dir().unwrap_or_default();
    match path.strip_prefix(&here) {
        Ok(inside) if !inside.as_os_str().is_empty() => inside.to_owned(),
        _ => path.to_owned(),
    }
}

/// The traces and summaries in a folder with placeholders in its name.
fn files(output: &Path) -> Vec<PathBuf> {
    let has_placeholder = |part: &Component<'_>| part.as_os_str().to_string_lossy().contains('%');
    let base: PathBuf = output.components().take_while(|part| !has_placeholder(part)).collect();
    let deep = output.components().count() - base.components().count();
    let mut folders = vec![(base, deep)];
    let mut files = Vec::new();
    while let Some((folder, deep)) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if runs::is_trace(&path) || runs::is_summary(&path) {
                files.push(path);
            } else if deep > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push((path, deep - 1));
            }
        }
    }
    files.sort();
    files
}

/// Whether a trace contains nothing: no slice, and no last word.
fn is_empty(trace: &Path) -> bool {
    /// A larger trace contains something.
    const SMALL: u64 = 1 << 20;
    if !fs::metadata(trace).is_ok_and(|facts| facts.len() < SMALL) {
        return false;
    }
    let mut is_empty = true;
    // What cannot be read further is cut off there.
    let read = reader::read_file::<reader::Error>(trace, |packet| {
        if let Some(event) = &packet.event {
            is_empty &= event.r#type() != Type::SliceBegin && event.name != instant::ENDED;
        }
        Ok(())
    });
    is_empty && !matches!(read, Err(reader::Error::Io(_)))
}

fn say(line: &str) {
    eprintln!("ncclscope: {line}");
}

#[cfg(test)]
mod tests {
    use crate::cli::run as typed;

    fn refused(words: &[&str]) -> String {
        let failed = typed(["ncclscope", "run"].iter().chain(words), &mut Vec::new());
        failed.expect_err("it must not start").to_string()
    }

    #[test]
    fn mistyped_flags_are_not_taken_for_the_program() {
        let said = refused(&["--presett", "light", "--", "true"]);
        assert!(said.contains("unexpected argument '--presett'") && said.contains("'--preset'"), "{said}");
        let said = refused(&["--nvtx", "1", "--", "true"]);
        assert!(said.contains("--nvtx=1"), "{said}");
    }

    #[test]
    fn a_bad_value_is_said_once() {
        let said = refused(&["--preset", "nope", "--", "true"]);
        let wrong = "invalid value 'nope' for '--preset <WORD>': expected metrics | light";
        assert!(said.contains(wrong) && said.matches("nope").count() == 1, "{said}");
    }

    #[test]
    fn the_help_fits_a_screen() {
        for (flag, width) in [("-h", 130), ("--help", 110)] {
            let said = refused(&[flag]);
            let wide: Vec<&str> = said.lines().filter(|line| line.chars().count() > width).collect();
            assert!(wide.is_empty(), "{flag}: {wide:#?}");
        }
    }
}
