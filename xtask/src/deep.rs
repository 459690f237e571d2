//! The plugin under sanitizers, with scenarios and floods from the scripted host; the recorder
//! under Miri; and plugin and host for aarch64, under QEMU.
//!
//! Sanitizers are a feature of nightly compilers; `RUSTC_BOOTSTRAP` enables them in this one. The
//! standard library that comes with a compiler is not built with them. For addresses and leaks that
//! does not matter. The thread sanitizer, however, does not see the ordering by locks inside the
//! standard library, and reports races on what they protect. So its reports count only if both
//! sides are [lock-free code](LOCK_FREE). It does not support fences either.

use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use crate::check::PLUGIN;
use crate::elf::INTERFACES;
use crate::package::has_standard_library;
use crate::steps::{Failure, Outcome, Place, Step, call, show, step, triple};

pub(crate) const STEPS: &[Step] = &[
    step("address", "no memory error in any scenario", |place| ADDRESS.run(place)),
    step("leak", "no memory lost in any scenario", |place| LEAK.run(place)),
    step("thread", "no data race in any scenario", |place| THREAD.run(place)),
    step("captures", "fifty thousand changed captures are replayed or refused", captures),
    step("fuzz", "the fuzz targets compile", fuzz),
    step("miri", "no undefined behaviour in the recorder", miri),
    step("aarch64", "the scripted host and the library for aarch64, under QEMU", aarch64),
];

/// The flood: more threads than cores, and long enough to fill every ring.
const FLOOD: [&str; 4] = ["--threads", "8", "--events", "100000"];

/// A run that takes this many seconds counts as hung.
const LIMIT: &str = "300";

/// How the paths of functions in this workspace begin.
const OURS: [&str; 3] = ["ncclscope::", "ncclscope_tests::", "scripted_host::"];

/// The modules that order memory themselves, without locks.
const LOCK_FREE: [&str; 3] = ["ncclscope::abi::", "ncclscope::clock::", "ncclscope::record::"];

/// How the thread sanitizer's description of one access begins.
const ACCESS: [&str; 4] = ["Read ", "Write ", "Atomic ", "Previous "];

struct Sanitizer {
    name: &'static str,
    flags: &'static str,
    /// The environment variable for its options, and their value.
    options: (&'static str, &'static str),
    /// Whether the host's standard error contains a report against the plugin.
    accuses: fn(&str) -> bool,
    /// What it does not detect.
    gap: Option<&'static str>,
}

const ADDRESS: Sanitizer = Sanitizer {
    name: "address",
    flags: "-Zsanitizer=address",
    options: ("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=1"),
    accuses: |words| words.contains("ERROR: AddressSanitizer"),
    gap: None,
};

const LEAK: Sanitizer = Sanitizer {
    name: "leak",
    flags: "-Zsanitizer=leak",
    // The host itself leaks some memory.
    options: ("LSAN_OPTIONS", "exitcode=0"),
    accuses: |words| {
        let mut leaks = stacks(words).filter(|(title, _)| title.contains(" leak of "));
        leaks.any(|(_, culprit)| culprit.starts_with("ncclscope::"))
    },
    gap: None,
};

const THREAD: Sanitizer = Sanitizer {
    name: "thread",
    // The standard library was built without it, which must be allowed.
    flags: "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer",
    // A script may fork while other threads run.
    options: ("TSAN_OPTIONS", "exitcode=0:die_after_fork=0"),
    accuses: |words| {
        words.split("WARNING: ThreadSanitizer").skip(1).any(|report| {
            let access = |title: &str| ACCESS.iter().any(|word| title.trim_start().starts_with(word));
            let mut sides = stacks(report).filter(|(title, _)| access(title)).peekable();
            let lock_free = |culprit: &str| LOCK_FREE.iter().any(|module| culprit.starts_with(module));
            sides.peek().is_some() && sides.all(|(_, culprit)| lock_free(culprit))
        })
    },
    gap: Some("left out: races in code that uses the standard library's locks, which this compiler cannot instrument"),
};

