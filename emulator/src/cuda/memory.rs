//! Memory: what each range of addresses is.
//!
//! Memory of a device is memory of the process, so kernels and everyone else read and write it
//! directly.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock};

use super::virtual_memory::Physical;
use super::{Error, machine};

/// What a range of addresses is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Memory of a device.
    Device,
    /// Memory of the host that CUDA allocated, so that devices can access it.
    Host,
    /// Memory of the host that was registered.
    Registered,
}

/// A range of addresses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    pub(super) start: usize,
    pub(super) bytes: usize,
    pub(super) device: u32,
    pub(super) kind: Kind,
    /// Whether it can be shared with other processes by `cudaIpcGetMemHandle`.
    pub(super) sharable: bool,
}

/// All ranges that CUDA knows.
#[derive(Default)]
pub(super) struct Memory {
    ranges: RwLock<BTreeMap<usize, (Range, Backing)>>,
}

/// What holds the pages of a range.
pub(super) enum Backing {
    /// Nothing here: registered memory.
    Others,
    /// Pages of ours, with the file behind them where other processes can map it.
    Pages { pages: Arc<Pages>, file: Option<File> },
    /// Pages of a reservation, mapped to an allocation of `cuMemCreate`.
    Mapped(Arc<Physical>),
}

/// Pages mapped into the process until the last reference to them is dropped.
#[derive(Debug)]
pub(super) struct Pages {
    address: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: an address and a size; the content belongs to whoever allocated it.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pages were mapped by us and nobody else unmaps them.
        unsafe { libc::munmap(self.address.as_ptr(), self.bytes) };
    }
}

impl Pages {
    /// Zeroed pages that only this process sees.
    pub(super) fn private(bytes: usize, protection: c_int) -> Result<Pages, Error> {
        Pages::map(bytes, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)
    }

