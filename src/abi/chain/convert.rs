//! Converts a descriptor of one interface version to another. NCCL does the same for plugins that
//! are older than it is (its src/plugin/profiler/profiler_v*.cc); here the plugin may be newer,
//! too.
//!
//! From v4 on a newer union begins like the older one, so most members are copied as they are. What
//! a version does not have is zero, and an event that it does not have is left out.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::OnceLock;

use super::super::common::Identity;
use super::super::{v1, v2, v3, v4, v5, v7};
use crate::model::kinds::bit;
use crate::model::state;
use crate::model::word::Word;

/// The largest descriptor of any version, in words: that of v7.
const WORDS: usize = 17;
/// The union begins here, in words, in every version.
const UNION: usize = 3;

/// A descriptor of any version. The type's width changed, but its lowest byte comes first.
#[repr(C)]
pub(super) struct Descriptor {
    pub(super) bits: u64,
    pub(super) parent: *mut c_void,
    pub(super) rank: i32,
    body: Body,
}

/// Long enough for every version's union.
#[repr(C)]
union Body {
    words: [u64; WORDS - UNION],
    v7: std::mem::ManuallyDrop<v7::Body>,
    v4_coll: v4::Coll,
    v4_p2p: v4::P2p,
    coll: v7::Coll,
    p2p: v7::P2p,
    v3_coll: v3::Coll,
    v2_coll: v2::Coll,
    v2_p2p: v2::P2p,
    v1_coll: v1::Coll,
    v1_p2p: v1::P2p,
}

const _: () = assert!(cfg!(target_endian = "little") && size_of::<Descriptor>() == 8 * WORDS);

/// The communicator of an operation, which descriptors named up to v3.
#[derive(Clone, Copy)]
pub(super) struct Comm {
    pub(super) name: *const c_char,
    pub(super) hash: u64,
}

/// The size of a version's union, in bytes.
fn body_bytes(version: u8) -> usize {
    match version {
        1 | 3 => 96,
        2 => 104,
        4 => 80,
        5 | 6 => 88,
        _ => 112,
    }
}

/// Whether this version has such events.
pub(super) fn has_event(version: u8, bits: u64) -> bool {
    let end = match version {
        0..=2 => bit::KERNEL_CH,
        3 | 4 => bit::GROUP_API,
        5 => bit::CE_COLL,
        6 => bit::KERNEL_PHASE,
        _ => u64::MAX,
    };
    bits < end
}

/// Whether a plugin of this version knows the state. Those of a ProxyOp up to 2.26 ended with v4.
pub(super) fn has_state(version: u8, number: u16) -> bool {
    match version {
        0..=3 => number <= state::PROXY_CTRL_APPEND_END,
        4 => (8..=22).contains(&number),
        5 => (8..=24).contains(&number),
        6 => (8..=30).contains(&number),
        _ => number >= 8,
    }
}

