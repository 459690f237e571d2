//! A libnccl: its symbols, the layout of its structures, its functions, and the jumps that
//! overwrite its CUDA.
//!
//! ```text
//!  file ──► inspect ──► load ──► patch ──► ready: api, layout, symbols
//!             │           │        │
//!             │           │        └ jumps over the CUDA runtime linked into it, in memory only
//!             │           └ dlopen
//!             └ symbol table and debug information; the layout is kept in a cache, by build id
//! ```
//!
//! The file is never touched. A library that cannot be run is refused with an [`Unsuitable`] that
//! says why.

pub mod api;
mod cache;
mod dwarf;
mod elf;
pub mod layout;
mod patch;
mod symbols;
#[cfg(test)]
mod tests;
mod unsuitable;

use std::ffi::{CStr, CString, c_int, c_void};
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub use api::Api;
pub use cache::CacheUse;
pub use layout::Layout;
pub use patch::Patched;
pub use symbols::Symbols;
pub use unsuitable::Unsuitable;

/// What is known of a library before it is loaded.
#[derive(Debug)]
pub struct Inspected {
    path: PathBuf,
    release: Option<String>,
    build_id: Option<String>,
    layout: Layout,
    symbols: Vec<symbols::Symbol>,
    code: Vec<Range<usize>>,
    cache: CacheUse,
}

/// A loaded libnccl. It stays loaded as long as the process lives.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    version: u32,
    layout: Layout,
    symbols: Symbols,
    code: Vec<Range<usize>>,
    api: Api,
}

impl Inspected {
    /// The file, as it was named.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// NCCL's release as the file states it, such as `2.30.7+cuda13.3`, if it does.
    pub fn release(&self) -> Option<&str> {
        self.release.as_deref()
    }

    /// The build id in hexadecimal, if there is one.
    pub fn build_id(&self) -> Option<&str> {
        self.build_id.as_deref()
    }

    /// The layout of its structures.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How many functions and variables its symbol table names.
    pub fn symbol_count(&self) -> usize {
        self.symbols.len()
    }

    /// Whether the layout came from the cache.
    pub fn cache(&self) -> &CacheUse {
        &self.cache
    }
}

impl Library {
    /// Inspects the file without loading it. The layout is cached in the folder `cache` if
    /// possible, because reading it from the debug information takes a moment.
    ///
    /// # Errors
    ///
    /// When the library cannot be run by the emulator.
    pub fn inspect(path: &Path, cache: &Path) -> Result<Inspected, Unsuitable> {
        let file = File::open(path).map_err(Unsuitable::Unreadable)?;
        if !file.metadata().map_err(Unsuitable::Unreadable)?.is_file() {
            return Err(Unsuitable::NotALibrary { found: "it is not a file".to_owned() });
        }
        // SAFETY: the mapping is private and only read. If somebody truncates the file meanwhile,
        // reading ends the process with SIGBUS, as it would end any program that has the library
        // loaded.
        let bytes = unsafe { memmap2::Mmap::map(&file) }.map_err(Unsuitable::Unreadable)?;
        let image = elf::Image::parse(&bytes)?;
        let symbols = image.symbols()?;
        if !symbols.iter().any(|symbol| symbol.kind == symbols::Kind::Function && patch::is_runtime(&symbol.name)) {
            return Err(Unsuitable::NoCudaRuntime);
        }
        let build_id = image.build_id();
        let read = || {
            let debug = dwarf::Debug::of(&image)?;
            Layout::read(&debug)
        };
        let (layout, cache) = cache::layout(cache, build_id.as_deref(), read)?;
        Ok(Inspected {
            path: path.to_owned(),
            release: image.section(".rodata").and_then(release),
            build_id,
            layout,
            symbols,
            code: image.code(),
            cache,
        })
    }

