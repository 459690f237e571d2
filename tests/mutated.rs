//! Mutated files: whatever one contains, it is read or refused, and nothing else happens. A capture
//! is replayed or refused. It contains the bytes of CUPTI's buffers, so this also tests the code
//! that walks these and reads their fields.
//!
//! A change to the file rarely passes zlib's checksum, so most changes are made below that, to the
//! entries. `NCCLSCOPE_MUTATIONS` is the number of changes.

#[path = "mutated/targets.rs"]
mod targets;

use flate2::read::GzDecoder;
use ncclscope::capture::read::{Chunks, Error};
use ncclscope::capture::replay::{self, Replay};
use ncclscope::config::SETTINGS;
use ncclscope::memory;
use ncclscope_tests::fault;
use std::io::Read as _;
use std::path::Path;

/// The default number of changes to each capture.
const MUTATIONS: usize = 2000;
/// The most memory that a replay may take: what the correlator remembers at most, and a chunk.
const MEMORY: isize = 256 << 20;
/// The most bytes of trace that a changed capture may produce: a small multiple of what unchanged
/// captures produce.
const OUTPUT: usize = 64 << 20;

/// Pseudo-random numbers; equal seeds give equal numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound.max(1)
    }
}

/// A capture as its header and the entries of its chunks.
struct Open {
    head: Vec<u8>,
    chunks: Vec<Vec<u8>>,
}

impl Open {
    fn of(file: &[u8]) -> Open {
        let mut chunks = Chunks::open(file).unwrap();
        let head = file[..chunks.at() as usize].to_vec();
        let mut entries = Vec::new();
        while let Some((_, chunk)) = chunks.next_chunk().unwrap() {
            entries.push(chunk.to_vec());
        }
        Open { head, chunks: entries }
    }

    fn file(&self) -> Vec<u8> {
        let mut file = self.head.clone();
        for entries in self.chunks.iter().filter(|entries| !entries.is_empty()) {
            file.extend(targets::chunk(entries));
        }
        file
    }
}

/// The largest signed and unsigned numbers, and half of them, as they are written.
const LARGEST: [&[u8]; 3] = [
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
    &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
    &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
];

/// Changes some of the bytes: to others, removed, doubled, or to the largest numbers.
fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        let until = (at + 1 + random.below(16)).min(bytes.len());
        match random.below(10) {
            0 | 1 => bytes[at] = random.below(256) as u8,
            2 => bytes[at] ^= 1 << random.below(8),
            3 => bytes[at..until].fill(0xff),
            4 => drop(bytes.drain(at..until)),
            5 | 6 => drop(bytes.splice(at..=at, LARGEST[random.below(3)].iter().copied())),
            7 => {
                let again = bytes[at..until].to_vec();
                bytes.splice(at..at, again);
            }
            8 => bytes[at..until].fill(0),
            _ => bytes.truncate(until),
        }
    }
}

/// Replays a capture and discards the trace. Returns whether it was replayed to the end.
fn survives(file: &[u8], what: &str) -> bool {
    let (before, _) = memory::counted();
    let mut bytes = 0;
    let mut sink = |packets: &[u8]| bytes += packets.len();
    let replayed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut trace = Replay::new();
        let end = replay::walk(file, |entry| trace.take(entry, None, &mut sink));
        trace.finish(&mut sink);
        end
    }));
    let end = replayed.unwrap_or_else(|_| panic!("{what}: it panicked"));
    let took = memory::counted().1 - before;
    assert!(took < MEMORY, "{what}: {took} bytes");
    assert!(bytes < OUTPUT, "{what}: {bytes} bytes of trace");
    if let Err(error) = &end {
        let said = error.to_string();
        assert!(!said.is_empty() && !matches!(error, Error::Io(_)), "{what}: {said}");
    }
    end.is_ok()
}

#[test]
fn changed_captures_are_replayed_or_refused() {
    let case = fault::case(
        "input",
        "captures with changed bytes: lengths, kinds and contents of CUPTI's buffers, steps, times",
        "each is replayed or refused with its reason, in bounded memory",
    );
    memory::count();
    let (before, _) = memory::counted();
    drop(std::hint::black_box(vec![1_u8; MEMORY as usize]));
    assert!(memory::counted().1 - before >= MEMORY, "an allocation of this size is counted");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    let mut captures: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    captures.retain(|path| path.extension().is_some_and(|extension| extension == "capture"));
    captures.sort();
    assert!(!captures.is_empty());
    let mutations = mutations();
    for (seed, path) in captures.iter().enumerate() {
        // The captures take turns.
        let rounds = mutations.saturating_sub(seed).div_ceil(captures.len());
        let original = std::fs::read(path).unwrap();
        assert!(survives(&original, "as it is"), "{}", path.display());
        let mut random = Random(seed as u64 + 11);
        let (mut replayed, mut refused) = (0, 0);
        for round in 0..rounds {
            let changed = if round % 8 == 0 {
                let mut file = original.clone();
                change(&mut file, &mut random);
                file
            } else {
                let mut open = Open::of(&original);
                let chunk = random.below(open.chunks.len());
                change(&mut open.chunks[chunk], &mut random);
                open.file()
            };
            // All rounds share one seed, so the number of the round identifies a failing one.
            let number = format!("{} changed for the {round}th time", path.display());
            if survives(&changed, &number) { replayed += 1 } else { refused += 1 }
        }
        println!("{}: {replayed} replayed, {refused} refused", path.display());
        assert!(replayed > rounds / 50 && refused > rounds / 50, "{replayed} replayed, {refused} refused");
    }
    case.survived(mutations as u64);
}

