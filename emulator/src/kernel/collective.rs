//! Collectives, by ring and by tree.

use super::block::{Aborted, Block, Played};
use super::function::{Algorithm, Collective, Function};
use super::plan::Part;
use super::primitive::{Primitives, Wiring};
use elements::reduce::Operator;

/// Plays the works of a batch, one after the other.
pub(super) fn play(block: &Block<'_>, function: Function, works: &[Part]) -> Vec<Played> {
    let mut played = Vec::with_capacity(works.len());
    for (index, part) in works.iter().enumerate() {
        let work = Work::new(block, function, part);
        played.push(Played::during(part.operation, index, || {
            // SAFETY: the host launched the kernel on the user's buffers of this size. By CUDA's
            // rules they exist, and nobody else uses them, until it has ended.
            unsafe {
                match (function.algorithm, function.collective) {
                    (Algorithm::Tree, Collective::AllReduce) => work.all_reduce_by_tree(),
                    (Algorithm::Ring, Collective::AllReduce) => work.all_reduce(),
                    (Algorithm::Ring, Collective::AllGather) => work.all_gather(),
                    (Algorithm::Ring, Collective::ReduceScatter) => work.reduce_scatter(),
                    (Algorithm::Ring, Collective::Broadcast) => work.broadcast(),
                    (Algorithm::Ring, Collective::Reduce) => work.reduce(),
                    other => unreachable!("a plan has no {other:?}"),
                }
            }
        }));
        if block.is_aborted() {
            break;
        }
    }
    played
}

/// A work, and what is needed to play it.
struct Work<'w> {
    block: &'w Block<'w>,
    function: Function,
    part: &'w Part,
    operator: Operator,
    ranks: usize,
}

impl<'w> Work<'w> {
    fn new(block: &'w Block<'w>, function: Function, part: &'w Part) -> Work<'w> {
        let operator = match function.reduction {
            Some(reduction) => Operator::new(reduction, function.datatype, part.argument, block.model.release),
            None => Operator::copy(function.datatype),
        };
        Work { block, function, part, operator, ranks: block.comm.ranks }
    }

    /// The connections to these ranks, with `slicing` slices per chunk and steps per slice.
    fn connect(&self, receive: &[i32], send: &[i32], slicing: (usize, u64)) -> Primitives<'w> {
        let wiring = Wiring {
            protocol: self.function.protocol,
            slicing,
            operator: self.operator,
            receive,
            send,
            connection: 0,
            step_bytes: None,
            load: 1,
        };
        Primitives::new(self.block, &wiring)
    }

    /// The address of the user's input from this element on.
    fn input(&self, element: usize) -> *const u8 {
        (self.part.send as *const u8).wrapping_add(element * self.operator.size())
    }

    /// The address of the user's output from this element on.
    fn output(&self, element: usize) -> *mut u8 {
        (self.part.receive as *mut u8).wrapping_add(element * self.operator.size())
    }

