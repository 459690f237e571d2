//! NVIDIA's own libcupti, of every release in `releases.txt`, against the table and the loader.
//!
//! `cuptiActivityGetNextRecord` knows how long the records of its release are. It is asked about
//! every kind, and walks buffers that were made from the table, record for record. No GPU is
//! needed. Up to CUDA 13.1 no driver is either; from 13.2 on the library calls the driver before it
//! does anything, so that `driver.c` stands in for one.
//!
//! Each release has a process of its own: two copies of CUPTI in one would not tell much about
//! either, and a crash is then the failure of that release only.

use std::env;
use std::ffi::{CStr, CString, c_void};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, ptr};

use cupti_sys::bindings::*;
use cupti_sys::load::{self, Cupti, SONAMES};
use cupti_sys::records::{self, End, Library, Own, Record, Table};
use cupti_sys::table::Kernel;

use support::{Buffer, Random, kinds};

mod support;

/// Where the library lies, and from which version to before which it may be; for the processes.
const SUBJECT: &str = "CUPTI_SYS_SUBJECT";

/// The first version that wants a driver.
const WITH_DRIVER: u32 = 130_200;

/// A row of `releases.txt`.
struct Release {
    cuda: &'static str,
    from: u32,
    until: u32,
    build: &'static str,
}

fn releases() -> Vec<Release> {
    let mut releases: Vec<Release> = Vec::new();
    for line in include_str!("../releases.txt").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let from = words[1].parse().expect("a version");
        for before in releases.iter_mut().filter(|before| before.from < from) {
            before.until = before.until.min(from);
        }
        releases.push(Release { cuda: words[0], from, until: u32::MAX, build: words[2] });
    }
    releases
}

#[test]
fn every_release_walks_as_the_table_says() {
    if !cfg!(target_arch = "x86_64") {
        skip("the libraries in the cache are those of x86-64");
        return;
    }
    let mut failed = Vec::new();
    for release in releases() {
        let Some(library) = library(release.build) else {
            let what = format!("CUPTI {}: not in the cache; cargo xtask bindings --fetch", release.build);
            assert!(env::var_os("CI").is_none(), "{what}");
            skip(&what);
            continue;
        };
        let subject = format!("{} {} {}", release.from, release.until, library.display());
        let test = ["--exact", "one_release", "--ignored", "--nocapture", "--test-threads=1"];
        let program = env::current_exe().expect("this program");
        let output = Command::new(program).args(test).env(SUBJECT, subject).output().expect("it starts");
        let words = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || !words.contains("1 passed") {
            let errors = String::from_utf8_lossy(&output.stderr);
            eprintln!("CUDA {}: {}\n{words}{errors}", release.cuda, output.status);
            failed.push(release.cuda);
        }
    }
    assert!(failed.is_empty(), "CUDA {}", failed.join(", "));
}

/// Says what is left out, also where the output of tests that pass is not shown.
fn skip(what: &str) {
    let _ = writeln!(io::stderr(), "skipped: {what}");
}

/// The library of a build, if it is in the cache.
fn library(build: &str) -> Option<PathBuf> {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute()).or_else(home)?;
    let folder = fs::read_dir(cache.join("ncclscope/cupti-sys").join(build).join("lib")).ok()?;
    folder.flatten().map(|entry| entry.path()).next()
}

#[test]
#[ignore = "every_release_walks_as_the_table_says runs it, in a process for each release"]
fn one_release() {
    let Ok(subject) = env::var(SUBJECT) else { return };
    let (from, rest) = subject.split_once(' ').unwrap();
    let (until, path) = rest.split_once(' ').unwrap();
    let (from, until): (u32, u32) = (from.parse().unwrap(), until.parse().unwrap());
    let path = CString::new(Path::new(path).as_os_str().as_bytes()).unwrap();
    if from >= WITH_DRIVER {
        map_driver();
    }

    let cupti = load(&path);
    let mut version = 0;
    // SAFETY: this release works without a driver, or has one that is enough for this.
    assert_eq!(unsafe { (cupti.cuptiGetVersion)(&raw mut version) }, CUPTI_SUCCESS);
    assert!((from..until).contains(&version), "version {version}");
    functions(&cupti, version);

    let table = Table::new(version);
    // SAFETY: as above; the copy stays mapped.
    let library = unsafe { Library::new(cupti.cuptiActivityGetNextRecord) };
    sizes(&table, library);
    stated_sizes(&table, &cupti);
    records(&table, library);
    cut(&table, library);
    anything(&table, library);
    for_subscribers(&table, &cupti);
    without_driver(&cupti, from);
}

