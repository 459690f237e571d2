//! Many traces, described together.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::text::{print_title, print_verdict};
use super::trust::Trust;
use super::{Info, Seen};
use crate::cli::LISTED;
use crate::trace::reader::Extent;

/// How many files with the same verdict are named.
const NAMED: usize = 4;

/// What several traces contain together.
#[derive(Default)]
pub(super) struct Many {
    files: usize,
    bytes: u64,
    info: Info,
    is_running: bool,
    /// How many can be trusted, and the names of the others.
    trusted: usize,
    doubted: BTreeMap<Trust, Vec<String>>,
}

impl Many {
    pub(super) fn add(&mut self, seen: Seen<'_>) {
        match seen.trust {
            Some(Trust::Full(_)) => self.trusted += 1,
            Some(trust) => {
                let name = seen.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                self.doubted.entry(trust).or_default().push(name);
            }
            None => {}
        }
        self.info.add(seen.info, self.files);
        self.files += 1;
        self.bytes += seen.bytes;
        self.is_running |= seen.is_running;
    }

    /// The verdict on all of them together, which may see what no single file shows.
    fn trust(&self) -> Option<Trust> {
        Trust::of(&self.info, Extent::default(), None)
    }

    /// The exit status of `ncclscope info` that this verdict asks for.
    pub(super) fn status(&self) -> u8 {
        self.trust().map_or(0, |trust| trust.status())
    }

    /// Prints verdicts, the worst first, and then what there is.
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        print_title(&format!("{} traces", self.files), self.bytes, self.info.slices, out)?;
        let trust = self.trust();
        if let Some(trust) = trust.filter(|_| self.doubted.is_empty()) {
            print_verdict(&trust, &trust.to_string(), out)?;
        }
        for (trust, files) in self.doubted.iter().rev().take(LISTED) {
            let names = files.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
            let names = match files.len() {
                1 => names,
                count if count > NAMED => format!("{count} traces: {names}, …"),
                count => format!("{count} traces: {names}"),
            };
            print_verdict(trust, &format!("{trust} ({names})"), out)?;
        }
        if let more @ 1.. = self.doubted.values().rev().skip(LISTED).map(Vec::len).sum() {
            print_verdict(
                &Trust::But(Vec::new()),
                &format!("not trusted, or with reservations: {more} more traces"),
                out,
            )?;
        }
        if self.trusted > 0 && !self.doubted.is_empty() {
            print_verdict(&Trust::Full(String::new()), &format!("trusted: {} traces", self.trusted), out)?;
        }
        self.info.print(self.is_running, out)
    }
}
