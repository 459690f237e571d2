//! Stand-ins for texts: the same text always has the same stand-in.

use std::borrow::Cow;

use rustc_hash::{FxHashMap, FxHashSet};

use super::kind::Kind;
use super::words::{self, Word};
use crate::correlate::step_of;
use crate::model::activity::is_nccl;
use crate::sys;
use crate::trace::names;

/// The most texts of each kind with their own stand-ins. Further ones share one, so that memory is
/// bounded.
const TEXTS: usize = 200_000;

/// The stand-ins given so far.
#[derive(Default)]
pub(super) struct StandIns {
    known: [FxHashMap<Box<str>, u32>; Kind::ALL.len()],
    /// The kind of each text, for texts that occur inside others.
    any: FxHashMap<Box<str>, Kind>,
    /// Short forms of communicators' hashes.
    hashes: FxHashSet<String>,
    /// Turns pointers into other numbers, irreversibly.
    key: u64,
    pointers: u64,
    keeps_names: bool,
}

impl StandIns {
    pub(super) fn new(keeps_names: bool) -> StandIns {
        StandIns { key: sys::random(), keeps_names, ..StandIns::default() }
    }

    /// The stand-in for a text of this kind.
    pub(super) fn stand(&mut self, kind: Kind, text: &str) -> String {
        let known = &mut self.known[kind as usize];
        let number = match known.get(text) {
            Some(number) => *number,
            None if known.len() >= TEXTS => known.len() as u32 + 1,
            None => {
                let number = known.len() as u32 + 1;
                known.insert(text.into(), number);
                self.any.entry(text.into()).or_insert(kind);
                number
            }
        };
        format!("{}-{number}", kind.words().0)
    }

    /// A communicator's name, with the parts of PyTorch's names.
    pub(super) fn communicator(&mut self, name: &str) -> String {
        match name.split_once(':') {
            Some((first @ ("undefined" | ""), rest)) if !rest.is_empty() => {
                format!("{first}:{}", self.stand(Kind::Communicator, rest))
            }
            Some((first, rest)) if !first.is_empty() => {
                format!("{}:{}", self.stand(Kind::Communicator, first), self.stand(Kind::Group, rest))
            }
            _ => self.stand(Kind::Communicator, name),
        }
    }

    /// Notes a communicator's hash.
    pub(super) fn hash(&mut self, hash: u64) {
        self.hashes.insert(names::short_hash(hash));
        self.hashes.insert(format!("{hash:016x}"));
    }

    /// A kernel's name, demangled or not: NCCL's own is kept.
    pub(super) fn kernel(&mut self, name: &str) -> String {
        let plain = names::demangled(name);
        let is_ours = words::is_drawn(&plain) && self.is_plain(&plain);
        if self.keeps_names || is_ours || is_nccl(name) && words::is_kernel_of_nccl(&plain) {
            return name.to_owned();
        }
        let number = self.stand(Kind::Kernel, &plain);
        // It must be distinguishable from the application's.
        if is_nccl(name) { format!("ncclKernel_{number}") } else { number }
    }

    /// A range of the application. If it names a step, its number stays.
    pub(super) fn range(&mut self, name: &str) -> String {
        if self.keeps_names || self.is_plain(name) && step_of(name).is_some() {
            return name.to_owned();
        }
        match step_of(name) {
            None => self.stand(Kind::Range, name),
            Some(number) => {
                let base = name.trim_end_matches(|last: char| last.is_ascii_digit());
                format!("{} step {number}", self.stand(Kind::Range, base))
            }
        }
    }

    /// A number in place of an address.
    pub(super) fn pointer(&mut self, address: u64) -> u64 {
        if address == 0 {
            return 0;
        }
        self.pointers += 1;
        let mixed = (address ^ self.key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 29 ^ self.key.rotate_left(17)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 32) >> 17 | 1
    }

    /// Whether all words of a text are known ones.
    pub(super) fn is_plain(&self, text: &str) -> bool {
        words::split(text).all(|word| match word {
            Word::Between(_) => true,
            Word::Text(word) => self.is_known(word),
        })
    }

