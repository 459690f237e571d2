//! `ncclscope compare`: our traces against files of other tools from real GPUs, a file of the same
//! run, and another run.

use crate::foreign::{data, ncclscope, unpacked};
use ncclscope::import::{self, Profile};
use ncclscope::trace::reader;
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::Recording;
use prost::Message as _;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A process that calls AllReduce `operations` times, each launch taking 80 µs.
fn recorded(operations: usize, count: &str) -> Recording {
    Recording::of(&script(operations, count))
}

fn script(operations: usize, count: &str) -> String {
    let mut script = "user init world comm=0x5c09e rank=0 nranks=2 nodes=2 name=dp\n".to_owned();
    for number in 0..operations {
        let _ = write!(
            script,
            "user start g{number} world GroupApi groupDepth=1\n\
             user start api{number} world CollApi parent=g{number} func=AllReduce count={count} datatype=ncclFloat32 stream=0x10\n\
             user stop api{number}\n\
             user start launch{number} world KernelLaunch parent=g{number} stream=0x10\n\
             user sleep 80us\n\
             user stop launch{number}\n\
             user stop g{number}\n\
             user sleep {}us\n",
            200 + number * number * 31 % 400
        );
    }
    script + "user finalize world\n"
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn compare(words: &[&str], a: &Path, b: &Path) -> Result<String, String> {
    ncclscope(&[&["compare"], words].concat(), &[a, b])
}

/// The report as data, and as text.
#[track_caller]
fn report(words: &[&str], a: &Path, b: &Path) -> (Value, String) {
    let folder = folder();
    let json = folder.path().join("report.json");
    let words: Vec<&str> = words.iter().copied().chain(["--json", json.to_str().unwrap()]).collect();
    let text = compare(&words, a, b).unwrap_or_else(|error| panic!("{error}"));
    (serde_json::from_slice(&fs::read(&json).unwrap()).unwrap(), text)
}

fn fact<'a>(report: &'a Value, what: &str, side: &str) -> &'a Value {
    let all = report["knowledge"].as_array().unwrap();
    &all.iter().find(|fact| fact["what"] == what).unwrap_or_else(|| panic!("nothing about {what}"))[side]
}

#[test]
fn an_nsight_file_of_another_run_says_less_about_each_kernel() {
    let ours = recorded(3, "1Mi");
    let folder = folder();
    let theirs = folder.path().join("report.sqlite");
    fs::write(&theirs, unpacked("nsys_2xh100_alltoall.sqlite.gz")).unwrap();
    let markdown = folder.path().join("report.md");
    let (report, text) = report(&["--markdown", markdown.to_str().unwrap()], &ours.traces.file(), &theirs);
    assert_eq!(report["case"], "two-runs");
    assert_eq!(report["b"]["nccl_kernels"], 66);
    let operations = fact(&report, "operations", "b");
    assert_eq!((operations["known"].as_u64(), operations["of"].as_u64()), (Some(66), Some(66)));
    assert!(
        operations["remark"].as_str().unwrap().contains("66 kernels carry 264 point-to-point operations between them")
    );
    for (what, known, of) in [("size", 0, 66), ("communicator", 0, 66), ("peers", 0, 264), ("launching call", 64, 66)] {
        assert_eq!(
            (fact(&report, what, "b")["known"].as_u64(), fact(&report, what, "b")["of"].as_u64()),
            (Some(known), Some(of)),
            "{what}"
        );
    }
    // Moments of two runs are not compared, and no process of one is a process of the other.
    assert!(report.get("starts").is_none() && !text.contains("STARTS"), "{text}");
    assert_eq!(report["answer"]["verdict"], "cannot-tell");
    assert!(text.contains("Cannot tell whether B is slower, because no rank is in both."), "{text}");
    let send_recv =
        report["kernels"].as_array().unwrap().iter().find(|row| row["name"] == "ncclDevKernel_SendRecv").unwrap();
    assert_eq!((send_recv["b"]["count"].as_u64(), send_recv["a"].is_null()), (Some(66), true));
    assert!(fs::read_to_string(markdown).unwrap().contains("| ncclDevKernel_SendRecv "));
}

