//! A path as a client writes it, taken apart as text: no system call happens here.

use super::error::{FileError, Why, shown};

/// Longest path that is looked at, in bytes: `PATH_MAX` without its NUL.
const MAX_PATH: usize = 4095;

/// A path beneath the work directory.
#[derive(Debug)]
pub(super) struct Place {
    /// Absolute and normalised.
    absolute: String,
    /// Where in `absolute` the part relative to the work directory starts.
    start: usize,
    /// What a `..` climbed out of, relative to the work directory. Text and kernel agree about
    /// the path only if each of these is a directory and no link.
    climbed: Vec<String>,
    /// Written with a final `/`, `/.` or `/..`: not a file, by POSIX.
    must_be_dir: bool,
}

impl Place {
    /// `path` beneath `work_dir`, which is absolute, normalised and not `/`.
    pub(super) fn parse(path: &str, work_dir: &str) -> Result<Self, FileError> {
        if path.contains('\0') {
            return Err(FileError::invalid(path, "path has a null byte"));
        }
        if !path.starts_with('/') {
            return Err(FileError::invalid(path, "path must be absolute"));
        }
        if path.len() > MAX_PATH {
            return Err(FileError::not_native(&shown(path), Why::TooLong));
        }
        let outside = || FileError::not_native(path, Why::Outside);
        // POSIX leaves the meaning of exactly two slashes open, and Python keeps them.
        if path.starts_with("//") {
            return Err(outside());
        }
        let below = path.strip_prefix(work_dir).ok_or_else(outside)?;
        if !below.is_empty() && !below.starts_with('/') {
            return Err(outside());
        }
        let mut place =
            Self { absolute: work_dir.to_owned(), start: work_dir.len() + 1, climbed: Vec::new(), must_be_dir: false };
        for part in below.split('/').skip(1) {
            place.push(part).ok_or_else(outside)?;
        }
        Ok(place)
    }

    /// Adds a component; none when it climbs out of the work directory.
    fn push(&mut self, part: &str) -> Option<()> {
        self.must_be_dir = matches!(part, "" | "." | "..");
        match part {
            "" | "." => {}
            ".." => {
                let here = self.relative();
                let parent = self.absolute.len() - here.rsplit('/').next().filter(|name| !name.is_empty())?.len() - 1;
                // Below the deepest of a run of `..` every directory is known already.
                let known = self.climbed.last().is_some_and(|deeper| is_within(deeper, here));
                if !known {
                    self.climbed.push(here.to_owned());
                }
                self.absolute.truncate(parent);
            }
            name => {
                self.absolute.push('/');
                self.absolute.push_str(name);
            }
        }
        Some(())
    }

    /// Absolute and normalised, as the sandbox sees it.
    pub(super) fn absolute(&self) -> &str {
        &self.absolute
    }

    /// Relative to the work directory; empty for the work directory itself.
    pub(super) fn relative(&self) -> &str {
        self.absolute.get(self.start..).unwrap_or_default()
    }

    /// Parent (relative, empty for the work directory) and last component; none for the work directory.
    pub(super) fn leaf(&self) -> Option<(&str, &str)> {
        match self.relative() {
            "" => None,
            relative => Some(relative.rsplit_once('/').unwrap_or(("", relative))),
        }
    }

    /// Last component of the absolute path.
    pub(super) fn name(&self) -> &str {
        self.absolute.rsplit('/').next().unwrap_or_default()
    }

    /// What `..` climbed out of; see [`Place`].
    pub(super) fn climbed(&self) -> &[String] {
        &self.climbed
    }

    /// Whether it is written in the way of a directory.
    pub(super) fn must_be_dir(&self) -> bool {
        self.must_be_dir
    }

    /// That only the sandbox can resolve it.
    pub(super) fn not_native(&self, why: Why) -> FileError {
        FileError::not_native(&self.absolute, why)
    }
}

/// Whether `path` is `dir` or beneath it, both relative and normalised.
fn is_within(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether `path` names the work directory or one above it, as text.
pub(super) fn holds_work_dir(path: &str, work_dir: &str) -> bool {
    let mut parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    let mut own = work_dir.split('/').filter(|part| !part.is_empty());
    parts.all(|part| own.next() == Some(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> Result<Place, FileError> {
        Place::parse(path, "/workspace")
    }

    #[test]
    fn normalises() {
        for (path, absolute, relative, must_be_dir) in [
            ("/workspace", "/workspace", "", false),
            ("/workspace/", "/workspace", "", true),
            ("/workspace/a/b", "/workspace/a/b", "a/b", false),
            ("/workspace//a/./b", "/workspace/a/b", "a/b", false),
            ("/workspace/a/", "/workspace/a", "a", true),
            ("/workspace/a/.", "/workspace/a", "a", true),
            ("/workspace/a/../b", "/workspace/b", "b", false),
            ("/workspace/a/b/../..", "/workspace", "", true),
            ("/workspace/...", "/workspace/...", "...", false),
            ("/workspace/ü/\n", "/workspace/ü/\n", "ü/\n", false),
        ] {
            let place = parse(path).unwrap();
            assert_eq!((place.absolute(), place.relative()), (absolute, relative), "{path}");
            assert_eq!(place.must_be_dir(), must_be_dir, "{path}");
        }
    }

    #[test]
    fn remembers_what_was_climbed_out_of_once() {
        let place = parse("/workspace/a/b/../../c/../d/e/../f").unwrap();
        assert_eq!(place.climbed(), ["a/b", "c", "d/e"]);
        assert_eq!(place.leaf(), Some(("d", "f")));
        assert_eq!(parse("/workspace/ab/../a/..").unwrap().climbed(), ["ab", "a"]);
    }

    #[test]
    fn refuses_what_is_not_beneath() {
        for path in [
            "/",
            "/etc/passwd",
            "/workspaces",
            "/workspace/..",
            "/workspace/a/../..",
            "/workspace/../workspace/a",
            "//workspace/a",
        ] {
            assert!(matches!(parse(path), Err(FileError::NotNative { why: Why::Outside, .. })), "{path}");
        }
        for path in ["", "a", "workspace/a", "./workspace", "/workspace/a\0b"] {
            assert!(matches!(parse(path), Err(FileError::Invalid { .. })), "{path}");
        }
        let long = format!("/workspace/{}", "é/".repeat(2000));
        let error = parse(&long).unwrap_err();
        assert!(matches!(error, FileError::NotNative { why: Why::TooLong, .. }));
        assert!(error.to_string().len() < 1000);
        assert!(parse(&"é\0".repeat(50_000)).unwrap_err().to_string().len() < 1000);
        assert!(parse(&format!("/workspace/{}", "a/".repeat(2042))).is_ok());
    }

    #[test]
    fn knows_the_ancestors_of_the_work_directory() {
        for path in ["/", "//", "/srv", "/srv/work", "/srv/./work/"] {
            assert!(holds_work_dir(path, "/srv/work"), "{path}");
        }
        for path in ["/srv/work/a", "/srv/wor", "/etc", "/srv/.."] {
            assert!(!holds_work_dir(path, "/srv/work"), "{path}");
        }
    }
}
