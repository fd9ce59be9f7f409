//! Layout of objects in the store: keys, selectable attributes, and retention of old versions.

pub(crate) mod allocation;
pub(crate) mod follower;
pub(crate) mod queues;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::kind::Scope;
use api::{Object, Registration};
use serde::Deserialize;
use store::{Attributes, Class, Key, Prefix};

/// Time that an event is kept after its last write.
pub const EVENT_TIME_TO_LIVE: Duration = Duration::from_hours(1);

/// Upstream's `DefaultEndpointReconcilerTTL` of `pkg/controlplane/instance.go`.
const SERVER_TIME_TO_LIVE: Duration = Duration::from_secs(15);

/// Key of an object; `None` when a part is invalid in a key.
pub(crate) fn key(registration: &Registration, namespace: &str, name: &str) -> Option<Key> {
    Key::new(registration.storage.group, registration.storage.plural, namespace, name).ok()
}

/// Prefix of a kind's objects, or of those in one namespace.
pub(crate) fn prefix(registration: &Registration, namespace: &str) -> Prefix {
    let storage = &registration.storage;
    // The path of a single Namespace has it as its own namespace.
    if namespace.is_empty() || registration.scope == Scope::Cluster {
        Prefix::resource(storage.group, storage.plural)
    } else {
        Prefix::namespace(storage.group, storage.plural, namespace)
    }
}

/// Attributes of an object that selectors match.
pub(crate) fn attributes(registration: &Registration, object: &dyn Object) -> Attributes {
    let labels = object.metadata().labels.clone().unwrap_or_default();
    let fields = registration.fields(object).into_iter();
    Attributes {
        labels: Arc::new(labels),
        fields: fields
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| (name, value.into()))
            .collect(),
    }
}

/// Attributes that selectors match, for objects read from the disk: `store::Options::index`.
pub fn index(key: &Key, stored: &[u8]) -> Attributes {
    let group = if key.group() == "core" { "" } else { key.group() };
    let registration = api::KINDS.iter().find(|registration| {
        let storage = &registration.storage;
        storage.group == group && storage.plural == key.plural() && !registration.converts
    });
    let Some(registration) = registration else {
        // Of a kind that is defined by an object: selectors read its fields themselves.
        return of_labels(stored);
    };
    Some(registration)
        .and_then(|registration| {
            let object = registration.decode_stored(stored).ok()?;
            Some(attributes(registration, &*object))
        })
        .unwrap_or_default()
}

/// Attributes of an object of an unknown kind: its labels.
pub(crate) fn of_labels(stored: &[u8]) -> Attributes {
    #[derive(Default, Deserialize)]
    struct Labelled {
        #[serde(default)]
        metadata: Metadata,
    }
    #[derive(Default, Deserialize)]
    struct Metadata {
        #[serde(default)]
        labels: BTreeMap<String, String>,
    }
    let Labelled { metadata } = serde_json::from_slice(stored).unwrap_or_default();
    Attributes {
        labels: Arc::new(metadata.labels),
        ..Attributes::default()
    }
}

/// Retention class of a resource: `store::Options::class`. Events expire; leases are renewed
/// continually.
pub fn class(resource: &str) -> Class {
    match resource {
        "core/events" => Class::HeadOnly {
            time_to_live: Some(EVENT_TIME_TO_LIVE),
        },
        // Servers that share the store renew theirs (`server/bootstrap/servers.rs`).
        "skiff/servers" => Class::HeadOnly {
            time_to_live: Some(SERVER_TIME_TO_LIVE),
        },
        "coordination.k8s.io/leases" => Class::HeadOnly { time_to_live: None },
        _ => Class::Kept,
    }
}
