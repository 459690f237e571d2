//! From the first `init` to the end of the process, however it ends: files, lives, settings, masks.

use ncclscope::trace::reader::{self, proto::perfetto::protos::track_event::Type};
use ncclscope_tests::fault;
use ncclscope_tests::layout;
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::play::{self, Play};
use ncclscope_tests::recording::{Load, Recording, Traces, assert_sound, assert_undisturbed, said};
use ncclscope_tests::timeline::Timeline;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// A communicator `world` with one collective.
const WORLD: &str = "user init world comm=0xabc rank=0 nranks=4 nodes=2 name=dp\n\
                     user start plan world Group\n\
                     user start coll world Coll group=plan func=AllReduce count=1Ki datatype=ncclFloat32\n\
                     user stop coll\n\
                     user stop plan\n";
/// The trace's name for it.
const COLL: &str = "AllReduce 4 KiB f32";
/// A second communicator with another collective, and the trace's name for that.
const OTHER: &str = "user init other comm=0xdef rank=0 nranks=2\n\
                     user start coll2 other Coll func=Reduce count=1Ki datatype=ncclFloat32\n\
                     user stop coll2\n\
                     user finalize other\n";
const OTHER_COLL: &str = "Reduce 4 KiB f32";

/// Environment variables.
type Settings<'a> = &'a [(&'a str, &'a str)];

/// Plays a script with these settings.
#[track_caller]
fn record(script: &str, settings: Settings) -> Recording {
    Recording::by(Play::new(script).envs(settings))
}

fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

// ---- lives ----

#[test]
fn a_second_life_continues_in_the_same_file() {
    let case = fault::case(
        "processes",
        "all communicators are destroyed, and others made, with the library closed in between",
        "the recording continues in the same file",
    );
    for between in ["", "user unload\nuser sleep 2ms\nuser load\n"] {
        let recording = record(&format!("{WORLD}user finalize world\n{between}{OTHER}"), &[]);
        assert_undisturbed(&recording);
        let timeline = recording.timeline();
        let (first, second) = (timeline.slice(COLL), timeline.slice(OTHER_COLL));
        assert!(first.begin < second.begin);
        assert_eq!(timeline.named("communicator init").len(), 2);
        assert_eq!(timeline.named("communicator finalize").len(), 2);
        assert_eq!(timeline.figures().get("recorded"), recording.calls());
        let unload = recording.outcome.calls.iter().find(|call| call.verb == "unload");
        assert!(unload.is_none_or(|call| call.json["mapped"] == true), "the library stays when it is closed");
    }
    case.survived(1);
}

#[test]
fn everything_is_in_the_file_when_the_last_finalize_returns() {
    // Nothing that comes later can help.
    let recording = record(&format!("{WORLD}user finalize world\nuser kill SIGKILL"), &[]);
    assert_eq!(recording.outcome.signal, Some(libc::SIGKILL));
    let timeline = recording.timeline();
    timeline.slice(COLL);
    timeline.slice("communicator finalize");
    assert_eq!(timeline.named("recording ended").len(), 0);
}

#[test]
fn an_exit_without_finalize_leaves_a_complete_trace() {
    let case = fault::case(
        "processes",
        "the job exits without `finalize`",
        "the trace is complete, and the exit status is the job's",
    );
    for end in ["", "user exit 0", "main exit 0"] {
        let recording = record(&format!("{WORLD}{end}"), &[]);
        assert_undisturbed(&recording);
        let timeline = recording.timeline();
        timeline.slice(COLL);
        assert_eq!(timeline.figures().get("recorded"), recording.calls(), "{end}");
        assert_eq!(timeline.named("communicator finalize").len(), 0);
    }
    let recording = record(&format!("{WORLD}user exit 7"), &[]);
    assert_eq!(recording.outcome.status, Some(7), "the exit status is the job's own");
    case.survived(4);
}

