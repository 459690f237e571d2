//! What is said about jobs that ran on real GPUs; see `data/README.md`.

use crate::foreign::{data, ncclscope};

#[test]
fn of_a_pipeline_whose_stages_differ_the_large_one_is_named() {
    let text = ncclscope(&["diagnose"], &[&data("h100-pipeline")]).unwrap();
    let cause = text.lines().find(|line| line.starts_with("Rank ")).unwrap();
    assert!(cause.starts_with("Rank 2 on host-1 has most of the work: 109 ms a step"), "{cause}");
    // Rank 2 updates its weights in four kernels, the others in one: that is no step.
    assert!(text.contains("A STEP TAKES 144 ms"), "{text}");
    let row = |rank: &str| text.lines().find(|line| line.starts_with(&format!(" {rank} "))).unwrap().to_owned();
    assert!(row("rank 2").contains(" 109 ms "), "{}", row("rank 2"));
    for other in ["rank 0", "rank 1", "rank 3"] {
        let own = row(other).split_whitespace().nth(3).unwrap().parse::<f64>().unwrap();
        assert!((4.0..6.0).contains(&own), "{}", row(other));
    }
}

#[test]
fn steps_of_experts_are_found_though_sizes_and_kernels_change_in_each() {
    let text = ncclscope(&["diagnose"], &[&data("h100-experts")]).unwrap();
    assert!(text.contains("inferred, from one `AllReduce 4 MiB f32 on 4 ranks` to the next."), "{text}");
    // Each step has four of them, made of sends and receives whose sizes differ from rank to rank.
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with(" AlltoAllv bf16 on 4 ranks")).collect();
    assert!(rows.len() == 2 && rows[1].contains(" 4.0 "), "{text}");
    assert!(!text.contains("Send") && !text.contains("Recv"), "{text}");
    let own = |rank: &str| text.lines().find(|line| line.starts_with(&format!(" {rank} "))).unwrap().to_owned();
    let own = |rank: &str| own(rank).split_whitespace().nth(3).unwrap().parse::<f64>().unwrap();
    assert!(own("rank 2") > 2.5 * own("rank 0"), "its expert is popular: {text}");
}

#[test]
fn without_kernels_nothing_is_said_of_gpus() {
    let text = ncclscope(&["diagnose"], &[&data("h100-under-nsight-systems.perfetto-trace")]).unwrap();
    let first = "Cannot tell: there are no kernels in these files: CUPTI can have only one owner, and another profiler \
                 (torch.profiler, Nsight Systems, a debugger) has it. Run without that tool to record kernels.\n";
    assert!(text.starts_with(first), "{text}");
    assert!(text.contains("A STEP TAKES 477 µs"), "{text}");
    for word in ["GPU that has nothing to do", "own kernels", "open part", "network transfers"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
}
