//! Disruption controller: maintains the status of disruption budgets.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use api::selector::LabelSelector;
use controlplane_plan::objects::{Meta as _, controller_of, name, uid};
use controlplane_plan::pod::Pod;
use controlplane_plan::step::{Plan, Resource, Step, Target};
use controlplane_plan::workloads::disruption::{self, Manager, Member};
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;

use crate::machinery::cache::{Cache, Cached, Key};
use crate::machinery::driver::{Controller, Size};
use crate::machinery::kinds::Caches;
use crate::machinery::queue::Queue;

/// Plans budgets; a key is a budget.
pub(crate) struct Disruption {
    caches: Arc<Caches>,
    /// Sizes of controllers that are not cached, by their uids. Each is read for one plan.
    sizes: Mutex<BTreeMap<String, Size>>,
    /// Uids of each budget's pods that other budgets select, too.
    shared: Mutex<BTreeMap<Key, BTreeSet<String>>>,
}

impl Controller for Disruption {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(budget) = self.caches.budgets.get(key) else {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.remove(key);
            return plan;
        };
        if budget.metadata.deletion_timestamp.is_some() {
            return plan;
        }
        let pods = self.caches.pods.in_namespace(&key.namespace);
        let pods: Vec<&Pod> = pods
            .iter()
            .map(Arc::as_ref)
            .filter(|pod| selects(&budget, pod))
            .collect();
        let mut unmeasured = BTreeMap::new();
        let needs_sizes = disruption::needs_sizes(&budget);
        let members: Vec<Member<'_>> = pods
            .into_iter()
            .map(|pod| Member {
                pod,
                manager: match controller_of(&pod.metadata).filter(|_| needs_sizes) {
                    Some(owner) => self.manager(pod, owner, &mut unmeasured),
                    None => Manager::None,
                },
            })
            .collect();
        if !unmeasured.is_empty() {
            plan.stage(unmeasured.into_values().map(Step::Measure).collect());
            return plan;
        }
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        for owner in members.iter().filter_map(|member| controller_of(&member.pod.metadata)) {
            sizes.remove(&owner.uid);
        }
        let mut plan = disruption::plan(&budget, &members, now);
        let shared = self.shared(key, &members);
        if !shared.is_empty() {
            plan.stages.insert(0, shared);
        }
        plan
    }

    fn measured(&self, target: &Target, size: &Size) {
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        sizes.insert(target.uid.clone(), size.clone());
    }
}

impl Disruption {
    pub(crate) fn new(caches: Arc<Caches>) -> Self {
        Self {
            caches,
            sizes: Mutex::default(),
            shared: Mutex::default(),
        }
    }

