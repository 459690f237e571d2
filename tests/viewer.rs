//! Traces in Perfetto's own user interface, in a browser: what a user sees of them.
//!
//! These tests need Chromium. Without it they say so and are skipped, except in continuous
//! integration.

use crate::command::ncclscope;
use ncclscope_tests::fault;
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::Recording;
use ncclscope_tests::ui::{self, browse};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Scenarios whose tracks are the same in every run, by rank.
const SCENARIOS: [&str; 8] =
    ["copy_engine", "eager_allreduce", "graph_replay", "grouped", "kernel_channels", "net_plugin", "proxy_ctrl", "pxn"];

/// The scenarios' traces in one file, each as a rank of its own. Dropping the folder removes the
/// file.
fn recorded() -> (tempfile::TempDir, PathBuf) {
    let mut bytes = Vec::new();
    for (rank, scenario) in SCENARIOS.iter().enumerate() {
        let path = format!("{}/scenarios/{scenario}.txt", env!("CARGO_MANIFEST_DIR"));
        let play = Play::new(fs::read_to_string(path).unwrap()).env("NCCLSCOPE_PRESET", "full");
        let play = play.env("NCCLSCOPE_KERNEL_CH", "force").env("NCCLSCOPE_RANK", rank.to_string());
        bytes.extend(fs::read(Recording::by(play).traces.file()).unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.perfetto-trace");
    fs::write(&file, bytes).unwrap();
    (folder, file)
}

/// A tree of tracks without what differs between runs or is measured, with the scenarios' names in
/// place of their ranks, sorted by those.
fn normal(tree: &str, file: &Path) -> String {
    let mut processes = ui::processes(tree, &Trace::open(file).unwrap());
    for process in &mut processes {
        let rank = process[0].strip_prefix("rank ").and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
        if let Some(rank) = rank {
            process[0] = SCENARIOS[rank].to_owned();
        }
    }
    processes.sort();
    processes.concat().iter().filter(|line| line.trim_start() != "CPU wait").map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_tree_of_tracks_is_as_expected() {
    let (_folder, file) = recorded();
    let Some(tree) = browse(&["--trace", file.to_str().unwrap(), "--list"]) else { return };
    let shown = normal(&tree, &file);
    ui::assert_golden(&shown, concat!(env!("CARGO_MANIFEST_DIR"), "/viewer/tracks.txt"));
}

/// Sends the output of `ncclscope open` to the receiver.
struct Said(mpsc::Sender<String>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// `ncclscope open` on a thread of its own, which ends with the process.
struct Opened {
    port: u16,
    /// Its output up to the last line before it waits.
    said: String,
    /// Its output after that.
    lines: mpsc::Receiver<String>,
}

impl Opened {
    fn new(file: &Path, ui: &Path) -> Opened {
        // Somebody else may take a port that was free a moment ago.
        let mut reason = String::new();
        for _ in 0..5 {
            match Opened::try_new(file, ui) {
                Ok(opened) => return opened,
                Err(found) => reason = found,
            }
        }
        panic!("{reason}");
    }

    fn try_new(file: &Path, ui: &Path) -> Result<Opened, String> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let (sender, lines) = mpsc::channel();
        let port_text = port.to_string();
        let words =
            ["ncclscope", "open", file.to_str().unwrap(), "--no-browser", "--for", "5min", "--port", &port_text];
        let mut words: Vec<_> = words.map(str::to_owned).into();
        words.extend(["--ui".to_owned(), ui.to_str().unwrap().to_owned()]);
        let done = thread::spawn(move || {
            ncclscope::cli::run(words, &mut Said(sender)).map_err(|failure| format!("{failure:?}"))
        });
        let mut said = String::new();
        while !said.contains("Ctrl-C") {
            match lines.recv_timeout(Duration::from_secs(60)) {
                Ok(line) => said += &line,
                Err(_) => return Err(format!("it said {said}, then: {:?}", done.join())),
            }
        }
        Ok(Opened { port, said, lines })
    }

    /// Waits for this output.
    fn says(&self, what: &str) {
        let mut said = String::new();
        while !said.contains(what) {
            said += &self.lines.recv_timeout(Duration::from_secs(60)).expect("another line");
        }
    }

    fn link(&self) -> &str {
        let start = self.said.find("http://127.0.0.1").expect("a link");
        self.said[start..].split_whitespace().next().unwrap()
    }

    /// The path of the trace.
    fn path(&self) -> String {
        let link = self.link().replace("%3A", ":").replace("%2F", "/");
        let url = link.split("url=").nth(1).unwrap().split('&').next().unwrap();
        url.strip_prefix(&format!("http://127.0.0.1:{}", self.port)).unwrap().to_owned()
    }

    /// Makes a request. Returns the first line and headers of the answer, and its body.
    fn ask(&self, method: &str, path: &str, headers: &str) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        let host = if headers.contains("Host:") { String::new() } else { format!("Host: 127.0.0.1:{}\r\n", self.port) };
        write!(stream, "{method} {path} HTTP/1.1\r\n{host}{headers}Connection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("an answer");
        (String::from_utf8_lossy(&answer[..end]).into_owned(), answer[end + 4..].to_vec())
    }
}

#[test]
fn the_trace_is_served_once_and_only_to_the_viewer() {
    let (folder, file) = recorded();
    let ui = folder.path().join("ui");
    fs::create_dir(&ui).unwrap();
    fs::write(ui.join("index.html"), "<p>").unwrap();
    fs::write(ui.join("a b.wasm"), "w").unwrap();
    fs::write(folder.path().join("secret"), "s").unwrap();
    std::os::unix::fs::symlink(folder.path().join("secret"), ui.join("link")).unwrap();
    let opened = Opened::new(&file, &ui);
    let path = opened.path();
    assert!(path.len() > 32 + "/all.perfetto-trace".len() && path.ends_with("/all.perfetto-trace"), "{path}");
    const VIEWER: &str = "Origin: https://ui.perfetto.dev\r\n";

    let (head, _) = opened.ask("OPTIONS", &path, VIEWER);
    assert!(head.starts_with("HTTP/1.1 204") && head.contains("Access-Control-Allow-Private-Network: true"), "{head}");
    let (head, body) = opened.ask("HEAD", &path, VIEWER);
    assert!(head.starts_with("HTTP/1.1 200") && body.is_empty(), "{head}");
    for (method, path, headers, status) in [
        ("GET", "/all.perfetto-trace", VIEWER, 404),
        ("GET", &path[..path.len() - 1], VIEWER, 404),
        ("GET", &path, "Origin: https://example.com\r\n", 403),
        ("GET", &path, "Host: example.com\r\n", 403),
        ("POST", &path, VIEWER, 405),
        ("GET", "/", "", 200),
        ("GET", "/a%20b.wasm", "", 200),
        ("GET", "/../secret", "", 404),
        ("GET", "/%2e%2e/secret", "", 404),
        ("GET", "//etc/passwd", "", 404),
        ("GET", "/link", "", 404),
        ("POST", "/", "", 404),
    ] {
        let (head, _) = opened.ask(method, path, headers);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{method} {path} {headers}: {head}");
    }
    let (head, _) = opened.ask("GET", "/a%20b.wasm", "");
    assert!(head.contains("Content-Type: application/wasm"), "{head}");

    let (head, body) = opened.ask("GET", &path, VIEWER);
    assert!(head.contains("Access-Control-Allow-Origin: https://ui.perfetto.dev"), "{head}");
    assert_eq!(body, fs::read(&file).unwrap());
    // A browser may try again until it is known that everything arrived.
    opened.says("The trace was read");
    let (head, _) = opened.ask("GET", &path, VIEWER);
    assert!(head.starts_with("HTTP/1.1 410"), "{head}");
}

#[test]
fn changed_requests_are_answered_and_the_trace_is_still_served() {
    let case = fault::case(
        "input",
        "changed bytes in the requests to `ncclscope open`",
        "each is answered, if it has an end; none gets the trace, which the viewer gets afterwards",
    );
    const CHANGES: usize = 1000;
    let (folder, file) = recorded();
    let ui = folder.path().join("ui");
    fs::create_dir(&ui).unwrap();
    fs::write(ui.join("index.html"), "<p>").unwrap();
    let opened = Opened::new(&file, &ui);
    let host = format!("Host: 127.0.0.1:{}", opened.port);
    let seeds = [
        format!("GET /index.html?a=b#c HTTP/1.1\r\n{host}\r\nOrigin: https://ui.perfetto.dev\r\n\r\n"),
        format!("OPTIONS /%2e%2e/%00 HTTP/1.1\r\n{host}\r\nContent-Length: 3\r\n\r\nabc"),
        format!("HEAD / HTTP/1.1\r\n{host}\r\n{}\r\n", "X: y\r\n".repeat(70)),
    ];
    let mut random = 29_u64;
    let mut below = |bound: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % bound
    };
    let mut answered = 0;
    for number in 0..CHANGES {
        let mut bytes = seeds[number % seeds.len()].clone().into_bytes();
        for _ in 0..=below(3) {
            let at = below(bytes.len());
            match below(4) {
                0 => bytes[at] = below(256) as u8,
                1 => bytes[at] ^= 1 << below(8),
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b" \r\n\0\xff%/:?#"[below(10)]),
            }
        }
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, opened.port)).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let is_whole = bytes.windows(4).any(|four| four == b"\r\n\r\n");
        let said = String::from_utf8_lossy(&bytes);
        assert_eq!(answer.starts_with(b"HTTP/1.1 "), is_whole, "{number}: {said:?}");
        answered += usize::from(is_whole);
    }
    assert!(answered > CHANGES / 2, "{answered}");
    let (_, body) = opened.ask("GET", &opened.path(), "Origin: https://ui.perfetto.dev\r\n");
    assert_eq!(body, fs::read(&file).unwrap());
    case.survived(CHANGES as u64);
}

