//! Admission webhooks: requests to them, and effects of their answers.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};

use crate::support::webhook::{MUTATING, Reply, VALIDATING, Webhook, configure, patched};
use crate::support::{Answer, Api, Kept, config_map, pod};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn told(answer: &Answer, code: u16, reason: &str, message: &str) {
    assert_eq!(answer.message(), message, "{}", answer.text());
    assert_eq!(
        (answer.code.as_u16(), answer.json()["reason"].as_str()),
        (code, Some(reason))
    );
    assert_eq!(answer.json()["code"], code);
}

fn says(status: &Value) -> Reply {
    Reply::Review(json!({"allowed": false, "status": status}))
}

#[tokio::test]
async fn a_mutating_webhook_changes_what_is_stored_and_defaults_are_set_again() {
    let api = Api::start().await;
    let extra = json!([{"op": "add", "path": "/spec/initContainers", "value": [{"name": "i", "image": "x"}]}]);
    let hook = Webhook::patching(extra).await;
    configure(&api, MUTATING, "one", json!([hook.entry("one.example.com")])).await;
    let made = api.post(&format!("{PODS}?fieldManager=me"), &pod("a")).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let container = &made.json()["spec"]["initContainers"][0];
    assert_eq!(container["name"], "i");
    assert_eq!(container["terminationMessagePath"], "/dev/termination-log");
    let asked = hook.requests();
    let request = &asked[0];
    assert_eq!(request["kind"], json!({"group": "", "version": "v1", "kind": "Pod"}));
    assert_eq!(
        request["resource"],
        json!({"group": "", "version": "v1", "resource": "pods"})
    );
    assert_eq!(
        (&request["requestKind"], &request["requestResource"]),
        (&request["kind"], &request["resource"])
    );
    assert_eq!(hook.brief(), ["CREATE pods default/a"]);
    assert_eq!(request["userInfo"]["username"], "kubernetes-admin");
    assert_eq!(
        (&request["dryRun"], &request["oldObject"]),
        (&json!(false), &Value::Null)
    );
    let options = json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me"});
    assert_eq!(request["options"], options);
    // Defaults of the built-in admission plugins are set, and so are the managers.
    assert_eq!(request["object"]["spec"]["serviceAccountName"], "default");
    assert_eq!(request["object"]["metadata"]["managedFields"][0]["manager"], "me");
    assert!(request.get("subResource").is_none());
}

#[tokio::test]
async fn a_validating_webhook_sees_the_whole_object_and_refuses_in_its_own_words() {
    let api = Api::start().await;
    let hook = Webhook::start(|review| match review["request"]["name"].as_str().unwrap_or_default() {
        "message" => says(&json!({"message": "too big"})),
        "reason" => says(&json!({"reason": "Because", "code": 418})),
        "silent" => Reply::Review(json!({"allowed": false})),
        "success" => says(&json!({"status": "Success", "code": 200, "message": "odd"})),
        _ => Reply::Review(json!({"allowed": true})),
    })
    .await;
    configure(&api, VALIDATING, "one", json!([hook.entry("one.example.com")])).await;
    let refused = |name: &'static str| {
        let api = &api;
        async move { api.post(MAPS, &config_map(name)).await }
    };
    let denied = "admission webhook \"one.example.com\" denied the request";
    let answer = refused("message").await;
    assert_eq!(
        (answer.code.as_u16(), answer.message()),
        (400, format!("{denied}: too big"))
    );
    assert_eq!(
        (&answer.json()["status"], answer.json().get("reason")),
        (&json!("Failure"), None)
    );
    told(&refused("reason").await, 418, "Because", &format!("{denied}: Because"));
    assert_eq!(
        refused("silent").await.message(),
        format!("{denied} without explanation")
    );
    let answer = refused("success").await;
    assert_eq!(
        (answer.code.as_u16(), &answer.json()["status"]),
        (400, &json!("Failure"))
    );
    let drawn = json!({"metadata": {"generateName": "drawn-"}});
    assert_eq!(api.post(MAPS, &drawn).await.code, 201);
    let requests = hook.requests();
    let last = requests.last().unwrap();
    assert!(last["name"].as_str().unwrap().starts_with("drawn-") && last["object"]["metadata"]["uid"].is_string());
    let audited = api.get(&format!("{MAPS}/message")).await;
    assert_eq!(audited.code, 404);
}

