//! Checks our C layouts against a table written down independently from NCCL's headers, which a C
//! compiler has confirmed.

use std::mem::offset_of;

use ncclscope_tests::layout as table;

use super::common::{self, Descr, StateArgsV1, StateArgsV4};
use super::{Abi, InitUntold, InitV4, InitV5, Table, v1, v2, v3, v4, v5, v6, v7};

/// One of our fields: member, name as spelt in C, offset, size.
pub(super) type Ours = (&'static str, String, usize, usize);

/// Lists the fields of a version's own members: `layout_of!(V1: coll = Coll { name, .. }, ..)`.
macro_rules! layout_of {
    ($version:ident: $($member:ident = $ty:ty { $($field:ident),* $(,)? }),* $(,)?) => {
        pub(super) fn layout() -> Vec<$crate::abi::layout::Ours> {
            let body = std::mem::offset_of!(
                $crate::abi::common::Descr<<$version as $crate::abi::Abi>::Bits, Body>, body
            );
            let mut fields = Vec::new();
            $($(fields.push((
                stringify!($member),
                $crate::abi::layout::camel(stringify!($field)),
                body + std::mem::offset_of!($ty, $field),
                $crate::abi::layout::size_of_field(|it: &$ty| &raw const it.$field),
            ));)*)*
            fields
        }
    };
}
pub(super) use layout_of;

pub(super) fn size_of_field<S, F>(_: impl Fn(&S) -> *const F) -> usize {
    size_of::<F>()
}

/// `send_buff` as C writes it: `sendBuff`.
pub(super) fn camel(snake: &str) -> String {
    let mut words = snake.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        camel.push_str(&word[..1].to_uppercase());
        camel.push_str(&word[1..]);
    }
    camel
}

fn check<A: Abi>(version: u32, own: Vec<Ours>) {
    let body = offset_of!(Descr<A::Bits, A::Body>, body);
    let mut ours = own;
    ours.push((table::HEADER, "type".into(), offset_of!(Descr<A::Bits, A::Body>, bits), size_of::<A::Bits>()));
    ours.push((table::HEADER, "parentObj".into(), offset_of!(Descr<A::Bits, A::Body>, parent), 8));
    ours.push((table::HEADER, "rank".into(), offset_of!(Descr<A::Bits, A::Body>, rank), 4));
    for (name, offset, size) in [
        ("pid", offset_of!(common::ProxyOp, pid), 4),
        ("channelId", offset_of!(common::ProxyOp, channel_id), 1),
        ("peer", offset_of!(common::ProxyOp, peer), 4),
        ("nSteps", offset_of!(common::ProxyOp, n_steps), 4),
        ("chunkSize", offset_of!(common::ProxyOp, chunk_size), 4),
        ("isSend", offset_of!(common::ProxyOp, is_send), 4),
    ] {
        ours.push(("proxyOp", name.into(), body + offset, size));
    }
    ours.push(("proxyStep", "step".into(), body + offset_of!(common::ProxyStep, step), 4));
    if version >= 3 {
        ours.push(("netPlugin", "id".into(), body + offset_of!(common::NetPlugin, id), 8));
        ours.push(("netPlugin", "data".into(), body + offset_of!(common::NetPlugin, data), 8));
    }
    let mut theirs: Vec<Ours> =
        table::fields(version).iter().map(|it| (it.event, it.name.to_owned(), it.offset, it.size)).collect();
    ours.sort();
    theirs.sort();
    pretty_assert(&ours, &theirs, version);
    assert_eq!(size_of::<Descr<A::Bits, A::Body>>(), table::descriptor_size(version), "descriptor of v{version}");
    assert_eq!(size_of::<A::StateArgs>(), table::state_argument_size(version), "state arguments of v{version}");
}

fn pretty_assert(ours: &[Ours], theirs: &[Ours], version: u32) {
    let only = |a: &[Ours], b: &[Ours]| a.iter().filter(|field| !b.contains(field)).cloned().collect::<Vec<_>>();
    let (extra, missing) = (only(ours, theirs), only(theirs, ours));
    assert!(extra.is_empty() && missing.is_empty(), "v{version}: only ours {extra:?}, only the table's {missing:?}");
}

