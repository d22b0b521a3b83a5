//! A sandbox for one test: namespaces, a cgroup, the init, and a connection to it.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SocketAddrUnix, SocketFlags, SocketType,
};
use wire::id::RunId;
use wire::init::{Command, CommandAt, FromInit, MAX_FRAME, Privilege, Status, Step, ToInit, Usage};

use crate::sys;

/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// User and group of commands.
pub const AGENT: u32 = 10001;

/// Held while a program is written and while a test forks: a child that holds a file open
/// for writing makes it `ETXTBSY` for all until it executes.
static WRITING: Mutex<()> = Mutex::new(());
static SERIAL: AtomicU32 = AtomicU32::new(0);

/// Where cgroup v2 is mounted.
fn cgroup_mount() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("cgroup v2 is mounted");
    PathBuf::from(line.split(' ').nth(4).unwrap())
}

/// A running init.
pub struct Sandbox {
    pub dir: tempfile::TempDir,
    pub cgroup: PathBuf,
    pub client: Client,
    base: u32,
    pid: i32,
}

impl Sandbox {
    pub fn new() -> Self {
        Self::start(false)
    }

    pub fn start(build: bool) -> Self {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let base = 0x6000_0000 + (std::process::id() % 1000 * 16 + serial % 16) * 65_536;
        let dir = tempfile::Builder::new().prefix("sandbox-init-").tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let built = std::env::var_os("SANDBOX_INIT").map_or(env!("CARGO_BIN_EXE_sandbox-init").into(), PathBuf::from);
        install(&built, &dir.path().join("init"));
        let cgroup = cgroup_mount().join(format!("sandbox-init-test-{}-{serial}", std::process::id()));
        for name in ["", "init", "commands"] {
            fs::create_dir(cgroup.join(name)).unwrap();
        }
        for name in ["cgroup.procs", "commands", "commands/cgroup.procs"] {
            chown(cgroup.join(name), Some(base), Some(base)).unwrap();
        }
        let socket = dir.path().join("init.sock");
        let pid = launch(&cgroup, &listen(&socket), dir.path(), base, build);
        let client = Client::connect(&socket);
        Self { dir, cgroup, client, base, pid }
    }

    /// One more connection; the init drops the one before.
    pub fn reconnect(&mut self) {
        self.client = Client::connect(&self.socket());
    }

    /// This test program as a program inside, see `probe`.
    pub fn probe(&self, what: &str) -> Command {
        let path = self.dir.path().join("probe");
        if !path.exists() {
            install(&std::env::current_exe().unwrap(), &path);
        }
        let argv = [path.to_str().unwrap(), "--exact", "probe::probe", "--nocapture", "--test-threads=1"];
        let mut command = command(&argv);
        command.env.push(("PROBE".into(), what.into()));
        command
    }

    /// A directory inside that belongs to the commands' user.
    pub fn home(&self) -> PathBuf {
        let home = self.dir.path().join("home");
        if !home.exists() {
            fs::create_dir(&home).unwrap();
            chown(&home, Some(self.base + AGENT), Some(self.base + AGENT)).unwrap();
        }
        home
    }

    /// Names of the cgroups of commands.
    pub fn cgroups(&self) -> Vec<String> {
        let entries = fs::read_dir(self.cgroup.join("commands")).unwrap().map(Result::unwrap);
        entries.filter(|e| e.file_type().unwrap().is_dir()).map(|e| e.file_name().into_string().unwrap()).collect()
    }

    /// Runs to the end: both `Exited` and `Emptied`.
    pub fn output(&mut self, command: Command) -> Done {
        let mut run = self.client.run(command);
        let (out, err) = run.read_all();
        match self.client.message() {
            FromInit::Exited { run: id, status, usage } => {
                assert_eq!(id, run.id);
                assert_eq!(self.client.message(), FromInit::Emptied { run: id });
                Done { code: status.exit_code(), out, err, usage }
            }
            other => panic!("{other:?} instead of Exited; {err}"),
        }
    }

    pub fn sh(&mut self, script: &str) -> Done {
        self.output(command(&["sh", "-c", script]))
    }

