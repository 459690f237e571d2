//! The jumps that overwrite the CUDA runtime inside libnccl, in memory only.
//!
//! ```text
//!  cudaMalloc:  mov rax, <ours>   cudaFoo:  mov rax, <trap>   trap:  mov rdi, <cudaFoo's record>
//!               jmp rax                     jmp rax                  mov rax, <trapped>
//!                                                                    jmp rax
//! ```

use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};
use std::io::{self, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Unsuitable;
use super::symbols::{Symbol, Symbols};

/// `mov rax, imm64; jmp rax`
const JUMP: usize = 12;

/// `mov rdi, imm64`, then a jump, padded.
const TRAP: usize = 32;

/// `cudaErrorNotSupported`
const NOT_SUPPORTED: c_int = 801;

/// What was patched in a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patched {
    /// How many functions now jump to those of the table.
    pub replaced: usize,
    /// How many functions are now traps.
    pub trapped: usize,
    /// Functions that are unchanged because they have no room for a jump.
    pub too_short: Vec<String>,
    /// Names in the table that the library lacks; other releases may have them.
    pub absent: Vec<String>,
}

/// Whether this is a function of the CUDA runtime that must not run here, because its first call
/// would look for a driver.
///
/// Three functions use no driver and do not return a `cudaError_t`, so a trap would only do harm.
/// Compilers split parts off functions and name them with a dot; only the function itself calls
/// them. In some builds NCCL's own helper that looks up the driver's functions has a name like the
/// runtime's.
pub(super) fn is_runtime(name: &str) -> bool {
    const HARMLESS: [&str; 3] = ["cudaGetErrorString", "cudaGetErrorName", "cudaCreateChannelDesc"];
    name.strip_prefix("cuda").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()))
        && !HARMLESS.contains(&name)
        && !name.contains('.')
        && !name.contains("PfnFuncLoader")
}

/// Writes the jumps. If it fails, some may be written already.
///
/// # Safety
///
/// The symbols are those of a loaded library, and `code` are its ranges of instructions, relative
/// to the symbols' base. No other thread runs any of them meanwhile. Each address in `table` is
/// that of a function that can be called instead of the named one.
pub(super) unsafe fn patch(
    symbols: &Symbols,
    code: &[Range<usize>],
    table: &[(&str, *const c_void)],
) -> Result<Patched, Unsuitable> {
    let targets: HashMap<&str, *const c_void> = table.iter().copied().collect();
    let mut found = HashSet::new();
    let mut jumps: Vec<(usize, *const c_void)> = Vec::new();
    let mut traps: Vec<(usize, &str)> = Vec::new();
    let mut too_short = Vec::new();
    let functions = symbols.functions().filter(|(symbol, _)| code.iter().any(|range| holds(range, symbol)));
    for (symbol, next) in functions {
        let name = &*symbol.name;
        let target = targets.get(name);
        if target.is_none() && !is_runtime(name) {
            continue;
        }
        found.insert(name);
        let at = symbols.base() + symbol.address;
        // SAFETY: a function in a range of instructions, which is readable; up to the next symbol
        // it is mapped.
        if !unsafe { has_room(at as *const u8, symbol.size, next - symbol.address) } {
            too_short.push(name.to_owned());
            continue;
        }
        match target {
            Some(&target) => jumps.push((at, target)),
            None => traps.push((at, name)),
        }
    }
    // A function with several names is patched if the table has any of them.
    let mut taken: HashSet<usize> = jumps.iter().map(|&(at, _)| at).collect();
    traps.retain(|&(at, _)| taken.insert(at));
    if jumps.is_empty() && traps.is_empty() {
        return Err(Unsuitable::NoCudaRuntime);
    }
    let (replaced, trapped) = (jumps.len(), traps.len());
    let absent = table.iter().map(|(name, _)| *name).filter(|name| !found.contains(name));
    let absent = absent.map(str::to_owned).collect();
    jumps.extend(make_traps(&traps)?);
    // SAFETY: the jumps go into functions with room for them, which nobody runs meanwhile.
    unsafe { write(&mut jumps) }?;
    Ok(Patched { replaced, trapped, too_short, absent })
}

fn holds(range: &Range<usize>, symbol: &Symbol) -> bool {
    range.contains(&symbol.address) && symbol.address.saturating_add(JUMP) <= range.end
}

