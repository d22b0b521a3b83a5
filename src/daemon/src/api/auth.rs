//! Who may do what: the service token everything, a session's token its session.
//!
//! The token is looked at before anything else, so nobody learns without one what exists.

use std::sync::Arc;

use axum::http::HeaderMap;
use wire::api::TOKEN_HEADER;
use wire::id::SessionId;

use super::App;
use super::error::ApiError;
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
        Ok(found.map_or_else(|| self.registry.find(&id), Ok)?)
    }

    fn is_service(&self, token: &[u8]) -> bool {
        constant_time_eq(self.registry.deps.settings.token.as_bytes(), token)
    }
}

/// Whatever bytes the header holds; none at all are no token.
fn token(headers: &HeaderMap) -> &[u8] {
    headers.get(TOKEN_HEADER).map_or(b"", |value| value.as_bytes())
}
