//! Who may use whom. The map is `src/README.md`; this reads the imports and fails with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use it::daemon::repository;

/// The rooms of the daemon that each room may use, and why no others.
const ROOMS: [(&str, &[&str], &str); 22] = [
    (
        "main",
        &["serve", "dev", "document", "doctor"],
        "main reads the arguments and hands over, also in the children that read documents",
    ),
    (
        "serve",
        &[
            "api",
            "archive",
            "session",
            "image",
            "runtime",
            "store",
            "files",
            "catalog",
            "config",
            "operations",
            "doctor",
        ],
        "serve wires the rooms together; dev is beside it",
    ),
    (
        "doctor",
        &["config", "runtime"],
        "doctor looks at the host: of the rooms it knows the settings, and who the launcher is",
    ),
    (
        "dev",
        &["serve", "doctor"],
        "dev starts the programs as an operator would: it knows what a host is, and no room's inside",
    ),
    (
        "api",
        &["session", "archive", "dashboard", "document", "files", "catalog", "config", "store", "operations"],
        "api converts: it does not know the launcher, the init or images; of the store it knows the errors' names",
    ),
    (
        "session",
        &["image", "runtime", "store", "files", "catalog", "config", "operations", "resolver"],
        "session decides and acts; it does not know HTTP",
    ),
    (
        "image",
        &["catalog"],
        "image works through a Machine that it is given: it does not know the launcher, sessions or SQLite",
    ),
    (
        "operations",
        &["store"],
        "operations records what others did, in rows of the store: it knows no session's inside",
    ),
    ("archive", &["files", "document"], "archive looks at directories: it knows no session and no HTTP"),
    ("dashboard", &[], "dashboard is a page, as text: what it shows it asks of the API"),
    ("document", &[], "document starts a child for each document and knows nothing else"),
    ("resolver", &[], "resolver answers for names: it does not know sessions, nor how addresses are permitted"),
    ("runtime", &[], "runtime is two clients: it does not know what they are asked for"),
    ("store", &[], "store is SQLite and knows nothing else"),
    ("files", &[], "files is openat2 and knows nothing else"),
    ("catalog", &[], "catalog is data"),
    (
        "clock",
        &[],
        "clock is the wall clock beside the one that does not jump, which any room may ask: it knows nobody",
    ),
    ("fail", &[], "fail ends the process, at points that any room may pass"),
    ("metrics", &[], "metrics are numbers that any room may count: it knows nobody"),
    ("request", &[], "request is which request a task works for, which any room may ask: it knows nobody"),
    (
        "fuzzing",
        &["catalog", "config", "document", "files", "image", "resolver", "runtime", "serve"],
        "fuzzing hands bytes to the parsers of the rooms; it is in no program",
    ),
    ("config", &["catalog"], "config reads settings; it takes two value types from the catalogue"),
];

/// Rooms that any other may use: each is a point to pass or a figure to count.
const FOR_ALL: [&str; 4] = ["clock", "fail", "metrics", "request"];

/// What each program of the workspace may depend on within it, and what it may not at all.
const CRATES: [(&str, &[&str], &[&str]); 6] = [
    ("wire", &[], &["tokio", "nix", "libc", "rustix"]),
    ("catalog", &["wire"], &["tokio", "libc", "rustix", "hyper", "reqwest"]),
    ("init", &["wire"], &["tokio", "serde_json", "libcontainer"]),
    ("launch", &["wire"], &["tokio", "hyper", "axum", "rusqlite"]),
    ("cli", &["wire", "catalog"], &["libcontainer", "rusqlite", "axum"]),
    ("daemon", &["wire", "catalog"], &["libcontainer", "nix", "caps"]),
];

fn source(relative: &str) -> PathBuf {
    repository().join("src").join(relative)
}

/// Every `.rs` file below a directory.
pub fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// The room of a file of the daemon: `api/run.rs` and `api.rs` belong to `api`.
fn room(file: &Path) -> String {
    let relative = file.strip_prefix(source("daemon/src")).unwrap();
    let first = relative.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// The rooms that a text names: `crate::NAME`, and each name in `crate::{…}`.
fn named(text: &str, rooms: &BTreeSet<&str>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        for (at, _) in line.match_indices("crate::") {
            let rest = &line[at + "crate::".len()..];
            let names: Vec<&str> = match rest.strip_prefix('{') {
                Some(list) => list.split([',', '{', '}']).map(str::trim).map(first_word).collect(),
                None => vec![first_word(rest)],
            };
            found.extend(
                names.into_iter().filter(|name| !FOR_ALL.contains(name) && rooms.contains(name)).map(str::to_owned),
            );
        }
    }
    found
}

fn first_word(text: &str) -> &str {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default()
}

