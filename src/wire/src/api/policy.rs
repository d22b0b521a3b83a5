//! The policy in force, and what of it may be changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

wire_type! {
    /// One runtime of the allowlist with the values in force for it.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct RuntimePolicy {
        /// What a client names.
        pub alias: String,
        /// The image, or what it is built from: `BASE + N package(s)`.
        pub image: String,
        /// What it is for.
        pub description: String,
        /// Whether it is built here.
        pub builds: bool,
        /// Memory, in the syntax `2g`.
        pub mem_limit: Option<String>,
        /// Memory and swap together; null: no swap.
        pub memswap_limit: Option<String>,
        /// CPUs.
        pub cpus: Option<f64>,
        /// CPU weight in the syntax of `docker run --cpu-shares`.
        pub cpu_shares: Option<u64>,
        /// Processes.
        pub pids_limit: Option<u64>,
        /// `none` or `bridge`.
        pub network_mode: String,
        /// OCI runtime; null: the built-in one.
        pub oci_runtime: Option<String>,
        /// I/O weight, 1 to 10000; null: the kernel's own, 100. Ours.
        #[serde(default)]
        pub io_weight: Option<u64>,
        /// Open files of one process; null: 65536. Ours.
        #[serde(default)]
        pub open_files: Option<u64>,
        /// Size of `/tmp`. Ours.
        #[serde(default)]
        pub tmpfs_size: Option<String>,
    }
}

wire_type! {
    /// Answer to `GET /policy`: everything that is in force.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct ServicePolicy {
        /// The allowlist, sorted by alias.
        pub runtimes: Vec<RuntimePolicy>,
        /// What a request that names none gets.
        pub default_runtime: String,
        /// Sandboxes resident or starting.
        pub max_sessions: Option<u64>,
        /// Sessions resident and asleep.
        pub max_open_sessions: Option<u64>,
        /// Sessions of one tenant.
        pub max_sessions_per_tenant: Option<u64>,
        /// Seconds idle after which a session may be hibernated for a newcomer.
        pub evict_idle_after: Option<u64>,
        /// Default memory.
        pub mem_limit: Option<String>,
        /// Default memory and swap.
        pub memswap_limit: Option<String>,
        /// Default CPUs.
        pub cpus: Option<f64>,
        /// Default CPU weight.
        pub cpu_shares: Option<u64>,
        /// Default processes.
        pub pids_limit: Option<u64>,
        /// Default network.
        pub network_mode: String,
        /// Default OCI runtime.
        pub oci_runtime: Option<String>,
        /// Where commands start.
        pub work_dir: String,
        /// Seconds after which an idle sandbox is closed.
        pub idle_timeout: u64,
        /// Longest command, seconds.
        pub execute_timeout: u64,
        /// Largest file served, bytes.
        pub max_read_bytes: u64,
        /// Whether a stopped sandbox's write layer is kept.
        pub persist_containers: bool,
        /// User that built runtimes run as.
        pub sandbox_uid: Option<u32>,
        /// Seconds an unopened workspace is kept.
        pub workspace_ttl: Option<u64>,
        /// Seconds a stopped sandbox's write layer is kept.
        pub container_ttl: Option<u64>,
        /// Size of `/tmp`.
        pub tmpfs_size: Option<String>,
        /// Whether runtimes are made ready at start.
        pub prewarm: bool,
        /// Whether package caches are kept between builds.
        pub buildkit: bool,
        /// Files are read off the host.
        pub native_files: bool,
        /// Files are written off the host.
        pub native_writes: bool,
        /// Paths are resolved off the host.
        pub native_realpath: bool,
        /// What a session may use of the disk, workspace and write layer together. Ours.
        #[serde(default)]
        pub disk_quota: Option<String>,
        /// Likewise, files, directories and links. Ours.
        #[serde(default)]
        pub disk_inodes: Option<u64>,
        /// What the host keeps of the disk. Ours.
        #[serde(default)]
        pub disk_reserve: Option<String>,
        /// Who enforces the quotas: `project`, the file system; `measured`, this service, later. Ours.
        #[serde(default)]
        pub disk_enforcement: String,
        /// Default I/O weight. Ours.
        #[serde(default)]
        pub io_weight: Option<u64>,
        /// Default open files of one process. Ours.
        #[serde(default)]
        pub open_files: Option<u64>,
        /// Limits that this host cannot enforce, by name; empty in production. Ours.
        #[serde(default)]
        pub unenforced_limits: Vec<String>,
        /// This installation in session ids that are derived from keys ([`crate::key`]). Ours.
        #[serde(default)]
        pub host_id: String,
    }
}

wire_type! {
    /// Body of `PUT /policy`, and content of the overrides file: ceilings and lifetimes, nothing else.
    /// Absent leaves a value alone; null clears one that may be off.
    ///
    /// ```
    /// let update: wire::api::PolicyUpdate = serde_json::from_str(r#"{"max_sessions": null}"#).unwrap();
    /// assert_eq!((update.max_sessions, update.idle_timeout), (Some(None), None));
    /// assert!(serde_json::from_str::<wire::api::PolicyUpdate>(r#"{"network_mode": "none"}"#).is_err());
    /// ```
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct PolicyUpdate {
        /// An allowed alias.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub default_runtime: Option<Option<String>>,
        /// 0 or more.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub max_sessions: Option<Option<u64>>,
        /// 0 or more.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub max_open_sessions: Option<Option<u64>>,
        /// 0 or more.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub max_sessions_per_tenant: Option<Option<u64>>,
        /// Seconds, 0 or more.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub evict_idle_after: Option<Option<u64>>,
        /// Seconds, 0 or more; not null.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub idle_timeout: Option<Option<u64>>,
        /// Seconds, 0 or more.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub workspace_ttl: Option<Option<u64>>,
        /// Seconds, 0 or more.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub container_ttl: Option<Option<u64>>,
        /// Seconds, more than 0; not null.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub execute_timeout: Option<Option<u64>>,
        /// Bytes, more than 0; not null.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub max_read_bytes: Option<Option<u64>>,
        /// A size such as `2g`.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub mem_limit: Option<Option<String>>,
        /// A size, memory included.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub memswap_limit: Option<Option<String>>,
        /// More than 0.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
        pub cpus: Option<Option<f64>>,
        /// More than 0.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub cpu_shares: Option<Option<u64>>,
        /// More than 0.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub pids_limit: Option<Option<u64>>,
        /// 1 to 10000.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub io_weight: Option<Option<u64>>,
        /// 64 to 1048576.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub open_files: Option<Option<u64>>,
        /// A size.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub tmpfs_size: Option<Option<String>>,
        /// Ceilings of single runtimes, by allowed alias.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, RuntimeLimitsUpdate>>))]
        pub runtimes: Option<Option<BTreeMap<String, RuntimeLimitsUpdate>>>,
    }
}

wire_type! {
    /// New ceilings of one runtime; as in [`PolicyUpdate`].
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct RuntimeLimitsUpdate {
        /// A size such as `2g`.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub mem_limit: Option<Option<String>>,
        /// A size, memory included.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub memswap_limit: Option<Option<String>>,
        /// More than 0.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
        pub cpus: Option<Option<f64>>,
        /// More than 0.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub cpu_shares: Option<Option<u64>>,
        /// More than 0.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub pids_limit: Option<Option<u64>>,
        /// 1 to 10000.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub io_weight: Option<Option<u64>>,
        /// 64 to 1048576.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub open_files: Option<Option<u64>>,
        /// A size.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub tmpfs_size: Option<Option<String>>,
    }
}

/// Tell null, which is `Some(None)`, from absent, which never gets here.
fn given<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}