    /// The chunks of the part: the first element and the length of each.
    fn chunks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let Part { first, count, chunk, .. } = *self.part;
        (0..count).step_by(chunk.max(1)).map(move |done| (first + done, chunk.min(count - done)))
    }

    /// # Safety
    ///
    /// As for all functions here, the user's buffers may be used.
    unsafe fn all_reduce(&self) -> Result<(), Aborted> {
        let ring = self.block.ring();
        let mut primitives = self.connect(&[ring.previous], &[ring.next], SLICED);
        let ranks = self.ranks;
        let aligned = 16 / self.operator.size();
        let mut chunk = self.part.chunk;
        let round = ranks * chunk;
        for done in (0..self.part.count).step_by(round.max(1)) {
            let left = self.part.count - done;
            if left < round {
                chunk = left.div_ceil(ranks).next_multiple_of(aligned);
            }
            // The chunk of a rank. Each rank of the ring finishes one of them.
            let of = |rank: usize| {
                let from = rank % ranks * chunk;
                (self.part.first + done + from, chunk.min(left.saturating_sub(from)))
            };
            // SAFETY: the chunks lie within the part, and so within the user's buffers.
            unsafe {
                let (at, count) = of(ring.index + ranks - 1);
                primitives.send(self.input(at), count)?;
                for back in 2..ranks {
                    let (at, count) = of(ring.index + ranks - back);
                    primitives.receive_reduce_send(self.input(at), count)?;
                }
                let (at, count) = of(ring.index);
                primitives.receive_reduce_copy_send(self.input(at), self.output(at), count)?;
                for back in 1..ranks - 1 {
                    let (at, count) = of(ring.index + ranks - back);
                    primitives.receive_copy_send(self.output(at), count)?;
                }
                let (at, count) = of(ring.index + 1);
                primitives.receive(self.output(at), count)?;
            }
        }
        primitives.finish()
    }

    /// Up the tree to the root and down again. Both directions are played at the same time, as the
    /// kernel's threads do; the root does both in one step.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe fn all_reduce_by_tree(&self) -> Result<(), Aborted> {
        let layout = &self.block.model.layout.channel;
        let channel = self.block.place();
        let up = channel.int(layout.tree_up);
        let down = [0, 4, 8].map(|offset| channel.int(layout.tree_down + offset));
        if up < 0 {
            let mut primitives = self.connect(&down, &down, WHOLE);
            for (at, count) in self.chunks() {
                // SAFETY: chunks lie within the user's buffers.
                unsafe { primitives.receive_reduce_copy_send(self.input(at), self.output(at), count) }?;
            }
            return primitives.finish();
        }
        let leaf = down[0] < 0;
        let reduce = || {
            let mut primitives = self.connect(&down, &[up], WHOLE);
            for (at, count) in self.chunks() {
                // SAFETY: as above.
                unsafe {
                    if leaf {
                        primitives.send(self.input(at), count)?;
                    } else {
                        primitives.receive_reduce_send(self.input(at), count)?;
                    }
                }
            }
            primitives.finish()
        };
        let broadcast = || {
            let mut primitives = self.connect(&[up], &down, WHOLE);
            for (at, count) in self.chunks() {
                // SAFETY: as above. In place, what comes down replaces elements that have already
                // gone up, because it depends on them.
                unsafe {
                    if leaf {
                        primitives.receive(self.output(at), count)?;
                    } else {
                        primitives.receive_copy_send(self.output(at), count)?;
                    }
                }
            }
            primitives.finish()
        };
        let ways: [&(dyn Fn() -> Result<(), Aborted> + Sync); 2] = [&reduce, &broadcast];
        self.block.model.workers.each(2, |way| ways[way]()).into_iter().collect()
    }

    /// # Safety
    ///
    /// As above.
    unsafe fn all_gather(&self) -> Result<(), Aborted> {
        let ring = self.block.ring();
        let mut primitives = self.connect(&[ring.previous], &[ring.next], SLICED);
        for (at, count) in self.chunks() {
            let of = |back: usize| self.output(at + ring.ranks[back] as usize * self.part.total);
            // SAFETY: chunks lie within the part of each rank, and those within the user's buffers.
            unsafe {
                primitives.copy_send(self.input(at), of(0), count)?;
                for back in (2..self.ranks).rev() {
                    primitives.receive_copy_send(of(back), count)?;
                }
                primitives.receive(of(1), count)?;
            }
        }
        primitives.finish()
    }

    /// # Safety
    ///
    /// As above.
    unsafe fn reduce_scatter(&self) -> Result<(), Aborted> {
        let ring = self.block.ring();
        let mut primitives = self.connect(&[ring.previous], &[ring.next], SLICED);
        for (at, count) in self.chunks() {
            let of = |back: usize| self.input(at + ring.ranks[back] as usize * self.part.total);
            // SAFETY: as above.
            unsafe {
                primitives.send(of(self.ranks - 1), count)?;
                for back in (1..self.ranks - 1).rev() {
                    primitives.receive_reduce_send(of(back), count)?;
                }
                primitives.receive_reduce_copy(of(0), self.output(at), count)?;
            }
        }
        primitives.finish()
    }

    /// # Safety
    ///
    /// As above.
    unsafe fn broadcast(&self) -> Result<(), Aborted> {
        let ring = self.block.ring();
        let mut primitives = self.connect(&[ring.previous], &[ring.next], WHOLE);
        for (at, count) in self.chunks() {
            // SAFETY: as above.
            unsafe {
                if ring.ranks[0] == self.part.root {
                    primitives.copy_send(self.input(at), self.output(at), count)?;
                } else if ring.ranks[1] == self.part.root {
                    primitives.receive(self.output(at), count)?;
                } else {
                    primitives.receive_copy_send(self.output(at), count)?;
                }
            }
        }
        primitives.finish()
    }

    /// # Safety
    ///
    /// As above.
    unsafe fn reduce(&self) -> Result<(), Aborted> {
        let ring = self.block.ring();
        let mut primitives = self.connect(&[ring.previous], &[ring.next], WHOLE);
        for (at, count) in self.chunks() {
            // SAFETY: as above.
            unsafe {
                if ring.ranks[self.ranks - 1] == self.part.root {
                    primitives.send(self.input(at), count)?;
                } else if ring.ranks[0] == self.part.root {
                    primitives.receive_reduce_copy(self.input(at), self.output(at), count)?;
                } else {
                    primitives.receive_reduce_send(self.input(at), count)?;
                }
            }
        }
        primitives.finish()
    }
}

/// Two slices per chunk and two steps per slice, as in the collectives where every rank has a part
/// of its own.
const SLICED: (usize, u64) = (2, 2);
/// One slice of one step per chunk.
const WHOLE: (usize, u64) = (1, 1);
