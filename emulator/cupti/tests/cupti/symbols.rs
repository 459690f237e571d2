//! The names under which the library and its functions are found.

use std::ffi::CString;
use std::path::Path;
use std::process::Command;

use emulated_cupti::place;
use emulated_cupti::release::Release;

use crate::alone::{alone, last_option, release, run};
use crate::library::{Cupti, built};
use crate::wheels::WHEELS;

#[test]
fn functions_exist_from_their_first_release_on() {
    for (release, has) in [
        ("12.0", [false, false, false, false]),
        ("12.9", [true, false, false, false]),
        ("13.0", [true, true, false, false]),
        ("13.1", [true, true, false, false]),
        ("13.3", [true, true, true, true]),
        ("13.5", [true, true, true, true]),
    ] {
        alone(&format!("release={release},seed={}", has.iter().filter(|has| **has).count()), || {
            let count: usize = last_option();
            let cupti = Cupti::emulated();
            let names = [
                "cuptiActivityEnableDriverApi",
                "cuptiSubscribe_v2",
                "cuptiActivityGetStructSize",
                "cuptiActivityGetNextRecord_v2",
            ];
            let found = names.map(|name| !cupti.symbol(name).is_null());
            assert_eq!(found.iter().filter(|found| **found).count(), count, "{found:?}");
            assert!(found.is_sorted_by(|a, b| a >= b), "{found:?}");
        });
    }
}

/// The real libraries show which functions a release has.
#[test]
fn no_function_exists_that_the_real_library_lacks() {
    for wheel in &WHEELS {
        let Some(unpacked) = wheel.unpacked() else { continue };
        let options = format!("release={}", wheel.release.name());
        let ended = run(&options, || {
            let cupti = Cupti::emulated();
            for name in functions(&built()).into_iter().filter(|name| !cupti.symbol(name).is_null()) {
                eprintln!("has {name}");
            }
        });
        let real = functions(&unpacked.library);
        let found: Vec<&str> = ended.stderr.lines().filter_map(|line| line.strip_prefix("has ")).collect();
        let expected = functions(&built()).into_iter().filter(|name| real.contains(name)).collect::<Vec<_>>();
        assert_eq!(found, expected, "{options}");
    }
}

/// CUPTI's functions that a library exports.
fn functions(library: &Path) -> Vec<String> {
    let output =
        Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("binutils are installed");
    let text = String::from_utf8(output.stdout).expect("names are ASCII");
    let names = text.lines().filter_map(|line| line.split_whitespace().nth(2));
    let names = names.map(|name| name.split('@').next().expect("split gives one").to_owned());
    names.filter(|name| name.starts_with("cupti")).collect()
}

#[test]
fn the_library_is_found_by_the_name_of_its_release() {
    for options in ["release=12.9", "release=13.3"] {
        alone(options, || {
            let release = release();
            let folder = std::env::temp_dir().join(format!("emulated-cupti-{}", std::process::id()));
            std::fs::create_dir(&folder).expect("a temporary folder can be made");
            let path = place(&built(), &folder, release).expect("the library can be copied");
            Cupti::open(&path);
            let found = |name: &str| {
                let name = CString::new(name).expect("a name has no zero");
                // SAFETY: a C string, and no library is loaded.
                !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) }.is_null()
            };
            assert!(found(release.soname()));
            let other = if release < Release::V13_0 { "libcupti.so.13" } else { "libcupti.so.12" };
            assert!(!found(other));
            std::fs::remove_dir_all(&folder).expect("it is ours");
        });
    }
}
