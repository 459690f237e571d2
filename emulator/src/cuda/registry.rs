//! Handles: the values by which libnccl and the job name an object.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, PoisonError, RwLock};

use super::Error;

/// The living objects of one kind, by handle. A handle is the object's address, as CUDA's is, but
/// nobody reads through it: a stale or made-up handle gives an error.
pub(super) struct Registry<T> {
    objects: RwLock<HashMap<usize, Arc<T>>>,
}

impl<T> Default for Registry<T> {
    fn default() -> Registry<T> {
        Registry { objects: RwLock::default() }
    }
}

/// An object's handle.
pub(super) fn handle<T>(object: &Arc<T>) -> *mut c_void {
    Arc::as_ptr(object).cast_mut().cast()
}

impl<T> Registry<T> {
    /// Registers the object.
    pub(super) fn insert(&self, object: Arc<T>) -> *mut c_void {
        let handle = handle(&object);
        self.objects.write().unwrap_or_else(PoisonError::into_inner).insert(handle as usize, object);
        handle
    }

    /// The object of a handle.
    pub(super) fn get(&self, handle: *mut c_void) -> Result<Arc<T>, Error> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(&(handle as usize)).cloned().ok_or(Error::InvalidResourceHandle)
    }

    /// Forgets a handle; the object lives as long as queued work needs it.
    pub(super) fn remove(&self, handle: *mut c_void) -> Result<Arc<T>, Error> {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        objects.remove(&(handle as usize)).ok_or(Error::InvalidResourceHandle)
    }

    /// All objects.
    pub(super) fn all(&self) -> Vec<Arc<T>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
