//! The first pass: which texts of a file name a host, a communicator, a thread. Texts that mention
//! them may come earlier in the file.

use std::collections::BTreeSet;
use std::path::Path;

use super::kind::Kind;
use super::stand::StandIns;
use super::words;
use crate::cli::reason::Reason;
use crate::cli::survey;
use crate::trace::fields::nccl;
use crate::trace::names;
use crate::trace::reader::Packet;
use crate::trace::words::{Category, attribute};

/// What a file turned out to be.
#[derive(Default)]
pub(super) struct Known {
    ranks: BTreeSet<u32>,
    processes: BTreeSet<u64>,
    is_ours: bool,
}

impl Known {
    /// Reads a file and notes what is named in it.
    pub(super) fn read(path: &Path, stand: &mut StandIns) -> Result<Known, Reason> {
        let mut known = Known::default();
        crate::cli::read_trace(path, |packet| {
            known.packet(packet, stand);
            Ok(())
        })?;
        if !known.is_ours {
            return Err(Reason::file(path)(
                "only traces of ncclscope can be scrubbed, and nothing in this one says that ncclscope wrote it",
            ));
        }
        Ok(known)
    }

    /// The rank of its only process.
    pub(super) fn rank(&self) -> Option<u32> {
        self.ranks.first().copied().filter(|_| self.ranks.len() == 1 && self.processes.len() == 1)
    }

    fn packet(&mut self, packet: &Packet<'_>, stand: &mut StandIns) {
        if let Some(event) = &packet.event {
            self.is_ours |= event.category == Some(Category::Ncclscope);
            if let Some(name) = event.text(nccl::COMM_NAME)
                && !name.is_empty()
            {
                stand.communicator(&name);
                stand.communicator(names::group_name(&name));
            }
            if let Some(hash) = event.uint(nccl::COMM) {
                stand.hash(hash);
            }
            if let Some(domain) = event.text(nccl::NVTX_DOMAIN)
                && !stand.is_plain(&domain)
            {
                stand.stand(Kind::Domain, &domain);
            }
            return;
        }
        if let Some(descriptor) = packet.track_descriptor() {
            if let Some(process) = &descriptor.process {
                let name = process.process_name();
                stand.process(name);
                self.processes.insert(descriptor.uuid());
                self.ranks.extend(survey::rank(name));
            }
            if let Some(thread) = &descriptor.thread {
                thread_name(thread.thread_name(), stand);
            }
            return;
        }
        let Ok(packet) = packet.decode() else { return };
        for said in packet.trace_attributes.iter().flat_map(|it| &it.attribute) {
            self.is_ours |= said.key().starts_with("ncclscope.");
            attribute_of(said.key(), said.string_value(), stand);
        }
        for gpu in packet.gpu_info.iter().flat_map(|it| &it.gpus) {
            stand.model(gpu.name());
        }
    }
}

/// A thread's name: NCCL's and ours are kept.
pub(super) fn thread_name(name: &str, stand: &mut StandIns) -> String {
    if stand.is_plain(name) { name.to_owned() } else { stand.stand(Kind::Thread, name) }
}

/// What stands for an attribute: its key and its value.
pub(super) fn attribute_of(key: &str, value: &str, stand: &mut StandIns) -> (String, String) {
    let said = |kind: Kind, stand: &mut StandIns| (key.to_owned(), stand.stand(kind, value));
    match key {
        attribute::BOOT => said(Kind::Boot, stand),
        attribute::RUN | attribute::JOB => said(Kind::Job, stand),
        attribute::TOOL_HOST => said(Kind::Host, stand),
        _ => {
            // What a process lost: `ncclscope.lost.rank 3 · node17 4711`.
            if let Some((who, pid)) = key.strip_prefix(attribute::LOST).and_then(|of| of.rsplit_once(' '))
                && pid.parse::<u32>().is_ok()
            {
                return (format!("{}{} {pid}", attribute::LOST, stand.process(who)), stand.text(value));
            }
            for of_host in [attribute::HOST_CLOCK, attribute::HOST_CLOCK_ERROR] {
                if let Some(host) = key.strip_prefix(of_host) {
                    let host = stand.stand(Kind::Host, host);
                    return (format!("{of_host}{host}"), stand.text(value));
                }
            }
            if let Some(variable) = key.strip_prefix(attribute::ENVIRONMENT) {
                let variable = match words::is_variable(variable) {
                    true => variable.to_owned(),
                    false => stand.stand(Kind::Other, variable),
                };
                return (format!("{}{variable}", attribute::ENVIRONMENT), stand.stand(Kind::Value, value));
            }
            let key = if stand.is_plain(key) { key.to_owned() } else { stand.stand(Kind::Other, key) };
            (key, stand.text(value))
        }
    }
}