/// The stacks of a report: the line above each, and the innermost function that belongs to this
/// workspace.
fn stacks(report: &str) -> impl Iterator<Item = (&str, &str)> {
    report.split("\n\n").map(|stack| {
        let (title, frames) = stack.split_once("\n    #").unwrap_or((stack, ""));
        let mut functions = frames.lines().map(function);
        let ours = |function: &&str| OURS.iter().any(|name| function.starts_with(name));
        (title.lines().last().unwrap_or_default(), functions.find(ours).unwrap_or_default())
    })
}

/// The function's path in a frame, `#1 0x2 in path file` or `#1 path file`, or its type's where it
/// is a method.
fn function(frame: &str) -> &str {
    let (_, rest) = frame.trim_start().split_once(' ').unwrap_or_default();
    let path = match rest.split_once(" in ") {
        Some((address, path)) if address.starts_with("0x") => path,
        _ => rest,
    };
    path.trim_start_matches('<')
}

impl Sanitizer {
    fn run(&self, place: &Place) -> Result<Outcome, Failure> {
        let folder = place.target.join("sanitize").join(self.name);
        let host = ["-p", "ncclscope-tests", "--bin", "scripted-host", "-q"];
        call(self.build(place, &folder).args(PLUGIN))?;
        call(self.build(place, &folder).args(host))?;

        let built = folder.join(triple(ARCH)).join("debug");
        let output = folder.join("traces");
        // Left by an earlier run; often there is nothing.
        let _ = fs::remove_dir_all(&output);
        let mut runs = 0;
        for script in scenarios(place)? {
            for interface in INTERFACES {
                let mut host = self.host(place, &built, &output);
                host.arg("play").arg(&script.path);
                self.judge(host, &built, interface, script.ends_itself)?;
                runs += 1;
            }
        }
        for interface in INTERFACES {
            let mut host = self.host(place, &built, &output);
            host.arg("flood").args(FLOOD);
            self.judge(host, &built, interface, false)?;
            runs += 1;
        }
        println!("   {runs} runs of the scripted host");
        Ok(self.gap.map_or(Outcome::Done, |gap| Outcome::Partly(gap.to_owned())))
    }

    fn build(&self, place: &Place, folder: &Path) -> Command {
        let mut command = place.cargo();
        command
            .env("RUSTC_BOOTSTRAP", "1")
            // The sanitizer is linked into the program. The library finds it there if the program
            // exports its symbols.
            .env("RUSTFLAGS", format!("{} --cfg sanitize_build -Clink-arg=-rdynamic", self.flags))
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            // With an explicit target, build scripts are not sanitized.
            .args(["build", "--target", &triple(ARCH), "--target-dir"])
            .arg(folder);
        command
    }

    fn host(&self, place: &Place, built: &Path, output: &Path) -> Command {
        let mut command = place.command("timeout");
        command
            .env(self.options.0, self.options.1)
            .env("NCCLSCOPE_OUTPUT", output)
            .args(["--kill-after=5", LIMIT])
            .arg(built.join("scripted-host"));
        command
    }

    /// Runs the host. Fails on a report; and on an unexpected end, which of a script that ends the
    /// process itself is only that its time was up.
    fn judge(&self, mut host: Command, built: &Path, interface: u32, ends_itself: bool) -> Result<(), Failure> {
        host.arg("--plugin").arg(built.join("libncclscope.so"));
        host.arg("--interface").arg(interface.to_string());
        let shown = show(&host);
        let done = host.output().map_err(|error| format!("failed to start {shown}: {error}"))?;
        let words = String::from_utf8_lossy(&done.stderr);
        let is_expected = if ends_itself { !was_hung(done.status) } else { done.status.success() };
        if !(self.accuses)(&words) && is_expected {
            return Ok(());
        }
        Err(Failure { reason: format!("{}\n{}", words.trim_end(), done.status), again: Some(shown) })
    }
}

/// Whether `timeout` ended its command, and with it itself where it had to kill it.
fn was_hung(status: ExitStatus) -> bool {
    matches!(status.code(), Some(124 | 137)) || status.signal() == Some(9)
}

