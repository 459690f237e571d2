//! The payloads of NCCL's NVTX ranges in an Nsight export.

use super::{imported, kineto, ncclscope, nsight, one, written};
use ncclscope::import::{self, How, Profile};
use ncclscope_tests::perfetto::Trace;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// A made-up communicator hash.
const COMMUNICATOR: u64 = 0x8c3f_52d1_77ab_09e4;

/// The bytes of a payload in an export. They follow the layout that `import::nsight::payloads`
/// describes, and are made up: no real file with payloads was available.
fn payload(schema: u64, fourth: Fourth, fields: &[u8]) -> Vec<u8> {
    let size = fields.len() as u64;
    let fourth = match fourth {
        Fourth::Begin => 32,
        Fourth::End => 32 + size,
    };
    [1, schema, size, fourth].iter().flat_map(|word| word.to_le_bytes()).chain(fields.iter().copied()).collect()
}

/// What the fourth number of a payload means: where the payload begins, or where it ends.
#[derive(Clone, Copy)]
enum Fourth {
    Begin,
    End,
}

/// NCCL's schemas in the H100 file.
const SEND: u64 = 16_777_225;

const RECV: u64 = 16_777_226;

const INIT: u64 = 16_777_227;

/// One of the 264 calls in the H100 file, by its row.
struct Call {
    row: i64,
    pid: i64,
    peer: i32,
    schema: u64,
}

impl Call {
    fn bytes(&self) -> u64 {
        // A different size for each peer.
        1 << (20 + self.peer)
    }

    fn fields(&self) -> Vec<u8> {
        let mut fields = COMMUNICATOR.to_le_bytes().to_vec();
        fields.extend(self.bytes().to_le_bytes());
        fields.extend(self.peer.to_le_bytes());
        fields.extend([0; 4]);
        fields
    }

    fn json(&self) -> String {
        let (bytes, peer) = (self.bytes(), self.peer);
        format!(r#"{{"NCCL communicator ID": {COMMUNICATOR}, "Message size [bytes]": {bytes}, "Peer rank": {peer}}}"#)
    }
}

/// The Nsight Systems export as a writable database, and the sends and receives in it. Each group
/// in the file has two sends and two receives: the first of each is for rank 0 here, the second for
/// rank 1.
fn nsight_calls() -> (TempDir, PathBuf, rusqlite::Connection, Vec<Call>) {
    let (folder, path) = nsight();
    let database = rusqlite::Connection::open(&path).unwrap();
    let mut calls: Vec<Call> = Vec::new();
    let mut statement = database
        .prepare(
            "SELECT e.rowid, e.globalTid >> 24 & 0xffffff, s.value FROM NVTX_EVENTS e JOIN StringIds s ON s.id = e.textId \
             WHERE s.value IN ('ncclSend', 'ncclRecv') ORDER BY e.globalTid, e.start",
        )
        .unwrap();
    let mut rows = statement.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let (row, pid, name): (i64, i64, String) = (row.get(0).unwrap(), row.get(1).unwrap(), row.get(2).unwrap());
        let schema = if name == "ncclSend" { SEND } else { RECV };
        let before = calls.iter().filter(|call| (call.pid, call.schema) == (pid, schema)).count();
        calls.push(Call { row, pid, peer: (before % 2) as i32, schema });
    }
    drop(rows);
    drop(statement);
    (folder, path, database, calls)
}

fn set(database: &rusqlite::Connection, row: i64, column: &str, value: impl rusqlite::ToSql) {
    let sql = format!("UPDATE NVTX_EVENTS SET {column} = ?1 WHERE rowid = ?2");
    assert_eq!(database.execute(&sql, rusqlite::params![value, row]).unwrap(), 1);
}

