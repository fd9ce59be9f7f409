//! The scheduler's view of a pod's claims.

use std::collections::BTreeMap;
use std::sync::Arc;

use controlplane_plan::objects::{Meta as _, name};
use controlplane_plan::placement::claims::names;
use controlplane_plan::placement::{Claim, Claims};
use controlplane_plan::pod::Pod;
use controlplane_plan::storage::{claim_class, volume_of};
use k8s_openapi::api::core::v1::PersistentVolume;

use crate::machinery::cache::Key;
use crate::machinery::kinds::{Caches, for_claim, in_class};

/// Collects a pod's claims, their classes, and candidate volumes.
pub(super) fn of(caches: &Caches, pod: &Pod) -> Claims {
    let namespace = pod.metadata.namespace();
    let mut all = Claims::default();
    let mut volumes: BTreeMap<String, Arc<PersistentVolume>> = BTreeMap::new();
    let mut add = |more: Vec<Arc<PersistentVolume>>| {
        volumes.extend(more.into_iter().map(|volume| (name(&*volume).to_owned(), volume)));
    };
    for (claim, own) in names(pod) {
        let found = caches.claims.get(&Key::new(namespace, &claim));
        if let Some(claim) = &found {
            let class = claim_class(claim).to_owned();
            if let Some(volume) = volume_of(claim) {
                add(caches.volumes.get(&Key::new("", volume)).into_iter().collect());
            } else {
                add(caches.volumes.indexed(&in_class(&class)));
                add(caches.volumes.indexed(&for_claim(namespace, name(&**claim))));
            }
            if let Some(found) = caches.storage_classes.get(&Key::new("", &class)) {
                all.classes.insert(class, found);
            }
        }
        all.claims.push(Claim {
            name: claim,
            own,
            found,
        });
    }
    all.volumes = volumes.into_values().collect();
    all
}
