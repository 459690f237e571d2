//! What is printed on stderr, in which order and by whom, and the settings for enabling, for events
//! and for file modes.

use ncclscope_tests::fault;
use ncclscope_tests::layout;
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::{Recording, assert_undisturbed};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

const JOB: &str = "user init world comm=0xabc rank=0 nranks=4 nodes=2 name=dp\n\
                   user start g world Group\n\
                   user stop g\n\
                   user finalize world\n";
/// More than any disk has.
const NO_ROOM: (&str, &str) = ("NCCLSCOPE_MIN_FREE", "8000000T");

/// Plays the job with these settings, which must not disturb it.
#[track_caller]
fn record(script: &str, settings: &[(&str, &str)]) -> Recording {
    let recording = Recording::by(Play::new(script).envs(settings));
    assert_undisturbed(&recording);
    recording
}

/// The first line of a recording.
fn first_line(recording: &Recording, preset: &str) -> String {
    let file = recording.traces.file();
    let [folder, name] = [file.parent().unwrap().as_os_str(), file.file_name().unwrap()].map(|it| it.to_string_lossy());
    format!(
        "recording to {folder} (this process: {name}); NCCL, which does not report its version (profiler interface v7); preset {preset}; \
         GPU kernels: no, this process has not loaded the CUDA driver (libcuda.so.1)"
    )
}

/// The mask with these kinds of events.
fn mask(kinds: &[&str]) -> i32 {
    kinds.iter().map(|name| layout::kind(name).unwrap().bit as i32).sum()
}

// ---- the first line ----

#[test]
fn the_first_line_says_where_and_what() {
    for rank in [Some("0"), None] {
        let rank: Vec<_> = rank.map(|rank| ("RANK", rank)).into_iter().collect();
        let recording = record(JOB, &rank);
        assert_eq!(recording.said(), [first_line(&recording, "standard")], "{rank:?}");
    }
}

#[test]
fn nothing_is_printed_before_the_first_line() {
    // Wrong settings, an impossible capture, a disk that is full from the start, and refused
    // channels.
    let settings = [NO_ROOM, ("NCCLSCOPE_CLOCK", "sun"), ("NCCLSCOPE_PRESTE", "light"), ("NCCLSCOPE_PRESET", "full")];
    for _ in 0..5 {
        let recording = record(JOB, &settings);
        let said = recording.said();
        assert_eq!(said[0], first_line(&recording, "full"), "{said:?}");
        for part in ["NCCLSCOPE_CLOCK=sun", "NCCLSCOPE_PRESTE is not", "; recording ended", "no GPU time per channel"] {
            assert_eq!(said[1..].iter().filter(|line| line.contains(part)).count(), 1, "{part}: {said:?}");
        }
        assert_eq!(said.len(), 5, "{said:?}");
    }
}

#[test]
fn a_recording_that_never_starts_says_so_first() {
    let settings = [("NCCLSCOPE_OUTPUT", "/proc/nowhere"), ("NCCLSCOPE_CLOCK", "sun"), ("RANK", "0")];
    let recording = record(JOB, &settings);
    let said = recording.said();
    assert!(said.len() == 2 && said[0].ends_with("; this process is not recorded"), "{said:?}");
    assert!(said[1].starts_with("NCCLSCOPE_CLOCK=sun"), "{said:?}");
    // Each rank reports this about itself: the others may be recorded.
    let recording = record(JOB, &[settings[0], settings[1], ("RANK", "3")]);
    let said = recording.said();
    assert!(said.len() == 1 && said[0].ends_with("; this process is not recorded"), "{said:?}");
}

#[test]
fn other_ranks_print_only_what_ends_their_recording() {
    let quiet = [("RANK", "3"), ("NCCLSCOPE_CLOCK", "sun"), ("NCCLSCOPE_PRESET", "full")];
    assert_eq!(record(JOB, &quiet).said(), [""; 0]);
    let said = record(JOB, &[quiet[0], quiet[1], quiet[2], NO_ROOM]);
    assert!(matches!(said.said()[..], [line] if line.ends_with("; recording ended")), "{:?}", said.said());
}

// ---- NCCLSCOPE_LOG ----

#[test]
fn quiet_prints_only_problems() {
    assert_eq!(record(JOB, &[("NCCLSCOPE_LOG", "quiet")]).outcome.stderr, "");
    let recording = record(JOB, &[("NCCLSCOPE_LOG", "quiet"), ("NCCLSCOPE_CLOCK", "sun"), NO_ROOM]);
    let said = recording.said();
    assert!(
        said.len() == 2 && said[0].starts_with("NCCLSCOPE_CLOCK=sun") && said[1].ends_with("; recording ended"),
        "{said:?}"
    );
}

#[test]
fn debug_prints_everything_on_every_rank() {
    let recording = record(JOB, &[("RANK", "3"), ("NCCLSCOPE_CLOCK", "sun"), ("NCCLSCOPE_LOG", "debug")]);
    let said = recording.said();
    assert_eq!(said[0], first_line(&recording, "standard"));
    for part in ["NCCLSCOPE_CLOCK=sun", "; clock ", "recording ended: 2 calls from NCCL, 0 dropped; "] {
        assert_eq!(said.iter().filter(|line| line.contains(part)).count(), 1, "{part}: {said:?}");
    }
}

// ---- NCCLSCOPE_ENABLE ----

