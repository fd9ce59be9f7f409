//! Access reviews.

use crate::support::Api;
use crate::support::rights::{as_user, binding, give, jane, pods, role, user};
use controlplane_server::User;
use serde_json::{Value, json};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1";

fn question(kind: &str, spec: &Value) -> Value {
    json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec})
}

#[tokio::test]
async fn everybody_may_ask_what_he_may_do() {
    let api = Api::start().await;
    give(&api, "default", "roles", &role("Role", "r", &pods(&["list"]))).await;
    give(
        &api,
        "default",
        "rolebindings",
        &binding("RoleBinding", "b", "Role/r", &user("jane")),
    )
    .await;
    let path = format!("{REVIEWS}/selfsubjectaccessreviews");
    let ask = async |user: &User, spec: Value| {
        let body = question("SelfSubjectAccessReview", &spec);
        let answer = as_user(&api, user, "POST", &path, &body).await;
        assert_eq!(answer.code, 201, "{}", answer.text());
        answer.json()["status"].clone()
    };
    let listing =
        |namespace: &str| json!({"resourceAttributes": {"namespace": namespace, "verb": "list", "resource": "pods"}});
    assert_eq!(
        ask(&jane(), listing("default")).await,
        json!({"allowed": true, "reason": "RBAC: allowed by RoleBinding \"b/default\" of Role \"r\" to User \"jane\""})
    );
    assert_eq!(ask(&jane(), listing("kube-system")).await, json!({"allowed": false}));
    let path_of = |path: &str| json!({"nonResourceAttributes": {"path": path, "verb": "get"}});
    assert_eq!(ask(&jane(), path_of("/metrics")).await["allowed"], false);
    assert_eq!(ask(&jane(), path_of("/api/v1")).await["allowed"], true);
    let admin = User::new("root", ["system:masters"]);
    assert_eq!(ask(&admin, listing("x")).await, json!({"allowed": true}));
    let node = User::new("system:node:n1", ["system:nodes"]);
    let own = json!({"resourceAttributes": {"verb": "list", "resource": "pods", "fieldSelector":
        {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]}}});
    assert_eq!(ask(&node, own).await["allowed"], true);
    let all = json!({"resourceAttributes": {"verb": "list", "resource": "pods"}});
    let because = "can only list/watch pods with spec.nodeName field selector";
    assert_eq!(ask(&node, all).await, json!({"allowed": false, "reason": because}));
    let neither = as_user(
        &api,
        &jane(),
        "POST",
        &path,
        &question("SelfSubjectAccessReview", &json!({})),
    )
    .await;
    assert_eq!(neither.code, 422);
    assert!(
        neither
            .message()
            .contains("exactly one of nonResourceAttributes or resourceAttributes")
    );
}

#[tokio::test]
async fn who_may_asks_what_others_may_do() {
    let api = Api::start().await;
    give(&api, "", "clusterroles", &role("ClusterRole", "r", &pods(&["list"]))).await;
    let team = json!({"kind": "Group", "name": "team"});
    give(
        &api,
        "",
        "clusterrolebindings",
        &binding("ClusterRoleBinding", "b", "ClusterRole/r", &team),
    )
    .await;
    let spec = json!({"user": "joe", "groups": ["team"],
        "resourceAttributes": {"namespace": "default", "verb": "list", "resource": "pods"}});
    let path = format!("{REVIEWS}/subjectaccessreviews");
    let asked = question("SubjectAccessReview", &spec);
    assert_eq!(as_user(&api, &jane(), "POST", &path, &asked).await.code, 403);
    let answer = api.post(&path, &asked).await.json();
    assert_eq!(
        answer["status"],
        json!({"allowed": true, "reason": "RBAC: allowed by ClusterRoleBinding \"b\" of ClusterRole \"r\" to Group \"team\""})
    );
    let local = |namespace: &str| format!("{REVIEWS}/namespaces/{namespace}/localsubjectaccessreviews");
    let asked = question("LocalSubjectAccessReview", &spec);
    let answer = api.post(&local("default"), &asked).await;
    assert_eq!(answer.json()["status"]["allowed"], true, "{}", answer.text());
    assert_eq!(answer.json()["metadata"]["namespace"], "default");
    let elsewhere = api.post(&local("kube-system"), &asked).await;
    assert_eq!(elsewhere.code, 422);
    assert!(
        elsewhere.message().contains("must match metadata.namespace"),
        "{}",
        elsewhere.text()
    );
    let nobody = question(
        "SubjectAccessReview",
        &json!({"resourceAttributes": {"verb": "get", "resource": "pods"}}),
    );
    let refused = api.post(&path, &nobody).await;
    assert!(
        refused
            .message()
            .contains("at least one of user or group must be specified"),
        "{}",
        refused.text()
    );
    assert_eq!(api.get(&path).await.code, 405);
}

