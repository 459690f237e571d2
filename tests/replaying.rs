//! Captures: a replay makes the trace of a recording again, byte for byte; and files that are not
//! captures are refused as such.

use crate::command::ncclscope;
use crate::cupti::library_path;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use ncclscope::capture::read::{Chunks, Entry};
use ncclscope::capture::replay::walk;
use ncclscope::pipeline::input::Input;
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::{Load, Recording, Traces, assert_sound};
use ncclscope_tests::timeline::difference;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The capture beside the only trace.
#[track_caller]
fn capture(traces: &Traces) -> PathBuf {
    let path = traces.file().with_extension("capture");
    assert!(path.is_file(), "no capture beside {}", traces.file().display());
    path
}

/// What `ncclscope replay` makes of a capture: the trace and the output.
#[track_caller]
fn replay(capture: &Path) -> (Vec<u8>, String) {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("again.perfetto-trace");
    let said =
        ncclscope(&[Path::new("replay"), capture, Path::new("-o"), &output]).unwrap_or_else(|why| panic!("{why}"));
    (fs::read(&output).unwrap(), said)
}

/// Asserts that the capture beside a trace reproduces it. Returns the output of the command.
#[track_caller]
fn check(traces: &Traces) -> String {
    let (again, said) = replay(&capture(traces));
    let live = fs::read(traces.file()).unwrap();
    let differs = live.iter().zip(&again).position(|(live, again)| live != again);
    assert!(live == again, "{} and {} bytes, which differ from byte {differs:?} on\n{said}", live.len(), again.len());
    said
}

#[test]
fn every_scenario_is_replayed_byte_for_byte() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut played = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let script = fs::read_to_string(&path).unwrap();
        for (interface, compress) in [(7, "1"), (7, "0"), (3, "1")] {
            let play = Play::new(script.as_str()).interface(interface).env("NCCLSCOPE_PRESET", "full");
            let recording = Recording::by(play.env("NCCLSCOPE_CAPTURE", "1").env("NCCLSCOPE_COMPRESS", compress));
            println!("{} v{interface}, compress {compress}", path.display());
            check(&recording.traces);
            played += 1;
        }
    }
    assert!(played >= 30, "{played} plays");
}

/// Kernels, calls into CUDA, ranges, and CUPTI that is lent and taken again.
const KERNELS: &str = "\
main call cuInit library=libcuda.so.1
user init world comm=0xabc rank=0 nranks=2 name=dp
user start launch world KernelLaunch stream=0x10
user kernel ncclDevKernel_AllReduce_Sum_f32_RING_LL for=1ms
user stop launch
user start plan world Group
user start coll world Coll group=plan func=AllReduce count=1Ki datatype=ncclFloat32
user stop coll
user stop plan
user kernel gemm for=200us
user call ncclscope_release
user sleep 20ms
user call ncclscope_acquire
user kernel ncclDevKernel_AllReduce_Sum_f32_RING_LL for=1ms
user kernel gemm for=200us
user finalize world
";

#[test]
fn kernels_are_replayed_byte_for_byte() {
    for (name, value) in [
        ("NCCLSCOPE_PRESET", "full"),
        ("NCCLSCOPE_CUDA_API", "1"),
        ("EMULATED_CUPTI", "refuse=35@cuptiEnableCallback"),
        ("EMULATED_CUPTI", "clock=ticks@1ms"),
    ] {
        let play = Play::new(KERNELS).env("LD_LIBRARY_PATH", library_path()).env("NCCLSCOPE_CAPTURE", "1");
        let recording = Recording::by(play.env(name, value));
        assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
        assert_sound(&recording.traces.open(), 0);
        let said = check(&recording.traces);
        assert!(said.contains("  GPU kernels   ") && said.contains(" of the application"), "{name}: {said}");
    }
}

#[test]
fn a_replay_leaves_out_the_same_events_at_a_limit() {
    for (compress, limit, told) in [("0", "6M", "steps left out: "), ("1", "1M", "file full: ")] {
        let settings = [("NCCLSCOPE_CAPTURE", "1"), ("NCCLSCOPE_MAX_SIZE", limit), ("NCCLSCOPE_COMPRESS", compress)];
        let load = Load::send("--interface 7 --threads 2 --events 150000 --kind mixed", &settings);
        let said = check(&load.traces);
        assert!(said.contains(told) && said.contains(" left out at the size limit"), "{said}");
    }
}

