//! `skiff apply`: a three-way merge on the client.
//!
//! Fields in the file are set; fields of the last apply that the file no longer has are removed;
//! others are kept. Lists are replaced as a whole (JSON merge patch, RFC 7386), and the server sets
//! its defaults again. The last applied configuration is stored in kubectl's annotation, so that
//! both programs may apply the same object in turn.

use anyhow::{Context as _, bail};
use http::Method;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::arguments::{FilesOptions, Place};
use crate::client::api::{Api, is_not_found, text_at};
use crate::client::resource::{Resource, Resources};
use crate::terminal;

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const MANAGER: &str = "fieldManager=skiff-apply&fieldValidation=Strict";

pub(crate) async fn run(place: &Place, options: &FilesOptions) -> anyhow::Result<()> {
    let api = Api::of(place).await?;
    let resources = Resources::discover(&api).await?;
    let objects = read(&options.files)?;
    if objects.is_empty() {
        bail!("no objects in the files");
    }
    let mut failures = 0;
    for object in objects {
        match apply(&api, &resources, &options.scope.namespace, object).await {
            Ok(done) => terminal::line(done)?,
            Err(error) => {
                terminal::note(format!("{error:#}"));
                failures += 1;
            }
        }
    }
    if failures > 0 {
        bail!("{failures} objects were not applied");
    }
    Ok(())
}

async fn apply(api: &Api, resources: &Resources, namespace: &str, mut object: Value) -> anyhow::Result<String> {
    let resource = resources.of_object(&object)?;
    let (namespace, name) = place_of(&object, &resource, namespace)?;
    let shown = format!("{}/{name}", resource.display());
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        && resource.namespaced
    {
        metadata.insert("namespace".to_owned(), namespace.clone().into());
    }
    let annotated = annotate(object.clone())?;
    let path = resource.object(&namespace, &name)?;
    let live = match api.get(&path).await {
        Ok(live) => live,
        Err(error) if is_not_found(&error) => {
            let collection = format!("{}?{MANAGER}", resource.collection(Some(&namespace)));
            api.send(Method::POST, &collection, "application/json", Some(&annotated))
                .await
                .with_context(|| shown.clone())?;
            return Ok(format!("{shown} created"));
        }
        Err(error) => return Err(error),
    };
    let last = live
        .pointer("/metadata/annotations")
        .and_then(|annotations| annotations.get(LAST_APPLIED))
        .and_then(Value::as_str);
    let last: Value = last
        .map(serde_json::from_str)
        .transpose()
        .context("the object's last-applied annotation")?
        .unwrap_or(Value::Null);
    let change = merge(&last, &annotated, &live);
    if change == json!({}) {
        return Ok(format!("{shown} unchanged"));
    }
    let changed = api
        .send(
            Method::PATCH,
            &format!("{path}?{MANAGER}"),
            "application/merge-patch+json",
            Some(&change),
        )
        .await
        .with_context(|| shown.clone())?;
    // The status may have been updated meanwhile: only changes of the spec increase the generation.
    let counter = match live.pointer("/metadata/generation") {
        Some(_) => "/metadata/generation",
        None => "/metadata/resourceVersion",
    };
    let same = change.get("metadata").is_none() && changed.pointer(counter) == live.pointer(counter);
    Ok(format!("{shown} {}", if same { "unchanged" } else { "configured" }))
}

/// Returns namespace and name of an object in a file.
pub(crate) fn place_of(object: &Value, resource: &Resource, namespace: &str) -> anyhow::Result<(String, String)> {
    let name = text_at(object, "/metadata/name");
    if name.is_empty() {
        bail!("a {} has no metadata.name", resource.kind);
    }
    let own = text_at(object, "/metadata/namespace");
    Ok((if own.is_empty() { namespace } else { own }.to_owned(), name.to_owned()))
}

/// Adds the object's own text as the annotation of the last applied configuration.
fn annotate(mut object: Value) -> anyhow::Result<Value> {
    let metadata = object
        .get_mut("metadata")
        .and_then(Value::as_object_mut)
        .context("an object has no metadata")?;
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    annotations
        .as_object_mut()
        .context("metadata.annotations is no map")?
        .remove(LAST_APPLIED);
    let text = format!("{}\n", serde_json::to_string(&object)?);
    if let Some(annotations) = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.insert(LAST_APPLIED.to_owned(), text.into());
    }
    Ok(object)
}

