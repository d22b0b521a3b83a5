//! The dashboard: one page for people, written by hand, and all that it consists of.
//!
//! ```text
//!   page/index.html ─► style.css, icon.svg
//!        └► app.js ─► sessions.js, workspace.js ─► terminal.js, files.js ─► transfer.js, …
//!                └────────┴──► dom.js, text.js, api.js, lines.js
//! ```
//!
//! The files are in the program: the page needs no other host, no build step, and nothing of the disk. What the page knows
//! it asks of the API, as any other client. It makes no HTML out of text: what comes from inside a sandbox is shown as
//! text alone, which [`CONTENT_SECURITY_POLICY`] holds the browser to as well.

use std::sync::OnceLock;

use sha2::{Digest, Sha256};

/// One file of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asset {
    /// Its name beneath `/ui/`.
    pub name: &'static str,
    /// Its media type.
    pub kind: &'static str,
    /// What is in it.
    pub text: &'static str,
}

/// What the page may do: run its own scripts, have its own style, ask its own service, show pictures that it was given.
/// Whatever turns text into HTML or script is refused by the browser (`require-trusted-types-for`).
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' blob: data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// The page itself.
pub const PAGE: Asset =
    Asset { name: "index.html", kind: "text/html; charset=utf-8", text: include_str!("page/index.html") };

macro_rules! assets {
    ($($name:literal: $kind:literal,)*) => {
        [$(Asset { name: $name, kind: $kind, text: include_str!(concat!("page/", $name)) },)*]
    };
}

/// What the page consists of besides.
const ASSETS: [Asset; 18] = assets! {
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "app.js": "text/javascript; charset=utf-8",
    "activity.js": "text/javascript; charset=utf-8",
    "api.js": "text/javascript; charset=utf-8",
    "dialogs.js": "text/javascript; charset=utf-8",
    "dom.js": "text/javascript; charset=utf-8",
    "files.js": "text/javascript; charset=utf-8",
    "info.js": "text/javascript; charset=utf-8",
    "kept.js": "text/javascript; charset=utf-8",
    "lines.js": "text/javascript; charset=utf-8",
    "preview.js": "text/javascript; charset=utf-8",
    "runtimes.js": "text/javascript; charset=utf-8",
    "sessions.js": "text/javascript; charset=utf-8",
    "terminal.js": "text/javascript; charset=utf-8",
    "text.js": "text/javascript; charset=utf-8",
    "transfer.js": "text/javascript; charset=utf-8",
    "workspace.js": "text/javascript; charset=utf-8",
};

/// The file of that name beneath `/ui/`.
#[must_use]
pub fn asset(name: &str) -> Option<&'static Asset> {
    static ALL: [Asset; ASSETS.len()] = ASSETS;
    ALL.iter().find(|asset| asset.name == name)
}

/// Which edition of the page this is, as a tag of HTTP: another one when any of its files is another.
#[must_use]
pub fn edition() -> &'static str {
    static EDITION: OnceLock<String> = OnceLock::new();
    EDITION.get_or_init(|| {
        let mut all = Sha256::new();
        for Asset { name, text, .. } in ASSETS.iter().chain([&PAGE]) {
            all.update(name);
            all.update([0]);
            all.update(text);
            all.update([0]);
        }
        let digest = all.finalize();
        let start: [u8; 16] = std::array::from_fn(|at| digest[at]);
        format!("\"{:032x}\"", u128::from_be_bytes(start))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Most that all of it may be, in bytes.
    const MOST: usize = 150_000;

    fn all() -> impl Iterator<Item = Asset> {
        ASSETS.into_iter().chain([PAGE])
    }

    #[test]
    fn the_page_is_small() {
        let bytes: usize = all().map(|asset| asset.text.len()).sum();
        assert!(bytes < MOST, "the dashboard is {bytes} bytes; {MOST} is the cap");
    }

    #[test]
    fn what_is_in_the_directory_is_in_the_program_and_nothing_else() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/dashboard/page");
        let on_disk: BTreeSet<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        assert_eq!(on_disk, all().map(|asset| asset.name.to_owned()).collect());
    }

    #[test]
    fn what_the_files_name_is_there() {
        for Asset { name, text, .. } in all().filter(|asset| asset.name.ends_with(".js")) {
            for (at, _) in text.match_indices("from \"./") {
                let imported = text[at + "from \"./".len()..].split('"').next().unwrap();
                assert!(asset(imported).is_some(), "{name} imports {imported}");
                assert!(PAGE.text.contains(&format!("\"ui/{imported}\"")), "index.html does not load {imported} ahead");
            }
        }
        for (at, _) in PAGE.text.match_indices("=\"ui/") {
            let named = PAGE.text[at + "=\"ui/".len()..].split('"').next().unwrap();
            assert!(asset(named).is_some(), "index.html names {named}");
        }
    }

    #[test]
    fn no_text_becomes_html_and_nothing_is_kept_in_the_browser() {
        let never = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "localStorage",
            "sessionStorage",
            "indexedDB",
            "document.cookie",
            "importScripts",
            "https://",
        ];
        for Asset { name, text, .. } in all() {
            for word in never {
                assert!(!text.contains(word), "{name} has {word}");
            }
            let namespaces = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!namespaces.contains("http://"), "{name} names another host");
        }
        for inline in ["<style", " style=", "<script>", " onclick=", "javascript:"] {
            assert!(!PAGE.text.contains(inline), "index.html has {inline}, which the policy forbids");
        }
    }
}
