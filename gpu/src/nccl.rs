//! The functions of one libnccl, loaded at run time from the path that the suite found.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

use crate::cuda::Stream;

type Status = c_int;
type Comm = *mut c_void;

/// `ncclFloat32`
const FLOAT32: c_int = 7;
/// Bytes of one element.
pub const ELEMENT: usize = 4;
/// `ncclSum`
const SUM: c_int = 0;

/// `ncclUniqueId`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; 128]);

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UniqueId(..)")
    }
}

macro_rules! functions {
    (
        always { $($name:ident: $symbol:literal($($argument:ty),*);)* }
        some { $($some:ident: $some_symbol:literal($($some_argument:ty),*);)* }
    ) => {
        /// The functions.
        #[derive(Clone, Copy, Debug)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> Status,)*
            $($some: Option<unsafe extern "C" fn($($some_argument),*) -> Status>,)*
        }

        impl Functions {
            fn find(library: &Library) -> Result<Functions, String> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: nccl.h gives the function this type, in every release since 2.23.
                        let found = unsafe { library.get($symbol.as_bytes()) };
                        *found.map_err(|_| format!("it has no {}", $symbol))?
                    },)*
                    $($some: {
                        // SAFETY: as above, in the releases that have it.
                        let found = unsafe { library.get($some_symbol.as_bytes()) };
                        found.ok().map(|function| *function)
                    },)*
                })
            }
        }
    };
}

functions! {
    always {
    get_version: "ncclGetVersion"(*mut c_int);
    get_unique_id: "ncclGetUniqueId"(*mut UniqueId);
    comm_init_rank: "ncclCommInitRank"(*mut Comm, c_int, UniqueId, c_int);
    comm_finalize: "ncclCommFinalize"(Comm);
    comm_destroy: "ncclCommDestroy"(Comm);
    all_reduce: "ncclAllReduce"(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void);
    all_gather: "ncclAllGather"(*const c_void, *mut c_void, usize, c_int, Comm, *mut c_void);
    reduce_scatter: "ncclReduceScatter"(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void);
    broadcast: "ncclBroadcast"(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void);
    reduce: "ncclReduce"(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, *mut c_void);
    send: "ncclSend"(*const c_void, usize, c_int, c_int, Comm, *mut c_void);
    recv: "ncclRecv"(*mut c_void, usize, c_int, c_int, Comm, *mut c_void);
    group_start: "ncclGroupStart"();
    group_end: "ncclGroupEnd"();
    }
    some {
    all_to_all: "ncclAlltoAll"(*const c_void, *mut c_void, usize, c_int, Comm, *mut c_void);
    gather: "ncclGather"(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void);
    scatter: "ncclScatter"(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void);
    }
}

/// A loaded libnccl. It stays loaded as long as the process lives.
#[derive(Debug)]
pub struct Nccl {
    functions: Functions,
    last_error: Option<unsafe extern "C" fn(Comm) -> *const c_char>,
}

/// A communicator. It is only destroyed on request.
#[derive(Debug)]
pub struct Communicator {
    handle: Comm,
    /// Its ranks.
    pub ranks: u32,
    /// This rank.
    pub rank: u32,
}

/// The operations on a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `ncclAllReduce`
    AllReduce,
    /// `ncclAllGather`
    AllGather,
    /// `ncclReduceScatter`
    ReduceScatter,
    /// `ncclBroadcast` from rank 0.
    Broadcast,
    /// `ncclReduce` to the last rank.
    Reduce,
    /// `ncclSend`
    Send(u32),
    /// `ncclRecv`
    Recv(u32),
    /// `ncclAlltoAll`, from 2.28 on.
    AllToAll,
    /// `ncclGather` to rank 0, from 2.28 on.
    Gather,
    /// `ncclScatter` from rank 0, from 2.28 on.
    Scatter,
}

impl Operation {
    /// Its name in traces.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Operation::AllReduce => "AllReduce",
            Operation::AllGather => "AllGather",
            Operation::ReduceScatter => "ReduceScatter",
            Operation::Broadcast => "Broadcast",
            Operation::Reduce => "Reduce",
            Operation::Send(_) => "Send",
            Operation::Recv(_) => "Recv",
            Operation::AllToAll => "AlltoAll",
            Operation::Gather => "Gather",
            Operation::Scatter => "Scatter",
        }
    }
}

impl Nccl {
    /// Loads a library.
    ///
    /// # Errors
    ///
    /// When it cannot be loaded, or lacks a function.
    pub fn load(path: &Path) -> Result<Nccl, String> {
        Nccl::load_with(path, RTLD_GLOBAL)
    }

    /// Loads a second library without mixing its functions with those of the first.
    ///
    /// # Errors
    ///
    /// When it cannot be loaded, or lacks a function.
    pub fn load_beside(path: &Path) -> Result<Nccl, String> {
        Nccl::load_with(path, RTLD_LOCAL | libc::RTLD_DEEPBIND)
    }

    fn load_with(path: &Path, flags: c_int) -> Result<Nccl, String> {
        // SAFETY: the suite says that the file is a libnccl; its initialisers are NCCL's.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | flags) };
        let library = library.map_err(|error| format!("failed to load {}: {error}", path.display()))?;
        let functions = Functions::find(&library).map_err(|reason| format!("{}: {reason}", path.display()))?;
        // SAFETY: nccl.h gives the function this type.
        let last_error = unsafe { library.get(b"ncclGetLastError") }.ok().map(|function| *function);
        std::mem::forget(library);
        Ok(Nccl { functions, last_error })
    }

