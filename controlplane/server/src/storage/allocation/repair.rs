//! Repair of the allocations, at start and now and then: exactly what Services use is allocated.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use api::find;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::IPAddress;
use k8s_openapi::jiff::Timestamp;
use store::{Key, Prefix, Store, Write};
use tracing::warn;

use super::{Claims, MANAGED_BY, address_key, hold_address, hold_port, port_key, removal};
use crate::storage;

/// Time between two repairs, as between upstream's.
const EVERY: Duration = Duration::from_mins(3);

/// Repairs what others removed or left, for as long as it is polled.
pub(crate) async fn keep(store: &Store, clock: impl Fn() -> Timestamp) -> Infallible {
    loop {
        tokio::time::sleep(EVERY).await;
        repair(store, clock()).await;
    }
}

/// Allocates what Services use and the store lacks, and releases what belongs to no Service.
pub(crate) async fn repair(store: &Store, now: Timestamp) {
    let (Some(services), Some(addresses)) = (
        find("", "v1", "services"),
        find("networking.k8s.io", "v1", "ipaddresses"),
    ) else {
        return;
    };
    // Before the Services: one that another control plane makes meanwhile holds nothing yet that is seen here.
    let held = store.present(&storage::prefix(addresses, ""));
    let ports = store.present(&Prefix::resource("skiff", "nodeports"));
    // What a Service held may be released by now, with the Service.
    let known: BTreeSet<&Key> = held.iter().chain(&ports).map(|entry| &entry.key).collect();
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
            if !known.contains(&key) && store.get(&key).is_none() {
                writes.extend(hold_address(&service.metadata, address, now));
            }
            wanted.insert(key);
        }
        for port in claims.ports {
            let Some(key) = port_key(port) else { continue };
            if !known.contains(&key) && store.get(&key).is_none() {
                writes.extend(hold_port(&service.metadata, port));
            }
            wanted.insert(key);
        }
    }
    for entry in &held {
        let Ok(object) = addresses.decode_stored(&entry.bytes) else {
            continue;
        };
        let address = object.as_any().downcast_ref::<IPAddress>();
        let of_service = address.is_some_and(is_of_service);
        if of_service && !wanted.contains(&entry.key) {
            writes.extend(removal(entry));
        }
    }
    writes.extend(
        ports
            .iter()
            .filter(|entry| !wanted.contains(&entry.key))
            .filter_map(removal),
    );
    for write in writes {
        let key = write.key().clone();
        if let Err(failure) = store.commit(write).await {
            // Two Services with one address, or a full disk: the next round tries again.
            warn!(%key, error = &failure as &dyn std::error::Error, "not repaired");
        }
    }
}

/// True for an address that was allocated here. Others, such as reserved ones, are left to those who made them.
fn is_of_service(address: &IPAddress) -> bool {
    let labels = address.metadata.labels.as_ref();
    let by = labels.and_then(|labels| labels.get(MANAGED_BY.0));
    by.is_some_and(|by| by == MANAGED_BY.1) && address.spec.parent_ref.resource == "services"
}
