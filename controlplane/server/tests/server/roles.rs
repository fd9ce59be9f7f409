//! Rights of callers: roles, bindings, and prevention of privilege escalation.

use crate::support::Api;
use crate::support::rights::{RBAC, as_user, binding, give, jane, pods, role, user};
use controlplane_server::User;
use http::StatusCode;
use serde_json::{Value, json};

async fn reads(api: &Api, user: &User, path: &str) -> u16 {
    as_user(api, user, "GET", path, &Value::Null).await.code.as_u16()
}

#[tokio::test]
async fn denials_use_upstreams_words() {
    let api = Api::start().await;
    let table = [
        (
            "GET",
            "/api/v1/namespaces/default/pods",
            "pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"",
        ),
        (
            "GET",
            "/api/v1/namespaces/default/pods/web/log",
            "pods \"web\" is forbidden: User \"jane\" cannot get resource \"pods/log\" in API group \"\" in the namespace \"default\"",
        ),
        (
            "DELETE",
            "/apis/apps/v1/namespaces/x/deployments/web",
            "deployments.apps \"web\" is forbidden: User \"jane\" cannot delete resource \"deployments\" in API group \"apps\" in the namespace \"x\"",
        ),
        (
            "GET",
            "/api/v1/nodes",
            "nodes is forbidden: User \"jane\" cannot list resource \"nodes\" in API group \"\" at the cluster scope",
        ),
        (
            "GET",
            "/metrics",
            "forbidden: User \"jane\" cannot get path \"/metrics\"",
        ),
        (
            "GET",
            "/apis/example.com/v1/unknown",
            "unknown.example.com is forbidden: User \"jane\" cannot list resource \"unknown\" in API group \"example.com\" at the cluster scope",
        ),
    ];
    for (method, path, expected) in table {
        let answer = as_user(&api, &jane(), method, path, &Value::Null).await;
        assert_eq!((answer.code.as_u16(), answer.message().as_str()), (403, expected));
        assert_eq!(answer.json()["reason"], "Forbidden");
    }
    let missing = binding("ClusterRoleBinding", "b", "ClusterRole/gone", &user("jane"));
    give(&api, "", "clusterrolebindings", &missing).await;
    let answer = as_user(&api, &jane(), "GET", "/api/v1/nodes", &Value::Null).await;
    assert_eq!(
        answer.message(),
        "nodes is forbidden: User \"jane\" cannot list resource \"nodes\" in API group \"\" at the cluster scope: \
         RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not found"
    );
}

#[tokio::test]
async fn a_change_of_role_or_binding_counts_for_the_next_request() {
    let api = Api::start().await;
    let path = "/api/v1/namespaces/default/pods";
    give(&api, "default", "roles", &role("Role", "r", &pods(&["list"]))).await;
    assert_eq!(reads(&api, &jane(), path).await, 403);
    give(
        &api,
        "default",
        "rolebindings",
        &binding("RoleBinding", "b", "Role/r", &user("jane")),
    )
    .await;
    assert_eq!(reads(&api, &jane(), path).await, 200);
    assert_eq!(reads(&api, &jane(), "/api/v1/namespaces/kube-system/pods").await, 403);
    assert_eq!(reads(&api, &jane(), "/api/v1/pods").await, 403);
    assert_eq!(reads(&api, &User::new("joe", []), path).await, 403);
    let one = format!("{RBAC}/namespaces/default/roles/r");
    let narrowed = api
        .patch(&one, "merge-patch+json", &json!({"rules": pods(&["get"])}))
        .await;
    assert_eq!(narrowed.code, 200);
    assert_eq!(reads(&api, &jane(), path).await, 403);
    api.patch(&one, "merge-patch+json", &json!({"rules": pods(&["*"])}))
        .await;
    assert_eq!(reads(&api, &jane(), path).await, 200);
    api.delete(&format!("{RBAC}/namespaces/default/rolebindings/b"), "")
        .await;
    assert_eq!(reads(&api, &jane(), path).await, 403);
}

