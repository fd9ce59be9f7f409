//! Rules of definitions, the names that they take, and their end.

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::definitions::{DEFINITIONS, TABS, condition, define, eventually, started, tab, tabs};
use crate::support::Api;

#[tokio::test]
async fn names_belong_to_who_came_first() {
    let api = started().await;
    let healed = api.server.clone();
    let mut upkeep = JoinSet::new();
    upkeep.spawn(async move { healed.heal().await });
    let mut other = tabs();
    other["metadata"]["name"] = json!("others.example.com");
    other["spec"]["names"] = json!({"plural": "others", "kind": "Tab", "shortNames": ["tb"]});
    let made = define(&api, &other).await;
    let refused = condition(&made, "NamesAccepted");
    assert_eq!(
        (&refused["status"], &refused["reason"]),
        (&json!("False"), &json!("ListKindConflict"))
    );
    assert_eq!(refused["message"], "\"TabList\" is already in use");
    assert_eq!(condition(&made, "Established")["reason"], "NotAccepted");
    assert_eq!(made["status"]["acceptedNames"]["kind"], "");
    assert_eq!(api.get("/apis/example.com/v1/others").await.code, 404);
    let first = format!("{DEFINITIONS}/tabs.example.com");
    api.delete(&first, "").await;
    eventually(&api, &first, |answer| answer.code == 404).await;
    eventually(&api, "/apis/example.com/v1/others", |answer| answer.code == 200).await;
}

#[tokio::test]
async fn what_the_program_serves_cannot_be_taken() {
    let api = Api::start().await;
    let mut taken = tabs();
    taken["metadata"]["name"] = json!("ingresses.networking.k8s.io");
    taken["spec"]["group"] = json!("networking.k8s.io");
    taken["spec"]["names"] = json!({"plural": "ingresses", "kind": "Fake"});
    let refused = api.post(DEFINITIONS, &taken).await;
    assert_eq!(refused.code, 422);
    assert!(
        refused.message().contains(
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation"
        ),
        "{}",
        refused.text()
    );
    taken["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, a test"});
    let made = define(&api, &taken).await;
    assert_eq!(condition(&made, "NamesAccepted")["reason"], "PluralConflict");
    assert_eq!(
        condition(&made, "KubernetesAPIApprovalPolicyConformant")["reason"],
        "UnapprovedAnnotation"
    );
    let ingress = api.get("/apis/networking.k8s.io/v1").await.json();
    let kinds = ingress["resources"].as_array().unwrap();
    assert!(kinds.iter().any(|own| own["kind"] == "Ingress") && !kinds.iter().any(|own| own["kind"] == "Fake"));
    let mut core = tabs();
    core["metadata"]["name"] = json!("tabs.apps");
    core["spec"]["group"] = json!("apps");
    let refused = api.post(DEFINITIONS, &core).await;
    assert!(
        refused.message().contains("should be a domain with at least one dot"),
        "{}",
        refused.text()
    );
}

