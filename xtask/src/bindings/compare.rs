//! Compares the bindings with the headers of a release.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::compiler::ask;
use super::generate::{constant_parts, items};
use super::headers::has_member;
use super::lists::FUNCTIONS;
use super::releases::Release;
use crate::steps::Failure;

/// Where a release contradicts the committed bindings.
pub(super) fn compare(release: &Release, committed: &str) -> Result<Vec<String>, Failure> {
    let headers = &release.headers;
    let mut expected = BTreeMap::new();
    let mut statements = String::new();
    let mut declarations = String::new();
    let mut declared = BTreeSet::new();
    for item in items(committed) {
        if let Some((name, declaration)) = c_function(&item) {
            // A second declaration must match the first, or the compiler reports it.
            if headers.words.contains(&name) {
                declarations.push_str(&declaration);
                declared.insert(name);
            }
        } else if let Some((name, _, value)) = constant_parts(&item) {
            if headers.words.contains(name) {
                expected.insert(name.to_owned(), value.to_owned());
                let _ = writeln!(statements, "printf(\"{name} %lld\\n\", (long long){name});");
            }
        } else {
            for (path, value) in layouts(&item) {
                let (name, member) = path.split_once("::").unwrap_or((&path, ""));
                // Structs without a body are only pointed to, and those that bindgen adds have no
                // name in C.
                let Some((record, body)) = headers.body(name) else { continue };
                // Only these structs have grown: the size of the first is in the table, and the
                // other is never passed.
                if member.is_empty() && !matches!(name, "CUpti_SubscriberParams" | "CUpti_ActivityConfig") {
                    let _ = writeln!(statements, "printf(\"{path} %zu\\n\", sizeof({record}));");
                } else if !member.is_empty() && has_member(body, member) {
                    let _ = writeln!(statements, "printf(\"{path} %zu\\n\", offsetof({record}, {member}));");
                } else {
                    continue;
                }
                expected.insert(path, value);
            }
        }
    }
    let mut problems = Vec::new();
    for name in FUNCTIONS.iter().filter(|name| headers.words.contains(**name) && !declared.contains(**name)) {
        problems.push(format!("CUPTI {}: {name} could not be compared", release.version));
    }
    for words in ask(release, &declarations, &statements)? {
        let [name, value] = words.as_slice() else { continue };
        if expected.remove(name).as_ref() != Some(value) {
            problems.push(format!("CUPTI {}: {name} is {value}, in bindings.rs it is not", release.version));
        }
    }
    for name in expected.keys() {
        problems.push(format!("CUPTI {}: {name} was not found", release.version));
    }
    Ok(problems)
}

/// The type of a function or a callback in the bindings: its name, and its C declaration.
pub(super) fn c_function(item: &str) -> Option<(String, String)> {
    let flat = item.split_whitespace().collect::<Vec<_>>().join(" ");
    let (name, rest) = flat.split_once("pub type ")?.1.split_once(" = ")?;
    let (before, rest) = rest.split_once("unsafe extern \"C\" fn(")?;
    let (parameters, result) = rest.split_once(')')?;
    let result = result.trim_end_matches([';', '>', ',', ' ']).strip_prefix(" -> ").map_or("void".to_owned(), c_type);
    let parameters = parameters.trim_end_matches([' ', ',']).split(", ").filter(|parameter| !parameter.is_empty());
    let parameters: Option<Vec<String>> =
        parameters.map(|parameter| Some(c_type(parameter.split_once(": ")?.1))).collect();
    let parameters = Some(parameters?.join(", ")).filter(|list| !list.is_empty()).unwrap_or("void".to_owned());
    let declaration = if before.is_empty() {
        format!("{result} CUPTIAPI {name}({parameters});\n")
    } else {
        format!("typedef {result} (CUPTIAPI *{name})({parameters});\n")
    };
    Some((name.to_owned(), declaration))
}

/// A type of the bindings in C. Named types keep their names.
fn c_type(rust: &str) -> String {
    if let Some(inner) = rust.strip_prefix("*mut ") {
        return format!("{} *", c_type(inner));
    }
    if let Some(inner) = rust.strip_prefix("*const ") {
        return format!("{} const *", c_type(inner));
    }
    let names = [("u8", "uint8_t"), ("u32", "uint32_t"), ("u64", "uint64_t"), ("usize", "size_t")];
    let known = names.iter().find(|(name, _)| *name == rust).map(|(_, c)| *c);
    known.unwrap_or(rust.strip_prefix("::core::ffi::c_").unwrap_or(rust)).to_owned()
}

/// The sizes and offsets in bindgen's assertions: `Struct` or `Struct::member`, and the number.
/// The Rust compiler checks the bindings against them.
pub(super) fn layouts(item: &str) -> Vec<(String, String)> {
    let flat = item.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut found = Vec::new();
    for part in flat.split("[\"").skip(1) {
        let Some((title, rest)) = part.split_once("\"]") else { continue };
        let title = title.strip_prefix("Size of ").or_else(|| title.strip_prefix("Offset of field: "));
        let number = rest.split_once(';').and_then(|(before, _)| before.trim_end_matches(']').rsplit_once("- "));
        let (Some(title), Some((_, number))) = (title, number) else { continue };
        let name = title.trim_end_matches('_').to_owned();
        found.push((name, number.trim_end_matches("usize").to_owned()));
    }
    found
}
