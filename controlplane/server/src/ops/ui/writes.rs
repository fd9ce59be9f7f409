//! Recent writes that the server has answered, with their times in microseconds: `/ui/writes/` and
//! the path of a collection or an object shows those to it, to users that may list or get it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ops::audit::recording::Outcome;
use crate::request::failure::Failure;
use crate::request::info::RequestInfo;
use crate::transport::respond::{self, Response};

/// Writes that are remembered: some 200 bytes each.
const KEPT: usize = 2048;
/// Maximum number of writes in an answer.
const TOLD: usize = 1024;

#[derive(Debug, Serialize)]
struct Write {
    #[serde(skip)]
    group: String,
    #[serde(skip)]
    resource: String,
    namespace: String,
    name: String,
    subresource: String,
    verb: &'static str,
    user: String,
    /// Times at which the request came and was answered: the object is durable by then.
    received: Timestamp,
    stored: Timestamp,
}

/// The last writes.
#[derive(Debug, Default)]
pub(crate) struct Writes(Mutex<Kept>);

/// Writes, the oldest first, and how many there are of each resource.
#[derive(Debug, Default)]
struct Kept {
    writes: VecDeque<Write>,
    counts: BTreeMap<(String, String), usize>,
}

impl Kept {
    fn put(&mut self, write: Write) {
        if self.writes.len() >= KEPT {
            self.forget();
        }
        let kind = (write.group.clone(), write.resource.clone());
        *self.counts.entry(kind).or_default() += 1;
        self.writes.push_back(write);
    }

    /// Evicts from the most written resource: others' writes outlast a flood.
    fn forget(&mut self) {
        let Some(most) = self.counts.iter().max_by_key(|(_, count)| **count) else {
            return;
        };
        let most = most.0.clone();
        if let Some(oldest) = self.writes.iter().position(|write| write.is_of((&most.0, &most.1))) {
            self.writes.remove(oldest);
        }
        let left = self.counts.get_mut(&most).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            self.counts.remove(&most);
        }
    }
}

impl Write {
    fn is_of(&self, (group, resource): (&str, &str)) -> bool {
        self.group == group && self.resource == resource
    }
}

#[derive(Deserialize)]
struct Named {
    metadata: Name,
}

#[derive(Deserialize)]
struct Name {
    name: String,
}

impl Writes {
    /// Remembers a request that has changed something. Leases and events are left out, because
    /// nodes write them continually; so are sessions in pods, which change no object.
    pub(crate) fn note(&self, outcome: &Outcome, user: &str, (received, stored): (Timestamp, Timestamp)) {
        let info = &outcome.info;
        let changes = matches!(info.verb, "create" | "update" | "patch" | "delete");
        if !changes
            || info.lasts()
            || !info.is_resource
            || info.resource == "events"
            || info.group == "coordination.k8s.io"
        {
            return;
        }
        let sent = [&info.name, &outcome.notes.sent.name];
        let name = sent.into_iter().find(|name| !name.is_empty()).cloned();
        // The server has made the name of an object with `generateName`.
        let answered = || serde_json::from_slice::<Named>(outcome.notes.response.as_ref()?).ok();
        let Some(name) = name.or_else(|| Some(answered()?.metadata.name)) else {
            return;
        };
        let write = Write {
            group: info.group.clone(),
            resource: info.resource.clone(),
            namespace: info.namespace.clone(),
            name,
            subresource: info.subresource.clone(),
            verb: info.verb,
            user: user.to_owned(),
            received,
            stored,
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).put(write);
    }

    /// Answers with the recent writes to the resource of a request, which its user may read.
    pub(crate) fn answer(&self, info: &RequestInfo) -> Result<Response, Failure> {
        if !info.is_resource {
            return Err(Failure::NoSuchPath);
        }
        if !matches!(info.verb, "get" | "list") || !info.subresource.is_empty() {
            return Err(Failure::MethodNotAllowed);
        }
        // A user that may read only selected objects would see writes to others.
        if !info.field_selector.is_empty() {
            return Err(Failure::bad_request("writes are not told by selectors"));
        }
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = |write: &&Write| {
            write.is_of((&info.group, &info.resource))
                && (info.namespace.is_empty() || write.namespace == info.namespace)
                && (info.name.is_empty() || write.name == info.name)
        };
        let mut told: Vec<&Write> = kept.writes.iter().rev().filter(asked).take(TOLD).collect();
        told.reverse();
        let told = respond::encode(&serde_json::json!({ "writes": told }));
        Ok(respond::json(StatusCode::OK, told))
    }
}
