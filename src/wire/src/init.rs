//! `sandboxd` ↔ `sandbox-init`: the control socket of one sandbox.
//!
//! The socket is `SOCK_SEQPACKET`, bound and listening before the sandbox exists, at
//! `RUNTIME_DIR/sessions/ID/init.sock`. The init gets the listener as descriptor
//! [`LISTENER_FD`] and the sandbox's command cgroup (a directory, opened for reading) as
//! descriptor [`CGROUP_FD`]. It serves one connection at a time: a new one
//! replaces the old, so a restarted `sandboxd` simply connects. A connection that closes
//! ends nothing: commands go on.
//!
//! Every message is one postcard-encoded [`ToInit`] or [`FromInit`] of at most
//! [`MAX_FRAME`] bytes, with its descriptors as `SCM_RIGHTS` of the same message.
//!
//! ```text
//! sandboxd                                   sandbox-init
//!   │ connect                                     │
//!   │◄───────────────────────────────── Ready ────│
//!   │── Run{run, …} [out_r out_w err_r err_w] ───►│ clone3 into cgroup RUN, drop, exec
//!   │◄── Exited{run, status, usage} ──────────────│ main process is gone (output is in the pipes)
//!   │◄── Emptied{run} ────────────────────────────│ no process of it is left; the run is forgotten
//!   │── Stop{run, grace_ms} ─────────────────────►│ TERM to all, cgroup.kill after the grace
//!   │── List ────────────────────────────────────►│
//!   │◄── Runs{count} ─────────────────────────────│ followed by `count` Run frames,
//!   │◄── Listed{…} [out_r err_r] × count ─────────│ each with the read ends that the init kept
//!   │── Forget{run} ─────────────────────────────►│ its end is recorded: not listed again
//!   │── File{run, …} [out_w (bytes)] ────────────►│ as Run, but the child executes nothing: wire::file
//! ```
//!
//! A [`ToInit::File`] ends as a run does, by `Exited` and `Emptied` or `Refused`, and is stopped as one. It is never
//! listed: nobody but who asked can use its answer.
//!
//! Neither side trusts the other further: `sandboxd` treats what arrives as hostile
//! (the init lives beside untrusted code), bounds it and applies it to this session alone.

use serde::{Deserialize, Serialize};

use crate::file::FileRequest;
use crate::id::RunId;

/// Version of this protocol; the init names it in [`FromInit::Ready`].
pub const VERSION: u32 = 3;
/// The oldest version whose inits are spoken to: a sandbox outlives an upgrade of the service. It lacks [`ToInit::File`].
pub const OLDEST_VERSION: u32 = 2;
/// The listening control socket, in the init.
pub const LISTENER_FD: i32 = 3;
/// The directory of the cgroup under which the init makes one for each command.
pub const CGROUP_FD: i32 = 4;
/// Largest message either way, in bytes. A longer [`Command`] travels in a memfd.
pub const MAX_FRAME: usize = 64 * 1024;
/// Largest encoded [`Command`] in a memfd, in bytes (the kernel's own ceiling on argument and
/// environment strings is a quarter of the 8 MiB stack; execve(2)).
pub const MAX_COMMAND: usize = 4 * 1024 * 1024;
/// Largest note of a run, in bytes.
pub const MAX_NOTE: usize = 2048;
/// Runs that are over but not forgotten, that one init remembers; the oldest give way.
pub const MAX_ENDED: usize = 256;
/// Commands that one init keeps at once, running or with processes left behind.
pub const MAX_RUNS: usize = 1024;
/// Where the launcher puts the init in every sandbox.
pub const INIT_PATH: &str = "/.sandbox-init";

/// What a command is: everything that execve(2) needs and who runs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments, at least one; passed literally. A program without `/` is
    /// looked for on the `PATH` of `env`, inside the sandbox, as the command's user.
    pub argv: Vec<String>,
    /// The whole environment, in order, already layered.
    pub env: Vec<(String, String)>,
    /// Absolute directory to start in.
    pub cwd: String,
    /// User id inside the sandbox, below 65535: that one is the init's own.
    pub uid: u32,
    /// Group id inside the sandbox, below 65535; also its only supplementary group.
    pub gid: u32,
    /// What the command may do.
    pub privilege: Privilege,
}

/// What a command may do inside its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Privilege {
    /// No capability, empty bounding set, no new privileges. Every session's commands.
    None,
    /// The capabilities of [`BUILD_CAPABILITIES`], all within the sandbox's own user
    /// namespace, and set-uid programs work. Steps of an image build only; the init refuses it
    /// unless it was started with the argument `--build`.
    Build,
}

/// Capabilities (capabilities(7)) of a build step: what package managers need to own files.
pub const BUILD_CAPABILITIES: [&str; 11] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// Where the [`Command`] of a [`ToInit::Run`] is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandAt {
    /// In this message.
    Inline(Command),
    /// In a sealed memfd of `len` bytes (at most [`MAX_COMMAND`]), the message's last descriptor.
    Memfd {
        /// Encoded length in bytes.
        len: u32,
    },
}

