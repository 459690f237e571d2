//! The user's calls that no plan has carried yet.

use std::sync::Arc;

use super::super::adopt::may_carry;
use super::super::bounded::Bounded;
use super::OPERATIONS;
use crate::model::event::Event;
use crate::model::ids::Handle;
use crate::model::timeline::{Operation, Unmatched};
use crate::model::word::Word;

/// How many groups of calls are remembered for launches that belong to no plan.
const CALLS: usize = 4096;

/// Calls, by the GroupApi in which they were made.
#[derive(Debug, Default)]
pub(in super::super) struct Calls {
    by_group: Bounded<Handle, Vec<Call>>,
    /// How many kernels were launched for calls of a group without a KernelLaunch, less those that
    /// were claimed.
    launched: Bounded<Handle, u32>,
}

/// A call by the user that asks for an operation.
#[derive(Debug)]
struct Call {
    id: Handle,
    context: Handle,
    operation: Arc<Operation>,
}

impl Calls {
    /// A call was made.
    pub(in super::super) fn add(&mut self, id: Handle, context: Handle, group_api: Handle, operation: &Arc<Operation>) {
        let calls = self.by_group.entry(group_api, CALLS);
        if calls.len() < OPERATIONS {
            calls.push(Call { id, context, operation: Arc::clone(operation) });
        }
    }

    /// A call is carried by something that NCCL reports.
    pub(in super::super) fn carried(&mut self, group_api: Handle, call: Handle) {
        if let Some(calls) = self.by_group.get_mut(&group_api) {
            calls.retain(|made| made.id != call);
            if calls.is_empty() {
                self.by_group.remove(&group_api);
            }
        }
    }

    /// The calls on a communicator.
    pub(in super::super) fn of(&self, group_api: Handle, context: Handle) -> Vec<Handle> {
        self.all(group_api).filter(|call| call.context == context).map(|call| call.id).collect()
    }

    /// Whether there are calls on a communicator whose operations are numbered when they are handed
    /// over: those that were not captured. NCCL does not hand over all broadcasts.
    pub(in super::super) fn has_numbers(&self, group_api: Handle, context: Handle) -> bool {
        let is_one = |event: &Event| match event {
            Event::P2pApi(call) => !call.captured.is_set(),
            Event::CollApi(call) => !call.captured.is_set() && call.func != Word::BROADCAST,
            _ => false,
        };
        self.all(group_api).any(|call| call.context == context && is_one(&call.operation.event))
    }

    /// Whether this is a GroupApi with calls that no plan has carried.
    pub(super) fn is_group(&self, id: Handle) -> bool {
        self.by_group.get(&id).is_some()
    }

    /// The operations that the calls ask for.
    pub(super) fn operations(&self, group_api: Handle) -> Vec<Arc<Operation>> {
        self.all(group_api).map(|call| Arc::clone(&call.operation)).collect()
    }

    /// How many of a function there are on a communicator.
    pub(in super::super) fn collectives(&self, group_api: Handle, context: Handle, func: Word) -> u32 {
        let is_one = |call: &&Call| call.context == context && call.operation.func() == func;
        self.all(group_api).filter(is_one).count() as u32
    }

    /// Takes the captured broadcasts of a group if there is nothing else in it, and their
    /// communicator.
    pub(super) fn captured(&mut self, group_api: Handle) -> Option<(Handle, Vec<Arc<Operation>>)> {
        let context = self.all(group_api).next()?.context;
        let is_one = |call: &Call| call.context == context && call.operation.number >= Operation::CAPTURED;
        if !self.all(group_api).all(|call| is_one(call) && call.operation.func() == Word::BROADCAST) {
            return None;
        }
        let calls = self.by_group.remove(&group_api)?;
        Some((context, calls.into_iter().map(|call| call.operation).collect()))
    }

    /// One of NCCL's kernels was launched for calls of this group, without a KernelLaunch.
    pub(super) fn launched(&mut self, group_api: Handle) {
        *self.launched.entry(group_api, CALLS) += 1;
    }

    /// Takes what a kernel on this device carries, and its communicator. A kernel belongs to one
    /// communicator. Where one has several kernels, as for symmetric memory one for each function
    /// and datatype, the kernel's name has to leave no doubt.
    ///
    /// # Errors
    ///
    /// Why that is not known.
    pub(super) fn claim(
        &mut self,
        group_api: Handle,
        (device, name): (u32, &str),
        device_of: &dyn Fn(Handle) -> Option<u32>,
    ) -> Result<(Handle, Vec<Arc<Operation>>), Unmatched> {
        let calls = self.by_group.get_mut(&group_api).ok_or(Unmatched::NoCall)?;
        let mut contexts: Vec<Handle> = calls.iter().map(|call| call.context).collect();
        contexts.sort_unstable();
        contexts.dedup();
        let launched = self.launched.entry(group_api, CALLS);
        let has_several = *launched as usize > contexts.len();
        let may_be = |call: &Call| {
            device_of(call.context).is_none_or(|known| known == device)
                && (!has_several || may_carry(name, &[call.operation.func()]))
        };
        let Some(first) = calls.iter().find(|call| may_be(call)) else { return Err(Unmatched::NoCall) };
        let (context, asked) = (first.context, (first.operation.func(), first.operation.datatype()));
        let is_same = |call: &Call| {
            call.context == context && (!has_several || (call.operation.func(), call.operation.datatype()) == asked)
        };
        if calls.iter().any(|call| may_be(call) && !is_same(call)) {
            return Err(Unmatched::SeveralCalls);
        }
        *launched = launched.saturating_sub(1);
        let carried = calls.extract_if(.., |call| call.context == context && may_be(call));
        Ok((context, carried.map(|call| call.operation).collect()))
    }

    fn all(&self, group_api: Handle) -> impl Iterator<Item = &Call> {
        self.by_group.get(&group_api).into_iter().flatten()
    }
}
