//! One table from what went wrong to what the client is told.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use wire::api::{Detail, ErrorBody, Invalid, PathError};

use super::workspaces;
use crate::archive::ArchiveError;
use crate::files::FileError;
use crate::session::{ManageError, PolicyError, SessionError};
use crate::store::StoreError;

/// Why a request is not answered with what it asked for.
#[derive(Debug)]
pub enum ApiError {
    /// No token, or one that opens nothing here.
    Unauthorized,
    /// What the client sent does not validate.
    Invalid(Vec<Invalid>),
    /// The body is over the route's limit, in bytes.
    TooLarge(usize),
    /// The client broke off its body.
    Broken,
    /// No such route.
    NoRoute,
    /// The route has other methods.
    MethodNotAllowed,
    /// Native file operations are switched off.
    FilesOff,
    /// No runtime of that alias.
    NoRuntime(String),
    /// A runtime of that alias was never built here.
    NoLog(String),
    /// A build's log cannot be read.
    Log(Box<dyn std::error::Error + Send + Sync>),
    /// A policy that cannot be.
    Policy(PolicyError),
    /// A session's matter.
    Session(SessionError),
    /// A file's matter.
    File(FileError),
    /// A stored workspace's matter.
    Archive(ArchiveError),
}

impl From<SessionError> for ApiError {
    fn from(error: SessionError) -> Self {
        Self::Session(error)
    }
}

impl From<PolicyError> for ApiError {
    fn from(error: PolicyError) -> Self {
        match error {
            PolicyError::UnknownRuntime { .. } => Self::Policy(error),
            PolicyError::Field { field, reason } => {
                let mut loc = vec!["body".to_owned()];
                loc.extend(field.split('.').map(str::to_owned));
                Self::Invalid(vec![Invalid { loc, msg: reason, kind: "value_error".to_owned() }])
            }
        }
    }
}

impl From<ArchiveError> for ApiError {
    fn from(error: ArchiveError) -> Self {
        Self::Archive(error)
    }
}

impl From<FileError> for ApiError {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

/// A failure on our side, for the log: the answer's status is 500 or more.
#[derive(Debug, Clone)]
pub struct Failure(pub String);

impl ApiError {
    /// One field that does not validate.
    pub fn field(place: &str, field: &str, msg: impl Into<String>, kind: &str) -> Self {
        let loc = vec![place.to_owned(), field.to_owned()];
        Self::Invalid(vec![Invalid { loc, msg: msg.into(), kind: kind.to_owned() }])
    }

    /// What the client is told.
    pub fn body(self) -> ErrorBody {
        ErrorBody { detail: self.parts().1 }
    }

    fn parts(self) -> (StatusCode, Detail) {
        let message = |text: &str| Detail::Message(text.to_owned());
        match self {
            Self::Unauthorized => {
                (StatusCode::UNAUTHORIZED, message("Missing or invalid token; send it as X-Sandbox-Token"))
            }
            Self::Invalid(list) => (StatusCode::UNPROCESSABLE_ENTITY, Detail::Invalid(list)),
            Self::TooLarge(limit) => {
                (StatusCode::PAYLOAD_TOO_LARGE, Detail::Message(format!("The body is over {limit} bytes")))
            }
            Self::Broken => (StatusCode::BAD_REQUEST, message("The body ended before it was complete")),
            Self::NoRoute => (StatusCode::NOT_FOUND, message("Not Found")),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, message("Method Not Allowed")),
            Self::FilesOff => (StatusCode::CONFLICT, message("native files are off")),
            Self::NoRuntime(alias) => (StatusCode::NOT_FOUND, Detail::Message(format!("No such runtime: {alias}"))),
            Self::NoLog(alias) => (
                StatusCode::NOT_FOUND,
                Detail::Message(format!("Runtime {alias} was not built here, so there is no log")),
            ),
            Self::Log(_) => (StatusCode::INTERNAL_SERVER_ERROR, message("The log of the build cannot be read")),
            Self::Policy(error) => (StatusCode::BAD_REQUEST, Detail::Message(error.to_string())),
            Self::Session(error) => (session_status(&error), Detail::Message(error.to_string())),
            Self::File(error) => file(&error),
            Self::Archive(error) => (workspaces::status(&error), Detail::Message(error.to_string())),
        }
    }
}

