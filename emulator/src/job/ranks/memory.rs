//! The memory that operations read and write: CUDA's, or NCCL's and registered as a window.

use std::ffi::c_void;
use std::sync::Arc;

use super::super::nccl::{NcclBuffer, Window};
use super::Ranks;
use crate::cuda::host::{self, DeviceBuffer};
use crate::scenario::program::{Operation, What};

/// What an operation reads and writes.
#[derive(Clone)]
pub(super) struct Memory {
    pub(super) send: Region,
    pub(super) receive: Region,
    /// The communicator that it is registered with, if any.
    pub(super) windows_of: Option<usize>,
}

/// A part of a buffer.
#[derive(Clone)]
pub(super) struct Region {
    buffer: Arc<Buffer>,
    offset: usize,
    bytes: usize,
}

/// Memory of a GPU, from CUDA or from NCCL.
enum Buffer {
    Cuda(DeviceBuffer),
    Nccl(NcclBuffer),
}

impl Buffer {
    fn as_ptr(&self) -> *mut c_void {
        match self {
            Buffer::Cuda(buffer) => buffer.as_ptr(),
            Buffer::Nccl(buffer) => buffer.as_ptr(),
        }
    }
}

impl Region {
    pub(super) fn as_ptr(&self) -> *mut c_void {
        // SAFETY: the offset lies within the buffer.
        unsafe { self.buffer.as_ptr().byte_add(self.offset) }
    }

    /// The memory itself.
    ///
    /// # Safety
    ///
    /// Nobody else uses it meanwhile: only work in the order of the stream does.
    #[allow(clippy::mut_from_ref, reason = "the order of the stream keeps others out")]
    pub(super) unsafe fn bytes(&self) -> &mut [u8] {
        // SAFETY: the buffer is that long and was zeroed; the caller keeps others out.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().cast(), self.bytes) }
    }
}

impl Ranks<'_> {
    /// The memory of a rank's part of an operation, which is the same each time.
    pub(super) fn memory(&mut self, index: usize, operation: &Operation) -> Result<Memory, String> {
        let rank = &mut self.ranks[index];
        let communicator = rank.communicators[operation.on].as_ref().expect("only members issue");
        // A communicator that is created once more has the same size.
        if let Some(memory) = rank.memory.get(&operation.site) {
            return Ok(memory.clone());
        }
        let one = operation.count * operation.datatype.size();
        let all = one * communicator.size as usize;
        let own = one * communicator.rank as usize;
        let allocate = |bytes: usize| {
            let buffer = if operation.symmetric {
                self.job.nccl.allocate(bytes.max(1)).map(Buffer::Nccl)
            } else {
                host::malloc(bytes.max(1)).map(Buffer::Cuda).map_err(|error| error.to_string())
            };
            let failed = |error| format!("rank {}: failed to allocate {bytes} bytes: {error}", rank.world);
            buffer.map(Arc::new).map_err(failed)
        };
        let (send, receive) = match operation.what {
            What::AllGather | What::Gather { .. } => (one, all),
            What::ReduceScatter(_) | What::Scatter { .. } => (all, one),
            What::AllToAll => (all, all),
            _ => (one, one),
        };
        let memory = if operation.in_place {
            let buffer = allocate(send.max(receive))?;
            // The smaller part is this rank's share of the larger.
            let place = |bytes: usize| if bytes < send.max(receive) { own } else { 0 };
            let region = |bytes: usize| Region { buffer: Arc::clone(&buffer), offset: place(bytes), bytes };
            Memory { send: region(send), receive: region(receive), windows_of: None }
        } else {
            let region = |bytes: usize| Ok::<_, String>(Region { buffer: allocate(bytes)?, offset: 0, bytes });
            Memory { send: region(send)?, receive: region(receive)?, windows_of: None }
        };
        rank.memory.insert(operation.site, memory.clone());
        Ok(memory)
    }

    /// Registers an operation's memory on all members before its first use. The members call this
    /// together.
    pub(super) fn open_windows(&mut self, operation: &Operation, members: &[usize]) -> Result<(), String> {
        if self.ranks[members[0]].memory.contains_key(&operation.site) {
            return Ok(());
        }
        let mut opened = Vec::new();
        for of_receive in [false, true] {
            let mut windows: Vec<Window> = vec![Window::none(); members.len()];
            // From here on NCCL writes there, until the group ends.
            let windows_at = windows.as_mut_ptr();
            self.together(members, members.len() > 1, |ranks| {
                for (number, &index) in members.iter().enumerate() {
                    ranks.select(index)?;
                    let memory = ranks.memory(index, operation)?;
                    let region = if of_receive { &memory.receive } else { &memory.send };
                    let communicator = ranks.ranks[index].communicators[operation.on].as_ref();
                    let handle = communicator.expect("only members issue").handle;
                    let caller = ranks.caller(index, operation.on);
                    // SAFETY: the place is within the vector, which lives until the group has
                    // ended. The buffer lives until its window is closed.
                    unsafe {
                        let (buffer, window) = (region.buffer.as_ptr(), windows_at.add(number));
                        let whole = region.offset + region.bytes;
                        ranks.job.nccl.open_window(caller, handle, buffer, whole.max(1), window)?;
                    }
                }
                Ok(())
            })?;
            opened.push(windows);
            // With one buffer there is one window.
            if operation.in_place {
                break;
            }
        }
        for windows in opened {
            for (window, &index) in windows.into_iter().zip(members) {
                let rank = &mut self.ranks[index];
                rank.communicators[operation.on].as_mut().expect("only members issue").windows.push(window);
                rank.memory.get_mut(&operation.site).expect("it was allocated above").windows_of = Some(operation.on);
            }
        }
        Ok(())
    }

    /// Closes the windows of a communicator and frees their memory.
    pub(super) fn close_windows(&mut self, index: usize, communicator: usize) -> Result<(), String> {
        let caller = self.caller(index, communicator);
        let rank = &mut self.ranks[index];
        let Some(of_rank) = &mut rank.communicators[communicator] else { return Ok(()) };
        for window in std::mem::take(&mut of_rank.windows) {
            self.job.nccl.close_window(caller, of_rank.handle, window)?;
        }
        rank.memory.retain(|_, memory| memory.windows_of != Some(communicator));
        Ok(())
    }
}
