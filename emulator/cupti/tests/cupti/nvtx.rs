//! Ranges and marks: the part of NVTX's side of its protocol that the tests need, and the
//! resulting records.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use emulated_cupti::layout::{kind, marker as m};

use crate::alone::alone;
use crate::consumer::{self, records};
use crate::host::WALL_AHEAD;
use crate::library::Cupti;

type Slot = AtomicPtr<c_void>;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Table {
    size: usize,
    get: unsafe extern "C" fn(u32, *mut *const *const Slot, *mut c_uint) -> c_int,
}

struct Places([*const Slot; 16]);

// SAFETY: the places are statics.
unsafe impl Sync for Places {}

static SLOTS: [Slot; 16] = [const { Slot::new(std::ptr::null_mut()) }; 16];
static PLACES: Places = Places({
    let mut places = [std::ptr::null(); 16];
    let mut index = 1;
    while index < 16 {
        places[index] = &raw const SLOTS[index];
        index += 1;
    }
    places
});
static TABLE: Table = Table { size: size_of::<Table>(), get };

/// Every module has the same places, except the one for domains, which is empty.
unsafe extern "C" fn get(module: u32, table: *mut *const *const Slot, size: *mut c_uint) -> c_int {
    const NOWHERE: [*const Slot; 16] = [std::ptr::null(); 16];
    static EMPTY: Places = Places(NOWHERE);
    let places = if module == 1 { &PLACES } else { &EMPTY };
    // SAFETY: the library passes places for the results.
    unsafe {
        table.write(places.0.as_ptr());
        size.write(16);
    }
    1
}

unsafe extern "C" fn export(id: u32) -> *const c_void {
    if id == 1 { (&raw const TABLE).cast() } else { std::ptr::null() }
}

/// Attaches the library to this program.
pub(crate) fn attach(cupti: Cupti) {
    type Entry = unsafe extern "C" fn(unsafe extern "C" fn(u32) -> *const c_void) -> c_int;
    let entry = cupti.symbol("InitializeInjectionNvtx2");
    assert!(!entry.is_null());
    // SAFETY: NVTX's headers give the function this type.
    let attached = unsafe { std::mem::transmute::<*mut c_void, Entry>(entry)(export) };
    assert_eq!(attached, 1);
}

fn function(index: usize) -> *mut c_void {
    let function = SLOTS[index].load(Ordering::Relaxed);
    assert!(!function.is_null(), "{index} was put in");
    function
}

/// `nvtxMarkA`.
pub(crate) fn mark(text: &CStr) {
    // SAFETY: NVTX's headers give the function at this place this type.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char)>(function(2))(text.as_ptr()) }
}

/// `nvtxRangePushA`.
fn push(text: &CStr) -> c_int {
    // SAFETY: as above.
    unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> c_int>(function(9))(text.as_ptr())
    }
}

/// `nvtxRangePop`.
fn pop() -> c_int {
    // SAFETY: as above.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(function(11))() }
}

#[test]
fn ranges_and_marks() {
    alone("", || {
        let cupti = consumer::start(&[kind::MARKER]);
        attach(cupti);
        let before = crate::host::now();
        assert_eq!((push(c"outer"), push(c"inner")), (0, 1));
        mark(c"mark");
        assert_eq!((pop(), pop()), (1, 0));
        assert_eq!(pop(), -2, "nothing is open");
        let after = crate::host::now();
        cupti.flush(false);
        let records = records(cupti);
        let flags: Vec<u64> = records.iter().map(|record| record.get(m::FLAGS)).collect();
        assert_eq!(flags, [2, 2, 1, 4, 4]);
        let ids: Vec<u64> = records.iter().map(|record| record.get(m::ID)).collect();
        assert!(ids[3] == ids[1] && ids[4] == ids[0] && ids[0] != ids[1], "{ids:?}");
        assert_eq!(records[0].string(m::NAME), c"outer");
        assert_eq!((records[3].get(m::NAME), records[0].get(m::DOMAIN)), (0, 0));
        for record in &records {
            assert_eq!(record.get(m::OBJECT_KIND), 2);
            let at = record.get(m::TIMESTAMP) - WALL_AHEAD;
            assert!((before..=after).contains(&at), "{at}");
        }
    });
}
