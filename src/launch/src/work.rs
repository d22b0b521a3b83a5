//! Carrying out one checked request, in a process of its own.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::FileType;
use rustix::net::{AddressFamily, SocketType, sockopt};
use wire::id::{LayerId, SessionId};
use wire::journal::Priority;
use wire::launch::{Answer, Request};

use crate::bootstrap;
use crate::caches;
use crate::cgroup::CgroupRoot;
use crate::config::Config;
use crate::container::{self, Launch};
use crate::error::{Error, Failure, Result};
use crate::quota::Quotas;
use crate::store::{self, Store};
use crate::{fail, log, net, pack, unpack};

/// What every request is carried out on. Holds no state: everything is in the kernel or on disk.
pub struct Host {
    /// The launcher's configuration.
    pub config: Config,
    /// Its state directory.
    pub store: Store,
    /// Its cgroups.
    pub cgroups: CgroupRoot,
    /// Who holds sessions to their share of the disk.
    pub quotas: Quotas,
}

/// What requests exclude each other by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// A sandbox, its cgroup and its write layer.
    Sandbox(SessionId),
    /// A layer of the store.
    Layer(LayerId),
    /// A bootstrap recipe.
    Recipe(String),
    /// The package caches of builds.
    Caches,
}

/// What `request` works on alone.
#[must_use]
pub fn keys(request: &Request) -> Vec<Key> {
    match request {
        Request::Start { plan } => vec![Key::Sandbox(plan.id.clone())],
        Request::Stop { id }
        | Request::Freeze { id }
        | Request::Thaw { id }
        | Request::Forget { id }
        | Request::RemoveWorkspace { id } => vec![Key::Sandbox(id.clone())],
        Request::Unpack { layer, .. } | Request::RemoveLayer { layer } => vec![Key::Layer(layer.clone())],
        Request::Commit { build, layer } => vec![Key::Sandbox(build.clone()), Key::Layer(layer.clone())],
        Request::Bootstrap { recipe } => vec![Key::Recipe(recipe.clone())],
        Request::Permit { id, .. } => vec![Key::Sandbox(id.clone())],
        // Whoever reads a layer excludes nobody: it is there whole, and does not change.
        Request::Pack { .. }
        | Request::List {}
        | Request::About {}
        | Request::Runtime { .. }
        | Request::Network {}
        | Request::Refusals {}
        | Request::Usage { .. } => Vec::new(),
        Request::Caches { .. } => vec![Key::Caches],
    }
}

/// What `request` is called in an error.
#[must_use]
pub fn describe(request: &Request) -> String {
    match request {
        Request::Start { plan } => format!("start sandbox {}", plan.id),
        Request::Stop { id } => format!("stop sandbox {id}"),
        Request::Freeze { id } => format!("freeze sandbox {id}"),
        Request::Thaw { id } => format!("thaw sandbox {id}"),
        Request::List {} => "list sandboxes".to_owned(),
        Request::About {} => "say who the launcher is".to_owned(),
        Request::Usage { ids } => format!("measure {} sessions", ids.len()),
        Request::Caches { .. } => "look at the package caches of builds".to_owned(),
        Request::Unpack { layer, .. } => format!("unpack layer {layer}"),
        Request::Pack { layer } => format!("pack layer {layer}"),
        Request::Commit { build, layer } => format!("commit build {build} as layer {layer}"),
        Request::Forget { id } => format!("forget session {id}"),
        Request::RemoveLayer { layer } => format!("remove layer {layer}"),
        Request::RemoveWorkspace { id } => format!("remove workspace {id}"),
        Request::Bootstrap { recipe } => format!("run recipe {recipe}"),
        Request::Network {} => "prepare the network".to_owned(),
        Request::Permit { id, .. } => format!("permit addresses to sandbox {id}"),
        Request::Refusals {} => "count refused packets".to_owned(),
        Request::Runtime { oci_runtime } => format!("look for OCI runtime {}", oci_runtime.name()),
    }
}

/// How many seconds `request` may take.
#[must_use]
pub fn seconds(request: &Request, config: &Config) -> u32 {
    match request {
        Request::Start { .. } => config.launch_timeout_seconds,
        Request::Unpack { .. } | Request::Pack { .. } | Request::Commit { .. } => config.unpack_timeout_seconds,
        Request::Bootstrap { .. } => config.bootstrap_timeout_seconds,
        Request::Stop { .. }
        | Request::Freeze { .. }
        | Request::Thaw { .. }
        | Request::List {}
        | Request::About {}
        | Request::Runtime { .. }
        | Request::Forget { .. }
        | Request::RemoveLayer { .. }
        | Request::RemoveWorkspace { .. }
        | Request::Usage { .. }
        | Request::Caches { .. }
        | Request::Network {}
        | Request::Permit { .. }
        | Request::Refusals {} => 30,
    }
}

