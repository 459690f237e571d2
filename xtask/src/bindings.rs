//! CUPTI as its headers have it: `cupti-sys/src/bindings.rs` (by bindgen, from the newest release) and
//! `cupti-sys/src/table.rs` (by a C compiler, from all releases in `cupti-sys/releases.txt`).
//!
//! The headers come in NVIDIA's wheels from PyPI and stay in the user's cache. Nothing of them is committed but names,
//! numbers and types.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

use bindgen::{EnumVariation, Formatter, RustEdition, RustTarget};

use crate::steps::{self, Failure, Outcome, Place, Step, call};

const USAGE: &str = "\
usage: cargo xtask bindings [--check | --fetch]

Writes cupti-sys/src/bindings.rs and cupti-sys/src/table.rs again, from the headers of the releases of CUPTI in
cupti-sys/releases.txt. They are fetched once, by pip, into ~/.cache/ncclscope/cupti-sys (about 200 MB are downloaded).

  --check   writes nothing; fails where the headers of any release say otherwise than what is committed
  --fetch   only fetches; the tests of cupti-sys use the libraries that come with the headers

Python 3 with pip and a C compiler are needed; without an option also libclang (on Debian: apt-get install libclang-dev).

A new release of CUPTI: add its row to cupti-sys/releases.txt (pip download NAME==VERSION --no-deps, then sha256sum),
run this, and read the difference. Where the library steps over a record otherwise than its header says, the tests of
cupti-sys say so, and WALKED in xtask/src/bindings.rs has to. A function, constant or field more is one more name in
the lists there.
";

pub(crate) const ABOUT: &str = "the bindings of CUPTI agree with the headers of all its releases";