/// Stands in for the driver. Whoever looks for `libcuda.so.1` from now on finds this.
fn map_driver() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("driver-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("libcuda.so.1");
    let mut compiler = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]).arg(&path);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/driver.c");
    assert!(compiler.arg(source).status().expect("a C compiler").success());
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a C string, and a library that does nothing when it is opened.
    assert!(!unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null());
    fs::remove_dir_all(&folder).unwrap();
    assert!(load::is_mapped(c"libcuda.so.1"));
}

/// The copy is opened by its path, and is found by its SONAME and by its path from then on.
fn load(path: &CStr) -> Cupti {
    assert!(Cupti::mapped(&SONAMES).is_err() && Cupti::mapped(&[path]).is_err());
    // SAFETY: this is CUPTI.
    let cupti = unsafe { Cupti::open(&[path]) }.unwrap();
    for names in [SONAMES.as_slice(), &[path]] {
        let again = Cupti::mapped(names).unwrap();
        assert!(ptr::fn_addr_eq(again.cuptiGetVersion, cupti.cuptiGetVersion));
    }
    assert_eq!(cupti.path().as_deref(), Some(path));
    assert_eq!(load::mapped_copies(), [path.to_owned()]);
    cupti
}

/// The functions that are optional are there from the release on that their documentation names.
fn functions(cupti: &Cupti, version: u32) {
    for (name, there, since) in [
        ("cuptiActivityEnableDriverApi", cupti.cuptiActivityEnableDriverApi.is_some(), 23),
        ("cuptiSubscribe_v2", cupti.cuptiSubscribe_v2.is_some(), 130_000),
        ("cuptiActivityGetStructSize", cupti.cuptiActivityGetStructSize.is_some(), 130_200),
        ("cuptiActivityRegisterCallbacks_v2", cupti.cuptiActivityRegisterCallbacks_v2.is_some(), 130_200),
        ("cuptiActivityEnable_v2", cupti.cuptiActivityEnable_v2.is_some(), 130_200),
        ("cuptiActivityEnableAndDump_v2", cupti.cuptiActivityEnableAndDump_v2.is_some(), 130_200),
        ("cuptiActivityDisable_v2", cupti.cuptiActivityDisable_v2.is_some(), 130_200),
        ("cuptiActivitySetAttribute_v2", cupti.cuptiActivitySetAttribute_v2.is_some(), 130_200),
        ("cuptiActivityGetNextRecord_v2", cupti.cuptiActivityGetNextRecord_v2.is_some(), 130_300),
        ("cuptiActivityGetNumDroppedRecords_v2", cupti.cuptiActivityGetNumDroppedRecords_v2.is_some(), 130_300),
        (
            "cuptiActivityPushExternalCorrelationId_v2",
            cupti.cuptiActivityPushExternalCorrelationId_v2.is_some(),
            130_300,
        ),
        ("cuptiActivityPopExternalCorrelationId_v2", cupti.cuptiActivityPopExternalCorrelationId_v2.is_some(), 130_300),
        ("cuptiGetTimestamp_v2", cupti.cuptiGetTimestamp_v2.is_some(), 130_300),
    ] {
        assert_eq!(there, version >= since, "{name}");
    }
}

/// How far the library steps over a record of each kind.
fn sizes(table: &Table, library: Library) {
    let filler = CUPTI_ACTIVITY_KIND_STREAM;
    for kind in 0..128 {
        // Wherever the next record begins, it is a small one.
        let mut words = vec![filler; 512];
        words[0] = kind;
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        let mut walk = table.walk(&bytes, library);
        let (first, second) = (walk.next(), walk.next());
        let step =
            first.zip(second).map(|(first, second)| second.bytes().as_ptr().addr() - first.bytes().as_ptr().addr());
        assert_eq!(step, table.size(kind), "kind {kind}, {:?}", walk.end());
    }
}