    /// The pages of a file.
    pub(super) fn of_file(file: &File, bytes: usize) -> Result<Pages, Error> {
        Pages::map(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(bytes: usize, protection: c_int, flags: c_int, file: c_int) -> Result<Pages, Error> {
        let bytes = bytes.next_multiple_of(4096);
        // SAFETY: without MAP_FIXED the kernel chooses addresses that are not in use.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0) };
        if address == libc::MAP_FAILED {
            return Err(Error::MemoryAllocation);
        }
        Ok(Pages { address: NonNull::new(address).ok_or(Error::MemoryAllocation)?, bytes })
    }

    pub(super) fn start(&self) -> usize {
        self.address.as_ptr() as usize
    }
}

/// A nameless file of zeros.
pub(super) fn anonymous_file(bytes: usize) -> Result<File, Error> {
    // SAFETY: the name is a C string.
    let file = unsafe { libc::memfd_create(c"emulated gpu".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(Error::MemoryAllocation);
    }
    // SAFETY: the descriptor is new and has no other owner.
    let file = unsafe { File::from_raw_fd(file) };
    file.set_len(bytes as u64).map_err(|_| Error::MemoryAllocation)?;
    Ok(file)
}

impl Memory {
    /// Allocates zeroed memory; for 0 bytes the address is null.
    pub(super) fn allocate(&self, bytes: usize, device: u32, kind: Kind) -> Result<*mut c_void, Error> {
        if bytes == 0 {
            return Ok(std::ptr::null_mut());
        }
        if bytes > super::device::MEMORY_BYTES {
            return Err(Error::MemoryAllocation);
        }
        // A peer process can map our files, but not pages without a file.
        let sharable = kind == Kind::Device && machine().config.peer_access;
        let (pages, file) = if sharable {
            let file = anonymous_file(bytes)?;
            (Pages::of_file(&file, bytes)?, Some(file))
        } else {
            (Pages::private(bytes, libc::PROT_READ | libc::PROT_WRITE)?, None)
        };
        let start = pages.start();
        let range = Range { start, bytes, device, kind, sharable };
        self.insert(range, Backing::Pages { pages: Arc::new(pages), file });
        Ok(start as *mut c_void)
    }

    /// Frees the memory that begins at `address`. Work that is already queued may still use it, on
    /// peers too, so the pages are kept until all streams have finished that work.
    pub(super) fn free(&self, address: *mut c_void, allowed: impl Fn(Kind) -> bool) -> Result<(), Error> {
        if address.is_null() {
            return Ok(());
        }
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        match ranges.get(&(address as usize)) {
            Some((range, Backing::Pages { .. })) if allowed(range.kind) => {}
            _ => return Err(Error::InvalidValue),
        }
        let removed = ranges.remove(&(address as usize));
        drop(ranges);
        if let Some((_, Backing::Pages { pages, .. })) = removed {
            keep_until_past(&pages);
        }
        Ok(())
    }

    /// Registers memory of the host.
    pub(super) fn register(&self, address: *mut c_void, bytes: usize, device: u32) -> Result<(), Error> {
        if address.is_null() || bytes == 0 {
            return Err(Error::InvalidValue);
        }
        if self.find(address).is_some() {
            return Err(Error::HostMemoryAlreadyRegistered);
        }
        let range = Range { start: address as usize, bytes, device, kind: Kind::Registered, sharable: false };
        self.insert(range, Backing::Others);
        Ok(())
    }

    /// Forgets registered memory.
    pub(super) fn unregister(&self, address: *mut c_void) -> Result<(), Error> {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        match ranges.get(&(address as usize)) {
            Some((range, _)) if range.kind == Kind::Registered => {
                ranges.remove(&(address as usize));
                Ok(())
            }
            _ => Err(Error::HostMemoryNotRegistered),
        }
    }

    pub(super) fn insert(&self, range: Range, backing: Backing) {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner).insert(range.start, (range, backing));
    }

    /// Removes all ranges that lie in `bytes` from `start`.
    pub(super) fn take_within(&self, start: usize, bytes: usize) -> Vec<(Range, Backing)> {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        let keys: Vec<usize> = ranges.range(start..start + bytes).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| ranges.remove(key)).collect()
    }

    /// The range in which an address lies.
    pub(super) fn find(&self, address: *const c_void) -> Option<Range> {
        self.with(address, |range, _| *range)
    }

    /// The allocation of `cuMemCreate` to which an address is mapped.
    pub(super) fn physical(&self, address: *const c_void) -> Option<Arc<Physical>> {
        self.with(address, |_, backing| match backing {
            Backing::Mapped(physical) => Some(physical.clone()),
            _ => None,
        })?
    }

    /// The descriptor of the file behind an allocation, for another process of this user.
    fn descriptor(&self, address: *const c_void) -> Option<(Range, c_int)> {
        self.with(address, |range, backing| match backing {
            Backing::Pages { file: Some(file), .. } => Some((*range, file.as_raw_fd())),
            _ => None,
        })?
    }

    fn with<R>(&self, address: *const c_void, look: impl FnOnce(&Range, &Backing) -> R) -> Option<R> {
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let (_, (range, backing)) = ranges.range(..=address as usize).next_back()?;
        ((address as usize) < range.start + range.bytes).then(|| look(range, backing))
    }

    /// What another process needs to map the memory at `address`: `cudaIpcGetMemHandle`.
    pub(super) fn share(&self, address: *const c_void) -> Result<IpcHandle, Error> {
        let (range, descriptor) = self.descriptor(address).ok_or(Error::NotSupported)?;
        Ok(IpcHandle {
            magic: IpcHandle::MAGIC,
            process: std::process::id(),
            descriptor,
            bytes: range.bytes as u64,
            device: range.device,
            rest: [0; 9],
        })
    }

    /// Maps the memory of another process: `cudaIpcOpenMemHandle`.
    pub(super) fn open(&self, handle: &IpcHandle) -> Result<*mut c_void, Error> {
        if handle.magic != IpcHandle::MAGIC {
            return Err(Error::InvalidResourceHandle);
        }
        let path = format!("/proc/{}/fd/{}", handle.process, handle.descriptor);
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|_| Error::InvalidResourceHandle)?;
        let bytes = handle.bytes as usize;
        let pages = Pages::of_file(&file, bytes)?;
        let start = pages.start();
        let range = Range { start, bytes, device: handle.device, kind: Kind::Device, sharable: false };
        self.insert(range, Backing::Pages { pages: Arc::new(pages), file: None });
        Ok(start as *mut c_void)
    }
}

/// `cudaIpcMemHandle_t`, with 64 bytes of our own choice.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IpcHandle {
    magic: u64,
    process: u32,
    descriptor: i32,
    bytes: u64,
    device: u32,
    rest: [u32; 9],
}

const _: () = assert!(size_of::<IpcHandle>() == 64);

impl IpcHandle {
    const MAGIC: u64 = u64::from_le_bytes(*b"emulated");
}

/// Keeps pages until every stream of the machine has done what is queued now.
pub(super) fn keep_until_past(pages: &Arc<Pages>) {
    for stream in machine().devices.iter().flat_map(super::device::Device::streams) {
        stream.keep(pages.clone());
    }
}
