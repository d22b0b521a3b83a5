//! Cgroups of commands: one directory for each, named by its run, beneath the descriptor that the
//! init was given. Nothing mounts a cgroup file system inside, so only the init reaches them.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use wire::id::RunId;

use crate::sys::{Errno, Result, kill, make_dir, open_beneath, read, read_at, remove_dir, write};

/// Most of `cgroup.procs` that [`Commands::terminate`] reads, in bytes: some ten thousand processes.
const MAX_PROCS: usize = 64 * 1024;

/// The cgroup that holds those of all commands.
#[derive(Debug)]
pub struct Commands {
    dir: OwnedFd,
    /// Whether children have the memory controller: then the OOM killer takes a command whole.
    memory: bool,
}

impl Commands {
    /// The cgroup at `dir`.
    ///
    /// # Errors
    /// If `dir` is no cgroup v2 directory.
    pub fn new(dir: OwnedFd) -> Result<Self> {
        let control = open_beneath(dir.as_fd(), c"cgroup.subtree_control", libc::O_RDONLY)?;
        let mut buffer = [0; 512];
        let len = read(control.as_fd(), &mut buffer)?;
        let memory = buffer[..len].split(u8::is_ascii_whitespace).any(|name| name == b"memory");
        Ok(Self { dir, memory })
    }

    /// Makes the cgroup of `run`; the descriptor is for being born in it.
    ///
    /// # Errors
    /// `EEXIST` if there is one; else those of mkdir(2) and open(2).
    pub fn make(&self, run: RunId) -> Result<OwnedFd> {
        make_dir(self.dir.as_fd(), &path(run, "")?)?;
        let made = self.open(run, "", libc::O_PATH | libc::O_DIRECTORY).and_then(|dir| {
            if self.memory {
                write(self.open(run, "/memory.oom.group", libc::O_WRONLY)?.as_fd(), b"1")?;
            }
            Ok(dir)
        });
        made.inspect_err(|_| {
            let _ = self.remove(run);
        })
    }

    /// Removes the cgroup of `run`.
    ///
    /// # Errors
    /// `EBUSY` while a process is in it, `ENOENT` if it is not there.
    pub fn remove(&self, run: RunId) -> Result<()> {
        remove_dir(self.dir.as_fd(), &path(run, "")?)
    }

    /// Kills every process of `run`, also those that it is forking.
    ///
    /// # Errors
    /// Those of open(2) and write(2).
    pub fn kill(&self, run: RunId) -> Result<()> {
        write(self.open(run, "/cgroup.kill", libc::O_WRONLY)?.as_fd(), b"1")
    }

    /// Asks every process of `run` to end, with `SIGTERM`. One that appears meanwhile may be missed, and one that
    /// ends meanwhile may have given its pid to another, so this is a courtesy: what is certain is [`Self::kill`].
    ///
    /// # Errors
    /// Those of open(2) and read(2).
    pub fn terminate(&self, run: RunId) -> Result<()> {
        let procs = self.open(run, "/cgroup.procs", libc::O_RDONLY)?;
        let mut pid = 0_i32;
        let mut buffer = [0; 4096];
        for _ in 0..MAX_PROCS / buffer.len() {
            let len = read(procs.as_fd(), &mut buffer)?;
            if len == 0 {
                break;
            }
            for byte in &buffer[..len] {
                pid = match byte {
                    b'0'..=b'9' => pid.saturating_mul(10).saturating_add(i32::from(byte - b'0')),
                    _ => {
                        // It may be gone already. 0, a process of outside, is refused by `kill`.
                        let _ = kill(pid, libc::SIGTERM);
                        0
                    }
                };
            }
        }
        Ok(())
    }

    /// The file that tells when `run` has no processes any more; ask it by [`populated`].
    ///
    /// # Errors
    /// Those of open(2).
    pub fn events(&self, run: RunId) -> Result<OwnedFd> {
        self.open(run, "/cgroup.events", libc::O_RDONLY)
    }

    fn open(&self, run: RunId, file: &str, flags: i32) -> Result<OwnedFd> {
        open_beneath(self.dir.as_fd(), &path(run, file)?, flags)
    }
}

/// Whether the cgroup of this `cgroup.events` has processes. Reading also re-arms its notification.
///
/// # Errors
/// Those of pread(2); `EINVAL` if the file does not say.
pub fn populated(events: BorrowedFd<'_>) -> Result<bool> {
    let mut buffer = [0; 256];
    let len = read_at(events, &mut buffer, 0)?;
    parse_populated(&buffer[..len]).ok_or(Errno(libc::EINVAL))
}

fn parse_populated(text: &[u8]) -> Option<bool> {
    text.split(|byte| *byte == b'\n').find_map(|line| match line.strip_prefix(b"populated ")? {
        b"0" => Some(false),
        b"1" => Some(true),
        _ => None,
    })
}

fn path(run: RunId, file: &str) -> Result<CString> {
    CString::new(format!("{run}{file}")).map_err(|_| Errno(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn populated_is_read_in_any_position() {
        assert_eq!(parse_populated(b"populated 1\nfrozen 0\n"), Some(true));
        assert_eq!(parse_populated(b"frozen 1\npopulated 0\n"), Some(false));
        assert_eq!(parse_populated(b"frozen 1\n"), None);
        assert_eq!(parse_populated(b""), None);
    }

    #[test]
    fn a_run_names_its_directory_and_nothing_else_does() {
        let run = RunId::from_u128(0xab);
        assert_eq!(path(run, "").unwrap().as_bytes(), b"000000000000000000000000000000ab");
    }
}
