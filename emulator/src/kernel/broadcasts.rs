//! Several broadcasts at once, with different roots (from 2.29 on).

use super::block::{Aborted, Block, Played};
use super::function::Protocol;
use super::plan::Broadcast;
use super::primitive::{Primitives, Wiring};
use crate::time;
use elements::reduce::Operator;
use elements::words::Datatype;

/// Plays the works of a batch in turn, one chunk of each.
pub(super) fn play(block: &Block<'_>, protocol: Protocol, works: &[Broadcast]) -> Vec<Played> {
    let mut played = Vec::with_capacity(works.len());
    // The block remembers an abort.
    let _ = take_turns(block, protocol, works, &mut played);
    played
}

fn take_turns(
    block: &Block<'_>,
    protocol: Protocol,
    works: &[Broadcast],
    played: &mut Vec<Played>,
) -> Result<(), Aborted> {
    let ring = block.ring();
    let wiring = Wiring {
        protocol,
        slicing: (1, 1),
        operator: Operator::copy(Datatype::I8),
        receive: &[ring.previous],
        send: &[ring.next],
        connection: 0,
        step_bytes: None,
        load: 1,
    };
    let mut primitives = Primitives::new(block, &wiring);
    let last = block.comm.ranks as i32 - 1;
    let start = time::now();
    played.extend(works.iter().enumerate().map(|(work, broadcast)| Played {
        operation: broadcast.operation,
        work,
        start,
        end: start,
    }));
    let mut done = vec![0; works.len()];
    while works.iter().zip(&done).any(|(work, done)| *done < work.bytes) {
        for (index, work) in works.iter().enumerate() {
            let count = work.chunk.min(work.bytes - done[index]);
            if count == 0 {
                continue;
            }
            if done[index] == 0 {
                played[index].start = time::now();
            }
            let input = (work.send as *const u8).wrapping_add(done[index]);
            let output = (work.receive as *mut u8).wrapping_add(done[index]);
            // SAFETY: the host launched the kernel on the user's buffers of this size. By CUDA's
            // rules they exist, and nobody else uses them, until the kernel has ended.
            let moved = unsafe {
                if work.depth == 0 {
                    primitives.copy_send(input, output, count)
                } else if work.depth == last {
                    primitives.receive(output, count)
                } else {
                    primitives.receive_copy_send(output, count)
                }
            };
            played[index].end = time::now();
            moved?;
            done[index] += count;
        }
    }
    primitives.finish()
}
