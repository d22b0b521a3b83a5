//! File operations, inside: a child that becomes what a command is, and then does one thing instead of executing.
//!
//! `wire::file` says what is asked and how the answer travels. The child resolves names as the sandbox's own user
//! in the sandbox's own root, so whatever they lead to is the sandbox's. It goes to the directory that it changes
//! and uses plain names there: what others swap meanwhile does not lead it elsewhere half-way.
//!
//! It may allocate, for it is alone in its memory, which counts for its own cgroup; but whoever wants to be
//! answered must have sent less than [`FileRequest::max`], and what takes longer than [`CHILD_SECONDS`] ends.

mod change;
mod look;
mod realpath;

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::file::{CHILD_SECONDS, Fault, FileOp, FileRequest, MAX_PATH};
use wire::id::RunId;
use wire::init::{Privilege, Step};

use crate::child::{self, Streamed, User};
use crate::exec::{Refusal, Terms, at, encode, is_pipe};
use crate::sys::{self, Access, Errno, Fork, Kind};

/// What is done in the child.
type Done = Result<(), Fault>;

/// A checked request.
#[derive(Debug)]
pub struct FileTask {
    run: RunId,
    request: FileRequest,
    work_dir: CString,
    user: User,
    /// Where the answer goes.
    out: OwnedFd,
    /// What is to be written.
    body: Option<OwnedFd>,
}

impl FileTask {
    /// Checks what came with a `File` frame.
    ///
    /// # Errors
    /// `EINVAL` for anything that is not as the protocol says.
    pub fn check(run: RunId, request: FileRequest, fds: Vec<OwnedFd>) -> Result<Self, Refusal> {
        let invalid = || Refusal::request(libc::EINVAL);
        let mut fds = fds.into_iter();
        let out = fds.next().filter(|fd| is_pipe(fd.as_fd(), Access::Write)).ok_or_else(invalid)?;
        let body = fds.next();
        let sound = match &body {
            Some(body) => request.op == FileOp::Write && sys::kind(body.as_fd()) == Ok(Kind::Other),
            None => request.op != FileOp::Write,
        };
        if !sound || fds.next().is_some() || !is_path(&request.path) || !is_path(&request.work_dir) {
            return Err(invalid());
        }
        sys::clear_nonblocking(out.as_fd()).map_err(at(Step::Request))?;
        let user = User::new(request.uid, request.gid, Privilege::None).ok_or_else(invalid)?;
        let work_dir = CString::new(request.work_dir.as_str()).map_err(|_| invalid())?;
        Ok(Self { run, request, work_dir, user, out, body })
    }

    /// Starts the child in `cgroup`: its pid. What keeps it from beginning is in `outcome`, as of a command.
    ///
    /// # Errors
    /// Those of the fork.
    pub fn spawn(&self, cgroup: BorrowedFd<'_>, outcome: &AtomicU64, terms: &Terms) -> Result<i32, Errno> {
        outcome.store(0, Ordering::Relaxed);
        match sys::fork_into(cgroup)? {
            Fork::Parent(pid) => Ok(pid),
            Fork::Child => match self.become_user(terms) {
                Ok(()) => sys::exit_now(self.act().err().map_or(0, |fault| fault.exit_status().into())),
                Err(refusal) => {
                    outcome.store(encode(refusal), Ordering::Relaxed);
                    sys::exit_now(127)
                }
            },
        }
    }

    /// As a command, up to where that executes.
    fn become_user(&self, terms: &Terms) -> Result<(), Refusal> {
        sys::end_after(CHILD_SECONDS);
        let input = self.body.as_ref().map(AsFd::as_fd);
        child::leave_init(&Streamed { input, out: self.out.as_fd(), err: None }, terms).map_err(at(Step::Drop))?;
        child::drop_privilege(self.user, terms).map_err(at(Step::Drop))?;
        sys::enter_dir(&self.work_dir).map_err(at(Step::Chdir))?;
        sys::unblock_signals().map_err(at(Step::Drop))
    }

    fn act(&self) -> Done {
        let path = Path::new(&self.request.path);
        // 0 and 1 are in this process what `become_user` made of them.
        let mut out = File::from(sys::inherited(1).map_err(fault_of)?);
        match self.request.op {
            FileOp::Read => look::read(path, self.request.max, &mut out),
            FileOp::Stat => look::stat(path, self.request.max, &mut out),
            FileOp::List => look::list(path, self.request.max, &mut out),
            FileOp::Realpath => out.write_all(&realpath::resolve(&self.request.path)?).map_err(fault),
            FileOp::Mkdir => change::mkdir(path),
            FileOp::Remove => change::remove(&self.request.path, &self.request.work_dir),
            FileOp::Write => {
                let body = File::from(sys::inherited(0).map_err(fault_of)?);
                change::write(&self.request.path, body, &format!(".sandboxd-{}", self.run))
            }
        }
    }
}

fn is_path(path: &str) -> bool {
    path.starts_with('/') && path.len() <= MAX_PATH && !path.contains('\0')
}

/// For `map_err`: what the kernel said.
fn fault(error: io::Error) -> Fault {
    fault_of(Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

fn fault_of(Errno(errno): Errno) -> Fault {
    errno_fault(errno)
}

fn errno_fault(errno: i32) -> Fault {
    Fault::Errno(u8::try_from(errno).unwrap_or(libc::EIO as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(op: FileOp) -> FileRequest {
        let (path, work_dir) = ("/etc/passwd".to_owned(), "/".to_owned());
        FileRequest { op, path, work_dir, uid: 10001, gid: 10001, max: 1 }
    }

    fn accepted(request: FileRequest, body: bool) -> bool {
        let (_read, out) = io::pipe().unwrap();
        let mut fds: Vec<OwnedFd> = vec![out.into()];
        if body {
            fds.push(File::open("/etc/passwd").unwrap().into());
        }
        FileTask::check(RunId::from_u128(1), request, fds).is_ok()
    }

    #[test]
    fn a_request_is_as_the_protocol_says_or_refused() {
        assert!(accepted(request(FileOp::Read), false));
        assert!(accepted(request(FileOp::Write), true));
        assert!(!accepted(request(FileOp::Read), true));
        assert!(!accepted(request(FileOp::Write), false));
        for path in ["", "a", "/a\0b", &"/a".repeat(2048)] {
            assert!(!accepted(FileRequest { path: path.to_owned(), ..request(FileOp::Stat) }, false), "{path:?}");
            assert!(!accepted(FileRequest { work_dir: path.to_owned(), ..request(FileOp::Stat) }, false), "{path:?}");
        }
        assert!(!accepted(FileRequest { uid: 65_535, ..request(FileOp::Stat) }, false));
        let file = File::open("/dev/null").unwrap().into();
        assert!(FileTask::check(RunId::from_u128(1), request(FileOp::Stat), vec![file]).is_err());
        assert!(FileTask::check(RunId::from_u128(1), request(FileOp::Stat), vec![]).is_err());
    }
}
