//! `skiff rollout`: status, history and undo, by the public API.

use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::{AsyncBufReadExt as _, StreamExt as _};
use http::Method;
use serde_json::{Value, json};

use crate::arguments::{Place, RolloutCommand, RolloutStatusOptions, TargetOptions, UndoOptions};
use crate::client::api::{Api, text_at, with_query};
use crate::client::resource::{Resource, Resources};
use crate::terminal;

const REVISION: &str = "deployment.kubernetes.io/revision";
const CAUSE: &str = "kubernetes.io/change-cause";

pub(crate) async fn run(place: &Place, command: &RolloutCommand) -> anyhow::Result<()> {
    let api = Api::of(place).await?;
    match command {
        RolloutCommand::Status(options) => status(&api, options).await,
        RolloutCommand::History(options) => history(&api, options).await,
        RolloutCommand::Undo(options) => undo(&api, options).await,
    }
}

async fn status(api: &Api, options: &RolloutStatusOptions) -> anyhow::Result<()> {
    let target = &options.target;
    let (resource, name) = Resources::discover(api).await?.one(&target.target)?;
    let watching = follow(api, &resource, &target.scope.namespace, &name);
    match tokio::time::timeout(Duration::from_secs(options.timeout), watching).await {
        Ok(done) => done,
        Err(_) => bail!("timed out waiting for the condition"),
    }
}

async fn follow(api: &Api, resource: &Resource, namespace: &str, name: &str) -> anyhow::Result<()> {
    let field = format!("metadata.name={name}");
    let path = with_query(
        &resource.collection(Some(namespace)),
        &[("fieldSelector", Some(&field))],
    );
    let mut said = String::new();
    loop {
        let object = api.get(&resource.object(namespace, name)?).await?;
        if report(&object, name, &mut said)? {
            return Ok(());
        }
        let version = text_at(&object, "/metadata/resourceVersion");
        let from = [("watch", Some("true")), ("resourceVersion", Some(version))];
        let mut lines = api.stream(&with_query(&path, &from), false).await?.lines();
        while let Some(line) = lines.next().await {
            let event: Value = serde_json::from_str(&line?)?;
            match text_at(&event, "/type") {
                "DELETED" => bail!("object has been deleted"),
                "ADDED" | "MODIFIED" => {
                    if report(event.get("object").unwrap_or(&Value::Null), name, &mut said)? {
                        return Ok(());
                    }
                }
                _ => break,
            }
        }
    }
}

/// Prints changes of the progress; true when the rollout is complete.
fn report(object: &Value, name: &str, said: &mut String) -> anyhow::Result<bool> {
    let (done, text) = progress(object, name)?;
    if text != *said {
        terminal::line(&text)?;
        *said = text;
    }
    Ok(done)
}

/// Progress of a rollout, in kubectl's words.
fn progress(object: &Value, name: &str) -> anyhow::Result<(bool, String)> {
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    if number("/metadata/generation") > number("/status/observedGeneration") {
        return Ok((false, "Waiting for deployment spec update to be observed...".to_owned()));
    }
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    if conditions
        .into_iter()
        .flatten()
        .any(|condition| text_at(condition, "/reason") == "ProgressDeadlineExceeded")
    {
        bail!("deployment {name:?} exceeded its progress deadline");
    }
    let wanted = object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
    let (all, updated, available) = (
        number("/status/replicas"),
        number("/status/updatedReplicas"),
        number("/status/availableReplicas"),
    );
    let begin = format!("Waiting for deployment {name:?} rollout to finish:");
    Ok(if updated < wanted {
        (
            false,
            format!("{begin} {updated} out of {wanted} new replicas have been updated..."),
        )
    } else if all > updated {
        (
            false,
            format!("{begin} {} old replicas are pending termination...", all - updated),
        )
    } else if available < updated {
        (
            false,
            format!("{begin} {available} of {updated} updated replicas are available..."),
        )
    } else {
        (true, format!("deployment {name:?} successfully rolled out"))
    })
}

