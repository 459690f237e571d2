//! The user's calls that no plan has carried yet.

use std::sync::Arc;

use super::super::bounded::Bounded;
use super::OPERATIONS;
use crate::model::ids::Handle;
use crate::model::timeline::Operation;
use crate::model::word::Word;

/// How many groups of calls are remembered for launches that belong to no plan.
const CALLS: usize = 4096;

/// Calls, by the GroupApi in which they were made.
#[derive(Debug, Default)]
pub(in super::super) struct Calls {
    by_group: Bounded<Handle, Vec<Call>>,
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

    /// The operations that the calls ask for.
    pub(super) fn operations(&self, group_api: Handle) -> Vec<Arc<Operation>> {
        self.all(group_api).map(|call| Arc::clone(&call.operation)).collect()
    }

    /// How many broadcasts there are on a communicator.
    pub(super) fn broadcasts(&self, group_api: Handle, context: Handle) -> u32 {
        let is_one = |call: &&Call| call.context == context && call.operation.func() == Word::BROADCAST;
        self.all(group_api).filter(is_one).count() as u32
    }

    /// Takes what a kernel on this device carries, and its communicator. A kernel belongs to one
    /// communicator; `None` if it may be one of several.
    pub(super) fn claim(
        &mut self,
        group_api: Handle,
        device: u32,
        device_of: &dyn Fn(Handle) -> Option<u32>,
    ) -> Option<(Handle, Vec<Arc<Operation>>)> {
        let calls = self.by_group.get_mut(&group_api)?;
        let may_be = |call: &&Call| device_of(call.context).is_none_or(|known| known == device);
        let mut contexts = calls.iter().filter(may_be).map(|call| call.context);
        let first = contexts.next()?;
        if contexts.any(|context| context != first) {
            return None;
        }
        Some((first, calls.extract_if(.., |call| call.context == first).map(|call| call.operation).collect()))
    }

    fn all(&self, group_api: Handle) -> impl Iterator<Item = &Call> {
        self.by_group.get(&group_api).into_iter().flatten()
    }
}
