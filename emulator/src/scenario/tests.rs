use super::program::Verb;
use super::random;
use super::*;

const HEAD: &str = "title = \"t\"\n[job]\nhosts = 2\nranks_per_host = 2\n";

/// Reads a job of two hosts with two ranks each, followed by more text.
fn parse(more: &str) -> Result<Scenario, String> {
    Scenario::parse("test", &format!("{HEAD}program = \"\"\"\nsync\n\"\"\"\n{more}"), None)
}

#[test]
fn shipped_scenarios_are_valid() {
    for (name, text) in SHIPPED {
        let scenario = Scenario::parse(name, text, None).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!scenario.title.ends_with('.') && scenario.title.len() > 10, "{name}");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let files = std::fs::read_dir(folder).unwrap().count();
    assert_eq!(files, SHIPPED.len(), "every file of scenarios/ is listed");
}

#[test]
fn the_settings_of_a_file_are_read() {
    let scenario = parse(
        r#"
        [nccl]
        NCCL_ALGO = "Tree"
        [gpu]
        bandwidth = "2 GB/s"
        timer_offset = "10 s"
        timer_drift = "0 ppm to 5 ppm"
        [[slow]]
        rank = 3
        kernels = 1.5
        [[link]]
        from = 0
        to = 1
        latency = "20 us"
        [[stall]]
        rank = 1
        kernel = 5
        for = "200 ms"
        [[timer]]
        rank = 1
        offset = "-1 s"
        granularity = "1 us"
        [[host]]
        index = 1
        wall = { drift = "-5 ppm", steps = [{ after = "1 s", by = "-2 ms" }] }
        [network]
        kind = "plugin"
        latency = "5 us"
        [[route]]
        from = 0
        to = 1
        bandwidth = "1 GB/s"
        stall = { message = 3, for = "1 ms" }
        [[route]]
        from = 1
        to = 0
        stall = { every = "50 ms", for = "2 ms" }
        "#,
    )
    .unwrap();
    assert_eq!((scenario.ranks(), scenario.processes(), scenario.layout), (4, 4, Layout::Processes));
    assert_eq!(scenario.nccl, BTreeMap::from([("NCCL_ALGO".into(), "Tree".into())]));
    assert_eq!(scenario.machine.bandwidth, 2.0);
    assert_eq!((scenario.gpus[0].timer_offset_ns, scenario.gpus[1].timer_offset_ns), (10_000_000_000, -1_000_000_000));
    assert_eq!((scenario.gpus[0].timer_granularity_ns, scenario.gpus[1].timer_granularity_ns), (32, 1000));
    assert!(scenario.gpus.iter().all(|gpu| (0.0..5.0).contains(&gpu.timer_drift_ppm)));
    assert_eq!((scenario.gpus[3].compute, scenario.gpus[3].kernels), (1.0, 1.5));
    assert_eq!(scenario.links, [Link { from: 0, to: 1, bandwidth: f64::INFINITY, latency_ns: 20_000 }]);
    assert_eq!(scenario.stalls, [Stall { rank: 1, kernel: 5, step: None, for_ns: 200_000_000 }]);
    assert_eq!(scenario.clocks[0], Clocks::default());
    assert_eq!(scenario.clocks[1].wall.steps, [(1_000_000_000, -2_000_000)]);
    let route = network::Link { bandwidth: 1.0, latency_ns: 5_000, stall: Some(network::Stall::Before(3, 1_000_000)) };
    let back =
        network::Link { bandwidth: f64::INFINITY, stall: Some(network::Stall::Every(50_000_000, 2_000_000)), ..route };
    assert_eq!(scenario.network.routes, [(0, 1, route), (1, 0, back)]);
}

