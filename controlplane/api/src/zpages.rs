//! `/statusz` and `/flagz` of a component: state and flags of the process, for people who debug it
//! (`k8s.io/apiserver/pkg/server/statusz` and `flagz`).

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

/// Upstream's message for clients that accept none of the forms.
pub const NOT_ACCEPTABLE: &str = "media type not acceptable, must be: text/plain\n";

/// Versions of the pages' structured form, and whether they are deprecated.
const VERSIONS: [(&str, bool); 2] = [("v1alpha1", true), ("v1beta1", false)];

/// Folders that are not for debugging.
const HIDDEN: [&str; 5] = ["/.well-known", "/api", "/apis", "/openapi", "/openid"];

/// State of a process.
#[derive(Debug)]
pub struct Status<'a> {
    /// Start of the process.
    pub started: Timestamp,
    /// Current time.
    pub now: Timestamp,
    /// Text in place of Go's version.
    pub go_version: &'a str,
    /// `v1.36.0`
    pub version: &'a str,
    /// `1.36`
    pub emulation: &'a str,
    /// Paths that the process serves.
    pub paths: &'a [String],
}

/// One of the pages.
#[derive(Debug)]
pub enum Page<'a> {
    /// `/statusz`
    Statusz(Status<'a>),
    /// `/flagz`: names and values of command-line flags, sorted.
    Flagz(&'a [(String, String)]),
}

/// Page in a form that the client accepts.
#[derive(Debug)]
pub enum Answer {
    /// Plain text for people.
    Text(String),
    /// Object for programs.
    Object {
        /// The object.
        object: Value,
        /// True for JSON, false for YAML.
        json: bool,
        /// Warning for the client.
        warning: Option<String>,
    },
}

/// The form of a page.
#[derive(Clone, Copy)]
enum Rendering {
    Text,
    Object {
        version: &'static str,
        is_deprecated: bool,
        json: bool,
    },
}

impl Page<'_> {
    /// Renders a component's page for a client with these `Accept` headers; `None` if it accepts no
    /// form.
    pub fn answer<'h>(&self, component: &str, accept: impl IntoIterator<Item = &'h str>) -> Option<Answer> {
        let (kind, path) = match self {
            Self::Statusz(_) => ("Statusz", "statusz"),
            Self::Flagz(_) => ("Flagz", "flagz"),
        };
        let (version, is_deprecated, json) = match form(accept, kind)? {
            Rendering::Text => return Some(Answer::Text(self.text(component, path))),
            Rendering::Object {
                version,
                is_deprecated,
                json,
            } => (version, is_deprecated, json),
        };
        let mut object = self.object();
        if let Some(members) = object.as_object_mut() {
            members.insert("kind".to_owned(), kind.into());
            members.insert("apiVersion".to_owned(), format!("config.k8s.io/{version}").into());
            members.insert("metadata".to_owned(), json!({ "name": component }));
        }
        let warning = format!("This version of the {path} endpoint is deprecated. Please use a newer version.");
        Some(Answer::Object {
            object,
            json,
            warning: is_deprecated.then_some(warning),
        })
    }

    fn text(&self, component: &str, path: &str) -> String {
        let lines = match self {
            Self::Statusz(status) => status.text(),
            Self::Flagz(flags) => {
                let lines: Vec<String> = flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
                lines.concat()
            }
        };
        format!(
            "\n{component} {path}\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
             compatibility guarantees and is for debugging purposes only.\n{lines}"
        )
    }

    fn object(&self) -> Value {
        match self {
            Self::Statusz(status) => json!({
                "startTime": status.started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                "uptimeSeconds": status.uptime(),
                "goVersion": status.go_version,
                "binaryVersion": status.version.trim_start_matches('v'),
                "emulationVersion": status.emulation,
                "paths": status.folders(),
            }),
            Self::Flagz(flags) => {
                let flags = flags.iter().map(|(name, value)| (name.clone(), json!(value)));
                json!({ "flags": flags.collect::<Map<String, Value>>() })
            }
        }
    }
}

impl Status<'_> {
    /// Uptime in seconds.
    fn uptime(&self) -> i64 {
        self.now.duration_since(self.started).as_secs().max(0)
    }

    /// The folders of the paths, each once.
    fn folders(&self) -> Vec<String> {
        let folder = |path: &String| Some(format!("/{}", path.split('/').nth(1).filter(|part| !part.is_empty())?));
        let mut folders: Vec<String> = self.paths.iter().filter_map(folder).collect();
        folders.retain(|folder| !HIDDEN.contains(&folder.as_str()));
        folders.sort_unstable();
        folders.dedup();
        folders
    }

    fn text(&self) -> String {
        let up = self.uptime();
        format!(
            "\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: {}\nBinary version: {}\nEmulation version: {}\n\
             Paths: {}\n",
            self.started.strftime("%a %b %e %H:%M:%S UTC %Y"),
            up / 3600,
            up / 60 % 60,
            up % 60,
            self.go_version,
            self.version.trim_start_matches('v'),
            self.emulation,
            self.folders().join(" "),
        )
    }
}

/// First form that the client accepts; text without an `Accept` header.
fn form<'h>(accept: impl IntoIterator<Item = &'h str>, kind: &str) -> Option<Rendering> {
    let mut given = accept.into_iter().peekable();
    if given.peek().is_none() {
        return Some(Rendering::Text);
    }
    let mut clauses = given.flat_map(|value| value.split(','));
    clauses.find_map(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        match parts.next()? {
            "text/plain" | "text/*" | "*/*" => parts
                .all(|part| part.starts_with("q=") || part.eq_ignore_ascii_case("charset=utf-8"))
                .then_some(Rendering::Text),
            media @ ("application/json" | "application/yaml") => {
                let parameters: BTreeMap<&str, &str> = parts.filter_map(|part| part.split_once('=')).collect();
                let of = |name: &str| parameters.get(name).copied();
                let known = VERSIONS.iter().find(|(version, _)| of("v") == Some(*version));
                let &(version, is_deprecated) = known?;
                let fits = of("g") == Some("config.k8s.io") && of("as") == Some(kind);
                fits.then_some(Rendering::Object {
                    version,
                    is_deprecated,
                    json: media == "application/json",
                })
            }
            _ => None,
        }
    })
}
