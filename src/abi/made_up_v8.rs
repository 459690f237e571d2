//! A made-up interface v8: a test that walks through the steps of CONTRIBUTING.md, "An interface
//! version".
//!
//! The invented version adds one field to a collective, `trafficBytes`, and one event, the launch
//! of a whole graph. It has no header (step 1), so its layout is compared with v7's only. Step 2 is
//! the first half of this file, step 3 is [`TABLE`] and [`GRAPH_LAUNCH`]. The model needs nothing
//! (step 4): the field has had a place since v1, the event is shown as an ordinary launch, and a
//! field that nobody needs stays out (`graph_id`). It is neither exported nor chained (steps 5 and
//! 6).
//!
//! Until all this is done, a newer NCCL uses the newest table that it also knows, and all works as
//! before.

use std::ffi::c_void;
use std::mem::ManuallyDrop;

use super::common::{Descr, StateArgsV4};
use super::{Abi, InitV5, Start, Table, bit, init_v5, v7};
use crate::model::event::{self, Flag};
use crate::model::ids::Handle;
use crate::record::recorder;

enum V8 {}

/// The bit of the made-up event.
const GRAPH_LAUNCH: u64 = 1 << 16;

#[repr(C)]
union Body {
    /// Everything that did not change.
    v7: ManuallyDrop<v7::Body>,
    coll: Coll,
    graph_launch: GraphLaunch,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Coll {
    base: v7::Coll,
    traffic_bytes: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GraphLaunch {
    /// Not used.
    graph_id: u32,
    stream: *mut c_void,
}

impl Abi for V8 {
    const VERSION: u8 = 8;
    type Bits = u64;
    type Body = Body;
    type StateArgs = StateArgsV4;

    #[inline(always)]
    unsafe fn coll(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, for the member and for its strings.
        unsafe {
            let Coll { base: coll, traffic_bytes } = body.coll;
            start.record(&event::Coll {
                user_tag: coll.user_tag,
                variant: recorder::rare_word(coll.kernel_variant),
                symmetric: Flag(coll.is_sym_coll),
                // The model has had a place for it since v1.
                traffic: traffic_bytes,
                ..coll.base.event()
            })
        }
    }

    #[inline(always)]
    unsafe fn p2p(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, passed on.
        unsafe { v7::V7::p2p(&body.v7, start) }
    }

    unsafe fn newer(body: &Body, bits: u64, start: &Start) -> Option<Handle> {
        // SAFETY: the trait's promise, for the member that `bits` names or passed on.
        unsafe {
            match bits {
                // Shown as an ordinary launch.
                GRAPH_LAUNCH => Some(start.record(&event::KernelLaunch { stream: body.graph_launch.stream as u64 })),
                _ => v7::V7::newer(&body.v7, bits, start),
            }
        }
    }
}

/// What step 3 would export, without the symbol.
static TABLE: Table<V8, InitV5> = Table::new(init_v5::<V8>);

pub(super) mod tests {
    use std::ffi::c_int;

    use super::*;
    use crate::model::event::{Body as What, Event, MAX_WORDS, Record};
    use crate::model::ids::ProcessTag;
    use crate::model::state;
    use crate::model::word::Word;
    use crate::record::ring::{Reader, Rings};
    use crate::sys;

    /// A descriptor of all zeros: null or 0 in every member.
    fn descriptor<A: Abi<Bits = u64>>(bits: u64) -> Descr<u64, A::Body> {
        // SAFETY: bodies are unions of C structures made of integers and raw pointers.
        let body = unsafe { std::mem::zeroed() };
        Descr { bits, parent: std::ptr::null_mut(), rank: 3, body }
    }

    /// Starts an event through a table, as NCCL does.
    fn start<A: Abi<Bits = u64>>(table: &Table<A, InitV5>, descriptor: &Descr<u64, A::Body>) -> Handle {
        let mut handle = std::ptr::dangling_mut();
        // SAFETY: the descriptor is of the table's version, its strings are literals, and both
        // pointers outlive the call.
        let status = unsafe { (table.start_event)(9 as *mut c_void, &raw mut handle, descriptor) };
        assert_eq!(status, 0);
        Handle(handle as u64)
    }

    /// Rings with the recorder switched on. They are shared by the process: another test may have
    /// made them.
    pub(in crate::abi) fn rings() -> &'static Rings {
        recorder::switch_on(|| Rings::new(1 << 20), ProcessTag::from_random(8)).expect("memory for rings")
    }

    /// What this thread recorded, as `look` sees it. Nothing is removed: the few records fit into
    /// one segment, and a reader gives a segment back only when it moves on to the next.
    pub(in crate::abi) fn recorded<T>(rings: &Rings, mut look: impl FnMut(&Record<'_>) -> Option<T>) -> Vec<T> {
        let mut buffer = [0; MAX_WORDS];
        let is_ours = |reader: &mut Reader| {
            // A thread's first record names it.
            reader.peek(rings).is_some_and(|(header, _)| (header >> 32) as i32 == sys::thread_id())
        };
        let ours =
            (0..rings.used_slots()).map(Reader::new).find_map(|mut reader| is_ours(&mut reader).then_some(reader));
        let mut reader = ours.expect("this thread's ring");
        let mut found = Vec::new();
        while reader.peek(rings).is_some() {
            let record = Record::decode(reader.read(rings, &mut buffer)).expect("a record");
            found.extend(look(&record));
        }
        found
    }

    /// The one event with this handle.
    fn started(rings: &Rings, wanted: Handle) -> Event {
        let found = recorded(rings, |record| match record.body {
            What::Start { handle, context, rank, event, .. } if handle == wanted => {
                assert_eq!((context, rank), (Handle(9), 3));
                Some(event)
            }
            _ => None,
        });
        assert_eq!(found.len(), 1);
        found[0]
    }

    #[test]
    fn the_new_version_is_recorded() {
        let rings = rings();

        let mut coll = descriptor::<V8>(bit::COLL);
        coll.body.coll.traffic_bytes = 1 << 20;
        coll.body.coll.base.user_tag = 5;
        coll.body.coll.base.base.base.seq_number = 7;
        coll.body.coll.base.base.base.func = c"AllReduce".as_ptr();
        coll.body.coll.base.base.base.count = 256;
        let coll = start(&TABLE, &coll);

        let mut launch = descriptor::<V8>(GRAPH_LAUNCH);
        launch.body.graph_launch = GraphLaunch { graph_id: 1, stream: 0x5000 as *mut c_void };
        let launch = start(&TABLE, &launch);

        let step = descriptor::<V8>(bit::PROXY_STEP);
        let step = start(&TABLE, &step);

        let arguments = StateArgsV4 { trans_size: 4096 };
        // SAFETY: the arguments are of the table's version, and belong to this state.
        let status = unsafe {
            let number = c_int::from(state::PROXY_STEP_SEND_WAIT);
            (TABLE.record_event_state)(step.0 as *mut c_void, number, &raw const arguments)
        };
        assert_eq!((status, (TABLE.stop_event)(step.0 as *mut c_void)), (0, 0));

        let expected = event::Coll {
            seq: 7,
            func: Word::ALL_REDUCE,
            count: 256,
            user_tag: 5,
            traffic: 1 << 20,
            reduction: -1,
            ..event::Coll::default()
        };
        assert_eq!(started(rings, coll), Event::Coll(expected));
        assert_eq!(started(rings, launch), Event::KernelLaunch(event::KernelLaunch { stream: 0x5000 }));
        assert_eq!(started(rings, step), Event::ProxyStep(event::ProxyStep::default()));
        let later = recorded(rings, |record| match record.body {
            What::State { handle, state, argument, .. } if handle == step => Some(Some((state, argument))),
            What::Stop { handle } if handle == step => Some(None),
            _ => None,
        });
        assert_eq!(later, [Some((state::PROXY_STEP_SEND_WAIT, 4096)), None]);
    }

    #[test]
    fn an_older_version_keeps_a_new_event_as_unknown() {
        let rings = rings();
        let before: Table<v7::V7, InitV5> = Table::new(init_v5::<v7::V7>);
        let launch = start(&before, &descriptor::<v7::V7>(GRAPH_LAUNCH));
        assert_eq!(started(rings, launch), Event::Unknown(event::Unknown { bits: GRAPH_LAUNCH }));
    }

    #[test]
    fn new_fields_come_after_the_old_ones() {
        assert_eq!(std::mem::offset_of!(Coll, traffic_bytes), size_of::<v7::Coll>());
        assert!(size_of::<Descr<u64, Body>>() >= size_of::<Descr<u64, v7::Body>>());
        assert_eq!(size_of::<Table<V8, InitV5>>(), size_of::<Table<v7::V7, InitV5>>());
        // SAFETY: a table's name is a static C string.
        assert_eq!(unsafe { std::ffi::CStr::from_ptr(TABLE.name) }, c"ncclscope");
    }
}