/// `cargo xtask bindings [--check | --fetch]`
pub(crate) fn run(words: &[String]) -> ExitCode {
    const WRITE: &[Step] = &[Step { name: "bindings", about: "what the headers of CUPTI say", run: write }];
    const CHECK: &[Step] = &[Step { name: "bindings", about: ABOUT, run: check }];
    const FETCH: &[Step] = &[Step { name: "bindings", about: "the headers and libraries of CUPTI", run: fetch }];
    match words {
        [] => steps::run(WRITE, &[]),
        [word] if word == "--check" => steps::run(CHECK, &[]),
        [word] if word == "--fetch" => steps::run(FETCH, &[]),
        [word] if ["help", "--help", "-h"].contains(&word.as_str()) => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The functions that are bound.
/// The headers that are read, as a pattern for their names.
const HEADERS: &str =
    r"cuda\.h|cuda_stdint\.h|cupti_\w+\.h|generated_cuda_meta\.h|Openacc/cupti_openacc\.h|Openmp/cupti_openmp\.h";

const FUNCTIONS: &[&str] = &[
    "cuptiActivityDisable",
    "cuptiActivityEnable",
    "cuptiActivityEnableAndDump",
    "cuptiActivityEnableDriverApi",
    "cuptiActivityEnableHWTrace",
    "cuptiActivityEnableRuntimeApi",
    "cuptiActivityFlushAll",
    "cuptiActivityFlushPeriod",
    "cuptiActivityGetAttribute",
    "cuptiActivityGetNextRecord",
    "cuptiActivityGetNumDroppedRecords",
    "cuptiActivityGetStructSize",
    "cuptiActivityPopExternalCorrelationId",
    "cuptiActivityPushExternalCorrelationId",
    "cuptiActivityRegisterCallbacks",
    "cuptiActivityRegisterTimestampCallback",
    "cuptiActivitySetAttribute",
    "cuptiEnableCallback",
    "cuptiGetCallbackName",
    "cuptiGetContextId",
    "cuptiGetDeviceId",
    "cuptiGetErrorMessage",
    "cuptiGetGraphExecId",
    "cuptiGetGraphId",
    "cuptiGetGraphNodeId",
    "cuptiGetResultString",
    "cuptiGetStreamIdEx",
    "cuptiGetThreadIdType",
    "cuptiGetTimestamp",
    "cuptiGetVersion",
    "cuptiSetThreadIdType",
    "cuptiSubscribe",
    "cuptiSubscribe_v2",
    "cuptiUnsubscribe",
];

/// The types that are bound beside those that the functions need: what callbacks are given, and enumerations, which
/// become plain integers and constants.
const TYPES: &[&str] = &[
    "CUpti_ActivityAttribute",
    "CUpti_ActivityFlag",
    "CUpti_ActivityKind",
    "CUpti_ActivityMemcpyKind",
    "CUpti_ActivityMemoryKind",
    "CUpti_ActivityObjectKind",
    "CUpti_ActivityOverheadKind",
    "CUpti_ActivityStreamFlag",
    "CUpti_ActivitySynchronizationType",
    "CUpti_ActivityThreadIdType",
    "CUpti_ApiCallbackSite",
    "CUpti_CallbackData",
    "CUpti_CallbackDomain",
    "CUpti_CallbackIdResource",
    "CUpti_CallbackIdState",
    "CUpti_ChannelType",
    "CUpti_ExternalCorrelationKind",
    "CUpti_GraphData",
    "CUpti_ResourceData",
    "CUpti_StateData",
    "CUpti_driver_api_trace_cbid",
    "CUpti_runtime_api_trace_cbid",
    "CUptiResult",
    "cuGraphLaunch_params",
    "cuLaunchKernelEx_params",
    "cuLaunchKernel_params",
];

/// Of these enumerations only the constants that begin like this are kept; of all others, all.
const KEPT: &[(&str, &[&str])] = &[
    (
        "CUpti_ActivityFlag",
        &[
            "CUPTI_ACTIVITY_FLAG_NONE",
            "CUPTI_ACTIVITY_FLAG_FLUSH_FORCED",
            "CUPTI_ACTIVITY_FLAG_MARKER_",
            "CUPTI_ACTIVITY_FLAG_MEMCPY_",
            "CUPTI_ACTIVITY_FLAG_MEMSET_",
        ],
    ),
    (
        "CUpti_driver_api_trace_cbid_enum",
        &[
            "CUPTI_DRIVER_TRACE_CBID_cuLaunch",
            "CUPTI_DRIVER_TRACE_CBID_cuGraphExecChildGraphNodeSetParams",
            "CUPTI_DRIVER_TRACE_CBID_cuGraphExecKernelNodeSetParams",
            "CUPTI_DRIVER_TRACE_CBID_cuGraphExecNodeSetParams",
            "CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate",
            "CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch",
            "CUPTI_DRIVER_TRACE_CBID_cuGraphNodeSetEnabled",
            "CUPTI_DRIVER_TRACE_CBID_cuMemcpy",
            "CUPTI_DRIVER_TRACE_CBID_cuMemsetD",
        ],
    ),
    (
        "CUpti_runtime_api_trace_cbid_enum",
        &[
            "CUPTI_RUNTIME_TRACE_CBID_cudaLaunch",
            "CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch",
            "CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy",
            "CUPTI_RUNTIME_TRACE_CBID_cudaMemset",
        ],
    ),
];

/// Records that are laid out alike.
struct Family {
    name: &'static str,
    /// `CUPTI_ACTIVITY_KIND_*`
    kinds: &'static [&'static str],
    about: &'static str,
    /// The fields that are read, as in C.
    fields: &'static str,
}

const FAMILIES: &[Family] = &[
    Family {
        name: "Kernel",
        kinds: &["CONCURRENT_KERNEL", "KERNEL"],
        about: "A kernel that ran.",
        fields: "registersPerThread start end deviceId contextId streamId gridX gridY gridZ blockX blockY blockZ
                 staticSharedMemory dynamicSharedMemory localMemoryPerThread correlationId gridId name queued submitted
                 launchType graphNodeId graphId channelID channelType clusterX clusterY clusterZ
                 localMemoryTotal_v2 isDeviceLaunched priority sourceGraphId sourceGraphNodeId",
    },
    Family {
        name: "Memcpy",
        kinds: &["MEMCPY"],
        about: "A copy, or since CUDA 12.8 a batch of copies.",
        fields: "copyKind srcKind dstKind flags bytes start end deviceId contextId streamId correlationId
                 runtimeCorrelationId graphNodeId graphId channelID channelType isDeviceLaunched copyCount
                 sourceGraphId sourceGraphNodeId",
    },
    Family {
        name: "MemcpyPtoP",
        kinds: &["MEMCPY2"],
        about: "A copy from one device to another.",
        fields: "copyKind srcKind dstKind flags bytes start end deviceId contextId streamId srcDeviceId srcContextId
                 dstDeviceId dstContextId correlationId graphNodeId graphId channelID channelType",
    },
    Family {
        name: "Memset",
        kinds: &["MEMSET"],
        about: "Memory that was set.",
        fields: "value bytes start end deviceId contextId streamId correlationId flags memoryKind graphNodeId graphId
                 channelID channelType isDeviceLaunched sourceGraphId sourceGraphNodeId",
    },
    Family {
        name: "Api",
        kinds: &["DRIVER", "RUNTIME", "INTERNAL_LAUNCH_API"],
        about: "A call of the driver's or runtime's API.",
        fields: "cbid start end processId threadId correlationId returnValue",
    },
    Family {
        name: "ExternalCorrelation",
        kinds: &["EXTERNAL_CORRELATION"],
        about: "An id that was pushed when an API call was made.",
        fields: "externalKind externalId correlationId",
    },
    Family {
        name: "Overhead",
        kinds: &["OVERHEAD"],
        about: "CUPTI's own cost. Of the ids, those are meant that the kind of object has.",
        fields: "overheadKind objectKind objectId.pt.processId objectId.pt.threadId objectId.dcs.deviceId
                 objectId.dcs.contextId objectId.dcs.streamId start end correlationId",
    },
    Family {
        name: "Device",
        kinds: &["DEVICE"],
        about: "A GPU.",
        fields: "globalMemoryBandwidth globalMemorySize numMultiprocessors computeCapabilityMajor
                 computeCapabilityMinor id uuid name isCudaVisible isMigEnabled gpuInstanceId computeInstanceId
                 migUuid isNumaNode numaId",
    },
    Family {
        name: "Context",
        kinds: &["CONTEXT"],
        about: "A context.",
        fields: "contextId deviceId computeApiKind nullStreamId parentContextId isGreenContext numMultiprocessors
                 cigMode processId",
    },
    Family {
        name: "Stream",
        kinds: &["STREAM"],
        about: "A stream.",
        fields: "contextId streamId priority flag correlationId",
    },
    Family {
        name: "Synchronization",
        kinds: &["SYNCHRONIZATION"],
        about: "A wait for an event, a stream or a context.",
        fields: "type start end correlationId contextId streamId cudaEventId cudaEventSyncId returnValue",
    },
    Family {
        name: "CudaEvent",
        kinds: &["CUDA_EVENT"],
        about: "A CUDA event that was recorded.",
        fields: "correlationId contextId streamId eventId deviceId deviceTimestamp cudaEventSyncId graphNodeId graphId",
    },
    Family {
        name: "GraphTrace",
        kinds: &["GRAPH_TRACE"],
        about: "A graph that ran, as a whole.",
        fields: "correlationId start end deviceId graphId contextId streamId endDeviceId endContextId",
    },
    Family {
        name: "GraphHostNode",
        kinds: &["GRAPH_HOST_NODE"],
        about: "A host function that a graph ran.",
        fields: "streamId contextId deviceId correlationId graphId graphNodeId processId threadId start end",
    },
    Family {
        name: "HostLaunch",
        kinds: &["HOST_LAUNCH"],
        about: "A host function that a stream ran.",
        fields: "streamId contextId deviceId correlationId processId threadId start end",
    },
    Family {
        name: "Marker",
        kinds: &["MARKER"],
        about: "The start or end of an NVTX range, or an NVTX mark.",
        fields: "flags timestamp id objectKind objectId.pt.processId objectId.pt.threadId name domain",
    },
    Family {
        name: "Name",
        kinds: &["NAME"],
        about: "A name that NVTX gave to an object.",
        fields: "objectKind objectId.pt.processId objectId.pt.threadId objectId.dcs.deviceId
                 objectId.dcs.contextId objectId.dcs.streamId name",
    },
];

/// Where the library steps over a record otherwise than its header says; seen by running it, and held by the tests of
/// cupti-sys. From a version to before another, kinds, and their size; 0 for kinds that the walk ends at.
const WALKED: &[(u32, u32, &[u32], u32)] = &[
    // JIT: the comment names the first struct until CUDA 13.1, the second is written since CUDA 12.4.
    (22, 130_100, &[52], 72),
    // CONFIDENTIAL_COMPUTE_ROTATION: there in CUDA 12.9, in the header since 13.1.
    (27, 130_100, &[55], 32),
    // Events, metrics, source locations and PC sampling: gone with CUDA 13.0, still in the header.
    (130_000, u32::MAX, &[6, 7, 14, 15, 16, 21, 23, 24, 29, 30, 31, 32, 41, 42, 43, 44], 0),
];

/// One row of `cupti-sys/releases.txt`.
struct Release {
    /// As in `12.9`.
    cuda: String,
    /// The first API version it speaks for.
    from: u32,
    /// The first that it does not speak for any more.
    until: u32,
    /// The version on PyPI.
    version: String,
    /// What pip is to fetch.
    wheels: [String; 2],
    /// Where it lies in the cache.
    folder: PathBuf,
    headers: Headers,
}

/// The text of a release's headers.
#[derive(Default)]
struct Headers {
    /// With comments, which name each kind's struct.
    whole: String,
    /// Without.
    bare: String,
    /// Every word of `bare`.
    words: BTreeSet<String>,
}

fn fetch(place: &Place) -> Result<Outcome, Failure> {
    releases(place).map_err(|failure| again(failure, "--fetch"))?;
    Ok(Outcome::Done)
}

fn write(place: &Place) -> Result<Outcome, Failure> {
    write_both(place).map_err(|failure| again(failure, ""))?;
    check(place)
}

/// Compares what is committed with the headers.
pub(crate) fn check(place: &Place) -> Result<Outcome, Failure> {
    compare_both(place).map_err(|failure| again(failure, "--check"))?;
    Ok(Outcome::Done)
}

/// A failure that says how to see it again.
fn again(failure: Failure, option: &str) -> Failure {
    let command = || format!("cargo xtask bindings {option}").trim_end().to_owned();
    Failure { again: failure.again.or_else(|| Some(command())), ..failure }
}

fn write_both(place: &Place) -> Result<(), Failure> {
    let releases = releases(place)?;
    let source = place.root.join("cupti-sys/src");
    save(&source.join("bindings.rs"), &bindings(place, &releases)?)?;
    save(&source.join("table.rs"), &table(place, &releases)?)
}

fn compare_both(place: &Place) -> Result<(), Failure> {
    let releases = releases(place)?;
    let source = place.root.join("cupti-sys/src");
    let mut problems = Vec::new();
    let (derived, committed) = (table(place, &releases)?, load(&source.join("table.rs"))?);
    if derived != committed {
        let lines = derived.lines().zip(committed.lines()).find(|(derived, committed)| derived != committed);
        let (derived, committed) = lines.unwrap_or(("more or fewer lines", "that many"));
        problems.push("table.rs is not what the headers say:".to_owned());
        problems.push(format!("   {}  is what they say first\n   {}  is there", derived.trim(), committed.trim()));
    }
    let committed = load(&source.join("bindings.rs"))?;
    for release in &releases {
        problems.extend(compare(release, &committed)?);
    }
    for name in FUNCTIONS {
        if !committed.contains(&format!("{}\n", function_doc(name, &releases)?)) {
            problems.push(format!("bindings.rs lacks {name}, or has another release for it"));
        }
    }
    if !problems.is_empty() {
        problems.push("where the headers are right, this writes both files again: cargo xtask bindings".to_owned());
        return Err(problems.join("\n").into());
    }
    println!("   {} builds agree, CUDA {} to {}", releases.len(), releases[0].cuda, newest(&releases)?.cuda);
    Ok(())
}

fn save(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| format!("failed to write {}: {error}", path.display()).into())
}

