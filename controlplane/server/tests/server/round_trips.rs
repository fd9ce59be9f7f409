//! Every kind through the whole server: applied, applied again, patched with nothing, and read in each encoding.

use crate::support::Api;
use api::kind::Scope;
use api::{KINDS, Registration, protobuf};
use http::Method;
use serde_json::{Value, json};

/// The fixture of a kind, which its own tests use.
fn fixture(row: &Registration) -> Value {
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap() + "/../api/tests/kinds/fixtures";
    let kind = row.kind.to_lowercase();
    let names = [
        format!("{folder}/{kind}.{}.{}.yaml", row.group, row.version),
        format!("{folder}/{kind}.{}.yaml", row.group),
        format!("{folder}/{kind}.yaml"),
    ];
    let text = names.iter().find_map(|name| std::fs::read(name).ok());
    api::yaml::to_json(&text.unwrap_or_else(|| panic!("no fixture of {kind}")))
        .unwrap()
        .value
}

/// Path of an object of the kind.
fn path(row: &Registration, object: &Value) -> String {
    let base = if row.group.is_empty() { "/api" } else { "/apis" };
    let place = match row.scope {
        Scope::Cluster => String::new(),
        Scope::Namespaced => format!(
            "namespaces/{}/",
            object["metadata"]["namespace"].as_str().unwrap_or("default")
        ),
    };
    let name = object["metadata"]["name"].as_str().unwrap();
    format!("{base}/{}/{place}{}/{name}", row.api_version(), row.plural)
}

/// Removes what protobuf cannot represent: nulls, and type metadata of claim templates.
fn plain(mut value: Value) -> Value {
    fn strip(value: &mut Value) {
        if let Value::Object(members) = value {
            members.retain(|_, member| !member.is_null());
            let claims = members.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut);
            for claim in claims.into_iter().flatten().filter_map(Value::as_object_mut) {
                claim.retain(|name, _| name != "apiVersion" && name != "kind");
            }
            members.values_mut().for_each(strip);
        } else if let Value::Array(items) = value {
            items.iter_mut().for_each(strip);
        }
    }
    strip(&mut value);
    value
}

/// Round trips of an object through each encoding and verb; returns the differences.
async fn trip(api: &Api, row: &Registration) -> Vec<String> {
    let mut object = fixture(row);
    // A manager that applies only a name owns no fields and is removed.
    object["metadata"]["labels"]["round"] = json!("trip");
    object["metadata"]["uid"].take();
    let path = path(row, &object);
    let apply = async || api.apply(&path, "fieldManager=me&force=true", object.to_string()).await;
    let first = apply().await;
    if !first.code.is_success() {
        return vec![format!("{path}: {}", first.text())];
    }
    let first = first.json();
    let accept = [("accept", protobuf::MEDIA_TYPE)];
    let read = api.request(Method::GET, &path, &accept, "").await;
    let decoded = protobuf::decode(&read.bytes).unwrap().json;
    let content = [("content-type", protobuf::MEDIA_TYPE), accept[0]];
    let sent = api.request(Method::PUT, &path, &content, read.bytes.clone()).await;
    let sent = protobuf::decode(&sent.bytes).unwrap().json;
    let outcomes = [
        ("in protobuf", decoded, plain(first.clone())),
        ("sent back in protobuf", sent, plain(first.clone())),
        ("applied again", apply().await.json(), first.clone()),
        (
            "patched with nothing",
            api.patch(&path, "strategic-merge-patch+json", &json!({})).await.json(),
            first.clone(),
        ),
        ("replaced by itself", api.put(&path, &first).await.json(), first.clone()),
    ];
    // References in it must not affect the other objects.
    api.delete(&path, "").await;
    outcomes
        .into_iter()
        .filter(|(_, found, wanted)| found != wanted)
        .map(|(way, found, wanted)| format!("{path} {way}:\n  found  {found}\n  wanted {wanted}"))
        .collect()
}

#[tokio::test]
async fn every_kind_is_the_same_after_each_way() {
    let api = Api::start().await;
    // Account that fixtures reference.
    api.account("default", "builder").await;
    let mut complaints = Vec::new();
    let rows: Vec<_> = KINDS.iter().filter(|row| row.verbs.are_stored()).collect();
    for row in &rows {
        complaints.extend(trip(&api, row).await);
    }
    assert!(rows.len() > 40);
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
