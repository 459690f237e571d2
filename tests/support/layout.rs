//! The position of every field of the profiler interface, for all seven versions.
//!
//! It is one table, written from the interface's documentation and not from the plugin's own types,
//! so that a test can compare the two. The host writes its raw descriptor bytes from it.
//!
//! Offsets and sizes are those of 64-bit Linux.

use std::ops::RangeInclusive;
use std::sync::OnceLock;

/// The existing interface versions.
pub const VERSIONS: RangeInclusive<u32> = 1..=7;

/// The largest descriptor of any version, in bytes.
pub const MAX_DESCRIPTOR: usize = 136;

/// One field of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The union member it belongs to, spelled as in C (`coll`, `proxyOp`), or [`HEADER`].
    pub event: &'static str,
    /// The field's name, spelled as in C.
    pub name: &'static str,
    /// Its C type.
    pub ctype: CType,
    /// Offset from the beginning of the structure, in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// [`Field::event`] of the fields before the union.
pub const HEADER: &str = "header";

/// The C types that occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CType {
    /// `bool`
    Bool,
    /// `uint8_t`
    U8,
    /// `int`, also used for the process id
    Int,
    /// `uint32_t`
    U32,
    /// `int64_t`
    I64,
    /// `uint64_t`
    U64,
    /// `size_t`
    Size,
    /// `void*` or `const void*`
    Ptr,
    /// `const char*`
    Str,
}

impl CType {
    /// The size of a value of this type in bytes, which is also its alignment.
    pub const fn size(self) -> usize {
        match self {
            CType::Bool | CType::U8 => 1,
            CType::Int | CType::U32 => 4,
            CType::I64 | CType::U64 | CType::Size | CType::Ptr | CType::Str => 8,
        }
    }
}

/// A kind of event.
#[derive(Debug)]
pub struct Kind {
    /// Its name in scripts and reports.
    pub name: &'static str,
    /// Its bit, in descriptors and in the activation mask.
    pub bit: u64,
    /// The first version that has it.
    pub since: u32,
    /// Its member of the descriptor's union; `None` if the header says everything about this kind.
    pub member: Option<&'static str>,
    /// Whether NCCL fills in the header's rank.
    pub ranked: bool,
    /// NCCL starts such an event if the activation mask has any of these bits.
    pub asked_by: u64,
}

/// Every kind of event, in the order of their bits.
pub fn kinds() -> &'static [Kind] {
    &KINDS
}

/// The kind with this name.
pub fn kind(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// A state that NCCL records on an event.
#[derive(Debug)]
pub struct State {
    /// Its name in scripts.
    pub name: &'static str,
    /// Its number in the interface.
    pub value: i32,
    /// The versions through which NCCL reports it.
    pub versions: RangeInclusive<u32>,
    /// Its member of the state arguments, if any.
    pub member: Option<&'static str>,
}

/// Every state, in the order of their numbers.
pub fn states() -> &'static [State] {
    &STATES
}

/// The state with this name.
pub fn state(name: &str) -> Option<&'static State> {
    STATES.iter().find(|state| state.name == name)
}

/// The fields of an event descriptor.
///
/// # Panics
///
/// If there is no such version; the same holds for the other functions that take one.
pub fn fields(version: u32) -> &'static [Field] {
    static TABLES: OnceLock<[Vec<Field>; 7]> = OnceLock::new();
    &TABLES.get_or_init(|| split(DESCRIPTOR))[index(version)]
}

/// The fields of the state arguments; [`Field::event`] is the member of the union.
pub fn state_arguments(version: u32) -> &'static [Field] {
    static TABLES: OnceLock<[Vec<Field>; 7]> = OnceLock::new();
    &TABLES.get_or_init(|| split(STATE_ARGUMENTS))[index(version)]
}

/// The fields of the table that a plugin exports, the same in all versions. Functions are pointers.
pub fn function_table() -> &'static [Field] {
    const NAMES: [&str; 6] = ["name", "init", "startEvent", "stopEvent", "recordEventState", "finalize"];
    static TABLE: OnceLock<Vec<Field>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let field = |(slot, name)| Field {
            event: "table",
            name,
            ctype: if slot == 0 { CType::Str } else { CType::Ptr },
            offset: 8 * slot,
            size: 8,
        };
        NAMES.into_iter().enumerate().map(field).collect()
    })
}

