//! What holds on any input: every start is drawn or counted, ends follow their begins, and memory
//! is bounded.

use std::collections::{HashSet, VecDeque};

use super::random::{Records, Rules};
use super::script::{PID, Player, tag, zeroed};
use crate::correlate::proxy::PENDING_OPS;
use crate::correlate::*;
use crate::model::event::{self, CommInit};
use crate::model::time::Ticks;

#[test]
fn ends_follow_their_begins_on_any_input() {
    for seed in 0..300 {
        let mut records = Records::new(seed);
        let mut correlator = Correlator::new(tag(), PID);
        let mut rules = Rules::default();
        for _ in 0..1500 {
            records.next(|ring, time, record| {
                correlator.push(ring, time, record, &mut |entry| rules.hold(&entry.what));
            });
        }
        correlator.finish(&mut |entry| rules.hold(&entry.what));
    }
}

/// Whatever the input, an event that starts is drawn once. (Proxy operations wait for progress, and
/// those without any are counted; control events are only their states; a step that the network
/// refuses starts again, and is drawn as one.)
#[test]
fn each_start_is_drawn_or_counted_on_any_input() {
    for seed in 0..100 {
        let mut records = Records::new(seed);
        let mut correlator = Correlator::new(tag(), PID);
        let (mut started, mut again, mut steps) = (HashSet::new(), HashSet::new(), HashSet::new());
        let (mut unknown, mut operations) = (0, 0);
        let (mut begun, mut shown, mut waiting, mut given_up) = (HashSet::new(), 0, 0, 0);
        let mut see = |what: &What<'_>| match *what {
            What::CallBegin { id, .. }
            | What::OperationBegin { id, .. }
            | What::StepBegin { id, .. }
            | What::ChannelBegin { id, .. }
            | What::NetBegin { id, .. } => assert!(begun.insert(id), "{id:?} is drawn once"),
            What::ProxyOpBegin { was_taken, .. } => waiting -= i64::from(was_taken),
            What::ProxyOpTaken { .. } => waiting += 1,
            What::ProxyOpsQueued { given_up: number, .. } => given_up += number as i64,
            What::Unknown { .. } => shown += 1,
            _ => {}
        };
        for _ in 0..1500 {
            records.next(|ring, time, record| {
                if let Body::Start { handle, parent, event, .. } = &record.body {
                    match event {
                        Event::ProxyOp(_) => operations += 1,
                        Event::ProxyCtrl(_) => {}
                        Event::Unknown(_) => unknown += 1,
                        Event::ProxyStep(step) if !steps.insert((parent.0, step.step)) => drop(again.insert(*handle)),
                        _ => drop(started.insert(*handle)),
                    }
                }
                correlator.push(ring, time, record, &mut |entry| see(&entry.what));
            });
        }
        correlator.finish(&mut |entry| see(&entry.what));
        let lost: Vec<_> = started.difference(&begun).collect();
        assert!(lost.is_empty(), "seed {seed}: {lost:?}");
        assert!(begun.is_subset(&(&started | &again)), "seed {seed}: something began that never started");
        // States of unknown numbers are shown too.
        assert!(shown >= unknown, "seed {seed}: {shown} of {unknown}");
        assert!((0..=operations).contains(&(waiting - given_up)), "seed {seed}: {waiting} {given_up} {operations}");
    }
}

#[test]
fn memory_is_bounded_on_any_input() {
    let mut records = Records::new(1);
    let mut correlator = Correlator::new(tag(), PID);
    for _ in 0..300_000 {
        records.next(|ring, time, record| correlator.push(ring, time, record, &mut |_| {}));
    }
    assert!(correlator.events.len() <= 128 << 10, "{}", correlator.events.len());
    assert!(correlator.proxy.pending.len() <= PENDING_OPS);
    assert!(correlator.proxy.untaken.values().map(VecDeque::len).sum::<usize>() <= PENDING_OPS);
    assert!(correlator.numbers.len() <= 28 << 10);
    assert!(correlator.rings.len() <= 4);
}

#[test]
fn ended_communicators_are_forgotten() {
    let mut player = Player::new();
    for n in 0..20_000 {
        let context = Handle(tag().base() + 1 + n);
        let start = |kind: u64, parent: u64, event| Body::Start {
            handle: Handle(tag().base() + 100_000 * kind + n),
            parent: if parent == 0 { Handle::NONE } else { Handle(tag().base() + 100_000 * parent + n) },
            context,
            rank: 0,
            event,
        };
        for body in [
            Body::Text { word: Word::NAME, text: format!("communicator {n}").as_bytes() },
            Body::CommInit(CommInit { context, name: Word::NAME, ..CommInit::default() }),
            start(1, 0, Event::P2p(event::P2p { func: Word::SEND, ..zeroed() })),
            start(2, 1, Event::ProxyOp(event::ProxyOp { pid: PID, ..zeroed() })),
            start(3, 2, Event::ProxyStep(zeroed())),
            Body::CommFinalize { context },
        ] {
            let record = Record { ticks: Ticks(n), body };
            player.correlator.push(RingId(0), HostNs(n), &record, &mut |_| {});
        }
    }
    let Correlator { comms, numbers, proxy, texts, names, moved, .. } = &player.correlator;
    for (kept, what) in [
        (comms.len(), "communicators"),
        (numbers.len(), "counters of messages"),
        (proxy.connections.len(), "connections"),
        (texts.len() + names.len(), "names"),
        (moved.len(), "times of progress"),
        (proxy.untaken.len(), "connections that are not known"),
    ] {
        assert!(kept <= 512, "{kept} {what}");
    }
    assert!(proxy.connections.len() > 0, "the proxy began something");
}
