//! `ncclscope-gpu` on emulated GPUs: a process that runs a workload first creates them and
//! redirects the real libnccl to them. Everything else is the suite's own program, which finds an
//! emulated driver and CUPTI where it would find real ones.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "workload")
        && let Err(reason) = stand_in(&words)
    {
        eprintln!("gpu-emulated: {reason}");
        return ExitCode::FAILURE;
    }
    ncclscope_gpu::main()
}

fn stand_in(words: &[String]) -> Result<(), String> {
    const GPUS: &str = "EMULATED_GPUS";
    let option = |name: &str| words.windows(2).find(|pair| pair[0] == name).map(|pair| PathBuf::from(&pair[1]));
    let nccl = option("--nccl").ok_or("no --nccl")?;
    let truth = option("--result").ok_or("no --result")?.with_extension("truth");
    let gpus = std::env::var(GPUS).ok().and_then(|value| value.parse().ok()).unwrap_or(1_u32);
    let missing = emulator::launch::BASIC.iter().filter(|(name, _)| std::env::var_os(name).is_none());
    for (name, value) in missing.copied().chain([(GPUS, gpus.to_string().as_str())]) {
        // SAFETY: this is the only thread.
        unsafe { std::env::set_var(name, value) };
    }
    emulator::job::stand_in(&nccl, gpus, &truth)
}
