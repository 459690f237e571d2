//! The vocabulary: words that ncclscope, NCCL and CUDA use themselves. Any other word may be
//! somebody's name.

use std::sync::LazyLock;

use rustc_hash::FxHashSet;

use super::kind::Kind;

/// One word per line, in lower case: the words of the texts that ncclscope writes into traces. A
/// test compares it with the source.
pub(super) const WORDS: &str = include_str!("words.txt");
static KNOWN: LazyLock<FxHashSet<&'static str>> = LazyLock::new(|| WORDS.lines().collect());

/// What may follow a number.
const UNITS: [&str; 30] = [
    "", "b", "kb", "mb", "gb", "tb", "kib", "mib", "gib", "tib", "ns", "us", "µs", "ms", "s", "min", "h", "hz", "khz",
    "mhz", "ghz", "x", "k", "m", "u", "ul", "st", "nd", "rd", "th",
];
/// The most digits of a plain number in a text: longer ones may be ids.
const DIGITS: usize = 9;
/// Beginnings of NCCL's kernels, as they are in a name.
const KERNELS: [&str; 10] = [
    "nccldevkernel",
    "nccldevkernelargsstorage",
    "nccldevkernelargs4k",
    "nccldevkernelargs",
    "ncclkernel",
    "ncclsymkdevkernel",
    "ncclsymdevkernel",
    "ncclsymkdevworkargs",
    "ncclsymkdevworkargs4k",
    "ncclwork",
];
/// The words in names of GPUs, apart from numbers.
const MODELS: [&str; 29] = [
    "nvidia",
    "amd",
    "tesla",
    "geforce",
    "rtx",
    "gtx",
    "quadro",
    "titan",
    "grace",
    "hopper",
    "blackwell",
    "ada",
    "generation",
    "pcie",
    "nvl",
    "mig",
    "super",
    "ti",
    "max",
    "q",
    "laptop",
    "gpu",
    "instinct",
    "graphics",
    "device",
    "emulated",
    "unknown",
    "oam",
    "dgx",
];

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word<'a> {
    /// A word, a number, a path: anything without blanks.
    Text(&'a str),
    /// Blanks and signs.
    Between(&'a str),
}

/// The words of a text, and what is between them.
pub(super) fn split(text: &str) -> impl Iterator<Item = Word<'_>> {
    // These join the parts of one word: node17.example.com, /home/ann, fe80::1, ann@example.com.
    let is_of_word = |letter: char| letter.is_alphanumeric() || "_-./:@\\~$%+".contains(letter);
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let is_word = is_of_word(first);
        let mut end = rest.find(|letter| is_of_word(letter) != is_word).unwrap_or(rest.len());
        if is_word {
            let whole = &rest[..end];
            // A full stop or a colon ends it.
            let bare = whole.trim_end_matches(['.', ':', '-', '%', '+', '/']);
            let lead = whole.len() - whole.trim_start_matches(['-', '+', '~']).len();
            if bare.is_empty() {
                let (between, after) = rest.split_at(end);
                rest = after;
                return Some(Word::Between(between));
            }
            if lead > 0 {
                let (between, after) = rest.split_at(lead);
                rest = after;
                return Some(Word::Between(between));
            }
            end = bare.len();
        }
        let (part, after) = rest.split_at(end);
        rest = after;
        Some(if is_word { Word::Text(part) } else { Word::Between(part) })
    })
}

/// Whether ncclscope, NCCL or CUDA uses this word, or it is a plain number.
pub(super) fn is_known(word: &str) -> bool {
    // In compounds such as `launch-bracket` or `GB/s`, each part counts.
    kind(word) != Kind::Network && word.split(['_', '-', '.', '/', ':', '+', '%']).all(is_known_alone)
}

fn is_known_alone(word: &str) -> bool {
    let word = word.to_lowercase();
    // `compute{s}`, `run{s}`: texts with a singular and a plural.
    let of_one = word.strip_suffix('s').unwrap_or(&word);
    word.is_empty() || KNOWN.contains(word.as_str()) || KNOWN.contains(of_one) || is_number(&word)
}

/// A number with a unit, or with a letter before it, as in `v6`, `x4` or `f32`.
fn is_number(word: &str) -> bool {
    let digits = word.len() - word.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
    (1..=DIGITS).contains(&digits) && UNITS.contains(&&word[digits..])
}

/// What an unknown word seems to be.
pub(super) fn kind(word: &str) -> Kind {
    let word = word.trim_matches(['[', ']']);
    let is_v4 = |word: &str| {
        let parts: Vec<&str> = word.split('.').collect();
        parts.len() == 4 && parts.iter().all(|part| part.parse::<u8>().is_ok())
    };
    let host = word.rsplit_once(':').filter(|it| it.1.parse::<u16>().is_ok()).map_or(word, |it| it.0);
    if is_v4(word)
        || is_v4(host)
        || word.parse::<std::net::Ipv6Addr>().is_ok()
        || host.parse::<std::net::Ipv6Addr>().is_ok()
    {
        Kind::Network
    } else if word.starts_with("0x") {
        Kind::Address
    } else if word.contains(['/', '\\']) {
        Kind::Path
    } else {
        Kind::Other
    }
}

