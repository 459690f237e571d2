//! NCCL's side: its table of functions, and the requests that they return.

use std::ffi::{c_char, c_int, c_void};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::connection::{Connection, Transfer};
use super::{Network, arrival, lock};
use crate::cuda::thread_id;
use crate::time;
use crate::truth::{self, Line};

pub(super) const SUCCESS: c_int = 0;
const SYSTEM_ERROR: c_int = 2;
pub(super) const REMOTE_ERROR: c_int = 6;

/// `ncclProfilerCallback_t`: event handle, what, proxy step handle, plugin id, payload.
type Profile = unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> c_int;

static PROFILE: OnceLock<Option<Profile>> = OnceLock::new();

/// `ncclProfilerNetEventStart`
const EVENT_START: c_int = 0;
/// `ncclProfilerNetEventStop`
const EVENT_STOP: c_int = 1;
/// The socket network's events, version 1: besides InfiniBand's the only ones that profilers know.
const PLUGIN_ID: i64 = (2 << 16) | 1;

/// The payload of the socket network. In NCCL a type byte precedes an aligned structure.
#[repr(C)]
struct Payload {
    kind: u8,
    socket: Socket,
}

#[repr(C)]
struct Socket {
    fd: c_int,
    op: c_int,
    length: usize,
}

/// `ncclNetProperties_v10_t`
#[repr(C)]
struct Properties {
    name: *const c_char,
    pci_path: *const c_char,
    guid: u64,
    ptr_support: c_int,
    reg_is_global: c_int,
    force_flush: c_int,
    speed: c_int,
    port: c_int,
    latency: f32,
    max_comms: c_int,
    max_recvs: c_int,
    net_device_type: c_int,
    net_device_version: c_int,
    devices: c_int,
    device: [c_int; 4],
    max_p2p_bytes: usize,
    max_coll_bytes: usize,
}

/// What `listen` returns for NCCL to carry to the sender; there is room for 128 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Handle {
    pub(super) port: u32,
    pub(super) host: u32,
}

/// `ncclNet_v10_t`. Functions that may be null in NCCL are null.
#[repr(C)]
struct Table {
    name: *const c_char,
    init: unsafe extern "C" fn(*mut c_void, Option<Profile>) -> c_int,
    devices: unsafe extern "C" fn(*mut c_int) -> c_int,
    get_properties: unsafe extern "C" fn(c_int, *mut Properties) -> c_int,
    listen: unsafe extern "C" fn(c_int, *mut Handle, *mut *mut c_void) -> c_int,
    connect: unsafe extern "C" fn(c_int, *mut c_void, *const Handle, *mut *mut c_void, *mut *mut c_void) -> c_int,
    accept: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut *mut c_void) -> c_int,
    reg_mr: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void) -> c_int,
    reg_mr_dma_buf: *const c_void,
    dereg_mr: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
    isend:
        unsafe extern "C" fn(*mut c_void, *mut u8, usize, c_int, *mut c_void, *mut c_void, *mut *mut c_void) -> c_int,
    irecv: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut *mut u8,
        *mut usize,
        *mut c_int,
        *mut *mut c_void,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> c_int,
    iflush: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut *mut c_void,
        *mut c_int,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> c_int,
    test: unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> c_int,
    close_send: unsafe extern "C" fn(*mut c_void) -> c_int,
    close_recv: unsafe extern "C" fn(*mut c_void) -> c_int,
    close_listen: unsafe extern "C" fn(*mut c_void) -> c_int,
    get_device_mr: *const c_void,
    irecv_consumed: *const c_void,
    make_v_device: *const c_void,
}

// SAFETY: it is never written, and what it points to lives as long as the program.
unsafe impl Sync for Table {}

/// The table that NCCL looks for.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
static ncclNetPlugin_v10: Table = Table {
    name: c"emulated".as_ptr(),
    init,
    devices,
    get_properties,
    listen,
    connect,
    accept,
    reg_mr,
    reg_mr_dma_buf: ptr::null(),
    dereg_mr,
    isend,
    irecv,
    iflush,
    test,
    close_send: close_connection,
    close_recv: close_connection,
    close_listen,
    get_device_mr: ptr::null(),
    irecv_consumed: ptr::null(),
    make_v_device: ptr::null(),
};

/// The table's address. The reference here keeps the table in the program, where only NCCL looks
/// for it.
pub fn table() -> *const c_void {
    (&raw const ncclNetPlugin_v10).cast()
}

unsafe extern "C" fn init(_logger: *mut c_void, profile: Option<Profile>) -> c_int {
    PROFILE.get_or_init(|| profile);
    SUCCESS
}

unsafe extern "C" fn devices(count: *mut c_int) -> c_int {
    // SAFETY: NCCL passes a place for the number.
    unsafe { *count = 1 };
    SUCCESS
}

