//! The calls into NCCL, each recorded in the truth.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use crate::cuda::thread_id;
use crate::library::Library;
use crate::library::api::{CommHandle, Config, Status, UniqueId, WindowHandle};
use crate::time;
use crate::truth::{self, Line, Truth};
use elements::words::Datatype;

/// NCCL's functions, called for one rank after the other.
pub(super) struct Nccl {
    pub(super) library: &'static Library,
    pub(super) truth: Arc<Truth>,
}

/// A communicator's handle, which any thread may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle(pub(super) CommHandle);

// SAFETY: a handle to NCCL's own data; NCCL's functions take it on any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// `ncclWindow_t`, which any thread may hold.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window(WindowHandle);

// SAFETY: as for a communicator's handle.
unsafe impl Send for Window {}

impl Window {
    /// None yet.
    pub(super) fn none() -> Window {
        Window(std::ptr::null_mut())
    }
}

/// Memory of `ncclMemAlloc`, freed on drop.
#[derive(Debug)]
pub(super) struct NcclBuffer {
    pointer: *mut c_void,
    free: unsafe extern "C" fn(*mut c_void) -> Status,
}

// SAFETY: an address of the process's memory, which any thread may pass on; using it is up to
// whoever orders the work.
unsafe impl Send for NcclBuffer {}
// SAFETY: as above.
unsafe impl Sync for NcclBuffer {}

impl NcclBuffer {
    /// Where it is.
    pub(super) fn as_ptr(&self) -> *mut c_void {
        self.pointer
    }
}

impl Drop for NcclBuffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated by the counterpart, and nobody else frees it.
        unsafe { (self.free)(self.pointer) };
    }
}

/// The arguments of a call, as the truth records them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passed {
    pub(super) count: usize,
    pub(super) datatype: Option<Datatype>,
    pub(super) send: *mut c_void,
    pub(super) receive: *mut c_void,
    /// The root or the peer, or -1.
    pub(super) root: i32,
    pub(super) stream: *mut c_void,
    pub(super) captured: bool,
}

impl Passed {
    /// The arguments of a call that moves no data.
    pub(super) fn nothing() -> Passed {
        let none = std::ptr::null_mut();
        Passed { count: 0, datatype: None, send: none, receive: none, root: -1, stream: none, captured: false }
    }
}

/// Who calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller<'a> {
    /// The world rank.
    pub(super) rank: u32,
    /// The communicator's name in the scenario; empty for a group.
    pub(super) communicator: &'a str,
}

impl Nccl {
    /// Makes a call and records it in the truth. `function` is its name without `nccl`.
    ///
    /// # Errors
    ///
    /// When NCCL returns anything but success.
    pub(super) fn call(
        &self,
        caller: Caller<'_>,
        function: &str,
        passed: Passed,
        call: impl FnOnce() -> Status,
    ) -> Result<(), String> {
        let called = time::now();
        let status = call();
        let returned = time::now();
        self.truth.write(&Line::Call(truth::Call {
            thread: thread_id(),
            rank: caller.rank,
            communicator: caller.communicator.into(),
            function: function.into(),
            count: passed.count as u64,
            datatype: passed.datatype.map_or(String::new(), |it| it.nccl_name().into()),
            send: passed.send as u64,
            receive: passed.receive as u64,
            root: passed.root,
            stream: passed.stream as u64,
            captured: passed.captured,
            called,
            returned,
        }));
        if status == 0 {
            return Ok(());
        }
        let on = if caller.communicator.is_empty() { String::new() } else { format!(" on `{}`", caller.communicator) };
        Err(format!("rank {}: nccl{function}{on} failed: {}", caller.rank, self.explain(status)))
    }