fn load(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| format!("failed to read {}: {error}", path.display()).into())
}

fn newest(releases: &[Release]) -> Result<&Release, Failure> {
    releases.last().ok_or_else(|| "releases.txt names no release".to_owned().into())
}

// ---- The releases

/// All releases, in order, with their headers; fetches what is not here yet.
fn releases(place: &Place) -> Result<Vec<Release>, Failure> {
    let list = load(&place.root.join("cupti-sys/releases.txt"))?;
    let cache = cache()?.join("cupti-sys");
    let mut releases = Vec::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let mut release = parse(line, &cache).ok_or_else(|| format!("releases.txt: {line}"))?;
        if !release.folder.is_dir() {
            let mut command = place.command("python3");
            command.arg("tests/fetch_wheel.py").arg(&release.folder).args(&release.wheels);
            command.args(["--keep", &format!("(?:.*/)?include/({HEADERS})"), r"include/\1"]);
            command.args(["--keep", r"(?:.*/)?lib/(libcupti\.so\..+)", r"lib/\1", "--need", "lib/libcupti.so.*"]);
            for needed in ["cuda.h", "cupti_activity.h", "cupti_callbacks.h", "cupti_result.h", "cupti_version.h"] {
                command.arg(format!("--need=include/{needed}"));
            }
            // One platform's serve all: headers are the same.
            for platform in ["manylinux1", "manylinux2014", "manylinux_2_17", "manylinux_2_25"] {
                command.arg(format!("--pip=--platform={platform}_x86_64"));
            }
            call(&mut command)?;
        }
        release.headers = headers(&release.folder.join("include"))?;
        for before in releases.iter_mut().filter(|before: &&mut Release| before.from < release.from) {
            before.until = before.until.min(release.from);
        }
        releases.push(release);
    }
    Ok(releases)
}

