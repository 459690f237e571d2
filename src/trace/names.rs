//! The wording of the trace: names of slices and tracks, sizes, all in one place.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use cpp_demangle::{DemangleOptions, Symbol};

use super::words::{track, wait};
use super::writer::Name;
use crate::model::activity::CopyKind;
use crate::model::all_to_all::{AllToAll, Exchange};
use crate::model::event::Event;
use crate::model::state;
use crate::model::timeline::{Comm, Delay, Operation};
use crate::model::word::Word;

/// The label of a process that has another number in a trace of several hosts than on its own:
/// `pid 7 on its host`.
#[cfg(feature = "cli")]
pub fn pid_on_its_host(pid: u64) -> String {
    format!("pid {pid} on its host")
}

/// The label of a process that stands for a further GPU of the one with this number.
pub fn of_process(pid: i32) -> String {
    format!("of process {pid}")
}

/// The number that a process has on its host, in such a label.
#[cfg(feature = "cli")]
pub fn told_pid(label: &str) -> Option<i32> {
    let moved = || label.strip_prefix("pid ")?.strip_suffix(" on its host");
    label.strip_prefix("of process ").or_else(moved)?.parse().ok()
}

/// A text that is the same for all events of its kind.
pub struct Fixed<'a>(pub &'a str);

/// A text made for one event.
pub struct Text<'a>(pub &'a str);

/// An operation: `AllReduce 16 MiB f32`, `Send 1 MiB f32 → 3`. The name of a call has NCCL's
/// prefix.
pub struct OperationName<'a> {
    /// The operation.
    pub operation: &'a Operation,
    /// What precedes it.
    pub prefix: &'static str,
}

/// A proxy operation: named by its operation if that is known, else by what is known.
pub struct ProxyOpName<'a> {
    /// The operation it belongs to.
    pub operation: Option<&'a Operation>,
    /// NCCL's channel.
    pub channel: u8,
}

/// Proxy operations of a connection that still queue: the first of them, and how many more.
pub struct QueuedName<'a> {
    /// The first.
    pub first: ProxyOpName<'a>,
    /// How many others there are.
    pub more: u64,
}

/// A kernel that carried operations: an all-to-all, or the first of them and how many more.
pub struct CarriedName<'a> {
    /// The communicator.
    pub comm: Option<&'a Comm>,
    /// The operations.
    pub operations: &'a [Arc<Operation>],
}

/// A transfer of an operation: `step 3 · AllReduce 16 MiB f32`.
pub struct StepName<'a> {
    /// Its number.
    pub step: i64,
    /// The operation, if it is known.
    pub operation: Option<&'a Operation>,
}

/// A kernel, by its name in the symbol table.
pub struct KernelName<'a>(pub &'a str);

impl Name for Fixed<'_> {
    fn key(&self) -> u64 {
        hash((0_u8, self.0))
    }

    fn write(&self, text: &mut String) {
        text.push_str(self.0);
    }
}

impl Name for Text<'_> {
    fn key(&self) -> u64 {
        hash((1_u8, self.0))
    }

    fn write(&self, text: &mut String) {
        text.push_str(self.0);
    }
}

impl Name for StepName<'_> {
    fn key(&self) -> u64 {
        let operation = self.operation.map(|operation| OperationName { operation, prefix: "" }.key());
        hash((2_u8, self.step, operation))
    }

    fn write(&self, text: &mut String) {
        let _ = write!(text, "step {}", self.step);
        if let Some(operation) = self.operation {
            text.push_str(" · ");
            write_operation(operation, text);
        }
    }
}

impl Name for KernelName<'_> {
    fn key(&self) -> u64 {
        hash((8_u8, self.0))
    }

    fn write(&self, text: &mut String) {
        text.push_str(&demangled(self.0));
    }
}

