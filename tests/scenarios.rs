//! Every scenario through every version of the interface, and what the trace then shows.
//!
//! What it shows for the newest version is stored in `golden/`. After an intended change,
//! `NCCLSCOPE_BLESS=1` renews it.

use ncclscope_tests::host::POISON;
use ncclscope_tests::layout;
use ncclscope_tests::play::{Outcome, Play};
use ncclscope_tests::recording::{Recording, assert_sound};
use ncclscope_tests::script::Script;
use ncclscope_tests::timeline::{Timeline, difference};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// A play whose events take longer was held up by the machine. One with the GPU's times is then
/// played again, this often at most: a host that looks at the GPU's timer only every 20 ms does not
/// know it well enough to draw by it.
const HELD_UP: Duration = Duration::from_millis(15);
const PLAYS: usize = 50;

fn is_held_up(outcome: &Outcome) -> bool {
    let of_events = || outcome.calls.iter().filter(|call| matches!(call.verb.as_str(), "start" | "stop"));
    let times = of_events().next().zip(of_events().next_back());
    times.is_some_and(|(first, last)| Duration::from_nanos(last.after - first.before) > HELD_UP)
}

/// The result of a scenario through one version.
struct Played {
    recording: Recording,
    timeline: Timeline,
}

/// Plays a scenario and asserts everything that holds for all of them.
fn play(name: &str, version: u32, open_slices: u64) -> Played {
    let script = fs::read_to_string(scenario(name)).unwrap();
    let has_times = script.contains("pTimer");
    let play = Play::new(script).interface(version).env("NCCLSCOPE_PRESET", "full");
    let mut recordings = (0..PLAYS).map(|_| Recording::by(play.clone()));
    let recording = recordings.find(|it| !has_times || !is_held_up(&it.outcome)).expect("every play was held up");
    let outcome = &recording.outcome;
    let aborted = outcome.signal == Some(libc::SIGABRT) && name == "abort";
    assert!(outcome.status == Some(0) || aborted, "v{version}: {:?} {}", outcome.signal, outcome.stderr);
    for call in &outcome.calls {
        assert_eq!(call.status.unwrap_or(0), 0, "v{version}, line {}", call.line);
        assert_ne!(call.handle, Some(POISON.0), "v{version}, line {}: nothing was written", call.line);
        let made = matches!(call.verb.as_str(), "init" | "start") && call.status.is_some();
        assert!(!made || call.handle != Some(0), "v{version}, line {}: null", call.line);
    }

    let trace = recording.traces.open();
    assert_sound(&trace, open_slices);
    let timeline = Timeline::read(&trace);
    if !aborted {
        let figures = timeline.figures();
        assert_eq!(figures.get("recorded"), recording.calls(), "v{version}");
        for lost in ["dropped", "discarded", "lanes_missing", "panics", "evicted_open"] {
            assert_eq!(figures.get(lost), 0, "v{version}: {lost}");
        }
    }
    Played { recording, timeline }
}

/// Plays a scenario through all versions. `open_slices` are the numbers of slices that stay open in
/// v1 to v7, because the scenario never ends them.
fn check(name: &str, open_slices: [u64; 7]) {
    let played: Vec<_> = layout::VERSIONS.zip(open_slices).map(|(version, open)| play(name, version, open)).collect();
    let [.., five, six, seven] = &played[..] else { panic!("all seven were played") };

    let shown = seven.timeline.text(&seven.recording.threads());
    let golden = golden(name);
    if std::env::var_os("NCCLSCOPE_BLESS").is_some_and(|value| value == "1") {
        fs::write(&golden, &shown).unwrap();
    }
    let expected = fs::read_to_string(&golden).unwrap_or_default();
    let changed = difference(&expected, &shown);
    assert!(
        changed.is_empty(),
        "{name} differs from {}; if that is intended, NCCLSCOPE_BLESS=1 renews it:\n{changed}",
        golden.display()
    );

    if is_for(name, 5) {
        /// What v5 cannot carry, and the interface itself.
        const NEWER: [&str; 4] = ["interface", "user_tag", "variant", "symmetric"];
        let text = |played: &Played| {
            let text = played.timeline.text_without(&played.recording.threads(), &NEWER);
            // Channels are refused with some interfaces, each for its own reason.
            text.lines()
                .filter(|line| !line.contains("no GPU time per channel"))
                .map(|line| format!("{line}\n"))
                .collect::<String>()
        };
        for (older, version) in [(five, 5), (six, 6)] {
            let changed = difference(&text(older), &text(seven));
            assert!(changed.is_empty(), "v{version} and v7 show something else:\n{changed}");
        }
    }
}

/// Whether a version has every event and state of a scenario.
fn is_for(name: &str, version: u32) -> bool {
    use ncclscope_tests::script::{Type, Verb};
    let script: Script = fs::read_to_string(scenario(name)).unwrap().parse().unwrap();
    script.lines.iter().all(|line| match &line.verb {
        Verb::Start { kind: Type::Named(kind), .. } => layout::kind(kind).unwrap().since <= version,
        Verb::State { state: Type::Named(state), .. } => layout::state(state).unwrap().versions.contains(&version),
        _ => true,
    })
}

fn scenario(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "scenarios", &format!("{name}.txt")].iter().collect()
}

fn golden(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "golden", &format!("{name}.txt")].iter().collect()
}

macro_rules! scenarios {
    ($($name:ident: $open:expr;)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(
            #[test]
            fn $name() {
                check(stringify!($name), $open);
            }
        )*
    };
}

const NONE: [u64; 7] = [0; 7];

scenarios! {
    // Two proxy operations, three steps and what they wait for, and from v3 on a kernel channel.
    abort: [8, 8, 9, 9, 9, 9, 9];
    chapters: NONE;
    copy_engine: NONE;
    eager_allreduce: NONE;
    graph_replay: NONE;
    grouped: NONE;
    kernel_channels: NONE;
    kernel_phases: NONE;
    net_plugin: NONE;
    non_blocking: NONE;
    proxy_ctrl: NONE;
    pxn: NONE;
    shm_proxy: NONE;
    twice_and_stale: NONE;
}

#[test]
fn every_scenario_is_played_and_has_a_golden_text() {
    for (folder, what) in [("scenarios", "scenario"), ("golden", "golden text")] {
        let path = format!("{}/{folder}", env!("CARGO_MANIFEST_DIR"));
        let mut found: Vec<_> = fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        found.sort();
        assert_eq!(found, NAMES, "each {what} is that of a test and the other way round");
    }
}
