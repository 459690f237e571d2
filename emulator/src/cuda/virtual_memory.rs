//! `cuMem*`: allocations that are separate from the addresses they are mapped to. An allocation is
//! a nameless file, and its descriptor is the handle that another process imports.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::{Arc, Mutex};

use super::memory::{self, Backing, Kind, Pages, Range};
use super::threads::lock;
use super::{Error, device, machine};

/// Sizes and addresses are multiples of this.
pub(super) const GRANULARITY: usize = 2 << 20;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(super) const FILE_DESCRIPTOR: u32 = 1;

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Properties {
    pub(super) kind: u32,
    pub(super) handle_types: u32,
    pub(super) location_type: u32,
    pub(super) location: i32,
    pub(super) metadata: usize,
    pub(super) flags: [u8; 8],
}

impl Properties {
    const PINNED: u32 = 1;
    const ON_DEVICE: u32 = 1;
    /// `CU_MEM_LOCATION_TYPE_HOST`, `_HOST_NUMA`, `_HOST_NUMA_CURRENT`.
    const ON_HOST: std::ops::RangeInclusive<u32> = 2..=4;

    fn check(&self) -> Result<(), Error> {
        match self.location_type {
            _ if self.kind != Self::PINNED || self.handle_types & !FILE_DESCRIPTOR != 0 => Err(Error::NotSupported),
            Self::ON_DEVICE => device::get(self.location).map(|_| ()),
            kind if Self::ON_HOST.contains(&kind) => Ok(()),
            _ => Err(Error::InvalidValue),
        }
    }
}

/// An allocation of `cuMemCreate`.
pub(super) struct Physical {
    file: File,
    bytes: usize,
    properties: Properties,
}

/// Everything that `cuMem*` has handed out, except for mappings, which are in [`memory::Memory`].
#[derive(Default)]
pub(super) struct VirtualMemory {
    /// By handle, with the references that the user holds.
    allocations: Mutex<HashMap<u64, (Arc<Physical>, usize)>>,
    /// Reserved addresses, by their beginning.
    reservations: Mutex<BTreeMap<usize, Reservation>>,
}

struct Reservation {
    /// A little more than was asked for, for the alignment.
    pages: Arc<Pages>,
    bytes: usize,
}

