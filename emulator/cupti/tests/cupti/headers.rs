//! Compares the table of records with NVIDIA's headers, using a C compiler.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use emulated_cupti::layout::{self, kind};
use emulated_cupti::names::{self, domain};
use emulated_cupti::release::Release;

use crate::wheels::WHEELS;

const STUB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cupti/stub");

#[test]
fn records_and_numbers_are_those_of_the_headers() {
    for wheel in &WHEELS {
        let Some(unpacked) = wheel.unpacked() else { continue };
        let facts = facts(wheel.release);
        let found = evaluate(&unpacked.headers, &facts.iter().map(|fact| fact.0.as_str()).collect::<Vec<_>>());
        for ((expression, expected), found) in facts.iter().zip(&found) {
            assert_eq!(found, expected, "{expression} in {}", wheel.release.name());
        }
        assert_eq!(facts.len(), found.len());
    }
}

/// The table's facts, as C expressions and their values.
fn facts(release: Release) -> Vec<(String, u64)> {
    let mut facts = Vec::new();
    let mut fact = |expression: String, value: usize| facts.push((expression, value as u64));
    for kind in kind::WRITTEN {
        let layout = layout::of(kind).expect("a kind that is written has a layout");
        let Some(form) = layout.form(release) else { continue };
        fact(format!("sizeof({})", form.name), form.size);
        for field in layout.fields_of(release) {
            fact(format!("offsetof({}, {})", form.name, field.name), field.offset);
            fact(format!("sizeof((({} *)0)->{})", form.name, field.name), field.size);
        }
    }
    let params = if release < Release::V13_3 { 32 } else { 40 };
    for (structure, since, size, fields) in [
        ("CUpti_CallbackData", Release::V12_0, 72, &[("functionName", 8), ("correlationId", 64)][..]),
        ("CUpti_CallbackData", Release::V12_0, 72, &[("contextUid", 48), ("correlationData", 56)]),
        ("CUpti_ResourceData", Release::V12_0, 24, &[("resourceHandle", 8), ("resourceDescriptor", 16)]),
        ("CUpti_GraphData", Release::V12_0, 56, &[("originalNode", 24), ("dependency", 40), ("graphExec", 48)]),
        ("CUpti_SubscriberParams", Release::V13_0, params, &[("oldSubscriberName", 16), ("oldSubscriberSize", 24)]),
        ("CUpti_BufferCallbackCompleteInfo", Release::V13_3, 32, &[("threadId", 8), ("numRecordLayouts", 24)]),
        ("CUpti_BufferCallbackRequestInfo", Release::V13_3, 8, &[("structSize", 0)]),
    ] {
        if since <= release {
            fact(format!("sizeof({structure})"), size);
            for (field, offset) in fields {
                fact(format!("offsetof({structure}, {field})"), *offset);
            }
        }
    }
    for (domain, name, id) in names::all(release) {
        let domain = if domain == domain::DRIVER { "DRIVER" } else { "RUNTIME" };
        let name = name.to_str().expect("names are ASCII");
        fact(format!("CUPTI_{domain}_TRACE_CBID_{name}"), id as usize);
    }
    let count = |value: u32| value as usize;
    fact("CUPTI_API_VERSION".to_owned(), count(release.version()));
    fact("CUPTI_ACTIVITY_KIND_COUNT".to_owned(), count(release.kinds()));
    fact("CUPTI_CB_DOMAIN_SIZE".to_owned(), count(release.domains()));
    fact("CUPTI_DRIVER_TRACE_CBID_SIZE".to_owned(), count(release.callbacks(domain::DRIVER)));
    fact("CUPTI_RUNTIME_TRACE_CBID_SIZE".to_owned(), count(release.callbacks(domain::RUNTIME)));
    fact("CUPTI_CBID_RESOURCE_SIZE".to_owned(), count(release.callbacks(domain::RESOURCE)));
    let last_attribute = match release {
        Release::V12_0 => "MEM_ALLOCATION_TYPE_HOST_PINNED",
        Release::V12_9 | Release::V13_0 | Release::V13_1 => "DEVICE_BUFFER_SIZE_DEVICE_GRAPHS",
        Release::V13_3 => "ENABLE_CIG_MODE",
        Release::V13_5 => "HES_BUFFER_SIZE",
    };
    fact(format!("CUPTI_ACTIVITY_ATTR_{last_attribute} + 1"), count(release.attributes()));
    facts
}

