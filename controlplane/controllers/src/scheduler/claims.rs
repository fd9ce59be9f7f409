//! The scheduler's view of a pod's claims.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use controlplane_plan::objects::{Meta as _, name};
use controlplane_plan::placement::claims::names;
use controlplane_plan::placement::{Claim, Claims, Limit, SchedulerCache};
use controlplane_plan::pod::Pod;
use controlplane_plan::storage::{claim_class, volume_of};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use crate::machinery::cache::Key;
use crate::machinery::kinds::{Caches, for_claim, in_class, on_node};

/// Collects a pod's claims, their classes, candidate volumes, and what their drivers say of nodes.
pub(super) fn of(caches: &Caches, cache: &SchedulerCache, pod: &Pod) -> Claims {
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
            if let Some((driver, volume)) = csi_volume(caches, claim) {
                all.csi.entry(driver).or_default().insert(volume);
            }
            if let Some(found) = caches.storage_classes.get(&Key::new("", &class)) {
                let driver = caches.csi_drivers.get(&Key::new("", &found.provisioner));
                if driver.is_some_and(|driver| driver.spec.storage_capacity == Some(true)) {
                    let mut capacities = caches.csi_capacities.all();
                    capacities.retain(|capacity| capacity.storage_class_name == class);
                    all.capacities.insert(class.clone(), capacities);
                }
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
    all.limits = limits(caches, cache, &all.csi);
    all
}

/// The driver and a name of the volume behind a claim, or of the one that will be
/// (`getCSIDriverInfo`, `pkg/scheduler/framework/plugins/nodevolumelimits/csi.go`).
fn csi_volume(caches: &Caches, claim: &PersistentVolumeClaim) -> Option<(String, String)> {
    let volume = volume_of(claim).and_then(|volume| caches.volumes.get(&Key::new("", volume)));
    if let Some(volume) = volume {
        let source = volume.spec.as_ref()?.csi.as_ref()?;
        return Some((source.driver.clone(), source.volume_handle.clone()));
    }
    let class = caches.storage_classes.get(&Key::new("", claim_class(claim)))?;
    Some((class.provisioner.clone(), format!("claim {}", Key::of(&claim.metadata))))
}

/// Limits of drivers on nodes, with the volumes that these have.
fn limits(
    caches: &Caches,
    cache: &SchedulerCache,
    drivers: &BTreeMap<String, BTreeSet<String>>,
) -> BTreeMap<String, BTreeMap<String, Limit>> {
    let mut limits: BTreeMap<String, BTreeMap<String, Limit>> = BTreeMap::new();
    if drivers.is_empty() {
        return limits;
    }
    for node in caches.csi_nodes.all() {
        for driver in node.spec.drivers.iter().filter(|own| drivers.contains_key(&own.name)) {
            if let Some(most) = driver.allocatable.as_ref().and_then(|allocatable| allocatable.count) {
                let limit = Limit {
                    most: usize::try_from(most).unwrap_or(0),
                    ..Limit::default()
                };
                let own = limits.entry(name(&*node).to_owned()).or_default();
                own.insert(driver.name.clone(), limit);
            }
        }
    }
    if limits.is_empty() {
        return limits;
    }
    for placed in cache.pods() {
        let Some(own) = limits.get_mut(&placed.node) else {
            continue;
        };
        for (claim, _) in names(&placed.pod) {
            let claim = caches.claims.get(&Key::new(placed.pod.metadata.namespace(), &claim));
            let volume = claim.and_then(|claim| csi_volume(caches, &claim));
            if let Some((driver, volume)) = volume
                && let Some(limit) = own.get_mut(&driver)
            {
                limit.used.insert(volume);
            }
        }
    }
    for (node, own) in &mut limits {
        for attachment in caches.attachments.indexed(&on_node(node)) {
            let volume = attachment.spec.source.persistent_volume_name.as_deref();
            let volume = volume.and_then(|volume| caches.volumes.get(&Key::new("", volume)));
            let source = volume.as_ref().and_then(|volume| volume.spec.as_ref()?.csi.as_ref());
            if let Some(source) = source
                && let Some(limit) = own.get_mut(&attachment.spec.attacher)
            {
                limit.attached.insert(source.volume_handle.clone());
            }
        }
    }
    limits
}
