//! `cupti-sys/src/table.rs`, from all releases.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::compiler::{ask, number};
use super::headers::has_member;
use super::lists::{FAMILIES, Family, WALKED};
use super::releases::Release;
use super::rustfmt;
use crate::steps::{Failure, Place};

/// A field of a release's record.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Member {
    offset: u32,
    /// Its Rust type.
    kind: String,
}

/// A release's records.
struct Records {
    /// By kind.
    sizes: BTreeMap<u32, u32>,
    /// By family and field.
    members: BTreeMap<(usize, String), Member>,
    /// The structs of each family, by number of the family.
    structs: BTreeMap<usize, String>,
    subscriber_params: Option<u32>,
}

fn records(release: &Release) -> Result<Records, Failure> {
    let kinds = release.headers.kinds()?;
    let mut statements = String::from("printf(\"api %d\\n\", CUPTI_API_VERSION);\n");
    for (kind, _, record) in &kinds {
        let _ = writeln!(statements, "printf(\"size {kind} %zu\\n\", sizeof({record}));");
    }
    let mut structs = BTreeMap::new();
    for (place, family) in FAMILIES.iter().enumerate() {
        for wanted in family.kinds {
            let found = kinds.iter().find(|(_, name, _)| name == wanted);
            let Some((_, _, record)) = found else { continue };
            if structs.insert(place, record.clone()).is_some_and(|before| before != *record) {
                return Err(format!("CUPTI {}: {} has two structs", release.version, family.name).into());
            }
        }
        let Some(record) = structs.get(&place) else { continue };
        let (_, body) = release.headers.body(record).ok_or_else(|| format!("{record} is not declared"))?;
        for field in family.fields.split_whitespace().filter(|field| has_member(body, field)) {
            let value = format!("((({record}*)0)->{field})");
            // GCC's numbers: 1 is an integer, 5 a pointer, 12 a struct. C enumerations count as
            // unsigned.
            let _ = writeln!(
                statements,
                "printf(\"field {place} {field} %zu %zu %d %d\\n\", offsetof({record}, {field}), sizeof({value}),
                    __builtin_classify_type({value}),
                    _Generic({value}, signed char: 1, short: 1, int: 1, long: 1, long long: 1, default: 0));"
            );
        }
    }
    if release.headers.words.contains("CUpti_SubscriberParams") {
        statements.push_str("printf(\"params %zu\\n\", (size_t)CUpti_SubscriberParams_STRUCT_SIZE);\n");
    }

    let mut records = Records { sizes: BTreeMap::new(), members: BTreeMap::new(), structs, subscriber_params: None };
    for words in ask(release, "", &statements)? {
        match words[0].as_str() {
            "api" if !(release.from..release.until).contains(&number(&words, 1)?) => {
                return Err(format!("CUPTI {} is version {}, not what its row says", release.version, words[1]).into());
            }
            "size" => {
                records.sizes.insert(number(&words, 1)?, number(&words, 2)?);
            }
            "field" => {
                let (place, offset, size) = (number(&words, 1)?, number(&words, 3)?, number(&words, 4)?);
                let kind = rust_type(number(&words, 5)?, size, number(&words, 6)? == 1);
                let kind = kind.ok_or_else(|| format!("{} is of no type the table knows", words[2]))?;
                records.members.insert((place as usize, words[2].clone()), Member { offset, kind });
            }
            "params" => records.subscriber_params = Some(number(&words, 1)?),
            _ => {}
        }
    }
    for (from, until, kinds, size) in WALKED {
        if (*from..*until).contains(&release.from) {
            records.sizes.extend(kinds.iter().map(|kind| (*kind, *size)));
        }
    }
    Ok(records)
}

fn rust_type(class: u32, size: u32, signed: bool) -> Option<String> {
    match (class, size) {
        (1, 1 | 2 | 4 | 8) => Some(format!("{}{}", if signed { 'i' } else { 'u' }, size * 8)),
        (5, 8) => Some("*const c_char".to_owned()),
        (12, 16) => Some("[u8; 16]".to_owned()),
        _ => None,
    }
}

/// `sourceGraphNodeId` as `SOURCE_GRAPH_NODE_ID`; `channelID` as `CHANNEL_ID`.
pub(super) fn constant(field: &str) -> String {
    let mut name = String::new();
    let mut before = '_';
    for c in field.chars() {
        if c.is_ascii_uppercase() && (before.is_ascii_lowercase() || before.is_ascii_digit()) {
            name.push('_');
        }
        name.push(if c == '.' { '_' } else { c.to_ascii_uppercase() });
        before = if c == '.' { '_' } else { c };
    }
    name
}