/// The structures that a network plugin event points at; [`Field::event`] is `ib` or `socket`.
pub fn network_payloads() -> &'static [Field] {
    static TABLE: OnceLock<[Vec<Field>; 7]> = OnceLock::new();
    &TABLE.get_or_init(|| split(NETWORK_PAYLOADS))[index(7)]
}

/// The size of an event descriptor in bytes.
pub fn descriptor_size(version: u32) -> usize {
    [120, 128, 120, 104, 112, 112, 136][index(version)]
}

/// The size of the state arguments in bytes.
pub fn state_argument_size(version: u32) -> usize {
    [16, 16, 16, 8, 8, 8, 8][index(version)]
}

/// The size of the table that a plugin exports, in bytes.
pub const FUNCTION_TABLE_SIZE: usize = 48;

/// The size of the InfiniBand payload in bytes.
pub const IB_PAYLOAD_SIZE: usize = 40;

/// The size of the socket payload in bytes.
pub const SOCKET_PAYLOAD_SIZE: usize = 24;

/// One field of an event in one version, if that version has it.
pub fn field(version: u32, event: &str, name: &str) -> Option<Field> {
    fields(version).iter().find(|field| field.event == event && field.name == name).copied()
}

/// The names of an event's fields over all versions.
pub fn field_names(event: &str) -> Vec<&'static str> {
    let mut names: Vec<_> = DESCRIPTOR.iter().filter(|row| row.0 == event).map(|row| row.1).collect();
    names.dedup();
    names
}

/// Whether a field holds text in any version. In v1 such a field is an enumeration.
pub fn is_text(event: &str, name: &str) -> bool {
    DESCRIPTOR.iter().any(|row| row.0 == event && row.1 == name && row.2 == CType::Str)
}

fn index(version: u32) -> usize {
    assert!(VERSIONS.contains(&version), "there is no interface v{version}");
    version as usize - 1
}

fn split(rows: &[Row]) -> [Vec<Field>; 7] {
    std::array::from_fn(|version| {
        let present = rows.iter().filter(|row| row.3[version] != NO);
        let field = |&(event, name, ctype, offsets): &Row| Field {
            event,
            name,
            ctype,
            offset: usize::from(offsets[version]),
            size: ctype.size(),
        };
        present.map(field).collect()
    })
}

/// Event, field, type, and the offset in v1 to v7. A field whose type changed has a row for each
/// type.
type Row = (&'static str, &'static str, CType, [u8; 7]);

/// The version does not have the field.
const NO: u8 = u8::MAX;