#[test]
fn in_a_slower_world_everything_takes_longer() {
    let played = |slower: &str| {
        let text = format!(
            "{HEAD}{slower}program = \"\"\"\nrepeat 2 {{\ncompute forward 3 us to 5 us\nsleep 7 us\n}}\n\"\"\"\n\
             [gpu]\nbandwidth = \"2 GB/s\"\nlaunch_latency = \"3 us\"\n[network]\nkind = \"plugin\"\nlatency = \"9 us\"\n\
             [[link]]\nfrom = 0\nto = 1\nbandwidth = \"1 GB/s\"\nlatency = \"20 us\"\n\
             [[stall]]\nrank = 1\nkernel = 5\nfor = \"1 ms\"\n\
             [[route]]\nfrom = 0\nto = 1\nbandwidth = \"4 GB/s\"\nstall = {{ every = \"2 ms\", for = \"1 ms\" }}\n"
        );
        Scenario::parse("test", &text, None).unwrap()
    };
    let (usual, slower) = (played(""), played("slower = 4\n"));
    let times = |it: &Scenario| {
        let Verb::Repeat(2, body) = &it.program.statements[1].verb else { panic!("{:?}", it.program) };
        let (Verb::Compute(_, least, most), Verb::Sleep(sleep)) = (&body[0].verb, &body[1].verb) else {
            panic!("{body:?}")
        };
        let route = it.network.routes[0].2;
        let Some(network::Stall::Every(between, pause)) = route.stall else { panic!("{route:?}") };
        let machine = it.machine.launch_latency_ns;
        let links = [it.links[0].latency_ns, it.network.usual.latency_ns, it.stalls[0].for_ns, between, pause];
        [&[*least, *most, *sleep, machine, it.time_limit_ns][..], &links].concat()
    };
    let bandwidths = |it: &Scenario| [it.machine.bandwidth, it.links[0].bandwidth, it.network.routes[0].2.bandwidth];
    assert!(times(&usual).iter().all(|ns| *ns > 0));
    assert_eq!(times(&slower), times(&usual).iter().map(|ns| 4 * ns).collect::<Vec<_>>());
    assert_eq!(bandwidths(&slower), bandwidths(&usual).map(|it| it / 4.0));
    assert!(Scenario::parse("test", &format!("{HEAD}slower = 0\nprogram = \"sync\""), None).is_err());
}

#[test]
fn a_seed_decides_all_random_choices() {
    let (name, text) = SHIPPED.iter().find(|(name, _)| *name == "mixed").expect("it is shipped");
    let timers = |seed| Scenario::parse(name, text, seed).unwrap().gpus;
    assert_eq!(timers(Some(7)), timers(Some(7)));
    assert_ne!(timers(Some(7)), timers(Some(8)));
    assert_eq!(timers(None), timers(Some(1)));
}

#[test]
fn invalid_settings_name_their_line() {
    for (more, expected) in [
        ("[gpus]", &["line 8", "unknown field `gpus`, expected one of `title`, `about`, `since`, `job`"][..]),
        ("[gpu]\nbandwith = \"1 GB/s\"", &["line 9", "unknown field `bandwith`, expected one of `bandwidth`"]),
        ("[gpu]\nbandwidth = 5", &["line 9", "expected a bandwidth in quotes, such as \"20 GB/s\""]),
        (
            "[gpu]\nbandwidth = \"5\"",
            &["line 9", "expected a bandwidth such as `20 GB/s` (units: KB/s, MB/s, GB/s), not `5`"],
        ),
        ("[gpu]\nbandwidth = \"0 GB/s\"", &["a bandwidth is above 0"]),
        ("[gpu]\ntimer_drift = \"5 ppm to 1 ppm\"", &["line 9", "`5 ppm to 1 ppm` starts above its end"]),
        ("\n[[slow]]\nrank = 4\ncompute = 2.0", &["line 9: there is no rank 4: the job has 4"]),
        ("[[slow]]\nrank = 1\ncompute = 0.0", &["line 8: a factor is from 0.01 to 1000000, not 0"]),
        ("[[stall]]\nrank = 1\nkernel = 2", &["line 8", "missing field `for`"]),
        ("[[host]]\nindex = 2", &["line 8: there is no host 2: the job has 2"]),
        ("[nccl]\nPATH = \"x\"", &["line 9: `PATH` is not a variable of NCCL's"]),
        ("[network]\nkind = \"ib\"", &["line 9", "unknown variant `ib`, expected `socket` or `plugin`"]),
        ("[network]\nlatency = \"1 us\"", &["only kind = \"plugin\" has a bandwidth"]),
        ("[[route]]\nfrom = 0\nto = 1", &["line 8: a route needs the emulator's network"]),
        (
            "[network]\nkind = \"plugin\"\n[[route]]\nfrom = 0\nto = 1\nstall = { for = \"1 ms\" }",
            &["line 10: a stall has either a `message` or `every`"],
        ),
        (
            "[network]\nkind = \"plugin\"\n[[route]]\nfrom = 0\nto = 1\nstall = { every = \"1 ms\", for = \"1 ms\" }",
            &["line 10: `every` is longer than `for`"],
        ),
    ] {
        let message = parse(more).expect_err(more);
        assert!(expected.iter().all(|part| message.contains(part)), "{more}\n  got {message}\n  expected {expected:?}");
    }
    let windows = format!("{HEAD}program = \"all_gather 4 B f32 symmetric\"\n[gpu]\n");
    let message = Scenario::parse("test", &windows, None).unwrap_err();
    assert_eq!(message, "`symmetric` needs peer_access = true and virtual_memory = true in [gpu]");
    let of_job = |text: &str| Scenario::parse("test", text, None).unwrap_err();
    let message = of_job(&format!("{HEAD}program = \"\"\"\nsync\n\nsink\n\"\"\""));
    assert!(message.starts_with("line 8: there is no statement `sink`"), "{message}");
    let message = of_job(&format!("{HEAD}program = \"sink\""));
    assert!(message.starts_with("line 5: there is no statement `sink`"), "{message}");
    let message = of_job("title = \"t\"\n[job]\nhosts = 5\nranks_per_host = 4\nprogram = \"\"");
    assert_eq!(message, "line 2: a job has 1 to 16 ranks, not 5 hosts of 4");
    let message = of_job(&format!("{HEAD}ranks = \"threads\"\nprogram = \"environment NCCL_ALGO=Ring\""));
    assert!(message.starts_with("line 6: `environment` needs ranks = \"processes\""), "{message}");
}

