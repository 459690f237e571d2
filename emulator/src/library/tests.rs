//! No libnccl is needed here: a C compiler makes libraries that look like one.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use super::*;
use crate::library::layout::Bits;

const SHAPES: &str = include_str!("tests/shapes.c");
const RUNTIME: &str = include_str!("tests/runtime.c");

/// Set in a process that must run the body of a test.
const INNER: &str = "LIBRARY_TEST_INNER";

/// A folder with the libraries of one test.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        fs::write(folder.path("shapes.c"), SHAPES).unwrap();
        fs::write(folder.path("runtime.c"), RUNTIME).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs the compiler in the folder.
    fn gcc(&self, arguments: &str) -> PathBuf {
        let output = Command::new("gcc")
            .args(["-fPIC", "-O1", "-w"])
            .args(arguments.split_whitespace())
            .current_dir(self.0.path())
            .output()
            .expect("gcc can be run: these tests need a C compiler");
        assert!(output.status.success(), "gcc {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        self.path(arguments.rsplit(' ').next().unwrap())
    }

    /// A library that looks like a libnccl.
    fn library(&self, options: &str) -> PathBuf {
        self.gcc(&format!("-shared -Wl,--build-id {options} shapes.c runtime.c -o lib.so"))
    }

    fn inspect(&self, library: &Path) -> Result<Inspected, Unsuitable> {
        Library::inspect(library, &self.path("cache"))
    }
}

/// A library that was opened without the emulator.
struct Opened(*mut c_void);

impl Opened {
    fn open(path: &Path) -> Opened {
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string; the library is ours and has no initialisers.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{}", loader_error());
        Opened(handle)
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the handle is open, and the name is a C string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?} is missing");
        address
    }

    /// Calls the exported function that calls the static one of this name.
    fn call(&self, name: &str, argument: c_int) -> c_int {
        let function = self.symbol(&format!("call_{name}"));
        // SAFETY: all of them have this type.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(c_int) -> c_int>(function)(argument) }
    }
}

/// A row of `places` in `shapes.c`.
#[repr(C)]
struct Place {
    name: *const c_char,
    offset: usize,
}

/// A row of `fields` in `shapes.c`.
#[repr(C)]
struct Field {
    name: *const c_char,
    fill: extern "C" fn(*mut u8),
    size: usize,
}

/// Where the compiler has put everything, by the layout's names: offsets and sizes in bytes, and
/// the bits of fields.
fn truth(library: &Path) -> (BTreeMap<String, usize>, BTreeMap<String, Vec<u8>>) {
    let library = Opened::open(library);
    // SAFETY: the names are C strings that live as long as the library, which stays loaded.
    let text = |name: *const c_char| unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned();
    let mut places = BTreeMap::new();
    let mut at = library.symbol("places").cast::<Place>();
    // SAFETY: the table ends with a null name.
    while let place = unsafe { &*at }
        && !place.name.is_null()
    {
        places.insert(text(place.name), place.offset);
        at = at.wrapping_add(1);
    }
    let mut fields = BTreeMap::new();
    let mut at = library.symbol("fields").cast::<Field>();
    // SAFETY: the table ends with a null name, and a null function is never called.
    while !unsafe { (*at).name }.is_null() {
        // SAFETY: not the last row.
        let field = unsafe { &*at };
        // Aligned for any structure.
        let mut words = vec![0u64; field.size.div_ceil(8)];
        let bytes = words.as_mut_ptr().cast::<u8>();
        (field.fill)(bytes);
        // SAFETY: the words have at least this many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, field.size) };
        fields.insert(text(field.name), bytes.to_vec());
        at = at.wrapping_add(1);
    }
    (places, fields)
}

/// Compares a layout with the compiler's.
fn compare(layout: &Layout, library: &Path, options: &str) {
    let (mut places, mut fields) = truth(library);
    let layout = serde_json::to_value(layout).unwrap();
    for (structure, members) in layout.as_object().unwrap() {
        let Some(members) = members.as_object() else { continue };
        for (member, value) in members {
            let name = format!("{structure}.{member}");
            if let Some(offset) = value.as_u64() {
                assert_eq!(places.remove(&name), Some(offset as usize), "{options}: {name}");
            } else if !value.is_null() {
                let bits: Bits = serde_json::from_value(value.clone()).unwrap();
                let filled = fields.remove(&name).unwrap_or_else(|| panic!("{options}: {name} is not in shapes.c"));
                let set: Vec<u32> = (0..filled.len() as u32 * 8)
                    .filter(|bit| filled[*bit as usize / 8] & (1 << (bit % 8)) != 0)
                    .collect();
                let expected: Vec<u32> = (bits.offset..bits.offset + bits.width).collect();
                assert_eq!(set, expected, "{options}: {name}");
                // SAFETY: the bytes are such a structure.
                let value = unsafe { bits.read(filled.as_ptr()) };
                assert_eq!(value, u64::MAX >> (64 - bits.width), "{options}: {name}");
            }
        }
    }
    assert!(places.is_empty() && fields.is_empty(), "{options}: not in the layout: {places:?} {:?}", fields.keys());
}

