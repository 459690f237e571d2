//! Files that are no profile, or were cut off or damaged.

use super::{kineto, ncclscope, nsight, unpacked, written};
use ncclscope::import::{self, Error, Profile};
use std::fs;
use std::path::Path;

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