#[tokio::test]
async fn subjects_are_users_groups_and_service_accounts() {
    let api = Api::start().await;
    give(&api, "", "clusterroles", &role("ClusterRole", "r", &pods(&["list"]))).await;
    let account = |namespace: &str| User::new(format!("system:serviceaccount:{namespace}:robot"), []);
    let path = "/api/v1/namespaces/default/pods";
    let own = json!({"kind": "ServiceAccount", "name": "robot", "namespace": "kube-system"});
    let bind = |name: &str, subject: &Value| binding("RoleBinding", name, "ClusterRole/r", subject);
    give(&api, "default", "rolebindings", &bind("a", &own)).await;
    assert_eq!(reads(&api, &account("kube-system"), path).await, 200);
    assert_eq!(reads(&api, &account("default"), path).await, 403);
    let group = json!({"kind": "Group", "name": "team"});
    give(&api, "default", "rolebindings", &bind("g", &group)).await;
    assert_eq!(reads(&api, &jane(), path).await, 200);
    assert_eq!(reads(&api, &User::new("team", []), path).await, 403);
    assert_eq!(reads(&api, &User::new("any", ["team"]), "/api/v1/pods").await, 403);
}

#[tokio::test]
async fn rules_name_objects_subresources_and_paths() {
    let api = Api::start().await;
    let rules = json!([
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"], "verbs": ["get", "list", "create"]},
        {"apiGroups": ["*"], "resources": ["*/status"], "verbs": ["get"]},
        {"nonResourceURLs": ["/logs/*", "/readyz"], "verbs": ["get"]},
    ]);
    give(&api, "", "clusterroles", &role("ClusterRole", "r", &rules)).await;
    let bound = binding("ClusterRoleBinding", "b", "ClusterRole/r", &user("jane"));
    give(&api, "", "clusterrolebindings", &bound).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let mine = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}});
    // The name of a created object is in the body, which authorization does not read.
    assert_eq!(as_user(&api, &jane(), "POST", maps, &mine).await.code, 403);
    assert_eq!(api.post(maps, &mine).await.code, 201);
    let table = [
        (format!("{maps}/mine"), 200),
        (format!("{maps}/other"), 403),
        (maps.to_owned(), 403),
        (format!("{maps}?fieldSelector=metadata.name%3Dmine"), 200),
        (format!("{maps}?fieldSelector=metadata.name%3Dother"), 403),
        ("/api/v1/nodes/n1/status".to_owned(), 404),
        ("/api/v1/nodes/n1".to_owned(), 403),
        ("/readyz".to_owned(), 200),
        ("/logs/x".to_owned(), 404),
        ("/metrics".to_owned(), 403),
    ];
    for (path, code) in table {
        assert_eq!(reads(&api, &jane(), &path).await, code, "{path}");
    }
}

#[tokio::test]
async fn the_unknown_see_health_and_version_only() {
    let api = Api::start().await;
    for (path, code) in [
        ("/healthz", 200),
        ("/livez", 200),
        ("/readyz", 200),
        ("/version", 200),
        ("/api", 403),
        ("/apis", 403),
        ("/openapi/v3", 403),
        ("/", 403),
        ("/api/v1/namespaces", 403),
    ] {
        assert_eq!(reads(&api, &User::anonymous(), path).await, code, "{path}");
    }
    // All other paths and kinds are denied.
    let paths = api.get("/").await.json()["paths"].clone();
    let paths: Vec<&str> = paths.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(paths.contains(&"/metrics"), "{paths:?}");
    let kinds = ::api::KINDS.iter().map(|kind| match kind.group {
        "" => format!("/api/{}/{}", kind.version, kind.plural),
        group => format!("/apis/{group}/{}/{}", kind.version, kind.plural),
    });
    let open = ["/healthz", "/livez", "/readyz", "/version"];
    for path in paths.into_iter().map(str::to_owned).chain(kinds) {
        for verb in ["GET", "POST", "DELETE"] {
            let answer = as_user(&api, &User::anonymous(), verb, &path, &Value::Null).await;
            let is_open = open.contains(&&*path) && verb == "GET";
            assert!(is_open || !answer.code.is_success(), "{verb} {path}: {}", answer.text());
            let refused = [StatusCode::FORBIDDEN, StatusCode::METHOD_NOT_ALLOWED];
            assert!(
                is_open || refused.contains(&answer.code),
                "{verb} {path}: {}",
                answer.text()
            );
        }
    }
    let anonymous = as_user(&api, &User::anonymous(), "GET", "/api", &Value::Null).await;
    assert_eq!(
        anonymous.message(),
        "forbidden: User \"system:anonymous\" cannot get path \"/api\""
    );
    assert_eq!(reads(&api, &jane(), "/api").await, 200);
    assert_eq!(reads(&api, &jane(), "/openapi/v3").await, 200);
}

