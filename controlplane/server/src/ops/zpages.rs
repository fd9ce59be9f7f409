//! `/statusz` and `/flagz` of the API server.

use api::zpages::{Answer, NOT_ACCEPTABLE, Page, Status};
use http::header::ACCEPT;
use http::{HeaderMap, StatusCode};

use crate::server::shared::Shared;
use crate::transport::respond::{self, Response, text};

/// The paths that are answered here.
pub(crate) const PATHS: [&str; 2] = ["/flagz", "/statusz"];

/// Answers one of the pages; `None` for other paths. `paths` are those that the server serves.
pub(crate) fn answer(
    shared: &Shared,
    path: &str,
    headers: &HeaderMap,
    paths: impl FnOnce() -> Vec<String>,
) -> Option<Response> {
    let version = &shared.options.version;
    let emulation = format!("{}.{}", version.emulation_major, version.emulation_minor);
    let served;
    let page = match path {
        "statusz" => {
            served = paths();
            Page::Statusz(Status {
                started: shared.started,
                now: (shared.options.clock)(),
                go_version: &version.go_version,
                version: &version.git_version,
                emulation: &emulation,
                paths: &served,
            })
        }
        "flagz" => Page::Flagz(&shared.options.flags),
        _ => return None,
    };
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    Some(match page.answer("kube-apiserver", accept) {
        None => text(StatusCode::NOT_ACCEPTABLE, NOT_ACCEPTABLE),
        Some(Answer::Text(page)) => text(StatusCode::OK, page),
        Some(Answer::Object { object, json, warning }) => {
            let mut response = if json {
                respond::json(StatusCode::OK, [&*respond::encode(&object), b"\n"].concat())
            } else {
                respond::with_type(StatusCode::OK, "application/yaml", api::yaml::emit::document(&object))
            };
            respond::add_warnings(&mut response, warning.as_slice());
            response
        }
    })
}
