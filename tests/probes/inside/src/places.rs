//! What of the host is within reach: by a descriptor, a directory, another process, a program.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use crate::{name, sys};

/// Directories above each other are never so many.
const HIGHEST: usize = 128;
/// Directories that [`find`] looks into, at most so deep.
const DEPTH: usize = 6;

/// Every open descriptor and what it is.
pub fn descriptors() -> String {
    let mut found = Vec::new();
    for fd in 0..4096 {
        if sys::call(libc::SYS_fcntl, [fd, libc::F_GETFD as usize, 0, 0, 0, 0]).is_ok() {
            let link = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
            let link = link.to_string_lossy().into_owned();
            found.push(format!("{fd} {}", link.split(':').next().unwrap_or_default()));
        }
    }
    found.join(", ")
}

/// Go up from the working directory as far as it goes, and look for `marker` there.
pub fn climb(marker: &str) -> String {
    let starts =
        [".", "/proc/self/cwd", "/proc/self/root", "/proc/self/fd/0/..", "/proc/1/cwd", "/proc/1/root", "/dev/fd/.."];
    let marker = marker.trim_start_matches('/');
    for start in starts {
        let above = format!("{start}/{}", "../".repeat(HIGHEST));
        if fs::symlink_metadata(format!("{above}{marker}")).is_ok() {
            return format!("DONE: {marker} from {start}");
        }
    }
    "not found".to_owned()
}

/// The same for a process whose root is `root`, but whose working directory was left outside of it.
pub fn climb_from(root: &str, cwd: &str, marker: &str) -> String {
    let Ok(root) = CString::new(root) else { return "no root".to_owned() };
    if std::env::set_current_dir(cwd).is_err()
        || sys::call(libc::SYS_chroot, [root.as_ptr() as usize, 0, 0, 0, 0, 0]).is_err()
    {
        return "no root".to_owned();
    }
    climb(marker)
}

type Attempt = (String, Box<dyn FnOnce() -> String>);

/// Look into a process.
pub fn process(pid: &str) -> Vec<Attempt> {
    let mut attempts: Vec<Attempt> = Vec::new();
    for file in ["environ", "maps", "mem", "stack", "auxv", "cmdline", "mountinfo", "status"] {
        let path = format!("/proc/{pid}/{file}");
        attempts.push((format!("process {file}"), Box::new(move || name::io(File::open(path)))));
    }
    for link in ["exe", "root", "cwd", "ns/mnt"] {
        let path = format!("/proc/{pid}/{link}");
        attempts.push((format!("process {link}"), Box::new(move || name::io(fs::read_link(path)))));
    }
    for directory in ["fd", "task", "map_files"] {
        let path = format!("/proc/{pid}/{directory}");
        attempts.push((format!("process {directory}"), Box::new(move || name::io(fs::read_dir(path)))));
    }
    attempts
}

/// Look into a process of one's own kind: shows that [`process`] finds what there is.
pub fn sibling() -> Vec<Attempt> {
    process(&std::process::id().to_string())
}

/// Open a program for writing while it has just been run, through the descriptor that the kernel had of it.
pub fn overwrite(program: &str) -> String {
    let Ok(path) = CString::new(program) else { return "no program".to_owned() };
    let running = match sys::fork() {
        Err(errno) => return name::errno(errno),
        Ok(None) => {
            let arguments = [path.as_ptr(), c"overwritten".as_ptr(), std::ptr::null()];
            let _ = sys::call(libc::SYS_execve, [path.as_ptr() as usize, arguments.as_ptr() as usize, 0, 0, 0, 0]);
            sys::exit(127)
        }
        Ok(Some(pid)) => pid,
    };
    let mut results = Vec::new();
    let held = hold_running(running, program).or_else(|_| File::open(program));
    sys::wait(running);
    match held {
        Err(error) => results.push(name::io::<()>(Err(error))),
        Ok(held) => {
            let through = format!("/proc/self/fd/{}", held.as_raw_fd());
            results.push(name::io(OpenOptions::new().write(true).open(through)));
        }
    }
    results.push(name::io(OpenOptions::new().write(true).open(program)));
    if results.iter().any(|result| result == "DONE") { "DONE".to_owned() } else { results.join(" ") }
}