/// The communicator's initialisation, as each process would have called it at the start of the
/// file.
fn initialise(database: &rusqlite::Connection) {
    database.execute("INSERT INTO StringIds (id, value) VALUES (900001, 'ncclCommInitRankConfig')", []).unwrap();
    for (pid, rank) in [(144, 0_i32), (145, 1)] {
        let mut fields = COMMUNICATOR.to_le_bytes().to_vec();
        [2, rank, rank, 0].iter().for_each(|word| fields.extend(word.to_le_bytes()));
        let rows = database
            .execute(
                "INSERT INTO NVTX_EVENTS (start, end, eventType, textId, domainId, globalTid, binaryData) \
                 SELECT min(start) - 1000, min(start) - 10, 59, 900001, 1, globalTid, ?1 FROM NVTX_EVENTS \
                 WHERE globalTid >> 24 & 0xffffff = ?2 AND domainId = 1",
                rusqlite::params![payload(INIT, Fourth::End, &fields), pid],
            )
            .unwrap();
        assert_eq!(rows, 1);
    }
}

fn fact(profile: &Profile, what: &str) -> import::knowledge::Fact {
    import::knowledge::facts(profile).into_iter().find(|fact| fact.what == what).unwrap()
}

#[test]
fn payloads_of_nccl_s_ranges_have_sizes_peers_and_communicators() {
    let (_folder, path, mut database, calls) = nsight_calls();
    assert_eq!(calls.len(), 264);
    let transaction = database.transaction().unwrap();
    for (at, call) in calls.iter().enumerate() {
        let fourth = if at % 2 == 0 { Fourth::Begin } else { Fourth::End };
        set(&transaction, call.row, "binaryData", payload(call.schema, fourth, &call.fields()));
    }
    initialise(&transaction);
    transaction.commit().unwrap();

    let profile = import::open(&path).unwrap();
    assert_eq!(profile.operations.len(), 264);
    for operation in &profile.operations {
        let peer = operation.peer.unwrap();
        assert_eq!(operation.bytes, Some(1 << (20 + peer)), "{operation:?}");
        assert_eq!((operation.count, operation.datatype.as_deref()), (None, None));
        let communicator = &profile.communicators[operation.communicator.unwrap()];
        let rank = (profile.processes[operation.process].pid - 144) as i32;
        assert_eq!((communicator.hash, communicator.ranks), (Some(COMMUNICATOR), Some(2)));
        assert_eq!((communicator.rank, communicator.device()), (Some(rank), Some(rank as u32)));
    }
    // Each group has one send and one receive for each rank.
    for kernel in profile.nccl_kernels().filter(|kernel| kernel.carried.how == How::Launched) {
        let operations = kernel.carried.operations.iter().map(|at| &profile.operations[*at]);
        let mut asked: Vec<_> = operations.map(|it| (it.function.as_str(), it.peer.unwrap())).collect();
        asked.sort_unstable();
        assert_eq!(asked, [("Recv", 0), ("Recv", 1), ("Send", 0), ("Send", 1)]);
    }
    // The ranges of two kernels come before the part of the report that is in the file.
    for (what, known, of) in [("size", 64, 66), ("communicator", 64, 66), ("peers", 256, 264), ("datatype", 0, 66)] {
        let fact = fact(&profile, what);
        assert_eq!((fact.known, fact.of), (known, of), "{what}: {}", fact.remark);
    }
    assert_eq!(fact(&profile, "size").remark, "1 MiB to 2 MiB, 384 MiB in all");
    assert_eq!(fact(&profile, "communicator").remark, "8c3f52d177ab09e4, 2 ranks");
    assert!(!profile.notes.iter().any(|note| note.contains("payload")), "{:?}", profile.notes);

    let trace = imported(&path);
    let kernels = "FROM slice s WHERE s.category = 'kernel' AND s.name = 'AlltoAllv'";
    assert_eq!(one(&trace, &format!("SELECT count(*) AS n {kernels}")), 64);
    for (name, expected) in [("Send 1 MiB → 0", 64), ("Recv 2 MiB ← 1", 64)] {
        let sql = format!("SELECT count(*) AS n FROM slice WHERE category = 'carried' AND name = '{name}'");
        assert_eq!(one(&trace, &sql), expected, "{name}");
    }
    let with = |key: &str| {
        let sql = format!(
            "SELECT count(*) AS n FROM slice s JOIN args a ON s.arg_set_id = a.arg_set_id \
             WHERE s.category = 'carried' AND a.key = 'nccl.{key}'"
        );
        one(&trace, &sql)
    };
    assert_eq!([with("bytes"), with("peer"), with("comm")], [256, 256, 256]);
    // A payload has neither the count nor the datatype, and nothing numbers the messages of a pair.
    assert_eq!([with("count"), with("datatype"), with("datatype_text"), with("seq")], [0; 4]);
    let (folder, again) = written("again", b"");
    fs::remove_file(&again).unwrap();
    ncclscope(&["import", "-o"], &[&again, &path]).unwrap();
    let again = import::open(&again).unwrap();
    drop(folder);
    let operations = again.nccl_kernels().flat_map(|kernel| &kernel.carried.operations);
    let operations: Vec<_> = operations.map(|at| &again.operations[*at]).collect();
    assert_eq!(operations.iter().filter(|it| it.bytes == Some(2 << 20) && it.peer == Some(1)).count(), 128);
    assert!(operations.iter().all(|it| it.correlation.is_none()), "a message of a pair got another's number");
    let init = "SELECT count(*) AS n FROM slice s JOIN args a ON s.arg_set_id = a.arg_set_id \
                WHERE s.name = 'communicator init' AND a.key = 'nccl.ranks' AND a.int_value = 2";
    assert_eq!(one(&trace, init), 2);
}

