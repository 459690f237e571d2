//! Which CUPTI to be, and how to misbehave: the environment variable `EMULATED_CUPTI`.
//!
//! It holds words separated by commas. Without it this is a well-behaved CUPTI 13.0.
//!
//! | word | meaning |
//! | --- | --- |
//! | `release=12.9` | the records, functions and results of 12.0, 12.9, 13.0, 13.1, 13.3 or 13.5 |
//! | `version=28` | `cuptiGetVersion` returns this, whatever the release |
//! | `late=200ms` | the GPU's work becomes known this much later; a forced flush does not wait |
//! | `reorder` | records alternate between several buffers, and full buffers return in any order |
//! | `partial` | buffers count as full at random, however much they hold |
//! | `drop=10%` | this share of records is lost, and counted as dropped |
//! | `zero=1%` | this share of the GPU's records has no times |
//! | `exhaust=100` | after this many kernels GPU buffers run out: times are 0 or reversed |
//! | `skew=5ms` | the GPU's times are this late, or early (`-5ms`); no clock reading shows it |
//! | `skew=5ms@40` | the same after this many kernels |
//! | `corrupt=kind` | the last record of each returned buffer has a kind that no release has |
//! | `corrupt=cut` | the last record of each returned buffer is cut off: the last bytes do not count |
//! | `corrupt=short` | records of kernels end before the id of their graph's node |
//! | `corrupt=long` | records of kernels are 16 bytes longer than in the release |
//! | `corrupt=times` | the times of all records are random numbers |
//! | `corrupt=names` | names in records are null: of kernels, devices, ranges and their domains |
//! | `conversion=5us` | the GPU's times are off by up to this; a new error every 100 ms |
//! | `swap=10%` | this share of NCCL kernels outside graphs swaps ids with the next one |
//! | `confuse` | from the second session on, graphs' kernels name the previous launch of a graph |
//! | `restart` | correlation ids begin again with each session, as after `cuptiFinalize` |
//! | `rename=10%` | this share of kernel records has the name of the application's last kernel |
//! | `miss=1%` | this share of calls has no callbacks, neither at its beginning nor at its end |
//! | `withhold` | subscriptions succeed, but only callbacks for CUPTI's own failures are made |
//! | `withhold=calls` | no callbacks for calls into the driver or the runtime |
//! | `withhold=objects` | no callbacks for contexts, streams, graphs or nodes |
//! | `taken=NAME` | another tool of that name holds the subscription: 39 |
//! | `taken-for=5s` | it unsubscribes after this time, counted from the first call into CUPTI |
//! | `share` | the driver lets subscribers share CUPTI (13.3 and 13.5) |
//! | `rival=NAME@2s` | then a tool of that name tries to subscribe; stderr has the result |
//! | `refuse=15` | functions that need the driver return this; 27, as from a shim, all functions |
//! | `refuse=35@cuptiActivityEnable` | only that function returns this; may be repeated |
//! | `refuse=every@cuptiSubscribe` | each call returns another error, till all were returned |
//! | `hang=cuptiSubscribe` | that function does not return; may be repeated |
//! | `clock=ticks@2s` | then timestamps are ticks (2.1 per ns), as if a tool registered a clock |
//! | `latch` | a registered clock does not apply to the GPU's times: they stay on the wall clock |
//! | `state=fatal@2s` | then CUPTI reports `fatal` (and detaches), `error` or `warning` |
//! | `seed=7` | the seed of random choices |
//!
//! Times are numbers with `ns`, `us`, `ms`, `s` or `h`; shares are in percent. `state` needs 12.9
//! or later. `exhaust` models GPU buffers that are never reused.
//!
//! A program can skip an hour by calling `emulated_cupti_hour`. `emulated_cupti_refused` says how
//! many calls `refuse` has refused. `emulated_cupti_answers` ends each `hang`, and returns when
//! somebody has left CUPTI after that and nobody has it. `emulated_cupti_rehearse` makes every
//! callback that was asked for.

use crate::release::Release;

/// The environment variable.
pub const VARIABLE: &str = "EMULATED_CUPTI";

