//! Reads activity records: a bounded walk over a buffer, and fields by a table of offsets.
//!
//! One build reads what every release from CUDA 12.0 to 13.5 writes. That works because CUPTI only
//! ever appends to a record: a field never moves, it exists from some release on, and a record is
//! as long as its release made it. `cargo xtask bindings --check` compares [`table`](crate::table)
//! with the headers of all these releases.
//!
//! Nothing here trusts a buffer. Any bytes can be walked and read; at worst the numbers are wrong.

use core::ffi::c_char;
use core::fmt;
use core::marker::PhantomData;
use core::{ptr, slice};

use crate::bindings::{self, CUPTI_ERROR_MAX_LIMIT_REACHED, CUPTI_SUCCESS, CUpti_Activity, CUptiResult};
use crate::table::{RELEASES, SIZES, SUBSCRIBER_PARAMS_SIZES};

/// Kinds below this can have a size in a [`Table`]; the table knows those up to CUDA 13.5, which
/// end at 59.
const KINDS: usize = 128;

/// Every record begins with its kind.
const KIND_SIZE: usize = size_of::<u32>();

/// The length of each kind of record in one version of CUPTI, and which fields it has.
#[derive(Clone, Debug)]
pub struct Table {
    version: u32,
    /// By kind; 0 if not known.
    sizes: [u16; KINDS],
}

impl Table {
    /// The table for a version, as `cuptiGetVersion` reports it.
    ///
    /// A version newer than the table is read as the newest known one: its records may be longer,
    /// but they begin the same way. A version before CUDA 12.0 (18) has no sizes and no fields.
    pub fn new(version: u32) -> Table {
        let mut sizes = [0; KINDS];
        for (size, rows) in sizes.iter_mut().zip(SIZES) {
            *size = at_version(rows, version).unwrap_or(0);
        }
        Table { version, sizes }
    }

    /// The version this table is for.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Whether records are as long as the table says: it knows this version.
    pub fn is_exact(&self) -> bool {
        RELEASES.last().is_some_and(|(newest, _)| self.version <= *newest)
    }

    /// The length of a record of this kind, in bytes.
    pub fn size(&self, kind: u32) -> Option<usize> {
        let size = *self.sizes.get(usize::try_from(kind).ok()?)?;
        (size != 0).then_some(usize::from(size))
    }

    /// The records of a buffer, as far as `walker` gets. `buffer` is the valid part of what CUPTI
    /// returned.
    pub fn walk<'a, W: Walker>(&'a self, buffer: &'a [u8], mut walker: W) -> Walk<'a, W> {
        let (next, end) = match bounded(buffer, None, walker.next(self, buffer, None)) {
            Ok(first) => (Some(first), None),
            Err(end) => (None, Some(end)),
        };
        Walk { table: self, buffer, walker, next, end, read: 0 }
    }

    /// The record at the start of `bytes`. It ends with `bytes`, or where this version ends a
    /// record of its kind.
    pub fn record<'a>(&self, bytes: &'a [u8]) -> Option<Record<'a>> {
        let kind = u32::from_ne_bytes(*bytes.first_chunk()?);
        let size = self.size(kind).unwrap_or(bytes.len()).min(bytes.len());
        Some(Record { kind, version: self.version, bytes: &bytes[..size] })
    }
}

/// The CUDA release that a version belongs to, if known: `"12.9"` for 28.
pub fn release(version: u32) -> Option<&'static str> {
    at_version(RELEASES, version)
}

/// The value that `structSize` of `CUpti_SubscriberParams` must have: each version accepts only its
/// own size. `None` for versions without `cuptiSubscribe_v2`.
pub fn subscriber_params_size(version: u32) -> Option<usize> {
    at_version(SUBSCRIBER_PARAMS_SIZES, version)
}

/// The last row that starts at or before `version`.
fn at_version<T: Copy>(rows: &[(u32, T)], version: u32) -> Option<T> {
    rows.iter().rev().find(|(since, _)| *since <= version).map(|(_, value)| *value)
}

/// One record, of any kind.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    kind: u32,
    version: u32,
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record's kind: one of `CUPTI_ACTIVITY_KIND_*`, or a newer number.
    pub fn kind(&self) -> u32 {
        self.kind
    }

    /// The whole record, including the kind.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The record as one of family `F`, if its kind belongs to the family.
    #[inline]
    pub fn view<F: Family>(&self) -> Option<View<'a, F>> {
        let Record { kind, version, bytes } = *self;
        F::KINDS.contains(&kind).then_some(View { version, bytes, family: PhantomData })
    }
}

impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("kind", &self.kind).field("size", &self.bytes.len()).finish_non_exhaustive()
    }
}

/// Kinds whose records have the same layout. The families and their fields are in
/// [`table`](crate::table).
pub trait Family {
    /// The kinds, as in `CUPTI_ACTIVITY_KIND_*`.
    const KINDS: &'static [u32];
}

/// A record whose fields can be read.
pub struct View<'a, F> {
    version: u32,
    bytes: &'a [u8],
    family: PhantomData<F>,
}

