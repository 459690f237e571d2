//! Nsight Systems' SQLite exports, schema 3.
//!
//! Tables exist only if there is something in them, and columns were added over the releases, so
//! each is checked before it is read. Times are nanoseconds of the target's clock. Process and
//! thread ids are packed: 24 bits of process id above 24 bits of thread id. [`payloads`] reads what
//! NCCL attached to its ranges, and [`groups`] gives its kernels the operations that these ask for.

mod groups;
mod payloads;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row};

use self::groups::Groups;
use self::payloads::{Payloads, Schemas};
use super::{
    Carried, Clock, Copy, CudaCall, Error, Kernel, Place, Process, Profile, Range, SINCE_1970, Source, Span, Tool,
};
use crate::model::activity::{Api, CopyKind};
use crate::model::time::FileNs;

/// Bits of a thread id, and of the process id above it.
const ID_BITS: u32 = 24;
const ID: i64 = (1 << ID_BITS) - 1;
/// The major version of the supported schema.
const SCHEMA: u32 = 3;
/// What to do about another version.
const EXPORT_AGAIN: &str = "export the report again with Nsight Systems of 2023 or later (nsys export --type sqlite)";
/// `NVTX_EVENTS.eventType`, as the export's `ENUM_NSYS_EVENT_TYPE` names them. The second of each
/// kind is from files of text (NVTXT).
const NVTX_MARK: i64 = 34;
const NVTXT_MARK: i64 = 65;
const NVTX_PUSH_POP: i64 = 59;
const NVTXT_PUSH_POP: i64 = 70;
const NVTX_START_END: i64 = 60;
const NVTXT_START_END: i64 = 71;
const NVTX_DOMAIN_CREATE: i64 = 75;

/// Reads an export.
pub(super) fn read(path: &Path) -> Result<Profile, Error> {
    is_whole(path)?;
    let database =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)
            .map_err(|error| damaged("the database", &error))?;
    let mut export = Export { database: Database(database), strings: HashMap::new(), processes: Processes::default() };
    export.read()
}

/// A database states its length in its header: a copy that was cut off is refused before SQLite
/// reads half of it.
fn is_whole(path: &Path) -> Result<(), Error> {
    let mut head = [0_u8; 100];
    let mut file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    if file.read_exact(&mut head).is_err() {
        return Err(Error::Damaged(format!(
            "the file ends at byte {length}, inside the first 100 bytes of an SQLite database: copy or export it again"
        )));
    }
    let page = match u16::from_be_bytes([head[16], head[17]]) {
        1 => 65536,
        size => u64::from(size),
    };
    let pages = u64::from(u32::from_be_bytes([head[28], head[29], head[30], head[31]]));
    // The number of pages is valid only if the two change counters agree.
    if head[24..28] == head[92..96] && pages * page > length {
        return Err(Error::Damaged(format!(
            "the SQLite database is cut off: its header says {} bytes, the file ends at byte {length}; copy or export it again",
            pages * page
        )));
    }
    Ok(())
}

fn damaged(what: &str, error: &rusqlite::Error) -> Error {
    Error::Damaged(format!("failed to read {what}: {error}; export the report again (nsys export --type sqlite)"))
}

struct Export {
    database: Database,
    strings: HashMap<i64, Arc<str>>,
    processes: Processes,
}

struct Database(Connection);

/// The processes, in the order in which they are found.
#[derive(Default)]
struct Processes {
    list: Vec<Process>,
    /// By the upper bits of their packed ids.
    known: HashMap<i64, usize>,
}

impl Processes {
    fn of(&mut self, packed: i64) -> usize {
        let key = packed >> ID_BITS;
        *self.known.entry(key).or_insert_with(|| {
            self.list.push(Process {
                pid: key & ID,
                name: String::new(),
                rank: None,
                threads: BTreeMap::new(),
                lost: 0,
            });
            self.list.len() - 1
        })
    }
}

