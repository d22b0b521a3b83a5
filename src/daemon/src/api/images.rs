//! The local images: what there is, pulls, removals, and the removal of what nobody needs. The service token's alone.

use std::convert::Infallible;

use axum::Json;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::{TryStreamExt, stream};
use serde::Deserialize;
use wire::api::{BuildCaches, ErrorBody, GcRequest, ImageInfo, PullEvent, PullRequest, Removed};

use super::error::ApiError;
use super::{Shared, body};
use crate::session::{Form, Pulling, SessionError};

/// Longest name of an image, in characters.
const MAX_NAME: usize = 512;
/// Longest archive, in bytes, as it is told.
const MAX_ARCHIVE: usize = 32 << 30;

/// The local images.
#[utoipa::path(get, path = "/images", tag = "images", responses(
    (status = 200, body = Vec<ImageInfo>), (status = 401, body = ErrorBody)))]
pub async fn list(State(app): Shared, headers: HeaderMap) -> Result<Json<Vec<ImageInfo>>, ApiError> {
    app.service(&headers)?;
    Ok(Json((app.images)()))
}

/// What builds keep of what package managers have fetched, and how large it is.
#[utoipa::path(get, path = "/images/caches", tag = "images", responses(
    (status = 200, body = BuildCaches), (status = 401, body = ErrorBody),
    (status = 502, description = "The launcher does not say", body = ErrorBody)))]
pub async fn caches(State(app): Shared, headers: HeaderMap) -> Result<Json<BuildCaches>, ApiError> {
    app.service(&headers)?;
    Ok(Json(app.registry.build_caches().await?))
}

/// Fetch an image, also if it is here. The answer is a stream of lines of JSON, each a `PullEvent`; the last says how it
/// ended. Who hangs up does not end the pull.
#[utoipa::path(post, path = "/images/pull", tag = "images", request_body = PullRequest, responses(
    (status = 200, description = "Lines of JSON", content_type = "application/x-ndjson", body = PullEvent),
    (status = 401, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 422, description = "It is no name of an image", body = ErrorBody),
    (status = 429, description = "Too many pulls are under way", body = ErrorBody)))]
pub async fn pull(State(app): Shared, headers: HeaderMap, request: Body) -> Result<Response, ApiError> {
    app.service(&headers)?;
    let PullRequest { reference } = body::json(request, body::JSON_MAX).await?;
    check("body", "reference", &reference)?;
    let pulling = app.registry.pull_image(&reference)?;
    let lines = stream::unfold(pulling, |mut pulling: Pulling| async move {
        let event = pulling.next().await?;
        Some((Ok::<_, Infallible>(line(&event)), pulling))
    });
    let headers = [(CONTENT_TYPE, "application/x-ndjson"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(lines)).into_response())
}

/// Remove an image, with the layers that no other has.
#[utoipa::path(delete, path = "/images/{name}", tag = "images",
    params(("name" = String, Path, description = "As it is listed, or its digest; a slash in it is %2F")), responses(
    (status = 200, body = Removed), (status = 401, body = ErrorBody),
    (status = 404, description = "There is no such image", body = ErrorBody),
    (status = 405, description = "The name is a route's: write the whole reference", body = ErrorBody),
    (status = 409, description = "It is in use, and by whom; or another service runs on the store", body = ErrorBody),
    (status = 422, description = "It is no name of an image", body = ErrorBody),
    (status = 502, description = "The launcher did not remove a layer; the next collection does", body = ErrorBody)))]
pub async fn remove(
    State(app): Shared,
    headers: HeaderMap,
    Path(name): Path<String>,
) -> Result<Json<Removed>, ApiError> {
    app.service(&headers)?;
    check("path", "name", &name)?;
    Ok(Json(app.registry.remove_image(&name).await?))
}

/// Remove what nobody needs: layers of no image, images that others took the place of, package caches of builds above
/// their ceiling; on request also images that no session and no runtime uses, and every package cache.
#[utoipa::path(post, path = "/images/gc", tag = "images", request_body = GcRequest, responses(
    (status = 200, body = Removed), (status = 401, body = ErrorBody),
    (status = 409, description = "Images are being made, or another service runs on the store", body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 422, body = ErrorBody),
    (status = 502, description = "The launcher did not remove a layer; the next collection does", body = ErrorBody)))]
pub async fn collect(State(app): Shared, headers: HeaderMap, request: Body) -> Result<Json<Removed>, ApiError> {
    app.service(&headers)?;
    let request: GcRequest = body::json(request, body::JSON_MAX).await?;
    Ok(Json(app.registry.collect_images(request).await?))
}

