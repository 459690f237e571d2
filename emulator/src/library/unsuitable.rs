//! Why a library cannot be run here.

use std::fmt;
use std::io;

/// Why a library cannot be run here. The message continues "failed to run PATH: ".
#[derive(Debug)]
#[non_exhaustive]
pub enum Unsuitable {
    /// The file cannot be read.
    Unreadable(io::Error),
    /// It is not an ELF library.
    NotALibrary {
        /// What it is instead, or what is wrong with it.
        found: String,
    },
    /// It is not for x86-64.
    OtherMachine {
        /// The machine it is for.
        found: String,
    },
    /// It has no `.symtab`.
    NoSymbolTable,
    /// It has no DWARF debug information.
    NoDebugInformation,
    /// Its debug information is in a form that is not supported here.
    OtherDebugInformation {
        /// Which form.
        found: &'static str,
    },
    /// Its debug information is broken.
    BrokenDebugInformation(gimli::Error),
    /// The debug information lacks a structure.
    MissingStructure {
        /// Its name.
        structure: String,
    },
    /// A structure lacks a member.
    MissingMember {
        /// The structure.
        structure: String,
        /// The member, with dots where it lies in another.
        member: String,
    },
    /// A member differs from the releases known here.
    OtherMember {
        /// The structure.
        structure: String,
        /// The member, with dots where it lies in another.
        member: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The symbol table lacks a symbol that the emulation needs.
    MissingSymbol {
        /// Its name.
        symbol: String,
    },
    /// It does not export one of NCCL's functions.
    MissingFunction {
        /// Its name.
        function: &'static str,
    },
    /// `dlopen` refuses it.
    NotLoadable {
        /// What `dlerror` says.
        error: String,
    },
    /// The loaded library is not the inspected one.
    OtherFileLoaded,
    /// It contains no CUDA runtime whose functions could be replaced.
    NoCudaRuntime,
    /// Its code pages cannot be made writable, or the pages for our own instructions not
    /// executable.
    CodeNotWritable(io::Error),
    /// Something else that the emulation needs is missing or different.
    Unsupported(String),
}

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WHEELS: &str = "the libraries in NVIDIA's PyPI wheels (nvidia-nccl-cu12, nvidia-nccl-cu13)";
        match self {
            Self::Unreadable(error) => write!(f, "it cannot be read: {error}"),
            Self::NotALibrary { found } => {
                write!(
                    f,
                    "it is not a shared library in the ELF format ({found}); the path of a libnccl.so.2 is wanted"
                )
            }
            Self::OtherMachine { found } => {
                write!(f, "it is for {found}, and the emulator runs libraries for x86-64 Linux only")
            }
            Self::NoSymbolTable => {
                write!(f, "it has no symbol table (.symtab): it was stripped, and {WHEELS} are not")
            }
            Self::NoDebugInformation => {
                write!(f, "it has no debug information (.debug_info): it was stripped, and {WHEELS} are not")
            }
            Self::OtherDebugInformation { found } => {
                write!(f, "its debug information is {found}, which is not read here; {WHEELS} carry it plainly")
            }
            Self::BrokenDebugInformation(error) => {
                write!(f, "its debug information cannot be read: {error}; is the file complete?")
            }
            Self::MissingStructure { structure } => {
                write!(f, "its debug information has no struct {structure}: this release of NCCL is not known here")
            }
            Self::MissingMember { structure, member } => {
                write!(f, "its struct {structure} has no member {member}: this release of NCCL is not known here")
            }
            Self::OtherMember { structure, member, expected, found } => write!(
                f,
                "{structure}.{member} is {found} where {expected} is expected: this release of NCCL is not known here"
            ),
            Self::MissingSymbol { symbol } => {
                write!(f, "its symbol table has no {symbol}: this release of NCCL is not known here")
            }
            Self::MissingFunction { function } => write!(f, "it does not export {function}: is it a libnccl?"),
            Self::NotLoadable { error } => write!(f, "it cannot be loaded: {error}"),
            Self::OtherFileLoaded => {
                write!(f, "the file changed, or another libnccl of the same name had been loaded: start again")
            }
            Self::NoCudaRuntime => write!(
                f,
                "it contains no CUDA runtime that could be replaced: it was linked against libcudart.so, and {WHEELS} \
                 have it within"
            ),
            Self::CodeNotWritable(error) => write!(
                f,
                "its code cannot be changed in memory: {error}; a hardened system (SELinux, MemoryDenyWriteExecute) \
                 may forbid that"
            ),
            Self::Unsupported(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Unsuitable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable(error) | Self::CodeNotWritable(error) => Some(error),
            Self::BrokenDebugInformation(error) => Some(error),
            _ => None,
        }
    }
}

impl From<gimli::Error> for Unsuitable {
    fn from(error: gimli::Error) -> Self {
        Self::BrokenDebugInformation(error)
    }
}
