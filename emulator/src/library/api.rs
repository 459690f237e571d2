//! NCCL's own functions, as the application calls them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::Unsuitable;

/// `ncclResult_t`: 0 is success, 7 is "in progress".
pub type Status = c_int;
/// `ncclComm_t`
pub type CommHandle = *mut c_void;
/// `cudaStream_t`
pub type StreamHandle = *mut c_void;
/// `ncclWindow_t`
pub type WindowHandle = *mut c_void;
/// `ncclDataType_t`: 0 int8, 1 uint8, 2 int32, 3 uint32, 4 int64, 5 uint64, 6 float16, 7 float32,
/// 8 float64, 9 bfloat16, 10 float8e4m3, 11 float8e5m2.
pub type DataType = c_int;
/// `ncclRedOp_t`: 0 sum, 1 prod, 2 max, 3 min, 4 avg, and those made by `ncclRedOpCreatePreMulSum`.
pub type RedOp = c_int;

/// `ncclUniqueId`
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UniqueId(..)")
    }
}

/// The part of `ncclConfig_t` that is used here. NCCL checks `size` and `version`, so every
/// release reads the members it knows.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    /// Whether calls wait until their work is enqueued.
    pub blocking: c_int,
    /// The size of thread block clusters.
    pub cga_cluster_size: c_int,
    /// Fewest channels.
    pub min_ctas: c_int,
    /// Most channels.
    pub max_ctas: c_int,
    /// The network plugin's name.
    pub net_name: *const c_char,
    /// Whether a split communicator uses its parent's resources.
    pub split_share: c_int,
    /// The network's traffic class (from 2.26 on).
    pub traffic_class: c_int,
    /// The communicator's name, which profiler plugins get (from 2.27 on).
    pub comm_name: *const c_char,
}

impl Config {
    const UNDEFINED: c_int = c_int::MIN;

    /// A configuration that leaves everything undefined.
    ///
    /// `version` is the library's, as [`super::Library::version`] returns it.
    pub fn new(version: u32) -> Config {
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version,
            blocking: Self::UNDEFINED,
            cga_cluster_size: Self::UNDEFINED,
            min_ctas: Self::UNDEFINED,
            max_ctas: Self::UNDEFINED,
            net_name: std::ptr::null(),
            split_share: Self::UNDEFINED,
            traffic_class: Self::UNDEFINED,
            comm_name: std::ptr::null(),
        }
    }
}

/// Declares the table of functions: the type of each, and whether every library must have it.
macro_rules! functions {
    (
        always { $( $name:ident = $symbol:literal: fn($($argument:ident: $type:ty),*) -> $result:ty; )+ }
        some {
            $( $some:ident = $some_symbol:literal: fn($($some_argument:ident: $some_type:ty),*) -> $some_result:ty; )+
        }
    ) => {
        /// NCCL's functions. They must be called as `nccl.h` says, and only after
        /// [`super::Library::patch`].
        #[derive(Debug, Clone, Copy)]
        pub struct Api {
            $(
                #[doc = concat!("`", $symbol, "`")]
                pub $name: unsafe extern "C" fn($($argument: $type),*) -> $result,
            )+
            $(
                #[doc = concat!("`", $some_symbol, "`, where the release has it")]
                pub $some: Option<unsafe extern "C" fn($($some_argument: $some_type),*) -> $some_result>,
            )+
        }

        impl Api {
            /// Looks all functions up.
            ///
            /// # Safety
            ///
            /// `address` gives the addresses of NCCL's functions by their names, or null.
            pub(super) unsafe fn find(address: impl Fn(&CStr) -> *mut c_void) -> Result<Api, Unsuitable> {
                Ok(Api {
                    $( $name: {
                        // SAFETY: null is none, and any other address is that of the function of
                        // this name, which has this type.
                        let function = unsafe {
                            std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($type),*) -> $result>>(
                                address(c_name(concat!($symbol, "\0"))),
                            )
                        };
                        function.ok_or(Unsuitable::MissingFunction { function: $symbol })?
                    }, )+
                    $( $some: {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                Option<unsafe extern "C" fn($($some_type),*) -> $some_result>,
                            >(address(c_name(concat!($some_symbol, "\0"))))
                        }
                    }, )+
                })
            }
        }
    };
}

