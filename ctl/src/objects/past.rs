//! `skiff history`, `skiff diff` and `skiff undelete`: previous versions in the server's archive.
//!
//! The versions of an object are stored by the server; their authors come from the audit log, if it
//! is on this machine, or else from the managed fields, which name only the program.

mod changes;
mod who;

use std::collections::VecDeque;

use anyhow::{Context as _, bail};
use http::Method;
use serde_json::{Map, Value};

use crate::arguments::{DiffOptions, HistoryOptions, Place, TargetOptions, UndeleteOptions};
use crate::client::api::{Api, is_not_found, text_at, with_query};
use crate::client::resource::{Resource, Resources};
use crate::terminal;

/// Number of versions that are searched for the deleted one.
const VERSIONS: u32 = 50;
/// Number of changes that are listed in one line.
const NAMED: usize = 3;

/// Object by its path.
struct Subject {
    api: Api,
    resources: Resources,
    resource: Resource,
    name: String,
    path: String,
}

impl Subject {
    async fn of(place: &Place, options: &TargetOptions) -> anyhow::Result<Self> {
        let api = Api::of(place).await?;
        let resources = Resources::discover(&api).await?;
        let (resource, name) = resources.one(&options.target)?;
        let path = resource.object(&options.scope.namespace, &name)?;
        Ok(Self {
            api,
            resources,
            resource,
            name,
            path,
        })
    }

    /// Returns the latest versions, oldest first.
    async fn versions(&self, count: u32) -> anyhow::Result<VecDeque<Value>> {
        let path = with_query(&self.path, &[("history", Some(&count.to_string()))]);
        let mut answer = self.api.get(&path).await?;
        let Some(Value::Array(mut versions)) = answer.get_mut("items").map(Value::take) else {
            bail!("the server does not keep the past")
        };
        versions.reverse();
        Ok(versions.into())
    }

    async fn at(&self, at: Option<&str>) -> anyhow::Result<Value> {
        self.api.get(&with_query(&self.path, &[("at", at)])).await
    }

    fn display(&self) -> String {
        format!("{}/{}", self.resource.display(), self.name)
    }
}

pub(crate) async fn history(place: &Place, options: &HistoryOptions) -> anyhow::Result<()> {
    let target = &options.target;
    let subject = Subject::of(place, target).await?;
    let mut versions = subject.versions(options.limit.saturating_add(1)).await?;
    let mut before = None;
    if versions.len() > usize::try_from(options.limit).unwrap_or(usize::MAX) {
        before = versions.pop_front();
    }
    let namespace = if subject.resource.namespaced {
        target.scope.namespace.as_str()
    } else {
        ""
    };
    let writers = who::Writers::read(place, &subject.resource, namespace, &subject.name);
    let head = ["REVISION", "TIME", "WHO", "VERB", "USER AGENT", "CHANGED"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for version in &versions {
        let object = version.get("object").unwrap_or(&Value::Null);
        let (revision, time) = (text_at(version, "/resourceVersion"), text_at(version, "/time"));
        let writer = writers.of_version(revision, time, object);
        rows.push(row(revision, time, &writer, &changed(before.as_ref(), object)));
        if version.get("deleted") == Some(&Value::Bool(true)) {
            let (until, ended) = (text_at(version, "/until"), text_at(version, "/ended"));
            rows.push(row(until, ended, &writers.of_deletion(until, ended), "deleted"));
        }
        before = Some(version.clone());
    }
    terminal::write(&terminal::columns(&rows))
}

fn row(revision: &str, time: &str, writer: &who::Writer, changed: &str) -> Vec<String> {
    let known = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
    vec![
        known(revision),
        known(time),
        known(&writer.user),
        known(&writer.verb),
        known(&writer.agent),
        changed.to_owned(),
    ]
}

/// Summarizes the changes of a version against the previous one in one line.
fn changed(before: Option<&Value>, object: &Value) -> String {
    let same = |before: &&Value| text_at(before, "/object/metadata/uid") == text_at(object, "/metadata/uid");
    let Some(before) = before.filter(same).and_then(|before| before.get("object")) else {
        return if object
            .pointer("/metadata/generation")
            .and_then(Value::as_i64)
            .unwrap_or(1)
            <= 1
        {
            "created".to_owned()
        } else {
            "(the first version that is known)".to_owned()
        };
    };
    let changes = changes::between(before, object);
    if changes.is_empty() {
        return "(only its managers)".to_owned();
    }
    let named: Vec<String> = changes.iter().take(NAMED).map(changes::Change::brief).collect();
    let more = changes.len().saturating_sub(NAMED);
    let rest = if more > 0 {
        format!(", and {more} more")
    } else {
        String::new()
    };
    format!("{}{rest}", named.join(", "))
}

pub(crate) async fn diff(place: &Place, options: &DiffOptions) -> anyhow::Result<()> {
    let subject = Subject::of(place, &options.target).await?;
    let from = subject.at(Some(&options.from)).await?;
    let to = subject.at(options.to.as_deref()).await?;
    if text_at(&from, "/metadata/uid") != text_at(&to, "/metadata/uid") {
        terminal::note(format!(
            "{} was deleted and made anew between the two",
            subject.display()
        ));
    }
    for change in changes::between(&from, &to) {
        terminal::write(&change.lines())?;
    }
    Ok(())
}

pub(crate) async fn undelete(place: &Place, options: &UndeleteOptions) -> anyhow::Result<()> {
    let subject = Subject::of(place, &options.target).await?;
    match subject.at(None).await {
        Ok(_present) => bail!("{} is there", subject.display()),
        Err(error) if is_not_found(&error) => {}
        Err(error) => return Err(error),
    }
    let mut object = match &options.at {
        Some(at) => subject.at(Some(at)).await?,
        None => {
            last(subject.versions(VERSIONS).await?).with_context(|| format!("{} was never there", subject.display()))?
        }
    };
    // Items of lists lack these fields.
    if let Some(fields) = object.as_object_mut() {
        fields.insert("apiVersion".to_owned(), subject.resource.api_version().into());
        fields.insert("kind".to_owned(), subject.resource.kind.clone().into());
        fields.remove("status");
    }
    let version = text_at(&object, "/metadata/resourceVersion").to_owned();
    let namespace = options.target.scope.namespace.as_str();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        strip(metadata);
        keep_owners(&subject, namespace, metadata).await?;
    }
    let collection = subject.resource.collection(Some(namespace));
    let send = subject
        .api
        .send(Method::POST, &collection, "application/json", Some(&object));
    send.await?;
    terminal::line(format!("{} undeleted as of revision {version}", subject.display()))
}

