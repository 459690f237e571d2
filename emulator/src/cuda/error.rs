//! Errors, as CUDA numbers them. The runtime and the driver API share the numbers used here.

use std::fmt;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $c_name:literal, $text:literal;)*) => {
        /// A CUDA error.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(i32)]
        pub enum Error { $($(#[$doc])* $name = $number,)* }

        impl Error {
            /// The error with a number; `None` for 0 and for numbers that the emulator never
            /// returns.
            pub fn from_number(number: i32) -> Option<Error> {
                match number { $($number => Some(Error::$name),)* _ => None }
            }

            /// Its name in CUDA's headers, as a C string.
            pub fn c_name(self) -> &'static std::ffi::CStr {
                match self { $(Error::$name => $c_name,)* }
            }

            /// What it means, as a C string.
            pub fn c_text(self) -> &'static std::ffi::CStr {
                match self { $(Error::$name => $text,)* }
            }
        }
    };
}

errors! {
    /// An argument is out of range.
    InvalidValue = 1, c"cudaErrorInvalidValue", c"invalid argument";
    /// No memory.
    MemoryAllocation = 2, c"cudaErrorMemoryAllocation", c"out of memory";
    /// No such direction of a copy.
    InvalidMemcpyDirection = 21, c"cudaErrorInvalidMemcpyDirection", c"invalid copy direction for memcpy";
    /// No such kernel.
    InvalidDeviceFunction = 98, c"cudaErrorInvalidDeviceFunction", c"invalid device function";
    /// No such device.
    InvalidDevice = 101, c"cudaErrorInvalidDevice", c"invalid device ordinal";
    /// No context.
    InvalidContext = 201, c"cudaErrorDeviceUninitialized", c"invalid device context";
    /// The peer cannot be reached.
    PeerAccessUnsupported = 217, c"cudaErrorPeerAccessUnsupported",
        c"peer access is not supported between these two devices";
    /// A handle that is not valid, or not any more.
    InvalidResourceHandle = 400, c"cudaErrorInvalidResourceHandle", c"invalid resource handle";
    /// An object is not in the state that the call needs.
    IllegalState = 401, c"cudaErrorIllegalState", c"the operation cannot be performed in the present state";
    /// No symbol of that name.
    SymbolNotFound = 500, c"cudaErrorSymbolNotFound", c"named symbol not found";
    /// Work has not ended yet; no failure.
    NotReady = 600, c"cudaErrorNotReady", c"device not ready";
    /// The peer is enabled already.
    PeerAccessAlreadyEnabled = 704, c"cudaErrorPeerAccessAlreadyEnabled", c"peer access is already enabled";
    /// The peer was never enabled.
    PeerAccessNotEnabled = 705, c"cudaErrorPeerAccessNotEnabled", c"peer access has not been enabled";
    /// That memory is registered already.
    HostMemoryAlreadyRegistered = 712, c"cudaErrorHostMemoryAlreadyRegistered",
        c"part or all of the requested memory range is already mapped";
    /// That memory is not registered.
    HostMemoryNotRegistered = 713, c"cudaErrorHostMemoryNotRegistered",
        c"pointer does not correspond to a registered memory region";
    /// The emulator, or the GPU it emulates, does not do that.
    NotSupported = 801, c"cudaErrorNotSupported", c"operation not supported by the emulated GPU";
    /// Not allowed while the stream is capturing.
    StreamCaptureUnsupported = 900, c"cudaErrorStreamCaptureUnsupported",
        c"operation not permitted when stream is capturing";
    /// An earlier error has made the capture invalid.
    StreamCaptureInvalidated = 901, c"cudaErrorStreamCaptureInvalidated",
        c"operation failed due to a previous error during capture";
    /// Two captures would become one.
    StreamCaptureMerge = 902, c"cudaErrorStreamCaptureMerge",
        c"operation would result in a merge of separate capture sequences";
    /// The capture did not begin in this stream.
    StreamCaptureUnmatched = 903, c"cudaErrorStreamCaptureUnmatched",
        c"capture was not ended in the same stream as it began";
    /// A stream that joined the capture has work that the first stream does not wait for.
    StreamCaptureUnjoined = 904, c"cudaErrorStreamCaptureUnjoined", c"capturing stream has unjoined work";
    /// A captured operation would depend on one outside of the capture.
    StreamCaptureIsolation = 905, c"cudaErrorStreamCaptureIsolation",
        c"dependency created on uncaptured work in another stream";
    /// The legacy default stream cannot be captured.
    StreamCaptureImplicit = 906, c"cudaErrorStreamCaptureImplicit",
        c"operation would make the legacy stream depend on a capturing blocking stream";
    /// The event was recorded in a capture, so it cannot be queried or waited for outside of it.
    CapturedEvent = 907, c"cudaErrorCapturedEvent",
        c"operation not permitted on an event last recorded in a capturing stream";
    /// The capture must be ended by the thread that began it.
    StreamCaptureWrongThread = 908, c"cudaErrorStreamCaptureWrongThread",
        c"attempt to terminate a thread-local capture sequence from another thread";
    /// The answer would leave out data on the graph's edges.
    LossyQuery = 911, c"cudaErrorLossyQuery", c"query would drop edge annotations of the captured graph";
    /// Something else.
    Unknown = 999, c"cudaErrorUnknown", c"unknown error";
}

impl Error {
    /// Its number.
    pub fn number(self) -> i32 {
        self as i32
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, text) = (self.c_name().to_string_lossy(), self.c_text().to_string_lossy());
        write!(f, "{text} ({name}, {})", self.number())
    }
}

impl std::error::Error for Error {}

/// The result of a call of the C interface.
pub(super) fn check(number: i32) -> Result<(), Error> {
    match number {
        0 => Ok(()),
        number => Err(Error::from_number(number).unwrap_or(Error::Unknown)),
    }
}
