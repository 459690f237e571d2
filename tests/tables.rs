//! `ncclscope export`: the tables of made-up ranks.

mod command;
#[allow(dead_code)]
mod synthetic;
use command::ncclscope;
use std::fs;
use synthetic::Job;

#[test]
fn try_it() {
    let root = std::path::PathBuf::from("/tmp/tables-try");
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(root.join("traces")).unwrap();
    let job = Job::new(8, 4, 400);
    for rank in 0..8 {
        let mut bytes = Vec::new();
        job.write(rank, true, &mut bytes).unwrap();
        fs::write(root.join("traces").join(job.name(rank)), bytes).unwrap();
    }
    println!("{:?}", ncclscope(&["export".into(), root.join("traces").into_os_string(), "--parquet".into(), root.join("out").into_os_string()]));
    println!("{:?}", ncclscope(&["export".into(), root.join("traces").into_os_string(), "--parquet".into(), root.join("out").into_os_string()]));
}
