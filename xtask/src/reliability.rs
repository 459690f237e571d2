//! The table of docs/reliability.md, made from the rows that the tests have written
//! (`tests/support/fault.rs`). `NCCLSCOPE_BLESS=1` renews it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::steps::{Failure, Outcome, Place};

pub(crate) const ABOUT: &str = "docs/reliability.md has the cases that the tests have just survived";

const PAGE: &str = "docs/reliability.md";
const HEAD: &str = "| area | what is done | what holds | runs | test |\n| --- | --- | --- | ---: | --- |\n";
const AREAS: [&str; 9] = ["threads", "processes", "memory", "files", "clocks", "settings", "CUPTI", "NCCL", "input"];
/// Each test in these files is a case.
const FILES: [&str; 3] = ["tests/hostile.rs", "tests/files.rs", "tests/cupti/planted.rs"];

/// Runs by everything else in a row: the area's place, the file, what is done, and so on.
type Table = BTreeMap<Row, u64>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    area: usize,
    file: String,
    fault: String,
    holds: String,
    test: String,
}

/// Forgets what earlier runs of the tests have written.
pub(crate) fn forget(place: &Place) {
    let _ = fs::remove_dir_all(place.target.join("debug/faults"));
}

pub(crate) fn check(place: &Place) -> Result<Outcome, Failure> {
    each_test_is_a_case(&place.root)?;
    let page = read(&place.root.join(PAGE))?;
    let (before, rest) = page.split_once(HEAD).ok_or_else(|| format!("{PAGE} has no such table:\n{HEAD}"))?;
    let (table, after) = rest.split_once("\n\n").ok_or_else(|| format!("{PAGE} ends with its table"))?;
    let shown: Table = table.lines().map(parse).collect::<Result<_, _>>()?;
    let mut survived = survived(place)?;
    if std::env::var_os("NCCLSCOPE_BLESS").is_some_and(|value| value == "1") {
        // The most that one run of the test has tried.
        for (row, runs) in &mut survived {
            *runs = (*runs).max(shown.get(row).copied().unwrap_or(0));
        }
        let table: Vec<_> = survived.iter().map(|(row, runs)| write(row, *runs)).collect();
        let page = format!("{before}{HEAD}{}\n\n{after}", table.join("\n"));
        fs::write(place.root.join(PAGE), page).map_err(|error| format!("{PAGE}: {error}"))?;
        return Ok(Outcome::Done);
    }
    let lacking = survived.keys().filter(|row| !shown.contains_key(row)).map(|row| format!("not on the page: {row:?}"));
    let untested = shown.keys().filter(|row| !survived.contains_key(row)).map(|row| format!("no test says: {row:?}"));
    let wrong: Vec<_> = lacking.chain(untested).collect();
    if wrong.is_empty() {
        return Ok(Outcome::Done);
    }
    Err(Failure {
        reason: format!("{}\n(the rows are those of the tests run last)", wrong.join("\n")),
        again: Some("cargo xtask check test e2e reliability, with NCCLSCOPE_BLESS=1 to renew the page".to_owned()),
    })
}

/// What the tests wrote. Rows of tests that are no longer there do not count.
fn survived(place: &Place) -> Result<Table, String> {
    let folder = place.target.join("debug/faults");
    let files = fs::read_dir(&folder).map_err(|error| format!("{}: {error}; run the tests first", folder.display()))?;
    let mut table = Table::new();
    for file in files {
        let text = read(&file.map_err(|error| error.to_string())?.path())?;
        let [area, fault, holds, file, test, runs] = text.trim_end().split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("not a row: {text}"));
        };
        let test = test.rsplit("::").next().unwrap_or_default();
        if read(&place.root.join(file)).is_ok_and(|source| source.contains(&format!("fn {test}("))) {
            let [fault, holds] = [fault, holds].map(|text| text.replace('|', "\\|"));
            let row = Row { area: area_of(area)?, file: file.to_owned(), fault, holds, test: test.to_owned() };
            table.insert(row, runs.parse().map_err(|_| format!("not a number: {runs}"))?);
        }
    }
    Ok(table)
}

fn area_of(name: &str) -> Result<usize, String> {
    AREAS.iter().position(|area| *area == name).ok_or_else(|| format!("no such area: {name}"))
}

fn write(row: &Row, runs: u64) -> String {
    let Row { area, file, fault, holds, test } = row;
    format!("| {} | {fault} | {holds} | {} | `{file}`: `{test}` |", AREAS[*area], grouped(runs))
}

/// A number with separators.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn parse(line: &str) -> Result<(Row, u64), String> {
    let wrong = || format!("{PAGE}: not a row: {line}");
    let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
    let [area, fault, holds, runs, test] = cells[..] else { return Err(wrong()) };
    let (file, test) = test.trim_matches('`').split_once("`: `").ok_or_else(wrong)?;
    let [file, fault, holds, test] = [file, fault, holds, test].map(str::to_owned);
    let runs = runs.replace(',', "").parse().map_err(|_| wrong())?;
    Ok((Row { area: area_of(area)?, file, fault, holds, test }, runs))
}

fn each_test_is_a_case(root: &Path) -> Result<(), String> {
    for file in FILES {
        let text = read(&root.join(file))?;
        for test in text.split("#[test]\n").skip(1) {
            let body = test.split("\n}\n").next().unwrap_or_default();
            if !body.contains("fault::case(") || !body.contains(".survived(") {
                let name = body.lines().next().unwrap_or_default();
                return Err(format!("{file}: each test there is a case of {PAGE}, but not: {name}"));
            }
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_back() {
        let row = Row {
            area: 2,
            file: "tests/hostile.rs".to_owned(),
            fault: "`malloc` returns null".to_owned(),
            holds: "everything is recorded".to_owned(),
            test: "nothing_is_allocated".to_owned(),
        };
        assert_eq!(parse(&write(&row, 1_234_567)), Ok((row, 1_234_567)));
        assert!(parse("| memory | too few |").is_err());
    }
}
