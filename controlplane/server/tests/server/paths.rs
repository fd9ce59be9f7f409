//! Paths, users and bodies that are not meant well.

use crate::support::{Api, collect, config_map};
use axum::body::Body;
use controlplane_server::authn::identity::User;
use controlplane_server::request::info::RequestInfo;
use controlplane_server::request::path::segments;
use controlplane_server::request::query::Query;
use http::{Method, Request};
use proptest::prelude::*;
use serde_json::json;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// `verb group/version namespace resource/subresource name`
fn read(method: &str, path: &str) -> String {
    let method: Method = method.parse().unwrap();
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let query = Query::parse(Some(query)).unwrap();
    match RequestInfo::new(&method, &segments(path).unwrap(), &query) {
        Ok(info) if info.is_resource => format!(
            "{} {}/{} {} {}/{} {}",
            info.verb, info.group, info.version, info.namespace, info.resource, info.subresource, info.name
        ),
        Ok(info) => format!("other {}", info.verb),
        Err(failure) => failure.to_string(),
    }
}

#[test]
fn requests_are_read_as_upstream_reads_them() {
    let cases = [
        ("GET", "/api/v1/namespaces", "list /v1  namespaces/ "),
        ("GET", "/api/v1/namespaces/other", "get /v1 other namespaces/ other"),
        ("GET", "/api/v1/namespaces/other/pods", "list /v1 other pods/ "),
        ("GET", "/api/v1/namespaces/other/pods/foo", "get /v1 other pods/ foo"),
        ("HEAD", "/api/v1/namespaces/other/pods/foo", "get /v1 other pods/ foo"),
        ("GET", "/api/v1/pods", "list /v1  pods/ "),
        (
            "GET",
            "/api/v1/namespaces/other/pods/foo/status",
            "get /v1 other pods/status foo",
        ),
        ("GET", "/api/v1/watch/pods", "watch /v1  pods/ "),
        ("GET", "/api/v1/pods?watch=true", "watch /v1  pods/ "),
        ("GET", "/api/v1/pods?watch=false", "list /v1  pods/ "),
        ("GET", "/api/v1/watch/namespaces/other/pods", "watch /v1 other pods/ "),
        (
            "GET",
            "/api/v1/namespaces/other/pods?watch=1&fieldSelector=metadata.name%3Dfoo",
            "watch /v1 other pods/ foo",
        ),
        (
            "GET",
            "/api/v1/namespaces/other/pods?fieldSelector=metadata.name%3Dfoo",
            "list /v1 other pods/ foo",
        ),
        (
            "PUT",
            "/api/v1/namespaces/other/finalize",
            "update /v1 other namespaces/finalize other",
        ),
        (
            "PUT",
            "/api/v1/namespaces/other/status",
            "update /v1 other namespaces/status other",
        ),
        ("POST", "/api/v1/namespaces/other/pods", "create /v1 other pods/ "),
        (
            "PATCH",
            "/apis/apps/v1/namespaces/other/deployments/foo/scale",
            "patch apps/v1 other deployments/scale foo",
        ),
        (
            "DELETE",
            "/api/v1/namespaces/other/pods/foo",
            "delete /v1 other pods/ foo",
        ),
        (
            "DELETE",
            "/api/v1/namespaces/other/pods",
            "deletecollection /v1 other pods/ ",
        ),
        ("GET", "/", "other get"),
        ("GET", "/api", "other get"),
        ("GET", "/api/v1", "other get"),
        ("GET", "/apis/apps/v1", "other get"),
        ("POST", "/version", "other post"),
        (
            "GET",
            "/api/v1/watch",
            "unable to determine kind and namespace from url",
        ),
    ];
    for (method, path, expected) in cases {
        let read = read(method, path);
        // Upstream's names for these two forms put the namespace itself in `name`.
        assert_eq!(read, expected, "{method} {path}");
    }
}