fn parse(line: &str, cache: &Path) -> Option<Release> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let &[cuda, from, version, digest, runtime, runtime_digest] = words.as_slice() else { return None };
    let suffix = if cuda.starts_with("12.") { "-cu12" } else { "" };
    let wheel = |part: &str, version: &str, digest: &str| {
        format!("nvidia-cuda-{part}{suffix}=={version} --hash=sha256:{digest}")
    };
    Some(Release {
        cuda: cuda.to_owned(),
        from: from.parse().ok()?,
        until: u32::MAX,
        version: version.to_owned(),
        wheels: [wheel("cupti", version, digest), wheel("runtime", runtime, runtime_digest)],
        folder: cache.join(version),
        headers: Headers::default(),
    })
}

fn cache() -> Result<PathBuf, Failure> {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute()).or_else(home);
    Ok(cache.ok_or("neither XDG_CACHE_HOME nor HOME is set".to_owned())?.join("ncclscope"))
}

fn headers(folder: &Path) -> Result<Headers, Failure> {
    let mut whole = String::new();
    let mut names: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        names.push(entry.map_err(|error| error.to_string())?.path());
    }
    names.sort();
    for path in names.iter().filter(|path| path.is_file()) {
        // Some have a copyright sign in Latin-1.
        let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        whole.push_str(&String::from_utf8_lossy(&bytes));
    }
    let bare = without_comments(&whole);
    let words = bare.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).map(str::to_owned).collect();
    Ok(Headers { whole, bare, words })
}

fn without_comments(text: &str) -> String {
    let mut bare = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(slash) = rest.find('/') {
        let comment = &rest[slash..];
        let end = match comment.as_bytes().get(1) {
            Some(b'*') => comment[2..].find("*/").map_or(comment.len(), |end| end + 4),
            Some(b'/') => comment.find('\n').unwrap_or(comment.len()),
            _ => 1,
        };
        bare.push_str(&rest[..slash]);
        bare.push_str(if end == 1 { "/" } else { " " });
        rest = &comment[end..];
    }
    bare.push_str(rest);
    bare
}

impl Headers {
    /// How C calls a struct, and what is between its braces.
    fn body(&self, name: &str) -> Option<(String, &str)> {
        for (at, _) in self.bare.match_indices(name) {
            let before = self.bare[..at].trim_end();
            let after = self.bare[at + name.len()..].trim_start();
            let tagged = before.ends_with("struct") && after.starts_with('{');
            if tagged {
                let body = &after[1..];
                return Some((format!("struct {name}"), &body[..closing(body)?]));
            }
            if before.ends_with('}') && after.starts_with(';') {
                let body = &before[..before.len() - 1];
                return Some((name.to_owned(), &body[opening(body)? + 1..]));
            }
        }
        None
    }

    /// The struct that the comment of each kind names: number, name, struct.
    fn kinds(&self) -> Result<Vec<(u32, String, String)>, Failure> {
        const KIND: &str = "CUPTI_ACTIVITY_KIND_";
        let start = self.whole.find("CUPTI_ACTIVITY_KIND_INVALID").ok_or("no kinds".to_owned())?;
        let end = self.whole[start..].find("CUpti_ActivityKind;").ok_or("no end of the kinds".to_owned())?;
        let mut kinds = Vec::new();
        for part in self.whole[start..start + end].split("/**").skip(1) {
            let Some((comment, rest)) = part.split_once("*/") else { continue };
            let Some((name, number)) = rest.split_once('=') else { continue };
            let Some(name) = name.trim().strip_prefix(KIND) else { continue };
            let number = number.split(|c: char| !c.is_ascii_alphanumeric()).find(|word| !word.is_empty());
            // Some are there as place holders only and name no struct.
            let (Some(Ok(number)), Some(at)) = (number.map(str::parse), comment.find("CUpti_Activity")) else {
                continue;
            };
            let end = comment[at..].find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let record = &comment[at..at + end.unwrap_or(comment.len() - at)];
            kinds.push((number, name.to_owned(), record.to_owned()));
        }
        Ok(kinds)
    }
}

/// Where the brace closes that was opened before `text`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(at, c)| match c {
        '{' => {
            depth += 1;
            None
        }
        '}' if depth == 0 => Some(at),
        '}' => {
            depth -= 1;
            None
        }
        _ => None,
    })
}

/// Where the brace opens that is closed behind `text`.
fn opening(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().rev().find_map(|(at, c)| match c {
        '}' => {
            depth += 1;
            None
        }
        '{' if depth == 0 => Some(at),
        '{' => {
            depth -= 1;
            None
        }
        _ => None,
    })
}

/// Whether a struct has a member. `path` may lead into members of it.
fn has_member(body: &str, path: &str) -> bool {
    let member = path.split('.').next().unwrap_or(path);
    body.match_indices(member).any(|(at, _)| {
        let before = body[..at].chars().next_back();
        let after = body[at + member.len()..].trim_start().chars().next();
        before.is_some_and(|c| c.is_whitespace() || c == '*') && matches!(after, Some(';' | '['))
    })
}

// ---- Asking a C compiler

/// Includes what is needed of a release.
const PROLOGUE: &str = "\
#include <stddef.h>
#include <stdio.h>
#include <cuda.h>
#include <cupti_version.h>
#include <cupti_result.h>
#include <cupti_callbacks.h>
#include <cupti_activity.h>
#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>
#include <generated_cuda_meta.h>
";

/// What the C compiler and libclang are given: the release's headers, with an empty `builtin_types.h` in front of
/// them. The real one leads to the CUDA compiler's own headers and to nothing that CUPTI's need. The macro makes
/// `cuda.h` declare the old types that `generated_cuda_meta.h` speaks of.
fn flags(release: &Release, scratch: &Path) -> Vec<String> {
    let include = release.folder.join("include");
    let folder = |path: &Path| format!("-I{}", path.display());
    vec!["-D__CUDA_API_VERSION_INTERNAL".to_owned(), folder(scratch), folder(&include)]
}

