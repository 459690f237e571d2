//! `ncclscope merge` of a large job: speed and memory, compared with copying its bytes; and the
//! same with half of the files damaged.
//!
//! ```text
//! cargo bench --bench merge [-- --ranks 1024 --hosts 128 --steps 6000 --folder FOLDER]
//! ```
//!
//! The default is 64 ranks on 8 hosts. `--program` names another `ncclscope` to measure. The ranks
//! are synthetic (`tests/synthetic.rs`). Everything is removed at the end.

mod job;

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use job::synthetic::{Damage, Job, Size};
use job::{Asked, Watched, watched, written};

fn main() -> io::Result<()> {
    let Asked { ranks, hosts, steps, folder: above, program } = Asked::read();
    let folder = tempfile::Builder::new().prefix("ncclscope-merge").tempdir_in(above)?;
    let (traces, joined) = (folder.path().join("traces"), folder.path().join("joined"));
    fs::create_dir(&traces)?;

    let job = Job::new(ranks, hosts, steps.into());
    let path = |rank: u32| traces.join(job.name(rank));
    let begin = Instant::now();
    let size = written(&job, ranks, &path)?;
    println!(
        "{ranks} synthetic ranks on {hosts} hosts, {} events each, {} MB, written in {:.0} s\n",
        size.events / u64::from(ranks),
        size.bytes / 1_000_000,
        begin.elapsed().as_secs_f64()
    );
    println!("| | s | CPU s | MB/s | million events/s | peak memory, MB |\n| --- | --- | --- | --- | --- | --- |");
    let row = |what: &str, size: Size, Watched { seconds, cpu, peak }: Watched| {
        let rate = |number: u64| number as f64 / 1e6 / seconds;
        let (bytes, events, peak) = (rate(size.bytes), rate(size.events), peak / 1_000_000);
        println!("| {what} | {seconds:.1} | {cpu:.1} | {bytes:.0} | {events:.2} | {peak} |");
    };
    let mut copy = Command::new("sh");
    copy.args(["-c", "cat \"$0\"/* > \"$1\""]).args([&traces, &joined]);
    row("`cat` of all files", size, watched(&mut copy)?);
    fs::remove_file(&joined)?;
    let merge = |what: &str, size: Size| -> io::Result<String> {
        let said = folder.path().join("said");
        let mut merge = Command::new(&program);
        merge.arg("merge").args([&*traces, Path::new("-o"), &*joined]).stdout(File::create(&said)?);
        row(what, size, watched(&mut merge)?);
        fs::remove_file(&joined)?;
        fs::read_to_string(said)
    };
    let whole = merge("`ncclscope merge`", size)?;
    for rank in (0..ranks).filter(|rank| rank % 2 == 1) {
        let mut bytes = fs::read(path(rank))?;
        let next = fs::read(path((rank + 1) % ranks))?;
        Damage::ALL[rank as usize / 2 % Damage::ALL.len()].wreak(&mut bytes, || next);
        fs::write(path(rank), bytes)?;
    }
    let half = merge("half of the files damaged", Size { events: size.events / 2, bytes: size.bytes / 2 })?;
    for (what, said) in [("whole", whole), ("half damaged", half)] {
        let count = |words: &str| said.lines().filter(|line| line.contains(words)).count();
        let last = said.lines().last().unwrap_or_default().rsplit("joined: ").next().unwrap_or_default();
        println!("\n{what}: {} left out, {} cut, {last}", count("left out: "), count(": left out an unfinished"));
        said.lines().filter(|line| line.starts_with("node1: ")).for_each(|line| println!("{line}"));
    }
    Ok(())
}
