//! Reading what a client sends: bounded, and every complaint names the field.

use axum::body::Body;
use futures_util::TryStreamExt;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use wire::api::Invalid;

use super::error::ApiError;

/// Longest JSON body, in bytes, except a command's.
pub const JSON_MAX: usize = 1 << 20;
/// Longest body of a command: the longest command, and room for JSON's escapes.
pub const RUN_MAX: usize = 8 << 20;

/// A JSON body of at most `limit` bytes.
///
/// # Errors
/// [`ApiError::TooLarge`], [`ApiError::Broken`], [`ApiError::Invalid`].
pub async fn json<T: DeserializeOwned>(body: Body, limit: usize) -> Result<T, ApiError> {
    let bytes =
        Limited::new(body, limit).collect().await.map_err(|error| match error.downcast::<LengthLimitError>() {
            Ok(_) => ApiError::TooLarge(limit),
            Err(_) => ApiError::Broken,
        })?;
    parse(&bytes.to_bytes())
}

/// The pieces of a body as they come.
pub fn pieces(body: Body) -> impl futures_util::Stream<Item = Result<bytes::Bytes, ApiError>> + Unpin {
    TryStreamExt::map_err(body.into_data_stream(), |_| ApiError::Broken)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    // Every body of this API is an object; serde would take a list of its fields as well.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|first| b"[\"tfn-0123456789".contains(first)) {
        let msg = "Input should be a valid dictionary or object".to_owned();
        return Err(ApiError::Invalid(vec![Invalid {
            loc: vec!["body".into()],
            msg,
            kind: "model_attributes_type".into(),
        }]));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        invalid(&path, error.inner())
    })?;
    reader.end().map_err(|error| invalid("", &error))?;
    Ok(value)
}

/// A complaint of the JSON reader as the contract's list.
fn invalid(path: &str, error: &serde_json::Error) -> ApiError {
    use serde_json::error::Category;
    let mut loc = vec!["body".to_owned()];
    if error.classify() != Category::Data {
        return ApiError::Invalid(vec![Invalid {
            loc,
            msg: format!("JSON decode error: {error}"),
            kind: "json_invalid".into(),
        }]);
    }
    let parts = path.split(['.', '[']).map(|part| part.trim_end_matches(']'));
    loc.extend(parts.filter(|part| !part.is_empty() && *part != "?").map(str::to_owned));
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    let missing = text.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    if let Some(field) = missing {
        loc.push(field.to_owned());
        return ApiError::Invalid(vec![Invalid { loc, msg: "Field required".into(), kind: "missing".into() }]);
    }
    if let Some(field) = text.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next()) {
        // The path leads to the object, or already to the field.
        if loc.last().is_none_or(|last| last != field) {
            loc.push(field.to_owned());
        }
        let msg = "Extra inputs are not permitted".into();
        return ApiError::Invalid(vec![Invalid { loc, msg, kind: "extra_forbidden".into() }]);
    }
    let kind = if text.starts_with("String should match") { "string_pattern_mismatch" } else { "value_error" };
    ApiError::Invalid(vec![Invalid { loc, msg: text.to_owned(), kind: kind.into() }])
}

#[cfg(test)]
mod tests {
    use wire::api::{CreateSessionRequest, RunRequest};

    use super::*;

    fn complaint<T: DeserializeOwned + std::fmt::Debug>(text: &str) -> Invalid {
        match parse::<T>(text.as_bytes()) {
            Err(ApiError::Invalid(mut list)) => list.remove(0),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn complaints_name_the_field() {
        let missing = complaint::<RunRequest>(r#"{"argv": ["true"]}"#);
        assert_eq!((missing.loc.join("/").as_str(), missing.kind.as_str()), ("body/run_id", "missing"));
        let pattern = complaint::<CreateSessionRequest>(r#"{"session_id": "../x"}"#);
        assert_eq!(
            (pattern.loc.join("/").as_str(), pattern.kind.as_str()),
            ("body/session_id", "string_pattern_mismatch")
        );
        let wrong = complaint::<RunRequest>(r#"{"argv": "true", "run_id": "0"}"#);
        assert_eq!(wrong.loc, ["body", "argv"]);
        for text in ["[]", "[null]", "1", "null", "true", "\"x\"", " []"] {
            assert_eq!(complaint::<CreateSessionRequest>(text).kind, "model_attributes_type", "{text:?}");
        }
        for text in ["", "{", "{} {}", "\u{0}"] {
            assert_eq!(complaint::<CreateSessionRequest>(text).kind, "json_invalid", "{text:?}");
        }
    }
}
