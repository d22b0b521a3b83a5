//! Changing: a file written whole, directories made, files and trees removed.

use std::env;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Seek};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use wire::file::Fault;

use super::{Done, errno_fault, fault, fault_of};
use crate::sys;

/// Mode of a new file, less the umask.
const NEW_FILE: u32 = 0o666;
/// Mode of what is going to replace a file, until it has that one's.
const PRIVATE: u32 = 0o600;
/// The bits of a file's mode that are kept: a write clears set-user-ID and set-group-ID (write(2)).
const KEPT: u32 = 0o777;

/// Makes the directory `path` and those above it.
pub fn mkdir(path: &Path) -> Done {
    match fs::create_dir(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => match fs::metadata(path) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(errno_fault(libc::EEXIST)),
            // A link that leads nowhere.
            Err(error) => Err(fault(error)),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {
            mkdir_above(path)?;
            match fs::create_dir(path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(fault(error)),
                Ok(()) | Err(_) => Ok(()),
            }
        }
        Err(error) => Err(fault(error)),
    }
}

/// Makes what is missing above `path`, from the top.
fn mkdir_above(path: &Path) -> Done {
    let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
    above.reverse();
    for dir in above {
        match fs::create_dir(dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(fault(error)),
            // If that is no directory, the next one says so.
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Puts the bytes of `body` in the place of the file at `path`, at once, by way of the name `temporary` beside it.
pub fn write(path: &str, mut body: File, temporary: &str) -> Done {
    let (above, name) = split(path);
    if !is_name(name) || path.ends_with('/') {
        return Err(errno_fault(libc::EISDIR));
    }
    match env::set_current_dir(above) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            mkdir(Path::new(above))?;
            env::set_current_dir(above).map_err(fault)?;
        }
        entered => entered.map_err(fault)?,
    }
    let kept = mode_to_keep(name)?;
    body.rewind().map_err(fault)?;
    let mode = if kept.is_some() { PRIVATE } else { NEW_FILE };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(temporary).map_err(fault)?;
    let done = fill(&mut file, &mut body, kept).and_then(|()| fs::rename(temporary, name));
    done.map_err(|error| {
        let _ = fs::remove_file(temporary);
        fault(error)
    })
}

fn fill(file: &mut File, body: &mut File, mode: Option<u32>) -> io::Result<()> {
    io::copy(body, file)?;
    match mode {
        Some(mode) => file.set_permissions(Permissions::from_mode(mode)),
        None => Ok(()),
    }
}

/// The mode of the file `name`, here, which is going to be replaced; `None`: there is none.
fn mode_to_keep(name: &str) -> Result<Option<u32>, Fault> {
    let found = match fs::symlink_metadata(name) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fault(error)),
    };
    if found.is_dir() {
        return Err(errno_fault(libc::EISDIR));
    }
    if found.is_symlink() {
        return Err(Fault::Link);
    }
    if !found.is_file() {
        return Err(Fault::Special);
    }
    // A rename asks nobody whether the old file may be written.
    let name = CString::new(name).map_err(|_| errno_fault(libc::EINVAL))?;
    sys::may(&name, libc::R_OK | libc::W_OK).map_err(fault_of)?;
    Ok(Some(found.permissions().mode() & KEPT))
}

/// Removes the file at `path`, the link itself, or the directory with everything in it.
pub fn remove(path: &str, work_dir: &str) -> Done {
    let (above, name) = split(path);
    if !is_name(name) {
        return Err(errno_fault(libc::EINVAL));
    }
    env::set_current_dir(above).map_err(fault)?;
    let target = env::current_dir().map_err(fault)?.join(name);
    let work_dir = fs::canonicalize(work_dir).map_err(fault)?;
    if work_dir.starts_with(target) {
        return Err(Fault::WorkDir);
    }
    let found = fs::symlink_metadata(name).map_err(fault)?;
    if found.is_dir() {
        return fs::remove_dir_all(name).map_err(fault);
    }
    // `link/` is no name of the link.
    if path.ends_with('/') {
        return Err(errno_fault(libc::ENOTDIR));
    }
    fs::remove_file(name).map_err(fault)
}

/// The directory of a path and its last component, whatever slashes follow.
fn split(path: &str) -> (&str, &str) {
    let (above, name) = path.trim_end_matches('/').rsplit_once('/').unwrap_or(("", ""));
    (if above.is_empty() { "/" } else { above }, name)
}

fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_directory_and_a_name() {
        for (path, above, name) in [
            ("/a/b", "/a", "b"),
            ("/a", "/", "a"),
            ("/a/b//", "/a", "b"),
            ("/a/..", "/a", ".."),
            ("/", "/", ""),
            ("//", "/", ""),
        ] {
            assert_eq!(split(path), (above, name), "{path}");
        }
    }

    #[test]
    fn directories_are_made_with_those_above() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("f"), b"x").unwrap();
        std::os::unix::fs::symlink("nowhere", at("none")).unwrap();
        for path in ["a/b/c", "a/b/c", "a", "a/b/../d/e"] {
            assert_eq!(mkdir(&at(path)), Ok(()), "{path}");
        }
        assert!(at("a/b/c").is_dir() && at("a/d/e").is_dir());
        assert_eq!(mkdir(&at("f")), Err(errno_fault(libc::EEXIST)));
        assert_eq!(mkdir(&at("f/x")), Err(errno_fault(libc::ENOTDIR)));
        assert_eq!(mkdir(&at("f/x/y")), Err(errno_fault(libc::ENOTDIR)));
        assert_eq!(mkdir(&at("none")), Err(errno_fault(libc::ENOENT)));
        assert_eq!(mkdir(&at("none/x")), Err(errno_fault(libc::ENOENT)));
    }
}
