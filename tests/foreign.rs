//! Files of other tools, recorded on real GPUs: their content is found, reported and drawn, and
//! broken files are refused with the reason.

mod damaged;
mod payloads;

use ncclscope::cli;
use ncclscope::import::{self, How, Profile};
use ncclscope::model::time::Shift;
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::recording::assert_sound;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}

pub(crate) fn unpacked(name: &str) -> Vec<u8> {
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
pub(crate) fn ncclscope(words: &[&str], paths: &[&Path]) -> Result<String, String> {
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
    assert!(text.contains("\nThe file of rank 1 is not here, and that rank may be the cause."), "{text}");
    assert!(text.contains(" times ") && !text.contains("a step") && !text.contains("STEP"), "{text}");
    let refused = ncclscope(&["diagnose", "--step", "nope"], &[&kineto()]).unwrap_err();
    assert!(refused.starts_with("--step: there is no `nope` that runs more than once on each rank; most"), "{refused}");
    assert!(refused.contains('`') && refused.matches('`').count() == 2 * 9, "eight names: {refused}");
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
fn graphs_that_nsight_records_as_a_whole_are_no_idle_time() {
    let (folder, path) = nsight();
    let add = "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER); \
               INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1, 2), (3, 4)";
    rusqlite::Connection::open(&path).unwrap().execute_batch(add).unwrap();
    let imported = folder.path().join("imported");
    ncclscope(&["import", "-o"], &[&imported, &path]).unwrap();
    for path in [path, imported] {
        let text = ncclscope(&["diagnose"], &[&path]).unwrap();
        let expected = "Cannot tell: the settings left out a part of what ran (kernels of 2 launches of graphs; \
                        nsys profile --cuda-graph-trace=node records them)";
        assert!(text.starts_with(expected), "{text}");
    }
}

#[test]
fn names_and_ends_in_nsight_s_nvtx_table_are_no_marks() {
    let (_folder, path) = nsight();
    let before = import::open(&path).unwrap();
    // A category's name, a thread's, a domain's end; then a mark.
    let add = "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId) SELECT 1, kind, 'name', \
               (SELECT globalTid FROM NVTX_EVENTS LIMIT 1), 0 FROM (SELECT 33 AS kind UNION SELECT 39 UNION SELECT 76)";
    let database = rusqlite::Connection::open(&path).unwrap();
    database.execute_batch(add).unwrap();
    let after = import::open(&path).unwrap();
    assert_eq!((before.ranges.len(), before.extent()), (after.ranges.len(), after.extent()));
    database.execute_batch(&add.replace("33 AS kind", "34 AS kind")).unwrap();
    let after = import::open(&path).unwrap();
    assert_eq!((before.ranges.len() + 1, "name"), (after.ranges.len(), &*after.ranges[0].name));
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

#[test]
fn plain_and_packed_json_are_the_same() {
    let mut plain = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    plain.write_all(&unpacked("kineto_1rank_nccl.json.gz")).unwrap();
    let (one, other) = (import::open(plain.path()).unwrap(), import::open(&kineto()).unwrap());
    assert_eq!(one.kernels.len(), other.kernels.len());
    assert_eq!(one.extent(), other.extent());
}