/// The name of a function as written in source code, without parameters and return type, if it is
/// mangled.
#[must_use]
pub fn demangled(name: &str) -> Cow<'_, str> {
    let Some(rest) = name.strip_prefix("_Z") else { return name.into() };
    // With its parameters, an instance of a function template would show its return type, too.
    let options = DemangleOptions::default().no_params().no_return_type();
    match Symbol::new(name).ok().and_then(|symbol| symbol.demangle_with_options(&options).ok()) {
        Some(plain) => plain.into(),
        // Truncated or foreign manglings: the first identifier, as in `_Z41ncclDevKernel_...`.
        None => rest.trim_start_matches(|it: char| it.is_ascii_digit()).into(),
    }
}

/// The most letters of a kernel's name in a line of text.
const SHORT: usize = 60;

/// A kernel's name for a line of text: if it is long, without the arguments of its templates, and
/// cut if that is not enough.
#[must_use]
pub fn short(name: &str) -> Cow<'_, str> {
    if name.chars().count() <= SHORT {
        return name.into();
    }
    let (mut plain, mut depth) = (String::new(), 0_usize);
    for letter in name.chars() {
        match letter {
            '<' => {
                plain.push_str(if depth == 0 { "<…>" } else { "" });
                depth += 1;
            }
            '>' if depth > 0 => depth -= 1,
            letter if depth == 0 => plain.push(letter),
            _ => {}
        }
    }
    if let Some((end, _)) = plain.char_indices().nth(SHORT) {
        plain.truncate(end);
        plain.pop();
        plain.push('…');
    }
    plain.into()
}

impl Name for OperationName<'_> {
    fn key(&self) -> u64 {
        let operation = self.operation;
        let texts = operation.texts.as_ref().map(|texts| (&texts.func, &texts.datatype));
        let peer = peer(operation);
        hash((3_u8, self.prefix, operation.func().0, operation.datatype().0, operation.count(), peer, texts))
    }

    fn write(&self, text: &mut String) {
        text.push_str(self.prefix);
        write_operation(self.operation, text);
    }
}

impl CarriedName<'_> {
    /// The all-to-all that the operations form, and its datatype.
    fn all_to_all(&self) -> Option<(AllToAll, Word)> {
        let (comm, [first, _, ..]) = (self.comm?, self.operations) else { return None };
        let mut exchange = Exchange::of(Some(comm.rank), u32::try_from(comm.ranks).ok());
        for operation in self.operations {
            let is_send = operation.func() == Word::SEND;
            if !is_send && operation.func() != Word::RECV || operation.datatype() != first.datatype() {
                return None;
            }
            exchange.add(is_send, peer(operation), operation.bytes());
        }
        Some((exchange.all_to_all()?, first.datatype()))
    }
}

impl Name for CarriedName<'_> {
    fn key(&self) -> u64 {
        if let Some((all_to_all, datatype)) = self.all_to_all() {
            return hash((9_u8, all_to_all, datatype.0, self.comm.map(|comm| comm.ranks)));
        }
        let first = self.operations.first().map(|operation| OperationName { operation, prefix: "" }.key());
        hash((6_u8, first, self.operations.len()))
    }

    fn write(&self, text: &mut String) {
        match self.operations {
            [] => text.push_str("no operation"),
            [operation] => write_operation(operation, text),
            [first, rest @ ..] => match (self.all_to_all(), self.comm) {
                (Some((all_to_all, datatype)), Some(comm)) => {
                    text.push_str("AlltoAll");
                    match all_to_all {
                        // What a rank sends in all.
                        AllToAll::Equal(bytes) => {
                            text.push(' ');
                            write_size(bytes.saturating_mul(u64::from(comm.ranks.unsigned_abs())), text);
                        }
                        AllToAll::Unequal => text.push('v'),
                    }
                    if let Some(datatype) = datatype.short_datatype() {
                        text.push(' ');
                        text.push_str(datatype);
                    }
                }
                _ => {
                    write_operation(first, text);
                    let _ = write!(text, " and {} more", rest.len());
                }
            },
        }
    }
}