    /// Events about pods that other budgets select, too; each pod has one.
    fn shared(&self, key: &Key, members: &[Member<'_>]) -> Vec<Step> {
        let budgets = self.caches.budgets.in_namespace(&key.namespace);
        let selectors = budgets.iter().filter_map(|budget| {
            let selector = budget.spec.as_ref()?.selector.as_ref()?;
            Some((name(&**budget), LabelSelector::of(Some(selector)).ok()?))
        });
        let selectors: Vec<_> = selectors.collect();
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let mut shared = BTreeSet::new();
        let mut events = Vec::new();
        for pod in members.iter().map(|member| member.pod) {
            let matching = selectors
                .iter()
                .filter(|(_, selector)| selector.matches_option(pod.metadata.labels()));
            let names: BTreeSet<&str> = matching.map(|(name, _)| *name).collect();
            let (Some(first), 2..) = (names.first(), names.len()) else {
                continue;
            };
            if !all.values().any(|pods| pods.contains(uid(pod))) {
                events.push(disruption::multiple_budgets(pod, first));
            }
            shared.insert(uid(pod).to_owned());
        }
        all.insert(key.clone(), shared);
        events
    }

    /// Controller of a pod and its desired number of pods.
    fn manager(&self, pod: &Pod, owner: &OwnerReference, unmeasured: &mut BTreeMap<String, Target>) -> Manager {
        let scaled = |uid: &str, replicas: Option<i32>| Manager::Scaled(uid.to_owned(), replicas.unwrap_or(1));
        let key = Key::new(pod.metadata.namespace(), &owner.name);
        let elder = self.caches.replication_controllers.get(&key);
        if let Some(elder) = elder.filter(|elder| owner.kind == "ReplicationController" && uid(&**elder) == owner.uid) {
            return scaled(&owner.uid, elder.0.spec.as_ref().and_then(|spec| spec.replicas));
        }
        let stateful = self.caches.stateful_sets.get(&key);
        if let Some(set) = stateful.filter(|set| owner.kind == "StatefulSet" && uid(&**set) == owner.uid) {
            return scaled(&owner.uid, set.spec.as_ref().and_then(|spec| spec.replicas));
        }
        let set = self.caches.replica_sets.get(&key);
        if let Some(set) = set.filter(|set| owner.kind == "ReplicaSet" && uid(&**set) == owner.uid) {
            let above = controller_of(&set.metadata).filter(|above| above.kind == "Deployment");
            let above = above.and_then(|above| self.caches.deployments.get(&Key::new(&key.namespace, &above.name)));
            return match above {
                Some(above) => scaled(uid(&*above), above.spec.as_ref().and_then(|spec| spec.replicas)),
                None => scaled(&owner.uid, set.spec.as_ref().and_then(|spec| spec.replicas)),
            };
        }
        self.other(pod, owner, unmeasured)
    }

    /// A controller of another kind, by its scale (`getScaleController` of
    /// `pkg/controller/disruption/disruption.go`).
    fn other(&self, pod: &Pod, owner: &OwnerReference, unmeasured: &mut BTreeMap<String, Target>) -> Manager {
        let (kind, version) = (&owner.kind, &owner.api_version);
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let Some(resource) = self.caches.resource(group, kind) else {
            return Manager::Unknown(format!("no matches for kind {kind:?} in version {version:?}"));
        };
        if !self.caches.has_scale(&resource) {
            let parts = [resource.plural, resource.group];
            let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            return Manager::Unknown(format!("{} does not implement the scale subresource", parts.join(".")));
        }
        let sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        match sizes.get(&owner.uid) {
            Some(Ok(Some(replicas))) => Manager::Scaled(owner.uid.clone(), *replicas),
            Some(Ok(None)) => Manager::Unknown(format!("found no controllers for pod {:?}", name(pod))),
            Some(Err(error)) => Manager::Unknown(error.clone()),
            None => {
                unmeasured.insert(owner.uid.clone(), at(pod, owner, resource));
                Manager::None
            }
        }
    }
}

fn at(pod: &Pod, owner: &OwnerReference, resource: Resource) -> Target {
    let namespace = pod.metadata.namespace();
    Target {
        resource,
        namespace: if resource.namespaced { namespace } else { "" }.to_owned(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
    }
}

fn selects(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some()
        && LabelSelector::of(selector).is_ok_and(|selector| selector.matches_option(pod.metadata.labels()))
}

/// Wakes budgets on changes of themselves, of their pods, and of the scale of the pods'
/// controllers.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("disruption");
    caches.budgets.wake(&queue);
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.pods.listen(move |change| {
        let Some(caches) = all.upgrade() else { return };
        for pod in change.sides() {
            let namespace = pod.metadata.namespace();
            let budgets = caches.budgets.in_namespace(namespace);
            let concerned = budgets.iter().filter(|budget| selects(budget, pod));
            concerned.for_each(|budget| wake.push(Key::of(&budget.metadata)));
        }
    });
    wake_rescaled(&caches.deployments, caches, &queue, |own| own.spec.as_ref()?.replicas);
    wake_rescaled(&caches.stateful_sets, caches, &queue, |own| own.spec.as_ref()?.replicas);
    wake_rescaled(&caches.replica_sets, caches, &queue, |own| own.spec.as_ref()?.replicas);
    wake_rescaled(&caches.replication_controllers, caches, &queue, |own| {
        own.0.spec.as_ref()?.replicas
    });
    queue
}

/// Wakes the budgets of a namespace in which an object's number of pods changes.
fn wake_rescaled<K: Cached>(
    objects: &Cache<K>,
    caches: &Arc<Caches>,
    queue: &Arc<Queue<Key>>,
    size: fn(&K) -> Option<i32>,
) {
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    objects.listen(move |change| {
        let Some(object) = change.sides().last() else { return };
        let Some(caches) = all
            .upgrade()
            .filter(|_| change.old.and_then(size) != change.new.and_then(size))
        else {
            return;
        };
        for budget in &caches.budgets.in_namespace(object.meta().namespace()) {
            wake.push(Key::of(&budget.metadata));
        }
    });
}

/// Plans pods that were to be deleted.
pub(crate) struct StaleDisruption(pub(crate) Arc<Caches>);

impl Controller for StaleDisruption {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        let pod = self.0.pods.get(key);
        pod.map(|pod| disruption::stale_disruption(&pod, now))
            .unwrap_or_default()
    }
}

/// Wakes pods with the `DisruptionTarget` condition.
pub(crate) fn listen_stale(caches: &Caches) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("stale_pod_disruption");
    caches.pods.wake_if(&queue, |pod| pod.status.disrupted.is_some());
    queue
}
