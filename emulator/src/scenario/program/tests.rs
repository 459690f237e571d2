use super::*;

/// Reads a program for four ranks.
fn parse(text: &str) -> Program {
    Program::parse(text, 4).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The error in a program for four ranks, with its line.
fn wrong(text: &str) -> String {
    let error = Program::parse(text, 4).expect_err(text);
    format!("{}: {}", error.line, error.message)
}

fn groups(program: &Program, name: &str) -> Vec<Vec<u32>> {
    program.communicators.iter().find(|known| known.name == name).expect(name).groups.clone()
}

#[test]
fn operations_are_parsed() {
    let program = parse(
        "all_reduce 16 MiB f32 sum\n\
         reduce 12 B i32 avg root 3 in place on world  # a comment\n\
         \n\
         send 8 B u64 from 0 to 3\n\
         scatter 8 B u64 root 1 native",
    );
    let operations = program.statements.iter().filter_map(|it| match &it.verb {
        Verb::Operation(operation) => Some((it.line, operation.site, operation.what, operation.count)),
        _ => None,
    });
    assert_eq!(
        operations.collect::<Vec<_>>(),
        [
            (1, 0, What::AllReduce(Reduction::Sum), 4 << 20),
            (2, 1, What::Reduce { reduction: Reduction::Avg, root: 3 }, 3),
            (4, 2, What::Send { from: 0, to: 3 }, 1),
            (5, 3, What::Scatter { root: 1 }, 1),
        ]
    );
    assert_eq!(program.sites, 4);
}

#[test]
fn the_world_is_created_unless_the_program_does_it() {
    let first = |text: &str| parse(text).statements.first().map(|it| (it.line, it.verb.clone()));
    assert_eq!(first("sync"), Some((0, Verb::Create(0))));
    assert_eq!(first("communicator dp = stride 2\nall_reduce 4 B f32 sum"), Some((0, Verb::Create(0))));
    assert_eq!(first("communicator dp = stride 2\nall_reduce 4 B f32 sum on dp"), Some((1, Verb::Create(1))));
    assert_eq!(first("sync\ncommunicator world = all"), Some((1, Verb::Sync)));
}

#[test]
fn communicators_divide_the_ranks() {
    let program = Program::parse(
        "communicator world = all\n\
         communicator few = ranks 4, 1\n\
         communicator dp = stride 2\n\
         communicator tp = blocks 4\n\
         communicator even = split world by rank % 2 reversed\n\
         communicator pairs = split even by rank / 2\n\
         communicator low = split world by rank < 2",
        6,
    );
    let program = program.unwrap();
    assert_eq!(groups(&program, "few"), [vec![4, 1]]);
    assert_eq!(groups(&program, "dp"), [vec![0, 2, 4], vec![1, 3, 5]]);
    assert_eq!(groups(&program, "tp"), [vec![0, 1, 2, 3], vec![4, 5]]);
    assert_eq!(groups(&program, "even"), [vec![4, 2, 0], vec![5, 3, 1]]);
    assert_eq!(groups(&program, "pairs"), [vec![4, 2], vec![0], vec![5, 3], vec![1]]);
    assert_eq!(groups(&program, "low"), [vec![0, 1]]);

    let pairs = program.communicators.iter().find(|known| known.name == "pairs").unwrap();
    assert_eq!(pairs.place(3), Some(Membership { group: 2, rank: 1, ranks: &[5, 3] }));
    assert_eq!(program.communicators[1].place(0), None);
}

#[test]
fn blocks_hold_statements() {
    let program = parse(
        "repeat 2 {\n  group {\n    send_recv ring 4 B f32\n  }\n}\n\
         except rank 1, 3 {\n  compute kernel 1.5 ms\n}\nexit at once",
    );
    let [_, repeat, only, exit] = program.statements.as_slice() else { panic!("{program:?}") };
    let Verb::Repeat(2, body) = &repeat.verb else { panic!("{repeat:?}") };
    assert!(matches!(&body[..], [Statement { line: 2, verb: Verb::Group(body) }] if body.len() == 1));
    assert_eq!(
        only.verb,
        Verb::Only(vec![0, 2], vec![Statement { line: 7, verb: Verb::Compute("kernel".into(), 1_500_000, 1_500_000) }])
    );
    assert_eq!(exit.verb, Verb::Exit);
}

#[test]
fn variables_may_contain_punctuation() {
    let program = parse("environment NCCL_PROTO=^LL,LL128   # not these\nenvironment NCCL_ALGO=allreduce:tree");
    assert_eq!(program.statements[1].verb, Verb::Environment("NCCL_PROTO".into(), "^LL,LL128".into()));
    assert_eq!(program.variables(), HashSet::from(["NCCL_PROTO", "NCCL_ALGO"]));
}

#[test]
fn syntax_errors_name_their_line() {
    for (text, expected) in [
        ("\nall_redcue 4 B f32", "2: there is no statement `all_redcue`; there are communicator, create, "),
        (
            "all_reduce f32 sum",
            "1: expected a size such as `16 MiB` (units: B, KiB, MiB, GiB), not `f32 sum`; it is written `all_reduce SIZE TYPE OP [in place] [symmetric] [on COMMUNICATOR]`",
        ),
        ("all_reduce 16 MB f32 sum", "1: expected a size such as `16 MiB`"),
        ("all_reduce 16MiB f32 sum", "1: expected a size such as `16 MiB`"),
        ("all_reduce 3 B f32 sum", "1: 3 B is not a whole number of f32 elements"),
        (
            "all_reduce 4 B float sum",
            "1: there is no type `float`; there are i8, u8, i32, u32, i64, u64, f16, f32, f64, bf16",
        ),
        ("all_reduce 4 B f32", "1: expected a reduction"),
        ("all_reduce 4 B f32 mean", "1: there is no reduction `mean`; there are sum, prod, max, min, avg"),
        ("all_reduce 4 B f32 sum on dp", "1: there is no communicator `dp` so far; there are world"),
        ("all_reduce 4 B f32 sum root 1", "1: `root` is not expected here; it is written `all_reduce SIZE"),
        ("all_reduce 4 B f32 sum in plac", "1: expected `place`, not `plac`"),
        ("all_gather 4 B f32 native", "1: `native` is not expected here"),
        ("broadcast 4 B f32", "1: expected `root`; it is written `broadcast"),
        ("broadcast 4 B f32 root 4", "1: there is no rank 4 in `world`, which has 4"),
        ("communicator a = blocks 3\nbroadcast 4 B f32 root 1 on a", "2: there is no rank 1 in `a`, which has 1"),
        ("send 4 B f32 from 1 to 1", "1: a rank sends to itself only"),
        ("send_recv 4 B f32", "1: expected `ring`, not `4`"),
        ("compute 3 ms", "1: `3` is not a name: a name begins with a letter"),
        ("compute forward 3", "1: expected a time such as `20 us`"),
        ("compute forward 3 ms to 2 ms", "1: the first time is not above the second"),
        ("ahead", "1: expected how many"),
        ("sleep -1 ms", "1: a time is not negative"),
        ("repeat 2 { sync }", "1: what is in a block begins on the next line"),
        ("repeat many {\n}", "1: expected how many times as a number up to 1000000, not `many`"),
        ("repeat 2 {\nsync", "1: this block is never closed"),
        ("sync\n}", "2: a `}` that closes nothing"),
        ("repeat 2 {\n} sync", "2: nothing follows a `}`"),
        ("only ranks 0 4 {\n}", "1: expected `{`, not `4`"),
        ("only ranks 0,4 {\n}", "1: there is no rank 4: the job has 4"),
        ("only ranks 1,1 {\n}", "1: rank 1 is named twice"),
        ("communicator a = stride 0", "1: expected a stride from 1 to 4, not 0"),
        ("communicator a = odd", "1: expected all, ranks, stride, blocks or split, not `odd`"),
        ("communicator a = split b by rank % 2", "1: there is no communicator `b` so far; there are world"),
        ("communicator a = split world by rank + 2", "1: expected `%`, `/` or `<`, not `+`"),
        (
            "communicator a = all\ncommunicator a = all",
            "2: `a` is already declared in line 1; `create a` makes it once more",
        ),
        ("group {\nsync\n}", "2: `sync` cannot be within a group"),
        ("group {\ncompute a 1 ms\n}", "2: `compute` cannot be within a group"),
        ("capture a {\nrepeat 2 {\nsync\n}\n}", "3: `sync` cannot be captured"),
        ("capture a {\ncapture b {\n}\n}", "2: `capture` cannot be captured"),
        ("environment PATH=x", "1: `PATH` cannot be set here, only NCCL_ALGO, NCCL_PROTO"),
        ("environment NCCL_ALGO", "1: expected NAME=VALUE"),
        ("send_recv ring 4 B f32 symmetric", "1: only collectives and `native` calls can be `symmetric`"),
        ("all_to_all 4 B f32 symmetric", "1: only collectives and `native` calls can be `symmetric`"),
        ("group {\nall_gather 4 B f32 symmetric\n}", "2: a `symmetric` operation cannot be within a group"),
        ("exit later", "1: expected `at`, not `later`"),
        ("exit at last", "1: expected `once`, not `last`"),
    ] {
        let message = wrong(text);
        assert!(message.starts_with(expected), "{text}\n  got      {message}\n  expected {expected}");
    }
}

#[test]
fn programs_that_must_fail_are_found_before_they_run() {
    for (text, expected) in [
        ("destroy world\nall_reduce 4 B f32 sum", "2: rank 0 has no `world` here: it has ended it"),
        ("repeat 2 {\n  all_reduce 4 B f32 sum\n  abort world\n}", "2: rank 0 has no `world` here: it has ended it"),
        ("finalize world\nall_reduce 4 B f32 sum", "2: rank 0 has no `world` here: it has finalized it"),
        ("create world\n", "1: `world` is there already: destroy it first"),
        (
            "only ranks 0,1 {\ncommunicator dp = ranks 1,2\n}",
            "2: rank 1 would make `dp` once and rank 2 never, so neither could go on",
        ),
        (
            "communicator low = split world by rank < 2\nexcept rank 3 {\ndestroy low\ncreate low\n}",
            "1: rank 2 would make `low` 2 times and rank 3 once, so neither could go on",
        ),
        ("replay step", "1: rank 0 has no graph `step` here"),
        (
            "capture step {\nall_reduce 4 B f32 sum\n}\nreplay step\ndestroy world\nreplay step 2 times",
            "6: rank 0 has no graph `step` here: it was not captured, or a communicator that it uses is gone",
        ),
        ("only rank 2 {\nreplay step\n}", "2: rank 2 has no graph `step` here"),
    ] {
        let message = wrong(text);
        assert!(message.starts_with(expected), "{text}\n  got      {message}\n  expected {expected}");
    }
    parse("communicator dp = ranks 1,2\nonly ranks 1,2 {\ndestroy dp\ncreate dp\n}\nfinalize dp\ndestroy dp");
    parse("only rank 1 {\nhang\n}\nall_reduce 4 B f32 sum");
}
