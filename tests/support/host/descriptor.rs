//! What a call passes: the descriptor of an event, or a state with its arguments.

use super::text::{Text, intern, text_at};
use super::{Context, RawHandle};
use crate::layout::{self, CType, Field, HEADER, Kind, State};
use std::ffi::{c_int, c_void};

/// Fills every descriptor byte that has no meaning.
pub const GARBAGE: u8 = 0xa5;

/// The type of an event: one that NCCL knows, or any number.
#[derive(Clone, Copy, Debug)]
pub enum EventType<'a> {
    /// The name in [`layout::kinds`].
    Named(&'a str),
    /// The value of the field.
    Number(u64),
}

impl<'a> From<&'a str> for EventType<'a> {
    fn from(name: &'a str) -> Self {
        EventType::Named(name)
    }
}

impl From<u64> for EventType<'_> {
    fn from(number: u64) -> Self {
        EventType::Number(number)
    }
}

/// A state: one that NCCL knows, or any number.
#[derive(Clone, Copy, Debug)]
pub enum StateType<'a> {
    /// The name in [`layout::states`].
    Named(&'a str),
    /// The value of the parameter.
    Number(i32),
}

impl<'a> From<&'a str> for StateType<'a> {
    fn from(name: &'a str) -> Self {
        StateType::Named(name)
    }
}

impl From<i32> for StateType<'_> {
    fn from(number: i32) -> Self {
        StateType::Number(number)
    }
}

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// A number, an address or a handle, cut to the size of the field.
    Bits(u64),
    /// A text that has one address per content, like NCCL's own.
    Text(&'a [u8]),
    /// A text with an address of its own.
    Cell(&'a Text),
    /// What a network plugin reports about an event.
    Net(NetEvent),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Value::Text(text.as_bytes())
    }
}

impl From<RawHandle> for Value<'_> {
    fn from(handle: RawHandle) -> Self {
        Value::Bits(handle.0)
    }
}

macro_rules! value_from_number {
    ($($number:ty),*) => {$(
        impl From<$number> for Value<'_> {
            fn from(number: $number) -> Self {
                Value::Bits(number as u64)
            }
        }
    )*};
}

value_from_number!(bool, u8, i32, u32, i64, u64, usize);

/// The argument of a state.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// What NCCL passes when there is nothing to report: null for the states of a GroupApi and, up
    /// to v3, of a ProxyStep; zero otherwise.
    Default,
    /// A null pointer.
    Null,
    /// The state's field. Ignored where NCCL of that version passes null.
    Value(u64),
    /// Both fields of the ProxyOp states that ended with v3.
    Progress {
        /// Bytes so far.
        trans_size: u64,
        /// Steps so far.
        steps: i32,
    },
    /// What a network plugin reports about the event.
    Net(&'a NetEvent),
}

/// What a network plugin reports about an event of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the interface's structures")]
pub enum NetEvent {
    /// A work request on an InfiniBand queue pair.
    Ib { device: i32, wr_id: u64, opcode: i32, qp: i32, length: u64 },
    /// An operation on a socket.
    Socket { fd: i32, op: i32, length: u64 },
}

impl NetEvent {
    /// The `id` that identifies the structure: the kind of network, and the version of its layout.
    pub fn id(&self) -> i64 {
        match self {
            NetEvent::Ib { .. } => (1 << 16) | 1,
            NetEvent::Socket { .. } => (2 << 16) | 1,
        }
    }

    fn payload(&self) -> Box<Payload> {
        let mut payload = Box::new(Payload([GARBAGE; layout::IB_PAYLOAD_SIZE]));
        let (network, fields): (_, &[(&str, u64)]) = match *self {
            NetEvent::Ib { device, wr_id, opcode, qp, length } => (
                "ib",
                &[
                    ("type", 1),
                    ("device", device as u64),
                    ("wr_id", wr_id),
                    ("opcode", opcode as u64),
                    ("qpNum", qp as u64),
                    ("length", length),
                ],
            ),
            NetEvent::Socket { fd, op, length } => {
                ("socket", &[("type", 1), ("fd", fd as u64), ("op", op as u64), ("length", length)])
            }
        };
        for (name, bits) in fields {
            let field = layout::network_payloads().iter().find(|f| f.event == network && f.name == *name);
            write(&mut payload.0, field.expect("a field of the payload"), *bits);
        }
        payload
    }
}

