//! Devices and their contexts.

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::registry::handle;
use super::stream::Stream;
use super::threads::lock;
use super::{Config, Error, Machine, machine, observe};
use ::observe::ResourceKind;

/// The most devices of a machine. The bus ids have room for no more, and the emulated NVML numbers
/// no more.
pub(super) const MAX_DEVICES: u32 = 16;

/// The PCI bus of the first device; the others follow. The emulated NVML says the same.
const FIRST_BUS: u32 = 0xa0;

/// What each device calls itself.
pub(super) const NAME: &std::ffi::CStr = c"Emulated GPU";

/// Memory that each device claims to have.
pub(super) const MEMORY_BYTES: usize = 80 << 30;

/// The id of the first stream created in a context, as CUPTI reports it on hardware.
const FIRST_STREAM_ID: u32 = 13;

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

/// A GPU.
pub(super) struct Device {
    pub(super) ordinal: u32,
    context: Context,
    default_stream: OnceLock<Arc<Stream>>,
    /// The streams that may still have work, destroyed ones included.
    streams: Mutex<Vec<Weak<Stream>>>,
    /// The devices whose memory it may access.
    peers: Mutex<HashSet<u32>>,
}

/// A device's primary context.
pub(super) struct Context {
    /// From 1; 0 before the context exists.
    id: AtomicU32,
    making: Mutex<()>,
    next_stream: AtomicU32,
}

impl Device {
    pub(super) fn new(ordinal: u32) -> Device {
        Device {
            ordinal,
            context: Context {
                id: AtomicU32::new(0),
                making: Mutex::default(),
                next_stream: AtomicU32::new(FIRST_STREAM_ID),
            },
            default_stream: OnceLock::new(),
            streams: Mutex::default(),
            peers: Mutex::default(),
        }
    }

    /// Its context, created now if nothing has needed it before.
    pub(super) fn context(&self) -> &Context {
        if self.context.id() == 0 {
            let making = lock(&self.context.making);
            let first = self.context.id() == 0;
            if first {
                let id = machine().contexts.fetch_add(1, Ordering::Relaxed) + 1;
                self.context.id.store(id, Ordering::Release);
            }
            drop(making);
            if first {
                observe::resource(ResourceKind::ContextCreated, self, |_| {});
            }
        }
        &self.context
    }

    /// Its context, if it exists yet.
    pub(super) fn existing_context(&self) -> Option<&Context> {
        (self.context.id() != 0).then_some(&self.context)
    }

    /// The default stream. It orders its own work only and does not synchronise with other
    /// streams, because everything here uses streams that do not in CUDA either
    /// (`cudaStreamNonBlocking`).
    pub(super) fn default_stream(&self) -> &Arc<Stream> {
        self.default_stream.get_or_init(|| {
            let stream = Arc::new(Stream::new(self.ordinal, ::observe::DEFAULT_STREAM_ID, true));
            lock(&self.streams).push(Arc::downgrade(&stream));
            stream
        })
    }

    /// Makes a stream.
    pub(super) fn create_stream(&self) -> Arc<Stream> {
        let stream = Arc::new(Stream::new(self.ordinal, self.context().next_stream_id(), false));
        let mut streams = lock(&self.streams);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&stream));
        stream
    }

    /// The streams that may still have work.
    pub(super) fn streams(&self) -> Vec<Arc<Stream>> {
        lock(&self.streams).iter().filter_map(Weak::upgrade).collect()
    }

    /// Waits until all its streams have done what is queued so far.
    pub(super) fn synchronize(&self) -> Result<(), Error> {
        let streams = self.streams();
        for stream in &streams {
            stream.not_capturing()?;
        }
        streams.iter().for_each(|stream| stream.drain());
        Ok(())
    }

    /// Allows access to another device's memory.
    pub(super) fn enable_peer(&self, peer: u32) -> Result<(), Error> {
        if !can_access(self.ordinal, peer)? {
            return Err(Error::PeerAccessUnsupported);
        }
        if lock(&self.peers).insert(peer) { Ok(()) } else { Err(Error::PeerAccessAlreadyEnabled) }
    }

    /// Takes that permission back.
    pub(super) fn disable_peer(&self, peer: u32) -> Result<(), Error> {
        if lock(&self.peers).remove(&peer) { Ok(()) } else { Err(Error::PeerAccessNotEnabled) }
    }

    /// The bus id as `cudaDeviceGetPCIBusId` writes it.
    pub(super) fn bus_id(&self) -> String {
        format!("0000:{:02x}:00.0", self.bus())
    }

    /// Its PCI bus, in domain 0.
    pub(super) fn bus(&self) -> u32 {
        FIRST_BUS + self.ordinal
    }

    /// Sixteen bytes that no other GPU has.
    pub(super) fn uuid(&self) -> [u8; 16] {
        identity(self.ordinal).1
    }
}