impl Export {
    fn read(&mut self) -> Result<Profile, Error> {
        self.is_export()?;
        let facts = self.database.pairs("META_DATA_EXPORT", "name", "value")?;
        let fact = |name: &str| facts.get(name).map_or("unknown", String::as_str);
        let schema = schema(&facts)?;
        let source = Source {
            tool: Tool::Nsight,
            version: format!("{}, schema {schema}", fact("EXPORT_PRODUCT_VERSION")),
            ..Source::default()
        };
        let mut profile = Profile { source, ..Profile::default() };
        if let Some(window) = facts.get("DERIVED_WINDOW_NS") {
            profile.notes.push(format!("the file contains only the window {window} ns of a longer report"));
        }
        self.read_strings()?;
        self.read_environment(&mut profile)?;
        self.read_kernels(&mut profile)?;
        self.read_copies(&mut profile)?;
        self.read_cuda_calls(&mut profile)?;
        let payloads = self.read_ranges(&mut profile)?;
        self.read_clock(&mut profile)?;
        self.name_processes()?;
        profile.processes = std::mem::take(&mut self.processes.list);
        profile.sort();
        payloads.note(&mut profile.notes, fact("EXPORT_PARAM_INCLUDE_BLOBS"));
        let groups = Groups::of(&profile, &payloads);
        let communicators = payloads.communicators(&mut profile);
        groups.attach(&mut profile, &communicators);
        Ok(profile)
    }

    /// Whether it is an export with the facts about itself; otherwise reports what it is.
    fn is_export(&self) -> Result<(), Error> {
        let has = |table| self.database.columns(table).map(|columns| !columns.is_empty());
        let has_strings = has("StringIds")?;
        if has_strings && has("META_DATA_EXPORT")? {
            return Ok(());
        }
        if has_strings && (has("CUPTI_ACTIVITY_KIND_RUNTIME")? || has("NVTX_EVENTS")? || has("TARGET_INFO_GPU")?) {
            return Err(Error::Unsupported(format!(
                "this Nsight Systems export does not state its schema, like those of older releases: it has no \
                 table META_DATA_EXPORT; {EXPORT_AGAIN}"
            )));
        }
        if has("StringTable")? && has("CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL")? {
            return Err(Error::Foreign("this is a database of nvprof, which Nsight Systems has replaced".into()));
        }
        let missing = if has_strings { "META_DATA_EXPORT" } else { "StringIds" };
        Err(Error::Foreign(format!(
            "this is an SQLite database, but not an Nsight Systems export: it has no table {missing}"
        )))
    }

    fn read_environment(&self, profile: &mut Profile) -> Result<(), Error> {
        let environment = self.database.pairs("TARGET_INFO_SYSTEM_ENV", "name", "value")?;
        profile.host = environment.get("Hostname").filter(|name| !name.is_empty()).cloned();
        self.database.each("TARGET_INFO_GPU", &["id", "name"], &[], |row| {
            if let (Ok(device), Some(name)) = (u32::try_from(int(row, 0)), text(row, 1)) {
                profile.devices.insert(device, name);
            }
        })?;
        Ok(())
    }

    fn read_strings(&mut self) -> Result<(), Error> {
        self.database.each("StringIds", &["id", "value"], &[], |row| {
            self.strings.insert(int(row, 0), text(row, 1).unwrap_or_default().into());
        })?;
        Ok(())
    }

    /// The text with this id; the id itself if there is none.
    fn string(strings: &HashMap<i64, Arc<str>>, id: i64) -> Arc<str> {
        strings.get(&id).cloned().unwrap_or_else(|| format!("string {id}").into())
    }

