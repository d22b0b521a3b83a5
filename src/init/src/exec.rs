//! Starting a command: check the request, fork into its cgroup, drop every privilege, execute.

use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use wire::init::{Command, CommandAt, MAX_COMMAND, Privilege, Step};

use crate::child::{self, Streamed, User};
use crate::runs::Streams;
use crate::search;
use crate::sys::{self, Access, Errno, Fork, Kind, Strings};

/// Why and where a command did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// At which step.
    pub step: Step,
    /// errno(3) of it.
    pub errno: i32,
}

impl Refusal {
    /// The request itself was refused.
    #[must_use]
    pub fn request(errno: i32) -> Self {
        Self { step: Step::Request, errno }
    }
}

/// For `map_err`: a failed system call at `step`.
pub fn at(step: Step) -> impl Fn(Errno) -> Refusal {
    move |Errno(errno)| Refusal { step, errno }
}

/// What all commands of this sandbox have in common.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Whether [`Privilege::Build`] is granted.
    pub build: bool,
    /// Soft and hard limit of descriptors.
    pub files: (u64, u64),
}

/// A checked request, with everything that the child needs made beforehand.
#[derive(Debug)]
pub struct Request {
    arguments: Strings,
    environment: Strings,
    /// `PATH` of the environment, if it has one.
    path: Option<String>,
    cwd: CString,
    user: User,
    out: OwnedFd,
    err: OwnedFd,
}

impl Request {
    /// Checks what came with a `Run` frame. The read ends are returned beside the request.
    ///
    /// # Errors
    /// `EINVAL` for anything that is not as the protocol says, `EPERM` for a privilege that is not granted.
    pub fn check(command: CommandAt, fds: Vec<OwnedFd>, terms: &Terms) -> Result<(Self, Streams), Refusal> {
        let invalid = || Refusal::request(libc::EINVAL);
        let mut fds = fds.into_iter();
        let mut pipe = |access| fds.next().filter(|fd| is_pipe(fd.as_fd(), access)).ok_or_else(invalid);
        let (out_read, out) = (pipe(Access::Read)?, pipe(Access::Write)?);
        let (err_read, err) = (pipe(Access::Read)?, pipe(Access::Write)?);
        let command = match command {
            CommandAt::Inline(command) => command,
            CommandAt::Memfd { len } => fds.next().and_then(|fd| read_command(fd.as_fd(), len)).ok_or_else(invalid)?,
        };
        if fds.next().is_some() {
            return Err(invalid());
        }
        for end in [&out, &err] {
            sys::clear_nonblocking(end.as_fd()).map_err(at(Step::Request))?;
        }
        if command.privilege == Privilege::Build && !terms.build {
            return Err(Refusal::request(libc::EPERM));
        }
        let streams = Streams { out: out_read, err: err_read };
        Self::from_command(command, out, err).map(|request| (request, streams)).ok_or_else(invalid)
    }

    /// `None` for a command that is not as the protocol says.
    fn from_command(command: Command, out: OwnedFd, err: OwnedFd) -> Option<Self> {
        let user = User::new(command.uid, command.gid, command.privilege)?;
        if command.argv.is_empty() || !command.cwd.starts_with('/') {
            return None;
        }
        let mut arguments = Strings::with_capacity(command.argv.iter().map(|one| one.len() + 1).sum());
        for argument in &command.argv {
            arguments.push(&[argument])?;
        }
        arguments.finish();
        let size = command.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        let mut environment = Strings::with_capacity(size);
        for (name, value) in &command.env {
            if name.is_empty() || name.contains('=') {
                return None;
            }
            environment.push(&[name, "=", value])?;
        }
        environment.finish();
        let path = command.env.into_iter().find_map(|(name, value)| (name == "PATH").then_some(value));
        let cwd = CString::new(command.cwd).ok()?;
        Some(Self { arguments, environment, path, cwd, user, out, err })
    }

    /// Starts the command in `cgroup`: its pid. If it fails before it is executed, the child
    /// leaves the reason in `outcome`, for [`outcome_of`], and ends.
    ///
    /// # Errors
    /// Those of the fork.
    pub fn spawn(&self, cgroup: BorrowedFd<'_>, outcome: &AtomicU64, terms: &Terms) -> Result<i32, Errno> {
        outcome.store(0, Ordering::Relaxed);
        match sys::fork_into(cgroup)? {
            Fork::Parent(pid) => Ok(pid),
            Fork::Child => {
                let Err(refusal) = self.become_command(terms);
                outcome.store(encode(refusal), Ordering::Relaxed);
                sys::exit_now(127)
            }
        }
    }

