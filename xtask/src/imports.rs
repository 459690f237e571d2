//! Checks the imports in `src` against the table of ARCHITECTURE.md, and that no files import each
//! other in a circle. Tests may import anything, and a file may import whatever its parent file
//! has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::buffer::{Cursor, TokenBuffer};
use syn::visit::{self, Visit};

use crate::steps::{Failure, Outcome, Place};

/// Modules below `crate`, such as `clock::host`.
type Paths = BTreeSet<String>;
/// The files that each file imports, by their modules.
type Files = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

pub(crate) fn check(place: &Place) -> Result<Outcome, Failure> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let table = table(&read(&place.root.join("ARCHITECTURE.md"))?)?;
    let (found, files) = imports(&place.root.join("src"))?;
    let mut problems = problems(&table, &found);
    problems
        .extend(circle(&files).map(|circle| format!("files import each other in a circle: {}", circle.join(" -> "))));
    if problems.is_empty() { Ok(Outcome::Done) } else { Err(problems.join("\n").into()) }
}

/// The modules that each module may import. The table's first and third columns name modules, in
/// backticks.
fn table(text: &str) -> Result<BTreeMap<String, Paths>, String> {
    let names = |cell: &str| -> Paths { cell.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let rows = text.lines().skip_while(|line| !line.starts_with("| module |")).skip(2);
    let mut table = BTreeMap::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').collect();
        let [_, modules, _, imports, _] = cells[..] else { return Err(format!("no row of the table: {row}")) };
        table.extend(names(modules).into_iter().map(|module| (module, names(imports))));
    }
    if table.is_empty() { Err("ARCHITECTURE.md has no table of modules".into()) } else { Ok(table) }
}

/// Imports that the table does not allow, and allowed ones that nobody uses.
fn problems(table: &BTreeMap<String, Paths>, found: &BTreeMap<String, BTreeMap<String, PathBuf>>) -> Vec<String> {
    let mut problems = Vec::new();
    for (module, imports) in found {
        let Some(allowed) = table.get(module) else {
            problems.push(format!("the table of ARCHITECTURE.md does not have the module {module}"));
            continue;
        };
        let covers = |allowed: &str, import: &str| import == allowed || import.starts_with(&format!("{allowed}::"));
        for (import, file) in imports {
            // `use crate::sys::{self, pipe}` and `use crate::sys` are imports of `sys`; an import
            // of the whole module needs permission for the whole module.
            if !allowed.iter().any(|allowed| covers(allowed, import)) {
                problems.push(format!("{} imports {import}, which {module} may not", file.display()));
            }
        }
        for allowed in allowed.iter().filter(|allowed| !imports.keys().any(|import| covers(allowed, import))) {
            problems.push(format!("{module} may import {allowed}, and does not: take it out of the table"));
        }
    }
    problems
}

/// A circle of files, if there is one.
fn circle(files: &Files) -> Option<Vec<String>> {
    fn search<'f>(
        files: &'f Files,
        at: &'f [String],
        way: &mut Vec<&'f [String]>,
        done: &mut BTreeSet<&'f [String]>,
    ) -> bool {
        if let Some(before) = way.iter().position(|file| *file == at) {
            way.drain(..before);
            way.push(at);
            return true;
        }
        if done.contains(at) {
            return false;
        }
        way.push(at);
        if files.get(at).into_iter().flatten().any(|next| search(files, next, way, done)) {
            return true;
        }
        way.pop();
        done.insert(at);
        false
    }
    let (mut way, mut done) = (Vec::new(), BTreeSet::new());
    let found = files.keys().any(|file| search(files, file, &mut way, &mut done));
    found.then(|| way.iter().map(|file| file.join("::")).collect())
}

/// The files that a file's imports lead to: those below it and those that it names, except for
/// those above it.
fn resolve(file: &[String], named: &BTreeSet<Vec<String>>, known: &BTreeSet<Vec<String>>) -> BTreeSet<Vec<String>> {
    let mut found: BTreeSet<Vec<String>> =
        known.iter().filter(|it| it.split_last().is_some_and(|(_, above)| above == file)).cloned().collect();
    for parts in named {
        let mut base = if parts[0] == "crate" { Vec::new() } else { file.to_vec() };
        for part in parts {
            match part.as_str() {
                "super" => drop(base.pop()),
                "crate" | "self" => {}
                name => base.push(name.to_owned()),
            }
        }
        while !base.is_empty() && !known.contains(&base) {
            base.pop();
        }
        if !base.is_empty() && !file.starts_with(&base) {
            found.insert(base);
        }
    }
    found
}

