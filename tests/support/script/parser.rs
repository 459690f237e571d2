//! What the words of a line mean.

use super::words::{Options, Word, Words};
use super::{Argument, Handle, MAIN, Nvtx, Result, StateArgument, Type, Verb};
use crate::host::{NetEvent, has_field};
use crate::layout::{self, Kind};
use std::collections::HashSet;
use std::time::Duration;

/// The labels of earlier lines.
#[derive(Default)]
pub(super) struct Parser {
    events: HashSet<String>,
    contexts: HashSet<String>,
    texts: HashSet<String>,
}

impl Parser {
    pub(super) fn verb(&mut self, thread: &str, mut words: Words) -> Result<Verb> {
        let verb = words.next("a verb")?;
        let verb = match verb.bytes.as_slice() {
            b"name" => Verb::Name(words.next("a name for the thread")?.bytes),
            b"load" => Verb::Load,
            b"unload" => Verb::Unload,
            b"init" => self.init(&mut words)?,
            b"start" => self.start(&mut words)?,
            b"state" => self.state(&mut words)?,
            b"stop" => Verb::Stop(self.event(&words.next("an event")?)?),
            b"finalize" => Verb::Finalize(self.context(&words.next("a context")?)?),
            b"mask" => {
                let mut options = words.options()?;
                let value = options.take("value").map(|word| int(&word)).transpose()?;
                options.done(&["value"])?;
                Verb::Mask(value)
            }
            b"text" => {
                let label = words.next("a label")?.label("a label")?;
                self.texts.insert(label.clone());
                Verb::Text { label, content: words.next("a text")?.bytes }
            }
            b"call" => {
                let function = words.next("a function")?.label("a function")?;
                let mut options = words.options()?;
                let library = options.take("library").map(|word| word.text().map(str::to_owned)).transpose()?;
                options.done(&["library"])?;
                Verb::Call { function, library }
            }
            b"name-comm" => {
                let name = words.next("a name").and_then(|name| name.text().map(str::to_owned)).ok();
                Verb::NameComm(name)
            }
            b"step" => Verb::Step(number(&words.next("a number")?)?),
            b"race" => Verb::Race(functions(&mut words)?),
            b"storm" => Verb::Storm(functions(&mut words)?),
            b"kernel" => {
                let name = words.next("a kernel's name")?.label("a kernel's name")?;
                let mut options = words.options()?;
                let run = options.take("for").map(|word| time(word.text()?)).transpose()?;
                let wait = options.take("wait").map(|word| number(&word)).transpose()? != Some(0);
                options.done(&["for", "wait"])?;
                Verb::Kernel { name, time: run.unwrap_or(Duration::from_micros(100)), wait }
            }
            b"capture" => Verb::Capture(number(&words.next("a node's id")?)?),
            b"host-node" => {
                let node = number(&words.next("a node's id")?)?;
                let mut options = words.options()?;
                let run = options.take("for").map(|word| time(word.text()?)).transpose()?;
                options.done(&["for"])?;
                Verb::HostNode { node, time: run.unwrap_or(Duration::from_micros(100)) }
            }
            b"nvtx" => {
                let call = words.next("push, pop, mark, start or end")?;
                let text = |words: &mut Words| words.next("a text")?.text().map(str::to_owned);
                Verb::Nvtx(match call.bytes.as_slice() {
                    b"push" => Nvtx::Push { text: text(&mut words)?, domain: domain(words.options()?)? },
                    b"pop" => Nvtx::Pop { domain: domain(words.options()?)? },
                    b"mark" => Nvtx::Mark(text(&mut words)?),
                    b"start" => {
                        let label = words.next("a label")?.label("a label")?;
                        Nvtx::Start { label, text: text(&mut words)? }
                    }
                    b"end" => Nvtx::End(words.next("a label")?.label("a label")?),
                    _ => return Err(format!("expected push, pop, mark, start or end, found {call}")),
                })
            }
            b"subscribe" => Verb::Subscribe(words.next("a label")?.label("a label")?),
            b"unsubscribe" => Verb::Unsubscribe(words.next("a label")?.label("a label")?),
            b"profile" => Verb::Profile(words.next("a label")?.label("a label")?),
            b"unprofile" => Verb::Unprofile(words.next("a label")?.label("a label")?),
            b"share" => Verb::Share(words.next("a label")?.label("a label")?),
            b"unshare" => Verb::Unshare(words.next("a label")?.label("a label")?),
            b"clock" => Verb::Clock(words.next("a label")?.label("a label")?),
            b"sleep" => Verb::Sleep(time(words.next("a time, such as 20us")?.text()?)?),
            b"wait-for" => Verb::WaitFor(words.next("a file")?.text()?.into()),
            b"end" if thread == MAIN => {
                return Err("expected another thread: `main` ends with the process".into());
            }
            b"end" => Verb::End,
            b"fork" => match words.optional() {
                Some(word) => Verb::Fork(word.label("a name for the child's thread")?),
                None => Verb::Fork("child".to_owned()),
            },
            b"exit" => Verb::Exit(int(&words.next("an exit status")?)?),
            b"_exit" => Verb::ExitNow(int(&words.next("an exit status")?)?),
            b"abort" => Verb::Abort,
            b"kill" => Verb::Kill(signal(&words.next("a signal")?)?),
            _ => {
                return Err(format!(
                    "expected a verb (name, load, unload, init, start, state, stop, finalize, mask, text, call, \
                     name-comm, step, race, storm, kernel, capture, host-node, nvtx, subscribe, unsubscribe, profile, unprofile, share, unshare, clock, sleep, wait-for, end, fork, exit, _exit, abort, kill), found {verb}"
                ));
            }
        };
        match words.optional() {
            Some(word) => Err(format!("expected the end of the line after `{}`, found {word}", verb.word())),
            None => Ok(verb),
        }
    }