#[rustfmt::skip]
const DESCRIPTOR: &[Row] = {
    use CType::*;
    &[
        //                                       v1   v2   v3   v4   v5   v6   v7
        ("header", "type",           U8,      [   0,   0,   0,   0,  NO,  NO,  NO]),
        ("header", "type",           U64,     [  NO,  NO,  NO,  NO,   0,   0,   0]),
        ("header", "parentObj",      Ptr,     [   8,   8,   8,   8,   8,   8,   8]),
        ("header", "rank",           Int,     [  16,  16,  16,  16,  16,  16,  16]),

        ("groupApi", "graphCaptured", Bool,   [  NO,  NO,  NO,  NO,  24,  24,  24]),
        ("groupApi", "groupDepth",   Int,     [  NO,  NO,  NO,  NO,  28,  28,  28]),

        ("collApi", "func",          Str,     [  NO,  NO,  NO,  NO,  24,  24,  24]),
        ("collApi", "count",         Size,    [  NO,  NO,  NO,  NO,  32,  32,  32]),
        ("collApi", "datatype",      Str,     [  NO,  NO,  NO,  NO,  40,  40,  40]),
        ("collApi", "root",          Int,     [  NO,  NO,  NO,  NO,  48,  48,  48]),
        ("collApi", "stream",        Ptr,     [  NO,  NO,  NO,  NO,  56,  56,  56]),
        ("collApi", "graphCaptured", Bool,    [  NO,  NO,  NO,  NO,  64,  64,  64]),
        ("collApi", "userTag",       U64,     [  NO,  NO,  NO,  NO,  NO,  NO,  72]),

        ("p2pApi", "func",           Str,     [  NO,  NO,  NO,  NO,  24,  24,  24]),
        ("p2pApi", "count",          Size,    [  NO,  NO,  NO,  NO,  32,  32,  32]),
        ("p2pApi", "datatype",       Str,     [  NO,  NO,  NO,  NO,  40,  40,  40]),
        ("p2pApi", "stream",         Ptr,     [  NO,  NO,  NO,  NO,  48,  48,  48]),
        ("p2pApi", "graphCaptured",  Bool,    [  NO,  NO,  NO,  NO,  56,  56,  56]),
        ("p2pApi", "userTag",        U64,     [  NO,  NO,  NO,  NO,  NO,  NO,  64]),

        ("kernelLaunch", "stream",   Ptr,     [  NO,  NO,  NO,  NO,  24,  24,  24]),

        ("coll", "name",             Str,     [  24,  24,  24,  NO,  NO,  NO,  NO]),
        ("coll", "commHash",         U64,     [  32,  32,  32,  NO,  NO,  NO,  NO]),
        ("coll", "seqNumber",        U64,     [  40,  40,  40,  24,  24,  24,  24]),
        ("coll", "func",             U8,      [  48,  NO,  NO,  NO,  NO,  NO,  NO]),
        ("coll", "func",             Str,     [  NO,  48,  48,  32,  32,  32,  32]),
        ("coll", "sendBuff",         Ptr,     [  56,  56,  56,  40,  40,  40,  40]),
        ("coll", "recvBuff",         Ptr,     [  64,  64,  64,  48,  48,  48,  48]),
        ("coll", "count",            Size,    [  72,  72,  72,  56,  56,  56,  56]),
        ("coll", "root",             Int,     [  80,  80,  80,  64,  64,  64,  64]),
        ("coll", "datatype",         U8,      [  84,  NO,  NO,  NO,  NO,  NO,  NO]),
        ("coll", "datatype",         Str,     [  NO,  88,  88,  72,  72,  72,  72]),
        ("coll", "op",               U32,     [  88,  NO,  NO,  NO,  NO,  NO,  NO]),
        ("coll", "trafficBytes",     Size,    [  96,  96,  NO,  NO,  NO,  NO,  NO]),
        ("coll", "nMaxChannels",     U8,      [ 104, 104,  96,  NO,  NO,  NO,  NO]),
        ("coll", "nChannels",        U8,      [  NO,  NO,  NO,  80,  80,  80,  80]),
        ("coll", "nWarps",           U8,      [ 105, 105,  97,  81,  81,  81,  81]),
        ("coll", "algo",             U8,      [ 106,  NO,  NO,  NO,  NO,  NO,  NO]),
        ("coll", "algo",             Str,     [  NO, 112, 104,  88,  88,  88,  88]),
        ("coll", "proto",            U8,      [ 107,  NO,  NO,  NO,  NO,  NO,  NO]),
        ("coll", "proto",            Str,     [  NO, 120, 112,  96,  96,  96,  96]),
        ("coll", "isCollnet",        Int,     [ 108,  NO,  NO,  NO,  NO,  NO,  NO]),
        ("coll", "isNvls",           Int,     [ 112,  NO,  NO,  NO,  NO,  NO,  NO]),
        ("coll", "parentGroup",      Ptr,     [  NO,  NO,  NO,  NO, 104, 104, 104]),
        ("coll", "kernelVariant",    Str,     [  NO,  NO,  NO,  NO,  NO,  NO, 112]),
        ("coll", "isSymColl",        Bool,    [  NO,  NO,  NO,  NO,  NO,  NO, 120]),
        ("coll", "userTag",          U64,     [  NO,  NO,  NO,  NO,  NO,  NO, 128]),

        ("p2p", "name",              Str,     [  24,  24,  24,  NO,  NO,  NO,  NO]),
        ("p2p", "commHash",          U64,     [  32,  32,  32,  NO,  NO,  NO,  NO]),
        ("p2p", "func",              U8,      [  40,  NO,  NO,  NO,  NO,  NO,  NO]),
        ("p2p", "func",              Str,     [  NO,  40,  40,  24,  24,  24,  24]),
        ("p2p", "buff",              Ptr,     [  48,  48,  48,  32,  32,  32,  32]),
        ("p2p", "datatype",          U8,      [  56,  NO,  NO,  NO,  NO,  NO,  NO]),
        ("p2p", "datatype",          Str,     [  NO,  56,  56,  40,  40,  40,  40]),
        ("p2p", "count",             Size,    [  64,  64,  64,  48,  48,  48,  48]),
        ("p2p", "peer",              Int,     [  72,  72,  72,  56,  56,  56,  56]),
        ("p2p", "nChannels",         U8,      [  NO,  NO,  NO,  60,  60,  60,  60]),
        ("p2p", "parentGroup",       Ptr,     [  NO,  NO,  NO,  NO,  64,  64,  64]),
        ("p2p", "userTag",           U64,     [  NO,  NO,  NO,  NO,  NO,  NO,  72]),

        ("proxyOp", "pid",           Int,     [  24,  24,  24,  24,  24,  24,  24]),
        ("proxyOp", "channelId",     U8,      [  28,  28,  28,  28,  28,  28,  28]),
        ("proxyOp", "peer",          Int,     [  32,  32,  32,  32,  32,  32,  32]),
        ("proxyOp", "nSteps",        Int,     [  36,  36,  36,  36,  36,  36,  36]),
        ("proxyOp", "chunkSize",     Int,     [  40,  40,  40,  40,  40,  40,  40]),
        ("proxyOp", "isSend",        Int,     [  44,  44,  44,  44,  44,  44,  44]),

        ("proxyStep", "step",        Int,     [  24,  24,  24,  24,  24,  24,  24]),

        ("kernelCh", "channelId",    U8,      [  NO,  NO,  24,  24,  24,  24,  24]),
        ("kernelCh", "pTimer",       U64,     [  NO,  NO,  NO,  32,  32,  32,  32]),

        ("netPlugin", "id",          I64,     [  NO,  NO,  24,  24,  24,  24,  24]),
        ("netPlugin", "data",        Ptr,     [  NO,  NO,  32,  32,  32,  32,  32]),

        ("ceColl", "seqNumber",      U64,     [  NO,  NO,  NO,  NO,  NO,  24,  24]),
        ("ceColl", "func",           Str,     [  NO,  NO,  NO,  NO,  NO,  32,  32]),
        ("ceColl", "sendBuff",       Ptr,     [  NO,  NO,  NO,  NO,  NO,  40,  40]),
        ("ceColl", "recvBuff",       Ptr,     [  NO,  NO,  NO,  NO,  NO,  48,  48]),
        ("ceColl", "count",          Size,    [  NO,  NO,  NO,  NO,  NO,  56,  56]),
        ("ceColl", "root",           Int,     [  NO,  NO,  NO,  NO,  NO,  64,  64]),
        ("ceColl", "datatype",       Str,     [  NO,  NO,  NO,  NO,  NO,  72,  72]),
        ("ceColl", "syncStrategy",   Str,     [  NO,  NO,  NO,  NO,  NO,  80,  80]),
        ("ceColl", "intraBatchSync", Bool,    [  NO,  NO,  NO,  NO,  NO,  88,  88]),
        ("ceColl", "batchSize",      U32,     [  NO,  NO,  NO,  NO,  NO,  92,  92]),
        ("ceColl", "numBatches",     U32,     [  NO,  NO,  NO,  NO,  NO,  96,  96]),
        ("ceColl", "ceSeqNum",       U32,     [  NO,  NO,  NO,  NO,  NO, 100, 100]),
        ("ceColl", "stream",         Ptr,     [  NO,  NO,  NO,  NO,  NO, 104, 104]),
        ("ceColl", "userTag",        U64,     [  NO,  NO,  NO,  NO,  NO,  NO, 112]),

        ("ceCollSync", "isComplete", Bool,    [  NO,  NO,  NO,  NO,  NO,  24,  24]),
        ("ceCollSync", "nRanks",     Int,     [  NO,  NO,  NO,  NO,  NO,  28,  28]),

        ("ceCollBatch", "numOps",    Int,     [  NO,  NO,  NO,  NO,  NO,  24,  24]),
        ("ceCollBatch", "totalBytes", Size,   [  NO,  NO,  NO,  NO,  NO,  32,  32]),
        ("ceCollBatch", "useIntraSync", Bool, [  NO,  NO,  NO,  NO,  NO,  40,  40]),

        ("kernelPhase", "channelId", U8,      [  NO,  NO,  NO,  NO,  NO,  NO,  24]),
        ("kernelPhase", "phaseId",   U8,      [  NO,  NO,  NO,  NO,  NO,  NO,  25]),
        ("kernelPhase", "phaseName", Str,     [  NO,  NO,  NO,  NO,  NO,  NO,  32]),
        ("kernelPhase", "pTimer",    U64,     [  NO,  NO,  NO,  NO,  NO,  NO,  40]),
    ]
};

