//! `sandboxd` → `sandboxd-launch`: everything that needs privilege, as data.
//!
//! One connection carries one request: the client connects (`SOCK_SEQPACKET`), sends one
//! JSON [`Request`] of at most [`MAX_MESSAGE`] bytes with its descriptors, reads one JSON [`Answer`],
//! and the connection ends. The launcher checks the peer's uid before it reads, and each
//! field against its own configuration before it acts: nothing here names a host path.
//! Names of layers, sessions and recipes are resolved by the launcher beneath its own state directory.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::id::{LayerId, RequestId, SessionId};

/// Largest message either way, in bytes.
pub const MAX_MESSAGE: usize = 128 * 1024;
/// Most layers under one sandbox (the kernel's own limit is 500 lower layers; overlayfs).
pub const MAX_LAYERS: usize = 128;
/// Most rules of each list of an [`Egress`].
pub const MAX_EGRESS_RULES: usize = 64;
/// Most addresses of one [`Request::Permit`].
pub const MAX_PERMITS: usize = 64;
/// Ranges that are no internet, first address and length of the prefix: RFC 6890, multicast, and what was reserved.
pub const NO_INTERNET: [(Ipv4Addr, u8); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];
/// Ids in the range of one sandbox, and so in its user namespace: 0..65536 inside.
pub const IDS_PER_SANDBOX: u32 = 65_536;
/// Most sessions that one [`Request::Usage`] asks for.
pub const MAX_MEASURED: usize = 100;

/// What the launcher does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[allow(clippy::large_enum_variant)] // one at a time, and starts are what there is most of
pub enum Request {
    /// Start a sandbox. Descriptor: the listening control socket for its init.
    /// Answer: [`Answer::Started`].
    Start {
        /// What to start.
        plan: Plan,
    },
    /// End every process of a sandbox and remove its cgroup and runtime state; its write layer
    /// stays. Done also for a sandbox that does not exist. Answer: [`Answer::Done`].
    Stop {
        /// Which.
        id: SessionId,
    },
    /// Hold every process of a sandbox still (`cgroup.freeze`). Answer: [`Answer::Done`].
    Freeze {
        /// Which.
        id: SessionId,
    },
    /// Undo [`Request::Freeze`]. Answer: [`Answer::Done`].
    Thaw {
        /// Which.
        id: SessionId,
    },
    /// Which sandboxes there are. Answer: [`Answer::Sandboxes`].
    List {},
    /// Unpack a layer blob (a tar, compressed as said) into the image store as layer `layer`: into a
    /// staging directory by an unprivileged child that sees nothing else, then renamed. Descriptor: the blob, at
    /// offset 0. Done also if the layer exists. Answer: [`Answer::Unpacked`].
    Unpack {
        /// Name of the new layer; also the digest that the *uncompressed* tar must have.
        layer: LayerId,
        /// How the blob is compressed.
        compression: Compression,
    },
    /// Write a layer of the image store as a tar (OCI image spec, layer.md) to the descriptor, a regular file: by an
    /// unprivileged child that sees nothing else. The same layer gives the same tar. Answer: [`Answer::Done`].
    Pack {
        /// Which.
        layer: LayerId,
    },
    /// Make the write layer of the stopped build sandbox `build` the layer `layer` of the image store (a rename).
    /// Answer: [`Answer::Done`].
    Commit {
        /// The build, a sandbox id.
        build: SessionId,
        /// Name of the new layer.
        layer: LayerId,
    },
    /// Delete the write layer of a stopped session or build, and everything else that the launcher keeps of it.
    /// Done also if there is none. Answer: [`Answer::Done`].
    Forget {
        /// Which.
        id: SessionId,
    },
    /// Delete a layer of the image store. Answer: [`Answer::Done`].
    RemoveLayer {
        /// Which.
        layer: LayerId,
    },
    /// Delete what is left of the workspace `workspaces/ID`, whoever owns it. Answer: [`Answer::Done`].
    RemoveWorkspace {
        /// Which.
        id: SessionId,
    },
    /// Whether this host has an OCI runtime, where the launcher's configuration says that it is.
    /// Answer: [`Answer::Done`], or [`Answer::Refused`] with what is to be done about it.
    Runtime {
        /// Which.
        oci_runtime: OciRuntime,
    },
    /// Make ready what sandboxes with a network need on this host, as far as it is missing: the packet filter.
    /// Answer: [`Answer::Network`].
    Network {},
    /// Let a running sandbox on [`Network::Bridge`] reach addresses that a name was resolved to, for a while; they
    /// are allowed after everything that is denied. Answer: [`Answer::Done`].
    Permit {
        /// Which.
        id: SessionId,
        /// What, 1 to [`MAX_PERMITS`].
        permits: Vec<Permit>,
    },
    /// What sandboxes have tried to reach in vain. Answer: [`Answer::Refusals`].
    Refusals {},
    /// What sessions use of the disk, workspace and write layer together, whether or not they run: of at most
    /// [`MAX_MEASURED`]. Of none: how it is found out on this host. Answer: [`Answer::Usage`].
    Usage {
        /// Which.
        ids: Vec<SessionId>,
    },
    /// How large the package caches of builds are. With `most`, those are emptied that have to go for all together to have
    /// no more bytes, least recently used first: only while no build runs. Answer: [`Answer::Caches`].
    Caches {
        /// Bytes; absent: only look.
        most: Option<u64>,
        /// Only say which would be emptied.
        #[serde(default)]
        dry_run: bool,
    },
    /// Who the launcher is, and what it has to work with: for `doctor`. Answer: [`Answer::About`].
    About {},
    /// Run a recipe that the operator installed and write the root file system that it makes, a tar, to the
    /// descriptor. Answer: [`Answer::Done`].
    Bootstrap {
        /// Name of a file in the launcher's recipes directory, `[a-z0-9][a-z0-9.-]*`.
        recipe: String,
    },
}

