//! The request that a task works for, for the log: whatever is logged in the meantime carries its id, and the session that
//! it is about.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use uuid::Uuid;
use wire::id::{RequestId, SessionId, Tenant};

/// A request.
#[derive(Debug)]
pub struct Request {
    /// Its id.
    pub id: RequestId,
    about: OnceLock<(SessionId, Option<Tenant>)>,
}

tokio::task_local! {
    static CURRENT: Option<Arc<Request>>;
}

impl Request {
    /// A request of this id, of whose session nothing is known yet.
    #[must_use]
    pub fn new(id: RequestId) -> Arc<Self> {
        Arc::new(Self { id, about: OnceLock::new() })
    }

    /// The session that it is about, and whose that is.
    #[must_use]
    pub fn session(&self) -> Option<(&SessionId, Option<&Tenant>)> {
        self.about.get().map(|(session, tenant)| (session, tenant.as_ref()))
    }
}

/// The request of this task, if it works for one.
#[must_use]
pub fn current() -> Option<Arc<Request>> {
    CURRENT.try_with(Clone::clone).ok().flatten()
}

/// Say which session the current request is about. The first word stands.
pub fn about(session: &SessionId, tenant: Option<&Tenant>) {
    if let Some(request) = current() {
        request.about.get_or_init(|| (session.clone(), tenant.cloned()));
    }
}

/// Do something for a request: one that was current elsewhere, when another task goes on with it.
pub async fn scope<F: Future>(request: Option<Arc<Request>>, work: F) -> F::Output {
    CURRENT.scope(request, work).await
}

/// An id for a request that has none: a random part of this process's, and a number.
#[must_use]
pub fn fresh() -> RequestId {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| Uuid::new_v4().as_u64_pair().0);
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let text = format!("{:016x}{:016x}", *PROCESS, NEXT.fetch_add(1, Ordering::Relaxed));
    // Hexadecimal digits follow the grammar.
    RequestId::parse(&text).unwrap_or_else(|_| fresh())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_knows_its_request_and_no_other() {
        let id = || current().map(|request| request.id.clone());
        assert_eq!(id(), None);
        let (one, two) = (fresh(), fresh());
        assert_ne!(one, two);
        let inner = scope(Some(Request::new(one.clone())), async {
            let other = tokio::spawn(async { current().is_some() }).await.unwrap();
            (id(), other, scope(None, async { current().is_some() }).await)
        });
        assert_eq!(inner.await, (Some(one), false, false));
    }

    #[tokio::test]
    async fn a_request_is_about_the_session_that_was_named_first() {
        let (a, b) = (SessionId::parse("a").unwrap(), SessionId::parse("b").unwrap());
        about(&a, None);
        let request = Request::new(fresh());
        let naming = async {
            about(&a, Tenant::parse("acme").ok().as_ref());
            about(&b, None);
        };
        scope(Some(request.clone()), naming).await;
        let (session, tenant) = request.session().unwrap();
        assert_eq!((session, tenant.unwrap().as_str()), (&a, "acme"));
    }
}
