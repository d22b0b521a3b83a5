//! A launcher of one's own, in a temporary directory, spoken to as the service would.
#![allow(dead_code)] // Each test binary uses a part.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests fail by panicking, as tests do.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use wire::id::{LayerId, SessionId};
use wire::launch::{Answer, Compression, Kind, Limits, MAX_MESSAGE, Network, OciRuntime, Plan, Request};

/// Longest wait for anything; it is spent only when a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// The service's uid in tests.
pub const SERVICE: u32 = 61_234;
/// First id of the range on disk.
pub const DISK: u32 = 0x7000_0000;
/// The sandbox user's id.
pub const USER: u32 = 10_001;

pub struct Launcher {
    pub dir: TempDir,
    pub process: Child,
    cgroup: PathBuf,
}

/// What the sandbox's PID 1 does: a shell script of the image's busybox.
pub const SLEEP: &str = "exec busybox sleep 1000";

fn cgroup2() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2")).expect("a cgroup2 mount");
    line.split(' ').nth(1).unwrap().into()
}

impl Launcher {
    /// Start one whose sandboxes run `script` as PID 1, with more lines of configuration.
    pub fn start(script: &str, more: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let dir = tempfile::Builder::new().prefix("launch-test-").tempdir().unwrap();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let cgroup = cgroup2().join(format!("sandboxd-launch-test-{}-{count}", std::process::id()));
        let at = |name: &str| dir.path().join(name);
        for name in ["state", "run", "recipes"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        write_mode(&at("init"), &format!("#!/bin/busybox sh\nexport PATH=/bin\n{script}\n"), 0o755);
        std::fs::copy("/bin/busybox", at("busybox")).expect("busybox-static is installed");
        let config = format!(
            "state_dir = {:?}\nruntime_dir = {:?}\nsocket = {:?}\nservice_uid = {SERVICE}\nservice_gid = {SERVICE}\n\
             cgroup_root = {cgroup:?}\ninit = {:?}\nrecipes_dir = {:?}\nlimits = \"best-effort\"\n{more}\n",
            at("state"),
            at("run"),
            at("launch.sock"),
            at("init"),
            at("recipes"),
        );
        write_mode(&at("launch.toml"), &config, 0o600);
        chmod(dir.path(), 0o755);
        let process = spawn(&at("launch.toml"));
        let launcher = Self { process, dir, cgroup };
        launcher.wait_until_ready();
        launcher
    }

    fn wait_until_ready(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.connect_as(SERVICE).is_none() {
            assert!(Instant::now() < deadline, "the launcher does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kill the launcher, and start another one on the same state.
    pub fn restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = spawn(&self.path("launch.toml"));
        self.wait_until_ready();
    }

    /// Likewise, the new one executed by the program and arguments `by`.
    pub fn restart_in(&mut self, by: &[&str]) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let launcher = [env!("CARGO_BIN_EXE_sandboxd-launch"), "--config"];
        self.process = Command::new(by[0]).args(&by[1..]).args(launcher).arg(self.path("launch.toml")).spawn().unwrap();
        self.wait_until_ready();
    }

    /// Likewise, the new one given `socket` as systemd would.
    pub fn restart_with(&mut self, socket: OwnedFd) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" --config \"$1\"";
        self.process = Command::new("/bin/sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_sandboxd-launch")])
            .arg(self.path("launch.toml"))
            .stdin(socket)
            .spawn()
            .unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn state(&self, name: &str) -> PathBuf {
        self.dir.path().join("state").join(name)
    }

    pub fn cgroup_of(&self, id: &str) -> PathBuf {
        self.cgroup.join(format!("sandbox-{id}"))
    }

