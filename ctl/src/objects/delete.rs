//! `skiff delete`.

use anyhow::bail;
use futures::{AsyncBufReadExt as _, StreamExt as _};
use http::Method;
use serde_json::{Value, json};

use super::apply;
use crate::arguments::{DeleteOptions, Place};
use crate::client::api::{Api, is_not_found, text_at, with_query};
use crate::client::resource::{Resource, Resources};
use crate::terminal::{self, Waiting};

pub(crate) async fn run(place: &Place, options: &DeleteOptions) -> anyhow::Result<()> {
    let api = Api::of(place).await?;
    let resources = Resources::discover(&api).await?;
    let objects = find(&api, &resources, options).await?;
    if objects.is_empty() {
        terminal::note("No resources found");
    }
    let (mut deleted, mut failures) = (Vec::new(), Vec::new());
    for (resource, namespace, name) in objects {
        match delete(&api, &resource, &namespace, &name, options).await {
            Ok(uid) => {
                terminal::line(format!("{} {name:?} deleted", resource.display()))?;
                deleted.push((resource, namespace, name, uid));
            }
            Err(error) if is_not_found(&error) && options.ignore_not_found => {}
            Err(error) => failures.push(error),
        }
    }
    if options.no_wait {
        return all_of(failures);
    }
    let waiting = Waiting::start("waiting until everything is gone");
    for (resource, namespace, name, uid) in deleted {
        failures.extend(gone(&api, &resource, &namespace, &name, &uid).await.err());
    }
    drop(waiting);
    all_of(failures)
}

/// Combines failures into one error.
fn all_of(mut failures: Vec<anyhow::Error>) -> anyhow::Result<()> {
    match failures.pop() {
        None => Ok(()),
        Some(only) if failures.is_empty() => Err(only),
        Some(last) => {
            let texts: Vec<String> = failures
                .iter()
                .chain([&last])
                .map(|error| format!("{error:#}"))
                .collect();
            bail!("{}", texts.join("\n"))
        }
    }
}

/// Returns the objects that the command line selects: resource, namespace, name.
async fn find(
    api: &Api,
    resources: &Resources,
    options: &DeleteOptions,
) -> anyhow::Result<Vec<(Resource, String, String)>> {
    let namespace = &options.scope.namespace;
    let mut objects = Vec::new();
    for object in apply::read(&options.files)? {
        let resource = resources.of_object(&object)?;
        let (namespace, name) = apply::place_of(&object, &resource, namespace)?;
        objects.push((resource, namespace, name));
    }
    if options.targets.is_empty() {
        if options.files.is_empty() {
            bail!("nothing to delete: give TYPE NAME, TYPE/NAME, TYPE -l SELECTOR or -f FILE");
        }
        return Ok(objects);
    }
    for target in resources.targets(&options.targets)? {
        match (target.name, &options.selector) {
            (Some(name), _) => objects.push((target.resource, namespace.clone(), name)),
            (None, Some(selector)) => {
                let path = with_query(
                    &target.resource.collection(Some(namespace)),
                    &[("labelSelector", Some(selector))],
                );
                let list = api.get(&path).await?;
                for item in list.get("items").and_then(Value::as_array).into_iter().flatten() {
                    objects.push((
                        target.resource.clone(),
                        namespace.clone(),
                        text_at(item, "/metadata/name").to_owned(),
                    ));
                }
            }
            (None, None) => bail!("resource(s) were provided, but no name or selector was specified"),
        }
    }
    Ok(objects)
}

/// Deletes an object and returns its UID.
async fn delete(
    api: &Api,
    resource: &Resource,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
) -> anyhow::Result<String> {
    let policy = match options.cascade.as_str() {
        "foreground" => "Foreground",
        "orphan" => "Orphan",
        _ => "Background",
    };
    let mut body = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy });
    if let (Some(seconds), Some(fields)) = (options.grace_period, body.as_object_mut()) {
        fields.insert("gracePeriodSeconds".to_owned(), seconds.into());
    }
    let answer = api
        .send(
            Method::DELETE,
            &resource.object(namespace, name)?,
            "application/json",
            Some(&body),
        )
        .await?;
    let uid = if text_at(&answer, "/kind") == "Status" {
        text_at(&answer, "/details/uid")
    } else {
        text_at(&answer, "/metadata/uid")
    };
    Ok(uid.to_owned())
}

/// Waits with a watch until the object is gone, or another one has its name.
async fn gone(api: &Api, resource: &Resource, namespace: &str, name: &str, uid: &str) -> anyhow::Result<()> {
    let field = format!("metadata.name={name}");
    let path = with_query(
        &resource.collection(Some(namespace)),
        &[("fieldSelector", Some(&field))],
    );
    loop {
        let list = api.get(&path).await?;
        let items = list.get("items").and_then(Value::as_array);
        if !items
            .into_iter()
            .flatten()
            .any(|item| uid.is_empty() || text_at(item, "/metadata/uid") == uid)
        {
            return Ok(());
        }
        let version = text_at(&list, "/metadata/resourceVersion");
        let mut lines = api
            .stream(
                &with_query(&path, &[("watch", Some("true")), ("resourceVersion", Some(version))]),
                false,
            )
            .await?
            .lines();
        while let Some(line) = lines.next().await {
            let event: Value = serde_json::from_str(&line?)?;
            if text_at(&event, "/type") == "DELETED" {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_is_told() {
        assert!(all_of(Vec::new()).is_ok());
        let failures = |count: usize| (0..count).map(|at| anyhow::anyhow!("number {at}")).collect();
        assert_eq!(all_of(failures(1)).unwrap_err().to_string(), "number 0");
        assert_eq!(all_of(failures(2)).unwrap_err().to_string(), "number 0\nnumber 1");
    }
}
