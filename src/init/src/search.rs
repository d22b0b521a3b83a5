//! Finding the program of a command: exec(3), `execvp`, inside the child, without memory of its own.

use std::ffi::CStr;

use crate::sys::{self, Errno, Strings};

/// Where programs are looked for if the environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Longest path, NUL included, limits.h.
const PATH_MAX: usize = 4096;

/// Executes the program that the first of `arguments` names. Returns only to say why not: `ENOENT` if there is
/// none, `EACCES` if there is one that may not be executed. Unlike execvp(3), a file that is no
/// program is `ENOEXEC` and not given to a shell: arguments are literal.
#[must_use]
pub fn execute(arguments: &Strings, environment: &Strings, path: Option<&str>) -> Errno {
    let Some(program) = arguments.get(0) else {
        return Errno(libc::EINVAL);
    };
    let name = program.to_bytes();
    if name.is_empty() || name.contains(&b'/') {
        return sys::execute(program, arguments, environment);
    }
    let mut buffer = [0; PATH_MAX];
    let mut denied = false;
    for dir in path.unwrap_or(DEFAULT_PATH).split(':') {
        // One that is too long names nothing.
        let Some(candidate) = join(&mut buffer, dir.as_bytes(), name) else {
            continue;
        };
        match sys::execute(candidate, arguments, environment) {
            Errno(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG | libc::ELOOP | libc::ESTALE | libc::ENODEV) => {}
            Errno(libc::EACCES) => denied = true,
            errno => return errno,
        }
    }
    Errno(if denied { libc::EACCES } else { libc::ENOENT })
}

/// `dir/name`, in `buffer`; an empty `dir` is the working directory.
fn join<'a>(buffer: &'a mut [u8; PATH_MAX], dir: &[u8], name: &[u8]) -> Option<&'a CStr> {
    let separator: &[u8] = if dir.is_empty() { b"" } else { b"/" };
    let mut end = 0;
    for part in [dir, separator, name, b"\0"] {
        buffer.get_mut(end..end + part.len())?.copy_from_slice(part);
        end += part.len();
    }
    CStr::from_bytes_with_nul(&buffer[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_joined_and_bounded() {
        let mut buffer = [0; PATH_MAX];
        assert_eq!(join(&mut buffer, b"/bin", b"true"), Some(c"/bin/true"));
        assert_eq!(join(&mut buffer, b"", b"true"), Some(c"true"));
        assert_eq!(join(&mut buffer, b"/b\0n", b"true"), None);
        let long = [b'a'; PATH_MAX - 2];
        assert!(join(&mut buffer, b"", &long).is_some());
        assert_eq!(join(&mut buffer, b"/", &long), None);
    }
}
