//! `skiff get`: the server's Tables.

use anyhow::bail;
use futures::{AsyncBufReadExt as _, StreamExt as _};
use serde_json::Value;

use crate::arguments::{GetOptions, Place};
use crate::client::api::{Api, text_at, with_query};
use crate::client::resource::{Resource, Resources, Target};
use crate::terminal;

pub(crate) async fn run(place: &Place, options: &GetOptions) -> anyhow::Result<()> {
    let api = Api::of(place).await?;
    let targets = Resources::discover(&api).await?.targets(&options.targets)?;
    match options.output.as_deref() {
        None | Some("wide") if options.watch => watch(&api, options, &targets).await,
        None | Some("wide") => tables(&api, options, &targets).await,
        Some(format) => objects(&api, options, &targets, format).await,
    }
}

/// Returns the path of a target with the options' selectors.
fn path_of(options: &GetOptions, target: &Target) -> anyhow::Result<String> {
    let resource = &target.resource;
    if let Some(name) = &target.name {
        if options.all_namespaces && resource.namespaced {
            bail!("a resource cannot be retrieved by name across all namespaces");
        }
        let path = resource.object(&options.scope.namespace, name)?;
        return Ok(with_query(&path, &[("at", options.at.as_deref())]));
    }
    let namespace = (!options.all_namespaces).then_some(options.scope.namespace.as_str());
    Ok(with_query(
        &resource.collection(namespace),
        &[
            ("labelSelector", options.selector.as_deref()),
            ("at", options.at.as_deref()),
        ],
    ))
}

async fn tables(api: &Api, options: &GetOptions, targets: &[Target]) -> anyhow::Result<()> {
    let wide = options.output.is_some();
    let mut failure = None;
    // One table per resource; named objects of a resource share one.
    let mut pending: Option<(Resource, Value)> = None;
    let mut printed = 0;
    for target in targets {
        let table = match api.table(&path_of(options, target)?).await {
            Ok(table) => table,
            Err(error) => {
                // All errors but the last are printed here; the command fails with the last one.
                if let Some(earlier) = failure.replace(error) {
                    terminal::note(format!("{earlier:#}"));
                }
                continue;
            }
        };
        match &mut pending {
            Some((resource, known)) if *resource == target.resource => extend(known, &table),
            _ => {
                if let Some((resource, table)) = pending.replace((target.resource.clone(), table)) {
                    printed += print(options, targets, &resource, &table, wide, printed)?;
                }
            }
        }
    }
    if let Some((resource, table)) = pending {
        printed += print(options, targets, &resource, &table, wide, printed)?;
    }
    match failure {
        Some(error) => Err(error),
        None if printed == 0 && options.all_namespaces => {
            terminal::note("No resources found");
            Ok(())
        }
        None if printed == 0 => {
            terminal::note(format!("No resources found in {} namespace.", options.scope.namespace));
            Ok(())
        }
        None => Ok(()),
    }
}

fn extend(known: &mut Value, more: &Value) {
    let rows = more.get("rows").and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(known) = known.get_mut("rows").and_then(Value::as_array_mut) {
        known.extend(rows);
    }
}

fn print(
    options: &GetOptions,
    targets: &[Target],
    resource: &Resource,
    table: &Value,
    wide: bool,
    before: usize,
) -> anyhow::Result<usize> {
    let several = targets.iter().any(|target| target.resource != *resource);
    let layout = Layout {
        wide,
        namespaces: options.all_namespaces && resource.namespaced,
        prefix: several.then(|| resource.display()),
    };
    let rows = layout.rows(table);
    if rows.is_empty() {
        return Ok(0);
    }
    let mut lines = vec![layout.header(table)];
    lines.extend(rows);
    let gap = if before > 0 { "\n" } else { "" };
    terminal::write(&format!("{gap}{}", terminal::columns(&lines)))?;
    Ok(lines.len() - 1)
}

/// Selection of a Table's columns.
struct Layout {
    wide: bool,
    namespaces: bool,
    prefix: Option<String>,
}

impl Layout {
    fn shown(&self, table: &Value) -> Vec<(usize, String)> {
        let columns = table
            .get("columnDefinitions")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        columns
            .enumerate()
            .filter(|(_, column)| self.wide || column.get("priority").and_then(Value::as_i64).unwrap_or(0) == 0)
            .map(|(position, column)| (position, text_at(column, "/name").to_uppercase()))
            .collect()
    }

    fn header(&self, table: &Value) -> Vec<String> {
        let names = self.shown(table).into_iter().map(|(_, name)| name);
        self.namespaces
            .then(|| "NAMESPACE".to_owned())
            .into_iter()
            .chain(names)
            .collect()
    }