impl VirtualMemory {
    pub(super) fn create(&self, bytes: usize, properties: &Properties) -> Result<u64, Error> {
        if !machine().config.virtual_memory {
            return Err(Error::NotSupported);
        }
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(Error::InvalidValue);
        }
        properties.check()?;
        let file = memory::anonymous_file(bytes)?;
        Ok(self.hand_out(Arc::new(Physical { file, bytes, properties: *properties })))
    }

    /// Gives the user a reference to an allocation.
    fn hand_out(&self, allocation: Arc<Physical>) -> u64 {
        let handle = Arc::as_ptr(&allocation) as u64;
        lock(&self.allocations).entry(handle).or_insert((allocation, 0)).1 += 1;
        handle
    }

    /// Takes a reference back; mappings stay.
    pub(super) fn release(&self, handle: u64) -> Result<(), Error> {
        let mut allocations = lock(&self.allocations);
        let (_, references) = allocations.get_mut(&handle).ok_or(Error::InvalidValue)?;
        *references -= 1;
        if *references == 0 {
            allocations.remove(&handle);
        }
        Ok(())
    }

    fn allocation(&self, handle: u64) -> Result<Arc<Physical>, Error> {
        lock(&self.allocations).get(&handle).map(|(allocation, _)| allocation.clone()).ok_or(Error::InvalidValue)
    }

    /// The allocation to which an address is mapped, with a reference for the user.
    pub(super) fn retain(&self, address: *const c_void) -> Result<u64, Error> {
        let allocation = machine().memory.physical(address).ok_or(Error::InvalidValue)?;
        Ok(self.hand_out(allocation))
    }

    pub(super) fn properties(&self, handle: u64) -> Result<Properties, Error> {
        Ok(self.allocation(handle)?.properties)
    }

    /// A descriptor of the allocation, which the caller must close.
    pub(super) fn export(&self, handle: u64, kind: u32) -> Result<c_int, Error> {
        if kind != FILE_DESCRIPTOR {
            return Err(Error::NotSupported);
        }
        let copy = self.allocation(handle)?.file.try_clone().map_err(|_| Error::MemoryAllocation)?;
        Ok(copy.into_raw_fd())
    }

    /// The allocation behind a descriptor that another process exported. The descriptor does not
    /// say on which device it lies, so it counts as the current device's.
    ///
    /// # Safety
    ///
    /// The descriptor is open during the call.
    pub(super) unsafe fn import(&self, descriptor: c_int, kind: u32) -> Result<u64, Error> {
        if kind != FILE_DESCRIPTOR || descriptor < 0 {
            return Err(Error::NotSupported);
        }
        // SAFETY: open, as the caller promises.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let copy = descriptor.try_clone_to_owned().map_err(|_| Error::InvalidResourceHandle)?;
        let file = File::from(copy);
        let bytes = file.metadata().map_err(|_| Error::InvalidResourceHandle)?.len() as usize;
        let properties = Properties {
            kind: Properties::PINNED,
            handle_types: FILE_DESCRIPTOR,
            location_type: Properties::ON_DEVICE,
            location: device::current().ordinal as i32,
            metadata: 0,
            flags: [0; 8],
        };
        Ok(self.hand_out(Arc::new(Physical { file, bytes, properties })))
    }

    /// Reserves addresses without memory.
    pub(super) fn reserve(&self, bytes: usize, alignment: usize) -> Result<*mut c_void, Error> {
        let alignment = alignment.max(GRANULARITY);
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || !alignment.is_power_of_two() {
            return Err(Error::InvalidValue);
        }
        let pages = Pages::private(bytes.checked_add(alignment).ok_or(Error::InvalidValue)?, libc::PROT_NONE)?;
        let start = pages.start().next_multiple_of(alignment);
        lock(&self.reservations).insert(start, Reservation { pages: Arc::new(pages), bytes });
        Ok(start as *mut c_void)
    }

    /// Gives the addresses back once the work queued now is done.
    pub(super) fn unreserve(&self, address: *mut c_void, bytes: usize) -> Result<(), Error> {
        let mut reservations = lock(&self.reservations);
        match reservations.get(&(address as usize)) {
            Some(reservation) if reservation.bytes == bytes => {}
            _ => return Err(Error::InvalidValue),
        }
        let reservation = reservations.remove(&(address as usize));
        drop(reservations);
        if let Some(reservation) = reservation {
            memory::keep_until_past(&reservation.pages);
        }
        Ok(())
    }

    /// Maps an allocation to reserved addresses, which can be used at once, whatever
    /// `cuMemSetAccess` says later.
    pub(super) fn map(&self, address: *mut c_void, bytes: usize, offset: usize, handle: u64) -> Result<(), Error> {
        let allocation = self.allocation(handle)?;
        let start = address as usize;
        if bytes == 0 || offset.checked_add(bytes).is_none_or(|end| end > allocation.bytes) {
            return Err(Error::InvalidValue);
        }
        // Held until the pages are mapped, so that nobody gives the addresses back meanwhile.
        let reservations = lock(&self.reservations);
        let Some((reserved, reservation)) = reservations.range(..=start).next_back() else {
            return Err(Error::InvalidValue);
        };
        if start + bytes > reserved + reservation.bytes {
            return Err(Error::InvalidValue);
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: the addresses lie in a reservation, whose pages are ours to replace.
        let mapped = unsafe {
            libc::mmap(address, bytes, protection, flags, allocation.file.as_raw_fd(), offset as libc::off_t)
        };
        if mapped == libc::MAP_FAILED {
            return Err(Error::MemoryAllocation);
        }
        let on_device = allocation.properties.location_type == Properties::ON_DEVICE;
        let range = Range {
            start,
            bytes,
            device: if on_device { allocation.properties.location as u32 } else { device::current().ordinal },
            kind: if on_device { Kind::Device } else { Kind::Host },
            sharable: false,
        };
        machine().memory.insert(range, Backing::Mapped(allocation));
        Ok(())
    }

    /// Ends the mappings within a range. The pages stay until something else is mapped there or
    /// the addresses are given back, because a peer's kernel may still read them.
    pub(super) fn unmap(&self, address: *mut c_void, bytes: usize) -> Result<(), Error> {
        let ended = machine().memory.take_within(address as usize, bytes);
        if ended.is_empty() { Err(Error::InvalidValue) } else { Ok(()) }
    }
}
