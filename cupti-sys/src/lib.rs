//! CUPTI as it is: bindings, run-time loading and record layouts. No opinions, no threads, and no
//! CUDA needed to build it.
//!
//! * [`bindings`]: the types, constants and function types of `cupti_activity.h` and
//!   `cupti_callbacks.h` that the profiler needs, under CUPTI's own names. Result codes, kinds and
//!   ids are plain integers: a newer library returns numbers that none of these headers has.
//! * [`load`]: the functions of a copy of libcupti, found at run time.
//! * [`records`]: activity records of CUDA 12.0 to 13.5, read through [`table`], never beyond the
//!   buffer they came in.
//!
//! `bindings` and `table` are written by `cargo xtask bindings` and checked by
//! `cargo xtask bindings --check`.
//!
//! ```
//! use cupti_sys::bindings::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
//! use cupti_sys::records::{Own, Table};
//! use cupti_sys::table::Kernel;
//!
//! // What CUPTI of CUDA 12.9 writes for a kernel with correlation id 7.
//! let table = Table::new(28);
//! let mut buffer = vec![0; table.size(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL).unwrap()];
//! buffer[..4].copy_from_slice(&CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL.to_ne_bytes());
//! buffer[92..96].copy_from_slice(&7u32.to_ne_bytes());
//!
//! for record in table.walk(&buffer, Own) {
//!     if let Some(kernel) = record.view::<Kernel>() {
//!         assert_eq!(kernel.get(Kernel::CORRELATION_ID), Some(7));
//!         // CUDA 12.9 does not have this field yet.
//!         assert_eq!(kernel.get(Kernel::PRIORITY), None);
//!     }
//! }
//! ```

pub mod bindings;
pub mod load;
pub mod records;
pub mod table;

pub use load::{Cupti, LoadError};