#[test]
fn a_scenario_knows_the_release_it_needs() {
    let since = |text: &str| Scenario::parse("test", text, None).map(|scenario| scenario.since);
    let text = format!("{HEAD}program = \"\"\n");
    assert_eq!(since(&text), Ok(Release(2, 23)));
    assert_eq!(since(&format!("since = \"2.29\"\n{text}")), Ok(Release(2, 29)));
    assert_eq!(since(&format!("{text}[network]\nkind = \"plugin\"")), Ok(Release(2, 26)));
    let message = since(&format!("since = \"new\"\n{text}")).unwrap_err();
    assert_eq!(message, "line 1: expected a release of NCCL such as `2.26`");
    assert_eq!(Release::parse("2.30.7+cuda13.3"), Some(Release(2, 30)));
    assert!(Release(2, 30) > Release(2, 9));
}

#[test]
fn layouts_place_the_ranks() {
    let with = |layout: &str| {
        let text = format!("title = \"t\"\n[job]\nhosts = 3\nranks_per_host = 2\nranks = \"{layout}\"\nprogram = \"\"");
        Scenario::parse("test", &text, None).unwrap()
    };
    let processes = with("processes");
    assert_eq!((processes.processes(), processes.host_of(3), processes.ranks_of(3)), (6, 1, 3..4));
    assert_eq!(processes.device_of(3), 1);
    let threads = with("threads");
    assert_eq!((threads.processes(), threads.host_of(1), threads.ranks_of(1)), (3, 1, 2..4));
}

#[test]
fn a_scenario_is_found_by_name_or_path() {
    assert_eq!(Scenario::load("training", None).unwrap().name, "training");
    let message = Scenario::load("trianing", None).unwrap_err();
    assert!(
        message.starts_with("trianing is neither a file nor a scenario; the scenarios are training, "),
        "{message}"
    );
    let message = Scenario::load("missing.toml", None).unwrap_err();
    assert!(message.starts_with("failed to read missing.toml: "), "{message}");
}

#[test]
fn random_scenarios_can_be_read_and_repeated() {
    for seed in 0..500 {
        let text = random::scenario(seed);
        assert_eq!(text, random::scenario(seed));
        let read = Scenario::parse("random", &text, None).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(read.seed, seed);
        assert!(read.ranks() >= 2);
    }
}

#[test]
fn the_dice_never_change() {
    // Published values of splitmix64 for this seed.
    let mut dice = random::Dice::new(1_234_567);
    assert_eq!([dice.number(), dice.number()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
}
