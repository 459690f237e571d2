//! Whether the dependencies have licences and come from registries that `deny.toml` allows.
//!
//! This reads what Cargo itself says, in a second. The program `cargo deny`
//! does the same and more: it reads the texts of licences, and the database of advisories. Building
//! it takes minutes, so it is used where it is installed, and only the database needs the network.

use std::fs;
use std::process::Command;

use serde_json::Value as Json;
use spdx::{Expression, ParseMode};
use toml::Table;

use crate::steps::{Failure, Outcome, Place, call};

/// What `fuzz/`, a workspace of its own, has besides the packages that the tests are built with.
const OF_FUZZ: [&str; 3] = ["arbitrary", "libfuzzer-sys", "ncclscope-fuzz"];

pub(crate) const ABOUT: &str = "dependencies have the licences and sources of deny.toml, and no advisory is known";

pub(crate) fn check(place: &Place) -> Result<Outcome, Failure> {
    let path = place.root.join("deny.toml");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let rules: Table = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
    let (packages, of_fuzz) = (packages(place, "Cargo.toml")?, packages(place, "fuzz/Cargo.toml")?);
    let (more, drifted) = besides(&packages, of_fuzz);
    let mut objections = objections(&[packages, more].concat(), &rules)?;
    if !drifted.is_empty() {
        let drifted = drifted.join(", ");
        objections.push(format!(
            "not in Cargo.lock: {drifted}; cp Cargo.lock fuzz/; cargo metadata --manifest-path fuzz/Cargo.toml"
        ));
    }
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

/// What Cargo says of the packages of a manifest.
fn packages(place: &Place, manifest: &str) -> Result<Vec<Json>, String> {
    let mut command = place.cargo();
    command.args(["metadata", "--format-version", "1", "--locked", "--all-features", "--manifest-path", manifest]);
    let output = command.output().map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("{manifest}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let mut metadata: Json =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    match metadata["packages"].take() {
        Json::Array(packages) => Ok(packages),
        _ => Err("cargo metadata has no packages".to_owned()),
    }
}

/// The packages that only `fuzz/` has, and the names of those that it has of another version.
fn besides(packages: &[Json], of_fuzz: Vec<Json>) -> (Vec<Json>, Vec<String>) {
    let is_known = |other: &Json| packages.iter().any(|package| package["id"] == other["id"]);
    let others = of_fuzz.into_iter().filter(|package| !is_known(package));
    let (more, drifted): (Vec<_>, Vec<_>) =
        others.partition(|package| OF_FUZZ.iter().any(|name| package["name"] == *name));
    (more, drifted.iter().map(called).collect())
}

/// A package's name and version.
fn called(package: &Json) -> String {
    let [name, version] = ["name", "version"].map(|key| package[key].as_str().unwrap_or("?"));
    format!("{name} {version}")
}

/// What is wrong with which package.
fn objections(packages: &[Json], rules: &Table) -> Result<Vec<String>, String> {
    let list = |section: &str, name: &str| -> Result<Vec<String>, String> {
        let list = rules.get(section).and_then(|section| section.get(name)).and_then(|list| list.as_array());
        let list = list.ok_or_else(|| format!("deny.toml: [{section}] has no list `{name}`"))?;
        Ok(list.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect())
    };
    let (licences, registries) = (list("licenses", "allow")?, list("sources", "allow-registry")?);
    let mut objections = Vec::new();
    for package in packages {
        let mut object = |why: String| objections.push(format!("{}: {why}", called(package)));
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
    fn a_package_of_which_fuzz_has_another_version_is_named() {
        let package =
            |name: &str, version: &str| serde_json::json!({"id": [name, version], "name": name, "version": version});
        let of_fuzz = vec![package("a", "1"), package("b", "3"), package("arbitrary", "1")];
        let (more, drifted) = besides(&[package("a", "1"), package("b", "2")], of_fuzz);
        assert_eq!((more, drifted), (vec![package("arbitrary", "1")], vec!["b 3".to_owned()]));
    }

    #[test]
    fn licences_and_sources_that_are_not_allowed_are_named() {
        let rules = "[licenses]\nallow = ['MIT', 'Zlib']\n[sources]\nallow-registry = ['https://here']";
        let rules: Table = rules.parse().unwrap();
        let package = |licence: Json, source: Json| {
            let package = serde_json::json!({"name": "p", "version": "1.0.0", "license": licence, "source": source});
            objections(&[package], &rules).unwrap()
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
