//! Disruption controller: maintains the status of disruption budgets.

use std::{collections::BTreeMap, sync::Arc};

use api::selector::LabelSelector;
use controlplane_plan::objects::{Meta as _, controller_of, uid};
use controlplane_plan::pod::Pod;
use controlplane_plan::step::Plan;
use controlplane_plan::workloads::disruption::{self, Member};
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::{api::policy::v1::PodDisruptionBudget, jiff::Timestamp};

use crate::machinery::{cache::Key, driver::Controller, kinds::Caches, queue::Queue};

/// Plans budgets; a key is a budget.
pub(crate) struct Disruption(pub(crate) Arc<Caches>);

impl Controller for Disruption {
    fn component(&self) -> &'static str {
        "controllermanager"
    }

    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        let Some(budget) = self.0.budgets.get(key) else {
            return Plan::default();
        };
        if budget.metadata.deletion_timestamp.is_some() {
            return Plan::default();
        }
        let pods = self.0.pods.in_namespace(&key.namespace);
        let pods: Vec<&Pod> = pods
            .iter()
            .map(Arc::as_ref)
            .filter(|pod| selects(&budget, pod))
            .collect();
        let mut siblings: BTreeMap<&str, i32> = BTreeMap::new();
        for owner in pods.iter().filter_map(|pod| controller_of(&pod.metadata)) {
            *siblings.entry(&owner.uid).or_default() += 1;
        }
        let members: Vec<Member<'_>> = pods
            .iter()
            .map(|pod| Member {
                pod,
                manager: self.manager(pod, &siblings),
            })
            .collect();
        disruption::plan(&budget, &members, now)
    }
}

impl Disruption {
    /// Controller of a pod and its desired number of pods; without a cached scale, the number of
    /// existing pods.
    fn manager(&self, pod: &Pod, siblings: &BTreeMap<&str, i32>) -> Option<(String, i32)> {
        let owner = controller_of(&pod.metadata)?;
        let namespace = pod.metadata.namespace();
        let key = Key::new(namespace, &owner.name);
        let wanted = |replicas: Option<i32>| replicas.unwrap_or(1);
        let elder = self.0.replication_controllers.get(&key);
        if let Some(elder) = elder.filter(|elder| owner.kind == "ReplicationController" && uid(&**elder) == owner.uid) {
            let replicas = elder.0.spec.as_ref().and_then(|spec| spec.replicas);
            return Some((owner.uid.clone(), wanted(replicas)));
        }
        let stateful = self.0.stateful_sets.get(&key);
        if let Some(set) = stateful.filter(|set| owner.kind == "StatefulSet" && uid(&**set) == owner.uid) {
            let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
            return Some((owner.uid.clone(), wanted(replicas)));
        }
        let set = self.0.replica_sets.get(&key);
        let Some(set) = set.filter(|set| owner.kind == "ReplicaSet" && set.metadata.uid.as_ref() == Some(&owner.uid))
        else {
            return Some((
                owner.uid.clone(),
                siblings.get(owner.uid.as_str()).copied().unwrap_or(1),
            ));
        };
        let above = controller_of(&set.metadata).filter(|above| above.kind == "Deployment");
        let deployment = above.and_then(|above| self.0.deployments.get(&Key::new(namespace, &above.name)));
        Some(match deployment {
            Some(deployment) => (
                deployment.metadata.uid.clone().unwrap_or_default(),
                wanted(deployment.spec.as_ref().and_then(|spec| spec.replicas)),
            ),
            None => (
                owner.uid.clone(),
                wanted(set.spec.as_ref().and_then(|spec| spec.replicas)),
            ),
        })
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
    let wake = queue.clone();
    caches.budgets.listen(move |change| {
        if let Some(budget) = change.new {
            wake.push(Key::of(&budget.metadata));
        }
    });
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
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    let rescaled = move |namespace: Option<&str>| {
        let Some(caches) = all.upgrade() else { return };
        let budgets = caches.budgets.in_namespace(namespace.unwrap_or_default());
        for budget in &budgets {
            wake.push(Key::of(&budget.metadata));
        }
    };
    let wake = rescaled.clone();
    caches.deployments.listen(move |change| {
        if let Some(deployment) = change.new {
            wake(deployment.metadata.namespace.as_deref());
        }
    });
    let wake = rescaled.clone();
    caches.stateful_sets.listen(move |change| {
        if let Some(set) = change.new {
            wake(set.metadata.namespace.as_deref());
        }
    });
    let wake = rescaled.clone();
    caches.replica_sets.listen(move |change| {
        if let Some(set) = change.new {
            wake(set.metadata.namespace.as_deref());
        }
    });
    caches.replication_controllers.listen(move |change| {
        if let Some(elder) = change.new {
            rescaled(elder.0.metadata.namespace.as_deref());
        }
    });
    queue
}
