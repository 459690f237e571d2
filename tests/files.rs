//! Files, descriptors and messages, in a program that closes, fills, hangs and removes whatever it
//! can.
//!
//! The program is `support/program.c`; a script calls its functions by name.

use crate::command::ncclscope;
use ncclscope_tests::fault;
use ncclscope_tests::play::{self, Play};
use ncclscope_tests::recording::{Recording, assert_sound};
use ncclscope_tests::timeline::Timeline;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;
use tempfile::TempDir;

static PROGRAM: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| play::compile("program.c"));

const INIT: &str = "main init world comm=0xabc rank=0 nranks=4\n";
const FINALIZE: &str = "main finalize world\n";

/// A collective that is identified by its size in a trace.
fn collective(count: u32) -> String {
    format!("main start c world Coll func=AllReduce count={count} datatype=ncclInt8\nmain stop c\n")
}

/// A script in which `do NAME` calls a function of the program.
struct Hard {
    play: Play,
    folder: TempDir,
}

impl Hard {
    fn new(script: &str) -> Hard {
        let folder = tempfile::tempdir().unwrap();
        let script: Vec<_> = script
            .lines()
            .map(|line| match line.strip_prefix("do ") {
                Some(name) => format!("main call {name} library={}", PROGRAM.1.display()),
                None => line.to_owned(),
            })
            .collect();
        let play = Play::new(script.join("\n")).env("LD_PRELOAD", &PROGRAM.1);
        let play = play.env("CHECKPOINT", folder.path().join("checkpoint"));
        Hard { play, folder }
    }

    fn with(self, name: &str, value: &str) -> Hard {
        Hard { play: self.play.env(name, value), ..self }
    }

    /// Plays it. The job must not be disturbed, and each function of the program must succeed.
    #[track_caller]
    fn play(self) -> Played {
        let recording = Recording::by(self.play.limit(Duration::from_secs(45)));
        let outcome = &recording.outcome;
        assert_eq!((outcome.status, outcome.signal), (Some(0), None), "{}", outcome.stderr);
        for call in &outcome.calls {
            let expected = if call.label.as_deref() == Some("read_stderr") { call.status } else { Some(0) };
            assert_eq!(call.status.or(Some(0)), expected, "line {}: {:?}", call.line, call.label);
        }
        Played { recording, folder: self.folder }
    }
}

struct Played {
    recording: Recording,
    folder: TempDir,
}

