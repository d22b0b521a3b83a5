//! `launch.toml`: what the service may ask for.
//!
//! The file belongs to root and nobody else can write it, or the launcher does not start: it is the boundary
//! between the service, which parses what strangers send, and root.

use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use wire::launch::IDS_PER_SANDBOX;

use crate::oci::Programs;

/// Largest configuration file, in bytes.
const MAX_FILE: u64 = 64 * 1024;
/// Project ids that are the launcher's.
pub const PROJECTS: u32 = 1 << 20;

/// Where accounts are, passwd(5). The service's is made by its package: no other source is asked.
const ACCOUNTS: &str = "/etc/passwd";

/// The launcher's configuration. Paths are absolute.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The service's state directory: layers, write layers and workspaces live below it.
    pub state_dir: PathBuf,
    /// The image store, if not `images` in the state directory. Builds need it on the same file system.
    #[serde(default)]
    pub images_dir: Option<PathBuf>,
    /// A directory that exists while the service runs. Private mounts of a launch cover it; nothing is stored there.
    pub runtime_dir: PathBuf,
    /// Where the launcher listens, unless systemd passes it a socket.
    pub socket: PathBuf,
    /// The service's user by its name in /etc/passwd, instead of the two numbers that follow.
    #[serde(default)]
    pub service_user: Option<String>,
    /// The only user whose requests are read; also the owner of workspaces on disk. Not root.
    #[serde(default)]
    pub service_uid: u32,
    /// Group of the socket and of directories made for the service.
    #[serde(default)]
    pub service_gid: u32,
    /// First host id of the range that belongs to sandboxes.
    #[serde(default = "default_id_base")]
    pub id_base: u32,
    /// First of the 2^20 project ids by which file systems with project quotas hold sessions to their share of the disk.
    #[serde(default = "default_project_base")]
    pub quota_project_base: u32,
    /// How many blocks of 65,536 ids there are from `id_base` on: the first owns what is on disk, each other one is for one sandbox.
    #[serde(default = "default_slots")]
    pub slots: u32,
    /// A directory of a cgroup2 mount, the launcher's own; it makes it, and one below it for each sandbox.
    pub cgroup_root: PathBuf,
    /// The program that is PID 1 of every sandbox.
    pub init: PathBuf,
    /// Recipes that [`wire::launch::Request::Bootstrap`] may run.
    pub recipes_dir: PathBuf,
    /// What to do where the kernel cannot enforce a limit.
    #[serde(default)]
    pub limits: LimitsPolicy,
    /// Whether a build may use the host's network.
    #[serde(default)]
    pub allow_host_network_builds: bool,
    /// Certificates (PEM) that sandboxes find at `/etc/sandboxd/ca-certificates.crt`.
    #[serde(default)]
    pub ca_bundle: Option<PathBuf>,
    /// The programs of other OCI runtimes: a table, `oci_runtimes = { crun = "/usr/bin/crun" }`.
    #[serde(default)]
    pub oci_runtimes: Programs,
    /// Networks of sandboxes: a table, `[network]`; absent: none has one.
    #[serde(default)]
    pub network: Option<crate::net::Settings>,
    /// Seconds after which a launch is undone and fails. 1 to 600.
    #[serde(default = "default_launch_timeout")]
    pub launch_timeout_seconds: u32,
    /// Seconds for everything else: unpacking, stopping. 1 to 86400.
    #[serde(default = "default_work_timeout")]
    pub unpack_timeout_seconds: u32,
    /// Seconds for a bootstrap recipe. 1 to 86400.
    #[serde(default = "default_work_timeout")]
    pub bootstrap_timeout_seconds: u32,
    /// Largest layer, uncompressed, in bytes.
    #[serde(default = "default_layer_bytes")]
    pub max_layer_bytes: u64,
    /// Most files, directories and links in a layer.
    #[serde(default = "default_layer_entries")]
    pub max_layer_entries: u64,
}

/// What to do where the kernel cannot enforce a limit that a plan names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitsPolicy {
    /// Do not start the sandbox.
    #[default]
    Enforce,
    /// Start it without that limit. For development.
    BestEffort,
}

fn default_id_base() -> u32 {
    0x7000_0000
}
fn default_project_base() -> u32 {
    0x7000_0000
}
fn default_slots() -> u32 {
    4000
}
fn default_launch_timeout() -> u32 {
    30
}
fn default_work_timeout() -> u32 {
    1800
}
fn default_layer_bytes() -> u64 {
    16 << 30
}
fn default_layer_entries() -> u64 {
    2_000_000
}

