//! The root file system of a sandbox, put together in a mount namespace that ends with the launch.
//!
//! [`Sources::open`] makes every mount that it needs, attached nowhere. [`enter`], in the process that will call
//! libcontainer, attaches them to a tmpfs and makes that tmpfs its `/`, so that nothing of the host's is left to
//! resolve a path in:
//!
//! ```text
//! /            tmpfs, gone when the launch ends
//!   layers/    image layers, ids mapped            l/0, l/1, …   links to the plan's layers, topmost first
//!   session/   write layer, ids mapped             rootfs/       the overlay of both, and all that is mounted in it
//!   proc/ dev/ sys/ sys/fs/cgroup/                 what libcontainer reads
//!   bundle/ state/                                 its input and its notes
//!   oci-runtime lib/ usr/lib/ …                    another OCI runtime and the host's libraries, read-only (`oci`)
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode};
use rustix::mount::{MountAttrFlags, MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::{CapabilitySets, UnshareFlags};
use wire::init::INIT_PATH;
use wire::launch::{Kind, Network, OciRuntime, Plan};

use crate::config::Config;
use crate::error::{Result, Step};
use crate::idmap;
use crate::mount::{self, LOCKED, Point, READ_ONLY};
use crate::oci::Program;
use crate::store::Store;
use crate::sys;

/// Where a sandbox finds the operator's certificates.
pub const CA_BUNDLE: &str = "/etc/sandboxd/ca-certificates.crt";
/// Where a build finds the package caches.
pub const BUILD_CACHE: &str = "/var/cache/sandboxd-build";

/// Files of the host's that a build on the host's network needs; one that the host has not, it has not either.
const NETWORK_FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// In the private root: where the sandbox's cgroups for commands are.
pub const COMMANDS: &str = "/sys/fs/cgroup/commands";

/// A mount and its place in the sandbox.
struct Attachment {
    mount: OwnedFd,
    at: String,
    point: Point,
}

/// Every mount that a sandbox is made of, attached nowhere yet.
pub struct Sources {
    layers: OwnedFd,
    session: OwnedFd,
    proc: OwnedFd,
    sys: OwnedFd,
    dev: OwnedFd,
    cgroup: OwnedFd,
    inside: Vec<Attachment>,
    program: Option<Program>,
}

/// The two id mappings of a sandbox's mounts, user namespaces.
pub struct Mappings {
    /// Of layers, write layer and caches.
    pub content: OwnedFd,
    /// Of the workspace; builds have none.
    pub workspace: Option<OwnedFd>,
}

impl Sources {
    /// Clone and map what `plan` names.
    ///
    /// # Errors
    /// A layer or the workspace is missing, or a mount cannot be made.
    pub fn open(plan: &Plan, config: &Config, store: &Store, maps: &Mappings, cgroup: &OwnedFd) -> Result<Self> {
        for layer in &plan.layers {
            if !store.has_layer(layer) {
                return Err(crate::error::Failure::new(format!("open layer {layer}: it is not in the store")));
            }
        }
        let content = Some(maps.content.as_fd());
        let session = store.write_layer(&plan.id, config.first_id(0))?;
        Ok(Self {
            layers: mount::clone_of(&store.layers, READ_ONLY, content).step(|| "map the layers")?,
            session: mount::clone_of(session, LOCKED, content)
                .step(|| format!("map the write layer of {}", plan.id))?,
            proc: mount::clone_of_path(Path::new("/proc"), 0)?,
            sys: mount::clone_of_path(Path::new("/sys"), 0)?,
            // Devices work on a read-only mount; their owners cannot be changed there, which runtimes have been seen to do.
            dev: mount::clone_of_path(Path::new("/dev"), libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID)?,
            cgroup: mount::clone_of(cgroup, 0, None).step(|| "clone a mount of the sandbox's cgroup")?,
            inside: attachments(plan, config, store, maps)?,
            program: None,
        })
    }

    /// And what the OCI runtime is made of.
    #[must_use]
    pub fn with_program(self, program: Option<Program>) -> Self {
        Self { program, ..self }
    }
}

/// What is mounted in the sandbox beside the kernel's own file systems, in the order in which it is.
fn attachments(plan: &Plan, config: &Config, store: &Store, maps: &Mappings) -> Result<Vec<Attachment>> {
    let file = |path: &Path, at: &str| -> Result<Attachment> {
        Ok(Attachment { mount: mount::clone_of_path(path, READ_ONLY)?, at: at.to_owned(), point: Point::File })
    };
    let dir = |mount: OwnedFd, at: &str| Attachment { mount, at: at.to_owned(), point: Point::Dir };
    let mut all = vec![file(&config.init, INIT_PATH)?];
    if let Some(bundle) = &config.ca_bundle {
        all.push(file(bundle, CA_BUNDLE)?);
    }
    if plan.network == Network::Host {
        for path in NETWORK_FILES.map(Path::new).into_iter().filter(|path| path.exists()) {
            all.push(file(path, &path.to_string_lossy())?);
        }
    }
    if let Some(bytes) = plan.tmpfs_bytes {
        all.push(dir(tmp(bytes, config.first_id(plan.slot)).step(|| "make the tmpfs of /tmp")?, "/tmp"));
    }
    match (plan.kind, &maps.workspace) {
        (Kind::Session, Some(mapping)) => {
            let workspace = store.workspace(&plan.id, config.service_uid)?;
            let mount = mount::clone_of(workspace, LOCKED, Some(mapping.as_fd()))
                .step(|| format!("map the workspace of {}", plan.id))?;
            all.push(dir(mount, &plan.work_dir));
        }
        (Kind::Session | Kind::Build, _) => {
            let mount =
                mount::clone_of(&store.cache, LOCKED, Some(maps.content.as_fd())).step(|| "map the build cache")?;
            all.push(dir(mount, BUILD_CACHE));
        }
    }
    Ok(all)
}

fn tmp(bytes: u64, owner: u32) -> Result<OwnedFd, rustix::io::Errno> {
    let (size, inodes, owner) = (bytes.to_string(), (bytes / 1024).max(1024).to_string(), owner.to_string());
    let options = [("size", size.as_str()), ("nr_inodes", &inodes), ("mode", "1777"), ("uid", &owner), ("gid", &owner)];
    mount::tmpfs(&options, MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID)
}

/// Put the sandbox's root file system together at `/rootfs` of a new, private root directory of this process.
///
/// # Errors
/// A mount fails, or the image has a link where something is to be mounted.
pub fn enter(sources: &Sources, plan: &Plan, config: &Config) -> Result<()> {
    sys::unshare(UnshareFlags::NEWNS).step(|| "make a mount namespace")?;
    rustix::mount::mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .step(|| "make mounts private")?;
    let top = mount::tmpfs(&[("size", "4m"), ("mode", "0755")], MountAttrFlags::empty()).step(|| "make a tmpfs")?;
    let runtime = mount::open_own(&config.runtime_dir.to_string_lossy())?;
    mount::attach(&top, runtime).step(|| format!("cover {}", config.runtime_dir.display()))?;
    rustix::process::fchdir(&top).step(|| "enter the private root")?;
    for name in ["layers", "l", "session", "rootfs", "proc", "sys", "dev", "bundle", "state", "tmp"] {
        rustix::fs::mkdir(name, Mode::from_raw_mode(0o755)).step(|| format!("make {name} in the private root"))?;
    }
    for (mount, name) in [(&sources.layers, "layers"), (&sources.session, "session")] {
        mount::attach(mount, mount::open_own(name)?).step(|| format!("attach {name}"))?;
    }
    mount_overlay(plan, config.first_id(plan.slot))?;
    for (mount, name) in
        [(&sources.proc, "proc"), (&sources.sys, "sys"), (&sources.cgroup, "sys/fs/cgroup"), (&sources.dev, "dev")]
    {
        mount::attach(mount, mount::open_own(name)?).step(|| format!("attach {name}"))?;
    }
    if let Some(program) = &sources.program {
        program.attach()?;
    }
    rustix::process::pivot_root(".", ".").step(|| "enter the private root")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).step(|| "leave the host's root")?;
    rustix::process::chdir("/").step(|| "enter the private root")?;
    if plan.oci_runtime == OciRuntime::Builtin {
        hide_cgroup_procs()?;
    }
    attach_inside(sources, plan, config)
}

