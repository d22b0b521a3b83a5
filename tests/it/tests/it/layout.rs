//! How the sources are laid out: sizes, documentation, where `unsafe` may be, words that have no place.

use std::fs;
use std::path::{Path, PathBuf};

use it::daemon::repository;

use crate::layering::rust_files;

/// Longest file, in lines.
const LONGEST: usize = 600;

fn sources() -> Vec<PathBuf> {
    [repository().join("src"), repository().join("tests")].iter().flat_map(|directory| rust_files(directory)).collect()
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[track_caller]
fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn no_file_is_longer_than_a_room() {
    let long = |path: PathBuf| {
        let lines = text(&path).lines().count();
        (lines > LONGEST)
            .then(|| format!("{}: {lines} lines; {LONGEST} is the cap: split it by what it does", path.display()))
    };
    none(&sources().into_iter().filter_map(long).collect::<Vec<_>>());
}

#[test]
fn every_module_says_what_it_is() {
    let silent = |path: PathBuf| {
        let first = text(&path).lines().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned();
        (!first.starts_with("//!")).then(|| format!("{}: begins with {first:?}, not with //!", path.display()))
    };
    none(&sources().into_iter().filter_map(silent).collect::<Vec<_>>());
}

#[test]
fn unsafe_is_in_modules_named_sys() {
    let named_sys =
        |path: &Path| path.components().any(|part| ["sys", "sys.rs"].iter().any(|name| part.as_os_str() == *name));
    let mut wrong = Vec::new();
    for path in sources().into_iter().filter(|path| !named_sys(path)) {
        for (number, line) in text(&path).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if [
                concat!("unsafe", " {"),
                concat!("unsafe", " fn"),
                concat!("unsafe", " impl"),
                concat!("allow(", "unsafe_code"),
            ]
            .iter()
            .any(|word| code.contains(word))
            {
                wrong.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    // A module named sys is let in where it is declared.
    wrong.retain(|line| !line.contains(concat!("allow(", "unsafe_code")) || !declares_sys(line));
    none(&wrong);
}

/// Whether the line after an `allow` declares the module `sys`.
fn declares_sys(found: &str) -> bool {
    let mut parts = found.splitn(3, ':');
    let (Some(path), Some(number)) = (parts.next(), parts.next().and_then(|n| n.parse::<usize>().ok())) else {
        return false;
    };
    let text = text(Path::new(path));
    let mut after = text.lines().skip(number).filter(|line| !line.trim_start().starts_with("//"));
    after.next().is_some_and(|line| {
        line.trim().trim_start_matches("pub ").trim_start_matches("pub(crate) ").starts_with("mod sys")
    })
}

#[test]
fn no_room_is_a_heap() {
    let heap = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let heap = ["utils", "util", "helpers", "misc", "types", "common"].contains(&name.as_str());
        heap.then(|| format!("{}: name the noun", path.display()))
    };
    none(&sources().into_iter().filter_map(heap).collect::<Vec<_>>());
}

#[test]
fn no_word_is_a_vow() {
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("dbg", "!("),
    ];
    let mut wrong = Vec::new();
    for path in sources() {
        for (number, line) in text(&path).lines().enumerate() {
            if let Some(word) = words.iter().find(|word| line.contains(**word)) {
                wrong.push(format!("{}:{}: {word}: do it, or file an issue", path.display(), number + 1));
            }
        }
    }
    none(&wrong);
}

#[test]
fn the_map_names_every_crate_and_every_room() {
    let map = text(&repository().join("src/README.md"));
    let rooms = fs::read_dir(repository().join("src/daemon/src")).unwrap().flatten();
    let crates = fs::read_dir(repository().join("src")).unwrap().flatten();
    for entry in rooms.chain(crates) {
        let name = entry.file_name().to_string_lossy().trim_end_matches(".rs").to_owned();
        if name != "README.md" {
            assert!(
                map.contains(&format!("`{name}")) || map.contains(&format!("{name}/")),
                "src/README.md does not name {name}"
            );
        }
    }
}

#[test]
fn what_the_documents_name_exists() {
    let root = repository();
    let mut documents = vec![root.join("README.md"), root.join("src/README.md")];
    documents.extend(
        fs::read_dir(root.join("docs"))
            .unwrap()
            .flatten()
            .map(|e| e.path())
            .filter(|p| p.extension().is_some_and(|e| e == "md")),
    );
    let mut wrong = Vec::new();
    for document in documents {
        let content = text(&document);
        for (at, _) in content.match_indices("](") {
            let target = content[at + 2..].split([')', '#']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !document.parent().unwrap().join(target).exists() {
                wrong.push(format!("{}: links to {target}, which is not there", document.display()));
            }
        }
    }
    none(&wrong);
}
