//! Records that are not as they should be: the word `corrupt` of the options.

use crate::layout::{self, Field, kind};
use crate::options::Corruption;
use crate::release::Release;
use crate::{process, walk};

/// How much longer a kernel's record is with `corrupt=long`, in bytes.
pub(crate) const LONGER: usize = 16;
/// A kind that no release has.
const UNKNOWN: u32 = 4_000;
/// How much of its last record a buffer lacks, in bytes.
const CUT: usize = 8;
/// Fields that hold times, and fields that point to names, in CUPTI's headers.
const TIMES: [&str; 3] = ["start", "end", "timestamp"];
const NAMES: [&str; 2] = ["name", "domain"];

/// The size of a record of this kind, whose release has this size.
pub(crate) fn size(of: u32, size: usize) -> usize {
    match process::options().corrupt {
        Some(Corruption::Short) if is_kernel(of) => layout::kernel::GRAPH_NODE_ID.offset,
        Some(Corruption::Long) if is_kernel(of) => size + LONGER,
        _ => size,
    }
}

fn is_kernel(of: u32) -> bool {
    matches!(of, kind::KERNEL | kind::CONCURRENT_KERNEL)
}

/// Spoils the records of a buffer that is returned. Returns how many of its bytes count.
pub(crate) fn spoil(bytes: &mut [u8], release: Release) -> usize {
    let Some(corruption) = process::options().corrupt else { return bytes.len() };
    let step = |last: &Option<usize>| walk::next(bytes, *last, release).ok().map(Some);
    let records: Vec<usize> = std::iter::successors(step(&None), step).flatten().collect();
    match (corruption, records.last()) {
        (Corruption::Kind, Some(last)) => bytes[*last..][..4].copy_from_slice(&UNKNOWN.to_ne_bytes()),
        (Corruption::Cut, Some(_)) => return bytes.len() - CUT,
        (Corruption::Times, _) => {
            let random = |field: &Field| process::random().to_ne_bytes()[..field.size].to_vec();
            overwrite(bytes, &records, &TIMES, random);
        }
        (Corruption::Names, _) => overwrite(bytes, &records, &NAMES, |field| vec![0; field.size]),
        _ => {}
    }
    bytes.len()
}

/// Puts other bytes into the fields with these names.
fn overwrite(bytes: &mut [u8], records: &[usize], names: &[&str], value: impl Fn(&Field) -> Vec<u8>) {
    for &at in records {
        let of = u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let fields = layout::of(of).map_or(&[][..], |layout| layout.fields);
        for field in fields.iter().filter(|field| names.contains(&field.name)) {
            bytes[at + field.offset..][..field.size].copy_from_slice(&value(field));
        }
    }
}
