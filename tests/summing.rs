//! `ncclscope summary`: the same figures at the end of a recording and from its file; the lines on
//! stderr; files that are not traces.

use crate::command::ncclscope;
use ncclscope_tests::layout;
use ncclscope_tests::play::{self, Play};
use ncclscope_tests::recording::Recording;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A script of `tests/scenarios`.
fn script(name: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "scenarios", &format!("{name}.txt")].iter().collect();
    fs::read_to_string(path).unwrap()
}

/// The scripts of `tests/scenarios` that come to an end.
fn scripts() -> Vec<(String, String)> {
    let folder = format!("{}/scenarios", env!("CARGO_MANIFEST_DIR"));
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let names = names.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned());
    let mut scripts: Vec<_> = names.filter(|name| name != "abort").map(|name| (name.clone(), script(&name))).collect();
    scripts.sort();
    scripts
}

#[track_caller]
fn record(script: &str, settings: &[(&str, &str)]) -> Recording {
    let recording = Recording::by(Play::new(script).env("NCCLSCOPE_PRESET", "full").envs(settings));
    assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
    recording
}

/// The file that the recording left beside its trace.
fn beside(trace: &Path) -> PathBuf {
    trace.with_extension("summary.txt")
}

#[track_caller]
fn summary(trace: &Path, more: &[&str]) -> String {
    let mut words = vec!["summary", trace.to_str().unwrap()];
    words.extend(more);
    ncclscope(&words).unwrap_or_else(|error| panic!("{error}"))
}

/// The rows of a table.
#[track_caller]
fn rows(trace: &Path, table: &str) -> Vec<Value> {
    let text = summary(trace, &["--format", "json"]);
    let whole: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(whole["format_version"], 1);
    whole["tables"][table].as_array().unwrap_or_else(|| panic!("no table {table}: {text}")).clone()
}

#[test]
fn the_process_and_its_file_give_the_same_figures() {
    let mut transfers = 0;
    for (name, script) in scripts() {
        for version in layout::VERSIONS {
            let play = Play::new(&script).interface(version).env("NCCLSCOPE_PRESET", "full");
            let recording = Recording::by(play);
            let trace = recording.traces.file();
            let said = fs::read_to_string(beside(&trace)).unwrap_or_else(|error| panic!("{name}, v{version}: {error}"));
            assert_eq!(summary(&trace, &[]), said, "{name}, v{version}");
            let sum = |row: &Value| row["transfers"].as_u64().unwrap();
            transfers += rows(&trace, "proxy").iter().map(sum).sum::<u64>();
        }
    }
    assert!(transfers > 100, "there was something to add up: {transfers}");
}

#[test]
fn figures_are_those_of_the_script() {
    let recording = record(&script("eager_allreduce"), &[]);
    let trace = recording.traces.file();
    let operations = rows(&trace, "operations");
    assert_eq!(operations.len(), 1, "{operations:?}");
    for (column, expected) in [
        ("rank", Value::from("scripted-host")),
        ("communicator", "data parallel".into()),
        ("operation", "AllReduce".into()),
        ("datatype", "ncclFloat32".into()),
        ("count", (4 << 20).into()),
        ("bytes", (16 << 20).into()),
        ("number", 3.into()),
        ("graph", 0.into()),
        ("timed", 0.into()),
        ("kernel_total_ns", Value::Null),
        ("algorithm", "RING".into()),
        ("protocol", "SIMPLE".into()),
        ("channels", "2".into()),
    ] {
        let found = &operations[0][column];
        assert!(
            *found == expected || column == "rank" && found.as_str().unwrap().contains("host"),
            "{column}: {found}"
        );
    }
    let calls = rows(&trace, "calls");
    assert_eq!((calls.len(), &calls[0]["number"]), (1, &3.into()), "{calls:?}");
    let buffers = rows(&trace, "buffers");
    assert_eq!((&buffers[0]["aligned_128"], &buffers[0]["buffers"]), (&3.into(), &"1".into()), "{buffers:?}");
    let proxy = rows(&trace, "proxy");
    assert_eq!(proxy.len(), 2, "one row for each direction: {proxy:?}");
    for row in &proxy {
        // Three operations with three transfers of 4 MiB each.
        assert_eq!((&row["operations"], &row["transfers"], &row["bytes"]), (&3.into(), &9.into(), &(36 << 20).into()));
    }
    let wait = |row: usize, what: &str| proxy[row][format!("{what}_wait_ns")].as_u64().unwrap();
    assert_eq!(proxy[0]["direction"], "send");
    // The script waits at least that long.
    assert!(wait(0, "gpu") >= 9 * 60_000 && wait(0, "network") >= 9 * 120_000, "{proxy:?}");
    assert!(wait(1, "flush") >= 9 * 10_000 && wait(1, "gpu") >= 9 * 40_000, "{proxy:?}");
    assert!(rows(&trace, "losses").iter().any(|row| row["what"] == "cost of the recording"));
}

