//! What people see of workspaces, and what is left out.
//!
//! - Two directories that a platform writes for agents are in no listing and in no count.
//! - What is beneath `uploads/` was attached by a person. It is the only sign there is: an agent that
//!   writes there looks the same.
//! - A listing is bounded, and says when there is more. Counts are those of a listing with the default bounds.
//! - An image gets a thumbnail if its name and size in the listing allow it; only then is a byte read.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::{StreamExt, stream};
use tokio::time::{Instant as Deadline, timeout_at};
use wire::api::{BrowseEntry, BrowseRequest, BrowseResponse, FileEntry};
use wire::id::SessionId;

use super::{Archive, ArchiveError, Inner, soon};
use crate::files::stored::{Tree, TreeLimits};

/// Where what a person attached lands.
const UPLOADS: &str = "uploads/";
/// Names of images of which thumbnails are drawn, in lower case.
const IMAGES: [&str; 5] = ["png", "jpg", "jpeg", "gif", "webp"];
/// Largest image of which one is drawn, in bytes.
const IMAGE_MAX: u64 = 8 << 20;
/// How long a request may draw; images whose turn does not come have no thumbnail.
const DRAWING: Duration = Duration::from_secs(15);
/// Images that are drawn at once.
const DRAWN_AT_ONCE: usize = 2;
/// How long a page of workspaces may be counted.
const COUNTING: Duration = Duration::from_secs(5);

/// What a workspace holds, as far as its listing shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// Entries that are no directories.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether there is more.
    pub truncated: bool,
}

impl Sum {
    fn of(tree: &Tree) -> Self {
        let files = tree.entries.iter().filter(|entry| !entry.is_dir);
        let add = |sum: Self, entry: &FileEntry| Self {
            files: sum.files + 1,
            bytes: sum.bytes.saturating_add(entry.size.unwrap_or_default()),
            ..sum
        };
        files.fold(Self { truncated: tree.truncated, ..Self::default() }, add)
    }
}

impl Archive {
    /// A tree for people; images read for thumbnails are of at most `max` bytes.
    ///
    /// # Errors
    /// [`ArchiveError`]; an image that cannot be drawn has no thumbnail.
    pub async fn browse(
        &self,
        id: SessionId,
        request: BrowseRequest,
        max: u64,
    ) -> Result<BrowseResponse, ArchiveError> {
        let limits = TreeLimits { depth: request.max_depth, entries: request.max_entries, until: soon() };
        let whose = id.clone();
        let tree = self.work(move |inner| look(inner, &whose, &request.path, limits)).await?;
        let sum = Sum::of(&tree);
        let mut entries: Vec<BrowseEntry> = tree.entries.into_iter().map(shown).collect();
        let max = max.min(IMAGE_MAX);
        let drawn = entries.iter_mut().filter(|entry| is_drawn(entry, max)).take(request.thumbnails);
        let deadline = Deadline::now() + DRAWING;
        let drawing = stream::iter(drawn).for_each_concurrent(DRAWN_AT_ONCE, async |entry| {
            let thumbnail = timeout_at(deadline, self.thumbnail(id.clone(), entry.path.clone(), max)).await;
            entry.thumbnail = thumbnail.ok().flatten();
        });
        drawing.await;
        let notice = sum.truncated.then(|| notice(limits));
        Ok(BrowseResponse { entries, files: sum.files, bytes: sum.bytes, truncated: sum.truncated, notice })
    }

    /// What each of these holds, in their order. One that cannot be read is its own error; those that time leaves
    /// no room for hold nothing and more.
    ///
    /// # Errors
    /// [`ArchiveError::Busy`].
    pub async fn sums(&self, ids: Vec<SessionId>) -> Result<Vec<Result<Sum, ArchiveError>>, ArchiveError> {
        self.work(move |inner| {
            let bounds = BrowseRequest::default();
            let until = Instant::now() + COUNTING;
            let limits = TreeLimits { depth: bounds.max_depth, entries: bounds.max_entries, until };
            let sum = |id: &SessionId| look(inner, id, &bounds.path, limits).map(|tree| Sum::of(&tree));
            Ok(ids.iter().map(sum).collect())
        })
        .await
    }

