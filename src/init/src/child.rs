//! What every child of the init becomes before it does what it was made for: a process of the sandbox's user, with
//! nothing of the init's.

use std::os::fd::{AsFd, BorrowedFd};

use wire::init::{BUILD_CAPABILITIES, Privilege};

use crate::exec::Terms;
use crate::seccomp::confine_command;
use crate::setup::INIT_ID;
use crate::sys::{self, Capabilities};

/// `oom_score_adj` of commands, proc_pid_oom_score_adj(5): when the host runs out of memory, they go before its services.
/// A command cannot go below the least value that a privileged process ever gave the init, so
/// the launcher starts the init at 0, not lower.
const OOM_SCORE_ADJ: &[u8] = b"500";

/// Who a child becomes.
#[derive(Debug, Clone, Copy)]
pub struct User {
    uid: u32,
    gid: u32,
    privilege: Privilege,
}

impl User {
    /// `None` for ids that no command has: those of a sandbox end below 65536, and the last one is the init's.
    #[must_use]
    pub fn new(uid: u32, gid: u32, privilege: Privilege) -> Option<Self> {
        (uid.max(gid) < INIT_ID).then_some(Self { uid, gid, privilege })
    }
}

/// What a child gets as its streams; what is not given stays the init's own `/dev/null`.
#[derive(Debug, Clone, Copy)]
pub struct Streamed<'a> {
    /// Standard input.
    pub input: Option<BorrowedFd<'a>>,
    /// Standard output.
    pub out: BorrowedFd<'a>,
    /// Standard error.
    pub err: Option<BorrowedFd<'a>>,
}

/// A session, the three streams, no other descriptor, limits.
///
/// # Errors
/// Those of the system calls.
pub fn leave_init(streams: &Streamed<'_>, terms: &Terms) -> sys::Result<()> {
    sys::new_session()?;
    for (fd, onto) in [(streams.input, 0), (Some(streams.out), 1), (streams.err, 2)] {
        if let Some(fd) = fd {
            sys::duplicate_onto(fd, onto)?;
        }
    }
    sys::close_from(3)?;
    let score = sys::open_path(c"/proc/self/oom_score_adj", libc::O_WRONLY)?;
    sys::write(score.as_fd(), OOM_SCORE_ADJ)?;
    drop(score);
    sys::set_file_limits(terms.files)
}

/// The user, the filters, no capability but those of a build.
///
/// # Errors
/// Those of the system calls.
pub fn drop_privilege(user: User, terms: &Terms) -> sys::Result<()> {
    // While `CAP_SYS_ADMIN` is there: a build has no `no_new_privs` to allow it later.
    confine_command()?;
    let keep = match user.privilege {
        Privilege::None if terms.build => {
            sys::no_new_privileges()?;
            sys::drop_bounding(Capabilities::NONE)?;
            Capabilities::NONE
        }
        // The init has done both for all.
        Privilege::None => Capabilities::NONE,
        // The bounding set is the same, so that is what user 0 has after exec.
        Privilege::Build => Capabilities::named(&BUILD_CAPABILITIES),
    };
    sys::become_user(user.uid, user.gid)?;
    // Until exec this memory is a copy of the init's, and from here to there a process of the sandbox user.
    // Capabilities go last: while this process has more than its user's others, they cannot look in.
    sys::set_dumpable(false)?;
    sys::set_capabilities(keep)
}