#[tokio::test]
async fn a_configuration_holds_from_the_moment_it_is_acknowledged_until_it_is_gone() {
    let api = Api::start().await;
    let hook = Webhook::refusing().await;
    for round in 0..3 {
        configure(&api, VALIDATING, "one", json!([hook.entry("one.example.com")])).await;
        assert_eq!(api.post(MAPS, &config_map("a")).await.code, 400, "{round}");
        let path = format!("{VALIDATING}/one");
        let mut own = api.get(&path).await.json();
        assert_eq!(own["metadata"]["generation"], 1);
        own["webhooks"][0]["rules"][0]["resources"] = json!(["secrets"]);
        let changed = api.put(&path, &own).await;
        assert_eq!(
            (changed.code.as_u16(), &changed.json()["metadata"]["generation"]),
            (200, &json!(2))
        );
        assert_eq!(api.post(MAPS, &config_map(&format!("b{round}"))).await.code, 201);
        assert_eq!(api.delete(&path, "").await.code, 200);
        assert_eq!(
            api.post(
                "/api/v1/namespaces/default/secrets?dryRun=All",
                &json!({"metadata": {"name": "s"}})
            )
            .await
            .code,
            201
        );
    }
    assert_eq!(hook.brief().len(), 3);
}

#[tokio::test]
async fn updates_show_both_objects_and_deletions_the_old_one() {
    let api = Api::start().await;
    assert_eq!(api.post(MAPS, &config_map("a")).await.code, 201);
    let hook = Webhook::admitting().await;
    configure(&api, VALIDATING, "one", json!([hook.entry("one.example.com")])).await;
    let path = format!("{MAPS}/a");
    let changed = api.patch(&path, "merge-patch+json", &json!({"data": {"a": "2"}})).await;
    assert_eq!(changed.code, 200, "{}", changed.text());
    let options =
        r#"{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,"propagationPolicy":"Background"}"#;
    assert_eq!(api.delete(&path, options).await.code, 200);
    assert_eq!(
        hook.brief(),
        ["UPDATE configmaps default/a", "DELETE configmaps default/a"]
    );
    let requests = hook.requests();
    let (update, delete) = (&requests[0], &requests[1]);
    assert_eq!(
        (&update["object"]["data"]["a"], &update["oldObject"]["data"]["a"]),
        (&json!("2"), &json!("1"))
    );
    assert_eq!(
        update["object"]["metadata"]["resourceVersion"],
        update["oldObject"]["metadata"]["resourceVersion"]
    );
    assert_eq!(update["options"]["kind"], "UpdateOptions");
    assert_eq!(
        (&delete["object"], &delete["oldObject"]["data"]["a"]),
        (&Value::Null, &json!("2"))
    );
    let options = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "gracePeriodSeconds": 0,
        "propagationPolicy": "Background"});
    assert_eq!(delete["options"], options);
}

#[tokio::test]
async fn a_deletion_that_is_refused_leaves_the_object() {
    let api = Api::start().await;
    assert_eq!(api.post(MAPS, &config_map("a")).await.code, 201);
    let hook = Webhook::refusing().await;
    configure(&api, VALIDATING, "one", json!([hook.entry("one.example.com")])).await;
    let path = format!("{MAPS}/a");
    let refused = api.delete(&path, "").await;
    assert_eq!(
        refused.message(),
        "admission webhook \"one.example.com\" denied the request: no"
    );
    assert_eq!(api.get(&path).await.code, 200);
    let all = api.request(Method::DELETE, MAPS, &[], "").await;
    assert_eq!(all.code, 400, "{}", all.text());
    assert_eq!(
        hook.brief(),
        ["DELETE configmaps default/a", "DELETE configmaps default/"]
    );
}

