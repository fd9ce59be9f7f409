//! Claims of a pod: nodes from which their volumes are accessible, and bindings and provisionings
//! once a node is chosen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, TopologySelectorTerm};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};

use super::affinity::selects;
use super::{Misfit, Placed, SchedulerCache};
use crate::objects::{Meta as _, annotation, matches, name, uid};
use crate::pod::Pod;
use crate::storage::{
    NO_PROVISIONER, SELECTED_NODE, Wanted, affinity, best, claim_class, claim_phase, is_bound, requested, volume_of,
    waits,
};

const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
const ELSEWHERE: &str = "node(s) didn't match PersistentVolume's node affinity";
const NO_SUCH_VOLUME: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
const OTHER_ZONE: &str = "node(s) had no available volume zone";
const NO_SPACE: &str = "node(s) did not have enough free storage";
const TOO_MANY: &str = "node(s) exceed max volume count";
const EXCLUSIVE: &str = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
const REGION: &str = "topology.kubernetes.io/region";
const ZONE: &str = "topology.kubernetes.io/zone";
/// Topology labels of volumes that their nodes must match, and those that nodes may have instead.
const ZONES: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/region", REGION),
    ("failure-domain.beta.kubernetes.io/zone", ZONE),
    (REGION, REGION),
    (ZONE, ZONE),
];

/// A claim that a pod refers to.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Its name.
    pub name: String,
    /// True if it is made for this pod alone (a generic ephemeral volume).
    pub own: bool,
    /// The claim, if it is there.
    pub found: Option<Arc<PersistentVolumeClaim>>,
}

/// The names of a pod's claims, and whether they are ephemeral.
pub fn names(pod: &Pod) -> Vec<(String, bool)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let named = volumes.filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some((source.claim_name.clone(), false)),
        (None, Some(_)) => Some((format!("{}-{}", name(pod), volume.name), true)),
        (None, None) => None,
    });
    named.collect()
}

/// A pod's claims with their volumes and classes.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    /// Claims in the order of the pod's volumes.
    pub claims: Vec<Claim>,
    /// Volumes of their classes, and volumes that they refer to.
    pub volumes: Vec<Arc<PersistentVolume>>,
    /// Their classes.
    pub classes: BTreeMap<String, Arc<StorageClass>>,
    /// Capacities of those classes whose drivers report them.
    pub capacities: BTreeMap<String, Vec<Arc<CSIStorageCapacity>>>,
    /// CSI volumes of the pod, by driver.
    pub csi: BTreeMap<String, BTreeSet<String>>,
    /// Limits of those drivers, by node and driver.
    pub limits: BTreeMap<String, BTreeMap<String, Limit>>,
}

/// CSI volumes of a driver on a node.
#[derive(Debug, Clone, Default)]
pub struct Limit {
    /// Number of volumes that the node may have.
    pub most: usize,
    /// Volumes of its pods.
    pub used: BTreeSet<String>,
    /// Volumes that are attached to it, or are being attached.
    pub attached: BTreeSet<String>,
}

/// Binding or provisioning of a claim before its pod is bound.
#[derive(Debug, Clone)]
pub enum Bond {
    /// Bind the claim to this volume.
    Take(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>),
    /// Provision a volume on the node.
    Make(Arc<PersistentVolumeClaim>),
}

/// The pod's claims of the access mode `ReadWriteOncePod`. While another pod uses one, no node
/// fits.
pub(super) struct Exclusive<'a> {
    namespace: &'a str,
    wanted: Vec<&'a str>,
    /// Number of other pods that use one.
    users: i64,
}

impl<'a> Exclusive<'a> {
    pub(super) fn of(cache: &SchedulerCache, pod: &'a Pod, claims: &'a Claims) -> Self {
        let exclusive = |claim: &&Claim| {
            let spec = claim.found.as_ref().and_then(|claim| claim.spec.as_ref());
            let modes = spec.and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
            modes.iter().any(|mode| mode == "ReadWriteOncePod")
        };
        let wanted = claims.claims.iter().filter(exclusive);
        let mut this = Self {
            namespace: pod.metadata.namespace(),
            wanted: wanted.map(|claim| claim.name.as_str()).collect(),
            users: 0,
        };
        if !this.wanted.is_empty() {
            for placed in cache.pods() {
                this.shift(placed, 1);
            }
        }
        this
    }

