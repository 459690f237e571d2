//! The pictures in `docs/`: scenarios of the demo in Perfetto's own user interface.

use std::path::Path;
use std::process::ExitCode;

use crate::demo::{Built, Profile, RELEASE};
use crate::steps::{self, Failure, Place, call};

/// A picture: the scenario, and the steps in the interface (see tests/perfetto/browser.js).
struct Picture {
    scenario: &'static str,
    size: &'static str,
    /// Each with its value, if it has one.
    steps: &'static [(&'static str, &'static str)],
}

/// From the first to the last NCCL kernel.
const ALL_KERNELS: &str = "SELECT min(ts) - 1000000, max(ts + dur) + 1000000 FROM slice \
    WHERE category = 'kernel' AND extract_arg(arg_set_id, 'nccl.match') IS NOT NULL";

/// The first operations on the GPU from their hand-over on, with room for notes at the right edge.
const FIRST_OPERATIONS: &str = "WITH first AS (SELECT * FROM slice WHERE category = 'kernel' AND name GLOB 'AllReduce*' ORDER BY ts LIMIT 12) \
    SELECT (SELECT min(ts) FROM slice WHERE category = 'operation' AND name GLOB 'AllReduce*') - 2000000, \
    max(ts + dur) + (max(ts + dur) - min(ts)) * 2 / 3 FROM first";

/// What `diagnose` found, and about as much time before and after it.
const DIAGNOSED: &str = "SELECT min(ts) - min(dur), max(ts + dur) + min(dur) FROM slice JOIN track ON track.id = track_id \
    WHERE track.name = 'Diagnosis'";

/// The GPUs' tracks, below the diagnosis.
const GPUS: &[(&str, &str)] = &[
    ("--by-rank", ""),
    ("--expand", "^Job$|^rank .* > (GPU|Communicators)$"),
    ("--hide", "^System$|stream (14|15|17)$|CUPTI overhead| > (Proxy|ncclscope)$| > emulator"),
    ("--hide", "ranks waiting$|> Communicators > (?!.* · waits$)"),
    ("--zoom-to", DIAGNOSED),
    ("--fit", ""),
];

/// The diagnosed step alone, with room for notes at the right edge.
const DIAGNOSED_STEP_AND_NOTES: &str = "SELECT min(ts) - min(dur) / 20, max(ts + dur) + min(dur) / 2 FROM slice JOIN track ON track.id = track_id \
    WHERE track.name = 'Diagnosis'";

const PICTURES: &[Picture] = &[
    Picture {
        scenario: "training",
        size: "1600x700",
        steps: &[
            ("--expand", "^rank 0 .* > (Communicators|GPU|GPU > .* channels)$"),
            ("--expand", "^rank 0 .* > world · receive ← 3 · steps$"),
            ("--hide", "^System$|^rank [123] |^rank 0 [^>]* > (emulated gpu|ncclscope|GPU channels)"),
            ("--hide", "· [dt]p ·|^rank 0 .* > ([dt]p|algbw) ·|stream (14|15|17|19|2[0-9]|31)( |$)|CUPTI overhead"),
            ("--hide", "world · (send|receive) . 2|receive . 3$|bytes in flight| > CPU$"),
            ("--zoom-to", FIRST_OPERATIONS),
            ("--fit", ""),
            ("--note", " > emulator [0-9]+$=the program's calls, by thread"),
            ("--note", " > world · rank 0 of 4$=operations while the GPU works on them; the same colour on every rank"),
            ("--note", " · handed over$=the same operations while NCCL hands them to the GPU and the proxy"),
            ("--note", " > busbw=their bandwidth, as nccl-tests counts it"),
            ("--note", " > outstanding=how far the host is ahead of the GPU"),
            ("--note", "stream 13$=the program's own kernels"),
            ("--note", "stream 18$=NCCL's kernels, each with its operation and how it was matched"),
            ("--note", "channel 0$=the kernel's channels, by the GPU's own timer, with the error"),
            ("--note", " > state$=what the proxy's progress thread is doing"),
            ("--note", " > operations queued$=operations taken but not yet begun"),
            ("--note", " > steps in flight$=transfers in flight"),
            ("--note", " · steps$=each transfer with a peer, and whether it waited for the GPU or the network"),
        ],
    },
    Picture {
        scenario: "straggler",
        size: "1600x400",
        steps: &[
            ("--by-rank", ""),
            ("--expand", "^Job$|^rank .* > (GPU|Communicators)$"),
            ("--hide", "^System$|stream (14|15|17)$|CUPTI overhead| > (Proxy|ncclscope)$| > emulator"),
            ("--hide", "ranks waiting$|> Communicators > (?!.* · waits$)"),
            ("--zoom-to", ALL_KERNELS),
            ("--fit", ""),
            ("--note", " · first to last rank$=from the first rank's begin to the last one's, named after the last"),
            ("--note", "^rank 0 .* · waits$=how long this rank waited, for whom, and how long the data took"),
            ("--note", "^rank 2 .* > GPU 0 · stream 18$=the last to start, so the shortest"),
        ],
    },
    Picture {
        scenario: "network",
        size: "1600x400",
        steps: &[
            ("--expand", "^rank 3 .* > Proxy( >.*)?$"),
            ("--hide", "^System$|^rank [01245] "),
            ("--zoom-to", ALL_KERNELS),
            ("--fit", ""),
            ("--note", "bytes in flight$=high and flat: the link has stalled"),
            ("--note", " · steps$=green: waits for the network; orange: nothing to send yet"),
        ],
    },
    Picture {
        scenario: "host_bound",
        size: "1600x400",
        steps: &[
            ("--expand", "^rank 0 .* > (Communicators|GPU)$"),
            ("--zoom-to", ALL_KERNELS),
            ("--by-rank", ""),
            ("--fit", ""),
        ],
    },
    Picture { scenario: "late_host", size: "1600x400", steps: GPUS },
    Picture { scenario: "pauses", size: "1600x400", steps: GPUS },
    Picture { scenario: "unequal", size: "1600x400", steps: GPUS },
    Picture {
        scenario: "slow_link",
        size: "1600x400",
        steps: &[
            ("--by-rank", ""),
            ("--expand", "^Job$|^rank [13] .* > Proxy( >.*)?$"),
            ("--hide", "^System$|^rank [0245] | > (GPU|Communicators|ncclscope)$| > emulator|ranks waiting$"),
            (
                "--hide",
                "network events$| > CPU$| > (state|operations queued)$|steps in flight$| · receive . |^rank 1 .* · steps$",
            ),
            ("--zoom-to", DIAGNOSED_STEP_AND_NOTES),
            ("--fit", ""),
            ("--note", "^rank 1 .* > bytes in flight$=to rank 2: what is sent has arrived at once"),
            ("--note", "^rank 3 .* > bytes in flight$=to rank 4: as much data, and it stays in flight for long"),
            ("--note", "^rank 3 .* · steps$=green: the network has the data; orange: there is nothing to send yet"),
        ],
    },
    Picture {
        scenario: "stalling_link",
        size: "1600x400",
        steps: &[
            ("--by-rank", ""),
            ("--expand", "^Job$|^rank .* > Proxy( >.*)?$"),
            ("--hide", "^System$| > (GPU|Communicators|ncclscope)$| > emulator|ranks waiting$"),
            (
                "--hide",
                "network events$| > CPU$| > (state|operations queued)$|steps in flight$| · receive . |^rank [02] .* · steps$",
            ),
            ("--zoom-to", DIAGNOSED),
            ("--fit", ""),
        ],
    },
    Picture {
        scenario: "hang",
        size: "1600x400",
        steps: &[("--expand", "^rank 0 .* > (Communicators|GPU|Proxy)( >.*)?$"), ("--by-rank", ""), ("--fit", "")],
    },
];

