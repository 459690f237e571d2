//! A profiler's side of the buffers: provides memory, keeps returned buffers, reads them.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;
use std::thread::ThreadId;

use emulated_cupti::layout::{self, Field, kind};

use crate::library::Cupti;

/// How buffers are provided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Supply {
    /// Their size in bytes.
    pub(crate) size: usize,
    /// The most records in one, or 0.
    pub(crate) most: usize,
    /// How many are left.
    pub(crate) left: usize,
}

static SUPPLY: Mutex<Supply> = Mutex::new(Supply { size: 64 << 10, most: 0, left: usize::MAX });
static RETURNED: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());
static REQUESTS: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

/// A returned buffer.
#[derive(Debug, Clone)]
pub(crate) struct Buffer {
    words: Vec<u64>,
    valid: usize,
    /// The thread that returned it.
    pub(crate) thread: ThreadId,
}

impl Buffer {
    /// Its valid bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: this many bytes were copied into the words.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.valid) }
    }
}

/// Changes how buffers are provided.
pub(crate) fn supply(change: impl FnOnce(&mut Supply)) {
    change(&mut SUPPLY.lock().expect("no test panics there"));
}

pub(crate) unsafe extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
    REQUESTS.lock().expect("no test panics there").push(std::thread::current().id());
    let mut supply = SUPPLY.lock().expect("no test panics there");
    let memory = if supply.left == 0 {
        std::ptr::null_mut()
    } else {
        supply.left -= 1;
        // Filled with values that must be gone afterwards, unless CUPTI clears it.
        Box::leak(vec![0xabab_abab_abab_abab_u64; supply.size / 8].into_boxed_slice()).as_mut_ptr().cast()
    };
    // SAFETY: places provided by CUPTI.
    unsafe {
        buffer.write(memory);
        size.write(supply.size);
        most.write(supply.most);
    }
}

pub(crate) unsafe extern "C" fn complete(_: *mut c_void, _: u32, buffer: *mut u8, size: usize, valid: usize) {
    let mut words = vec![0u64; size / 8];
    // SAFETY: memory of this size, from `request`.
    unsafe { std::ptr::copy_nonoverlapping(buffer, words.as_mut_ptr().cast(), size) };
    let buffer = Buffer { words, valid, thread: std::thread::current().id() };
    RETURNED.lock().expect("no test panics there").push(buffer);
}

/// The buffers that were returned since the last call.
pub(crate) fn take() -> Vec<Buffer> {
    std::mem::take(&mut RETURNED.lock().expect("no test panics there"))
}

/// The threads on which buffers were requested since the last call.
pub(crate) fn take_requests() -> Vec<ThreadId> {
    std::mem::take(&mut REQUESTS.lock().expect("no test panics there"))
}

/// A record.
#[derive(Debug, Clone)]
pub(crate) struct Record(Vec<u8>);

impl Record {
    /// A field of at most eight bytes.
    pub(crate) fn get(&self, field: Field) -> u64 {
        let mut bytes = [0; 8];
        bytes[..field.size].copy_from_slice(&self.0[field.offset..field.offset + field.size]);
        u64::from_ne_bytes(bytes)
    }

    /// The bytes of a field.
    pub(crate) fn bytes(&self, field: Field) -> &[u8] {
        &self.0[field.offset..field.offset + field.size]
    }

    /// The string that a field points to.
    pub(crate) fn string(&self, field: Field) -> &'static CStr {
        // SAFETY: CUPTI's strings live as long as the process.
        unsafe { CStr::from_ptr(self.get(field) as *const c_char) }
    }

    /// Its kind.
    pub(crate) fn kind(&self) -> u32 {
        u32::from_ne_bytes(*self.0.first_chunk().expect("a record has a kind"))
    }

    /// Its size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.0.len()
    }
}

/// The records of a buffer, according to the library's walker.
pub(crate) fn read(cupti: Cupti, buffer: &Buffer) -> Vec<Record> {
    const END: u32 = 12;
    let bytes = buffer.bytes();
    let (offsets, code) = cupti.walk(bytes);
    assert_eq!(code, END, "the walk ends without an error");
    let ends = offsets.iter().skip(1).copied().chain([bytes.len()]);
    offsets.iter().zip(ends).map(|(start, end)| Record(bytes[*start..end].to_vec())).collect()
}

/// All records that were returned since the last call, except those of CUPTI's own overhead.
pub(crate) fn records(cupti: Cupti) -> Vec<Record> {
    let all = take().iter().flat_map(|buffer| read(cupti, buffer)).collect::<Vec<_>>();
    all.into_iter().filter(|record| record.kind() != kind::OVERHEAD).collect()
}

/// The correlation ids of kernels' records.
pub(crate) fn correlations(records: &[Record]) -> Vec<u64> {
    records.iter().map(|record| record.get(layout::kernel::CORRELATION_ID)).collect()
}

/// Opens the emulated CUPTI, subscribes and enables kinds, using this module's functions for
/// buffers.
pub(crate) fn start(kinds: &[u32]) -> Cupti {
    let cupti = Cupti::emulated();
    cupti.subscribe_deaf();
    cupti.register(request, complete);
    cupti.enable(kinds);
    cupti
}
