//! The arguments of slices: words, and every field of what NCCL passes.

use super::shown;
use ncclscope_tests::fault;
use ncclscope_tests::perfetto::Value;
use ncclscope_tests::timeline::Timeline;

#[test]
fn new_words_are_kept_as_text() {
    let timeline = shown(
        "user start a world Coll func=AllJuggle count=3 datatype=ncclPosit8 algo=SPIRAL proto=WARP9\n\
         user stop a\n\
         user start b world Coll func=fresh:AllJuggle count=4 datatype=fresh:ncclFloat32 algo=fresh:RING \
           proto=fresh:WARP9\n\
         user stop b\n\
         user start c world Coll func=AllReduce count=5 datatype=Unknown algo=null proto=null\n\
         user stop c\n",
    );
    let new = timeline.slice("AllJuggle 3 elements");
    assert_eq!(new.str("function_text"), Some("AllJuggle"));
    assert_eq!(new.str("datatype_text"), Some("ncclPosit8"));
    assert_eq!(new.str("algorithm_text"), Some("SPIRAL"));
    assert_eq!(new.str("protocol_text"), Some("WARP9"));
    assert_eq!((new.int("count"), new.int("bytes"), new.str("algorithm")), (Some(3), None, None));

    let known = timeline.slice("AllJuggle 16 B f32");
    assert_eq!((known.str("datatype"), known.str("datatype_text")), (Some("ncclFloat32"), None));
    assert_eq!((known.str("algorithm"), known.str("algorithm_text")), (Some("RING"), None));
    assert_eq!(known.str("protocol_text"), Some("WARP9"));

    let unknown = timeline.slice("AllReduce 5 elements");
    assert_eq!((unknown.str("datatype"), unknown.int("bytes")), (Some("Unknown"), None));
    assert_eq!((unknown.str("algorithm"), unknown.str("algorithm_text")), (None, None));
}

#[test]
fn a_word_from_another_table_keeps_its_meaning() {
    // A symmetric kernel has its variant in place of the algorithm, and no protocol.
    let timeline = shown(
        "user start a world Coll func=AllGather count=8 datatype=ncclInt8 algo=LL proto=\"\"\n\
         user stop a\n\
         user start b world Coll func=AllGather count=9 datatype=ncclInt8 algo=Unknown proto=Unknown\n\
         user stop b\n",
    );
    let symmetric = timeline.slice("AllGather 8 B");
    assert_eq!(symmetric.str("algorithm").or(symmetric.str("algorithm_text")), Some("LL"));
    assert_eq!((symmetric.str("protocol"), symmetric.str("protocol_text")), (None, None));
    let unknown = timeline.slice("AllGather 9 B");
    for key in ["algorithm", "protocol"] {
        let value = unknown.str(key).or(unknown.str(&format!("{key}_text")));
        assert!(matches!(value, None | Some("Unknown")), "{key} is {value:?}");
    }
}

#[test]
fn an_address_with_changed_content_is_read_again() {
    let case = fault::case("NCCL", "a string's address is used for another string", "the new one is read");
    let timeline = shown(
        "user text func AllReduce\n\
         user text type ncclFloat32\n\
         user start a world Coll func=@func count=1 datatype=@type\n\
         user stop a\n\
         user text func Reduce\n\
         user start b world Coll func=@func count=1 datatype=@type\n\
         user stop b\n\
         user text func ReduceScatter\n\
         user text type ncclFloat64\n\
         user start c world Coll func=@func count=1 datatype=@type\n\
         user stop c\n\
         user text func AllJuggleEverything\n\
         user start d world Coll func=@func count=1 datatype=@type\n\
         user stop d\n\
         user text func AllJuggleEverythang\n\
         user start e world Coll func=@func count=1 datatype=@type\n\
         user stop e\n",
    );
    for name in [
        "AllReduce 4 B f32",
        "Reduce 4 B f32",
        "ReduceScatter 8 B f64",
        "AllJuggleEverything 8 B f64",
        "AllJuggleEverythang 8 B f64",
    ] {
        timeline.slice(name);
    }
    case.survived(1);
}

/// Compares a slice's arguments: `name=value`, separated by spaces.
#[track_caller]
pub(super) fn assert_arguments(timeline: &Timeline, name: &str, expected: &str) {
    assert_eq!(timeline.slice(name).arguments(), expected, "{name}");
}

