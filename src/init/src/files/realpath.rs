//! A path with its links resolved, as `os.path.realpath` does it: component by component, `..` climbing what is
//! resolved so far, and what is missing kept as it is written.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use wire::file::Fault;

use super::fault;

/// Links that are followed, as many as the kernel does; path_resolution(7).
const MAX_LINKS: usize = 40;

/// `path`, which is absolute, resolved. After [`MAX_LINKS`] links the rest is kept as it is written.
///
/// # Errors
/// A link that cannot be read: kept as it is written, it would pass for a directory.
pub fn resolve(path: &str) -> Result<Vec<u8>, Fault> {
    let mut resolved = Vec::new();
    let mut links = 0;
    // What is still to be walked, the next component last.
    let mut rest = components(path.as_bytes());
    while let Some(part) = rest.pop() {
        if part == b".." {
            resolved.truncate(resolved.iter().rposition(|byte| *byte == b'/').unwrap_or(0));
            continue;
        }
        let before = resolved.len();
        resolved.push(b'/');
        resolved.extend_from_slice(&part);
        let here = Path::new(OsStr::from_bytes(&resolved));
        if links < MAX_LINKS && fs::symlink_metadata(here).is_ok_and(|metadata| metadata.is_symlink()) {
            links += 1;
            let target = fs::read_link(here).map_err(fault)?.into_os_string().into_vec();
            resolved.truncate(if target.starts_with(b"/") { 0 } else { before });
            rest.extend(components(&target));
        }
    }
    Ok(if resolved.is_empty() { vec![b'/'] } else { resolved })
}

/// The components that mean anything, the first one last.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    let mut parts: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_and_what_is_missing_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir(root.join("target")).unwrap();
        for (link, to) in [
            ("a/rel", "b"),
            ("a/up", "../out"),
            ("a/loop1", "loop2"),
            ("a/loop2", "loop1"),
            ("chain", "a/rel"),
            ("abs", root.join("target").to_str().unwrap()),
            ("none", "no/where"),
        ] {
            symlink(to, root.join(link)).unwrap();
        }
        let real = |path: &str| {
            let resolved = resolve(&format!("{}/{path}", root.display())).unwrap();
            let resolved = String::from_utf8(resolved).unwrap();
            resolved.strip_prefix(root.to_str().unwrap()).unwrap().to_owned()
        };
        for (path, expected) in [
            ("", ""),
            ("a/rel/missing", "/a/b/missing"),
            ("a/up/missing", "/out/missing"),
            ("a/rel/..", "/a"),
            ("a/up/..", ""),
            ("chain", "/a/b"),
            ("abs/./x//y/", "/target/x/y"),
            ("none/../z", "/no/z"),
        ] {
            assert_eq!(real(path), expected, "{path}");
        }
        assert!(real("a/loop1/q").starts_with("/a/loop"));
        assert_eq!(resolve("/..//.").unwrap(), b"/");
    }
}
