//! What NCCL attaches to its NVTX ranges: communicator, size, peer, root, reduction.
//!
//! An export contains such a payload as bytes in `NVTX_EVENTS.binaryData`
//! (`nsys export --include-blobs true`), as JSON in `jsonText` (`--include-json true`), or, by
//! default, not at all. NVIDIA does not document the layout of the bytes. Two readers in
//! [nsys-ai](https://github.com/GindaChen/nsys-ai) describe it for exports of 2026; according to
//! its documentation the first of them read all 346,400 payloads of a real export. They are 64-bit
//! numbers, little-endian:
//!
//! ```text
//!   0  domain    8  schema    16  size of the payload    24  32, or 32 + size    32  the payload
//! ```
//!
//! The readers disagree on the fourth number, which is where the payload begins for one and where
//! it ends for the other, and on the upper halves of the first two, which one of them takes as
//! reserved. So the fourth may be either, those halves must be 0, and everything else must fit. A
//! payload that does not fit is counted and ignored. JSON is an object with the fields by name; two
//! public scripts read it that way.
//!
//! The fields of a payload are described in the file (`NVTX_PAYLOAD_SCHEMA_ENTRIES`). Their types
//! are those of NVTX's `nvToolsExtPayload.h`, their names NCCL's:
//!
//! - NCCL 2.17 to 2.24: size, peer, root and reduction, but no communicator. Broadcast, Send and
//!   Recv call their size `Bytes`.
//! - NCCL 2.25 and later: the communicator's id, too. It is the communicator's hash, the same
//!   number that profilers get. `ncclCommInitRank` and the like have ranks, rank and GPU.
//!
//! In every release the size is the call's count times the size of its type: what a rank gives to
//! an AllGather, what it gets from a ReduceScatter, and what goes from one rank to another in
//! AlltoAll, Gather and Scatter. The profiler interface counts in the same way.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use rusqlite::types::ValueRef;
use serde_json::Value;

use super::{Database, optional, text};
use crate::import::{Communicator, Error, Profile, Span};

/// Bytes before the payload.
const HEADER: usize = 32;
/// Entry types from here on are enums or schemas defined by the program:
/// `NVTX_PAYLOAD_ENTRY_TYPE_CUSTOM_BASE`.
const CUSTOM: i64 = 65536;
/// `ncclRedOp_t`, by number.
const REDUCTIONS: [&str; 5] = ["Sum", "Prod", "Max", "Min", "Avg"];
/// Larger numbers are handles from `ncclRedOpCreatePreMulSum`, the only function that makes
/// reductions.
const MADE: &str = "PreMulSum";

/// What a range says, as far as NCCL's release provides it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Payload {
    pub communicator: Option<u64>,
    parent: Option<u64>,
    pub bytes: Option<u64>,
    pub peer: Option<i32>,
    pub root: Option<i32>,
    pub reduction: Option<&'static str>,
    ranks: Option<i32>,
    rank: Option<i32>,
    device: Option<u32>,
    devices: Option<i32>,
}

impl Payload {
    /// Takes a field by NCCL's name for it. Returns `false` for other fields, which are not needed.
    fn set(&mut self, name: &str, value: i128) -> bool {
        let small = || i32::try_from(value).ok().filter(|value| *value >= 0);
        match name {
            // 0 stands for a null communicator, or for one that is not initialised yet.
            "NCCL communicator ID" => self.communicator = u64::try_from(value).ok().filter(|id| *id != 0),
            "Parent NCCL communicator ID" => self.parent = u64::try_from(value).ok().filter(|id| *id != 0),
            "Message size [bytes]" | "Bytes" => self.bytes = u64::try_from(value).ok(),
            "Peer rank" => self.peer = small(),
            "Root" => self.root = small(),
            "Reduction operation" => {
                self.reduction = usize::try_from(value).ok().map(|at| REDUCTIONS.get(at).copied().unwrap_or(MADE));
            }
            "No. of ranks" => self.ranks = small(),
            "Rank" => self.rank = small(),
            "CUDA device" => self.device = u32::try_from(value).ok(),
            "No. of devices" => self.devices = small(),
            _ => return false,
        }
        true
    }