/// The value of [`VARIABLE`]. It has a field for each word, which is why there are more than
/// twenty.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The release to be.
    pub release: Release,
    /// The result of `cuptiGetVersion`.
    pub version: u32,
    /// How long the GPU's work stays unknown after it is done, in ns.
    pub late: u64,
    /// Whether records and buffers arrive out of order.
    pub reorder: bool,
    /// Whether buffers are returned partly filled.
    pub partial: bool,
    /// The share of records to drop.
    pub drop: f64,
    /// The share of the GPU's records without times.
    pub zero: f64,
    /// How much too late the GPU's times are, in ns.
    pub skew: i64,
    /// See `skew`.
    pub skew_after: u64,
    /// What is wrong with records when they are returned.
    pub corrupt: Option<Corruption>,
    /// How far the conversion of the GPU's times may be off, in ns.
    pub conversion: u64,
    /// The number of kernels after which no kernel has plausible times.
    pub exhaust: u64,
    /// The share of kernels that swap correlation ids with the next one.
    pub swap: f64,
    /// Whether kernels of graphs name another launch, from the second session on.
    pub confuse: bool,
    /// Correlation ids begin again with each session.
    pub restart: bool,
    /// The share of kernels with another kernel's name.
    pub rename: f64,
    /// The share of calls whose callbacks never come.
    pub miss: f64,
    /// The callbacks that never come.
    pub withhold: Withheld,
    /// The tool that holds the subscription.
    pub taken: Option<String>,
    /// For how long, in ns.
    pub taken_for: u64,
    /// Whether subscribers may share.
    pub share: bool,
    /// The tool that tries to subscribe later, and when, in ns.
    pub rival: Option<(String, u64)>,
    /// The refusals.
    pub refuse: Vec<Refusal>,
    /// The functions that do not return before `emulated_cupti_answers` is called.
    pub hang: Vec<String>,
    /// When timestamps become ticks of a processor of 2.1 GHz since the true time 0, in ns.
    pub ticks_after: Option<u64>,
    /// Whether the GPU's times stay on the wall clock when a clock is registered.
    pub latch: bool,
    /// CUPTI's own failures, and when they occur, in ns.
    pub states: Vec<(u64, State)>,
    /// The seed of random choices.
    pub seed: u64,
}

/// A code that a function returns instead of doing anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The code.
    pub code: u32,
    /// The function; `None` means every function that needs the driver, or for 27 every function.
    pub function: Option<String>,
}

impl Refusal {
    /// Instead of a code: each call returns another one, until all of them were returned.
    pub const EVERY: u32 = u32::MAX;
}

/// What is wrong with records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Corruption {
    /// The last one of a buffer has an unknown kind.
    Kind,
    /// The last one of a buffer is cut off.
    Cut,
    /// Those of kernels are shorter than in the release.
    Short,
    /// Those of kernels are longer.
    Long,
    /// Their times mean nothing.
    Times,
    /// They have no names.
    Names,
}

/// Callbacks that are granted but never made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Withheld {
    /// Those of calls into the driver and the runtime.
    pub calls: bool,
    /// Those of contexts, streams, graphs and nodes.
    pub objects: bool,
}

/// CUPTI's own failures, as it numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// CUPTI detaches itself.
    Fatal = 1,
    /// Records will be missing from now on.
    Error = 2,
    /// A warning.
    Warning = 3,
}

impl Default for Options {
    fn default() -> Options {
        let release = Release::V13_0;
        Options {
            release,
            version: release.version(),
            late: 0,
            reorder: false,
            partial: false,
            drop: 0.0,
            zero: 0.0,
            exhaust: u64::MAX,
            skew: 0,
            skew_after: 0,
            corrupt: None,
            conversion: 0,
            swap: 0.0,
            confuse: false,
            restart: false,
            rename: 0.0,
            miss: 0.0,
            withhold: Withheld::default(),
            taken: None,
            taken_for: u64::MAX,
            share: false,
            rival: None,
            refuse: Vec::new(),
            hang: Vec::new(),
            ticks_after: None,
            latch: false,
            states: Vec::new(),
            seed: 0,
        }
    }
}