    fn read_kernels(&mut self, profile: &mut Profile) -> Result<(), Error> {
        let needed = [
            "start",
            "end",
            "deviceId",
            "contextId",
            "streamId",
            "globalPid",
            "demangledName",
            "gridX",
            "gridY",
            "gridZ",
            "blockX",
            "blockY",
            "blockZ",
        ];
        let more = ["correlationId", "graphNodeId"];
        let found = self.database.each("CUPTI_ACTIVITY_KIND_KERNEL", &needed, &more, |row| {
            profile.kernels.push(Kernel {
                process: self.processes.of(int(row, 5)),
                span: Span::of(int(row, 0), int(row, 1)),
                place: Place { device: small(row, 2), context: small(row, 3), stream: small(row, 4) },
                name: Self::string(&self.strings, int(row, 6)),
                grid: [small(row, 7), small(row, 8), small(row, 9)],
                block: [small(row, 10), small(row, 11), small(row, 12)],
                correlation: small(row, 13),
                graph_node: int(row, 14) as u64,
                carried: Carried::default(),
            });
        })?;
        if !found {
            let note =
                "no kernels: the report was recorded without CUDA, or nothing ran (nsys profile --trace=cuda,nvtx)";
            profile.notes.push(note.into());
        }
        let mut whole = 0_u64;
        self.database.each("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", &["start"], &[], |_| whole += 1)?;
        if whole > 0 {
            profile.gaps = Some(format!(
                "kernels of {whole} launches of graphs; nsys profile --cuda-graph-trace=node records them"
            ));
        }
        Ok(())
    }

    fn read_copies(&mut self, profile: &mut Profile) -> Result<(), Error> {
        let needed = ["start", "end", "deviceId", "contextId", "streamId", "globalPid", "bytes"];
        for (table, kind) in [("CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind"), ("CUPTI_ACTIVITY_KIND_MEMSET", "value")] {
            self.database.each(table, &needed, &["correlationId", kind], |row| {
                profile.copies.push(Copy {
                    process: self.processes.of(int(row, 5)),
                    span: Span::of(int(row, 0), int(row, 1)),
                    place: Place { device: small(row, 2), context: small(row, 3), stream: small(row, 4) },
                    bytes: Some(int(row, 6) as u64),
                    correlation: small(row, 7),
                    // `CUpti_ActivityMemcpyKind`.
                    kind: match (kind, int(row, 8)) {
                        ("value", _) => CopyKind::Set,
                        (_, 1) => CopyKind::HostToDevice,
                        (_, 2) => CopyKind::DeviceToHost,
                        (_, 8) => CopyKind::DeviceToDevice,
                        (_, 10) => CopyKind::PeerToPeer,
                        (_, other) => CopyKind::Other(other as u8),
                    },
                });
            })?;
        }
        Ok(())
    }

    fn read_cuda_calls(&mut self, profile: &mut Profile) -> Result<(), Error> {
        let needed = ["start", "end", "globalTid", "correlationId", "nameId"];
        self.database.each("CUPTI_ACTIVITY_KIND_RUNTIME", &needed, &[], |row| {
            let name = Self::string(&self.strings, int(row, 4));
            profile.cuda_calls.push(CudaCall {
                process: self.processes.of(int(row, 2)),
                tid: int(row, 2) & ID,
                span: Span::of(int(row, 0), int(row, 1)),
                api: if name.starts_with("cuda") { Api::Runtime } else { Api::Driver },
                name,
                correlation: small(row, 3),
            });
        })?;
        Ok(())
    }

