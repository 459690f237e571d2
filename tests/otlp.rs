//! `ncclscope export --otlp`: the spans and metrics of synthetic ranks, for which the truth is
//! known, as a collector gets them. They are read with the types that OpenTelemetry publishes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::command::ncclscope;
use crate::synthetic::Job;
use ncclscope_tests::play::{self, Play};
use ncclscope_tests::pypi;
use ncclscope_tests::recording::Recording;
use serde_json::Value;
use tempfile::TempDir;

const RANKS: u32 = 8;
const HOSTS: u32 = 4;
const STEPS: u64 = 600;
/// Operations of one host's ranks, and of all.
const OF_HOSTS: u64 = STEPS / 2;

/// When all synthetic ranks begin, ns since 1970.
const BEGIN: u64 = 1_795_000_000_000_000_000;

const READ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/read_otlp.py");

/// A request.
struct Request {
    path: String,
    /// Names in lower case.
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// An answer: the status, headers, and the body.
type Answer = (u16, &'static [(&'static str, &'static str)], Vec<u8>);

const TAKEN: Answer = (200, &[("Content-Type", "application/x-protobuf")], Vec::new());

/// A collector that keeps what it gets and gives prepared answers.
struct Collector {
    endpoint: String,
    got: Arc<Mutex<Vec<Request>>>,
}

impl Collector {
    /// The `n`th request gets this answer.
    fn new(answer: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Collector {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (got, answer) = (Arc::default(), Arc::new(answer));
        let all = Arc::clone(&got);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (all, answer) = (Arc::clone(&all), Arc::clone(&answer));
                thread::spawn(move || while serve(&stream, &all, &*answer).is_some() {});
            }
        });
        Collector { endpoint, got }
    }

    fn got(&self) -> Vec<Request> {
        std::mem::take(&mut self.got.lock().unwrap())
    }
}

/// Answers one request of a connection.
fn serve(stream: &TcpStream, all: &Mutex<Vec<Request>>, answer: &dyn Fn(usize) -> Answer) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let path = lines[0].strip_prefix("POST ")?.strip_suffix(" HTTP/1.1")?.to_owned();
    let headers: BTreeMap<_, _> = lines[1..].iter().filter_map(|line| line.split_once(": ")).collect();
    let headers: BTreeMap<_, _> =
        headers.into_iter().map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
    let mut body = vec![0; headers["content-length"].parse().unwrap()];
    reader.read_exact(&mut body).ok()?;
    let number = {
        let mut all = all.lock().unwrap();
        all.push(Request { path, headers, body });
        all.len() - 1
    };
    let (status, headers, body) = answer(number);
    let mut said = format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| said += &format!("{name}: {value}\r\n"));
    said += "\r\n";
    (&mut &*stream).write_all(&[said.into_bytes(), body].concat()).ok()
}

fn traces(ranks: u32) -> (Job, TempDir) {
    let (job, folder) = (Job::new(RANKS, HOSTS, STEPS), tempfile::tempdir().unwrap());
    job.write_to(folder.path(), ranks, true);
    (job, folder)
}

fn send(folder: &TempDir, endpoint: &str) -> Result<String, String> {
    ncclscope(&["export".as_ref(), folder.path().as_os_str(), "--otlp".as_ref(), endpoint.as_ref()])
}

/// The same by the program, with variables.
fn send_with(folder: &TempDir, endpoint: &str, variables: &[(&str, &str)]) -> Output {
    let mut program = Command::new(play::program_path().unwrap());
    program.arg("export").arg(folder.path()).args(["--otlp", endpoint]).envs(variables.iter().copied());
    program.output().unwrap()
}

/// The content of requests for the hour from this time on, in ns since 1970.
fn read(requests: &[Request], begin: u64) -> Option<Value> {
    let folder = tempfile::tempdir().unwrap();
    for (number, request) in requests.iter().enumerate() {
        assert_eq!(request.headers["content-type"], "application/x-protobuf");
        let signal = request.path.rsplit_once("/v1/").unwrap().1;
        fs::write(folder.path().join(format!("{number:05}.{signal}")), &request.body).unwrap();
    }
    Some(serde_json::from_str(&pypi::otlp(&[READ, &folder.path().to_string_lossy(), &begin.to_string()])?).unwrap())
}

