//! Another tool's recording, as an SQLite export of Nsight Systems: the tables and columns of its
//! schema 3 that are read.

use std::collections::HashMap;
use std::path::Path;

use ncclscope::import::kernel_name;
use rusqlite::{Connection, params};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// When the session began on the clock of the export, in ns: any time but 0.
const BEGAN: i64 = 28_254_349_605;

const TABLES: &str = "
    CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
    INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', 'emulated'), ('EXPORT_SCHEMA_VERSION', '3.25.0'),
        ('EXPORT_SCHEMA_VERSION_MAJOR', '3');
    CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
    CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
    CREATE TABLE ANALYSIS_DETAILS (startTime INTEGER);
    CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER,
        correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER,
        blockY INTEGER, blockZ INTEGER, graphNodeId INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
    CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER,
        domainId INTEGER);
";

/// An event as Kineto writes it.
#[derive(Deserialize)]
struct Event {
    cat: String,
    name: String,
    tid: i64,
    ts: Box<RawValue>,
    dur: Box<RawValue>,
    #[serde(default)]
    args: Value,
}

/// Writes as an export what Kineto would have written about a process.
pub(super) fn write(path: &Path, pid: u32, events: &[String]) {
    let events: Vec<Event> =
        events.iter().map(|event| serde_json::from_str(event).expect("an event is JSON")).collect();
    let first = events.iter().map(|event| nanoseconds(&event.ts)).min().expect("something was seen");
    // Some seconds before the first event.
    let epoch = first - 3_000_000_000;
    let process = 1 << 48 | i64::from(pid) << 24;
    let _ = std::fs::remove_file(path);
    let mut database = Connection::open(path).expect("room for a file");
    let writing = database.transaction().expect("a fresh file");
    writing.execute_batch(TABLES).expect("tables");
    let mut strings = HashMap::new();
    let mut string = |text: String| -> i64 {
        let new = strings.len() as i64 + 1;
        *strings.entry(text.clone()).or_insert_with(|| {
            writing.execute("INSERT INTO StringIds VALUES (?1, ?2)", params![new, text]).expect("a text");
            new
        })
    };
    for Event { cat, name, tid, ts, dur, args } in &events {
        let start = nanoseconds(ts) - epoch + BEGAN;
        let (end, thread) = (start + nanoseconds(dur), process | tid);
        let number = |key: &str| args[key].as_i64().unwrap_or(0);
        let correlation = number("correlation");
        match cat.as_str() {
            "kernel" => {
                // Nsight Systems demangles in a different way.
                let name = string(format!("{}(ncclDevKernelArgsStorage<(unsigned long)4096>)", kernel_name::common(name)));
                let (device, context, stream) = (number("device"), number("context"), number("stream"));
                let (grid, node) = (args["grid"][0].as_i64(), args["graph node id"].as_i64());
                writing.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 1, 1, 1, 1, 1, ?10)",
                    params![start, end, device, context, stream, correlation, process, name, grid, node],
                )
            }
            "cuda_runtime" => {
                let name = string(format!("{name}_v11060"));
                writing.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![start, end, thread, correlation, name],
                )
            }
            _ => writing.execute(
                "INSERT INTO NVTX_EVENTS VALUES (?1, ?2, 59, ?3, ?4, NULL, 0)",
                params![start, end, name, thread],
            ),
        }
        .expect("a row");
    }
    writing.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?1)", [epoch]).expect("a row");
    writing.execute("INSERT INTO ANALYSIS_DETAILS VALUES (?1)", [BEGAN]).expect("a row");
    writing.execute("INSERT INTO PROCESSES VALUES (?1, ?2, 'rank')", params![process, pid]).expect("a row");
    writing.commit().expect("room for a file");
}

/// Microseconds with three decimals, as nanoseconds. Floating-point numbers lose digits of times
/// since 1970.
fn nanoseconds(micros: &RawValue) -> i64 {
    let (whole, decimals) = micros.get().split_once('.').expect("decimals");
    assert_eq!(decimals.len(), 3, "{micros}");
    whole.parse::<i64>().expect("a number") * 1000 + decimals.parse::<i64>().expect("a number")
}
