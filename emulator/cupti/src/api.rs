//! CUPTI's functions, with their C interface.
//!
//! Their results without a machine were found by calling the real libraries of six releases on a
//! host without a driver; `tests/cupti/without_driver.rs` repeats that.

use std::mem::MaybeUninit;
use std::time::Duration;

use crate::options::Refusal;
use crate::process::{self, Inside};
use crate::result::{self, CuptiResult};

mod activity;
mod attribute;
mod callback;
mod identity;
mod v2;

pub use activity::*;
pub use callback::*;
pub use identity::*;
pub use v2::*;

/// An out parameter: null, or a place to write to.
pub type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Writes an out parameter.
fn put<T>(out: Out<T>, value: T) -> Result<(), u32> {
    out.ok_or(result::INVALID_PARAMETER)?.write(value);
    Ok(())
}

/// Where a function may be called from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// From anywhere.
    Anyone,
    /// Not while CUPTI requests or completes a buffer.
    NoBuffer,
    /// Like [`Caller::NoBuffer`]; and among CUPTI's callbacks only from those of driver and runtime
    /// calls.
    Outside,
}

/// Whether a function needs the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    Needed,
    Unneeded,
    /// The function itself looks for it, after its arguments.
    Later,
}

/// Runs a function, unless it must be refused.
fn enter(name: &str, from: Caller, driver: Driver, body: impl FnOnce() -> Result<(), u32>) -> CuptiResult {
    process::elapsed();
    let options = process::options();
    let release = options.release;
    let place = match process::inside() {
        Inside::BufferCallback if from != Caller::Anyone => Some("a buffer callback"),
        Inside::OtherCallback if from == Caller::Outside => Some("a callback that is not of an API call"),
        _ => None,
    };
    if let Some(place) = place {
        process::misuse(&format!("{name} was called from {place}, where the real one may hang or crash"));
    }
    while options.hang.iter().any(|hanging| hanging == name) && !process::answers() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let refusal = options.refusal(name, driver == Driver::Needed);
    let refusal = if refusal == Some(Refusal::EVERY) { process::next_error(name) } else { refusal };
    if let Some(code) = refusal {
        process::refused();
        return code;
    }
    if driver != Driver::Later && release.is_mute_without_driver() && process::machine().is_err() {
        return result::UNKNOWN;
    }
    body().err().unwrap_or(result::SUCCESS)
}

/// Defines functions of CUPTI, each with the first release that has it, and lists them.
macro_rules! exported {
    ($(
        $(#[$doc:meta])*
        since $since:ident, $from:ident, $driver:ident:
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// Pointers are null or valid for the length of the call, as CUPTI requires.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::result::CuptiResult {
                $crate::api::enter(
                    stringify!($name),
                    $crate::api::Caller::$from,
                    $crate::api::Driver::$driver,
                    || $body,
                )
            }
        )*

        /// The functions defined here: name, address, first release.
        pub(crate) fn functions() -> impl Iterator<Item = $crate::hide::Function> {
            [$($crate::hide::Function {
                name: stringify!($name),
                address: $name as *const (),
                since: $crate::release::Release::$since,
            }),*].into_iter()
        }
    };
}
use exported;

/// All functions.
pub(crate) fn functions() -> impl Iterator<Item = crate::hide::Function> {
    activity::functions().chain(callback::functions()).chain(identity::functions()).chain(v2::functions())
}