#[test]
fn a_kineto_file_of_another_run_knows_process_groups() {
    let ours = recorded(3, "1Mi");
    let (report, text) = report(&[], &ours.traces.file(), &data("kineto_1rank_nccl.json.gz"));
    assert_eq!((report["case"].as_str(), report["b"]["nccl_kernels"].as_u64()), (Some("two-runs"), Some(21)));
    let groups = fact(&report, "communicator", "b");
    assert_eq!(
        (groups["known"].as_u64(), groups["remark"].as_str()),
        (Some(21), Some("default_pg (0), 2 ranks [0, 1]"))
    );
    assert!(text.contains("They differ: communicators: dp of 2 ranks and default_pg (0) of 2 ranks."), "{text}");
    // The data replace the text if both go to the same place.
    let alone = compare(&["--json", "-"], &ours.traces.file(), &data("kineto_1rank_nccl.json.gz")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&alone).expect("nothing but JSON"), report);
}

/// What Kineto would have written beside us: a call into CUDA inside each of our launches, and its
/// kernel. Its clock is ahead by `ahead_ns`, and it sees only some of the launches.
fn kineto_beside(ours: &Profile, ahead_ns: i64, seen: std::ops::Range<usize>) -> Value {
    let pid = ours.processes[0].pid;
    let to_utc = ours.clock.to_utc.unwrap().ns;
    let micros = |ns: i64| serde_json::from_str::<Value>(&format!("{}.{:03}", ns / 1000, ns % 1000)).unwrap();
    let mut events = Vec::new();
    for (number, launch) in ours.launches.iter().enumerate().filter(|(number, _)| seen.contains(number)) {
        let start = launch.span.start.0 + to_utc + ahead_ns + 10_000;
        events
            .push(json!({"ph": "X", "cat": "cuda_runtime", "name": "cuLaunchKernelExC", "pid": pid, "tid": launch.tid,
            "ts": micros(start), "dur": micros(20_000), "args": {"correlation": number + 1}}));
        events.push(json!({"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)", "pid": 0, "tid": 7,
            "ts": micros(start + 35_000), "dur": micros(50_000), "args": {"device": 0, "stream": 7, "correlation": number + 1}}));
    }
    json!({"schemaVersion": 1, "traceEvents": events})
}

#[test]
fn two_files_of_one_run_are_aligned_by_their_launches() {
    let recording = recorded(12, "1Mi");
    let ours = import::open(&recording.traces.file()).unwrap();
    assert_eq!(ours.launches.len(), 12);
    let folder = folder();
    for (name, ahead_ns, seen) in [("ahead.json", 3_000_000, 0..12), ("behind.json", -700_000, 4..11)] {
        let theirs = folder.path().join(name);
        let launches = seen.len() as u64;
        fs::write(&theirs, kineto_beside(&ours, ahead_ns, seen).to_string()).unwrap();
        let (report, text) = report(&[], &recording.traces.file(), &theirs);
        assert_eq!(report["case"], "same-run");
        let offset = &report["starts"]["offset"];
        assert_eq!(offset["launches"].as_u64(), Some(launches), "{text}");
        let (beyond, error) = (offset["beyond_wall_clocks_ns"].as_i64().unwrap(), offset["error_ns"].as_i64().unwrap());
        assert!(error > 0 && error < 1_000_000, "{offset}");
        assert!((beyond + ahead_ns).abs() <= error, "{beyond} ± {error} is not {}", -ahead_ns);
        // 45 µs after the start of the launch, within the stated error of the clocks.
        let moments = report["starts"]["differences"].as_array().unwrap();
        let kernels =
            moments.iter().find(|it| it["what"] == "their kernel starts after our KernelLaunch starts").unwrap();
        assert!((kernels["ns"]["median"].as_f64().unwrap() - 45_000.0).abs() <= error as f64, "{kernels} {offset}");
        assert!(text.contains("One run, recorded by two tools"), "{text}");
    }
    // A recording of other processes at the same time is neither.
    let mut others = kineto_beside(&ours, 0, 0..12);
    for event in others["traceEvents"].as_array_mut().unwrap() {
        event["pid"] = json!(if event["cat"] == "kernel" { 0 } else { 1 });
    }
    let theirs = folder.path().join("others.json");
    fs::write(&theirs, others.to_string()).unwrap();
    let error = compare(&[], &recording.traces.file(), &theirs).unwrap_err();
    assert!(error.contains("no process in common"), "{error}");
    assert!(compare(&["--as", "two-runs"], &recording.traces.file(), &theirs).is_ok());
}