#[rustfmt::skip]
const STATE_ARGUMENTS: &[Row] = {
    use CType::*;
    &[
        //                                        v1  v2  v3  v4  v5  v6  v7
        ("proxyOp", "transSize",          Size, [  0,  0,  0, NO, NO, NO, NO]),
        ("proxyOp", "steps",              Int,  [  8,  8,  8, NO, NO, NO, NO]),
        ("proxyCtrl", "appendedProxyOps", Int,  [  0,  0,  0,  0,  0,  0,  0]),
        ("proxyStep", "transSize",        Size, [ NO, NO, NO,  0,  0,  0,  0]),
        ("netPlugin", "data",             Ptr,  [ NO, NO, NO,  0,  0,  0,  0]),
        ("kernelCh", "pTimer",            U64,  [ NO, NO, NO,  0,  0,  0,  0]),
    ]
};

#[rustfmt::skip]
const NETWORK_PAYLOADS: &[Row] = {
    use CType::*;
    &[
        ("ib", "type",       U8,   [ 0; 7]),
        ("ib", "device",     Int,  [ 8; 7]),
        ("ib", "wr_id",      U64,  [16; 7]),
        ("ib", "opcode",     Int,  [24; 7]),
        ("ib", "qpNum",      Int,  [28; 7]),
        ("ib", "length",     Size, [32; 7]),
        ("socket", "type",   U8,   [ 0; 7]),
        ("socket", "fd",     Int,  [ 8; 7]),
        ("socket", "op",     Int,  [12; 7]),
        ("socket", "length", Size, [16; 7]),
    ]
};

