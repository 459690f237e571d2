//! A network between the emulated hosts, as a network plugin that NCCL finds in this very program.
//!
//! `NCCL_NET_PLUGIN=STATIC_PLUGIN` makes NCCL look for its table of functions in the program, in all releases tried. The
//! table here is of version 10: 2.26 is the first release that takes it, and the first whose profiler has network plugin events. Messages
//! travel over TCP on the loopback device. What NCCL's own socket network cannot do is done here: a link has a bandwidth and a
//! latency, it can stall, and each request calls NCCL's profiler.
//!
//! There is no thread: NCCL's proxy asks again and again whether a request is done, and that moves the bytes.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_void};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::cuda::thread_id;
use crate::time;
use crate::truth::{self, Line, Truth};

/// What a message needs from this process's host to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bytes per ns; infinite for as fast as the loopback device is.
    pub bandwidth: f64,
    /// From the last byte's departure to its arrival, in ns.
    pub latency_ns: u64,
    /// Before its n-th message (from 0) the link stands still for so many ns.
    pub stall: Option<(u64, u64)>,
}

impl Default for Link {
    fn default() -> Link {
        Link { bandwidth: f64::INFINITY, latency_ns: 0, stall: None }
    }
}

/// The network as this process sees it.
#[derive(Debug, Clone, Default)]
pub struct Network {
    /// The host of this process.
    pub host: u32,
    /// Every link that is not among the others.
    pub usual: Link,
    /// Links to particular hosts.
    pub to: HashMap<u32, Link>,
    /// Where every transfer is told of.
    pub truth: Option<Arc<Truth>>,
}

static NETWORK: OnceLock<Network> = OnceLock::new();

impl Network {
    /// Makes this the network of the process. Before the first communicator.
    ///
    /// # Panics
    ///
    /// When it was called before.
    pub fn install(self) {
        assert!(NETWORK.set(self).is_ok(), "a process has one network");
    }

    fn this() -> &'static Network {
        NETWORK.get_or_init(Network::default)
    }

    fn link(&self, host: u32) -> Link {
        self.to.get(&host).copied().unwrap_or(self.usual)
    }
}

/// The traffic on a link, of all connections of this process together.
#[derive(Debug, Default, Clone, Copy)]
struct Traffic {
    /// When the last message has left.
    free: u64,
    messages: u64,
}

static TRAFFIC: Mutex<Option<HashMap<u32, Traffic>>> = Mutex::new(None);

impl Traffic {
    /// When a message of `size` bytes arrives that is handed over `now`.
    fn arrival(&mut self, link: Link, size: usize, now: u64) -> u64 {
        let mut begins = now.max(self.free);
        if let Some((message, pause)) = link.stall
            && message == self.messages
        {
            begins += pause;
        }
        self.messages += 1;
        self.free = begins + (size as f64 / link.bandwidth) as u64;
        self.free + link.latency_ns
    }
}

/// When a message of `size` bytes that is handed over now arrives at `host`.
fn arrival(host: u32, size: usize) -> u64 {
    let link = Network::this().link(host);
    let mut traffic = lock(&TRAFFIC);
    traffic.get_or_insert_default().entry(host).or_default().arrival(link, size, time::now())
}

// ---- NCCL's side

const SUCCESS: c_int = 0;
const SYSTEM_ERROR: c_int = 2;
const REMOTE_ERROR: c_int = 6;

/// `ncclProfilerCallback_t`: event handle, what, proxy step handle, plugin id, payload.
type Profile = unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> c_int;

static PROFILE: OnceLock<Option<Profile>> = OnceLock::new();

/// `ncclProfilerNetEventStart`
const EVENT_START: c_int = 0;
/// `ncclProfilerNetEventStop`
const EVENT_STOP: c_int = 1;
/// The socket network's events, in their version 1: the only ones besides InfiniBand's that profilers know.
const PLUGIN_ID: i64 = (2 << 16) | 1;

/// The payload of the socket network. NCCL puts a type byte in front of an aligned structure.
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

/// What `listen` gives NCCL to carry to the sender; it has room for 128 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle {
    port: u32,
    host: u32,
}

/// `ncclNet_v10_t`. Functions that NCCL may find null are null.
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

// SAFETY: it is never written, and what it points at lives as long as the program.
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

/// The table's address. Naming it here keeps it in the program, where only NCCL looks for it.
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
        // Host memory only: NCCL then stages through buffers of its own, as it does without GPUDirect.
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