#[test]
fn every_field_lies_where_nccl_puts_it() {
    check::<v1::V1>(1, v1::layout());
    check::<v2::V2>(2, v2::layout());
    check::<v3::V3>(3, v3::layout());
    check::<v4::V4>(4, v4::layout());
    check::<v5::V5>(5, v5::layout());
    check::<v6::V6>(6, v6::layout());
    check::<v7::V7>(7, v7::layout());
}

#[test]
fn state_arguments_lie_where_nccl_puts_them() {
    let old = |name| match name {
        "transSize" => offset_of!(common::ProxyOpState, trans_size),
        "steps" => offset_of!(common::ProxyOpState, steps),
        "appendedProxyOps" => offset_of!(StateArgsV1, appended_proxy_ops),
        other => panic!("no field {other} in v1"),
    };
    let new = |name| match name {
        "transSize" => offset_of!(StateArgsV4, trans_size),
        "appendedProxyOps" => offset_of!(StateArgsV4, appended_proxy_ops),
        "data" => offset_of!(StateArgsV4, data),
        "pTimer" => offset_of!(StateArgsV4, p_timer),
        other => panic!("no field {other} in v4"),
    };
    for version in table::VERSIONS {
        for field in table::state_arguments(version) {
            let ours = if version < 4 { old(field.name) } else { new(field.name) };
            assert_eq!(ours, field.offset, "v{version} {}", field.name);
        }
    }
}

#[test]
fn network_payloads_lie_where_nccl_puts_them() {
    use common::{NetInfiniband, NetSocket, QueuePair, Socket};
    let (ib, sock) = (offset_of!(NetInfiniband, qp), offset_of!(NetSocket, sock));
    let ours = [
        ("ib", "type", offset_of!(NetInfiniband, kind)),
        ("ib", "device", ib + offset_of!(QueuePair, device)),
        ("ib", "wr_id", ib + offset_of!(QueuePair, wr_id)),
        ("ib", "opcode", ib + offset_of!(QueuePair, opcode)),
        ("ib", "qpNum", ib + offset_of!(QueuePair, qp_num)),
        ("ib", "length", ib + offset_of!(QueuePair, length)),
        ("socket", "type", offset_of!(NetSocket, kind)),
        ("socket", "fd", sock + offset_of!(Socket, fd)),
        ("socket", "op", sock + offset_of!(Socket, op)),
        ("socket", "length", sock + offset_of!(Socket, length)),
    ];
    for field in table::network_payloads() {
        let found = ours.iter().find(|(network, name, _)| {
            field.event.to_lowercase().contains(network) && field.name.eq_ignore_ascii_case(name)
        });
        let (_, _, offset) = found.unwrap_or_else(|| panic!("no field {} {}", field.event, field.name));
        assert_eq!(*offset, field.offset, "{} {}", field.event, field.name);
    }
    assert_eq!(size_of::<NetInfiniband>(), table::IB_PAYLOAD_SIZE);
    assert_eq!(size_of::<NetSocket>(), table::SOCKET_PAYLOAD_SIZE);
}

#[test]
fn the_function_table_has_the_same_layout_in_every_version() {
    macro_rules! check {
        ($($abi:ty, $init:ty;)*) => { $(
            let ours = [
                offset_of!(Table<$abi, $init>, name),
                offset_of!(Table<$abi, $init>, init),
                offset_of!(Table<$abi, $init>, start_event),
                offset_of!(Table<$abi, $init>, stop_event),
                offset_of!(Table<$abi, $init>, record_event_state),
                offset_of!(Table<$abi, $init>, finalize),
            ];
            let theirs: Vec<_> = table::function_table().iter().map(|field| field.offset).collect();
            assert_eq!(ours, theirs[..]);
            assert_eq!(size_of::<Table<$abi, $init>>(), table::FUNCTION_TABLE_SIZE);
        )* };
    }
    check! {
        v1::V1, InitUntold; v2::V2, InitUntold; v3::V3, InitUntold; v4::V4, InitV4;
        v5::V5, InitV5; v6::V6, InitV5; v7::V7, InitV5;
    }
}
