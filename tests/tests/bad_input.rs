//! Responses of the API server to input that is invalid, too large or hostile: a clear error,
//! nothing stored, memory flat.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::Value;
use tests::http::{Connection, Target};
use tests::machine::{Namespace, eventually};
use tests::process;
use tests::server::Server;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A control plane without a node, and a client for arbitrary bytes.
struct Case {
    server: Server,
    target: Target,
}

impl Case {
    async fn start(name: &str) -> anyhow::Result<Self> {
        tests::logging();
        let namespace = Namespace::new(name)?;
        namespace.enter()?;
        let server = Server::start(Some(namespace), "127.0.0.1:6443")?;
        let target = server.ready().await?;
        Ok(Self { server, target })
    }

    /// Sends one request on a fresh connection: a server may close it after a bad one.
    async fn ask(&self, method: Method, path: &str, body: impl Into<Bytes>) -> anyhow::Result<(StatusCode, Value)> {
        let mut connection: Connection = self.target.connect().await?;
        let (status, answer) = connection.call(method, path, body.into()).await?;
        let answer = serde_json::from_slice(&answer)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&answer).into_owned()));
        Ok((status, answer))
    }

    async fn refused(&self, path: &str, body: impl Into<Bytes>, code: u16, message: &str) -> anyhow::Result<()> {
        let (status, answer) = self.ask(Method::POST, path, body).await?;
        let said = answer["message"].as_str().unwrap_or_default();
        assert_eq!(status.as_u16(), code, "{answer:#}");
        assert!(said.contains(message), "{said:?} should contain {message:?}");
        assert_eq!(answer["kind"], "Status");
        Ok(())
    }

    async fn nothing_stored(&self) -> anyhow::Result<()> {
        let (_, list) = self.ask(Method::GET, CONFIG_MAPS, Bytes::new()).await?;
        let items = list["items"].as_array().context("items")?;
        // Created by a controller in every namespace.
        let own = |item: &&Value| item["metadata"]["name"] != "kube-root-ca.crt";
        assert_eq!(items.iter().filter(own).count(), 0, "{list:#}");
        Ok(())
    }
}

#[tokio::test]
async fn mistakes_get_upstreams_words() -> anyhow::Result<()> {
    let case = Case::start("words").await?;
    let strict = format!("{CONFIG_MAPS}?fieldValidation=Strict");
    let unknown = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"colour":"red"}"#;
    case.refused(
        &strict,
        unknown,
        400,
        r#"strict decoding error: unknown field "colour""#,
    )
    .await?;
    let twice = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"a":"1"},"data":{"a":"2"}}"#;
    case.refused(&strict, twice, 400, r#"duplicate field "data""#).await?;
    let kind = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":"text"}"#;
    case.refused(CONFIG_MAPS, kind, 400, "cannot unmarshal").await?;
    let name = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"A_b"}}"#;
    case.refused(CONFIG_MAPS, name, 422, "a lowercase RFC 1123 subdomain must consist of")
        .await?;
    let elsewhere = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"other"}}"#;
    let wanted = "the namespace of the provided object does not match the namespace sent on the request";
    case.refused(CONFIG_MAPS, elsewhere, 400, wanted).await?;
    let nowhere = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#;
    case.refused(
        "/api/v1/namespaces/absent/configmaps",
        nowhere,
        404,
        r#"namespaces "absent" not found"#,
    )
    .await?;
    case.refused(CONFIG_MAPS, "{", 400, "").await?;
    case.nothing_stored().await?;
    case.server.finish()
}

