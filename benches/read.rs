//! The processor time of reading a trace, on all threads together, and the memory. The time is
//! compared with inflating the trace on one thread, with the same library, which no reader can
//! avoid.
//!
//! ```text
//! cargo bench --bench read [-- FILE]
//! ```
//!
//! Without a file: a synthetic rank (`tests/synthetic.rs`) with two million events.

#[allow(dead_code, reason = "it needs no large job")]
mod job;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::bufread::ZlibDecoder;
use job::synthetic::Job;
use job::watched;
use ncclscope::trace::reader::{self, Error};

/// Each has 15 or 16 slices, instants and counter values.
const STEPS: u64 = 130_000;
/// How often each is measured; the quickest time counts.
const TIMES: usize = 5;

/// What is measured: its name, and the words behind the program's.
const COMMANDS: [(&str, &[&str]); 8] = [
    ("`info`", &["info"]),
    ("`summary`", &["summary"]),
    ("`cut` to a second", &["cut", "--time", "1s..2s", "-o", "written"]),
    ("`merge` into an archive", &["merge", "-o", "written.tar"]),
    ("`merge`, which diagnoses small jobs, too", &["merge", "-o", "written"]),
    ("`diagnose`", &["diagnose"]),
    ("`export` to Parquet", &["export", "--parquet", "written", "--job", "bench"]),
    ("`compare` with another of this size", &["compare", "--as", "two-runs", "../other"]),
];

fn main() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let given = std::env::args().skip(1).find(|word| !word.starts_with("--")).map(PathBuf::from);
    let is_given = given.is_some();
    let path = match given {
        Some(path) => path.canonicalize()?,
        None => {
            for (rank, name) in [(0, "trace"), (1, "other")] {
                let mut file = io::BufWriter::new(File::create(folder.path().join(name))?);
                Job::new(2, 1, STEPS).write(rank, true, &mut file)?;
                file.flush()?;
            }
            folder.path().join("trace")
        }
    };
    let whole = |error: Error| io::Error::other(error.to_string());
    let (inflating, plain) = timed(|| inflated(&path))?;
    let (reading, events) = timed(|| {
        let mut events = 0_u64;
        let read = reader::read_file::<Error>(&path, |packet| {
            events += u64::from(packet.event.is_some());
            Ok(())
        });
        read.map(|_| events).map_err(whole)
    })?;
    let (decoding, _) = timed(|| {
        let mut bytes = 0_u64;
        let read = reader::read_file::<Error>(&path, |packet| {
            bytes = bytes.wrapping_add(packet.event.map_or(0, |event| event.nccl().bytes()));
            Ok(())
        });
        read.map(|_| bytes).map_err(whole)
    })?;
    let size = fs::metadata(&path)?.len();
    println!("{events} events (a slice has two), {size} bytes, {plain} unpacked\n");
    println!("| | CPU s | of inflating | peak memory, MB |\n| --- | --- | --- | --- |");
    let row = |what: &str, seconds: f64, peak: Option<u64>| {
        let peak = peak.map(|bytes| (bytes / 1_000_000).to_string()).unwrap_or_default();
        println!("| {what} | {seconds:.2} | {:.1} | {peak} |", seconds / inflating);
    };
    row("inflating, one core", inflating, None);
    row("every packet followed", reading, None);
    row("and all arguments of every event decoded", decoding, None);
    for (what, words) in COMMANDS.into_iter().filter(|(_, words)| !is_given || words[0] != "compare") {
        let once = |_| {
            let work = tempfile::tempdir_in(&folder)?;
            let mut command = Command::new(env!("CARGO_BIN_EXE_ncclscope"));
            command.args(words).arg(&path).current_dir(&work).stdout(Stdio::null());
            watched(&mut command)
        };
        let all = (0..TIMES).map(once).collect::<io::Result<Vec<_>>>()?;
        let quickest = all.iter().map(|it| it.cpu).fold(f64::INFINITY, f64::min);
        row(what, quickest, all.iter().map(|it| it.peak).max());
    }
    Ok(())
}

/// Also returns the least number of seconds of processor time that it took in this process.
fn timed<T>(mut work: impl FnMut() -> io::Result<T>) -> io::Result<(f64, T)> {
    let mut once = || {
        let begin = processor_time();
        let made = work()?;
        Ok::<_, io::Error>((processor_time() - begin, made))
    };
    let mut quickest = once()?;
    for _ in 1..TIMES {
        let again = once()?;
        quickest = if again.0 < quickest.0 { again } else { quickest };
    }
    Ok(quickest)
}

fn processor_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable during the call.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert_eq!(status, 0, "every Linux has this clock");
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Bytes of all packets, unpacked one after the other.
fn inflated(path: &Path) -> io::Result<u64> {
    let (bytes, mut inner, mut all) = (fs::read(path)?, Vec::new(), 0);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        // The frame of a packet, and the frame of its only field.
        let wrong = |error: prost::DecodeError| io::Error::other(error.to_string());
        prost::encoding::decode_key(&mut rest).map_err(wrong)?;
        let length = prost::encoding::decode_varint(&mut rest).map_err(wrong)? as usize;
        let (mut packet, after) = rest.split_at(length);
        rest = after;
        let (field, _) = prost::encoding::decode_key(&mut packet).map_err(wrong)?;
        if field == ncclscope::trace::fields::trace_packet::COMPRESSED_PACKETS {
            prost::encoding::decode_varint(&mut packet).map_err(wrong)?;
            inner.clear();
            all += io::Read::read_to_end(&mut ZlibDecoder::new(packet), &mut inner)? as u64;
        }
    }
    Ok(all)
}
