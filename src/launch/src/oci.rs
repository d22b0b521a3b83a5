//! Other OCI runtimes: programs of the host's, called by their command line.
//!
//! They get what libcontainer gets: the private root of [`crate::rootfs`], its bundle, and the init's descriptors. The
//! program is bound into that root together with the host's libraries, read-only, and with nothing else of the host's: it
//! could not start what it is not given, nor leave anything behind. Its notes of the container are on the private root's
//! tmpfs and gone with the launch; killing, freezing and listing are the cgroup's, as for every sandbox.
//!
//! ```text
//! container child   private root, subreaper
//!   └ PROGRAM run --detach …            ends
//!       └ PID 1 of the sandbox           a child of the container child until that ends
//! ```

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal};
use rustix::thread::LinkNameSpaceType;
use serde::Deserialize;
use wire::launch::OciRuntime;

use crate::error::{Error, Failure, Result, Step};
use crate::mount::{self, READ_ONLY};
use crate::{subprocess, sys};

/// Where programs find their libraries, on every host that has them in the usual places.
const LIBRARIES: [&str; 4] = ["usr/lib", "usr/lib64", "lib", "lib64"];
/// Where the program is in the private root.
const PROGRAM: &str = "oci-runtime";
/// Most of a program's words that end up in an answer, in bytes.
const MAX_WORDS: u64 = 2048;

/// Which program each runtime is. Absolute paths.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Programs {
    /// Of `crun`.
    pub crun: PathBuf,
    /// Of `runc`.
    pub runc: PathBuf,
    /// Of `runsc`.
    pub runsc: PathBuf,
}

impl Default for Programs {
    fn default() -> Self {
        Self { crun: "/usr/bin/crun".into(), runc: "/usr/bin/runc".into(), runsc: "/usr/bin/runsc".into() }
    }
}

impl Programs {
    /// Each with its key in the configuration.
    #[must_use]
    pub fn all(&self) -> [(&'static str, &PathBuf); 3] {
        [("oci_runtimes.crun", &self.crun), ("oci_runtimes.runc", &self.runc), ("oci_runtimes.runsc", &self.runsc)]
    }

    /// Open the program of `runtime`; none for the built-in one.
    ///
    /// # Errors
    /// [`Error::Refused`], on one line with what to do about it: it is not there, others than root could have written
    /// it.
    pub fn open(&self, runtime: OciRuntime) -> Result<Option<OwnedFd>, Error> {
        let refused = |reason: String| Error::Refused { field: "oci_runtime", reason };
        let path = match runtime {
            OciRuntime::Builtin => return Ok(None),
            OciRuntime::Crun => &self.crun,
            OciRuntime::Runc => &self.runc,
            OciRuntime::Runsc => &self.runsc,
        };
        let name = runtime.name();
        let missing = |errno: Errno| {
            let path = path.display();
            refused(format!(
                "there is no {name} at {path} ({errno}); install it (Debian: apt-get install {name}), or name its path in launch.toml: oci_runtimes = {{ {name} = \"/…\" }}"
            ))
        };
        let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(missing)?;
        let stat = rustix::fs::fstat(&fd).map_err(missing)?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() || stat.st_mode & 0o100 == 0 {
            return Err(refused(format!("{} is not a program", path.display())));
        }
        if stat.st_uid != 0 || stat.st_mode & 0o022 != 0 {
            return Err(refused(format!(
                "{} must belong to root and be writable by nobody else; it belongs to uid {} with mode {:04o}",
                path.display(),
                stat.st_uid,
                stat.st_mode & 0o7777
            )));
        }
        Ok(Some(fd))
    }
}

/// What a host directory of libraries is.
enum Library {
    Mounted(OwnedFd),
    Link(PathBuf),
}

/// A program and its libraries, as mounts that are attached nowhere yet.
pub struct Program {
    file: OwnedFd,
    libraries: Vec<(&'static str, Library)>,
}

impl Program {
    /// Clone what `program` needs of the host.
    ///
    /// # Errors
    /// A mount cannot be cloned.
    pub fn clone_of(program: &OwnedFd) -> Result<Self> {
        let file = mount::clone_of(program, READ_ONLY, None).step(|| "clone a mount of the OCI runtime")?;
        let mut libraries = Vec::new();
        for name in LIBRARIES {
            let path = Path::new("/").join(name);
            // On most hosts these are links to each other; what a host has not, its programs do not need.
            if let Ok(target) = std::fs::read_link(&path) {
                libraries.push((name, Library::Link(target)));
            } else if path.is_dir() {
                libraries.push((name, Library::Mounted(mount::clone_of_path(&path, READ_ONLY)?)));
            }
        }
        Ok(Self { file, libraries })
    }