/// Memory that the plugin may read only during one call.
#[derive(Debug)]
#[repr(C, align(8))]
pub(super) struct Payload([u8; layout::IB_PAYLOAD_SIZE]);

impl Payload {
    pub(super) fn scribble(&mut self) {
        self.0.fill(GARBAGE);
    }

    fn address(&mut self) -> u64 {
        self.0.as_mut_ptr() as usize as u64
    }
}

/// An event descriptor of one version, ready to be sent any number of times.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct Descriptor {
    bytes: [u8; layout::MAX_DESCRIPTOR],
    version: u32,
    event: &'static str,
    pub(super) payload: Option<Box<Payload>>,
}

impl Descriptor {
    /// The address to hand to `startEvent`.
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut c_void {
        self.bytes.as_mut_ptr().cast()
    }

    /// The bytes that the version defines.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..layout::descriptor_size(self.version)]
    }

    /// The position of one of its fields, if the version has it.
    pub fn slot(&self, name: &str) -> Option<Slot> {
        let find = |event| layout::field(self.version, event, name);
        find(self.event).or_else(|| find(HEADER)).map(Slot)
    }

    /// Writes a field.
    #[inline]
    pub fn set(&mut self, slot: Slot, bits: u64) {
        write(&mut self.bytes, &slot.0, bits);
    }

    /// Writes the parent.
    #[inline]
    pub fn set_parent(&mut self, parent: RawHandle) {
        self.bytes[8..16].copy_from_slice(&parent.0.to_ne_bytes());
    }

    pub(super) fn of_kind(
        version: u32,
        context: &Context,
        kind: &Kind,
        fields: &[(&str, Value<'_>)],
        parent: RawHandle,
    ) -> Option<Descriptor> {
        if kind.since > version {
            return None;
        }
        for (name, _) in fields {
            assert!(has_field(kind, name), "{} has no field `{name}`", kind.name);
        }
        let given = |name: &str| fields.iter().rfind(|(field, _)| *field == name).map(|(_, value)| *value);
        let mut descriptor = Descriptor {
            bytes: [GARBAGE; layout::MAX_DESCRIPTOR],
            version,
            event: kind.member.unwrap_or(HEADER),
            payload: None,
        };
        if let Some(Value::Net(event)) = given("net") {
            descriptor.payload = Some(event.payload());
        }
        let parent = match given("parentGroup") {
            Some(Value::Bits(group)) if version <= 4 => RawHandle(group),
            _ => parent,
        };
        let text_or_null = |text: &Option<Text>| text.as_ref().map_or(0, |text| text.as_ptr() as u64);
        for field in layout::fields(version) {
            if field.event != descriptor.event && field.event != HEADER {
                continue;
            }
            let bits = match (given(field.name), field.name) {
                (Some(value), _) => bits(field, value),
                (None, "type") => kind.bit,
                (None, "parentObj") => parent.0,
                (None, "rank") if kind.ranked => context.rank as u64,
                (None, "name") => text_or_null(&context.name),
                (None, "commHash") => context.id,
                (None, "pid") => u64::from(std::process::id()),
                (None, "nMaxChannels") => given("nChannels").map_or(0, |value| bits(field, value)),
                (None, "id" | "data") => match (given("net"), &mut descriptor.payload) {
                    (Some(Value::Net(event)), _) if field.name == "id" => event.id() as u64,
                    (_, Some(payload)) => payload.address(),
                    _ => 0,
                },
                (None, _) => 0,
            };
            write(&mut descriptor.bytes, field, bits);
        }
        Some(descriptor)
    }

    pub(super) fn of_number(
        version: u32,
        number: u64,
        fields: &[(&str, Value<'_>)],
        parent: RawHandle,
    ) -> Option<Descriptor> {
        let mut descriptor =
            Descriptor { bytes: [GARBAGE; layout::MAX_DESCRIPTOR], version, event: HEADER, payload: None };
        for field in layout::fields(version).iter().filter(|field| field.event == HEADER) {
            let given = fields.iter().find(|(name, _)| *name == field.name);
            let bits = match (given, field.name) {
                (Some((_, value)), _) => bits(field, *value),
                (None, "type") if field.size == 1 && number > 0xff => return None,
                (None, "type") => number,
                (None, "parentObj") => parent.0,
                (None, _) => 0,
            };
            write(&mut descriptor.bytes, field, bits);
        }
        Some(descriptor)
    }
}

/// The position of a field in a [`Descriptor`].
#[derive(Clone, Copy, Debug)]
pub struct Slot(Field);

/// A state with its arguments, ready to be sent any number of times.
#[derive(Debug)]
pub struct StateCall {
    pub(super) args: [u64; 2],
    pub(super) state: c_int,
    pub(super) null: bool,
    value: Option<Field>,
    pub(super) payload: Option<Box<Payload>>,
}

impl StateCall {
    /// Writes the field that belongs to the state, if there is one in this version.
    #[inline]
    pub fn set(&mut self, bits: u64) {
        if let Some(field) = self.value {
            let mut bytes = [GARBAGE; 8];
            write(&mut bytes, &Field { offset: 0, ..field }, bits);
            self.args[0] = u64::from_ne_bytes(bytes);
        }
    }

    pub(super) fn of_state(version: u32, state: &State, arg: Arg<'_>) -> Option<StateCall> {
        if !state.versions.contains(&version) {
            return None;
        }
        let fields = layout::state_arguments(version);
        let value = state.member.and_then(|member| fields.iter().find(|field| field.event == member));
        let mut call = StateCall {
            args: [u64::from_ne_bytes([GARBAGE; 8]); 2],
            state: state.value,
            null: value.is_none() || matches!(arg, Arg::Null),
            value: value.copied(),
            payload: None,
        };
        match arg {
            Arg::Default | Arg::Null => call.set(0),
            Arg::Value(bits) => call.set(bits),
            Arg::Progress { trans_size, steps } => {
                call.set(trans_size);
                call.set_steps(steps);
            }
            Arg::Net(event) => call.set_payload(event),
        }
        Some(call)
    }

    pub(super) fn of_number(number: i32, arg: Arg<'_>) -> StateCall {
        let mut call = StateCall {
            args: [u64::from_ne_bytes([GARBAGE; 8]); 2],
            state: number,
            null: matches!(arg, Arg::Default | Arg::Null),
            value: None,
            payload: None,
        };
        match arg {
            Arg::Default | Arg::Null => {}
            Arg::Value(bits) => call.args[0] = bits,
            Arg::Progress { trans_size, steps } => {
                call.args[0] = trans_size;
                call.set_steps(steps);
            }
            Arg::Net(event) => call.set_payload(event),
        }
        call
    }

    fn set_steps(&mut self, steps: i32) {
        let mut bytes = [GARBAGE; 8];
        bytes[..4].copy_from_slice(&steps.to_ne_bytes());
        self.args[1] = u64::from_ne_bytes(bytes);
    }

    fn set_payload(&mut self, event: &NetEvent) {
        let mut payload = event.payload();
        self.args[0] = payload.address();
        self.payload = Some(payload);
    }
}

/// Whether any version has such a field for a start.
pub(crate) fn has_field(kind: &Kind, name: &str) -> bool {
    let header = matches!(name, "parentObj" | "rank");
    let net = name == "net" && kind.name == "NetPlugin";
    header || net || kind.member.is_some_and(|member| layout::field_names(member).contains(&name))
}

fn bits(field: &Field, value: Value<'_>) -> u64 {
    match (value, field.ctype) {
        (Value::Bits(bits), _) => bits,
        (Value::Text(text), CType::Str) => intern(text) as u64,
        (Value::Cell(text), CType::Str) => text.as_ptr() as u64,
        (Value::Text(text), _) => u64::from(enumerated(field.name, &String::from_utf8_lossy(text))),
        (Value::Cell(text), _) => u64::from(enumerated(field.name, &text_at(text.as_ptr()))),
        (Value::Net(_), _) => 0,
    }
}

/// The value that NCCL's headers give a name, for v1, where functions and the like are numbers. A
/// later name has none, and becomes a number that no name has.
fn enumerated(field: &str, name: &str) -> u8 {
    const FUNCTIONS: &[&str] =
        &["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv"];
    // In later versions `ncclUint8` is spelled "Unknown".
    const DATATYPES: &[&str] = &[
        "ncclInt8",
        "Unknown",
        "ncclInt32",
        "ncclUint32",
        "ncclInt64",
        "ncclUint64",
        "ncclFloat16",
        "ncclFloat32",
        "ncclFloat64",
        "ncclBfloat16",
        "ncclFloat8e4m3",
        "ncclFloat8e5m2",
    ];
    const ALGORITHMS: &[&str] = &["TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"];
    const PROTOCOLS: &[&str] = &["LL", "LL128", "SIMPLE"];
    let names = match field {
        "func" => FUNCTIONS,
        "datatype" => DATATYPES,
        "algo" => ALGORITHMS,
        "proto" => PROTOCOLS,
        _ => &[],
    };
    let name = if name == "ncclUint8" { "Unknown" } else { name };
    names.iter().position(|known| *known == name).map_or(u8::MAX, |position| position as u8)
}

#[inline]
fn write(bytes: &mut [u8], field: &Field, bits: u64) {
    let place = &mut bytes[field.offset..][..field.size];
    match field.size {
        1 => place.copy_from_slice(&(bits as u8).to_ne_bytes()),
        4 => place.copy_from_slice(&(bits as u32).to_ne_bytes()),
        _ => place.copy_from_slice(&bits.to_ne_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undefined_bytes_are_garbage() {
        for version in layout::VERSIONS {
            let kind = layout::kind("ProxyOp").unwrap();
            let context = Context::foreign(RawHandle::NULL);
            let descriptor = Descriptor::of_kind(version, &context, kind, &[], RawHandle(7)).unwrap();
            let mut meant = vec![false; layout::MAX_DESCRIPTOR];
            let ours = |field: &&Field| field.event == HEADER || field.event == "proxyOp";
            for field in layout::fields(version).iter().filter(ours) {
                meant[field.offset..][..field.size].fill(true);
            }
            for (byte, meant) in descriptor.bytes.iter().zip(meant) {
                assert!(meant || *byte == GARBAGE);
            }
            assert_eq!(descriptor.bytes[0], 8);
            assert_eq!(descriptor.bytes[1] == GARBAGE, version <= 4);
        }
    }

    #[test]
    fn the_group_is_the_parent_up_to_v4() {
        for version in layout::VERSIONS {
            let kind = layout::kind("Coll").unwrap();
            let context = Context::foreign(RawHandle::NULL);
            let fields = [("parentGroup", Value::Bits(2))];
            let descriptor = Descriptor::of_kind(version, &context, kind, &fields, RawHandle(1)).unwrap();
            let parent = u64::from_ne_bytes(descriptor.bytes[8..16].try_into().unwrap());
            assert_eq!(parent, if version <= 4 { 2 } else { 1 });
        }
    }

    #[test]
    fn names_become_numbers_in_v1() {
        let kind = layout::kind("Coll").unwrap();
        let context = Context::foreign(RawHandle::NULL);
        let fields = [
            ("func", "AllReduce".into()),
            ("datatype", "ncclBfloat16".into()),
            ("algo", "RING".into()),
            ("proto", "SIMPLE".into()),
            ("nChannels", 16.into()),
        ];
        let descriptor = Descriptor::of_kind(1, &context, kind, &fields, RawHandle::NULL).unwrap();
        let byte = |name| descriptor.bytes[descriptor.slot(name).unwrap().0.offset];
        assert_eq!(["func", "datatype", "algo", "proto", "nMaxChannels"].map(byte), [4, 9, 1, 2, 16]);
        assert_eq!(enumerated("func", "AlltoAll"), u8::MAX);
    }

    #[test]
    fn a_number_that_one_byte_cannot_hold_is_left_out() {
        assert!(Descriptor::of_number(4, 0x100000, &[], RawHandle::NULL).is_none());
        assert!(Descriptor::of_number(5, 0x100000, &[], RawHandle::NULL).is_some());
    }
}