    fn read_ranges(&mut self, profile: &mut Profile) -> Result<Payloads, Error> {
        let mut payloads = Payloads::with(Schemas::read(&self.database)?);
        let needed = ["start", "end", "eventType", "text", "globalTid", "textId", "domainId"];
        let mut domains: HashMap<(i64, i64), Arc<str>> = HashMap::new();
        let mut of_domain: Vec<((i64, i64), usize)> = Vec::new();
        let mut unended = 0_u64;
        let found = self.database.each("NVTX_EVENTS", &needed, &["binaryData", "jsonText", "jsonTextId"], |row| {
            let registered = || Some(Self::string(&self.strings, optional(row, 5)?));
            let name = text(row, 3).map(Arc::from).or_else(registered).unwrap_or_else(|| "(no text)".into());
            let (thread, domain) = (optional(row, 4), int(row, 6));
            let key = (thread.unwrap_or(0) >> ID_BITS, domain);
            if int(row, 2) == NVTX_DOMAIN_CREATE {
                domains.insert(key, name);
                return;
            }
            let Some(thread) = thread else { return };
            let (start, end) = (int(row, 0), optional(row, 1));
            let (end, is_pushed, is_of_process) = match int(row, 2) {
                NVTX_MARK | NVTXT_MARK => (Some(start), false, false),
                NVTX_PUSH_POP | NVTXT_PUSH_POP => (end, true, false),
                NVTX_START_END | NVTXT_START_END => (end, false, true),
                // The names of categories and threads, the end of a domain.
                _ => return,
            };
            // Ranges that were open when the recording ended.
            let Some(end) = end else {
                unended += 1;
                return;
            };
            if domain != 0 {
                of_domain.push((key, profile.ranges.len()));
            }
            let (process, span) = (self.processes.of(thread), Span::of(start, end));
            // NCCL's ranges are pushed and popped, in a domain of their own. Other programs'
            // payloads have other layouts.
            if domain != 0 && is_pushed && name.starts_with("nccl") {
                let registered = || self.strings.get(&optional(row, 9)?).map(ToString::to_string);
                let json = text(row, 8).or_else(registered);
                let range = (process, thread & ID, span, Arc::clone(&name));
                payloads.take(range, domain, row.get_ref(7).unwrap_or(ValueRef::Null), json.as_deref());
            }
            profile.ranges.push(Range {
                process,
                tid: (!is_of_process).then_some(thread & ID),
                span,
                name,
                domain: None,
            });
        })?;
        if !found {
            profile
                .notes
                .push("no NVTX ranges: NCCL's operations are not known (nsys profile --trace=cuda,nvtx)".into());
        }
        if unended > 0 {
            profile.notes.push(format!("{unended} NVTX ranges have no end in the file and are left out"));
        }
        // Exports of a part of a report lack the creation of domains: NCCL's domain is recognised
        // by its texts.
        for (key, range) in of_domain {
            let range = &mut profile.ranges[range];
            let unnamed =
                || if range.name.starts_with("nccl") { "NCCL".into() } else { format!("domain {}", key.1).into() };
            range.domain = Some(domains.get(&key).cloned().unwrap_or_else(unnamed));
        }
        Ok(payloads)
    }

    fn read_clock(&self, profile: &mut Profile) -> Result<(), Error> {
        let mut epoch = None;
        self.database.each("TARGET_INFO_SESSION_START_TIME", &["utcEpochNs"], &[], |row| {
            epoch = optional(row, 0).map(FileNs);
        })?;
        let mut began = None;
        self.database.each("ANALYSIS_DETAILS", &["startTime"], &[], |row| began = optional(row, 0).map(FileNs))?;
        let first = profile.extent().unwrap_or_default().start;
        profile.clock = match (epoch, began) {
            _ if first > SINCE_1970 => Clock::of_file("UTC, as requested for the export", Some(0)),
            // Without this check, a made-up epoch would date times that have no date.
            (Some(epoch), began) if epoch > SINCE_1970 => {
                // The session began at `startTime` of this clock; at 0 if the table is missing.
                let to_utc = epoch.since(began.unwrap_or_default());
                Clock::of_file("the target's clock, by Nsight Systems", Some(to_utc))
            }
            _ => Clock::of_file("the target's clock, by Nsight Systems", None),
        };
        Ok(())
    }

    fn name_processes(&mut self) -> Result<(), Error> {
        self.database.each("PROCESSES", &["globalPid", "name"], &[], |row| {
            if let (Some(&at), Some(name)) = (self.processes.known.get(&(int(row, 0) >> ID_BITS)), text(row, 1)) {
                self.processes.list[at].name = name;
            }
        })?;
        self.database.each("ThreadNames", &["globalTid", "nameId"], &[], |row| {
            if let Some(&at) = self.processes.known.get(&(int(row, 0) >> ID_BITS)) {
                let name = Self::string(&self.strings, int(row, 1)).to_string();
                self.processes.list[at].threads.insert(int(row, 0) & ID, name);
            }
        })?;
        Ok(())
    }
}

impl Database {
    /// The columns of a table; empty if the table does not exist.
    fn columns(&self, table: &str) -> Result<HashSet<String>, Error> {
        let read = || {
            let mut statement = self.0.prepare("SELECT name FROM pragma_table_info(?1)")?;
            statement.query_map([table], |row| row.get(0))?.collect::<rusqlite::Result<HashSet<String>>>()
        };
        read().map_err(|error| damaged("the list of tables", &error))
    }