impl Descriptor {
    /// The descriptor for version `to`, whose parent is still NCCL's. `None` if it has no such
    /// event.
    ///
    /// # Safety
    ///
    /// `body` is the union that NCCL filled for an event of type `bits` in version `from`.
    pub(super) unsafe fn new(
        from: u8,
        to: u8,
        bits: u64,
        rank: i32,
        body: *const c_void,
        comm: impl FnOnce() -> Comm,
    ) -> Option<Descriptor> {
        if !has_event(to, bits) {
            return None;
        }
        let mut descriptor =
            Descriptor { bits, parent: std::ptr::null_mut(), rank, body: Body { words: [0; WORDS - UNION] } };
        let is_operation = matches!(bits, bit::COLL | bit::P2P);
        // SAFETY: the caller's promise; each arm reads the member that `bits` names, and every
        // version's union fits into ours. Bytes that NCCL left uninitialised are only copied.
        unsafe {
            let to_body = &raw mut descriptor.body;
            let copy = || body.cast::<u8>().copy_to_nonoverlapping(to_body.cast(), body_bytes(from));
            if from == to || !is_operation {
                // Members other than these two only grew.
                copy();
                return Some(descriptor);
            }
            // By way of v4, in which both are alike since.
            let mut wide = Wide::default();
            match (from, bits) {
                (1, bit::COLL) => wide.read_coll_v1(&*body.cast()),
                (2, bit::COLL) => wide.read_coll_v2(&*body.cast()),
                (3, bit::COLL) => {
                    let coll: &v3::Coll = &*body.cast();
                    (wide.identity, wide.coll) = (coll.identity, coll.base);
                }
                (1, _) => wide.read_p2p_v1(&*body.cast()),
                (2 | 3, _) => wide.read_p2p_v2(&*body.cast()),
                _ => {}
            }
            let has_comm = from <= 3;
            if !has_comm {
                copy();
                wide.coll = descriptor.body.v4_coll;
                wide.p2p = descriptor.body.v4_p2p;
                let comm = comm();
                wide.identity = Identity { name: comm.name, comm_hash: comm.hash };
            }
            match (to, bits) {
                (1, bit::COLL) => descriptor.body.v1_coll = wide.coll_v1(),
                (2, bit::COLL) => descriptor.body.v2_coll = wide.coll_v2(),
                (3, bit::COLL) => descriptor.body.v3_coll = v3::Coll { identity: wide.identity, base: wide.coll },
                (1, _) => descriptor.body.v1_p2p = wide.p2p_v1(),
                (2 | 3, _) => descriptor.body.v2_p2p = wide.p2p_v2(),
                (_, bit::COLL) if has_comm => descriptor.body.v4_coll = wide.coll,
                _ if has_comm => descriptor.body.v4_p2p = wide.p2p,
                _ => {}
            }
        }
        Some(descriptor)
    }

    /// Sets the second parent, which a Coll or P2p has since v5.
    pub(super) fn set_group(&mut self, group: *mut c_void) {
        match self.bits {
            bit::COLL => self.body.coll.base.parent_group = group,
            bit::P2P => self.body.p2p.base.parent_group = group,
            _ => {}
        }
    }
}

/// The second parent of a Coll or P2p.
///
/// # Safety
///
/// `body` is the union that NCCL filled for an event of type `bits` in v5 or newer.
pub(super) unsafe fn group(bits: u64, body: *const c_void) -> *mut c_void {
    // SAFETY: the caller's promise; newer members begin with these.
    unsafe {
        match bits {
            bit::COLL => (*body.cast::<v5::Coll>()).parent_group,
            bit::P2P => (*body.cast::<v5::P2p>()).parent_group,
            _ => std::ptr::null_mut(),
        }
    }
}

/// Whether a call is captured into a graph, and so a parent at each replay.
///
/// # Safety
///
/// As for [`group`].
pub(super) unsafe fn is_captured(bits: u64, body: *const c_void) -> bool {
    // SAFETY: the caller's promise; newer members begin with these.
    unsafe {
        match bits {
            bit::GROUP_API => (*body.cast::<v5::GroupApi>()).graph_captured != 0,
            bit::COLL_API => (*body.cast::<v5::CollApi>()).graph_captured != 0,
            bit::P2P_API => (*body.cast::<v5::P2pApi>()).graph_captured != 0,
            _ => false,
        }
    }
}

/// An operation with the fields of all versions.
struct Wide {
    identity: Identity,
    coll: v4::Coll,
    p2p: v4::P2p,
    traffic: usize,
    reduction: u32,
    collnet: i32,
    nvls: i32,
}

impl Default for Wide {
    fn default() -> Wide {
        // SAFETY: numbers and raw pointers, for which zero is a value.
        unsafe { std::mem::zeroed() }
    }
}

/// The number that v1 has for a text; its last for a text that it does not have.
///
/// # Safety
///
/// `text` is null or NUL-terminated.
unsafe fn number(text: *const c_char, word_of: fn(u8) -> Word, count: u8) -> u8 {
    // SAFETY: the caller's promise.
    let word = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }).and_then(|text| Word::known(text.to_bytes()));
    (0..count).find(|&number| Some(word_of(number)) == word).unwrap_or(count)
}

/// The text of a known word. [`prepare`] has made it.
fn text(word: Word) -> *const c_char {
    let texts = TEXTS.get();
    texts.and_then(|texts| texts.get(usize::from(word.0))).map_or(std::ptr::null(), |text| text.as_ptr())
}

static TEXTS: OnceLock<Vec<CString>> = OnceLock::new();

