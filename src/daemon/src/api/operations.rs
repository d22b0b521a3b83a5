//! What was done in sessions: the log, a session's events, and the watching of what is asked for now.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName};
use uuid::Uuid;
use wire::api::{AGENT_HEADER, CALLER_MAX, ErrorBody, OperationsPage, RUN_HEADER, RunResponse, SessionEvents};
use wire::id::{RequestId, SessionId, Tenant};

use super::error::ApiError;
use super::inside::By;
use super::{App, Shared};
use crate::files::FileError;
use crate::operations::{Caller, Filter, Observed, Op, Subject};
use crate::request;
use crate::session::{Session, SessionError};

/// Rows of a page unless the client says otherwise, and most.
const PAGE: (u64, u64) = (50, 500);
/// Longest text that is searched for, in characters.
const TEXT_MAX: usize = 200;

type Pairs = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// What was done in all sessions, newest first; kept when session and files are gone. Never a payload.
#[utoipa::path(get, path = "/operations", tag = "operations",
    params(
        ("skip" = Option<u64>, Query, description = "Leave out so many; 0"),
        ("limit" = Option<u64>, Query, description = "Most of a page, 1 to 500; 50", minimum = 1, maximum = 500),
        ("session" = Option<String>, Query, description = "Of this session"),
        ("tenant" = Option<String>, Query, description = "Of this tenant"),
        ("op" = Option<String>, Query, description = "Of this name: run, read, write, stat, ls, realpath, mkdir, remove or stop"),
        ("request" = Option<String>, Query, description = "That were done for the request of this id"),
        ("failed" = Option<bool>, Query, description = "Those that failed; false: those that did not"),
        ("q" = Option<String>, Query, description = "Whose name or target holds this text, in any case", max_length = 200)),
    responses((status = 200, body = OperationsPage), (status = 401, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub async fn list(State(app): Shared, headers: HeaderMap, query: Pairs) -> Result<Json<OperationsPage>, ApiError> {
    app.service(&headers)?;
    let filter = filter(query)?;
    let page = app.operations.page(filter).await.map_err(SessionError::Store)?;
    Ok(Json(page))
}

/// What was done in a session since it was opened: the newest 200. Never contents, never output.
#[utoipa::path(get, path = "/sessions/{session_id}/events", tag = "sessions",
    params(("session_id" = String, Path), ("after" = Option<u64>, Query, description = "Only those with a higher number; 0")),
    responses((status = 200, body = SessionEvents), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 422, body = ErrorBody)))]
pub async fn events(
    State(app): Shared,
    headers: HeaderMap,
    Path(id): Path<String>,
    query: Pairs,
) -> Result<Json<SessionEvents>, ApiError> {
    let session = app.session(&headers, &id)?;
    // A client may ask for more than we know.
    let pairs = pairs(query)?;
    let after = pairs.get("after").map_or(Ok(0), |text| count("after", text))?;
    let events = app.operations.events(session.id.clone(), session.created_at, after).await;
    Ok(Json(events.map_err(SessionError::Store)?))
}

impl App {
    /// Begin an operation on a session.
    ///
    /// # Errors
    /// [`ApiError::Invalid`] for a header that names no agent or run.
    pub fn observe(&self, headers: &HeaderMap, session: &Session, op: Op, target: &str) -> Result<Observed, ApiError> {
        Ok(self.observe_for(caller(headers)?, session, op, target))
    }

    /// The same for a caller who has been read from the headers already.
    pub fn observe_for(&self, caller: Caller, session: &Session, op: Op, target: &str) -> Observed {
        self.operations.observe(Subject {
            session: session.id.clone(),
            opened: session.created_at,
            tenant: session.tenant.clone(),
            caller,
            request: request::current().map(|request| request.id.clone()),
            command: (op == Op::Run).then(Uuid::new_v4),
            op,
            target: target.to_owned(),
        })
    }
}

/// On whose behalf the client says it asks.
///
/// # Errors
/// [`ApiError::Invalid`], naming the header.
pub fn caller(headers: &HeaderMap) -> Result<Caller, ApiError> {
    let text = |name: &'static str| {
        let Some(value) = headers.get(HeaderName::from_static(name)) else { return Ok(None) };
        let sound =
            (1..=CALLER_MAX).contains(&value.len()) && value.as_bytes().iter().all(|b| (b' '..=b'~').contains(b));
        match value.to_str() {
            Ok(text) if sound => Ok(Some(text.to_owned())),
            Ok(_) | Err(_) => {
                let msg = format!("A header of 1 to {CALLER_MAX} printable ASCII characters");
                Err(ApiError::field("header", name, msg, "string_pattern_mismatch"))
            }
        }
    };
    Ok(Caller { agent: text(AGENT_HEADER)?, run: text(RUN_HEADER)? })
}