/// Whether `request` is of use to nobody but who asked for it, and may take so long that it is ended when that one is gone.
#[must_use]
pub fn is_given_up(request: &Request) -> bool {
    match request {
        Request::Unpack { .. } | Request::Pack { .. } | Request::Bootstrap { .. } => true,
        Request::Start { .. }
        | Request::Stop { .. }
        | Request::Freeze { .. }
        | Request::Thaw { .. }
        | Request::List {}
        | Request::About {}
        | Request::Runtime { .. }
        | Request::Commit { .. }
        | Request::Forget { .. }
        | Request::RemoveLayer { .. }
        | Request::RemoveWorkspace { .. }
        | Request::Usage { .. }
        | Request::Caches { .. }
        | Request::Network {}
        | Request::Permit { .. }
        | Request::Refusals {} => false,
    }
}

/// Whether `request` puts something into the trash.
#[must_use]
pub fn discards(request: &Request) -> bool {
    match request {
        Request::Forget { .. }
        | Request::RemoveLayer { .. }
        | Request::RemoveWorkspace { .. }
        | Request::Unpack { .. }
        | Request::Commit { .. }
        | Request::Caches { most: Some(_), .. }
        | Request::Bootstrap { .. } => true,
        Request::Start { .. }
        | Request::Stop { .. }
        | Request::Freeze { .. }
        | Request::Thaw { .. }
        | Request::Pack { .. }
        | Request::Usage { .. }
        | Request::Caches { most: None, .. }
        | Request::List {}
        | Request::About {}
        | Request::Runtime { .. }
        | Request::Network {}
        | Request::Permit { .. }
        | Request::Refusals {} => false,
    }
}

/// Carry out `request`, which was checked.
#[must_use]
pub fn perform(host: &Host, request: &Request, descriptors: Vec<OwnedFd>) -> Answer {
    match try_perform(host, request, descriptors) {
        Ok(answer) => answer,
        Err(error) => error.into(),
    }
}

fn about(host: &Host) -> Answer {
    let (cgroup, controllers) = host.cgroups.about();
    Answer::About {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        id_base: host.config.id_base,
        slots: host.config.slots,
        cgroup,
        controllers,
    }
}

fn try_perform(host: &Host, request: &Request, descriptors: Vec<OwnedFd>) -> Result<Answer, Error> {
    let network = host.config.network.as_ref();
    let mut descriptors = descriptors.into_iter();
    let mut descriptor = || descriptors.next().ok_or_else(|| Failure::new("take the descriptor of the message"));
    match request {
        Request::Start { plan } => {
            let listener = descriptor()?;
            check_listener(&listener)?;
            let runtime = host.config.oci_runtimes.open(plan.oci_runtime)?;
            let Host { config, store, cgroups, quotas } = host;
            let room = quotas.assign(config, store, plan)?;
            let launch = Launch { config, store, cgroups, plan, listener, runtime };
            let started = container::start(&launch);
            room.close();
            return Ok(started?);
        }
        Request::Stop { id } => {
            let slot = net::slot_of(&host.cgroups, id);
            host.cgroups.remove(id)?;
            net::forget(slot, network)?;
            fail::point("stop.stopped");
        }
        Request::Freeze { id } => host.cgroups.set_frozen(id, true)?,
        Request::Thaw { id } => host.cgroups.set_frozen(id, false)?,
        Request::List {} => return Ok(Answer::Sandboxes { sandboxes: host.cgroups.list()? }),
        Request::About {} => return Ok(about(host)),
        Request::Runtime { oci_runtime } => drop(host.config.oci_runtimes.open(*oci_runtime)?),
        Request::Usage { ids } => return Ok(host.quotas.usage(&host.store, ids)),
        Request::Caches { most, dry_run } => {
            let caches = caches::look(&host.config, &host.store, *most, *dry_run)?;
            return Ok(Answer::Caches { caches });
        }
        Request::Unpack { layer, compression } => {
            let blob = descriptor()?;
            check_type(&blob, &[FileType::RegularFile])?;
            let answer = unpack::unpack(&host.config, &host.store, layer, *compression, blob)?;
            fail::point("unpack.unpacked");
            return Ok(answer);
        }
        Request::Pack { layer } => {
            let output = descriptor()?;
            check_type(&output, &[FileType::RegularFile])?;
            return Ok(pack::pack(&host.config, &host.store, layer, output)?);
        }
        Request::Commit { build, layer } => commit(host, build, layer)?,
        Request::Forget { id } => {
            refuse_running(host, id, "forget")?;
            host.store.discard(&host.store.sessions, id.as_str())?;
            fail::point("forget.removed");
        }
        Request::RemoveLayer { layer } => host.store.remove_layer(layer)?,
        Request::RemoveWorkspace { id } => {
            host.quotas.release(&host.store, id);
            host.store.discard(&host.store.workspaces, id.as_str())?;
            fail::point("workspace.removed");
        }
        Request::Network {} => return net::prepare(network, &host.cgroups),
        Request::Permit { id, permits } => net::permit(id, permits, network, &host.cgroups)?,
        Request::Refusals {} => return Ok(net::refusals(network)?),
        Request::Bootstrap { recipe } => {
            let output = descriptor()?;
            check_type(&output, &[FileType::RegularFile, FileType::Fifo, FileType::Socket])?;
            bootstrap::run(&host.config, &host.store, recipe, &output)?;
        }
    }
    Ok(Answer::Done)
}