/// How many slices with this name are in the file so far.
fn begun(traces: &Traces, name: &str) -> usize {
    let Some(file) = traces.files().pop() else { return 0 };
    let mut count = 0;
    let read = reader::read_file::<reader::Error>(&file, |packet| {
        let begins = packet.event.as_ref().is_some_and(|it| it.r#type() == Type::SliceBegin && it.name == name);
        count += usize::from(begins);
        Ok(())
    });
    // A trace that is being written may end anywhere.
    drop(read);
    count
}

#[test]
fn an_abrupt_end_loses_only_what_was_not_flushed() {
    let case = fault::case(
        "processes",
        "`_exit`, `abort`, SIGKILL, SIGTERM, SIGINT with an event open",
        "what was flushed is readable",
    );
    for (end, signal) in [
        ("_exit 0", None),
        ("kill SIGKILL", Some(libc::SIGKILL)),
        ("kill SIGTERM", Some(libc::SIGTERM)),
        ("kill SIGINT", Some(libc::SIGINT)),
        ("abort", Some(libc::SIGABRT)),
    ] {
        let traces = Traces::new();
        let go = traces.path().join("go");
        let script = format!("{WORLD}user start open world Group\nuser wait-for {}\nuser {end}", go.display());
        let play = Play::new(script).env("NCCLSCOPE_FLUSH_PERIOD", "50");
        let play = play.env("NCCLSCOPE_OUTPUT", traces.path()).env("NCCLSCOPE_MIN_FREE", "0");
        let outcome = thread::scope(|scope| {
            let job = scope.spawn(|| play.run().unwrap());
            // However long that takes.
            while !job.is_finished() && begun(&traces, "Group") < 2 {
                thread::sleep(Duration::from_millis(5));
            }
            fs::write(go, "").unwrap();
            job.join().unwrap()
        });
        assert_eq!(outcome.signal, signal, "{end}: {}", outcome.stderr);
        let trace = traces.open();
        assert_sound(&trace, 1);
        let timeline = Timeline::read(&trace);
        timeline.slice(COLL);
        assert_eq!(timeline.named("Group").len(), 2, "{end}");
        assert_eq!(timeline.named("recording ended").len(), 0, "{end}");
    }
    case.survived(5);
}

/// How many processes the next test kills; `NCCLSCOPE_KILLS=1000` for as many.
fn kills() -> u64 {
    std::env::var("NCCLSCOPE_KILLS").ok().and_then(|number| number.parse().ok()).unwrap_or(6)
}

/// All threads send all the time, so that a flush is always under way. The signal, the moment (from
/// before `init` on) and the settings are random; the number of the kill is their seed.
#[test]
fn an_end_in_the_middle_of_everything_leaves_a_readable_trace() {
    let case = fault::case(
        "processes",
        "SIGKILL, SIGTERM or SIGSEGV at a random moment, from before `init` on, while all threads send: every interface, with and without compression, a capture and a summary (runs: kills that left a trace)",
        "Perfetto's engine and `ncclscope info` read what is there without an error",
    );
    let (mut traces_read, mut without) = (0, 0);
    for seed in 0..kills() {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let traces = Traces::new();
        let mut command = Command::new(play::host_path().unwrap());
        play::clean_environment(&mut command);
        command.arg("flood").arg("--plugin").arg(play::plugin_path().unwrap());
        let (version, threads) = (1 + random(7), 1 + random(3));
        command.args(["--interface", &version.to_string(), "--threads", &threads.to_string(), "--kind", "mixed"]);
        command.args(["--events", "100000000", "--rate", "100000"]);
        command.env("NCCLSCOPE_OUTPUT", traces.path()).env("NCCLSCOPE_MIN_FREE", "0");
        command.env("NCCLSCOPE_FLUSH_PERIOD", (10 + random(50)).to_string());
        command.env("NCCLSCOPE_COMPRESS", random(2).to_string()).env("NCCLSCOPE_CAPTURE", random(2).to_string());
        command.env("NCCLSCOPE_SUMMARY_PERIOD", random(2).to_string());
        let mut flood = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let signal = [libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV, libc::SIGKILL][random(4) as usize];
        // Every other one only once something is written, however long that takes.
        let written = || traces.files().pop().is_some_and(|file| fs::metadata(file).unwrap().len() > 0);
        while seed % 2 == 1 && !written() && flood.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(Duration::from_millis(random(400)));
        // Rust's own handler lets the first SIGSEGV pass that no access has caused.
        while flood.try_wait().unwrap().is_none() {
            // SAFETY: a process of ours that nobody has waited for.
            assert_eq!(unsafe { libc::kill(flood.id() as i32, signal) }, 0);
            thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(flood.wait().unwrap().signal(), Some(signal), "seed {seed}");
        let files = traces.files();
        if files.iter().all(|file| fs::metadata(file).unwrap().len() == 0) {
            without += 1;
            continue;
        }
        let trace = traces.open();
        let bad = trace.rows("SELECT name FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')");
        assert!(bad.is_empty(), "seed {seed}: {bad:?}");
        let info = crate::command::ncclscope(&["info", files[0].to_str().unwrap()]);
        assert!(info.is_ok_and(|info| info.contains("not closed")), "seed {seed}");
        traces_read += 1;
    }
    println!("{traces_read} traces read, {without} killed before there was one");
    assert!(traces_read >= kills() / 2, "{traces_read} of {}", kills());
    case.survived(traces_read);
}

// ---- fork ----

#[test]
fn a_forked_child_is_left_alone() {
    let case = fault::case(
        "processes",
        "a child is forked while the parent is recorded, and calls everything",
        "it is not recorded and says so; the parent's trace is whole",
    );
    let recording = record(
        &format!(
            "{WORLD}user fork child\n\
             child start a world Coll func=Reduce count=1Ki datatype=ncclFloat32\n\
             child state coll StepSendWait value=1\n\
             child stop coll\n\
             child init more comm=0x1 rank=0 nranks=2\n\
             child start b more Group\n\
             child finalize more\n\
             child init again comm=0x2 rank=0 nranks=2\n\
             child finalize world\n\
             user start after world Group\n\
             user stop after\n\
             user finalize world"
        ),
        &[],
    );
    assert_undisturbed(&recording);
    let outcome = &recording.outcome;
    let fork = outcome.calls.iter().find(|call| call.verb == "fork").unwrap();
    assert_eq!(fork.json["child"]["status"], 0, "{}", outcome.stderr);
    for label in ["a", "b"] {
        assert_eq!(outcome.call(label).handle, Some(0), "{label}");
    }
    for label in ["more", "again"] {
        assert_eq!(outcome.call(label).mask, Some(0), "{label}");
    }
    let about_it = recording.said().into_iter().filter(|line| line.contains("forked")).count();
    assert_eq!(about_it, 1, "{}", outcome.stderr);

    // One file, the parent's, with all of the parent's calls and none of the child's.
    let timeline = recording.timeline();
    timeline.slice(COLL);
    assert_eq!(timeline.named("Group").len(), 2);
    assert_eq!(timeline.named(OTHER_COLL).len(), 0);
    let child = fork.json["child"]["pid"].as_i64().unwrap() as i32;
    let by_child = outcome.calls.iter().filter(|call| call.pid == child && call.handle != Some(0));
    let by_child = by_child.filter(|call| matches!(call.verb.as_str(), "state" | "stop" | "start")).count() as u64;
    assert_eq!(by_child, 2, "what the child did with a handle of the parent's");
    assert_eq!(timeline.figures().get("recorded"), recording.calls() - by_child - 2);
    case.survived(1);
}

#[test]
fn a_child_forked_after_any_call_of_the_program_s_is_left_alone() {
    for call in ["step 1", "name-comm dp", "call ncclscope_release", "call ncclscope_acquire"] {
        let script = format!("main load\nmain {call}\nmain fork child\nchild init c comm=0x1 rank=0 nranks=2\n");
        let recording = record(&script, &[]);
        assert_eq!(recording.outcome.call("c").mask, Some(0), "{call}: {}", recording.outcome.stderr);
        assert!(recording.traces.files().is_empty(), "{call}");
    }
}

#[test]
fn a_child_forked_before_the_first_init_records_by_itself() {
    let case = fault::case("processes", "a child is forked before the first `init`", "both have traces of their own");
    let recording = record(
        "main load\n\
         main fork child\n\
         child init c comm=0x1 rank=0 nranks=2\n\
         child start x c Coll func=Reduce count=1Ki datatype=ncclFloat32\n\
         child stop x\n\
         child finalize c\n\
         main init p comm=0x1 rank=1 nranks=2\n\
         main start y p Coll func=AllReduce count=1Ki datatype=ncclFloat32\n\
         main stop y\n\
         main finalize p",
        &[],
    );
    assert_undisturbed(&recording);
    let files = recording.traces.files();
    assert_eq!(files.len(), 2, "{files:?}");
    let shown: BTreeSet<_> = files
        .iter()
        .map(|file| {
            let trace = Trace::open(file).unwrap();
            assert_sound(&trace, 0);
            let timeline = Timeline::read(&trace);
            let operations: Vec<_> = timeline.slices.iter().filter(|slice| slice.str("function").is_some()).collect();
            assert_eq!(operations.len(), 1);
            operations[0].name.clone()
        })
        .collect();
    assert_eq!(shown, BTreeSet::from([COLL.to_owned(), OTHER_COLL.to_owned()]));
    case.survived(1);
}

// ---- settings ----

#[test]
fn bad_settings_are_reported_and_harmless() {
    let case = fault::case(
        "settings",
        "misspelt names, bad values, values out of range",
        "each has one line and a remark in the trace; the default holds",
    );
    let settings = [
        ("NCCLSCOPE_PRESET", "everything"),
        ("NCCLSCOPE_MAX_SIZE", "10"),
        ("NCCLSCOPE_FLUSH_PERIOD", "1s"),
        ("NCCLSCOPE_PRESTE", "light"),
    ];
    let recording = record(&format!("{WORLD}user finalize world\n{OTHER}"), &settings);
    assert_undisturbed(&recording);
    let timeline = recording.timeline();
    timeline.slice(COLL);
    let said = recording.said();
    let noted: Vec<_> = timeline.named("bad setting").iter().map(|note| note.str("note").unwrap()).collect();
    assert_eq!(noted.len(), settings.len(), "{noted:?}");
    for (name, _) in settings {
        let about = |line: &&&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['=', ' ']));
        assert_eq!(said.iter().filter(about).count(), 1, "{name}: {said:?}");
        assert_eq!(noted.iter().filter(about).count(), 1, "{name}: {noted:?}");
    }
    assert_eq!(said.len(), settings.len() + 1, "besides, where it records to: {said:?}");
    assert!(noted.iter().all(|note| said.contains(note)), "{noted:?} {said:?}");
    assert_eq!(recording.outcome.call("world").mask, Some(mask_of(STANDARD)), "the default holds");
    case.survived(1);
}