/// Runs the test of this name in a process of its own. Returns `None` in that process.
fn elsewhere(test: &str) -> Option<Output> {
    if std::env::var_os(INNER).is_some() {
        return None;
    }
    let test = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &test, "--nocapture"])
        .env(INNER, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output)
}

fn refused(result: Result<Inspected, Unsuitable>) -> Unsuitable {
    result.map(|_| ()).expect_err("this library should be refused")
}

#[test]
fn the_layout_is_what_the_compiler_made() {
    let folder = Folder::new();
    for version in 2..=5 {
        for more in ["", "-gstrict-dwarf", "-DOLD", "-DOLD -gstrict-dwarf", "-gdwarf64"] {
            // GCC has this only from version 3 of the format on.
            if version == 2 && more == "-gdwarf64" {
                continue;
            }
            let options = format!("-gdwarf-{version} {more}");
            let name = format!("lib{}.so", options.replace(' ', ""));
            // A new name each time, or the loader returns the library it has already.
            let library = folder.library(&options);
            let library = fs::rename(&library, folder.path(&name)).map(|()| folder.path(&name)).unwrap();
            let inspected = folder.inspect(&library).unwrap_or_else(|error| panic!("{options}: {error}"));
            compare(inspected.layout(), &library, &options);
            let old = more.contains("OLD");
            assert_eq!(inspected.layout().work_bcast.is_none(), old);
            assert_eq!(inspected.layout().kernel_comm.work_consumed.is_some(), old);
            assert_eq!(inspected.layout().comm.comm_hash.is_none(), old);
        }
    }
}

#[test]
fn a_struct_may_be_declared_in_one_file_and_defined_in_another() {
    let folder = Folder::new();
    folder.gcc("-g -c -DDECLARED_ONLY shapes.c -o declared.o");
    folder.gcc("-g -c shapes.c -o shapes.o");
    let library = folder.gcc("-shared -g declared.o shapes.o runtime.c -o lib.so");
    compare(folder.inspect(&library).unwrap().layout(), &library, "two files");
}

#[test]
fn a_release_is_named() {
    let folder = Folder::new();
    let inspected = folder.inspect(&folder.library("-g")).unwrap();
    assert_eq!(inspected.release(), Some("2.99.1+cuda99.0"));
    assert_eq!(inspected.build_id().map(str::len), Some(40));
    assert!(inspected.symbol_count() > 50);
}

#[test]
fn a_layout_is_read_once() {
    let folder = Folder::new();
    let library = folder.library("-g");
    let first = folder.inspect(&library).unwrap();
    let CacheUse::Written(path) = first.cache() else { panic!("{:?}", first.cache()) };
    assert_eq!(fs::read_dir(folder.path("cache")).unwrap().count(), 1);
    let kept = fs::read(path).unwrap();

    let second = folder.inspect(&library).unwrap();
    assert!(matches!(second.cache(), CacheUse::Read(_)), "{:?}", second.cache());
    assert_eq!(first.layout(), second.layout());

    let text = String::from_utf8(kept.clone()).unwrap();
    let other_format = text.replacen("\"format\": \"1-", "\"format\": \"0-", 1);
    let other_library = text.replace(first.build_id().unwrap(), "0123");
    let half = &text[..text.len() / 2];
    for broken in ["", "{}", half, &other_format, &other_library] {
        assert_ne!(broken, text);
        fs::write(path, broken).unwrap();
        let again = folder.inspect(&library).unwrap();
        assert!(matches!(again.cache(), CacheUse::Written(_)), "{:?}", again.cache());
        assert_eq!(first.layout(), again.layout());
        assert_eq!(fs::read(path).unwrap(), kept);
    }
}

#[test]
fn it_works_without_a_cache() {
    let folder = Folder::new();
    let library = folder.library("-g");
    // A file where the folder should be.
    fs::write(folder.path("cache"), "").unwrap();
    assert!(matches!(folder.inspect(&library).unwrap().cache(), CacheUse::NotWritten(..)));

    let library = folder.gcc("-shared -g -Wl,--build-id=none shapes.c runtime.c -o none.so");
    assert!(matches!(folder.inspect(&library).unwrap().cache(), CacheUse::NotPossible));
}

