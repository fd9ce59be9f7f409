//! Requests: paths, bodies, and the meaning of an answer or its absence.

use std::time::Duration;

use controlplane_plan::step::{PatchKind, Resource, Target};
use http::{Method, Request};
use kube::core::Status;
use serde::Deserialize;
use serde_json::{Value, json};

/// Timeout of a request.
const DEADLINE: Duration = Duration::from_secs(30);

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The server refused the request: nothing changed.
    #[error("refused: {}", .0.message)]
    Refused(Box<Status>),
    /// No answer, or an ambiguous one: the request may have taken effect.
    #[error("no answer")]
    Unknown(#[source] Option<kube::Error>),
}

impl Error {
    /// The HTTP status code of a refusal, 0 for other errors.
    pub(crate) fn code(&self) -> u16 {
        match self {
            Self::Refused(status) => status.code,
            Self::Unknown(_) => 0,
        }
    }

    /// True if another object has the name by now: patches name the UID of the one that they mean.
    pub(crate) fn is_recreated(&self) -> bool {
        let Self::Refused(status) = self else { return false };
        let mut causes = status.details.iter().flat_map(|details| &details.causes);
        status.code == 422 && causes.any(|cause| cause.field == "metadata.uid")
    }

    /// True if there is no object of this name. A 404 because the kind is not served, in this
    /// version or for now, does not count.
    pub(crate) fn is_absent(&self, name: &str) -> bool {
        let Self::Refused(status) = self else { return false };
        let details = status.details.as_ref();
        status.code == 404 && details.is_some_and(|details| details.name == name)
    }
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        if let kube::Error::Api(status) = error {
            if status.code < 500 {
                return Self::Refused(status);
            }
            return Self::Unknown(Some(kube::Error::Api(status)));
        }
        Self::Unknown(Some(error))
    }
}

/// Fields of an answer that are read.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Reply {
    #[serde(default)]
    pub(crate) metadata: ReplyMetadata,
}

/// Metadata of the returned object.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ReplyMetadata {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
}

impl Reply {
    /// Revision of the change, if the answer contains it.
    pub(crate) fn revision(&self) -> Option<u64> {
        self.metadata.resource_version.parse().ok()
    }
}

/// The path of a resource, of an object, or of a subresource; empty parts are left out.
pub(crate) fn path(resource: &Resource, namespace: &str, name: &str, subresource: &str) -> String {
    let mut path = if resource.group.is_empty() {
        "/api/".to_owned()
    } else {
        format!("/apis/{}/", resource.group)
    };
    path.push_str(resource.version);
    if !namespace.is_empty() && resource.namespaced {
        path.push_str("/namespaces/");
        path.push_str(namespace);
    }
    for part in [resource.plural, name, subresource] {
        if !part.is_empty() {
            path.push('/');
            path.push_str(&escape(part));
        }
    }
    path
}

/// Escapes a text as a path segment or a query value.
pub(crate) fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b':');
    let encode = |byte: u8| {
        if plain(byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    text.bytes().map(encode).collect()
}

/// Sends a request and reads the answer as `T`.
pub(crate) async fn send<T: serde::de::DeserializeOwned>(
    client: &kube::Client,
    method: Method,
    path: String,
    content_type: &str,
    body: Vec<u8>,
) -> Result<T, Error> {
    let text = text(client, method, path, content_type, body).await?;
    Ok(serde_json::from_str(&text).map_err(kube::Error::SerdeError)?)
}

/// Sends a request and returns the answer.
pub(crate) async fn text(
    client: &kube::Client,
    method: Method,
    path: String,
    content_type: &str,
    body: Vec<u8>,
) -> Result<String, Error> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content_type)
        .header(http::header::ACCEPT, JSON)
        .body(body)
        .map_err(|error| Error::from(kube::Error::HttpError(error)))?;
    match tokio::time::timeout(DEADLINE, Box::pin(client.request_text(request))).await {
        Ok(answer) => Ok(answer?),
        Err(_elapsed) => Err(Error::Unknown(None)),
    }
}

/// The media type of JSON.
pub(crate) const JSON: &str = "application/json";

/// GET of one object.
pub(crate) async fn get<T: serde::de::DeserializeOwned>(
    client: &kube::Client,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<T, Error> {
    send(
        client,
        Method::GET,
        path(resource, namespace, name, ""),
        JSON,
        Vec::new(),
    )
    .await
}

/// POST of an object.
pub(crate) async fn create(
    client: &kube::Client,
    resource: &Resource,
    namespace: &str,
    body: &Value,
) -> Result<Reply, Error> {
    let mut body = body.clone();
    if let Some(object) = body.as_object_mut() {
        object.insert("apiVersion".to_owned(), resource.api_version().into());
        object.insert("kind".to_owned(), resource.kind.into());
    }
    send(
        client,
        Method::POST,
        path(resource, namespace, "", ""),
        JSON,
        body.to_string().into_bytes(),
    )
    .await
}

/// PATCH of an object or its subresource.
pub(crate) async fn patch(
    client: &kube::Client,
    target: &Target,
    subresource: Option<&str>,
    kind: PatchKind,
    body: &Value,
) -> Result<Reply, Error> {
    let content_type = match kind {
        PatchKind::Merge => "application/merge-patch+json",
        PatchKind::Strategic => "application/strategic-merge-patch+json",
    };
    let path = path(
        &target.resource,
        &target.namespace,
        &target.name,
        subresource.unwrap_or_default(),
    );
    send(client, Method::PATCH, path, content_type, body.to_string().into_bytes()).await
}

/// DELETE of exactly this object, by its uid.
pub(crate) async fn delete(
    client: &kube::Client,
    target: &Target,
    resource_version: Option<&str>,
    propagation: Option<&str>,
    grace_seconds: Option<i64>,
) -> Result<Reply, Error> {
    let mut body = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": target.uid } });
    let mut put = |pointer: &str, key: &str, value: Option<Value>| {
        if let (Some(object), Some(value)) = (body.pointer_mut(pointer).and_then(Value::as_object_mut), value) {
            object.insert(key.to_owned(), value);
        }
    };
    put("/preconditions", "resourceVersion", resource_version.map(Into::into));
    put("", "propagationPolicy", propagation.map(Into::into));
    put("", "gracePeriodSeconds", grace_seconds.map(Into::into));
    let path = path(&target.resource, &target.namespace, &target.name, "");
    send(client, Method::DELETE, path, JSON, body.to_string().into_bytes()).await
}

#[cfg(test)]
mod tests {
    use controlplane_plan::step::{CONFIG_MAPS, NODES};

    use super::path;

    #[test]
    fn a_name_leads_nowhere_else() {
        let named = |name: &str| path(&NODES, "", name, "");
        assert_eq!(named("n1"), "/api/v1/nodes/n1");
        assert_eq!(named("n1:22/proxy/x?y#z"), "/api/v1/nodes/n1:22%2Fproxy%2Fx%3Fy%23z");
        assert_eq!(
            path(&CONFIG_MAPS, "a", "b%c", "status"),
            "/api/v1/namespaces/a/configmaps/b%25c/status"
        );
    }
}
