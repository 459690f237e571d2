//! Reproducible random numbers, and random scenarios.

use std::fmt::Write;

use super::units::Range;
use elements::mix;
use elements::words::{Datatype, Reduction};

/// Random numbers (splitmix64). The same seed gives the same ones on every machine and in every
/// release of this program.
#[derive(Debug, Clone)]
pub struct Dice {
    state: u64,
}

impl Dice {
    /// Dice for a seed.
    pub fn new(seed: u64) -> Dice {
        Dice { state: seed }
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `limit`, which is above 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    /// Returns true `times` times out of 100.
    pub fn percent(&mut self, times: u64) -> bool {
        self.below(100) < times
    }

    /// One of several choices.
    pub fn one_of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// A value of a range, in its base unit.
    pub fn within<K>(&mut self, range: &Range<K>) -> f64 {
        let fraction = (self.number() >> 11) as f64 / (1_u64 << 53) as f64;
        range.least.value + (range.most.value - range.least.value) * fraction
    }
}

/// Marks where the program goes, which is chosen last.
const PROGRAM: &str = "# program\n";

/// A random scenario, as the text of a file.
pub fn scenario(seed: u64) -> String {
    let mut dice = Dice::new(seed);
    let hosts = 1 + dice.below(3);
    // At least two ranks, because with one NCCL only copies.
    let ranks_per_host = if hosts == 1 { 2 + dice.below(3) } else { 1 + dice.below(2) };
    let layout = *dice.one_of(&["processes", "processes", "threads", "devices"]);
    let mut text = String::new();
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    line(format!("# emulator random --seed {seed}"));
    line(format!("title = \"A random job (seed {seed})\"\n"));
    line(format!(
        "[job]\nhosts = {hosts}\nranks_per_host = {ranks_per_host}\nranks = \"{layout}\"\nseed = {seed}\n{PROGRAM}"
    ));
    line("[nccl]".into());
    if dice.percent(50) {
        line(format!("NCCL_ALGO = \"{}\"", dice.one_of(&["Ring", "Ring;allreduce:Tree"])));
    }
    if dice.percent(50) {
        line(format!("NCCL_PROTO = \"{}\"", dice.one_of(&["LL", "Simple"])));
    }
    line(format!("NCCL_MAX_NCHANNELS = \"{}\"\n", 1 + dice.below(3)));
    line("[gpu]".into());
    if dice.percent(50) {
        line(format!("bandwidth = \"{} GB/s\"", 1 + dice.below(20)));
    }
    line(format!("launch_latency = \"{} us\"", 1 + dice.below(20)));
    line(format!("timer_granularity = \"{}\"\n", dice.one_of(&["1 ns", "32 ns", "1 us"])));
    let ranks = hosts * ranks_per_host;
    if dice.percent(40) {
        let rank = dice.below(ranks);
        let (compute, kernels) = (10 + dice.below(20), 10 + dice.below(10));
        line(format!(
            "[[slow]]\nrank = {rank}\ncompute = {}.{}\nkernels = {}.{}\n",
            compute / 10,
            compute % 10,
            kernels / 10,
            kernels % 10
        ));
    }
    if dice.percent(30) {
        let rank = dice.below(ranks);
        line(format!("[[stall]]\nrank = {rank}\nkernel = {}\nfor = \"{} ms\"\n", dice.below(10), 1 + dice.below(50)));
    }
    if dice.percent(50) {
        let offset = dice.below(100) as i64 - 50;
        let (host, drift) = (dice.below(hosts), dice.below(200) as i64 - 100);
        // The kernel steers all its clocks together.
        line(format!(
            "[[host]]\nindex = {host}\nwall = {{ offset = \"{offset} s\", drift = \"{drift} ppm\" }}\n\
             boot = {{ drift = \"{drift} ppm\" }}\n"
        ));
    }
    let program = Writer { dice, ranks, text: String::new(), indent: 0, communicators: Vec::new() }.program();
    text.replacen(PROGRAM, &format!("program = \"\"\"\n{program}\"\"\"\n"), 1)
}

/// The same with all other options of a scenario: timers with any granularity and a changing rate,
/// and now and then a large job.
pub fn scenario_with_options(seed: u64) -> String {
    let mut dice = Dice::new(seed ^ 0x0971_0115_0000_0000);
    let steps = *dice.one_of(&["1 ns", "32 ns", "1 us", "1024 ns", "2 us", "10 us", "100 us"]);
    let wander = *dice.one_of(&["0 ppm", "0 ppm", "0.1 ppm", "1 ppm", "3 ppm"]);
    let times = if dice.percent(10) { 20 + dice.below(60) } else { 0 };
    let lends = dice.percent(30);
    let lent = 1 + dice.below(5);
    let text = scenario(seed);
    // Among ranks that share a process only one could do it.
    let lends = lends && text.contains("ranks = \"processes\"");
    let change = |line: &str| match line {
        _ if line.starts_with("replay ") && lends => {
            let meanwhile = format!("sync\nrelease\nreplay graph {lent} times\nsync\nacquire\n");
            format!("{line}\n{meanwhile}{line}\n")
        }
        _ if line.starts_with("timer_granularity") => {
            format!("timer_granularity = \"{steps}\"\ntimer_wander = \"{wander}\"\n")
        }
        _ if line.starts_with("repeat ") && times > 0 => format!("repeat {times} {{\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(change).collect()
}

/// Writes a random program.
struct Writer {
    dice: Dice,
    ranks: u64,
    text: String,
    indent: usize,
    /// Their names, and the size of the smallest.
    communicators: Vec<(String, u64)>,
}

impl Writer {
    fn program(mut self) -> String {
        self.communicator("world", "all", self.ranks);
        if self.ranks > 2 && self.ranks.is_multiple_of(2) && self.dice.percent(60) {
            let how = *self.dice.one_of(&["stride 2", "split world by rank % 2", "split world by rank % 2 reversed"]);
            self.communicator("dp", how, self.ranks / 2);
        }
        if self.ranks > 2 && self.dice.percent(40) {
            let how = *self.dice.one_of(&["blocks 2", "split world by rank / 2"]);
            self.communicator("tp", how, if self.ranks.is_multiple_of(2) { 2 } else { 1 });
        }
        let times = 1 + self.dice.below(3);
        self.line(&format!("repeat {times} {{"));
        self.indent += 1;
        for _ in 0..2 + self.dice.below(6) {
            self.statement(true);
        }
        self.indent -= 1;
        self.line("}");
        if self.dice.percent(50) {
            self.line("capture graph {");
            self.indent += 1;
            for _ in 0..1 + self.dice.below(4) {
                self.statement(false);
            }
            self.indent -= 1;
            self.line("}");
            let times = 1 + self.dice.below(6);
            self.line(&format!("replay graph {times} times"));
        }
        self.line("sync");
        // Children first: destroying a parent before them is allowed, but hardly anybody does it.
        while let Some((name, _)) = self.communicators.pop() {
            if self.dice.percent(50) {
                self.line(&format!("destroy {name}"));
            }
        }
        self.text
    }

    fn communicator(&mut self, name: &str, how: &str, smallest: u64) {
        self.line(&format!("communicator {name} = {how}"));
        self.communicators.push((name.into(), smallest));
    }

    fn statement(&mut self, eager: bool) {
        match self.dice.below(if eager { 10 } else { 8 }) {
            0..=3 => self.operation(),
            4 => {
                self.line("group {");
                self.indent += 1;
                for _ in 0..1 + self.dice.below(4) {
                    self.operation();
                }
                self.indent -= 1;
                self.line("}");
            }
            5 | 6 => {
                let (kernel, duration) = (self.dice.below(5), 50 + self.dice.below(1500));
                self.line(&format!("compute kernel{kernel} {duration} us"));
            }
            7 => {
                let name = self.dice.one_of(&self.communicators).0.clone();
                self.line(&format!("wait {name}"));
            }
            8 => self.line("sync"),
            _ => {
                let duration = self.dice.below(5);
                self.line(&format!("sleep {duration} ms"));
            }
        }
    }

    fn operation(&mut self) {
        let (name, size) = self.dice.one_of(&self.communicators).clone();
        let datatype = *self.dice.one_of(&Datatype::ALL);
        let reduction = self.dice.one_of(&Reduction::ALL).word();
        // From a few elements to some MiB, rarely a round number.
        let bits = 1 + self.dice.below(19);
        let count = 1 + self.dice.below(1 << bits);
        let what = format!("{} B {}", count * datatype.size() as u64, datatype.word());
        let place = if self.dice.percent(30) { " in place" } else { "" };
        let native = if self.dice.percent(30) { " native" } else { "" };
        let root = self.dice.below(size);
        let peer = (root + 1) % size;
        let mut kinds = vec![
            format!("all_reduce {what} {reduction}{place}"),
            format!("all_reduce {what} {reduction}{place}"),
            format!("all_gather {what}{place}"),
            format!("reduce_scatter {what} {reduction}{place}"),
            format!("broadcast {what} root {root}{place}"),
            format!("reduce {what} {reduction} root {root}{place}"),
            format!("send_recv ring {what}"),
            format!("all_to_all {what}{native}"),
            format!("gather {what} root {root}{native}"),
            format!("scatter {what} root {root}{native}"),
        ];
        if peer != root {
            kinds.push(format!("send {what} from {root} to {peer}"));
        }
        let kind = self.dice.one_of(&kinds);
        self.line(&format!("{kind} on {name}"));
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{:1$}{line}", "", 2 * self.indent);
    }
}
