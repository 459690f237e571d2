//! Callbacks of calls and resources, and who receives them.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;

use observe::ResourceKind;

use crate::alone::{alone, last_option};
use crate::consumer;
use crate::cupti;
use crate::host;
use crate::library::{Callback, Cupti, Handle};

const DRIVER: u32 = 1;
const RUNTIME: u32 = 2;
const RESOURCE: u32 = 3;

/// `CUpti_CallbackData`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CallbackData {
    pub(crate) site: u32,
    pub(crate) function_name: *const c_char,
    pub(crate) function_params: *const c_void,
    pub(crate) function_return_value: *const i32,
    pub(crate) symbol_name: *const c_char,
    pub(crate) context: *mut c_void,
    pub(crate) context_id: u32,
    pub(crate) correlation_data: *mut u64,
    pub(crate) correlation: u32,
}

const _: () = assert!(size_of::<CallbackData>() == 72);

/// What a callback received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Seen {
    domain: u32,
    id: u32,
    site: u32,
    function: String,
    symbol: Option<String>,
    correlation: u32,
    /// The word between entry and exit, as found. Each callback adds one to it.
    word: u64,
    returned: Option<i32>,
}

static SEEN: Mutex<Vec<Seen>> = Mutex::new(Vec::new());

fn text(string: *const c_char) -> Option<String> {
    // SAFETY: null or a C string from CUPTI.
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) }.to_str().expect("names are ASCII").to_owned())
}

unsafe extern "C" fn see(user: *mut c_void, domain: u32, id: u32, data: *const c_void) {
    assert_eq!(user as usize, 0xbeef);
    if domain == RESOURCE {
        SEEN.lock().expect("no test panics there").push(Seen { domain, id, ..Seen::default() });
        return;
    }
    // SAFETY: data of a call, valid for the length of the callback.
    let data = unsafe { *data.cast::<CallbackData>() };
    assert_eq!((data.context as usize, data.context_id), (host::CONTEXT, host::CONTEXT_ID));
    assert_eq!(data.function_params as usize, 0x7000, "the parameters are the machine's");
    // SAFETY: CUPTI's word for this call, and the call's result at its end.
    let (word, returned) = unsafe {
        let word = data.correlation_data.read();
        data.correlation_data.write(word + 1);
        (word, data.function_return_value.as_ref().copied())
    };
    SEEN.lock().expect("no test panics there").push(Seen {
        domain,
        id,
        site: data.site,
        function: text(data.function_name).expect("a function has a name"),
        symbol: text(data.symbol_name),
        correlation: data.correlation,
        word,
        returned,
    });
}

fn seen() -> Vec<Seen> {
    std::mem::take(&mut SEEN.lock().expect("no test panics there"))
}

fn subscribe(cupti: Cupti) -> Handle {
    cupti.subscribe(see, 0xbeef as *mut c_void).expect("nobody has subscribed")
}

#[test]
fn a_launch_has_callbacks_at_both_ends() {
    alone("", || {
        let cupti = Cupti::emulated();
        let handle = subscribe(cupti);
        cupti.call_back(handle, DRIVER, 652);
        cupti.call_back(handle, RUNTIME, 430);
        let correlation = host::call(c"cudaLaunchKernelExC", None, |correlation| {
            host::call_as(correlation, c"cuLaunchKernelEx", Some(host::KERNEL), |_| ());
            host::call(c"cuLaunchKernel", Some(host::KERNEL), |_| ());
            correlation
        });
        let symbol = Some(host::KERNEL.to_str().expect("ASCII").to_owned());
        let runtime = |site, word, returned| Seen {
            domain: RUNTIME,
            id: 430,
            site,
            function: "cudaLaunchKernelExC".to_owned(),
            symbol: None,
            correlation,
            word,
            returned,
        };
        let driver = |site, word, returned| Seen {
            domain: DRIVER,
            id: 652,
            function: "cuLaunchKernelEx".to_owned(),
            symbol: symbol.clone(),
            ..runtime(site, word, returned)
        };
        // The nested call shares the outer one's id, but not its word; nobody asked for the third
        // call's function.
        let expected = [runtime(0, 0, None), driver(0, 0, None), driver(1, 1, Some(0)), runtime(1, 1, Some(0))];
        assert_eq!(seen(), expected);
    });
}

#[test]
fn a_callback_may_call_cupti_and_cuda() {
    static LIBRARY: Mutex<Option<Cupti>> = Mutex::new(None);
    unsafe extern "C" fn busy(_: *mut c_void, _: u32, _: u32, data: *const c_void) {
        // SAFETY: data of a call, valid for the length of the callback.
        let data = unsafe { *data.cast::<CallbackData>() };
        let cupti = LIBRARY.lock().expect("no test panics there").expect("it was set");
        if data.site == 0 {
            host::call(c"cudaGetDevice", None, |_| ());
            assert_eq!(cupti!(cupti, cuptiActivityPushExternalCorrelationId(u32 = 5, u64 = 1)), 0);
        } else {
            cupti.flush(false);
        }
    }
    alone("", || {
        let cupti = Cupti::emulated();
        *LIBRARY.lock().expect("no test panics there") = Some(cupti);
        let handle = cupti.subscribe(busy, std::ptr::null_mut()).expect("nobody has subscribed");
        cupti.register(consumer::request, consumer::complete);
        cupti.enable(&[emulated_cupti::layout::kind::DRIVER]);
        cupti.call_back(handle, DRIVER, 652);
        host::call(c"cuLaunchKernelEx", Some(host::KERNEL), |_| ());
        cupti.flush(false);
        assert_eq!(consumer::records(cupti).len(), 1);
    });
}

