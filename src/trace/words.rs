//! The words by which readers recognise things in a trace: the writer writes them, and `cli`,
//! `import` and `sql/ncclscope.sql` look for them.
//!
//! Names of arguments are in `proto/ncclscope.proto`, and the names of tracks with a communicator
//! in [`super::names`]. A test compares the SQL with these and with the words here.

macro_rules! categories {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// A fixed word by which events are classified.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Category {
            $($(#[$doc])* $name = $number,)*
        }

        impl Category {
            /// The category as written.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Category::$name => $text,)*
                }
            }

            /// The category that is written like this.
            #[must_use]
            pub fn of(text: &str) -> Option<Category> {
                match text {
                    $($text => Some(Category::$name),)*
                    _ => None,
                }
            }
        }
    };
}

categories! {
    /// Calls on host threads.
    Api = 1, "api";
    /// Operations of a communicator.
    Operation = 2, "operation";
    /// Work of the proxy.
    Proxy = 3, "proxy";
    /// What the GPU did.
    Gpu = 4, "gpu";
    /// The network below the proxy.
    Net = 5, "net";
    /// The recording itself.
    Ncclscope = 6, "ncclscope";
    /// What ran on the GPU, from CUPTI.
    Kernel = 7, "kernel";
    /// Operations of kernels that carry more than one.
    Carried = 8, "carried";
    /// What the host did for the GPU, from CUPTI.
    Host = 9, "host";
    /// Calls into CUDA, from CUPTI.
    Cuda = 10, "cuda";
    /// NVTX ranges, from CUPTI.
    Nvtx = 11, "nvtx";
    /// Operations of a communicator while the GPU works on them.
    Run = 12, "run";
    /// Overdue operations.
    NotDone = 13, "not done";
    /// PyTorch's ranges, from its profiler.
    PyTorch = 14, "pytorch";
    /// What only the traces of all ranks together show, drawn by `ncclscope merge`.
    Job = 15, "job";
    /// An operation's kernel runs while the proxy has not begun.
    ProxyWait = 16, "proxy wait";
    /// The newest collectives, in a full file.
    Newest = 17, "newest";
}

/// How often a full file gets a sign of life, in ns.
pub const ALIVE_NS: u64 = 10_000_000_000;

/// The doubt of a slice whose end is not its own.
pub const GIVEN_UP: &str = "no stop: given up, records were dropped";
/// The same if NCCL reports no end, because the communicator was finalized before, as by
/// `ncclCommAbort`.
pub const FINALIZED: &str = "its communicator was finalized";

/// Instants.
pub mod instant {
    /// The initialisation of a communicator, with all that is known about it.
    pub const COMM_INIT: &str = "communicator init";
    /// At a restart of the file: a communicator on which no collective was handed over yet.
    pub const NO_COLLECTIVE: &str = "no collective yet";
    /// The end of a communicator.
    pub const COMM_FINALIZE: &str = "communicator finalize";
    /// The first event of a recording.
    pub const STARTED: &str = "recording started";
    /// The last event of a recording, with what was lost.
    pub const ENDED: &str = "recording ended";
    /// The first event of an import from another tool.
    pub const IMPORT_STARTED: &str = "import started";
    /// The last event of an import.
    pub const IMPORT_ENDED: &str = "import ended";
    /// A remark about an import.
    pub const IMPORT_NOTE: &str = "note of the import";
    /// A communicator in another tool's file that has nothing drawn.
    pub const COMM: &str = "communicator";
    /// A process group of PyTorch's that has nothing drawn.
    pub const PROCESS_GROUP: &str = "process group";
    /// A GPU of the process.
    pub const GPU: &str = "GPU";
    /// An event of the network plugin that found no lane.
    pub const NETWORK: &str = "network event";
    /// What the network plugin says of an event under way.
    pub const NETWORK_UPDATE: &str = "network update";
    /// A proxy operation of which NCCL reports the start and nothing more.
    pub const SILENT_PROXY_OP: &str = "proxy operation without progress";
    /// An event of a newer NCCL.
    pub const UNKNOWN_EVENT: &str = "unknown event type";
}

