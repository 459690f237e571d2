//! A made-up CUPTI in this process, which writes down how it is called.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cupti_sys::bindings as cupti;
use cupti_sys::records::{self, Own, Table};

use crate::cupti::callbacks;
use crate::sys;

/// How the made-up CUPTI behaves, and what it saw.
#[derive(Default)]
pub(super) struct Fake {
    pub(super) calls: Vec<String>,
    /// What functions answer, where not success; with an argument, where it matters.
    pub(super) answers: HashMap<String, u32>,
    pub(super) version: u32,
    /// What the next flush returns.
    pub(super) records: Vec<u8>,
    pub(super) dropped: usize,
    pub(super) request: cupti::CUpti_BuffersCallbackRequestFunc,
    pub(super) complete: cupti::CUpti_BuffersCallbackCompleteFunc,
    pub(super) thread_ids: u32,
    /// The numbers of nodes by handle, where they differ from it.
    pub(super) nodes: HashMap<u64, u64>,
    pub(super) clock: cupti::CUpti_TimestampCallbackFunc,
    /// The call in which it reports a fatal failure of its own.
    pub(super) fails_in: Option<&'static str>,
}

static FAKE: Mutex<Option<Fake>> = Mutex::new(None);
/// Makes a flush hang until it is set to false.
pub(super) static HANG: AtomicBool = AtomicBool::new(false);
/// One test at a time: a process has one CUPTI.
static ONE: Mutex<()> = Mutex::new(());

