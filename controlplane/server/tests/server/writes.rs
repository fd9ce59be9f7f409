//! PUT requests, fields that the server sets itself, and readers that have seen later revisions
//! than the server.

use std::time::Duration;

use crate::support::{Api, at_once, config_map, deployment, pod};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Method, StatusCode};
use serde_json::{Value, json};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn lease(holder: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
        "spec": {"holderIdentity": holder}})
}

#[tokio::test]
async fn whoever_uses_a_deprecated_kind_is_told() {
    let api = Api::start().await;
    let path = "/api/v1/namespaces/default/endpoints";
    let told = ["299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\""];
    assert_eq!(api.get(path).await.warnings(), told);
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "e"}});
    assert_eq!(api.post(path, &endpoints).await.warnings(), told);
}

#[tokio::test]
async fn nobody_asks_for_a_certificate_in_anothers_name() {
    let api = Api::start().await;
    let asked = STANDARD.encode(include_str!("../../../api/tests/requests/jane.pem"));
    let request = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "r"}, "spec": {"request": asked, "signerName": "example.com/signer",
        "usages": ["client auth"], "username": "root", "uid": "0", "extra": {"a": ["b"]}, "groups": ["system:masters"]}});
    let body = serde_json::to_vec(&request).unwrap();
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let headers = [
        ("content-type", "application/json"),
        ("impersonate-user", "jane"),
        ("impersonate-group", "system:masters"),
    ];
    let spec = api.request(Method::POST, path, &headers, body).await.json()["spec"].clone();
    assert_eq!(
        spec,
        json!({"request": asked, "signerName": "example.com/signer", "usages": ["client auth"],
            "username": "jane", "groups": ["system:masters", "system:authenticated"]})
    );
}