#[test]
fn a_loss_is_known_before_the_records_around_it_are_taken() {
    let settings = [("NCCLSCOPE_CAPTURE", "1"), ("NCCLSCOPE_BUFFER_SIZE", "1M")];
    let load = Load::send("--interface 7 --threads 8 --events 400000", &settings);
    let (mut losses, mut has_taken) = (0, false);
    let walked = walk(File::open(capture(&load.traces)).unwrap(), |entry| match entry {
        Entry::Input(Input::Pass { .. }) => has_taken = false,
        Entry::Input(Input::Record { .. }) => has_taken = true,
        Entry::Input(Input::Dropped(_)) => {
            assert!(!has_taken);
            losses += 1;
        }
        _ => {}
    });
    assert!(walked.is_ok() && losses > 0, "{losses} losses: {walked:?}");
}

#[test]
fn a_capture_ends_at_its_limit_and_the_recording_continues() {
    let settings = [("NCCLSCOPE_CAPTURE", "1"), ("NCCLSCOPE_MAX_SIZE", "1M"), ("NCCLSCOPE_BUFFER_SIZE", "256M")];
    let load = Load::send("--interface 7 --threads 2 --events 700000 --kind mixed", &settings);
    let path = capture(&load.traces);
    let size = fs::metadata(&path).unwrap().len();
    assert!(size <= (1 << 20) + 1024, "{size} bytes");
    assert!(load.stderr.contains("is reached; the capture ends here"), "{}", load.stderr);
    let live = ncclscope(&[Path::new("info"), &load.traces.file()]).unwrap();
    assert!(live.contains("capture ended: ") && live.contains("  recorded      "), "{live}");
    let (again, said) = replay(&path);
    assert!(said.contains("  ended early   ") && said.contains("NCCLSCOPE_MAX_SIZE (1 MiB) is reached"), "{said}");
    assert!(said.contains("  not closed  "), "no end is invented: {said}");
    // They are equal as far as both go: the last chunk was not yet full when the capture ended.
    let live = fs::read(load.traces.file()).unwrap();
    let equal = live.iter().zip(&again).take_while(|(live, again)| live == again).count();
    assert!(equal * 2 > again.len(), "{equal} of {} bytes", again.len());
}

#[test]
fn a_disk_that_is_nearly_full_ends_the_capture_too() {
    let play = Play::new("user init world comm=1 rank=0 nranks=2\nuser finalize world\n");
    let recording = Recording::by(play.env("NCCLSCOPE_CAPTURE", "1").env("NCCLSCOPE_MIN_FREE", "1000000T"));
    let why = "less than NCCLSCOPE_MIN_FREE (976.6 PiB); recording ended; the capture ends here";
    assert!(recording.said().iter().any(|line| line.ends_with(why)), "{:?}", recording.said());
    let path = capture(&recording.traces);
    let said = ncclscope(&[Path::new("replay"), &path]).unwrap_err();
    assert!(said.contains("ended before anything was in it: ") && said.ends_with(why), "{said}");
    let said = ncclscope(&[Path::new("info"), &path]).unwrap();
    assert!(said.contains("  ended early   ") && said.trim_end().ends_with(why), "{said}");
}