#[test]
fn files_that_are_not_libraries_are_refused() {
    let folder = Folder::new();
    let file = |name: &str, bytes: &[u8]| {
        fs::write(folder.path(name), bytes).unwrap();
        refused(folder.inspect(&folder.path(name)))
    };
    let check = |error: Unsuitable, part: &str| {
        assert!(error.to_string().contains(part), "{error:?}: {error}");
    };
    check(refused(folder.inspect(&folder.path("missing"))), "it cannot be read: No such file");
    check(refused(folder.inspect(folder.0.path())), "it is not a file");
    check(file("empty", b""), "it is empty");
    check(file("text", b"libnccl.so.2"), "it does not begin as one");
    check(file("script", b"/* GNU ld script */ INPUT(libnccl.so.2)"), "it is a linker script");
    check(file("windows", &[b"MZ".as_slice(), &[0; 510]].concat()), "not a shared library in the ELF format");

    let library = folder.library("-g");
    let bytes = fs::read(&library).unwrap();
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        bytes
    };
    check(file("arm64", &with(18, 183)), "it is for arm64, and the emulator runs libraries for x86-64");
    check(file("s390", &with(5, 2)), "big-endian");
    check(file("i386", &with(4, 1)), "32-bit");
    check(file("riscv", &with(18, 243)), "it is for machine 243");
    check(file("program", &with(16, 2)), "it is a program");
    check(file("core", &with(16, 4)), "it is a core dump");
    check(file("cut", &bytes[..100]), "broken");
    check(refused(folder.inspect(&folder.gcc("-c runtime.c -o runtime.o"))), "it is an object file");
}

#[test]
fn a_stripped_library_is_refused() {
    let folder = Folder::new();
    let symbols = refused(folder.inspect(&folder.library("-g -s")));
    assert!(matches!(symbols, Unsuitable::NoSymbolTable), "{symbols:?}");
    assert!(symbols.to_string().contains("nvidia-nccl-cu13"), "{symbols}");

    let debug = refused(folder.inspect(&folder.library("-g0")));
    assert!(matches!(debug, Unsuitable::NoDebugInformation), "{debug:?}");
    assert!(debug.to_string().contains("stripped"), "{debug}");

    let compressed = refused(folder.inspect(&folder.library("-g -gz")));
    assert!(matches!(compressed, Unsuitable::OtherDebugInformation { .. }), "{compressed:?}");
    assert!(compressed.to_string().contains("compressed"), "{compressed}");
}

#[test]
fn missing_parts_of_a_library_are_named() {
    let folder = Folder::new();
    let without = |what: &str, instead: &str| {
        let source = SHAPES.replace(what, instead);
        assert_ne!(source, SHAPES, "{what} is not in shapes.c");
        // The table at the end names all members.
        let end = source.find("#define SIZES").unwrap();
        fs::write(folder.path("changed.c"), format!("{}\n#endif\n", &source[..end])).unwrap();
        refused(folder.inspect(&folder.gcc("-shared -g changed.c runtime.c -o changed.so"))).to_string()
    };
    let error = without("struct ncclDevKernelArgs *arguments;", "");
    assert!(error.contains("no struct ncclDevKernelArgs"), "{error}");
    let error = without("struct ncclDevWorkP2p *work_p2p;", "");
    assert!(error.contains("no struct ncclDevWorkP2p"), "{error}");
    let error = without("int stepSize,", "int step_size,");
    assert!(error.contains("its struct ncclConnInfo has no member stepSize"), "{error}");
    let error = without("int *userRanks;", "int *ranks;");
    assert!(error.contains("its struct ncclDevChannel has no member ring.userRanks"), "{error}");
    let error = without("uint32_t root;", "uint16_t root;");
    assert!(error.contains("ncclDevWorkColl.root is 2 bytes where 4 bytes is expected"), "{error}");
    let error = without("int mode;", "int mode : 5;");
    assert!(error.contains("ncclConnFifo.mode is 5 bits where whole bytes is expected"), "{error}");
    let error = without("KernelComm *const volatile comm;", "uint64_t comm;");
    assert!(error.contains("ncclDevKernelArgs.comm is something else where a pointer"), "{error}");

    let error = refused(folder.inspect(&folder.library("-g -DNO_RUNTIME")));
    assert!(matches!(error, Unsuitable::NoCudaRuntime), "{error:?}");
    let error = Library::load(folder.inspect(&folder.library("-g -DINCOMPLETE")).unwrap()).unwrap_err();
    assert!(matches!(error, Unsuitable::MissingFunction { function: "ncclGroupEnd" }), "{error:?}");
}

