//! Tests in processes of their own.

use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use emulated_cupti::release::Release;

use crate::library::Cupti;

/// Set in a child process.
const CHILD: &str = "EMULATED_CUPTI_TEST_ALONE";
/// Gives a child the path of a real library.
const REAL: &str = "EMULATED_CUPTI_TEST_REAL";
/// Far longer than any test takes.
const LIMIT: Duration = Duration::from_secs(60);

/// How a process ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stderr: String,
}

impl Ended {
    /// Fails if the process did.
    pub(crate) fn succeeded(&self, options: &str) {
        assert!(self.status.success(), "with EMULATED_CUPTI={options}: {}\n{}", self.status, self.stderr);
    }
}

/// Runs `body` in a process of its own, with `options` in `EMULATED_CUPTI`, and fails if it does.
///
/// Call it with only one closure per test, but with several options if need be.
pub(crate) fn alone<B: FnOnce()>(options: &str, body: B) {
    let ended = run(options, body);
    ended.succeeded(options);
}

/// Runs `body` in a process of its own, which it must not survive; `says` must appear on stderr.
pub(crate) fn dies<B: FnOnce()>(options: &str, says: &str, body: B) {
    use std::os::unix::process::ExitStatusExt;
    let ended = run(options, body);
    assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "with {options}: {}\n{}", ended.status, ended.stderr);
    assert!(ended.stderr.contains(says), "{says:?} is not in:\n{}", ended.stderr);
}

/// Runs `body` in a process of its own.
pub(crate) fn run<B: FnOnce()>(options: &str, body: B) -> Ended {
    run_with(options, None, body)
}

/// The value that the parent gave the last of this process's options.
pub(crate) fn last_option<T: FromStr>() -> T {
    let options = std::env::var("EMULATED_CUPTI").expect("the parent sets it");
    options.rsplit('=').next().and_then(|value| value.parse().ok()).expect("it is there")
}

/// The release that this process emulates, if the parent gave it no other option.
pub(crate) fn release() -> Release {
    Release::named(&last_option::<String>()).expect("the parent names one")
}

/// The real library that the parent chose for this process.
pub(crate) fn real() -> Option<Cupti> {
    std::env::var_os(REAL).map(|path| Cupti::open(path.as_ref()))
}

/// Runs `body` in a process of its own, where [`real`] is this library. The process runs this test
/// again, which gets here and goes no further.
pub(crate) fn run_with<B: FnOnce()>(options: &str, real: Option<&Path>, body: B) -> Ended {
    if std::env::var_os(CHILD).is_some() {
        body();
        std::process::exit(0);
    }
    // `crate::module::test::{{closure}}`
    let path = std::any::type_name::<B>();
    let test = path.split("::").skip(1).take_while(|part| !part.starts_with("{{")).collect::<Vec<_>>().join("::");
    let program = std::env::current_exe().expect("a program has a path");
    let mut child = Command::new(program)
        .args(["--exact", &test, "--nocapture", "--test-threads=1"])
        .env("EMULATED_CUPTI", options)
        .env(CHILD, "1")
        .envs(real.map(|path| (REAL, path)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the test program can be started again");
    let mut stderr = child.stderr.take().expect("it is piped");
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stderr.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status;
        }
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{test} with EMULATED_CUPTI={options} took more than {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Ended { status, stderr: reader.join().expect("reading does not panic") }
}