impl<F> View<'_, F> {
    /// The field's value; `None` if this version of CUPTI does not have it, or the record ends
    /// before it.
    #[inline]
    pub fn get<T: Value>(&self, field: Field<F, T>) -> Option<T> {
        if self.version < field.since {
            return None;
        }
        T::read(self.bytes.get(usize::from(field.offset)..)?)
    }
}

// Derived implementations would require the same of `F`, which has no values.
impl<F> Clone for View<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for View<'_, F> {}

/// The place of a value of type `T` in the records of family `F`.
pub struct Field<F, T> {
    offset: u16,
    /// The first version that writes it. In earlier versions the place may be padding.
    since: u32,
    of: PhantomData<fn() -> (F, T)>,
}

impl<F, T: Value> Field<F, T> {
    pub(crate) const fn new(offset: u16, since: u32) -> Self {
        Field { offset, since, of: PhantomData }
    }

    /// The offset from the start of the record, in bytes.
    pub const fn offset(self) -> usize {
        self.offset as usize
    }

    /// The first version of CUPTI that has the field.
    pub const fn since(self) -> u32 {
        self.since
    }
}

impl<F, T> Clone for Field<F, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F, T> Copy for Field<F, T> {}

/// A type that a field can have.
pub trait Value: Copy + sealed::Sealed {
    #[doc(hidden)]
    fn read(bytes: &[u8]) -> Option<Self>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl sealed::Sealed for $type {}

        impl Value for $type {
            #[inline]
            fn read(bytes: &[u8]) -> Option<$type> {
                bytes.first_chunk().map(|bytes| <$type>::from_ne_bytes(*bytes))
            }
        }
    )*};
}

integers! { u8 u16 u32 u64 i32 i64 }

impl sealed::Sealed for [u8; 16] {}

impl Value for [u8; 16] {
    #[inline]
    fn read(bytes: &[u8]) -> Option<[u8; 16]> {
        bytes.first_chunk().copied()
    }
}

impl sealed::Sealed for *const c_char {}

/// A string of CUPTI's. It may be followed only while the buffer is being decoded, in the process
/// that recorded it.
impl Value for *const c_char {
    #[inline]
    fn read(bytes: &[u8]) -> Option<*const c_char> {
        bytes.first_chunk().map(|bytes| ptr::with_exposed_provenance(usize::from_ne_bytes(*bytes)))
    }
}

/// Finds the next record of a buffer.
pub trait Walker {
    /// The position of the record after the one at `at`, or of the first one. That record lies
    /// within the buffer as a whole.
    ///
    /// # Errors
    ///
    /// Why there is no further record.
    fn next(&mut self, table: &Table, buffer: &[u8], at: Option<usize>) -> Result<usize, End>;
}

/// Why a walk ended. Positions are offsets from the start of the buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All records were seen.
    Done,
    /// The end of the buffer cuts a record off.
    Truncated {
        /// Where it begins.
        at: usize,
    },
    /// The length of a record is not known, so what follows cannot be found.
    UnknownKind {
        /// The record's kind.
        kind: u32,
        /// Where it begins.
        at: usize,
    },
    /// `cuptiActivityGetNextRecord` refused to go on.
    Refused {
        /// Its result.
        result: CUptiResult,
        /// The record it was to continue from; `None` at the start.
        at: Option<usize>,
    },
    /// The walker went back, stood still or left the buffer.
    Strayed {
        /// The record it was to continue from; `None` at the start.
        at: Option<usize>,
    },
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Done => f.write_str("the end of the buffer"),
            End::Truncated { at } => write!(f, "a truncated record at byte {at}"),
            End::UnknownKind { kind, at } => write!(f, "a record of unknown kind {kind}, at byte {at}"),
            End::Refused { result, at } => {
                write!(f, "cuptiActivityGetNextRecord returned {result} at byte {}", at.unwrap_or(0))
            }
            End::Strayed { at } => write!(f, "an invalid step, at byte {}", at.unwrap_or(0)),
        }
    }
}

/// Walks by the sizes in the table. For buffers whose library is not here, and for tests; it stops
/// at the first kind that the table does not know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Own;

impl Walker for Own {
    fn next(&mut self, table: &Table, buffer: &[u8], at: Option<usize>) -> Result<usize, End> {
        let next = match at {
            None => 0,
            Some(at) => at + length(table, buffer, at)?,
        };
        if next == buffer.len() {
            return Err(End::Done);
        }
        length(table, buffer, next).map(|_| next)
    }
}

/// The length of the record at `at`, which must lie within the buffer as a whole.
fn length(table: &Table, buffer: &[u8], at: usize) -> Result<usize, End> {
    let rest = buffer.get(at..).unwrap_or_default();
    let kind = u32::from_ne_bytes(*rest.first_chunk().ok_or(End::Truncated { at })?);
    let size = table.size(kind).ok_or(End::UnknownKind { kind, at })?;
    if size > rest.len() { Err(End::Truncated { at }) } else { Ok(size) }
}