impl Name for ProxyOpName<'_> {
    fn key(&self) -> u64 {
        match self.operation {
            Some(operation) => hash((4_u8, OperationName { operation, prefix: "" }.key(), self.channel)),
            None => hash((5_u8, self.channel)),
        }
    }

    fn write(&self, text: &mut String) {
        match self.operation {
            Some(operation) => write_operation(operation, text),
            None => text.push_str("unknown operation"),
        }
        let _ = write!(text, " ch {}", self.channel);
    }
}

impl Name for QueuedName<'_> {
    fn key(&self) -> u64 {
        hash((7_u8, self.first.key(), self.more))
    }

    fn write(&self, text: &mut String) {
        self.first.write(text);
        if self.more > 0 {
            let _ = write!(text, " and {} more", self.more);
        }
        text.push_str(" queued");
    }
}

fn write_operation(operation: &Operation, text: &mut String) {
    let texts = operation.texts.as_deref();
    let func = texts.and_then(|texts| texts.func.as_deref()).or(operation.func().spelling());
    text.push_str(func.unwrap_or("operation"));
    match operation.bytes() {
        Some(bytes) => {
            text.push(' ');
            write_size(bytes, text);
        }
        None if operation.has_count() => {
            let _ = write!(text, " {} elements", operation.count());
        }
        None => {}
    }
    // For AllGather and Broadcast NCCL counts bytes, whatever the application passed.
    let counts_bytes = matches!(operation.event, Event::Coll(_))
        && matches!(operation.func(), Word::ALL_GATHER | Word::BROADCAST)
        && operation.datatype() == Word::INT8;
    if !counts_bytes && let Some(datatype) = operation.datatype().short_datatype() {
        text.push(' ');
        text.push_str(datatype);
    }
    if let Some(peer) = peer(operation) {
        let arrow = if operation.func() == Word::RECV { '←' } else { '→' };
        let _ = write!(text, " {arrow} {peer}");
    }
}

fn peer(operation: &Operation) -> Option<i32> {
    match &operation.event {
        Event::P2p(p2p) => Some(p2p.peer),
        _ => None,
    }
}

/// A size in binary units, with at most one decimal: `512 B`, `16 MiB`, `1.5 GiB`.
pub fn write_size(bytes: u64, text: &mut String) {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        let _ = write!(text, "{bytes} B");
        return;
    }
    let mut scale = 1024_u64;
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes / scale >= 1024 {
        scale <<= 10;
        unit += 1;
    }
    let tenths = ((u128::from(bytes) * 10 + u128::from(scale / 2)) / u128::from(scale)) as u64;
    match (tenths / 10, tenths % 10) {
        (whole, 0) => write!(text, "{whole} {}", UNITS[unit]),
        (whole, tenth) => write!(text, "{whole}.{tenth} {}", UNITS[unit]),
    }
    .ok();
}

/// What a communicator without a name is called that has every rank of the job.
pub const ALL: &str = "all";

/// A short name for a communicator: its own name, like `dp`. Without one it is `all`, if it
/// contains every rank of the job under its number there. Otherwise it is the short hash, like
/// `1f2e3d4c`, and whether the communicator stays on this host. `world` is this process's rank in
/// the job and the size of the job.
#[must_use]
pub fn short_comm(comm: &Comm, world: Option<(u32, u32)>) -> String {
    let is_all =
        world.is_some_and(|(rank, size)| (i64::from(rank), i64::from(size)) == (comm.rank.into(), comm.ranks.into()));
    match (&comm.name, comm.hash) {
        (Some(name), _) => group_name(name).to_owned(),
        (None, _) if is_all => ALL.to_owned(),
        (None, 0) => format!("communicator {}", comm.number),
        (None, hash) => unnamed_comm(hash, comm.nodes),
    }
}

/// A communicator with only a hash, on this many hosts.
#[must_use]
pub fn unnamed_comm(hash: u64, hosts: i32) -> String {
    if hosts == 1 { format!("this host {}", short_hash(hash)) } else { short_hash(hash) }
}

