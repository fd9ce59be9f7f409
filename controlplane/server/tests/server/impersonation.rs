//! Constrained impersonation.

use controlplane_server::User;
use http::Request;
use serde_json::{Value, json};

use crate::support::rights::{binding, give, jane, pods, role};
use crate::support::{Answer, Api, collect};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A request of a user, with headers.
async fn ask(api: &Api, user: &User, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(body.to_string().into()).unwrap();
    collect(api.send_as(user.clone(), request).await).await
}

/// Gives a user a cluster role of these rules.
async fn grant(api: &Api, user: &str, name: &str, rules: &Value) {
    give(api, "", "clusterroles", &role("ClusterRole", name, rules)).await;
    let subject = json!({"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"});
    let bound = binding("ClusterRoleBinding", name, &format!("ClusterRole/{name}"), &subject);
    give(api, "", "clusterrolebindings", &bound).await;
}

fn impersonate(mode: &str, resource: &str, names: &[&str]) -> Value {
    json!({"apiGroups": ["authentication.k8s.io"], "resources": [resource], "resourceNames": names,
        "verbs": [format!("impersonate:{mode}")]})
}

#[tokio::test]
async fn somebody_else_for_some_requests() {
    let api = Api::start().await;
    grant(&api, "bob", "lists", &pods(&["list", "get"])).await;
    let rules = json!([
        impersonate("user-info", "users", &["bob"]),
        impersonate("user-info", "groups", &["dev"]),
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["impersonate-on:user-info:list"]},
    ]);
    grant(&api, "jane", "as-bob", &rules).await;
    let get = async |path: &str, headers: &[(&str, &str)]| ask(&api, &jane(), "GET", path, headers, &Value::Null).await;
    let bob = ("impersonate-user", "bob");
    assert_eq!(get(PODS, &[bob]).await.code.as_u16(), 200);
    assert_eq!(get(PODS, &[bob, ("impersonate-group", "dev")]).await.code.as_u16(), 200);
    for (path, headers, expected) in [
        (
            "/api/v1/namespaces/default/pods/a",
            vec![bob],
            "pods \"a\" is forbidden: User \"jane\" cannot impersonate-on:user-info:get resource \"pods\" in API group \"\" \
             in the namespace \"default\"",
        ),
        (
            "/version",
            vec![bob],
            "forbidden: User \"jane\" cannot impersonate-on:user-info:get path \"/version\"",
        ),
        (
            PODS,
            vec![("impersonate-user", "carl")],
            "users.authentication.k8s.io \"carl\" is forbidden: User \"jane\" cannot impersonate:user-info resource \"users\" \
             in API group \"authentication.k8s.io\" at the cluster scope",
        ),
        (
            PODS,
            vec![bob, ("impersonate-group", "system:masters")],
            "groups.authentication.k8s.io \"system:masters\" is forbidden: User \"jane\" cannot impersonate:user-info resource \
             \"groups\" in API group \"authentication.k8s.io\" at the cluster scope: impersonating the system:masters group \
             is not allowed",
        ),
        (
            PODS,
            vec![bob, ("impersonate-extra-project", "x")],
            "userextras.authentication.k8s.io is forbidden: User \"jane\" cannot impersonate:user-info resource \"userextras\" \
             in API group \"authentication.k8s.io\" at the cluster scope: impersonating an invalid key in extra is not allowed: \
             extra.key: Invalid value: \"project\": must be a domain-prefixed path (such as \"acme.io/foo\")",
        ),
    ] {
        let answer = get(path, &headers).await;
        assert_eq!((answer.code.as_u16(), answer.message().as_str()), (403, expected));
    }
}

#[tokio::test]
async fn nodes_and_accounts_have_rights_of_their_own() {
    let api = Api::start().await;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let on = |mode: &str| {
        json!({"apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"],
            "verbs": [format!("impersonate-on:{mode}:create")]})
    };
    let rules = json!([
        impersonate("arbitrary-node", "nodes", &["n1"]),
        on("arbitrary-node"),
        impersonate("serviceaccount", "serviceaccounts", &["robot"]),
        on("serviceaccount"),
    ]);
    grant(&api, "jane", "nodes-and-accounts", &rules).await;
    let groups = async |user: &User, wanted: &str| {
        let answer = ask(&api, user, "POST", path, &[("impersonate-user", wanted)], &review).await;
        let groups = answer.json()["status"]["userInfo"]["groups"].clone();
        (
            answer.code.as_u16(),
            groups,
            answer.json()["message"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let (code, found, _) = groups(&jane(), "system:node:n1").await;
    assert_eq!((code, found), (201, json!(["system:nodes", "system:authenticated"])));
    let (code, found, _) = groups(&jane(), "system:serviceaccount:default:robot").await;
    let own = json!([
        "system:serviceaccounts",
        "system:serviceaccounts:default",
        "system:authenticated"
    ]);
    assert_eq!((code, found), (201, own));
    let (code, _, message) = groups(&jane(), "system:node:n2").await;
    assert_eq!(code, 403);
    assert_eq!(
        message,
        "nodes.authentication.k8s.io \"n2\" is forbidden: User \"jane\" cannot impersonate:arbitrary-node resource \"nodes\" in \
         API group \"authentication.k8s.io\" at the cluster scope"
    );
    // The pod's account may impersonate its own node, and no other.
    let mut agent = User::account("default", "agent");
    agent.extra.insert(
        "authentication.kubernetes.io/node-name".to_owned(),
        vec!["n3".to_owned()],
    );
    let rules = json!([impersonate("associated-node", "nodes", &["*"]), on("associated-node")]);
    grant(&api, "system:serviceaccount:default:agent", "own-node", &rules).await;
    let (code, found, _) = groups(&agent, "system:node:n3").await;
    assert_eq!((code, found), (201, json!(["system:nodes", "system:authenticated"])));
    assert_eq!(groups(&agent, "system:node:n4").await.0, 403);
}

#[tokio::test]
async fn names_in_every_language_are_taken_as_they_are() {
    let api = Api::start().await;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let ask = async |headers: &[(&str, &[u8])]| {
        let mut request = Request::post(path).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, http::HeaderValue::from_bytes(value).unwrap());
        }
        collect(api.send(request.body(review.to_string().into()).unwrap()).await).await
    };
    let (user, group, extra) = ("impersonate-user", "impersonate-group", "impersonate-extra-team");
    let headers = [
        (user, "jürgen".as_bytes()),
        (group, "gärtner".as_bytes()),
        (extra, "grün".as_bytes()),
    ];
    assert_eq!(
        ask(&headers).await.json()["status"]["userInfo"],
        json!({"username": "jürgen", "groups": ["gärtner", "system:authenticated"], "extra": {"team": ["grün"]}})
    );
    assert_eq!(
        ask(&headers[..1]).await.json()["status"]["userInfo"]["username"],
        "jürgen"
    );
    for headers in [
        [(user, &b"j\xfcrgen"[..]), (group, b"a")],
        [(user, b"a"), (group, b"g\xe4rtner")],
        [(user, b"a"), (extra, b"gr\xfcn")],
    ] {
        let answer = ask(&headers).await;
        assert_eq!(
            (answer.code.as_u16(), answer.message().as_str()),
            (400, "impersonation headers must be UTF-8")
        );
    }
}