/// What the library says about the sizes of its own records. Its word on those of releases before
/// it is not asked: for contexts, CUDA 13.2 gives 40 bytes to 13.0, which has 32.
fn stated_sizes(table: &Table, cupti: &Cupti) {
    let Some(stated) = cupti.cuptiActivityGetStructSize else { return };
    for kind in kinds(table) {
        let mut size = 0;
        // SAFETY: the size is written before the call returns.
        assert_eq!(unsafe { stated(kind, 0, &raw mut size) }, CUPTI_SUCCESS, "kind {kind}");
        assert_eq!(Some(size), table.size(kind), "kind {kind}");
    }
}

/// Memory that can be read and not written, up to its end, behind which nothing can be read.
struct Fenced {
    base: *mut c_void,
    len: usize,
    bytes: &'static [u8],
}

impl Fenced {
    fn new(bytes: &[u8]) -> Fenced {
        let page = 65536;
        let room = bytes.len().next_multiple_of(page);
        let len = room + page;
        // SAFETY: new memory of our own; the slice lies within it, and ends where the fence begins.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let start = base.cast::<u8>().add(room - bytes.len());
            ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len());
            assert_eq!(libc::mprotect(base, len, libc::PROT_READ), 0);
            assert_eq!(libc::mprotect(base.cast::<u8>().add(room).cast(), page, libc::PROT_NONE), 0);
            Fenced { base, len, bytes: records::bytes(start, bytes.len()) }
        }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody reads it any more.
        unsafe { libc::munmap(self.base, self.len) };
    }
}