#[tokio::test]
async fn a_put_creates_where_upstream_lets_it() {
    let api = Api::start().await;
    let path = format!("{LEASES}/l");
    let created = api.put(&path, &lease("a")).await;
    assert_eq!(created.code, StatusCode::CREATED, "{}", created.text());
    let refused = api.put(&path, &lease("b")).await;
    assert_eq!(refused.code, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        refused.message(),
        "leases.coordination.k8s.io \"l\" is invalid: metadata.resourceVersion: Invalid value: 0x0: must be specified for \
         an update"
    );
    let mut next = created.json();
    next["spec"]["holderIdentity"] = json!("b");
    assert_eq!(api.put(&path, &next).await.code, StatusCode::OK);
    assert_eq!(api.put(&path, &next).await.code, StatusCode::CONFLICT, "an old version");
    let patched = api
        .patch(&path, "merge-patch+json", &json!({"spec": {"holderIdentity": "c"}}))
        .await;
    assert_eq!(patched.code, StatusCode::OK, "{}", patched.text());

    let missing = api.put(&format!("{MAPS}/m"), &config_map("m")).await;
    assert_eq!(missing.code, StatusCode::NOT_FOUND);
    api.post(MAPS, &config_map("m")).await;
    let unconditional = api.put(&format!("{MAPS}/m"), &config_map("m")).await;
    assert_eq!(unconditional.code, StatusCode::OK, "{}", unconditional.text());

    let dry = api
        .put(
            &format!("{LEASES}/dry?dryRun=All"),
            &json!({"metadata": {"name": "dry"}}),
        )
        .await;
    assert_eq!(dry.code, StatusCode::CREATED, "{}", dry.text());
    assert_eq!(api.get(&format!("{LEASES}/dry")).await.code, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn a_revision_to_come_is_waited_for_and_then_refused() {
    let api = Api::start().await;
    api.post(MAPS, &config_map("m")).await;
    let next = api.store.revision() + 1;
    for path in [
        format!("{MAPS}?resourceVersion={next}"),
        format!("{MAPS}?resourceVersion={next}&resourceVersionMatch=Exact"),
        format!("{MAPS}?resourceVersion={next}&limit=1"),
        format!("{MAPS}/m?resourceVersion={next}"),
    ] {
        let began = tokio::time::Instant::now();
        let refused = api.get(&path).await;
        assert_eq!(refused.code, StatusCode::GATEWAY_TIMEOUT, "{path}");
        assert_eq!(began.elapsed().as_secs(), 3, "{path}");
        let status = refused.json();
        let current = next - 1;
        assert_eq!(
            status["message"],
            format!("Timeout: Too large resource version: {next}, current: {current}")
        );
        assert_eq!(
            (&status["reason"], &status["details"]["retryAfterSeconds"]),
            (&json!("Timeout"), &json!(1))
        );
    }
    let path = format!("{MAPS}?resourceVersion={next}");
    let other = config_map("n");
    let write = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        api.post(MAPS, &other).await
    };
    let (list, _) = tokio::join!(api.get(&path), write);
    assert_eq!(
        list.json()["items"].as_array().map(Vec::len),
        Some(2),
        "it came in time"
    );
}

#[tokio::test]
async fn items_of_a_list_do_not_repeat_its_kind() {
    let api = Api::start().await;
    api.post(MAPS, &config_map("m")).await;
    api.post(MAPS, &config_map("n")).await;
    for accept in ["application/json", "application/yaml"] {
        let list = api.request(Method::GET, MAPS, &[("accept", accept)], "").await.text();
        let list: Value = serde_yaml::from_str(&list).unwrap();
        assert_eq!(list["kind"], "ConfigMapList");
        for item in list["items"].as_array().unwrap() {
            assert_eq!(
                (&item["kind"], &item["apiVersion"]),
                (&Value::Null, &Value::Null),
                "{accept}"
            );
            assert_eq!(item["data"]["a"], "1", "{accept}");
        }
    }
    assert_eq!(api.get(&format!("{MAPS}/m")).await.json()["kind"], "ConfigMap");
}

#[tokio::test]
async fn classes_that_every_cluster_has_and_one_default() {
    let api = Api::start().await;
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let node = api.get(&format!("{classes}/system-node-critical")).await.json();
    assert_eq!(node["value"], 2_000_001_000);
    let class = |name: &str, value: i32| json!({"metadata": {"name": name}, "value": value, "globalDefault": true, "preemptionPolicy": "Never"});
    assert_eq!(api.post(classes, &class("usual", 7)).await.code, StatusCode::CREATED);
    let second = api.post(classes, &class("other", 8)).await;
    assert_eq!(second.code, StatusCode::FORBIDDEN);
    assert_eq!(
        second.message(),
        "priorityclasses.scheduling.k8s.io \"other\" is forbidden: PriorityClass usual is already marked as default. \
         Only one default can exist"
    );
    let made = api.post("/api/v1/namespaces/default/pods", &pod("p")).await.json();
    assert_eq!(
        (
            &made["spec"]["priority"],
            &made["spec"]["priorityClassName"],
            &made["spec"]["preemptionPolicy"]
        ),
        (&json!(7), &json!("usual"), &json!("Never"))
    );
}

#[tokio::test]
async fn what_means_nothing_is_left_out() {
    let api = Api::start().await;
    let mut map = config_map("m");
    map["binaryData"] = json!({});
    map["immutable"] = json!(false);
    let made = api.post(MAPS, &map).await.json();
    assert_eq!((made.get("binaryData"), &made["immutable"]), (None, &json!(false)));
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let mut wanted = deployment("d");
    let spec = wanted.pointer_mut("/spec/template/spec").unwrap();
    spec["volumes"] = json!([]);
    spec["affinity"] = json!({});
    spec["hostname"] = json!("");
    spec["containers"][0]["args"] = json!([]);
    spec["containers"][0]["resources"] = json!({"limits": {}});
    spec["containers"][0]["env"] = json!([{"name": "A", "value": ""}]);
    let made = api.post(path, &wanted).await.json();
    let spec = &made["spec"]["template"]["spec"];
    assert_eq!(
        (spec.get("volumes"), spec.get("hostname"), &spec["affinity"]),
        (None, None, &json!({}))
    );
    let container = &spec["containers"][0];
    assert_eq!(
        (container.get("args"), &container["resources"], &container["env"]),
        (None, &json!({}), &json!([{"name": "A"}]))
    );
    for answer in [
        api.put(&format!("{path}/d"), &wanted).await,
        api.patch(
            &format!("{path}/d"),
            "merge-patch+json",
            &json!({"spec": {"template": {"spec": {"tolerations": []}}}}),
        )
        .await,
    ] {
        let same = answer.json();
        assert_eq!(same["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    }
    let applied = api
        .apply(&format!("{MAPS}/applied"), "fieldManager=me", config_map_with_nothing())
        .await
        .json();
    assert_eq!(applied.get("data"), None, "{applied}");
}

fn config_map_with_nothing() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {}})
}

/// A null that is written for a missing list equals an empty list.
#[tokio::test]
async fn an_empty_list_is_none() {
    let api = Api::start().await;
    let role =
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "a"}, "rules": []});
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    let path = format!("{roles}/a");
    let applied = api.apply(&path, "fieldManager=me", &role).await.json();
    assert_eq!(applied["rules"], Value::Null);
    let again = api.apply(&path, "fieldManager=me", &role).await.json();
    assert_eq!(
        again["metadata"]["resourceVersion"],
        applied["metadata"]["resourceVersion"]
    );
    let slice = json!({"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": [], "ports": []});
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let made = api.post(slices, &slice).await.json();
    let put = api.put(&format!("{slices}/a"), &slice).await.json();
    for field in ["resourceVersion", "generation"] {
        assert_eq!(put["metadata"][field], made["metadata"][field]);
    }
}