    /// Reads JSON: an object with the fields by name. Fails with a reason; every payload of NCCL's
    /// has a known field.
    fn of_json(text: &str) -> Result<Payload, &'static str> {
        let fields = serde_json::from_str::<serde_json::Map<String, Value>>(text);
        let fields = fields.map_err(|_| "JSON that is not an object")?;
        let mut payload = Payload::default();
        let mut is_nccl = false;
        for (name, value) in fields {
            let number = match &value {
                Value::Number(number) => number.as_u64().map(i128::from).or(number.as_i64().map(i128::from)),
                Value::String(text) => text.parse().ok(),
                _ => None,
            };
            match (number, value.as_str()) {
                (Some(number), _) => is_nccl |= payload.set(&name, number),
                // NVTX's enum has another name for the second one than `ncclRedOp_t`.
                (None, Some(word)) if name == "Reduction operation" => {
                    let word = if word == "Product" { "Prod" } else { word };
                    payload.reduction = REDUCTIONS.into_iter().find(|known| *known == word);
                    is_nccl = true;
                }
                _ => {}
            }
        }
        if is_nccl { Ok(payload) } else { Err("JSON without a field of NCCL's") }
    }
}

/// A field of a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    name: String,
    kind: i64,
    /// `None` if it follows from the alignment after the previous field, which NCCL does not use.
    offset: Option<usize>,
    /// Not an array, a pointer or the like.
    is_plain: bool,
}

impl Field {
    /// The size in bytes of a number of its type, and whether it is signed; `None` for types that
    /// are no number or have no fixed size.
    fn width(&self) -> Option<(usize, bool)> {
        match self.kind {
            // INT, INT32; NCCL's enums are `int`s.
            5 | 15 => Some((4, true)),
            6 | 16 => Some((4, false)),
            // LONGLONG, INT64.
            9 | 17 => Some((8, true)),
            // ULONGLONG, UINT64, SIZE.
            10 | 18 | 22 => Some((8, false)),
            kind if kind >= CUSTOM && self.name == "Reduction operation" => Some((4, true)),
            _ => None,
        }
    }

    fn value(&self, payload: &[u8]) -> Option<i128> {
        let (width, is_signed) = self.width().filter(|_| self.is_plain)?;
        let bytes = payload.get(self.offset?..)?.get(..width)?;
        Some(match (bytes, is_signed) {
            (&[a, b, c, d], true) => i32::from_le_bytes([a, b, c, d]).into(),
            (&[a, b, c, d], false) => u32::from_le_bytes([a, b, c, d]).into(),
            (bytes, true) => i64::from_le_bytes(bytes.try_into().ok()?).into(),
            (bytes, false) => u64::from_le_bytes(bytes.try_into().ok()?).into(),
        })
    }
}

/// The layout of a payload.
#[derive(Default)]
struct Schema {
    /// Bytes; `None` if NCCL does not say, as up to 2.24.
    size: Option<u64>,
    fields: BTreeMap<i64, Field>,
    /// The file has two different versions of it: domains and schemas have no process, and
    /// processes may differ.
    is_ambiguous: bool,
}

/// By domain and number.
#[derive(Default)]
pub(super) struct Schemas(HashMap<(i64, i64), Schema>);