#[test]
fn broken_debug_information_does_no_harm() {
    let folder = Folder::new();
    for version in [4, 5] {
        let bytes = fs::read(folder.library(&format!("-gdwarf-{version}"))).unwrap();
        let image = elf::Image::parse(&bytes).unwrap();
        let sections: Vec<std::ops::Range<usize>> = [".debug_info", ".debug_abbrev"]
            .map(|name| {
                let section = image.debug_section(name).unwrap();
                let start = section.as_ptr() as usize - bytes.as_ptr() as usize;
                start..start + section.len()
            })
            .into();
        let mut random = fastrand::Rng::with_seed(7);
        let mut read = 0;
        for _ in 0..1500 {
            let mut bytes = bytes.clone();
            for _ in 0..random.usize(1..6) {
                let section = &sections[random.usize(0..sections.len())];
                bytes[random.usize(section.clone())] = random.u8(..);
            }
            let image = elf::Image::parse(&bytes).unwrap();
            let layout = dwarf::Debug::of(&image).and_then(|debug| Layout::read(&debug));
            read += u32::from(layout.is_ok());
        }
        assert!((1..1500).contains(&read), "{read}");
    }
}

#[test]
fn broken_files_do_no_harm() {
    let folder = Folder::new();
    let whole = fs::read(folder.library("-g")).unwrap();
    let path = folder.path("broken.so");
    let mut random = fastrand::Rng::with_seed(11);
    let headers = whole.len() - 5000;
    for _ in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..random.usize(1..6) {
            // Somewhere in the ELF header and the tables at the beginning and at the end.
            let at = if random.bool() { random.usize(0..1000) } else { random.usize(headers..whole.len()) };
            bytes[at] = random.u8(..);
        }
        bytes.truncate(if random.bool() { random.usize(0..whole.len()) } else { whole.len() });
        fs::write(&path, &bytes).unwrap();
        let _ = folder.inspect(&path);
    }
}

extern "C" fn malloc_instead(argument: c_int) -> c_int {
    argument + 100
}

extern "C" fn launch_instead(argument: c_int) -> c_int {
    argument + 200
}

fn load(folder: &Folder) -> (Library, Opened) {
    let path = folder.library("-g");
    let library = Library::load(folder.inspect(&path).unwrap()).unwrap();
    (library, Opened::open(&path))
}

/// What `/proc/self/maps` says about the page at `address`.
fn protection(address: usize) -> String {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| {
        let (range, _) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|number| usize::from_str_radix(number, 16).unwrap());
        (start..end).contains(&address)
    });
    line.unwrap().split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn a_loaded_library_knows_its_symbols() {
    let folder = Folder::new();
    let (library, opened) = load(&folder);
    assert_eq!(library.version(), 29901);
    let symbols = library.symbols();
    let exported = opened.symbol("call_cudaMalloc") as usize;
    assert_eq!(symbols.address("call_cudaMalloc"), Some(exported));
    assert_eq!(symbols.name(exported), Some("call_cudaMalloc"));
    assert_eq!(symbols.name(exported + 1), None);
    assert_eq!(symbols.name(0), None);
    let hidden = symbols.address("cudaMalloc").unwrap();
    assert_eq!(symbols.name(hidden), Some("cudaMalloc"));
    assert_eq!(symbols.size("cudaShort"), Some(6));
    assert_eq!(symbols.address("cudaMallo"), None);
    assert_eq!(symbols.address("places"), Some(opened.symbol("places") as usize));

    let api = library.api();
    assert_eq!(api.get_version as usize, opened.symbol("ncclGetVersion") as usize);
    // SAFETY: stubs without arguments.
    assert_eq!(unsafe { ((api.group_start)(), (api.group_end)()) }, (0, 0));
    assert!(api.gather.is_some());
    assert!(api.scatter.is_none());
}

