//! Stored workspaces: what sessions left behind, looked at without a sandbox, by the platform and by people.
//!
//! It makes no difference whether a session is open, asleep or over: its directory is looked at.
//! Everything here works off the threads that serve, at most [`AT_ONCE`] requests at a time, each for
//! at most [`TIME`] of looking.
//!
//! [`browse`] has the rules of what people see.

mod browse;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::Semaphore;
use wire::api::{FileEntry, ReadRequest, TreeRequest, TreeResponse, TreesRequest};
use wire::id::SessionId;

pub use browse::Sum;

use crate::document::{DocumentError, Documents};
use crate::files::stored::{Hidden, StoredError, TreeLimits};
use crate::files::{FileError, Workspace, slice};

/// Requests that are worked on at once.
const AT_ONCE: usize = 8;
/// How long a request may wait for its turn.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long one request may look at directories.
const TIME: Duration = Duration::from_secs(10);
/// Entries that one answer may hold, of all its trees together.
const ENTRIES_MAX: usize = 200_000;

/// Why a stored workspace was not looked at.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// None of that name is kept.
    #[error("No workspace for session: {0}")]
    NoWorkspace(SessionId),
    /// It cannot be opened.
    #[error("open the workspace of {id}")]
    Open {
        /// Whose.
        id: SessionId,
        /// Why.
        #[source]
        source: FileError,
    },
    /// The path, or what is there.
    #[error(transparent)]
    Stored(#[from] StoredError),
    /// A document in it.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// Too many requests of this kind are under way.
    #[error("too many workspaces are being looked at; repeat later")]
    Busy,
}

/// The stored workspaces. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Archive {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `workspace_root`.
    workspaces: OwnedFd,
    work_dir: String,
    hidden: Hidden,
    turns: Arc<Semaphore>,
    documents: Documents,
}

impl Inner {
    fn open(&self, id: &SessionId) -> Result<Workspace, ArchiveError> {
        Workspace::open(self.workspaces.as_fd(), id, &self.work_dir).map_err(|error| match error {
            FileError::NotFound { .. } | FileError::NotADirectory { .. } => ArchiveError::NoWorkspace(id.clone()),
            source => ArchiveError::Open { id: id.clone(), source },
        })
    }
}

