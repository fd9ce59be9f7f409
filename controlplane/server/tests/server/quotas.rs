//! `ResourceQuota`: charged and released by the commit of the object itself.

use crate::support::{Answer, Api, config_map, pod};
use http::StatusCode;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

/// A quota that the quota controller has counted.
async fn quota(api: &Api, name: &str, hard: &Value, more: &Value) {
    let mut spec = json!({"hard": hard});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let made = api
        .post(QUOTAS, &json!({"metadata": {"name": name}, "spec": spec}))
        .await;
    assert_eq!(made.code, StatusCode::CREATED, "{}", made.text());
    let used: serde_json::Map<String, Value> = hard
        .as_object()
        .unwrap()
        .keys()
        .map(|name| (name.clone(), json!("0")))
        .collect();
    let status = json!({"status": {"hard": hard, "used": used}});
    let counted = api
        .patch(&format!("{QUOTAS}/{name}/status"), "merge-patch+json", &status)
        .await;
    assert_eq!(counted.code, StatusCode::OK, "{}", counted.text());
}

async fn used(api: &Api, name: &str) -> Value {
    api.get(&format!("{QUOTAS}/{name}")).await.json()["status"]["used"].clone()
}

fn asking(name: &str, cpu: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
    pod
}

fn refused(answer: &Answer, message: &str) {
    assert_eq!(answer.code, StatusCode::FORBIDDEN, "{}", answer.text());
    assert_eq!(answer.message(), message);
}

#[tokio::test]
async fn what_a_quota_does_not_allow() {
    let api = Api::start().await;
    quota(&api, "q", &json!({"pods": "2", "requests.cpu": "1"}), &json!({})).await;
    let silent = api.post(PODS, &pod("silent")).await;
    refused(
        &silent,
        "pods \"silent\" is forbidden: failed quota: q: must specify requests.cpu for: c",
    );
    for name in ["a", "b"] {
        assert_eq!(api.post(PODS, &asking(name, "250m")).await.code, StatusCode::CREATED);
    }
    assert_eq!(used(&api, "q").await, json!({"pods": "2", "requests.cpu": "500m"}));
    refused(
        &api.post(PODS, &asking("c", "250m")).await,
        "pods \"c\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2",
    );
    refused(
        &api.post(PODS, &asking("c", "2")).await,
        "pods \"c\" is forbidden: exceeded quota: q, requested: pods=1,requests.cpu=2, used: pods=2,requests.cpu=500m, \
         limited: pods=2,requests.cpu=1",
    );
    api.delete(&format!("{PODS}/a?gracePeriodSeconds=0"), "").await;
    assert_eq!(used(&api, "q").await, json!({"pods": "1", "requests.cpu": "250m"}));
    let ended = json!({"status": {"phase": "Succeeded"}});
    api.patch(&format!("{PODS}/b/status"), "merge-patch+json", &ended).await;
    assert_eq!(
        used(&api, "q").await,
        json!({"pods": "0", "requests.cpu": "0"}),
        "what has ended takes nothing"
    );
    api.delete(&format!("{PODS}/b?gracePeriodSeconds=0"), "").await;
    assert_eq!(
        used(&api, "q").await,
        json!({"pods": "0", "requests.cpu": "0"}),
        "and gives nothing back twice"
    );
}

#[tokio::test]
async fn a_dry_run_is_checked_and_never_charged() {
    let api = Api::start().await;
    quota(&api, "q", &json!({"count/configmaps": "1"}), &json!({})).await;
    let dry = format!("{MAPS}?dryRun=All");
    for name in ["a", "b"] {
        assert_eq!(api.post(&dry, &config_map(name)).await.code, StatusCode::CREATED);
    }
    assert_eq!(used(&api, "q").await, json!({"count/configmaps": "0"}));
    api.post(MAPS, &config_map("a")).await;
    refused(
        &api.post(&dry, &config_map("b")).await,
        "configmaps \"b\" is forbidden: exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=1, \
         limited: count/configmaps=1",
    );
    let again = api.post(MAPS, &config_map("a")).await;
    assert_eq!(
        again.code,
        StatusCode::FORBIDDEN,
        "as upstream: quota is looked at before the name"
    );
}