/// libcontainer writes the process into its cgroup, where it was born: a no-op that costs 11 ms. Let it write elsewhere.
fn hide_cgroup_procs() -> Result<()> {
    let null = mount::clone_of_path(Path::new("/dev/null"), 0)?;
    mount::attach(null, mount::open_own("/sys/fs/cgroup/init/cgroup.procs")?).step(|| "cover cgroup.procs")
}

/// By short names: all that the kernel takes for the options is a page. `owner` is the sandbox's root: overlayfs acts
/// on the write layer as whoever mounted it, whose id must be one that the write layer's mapping has.
fn mount_overlay(plan: &Plan, owner: u32) -> Result<()> {
    let mut names: Vec<String> = Vec::new();
    for (index, layer) in plan.layers.iter().enumerate() {
        // A layer that occurs twice hides its lower self, and overlayfs takes it only once.
        if plan.layers[..index].contains(layer) {
            continue;
        }
        let name = format!("l/{index}");
        rustix::fs::symlinkat(format!("../layers/{layer}"), CWD, &name).step(|| format!("name layer {layer}"))?;
        names.push(name);
    }
    let options = format!(
        "lowerdir={},upperdir=session/upper,workdir=session/work,userxattr,index=off,xino=off",
        names.join(":")
    );
    let options = std::ffi::CString::new(options).step(|| "write the options of the overlay")?;
    let nosuid = match plan.kind {
        Kind::Session => MountFlags::NOSUID,
        Kind::Build => MountFlags::empty(),
    };
    sys::set_fs_ids(owner, owner);
    let mounted = raise_capabilities().and_then(|()| {
        rustix::mount::mount("overlay", "rootfs", "overlay", MountFlags::NODEV | nosuid, Some(options.as_c_str()))
    });
    sys::set_fs_ids(0, 0);
    mounted.step(|| format!("mount the overlay of {} layers of {}", names.len(), plan.id))
}