    /// Connect with another effective uid, which only a thread of its own takes on.
    pub fn connect_as(&self, uid: u32) -> Option<OwnedFd> {
        let path = self.path("launch.sock");
        std::thread::spawn(move || {
            let user = rustix::process::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(None, user, None).unwrap();
            let socket =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                    .unwrap();
            rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap()).ok()?;
            let patience = Some(PATIENCE);
            rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, patience).unwrap();
            Some(socket)
        })
        .join()
        .unwrap()
    }

    pub fn ask(&self, request: &Request, descriptors: &[OwnedFd]) -> Answer {
        self.ask_bytes(&serde_json::to_vec(request).unwrap(), descriptors)
    }

    pub fn ask_bytes(&self, bytes: &[u8], descriptors: &[OwnedFd]) -> Answer {
        let socket = self.connect_as(SERVICE).expect("the launcher listens");
        send(&socket, bytes, descriptors);
        receive(&socket).expect("an answer")
    }

    /// Ask for a start, as the service does: with a workspace and a listening socket.
    pub fn start_sandbox(&self, plan: &Plan) -> Answer {
        self.make_workspace(plan.id.as_str());
        self.ask(&Request::Start { plan: plan.clone() }, &[listener()])
    }

    pub fn make_workspace(&self, id: &str) -> PathBuf {
        let path = self.state("workspaces").join(id).join("workspace");
        if !path.exists() {
            std::fs::create_dir_all(&path).unwrap();
            for made in [path.parent().unwrap(), &path] {
                std::os::unix::fs::chown(made, Some(SERVICE), Some(SERVICE)).unwrap();
            }
            // The script runs as the sandbox's root, which has no right to another's directory.
            chmod(&path, 0o777);
        }
        path
    }

    pub fn stop(&self, id: &str) {
        assert_eq!(self.ask(&Request::Stop { id: id.parse_id() }, &[]), Answer::Done);
    }

    /// What the script wrote to `name` in its workspace, once it has said that it is done.
    pub fn report(&self, id: &str, name: &str) -> String {
        let workspace = self.state("workspaces").join(id).join("workspace");
        let deadline = Instant::now() + PATIENCE;
        while !workspace.join("done").exists() {
            assert!(Instant::now() < deadline, "the sandbox did not report");
            std::thread::sleep(Duration::from_millis(2));
        }
        std::fs::read_to_string(workspace.join(name)).unwrap()
    }

    /// A layer with busybox and what else is needed to run it, in the store.
    pub fn base(&self) -> LayerId {
        let layer = self.unpack_tar(base_tar(&self.path("busybox")));
        match layer {
            (layer, Answer::Unpacked { .. }) => layer,
            (_, answer) => panic!("{answer:?}"),
        }
    }

    /// Unpack a plain tar under its own digest.
    pub fn unpack_tar(&self, tar: Vec<u8>) -> (LayerId, Answer) {
        let digest: String = Sha256::digest(&tar).iter().map(|byte| format!("{byte:02x}")).collect();
        let layer = LayerId::parse(&digest).unwrap();
        let answer = self.unpack(&layer, Compression::None, &tar);
        (layer, answer)
    }

    pub fn unpack(&self, layer: &LayerId, compression: Compression, blob: &[u8]) -> Answer {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(blob).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        self.ask(&Request::Unpack { layer: layer.clone(), compression }, &[file.into()])
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = std::fs::write(self.cgroup.join("cgroup.freeze"), "0");
        let _ = std::fs::write(self.cgroup.join("cgroup.kill"), "1");
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
        for _ in 0..100 {
            remove_cgroups(&self.cgroup);
            if !self.cgroup.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn remove_cgroups(path: &Path) {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroups(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(path);
}

fn spawn(config: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_sandboxd-launch")).arg("--config").arg(config).spawn().unwrap()
}

pub fn listener() -> OwnedFd {
    bind(&SocketAddrUnix::new_unnamed())
}

pub fn listener_at(path: &Path) -> OwnedFd {
    bind(&SocketAddrUnix::new(path).unwrap())
}

fn bind(address: &SocketAddrUnix) -> OwnedFd {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, address).unwrap();
    rustix::net::listen(&socket, 4).unwrap();
    socket
}

pub fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[OwnedFd]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    // A launcher that has refused the peer has hung up; its answer is there all the same.
    let _ = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
}

pub fn receive(socket: &OwnedFd) -> Option<Answer> {
    let mut bytes = vec![0; MAX_MESSAGE];
    let (length, _) = rustix::net::recv(socket, bytes.as_mut_slice(), RecvFlags::empty()).ok()?;
    (length > 0).then(|| serde_json::from_slice(&bytes[..length]).unwrap())
}

pub fn plan(id: &str, slot: u32, layers: &[LayerId]) -> Plan {
    Plan {
        id: id.parse_id(),
        kind: Kind::Session,
        slot,
        layers: layers.to_vec(),
        workspace_uid: USER,
        work_dir: "/workspace".into(),
        hostname: "box".into(),
        tmpfs_bytes: Some(64 << 20),
        limits: Limits::default(),
        network: Network::None,
        egress: wire::launch::Egress::default(),
        oci_runtime: OciRuntime::Builtin,
        request: None,
    }
}

pub trait ParseId {
    fn parse_id(&self) -> SessionId;
}

impl ParseId for str {
    fn parse_id(&self) -> SessionId {
        SessionId::parse(self).unwrap()
    }
}

/// An archive, entry by entry.
pub struct Tar(tar::Builder<Vec<u8>>);

impl Tar {
    pub fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    /// Names are written as they are, whatever they are.
    pub fn entry(mut self, name: &str, kind: tar::EntryType, mode: u32, link: &str, content: &[u8]) -> Self {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        let old = header.as_old_mut();
        old.name[..name.len()].copy_from_slice(name.as_bytes());
        old.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }

    pub fn dir(self, name: &str) -> Self {
        self.entry(name, tar::EntryType::Directory, 0o755, "", b"")
    }

    pub fn file(self, name: &str, content: &[u8]) -> Self {
        self.entry(name, tar::EntryType::Regular, 0o644, "", content)
    }

    pub fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(name, tar::EntryType::Symlink, 0o777, target, b"")
    }

    pub fn hard_link(self, name: &str, target: &str) -> Self {
        self.entry(name, tar::EntryType::Link, 0o644, target, b"")
    }

    pub fn done(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

pub fn base_tar(busybox: &Path) -> Vec<u8> {
    let content = std::fs::read(busybox).unwrap();
    Tar::new()
        .dir("bin")
        .entry("bin/busybox", tar::EntryType::Regular, 0o755, "", &content)
        .symlink("bin/sh", "busybox")
        .dir("etc")
        .file("etc/passwd", b"root:x:0:0::/:/bin/sh\nagent:x:10001:10001::/:/bin/sh\n")
        .done()
}

fn write_mode(path: &Path, text: &str, mode: u32) {
    std::fs::write(path, text).unwrap();
    chmod(path, mode);
}

pub fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

pub fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
