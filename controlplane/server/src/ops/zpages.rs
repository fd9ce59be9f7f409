//! `/statusz` and `/flagz`: state and flags of the process, for people who debug it.

use std::collections::BTreeMap;

use http::header::ACCEPT;
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value, json};

use crate::server::Shared;
use crate::transport::respond::{self, Response, text};

/// The paths that are answered here.
pub(crate) const PATHS: [&str; 2] = ["/flagz", "/statusz"];

/// The versions of the pages' structured form.
const VERSIONS: [&str; 2] = ["v1alpha1", "v1beta1"];

/// The form of a page.
#[derive(Clone, Copy)]
enum Form<'a> {
    /// Plain text for people.
    Text,
    /// Object of this version, as JSON or YAML.
    Object { version: &'a str, json: bool },
}

/// Answers one of the pages; `None` for other paths. `paths` are those that the server serves.
pub(crate) fn answer(
    shared: &Shared,
    path: &str,
    headers: &HeaderMap,
    paths: impl FnOnce() -> Vec<String>,
) -> Option<Response> {
    let kind = match path {
        "statusz" => "Statusz",
        "flagz" => "Flagz",
        _ => return None,
    };
    let Some(form) = form(headers, kind) else {
        let because = "media type not acceptable, must be: text/plain\n";
        return Some(text(StatusCode::NOT_ACCEPTABLE, because));
    };
    let Form::Object { version, json } = form else {
        let (title, lines) = if kind == "Flagz" {
            let flags = shared.options.flags.iter();
            let lines: Vec<String> = flags.map(|(name, value)| format!("{name}={value}\n")).collect();
            ("flags", lines.concat())
        } else {
            ("statusz", statusz(shared, &paths()))
        };
        let page = format!(
            "\nkube-apiserver {title}\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
             compatibility guarantees and is for debugging purposes only.\n\n{lines}"
        );
        return Some(text(StatusCode::OK, page));
    };
    let mut object = if kind == "Flagz" {
        let flags = shared.options.flags.iter();
        let flags = flags.map(|(name, value)| (name.clone(), json!(value)));
        json!({ "flags": flags.collect::<Map<String, Value>>() })
    } else {
        status(shared, &paths())
    };
    if let Some(members) = object.as_object_mut() {
        members.insert("kind".to_owned(), kind.into());
        members.insert("apiVersion".to_owned(), format!("config.k8s.io/{version}").into());
        members.insert("metadata".to_owned(), json!({ "name": "kube-apiserver" }));
    }
    let mut response = if json {
        respond::json(StatusCode::OK, [&*respond::encode(&object), b"\n"].concat())
    } else {
        respond::with_type(StatusCode::OK, "application/yaml", api::yaml::emit::document(&object))
    };
    if version == "v1alpha1" {
        let warning = format!("This version of the {path} endpoint is deprecated. Please use a newer version.");
        respond::add_warnings(&mut response, &[warning]);
    }
    Some(response)
}

/// First format that the client accepts; text without an `Accept` header.
fn form<'a>(headers: &'a HeaderMap, kind: &str) -> Option<Form<'a>> {
    let mut given = headers.get_all(ACCEPT).iter().peekable();
    if given.peek().is_none() {
        return Some(Form::Text);
    }
    let mut clauses = given
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    clauses.find_map(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        match parts.next()? {
            "text/plain" | "text/*" | "*/*" => parts
                .all(|part| part.starts_with("q=") || part.eq_ignore_ascii_case("charset=utf-8"))
                .then_some(Form::Text),
            media @ ("application/json" | "application/yaml") => {
                let parameters: BTreeMap<&str, &str> = parts.filter_map(|part| part.split_once('=')).collect();
                let of = |name: &str| parameters.get(name).copied();
                let version = of("v").filter(|version| VERSIONS.contains(version))?;
                let fits = of("g") == Some("config.k8s.io") && of("as") == Some(kind);
                let json = media == "application/json";
                fits.then_some(Form::Object { version, json })
            }
            _ => None,
        }
    })
}

/// The folders of the paths, each once.
fn folders(paths: &[String]) -> Vec<String> {
    let folder = |path: &String| Some(format!("/{}", path.split('/').nth(1)?));
    let mut folders: Vec<String> = paths.iter().filter_map(folder).collect();
    folders.sort_unstable();
    folders.dedup();
    folders
}

/// Uptime in seconds.
fn uptime(shared: &Shared) -> i64 {
    let now = (shared.options.clock)();
    now.duration_since(shared.started).as_secs().max(0)
}

fn status(shared: &Shared, paths: &[String]) -> Value {
    let version = &shared.options.version;
    json!({
        "startTime": shared.started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "uptimeSeconds": uptime(shared),
        "goVersion": version.go_version,
        "binaryVersion": version.git_version.trim_start_matches('v'),
        "emulationVersion": format!("{}.{}", version.emulation_major, version.emulation_minor),
        "minimumCompatibilityVersion": format!("{}.{}", version.min_compatibility_major, version.min_compatibility_minor),
        "paths": folders(paths),
    })
}

fn statusz(shared: &Shared, paths: &[String]) -> String {
    let (version, started) = (&shared.options.version, shared.started);
    let up = uptime(shared);
    let folders = folders(paths);
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