/// Why the configuration is not usable. One line each.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Others could have written it.
    #[error("{path}: belongs to uid {uid} with mode {mode:04o}; it must belong to root and be writable by nobody else")]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// It is not what a configuration looks like.
    #[error("{path}: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what, on one line.
        message: String,
    },
    /// A value is not allowed.
    #[error("{path}: {key}: {reason}")]
    Value {
        /// The file.
        path: PathBuf,
        /// Which key.
        key: &'static str,
        /// What is allowed.
        reason: String,
    },
}

impl Config {
    /// Read and check the file at `path`.
    ///
    /// # Errors
    /// [`ConfigError`], which names the key.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = read_trusted(path)?;
        let mut config: Self = toml::from_str(&text).map_err(|error| ConfigError::Syntax {
            path: path.to_owned(),
            message: error.to_string().lines().map(str::trim).collect::<Vec<_>>().join(" "),
        })?;
        match config.name_user().and_then(|()| config.check()) {
            Ok(()) => Ok(config),
            Err((key, reason)) => Err(ConfigError::Value { path: path.to_owned(), key, reason }),
        }
    }

    /// Look `service_user` up.
    fn name_user(&mut self) -> Result<(), (&'static str, String)> {
        let Some(name) = &self.service_user else { return Ok(()) };
        if self.service_uid != 0 || self.service_gid != 0 {
            return Err(("service_user", "names a user, and so do service_uid and service_gid: one of them".into()));
        }
        let accounts =
            std::fs::read_to_string(ACCOUNTS).map_err(|e| ("service_user", format!("read {ACCOUNTS}: {e}")))?;
        let found = account(&accounts, name);
        (self.service_uid, self.service_gid) =
            found.ok_or_else(|| ("service_user", format!("{name:?} is not in {ACCOUNTS}")))?;
        Ok(())
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        let paths = [
            ("state_dir", &self.state_dir),
            ("runtime_dir", &self.runtime_dir),
            ("socket", &self.socket),
            ("cgroup_root", &self.cgroup_root),
            ("init", &self.init),
            ("recipes_dir", &self.recipes_dir),
        ];
        let paths = paths.into_iter().chain(self.ca_bundle.iter().map(|p| ("ca_bundle", p)));
        for (key, path) in paths.chain(self.oci_runtimes.all()) {
            if !path.is_absolute() {
                return Err((key, format!("{} is not absolute", path.display())));
            }
        }
        if self.service_uid == 0 {
            return Err(("service_uid", "the service does not run as root".into()));
        }
        if self.slots < 2 {
            return Err(("slots", "at least 2: one for the disk, one for a sandbox".into()));
        }
        let end = u64::from(self.id_base) + u64::from(self.slots) * u64::from(IDS_PER_SANDBOX);
        if self.id_base < IDS_PER_SANDBOX || end > u64::from(u32::MAX) {
            return Err(("id_base", format!("ids {}..{end} do not lie within 65536..4294967295", self.id_base)));
        }
        if (u64::from(self.id_base)..end).contains(&u64::from(self.service_uid)) {
            return Err(("service_uid", "lies within the ids of the sandboxes".into()));
        }
        if self.quota_project_base == 0 || u32::MAX - self.quota_project_base < PROJECTS {
            return Err(("quota_project_base", format!("not within 1..={}", u32::MAX - PROJECTS)));
        }
        if let Some(network) = &self.network {
            network.check(self.slots)?;
        }
        check_range("launch_timeout_seconds", self.launch_timeout_seconds, 600)?;
        check_range("unpack_timeout_seconds", self.unpack_timeout_seconds, 86_400)?;
        check_range("bootstrap_timeout_seconds", self.bootstrap_timeout_seconds, 86_400)
    }

    /// First host id of the ids of slot `slot`; slot 0 owns what is on disk.
    #[must_use]
    pub fn first_id(&self, slot: u32) -> u32 {
        self.id_base + slot * IDS_PER_SANDBOX
    }
}

/// Uid and gid of an account, passwd(5).
fn account(accounts: &str, name: &str) -> Option<(u32, u32)> {
    let mut rows = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let row = rows.find(|fields| fields.first() == Some(&name))?;
    Some((row.get(2)?.parse().ok()?, row.get(3)?.parse().ok()?))
}

fn check_range(key: &'static str, value: u32, most: u32) -> Result<(), (&'static str, String)> {
    if (1..=most).contains(&value) { Ok(()) } else { Err((key, format!("{value} is not within 1..={most}"))) }
}