/// A picture of `ncclscope report`: the scenario, and the parts of the page.
struct OfReport {
    scenario: &'static str,
    parts: &'static str,
}

const REPORTS: &[OfReport] = &[
    OfReport { scenario: "straggler", parts: "verdict,lateness,shares" },
    OfReport { scenario: "slow_link", parts: "verdict,links" },
];

const USAGE: &str = "\
usage: cargo xtask pictures [SCENARIO...]

  Draws the pictures of docs/pictures, or those of some scenarios. Look at them before you commit them.
  With --reports, only those of the report.
";

const ONLY_REPORTS: &str = "--reports";

pub(crate) fn run(words: &[String]) -> ExitCode {
    let known = |word: &String| word == ONLY_REPORTS || PICTURES.iter().any(|picture| picture.scenario == word);
    if !words.iter().all(known) {
        let names: Vec<_> = PICTURES.iter().map(|picture| picture.scenario).collect();
        eprint!("{USAGE}\n  SCENARIO   one of {}\n", names.join(", "));
        return ExitCode::from(2);
    }
    steps::run_chore(|place| draw(place, words))
}

fn draw(place: &Place, wanted: &[String]) -> Result<(), Failure> {
    let built = Built::new(place, Profile::Debug)?;
    let library = built.library(place, RELEASE)?;
    let folder = place.root.join("docs/pictures");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let only_reports = wanted.iter().any(|word| word == ONLY_REPORTS);
    let wanted: Vec<&String> = wanted.iter().filter(|word| *word != ONLY_REPORTS).collect();
    let is_wanted = |scenario: &str| wanted.is_empty() || wanted.iter().any(|name| *name == scenario);
    for picture in PICTURES.iter().filter(|it| is_wanted(it.scenario) && !only_reports) {
        let trace = built.play(place, &library, picture.scenario, None)?;
        let mut browser = place.command("node");
        browser.args(["tests/perfetto/browser.js", "--size", picture.size, "--trace"]).arg(trace);
        let steps = picture.steps.iter().flat_map(|(step, value)| [(*step).to_owned(), (*value).to_owned()]);
        browser
            .args(steps.filter(|word| !word.is_empty()))
            .arg("--picture")
            .arg(folder.join(picture.scenario).with_extension("png"));
        call(&mut browser)?;
    }
    for picture in REPORTS.iter().filter(|it| is_wanted(it.scenario)) {
        let joined = built.play(place, &library, picture.scenario, None)?;
        let (Some(above), traces) = (joined.parent().and_then(Path::parent), Path::new(picture.scenario).join("trace"))
        else {
            continue;
        };
        // As it is named from the folder of all scenarios.
        let page = joined.with_extension("html");
        let mut report = place.command(built.program("ncclscope"));
        call(report.current_dir(above).arg("report").arg(&traces).arg("-o").arg(&page))?;
        let mut browser = place.command("node");
        browser.args(["tests/report/page.js", "--size", "1100x800"]).arg(&page);
        let name = format!("report_{}.png", picture.scenario);
        call(browser.args(["--keep", picture.parts, "--picture"]).arg(folder.join(name)))?;
    }
    Ok(())
}
