//! Communicators: their names, very many of them, and two ranks in one process.

use crate::command::ncclscope;
use ncclscope_tests::fault;
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::Recording;
use ncclscope_tests::timeline::Slice;

/// What the trace says about the only communicator of a script.
#[track_caller]
fn communicator(init: &str) -> (String, Slice) {
    let timeline = Recording::of(&format!("user init world {init}\nuser finalize world")).timeline();
    let slice = timeline.slice("communicator init");
    (timeline.place(slice), slice.clone())
}

#[test]
fn communicators_have_names_of_all_kinds() {
    let (place, comm) = communicator("comm=0x1f2e3d4c rank=3 nranks=64 nodes=8 name=\"tensor parallel\"");
    assert_eq!(place, "Communicators/tensor parallel · rank 3 of 64");
    let expected =
        "comm=523124044 comm_hash=000000001f2e3d4c comm_name=tensor parallel interface=7 nodes=8 rank=3 ranks=64";
    assert_eq!(comm.arguments(), expected);

    let (place, comm) = communicator("comm=0xffffffff00000001 rank=0 nranks=64");
    assert_eq!(place, "Communicators/this host fffffffe · rank 0 of 64");
    assert_eq!(comm.int("comm").map(i64::cast_unsigned), Some(0xffff_ffff_0000_0001));
    assert_eq!(comm.str("comm_name"), None);

    let (place, comm) = communicator("comm=7 rank=0 nranks=1");
    assert_eq!(place, "Communicators/this host 00000007 · rank 0 of 1");
    assert_eq!(comm.int("ranks"), Some(1));

    let (_, comm) = communicator("comm=7 rank=0 nranks=2 name=\"a\\xffb\\xc3\"");
    assert_eq!(comm.str("comm_name"), Some("a\u{fffd}b\u{fffd}"));
}

#[test]
fn a_very_long_name_is_cut() {
    let case = fault::case("NCCL", "a communicator's name of thousands of bytes", "it is cut");
    let name = "0123456789".repeat(30);
    let (place, comm) = communicator(&format!("comm=7 rank=0 nranks=2 name={name}"));
    let kept = comm.str("comm_name").unwrap();
    assert!(name.starts_with(kept.trim_end_matches('…')), "{kept}");
    assert!((100..=130).contains(&kept.len()), "{} bytes are kept", kept.len());
    assert!(place.starts_with(&format!("Communicators/{kept}")), "{place}");

    // Not inside a character.
    let name = "→".repeat(100);
    let (_, comm) = communicator(&format!("comm=7 rank=0 nranks=2 name={name}"));
    assert!(name.starts_with(comm.str("comm_name").unwrap().trim_end_matches(['…', '\u{fffd}'])));
    case.survived(1);
}