/// Returns the merge patch from `live` to `wanted` that removes fields only in `last`.
fn merge(last: &Value, wanted: &Value, live: &Value) -> Value {
    let mut patch = Map::new();
    let nothing = Map::new();
    let fields = |value: &'_ Value| value.as_object().cloned().unwrap_or_else(|| nothing.clone());
    let (last, live_fields) = (fields(last), fields(live));
    for (key, wanted) in &fields(wanted) {
        let live = live_fields.get(key).unwrap_or(&Value::Null);
        if wanted.is_object() && live.is_object() {
            let inner = merge(last.get(key).unwrap_or(&Value::Null), wanted, live);
            if inner != json!({}) {
                patch.insert(key.clone(), inner);
            }
        } else if wanted != live {
            patch.insert(key.clone(), wanted.clone());
        }
    }
    for key in last.keys() {
        if wanted.get(key).is_none() && live_fields.contains_key(key) {
            patch.insert(key.clone(), Value::Null);
        }
    }
    Value::Object(patch)
}

/// Reads all objects of files, directories and standard input; expands lists.
pub(crate) fn read(files: &[String]) -> anyhow::Result<Vec<Value>> {
    let mut objects = Vec::new();
    for file in files {
        if file == "-" {
            let text = std::io::read_to_string(std::io::stdin()).context("read standard input")?;
            objects.extend(parse(&text).context("standard input")?);
            continue;
        }
        let path = std::path::Path::new(file);
        let mut paths = vec![path.to_owned()];
        if path.is_dir() {
            let entries = std::fs::read_dir(path).with_context(|| file.clone())?;
            paths = entries
                .map(|entry| entry.map(|entry| entry.path()))
                .collect::<Result<_, _>>()?;
            paths.retain(|path| {
                path.extension()
                    .is_some_and(|kind| kind == "yaml" || kind == "yml" || kind == "json")
            });
            paths.sort();
        }
        for path in paths {
            let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            objects.extend(parse(&text).with_context(|| path.display().to_string())?);
        }
    }
    Ok(objects)
}

fn parse(text: &str) -> anyhow::Result<Vec<Value>> {
    let mut objects = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        match Value::deserialize(document).context("parse YAML")? {
            Value::Null => {}
            Value::Object(mut list)
                if text_at_map(&list, "kind").ends_with("List") && list.get("items").is_some_and(Value::is_array) =>
            {
                if let Some(Value::Array(items)) = list.remove("items") {
                    objects.extend(items);
                }
            }
            object @ Value::Object(_) => objects.push(object),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => bail!("a document is no object"),
        }
    }
    Ok(objects)
}

fn text_at_map<'a>(map: &'a Map<String, Value>, key: &str) -> &'a str {
    map.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_what_is_wanted_and_removes_what_was() {
        let last = json!({"spec": {"replicas": 3, "paused": true, "list": [1]}});
        let wanted = json!({"spec": {"list": [2], "new": {"a": 1}}});
        let live = json!({"spec": {"replicas": 5, "paused": true, "list": [1], "defaulted": 7}, "status": {"x": 1}});
        let patch = merge(&last, &wanted, &live);
        assert_eq!(
            patch,
            json!({"spec": {"replicas": null, "paused": null, "list": [2], "new": {"a": 1}}})
        );
        assert_eq!(
            merge(
                &wanted,
                &wanted,
                &json!({"spec": {"list": [2], "new": {"a": 1}, "more": 1}})
            ),
            json!({})
        );
    }

    #[test]
    fn reads_documents_and_lists() {
        let objects = parse("kind: A\n---\n---\nkind: List\nitems:\n- kind: B\n- kind: C\n").unwrap();
        let kinds: Vec<&str> = objects.iter().map(|object| text_at(object, "/kind")).collect();
        assert_eq!(kinds, ["A", "B", "C"]);
        parse("just text").unwrap_err();
    }

    #[test]
    fn the_annotation_holds_the_object_without_itself() {
        let annotated = annotate(json!({"kind": "A", "metadata": {"name": "x"}})).unwrap();
        let text = annotated
            .pointer("/metadata/annotations")
            .unwrap()
            .get(LAST_APPLIED)
            .unwrap()
            .as_str()
            .unwrap();
        assert_eq!(
            text,
            "{\"kind\":\"A\",\"metadata\":{\"annotations\":{},\"name\":\"x\"}}\n"
        );
        assert_eq!(annotate(annotated.clone()).unwrap(), annotated);
    }
}