/// An artificial export of one process with an AllReduce and a Broadcast, each with its kernel.
const COLLECTIVES: &str = "
    CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
    INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION_MAJOR', '3'), ('EXPORT_SCHEMA_VERSION', '3.25.0');
    CREATE TABLE StringIds (id INTEGER, value TEXT);
    INSERT INTO StringIds VALUES (1, 'ncclAllReduce'), (2, 'ncclBroadcast'), (3, 'ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)'),
        (4, 'ncclDevKernel_Broadcast_RING_LL(x)'), (5, 'cuLaunchKernelEx'), (6, 'ncclCommInitRank');
    CREATE TABLE NVTX_EVENTS (start, end, eventType, text TEXT, globalTid, textId, domainId, binaryData TEXT);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId);
    INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1010, 1020, 117440519, 1, 5), (2010, 2020, 117440519, 2, 5);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, globalPid, demangledName, gridX, gridY, gridZ,
        blockX, blockY, blockZ, correlationId);
    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1100, 2100, 0, 1, 7, 117440512, 3, 4, 1, 1, 512, 1, 1, 1),
        (2200, 3200, 0, 1, 7, 117440512, 4, 4, 1, 1, 512, 1, 1, 2);
    CREATE TABLE NVTX_PAYLOAD_SCHEMAS (domainId, schemaId, payloadSize);
    INSERT INTO NVTX_PAYLOAD_SCHEMAS VALUES (1, 16777216, 24), (1, 16777221, 24), (1, 16777222, 24);
    CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId, schemaId, idx, flags, type, name, offset);
    INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES
        (1, 16777216, 0, NULL, 18, 'NCCL communicator ID', NULL), (1, 16777216, 1, NULL, 5, 'No. of ranks', 8),
        (1, 16777216, 2, NULL, 5, 'Rank', 12), (1, 16777216, 3, NULL, 5, 'CUDA device', 16),
        (1, 16777221, 0, NULL, 18, 'NCCL communicator ID', NULL), (1, 16777221, 1, NULL, 22, 'Message size [bytes]', 8),
        (1, 16777221, 2, NULL, 16777240, 'Reduction operation', 16),
        (1, 16777222, 0, NULL, 18, 'NCCL communicator ID', NULL), (1, 16777222, 1, NULL, 22, 'Message size [bytes]', 8),
        (1, 16777222, 2, NULL, 5, 'Root', 16);