/// The program of a process, once it is `program`; an error when the process has ended before that was seen.
fn hold_running(pid: i32, program: &str) -> std::io::Result<File> {
    loop {
        let held = File::open(format!("/proc/{pid}/exe"))?;
        let link = fs::read_link(format!("/proc/self/fd/{}", held.as_raw_fd()))?;
        if link == Path::new(program) || program.starts_with("/proc/") {
            return Ok(held);
        }
    }
}

/// Who this is, after whatever its file gave it.
pub fn identity() -> String {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.map(|value| value.split_whitespace().collect::<Vec<_>>().join(",")).unwrap_or_default()
    };
    format!("uid {} gid {} capabilities {}", of("Uid"), of("Gid"), of("CapEff"))
}

/// A copy of this program that whoever owns it lends to everybody: set-uid and set-gid.
pub fn plant(path: &str) -> String {
    let copied = fs::copy("/proc/self/exe", path);
    let lent = copied.and_then(|_| fs::set_permissions(path, fs::Permissions::from_mode(0o6755)));
    name::io(lent)
}

/// Exchange two names, so many times, with breaths between.
pub fn swap(one: &str, other: &str, times: &str) -> String {
    let (Ok(one), Ok(other), Ok(times)) = (CString::new(one), CString::new(other), times.parse::<u32>()) else {
        return "what?".to_owned();
    };
    let here = libc::AT_FDCWD as usize;
    for turn in 0..times {
        let names = [here, one.as_ptr() as usize, here, other.as_ptr() as usize, libc::RENAME_EXCHANGE as usize, 0];
        if let Err(errno) = sys::call(libc::SYS_renameat2, names) {
            return format!("{} after {turn}", name::errno(errno));
        }
        std::thread::sleep(std::time::Duration::from_micros(20));
    }
    format!("DONE: {times}")
}

/// Each file of a directory: what it is, and whether it opens.
pub fn devices(directory: &str) -> Vec<Attempt> {
    let mut attempts: Vec<Attempt> = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_device = entry.file_type().is_ok_and(|kind| kind.is_char_device() || kind.is_block_device());
        let what = if is_device { "device" } else { "file" };
        let title = format!("{what} {}", path.display());
        attempts.push((title, Box::new(move || name::io(OpenOptions::new().read(true).open(path)))));
    }
    attempts
}

/// What file system is at each place where one has to be.
pub fn mounts() -> String {
    let kind = |path: &str| -> String {
        let Ok(path) = CString::new(path) else { return "?".to_owned() };
        let mut stat = [0_u64; 32];
        let answer = sys::call(libc::SYS_statfs, [path.as_ptr() as usize, stat.as_mut_ptr() as usize, 0, 0, 0, 0]);
        let Ok(_) = answer else { return "?".to_owned() };
        match i64::from_ne_bytes(stat[0].to_ne_bytes()) {
            0x9fa0 => "proc".to_owned(),
            0x6265_6572 => "sysfs".to_owned(),
            0x0102_1994 => "tmpfs".to_owned(),
            0x794c_7630 => "overlay".to_owned(),
            0xef53 => "ext4".to_owned(),
            other => format!("{other:#x}"),
        }
    };
    let places = ["/proc", "/sys", "/dev", "/tmp", "/workspace"];
    places.map(|path| format!("{path}={}", kind(path))).join(" ")
}

/// Whether a file of this name is anywhere below the root.
pub fn find(wanted: &str) -> String {
    fn look(directory: &Path, wanted: &[u8], depth: usize) -> Option<String> {
        for entry in fs::read_dir(directory).ok()?.flatten() {
            let path = entry.path();
            if entry.file_name().as_bytes() == wanted {
                return Some(path.display().to_string());
            }
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir
                && depth > 0
                && path != Path::new("/proc")
                && let Some(found) = look(&path, wanted, depth - 1)
            {
                return Some(found);
            }
        }
        None
    }
    look(Path::new("/"), wanted.as_bytes(), DEPTH)
        .map_or_else(|| "not found".to_owned(), |path| format!("DONE: {path}"))
}
