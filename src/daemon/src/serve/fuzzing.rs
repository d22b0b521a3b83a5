//! What the fuzz target of the HTTP interface calls; see [`crate::fuzzing`].
//!
//! The whole service, wired as always, with a session that sleeps and a launcher that starts nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a target reports by panicking")]

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, Uri};
use http_body_util::BodyExt;
use rustix::net::{RecvFlags, SendFlags, accept, recv, send};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tower::ServiceExt;
use wire::api::{REQUEST_ID_HEADER, TOKEN_HEADER};
use wire::id::SessionId;
use wire::launch::{Answer, MAX_MESSAGE, Request as Order};

use super::{read_runtimes, wire};
use crate::api::{self, App};
use crate::config::{Raw, load};
use crate::doctor::Host;
use crate::session::{Session, now};
use crate::store::{SessionRow, SessionState};

const TOKEN: &str = "fuzzing-fuzzing-fuzzing-fuzzing-";
const SESSION: &str = "kept";
/// Longest that a request may take: nothing here waits for anybody.
const PATIENCE: Duration = Duration::from_secs(10);
/// Answers that say that something is not there or full, which a service without a launcher is.
const EXPECTED: [u16; 3] = [502, 503, 507];

/// Requests, each a line `METHOD PATH WHO` and a body up to a line `%%`; WHO is `service`, `session` or neither. No
/// answer may be a failure of ours.
pub fn http(data: &[u8]) {
    static SERVICE: LazyLock<Service> = LazyLock::new(Service::start);
    SERVICE.serve(data);
}

fn parts(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(data);
    std::iter::from_fn(move || {
        let all = rest?;
        let end = all.windows(4).position(|four| four == b"\n%%\n");
        rest = end.map(|end| &all[end + 4..]);
        Some(&all[..end.unwrap_or(all.len())])
    })
}

/// A service that answers.
pub struct Service {
    runtime: Runtime,
    app: Arc<App>,
    /// Held while the session is looked after.
    kept: Mutex<()>,
    _dir: TempDir,
}

impl Service {
    /// One of its own, in a directory that goes with it.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let path = dir.path();
        let text = format!(
            "token = '{TOKEN}'\nstate_dir = '{0}/state'\nruntime_dir = '{0}/run'\nlaunch_socket = '{0}/launch.sock'\n\
             recipes_dir = '{0}'\ncatalog = '{0}'\nruntimes = 'one=recipe,two=recipe;mem_limit=64m'\nlimits = 'best-effort'\nprewarm = false\n",
            path.display()
        );
        let settings = load(&Raw::gather(Path::new("fuzz"), &text, []).unwrap()).unwrap();
        std::fs::create_dir(&settings.state_dir).unwrap();
        // The name of a recipe: without it a registry would be asked.
        std::fs::write(path.join("recipe"), "").unwrap();
        launcher(path);
        let runtimes = read_runtimes(&settings).unwrap();
        let app = {
            let _inside = runtime.enter();
            wire(settings, runtimes, Host::look(), Vec::new()).unwrap()
        };
        Self { runtime, app, kept: Mutex::default(), _dir: dir }
    }

    /// The requests of one input.
    pub fn serve(&self, data: &[u8]) {
        for part in parts(data).take(8) {
            let line = part.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let body = part.get(line.len() + 1..).unwrap_or_default().to_vec();
            if let Some(request) = self.request(&String::from_utf8_lossy(line), body) {
                self.runtime.block_on(self.answer(request));
            }
        }
    }

    /// None for what HTTP does not carry.
    fn request(&self, line: &str, body: Vec<u8>) -> Option<Request<Body>> {
        let mut words = line.split(' ');
        let method = Method::from_bytes(words.next()?.as_bytes()).ok()?;
        let uri: Uri = words.next()?.parse().ok()?;
        let request = Request::builder().method(method).uri(uri);
        let request = match words.next() {
            Some("service") => request.header(TOKEN_HEADER, TOKEN),
            Some("session") => request.header(TOKEN_HEADER, self.runtime.block_on(self.session()).token.clone()),
            Some("stream") => request.header(TOKEN_HEADER, TOKEN).header("accept", "text/event-stream"),
            Some(other) => request.header(TOKEN_HEADER, other),
            None => request,
        };
        let request = match words.next() {
            Some(id) => request.header(REQUEST_ID_HEADER, id),
            None => request,
        };
        request.body(Body::from(body)).ok()
    }

    async fn answer(&self, request: Request<Body>) {
        self.session().await;
        let shown = format!("{} {}", request.method(), request.uri());
        let answer = async {
            let Ok(response) = api::router(self.app.clone()).oneshot(request).await;
            let status = response.status().as_u16();
            (status, response.into_body().collect().await.map(|body| body.to_bytes()))
        };
        let (status, body) =
            tokio::time::timeout(PATIENCE, answer).await.unwrap_or_else(|_| panic!("{shown}: no answer"));
        let body = body.unwrap();
        assert!(status < 500 || EXPECTED.contains(&status), "{shown}: {status} {}", String::from_utf8_lossy(&body));
    }

    /// The session that sleeps, opened again if a request has closed it.
    async fn session(&self) -> Arc<Session> {
        let _one = self.kept.lock().await;
        let id = SessionId::parse(SESSION).unwrap();
        let registry = &self.app.registry;
        if let Ok(session) = registry.find(&id) {
            return session;
        }
        let workspace = registry.deps.settings.workspace_root.join(SESSION).join("workspace");
        std::fs::create_dir_all(workspace.join("directory")).unwrap();
        std::fs::write(workspace.join("directory/file.txt"), "one\ntwo\n").unwrap();
        let link = std::os::unix::fs::symlink("/etc", workspace.join("link"));
        assert!(link.is_ok() || workspace.join("link").is_symlink());
        let row = SessionRow {
            id: id.clone(),
            state: SessionState::Opening,
            runtime: "one".to_owned(),
            tenant: None,
            nonce: [7; 16],
            slot: None,
            created_at: now(),
            last_activity: now(),
        };
        let store = &registry.deps.store;
        store.remove_session(id.clone(), true).await.unwrap();
        store.insert_session(row).await.unwrap();
        store.session_running(id.clone(), 1, "tag".to_owned()).await.unwrap();
        registry.recover().await.unwrap();
        registry.find(&id).unwrap()
    }
}

/// A launcher that has nothing, stops everything and starts nothing.
fn launcher(dir: &Path) {
    let dir: OwnedFd = std::fs::File::open(dir).unwrap().into();
    let listener = crate::runtime::listener(dir.as_fd(), "launch.sock").unwrap();
    rustix::io::ioctl_fionbio(&listener, false).unwrap();
    std::thread::spawn(move || {
        while let Ok(connection) = accept(&listener) {
            let mut bytes = vec![0; MAX_MESSAGE];
            let Ok((length, _)) = recv(&connection, &mut bytes, RecvFlags::empty()) else { continue };
            let order = serde_json::from_slice(&bytes[..length]);
            let answer = match order {
                Ok(Order::List {}) => Answer::Sandboxes { sandboxes: Vec::new() },
                Ok(Order::Stop { .. } | Order::Forget { .. } | Order::RemoveWorkspace { .. }) => Answer::Done,
                Ok(other) => {
                    Answer::Refused { field: "type".to_owned(), reason: format!("{other:?}: nothing starts here") }
                }
                Err(error) => panic!("the launcher was sent what is no request: {error}"),
            };
            let _ = send(&connection, &serde_json::to_vec(&answer).unwrap(), SendFlags::NOSIGNAL);
        }
    });
}