#[test]
fn network_payloads_are_kept_to_the_last_bit() {
    let timeline = shown(
        "net start ib world NetPlugin net=ib device=-1 wr_id=0x7fffffffffffffff opcode=-2147483648 qp=2147483647 \
           length=0x123456789a\n\
         net stop ib\n",
    );
    let expected = "net_device=-1 net_id=65537 net_length=78187493530 net_opcode=-2147483648 \
                    net_queue_pair=2147483647 net_type=1 net_work_request=9223372036854775807";
    assert_arguments(&timeline, "network event", expected);

    let timeline = shown(
        "net start sock world NetPlugin net=socket fd=1023 op=-7 length=64Gi\n\
         net state sock NetUpdate net=socket fd=1023 op=3 length=5\n\
         net stop sock\n",
    );
    let expected = "net_device=1023 net_id=131073 net_length=68719476736 net_opcode=-7 net_type=1";
    assert_arguments(&timeline, "network event", expected);
    assert_arguments(&timeline, "network update", "net_device=1023 net_length=5 net_opcode=3 net_type=1");
    assert_eq!(timeline.slice("network update").parent, Some(timeline.slice("network event").id));
}

#[test]
fn copy_engine_events_are_kept_to_the_last_bit() {
    let timeline = shown(
        "user start ce world CeColl seqNumber=5 ceSeqNum=4294967295 func=AlltoAll sendBuff=0x1000 recvBuff=0x2000 \
           count=3 root=9 datatype=ncclFloat64 syncStrategy=UC intraBatchSync=true batchSize=7 numBatches=8 \
           stream=0x30 userTag=0x11\n\
         user start sync world CeSync parent=ce isComplete=true nRanks=6\n\
         user stop sync\n\
         user start batch world CeBatch parent=ce numOps=12 totalBytes=0x100000000 useIntraSync=true\n\
         user stop batch\n\
         user stop ce\n",
    );
    assert_arguments(
        &timeline,
        "copy engine AlltoAll 24 B f64",
        "batch_size=7 batches=8 buffer_alignment=4096 bytes=24 ce_seq=4294967295 comm=2748 count=3 datatype=ncclFloat64 doubt=no parent \
         function=AlltoAll intra_batch_sync=1 recv_buffer=8192 send_buffer=4096 seq=5 stream=48 sync_strategy=UC \
         user_tag=17",
    );
    assert_arguments(&timeline, "CeSync", "comm=2748 complete=1 ranks=6");
    assert_arguments(&timeline, "CeBatch", "bytes=4294967296 comm=2748 copies=12 intra_batch_sync=1");
    let around = timeline.slice("copy engine AlltoAll 24 B f64").id;
    assert_eq!(timeline.slice("CeSync").parent, Some(around));
    assert_eq!(timeline.slice("CeBatch").parent, Some(around));
}

#[test]
fn operations_keep_all_their_fields() {
    let timeline = shown(
        "user start g world GroupApi graphCaptured=true groupDepth=2\n\
         user start api world P2pApi parent=g func=Recv count=6 datatype=ncclUint64 stream=0x7000 graphCaptured=true \
           userTag=0x8000000000000001\n\
         user stop api\n\
         user start launch world KernelLaunch parent=g stream=0x7001\n\
         user stop launch\n\
         user start plan world Group\n\
         user start recv world P2p parent=api group=plan func=Recv buff=0x4000 count=6 datatype=ncclUint64 peer=3 \
           nChannels=4 userTag=5\n\
         user stop recv\n\
         user start bc world Coll parent=api group=plan seqNumber=0x1ffffffff func=Broadcast sendBuff=0x1 recvBuff=0x2 \
           count=0x100000000 root=3 datatype=ncclInt8 nChannels=255 nWarps=17 algo=NVLS_TREE proto=LL128 \
           kernelVariant=BC_x isSymColl=true userTag=6\n\
         user stop bc\n\
         user stop plan\n\
         user stop g\n",
    );
    let without_colour = |name: &str| {
        let mut slice = timeline.slice(name).clone();
        assert!(slice.args.remove("correlation_id").is_some(), "{name} has a colour");
        assert!(matches!(slice.args.remove("tid"), Some(Value::Int(_))), "{name} has a thread");
        slice.arguments()
    };
    let group = timeline.slice("GroupApi");
    assert_eq!(group.arguments(), "captured=1 comm=2748 depth=2");
    assert_arguments(
        &timeline,
        "ncclRecv 48 B u64",
        "bytes=48 captured=1 comm=2748 count=6 datatype=ncclUint64 function=Recv stream=28672 \
         user_tag=-9223372036854775807",
    );
    assert_arguments(&timeline, "KernelLaunch", "comm=2748 stream=28673");
    assert_eq!(
        without_colour("Recv 48 B u64 ← 3"),
        "buffer_alignment=4096 bytes=48 channels=4 comm=2748 count=6 datatype=ncclUint64 function=Recv peer=3 replay=1 send_buffer=16384 \
         user_tag=5"
    );
    assert_eq!(
        without_colour("Broadcast 4 GiB"),
        "algorithm=NVLS_TREE buffer_alignment=1 bytes=4294967296 channels=255 comm=2748 count=4294967296 datatype=ncclInt8 \
         function=Broadcast protocol=LL128 recv_buffer=2 replay=2 root=3 send_buffer=1 seq=8589934591 symmetric=1 \
         user_tag=6 variant=BC_x warps=17"
    );
}
