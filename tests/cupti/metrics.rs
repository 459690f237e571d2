//! Metrics, as Prometheus's own parser reads them from a file and from a port; and the dashboard
//! that shows them.

use super::selecting::{collective, job};
use super::{KERNEL, library_path};
use crate::command::ncclscope;
use ncclscope_tests::play::Play;
use ncclscope_tests::pypi;
use ncclscope_tests::recording::Recording;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

const PARSE: &str = "
import json, sys
from prometheus_client.parser import text_string_to_metric_families as families
out = [dict(name=it.name, type=it.type, samples=[[s.name, s.labels, s.value] for s in it.samples]) for it in families(sys.stdin.read())]
print(json.dumps(out))
";

/// The samples of metrics, by name and labels; no two are the same.
fn parsed(text: &str) -> Option<BTreeMap<(String, String), f64>> {
    let families: Value = serde_json::from_str(&pypi::python(PARSE, text)?).unwrap();
    let mut samples = BTreeMap::new();
    for family in families.as_array().unwrap() {
        assert_ne!(family["type"], "unknown", "{family}");
        for sample in family["samples"].as_array().unwrap() {
            let labels: Vec<_> =
                sample[1].as_object().unwrap().iter().map(|(name, it)| format!("{name}={it}")).collect();
            let key = (sample[0].as_str().unwrap().to_owned(), labels.join(","));
            assert!(samples.insert(key, sample[2].as_f64().unwrap()).is_none(), "twice: {sample}");
        }
    }
    Some(samples)
}

fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A free port whose successor is free, too.
fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return port;
        }
    }
}

/// Plays a job that then waits, and calls `meanwhile` once the text of its metrics contains this.
fn while_it_runs(settings: &[(&str, &str)], metrics: &Path, has: &str, meanwhile: impl FnOnce(&str)) -> Recording {
    let folder = tempfile::tempdir().unwrap();
    let go_on = folder.path().join("go-on");
    let collectives = [collective("a", "dp", "1Ki"), collective("b", "dp", "1Ki"), collective("c", "tp", "2Mi")];
    let script =
        job(&collectives).replace("user finalize dp", &format!("user wait-for {}\nuser finalize dp", go_on.display()));
    let play = Play::new(&script).env("LD_LIBRARY_PATH", library_path()).env("NCCLSCOPE_METRICS_PERIOD", "1");
    thread::scope(|scope| {
        let played = scope.spawn(|| Recording::by(play.envs(settings)));
        let begin = Instant::now();
        let text = loop {
            let text = fs::read_to_string(metrics).unwrap_or_default();
            if text.contains(has) || played.is_finished() || begin.elapsed() > Duration::from_secs(30) {
                break text;
            }
            thread::sleep(Duration::from_millis(20));
        };
        meanwhile(&text);
        fs::write(&go_on, "").unwrap();
        played.join().unwrap()
    })
}

const DP: &str = "operation=\"AllReduce\",rank=\"3\"";