#[test]
fn jumps_lead_to_the_table() {
    let folder = Folder::new();
    let (library, opened) = load(&folder);
    assert_eq!(opened.call("cudaMalloc", 5), 8);
    let before = ["cudaGetErrorString", "cudaPfnFuncLoader", "cudart", "neighbour", "cudaCrowded"]
        .map(|name| (name, opened.call(name, 5)));
    let table: &[(&str, *const c_void)] = &[
        ("cudaMalloc", malloc_instead as *const c_void),
        ("cudaShort", launch_instead as *const c_void),
        ("__cudaLaunchKernel", launch_instead as *const c_void),
        ("cudaCrowded", launch_instead as *const c_void),
        ("cudaFromTheFuture", launch_instead as *const c_void),
    ];
    // SAFETY: all of them have the type of those they replace, and the library is this test's own.
    let patched = unsafe { library.patch(table) }.unwrap();
    let expected = Patched {
        replaced: 3,
        // Free under both its names, GraphLaunch, StreamQuery.
        trapped: 3,
        too_short: vec!["cudaCrowded".to_owned()],
        absent: vec!["cudaFromTheFuture".to_owned()],
    };
    assert_eq!(patched, expected);
    assert_eq!(opened.call("cudaMalloc", 5), 105);
    assert_eq!(opened.call("cudaShort", 5), 205);
    assert_eq!(opened.call("__cudaLaunchKernel", 5), 205);
    for (name, answer) in before {
        assert_eq!(opened.call(name, 5), answer, "{name}");
    }
    // Its code is not writable afterwards either.
    assert_eq!(protection(library.symbols().address("cudaMalloc").unwrap()), "r-xp");
}

#[test]
fn a_trap_says_its_name_once() {
    let Some(output) = elsewhere("a_trap_says_its_name_once") else {
        let folder = Folder::new();
        let (library, opened) = load(&folder);
        // SAFETY: nothing is replaced, and the library is this test's own.
        let patched = unsafe { library.patch(&[]) }.unwrap();
        assert_eq!((patched.replaced, patched.trapped), (0, 5));
        for _ in 0..3 {
            assert_eq!(opened.call("cudaGraphLaunch", 1), 801);
            assert_eq!(opened.call("cudaShort", 1), 801);
        }
        return;
    };
    let stderr = String::from_utf8(output.stderr).unwrap();
    for name in ["cudaGraphLaunch", "cudaShort"] {
        assert_eq!(stderr.matches(&format!("NCCL called {name}, which is not emulated")).count(), 1, "{stderr}");
    }
    assert_eq!(stderr.matches("emulator:").count(), 2, "{stderr}");
}

#[test]
fn protected_code_pages_are_reported() {
    const PR_SET_MDWE: c_int = 65;
    const REFUSE_EXEC_GAIN: usize = 1;
    let Some(output) = elsewhere("protected_code_pages_are_reported") else {
        let folder = Folder::new();
        let (library, opened) = load(&folder);
        // SAFETY: from now on no page of this process can become executable, which only the patch
        // needs.
        if unsafe { libc::prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0usize, 0usize, 0usize) } != 0 {
            println!("skipped: this kernel (older than 6.3) cannot guard code");
            return;
        }
        // SAFETY: as above.
        let error = unsafe { library.patch(&[("cudaMalloc", malloc_instead as *const c_void)]) }.unwrap_err();
        assert!(matches!(error, Unsuitable::CodeNotWritable(_)), "{error:?}");
        println!("told: {error}");
        assert_eq!(opened.call("cudaMalloc", 5), 8);
        return;
    };
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(
        stdout.contains("cannot be changed in memory: Permission denied") || stdout.contains("skipped"),
        "{stdout}"
    );
    if stdout.contains("skipped") {
        eprintln!("{stdout}");
    }
}

#[test]
fn runtime_functions_are_recognised() {
    for name in ["cudaMalloc", "cudaStreamGetCaptureInfo_v2", "cudaMemcpyAsync_ptsz", "cudaGL"] {
        assert!(patch::is_runtime(name), "{name}");
    }
    // Other names; NCCL's own; parts of functions; functions that return no status and use no
    // driver.
    for name in
        ["cudart", "cuda", "cuda_", "cudnnCreate", "__cudaRegisterFunction", "ncclMemAlloc", "_ZL17cudaDriverVersion"]
            .into_iter()
            .chain([
                "cudaPfnFuncLoader",
                "cudaMalloc.part.3",
                "cudaFree.cold",
                "cudaGetErrorString",
                "cudaGetErrorName",
            ])
    {
        assert!(!patch::is_runtime(name), "{name}");
    }
}

#[test]
fn bits_are_read_where_they_lie() {
    // SAFETY: the bytes reach as far as the bits do.
    let read = |bytes: &[u8], offset, width| unsafe { Bits { offset, width }.read(bytes.as_ptr()) };
    assert_eq!(read(&[0b1010_0000, 0b0000_0101], 5, 6), 0b10_1101);
    assert_eq!(read(&[0xff], 0, 1), 1);
    assert_eq!(read(&[0xff; 9], 3, 64), u64::MAX);
    assert_eq!(read(&0x0123_4567_89ab_cdef_u64.to_le_bytes(), 0, 64), 0x0123_4567_89ab_cdef);
    assert_eq!(read(&0x0123_4567_89ab_cdef_u64.to_le_bytes(), 56, 8), 0x01);
}
