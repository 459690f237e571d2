//! Files of other tools, recorded on real GPUs: their content is found, reported and drawn, and
//! broken files are refused with the reason.

use ncclscope::cli;
use ncclscope::import::{self, Error, How, Profile};
use ncclscope::model::time::Shift;
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::recording::assert_sound;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}

fn unpacked(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(fs::File::open(data(name)).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The Nsight Systems export, in a folder of its own.
fn nsight() -> (TempDir, PathBuf) {
    written("nsys.sqlite", &unpacked("nsys_2xh100_alltoall.sqlite.gz"))
}

fn kineto() -> PathBuf {
    data("kineto_1rank_nccl.json.gz")
}

fn written(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// The output of `ncclscope`.
fn ncclscope(words: &[&str], paths: &[&Path]) -> Result<String, String> {
    let line = ["ncclscope"].iter().chain(words).map(|word| (*word).into());
    let line = line.chain(paths.iter().map(|path| path.as_os_str().to_owned()));
    let mut out = Vec::new();
    cli::run(line, &mut out).map_err(|failure| failure.to_string())?;
    Ok(String::from_utf8(out).unwrap())
}

fn imported(path: &Path) -> Trace {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("imported.perfetto-trace");
    ncclscope(&["import", "-o"], &[&output, path]).unwrap();
    let trace = Trace::open(&output).unwrap();
    assert_sound(&trace, 0);
    trace
}

fn one(trace: &Trace, sql: &str) -> i64 {
    trace.rows(sql)[0].i64("n")
}

#[test]
fn a_diagnosis_says_what_these_files_do_not_show() {
    let (_folder, path) = nsight();
    let text = ncclscope(&["diagnose"], &[&path]).unwrap();
    assert!(text.starts_with("Healthy: no rank, host or link holds up the others in 15 steps of 16.8 ms.\n"), "{text}");
    assert!(text.contains("\nWhich kernels of different ranks belong together is not in these files"), "{text}");
    assert!(!text.contains("if transfers took no time"), "{text}");

    let text = ncclscope(&["diagnose"], &[&kineto()]).unwrap();
    assert!(text.starts_with("Cannot tell: no steps repeat in these files; name what each step begins with"), "{text}");
    assert!(text.contains("\nThe file of 1 rank is not here"), "{text}");
    let all_reduce = "AllReduce 7.8 MiB f32 on default_pg (0)";
    let text = ncclscope(&["diagnose", "--step", all_reduce], &[&kineto()]).unwrap();
    assert!(text.starts_with("Cannot tell: it takes 5 steps after warm-up; these files have 1.\n"), "{text}");

    // Two files of rank 0 are two runs.
    let refused = ncclscope(&["diagnose"], &[&kineto(), &kineto()]).unwrap_err();
    assert!(refused.starts_with("rank 0 is in ") && refused.contains("give the files of one run"), "{refused}");
    let folder = tempfile::tempdir().unwrap();
    let refused = ncclscope(&["diagnose"], &[folder.path()]).unwrap_err();
    assert!(refused.ends_with("the folder has no *.perfetto-trace, *.sqlite, *.json or *.json.gz in it"), "{refused}");
}

#[test]
fn nsight_kernels_are_matched_to_their_operations() {
    let (_folder, path) = nsight();
    let profile = import::open(&path).unwrap();
    assert_eq!(profile.host.as_deref(), Some("modal"));
    assert_eq!(profile.kernels.len(), 4010);
    assert_eq!((profile.copies.len(), profile.cuda_calls.len(), profile.ranges.len()), (1289, 7466, 19118));
    let pids: Vec<_> = profile.processes.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [145, 144]);

    let kernels: Vec<_> = profile.nccl_kernels().collect();
    assert_eq!(kernels.len(), 66);
    let carried = |how| {
        let those = kernels.iter().filter(|kernel| kernel.carried.how == how);
        (those.clone().count(), those.map(|kernel| kernel.carried.count).sum::<u32>())
    };
    // The launches of two kernels come before the part of the report that is in the file.
    assert_eq!(carried(How::Launched), (64, 256));
    assert_eq!(carried(How::Concluded), (2, 8));
    assert_eq!(import::knowledge::point_to_point(&profile), (264, 66));

    for kernel in kernels.iter().filter(|kernel| kernel.carried.how == How::Launched) {
        let operations: Vec<_> = kernel.carried.operations.iter().map(|at| &profile.operations[*at]).collect();
        let mut functions: Vec<_> = operations.iter().map(|operation| operation.function.as_str()).collect();
        functions.sort_unstable();
        assert_eq!(functions, ["Recv", "Recv", "Send", "Send"]);
        for operation in operations {
            assert_eq!(operation.process, kernel.process);
            assert!(operation.call.unwrap().end < kernel.span.start, "asked for before it ran");
            assert_eq!((operation.bytes, operation.peer, operation.communicator), (None, None, None));
        }
    }
    // No operation is carried twice.
    let mut all: Vec<_> = kernels.iter().flat_map(|kernel| kernel.carried.operations.clone()).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 256);
    assert_eq!(profile.operations.len(), 264);
}

#[test]
fn kineto_kernels_have_their_process_group() {
    let profile = import::open(&kineto()).unwrap();
    assert_eq!(profile.kernels.len(), 2700);
    assert_eq!((profile.processes[0].pid, profile.processes[0].rank, profile.world), (2_910_249, Some(0), Some(2)));
    assert_eq!(profile.nccl_versions, ["2.17.1"]);
    let kernels: Vec<_> = profile.nccl_kernels().collect();
    assert_eq!(kernels.len(), 21);
    for kernel in &kernels {
        let operation = &profile.operations[kernel.carried.operations[0]];
        let group = &profile.communicators[operation.communicator.unwrap()];
        assert_eq!(group.name.as_deref(), Some("default_pg (0)"));
        assert_eq!((group.ranks, group.rank, group.members.as_deref()), (Some(2), Some(0), Some("[0, 1]")));
    }
    // "ts": 4458677009853.422, "dur": 2636.669, after 1711964646 s; 6637568 floats.
    let kernel = kernels.iter().find(|kernel| kernel.correlation == 60047).unwrap();
    assert_eq!((kernel.span.start.0, kernel.span.duration()), (4_458_677_009_853_422, 2_636_669));
    assert_eq!(profile.clock.to_utc.map(|to_utc| to_utc.ns), Some(1_711_964_646_000_000_000));
    let operation = &profile.operations[kernel.carried.operations[0]];
    assert_eq!((operation.function.as_str(), operation.bytes), ("AllReduce", Some(4 * 6_637_568)));
    assert_eq!((operation.datatype.as_deref(), operation.algorithm.as_deref()), (Some("ncclFloat32"), None));
    assert_eq!(kernel.grid, [8, 1, 1]);
}

#[test]
fn info_describes_files_of_other_tools() {
    let (_folder, path) = nsight();
    let text = ncclscope(&["info"], &[&path]).unwrap();
    for part in [
        "Nsight Systems 2026.2.1.210, schema 3.25.0",
        "66 kernels carry 264 point-to-point operations between them",
        "the export leaves binary payloads out",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let text = ncclscope(&["info"], &[&kineto()]).unwrap();
    for part in
        ["2700 kernels, 21 of them NCCL's", "21 of 21: default_pg (0), 2 ranks [0, 1]", "2.17.1, a job of 2 ranks"]
    {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn an_nsight_import_is_drawn_like_our_recordings() {
    let (_folder, path) = nsight();
    let trace = imported(&path);
    let kernels =
        "FROM slice s JOIN args k ON s.arg_set_id = k.arg_set_id AND k.key = 'nccl.kernel' WHERE s.category = 'kernel'";
    assert_eq!(one(&trace, &format!("SELECT count(*) AS n {kernels}")), 4010);
    assert_eq!(one(&trace, &format!("SELECT count(*) AS n {kernels} AND s.name = 'Send and 3 more'")), 64);
    assert_eq!(
        one(&trace, &format!("SELECT count(*) AS n {kernels} AND k.string_value LIKE 'ncclDevKernel_SendRecv%'")),
        66
    );
    assert_eq!(one(&trace, "SELECT count(*) AS n FROM slice WHERE category = 'carried'"), 256);
    assert_eq!(one(&trace, "SELECT count(*) AS n FROM slice WHERE category = 'nvtx'"), 19118);
    assert_eq!(one(&trace, "SELECT count(*) AS n FROM slice WHERE category = 'cuda'"), 7466);
    let of_range = "JOIN args r ON s.arg_set_id = r.arg_set_id AND r.key = 'nccl.nvtx_range' AND r.string_value GLOB 'nccl:all_to_all, op_id = *'";
    let named =
        format!("SELECT count(DISTINCT r.string_value) AS n FROM slice s {of_range} WHERE s.category = 'kernel'");
    assert_eq!(one(&trace, &named), 64, "the range of PyTorch's around each");
    // Nothing is added that the file does not say.
    for key in ["count", "bytes", "peer", "time_error_ns", "channels", "seq"] {
        let sql = format!(
            "SELECT count(*) AS n FROM slice s JOIN args a ON s.arg_set_id = a.arg_set_id \
             WHERE s.category = 'carried' AND a.key = 'nccl.{key}'"
        );
        assert_eq!(one(&trace, &sql), 0, "{key}");
    }
    assert_eq!(one(&trace, "SELECT count(*) AS n FROM args WHERE key = 'nccl.time_error_ns'"), 0);
    assert_eq!(one(&trace, "SELECT count(DISTINCT pid) AS n FROM process WHERE pid > 0"), 2);
    let note = trace.rows(
        "SELECT a.string_value AS note FROM slice s JOIN args a ON s.arg_set_id = a.arg_set_id \
         WHERE s.name = 'import started' AND a.key = 'nccl.note' LIMIT 1",
    );
    assert!(note[0].str("note").contains("from nsys.sqlite, by Nsight Systems 2026.2.1.210, schema 3.25.0"));
    // The first of NCCL's kernels with a launch in the file, to the nanosecond.
    let start = import::open(&path).unwrap().clock.to_utc.unwrap().ns + 60_127_005_302;
    let sql = format!("SELECT count(*) AS n {kernels} AND s.ts = {start} AND s.name = 'Send and 3 more'");
    assert_eq!(one(&trace, &sql), 1);
    // Operations are known by the range in which a kernel was launched. The file has no such range
    // for two kernels.
    let by = "SELECT extract_arg(arg_set_id, 'nccl.match') AS by, extract_arg(arg_set_id, 'nccl.doubt') AS doubt, count(*) AS n \
              FROM slice WHERE category = 'kernel' AND by IS NOT NULL GROUP BY 1, 2 ORDER BY 3";
    assert_eq!(trace.text(by), "by,doubt,n\nunmatched,its launch is not in the file,2\ninferred_range,NULL,64\n");
}

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
        assert_eq!((communicator.rank, communicator.device), (Some(rank), Some(rank as u32)));
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
    let kernels = "FROM slice s WHERE s.category = 'kernel' AND s.name LIKE 'Send % and 3 more'";
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
    trace.query(include_str!("../sql/ncclscope.sql")).unwrap();
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
    part.query(include_str!("../sql/ncclscope.sql")).unwrap();
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
fn a_kineto_import_is_drawn_like_our_recordings() {
    let trace = imported(&kineto());
    let with_group = "SELECT count(*) AS n FROM slice s JOIN args a ON s.arg_set_id = a.arg_set_id \
                      WHERE s.category = 'kernel' AND a.key = 'nccl.comm_name' AND a.string_value = 'default_pg (0)'";
    assert_eq!(one(&trace, with_group), 21);
    assert_eq!(
        one(&trace, "SELECT count(*) AS n FROM slice WHERE category = 'kernel' AND name LIKE 'AllReduce % f32'"),
        15
    );
    assert_eq!(one(&trace, "SELECT count(*) AS n FROM slice WHERE category = 'kernel' AND name LIKE 'Broadcast %'"), 6);
    // Its ranges are PyTorch's own.
    assert_eq!(one(&trace, "SELECT count(*) AS n FROM slice WHERE category = 'pytorch'"), 14388);
    assert_eq!(one(&trace, "SELECT count(*) AS n FROM slice WHERE category = 'nvtx'"), 0);
    assert_eq!(one(&trace, "SELECT count(*) AS n FROM track WHERE name GLOB 'NVTX*'"), 0);
    assert!(one(&trace, "SELECT count(*) AS n FROM track WHERE name = 'PyTorch · cpu_op'") > 0);
    // The calls come from the thread of the backward pass, and the main thread marks the steps.
    let ranges = "SELECT extract_arg(arg_set_id, 'nccl.nvtx_step') AS step, extract_arg(arg_set_id, 'nccl.nvtx_range') AS range, count(*) AS n \
                  FROM slice WHERE category = 'run' GROUP BY 1, 2";
    let expected = "step,range,n\n4,nccl:all_reduce,5\n4,nccl:broadcast,2\n5,nccl:all_reduce,5\n5,nccl:broadcast,2\n6,nccl:all_reduce,5\n6,nccl:broadcast,2\n";
    assert_eq!(trace.text(ranges), expected);
    // Thread ids may be those of pthread_self: too large for the system's, but still distinct.
    let mut text = String::from_utf8(unpacked("kineto_1rank_nccl.json.gz")).unwrap();
    for tid in [2_919_752_i64, 2_910_249] {
        text = text.replace(&format!("\"tid\": {tid}"), &format!("\"tid\": {}", tid + (1 << 33)));
    }
    let (_folder, path) = written("large.json", text.as_bytes());
    let trace = imported(&path);
    assert_eq!(trace.text(ranges), expected);
    assert_eq!(one(&trace, "SELECT count(*) AS n FROM thread WHERE tid IN (2910249, 2919752)"), 2);
}

#[test]
fn an_import_is_read_back_unchanged() {
    let (_folder, nsight) = nsight();
    for path in [kineto(), nsight] {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("imported.perfetto-trace");
        ncclscope(&["import", "-o"], &[&output, &path]).unwrap();
        let (before, after) = (import::open(&path).unwrap(), import::open(&output).unwrap());
        // Its times are on the wall clock.
        let offset = before.clock.to_utc.unwrap();
        let spans = |profile: &Profile, offset| {
            let place =
                |it: &import::Kernel| (it.process, it.span.shifted(offset), it.place, it.correlation, it.carried.how);
            profile.kernels.iter().map(place).collect::<Vec<_>>()
        };
        let known = spans(&before, offset).into_iter().map(|(process, span, place, correlation, how)| {
            let how = if how == How::Concluded { How::Unknown } else { how };
            (process, span, place, correlation, how)
        });
        assert!(known.eq(spans(&after, Shift::default())), "kernels of {}", path.display());
        assert_eq!(before.nccl_kernels().count(), after.nccl_kernels().count());
        assert_eq!(after.clock, import::Clock::of_file(before.clock.name.clone(), Some(0)));
        let source = import::Source { imported: true, path: output.clone(), ..before.source.clone() };
        assert_eq!(after.source, source);
        assert_eq!((&after.host, &after.devices, after.world), (&before.host, &before.devices, before.world));
        assert_eq!((&after.nccl_versions, after.ranges.len()), (&before.nccl_versions, before.ranges.len()));
        let calls = |profile: &Profile| profile.cuda_calls.iter().map(|it| it.api).collect::<Vec<_>>();
        assert!(calls(&before) == calls(&after));
        let communicators = |profile: &Profile| -> Vec<_> {
            let all = profile.communicators.iter();
            all.map(|it| (it.process, it.name.clone(), it.hash, it.ranks, it.rank, it.members.clone())).collect()
        };
        assert_eq!(communicators(&before), communicators(&after));
        let carried = |profile: &Profile| -> Vec<_> {
            let kernels = profile.nccl_kernels().filter(|kernel| kernel.carried.how != How::Concluded);
            let operations = kernels.flat_map(|kernel| kernel.carried.operations.iter());
            let mut all: Vec<_> = operations
                .map(|at| &profile.operations[*at])
                .map(|it| (it.process, it.function.clone(), it.bytes, it.datatype.clone(), it.communicator))
                .collect();
            all.sort();
            all
        };
        assert_eq!(carried(&before), carried(&after));
        assert!(before.notes.iter().all(|note| after.notes.contains(note)), "{:?} in {:?}", before.notes, after.notes);
        let text = ncclscope(&["info"], &[&output]).unwrap();
        assert!(!text.contains("not closed"), "{text}");
        // It is not overwritten, and not imported again.
        let error = ncclscope(&["import", "-o"], &[&output, &path]).unwrap_err();
        assert!(error.contains("exists already; name another file"), "{error}");
        let error = ncclscope(&["import", "-o"], &[&folder.path().join("again"), &output]).unwrap_err();
        assert!(error.contains("this is a trace of ncclscope already"), "{error}");
    }
}

/// The error for a file with these bytes.
fn refused(name: &str, bytes: &[u8]) -> Error {
    let (_folder, path) = written(name, bytes);
    import::open(&path).unwrap_err()
}

#[test]
fn files_that_are_no_profile_are_refused() {
    assert!(matches!(refused("empty.json", b""), Error::Empty));
    for (name, bytes, says) in [
        ("notes.txt", &b"the cluster was slow on Monday"[..], "not a profile"),
        ("report.nsys-rep", b"\x01\x02\x03\x04", "export it first"),
        ("archive.zip", b"PK\x03\x04", "unpack it first"),
        ("other.json", b"{\"loss\": [1, 2, 3]}", "no traceEvents"),
        ("number.json", b"[1, 2]", "not a Kineto trace"),
    ] {
        let error = refused(name, bytes);
        assert!(matches!(error, Error::Foreign(_) | Error::Damaged(_)), "{name}: {error:?}");
        assert!(error.to_string().contains(says), "{name}: {error}");
    }
    let database = written("other.sqlite", &[]);
    empty_database(&database.1);
    let error = import::open(&database.1).unwrap_err().to_string();
    assert!(error.contains("not an Nsight Systems export"), "{error}");
    let error = import::open(Path::new("/nonexistent/trace.json")).unwrap_err();
    assert!(matches!(error, Error::Io(_)), "{error}");
}

#[test]
fn an_export_of_another_schema_is_refused_with_the_reason() {
    for (change, says) in [
        (
            "UPDATE META_DATA_EXPORT SET value = '2' WHERE name = 'EXPORT_SCHEMA_VERSION_MAJOR'; \
             UPDATE META_DATA_EXPORT SET value = '2.7.1' WHERE name = 'EXPORT_SCHEMA_VERSION'",
            "Nsight Systems 2026.2.1.210 has schema 2.7.1, which is older than 3.x",
        ),
        (
            "DELETE FROM META_DATA_EXPORT WHERE name LIKE 'EXPORT_SCHEMA_VERSION_M%'; \
             UPDATE META_DATA_EXPORT SET value = '4.0.2' WHERE name = 'EXPORT_SCHEMA_VERSION'",
            "has schema 4.0.2, which is newer than 3.x",
        ),
        (
            "DELETE FROM META_DATA_EXPORT WHERE name LIKE 'EXPORT_SCHEMA%'",
            "this export of Nsight Systems 2026.2.1.210 does not state its schema",
        ),
        ("DROP TABLE META_DATA_EXPORT", "does not state its schema, like those of older releases"),
        (
            "ALTER TABLE StringIds RENAME TO StringTable; \
             ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
            "this is a database of nvprof",
        ),
        ("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN gridX", "CUPTI_ACTIVITY_KIND_KERNEL has no column gridX"),
    ] {
        let (_folder, path) = nsight();
        rusqlite::Connection::open(&path).unwrap().execute_batch(change).unwrap();
        let error = import::open(&path).unwrap_err().to_string();
        assert!(error.contains(says), "{change}: {error}");
        assert!(!error.contains("not an Nsight Systems export"), "{error}");
    }
    // An export with its schema as a single number is read; one without a date gets none.
    let (_folder, path) = nsight();
    let database = rusqlite::Connection::open(&path).unwrap();
    database.execute_batch("DELETE FROM META_DATA_EXPORT WHERE name LIKE 'EXPORT_SCHEMA_VERSION_M%'").unwrap();
    let dated = || import::open(&path).unwrap().clock.to_utc.map(|to_utc| to_utc.ns);
    assert_eq!(dated(), Some(1_779_782_330_176_752_435 - 28_254_349_605));
    for change in
        ["UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = 0", "DROP TABLE TARGET_INFO_SESSION_START_TIME"]
    {
        database.execute_batch(change).unwrap();
        assert_eq!(dated(), None, "{change}");
    }
}

/// An SQLite database of one page without tables, byte by byte.
fn empty_database(path: &Path) {
    let mut page = vec![0_u8; 4096];
    page[..16].copy_from_slice(b"SQLite format 3\0");
    page[16..24].copy_from_slice(&[0x10, 0, 1, 1, 0, 64, 32, 32]);
    page[28..32].copy_from_slice(&1_u32.to_be_bytes());
    page[44..48].copy_from_slice(&4_u32.to_be_bytes());
    page[56..60].copy_from_slice(&1_u32.to_be_bytes());
    page[100] = 13;
    page[105..107].copy_from_slice(&4096_u16.to_be_bytes());
    fs::write(path, page).unwrap();
}

#[test]
fn a_cut_export_says_where_it_ends() {
    let whole = unpacked("nsys_2xh100_alltoall.sqlite.gz");
    for length in [20, 99, 4096, whole.len() / 2, whole.len() - 1] {
        let error = refused("cut.sqlite", &whole[..length]);
        assert!(matches!(error, Error::Damaged(_)), "{length}: {error:?}");
        assert!(error.to_string().contains(&format!("at byte {length}")), "{length}: {error}");
    }
}

#[test]
fn an_export_whose_pages_are_overwritten_is_refused_or_read_in_full() {
    let whole = unpacked("nsys_2xh100_alltoall.sqlite.gz");
    let mut refusals = 0;
    for part in 1..16 {
        let mut bytes = whole.clone();
        let at = whole.len() / 16 * part;
        bytes[at..at + 8192].fill(0xff);
        let (_folder, path) = written("damaged.sqlite", &bytes);
        if let Err(error) = import::open(&path) {
            refusals += 1;
            assert!(matches!(error, Error::Damaged(_) | Error::Foreign(_) | Error::Unsupported(_)), "{error:?}");
            assert!(error.to_string().contains("export"), "{error}");
        }
    }
    assert!(refusals > 3, "only {refusals} of 15 were noticed");
}

#[test]
fn a_fault_in_json_is_located() {
    let text = unpacked("kineto_1rank_nccl.json.gz");
    let error = refused("cut.json", &text[..50]);
    assert!(matches!(error, Error::Damaged(_)), "{error:?}");
    assert!(
        error.to_string().contains("at byte 50 (") && error.to_string().contains("before the first event"),
        "{error}"
    );
    // An unescaped quote, as releases of Kineto left in names.
    let mut broken = text.clone();
    let at = text.len() / 3;
    let quote = at + text[at..].windows(9).position(|part| part == b"\"name\": \"").unwrap() + 9;
    broken.insert(quote, b'"');
    let error = refused("broken.json", &broken);
    let Error::Damaged(reason) = &error else { panic!("{error:?}") };
    let position: usize = reason.split("at byte ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(position.abs_diff(quote) < 16, "{quote}: {reason}");
    assert!(reason.contains("after event "), "{reason}");
}

#[test]
fn a_cut_json_file_is_read_up_to_the_cut() {
    let text = unpacked("kineto_1rank_nccl.json.gz");
    let packed = fs::read(kineto()).unwrap();
    let whole = import::open(&kineto()).unwrap();
    let things = |profile: &Profile| profile.kernels.len() + profile.cuda_calls.len() + profile.ranges.len();
    let mut before = 0;
    for (name, bytes) in [
        ("cut.json", &text[..5000]),
        ("cut.json.gz", &packed[..packed.len() / 2]),
        ("cut.json", &text[..text.len() / 4 * 3]),
        ("cut.json", &text[..text.len() - 3]),
    ] {
        let (folder, path) = written(name, bytes);
        let profile = import::open(&path).unwrap();
        assert!(things(&profile) > before && things(&profile) <= things(&whole), "{name}, {} bytes", bytes.len());
        before = things(&profile);
        let note = profile.notes.iter().find(|note| note.starts_with("the file ends at byte ")).unwrap();
        let packed = if name.ends_with("gz") { " of the unpacked text" } else { "" };
        let position = note.split(' ').nth(5).unwrap();
        assert!(packed.is_empty() == (position == bytes.len().to_string()) && note.contains(packed), "{note}");
        assert!(note.contains("after event "), "{note}");
        let output = folder.path().join("imported");
        ncclscope(&["import", "-o"], &[&output, &path]).unwrap();
        assert!(ncclscope(&["info"], &[&output]).unwrap().contains(note), "the trace says it too");
    }
    assert_eq!(before, things(&whole), "only the end of the array was missing");
}

#[test]
fn faulty_events_are_left_out_and_named() {
    let text = r#"{"traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10.5, "dur": 2, "args": {"device": 0, "stream": "seven"}},
        {"ph": "X", "cat": "kernel", "name": "late", "pid": 0, "tid": 7, "dur": 2, "args": {}},
        {"ph": "X", "cat": "kernel", "name": "back", "pid": 0, "tid": 7, "ts": 11, "dur": -1, "args": {}}
    ]}"#;
    let (_folder, path) = written("faulty.json", text.as_bytes());
    let profile = import::open(&path).unwrap();
    assert_eq!(profile.kernels.len(), 1);
    assert_eq!((profile.kernels[0].span.start.0, profile.kernels[0].place.stream), (10_500, 7));
    let faults: Vec<_> = profile.notes.iter().filter(|note| note.starts_with("left out: event ")).collect();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].contains("event 2 (it ends at byte ") && faults[0].contains("\"late\""), "{faults:?}");
}

#[test]
fn plain_and_packed_json_are_the_same() {
    let mut plain = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    plain.write_all(&unpacked("kineto_1rank_nccl.json.gz")).unwrap();
    let (one, other) = (import::open(plain.path()).unwrap(), import::open(&kineto()).unwrap());
    assert_eq!(one.kernels.len(), other.kernels.len());
    assert_eq!(one.extent(), other.extent());
}

/// Whatever a file contains, it is read or refused, and nothing else happens.
#[test]
fn changed_files_are_read_or_refused() {
    let json = r#"{"schemaVersion": 1, "baseTimeNanoseconds": 1711964646000000000, "traceEvents": [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 9.25, "dur": 1, "args": {"correlation": 1}},
        {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce_RING_LL_Sum_float(int)", "pid": 0, "tid": 7, "ts": 10.5, "dur": 2,
         "args": {"device": 0, "stream": 7, "correlation": 1, "grid": [8, 1, 1], "Collective name": "allreduce", "In msg nelems": 4,
                  "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}}
    ], "distributedInfo": {"rank": 0, "world_size": 2, "nccl_version": "2.17.1"}}"#;
    let script = "user init world comm=0x5c09e rank=0 nranks=2 name=dp\n\
                  user start launch world KernelLaunch\nuser stop launch\n\
                  user start plan world Group\n\
                  user start coll world Coll group=plan func=AllReduce count=1Ki datatype=ncclFloat32\n\
                  user stop coll\nuser stop plan\nuser finalize world\n";
    let play = ncclscope_tests::play::Play::new(script).env("NCCLSCOPE_COMPRESS", "0");
    let recording = ncclscope_tests::recording::Recording::by(play);
    let trace = fs::read(recording.traces.file()).unwrap();
    assert!(import::open(&recording.traces.file()).is_ok());
    let mut state = 11_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (folder, path) = written("changed", b"");
    for original in [json.as_bytes(), &trace] {
        let (mut read, mut refused) = (0, 0);
        for round in 0..300 {
            let mut bytes = original.to_vec();
            for _ in 0..1 + round % 3 {
                let at = random(bytes.len());
                // Digits, to get numbers of any size, and arbitrary bytes.
                bytes[at] = if round % 2 == 0 { b'9' } else { random(256) as u8 };
            }
            fs::write(&path, &bytes).unwrap();
            let output = folder.path().join("imported");
            match import::open(&path) {
                Ok(_) => read += 1,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    refused += 1;
                }
            }
            let _ = ncclscope(&["info"], &[&path]);
            let _ = ncclscope(&["import", "-o"], &[&output, &path]);
            let _ = fs::remove_file(&output);
        }
        assert!(read > 10 && refused > 10, "{read} read, {refused} refused");
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
