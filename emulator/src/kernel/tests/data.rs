//! The users' buffers, and memory for everything else that kernels use.

use super::super::memory::Place;

/// The users' buffers of all ranks, of `f32`.
pub(super) struct Data {
    sends: Vec<Memory>,
    receives: Vec<Memory>,
}

impl Data {
    pub(super) const UNTOUCHED: f32 = -1.0;

    pub(super) fn new(ranks: usize, send: usize, receive: usize) -> Data {
        let data = Data {
            sends: (0..ranks).map(|_| Memory::new(4 * send)).collect(),
            receives: (0..ranks).map(|_| Memory::new(4 * receive)).collect(),
        };
        data.clear();
        data
    }

    /// A rank's data: small integers, whose sums are exact.
    pub(super) fn value(rank: usize, index: usize) -> f32 {
        ((rank + 1) * (index % 1009 + 1)) as f32
    }

    pub(super) fn total(&self, index: usize) -> f32 {
        (0..self.sends.len()).map(|rank| Data::value(rank, index)).sum()
    }

    pub(super) fn clear(&self) {
        for rank in 0..self.sends.len() {
            self.fill(rank, |index| Data::value(rank, index));
            let place = self.receives[rank].place().as_ptr().cast::<f32>();
            for index in 0..self.receives[rank].len() / 4 {
                // SAFETY: within memory of our own that no kernel uses now.
                unsafe { place.add(index).write(Data::UNTOUCHED) };
            }
        }
    }

    pub(super) fn fill(&self, rank: usize, value: impl Fn(usize) -> f32) {
        let place = self.sends[rank].place().as_ptr().cast::<f32>();
        for index in 0..self.sends[rank].len() / 4 {
            // SAFETY: as above.
            unsafe { place.add(index).write(value(index)) };
        }
    }

    pub(super) fn send(&self, rank: usize) -> usize {
        self.sends[rank].address()
    }

    pub(super) fn receive(&self, rank: usize) -> usize {
        self.receives[rank].address()
    }

    pub(super) fn sent(&self, rank: usize) -> Vec<f32> {
        self.sends[rank].floats()
    }

    pub(super) fn received(&self, rank: usize) -> Vec<f32> {
        self.receives[rank].floats()
    }

    pub(super) fn check(&self, expected: impl Fn(usize, usize) -> f32) {
        self.check_first(usize::MAX, expected);
    }

    /// Compares the first elements that each rank has received.
    pub(super) fn check_first(&self, count: usize, expected: impl Fn(usize, usize) -> f32) {
        for rank in 0..self.receives.len() {
            for (index, value) in self.received(rank).into_iter().take(count).enumerate() {
                assert_eq!(value, expected(rank, index), "element {index} of rank {rank}");
            }
        }
    }
}

/// Zeroed memory.
pub(super) struct Memory {
    address: *mut u8,
    bytes: usize,
}

// SAFETY: memory that is used by the holder of the address, in the order that the tests and the
// kernels keep.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new(bytes: usize) -> Memory {
        // SAFETY: the size is above 0.
        let address = unsafe { std::alloc::alloc_zeroed(Memory::layout(bytes)) };
        assert!(!address.is_null());
        Memory { address, bytes }
    }

    fn layout(bytes: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(bytes.max(1), 256).unwrap()
    }

    pub(super) fn address(&self) -> usize {
        self.address as usize
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn place(&self) -> Place {
        // SAFETY: memory of our own, which the tests fill according to the layout.
        unsafe { Place::new(self.address) }
    }

    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.bytes);
        // SAFETY: within the memory, which nobody else uses while a test fills it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address.add(offset), bytes.len()) };
    }

    pub(super) fn floats(&self) -> Vec<f32> {
        let address = self.address.cast::<f32>();
        // SAFETY: within the memory, which no kernel uses now.
        (0..self.bytes / 4).map(|index| unsafe { address.add(index).read() }).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.address, Memory::layout(self.bytes)) };
    }
}
