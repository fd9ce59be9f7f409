//! Author of a version, from the audit log or the managed fields.

use serde_json::Value;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

use crate::arguments::Place;
use crate::client::api::text_at;
use crate::client::resource::Resource;
use crate::trace::audit;

/// Tolerance between the times of a version and its request: both are of one clock, but one is
/// rounded.
const ROUNDED: Duration = Duration::milliseconds(2);

/// Author of a version; unknown fields are empty.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Writer {
    pub(super) user: String,
    pub(super) verb: String,
    pub(super) agent: String,
}

/// Requests that changed an object, from the audit log of this machine.
pub(super) struct Writers {
    events: Vec<Value>,
}

impl Writers {
    pub(super) fn read(place: &Place, resource: &Resource, namespace: &str, name: &str) -> Self {
        let kubeconfig = place.kubeconfig();
        let directory = kubeconfig
            .parent()
            .map(|directory| directory.join("controlplane/audit"));
        let mut events = directory.map_or_else(Vec::new, |directory| audit::read(&directory, namespace, name));
        events.retain(|event| {
            let subject = audit::subject(event);
            // A request that deletes a collection has no names.
            (subject == name || subject.is_empty())
                && text_at(event, "/objectRef/resource") == resource.plural
                && text_at(event, "/objectRef/apiGroup") == resource.group
                && matches!(
                    text_at(event, "/verb"),
                    "create" | "update" | "patch" | "delete" | "deletecollection"
                )
        });
        Self { events }
    }

    pub(super) fn of_version(&self, revision: &str, time: &str, object: &Value) -> Writer {
        let answered = |event: &&Value| text_at(event, "/responseObject/metadata/resourceVersion") == revision;
        // The response to a deletion that has only begun has the object, too. Secrets are not
        // recorded.
        let silent = |event: &&Value| event.get("responseObject").is_none_or(Value::is_null) && during(event, time);
        let event = self
            .events
            .iter()
            .find(answered)
            .or_else(|| self.events.iter().find(silent));
        event.map_or_else(|| by_manager(object), writer)
    }

    pub(super) fn of_deletion(&self, until: &str, ended: &str) -> Writer {
        let answered = |event: &&Value| text_at(event, "/responseObject/metadata/resourceVersion") == until;
        let event = self.events.iter().find(answered);
        let event = event.or_else(|| self.events.iter().rev().find(|event| during(event, ended)));
        event.map(writer).unwrap_or_default()
    }
}

/// True if a time is within the request's duration.
fn during(event: &Value, time: &str) -> bool {
    let parse = |text: &str| OffsetDateTime::parse(text, &Rfc3339).ok();
    let (received, done) = (audit::received(event), text_at(event, "/stageTimestamp"));
    match (parse(received), parse(done), parse(time)) {
        (Some(received), Some(done), Some(time)) => received - ROUNDED <= time && time <= done + ROUNDED,
        _ => false,
    }
}

fn writer(event: &Value) -> Writer {
    let user = text_at(event, "/user/username");
    let (verb, part) = (text_at(event, "/verb"), text_at(event, "/objectRef/subresource"));
    let impersonated = text_at(event, "/impersonatedUser/username");
    Writer {
        user: if impersonated.is_empty() {
            user.to_owned()
        } else {
            format!("{user} as {impersonated}")
        },
        verb: if part.is_empty() {
            verb.to_owned()
        } else {
            format!("{verb} {part}")
        },
        agent: text_at(event, "/userAgent")
            .split(' ')
            .next()
            .unwrap_or_default()
            .to_owned(),
    }
}

/// Returns the manager whose fields were set last, and its operation.
fn by_manager(object: &Value) -> Writer {
    let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    let newest = entries
        .into_iter()
        .flatten()
        .max_by_key(|entry| text_at(entry, "/time"));
    newest.map_or_else(Writer::default, |entry| Writer {
        user: String::new(),
        verb: text_at(entry, "/operation").to_lowercase(),
        agent: text_at(entry, "/manager").to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(verb: &str, received: &str, done: &str, answered: &Value) -> Value {
        json!({"verb": verb, "requestReceivedTimestamp": received, "stageTimestamp": done, "responseObject": answered,
            "user": {"username": "jane"}, "userAgent": "kubectl/v1.36 (linux/amd64)", "objectRef": {"resource": "pods"}})
    }

    #[test]
    fn a_version_is_its_requests_by_revision_or_by_time_or_its_managers() {
        let writers = Writers {
            events: vec![
                event(
                    "patch",
                    "2026-01-01T00:00:00.000000Z",
                    "2026-01-01T00:00:01Z",
                    &json!({"metadata": {"resourceVersion": "7"}}),
                ),
                event(
                    "update",
                    "2026-01-01T00:00:02.000100Z",
                    "2026-01-01T00:00:02.01Z",
                    &Value::Null,
                ),
                event(
                    "delete",
                    "2026-01-01T00:00:05Z",
                    "2026-01-01T00:00:05.2Z",
                    &json!({"kind": "Status"}),
                ),
            ],
        };
        let object = json!({"metadata": {"managedFields": [
            {"manager": "old", "operation": "Apply", "time": "2026-01-01T00:00:00Z"},
            {"manager": "kubectl-edit", "operation": "Update", "time": "2026-01-01T00:00:09Z"}]}});
        let verb = |revision: &str, time: &str| writers.of_version(revision, time, &object).verb;
        assert_eq!(verb("7", "2026-01-01T00:00:00.5Z"), "patch");
        assert_eq!(verb("8", "2026-01-01T00:00:02Z"), "update");
        let unknown = writers.of_version("9", "2026-01-01T00:00:08Z", &object);
        assert_eq!((unknown.user.as_str(), unknown.agent.as_str()), ("", "kubectl-edit"));
        let deleted = writers.of_deletion("10", "2026-01-01T00:00:05.1Z");
        assert_eq!(
            (deleted.user.as_str(), deleted.agent.as_str()),
            ("jane", "kubectl/v1.36")
        );
    }
}