#[test]
fn operations_are_spans_whose_trace_ids_agree_across_ranks() {
    let (job, folder) = traces(RANKS);
    let collector = Collector::new(|_| TAKEN);
    let said = send(&folder, &collector.endpoint).unwrap();
    let spans = u64::from(RANKS) * STEPS;
    assert!(said.contains(&format!("{RANKS} of {RANKS} traces sent, {spans} spans and ")), "{said}");
    let requests = collector.got();
    let paths: BTreeSet<_> = requests.iter().map(|request| request.path.as_str()).collect();
    assert_eq!(paths, ["/v1/metrics", "/v1/traces"].into());
    let Some(read_once) = read(&requests, BEGIN) else { return };

    let all = read_once["spans"].as_array().unwrap();
    assert_eq!(all.len() as u64, spans);
    assert!(read_once["requests"].as_array().unwrap().iter().all(|number| number.as_u64() <= Some(512)));
    let ids: BTreeSet<_> = all.iter().map(|span| span["id"].as_str()).collect();
    assert_eq!(ids.len(), all.len());
    let mut by_trace: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    all.iter().for_each(|span| by_trace.entry(span["trace"].as_str().unwrap()).or_default().push(span));
    assert_eq!(by_trace.len() as u64, OF_HOSTS + u64::from(HOSTS) * OF_HOSTS);
    for of_one in by_trace.values() {
        let [name, comm, seq] = ["nccl.function", "nccl.comm", "nccl.seq"].map(|key| &of_one[0]["attributes"][key]);
        let ranks: BTreeSet<_> = of_one.iter().map(|span| span["resource"]["nccl.rank"].as_u64()).collect();
        let expected = if name == "AllReduce" { RANKS } else { RANKS / HOSTS };
        assert_eq!((of_one.len(), ranks.len()), (expected as usize, expected as usize), "{of_one:?}");
        for span in of_one {
            let said = &span["attributes"];
            assert_eq!([&span["name"], &said["nccl.comm"], &said["nccl.seq"]], [name, comm, seq]);
        }
    }
    for span in all {
        let (said, resource) = (&span["attributes"], &span["resource"]);
        let [rank, seq] = [&resource["nccl.rank"], &said["nccl.seq"]].map(|number| number.as_u64().unwrap());
        let is_of_all = span["name"] == "AllReduce";
        let [came, left] = job.truth(rank as u32, 2 * seq + u64::from(!is_of_all));
        let ns = span["end"].as_u64().unwrap() - span["start"].as_u64().unwrap();
        // Its host's clock drifts by 20 millionths.
        assert!(ns.abs_diff(left - came) <= 2 + (left - came) / 20_000, "{span}");
        assert_eq!(resource["host.name"], format!("node{}", rank as u32 / (RANKS / HOSTS)));
        assert_eq!(resource["process.pid"], 1000 + rank);
        assert_eq!(resource["nccl.job"], "synthetic");
        assert_eq!(resource["service.name"], "nccl-job");
        assert_eq!(said["nccl.rank"], rank);
        assert_eq!(said["nccl.times"], "kernel");
        assert_eq!(said["nccl.time_error_ns"], 500);
        assert_eq!(said["nccl.matched_by"], "exact_launch_bracket");
        assert_eq!(said["nccl.bytes"], if is_of_all { 8 << 20 } else { 2 << 20 });
        assert!(said["nccl.doubt"].is_null() && said["thread.id"].is_i64(), "{said}");
    }

    metrics(&job, &read_once);

    // The same again is the same.
    send(&folder, &collector.endpoint).unwrap();
    let again = read(&collector.got(), BEGIN).unwrap();
    let sorted = |of: &Value| {
        let mut all: Vec<_> = ["spans", "points"].iter().flat_map(|what| of[what].as_array().unwrap()).collect();
        all.sort_by_cached_key(ToString::to_string);
        all.into_iter().cloned().collect::<Vec<_>>()
    };
    assert_eq!(sorted(&read_once), sorted(&again));
}