    /// Attach it in the working directory, the private root that is being made.
    ///
    /// # Errors
    /// A place cannot be made, or a mount not attached.
    pub fn attach(&self) -> Result<()> {
        let mode = Mode::from_raw_mode(0o755);
        rustix::fs::mkdir("usr", mode).step(|| "make usr in the private root")?;
        for (name, library) in &self.libraries {
            let step = || format!("attach the host's {name}");
            match library {
                Library::Link(target) => rustix::fs::symlink(target, *name).step(step)?,
                Library::Mounted(fd) => {
                    rustix::fs::mkdir(*name, mode).step(step)?;
                    mount::attach(fd, mount::open_own(name)?).step(step)?;
                }
            }
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::open(PROGRAM, flags, mode).step(|| "make a place for the OCI runtime")?;
        mount::attach(&self.file, mount::open_own(PROGRAM)?).step(|| "attach the OCI runtime")
    }
}

/// Start the container of `/bundle` as `id`, in the private root, the init's descriptors in place. Returns when its init
/// has done all that it does before it serves.
///
/// # Errors
/// The program ends with another status than 0; its last words are in the failure. That the init died afterwards looks
/// like success: look at the cgroup.
pub fn start(runtime: OciRuntime, id: &str) -> Result<()> {
    let name = runtime.name();
    // Not /dev/null: crun gives its streams to the sandbox's root, and that one would be the host's.
    let (words, streams) = pipe_with(PipeFlags::CLOEXEC).step(|| format!("make a pipe to {name}"))?;
    // Whatever is left without a parent is ours, so that the init's number stays its own as long as we look at it.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).step(|| "become a subreaper")?;
    for number in 0..3 {
        sys::place_fd(streams.as_fd(), number).step(|| format!("place the streams of {name}"))?;
    }
    drop(streams);
    let status = call(runtime, id);
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let null = null.step(|| "open /dev/null")?;
    for number in 0..3 {
        sys::place_fd(null.as_fd(), number).step(|| "put /dev/null in place of the streams")?;
    }
    if status.step(|| format!("wait for {name}"))? != Some(0) {
        return Err(said(name, words));
    }
    without_user_namespaces(init_pid()?)?;
    // The init lets go of its standard error when it is ready to serve, and so does one that dies.
    let mut text = String::new();
    std::fs::File::from(words).take(MAX_WORDS).read_to_string(&mut text).step(|| "wait for the init")?;
    if text.trim().is_empty() {
        Ok(())
    } else {
        Err(Failure::new(format!("start the init by {name}: {}", text.trim())))
    }
}

fn call(runtime: OciRuntime, id: &str) -> Result<Option<i32>, Errno> {
    let global: &[&str] = match runtime {
        OciRuntime::Builtin | OciRuntime::Runsc => return Err(Errno::INVAL),
        // The init is born where it belongs, with the limits beside it: nothing is left to manage.
        OciRuntime::Crun => &["--root", "/state", "--cgroup-manager", "disabled"],
        OciRuntime::Runc => &["--root", "/state"],
    };
    let run = ["run", "--detach", "--bundle", "/bundle", "--pid-file", "/state/pid", "--preserve-fds", "2", id];
    match sys::fork(None)? {
        sys::Forked::Child => {
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            let mut command = Command::new(program());
            let error = command.arg0(runtime.name()).args(global).args(run).env_clear().exec();
            eprintln!("execute it: {error}");
            sys::exit(127)
        }
        sys::Forked::Parent(child) => subprocess::wait(&child),
    }
}

/// The program's last words. It has ended, but what it started may hold the pipe open: nothing is waited for.
pub fn said(name: &str, words: OwnedFd) -> Failure {
    let mut buffer = vec![0; 64 * 1024];
    let length = rustix::fs::fcntl_setfl(&words, OFlags::NONBLOCK)
        .and_then(|()| rustix::io::read(&words, &mut buffer))
        .unwrap_or_default();
    let text = String::from_utf8_lossy(&buffer[..length]);
    let words: String =
        text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_WORDS as usize).collect();
    Failure::new(format!("{name} did not start the sandbox: {words}"))
}

/// Where the program is in the private root.
#[must_use]
pub fn program() -> PathBuf {
    Path::new("/").join(PROGRAM)
}

fn init_pid() -> Result<Pid> {
    let text = std::fs::read_to_string("/state/pid").step(|| "read the number of the init")?;
    let number = text.trim().parse().ok().and_then(Pid::from_raw);
    number.ok_or_else(|| Failure::new("read the number of the init: the OCI runtime wrote none"))
}

/// No user namespace below the sandbox's own, whoever asks: `user.max_user_namespaces` (namespaces(7)), which runtimes
/// do not set. Whose it is depends on who writes, so a child joins the namespace of `init` for that.
fn without_user_namespaces(init: Pid) -> Result<()> {
    let step = || "forbid user namespaces in the sandbox";
    let path = format!("/proc/{init}/ns/user");
    let namespace = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step(step)?;
    match sys::fork(None).step(step)? {
        sys::Forked::Child => {
            let kind = Some(LinkNameSpaceType::User);
            let done = rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).and_then(|()| {
                let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                let file = rustix::fs::open("/proc/sys/user/max_user_namespaces", flags, Mode::empty())?;
                rustix::io::write(file, b"0").map(drop)
            });
            sys::exit(done.err().map_or(0, |errno| errno.raw_os_error()))
        }
        sys::Forked::Parent(child) => match subprocess::wait(&child).step(step)? {
            Some(0) => Ok(()),
            Some(errno) => Err(Failure::of(step(), Errno::from_raw_os_error(errno))),
            None => Err(Failure::new(format!("{}: the process was ended", step()))),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn reason(programs: &Programs, runtime: OciRuntime) -> String {
        match programs.open(runtime) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_program_that_cannot_be_used_is_one_line_with_the_mend() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("runc");
        std::fs::write(&file, "").unwrap();
        let programs = Programs { crun: dir.path().join("none"), runc: file.clone(), ..Programs::default() };
        assert_eq!(reason(&programs, OciRuntime::Builtin), "");
        let missing = reason(&programs, OciRuntime::Crun);
        assert!(missing.starts_with("oci_runtime: there is no crun at ") && missing.contains("apt-get install crun"));
        for (mode, word) in [(0o644, "is not a program"), (0o775, "writable by nobody else"), (0o755, "")] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let reason = reason(&programs, OciRuntime::Runc);
            assert!(reason.contains(word) && reason.is_empty() == word.is_empty(), "{mode:o}: {reason}");
            assert!(!reason.contains('\n'));
        }
    }

    #[test]
    fn what_it_needs_of_the_host_are_its_libraries_and_itself() {
        let program = Programs { crun: "/bin/true".into(), ..Programs::default() }.open(OciRuntime::Crun).unwrap();
        let cloned = Program::clone_of(&program.unwrap()).unwrap();
        let names: Vec<&str> = cloned.libraries.iter().map(|(name, _)| *name).collect();
        assert!(names.contains(&"usr/lib") && names.iter().all(|name| LIBRARIES.contains(name)), "{names:?}");
    }
}
