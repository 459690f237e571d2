//! The report: the machine, one row per question, and every job with its traces; as JSON and as
//! Markdown.

use serde::Serialize;
use std::fmt::Write;

use crate::cuda::Description;
use crate::find::Machine;

/// Whether an answer is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum State {
    /// The answer is as expected, or only a figure was asked for.
    #[serde(rename = "ok")]
    Ok,
    /// The answer is not as expected.
    #[serde(rename = "not ok")]
    NotOk,
    /// There is no answer; the reason is given.
    #[serde(rename = "not run")]
    NotRun,
}

impl State {
    /// The state's text in reports.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::NotOk => "**not ok**",
            State::NotRun => "not run",
        }
    }
}

/// A question with its answer.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its topic.
    pub topic: &'static str,
    /// A short name, the same in every report.
    pub name: String,
    /// The question.
    pub question: String,
    /// The answer, with its unit.
    pub figure: String,
    /// Whether it is good.
    pub state: State,
    /// Why it is not, or why there is none.
    pub why: String,
    /// The jobs that it comes from.
    pub jobs: Vec<String>,
    /// The figures as separate values.
    pub values: serde_json::Map<String, serde_json::Value>,
}

/// A job that was run.
#[derive(Clone, Debug, Serialize)]
pub struct JobRun {
    /// Its name, which is that of its folder.
    pub name: String,
    /// Its duration in seconds.
    pub seconds: f64,
    /// How it ended, if it failed.
    pub why: String,
    /// Its traces, relative to the folder of jobs.
    pub traces: Vec<String>,
    /// The size of the traces in bytes.
    pub bytes: u64,
}

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of the format, which changes with the meaning of a field.
    pub format: u32,
    /// This program's version.
    pub version: &'static str,
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Whether it was the short form.
    pub quick: bool,
    /// Whether no GPU was involved.
    pub emulated: bool,
    /// The result of the search on the machine.
    pub machine: Machine,
    /// The GPUs.
    pub gpus: Vec<Description>,
    /// Versions, by component.
    pub versions: Vec<(String, String)>,
    /// How ranks were placed on GPUs.
    pub layout: String,
    /// The answers.
    pub rows: Vec<Row>,
    /// The jobs.
    pub jobs: Vec<JobRun>,
    /// The running job, and for how many seconds it has run; none at the end.
    pub running: Option<(String, f64)>,
    /// Files of jobs that did not fit into the archive beside this report.
    pub left_out: Vec<String>,
}

/// The format of [`Report`].
pub const FORMAT: u32 = 1;

impl Report {
    /// How many answers have this state.
    #[must_use]
    pub fn count(&self, state: State) -> usize {
        self.rows.iter().filter(|row| row.state == state).count()
    }

    /// The report in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::from("# ncclscope on a machine with GPUs\n\n");
        let _ = writeln!(
            text,
            "{} ok, {} not ok, {} not run; {:.0} s{}.\n",
            self.count(State::Ok),
            self.count(State::NotOk),
            self.count(State::NotRun),
            self.seconds,
            if self.quick { ", the short form" } else { "" }
        );
        if let Some((job, seconds)) = &self.running {
            let _ = writeln!(text, "**It has not finished: the job {job} has run for {seconds:.0} s.**\n");
        }
        if self.emulated {
            text.push_str("**The GPUs were emulated: no figure here is that of a real one.**\n\n");
        }
        text.push_str("| machine | |\n| --- | --- |\n");
        for (count, gpu) in self.gpus.iter().enumerate() {
            let gib = gpu.memory as f64 / f64::from(1 << 30);
            let _ = writeln!(
                text,
                "| GPU {count} | {}, {gib:.0} GiB, compute capability {}, {} multiprocessors |",
                cell(&gpu.name),
                gpu.capability,
                gpu.multiprocessors
            );
        }
        for (what, version) in &self.versions {
            let _ = writeln!(text, "| {} | {} |", cell(what), cell(version));
        }
        let machine = &self.machine;
        let _ = writeln!(text, "| processor | {}, {} to use |", cell(&machine.processor), machine.cores);
        let _ = writeln!(text, "| kernel | {} |", cell(&machine.kernel));
        let _ = writeln!(text, "| ranks | {} |", cell(&self.layout));
        let mut topic = "";
        for row in &self.rows {
            if row.topic != topic {
                topic = row.topic;
                let _ =
                    write!(text, "\n## {topic}\n\n| row | question | answer | | |\n| --- | --- | --- | --- | --- |\n");
            }
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} |",
                cell(&row.name),
                cell(&row.question),
                cell(&row.figure),
                row.state.text(),
                cell(&row.why)
            );
        }
        text.push_str("\n## Jobs\n\n| job | s | traces | bytes | |\n| --- | --- | --- | --- | --- |\n");
        for job in &self.jobs {
            let _ = writeln!(
                text,
                "| {} | {:.1} | {} | {} | {} |",
                cell(&job.name),
                job.seconds,
                job.traces.len(),
                job.bytes,
                cell(&job.why)
            );
        }
        if !self.left_out.is_empty() {
            let _ = write!(text, "\nFiles that the archive has no room for: {}.\n", self.left_out.join(", "));
        }
        text.push_str("\n## What was found\n\n```\n");
        let _ = write!(text, "{machine}");
        text.push_str("```\n");
        text
    }
}

/// Text escaped for a table's cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_a_line_and_problems_stand_out() {
        let row = |topic, name: &str, state| Row {
            topic,
            name: name.into(),
            question: "does it | hold?".into(),
            figure: "3 of 4".into(),
            state,
            why: "because".into(),
            jobs: Vec::new(),
            values: serde_json::Map::new(),
        };
        let report = Report {
            format: FORMAT,
            version: "0",
            began: 0,
            seconds: 1.0,
            quick: true,
            emulated: true,
            machine: Machine::default(),
            gpus: Vec::new(),
            versions: vec![("NCCL".into(), "2.30.7".into())],
            layout: "one".into(),
            rows: vec![row("a", "1", State::Ok), row("a", "2", State::NotOk), row("b", "3", State::NotRun)],
            jobs: Vec::new(),
            running: Some(("a-job".into(), 3.2)),
            left_out: vec!["a-job/trace/x".into()],
        };
        let text = report.markdown();
        assert!(text.contains("1 ok, 1 not ok, 1 not run; 1 s, the short form."), "{text}");
        assert!(text.contains("emulated"), "{text}");
        assert!(
            text.contains("the job a-job has run for 3 s") && text.contains("no room for: a-job/trace/x."),
            "{text}"
        );
        assert_eq!(text.matches("\n## a\n").count(), 1);
        assert!(text.contains("| 2 | does it \\| hold? | 3 of 4 | **not ok** | because |"), "{text}");
    }
}