pub(super) fn fake<T>(with: impl FnOnce(&mut Fake) -> T) -> T {
    with(FAKE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// Notes a call and says what to answer.
pub(super) fn called(call: String) -> u32 {
    let (code, fails) = fake(|fake| {
        let name = call.split('(').next().unwrap_or_default().to_owned();
        let code = fake.answers.get(&call).or_else(|| fake.answers.get(&name)).copied().unwrap_or(0);
        let fails = fake.fails_in.take_if(|place| **place == *call).is_some();
        fake.calls.push(call);
        (code, fails)
    });
    if fails {
        let notification = cupti::CUpti_StateData__bindgen_ty_1__bindgen_ty_1 { result: 35, message: std::ptr::null() };
        let state = cupti::CUpti_StateData__bindgen_ty_1 { notification };
        event(6, 1, &cupti::CUpti_StateData { __bindgen_anon_1: state });
    }
    code
}

/// Calls the callback as CUPTI does.
pub(super) fn event<T>(domain: u32, id: u32, data: &T) {
    // SAFETY: the structure that belongs to the domain and the id.
    unsafe { callbacks::on_event(std::ptr::null_mut(), domain, id, std::ptr::from_ref(data).cast()) };
}

/// The functions, of which most only note that they were called.
mod functions {
    use super::*;
    use cupti_sys::bindings::{
        CUcontext, CUgraphNode, CUpti_Activity, CUpti_BuffersCallbackCompleteFunc, CUpti_BuffersCallbackRequestFunc,
        CUpti_CallbackFunc, CUpti_SubscriberHandle, CUpti_SubscriberParams, CUpti_TimestampCallbackFunc, CUptiResult,
    };

    /// Functions that only note that they were called, with what.
    macro_rules! only_noted {
        ($($name:ident($($argument:ident: $type:ty),*) = $text:literal)*) => {
            $(pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> CUptiResult {
                called(format!($text))
            })*
        };
    }

    only_noted! {
        push(kind: u32, id: u64) = "push({kind} {id})"
        pop(kind: u32, _id: *mut u64) = "pop({kind})"
        unsubscribe(_subscriber: CUpti_SubscriberHandle) = "unsubscribe"
        enable_callback(on: u32, _subscriber: CUpti_SubscriberHandle, domain: u32, id: u32) = "callback({on} {domain}/{id})"
        enable(kind: u32) = "enable({kind})"
        enable_and_dump(kind: u32) = "dump({kind})"
        disable(kind: u32) = "disable({kind})"
    }

    pub(super) unsafe extern "C" fn get_callback_name(domain: u32, id: u32, name: *mut *const c_char) -> CUptiResult {
        let known = match (domain, id) {
            (cupti::CUPTI_CB_DOMAIN_DRIVER_API, 652) => c"cuLaunchKernelEx",
            (cupti::CUPTI_CB_DOMAIN_RUNTIME_API, 211) => c"cudaLaunchKernel_v7000",
            _ => return called(format!("name({domain} {id})")) | cupti::CUPTI_ERROR_INVALID_PARAMETER,
        };
        // SAFETY: the caller's promise.
        unsafe { name.write(known.as_ptr()) };
        called(format!("name({domain} {id})"))
    }

    pub(super) unsafe extern "C" fn get_version(version: *mut u32) -> CUptiResult {
        // SAFETY: the caller's promise.
        unsafe { version.write(fake(|fake| fake.version)) };
        called("version".into())
    }

    pub(super) unsafe extern "C" fn get_timestamp(stamp: *mut u64) -> CUptiResult {
        let now = match fake(|fake| fake.clock) {
            // SAFETY: its registrar's promise.
            Some(clock) => unsafe { clock() },
            None => sys::realtime_ns(),
        };
        // SAFETY: the caller's promise.
        unsafe { stamp.write(now) };
        0
    }

    pub(super) unsafe extern "C" fn register_timestamp(clock: CUpti_TimestampCallbackFunc) -> CUptiResult {
        let code = called("clock".into());
        if code == 0 {
            fake(|fake| fake.clock = clock);
        }
        code
    }

    pub(super) unsafe extern "C" fn subscribe(
        handle: *mut CUpti_SubscriberHandle,
        _: CUpti_CallbackFunc,
        _: *mut c_void,
    ) -> CUptiResult {
        // SAFETY: the caller's promise.
        unsafe { handle.write(std::ptr::dangling_mut()) };
        called("subscribe".into())
    }

    pub(super) unsafe extern "C" fn subscribe_v2(
        _: *mut CUpti_SubscriberHandle,
        _: CUpti_CallbackFunc,
        _: *mut c_void,
        parameters: *mut CUpti_SubscriberParams,
    ) -> CUptiResult {
        // SAFETY: the caller's promise.
        let parameters = unsafe { &*parameters };
        let name = b"Kineto\0";
        assert!(parameters.oldSubscriberSize > name.len());
        // SAFETY: as above, and there is room.
        unsafe { parameters.oldSubscriberName.copy_from(name.as_ptr().cast(), name.len()) };
        called(format!("subscribe_v2({})", parameters.structSize))
    }

    pub(super) unsafe extern "C" fn set_thread_ids(kind: u32) -> CUptiResult {
        fake(|fake| fake.thread_ids = kind);
        called(format!("thread ids({kind})"))
    }

    pub(super) unsafe extern "C" fn get_thread_ids(kind: *mut u32) -> CUptiResult {
        // SAFETY: the caller's promise.
        unsafe { kind.write(fake(|fake| fake.thread_ids)) };
        0
    }

    pub(super) unsafe extern "C" fn get_graph_node(node: CUgraphNode, id: *mut u64) -> CUptiResult {
        let handle = node.addr() as u64;
        let number = fake(|fake| fake.nodes.get(&handle).copied()).unwrap_or(handle);
        // SAFETY: the caller's promise.
        unsafe { id.write(number) };
        0
    }

    pub(super) unsafe extern "C" fn register(
        request: CUpti_BuffersCallbackRequestFunc,
        complete: CUpti_BuffersCallbackCompleteFunc,
    ) -> CUptiResult {
        fake(|fake| (fake.request, fake.complete) = (request, complete));
        called("register".into())
    }

    pub(super) unsafe extern "C" fn flush_all(flag: u32) -> CUptiResult {
        let code = called(format!("flush({flag})"));
        if fake(|fake| fake.request.is_none()) {
            return cupti::CUPTI_ERROR_INVALID_OPERATION;
        }
        while HANG.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (records, request, complete) =
            fake(|fake| (std::mem::take(&mut fake.records), fake.request, fake.complete));
        if !records.is_empty() {
            let (mut buffer, mut size, mut most) = (std::ptr::null_mut(), 0, 1);
            // SAFETY: as CUPTI calls them.
            unsafe {
                request.unwrap()(&raw mut buffer, &raw mut size, &raw mut most);
                assert!(most == 0 && size >= records.len());
                buffer.copy_from_nonoverlapping(records.as_ptr(), records.len());
                complete.unwrap()(std::ptr::null_mut(), 0, buffer, size, records.len());
            }
        }
        code
    }

    pub(super) unsafe extern "C" fn next_record(
        buffer: *mut u8,
        valid: usize,
        record: *mut *mut CUpti_Activity,
    ) -> CUptiResult {
        // SAFETY: the caller's promise.
        let (bytes, at) = unsafe { (std::slice::from_raw_parts(buffer, valid), *record) };
        let at = (!at.is_null()).then(|| at.addr() - buffer.addr());
        match records::Walker::next(&mut Own, &Table::new(fake(|fake| fake.version)), bytes, at) {
            // SAFETY: as above.
            Ok(next) => unsafe { record.write(buffer.add(next).cast()) },
            Err(records::End::UnknownKind { .. }) => return cupti::CUPTI_ERROR_INVALID_KIND,
            Err(_) => return cupti::CUPTI_ERROR_MAX_LIMIT_REACHED,
        }
        0
    }

    pub(super) unsafe extern "C" fn dropped(_: CUcontext, _: u32, count: *mut usize) -> CUptiResult {
        // SAFETY: the caller's promise.
        unsafe { count.write(fake(|fake| std::mem::take(&mut fake.dropped))) };
        0
    }
}

pub(super) fn api() -> cupti_sys::Cupti {
    use functions as f;
    cupti_sys::Cupti {
        cuptiGetVersion: f::get_version,
        cuptiGetTimestamp: f::get_timestamp,
        cuptiSubscribe: f::subscribe,
        cuptiUnsubscribe: f::unsubscribe,
        cuptiEnableCallback: f::enable_callback,
        cuptiGetCallbackName: f::get_callback_name,
        cuptiSetThreadIdType: f::set_thread_ids,
        cuptiGetThreadIdType: f::get_thread_ids,
        cuptiGetGraphNodeId: f::get_graph_node,
        cuptiActivityRegisterCallbacks: f::register,
        cuptiActivityRegisterTimestampCallback: f::register_timestamp,
        cuptiActivityEnable: f::enable,
        cuptiActivityEnableAndDump: f::enable_and_dump,
        cuptiActivityDisable: f::disable,
        cuptiActivityFlushAll: f::flush_all,
        cuptiActivityGetNextRecord: f::next_record,
        cuptiActivityGetNumDroppedRecords: f::dropped,
        cuptiActivityPushExternalCorrelationId: f::push,
        cuptiActivityPopExternalCorrelationId: f::pop,
        cuptiGetResultString: None,
        cuptiActivitySetAttribute: None,
        cuptiActivityEnableDriverApi: None,
        cuptiSubscribe_v2: Some(f::subscribe_v2),
        cuptiActivityGetStructSize: None,
        cuptiActivityDisable_v2: None,
        cuptiActivityEnableAndDump_v2: None,
        cuptiActivityEnable_v2: None,
        cuptiActivityRegisterCallbacks_v2: None,
        cuptiActivitySetAttribute_v2: None,
        cuptiActivityGetNextRecord_v2: None,
        cuptiActivityGetNumDroppedRecords_v2: None,
        cuptiActivityPopExternalCorrelationId_v2: None,
        cuptiActivityPushExternalCorrelationId_v2: None,
        cuptiGetTimestamp_v2: None,
    }
}

/// A fresh CUPTI of this version, for one test.
pub(super) fn fresh(version: u32, answers: &[(&str, u32)]) -> MutexGuard<'static, ()> {
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    HANG.store(false, Ordering::Relaxed);
    fake(|fake| {
        let answers = answers.iter().map(|(call, code)| ((*call).to_owned(), *code)).collect();
        *fake = Fake { version, answers, ..Fake::default() };
    });
    guard
}