#[tokio::test]
async fn a_definition_goes_with_its_objects() {
    let api = started().await;
    let all = (0..10_000).map(|number| (TABS.to_owned(), tab(&format!("t{number}"), &json!({}))));
    api.create_at_once(all).await;
    let mut held = tab("held", &json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post(TABS, &held).await;
    let path = format!("{DEFINITIONS}/tabs.example.com");
    let deleted = api.delete(&path, "").await.json();
    assert_eq!(
        deleted["metadata"]["finalizers"],
        json!(["customresourcecleanup.apiextensions.k8s.io"])
    );
    assert_eq!(condition(&deleted, "Terminating")["reason"], "InstanceDeletionPending");
    let late = api.post(TABS, &tab("late", &json!({}))).await;
    assert_eq!(
        (late.code.as_u16(), late.message().as_str()),
        (
            403,
            "tabs.example.com \"late\" is forbidden: create not allowed while custom resource definition is terminating"
        )
    );
    let healed = api.server.clone();
    let mut upkeep = JoinSet::new();
    upkeep.spawn(async move { healed.heal().await });
    let left = eventually(&api, &format!("{TABS}?limit=2"), |answer| {
        answer.json()["items"].as_array().unwrap().len() == 1
    })
    .await;
    assert_eq!(left.json()["items"][0]["metadata"]["name"], "held");
    eventually(&api, &path, |answer| {
        condition(&answer.json(), "Terminating")["reason"] == "InstanceDeletionInProgress"
    })
    .await;
    let free = json!({"metadata": {"finalizers": null}});
    api.patch(&format!("{TABS}/held"), "merge-patch+json", &free).await;
    eventually(&api, &path, |answer| answer.code == 404).await;
    assert_eq!(api.get(TABS).await.code, 404);
    define(&api, &tabs()).await;
    assert_eq!(api.get(TABS).await.json()["items"], json!([]), "nothing has come back");
}

#[tokio::test]
async fn what_is_wrong_with_a_definition_is_told_in_upstreams_words() {
    let api = Api::start().await;
    let cases: [(&str, Value, &str); 10] = [
        (
            "/metadata/name",
            json!("x.example.com"),
            "metadata.name: Invalid value: \"x.example.com\": must be spec.names.plural+\".\"+spec.group",
        ),
        (
            "/spec/scope",
            json!("Galaxy"),
            "spec.scope: Unsupported value: \"Galaxy\": supported values: \"Cluster\", \"Namespaced\"",
        ),
        (
            "/spec/names/kind",
            json!("Tab!"),
            "spec.names.kind: Invalid value: \"Tab!\": may have mixed case, but should otherwise match: a DNS-1035 label",
        ),
        (
            "/spec/versions/0/storage",
            json!(false),
            "must have exactly one version marked as storage version",
        ),
        (
            "/spec/versions",
            json!(null),
            "spec.versions: Invalid value: null: must have exactly one version marked as storage version",
        ),
        (
            "/spec/versions/0/schema",
            json!(null),
            "spec.versions[0].schema.openAPIV3Schema: Required value",
        ),
        (
            "/spec/preserveUnknownFields",
            json!(true),
            "spec.preserveUnknownFields: Invalid value: true: cannot set to true",
        ),
        (
            "/spec/versions/0/additionalPrinterColumns/0/type",
            json!("int"),
            "spec.additionalPrinterColumns[0].type: Invalid value: \"int\": must be one of boolean,date,integer,number,string",
        ),
        (
            "/spec/versions/0/subresources/scale/specReplicasPath",
            json!(".status.x"),
            "spec.subresources.scale.specReplicasPath: Invalid value: \".status.x\": should be a json path under .spec",
        ),
        (
            "/spec/conversion",
            json!({"strategy": "Webhook"}),
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
        ),
    ];
    for (pointer, value, message) in cases {
        let mut definition = tabs();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        definition.pointer_mut(parent).unwrap()[name] = value;
        let refused = api.post(DEFINITIONS, &definition).await;
        assert_eq!(refused.code, 422, "{pointer}: {}", refused.text());
        assert!(refused.message().contains(message), "{pointer}: {}", refused.text());
    }
}

#[tokio::test]
async fn the_kind_of_a_definition_stays() {
    let api = Api::start().await;
    define(&api, &tabs()).await;
    let path = format!("{DEFINITIONS}/tabs.example.com");
    let renamed = api
        .patch(
            &path,
            "merge-patch+json",
            &json!({"spec": {"names": {"kind": "Tabby"}}}),
        )
        .await;
    assert!(
        renamed
            .message()
            .contains("spec.names.kind: Invalid value: \"Tabby\": field is immutable"),
        "{}",
        renamed.text()
    );
}

#[tokio::test]
async fn quotas_count_and_roles_bind() {
    let api = started().await;
    let quota = json!({
        "metadata": {"name": "q"}, "spec": {"hard": {"count/tabs.example.com": "1"}},
        "status": {"hard": {"count/tabs.example.com": "1"}, "used": {"count/tabs.example.com": "0"}},
    });
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let made = api.post(quotas, &quota).await;
    assert_eq!(made.code, 201, "{}", made.text());
    api.patch(
        &format!("{quotas}/q/status"),
        "merge-patch+json",
        &json!({"status": quota["status"]}),
    )
    .await;
    assert_eq!(api.post(TABS, &tab("a", &json!({}))).await.code, 201);
    let over = api.post(TABS, &tab("b", &json!({}))).await;
    assert_eq!(over.code, 403, "{}", over.text());
    assert!(
        over.message()
            .contains("exceeded quota: q, requested: count/tabs.example.com=1"),
        "{}",
        over.text()
    );
}

#[tokio::test]
async fn deep_and_large_schemas_do_no_harm() {
    let api = Api::start().await;
    let mut deep = json!({"type": "string"});
    for _ in 0..1000 {
        deep = json!({"type": "object", "properties": {"a": deep}});
    }
    let mut definition = tabs();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = deep;
    let refused = api.post(DEFINITIONS, &definition).await;
    assert_eq!(refused.code, 400, "{}", refused.text());
    assert!(refused.message().contains("exceeded max depth"), "{}", refused.text());
    let long = "x".repeat(120);
    let many: serde_json::Map<String, Value> = (0..6000)
        .map(|number| (format!("field{number}"), json!({"type": "string", "description": long})))
        .collect();
    let mut definition = tabs();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] =
        json!({"type": "object", "properties": many});
    definition["spec"]["versions"][0]["selectableFields"] = Value::Null;
    let answer = api.post(DEFINITIONS, &definition).await;
    assert_eq!(answer.code, 201, "{}", answer.text());
    let made = api.post(TABS, &tab("a", &json!({"field5999": "last", "no": 1}))).await;
    assert_eq!(made.json()["spec"], json!({"field5999": "last"}));
}

#[tokio::test]
async fn formats_that_are_not_checked_are_warned_of_once() {
    let api = Api::start().await;
    let mut odd = tabs();
    let schema = json!({"type": "object", "properties": {
        "at": {"type": "string", "format": "date-time"},
        "size": {"type": "integer", "format": "int64"},
        "port": {"type": "string", "format": "int64"},
        "all": {"type": "array", "items": {"type": "string", "format": "colour"}},
        "more": {"type": "object", "additionalProperties": {"type": "string", "format": "colour"}},
    }});
    let version = &mut odd["spec"]["versions"][0];
    version["schema"]["openAPIV3Schema"] = schema;
    version.as_object_mut().unwrap().remove("selectableFields");
    let made = api.post(DEFINITIONS, &odd).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let warnings = ["colour", "int64"].map(|format| format!("299 - \"unrecognized format \\\"{format}\\\"\""));
    assert_eq!(made.warnings(), warnings);
    let mut more = made.json();
    let path = format!("{DEFINITIONS}/tabs.example.com");
    more["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["name"] =
        json!({"type": "string", "format": "word"});
    let kept = api.put(&path, &more).await;
    assert_eq!(
        kept.warnings(),
        ["299 - \"unrecognized format \\\"word\\\"\""],
        "{}",
        kept.text()
    );
}