#[test]
fn two_runs_without_kernels_are_compared_by_their_calls() {
    let (first, second) = (recorded(20, "1Mi"), recorded(20, "1Mi"));
    let (report, text) = report(&[], &first.traces.file(), &second.traces.file());
    assert_eq!(report["case"], "two-runs");
    assert_eq!(report["differences"], json!({"of_jobs": [], "settings": [], "others": []}), "{text}");
    let rows = report["slower"]["rows"].as_array().unwrap();
    let call = rows.iter().find(|row| row["class"] == "call").unwrap_or_else(|| panic!("no calls in {rows:?}"));
    assert_eq!((call["part"].as_str(), call["what"].as_str()), (Some("works"), Some("AllReduce 4 MiB f32 on dp")));
    // 20 calls make 19 steps, two of them warm-up.
    let steps = &report["slower"]["steps"];
    assert_eq!((steps["a"]["count"].as_u64(), steps["b"]["count"].as_u64()), (Some(17), Some(17)), "{text}");
    assert!(call["change"]["probability"].is_f64(), "{call}");
    let source = json!({"by": "repeats", "from": "AllReduce 4 MiB f32 on dp", "times": 1});
    assert_eq!(report["slower"]["ranks"][0]["source"], source);

    // There is nothing to compare other sizes with, and the report says so.
    let other = recorded(20, "2Mi");
    let (report, text) = self::report(&[], &first.traces.file(), &other.traces.file());
    let only = ["only A has AllReduce 4 MiB f32 on dp", "only B has AllReduce 8 MiB f32 on dp"];
    assert_eq!(report["differences"]["others"], json!(only));
    only.iter().for_each(|only| assert!(text.contains(&format!("They differ: {only}.")), "{text}"));
}

#[test]
fn a_variable_of_nccl_that_only_one_run_has_is_said() {
    let of = |protocol: Option<&str>| {
        let play = Play::new(script(5, "1Mi")).env("OMP_NUM_THREADS", "1");
        Recording::by(protocol.into_iter().fold(play, |play, value| play.env("NCCL_PROTO", value)))
    };
    let (first, second) = (of(None), of(Some("LL")));
    let (report, text) = report(&["--as", "two-runs"], &first.traces.file(), &second.traces.file());
    let said = "NCCL_PROTO is unset in A, and LL in B";
    assert_eq!(report["differences"]["settings"], json!([said]), "{text}");
    assert!(text.contains(&format!("Settings differ: {said}.")), "{text}");
}

/// A recording of one of several ranks.
fn of_rank(rank: i32) -> Recording {
    let script = format!(
        "user init world comm=0x5c09e rank={rank} nranks=2 nodes=2 name=dp\n\
         user start g world GroupApi groupDepth=1\n\
         user start api world CollApi parent=g func=AllReduce count=1Mi datatype=ncclFloat32 stream=0x10\n\
         user stop api\n\
         user stop g\n\
         user finalize world\n"
    );
    let recording = Recording::by(Play::new(&script).env("RANK", rank.to_string()));
    assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
    recording
}