/// `sandboxd` → init.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToInit {
    /// Run a command. Descriptors, in order: read and write end of its standard output, read
    /// and write end of its standard error (and the memfd). Standard input is at EOF. The init keeps the
    /// read ends until the run is [`FromInit::Emptied`], so that the death of `sandboxd` breaks no pipe.
    Run {
        /// The client's name for it; a name that is running is refused with `EEXIST`.
        run: RunId,
        /// What `sandboxd` wants to be told of it after a restart; means nothing to the init. At most [`MAX_NOTE`] bytes.
        note: Vec<u8>,
        /// What to run.
        command: CommandAt,
    },
    /// End every process of a run: `SIGTERM` to each, after `grace_ms` `cgroup.kill`.
    /// For a run that is not known: nothing.
    Stop {
        /// Which.
        run: RunId,
        /// Milliseconds between the two; 0 kills at once.
        grace_ms: u32,
    },
    /// Send one signal to the main process of a run.
    Signal {
        /// Which.
        run: RunId,
        /// Signal number, signal(7).
        signal: u8,
    },
    /// The end of a run's main process is recorded: it need not be told again. One that is lost, because `sandboxd` died
    /// right after sending it, makes the next one record that end a second time.
    Forget {
        /// Which.
        run: RunId,
    },
    /// Tell which runs there are, and which have ended and were not told or not recorded (after a restart of `sandboxd`).
    List,
    /// Do something to a file, inside. Descriptors, in order: the write end of the pipe for the answer, and for a write
    /// a memfd with the bytes. Since version 3.
    File {
        /// The client's name for it, as of a run.
        run: RunId,
        /// What to do.
        request: FileRequest,
    },
}

/// Init → `sandboxd`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromInit {
    /// The first message on every connection.
    Ready {
        /// [`VERSION`].
        version: u32,
    },
    /// The command could not be started; its streams are closed and it is forgotten.
    Refused {
        /// Which.
        run: RunId,
        /// At which step.
        step: Step,
        /// errno(3) of that step.
        errno: i32,
    },
    /// The main process has ended and been reaped. Others of the run may be left.
    Exited {
        /// Which.
        run: RunId,
        /// How.
        status: Status,
        /// What it and its reaped children used.
        usage: Usage,
    },
    /// The run's cgroup is empty and removed: the run is over and forgotten. Follows `Exited`.
    Emptied {
        /// Which.
        run: RunId,
    },
    /// Answer to [`ToInit::List`]: so many [`FromInit::Listed`] follow.
    Runs {
        /// At most [`MAX_RUNS`] and [`MAX_ENDED`].
        count: u32,
    },
    /// One run. Descriptors, if `streams`: read end of standard output, read end of standard error.
    Listed {
        /// Which.
        run: RunId,
        /// What came with it.
        note: Vec<u8>,
        /// Milliseconds since it was started, or from then until its main process ended.
        age_ms: u64,
        /// How its main process ended, if it has.
        exited: Option<Status>,
        /// Whether [`ToInit::Forget`] has been received for it.
        forgotten: bool,
        /// Whether processes of it are left, and so its streams.
        streams: bool,
    },
    /// A run met limits of its sandbox. Comes right before the run's `Exited`, and before its `Listed` if it has ended.
    /// Since version 3.
    Limited {
        /// Which.
        run: RunId,
        /// Which limits.
        limits: Met,
    },
}

/// Limits of its sandbox that a run met before its main process ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Met {
    /// The kernel killed it, whole, for want of memory (`oom_kill` of its `memory.events`).
    pub memory: bool,
    /// A fork failed while it ran, for the limit of processes: its own, or, since Linux 6.11, another run's.
    pub pids: bool,
}

impl Met {
    /// Whether it met any.
    #[must_use]
    pub fn any(self) -> bool {
        self.memory || self.pids
    }
}

/// Step at which a command failed to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// The request itself was refused (`EINVAL`, `EEXIST`, `EPERM` for a build's privilege, `EAGAIN` over [`MAX_RUNS`]).
    Request,
    /// Making the command's cgroup.
    Cgroup,
    /// Forking (`EAGAIN`: the process limit).
    Fork,
    /// Dropping privilege.
    Drop,
    /// Entering the working directory.
    Chdir,
    /// Executing the program (`ENOENT`: shells answer 127; otherwise 126).
    Exec,
}

/// How a process ended, wait(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// It exited with this status.
    Code(u8),
    /// This signal ended it.
    Signal(u8),
}

impl Status {
    /// The exit code as a shell reports it: 128 + N for signal N.
    #[must_use]
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Code(code) => i32::from(code),
            Self::Signal(signal) => 128 + i32::from(signal),
        }
    }
}

/// What a command used, getrusage(2) of the reaped main process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// User CPU time in microseconds.
    pub user_us: u64,
    /// System CPU time in microseconds.
    pub system_us: u64,
    /// Largest resident set of any one process of it, in KiB.
    pub max_rss_kib: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_frame_round_trips_and_is_small() {
        let command = Command {
            argv: vec!["true".into()],
            env: vec![("PATH".into(), "/bin".into())],
            cwd: "/workspace".into(),
            uid: 10001,
            gid: 10001,
            privilege: Privilege::None,
        };
        let frame = ToInit::Run { run: RunId::from_u128(7), note: vec![], command: CommandAt::Inline(command) };
        let bytes = postcard::to_allocvec(&frame).unwrap();
        assert!(bytes.len() < 64, "{} bytes", bytes.len());
        assert_eq!(postcard::from_bytes::<ToInit>(&bytes).unwrap(), frame);
    }

    #[test]
    fn signals_count_from_128() {
        assert_eq!(Status::Signal(9).exit_code(), 137);
        assert_eq!(Status::Code(7).exit_code(), 7);
    }
}