";

#[test]
fn payloads_of_collectives_have_root_reduction_and_bandwidth() {
    let (_folder, path) = written("made-up.sqlite", b"");
    let database = rusqlite::Connection::open(&path).unwrap();
    database.execute_batch(COLLECTIVES).unwrap();
    let words = |words: [u32; 4]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    for (start, text, schema, fields) in [
        (100, 6, 16_777_216, words([4, 2, 0, 0])),
        (1000, 1, 16_777_221, words([1 << 24, 0, 2, 0])),
        (2000, 2, 16_777_222, words([1 << 20, 0, 3, 0])),
    ] {
        let fields = [COMMUNICATOR.to_le_bytes().to_vec(), fields].concat();
        let row = rusqlite::params![start, start + 50, text, payload(schema, Fourth::Begin, &fields)];
        let sql = "INSERT INTO NVTX_EVENTS VALUES (?1, ?2, 59, NULL, 117440519, ?3, 1, ?4)";
        database.execute(sql, row).unwrap();
    }
    drop(database);
    let profile = import::open(&path).unwrap();
    let told: Vec<_> = profile.operations.iter().map(|it| (it.bytes, it.reduction.as_deref(), it.root)).collect();
    assert_eq!(told, [(Some(1 << 24), Some("Max"), None), (Some(1 << 20), None, Some(3))]);
    let remark = fact(&profile, "operations").remark;
    assert!(remark.contains("1 AllReduce, 1 Broadcast; reductions: 1 Max"), "{remark}");

    let trace = imported(&path);
    let of = |name: &str, key: &str| {
        let sql = format!(
            "SELECT count(*) AS n, max(a.int_value) AS value FROM slice s JOIN args a ON s.arg_set_id = a.arg_set_id \
             WHERE s.category = 'kernel' AND s.name = '{name}' AND a.key = 'nccl.{key}'"
        );
        let row = &trace.rows(&sql)[0];
        (row.i64("n") == 1).then(|| row.i64("value"))
    };
    assert_eq!(of("AllReduce 16 MiB", "bytes"), Some(1 << 24));
    // In 1000 ns; an all-reduce of four ranks moves 2 · 3 / 4 of it over the bus.
    assert_eq!(of("AllReduce 16 MiB", "algbw_bytes_per_s"), Some((1 << 24) * 1_000_000));
    assert_eq!(of("AllReduce 16 MiB", "busbw_bytes_per_s"), Some((1 << 24) * 1_500_000));
    assert_eq!((of("Broadcast 1 MiB", "root"), of("Broadcast 1 MiB", "bytes")), (Some(3), Some(1 << 20)));
    assert_eq!((of("AllReduce 16 MiB", "root"), of("AllReduce 16 MiB", "count")), (None, None));
    let note = trace.rows(
        "SELECT a.string_value AS note FROM slice s JOIN args a ON s.arg_set_id = a.arg_set_id \
         WHERE s.name = 'communicator' AND a.key = 'nccl.note'",
    );
    assert_eq!(note[0].str("note"), "8c3f52d177ab09e4, 4 ranks, rank 2");
    trace.query(include_str!("../../sql/ncclscope.sql")).unwrap();
    assert_eq!(
        trace.text("SELECT name, bytes, ranks FROM nccl_execution ORDER BY ts"),
        "name,bytes,ranks\nAllReduce 16 MiB,16777216,4\nBroadcast 1 MiB,1048576,4\n"
    );
    // A part of the trace knows its communicator, too.
    let folder = tempfile::tempdir().unwrap();
    let [whole, part] = ["whole", "part"].map(|name| folder.path().join(format!("{name}.perfetto-trace")));
    ncclscope(&["import", "-o"], &[&whole, &path]).unwrap();
    ncclscope(&["cut", "--time", "2500ns..", "-o"], &[&part, &whole]).unwrap();
    let part = Trace::open(&part).unwrap();
    part.query(include_str!("../../sql/ncclscope.sql")).unwrap();
    assert_eq!(part.text("SELECT hash, rank, ranks FROM nccl_communicator"), "hash,rank,ranks\n8c3f52d177ab09e4,2,4\n");
}