impl Options {
    /// Reads the value of the variable.
    ///
    /// # Errors
    ///
    /// Names the word that is not understood, and why.
    pub fn parse(text: &str) -> Result<Options, String> {
        let mut options = Options::default();
        let mut version = None;
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            let value = || value.ok_or_else(|| format!("{name} needs a value: {name}=..."));
            match name {
                "release" => {
                    options.release = Release::named(value()?).ok_or_else(|| {
                        let known = Release::ALL.map(Release::name).join(", ");
                        format!("{word}: the releases are {known}")
                    })?;
                }
                "version" => version = Some(number(word, value()?)?),
                "late" => options.late = duration(word, value()?)?,
                "reorder" => options.reorder = true,
                "partial" => options.partial = true,
                "drop" => options.drop = share(word, value()?)?,
                "zero" => options.zero = share(word, value()?)?,
                "exhaust" => options.exhaust = number(word, value()?)?,
                "skew" => {
                    let (skew, after) = value()?.split_once('@').unwrap_or((value()?, "0"));
                    (options.skew, options.skew_after) = (signed(word, skew)?, number(word, after)?);
                }
                "corrupt" => options.corrupt = Some(Corruption::parse(word, value()?)?),
                "conversion" => options.conversion = duration(word, value()?)?,
                "swap" => options.swap = share(word, value()?)?,
                "confuse" => options.confuse = true,
                "restart" => options.restart = true,
                "rename" => options.rename = share(word, value()?)?,
                "miss" => options.miss = share(word, value()?)?,
                "withhold" => options.withhold.add(word, value().ok())?,
                "taken" => options.taken = Some(value().unwrap_or("another tool").to_owned()),
                "taken-for" => options.taken_for = duration(word, value()?)?,
                "share" => options.share = true,
                "rival" => {
                    let (name, after) = value()?.split_once('@').unwrap_or((value()?, "0ns"));
                    options.rival = Some((name.to_owned(), duration(word, after)?));
                }
                "refuse" => {
                    let value = value()?;
                    let (code, function) = value.split_once('@').map_or((value, None), |(code, f)| (code, Some(f)));
                    let code = if code == "every" { Refusal::EVERY } else { number(word, code)? };
                    options.refuse.push(Refusal { code, function: function.map(str::to_owned) });
                }
                "hang" => options.hang.push(value()?.to_owned()),
                "clock" => {
                    let after = value()?.strip_prefix("ticks@");
                    let after = after.ok_or_else(|| format!("{word}: a clock is ticks@TIME"))?;
                    options.ticks_after = Some(duration(word, after)?);
                }
                "latch" => options.latch = true,
                "state" => {
                    let (state, after) = value()?.split_once('@').unwrap_or((value()?, "0ns"));
                    options.states.push((duration(word, after)?, State::parse(word, state)?));
                }
                "seed" => options.seed = number(word, value()?)?,
                _ => return Err(format!("{word} is not a word of {VARIABLE}; see emulator/cupti/src/options.rs")),
            }
        }
        options.version = version.unwrap_or(options.release.version());
        options.states.sort_by_key(|(after, _)| *after);
        Ok(options)
    }

    /// The code with which a function is refused, if it is.
    pub fn refusal(&self, function: &str, needs_driver: bool) -> Option<u32> {
        let applies = |refusal: &&Refusal| match &refusal.function {
            Some(name) => name == function,
            None => needs_driver || refusal.code == crate::result::NOT_SUPPORTED,
        };
        self.refuse.iter().find(applies).map(|refusal| refusal.code)
    }
}

impl Withheld {
    fn add(&mut self, word: &str, what: Option<&str>) -> Result<(), String> {
        match what {
            None => *self = Withheld { calls: true, objects: true },
            Some("calls") => self.calls = true,
            Some("objects") => self.objects = true,
            Some(_) => return Err(format!("{word}: what can be withheld is calls or objects")),
        }
        Ok(())
    }
}

impl Corruption {
    fn parse(word: &str, text: &str) -> Result<Corruption, String> {
        match text {
            "kind" => Ok(Corruption::Kind),
            "cut" => Ok(Corruption::Cut),
            "short" => Ok(Corruption::Short),
            "long" => Ok(Corruption::Long),
            "times" => Ok(Corruption::Times),
            "names" => Ok(Corruption::Names),
            _ => Err(format!("{word}: what can be corrupt is kind, cut, short, long, times or names")),
        }
    }
}

impl State {
    fn parse(word: &str, text: &str) -> Result<State, String> {
        match text {
            "fatal" => Ok(State::Fatal),
            "error" => Ok(State::Error),
            "warning" => Ok(State::Warning),
            _ => Err(format!("{word}: a state is fatal, error or warning")),
        }
    }
}

