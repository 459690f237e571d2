//! The file of a library: its machine, its sections, its build id, its symbols.

use std::ops::Range;

use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{FileKind, LittleEndian, Object, ObjectSection, ObjectSymbol, SymbolKind, elf};

use super::Unsuitable;
use super::symbols::{Kind, Symbol};

/// The place of the byte order in a file.
const BYTE_ORDER: usize = 5;

/// The file of a library for this machine.
pub(super) struct Image<'a> {
    file: ElfFile64<'a, LittleEndian>,
}

impl<'a> Image<'a> {
    /// Parses the headers of a file.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Image<'a>, Unsuitable> {
        let not_a_library = |found: &str| Unsuitable::NotALibrary { found: found.to_owned() };
        match FileKind::parse(bytes) {
            Ok(FileKind::Elf64) => {}
            Ok(FileKind::Elf32) => return Err(Unsuitable::OtherMachine { found: "a 32-bit machine".to_owned() }),
            Ok(other) => return Err(not_a_library(&format!("its format is {other:?}"))),
            Err(_) if bytes.is_empty() => return Err(not_a_library("it is empty")),
            Err(_) if bytes.starts_with(b"INPUT") || bytes.starts_with(b"/*") || bytes.starts_with(b"GROUP") => {
                return Err(not_a_library("it is a linker script"));
            }
            Err(_) => return Err(not_a_library("it does not begin as one")),
        }
        if bytes.get(BYTE_ORDER) == Some(&elf::ELFDATA2MSB.0) {
            return Err(Unsuitable::OtherMachine { found: "a big-endian machine".to_owned() });
        }
        let file =
            ElfFile64::<LittleEndian>::parse(bytes).map_err(|error| not_a_library(&format!("broken: {error}")))?;
        let header = file.elf_header();
        match header.e_machine(LittleEndian) {
            elf::EM_X86_64 => {}
            elf::EM_AARCH64 => return Err(Unsuitable::OtherMachine { found: "arm64".to_owned() }),
            elf::EM_PPC64 => return Err(Unsuitable::OtherMachine { found: "ppc64le".to_owned() }),
            other => return Err(Unsuitable::OtherMachine { found: format!("machine {other} of ELF's list") }),
        }
        match header.e_type(LittleEndian) {
            elf::ET_DYN => Ok(Image { file }),
            elf::ET_REL => Err(not_a_library("it is an object file")),
            elf::ET_EXEC => Err(not_a_library("it is a program")),
            elf::ET_CORE => Err(not_a_library("it is a core dump")),
            other => Err(not_a_library(&format!("its type is {other}"))),
        }
    }

    /// The build id in hexadecimal, if there is one.
    pub(super) fn build_id(&self) -> Option<String> {
        let id = self.file.build_id().ok()??;
        Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// A section of debug information; empty if it is absent.
    pub(super) fn debug_section(&self, name: &str) -> Result<&'a [u8], Unsuitable> {
        let Some(section) = self.file.section_by_name(name) else { return Ok(&[]) };
        match section.compressed_file_range() {
            Ok(range) if range.format == object::CompressionFormat::None => {}
            _ => return Err(Unsuitable::OtherDebugInformation { found: "compressed" }),
        }
        section.data().map_err(|_| Unsuitable::OtherDebugInformation { found: "cut off" })
    }

    /// The contents of a section of data, if there is one.
    pub(super) fn section(&self, name: &str) -> Option<&'a [u8]> {
        self.file.section_by_name(name)?.data().ok()
    }

    /// The functions and variables in `.symtab`.
    pub(super) fn symbols(&self) -> Result<Vec<Symbol>, Unsuitable> {
        let mut symbols = Vec::new();
        for symbol in self.file.symbols() {
            let kind = match symbol.kind() {
                SymbolKind::Text => Kind::Function,
                SymbolKind::Data => Kind::Variable,
                _ => continue,
            };
            if !symbol.is_definition() || symbol.address() == 0 {
                continue;
            }
            let Ok(name) = symbol.name() else { continue };
            symbols.push(Symbol {
                name: name.into(),
                address: symbol.address() as usize,
                size: symbol.size() as usize,
                kind,
                exported: symbol.is_global(),
            });
        }
        if symbols.is_empty() { Err(Unsuitable::NoSymbolTable) } else { Ok(symbols) }
    }

    /// The address ranges of its instructions, relative to where it is loaded.
    pub(super) fn code(&self) -> Vec<Range<usize>> {
        let segments = self.file.elf_program_headers().iter();
        segments
            .filter(|segment| {
                segment.p_type(LittleEndian) == elf::PT_LOAD && segment.p_flags(LittleEndian).contains(elf::PF_X)
            })
            .map(|segment| {
                let start = segment.p_vaddr(LittleEndian) as usize;
                start..start.saturating_add(segment.p_memsz(LittleEndian) as usize)
            })
            .collect()
    }
}
