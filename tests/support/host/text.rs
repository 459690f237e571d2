//! C strings as NCCL passes them.

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// A C string whose content can change at the same address. Its memory is never freed and always
/// ends with a NUL, so a plugin that keeps the address too long reads wrong text and nothing worse.
#[derive(Clone, Debug)]
pub struct Text(&'static [AtomicU8]);

impl Text {
    /// A text at an address that was never used before. It is cut off at a NUL.
    pub fn new(content: &[u8]) -> Text {
        let content = until_nul(content);
        let capacity = content.len().max(64);
        let padding = std::iter::repeat_n(&0, capacity + 1 - content.len());
        Text(Vec::leak(content.iter().chain(padding).map(|byte| AtomicU8::new(*byte)).collect()))
    }

    /// Its address, which stays valid.
    pub fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }

    /// The largest length of its content.
    pub fn capacity(&self) -> usize {
        self.0.len() - 1
    }

    /// Writes another content to the same address; what does not fit is cut off.
    pub fn overwrite(&self, content: &[u8]) {
        let padding = std::iter::repeat(&0);
        let content = until_nul(content).iter().chain(padding);
        for (place, byte) in self.0[..self.capacity()].iter().zip(content) {
            place.store(*byte, Ordering::Relaxed);
        }
    }
}

/// A C string with this content. Equal contents have the same address, like a constant in NCCL.
pub fn intern(content: &[u8]) -> *const c_char {
    static KNOWN: LazyLock<Mutex<HashMap<Vec<u8>, Text>>> = LazyLock::new(Mutex::default);
    let content = until_nul(content);
    let mut known = lock(&KNOWN);
    match known.get(content) {
        Some(text) => text.as_ptr(),
        None => known.entry(content.to_vec()).or_insert(Text::new(content)).as_ptr(),
    }
}

pub(super) fn text_at(address: *const c_char) -> String {
    if address.is_null() {
        return String::new();
    }
    // SAFETY: every caller passes the address of a C string, from the plugin or the loader, that
    // lives during this call.
    unsafe { CStr::from_ptr(address) }.to_string_lossy().into_owned()
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_an_address_and_fresh_ones_do_not() {
        assert_eq!(intern(b"AllReduce"), intern(b"AllReduce"));
        assert_ne!(intern(b"AllReduce"), intern(b"AllGather"));
        assert_ne!(Text::new(b"AllReduce").as_ptr(), Text::new(b"AllReduce").as_ptr());
    }

    #[test]
    fn a_text_changes_under_its_address() {
        let text = Text::new(b"AllReduce");
        text.overwrite(b"Send");
        assert_eq!(text_at(text.as_ptr()), "Send");
        text.overwrite(&[b'x'; 1000]);
        assert_eq!(text_at(text.as_ptr()).len(), 64);
    }
}