/// A folder of our own for a moment.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, Failure> {
        let path = env::temp_dir().join(format!("xtask-bindings-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let scratch = Scratch(path);
        save(&scratch.0.join("builtin_types.h"), "")?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Compiles a program against a release's headers, runs it, and returns what it prints, in words.
fn ask(release: &Release, declarations: &str, statements: &str) -> Result<Vec<Vec<String>>, Failure> {
    let scratch = Scratch::new()?;
    let source = scratch.0.join("ask.c");
    let program = scratch.0.join("ask");
    save(&source, &format!("{PROLOGUE}{declarations}\nint main(void) {{\n{statements}return 0;\n}}\n"))?;
    let mut compiler = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-w", "-o"]).arg(&program).args(flags(release, &scratch.0)).arg(&source);
    let compiled = compiler.output().map_err(|error| format!("failed to start the C compiler: {error}"))?;
    if !compiled.status.success() {
        let words = String::from_utf8_lossy(&compiled.stderr).into_owned();
        return Err(format!("CUPTI {}: the C compiler says\n{words}", release.version).into());
    }
    let output = Command::new(&program).output().map_err(|error| format!("{}: {error}", program.display()))?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(output.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect())
}

fn number(words: &[String], place: usize) -> Result<u32, Failure> {
    let word = words.get(place).ok_or("the C program said too little".to_owned())?;
    word.parse().map_err(|_| format!("the C program said {word}").into())
}

// ---- The table

/// A field of a release's record.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Member {
    offset: u32,
    /// Of Rust.
    kind: String,
}

/// What a release says about its records.
struct Records {
    /// By kind.
    sizes: BTreeMap<u32, u32>,
    /// By family and field.
    members: BTreeMap<(usize, String), Member>,
    /// The structs of each family, by number of the family.
    structs: BTreeMap<usize, String>,
    subscriber_params: Option<u32>,
}

fn records(release: &Release) -> Result<Records, Failure> {
    let kinds = release.headers.kinds()?;
    let mut statements = String::from("printf(\"api %d\\n\", CUPTI_API_VERSION);\n");
    for (kind, _, record) in &kinds {
        let _ = writeln!(statements, "printf(\"size {kind} %zu\\n\", sizeof({record}));");
    }
    let mut structs = BTreeMap::new();
    for (place, family) in FAMILIES.iter().enumerate() {
        for wanted in family.kinds {
            let found = kinds.iter().find(|(_, name, _)| name == wanted);
            let Some((_, _, record)) = found else { continue };
            if structs.insert(place, record.clone()).is_some_and(|before| before != *record) {
                return Err(format!("CUPTI {}: {} has two structs", release.version, family.name).into());
            }
        }
        let Some(record) = structs.get(&place) else { continue };
        let (_, body) = release.headers.body(record).ok_or_else(|| format!("{record} is not declared"))?;
        for field in family.fields.split_whitespace().filter(|field| has_member(body, field)) {
            let value = format!("((({record}*)0)->{field})");
            // 1 is an integer, 5 a pointer, 12 a struct, as GCC numbers them. Enumerations of C count as unsigned.
            let _ = writeln!(
                statements,
                "printf(\"field {place} {field} %zu %zu %d %d\\n\", offsetof({record}, {field}), sizeof({value}),
                    __builtin_classify_type({value}),
                    _Generic({value}, signed char: 1, short: 1, int: 1, long: 1, long long: 1, default: 0));"
            );
        }
    }
    if release.headers.words.contains("CUpti_SubscriberParams") {
        statements.push_str("printf(\"params %zu\\n\", (size_t)CUpti_SubscriberParams_STRUCT_SIZE);\n");
    }

    let mut records = Records { sizes: BTreeMap::new(), members: BTreeMap::new(), structs, subscriber_params: None };
    for words in ask(release, "", &statements)? {
        match words[0].as_str() {
            "api" if !(release.from..release.until).contains(&number(&words, 1)?) => {
                return Err(format!("CUPTI {} is version {}, not what its row says", release.version, words[1]).into());
            }
            "size" => {
                records.sizes.insert(number(&words, 1)?, number(&words, 2)?);
            }
            "field" => {
                let (place, offset, size) = (number(&words, 1)?, number(&words, 3)?, number(&words, 4)?);
                let kind = rust_type(number(&words, 5)?, size, number(&words, 6)? == 1);
                let kind = kind.ok_or_else(|| format!("{} is of no type the table knows", words[2]))?;
                records.members.insert((place as usize, words[2].clone()), Member { offset, kind });
            }
            "params" => records.subscriber_params = Some(number(&words, 1)?),
            _ => {}
        }
    }
    for (from, until, kinds, size) in WALKED {
        if (*from..*until).contains(&release.from) {
            records.sizes.extend(kinds.iter().map(|kind| (*kind, *size)));
        }
    }
    Ok(records)
}

fn rust_type(class: u32, size: u32, signed: bool) -> Option<String> {
    match (class, size) {
        (1, 1 | 2 | 4 | 8) => Some(format!("{}{}", if signed { 'i' } else { 'u' }, size * 8)),
        (5, 8) => Some("*const c_char".to_owned()),
        (12, 16) => Some("[u8; 16]".to_owned()),
        _ => None,
    }
}

/// `sourceGraphNodeId` as `SOURCE_GRAPH_NODE_ID`; `channelID` as `CHANNEL_ID`.
fn constant(field: &str) -> String {
    let mut name = String::new();
    let mut before = '_';
    for c in field.chars() {
        if c.is_ascii_uppercase() && (before.is_ascii_lowercase() || before.is_ascii_digit()) {
            name.push('_');
        }
        name.push(if c == '.' { '_' } else { c.to_ascii_uppercase() });
        before = if c == '.' { '_' } else { c };
    }
    name
}

