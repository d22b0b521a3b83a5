//! A plan as an OCI runtime configuration (runtime-spec, config.md and config-linux.md).

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Capability, LinuxBuilder, LinuxCapabilitiesBuilder, LinuxIdMapping, LinuxIdMappingBuilder, LinuxNamespace,
    LinuxNamespaceBuilder, LinuxNamespaceType, Mount, MountBuilder, PosixRlimit, PosixRlimitBuilder, PosixRlimitType,
    Process, ProcessBuilder, RootBuilder, Spec, SpecBuilder, UserBuilder,
};
use rustix::process::{Resource, getrlimit};
use wire::init::INIT_PATH;
use wire::launch::{IDS_PER_SANDBOX, Kind, Limits, Network, OciRuntime, Plan};

/// Open files of a command, unless its plan says otherwise or the host allows fewer.
const MAX_FILES: u64 = 65_536;

/// What PID 1 needs: to become any user of the sandbox, to end any process of it, to write its cgroup's files as another
/// user than root, to bring the loopback device up, to give its capabilities up.
const INIT_CAPABILITIES: [Capability; 6] = [
    Capability::DacOverride,
    Capability::Kill,
    Capability::NetAdmin,
    Capability::Setgid,
    Capability::Setpcap,
    Capability::Setuid,
];
/// And in a build: what steps may do ([`wire::init::BUILD_CAPABILITIES`]), and to filter their system calls without
/// `no_new_privs`.
const BUILD_CAPABILITIES: [Capability; 7] = [
    Capability::Chown,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Mknod,
    Capability::Setfcap,
    Capability::SysAdmin,
    Capability::SysChroot,
];
/// And in gVisor: to mount its cgroups and to give its socket to another user.
const GVISOR_CAPABILITIES: [Capability; 2] = [Capability::Chown, Capability::SysAdmin];

/// Read nothing below: it tells about the host, or is the kernel's own memory.
const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
/// Options of `/dev/shm`.
const SHM: &str = "nosuid,noexec,nodev,mode=1777,size=65536k";
/// Write nothing below.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The configuration of `plan`, whose root inside is host id `first_id`. Its root file system is at `/rootfs`, its
/// cgroup `/init` of the cgroup mount that libcontainer sees.
///
/// # Errors
/// A builder misses a field: a bug.
pub fn build(plan: &Plan, first_id: u32) -> Result<Spec, OciSpecError> {
    let ids = vec![id_mapping(first_id)?];
    let mut linux = LinuxBuilder::default()
        .namespaces(namespaces(plan)?)
        .uid_mappings(ids.clone())
        .gid_mappings(ids)
        .cgroups_path("/init")
        .masked_paths(MASKED.map(str::to_owned).to_vec())
        .readonly_paths(READ_ONLY.map(str::to_owned).to_vec())
        .rootfs_propagation("private")
        .build()?;
    // No limits here: they are written before the sandbox exists, and only where the kernel has them.
    linux.set_resources(None);
    if plan.oci_runtime == OciRuntime::Builtin {
        // The others refuse it; see `oci`.
        linux.set_sysctl(Some(HashMap::from([("user.max_user_namespaces".to_owned(), "0".to_owned())])));
    }
    SpecBuilder::default()
        .version("1.0.2")
        .root(RootBuilder::default().path("/rootfs").readonly(false).build()?)
        .hostname(plan.hostname.clone())
        .process(process(plan)?)
        .mounts(mounts(plan)?)
        .linux(linux)
        .build()
}

fn id_mapping(first_id: u32) -> Result<LinuxIdMapping, OciSpecError> {
    LinuxIdMappingBuilder::default().container_id(0u32).host_id(first_id).size(IDS_PER_SANDBOX).build()
}

fn namespaces(plan: &Plan) -> Result<Vec<LinuxNamespace>, OciSpecError> {
    let network = match plan.network {
        Network::None | Network::Bridge => Some(LinuxNamespaceType::Network),
        Network::Host => None,
    };
    [
        LinuxNamespaceType::User,
        LinuxNamespaceType::Mount,
        LinuxNamespaceType::Pid,
        LinuxNamespaceType::Ipc,
        LinuxNamespaceType::Uts,
    ]
    .into_iter()
    .chain(network)
    .map(|typ| LinuxNamespaceBuilder::default().typ(typ).build())
    .collect()
}