#[test]
fn a_killed_process_leaves_a_summary_in_its_trace() {
    let recording = Recording::by(Play::new(script("abort")).env("NCCLSCOPE_PRESET", "full"));
    let trace = recording.traces.file();
    assert!(!beside(&trace).exists());
    assert!(!rows(&trace, "operations").is_empty());
    let losses = rows(&trace, "losses");
    assert_eq!(losses[0]["what"], "no last word", "{losses:?}");
    assert!(losses.iter().any(|row| row["what"] == "transfers_unfinished"), "{losses:?}");
}

#[test]
fn the_setting_says_where_it_goes() {
    let script = script("eager_allreduce");
    for (value, file, stderr) in
        [("all", true, true), ("file", true, false), ("stderr", false, true), ("off", false, false)]
    {
        let recording = record(&script, &[("NCCLSCOPE_SUMMARY", value), ("RANK", "0"), ("WORLD_SIZE", "2")]);
        let path = beside(&recording.traces.file());
        assert_eq!(path.exists(), file, "{value}");
        let said = &recording.outcome.stderr;
        let lines: Vec<&str> = said.lines().skip_while(|line| !line.contains("]: summary of rank 0")).collect();
        assert_eq!(!lines.is_empty(), stderr, "{value}: {said}");
        assert!(lines.len() <= 20, "{said}");
        assert_eq!(lines.iter().any(|line| line.contains(path.to_str().unwrap())), file && stderr, "{value}: {said}");
        // The command does not need the setting.
        assert!(summary(&recording.traces.file(), &[]).contains("AllReduce"));
        if file {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
    // Only world rank 0 prints it, and not if it shall be quiet.
    for settings in [&[("RANK", "1")][..], &[], &[("RANK", "0"), ("NCCLSCOPE_LOG", "quiet")]] {
        let recording = record(&script, settings);
        assert!(!recording.outcome.stderr.contains("summary of"), "{settings:?}: {}", recording.outcome.stderr);
    }
    let shared = record(&script, &[("NCCLSCOPE_FILE_MODE", "640")]);
    assert_eq!(fs::metadata(beside(&shared.traces.file())).unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn the_environment_is_what_the_setting_says() {
    let script = script("eager_allreduce");
    let secret = ("AWS_SECRET_ACCESS_KEY", "hidden");
    let values = |setting: &str| {
        let recording = record(&script, &[("NCCLSCOPE_ENV", setting), ("NCCL_ALGO", "Ring"), secret]);
        let trace = recording.traces.file();
        let bytes = recording.traces.open().bytes().to_vec();
        assert!(!bytes.windows(6).any(|part| part == b"hidden"), "it is in the trace");
        let environment = rows(&trace, "environment");
        assert!(!environment.iter().any(|row| row["name"] == secret.0), "{environment:?}");
        environment.iter().find(|row| row["name"] == "NCCL_ALGO").map(|row| row["value"].as_str().unwrap().to_owned())
    };
    assert_eq!(values("list").as_deref(), Some("Ring"));
    assert_eq!(values("names").as_deref(), Some("(set)"));
    assert_eq!(values("off"), None);
}

/// A job of four kinds of operations, so that there is a block to print.
fn several() -> String {
    let mut text = "user init world comm=0xabc rank=0 nranks=8 nodes=2 name=dp\n".to_owned();
    for (at, func) in ["AllReduce", "AllGather", "Broadcast", "ReduceScatter"].iter().enumerate() {
        text += &format!(
            "user start g{at} world Group\nuser start c{at} world Coll group=g{at} seqNumber=0 func={func} count={} \
             datatype=ncclFloat32 nChannels=2 nWarps=17 algo=RING proto=SIMPLE\nuser stop c{at}\nuser stop g{at}\n",
            1024 << at
        );
    }
    text + "user finalize world\nuser unload\nuser end\n"
}

#[test]
fn eight_processes_printing_at_once_break_no_row() {
    // All of them are rank 0, so all of them print.
    let folder = tempfile::tempdir().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let start = |number: usize| {
        let mut command = Command::new(play::host_path().unwrap());
        play::clean_environment(&mut command);
        command.args(["play", "--interface", "7", "--plugin"]).arg(play::plugin_path().unwrap()).arg("-");
        command.env("NCCLSCOPE_OUTPUT", folder.path().join(number.to_string())).env("RANK", "0");
        command.env("NCCLSCOPE_MIN_FREE", "0").env("NCCLSCOPE_PRESET", "full");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(writer.try_clone().unwrap());
        command.spawn().unwrap()
    };
    let mut hosts: Vec<_> = (0..8).map(start).collect();
    drop(writer);
    let inputs: Vec<_> = hosts.iter_mut().map(|host| host.stdin.take().unwrap()).collect();
    let text = several();
    // Everything but the end first, so that they end together.
    let (most, end) = text.split_at(text.rfind("user unload").unwrap());
    let mut inputs: Vec<_> = inputs
        .into_iter()
        .map(|mut input| {
            input.write_all(most.as_bytes()).unwrap();
            input
        })
        .collect();
    inputs.iter_mut().for_each(|input| input.write_all(end.as_bytes()).unwrap());
    drop(inputs);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    for host in &mut hosts {
        assert!(host.wait().unwrap().success(), "{said}");
    }
    let lines: Vec<&str> = said.lines().collect();
    let begins: Vec<usize> = (0..lines.len()).filter(|at| lines[*at].contains("]: summary of rank 0")).collect();
    assert_eq!(begins.len(), 8, "{said}");
    let block = |begin: usize| -> Vec<String> {
        let rows = lines[begin + 1..].iter().take_while(|line| line.starts_with("  "));
        rows.filter(|line| !line.contains("all of it: ")).map(|line| (*line).to_owned()).collect()
    };
    let first = block(begins[0]);
    assert_eq!(first.len(), 5, "a head and a row for each operation: {said}");
    for begin in begins {
        assert_eq!(block(begin), first, "{said}");
    }
}

#[test]
fn every_format_has_the_same_rows() {
    let recording = record(&script("grouped"), &[]);
    let trace = recording.traces.file();
    let whole: Value = serde_json::from_str(&summary(&trace, &["--format", "json"])).unwrap();
    let tables = whole["tables"].as_object().unwrap();
    let lines = summary(&trace, &["--format", "jsonl"]);
    let mut lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(lines.next().unwrap()["format_version"], 1);
    let mut found: Vec<Value> = lines.collect();
    for (name, rows) in tables {
        let rows = rows.as_array().unwrap();
        let csv = summary(&trace, &["--format", "csv", "--table", name]);
        let mut csv = csv.lines();
        assert_eq!(csv.next(), Some(&*format!("# ncclscope summary, format 1: {name}")));
        let columns = csv.next().unwrap().split(',').count();
        let of_csv: Vec<&str> = csv.collect();
        assert_eq!(of_csv.len(), rows.len(), "{name}");
        for (line, row) in of_csv.iter().zip(rows) {
            assert_eq!(row.as_object().unwrap().len(), columns, "{name}");
            for value in row.as_object().unwrap().values().filter(|value| value.is_number()) {
                let number = value.to_string();
                assert!(line.split(',').any(|cell| cell == number), "{name}: {line} has no {value}");
            }
        }
        let of_lines: Vec<Value> = found.extract_if(.., |row| row["table"] == **name).collect();
        assert_eq!(of_lines.len(), rows.len(), "{name}");
    }
    assert!(found.is_empty(), "{found:?}");
    let error = ncclscope(&["summary", trace.to_str().unwrap(), "--table", "sums"]).unwrap_err();
    assert!(error.contains("there is no table sums; the tables are environment, "), "{error}");
}

#[test]
fn a_folder_has_rows_for_each_rank_and_for_all() {
    let folder = tempfile::tempdir().unwrap();
    for rank in ["0", "1"] {
        let play = Play::new(several().replace("rank=0", &format!("rank={rank}"))).env("RANK", rank);
        let play = play.env("NCCLSCOPE_OUTPUT", folder.path()).env("NCCLSCOPE_MIN_FREE", "0").env("WORLD_SIZE", "2");
        assert_eq!(play.env("NCCL_ALGO", "Ring").run().unwrap().status, Some(0));
    }
    let operations = rows(folder.path(), "operations");
    let of = |rank: &str| -> Vec<(String, u64)> {
        let rows = operations.iter().filter(|row| row["rank"] == rank);
        rows.map(|row| (row["operation"].as_str().unwrap().to_owned(), row["number"].as_u64().unwrap())).collect()
    };
    assert_eq!((of("0").len(), of("1"), of("all").len()), (4, of("0"), 4), "{operations:?}");
    assert!(of("all").iter().all(|(_, number)| *number == 2), "{operations:?}");
    let environment = rows(folder.path(), "environment");
    let rank = |name: &str| -> Vec<&Value> {
        environment.iter().filter(|row| row["name"] == name).map(|row| &row["rank"]).collect()
    };
    assert_eq!(rank("NCCL_ALGO"), ["all"], "what all ranks have in common is one row");
    // The order is that of the files, whose names have pids.
    let mut ranks = rank("RANK");
    ranks.sort_by_key(|rank| rank.as_str());
    assert_eq!(ranks, ["0", "1"]);
    // Merged, the ranks are the same.
    let merged = folder.path().join("merged");
    ncclscope(&["merge", "-o", merged.to_str().unwrap(), folder.path().to_str().unwrap()]).unwrap();
    assert_eq!(rows(&merged, "operations"), operations);
    assert_eq!(rows(&merged, "proxy"), rows(folder.path(), "proxy"));
}

/// A place near this one that is inside a packet: a trace may also end after a whole one.
fn within_a_packet(trace: &[u8], near: usize) -> usize {
    let mut rest = trace;
    loop {
        // After the field's number.
        rest = &rest[1..];
        let length = prost::decode_length_delimiter(&mut rest).expect("a packet");
        rest = &rest[length..];
        let end = trace.len() - rest.len();
        if end > near {
            return end - 1;
        }
    }
}

#[test]
fn files_that_are_no_trace_are_refused_and_damaged_ones_read_up_to_the_fault() {
    let folder = tempfile::tempdir().unwrap();
    let recording = Recording::by(
        Play::new(script("eager_allreduce")).env("NCCLSCOPE_PRESET", "full").env("NCCLSCOPE_COMPRESS", "0"),
    );
    let whole = fs::read(recording.traces.file()).unwrap();
    let with = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let refused = |path: &Path| ncclscope(&["summary", path.to_str().unwrap()]).unwrap_err();
    let foreign = refused(&with("foreign.json", br#"{"schemaVersion": 1, "traceEvents": []}"#));
    assert!(foreign.contains("ncclscope import"), "{foreign}");
    let text = refused(&with("text", b"no trace at all"));
    assert!(text.contains("this is not"), "{text}");
    let empty = refused(&folder.path().join("missing"));
    assert!(empty.contains("missing"), "{empty}");
    let middle = within_a_packet(&whole, whole.len() / 2);
    for cut in [middle, whole.len() - 3] {
        let path = with("cut.perfetto-trace", &whole[..cut]);
        let losses = rows(&path, "losses");
        let has = |what: &str| losses.iter().any(|row| row["what"] == what);
        // The last packet comes after the recording's last word.
        assert_eq!(has("no last word"), cut == middle, "{losses:?}");
        assert!(has("file"), "the unfinished packet: {losses:?}");
    }
    let mut damaged = whole.clone();
    // The first half describes the arguments.
    let late = damaged.len() - 3000;
    damaged[late..late + 1000].fill(0xff);
    let path = with("damaged.perfetto-trace", &damaged);
    let mut said = Vec::new();
    let result = ncclscope::cli::run(["ncclscope", "summary", path.to_str().unwrap()], &mut said);
    let (said, error) = (String::from_utf8_lossy(&said).into_owned(), result.unwrap_err().to_string());
    assert!(error.contains("damaged.perfetto-trace"), "{error}");
    assert!(said.contains("AllReduce"), "what comes before the fault is added up: {said}");
}

#[test]
fn no_durations_are_listed_without_kernels() {
    let recording = record(&script("eager_allreduce"), &[]);
    let text = summary(&recording.traces.file(), &["--durations"]);
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.lines().nth(1).unwrap().ends_with(",op_count,[duration-us;*]"), "{text}");
}

/// A shell names the summaries of a folder with its traces.
#[test]
fn summaries_among_traces_are_passed_over() {
    let recording = record(&script("eager_allreduce"), &[]);
    let trace = recording.traces.file();
    let summary = beside(&trace);
    let [trace, summary] = [&trace, &summary].map(|path| path.to_str().unwrap());
    let merged = Path::new(trace).with_file_name("merged.perfetto-trace");
    for words in [&["info"][..], &["summary"], &["merge", "-o", merged.to_str().unwrap()]] {
        let said = ncclscope(&[words, &[trace, summary]].concat()).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        assert!(!said.contains("summary.txt"), "{words:?}: {said}");
    }
    let error = ncclscope(&["info", summary]).unwrap_err().to_string();
    assert!(error.contains("summary.txt"), "{error}");
}
