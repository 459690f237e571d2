//! Why there are no kernels.

use std::fmt;

use cupti_sys::bindings as cupti;

use super::TAKING;

/// Why there are no kernels, as a sentence for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The settings switch them off.
    SwitchedOff,
    /// This process is a forked child.
    Forked,
    /// `libcuda.so.1` is not in the process.
    NoDriver,
    /// No libcupti was found.
    NoLibrary {
        /// Where it was looked for.
        tried: String,
    },
    /// A libcupti from before CUDA 12.0.
    TooOld {
        /// Where it is.
        path: String,
        /// A function that it lacks, if that is how it was known.
        function: Option<&'static str>,
        /// Its version, if it could be asked.
        version: Option<u32>,
    },
    /// The one of CUDA 13.2, which crashes if it cannot use the driver; here it cannot.
    Broken {
        /// Where it is.
        path: String,
        /// It may be able to use the driver later, which is starting.
        driver_starts: bool,
    },
    /// Another tool holds CUPTI.
    Taken {
        /// Its name, from CUDA 13.0 on.
        owner: Option<String>,
        /// CUPTI was to be shared.
        asked: bool,
    },
    /// We hold it already.
    Held,
    /// CUPTI refused something that is needed.
    Refused {
        /// The function.
        call: &'static str,
        /// Its answer, a `CUptiResult`.
        code: u32,
    },
    /// We were asked to give it up, and have not finished.
    Leaving,
    /// It is ours, but has not returned from a flush.
    Late,
    /// It does not answer, and is left alone.
    Silent,
    /// An internal error, which was reported.
    Panic,
    /// No memory for buffers, or no thread to flush them.
    NoResources(String),
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absent::SwitchedOff => f.write_str("NCCLSCOPE_CUPTI=0 switches it off"),
            Absent::Forked => f.write_str("this process was forked from one that records"),
            Absent::NoDriver => f.write_str("this process has not loaded the CUDA driver (libcuda.so.1)"),
            Absent::NoLibrary { tried } => write!(
                f,
                "no libcupti was found ({tried}). Install it with `pip install nvidia-cuda-cupti` or the CUDA \
                 toolkit, or set NCCLSCOPE_CUPTI=/path/to/libcupti.so.13"
            ),
            Absent::TooOld { path, function, version } => {
                write!(f, "{path} is from before CUDA 12.0")?;
                match (function, version) {
                    (Some(function), _) => write!(f, ": it lacks {function}"),
                    (None, Some(version)) => write!(f, ": its version is {version}"),
                    (None, None) => Ok(()),
                }
            }
            Absent::Broken { path, driver_starts: false } => write!(
                f,
                "{path} is CUPTI of CUDA 13.2, which crashes if the driver shows no GPU, as here. Use CUPTI of \
                 CUDA 13.3 or later"
            ),
            Absent::Broken { path, driver_starts: true } => write!(
                f,
                "{path} is CUPTI of CUDA 13.2, which crashes if the driver shows no GPU, and during cuInit that is \
                 not known yet. Use CUPTI of CUDA 13.3 or later, or call ncclscope_acquire after cuInit"
            ),
            Absent::Taken { owner, asked } => {
                let owner = owner.as_deref().unwrap_or("another profiler (torch.profiler, Nsight Systems, a debugger)");
                match asked {
                    false => write!(f, "CUPTI can have only one owner, and {owner} has it")?,
                    true => write!(
                        f,
                        "{owner} has CUPTI, and it cannot be shared: that takes CUPTI of CUDA 13.3, driver r610, and \
                         a tool that shares it too"
                    )?,
                }
                f.write_str(". Run without that tool to record kernels")
            }
            Absent::Held => f.write_str("this process is already recording kernels"),
            Absent::Refused { call, code } => {
                write!(f, "{call} answered {}{}", error_name(*code), advice(*code))
            }
            Absent::Silent => {
                write!(f, "CUPTI has not answered for {} s, and is left alone", TAKING.as_secs())
            }
            Absent::Panic => f.write_str("an internal error ended the attempt to take CUPTI"),
            Absent::Late => f.write_str("a flush of CUPTI has not returned"),
            Absent::Leaving => f.write_str("CUPTI is still being released: it has not returned its records yet"),
            Absent::NoResources(what) => f.write_str(what),
        }
    }
}

/// A `CUptiResult` in words. Our own table, because asking CUPTI fails where CUPTI does.
pub(super) fn error_name(code: u32) -> String {
    let name = match code {
        cupti::CUPTI_ERROR_INVALID_PARAMETER => "INVALID_PARAMETER",
        cupti::CUPTI_ERROR_INVALID_DEVICE => "INVALID_DEVICE",
        cupti::CUPTI_ERROR_INVALID_OPERATION => "INVALID_OPERATION",
        cupti::CUPTI_ERROR_OUT_OF_MEMORY => "OUT_OF_MEMORY",
        cupti::CUPTI_ERROR_NOT_COMPATIBLE => "NOT_COMPATIBLE",
        cupti::CUPTI_ERROR_NOT_INITIALIZED => "NOT_INITIALIZED",
        cupti::CUPTI_ERROR_INVALID_KIND => "INVALID_KIND",
        cupti::CUPTI_ERROR_NOT_SUPPORTED => "NOT_SUPPORTED",
        cupti::CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED => "VIRTUALIZED_DEVICE_NOT_SUPPORTED",
        cupti::CUPTI_ERROR_INSUFFICIENT_PRIVILEGES => "INSUFFICIENT_PRIVILEGES",
        cupti::CUPTI_ERROR_LEGACY_PROFILER_NOT_SUPPORTED => "LEGACY_PROFILER_NOT_SUPPORTED",
        cupti::CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED => "MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
        cupti::CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES => "VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES",
        cupti::CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED => "CONFIDENTIAL_COMPUTING_NOT_SUPPORTED",
        cupti::CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED => "CMP_DEVICE_NOT_SUPPORTED",
        cupti::CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED => "MIG_DEVICE_NOT_SUPPORTED",
        cupti::CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED => "SLI_DEVICE_NOT_SUPPORTED",
        cupti::CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED => "WSL_DEVICE_NOT_SUPPORTED",
        cupti::CUPTI_ERROR_UNKNOWN => "UNKNOWN",
        _ => return format!("error {code}"),
    };
    format!("{name} ({code})")
}

/// What the user can do about a result.
fn advice(code: u32) -> &'static str {
    match code {
        cupti::CUPTI_ERROR_NOT_INITIALIZED | cupti::CUPTI_ERROR_UNKNOWN => {
            ": the driver does not accept this CUPTI. Try a CUPTI that is not newer than the driver"
        }
        cupti::CUPTI_ERROR_NOT_SUPPORTED => {
            ": layers that run CUDA on a remote machine replace NVIDIA's CUPTI with one that answers so; kernels \
             can be recorded only on the machine with the GPU"
        }
        cupti::CUPTI_ERROR_INSUFFICIENT_PRIVILEGES | cupti::CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES => {
            ": the administrator of this machine has restricted profiling (NVreg_RestrictProfilingToAdminUsers)"
        }
        cupti::CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED
        | cupti::CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED
        | cupti::CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED
        | cupti::CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED
        | cupti::CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED
        | cupti::CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED => ": NVIDIA does not support tracing on such a GPU",
        cupti::CUPTI_ERROR_INVALID_DEVICE => ": no GPU that can be traced",
        _ => "",
    }
}