fn process(plan: &Plan) -> Result<Process, OciSpecError> {
    let (args, more) = match plan.kind {
        Kind::Session => (vec![INIT_PATH.to_owned()], [].as_slice()),
        Kind::Build => (vec![INIT_PATH.to_owned(), "--build".to_owned()], BUILD_CAPABILITIES.as_slice()),
    };
    let (args, more) = match plan.oci_runtime {
        OciRuntime::Builtin | OciRuntime::Crun | OciRuntime::Runc => (args, more),
        OciRuntime::Runsc => (vec![INIT_PATH.to_owned(), "--inside".to_owned()], GVISOR_CAPABILITIES.as_slice()),
    };
    let set: HashSet<Capability> = INIT_CAPABILITIES.iter().chain(more).copied().collect();
    let capabilities = LinuxCapabilitiesBuilder::default()
        .bounding(set.clone())
        .permitted(set.clone())
        .effective(set)
        .inheritable(HashSet::new())
        .ambient(HashSet::new())
        .build()?;
    ProcessBuilder::default()
        .terminal(false)
        .user(UserBuilder::default().uid(0u32).gid(0u32).umask(0o022u32).build()?)
        .args(args)
        .env(vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()])
        .cwd("/")
        .capabilities(capabilities)
        .rlimits(rlimits(&plan.limits)?)
        .no_new_privileges(false)
        .build()
}

fn rlimits(limits: &Limits) -> Result<Vec<PosixRlimit>, OciSpecError> {
    let wanted = limits.files.unwrap_or(MAX_FILES);
    let files = getrlimit(Resource::Nofile).maximum.unwrap_or(wanted).min(wanted);
    [(PosixRlimitType::RlimitNofile, files), (PosixRlimitType::RlimitCore, 0)]
        .into_iter()
        .map(|(typ, limit)| PosixRlimitBuilder::default().typ(typ).soft(limit).hard(limit).build())
        .collect()
}

/// The kernel's file systems; everything else is in the root file system already.
fn mounts(plan: &Plan) -> Result<Vec<Mount>, OciSpecError> {
    // In a user namespace only the owner of the network namespace may mount sysfs.
    let sys = match plan.network {
        Network::None | Network::Bridge => ("sysfs", "/sys", "sysfs", "nosuid,noexec,nodev,ro"),
        Network::Host => ("tmpfs", "/sys", "tmpfs", "nosuid,noexec,nodev,ro,size=4k"),
    };
    let tmp = format!("nosuid,nodev,mode=1777,size={}", plan.tmpfs_bytes.unwrap_or_default());
    // gVisor brings its own of the rest, and would put an unbounded one at /tmp.
    let gvisor = [("tmp", "/tmp", "tmpfs", tmp.as_str()), ("shm", "/dev/shm", "tmpfs", SHM)];
    let all = [
        ("proc", "/proc", "proc", "nosuid,noexec,nodev,hidepid=invisible"),
        sys,
        ("tmpfs", "/dev", "tmpfs", "nosuid,strictatime,mode=755,size=64k,nr_inodes=64"),
        ("devpts", "/dev/pts", "devpts", "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5"),
        ("shm", "/dev/shm", "tmpfs", SHM),
        ("mqueue", "/dev/mqueue", "mqueue", "nosuid,noexec,nodev"),
    ];
    let mounts = match plan.oci_runtime {
        OciRuntime::Builtin | OciRuntime::Crun | OciRuntime::Runc => all.as_slice(),
        OciRuntime::Runsc if plan.tmpfs_bytes.is_some() => gvisor.as_slice(),
        OciRuntime::Runsc => &gvisor[1..],
    };
    mounts
        .iter()
        .copied()
        .map(|(source, destination, typ, options)| {
            MountBuilder::default()
                .source(source)
                .destination(PathBuf::from(destination))
                .typ(typ)
                .options(options.split(',').map(str::to_owned).collect::<Vec<_>>())
                .build()
        })
        .collect()
}
