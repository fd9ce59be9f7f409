//! Discovery of aggregated group versions.

use std::sync::Arc;

use serde_json::{Map, Value, json};

/// A group version that another server serves.
pub(crate) struct Added {
    pub(super) group: String,
    pub(super) version: String,
    /// True if its server is available.
    pub(super) is_current: bool,
    /// Its last known `APIResourceList`.
    pub(super) resources: Option<Arc<Value>>,
}

impl Added {
    /// Adds it to the groups of an `APIGroupList`; the group as it stands there then.
    pub(crate) fn to_legacy(&self, groups: &mut Vec<Value>) -> Value {
        let version = json!({"groupVersion": format!("{}/{}", self.group, self.version), "version": self.version});
        if let Some(group) = groups.iter_mut().find(|group| text(group, "name") == self.group) {
            push(group, &version);
            return group.clone();
        }
        let group = json!({"name": self.group, "versions": [version], "preferredVersion": version});
        groups.push(group.clone());
        group
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

    /// The resources of an `APIResourceList` in the aggregated form.
    fn aggregated(&self, list: &Value) -> Vec<Value> {
        let rows = list.get("resources").and_then(Value::as_array);
        let mut resources: Vec<(String, Value)> = Vec::new();
        let mut subresources: Vec<(String, Value)> = Vec::new();
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
            if let Some((parent, name)) = text(row, "name").split_once('/') {
                members.insert("subresource".to_owned(), name.into());
                subresources.push((parent.to_owned(), Value::Object(members)));
                continue;
            }
            let is_namespaced = row.get("namespaced").and_then(Value::as_bool) == Some(true);
            let scope = if is_namespaced { "Namespaced" } else { "Cluster" };
            members.insert("resource".to_owned(), text(row, "name").into());
            members.insert("scope".to_owned(), scope.into());
            members.insert("singularResource".to_owned(), text(row, "singularName").into());
            for key in ["shortNames", "categories"] {
                members.extend(row.get(key).map(|value| (key.to_owned(), value.clone())));
            }
            resources.push((text(row, "name").to_owned(), Value::Object(members)));
        }
        for (parent, own) in subresources {
            let found = resources.iter_mut().find(|(name, _)| *name == parent);
            if let Some(members) = found.and_then(|(_, resource)| resource.as_object_mut()) {
                let all = members.entry("subresources").or_insert_with(|| json!([]));
                all.as_array_mut().into_iter().for_each(|all| all.push(own.clone()));
            }
        }
        resources.into_iter().map(|(_, resource)| resource).collect()
    }
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