    fn init(&mut self, words: &mut Words) -> Result<Verb> {
        let label = words.next("a label for the communicator")?.label("a label")?;
        let mut options = words.options()?;
        let mut need = |name| options.take(name).ok_or_else(|| format!("expected {name}=NUMBER"));
        let comm = number(&need("comm")?)?;
        let rank = int(&need("rank")?)?;
        let nranks = int(&need("nranks")?)?;
        let nodes = options.take("nodes").map(|word| int(&word)).transpose()?.unwrap_or(1);
        let name = options.take("name").map(|word| word.bytes);
        options.done(&["comm", "rank", "nranks", "nodes", "name"])?;
        self.contexts.insert(label.clone());
        Ok(Verb::Init { label, comm, rank, nranks, nodes, name })
    }

    fn start(&mut self, words: &mut Words) -> Result<Verb> {
        let label = words.next("a label for the event")?.label("a label")?;
        let context = self.context(&words.next("a context")?)?;
        let kind = kind(&words.next("an event kind")?)?;
        let mut options = words.options()?;
        let parent = match options.take("parent") {
            Some(word) => self.event(&word)?,
            None => Handle::Null,
        };
        let mut fields = Vec::new();
        if let Some(word) = options.take("group") {
            fields.push(("parentGroup".to_owned(), Argument::Handle(self.event(&word)?)));
        }
        if let Some(network) = network(&mut options)? {
            fields.push(("net".to_owned(), Argument::Net(network)));
        }
        let known = match kind {
            Type::Named(name) => layout::kind(name),
            Type::Number(_) => None,
        };
        let member = known.and_then(|kind| kind.member);
        for (name, word) in options.0 {
            check_field(known, &name)?;
            let value = match member {
                Some(event) if layout::is_text(event, &name) => self.text(word)?,
                _ => self.number(&word)?,
            };
            fields.push((name, value));
        }
        let misplaced = |name: &str| known.is_some_and(|kind| !has_field(kind, name));
        if let Some((name, _)) = fields.iter().find(|(name, _)| misplaced(name)) {
            let name = if name == "parentGroup" { "group" } else { name };
            return Err(format!("expected no `{name}=`: this kind of event has none"));
        }
        self.events.insert(label.clone());
        Ok(Verb::Start { label, context, kind, parent, fields })
    }

    fn state(&mut self, words: &mut Words) -> Result<Verb> {
        let handle = self.event(&words.next("an event")?)?;
        let state = state(&words.next("a state")?)?;
        let mut options = words.options_with(&["noargs"])?;
        let argument = if options.take("noargs").is_some() {
            StateArgument::Null
        } else if let Some(network) = network(&mut options)? {
            StateArgument::Net(network)
        } else if let Some(value) = options.take("value") {
            let steps = options.take("steps").map(|word| int(&word)).transpose()?;
            StateArgument::Value(self.number(&value)?, steps)
        } else {
            StateArgument::Default
        };
        options.done(&["value", "steps", "net"])?;
        Ok(Verb::State { handle, state, argument })
    }