/// The metrics of each rank are the totals of its spans.
fn metrics(job: &Job, read: &Value) {
    let points = read["points"].as_array().unwrap();
    let units: BTreeSet<_> =
        points.iter().map(|point| [&point["name"], &point["unit"]].map(|text| text.as_str().unwrap())).collect();
    let expected = [
        ["nccl.operation.duration", "s"],
        ["nccl.operation.io", "By"],
        ["nccl.operations", "{operation}"],
        ["nccl.proxy.io", "By"],
        ["nccl.proxy.wait", "s"],
    ];
    assert_eq!(units, expected.into());
    for rank in 0..RANKS {
        let of = |name: &str, attribute: &str, is: &str| {
            let is_it = |point: &&Value| {
                point["name"] == name && point["resource"]["nccl.rank"] == rank && point["attributes"][attribute] == is
            };
            let found: Vec<_> = points.iter().filter(is_it).collect();
            let [one] = found[..] else { panic!("{name} {is}: {found:?}") };
            one["value"].clone()
        };
        assert_eq!(of("nccl.operations", "nccl.function", "AllReduce"), OF_HOSTS);
        assert_eq!(of("nccl.operation.io", "nccl.function", "AllReduce"), OF_HOSTS * (8 << 20));
        let durations = of("nccl.operation.duration", "nccl.function", "AllReduce");
        let truth: u64 = (0..OF_HOSTS).map(|seq| job.truth(rank, 2 * seq)).map(|[came, left]| left - came).sum();
        assert_eq!(durations["count"], OF_HOSTS);
        let sum = durations["sum"].as_f64().unwrap();
        assert!((sum / (truth as f64 / 1e9) - 1.0).abs() < 1e-4, "{durations} {truth}");
        assert_eq!(of("nccl.proxy.io", "network.io.direction", "transmit"), OF_HOSTS << 19);
        for wait in ["gpu", "peer", "network"] {
            assert!(of("nccl.proxy.wait", "nccl.wait", wait).as_f64() > Some(0.0));
        }
    }
}

#[test]
fn without_kernels_spans_have_no_length_and_say_so() {
    let begin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let script = include_str!("scenarios/grouped.txt");
    let recording = Recording::by(Play::new(script).env("NCCLSCOPE_RUN_ID", "scripted"));
    let collector = Collector::new(|_| TAKEN);
    let file = recording.traces.file();
    ncclscope(&["export".as_ref(), file.as_os_str(), "--otlp".as_ref(), collector.endpoint.as_ref()]).unwrap();
    let Some(read) = read(&collector.got(), begin) else { return };
    let spans = read["spans"].as_array().unwrap();
    let mut names: Vec<_> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["AllGather", "AllReduce", "Broadcast", "Recv", "Recv", "Reduce", "Send", "Send"]);
    for span in spans {
        assert_eq!((&span["start"], &span["attributes"]["nccl.times"]), (&span["end"], &"hand-over".into()), "{span}");
        assert_eq!(span["attributes"]["nccl.handed_over"], span["start"]);
    }
    let ids = |which: &str| spans.iter().map(|span| span[which].as_str().unwrap()).collect::<BTreeSet<_>>();
    assert_eq!((ids("id").len(), ids("trace").len()), (8, 8));
    let points: BTreeSet<_> = read["points"].as_array().unwrap().iter().map(|point| point["name"].as_str()).collect();
    let has = |name| points.contains(&Some(name));
    assert!(has("nccl.operations") && !has("nccl.operation.duration"), "{points:?}");
}

#[test]
fn a_busy_collector_gets_the_same_request_again() {
    let (_, folder) = traces(1);
    let collector = Collector::new(|number| match number {
        0 => (503, &[("Retry-After", "0")], b"starting".to_vec()),
        1 => (429, &[("Retry-After", "Sun, 06 Nov 1994 08:49:37 GMT")], Vec::new()),
        2 => (502, &[], Vec::new()),
        _ => TAKEN,
    });
    let begin = Instant::now();
    send(&folder, &collector.endpoint).unwrap();
    // Where nothing says when, it waits for at least half a second.
    assert!(begin.elapsed().as_millis() >= 500);
    let requests = collector.got();
    let [first, second, third, fourth, rest @ ..] = &requests[..] else { panic!("{} requests", requests.len()) };
    assert!([second, third, fourth].iter().all(|again| again.body == first.body && again.path == first.path));
    assert!(!rest.is_empty() && rest.iter().all(|other| other.body != first.body));
}