/// Jane may write roles and bindings in `default`, and read pods there.
async fn with_admin() -> Api {
    let api = Api::start().await;
    let rules = json!([
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings", "clusterroles"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    ]);
    // `*` would be `escalate` and `bind` too.
    let mut rules = rules;
    rules[0]["verbs"] = json!(["create", "update", "patch", "get", "delete"]);
    give(&api, "", "clusterroles", &role("ClusterRole", "admin-of-roles", &rules)).await;
    let bound = binding("ClusterRoleBinding", "b", "ClusterRole/admin-of-roles", &user("jane"));
    give(&api, "", "clusterrolebindings", &bound).await;
    api
}

#[tokio::test]
async fn nobody_gives_what_he_does_not_have() {
    let api = with_admin().await;
    let roles = format!("{RBAC}/namespaces/default/roles");
    let own = role("Role", "own", &pods(&["get"]));
    let created = as_user(&api, &jane(), "POST", &roles, &own).await;
    assert_eq!(created.code, 201, "{}", created.text());
    let wide = role("Role", "wide", &pods(&["get", "delete", "watch"]));
    let refused = as_user(&api, &jane(), "POST", &roles, &wide).await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.message(),
        "roles.rbac.authorization.k8s.io \"wide\" is forbidden: user \"jane\" (groups=[\"team\" \"system:authenticated\"]) \
         is attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\" \"watch\"]}"
    );
    let grown = json!({"rules": pods(&["delete"])});
    let path = format!("{roles}/own");
    assert_eq!(as_user(&api, &jane(), "PATCH", &path, &grown).await.code, 403);
    let finalized = json!({"metadata": {"finalizers": ["example.com/x"]}});
    give(&api, "default", "roles", &role("Role", "theirs", &pods(&["delete"]))).await;
    let theirs = format!("{roles}/theirs");
    assert_eq!(as_user(&api, &jane(), "PATCH", &theirs, &finalized).await.code, 200);
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(as_user(&api, &jane(), "PATCH", &theirs, &labelled).await.code, 403);
    let aggregated = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "all"}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    let refused = as_user(&api, &jane(), "POST", &format!("{RBAC}/clusterroles"), &aggregated).await;
    assert_eq!(
        refused.message(),
        "clusterroles.rbac.authorization.k8s.io \"all\" is forbidden: must have cluster-admin privileges to use the \
         aggregationRule"
    );
    let escalate = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["escalate"]}]);
    give(&api, "default", "roles", &role("Role", "escalator", &escalate)).await;
    let bound = binding("RoleBinding", "e", "Role/escalator", &user("jane"));
    give(&api, "default", "rolebindings", &bound).await;
    assert_eq!(as_user(&api, &jane(), "POST", &roles, &wide).await.code, 201);
}