/// Remarks about what is recorded from that time on.
pub mod remark {
    /// A setting has no valid value, or is none.
    pub const BAD_SETTING: &str = "bad setting";
    /// A capture is made.
    pub const CAPTURE: &str = "capture";
    /// The capture ended before the recording did.
    pub const CAPTURE_ENDED: &str = "capture ended";
    /// Another version than the recording's made this trace from its capture.
    pub const REPLAYED: &str = "replayed";
    /// The library is RCCL, with what is known of its clock.
    pub const RCCL: &str = "RCCL";
    /// NCCL is not asked for channels.
    pub const NO_CHANNELS: &str = "no GPU time per channel";
    /// Another profiler plugin gets NCCL's calls, too.
    pub const CHAINED: &str = "another profiler plugin";
    /// The other plugin is not loaded, or misses calls.
    pub const NOT_CHAINED: &str = "no other plugin";
    /// Lines for stderr were lost.
    pub const MESSAGES_LOST: &str = "messages lost";
    /// CUPTI was to be released, and has not returned its records in time.
    pub const NOT_RELEASED: &str = "CUPTI not released";
    /// CUPTI was to be taken, and cannot be.
    pub const NOT_TAKEN: &str = "CUPTI not taken";
    /// Which clock CUPTI's times are on.
    pub const CUPTI_CLOCK: &str = "CUPTI clock";
    /// CUPTI reports an error.
    pub const CUPTI_FAILURE: &str = "CUPTI failure";
    /// CUPTI does not return its records in time.
    pub const KERNELS_LATE: &str = "kernels late";
    /// The file is nearly full: the proxy's steps are left out.
    pub const NO_STEPS: &str = "steps left out";
    /// CUPTI was released: kernels launched from now on are not reported.
    pub const RELEASED: &str = "CUPTI released";
    /// We hold CUPTI, for the first time in this process.
    pub const TAKEN: &str = "CUPTI taken";
    /// We hold CUPTI again.
    pub const TAKEN_AGAIN: &str = "CUPTI taken again";
    /// From this time on, CUPTI reports launches but returns none of their records: another tool
    /// has its buffers.
    pub const SILENT: &str = "CUPTI silent";
    /// CUPTI returns records again.
    pub const HEARD: &str = "CUPTI heard again";
    /// The next buffers were returned when CUPTI was released or taken over, so they may contain
    /// kernels that have not ended; with a text, they were not. Not drawn.
    pub const GIVES_UP: &str = "CUPTI gives up";
    /// Comes before the reason, in what is said at the begin.
    pub const NO_KERNELS: &str = "no GPU kernels: ";
    /// The file is full: only what hangs is drawn from here on.
    pub const FULL: &str = "file full";
    /// The file is full to the last byte, or cannot be written: nothing is drawn any more.
    pub const STOPPED: &str = "recording stopped";
    /// Written to a full file every [`ALIVE_NS`](super::ALIVE_NS). Before it come the newest
    /// collectives that were handed over by its time.
    pub const ALIVE: &str = "still following";
    /// CUPTI had been given up by now, and its records are from before. Not drawn.
    pub const GIVEN_UP: &str = "CUPTI given up";
    /// There was no room for a launch, or for a node of a graph. Not drawn.
    pub const LAUNCH_LOST: &str = "launch lost";
    /// There was no room for a change of a graph. Not drawn.
    pub const CHANGE_LOST: &str = "graph update lost";
    /// CUPTI's times of kernels cannot be true from here on.
    pub const SPOILT: &str = "kernel times bad";
    /// CUPTI's times of kernels are valid again.
    pub const SOUND: &str = "kernel times good again";
    /// Buffers with CUPTI's records were lost, and with them kernels.
    pub const DISCARDED: &str = "kernels discarded";
    /// CUPTI was forced to return its buffers, even with kernels that had not ended. The buffers
    /// come before this remark.
    pub const FORCED: &str = "CUPTI flushed by force";
    /// CUPTI will not be forced to do so, as it was meant to be. Not drawn.
    pub const NOT_FORCED: &str = "CUPTI not flushed by force";
    /// CUPTI's times contradict what NCCL's threads saw.
    pub const TIMES_OFF: &str = "CUPTI's times are off";
    /// A kernel that was drawn did not carry the operations it was drawn with, or a time is wrong.
    pub const CONTRADICTED: &str = "match contradicted";
    /// For how long NCCL's progress threads waited for a processor, if it was much.
    pub const CPU_WAIT: &str = "CPU wait";
    /// How much memory and processor time the recording used.
    pub const COST: &str = "cost of the recording";
    /// Which part of the job the settings select; the rest is counted and not drawn.
    pub const LEFT_OUT: &str = "left out by settings";
    /// The recorder's clock or the host's went back.
    pub const WENT_BACK: &str = "clock went back";
    /// The clocks of processors differ.
    pub const APART: &str = "processor clocks differ";
    /// A GPU's timer, or the host's clock, was set.
    pub const TIMER_SET: &str = "GPU timer was set";
}

