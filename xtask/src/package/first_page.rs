//! README.md as a reader uses it: the commands to type, and their output.

use std::fs;
use std::path::Path;

use crate::steps::Place;

/// Its text.
pub(super) struct FirstPage(String);

impl FirstPage {
    pub(super) fn read(place: &Place) -> Result<FirstPage, String> {
        let path = place.root.join("README.md");
        fs::read_to_string(&path).map(FirstPage).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The command below a heading that begins with `begin`, without its comment.
    pub(super) fn line(&self, heading: &str, begin: &str) -> Result<&str, String> {
        let mut lines = self.blocks(heading, "sh").into_iter().flat_map(str::lines);
        let line = lines.find(|line| line.starts_with(begin));
        let line = line.ok_or_else(|| format!("README.md has nothing below {heading} that begins with {begin}"))?;
        Ok(line.split(" #").next().unwrap_or(line).trim_end())
    }

    /// The lines of output below a heading.
    pub(super) fn said(&self, heading: &str) -> Vec<&str> {
        self.blocks(heading, "").into_iter().flat_map(str::lines).collect()
    }

    /// The code blocks in one language below a heading.
    fn blocks(&self, heading: &str, language: &str) -> Vec<&str> {
        let section = self.0.split("\n## ").find(|section| section.lines().next() == Some(heading)).unwrap_or_default();
        // Text inside and outside of the fences alternates.
        let blocks = section.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
        blocks.filter(|(said, _)| *said == language).map(|(_, block)| block).collect()
    }
}

/// A line without what differs from run to run: the host, the folder where it was typed, process
/// numbers, times, sizes.
pub(super) fn like(line: &str, folder: &Path) -> String {
    let line = line.replace(&folder.display().to_string(), "FOLDER");
    let host = line.strip_prefix("ncclscope[").and_then(|rest| rest.split_once(':')).map(|(host, _)| host.to_owned());
    let line = host.map_or(line.clone(), |host| {
        line.replace(&format!("{host}:"), "HOST:").replace(&format!(" {host}."), " HOST.")
    });
    let words = line.split_inclusive(' ').map(|word| (word, word.trim_end())).collect::<Vec<_>>();
    let mut shape = String::new();
    for (index, (word, bare)) in words.iter().enumerate() {
        let is_size = words.get(index + 1).is_some_and(|(_, unit)| unit.trim_end_matches(',').ends_with("iB"));
        match bare.parse::<f64>() {
            Ok(_) if is_size => shape.push_str("SIZE "),
            _ => shape.push_str(&without_long_numbers(word)),
        }
    }
    ["KiB", "MiB"].iter().fold(shape, |shape, unit| shape.replace(&format!("SIZE {unit}"), "SIZE"))
}

/// Releases and counts are kept; dates, times and process numbers have more digits.
fn without_long_numbers(word: &str) -> String {
    const LONG: usize = 3;
    let mut shape = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let end = rest[at..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |length| at + length);
        shape.push_str(&rest[..at]);
        shape.push_str(if end - at >= LONG { "#" } else { &rest[at..end] });
        rest = &rest[end..];
    }
    shape + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# it

## Install

```sh
build it   # once
it doctor --all  # then
```

## Start

```sh
it run
```

It says:

```
it: one
it: two
```
";

    #[test]
    fn commands_and_output_are_told_apart() {
        let page = FirstPage(PAGE.to_owned());
        assert_eq!(page.line("Install", "it doctor").as_deref(), Ok("it doctor --all"));
        assert_eq!(page.line("Start", "it ").as_deref(), Ok("it run"));
        assert!(page.line("Start", "build").is_err());
        assert_eq!(page.said("Start"), ["it: one", "it: two"]);
        assert_eq!(page.said("Install"), [""; 0]);
    }

    #[test]
    fn lines_of_two_runs_are_alike_and_other_lines_are_not() {
        let start = |host: &str, pid: u32, time: u32, nccl: &str| {
            format!(
                "ncclscope[{host}:{pid}]: recording to /x/{host}/ncclscope-{time}-0712 (this process: {host}.{pid}.{time}.trace); NCCL {nccl}; v6"
            )
        };
        let of = |host: &str, pid, time, nccl| like(&start(host, pid, time, nccl), &Path::new("/x").join(host));
        assert_eq!(of("vm", 4711, 20261123, "2.30.7"), of("node17", 812, 1795417945, "2.30.7"));
        assert_ne!(of("vm", 4711, 20261123, "2.30.7"), of("vm", 4711, 20261123, "2.28.9"));
        let end = |traces, size: &str| {
            like(&format!("ncclscope: {traces} traces, {size}, in ncclscope-20261123"), Path::new("/x"))
        };
        assert_eq!(end(4, "291.6 KiB"), end(4, "1.2 MiB"));
        assert_ne!(end(4, "291.6 KiB"), end(3, "291.6 KiB"));
    }
}
