//! A file system in a file, mounted as a state directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::daemon::{StateDir, wait_for};

/// Project ids that the launcher gives to sessions begin so (`quota_project_base`, and 2^20 of them).
const PROJECTS: [&str; 2] = ["#1879", "#1880"];

/// Which file system, and whether it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// ext4 as it comes.
    Plain,
    /// ext4 with project quotas in force.
    Ext4,
    /// xfs with project quotas in force.
    Xfs,
}

impl Kind {
    /// What makes one in a file.
    fn make(self) -> Command {
        let (program, arguments): (_, &[&str]) = match self {
            Self::Plain => ("mkfs.ext4", &["-q", "-F"]),
            Self::Ext4 => ("mkfs.ext4", &["-q", "-F", "-O", "quota,project", "-E", "quotatype=prjquota"]),
            Self::Xfs => ("mkfs.xfs", &["-q", "-f"]),
        };
        let mut command = Command::new(program);
        command.args(arguments);
        command
    }

    /// What mounts one.
    fn mount(self) -> Command {
        let (name, options) = match self {
            Self::Plain => ("ext4", "loop"),
            Self::Ext4 => ("ext4", "loop,prjquota"),
            Self::Xfs => ("xfs", "loop,prjquota"),
        };
        let mut command = Command::new("mount");
        command.args(["-t", name, "-o", options]);
        command
    }

    /// What a program says whose write is more than its project may have: xfs says of a project what it says of a full disk.
    #[must_use]
    pub fn refusal(self) -> &'static str {
        match self {
            Self::Plain | Self::Xfs => "No space left on device",
            Self::Ext4 => "Disk quota exceeded",
        }
    }
}

/// A file system of a test's own; gone with it.
#[derive(Debug)]
pub struct Disk {
    /// Where it is mounted.
    pub state: StateDir,
    /// Which it is.
    pub kind: Kind,
    image: PathBuf,
}

impl Disk {
    /// One of this size (as `truncate` has it).
    ///
    /// # Errors
    /// What this host lacks: a program, the file system, a loop device.
    pub fn new(size: &str, kind: Kind) -> Result<Self, String> {
        let state = StateDir::new();
        let image = state.0.with_extension("disk");
        let disk = Self { state, kind, image };
        run(Command::new("truncate").args(["-s", size]).arg(&disk.image))?;
        run(kind.make().arg(&disk.image))?;
        run(kind.mount().arg(&disk.image).arg(&disk.state.0))?;
        fs::set_permissions(&disk.state.0, fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())?;
        Ok(disk)
    }

    /// Bytes of each project of sessions, once all are 0 or a minute has gone: the trash is emptied behind the answer.
    /// None where `repquota` is missing.
    #[must_use]
    pub fn projects(&self) -> Option<Vec<u64>> {
        let ask = || {
            let output = Command::new("repquota").args(["-P", "-n", "-O", "csv"]).arg(&self.state.0).output().ok()?;
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "repquota: {error}");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let bytes = |line: &str| line.split(',').nth(3)?.parse::<u64>().ok().map(|kib| kib << 10);
            let ours = |line: &&str| PROJECTS.iter().any(|first| line.starts_with(first));
            Some(text.lines().filter(ours).filter_map(bytes).collect::<Vec<_>>())
        };
        ask()?;
        wait_for(Duration::from_secs(10), || ask().filter(|all| all.iter().all(|bytes| *bytes == 0))).or_else(ask)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The loop device is of the mount, and goes with it.
        let _ = Command::new("umount").arg("-l").arg(&self.state.0).stderr(Stdio::null()).status();
        let _ = fs::remove_file(&self.image);
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")))
}
