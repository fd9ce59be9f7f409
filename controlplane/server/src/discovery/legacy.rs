//! `APIVersions`, `APIGroupList`, `APIGroup` and `APIResourceList`.

use api::Registration;
use api::kind::Scope;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Version, verbs};
use crate::request::subresource;

/// Documents by path.
pub(super) fn documents(groups: &[(&'static str, Vec<Version>)], address: &str) -> Vec<(String, Value)> {
    let mut documents = Vec::new();
    let mut listed = Vec::new();
    let addresses = json!([{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]);
    for (name, versions) in groups {
        let base = if name.is_empty() {
            "api".to_owned()
        } else {
            format!("apis/{name}")
        };
        if name.is_empty() {
            let versions: Vec<&str> = versions.iter().map(|version| version.name).collect();
            let value = json!({"kind": "APIVersions", "versions": versions, "serverAddressByClientCIDRs": addresses});
            documents.push((base.clone(), value));
        } else {
            let group = group(name, versions);
            let mut document = json!({"kind": "APIGroup", "apiVersion": "v1"});
            merge(&mut document, &group);
            documents.push((base.clone(), document));
            listed.push(group);
        }
        for version in versions {
            documents.push((format!("{base}/{}", version.name), resources(name, version)));
        }
    }
    documents.push((
        "apis".to_owned(),
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}),
    ));
    documents
}

pub(super) fn merge(into: &mut Value, from: &Value) {
    if let (Some(into), Some(from)) = (into.as_object_mut(), from.as_object()) {
        into.extend(from.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
}

fn group(name: &str, versions: &[Version]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{name}/{}", version.name), "version": version.name}))
        .collect();
    json!({"name": name, "versions": versions, "preferredVersion": versions.first()})
}

fn resources(group: &str, version: &Version) -> Value {
    let group_version = if group.is_empty() {
        version.name.to_owned()
    } else {
        format!("{group}/{}", version.name)
    };
    let resources: Vec<Value> = version
        .kinds
        .iter()
        .flat_map(|registration| rows(registration))
        .collect();
    let mut document = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": resources});
    if !group.is_empty() {
        merge(&mut document, &json!({"apiVersion": "v1"}));
    }
    document
}

/// Hash of the storage version, which changes when objects are stored in another form.
fn storage_version(registration: &Registration) -> String {
    let (stored, kind) = (&registration.storage, registration.kind);
    // Upstream still stores these so (`pkg/controlplane/apiserver/apiextensions.go`,
    // `pkg/kubeapiserver/default_storage_factory_builder.go`).
    let version = match kind {
        "CustomResourceDefinition" | "MutatingAdmissionPolicy" | "MutatingAdmissionPolicyBinding" => "v1beta1",
        _ => stored.version,
    };
    let name = format!("{}/{version}/{kind}", stored.group);
    STANDARD.encode(Sha256::digest(name).get(..8).unwrap_or_default())
}

fn rows(registration: &Registration) -> Vec<Value> {
    let namespaced = registration.scope == Scope::Namespaced;
    let mut row = json!({
        "name": registration.plural,
        "singularName": registration.singular,
        "namespaced": namespaced,
        "kind": registration.kind,
        "verbs": verbs(registration),
    });
    if registration.verbs.are_stored() {
        merge(&mut row, &json!({"storageVersionHash": storage_version(registration)}));
    }
    if !registration.short_names.is_empty() {
        merge(&mut row, &json!({"shortNames": registration.short_names}));
    }
    if !registration.categories.is_empty() {
        merge(&mut row, &json!({"categories": registration.categories}));
    }
    let mut rows = vec![row];
    for own in subresource::of(registration) {
        let mut row = json!({
            "name": format!("{}/{}", registration.plural, own.name),
            "singularName": "",
            "namespaced": namespaced,
            "kind": own.kind,
            "verbs": own.verbs,
        });
        if own.group != registration.group {
            merge(&mut row, &json!({"group": own.group, "version": own.version}));
        }
        rows.push(row);
    }
    rows
}
