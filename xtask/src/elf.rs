//! What a built library or program exports, and what it requires from the loader.

use std::fs;
use std::path::Path;

use object::Endianness;
use object::elf::{
    DF_1_NODELETE, DT_FLAGS_1, DT_NEEDED, DT_SONAME, FileHeader64, SHT_DYNSYM, SHT_SYMTAB, STB_LOCAL, STT_OBJECT,
};
use object::read::elf::{FileHeader, SectionHeader, Sym};

/// The interface versions that NCCL may look up.
pub(crate) const INTERFACES: std::ops::RangeInclusive<u32> = 1..=7;

/// The prefix of all other names that the plugin may export: its own C interface.
const OWN_PREFIX: &str = "ncclscope_";
/// The entry point that CUDA looks up in an injected library.
const INJECTION: &str = "InitializeInjection";

/// Libraries that every Linux has; any other would have to be installed.
const LIBRARIES: [&str; 6] = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1"];
const LOADER_PREFIX: &str = "ld-linux";

/// The dynamic part of an ELF file.
#[derive(Debug, Default)]
pub(crate) struct Library {
    pub(crate) soname: Option<String>,
    pub(crate) needed: Vec<String>,
    /// Whether it stays in the process once loaded.
    pub(crate) stays: bool,
    pub(crate) exports: Vec<Export>,
    /// The symbol versions it needs, such as `GLIBC_2.28`.
    pub(crate) versions: Vec<String>,
    /// Whether it contains nothing that only a debugger reads.
    pub(crate) stripped: bool,
}

/// An exported symbol.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) name: String,
    /// Whether it is data, not a function.
    pub(crate) object: bool,
}

impl Library {
    pub(crate) fn read(path: &Path) -> Result<Library, String> {
        let explain = |error: &dyn std::error::Error| format!("failed to read {}: {error}", path.display());
        let data = fs::read(path).map_err(|error| explain(&error))?;
        parse(&data).map_err(|error| explain(&error))
    }

    /// The problems that keep it from being a plugin that NCCL loads.
    pub(crate) fn as_plugin(&self) -> Vec<String> {
        let mut problems = self.foreign_libraries();
        for interface in INTERFACES {
            let name = format!("ncclProfiler_v{interface}");
            match self.exports.iter().find(|export| export.name == name) {
                None => problems.push(format!("{name} is not exported")),
                Some(export) if !export.object => problems.push(format!("{name} is not data")),
                Some(_) => {}
            }
        }
        if !self.exports.iter().any(|export| export.name == INJECTION) {
            problems.push(format!("{INJECTION} is not exported"));
        }
        for Export { name, .. } in &self.exports {
            if !name.starts_with("ncclProfiler_v") && !name.starts_with(OWN_PREFIX) && name != INJECTION {
                problems.push(format!("{name} is exported"));
            }
        }
        if self.soname.as_deref() != Some("libncclscope.so") {
            problems.push(format!("its SONAME is {:?}", self.soname));
        }
        if !self.stays {
            problems.push("it lacks the flag NODELETE".to_owned());
        }
        problems
    }

    /// The libraries it needs but should not.
    pub(crate) fn foreign_libraries(&self) -> Vec<String> {
        let foreign =
            self.needed.iter().filter(|name| !LIBRARIES.contains(&name.as_str()) && !name.starts_with(LOADER_PREFIX));
        foreign.map(|name| format!("it needs {name}")).collect()
    }

    /// The symbol versions it needs from a glibc newer than `limit`.
    pub(crate) fn newer_than_glibc(&self, limit: (u32, u32)) -> Vec<String> {
        let newer = self.versions.iter().filter(|version| {
            version.strip_prefix("GLIBC_").is_some_and(|number| {
                // GLIBC_PRIVATE and the like are not versions at all.
                glibc_version(number).is_none_or(|version| version > limit)
            })
        });
        newer.map(|version| format!("it needs {version}")).collect()
    }
}

/// `2.2.5` is (2, 2): no two releases differ only in a third number.
fn glibc_version(number: &str) -> Option<(u32, u32)> {
    let mut parts = number.split('.').map(str::parse);
    match (parts.next()?, parts.next()?) {
        (Ok(major), Ok(minor)) => Some((major, minor)),
        _ => None,
    }
}

fn parse(data: &[u8]) -> object::read::Result<Library> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();

    let mut library = Library::default();
    let dynamic = sections.dynamic_table(endian, data)?;
    for entry in &dynamic {
        match entry.tag {
            DT_SONAME => library.soname = Some(text(dynamic.string(entry)?)),
            DT_NEEDED => library.needed.push(text(dynamic.string(entry)?)),
            DT_FLAGS_1 => library.stays = entry.val & DF_1_NODELETE.0 != 0,
            _ => {}
        }
    }

    library.stripped = !sections.iter().any(|section| {
        let name = sections.section_name(endian, section).unwrap_or_default();
        let is_debug = name.starts_with(b".debug_") || name.starts_with(b".zdebug_");
        // The scripts for gdb are a few bytes, and are loaded with the program.
        section.sh_type(endian) == SHT_SYMTAB || is_debug && name != b".debug_gdb_scripts"
    });

    let symbols = sections.symbols(endian, data, SHT_DYNSYM)?;
    for symbol in symbols.iter() {
        if !symbol.is_undefined(endian) && symbol.st_bind() != STB_LOCAL {
            library.exports.push(Export {
                name: text(symbol.name(endian, symbols.strings())?),
                object: symbol.st_type() == STT_OBJECT,
            });
        }
    }

    if let Some((needs, link)) = sections.gnu_verneed(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        for need in needs {
            let (_, versions) = need?;
            for version in versions {
                library.versions.push(text(version?.name(endian, strings)?));
            }
        }
    }
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_read() {
        let this = Library::read(&std::env::current_exe().unwrap()).unwrap();
        assert!(this.needed.iter().any(|name| name == "libc.so.6"));
        assert!(this.versions.iter().any(|name| name.starts_with("GLIBC_2.")));
        assert_eq!(this.foreign_libraries(), [""; 0]);
        assert!(!this.stays && !this.stripped);
    }

    #[test]
    fn a_program_is_no_plugin() {
        let this = Library::read(&std::env::current_exe().unwrap()).unwrap();
        let problems = this.as_plugin();
        for problem in [
            "ncclProfiler_v1 is not exported",
            "ncclProfiler_v7 is not exported",
            "its SONAME is None",
            "it lacks the flag NODELETE",
        ] {
            assert!(problems.iter().any(|found| found == problem), "{problem}");
        }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let library = Library {
            versions: ["GLIBC_2.2.5", "GLIBC_2.28", "GLIBC_2.34", "GLIBC_PRIVATE", "GCC_3.0"].map(str::to_owned).into(),
            ..Library::default()
        };
        assert_eq!(library.newer_than_glibc((2, 28)), ["it needs GLIBC_2.34", "it needs GLIBC_PRIVATE"]);
    }
}