/// What an archive is called.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
pub struct As {
    /// The name that the image gets; absent: the one that the archive says. 1 to 512 characters.
    #[param(min_length = 1, max_length = 512)]
    name: Option<String>,
    /// Which image of the archive is meant, as it is called in there; absent: the only one. 1 to 512 characters.
    #[param(min_length = 1, max_length = 512)]
    tag: Option<String>,
}

/// Import an image: an OCI layout as a tar, or a docker archive; not compressed as a whole.
#[utoipa::path(post, path = "/images/import", tag = "images", params(As),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses(
    (status = 200, body = ImageInfo), (status = 400, description = "It broke off", body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 413, description = "Over 32 GiB", body = ErrorBody),
    (status = 422, description = "It is no image, or none that is acceptable", body = ErrorBody),
    (status = 507, description = "It would leave less of the disk than the host keeps", body = ErrorBody)))]
pub async fn import(
    State(app): Shared,
    headers: HeaderMap,
    name: Result<Query<As>, QueryRejection>,
    request: Body,
) -> Result<Json<ImageInfo>, ApiError> {
    app.service(&headers)?;
    let Query(As { name, tag }) = name.map_err(|e| ApiError::field("query", "name", e.body_text(), "value_error"))?;
    name.as_deref().map_or(Ok(()), |name| check("query", "name", name))?;
    tag.as_deref().map_or(Ok(()), |tag| check("query", "tag", tag))?;
    let mut archive = app.registry.receive_image(request.size_hint().lower())?;
    let mut pieces = body::pieces(request);
    while let Some(piece) = pieces.try_next().await? {
        if !archive.write(piece).await.map_err(SessionError::from)? {
            return Err(ApiError::TooLarge(MAX_ARCHIVE));
        }
    }
    Ok(Json(app.registry.import_image(archive, name.as_deref(), tag.as_deref()).await?))
}

/// For whom an archive is.
#[derive(Debug, Clone, Copy, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ArchiveForm {
    /// An OCI layout and a docker archive at once.
    #[default]
    Both,
    /// An OCI layout alone.
    Oci,
    /// A docker archive alone.
    Docker,
}

impl From<ArchiveForm> for Form {
    fn from(form: ArchiveForm) -> Self {
        match form {
            ArchiveForm::Both => Self::Both,
            ArchiveForm::Oci => Self::Oci,
            ArchiveForm::Docker => Self::Docker,
        }
    }
}

/// How an archive is to be.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
pub struct How {
    /// For whom it is; absent: for both.
    #[serde(default)]
    #[param(inline)]
    format: ArchiveForm,
}

/// An image as a tar that is an OCI layout and a docker archive at once, or one of both: for `sandboxctl images import`,
/// `skopeo`, `podman load`, `docker load`. One that breaks off is not whole.
#[utoipa::path(get, path = "/images/{name}/archive", tag = "images",
    params(("name" = String, Path, description = "As it is listed, or its digest; a slash in it is %2F"), How), responses(
    (status = 200, content_type = "application/x-tar", body = Vec<u8>), (status = 401, body = ErrorBody),
    (status = 404, description = "There is no such image", body = ErrorBody),
    (status = 422, description = "It is no name of an image", body = ErrorBody)))]
pub async fn export(
    State(app): Shared,
    headers: HeaderMap,
    Path(name): Path<String>,
    how: Result<Query<How>, QueryRejection>,
) -> Result<Response, ApiError> {
    app.service(&headers)?;
    check("path", "name", &name)?;
    let Query(How { format }) = how.map_err(|e| ApiError::field("query", "format", e.body_text(), "value_error"))?;
    let archive = app.registry.export_image(&name, format.into())?;
    let pieces = stream::unfold(archive, |mut archive| async move { Some((archive.recv().await?, archive)) });
    Ok(([(CONTENT_TYPE, "application/x-tar")], Body::from_stream(pieces)).into_response())
}

fn check(place: &str, field: &str, name: &str) -> Result<(), ApiError> {
    if (1..=MAX_NAME).contains(&name.chars().count()) {
        return Ok(());
    }
    Err(ApiError::field(place, field, format!("1 to {MAX_NAME} characters"), "value_error"))
}

fn line(event: &PullEvent) -> Bytes {
    let mut text = serde_json::to_vec(event).unwrap_or_else(|_| b"{}".to_vec());
    text.push(b'\n');
    Bytes::from(text)
}
