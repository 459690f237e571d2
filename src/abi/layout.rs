//! Checks our C layouts against a table written down independently from NCCL's headers, which a C
//! compiler has confirmed.

use std::mem::offset_of;
use std::ops::RangeInclusive;

use ncclscope_tests::layout as table;

use super::common::{self, Descr, StateArgsV1, StateArgsV4};
use super::{Abi, InitUntold, InitV4, InitV5, Table, v1, v2, v3, v4, v5, v6, v7};

/// One of our fields: member, name as spelt in C, offset, size.
type Ours = (&'static str, String, usize, usize);

/// Adds the fields of a member that lies at this offset.
type Add = fn(&'static str, usize, &mut Vec<Ours>);

trait Fields {
    fn add(member: &'static str, at: usize, ours: &mut Vec<Ours>);
}

/// Lists the fields of each type, and behind `;` the fields that are types of this list.
macro_rules! fields {
    ($($ty:ty { $($field:ident),* $(; $($base:ident: $base_ty:ty),*)? })*) => { $(
        impl Fields for $ty {
            fn add(member: &'static str, at: usize, ours: &mut Vec<Ours>) {
                $(ours.push((
                    member,
                    camel(stringify!($field)),
                    at + offset_of!($ty, $field),
                    size_of_field(|it: &$ty| &raw const it.$field),
                ));)*
                $($(<$base_ty>::add(member, at + offset_of!($ty, $base), ours);)*)?
            }
        }
    )* };
}

fields! {
    common::Identity { name, comm_hash }
    common::KernelCh { channel_id, p_timer }
    common::NetPlugin { id, data }
    common::ProxyOp { pid, channel_id, peer, n_steps, chunk_size, is_send }
    common::ProxyStep { step }
    v1::Coll {
        seq_number, func, send_buff, recv_buff, count, root, datatype, op, traffic_bytes, n_channels, n_warps, algo,
        proto, is_collnet, is_nvls; identity: common::Identity
    }
    v1::P2p { func, buff, datatype, count, peer; identity: common::Identity }
    v2::Coll {
        seq_number, func, send_buff, recv_buff, count, root, datatype, traffic_bytes, n_channels, n_warps, algo,
        proto; identity: common::Identity
    }
    v2::P2p { func, buff, datatype, count, peer; identity: common::Identity }
    v3::Coll {; identity: common::Identity, base: v4::Coll }
    v4::Coll {
        seq_number, func, send_buff, recv_buff, count, root, datatype, n_channels, n_warps, algo, proto
    }
    v4::P2p { func, buff, datatype, count, peer, n_channels }
    v5::GroupApi { graph_captured, group_depth }
    v5::CollApi { func, count, datatype, root, stream, graph_captured }
    v5::P2pApi { func, count, datatype, stream, graph_captured }
    v5::KernelLaunch { stream }
    v5::Coll { parent_group; base: v4::Coll }
    v5::P2p { parent_group; base: v4::P2p }
    v6::CeColl {
        seq_number, func, send_buff, recv_buff, count, root, datatype, sync_strategy, intra_batch_sync, batch_size,
        num_batches, ce_seq_num, stream
    }
    v6::CeCollSync { is_complete, n_ranks }
    v6::CeCollBatch { num_ops, total_bytes, use_intra_sync }
    v7::CollApi { user_tag; base: v5::CollApi }
    v7::P2pApi { user_tag; base: v5::P2pApi }
    v7::Coll { kernel_variant, is_sym_coll, user_tag; base: v5::Coll }
    v7::P2p { user_tag; base: v5::P2p }
    v7::CeColl { user_tag; base: v6::CeColl }
    v7::KernelPhase { channel_id, phase_id, phase_name, p_timer }
}

/// The type of each member, and the versions in which it is that.
const MEMBERS: [(&str, RangeInclusive<u32>, Add); 26] = [
    ("proxyOp", 1..=7, common::ProxyOp::add),
    ("proxyStep", 1..=7, common::ProxyStep::add),
    ("netPlugin", 3..=7, common::NetPlugin::add),
    ("kernelCh", 3..=7, common::KernelCh::add),
    ("coll", 1..=1, v1::Coll::add),
    ("coll", 2..=2, v2::Coll::add),
    ("coll", 3..=3, v3::Coll::add),
    ("coll", 4..=4, v4::Coll::add),
    ("coll", 5..=6, v5::Coll::add),
    ("coll", 7..=7, v7::Coll::add),
    ("p2p", 1..=1, v1::P2p::add),
    ("p2p", 2..=3, v2::P2p::add),
    ("p2p", 4..=4, v4::P2p::add),
    ("p2p", 5..=6, v5::P2p::add),
    ("p2p", 7..=7, v7::P2p::add),
    ("groupApi", 5..=7, v5::GroupApi::add),
    ("collApi", 5..=6, v5::CollApi::add),
    ("collApi", 7..=7, v7::CollApi::add),
    ("p2pApi", 5..=6, v5::P2pApi::add),
    ("p2pApi", 7..=7, v7::P2pApi::add),
    ("kernelLaunch", 5..=7, v5::KernelLaunch::add),
    ("ceColl", 6..=6, v6::CeColl::add),
    ("ceColl", 7..=7, v7::CeColl::add),
    ("ceCollSync", 6..=7, v6::CeCollSync::add),
    ("ceCollBatch", 6..=7, v6::CeCollBatch::add),
    ("kernelPhase", 7..=7, v7::KernelPhase::add),
];

fn size_of_field<S, F>(_: impl Fn(&S) -> *const F) -> usize {
    size_of::<F>()
}

/// `send_buff` as C writes it: `sendBuff`.
fn camel(snake: &str) -> String {
    let mut words = snake.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        camel.push_str(&word[..1].to_uppercase());
        camel.push_str(&word[1..]);
    }
    camel
}

fn check<A: Abi>() {
    let version = u32::from(A::VERSION);
    let body = offset_of!(Descr<A::Bits, A::Body>, body);
    let mut ours = vec![
        (table::HEADER, "type".into(), offset_of!(Descr<A::Bits, A::Body>, bits), size_of::<A::Bits>()),
        (table::HEADER, "parentObj".into(), offset_of!(Descr<A::Bits, A::Body>, parent), 8),
        (table::HEADER, "rank".into(), offset_of!(Descr<A::Bits, A::Body>, rank), 4),
    ];
    for (member, _, add) in MEMBERS.iter().filter(|(_, versions, _)| versions.contains(&version)) {
        add(member, body, &mut ours);
    }
    // Where v3 does not have it yet, it is not read.
    ours.retain(|(member, name, ..)| version > 3 || *member != "kernelCh" || name != "pTimer");
    // Up to v3 it is called nMaxChannels.
    let name = |theirs: &str| if theirs == "nMaxChannels" { "nChannels".into() } else { theirs.into() };
    let mut theirs: Vec<Ours> =
        table::fields(version).iter().map(|it| (it.event, name(it.name), it.offset, it.size)).collect();
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
    check::<v1::V1>();
    check::<v2::V2>();
    check::<v3::V3>();
    check::<v4::V4>();
    check::<v5::V5>();
    check::<v6::V6>();
    check::<v7::V7>();
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