unsafe extern "C" fn listen(_device: c_int, handle: *mut Handle, out: *mut *mut c_void) -> c_int {
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

unsafe extern "C" fn connect(
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

unsafe extern "C" fn accept(listener: *mut c_void, out: *mut *mut c_void, _offload: *mut *mut c_void) -> c_int {
    // SAFETY: `listen` made it, and `close_listen` comes after the last use.
    let listener = unsafe { &*listener.cast::<TcpListener>() };
    let accepted = match listener.accept() {
        Ok((stream, _)) => Connection::new(stream).map(Connection::leak),
        // NCCL asks again until there is a connection.
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
    // SAFETY: NCCL passes a place for the handle. It is only ever handed back.
    unsafe { *out = ptr::without_provenance_mut(1) };
    SUCCESS
}

unsafe extern "C" fn dereg_mr(_comm: *mut c_void, _handle: *mut c_void) -> c_int {
    SUCCESS
}

unsafe extern "C" fn isend(
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

unsafe extern "C" fn irecv(
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
    // SAFETY: `accept` made it, and `close_recv` comes after the last use; the arrays have `count` entries.
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

unsafe extern "C" fn test(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> c_int {
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
    // SAFETY: NCCL passes a place for the answer, and for the size unless it is null.
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

unsafe extern "C" fn close_connection(comm: *mut c_void) -> c_int {
    // SAFETY: `connect` or `accept` made it, and this is its last use.
    drop(unsafe { Box::from_raw(comm.cast::<Arc<Mutex<Connection>>>()) });
    SUCCESS
}

unsafe extern "C" fn close_listen(listener: *mut c_void) -> c_int {
    // SAFETY: `listen` made it, and this is its last use.
    drop(unsafe { Box::from_raw(listener.cast::<TcpListener>()) });
    SUCCESS
}

fn complain(what: &str, error: &std::io::Error) -> c_int {
    eprintln!("emulator: the network failed to {what}: {error}");
    SYSTEM_ERROR
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---- moving bytes

/// One direction between two ranks. Messages go in order, each behind its length.
struct Connection {
    stream: TcpStream,
    /// The host at the other end, for a sender.
    host: u32,
    queue: VecDeque<Transfer>,
    /// The length of the message that is being received, as far as it has come.
    length: [u8; LENGTH],
}

/// Bytes of a length.
const LENGTH: usize = 8;

struct Transfer {
    data: *mut u8,
    size: usize,
    /// When it may arrive, for a sender.
    arrives: u64,
    /// Bytes that have been moved, those of the length included.
    moved: usize,
    done: Arc<AtomicI64>,
}

// SAFETY: NCCL leaves the data alone until the request is done, whichever of its threads asks.
unsafe impl Send for Transfer {}

impl Connection {
    fn new(stream: TcpStream) -> std::io::Result<Connection> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, host: 0, queue: VecDeque::new(), length: [0; LENGTH] })
    }

    fn leak(self) -> *mut c_void {
        Box::into_raw(Box::new(Arc::new(Mutex::new(self)))).cast()
    }

    /// Moves what can be moved without waiting.
    fn progress(&mut self, sends: bool) -> std::io::Result<()> {
        loop {
            let moved = if sends { self.send_some() } else { self.receive_some() };
            match moved {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a piece of the first message; whether there was one to send.
    fn send_some(&mut self) -> std::io::Result<bool> {
        let Some(first) = self.queue.front_mut() else { return Ok(false) };
        if time::now() < first.arrives {
            return Ok(false);
        }
        if first.moved < LENGTH {
            first.moved += self.stream.write(&(first.size as u64).to_le_bytes()[first.moved..])?;
        }
        if first.moved >= LENGTH {
            let at = first.moved - LENGTH;
            if at < first.size {
                // SAFETY: NCCL passed `size` bytes at `data`, which stay until the request is done.
                let rest = unsafe { std::slice::from_raw_parts(first.data.add(at), first.size - at) };
                first.moved += self.stream.write(rest)?;
            }
            if first.moved == LENGTH + first.size {
                first.done.store(first.size as i64, Ordering::Relaxed);
                self.queue.pop_front();
            }
        }
        Ok(true)
    }

    /// Receives a piece of the first message; whether one was wanted.
    fn receive_some(&mut self) -> std::io::Result<bool> {
        let Some(first) = self.queue.front_mut() else { return Ok(false) };
        if first.moved < LENGTH {
            first.moved += some(self.stream.read(&mut self.length[first.moved..])?)?;
        }
        if first.moved >= LENGTH {
            let size = u64::from_le_bytes(self.length) as usize;
            if size > first.size {
                return Err(std::io::Error::other(format!("{size} bytes came where {} were expected", first.size)));
            }
            let at = first.moved - LENGTH;
            if at < size {
                // SAFETY: NCCL passed room for that many bytes at `data`, which stays until the request is done.
                let rest = unsafe { std::slice::from_raw_parts_mut(first.data.add(at), size - at) };
                first.moved += some(self.stream.read(rest)?)?;
            }
            if first.moved == LENGTH + size {
                first.done.store(size as i64, Ordering::Relaxed);
                self.queue.pop_front();
            }
        }
        Ok(true)
    }
}

/// A read that returns nothing met the end of the connection.
fn some(read: usize) -> std::io::Result<usize> {
    if read == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
}

struct Request {
    connection: Arc<Mutex<Connection>>,
    sends: bool,
    /// Bytes moved, or -1 until it is done.
    done: Arc<AtomicI64>,
    /// The proxy step it belongs to, as NCCL's profiler knows it; null when nobody profiles.
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

    /// Writes down what became of it.
    fn tell(&self, bytes: u64, asked: u64) {
        let Some(truth) = &Network::this().truth else { return };
        let &Request { thread, sends, called, returned, .. } = self;
        let answered = time::now();
        truth.write(&Line::Transfer(truth::Transfer { thread, sends, bytes, called, returned, asked, answered }));
    }

    fn stop(&mut self, moved: usize) {
        // Without an event there is nothing to stop, and NCCL does not check.
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
        // SAFETY: NCCL's own function, with the step's handle that NCCL passed for this; the payload lives for the call.
        unsafe { profile(&raw mut self.event, what, self.step, PLUGIN_ID, (&raw mut payload).cast()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender and a receiver that are connected.
    fn pair() -> (*mut c_void, *mut c_void) {
        let mut handle = Handle { port: 0, host: 0 };
        let mut listener = ptr::null_mut();
        let mut sender = ptr::null_mut();
        let mut receiver: *mut c_void = ptr::null_mut();
        // SAFETY: all places are ours; each object is closed once, by the caller or here.
        unsafe {
            assert_eq!(listen(0, &raw mut handle, &raw mut listener), SUCCESS);
            assert_eq!(connect(0, ptr::null_mut(), &raw const handle, &raw mut sender, ptr::null_mut()), SUCCESS);
            while receiver.is_null() {
                assert_eq!(accept(listener, &raw mut receiver, ptr::null_mut()), SUCCESS);
            }
            close_listen(listener);
        }
        (sender, receiver)
    }

    /// Tests both until both are done; the sizes that were moved.
    fn finish(requests: [*mut c_void; 2]) -> [c_int; 2] {
        let mut sizes = [-1; 2];
        let mut open = [true; 2];
        while open != [false; 2] {
            for index in 0..2 {
                if open[index] {
                    let mut done = 0;
                    // SAFETY: the request is not done yet.
                    assert_eq!(unsafe { test(requests[index], &raw mut done, &raw mut sizes[index]) }, SUCCESS);
                    open[index] = done == 0;
                }
            }
        }
        sizes
    }

    #[test]
    fn messages_arrive_in_order_whole_and_short_and_empty() {
        let (sender, receiver) = pair();
        for size in [5, 3_000_000, 0, 1] {
            let mut data: Vec<u8> = (0..size).map(|index| (index * 7) as u8).collect();
            let mut room = vec![0; size + 9];
            let (mut sending, mut receiving) = (ptr::null_mut(), ptr::null_mut());
            let null = ptr::null_mut();
            // SAFETY: the buffers outlive the requests, which are finished below.
            unsafe {
                isend(sender, data.as_mut_ptr(), size, 0, null, null, &raw mut sending);
                let (mut place, mut capacity, mut tag) = (room.as_mut_ptr(), room.len(), 0);
                let places = (&raw mut place, &raw mut capacity, &raw mut tag);
                let none = ptr::null_mut();
                irecv(receiver, 1, places.0, places.1, places.2, none, none, &raw mut receiving);
            }
            assert_eq!(finish([sending, receiving]), [size as c_int; 2]);
            assert_eq!(room[..size], data);
        }
        // SAFETY: nothing is under way.
        unsafe {
            close_connection(sender);
            close_connection(receiver);
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_an_error_and_not_a_crash() {
        let (sender, receiver) = pair();
        let (mut sending, mut receiving) = (ptr::null_mut(), ptr::null_mut());
        let mut data = [1_u8; 64];
        let mut room = [0_u8; 8];
        let null = ptr::null_mut();
        let mut done = 0;
        // SAFETY: the buffers live to the end of the test, and no request is touched after that.
        let status = unsafe {
            isend(sender, data.as_mut_ptr(), 64, 0, null, null, &raw mut sending);
            let (mut place, mut capacity, mut tag) = (room.as_mut_ptr(), 8, 0);
            let none = ptr::null_mut();
            irecv(receiver, 1, &raw mut place, &raw mut capacity, &raw mut tag, none, none, &raw mut receiving);
            while done == 0 {
                test(sending, &raw mut done, ptr::null_mut());
            }
            let mut status = SUCCESS;
            for _ in 0..1000 {
                status = test(receiving, &raw mut done, ptr::null_mut());
                if status != SUCCESS {
                    break;
                }
                std::thread::yield_now();
            }
            status
        };
        assert_eq!(status, REMOTE_ERROR);
    }

    #[test]
    fn a_link_takes_its_time() {
        let link = Link { bandwidth: 2.0, latency_ns: 30, stall: Some((2, 1_000)) };
        let mut traffic = Traffic::default();
        assert_eq!(traffic.arrival(link, 100, 5_000), 5_080);
        // While the first is on the link the second waits.
        assert_eq!(traffic.arrival(link, 100, 5_010), 5_130);
        // The third meets the stall.
        assert_eq!(traffic.arrival(link, 100, 9_000), 10_080);
        assert_eq!(Traffic::default().arrival(Link::default(), 100, 5_000), 5_000);
    }
}