/// The imports of each module, without its tests, each with a file that has it; and the imports of
/// each file.
#[allow(clippy::type_complexity)]
fn imports(src: &Path) -> Result<(BTreeMap<String, BTreeMap<String, PathBuf>>, Files), String> {
    let (mut found, mut named) = (BTreeMap::new(), Files::new());
    let root = parse(&src.join("lib.rs"))?;
    let names: Paths = modules(&root.items).map(|module| module.ident.to_string()).collect();
    for module in &names {
        let mut imports = BTreeMap::new();
        follow(&file_of(src, module), std::slice::from_ref(module), &names, &mut imports, &mut named)?;
        found.insert(module.clone(), imports);
    }
    let known: BTreeSet<Vec<String>> = named.keys().cloned().collect();
    let files = named.iter().map(|(file, named)| (file.clone(), resolve(file, named, &known))).collect();
    Ok((found, files))
}

/// Collects the imports of a file and of the modules below it.
fn follow(
    path: &Path,
    module: &[String],
    names: &Paths,
    imports: &mut BTreeMap<String, PathBuf>,
    files: &mut Files,
) -> Result<(), String> {
    let file = parse(path)?;
    let mut seen = Seen::default();
    seen.visit_file(&file);
    files.insert(module.to_vec(), seen.named);
    for import in seen.modules {
        let first = import.split("::").next().unwrap_or_default();
        if first != module[0] && names.contains(first) {
            imports.entry(import).or_insert_with(|| path.to_owned());
        }
    }
    let is_folder = path.file_name().is_some_and(|name| name == "mod.rs");
    let folder = if is_folder { path.parent().map(Path::to_owned) } else { Some(path.with_extension("")) };
    for below in modules(&file.items).filter(|below| below.content.is_none()) {
        let below = below.ident.to_string();
        let path = file_of(folder.as_deref().unwrap_or(path), &below);
        follow(&path, &[module, &[below]].concat(), names, imports, files)?;
    }
    Ok(())
}

fn parse(path: &Path) -> Result<syn::File, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    syn::parse_file(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn file_of(folder: &Path, module: &str) -> PathBuf {
    let file = folder.join(module).with_extension("rs");
    if file.exists() { file } else { folder.join(module).join("mod.rs") }
}

/// The modules that a file declares, except for tests and loom's replacements.
fn modules(items: &[syn::Item]) -> impl Iterator<Item = &syn::ItemMod> {
    items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) if !is_left_out(&module.attrs) => Some(module),
        _ => None,
    })
}

/// Whether an item is compiled for tests only, or has another path under loom.
fn is_left_out(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let words = match &attribute.meta {
            syn::Meta::List(list) if attribute.path().is_ident("cfg") => list.tokens.to_string(),
            _ => String::new(),
        };
        let is_for_tests = words == "test" || words.starts_with("all (test");
        is_for_tests || attribute.path().is_ident("path")
    })
}

/// The modules that a file names.
#[derive(Default)]
struct Seen {
    /// Below `crate`, two levels deep.
    modules: Paths,
    /// Starting with `crate`, `self` or `super`.
    named: BTreeSet<Vec<String>>,
}

impl Seen {
    /// Records a path's parts after `crate`: modules are in lower case.
    fn take(&mut self, parts: &[String]) {
        let is_module = |part: &&String| part.starts_with(|letter: char| letter.is_lowercase());
        let named: Vec<String> = parts.iter().take_while(is_module).cloned().collect();
        let [first, rest @ ..] = &named[..] else { return };
        if first == "crate" && !rest.is_empty() {
            self.modules.insert(rest[..rest.len().min(2)].join("::"));
        }
        if matches!(first.as_str(), "crate" | "self" | "super") {
            self.named.insert(named);
        }
    }

    fn tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) if name.ident == "self" => self.take(before),
            syn::UseTree::Name(name) => self.take(&with(&name.ident)),
            syn::UseTree::Rename(name) => self.take(&with(&name.ident)),
            syn::UseTree::Glob(_) => self.take(before),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before, tree)),
        }
    }

    /// Finds paths among the tokens of a macro, which need not be Rust's syntax.
    fn tokens(&mut self, mut at: Cursor<'_>) {
        while !at.eof() {
            if let Some((inside, _, _, after)) = at.any_group() {
                self.tokens(inside);
                at = after;
            } else if let Some((first, mut after)) = at.ident() {
                let mut parts = vec![first.to_string()];
                while let Some((part, next)) = colons(after).and_then(Cursor::ident) {
                    parts.push(part.to_string());
                    after = next;
                }
                self.take(&parts);
                at = after;
            } else if let Some((_, after)) = at.token_tree() {
                at = after;
            }
        }
    }
}

