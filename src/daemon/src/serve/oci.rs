//! Whether the OCI runtimes that are named are there: asked once, before anything is served.

use wire::launch::OciRuntime;

use crate::runtime::LaunchError;
use crate::session::Registry;

/// A runtime that is named and cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// It is not there, or not to be trusted.
    #[error("{place}: {reason}")]
    Missing {
        /// The setting, or the runtime whose field it is.
        place: String,
        /// Why, and what is to be done.
        reason: String,
    },
    /// The launcher does not say.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

/// Ask the launcher for each runtime that the setting or the catalogue names.
///
/// # Errors
/// [`OciError`]: the first that cannot be used, with the setting that names it.
pub async fn check(registry: &Registry) -> Result<(), OciError> {
    let setting = registry.deps.settings.oci_runtime.map(|runtime| ("SANDBOXD_OCI_RUNTIME".to_owned(), runtime));
    let runtimes = registry.runtimes();
    let fields = runtimes.iter().filter_map(|runtime| {
        let place = format!("runtime {}: field oci_runtime", runtime.alias);
        runtime.oci_runtime.map(|named| (place, named))
    });
    let mut there = vec![OciRuntime::Builtin];
    for (place, runtime) in setting.into_iter().chain(fields) {
        if there.contains(&runtime) {
            continue;
        }
        match registry.deps.launcher.has_runtime(runtime).await {
            Ok(()) => there.push(runtime),
            Err(LaunchError::Refused { reason, .. }) => return Err(OciError::Missing { place, reason }),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
