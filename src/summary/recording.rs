//! What a recording says about itself, beside what it recorded.

use super::{Facts, Summary, report};
use crate::model::time::HostNs;
use crate::trace::words::{attribute, instant, remark};

/// Attributes, GPUs and remarks that are kept.
const ATTRIBUTES: usize = 512;
pub(super) const GPUS: usize = 64;
const REMARKS: usize = 64;
/// The bytes kept of a text, such as a remark.
const TEXT_BYTES: usize = 512;

/// The process, the attributes and the remarks of a recording.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pub(super) process: String,
    pub(super) attributes: Vec<(String, String)>,
    pub(super) gpus: Vec<Gpu>,
    /// Remarks by name: how many, and the first text.
    pub(super) remarks: Vec<(String, u64, String)>,
    /// The first remark, and its time.
    pub(super) started: String,
    pub(super) begin: Option<HostNs>,
    /// The figures of the last remark; `None` while the recording goes on.
    pub(super) ended: Option<Vec<(u32, u64)>>,
}

/// A GPU of the process.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) device: u64,
    pub(super) name: String,
    pub(super) uuid: String,
}

impl Summary {
    /// The recorded process: `rank 3 · node17 · GPU 3 (H200)`.
    pub fn process(&mut self, name: &str) {
        if self.recording.process.is_empty() {
            self.recording.process = cut(name);
        }
    }

    /// The process, if known.
    #[must_use]
    pub fn process_name(&self) -> Option<&str> {
        Some(&*self.recording.process).filter(|name| !name.is_empty())
    }

    /// A fact about the recording. Facts about later processing are left out.
    pub fn attribute(&mut self, name: &str, value: &str) {
        let counts =
            report::ATTRIBUTES.iter().any(|(known, _)| *known == name) || name.starts_with(attribute::ENVIRONMENT);
        let all = &mut self.recording.attributes;
        if counts && all.len() < ATTRIBUTES && !all.iter().any(|(known, _)| known == name) {
            all.push((name.to_owned(), cut(value)));
        }
    }

    /// What the recording says about itself.
    pub fn remark(&mut self, time: HostNs, name: &str, args: &[u8]) {
        let facts = Facts::of(args);
        let it = &mut self.recording;
        match name {
            instant::STARTED => (it.started, it.begin) = (text(facts.note), Some(time)),
            instant::IMPORT_STARTED if it.started.is_empty() => it.started = text(facts.note),
            instant::IMPORT_STARTED => {}
            instant::ENDED | instant::IMPORT_ENDED => it.ended = Some(report::figures(args)),
            instant::GPU => {
                let device = facts.device.unwrap_or_default();
                if it.gpus.len() < GPUS && !it.gpus.iter().any(|gpu| gpu.device == device) {
                    it.gpus.push(Gpu { device, name: text(facts.note), uuid: text(facts.uuid) });
                }
            }
            // Remarks that every recording with CUPTI or import has, or that do not matter here.
            remark::TAKEN | remark::FORCED | instant::COMM | instant::PROCESS_GROUP | remark::CAPTURE => {}
            name => match it.remarks.iter().position(|(known, ..)| known == name) {
                Some(place) => it.remarks[place].1 += 1,
                None if it.remarks.len() < REMARKS => it.remarks.push((cut(name), 1, text(facts.note))),
                None => {}
            },
        }
    }
}

/// A text of a trace, cut if it is long.
pub(super) fn text(bytes: &[u8]) -> String {
    cut(&String::from_utf8_lossy(bytes))
}

pub(super) fn cut(text: &str) -> String {
    if text.len() <= TEXT_BYTES {
        return text.to_owned();
    }
    let end = (0..=TEXT_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    format!("{}…", &text[..end])
}