#[tokio::test]
async fn rules_are_listed_for_a_namespace() {
    let api = Api::start().await;
    give(&api, "default", "roles", &role("Role", "r", &pods(&["list"]))).await;
    give(
        &api,
        "default",
        "rolebindings",
        &binding("RoleBinding", "b", "Role/r", &user("jane")),
    )
    .await;
    let gone = binding("RoleBinding", "gone", "Role/gone", &user("jane"));
    give(&api, "default", "rolebindings", &gone).await;
    let path = format!("{REVIEWS}/selfsubjectrulesreviews");
    let asked = question("SelfSubjectRulesReview", &json!({"namespace": "default"}));
    let answer = as_user(&api, &jane(), "POST", &path, &asked).await;
    assert_eq!(answer.code, 201, "{}", answer.text());
    let status = answer.json()["status"].clone();
    let listed = status["resourceRules"].as_array().unwrap();
    let own = json!({"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]});
    assert!(listed.contains(&own), "{status}");
    assert_eq!(status["incomplete"], false);
    assert_eq!(
        status["evaluationError"],
        "role.rbac.authorization.k8s.io \"gone\" not found"
    );
    let paths: Vec<&Value> = status["nonResourceRules"].as_array().unwrap().iter().collect();
    assert!(
        paths.iter().any(|rule| rule["nonResourceURLs"][0] == "/api"),
        "{status}"
    );
    let nowhere = as_user(
        &api,
        &jane(),
        "POST",
        &path,
        &question("SelfSubjectRulesReview", &json!({})),
    )
    .await;
    assert_eq!(
        (nowhere.code.as_u16(), nowhere.message().as_str()),
        (400, "no namespace on request")
    );
}

#[tokio::test]
async fn questions_about_selected_objects_are_well_formed() {
    let api = Api::start().await;
    let at = "spec.resourceAttributes";
    let fields = |own: Value| json!({"user": "u", "resourceAttributes": {"fieldSelector": {"requirements": [own]}}});
    let labels = |own: Value| json!({"user": "u", "resourceAttributes": {"labelSelector": {"requirements": [own]}}});
    let cases = [
        (
            fields(json!({"key": "", "operator": "Foo"})),
            format!("{at}.fieldSelector.requirements[0].key: Required value: must be specified"),
        ),
        (
            fields(json!({"key": "a", "operator": "In"})),
            format!(
                "{at}.fieldSelector.requirements[0].values: Required value: must be specified when `operator` is 'In' or \
                 'NotIn'"
            ),
        ),
        (
            labels(json!({"key": "a", "operator": "Exists", "values": ["b"]})),
            format!(
                "{at}.labelSelector.requirements[0].values: Forbidden: may not be specified when `operator` is 'Exists' or \
                 'DoesNotExist'"
            ),
        ),
        (
            labels(json!({"key": "a b", "operator": "Exists"})),
            format!("{at}.labelSelector.requirements[0].key: Invalid value: \"a b\": name part"),
        ),
    ];
    for (spec, expected) in cases {
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = api.post(path, &question("SubjectAccessReview", &spec)).await;
        assert_eq!(answer.code, 422, "{spec}: {}", answer.text());
        assert!(answer.message().contains(&expected), "{}", answer.message());
    }
}