    /// The init's process.
    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_raw(self.pid).unwrap()
    }

    /// Where a client connects.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("init.sock")
    }

    /// What memory the init takes.
    pub fn memory(&self) -> String {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid)).unwrap();
        let lines = rollup.lines().filter(|line| line.starts_with("Rss") || line.starts_with("Private"));
        lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", ")
    }

    /// Why a command is refused.
    pub fn refusal(&mut self, command: Command) -> (Step, i32) {
        let run = self.client.run(command);
        match self.client.message() {
            FromInit::Refused { run: id, step, errno } if id == run.id => (step, errno),
            other => panic!("{other:?} instead of Refused"),
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = fs::write(self.cgroup.join("cgroup.kill"), "1");
        sys::wait(self.pid);
        let names: Vec<_> = self.cgroups();
        let deadline = Instant::now() + PATIENCE;
        for dir in
            names.iter().map(|name| format!("commands/{name}")).chain(["commands".into(), "init".into(), ".".into()])
        {
            let dir = if dir == "." { self.cgroup.clone() } else { self.cgroup.join(dir) };
            while fs::remove_dir(&dir).is_err() && dir.exists() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

fn install(from: &Path, to: &Path) {
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    fs::copy(from, to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).unwrap();
}

fn listen(path: &Path) -> OwnedFd {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    net::listen(&socket, 16).unwrap();
    socket
}

/// A duplicate with a number that is out of the way of 3 and 4.
fn high(fd: BorrowedFd<'_>) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(fd, 20).unwrap()
}

fn launch(cgroup: &Path, listener: &OwnedFd, dir: &Path, base: u32, build: bool) -> i32 {
    let program = CString::new(dir.join("init").to_str().unwrap()).unwrap();
    let mut argv = vec![c"/.sandbox-init".as_ptr()];
    if build {
        argv.push(c"--build".as_ptr());
    }
    argv.push(std::ptr::null());
    let (mapped_read, mapped_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let mapped_read = high(mapped_read.as_fd());
    let own = File::open(cgroup.join("init")).unwrap();
    let commands = high(File::open(cgroup.join("commands")).unwrap().as_fd());
    let listener = high(listener.as_fd());
    let start = sys::Start {
        cgroup: own.as_fd(),
        listener: listener.as_raw_fd(),
        commands: commands.as_raw_fd(),
        mapped: mapped_read.as_raw_fd(),
        program: &program,
        argv: &argv,
    };
    let forking = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = sys::start(&start).unwrap();
    drop(forking);
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{pid}/{map}"), format!("0 {base} 65536")).unwrap();
    }
    // Not by closing it: another test may be forking, and its child holds every descriptor until it executes.
    rustix::io::write(&mapped_write, b"m").unwrap();
    pid
}

/// How a command ended.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub out: String,
    pub err: String,
    pub usage: Usage,
}

/// What the tests run.
pub fn command(argv: &[&str]) -> Command {
    Command {
        argv: argv.iter().map(|one| (*one).to_owned()).collect(),
        env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
        cwd: "/".into(),
        uid: AGENT,
        gid: AGENT,
        privilege: Privilege::None,
    }
}

/// A command that has been sent, with the read ends of its streams.
pub struct Started {
    pub id: RunId,
    pub out: File,
    pub err: File,
}

impl Started {
    pub fn read_all(&mut self) -> (String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        self.out.read_to_end(&mut out).unwrap();
        self.err.read_to_end(&mut err).unwrap();
        (String::from_utf8_lossy(&out).into_owned(), String::from_utf8_lossy(&err).into_owned())
    }

    /// Reads standard output as far as the first newline.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        while self.out.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }
}

/// `sandboxd`'s side of the control socket.
pub struct Client {
    pub socket: OwnedFd,
}

impl Client {
    pub fn connect(path: &Path) -> Self {
        let client = Self::connect_only(path);
        assert_eq!(client.message(), FromInit::Ready { version: wire::init::VERSION });
        client
    }

    pub fn connect_only(path: &Path) -> Self {
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        net::sockopt::set_socket_timeout(&socket, net::sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
        net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self { socket }
    }

    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, net::SendFlags::NOSIGNAL)
    }

    pub fn send(&self, message: &ToInit, fds: &[BorrowedFd<'_>]) {
        self.send_bytes(&postcard::to_allocvec(message).unwrap(), fds).unwrap();
    }

    pub fn receive(&self) -> Option<(FromInit, Vec<OwnedFd>)> {
        let mut buffer = vec![0; MAX_FRAME];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = net::RecvAncillaryBuffer::new(&mut space);
        let flags = net::RecvFlags::CMSG_CLOEXEC;
        // A call with a timeout is not restarted when a signal, even an ignored one, interrupts it.
        let received = rustix::io::retry_on_intr(|| {
            net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags)
        });
        let len = match received {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(errno) => panic!("receive from the init: {errno}"),
        };
        let fds = control.drain().flat_map(|message| match message {
            net::RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let fds = fds.collect();
        (len > 0).then(|| (postcard::from_bytes(&buffer[..len]).unwrap(), fds))
    }

    pub fn message(&self) -> FromInit {
        self.receive().expect("the init is there").0
    }

    /// The next messages until one fits.
    pub fn until(&self, fits: impl Fn(&FromInit) -> bool) -> FromInit {
        loop {
            let message = self.message();
            if fits(&message) {
                return message;
            }
        }
    }

    pub fn exited(&self, id: RunId) -> Status {
        match self.until(|message| matches!(message, FromInit::Exited { run, .. } if *run == id)) {
            FromInit::Exited { status, .. } => status,
            other => panic!("{other:?}"),
        }
    }

    pub fn emptied(&self, id: RunId) {
        self.until(|message| *message == FromInit::Emptied { run: id });
    }

    pub fn run(&self, command: Command) -> Started {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = RunId::from_u128(0x1000 + u128::from(NEXT.fetch_add(1, Ordering::Relaxed)));
        self.run_as(id, command)
    }

    pub fn run_as(&self, id: RunId, command: Command) -> Started {
        self.run_at(id, CommandAt::Inline(command), None)
    }

    pub fn run_noted(&self, id: RunId, note: Vec<u8>, command: Command) -> Started {
        self.run_with((id, note), CommandAt::Inline(command), None)
    }

    pub fn run_at(&self, id: RunId, command: CommandAt, memfd: Option<BorrowedFd<'_>>) -> Started {
        self.run_with((id, vec![]), command, memfd)
    }

    fn run_with(&self, (id, note): (RunId, Vec<u8>), command: CommandAt, memfd: Option<BorrowedFd<'_>>) -> Started {
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let (out, err) = (pipe(), pipe());
        let mut fds = vec![out.0.as_fd(), out.1.as_fd(), err.0.as_fd(), err.1.as_fd()];
        fds.extend(memfd);
        self.send(&ToInit::Run { run: id, note, command }, &fds);
        Started { id, out: out.0.into(), err: err.0.into() }
    }
}