/// Where records begin, how long they are, and their kinds.
fn outline(bytes: &[u8], records: &[Record<'_>]) -> Vec<(usize, usize, u32)> {
    let place = |record: &Record<'_>| record.bytes().as_ptr().addr() - bytes.as_ptr().addr();
    records.iter().map(|record| (place(record), record.bytes().len(), record.kind())).collect()
}

/// Walks in both ways. Returns what they agree on.
fn both(table: &Table, bytes: &[u8], library: Library) -> (Vec<(usize, usize, u32)>, End) {
    let mut own = table.walk(bytes, Own);
    let mut theirs = table.walk(bytes, library);
    let ours: Vec<_> = own.by_ref().collect();
    let records: Vec<_> = theirs.by_ref().collect();
    assert_eq!(outline(bytes, &ours), outline(bytes, &records));
    let (own, theirs) = (own.end().unwrap(), theirs.end().unwrap());
    match (own, theirs) {
        // The library calls a cut record the end, too.
        (End::Done | End::Truncated { .. }, End::Done) => {}
        // No record is that short, so that it is not asked about the last bytes of an odd length.
        (End::UnknownKind { at, .. }, End::Done) if at + 8 > bytes.len() => {}
        // It has no number of its own for this up to the first build of CUDA 12.4 (22).
        (End::UnknownKind { .. }, End::Refused { result: CUPTI_ERROR_INVALID_KIND, .. }) if table.version() >= 22 => {}
        (End::UnknownKind { .. }, End::Refused { result: CUPTI_ERROR_UNKNOWN, .. }) if table.version() <= 22 => {}
        _ => panic!("{own}; but the library: {theirs}"),
    }
    (outline(bytes, &ours), own)
}

/// Buffers of records of all kinds are walked record for record, and read.
fn records(table: &Table, library: Library) {
    let kinds = kinds(table);
    let mut random = Random(u64::from(table.version()));
    for _ in 0..200 {
        let mut buffer = Buffer::default();
        for _ in 0..random.below(400) {
            let kind = kinds[random.below(kinds.len())];
            let at = buffer.push(table, kind);
            let size = table.size(kind).unwrap();
            // Whatever the fields hold, the step is the same.
            for place in (at + 4..at + size).step_by(4) {
                buffer.put(place, u32::try_from(random.below(64)).unwrap().to_ne_bytes());
            }
            if kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL {
                buffer.put(at + Kernel::CORRELATION_ID.offset(), u32::try_from(at).unwrap().to_ne_bytes());
            }
        }
        let fenced = Fenced::new(&buffer.bytes);
        let (seen, end) = both(table, fenced.bytes, library);
        assert_eq!(end, End::Done);
        let filled = buffer.records.iter().map(|(at, kind)| (*at, table.size(*kind).unwrap(), *kind));
        assert_eq!(seen, filled.collect::<Vec<_>>());
        for record in table.walk(fenced.bytes, library) {
            if record.kind() == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL {
                let at = record.bytes().as_ptr().addr() - fenced.bytes.as_ptr().addr();
                let id = record.view::<Kernel>().unwrap().get(Kernel::CORRELATION_ID);
                assert_eq!(id, Some(u32::try_from(at).unwrap()));
            }
        }
    }
}

/// A buffer that is cut anywhere gives the records before the cut.
fn cut(table: &Table, library: Library) {
    let mut buffer = Buffer::default();
    for kind in kinds(table) {
        buffer.push(table, kind);
    }
    for len in 0..=buffer.bytes.len() {
        let fenced = Fenced::new(&buffer.bytes[..len]);
        let (seen, end) = both(table, fenced.bytes, library);
        let whole = buffer.records.iter().filter(|(at, kind)| at + table.size(*kind).unwrap() <= len);
        assert_eq!(seen.len(), whole.count(), "{len} bytes");
        let used = seen.last().map_or(0, |(at, size, _)| at + size);
        assert_eq!(end, if used == len { End::Done } else { End::Truncated { at: used } });
    }
}

/// Any bytes give the same records in both ways, and none beyond the buffer.
fn anything(table: &Table, library: Library) {
    let mut random = Random(7);
    for _ in 0..5_000 {
        let len = random.below(1500);
        let fenced = Fenced::new(&random.bytes(len));
        both(table, fenced.bytes, library);
    }
}

/// The functions with a subscriber refuse to be without one. The walk of a subscriber's buffers
/// follows its handle (a handle that points nowhere crashes it), and where nothing was chosen, it
/// walks like that of all releases: what is behind the handle is the library's own business, here
/// it is zeroes.
fn for_subscribers(table: &Table, cupti: &Cupti) {
    let (Some(next), Some(time), Some(dropped)) =
        (cupti.cuptiActivityGetNextRecord_v2, cupti.cuptiGetTimestamp_v2, cupti.cuptiActivityGetNumDroppedRecords_v2)
    else {
        return;
    };
    let (mut stamp, mut lost, mut record) = (0, 0, ptr::null_mut());
    let mut bytes = [0_u8; 64];
    // SAFETY: what is written to is writable; the library answers that there is no subscriber.
    unsafe {
        let none = ptr::null_mut();
        assert_eq!(time(none, &raw mut stamp), CUPTI_ERROR_INVALID_PARAMETER);
        assert_eq!(dropped(none, ptr::null_mut(), 0, &raw mut lost), CUPTI_ERROR_INVALID_PARAMETER);
        assert_eq!(next(none, bytes.as_mut_ptr(), 64, &raw mut record), CUPTI_ERROR_INVALID_PARAMETER);
    }
    let mut handle = vec![0_u64; 8192];
    // SAFETY: the library reads a few words behind the handle, and finds that no fields were
    // chosen.
    let walker = unsafe { Library::of_subscriber(handle.as_mut_ptr().cast(), next) };
    records(table, walker);
}

/// What tracing answers where there is no driver, and that nothing crashes. Releases that have our
/// driver are not asked: it is not enough for that.
fn without_driver(cupti: &Cupti, from: u32) {
    unsafe extern "C" fn ignore(_: *mut c_void, _: CUpti_CallbackDomain, _: CUpti_CallbackId, _: *const c_void) {}
    if from >= WITH_DRIVER || load::is_mapped(c"libcuda.so.1") {
        return;
    }
    let expected = if from < 130_000 { CUPTI_ERROR_NOT_INITIALIZED } else { CUPTI_ERROR_UNKNOWN };
    let mut subscriber = ptr::null_mut();
    // SAFETY: the function does nothing with what it is given; the handle is written before the
    // call returns.
    let result = unsafe { (cupti.cuptiSubscribe)(&raw mut subscriber, Some(ignore), ptr::null_mut()) };
    assert_eq!(result, expected);
    // SAFETY: these releases refuse without a driver.
    assert_eq!(unsafe { (cupti.cuptiActivityEnable)(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) }, expected);
    let mut text = ptr::null();
    // SAFETY: the string is written before the call returns, and is CUPTI's for good.
    let name = unsafe {
        assert_eq!((cupti.cuptiGetResultString.unwrap())(expected, &raw mut text), CUPTI_SUCCESS);
        CStr::from_ptr(text)
    };
    let known = [c"CUPTI_ERROR_NOT_INITIALIZED", c"CUPTI_ERROR_UNKNOWN"];
    assert!(known.contains(&name), "{name:?}");
}