    fn check(&self, what: &str, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        let said = self.last_error.map(|last_error| {
            // SAFETY: null asks for the thread's last error.
            let text = unsafe { last_error(std::ptr::null_mut()) };
            if text.is_null() {
                return String::new();
            }
            // SAFETY: not null, and NCCL's own string.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
        });
        Err(format!("{what} gave {status}: {}", said.unwrap_or_default()))
    }

    /// NCCL's version: 23007 is 2.30.7.
    ///
    /// # Errors
    ///
    /// When NCCL does not report it.
    pub fn version(&self) -> Result<i32, String> {
        let mut version = 0;
        // SAFETY: the number is writable.
        self.check("ncclGetVersion", unsafe { (self.functions.get_version)(&raw mut version) })?;
        Ok(version)
    }

    /// Whether this release has the operation.
    #[must_use]
    pub fn has(&self, operation: Operation) -> bool {
        match operation {
            Operation::AllToAll => self.functions.all_to_all.is_some(),
            Operation::Gather => self.functions.gather.is_some(),
            Operation::Scatter => self.functions.scatter.is_some(),
            _ => true,
        }
    }

    /// A new unique id for a communicator.
    ///
    /// # Errors
    ///
    /// When NCCL returns none.
    pub fn unique_id(&self) -> Result<UniqueId, String> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the id is writable.
        self.check("ncclGetUniqueId", unsafe { (self.functions.get_unique_id)(&raw mut id) })?;
        Ok(id)
    }

    /// Joins a communicator, on the thread's current GPU.
    ///
    /// # Errors
    ///
    /// When NCCL refuses.
    pub fn join(&self, id: UniqueId, rank: u32, ranks: u32) -> Result<Communicator, String> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the place is writable; a context is current.
        let status = unsafe { (self.functions.comm_init_rank)(&raw mut handle, ranks as c_int, id, rank as c_int) };
        self.check("ncclCommInitRank", status)?;
        Ok(Communicator { handle, ranks, rank })
    }

    /// Leaves a communicator.
    ///
    /// # Errors
    ///
    /// When NCCL refuses.
    pub fn leave(&self, comm: Communicator) -> Result<(), String> {
        // SAFETY: a communicator that nobody uses afterwards.
        unsafe {
            self.check("ncclCommFinalize", (self.functions.comm_finalize)(comm.handle))?;
            self.check("ncclCommDestroy", (self.functions.comm_destroy)(comm.handle))
        }
    }

    /// Calls made in `body` form one group.
    ///
    /// # Errors
    ///
    /// When NCCL refuses, or `body` fails.
    pub fn group(&self, body: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        // SAFETY: no arguments.
        self.check("ncclGroupStart", unsafe { (self.functions.group_start)() })?;
        body()?;
        // SAFETY: no arguments.
        self.check("ncclGroupEnd", unsafe { (self.functions.group_end)() })
    }

    /// Calls an operation on `count` elements, in the order of the stream. For operations that
    /// gather or scatter, `count` is the part of one rank, and buffers must have room for the
    /// parts of all.
    ///
    /// # Errors
    ///
    /// When NCCL refuses, or this release has no such operation.
    ///
    /// # Safety
    ///
    /// Both buffers have room, and nothing else uses them until the operation has ended.
    pub unsafe fn ask(
        &self,
        operation: Operation,
        [from, to]: [*mut c_void; 2],
        count: usize,
        comm: &Communicator,
        stream: Stream,
    ) -> Result<(), String> {
        let (it, comm_handle, stream) = (&self.functions, comm.handle, stream.handle());
        let last = comm.ranks as c_int - 1;
        // SAFETY: the caller's promise about the buffers; communicator and stream are alive.
        let status = unsafe {
            match operation {
                Operation::AllReduce => (it.all_reduce)(from, to, count, FLOAT32, SUM, comm_handle, stream),
                Operation::AllGather => (it.all_gather)(from, to, count, FLOAT32, comm_handle, stream),
                Operation::ReduceScatter => (it.reduce_scatter)(from, to, count, FLOAT32, SUM, comm_handle, stream),
                Operation::Broadcast => (it.broadcast)(from, to, count, FLOAT32, 0, comm_handle, stream),
                Operation::Reduce => (it.reduce)(from, to, count, FLOAT32, SUM, last, comm_handle, stream),
                Operation::Send(peer) => (it.send)(from, count, FLOAT32, peer as c_int, comm_handle, stream),
                Operation::Recv(peer) => (it.recv)(to, count, FLOAT32, peer as c_int, comm_handle, stream),
                Operation::AllToAll => {
                    let function = it.all_to_all.ok_or("this NCCL has no ncclAlltoAll")?;
                    function(from, to, count, FLOAT32, comm_handle, stream)
                }
                Operation::Gather => {
                    let function = it.gather.ok_or("this NCCL has no ncclGather")?;
                    function(from, to, count, FLOAT32, 0, comm_handle, stream)
                }
                Operation::Scatter => {
                    let function = it.scatter.ok_or("this NCCL has no ncclScatter")?;
                    function(from, to, count, FLOAT32, 0, comm_handle, stream)
                }
            }
        };
        self.check(operation.name(), status)
    }
}