/// Write the packet filter's table again, and say so; the exit status of the process that does it.
#[must_use]
pub fn mend(host: &Host) -> i32 {
    match net::mend(host.config.network.as_ref(), &host.cgroups) {
        Ok(true) => {
            log::say(Priority::Warning, "somebody removed the packet filter's table of sandboxes: it is written again");
            0
        }
        Ok(false) => 0,
        Err(failure) => {
            let why = failure.chain();
            log::say(Priority::Error, &format!("the packet filter's table of sandboxes is not written again: {why}"));
            1
        }
    }
}

/// Remove what a request left that ended without finishing.
pub fn undo(host: &Host, request: &Request) {
    // The request has failed already, and the same is swept at the next start.
    let _ = match request {
        Request::Start { plan } => {
            let slot = net::slot_of(&host.cgroups, &plan.id);
            host.cgroups.remove(&plan.id).and_then(|()| net::forget(slot, host.config.network.as_ref()))
        }
        Request::Unpack { layer, .. } => host.store.sweep_staged(Some(layer)),
        Request::Bootstrap { recipe } => host.store.discard_bootstraps(Some(recipe)),
        Request::Caches { .. } => host.store.make_caches(&host.config),
        Request::Stop { .. }
        | Request::Freeze { .. }
        | Request::Thaw { .. }
        | Request::List {}
        | Request::About {}
        | Request::Runtime { .. }
        | Request::Pack { .. }
        | Request::Commit { .. }
        | Request::Forget { .. }
        | Request::RemoveLayer { .. }
        | Request::RemoveWorkspace { .. }
        | Request::Usage { .. }
        | Request::Network {}
        | Request::Permit { .. }
        | Request::Refusals {} => Ok(()),
    };
}

fn refuse_running(host: &Host, id: &SessionId, what: &str) -> Result<()> {
    if host.cgroups.is_running(id) { Err(Failure::new(format!("{what} {id}: it is running"))) } else { Ok(()) }
}

fn commit(host: &Host, build: &SessionId, layer: &LayerId) -> Result<()> {
    refuse_running(host, build, "commit")?;
    if host.store.has_layer(layer) {
        return Ok(());
    }
    let dir = store::open_beneath(&host.store.sessions, build.as_str(), rustix::fs::OFlags::RDONLY)
        .map_err(|errno| Failure::of(format!("open the write layer of {build}"), errno))?;
    if !store::is_dir(dir.as_fd(), "upper") {
        return Err(Failure::new(format!("open the write layer of {build}: there is none")));
    }
    host.store.publish(&dir, "upper", layer)?;
    fail::point("commit.committed");
    Ok(())
}

fn check_listener(fd: &OwnedFd) -> Result<(), Error> {
    let is_listener = sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(fd) == Ok(SocketType::SEQPACKET)
        && sockopt::socket_acceptconn(fd) == Ok(true);
    if is_listener { Ok(()) } else { refused_descriptor("not a listening SOCK_SEQPACKET socket") }
}

fn check_type(fd: &OwnedFd, allowed: &[FileType]) -> Result<(), Error> {
    match rustix::fs::fstat(fd) {
        Ok(stat) if allowed.contains(&FileType::from_raw_mode(stat.st_mode)) => Ok(()),
        Ok(_) | Err(_) => refused_descriptor(&format!("not one of {allowed:?}")),
    }
}

fn refused_descriptor(reason: &str) -> Result<(), Error> {
    Err(Error::Refused { field: "descriptors", reason: reason.to_owned() })
}