#[test]
fn prometheus_reads_the_figures_of_the_summary() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("new").join("ncclscope-%l.prom");
    let file = folder.path().join("new").join("ncclscope-1.prom");
    let port = free_port();
    let (template, number) = (template.to_str().unwrap(), port.to_string());
    let settings = [
        ("NCCLSCOPE_METRICS_FILE", template),
        ("NCCLSCOPE_METRICS_PORT", &number),
        ("RANK", "3"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("NCCLSCOPE_FILE_MODE", "644"),
    ];
    let has = "ncclscope_kernel_seconds_count{rank=\"3\",communicator=\"tensor\",operation=\"AllReduce\"} 1";
    let mut live = BTreeMap::new();
    let recording = while_it_runs(&settings, &file, has, |text| {
        assert!(text.contains(has), "{text}");
        // It is the second rank of its host.
        let answer = get(port + 1, "/metrics");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
        assert!(body.contains(has), "{body}");
        assert!(get(port + 1, "/other").starts_with("HTTP/1.1 404"));
        // One who does not ask does not keep others from it.
        let _silent = TcpStream::connect(("127.0.0.1", port + 1)).unwrap();
        assert!(get(port + 1, "/metrics").starts_with("HTTP/1.1 200"));
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "the first rank's");
        live = parsed(text).unwrap_or_default();
    });
    assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
    assert!(!file.exists(), "the metrics of a process that is gone");
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 0);
    if live.is_empty() {
        return;
    }
    let of = |name: &str, labels: &str| {
        *live.get(&(name.to_owned(), labels.to_owned())).unwrap_or_else(|| panic!("{name} {labels}: {live:#?}"))
    };
    let trace = recording.traces.file();
    let text = ncclscope(&["summary", trace.to_str().unwrap(), "--format", "json"]).unwrap();
    let summary: Value = serde_json::from_str(&text).unwrap();
    for row in summary["tables"]["operations"].as_array().unwrap() {
        let comm = row["communicator"].as_str().unwrap();
        let labels = format!("communicator=\"{comm}\",{DP}");
        let number = |name: &str| row[name].as_f64().unwrap();
        assert_eq!(of("ncclscope_operations_total", &labels), number("number"));
        assert_eq!(of("ncclscope_kernel_seconds_count", &labels), number("timed"));
        assert!((of("ncclscope_kernel_seconds_sum", &labels) - number("kernel_total_ns") / 1e9).abs() < 1e-9);
        let rate = of("ncclscope_bus_bytes_total", &labels) / of("ncclscope_kernel_seconds_sum", &labels);
        assert!((rate / number("busbw_bytes_per_s") - 1.0).abs() < 1e-6, "{rate} {row}");
        // Buckets only grow, up to all of them.
        let buckets =
            live.iter().filter(|((name, of), _)| name.ends_with("_bucket") && of.contains(&format!("\"{comm}\"")));
        let mut buckets: Vec<_> = buckets
            .map(|((_, of), count)| {
                (
                    of.split("le=\"")
                        .nth(1)
                        .unwrap()
                        .split('"')
                        .next()
                        .unwrap()
                        .replace("+Inf", "inf")
                        .parse::<f64>()
                        .unwrap(),
                    *count,
                )
            })
            .collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert_eq!(buckets.len(), 20);
        assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{buckets:?}");
        assert_eq!(buckets.last().unwrap().1, number("timed"));
        let median = number("kernel_median_ns") / 1e9;
        let below = buckets.iter().rfind(|(bound, _)| *bound < number("kernel_min_ns") / 1e9);
        assert!(below.is_none_or(|(_, count)| *count == 0.0), "{median} {buckets:?}");
    }
    let proxy = &summary["tables"]["proxy"][0];
    let sent = "communicator=\"dp\",direction=\"send\",peer=\"1\",rank=\"3\"";
    assert_eq!(of("ncclscope_proxy_transfers_total", sent), proxy["transfers"].as_f64().unwrap());
    assert_eq!(of("ncclscope_nccl_calls_total", "rank=\"3\",state=\"dropped\""), 0.0);
    assert_eq!(of("ncclscope_overdue_seconds", "rank=\"3\""), 0.0);
    assert!(of("ncclscope_gpu_seconds_total", "gpu=\"0\",rank=\"3\",state=\"exposed\"") > 0.0);
}

#[test]
fn a_hang_is_a_metric() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("it.prom");
    let done = folder.path().join("go-on");
    let script = format!(
        "{}user start l dp KernelLaunch stream=0x10\nuser kernel {KERNEL} for=60s wait=0\nuser stop l\n\
         user start p dp Group\nuser start c dp Coll group=p func=AllReduce count=1 datatype=ncclFloat32\n\
         user stop c\nuser stop p\nuser wait-for {}\nuser kill SIGKILL\n",
        job(&[]).split("user finalize").next().unwrap(),
        done.display()
    );
    let play = Play::new(&script).env("LD_LIBRARY_PATH", library_path()).env("NCCLSCOPE_METRICS_PERIOD", "1");
    let play = play.env("NCCLSCOPE_METRICS_FILE", file.to_str().unwrap()).env("RANK", "0");
    let overdue = thread::scope(|scope| {
        let played = scope.spawn(|| Recording::by(play));
        let begin = Instant::now();
        let overdue = loop {
            let text = fs::read_to_string(&file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with("ncclscope_overdue_seconds{")).unwrap_or("} 0");
            let overdue: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            if overdue > 0.0 || played.is_finished() || begin.elapsed() > Duration::from_secs(40) {
                break overdue;
            }
            thread::sleep(Duration::from_millis(50));
        };
        fs::write(&done, "").unwrap();
        played.join().unwrap();
        overdue
    });
    assert!(overdue > 2.0, "{overdue}");
}

#[test]
fn a_port_in_use_is_reported() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let script = job(&[collective("a", "dp", "1Ki")]);
    let play = Play::new(&script).env("LD_LIBRARY_PATH", library_path()).env("NCCLSCOPE_METRICS_PORT", &port);
    let recording = Recording::by(play);
    let line = format!("no metrics at port {port} of 127.0.0.1: ");
    assert!(recording.said().iter().any(|said| said.starts_with(&line)), "{:?}", recording.said());
    assert_eq!(recording.timeline().figures().get("recorded"), recording.calls());
}