const NOTHING: &[(&str, &str, u16, &str)] = &[
    ("GET", "/none", 404, "404 page not found\n"),
    ("GET", "/apis/none/v1/things", 404, "404 page not found\n"),
    (
        "GET",
        "/api/v1/things",
        404,
        "the server could not find the requested resource",
    ),
    (
        "GET",
        "/api/v1/pods/a",
        404,
        "the server could not find the requested resource",
    ),
    (
        "GET",
        "/api/v1/namespaces/default/nodes",
        404,
        "the server could not find the requested resource",
    ),
    (
        "GET",
        "/api/v1/namespaces/default/pods/a/none",
        404,
        "the server could not find the requested resource",
    ),
    (
        "GET",
        "/api/v1/namespaces/default/pods/a/status/b",
        404,
        "the server could not find the requested resource",
    ),
    (
        "PUT",
        CONFIG_MAPS,
        405,
        "the server does not allow this method on the requested resource",
    ),
    (
        "POST",
        "/api/v1/pods",
        405,
        "the server does not allow this method on the requested resource",
    ),
    (
        "OPTIONS",
        CONFIG_MAPS,
        405,
        "the server does not allow this method on the requested resource",
    ),
    (
        "GET",
        "/api/v1/namespaces/default/configmaps/..",
        400,
        "the request path must not contain",
    ),
    (
        "GET",
        "/api/v1/namespaces/default/configmaps/%2e%2e",
        400,
        "the request path must not contain",
    ),
    (
        "GET",
        "/api/v1/namespaces/default/configmaps/a%2Fb",
        400,
        "the request path must not contain",
    ),
    (
        "GET",
        "/api/v1/namespaces/default/configmaps/a%00b",
        400,
        "the request path must not contain",
    ),
    (
        "GET",
        "/api/v1/namespaces/default/configmaps/a%FF",
        400,
        "the request path is not valid UTF-8",
    ),
    (
        "GET",
        "/api/v1/namespaces/default/configmaps/a%2",
        400,
        "invalid escape in the request path",
    ),
    (
        "GET",
        "/api/v1/namespaces/default/configmaps/%C3%A9",
        404,
        "configmaps \"é\" not found",
    ),
];

#[tokio::test]
async fn paths_that_name_nothing() {
    let api = Api::start().await;
    for (method, path, code, text) in NOTHING {
        let answer = api.request(method.parse().unwrap(), path, &[], "").await;
        let found = if answer.text().starts_with('{') {
            answer.message()
        } else {
            answer.text()
        };
        assert_eq!(
            (answer.code.as_u16(), found.starts_with(text)),
            (*code, true),
            "{method} {path}: {found}"
        );
    }
    for name in [
        "a".repeat(254),
        "ü".to_owned(),
        "a/b".to_owned(),
        "..".to_owned(),
        "A".to_owned(),
    ] {
        assert_eq!(api.post(CONFIG_MAPS, &config_map(&name)).await.code, 422, "{name}");
    }
}

#[tokio::test]
async fn bodies_are_bounded() {
    let api = Api::start().await;
    let json = [("content-type", "application/json")];
    let large = vec![b' '; 3 * 1024 * 1024 + 1];
    let answer = api.request(Method::POST, CONFIG_MAPS, &json, large).await;
    assert_eq!(
        (answer.code.as_u16(), answer.message().as_str()),
        (413, "Request entity too large: limit is 3145728")
    );
    let deep = format!("{{\"data\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(
        api.request(Method::POST, CONFIG_MAPS, &json, deep.clone()).await.code,
        400
    );
    let unknown = format!(
        "{{\"metadata\":{{\"name\":\"a\"}},\"x\":{}{}}}",
        "[".repeat(9_000),
        "]".repeat(9_000)
    );
    let answer = api.request(Method::POST, CONFIG_MAPS, &json, unknown).await;
    assert!(matches!(answer.code.as_u16(), 201 | 400), "{}", answer.text());
    api.post(CONFIG_MAPS, &config_map("b")).await;
    let path = format!("{CONFIG_MAPS}/b");
    let merge = [("content-type", "application/merge-patch+json")];
    assert_eq!(api.request(Method::PATCH, &path, &merge, deep).await.code, 400);
    let operations: Vec<_> = (0..100_000)
        .map(|_| json!({"op": "test", "path": "/data/a", "value": "1"}))
        .collect();
    let body = serde_json::to_string(&operations).unwrap();
    let json_patch = [("content-type", "application/json-patch+json")];
    let answer = api.request(Method::PATCH, &path, &json_patch, body).await;
    assert_eq!(answer.code, 413, "{}", answer.text());
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
                d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
                g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n";
    let answer = api
        .request(Method::POST, CONFIG_MAPS, &[("content-type", "application/yaml")], bomb)
        .await;
    assert!(answer.code.is_client_error(), "{}", answer.text());
}