#[test]
fn payloads_are_read_from_json_too() {
    let (_folder, path, mut database, calls) = nsight_calls();
    database.execute("INSERT INTO StringIds (id, value) VALUES (900002, '{\"Peer rank\": \"1\"}')", []).unwrap();
    let transaction = database.transaction().unwrap();
    for call in &calls[2..] {
        set(&transaction, call.row, "jsonText", call.json());
    }
    set(&transaction, calls[0].row, "jsonTextId", 900_002);
    set(&transaction, calls[1].row, "jsonText", "{\"Peer rank\": ");
    transaction.commit().unwrap();
    let profile = import::open(&path).unwrap();
    let known = |knows: fn(&import::Operation) -> bool| profile.operations.iter().filter(|it| knows(it)).count();
    assert_eq!(known(|it| it.bytes.is_some() && it.communicator.is_some()), 262);
    assert_eq!(known(|it| it.peer.is_some()), 263);
    let note = profile.notes.iter().find(|note| note.contains("payloads")).unwrap();
    assert!(
        note.starts_with("1 payloads of NCCL's ranges were not read, 263 were: 1 JSON that is not an object"),
        "{note}"
    );
}

#[test]
fn damaged_payloads_are_counted_and_lose_nothing_else() {
    let (_folder, path, mut database, calls) = nsight_calls();
    let transaction = database.transaction().unwrap();
    let whole = |call: &Call| payload(call.schema, Fourth::Begin, &call.fields());
    let changed = |call: &Call, at: usize| {
        let mut bytes = whole(call);
        bytes[at] ^= 0x40;
        bytes
    };
    let (broken, sound) = calls.split_at(24);
    for (at, call) in broken.iter().enumerate() {
        let bytes = match at % 8 {
            0 => whole(call)[..31].to_vec(),
            1 => whole(call)[..55].to_vec(),
            // The domain, the schema, the size, the fourth number.
            2 => changed(call, 0),
            3 => changed(call, 8),
            4 => changed(call, 16),
            5 => changed(call, 24),
            6 => [whole(call), vec![0]].concat(),
            _ => {
                set(&transaction, call.row, "binaryData", "no bytes at all, but a text that is long enough for one");
                continue;
            }
        };
        set(&transaction, call.row, "binaryData", bytes);
    }
    for call in sound {
        set(&transaction, call.row, "binaryData", whole(call));
    }
    transaction.commit().unwrap();
    let profile = import::open(&path).unwrap();
    assert_eq!((profile.kernels.len(), profile.ranges.len(), profile.operations.len()), (4010, 19118, 264));
    assert_eq!(import::knowledge::point_to_point(&profile), (264, 66));
    let known = profile.operations.iter().filter(|it| it.bytes.is_some() && it.peer.is_some()).count();
    assert_eq!(known, 240);
    assert!(profile.operations.iter().all(|it| it.bytes.is_some() == it.communicator.is_some()));
    let note = profile.notes.iter().find(|note| note.contains("payloads")).unwrap();
    for part in [
        "24 payloads of NCCL's ranges were not read, 240 were",
        "3 shorter than 32 bytes",
        "6 with a domain other than their range's",
        "3 with a schema that is not in the file",
        "9 with a length other than their schema's",
        "3 with an unknown header",
    ] {
        assert!(note.contains(part), "{part} in {note}");
    }
    let text = ncclscope(&["info"], &[&path]).unwrap();
    assert!(text.contains("24 payloads of NCCL's ranges were not read"), "{text}");
    imported(&path);

    // If none can be read, the report says so in place of the sizes.
    database.execute("UPDATE NVTX_EVENTS SET binaryData = x'00' WHERE binaryData IS NOT NULL", []).unwrap();
    let profile = import::open(&path).unwrap();
    assert_eq!(fact(&profile, "size").known, 0);
    assert_eq!(fact(&profile, "size").remark, "none of 264 payloads has a known layout: 264 shorter than 32 bytes");
}