fn session_status(error: &SessionError) -> StatusCode {
    use SessionError as E;
    match error {
        E::UnknownRuntime { .. } | E::AttachNeedsId | E::TooLong(_) => StatusCode::BAD_REQUEST,
        E::NoSuchSession(_) | E::NothingToAttach(_) => StatusCode::NOT_FOUND,
        E::Exists(_) | E::Opening(_) | E::Closing(_) | E::AtWork(_) | E::RuntimeDiffers { .. } | E::RunExists(_) => {
            StatusCode::CONFLICT
        }
        E::SandboxEnded(_) | E::FilesGone(_) | E::Abandoned(_) => StatusCode::GONE,
        E::Full { .. } | E::OpenFull { .. } | E::TenantFull { .. } | E::CommandsFull(_) => {
            StatusCode::TOO_MANY_REQUESTS
        }
        E::Disk(_) | E::StoppedForDisk(..) => StatusCode::INSUFFICIENT_STORAGE,
        E::Images(error) => images_status(error),
        E::Store(StoreError::Busy { .. }) => StatusCode::SERVICE_UNAVAILABLE,
        E::Launch(_) | E::Image(_) | E::Store(_) | E::Io { .. } if error.is_full() => StatusCode::INSUFFICIENT_STORAGE,
        E::Unsupported(_) | E::Network(_) | E::NoSlot | E::Image(_) | E::Launch(_) | E::Init(_) | E::Broken(_) => {
            StatusCode::BAD_GATEWAY
        }
        E::Io { .. } | E::Store(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn images_status(error: &ManageError) -> StatusCode {
    match error {
        ManageError::Unknown(_) => StatusCode::NOT_FOUND,
        ManageError::Crowded => StatusCode::TOO_MANY_REQUESTS,
        ManageError::InUse { .. }
        | ManageError::UnderWay { .. }
        | ManageError::Shared { .. }
        | ManageError::Unreadable { .. } => StatusCode::CONFLICT,
        _ if error.is_full() => StatusCode::INSUFFICIENT_STORAGE,
        ManageError::Room(_) => StatusCode::INSUFFICIENT_STORAGE,
        ManageError::Image(_) | ManageError::Import(_) => StatusCode::UNPROCESSABLE_ENTITY,
        ManageError::Layer { .. } | ManageError::Caches { .. } => StatusCode::BAD_GATEWAY,
        ManageError::Store(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn file(error: &FileError) -> (StatusCode, Detail) {
    let status = match error {
        FileError::NotFound { .. } => StatusCode::NOT_FOUND,
        FileError::IsADirectory { .. }
        | FileError::NotADirectory { .. }
        | FileError::Exists { .. }
        | FileError::Invalid { .. } => StatusCode::BAD_REQUEST,
        FileError::NotNative { .. } | FileError::TooLarge { .. } => StatusCode::CONFLICT,
        FileError::OverQuota { .. } | FileError::NoSpace { .. } => StatusCode::INSUFFICIENT_STORAGE,
        FileError::Io { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let detail = match error.name() {
        Some(name) => Detail::Path(PathError { error: name.to_owned(), message: error.to_string() }),
        None => Detail::Message(error.to_string()),
    };
    (status, detail)
}

/// What the log says of a failure on our side: the whole chain.
fn failure(error: &ApiError) -> String {
    let source: Option<&dyn std::error::Error> = match error {
        ApiError::Session(error) => Some(error),
        ApiError::File(error) => Some(error),
        ApiError::Archive(error) => Some(error),
        ApiError::Log(error) => Some(error.as_ref()),
        ApiError::Unauthorized
        | ApiError::Invalid(_)
        | ApiError::TooLarge(_)
        | ApiError::Broken
        | ApiError::NoRoute
        | ApiError::MethodNotAllowed
        | ApiError::FilesOff
        | ApiError::NoRuntime(_)
        | ApiError::NoLog(_)
        | ApiError::Policy(_) => None,
    };
    let mut text = String::new();
    let mut next = source;
    while let Some(error) = next {
        let part = error.to_string();
        // Some messages carry their sources already.
        if !text.contains(&part) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&part);
        }
        next = error.source();
    }
    text
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let text = failure(&self);
        let (status, detail) = self.parts();
        let mut response = (status, Json(ErrorBody { detail })).into_response();
        if status.is_server_error() {
            response.extensions_mut().insert(Failure(text));
        }
        response
    }
}