#[test]
fn callbacks_are_chosen_by_id_or_domain_and_end_with_the_subscription() {
    alone("", || {
        let cupti = Cupti::emulated();
        let handle = subscribe(cupti);
        let calls = || {
            host::call(c"cuLaunchKernelEx", None, |_| ());
            host::call(c"cudaFree", None, |_| ());
            host::tell(&host::resource(ResourceKind::ContextCreated));
            seen().iter().map(|seen| (seen.domain, seen.id)).collect::<Vec<_>>()
        };
        assert!(calls().is_empty(), "a subscription alone calls nobody back");
        assert_eq!(cupti!(cupti, cuptiEnableDomain(u32 = 1, Handle = handle, u32 = RUNTIME)), 0);
        assert_eq!(calls(), [(RUNTIME, 22), (RUNTIME, 22)]);
        assert_eq!(cupti!(cupti, cuptiEnableDomain(u32 = 0, Handle = handle, u32 = RUNTIME)), 0);
        assert!(calls().is_empty());
        cupti.call_back(handle, DRIVER, 652);
        assert_eq!(calls(), [(DRIVER, 652), (DRIVER, 652)]);
        let wrong = cupti!(cupti, cuptiEnableCallback(u32 = 1, Handle = handle, u32 = DRIVER, u32 = 5000));
        assert_eq!(wrong, 1, "no such function");
        assert_eq!(cupti!(cupti, cuptiUnsubscribe(Handle = handle)), 0);
        assert!(calls().is_empty());
        assert_eq!(cupti!(cupti, cuptiUnsubscribe(Handle = handle)), 1);
        let again = subscribe(cupti);
        assert!(calls().is_empty(), "a new subscriber starts with nothing");
        assert_ne!(again, handle, "callbacks of the old one may still run");
    });
}

/// `CUpti_SubscriberParams`.
#[repr(C)]
pub(crate) struct Params {
    pub(crate) size: usize,
    pub(crate) name: *const c_char,
    pub(crate) old_name: *mut c_char,
    pub(crate) old_name_size: usize,
    pub(crate) allow_multiple: u8,
}

pub(crate) fn subscribe_v2(cupti: Cupti, params: &mut Params) -> (u32, Handle) {
    let mut handle = std::ptr::null_mut();
    let code = cupti!(
        cupti,
        cuptiSubscribe_v2(
            *mut Handle = &raw mut handle, Callback = see, usize = 0xbeef, *mut Params = params
        )
    );
    (code, handle)
}

#[test]
fn there_is_one_subscriber_and_the_others_are_told_its_name() {
    for (release, size) in [("13.0", 32), ("13.1", 32), ("13.3", 40), ("13.5", 40)] {
        alone(&format!("release={release},seed={size}"), || {
            // The size comes from the options, because the body must not borrow from the parent.
            let size: usize = last_option();
            let cupti = Cupti::emulated();
            let mut old_name = [0x7f as c_char; 64];
            let mut params = Params {
                size: 72 - size,
                name: c"ncclscope".as_ptr(),
                old_name: old_name.as_mut_ptr(),
                old_name_size: 64,
                allow_multiple: 0,
            };
            assert_eq!(subscribe_v2(cupti, &mut params).0, 1, "the size must be the release's");
            params.size = size;
            let (code, handle) = subscribe_v2(cupti, &mut params);
            assert_eq!((code, old_name[0]), (0, 0x7f), "nobody was faster");
            assert_eq!(subscribe_v2(cupti, &mut params).0, 39);
            assert_eq!(text(old_name.as_ptr()).as_deref(), Some("CUPTI for ncclscope"));
            params.old_name_size = 8;
            assert_eq!(subscribe_v2(cupti, &mut params).0, 39);
            assert_eq!(text(old_name.as_ptr()).as_deref(), Some("CUPTI f"), "what does not fit is cut");
            assert_eq!(cupti.subscribe(see, std::ptr::null_mut()), Err(39));
            assert_eq!(cupti!(cupti, cuptiUnsubscribe(Handle = handle)), 0);
            assert!(cupti.subscribe(see, std::ptr::null_mut()).is_ok());
        });
    }
}

#[test]
fn a_v2_subscriber_must_use_v2_calls() {
    alone("release=13.3", || {
        let cupti = Cupti::emulated();
        let mut params = Params {
            size: 40,
            name: c"ncclscope".as_ptr(),
            old_name: std::ptr::null_mut(),
            old_name_size: 0,
            allow_multiple: 0,
        };
        let (code, handle) = subscribe_v2(cupti, &mut params);
        assert_eq!(code, 0);
        let mut time = 0;
        assert_eq!(cupti!(cupti, cuptiGetTimestamp(*mut u64 = &raw mut time)), 14);
        assert_eq!(cupti!(cupti, cuptiActivityPushExternalCorrelationId(u32 = 5, u64 = 1)), 14);
        assert_eq!(cupti!(cupti, cuptiGetTimestamp_v2(Handle = handle, *mut u64 = &raw mut time)), 0);
        assert!(time > host::WALL_AHEAD);
        let push = cupti!(cupti, cuptiActivityPushExternalCorrelationId_v2(Handle = handle, u32 = 5, u64 = 1));
        assert_eq!(push, 0);
        let enable = cupti!(cupti, cuptiActivityEnable_v2(Handle = handle, u32 = 10, usize = 0));
        assert_eq!(enable, 0);
    });
}

#[test]
fn results_have_names() {
    alone("release=13.1", || {
        let cupti = Cupti::emulated();
        assert_eq!(cupti.result_string(39), (0, Some(c"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")));
        assert_eq!(cupti.result_string(999), (0, Some(c"CUPTI_ERROR_UNKNOWN")));
        assert_eq!(cupti.result_string(500), (1, Some(c"<unknown>")));
    });
}