#[test]
fn a_file_that_cannot_be_opened_says_why() {
    let (folder, file) = recorded();
    let file = file.to_str().unwrap();
    let opened = |words: &[&str]| ncclscope(&[&["open", "--no-browser"], words].concat()).unwrap_err();
    let reason = opened(&[file, file, "--for", "1ms"]);
    assert!(reason.contains("the same process tag"), "{reason}");
    let empty = folder.path().join("empty");
    fs::write(&empty, "").unwrap();
    let reason = opened(&[empty.to_str().unwrap()]);
    assert!(reason.contains("the file is empty"), "{reason}");
    let none = folder.path().join("none");
    fs::create_dir(&none).unwrap();
    let reason = opened(&[none.to_str().unwrap()]);
    assert!(reason.contains("there is no trace (*.perfetto-trace) in this folder"), "{reason}");
    let other = concat!(env!("CARGO_MANIFEST_DIR"), "/data/kineto_1rank_nccl.json.gz");
    assert!(opened(&[other]).contains("ncclscope import makes a trace of it"), "{}", opened(&[other]));
    let reason = opened(&[file, "--ui", folder.path().to_str().unwrap()]);
    assert!(reason.contains("no index.html"), "{reason}");
    let reason = opened(&[file, "--port", "9002"]);
    assert!(reason.contains("--ui"), "{reason}");

    fs::write(folder.path().join("index.html"), "").unwrap();
    let ui = folder.path().to_str().unwrap();
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let reason = opened(&[file, "--ui", ui, "--port", &port]);
    assert!(reason.contains(&format!("port {port} is taken by outside")), "{reason}");
    assert!(reason.contains(&format!("kill {}", std::process::id())), "{reason}");
    drop(other);
    // Somebody else may take a port that was free a moment ago.
    let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port().to_string();
    let reasons = (0..5).map(|_| opened(&[file, "--ui", ui, "--port", &free(), "--for", "20ms"]));
    let reason = reasons.into_iter().find(|reason| !reason.contains("is taken by")).expect("a free port");
    assert!(reason.contains("nobody read the trace within 20ms"), "{reason}");
}