    /// A new unique id.
    ///
    /// # Errors
    ///
    /// When NCCL returns none.
    pub(super) fn unique_id(&self) -> Result<UniqueId, String> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the id is writable for the call.
        let status = unsafe { (self.library.api().get_unique_id)(&raw mut id) };
        if status == 0 { Ok(id) } else { Err(format!("ncclGetUniqueId failed: {}", self.explain(status))) }
    }

    /// An error that has happened asynchronously in a communicator.
    ///
    /// # Errors
    ///
    /// When there is one.
    pub(super) fn async_error(&self, caller: Caller<'_>, handle: Handle) -> Result<(), String> {
        let mut found: Status = 0;
        // SAFETY: the communicator exists, and the status is writable for the call.
        let status = unsafe { (self.library.api().comm_get_async_error)(handle.0, &raw mut found) };
        let error = if status == 0 { found } else { status };
        if error == 0 {
            return Ok(());
        }
        let Caller { rank, communicator } = caller;
        Err(format!("rank {rank}: `{communicator}` has an error: {}", self.explain(error)))
    }

    /// A configuration that names its communicator.
    pub(super) fn config(&self, name: &'static CStr) -> Config {
        let mut config = Config::new(self.library.version());
        config.comm_name = name.as_ptr();
        config
    }

    /// The communicator's hash and its device communicator, read from NCCL's own structure, where
    /// the library's debug information gives their offsets.
    pub(super) fn insides(&self, handle: Handle) -> (Option<u64>, Option<u64>) {
        let layout = &self.library.layout().comm;
        let read = |offset: Option<usize>| {
            // SAFETY: the handle points to NCCL's structure, which lives until it is destroyed,
            // and the offset is that of an eight-byte member of it.
            offset.map(|offset| unsafe { handle.0.byte_add(offset).cast::<u64>().read_unaligned() })
        };
        (read(layout.comm_hash), read(layout.dev_comm))
    }

    /// Memory of the current GPU that can be registered as a window.
    ///
    /// # Errors
    ///
    /// When NCCL has none left.
    pub(super) fn allocate(&self, bytes: usize) -> Result<NcclBuffer, String> {
        let api = self.library.api();
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the pointer is writable for the call.
        let status = unsafe { (api.mem_alloc)(&raw mut pointer, bytes) };
        if status != 0 {
            return Err(format!("ncclMemAlloc failed: {}", self.explain(status)));
        }
        Ok(NcclBuffer { pointer, free: api.mem_free })
    }

    /// Registers memory as a symmetric window, together with the communicator's other ranks.
    ///
    /// # Errors
    ///
    /// When this release has no windows, or NCCL fails.
    ///
    /// # Safety
    ///
    /// The buffer has this many bytes until the window is closed; `window` is writable until the
    /// group has ended.
    pub(super) unsafe fn open_window(
        &self,
        caller: Caller<'_>,
        handle: Handle,
        buffer: *mut c_void,
        bytes: usize,
        window: *mut Window,
    ) -> Result<(), String> {
        /// `NCCL_WIN_COLL_SYMMETRIC`
        const SYMMETRIC: c_int = 1;
        let register = self.library.api().comm_window_register;
        let register = register.ok_or("symmetric windows need NCCL 2.27 or later")?;
        let passed = Passed { send: buffer, count: bytes, ..Passed::nothing() };
        self.call(caller, "CommWindowRegister", passed, || {
            // SAFETY: the communicator exists, and the caller promises the rest.
            unsafe { register(handle.0, buffer, bytes, window.cast(), SYMMETRIC) }
        })
    }

    /// Closes a window.
    ///
    /// # Errors
    ///
    /// When NCCL fails.
    pub(super) fn close_window(&self, caller: Caller<'_>, handle: Handle, window: Window) -> Result<(), String> {
        let Some(deregister) = self.library.api().comm_window_deregister.filter(|_| !window.0.is_null()) else {
            return Ok(());
        };
        self.call(caller, "CommWindowDeregister", Passed::nothing(), || {
            // SAFETY: both exist.
            unsafe { deregister(handle.0, window.0) }
        })
    }

    fn explain(&self, status: Status) -> String {
        let api = self.library.api();
        // SAFETY: both functions take any status and no communicator, and return null or a C
        // string that stays valid.
        let (what, last) = unsafe {
            let text = |text: *const std::ffi::c_char| {
                if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().trim().to_owned() }
            };
            (text((api.get_error_string)(status)), text((api.get_last_error)(std::ptr::null_mut())))
        };
        if last.is_empty() { format!("{what} ({status})") } else { format!("{what} ({status}): {last}") }
    }
}

/// A count or rank as C takes it.
pub(super) fn c_number(number: u32) -> c_int {
    c_int::try_from(number).expect("no scenario has numbers beyond an int")
}
