//! What a text in a trace can be the name of.

/// What a text names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Host,
    Communicator,
    /// The second part of PyTorch's names.
    Group,
    Process,
    Thread,
    Kernel,
    Range,
    Domain,
    Gpu,
    Uuid,
    Boot,
    Job,
    Value,
    Path,
    Network,
    Address,
    Other,
}

impl Kind {
    pub(super) const ALL: [Kind; 17] = [
        Kind::Host,
        Kind::Communicator,
        Kind::Group,
        Kind::Process,
        Kind::Thread,
        Kind::Kernel,
        Kind::Range,
        Kind::Domain,
        Kind::Gpu,
        Kind::Uuid,
        Kind::Boot,
        Kind::Job,
        Kind::Value,
        Kind::Path,
        Kind::Network,
        Kind::Address,
        Kind::Other,
    ];

    /// What a stand-in begins with; and for the report, the singular and the plural.
    pub(super) fn words(self) -> (&'static str, [&'static str; 2]) {
        match self {
            Kind::Host => ("host", ["host name", "host names"]),
            Kind::Communicator => ("comm", ["name of a communicator", "names of communicators"]),
            Kind::Group => ("group", ["name of a process group", "names of process groups"]),
            Kind::Process => ("program", ["name of a program", "names of programs"]),
            Kind::Thread => ("thread", ["name of a thread", "names of threads"]),
            Kind::Kernel => ("kernel", ["kernel of the application", "kernels of the application"]),
            Kind::Range => ("range", ["range of the application", "ranges of the application"]),
            Kind::Domain => ("domain", ["domain of ranges", "domains of ranges"]),
            Kind::Gpu => ("GPU", ["model of a GPU", "models of GPUs"]),
            Kind::Uuid => ("uuid", ["UUID of a GPU", "UUIDs of GPUs"]),
            Kind::Boot => ("boot", ["boot of a host", "boots of hosts"]),
            Kind::Job => ("job", ["job or run", "jobs or runs"]),
            Kind::Value => ("value", ["value of a variable", "values of variables"]),
            Kind::Path => ("path", ["path", "paths"]),
            Kind::Network => ("address", ["network address", "network addresses"]),
            Kind::Address => ("pointer", ["pointer in the arguments", "pointers in the arguments"]),
            Kind::Other => ("word", ["other word", "other words"]),
        }
    }
}