#[test]
fn a_killed_process_leaves_a_capture_up_to_its_end() {
    let (traces, folder) = (Traces::new(), tempfile::tempdir().unwrap());
    let (go, output) = (folder.path().join("go"), folder.path().join("so-far"));
    let script = format!(
        "user init world comm=1 rank=0 nranks=2\n\
         user start call world CollApi func=AllReduce count=1 datatype=ncclFloat32\n\
         user wait-for {}\n\
         user kill SIGKILL\n",
        go.display()
    );
    let play = Play::new(script).env("NCCLSCOPE_CAPTURE", "1").env("NCCLSCOPE_FLUSH_PERIOD", "20");
    let play = play.env("NCCLSCOPE_OUTPUT", traces.path()).env("NCCLSCOPE_MIN_FREE", "0");
    // Whether both files have the call, or at least something that is not a head.
    let have_it = || {
        let Some(live) = traces.files().pop() else { return false };
        let _ = fs::remove_file(&output);
        let replayed = ncclscope(&[Path::new("replay"), &live.with_extension("capture"), Path::new("-o"), &output]);
        replayed.is_ok_and(|said| said.contains(", 1 slices")) && fs::metadata(live).unwrap().len() > 1000
    };
    let outcome = thread::scope(|scope| {
        let job = scope.spawn(|| play.run().unwrap());
        // However long that takes.
        while !job.is_finished() && !have_it() {
            thread::sleep(Duration::from_millis(5));
        }
        fs::write(&go, "").unwrap();
        job.join().unwrap()
    });
    assert_eq!(outcome.signal, Some(libc::SIGKILL), "{}", outcome.stderr);
    let (again, said) = replay(&capture(&traces));
    assert!(said.contains("its process was killed, or is still running"), "{said}");
    // One of the two files may have one flush more.
    let live = fs::read(traces.file()).unwrap();
    let shorter = live.len().min(again.len());
    assert!(shorter > 1000 && live[..shorter] == again[..shorter], "{} and {} bytes", live.len(), again.len());
    assert!(said.contains("perfetto-trace: ") && said.contains(", 1 slices"), "the call that was under way: {said}");
}

/// The trace of a scenario with a capture beside it.
fn recorded() -> Recording {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/eager_allreduce.txt");
    let play = Play::new(fs::read_to_string(path).unwrap()).env("NCCLSCOPE_PRESET", "full");
    Recording::by(play.env("NCCLSCOPE_CAPTURE", "1"))
}