unsafe extern "C" fn get_properties(_device: c_int, out: *mut Properties) -> c_int {
    let network = Network::this();
    let bandwidth = network.usual.bandwidth;
    let properties = Properties {
        name: c"emulated".as_ptr(),
        pci_path: ptr::null(),
        guid: u64::from(network.host) + 1,
        // Host memory only: NCCL then stages data through its own buffers, as it does without
        // GPUDirect.
        ptr_support: 1,
        reg_is_global: 0,
        force_flush: 0,
        speed: if bandwidth.is_finite() { (bandwidth * 8e3) as c_int } else { 100_000 },
        port: 1,
        latency: 0.0,
        max_comms: 65_536,
        max_recvs: 1,
        net_device_type: 0,
        net_device_version: 0,
        devices: 1,
        device: [0; 4],
        max_p2p_bytes: 1 << 40,
        max_coll_bytes: 1 << 40,
    };
    // SAFETY: NCCL passes a place for the properties.
    unsafe { out.write(properties) };
    SUCCESS
}

pub(super) unsafe extern "C" fn listen(_device: c_int, handle: *mut Handle, out: *mut *mut c_void) -> c_int {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        Ok((listener, port))
    });
    let (listener, port) = match listener {
        Ok(found) => found,
        Err(error) => return complain("listen", &error),
    };
    // SAFETY: NCCL passes 128 aligned bytes for the handle and a place for the pointer.
    unsafe {
        handle.write(Handle { port: u32::from(port), host: Network::this().host });
        *out = Box::into_raw(Box::new(listener)).cast();
    }
    SUCCESS
}

pub(super) unsafe extern "C" fn connect(
    _device: c_int,
    _config: *mut c_void,
    handle: *const Handle,
    out: *mut *mut c_void,
    _offload: *mut *mut c_void,
) -> c_int {
    // SAFETY: these are the bytes that `listen` wrote, in this process or another.
    let handle = unsafe { handle.read() };
    match TcpStream::connect((Ipv4Addr::LOCALHOST, handle.port as u16)).and_then(Connection::new) {
        Ok(mut connection) => {
            connection.host = handle.host;
            // SAFETY: NCCL passes a place for the pointer.
            unsafe { *out = connection.leak() };
            SUCCESS
        }
        Err(error) => complain("connect", &error),
    }
}

pub(super) unsafe extern "C" fn accept(
    listener: *mut c_void,
    out: *mut *mut c_void,
    _offload: *mut *mut c_void,
) -> c_int {
    // SAFETY: `listen` made it, and `close_listen` comes after the last use.
    let listener = unsafe { &*listener.cast::<TcpListener>() };
    let accepted = match listener.accept() {
        Ok((stream, _)) => Connection::new(stream).map(Connection::leak),
        // NCCL calls again until there is a connection.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(ptr::null_mut()),
        Err(error) => Err(error),
    };
    match accepted {
        Ok(connection) => {
            // SAFETY: NCCL passes a place for the pointer.
            unsafe { *out = connection };
            SUCCESS
        }
        Err(error) => complain("accept", &error),
    }
}

unsafe extern "C" fn reg_mr(
    _comm: *mut c_void,
    _data: *mut c_void,
    _size: usize,
    _kind: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: NCCL passes a place for the handle, which is only ever handed back.
    unsafe { *out = ptr::without_provenance_mut(1) };
    SUCCESS
}

unsafe extern "C" fn dereg_mr(_comm: *mut c_void, _handle: *mut c_void) -> c_int {
    SUCCESS
}

pub(super) unsafe extern "C" fn isend(
    comm: *mut c_void,
    data: *mut u8,
    size: usize,
    _tag: c_int,
    _handle: *mut c_void,
    step: *mut c_void,
    out: *mut *mut c_void,
) -> c_int {
    let called = time::now();
    // SAFETY: `connect` made it, and `close_send` comes after the last use.
    let connection = unsafe { &*comm.cast::<Arc<Mutex<Connection>>>() };
    let mut request = Request::new(connection, true, step, called);
    request.profile(EVENT_START, size);
    {
        let mut connection = lock(connection);
        let arrives = arrival(connection.host, size);
        connection.queue.push_back(Transfer { data, size, arrives, moved: 0, done: request.done.clone() });
    }
    request.returned = time::now();
    // SAFETY: NCCL passes a place for the pointer.
    unsafe { *out = Box::into_raw(Box::new(request)).cast() };
    SUCCESS
}