#[tokio::test]
async fn mutating_webhooks_come_one_after_the_other_in_the_order_of_their_names() {
    let api = Api::start().await;
    let step = |from: &'static str, to: &'static str| {
        Webhook::patching(json!([{"op": "test", "path": "/data/a", "value": from},
            {"op": "replace", "path": "/data/a", "value": to}]))
    };
    let (first, second) = (step("1", "2").await, step("2", "3").await);
    configure(&api, MUTATING, "b", json!([second.entry("a.example.com")])).await;
    configure(&api, MUTATING, "a", json!([first.entry("b.example.com")])).await;
    let last = Webhook::admitting().await;
    configure(&api, VALIDATING, "a", json!([last.entry("c.example.com")])).await;
    let made = api.post(MAPS, &config_map("a")).await;
    assert_eq!(
        (made.code.as_u16(), &made.json()["data"]["a"]),
        (201, &json!("3")),
        "{}",
        made.text()
    );
    assert_eq!(last.requests()[0]["object"]["data"]["a"], "3");
}

#[tokio::test]
async fn who_wants_to_see_later_changes_is_asked_again_and_once_only() {
    let api = Api::start().await;
    let (again, never) = (Webhook::admitting().await, Webhook::admitting().await);
    let change = Webhook::start(|review| {
        let count = review["request"]["object"]["data"]
            .as_object()
            .map_or(0, serde_json::Map::len);
        patched(&json!([{"op": "add", "path": format!("/data/n{count}"), "value": "x"}]))
    })
    .await;
    let mut entry = again.entry("again.example.com");
    entry["reinvocationPolicy"] = json!("IfNeeded");
    let mut changing = change.entry("change.example.com");
    changing["reinvocationPolicy"] = json!("IfNeeded");
    configure(
        &api,
        MUTATING,
        "a",
        json!([entry, never.entry("never.example.com"), changing]),
    )
    .await;
    let made = api.post(MAPS, &config_map("a")).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let counts = [&again, &never, &change].map(|hook| hook.requests().len());
    assert_eq!(counts, [2, 1, 1], "{}", made.text());
    assert_eq!(again.requests()[1]["object"]["data"], json!({"a": "1", "n1": "x"}));
}