#[test]
fn rooms_of_the_daemon_use_only_what_the_map_allows() {
    let rooms: BTreeSet<&str> = ROOMS.iter().map(|(room, _, _)| *room).collect();
    let allowed: BTreeMap<&str, (&[&str], &str)> = ROOMS.iter().map(|(room, may, why)| (*room, (*may, *why))).collect();
    let mut wrong = Vec::new();
    for file in rust_files(&source("daemon/src")) {
        let own = room(&file);
        let Some((may, why)) = allowed.get(own.as_str()) else {
            wrong.push(format!(
                "{}: the room `{own}` is not on the map: give it a line here and in src/README.md",
                file.display()
            ));
            continue;
        };
        for used in named(&fs::read_to_string(&file).unwrap(), &rooms) {
            if used != own && !may.contains(&used.as_str()) {
                wrong.push(format!("{}: `{own}` uses `{used}`, but {why}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn of_the_store_the_api_knows_the_errors_alone() {
    for file in rust_files(&source("daemon/src/api")) {
        let text = fs::read_to_string(&file).unwrap();
        for line in text.lines().filter(|line| line.contains("crate::store")) {
            assert_eq!(
                line.trim(),
                "use crate::store::StoreError;",
                "{}: api does not know that SQLite exists",
                file.display()
            );
            assert!(file.ends_with("api/error.rs"), "{}: statuses are given in api/error.rs", file.display());
        }
    }
}

#[test]
fn what_holds_privilege_and_what_parses_are_other_crates() {
    let mut wrong = Vec::new();
    for (directory, may, never) in CRATES {
        let manifest = fs::read_to_string(source(directory).join("Cargo.toml")).unwrap();
        let mut section = "";
        for line in manifest.lines().map(str::trim) {
            if line.starts_with('[') {
                section = line;
            }
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            let workspace =
                ["wire", "catalog", "sandboxd", "sandboxd-launch", "sandbox-init", "sandboxctl", "it", "bench"];
            if section.contains("dependencies") && workspace.contains(&name) && !may.contains(&name) {
                wrong.push(format!("src/{directory} depends on {name}: programs meet in `wire`, and the two that read catalogues in `catalog`"));
            }
            if section == "[dependencies]" && never.contains(&name) {
                wrong.push(format!("src/{directory} depends on {name}, which has no business there"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The names of all that a crate is built from, dependencies of dependencies included.
fn tree(package: &str) -> BTreeSet<String> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["tree", "--offline", "--locked", "--package", package, "--edges", "normal", "--prefix", "none"])
        .current_dir(repository())
        .output()
        .expect("cargo tree");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn the_launcher_has_no_runtime_of_threads_in_its_tree() {
    let tree = tree("sandboxd-launch");
    assert!(tree.contains("libcontainer"), "{tree:?}");
    for name in ["tokio", "async-std", "smol", "rayon", "hyper", "axum"] {
        assert!(
            !tree.contains(name),
            "sandboxd-launch has {name} in its tree: libcontainer's child runs on after a raw clone3, and a lock that another thread holds hangs it for ever"
        );
    }
}

#[test]
fn the_init_is_small() {
    let tree = tree("sandbox-init");
    for name in ["tokio", "libcontainer", "serde_json", "nix", "regex"] {
        assert!(!tree.contains(name), "sandbox-init has {name} in its tree: it is PID 1 of every sandbox");
    }
    assert!(tree.len() < 30, "{} crates: {tree:?}", tree.len());
}

#[test]
fn the_daemon_holds_no_tool_of_privilege() {
    let tree = tree("sandboxd");
    for name in ["libcontainer", "libcgroups", "caps", "nix"] {
        assert!(!tree.contains(name), "sandboxd has {name} in its tree: what needs privilege is the launcher's");
    }
}

#[test]
fn the_launcher_creates_no_thread() {
    for file in rust_files(&source("launch/src")) {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        assert!(
            !code.contains("thread::spawn") && !code.contains("thread::Builder"),
            "{}: the launcher has one thread",
            file.display()
        );
    }
}

#[test]
fn nobody_waits_for_any_child_but_the_init() {
    let mut wrong = Vec::new();
    for directory in ["daemon/src", "cli/src"] {
        for file in rust_files(&source(directory)) {
            let text = fs::read_to_string(&file).unwrap();
            for call in ["waitpid(-1", "waitid(WaitId::All", "WaitId::All"] {
                if text.contains(call) {
                    wrong.push(format!(
                        "{}: {call}: two places that wait for children steal each other's statuses",
                        file.display()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What a manifest depends on, by name, of its sections of that name.
fn dependencies(manifest: &str, sections: &[&str]) -> BTreeSet<String> {
    let mut section = "";
    let mut found = BTreeSet::new();
    for line in manifest.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line.starts_with('[') {
            section = line;
        } else if sections.contains(&section) {
            found.extend(line.split(['.', ' ', '=']).next().map(str::to_owned));
        }
    }
    found
}

#[test]
fn the_fuzz_targets_are_built_of_what_the_programs_are() {
    for directory in ["daemon", "init", "launch"] {
        let own = fs::read_to_string(source(directory).join("Cargo.toml")).unwrap();
        let fuzzed = fs::read_to_string(repository().join("fuzz").join(directory).join("Cargo.toml")).unwrap();
        let (own, tested) = (dependencies(&own, &["[dependencies]"]), dependencies(&own, &["[dev-dependencies]"]));
        let fuzzed = dependencies(&fuzzed, &["[dependencies]"]);
        let missing: Vec<_> = own.difference(&fuzzed).collect();
        let surplus: Vec<_> = fuzzed.iter().filter(|name| !own.contains(*name) && !tested.contains(*name)).collect();
        assert!(
            missing.is_empty() && surplus.is_empty(),
            "fuzz/{directory}/Cargo.toml repeats what src/{directory}/Cargo.toml has: add {missing:?}, remove {surplus:?}"
        );
    }
}