    /// Adds (`1`) or removes (`-1`) a pod.
    pub(super) fn shift(&mut self, placed: &Placed, sign: i64) {
        let uses = !self.wanted.is_empty()
            && placed.pod.metadata.namespace() == self.namespace
            && names(&placed.pod)
                .iter()
                .any(|(own, _)| self.wanted.contains(&own.as_str()));
        if uses {
            self.users = self.users.saturating_add(sign);
        }
    }

    pub(super) fn check(&self) -> Result<(), Misfit> {
        if self.users > 0 {
            Err(Misfit::resolvable(EXCLUSIVE))
        } else {
            Ok(())
        }
    }
}

impl Claims {
    fn class(&self, claim: &PersistentVolumeClaim) -> Option<&StorageClass> {
        self.classes.get(claim_class(claim)).map(Arc::as_ref)
    }

    /// Checks the claims for all nodes at once.
    pub(super) fn check_pod(&self, pod: &Pod) -> Result<(), String> {
        let mut immediate = false;
        for Claim { name, own, found } in &self.claims {
            let Some(claim) = found else {
                return Err(if *own {
                    format!("waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}")
                } else {
                    format!("persistentvolumeclaim {name:?} not found")
                });
            };
            if claim_phase(claim) == "Lost" {
                let volume = volume_of(claim).unwrap_or_default();
                return Err(format!(
                    "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
                ));
            }
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            let mut owners = claim.metadata.owner_references.iter().flatten();
            if *own && !owners.any(|owner| owner.uid == uid(pod)) {
                let namespace = pod.metadata.namespace();
                let pod = crate::objects::name(pod);
                return Err(format!(
                    "PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"
                ));
            }
            immediate |= !is_bound(claim) && (volume_of(claim).is_some() || !waits(self.class(claim)));
        }
        if immediate {
            return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
        Ok(())
    }

    /// Checks that the node may have the pod's CSI volumes besides those that it has
    /// (`pkg/scheduler/framework/plugins/nodevolumelimits/csi.go`).
    pub(super) fn check_limits(&self, node: &Node) -> Result<(), Misfit> {
        let limits = self.limits.get(name(node));
        let exceeds = self.csi.iter().any(|(driver, volumes)| {
            limits.and_then(|limits| limits.get(driver)).is_some_and(|limit| {
                let new = volumes.difference(&limit.used).count();
                let held = limit.used.union(&limit.attached).count();
                new > 0 && held.saturating_add(new) > limit.most
            })
        });
        if exceeds {
            Err(Misfit::resolvable(TOO_MANY))
        } else {
            Ok(())
        }
    }

    /// True if a driver that reports its capacities has one for the claim that the node reaches
    /// (`hasEnoughCapacity`, `pkg/scheduler/framework/plugins/volumebinding/binder.go`).
    fn has_space(&self, claim: &PersistentVolumeClaim, node: &Node) -> bool {
        let capacities = self.capacities.get(claim_class(claim));
        capacities.is_none_or(|capacities| {
            capacities.iter().any(|capacity| {
                let limit = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref());
                let topology = capacity.node_topology.as_ref();
                limit.is_some_and(|limit| Quantity::of(limit) >= requested(claim))
                    && topology.is_some_and(|topology| matches(topology, node.metadata.labels.as_ref()))
            })
        })
    }

    /// Checks that the node can reach all volumes, bound ones and those that would be.
    pub(super) fn check(&self, node: &Node) -> Result<(), Misfit> {
        self.bonds(node).map(drop)
    }

    /// Bindings and provisionings that are needed if the pod goes to this node.
    pub fn bonds(&self, node: &Node) -> Result<Vec<Bond>, Misfit> {
        let mut bonds: Vec<Bond> = Vec::new();
        for claim in self.claims.iter().filter_map(|claim| claim.found.as_ref()) {
            if is_bound(claim) {
                self.reaches(claim, node)?;
            } else {
                bonds.push(self.bond(claim, node, &bonds)?);
            }
        }
        Ok(bonds)
    }

