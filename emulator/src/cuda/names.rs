//! Kernels' names.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex};

use super::threads::lock;

/// A name, for Rust and for C.
#[derive(Debug, Clone)]
pub(super) struct Name {
    text: Arc<str>,
    c_str: Arc<CStr>,
}

impl Name {
    fn new(text: &str) -> Name {
        // A name that contains a zero ends there.
        let c_str = CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default();
        Name { text: text.into(), c_str: c_str.into() }
    }

    pub(super) fn text(&self) -> Arc<str> {
        self.text.clone()
    }

    pub(super) fn c_str(&self) -> &CStr {
        &self.c_str
    }
}

impl std::ops::Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

/// The names seen so far.
#[derive(Default)]
pub(super) struct Names {
    /// By the address of the function.
    functions: Mutex<HashMap<usize, Name>>,
    /// The application's own kernels.
    kernels: Mutex<HashMap<String, Name>>,
}

impl Names {
    /// The name of the function at an address. `look` finds it the first time.
    pub(super) fn of_function(&self, address: usize, look: impl FnOnce() -> Option<String>) -> Name {
        if let Some(name) = lock(&self.functions).get(&address) {
            return name.clone();
        }
        let name = Name::new(&look().unwrap_or_else(|| format!("unknown kernel at {address:#x}")));
        lock(&self.functions).entry(address).or_insert(name).clone()
    }

    /// The application's kernel of a name, and an address that stands for its function.
    pub(super) fn of_kernel(&self, text: &str) -> (Name, usize) {
        let mut kernels = lock(&self.kernels);
        let name = kernels.entry(text.to_owned()).or_insert_with(|| Name::new(text)).clone();
        let address = name.c_str.as_ptr() as usize;
        (name, address)
    }
}
