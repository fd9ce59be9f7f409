//! Recent writes that the server has answered, with their times in microseconds: `/ui/writes/` and
//! the path of a collection or an object shows those to it, to users that may list or get it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::request::failure::Failure;
use crate::request::info::RequestInfo;
use crate::transport::respond::{self, Response};

/// Writes that are remembered: some 200 bytes each.
const KEPT: usize = 2048;
/// Maximum number of writes in an answer.
const TOLD: usize = 1024;

#[derive(Debug, Serialize)]
struct Write {
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

/// Writes of each group and resource, the oldest first, and their number.
#[derive(Debug, Default)]
struct Kept {
    writes: BTreeMap<(String, String), VecDeque<Write>>,
    number: usize,
}

impl Kept {
    fn put(&mut self, kind: (String, String), write: Write) {
        if self.number >= KEPT {
            self.forget();
        } else {
            self.number += 1;
        }
        self.writes.entry(kind).or_default().push_back(write);
    }

    /// Evicts from the most written resource: others' writes outlast a flood.
    fn forget(&mut self) {
        let most = self.writes.values_mut().max_by_key(|writes| writes.len());
        let left = most.map(|writes| {
            writes.pop_front();
            writes.len()
        });
        if left == Some(0) {
            self.writes.retain(|_, writes| !writes.is_empty());
        }
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
    ///
    /// `sent` is the name in the object that was sent, `response` the JSON of the one that was answered.
    pub(crate) fn note(
        &self,
        info: &RequestInfo,
        (sent, response): (&str, Option<&Bytes>),
        user: &str,
        (received, stored): (Timestamp, Timestamp),
    ) {
        let changes = matches!(info.verb, "create" | "update" | "patch" | "delete");
        if !changes
            || info.lasts()
            || !info.is_resource
            || info.resource == "events"
            || info.group == "coordination.k8s.io"
        {
            return;
        }
        let name = [info.name.as_str(), sent].into_iter().find(|name| !name.is_empty());
        let name = name.map(str::to_owned);
        // The server has made the name of an object with `generateName`.
        let answered = || serde_json::from_slice::<Named>(response?).ok();
        let Some(name) = name.or_else(|| Some(answered()?.metadata.name)) else {
            return;
        };
        let kind = (info.group.clone(), info.resource.clone());
        let write = Write {
            namespace: info.namespace.clone(),
            name,
            subresource: info.subresource.clone(),
            verb: info.verb,
            user: user.to_owned(),
            received,
            stored,
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).put(kind, write);
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
            (info.namespace.is_empty() || write.namespace == info.namespace)
                && (info.name.is_empty() || write.name == info.name)
        };
        let kind = (info.group.clone(), info.resource.clone());
        let writes = kept.writes.get(&kind).into_iter().flatten();
        let mut told: Vec<&Write> = writes.rev().filter(asked).take(TOLD).collect();
        told.reverse();
        let told = respond::encode(&serde_json::json!({ "writes": told }));
        Ok(respond::json(StatusCode::OK, told))
    }
}
