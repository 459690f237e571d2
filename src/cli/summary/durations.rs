//! Lists of all durations, as long as a trace has them: they wait in a file, not in memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;

use crate::cli::reason::Reason;

/// Durations of one list that are held in memory.
const HELD: usize = 256;

/// Durations by list, ns.
#[derive(Default)]
pub(super) struct Durations {
    lists: BTreeMap<(usize, u32), List>,
    file: Option<File>,
    error: Option<std::io::Error>,
}

#[derive(Default)]
struct List {
    number: u64,
    held: Vec<u64>,
    /// Where in the file the parts before these are, each of [`HELD`] durations.
    parts: Vec<u64>,
}

impl Durations {
    /// Adds a duration to the list of this process and row.
    pub(super) fn add(&mut self, process: usize, row: u32, ns: u64) {
        let list = self.lists.entry((process, row)).or_default();
        list.number += 1;
        list.held.push(ns);
        if list.held.len() < HELD || self.error.is_some() {
            return;
        }
        let bytes: Vec<u8> = list.held.drain(..).flat_map(u64::to_le_bytes).collect();
        let mut write = || {
            let file = match &mut self.file {
                Some(file) => file,
                none => none.insert(tempfile::tempfile()?),
            };
            let at = file.seek(SeekFrom::End(0))?;
            file.write_all(&bytes)?;
            Ok(at)
        };
        match write() {
            Ok(at) => list.parts.push(at),
            Err(error) => self.error = Some(error),
        }
    }

    /// The lists, by process and row.
    pub(super) fn lists(&self) -> impl Iterator<Item = (usize, u32)> {
        self.lists.keys().copied()
    }

    /// The number of durations of a list.
    pub(super) fn number(&self, process: usize, row: u32) -> u64 {
        self.lists.get(&(process, row)).map_or(0, |list| list.number)
    }

    /// Passes on the durations of a list, in the order in which they came.
    ///
    /// # Errors
    ///
    /// If the temporary file could not be written or cannot be read; and what `each` returns.
    pub(super) fn each(
        &self,
        process: usize,
        row: u32,
        mut each: impl FnMut(u64) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        let failed = Reason::failed("keep the durations in a temporary file");
        if let Some(error) = &self.error {
            return Err(failed(std::io::Error::new(error.kind(), error.to_string())));
        }
        let Some(list) = self.lists.get(&(process, row)) else { return Ok(()) };
        let mut bytes = [0; HELD * 8];
        for part in &list.parts {
            if let Some(file) = &self.file {
                file.read_exact_at(&mut bytes, *part).map_err(&failed)?;
            }
            for ns in bytes.chunks_exact(8) {
                each(u64::from_le_bytes(ns.try_into().unwrap_or_default()))?;
            }
        }
        list.held.iter().try_for_each(|ns| each(*ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_keep_their_order() {
        let mut durations = Durations::default();
        for number in 0..3000_u64 {
            durations.add((number % 3) as usize, 7, number);
        }
        for process in 0..3 {
            let mut found = Vec::new();
            durations
                .each(process, 7, |ns| {
                    found.push(ns);
                    Ok(())
                })
                .unwrap();
            let expected: Vec<u64> = (0..3000).filter(|number| number % 3 == process as u64).collect();
            assert_eq!((found, durations.number(process, 7)), (expected, 1000));
        }
    }
}
