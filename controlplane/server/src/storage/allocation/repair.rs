//! Repair of the allocations at start: exactly what Services use is allocated.

use std::collections::BTreeSet;

use api::find;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::IPAddress;
use k8s_openapi::jiff::Timestamp;
use store::{Key, Prefix, Store, Write};
use tracing::warn;

use super::{Claims, address_key, hold_address, hold_port, port_key, removal};
use crate::storage;

/// Allocates what Services use and the store lacks, and releases what belongs to no Service.
pub(crate) async fn repair(store: &Store, now: Timestamp) {
    let (Some(services), Some(addresses)) = (
        find("", "v1", "services"),
        find("networking.k8s.io", "v1", "ipaddresses"),
    ) else {
        return;
    };
    let mut wanted: BTreeSet<Key> = BTreeSet::new();
    let mut writes: Vec<Write> = Vec::new();
    for entry in store.present(&storage::prefix(services, "")) {
        let Ok(object) = services.decode_stored(&entry.bytes) else {
            continue;
        };
        let Some(service) = object.as_any().downcast_ref::<Service>() else {
            continue;
        };
        let claims = service.spec.as_ref().map(Claims::of).unwrap_or_default();
        for address in claims.addresses {
            let Some(key) = address_key(address) else { continue };
            if store.get(&key).is_none() {
                writes.extend(hold_address(&service.metadata, address, now));
            }
            wanted.insert(key);
        }
        for port in claims.ports {
            let Some(key) = port_key(port) else { continue };
            if store.get(&key).is_none() {
                writes.extend(hold_port(&service.metadata, port));
            }
            wanted.insert(key);
        }
    }
    for entry in store.present(&storage::prefix(addresses, "")) {
        let Ok(object) = addresses.decode_stored(&entry.bytes) else {
            continue;
        };
        let address = object.as_any().downcast_ref::<IPAddress>();
        let of_service = address.is_some_and(|address| address.spec.parent_ref.resource == "services");
        if of_service && !wanted.contains(&entry.key) {
            writes.extend(removal(&entry));
        }
    }
    let ports = store.present(&Prefix::resource("skiff", "nodeports"));
    writes.extend(
        ports
            .iter()
            .filter(|entry| !wanted.contains(&entry.key))
            .filter_map(removal),
    );
    for write in writes {
        let key = write.key().clone();
        if let Err(failure) = store.commit(write).await {
            // Two Services with one address, or a full disk: the next start tries again.
            warn!(%key, error = &failure as &dyn std::error::Error, "not repaired");
        }
    }
}