impl Schemas {
    pub(super) fn read(database: &Database) -> Result<Schemas, Error> {
        let mut schemas: HashMap<(i64, i64), Schema> = HashMap::new();
        // A release with other columns loses its payloads, and nothing else.
        database.each("NVTX_PAYLOAD_SCHEMAS", &[], &["domainId", "schemaId", "payloadSize"], |row| {
            let (Some(domain), Some(number)) = (optional(row, 0), optional(row, 1)) else { return };
            let size = optional(row, 2).and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0);
            let schema = schemas.entry((domain, number)).or_insert(Schema { size, ..Schema::default() });
            schema.is_ambiguous |= schema.size != size;
        })?;
        let columns = ["domainId", "schemaId", "idx", "flags", "type", "name", "offset"];
        database.each("NVTX_PAYLOAD_SCHEMA_ENTRIES", &[], &columns, |row| {
            let (Some(domain), Some(number), Some(at)) = (optional(row, 0), optional(row, 1), optional(row, 2)) else {
                return;
            };
            let field = Field {
                name: text(row, 5).unwrap_or_default(),
                kind: optional(row, 4).unwrap_or(0),
                // The first field's offset is NULL in real files.
                offset: match optional(row, 6) {
                    None | Some(0) => (at == 0).then_some(0),
                    Some(offset) => usize::try_from(offset).ok(),
                },
                is_plain: optional(row, 3).unwrap_or(0) == 0,
            };
            let schema = schemas.entry((domain, number)).or_default();
            let known = schema.fields.entry(at).or_insert_with(|| field.clone());
            schema.is_ambiguous |= *known != field;
        })?;
        Ok(Schemas(schemas))
    }

    /// The names of NCCL's fields, each once; empty if the file has no schema of NCCL's.
    fn names(&self) -> BTreeSet<&str> {
        // Schemas have no owner, and NCCL up to 2.24 does not name its own.
        const TELLING: [&str; 3] = ["NCCL communicator ID", "Message size [bytes]", "Peer rank"];
        let is_nccl = |schema: &&Schema| schema.fields.values().any(|field| TELLING.contains(&&*field.name));
        self.0.values().filter(is_nccl).flat_map(|schema| schema.fields.values()).map(|field| &*field.name).collect()
    }

    /// Reads the bytes of a payload. Fails with a reason.
    fn payload(&self, domain: i64, bytes: &[u8]) -> Result<Payload, &'static str> {
        let Some((header, rest)) = bytes.split_at_checked(HEADER) else { return Err("shorter than 32 bytes") };
        let mut words = header.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut next = || words.next().unwrap_or(0);
        let (of_domain, number, size, position) = (next(), next(), next(), next());
        if i64::try_from(of_domain) != Ok(domain) {
            return Err("with a domain other than their range's");
        }
        let schema = i64::try_from(number).ok().and_then(|number| self.0.get(&(domain, number)));
        let schema =
            schema.filter(|schema| !schema.fields.is_empty()).ok_or("with a schema that is not in the file")?;
        if schema.is_ambiguous {
            return Err("with a schema that the file has in two versions");
        }
        let has_size = schema.size.is_none_or(|known| known == size);
        if !has_size || u64::try_from(rest.len()) != Ok(size) {
            return Err("with a length other than their schema's");
        }
        if position != HEADER as u64 && u64::try_from(bytes.len()) != Ok(position) {
            return Err("with an unknown header");
        }
        let mut payload = Payload::default();
        for field in schema.fields.values() {
            if let Some(value) = field.value(rest) {
                payload.set(&field.name, value);
            }
        }
        Ok(payload)
    }
}

/// A range of a thread: process, thread, span and text.
type Key = (usize, i64, Span, Arc<str>);

/// The payloads of NCCL's ranges.
#[derive(Default)]
pub(super) struct Payloads {
    schemas: Schemas,
    /// `None` if several ranges of a thread are equal but their payloads are not.
    known: HashMap<Key, Option<Payload>>,
    /// Unread payloads, by what is wrong with them.
    unread: BTreeMap<&'static str, u64>,
    read: u64,
}

impl Payloads {
    pub(super) fn with(schemas: Schemas) -> Payloads {
        Payloads { schemas, ..Payloads::default() }
    }

    /// Takes the columns of a row of `NVTX_EVENTS`: bytes, whose column is declared as text, and
    /// JSON.
    pub(super) fn take(&mut self, range: Key, domain: i64, bytes: ValueRef<'_>, json: Option<&str>) {
        let bytes = match bytes {
            ValueRef::Blob(bytes) | ValueRef::Text(bytes) => Some(bytes).filter(|bytes| !bytes.is_empty()),
            _ => None,
        };
        let read = match (json.filter(|text| !text.is_empty()).map(Payload::of_json), bytes) {
            (None, None) => return,
            // JSON contains the names of its fields.
            (Some(Ok(payload)), _) => Ok(payload),
            (_, Some(bytes)) => self.schemas.payload(domain, bytes),
            (Some(Err(why)), None) => Err(why),
        };
        match read {
            Ok(payload) => {
                self.read += 1;
                let known = self.known.entry(range).or_insert(Some(payload));
                *known = known.filter(|known| *known == payload);
            }
            Err(why) => *self.unread.entry(why).or_default() += 1,
        }
    }