fn mutations() -> usize {
    std::env::var("NCCLSCOPE_MUTATIONS").ok().and_then(|it| it.parse().ok()).unwrap_or(MUTATIONS)
}

/// The files from which mutations start, by reader.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let unpacked = |file: &str, most: u64| {
        let mut bytes = Vec::new();
        GzDecoder::new(std::fs::File::open(here.join("data").join(file)).unwrap())
            .take(most)
            .read_to_end(&mut bytes)
            .unwrap();
        bytes
    };
    let capture = || std::fs::read(here.join("captures/emulated-nccl-2.32.3-cupti-13.0.capture")).unwrap();
    let a_trace = || {
        let (mut bytes, mut trace) = (Vec::new(), Replay::new());
        let mut sink = |packets: &[u8]| bytes.extend(packets);
        replay::walk(&capture()[..], |entry| trace.take(entry, None, &mut sink)).unwrap();
        trace.finish(&mut sink);
        bytes
    };
    match name {
        "capture" => Open::of(&capture()).chunks,
        "trace" => vec![a_trace()],
        "import" => {
            // The begin of it: the whole is 10 MB.
            let mut events = unpacked("kineto_1rank_nccl.json.gz", 60_000);
            events.truncate(events.windows(5).rposition(|it| it == b"\n  },").expect("an event's end") + 4);
            events.extend(b"]}");
            vec![a_trace(), events, unpacked("nsys_2xh100_alltoall.sqlite.gz", u64::MAX)]
        }
        "settings" => {
            let lines: String = SETTINGS.iter().map(|it| format!("{}={}\n", it.name, it.default)).collect();
            let names = SETTINGS.iter().map(|it| it.name.trim_start_matches("NCCLSCOPE_").to_lowercase());
            let file: String = names.zip(SETTINGS).map(|(name, it)| format!("{name} = \"{}\"\n", it.default)).collect();
            vec![lines.into_bytes(), file.into_bytes(), b"[[[[[[[[\nx = {a = [[{b = 1}]]}\n".to_vec()]
        }
        "summary" => {
            let folder = tempfile::tempdir().unwrap();
            let (trace, mut table) = (folder.path().join("a.perfetto-trace"), Vec::new());
            std::fs::write(&trace, a_trace()).unwrap();
            let words = ["ncclscope", "summary", "--format", "csv", trace.to_str().unwrap()];
            ncclscope::cli::run(words, &mut table).unwrap();
            vec![table]
        }
        _ => panic!("no such reader: {name}"),
    }
}

/// The inputs with which libFuzzer has reached new code in this reader, by name (`fuzz/`).
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{name}");
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Mutates the seeds of this reader, and each file of the corpus a few times.
fn read_changed(name: &str, read: fn(&[u8]), share: usize) -> u64 {
    let seeds = seeds(name).into_iter().map(|seed| (seed, mutations() / share));
    let corpus = corpus(name).into_iter().map(|file| (file, mutations() / share / 100));
    let (mut random, mut runs) = (Random(29), 0);
    for (number, (file, rounds)) in seeds.chain(corpus).enumerate() {
        read(&file);
        for round in 0..rounds {
            let mut bytes = file.clone();
            change(&mut bytes, &mut random);
            let read = std::panic::catch_unwind(|| read(&bytes));
            assert!(read.is_ok(), "{name}: file {number}, changed for the {round}th time: it panicked");
        }
        runs += rounds as u64;
    }
    runs
}

#[test]
fn changed_traces_profiles_and_settings_are_read_or_refused() {
    let case = fault::case(
        "input",
        "changed bytes in the entries of captures, in traces, in summaries, in files of Kineto and Nsight Systems, in settings",
        "each is read, or refused with a reason",
    );
    let runs = [
        read_changed("capture", targets::capture, 4),
        read_changed("trace", targets::trace, 1),
        read_changed("import", targets::import, 20),
        read_changed("settings", targets::settings, 2),
        read_changed("summary", targets::summary, 2),
    ];
    case.survived(runs.into_iter().sum());
}
