//! Steps through a returned buffer.
//!
//! It does the same as the real walkers of 12.0, 12.9, 13.0 and 13.1, which work without a driver:
//! a record that the valid bytes do not hold completely is the end of the buffer, whatever its
//! kind, and a kind that the release does not know is an error.

use crate::release::Release;
use crate::{corrupt, layout, result};

/// The offset of the record after the one at `previous`, or of the first one.
///
/// # Errors
///
/// `MAX_LIMIT_REACHED` at the end; the release's error for a record of unknown kind.
pub fn next(valid: &[u8], previous: Option<usize>, release: Release) -> Result<usize, u32> {
    let offset = match previous {
        None => 0,
        Some(offset) => offset + size_at(valid, offset, release)?,
    };
    let size = size_at(valid, offset, release)?;
    if offset + size <= valid.len() { Ok(offset) } else { Err(result::MAX_LIMIT_REACHED) }
}

/// The size of the record at an offset.
fn size_at(valid: &[u8], offset: usize, release: Release) -> Result<usize, u32> {
    let bytes = valid.get(offset..).and_then(|rest| rest.first_chunk::<4>()).ok_or(result::MAX_LIMIT_REACHED)?;
    let kind = u32::from_ne_bytes(*bytes);
    layout::size(kind, release).map(|size| corrupt::size(kind, size)).ok_or(release.unknown_record())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::kind;

    #[test]
    fn records_follow_each_other_by_their_size() {
        let mut buffer = vec![0; 208 + 40 + 24];
        buffer[0] = kind::CONCURRENT_KERNEL as u8;
        buffer[208] = kind::DRIVER as u8;
        buffer[248] = kind::STREAM as u8;
        let step = |previous, valid| next(&buffer[..valid], previous, Release::V12_0);
        assert_eq!(step(None, 272), Ok(0));
        assert_eq!(step(Some(0), 272), Ok(208));
        assert_eq!(step(Some(208), 272), Ok(248));
        assert_eq!(step(Some(248), 272), Err(result::MAX_LIMIT_REACHED));
        assert_eq!(step(Some(208), 271), Err(result::MAX_LIMIT_REACHED), "the last one is not whole");
        assert_eq!(step(None, 0), Err(result::MAX_LIMIT_REACHED));
    }

    #[test]
    fn an_unknown_kind_ends_the_walk() {
        let buffer = [99, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(next(&buffer, None, Release::V12_0), Err(result::UNKNOWN));
        assert_eq!(next(&buffer, None, Release::V13_0), Err(result::INVALID_KIND));
    }
}
