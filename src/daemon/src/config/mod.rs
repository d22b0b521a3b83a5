//! The settings of the service: what may be written ([`Raw`]), and what it means ([`Settings`]).
//!
//! Every setting has one name. It is read from the environment as `SANDBOXD_` and that name in
//! capitals, or from `sandboxd.toml` under it; the environment wins. Absent: the
//! default. Empty, where a setting may be off: off. What does not parse, and what does not go
//! together, is one line that names the variable.

#[cfg(test)]
mod installed_tests;
mod load;
mod read;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

pub use load::load;
pub use read::{ConfigError, Raw, boolean};

use wire::launch::OciRuntime;

use crate::catalog::{Egress, NetworkMode, Size};

/// Where the configuration file is unless `--config` says otherwise.
pub const DEFAULT_FILE: &str = "/etc/sandboxd/sandboxd.toml";

/// Everything that can be set, validated. Durations are seconds.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The service token: whoever holds it may open sessions.
    pub token: String,
    /// A token that opens `GET /metrics` and nothing else.
    pub metrics_token: Option<String>,
    /// Address of the TCP listener.
    pub host: IpAddr,
    /// Its port; 0: any free one.
    pub port: u16,
    /// Path of the unix socket.
    pub socket: PathBuf,
    /// Who needs a token at the unix socket.
    pub unix_auth: UnixAuth,
    /// Socket of `sandboxd-launch`.
    pub launch_socket: PathBuf,
    /// Where state is kept.
    pub state_dir: PathBuf,
    /// Where sockets are.
    pub runtime_dir: PathBuf,
    /// Where workspaces are kept, `{workspace_root}/{session_id}/workspace`.
    pub workspace_root: PathBuf,
    /// The image store.
    pub images_dir: PathBuf,
    /// Whether other services work with `images_dir` as well; nothing is removed from it then but by hand.
    pub images_shared: bool,
    /// Recipes of local bases.
    pub recipes_dir: PathBuf,
    /// The setting `runtimes`, as it was written; absent: the catalogue as it is.
    pub runtimes: Option<String>,
    /// Files of the catalogue, in order.
    pub catalog: Vec<PathBuf>,
    /// What a request that names no runtime gets; absent: the first.
    pub default_runtime: Option<String>,
    /// Sandboxes resident or starting.
    pub max_sessions: Option<u64>,
    /// Sessions resident and asleep.
    pub max_open_sessions: Option<u64>,
    /// Sessions of one tenant.
    pub max_sessions_per_tenant: Option<u64>,
    /// After how long idle a session may be hibernated for a newcomer.
    pub evict_idle_after: Option<u64>,
    /// Default memory ceiling.
    pub mem_limit: Option<Size>,
    /// Default ceiling of memory and swap together; absent: no swap.
    pub memswap_limit: Option<Size>,
    /// Default CPUs.
    pub cpus: Option<f64>,
    /// Default CPU weight in the syntax of `docker run --cpu-shares`.
    pub cpu_shares: Option<u64>,
    /// Default ceiling of processes.
    pub pids_limit: Option<u64>,
    /// Default I/O weight; absent: the kernel's own.
    pub io_weight: Option<u64>,
    /// Default ceiling of one process's open files; absent: the launcher's own.
    pub open_files: Option<u64>,
    /// Size of `/tmp`; absent: `/tmp` is on the write layer.
    pub tmpfs_size: Option<Size>,
    /// What a session may have on the disk, workspace and write layer together; absent: no ceiling.
    pub disk_quota: Option<Size>,
    /// Likewise, of files, directories and links.
    pub disk_inodes: Option<u64>,
    /// What the host keeps of the disk: with less free nothing is opened or written; absent: nothing. Never more than
    /// a tenth of the file system.
    pub disk_reserve: Option<Size>,
    /// Default network.
    pub network_mode: NetworkMode,
    /// Where sandboxes with a network may connect to; runtimes add to it.
    pub egress: Egress,
    /// Whether each name that a sandbox is refused is logged.
    pub egress_log: bool,
    /// Resolvers that are asked for the names of sandboxes; none: those of the host.
    pub dns_upstreams: Vec<SocketAddr>,
    /// Default OCI runtime; absent: the built-in one.
    pub oci_runtime: Option<OciRuntime>,
    /// Where commands start and the workspace is mounted.
    pub work_dir: String,
    /// Whether a stopped sandbox's write layer is kept.
    pub persist_containers: bool,
    /// Whether runtimes are made ready at start.
    pub prewarm: bool,
    /// After how long idle a sandbox is closed; 0: never.
    pub idle_timeout: u64,
    /// After how long idle a sandbox's processes are held still; absent: never. A frozen session wakes in a millisecond,
    /// but its background processes make no progress meanwhile: so this is for who asks for it.
    pub freeze_after: Option<u64>,
    /// After how long idle a sandbox is ended and its session kept; absent: only to make room.
    pub hibernate_after: Option<u64>,
    /// How often the service looks for what is due.
    pub cleanup_interval: u64,
    /// How long an unopened workspace is kept; absent: for ever.
    pub workspace_ttl: Option<u64>,
    /// How long a stopped sandbox's write layer is kept; absent: as long as its workspace.
    pub container_ttl: Option<u64>,
    /// User that built runtimes run as.
    pub sandbox_uid: u32,
    /// Largest file that is served, bytes.
    pub max_read_bytes: u64,
    /// Longest command.
    pub execute_timeout: u64,
    /// Commands at once, in all sessions together.
    pub max_running_commands: usize,
    /// Whether file operations are served off the host.
    pub native_files: bool,
    /// Whether the dashboard is served.
    pub ui_enabled: bool,
    /// A file of policy overrides.
    pub policy_overrides: Option<PathBuf>,
    /// What to do on a host that cannot enforce limits.
    pub limits: LimitsMode,
    /// A file of certificates trusted inside builds and sessions.
    pub extra_ca_certs: Option<PathBuf>,
    /// Longest build, seconds.
    pub build_timeout: u64,
    /// Memory of one step of a build; absent: no ceiling.
    pub build_memory: Option<Size>,
    /// What one step of a build may write, package caches aside; absent: no ceiling.
    pub build_disk: Option<Size>,
    /// Processes of one step of a build; absent: no ceiling.
    pub build_pids: Option<u64>,
    /// What package caches of builds may have together; absent: no ceiling.
    pub build_cache: Option<Size>,
    /// Variables of the steps of builds.
    pub build_env: BTreeMap<String, String>,
    /// The registry where short names are looked for.
    pub registry: String,
    /// Tried before that registry, in order.
    pub registry_mirrors: Vec<String>,
    /// Hosts beside registries and mirrors that pulls may be led to although they are not in the internet.
    pub registry_hosts: Vec<String>,
    /// Credentials for registries; the file need not exist.
    pub registry_auth: PathBuf,
    /// Registries that are spoken to without TLS.
    pub insecure_registries: Vec<String>,
    /// This installation in the session ids that are derived from keys; absent: derived from its own key.
    pub host_id: Option<String>,
    /// How long the operations log keeps a record, in days; absent: for ever.
    pub operations_days: Option<u64>,
    /// What people are not shown of a workspace: prefixes of paths in it, as the setting has them.
    pub hidden_prefixes: Vec<String>,
    /// Ranges of ids for sandboxes, as in the launcher's configuration.
    pub slots: u32,
}

/// What to do on a host that cannot enforce limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitsMode {
    /// Refuse to start.
    Enforce,
    /// Start, and say what is not enforced wherever somebody may look.
    BestEffort,
}

/// Who needs a token at the unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnixAuth {
    /// Nobody: whoever its permissions let connect is trusted like the holder of the service's token.
    Peer,
    /// Everybody.
    Token,
}
