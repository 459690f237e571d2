//! The command line's output for programs.

mod command;

use command::ncclscope;
use ncclscope::config::SETTINGS;
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::Recording;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const JOB: &str = "user init world comm=0xabc rank=1 nranks=4 nodes=2 name=dp\n\
                   user start c world Coll func=AllReduce count=1Ki datatype=ncclFloat32\n\
                   user stop c\n\
                   user start c world Coll func=AllReduce count=2Ki datatype=ncclFloat32\n\
                   user stop c\n\
                   user finalize world\n";

#[test]
fn settings_are_reported_as_in_the_table() {
    let said: Value = serde_json::from_str(&ncclscope(&["settings", "--json", "-"]).unwrap()).unwrap();
    let expected: Vec<_> = SETTINGS
        .iter()
        .map(|it| json!({"name": it.name, "values": it.values.to_string(), "default": it.default, "help": it.help}))
        .collect();
    assert_eq!(said, json!({"format_version": 1, "settings": expected}));
    let buffers = expected.iter().find(|it| it["name"] == "NCCLSCOPE_BUFFER_SIZE").unwrap();
    assert_eq!(buffers["values"], "1M to 1G bytes, also in K, M, G or T");
}

#[test]
fn info_describes_a_trace_and_a_capture() {
    let recording = Recording::by(Play::new(JOB).env("NCCLSCOPE_CAPTURE", "1").env("NCCLSCOPE_COMPRESS", "0"));
    let trace = recording.traces.file();
    let capture = trace.with_extension("capture");
    let files = [trace.as_os_str(), capture.as_os_str()];
    let said = ncclscope(&["info".as_ref(), files[0], files[1], "--json".as_ref(), "-".as_ref()]).unwrap();
    let said: Value = serde_json::from_str(&said).expect("nothing but JSON");
    assert_eq!((&said["format_version"], &said["hangs"]), (&json!(1), &json!([])));
    let [of_trace, of_capture] = [&said["files"][0], &said["files"][1]];
    assert_eq!(of_trace["kind"], "trace");
    assert_eq!(of_trace["bytes"], fs::metadata(&trace).unwrap().len());
    let operation = json!({
        "comm": "0000000000000abc",
        "function": "AllReduce",
        "count": 2,
        "bytes": 3 * 4096,
        "not_handed_over": 0,
    });
    assert_eq!(of_trace["operations"], json!([operation]));
    let communicator = json!({
        "comm": "0000000000000abc", "name": "dp", "rank": 1, "ranks": 4, "hosts": 2, "nccl": null, "interface": 7,
    });
    assert_eq!(of_trace["communicators"], json!([communicator]));
    let recorded = &of_trace["recordings"][0];
    assert_eq!((&recorded["state"], &recorded["figures"]["recorded"]), (&json!("closed"), &json!(recording.calls())));
    assert_eq!((&recorded["figures"]["dropped"], &of_trace["fault"]), (&json!(0), &Value::Null));
    assert_eq!(of_capture["kind"], "capture");
    assert!(of_capture["records"].as_u64() >= Some(recording.calls()), "{of_capture}");

    // Into a file, in addition to the text, and never overwriting one.
    let output = recording.traces.path().join("info.json");
    let words = ["info".as_ref(), files[0], "--json".as_ref(), output.as_os_str()];
    let text = ncclscope(&words).unwrap();
    assert!(text.contains("AllReduce: 2, 12 KiB in all"), "{text}");
    let written: Value = serde_json::from_slice(&fs::read(&output).unwrap()).unwrap();
    assert_eq!(written["files"], json!([of_trace]));
    assert!(ncclscope(&words).unwrap_err().contains("exists already"));
}

#[test]
fn a_recording_without_a_final_event_says_so() {
    let recording = Recording::by(Play::new(format!("{JOB}user kill SIGKILL\n")));
    let said =
        ncclscope(&["info".as_ref(), recording.traces.file().as_os_str(), "--json".as_ref(), "-".as_ref()]).unwrap();
    let said: Value = serde_json::from_str(&said).unwrap();
    let recorded = &said["files"][0]["recordings"][0];
    assert_eq!((&recorded["state"], &recorded["figures"]), (&json!("running or killed"), &Value::Null));
}

#[test]
fn an_unreadable_file_is_listed_and_fails_the_command() {
    let recording = Recording::by(Play::new(JOB));
    let trace = recording.traces.file();
    let broken = recording.traces.path().join("broken.perfetto-trace");
    fs::write(&broken, "no trace at all").unwrap();
    let output = recording.traces.path().join("info.json");
    let words = ["info".as_ref(), broken.as_os_str(), trace.as_os_str(), "--json".as_ref(), output.as_os_str()];
    let why = ncclscope(&words).unwrap_err();
    let written: Value = serde_json::from_slice(&fs::read(&output).unwrap()).unwrap();
    let broken = json!({"kind": "unreadable", "file": broken.display().to_string(), "fault": why});
    assert_eq!((&written["files"][0], &written["files"][1]["kind"]), (&broken, &json!("trace")));
}

#[test]
fn a_file_of_another_tool_is_described_too() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/kineto_1rank_nccl.json.gz");
    let said = ncclscope(&["info".as_ref(), file.as_os_str(), "--json".as_ref(), "-".as_ref()]).unwrap();
    let said: Value = serde_json::from_str(&said).unwrap();
    let file = &said["files"][0];
    assert_eq!(file["kind"], "other tool");
    assert_eq!((&file["kernels"], &file["nccl_kernels"]), (&json!(2700), &json!(21)));
    assert!(file["known"].as_array().is_some_and(|known| !known.is_empty()), "{file}");
}
