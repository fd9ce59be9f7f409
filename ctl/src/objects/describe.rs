//! `skiff describe`: common fields of an object, and its events.

use serde_json::Value;

use crate::arguments::{Place, TargetOptions};
use crate::client::api::{Api, text_at, with_query};
use crate::client::resource::Resources;
use crate::terminal;

pub(crate) async fn run(place: &Place, options: &TargetOptions) -> anyhow::Result<()> {
    let api = Api::of(place).await?;
    let (resource, name) = Resources::discover(&api).await?.one(&options.target)?;
    let mut object = api.get(&resource.object(&options.scope.namespace, &name)?).await?;
    let uid = text_at(&object, "/metadata/uid").to_owned();
    let field = format!("involvedObject.name={name},involvedObject.uid={uid}");
    // Events of cluster-scoped objects are in the namespace `default`.
    let space = if resource.namespaced {
        options.scope.namespace.as_str()
    } else {
        "default"
    };
    let path = with_query(
        &format!("/api/v1/namespaces/{space}/events"),
        &[("fieldSelector", Some(field.as_str()))],
    );
    let events = api.get(&path).await?;

    let mut rows: Vec<Vec<String>> = [
        ("Name:", name),
        ("Kind:", resource.kind),
        ("Namespace:", text_at(&object, "/metadata/namespace").to_owned()),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .map(|(key, value)| vec![key.to_owned(), value])
    .collect();
    for (title, pointer) in [
        ("Labels:", "/metadata/labels"),
        ("Annotations:", "/metadata/annotations"),
    ] {
        rows.extend(pairs(title, object.pointer(pointer)));
    }
    rows.push(vec![
        "Created:".to_owned(),
        text_at(&object, "/metadata/creationTimestamp").to_owned(),
    ]);
    for owner in object
        .pointer("/metadata/ownerReferences")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        rows.push(vec![
            "Owner:".to_owned(),
            format!("{}/{}", text_at(owner, "/kind"), text_at(owner, "/name")),
        ]);
    }
    terminal::write(&terminal::columns(&rows))?;
    if let Some(fields) = object.as_object_mut() {
        for field in ["apiVersion", "kind", "metadata"] {
            fields.remove(field);
        }
        for (field, value) in fields {
            if !value.as_object().is_some_and(serde_json::Map::is_empty) {
                let text = serde_yaml::to_string(value)?;
                terminal::line(terminal::bold(&format!("{}:", capitalised(field))))?;
                for line in text.lines() {
                    terminal::line(format!("  {line}"))?;
                }
            }
        }
    }
    terminal::line(terminal::bold("Events:"))?;
    terminal::write(&events_table(&events))
}

fn pairs(title: &str, map: Option<&Value>) -> Vec<Vec<String>> {
    let map = map.and_then(Value::as_object).into_iter().flatten();
    map.filter(|(key, _)| *key != "kubectl.kubernetes.io/last-applied-configuration")
        .enumerate()
        .map(|(position, (key, value))| {
            let value = value.as_str().unwrap_or_default();
            vec![
                if position == 0 { title.to_owned() } else { String::new() },
                format!("{key}={value}"),
            ]
        })
        .collect()
}

fn capitalised(field: &str) -> String {
    let mut characters = field.chars();
    characters
        .next()
        .map(|first| first.to_uppercase().chain(characters).collect())
        .unwrap_or_default()
}

fn events_table(events: &Value) -> String {
    let mut items: Vec<&Value> = events
        .get("items")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .collect();
    if items.is_empty() {
        return "  <none>\n".to_owned();
    }
    items.sort_by_key(|event| time_of(event).to_owned());
    let mut rows = vec![
        ["  TIME", "TYPE", "REASON", "FROM", "COUNT", "MESSAGE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for event in items {
        let from = [
            text_at(event, "/source/component"),
            text_at(event, "/reportingComponent"),
        ];
        let count = event.get("count").and_then(Value::as_i64).unwrap_or(1);
        rows.push(vec![
            format!("  {}", time_of(event)),
            text_at(event, "/type").to_owned(),
            text_at(event, "/reason").to_owned(),
            from.into_iter()
                .find(|text| !text.is_empty())
                .unwrap_or_default()
                .to_owned(),
            count.to_string(),
            text_at(event, "/message").trim().to_owned(),
        ]);
    }
    terminal::columns(&rows)
}

/// Returns the latest timestamp of an event.
pub(crate) fn time_of(event: &Value) -> &str {
    let times = [
        "/series/lastObservedTime",
        "/lastTimestamp",
        "/eventTime",
        "/metadata/creationTimestamp",
    ];
    times
        .into_iter()
        .map(|pointer| text_at(event, pointer))
        .find(|text| !text.is_empty())
        .unwrap_or_default()
}