/// Walks with the library that wrote the buffer. Only that library knows its strides, so this is
/// the walker to use wherever it is loaded; it also steps over kinds that the table does not know.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    next: Next,
}

/// The function that steps: that of all releases, or that of one subscriber of several.
#[derive(Clone, Copy, Debug)]
enum Next {
    Any(bindings::cuptiActivityGetNextRecord),
    Of(bindings::CUpti_SubscriberHandle, bindings::cuptiActivityGetNextRecord_v2),
}

impl Library {
    /// A walker that calls `next`.
    ///
    /// # Safety
    ///
    /// `next` is the function of a loaded libcupti that stays loaded, and may be called in this
    /// process: some releases crash in any function if there is no driver.
    pub unsafe fn new(next: bindings::cuptiActivityGetNextRecord) -> Library {
        Library { next: Next::Any(next) }
    }

    /// A walker for the buffers of one subscriber.
    ///
    /// # Safety
    ///
    /// As for [`Library::new`]. The subscriber is subscribed as long as the walker is in use: the
    /// library follows its handle.
    pub unsafe fn of_subscriber(
        subscriber: bindings::CUpti_SubscriberHandle,
        next: bindings::cuptiActivityGetNextRecord_v2,
    ) -> Library {
        Library { next: Next::Of(subscriber, next) }
    }
}

impl Walker for Library {
    #[inline]
    fn next(&mut self, _: &Table, buffer: &[u8], at: Option<usize>) -> Result<usize, End> {
        // Records are multiples of eight bytes long. With a rest left out, the function never looks
        // at half a kind.
        let valid = buffer.len() & !7;
        let start = buffer.as_ptr();
        let mut record = match at {
            None => ptr::null_mut(),
            Some(at) if at < valid => start.wrapping_add(at).cast_mut().cast::<CUpti_Activity>(),
            Some(_) => return Err(End::Strayed { at }),
        };
        // SAFETY: the function may be called, and the subscriber lives, as promised to `new` and
        // `of_subscriber`. It reads `valid` bytes from `start`, all within `buffer`, and only reads
        // them (the tests run it on read-only memory); `record` is null or one of its own.
        let result = unsafe {
            match self.next {
                Next::Any(next) => next(start.cast_mut(), valid, &raw mut record),
                Next::Of(subscriber, next) => next(subscriber, start.cast_mut(), valid, &raw mut record),
            }
        };
        match result {
            CUPTI_SUCCESS => Ok(record.addr().wrapping_sub(start.addr())),
            CUPTI_ERROR_MAX_LIMIT_REACHED => Err(End::Done),
            result => Err(End::Refused { result, at }),
        }
    }
}

/// The records of a buffer, one after the other.
#[derive(Debug)]
pub struct Walk<'a, W> {
    table: &'a Table,
    buffer: &'a [u8],
    walker: W,
    /// Where the next record begins.
    next: Option<usize>,
    end: Option<End>,
    /// Where the last record ended.
    read: usize,
}

impl<W> Walk<'_, W> {
    /// Why the walk is over, once it is.
    pub fn end(&self) -> Option<End> {
        if self.next.is_none() { self.end } else { None }
    }

    /// How many bytes follow the last record so far. If there are any once the walk is over, they are
    /// a record that is cut off, or the record is longer than in the table: CUPTI's own walker calls
    /// a record that is cut off the end.
    pub fn rest(&self) -> usize {
        self.buffer.len() - self.read
    }
}

impl<'a, W: Walker> Iterator for Walk<'a, W> {
    type Item = Record<'a>;

    #[inline]
    fn next(&mut self) -> Option<Record<'a>> {
        let at = self.next?;
        // This record ends where the next one begins.
        let following = self.walker.next(self.table, self.buffer, Some(at));
        let limit = match bounded(self.buffer, Some(at), following) {
            Ok(following) => {
                self.next = Some(following);
                following
            }
            Err(end) => {
                self.next = None;
                self.end = Some(end);
                self.buffer.len()
            }
        };
        let record = self.table.record(&self.buffer[at..limit])?;
        self.read = at + record.bytes.len();
        Some(record)
    }
}

/// A step, if it leads forward to a place where a record can be.
fn bounded(buffer: &[u8], at: Option<usize>, step: Result<usize, End>) -> Result<usize, End> {
    let next = step?;
    let forward = at.is_none_or(|at| next >= at.saturating_add(KIND_SIZE));
    let inside = next.checked_add(KIND_SIZE).is_some_and(|end| end <= buffer.len());
    if forward && inside { Ok(next) } else { Err(End::Strayed { at }) }
}

/// The valid part of a buffer that CUPTI returned, as bytes.
///
/// # Safety
///
/// `buffer` points to `valid` bytes that were written, and nobody writes them while the slice is in
/// use.
pub unsafe fn bytes<'a>(buffer: *const u8, valid: usize) -> &'a [u8] {
    if buffer.is_null() || valid == 0 {
        return &[];
    }
    // SAFETY: the caller's promise is what this function requires.
    unsafe { slice::from_raw_parts(buffer, valid) }
}
