//! How fast and in how much memory `ncclscope merge` joins a large job, beside copying its bytes; and the same with half of the files damaged.
//!
//! ```text
//! cargo bench --bench merge [-- --ranks 1024 --hosts 128 --steps 6000 --folder FOLDER]
//! ```
//!
//! Without anything said, 64 ranks on 8 hosts. The ranks are synthetic (`tests/synthetic.rs`). Everything is removed at the end.

#[path = "../tests/synthetic.rs"]
mod synthetic;

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use synthetic::{Damage, Job, Size};

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let said = |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    let number = |name: &str, otherwise: u32| said(name).and_then(|word| word.parse().ok()).unwrap_or(otherwise);
    let (ranks, hosts, steps) = (number("--ranks", 64), number("--hosts", 8), number("--steps", 2_000));
    let above = said("--folder").map_or_else(std::env::temp_dir, PathBuf::from);
    let program = said("--program").map_or_else(|| env!("CARGO_BIN_EXE_ncclscope").into(), PathBuf::from);
    let folder = tempfile::Builder::new().prefix("ncclscope-merge").tempdir_in(above)?;
    let (traces, joined) = (folder.path().join("traces"), folder.path().join("joined"));
    fs::create_dir(&traces)?;

    let job = Job::new(ranks, hosts, steps.into());
    let path = |rank: u32| traces.join(job.name(rank));
    let begin = Instant::now();
    let size = written(&job, ranks, &path)?;
    println!(
        "{ranks} synthetic ranks on {hosts} hosts, {} events each, {} MB, written in {:.0} s\n",
        size.events / u64::from(ranks),
        size.bytes / 1_000_000,
        begin.elapsed().as_secs_f64()
    );
    println!("| | s | MB/s | million events/s | peak memory, MB |\n| --- | --- | --- | --- | --- |");
    let row = |what: &str, Size { events, bytes, .. }: Size, seconds: f64, peak: u64| {
        let rate = |number: u64| number as f64 / 1e6 / seconds;
        println!("| {what} | {seconds:.1} | {:.0} | {:.2} | {} |", rate(bytes), rate(events), peak >> 20);
    };
    let copy = Command::new("sh")
        .args(["-c", "cat \"$0\"/* > \"$1\""])
        .args([&traces, &joined])
        .stdout(Stdio::null())
        .spawn()?;
    let (seconds, peak) = watched(copy)?;
    row("the bytes copied (`cat`)", size, seconds, peak);
    fs::remove_file(&joined)?;
    let merge = |what: &str, size: Size| -> io::Result<String> {
        let said = folder.path().join("said");
        let mut merge = Command::new(&program);
        merge.arg("merge").args([&*traces, Path::new("-o"), &*joined]);
        let (seconds, peak) = watched(merge.stdout(File::create(&said)?).spawn()?)?;
        row(what, size, seconds, peak);
        println!("| what it wrote | | | | {} MB |", fs::metadata(&joined)?.len() / 1_000_000);
        fs::remove_file(&joined)?;
        fs::read_to_string(said)
    };
    let said = merge("`ncclscope merge`", size)?;
    let left_out = said.lines().filter(|line| line.starts_with("left out: ")).count();
    if words.iter().any(|word| word == "--say") {
        said.lines().take(5).for_each(|line| println!("  {line}"));
    }
    for rank in (0..ranks).filter(|rank| rank % 2 == 1) {
        let mut bytes = fs::read(path(rank))?;
        let next = fs::read(path((rank + 1) % ranks))?;
        Damage::ALL[rank as usize / 2 % Damage::ALL.len()].wreak(&mut bytes, || next);
        fs::write(path(rank), bytes)?;
    }
    let half = Size { events: size.events / 2, packets: size.packets / 2, bytes: size.bytes / 2 };
    let said = merge("the same, half of the files damaged", half)?;
    let count = |what: &str| said.lines().filter(|line| line.contains(what)).count();
    println!("\nleft out: {left_out} before, {} of the damaged; cut: {}", count("left out: "), count("unfinished packet"));
    Ok(())
}

/// Writes all files, on all cores.
fn written(job: &Job, ranks: u32, path: &(impl Fn(u32) -> PathBuf + Sync)) -> io::Result<Size> {
    let next = AtomicU32::new(0);
    let some = || -> io::Result<Size> {
        let mut all = Size::default();
        loop {
            let rank = next.fetch_add(1, Ordering::Relaxed);
            if rank >= ranks {
                return Ok(all);
            }
            let Size { events, packets, bytes } = job.write(rank, true, &mut BufWriter::new(File::create(path(rank))?))?;
            (all.events, all.packets, all.bytes) = (all.events + events, all.packets + packets, all.bytes + bytes);
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(some)).collect();
        threads.into_iter().try_fold(Size::default(), |all, thread| {
            let Size { events, packets, bytes } = thread.join().expect("no panic")?;
            Ok(Size { events: all.events + events, packets: all.packets + packets, bytes: all.bytes + bytes })
        })
    })
}

/// How long a program takes, in seconds, and the most memory that it had at a time, in bytes.
fn watched(mut child: Child) -> io::Result<(f64, u64)> {
    let (begin, mut peak) = (Instant::now(), 0);
    let status = format!("/proc/{}/status", child.id());
    let ended = loop {
        let line = fs::read_to_string(&status).unwrap_or_default();
        let kib = line.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
        peak = kib.map_or(peak, |kib: u64| kib << 10);
        match child.try_wait()? {
            Some(ended) => break ended,
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    if ended.success() { Ok((begin.elapsed().as_secs_f64(), peak)) } else { Err(io::Error::other(ended.to_string())) }
}