#[tokio::test]
async fn nobody_binds_a_role_that_he_does_not_hold() {
    let api = with_admin().await;
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let bind = |name: &str, role: &str| binding("RoleBinding", name, role, &user("joe"));
    let refused = as_user(
        &api,
        &jane(),
        "POST",
        &bindings,
        &bind("x", "ClusterRole/cluster-admin"),
    )
    .await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.message(),
        "rolebindings.rbac.authorization.k8s.io \"x\" is forbidden: user \"jane\" \
         (groups=[\"team\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"*\"], Resources:[\"*\"], Verbs:[\"*\"]}\n{NonResourceURLs:[\"*\"], Verbs:[\"*\"]}"
    );
    let missing = as_user(&api, &jane(), "POST", &bindings, &bind("x", "Role/gone")).await;
    assert_eq!(missing.code, 404);
    assert_eq!(missing.message(), "roles.rbac.authorization.k8s.io \"gone\" not found");
    give(&api, "default", "roles", &role("Role", "own", &pods(&["list"]))).await;
    assert_eq!(
        as_user(&api, &jane(), "POST", &bindings, &bind("y", "Role/own"))
            .await
            .code,
        201
    );
    let may_bind = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"],
        "resourceNames": ["cluster-admin"], "verbs": ["bind"]}]);
    give(&api, "default", "roles", &role("Role", "binder", &may_bind)).await;
    let bound = binding("RoleBinding", "b", "Role/binder", &user("jane"));
    give(&api, "default", "rolebindings", &bound).await;
    let bound = as_user(
        &api,
        &jane(),
        "POST",
        &bindings,
        &bind("x", "ClusterRole/cluster-admin"),
    )
    .await;
    assert_eq!(bound.code, 201, "{}", bound.text());
    let moved = json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "own"}});
    let refused = api.patch(&format!("{bindings}/x"), "merge-patch+json", &moved).await;
    assert_eq!(refused.code, 422);
    assert!(
        refused.message().ends_with(": cannot change roleRef"),
        "{}",
        refused.text()
    );
}

#[tokio::test]
async fn the_default_roles_are_there_and_come_back() {
    let api = Api::start().await;
    let count = async |plural: &str| {
        let list = api.get(&format!("{RBAC}/{plural}")).await.json();
        list["items"].as_array().unwrap().len()
    };
    let before = (count("clusterroles").await, count("clusterrolebindings").await);
    assert!(before.0 > 60 && before.1 > 40, "{before:?}");
    let view = api.get(&format!("{RBAC}/clusterroles/view")).await.json();
    let annotations = &view["metadata"]["annotations"];
    assert_eq!(annotations["rbac.authorization.kubernetes.io/autoupdate"], "true");
    api.delete(&format!("{RBAC}/clusterroles/view"), "").await;
    let nothing = json!({"subjects": null});
    let viewer = format!("{RBAC}/clusterrolebindings/system:public-info-viewer");
    api.patch(&viewer, "merge-patch+json", &nothing).await;
    assert_eq!(reads(&api, &User::anonymous(), "/version").await, 403);
    let revision = api.store.revision();
    api.server.bootstrap().await.unwrap();
    assert_eq!(api.store.revision(), revision + 2);
    assert_eq!(reads(&api, &User::anonymous(), "/version").await, 200);
    assert_eq!(
        (count("clusterroles").await, count("clusterrolebindings").await),
        before
    );
}

#[tokio::test]
async fn servers_that_extend_this_one_find_its_authority() {
    let api = Api::start_with(|mut options| {
        options.authority = Some("the authority".into());
        options
    })
    .await;
    let path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    assert_eq!(
        api.get(path).await.json()["data"],
        json!({"client-ca-file": "the authority"})
    );
    let other = json!({"data": {"client-ca-file": "another", "requestheader-client-ca-file": "front"}});
    assert_eq!(api.patch(path, "merge-patch+json", &other).await.code.as_u16(), 200);
    api.server.bootstrap().await.unwrap();
    assert_eq!(
        api.get(path).await.json()["data"],
        json!({"client-ca-file": "the authority", "requestheader-client-ca-file": "front"})
    );
}

#[tokio::test]
async fn nodes_that_join_read_where_the_server_is_and_by_whom_it_is_trusted() {
    let api = Api::start_with(|mut options| {
        options.authority = Some("the authority".into());
        options.url = "https://k8s.example.com:6443".to_owned();
        options
    })
    .await;
    let path = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
    let read = as_user(&api, &User::anonymous(), "GET", path, &Value::Null).await;
    assert_eq!(read.code.as_u16(), 200);
    let expected = "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: dGhlIGF1dGhvcml0eQ==\n    server: \
                    https://k8s.example.com:6443\n  name: \"\"\ncontexts: null\ncurrent-context: \"\"\nkind: Config\nusers: null\n";
    assert_eq!(read.json()["data"], json!({"kubeconfig": expected}));
    let others = "/api/v1/namespaces/kube-public/configmaps";
    let refused = as_user(&api, &User::anonymous(), "GET", others, &Value::Null).await;
    assert_eq!(refused.code.as_u16(), 403);
}