#[test]
fn a_running_job_can_print_its_summary() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("it.prom");
    let template = file.to_str().unwrap();
    let settings = [("NCCLSCOPE_SUMMARY_PERIOD", "1"), ("RANK", "0"), ("NCCLSCOPE_METRICS_FILE", template)];
    let recording =
        while_it_runs(&settings, &file, "operation=\"AllReduce\"", |_| thread::sleep(Duration::from_millis(2500)));
    let times = recording.outcome.stderr.matches("]: summary of rank 0").count();
    assert!(times >= 3, "{times}: {}", recording.outcome.stderr);
    let summary = recording.traces.file().with_extension("summary.txt");
    let last = fs::read_to_string(summary).unwrap();
    assert!(!last.contains("no last word"), "the last one is of the whole job: {last}");
    let files: Vec<_> = fs::read_dir(recording.traces.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
}

/// Grafana's own types read the dashboard and write it again: anything they do not know would be
/// lost.
const CHECK: &str = "
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
text = sys.stdin.read()
print(json.dumps(json.loads(json.dumps(Dashboard.from_json(json.loads(text)), cls=JSONEncoder)), sort_keys=True))
";

#[test]
fn the_dashboard_suits_grafana_and_asks_for_existing_metrics() {
    let text = include_str!("../../grafana/ncclscope.json");
    let dashboard: Value = serde_json::from_str(text).unwrap();
    if let Some(back) = pypi::python(CHECK, text) {
        let back: Value = serde_json::from_str(&back).unwrap();
        assert_contains(&back, &dashboard, "dashboard");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("it.prom");
    let settings = [("NCCLSCOPE_METRICS_FILE", file.to_str().unwrap()), ("RANK", "0")];
    let mut metrics = String::new();
    while_it_runs(&settings, &file, "operation=\"AllReduce\"", |text| metrics = text.to_owned());
    let known: Vec<&str> = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let mut asked = 0;
    for part in text.split("ncclscope_").skip(1) {
        let name: String = part.chars().take_while(|letter| letter.is_ascii_lowercase() || *letter == '_').collect();
        let name = format!("ncclscope_{name}");
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
        assert!(known.contains(&base) || known.contains(&name.as_str()), "{name} is none of {known:?}");
        asked += 1;
    }
    assert!(asked >= 10, "{asked}");
}

/// Everything that `part` has is in `whole`, too.
fn assert_contains(whole: &Value, part: &Value, at: &str) {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part.iter().for_each(|(name, part)| {
            let whole = whole.get(name).unwrap_or_else(|| panic!("{at}.{name} is not Grafana's"));
            assert_contains(whole, part, &format!("{at}.{name}"));
        }),
        (Value::Array(whole), Value::Array(part)) => {
            assert_eq!(whole.len(), part.len(), "{at}");
            whole
                .iter()
                .zip(part)
                .enumerate()
                .for_each(|(n, (whole, part))| assert_contains(whole, part, &format!("{at}[{n}]")));
        }
        (Value::Number(whole), Value::Number(part)) => assert_eq!(whole.as_f64(), part.as_f64(), "{at}"),
        (whole, part) => assert_eq!(whole, part, "{at}"),
    }
}

