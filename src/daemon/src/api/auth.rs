//! Who may do what: the service token everything, a session's token its session, the scraper's the figures.
//!
//! The token is looked at before anything else, so nobody learns without one what exists.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use wire::api::TOKEN_HEADER;
use wire::id::SessionId;

use super::App;
use super::error::ApiError;
use crate::request;
use crate::session::{Session, constant_time_eq};

impl App {
    /// Let the service token pass.
    ///
    /// # Errors
    /// [`ApiError::Unauthorized`].
    pub fn service(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.is_service(token(headers)) { Ok(()) } else { Err(ApiError::Unauthorized) }
    }

    /// The open session `id`, for its own token or the service's.
    ///
    /// # Errors
    /// [`ApiError::Unauthorized`]; [`ApiError::Invalid`] for what is no id; no such session, to the service token only.
    pub fn session(&self, headers: &HeaderMap, id: &str) -> Result<Arc<Session>, ApiError> {
        let token = token(headers);
        let service = self.is_service(token);
        let parsed = SessionId::parse(id);
        let found = parsed.as_ref().ok().and_then(|id| self.registry.find(id).ok());
        let own = found.as_ref().is_some_and(|session| constant_time_eq(session.token.as_bytes(), token));
        if !service && !own {
            return Err(ApiError::Unauthorized);
        }
        let id = parsed.map_err(|e| ApiError::field("path", "session_id", e.to_string(), "string_pattern_mismatch"))?;
        let session = found.map_or_else(|| self.registry.find(&id), Ok)?;
        request::about(&session.id, session.tenant.as_ref());
        Ok(session)
    }

    /// Let the service token pass, and the one for scraping, in the header for tokens or as `Authorization: Bearer`.
    ///
    /// # Errors
    /// [`ApiError::Unauthorized`].
    pub fn scrape(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().split_first_chunk::<7>());
        let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer ")).map(|(_, token)| token);
        let own = self.registry.deps.settings.metrics_token.as_deref();
        let passes = |token: &[u8]| {
            // Both are compared, whatever comes of the first.
            let (service, own) =
                (self.is_service(token), own.is_some_and(|own| constant_time_eq(own.as_bytes(), token)));
            service | own
        };
        if passes(token(headers)) | bearer.is_some_and(passes) { Ok(()) } else { Err(ApiError::Unauthorized) }
    }

    fn is_service(&self, token: &[u8]) -> bool {
        constant_time_eq(self.registry.deps.settings.token.as_bytes(), token)
    }
}

/// Whatever bytes the header holds; none at all are no token.
fn token(headers: &HeaderMap) -> &[u8] {
    headers.get(TOKEN_HEADER).map_or(b"", |value| value.as_bytes())
}
