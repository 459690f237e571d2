//! Reads structures from DWARF debug information: only what [`super::layout`] asks for, and only
//! until it is found.

use std::rc::Rc;

use gimli::{AttributeValue, DwTag, Section, UnitOffset, constants};

use super::Unsuitable;
use super::elf::Image;

type Slice<'a> = gimli::EndianSlice<'a, gimli::LittleEndian>;
type Unit<'a> = gimli::Unit<Slice<'a>>;
type Entry<'u, 'a> = gimli::DebuggingInformationEntry<'u, 'u, Slice<'a>>;

/// A chain of typedefs and qualifiers longer than this is broken.
const MAX_CHAIN: usize = 64;

/// Unnamed structures, or arrays, nested deeper than this are broken.
const MAX_NESTING: usize = 8;

/// The debug information of a library.
pub(super) struct Debug<'a> {
    dwarf: gimli::Dwarf<Slice<'a>>,
}

/// A structure that is defined there.
pub(super) struct Structure<'d, 'a> {
    debug: &'d Debug<'a>,
    unit: Rc<Unit<'a>>,
    offset: UnitOffset,
    name: String,
}

/// Where a member lies in a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Member {
    /// On bytes of its own.
    Bytes {
        /// In bytes.
        offset: u64,
        /// In bytes; 0 when the debug information does not say.
        size: u64,
    },
    /// A bit field.
    Bits {
        /// The offset of its lowest bit, counted from the lowest bit of the structure's first
        /// byte.
        offset: u64,
        /// In bits.
        width: u64,
    },
}

