//! In a sandbox whose kernel is gVisor: what the init finds elsewhere it makes for itself, and a process on each side carries
//! what descriptors would ([`crate::tunnel`]).
//!
//! ```text
//! host:    sandbox-init --outside ID    3: the control socket, 4: the tunnel
//! inside:  sandbox-init --inside        0: the tunnel               PID 1
//!            ├─ the tunnel's inside, a child of another name
//!            └─ then everything as elsewhere: 3 a control socket, 4 a cgroup, of its own making
//! ```

use std::ffi::CStr;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::seccomp;
use crate::setup::{Failed, INIT_ID, failed};
use crate::sys::{self, Capabilities, Fork};
use crate::tunnel::{Broken, Side, Tunnel};

/// The init's own: no command gets into it.
const PRIVATE: &CStr = c"/dev/.sandbox-init";
const SOCKET: &CStr = c"/dev/.sandbox-init/control";
const CGROUP: &CStr = c"/dev/.sandbox-init/cgroup";

/// Why the tunnel is over, or was never there.
#[derive(Debug)]
pub enum Ended {
    /// It could not begin.
    Failed(Failed),
    /// It was cut.
    Broken(Broken),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failed) => failed.fmt(f),
            Self::Broken(Broken(why)) => write!(f, "the tunnel is over: {why}"),
        }
    }
}

/// Makes descriptors 3 and 4, and starts the tunnel. What comes after is the same as elsewhere.
///
/// # Errors
/// The part that failed.
pub fn inside() -> Result<(), Failed> {
    let far = sys::duplicate_high(0).map_err(failed("take the tunnel, descriptor 0"))?;
    sys::make_private_dir(PRIVATE).map_err(failed("make a directory of the init's"))?;
    sys::make_private_dir(CGROUP).map_err(failed("make a place for cgroups"))?;
    sys::mount_cgroup(CGROUP, c"job").map_err(failed("mount cgroups"))?;
    let cgroup = sys::open_path(CGROUP, libc::O_RDONLY | libc::O_DIRECTORY).and_then(out_of_the_way);
    let cgroup = cgroup.map_err(failed("open the cgroup"))?;
    let listener = sys::listen_at(SOCKET).and_then(out_of_the_way).map_err(failed("listen"))?;
    for path in [SOCKET, PRIVATE] {
        sys::give(path, INIT_ID).map_err(failed("give the control socket to the init's user"))?;
    }
    match sys::fork().map_err(failed("start the tunnel"))? {
        Fork::Parent(_) => {}
        Fork::Child => {
            drop((listener, cgroup));
            // Whatever it says, nobody hears: the tunnel is what would carry it.
            let _ = carry(INIT_ID, || Ok(Side::Inside(SOCKET)), far);
            sys::exit_now(0)
        }
    }
    drop(far);
    sys::put(&listener, 3).map_err(failed("place the control socket"))?;
    sys::put(&cgroup, 4).map_err(failed("place the cgroup"))?;
    // The last of the tunnel in this process; the streams become /dev/null later.
    sys::put(&sys::open_path(c"/dev/null", libc::O_RDONLY).map_err(failed("open /dev/null"))?, 0)
        .map_err(failed("let go of the tunnel"))
}

/// `fd` by a number that nothing else is put at.
fn out_of_the_way(fd: OwnedFd) -> sys::Result<OwnedFd> {
    sys::duplicate_high(fd.as_raw_fd())
}

/// Carries for the sandbox, as the host's user `id`, without any privilege; until it is over.
pub fn outside(id: u32) -> Ended {
    let take = |number, what| sys::inherited(number).map_err(failed(what));
    if let Err(errno) = sys::close_from(5) {
        return Ended::Failed(failed("close inherited descriptors")(errno));
    }
    let (listener, far) = match (take(3, "take the control socket"), take(4, "take the tunnel")) {
        (Ok(listener), Ok(far)) => (listener, far),
        (Err(failed), _) | (_, Err(failed)) => return Ended::Failed(failed),
    };
    carry(id, || Ok(Side::Outside(listener)), far)
}

fn carry(id: u32, side: impl FnOnce() -> Result<Side, Failed>, far: OwnedFd) -> Ended {
    match confined(id).and_then(|()| side()) {
        Ok(side) => match Tunnel::new(side, far) {
            Ok(tunnel) => Ended::Broken(tunnel.run()),
            Err(broken) => Ended::Broken(broken),
        },
        Err(failed) => Ended::Failed(failed),
    }
}

/// Another user, no capability, the filters of every sandbox.
fn confined(id: u32) -> Result<(), Failed> {
    let step = failed("drop privilege");
    sys::block_signals().map_err(failed("block signals"))?;
    sys::drop_bounding(Capabilities::NONE).map_err(&step)?;
    sys::clear_ambient().map_err(&step)?;
    sys::become_user(id, id).map_err(&step)?;
    sys::set_capabilities(Capabilities::NONE).map_err(&step)?;
    sys::set_dumpable(false).map_err(&step)?;
    sys::no_new_privileges().map_err(&step)?;
    seccomp::confine().map_err(failed("install the seccomp filters"))
}