/// The model and the UUID of a GPU. GPUs of different emulated hosts have different ones.
pub(crate) fn identity(ordinal: u32) -> (String, [u8; 16]) {
    let host = std::env::var("NCCL_HOSTID").ok().and_then(|it| it.rsplit('-').next()?.parse::<u32>().ok());
    let mut uuid = [0x40 + ordinal as u8; 16];
    if let Some(host) = host.filter(|host| *host > 0) {
        uuid[..4].copy_from_slice(&host.to_be_bytes());
    }
    (NAME.to_string_lossy().into_owned(), uuid)
}

impl Context {
    pub(super) fn id(&self) -> u32 {
        self.id.load(Ordering::Acquire)
    }

    pub(super) fn next_stream_id(&self) -> u32 {
        self.next_stream.fetch_add(1, Ordering::Relaxed)
    }

    /// `CUcontext`: its address. Contexts live as long as the process.
    pub(super) fn handle(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

/// The thread's current device.
pub(super) fn current() -> &'static Device {
    &machine().devices[CURRENT.get() as usize]
}

/// Makes a device the thread's current one.
pub(super) fn set_current(ordinal: i32) -> Result<(), Error> {
    let device = get(ordinal)?;
    device.context();
    CURRENT.set(device.ordinal);
    Ok(())
}

/// A device by its number.
pub(super) fn get(ordinal: i32) -> Result<&'static Device, Error> {
    usize::try_from(ordinal).ok().and_then(|ordinal| machine().devices.get(ordinal)).ok_or(Error::InvalidDevice)
}

/// The device of a context.
pub(super) fn of_context(context: *mut c_void) -> Result<&'static Device, Error> {
    let has = |device: &&Device| device.existing_context().is_some_and(|own| own.handle() == context);
    machine().devices.iter().find(has).ok_or(Error::InvalidContext)
}

/// The device with a bus id.
pub(super) fn by_bus_id(text: &str) -> Result<&'static Device, Error> {
    let number = |part: Option<&str>| part.and_then(|part| u32::from_str_radix(part, 16).ok());
    let mut parts = text.split(':');
    let (Some(0), Some(bus)) = (number(parts.next()), number(parts.next())) else { return Err(Error::InvalidValue) };
    let ordinal = bus.checked_sub(FIRST_BUS).ok_or(Error::InvalidValue)?;
    get(ordinal as i32).map_err(|_| Error::InvalidValue)
}

/// Whether one device may access another's memory.
pub(super) fn can_access(device: u32, peer: u32) -> Result<bool, Error> {
    get(device as i32)?;
    get(peer as i32)?;
    Ok(device != peer && machine().config.peer_access)
}

/// The stream of a handle. 0, 1 and 2 all mean the current device's default stream: there are no
/// per-thread default streams.
pub(super) fn stream(stream: *mut c_void) -> Result<Arc<Stream>, Error> {
    if stream as usize <= 2 {
        current().context();
        return Ok(current().default_stream().clone());
    }
    machine().streams.get(stream)
}

/// The handle under which the job knows a stream; null for a default stream.
pub(super) fn stream_handle(stream: &Arc<Stream>) -> *mut c_void {
    if stream.is_default() { std::ptr::null_mut() } else { handle(stream) }
}

/// An attribute by its number, which is the same in the runtime and the driver API. The device
/// lacks whatever is not listed.
pub(super) fn attribute(machine: &Machine, number: i32, device: &Device) -> i32 {
    let Config { compute_capability, virtual_memory, .. } = machine.config;
    match number {
        // Threads of a block, its dimensions, the grid's.
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        // Shared memory of a block, by default and on demand, and of a multiprocessor.
        8 => 49152,
        97 => 163 << 10,
        81 => 164 << 10,
        10 => 32,
        12 | 82 => 65536,
        // Clock rates in kHz, bus width in bits, multiprocessors.
        13 => 1_410_000,
        36 => 1_215_000,
        37 => 5120,
        16 => 108,
        39 => 2048,
        // Host memory can be mapped, kernels can overlap each other and copies, addresses are
        // unified.
        19 | 31 | 41 => 1,
        40 => 3,
        33 => device.bus() as i32,
        38 => 40 << 20,
        75 => (compute_capability / 10) as i32,
        76 => (compute_capability % 10) as i32,
        // Stream priorities and memory operations of streams; cooperative launch; no access to
        // pageable memory.
        78 | 95 => 1,
        122 | 123 => 1,
        // cuMem*, with file descriptors as the handles to share; memory pools.
        102 | 103 => virtual_memory.into(),
        115 => 1,
        _ => 0,
    }
}
