//! The library is injected into CUDA (`CUDA_INJECTION64_PATH`), beside NCCL or without it.

use super::{CUDA, library_path, operation};
use ncclscope_tests::play::{self, Play};
use ncclscope_tests::recording::{Recording, assert_undisturbed};
use ncclscope_tests::{fault, layout};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Plays a script in a process whose CUDA has this library injected; the script must end well.
#[track_caller]
fn inject(library: &Path, interface: u32, script: &str, settings: &[(&str, &str)]) -> Recording {
    let play = Play::new(script).interface(interface).env("LD_LIBRARY_PATH", library_path());
    let recording = Recording::by(play.env("CUDA_INJECTION64_PATH", library).envs(settings));
    assert_undisturbed(&recording);
    recording
}

/// A second copy of the plugin.
fn copy_of_plugin(folder: &TempDir) -> PathBuf {
    let copy = folder.path().join("libncclscope.so");
    std::fs::copy(play::plugin_path().unwrap(), &copy).unwrap();
    copy
}

#[test]
fn a_program_without_nccl_has_a_timeline_of_its_kernels() {
    let plugin = play::plugin_path().unwrap();
    for end in ["", "user exit 0\n", "main exit 0\n"] {
        let script = format!("{CUDA}user kernel vector_add for=1ms\nuser kernel _Z6matmulPfi\n{CUDA}{end}");
        let recording = inject(&plugin, 7, &script, &[("NCCLSCOPE_PRESTE", "full")]);
        let timeline = recording.timeline();
        let note = timeline.slice("recording started").str("note").unwrap();
        assert!(note.contains("by CUDA_INJECTION64_PATH in cuInit; CUPTI of CUDA 13.0"), "{note}");
        let names: Vec<_> = timeline.slices.iter().filter(|it| it.category == "kernel").map(|it| &*it.name).collect();
        assert_eq!(names, ["vector_add", "matmul"]);
        let figures = timeline.figures();
        assert_eq!((figures.get("kernels_application"), figures.get("kernels_unmatched")), (2, 0));
        let said = recording.said();
        assert!(
            said[0].starts_with("recording to ") && said[0].contains("; no NCCL yet (CUDA_INJECTION64_PATH "),
            "{said:?}"
        );
        assert!(said[0].contains("; GPU kernels: yes, through CUPTI of CUDA 13.0, so torch.profiler "), "{said:?}");
        assert!(said.len() == 2 && said[1].starts_with("NCCLSCOPE_PRESTE"), "{said:?}");
    }
}

#[test]
fn plugin_and_injected_library_record_as_one() {
    let plugin = play::plugin_path().unwrap();
    let first = operation("world", "1Ki");
    let script = format!(
        "{CUDA}user kernel before for=1ms\n\
         user init world comm=0xabc rank=0 nranks=2\n\
         {first}\
         user finalize world\n\
         user kernel after for=1ms\n"
    );
    let recording = inject(&plugin, 7, &script, &[("NCCLSCOPE_PRESTE", "full")]);
    let timeline = recording.timeline();
    let names: Vec<_> = timeline.slices.iter().filter(|it| it.category == "kernel").map(|it| &*it.name).collect();
    assert_eq!(names, ["before", "AllReduce 4 KiB f32", "after"]);
    assert_eq!(timeline.named("bad setting").len(), 1);
    let said = recording.said();
    assert!(said.len() == 3 && said[1].starts_with("NCCLSCOPE_PRESTE"), "{said:?}");
    assert_eq!(said[2], "NCCL, which does not report its version (profiler interface v7) is recorded too");
    assert_eq!(timeline.figures().get("recorded"), recording.calls());
}

