use super::launcher::run;
use super::settings::{setting, short, size};
use super::*;

fn read(variables: &[(&str, &str)]) -> Config {
    let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    Config::read(&find, variables.iter().map(|(name, _)| (*name).to_owned()))
}

#[test]
fn without_variables_the_defaults_hold() {
    let config = read(&[]);
    assert_eq!(config.preset, Preset::Standard);
    assert_eq!(config.kernel_ch, KernelCh::Off);
    assert_eq!(config.max_size, 2 << 30);
    assert!(config.compress && config.tsc && config.rank.is_none() && config.complaints.is_empty());
}

/// What a value is read as.
#[track_caller]
fn refused(name: &str, value: &str) -> bool {
    let config = read(&[(name, value)]);
    assert!(config.complaints.len() <= 1, "{:?}", config.complaints);
    let refused = !config.complaints.is_empty();
    if refused {
        let Setting { values, default, .. } = setting(name);
        assert_eq!(config.complaints[0], format!("{name}={value}: expected {values}; using the default, {default}"));
        assert_eq!(Config { complaints: Vec::new(), ..config }, read(&[]), "the default holds");
    }
    refused
}

#[test]
fn bad_values_give_the_default_and_a_complaint_with_range_and_unit() {
    for Setting { name, values, .. } in SETTINGS {
        let said = values.to_string();
        match *values {
            Values::Words(words) => {
                assert!(refused(name, "sun") && refused(name, "2"), "{name}");
                for word in words {
                    assert!(said.contains(word) && !refused(name, word), "{name}={word}");
                    assert!(!refused(name, &word.to_uppercase()), "{name}={word} in capitals");
                }
            }
            Values::Bytes(from, to) => {
                assert!(said.starts_with(&short(from)) && said.contains(&format!(" to {} bytes", short(to))), "{said}");
                for good in [short(from), short(to), from.to_string(), to.to_string()] {
                    assert!(!refused(name, &good), "{name}={good}");
                }
                let below = from.checked_sub(1).map_or("-1".into(), |less| less.to_string());
                for bad in [&below, &(to + 1).to_string(), "many", "1X", "99999999999999999999", "1.5G"] {
                    assert!(refused(name, bad), "{name}={bad}");
                }
            }
            Values::Number(from, to, unit) => {
                assert!(said == format!("{from} to {to} {unit}") && !unit.is_empty(), "{said}");
                for good in [from, to] {
                    assert!(!refused(name, &good.to_string()), "{name}={good}");
                }
                let below = from.checked_sub(1).map_or("-1".into(), |less| less.to_string());
                for bad in [&below, &(to + 1).to_string(), "three", "1s"] {
                    assert!(refused(name, bad), "{name}={bad}");
                }
            }
            Values::Text(_) => {
                let bad: &[&str] = match *name {
                    "NCCLSCOPE_EVENTS" => &["everything", "+Coll,-Colls", "+", "+KernelCh;-Coll"],
                    "NCCLSCOPE_CUPTI" => &["libcupti.so.13", "2"],
                    "NCCLSCOPE_FILE_MODE" => &["400", "755", "1644", "6440", "64", "u+r", "677", "648", "0"],
                    // Any text is a valid name of a folder or a run.
                    "NCCLSCOPE_OUTPUT" | "NCCLSCOPE_METRICS_FILE" | "NCCLSCOPE_RUN_ID" | "NCCLSCOPE_COMMS" => &[],
                    // What is wrong with it shows when it is loaded.
                    "NCCLSCOPE_CHAIN" => &[],
                    "NCCLSCOPE_RANKS" => &["-2", "a", "3-1", "1,,2"],
                    "NCCLSCOPE_TIME" => &["10s", "10..20", "2s..1s"],
                    "NCCLSCOPE_OPERATIONS" | "NCCLSCOPE_STEPS" => &["5", "9..5", "-1..5", "a..b"],
                    // It has complaints of its own.
                    "NCCLSCOPE_CONFIG" => &[],
                    other => panic!("no bad value of {other} is tried"),
                };
                bad.iter().for_each(|bad| assert!(refused(name, bad), "{name}={bad}"));
            }
        }
    }
}