#[test]
fn a_link_shows_the_busy_part_with_the_communicators_pinned() {
    let (_folder, file) = recorded();
    let opened = Opened::new(&file, &viewer());
    let Some(shown) = browse(&["--link", opened.link(), "--view", "--pinned"]) else { return };
    let mut lines = shown.lines();
    let (begin, end) = lines.next().unwrap().split_once(' ').unwrap();
    assert!(opened.link().contains(&format!("visStart={begin}&visEnd={end}&")), "{shown}{}", opened.link());
    let pinned: BTreeSet<String> = lines.map(str::to_owned).collect();
    let trace = Trace::open(&file).unwrap();
    let with_operations = trace.rows(
        "SELECT DISTINCT t.name FROM slice s JOIN track t ON s.track_id = t.id WHERE s.category = 'operation' AND s.dur > 0",
    );
    assert!(with_operations.len() >= 5, "{with_operations:?}");
    for row in with_operations {
        assert!(pinned.contains(row.str("name")), "{} is not among {pinned:?}", row.str("name"));
    }
}

#[test]
fn each_replay_of_a_graph_is_compared_with_itself() {
    let script = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/graph_replay.txt")).unwrap();
    let mut bytes = Vec::new();
    for rank in ["0", "1"] {
        let play = Play::new(script.replace("rank=0", &format!("rank={rank}"))).env("NCCLSCOPE_RANK", rank);
        bytes.extend(fs::read(Recording::by(play).traces.file()).unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("both.perfetto-trace");
    fs::write(&file, bytes).unwrap();
    let opened = Opened::new(&file, &viewer());
    let link = decoded(opened.link());
    let commands = link.split("&startupCommands=").nth(1).unwrap();
    let commands: Vec<Value> = serde_json::from_str(commands).unwrap();
    let track =
        commands.iter().find(|command| command["id"].as_str().is_some_and(|id| id.ends_with("AddDebugSliceTrack")));
    let sql = track.and_then(|track| track["args"][0].as_str());
    let rows = Trace::open(&file).unwrap().rows(sql.expect("a track from SQL"));
    assert_eq!(rows.len(), 3, "three replays, each on both ranks: {rows:?}");
    for row in rows {
        // The second recording was made after the first.
        let late = match row.i64("dur") {
            ns @ 0..1_000_000 => format!("{:.0} us", ns as f64 / 1e3),
            ns => format!("{:.1} ms", ns as f64 / 1e6),
        };
        assert_eq!(row.str("name"), format!("rank 1 last, by {late} · AllReduce 4 MiB f32"));
    }
}

/// A link's text, decoded.
fn decoded(link: &str) -> String {
    let mut bytes = Vec::new();
    let mut parts = link.split('%');
    bytes.extend(parts.next().unwrap().as_bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).unwrap()
}

/// The folder of Perfetto's user interface.
fn viewer() -> PathBuf {
    let script =
        concat!("process.stdout.write(require('", env!("CARGO_MANIFEST_DIR"), "/perfetto/viewer.js').pages())");
    let output = Command::new("node").args(["-e", script]).output().expect("node can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap())
}
