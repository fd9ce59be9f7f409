//! Request info, parsed from method and path like upstream's `RequestInfo`.

use http::Method;

use crate::request::failure::Failure;
use crate::request::query::Query;

/// Verb, group, resource and name of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// True if the path names a resource (`/api/v1/…`, `/apis/GROUP/VERSION/…`).
    pub is_resource: bool,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for
    /// non-resource paths the method in lowercase.
    pub verb: &'static str,
    /// API group, empty for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Namespace, empty for cluster scope. For a request to a Namespace itself, that namespace.
    pub namespace: String,
    /// Plural name.
    pub resource: String,
    /// `status`, `log` …, empty for the object itself.
    pub subresource: String,
    /// Name in the path; for list and watch with a selector on `metadata.name` that name.
    pub name: String,
    /// True if `name` comes from the path.
    pub named: bool,
    /// Segments behind the subresource.
    pub rest: Vec<String>,
    /// The field selector of a list, a watch or a deletion of many as it was sent.
    pub field_selector: String,
}

const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    /// True if the request is long-running.
    pub fn lasts(&self) -> bool {
        let subresource = self.subresource.as_str();
        self.verb == "watch" || matches!(subresource, "log" | "exec" | "attach" | "portforward" | "proxy")
    }

    /// True if the request is read-only.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch")
    }

    /// Reads a request.
    ///
    /// # Errors
    /// 400 for the forms that upstream cannot read either (`/api/v1/watch` with nothing behind it).
    pub fn new(method: &Method, segments: &[String], query: &Query) -> Result<Self, Failure> {
        let verb = verb(method);
        let other = Self {
            verb: lower(method),
            ..Self::default()
        };
        let (group, version, rest) = match segments {
            [api, version, rest @ ..] if api == "api" && !rest.is_empty() => (String::new(), version, rest),
            [apis, group, version, rest @ ..] if apis == "apis" && !rest.is_empty() => (group.clone(), version, rest),
            _ => return Ok(other),
        };
        let mut info = Self {
            is_resource: true,
            verb,
            group,
            version: version.clone(),
            ..Self::default()
        };
        let mut rest = rest;
        if let Some((first, behind)) = rest.split_first()
            && first == "watch"
        {
            if behind.is_empty() {
                return Err(Failure::bad_request("unable to determine kind and namespace from url"));
            }
            info.verb = "watch";
            rest = behind;
        }
        info.read(rest);
        if !info.named {
            info.of_collection(query);
        }
        Ok(info)
    }

    fn read(&mut self, mut parts: &[String]) {
        if let [namespaces, namespace, behind @ ..] = parts
            && namespaces == "namespaces"
        {
            self.namespace.clone_from(namespace);
            if let Some(next) = behind.first()
                && !NAMESPACE_SUBRESOURCES.contains(&next.as_str())
            {
                parts = behind;
            }
        }
        let mut parts = parts.iter();
        self.resource = parts.next().cloned().unwrap_or_default();
        if let Some(name) = parts.next() {
            self.name.clone_from(name);
            self.named = true;
        }
        self.subresource = parts.next().cloned().unwrap_or_default();
        self.rest = parts.cloned().collect();
    }

    fn of_collection(&mut self, query: &Query) {
        match self.verb {
            "get" | "watch" => {
                if self.verb == "get" {
                    self.verb = if query.flag("watch") { "watch" } else { "list" };
                }
                if let Some(selector) = query.text("fieldSelector") {
                    selector.clone_into(&mut self.field_selector);
                    if let Some(name) = exact_name(selector) {
                        self.name = name;
                    }
                }
            }
            "delete" => {
                self.verb = "deletecollection";
                query
                    .text("fieldSelector")
                    .unwrap_or_default()
                    .clone_into(&mut self.field_selector);
            }
            _ => {}
        }
    }
}

/// The name that a field selector demands, if it demands one.
fn exact_name(selector: &str) -> Option<String> {
    selector
        .split(',')
        .filter_map(|term| term.strip_prefix("metadata.name="))
        .map(|value| value.trim_start_matches('='))
        .find(|value| !value.is_empty() && !value.contains(['/', '%', '\\']) && *value != "." && *value != "..")
        .map(str::to_owned)
}

fn verb(method: &Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "GET" | "HEAD" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

fn lower(method: &Method) -> &'static str {
    match method.as_str() {
        "POST" => "post",
        "GET" => "get",
        "HEAD" => "head",
        "PUT" => "put",
        "PATCH" => "patch",
        "DELETE" => "delete",
        "OPTIONS" => "options",
        _ => "",
    }
}