const GROUP: u64 = 1;
const COLL: u64 = 2;
const P2P: u64 = 4;
const PROXY_OP: u64 = 8;
const PROXY_STEP: u64 = 16;
const PROXY_CTRL: u64 = 32;
const KERNEL_CH: u64 = 64;
const NET_PLUGIN: u64 = 128;
const GROUP_API: u64 = 256;
const COLL_API: u64 = 512;
const P2P_API: u64 = 1024;
const KERNEL_LAUNCH: u64 = 2048;
const CE_COLL: u64 = 4096;
const CE_SYNC: u64 = 8192;
const CE_BATCH: u64 = 16384;
const KERNEL_PHASE: u64 = 32768;

const ANY_CE: u64 = CE_COLL | CE_SYNC | CE_BATCH;
const ANY_KERNEL: u64 = KERNEL_CH | KERNEL_PHASE;
/// Events below a collective or a send, which need it as a parent.
const BELOW_TASK: u64 = PROXY_OP | PROXY_STEP | NET_PLUGIN | ANY_KERNEL;

#[rustfmt::skip]
static KINDS: [Kind; 16] = [
    kind_row("Group",        GROUP,         1, None,                 false, GROUP | COLL | P2P | BELOW_TASK),
    kind_row("Coll",         COLL,          1, Some("coll"),         true,  COLL | BELOW_TASK),
    kind_row("P2p",          P2P,           1, Some("p2p"),          true,  P2P | BELOW_TASK),
    kind_row("ProxyOp",      PROXY_OP,      1, Some("proxyOp"),      true,  PROXY_OP | PROXY_STEP | NET_PLUGIN),
    kind_row("ProxyStep",    PROXY_STEP,    1, Some("proxyStep"),    true,  PROXY_STEP | NET_PLUGIN),
    kind_row("ProxyCtrl",    PROXY_CTRL,    1, None,                 false, PROXY_CTRL),
    kind_row("KernelCh",     KERNEL_CH,     3, Some("kernelCh"),     false, ANY_KERNEL),
    kind_row("NetPlugin",    NET_PLUGIN,    3, Some("netPlugin"),    true,  NET_PLUGIN),
    kind_row("GroupApi",     GROUP_API,     5, Some("groupApi"),     false, 0xffff & !PROXY_CTRL),
    kind_row("CollApi",      COLL_API,      5, Some("collApi"),      false, COLL_API | COLL | BELOW_TASK | ANY_CE),
    kind_row("P2pApi",       P2P_API,       5, Some("p2pApi"),       false, P2P_API | P2P | BELOW_TASK),
    kind_row("KernelLaunch", KERNEL_LAUNCH, 5, Some("kernelLaunch"), false, KERNEL_LAUNCH),
    kind_row("CeColl",       CE_COLL,       6, Some("ceColl"),       true,  ANY_CE),
    kind_row("CeSync",       CE_SYNC,       6, Some("ceCollSync"),   true,  CE_SYNC),
    kind_row("CeBatch",      CE_BATCH,      6, Some("ceCollBatch"),  true,  CE_BATCH),
    kind_row("KernelPhase",  KERNEL_PHASE,  7, Some("kernelPhase"),  false, KERNEL_PHASE),
];