/// The viewer gets slow with more than a few thousand tracks. Communicators without tracks of their
/// own share some, are named in the arguments, and are counted.
#[test]
fn ten_thousand_communicators_make_only_a_few_thousand_tracks() {
    let case = fault::case("NCCL", "10,000 communicators", "all are recorded, on a bounded number of tracks");
    const COMMUNICATORS: i64 = 10_000;
    let mut script = String::new();
    for n in 0..COMMUNICATORS {
        script += &format!(
            "user init c{n} comm={:#x} rank=0 nranks=2 nodes=2\n\
             user start plan c{n} Group\n\
             user start coll c{n} Coll group=plan func=AllReduce count=1Ki datatype=ncclFloat32 algo=RING\n\
             user stop coll\n\
             user stop plan\n\
             proxy{} start op c{n} ProxyOp parent=coll channelId={} peer=1 nSteps=1 chunkSize=1Ki isSend=1\n\
             proxy{} start step c{n} ProxyStep parent=op step=5\n\
             proxy{} stop step\n\
             proxy{} stop op\n\
             user finalize c{n}\n",
            0xc000 + n,
            n % 200,
            n % 64,
            n % 200,
            n % 200,
            n % 200,
        );
    }
    let play = Play::new(script).env("NCCLSCOPE_PRESET", "full").env("NCCLSCOPE_BUFFER_SIZE", "256M");
    let recording = Recording::by(play);
    assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
    let trace = recording.traces.open();
    assert_eq!(trace.check(), []);
    let number = |sql: &str| trace.rows(sql)[0].i64("n");
    let tracks = number("SELECT count(*) AS n FROM track");
    assert!((1_000..5_000).contains(&tracks), "{tracks} tracks");
    const OPERATIONS: &str = "SELECT count(*) AS n FROM slice s JOIN track t ON t.id = s.track_id \
                              WHERE s.category = 'operation' AND s.dur >= 0 AND extract_arg(s.arg_set_id, 'nccl.count') > 0";
    assert_eq!(number(OPERATIONS), COMMUNICATORS, "each is drawn");
    let shared = format!("{OPERATIONS} AND t.name = 'other communicators · handed over'");
    let whose = "count(DISTINCT extract_arg(s.arg_set_id, 'nccl.comm'))";
    let sharing = number(&shared.replace("count(*)", whose));
    assert!(sharing > COMMUNICATORS * 9 / 10, "{sharing} share");
    assert_eq!(number(&shared), sharing, "each says its own communicator");
    let inits = number("SELECT count(*) AS n FROM slice WHERE name = 'communicator init'");
    assert_eq!(inits, COMMUNICATORS);
    let steps = number(
        "SELECT count(*) AS n FROM slice s JOIN track t ON t.id = s.track_id WHERE s.name GLOB 'step 5 · *' \
         AND (t.name NOT GLOB 'other peers*' OR extract_arg(s.arg_set_id, 'nccl.comm') > 0)",
    );
    assert_eq!(steps, COMMUNICATORS);
    let figures = recording.timeline().figures();
    assert_eq!((figures.get("communicators_sharing") as i64, figures.get("lanes_missing")), (sharing, 0));
    assert!(figures.get("slices_sharing") as i64 >= 2 * sharing);
    let said = ncclscope(&["info", recording.traces.file().to_str().unwrap()]).unwrap();
    assert!(said.contains(&format!("{sharing} communicators without tracks of their own")), "{said}");
    assert!(said.lines().count() < 200, "a page: {} lines", said.lines().count());
    case.survived(10_000);
}

#[test]
fn two_ranks_of_one_communicator_may_be_in_one_process() {
    let case = fault::case("NCCL", "two ranks of one communicator in one process", "each has its own tracks");
    let timeline = Recording::of(
        "one init a comm=0xc1 rank=0 nranks=2\n\
         two init b comm=0xc1 rank=1 nranks=2\n\
         one start x a Coll seqNumber=4 func=AllReduce count=1Ki datatype=ncclFloat32\n\
         two start y b Coll seqNumber=4 func=AllReduce count=1Ki datatype=ncclFloat32\n\
         one start s a P2p func=Send count=1 datatype=ncclInt8 peer=1\n\
         two start r b P2p func=Recv count=1 datatype=ncclInt8 peer=0\n\
         one stop s\n\
         two stop r\n\
         one stop x\n\
         two stop y\n\
         one finalize a\n\
         two finalize b",
    )
    .timeline();
    for name in ["communicator init", "communicator finalize"] {
        let ranks: Vec<_> = timeline.named(name).iter().map(|comm| comm.int("rank")).collect();
        assert_eq!(ranks, [Some(0), Some(1)]);
    }
    // The same operation has the same colour on both ranks.
    let operations = timeline.named("AllReduce 4 KiB f32");
    let [x, y] = operations[..] else { panic!("{operations:?}") };
    assert_eq!(x.str("correlation_id"), y.str("correlation_id"));
    assert!(x.str("correlation_id").is_some());
    let (send, recv) = (timeline.slice("Send 1 B i8 → 1"), timeline.slice("Recv 1 B i8 ← 0"));
    assert_eq!(send.str("correlation_id"), recv.str("correlation_id"));
    assert_ne!(send.str("correlation_id"), x.str("correlation_id"));
    // They overlap, and are distinguished by thread.
    assert_ne!(x.track, y.track);
    assert_ne!(x.int("tid"), y.int("tid"));
    case.survived(1);
}