pub(super) unsafe extern "C" fn irecv(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut u8,
    sizes: *mut usize,
    _tags: *mut c_int,
    _handles: *mut *mut c_void,
    steps: *mut *mut c_void,
    out: *mut *mut c_void,
) -> c_int {
    let called = time::now();
    if count != 1 {
        eprintln!("emulator: NCCL asked for {count} receives at once, and was told that 1 is possible");
        return SYSTEM_ERROR;
    }
    // SAFETY: `accept` made it, and `close_recv` comes after the last use; the arrays have `count`
    // entries.
    let (connection, data, size, step) = unsafe {
        let step = if steps.is_null() { ptr::null_mut() } else { *steps };
        (&*comm.cast::<Arc<Mutex<Connection>>>(), *data, *sizes, step)
    };
    let mut request = Request::new(connection, false, step, called);
    request.profile(EVENT_START, size);
    let transfer = Transfer { data, size, arrives: 0, moved: 0, done: request.done.clone() };
    lock(connection).queue.push_back(transfer);
    request.returned = time::now();
    // SAFETY: NCCL passes a place for the pointer.
    unsafe { *out = Box::into_raw(Box::new(request)).cast() };
    SUCCESS
}

unsafe extern "C" fn iflush(
    _comm: *mut c_void,
    _count: c_int,
    _data: *mut *mut c_void,
    _sizes: *mut c_int,
    _handles: *mut *mut c_void,
    out: *mut *mut c_void,
) -> c_int {
    // Nothing needs a flush: the data is in host memory.
    // SAFETY: NCCL passes a place for the pointer.
    unsafe { *out = ptr::null_mut() };
    SUCCESS
}

pub(super) unsafe extern "C" fn test(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> c_int {
    let asked = time::now();
    // SAFETY: `isend` or `irecv` made it, and NCCL forgets it once it is done.
    let mine = unsafe { &mut *request.cast::<Request>() };
    let moved = {
        let mut connection = lock(&mine.connection);
        if let Err(error) = connection.progress(mine.sends) {
            eprintln!("emulator: a connection of the network broke: {error}");
            return REMOTE_ERROR;
        }
        mine.done.load(Ordering::Relaxed)
    };
    // SAFETY: NCCL passes a place for the answer, and for the size unless that is null.
    unsafe {
        *done = c_int::from(moved >= 0);
        if moved >= 0 {
            if !sizes.is_null() {
                *sizes = moved as c_int;
            }
            mine.stop(moved as usize);
            mine.tell(moved as u64, asked);
            drop(Box::from_raw(request.cast::<Request>()));
        }
    }
    SUCCESS
}

pub(super) unsafe extern "C" fn close_connection(comm: *mut c_void) -> c_int {
    // SAFETY: `connect` or `accept` made it, and this is its last use.
    drop(unsafe { Box::from_raw(comm.cast::<Arc<Mutex<Connection>>>()) });
    SUCCESS
}

pub(super) unsafe extern "C" fn close_listen(listener: *mut c_void) -> c_int {
    // SAFETY: `listen` made it, and this is its last use.
    drop(unsafe { Box::from_raw(listener.cast::<TcpListener>()) });
    SUCCESS
}

fn complain(what: &str, error: &std::io::Error) -> c_int {
    eprintln!("emulator: the network failed to {what}: {error}");
    SYSTEM_ERROR
}

struct Request {
    connection: Arc<Mutex<Connection>>,
    sends: bool,
    /// Bytes moved, or -1 until it is done.
    done: Arc<AtomicI64>,
    /// The proxy step it belongs to, as NCCL's profiler identifies it; null when nobody profiles.
    step: *mut c_void,
    /// The profiler's event.
    event: *mut c_void,
    fd: c_int,
    thread: u32,
    called: u64,
    returned: u64,
}

impl Request {
    fn new(connection: &Arc<Mutex<Connection>>, sends: bool, step: *mut c_void, called: u64) -> Request {
        let fd = lock(connection).stream.as_raw_fd();
        let (done, connection) = (Arc::new(AtomicI64::new(-1)), connection.clone());
        let (thread, event) = (thread_id(), ptr::null_mut());
        Request { connection, sends, done, step, event, fd, thread, called, returned: called }
    }

    /// Records the request in the truth.
    fn tell(&self, bytes: u64, asked: u64) {
        let Some(truth) = &Network::this().truth else { return };
        let &Request { thread, sends, called, returned, .. } = self;
        let answered = time::now();
        truth.write(&Line::Transfer(truth::Transfer { thread, sends, bytes, called, returned, asked, answered }));
    }

    fn stop(&mut self, moved: usize) {
        // Without an event there is nothing to stop, and NCCL does not check for that.
        if !self.event.is_null() {
            self.profile(EVENT_STOP, moved);
        }
    }

    fn profile(&mut self, what: c_int, length: usize) {
        let Some(Some(profile)) = PROFILE.get() else { return };
        if self.step.is_null() {
            return;
        }
        let op = c_int::from(self.sends);
        let mut payload = Payload { kind: 1, socket: Socket { fd: self.fd, op, length } };
        // SAFETY: NCCL's own function, with the step's handle that NCCL passed for it; the payload
        // lives for the call.
        unsafe { profile(&raw mut self.event, what, self.step, PLUGIN_ID, (&raw mut payload).cast()) };
    }
}
