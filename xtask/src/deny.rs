//! Whether the dependencies have licences and come from registries that `deny.toml` allows.
//!
//! This reads what Cargo itself says, in a second and without a network. The program `cargo deny`
//! does the same and more: it reads the texts of licences, and the database of advisories. Building
//! it takes minutes, so it is used where it is installed, and only the database needs the network.

use std::fs;
use std::process::Command;

use serde_json::Value as Json;
use spdx::{Expression, ParseMode};
use toml::Table;

use crate::steps::{Failure, Outcome, Place, call};

pub(crate) const ABOUT: &str = "dependencies have the licences and sources of deny.toml, and no advisory is known";

pub(crate) fn check(place: &Place) -> Result<Outcome, Failure> {
    let path = place.root.join("deny.toml");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let rules: Table = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
    let metadata = place.cargo().args(["metadata", "--format-version", "1", "--locked", "--all-features"]).output();
    let metadata = metadata.map_err(|error| format!("cargo metadata: {error}"))?;
    if !metadata.status.success() {
        return Err(String::from_utf8_lossy(&metadata.stderr).into_owned().into());
    }
    let metadata = serde_json::from_slice(&metadata.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let objections = objections(&metadata, &rules)?;
    if !objections.is_empty() {
        return Err(objections.join("\n").into());
    }
    if !Command::new("cargo-deny").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Ok(Outcome::Partly("no advisories: cargo-deny is not installed (cargo install cargo-deny)".to_owned()));
    }
    call(place.cargo().args(["deny", "check", "licenses", "sources", "bans"]))?;
    let advisories = place.cargo().args(["deny", "check", "advisories"]).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&advisories.stderr).into_owned();
    match advisories.status.success() {
        true => Ok(Outcome::Done),
        false if said.contains("failed to fetch advisory database") => {
            Ok(Outcome::Partly("no advisories: their database cannot be reached".to_owned()))
        }
        false => Err(said.into()),
    }
}

/// What is wrong with which package.
fn objections(metadata: &Json, rules: &Table) -> Result<Vec<String>, String> {
    let list = |section: &str, name: &str| -> Result<Vec<String>, String> {
        let list = rules.get(section).and_then(|section| section.get(name)).and_then(|list| list.as_array());
        let list = list.ok_or_else(|| format!("deny.toml: [{section}] has no list `{name}`"))?;
        Ok(list.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect())
    };
    let (licences, registries) = (list("licenses", "allow")?, list("sources", "allow-registry")?);
    let packages = metadata["packages"].as_array().ok_or("cargo metadata has no packages")?;
    let mut objections = Vec::new();
    for package in packages {
        let [name, version] = ["name", "version"].map(|key| package[key].as_str().unwrap_or("?"));
        let mut object = |why: String| objections.push(format!("{name} {version}: {why}"));
        match package["license"].as_str() {
            None => object("it states no licence".to_owned()),
            Some(text) => match Expression::parse_mode(text, ParseMode::LAX) {
                Err(error) => object(format!("its licence `{text}` cannot be read: {}", error.reason)),
                Ok(expression) => {
                    let is_allowed = |name: &str| licences.iter().any(|licence| licence == name);
                    // An exception allows more than the licence alone.
                    if !expression.evaluate(|term| term.license.id().is_some_and(|licence| is_allowed(licence.name))) {
                        object(format!("deny.toml does not allow its licence `{text}`"));
                    }
                }
            },
        }
        // A package of this repository has no source.
        if let Some(source) = package["source"].as_str() {
            let is_known =
                source.strip_prefix("registry+").is_some_and(|it| registries.iter().any(|known| known == it));
            if !is_known {
                object(format!("deny.toml does not allow its source {source}"));
            }
        }
    }
    Ok(objections)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_and_sources_that_are_not_allowed_are_named() {
        let rules = "[licenses]\nallow = ['MIT', 'Zlib']\n[sources]\nallow-registry = ['https://here']";
        let rules: Table = rules.parse().unwrap();
        let package = |licence: Json, source: Json| {
            let package = serde_json::json!({"name": "p", "version": "1.0.0", "license": licence, "source": source});
            objections(&serde_json::json!({ "packages": [package] }), &rules).unwrap()
        };
        let here = Json::from("registry+https://here");
        for licence in ["MIT", "MIT/GPL-3.0", "GPL-3.0-only OR (Zlib AND MIT)", "Zlib WITH LLVM-exception"] {
            assert_eq!(package(licence.into(), here.clone()), [""; 0], "{licence}");
        }
        for licence in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "what you like"] {
            assert!(package(licence.into(), here.clone())[0].starts_with("p 1.0.0: "), "{licence}");
        }
        assert_eq!(package(Json::Null, here), ["p 1.0.0: it states no licence"]);
        assert_eq!(package("MIT".into(), Json::Null), [""; 0], "a package of this repository");
        for source in ["registry+https://there", "git+https://here"] {
            assert!(package("MIT".into(), source.into())[0].contains("does not allow its source"), "{source}");
        }
    }
}