/// The text of `table.rs`.
fn table(place: &Place, releases: &[Release]) -> Result<String, Failure> {
    let mut all = Vec::new();
    for release in releases {
        all.push((release, records(release)?));
    }
    let newest = &all.last().ok_or("releases.txt names no release".to_owned())?.1;

    let mut text = String::new();
    let first = &releases[0].cuda;
    let last = &releases[releases.len() - 1].cuda;
    let _ = writeln!(
        text,
        "//! Where the fields of activity records lie, and how long records are: CUPTI of CUDA {first} to {last}.
//!
//! Written by `cargo xtask bindings` from the headers on PyPI that `releases.txt` names; not to be edited. The sizes
//! are those that the headers name for each kind, but for the few that the libraries themselves contradict (`WALKED`
//! in xtask); the tests walk the libraries of all these releases.

use core::ffi::c_char;

use crate::bindings;
use crate::records::{{Family, Field}};

/// The first version of each release, as `cuptiGetVersion` reports it.
pub(crate) const RELEASES: &[(u32, &str)] = &["
    );
    for (place, release) in releases.iter().enumerate() {
        // Two releases may have one version; the first of them is the one that is certain.
        if place == 0 || releases[place - 1].from != release.from {
            let _ = writeln!(text, "({}, {:?}),", digits(release.from), release.cuda);
        }
    }
    text.push_str("];\n\n");

    text.push_str("/// The size of `CUpti_SubscriberParams` from a version on.\n");
    text.push_str("pub(crate) const SUBSCRIBER_PARAMS_SIZES: &[(u32, usize)] = &[");
    let params = all.iter().filter_map(|(release, records)| Some((release.from, records.subscriber_params?)));
    text.push_str(&rows(params));
    text.push_str("];\n\n");

    let kinds = all.iter().flat_map(|(_, records)| records.sizes.keys()).max().copied().unwrap_or(0);
    let names: BTreeMap<u32, String> = all
        .iter()
        .flat_map(|(release, _)| release.headers.kinds().unwrap_or_default())
        .map(|(kind, name, _)| (kind, name))
        .collect();
    let _ = writeln!(text, "/// By kind: from a version on, how long a record is; 0 where it cannot be stepped over.");
    let _ = writeln!(text, "pub(crate) const SIZES: [&[(u32, u16)]; {}] = [", kinds + 1);
    for kind in 0..=kinds {
        let sizes = all.iter().map(|(release, records)| (release.from, records.sizes.get(&kind).copied().unwrap_or(0)));
        let name = names.get(&kind).map_or("not a record", String::as_str);
        let _ = writeln!(text, "// {kind}: {name}\n&[{}],", rows(sizes.skip_while(|(_, size)| *size == 0)));
    }
    text.push_str("];\n");

    for (place, family) in FAMILIES.iter().enumerate() {
        write_family(&mut text, place, family, &all, newest)?;
    }
    rustfmt(place, &text)
}

/// Rows of a version and a value, leaving out those that repeat the one before.
fn rows(values: impl Iterator<Item = (u32, u32)>) -> String {
    let mut last = None;
    let mut text = String::new();
    for (from, value) in values {
        if last != Some(value) {
            let _ = write!(text, "({}, {value}), ", digits(from));
        }
        last = Some(value);
    }
    text
}

/// A number, its thousands apart.
fn digits(number: u32) -> String {
    if number < 10_000 { number.to_string() } else { format!("{}_{:03}", number / 1000, number % 1000) }
}

fn write_family(
    text: &mut String,
    place: usize,
    family: &Family,
    all: &[(&Release, Records)],
    newest: &Records,
) -> Result<(), Failure> {
    let mut structs = all.iter().filter_map(|(_, records)| records.structs.get(&place));
    let first = structs.next().ok_or_else(|| format!("no release has {}", family.name))?;
    let names = match structs.next_back() {
        Some(last) if last != first => format!("`{first}` to `{last}`"),
        _ => format!("`{first}`"),
    };
    let kinds: Vec<String> = family.kinds.iter().map(|kind| format!("bindings::CUPTI_ACTIVITY_KIND_{kind}")).collect();
    let _ = writeln!(text, "\n/// {} {names}.", family.about);
    let _ = writeln!(text, "#[derive(Clone, Copy, Debug)]\npub enum {} {{}}\n", family.name);
    let _ = writeln!(text, "impl Family for {} {{", family.name);
    let _ = writeln!(text, "const KINDS: &'static [u32] = &[{}];\n}}\n", kinds.join(", "));
    let _ = writeln!(text, "impl {} {{", family.name);
    for field in family.fields.split_whitespace() {
        let key = (place, field.to_owned());
        let absent = || format!("no release has {}::{field}", family.name);
        let member = newest.members.get(&key).ok_or_else(absent)?;
        let first = all.iter().position(|(_, records)| records.members.contains_key(&key)).ok_or_else(absent)?;
        for (release, records) in &all[first..] {
            let here = records.members.get(&key);
            if here != Some(member) {
                let version = &release.version;
                return Err(format!(
                    "CUPTI {version} has {}::{field} as {here:?}, the newest as {member:?}: the table cannot say that",
                    family.name
                )
                .into());
            }
        }
        let release = all[first].0;
        // What came with the first release, or with the family, goes without saying.
        let with = all.iter().position(|(_, records)| records.structs.contains_key(&place));
        let since = if with == Some(first) { String::new() } else { format!(", since CUDA {}", release.cuda) };
        let _ = writeln!(text, "/// `{field}`{since}");
        let (name, kind, offset) = (constant(field), &member.kind, member.offset);
        let _ =
            writeln!(text, "pub const {name}: Field<Self, {kind}> = Field::new({offset}, {});", digits(release.from));
    }
    text.push_str("}\n");
    Ok(())
}

fn rustfmt(place: &Place, text: &str) -> Result<String, Failure> {
    let mut command = place.command("rustfmt");
    command.args(["--edition", "2024", "--quiet", "--config-path"]).arg(&place.root);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("failed to start rustfmt: {error}"))?;
    let mut input = child.stdin.take().ok_or("rustfmt has no input".to_owned())?;
    // It reads all before it writes.
    input.write_all(text.as_bytes()).map_err(|error| error.to_string())?;
    drop(input);
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err("rustfmt did not take what was generated".to_owned().into());
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string().into())
}

// ---- The bindings

