//! What is set in a job's environment, and what is left as it is (pure).

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::launcher::Launcher;
use crate::cli::library::{self, INJECTION, LIBRARY_PATH, PLUGIN};
use crate::config::RUN_ID;

const OUTPUT: &str = "NCCLSCOPE_OUTPUT";

/// What was asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Wish {
    pub(super) inject: bool,
    pub(super) replace: bool,
    /// Settings, by variable.
    pub(super) settings: Vec<(&'static str, String)>,
}

/// The changes to the job's environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) variables: Vec<(&'static str, OsString)>,
    /// What was set before, and is kept or replaced.
    pub(super) remarks: Vec<String>,
    /// The folder of the traces, with its placeholders.
    pub(super) output: PathBuf,
    /// `NCCL_PROFILER_PLUGIN` names something else, and is kept.
    pub(super) other_plugin: Option<OsString>,
}

impl Plan {
    /// The value that a variable gets.
    pub(super) fn value(&self, name: &str) -> Option<String> {
        let (_, value) = self.variables.iter().find(|(known, _)| *known == name)?;
        Some(value.to_string_lossy().into_owned())
    }
}

/// Makes the plan. Relative paths start at `folder`.
pub(super) fn plan(
    wish: &Wish,
    library: &Path,
    launcher: &Launcher,
    folder: &Path,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Plan {
    let before = |name: &str| variable(name).filter(|value| !value.is_empty());
    let mut plan = Plan::default();
    let home = library.parent().unwrap_or(Path::new("/"));

    for (name, value) in &wish.settings {
        if let Some(before) = before(name).filter(|before| before != OsStr::new(value)) {
            plan.remarks.push(format!("{name} is {value} instead of {}", before.display()));
        }
        if *name != OUTPUT {
            plan.variables.push((name, value.into()));
        }
    }

    // A name that is found by the library path is the only form that every release accepts: 2.27.3
    // accepts no path.
    let wanted = OsString::from(library::NAME);
    match before(PLUGIN) {
        Some(other) if library::is_ours(&other, library) => {}
        Some(other) if !wish.replace => {
            plan.remarks.push(format!(
                "{PLUGIN}={} was set before and is kept: NCCL loads that and not ncclscope. --replace overrides it",
                other.display()
            ));
            plan.other_plugin = Some(other);
        }
        Some(other) => plan.remarks.push(format!("{PLUGIN} is {} instead of {}", library::NAME, other.display())),
        None => {}
    }
    if plan.other_plugin.is_none() {
        plan.variables.push((PLUGIN, wanted));
        let paths = before(LIBRARY_PATH).unwrap_or_default();
        let others = std::env::split_paths(&paths).filter(|path| path != home && !paths.is_empty());
        if let Ok(paths) = std::env::join_paths([home.to_owned()].into_iter().chain(others)) {
            plan.variables.push((LIBRARY_PATH, paths));
        }
    }
    if wish.inject {
        match before(INJECTION) {
            Some(other) if Path::new(&other) != library && !wish.replace => plan.remarks.push(format!(
                "{INJECTION}={} was set before and is kept: the recording begins with the first communicator. --replace overrides it",
                other.display()
            )),
            other => {
                if let Some(other) = other.filter(|other| Path::new(other) != library) {
                    plan.remarks.push(format!("{INJECTION} is {} instead of {}", library.display(), other.display()));
                }
                plan.variables.push((INJECTION, library.into()));
            }
        }
    }

    let asked = |name| wish.settings.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
    let output = asked(OUTPUT).or_else(|| before(OUTPUT));
    let output = output.unwrap_or_else(|| format!("ncclscope-{}", launcher.folder).into());
    // The ranks of a job may have other working directories.
    plan.output = folder.join(output);
    plan.variables.push((OUTPUT, plan.output.clone().into()));
    if let (None, None, Some(run)) = (asked(RUN_ID), before(RUN_ID), &launcher.run) {
        plan.variables.push((RUN_ID, run.into()));
    }
    plan
}

/// The commands for a shell, one line per variable.
pub(super) fn exports(plan: &Plan) -> String {
    let quoted = |value: &OsStr| format!("'{}'", value.to_string_lossy().replace('\'', r"'\''"));
    plan.variables.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(wish: &Wish, variables: &[(&str, &str)]) -> Plan {
        let variable = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        let launcher = Launcher { run: Some("tuesday".into()), folder: "4711.0".into() };
        plan(wish, Path::new("/opt/n/libncclscope.so"), &launcher, Path::new("/job"), &variable)
    }

    fn set<'a>(plan: &'a Plan, name: &str) -> Option<&'a str> {
        plan.variables.iter().find(|(known, _)| *known == name)?.1.to_str()
    }

    #[test]
    fn a_job_gets_the_library_by_name_and_path_a_run_and_a_folder() {
        let plan = planned(&Wish::default(), &[]);
        assert_eq!(set(&plan, PLUGIN), Some("libncclscope.so"));
        assert_eq!(set(&plan, LIBRARY_PATH), Some("/opt/n"));
        assert_eq!(set(&plan, RUN_ID), Some("tuesday"));
        assert_eq!(set(&plan, OUTPUT), Some("/job/ncclscope-4711.0"));
        assert_eq!((set(&plan, INJECTION), plan.remarks.len()), (None, 0));
        let plan = planned(&Wish { inject: true, ..Wish::default() }, &[]);
        assert_eq!(set(&plan, INJECTION), Some("/opt/n/libncclscope.so"));
    }

    #[test]
    fn the_library_path_stays_behind_ours() {
        let path = |before| set(&planned(&Wish::default(), &[(LIBRARY_PATH, before)]), LIBRARY_PATH).map(str::to_owned);
        assert_eq!(path("/a:/opt/n:/b").as_deref(), Some("/opt/n:/a:/b"));
        assert_eq!(path("").as_deref(), Some("/opt/n"));
    }

    #[test]
    fn existing_variables_are_kept_or_replaced_and_reported() {
        let before = [(PLUGIN, "/x/other.so"), (INJECTION, "/x/nsys.so")];
        let kept = planned(&Wish { inject: true, ..Wish::default() }, &before);
        assert_eq!((set(&kept, PLUGIN), set(&kept, INJECTION), set(&kept, LIBRARY_PATH)), (None, None, None));
        assert_eq!(kept.other_plugin.as_deref(), Some(OsStr::new("/x/other.so")));
        assert!(kept.remarks[0].contains("NCCL_PROFILER_PLUGIN=/x/other.so was set before and is kept"));
        assert!(kept.remarks[1].contains("CUDA_INJECTION64_PATH=/x/nsys.so was set before and is kept"));
        let replaced = planned(&Wish { inject: true, replace: true, ..Wish::default() }, &before);
        assert_eq!(set(&replaced, PLUGIN), Some("libncclscope.so"));
        assert_eq!(set(&replaced, INJECTION), Some("/opt/n/libncclscope.so"));
        assert!(replaced.remarks.iter().all(|remark| remark.contains(" instead of /x/")), "{:?}", replaced.remarks);
        assert_eq!((replaced.remarks.len(), replaced.other_plugin), (2, None));
    }

    #[test]
    fn our_own_plugin_is_recognised() {
        for value in ["libncclscope.so", "/opt/n/libncclscope.so"] {
            let plan = planned(&Wish::default(), &[(PLUGIN, value)]);
            assert_eq!((plan.remarks.len(), set(&plan, PLUGIN)), (0, Some("libncclscope.so")), "{value}");
        }
    }

    #[test]
    fn a_flag_overrides_the_environment_and_is_reported() {
        let settings = vec![("NCCLSCOPE_PRESET", "full".to_owned()), (OUTPUT, "%h".to_owned())];
        let wish = Wish { settings, ..Wish::default() };
        let plan = planned(&wish, &[("NCCLSCOPE_PRESET", "light"), (RUN_ID, "monday"), (OUTPUT, "/data")]);
        assert_eq!(set(&plan, "NCCLSCOPE_PRESET"), Some("full"));
        assert_eq!(set(&plan, OUTPUT), Some("/job/%h"));
        assert_eq!(set(&plan, RUN_ID), None);
        let expected = ["NCCLSCOPE_PRESET is full instead of light", "NCCLSCOPE_OUTPUT is %h instead of /data"];
        assert_eq!(plan.remarks, expected);
        assert_eq!(planned(&Wish::default(), &[(OUTPUT, "/data")]).output, Path::new("/data"));
    }

    #[test]
    fn a_shell_reads_the_exports_correctly() {
        let plan = Plan { variables: vec![(PLUGIN, "it's".into())], ..Plan::default() };
        assert_eq!(exports(&plan), "export NCCL_PROFILER_PLUGIN='it'\\''s'\n");
    }
}
