//! Cgroups of commands: one directory for each, named by its run, beneath the descriptor that the
//! init was given. Nothing mounts a cgroup file system inside, so only the init reaches them.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use wire::id::RunId;
use wire::init::Met;

use crate::sys::{Errno, Result, kill, make_dir, open_beneath, read, read_at, remove_dir, write};

/// Most of `cgroup.procs` that [`Commands::terminate`] reads, in bytes: some ten thousand processes.
const MAX_PROCS: usize = 64 * 1024;

/// How often processes are looked for that have appeared while others were killed.
const MAX_ROUNDS: usize = 16;

/// The cgroup that holds those of all commands.
#[derive(Debug)]
pub struct Commands {
    dir: OwnedFd,
    /// Whether children have the memory controller: then the OOM killer takes a command whole.
    memory: bool,
    /// Its own `pids.events`, if it has the controller.
    pids: Option<OwnedFd>,
}

impl Commands {
    /// The cgroup at `dir`, of version 2; or of version 1, where nothing is limited and killing takes longer.
    ///
    /// # Errors
    /// If `dir` is no cgroup directory.
    pub fn new(dir: OwnedFd) -> Result<Self> {
        let control = match open_beneath(dir.as_fd(), c"cgroup.subtree_control", libc::O_RDONLY) {
            Ok(control) => control,
            Err(Errno(libc::ENOENT)) => {
                open_beneath(dir.as_fd(), c"cgroup.procs", libc::O_RDONLY)?;
                return Ok(Self { dir, memory: false, pids: None });
            }
            Err(errno) => return Err(errno),
        };
        let mut buffer = [0; 512];
        let len = read(control.as_fd(), &mut buffer)?;
        let memory = buffer[..len].split(u8::is_ascii_whitespace).any(|name| name == b"memory");
        let pids = open_beneath(dir.as_fd(), c"pids.events", libc::O_RDONLY).ok();
        Ok(Self { dir, memory, pids })
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
        match self.open(run, "/cgroup.kill", libc::O_WRONLY) {
            Ok(file) => write(file.as_fd(), b"1"),
            Err(Errno(libc::ENOENT)) => {
                // One after another, until no more appear; what escapes is killed when this is done again.
                for _ in 0..MAX_ROUNDS {
                    if self.signal(run, libc::SIGKILL)? == 0 {
                        break;
                    }
                }
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    /// Asks every process of `run` to end, with `SIGTERM`. One that appears meanwhile may be missed, and one that
    /// ends meanwhile may have given its pid to another, so this is a courtesy: what is certain is [`Self::kill`].
    ///
    /// # Errors
    /// Those of open(2) and read(2).
    pub fn terminate(&self, run: RunId) -> Result<()> {
        self.signal(run, libc::SIGTERM).map(drop)
    }

    /// Sends `signal` to every process of `run`: how many took it.
    fn signal(&self, run: RunId, signal: i32) -> Result<usize> {
        let mut sent = 0;
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
                        sent += usize::from(kill(pid, signal).is_ok());
                        0
                    }
                };
            }
        }
        Ok(sent)
    }

    /// The file that tells when `run` has no processes any more; ask it by [`populated`].
    ///
    /// # Errors
    /// Those of open(2).
    pub fn events(&self, run: RunId) -> Result<OwnedFd> {
        self.open(run, "/cgroup.events", libc::O_RDONLY)
    }

    /// How often a fork has failed in any command for the limit that all have together; 0 before Linux 6.11, which counts it
    /// where the process is.
    pub fn forks_failed(&self) -> u64 {
        self.pids.as_ref().map_or(0, |events| count_in(events.as_fd(), b"max "))
    }

    /// Which limits `run` has met, of which [`Self::forks_failed`] was `before` when it was started.
    pub fn met(&self, run: RunId, before: u64) -> Met {
        let count =
            |file, key| self.open(run, file, libc::O_RDONLY).map_or(0, |events: OwnedFd| count_in(events.as_fd(), key));
        let memory = self.memory && count("/memory.events", b"oom_kill ") > 0;
        let pids = self.pids.is_some() && (self.forks_failed() > before || count("/pids.events", b"max ") > 0);
        Met { memory, pids }
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

/// The number after `key` in a file of the kernel's; 0 if it cannot be read.
fn count_in(file: BorrowedFd<'_>, key: &[u8]) -> u64 {
    let mut buffer = [0; 512];
    read_at(file, &mut buffer, 0).map_or(0, |len| parse_count(&buffer[..len], key))
}

fn parse_count(text: &[u8], key: &[u8]) -> u64 {
    let value = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key));
    value.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok()).unwrap_or(0)
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
    fn a_count_is_that_of_its_key() {
        let text = b"low 0\noom 3\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(parse_count(text, b"oom_kill "), 2);
        assert_eq!(parse_count(text, b"oom "), 3);
        assert_eq!(parse_count(text, b"max "), 0);
        assert_eq!(parse_count(b"max x\n", b"max "), 0);
    }

    #[test]
    fn a_run_names_its_directory_and_nothing_else_does() {
        let run = RunId::from_u128(0xab);
        assert_eq!(path(run, "").unwrap().as_bytes(), b"000000000000000000000000000000ab");
    }
}
