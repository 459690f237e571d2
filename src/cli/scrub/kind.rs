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

    /// What a stand-in begins with.
    pub(super) fn stem(self) -> &'static str {
        match self {
            Kind::Host => "host",
            Kind::Communicator => "comm",
            Kind::Group => "group",
            Kind::Process => "program",
            Kind::Thread => "thread",
            Kind::Kernel => "kernel",
            Kind::Range => "range",
            Kind::Domain => "domain",
            Kind::Gpu => "GPU",
            Kind::Uuid => "uuid",
            Kind::Boot => "boot",
            Kind::Job => "job",
            Kind::Value => "value",
            Kind::Path => "path",
            Kind::Network => "address",
            Kind::Address => "pointer",
            Kind::Other => "word",
        }
    }

    /// The singular and the plural, for the report.
    pub(super) fn counted(self) -> [&'static str; 2] {
        match self {
            Kind::Host => ["host name", "host names"],
            Kind::Communicator => ["name of a communicator", "names of communicators"],
            Kind::Group => ["name of a process group", "names of process groups"],
            Kind::Process => ["name of a program", "names of programs"],
            Kind::Thread => ["name of a thread", "names of threads"],
            Kind::Kernel => ["kernel of the application", "kernels of the application"],
            Kind::Range => ["range of the application", "ranges of the application"],
            Kind::Domain => ["domain of ranges", "domains of ranges"],
            Kind::Gpu => ["model of a GPU", "models of GPUs"],
            Kind::Uuid => ["UUID of a GPU", "UUIDs of GPUs"],
            Kind::Boot => ["boot of a host", "boots of hosts"],
            Kind::Job => ["job or run", "jobs or runs"],
            Kind::Value => ["value of a variable", "values of variables"],
            Kind::Path => ["path", "paths"],
            Kind::Network => ["network address", "network addresses"],
            Kind::Address => ["pointer in the arguments", "pointers in the arguments"],
            Kind::Other => ["other word", "other words"],
        }
    }
}