    fn rows(&self, table: &Value) -> Vec<Vec<String>> {
        let shown = self.shown(table);
        let rows = table.get("rows").and_then(Value::as_array).into_iter().flatten();
        rows.map(|row| {
            let namespace = self
                .namespaces
                .then(|| text_at(row, "/object/metadata/namespace").to_owned());
            let cells = shown.iter().enumerate().map(|(first, (position, _))| {
                let cell = cell_text(row.get("cells").and_then(|cells| cells.get(*position)));
                match &self.prefix {
                    Some(prefix) if first == 0 => format!("{prefix}/{cell}"),
                    Some(_) | None => cell,
                }
            });
            namespace.into_iter().chain(cells).collect()
        })
        .collect()
    }
}

fn cell_text(cell: Option<&Value>) -> String {
    match cell {
        Some(Value::String(text)) if text.is_empty() => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => "<none>".to_owned(),
        Some(other) => other.to_string(),
    }
}

async fn objects(api: &Api, options: &GetOptions, targets: &[Target], format: &str) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for target in targets {
        let object = api.get(&path_of(options, target)?).await?;
        match (&target.name, object.get("items").and_then(Value::as_array)) {
            (None, Some(items)) => found.extend(
                items
                    .iter()
                    .map(|item| (target.resource.clone(), complete(item, &target.resource))),
            ),
            (Some(_), _) | (None, None) => found.push((target.resource.clone(), object)),
        }
    }
    if format == "name" {
        for (resource, object) in &found {
            terminal::line(format!("{}/{}", resource.display(), text_at(object, "/metadata/name")))?;
        }
        return Ok(());
    }
    let single = found.len() == 1 && targets.iter().all(|target| target.name.is_some());
    let mut objects: Vec<Value> = found.into_iter().map(|(_, object)| object).collect();
    let whole = if single {
        objects.pop().unwrap_or_default()
    } else {
        serde_json::json!({ "apiVersion": "v1", "items": objects, "kind": "List", "metadata": { "resourceVersion": "" } })
    };
    if format == "json" {
        return terminal::line(serde_json::to_string_pretty(&whole)?);
    }
    terminal::write(&serde_yaml::to_string(&whole)?)
}

/// Completes an item of a list with the `apiVersion` and `kind` of the list.
fn complete(item: &Value, resource: &Resource) -> Value {
    let mut item = item.clone();
    if let Some(fields) = item.as_object_mut() {
        fields
            .entry("apiVersion")
            .or_insert_with(|| resource.api_version().into());
        fields.entry("kind").or_insert_with(|| resource.kind.clone().into());
    }
    item
}

async fn watch(api: &Api, options: &GetOptions, targets: &[Target]) -> anyhow::Result<()> {
    let [target] = targets else {
        bail!("you may only watch one resource or type of resource at a time")
    };
    let resource = &target.resource;
    let namespace = (!options.all_namespaces).then_some(options.scope.namespace.as_str());
    let field = target.name.as_ref().map(|name| format!("metadata.name={name}"));
    let restriction = [
        ("labelSelector", options.selector.as_deref()),
        ("fieldSelector", field.as_deref()),
    ];
    let path = with_query(&resource.collection(namespace), &restriction);
    let layout = Layout {
        wide: options.output.is_some(),
        namespaces: options.all_namespaces && resource.namespaced,
        prefix: None,
    };
    let table = api.table(&path).await?;
    let mut widths = vec![layout.header(&table)];
    widths.extend(layout.rows(&table));
    terminal::write(&terminal::columns(&widths))?;
    let mut version = text_at(&table, "/metadata/resourceVersion").to_owned();
    let mut header = table;
    loop {
        let from = [("watch", Some("true")), ("resourceVersion", Some(version.as_str()))];
        let mut lines = api.stream(&with_query(&path, &from), true).await?.lines();
        while let Some(line) = lines.next().await {
            let event: Value = serde_json::from_str(&line?)?;
            let Some(object) = event.get("object") else { continue };
            if text_at(&event, "/type") == "ERROR" {
                bail!("the watch ended: {}", text_at(object, "/message"));
            }
            if object.get("columnDefinitions").is_some_and(Value::is_array) {
                header.clone_from(object);
            }
            for row in object.get("rows").and_then(Value::as_array).into_iter().flatten() {
                text_at(row, "/object/metadata/resourceVersion").clone_into(&mut version);
            }
            let shown =
                serde_json::json!({ "columnDefinitions": header.get("columnDefinitions"), "rows": object.get("rows") });
            for row in layout.rows(&shown) {
                // Aligned to the columns that are already printed.
                widths.push(row);
                let text = terminal::columns(&widths);
                terminal::line(text.lines().last().unwrap_or_default())?;
                widths.truncate(64);
            }
        }
    }
}
