//! gVisor: a sandbox whose kernel is a process of its own, `runsc`.
//!
//! It is called as the others are ([`crate::oci`]), and takes no descriptor but its streams. So the init gets the far end of a
//! tunnel as its standard input, and a process without any privilege holds the control socket and the near end:
//!
//! ```text
//! container child   commands/gvisor, private root
//!   ├ runsc run --detach …                    ends
//!   │   └ the sandbox's kernel, its file server: in commands/gvisor, under the limits
//!   └ sandbox-init --outside ID               in init, beside them
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::{PipeFlags, pipe_with};
use wire::init::INIT_PATH;
use wire::launch::{IDS_PER_SANDBOX, OciRuntime};

use crate::error::{Result, Step};
use crate::{oci, subprocess, sys};

/// Start the container of `/bundle` as `id`, in the private root, the control socket in place as descriptor 3. The
/// tunnel's near end runs in `beside` as the last id of the range that begins with `first_id`: the init's own.
///
/// # Errors
/// A process cannot be made, or runsc ends with another status than 0; its last words are in the failure.
pub fn start(id: &str, first_id: u32, beside: BorrowedFd<'_>) -> Result<()> {
    let (near, far) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .step(|| "make a tunnel")?;
    let (words, streams) = pipe_with(PipeFlags::CLOEXEC).step(|| "make a pipe to runsc")?;
    outside(&near, first_id + IDS_PER_SANDBOX - 1, beside)?;
    drop(near);
    let status = match sys::fork(None).step(|| "fork a process for runsc")? {
        sys::Forked::Child => run(id, &far, &streams),
        sys::Forked::Parent(child) => subprocess::wait(&child).step(|| "wait for runsc")?,
    };
    drop((far, streams));
    if status == Some(0) { Ok(()) } else { Err(oci::said(OciRuntime::Runsc.name(), words)) }
}

/// The near end, in the cgroup `beside`, for as long as the sandbox lasts.
fn outside(near: &OwnedFd, id: u32, beside: BorrowedFd<'_>) -> Result<()> {
    match sys::fork(Some(beside)).step(|| "fork a process for the tunnel")? {
        sys::Forked::Child => {
            let placed = sys::place_fd(near.as_fd(), 4).and_then(|()| rustix::process::setsid());
            if placed.is_ok() {
                sys::close_from(5);
                let program = format!("/rootfs{INIT_PATH}");
                let _ = Command::new(program).args(["--outside", &id.to_string()]).env_clear().exec();
            }
            sys::exit(127)
        }
        // Whoever starts nothing else is not waited for: the cgroup says whether it lives.
        sys::Forked::Parent(_) => Ok(()),
    }
}

fn run(id: &str, far: &OwnedFd, streams: &OwnedFd) -> ! {
    let placed = sys::place_fd(far.as_fd(), 0)
        .and_then(|()| sys::place_fd(streams.as_fd(), 1))
        .and_then(|()| sys::place_fd(streams.as_fd(), 2));
    if placed.is_ok() {
        sys::close_from(3);
        let error = Command::new(oci::program()).arg0("runsc").args(ARGUMENTS).arg(id).env_clear().exec();
        eprintln!("execute it: {error}");
    }
    sys::exit(127)
}

/// Without KVM; files as the host sees them, because the service writes into the workspace from outside; nothing of the
/// host's to connect to.
const ARGUMENTS: [&str; 17] = [
    "--root",
    "/state",
    "--platform",
    "ptrace",
    "--network",
    "none",
    "--host-uds",
    "none",
    "--file-access",
    "shared",
    "--ignore-cgroups",
    "run",
    "--detach",
    "--bundle",
    "/bundle",
    "--pid-file",
    "/state/pid",
];