/// Tracks, and the endings of their names.
pub mod track {
    /// What a thread of NCCL was doing when it was sampled.
    pub const DOES: &str = "seen";
    /// The counter of how long a progress thread was ready to run and had no processor.
    pub const CPU_WAIT: &str = "CPU wait";
    /// The counter of the recording's own processor time. It has a value for each second.
    pub const OWN_CPU: &str = "CPU · ncclscope";
    /// The counter of lost records.
    pub const DROPS: &str = "records dropped";
    /// A communicator's operations while they are handed over.
    pub const HANDED_OVER: &str = " · handed over";
    /// A communicator's overdue operations.
    pub const NOT_DONE: &str = " · not done";
    /// The operations of a stream's kernels that carry more than one.
    pub const OPERATIONS: &str = " · operations";
    /// What the proxy sends to one peer.
    pub const SEND: &str = " · send ";
    /// What the proxy receives from one peer.
    pub const RECEIVE: &str = " · receive ";
    /// What a channel of a communicator's kernels does, where the kernel is not known.
    pub const CHANNEL: &str = " · channel ";
    /// The transfers of either direction.
    pub const STEPS: &str = " · steps";
    /// Ranges that PyTorch's profiler recorded; their domain follows.
    pub const PYTORCH: &str = "PyTorch";
    /// What concerns all ranks of a job.
    pub const JOB: &str = "Job";
    /// What makes a job slow, where it shows best.
    pub const DIAGNOSIS: &str = "Diagnosis";
    /// From the first to the last rank of a collective.
    pub const FIRST_TO_LAST: &str = " · first to last rank";
    /// How many ranks wait in a collective.
    pub const WAITING: &str = " · ranks waiting";
    /// Where the time of a collective went on one rank.
    pub const WAITS: &str = " · waits";
    /// The separator before the rank in a communicator's name.
    pub const RANK: &str = " · rank ";
}

/// What `ncclscope merge` draws.
pub mod slice {
    /// A rank waits for the last one of a collective; its rank follows.
    pub const WAITS_FOR: &str = "waits for rank ";
    /// The same, if the clocks do not show which rank that was.
    pub const WAITS: &str = "waits";
    /// All ranks of a collective have come.
    pub const TRANSFER: &str = "transfer";
    /// A transfer was handed to the network.
    pub const SENT: &str = "sent";
    /// A transfer had arrived.
    pub const ARRIVED: &str = "arrived";
}

/// What a transfer waits for.
pub mod wait {
    /// The GPU, which fills or empties the buffer.
    pub const GPU: &str = "GPU wait";
    /// The peer, which has to make room.
    pub const PEER: &str = "peer wait";
    /// The network.
    pub const NETWORK: &str = "network wait";
    /// A flush.
    pub const FLUSH: &str = "flush wait";
    /// Something that this build does not know.
    pub const UNKNOWN: &str = "unknown wait";
    /// An operation whose kernel runs, while the proxy has not begun: the beginning of the next
    /// three.
    pub const PROXY: &str = "waits for the proxy";
    /// The same, with the progress thread asleep.
    pub const PROXY_ASLEEP: &str = "waits for the proxy, which is asleep";
    /// The same, with the work not taken in.
    pub const PROXY_APPEND: &str = "waits for the proxy, which has not taken it in";
    /// The same, with the progress thread doing other work.
    pub const PROXY_BUSY: &str = "waits for the proxy, which is busy";
}

/// Why an operation is overdue, in its doubt.
pub mod overdue {
    /// CUPTI says so.
    pub const NOT_ENDED: &str = "its kernel had not ended when CUPTI was flushed by force";
    /// CUPTI says nothing of it.
    pub const NOT_SEEN: &str = "its kernel has not been seen to end: it may be done";
    /// CUPTI says nothing of it, but not all that CUPTI said is known.
    pub const MAY_BE_DONE: &str = "its kernel has not been seen to end, but kernels were lost or could not be matched in \
                                   this process: it may be done";
    /// CUPTI has said so, or nothing, but will not say when the kernels before it end.
    pub const BEHIND_LOST: &str = "its kernel has not been seen to end, but kernels before it lost their records when \
                                   CUPTI was flushed by force: the GPU may be busy with these";
}