impl Played {
    /// The content of the program's own file.
    #[track_caller]
    fn checkpoint(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.path().join("checkpoint")).unwrap()).into_owned()
    }

    /// The lines on stderr that contain these words.
    fn said(&self, words: &str) -> Vec<&str> {
        self.recording.said().into_iter().filter(|line| line.contains(words)).collect()
    }

    /// The texts of the trace's remarks with this name.
    fn notes(&self, name: &str) -> Vec<String> {
        let timeline = Timeline::read(&self.recording.traces.open());
        timeline.named(name).iter().map(|note| note.str("note").unwrap_or_default().to_owned()).collect()
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

// ---- descriptors ----

#[test]
fn nothing_is_written_to_a_file_that_took_our_descriptor() {
    let case = fault::case(
        "files",
        "the program closes all descriptors, or only ours, and opens a file under the number of the trace or the capture",
        "not one byte goes into its file: the descriptor is checked before each write, and ours is reopened by name; nothing is lost",
    );
    for deed in ["take_over", "close_all"] {
        let script = format!("{INIT}{}{FINALIZE}do {deed}\n{INIT}{}{FINALIZE}", collective(1), collective(2));
        let played = Hard::new(&script).with("NCCLSCOPE_CAPTURE", "1").play();
        assert_eq!(played.checkpoint(), "", "{deed}");
        // Reopened by name, it continues.
        let timeline = played.recording.timeline();
        timeline.slice("AllReduce 1 B i8");
        timeline.slice("AllReduce 2 B i8");
        assert_eq!(timeline.figures().get("recorded"), played.recording.calls());
        assert_eq!(played.notes("capture ended"), Vec::<String>::new(), "{deed}");
    }
    case.survived(2);
}

#[test]
fn a_file_that_cannot_be_opened_again_ends_the_recording() {
    let case = fault::case(
        "files",
        "the program opens a file under the number of the trace, whose folder was removed, so it cannot be reopened",
        "not one byte goes into the program's file; the recording ends with one line that says why",
    );
    let deeds = "do take_over\ndo remove_the_folder\n";
    let played = Hard::new(&format!("{INIT}{}{FINALIZE}{deeds}{INIT}{FINALIZE}", collective(1))).play();
    assert_eq!(played.checkpoint(), "");
    let said = played.said("recording ended");
    assert!(said.len() == 1 && said[0].contains("closed its descriptor"), "{said:?}");
    case.survived(1);
}

#[test]
fn our_descriptors_are_above_the_standard_three_and_close_on_exec() {
    let case = fault::case(
        "files",
        "the program starts without stderr",
        "our descriptors have high numbers, and are closed on `exec`",
    );
    let played = Hard::new(&format!("do close_stderr\n{INIT}do descriptors_in_the_way\n{}{FINALIZE}", collective(1)));
    let played = played.with("NCCLSCOPE_CAPTURE", "1").play();
    played.recording.timeline().slice("AllReduce 1 B i8");
    case.survived(1);
}

#[test]
fn output_on_a_closed_stderr_does_not_reach_the_trace() {
    let case = fault::case(
        "files",
        "the program prints on a stderr that was closed before it started",
        "it goes nowhere, as before; the trace is whole",
    );
    let script =
        format!("do close_stderr\n{INIT}main call write_to_stderr library=PROGRAM\n{}{FINALIZE}", collective(1));
    let script = script.replace("PROGRAM", &PROGRAM.1.display().to_string());
    let recording = Recording::by(Hard::new(&script).play);
    assert_eq!(recording.outcome.status, Some(0));
    let write = recording.outcome.calls.iter().find(|call| call.label.as_deref() == Some("write_to_stderr")).unwrap();
    assert_eq!(write.status, Some(1), "it goes nowhere, as before");
    let bytes = fs::read(recording.traces.file()).unwrap();
    assert!(!bytes.windows(21).any(|window| window == b"a word of the program"));
    recording.timeline().slice("AllReduce 1 B i8");
    case.survived(1);
}

#[test]
fn nothing_is_printed_to_a_file_that_took_stderr_s_descriptor() {
    let case = fault::case(
        "files",
        "the program closes stderr, and one of its own files gets number 2",
        "no further message is sent",
    );
    // To have something to say, the recording ends for lack of disk space.
    let script = format!(
        "{INIT}{FINALIZE}do wait_until_all_is_said\ndo stderr_is_a_checkpoint\ndo fill_the_disk\n{INIT}{}{FINALIZE}\
         do wait_until_all_is_said\ndo descriptors_like_stderr\n",
        collective(1)
    );
    let played = Hard::new(&script).with("ROOM", "0").with("KEEPS_NO_ROOM", "1").play();
    assert_eq!(played.checkpoint(), "");
    assert_eq!(played.recording.said().len(), 1, "before: {:?}", played.recording.said());
    assert_eq!(played.said("recording to").len(), 1);
    case.survived(1);
}

// ---- readers of stderr ----

/// To have more to say than where the trace is.
const COMPLAINT: (&str, &str) = ("NCCLSCOPE_CLOCK", "sun");

#[test]
fn an_unread_stderr_neither_ends_nor_blocks_the_job() {
    let case = fault::case(
        "files",
        "stderr is a pipe or socket that is full, or whose reader is gone",
        "nobody waits, no SIGPIPE; the flags of the stderr are unchanged",
    );
    for deed in [
        "stderr_is_a_pipe_that_is_closed",
        "stderr_is_a_socket_that_is_closed",
        "stderr_is_a_pipe_that_is_full",
        "stderr_is_a_socket_that_is_full",
    ] {
        let script = format!("do {deed}\n{INIT}{}{FINALIZE}do stderr_does_not_wait\n", collective(1));
        let played = Hard::new(&script).with(COMPLAINT.0, COMPLAINT.1).with("NCCLSCOPE_FLUSH_PERIOD", "10").play();
        played.recording.timeline().slice("AllReduce 1 B i8");
    }
    case.survived(4);
}

#[test]
fn unread_lines_are_counted_in_the_trace_and_for_the_next_reader() {
    let case = fault::case(
        "files",
        "stderr is full for a while",
        "lines are dropped and counted: in the trace, and for the next reader",
    );
    let script = format!(
        "do stderr_is_a_pipe_that_is_full\n{INIT}{}do wait_until_all_is_said\ndo read_stderr\ndo remove_the_folder\n\
         {FINALIZE}do wait_until_all_is_said\ndo read_stderr\n",
        collective(1)
    );
    let played = Hard::new(&script).with(COMPLAINT.0, COMPLAINT.1).play();
    let read = played.checkpoint();
    assert!(read.contains("was removed"), "{read}");
    assert!(read.contains("]: 2 messages before this one were lost: nobody read them\n"), "{read}");

    let script =
        format!("do stderr_is_a_pipe_that_is_full\n{INIT}{}do wait_until_all_is_said\n{FINALIZE}", collective(1));
    let played = Hard::new(&script).with(COMPLAINT.0, COMPLAINT.1).play();
    let notes = played.notes("messages lost");
    assert!(notes.len() == 1 && notes[0].starts_with("2 lines"), "{notes:?}");
    case.survived(2);
}

#[test]
fn a_recording_that_does_not_start_says_so_when_stderr_is_read() {
    let case = fault::case(
        "files",
        "the file cannot be created, and stderr is read, full or closed",
        "the job is not recorded, which is said if somebody reads it",
    );
    let played = Hard::new(&format!("{INIT}{FINALIZE}")).with("NCCLSCOPE_OUTPUT", "/proc/nowhere").play();
    assert_eq!(played.said("this process is not recorded").len(), 1, "{}", played.recording.outcome.stderr);
    for deed in ["stderr_is_a_pipe_that_is_closed", "stderr_is_a_pipe_that_is_full"] {
        Hard::new(&format!("do {deed}\n{INIT}{FINALIZE}")).with("NCCLSCOPE_OUTPUT", "/proc/nowhere").play();
    }
    case.survived(3);
}

#[test]
fn a_thread_that_cannot_start_is_reported_and_leaves_no_file() {
    let case = fault::case(
        "files",
        "no thread, or only one, can be started",
        "no file is left behind, one line says so, and the job is not recorded",
    );
    for deed in ["no_thread", "one_thread"] {
        let output = tempfile::tempdir().unwrap();
        let played = Hard::new(&format!("do {deed}\n{INIT}{}{FINALIZE}", collective(1)))
            .with("NCCLSCOPE_OUTPUT", &output.path().display().to_string())
            .with("NCCLSCOPE_CAPTURE", "1")
            .play();
        assert_eq!(files(output.path()), Vec::<PathBuf>::new(), "{deed}");
        assert_eq!(played.said("not recorded").len(), 1, "{deed}: {}", played.recording.outcome.stderr);
        assert_eq!(played.recording.outcome.call("world").mask, Some(0));
    }
    case.survived(2);
}

// ---- the folder ----

#[test]
fn files_written_at_the_end_are_beside_the_trace_after_a_chdir() {
    let case = fault::case(
        "files",
        "`chdir`, with the trace in a relative folder",
        "the trace and what comes at the end are in the folder where it began",
    );
    let script = format!("{INIT}do leave_the_folder\n{}{FINALIZE}", collective(5));
    let played = Hard::new(&script).with("NCCLSCOPE_OUTPUT", "here").with("NCCLSCOPE_METRICS_FILE", "it.prom").play();
    let folder = played.recording.traces.path();
    let found: Vec<_> = files(&folder.join("here"));
    assert!(found.iter().any(|path| path.to_string_lossy().ends_with(".summary.txt")), "{found:?}");
    assert!(
        !Path::new("/it.prom").exists() && !played.recording.outcome.stderr.contains("failed"),
        "{:?}",
        played.recording
    );
    case.survived(1);
}

#[test]
fn free_space_is_checked_where_the_file_is() {
    let case = fault::case(
        "files",
        "the disk is nearly full, after a `chdir`, with the trace in a relative folder",
        "`NCCLSCOPE_MIN_FREE` holds where the file is, and one line says so",
    );
    let script = format!("{INIT}{}do leave_the_folder\ndo nearly_fill_the_disk\n{FINALIZE}", collective(1));
    let played = Hard::new(&script).with("NCCLSCOPE_OUTPUT", "here").with("NCCLSCOPE_MIN_FREE", "1M").play();
    let said = played.said("less than NCCLSCOPE_MIN_FREE");
    assert!(said.len() == 1 && said[0].starts_with("only 4 KiB free at here/"), "{:?}", played.recording.said());
    played.recording.timeline().slice("AllReduce 1 B i8");
    case.survived(1);
}

#[test]
fn a_removed_folder_is_reported() {
    let case = fault::case("files", "the folder is removed", "one line says so, and the recording ends");
    let script = format!("{INIT}{}{FINALIZE}do remove_the_folder\n{INIT}{FINALIZE}{INIT}{FINALIZE}", collective(1));
    let played = Hard::new(&script).play();
    let said = played.said("was removed");
    assert!(said.len() == 1 && said[0].contains("recording ended"), "{:?}", played.recording.said());
    case.survived(1);
}

#[test]
fn another_users_link_in_a_shared_folder_is_not_followed() {
    let case = fault::case(
        "files",
        "another user's symbolic link is in the place of the folder, in one that everybody may write to",
        "refused with one line, even if the kernel would follow the link",
    );
    let shared = tempfile::tempdir().unwrap();
    let target = tempfile::tempdir().unwrap();
    let link = shared.path().join("traces");
    symlink(target.path(), &link).unwrap();
    let record = || {
        let script = format!("{INIT}{}{FINALIZE}", collective(1));
        Hard::new(&script).with("NCCLSCOPE_OUTPUT", &link.join("below").display().to_string()).play()
    };
    // Our own links are followed, and anyone's in a folder that not everyone may write to.
    assert_eq!(record().said("recording to").len(), 1);
    let made = files(&target.path().join("below")).len();
    assert_eq!(made, 2, "the trace and its summary");
    fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(record().said("recording to").len(), 1);
    if std::os::unix::fs::lchown(&link, Some(65534), Some(65534)).is_err() {
        eprintln!("only root can make another user's link: left out");
        case.survived(0);
        return;
    }
    let played = record();
    assert_eq!(files(&target.path().join("below")).len(), 2 * made);
    let said = played.said("not recorded");
    assert!(said.len() == 1 && said[0].contains("another user's symbolic link"), "{:?}", played.recording.said());
    fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(record().said("recording to").len(), 1);
    case.survived(1);
}

// ---- the disk ----

#[test]
fn a_hanging_disk_is_waited_for_and_named_once() {
    let case = fault::case(
        "files",
        "the disk hangs in a write, while 60 communicators come and go",
        "one `finalize` waits for it, for 2 s; after that nothing waits, and one line names the file",
    );
    let again = format!("{INIT}{}{FINALIZE}", collective(1)).repeat(60);
    let played = Hard::new(&format!("{INIT}{FINALIZE}do hang_the_disk\n{again}")).play();
    let said = played.said("the disk hangs");
    assert_eq!(said.len(), 1, "{:?}", played.recording.said());
    let file = played.recording.traces.file();
    assert!(said[0].starts_with(&file.display().to_string()), "{said:?}");
    case.survived(60);
}

#[test]
fn a_disk_that_recovers_is_waited_for_again() {
    let case = fault::case("files", "the disk hangs and answers again", "the recording goes on");
    let hangs = format!("do hang_the_disk\n{INIT}{}{FINALIZE}do free_the_disk\nmain sleep 500ms\n", collective(1));
    // Several, for a busy machine.
    let again = format!("{INIT}{}{FINALIZE}", collective(2)).repeat(3);
    let recording = Recording::by(Hard::new(&format!("{INIT}{FINALIZE}{hangs}{again}main kill SIGKILL\n")).play);
    let timeline = Timeline::read(&recording.traces.open());
    timeline.slice("AllReduce 1 B i8");
    assert!(!timeline.named("AllReduce 2 B i8").is_empty(), "what came after it is not in the file");
    case.survived(1);
}

#[test]
fn a_disk_that_hangs_from_the_start_does_not_block_init() {
    let case = fault::case(
        "files",
        "the disk hangs when the file is created",
        "the first `init` waits for 10 s, and no other does; the process is not recorded",
    );
    let lives = format!("{INIT}{FINALIZE}").repeat(10);
    let played = Hard::new(&lives).with("DISK_HANGS_AT_ONCE", "1").play();
    let inits = played.recording.outcome.calls.iter().filter(|call| call.verb == "init");
    let inits: Vec<_> = inits.map(|call| (Duration::from_nanos(call.after - call.before), call.mask)).collect();
    // If each of them waited, they would have no time for it (`Hard::play`).
    let waited = |(time, _): &(Duration, _)| *time >= Duration::from_secs(10);
    assert_eq!(inits.iter().map(waited).collect::<Vec<_>>(), (0..10).map(|n| n == 0).collect::<Vec<_>>(), "{inits:?}");
    assert!(inits.iter().all(|(_, mask)| *mask == Some(0)), "{inits:?}");
    let said = played.said("not recorded");
    assert!(said.len() == 1 && said[0].contains("its disk has not answered"), "{:?}", played.recording.said());
    case.survived(1);
}

#[test]
fn a_full_disk_leaves_whole_packets_and_the_final_event() {
    let case = fault::case(
        "files",
        "the disk is full",
        "the last packet is whole, and the closing record is there: space for both is reserved",
    );
    let steps: String = (0..400).map(collective).collect();
    let open = "main start open world Coll func=Reduce count=7 datatype=ncclInt8\n";
    for compress in ["0", "1"] {
        let script = format!(
            "{INIT}{steps}{FINALIZE}do fill_the_disk\n{INIT}{open}{}{FINALIZE}main stop open\n",
            steps.repeat(60)
        );
        let played = Hard::new(&script).with("ROOM", "0").with("NCCLSCOPE_COMPRESS", compress).play();
        let trace = played.recording.traces.open();
        assert_sound(&trace, 0);
        assert_eq!(ncclscope::trace::reader::whole_length(trace.bytes()), trace.bytes().len());
        assert_eq!(played.said("No space left").len(), 1, "{:?}", played.recording.said());
        assert_eq!(played.notes("recording stopped").len(), 1);
        let timeline = Timeline::read(&trace);
        assert_eq!(timeline.named("recording ended").len(), 1);
        let figures = timeline.figures();
        let counted = ["recorded", "dropped", "discarded"].map(|name| figures.get(name)).iter().sum::<u64>();
        assert_eq!(counted, played.recording.calls());
        assert!(figures.get("discarded") > 0, "the disk was not full");
        assert_eq!(played.said("are faster"), Vec::<&str>::new());
    }
    case.survived(2);
}

#[test]
fn a_full_disk_without_reserved_space_leaves_whole_packets() {
    let case = fault::case(
        "files",
        "the disk is full, on a file system that cannot reserve space (NFS before 4.2, ZFS before 2.0)",
        "the last packet is whole; the closing record is missing, which `ncclscope info` says",
    );
    let steps: String = (0..400).map(collective).collect();
    let script = format!("{INIT}{}{FINALIZE}do fill_the_disk\n{INIT}{}{FINALIZE}", collective(1), steps.repeat(20));
    for compress in ["0", "1"] {
        let hard = Hard::new(&script).with("ROOM", "9999").with("KEEPS_NO_ROOM", "1");
        let played = hard.with("NCCLSCOPE_COMPRESS", compress).play();
        let bytes = fs::read(played.recording.traces.file()).unwrap();
        assert_eq!(ncclscope::trace::reader::whole_length(&bytes), bytes.len());
        let said = played.said("failed to write");
        assert!(said.len() == 1 && said[0].contains("No space left"), "{:?}", played.recording.said());
        let timeline = Timeline::read(&played.recording.traces.open());
        timeline.slice("AllReduce 1 B i8");
        assert!(timeline.named("recording ended").is_empty());
        let told = ncclscope(&[OsStr::new("info"), played.recording.traces.file().as_os_str()]).unwrap();
        assert!(told.contains("not closed    this recording has no end"), "{told}");
    }
    case.survived(2);
}

#[test]
fn no_reserved_space_remains_after_the_end() {
    let case = fault::case(
        "files",
        "the recording ends with space reserved",
        "the file takes no more of the disk than its length",
    );
    use std::os::unix::fs::MetadataExt;
    let played = Hard::new(&format!("{INIT}{}{FINALIZE}", collective(1))).play();
    let file = fs::metadata(played.recording.traces.file()).unwrap();
    assert!(file.blocks() * 512 < file.len() + (64 << 10), "{} bytes in {} blocks", file.len(), file.blocks());
    case.survived(1);
}

#[test]
fn a_disk_that_fails_or_becomes_read_only_ends_the_recording_with_its_reason() {
    let case = fault::case(
        "files",
        "while the job is recorded, the quota is used up, the file system becomes read-only, or the disk fails",
        "the file has whole packets up to there, and one line gives the system's reason",
    );
    let steps: String = (0..400).map(collective).collect();
    for (number, reason) in [(libc::EDQUOT, "quota"), (libc::EROFS, "Read-only"), (libc::EIO, "Input/output error")] {
        let script = format!("{INIT}{}{FINALIZE}do fail_the_disk\n{INIT}{steps}{FINALIZE}", collective(1));
        let played = Hard::new(&script).with("DISK_ERROR", &number.to_string()).play();
        let said = played.said(reason);
        assert_eq!(said.len(), 1, "{:?}", played.recording.said());
        assert!(said[0].contains("recording ended"), "{said:?}");
        let trace = played.recording.traces.open();
        assert_eq!(ncclscope::trace::reader::whole_length(trace.bytes()), trace.bytes().len());
        let bad = trace.rows("SELECT name FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')");
        assert!(bad.is_empty(), "{reason}: {bad:?}");
        assert_eq!(Timeline::read(&trace).named("AllReduce 1 B i8").len(), 1, "what came before is there");
    }
    case.survived(3);
}

#[test]
fn a_read_only_file_system_records_nothing_and_says_so() {
    let case = fault::case(
        "files",
        "the file system is read-only from the start",
        "the job is not recorded: mask 0, no thread, one line with the reason",
    );
    let looks = "do wait_until_all_is_said\nmain call other_threads library=PROGRAM\n";
    let looks = looks.replace("PROGRAM", &PROGRAM.1.display().to_string());
    let script = format!("{INIT}{}{looks}{FINALIZE}", collective(1));
    let threads = |hard: Hard| {
        let recording = Recording::by(hard.play);
        assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
        recording.outcome.calls.iter().find(|call| call.label.as_deref() == Some("other_threads")).unwrap().status
    };
    assert_eq!(threads(Hard::new(&script)), Some(2), "a recording has threads, and this check sees them");
    assert_eq!(threads(Hard::new(&script).with("READ_ONLY", "1")), Some(0));
    let played = Hard::new(&script).with("READ_ONLY", "1").play();
    let said = played.said("Read-only file system");
    assert!(said.len() == 1 && said[0].contains("not recorded"), "{:?}", played.recording.said());
    assert_eq!(played.recording.outcome.call("world").mask, Some(0));
    assert!(played.recording.traces.files().is_empty());
    case.survived(1);
}

#[test]
fn a_slow_disk_loses_nothing_uncounted() {
    let case = fault::case(
        "files",
        "each write takes 200 ms, then one takes as long as 48,000 calls, with room for 1 MB of records",
        "no call waits for the disk; every call is recorded, or counted as dropped or left out; the trace is whole",
    );
    let steps: String = (0..400).map(collective).collect();
    // The disk answers only after the calls: one that waited for it, or for room, would never end.
    let script = format!(
        "{INIT}do slow_the_disk\n{}do hang_the_disk\n{}do free_the_disk\n{FINALIZE}{INIT}{}{FINALIZE}",
        steps.repeat(3),
        steps.repeat(60),
        collective(1)
    );
    let settings = [("NCCLSCOPE_BUFFER_SIZE", "1M"), ("NCCLSCOPE_FLUSH_PERIOD", "10"), ("NCCLSCOPE_COMPRESS", "0")];
    let hard = settings.iter().fold(Hard::new(&script), |hard, (name, value)| hard.with(name, value));
    let played = hard.play();
    let trace = played.recording.traces.open();
    assert_sound(&trace, 0);
    let figures = Timeline::read(&trace).figures();
    let counted = ["recorded", "dropped", "discarded"].map(|name| figures.get(name)).iter().sum::<u64>();
    assert_eq!(counted, played.recording.calls());
    assert!(figures.get("dropped") > 0, "there was room for all of them: {figures:?}");
    case.survived(1);
}