/// setfsuid(2) took those that concern files.
fn raise_capabilities() -> Result<(), rustix::io::Errno> {
    let sets = rustix::thread::capabilities(None)?;
    rustix::thread::set_capabilities(None, CapabilitySets { effective: sets.permitted, ..sets })
}

/// The sandbox's `/etc/resolv.conf`: a file of the private root's tmpfs.
fn attach_resolver(root: BorrowedFd<'_>, plan: &Plan, config: &Config, owner: u32) -> Result<()> {
    let at = NETWORK_FILES[0];
    let text = config.network.as_ref().map(crate::net::Settings::resolv_conf).unwrap_or_default();
    std::fs::write("/resolv.conf", text).step(|| "write /resolv.conf in the private root")?;
    mount::remove_link(root, at, owner)?;
    let place = mount::point(root, at, Point::File, owner)?;
    let file = mount::clone_of_path(Path::new("/resolv.conf"), READ_ONLY)?;
    mount::attach(&file, place).step(|| format!("mount {at} in {}", plan.id))
}

fn attach_inside(sources: &Sources, plan: &Plan, config: &Config) -> Result<()> {
    let owner = config.first_id(plan.slot);
    let root = mount::open_own("/rootfs")?;
    if plan.network == Network::Bridge {
        attach_resolver(root.as_fd(), plan, config, owner)?;
    }
    for attachment in &sources.inside {
        if NETWORK_FILES.contains(&attachment.at.as_str()) {
            // Images of systems with a resolver of their own have a link here, to a file that does not exist yet.
            mount::remove_link(root.as_fd(), &attachment.at, owner)?;
        }
        let place = mount::point(root.as_fd(), &attachment.at, attachment.point, owner)?;
        mount::attach(&attachment.mount, place).step(|| format!("mount {} in {}", attachment.at, plan.id))?;
    }
    // libcontainer mounts these; here it is made sure that none of them is a link.
    for name in ["/proc", "/sys", "/dev"] {
        mount::point(root.as_fd(), name, Point::Dir, owner)?;
    }
    Ok(())
}

/// The mappings of `plan`'s mounts. The cgroup namespace is made on the way.
///
/// # Errors
/// A namespace cannot be made.
pub fn namespaces(plan: &Plan, config: &Config, cgroup: &OwnedFd) -> Result<(OwnedFd, Mappings)> {
    let (disk, host) = (config.first_id(0), config.first_id(plan.slot));
    let (cgroup, content) = idmap::cgroup_and_user_namespace(cgroup.as_fd(), &idmap::content(disk, host))?;
    let workspace = match plan.kind {
        Kind::Build => None,
        Kind::Session => {
            let users = idmap::workspace(disk, host, config.service_uid, plan.workspace_uid);
            let groups = idmap::workspace(disk, host, config.service_gid, plan.workspace_uid);
            Some(idmap::user_namespace(&users, &groups)?)
        }
    };
    Ok((cgroup, Mappings { content, workspace }))
}