/// A script for the scripted host.
struct Script {
    path: PathBuf,
    /// Whether it decides how its process ends.
    ends_itself: bool,
}

/// Everything in tests/scenarios, by name.
fn scenarios(place: &Place) -> Result<Vec<Script>, String> {
    let folder = place.root.join("tests/scenarios");
    let explain = |error: std::io::Error| format!("failed to read {}: {error}", folder.display());
    let mut scripts = Vec::new();
    for entry in fs::read_dir(&folder).map_err(explain)? {
        let path = entry.map_err(explain)?.path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            let text = fs::read_to_string(&path).map_err(explain)?;
            let verbs = text.lines().filter_map(|line| line.split_whitespace().nth(1));
            let ends_itself = verbs.into_iter().any(|verb| matches!(verb, "exit" | "_exit" | "abort" | "kill"));
            scripts.push(Script { path, ends_itself });
        }
    }
    if scripts.is_empty() {
        return Err(format!("there is no scenario in {}", folder.display()));
    }
    scripts.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(scripts)
}

fn captures(place: &Place) -> Result<Outcome, Failure> {
    let mut command = place.cargo();
    command.env("NCCLSCOPE_MUTATIONS", "50000");
    call(command.args(["test", "-p", "ncclscope-tests", "--test", "mutated"]))?;
    Ok(Outcome::Done)
}

