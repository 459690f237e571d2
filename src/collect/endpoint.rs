//! Metrics at a port of the loopback interface, for Prometheus: one thread, one request at a time.

use std::io::{self, Read as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::sys::socket::{Connection, Port};
use crate::{fault, threads};

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often to check for a request.
const LOOK: Duration = Duration::from_millis(200);
/// The longest request.
const REQUEST: usize = 8 << 10;

/// The open port. It closes when this is dropped.
pub(super) struct Endpoint {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    text: Mutex<Arc<str>>,
    is_over: AtomicBool,
}

impl Endpoint {
    /// Opens a port.
    ///
    /// # Errors
    ///
    /// The operating system's reason, such as that another process has the port.
    pub(super) fn open(port: u16) -> io::Result<Endpoint> {
        let port = Port::open(port)?;
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let body = move || {
            if catch_unwind(AssertUnwindSafe(|| answer_all(&port, &theirs))).is_err() {
                fault::say(format_args!("ended the metrics at the port"));
            }
        };
        threads::start(c"ncclscope metrics", body)?;
        Ok(Endpoint { shared })
    }

    /// From here on these are the metrics.
    pub(super) fn serve(&self, text: &str) {
        *self.shared.text.lock().unwrap_or_else(PoisonError::into_inner) = text.into();
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

fn answer_all(port: &Port, shared: &Shared) {
    while !shared.is_over.load(Ordering::Relaxed) && port.is_ours() {
        match port.accept(PATIENCE) {
            // A client that sends no request, or does not listen, gets no answer.
            Ok(connection) => drop(answer(connection, shared)),
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

fn answer(mut stream: Connection, shared: &Shared) -> io::Result<()> {
    fault::at("answer");
    let (mut request, mut length) = ([0; REQUEST], 0);
    let begin = Instant::now();
    while !request[..length].windows(4).any(|it| it == b"\r\n\r\n") {
        match stream.read(&mut request[length..])? {
            0 => return Ok(()),
            _ if begin.elapsed() > PATIENCE => return Ok(()),
            count => length += count,
        }
    }
    let asked = request[..length].split(|byte| *byte == b'\r').next().unwrap_or_default();
    let text = shared.text.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (status, kind, body) = match asked {
        b"GET /metrics HTTP/1.1" | b"GET /metrics HTTP/1.0" => ("200 OK", "text/plain; version=0.0.4", &*text),
        _ => ("404 Not Found", "text/plain", "ncclscope: there is only /metrics\n"),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    /// Whatever one client sends, the next one gets an answer.
    #[test]
    fn any_request_is_answered_or_dropped() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let endpoint = Endpoint::open(free.port()).unwrap();
        endpoint.serve("a_metric 1\n");
        let ask = |request: &[u8]| {
            let mut stream = TcpStream::connect(free).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            // The other side may have hung up already.
            let _ = stream.write_all(request);
            let _ = stream.shutdown(Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            String::from_utf8_lossy(&answer).into_owned()
        };
        let good = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
        let mut state = 1_u64;
        for round in 0..60 {
            let mut request = good.to_vec();
            for _ in 0..=round % 5 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 33) as usize % request.len();
                request[at] = (state >> 16) as u8;
            }
            if round % 10 == 0 {
                // More than there is room for, and no end of it.
                request = vec![b'x'; REQUEST + round * 100];
            }
            let answer = ask(&request);
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 "), "round {round}: {answer}");
        }
        assert!(ask(good).ends_with("\r\n\r\na_metric 1\n"));
    }
}