/// The values of C expressions.
fn evaluate(headers: &Path, expressions: &[&str]) -> Vec<u64> {
    let mut program = String::from("#include <stdio.h>\n#include <cuda.h>\n");
    for header in ["callbacks", "activity", "driver_cbid", "runtime_cbid", "version"] {
        let _ = writeln!(program, "#include <cupti_{header}.h>");
    }
    program.push_str("static const unsigned long long values[] = {\n");
    for expression in expressions {
        let _ = writeln!(program, "  {expression},");
    }
    program.push_str(
        "};\nint main(void) { for (size_t i = 0; i < sizeof values / sizeof *values; i++) printf(\"%llu\\n\", values[i]); }\n",
    );
    let folder = std::env::temp_dir().join(format!("cupti-headers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
    let (source, binary) = (folder.join("facts.c"), folder.join("facts"));
    std::fs::write(&source, program).expect("it is ours");
    let compiled = Command::new("cc")
        .arg("-w")
        .arg("-I")
        .arg(STUB)
        .arg("-I")
        .arg(headers)
        .arg("-o")
        .arg(&binary)
        .arg(&source)
        .output()
        .expect("a C compiler is installed");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&binary).output().expect("what was compiled runs");
    std::fs::remove_dir_all(&folder).expect("it is ours");
    let text = String::from_utf8(output.stdout).expect("numbers are ASCII");
    text.lines().map(|line| line.parse().expect("the program prints numbers")).collect()
}

/// The structures do not show which of them a release writes; the comments on each kind do. For
/// releases whose walker works without a driver, `walkers.rs` asks the library. For the others the
/// comments are the only source.
#[test]
fn the_headers_name_the_structure_of_each_kind() {
    let names = [
        (kind::MEMCPY, "MEMCPY"),
        (kind::MEMSET, "MEMSET"),
        (kind::DEVICE, "DEVICE"),
        (kind::CONTEXT, "CONTEXT"),
        (kind::CONCURRENT_KERNEL, "CONCURRENT_KERNEL"),
        (kind::OVERHEAD, "OVERHEAD"),
        (kind::MEMCPY2, "MEMCPY2"),
        (kind::STREAM, "STREAM"),
        (kind::EXTERNAL_CORRELATION, "EXTERNAL_CORRELATION"),
        (kind::GRAPH_HOST_NODE, "GRAPH_HOST_NODE"),
        (kind::HOST_LAUNCH, "HOST_LAUNCH"),
    ];
    for wheel in &WHEELS {
        let Some(unpacked) = wheel.unpacked() else { continue };
        let text = std::fs::read_to_string(unpacked.headers.join("cupti_activity.h")).expect("the wheel has it");
        for (kind, name) in names {
            let Some(form) = layout::of(kind).and_then(|layout| layout.form(wheel.release)) else { continue };
            let definition = |line: &&str| {
                let rest =
                    line.trim_start().strip_prefix("CUPTI_ACTIVITY_KIND_").and_then(|rest| rest.strip_prefix(name));
                rest.is_some_and(|rest| rest.trim_start().starts_with('='))
            };
            let line = text.lines().find(definition).expect("the header has the kind");
            let before = &text[..line.as_ptr() as usize - text.as_ptr() as usize];
            let comment = before.rsplit("/**").next().expect("a kind has a comment");
            let says = comment.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == form.name);
            assert!(says, "{name} in {}: {} is not in{comment}", wheel.release.name(), form.name);
        }
    }
}
