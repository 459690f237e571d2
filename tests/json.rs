//! The command line's output for programs.

use crate::command::ncclscope;
use ncclscope::cli::{Failure, run};
use ncclscope::config::{SETTINGS, Setting};
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::Recording;
use serde_json::{Value, json};
use std::ffi::OsStr;
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

/// The table in docs/settings.md is that of the code; `NCCLSCOPE_BLESS=1` renews it.
#[test]
fn the_page_and_the_help_list_all_settings() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/settings.md");
    let page = fs::read_to_string(path).unwrap();
    let cell = |text: &str| text.replace('|', "\\|").replace('<', "&lt;").replace("*", "\\*");
    let row = |it: &Setting| {
        format!("| `{}` | {} | {} | {} |\n", it.name, cell(&it.values.to_string()), cell(it.default), cell(it.help))
    };
    let table: String = SETTINGS.iter().map(row).collect();
    let (begin, end) = ("| --- | --- | --- | --- |\n", "\n## From the first kernel on");
    let (before, rest) = page.split_once(begin).expect("a table with four columns");
    let (_, after) = rest.split_once(end).expect("the section after it");
    let renewed = format!("{before}{begin}{table}{end}{after}");
    if std::env::var_os("NCCLSCOPE_BLESS").is_some_and(|value| value == "1") {
        fs::write(path, &renewed).unwrap();
    } else {
        assert!(page == renewed, "docs/settings.md is not that of the code; NCCLSCOPE_BLESS=1 renews its table");
    }
    let help = ncclscope(&["help", "settings"]).unwrap_or_else(|help| help);
    SETTINGS.iter().for_each(|it| assert!(help.contains(it.name), "{}: {help}", it.name));
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
    assert_eq!(of_trace["verdict"], json!({"text": "trusted", "reasons": []}));
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
fn the_exit_status_of_info_says_whether_a_trace_can_be_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let recorded = |script: &str| {
        let recording = Recording::by(Play::new(script).env("NCCLSCOPE_COMPRESS", "0"));
        fs::read(recording.traces.file()).unwrap()
    };
    let whole = recorded(JOB);
    let healthy = write("healthy", &whole);
    let killed = write("killed", &recorded(&format!("{JOB}user kill SIGKILL\n")));
    let cut = write("cut", &whole[..whole.len() - 3]);
    // Something else stands between two packets.
    let damaged = write("damaged", &[&whole[..], &[0xff; 20], &whole[..]].concat());
    let nothing = write("nothing", b"no trace at all");
    let data = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name);
    let kineto = data("kineto_1rank_nccl.json.gz");
    let imported = folder.path().join("imported");
    ncclscope(&["import".as_ref(), kineto.as_os_str(), "-o".as_ref(), imported.as_os_str()]).unwrap();
    for (files, expected, verdict) in [
        (vec![&healthy], 0, "trusted: nothing was lost, left unmatched or contradicted; host times to "),
        (vec![&killed], 1, "with reservations: the recording has no end"),
        (vec![&cut], 1, "its last packet is unfinished"),
        (vec![&damaged], 2, "not trusted: "),
        (vec![&healthy, &killed], 1, "trusted: "),
        (vec![&killed, &damaged], 2, "with reservations: "),
        (vec![&killed, &nothing], 2, "with reservations: "),
        // ncclscope knows no losses of what others recorded.
        (vec![&kineto], 0, ""),
        (vec![&imported], 0, ""),
    ] {
        let words = [OsStr::new("ncclscope"), "info".as_ref()];
        let mut said = Vec::new();
        let result = run(words.into_iter().chain(files.iter().map(|file| file.as_os_str())), &mut said);
        let status = match &result {
            Ok(()) => 0,
            Err(Failure::Exit(status)) => *status,
            Err(Failure::Trouble(_)) => 2,
            Err(failure) => panic!("{failure:?}"),
        };
        let said = String::from_utf8(said).unwrap();
        assert_eq!(status, expected, "{said}{result:?}");
        match verdict {
            "" => assert!(!said.contains("  verdict "), "{said}"),
            verdict => assert!(said.lines().nth(1).is_some_and(|line| line.contains(verdict)), "{verdict}: {said}"),
        }
    }
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
