//! The server's record of its last writes, for clusters without an audit log here: the same times,
//! in the form of audit events.

use serde_json::{Value, json};

use crate::client::api::{Api, text_at};
use crate::client::pods::Owned;
use crate::client::resource::Resources;

/// Returns writes of the object, its makers and its pods, as far as the server has them and the
/// user may read them.
pub(super) async fn read(api: &Api, resources: &Resources, own: &str, namespace: &str, owned: &Owned) -> Vec<Value> {
    let mut found = of(api, own, &[&owned.target]).await;
    if let Some(maker) = owned.makers.first()
        && let Ok(resource) = resources.find(&text_at(maker, "/kind").to_lowercase())
    {
        found.extend(of(api, &resource.collection(Some(namespace)), &[maker]).await);
    }
    let pods: Vec<&Value> = owned.pods.iter().collect();
    found.extend(of(api, &format!("/api/v1/namespaces/{namespace}/pods"), &pods).await);
    found
}

async fn of(api: &Api, path: &str, objects: &[&Value]) -> Vec<Value> {
    let told = api.get(&format!("/ui/writes{path}")).await.unwrap_or_default();
    let writes = told.get("writes").and_then(Value::as_array).into_iter().flatten();
    let mut entries: Vec<Value> = Vec::new();
    // The last creation with a name is that of the current object.
    for write in writes.rev() {
        let name = text_at(write, "/name");
        let named = |object: &&&Value| text_at(object, "/metadata/name") == name;
        let Some(object) = objects.iter().find(named) else {
            continue;
        };
        let (verb, subresource) = (text_at(write, "/verb"), text_at(write, "/subresource"));
        let known = |entry: &Value| text_at(entry, "/objectRef/name") == name && is_creation(entry);
        if entries.iter().any(known) {
            continue;
        }
        entries.push(json!({
            "verb": verb,
            "objectRef": {"name": name, "subresource": subresource},
            "responseObject": {"metadata": {"name": name, "uid": text_at(object, "/metadata/uid")}},
            "requestReceivedTimestamp": text_at(write, "/received"),
            "stageTimestamp": text_at(write, "/stored"),
        }));
    }
    entries.reverse();
    entries
}

fn is_creation(entry: &Value) -> bool {
    text_at(entry, "/verb") == "create" && text_at(entry, "/objectRef/subresource").is_empty()
}
