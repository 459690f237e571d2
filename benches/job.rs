//! Shared by the measurements of large jobs: the traces of all ranks, and the time and memory that
//! a program takes.

#[allow(dead_code, reason = "each measurement needs a part of it")]
#[path = "../tests/synthetic.rs"]
pub(crate) mod synthetic;

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use synthetic::{Job, Size};

/// What the command line asks for.
pub(crate) struct Asked {
    pub(crate) ranks: u32,
    pub(crate) hosts: u32,
    pub(crate) steps: u32,
    /// The folder for a temporary folder.
    pub(crate) folder: PathBuf,
    /// The program to measure.
    pub(crate) program: PathBuf,
}

impl Asked {
    /// By default, 64 ranks on 8 hosts, in the system's temporary folder.
    pub(crate) fn read() -> Asked {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let said = |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
        let number = |name: &str, otherwise: u32| said(name).and_then(|word| word.parse().ok()).unwrap_or(otherwise);
        Asked {
            ranks: number("--ranks", 64),
            hosts: number("--hosts", 8),
            steps: number("--steps", 2_000),
            folder: said("--folder").map_or_else(std::env::temp_dir, PathBuf::from),
            program: said("--program").map_or_else(|| env!("CARGO_BIN_EXE_ncclscope").into(), PathBuf::from),
        }
    }
}

/// Writes all files, on all cores.
pub(crate) fn written(job: &Job, ranks: u32, path: &(impl Fn(u32) -> PathBuf + Sync)) -> io::Result<Size> {
    let next = AtomicU32::new(0);
    let some = || -> io::Result<Size> {
        let mut all = Size::default();
        loop {
            let rank = next.fetch_add(1, Ordering::Relaxed);
            if rank >= ranks {
                return Ok(all);
            }
            let Size { events, bytes } = job.write(rank, true, &mut BufWriter::new(File::create(path(rank))?))?;
            (all.events, all.bytes) = (all.events + events, all.bytes + bytes);
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(some)).collect();
        threads.into_iter().try_fold(Size::default(), |all, thread| {
            let Size { events, bytes } = thread.join().expect("no panic")?;
            Ok(Size { events: all.events + events, bytes: all.bytes + bytes })
        })
    })
}

/// What a program took.
pub(crate) struct Watched {
    /// On the clock, and of processors.
    pub(crate) seconds: f64,
    pub(crate) cpu: f64,
    /// Its peak memory, in bytes.
    pub(crate) peak: u64,
}

/// Runs a program, and samples its memory all the time.
pub(crate) fn watched(command: &mut Command) -> io::Result<Watched> {
    let (begin, mut child) = (Instant::now(), command.spawn()?);
    let folder = PathBuf::from(format!("/proc/{}", child.id()));
    let of = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
    let (mut peak, mut ticks) = (0, 0);
    let ended = loop {
        let (status, stat) = (of("status"), of("stat"));
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        peak = peak.max(line.and_then(|kib| kib.parse().ok()).unwrap_or(0) << 10);
        // Behind the name: user's and system's time are the 12th and 13th; of the children who are
        // waited for, the two after them.
        let times = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(4);
        ticks = ticks.max(times.filter_map(|time| time.parse::<u64>().ok()).sum());
        match child.try_wait()? {
            Some(ended) => break ended,
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let (seconds, cpu) = (begin.elapsed().as_secs_f64(), ticks as f64 / 100.0);
    if ended.success() { Ok(Watched { seconds, cpu, peak }) } else { Err(io::Error::other(ended.to_string())) }
}