#[test]
fn when_disabled_a_forked_child_does_nothing_either() {
    let script = "user init world comm=0xabc rank=0 nranks=4\n\
                  user fork child\n\
                  child init more comm=0x1 rank=0 nranks=2\n\
                  child finalize more\n\
                  user start g world Group\n\
                  user finalize world\n";
    for off in [("NCCLSCOPE_ENABLE", "0"), ("NCCLSCOPE_PRESET", "off")] {
        let recording = record(script, &[off, ("NCCLSCOPE_CLOCK", "sun"), ("NCCLSCOPE_LOG", "debug")]);
        assert_eq!(recording.outcome.stderr, "", "{off:?}");
        assert_eq!((recording.outcome.call("world").mask, recording.outcome.call("g").handle), (Some(0), Some(0)));
        assert_eq!(recording.outcome.call("more").mask, Some(0));
        assert_eq!(fs::read_dir(recording.traces.path()).unwrap().count(), 0);
    }
    let on = record(script, &[("NCCLSCOPE_ENABLE", "1")]);
    assert_ne!(on.outcome.call("world").mask, Some(0));
    assert_eq!(on.said().len(), 2, "where it records to, and that the child is not: {:?}", on.said());
}

#[test]
fn an_invalid_switch_disables_nothing() {
    let recording = record(JOB, &[("NCCLSCOPE_ENABLE", "false")]);
    let said = recording.said();
    assert_eq!(said[1..], ["NCCLSCOPE_ENABLE=false: expected 0 | 1; using the default, 1"]);
    assert_eq!(recording.timeline().slice("bad setting").str("note"), Some(said[1]));
}

// ---- NCCLSCOPE_EVENTS ----

#[test]
fn events_are_enabled_and_disabled_by_name() {
    let standard = ["GroupApi", "CollApi", "P2pApi", "KernelLaunch", "Group", "Coll", "P2p", "ProxyOp", "ProxyStep"];
    let standard = mask(&standard);
    for (events, expected, wish) in [
        (
            "+ProxyCtrl,-ProxyStep",
            standard + mask(&["ProxyCtrl"]) - mask(&["ProxyStep"]),
            "standard,+ProxyCtrl,-ProxyStep",
        ),
        (" netplugin -coll", standard + mask(&["NetPlugin"]) - mask(&["Coll"]), "standard,+NetPlugin,-Coll"),
        ("+Everything", standard, "standard"),
    ] {
        let recording = record(JOB, &[("NCCLSCOPE_EVENTS", events)]);
        assert_eq!(recording.outcome.call("world").mask, Some(expected), "{events}");
        let said = recording.said();
        assert_eq!(said[0], first_line(&recording, wish));
        let timeline = recording.timeline();
        let words = timeline.slice("recording started").str("note").unwrap();
        assert!(words.contains(&format!("; preset {wish}; ")), "{words}");
        let bad = timeline.named("bad setting");
        assert_eq!((said.len() - 1, bad.len()), if expected == standard { (1, 1) } else { (0, 0) }, "{said:?}");
        if let Some(bad) = bad.first() {
            assert!(said[1] == bad.str("note").unwrap() && said[1].contains("kinds: Group, Coll, P2p"), "{said:?}");
        }
    }
}

#[test]
fn kernel_channels_enabled_by_name_are_refused_where_they_hang() {
    // Refused in v7 without a version, but not in v5.
    for (interface, asked) in [(7, false), (5, true)] {
        let play = Play::new(JOB).env("NCCLSCOPE_EVENTS", "+KernelCh").interface(interface);
        let recording = Recording::by(play);
        let has = recording.outcome.call("world").mask.unwrap() & mask(&["KernelCh"]) != 0;
        let refused = recording.said().iter().any(|line| line.starts_with("no GPU time per channel"));
        assert_eq!((has, refused), (asked, !asked), "v{interface}: {:?}", recording.said());
    }
}

// ---- NCCLSCOPE_FILE_MODE ----

#[test]
fn files_and_folders_have_the_requested_mode_whatever_the_umask() {
    let case = fault::case(
        "files",
        "a `umask` that lets others read, or not even the owner",
        "only the owner can read what is written, unless a setting says more",
    );
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    for (setting, files, folders) in [("640", 0o640, 0o750), ("0o666", 0o666, 0o777), ("600", 0o600, 0o700)] {
        let outside = tempfile::tempdir().unwrap();
        let output = outside.path().join("made/deeper");
        let settings = [
            ("NCCLSCOPE_OUTPUT", output.to_str().unwrap()),
            ("NCCLSCOPE_FILE_MODE", setting),
            ("NCCLSCOPE_CAPTURE", "1"),
        ];
        let before = mode(outside.path());
        let recording = record(JOB, &settings);
        assert_eq!(recording.said().len(), 1, "{:?}", recording.said());
        let made: Vec<_> = fs::read_dir(&output).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(made.len(), 3, "a trace, a capture and a summary: {made:?}");
        for file in &made {
            assert_eq!(mode(file), files, "{setting}: {}", file.display());
        }
        assert_eq!((mode(&output), mode(output.parent().unwrap())), (folders, folders), "{setting}");
        assert_eq!(mode(outside.path()), before, "what was there is left alone");
    }
    case.survived(1);
}

#[test]
fn a_bad_mode_leaves_the_trace_to_its_owner() {
    for bad in ["777", "rw-r-----", "7640", "044"] {
        let recording = record(JOB, &[("NCCLSCOPE_FILE_MODE", bad)]);
        let said = recording.said();
        assert!(
            said.len() == 2 && said[1].starts_with(&format!("NCCLSCOPE_FILE_MODE={bad}: expected 6, then a digit")),
            "{said:?}"
        );
        assert_eq!(recording.timeline().slice("bad setting").str("note"), Some(said[1]));
        assert_eq!(fs::metadata(recording.traces.file()).unwrap().mode() & 0o7777, 0o600);
    }
}