#[test]
fn a_capture_is_announced_private_and_listed_by_info() {
    let recording = recorded();
    let path = capture(&recording.traces);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let name = path.file_name().unwrap().to_string_lossy();
    assert!(recording.said()[0].contains(&format!(".perfetto-trace and {name}); ")), "{:?}", recording.said());
    let trace = ncclscope(&[Path::new("info"), &recording.traces.file()]).unwrap();
    assert!(trace.contains(&format!("capture: everything this recording reads is kept in {name}")), "{trace}");
    let said = ncclscope(&[Path::new("info"), &path]).unwrap();
    let records = recording.calls() + 7;
    for part in
        [", a capture of ncclscope ", ", format 5\n", " · ", "preset full; clock ", " records, no CUPTI buffers"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    let held: u64 = said.split(" s, ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    // In addition to the calls: the communicator's begin and end, threads, and texts.
    assert!((records - 6..records + 20).contains(&held), "{held} of {}: {said}", recording.calls());
    // It has the summary of the trace.
    let lines =
        |text: &str| text.lines().skip_while(|it| !it.starts_with("  process")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(&check(&recording.traces)), lines(&trace));
}

#[test]
fn captures_are_left_out_of_a_merge_and_are_not_traces() {
    let recording = recorded();
    let (path, trace) = (capture(&recording.traces), recording.traces.file());
    let output = recording.traces.path().join("joined");
    let said = ncclscope(&[Path::new("merge"), &path, &trace, Path::new("-o"), &output]).unwrap();
    assert!(said.starts_with("left out: ") && said.contains("ncclscope replay makes a trace of a capture"), "{said}");
    assert_eq!(fs::read(&output).unwrap(), fs::read(&trace).unwrap());
    let refused = ncclscope(&[Path::new("compare"), &path, &trace]).unwrap_err();
    assert!(refused.contains("this is a capture of ncclscope: ncclscope replay makes a trace of it"), "{refused}");
}

#[test]
fn an_output_is_never_overwritten_and_has_a_default_name() {
    let recording = recorded();
    let (path, live) = (capture(&recording.traces), fs::read(recording.traces.file()).unwrap());
    ncclscope(&[Path::new("replay"), &path]).unwrap();
    let output = path.with_extension("replayed.perfetto-trace");
    assert_eq!(fs::read(&output).unwrap(), live);
    let refused = ncclscope(&[Path::new("replay"), &path]).unwrap_err();
    assert!(refused.contains("exists already; name another file"), "{refused}");
}

/// Writes a file and has it replayed. Returns why it was refused, and whether a trace exists
/// anyway.
fn refused(bytes: &[u8]) -> (String, bool) {
    let folder = tempfile::tempdir().unwrap();
    let (path, output) = (folder.path().join("a.capture"), folder.path().join("out"));
    fs::write(&path, bytes).unwrap();
    let why = ncclscope(&[Path::new("replay"), &path, Path::new("-o"), &output]).unwrap_err();
    assert!(why.contains("a.capture: "), "it names the file: {why}");
    (why, output.exists())
}

#[test]
fn files_that_cannot_be_replayed_are_refused_with_the_reason() {
    let recording = recorded();
    let good = fs::read(capture(&recording.traces)).unwrap();
    let trace = fs::read(recording.traces.file()).unwrap();
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let head = Chunks::open(&good[..]).unwrap().at() as usize;
    let text: Vec<u8> = good.iter().copied().filter(|byte| *byte != b'\r').collect();
    for (bytes, why) in [
        (&b""[..], "the file is empty"),
        (&trace, "this is not an ncclscope capture: its first bytes differ"),
        (&text, "copy it again in binary mode"),
        (&changed(8, 0), "has format 0 and was written by ncclscope"),
        (&changed(8, 9), "has format 9 and was written by ncclscope"),
        (&good[..head - 1], "is cut off at byte 0"),
        (&good[..head], "there is nothing in it but its header"),
        (&changed(head + 3, 0xff), &format!("the chunk at byte {head} is damaged: it claims ")),
        (&changed(head + 8, 0), &format!("the chunk at byte {head} is damaged: ")),
        (&good[..head + 20], &format!("is cut off at byte {head}")),
    ] {
        let (said, has_trace) = refused(bytes);
        assert!(said.contains(why), "{why}: {said}");
        assert!(!has_trace, "{why}");
    }
}

#[test]
fn a_damaged_capture_is_replayed_up_to_the_damage() {
    let recording = recorded();
    let mut bytes = fs::read(capture(&recording.traces)).unwrap();
    let mut chunks = Chunks::open(&bytes[..]).unwrap();
    let mut last = 0;
    while let Some((at, _)) = chunks.next_chunk().unwrap() {
        last = at as usize;
    }
    assert!(last > Chunks::open(&bytes[..]).unwrap().at() as usize, "there is a chunk before the last");
    let middle = last.midpoint(bytes.len());
    bytes[middle] ^= 0x10;
    let (said, has_trace) = refused(&bytes);
    assert!(
        said.contains(&format!("the chunk at byte {last} is damaged: ")) && said.contains("has everything before it"),
        "{said}"
    );
    assert!(has_trace);
    // Cut off there, it is as good as that of a killed process.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.capture");
    fs::write(&path, &bytes[..middle]).unwrap();
    let (again, said) = replay(&path);
    assert!(said.contains(&format!("the capture is cut off at byte {last}: ")), "{said}");
    let live = fs::read(recording.traces.file()).unwrap();
    assert!(!again.is_empty() && live.starts_with(&again), "what was flushed before is the same");
}

#[test]
fn a_capture_of_another_version_is_mentioned() {
    let recording = recorded();
    let bytes = fs::read(capture(&recording.traces)).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let at = bytes.windows(version.len()).position(|window| window == version.as_bytes()).unwrap();
    let mut other = bytes.clone();
    other[at..at + version.len()].copy_from_slice(&b"9.8.7.6.5.4.3.2.1"[..version.len()]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.capture");
    fs::write(&path, &other).unwrap();
    let (again, said) = replay(&path);
    let remark =
        format!("by ncclscope {version}, from a capture of 9.8.7: it may differ from the trace of the recording");
    assert!(said.contains(&format!("  replayed      {remark}")), "{said}");
    assert!(said.contains(&format!("  note          replayed: {remark}")), "the trace says so: {said}");
    assert!(again.len() > fs::metadata(recording.traces.file()).unwrap().len() as usize);
}

/// A chunk with meaningless entries after a valid header.
#[test]
fn entries_are_checked_against_the_rules() {
    let recording = recorded();
    let good = fs::read(capture(&recording.traces)).unwrap();
    let mut chunks = Chunks::open(&good[..]).unwrap();
    let head = good[..chunks.at() as usize].to_vec();
    let first = chunks.next_chunk().unwrap().unwrap().1.to_vec();
    let with = |parts: &[&[u8]]| {
        let mut file = head.clone();
        for part in parts {
            let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
            zlib.write_all(part).unwrap();
            let packed = zlib.finish().unwrap();
            file.extend((part.len() as u32).to_le_bytes());
            file.extend((packed.len() as u32).to_le_bytes());
            file.extend(packed);
        }
        file
    };
    const END: &[u8] = &[18, 0, 0, 0];
    for (parts, why) in [
        (&[&[10_u8][..]][..], "its first entry is not the recording's beginning"),
        (&[&[0]], "an entry of unknown kind"),
        (&[&first, &first], "a second beginning"),
        (&[&first, END, &[10]], "an entry after the end"),
        (&[&first, &[2, 1, 1]], "a record of impossible length"),
        (&[&first, &[5, 0, 9, 1]], "a length that reaches beyond the chunk"),
        (&[&first, &[12, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]], "an unterminated number"),
        (&[&first, &[13, 7]], "a level that does not exist"),
        (&[&first, &[15, 0, 1, 0xff]], "a text that is not UTF-8"),
        (&[&first, &[3, 0, 2, 0]], "it ends inside an entry"),
        (&[&first, &[3, 2, 254, 255, 255, 255, 127, 0, 0]], "impossible clock readings"),
    ] {
        let (said, _) = refused(&with(parts));
        assert!(said.contains(why), "{why}: {said}");
    }
}

#[test]
fn a_match_is_explained_by_candidates_rule_and_bounds() {
    let capture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("captures").join("emulated-nccl-2.32.3-cupti-13.0.capture");
    let explain = |call: &str| ncclscope(&["replay".as_ref(), capture.as_path(), "--explain".as_ref(), call.as_ref()]);
    // A call, and what must be printed about its last kernel, in this order.
    let expected: [(&str, &[&str]); 3] = [
        (
            "687",
            &[
                "kernel _Z32ncclDevKernel_AllReduce_f32_RING",
                "candidates: the KernelLaunch that began 522.366 us before it began",
                "candidates: run 1, handed over 480.043 us before it began: 1 AllReduce",
                "rule: exact (launch bracket); it carries 1 AllReduce",
                "bounds: by its launch and its work, CUPTI's times are between -1081.680 us and 523.941 us late",
                "drawn as exact (launch bracket)",
            ],
        ),
        (
            "805",
            &[
                "candidates: none; no capture that NCCL reported has its node",
                "drawn as the application's",
                "candidates: the captured KernelLaunch that began ",
                "the count of launches holds; 1 of 2 reported runs fit in time",
                "rule: exact (graph node); it carries 1 AllReduce, run 1 of its graph",
                "its channels: lie in it",
                "drawn as exact (graph node)",
            ],
        ),
        (
            "830",
            &[
                "candidates: calls of its group that no plan has carried: 1 Broadcast",
                "drawn as inferred (call bracket)",
            ],
        ),
    ];
    for (call, steps) in expected {
        let said = explain(call).unwrap();
        let mut rest = said.as_str();
        for step in steps {
            let at = rest.find(step).unwrap_or_else(|| panic!("{step}\nis not, or not there, in\n{said}"));
            rest = &rest[at + step.len()..];
        }
    }
    let why = explain("9999").unwrap_err();
    assert!(why.contains("no kernel of the call 9999 is in it"), "{why}");
    let folder = fs::read_dir(capture.parent().unwrap()).unwrap();
    assert!(folder.map(|entry| entry.unwrap().file_name()).all(|name| !name.to_string_lossy().contains("replayed")));
}

/// Two ranks of a real job, the second with a kernel that does not end.
#[test]
fn a_gpu_that_is_stuck_is_named_with_its_kernel() {
    let folder = tempfile::tempdir().unwrap();
    for rank in [0, 1] {
        let capture = format!("{}/captures/h100-nccl-2.30.7-stuck-{rank}.capture", env!("CARGO_MANIFEST_DIR"));
        let output = folder.path().join(format!("{rank}.perfetto-trace"));
        ncclscope(&[Path::new("replay"), Path::new(&capture), Path::new("-o"), &output]).unwrap();
    }
    let said = ncclscope(&[Path::new("diagnose"), folder.path()]).unwrap();
    let expected = "The job hangs: AllReduce 1 MiB f32, seq 120 on all: all 2 ranks have come, and it has not been seen to end for 5.2 s; the GPU of rank 1 had not finished an earlier kernel.
    rank 1, pid 2820 on vm: the GPU had not finished an earlier kernel: at::cuda::(anonymous namespace)::spin_kernel
    2 operations of its communicator wait behind it
  ranks 0, 1 share a GPU: GPU 0 (H100 80GB HBM3) on vm, GPU-fb103c76-e945-32ef-7584-0ebc327626e8
";
    assert!(said.starts_with(expected), "{said}");
    assert!(said.contains("; inferred, each with `AllReduce 1 MiB f32 on 2 ranks` 3 times."), "{said}");
    assert!(!said.contains("from its host too late"), "a gap may be the other rank's turn: {said}");

    // The merged trace says so in the row that the viewer shows first.
    let merged = folder.path().join("merged");
    ncclscope(&[Path::new("merge"), Path::new("-o"), &merged, folder.path()]).unwrap();
    let merged = ncclscope_tests::perfetto::Trace::open(&merged).unwrap();
    let rows = merged.rows(
        "SELECT slice.name, dur FROM slice JOIN track ON track.id = track_id WHERE track.name = 'Job' AND \
         track.parent_id IS NULL",
    );
    let [hang] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(hang.str("name"), expected.lines().next().unwrap().trim_end_matches('.'));
    assert!((5_100_000_000..5_300_000_000).contains(&hang.i64("dur")), "{hang:?}");
}

/// Each file in `captures/`, and the text beside it that describes it. After an intended change,
/// `NCCLSCOPE_BLESS=1` renews the text.
#[test]
fn stored_captures_are_replayed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    let readme = fs::read_to_string(folder.join("README.md")).unwrap();
    let with = |ending: &str| {
        let paths = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|extension| extension == ending)).collect::<Vec<_>>()
    };
    let captures = with("capture");
    for path in &captures {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(readme.contains(&format!("`{name}`")), "README.md says where {name} is from");
        let output = tempfile::tempdir().unwrap();
        let output = output.path().join("again.perfetto-trace");
        let said = ncclscope(&[Path::new("replay"), path, Path::new("-o"), &output]).unwrap();
        let trace = ncclscope_tests::perfetto::Trace::open(&output).unwrap_or_else(|error| panic!("{name}: {error}"));
        let slices = ncclscope_tests::timeline::Timeline::read(&trace).slices;
        // A job that hung.
        let not_done = slices.iter().filter(|it| it.category == "not done" && it.duration.is_none()).count();
        assert_sound(&trace, not_done as u64);
        // Nothing is drawn long before it began: the viewer would show the time since the machine's
        // start.
        let first = |name: &str| slices.iter().filter(|it| name.is_empty() || it.name == name).map(|it| it.begin).min();
        assert!(first("") >= first("recording started").map(|began| began - 1_000_000_000), "{name}");
        // The lines that name no file, without the remark about another version.
        let shown = said.lines().filter(|line| line.starts_with("  ") && !line.contains("replayed"));
        let shown = shown.map(|line| format!("{}\n", line.trim())).collect::<String>();
        let golden = path.with_extension("txt");
        if std::env::var_os("NCCLSCOPE_BLESS").is_some_and(|value| value == "1") {
            fs::write(&golden, &shown).unwrap();
        }
        let changed = difference(&fs::read_to_string(&golden).unwrap_or_default(), &shown);
        assert!(changed.is_empty(), "{name} differs; if that is intended, NCCLSCOPE_BLESS=1 renews it:\n{changed}");
    }
    assert!(!captures.is_empty() && with("txt").len() == captures.len(), "each text is that of a capture");
}