/// Whether a demangled name can be one of NCCL's kernels:
/// `ncclDevKernel_AllReduce_Sum_f32_RING_LL`.
pub(super) fn is_kernel_of_nccl(name: &str) -> bool {
    let parts = name.split(|letter: char| !letter.is_alphanumeric());
    parts.map(str::to_lowercase).all(|part| KERNELS.contains(&part.as_str()) || is_known_alone(&part))
}

/// Whether a name has the form of CUDA's functions.
pub(super) fn is_cuda_call(name: &str) -> bool {
    let rest = name.strip_prefix("cuda").or_else(|| name.strip_prefix("cu"));
    rest.is_some_and(|rest| {
        // Each of its words is one that CUDA uses.
        let parts = rest.split_inclusive('_').flat_map(|part| camel(part.trim_end_matches('_')));
        parts.map(str::to_lowercase).all(|part| is_known_alone(&part) || CUDA.split(' ').any(|it| it == part))
    })
}

/// Words in the names of CUDA's functions that no text of ncclscope has.
const CUDA: &str = "launch kernel ex c memcpy memset async peer to h d hto dto ato dasync hasync aasync array malloc free stream event graph exec instantiate record \
    synchronize query create destroy get set attribute device count properties current context ctx push pop module load data function \
    occupancy max active blocks per multiprocessor cooperative host func mem alloc pool managed import export ipc handle open close \
    register unregister pointer wait value write batch upload update node params add child capture begin end mode with priority \
    flags address reserve map unmap access granularity release retain primary state init driver version runtime last error string name \
    user object info thread exchange limit cache config symbol";

fn camel(text: &str) -> Vec<&str> {
    let mut cuts: Vec<usize> = text
        .char_indices()
        .zip(text.chars().skip(1))
        .filter(|((_, one), next)| {
            one.is_lowercase() && next.is_uppercase() || one.is_ascii_digit() != next.is_ascii_digit()
        })
        .map(|((at, one), _)| at + one.len_utf8())
        .collect();
    cuts.push(text.len());
    let mut from = 0;
    cuts.into_iter().map(|to| &text[std::mem::replace(&mut from, to)..to]).collect()
}

/// Whether this is a name of a GPU as its maker gives it: `NVIDIA H100 80GB HBM3`.
pub(super) fn is_model(name: &str) -> bool {
    let parts = name.split(|letter: char| !letter.is_alphanumeric()).filter(|part| !part.is_empty());
    // A part with digits has few letters: A100, GH200, SXM5, 80GB, 4090, 1g.
    let is_number = |part: &str| {
        let digits = part.chars().filter(char::is_ascii_digit).count();
        digits > 0
            && part.len() <= 6
            && part.chars().all(|letter| letter.is_ascii_alphanumeric())
            && part.len() - digits <= 3
    };
    name.len() <= 64
        && parts.clone().next().is_some()
        && parts.map(str::to_lowercase).all(|part| MODELS.contains(&part.as_str()) || is_number(&part))
}

/// The same where the text may also be something else: it must begin with the maker.
pub(super) fn is_model_of_maker(name: &str) -> bool {
    const MAKERS: [&str; 6] = ["nvidia", "tesla", "geforce", "quadro", "amd", "emulated"];
    name.split(' ').next().is_some_and(|first| MAKERS.contains(&first.to_lowercase().as_str())) && is_model(name)
}

/// Whether the name of something that ran on a GPU comes from us: an operation, a copy.
pub(super) fn is_drawn(name: &str) -> bool {
    const FIRST: [&str; 23] = [
        "allreduce",
        "allgather",
        "reducescatter",
        "broadcast",
        "reduce",
        "send",
        "recv",
        "sendrecv",
        "alltoall",
        "alltoallv",
        "gather",
        "scatter",
        "putsignal",
        "waitsignal",
        "operation",
        "unknown",
        "no",
        "copy",
        "memset",
        "host",
        "ch",
        "channel",
        "kernel",
    ];
    name.split(' ').next().is_some_and(|first| FIRST.contains(&first.to_lowercase().as_str()))
}

/// Whether the name of a variable is made of known words: `NCCL_IB_HCA`.
pub(super) fn is_variable(name: &str) -> bool {
    name.split('_')
        .map(str::to_lowercase)
        .all(|part| VARIABLES.split(' ').any(|it| it == part) || is_known_alone(&part))
}

/// Words in the names of variables of NCCL's, CUDA's and launchers'.
const VARIABLES: &str = "\
    active adaptive affinity algo alloc async auto blocking boost buffer buffsize ce chunksize cnt comm conf \
    connection connections count cpu cpus cross cta ctas ctx cuda cumem data debug depth desync devices disable \
    distributed dmabuf dump enable env error family fifo file flux force gdr gid gpu gpus graph group handling hca \
    heartbeat host hostid ib id iface ifname ignore jit job jobid launch level loading local localid lsb max mem \
    merge min mixing module monitoring mps multi nccl nchannels net nic nics nnodes node nodeid nodes nsocks ntasks \
    nthreads num nvidia nvls omp ompi on oob order ordering p2p partition pat pbs per percentage perf perthread \
    plugin pmi pmix policy port process procid profiler proto ptx pxn qps queues rail rank ras rcvbuf read reg \
    register relaxed restart retry role routing run scale set shm single size sl slurm sndbuf socket split stack step \
    subsys support symmetric sync task tasks tc thread threads timeout topo torch torchelastic trace tuner use user \
    version visible wait warn work world";