/// The text of `table.rs`.
pub(super) fn table(place: &Place, releases: &[Release]) -> Result<String, Failure> {
    let mut all = Vec::new();
    for release in releases {
        all.push((release, records(release)?));
    }
    let newest = &all.last().ok_or("releases.txt names no release".to_owned())?.1;

    let mut text = String::new();
    let first = &releases[0].cuda;
    let last = &releases[releases.len() - 1].cuda;
    let _ = writeln!(
        text,
        "//! Where the fields of activity records lie, and how long records are: CUPTI of CUDA {first} to {last}.
//!
//! Written by `cargo xtask bindings` from the headers on PyPI that `releases.txt` names; not to be
//! edited. The sizes are those that the headers name for each kind, but for the few that the
//! libraries themselves contradict (`WALKED` in xtask); the tests walk the libraries of all these
//! releases.

use core::ffi::c_char;

use crate::bindings;
use crate::records::{{Family, Field}};

/// The first version of each release, as `cuptiGetVersion` reports it.
pub(crate) const RELEASES: &[(u32, &str)] = &["
    );
    for (place, release) in releases.iter().enumerate() {
        // Two releases may report the same version, which then stands for the first of them.
        if place == 0 || releases[place - 1].from != release.from {
            let _ = writeln!(text, "({}, {:?}),", digits(release.from), release.cuda);
        }
    }
    text.push_str("];\n\n");

    text.push_str("/// The size of `CUpti_SubscriberParams` from a version on.\n");
    text.push_str("pub(crate) const SUBSCRIBER_PARAMS_SIZES: &[(u32, usize)] = &[");
    let params = all.iter().filter_map(|(release, records)| Some((release.from, records.subscriber_params?)));
    text.push_str(&rows(params));
    text.push_str("];\n\n");

    let kinds = all.iter().flat_map(|(_, records)| records.sizes.keys()).max().copied().unwrap_or(0);
    let names: BTreeMap<u32, String> = all
        .iter()
        .flat_map(|(release, _)| release.headers.kinds().unwrap_or_default())
        .map(|(kind, name, _)| (kind, name))
        .collect();
    let _ = writeln!(text, "/// By kind: from a version on, how long a record is; 0 where it cannot be stepped over.");
    let _ = writeln!(text, "pub(crate) const SIZES: [&[(u32, u16)]; {}] = [", kinds + 1);
    for kind in 0..=kinds {
        let sizes = all.iter().map(|(release, records)| (release.from, records.sizes.get(&kind).copied().unwrap_or(0)));
        let name = names.get(&kind).map_or("not a record", String::as_str);
        let _ = writeln!(text, "// {kind}: {name}\n&[{}],", rows(sizes.skip_while(|(_, size)| *size == 0)));
    }
    text.push_str("];\n");

    for (place, family) in FAMILIES.iter().enumerate() {
        write_family(&mut text, place, family, &all, newest)?;
    }
    rustfmt(place, &text)
}

/// Rows of a version and a value, without those that repeat the previous value.
fn rows(values: impl Iterator<Item = (u32, u32)>) -> String {
    let mut last = None;
    let mut text = String::new();
    for (from, value) in values {
        if last != Some(value) {
            let _ = write!(text, "({}, {value}), ", digits(from));
        }
        last = Some(value);
    }
    text
}

/// A number with its thousands separated.
fn digits(number: u32) -> String {
    if number < 10_000 { number.to_string() } else { format!("{}_{:03}", number / 1000, number % 1000) }
}

fn write_family(
    text: &mut String,
    place: usize,
    family: &Family,
    all: &[(&Release, Records)],
    newest: &Records,
) -> Result<(), Failure> {
    let mut structs = all.iter().filter_map(|(_, records)| records.structs.get(&place));
    let first = structs.next().ok_or_else(|| format!("no release has {}", family.name))?;
    let names = match structs.next_back() {
        Some(last) if last != first => format!("`{first}` to `{last}`"),
        _ => format!("`{first}`"),
    };
    let kinds: Vec<String> = family.kinds.iter().map(|kind| format!("bindings::CUPTI_ACTIVITY_KIND_{kind}")).collect();
    let _ = writeln!(text, "\n/// {} {names}.", family.about);
    let _ = writeln!(text, "#[derive(Clone, Copy, Debug)]\npub enum {} {{}}\n", family.name);
    let _ = writeln!(text, "impl Family for {} {{", family.name);
    let _ = writeln!(text, "const KINDS: &'static [u32] = &[{}];\n}}\n", kinds.join(", "));
    let _ = writeln!(text, "impl {} {{", family.name);
    for field in family.fields.split_whitespace() {
        let key = (place, field.to_owned());
        let absent = || format!("no release has {}::{field}", family.name);
        let member = newest.members.get(&key).ok_or_else(absent)?;
        let first = all.iter().position(|(_, records)| records.members.contains_key(&key)).ok_or_else(absent)?;
        for (release, records) in &all[first..] {
            let here = records.members.get(&key);
            if here != Some(member) {
                let version = &release.version;
                return Err(format!(
                    "CUPTI {version} has {}::{field} as {here:?}, the newest as {member:?}: the table cannot say that",
                    family.name
                )
                .into());
            }
        }
        let release = all[first].0;
        // Fields of the first release, or as old as the family, need no remark.
        let with = all.iter().position(|(_, records)| records.structs.contains_key(&place));
        let since = if with == Some(first) { String::new() } else { format!(", since CUDA {}", release.cuda) };
        let _ = writeln!(text, "/// `{field}`{since}");
        let (name, kind, offset) = (constant(field), &member.kind, member.offset);
        let _ =
            writeln!(text, "pub const {name}: Field<Self, {kind}> = Field::new({offset}, {});", digits(release.from));
    }
    text.push_str("}\n");
    Ok(())
}
