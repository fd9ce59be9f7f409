//! Users, and the roles and bindings that give them rights.

use controlplane_server::User;
use http::Request;
use serde_json::{Value, json};

use super::{Answer, Api, collect};

/// The group of roles and bindings.
pub const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// A request of a user.
pub async fn as_user(api: &Api, user: &User, method: &str, path: &str, body: &Value) -> Answer {
    let kind = if method == "PATCH" {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    collect(api.send_as(user.clone(), request.body(body.into()).unwrap()).await).await
}

/// User without rights of her own.
pub fn jane() -> User {
    User::new("jane", ["team"])
}

/// A role or cluster role.
pub fn role(kind: &str, name: &str, rules: &Value) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "rules": rules})
}

/// A binding of `Kind/name` to a subject.
pub fn binding(kind: &str, name: &str, role: &str, subject: &Value) -> Value {
    let (role_kind, role) = role.split_once('/').unwrap();
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role}, "subjects": [subject]})
}

/// Makes a role or a binding; without a namespace one for the whole cluster.
pub async fn give(api: &Api, namespace: &str, plural: &str, object: &Value) {
    let place = if namespace.is_empty() {
        String::new()
    } else {
        format!("namespaces/{namespace}/")
    };
    let answer = api.post(&format!("{RBAC}/{place}{plural}"), object).await;
    assert_eq!(answer.code, 201, "{}", answer.text());
}

/// Rules that allow verbs on pods.
pub fn pods(verbs: &[&str]) -> Value {
    json!([{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}])
}

/// A subject of a binding.
pub fn user(name: &str) -> Value {
    json!({"kind": "User", "name": name})
}