    pub(super) fn of(&self, process: usize, tid: i64, span: Span, name: &Arc<str>) -> Payload {
        self.known.get(&(process, tid, span, Arc::clone(name))).copied().flatten().unwrap_or_default()
    }

    /// Adds remarks about what was not read, and why.
    pub(super) fn note(&self, notes: &mut Vec<String>, included: &str) {
        let names = match self.schemas.names().into_iter().collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => "no schema in the file".to_owned(),
            names => names,
        };
        let unread: u64 = self.unread.values().sum();
        let whys: Vec<_> = self.unread.iter().map(|(why, count)| format!("{count} {why}")).collect();
        let whys = whys.join(", ");
        match (self.read, unread) {
            (0, 0) if self.schemas.names().is_empty() => {}
            (0, 0) => {
                let why = if included == "false" {
                    "the export leaves binary payloads out (nsys export --include-blobs true keeps them)"
                } else {
                    "no range in the file has such a payload"
                };
                notes.push(format!("{ATTACHED}: {names}; {why}"));
            }
            (0, _) => notes.push(format!("{ATTACHED}: {names}; none of {unread} payloads has a known layout: {whys}")),
            (_, 0) => {}
            (read, _) => notes.push(format!(
                "{unread} payloads of NCCL's ranges were not read, {read} were: {whys}; sizes, peers and communicators of these calls are \
                 not known"
            )),
        }
    }

    /// The communicators named in payloads, by process and hash, with the facts from the calls that
    /// made or ended them.
    pub(super) fn communicators(&self, profile: &mut Profile) -> HashMap<(usize, u64), usize> {
        let mut told: BTreeMap<(usize, u64), Told> = BTreeMap::new();
        for ((process, _, _, name), payload) in &self.known {
            let Some(payload) = payload else { continue };
            let Some(hash) = payload.communicator else { continue };
            told.entry((*process, hash)).or_default();
            // A split gives the id of the new communicator, but the ranks and rank of its parent.
            let of = if &**name == "ncclCommSplit" { payload.parent } else { Some(hash) };
            let Some(of) = of else { continue };
            let told = told.entry((*process, of)).or_default();
            told.ranks.extend(payload.ranks.or(payload.devices));
            told.members.extend(payload.rank.map(|rank| (rank, payload.device)));
        }
        let mut places = HashMap::new();
        for ((process, hash), told) in told {
            places.insert((process, hash), profile.communicators.len());
            // A process with several GPUs has several ranks, and nothing says which of them a call
            // is for.
            let member = (told.members.len() == 1).then(|| told.members.first().copied()).flatten();
            profile.communicators.push(Communicator {
                process,
                hash: Some(hash),
                ranks: (told.ranks.len() == 1).then(|| told.ranks.first().copied()).flatten(),
                rank: member.map(|(rank, _)| rank),
                gpus: member.and_then(|(rank, device)| Some((device?, rank))).into_iter().collect(),
                ..Communicator::default()
            });
        }
        places
    }
}

/// The start of the remark that tells the fact table why nothing is known.
const ATTACHED: &str = "NCCL attached to its ranges";

/// What is known about a communicator in a process.
#[derive(Default)]
struct Told {
    ranks: BTreeSet<i32>,
    members: BTreeSet<(i32, Option<u32>)>,
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::model::time::Shift;