#[tokio::test]
async fn warnings_and_annotations_reach_the_client_and_the_audit_log() {
    let kept = Arc::new(Kept::default());
    let sink = Arc::clone(&kept);
    let api = Api::start_with(|mut options| {
        options.audit = Some(sink);
        options
    })
    .await;
    let hook = Webhook::start(|_review| {
        Reply::Review(json!({"allowed": true, "warnings": ["mind the \"gap\""],
            "auditAnnotations": {"seen": "yes", "not a key": "no"}, "patchType": "JSONPatch",
            "patch": "W3sib3AiOiJhZGQiLCJwYXRoIjoiL2RhdGEvYiIsInZhbHVlIjoiJiJ9XQ=="}))
    })
    .await;
    let away = json!({"name": "away.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "failurePolicy": "Ignore", "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]});
    configure(
        &api,
        MUTATING,
        "m",
        json!([hook.entry("one.example.com"), away.clone()]),
    )
    .await;
    configure(&api, VALIDATING, "v", json!([away])).await;
    let made = api.post(MAPS, &config_map("a")).await;
    assert_eq!(made.code, 201, "{}", made.text());
    assert_eq!(made.warnings(), ["299 - \"mind the \\\"gap\\\"\""]);
    let records = kept.0.lock().unwrap().clone();
    let record = records
        .iter()
        .rfind(|record| record.verb == "create" && record.uri == MAPS)
        .unwrap();
    let mut found: Vec<String> = record
        .annotations
        .iter()
        .map(|(name, text)| format!("{name}={text}"))
        .collect();
    // A request that takes longer than half a second has its latencies, too.
    found.retain(|line| !line.starts_with("authorization") && !line.starts_with("apiserver.latency.k8s.io/"));
    found.sort();
    assert_eq!(
        found,
        [
            "failed-open.mutation.webhook.admission.k8s.io/round_0_index_1=away.example.com",
            "failed-open.validating.webhook.admission.k8s.io/round_0_index_0=away.example.com",
            "mutation.webhook.admission.k8s.io/round_0_index_0={\"configuration\":\"m\",\"webhook\":\"one.example.com\",\"mutated\":true}",
            "mutation.webhook.admission.k8s.io/round_0_index_1={\"configuration\":\"m\",\"webhook\":\"away.example.com\",\"mutated\":false}",
            "one.example.com/seen=yes",
            "patch.webhook.admission.k8s.io/round_0_index_0={\"configuration\":\"m\",\"webhook\":\"one.example.com\",\"patch\":[{\"op\":\"add\",\"path\":\"/data/b\",\"value\":\"\\u0026\"}],\"patchType\":\"JSONPatch\"}",
        ]
    );
    let metrics = api.get("/metrics").await.text();
    for line in [
        "apiserver_admission_webhook_request_total{name=\"one.example.com\",operation=\"CREATE\",type=\"admit\",code=\"200\",rejected=\"false\"} 1",
        "apiserver_admission_webhook_fail_open_count{name=\"away.example.com\",type=\"validating\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

#[tokio::test]
async fn who_cannot_be_called_is_told_in_upstreams_words() {
    let api = Api::start().await;
    let hook = Webhook::admitting().await;
    let path = format!("{VALIDATING}/one");
    let port = hook.address.port();
    let mut stranger = hook.entry("one.example.com");
    stranger["clientConfig"]["caBundle"] = json!(Webhook::admitting().await.bundle);
    let mut nobody = hook.entry("one.example.com");
    nobody["clientConfig"]["url"] = json!("https://127.0.0.1:1/a/../hook/");
    let mut other = hook.entry("one.example.com");
    other["clientConfig"]["url"] = json!(format!("https://127.0.0.1:{port}/hook"));
    let mut no_bundle = hook.entry("one.example.com");
    no_bundle["clientConfig"]["caBundle"] = json!("eA==");
    let prefix = "failed to call webhook: Post \"https://";
    for (entry, because) in [
        (
            stranger,
            format!(
                "{prefix}localhost:{port}/hook?timeout=10s\": tls: failed to verify certificate: x509: certificate signed by unknown authority"
            ),
        ),
        (
            nobody,
            format!("{prefix}127.0.0.1:1/hook?timeout=10s\": dial tcp 127.0.0.1:1: connect: connection refused"),
        ),
        (
            other,
            format!(
                "{prefix}127.0.0.1:{port}/hook?timeout=10s\": tls: failed to verify certificate: x509: cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs"
            ),
        ),
        (
            no_bundle,
            "could not get REST client: unable to load root certificates: unable to parse bytes as PEM block"
                .to_owned(),
        ),
    ] {
        configure(&api, VALIDATING, "one", json!([entry])).await;
        let answer = api.post(MAPS, &config_map("a")).await;
        let message = format!("Internal error occurred: failed calling webhook \"one.example.com\": {because}");
        told(&answer, 500, "InternalError", &message);
        assert_eq!(api.delete(&path, "").await.code, 200);
    }
    assert_eq!(hook.requests().len(), 0);
}

#[tokio::test]
async fn answers_that_are_no_reviews_of_the_question_count_for_nothing() {
    let api = Api::start().await;
    let hook = Webhook::start(|review| {
        let uid = review["request"]["uid"].clone();
        let json = |value: Value| Reply::Raw(200, Vec::new(), value.to_string().into_bytes());
        let of = |response: Value| json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        match review["request"]["name"].as_str().unwrap_or_default() {
            "absent" => json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"})),
            "uid" => json(of(json!({"uid": "x", "allowed": true}))),
            "kind" => json(json!({"response": {"uid": uid, "allowed": true}})),
            "patch" => json(of(json!({"uid": uid, "allowed": true, "patch": "W10="}))),
            "type" => json(of(json!({"uid": uid, "allowed": true, "patchType": "JSONPatch"}))),
            "text" => Reply::Raw(200, Vec::new(), b"hello".to_vec()),
            "empty" => Reply::Raw(200, Vec::new(), Vec::new()),
            "missing" => Reply::Raw(404, Vec::new(), b"not here".to_vec()),
            "broken" => Reply::Raw(500, vec![("content-type", "text/plain".into())], b"ouch\n".to_vec()),
            _ => Reply::Raw(403, Vec::new(), json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "go away"}).to_string().into_bytes()),
        }
    })
    .await;
    configure(&api, MUTATING, "one", json!([hook.entry("one.example.com")])).await;
    let uid = "expected response.uid=\"UID\", got \"x\"";
    for (name, because) in [
        (
            "absent",
            "received invalid webhook response: webhook response was absent",
        ),
        ("uid", uid),
        (
            "kind",
            "received invalid webhook response: expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind=",
        ),
        (
            "patch",
            "received invalid webhook response: webhook returned response.patch but not response.patchType",
        ),
        (
            "type",
            "received invalid webhook response: webhook returned response.patchType but not response.patch",
        ),
        (
            "text",
            "failed to call webhook: couldn't get version/kind; json parse error: invalid character 'h' looking for beginning of value",
        ),
        (
            "empty",
            "failed to call webhook: 0-length response with status code: 200 and content type: ",
        ),
        (
            "missing",
            "failed to call webhook: the server could not find the requested resource",
        ),
        (
            "broken",
            "failed to call webhook: an error on the server (\"ouch\") has prevented the request from succeeding",
        ),
        ("status", "failed to call webhook: go away"),
    ] {
        let answer = api.post(MAPS, &config_map(name)).await;
        let uid = hook.requests().last().unwrap()["uid"].as_str().unwrap().to_owned();
        let message = answer.message().replace(&uid, "UID");
        let prefix = "Internal error occurred: failed calling webhook \"one.example.com\": ";
        let told = message.strip_prefix(prefix).unwrap_or(&message).to_owned();
        let told = if name == "uid" {
            told.replace("received invalid webhook response: ", "")
        } else {
            told
        };
        assert_eq!((answer.code.as_u16(), told.as_str()), (500, because), "{name}");
    }
}

