//! Sends and receives.

use super::block::{Aborted, Block, Played};
use super::plan::{Exchange, Transfer};
use super::primitive::{Primitives, Wiring};
use elements::reduce::Operator;
use elements::words::Datatype;

/// One direction of an exchange.
enum Task<'e> {
    Send(&'e Transfer),
    Receive(&'e Transfer),
    /// To this rank itself.
    Copy(&'e Transfer, &'e Transfer),
}

/// Plays the works of a batch, all at the same time, because others may wait for any of them.
pub(super) fn play(block: &Block<'_>, works: &[Exchange]) -> Vec<Played> {
    let mut tasks = Vec::new();
    for (index, work) in works.iter().enumerate() {
        match (&work.send, &work.receive) {
            (Some(send), Some(receive)) if send.peer == block.comm.rank => {
                tasks.push((index, Task::Copy(send, receive)));
            }
            (send, receive) => {
                tasks.extend(send.iter().map(|send| (index, Task::Send(send))));
                tasks.extend(receive.iter().map(|receive| (index, Task::Receive(receive))));
            }
        }
    }
    let played = block.model.workers.each(tasks.len(), |index| {
        let (work, task) = &tasks[index];
        match task {
            Task::Send(send) => {
                vec![Played::during(send.operation, *work, || transfer(block, send, true, works.len()))]
            }
            Task::Receive(receive) => {
                vec![Played::during(receive.operation, *work, || transfer(block, receive, false, works.len()))]
            }
            Task::Copy(send, receive) => {
                let played = Played::during(send.operation, *work, || copy(block, send, receive));
                vec![played, Played { operation: receive.operation, ..played }]
            }
        }
    });
    played.into_iter().flatten().collect()
}

/// Sends or receives, while `load` exchanges share the channel.
fn transfer(block: &Block<'_>, transfer: &Transfer, sends: bool, load: usize) -> Result<(), Aborted> {
    let peer = [transfer.peer];
    let (receive, send): (&[i32], &[i32]) = if sends { (&[], &peer) } else { (&peer, &[]) };
    let wiring = Wiring {
        protocol: transfer.protocol,
        slicing: (1, 1),
        operator: Operator::copy(Datatype::I8),
        receive,
        send,
        connection: 1,
        step_bytes: Some(block.comm.exchange_step_bytes),
        load,
    };
    let mut primitives = Primitives::new(block, &wiring);
    let mut done = 0;
    // An empty transfer is a step too.
    loop {
        let count = transfer.chunk.min(transfer.bytes - done);
        let at = (transfer.address as *mut u8).wrapping_add(done);
        // SAFETY: the host launched the kernel on the user's buffer of this size. By CUDA's rules
        // it exists, and nobody else uses it, until the kernel has ended.
        unsafe {
            if sends {
                primitives.send(at, count)?;
            } else {
                primitives.receive(at, count)?;
            }
        }
        done += count;
        if done >= transfer.bytes {
            return primitives.finish();
        }
    }
}

fn copy(block: &Block<'_>, send: &Transfer, receive: &Transfer) -> Result<(), Aborted> {
    block.step()?;
    let begun = crate::time::now();
    // SAFETY: as above; both buffers may be the same.
    unsafe { std::ptr::copy(send.address as *const u8, receive.address as *mut u8, send.bytes) };
    let took = (crate::time::now() - begun) as f64;
    let cost = block.gpu.cost(send.bytes as f64, took);
    block.sleep_until(begun.saturating_add(cost.ceil() as u64))
}