/// Attributes of a trace that readers look at.
pub mod attribute {
    /// The id of the kernel's boot; clocks are comparable within it.
    pub const BOOT: &str = "ncclscope.boot";
    /// Followed by a host's name: how its times were converted to the clock of the boot above, and
    /// how accurately, in words.
    pub const HOST_CLOCK: &str = "ncclscope.clock.";
    /// Followed by a host's name: how far off its times may be then, compared with those of the
    /// other hosts, ns.
    pub const HOST_CLOCK_ERROR: &str = "ncclscope.clock_error_ns.";
    /// The version of ncclscope that recorded it.
    pub const VERSION: &str = "ncclscope.version";
    /// The preset.
    pub const PRESET: &str = "ncclscope.preset";
    /// What NCCL was asked for beside it, or not asked for.
    pub const EVENTS: &str = "ncclscope.events";
    /// The job, as the file is named by it.
    pub const JOB: &str = "ncclscope.job";
    /// Followed by a process's name and pid: what its recording lost, in words.
    pub const LOST: &str = "ncclscope.lost.";
    /// The release of CUDA that CUPTI is from.
    pub const CUPTI_RELEASE: &str = "cupti.release";
    /// What identifies the run, with the variable that says so: `SLURM_JOB_ID=4711`.
    pub const RUN: &str = "ncclscope.run";
    /// The mark of the sequences that a merge drew.
    pub const MERGED: &str = "ncclscope.merge";
    /// The tool whose file was imported.
    pub const TOOL: &str = "ncclscope.import.tool";
    /// Its version and the version of its format.
    pub const TOOL_VERSION: &str = "ncclscope.import.version";
    /// The origin of its times, in words.
    pub const TOOL_CLOCK: &str = "ncclscope.import.clock";
    /// Its host.
    pub const TOOL_HOST: &str = "ncclscope.import.host";
    /// Ranks of its job.
    pub const TOOL_RANKS: &str = "ncclscope.import.ranks";
    /// How often a recording writes, in ms, if less often than once a second.
    pub const FLUSH: &str = "ncclscope.flush_period_ms";
    /// The version of NVIDIA's kernel module, and the CUDA that the driver knows: `580.65.06, CUDA
    /// 13.0`.
    pub const DRIVER: &str = "cuda.driver";
    /// NCCL's version, `2.30.7`.
    pub const NCCL_VERSION: &str = "nccl.version";
    /// Followed by the name of an environment variable of the recorded process.
    pub const ENVIRONMENT: &str = "env.";
}

#[cfg(test)]
mod tests {
    use super::*;

    const SQL: [&str; 2] = [include_str!("../../sql/ncclscope.sql"), include_str!("../cli/open/arrivals.sql")];
    const PROTO: &str = include_str!("../../proto/ncclscope.proto");

    /// The parts of the statements between `begin` and `end`.
    fn between(begin: &str, end: char) -> Vec<String> {
        let lines = SQL.iter().flat_map(|sql| sql.lines()).filter(|line| !line.trim_start().starts_with("--"));
        let sql = lines.collect::<Vec<_>>().join("\n");
        let found: Vec<_> =
            sql.split(begin).skip(1).filter_map(|rest| Some(rest.split_once(end)?.0.to_owned())).collect();
        assert!(!found.is_empty(), "{begin}");
        found
    }

    #[test]
    fn the_sql_uses_only_words_that_are_written() {
        let several = between("category IN (", ')');
        let several = several.iter().flat_map(|list| list.split('\'').skip(1).step_by(2)).map(str::to_owned);
        for category in between("category = '", '\'').into_iter().chain(several) {
            // The last one is a placeholder.
            assert!(Category::of(&category).is_some() || category == "CATEGORY", "{category}");
        }
        for argument in between("'nccl.", '\'') {
            assert!(PROTO.contains(&format!(" {argument} = ")), "{argument}");
        }
        assert!(between("OR name = '", '\'').iter().all(|name| name == instant::COMM_INIT));
        assert!(between("track, '", '\'').iter().all(|part| part == track::RANK));
        let directions = between("track LIKE '%", '%');
        assert_eq!(
            directions,
            [track::RECEIVE, track::SEND].map(|direction| direction.trim_start_matches(" · ").trim_end())
        );
        let waits = [wait::GPU, wait::PEER, wait::NETWORK, wait::FLUSH].map(|wait| wait.trim_end_matches(" wait"));
        assert_eq!(between("(name LIKE '", '%'), waits);
    }
}
