//! What a program asks of the library: names for its communicators, and Python's context managers.

use super::record;
use ncclscope_tests::play;
use std::process::Command;

#[test]
fn a_program_may_name_its_communicators() {
    let script = "user load\n\
                  user name-comm tp\n\
                  user init first comm=0x1 rank=0 nranks=2 name=undefined:3\n\
                  user name-comm\n\
                  user init second comm=0x2 rank=1 nranks=2 name=DATA_PARALLEL:7\n\
                  user init third comm=0x33 rank=0 nranks=4\n\
                  user init fourth comm=0x44 rank=0 nranks=4 nodes=2\n\
                  user init fifth comm=0x55 rank=3 nranks=8 nodes=2\n";
    let recording = record(script, &[("RANK", "3"), ("WORLD_SIZE", "8")]);
    let timeline = recording.timeline();
    let mut tracks: Vec<String> =
        timeline.named("communicator init").into_iter().map(|it| timeline.place(it)).collect();
    tracks.iter_mut().for_each(|place| *place = place.rsplit('/').next().unwrap().to_owned());
    let expected = [
        "tp · rank 0 of 2",
        "DATA_PARALLEL · rank 1 of 2",
        "this host 00000033 · rank 0 of 4",
        "00000044 · rank 0 of 4",
        "all · rank 3 of 8",
    ];
    assert_eq!(tracks, expected);
}

#[test]
fn python_programs_have_a_context_manager_for_lending() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../python");
    let run = |text: &str| {
        let mut command = Command::new("python3");
        play::clean_environment(&mut command);
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONPATH", folder).args(["-c", text]);
        let result = command.output().unwrap_or_else(|error| panic!("failed to run python3: {error}"));
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        String::from_utf8(result.stdout).unwrap()
    };
    let used = "import ncclscope\nwith ncclscope.cupti_released(): print('in it')\nprint('after it')";
    assert_eq!(run(used), "in it\nafter it\n", "without the library");
    let library = play::plugin_path().unwrap();
    let counted = format!(
        "import ctypes, os\n\
         library = ctypes.CDLL({library:?})\n\
         found = ctypes.CDLL('libncclscope.so', mode=os.RTLD_NOLOAD | os.RTLD_LAZY)\n\
         assert found._handle == library._handle\n\
         {used}"
    );
    assert_eq!(run(&counted), "in it\nafter it\n", "with it");
    let named = counted.replace("cupti_released()", "comm_named('tp')");
    assert_eq!(run(&named), "in it\nafter it\n", "with it");
}

#[test]
fn python_programs_are_warned_if_cupti_is_not_given_up_or_does_not_come_back() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../python");
    // What the library returns when it gives CUPTI up and when it takes it, one value after the
    // other and the last one for ever; how often it was asked; and the warning.
    for (given, answers, set, asked, warned) in [
        ("[0]", "[0]", None, "1 1", ""),
        ("[5, 0]", "[3, 5, 3, 0]", None, "2 4", ""),
        ("[5]", "[0]", None, "3 1", "ncclscope has not given CUPTI up"),
        ("[0]", "[3]", None, "1 20", "another profiler keeps it"),
        ("[0]", "[4]", None, "1 1", "the line on stderr says why"),
        ("[0]", "[1]", Some("0"), "1 1", ""),
    ] {
        let text = format!(
            "import os, time, warnings, ncclscope\n\
             class Library:\n    given, answers, asked = {given}, {answers}, [0, 0]\n    \
             def answer(self, which, answers):\n        self.asked[which] += 1\n        \
             return answers.pop(0) if len(answers) > 1 else answers[0]\n    \
             def ncclscope_release(self): return self.answer(0, self.given)\n    \
             def ncclscope_acquire(self): return self.answer(1, self.answers)\n\
             library = Library()\nncclscope._library = lambda: library\nncclscope.time.sleep = lambda pause: None\n\
             with warnings.catch_warnings(record=True) as said:\n    warnings.simplefilter('always')\n    \
             with ncclscope.cupti_released(): print(os.environ['TEARDOWN_CUPTI'])\n\
             print(*library.asked, *[str(it.message) for it in said])"
        );
        let mut command = Command::new("python3");
        play::clean_environment(&mut command);
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONPATH", folder).args(["-c", &text]);
        command.env_remove("TEARDOWN_CUPTI").envs(set.map(|value| ("TEARDOWN_CUPTI", value)));
        let result = command.output().unwrap();
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        let said = String::from_utf8(result.stdout).unwrap();
        let (variable, rest) = said.split_once('\n').unwrap();
        assert_eq!(variable, set.unwrap_or("1"));
        let warning = rest.trim().strip_prefix(asked).unwrap_or_else(|| panic!("{given}, {answers}: {rest}"));
        assert!(
            if warned.is_empty() { warning.is_empty() } else { warning.contains(warned) },
            "{given}, {answers}: {warning}"
        );
    }
}