async fn ask(api: &Api, user: User, method: &str, path: &str) -> crate::support::Answer {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    collect(api.send_as(user, request).await).await
}

#[tokio::test]
async fn the_components_may_do_what_their_roles_say() {
    let api = Api::start().await;
    let stranger = || User::new("x", []);
    let answer = ask(&api, stranger(), "GET", "/api/v1/namespaces/default/pods").await;
    assert_eq!(answer.code, 403);
    assert_eq!(
        answer.message(),
        "pods is forbidden: User \"x\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
    );
    let answer = ask(&api, stranger(), "GET", "/api/v1/namespaces/default/pods/a/log").await;
    assert_eq!(
        answer.message(),
        "pods \"a\" is forbidden: User \"x\" cannot get resource \"pods/log\" in API group \"\" in the namespace \"default\""
    );
    let answer = ask(&api, stranger(), "GET", "/metrics").await;
    assert_eq!(answer.message(), "forbidden: User \"x\" cannot get path \"/metrics\"");
    let cases = [
        (User::anonymous(), "GET", "/livez", true),
        (User::anonymous(), "GET", "/version", true),
        (User::anonymous(), "GET", "/api", false),
        (stranger(), "GET", "/apis", true),
        (User::new("system:kube-scheduler", []), "GET", "/api/v1/pods", true),
        (
            User::new("system:kube-scheduler", []),
            "DELETE",
            "/api/v1/nodes/a",
            false,
        ),
        (
            User::account("kube-system", "replicaset-controller"),
            "DELETE",
            "/api/v1/namespaces/default/pods/a",
            true,
        ),
        (
            User::account("kube-system", "replicaset-controller"),
            "DELETE",
            "/api/v1/namespaces/default/secrets/a",
            false,
        ),
        (
            User::account("kube-system", "generic-garbage-collector"),
            "DELETE",
            "/api/v1/namespaces/default/secrets/a",
            true,
        ),
        (
            User::account("kube-system", "deployment-controller"),
            "GET",
            "/apis/apps/v1/deployments",
            true,
        ),
        (
            User::new("system:node:n1", ["system:nodes"]),
            "PATCH",
            "/api/v1/nodes/n1",
            true,
        ),
        (
            User::new("system:node:n1", ["system:nodes"]),
            "DELETE",
            "/api/v1/nodes/n2",
            false,
        ),
        (User::new("system:node:n1", []), "GET", "/api/v1/pods", false),
    ];
    for (user, method, path, allowed) in cases {
        let name = user.name.clone();
        let answer = ask(&api, user, method, path).await;
        assert_eq!(answer.code != 403, allowed, "{name} {method} {path}: {}", answer.text());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_path_makes_it_panic(
        method in prop::sample::select(vec!["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]),
        parts in prop::collection::vec(prop::sample::select(vec![
            "api", "apis", "v1", "apps", "namespaces", "default", "pods", "deployments", "nodes", "status", "scale", "log",
            "binding", "watch", "proxy", "..", "%2e%2e", "%2F", "a%00", "%ff", "", "x", "%", "configmaps", "finalize",
        ]), 0..9),
        query in prop::sample::select(vec![
            "", "?watch=1&timeoutSeconds=1", "?limit=-1", "?limit=x", "?continue=e30", "?fieldSelector=a",
            "?labelSelector=,", "?resourceVersion=-1", "?dryRun=", "?fieldSelector=metadata.name=..", "?%zz",
        ]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let api = Api::start().await;
            let path = format!("/{}{query}", parts.join("/"));
            if let Ok(request) = Request::builder().method(method).uri(&path).body(Body::empty()) {
                let answer = collect(api.send(request).await).await;
                assert!(answer.code.as_u16() < 500 || answer.code == 504, "{method} {path}: {}", answer.text());
            }
        });
    }
}
