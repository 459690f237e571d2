//! The readers of untrusted bytes: each takes any bytes and returns. `tests/mutated.rs` feeds them
//! mutated files, and `fuzz/` what libFuzzer makes of those.

use flate2::Compression;
use flate2::write::ZlibEncoder;
use ncclscope::capture::read::Chunks;
use ncclscope::capture::replay::{self, Replay};
use ncclscope::config::Config;
use ncclscope::{cli, import, trace};
use std::ffi::OsStr;
use std::hint::black_box;
use std::io::{self, Write as _};
use std::iter;
use std::sync::LazyLock;

/// A file with these bytes, in memory where there is such a file system.
fn file(bytes: &[u8], name: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let memory = std::path::Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("a file");
    (folder, path)
}

/// A capture's entries, without the file around them: CUPTI's buffers, NCCL's records, clocks.
pub(crate) fn capture(entries: &[u8]) {
    static HEAD: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let file = include_bytes!("../captures/emulated-nccl-2.32.3-cupti-13.0.capture");
        file[..Chunks::open(&file[..]).expect("a capture").at() as usize].to_vec()
    });
    let mut file = HEAD.clone();
    file.extend(chunk(entries));
    let mut trace = Replay::new();
    let mut sink = |_: &[u8]| {};
    // An error is an answer.
    let _ = replay::walk(&file[..], |entry| trace.take(entry, None, &mut sink));
    trace.finish(&mut sink);
}

/// A chunk of a capture, packed without compressing it.
pub(crate) fn chunk(entries: &[u8]) -> Vec<u8> {
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::none());
    zlib.write_all(entries).expect("memory takes everything");
    let packed = zlib.finish().expect("memory takes everything");
    [&(entries.len() as u32).to_le_bytes()[..], &(packed.len() as u32).to_le_bytes(), &packed].concat()
}

/// A trace.
pub(crate) fn trace(bytes: &[u8]) {
    let read: Result<_, trace::reader::Error> = trace::reader::read(bytes, |packet| {
        // What is decoded only on demand.
        if let Some(event) = &packet.event {
            black_box((event.r#type(), event.shared_name(), event.nccl(), event.flows().count()));
        }
        black_box((packet.track_descriptor(), packet.decode().is_ok()));
        Ok(())
    });
    assert!(trace::reader::whole_length(bytes) <= bytes.len());
    if let Ok(extent) = read {
        assert!(extent.whole + extent.unfinished <= bytes.len() as u64);
    }
}

/// A file of another tool, or a trace of ours, depending on what it looks like.
pub(crate) fn import(bytes: &[u8]) {
    let (_folder, path) = file(bytes, "profile");
    if let Err(error) = import::open(&path) {
        assert!(!error.to_string().is_empty());
    }
}

/// Summaries in comma-separated values: of one process, and of two that are added up.
pub(crate) fn summary(bytes: &[u8]) {
    let (_folder, path) = file(bytes, "job.summary.csv");
    for files in 1..=2 {
        let words = [OsStr::new("ncclscope"), OsStr::new("summary")].into_iter();
        if let Err(failure) = cli::run(words.chain(iter::repeat_n(path.as_os_str(), files)), &mut io::sink()) {
            assert!(!failure.to_string().is_empty());
        }
    }
}

/// Settings: lines of variables, and the same bytes as a file of settings.
pub(crate) fn settings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<_> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let variable = |name: &str| lines.iter().find(|line| line.0 == name).map(|line| line.1.to_owned());
    let names = lines.iter().map(|line| line.0.to_owned());
    let config = Config::read(&|name| variable(name).filter(|_| name != "NCCLSCOPE_CONFIG"), names);
    assert!(config.complaints.iter().all(|complaint| !complaint.is_empty()));
    let (_folder, path) = file(bytes, "settings.toml");
    let path = path.to_str().expect("a path that is text");
    let config = Config::read(&|name| (name == "NCCLSCOPE_CONFIG").then(|| path.to_owned()), std::iter::empty());
    assert!(config.complaints.iter().all(|complaint| !complaint.is_empty()));
}