/// Bodies that would cost an unguarded server its memory or its stack.
#[tokio::test]
async fn attack_24_bodies_that_explode() -> anyhow::Result<()> {
    let case = Case::start("bodies").await?;
    let pid = case.server.pid()?;
    case.nothing_stored().await?;
    let before = process::anonymous_kib(pid)?;
    let large = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"a"}},"data":{{"a":"{}"}}}}"#,
        "x".repeat(4 << 20)
    );
    let (status, answer) = case.ask(Method::POST, CONFIG_MAPS, large).await?;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{answer:#}");
    assert!(
        answer["message"]
            .as_str()
            .unwrap_or_default()
            .contains("limit is 3145728"),
        "{answer:#}"
    );
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        let deep = format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
        let body = format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"a"}},"data":{deep}}}"#);
        let (status, answer) = case.ask(Method::POST, CONFIG_MAPS, body).await?;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer:#}");
    }
    let operations = vec![r#"{"op":"test","path":"/a","value":1}"#; 20_000].join(",");
    let mut connection = case.target.connect().await?;
    let map = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#;
    connection.expect(Method::POST, CONFIG_MAPS, Bytes::from(map)).await?;
    let path = format!("{CONFIG_MAPS}/a");
    let (status, answer) = connection
        .send(
            Method::PATCH,
            &path,
            "application/json-patch+json",
            format!("[{operations}]"),
        )
        .await?;
    assert_eq!(
        status,
        StatusCode::PAYLOAD_TOO_LARGE,
        "{}",
        String::from_utf8_lossy(&answer)
    );
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
                d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
                g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: &h [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n";
    let (status, _) = connection
        .send(Method::POST, CONFIG_MAPS, "application/yaml", bomb)
        .await?;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    // What the server gives back comes a moment after its answer.
    eventually("memory is flat", || {
        let after = process::anonymous_kib(pid).map_err(|error| error.to_string())?;
        let flat = after < before + 16 * 1024;
        flat.then_some(())
            .ok_or_else(|| format!("it went from {before} to {after} KiB"))
    })?;
    let (status, _) = case.ask(Method::DELETE, &path, Bytes::new()).await?;
    assert!(status.is_success());
    case.nothing_stored().await?;
    case.server.finish()
}

/// A client that is still writing when its body is refused is not cut off, or it may never read why.
#[tokio::test]
async fn attack_24_a_refused_body_may_still_come() -> anyhow::Result<()> {
    let case = Case::start("lingering").await?;
    let mut stream = case.target.raw().await?;
    let length = 8 << 20;
    let head = format!("POST {CONFIG_MAPS} HTTP/1.1\r\nhost: skiff\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut sent = 0;
    let mut answer = Vec::new();
    let piece = vec![b' '; 256 << 10];
    while sent < length {
        stream
            .write_all(&piece)
            .await
            .with_context(|| format!("after {sent} bytes"))?;
        sent += piece.len();
        if answer.is_empty() && sent > 3 << 20 {
            stream.read_buf(&mut answer).await?;
        }
    }
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    case.server.finish()
}

#[tokio::test]
async fn attack_23_names_and_paths() -> anyhow::Result<()> {
    let case = Case::start("paths").await?;
    let long = "a".repeat(254);
    for path in [
        "/api/v1/namespaces/default/configmaps/..",
        "/api/v1/namespaces/../../etc/passwd",
        "/api/v1/namespaces/default/configmaps/a%2fb",
        "/api/v1/namespaces/default/configmaps/%2e%2e",
        "/api/v1/namespaces/default/configmaps/%252e",
        "/api/v1/namespaces/default/configmaps/a%00b",
        "/api/v1/namespaces/%2e%2e/configmaps/a",
        "/api/v1/namespaces/default/pods/a/../../secrets",
        "/api/v1/namespaces/default/configmaps/%c3%a4",
        "//api/v1//namespaces",
        "/apis/apps/v1/namespaces/default/configmaps/a",
        &format!("{CONFIG_MAPS}/{long}"),
    ] {
        let (status, answer) = case.ask(Method::GET, path, Bytes::new()).await?;
        assert!(
            status.is_client_error() || status.is_redirection(),
            "{path}: {status} {answer:#}"
        );
    }
    for name in ["..", "a/b", "a\\u0000b", "ä", &long, "a%2fb"] {
        let body = format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}}}}"#);
        let (status, answer) = case.ask(Method::POST, CONFIG_MAPS, body).await?;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{name}: {answer:#}");
    }
    case.nothing_stored().await?;
    case.server.finish()
}

/// Without a certificate only the health endpoints and the version are available.
#[tokio::test]
async fn strangers_see_only_health() -> anyhow::Result<()> {
    let case = Case::start("strangers").await?;
    let anonymous = case.target.anonymous()?;
    for path in ["/livez", "/readyz", "/healthz", "/version"] {
        let (status, _) = anonymous.connect().await?.call(Method::GET, path, Bytes::new()).await?;
        assert_eq!(status, StatusCode::OK, "{path}");
    }
    for path in ["/api", "/apis", "/openapi/v3", CONFIG_MAPS, "/metrics", "/"] {
        let (status, answer) = anonymous.connect().await?.call(Method::GET, path, Bytes::new()).await?;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
        let answer: Value = serde_json::from_slice(&answer)?;
        assert_eq!(answer["reason"], "Forbidden", "{answer:#}");
        let said = answer["message"].as_str().context("a message")?;
        assert!(said.contains(r#"User "system:anonymous" cannot"#), "{said}");
    }
    case.server.finish()
}