fn read_trusted(path: &Path) -> Result<String, ConfigError> {
    let read = |source: std::io::Error| ConfigError::Read { path: path.to_owned(), source };
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
        .map_err(|errno| read(errno.into()))?;
    let stat = rustix::fs::fstat(&fd).map_err(|errno| read(errno.into()))?;
    if stat.st_uid != 0 || stat.st_mode & 0o022 != 0 {
        return Err(ConfigError::NotOurs { path: path.to_owned(), uid: stat.st_uid, mode: stat.st_mode & 0o7777 });
    }
    let mut text = String::new();
    let file = std::fs::File::from(fd);
    std::io::Read::read_to_string(&mut std::io::Read::take(file, MAX_FILE), &mut text).map_err(read)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const GOOD: &str = r#"
        state_dir = "/var/lib/sandboxd"
        runtime_dir = "/run/sandboxd"
        socket = "/run/sandboxd/launch.sock"
        service_uid = 900
        service_gid = 900
        cgroup_root = "/sys/fs/cgroup/sandboxd"
        init = "/usr/libexec/sandboxd/sandbox-init"
        recipes_dir = "/usr/share/sandboxd/images"
    "#;

    fn load(text: &str, mode: u32) -> Result<Config, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        Config::load(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn each_bad_value_is_one_line_that_names_its_key() {
        for (line, key) in [
            ("slots = 1", "slots"),
            ("quota_project_base = 0", "quota_project_base"),
            ("quota_project_base = 4294967295", "quota_project_base"),
            ("slots = 70000", "id_base"),
            ("launch_timeout_seconds = 0", "launch_timeout_seconds"),
            ("ca_bundle = \"ca.crt\"", "ca_bundle"),
            ("limits = \"none\"", "limits"),
            ("surprise = 1", "surprise"),
            ("network = { pool = \"198.19.0.0/24\" }", "network.pool"),
            ("network = { pool = \"198.19.0.1/20\" }", "198.19.0.1/20"),
            ("network = { pool = \"198.19.0.0/20\", name = \"sandboxes\" }", "network.name"),
            ("network = { pool = \"198.19.0.0/20\", resolver_port = 53 }", "network.resolver_port"),
            ("network = { pool = \"198.19.0.0/20\", uplinks = [\"../x\"] }", "network.uplinks"),
            ("oci_runtimes = { crun = \"crun\" }", "oci_runtimes.crun"),
            ("oci_runtimes = { kata = \"/usr/bin/kata-runtime\" }", "kata"),
        ] {
            let error = load(&format!("{GOOD}\n{line}"), 0o600).unwrap_err();
            assert!(error.contains(key), "{line}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        assert!(load(&GOOD.replace("900", "0"), 0o600).unwrap_err().contains("service_uid"));
        assert!(load(&format!("{GOOD}service_user = \"daemon\""), 0o600).unwrap_err().contains("one of them"));
        let named = GOOD.replace("service_uid = 900", "service_user = \"daemon\"").replace("service_gid = 900", "");
        assert!(load(&named, 0o600).is_ok());
        assert!(load(&named.replace("daemon", "no-such"), 0o600).unwrap_err().contains("/etc/passwd"));
        // Root by another name is root.
        assert!(load(&named.replace("daemon", "root"), 0o600).unwrap_err().contains("service_uid"));
    }

    #[test]
    fn a_file_that_others_can_write_is_refused() {
        assert!(load(GOOD, 0o644).is_ok());
        for mode in [0o664, 0o602, 0o666] {
            assert!(load(GOOD, mode).unwrap_err().contains("writable by nobody else"));
        }
    }

    /// A line, without the # right before a setting.
    fn without_number_sign(line: &str) -> &str {
        let setting = line.strip_prefix('#').filter(|text| text.starts_with(|c: char| c.is_ascii_lowercase()));
        setting.unwrap_or(line)
    }

    #[test]
    fn the_installed_default_is_valid() {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../systemd/launch.toml")).unwrap();
        // Where the package is not installed, its user is not there.
        let text = text.replace("service_user = \"sandboxd\"", "service_user = \"daemon\"");
        assert!(load(&text, 0o644).is_ok(), "{:?}", load(&text, 0o644));
        // So is what it has behind a #.
        let all = text.lines().map(without_number_sign).collect::<Vec<_>>().join("\n");
        assert!(all.contains("\n[network]\n") && load(&all, 0o644).is_ok(), "{:?}", load(&all, 0o644));
    }
}