/// Whether the function at `at` has room for a jump: in its `size`, or in the padding within
/// `space`, up to the next function.
///
/// # Safety
///
/// `space` bytes at `at` are readable.
unsafe fn has_room(at: *const u8, size: usize, space: usize) -> bool {
    if size >= JUMP {
        return true;
    }
    // The end of a function without a size is not known. What lies beyond the end must be padding,
    // not unnamed code.
    size > 0
        && space >= JUMP
        && (at as usize + space).is_multiple_of(16)
        && (size..JUMP).all(|offset| {
            // SAFETY: less than `space`.
            let byte = unsafe { at.add(offset).read() };
            // The bytes of which compilers and linkers build no-ops, and int3.
            matches!(byte, 0x00 | 0x0f | 0x1f | 0x2e | 0x40 | 0x44 | 0x66 | 0x80 | 0x84 | 0x90 | 0xcc)
        })
}

/// One function that is not emulated.
struct Trap {
    name: Box<str>,
    told: AtomicBool,
}

/// The function that every trap calls.
extern "C" fn trapped(trap: &'static Trap) -> c_int {
    if !trap.told.swap(true, Ordering::Relaxed) {
        let text = format!(
            "emulator: NCCL called {}, which is not emulated, and was told cudaErrorNotSupported ({NOT_SUPPORTED})\n",
            trap.name
        );
        // If stderr is closed, there is nobody to tell.
        let _ = io::stderr().write_all(text.as_bytes());
    }
    NOT_SUPPORTED
}

/// Makes a trap for each name. Returns the jumps that lead to them.
fn make_traps(names: &[(usize, &str)]) -> Result<Vec<(usize, *const c_void)>, Unsuitable> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let length = names.len() * TRAP;
    // SAFETY: new memory at an address that the kernel chooses.
    let pages = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if pages == libc::MAP_FAILED {
        return Err(Unsuitable::CodeNotWritable(io::Error::last_os_error()));
    }
    let jumps = names.iter().enumerate().map(|(index, &(at, name))| {
        let trap: &'static Trap = Box::leak(Box::new(Trap { name: name.into(), told: AtomicBool::new(false) }));
        let mut code = [0u8; 10 + JUMP];
        code[..2].copy_from_slice(&[0x48, 0xbf]);
        code[2..10].copy_from_slice(&(std::ptr::from_ref(trap) as u64).to_le_bytes());
        code[10..].copy_from_slice(&jump(trapped as *const c_void));
        // SAFETY: the pages have room for TRAP bytes per name, and nobody else knows of them.
        unsafe {
            let place = pages.cast::<u8>().add(index * TRAP);
            place.copy_from_nonoverlapping(code.as_ptr(), code.len());
            (at, place.cast_const().cast())
        }
    });
    let jumps = jumps.collect();
    // SAFETY: the pages are ours. They stay mapped for as long as the process lives.
    if unsafe { libc::mprotect(pages, length, libc::PROT_READ | libc::PROT_EXEC) } != 0 {
        return Err(Unsuitable::CodeNotWritable(io::Error::last_os_error()));
    }
    Ok(jumps)
}

/// Writes a jump at each address to its target.
///
/// # Safety
///
/// At each address lies code of [`JUMP`] bytes or more that nobody runs meanwhile.
unsafe fn write(jumps: &mut [(usize, *const c_void)]) -> Result<(), Unsuitable> {
    jumps.sort_by_key(|&(at, _)| at);
    // SAFETY: a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let pages = |at: usize| at / page * page..(at + JUMP).next_multiple_of(page);
    let protect = |range: &Range<usize>, protection| {
        // SAFETY: the pages belong to the library's code, which stays readable and executable.
        let status = unsafe { libc::mprotect(range.start as *mut c_void, range.len(), protection) };
        if status == 0 { Ok(()) } else { Err(Unsuitable::CodeNotWritable(io::Error::last_os_error())) }
    };
    let mut rest = &*jumps;
    while let Some(&(first, _)) = rest.first() {
        // Take all that lie on adjacent pages.
        let mut range = pages(first);
        let count = rest.iter().take_while(|&&(at, _)| {
            let own = pages(at);
            let touches = own.start <= range.end;
            if touches {
                range.end = range.end.max(own.end);
            }
            touches
        });
        let count = count.count();
        protect(&range, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)?;
        for &(at, target) in &rest[..count] {
            // SAFETY: writable now, and the caller promises that nobody runs it.
            unsafe { (at as *mut u8).copy_from_nonoverlapping(jump(target).as_ptr(), JUMP) };
        }
        // If the system refuses this, the pages stay writable, which does no harm.
        let _ = protect(&range, libc::PROT_READ | libc::PROT_EXEC);
        rest = &rest[count..];
    }
    Ok(())
}

fn jump(target: *const c_void) -> [u8; JUMP] {
    let mut code = [0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0];
    code[2..10].copy_from_slice(&(target as u64).to_le_bytes());
    code
}
