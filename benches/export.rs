//! `ncclscope export --parquet` for a large job: speed, memory, and the size of the tables; and the
//! size of the same rows written by pyarrow with the same settings.
//!
//! ```text
//! cargo bench --bench export [-- --ranks 1024 --hosts 128 --steps 6500 --folder FOLDER]
//! ```
//!
//! The default is 64 ranks on 8 hosts. `--program` names another `ncclscope` to measure, and
//! `--keep` leaves the folder with the traces and tables, for questions. The ranks are synthetic
//! (`tests/synthetic.rs`).

mod job;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use job::synthetic::{Job, Size};
use job::{Asked, Watched, watched, written};
use ncclscope_tests::pypi;
use serde_json::Value;

/// Writes the rows again with pyarrow.
const REWRITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rewrite_tables.py");

fn main() -> io::Result<()> {
    let Asked { ranks, hosts, steps, folder: above, program } = Asked::read();
    let keeps = std::env::args().any(|word| word == "--keep");
    let folder = tempfile::Builder::new().prefix("ncclscope-export").disable_cleanup(keeps).tempdir_in(above)?;
    let (traces, tables) = (folder.path().join("traces"), folder.path().join("tables"));
    fs::create_dir(&traces)?;

    let job = Job::new(ranks, hosts, steps.into());
    let begin = Instant::now();
    let size = written(&job, ranks, &|rank| traces.join(job.name(rank)))?;
    println!(
        "{ranks} synthetic ranks on {hosts} hosts, {} events each, {} MB, written in {:.0} s to {}\n",
        size.events / u64::from(ranks),
        size.bytes / 1_000_000,
        begin.elapsed().as_secs_f64(),
        folder.path().display()
    );
    println!(
        "| | s | CPU s | million events/s | million rows/s | peak memory, MB |\n| --- | --- | --- | --- | --- | --- |"
    );
    let first = traces.join(job.name(0));
    let one = exported(&program, &first, &folder.path().join("one"))?;
    print("one rank", one, Size { events: size.events / u64::from(ranks), ..size }, &folder.path().join("one"))?;
    let all = exported(&program, &traces, &tables)?;
    print("all ranks", all, size, &tables)?;

    let of_all = by_table(&tables)?;
    let operations = of_all["operations"].rows as f64;
    let bytes: u64 = of_all.values().map(|it| it.bytes).sum();
    println!(
        "\n{bytes} bytes of tables, {:.2} times the traces; {:.1} bytes for each operation, traces {:.1}\n",
        bytes as f64 / size.bytes as f64,
        bytes as f64 / operations,
        size.bytes as f64 / operations
    );
    let Some(again) = pypi::tables(&[REWRITE, &tables.to_string_lossy(), "64"]) else { return Ok(()) };
    let again: Value = serde_json::from_str(&again)?;
    println!(
        "| table | rows | bytes | bytes each | of 64 ranks: bytes, by pyarrow, times |\n| --- | --- | --- | --- | --- |"
    );
    for (name, Table { rows, bytes }) in of_all {
        let [ours, theirs] = ["ours", "theirs"].map(|which| again[&name][which].as_u64().unwrap_or(0));
        let (each, times) = (bytes as f64 / rows as f64, ours as f64 / theirs as f64);
        println!("| {name} | {rows} | {bytes} | {each:.1} | {ours}, {theirs}, {times:.2} |");
    }
    Ok(())
}

fn exported(program: &Path, traces: &Path, tables: &Path) -> io::Result<Watched> {
    let mut export = Command::new(program);
    watched(export.arg("export").arg(traces).arg("--parquet").arg(tables).stdout(File::create("/dev/null")?))
}

fn print(what: &str, watched: Watched, size: Size, tables: &Path) -> io::Result<()> {
    let Watched { seconds, cpu, peak } = watched;
    let rows: u64 = by_table(tables)?.values().map(|it| it.rows).sum();
    let rate = |number: u64| number as f64 / 1e6 / seconds;
    let (events, rows, peak) = (rate(size.events), rate(rows), peak / 1_000_000);
    println!("| {what} | {seconds:.1} | {cpu:.1} | {events:.2} | {rows:.2} | {peak} |");
    Ok(())
}

#[derive(Default)]
struct Table {
    rows: u64,
    bytes: u64,
}

/// What the notes of an export say.
fn by_table(tables: &Path) -> io::Result<BTreeMap<String, Table>> {
    let mut all: BTreeMap<String, Table> = BTreeMap::new();
    for note in fs::read_dir(tables.join("_exported"))? {
        let note: Value = serde_json::from_slice(&fs::read(note?.path())?)?;
        for file in note["files"].as_array().into_iter().flatten() {
            let name = file["path"].as_str().and_then(|path| path.split('/').next()).unwrap_or_default();
            let table = all.entry(name.to_owned()).or_default();
            table.rows += file["rows"].as_u64().unwrap_or(0);
            table.bytes += file["bytes"].as_u64().unwrap_or(0);
        }
    }
    Ok(all)
}