#[test]
fn the_preset_metrics_leaves_no_trace_and_the_same_figures() {
    let collectives: Vec<_> = (0..12).map(|n| collective(&format!("d{n}"), "dp", "1Ki")).collect();
    let script = job(&collectives);
    let folder = tempfile::tempdir().unwrap();
    let by = |settings: &[(&str, &str)]| {
        let play = Play::new(&script).env("LD_LIBRARY_PATH", library_path()).envs(settings);
        let recording = Recording::by(play.respect_mask());
        assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
        recording
    };
    let output = folder.path().to_str().unwrap();
    let of_rank = |rank: &str| {
        let recording =
            by(&[("NCCLSCOPE_PRESET", "metrics"), ("NCCLSCOPE_OUTPUT", output), ("RANK", rank), ("WORLD_SIZE", "2")]);
        recording.outcome.stderr
    };
    let said = of_rank("0") + &of_rank("1");
    assert!(said.contains("(a summary, no trace)") && said.contains(".summary.csv"), "{said}");
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().path()).collect();
    assert!(files.len() == 2 && files.iter().all(|it| it.to_str().unwrap().ends_with(".summary.csv")), "{files:?}");

    let rows = |path: &Path, table: &str| {
        let text = ncclscope(&["summary", path.to_str().unwrap(), "--format", "json"]).unwrap();
        let whole: Value = serde_json::from_str(&text).unwrap();
        whole["tables"][table].as_array().unwrap().clone()
    };
    let light = by(&[("NCCLSCOPE_PRESET", "light"), ("RANK", "0"), ("WORLD_SIZE", "2")]);
    let expected = rows(&light.traces.file(), "operations");
    let all = rows(folder.path(), "operations");
    let ranks: Vec<&str> = all.iter().map(|row| row["rank"].as_str().unwrap()).collect();
    assert_eq!(ranks, ["all", "0", "1"]);
    for name in ["communicator", "operation", "datatype", "count", "bytes", "number", "timed", "contradicted"] {
        assert_eq!(all[1][name], expected[0][name], "{name}");
    }
    let number = |row: &Value, name: &str| row[name].as_u64().unwrap();
    assert_eq!(number(&all[0], "timed"), 24);
    for (name, sum) in [
        ("kernel_total_ns", (|a, b| a + b) as fn(u64, u64) -> u64),
        ("kernel_max_ns", u64::max),
        ("kernel_min_ns", u64::min),
    ] {
        assert_eq!(number(&all[0], name), sum(number(&all[1], name), number(&all[2], name)), "{name}");
    }
    assert!(all[0]["kernel_median_ns"].is_null(), "the median is unknown");
    let of_bytes = 24.0 * 4096.0 / (number(&all[0], "kernel_total_ns") as f64 / 1e9);
    assert!((number(&all[0], "busbw_bytes_per_s") as f64 / of_bytes - 1.0).abs() < 1e-3, "{of_bytes} {}", all[0]);
    // What a report is made of: the stretches have every kernel, and the GPU was busy.
    for row in [&all[1], &all[2]] {
        let of_rank: Vec<Value> =
            rows(folder.path(), "stretches").into_iter().filter(|it| it["rank"] == row["rank"]).collect();
        let sum = |name: &str| of_rank.iter().map(|it| number(it, name)).sum::<u64>();
        assert_eq!((sum("number"), sum("kernel_total_ns")), (12, number(row, "kernel_total_ns")));
        assert!(of_rank.iter().all(|it| it["id"] == "0000000000000abc"), "{of_rank:?}");
    }
    let gpus = rows(folder.path(), "gpus");
    assert!(
        gpus.len() == 2 && gpus.iter().all(|it| number(it, "own_ns") > 0 && number(it, "exposed_ns") > 0),
        "{gpus:?}"
    );
    let losses = rows(folder.path(), "losses");
    for doubt in ["unmatched", "unknown", "dropped"] {
        assert!(!losses.iter().any(|row| row["what"].as_str().unwrap().contains(doubt)), "{losses:?}");
    }
    // Read and written again, it is the same.
    let text = fs::read_to_string(&files[0]).unwrap();
    assert_eq!(ncclscope(&["summary", files[0].to_str().unwrap(), "--format", "csv"]).unwrap(), text);
    // Without a summary and without metrics it would run for nothing.
    let nothing = tempfile::tempdir().unwrap();
    let settings = [("NCCLSCOPE_PRESET", "metrics"), ("NCCLSCOPE_SUMMARY", "off")];
    let said = by(&[&settings[..], &[("NCCLSCOPE_OUTPUT", nothing.path().to_str().unwrap())]].concat()).outcome.stderr;
    assert!(said.contains("nothing would be kept; it leaves a summary in a file"), "{said}");
    assert_eq!(fs::read_dir(nothing.path()).unwrap().count(), 1);
    // What it cannot do, it says.
    let refused = ncclscope(&["summary", output, "--durations"]).unwrap_err();
    assert!(refused.contains("single durations are in traces only"), "{refused}");
    for (damage, says) in [
        (text.replace("format 1", "format 2"), "it has format 2"),
        (text.replacen(",4096,", ",many,", 1), "not a number where one belongs"),
        ("rank,name\n".to_owned(), "no tables"),
    ] {
        let path = folder.path().join("it.summary.csv");
        fs::write(&path, damage).unwrap();
        let said = ncclscope(&["summary", path.to_str().unwrap()]).unwrap_err();
        assert!(said.contains(says), "{said}");
    }
    // The files of two ranks are read beside the damaged one, which is named.
    let said = ncclscope(&["summary", output]).unwrap_err();
    assert!(said.contains("it.summary.csv") && said.contains("no tables"), "{said}");
}