#[tokio::test]
async fn scopes_say_which_pods_count() {
    let api = Api::start().await;
    quota(&api, "best", &json!({"pods": "1"}), &json!({"scopes": ["BestEffort"]})).await;
    quota(
        &api,
        "rest",
        &json!({"pods": "1"}),
        &json!({"scopes": ["NotBestEffort"]}),
    )
    .await;
    assert_eq!(api.post(PODS, &asking("burst", "1")).await.code, StatusCode::CREATED);
    assert_eq!(api.post(PODS, &pod("best")).await.code, StatusCode::CREATED);
    assert_eq!(used(&api, "best").await, json!({"pods": "1"}));
    assert_eq!(used(&api, "rest").await, json!({"pods": "1"}));
    refused(
        &api.post(PODS, &pod("more")).await,
        "pods \"more\" is forbidden: exceeded quota: best, requested: pods=1, used: pods=1, limited: pods=1",
    );
}

#[tokio::test]
async fn a_status_is_charged_and_never_refused() {
    const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
    let api = Api::start().await;
    quota(&api, "q", &json!({"requests.storage": "2Gi"}), &json!({})).await;
    let claim = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        }})
    };
    for name in ["a", "b"] {
        assert_eq!(api.post(CLAIMS, &claim(name)).await.code, StatusCode::CREATED);
    }
    let grown = json!({"status": {"allocatedResources": {"storage": "3Gi"}}});
    let told = api
        .patch(&format!("{CLAIMS}/a/status"), "merge-patch+json", &grown)
        .await;
    assert_eq!(told.code, StatusCode::OK, "{}", told.text());
    assert_eq!(used(&api, "q").await, json!({"requests.storage": "4Gi"}));
    assert_eq!(api.post(CLAIMS, &claim("c")).await.code, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_quota_that_nobody_has_counted_yet() {
    let api = Api::start().await;
    api.post(
        QUOTAS,
        &json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}),
    )
    .await;
    assert_eq!(
        api.post(PODS, &pod("a")).await.code,
        StatusCode::CREATED,
        "it limits nothing"
    );
    let status = json!({"status": {"hard": {"pods": "0"}}});
    api.patch(&format!("{QUOTAS}/q/status"), "merge-patch+json", &status)
        .await;
    refused(
        &api.post(PODS, &pod("b")).await,
        "pods \"b\" is forbidden: status unknown for quota: q, resources: pods",
    );
}

/// Two hundred concurrent creations and deletions: never more than the quota allows, and the final
/// usage is exact.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn creations_at_once_do_not_share_what_is_left() {
    let api = Api::start().await;
    quota(
        &api,
        "q",
        &json!({"configmaps": "50", "count/configmaps": "60"}),
        &json!({}),
    )
    .await;
    let names: Vec<String> = (0..200).map(|number| format!("m{number}")).collect();
    let all = || names.iter().map(|name| (MAPS.to_owned(), config_map(name)));
    let answers = api.create_at_once(all()).await;
    let made = answers
        .iter()
        .filter(|answer| answer.code == StatusCode::CREATED)
        .count();
    assert_eq!(made, 50);
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer.code, StatusCode::CREATED | StatusCode::FORBIDDEN)),
        "{:?}",
        answers.iter().map(|answer| answer.code).collect::<Vec<_>>()
    );
    assert_eq!(
        used(&api, "q").await,
        json!({"configmaps": "50", "count/configmaps": "50"})
    );
    let paths = names.iter().map(|name| format!("{MAPS}/{name}"));
    let (gone, made) = tokio::join!(api.delete_at_once(paths), api.create_at_once(all()));
    let gone = gone.iter().filter(|answer| answer.code == StatusCode::OK).count();
    let made = made.iter().filter(|answer| answer.code == StatusCode::CREATED).count();
    let left = (50 + made - gone).to_string();
    let items = api.get(MAPS).await.json()["items"]
        .as_array()
        .unwrap()
        .len()
        .to_string();
    assert_eq!(items, left);
    assert_eq!(
        used(&api, "q").await,
        json!({"configmaps": left, "count/configmaps": left})
    );
}