    fn reaches(&self, claim: &PersistentVolumeClaim, node: &Node) -> Result<(), Misfit> {
        let named = volume_of(claim);
        let Some(volume) = self.volumes.iter().find(|volume| Some(name(&***volume)) == named) else {
            return Err(Misfit::unresolvable(NO_SUCH_VOLUME));
        };
        if !affinity(volume).is_none_or(|wanted| selects(wanted, node)) {
            return Err(Misfit::unresolvable(ELSEWHERE));
        }
        let of_volume = |label: &str| volume.metadata.labels.as_ref()?.get(label);
        let of_node = |label: &str| node.metadata.labels.as_ref()?.get(label);
        let shares = |(label, newer): (&str, &str)| {
            of_volume(label).is_none_or(|own| {
                let there = of_node(label).or_else(|| of_node(newer));
                // The label of a volume in several zones lists all of them.
                there.is_some_and(|there| own.split("__").any(|own| own == there))
            })
        };
        // A node without any label is in a cluster of one zone
        // (`pkg/scheduler/framework/plugins/volumezone/volume_zone.go`).
        if ZONES.into_iter().all(|(label, _)| of_node(label).is_none()) || ZONES.into_iter().all(shares) {
            Ok(())
        } else {
            Err(Misfit::unresolvable(OTHER_ZONE))
        }
    }

    fn bond(&self, claim: &Arc<PersistentVolumeClaim>, node: &Node, before: &[Bond]) -> Result<Bond, Misfit> {
        let make = || {
            if self.has_space(claim, node) {
                Ok(Bond::Make(Arc::clone(claim)))
            } else {
                Err(Misfit::unresolvable(NO_SPACE))
            }
        };
        if let Some(selected) = annotation(&claim.metadata, SELECTED_NODE) {
            // It is being provisioned already.
            return if selected == name(node) {
                make()
            } else {
                Err(Misfit::unresolvable(NO_VOLUME))
            };
        }
        let taken: Vec<&str> = before
            .iter()
            .filter_map(|bond| match bond {
                Bond::Take(_, volume) => Some(name(&**volume)),
                Bond::Make(_) => None,
            })
            .collect();
        let wanted = Wanted {
            claim,
            node: Some(node),
            named_only: false,
            taken: &taken,
        };
        let found = best(&wanted, self.volumes.iter().map(Arc::as_ref)).map(name);
        if let Some(volume) = self.volumes.iter().find(|volume| Some(name(&***volume)) == found) {
            return Ok(Bond::Take(Arc::clone(claim), Arc::clone(volume)));
        }
        let class = self.class(claim).filter(|class| class.provisioner != NO_PROVISIONER);
        match class {
            Some(class) if in_topology(class.allowed_topologies.as_deref(), node) => make(),
            Some(_) | None => Err(Misfit::unresolvable(NO_VOLUME)),
        }
    }
}