/// Compression of a layer blob (OCI image spec, media types of layers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// A plain tar.
    None,
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
}

/// A sandbox to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Its name: of its cgroup, its write layer, its workspace.
    pub id: SessionId,
    /// What it is for.
    pub kind: Kind,
    /// Which range of ids it gets: inside id `i` is host id `id_base + slot * 65536 + i`. Slot 0 is
    /// the fixed range that owns layers and write layers on disk; a sandbox's is 1 or more
    /// and below the launcher's `slots`. No two running sandboxes share one.
    pub slot: u32,
    /// Lower layers, topmost first; 1 to [`MAX_LAYERS`].
    pub layers: Vec<LayerId>,
    /// The id inside that is the service's own user on disk, in the workspace: the sandbox
    /// user's. 0..65536.
    pub workspace_uid: u32,
    /// Where the workspace is mounted: an absolute, normalised path, not `/` nor below a kernel file system.
    pub work_dir: String,
    /// Host name inside.
    pub hostname: String,
    /// Size of `/tmp` in bytes; absent: `/tmp` is the write layer's.
    pub tmpfs_bytes: Option<u64>,
    /// Ceilings.
    pub limits: Limits,
    /// Its network.
    pub network: Network,
    /// What it may reach there; the default without [`Network::Bridge`].
    #[serde(default)]
    pub egress: Egress,
    /// Which OCI runtime starts it.
    pub oci_runtime: OciRuntime,
    /// The request on whose behalf, for the launcher's log. Absent: nobody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
}

/// What a sandbox is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A session: workspace mounted, commands without privilege.
    Session,
    /// A step of an image build: no workspace, package caches mounted below `/var/cache/sandboxd-build`,
    /// commands with [`crate::init::BUILD_CAPABILITIES`].
    Build,
}

/// Ceilings of a sandbox (cgroups(7), Documentation/admin-guide/cgroup-v2.rst). Absent: unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// `memory.max`, bytes.
    pub memory_bytes: Option<u64>,
    /// `memory.swap.max`, bytes of swap alone.
    pub swap_bytes: Option<u64>,
    /// `cpu.max`: microseconds in each 100,000.
    pub cpu_quota_us: Option<u64>,
    /// `cpu.weight`, 1..=10000.
    pub cpu_weight: Option<u64>,
    /// `pids.max`.
    pub pids: Option<u64>,
    /// CPUs that it runs on and sees, 1..=4096 (`cpuset.cpus`); which, the launcher chooses. Where the kernel has no such
    /// controller it sees all: what is enforced is `cpu_quota_us`.
    #[serde(default)]
    pub cpus: Option<u32>,
    /// `io.weight`, 1..=10000.
    #[serde(default)]
    pub io_weight: Option<u64>,
    /// Descriptors of one process (`RLIMIT_NOFILE`), 64..=1048576; absent: 65536. Never more than the launcher's own.
    #[serde(default)]
    pub files: Option<u64>,
    /// Bytes of a session's workspace and write layer together, where the file system enforces it
    /// ([`DiskEnforcement::Project`]); where these are on two file systems, of each. Rounded down to 1024.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
    /// Likewise, inodes: files, directories, links.
    #[serde(default)]
    pub disk_inodes: Option<u64>,
}