impl Archive {
    /// Those beneath the directory `workspaces`, which sandboxes see as `work_dir`; people are not shown what is
    /// beneath `hidden`.
    #[must_use]
    pub fn new(workspaces: OwnedFd, work_dir: &str, hidden: &[String]) -> Self {
        let inner = Inner {
            workspaces,
            work_dir: work_dir.to_owned(),
            hidden: Hidden::new(hidden),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            documents: Documents::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A directory's entries, directories first, then by name.
    ///
    /// # Errors
    /// [`ArchiveError`].
    pub async fn ls(&self, id: SessionId, path: String) -> Result<Vec<FileEntry>, ArchiveError> {
        self.work(move |inner| Ok(inner.open(&id)?.stored_ls(&path)?)).await
    }

    /// A directory and those beneath it.
    ///
    /// # Errors
    /// [`ArchiveError`].
    pub async fn tree(&self, id: SessionId, request: TreeRequest) -> Result<TreeResponse, ArchiveError> {
        self.work(move |inner| {
            let limits = TreeLimits { depth: request.max_depth, entries: request.max_entries, until: soon() };
            tree(inner, &id, &request.path, limits)
        })
        .await
    }

    /// The same of several, in the order asked; each has its own error. The answer as a whole is bounded
    /// by [`ENTRIES_MAX`] and [`TIME`]: trees that this cuts are truncated.
    ///
    /// # Errors
    /// [`ArchiveError::Busy`].
    pub async fn trees(
        &self,
        request: TreesRequest,
    ) -> Result<Vec<(SessionId, Result<TreeResponse, ArchiveError>)>, ArchiveError> {
        self.work(move |inner| {
            let until = soon();
            let mut left = ENTRIES_MAX;
            let look = |id: SessionId| {
                let limits = TreeLimits { depth: request.max_depth, entries: request.max_entries.min(left), until };
                let tree = tree(inner, &id, &request.path, limits);
                left -= tree.as_ref().map_or(0, |tree| tree.entries.len().min(left));
                (id, tree)
            };
            Ok(request.sessions.into_iter().map(look).collect())
        })
        .await
    }

    /// Lines of a file that is text, or has some.
    ///
    /// # Errors
    /// [`ArchiveError`].
    pub async fn read(&self, id: SessionId, request: ReadRequest, max: u64) -> Result<String, ArchiveError> {
        let ReadRequest { path, offset, limit } = request;
        let lines = move |text: &str| slice(text, index(offset), index(limit));
        if !is_pdf(&path) {
            return self.work(move |inner| Ok(lines(&inner.open(&id)?.stored_text(&path, max)?))).await;
        }
        let pdf = self.work(move |inner| Ok(inner.open(&id)?.stored_bytes(&path, max)?)).await?;
        let text = self.inner.documents.pdf_text(pdf).await?;
        self.work(move |_| Ok(lines(&text))).await
    }

    /// A whole file, in base64.
    ///
    /// # Errors
    /// [`ArchiveError`].
    pub async fn read_bytes(&self, id: SessionId, path: String, max: u64) -> Result<String, ArchiveError> {
        self.work(move |inner| Ok(STANDARD.encode(inner.open(&id)?.stored_bytes(&path, max)?))).await
    }

    /// Do `work` on a thread that may block. It goes on to its end, and counts until then, even if nobody waits.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, ArchiveError> + Send + 'static,
    ) -> Result<T, ArchiveError> {
        let turn = tokio::time::timeout(PATIENCE, self.inner.turns.clone().acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(ArchiveError::Busy) };
        let inner = self.inner.clone();
        let done = tokio::task::spawn_blocking(move || {
            let result = work(&inner);
            drop(turn);
            result
        });
        done.await.unwrap_or(Err(ArchiveError::Busy))
    }
}

fn soon() -> Instant {
    Instant::now() + TIME
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn is_pdf(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.rsplit_once('.').is_some_and(|(_, extension)| extension.eq_ignore_ascii_case("pdf"))
}

fn tree(inner: &Inner, id: &SessionId, path: &str, limits: TreeLimits) -> Result<TreeResponse, ArchiveError> {
    let tree = inner.open(id)?.stored_tree(path, limits)?;
    Ok(TreeResponse { entries: tree.entries, truncated: tree.truncated })
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    pub(super) fn id(text: &str) -> SessionId {
        SessionId::parse(text).unwrap()
    }

    /// An archive with the workspace `a`, where that is, and the directory that goes with it.
    pub(super) fn archive() -> (Archive, PathBuf, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let workspace = dir.path().join("a/workspace");
        std::fs::create_dir_all(&workspace).unwrap();
        let root = std::fs::File::open(dir.path()).unwrap().into();
        let hidden = ["skills/".to_owned(), ".spill/".to_owned()];
        (Archive::new(root, "/workspace", &hidden), workspace, dir)
    }

    fn write(path: &Path, bytes: &[u8]) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    #[tokio::test]
    async fn a_workspace_that_is_not_kept_is_none() {
        let (archive, _, dir) = archive();
        write(&dir.path().join("file/workspace"), b"");
        for name in ["b", "file"] {
            let error = archive.ls(id(name), ".".into()).await.unwrap_err();
            assert_eq!(error.to_string(), format!("No workspace for session: {name}"));
        }
        assert!(archive.ls(id("a"), ".".into()).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn trees_are_in_the_order_asked_and_fail_alone() {
        let (archive, workspace, _dir) = archive();
        write(&workspace.join("d/f"), b"1");
        let sessions = vec![id("missing"), id("a"), id("a")];
        let request = TreesRequest { sessions, path: "d".into(), max_depth: 6, max_entries: 10 };
        let results = archive.trees(request).await.unwrap();
        let names: Vec<_> = results.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(names, ["missing", "a", "a"]);
        assert!(matches!(results[0].1, Err(ArchiveError::NoWorkspace(_))));
        assert_eq!(results[1].1.as_ref().unwrap(), results[2].1.as_ref().unwrap());
        assert_eq!(results[1].1.as_ref().unwrap().entries[0].path, "d/f");
    }

    #[tokio::test]
    async fn requests_beyond_the_bound_wait() {
        let (archive, _, _dir) = archive();
        let turns = archive.inner.turns.clone().acquire_many_owned(8).await.unwrap();
        let waiting = tokio::spawn({
            let archive = archive.clone();
            async move { archive.ls(id("a"), ".".into()).await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!waiting.is_finished());
        drop(turns);
        assert!(waiting.await.unwrap().is_ok());
    }

    #[test]
    fn a_pdf_is_told_by_its_name() {
        assert!(is_pdf("a/b.PDF") && is_pdf("x.tar.pdf") && !is_pdf("pdf") && !is_pdf("a.pdf/b"));
    }
}