/// How a command ended, in the words of the contract.
pub fn ended(observed: Observed, result: &Result<RunResponse, SessionError>) {
    match result {
        Ok(run) if run.timed_out => observed.finish(false, "timed out"),
        Ok(run) if run.output_limited => observed.finish(false, "output limit"),
        Ok(run) => {
            let code = run.exit_code.map_or_else(|| "stopped".to_owned(), |code| format!("exit {code}"));
            let detail = run.limit.as_ref().map_or(code.clone(), |limit| format!("{code}: {limit}"));
            observed.finish(run.exit_code == Some(0), detail);
        }
        Err(error) => observed.finish(false, refusal(error)),
    }
}

/// How a file operation ended, likewise.
pub fn done<T>(observed: Observed, result: &Result<T, ApiError>, by: By) {
    match result {
        Ok(_) if by == By::Sandbox => observed.finish(true, "via the sandbox"),
        Ok(_) => observed.finish(true, ""),
        Err(ApiError::File(error)) => observed.finish(false, file_detail(error)),
        Err(ApiError::Session(error)) => observed.finish(false, refusal(error)),
        Err(ApiError::Broken) => observed.finish(false, "client went away"),
        Err(
            ApiError::Unauthorized
            | ApiError::Invalid(_)
            | ApiError::TooLarge(_)
            | ApiError::NoRoute
            | ApiError::MethodNotAllowed
            | ApiError::FilesOff
            | ApiError::NoRuntime(_)
            | ApiError::NoLog(_)
            | ApiError::Log(_)
            | ApiError::Policy(_)
            | ApiError::Archive(_),
        ) => observed.finish(false, "refused"),
    }
}

fn file_detail(error: &FileError) -> &'static str {
    match error {
        FileError::NotFound { .. } => "not found",
        FileError::NotNative { .. } | FileError::TooLarge { .. } => "via the sandbox",
        FileError::OverQuota { .. } => "disk quota",
        FileError::NoSpace { .. } => "no space left",
        FileError::IsADirectory { .. }
        | FileError::NotADirectory { .. }
        | FileError::Exists { .. }
        | FileError::Invalid { .. }
        | FileError::Io { .. } => error.name().unwrap_or("failed"),
    }
}

/// Why a command was not run, without anything that a client or a sandbox wrote.
fn refusal(error: &SessionError) -> Cow<'static, str> {
    use SessionError as E;
    let text = match error {
        E::SandboxEnded(_) | E::FilesGone(_) | E::NoSuchSession(_) | E::Closing(_) => "sandbox gone",
        E::Disk(error) | E::StoppedForDisk(_, error) => error.brief(),
        E::CommandsFull(_) => "too many commands",
        E::Full { .. } | E::OpenFull { .. } | E::TenantFull { .. } => "no room",
        E::RunExists(_) => "run exists",
        E::TooLong(_) => "too long",
        E::Abandoned(_) => "client went away",
        E::UnknownRuntime { .. }
        | E::AttachNeedsId
        | E::NothingToAttach(_)
        | E::Exists(_)
        | E::Opening(_)
        | E::AtWork(_)
        | E::RuntimeDiffers { .. }
        | E::Unsupported(_)
        | E::Network(_)
        | E::NoSlot
        | E::Image(_)
        | E::Images(_)
        | E::Launch(_)
        | E::Init(_)
        | E::Io { .. }
        | E::Store(_)
        | E::Broken(_) => "not started",
    };
    Cow::Borrowed(text)
}

fn pairs(query: Pairs) -> Result<BTreeMap<String, String>, ApiError> {
    let Query(list) = query.map_err(|error| ApiError::field("query", "", error.body_text(), "value_error"))?;
    let mut pairs = BTreeMap::new();
    for (name, value) in list {
        if pairs.contains_key(&name) {
            return Err(ApiError::field("query", &name, "Given twice", "value_error"));
        }
        pairs.insert(name, value);
    }
    Ok(pairs)
}