/// What follows after `::`.
fn colons(at: Cursor<'_>) -> Option<Cursor<'_>> {
    colon(at).and_then(colon)
}

fn colon(at: Cursor<'_>) -> Option<Cursor<'_>> {
    at.punct().filter(|(punct, _)| punct.as_char() == ':').map(|(_, after)| after)
}

impl<'a> Visit<'a> for Seen {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if !is_left_out(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'a syn::ItemFn) {
        if !is_left_out(&function.attrs) {
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        if !is_left_out(&item.attrs) {
            self.tree(&[], &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.take(&parts);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.tokens(TokenBuffer::new2(call.tokens.clone()).begin());
        visit::visit_macro(self, call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(code: &str) -> Vec<String> {
        let mut seen = Seen::default();
        seen.visit_file(&syn::parse_file(code).unwrap());
        seen.modules.into_iter().collect()
    }

    #[test]
    fn imports_are_found_everywhere_except_in_tests() {
        let code = "use crate::sys::{self, pipe}; use crate::{model::ids::Handle, clock as time}; use std::fs;
            fn f() { crate::record::recorder::go(); let _: crate::memory::Heap; }
            #[cfg(test)] mod tests { use crate::cli; }
            #[cfg(feature = \"cli\")] mod below { use crate::import; }
            fn g() { format!(\"{} crate::capture\", [crate::trace::names::size(1)]); }
            macro_rules! m { ($it:ident) => { $crate::summary::rows::$it() } }";
        let all = [
            "clock",
            "import",
            "memory",
            "model::ids",
            "record::recorder",
            "summary::rows",
            "sys",
            "sys::pipe",
            "trace::names",
        ];
        assert_eq!(seen(code), all);
    }

    #[test]
    fn a_circle_of_imports_is_found_and_imports_from_the_parent_make_none() {
        let file = |path: &str| path.split("::").map(str::to_owned).collect::<Vec<_>>();
        let found = |code: &[(&str, &str)]| {
            let named: Files = code
                .iter()
                .map(|(path, code)| {
                    let mut seen = Seen::default();
                    seen.visit_file(&syn::parse_file(code).unwrap());
                    (file(path), seen.named)
                })
                .collect();
            let known = named.keys().cloned().collect();
            circle(&named.iter().map(|(file, named)| (file.clone(), resolve(file, named, &known))).collect())
        };
        let above = ("a::x", "use super::{A, helper}; fn f() { super::super::b::g() }");
        assert_eq!(found(&[("a", "use self::x::X;"), above, ("b", "use crate::model::M;")]), None);
        assert_eq!(
            found(&[("a", "use self::x::X;"), above, ("b", "use crate::a::A;")]).unwrap(),
            ["a", "a::x", "b", "a"]
        );
        let siblings = [("a", ""), ("a::x", "use super::y::Y;"), ("a::y", "use crate::a::{A, x::X};")];
        assert_eq!(found(&siblings).unwrap(), ["a::x", "a::y", "a::x"]);
    }

    #[test]
    fn forbidden_and_unused_imports_are_reported() {
        let text = "| module | what | may import |\n| --- | --- | --- |\n| `a`, `b` | x `y` | `sys`, `clock::host` |\n\n| `c` |";
        let table = table(text).unwrap();
        assert_eq!(table.keys().collect::<Vec<_>>(), ["a", "b"]);
        let file = || PathBuf::from("a.rs");
        let imports = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), file())).collect();
        let found = BTreeMap::from([("a".to_owned(), imports(&["sys::pipe", "clock::host"]))]);
        assert!(problems(&table, &found).is_empty());
        let found = BTreeMap::from([
            ("a".to_owned(), imports(&["sys", "clock", "clock::host"])),
            ("b".to_owned(), imports(&["sys"])),
            ("c".to_owned(), imports(&[])),
        ]);
        assert_eq!(
            problems(&table, &found),
            [
                "a.rs imports clock, which a may not",
                "b may import clock::host, and does not: take it out of the table",
                "the table of ARCHITECTURE.md does not have the module c",
            ]
        );
    }
}
