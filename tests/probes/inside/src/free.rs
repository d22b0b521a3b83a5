//! Where nothing stops it: as whoever calls it, in namespaces of its own that are thrown away, so that what works
//! harms nobody.

use crate::{name, sys};

/// Run `act` with the rest of the arguments, in the copy of this process that is PID 1 of the new namespaces.
pub fn run(arguments: &[&str], act: impl FnOnce(&[&str]) -> bool) -> bool {
    if let Err(errno) = leave() {
        println!("free\t{}", name::errno(errno));
        return true;
    }
    match sys::fork() {
        Err(_) => false,
        Ok(None) => {
            let known = settle().is_ok() && act(arguments);
            sys::exit(i32::from(!known))
        }
        Ok(Some(pid)) => libc::WEXITSTATUS(sys::wait(pid)) == 0,
    }
}

fn leave() -> Result<(), i32> {
    let all = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWNET | libc::CLONE_NEWPID;
    sys::call(libc::SYS_unshare, [all as usize, 0, 0, 0, 0, 0]).map(drop)
}

/// Mounts that no other namespace sees, a /proc of these processes, a /tmp that is thrown away.
fn settle() -> Result<(), i32> {
    let mount = |kind: &std::ffi::CStr, target: &std::ffi::CStr, flags: u64| {
        let (kind, target) = (kind.as_ptr() as usize, target.as_ptr() as usize);
        sys::call(libc::SYS_mount, [kind, target, kind, flags as usize, 0, 0])
    };
    mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE)?;
    mount(c"proc", c"/proc", 0)?;
    mount(c"tmpfs", c"/tmp", 0)?;
    Ok(())
}