/// The text of `bindings.rs`, from the newest release.
fn bindings(place: &Place, releases: &[Release]) -> Result<String, Failure> {
    let release = newest(releases)?;
    let scratch = Scratch::new()?;
    let header = scratch.0.join("all.h");
    save(&header, PROLOGUE)?;
    let builder = bindgen::builder()
        .header(header.to_string_lossy())
        .allowlist_function(FUNCTIONS.join("|"))
        .allowlist_type(TYPES.join("|"))
        // Launch attributes change with every release, and are not looked at.
        .opaque_type("CUlaunchAttribute_st")
        .default_enum_style(EnumVariation::Consts)
        .prepend_enum_name(false)
        .generate_comments(false)
        .use_core()
        .disable_header_comment()
        .rust_target(RustTarget::stable(88, 0).map_err(|error| error.to_string())?)
        .rust_edition(RustEdition::Edition2024)
        .formatter(Formatter::Rustfmt)
        .rustfmt_configuration_file(Some(place.root.join("rustfmt.toml")))
        .clang_args(flags(release, &scratch.0));
    // Where there is no libclang it panics.
    let generated = std::panic::catch_unwind(AssertUnwindSafe(|| builder.generate()))
        .map_err(|_| "bindgen found no libclang; on Debian: apt-get install libclang-dev".to_owned())?
        .map_err(|error| format!("bindgen failed: {error}"))?
        .to_string();

    let mut text = format!(
        "//! CUPTI's types, constants and function types, under its own names, as of CUDA {}.
//!
//! Written by `cargo xtask bindings` from NVIDIA's headers on PyPI; not to be edited. What they mean is in NVIDIA's
//! documentation of CUPTI.

#![allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(clippy::all)]

",
        release.cuda
    );
    for item in items(&generated) {
        if let Some(function) = item.strip_prefix("unsafe extern \"C\" {") {
            text.push_str(&function_type(function, releases)?);
        } else if kept(&item) {
            text.push_str(&item);
        }
    }
    rustfmt(place, &text)
}

/// The items of a formatted file: each ends with a line that begins with a closing bracket, or is one statement.
fn items(text: &str) -> Vec<String> {
    let mut items = Vec::new();
    let mut item = String::new();
    for line in text.lines() {
        item.push_str(line);
        item.push('\n');
        let whole = line.starts_with('}') || (line.ends_with(';') && !item.contains('{'));
        if whole {
            items.push(std::mem::take(&mut item));
        }
    }
    items
}

/// A declaration as a type: nobody links against CUPTI.
fn function_type(declaration: &str, releases: &[Release]) -> Result<String, Failure> {
    let wrong = || format!("not one function: {declaration}");
    let declaration = declaration.trim().trim_end_matches('}').trim();
    let declaration = declaration.strip_prefix("pub fn ").and_then(|rest| rest.strip_suffix(';')).ok_or_else(wrong)?;
    let (name, rest) = declaration.split_once('(').ok_or_else(wrong)?;
    Ok(format!("{}\npub type {name} = unsafe extern \"C\" fn({rest};\n", function_doc(name, releases)?))
}

/// What the bindings say about a function: since when it is there.
fn function_doc(name: &str, releases: &[Release]) -> Result<String, Failure> {
    let first = releases.iter().position(|release| release.headers.words.contains(name));
    let first = first.ok_or_else(|| format!("no release has {name}"))?;
    let since = if first == 0 { String::new() } else { format!(", since CUDA {}", releases[first].cuda) };
    Ok(format!("/// `{name}`{since}"))
}

/// Whether an item is wanted: constants of large enumerations are not all.
fn kept(item: &str) -> bool {
    let Some((name, kind, _)) = constant_parts(item) else { return true };
    // How many there are is another number in every release; how wide they are is not a value.
    if ["_FORCE_INT", "_COUNT", "_SIZE"].iter().any(|end| name.ends_with(end)) {
        return false;
    }
    let prefixes = KEPT.iter().find(|(of, _)| *of == kind).map(|(_, prefixes)| *prefixes);
    prefixes.is_none_or(|prefixes| prefixes.iter().any(|prefix| name.starts_with(prefix)))
}

/// The name, type and value of a constant.
fn constant_parts(item: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = item.trim_start().strip_prefix("pub const ")?.split_once(':')?;
    let (kind, value) = rest.split_once('=')?;
    Some((name.trim(), kind.trim(), value.trim().strip_suffix(';')?))
}

// ---- The comparison of the bindings with a release

/// Where a release contradicts the committed bindings.
fn compare(release: &Release, committed: &str) -> Result<Vec<String>, Failure> {
    let headers = &release.headers;
    let mut expected = BTreeMap::new();
    let mut statements = String::new();
    let mut declarations = String::new();
    let mut declared = BTreeSet::new();
    for item in items(committed) {
        if let Some((name, declaration)) = c_function(&item) {
            // A second declaration must be the same as the first, or the compiler says so.
            if headers.words.contains(&name) {
                declarations.push_str(&declaration);
                declared.insert(name);
            }
        } else if let Some((name, _, value)) = constant_parts(&item) {
            if headers.words.contains(name) {
                expected.insert(name.to_owned(), value.to_owned());
                let _ = writeln!(statements, "printf(\"{name} %lld\\n\", (long long){name});");
            }
        } else {
            for (path, value) in layouts(&item) {
                let (name, member) = path.split_once("::").unwrap_or((&path, ""));
                // Structs without a body are pointed to, and those of bindgen's own making have no name in C.
                let Some((record, body)) = headers.body(name) else { continue };
                // Of all structs, this one alone has grown; its size is in the table.
                if member.is_empty() && name != "CUpti_SubscriberParams" {
                    let _ = writeln!(statements, "printf(\"{path} %zu\\n\", sizeof({record}));");
                } else if !member.is_empty() && has_member(body, member) {
                    let _ = writeln!(statements, "printf(\"{path} %zu\\n\", offsetof({record}, {member}));");
                } else {
                    continue;
                }
                expected.insert(path, value);
            }
        }
    }
    let mut problems = Vec::new();
    for name in FUNCTIONS.iter().filter(|name| headers.words.contains(**name) && !declared.contains(**name)) {
        problems.push(format!("CUPTI {}: {name} could not be compared", release.version));
    }
    for words in ask(release, &declarations, &statements)? {
        let [name, value] = words.as_slice() else { continue };
        if expected.remove(name).as_ref() != Some(value) {
            problems.push(format!("CUPTI {}: {name} is {value}, in bindings.rs it is not", release.version));
        }
    }
    for name in expected.keys() {
        problems.push(format!("CUPTI {}: {name} was not found", release.version));
    }
    Ok(problems)
}