functions! {
    always {
        get_version = "ncclGetVersion": fn(version: *mut c_int) -> Status;
        get_unique_id = "ncclGetUniqueId": fn(id: *mut UniqueId) -> Status;
        get_error_string = "ncclGetErrorString": fn(status: Status) -> *const c_char;
        get_last_error = "ncclGetLastError": fn(comm: CommHandle) -> *const c_char;
        comm_init_rank_config = "ncclCommInitRankConfig":
            fn(comm: *mut CommHandle, ranks: c_int, id: UniqueId, rank: c_int, config: *mut Config) -> Status;
        comm_split = "ncclCommSplit":
            fn(comm: CommHandle, color: c_int, key: c_int, new: *mut CommHandle, config: *mut Config) -> Status;
        comm_finalize = "ncclCommFinalize": fn(comm: CommHandle) -> Status;
        comm_destroy = "ncclCommDestroy": fn(comm: CommHandle) -> Status;
        comm_abort = "ncclCommAbort": fn(comm: CommHandle) -> Status;
        comm_get_async_error = "ncclCommGetAsyncError": fn(comm: CommHandle, status: *mut Status) -> Status;
        all_reduce = "ncclAllReduce": fn(
            send: *const c_void, receive: *mut c_void, count: usize, datatype: DataType, op: RedOp, comm: CommHandle,
            stream: StreamHandle
        ) -> Status;
        all_gather = "ncclAllGather": fn(
            send: *const c_void, receive: *mut c_void, count: usize, datatype: DataType, comm: CommHandle,
            stream: StreamHandle
        ) -> Status;
        reduce_scatter = "ncclReduceScatter": fn(
            send: *const c_void, receive: *mut c_void, count: usize, datatype: DataType, op: RedOp, comm: CommHandle,
            stream: StreamHandle
        ) -> Status;
        broadcast = "ncclBroadcast": fn(
            send: *const c_void, receive: *mut c_void, count: usize, datatype: DataType, root: c_int, comm: CommHandle,
            stream: StreamHandle
        ) -> Status;
        reduce = "ncclReduce": fn(
            send: *const c_void, receive: *mut c_void, count: usize, datatype: DataType, op: RedOp, root: c_int,
            comm: CommHandle, stream: StreamHandle
        ) -> Status;
        send = "ncclSend": fn(
            send: *const c_void, count: usize, datatype: DataType, peer: c_int, comm: CommHandle, stream: StreamHandle
        ) -> Status;
        recv = "ncclRecv": fn(
            receive: *mut c_void, count: usize, datatype: DataType, peer: c_int, comm: CommHandle, stream: StreamHandle
        ) -> Status;
        group_start = "ncclGroupStart": fn() -> Status;
        group_end = "ncclGroupEnd": fn() -> Status;
        mem_alloc = "ncclMemAlloc": fn(pointer: *mut *mut c_void, size: usize) -> Status;
        mem_free = "ncclMemFree": fn(pointer: *mut c_void) -> Status;
    }
    some {
        comm_window_register = "ncclCommWindowRegister": fn(
            comm: CommHandle, buffer: *mut c_void, size: usize, window: *mut WindowHandle, flags: c_int
        ) -> Status;
        comm_window_deregister = "ncclCommWindowDeregister": fn(comm: CommHandle, window: WindowHandle) -> Status;
        all_to_all = "ncclAlltoAll": fn(
            send: *const c_void, receive: *mut c_void, count: usize, datatype: DataType, comm: CommHandle,
            stream: StreamHandle
        ) -> Status;
        gather = "ncclGather": fn(
            send: *const c_void, receive: *mut c_void, count: usize, datatype: DataType, root: c_int, comm: CommHandle,
            stream: StreamHandle
        ) -> Status;
        scatter = "ncclScatter": fn(
            send: *const c_void, receive: *mut c_void, count: usize, datatype: DataType, root: c_int, comm: CommHandle,
            stream: StreamHandle
        ) -> Status;
    }
}

/// A literal that ends in a zero byte.
fn c_name(name: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(name.as_bytes()).expect("the macro adds the zero byte")
}
