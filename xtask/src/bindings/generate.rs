//! `cupti-sys/src/bindings.rs`, by bindgen from the newest release.

use std::panic::AssertUnwindSafe;

use bindgen::{EnumVariation, Formatter, RustEdition, RustTarget};

use super::compiler::{PROLOGUE, Scratch, flags};
use super::lists::{FUNCTIONS, KEPT, TYPES};
use super::releases::{Release, function_doc, newest};
use super::{rustfmt, save};
use crate::steps::{Failure, Place};

/// The text of `bindings.rs`, from the newest release.
pub(super) fn bindings(place: &Place, releases: &[Release]) -> Result<String, Failure> {
    let release = newest(releases)?;
    let scratch = Scratch::new()?;
    let header = scratch.0.join("all.h");
    save(&header, PROLOGUE)?;
    let builder = bindgen::builder()
        .header(header.to_string_lossy())
        .allowlist_function(FUNCTIONS.join("|"))
        .allowlist_type(TYPES.join("|"))
        // Launch attributes change with every release, and are not read.
        .opaque_type("CUlaunchAttribute_st")
        .default_enum_style(EnumVariation::Consts)
        .prepend_enum_name(false)
        .generate_comments(false)
        .use_core()
        .disable_header_comment()
        .rust_target(RustTarget::stable(88, 0).map_err(|error| error.to_string())?)
        .rust_edition(RustEdition::Edition2024)
        .formatter(Formatter::Rustfmt)
        .rustfmt_configuration_file(Some(place.root.join("rustfmt.toml")))
        .clang_args(flags(release, &scratch.0));
    // It panics if there is no libclang.
    let generated = std::panic::catch_unwind(AssertUnwindSafe(|| builder.generate()))
        .map_err(|_| "bindgen found no libclang; on Debian: apt-get install libclang-dev".to_owned())?
        .map_err(|error| format!("bindgen failed: {error}"))?
        .to_string();

    let mut text = format!(
        "//! CUPTI's types, constants and function types, under its own names, as of CUDA {}.
//!
//! Written by `cargo xtask bindings` from NVIDIA's headers on PyPI; not to be edited. What they
//! mean is in NVIDIA's documentation of CUPTI.

#![allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(clippy::all)]

",
        release.cuda
    );
    for item in items(&generated) {
        if let Some(function) = item.strip_prefix("unsafe extern \"C\" {") {
            text.push_str(&function_type(function, releases)?);
        } else if kept(&item) {
            text.push_str(&item);
        }
    }
    rustfmt(place, &text)
}

/// The items of a formatted file: each ends with a line that begins with a closing bracket, or is
/// one statement.
pub(super) fn items(text: &str) -> Vec<String> {
    let mut items = Vec::new();
    let mut item = String::new();
    for line in text.lines() {
        item.push_str(line);
        item.push('\n');
        let whole = line.starts_with('}') || (line.ends_with(';') && !item.contains('{'));
        if whole {
            items.push(std::mem::take(&mut item));
        }
    }
    items
}

/// A declaration as a type, because nobody links against CUPTI.
fn function_type(declaration: &str, releases: &[Release]) -> Result<String, Failure> {
    let wrong = || format!("not one function: {declaration}");
    let declaration = declaration.trim().trim_end_matches('}').trim();
    let declaration = declaration.strip_prefix("pub fn ").and_then(|rest| rest.strip_suffix(';')).ok_or_else(wrong)?;
    let (name, rest) = declaration.split_once('(').ok_or_else(wrong)?;
    Ok(format!("{}\npub type {name} = unsafe extern \"C\" fn({rest};\n", function_doc(name, releases)?))
}

/// Whether to keep an item: of constants only those in the list.
fn kept(item: &str) -> bool {
    let Some((name, ..)) = constant_parts(item) else { return true };
    let goes_on = |(begin, ends): &(&str, &str)| {
        name.strip_prefix(begin).is_some_and(|end| ends.split_whitespace().any(|known| known == end))
    };
    KEPT.iter().any(goes_on)
}

/// The name, type and value of a constant.
pub(super) fn constant_parts(item: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = item.trim_start().strip_prefix("pub const ")?.split_once(':')?;
    let (kind, value) = rest.split_once('=')?;
    Some((name.trim(), kind.trim(), value.trim().strip_suffix(';')?))
}
