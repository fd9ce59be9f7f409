//! Bodies that cannot be read.

use std::time::Duration;

use crate::support::{Api, at_once, config_map, deployment, pod};
use http::Method;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

#[tokio::test]
async fn unreadable_bodies_are_told_in_upstreams_words() {
    let api = Api::start().await;
    for (body, expected) in [
        (
            r#"{"kind":"Thing"}"#,
            r#"Thing in version "v1" cannot be handled as a ConfigMap: no kind "Thing" is registered for version "v1" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
        (
            r#"{"apiVersion":"apps/v9"}"#,
            r#"ConfigMap in version "v9" cannot be handled as a ConfigMap: no kind "ConfigMap" is registered for version "apps/v9" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
        (
            r#"{"data":{"a":1}}"#,
            r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type string"#,
        ),
        (
            r#"{"kind":5}"#,
            r#"the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string ({"kind":5})"#,
        ),
        (
            r#"{"data":{"a":"#,
            r#"the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input ({"data":{"a":)"#,
        ),
        (
            "[]",
            r#"the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" } (5b5d)"#,
        ),
    ] {
        let json = [("content-type", "application/json")];
        let answer = api.request(Method::POST, CONFIG_MAPS, &json, body).await;
        assert_eq!((answer.code.as_u16(), answer.message().as_str()), (400, expected));
    }
    api.post(CONFIG_MAPS, &config_map("a")).await;
    let path = format!("{CONFIG_MAPS}/a");
    let merge = [("content-type", "application/merge-patch+json")];
    let answer = api.request(Method::PATCH, &path, &merge, "{").await;
    assert_eq!(answer.message(), "error decoding patch: unexpected end of JSON input");
    for (patch, because) in [
        (
            r#"{"kind":"Secret"}"#,
            "converting (v1.Secret) to (core.ConfigMap): unknown conversion",
        ),
        (
            r#"{"apiVersion":"v9"}"#,
            r#"no kind "ConfigMap" is registered for version "v9" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
        (
            r#"{"data":{"a":1}}"#,
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
        ),
    ] {
        let answer = api.request(Method::PATCH, &path, &merge, patch).await;
        assert_eq!(answer.code, 422);
        assert!(answer.message().ends_with(because), "{}", answer.message());
    }
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}});
    assert_eq!(
        api.post("/api/v1/namespaces/default/events", &event).await.message(),
        "the API version in the data (events.k8s.io/v1) does not match the expected API version (v1)"
    );
}