/// The type of a function or a callback in the bindings: its name, and how C declares it.
fn c_function(item: &str) -> Option<(String, String)> {
    let flat = item.split_whitespace().collect::<Vec<_>>().join(" ");
    let (name, rest) = flat.split_once("pub type ")?.1.split_once(" = ")?;
    let (before, rest) = rest.split_once("unsafe extern \"C\" fn(")?;
    let (parameters, result) = rest.split_once(')')?;
    let result = result.trim_end_matches([';', '>', ',', ' ']).strip_prefix(" -> ").map_or("void".to_owned(), c_type);
    let parameters = parameters.trim_end_matches([' ', ',']).split(", ").filter(|parameter| !parameter.is_empty());
    let parameters: Option<Vec<String>> =
        parameters.map(|parameter| Some(c_type(parameter.split_once(": ")?.1))).collect();
    let parameters = Some(parameters?.join(", ")).filter(|list| !list.is_empty()).unwrap_or("void".to_owned());
    let declaration = if before.is_empty() {
        format!("{result} CUPTIAPI {name}({parameters});\n")
    } else {
        format!("typedef {result} (CUPTIAPI *{name})({parameters});\n")
    };
    Some((name.to_owned(), declaration))
}

/// A type of the bindings in C. Named types have their names.
fn c_type(rust: &str) -> String {
    if let Some(inner) = rust.strip_prefix("*mut ") {
        return format!("{} *", c_type(inner));
    }
    if let Some(inner) = rust.strip_prefix("*const ") {
        return format!("{} const *", c_type(inner));
    }
    let names = [("u8", "uint8_t"), ("u32", "uint32_t"), ("u64", "uint64_t"), ("usize", "size_t")];
    let known = names.iter().find(|(name, _)| *name == rust).map(|(_, c)| *c);
    known.unwrap_or(rust.strip_prefix("::core::ffi::c_").unwrap_or(rust)).to_owned()
}

/// The sizes and offsets that bindgen's assertions state: `Struct` or `Struct::member`, and the number. The Rust
/// compiler holds the bindings to them.
fn layouts(item: &str) -> Vec<(String, String)> {
    let flat = item.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut found = Vec::new();
    for part in flat.split("[\"").skip(1) {
        let Some((title, rest)) = part.split_once("\"]") else { continue };
        let title = title.strip_prefix("Size of ").or_else(|| title.strip_prefix("Offset of field: "));
        let number = rest.split_once(';').and_then(|(before, _)| before.trim_end_matches(']').rsplit_once("- "));
        let (Some(title), Some((_, number))) = (title, number) else { continue };
        let name = title.trim_end_matches('_').to_owned();
        found.push((name, number.trim_end_matches("usize").to_owned()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_constants() {
        for (field, name) in [
            ("start", "START"),
            ("channelID", "CHANNEL_ID"),
            ("sourceGraphNodeId", "SOURCE_GRAPH_NODE_ID"),
            ("localMemoryTotal_v2", "LOCAL_MEMORY_TOTAL_V2"),
            ("objectId.pt.processId", "OBJECT_ID_PT_PROCESS_ID"),
        ] {
            assert_eq!(constant(field), name);
        }
    }

    #[test]
    fn headers_are_read_without_their_comments() {
        let whole = "typedef struct PACKED {\n /** start; */ int end; // gone\n union { char a; } *both[2];\n} Thing;\n\
                     struct Tag_st { int x; };";
        let headers = Headers { bare: without_comments(whole), ..Headers::default() };
        let (name, body) = headers.body("Thing").unwrap();
        assert_eq!(name, "Thing");
        assert!(has_member(body, "end") && has_member(body, "both.a") && !has_member(body, "start"));
        assert_eq!(headers.body("Tag_st").unwrap().0, "struct Tag_st");
    }

    #[test]
    fn kinds_are_read_from_their_comments() {
        let whole = "CUPTI_ACTIVITY_KIND_INVALID = 0,\n/** A copy. Record \\ref CUpti_ActivityMemcpy6. */\n\
                     CUPTI_ACTIVITY_KIND_MEMCPY = 1,\n/** Nothing. */ CUPTI_ACTIVITY_KIND_COUNT,\n} CUpti_ActivityKind;";
        let headers = Headers { whole: whole.to_owned(), ..Headers::default() };
        let Ok(kinds) = headers.kinds() else { panic!("no kinds") };
        assert_eq!(kinds, [(1, "MEMCPY".to_owned(), "CUpti_ActivityMemcpy6".to_owned())]);
    }

    #[test]
    fn functions_are_declared_as_in_c() {
        let item = "/// `cuptiDo`\npub type cuptiDo = unsafe extern \"C\" fn(\n    kind: CUpti_Kind,\n    \
                    text: *mut *const ::core::ffi::c_char,\n    size: usize,\n) -> CUptiResult;\n";
        let (name, declaration) = c_function(item).unwrap();
        assert_eq!(name, "cuptiDo");
        assert_eq!(declaration, "CUptiResult CUPTIAPI cuptiDo(CUpti_Kind, char const * *, size_t);\n");
        let item =
            "pub type CUpti_Func = ::core::option::Option<\n    unsafe extern \"C\" fn(buffer: *mut *mut u8),\n>;\n";
        assert_eq!(c_function(item).unwrap().1, "typedef void (CUPTIAPI *CUpti_Func)(uint8_t * *);\n");
        let item = "pub type CUpti_Func = ::core::option::Option<unsafe extern \"C\" fn() -> u64>;";
        assert_eq!(c_function(item).unwrap().1, "typedef uint64_t (CUPTIAPI *CUpti_Func)(void);\n");
        assert!(c_function("pub type CUpti_ActivityKind = ::core::ffi::c_uint;").is_none());
    }

    #[test]
    fn assertions_are_read() {
        let item = "const _: () = {\n[\"Size of A\"][size_of::<A>() - 72usize];\n\
                    [\"Offset of field: A::type_\"]\n[offset_of!(A, type_) - 8usize];\n};\n";
        let pairs = [("A".to_owned(), "72".to_owned()), ("A::type".to_owned(), "8".to_owned())];
        assert_eq!(layouts(item), pairs);
    }
}