const fn kind_row(
    name: &'static str,
    bit: u64,
    since: u32,
    member: Option<&'static str>,
    ranked: bool,
    asked_by: u64,
) -> Kind {
    Kind { name, bit, since, member, ranked, asked_by }
}

#[rustfmt::skip]
static STATES: [State; 32] = [
    state_row("OpSendPosted",       0, 1..=3, Some("proxyOp")),
    state_row("OpSendRemFifoWait",  1, 1..=3, Some("proxyOp")),
    state_row("OpSendTransmitted",  2, 1..=3, Some("proxyOp")),
    state_row("OpSendDone",         3, 1..=3, Some("proxyOp")),
    state_row("OpRecvPosted",       4, 1..=3, Some("proxyOp")),
    state_row("OpRecvReceived",     5, 1..=3, Some("proxyOp")),
    state_row("OpRecvTransmitted",  6, 1..=3, Some("proxyOp")),
    state_row("OpRecvDone",         7, 1..=3, Some("proxyOp")),
    state_row("StepSendGpuWait",    8, 1..=7, Some("proxyStep")),
    state_row("StepSendWait",       9, 1..=7, Some("proxyStep")),
    state_row("StepRecvWait",      10, 1..=7, Some("proxyStep")),
    state_row("StepRecvFlushWait", 11, 1..=7, Some("proxyStep")),
    state_row("StepRecvGpuWait",   12, 1..=7, Some("proxyStep")),
    state_row("CtrlIdle",          13, 1..=7, Some("proxyCtrl")),
    state_row("CtrlActive",        14, 1..=7, Some("proxyCtrl")),
    state_row("CtrlSleep",         15, 1..=7, Some("proxyCtrl")),
    state_row("CtrlWakeup",        16, 1..=7, Some("proxyCtrl")),
    state_row("CtrlAppend",        17, 1..=7, Some("proxyCtrl")),
    state_row("CtrlAppendEnd",     18, 1..=7, Some("proxyCtrl")),
    state_row("OpInProgress",      19, 4..=7, Some("proxyStep")),
    state_row("StepSendPeerWait",  20, 4..=7, Some("proxyStep")),
    state_row("NetUpdate",         21, 4..=7, Some("netPlugin")),
    state_row("KernelChStop",      22, 4..=7, Some("kernelCh")),
    state_row("GroupStartApiStop", 23, 5..=7, None),
    state_row("GroupEndApiStart",  24, 5..=7, None),
    state_row("CeCollStart",       25, 6..=7, None),
    state_row("CeCollComplete",    26, 6..=7, None),
    state_row("CeSyncStart",       27, 6..=7, None),
    state_row("CeSyncComplete",    28, 6..=7, None),
    state_row("CeBatchStart",      29, 6..=7, None),
    state_row("CeBatchComplete",   30, 6..=7, None),
    state_row("KernelPhaseStop",   31, 7..=7, Some("kernelCh")),
];

const fn state_row(
    name: &'static str,
    value: i32,
    versions: RangeInclusive<u32>,
    member: Option<&'static str>,
) -> State {
    State { name, value, versions, member }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_event_fills_the_descriptor() {
        for version in VERSIONS {
            let end = fields(version).iter().map(|field| field.offset + field.size).max().unwrap();
            assert_eq!(end.next_multiple_of(8), descriptor_size(version), "v{version}");
        }
    }

    #[test]
    fn an_event_has_fields_from_its_first_version_on() {
        for kind in kinds() {
            let Some(member) = kind.member else { continue };
            for version in VERSIONS {
                let present = fields(version).iter().any(|field| field.event == member);
                assert_eq!(present, version >= kind.since, "{} in v{version}", kind.name);
            }
        }
    }

    #[test]
    fn kinds_and_states_are_numbered_without_gaps() {
        for (position, kind) in kinds().iter().enumerate() {
            assert_eq!(kind.bit, 1 << position);
            assert_ne!(kind.asked_by & kind.bit, 0, "{} does not ask for itself", kind.name);
        }
        for (position, state) in states().iter().enumerate() {
            assert_eq!(state.value, position as i32);
        }
    }
}