    /// The child. Allocates nothing. The order matters: see each step.
    fn become_command(&self, terms: &Terms) -> Result<Infallible, Refusal> {
        // First what belongs to the init goes: from the change of user on, others of that user may interfere.
        let streams = Streamed { input: None, out: self.out.as_fd(), err: Some(self.err.as_fd()) };
        child::leave_init(&streams, terms).map_err(at(Step::Drop))?;
        child::drop_privilege(self.user, terms).map_err(at(Step::Drop))?;
        // As the user, so that the user's permissions decide.
        sys::enter_dir(&self.cwd).map_err(at(Step::Chdir))?;
        sys::unblock_signals().map_err(at(Step::Exec))?;
        let errno = search::execute(&self.arguments, &self.environment, self.path.as_deref());
        Err(at(Step::Exec)(errno))
    }
}

/// Whether `fd` is the end of a pipe that `access` says.
pub fn is_pipe(fd: BorrowedFd<'_>, access: Access) -> bool {
    sys::kind(fd) == Ok(Kind::Pipe) && sys::access(fd) == Ok(access)
}

/// Reads a command from a sealed memfd of exactly `len` bytes.
fn read_command(memfd: BorrowedFd<'_>, len: u32) -> Option<Command> {
    let len = usize::try_from(len).ok().filter(|len| *len <= MAX_COMMAND)?;
    if !sys::sealed_against_writing(memfd) {
        return None;
    }
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match sys::read_at(memfd, &mut bytes[done..], done) {
            Ok(0) | Err(_) => return None,
            Ok(count) => done += count,
        }
    }
    crate::frames::decode(&bytes)
}

/// Steps that a child can fail at; its place in here plus one is how it tells.
const CHILD_STEPS: [Step; 3] = [Step::Drop, Step::Chdir, Step::Exec];

/// A refusal as a child leaves it, for [`outcome_of`].
#[must_use]
pub fn encode(refusal: Refusal) -> u64 {
    let place = CHILD_STEPS.iter().position(|step| *step == refusal.step).unwrap_or(0) as u64 + 1;
    place << 32 | u64::from(refusal.errno as u32)
}

/// What the child of [`Request::spawn`] left: why it did not start, if it did not.
#[must_use]
pub fn outcome_of(outcome: &AtomicU64) -> Option<Refusal> {
    let value = outcome.load(Ordering::Relaxed);
    let place = usize::try_from(value >> 32).ok()?.checked_sub(1)?;
    Some(Refusal { step: *CHILD_STEPS.get(place)?, errno: value as u32 as i32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        Command {
            argv: vec!["true".into()],
            env: vec![("PATH".into(), "/bin".into())],
            cwd: "/".into(),
            uid: 10001,
            gid: 10001,
            privilege: Privilege::None,
        }
    }

    fn accepted(command: Command) -> bool {
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        Request::from_command(command, null(), null()).is_some()
    }

    #[test]
    fn a_request_is_as_the_protocol_says_or_refused() {
        assert!(accepted(command()));
        assert!(accepted(Command { env: vec![("A".into(), "=b=".into()), ("B".into(), String::new())], ..command() }));
        assert!(!accepted(Command { argv: vec![], ..command() }));
        assert!(!accepted(Command { argv: vec!["a\0b".into()], ..command() }));
        assert!(!accepted(Command { env: vec![("A=".into(), "b".into())], ..command() }));
        assert!(!accepted(Command { env: vec![(String::new(), "b".into())], ..command() }));
        assert!(!accepted(Command { env: vec![("A".into(), "b\0".into())], ..command() }));
        for cwd in ["", "tmp", "./", "/a\0"] {
            assert!(!accepted(Command { cwd: cwd.into(), ..command() }), "{cwd:?}");
        }
        for id in [65_535, 65_536, u32::MAX] {
            assert!(!accepted(Command { uid: id, ..command() }), "uid {id}");
            assert!(!accepted(Command { gid: id, ..command() }), "gid {id}");
        }
    }

    #[test]
    fn a_childs_refusal_comes_home() {
        for step in CHILD_STEPS {
            let refusal = Refusal { step, errno: libc::EACCES };
            assert_eq!(outcome_of(&AtomicU64::new(encode(refusal))), Some(refusal));
        }
        assert_eq!(outcome_of(&AtomicU64::new(0)), None);
        assert_eq!(outcome_of(&AtomicU64::new(u64::MAX)), None);
    }
}