/// Without libFuzzer, which only linking needs.
fn fuzz(place: &Place) -> Result<Outcome, Failure> {
    let mut command = place.cargo();
    command.env("CUSTOM_LIBFUZZER_PATH", "/none/libnone.a");
    command.args(["check", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--target-dir"]);
    call(command.arg(place.target.join("fuzz")))?;
    Ok(Outcome::Done)
}

fn miri(place: &Place) -> Result<Outcome, Failure> {
    let installed = place.cargo().args(["miri", "--version"]).output();
    if !installed.is_ok_and(|version| version.status.success()) {
        let reason = "skipped: this toolchain has no Miri (rustup +nightly component add miri)";
        return Ok(Outcome::Partly(reason.to_owned()));
    }
    let mut command = place.cargo();
    command.args(["miri", "test", "-p", "ncclscope", "--lib", "--no-default-features", "--target-dir"]);
    call(command.arg(place.target.join("miri")).args(["--", "record::"]))?;
    Ok(Outcome::Done)
}

/// Runs the tests of this machine with a library and a scripted host that QEMU executes.
fn aarch64(place: &Place) -> Result<Outcome, Failure> {
    const SYSTEM: &str = "/usr/aarch64-linux-gnu/lib";
    const LINKER: &str = "aarch64-linux-gnu-gcc";
    let target = triple("aarch64");
    for (there, how) in [
        (has_standard_library(place, "aarch64")?, format!("rustup target add {target}")),
        (place.command(LINKER).arg("--version").output().is_ok(), "apt-get install gcc-aarch64-linux-gnu".to_owned()),
        (Path::new(SYSTEM).is_dir(), "apt-get install libc6-dev-arm64-cross".to_owned()),
        (place.command("qemu-aarch64").arg("--version").output().is_ok(), "apt-get install qemu-user".to_owned()),
    ] {
        if !there {
            return Ok(Outcome::Partly(format!("skipped: it needs `{how}`")));
        }
    }

    let folder = place.target.join("aarch64");
    let host = ["-p", "ncclscope-tests", "--bin", "scripted-host", "-q"];
    for what in [&PLUGIN[..], &host] {
        let mut cargo = place.cargo();
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
        call(cargo.args(["build", "--target", &target, "--target-dir"]).arg(&folder).args(what))?;
    }
    let built = folder.join(&target).join("debug");
    let emulated = folder.join("scripted-host");
    // Not `-L`: QEMU would look for the files of tests there, too.
    let script = format!(
        "#!/bin/sh\nexec qemu-aarch64 {SYSTEM}/ld-linux-aarch64.so.1 --library-path {SYSTEM} '{}' \"$@\"\n",
        built.join("scripted-host").display()
    );
    fs::write(&emulated, script)
        .and_then(|()| fs::set_permissions(&emulated, fs::Permissions::from_mode(0o755)))
        .map_err(|error| format!("failed to write {}: {error}", emulated.display()))?;
    let mut tests = place.cargo();
    tests.env("NCCLSCOPE_TEST_HOST", &emulated).env("NCCLSCOPE_TEST_PLUGIN", built.join("libncclscope.so"));
    // The golden texts of scenarios, and one more test, have the process's name, which is QEMU's.
    tests.args(["test", "--workspace", "--test", "outside", "--", "hard_cases::", "lifecycle::"]);
    tests.args(["--skip", "a_process_is_named"]);
    call(&mut tests)?;
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RACE: &str = "\
==================
WARNING: ThreadSanitizer: data race (pid=1)
  Write of size 8 at 0x1 by thread T2:
    #0 core::ptr::write::<u64> core/src/ptr/mod.rs:1917:41 (libncclscope.so+0x1)
    #1 <ncclscope::record::ring::Writer>::push src/record/ring.rs:10:1 (libncclscope.so+0x2)
    #2 ncclscope_tests::flood::send tests/support/flood.rs:10:1 (scripted-host+0x3)

  Previous read of size 8 at 0x1 by thread T1:
    #0 <ncclscope::record::ring::Reader>::pop src/record/ring.rs:20:1 (libncclscope.so+0x4)
    #1 ncclscope::collect::collector::run src/collect/collector.rs:20:1 (libncclscope.so+0x5)

  Location is global 'ncclscope::record::ring::RING' of size 8 at 0x1 (libncclscope.so+0x1)

  Thread T1 (tid=2, running) created by main thread at:
    #0 pthread_create sanitizer.cpp:1078:3 (scripted-host+0x6)
    #1 ncclscope::profiler::start src/profiler.rs:1:1 (libncclscope.so+0x7)

SUMMARY: ThreadSanitizer: data race src/record/ring.rs:10:1
";

    #[test]
    fn a_script_that_hangs_has_not_ended_itself() {
        let end = |limit: &str, script: &str| {
            Command::new("timeout").args(["--kill-after=0.1", limit, "bash", "-c", script]).status().unwrap()
        };
        assert!(was_hung(end("0.1", "sleep 60")));
        assert!(was_hung(end("0.1", "trap '' TERM; while true; do sleep 1; done")));
        for script in ["exit 0", "exit 7", "kill -ABRT $$"] {
            assert!(!was_hung(end("60", script)), "{script}");
        }
    }

    #[test]
    fn a_race_counts_between_lock_free_code_only() {
        assert!((THREAD.accuses)(RACE));
        assert!(!(THREAD.accuses)(&RACE.replace("<ncclscope::record::ring::Reader>", "<ncclscope::report::Report>")));
        assert!(!(THREAD.accuses)(&RACE.replace("<ncclscope::record::ring::Writer>", "ncclscope_tests::host::write")));
        let buffer = "<alloc::vec::Vec<ncclscope::record::Record>>::push";
        assert!(!(THREAD.accuses)(&RACE.replace("<ncclscope::record::ring::Reader>::pop", buffer)));
        assert!(!(THREAD.accuses)(""));
    }

    #[test]
    fn a_leak_counts_where_the_plugin_allocated_it() {
        let leak = |frame| {
            format!(
                "==1==ERROR: LeakSanitizer: detected memory leaks\n\n\
                 Direct leak of 8 byte(s) in 1 object(s) allocated from:\n    \
                 #0 0x1 in malloc lsan_interceptors.cpp:74:3\n    #1 0x2 in {frame} file.rs:1:1\n    \
                 #2 0x3 in scripted_host::main tests/support/main.rs:1:1\n\n\
                 SUMMARY: LeakSanitizer: 8 byte(s) leaked in 1 allocation(s).\n"
            )
        };
        assert!((LEAK.accuses)(&leak("ncclscope::abi::init")));
        assert!(!(LEAK.accuses)(&leak("ncclscope_tests::player::play")));
    }
}
