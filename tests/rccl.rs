//! The scripted host as RCCL, AMD's NCCL: the library that calls us stands in for RCCL and HIP
//! (`support/rccl.c`), and the GPU's clock counts ticks.

use ncclscope_tests::host::CALLER;
use ncclscope_tests::play::{self, Call, Play};
use ncclscope_tests::recording::Recording;
use ncclscope_tests::timeline::Timeline;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::LazyLock;
use tempfile::TempDir;

/// `rccl.c` under one of its two names.
fn library(name: &str) -> PathBuf {
    // Tests run side by side: none may open a library while another one is still writing it.
    static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("librccl.so.1");
        play::compile_to(&library, "rccl.c", &["-shared", "-fPIC", "-w", "-fno-builtin"]);
        std::fs::copy(&library, folder.path().join("libother.so")).unwrap();
        folder
    });
    FOLDER.path().join(name)
}

/// Operations of 3 ms each, on this many channels, whose clock counts `mhz` ticks in a microsecond.
fn script(mhz: u32, channels: u8) -> String {
    let mut script = "user init world comm=0xabc rank=0 nranks=8 nodes=2\n".to_owned();
    for number in 0..6 {
        script += &format!(
            "user start g{number} world GroupApi groupDepth=1\n\
             user start api{number} world CollApi parent=g{number} func=AllReduce count=1Ki datatype=ncclFloat32\n\
             user stop api{number}\n\
             user start launch{number} world KernelLaunch parent=g{number} stream=0x10\n\
             user stop launch{number}\n\
             user start plan{number} world Group\n\
             user start coll{number} world Coll parent=api{number} group=plan{number} func=AllReduce count=1Ki \
               datatype=ncclFloat32 nChannels={channels}\n\
             user stop coll{number}\n\
             user stop plan{number}\n\
             user stop g{number}\n"
        );
        // The last two of 256.
        for channel in [254, 255] {
            let label = format!("{number}x{channel}");
            script += &format!(
                "proxy start ch{label} world KernelCh parent=coll{number} channelId={channel} pTimer={mhz}MHz:now\n"
            );
        }
        script += "proxy sleep 3ms\n";
        for channel in [254, 255] {
            let label = format!("{number}x{channel}");
            script += &format!("proxy state ch{label} KernelChStop value={mhz}MHz:now\nproxy stop ch{label}\n");
        }
    }
    script += "proxy start op world ProxyOp parent=coll5 channelId=255 peer=1 nSteps=1 chunkSize=512Ki isSend=1\n\
               proxy state op OpInProgress\n\
               proxy start step world ProxyStep parent=op step=0\n\
               proxy state step StepSendGpuWait\n\
               proxy state step StepSendWait value=524288\n\
               proxy stop step\n\
               proxy stop op\n";
    script + "user finalize world\n"
}

#[track_caller]
fn record(library: PathBuf, khz: Option<&str>, script: &str, interface: u32) -> Recording {
    let play = Play::new(script).interface(interface).env(CALLER, library);
    let play = play.env("NCCLSCOPE_PRESET", "full").env("NCCLSCOPE_KERNEL_CH", "force");
    let recording = Recording::by(khz.iter().fold(play, |play, khz| play.env("RCCL_CLOCK_KHZ", khz)));
    assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
    recording
}

/// The channels' slices: begin, duration, error of the time, and how it is known.
fn channels(timeline: &Timeline) -> Vec<(i64, i64, Option<i64>)> {
    let of = |channel: i64| move |slice: &&ncclscope_tests::timeline::Slice| slice.int("channel") == Some(channel);
    let slices = timeline.slices.iter().filter(|slice| slice.category == "gpu");
    slices
        .filter(|slice| of(254)(slice) || of(255)(slice))
        .map(|slice| (slice.begin, slice.duration.unwrap(), slice.int("time_error_ns")))
        .collect()
}