fn number<N: std::str::FromStr>(word: &str, text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{word}: {text} is not a number"))
}

fn share(word: &str, text: &str) -> Result<f64, String> {
    let percent: f64 = number(word, text.strip_suffix('%').ok_or_else(|| format!("{word}: a share ends in %"))?)?;
    if (0.0..=100.0).contains(&percent) {
        Ok(percent / 100.0)
    } else {
        Err(format!("{word}: a share is from 0% to 100%"))
    }
}

fn signed(word: &str, text: &str) -> Result<i64, String> {
    match text.strip_prefix('-') {
        Some(text) => Ok(-(duration(word, text)? as i64)),
        None => Ok(duration(word, text)? as i64),
    }
}

fn duration(word: &str, text: &str) -> Result<u64, String> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("h", 3.6e12)];
    let (amount, unit) = units
        .into_iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))
        .ok_or_else(|| format!("{word}: a time ends in ns, us, ms, s or h"))?;
    let amount: f64 = number(word, amount)?;
    if amount >= 0.0 { Ok((amount * unit).round() as u64) } else { Err(format!("{word}: a time is not negative")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_understood() {
        let text = "release=12.9, version=27,late=200ms,reorder,partial,drop=10%,zero=0.5%,exhaust=7,skew=-5ms@40,conversion=7us,corrupt=cut,\
            swap=20%,confuse,restart,rename=3%,miss=2%,withhold=objects,taken=Kineto,taken-for=5s,share,rival=Nsight Systems@1s,refuse=15,refuse=35@cuptiActivityEnable,hang=cuptiSubscribe,clock=ticks@2s,state=fatal@2s,\
            latch,state=warning,seed=7";
        let expected = Options {
            release: Release::V12_9,
            version: 27,
            late: 200_000_000,
            reorder: true,
            partial: true,
            drop: 0.1,
            zero: 0.005,
            exhaust: 7,
            skew: -5_000_000,
            skew_after: 40,
            corrupt: Some(Corruption::Cut),
            conversion: 7_000,
            swap: 0.2,
            confuse: true,
            restart: true,
            rename: 0.03,
            miss: 0.02,
            withhold: Withheld { calls: false, objects: true },
            taken: Some("Kineto".to_owned()),
            taken_for: 5_000_000_000,
            share: true,
            rival: Some(("Nsight Systems".to_owned(), 1_000_000_000)),
            refuse: vec![
                Refusal { code: 15, function: None },
                Refusal { code: 35, function: Some("cuptiActivityEnable".to_owned()) },
            ],
            hang: vec!["cuptiSubscribe".to_owned()],
            ticks_after: Some(2_000_000_000),
            latch: true,
            states: vec![(0, State::Warning), (2_000_000_000, State::Fatal)],
            seed: 7,
        };
        assert_eq!(Options::parse(text), Ok(expected));
        assert_eq!(Options::parse(""), Ok(Options::default()));
        let withheld = Options::parse("withhold").expect("a correct word").withhold;
        assert_eq!(withheld, Withheld { calls: true, objects: true });
    }

    #[test]
    fn a_wrong_word_is_named() {
        for (text, says) in [
            ("reorder,lat=5ms", "lat=5ms is not a word"),
            ("late=5", "late=5: a time ends in"),
            ("drop=10", "drop=10: a share ends in %"),
            ("drop=101%", "from 0% to 100%"),
            ("release=12.7", "12.0, 12.9, 13.0"),
            ("clock=mars", "clock=mars: a clock is"),
            ("withhold=all", "calls or objects"),
            ("corrupt=all", "kind, cut, short, long, times or names"),
            ("state=bad", "a state is fatal, error or warning"),
            ("late", "late needs a value"),
        ] {
            let error = Options::parse(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_refusal_applies_to_what_it_names() {
        let options = |text| Options::parse(text).expect("a correct word");
        assert_eq!(options("refuse=15").refusal("cuptiSubscribe", true), Some(15));
        assert_eq!(options("refuse=15").refusal("cuptiGetVersion", false), None);
        assert_eq!(options("refuse=27").refusal("cuptiGetVersion", false), Some(27));
        assert_eq!(options("refuse=35@cuptiSubscribe").refusal("cuptiActivityEnable", true), None);
    }
}