    /// A small picture of an image as a `data:` URI; none if there is none to be had.
    async fn thumbnail(&self, id: SessionId, path: String, max: u64) -> Option<String> {
        let image = self.work(move |inner| Ok(inner.open(&id)?.stored_bytes(&path, max)?)).await.ok()?;
        let picture = self.inner.documents.thumbnail(image).await.ok()?;
        Some(format!("data:{};base64,{}", picture.media_type, STANDARD.encode(picture.bytes)))
    }
}

fn look(inner: &Inner, id: &SessionId, path: &str, limits: TreeLimits) -> Result<Tree, ArchiveError> {
    Ok(inner.open(id)?.stored_tree_without(path, limits, &inner.hidden)?)
}

fn shown(entry: FileEntry) -> BrowseEntry {
    let FileEntry { name, path, is_dir, size, modified_at } = entry;
    let attached = path.starts_with(UPLOADS);
    BrowseEntry { name, path, is_dir, size, modified_at, attached, thumbnail: None }
}

fn is_drawn(entry: &BrowseEntry, max: u64) -> bool {
    let extension = entry.name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    let image = extension.is_some_and(|extension| IMAGES.contains(&extension.as_str()));
    image && !entry.is_dir && entry.size.is_some_and(|size| (1..=max).contains(&size))
}

fn notice(limits: TreeLimits) -> String {
    format!(
        "This is not every file: a listing ends after {} entries or {} levels, and leaves out what cannot be read.",
        limits.entries, limits.depth
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::{archive, id};
    use super::*;

    fn request(text: &str) -> BrowseRequest {
        serde_json::from_str(text).unwrap()
    }

    #[tokio::test]
    async fn counts_agree_with_listings() {
        let (archive, workspace, _dir) = archive();
        for (path, len) in
            [("a.txt", 5), ("uploads/b.csv", 7), ("skills/x/body.md", 100), (".spill/1", 100), ("d/e/f", 1)]
        {
            let path = workspace.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, vec![b'x'; len]).unwrap();
        }
        std::os::unix::fs::symlink("a.txt", workspace.join("link")).unwrap();
        let listing = archive.browse(id("a"), request("{}"), 1000).await.unwrap();
        let sum = archive.sums(vec![id("a"), id("none")]).await.unwrap();
        assert_eq!(*sum[0].as_ref().unwrap(), Sum { files: 3, bytes: 13, truncated: false });
        assert!(matches!(sum[1], Err(ArchiveError::NoWorkspace(_))));
        assert_eq!((listing.files, listing.bytes, listing.truncated, &listing.notice), (3, 13, false, &None));
        let paths: Vec<_> = listing.entries.iter().map(|entry| (entry.path.as_str(), entry.attached)).collect();
        let expected = [
            ("d", false),
            ("uploads", false),
            ("a.txt", false),
            ("d/e", false),
            ("uploads/b.csv", true),
            ("d/e/f", false),
        ];
        assert_eq!(paths, expected);
        let cut = archive.browse(id("a"), request(r#"{"max_depth": 1}"#), 1000).await.unwrap();
        assert!(cut.truncated && cut.files == 1);
        assert!(cut.notice.unwrap().contains("1 levels"));
    }

    #[test]
    fn an_image_is_told_by_name_and_size_alone() {
        let entry = |name: &str, size| BrowseEntry {
            name: name.into(),
            path: name.into(),
            is_dir: false,
            size,
            modified_at: None,
            attached: false,
            thumbnail: None,
        };
        assert!(is_drawn(&entry("a.PNG", Some(10)), 10) && is_drawn(&entry("a.b.jpeg", Some(1)), 10));
        for (name, size) in
            [("a.png", Some(11)), ("a.png", Some(0)), ("a.png", None), ("png", Some(5)), ("a.svg", Some(5))]
        {
            assert!(!is_drawn(&entry(name, size), 10), "{name} {size:?}");
        }
    }
}