/// A short form of NCCL's hash of a communicator: `1f2e3d4c`.
#[must_use]
pub fn short_hash(hash: u64) -> String {
    format!("{:08x}", (hash ^ hash >> 32) as u32)
}

/// The part of a name that is most useful to people. PyTorch's names are `description:name`, with
/// `undefined` where the group has no description.
#[must_use]
pub fn group_name(name: &str) -> &str {
    match name.split_once(':') {
        Some(("undefined" | "", rest)) if !rest.is_empty() => rest,
        Some((description, _)) if !description.is_empty() => description,
        _ => name,
    }
}

/// A communicator's track, from its [`short_comm`]: `dp · rank 3 of 64`.
#[must_use]
pub fn comm(short: &str, comm: &Comm) -> String {
    match (comm.rank, comm.ranks) {
        (rank, ranks) if rank >= 0 && ranks >= 0 => format!("{short}{}{rank} of {ranks}", track::RANK),
        _ => short.to_owned(),
    }
}

/// An operation while its kernel runs and the proxy has not begun.
pub(super) fn late(why: Option<Delay>) -> &'static str {
    match why {
        Some(Delay::Asleep) => wait::PROXY_ASLEEP,
        Some(Delay::Append) => wait::PROXY_APPEND,
        Some(Delay::Busy) => wait::PROXY_BUSY,
        None => wait::PROXY,
    }
}

/// Why it waits, from what `late` called it.
#[must_use]
pub fn delay(name: &str) -> Option<Delay> {
    [Delay::Asleep, Delay::Append, Delay::Busy].into_iter().find(|why| late(Some(*why)) == name)
}

/// `2.28.9`, from NCCL's version number.
#[must_use]
pub fn nccl_version(number: u32) -> String {
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}

/// The separator between a process and its GPU.
const ON_GPU: &str = " · GPU ";

/// A process by its GPU: `rank 3 · node17 · GPU 3 (H200)`.
#[must_use]
pub fn on_gpu(process: &str, device: u32, model: Option<&str>) -> String {
    match model.map(|model| model.strip_prefix("NVIDIA ").unwrap_or(model)) {
        Some(model) => format!("{process}{ON_GPU}{device} ({model})"),
        None => format!("{process}{ON_GPU}{device}"),
    }
}

/// A process's name without its GPU, and the GPU's number if the name has one.
#[must_use]
pub fn without_gpu(name: &str) -> (&str, Option<u32>) {
    let Some((process, gpu)) = name.rsplit_once(ON_GPU) else { return (name, None) };
    match gpu.split(' ').next().unwrap_or_default().parse() {
        Ok(device) => (process, Some(device)),
        Err(_) => (name, None),
    }
}

/// The name of a copy.
#[must_use]
pub fn copy(kind: CopyKind) -> &'static str {
    match kind {
        CopyKind::HostToDevice => "copy host → device",
        CopyKind::DeviceToHost => "copy device → host",
        CopyKind::DeviceToDevice => "copy on the device",
        CopyKind::PeerToPeer => "copy to another device",
        CopyKind::Set => "memset",
        CopyKind::Other(_) => "copy",
    }
}

/// What a proxy operation does in this state of NCCL up to 2.26.
#[must_use]
pub fn proxy_op_phase(number: u16) -> &'static str {
    match number {
        state::PROXY_OP_SEND_POSTED | state::PROXY_OP_RECV_POSTED => "posted",
        state::PROXY_OP_SEND_REM_FIFO_WAIT => "remote FIFO wait",
        state::PROXY_OP_SEND_TRANSMITTED | state::PROXY_OP_RECV_TRANSMITTED => "transmitted",
        state::PROXY_OP_RECV_RECEIVED => "received",
        _ => "done",
    }
}