#[test]
fn only_one_rank_prints() {
    // Where it records to, the bad setting, and the begin of the summary.
    for (rank, lines) in [("0", 3), ("3", 0)] {
        let recording = record(&format!("{WORLD}user finalize world"), &[("RANK", rank), ("NCCLSCOPE_CLOCK", "sun")]);
        assert_eq!(recording.said().len(), lines, "rank {rank}: {:?}", recording.said());
        // Every rank's trace says it.
        assert_eq!(recording.timeline().named("bad setting").len(), 1);
    }
}

#[test]
fn without_a_place_for_the_trace_nothing_is_recorded() {
    let case = fault::case("files", "the folder for traces is a file", "the job is not recorded; one line says so");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "mine").unwrap();
    let output = file.join("below").display().to_string();
    let recording = record(&format!("{WORLD}user finalize world\n{OTHER}"), &[("NCCLSCOPE_OUTPUT", &output)]);
    assert_undisturbed(&recording);
    let said = recording.said();
    assert!(said.len() == 1 && said[0].contains(&output) && said[0].contains("not recorded"), "{said:?}");
    for label in ["world", "other"] {
        assert_eq!(recording.outcome.call(label).mask, Some(0), "{label}");
    }
    for label in ["plan", "coll", "coll2"] {
        assert_eq!(recording.outcome.call(label).handle, Some(0), "{label}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    case.survived(1);
}

#[test]
fn a_disabled_plugin_is_silent() {
    let recording = record(&format!("{WORLD}user finalize world"), &[("NCCLSCOPE_PRESET", "off")]);
    assert_undisturbed(&recording);
    assert_eq!(recording.outcome.call("world").mask, Some(0));
    assert_eq!(recording.outcome.call("coll").handle, Some(0));
    assert_eq!(recording.outcome.stderr, "");
    assert_eq!(recording.traces.files(), Vec::<std::path::PathBuf>::new());
    assert_eq!(fs::read_dir(recording.traces.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_exists_is_never_overwritten() {
    let case = fault::case("files", "a file with the trace's name exists", "it is left as it is");
    let traces = Traces::new();
    let mut command = Command::new("sh");
    play::clean_environment(&mut command);
    // The name contains host, process and second: every possible one exists already.
    let script = "now=$(date +%s); for second in $(seq $now $((now + 20))); do \
                  echo mine > \"$NCCLSCOPE_OUTPUT/$(uname -n).$$.$second.perfetto-trace\"; done; exec \"$@\"";
    command.args(["-c", script, "sh"]).arg(play::host_path().unwrap()).arg("play");
    command.arg("--plugin").arg(play::plugin_path().unwrap()).args(["--interface", "7", "-"]);
    command.env("NCCLSCOPE_OUTPUT", traces.path()).env("NCCLSCOPE_MIN_FREE", "0");
    let script = format!("{WORLD}user finalize world\n");
    let finished = play::run(&mut command, &script, Duration::from_secs(20)).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let kept = traces.files().into_iter().filter(|file| fs::read(file).unwrap() == b"mine\n").count();
    assert_eq!(kept, 21, "{}", finished.stderr);
    let said = said(&finished.stderr);
    assert_eq!(said.len(), 1, "{said:?}");
    case.survived(1);
}

#[test]
fn only_its_owner_can_read_a_trace() {
    let recording = record(&format!("{WORLD}user finalize world"), &[]);
    let mode = fs::metadata(recording.traces.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600, "{mode:o}");
}

#[test]
fn the_folder_is_where_the_setting_says() {
    let traces = Traces::new();
    let template = format!("{}/%j/%h.%p.%r", traces.path().display());
    let settings = [("NCCLSCOPE_OUTPUT", &*template), ("SLURM_JOB_ID", "47/11"), ("RANK", "5")];
    let recording = record(&format!("{WORLD}user finalize world"), &settings);
    assert_undisturbed(&recording);
    let file = traces.file();
    let pid = recording.outcome.call("world").pid;
    let folder = traces.path().join("47_11").join(format!("{}.{pid}.5", host_name()));
    assert_eq!(file.parent(), Some(&*folder));
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with(&format!("{}.{pid}.", host_name())), "{name}");

    // By default, a folder for the job in the working directory.
    let settings = [("NCCLSCOPE_OUTPUT", ""), ("SLURM_JOB_ID", "4711")];
    let recording = record(&format!("{WORLD}user finalize world"), &settings);
    let folder = recording.traces.path().join("ncclscope-4711");
    assert_eq!(recording.traces.file().parent(), Some(&*folder));
    let recording = record(&format!("{WORLD}user finalize world"), &[("NCCLSCOPE_OUTPUT", "")]);
    let file = recording.traces.file();
    let folder = file.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
    assert!(folder.starts_with("ncclscope-20"), "{folder}");
}

#[test]
fn a_process_is_named_by_its_rank_in_the_job() {
    let cases: [(Settings, &str, &str); 5] = [
        (&[], "scripted-host", "rank unknown"),
        (&[("SLURM_PROCID", "1")], "rank 1", "rank from SLURM_PROCID"),
        (&[("SLURM_PROCID", "1"), ("OMPI_COMM_WORLD_RANK", "2")], "rank 2", "rank from OMPI_COMM_WORLD_RANK"),
        (&[("OMPI_COMM_WORLD_RANK", "2"), ("RANK", "3")], "rank 3", "rank from RANK"),
        (&[("RANK", "3"), ("NCCLSCOPE_RANK", "4")], "rank 4", "rank from NCCLSCOPE_RANK"),
    ];
    for (settings, name, label) in cases {
        let recording = record(&format!("{WORLD}user finalize world"), settings);
        let trace = recording.traces.open();
        let processes = trace.rows(
            "SELECT process.name, pid, args.string_value AS label FROM process JOIN args USING (arg_set_id) \
             WHERE args.key GLOB '*label*'",
        );
        let [process] = &processes[..] else { panic!("{settings:?}: {processes:?}") };
        assert_eq!(process.str("name"), format!("{name} · {}", host_name()));
        assert_eq!(process.str("label"), label);
        assert_eq!(process.i64("pid"), i64::from(recording.outcome.call("world").pid));
    }
}

// ---- masks ----

const LIGHT: &[&str] = &["GroupApi", "CollApi", "P2pApi", "KernelLaunch", "Group", "Coll", "P2p"];
const STANDARD: &[&str] =
    &["GroupApi", "CollApi", "P2pApi", "KernelLaunch", "Group", "Coll", "P2p", "ProxyOp", "ProxyStep"];
/// What is missing when channels are refused: phases are measured by the same means. Only the
/// preset full requests them.
const CHANNELS: &[&str] = &["KernelCh", "KernelPhase"];

fn mask_of(kinds: &[&str]) -> i32 {
    kinds.iter().map(|kind| layout::kind(kind).unwrap().bit as i32).sum()
}

#[test]
fn the_mask_follows_the_settings() {
    let case = fault::case(
        "NCCL",
        "releases whose kernel channels overrun, hang or outlive their memory (#2039, #2355, #2368)",
        "they are not asked for, unless forced or made safe, and one line says so",
    );
    let light = mask_of(LIGHT);
    let standard = mask_of(STANDARD);
    let (channel, channels) = (mask_of(&["KernelCh"]), mask_of(CHANNELS));
    let full = layout::kinds().iter().map(|kind| kind.bit as i32).sum::<i32>();
    // The host does not report NCCL's version, so interfaces with which some release fails on
    // channels get none.
    let cases: [(u32, Settings, i32, bool); 14] = [
        (7, &[], standard, false),
        (1, &[], standard, false),
        (7, &[("NCCLSCOPE_PRESET", "standard")], standard, false),
        (7, &[("NCCLSCOPE_PRESET", " Light ")], light, false),
        (5, &[("NCCLSCOPE_PRESET", "full")], full, false),
        (7, &[("NCCLSCOPE_PRESET", "full")], full & !channels, true),
        (4, &[("NCCLSCOPE_PRESET", "full")], full & !channels, true),
        (6, &[("NCCLSCOPE_PRESET", "full")], full & !channels, true),
        (6, &[("NCCLSCOPE_PRESET", "full"), ("NCCL_ALLGATHERV_ENABLE", "0")], full, false),
        (5, &[("NCCLSCOPE_PRESET", "full"), ("NCCLSCOPE_KERNEL_CH", "0")], full & !channels, false),
        (7, &[("NCCLSCOPE_PRESET", "full"), ("NCCLSCOPE_KERNEL_CH", "force")], full, false),
        (5, &[("NCCLSCOPE_PRESET", "light"), ("NCCLSCOPE_KERNEL_CH", "1")], light | channel, false),
        (7, &[("NCCLSCOPE_KERNEL_CH", "1")], standard, true),
        (7, &[("NCCLSCOPE_KERNEL_CH", "force")], standard | channel, false),
    ];
    for &(interface, settings, mask, refused) in &cases {
        let recording = Recording::by(Play::new(WORLD).envs(settings).interface(interface));
        assert_undisturbed(&recording);
        let asked = recording.outcome.call("world").mask.unwrap();
        assert_eq!(asked, mask, "v{interface} {settings:?}: {asked:#x}, not {mask:#x}");
        let said = recording.said().iter().any(|line| line.contains("NCCLSCOPE_KERNEL_CH=force"));
        assert_eq!(said, refused, "v{interface} {settings:?}: {}", recording.outcome.stderr);
    }
    case.survived(cases.len() as u64);
}

#[test]
fn the_mask_is_decided_once() {
    let recording = record(&format!("{WORLD}{OTHER}user mask value=0\nuser finalize world\n{}", second_life()), &[]);
    assert_undisturbed(&recording);
    for label in ["world", "other", "third"] {
        assert_eq!(recording.outcome.call(label).mask, Some(mask_of(STANDARD)), "{label}");
    }
}

fn second_life() -> &'static str {
    "user unload\n\
     user init third comm=0x3 rank=0 nranks=2\n\
     user finalize third"
}

#[test]
fn unrequested_events_are_recorded_anyway() {
    // NCCL's RAS service can set a mask of its own.
    let script =
        format!("{WORLD}user mask value=0xffff\nuser start ctrl world ProxyCtrl\nuser state ctrl CtrlIdle\nuser end\n");
    let play = Play::new(script).env("NCCLSCOPE_PRESET", "light").respect_mask();
    let recording = Recording::by(play);
    assert_undisturbed(&recording);
    assert_eq!(recording.timeline().named("idle").len(), 1);
}

// ---- many at once ----

#[test]
fn communicators_can_be_initialised_concurrently() {
    let case = fault::case("threads", "16 threads initialise communicators at once", "each is recorded");
    let load = Load::send("--interface 7 --threads 16 --comms 16 --events 5000", &[]);
    assert_eq!(load.sent("errors") + load.sent("null_handles"), 0);
    let trace = load.traces.open();
    assert_sound(&trace, 0);
    let row = &trace.rows(
        "SELECT count(*) AS comms, count(DISTINCT arg_set_id) AS names FROM slice WHERE name = 'communicator init'",
    )[0];
    assert_eq!((row.i64("comms"), row.i64("names")), (16, 16));
    assert_eq!(said(&load.stderr).len(), 1, "{}", load.stderr);
    case.survived(16);
}

#[test]
fn threads_named_by_nccl_are_shown_with_what_they_do() {
    // A thread that is nobody's appears at the same time.
    let script = "user init world comm=0xabc rank=0 nranks=2 name=dp\n\
                  service name \"NCCL Service 0\"\n\
                  other sleep 1us\n\
                  user start plan world Group\n\
                  user stop plan\n\
                  user sleep 3500ms\n\
                  user finalize world\n";
    let recording = record(script, &[]);
    let timeline = recording.timeline();
    let seen: Vec<_> = timeline.slices.iter().map(|slice| (timeline.place(slice), slice)).collect();
    let seen: Vec<_> = seen.into_iter().filter(|(place, _)| place.contains("seen · ")).collect();
    let service = recording.outcome.calls.iter().find(|call| call.thread == "service").unwrap().tid;
    assert!(!seen.is_empty());
    for (place, slice) in seen {
        assert!(place.ends_with(&format!("seen · NCCL Service 0 ({service})")), "{place}");
        assert!(slice.name.starts_with("in ") && slice.int("processor").is_some(), "{slice:?}");
    }
}