/// Returns the revisions of an object, oldest first.
async fn revisions(api: &Api, options: &TargetOptions) -> anyhow::Result<(Resource, String, Value, Vec<(u64, Value)>)> {
    let resources = Resources::discover(api).await?;
    let (resource, name) = resources.one(&options.target)?;
    let object = api.get(&resource.object(&options.scope.namespace, &name)?).await?;
    let uid = text_at(&object, "/metadata/uid");
    let sets = api
        .get(
            &resources
                .find("replicasets.apps")?
                .collection(Some(&options.scope.namespace)),
        )
        .await?;
    let items = sets.get("items").and_then(Value::as_array).into_iter().flatten();
    let mut found: Vec<(u64, Value)> = items
        .filter(|set| {
            let owners = set.pointer("/metadata/ownerReferences").and_then(Value::as_array);
            owners.into_iter().flatten().any(|owner| text_at(owner, "/uid") == uid)
        })
        .filter_map(|set| Some((annotation(set, REVISION).parse().ok()?, set.clone())))
        .collect();
    found.sort_by_key(|(revision, _)| *revision);
    Ok((resource, name, object, found))
}

fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object
        .pointer("/metadata/annotations")
        .and_then(|all| all.get(key))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

async fn history(api: &Api, options: &TargetOptions) -> anyhow::Result<()> {
    let (resource, name, _, revisions) = revisions(api, options).await?;
    terminal::line(format!("{}/{name}", resource.display()))?;
    let mut rows = vec![["REVISION", "CHANGE-CAUSE", "IMAGES"].map(str::to_owned).to_vec()];
    for (revision, set) in &revisions {
        let cause = annotation(set, CAUSE);
        let containers = set
            .pointer("/spec/template/spec/containers")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let images: Vec<&str> = containers.map(|container| text_at(container, "/image")).collect();
        rows.push(vec![
            revision.to_string(),
            if cause.is_empty() { "<none>" } else { cause }.to_owned(),
            images.join(","),
        ]);
    }
    terminal::write(&terminal::columns(&rows))
}

async fn undo(api: &Api, options: &UndoOptions) -> anyhow::Result<()> {
    let (resource, name, object, revisions) = revisions(api, &options.target).await?;
    let current: u64 = annotation(&object, REVISION)
        .parse()
        .context("the object has no revision yet")?;
    let wanted = match options.to_revision {
        Some(wanted) => revisions.iter().find(|(revision, _)| *revision == wanted),
        None => revisions.iter().rev().find(|(revision, _)| *revision < current),
    };
    let (revision, set) = wanted.context("no rollout history found for this revision")?;
    if object.pointer("/spec/paused") == Some(&Value::Bool(true)) {
        bail!("cannot rollback a paused deployment; resume it first");
    }
    if *revision == current {
        return terminal::line(format!(
            "{}/{name} skipped rollback (current template already matches revision {revision})",
            resource.display()
        ));
    }
    let mut template = set
        .pointer("/spec/template")
        .cloned()
        .context("the revision has no template")?;
    if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove("pod-template-hash");
    }
    let change = json!([{ "op": "replace", "path": "/spec/template", "value": template }]);
    let path = resource.object(&options.target.scope.namespace, &name)?;
    api.send(Method::PATCH, &path, "application/json-patch+json", Some(&change))
        .await?;
    terminal::line(format!("{}/{name} rolled back", resource.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_speaks_as_kubectl() {
        let object = |observed: i64, all: i64, updated: i64, available: i64| {
            json!({"metadata": {"generation": 2}, "spec": {"replicas": 3},
                "status": {"observedGeneration": observed, "replicas": all, "updatedReplicas": updated, "availableReplicas": available}})
        };
        let text = |object: Value| progress(&object, "web").unwrap().1;
        assert_eq!(
            text(object(1, 0, 0, 0)),
            "Waiting for deployment spec update to be observed..."
        );
        assert_eq!(
            text(object(2, 3, 1, 3)),
            "Waiting for deployment \"web\" rollout to finish: 1 out of 3 new replicas have been updated..."
        );
        assert_eq!(
            text(object(2, 4, 3, 3)),
            "Waiting for deployment \"web\" rollout to finish: 1 old replicas are pending termination..."
        );
        assert_eq!(
            text(object(2, 3, 3, 1)),
            "Waiting for deployment \"web\" rollout to finish: 1 of 3 updated replicas are available..."
        );
        assert!(progress(&object(2, 3, 3, 3), "web").unwrap().0);
    }
}