#[tokio::test]
async fn nobody_on_the_way_keeps_an_answer() {
    let api = Api::start().await;
    for path in [MAPS, "/none", "/version", "/api/v1/namespaces/default/secrets/none"] {
        assert_eq!(
            api.get(path).await.headers["cache-control"],
            "no-cache, private",
            "{path}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writes_without_a_version_win_in_the_end() {
    let api = Api::start().await;
    let path = "/api/v1/namespaces/default/configmaps";
    // It takes so long to read and compare that a write is seldom the first.
    let data: serde_json::Map<String, Value> = (0..600).map(|key| (format!("k{key}"), json!("v"))).collect();
    let mut whole = config_map("c");
    whole["data"] = data.into();
    api.post(path, &whole).await;
    let calls = (0..200).map(|number: usize| {
        let (api, mut whole) = (api.clone(), whole.clone());
        async move {
            let path = format!("{path}/c");
            whole["data"]["k0"] = json!(number.to_string());
            if number.is_multiple_of(2) {
                api.put(&path, &whole).await
            } else {
                let change = json!({"data": {format!("p{number}"): "v"}});
                api.patch(&path, "merge-patch+json", &change).await
            }
        }
    });
    for answer in at_once(calls).await {
        assert_eq!(answer.code, 200, "{}", answer.text());
    }
}

#[tokio::test]
async fn owners_are_named_once() {
    let api = Api::start().await;
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u1"});
    let mut other = owner.clone();
    other["name"] = json!("p");
    let mut map = config_map("c");
    map["metadata"]["ownerReferences"] = json!([owner, other, owner]);
    let said = |when: &str| {
        vec![format!(
            "299 - \".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in \
             1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: u1\""
        )]
    };
    let made = api.post(MAPS, &map).await;
    assert_eq!(made.json()["metadata"]["ownerReferences"], json!([owner, other]));
    assert_eq!(made.warnings(), said(""));
    let path = format!("{MAPS}/c");
    let put = api.put(&path, &map).await;
    assert_eq!((put.code.as_u16(), put.warnings()), (200, said("")));
    let change = json!({"metadata": {"ownerReferences": [owner, owner]}});
    let patched = api.patch(&path, "merge-patch+json", &change).await;
    assert_eq!(patched.json()["metadata"]["ownerReferences"], json!([owner]));
    assert_eq!(patched.warnings(), said(" after mutating admission happens"));
}

#[tokio::test]
async fn accounts_keep_names_of_secrets() {
    let api = Api::start().await;
    let path = "/api/v1/namespaces/default/serviceaccounts";
    let account = json!({"metadata": {"name": "a"}, "secrets": [{"name": "s", "namespace": "b", "kind": "Secret"}]});
    let made = api.post(path, &account).await.json();
    assert_eq!(made["secrets"], json!([{"name": "s"}]));
}