#[test]
fn rejected_spans_are_reported_and_the_rest_is_sent() {
    let (_, folder) = traces(2);
    // `ExportTraceServiceResponse`: partial_success { rejected_spans: 3, error_message: "too old"
    // }.
    const PARTIAL: [u8; 13] = *b"\x0a\x0b\x08\x03\x12\x07too old";
    let collector = Collector::new(|number| match number {
        0 => (200, &[("Content-Type", "application/x-protobuf")], PARTIAL.to_vec()),
        _ => TAKEN,
    });
    let reason = send(&folder, &collector.endpoint).unwrap_err();
    assert!(reason.contains("rejected 3 spans or data points: too old"), "{reason}");
    // Two ranks of 600 spans, and their metrics: nothing is sent twice.
    let requests = collector.got();
    assert_eq!(requests.len(), 2 * 3);
    assert_eq!(requests.iter().map(|it| &it.body).collect::<BTreeSet<_>>().len(), 2 * 3);
}

#[test]
fn a_refusal_is_final_and_quotes_the_collector() {
    let (_, folder) = traces(4);
    let cases: [(Answer, &str); 4] = [
        // `google.rpc.Status`: message "bad span".
        (
            (400, &[("Content-Type", "application/x-protobuf")], b"\x12\x08bad span".to_vec()),
            "the collector answers 400 Bad Request: bad span",
        ),
        ((401, &[], b"who are you?\r\n".to_vec()), "the collector answers 401 Unauthorized: who are you?"),
        ((404, &[], Vec::new()), "404 Not Found; nothing takes OTLP over HTTP there"),
        ((200, &[("Content-Type", "text/html")], b"<html>".to_vec()), "is not OTLP"),
    ];
    for (answer, words) in cases {
        let collector = Collector::new(move |_| answer.clone());
        let reason = send(&folder, &collector.endpoint).unwrap_err();
        assert!(reason.contains(words) && reason.contains(&format!("{}/v1/traces", collector.endpoint)), "{reason}");
        // Each of the threads has met it at most once, and nothing is sent after it.
        assert!(collector.got().len() <= 4);
    }
    // Nobody listens there.
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let reason = send(&folder, &format!("http://{free}")).unwrap_err();
    assert!(reason.matches("efused").count() == 1, "{reason}");
    assert!(send(&folder, "https://collector").unwrap_err().contains("does not encrypt"));
    // What is not a trace, and what of two.
    let both = ["export", "trace", "--otlp", "http://localhost:4318", "--parquet", "tables"];
    assert!(ncclscope(&both).unwrap_err().contains("cannot be used with"));
    assert!(ncclscope(&["export", "trace"]).unwrap_err().contains("--otlp"));
}

#[test]
fn opentelemetrys_own_variables_are_respected() {
    let (_, folder) = traces(1);
    let collector = Collector::new(|_| TAKEN);
    let variables = [
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20abc,x-team = llm "),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_SERVICE_NAME", "pretraining"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod,host.name=not-this,service.name=nor-this"),
    ];
    let done = send_with(&folder, &format!("{}/tenant/", collector.endpoint), &variables);
    assert!(done.status.success(), "{done:?}");
    let mut requests = collector.got();
    for request in &mut requests {
        assert!(request.path.starts_with("/tenant/v1/"), "{}", request.path);
        let header = |name: &str| request.headers[name].as_str();
        assert_eq!([header("authorization"), header("x-team")], ["Basic abc", "llm"]);
        assert_eq!(header("content-encoding"), "gzip");
        request.body = gunzipped(&request.body);
    }
    let bad = send_with(&folder, &collector.endpoint, &[("OTEL_EXPORTER_OTLP_HEADERS", "secret")]);
    let said = String::from_utf8_lossy(&bad.stderr).into_owned();
    assert!(!bad.status.success() && said.contains("OTEL_EXPORTER_OTLP_HEADERS is not KEY=VALUE"), "{said}");
    assert!(!said.contains("secret") && collector.got().is_empty());
    let Some(read) = read(&requests, BEGIN) else { return };
    let resource = &read["spans"][0]["resource"];
    assert_eq!(resource["service.name"], "pretraining");
    assert_eq!(resource["deployment.environment.name"], "prod");
    assert_eq!(resource["host.name"], "node0");
}

fn gunzipped(bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut body).unwrap();
    body
}
