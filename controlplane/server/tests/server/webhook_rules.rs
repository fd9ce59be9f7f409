//! Selection of the webhooks for a request.

use serde_json::{Value, json};

use crate::support::webhook::{MUTATING, VALIDATING, Webhook, configure, patched};
use crate::support::{Api, config_map, deployment, pod};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

/// Writes objects of several kinds; returns the requests to a webhook with these rules and other
/// fields.
async fn asked(more: &Value) -> Vec<String> {
    let api = Api::start().await;
    let hook = Webhook::admitting().await;
    let mut entry = hook.entry("one.example.com");
    entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    configure(&api, VALIDATING, "one", json!([entry])).await;
    api.post(
        "/api/v1/namespaces",
        &json!({"metadata": {"name": "n", "labels": {"team": "a"}}}),
    )
    .await;
    api.post("/api/v1/namespaces/n/configmaps", &config_map("in-n")).await;
    api.post(MAPS, &config_map("a")).await;
    let labels = json!({"metadata": {"labels": {"app": "x"}}});
    assert_eq!(
        api.patch(&format!("{MAPS}/a"), "merge-patch+json", &labels).await.code,
        200
    );
    assert_eq!(api.delete(&format!("{MAPS}/a"), "").await.code, 200);
    assert_eq!(api.post(PODS, &pod("p")).await.code, 201);
    let status = json!({"status": {"message": "m"}});
    assert_eq!(
        api.patch(&format!("{PODS}/p/status"), "merge-patch+json", &status)
            .await
            .code,
        200
    );
    assert_eq!(api.post(DEPLOYMENTS, &deployment("d")).await.code, 201);
    api.post(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        &json!({"metadata": {"name": "c"}, "value": 1}),
    )
    .await;
    hook.brief()
}

fn rules(operations: &[&str], groups: &[&str], resources: &[&str], scope: &str) -> Value {
    json!({"rules": [{"operations": operations, "apiGroups": groups, "apiVersions": ["v1"], "resources": resources,
        "scope": scope}]})
}

#[tokio::test]
async fn rules_name_operations_groups_resources_and_scopes() {
    let deletions = asked(&rules(&["DELETE"], &["*"], &["*"], "*")).await;
    assert_eq!(deletions, ["DELETE configmaps default/a"]);
    let apps = asked(&rules(&["*"], &["apps"], &["*"], "*")).await;
    assert_eq!(apps, ["CREATE deployments default/d"]);
    let statuses = asked(&rules(&["UPDATE"], &["*"], &["*/status"], "*")).await;
    assert_eq!(statuses, ["UPDATE pods/status default/p"]);
    let whole = asked(&rules(&["CREATE", "UPDATE"], &[""], &["pods", "pods/*"], "*")).await;
    assert_eq!(whole, ["CREATE pods default/p", "UPDATE pods/status default/p"]);
    let cluster = asked(&rules(&["*"], &["*"], &["*"], "Cluster")).await;
    assert_eq!(cluster, ["CREATE namespaces n/n", "CREATE priorityclasses /c"]);
    let namespaced = asked(&rules(&["CREATE"], &["*"], &["*/*"], "Namespaced")).await;
    assert_eq!(
        namespaced,
        [
            "CREATE configmaps n/in-n",
            "CREATE configmaps default/a",
            "CREATE pods default/p",
            "CREATE deployments default/d"
        ]
    );
}

#[tokio::test]
async fn selectors_choose_namespaces_and_objects_as_they_are_or_were() {
    let team = json!({"matchLabels": {"team": "a"}});
    let everything = &rules(&["*"], &["*"], &["*"], "*")["rules"];
    let within = asked(&json!({"rules": everything, "namespaceSelector": team})).await;
    // Cluster-scoped objects are never excluded.
    assert_eq!(
        within,
        [
            "CREATE namespaces n/n",
            "CREATE configmaps n/in-n",
            "CREATE priorityclasses /c"
        ]
    );
    let chosen = json!({"rules": everything, "objectSelector": {"matchLabels": {"app": "x"}}});
    assert_eq!(
        asked(&chosen).await,
        ["UPDATE configmaps default/a", "DELETE configmaps default/a"]
    );
}

fn scaler(version: &str) -> Value {
    let metrics = if version == "v2" {
        json!({"metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]})
    } else {
        json!({"targetCPUUtilizationPercentage": 50})
    };
    let mut spec =
        json!({"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}});
    spec.as_object_mut()
        .unwrap()
        .extend(metrics.as_object().unwrap().clone());
    json!({"apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler", "metadata": {"name": version}, "spec": spec})
}

#[tokio::test]
async fn equivalent_versions_are_shown_in_the_form_that_the_rule_names() {
    for (policy, calls) in [("Equivalent", 2), ("Exact", 1)] {
        let api = Api::start().await;
        let hook = Webhook::start(|review| {
            assert_eq!(review["request"]["object"]["apiVersion"], "autoscaling/v1");
            patched(&json!([{"op": "replace", "path": "/spec/targetCPUUtilizationPercentage", "value": 80}]))
        })
        .await;
        let mut entry = hook.entry("one.example.com");
        entry["matchPolicy"] = json!(policy);
        entry["rules"] = json!([{"operations": ["CREATE"], "apiGroups": ["autoscaling"], "apiVersions": ["v1"],
            "resources": ["horizontalpodautoscalers"]}]);
        configure(&api, MUTATING, "one", json!([entry])).await;
        for version in ["v1", "v2"] {
            let path = format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers");
            let made = api.post(&path, &scaler(version)).await;
            assert_eq!(made.code, 201, "{}", made.text());
            if version == "v2" {
                let wanted = if policy == "Exact" { 50 } else { 80 };
                let target = &made.json()["spec"]["metrics"][0]["resource"]["target"];
                assert_eq!(target["averageUtilization"], wanted);
            }
        }
        let requests = hook.requests();
        assert_eq!(requests.len(), calls);
        let last = requests.last().unwrap();
        assert_eq!(last["resource"]["version"], "v1");
        assert_eq!(
            last["requestResource"]["version"],
            if policy == "Exact" { "v1" } else { "v2" }
        );
        assert_eq!(last["requestKind"]["version"], last["requestResource"]["version"]);
    }
}

#[tokio::test]
async fn no_webhook_keeps_itself_from_being_removed() {
    let api = Api::start().await;
    let hook = Webhook::refusing().await;
    let mut entry = hook.entry("one.example.com");
    entry["rules"] = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    configure(&api, VALIDATING, "one", json!([entry.clone()])).await;
    configure(&api, MUTATING, "one", json!([entry])).await;
    for path in [VALIDATING, MUTATING] {
        let labels = json!({"metadata": {"labels": {"a": "b"}}});
        assert_eq!(
            api.patch(&format!("{path}/one"), "merge-patch+json", &labels)
                .await
                .code,
            200
        );
        assert_eq!(api.delete(&format!("{path}/one"), "").await.code, 200);
    }
    assert_eq!(hook.requests().len(), 0);
}