#[test]
fn unknown_variables_are_reported() {
    for (name, complaint) in
        [("NCCLSCOPE_PRESTE", "did you mean NCCLSCOPE_PRESET?"), ("NCCLSCOPE_SOMETHING_ELSE", "ignored")]
    {
        let config = read(&[(name, "light")]);
        assert_eq!(config.complaints.len(), 1, "{name}");
        assert!(config.complaints[0].contains(complaint), "{}", config.complaints[0]);
        assert_eq!(Config { complaints: Vec::new(), ..config }, read(&[]));
    }
}

#[test]
fn kinds_of_events_are_added_and_left_out() {
    let bits = |names: &str| Events::read(names).unwrap().more;
    for (settings, kinds, complaint) in [
        (&[][..], Kinds::STANDARD, ""),
        (
            &[("NCCLSCOPE_EVENTS", " +ProxyCtrl, -proxystep ")],
            (Kinds::STANDARD | bits("ProxyCtrl")) - bits("ProxyStep"),
            "",
        ),
        (&[("NCCLSCOPE_EVENTS", "ncclProfileNetPlugin")], Kinds::STANDARD | bits("NetPlugin"), ""),
        (&[("NCCLSCOPE_EVENTS", "+Group,-Group")], Kinds::STANDARD - bits("Group"), ""),
        (&[("NCCLSCOPE_EVENTS", "+kernelch"), ("NCCLSCOPE_PRESET", "light")], Kinds::LIGHT | bits("KernelCh"), ""),
        (&[("NCCLSCOPE_EVENTS", "+KernelPhase")], Kinds::STANDARD | Kinds::CHANNELS, ""),
        (&[("NCCLSCOPE_EVENTS", "-KernelPhase"), ("NCCLSCOPE_PRESET", "full")], Kinds::FULL - bits("KernelPhase"), ""),
        (&[("NCCLSCOPE_EVENTS", "-KernelCh"), ("NCCLSCOPE_PRESET", "full")], Kinds::FULL - Kinds::CHANNELS, ""),
        (&[("NCCLSCOPE_EVENTS", "+KernelPhase,-KernelCh")], Kinds::STANDARD, "no KernelPhase without KernelCh"),
        (&[("NCCLSCOPE_EVENTS", "+KernelCh"), ("NCCLSCOPE_KERNEL_CH", "0")], Kinds::STANDARD, "takes precedence"),
        (
            &[("NCCLSCOPE_EVENTS", "-KernelCh,-Coll"), ("NCCLSCOPE_KERNEL_CH", "force")],
            (Kinds::STANDARD | bits("KernelCh")) - bits("Coll"),
            "takes precedence",
        ),
    ] {
        let config = read(settings);
        assert_eq!(config.kinds(), kinds, "{settings:?}: {}", config.kinds());
        assert_eq!(config.complaints.len(), usize::from(!complaint.is_empty()), "{:?}", config.complaints);
        assert!(config.complaints.iter().all(|said| said.contains(complaint)), "{:?}", config.complaints);
    }
    // The names listed in the table are NCCL's.
    let known = setting("NCCLSCOPE_EVENTS").values.to_string();
    let (_, known) = known.split_once("kinds: ").unwrap();
    assert_eq!(known, Kinds(u64::MAX).to_string());
    assert_eq!(read(&[("NCCLSCOPE_EVENTS", "-coll proxyctrl")]).wish(), "standard,+ProxyCtrl,-Coll");
}

#[test]
fn permissions_are_octal() {
    for (text, mode) in [("640", 0o640), ("0644", 0o644), ("0o660", 0o660), ("600", 0o600), ("604", 0o604)] {
        assert_eq!(read(&[("NCCLSCOPE_FILE_MODE", text)]).file_mode, Some(mode), "{text}");
    }
    assert_eq!(read(&[]).file_mode, None);
}

#[test]
fn cupti_can_be_switched_off_or_given_a_path() {
    for (value, expected) in [
        ("auto", Cupti::Auto),
        ("0", Cupti::Off),
        ("share", Cupti::Share),
        ("/opt/libcupti.so.13", Cupti::Path("/opt/libcupti.so.13".into())),
    ] {
        let config = read(&[("NCCLSCOPE_CUPTI", value)]);
        assert!(config.complaints.is_empty());
        assert_eq!(config.cupti, expected);
    }
    assert_eq!(read(&[]).cupti, Cupti::Auto);
}