#[test]
fn only_one_of_two_copies_records() {
    let case = fault::case(
        "processes",
        "two copies of the library, one as plugin, one injected",
        "one records, through either",
    );
    let folder = tempfile::tempdir().unwrap();
    let copy = copy_of_plugin(&folder);
    let job = "user init world comm=0xabc rank=0 nranks=2\n\
               user start plan world Group\n\
               user start coll world Coll group=plan func=AllReduce count=1Ki datatype=ncclFloat32\n\
               user start op world ProxyOp parent=coll channelId=0 peer=1 nSteps=1 chunkSize=512Ki isSend=1\n\
               user stop coll\n\
               user stop plan\n\
               user start step world ProxyStep parent=op step=0\n\
               user state step StepSendWait value=4096\n\
               user stop step\n\
               user stop op\n";
    let end =
        "user call ncclscope_release\nuser call ncclscope_acquire\nuser kernel last for=1ms\nuser finalize world\n";
    // Whichever comes first, and through every interface.
    for (interface, script) in [(7, format!("{job}{CUDA}{end}"))]
        .into_iter()
        .chain(layout::VERSIONS.map(|interface| (interface, format!("{CUDA}main kernel first for=1ms\n{job}{end}"))))
    {
        let mut settings = vec![("NCCLSCOPE_PRESTE", "full")];
        if interface % 2 == 0 {
            // With all of its symbols before those of the other.
            settings.push(("LD_PRELOAD", copy.to_str().unwrap()));
        }
        let recording = inject(&copy, interface, &script, &settings);
        let timeline = recording.timeline();
        timeline.slice("AllReduce 4 KiB f32");
        timeline.slice("communicator init");
        timeline.slice("communicator finalize");
        assert_eq!(timeline.figures().get("recorded"), recording.calls(), "v{interface}");
        let expected: &[_] = if script.contains("first") { &["first", "last"] } else { &["last"] };
        let kernels = timeline.slices.iter().filter(|slice| slice.category == "kernel");
        assert_eq!(kernels.map(|slice| &*slice.name).collect::<Vec<_>>(), expected);
        assert_ne!(recording.outcome.call("coll").handle, Some(0));
        let complaints = recording.said().iter().filter(|line| line.contains("PRESTE")).count();
        assert_eq!(complaints, 1, "{:?}", recording.said());
    }
    case.survived(8);
}

#[test]
fn a_copy_of_another_version_is_not_trusted() {
    let case = fault::case(
        "processes",
        "a copy of another version is in the process",
        "this one does not record, and says so",
    );
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("other.c");
    for (name, version, said) in [
        ("newer.so", "const char *ncclscope_version(void) { return \"99.0.0\"; }", "ncclscope 99.0.0 from "),
        ("older.so", "", "ncclscope of an unknown version from "),
    ] {
        let text = format!("void *ncclProfiler_v1[6]; int InitializeInjection(void) {{ return 1; }} {version}");
        std::fs::write(&source, text).unwrap();
        let other = folder.path().join(name);
        play::compile_to(&other, &source, &["-shared", "-fPIC", "-Wl,-soname,libncclscope.so"]);
        let script = format!(
            "{CUDA}user init world comm=0xabc rank=0 nranks=2\nuser start g world Group\nuser finalize world\n"
        );
        for (preset, lines) in [("standard", 1), ("off", 0)] {
            let recording = inject(&other, 7, &script, &[("NCCLSCOPE_PRESET", preset)]);
            assert_eq!(recording.outcome.call("world").mask, Some(0));
            assert_eq!(recording.outcome.call("g").handle, Some(0));
            assert!(recording.traces.files().is_empty());
            let about = recording.said().iter().filter(|line| line.starts_with(said)).count();
            assert_eq!((about, recording.said().len()), (lines, lines), "{}", recording.outcome.stderr);
        }
    }
    case.survived(4);
}

#[test]
fn an_injected_library_is_silent_when_disabled_and_in_a_forked_child() {
    let plugin = play::plugin_path().unwrap();
    let recording = inject(&plugin, 7, &format!("{CUDA}user kernel one\n"), &[("NCCLSCOPE_PRESET", "off")]);
    assert!(recording.traces.files().is_empty());
    assert_eq!(recording.outcome.stderr, "");
    // The child leaves CUPTI and the file to its parent.
    let script = format!(
        "{CUDA}main kernel one\nmain fork child\nchild call InitializeInjection library={}\n",
        plugin.display()
    );
    let recording =
        Recording::by(Play::new(script).env("LD_LIBRARY_PATH", library_path()).env("CUDA_INJECTION64_PATH", &plugin));
    let fork = recording.outcome.calls.iter().find(|call| call.verb == "fork").unwrap();
    assert_eq!(fork.json["child"]["status"], 0, "{}", recording.outcome.stderr);
    let timeline = recording.timeline();
    assert_eq!(timeline.figures().get("kernels_application"), 1);
    // A child that was forked earlier makes a recording of its own.
    let script = format!(
        "main fork child\nchild call cuInit library=libcuda.so.1\nchild kernel inner\n{CUDA}main kernel outer\n"
    );
    let recording =
        Recording::by(Play::new(script).env("LD_LIBRARY_PATH", library_path()).env("CUDA_INJECTION64_PATH", &plugin));
    assert_eq!(recording.traces.files().len(), 2, "{}", recording.outcome.stderr);
}
