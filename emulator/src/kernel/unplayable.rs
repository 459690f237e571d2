//! Kernels that cannot be played.

use std::borrow::Cow;

use super::function::{Algorithm, Function, Protocol};

/// Why a kernel cannot be played. A wrong result must never look right, so the process ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unplayable {
    why: Cow<'static, str>,
    instead: Cow<'static, str>,
}

impl Unplayable {
    /// The exit code of a process that met such a kernel.
    const EXIT_CODE: i32 = 86;

    /// A collective whose algorithm or protocol is not played.
    pub(super) fn function(function: Function) -> Unplayable {
        let setting = match (function.protocol, function.algorithm) {
            (Protocol::Ll128, _) => "NCCL_PROTO=^LL128",
            (_, Algorithm::Nvls | Algorithm::NvlsTree) => "NCCL_NVLS_ENABLE=0 or NCCL_ALGO=RING,TREE",
            (_, Algorithm::CollnetDirect | Algorithm::CollnetChain) => "NCCL_COLLNET_ENABLE=0 or NCCL_ALGO=RING,TREE",
            _ => "NCCL_ALGO=RING,TREE",
        };
        Unplayable {
            why: format!(
                "it plays {} by {} with {}, which is not emulated",
                function.collective.name(),
                function.algorithm.name(),
                function.protocol.name()
            )
            .into(),
            instead: format!("set {setting}").into(),
        }
    }

    /// A work on buffers that the user has registered with NCCL.
    pub(super) fn registered() -> Unplayable {
        Unplayable {
            why: "its buffers are registered, and reading or writing them directly is not emulated".into(),
            instead: "set NCCL_LOCAL_REGISTER=0 and NCCL_GRAPH_REGISTER=0".into(),
        }
    }

    /// A kernel of another kind.
    pub(super) fn kernel(symbol: &str) -> Unplayable {
        if symbol.contains("ncclSym") {
            return Unplayable {
                why: "symmetric kernels are not emulated".into(),
                instead: "set NCCL_WIN_ENABLE=0, or register no windows".into(),
            };
        }
        Unplayable {
            why: "kernels of this name are not known here".into(),
            instead: "leave out what launches it".into(),
        }
    }

    /// Arguments that make no sense when read with the known layout.
    pub(super) fn misread(why: impl Into<Cow<'static, str>>) -> Unplayable {
        Unplayable {
            why: why.into(),
            instead: "this is an error of the emulator, or a release of NCCL that is not known to it".into(),
        }
    }

    /// The message about it.
    pub(super) fn message(&self, symbol: &str) -> String {
        format!("emulator: cannot play kernel {symbol}: {}; {}", self.why, self.instead)
    }

    /// Ends the process.
    pub(super) fn refuse(&self, symbol: &str) -> ! {
        eprintln!("{}", self.message(symbol));
        // SAFETY: always allowed. Not `exit`, because other kernels are running and exit handlers
        // may wait for them.
        unsafe { libc::_exit(Self::EXIT_CODE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::function::Collective;
    use elements::reduce::Reduction;
    use elements::words::Datatype;

    #[test]
    fn a_message_says_what_to_set() {
        let function = Function {
            collective: Collective::AllReduce,
            reduction: Some(Reduction::Sum),
            datatype: Datatype::F32,
            algorithm: Algorithm::NvlsTree,
            protocol: Protocol::Simple,
        };
        assert_eq!(
            Unplayable::function(function).message("k"),
            "emulator: cannot play kernel k: it plays AllReduce by NVLS_TREE with SIMPLE, which is not emulated; set \
             NCCL_NVLS_ENABLE=0 or NCCL_ALGO=RING,TREE"
        );
        let function = Function { protocol: Protocol::Ll128, algorithm: Algorithm::Ring, ..function };
        assert!(Unplayable::function(function).message("k").ends_with("; set NCCL_PROTO=^LL128"));
        assert!(Unplayable::kernel("ncclSymkDevKernel_AllGather_LL").message("k").contains("NCCL_WIN_ENABLE=0"));
        assert!(Unplayable::registered().message("k").contains("NCCL_GRAPH_REGISTER=0"));
    }
}
