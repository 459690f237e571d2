//! Reads values from the environment. An invalid value is refused, and the default applies.

use super::launcher::RANKS;
use super::settings::{Setting, Values, setting, size};
use super::{Cupti, Events, KernelCh, Preset};
use crate::model::kinds::{self, Kinds};
use crate::model::selection::{self, Ranks, Selection};

/// Reads variables one after the other, and notes what is wrong with them.
pub(super) struct Reader<'v> {
    pub(super) variable: &'v dyn Fn(&str) -> Option<String>,
    pub(super) complaints: Vec<String>,
}

impl Reader<'_> {
    fn value(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// The meaning of a value, if it is set. An invalid value is refused.
    fn meant<T>(&mut self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let value = self.value(name)?;
        let meant = parse(&value);
        if meant.is_none() {
            self.refuse(name, &value);
        }
        meant
    }

    /// What one of the words stands for; the default if the value is none of them.
    pub(super) fn choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> T {
        let parse = |value: &str| word(value, choices);
        self.meant(name, parse).or_else(|| parse(setting(name).default)).unwrap_or(choices[0].1)
    }

    pub(super) fn switch(&mut self, name: &str) -> bool {
        self.choice(name, &[("0", false), ("1", true)])
    }

    /// A number within its range.
    pub(super) fn number(&mut self, name: &str) -> u64 {
        let Setting { values, default, .. } = setting(name);
        let parse = |value: &str| match *values {
            Values::Bytes(from, to) => size(value).filter(|size| (from..=to).contains(size)),
            Values::Number(from, to, _) => value.parse().ok().filter(|number| (from..=to).contains(number)),
            Values::Words(_) | Values::Text(_) => None,
        };
        self.meant(name, parse).or_else(|| parse(default)).unwrap_or_default()
    }

    pub(super) fn file_mode(&mut self) -> Option<u32> {
        self.meant("NCCLSCOPE_FILE_MODE", |value| {
            let digits = value.strip_prefix("0o").unwrap_or(value).trim_start_matches('0');
            // Not executable, and writable by the owner.
            let is_fit = matches!(digits.as_bytes(), [b'6', group, others]
                if [group, others].iter().all(|it| b"0246".contains(it)));
            u32::from_str_radix(digits, 8).ok().filter(|_| is_fit)
        })
    }

    /// What NCCL is asked for besides the preset, and whether for kernel channels: two settings
    /// that may contradict each other.
    pub(super) fn events(&mut self, preset: Preset) -> (Events, KernelCh) {
        const EVENTS: &str = "NCCLSCOPE_EVENTS";
        const CHANNELS: &[(&str, KernelCh)] = &[("0", KernelCh::Off), ("1", KernelCh::On), ("force", KernelCh::Force)];
        const CHANNEL: Kinds = Kinds(kinds::bit::KERNEL_CH);
        const PHASE: Kinds = Kinds(kinds::bit::KERNEL_PHASE);
        let value = self.value(EVENTS).unwrap_or_default();
        let mut events = self.meant(EVENTS, Events::read).unwrap_or_default();
        if events.more.has(PHASE) && events.less.has(CHANNEL) {
            self.object(EVENTS, &value, "NCCL measures no KernelPhase without KernelCh; leaving out both");
            events.more = events.more - PHASE;
        }
        let by_events = if events.less.has(CHANNEL) {
            Some(KernelCh::Off)
        } else if events.more.has(CHANNEL) || events.more.has(PHASE) {
            Some(KernelCh::On)
        } else {
            None
        };
        let by_preset = if preset.kinds().has(CHANNEL) { KernelCh::On } else { KernelCh::Off };
        let said = self.meant("NCCLSCOPE_KERNEL_CH", |value| word(value, CHANNELS));
        if let (Some(said), Some(wished)) = (said, by_events)
            && (said == KernelCh::Off) != (wished == KernelCh::Off)
        {
            self.object(EVENTS, &value, "NCCLSCOPE_KERNEL_CH contradicts this for KernelCh, and takes precedence");
            let Events { more, less } = events;
            events = Events { more: more - Kinds::CHANNELS, less: less - CHANNEL };
        }
        (events, said.or(by_events).unwrap_or(by_preset))
    }

    /// Ranks in the job, or `None` for all.
    pub(super) fn ranks(&mut self) -> Option<Ranks> {
        let parse = |value: &str| match value {
            "-1" => Some(None),
            list => list.parse().ok().map(Some),
        };
        self.meant("NCCLSCOPE_RANKS", parse).flatten()
    }

    /// Which part of the job is drawn. Ranks select communicators if the rank in the job is
    /// unknown.
    pub(super) fn selection(&mut self, by_comm_rank: bool) -> Selection {
        let ranks = self.value("NCCLSCOPE_RANKS").filter(|_| by_comm_rank).and_then(|list| list.parse().ok());
        Selection {
            ranks,
            comms: self.value("NCCLSCOPE_COMMS").map(|list| selection::names(&list)).unwrap_or_default(),
            min_bytes: self.number("NCCLSCOPE_MIN_BYTES"),
            every: self.number("NCCLSCOPE_EVERY"),
            time: self.meant("NCCLSCOPE_TIME", |value| value.parse().ok()),
            operations: self.meant("NCCLSCOPE_OPERATIONS", |value| value.parse().ok()),
            steps: self.meant("NCCLSCOPE_STEPS", |value| value.parse().ok()),
            only_nccl: self.choice("NCCLSCOPE_KERNELS", &[("all", false), ("nccl", true)]),
        }
    }

    pub(super) fn cupti(&mut self) -> Cupti {
        let parse = |value: &str| match value {
            "auto" | "1" => Some(Cupti::Auto),
            "0" => Some(Cupti::Off),
            "share" => Some(Cupti::Share),
            path => path.contains('/').then(|| Cupti::Path(path.into())),
        };
        self.meant("NCCLSCOPE_CUPTI", parse).unwrap_or(Cupti::Auto)
    }

    /// A switch that is off by default, and stays off if CUPTI is not used.
    pub(super) fn needs_cupti(&mut self, name: &str) -> bool {
        let on = self.switch(name);
        let without = self.value("NCCLSCOPE_CUPTI").as_deref() == Some("0");
        if on && without {
            self.object(name, "1", "it needs CUPTI, which NCCLSCOPE_CUPTI=0 leaves alone; using the default, 0");
        }
        on && !without
    }

    pub(super) fn rank(&mut self) -> Option<(u32, &'static str)> {
        for &(name, _) in RANKS {
            let Some(value) = self.value(name) else { continue };
            match value.parse() {
                Ok(rank) => return Some((rank, name)),
                Err(_) if name == "NCCLSCOPE_RANK" => self.refuse(name, &value),
                Err(_) => {}
            }
        }
        None
    }

    /// The number of ranks in the job, from the launcher that gave this process its rank.
    pub(super) fn world_size(&self, rank: Option<(u32, &str)>) -> Option<u32> {
        let (rank, source) = rank?;
        let size = RANKS.iter().find(|(name, _)| *name == source)?.1?;
        self.value(size)?.parse().ok().filter(|size| *size > rank)
    }

    /// Complains about an invalid value.
    fn refuse(&mut self, name: &str, value: &str) {
        let Setting { values, default, .. } = setting(name);
        self.object(name, value, &format!("expected {values}; using the default, {default}"));
    }

    fn object(&mut self, name: &str, value: &str, why: &str) {
        self.complaints.push(format!("{name}={value}: {why}"));
    }
}

/// What one of the words stands for, in upper or lower case.
fn word<T: Copy>(value: &str, choices: &[(&str, T)]) -> Option<T> {
    choices.iter().find(|(word, _)| value.eq_ignore_ascii_case(word)).map(|(_, meaning)| *meaning)
}
