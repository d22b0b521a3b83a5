//! Images, as far as sessions are concerned: who needs which, and what may go.
//!
//! A session needs the image that its sandbox stands on, and, asleep, the one that its write layer was written over. Those
//! are rows, so they are known over a restart. A session that is just opening has no row yet: it holds the image itself.

use std::collections::HashMap;

use wire::api::{BuildCaches, GcRequest, ImageInfo, Removed};
use wire::id::SessionId;

use super::error::SessionError;
use super::registry::Registry;
use crate::image::{Archive, Form, ManageError, Named, Pulling, Spool};

/// Most sessions that a refusal names.
const NAMED: usize = 10;

impl Registry {
    /// Fetch an image, also if it is here.
    ///
    /// # Errors
    /// [`SessionError::Images`]: it is no name, or too many pulls are under way.
    pub fn pull_image(&self, reference: &str) -> Result<Pulling, SessionError> {
        Ok(self.deps.images.pull(reference, self.runtimes())?)
    }

    /// An image as an archive.
    ///
    /// # Errors
    /// [`SessionError::Images`]: there is none of this name.
    pub fn export_image(&self, name: &str, form: Form) -> Result<Archive, SessionError> {
        let images = &self.deps.images;
        Ok(images.export(&images.named(name)?, form)?)
    }

    /// Where an archive is received of which at least so many bytes are announced.
    ///
    /// # Errors
    /// [`SessionError::Images`]: the disk, or no room on it.
    pub fn receive_image(&self, announced: u64) -> Result<Spool, SessionError> {
        Ok(self.deps.images.spool(announced)?)
    }

    /// Import the image of an archive that was received, the one that is called `tag` in it or the only one, under `name` or
    /// the one that it says.
    ///
    /// # Errors
    /// [`SessionError::Images`]: it is none, or is not acceptable.
    pub async fn import_image(
        &self,
        archive: Spool,
        name: Option<&str>,
        tag: Option<&str>,
    ) -> Result<ImageInfo, SessionError> {
        let images = &self.deps.images;
        let key = images.import(archive, name, tag).await?;
        Ok(images.info(&key, self.runtimes()).ok_or(ManageError::Unknown(key))?)
    }

    /// Remove an image, with the layers that no other has.
    ///
    /// # Errors
    /// [`SessionError::Images`]: somebody needs it, and who.
    pub async fn remove_image(&self, name: &str) -> Result<Removed, SessionError> {
        let images = &self.deps.images;
        let _alone = images.alone()?;
        let image = images.named(name)?;
        self.refuse_needed(&image).await?;
        let taken = images.take(&image)?;
        // Again: one that held it then may have become a row.
        self.refuse_needed(&image).await?;
        Ok(images.remove(taken).await?)
    }

    /// Remove what nobody needs.
    ///
    /// # Errors
    /// [`SessionError::Images`]: something is being made.
    pub async fn collect_images(&self, request: GcRequest) -> Result<Removed, SessionError> {
        let images = &self.deps.images;
        let _alone = if request.dry_run { None } else { Some(images.alone()?) };
        let still = images.hold_still()?;
        let needed = self.needed().await?;
        let unused = images.unused(self.runtimes(), request.unused, |tag| needed.contains_key(tag));
        if request.dry_run {
            let mut removed = images.would_collect(&unused).await?;
            images.empty_caches(request, &mut removed, &still).await?;
            return Ok(removed);
        }
        let mut taken = images.take_free(&unused);
        let needed = self.needed().await?;
        taken.spare(|tag| needed.contains_key(tag));
        let mut removed = images.collect(taken, &still).await?;
        images.empty_caches(request, &mut removed, &still).await?;
        Ok(removed)
    }

    /// How large the package caches of builds are.
    ///
    /// # Errors
    /// [`SessionError::Images`]: the launcher does not say.
    pub async fn build_caches(&self) -> Result<BuildCaches, SessionError> {
        Ok(self.deps.images.caches().await?)
    }

    /// Remove images that were built for a runtime before its definition changed, as soon as the new one is there and no
    /// session needs the old one.
    ///
    /// # Errors
    /// [`SessionError`].
    pub async fn supersede_images(&self) -> Result<Removed, SessionError> {
        let images = &self.deps.images;
        let _alone = images.alone()?;
        // What goes while something is made would leave its layers behind.
        drop(images.hold_still()?);
        images.forget_logs(self.runtimes())?;
        let superseded = images.superseded(self.runtimes());
        if superseded.is_empty() {
            return Ok(Removed::default());
        }
        let mut taken = images.take_free(&superseded);
        let needed = self.needed().await?;
        taken.spare(|tag| needed.contains_key(tag));
        Ok(images.remove(taken).await?)
    }

    async fn refuse_needed(&self, image: &Named) -> Result<(), SessionError> {
        let sessions = self.needed().await?.remove(&image.tag).unwrap_or_default();
        let more = sessions.len().saturating_sub(NAMED);
        let runtimes = self.deps.images.runtimes_of(image, self.runtimes());
        let mut users: Vec<String> = runtimes.iter().map(|alias| format!("runtime {alias}")).collect();
        users.extend(sessions.iter().take(NAMED).map(|id| format!("session {id}")));
        if more > 0 {
            users.push(format!("{more} sessions more"));
        }
        if users.is_empty() {
            return Ok(());
        }
        Err(ManageError::InUse { name: image.reference().to_owned(), users }.into())
    }

    /// Which sessions need each image, by its tag.
    async fn needed(&self) -> Result<HashMap<String, Vec<SessionId>>, SessionError> {
        let mut needed: HashMap<String, Vec<SessionId>> = HashMap::new();
        for (id, tag) in self.deps.store.layer_tags().await? {
            needed.entry(tag).or_default().push(id);
        }
        Ok(needed)
    }
}