/// Returns the last version before the object's deletion began.
fn last(mut versions: VecDeque<Value>) -> Option<Value> {
    let object = |version: &Value| version.get("object").cloned();
    let newest = versions.back().and_then(object)?;
    let uid = text_at(&newest, "/metadata/uid").to_owned();
    versions.retain(|version| {
        text_at(version, "/object/metadata/uid") == uid
            && text_at(version, "/object/metadata/deletionTimestamp").is_empty()
    });
    versions.back().and_then(object).or(Some(newest))
}

/// Removes metadata that the server sets for each new object.
fn strip(metadata: &mut Map<String, Value>) {
    for field in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "managedFields",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        metadata.remove(field);
    }
    // Finalizers of the deletion, not of the object.
    if let Some(Value::Array(finalizers)) = metadata.get_mut("finalizers") {
        finalizers.retain(|finalizer| *finalizer != "foregroundDeletion" && *finalizer != "orphan");
    }
}

/// Removes references to owners that are gone or were replaced: the garbage collector would remove
/// the object at once.
async fn keep_owners(subject: &Subject, namespace: &str, metadata: &mut Map<String, Value>) -> anyhow::Result<()> {
    let Some(Value::Array(owners)) = metadata.remove("ownerReferences") else {
        return Ok(());
    };
    let mut kept = Vec::new();
    for owner in owners {
        let (kind, name) = (text_at(&owner, "/kind"), text_at(&owner, "/name"));
        let there = match subject.resources.of_object(&owner) {
            Ok(resource) => match subject.api.get(&resource.object(namespace, name)?).await {
                Ok(found) => text_at(&found, "/metadata/uid") == text_at(&owner, "/uid"),
                Err(error) if is_not_found(&error) => false,
                Err(error) => return Err(error),
            },
            Err(_unknown) => false,
        };
        if there {
            kept.push(owner);
        } else {
            terminal::note(format!(
                "its owner {kind}/{name} is gone: it is undeleted without that owner"
            ));
        }
    }
    if !kept.is_empty() {
        metadata.insert("ownerReferences".to_owned(), kept.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_version_before_the_deletion_began_is_undeleted() {
        let version = |uid: &str, number: u64, deleted: Value| json!({"object": {"metadata": {"uid": uid, "deletionTimestamp": deleted}, "data": number}});
        let versions = [
            version("a", 1, Value::Null),
            version("b", 2, Value::Null),
            version("b", 3, Value::Null),
            version("b", 4, json!("2026-01-01T00:00:00Z")),
        ];
        assert_eq!(last(versions.into()).unwrap()["data"], 3);
        assert_eq!(
            last([version("a", 1, json!("2026-01-01T00:00:00Z"))].into()).unwrap()["data"],
            1
        );
        assert_eq!(last(VecDeque::new()), None);
    }

    #[test]
    fn changes_are_told_in_one_line() {
        let version = |uid: &str, replicas: u64, generation: u64| json!({"metadata": {"uid": uid, "generation": generation, "resourceVersion": replicas}, "spec": {"replicas": replicas}});
        let before = json!({"object": version("a", 1, 1)});
        assert_eq!(changed(Some(&before), &version("a", 2, 2)), "spec.replicas: 1 -> 2");
        assert_eq!(changed(Some(&before), &version("b", 2, 1)), "created");
        assert_eq!(changed(None, &version("a", 2, 5)), "(the first version that is known)");
        assert_eq!(changed(Some(&before), &version("a", 1, 1)), "(only its managers)");
    }
}