    /// Reads a table row by row: the required columns, then the optional ones, which are NULL if
    /// the release did not have them. Returns `false` if the table does not exist or is empty.
    fn each(
        &self,
        table: &str,
        needed: &[&str],
        optional: &[&str],
        mut each: impl FnMut(&Row<'_>),
    ) -> Result<bool, Error> {
        let columns = self.columns(table)?;
        if columns.is_empty() {
            return Ok(false);
        }
        if let Some(missing) = needed.iter().find(|name| !columns.contains(**name)) {
            return Err(Error::Unsupported(format!(
                "table {table} has no column {missing}: export the report again, with another release of Nsight Systems"
            )));
        }
        let all = needed.iter().map(|name| format!("\"{name}\""));
        let more =
            optional.iter().map(|name| if columns.contains(*name) { format!("\"{name}\"") } else { "NULL".into() });
        let list = all.chain(more).collect::<Vec<_>>().join(", ");
        let mut read = || {
            let mut statement = self.0.prepare(&format!("SELECT {list} FROM \"{table}\""))?;
            let mut rows = statement.query([])?;
            let mut count = 0_u64;
            while let Some(row) = rows.next()? {
                count += 1;
                each(row);
            }
            Ok(count)
        };
        read().map(|count| count > 0).map_err(|error| damaged(&format!("table {table}"), &error))
    }

    fn pairs(&self, table: &str, name: &str, value: &str) -> Result<HashMap<String, String>, Error> {
        let mut pairs = HashMap::new();
        self.each(table, &[name, value], &[], |row| {
            if let (Some(name), Some(value)) = (text(row, 0), text(row, 1)) {
                pairs.insert(name, value);
            }
        })?;
        Ok(pairs)
    }
}

/// The schema version of an export.
///
/// # Errors
///
/// The reason, if that version cannot be read.
fn schema(facts: &HashMap<String, String>) -> Result<String, Error> {
    let refused = |why: String| Err(Error::Unsupported(why));
    let product = facts.get("EXPORT_PRODUCT_VERSION").map(|version| format!(" {version}")).unwrap_or_default();
    let whole = facts.get("EXPORT_SCHEMA_VERSION");
    // The undivided number is the older of the two forms.
    let major = facts.get("EXPORT_SCHEMA_VERSION_MAJOR").map(String::as_str);
    let Some(major) = major.or_else(|| whole?.split('.').next()) else {
        return refused(format!("this export of Nsight Systems{product} does not state its schema; {EXPORT_AGAIN}"));
    };
    let schema = whole.cloned().unwrap_or_else(|| major.to_owned());
    match major.parse::<u32>() {
        Ok(SCHEMA) => Ok(schema),
        Ok(older) if older < SCHEMA => refused(format!(
            "this export of Nsight Systems{product} has schema {schema}, which is older than {SCHEMA}.x, the only \
             supported one; {EXPORT_AGAIN}"
        )),
        Ok(_) => refused(format!(
            "this export of Nsight Systems{product} has schema {schema}, which is newer than {SCHEMA}.x, the only \
             one that this version of ncclscope supports: use a newer version, or export the report with a release \
             of Nsight Systems from 2023 to 2026"
        )),
        Err(_) => refused(format!(
            "the schema of this export of Nsight Systems{product} is not a version: {schema}; {EXPORT_AGAIN}"
        )),
    }
}

/// An integer; 0 if there is none.
fn int(row: &Row<'_>, column: usize) -> i64 {
    optional(row, column).unwrap_or(0)
}

fn optional(row: &Row<'_>, column: usize) -> Option<i64> {
    match row.get_ref(column) {
        Ok(ValueRef::Integer(number)) => Some(number),
        _ => None,
    }
}

fn small(row: &Row<'_>, column: usize) -> u32 {
    u32::try_from(int(row, column)).unwrap_or(0)
}

fn text(row: &Row<'_>, column: usize) -> Option<String> {
    match row.get_ref(column) {
        Ok(ValueRef::Text(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Ok(ValueRef::Integer(number)) => Some(number.to_string()),
        _ => None,
    }
}
