//! Servers that share a store: an entry for each, which expires when it is not renewed.
//!
//! Upstream's have the same under `/masterleases` (`pkg/controlplane/reconcilers/lease.go`).

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::json;
use store::{Attributes, CommitError, Key, Prefix, Store, Value, Write};

use crate::server::bootstrap::BootstrapError;

/// The group and the name of the resource, which no kind shows.
const GROUP: &str = "skiff";
const PLURAL: &str = "servers";

/// Renews the entry of this server.
pub(super) async fn tell(store: &Store, own: IpAddr, now: &str) -> Result<(), BootstrapError> {
    let Ok(key) = Key::new(GROUP, PLURAL, "", &own.to_string()) else {
        return Ok(());
    };
    let text = json!({"metadata": {"name": own, "resourceVersion": ""}, "renewed": now}).to_string();
    let value = Value::parse(text.into_bytes())?;
    let attributes = Attributes::default();
    let write = match store.get(&key) {
        Some(entry) => Write::Update {
            key,
            value,
            attributes,
            expected: entry.revision,
        },
        None => Write::Create {
            key,
            value,
            attributes,
            within: None,
        },
    };
    match store.commit(write).await {
        Ok(_) | Err(CommitError::Exists | CommitError::NotFound | CommitError::Conflict { .. }) => Ok(()),
        Err(failure) => Err(failure.into()),
    }
}

/// Addresses of all servers with current entries.
pub(super) fn known(store: &Store) -> BTreeSet<IpAddr> {
    let entries = store.present(&Prefix::resource(GROUP, PLURAL));
    entries
        .iter()
        .filter_map(|entry| entry.key.name().parse().ok())
        .collect()
}