#[test]
fn settings_that_need_cupti_are_off_without_it() {
    assert!(!read(&[]).cuda_api);
    assert!(read(&[("NCCLSCOPE_CUDA_API", "1")]).cuda_api);
    let config = read(&[("NCCLSCOPE_CUDA_API", "1"), ("NCCLSCOPE_CUPTI", "0")]);
    assert!(!config.cuda_api);
    assert!(config.complaints[0].contains("NCCLSCOPE_CUPTI=0"), "{:?}", config.complaints);
    assert!(read(&[("NCCLSCOPE_CUDA_API", "0"), ("NCCLSCOPE_CUPTI", "0")]).complaints.is_empty());
}

#[test]
fn a_run_has_its_launchers_name_unless_it_is_set() {
    let named = |variables: &[(&str, &str)]| {
        run(&|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    };
    let slurm = ("SLURM_JOB_ID", "4711");
    assert_eq!(named(&[slurm]).as_deref(), Some("SLURM_JOB_ID=4711"));
    assert_eq!(named(&[slurm, (RUN_ID, " tuesday ")]).as_deref(), Some("NCCLSCOPE_RUN_ID=tuesday"));
    assert_eq!(named(&[slurm, (RUN_ID, " ")]).as_deref(), Some("SLURM_JOB_ID=4711"));
    assert_eq!(named(&[("TORCHELASTIC_RUN_ID", "none")]), None);
}

#[test]
fn ranks_come_from_the_best_source() {
    assert_eq!(read(&[("SLURM_PROCID", "1"), ("RANK", "9")]).rank, Some((9, "RANK")));
    assert_eq!(read(&[("SLURM_PROCID", "1")]).rank, Some((1, "SLURM_PROCID")));
    assert_eq!(read(&[("NCCLSCOPE_RANK", "4"), ("RANK", "9")]).rank, Some((4, "NCCLSCOPE_RANK")));
}

#[test]
fn the_size_of_the_job_comes_from_the_launcher_that_gave_the_rank() {
    assert_eq!(read(&[("RANK", "9"), ("WORLD_SIZE", "16"), ("SLURM_NTASKS", "2")]).world_size, Some(16));
    // Under torchrun, Slurm counts nodes.
    assert_eq!(read(&[("RANK", "9"), ("SLURM_NTASKS", "2")]).world_size, None);
    assert_eq!(read(&[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")]).world_size, Some(2));
    assert_eq!(read(&[("RANK", "9"), ("WORLD_SIZE", "9")]).world_size, None, "no job has a rank 9 of 9");
    assert_eq!(read(&[("WORLD_SIZE", "9")]).world_size, None);
}

#[test]
fn placeholders_of_the_folder_are_filled_in() {
    let process = Process { host: "node17".into(), pid: 42, job: "4711".into() };
    let folder =
        |template: &str| read(&[("NCCLSCOPE_OUTPUT", template), ("RANK", "3")]).folder(&process).display().to_string();
    assert_eq!(folder("/data/%j/%h.%p.%r"), "/data/4711/node17.42.3");
    assert_eq!(folder("100%%x%q%"), "100%x%q%");
    assert_eq!(folder("%l"), "unknown");
    let local = read(&[("NCCLSCOPE_METRICS_FILE", "/metrics/%l.prom"), ("RANK", "9"), ("LOCAL_RANK", "1")]);
    assert_eq!(local.metrics_path(&process), Some("/metrics/1.prom".into()));
    assert_eq!(read(&[]).folder(&process).display().to_string(), "ncclscope-4711");
}

#[test]
fn sizes_have_units() {
    for (text, bytes) in [("512", 512), ("4k", 4096), ("3MiB", 3 << 20), ("2G", 2 << 30), ("1 T", 1 << 40)] {
        assert_eq!(size(text), Some(bytes), "{text}");
    }
    assert_eq!(size("1X"), None);
    assert_eq!(size("99999999T"), None);
}