impl<'a> Debug<'a> {
    /// The debug information of `image`.
    pub(super) fn of(image: &Image<'a>) -> Result<Debug<'a>, Unsuitable> {
        let section = |id: gimli::SectionId| Ok(Slice::new(image.debug_section(id.name())?, gimli::LittleEndian));
        let dwarf = gimli::Dwarf::load::<_, Unsuitable>(section)?;
        if dwarf.debug_info.reader().is_empty() {
            return Err(Unsuitable::NoDebugInformation);
        }
        Ok(Debug { dwarf })
    }

    /// Finds the definitions of these structures at file scope. Stops reading when all are found.
    pub(super) fn structures<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<[Option<Structure<'_, 'a>>; N], Unsuitable> {
        let mut found = [const { None }; N];
        let mut missing = N;
        let mut units = self.dwarf.units();
        while let Some(header) = units.next()? {
            let unit = Rc::new(self.dwarf.unit(header)?);
            let root = unit.entries().next_dfs()?.map(|(_, root)| root.offset());
            let Some(root) = root else { continue };
            children(&unit, root, |entry| {
                if is_structure(entry.tag())
                    && let Some(name) = self.name(&unit, entry)?
                    && let Some(index) = names.iter().position(|wanted| wanted.as_bytes() == name)
                    && found[index].is_none()
                    // A declaration has none.
                    && entry.attr(constants::DW_AT_byte_size)?.is_some()
                {
                    let name = names[index].to_owned();
                    found[index] =
                        Some(Structure { debug: self, unit: Rc::clone(&unit), offset: entry.offset(), name });
                    missing -= 1;
                }
                Ok((missing == 0).then_some(()))
            })?;
            if missing == 0 {
                break;
            }
        }
        Ok(found)
    }

    fn name(&self, unit: &Unit<'a>, entry: &Entry<'_, 'a>) -> Result<Option<&'a [u8]>, gimli::Error> {
        match entry.attr_value(constants::DW_AT_name)? {
            Some(value) => Ok(Some(self.dwarf.attr_string(unit, value)?.slice())),
            None => Ok(None),
        }
    }
}

impl<'a> Structure<'_, 'a> {
    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its size in bytes.
    pub(super) fn size(&self) -> Result<usize, Unsuitable> {
        Ok(size(&self.unit, self.offset, MAX_NESTING)? as usize)
    }

    /// Where the member at `path` is. The path has names with dots between, and skips unnamed
    /// members.
    pub(super) fn member(&self, path: &str) -> Result<Option<Member>, Unsuitable> {
        let (mut structure, mut base) = (self.offset, 0);
        let mut names = path.split('.').peekable();
        while let Some(name) = names.next() {
            match self.find(structure, name, base, MAX_NESTING)? {
                Some((member, _)) if names.peek().is_none() => return Ok(Some(member)),
                Some((Member::Bytes { offset, .. }, Some(kind))) => (structure, base) = (kind, offset),
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// The name of the structure that the member `name` points to.
    pub(super) fn target(&self, name: &str) -> Result<String, Unsuitable> {
        let Some((_, kind)) = self.find(self.offset, name, 0, MAX_NESTING)? else {
            return Err(Unsuitable::MissingMember { structure: self.name.clone(), member: name.to_owned() });
        };
        if let Some(pointer) = kind.map(|kind| self.unit.entry(kind)).transpose()?
            && pointer.tag() == constants::DW_TAG_pointer_type
            && let Some(target) = type_of(&self.unit, &pointer)?
            && let Some(name) = self.debug.name(&self.unit, &self.unit.entry(target)?)?
        {
            return Ok(String::from_utf8_lossy(name).into_owned());
        }
        Err(Unsuitable::OtherMember {
            structure: self.name.clone(),
            member: name.to_owned(),
            expected: "a pointer to a structure".to_owned(),
            found: "something else".to_owned(),
        })
    }

    /// Finds the member `name` of the structure at `structure`, which lies `base` bytes into this
    /// one. Looks into unnamed members and base classes too. Returns the member's type as well.
    fn find(
        &self,
        structure: UnitOffset,
        name: &str,
        base: u64,
        nesting: usize,
    ) -> Result<Option<(Member, Option<UnitOffset>)>, gimli::Error> {
        if nesting == 0 {
            return Ok(None);
        }
        let unit = &*self.unit;
        children(unit, structure, |entry| {
            let its_name = match entry.tag() {
                constants::DW_TAG_member => self.debug.name(unit, entry)?,
                constants::DW_TAG_inheritance => None,
                _ => return Ok(None),
            };
            let kind = type_of(unit, entry)?;
            match (its_name, kind) {
                (Some(its_name), _) if its_name == name.as_bytes() => {
                    let size = kind.map_or(Ok(0), |kind| size(unit, kind, MAX_NESTING))?;
                    Ok(Some((place(entry, base, size)?, kind)))
                }
                (None, Some(kind)) if is_structure(unit.entry(kind)?.tag()) => {
                    self.find(kind, name, base.saturating_add(location(entry)?), nesting - 1)
                }
                _ => Ok(None),
            }
        })
    }
}

fn is_structure(tag: DwTag) -> bool {
    matches!(tag, constants::DW_TAG_structure_type | constants::DW_TAG_class_type | constants::DW_TAG_union_type)
}

/// Calls `visit` for each child of the entry at `parent` until it returns a value.
fn children<'a, T>(
    unit: &Unit<'a>,
    parent: UnitOffset,
    mut visit: impl FnMut(&Entry<'_, 'a>) -> Result<Option<T>, gimli::Error>,
) -> Result<Option<T>, gimli::Error> {
    let mut entries = unit.entries_at_offset(parent)?;
    entries.next_dfs()?;
    if entries.next_dfs()?.is_none_or(|(depth, _)| depth != 1) {
        return Ok(None);
    }
    while let Some(entry) = entries.current() {
        if let Some(answer) = visit(entry)? {
            return Ok(Some(answer));
        }
        if entries.next_sibling()?.is_none() {
            break;
        }
    }
    Ok(None)
}

/// The entry of the type of `entry`, without typedefs and qualifiers. A type in another unit is
/// not followed; only link-time optimisation and compressed debug information produce those.
fn type_of<'a>(unit: &Unit<'a>, entry: &Entry<'_, 'a>) -> Result<Option<UnitOffset>, gimli::Error> {
    let reference = |value| match value {
        Some(AttributeValue::UnitRef(offset)) => Some(offset),
        _ => None,
    };
    let mut kind = reference(entry.attr_value(constants::DW_AT_type)?);
    for _ in 0..MAX_CHAIN {
        let Some(offset) = kind else { return Ok(None) };
        let entry = unit.entry(offset)?;
        match entry.tag() {
            constants::DW_TAG_typedef
            | constants::DW_TAG_const_type
            | constants::DW_TAG_volatile_type
            | constants::DW_TAG_restrict_type
            | constants::DW_TAG_atomic_type => kind = reference(entry.attr_value(constants::DW_AT_type)?),
            _ => return Ok(Some(offset)),
        }
    }
    Ok(None)
}

/// The size in bytes of the type at `offset`, or 0 when it does not say.
fn size(unit: &Unit<'_>, offset: UnitOffset, nesting: usize) -> Result<u64, gimli::Error> {
    let entry = unit.entry(offset)?;
    if let Some(size) = unsigned(&entry, constants::DW_AT_byte_size)? {
        return Ok(size);
    }
    match entry.tag() {
        constants::DW_TAG_pointer_type => Ok(unit.encoding().address_size.into()),
        constants::DW_TAG_array_type if nesting > 0 => {
            let mut total = type_of(unit, &entry)?.map_or(Ok(0), |element| size(unit, element, nesting - 1))?;
            children(unit, offset, |dimension| {
                if dimension.tag() == constants::DW_TAG_subrange_type {
                    let count = match unsigned(dimension, constants::DW_AT_count)? {
                        Some(count) => count,
                        None => {
                            unsigned(dimension, constants::DW_AT_upper_bound)?.map_or(0, |last| last.wrapping_add(1))
                        }
                    };
                    total = total.saturating_mul(count);
                }
                Ok(None::<()>)
            })?;
            Ok(total)
        }
        _ => Ok(0),
    }
}

/// Where a member lies, if its structure lies at `base` and its type has `size` bytes.
fn place(entry: &Entry<'_, '_>, base: u64, size: u64) -> Result<Member, gimli::Error> {
    let offset = base.saturating_add(location(entry)?);
    let Some(width) = unsigned(entry, constants::DW_AT_bit_size)? else {
        return Ok(Member::Bytes { offset, size });
    };
    let first = offset.saturating_mul(8);
    if let Some(bits) = unsigned(entry, constants::DW_AT_data_bit_offset)? {
        // DWARF 5, and 4 where the compiler uses it: from the structure's start.
        return Ok(Member::Bits { offset: first.saturating_add(bits), width });
    }
    let from_top = entry.attr(constants::DW_AT_bit_offset)?.and_then(|attribute| attribute.sdata_value());
    let Some(from_top) = from_top else { return Ok(Member::Bits { offset: first, width }) };
    // Up to DWARF 4: from the highest bit of a storage unit at the member's location down to the
    // field's highest bit.
    let storage = unsigned(entry, constants::DW_AT_byte_size)?.unwrap_or(size);
    let lowest = i128::from(first) + i128::from(storage) * 8 - i128::from(from_top) - i128::from(width);
    Ok(Member::Bits { offset: u64::try_from(lowest).map_err(|_| gimli::Error::UnsupportedOffset)?, width })
}

/// The offset of a member in bytes. A union's members have none.
fn location(entry: &Entry<'_, '_>) -> Result<u64, gimli::Error> {
    // DWARF 2 has an operation here that adds to the structure's address.
    const ENCODING: gimli::Encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 2 };
    match entry.attr_value(constants::DW_AT_data_member_location)? {
        None => Ok(0),
        Some(AttributeValue::Exprloc(mut expression)) => match gimli::Operation::parse(&mut expression.0, ENCODING)? {
            gimli::Operation::PlusConstant { value } => Ok(value),
            _ => Err(gimli::Error::UnsupportedAttributeForm),
        },
        Some(value) => value.udata_value().ok_or(gimli::Error::UnsupportedAttributeForm),
    }
}

fn unsigned(entry: &Entry<'_, '_>, name: gimli::DwAt) -> Result<Option<u64>, gimli::Error> {
    Ok(entry.attr_value(name)?.and_then(|value| value.udata_value()))
}