/// Makes the texts that v1 has numbers for. Outside of callbacks.
pub(super) fn prepare() {
    let spelling = |word| CString::new(Word(word).spelling().unwrap_or_default()).unwrap_or_default();
    TEXTS.get_or_init(|| (0..256).map(spelling).collect());
}

/// How many numbers v1 has of each.
const FUNCS: u8 = 8;
const TYPES: u8 = 12;
const ALGORITHMS: u8 = 7;
const PROTOCOLS: u8 = 3;

impl Wide {
    fn read_coll_v1(&mut self, coll: &v1::Coll) {
        self.identity = coll.identity;
        self.traffic = coll.traffic_bytes;
        self.reduction = coll.op;
        self.collnet = coll.is_collnet;
        self.nvls = coll.is_nvls;
        self.coll = v4::Coll {
            seq_number: coll.seq_number,
            func: text(Word::func_v1(coll.func)),
            send_buff: coll.send_buff,
            recv_buff: coll.recv_buff,
            count: coll.count,
            root: coll.root,
            datatype: text(Word::datatype_v1(coll.datatype)),
            n_channels: coll.n_channels,
            n_warps: coll.n_warps,
            algo: text(Word::algorithm_v1(coll.algo)),
            proto: text(Word::protocol_v1(coll.proto)),
        };
    }

    fn read_coll_v2(&mut self, coll: &v2::Coll) {
        (self.identity, self.traffic, self.coll) = (coll.identity, coll.traffic_bytes, coll.v4());
    }

    fn read_p2p_v1(&mut self, p2p: &v1::P2p) {
        self.identity = p2p.identity;
        self.p2p = v4::P2p {
            func: text(Word::func_v1(p2p.func)),
            buff: p2p.buff,
            datatype: text(Word::datatype_v1(p2p.datatype)),
            count: p2p.count,
            peer: p2p.peer,
            n_channels: 0,
        };
    }

    fn read_p2p_v2(&mut self, p2p: &v2::P2p) {
        (self.identity, self.p2p) = (p2p.identity, p2p.v4());
    }

    /// # Safety
    ///
    /// The texts are null or NUL-terminated.
    unsafe fn coll_v1(&self) -> v1::Coll {
        let coll = &self.coll;
        // SAFETY: the caller's promise.
        unsafe {
            v1::Coll {
                identity: self.identity,
                seq_number: coll.seq_number,
                func: number(coll.func, Word::func_v1, FUNCS),
                send_buff: coll.send_buff,
                recv_buff: coll.recv_buff,
                count: coll.count,
                root: coll.root,
                datatype: number(coll.datatype, Word::datatype_v1, TYPES),
                op: self.reduction,
                traffic_bytes: self.traffic,
                n_channels: coll.n_channels,
                n_warps: coll.n_warps,
                algo: number(coll.algo, Word::algorithm_v1, ALGORITHMS),
                proto: number(coll.proto, Word::protocol_v1, PROTOCOLS),
                is_collnet: self.collnet,
                is_nvls: self.nvls,
            }
        }
    }

    fn coll_v2(&self) -> v2::Coll {
        let coll = &self.coll;
        v2::Coll {
            identity: self.identity,
            seq_number: coll.seq_number,
            func: coll.func,
            send_buff: coll.send_buff,
            recv_buff: coll.recv_buff,
            count: coll.count,
            root: coll.root,
            datatype: coll.datatype,
            traffic_bytes: self.traffic,
            n_channels: coll.n_channels,
            n_warps: coll.n_warps,
            algo: coll.algo,
            proto: coll.proto,
        }
    }

    /// # Safety
    ///
    /// The texts are null or NUL-terminated.
    unsafe fn p2p_v1(&self) -> v1::P2p {
        let p2p = &self.p2p;
        // SAFETY: the caller's promise.
        let (func, datatype) =
            unsafe { (number(p2p.func, Word::func_v1, FUNCS), number(p2p.datatype, Word::datatype_v1, TYPES)) };
        v1::P2p { identity: self.identity, func, buff: p2p.buff, datatype, count: p2p.count, peer: p2p.peer }
    }

    fn p2p_v2(&self) -> v2::P2p {
        let v4::P2p { func, buff, datatype, count, peer, .. } = self.p2p;
        v2::P2p { identity: self.identity, func, buff, datatype, count, peer }
    }
}