    fn event(&self, word: &Word) -> Result<Handle> {
        handle(word, &self.events, "an event: the label of an earlier `start`, `null` or raw:NUMBER")
    }

    fn context(&self, word: &Word) -> Result<Handle> {
        handle(word, &self.contexts, "a context: the label of an earlier `init`, `null` or raw:NUMBER")
    }

    fn text(&self, word: Word) -> Result<Argument> {
        if word.quoted {
            return Ok(Argument::Text(word.bytes));
        }
        let text = word.text().unwrap_or_default();
        if let Some(label) = text.strip_prefix('@') {
            return match self.texts.contains(label) {
                true => Ok(Argument::Cell(label.to_owned())),
                false => Err(format!("expected `@` and the label of an earlier `text`, found {word}")),
            };
        }
        if let Some(content) = text.strip_prefix("fresh:") {
            return Ok(Argument::Fresh(content.as_bytes().to_vec()));
        }
        if text == "null" || text.starts_with("raw:") {
            return Ok(Argument::Handle(handle(&word, &HashSet::new(), "an address")?));
        }
        Ok(Argument::Text(word.bytes))
    }

    fn number(&self, word: &Word) -> Result<Argument> {
        let text = word.text()?;
        if self.events.contains(text) || text == "null" || text.starts_with("raw:") {
            return Ok(Argument::Handle(self.event(word)?));
        }
        let (mhz, text) = match text.split_once("MHz:") {
            Some((mhz, rest)) => (mhz.parse::<u64>().ok(), rest),
            None => (None, text),
        };
        if let Some(offset) = text.strip_prefix("now") {
            let (sign, distance) = match offset.as_bytes().first() {
                None => (1, "0us"),
                Some(b'-') => (-1, &offset[1..]),
                Some(b'+') => (1, &offset[1..]),
                Some(_) => return Err(format!("expected now, now-TIME or now+TIME, found {word}")),
            };
            let nanoseconds = sign * i64::try_from(time(distance)?.as_nanos()).unwrap_or(i64::MAX);
            return Ok(mhz.map_or(Argument::Now(nanoseconds), |mhz| Argument::Ticks(mhz, nanoseconds)));
        }
        Ok(Argument::Bits(number(word)?))
    }
}

fn functions(words: &mut Words) -> Result<Vec<String>> {
    let mut functions = vec![words.next("a function")?.label("a function")?];
    while let Some(word) = words.optional() {
        functions.push(word.label("a function")?);
    }
    Ok(functions)
}

fn handle(word: &Word, labels: &HashSet<String>, expected: &str) -> Result<Handle> {
    let text = word.text()?;
    if text == "null" {
        return Ok(Handle::Null);
    }
    if let Some(bits) = text.strip_prefix("raw:") {
        let bits = parse_number(bits).ok_or_else(|| format!("expected raw:NUMBER, found {word}"))?;
        return Ok(Handle::Raw(bits));
    }
    match labels.contains(text) {
        true => Ok(Handle::Label(text.to_owned())),
        false => Err(format!("expected {expected}, found {word}")),
    }
}

fn kind(word: &Word) -> Result<Type> {
    let text = word.text()?;
    if let Some(bits) = text.strip_prefix("type:") {
        let bits = parse_number(bits).ok_or_else(|| format!("expected type:NUMBER, found {word}"))?;
        // A known kind given by number is still the known kind.
        let known = layout::kinds().iter().find(|kind| kind.bit == bits);
        return Ok(known.map_or(Type::Number(bits), |kind| Type::Named(kind.name)));
    }
    match layout::kind(text) {
        Some(kind) => Ok(Type::Named(kind.name)),
        None => {
            let names: Vec<_> = layout::kinds().iter().map(|kind| kind.name).collect();
            Err(format!("expected an event kind ({}, type:NUMBER), found {word}", names.join(", ")))
        }
    }
}

fn state(word: &Word) -> Result<Type> {
    let text = word.text()?;
    if let Some(number) = text.strip_prefix("state:") {
        let number = parse_number(number).ok_or_else(|| format!("expected state:NUMBER, found {word}"))?;
        return Ok(Type::Number(number));
    }
    match layout::state(text) {
        Some(state) => Ok(Type::Named(state.name)),
        None => {
            let names: Vec<_> = layout::states().iter().map(|state| state.name).collect();
            Err(format!("expected a state ({}, state:NUMBER), found {word}", names.join(", ")))
        }
    }
}