#[test]
fn ticks_become_times_with_their_error() {
    for (mhz, khz) in [(100, "100000"), (25, "25000")] {
        let mut errors = Vec::new();
        for interface in 5..=7 {
            let recording = record(library("librccl.so.1"), Some(khz), &script(mhz, 16), interface);
            let timeline = recording.timeline();
            let found = channels(&timeline);
            assert_eq!(found.len(), 12, "{mhz} MHz, v{interface}");
            let timed = found.iter().filter(|(.., error)| error.is_some());
            assert!(timed.clone().count() >= 8, "{mhz} MHz, v{interface}: {found:?}");
            for (begin, duration, error) in timed {
                // The true time was read while the line of the call was played.
                let error = error.unwrap();
                let starts = recording.outcome.calls.iter().filter(|call| {
                    call.verb == "start" && call.label.as_deref().is_some_and(|label| label.starts_with("ch"))
                });
                let off = |call: &Call| (call.began as i64 - begin).max(begin - call.before as i64);
                let off = starts.map(off).min().unwrap();
                errors.push(error);
                assert!(off <= error, "{mhz} MHz, v{interface}: {begin} is off by {off}, not {error}");
                assert!(*duration > 2_000_000, "{duration}");
            }
            assert_eq!(timeline.figures().get("channels_implausible"), 0);
        }
        // Where calls come late, because the machine is busy, errors are larger.
        assert!(errors.iter().min() < Some(&1_000_000), "{errors:?}");
    }
}

#[test]
fn an_unknown_or_a_wrong_rate_gives_no_time() {
    // HIP does not answer, answers something that is no rate, or answers a rate that is wrong.
    for khz in [None, Some("0"), Some("100001"), Some("25000")] {
        let recording = record(library("librccl.so.1"), khz, &script(100, 16), 6);
        let timeline = recording.timeline();
        let found = channels(&timeline);
        assert_eq!(found.len(), 12, "{khz:?}");
        let seen = found.iter().filter(|(_, duration, error)| error.is_none() && *duration > 2_000_000);
        assert_eq!(seen.count(), 12, "{khz:?}: drawn where the host saw them: {found:?}");
        let note = timeline.slice("RCCL").str("note").unwrap();
        assert_eq!(note.contains("HIP does not report"), khz != Some("25000"), "{note}");
    }
}

#[test]
fn rccl_is_recognised_by_its_name_and_its_dependencies() {
    for name in ["librccl.so.1", "libother.so"] {
        let recording = record(library(name), Some("100000"), &script(100, 0), 6);
        let said = recording.said();
        let first =
            ["RCCL that follows NCCL 2.27.3 (profiler interface v6)", "GPU kernels: no, AMD's GPUs have no CUPTI"];
        assert!(first.iter().all(|words| said[0].contains(words)), "{said:?}");
        let timeline = recording.timeline();
        assert!(timeline.slice("RCCL").str("note").unwrap().contains("ticks of 100 MHz"));
        assert!(timeline.slices.iter().any(|slice| slice.name.starts_with("step 0")), "the proxy is drawn");
        // 256 channels do not fit into the byte: their number is unknown, not 0.
        let coll = timeline.slices.iter().find(|slice| slice.name == "AllReduce 4 KiB f32").unwrap();
        assert_eq!(coll.args.get("channels"), None, "{coll:?}");
    }
    // NCCL itself: the host's own log function.
    let recording = Recording::of(&script(1000, 16));
    assert!(recording.timeline().named("RCCL").is_empty());
}

#[test]
fn service_threads_are_shown_under_the_names_that_rccl_gives_them() {
    // With NCCL_SET_THREAD_NAME=1; the system keeps 15 bytes. The last one is nobody's.
    let script = "user init world comm=0xabc rank=0 nranks=8 nodes=2\n\
                  service name \"NCCL Service 5\"\n\
                  uds name \"NCCL UDS Service 5\"\n\
                  other name loader\n\
                  user sleep 3500ms\n\
                  user finalize world\n";
    let recording = record(library("librccl.so.1"), Some("100000"), script, 6);
    let timeline = recording.timeline();
    assert_eq!(timeline.named("RCCL").len(), 1);
    let tid = |name: &str| recording.outcome.calls.iter().find(|call| call.thread == name).unwrap().tid;
    let expected = [("NCCL Service 5", "service"), ("NCCL UDS Servic", "uds")];
    let expected: BTreeSet<_> =
        expected.map(|(name, thread)| format!("seen · {name} ({})", tid(thread))).into_iter().collect();
    let mut seen = BTreeSet::new();
    for slice in &timeline.slices {
        let place = timeline.place(slice);
        if let Some(at) = place.find("seen · ") {
            seen.insert(place[at..].to_owned());
            assert!(slice.name.starts_with("in ") && slice.int("processor").is_some(), "{slice:?}");
        }
    }
    assert_eq!(seen, expected);
}
