//! Sends to an OpenTelemetry collector: OTLP over HTTP, as its specification requires of a client.
//!
//! A request that got no answer is sent again. The receiver recognises spans by their ids, which
//! stay the same.

use std::error::Error;
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use std::{env, thread};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use ureq::Agent;
use ureq::http::{HeaderName, HeaderValue, Uri};

use super::proto::{ExportPartialSuccess, ExportServiceResponse, Status};
use crate::cli::Reason;

/// How long an answer may take: OpenTelemetry's own default.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The wait after the first failure; it doubles after each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// How often it tries.
const TRIES: u32 = 6;
/// The longest wait that the receiver may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// The longest answer: OTLP's own limit for clients.
const ANSWER: u64 = 4 << 20;
/// The port for the other transport.
const GRPC: u16 = 4317;

/// What is sent; each kind has its own URL.
#[derive(Clone, Copy, Debug)]
pub(super) enum Signal {
    Traces,
    Metrics,
}

impl Signal {
    fn path(self) -> &'static str {
        match self {
            Signal::Traces => "v1/traces",
            Signal::Metrics => "v1/metrics",
        }
    }
}

/// A collector; threads share it.
pub(super) struct Collector {
    agent: Agent,
    /// Ends with a slash.
    base: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    is_gzip: bool,
    /// It has answered.
    is_there: AtomicBool,
    has_failed: AtomicBool,
    requests: AtomicU64,
    rejected: AtomicU64,
    /// The first remark of a partial success.
    remark: OnceLock<String>,
}

/// The pairs in `OTEL_EXPORTER_OTLP_HEADERS` and similar variables.
///
/// # Errors
///
/// If it is not `key=value,key=value`.
pub(super) fn pairs(variable: &str) -> Result<Vec<(String, String)>, Reason> {
    let Ok(text) = env::var(variable) else { return Ok(Vec::new()) };
    let pair = |part: &str| {
        let (key, value) = part.split_once('=').filter(|(key, _)| !key.trim().is_empty())?;
        let value = percent_encoding::percent_decode_str(value.trim()).decode_utf8().ok()?;
        Some((key.trim().to_owned(), value.into_owned()))
    };
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    // A header may be a secret: the value is not repeated.
    parts
        .map(|part| {
            pair(part).ok_or_else(|| Reason::Refused(format!("{variable} is not KEY=VALUE,KEY=VALUE with %-escapes")))
        })
        .collect()
}

