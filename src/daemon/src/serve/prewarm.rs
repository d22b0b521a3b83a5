//! Images of the runtimes, made ready in the background; those that they took the place of, removed.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use crate::api::App;
use crate::catalog::Runtime;
use crate::image::{Images, ManageError, ReadyImage, SharedError};
use crate::session::SessionError;

/// How often each image is tried.
const TRIES: usize = 2;
/// Time for what was wrong elsewhere to be mended.
const PAUSE: Duration = Duration::from_secs(1);

/// Make every runtime ready, one after another, if the settings say so; then remove, for as long as the service runs,
/// built images that nobody starts on any more.
pub async fn keep(app: Arc<App>) {
    if app.registry.deps.settings.prewarm {
        prewarm(&app).await;
    }
    loop {
        if let Err(error) = supersede(&app).await {
            tracing::error!(error = &error as &dyn Error, "images that nobody starts on are not removed");
        }
        tokio::time::sleep(Duration::from_secs(app.registry.deps.settings.cleanup_interval)).await;
    }
}

async fn prewarm(app: &App) {
    let runtimes = app.registry.runtimes();
    for (index, runtime) in runtimes.iter().enumerate() {
        let alias = runtime.alias.as_str();
        say(&format!("serving; preparing {alias}, {} of {}", index + 1, runtimes.len()));
        match ready(&app.registry.deps.images, runtime).await {
            Ok(image) => tracing::info!(runtime = alias, image = image.tag, "ready"),
            Err(error) => {
                let error = error.as_ref() as &dyn Error;
                tracing::error!(runtime = alias, error, "not ready; the next session on it tries again");
            }
        }
    }
    say("serving");
}

/// A runtime's image; tried again once if it cannot be had.
pub async fn ready(images: &Images, runtime: &Runtime) -> Result<Arc<ReadyImage>, SharedError> {
    let mut tried = images.ensure(runtime).await;
    for _ in 1..TRIES {
        if tried.is_err() {
            tokio::time::sleep(PAUSE).await;
            tracing::warn!(runtime = runtime.alias, "not ready; trying again");
            tried = images.ensure(runtime).await;
        }
    }
    tried
}

async fn supersede(app: &App) -> Result<(), SessionError> {
    let settings = &app.registry.deps.settings;
    // Another catalogue's images are the work of services that may just not run now.
    if settings.images_shared {
        return Ok(());
    }
    match app.registry.supersede_images().await {
        Ok(removed) => {
            for image in removed.images {
                tracing::info!(image, "removed: another took its place");
            }
            Ok(())
        }
        // There is another time.
        Err(SessionError::Images(ManageError::UnderWay { .. })) => Ok(()),
        Err(error) => Err(error),
    }
}

/// In a line of `systemctl status`.
fn say(status: &str) {
    // Started by hand, nobody listens.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Status(status)]);
}
