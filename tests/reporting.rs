//! `ncclscope report`: the page in a browser, as its readers see it.
//!
//! The tests that look at the page need Chromium. Without it they say so and are skipped, except in
//! continuous integration.

use crate::command::ncclscope;
use crate::synthetic::{Damage, Job};
use ncclscope_tests::ui::look;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with the traces of a synthetic job, and room for the page.
struct Recorded {
    folder: tempfile::TempDir,
}

impl Recorded {
    fn new(job: &Job, ranks: u32) -> Recorded {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("traces")).unwrap();
        let recorded = Recorded { folder };
        job.write_to(&recorded.traces(), ranks, true);
        recorded
    }

    fn traces(&self) -> PathBuf {
        self.folder.path().join("traces")
    }

    /// Makes the page.
    fn page(&self) -> PathBuf {
        let page = self.folder.path().join("report.html");
        report(&[&self.traces()], &page).unwrap();
        page
    }
}

fn report(traces: &[&Path], page: &Path) -> Result<String, String> {
    let mut words = vec!["report".as_ref()];
    words.extend(traces.iter().map(|path| path.as_os_str()));
    words.extend(["-o".as_ref(), page.as_os_str()]);
    ncclscope(&words)
}

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&ncclscope(words).unwrap()).unwrap()
}

/// What the steps print, one value each.
fn looked(page: &Path, steps: &[&str]) -> Option<Vec<Value>> {
    let said = look(&[&[page.to_str().unwrap()], steps].concat())?;
    Some(said.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect())
}

/// The data in the page.
fn data(page: &Path) -> Value {
    let text = fs::read_to_string(page).unwrap();
    let begin = text.split_once("id=\"data\">").unwrap().1;
    serde_json::from_str(begin.split_once("</script>").unwrap().0).unwrap()
}

/// The size of a page without its data, in bytes.
fn bare(page: &Path) -> usize {
    let text = fs::read_to_string(page).unwrap();
    let (before, rest) = text.split_once("id=\"data\">").unwrap();
    before.len() + rest.split_once("</script>").unwrap().1.len()
}

