//! Recipes of local bases: programs that the operator installed, which print a root file system as a tar.
//!
//! A recipe runs as root, because making a root file system takes that, in namespaces of its own: what it mounts and
//! starts is gone when it ends. `/tmp` is a directory of the state's, on disk, with the recipes in it, read-only.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;
use wire::launch::Answer;

use crate::config::Config;
use crate::error::{Failure, Result, Step};
use crate::mount::{self, LOCKED};
use crate::store::{Store, open_beneath};
use crate::{subprocess, sys};

/// How much of what a recipe complains is kept, from its end, in bytes.
const MAX_COMPLAINT: usize = 8 * 1024;
/// Where a recipe finds itself.
const RECIPES: &str = "/tmp/recipes";
/// A recipe's whole environment.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("HOME", "/root"),
    ("LANG", "C.UTF-8"),
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("TMPDIR", "/tmp"),
];

/// Run `recipe` and write the tar that it makes to `output`.
///
/// # Errors
/// It is not a recipe that root installed, or it failed; then with its last words.
pub fn run(config: &Config, store: &Store, recipe: &str, output: &OwnedFd) -> Result<()> {
    let recipes = open_recipes(&config.recipes_dir, recipe)?;
    let (name, dir) = store.bootstrap_dir(recipe)?;
    let outcome = run_in(&dir, &recipes, recipe, output);
    let discarded = store.discard(&store.bootstrap, &name);
    outcome.and(discarded)
}

/// The directory of the recipes, in which `recipe` is one that only root can have put there.
fn open_recipes(path: &Path, recipe: &str) -> Result<OwnedFd> {
    let step = || format!("open recipe {recipe} in {}", path.display());
    let dir = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).step(step)?;
    let file = open_beneath(&dir, recipe, OFlags::RDONLY).step(step)?;
    for (fd, kind) in [(&dir, FileType::Directory), (&file, FileType::RegularFile)] {
        let stat = rustix::fs::fstat(fd).step(step)?;
        if FileType::from_raw_mode(stat.st_mode) != kind || stat.st_uid != 0 || stat.st_mode & 0o022 != 0 {
            return Err(Failure::new(format!("{}: it must belong to root and be writable by nobody else", step())));
        }
    }
    Ok(dir)
}

/// In a process with namespaces of its own, and in one below it that is PID 1 of the new one: when either is ended,
/// everything that the recipe started is.
fn run_in(dir: &OwnedFd, recipes: &OwnedFd, recipe: &str, output: &OwnedFd) -> Result<()> {
    let what = format!("run recipe {recipe}");
    let tmp = mount::clone_of(dir, 0, None).step(|| format!("{what}: clone its directory"))?;
    let attributes = LOCKED | libc::MOUNT_ATTR_RDONLY;
    let recipes = mount::clone_of(recipes, attributes, None).step(|| format!("{what}: clone the recipes"))?;
    let outer = |_: &OwnedFd| {
        sys::unshare(UnshareFlags::NEWNS | UnshareFlags::NEWPID | UnshareFlags::NEWIPC).step(|| "make namespaces")?;
        subprocess::run(&what, None, |_| execute(&tmp, &recipes, recipe, output), |_| Ok(()))
    };
    subprocess::run(&what, None, outer, |_| Ok(())).map(drop)
}

fn execute(tmp: &OwnedFd, recipes: &OwnedFd, recipe: &str, output: &OwnedFd) -> Result<Answer> {
    let step = || format!("prepare recipe {recipe}");
    rustix::mount::mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE).step(step)?;
    rustix::mount::mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)
        .step(step)?;
    mount::attach(tmp, mount::open_own("/tmp")?).step(step)?;
    rustix::fs::mkdir(RECIPES, Mode::from_raw_mode(0o755)).step(step)?;
    mount::attach(recipes, mount::open_own(RECIPES)?).step(step)?;
    let output = output.try_clone().step(step)?;
    let mut child = Command::new(format!("{RECIPES}/{recipe}"))
        .env_clear()
        .envs(ENVIRONMENT)
        .current_dir("/tmp")
        .stdin(Stdio::null())
        .stdout(File::from(output))
        .stderr(Stdio::piped())
        .spawn()
        .step(|| format!("execute recipe {recipe}"))?;
    let complaint = child.stderr.take().map(last_words).unwrap_or_default();
    let status = child.wait().step(|| format!("wait for recipe {recipe}"))?;
    if status.success() {
        return Ok(Answer::Done);
    }
    Err(Failure::reported(format!("run recipe {recipe}"), None, &format!("{status}: {complaint}")))
}

/// The end of what is read, until nobody writes any more.
fn last_words(mut stream: impl Read + AsFd) -> String {
    let mut kept: VecDeque<u8> = VecDeque::new();
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        kept.extend(&buffer[..length]);
        let surplus = kept.len().saturating_sub(MAX_COMPLAINT);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(kept.make_contiguous()).trim().to_owned()
}