/// Who holds sessions to their share of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskEnforcement {
    /// The file system, by a project quota: a write that is too much fails, with `EDQUOT`, or on xfs with `ENOSPC`.
    Project,
    /// Nobody here: the launcher only measures, by looking at every file.
    Measured,
}

/// What a session uses of the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskUsage {
    /// Bytes that are allocated: a sparse file counts what it holds, a file with several names once.
    pub bytes: u64,
    /// Files, directories and links, with the few that every session has.
    pub inodes: u64,
    /// Whether that is everything. If not, looking took too long, or was disturbed: it is more than this.
    pub complete: bool,
}

/// A package cache that builds share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Whose it is: `pip` (and uv's), `npm`, `apt`, `cargo`.
    pub manager: String,
    /// Bytes that are allocated.
    pub bytes: u64,
    /// Whether that is everything. If not, looking took too long: it is more than this.
    pub complete: bool,
    /// When a file of it was last read or written, seconds since 1970; 0: there is none.
    pub used: u64,
    /// Whether it was emptied, or would have been.
    pub emptied: bool,
}

/// Network of a sandbox. Each has a namespace of its own, except a build's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Loopback only.
    None,
    /// An interface `eth0` to the internet, IPv4, as far as the [`Egress`] goes; a resolver for names.
    Bridge,
    /// The host's; builds only.
    Host,
}

/// What a sandbox on [`Network::Bridge`] may reach. Nobody's goes to an address of the host's, to another sandbox, or over
/// IPv6. In this order: what is in `deny` is refused, what is in `allow` is allowed, ranges that are no internet
/// (private, shared, link-local, reserved, multicast) are refused, what was permitted ([`Request::Permit`]) is
/// allowed, and `rest` decides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// What neither list names.
    pub rest: Rest,
    /// Refused; at most [`MAX_EGRESS_RULES`].
    pub deny: Vec<EgressRule>,
    /// Allowed; at most [`MAX_EGRESS_RULES`]. In a range that is no internet only as far as the launcher's configuration
    /// says (`network.may_reach`).
    pub allow: Vec<EgressRule>,
}

/// What to do with connections that no list names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rest {
    /// Let them go out.
    #[default]
    Allow,
    /// Refuse them.
    Deny,
}

/// Some addresses, and the ports there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressRule {
    /// First address of the range.
    pub address: Ipv4Addr,
    /// Bits that are the same in all of it, 0 to 32. The others are 0 in `address`.
    pub prefix: u8,
    /// First and last port; absent: all, and protocols that have none.
    pub ports: Option<(u16, u16)>,
    /// TCP or UDP; absent: both, and without ports every protocol.
    pub protocol: Option<Protocol>,
}

/// A protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// RFC 9293.
    Tcp,
    /// RFC 768.
    Udp,
}

/// An address that a name was resolved to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permit {
    /// The address.
    pub address: Ipv4Addr,
    /// The port, and with which protocol; absent: every one.
    pub port: Option<(Protocol, u16)>,
    /// For how long, 1 to 86400.
    pub seconds: u32,
}

/// Which OCI runtime starts a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OciRuntime {
    /// libcontainer, linked into the launcher.
    #[default]
    Builtin,
    /// The program `crun`.
    Crun,
    /// The program `runc`.
    Runc,
    /// The program `runsc`, gVisor.
    Runsc,
}

impl OciRuntime {
    /// Each of them.
    pub const ALL: [Self; 4] = [Self::Builtin, Self::Crun, Self::Runc, Self::Runsc];