#[test]
fn a_schema_with_two_versions_in_a_file_is_ignored() {
    let (_folder, path, mut database, calls) = nsight_calls();
    let transaction = database.transaction().unwrap();
    for call in &calls {
        set(&transaction, call.row, "binaryData", payload(call.schema, Fourth::End, &call.fields()));
    }
    // Two processes with two releases of NCCL: in one of them the peer is at another offset.
    let sql = "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET offset = 20 WHERE rowid = \
               (SELECT min(rowid) FROM NVTX_PAYLOAD_SCHEMA_ENTRIES WHERE name = 'Peer rank' AND schemaId = 16777225)";
    assert_eq!(transaction.execute(sql, []).unwrap(), 1);
    transaction.commit().unwrap();
    let profile = import::open(&path).unwrap();
    for operation in &profile.operations {
        assert_eq!(operation.bytes.is_some(), operation.function == "Recv", "{operation:?}");
    }
    let note = profile.notes.iter().find(|note| note.contains("payloads")).unwrap();
    assert!(note.contains("132 with a schema that the file has in two versions"), "{note}");
}

#[test]
fn a_release_without_schema_tables_loses_only_the_payloads() {
    let (_folder, path, mut database, calls) = nsight_calls();
    let transaction = database.transaction().unwrap();
    for call in &calls {
        set(&transaction, call.row, "binaryData", payload(call.schema, Fourth::End, &call.fields()));
    }
    transaction.commit().unwrap();
    let sized = |change: &str| {
        database.execute_batch(change).unwrap();
        let profile = import::open(&path).unwrap();
        assert_eq!((profile.kernels.len(), profile.operations.len()), (4010, 264), "{change}");
        let sized = profile.operations.iter().filter(|it| it.bytes.is_some()).count();
        (sized, profile.notes.iter().find(|note| note.starts_with("NCCL attached")).cloned())
    };
    assert_eq!(sized("ALTER TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES DROP COLUMN flags").0, 264);
    assert_eq!(sized("DROP TABLE NVTX_PAYLOAD_SCHEMAS").0, 264, "the length is in the payload too");
    for change in
        ["ALTER TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES DROP COLUMN domainId", "DROP TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES"]
    {
        let (sized, note) = sized(change);
        assert_eq!(sized, 0);
        assert!(note.unwrap().contains("no schema in the file; none of 264 payloads has a known layout"));
    }
}

#[test]
fn absurd_sizes_are_reported_as_they_are() {
    let (_folder, path, database, calls) = nsight_calls();
    initialise(&database);
    for call in &calls {
        let json = format!(
            r#"{{"NCCL communicator ID": {COMMUNICATOR}, "Message size [bytes]": {}, "Peer rank": {}}}"#,
            u64::MAX,
            call.peer
        );
        set(&database, call.row, "jsonText", json);
    }
    let profile = import::open(&path).unwrap();
    assert!(
        fact(&profile, "size").remark.ends_with("16 EiB to 16 EiB, 16 EiB in all"),
        "{}",
        fact(&profile, "size").remark
    );
    let (folder, trace) = (tempfile::tempdir().unwrap(), imported(&path));
    assert!(one(&trace, "SELECT count(*) AS n FROM slice WHERE name LIKE 'Send 16 EiB%'") > 0);
    let output = folder.path().join("imported.perfetto-trace");
    ncclscope(&["import", "-o"], &[&output, &path]).unwrap();
    for file in [&path, &output] {
        ncclscope(&["info"], &[file]).unwrap();
    }
    let same = ncclscope(&["compare"], &[&output, &path]).unwrap_err();
    assert!(same.contains("are the same recording"), "{same}");
    ncclscope(&["compare"], &[&output, &kineto()]).unwrap();
}