/// A duration for people: `812 ns`, `15.2 µs`, `3.41 ms`, `2.05 s`.
#[must_use]
pub fn duration(ns: f64) -> String {
    let digits = |value: f64| if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    let text = |value: f64, unit: &str| format!("{value:.*} {unit}", digits(value));
    match ns.abs() {
        small if small < 1e3 => format!("{ns:.0} ns"),
        small if small < 1e6 => text(ns / 1e3, "µs"),
        small if small < 1e9 => text(ns / 1e6, "ms"),
        _ => text(ns / 1e9, "s"),
    }
}

/// `bytes` as a string, see [`write_size`].
#[must_use]
pub fn size(bytes: u64) -> String {
    let mut text = String::new();
    write_size(bytes, &mut text);
    text
}

/// A path as a shell reads it.
#[must_use]
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "-_=/.,:+@%".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// A collision would give an event the name of another, so the hash must be a good one.
fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        for (ns, text) in [
            (0.0, "0 ns"),
            (812.4, "812 ns"),
            (1520.0, "1.52 µs"),
            (15_240.0, "15.2 µs"),
            (3.41e6, "3.41 ms"),
            (2e9, "2.00 s"),
        ] {
            assert_eq!(duration(ns), text);
        }
        assert_eq!(duration(-1520.0), "-1.52 µs");
    }

    #[test]
    fn long_names_fit_a_line() {
        let long =
            "at::native::unrolled_elementwise_kernel<at::native::CUDAFunctorOnSelf_add<float>, std::array<char *, 2>>";
        let chain = "nvjet_tst_".repeat(10);
        for (name, expected) in [
            ("step<true, 2>", "step<true, 2>"),
            (long, "at::native::unrolled_elementwise_kernel<…>"),
            (&format!("{long}::operator->"), "at::native::unrolled_elementwise_kernel<…>::operator->"),
            (&chain, &format!("{}…", &chain[..59])),
        ] {
            assert_eq!(short(name), expected);
        }
    }

    #[test]
    fn kernels_are_named_as_people_write_them() {
        for (symbol, name) in [
            ("vector_add", "vector_add"),
            ("_Z6matmulPfi", "matmul"),
            ("_Z4stepILb1ELi2EEvPf", "step<true, 2>"),
            (
                "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            ),
            ("_Z41ncclDevKernel_AllReduce_Sum_f32_RI", "ncclDevKernel_AllReduce_Sum_f32_RI"),
            ("_Z", ""),
        ] {
            let mut text = String::new();
            KernelName(symbol).write(&mut text);
            assert_eq!(text, name);
        }
    }

    #[test]
    fn processes_are_named_with_their_gpu_and_recognised_without_it() {
        for (model, name) in [
            (Some("NVIDIA H200"), "rank 3 · node17 · GPU 3 (H200)"),
            (Some("GRID V100 (8 GB)"), "rank 3 · node17 · GPU 3 (GRID V100 (8 GB))"),
            (None, "rank 3 · node17 · GPU 3"),
        ] {
            assert_eq!(on_gpu("rank 3 · node17", 3, model), name);
            assert_eq!(without_gpu(name), ("rank 3 · node17", Some(3)));
        }
        for name in ["rank 3 · node17", "python3", "a · GPU farm"] {
            assert_eq!(without_gpu(name), (name, None));
        }
    }

    #[test]
    fn pytorch_groups_are_named_by_their_description() {
        for (name, told) in [
            ("dp", "dp"),
            ("DATA_PARALLEL_GROUP:4", "DATA_PARALLEL_GROUP"),
            ("default_pg:0", "default_pg"),
            ("undefined:mesh_tp", "mesh_tp"),
            (":7", "7"),
            ("odd:", "odd"),
            (":", ":"),
            ("", ""),
        ] {
            assert_eq!(group_name(name), told, "{name}");
        }
    }

    #[test]
    fn sizes_read_well() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (16 << 20, "16 MiB"),
            ((1 << 30) - 1, "1024 MiB"),
            (3 << 29, "1.5 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