fn check_field(kind: Option<&Kind>, name: &str) -> Result<()> {
    match kind {
        Some(kind) if !has_field(kind, name) => {
            let names = kind.member.map(layout::field_names).unwrap_or_default();
            Err(format!("expected a field of {} (rank, {}), found `{name}`", kind.name, names.join(", ")))
        }
        None if !matches!(name, "rank" | "parentObj") => {
            Err(format!("expected no field but rank in an event of unknown kind, found `{name}`"))
        }
        _ => Ok(()),
    }
}

fn network(options: &mut Options) -> Result<Option<NetEvent>> {
    let Some(network) = options.take("net") else {
        return Ok(None);
    };
    let mut need = |name| match options.take(name) {
        Some(word) => number(&word),
        None => Err(format!("expected {name}=NUMBER with net={network}")),
    };
    match network.text()? {
        "ib" => Ok(Some(NetEvent::Ib {
            device: need("device")? as i32,
            wr_id: need("wr_id")?,
            opcode: need("opcode")? as i32,
            qp: need("qp")? as i32,
            length: need("length")?,
        })),
        "socket" => {
            Ok(Some(NetEvent::Socket { fd: need("fd")? as i32, op: need("op")? as i32, length: need("length")? }))
        }
        _ => Err(format!("expected net=ib or net=socket, found {network}")),
    }
}

fn signal(word: &Word) -> Result<i32> {
    const SIGNALS: [(&str, i32); 10] = [
        ("SIGHUP", libc::SIGHUP),
        ("SIGINT", libc::SIGINT),
        ("SIGQUIT", libc::SIGQUIT),
        ("SIGABRT", libc::SIGABRT),
        ("SIGBUS", libc::SIGBUS),
        ("SIGKILL", libc::SIGKILL),
        ("SIGUSR1", libc::SIGUSR1),
        ("SIGSEGV", libc::SIGSEGV),
        ("SIGUSR2", libc::SIGUSR2),
        ("SIGTERM", libc::SIGTERM),
    ];
    let text = word.text()?;
    match SIGNALS.iter().find(|(name, _)| *name == text) {
        Some((_, number)) => Ok(*number),
        None => Err(format!("expected a signal ({}), found {word}", SIGNALS.map(|(name, _)| name).join(", "))),
    }
}

fn number(word: &Word) -> Result<u64> {
    let number = parse_number(word.text()?);
    number.ok_or_else(|| format!("expected a number (-1, 0x10, true, 16Mi), found {word}"))
}

/// The domain of an NVTX call, if it has one.
fn domain(mut options: Options) -> Result<Option<String>> {
    let domain = options.take("domain").map(|word| word.text().map(str::to_owned)).transpose()?;
    options.done(&["domain"])?;
    Ok(domain)
}

fn int(word: &Word) -> Result<i32> {
    let number = number(word)? as i64;
    i32::try_from(number).map_err(|_| format!("expected a number of 32 bits, found {word}"))
}

fn parse_number(text: &str) -> Option<u64> {
    if let Some(bits) = text.strip_prefix("0x") {
        return u64::from_str_radix(bits, 16).ok();
    }
    if let Some(number) = text.strip_prefix('-') {
        return number.parse::<i64>().ok().map(|number| -number as u64);
    }
    let (digits, unit) = match text.get(text.len().saturating_sub(2)..) {
        Some("Ki") => (&text[..text.len() - 2], 1 << 10),
        Some("Mi") => (&text[..text.len() - 2], 1 << 20),
        Some("Gi") => (&text[..text.len() - 2], 1 << 30),
        _ => (text, 1),
    };
    match digits {
        "true" => Some(1),
        "false" => Some(0),
        _ => digits.parse::<u64>().ok()?.checked_mul(unit),
    }
}

fn time(text: &str) -> Result<Duration> {
    let parse = || {
        let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
        let unit = match &text[unit_at..] {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            _ => return None,
        };
        text[..unit_at].parse::<u64>().ok()?.checked_mul(unit).map(Duration::from_nanos)
    };
    parse().ok_or_else(|| format!("expected a time (500ns, 20us, 5ms, 1s), found `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_several_forms() {
        let cases = [
            ("7", Some(7)),
            ("-1", Some(u64::MAX)),
            ("0xff", Some(255)),
            ("true", Some(1)),
            ("16Mi", Some(16 << 20)),
            ("1Q", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_number(text), expected, "{text}");
        }
        assert_eq!(time("20us"), Ok(Duration::from_micros(20)));
        assert!(time("20").is_err());
    }
}