    /// Entries of a schema: name, type, offset.
    type Entries = &'static [(&'static str, i64, Option<i64>)];

    const ID: &str = "NCCL communicator ID";
    /// `NVTX_PAYLOAD_ENTRY_NCCL_REDOP` of NCCL 2.27.
    const REDOP: i64 = 16_777_232;

    fn schemas(all: &[(i64, Option<i64>, Entries)]) -> Schemas {
        let database = Connection::open_in_memory().unwrap();
        database
            .execute_batch(
                "CREATE TABLE NVTX_PAYLOAD_SCHEMAS (domainId, schemaId, payloadSize); \
                 CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId, schemaId, idx, flags, type, name, offset);",
            )
            .unwrap();
        for (number, size, entries) in all {
            database.execute("INSERT INTO NVTX_PAYLOAD_SCHEMAS VALUES (1, ?1, ?2)", (number, size)).unwrap();
            for (at, (name, kind, offset)) in entries.iter().enumerate() {
                let sql = "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (1, ?1, ?2, NULL, ?3, ?4, ?5)";
                database.execute(sql, (number, at as i64, kind, name, offset)).unwrap();
            }
        }
        Schemas::read(&Database(database)).unwrap()
    }

    fn bytes(schema: u64, payload: &[u8]) -> Vec<u8> {
        let header = [1, schema, payload.len() as u64, 32];
        header.iter().flat_map(|word| word.to_le_bytes()).chain(payload.iter().copied()).collect()
    }

    /// Numbers of eight bytes, followed by numbers of four.
    fn fields(eight: &[u64], four: &[i32]) -> Vec<u8> {
        let eight = eight.iter().flat_map(|word| word.to_le_bytes());
        eight.chain(four.iter().flat_map(|word| word.to_le_bytes())).collect()
    }

    /// One call in a process, with the payload of its range.
    fn call(payloads: &mut Payloads, process: usize, at: i64, name: &str, payload: &[u8]) {
        let range = (process, 7, Span::of(at, at + 1), name.into());
        payloads.take(range, 1, ValueRef::Blob(payload), None);
    }

    #[test]
    fn the_fields_of_every_release_are_read_by_name() {
        let schemas = schemas(&[
            (
                1,
                Some(24),
                &[(ID, 18, None), ("Message size [bytes]", 22, Some(8)), ("Reduction operation", REDOP, Some(16))],
            ),
            (
                2,
                Some(24),
                &[(ID, 18, None), ("Message size [bytes]", 22, Some(8)), ("Root", 5, Some(16)), ("Hue", 5, Some(20))],
            ),
            // NCCL up to 2.24 does not give the length of a payload.
            (3, None, &[("Bytes", 22, None), ("Peer rank", 5, Some(8))]),
            (4, Some(0), &[("Bytes", 22, Some(0)), ("Root", 5, Some(8))]),
            (5, Some(8), &[("Message size [bytes]", 22, None)]),
        ]);
        let sized = Payload { communicator: Some(77), bytes: Some(4096), ..Payload::default() };
        let reduced = |reduction| Payload { reduction: Some(reduction), ..sized };
        for (schema, payload, expected) in [
            (1, fields(&[77, 4096], &[0, 0]), reduced("Sum")),
            (1, fields(&[77, 4096], &[1, 0]), reduced("Prod")),
            (1, fields(&[77, 4096], &[4, 0]), reduced("Avg")),
            (1, fields(&[77, 4096], &[0x5ac3_0000, 0]), reduced("PreMulSum")),
            (1, fields(&[77, 4096], &[-1, 0]), sized),
            (2, fields(&[77, 4096], &[3, 9]), Payload { root: Some(3), ..sized }),
            (2, fields(&[0, 4096], &[-1, 9]), Payload { communicator: None, ..sized }),
            (3, fields(&[512], &[1, 0]), Payload { bytes: Some(512), peer: Some(1), ..Payload::default() }),
            (4, fields(&[512], &[0, 0]), Payload { bytes: Some(512), root: Some(0), ..Payload::default() }),
            (5, fields(&[u64::MAX], &[]), Payload { bytes: Some(u64::MAX), ..Payload::default() }),
        ] {
            assert_eq!(schemas.payload(1, &bytes(schema, &payload)), Ok(expected), "{schema} {payload:?}");
        }
        // Where no length is given, a field beyond the end is absent.
        let short = Payload { bytes: Some(512), ..Payload::default() };
        assert_eq!(schemas.payload(1, &bytes(3, &fields(&[512], &[]))), Ok(short));
        assert!(schemas.payload(1, &bytes(1, &fields(&[77, 4096], &[]))).is_err());
        assert!(schemas.payload(2, &bytes(3, &fields(&[512], &[1, 0]))).is_err());
        assert!(schemas.payload(1, &bytes(6, &fields(&[512], &[1, 0]))).is_err());
    }

    #[test]
    fn a_header_with_any_wrong_bit_is_refused() {
        let schemas = schemas(&[(4, Some(16), &[("Bytes", 22, None), ("Root", 5, Some(8))])]);
        let whole = bytes(4, &fields(&[512], &[3, 0]));
        assert!(schemas.payload(1, &whole).is_ok());
        for bit in 0..8 * HEADER {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            // 48, where this payload ends, differs from 32 in one bit.
            let is_the_end = bit == 8 * 24 + 4;
            assert_eq!(schemas.payload(1, &changed).is_ok(), is_the_end, "bit {bit}");
        }
        for length in 0..whole.len() {
            assert!(schemas.payload(1, &whole[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn bytes_may_be_stored_as_text_like_their_column() {
        let mut payloads = Payloads::with(schemas(&[(5, Some(8), &[("Message size [bytes]", 22, None)])]));
        let (span, payload) = (Span::of(1, 2), bytes(5, &fields(&[0x41], &[])));
        payloads.take((0, 7, span, "ncclAllGather".into()), 1, ValueRef::Text(&payload), None);
        assert_eq!(payloads.of(0, 7, span, &"ncclAllGather".into()).bytes, Some(0x41));
        // Broken JSON does not hide the bytes.
        let span = span.shifted(Shift { ns: 10, error_ns: 0 });
        payloads.take((0, 7, span, "ncclAllGather".into()), 1, ValueRef::Blob(&payload), Some("{"));
        assert_eq!(payloads.of(0, 7, span, &"ncclAllGather".into()).bytes, Some(0x41));
        // No payload counts for nothing.
        payloads.take(
            (0, 7, span.shifted(Shift { ns: 10, error_ns: 0 }), "ncclAllGather".into()),
            1,
            ValueRef::Text(b""),
            Some(""),
        );
        assert!(payloads.unread.is_empty() && payloads.read == 2);
    }

    #[test]
    fn fields_that_are_not_plain_numbers_are_ignored() {
        let field = |kind, flags, offset| Field { name: "Root".into(), kind, offset, is_plain: flags == 0 };
        let payload = fields(&[0xffff_ffff_ffff_fffe], &[7]);
        for (kind, flags, offset, expected) in [
            (5, 0, Some(8), Some(7)),
            (15, 0, Some(0), Some(-2)),
            (6, 0, Some(0), Some(0xffff_fffe)),
            (17, 0, Some(0), Some(-2)),
            (22, 0, Some(0), Some(0xffff_ffff_ffff_fffe)),
            // An array, a string, a float, `long` (which has no fixed size), and an enum where NCCL
            // has none.
            (5, 1 << 4, Some(8), None),
            (75, 0, Some(0), None),
            (19, 0, Some(0), None),
            (8, 0, Some(0), None),
            (REDOP, 0, Some(0), None),
            // Beyond the end, and after whatever comes before.
            (22, 0, Some(8), None),
            (5, 0, Some(usize::MAX), None),
            (5, 0, None, None),
        ] {
            assert_eq!(field(kind, flags, offset).value(&payload), expected, "{kind} {flags} {offset:?}");
        }
    }

    #[test]
    fn json_fields_are_read_by_the_same_names() {
        let payload =
            Payload { communicator: Some(u64::MAX), bytes: Some(82_944), peer: Some(3), ..Payload::default() };
        let text = r#"{"NCCL communicator ID": 18446744073709551615, "Message size [bytes]": 82944, "Peer rank": 3, "Hue": [1]}"#;
        assert_eq!(Payload::of_json(text), Ok(payload));
        for (value, reduction) in [
            ("0", Some("Sum")),
            (r#""Max""#, Some("Max")),
            (r#""Product""#, Some("Prod")),
            (r#""2""#, Some("Max")),
            (r#""of another kind""#, None),
            ("null", None),
            ("-1.5", None),
        ] {
            let payload = Payload::of_json(&format!(r#"{{"Root": -1, "Reduction operation": {value}}}"#)).unwrap();
            assert_eq!(payload, Payload { reduction, ..Payload::default() }, "{value}");
        }
        assert_eq!(Payload::of_json("[1]"), Err("JSON that is not an object"));
        assert_eq!(Payload::of_json(r#"{"payload": {"Root": 1}}"#), Err("JSON without a field of NCCL's"));
    }

    #[test]
    fn communicators_are_those_that_calls_name() {
        let ranks: Entries =
            &[(ID, 18, None), ("No. of ranks", 5, Some(8)), ("Rank", 5, Some(12)), ("CUDA device", 5, Some(16))];
        let split: Entries = &[
            (ID, 18, None),
            ("Parent NCCL communicator ID", 18, Some(8)),
            ("No. of ranks", 5, Some(16)),
            ("Rank", 5, Some(20)),
            ("CUDA device", 5, Some(24)),
        ];
        let all: Entries = &[(ID, 18, None), ("No. of devices", 5, Some(8))];
        let mut payloads = Payloads::with(schemas(&[(0, Some(24), ranks), (13, Some(32), split), (1, Some(16), all)]));
        let mut at = 0;
        let mut take = |process, name, schema, payload: &[u8]| {
            at += 10;
            call(&mut payloads, process, at, name, &bytes(schema, payload));
        };
        // One rank per process, reported when the communicator is made and again when it ends; and
        // a communicator that is split.
        take(0, "ncclCommInitRankConfig", 0, &fields(&[10], &[8, 3, 1, 0]));
        take(0, "ncclCommDestroy", 0, &fields(&[10], &[8, 3, 1, 0]));
        take(0, "ncclCommSplit", 13, &fields(&[20, 10], &[8, 3, 1, 0]));
        // In a group the hash does not exist yet.
        take(0, "ncclCommInitRank", 0, &fields(&[0], &[4, 2, 1, 0]));
        // The same communicator in a process that has two of its ranks.
        take(1, "ncclCommInitRank", 0, &fields(&[10], &[8, 4, 0, 0]));
        take(1, "ncclCommInitRank", 0, &fields(&[10], &[8, 5, 1, 0]));
        // All GPUs of a process, and a communicator with two contradictory sizes.
        take(2, "ncclCommInitAll", 1, &fields(&[30], &[4, 0]));
        take(2, "ncclCommInitRank", 0, &fields(&[40], &[2, 0, 0, 0]));
        take(2, "ncclCommAbort", 0, &fields(&[40], &[3, 0, 0, 0]));

        let mut profile = Profile::default();
        let places = payloads.communicators(&mut profile);
        let of = |process, hash| {
            let communicator = &profile.communicators[places[&(process, hash)]];
            assert_eq!(communicator.hash, Some(hash));
            (communicator.ranks, communicator.rank, communicator.device())
        };
        assert_eq!(profile.communicators.len(), 5);
        assert_eq!(of(0, 10), (Some(8), Some(3), Some(1)));
        assert_eq!(of(0, 20), (None, None, None), "a split tells its parent's ranks");
        assert_eq!(of(1, 10), (Some(8), None, None));
        assert_eq!(of(2, 30), (Some(4), None, None));
        assert_eq!(of(2, 40), (None, Some(0), Some(0)));
    }

    #[test]
    fn indistinguishable_ranges_have_no_payload() {
        let mut payloads = Payloads::with(schemas(&[(5, Some(8), &[("Message size [bytes]", 22, None)])]));
        for (at, size) in [(1, 8), (2, 8), (2, 8), (3, 8), (3, 9)] {
            call(&mut payloads, 0, at, "ncclAllGather", &bytes(5, &fields(&[size], &[])));
        }
        let of = |at| payloads.of(0, 7, Span::of(at, at + 1), &"ncclAllGather".into()).bytes;
        assert_eq!([of(1), of(2), of(3), of(4)], [Some(8), Some(8), None, None]);
    }
}