/// Each of these took minutes, or gigabytes, when every error was reported in full.
#[tokio::test]
async fn attack_24_what_is_refused_is_refused_in_few_words() {
    let api = Api::start().await;
    let json = [("content-type", "application/json")];
    let twice: Vec<String> = (0..100)
        .map(|number| format!(r#""a{number}":1,"a{number}":1"#))
        .collect();
    let key = "K".repeat(2_900_000);
    let long_path = format!(r#"{{"metadata":{{"name":"a"}},"{key}":{{{}}}}}"#, twice.join(","));
    let labels: Vec<String> = (0..150_000).map(|number| format!(r#""_{number}":"""#)).collect();
    let labels = format!(r#"{{"metadata":{{"name":"a","labels":{{{}}}}}}}"#, labels.join(","));
    let owner =
        |uid: usize| format!(r#"{{"apiVersion":"v1","kind":"Pod","name":"a","uid":"{uid}","controller":true}}"#);
    let owners = (0..8_000).map(owner).collect::<Vec<_>>().join(",");
    let owners = format!(r#"{{"metadata":{{"name":"a","ownerReferences":[{owners}]}}}}"#);
    let strict = format!("{CONFIG_MAPS}?fieldValidation=Strict");
    for (path, body, code) in [
        (strict.as_str(), long_path.clone(), 400),
        (CONFIG_MAPS, labels, 422),
        (CONFIG_MAPS, owners, 422),
    ] {
        let answer = api.request(Method::POST, path, &json, body).await;
        let said = answer.text().len();
        assert_eq!(answer.code, code, "{said} bytes");
        assert!(said < 600 << 10, "{said} bytes are answered");
    }
    let answer = api.request(Method::POST, CONFIG_MAPS, &json, long_path).await;
    let warned: usize = answer.warnings().iter().map(String::len).sum();
    assert!(warned < 600 << 10, "{warned} bytes of warnings");
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let scopes = json!({"metadata": {"name": "a"}, "spec": {"scopes": vec!["X"; 100_000]}});
    let answer = api.post(quotas, &scopes).await;
    assert_eq!(answer.code, 422);
    let said = answer.text().len();
    assert!(said < 600 << 10, "{said} bytes are answered");
    assert!(answer.text().contains("unsupported scope"));
    let few = json!({"metadata": {"name": "a", "labels": {"-": "-"}}});
    let answer = api.post(CONFIG_MAPS, &few).await;
    assert!(!answer.message().contains("more errors"), "{}", answer.message());
}

/// A single worker thread: it neither decodes and checks the three megabytes, nor makes the document.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn attack_24_a_heavy_request_holds_up_no_light_one() {
    let api = Api::start().await;
    let environment: Vec<Value> = (0..8_000)
        .map(|number| json!({"name": format!("N{number}"), "value": "v".repeat(300)}))
        .collect();
    let mut heavy = pod("heavy");
    heavy["spec"]["containers"][0]["env"] = environment.into();
    let posted = format!("{PODS}?dryRun=All");
    for (method, path, body, code) in [
        (Method::POST, posted, heavy.to_string(), 201_u16),
        (Method::GET, "/openapi/v2".to_owned(), String::new(), 200),
    ] {
        let mut asking = JoinSet::new();
        let (asker, api) = (api.clone(), api.clone());
        asking.spawn(async move {
            let json = [("content-type", "application/json")];
            asker.request(method, &path, &json, body).await
        });
        let mut meanwhile = JoinSet::new();
        meanwhile.spawn(async move {
            let mut answered = 0;
            loop {
                if let Some(heavy) = asking.try_join_next() {
                    return (answered, heavy.unwrap());
                }
                assert_eq!(api.get("/api/v1/namespaces/default").await.code, 200);
                answered += 1;
                tokio::task::yield_now().await;
            }
        });
        let (answered, heavy) = meanwhile.join_next().await.unwrap().unwrap();
        assert_eq!(heavy.code, code, "{}", heavy.message());
        assert!(answered >= 100, "{answered} light requests were answered meanwhile");
    }
}

/// Requests with heavy bodies and heavy answers do not deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attack_24_heavy_requests_do_not_wait_for_each_other() {
    let api = Api::start().await;
    let big = json!({"metadata": {"name": "big"}, "data": {"a": "x".repeat(900_000)}});
    assert_eq!(api.post(CONFIG_MAPS, &big).await.code, 201);
    let lists = (0..12).map(|_| {
        let api = api.clone();
        async move {
            let yaml = [("accept", "application/yaml")];
            let padding = "x".repeat(300_000);
            api.request(Method::GET, CONFIG_MAPS, &yaml, padding)
                .await
                .code
                .as_u16()
        }
    });
    let all = tokio::time::timeout(Duration::from_mins(2), at_once(lists)).await;
    assert_eq!(all.unwrap(), [200; 12]);
}

/// Each of these took a minute or more when duplicates were found by comparing all pairs.
#[tokio::test]
async fn attack_24_many_names_are_compared_once() {
    let api = Api::start().await;
    let keys: Vec<String> = (0..200_000).map(|number| format!("k{number}")).collect();
    let driver = json!({"name": "d", "nodeID": "n", "topologyKeys": keys});
    let csi_node = json!({"metadata": {"name": "a"}, "spec": {"drivers": [driver]}});
    let expressions = json!([{"matchLabelExpressions": [{"key": "k", "values": keys}]}]);
    let class = json!({"metadata": {"name": "a"}, "provisioner": "p", "allowedTopologies": expressions});
    let ranges: Vec<String> = (0..100_000)
        .map(|number| format!("10.{}.{}.0/24", number / 256 % 256, number % 256))
        .collect();
    let node = json!({"metadata": {"name": "a"}, "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ranges}});
    let work = async {
        for (path, object, code) in [
            ("/apis/storage.k8s.io/v1/csinodes", csi_node, 201),
            ("/apis/storage.k8s.io/v1/storageclasses", class, 201),
            ("/api/v1/nodes", node, 422),
        ] {
            let answer = api.post(&format!("{path}?dryRun=All"), &object).await;
            assert_eq!(answer.code, code, "{}", answer.message());
        }
        let owners: Vec<Value> = (0..8_000)
            .map(|number| json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": format!("u{number}")}))
            .collect();
        let mut owned = config_map("owned");
        owned["metadata"]["ownerReferences"] = owners.into();
        api.post(CONFIG_MAPS, &owned).await;
        let gone: Vec<Value> = (0..8_000)
            .map(|number| json!({"$patch": "delete", "uid": format!("u{number}")}))
            .collect();
        let patch = json!({"metadata": {"ownerReferences": gone}});
        let owned_path = format!("{CONFIG_MAPS}/owned");
        let answer = api.patch(&owned_path, "strategic-merge-patch+json", &patch).await;
        assert_eq!(answer.json()["metadata"].get("ownerReferences"), None);
        let managers: Vec<Value> = (0..8_000)
            .map(|number| {
                json!({
                    "manager": format!("m{number}"), "operation": "Apply", "apiVersion": "v1",
                    "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {}},
                })
            })
            .collect();
        let patch = json!({"metadata": {"managedFields": managers}});
        assert_eq!(api.patch(&owned_path, "merge-patch+json", &patch).await.code, 200);
        for number in 0..5 {
            let patch = json!({"data": {"number": number.to_string()}});
            assert_eq!(api.patch(&owned_path, "merge-patch+json", &patch).await.code, 200);
        }
    };
    tokio::time::timeout(Duration::from_mins(1), work).await.unwrap();
}

/// The server's own mounts and defaults make more of such a pod than a body may be.
#[tokio::test]
async fn attack_24_what_was_accepted_can_be_read_changed_and_deleted() {
    let api = Api::start().await;
    let mut large = pod("large");
    let containers = (0..4_200).map(|number| json!({"name": format!("c{number}"), "image": "x"}));
    large["spec"]["containers"] = containers.collect();
    let made = api.post(PODS, &large).await;
    assert_eq!(made.code, 201, "{}", made.message());
    let labels: Map<String, Value> = (0..40_000).map(|number| (format!("k{number}"), json!(""))).collect();
    let mut labelled = config_map("labelled");
    labelled["data"] = labels.into();
    assert_eq!(api.post(CONFIG_MAPS, &labelled).await.code, 201);
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    for path in [
        PODS,
        CONFIG_MAPS,
        &format!("{PODS}/large"),
        &format!("{CONFIG_MAPS}/labelled"),
    ] {
        let answer = api.request(Method::GET, path, &table, "").await;
        assert_eq!(answer.code, 200, "{path}: {}", answer.message());
    }
    let path = format!("{PODS}/large");
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    for kind in ["merge-patch+json", "strategic-merge-patch+json"] {
        let answer = api.patch(&path, kind, &label).await;
        assert_eq!(answer.code, 200, "{}", answer.message());
    }
    let answer = api.delete(&path, "").await;
    assert_eq!(answer.code, 200, "{}", answer.message());
}

/// Lists nest their items, and readers with a limit of 128 levels must be able to parse them.
#[tokio::test]
async fn attack_24_what_is_deep_is_refused_however_small() {
    let api = Api::start().await;
    api.post(CONFIG_MAPS, &config_map("a")).await;
    let fields = (0..105).fold(json!({}), |inner, _| json!({"f:a": inner}));
    let entry =
        json!({"manager": "m", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields});
    let patch = json!({"metadata": {"managedFields": [entry]}});
    let stored = format!("{CONFIG_MAPS}/a");
    for kind in ["merge-patch+json", "strategic-merge-patch+json"] {
        let answer = api.patch(&stored, kind, &patch).await;
        assert_eq!(answer.code, 400);
        assert!(
            answer.message().ends_with("json: exceeded max depth"),
            "{}",
            answer.message()
        );
    }
    let mut made = config_map("b");
    made["metadata"]["managedFields"] = json!([entry]);
    assert_eq!(api.post(CONFIG_MAPS, &made).await.code, 400);
}

/// Each manager that applies an object adds to it.
#[tokio::test]
async fn attack_24_an_object_is_no_larger_than_a_body() {
    let api = Api::start().await;
    let data: Map<String, Value> = (0..60_000).map(|number| (format!("k{number}"), json!(""))).collect();
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
    let path = format!("{CONFIG_MAPS}/a");
    let mut answers = Vec::new();
    for number in 0..6 {
        answers.push(api.apply(&path, &format!("fieldManager=m{number}"), &applied).await);
    }
    let last = answers.pop().unwrap();
    assert_eq!((answers[0].code.as_u16(), last.code.as_u16()), (201, 500));
    assert_eq!(last.message(), "etcdserver: request is too large");
    let fewer = json!({"data": {"k0": null}});
    assert_eq!(api.patch(&path, "merge-patch+json", &fewer).await.code, 200);
    assert_eq!(api.delete(&path, "").await.code, 200);
}

#[tokio::test]
async fn attack_24_a_patch_that_spoils_its_object_is_refused_in_few_words() {
    let api = Api::start().await;
    api.post(CONFIG_MAPS, &config_map("a")).await;
    let patch = json!({"data": {"a": "\"".repeat(1_000_000), "b": 1}});
    let answer = api.patch(&format!("{CONFIG_MAPS}/a"), "merge-patch+json", &patch).await;
    let said = answer.text().len();
    assert_eq!(answer.code, 422);
    assert!(said < 600 << 10, "{said} bytes are answered");
}

#[tokio::test]
async fn texts_that_are_none_are_repaired() {
    let api = Api::start().await;
    let json = [("content-type", "application/json")];
    let body =
        b"{\"metadata\":{\"name\":\"a\"},\"data\":{\"a\":\"\\ud83d x\",\"b\":\"\xff\xfe\",\"c\":\"\\ud83d\\ude00\"}}";
    let made = api.request(Method::POST, CONFIG_MAPS, &json, body.to_vec()).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let path = format!("{CONFIG_MAPS}/a");
    let data = api.get(&path).await.json()["data"].clone();
    assert_eq!(
        data,
        json!({"a": "\u{fffd} x", "b": "\u{fffd}\u{fffd}", "c": "\u{1f600}"})
    );
    for (kind, patch) in [
        ("application/merge-patch+json", &b"{\"data\":{\"d\":\"\xe2\x82\"}}"[..]),
        (
            "application/strategic-merge-patch+json",
            b"{\"data\":{\"d\":\"\\ude00\xff\"}}",
        ),
        (
            "application/json-patch+json",
            b"[{\"op\":\"add\",\"path\":\"/data/d\",\"value\":\"\xff\\ud83d\"}]",
        ),
    ] {
        let headers = [("content-type", kind)];
        let patched = api.request(Method::PATCH, &path, &headers, patch.to_vec()).await;
        assert_eq!(patched.code, 200, "{kind}: {}", patched.text());
        assert_eq!(patched.json()["data"]["d"], "\u{fffd}\u{fffd}", "{kind}");
    }
    // A body that would grow too large by replacement characters is too large.
    let long = [&b"{\"data\":{\"a\":\""[..], &vec![0xff; 2 << 20], b"\"}}"].concat();
    assert_eq!(api.request(Method::POST, CONFIG_MAPS, &json, long).await.code, 413);
    let between = api.request(Method::POST, CONFIG_MAPS, &json, b"{}\xff".to_vec()).await;
    assert_eq!(between.code, 400);
}

#[tokio::test]
async fn bodies_that_are_something_else() {
    let api = Api::start().await;
    let answer = api.post(PODS, &config_map("a")).await;
    assert_eq!(answer.code, 400);
    assert_eq!(
        answer.message(),
        "ConfigMap in version \"v1\" cannot be handled as a Pod: converting (v1.ConfigMap) to (core.Pod): unknown conversion"
    );
    let answer = api.post(PODS, &deployment("a")).await;
    assert_eq!(
        answer.message(),
        "Deployment in version \"v1\" cannot be handled as a Pod: converting (v1.Deployment) to (core.Pod): unknown \
         conversion"
    );
    let answer = api
        .request(Method::POST, CONFIG_MAPS, &[("content-type", "text/csv")], "a,b")
        .await;
    assert_eq!(answer.code, 415);
    assert_eq!(
        answer.message(),
        "the body of the request was in an unknown format - accepted media types include: application/json, \
         application/yaml, application/vnd.kubernetes.protobuf"
    );
    let mut wrong = deployment("a");
    wrong["spec"]["replicas"] = json!("three");
    assert_eq!(
        api.post(DEPLOYMENTS, &wrong).await.message(),
        "Deployment in version \"v1\" cannot be handled as a Deployment: json: cannot unmarshal string into Go struct \
         field DeploymentSpec.spec.replicas of type int32"
    );
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yaml}\ndata: {a: b}\n";
    let answer = api
        .request(Method::POST, CONFIG_MAPS, &[("content-type", "application/yaml")], yaml)
        .await;
    assert_eq!(answer.code, 201, "{}", answer.text());
    let answer = api
        .request(
            Method::GET,
            &format!("{CONFIG_MAPS}/yaml"),
            &[("accept", "application/yaml")],
            "",
        )
        .await;
    assert!(answer.text().starts_with("apiVersion: v1\n"), "{}", answer.text());
}