#[test]
fn a_folder_is_one_run_with_all_its_files() {
    let folder = folder();
    let run = |name: &str, ranks: &[i32]| {
        let run = folder.path().join(name);
        fs::create_dir(&run).unwrap();
        for (number, rank) in ranks.iter().enumerate() {
            fs::copy(of_rank(*rank).traces.file(), run.join(format!("{number}.perfetto-trace"))).unwrap();
        }
        fs::write(run.join("notes.txt"), "of nobody's interest").unwrap();
        run
    };
    let (both, one, twice) = (run("both", &[0, 1]), run("one", &[1]), run("twice", &[1, 1]));
    let (report, text) = report(&[], &both, &one);
    assert_eq!(report["a"]["processes"].as_array().unwrap().len(), 2);
    let first = text.lines().next().unwrap();
    assert!(first.ends_with("what follows may be due to that alone: ranks in the files: 0, 1 and 1."), "{first}");
    // Each of them with the data of its own rank.
    let ranks = report["slower"]["ranks"].as_array().unwrap();
    assert_eq!((ranks.len(), ranks[0]["a"].as_str()), (1, Some("rank 1")));

    for (path, reason) in [(&twice, "each rank once"), (&run("none", &[]), "the folder has no *.perfetto-trace")] {
        let error = compare(&[], path, &one).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    fs::copy(data("kineto_1rank_nccl.json.gz"), one.join("kineto.json.gz")).unwrap();
    let error = compare(&[], &both, &one).unwrap_err();
    assert!(error.contains("a folder must hold the files of one run by one tool"), "{error}");
}

#[test]
fn pointless_comparisons_are_refused() {
    let ours = recorded(3, "1Mi");
    let file = ours.traces.file();
    let kineto = data("kineto_1rank_nccl.json.gz");
    for (a, b, reason) in [(&file, &file, "the same recording"), (&kineto, &kineto, "the same recording")] {
        let error = compare(&[], a, b).unwrap_err();
        assert!(error.contains(reason), "{reason}: {error}");
    }
    let error = compare(&[], &file, Path::new("/nonexistent/report.sqlite")).unwrap_err();
    assert!(error.starts_with("/nonexistent/report.sqlite: failed to read it"), "{error}");
    let error = compare(&["--as", "same-run"], &file, &kineto).unwrap_err();
    assert!(error.contains("do not overlap"), "{error}");
}

fn merge(files: &[&Path], with: &Path) -> Result<String, String> {
    let folder = folder();
    let output = folder.path().join("merged.perfetto-trace");
    let said = ncclscope(&["merge", "-o"], &[&[&*output, Path::new("--with"), with], files].concat())?;
    assert!(output.is_file());
    Ok(said)
}

#[test]
fn only_a_file_of_the_same_run_is_merged() {
    let recording = recorded(5, "1Mi");
    let ours = recording.traces.file();
    let kineto = data("kineto_1rank_nccl.json.gz");
    for (file, reason) in [(&*ours, "not from the same run"), (&*kineto, "ncclscope import")] {
        let error = merge(&[file], &kineto).unwrap_err();
        assert!(error.contains(reason), "{reason}: {error}");
    }
    // A launch in each KernelLaunch; nothing was handed over for them.
    let folder = folder();
    let theirs = folder.path().join("theirs.json");
    fs::write(&theirs, kineto_beside(&import::open(&ours).unwrap(), 0, 0..5).to_string()).unwrap();
    let said = merge(&[&ours], &theirs).unwrap();
    assert!(
        said.contains(
            "0 kernels of NCCL matched, 5 unmatched, 0 of the application; put on the host's clock by 5 launches"
        ),
        "{said}"
    );
}

#[test]
fn what_another_tool_saw_of_a_process_has_an_id_of_its_own_in_every_merge() {
    let recording = recorded(5, "1Mi");
    let ours = recording.traces.file();
    let folder = folder();
    let [theirs, once, again] =
        ["theirs.json", "once.perfetto-trace", "again.perfetto-trace"].map(|name| folder.path().join(name));
    fs::write(&theirs, kineto_beside(&import::open(&ours).unwrap(), 0, 0..5).to_string()).unwrap();
    ncclscope(&["merge", "-o"], &[&*once, Path::new("--with"), &*theirs, &*ours]).unwrap();
    ncclscope(&["merge", "-o"], &[&*again, &*once]).unwrap();
    let pids = |trace: &Path| {
        let mut pids = Vec::new();
        reader::decoded(&fs::read(trace).unwrap(), |packet| {
            pids.extend(packet.track_descriptor.and_then(|it| Some(it.process?.pid())));
        })
        .unwrap();
        pids
    };
    let known = &import::open(&once).unwrap().processes;
    assert!(known.len() == 2 && known[0].pid == known[1].pid, "both say which process it is");
    let [one, other] = pids(&once)[..] else { panic!("{:?}", pids(&once)) };
    assert_eq!(i64::from(one), known[0].pid);
    assert!(one != other && pids(&again) == [one, other], "{one} {other} {:?}", pids(&again));
}

#[test]
fn a_file_is_not_merged_with_another_process_of_the_same_id() {
    let (other, own) = (recorded(5, "1Mi"), recorded(5, "2Mi"));
    let profile = import::open(&own.traces.file()).unwrap();
    let folder = folder();
    let (moved, theirs) = (folder.path().join("other.perfetto-trace"), folder.path().join("theirs.json"));
    // As on another host, or in another container.
    let mut packet = Vec::new();
    reader::decoded(&fs::read(other.traces.file()).unwrap(), |mut it| {
        if let Some(process) = it.track_descriptor.as_mut().and_then(|descriptor| descriptor.process.as_mut()) {
            process.pid = Some(profile.processes[0].pid as i32);
            process.process_name = Some("rank 0 · another host".into());
        }
        packet.push(it);
    })
    .unwrap();
    fs::write(&moved, reader::Trace { packet }.encode_to_vec()).unwrap();
    fs::write(&theirs, kineto_beside(&profile, 0, 0..5).to_string()).unwrap();
    let own = own.traces.file();
    for files in [[&*moved, &*own], [&*own, &*moved]] {
        let error = merge(&files, &theirs).unwrap_err();
        assert!(error.contains("several processes in the traces have pid"), "{error}");
    }
    assert!(merge(&[&own], &theirs).unwrap().contains("5 unmatched"));
}