#[tokio::test]
async fn patches_that_do_not_apply_are_this_servers_error() {
    let api = Api::start().await;
    let hook = Webhook::start(|review| match review["request"]["name"].as_str().unwrap_or_default() {
        "type" => patched(&json!([{"op": "add", "path": "/data", "value": 1}])),
        "empty" => patched(&json!([])),
        "object" => patched(&json!({"op": "add"})),
        _ => patched(&json!([{"op": "remove", "path": "/data/none"}])),
    })
    .await;
    configure(&api, MUTATING, "one", json!([hook.entry("one.example.com")])).await;
    assert_eq!(api.post(MAPS, &config_map("empty")).await.code, 201);
    let answer = api.post(MAPS, &config_map("object")).await;
    let because = "received undecodable patch in webhook response: json: cannot unmarshal object into Go value of type jsonpatch.Patch";
    let message = format!("Internal error occurred: failed calling webhook \"one.example.com\": {because}");
    told(&answer, 500, "InternalError", &message);
    for name in ["type", "absent"] {
        let answer = api.post(MAPS, &config_map(name)).await;
        let message = answer.message();
        assert!(
            answer.code == 500 && message.starts_with("Internal error occurred: "),
            "{message}"
        );
        assert_eq!(api.get(&format!("{MAPS}/{name}")).await.code, 404);
    }
    // Nothing is there that a deletion could change.
    let refused = api.delete(&format!("{MAPS}/empty"), "").await;
    assert_eq!(refused.code, 200, "{}", refused.text());
}

#[tokio::test]
async fn a_dry_run_is_told_to_webhooks() {
    let api = Api::start().await;
    let hook = Webhook::admitting().await;
    configure(&api, VALIDATING, "one", json!([hook.entry("one.example.com")])).await;
    assert_eq!(
        api.post(&format!("{MAPS}?dryRun=All"), &config_map("a")).await.code,
        201
    );
    let request = &hook.requests()[0];
    assert_eq!(
        (&request["dryRun"], &request["options"]["dryRun"]),
        (&json!(true), &json!(["All"]))
    );
}

#[tokio::test]
async fn the_older_version_of_reviews_is_spoken_where_it_comes_first() {
    let api = Api::start().await;
    let hook = Webhook::start(|review| {
        assert_eq!(review["apiVersion"], "admission.k8s.io/v1beta1");
        // `v1beta1` checks neither uid nor kind, and has no patch type.
        let patch = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL2RhdGEvYiIsInZhbHVlIjoiMiJ9XQ==";
        let answer = json!({"response": {"allowed": true, "patch": patch}});
        Reply::Raw(200, Vec::new(), answer.to_string().into_bytes())
    })
    .await;
    let mut entry = hook.entry("one.example.com");
    entry["admissionReviewVersions"] = json!(["v9", "v1beta1", "v1"]);
    configure(&api, MUTATING, "one", json!([entry])).await;
    let made = api.post(MAPS, &config_map("a")).await;
    assert_eq!(made.json()["data"]["b"], "2", "{}", made.text());
}
