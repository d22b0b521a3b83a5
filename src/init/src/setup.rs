//! What the init does to itself, once, before it serves: descriptors, signals, privilege, filters.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use wire::init::{BUILD_CAPABILITIES, CGROUP_FD, LISTENER_FD};

use crate::cgroup::Commands;
use crate::exec::Terms;
use crate::seccomp;
use crate::sys::{self, Capabilities, Errno, Kind};

/// User and group of the init itself, the last of the sandbox's range and no command's: so not even a command of
/// user 0 may signal it, change its limits or priority, or look into its memory.
pub const INIT_ID: u32 = 65_535;

/// Capabilities that the init keeps, of those that its launcher must start it with (as user 0 of the sandbox's
/// user namespace; with `CAP_NET_ADMIN` beside them it brings the loopback interface up):
/// to make commands other users, to end theirs, and to write cgroup files that belong to user 0.
const KEPT: [&str; 5] = ["CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL", "CAP_DAC_OVERRIDE"];
/// And for builds, beside [`BUILD_CAPABILITIES`]: to install filters without `no_new_privs`.
const KEPT_FOR_BUILDS: [&str; 1] = ["CAP_SYS_ADMIN"];

/// Descriptors that one run may take: two read ends and its `cgroup.events`.
const FILES_PER_RUN: u64 = 3;
/// Descriptors for everything else, those of one message under way included.
const FILES_RESERVED: u64 = 40;
/// Descriptors that the init may have open, if its hard limit allows.
const FILES: u64 = FILES_PER_RUN * wire::init::MAX_RUNS as u64 + FILES_RESERVED;

/// The part of the start that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    what: &'static str,
    errno: Errno,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.errno)
    }
}

/// For `map_err`: `what` failed.
pub fn failed(what: &'static str) -> impl Fn(Errno) -> Failed {
    move |errno| Failed { what, errno }
}

/// The init, ready to serve.
#[derive(Debug)]
pub struct Ready {
    /// The listening control socket.
    pub listener: OwnedFd,
    /// Where cgroups of commands are made.
    pub commands: Commands,
    /// What commands have in common.
    pub terms: Terms,
    /// How many runs the limit of descriptors allows.
    pub capacity: usize,
}

/// Does all of it.
///
/// # Errors
/// The first part that failed.
pub fn prepare(build: bool) -> Result<Ready, Failed> {
    let (listener, commands) = descriptors()?;
    sys::block_signals().map_err(failed("block signals"))?;
    match sys::loopback_up() {
        // Not ours (a build on the host's network), none, or one that is up and knows nothing else (gVisor).
        Ok(()) | Err(Errno(libc::EPERM | libc::EACCES | libc::ENODEV | libc::ENOTTY)) => {}
        Err(errno) => return Err(failed("bring the loopback interface up")(errno)),
    }
    sys::set_umask(0o022);
    let files = sys::file_limits().map_err(failed("read the limit of descriptors"))?;
    let own = FILES.min(files.1);
    sys::set_file_limits((own, files.1)).map_err(failed("raise the limit of descriptors"))?;
    drop_privilege(build)?;
    seccomp::confine().map_err(failed("install the seccomp filters"))?;
    // Last, so that whoever holds the other end of standard error reads why the start failed.
    null_streams()?;
    let capacity = usize::try_from(own.saturating_sub(FILES_RESERVED) / FILES_PER_RUN).unwrap_or(usize::MAX);
    Ok(Ready { listener, commands, terms: Terms { build, files }, capacity })
}

/// The two that were given, and no other but the streams.
fn descriptors() -> Result<(OwnedFd, Commands), Failed> {
    sys::close_from(5).map_err(failed("close inherited descriptors"))?;
    let listener = sys::inherited(LISTENER_FD).map_err(failed("take the control socket, descriptor 3"))?;
    let cgroup = sys::inherited(CGROUP_FD).map_err(failed("take the cgroup, descriptor 4"))?;
    if sys::kind(listener.as_fd()) != Ok(Kind::Socket) {
        return Err(failed("take the control socket, descriptor 3")(Errno(libc::ENOTSOCK)));
    }
    sys::set_nonblocking(listener.as_fd()).map_err(failed("make the control socket non-blocking"))?;
    let commands = Commands::new(cgroup).map_err(failed("read the cgroup, descriptor 4"))?;
    Ok((listener, commands))
}

fn null_streams() -> Result<(), Failed> {
    for (fd, flags) in [(0, libc::O_RDONLY), (1, libc::O_WRONLY), (2, libc::O_WRONLY)] {
        let null = sys::open_path(c"/dev/null", flags).map_err(failed("open /dev/null"))?;
        sys::duplicate_onto(null.as_fd(), fd).map_err(failed("put /dev/null in place of a stream"))?;
    }
    Ok(())
}

fn drop_privilege(build: bool) -> Result<(), Failed> {
    let step = failed("drop privilege");
    let granted = if build { Capabilities::named(&BUILD_CAPABILITIES) } else { Capabilities::NONE };
    let mut kept = Capabilities::named(&KEPT).with(granted);
    if build {
        kept = kept.with(Capabilities::named(&KEPT_FOR_BUILDS));
    }
    // The bounding set limits what exec gives to commands, not what the init has now.
    sys::drop_bounding(granted).map_err(&step)?;
    sys::clear_ambient().map_err(&step)?;
    sys::keep_capabilities().map_err(&step)?;
    sys::become_user(INIT_ID, INIT_ID).map_err(&step)?;
    sys::set_capabilities(kept).map_err(failed("keep the capabilities that the init needs"))?;
    // Dumpable again after the change of user, so that /proc/1 belongs to the init's own user. It
    // would be user 0's otherwise, and a command of user 0 could write its oom_score_adj. Nobody else has this
    // user, and looking into memory takes more than that: every capability that the init has.
    sys::set_dumpable(true).map_err(&step)?;
    // In a build set-uid programs work.
    if build { Ok(()) } else { sys::no_new_privileges().map_err(&step) }
}
