//! Every callback that was asked for, made one after the other.
//!
//! Between them this library allocates nothing, makes no system call and waits for nobody. So a
//! test can tell what the caller's own functions do, on a thread that may do none of it.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::OnceLock;

use observe::{Resource, ResourceKind};

use crate::buffers::Memory;
use crate::calls::CallbackData;
use crate::names::domain;
use crate::objects::{self, GraphData, ResourceData};
use crate::subscriber::{self, Subscriber};
use crate::tracer::{self, BufferCallbacks, StateData};
use crate::{clock, result};

/// Both sites of a call, as CUPTI numbers them.
const SITES: [u32; 2] = [0, 1];
/// The kernels that are launched: one of NCCL's and another one.
const KERNELS: [*const c_char; 2] = [c"ncclDevKernel_AllReduce_Sum_f32_RING_LL".as_ptr(), c"gemm".as_ptr()];
/// A node, and the one that it was cloned from.
const NODES: [u64; 2] = [0x9_0000_0001, 0x8_0000_0001];
/// Buffers that are requested before the first one is returned: more than callers have.
const BUFFERS: usize = 160;
/// A graph is executable, and a node is destroyed: callbacks that come after a node's others.
const LAST: [u32; 2] = [18, 14];

/// What to call.
struct Parts {
    subscriber: &'static Subscriber,
    buffers: BufferCallbacks,
    calls: Vec<(u32, u32)>,
    resources: Vec<u32>,
    states: Vec<u32>,
}

static PARTS: OnceLock<Option<Parts>> = OnceLock::new();

/// Makes the callbacks that the first subscriber had asked for at the first call. Returns how many
/// were made, or -1 if there is no subscriber with functions for buffers. The first call allocates.
/// Not a CUPTI function.
#[unsafe(no_mangle)]
extern "C" fn emulated_cupti_rehearse() -> i32 {
    PARTS.get_or_init(Parts::find).as_ref().map_or(-1, Parts::rehearse)
}

impl Parts {
    fn find() -> Option<Parts> {
        let subscriber = subscriber::current()?;
        let of = |domain| subscriber.wanted(domain).into_iter().map(move |id| (domain, id));
        let mut resources = subscriber.wanted(domain::RESOURCE);
        resources.sort_by_key(|id| LAST.iter().position(|last| last == id));
        let parts = Parts {
            subscriber,
            buffers: tracer::callbacks(subscriber.client())?,
            calls: of(domain::DRIVER).chain(of(domain::RUNTIME)).collect(),
            resources,
            states: subscriber.wanted(domain::STATE),
        };
        // The caller may ask for the nodes' numbers.
        for (node, original) in [(NODES[1], 0), (NODES[0], NODES[1])] {
            objects::on_resource(&Resource {
                node: handle(node),
                node_id: node,
                original_node: handle(original),
                ..Resource::new(ResourceKind::NodeCreated, 0, ptr::null_mut(), 0)
            });
        }
        Some(parts)
    }

    fn rehearse(&self) -> i32 {
        let mut made = 0;
        for symbol in KERNELS {
            for &(domain, id) in &self.calls {
                self.call(SITES[0], domain, id, symbol);
                // As if it made a graph executable.
                made += self.resources();
                self.call(SITES[1], domain, id, symbol);
                made += 2;
            }
        }
        made += self.resources();
        for &id in &self.states {
            self.subscriber.call(domain::STATE, id, &StateData { result: result::UNKNOWN, message: ptr::null() });
            made += 1;
        }
        // A caller may have none left.
        let lent: [Memory; BUFFERS] = std::array::from_fn(|_| self.buffers.request());
        made += BUFFERS as i32;
        for memory in lent.iter().filter(|memory| !memory.address.is_null()) {
            self.buffers.complete(memory, 0, 0);
            made += 1;
        }
        if let Some(clock) = clock::registered() {
            clock();
            made += 1;
        }
        made
    }

    fn call(&self, site: u32, domain: u32, id: u32, symbol: *const c_char) {
        let parameters = [handle(NODES[0]); 4];
        let (success, mut word) = (0_u32, 0_u64);
        let data = CallbackData {
            site,
            function_name: c"any function".as_ptr(),
            function_params: parameters.as_ptr().cast(),
            function_return_value: if site == SITES[0] { ptr::null() } else { (&raw const success).cast() },
            symbol_name: symbol,
            context: ptr::null_mut(),
            context_id: 1,
            correlation_data: &raw mut word,
            correlation: 1,
        };
        self.subscriber.call(domain, id, &data);
    }

    fn resources(&self) -> i32 {
        let graph = GraphData {
            graph: handle(NODES[0] >> 32),
            original_graph: handle(NODES[1] >> 32),
            node: handle(NODES[0]),
            original_node: handle(NODES[1]),
            node_type: 0,
            dependency: ptr::null_mut(),
            exec: handle(NODES[0] >> 32),
        };
        let data = ResourceData { context: ptr::null_mut(), stream: ptr::null_mut(), descriptor: &raw const graph };
        for &id in &self.resources {
            self.subscriber.call(domain::RESOURCE, id, &data);
        }
        self.resources.len() as i32
    }
}

fn handle(number: u64) -> *mut c_void {
    ptr::without_provenance_mut(number as usize)
}