/// Every filter that is not understood is refused: one that is left out shows more than was asked for.
fn filter(query: Pairs) -> Result<Filter, ApiError> {
    let mut filter = Filter { limit: PAGE.0, ..Filter::default() };
    for (name, value) in pairs(query)? {
        let wrong = |msg: String, kind| ApiError::field("query", &name, msg, kind);
        let pattern = |e: wire::id::InvalidId| wrong(e.to_string(), "string_pattern_mismatch");
        match name.as_str() {
            "skip" => filter.skip = count(&name, &value)?,
            "limit" => {
                filter.limit = count(&name, &value)?;
                if !(1..=PAGE.1).contains(&filter.limit) {
                    return Err(wrong(format!("Input should be 1 to {}", PAGE.1), "value_error"));
                }
            }
            "session" => filter.session = Some(SessionId::parse(&value).map_err(pattern)?),
            "tenant" => filter.tenant = Some(Tenant::parse(&value).map_err(pattern)?),
            "request" => filter.request = Some(RequestId::parse(&value).map_err(pattern)?),
            "op" => {
                let names = Op::ALL.map(Op::name).join(", ");
                let op = Op::parse(&value).ok_or_else(|| wrong(format!("Input should be one of {names}"), "enum"))?;
                filter.op = Some(op.name().to_owned());
            }
            "failed" => {
                let flag = crate::config::boolean(&value);
                filter.failed =
                    Some(flag.ok_or_else(|| wrong("Input should be a valid boolean".into(), "bool_parsing"))?);
            }
            "q" if value.chars().count() > TEXT_MAX => {
                return Err(wrong(format!("String should have at most {TEXT_MAX} characters"), "string_too_long"));
            }
            "q" => filter.text = Some(value).filter(|text| !text.is_empty()),
            _ => return Err(wrong("No such filter".into(), "extra_forbidden")),
        }
    }
    Ok(filter)
}

fn count(name: &str, text: &str) -> Result<u64, ApiError> {
    let number = text.parse().ok().filter(|number| i64::try_from(*number).is_ok());
    number.ok_or_else(|| ApiError::field("query", name, "Input should be a whole number, 0 or more", "int_parsing"))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn parse(list: &[(&str, &str)]) -> Result<Filter, String> {
        let list = list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        filter(Ok(Query(list))).map_err(|error| match error {
            ApiError::Invalid(list) => list[0].loc.join("/"),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn filters_are_read_and_what_is_none_is_named() {
        let all = parse(&[
            ("skip", "3"),
            ("limit", "500"),
            ("session", "s"),
            ("tenant", "t"),
            ("op", "run"),
            ("failed", "1"),
            ("q", "a%"),
        ]);
        let all = all.unwrap();
        assert_eq!(
            (all.skip, all.limit, all.op.as_deref(), all.failed, all.text.as_deref()),
            (3, 500, Some("run"), Some(true), Some("a%"))
        );
        assert_eq!(parse(&[]).unwrap(), Filter { limit: 50, ..Filter::default() });
        let long = "x".repeat(201);
        for (name, value) in [
            ("skip", "-1"),
            ("skip", "9223372036854775808"),
            ("limit", "0"),
            ("limit", "501"),
            ("limit", "many"),
            ("session", "../x"),
            ("tenant", ""),
            ("request", "a b"),
            ("op", "RUN"),
            ("failed", "maybe"),
            ("q", long.as_str()),
            ("tenants", "x"),
        ] {
            assert_eq!(parse(&[(name, value)]), Err(format!("query/{name}")), "{value}");
        }
        assert_eq!(parse(&[("op", "run"), ("op", "ls")]), Err("query/op".into()));
    }

    #[test]
    fn callers_are_printable_and_short_or_refused() {
        let with = |bytes: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(AGENT_HEADER, HeaderValue::from_bytes(bytes).unwrap());
            caller(&headers)
                .map_err(|error| matches!(error, ApiError::Invalid(list) if list[0].loc == ["header", AGENT_HEADER]))
        };
        assert_eq!(with(b"clerk 7").unwrap(), Caller { agent: Some("clerk 7".into()), run: None });
        assert_eq!(with(&[b'x'; 128]).unwrap().agent.unwrap().len(), 128);
        for wrong in [&b""[..], &[b'x'; 129], "é".as_bytes(), b"a\tb"] {
            assert_eq!(with(wrong), Err(true));
        }
        assert_eq!(caller(&HeaderMap::new()).unwrap(), Caller::default());
    }
}