    fn is_known(&self, word: &str) -> bool {
        words::is_known(word) || self.hashes.contains(word)
    }

    /// A text of ncclscope, with stand-ins for the names in it.
    pub(super) fn text(&mut self, text: &str) -> String {
        if self.is_plain(text) || words::is_model_of_maker(text) {
            return text.to_owned();
        }
        let mut plain = String::with_capacity(text.len());
        // Names have blanks, too.
        for (at, part) in text.split(" · ").enumerate() {
            plain.push_str(if at > 0 { " · " } else { "" });
            match self.any.get(part) {
                Some(kind) => plain.push_str(&self.stand(*kind, part)),
                None => self.words(part, &mut plain),
            }
        }
        plain
    }

    /// The name of a track: of a communicator, a thread, a peer.
    pub(super) fn track(&mut self, text: &str) -> String {
        let mut parts = text.split(" · ").map(str::to_owned).collect::<Vec<_>>();
        for part in &mut parts {
            // `python3 (4711)` is a thread.
            let bare = part.rsplit_once(" (").map_or(part.as_str(), |it| it.0).to_owned();
            *part = match (self.any.get(part.as_str()).copied(), self.any.get(bare.as_str()).copied()) {
                (Some(kind), _) => self.stand(kind, part),
                (None, Some(kind)) => {
                    let rest = self.text(&part[bare.len()..]);
                    format!("{}{rest}", self.stand(kind, &bare))
                }
                (None, None) => self.text(part),
            };
        }
        parts.join(" · ")
    }

    fn words(&mut self, text: &str, plain: &mut String) {
        for word in words::split(text) {
            match word {
                Word::Between(between) => plain.push_str(between),
                Word::Text(word) if self.is_known(word) => plain.push_str(word),
                Word::Text(word) => {
                    // A text that was seen on its own keeps its stand-in.
                    let kind = self.any.get(word).copied().unwrap_or_else(|| words::kind(word));
                    plain.push_str(&self.stand(kind, word));
                }
            }
        }
    }

    /// A GPU's model: those of the makers are kept.
    pub(super) fn model<'a>(&mut self, name: &'a str) -> Cow<'a, str> {
        match words::is_model(name) || self.is_plain(name) {
            true => name.into(),
            false => self.stand(Kind::Gpu, name).into(),
        }
    }

    /// A process: `rank 3 · node17 · GPU 3 (H200)`.
    pub(super) fn process(&mut self, name: &str) -> String {
        let (process, device) = names::without_gpu(name);
        let mut parts = process.split(" · ");
        let who = parts.next().unwrap_or_default();
        let number = who.strip_prefix("rank ").or_else(|| who.strip_prefix("process "));
        let is_rank = number.is_some_and(|number| number.parse::<u32>().is_ok());
        let who = if is_rank || self.is_plain(who) { who.to_owned() } else { self.stand(Kind::Process, who) };
        let mut all = vec![who];
        all.extend(parts.map(|host| self.stand(Kind::Host, host)));
        let process = all.join(" · ");
        let Some(device) = device else { return process };
        let model = name.rsplit_once('(').and_then(|(_, model)| model.strip_suffix(')'));
        let model = model.map(|model| self.model(model).into_owned());
        names::on_gpu(&process, device, model.as_deref())
    }

    /// What was replaced, in words.
    pub(super) fn said(&self) -> String {
        let number = |kind: Kind| match kind {
            Kind::Address => self.pointers,
            kind => self.known[kind as usize].len() as u64,
        };
        let told: Vec<String> = Kind::ALL
            .into_iter()
            .filter(|kind| number(*kind) > 0)
            .map(|kind| format!("{} {}", number(kind), kind.words().1[usize::from(number(kind) != 1)]))
            .collect();
        if told.is_empty() { "nothing: there was nothing in it".to_owned() } else { told.join(", ") }
    }
}
