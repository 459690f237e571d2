//! Without a machine the library returns what the real one does on a host without a driver.

use std::ffi::c_void;

use crate::alone::{real, run_with};
use crate::cupti;
use crate::host;
use crate::library::Cupti;
use crate::wheels::WHEELS;

/// Calls everything that a profiler may call first, and prints the results.
fn ask(cupti: Cupti) {
    let null = std::ptr::null_mut::<c_void>();
    let mut place = [0u64; 8];
    let out = place.as_mut_ptr();
    let has = |name: &str| !cupti.symbol(name).is_null();
    macro_rules! ask {
        ($name:ident ($($type:ty = $value:expr),*)) => {
            if has(stringify!($name)) {
                let code = cupti!(cupti, $name($($type = $value),*));
                eprintln!("{}: {code}", stringify!($name($($value),*)).replace('\n', " "));
            }
        };
    }
    unsafe extern "C" fn nothing() {}
    let function = nothing as *const c_void;
    extern "C" fn seven() -> u64 {
        7
    }
    ask!(cuptiGetVersion(*mut u64 = out));
    eprintln!("version {}", place[0] as u32);
    let out = place.as_mut_ptr();
    ask!(cuptiGetVersion(*mut c_void = null));
    ask!(cuptiGetTimestamp(*mut u64 = out));
    ask!(cuptiGetTimestamp(*mut c_void = null));
    ask!(cuptiSubscribe(*mut u64 = out, *const c_void = function, *mut c_void = null));
    ask!(cuptiSubscribe(*mut c_void = null, *const c_void = function, *mut c_void = null));
    ask!(cuptiUnsubscribe(*mut c_void = null));
    ask!(cuptiActivityRegisterCallbacks(*const c_void = function, *const c_void = function));
    ask!(cuptiActivityRegisterCallbacks(*mut c_void = null, *const c_void = function));
    ask!(cuptiActivityRegisterTimestampCallback(extern "C" fn() -> u64 = seven));
    ask!(cuptiActivityRegisterTimestampCallback(*mut c_void = null));
    ask!(cuptiActivityEnable(u32 = 10));
    ask!(cuptiActivityEnable(u32 = 500));
    ask!(cuptiActivityEnableAndDump(u32 = 8));
    ask!(cuptiActivityDisable(u32 = 10));
    ask!(cuptiActivityFlushAll(u32 = 0));
    ask!(cuptiActivityFlushAll(u32 = 1));
    ask!(cuptiActivityGetNumDroppedRecords(*mut c_void = null, u32 = 0, *mut u64 = out));
    ask!(cuptiActivityGetNumDroppedRecords(*mut c_void = null, u32 = 0, *mut c_void = null));
    ask!(cuptiActivityPushExternalCorrelationId(u32 = 5, u64 = 1));
    ask!(cuptiActivityPushExternalCorrelationId(u32 = 0, u64 = 1));
    ask!(cuptiActivityPopExternalCorrelationId(u32 = 5, *mut u64 = out));
    ask!(cuptiActivitySetAttribute(u32 = 5, *mut u64 = out, *mut u64 = out));
    ask!(cuptiSetThreadIdType(u32 = 1));
    ask!(cuptiGetThreadIdType(*mut u64 = out));
    ask!(cuptiGetResultString(u32 = 0, *mut u64 = out));
    ask!(cuptiGetResultString(u32 = 500, *mut u64 = out));
    ask!(cuptiGetResultString(u32 = 0, *mut c_void = null));
    place = [0; 8];
    let out = place.as_mut_ptr();
    ask!(cuptiActivityGetNextRecord(*mut c_void = null, usize = 0, *mut u64 = out));
    ask!(cuptiActivityGetNextRecord(*mut u64 = out, usize = 64, *mut c_void = null));
    ask!(cuptiGetGraphNodeId(*mut c_void = null, *mut u64 = out));
    ask!(cuptiEnableCallback(u32 = 1, *mut c_void = null, u32 = 1, u32 = 307));
    ask!(cuptiActivityEnableDriverApi(u32 = 307, u8 = 1));
    ask!(cuptiSubscribe_v2(*mut u64 = out, *const c_void = function, *mut c_void = null, *mut c_void = null));
    ask!(cuptiActivityRegisterCallbacks_v2(*mut c_void = null, *const c_void = function, *const c_void = function));
    ask!(cuptiActivityEnable_v2(*mut c_void = null, u32 = 10, *mut c_void = null));
    ask!(cuptiActivityDisable_v2(*mut c_void = null, u32 = 10, *mut c_void = null));
    ask!(cuptiActivitySetAttribute_v2(*mut c_void = null, u32 = 21, *mut u64 = out, *mut u64 = out));
    ask!(cuptiActivityGetNextRecord_v2(*mut c_void = null, *mut u64 = out, usize = 64, *mut u64 = out));
    ask!(cuptiActivityGetNumDroppedRecords_v2(*mut c_void = null, *mut c_void = null, u32 = 0, *mut u64 = out));
    ask!(cuptiActivityPushExternalCorrelationId_v2(*mut c_void = null, u32 = 5, u64 = 1));
    ask!(cuptiActivityPopExternalCorrelationId_v2(*mut c_void = null, u32 = 5, *mut u64 = out));
    ask!(cuptiGetTimestamp_v2(*mut c_void = null, *mut u64 = out));
    ask!(cuptiActivityGetStructSize(u32 = 10, u32 = 0, *mut u64 = out));
}

#[test]
fn results_match_the_real_library() {
    for wheel in &WHEELS {
        let Some(unpacked) = wheel.unpacked() else { continue };
        let options = format!("release={}", wheel.release.name());
        let answers = [None, Some(unpacked.library.as_path())].map(|library| {
            let ended = run_with(&options, library, || {
                host::leave();
                ask(real().unwrap_or_else(Cupti::emulated));
            });
            ended.succeeded(&options);
            ended.stderr
        });
        let [ours, real] = answers;
        assert!(ours.lines().count() > 30);
        for (ours, real) in ours.lines().zip(real.lines()) {
            assert_eq!(ours, real, "{options}");
        }
        assert_eq!(ours.lines().count(), real.lines().count());
    }
}
