//! The symbols of a loaded library: names to addresses and back.

/// A function or variable of the library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) name: Box<str>,
    /// Relative to the library's load address.
    pub(super) address: usize,
    /// In bytes; 0 when the table does not say.
    pub(super) size: usize,
    pub(super) kind: Kind,
    /// Whether it is visible to other libraries, or at least to other object files of this one.
    pub(super) exported: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Function,
    Variable,
}

/// All functions and variables of a loaded library, including those that it does not export.
#[derive(Debug)]
pub struct Symbols {
    base: usize,
    /// By address; among several at one address the best name comes first.
    symbols: Vec<Symbol>,
    /// Indices, by name; among several with one name the best comes first.
    names: Vec<u32>,
}

impl Symbols {
    /// The symbols of a library that is loaded at `base`.
    pub(super) fn new(base: usize, mut symbols: Vec<Symbol>) -> Symbols {
        symbols
            .sort_by(|a, b| (a.address, !a.exported, a.kind, &a.name).cmp(&(b.address, !b.exported, b.kind, &b.name)));
        let mut names: Vec<u32> = (0..symbols.len() as u32).collect();
        names.sort_by_key(|&index| {
            let symbol = &symbols[index as usize];
            (&symbol.name, !symbol.exported, symbol.address)
        });
        Symbols { base, symbols, names }
    }

    /// The name of the symbol that begins at this address.
    pub fn name(&self, address: usize) -> Option<&str> {
        let address = address.checked_sub(self.base)?;
        let index = self.symbols.partition_point(|symbol| symbol.address < address);
        self.symbols.get(index).filter(|symbol| symbol.address == address).map(|symbol| &*symbol.name)
    }

    /// The address of the symbol with this name. Among several static ones it is the lowest.
    pub fn address(&self, name: &str) -> Option<usize> {
        self.named(name).next().map(|symbol| self.base + symbol.address)
    }

    /// The size in bytes of the symbol with this name, if the symbol table says.
    pub fn size(&self, name: &str) -> Option<usize> {
        self.named(name).next().map(|symbol| symbol.size).filter(|&size| size > 0)
    }

    /// The library's load address.
    pub(super) fn base(&self) -> usize {
        self.base
    }

    /// All functions, by address, each with the address at which the next symbol begins.
    pub(super) fn functions(&self) -> impl Iterator<Item = (&Symbol, usize)> {
        self.symbols.iter().enumerate().filter(|(_, symbol)| symbol.kind == Kind::Function).map(|(index, symbol)| {
            let after = self.symbols[index..].iter().map(|other| other.address).find(|&other| other > symbol.address);
            (symbol, after.unwrap_or(symbol.address.saturating_add(symbol.size)))
        })
    }

    fn named<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s Symbol> {
        let first = self.names.partition_point(|&index| *self.symbols[index as usize].name < *name);
        let symbols = self.names[first..].iter().map(|&index| &self.symbols[index as usize]);
        symbols.take_while(move |symbol| *symbol.name == *name)
    }
}