    /// What it is called in settings, catalogues and answers: what serde writes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::Crun => "crun",
            Self::Runc => "runc",
            Self::Runsc => "runsc",
        }
    }

    /// The one that is called `name`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|runtime| runtime.name() == name)
    }
}

/// What the launcher answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// The sandbox runs and its init has been executed.
    Started {
        /// Absolute path of the sandbox's cgroup directory on the host, for reading its usage.
        cgroup: String,
        /// Where the time went, microseconds, in order.
        phases: Vec<Phase>,
    },
    /// It is done.
    Done,
    /// The sandboxes that have processes, in no order.
    Sandboxes {
        /// Each.
        sandboxes: Vec<Sandbox>,
    },
    /// Sandboxes can have a network.
    Network {
        /// The address of the host that they see, where they expect the resolver; that of the sandbox in slot `n` is
        /// this one plus `n`.
        gateway: Ipv4Addr,
        /// Port of `gateway` that questions of sandboxes are redirected to, whomever they ask.
        resolver_port: u16,
        /// What on this host may get in the way, one line each.
        warnings: Vec<String>,
    },
    /// Counted since each was started, in no order; none has none.
    Refusals {
        /// Those that have been refused something.
        refusals: Vec<Refusals>,
    },
    /// The layer is in the store.
    Unpacked {
        /// Bytes of regular files in it; 0 if it existed.
        bytes: u64,
        /// Entries in it; 0 if it existed.
        entries: u64,
    },
    /// What sessions use.
    Usage {
        /// How it is known.
        enforcement: DiskEnforcement,
        /// Of each, in the order asked; of one that has nothing, nothing.
        usage: Vec<DiskUsage>,
    },
    /// Package caches of builds, before any was emptied.
    Caches {
        /// Each.
        caches: Vec<Cache>,
    },
    /// Who the launcher is.
    About {
        /// Version of the program that runs.
        version: String,
        /// First host id of sandboxes.
        id_base: u32,
        /// Blocks of [`IDS_PER_SANDBOX`] from there on.
        slots: u32,
        /// Absolute path of the cgroup below which sandboxes are.
        cgroup: String,
        /// Controllers that sandboxes have there.
        controllers: Vec<String>,
    },
    /// The request is outside of what the launcher's configuration allows, or not one. Nothing was done.
    Refused {
        /// Which field.
        field: String,
        /// Why, and what is allowed.
        reason: String,
    },
    /// It was tried and failed; what had been made is removed again.
    Failed {
        /// What was attempted on what: "mount overlay on /…".
        step: String,
        /// errno(3), where a system call failed.
        errno: Option<i32>,
        /// The failure in words, with its chain.
        message: String,
    },
}

/// What one sandbox has tried to reach in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// The slot of its plan.
    pub slot: u32,
    /// Packets: for a TCP connection that is refused, one.
    pub packets: u64,
}

/// A part of a launch and its duration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// Its name: `overlay`, `libcontainer`…
    pub name: String,
    /// Microseconds.
    pub us: u64,
}

/// A sandbox that has processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Which.
    pub id: SessionId,
    /// Absolute path of its cgroup directory.
    pub cgroup: String,
    /// Whether it is frozen.
    pub frozen: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_and_types_are_refused() {
        assert!(serde_json::from_str::<Request>(r#"{"type":"list"}"#).is_ok());
        assert!(serde_json::from_str::<Request>(r#"{"type":"list","root":"/"}"#).is_err());
        assert!(serde_json::from_str::<Request>(r#"{"type":"mount"}"#).is_err());
        assert!(serde_json::from_str::<Request>(r#"{"type":"stop","id":"../x"}"#).is_err());
        assert!(serde_json::from_str::<Request>(r#"{"type":"stop","id":"x","root":"/"}"#).is_err());
        assert!(serde_json::from_str::<Request>(r#"{"type":"runtime","oci_runtime":"/bin/sh"}"#).is_err());
    }

    #[test]
    fn a_runtime_is_called_what_serde_writes() {
        for runtime in OciRuntime::ALL {
            assert_eq!(serde_json::to_value(runtime).unwrap(), runtime.name());
            assert_eq!(OciRuntime::parse(runtime.name()), Some(runtime));
        }
        assert_eq!(OciRuntime::parse("/usr/bin/crun"), None);
    }
}
