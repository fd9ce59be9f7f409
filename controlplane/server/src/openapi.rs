//! `/openapi/v2` and `/openapi/v3`.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::failure::Failure;
use crate::query::Query;
use crate::respond::{Response, with_type};
use crate::server::Shared;

/// Answers a path of OpenAPI, or nothing when it is none.
pub(crate) fn answer(
    _shared: &Shared,
    path: &str,
    _headers: &HeaderMap,
    _query: &Query,
) -> Option<Result<Response, Failure>> {
    (path == "openapi/v2").then(|| {
        Ok(with_type(
            StatusCode::OK,
            "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
            Bytes::new(),
        ))
    })
}
