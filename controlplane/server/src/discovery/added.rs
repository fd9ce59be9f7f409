//! Group versions that other servers serve, among those of this server.

use std::cmp::Reverse;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::priorities;

/// A group version that another server serves.
pub(crate) struct Added {
    pub(crate) group: String,
    pub(crate) version: String,
    /// True if its server is available.
    pub(crate) is_current: bool,
    /// Priorities of the group and of the version.
    pub(crate) priority: (i32, i32),
    /// Its last known `APIResourceList`.
    pub(crate) resources: Option<Arc<Value>>,
}

impl Added {
    /// Adds it to the groups of an `APIGroupList`.
    pub(crate) fn to_legacy(&self, groups: &mut Vec<Value>) {
        let version = json!({"groupVersion": format!("{}/{}", self.group, self.version), "version": self.version});
        match groups.iter_mut().find(|group| text(group, "name") == self.group) {
            Some(group) => push(group, &version),
            None => groups.push(json!({"name": self.group, "versions": [version], "preferredVersion": version})),
        }
    }

    /// Adds it to the items of an `APIGroupDiscoveryList`.
    pub(crate) fn to_aggregated(&self, items: &mut Vec<Value>) {
        let freshness = if self.is_current { "Current" } else { "Stale" };
        let resources = self
            .resources
            .as_ref()
            .map(|list| self.aggregated(list))
            .unwrap_or_default();
        let version = json!({"version": self.version, "resources": resources, "freshness": freshness});
        let of_group = |item: &&mut Value| item.pointer("/metadata/name").and_then(Value::as_str) == Some(&self.group);
        match items.iter_mut().find(of_group) {
            Some(item) => push(item, &version),
            None => items.push(json!({"metadata": {"name": self.group}, "versions": [version]})),
        }
    }

    /// The resources of an `APIResourceList` in the aggregated form. A subresource without its resource, as metrics of
    /// objects are listed, gets one without verbs (`ConvertGroupVersionIntoToDiscovery`, `pkg/endpoints/installer.go`).
    fn aggregated(&self, list: &Value) -> Vec<Value> {
        let rows = list.get("resources").and_then(Value::as_array);
        let mut resources: Vec<(String, Value)> = Vec::new();
        let mut subresources: Vec<(String, &str, Value)> = Vec::new();
        for row in rows.into_iter().flatten() {
            let own = |key: &str, default: &str| match text(row, key) {
                "" => default.to_owned(),
                own => own.to_owned(),
            };
            let kind = json!({
                "group": own("group", &self.group),
                "version": own("version", &self.version),
                "kind": text(row, "kind"),
            });
            let mut members = Map::from_iter([
                ("responseKind".to_owned(), kind),
                (
                    "verbs".to_owned(),
                    row.get("verbs").cloned().unwrap_or_else(|| json!([])),
                ),
            ]);
            let is_namespaced = row.get("namespaced").and_then(Value::as_bool) == Some(true);
            let scope = if is_namespaced { "Namespaced" } else { "Cluster" };
            if let Some((parent, name)) = text(row, "name").split_once('/') {
                members.insert("subresource".to_owned(), name.into());
                subresources.push((parent.to_owned(), scope, Value::Object(members)));
                continue;
            }
            members.insert("resource".to_owned(), text(row, "name").into());
            members.insert("scope".to_owned(), scope.into());
            members.insert("singularResource".to_owned(), text(row, "singularName").into());
            for key in ["shortNames", "categories"] {
                members.extend(row.get(key).map(|value| (key.to_owned(), value.clone())));
            }
            resources.push((text(row, "name").to_owned(), Value::Object(members)));
        }
        for (parent, scope, own) in subresources {
            if !resources.iter().any(|(name, _)| *name == parent) {
                let kind = json!({"group": "", "version": "", "kind": ""});
                let made = json!({
                    "resource": parent, "scope": scope, "singularResource": "", "verbs": [], "responseKind": kind,
                });
                resources.push((parent.clone(), made));
            }
            let found = resources.iter_mut().find(|(name, _)| *name == parent);
            if let Some(members) = found.and_then(|(_, resource)| resource.as_object_mut()) {
                let all = members.entry("subresources").or_insert_with(|| json!([]));
                all.as_array_mut().into_iter().for_each(|all| all.push(own.clone()));
            }
        }
        resources.into_iter().map(|(_, resource)| resource).collect()
    }
}

/// Orders groups, named at `name`, and their versions by the priorities of their `APIServices`: kubectl takes a name that
/// several groups have for the first one's (`pkg/apis/apiregistration/v1/helper/helpers.go`).
pub(crate) fn arrange(groups: &mut [Value], added: &[Added], name: &str) {
    let named = |group: &Value| {
        group
            .pointer(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let priority = |group: &str, version: &Value| {
        let version = text(version, "version");
        let own = added.iter().find(|own| own.group == group && own.version == version);
        own.map_or_else(|| priorities::local(group, version), |own| own.priority)
    };
    for group in groups.iter_mut() {
        let name = named(group);
        let Some(versions) = group.get_mut("versions").and_then(Value::as_array_mut) else {
            continue;
        };
        versions.sort_by(|one, other| {
            let [of_one, of_other] = [one, other].map(|version| priority(&name, version).1);
            let [one, other] = [one, other].map(|version| super::priority(text(version, "version")));
            of_other.cmp(&of_one).then(other.cmp(&one))
        });
        let first = versions.first().cloned();
        if let Some((preferred, first)) = group.get_mut("preferredVersion").zip(first) {
            *preferred = first;
        }
    }
    groups.sort_by_cached_key(|group| {
        let name = named(group);
        let versions = group.get("versions").and_then(Value::as_array).into_iter().flatten();
        let highest = versions.map(|version| priority(&name, version).0).max();
        (Reverse(highest), name)
    });
}

/// Adds a version to a group, in the place of one of the same name.
fn push(group: &mut Value, version: &Value) {
    let Some(versions) = group.get_mut("versions").and_then(Value::as_array_mut) else {
        return;
    };
    match versions
        .iter_mut()
        .find(|own| own.get("version") == version.get("version"))
    {
        Some(own) => own.clone_from(version),
        None => versions.push(version.clone()),
    }
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}
