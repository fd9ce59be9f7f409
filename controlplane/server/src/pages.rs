//! `/statusz` and `/flagz`: what runs here, and how it was told to; for people who look for what is wrong.

use http::header::ACCEPT;
use http::{HeaderMap, StatusCode};

use crate::respond::{Response, text};
use crate::server::Shared;

/// The paths that are answered here.
pub(crate) const PATHS: [&str; 2] = ["/flagz", "/statusz"];

/// Answers one of the pages, or nothing when the path is none. `paths` are all that the server answers.
pub(crate) fn answer(
    shared: &Shared,
    path: &str,
    headers: &HeaderMap,
    paths: impl FnOnce() -> Vec<String>,
) -> Option<Response> {
    let lines = match path {
        "statusz" => statusz(shared, &paths()),
        "flagz" => {
            let flags = shared.options.flags.iter();
            let lines: Vec<String> = flags.map(|(name, value)| format!("{name}={value}\n")).collect();
            lines.concat()
        }
        _ => return None,
    };
    if !takes_text(headers) {
        let because = "media type not acceptable, must be: text/plain\n";
        return Some(text(StatusCode::NOT_ACCEPTABLE, because));
    }
    let title = if path == "flagz" { "flags" } else { "statusz" };
    let page = format!(
        "\nkube-apiserver {title}\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
         compatibility guarantees and is for debugging purposes only.\n\n{lines}"
    );
    Some(text(StatusCode::OK, page))
}

/// Whether the client takes plain text. Who says nothing takes everything.
fn takes_text(headers: &HeaderMap) -> bool {
    let mut given = headers.get_all(ACCEPT).iter().peekable();
    if given.peek().is_none() {
        return true;
    }
    let mut clauses = given
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    clauses.any(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        let fits = matches!(parts.next(), Some("text/plain" | "text/*" | "*/*"));
        fits && parts.all(|part| part.starts_with("q=") || part.eq_ignore_ascii_case("charset=utf-8"))
    })
}

fn statusz(shared: &Shared, paths: &[String]) -> String {
    let (version, started) = (&shared.options.version, shared.started);
    let up = (shared.options.clock)().duration_since(started).as_secs().max(0);
    let mut folders: Vec<String> = paths
        .iter()
        .filter_map(|path| Some(format!("/{}", path.split('/').nth(1)?)))
        .collect();
    folders.sort_unstable();
    folders.dedup();
    format!(
        "Started: {}\nUp: {} hr {:02} min {:02} sec\nGo version: {}\nBinary version: {}\nEmulation version: {}.{}\n\
         Paths: {}\n",
        started.strftime("%a %b %e %H:%M:%S UTC %Y"),
        up / 3600,
        up / 60 % 60,
        up % 60,
        version.go_version,
        version.git_version.trim_start_matches('v'),
        version.emulation_major,
        version.emulation_minor,
        folders.join(" "),
    )
}