    /// Loads the library, with its functions visible to all other libraries.
    ///
    /// If NCCL is to find the emulated NVML, that must be loaded before.
    ///
    /// # Errors
    ///
    /// When it cannot be loaded, or lacks one of NCCL's functions.
    pub fn load(inspected: Inspected) -> Result<Library, Unsuitable> {
        let Inspected { path, layout, symbols, code, .. } = inspected;
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| Unsuitable::NotLoadable { error: "a zero byte in the path".to_owned() })?;
        // SAFETY: the name is a C string. The initialisers of the library are NVIDIA's: they
        // register kernels with the CUDA runtime inside and need no GPU.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            return Err(Unsuitable::NotLoadable { error: loader_error() });
        }
        let symbols = Symbols::new(base(handle)?, symbols);
        // SAFETY: the handle is open, and the names are C strings.
        let find = |name: &CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
        // SAFETY: these are the functions of a libnccl, or null.
        let api = unsafe { Api::find(find) }?;
        if symbols.address("ncclGetVersion") != Some(api.get_version as usize) {
            return Err(Unsuitable::OtherFileLoaded);
        }
        let mut version: c_int = 0;
        // SAFETY: the number is writable for the call. The function only stores a constant.
        let status = unsafe { (api.get_version)(&raw mut version) };
        match u32::try_from(version) {
            Ok(version) if status == 0 && version > 0 => Ok(Library { path, version, layout, symbols, code, api }),
            _ => Err(Unsuitable::Unsupported(format!("its ncclGetVersion gives status {status}, version {version}"))),
        }
    }

    /// Overwrites the CUDA runtime that is linked into the library with jumps: each function that
    /// `table` names jumps to the address given there. All other functions of the runtime become
    /// traps, which report their first call on stderr and return `cudaErrorNotSupported`. This
    /// must come before any other call into the library.
    ///
    /// # Errors
    ///
    /// When there is no such runtime, or its code cannot be changed. Then some functions may be
    /// patched already, and the library must not be used.
    ///
    /// # Safety
    ///
    /// Each address is that of a function that can replace the one it is named for, for as long as
    /// the process lives. No other thread runs code of the library meanwhile.
    pub unsafe fn patch(&self, table: &[(&str, *const c_void)]) -> Result<Patched, Unsuitable> {
        // SAFETY: the caller's promise; the symbols and code ranges belong to the library at this
        // base.
        unsafe { patch::patch(&self.symbols, &self.code, table) }
    }

    /// The file, as it was named.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What `ncclGetVersion` returns: 23007 for 2.30.7.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The layout of its structures.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its functions and variables at their addresses.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// NCCL's functions.
    pub fn api(&self) -> &Api {
        &self.api
    }
}

/// The library's load address, which is added to the addresses in its symbol table.
fn base(handle: *mut c_void) -> Result<usize, Unsuitable> {
    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: the handle is open, and this request writes one pointer.
    let status = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) };
    if status != 0 || map.is_null() {
        return Err(Unsuitable::NotLoadable { error: loader_error() });
    }
    // SAFETY: the loader's entry lives as long as the library is loaded, and it begins with the
    // address.
    Ok(unsafe { (*map).address })
}

/// The beginning of the loader's `struct link_map`.
#[repr(C)]
struct LinkMap {
    address: usize,
}

fn loader_error() -> String {
    // SAFETY: dlerror returns null or a C string that lives until the next call on this thread.
    let error = unsafe { libc::dlerror() };
    if error.is_null() {
        return "the loader gives no reason".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned()
}

/// The release in the line that NCCL prints at its start: `NCCL version 2.30.7+cuda13.3`.
fn release(constants: &[u8]) -> Option<String> {
    const BEFORE: &[u8] = b"NCCL version ";
    let mut rest = constants;
    loop {
        let at = rest.windows(BEFORE.len()).position(|window| window == BEFORE)?;
        rest = &rest[at + BEFORE.len()..];
        // Other texts begin like this too.
        if rest.first().is_some_and(u8::is_ascii_digit) {
            let end = rest.iter().position(|byte| !byte.is_ascii_graphic())?;
            return Some(String::from_utf8_lossy(&rest[..end]).into_owned());
        }
    }
}
