//! The pictures of `docs/`: scenarios of the demo in Perfetto's own user interface.

use std::process::ExitCode;

use crate::demo::{Built, Profile, RELEASE};
use crate::steps::{self, Failure, Place, call};

/// A picture: the scenario, and what is done in the interface (tests/perfetto/browser.js has the steps).
struct Picture {
    scenario: &'static str,
    size: &'static str,
    steps: &'static [&'static str],
}

/// From the first to the last kernel of NCCL's.
const ALL_KERNELS: &str = "SELECT min(ts) - 1000000, max(ts + dur) + 1000000 FROM slice \
    WHERE category = 'kernel' AND extract_arg(arg_set_id, 'nccl.match') IS NOT NULL";

/// How far apart the ranks began each operation.
const ARRIVALS: &str = r#"{"id": "dev.perfetto.AddDebugSliceTrack", "args": ["SELECT min(ts) AS ts, max(ts) - min(ts) AS dur, name FROM slice WHERE category = 'kernel' AND extract_arg(arg_set_id, 'nccl.seq') IS NOT NULL GROUP BY extract_arg(arg_set_id, 'correlation_id') HAVING count() > 1", "First to last rank"]}"#;

const PICTURES: &[Picture] = &[
    Picture {
        scenario: "training",
        size: "1600x900",
        steps: &["--expand", "^rank 0 .*", "--collapse", " > ncclscope$", "--zoom-to", ALL_KERNELS, "--fit"],
    },
    Picture {
        scenario: "straggler",
        size: "1600x400",
        steps: &["--expand", "^rank .* > GPU$", "--command", ARRIVALS, "--zoom-to", ALL_KERNELS, "--fit"],
    },
    Picture {
        scenario: "network",
        size: "1600x400",
        steps: &["--expand", "^rank 3 .* > Proxy( >.*)?$", "--zoom-to", ALL_KERNELS, "--fit"],
    },
    Picture {
        scenario: "host_bound",
        size: "1600x400",
        steps: &["--expand", "^rank 0 .* > (Communicators|GPU)$", "--zoom-to", ALL_KERNELS, "--fit"],
    },
    Picture {
        scenario: "hang",
        size: "1600x400",
        steps: &["--expand", "^rank 0 .* > (Communicators|GPU|Proxy)( >.*)?$", "--fit"],
    },
    Picture {
        scenario: "graphs",
        size: "1600x400",
        steps: &["--expand", "^rank 0 .* > (Communicators|GPU)( >.*)?$", "--zoom-to", ALL_KERNELS, "--fit"],
    },
    Picture {
        scenario: "groups",
        size: "1600x400",
        steps: &["--expand", "^rank 0 .* > (Communicators|GPU)( >.*)?$", "--zoom-to", ALL_KERNELS, "--fit"],
    },
];

const USAGE: &str = "\
usage: cargo xtask pictures [SCENARIO...]

  Draws the pictures of docs/pictures, or those of some scenarios. Look at them before you commit them.
";

pub(crate) fn run(words: &[String]) -> ExitCode {
    let known = |word: &String| PICTURES.iter().any(|picture| picture.scenario == word);
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
    for picture in PICTURES.iter().filter(|it| wanted.is_empty() || wanted.iter().any(|name| name == it.scenario)) {
        let trace = built.play(place, &library, picture.scenario, None)?;
        let mut browser = place.command("node");
        browser.args(["tests/perfetto/browser.js", "--size", picture.size, "--trace"]).arg(trace);
        browser.args(picture.steps).arg("--picture").arg(folder.join(picture.scenario).with_extension("png"));
        call(&mut browser)?;
    }
    Ok(())
}