/// True if the class's topology includes the node.
fn in_topology(terms: Option<&[TopologySelectorTerm]>, node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let terms = terms.unwrap_or_default();
    terms.is_empty()
        || terms.iter().any(|term| {
            let mut wanted = term.match_label_expressions.iter().flatten();
            wanted.all(|wanted| {
                labels
                    .and_then(|own| own.get(&wanted.key))
                    .is_some_and(|own| wanted.values.contains(own))
            })
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn a_node_has_no_more_volumes_of_a_driver_than_it_may() {
        let names = |names: &str| -> BTreeSet<String> { names.split_whitespace().map(str::to_owned).collect() };
        let node: Node = from_value(json!({ "metadata": { "name": "n1" } })).unwrap();
        for (wanted, used, attached, fits) in [
            ("a", "b", "", true),
            ("a b", "b", "b", true),
            ("a c", "b", "", false),
            ("a", "b", "b c", false),
            ("a", "a b c", "", true),
        ] {
            let limit = Limit {
                most: 2,
                used: names(used),
                attached: names(attached),
            };
            let claims = Claims {
                csi: BTreeMap::from([("driver".to_owned(), names(wanted))]),
                limits: BTreeMap::from([("n1".to_owned(), BTreeMap::from([("driver".to_owned(), limit)]))]),
                ..Claims::default()
            };
            let told = claims.check_limits(&node).map_err(|misfit| misfit.reasons.join(" "));
            let expected = if fits { Ok(()) } else { Err(TOO_MANY.to_owned()) };
            assert_eq!(told, expected, "{wanted:?} besides {used:?} and {attached:?}");
        }
    }

    #[test]
    fn a_volume_is_made_where_its_driver_has_space() {
        let zone = json!({ "matchLabels": { "zone": "a" } });
        let (here, elsewhere) = (json!({ "zone": "a" }), json!({ "zone": "b" }));
        for (capacity, node, has) in [
            (json!({ "capacity": "2Gi", "nodeTopology": zone }), &here, true),
            (json!({ "capacity": "2Gi", "nodeTopology": zone }), &elsewhere, false),
            (json!({ "capacity": "2Gi", "nodeTopology": {} }), &elsewhere, true),
            (json!({ "capacity": "2Gi" }), &here, false),
            (json!({ "nodeTopology": zone }), &here, false),
            (json!({ "capacity": "512Mi", "nodeTopology": zone }), &here, false),
            (
                json!({ "capacity": "2Gi", "maximumVolumeSize": "512Mi", "nodeTopology": zone }),
                &here,
                false,
            ),
        ] {
            let told = format!("{capacity} from {node}");
            let node: Node = from_value(json!({ "metadata": { "name": "n1", "labels": node } })).unwrap();
            let mut reported = json!({ "metadata": { "name": "c" }, "storageClassName": "slow" });
            let fields = reported.as_object_mut().unwrap();
            fields.extend(capacity.as_object().unwrap().clone());
            let class = json!({ "metadata": { "name": "slow" }, "provisioner": "csi.example.com" });
            let claim = json!({
                "metadata": { "name": "data" },
                "spec": { "storageClassName": "slow", "resources": { "requests": { "storage": "1Gi" } } },
            });
            let mut claims = Claims {
                classes: BTreeMap::from([("slow".to_owned(), Arc::new(from_value(class).unwrap()))]),
                ..Claims::default()
            };
            let claim: Arc<PersistentVolumeClaim> = Arc::new(from_value(claim).unwrap());
            assert!(claims.bond(&claim, &node, &[]).is_ok(), "the driver reports nothing");
            let reported = vec![Arc::new(from_value(reported).unwrap())];
            claims.capacities.insert("slow".to_owned(), reported);
            let bond = claims.bond(&claim, &node, &[]).map(drop);
            let expected = if has {
                Ok(())
            } else {
                Err(Misfit::unresolvable(NO_SPACE))
            };
            assert_eq!(
                bond.map_err(|misfit| misfit.reasons),
                expected.map_err(|misfit| misfit.reasons),
                "{told}"
            );
        }
    }

    #[test]
    fn a_volume_is_reached_from_its_zones() {
        let (old, zone, region) = ("failure-domain.beta.kubernetes.io/zone", ZONE, REGION);
        for (volume, node, reached) in [
            (json!({}), json!({ zone: "a" }), true),
            (json!({ zone: "a" }), json!({}), true),
            (json!({ zone: "a" }), json!({ zone: "a", region: "r" }), true),
            (json!({ zone: "a" }), json!({ zone: "b" }), false),
            (json!({ zone: "a__b" }), json!({ zone: "b" }), true),
            (json!({ zone: "a" }), json!({ region: "r" }), false),
            (json!({ old: "a" }), json!({ zone: "a" }), true),
            (json!({ old: "a" }), json!({ zone: "b" }), false),
            (json!({ old: "a" }), json!({ old: "a", zone: "b" }), true),
            (json!({ zone: "a" }), json!({ old: "a" }), false),
        ] {
            let told = format!("{volume} from {node}");
            let volume = from_value(json!({ "metadata": { "name": "v", "labels": volume } })).unwrap();
            let node: Node = from_value(json!({ "metadata": { "labels": node } })).unwrap();
            let claim = json!({ "metadata": {}, "spec": { "volumeName": "v" } });
            let claim: PersistentVolumeClaim = from_value(claim).unwrap();
            let claims = Claims {
                volumes: vec![Arc::new(volume)],
                ..Claims::default()
            };
            assert_eq!(claims.reaches(&claim, &node).is_ok(), reached, "{told}");
        }
    }
}