impl Collector {
    /// A collector at this endpoint; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// If the endpoint is no http:// URL, or a variable of OpenTelemetry is malformed.
    pub(super) fn new(endpoint: &str) -> Result<Collector, Reason> {
        let refused = |why: &str| Reason::Refused(format!("--otlp {endpoint}: {why}"));
        let uri: Uri = endpoint.parse().map_err(|_| refused("this is not a URL: write http://HOST:4318"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(refused(
                    "ncclscope does not encrypt: send to a collector on this host or network by http://, and let that \
                     one forward to https",
                ));
            }
            _ => return Err(refused("the endpoint has to begin with http://, as in http://localhost:4318")),
        }
        if uri.query().is_some() || uri.host().is_none_or(str::is_empty) {
            return Err(refused("write http://HOST:PORT or http://HOST:PORT/PATH; v1/traces and v1/metrics are added"));
        }
        const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
        let headers = pairs(HEADERS)?.into_iter().map(|(name, value)| {
            let pair = (HeaderName::try_from(name), HeaderValue::try_from(value));
            let (Ok(name), Ok(value)) = pair else {
                return Err(Reason::Refused(format!(
                    "{HEADERS} has a name or a value that is not allowed in an HTTP header"
                )));
            };
            Ok((name, value))
        });
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(TIMEOUT))
            .user_agent(concat!("ncclscope/", env!("CARGO_PKG_VERSION")));
        Ok(Collector {
            agent: config.build().into(),
            base: format!("{}/", endpoint.trim_end_matches('/')),
            headers: headers.collect::<Result<_, _>>()?,
            is_gzip: env::var("OTEL_EXPORTER_OTLP_COMPRESSION").is_ok_and(|value| value == "gzip"),
            is_there: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            remark: OnceLock::new(),
        })
    }

    /// Whether something could not be sent: then nothing more is sent.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Requests that were taken.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// How many spans and data points the collector did not take, and what it said.
    pub(super) fn rejected(&self) -> (u64, Option<&str>) {
        (self.rejected.load(Ordering::Relaxed), self.remark.get().map(String::as_str))
    }

    /// Sends a request until it is taken.
    ///
    /// # Errors
    ///
    /// If it is refused, or was not taken after several tries, or another was not.
    pub(super) fn send(&self, signal: Signal, request: &impl Message) -> Result<(), Reason> {
        let sent = self.try_often(signal, request);
        if sent.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        sent
    }

    fn try_often(&self, signal: Signal, request: &impl Message) -> Result<(), Reason> {
        let url = format!("{}{}", self.base, signal.path());
        let mut body = request.encode_to_vec();
        if self.is_gzip {
            let mut packed = GzEncoder::new(Vec::new(), Compression::default());
            let done = packed.write_all(&body).and_then(|()| packed.finish());
            body = done.map_err(Reason::failed("compress a request"))?;
        }
        let failed = Reason::failed::<Box<dyn Error + Send + Sync>>(format!("send to {url}"));
        let mut wait = FIRST_WAIT;
        for tries in 1.. {
            if self.has_failed() {
                return Err(failed("another request failed".into()));
            }
            let (why, told) = match self.post(&url, &body) {
                Ok(Answer::Taken(partial)) => {
                    self.taken(&partial);
                    return Ok(());
                }
                Ok(Answer::Refused(why)) => return Err(failed(why.into())),
                Ok(Answer::Later(why, told)) => (why, told),
                Err(error) => {
                    let why = self.explained(error);
                    // A user who mistyped the endpoint should learn so at once.
                    if !self.is_there.load(Ordering::Relaxed) {
                        return Err(failed(why.into()));
                    }
                    (why, None)
                }
            };
            if tries == TRIES {
                return Err(failed(format!("{why}, {TRIES} times").into()));
            }
            if told.is_some_and(|told| told > LONGEST_WAIT) {
                let told = told.unwrap_or_default().as_secs();
                return Err(failed(format!("{why}, and asks for a retry in {told} s: send again then").into()));
            }
            thread::sleep(told.unwrap_or_else(|| varied(wait)));
            wait *= 2;
        }
        Ok(())
    }

    fn post(&self, url: &str, body: &[u8]) -> Result<Answer, ureq::Error> {
        let mut request = self.agent.post(url).header("content-type", "application/x-protobuf");
        if self.is_gzip {
            request = request.header("content-encoding", "gzip");
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let mut answer = request.send(body)?;
        self.is_there.store(true, Ordering::Relaxed);
        let status = answer.status();
        let later = answer.headers().get("retry-after").and_then(|value| after(value.to_str().ok()?));
        let is_protobuf =
            answer.headers().get("content-type").is_some_and(|of| of.as_bytes().starts_with(b"application/x-protobuf"));
        let said = answer.body_mut().with_config().limit(ANSWER).read_to_vec();
        if status.is_success() {
            let said = said?;
            // An answer in another format says nothing about rejected parts.
            let partial = is_protobuf.then(|| ExportServiceResponse::decode(&said[..]).ok()).flatten();
            return Ok(match partial {
                Some(answer) => Answer::Taken(answer.partial_success.unwrap_or_default()),
                None if said.is_empty() => Answer::Taken(ExportPartialSuccess::default()),
                None => {
                    Answer::Refused(format!("the answer ({status}) is not OTLP: is this the collector's HTTP port?"))
                }
            });
        }
        let said = said.unwrap_or_default();
        let said = match is_protobuf.then(|| Status::decode(&said[..]).ok()).flatten() {
            Some(status) => status.message,
            None => String::from_utf8_lossy(&said).into_owned(),
        };
        let said: String = said.trim().chars().filter(|letter| !letter.is_control()).take(500).collect();
        let colon = if said.is_empty() { "" } else { ": " };
        let why = format!("the collector answers {status}{colon}{said}");
        Ok(match status.as_u16() {
            429 | 502..=504 => Answer::Later(why, later),
            404 | 405 => Answer::Refused(format!("{why}; nothing takes OTLP over HTTP there")),
            _ => Answer::Refused(why),
        })
    }

    fn taken(&self, partial: &ExportPartialSuccess) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.rejected.fetch_add(partial.rejected.try_into().unwrap_or(0), Ordering::Relaxed);
        if !partial.error_message.is_empty() {
            let _ = self.remark.set(partial.error_message.clone());
        }
    }

    fn explained(&self, error: ureq::Error) -> String {
        let is_grpc = self.base.parse::<Uri>().is_ok_and(|uri| uri.port_u16() == Some(GRPC));
        let what = match error {
            ureq::Error::Io(error) => error.to_string(),
            ureq::Error::HostNotFound => "there is no such host".to_owned(),
            ureq::Error::Timeout(_) => format!("no answer in {} s", TIMEOUT.as_secs()),
            error => error.to_string(),
        };
        let hint = if is_grpc { "; 4317 is the port for gRPC, and 4318 is the one for HTTP" } else { "" };
        format!("{what}{hint}")
    }
}

enum Answer {
    Taken(ExportPartialSuccess),
    /// For good.
    Refused(String),
    /// For now; it may say for how long.
    Later(String, Option<Duration>),
}

/// What `Retry-After` says: seconds, or a date.
fn after(text: &str) -> Option<Duration> {
    let text = text.trim();
    let date = || Some(httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).unwrap_or_default());
    text.parse().ok().map(Duration::from_secs).or_else(date)
}

/// Between 0.5 and 1.5 times a wait, so that the ranks of a job do not all retry at once.
fn varied(wait: Duration) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    wait / 2 + wait.mul_f64(f64::from(now ^ std::process::id()) % 1e9 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_of_http() {
        for (endpoint, words) in [
            ("localhost:4318", "begin with http://"),
            ("https://collector", "does not encrypt"),
            ("ftp://collector", "begin with http://"),
            ("http://", "not a URL"),
            ("http://collector:4318/?key=1", "v1/traces and v1/metrics are added"),
            ("a b", "not a URL"),
        ] {
            let reason = Collector::new(endpoint).err().map(|reason| reason.to_string()).unwrap_or_default();
            assert!(reason.contains(words), "{endpoint}: {reason}");
        }
        assert_eq!(Collector::new("http://[::1]:4318/otlp/").unwrap().base, "http://[::1]:4318/otlp/");
    }

    #[test]
    fn retry_after_is_a_number_of_seconds_or_a_date() {
        assert_eq!(after(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert_eq!(after("soon"), None);
    }
}
