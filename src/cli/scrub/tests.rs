use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::kind::Kind;
use super::stand::StandIns;
use super::words::{self, WORDS, Word};

/// The sources of the texts in traces.
const SOURCES: [&str; 21] = [
    "src/trace",
    "src/correlate",
    "src/pipeline",
    "src/collect",
    "src/cupti",
    "src/model",
    "src/profiler.rs",
    "src/profiler",
    "src/releases.rs",
    "src/clock",
    "src/summary",
    "src/import",
    "src/cli/import.rs",
    "src/cli/merge",
    "src/cli/merge.rs",
    "src/cli/beside",
    "src/cli/diagnose/answer.rs",
    "src/cli/diagnose/answer",
    "src/cli/hang",
    "src/cli/mismatch.rs",
    "src/cli/shared_gpus.rs",
];

fn sources(path: &Path, all: &mut Vec<PathBuf>) {
    let is_for_tests = path.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("tests"));
    if path.is_dir() && !is_for_tests {
        for entry in fs::read_dir(path).unwrap() {
            sources(&entry.unwrap().path(), all);
        }
    } else if path.extension().is_some_and(|it| it == "rs") && !is_for_tests {
        all.push(path.to_owned());
    }
}

/// The string literals in a source, without its tests and without placeholders in braces.
fn literals(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]\nmod").next().unwrap_or_default();
    let lines: Vec<&str> = source.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let source = lines.join("\n").replace("\\\"", "'").replace("'\"'", "");
    let mut texts = Vec::new();
    for part in source.split('"').skip(1).step_by(2) {
        let mut depth = 0;
        let plain = part.chars().filter(|letter| {
            depth += i32::from(*letter == '{');
            let is_plain = depth == 0;
            depth -= i32::from(*letter == '}');
            is_plain
        });
        texts.push(plain.collect());
    }
    texts
}

#[test]
fn the_vocabulary_has_every_word_that_traces_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    SOURCES.iter().for_each(|path| sources(&root.join(path), &mut files));
    assert!(files.len() > 60, "{}", files.len());
    let mut said = BTreeSet::new();
    for file in files {
        for text in literals(&fs::read_to_string(&file).unwrap()) {
            let words = text.split(|letter: char| !letter.is_alphanumeric()).map(str::to_lowercase);
            said.extend(words.filter(|word| word.chars().any(char::is_alphabetic)));
        }
    }
    let known: BTreeSet<String> = WORDS.lines().map(str::to_owned).collect();
    let missing: Vec<&String> = said.difference(&known).collect();
    if std::env::var_os("NCCLSCOPE_BLESS").is_some_and(|value| value == "1") {
        let all: Vec<String> = said.union(&known).cloned().collect();
        return fs::write(root.join("src/cli/scrub/words.txt"), all.join("\n") + "\n").unwrap();
    }
    assert!(missing.is_empty(), "NCCLSCOPE_BLESS=1 adds them; look at what is added: {missing:?}");
}

#[test]
fn words_are_told_apart() {
    let words =
        |text| words::split(text).filter_map(|word| if let Word::Text(word) = word { Some(word) } else { None });
    let found: Vec<_> =
        words("CUPTI of CUDA 13.0 (version 130001) from /opt/ann/libcupti.so.13; 10.0.0.7:42, fe80::1.").collect();
    assert_eq!(
        found,
        [
            "CUPTI",
            "of",
            "CUDA",
            "13.0",
            "version",
            "130001",
            "from",
            "/opt/ann/libcupti.so.13",
            "10.0.0.7:42",
            "fe80::1"
        ]
    );
    for known in ["AllReduce", "16", "MiB", "f32", "ncclAllReduce", "GB/s", "13.0", "2.30.7", "5.23", "rank", "launch"]
    {
        assert!(words::is_known(known), "{known}");
    }
    for unknown in
        ["ann", "node17", "10.0.0.7", "fe80::1", "/home/ann", "ann@example.com", "0x7f00dead", "4711471147", "ann_step"]
    {
        assert!(!words::is_known(unknown), "{unknown}");
    }
    for (word, kind) in [
        ("10.0.0.7", Kind::Network),
        ("10.0.0.7:42", Kind::Network),
        ("fe80::1", Kind::Network),
        ("/home/ann", Kind::Path),
        ("0x7f00", Kind::Address),
        ("ann", Kind::Other),
    ] {
        assert_eq!(words::kind(word), kind, "{word}");
    }
}

#[test]
fn known_names_of_software_and_hardware_stay() {
    let mut stand = StandIns::new(false);
    for kernel in [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic",
        "memset",
        "copy host → device",
    ] {
        assert_eq!(stand.kernel(kernel), kernel);
    }
    assert_eq!(stand.kernel("ncclDevKernel_OfAnn"), "ncclKernel_kernel-1");
    assert_eq!(stand.kernel("flash_fwd_of_ann<128>"), "kernel-2");
    assert_eq!(stand.kernel("_Z12secret_ann_kv"), stand.kernel("secret_ann_k"), "mangled or not");
    for model in
        ["NVIDIA H100 80GB HBM3", "H200", "NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 4090", "Emulated GPU", "GB200"]
    {
        assert_eq!(stand.model(model), model);
    }
    assert_eq!(stand.model("Ann's GPU"), "GPU-1");
    for call in
        ["cuLaunchKernel", "cudaMemcpyAsync", "cudaLaunchKernelExC_v11060", "cuMemcpyHtoDAsync_v2", "cudaGraphLaunch"]
    {
        assert!(words::is_cuda_call(call), "{call}");
    }
    assert!(!words::is_cuda_call("cudaAnn"));
}

#[test]
fn names_keep_what_readers_look_for() {
    let mut stand = StandIns::new(false);
    assert_eq!(stand.process("rank 3 · node17 · GPU 3 (H200)"), "rank 3 · host-1 · GPU 3 (H200)");
    assert_eq!(stand.process("train_ann · node17"), "program-1 · host-1");
    assert_eq!(stand.communicator("tensor_ann:17"), "comm-1:group-1");
    assert_eq!(stand.communicator("undefined:ann"), "undefined:comm-2");
    assert_eq!(stand.track("tensor_ann · rank 3 of 64 · handed over"), "comm-1 · rank 3 of 64 · handed over");
    assert_eq!(stand.range("ann's step 17"), "range-1 step 17");
    assert_eq!(stand.range("ann's step 18"), "range-1 step 18");
    assert_eq!(stand.range("ProfilerStep#7"), "ProfilerStep#7");
    assert_eq!(stand.text("Rank 2 on node17 computes longer"), "Rank 2 on host-1 computes longer");
    assert_eq!(stand.text("it is in /home/ann/lib.so, of bob"), "it is in path-1, of word-1");
    assert_eq!(stand.range("forward"), "range-2", "a word of ours, but a name of theirs");
    assert_eq!(
        (stand.kernel("forward"), stand.text("NVIDIA H100 80GB HBM3")),
        ("kernel-1".into(), "NVIDIA H100 80GB HBM3".into())
    );
    let mut kept = StandIns::new(true);
    assert_eq!((kept.kernel("ann_k"), kept.range("ann's step 3")), ("ann_k".to_owned(), "ann's step 3".to_owned()));
}
