//! An archive of the files as they are, `ncclscope merge -o job.tar`.

use super::{identities, in_pairs};
use crate::command::ncclscope;
use ncclscope::trace::reader::whole_length;
use ncclscope_tests::perfetto::Trace;
use std::fs;
use std::path::Path;

/// The members of a tar, by its format: a header of 512 bytes with name and octal length, and the
/// bytes, filled up to a multiple of 512.
fn members(tar: &[u8]) -> Vec<(String, &[u8])> {
    let (mut members, mut rest) = (Vec::new(), tar);
    while rest[0] != 0 {
        let text = |from: usize, to: usize| {
            let field = &rest[from..to];
            std::str::from_utf8(field.split(|byte| *byte == 0).next().unwrap()).unwrap().trim().to_owned()
        };
        assert_eq!(&rest[257..262], b"ustar");
        let length = usize::from_str_radix(&text(124, 136), 8).unwrap();
        members.push((text(0, 100), &rest[512..512 + length]));
        rest = &rest[512 + length.next_multiple_of(512)..];
    }
    assert_eq!((rest.len(), rest.iter().all(|byte| *byte == 0)), (1024, true), "two empty blocks end it");
    members
}

#[test]
fn an_archive_has_the_files_as_they_are_and_opens_as_they_do() {
    let recordings: Vec<_> = (0..4).map(in_pairs).collect();
    let folder = tempfile::tempdir().unwrap();
    let output = |name: &str| folder.path().join(name);
    let merge = |output: &Path, files: &[&Path]| {
        let words = ["merge".as_ref(), "-o".as_ref(), output.as_os_str()];
        ncclscope(&words.into_iter().chain(files.iter().map(|file| file.as_os_str())).collect::<Vec<_>>())
    };
    // One was killed while it wrote.
    let mut files: Vec<_> = recordings.iter().map(|(_, file)| file.as_path()).collect();
    let (cut, bytes) = (output("3.perfetto-trace"), fs::read(files[3]).unwrap());
    fs::write(&cut, &bytes[..bytes.len() - 3]).unwrap();
    files[3] = &cut;
    let said = merge(&output("job.tar"), &files).unwrap();
    assert!(said.contains("3.perfetto-trace: left out an unfinished packet"), "{said}");
    assert!(said.contains("job.tar: 4 files, "), "{said}");
    let archive = fs::read(output("job.tar")).unwrap();
    let members = members(&archive);
    let names: Vec<_> = members.iter().map(|(name, _)| name.as_str()).collect();
    let traces = ["0.perfetto-trace", "1.perfetto-trace", "2.perfetto-trace", "3.perfetto-trace"];
    assert_eq!(names, [&["perfetto_manifest.json"], &traces[..]].concat());
    let mut expected = Vec::new();
    for (file, (name, bytes)) in files.iter().zip(&members[1..]) {
        let own = fs::read(file).unwrap();
        assert!(*bytes == &own[..whole_length(&own)], "{name}");
        expected.extend(identities(&Trace::from_bytes(*bytes).unwrap()));
    }
    expected.sort();
    // All of one clock: nothing but the host is to be said. Perfetto tells a manifest by how it
    // begins.
    assert!(members[0].1.starts_with(b"{\"perfetto_manifest\":"));
    let manifest: serde_json::Value = serde_json::from_slice(members[0].1).unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let file = |name: &str| serde_json::json!({ "path": name, "machine": { "name": host.trim() } });
    let expected_manifest = serde_json::json!({ "perfetto_manifest": {
        "version": 1,
        "trace_time": { "clock": "BOOTTIME", "file": "0.perfetto-trace" },
        "files": traces.map(file),
        "attributes": {},
    } });
    assert_eq!(manifest, expected_manifest);
    // The release of these tests, v52, knows no manifest: it skips it, and shows files of one clock
    // correctly.
    let opened = Trace::open(output("job.tar")).unwrap();
    assert_eq!(identities(&opened), expected);
    let bad = opened.rows("SELECT name FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')");
    assert!(bad.is_empty(), "{bad:?}");

    let reason = merge(&output("job.zip"), &files).unwrap_err();
    assert!(reason.contains("an archive of traces is a tar: name it") && reason.ends_with("job.tar"), "{reason}");
    let reason = ncclscope(&[
        "merge".as_ref(),
        files[0].as_os_str(),
        "-o".as_ref(),
        output("with.tar").as_os_str(),
        "--with".as_ref(),
        files[1].as_os_str(),
    ]);
    assert!(reason.unwrap_err().contains("name a .perfetto-trace to write"));
    let reason = merge(&output("again"), &[&output("job.tar")]).unwrap_err();
    assert!(reason.contains("this is an archive: unpack it first"), "{reason}");
    assert!(!output("job.zip").exists() && !output("with.tar").exists());
}
