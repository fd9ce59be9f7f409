//! `APIGroupDiscoveryList` of `apidiscovery.k8s.io`.

use api::Registration;
use api::kind::Scope;
use serde_json::{Map, Value, json};

use super::{Version, verbs};
use crate::request::subresource;

/// Document of `api` (the core group) or `apis` (all other groups).
pub(super) fn document(groups: &[(&'static str, Vec<Version>)], path: &str) -> Value {
    let items: Vec<Value> = groups
        .iter()
        .filter(|(name, _)| name.is_empty() == (path == "api"))
        .map(|(name, versions)| {
            let mut metadata = Map::new();
            if !name.is_empty() {
                metadata.insert("name".to_owned(), Value::from(*name));
            }
            json!({"metadata": metadata, "versions": versions.iter().map(of_version).collect::<Vec<_>>()})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

fn of_version(version: &Version) -> Value {
    json!({
        "version": version.name,
        "resources": version.kinds.iter().map(|registration| resource(registration)).collect::<Vec<_>>(),
        "freshness": "Current",
    })
}

fn resource(registration: &Registration) -> Value {
    let mut resource = json!({
        "resource": registration.plural,
        "responseKind": {"group": registration.group, "version": registration.version, "kind": registration.kind},
        "scope": match registration.scope { Scope::Namespaced => "Namespaced", Scope::Cluster => "Cluster" },
        "singularResource": registration.singular,
        "verbs": verbs(registration),
    });
    let Some(members) = resource.as_object_mut() else {
        return resource;
    };
    if !registration.short_names.is_empty() {
        members.insert("shortNames".to_owned(), json!(registration.short_names));
    }
    if !registration.categories.is_empty() {
        members.insert("categories".to_owned(), json!(registration.categories));
    }
    let subresources: Vec<Value> = subresource::of(registration)
        .iter()
        .map(|own| {
            json!({
                "subresource": own.name,
                "responseKind": {"group": own.group, "version": own.version, "kind": own.kind},
                "verbs": own.verbs,
            })
        })
        .collect();
    if !subresources.is_empty() {
        members.insert("subresources".to_owned(), Value::from(subresources));
    }
    resource
}