#[test]
fn figures_are_those_of_summary_and_diagnose() {
    let recorded = Recorded::new(&Job::new(8, 2, 40), 8);
    let page = recorded.page();
    let traces = recorded.traces();
    let traces = traces.to_str().unwrap();
    let summary = json(&["summary", traces, "--format", "json"]);
    let diagnosis = json(&["diagnose", traces, "--json", "-"]);
    let mut words = vec!["--open-tables"];
    let tables = ["operations", "shares", "lateness", "links", "slowest"];
    words.extend(tables.iter().flat_map(|table| ["--values", table]));
    words.extend(["--ask", "document.querySelector('.answer').textContent.replaceAll('\\u00a0', ' ')"]);
    let Some(shown) = looked(&page, &words) else { return };
    let [operations, shares, lateness, links, slowest, answer] = &shown[..] else { panic!("{shown:?}") };

    // The rows of all ranks, cell by cell; a column without content is left out.
    let all: Vec<&Value> = rows(&summary["tables"]["operations"]).filter(|row| row["rank"] == "all").collect();
    assert_eq!(operations.as_array().unwrap().len(), all.len());
    let mut compared = 0;
    for (row, expected) in rows(operations).zip(all) {
        for (column, value) in row.as_object().unwrap() {
            assert_eq!(text(value), text(&expected[column]), "{column} of {row}");
            compared += usize::from(!value.is_null());
        }
    }
    assert!(compared > 20, "{operations}");

    // What each rank's time goes into.
    for (row, expected) in rows(shares).zip(rows(&diagnosis["ranks"])) {
        for column in ["rank", "own_ns", "hidden_ns", "exposed_ns", "waits_ns", "idle_ns", "last"] {
            if !row[column].is_null() {
                assert_eq!(text(&row[column]), text(&expected[column]), "{column} of {row}");
            }
        }
        assert!(row["exposed_ns"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert_eq!(rows(shares).count(), 8);
    let said = diagnosis["text"].as_str().unwrap().replace('`', "");
    assert_eq!(answer.as_str().unwrap().trim_end_matches('.'), said.trim_end_matches('.'));

    // Links: the rows of senders, by rank.
    let sent = rows(&summary["tables"]["proxy"]).filter(|row| row["direction"] == "send" && row["rank"] != "all");
    let sent: BTreeMap<(String, String), (u64, u64, u64)> = sent
        .map(|row| {
            let number = |column: &str| row[column].as_u64().unwrap();
            let ends = (format!("rank {}", row["rank"].as_str().unwrap()), format!("rank {}", number("peer")));
            (ends, (number("bytes"), number("transfers"), number("network_wait_ns")))
        })
        .collect();
    assert_eq!(sent.len(), 8);
    for row in rows(links) {
        let ends = (row["from"].as_str().unwrap().to_owned(), row["to"].as_str().unwrap().to_owned());
        let (bytes, transfers, waited) = sent[&ends];
        assert_eq!(
            (row["bytes"].as_u64(), row["transfers"].as_u64(), row["network_wait_total_ns"].as_u64()),
            (Some(bytes), Some(transfers), Some(waited))
        );
        assert_eq!(row["bytes_per_s"].as_u64(), Some((u128::from(bytes) * 1_000_000_000 / u128::from(waited)) as u64));
    }
    assert_eq!(rows(links).count(), sent.len());

    // The slowest of all is the longest of the summary, and each kernel that was added up counts.
    let longest = rows(&summary["tables"]["operations"]).filter_map(|row| row["kernel_max_ns"].as_u64()).max();
    assert_eq!(rows(slowest).filter_map(|row| row["ns"].as_u64()).max(), longest);
    assert!(rows(slowest).all(|row| row["command"].as_str().unwrap().starts_with("ncclscope cut ")), "{slowest}");
    let data = data(&page);
    for kind in rows(&data["kinds"]) {
        let number: u64 = rows(&kind["lengths"]).map(|it| it[1].as_u64().unwrap()).sum();
        let place = kind["row"].as_u64().unwrap() as usize;
        let timed = columns(&data["operations"]).position(|name| name == "timed").unwrap();
        assert_eq!(data["operations"]["rows"][place][timed], number, "{kind}");
    }

    // Lateness, against the truth.
    let job = Job::new(8, 2, 40);
    for (rank, row) in rows(lateness).enumerate() {
        let late = |step: u64| {
            let members = if step.is_multiple_of(2) { 0..8 } else { rank as u32 / 4 * 4..rank as u32 / 4 * 4 + 4 };
            let first = members.map(|other| job.truth(other, step)[0]).min().unwrap();
            job.truth(rank as u32, step)[0] - first
        };
        let most = (0..40).map(late).max().unwrap();
        let found = row["most_ns"].as_u64().unwrap();
        // Some ranks leave up to 2 us later than others.
        assert!(found.abs_diff(most) <= 2_100, "rank {rank}: {found} instead of {most}");
    }
}

fn rows(table: &Value) -> impl Iterator<Item = &Value> {
    table.as_array().unwrap_or_else(|| panic!("no list: {table}")).iter()
}

fn columns(table: &Value) -> impl Iterator<Item = &str> {
    rows(&table["columns"]).map(|column| column["name"].as_str().unwrap())
}

/// A value, whether it is a number or its digits.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Number(number) => number.as_f64().unwrap().to_string(),
        Value::String(text) => text.parse::<f64>().map_or_else(|_| text.clone(), |number| number.to_string()),
        other => other.to_string(),
    }
}

#[test]
fn the_page_is_drawn_in_light_in_dark_and_on_paper() {
    let recorded = Recorded::new(&Job::new(4, 2, 20), 4);
    let page = recorded.page();
    let picture = |name: &str| recorded.folder.path().join(name);
    // Whether pictures have ink, and the background.
    const INK: &str = "[getComputedStyle(document.body).backgroundColor, [...document.querySelectorAll('canvas')].map((it) => \
        new Set(new Uint32Array(it.getContext('2d').getImageData(0, 0, it.width, it.height).data.buffer)).size)]";
    let mut backgrounds = Vec::new();
    for (name, more) in [("light.png", &[][..]), ("dark.png", &["--dark"]), ("narrow.png", &["--size", "420x800"])] {
        let file = picture(name);
        let words = [more, &["--ask", INK, "--picture", file.to_str().unwrap()]].concat();
        let Some(shown) = looked(&page, &words) else { return };
        backgrounds.push(shown[0][0].clone());
        let colours: Vec<u64> = rows(&shown[0][1]).map(|number| number.as_u64().unwrap()).collect();
        assert!(colours.len() == 5 && colours.iter().all(|number| *number > 20), "{name}: {colours:?}");
        assert!(fs::metadata(&file).unwrap().len() > 20_000);
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
    assert_eq!(backgrounds[0], backgrounds[2]);
    // On paper it is light and no wider than the sheet, and in the dark again afterwards.
    let paper = picture("paper.pdf");
    let on_paper = "addEventListener('beforeprint', () => { window.widths = [...document.querySelectorAll('canvas')].map((it) => it.clientWidth); })";
    let words =
        ["--dark", "--ask", on_paper, "--print", paper.to_str().unwrap(), "--ask", "window.widths", "--ask", INK];
    let Some(shown) = looked(&page, &words) else { return };
    let widths: Vec<u64> = rows(&shown[1]).map(|width| width.as_u64().unwrap()).collect();
    assert!(widths.len() == 5 && widths.iter().all(|width| *width <= 680), "{widths:?}");
    assert_eq!(shown[2][0], backgrounds[1]);
    let paper = fs::read(paper).unwrap();
    assert!(paper.starts_with(b"%PDF") && paper.len() > 20_000);
}

#[test]
fn everything_can_be_reached_by_keyboard() {
    let recorded = Recorded::new(&Job::new(4, 2, 20), 4);
    let page = recorded.page();
    let tables = "document.querySelectorAll('details.alternative[open] tbody tr').length";
    // From the end of the page's list of parts on, the first table is opened with a key.
    let to_first = "document.querySelector('details.alternative > summary').focus()";
    let words = ["--tab", "--ask", to_first, "--type", "Enter", "--ask", tables, "--ask", "document.title"];
    let Some(shown) = looked(&page, &words) else { return };
    let stops: Vec<&str> = rows(&shown[0]).map(|stop| stop.as_str().unwrap()).collect();
    for wanted in [
        "a To the verdict",
        "a Who came late",
        "summary Lateness by rank",
        "summary The same by rank",
        "input bandwidth-of",
        "summary All operations",
        "input links-of",
        "summary All links",
        "select",
        "div The slowest of",
        "div Environment",
        "summary Their licences",
    ] {
        assert!(stops.iter().any(|stop| stop.starts_with(wanted)), "{wanted} is not among {stops:#?}");
    }
    assert_eq!(shown[2], 4, "a table with a row a rank");
    // Each picture is described in words, and has its table.
    let described = "[...document.querySelectorAll('.chart')].map((it) => [it.getAttribute('role'), it.getAttribute('aria-label'), \
        it.closest('section').querySelectorAll('details.alternative, table').length])";
    let Some(shown) = looked(&page, &["--ask", described]) else { return };
    let pictures: Vec<&Value> = rows(&shown[0]).collect();
    assert_eq!(pictures.len(), 5);
    for picture in pictures {
        assert_eq!(picture[0], "img");
        assert!(picture[1].as_str().unwrap().len() > 60 && picture[2].as_u64().unwrap() > 0, "{picture}");
    }
    // Arrow keys switch what a picture shows.
    let choose = "document.querySelector('input[name=links-of]').focus()";
    let which = "document.querySelector('input[name=links-of]:checked').value";
    let Some(shown) = looked(&page, &["--ask", choose, "--type", "ArrowRight", "--ask", which]) else { return };
    assert_eq!(shown[1], "bytes_per_s");
}

/// Names that would be markup, or would end the script, if they were not treated as text.
const HOSTILE: [&str; 4] = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>alert(2)</script>",
    "`\"'><svg onload=alert(3)>&lt;",
    "{a|rich} \u{2028} __proto__",
];

#[test]
fn names_from_traces_are_never_markup() {
    for name in HOSTILE {
        let mut job = Job::new(2, 1, 20);
        job.world = name.to_owned();
        let recorded = Recorded::new(&job, 2);
        let page = recorded.page();
        let html = fs::read_to_string(&page).unwrap();
        let (_, rest) = html.split_once("id=\"data\">").unwrap();
        let (data, _) = rest.split_once("</script>").unwrap();
        assert!(!data.contains(['<', '>', '&', '\u{2028}']), "{name}");
        assert!(data.len() > 1_000);
        assert!(!html.contains("<img src=x") && !html.contains("alert(2)</script>"), "{name}");
        let names = "[...document.querySelectorAll('table[data-table=communicators] td')].map((it) => it.textContent)";
        let markup = "document.querySelectorAll('img, svg, script:not([nonce]):not([type])').length";
        let words = [
            "--open-tables",
            "--ask",
            names,
            "--ask",
            markup,
            "--choose",
            "bandwidth-of=bus",
            "--choose",
            "links-of=bytes",
        ];
        let Some(shown) = looked(&page, &words) else { return };
        assert!(rows(&shown[0]).any(|it| it == name), "{name} is shown as it is: {}", shown[0]);
        assert_eq!(shown[1], 0);
    }
}

#[test]
fn the_page_can_load_and_send_nothing() {
    let recorded = Recorded::new(&Job::new(2, 1, 20), 2);
    let page = recorded.page();
    let html = fs::read_to_string(&page).unwrap();
    let head = html.split_once("</head>").unwrap().0;
    assert!(head.contains("default-src 'none'; script-src 'nonce-"), "{head}");
    assert!(!html.contains("src=\"") && !html.contains("<link"), "it names no other file");
    // What is not its own script cannot run, and cannot ask for anything.
    let inject = "(async () => { let asked = 0; await fetch('http://127.0.0.1:9/').catch(() => { asked += 1; }); \
        const script = document.createElement('script'); script.textContent = 'window.ran = 1'; document.body.append(script); \
        return [asked, window.ran === undefined]; })()";
    let refused = look(&[page.to_str().unwrap(), "--may-be-refused", "--ask", inject]);
    let Some(refused) = refused else { return };
    assert_eq!(refused.lines().next(), Some("[1,true]"));
}

#[test]
fn a_thousand_ranks_are_a_page_of_bounded_size() {
    let recorded = Recorded::new(&Job::new(1_024, 128, 24), 1_024);
    let page = recorded.page();
    assert!(bare(&page) < 2_000_000, "{} bytes before data", bare(&page));
    let size = fs::metadata(&page).unwrap().len();
    assert!(size < 4_000_000, "{size} bytes");
    let data = data(&page);
    let (lateness, links) = (&data["lateness"], &data["links"]);
    assert_eq!((rows(&lateness["labels"]).count(), lateness["each"].as_u64()), (128, Some(8)));
    assert!(rows(&lateness["cells"]).count() <= 128 * 100);
    assert_eq!((rows(&links["labels"]).count(), links["each"].as_u64()), (128, Some(8)));
    assert_eq!(links["number"], 1_024);
    assert_eq!(rows(&data["environment"]["rows"]).filter(|row| row[1] == "process").count(), 17);
    let nodes = "[document.querySelectorAll('*').length, document.querySelectorAll('canvas').length, \
        [...document.querySelectorAll('figcaption')].map((it) => it.textContent).join(' ')]";
    let words = ["--ask", nodes, "--open-tables", "--ask", nodes, "--values", "shares"];
    let Some(shown) = looked(&page, &words) else { return };
    let count = |at: usize| shown[at][0].as_u64().unwrap();
    assert!(count(0) < 2_500 && count(1) < 20_000, "{} and {} elements", count(0), count(1));
    assert_eq!(shown[0][1], 5);
    let said = shown[0][2].as_str().unwrap();
    assert!(
        said.contains("Each row stands for 8 ranks") && said.contains("Each row and column stands for 8 ranks"),
        "{said}"
    );
    assert_eq!(rows(&shown[2]).count(), 1_024, "all of them are there on request");
}

#[test]
fn a_report_that_cannot_be_made_says_why() {
    let job = Job::new(3, 1, 20);
    let recorded = Recorded::new(&job, 3);
    let page = recorded.page();
    let reason = report(&[&recorded.traces()], &page).unwrap_err();
    assert!(reason.contains("report.html exists already"), "{reason}");
    let path = |name: &str| recorded.folder.path().join(name);
    fs::create_dir(path("empty")).unwrap();
    let reason = report(&[&path("empty")], &path("a.html")).unwrap_err();
    assert!(reason.contains("empty: the folder has no"), "{reason}");
    fs::write(path("other"), "step 1: loss 3.14\n").unwrap();
    let reason = report(&[&path("other")], &path("b.html")).unwrap_err();
    assert!(reason.contains("other: "), "{reason}");
    assert!(!path("b.html").exists());
    let reason =
        report(&[Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/data/kineto_1rank_nccl.json.gz"))], &path("c.html"));
    assert!(reason.unwrap_err().contains("ncclscope import"));

    // A file that is cut off is shown as far as it goes, and named; so is one that is damaged.
    let second = recorded.traces().join(job.name(1));
    let mut bytes = Vec::new();
    job.write(1, false, &mut bytes).unwrap();
    fs::write(&second, &bytes[..bytes.len() * 2 / 3]).unwrap();
    let third = recorded.traces().join(job.name(2));
    let mut bytes = fs::read(&third).unwrap();
    Damage::Overwritten.wreak(&mut bytes, Vec::new);
    fs::write(&third, &bytes).unwrap();
    let said = report(&[&recorded.traces()], &path("d.html")).unwrap();
    assert!(said.contains("left out: ") && said.contains(&job.name(2)), "{said}");
    let data = data(&path("d.html"));
    let losses = data["losses"]["rows"].to_string();
    assert!(losses.contains("file") && losses.contains("no last word"), "{losses}");
    assert!(data["unread"].to_string().contains(&job.name(2)), "{}", data["unread"]);
    let Some(shown) = looked(&path("d.html"), &["--ask", "document.querySelector('#losses').textContent"]) else {
        return;
    };
    assert!(shown[0].as_str().unwrap().contains(&job.name(2)));
}

#[test]
fn the_vendored_library_is_the_one_that_is_described() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/cli/report/vendor");
    let output = Command::new("sha256sum").arg("echarts.min.js").current_dir(folder).output().unwrap();
    let sum = String::from_utf8(output.stdout).unwrap();
    let readme = fs::read_to_string(format!("{folder}/README.md")).unwrap();
    assert!(readme.contains(sum.split_whitespace().next().unwrap()), "{sum}");
}

/// The summary of a rank without a trace: its collectives on two communicators, in stretches, with
/// the time of each stretch's kernels.
fn of_rank(rank: u32, begin: u64, stretches: &[(&str, u64, [u64; 4])]) -> String {
    let head = |name: &str| format!("# ncclscope summary, format 1: {name}\n");
    let mut text = head("communicators") + "rank,id,name,comm_rank,ranks\n";
    for (id, ranks) in [("a", 3), ("b", 2)] {
        text += &format!("{rank},{id},dp,{rank},{ranks}\n");
    }
    text += &(head("operations") + "rank,communicator,operation,datatype,count,bytes,number,timed,kernel_max_ns,");
    text += "kernel_total_ns,algbw_bytes_per_s\n";
    text += &format!("{rank},dp,AllReduce,ncclFloat32,256,1024,40,40,{rank}000,40000000,1000000\n");
    text += &(head("stretches") + "rank,id,first,number,begin_ns,kernel_total_ns\n");
    for (id, width, all) in stretches {
        for (at, ns) in all.iter().enumerate() {
            let first = at as u64 * width;
            text += &format!("{rank},{id},{first},{width},{},{ns}\n", begin + 1_000_000 * first);
        }
    }
    text + &head("gpus") + &format!("rank,gpu,own_ns,exposed_ns,idle_ns\n{rank},{rank},7000,{rank}000,500\n")
}

#[test]
fn a_job_without_traces_has_a_page_too() {
    let folder = tempfile::tempdir().unwrap();
    let (traces, page) = (folder.path().join("traces"), folder.path().join("report.html"));
    fs::create_dir(&traces).unwrap();
    const MS: u64 = 1_000_000;
    // Rank 1 comes late to the second half, each time by 2 ms; ranks 0 and 2 are 1 us apart. Rank 2
    // has had more collectives, so that its stretches are twice as wide. Communicator `b` has a
    // rank that left no file.
    let a = [
        ("a", 10, [30 * MS, 30 * MS, 30 * MS, 30 * MS]),
        ("a", 10, [30 * MS, 30 * MS, 10 * MS, 10 * MS]),
        ("a", 20, [60 * MS - 20_000, 60 * MS - 20_000, 0, 0]),
    ];
    for (rank, of_a) in a.iter().enumerate() {
        let b = ("b", 10, [1; 4]);
        let of: &[_] = if rank == 0 { &[*of_a, b] } else { &[*of_a] };
        let mut text = of_rank(rank as u32, 5 * rank as u64, of);
        if rank == 2 {
            // Two stretches only.
            text = text
                .lines()
                .filter(|it| !it.ends_with(",0") || it.contains('#'))
                .map(|it| it.to_owned() + "\n")
                .collect();
        }
        fs::write(traces.join(format!("{rank}.summary.csv")), text).unwrap();
    }
    // Numbers that cannot be are no reason to fail.
    let most = u64::MAX;
    let wild = [format!("0,w,0,{most},0,{most}"), format!("1,w,0,{most},{most},{most}"), format!("0,w,1,{most},1,1")];
    let content = format!(
        "# ncclscope summary, format 1: stretches\nrank,id,first,number,begin_ns,kernel_total_ns\n{}\n",
        wild.join("\n")
    );
    let comm = "# ncclscope summary, format 1: communicators\nrank,id,name,comm_rank,ranks\n0,w,dp,0,2\n";
    let other = folder.path().join("wild.summary.csv");
    fs::write(&other, content + comm).unwrap();
    report(&[&other], &folder.path().join("wild.html")).unwrap();
    let said = report(&[&traces], &page).unwrap();
    assert!(said.contains("from 3 summaries"), "{said}");
    let data = data(&page);
    let lateness = &data["lateness"];
    assert_eq!((&lateness["known"], &lateness["unknown"]), (&40.into(), &40.into()), "{lateness}");
    let cell = |rank: usize, column: u64| {
        let is_it = |cell: &&Value| cell[0].as_u64() == Some(rank as u64) && cell[1].as_u64() == Some(column);
        let cells: Vec<&Value> = lateness["cells"].as_array().unwrap().iter().filter(is_it).collect();
        assert_eq!(cells.len(), 1, "rank {rank}, column {column} of {lateness}");
        // Mean, most, operations, last.
        [3, 4, 5, 6].map(|at| cells[0][at].as_u64().unwrap())
    };
    for rank in [0, 2] {
        let apart = if rank == 0 { 0 } else { 1000 };
        assert_eq!([cell(rank, 0), cell(rank, 1)], [[apart, apart, 20, 0]; 2], "rank {rank}");
    }
    assert_eq!([cell(1, 0), cell(1, 1)], [[0, 0, 20, 0], [2 * MS, 2 * MS, 20, 20]]);
    // All of it is drawn, and nothing is made up.
    let words = ["--open-tables", "--values", "lateness", "--values", "shares", "--ask", "document.body.textContent"];
    let Some(shown) = looked(&page, &words) else { return };
    let [late, shares, whole] = &shown[..] else { panic!("{shown:?}") };
    let mean: Vec<f64> = rows(late).map(|row| text(&row["mean_ns"]).parse().unwrap()).collect();
    assert_eq!(mean, [0.0, MS as f64, 1000.0]);
    let shown: Vec<Vec<String>> = rows(shares)
        .map(|row| ["rank", "own_ns", "exposed_ns", "idle_ns"].iter().map(|name| text(&row[*name])).collect())
        .collect();
    assert_eq!(shown[2], ["rank 2", "7000", "2000", "500"]);
    assert!(rows(shares).all(|row| row["waits_ns"].is_null() && row["hidden_ns"].is_null()), "{shares}");
    let whole = whole.as_str().unwrap();
    assert!(whole.contains("No verdict") && whole.contains("Single operations are in traces only"), "{whole}");
}

#[test]
fn nobody_is_late_by_stretches_that_may_be_shifted() {
    let folder = tempfile::tempdir().unwrap();
    let known = |lost: u64| {
        let traces = folder.path().join(format!("{lost}"));
        fs::create_dir(&traces).unwrap();
        for rank in 0..3 {
            let text = of_rank(rank, 0, &[("a", 1000, [1_000_000 + 500_000 * u64::from(rank); 4])]);
            fs::write(traces.join(format!("{rank}.summary.csv")), text).unwrap();
        }
        let lost =
            format!("# ncclscope summary, format 1: losses\nrank,what,number,note\n1,activities_dropped,{lost},\n");
        fs::write(traces.join("lost.summary.csv"), lost).unwrap();
        let page = traces.join("page.html");
        report(&[&traces], &page).unwrap();
        let lateness = &data(&page)["lateness"];
        [&lateness["known"], &lateness["unknown"]].map(|it| it.as_u64().unwrap())
    };
    assert_eq!([known(0), known(10), known(11)], [[4000, 0], [4000, 0], [0, 4000]]);
}
