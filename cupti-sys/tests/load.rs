//! Finding a copy of libcupti. The copies themselves are in `real.rs`; here there is none.

use std::ffi::CStr;

use cupti_sys::load::{self, Cupti, LoadError, Reason, SONAMES};

/// A library that every process here has, and that is not CUPTI.
const LIBC: &CStr = c"libc.so.6";

#[test]
fn a_library_that_is_not_mapped_is_named() {
    let error = Cupti::mapped(&SONAMES).unwrap_err();
    assert_eq!(error.to_string(), "libcupti.so.13: not mapped; libcupti.so.12: not mapped");
    assert_eq!(error.tried[0].name.as_c_str(), SONAMES[0]);
    assert_eq!(error.tried[0].reason, Reason::NotMapped);
    assert!(load::mapped_copies().is_empty());
}

#[test]
fn a_library_that_cannot_be_opened_is_reported_in_the_linkers_words() {
    // SAFETY: nothing is there to be opened.
    let error = unsafe { Cupti::open(&[c"/nowhere/libcupti.so.13"]) }.unwrap_err();
    let [tried] = error.tried.as_slice() else { panic!("{error}") };
    assert!(matches!(&tried.reason, Reason::Refused(words) if words.contains("No such file")), "{error}");
}

#[test]
fn a_library_that_is_not_cupti_lacks_its_functions() {
    let error = Cupti::mapped(&[LIBC]).unwrap_err();
    assert_eq!(error.to_string(), "libc.so.6: lacks cuptiGetVersion");
}

#[test]
fn an_empty_list_of_names_does_not_panic() {
    assert_eq!(Cupti::mapped(&[]).unwrap_err(), LoadError { tried: Vec::new() });
}

#[test]
fn a_mapped_library_is_found_by_its_soname() {
    assert!(load::is_mapped(LIBC));
    assert!(!load::is_mapped(c"libnobody.so.1"));
}
