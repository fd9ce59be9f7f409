//! Resources and state of pods, as used by scheduler, controllers and agent alike.

pub mod affinity;
pub(crate) mod apparmor;
pub mod defaults;
pub mod ending;
pub mod ephemeral;
pub(crate) mod label_keys;
pub mod level;
mod references;
pub mod resize;
pub mod taints;
mod told;
mod unsupported;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, PodCondition, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::value::quantity::Quantity;
pub use references::References;
pub use told::as_told;
pub use unsupported::unsupported;

/// Amounts by resource, such as `cpu`, `memory`, `ephemeral-storage`.
pub type Resources = BTreeMap<String, Quantity>;

/// True if an init container is a sidecar: it keeps running beside the main containers.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Converts an ephemeral container to a regular one; the target container is dropped.
pub fn as_container(own: &EphemeralContainer) -> Container {
    let own = own.clone();
    Container {
        args: own.args,
        command: own.command,
        env: own.env,
        env_from: own.env_from,
        image: own.image,
        image_pull_policy: own.image_pull_policy,
        lifecycle: own.lifecycle,
        liveness_probe: own.liveness_probe,
        name: own.name,
        ports: own.ports,
        readiness_probe: own.readiness_probe,
        resize_policy: own.resize_policy,
        resources: own.resources,
        restart_policy: own.restart_policy,
        restart_policy_rules: own.restart_policy_rules,
        security_context: own.security_context,
        startup_probe: own.startup_probe,
        stdin: own.stdin,
        stdin_once: own.stdin_once,
        termination_message_path: own.termination_message_path,
        termination_message_policy: own.termination_message_policy,
        tty: own.tty,
        volume_devices: own.volume_devices,
        volume_mounts: own.volume_mounts,
        working_dir: own.working_dir,
    }
}

/// Inverse of [`as_container`].
pub fn from_container(container: Container, target: Option<String>) -> EphemeralContainer {
    EphemeralContainer {
        args: container.args,
        command: container.command,
        env: container.env,
        env_from: container.env_from,
        image: container.image,
        image_pull_policy: container.image_pull_policy,
        lifecycle: container.lifecycle,
        liveness_probe: container.liveness_probe,
        name: container.name,
        ports: container.ports,
        readiness_probe: container.readiness_probe,
        resize_policy: container.resize_policy,
        resources: container.resources,
        restart_policy: container.restart_policy,
        restart_policy_rules: container.restart_policy_rules,
        security_context: container.security_context,
        startup_probe: container.startup_probe,
        stdin: container.stdin,
        stdin_once: container.stdin_once,
        target_container_name: target,
        termination_message_path: container.termination_message_path,
        termination_message_policy: container.termination_message_policy,
        tty: container.tty,
        volume_devices: container.volume_devices,
        volume_mounts: container.volume_mounts,
        working_dir: container.working_dir,
    }
}

/// Effective requests of a pod: its pod-level requests, or the sum of its containers and sidecars,
/// or the largest init container step if that is more; plus overhead.
pub fn requests(spec: &PodSpec) -> Resources {
    let mut total = container_requests(spec);
    level::overrule(
        &mut total,
        spec.resources.as_ref().and_then(|own| own.requests.as_ref()),
    );
    for (name, amount) in spec.overhead.iter().flatten() {
        add(&mut total, name, Quantity::of(amount));
    }
    total
}

/// Effective limits of a pod, for the resources that have one; plus overhead.
pub fn limits(spec: &PodSpec) -> Resources {
    let mut total = container_limits(spec);
    level::overrule(&mut total, spec.resources.as_ref().and_then(|own| own.limits.as_ref()));
    for (name, amount) in spec.overhead.iter().flatten() {
        if let Some(limit) = total.get_mut(name) {
            *limit = limit.plus(Quantity::of(amount));
        }
    }
    total
}

/// Sum of the requests of a pod's containers.
pub fn container_requests(spec: &PodSpec) -> Resources {
    aggregate(spec, |container| container.resources.as_ref()?.requests.clone())
}

/// Sum of the limits of a pod's containers.
pub fn container_limits(spec: &PodSpec) -> Resources {
    aggregate(spec, |container| container.resources.as_ref()?.limits.clone())
}

fn aggregate(spec: &PodSpec, own: impl Fn(&Container) -> Option<BTreeMap<String, Text>>) -> Resources {
    let read = |container: &Container| -> Resources {
        own(container)
            .into_iter()
            .flatten()
            .map(|(name, amount)| (name, Quantity::of(&amount)))
            .collect()
    };
    let mut total = Resources::new();
    for container in &spec.containers {
        add_all(&mut total, &read(container));
    }
    let mut sidecars = Resources::new();
    let mut peak = Resources::new();
    for container in spec.init_containers.iter().flatten() {
        let mut step = read(container);
        if is_sidecar(container) {
            add_all(&mut total, &step);
            add_all(&mut sidecars, &step);
            step.clone_from(&sidecars);
        } else {
            add_all(&mut step, &sidecars);
        }
        raise(&mut peak, &step);
    }
    raise(&mut total, &peak);
    total
}

fn add(total: &mut Resources, name: &str, amount: Quantity) {
    match total.get_mut(name) {
        Some(sum) => *sum = sum.plus(amount),
        None => {
            total.insert(name.to_owned(), amount);
        }
    }
}

fn add_all(total: &mut Resources, more: &Resources) {
    for (name, amount) in more {
        add(total, name, *amount);
    }
}

fn raise(total: &mut Resources, to: &Resources) {
    for (name, amount) in to {
        let now = total.entry(name.clone()).or_insert(*amount);
        *now = (*now).max(*amount);
    }
}

/// Quality of service class: `Guaranteed`, `Burstable` or `BestEffort`. It decides which pods are
/// evicted first.
pub fn qos(spec: &PodSpec) -> &'static str {
    let mut requests = Resources::new();
    let mut limits = Resources::new();
    let mut all_limited = true;
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let each = || containers.map(|container| container.resources.clone().unwrap_or_default());
    let counting = level::own(spec).map_or_else(|| each().collect(), |own| vec![own.clone()]);
    for resources in counting {
        let counted = |amounts: Option<BTreeMap<String, Text>>| -> Resources {
            let amounts = amounts.into_iter().flatten();
            let amounts = amounts.filter(|(name, _)| name == "cpu" || name == "memory");
            amounts
                .map(|(name, amount)| (name, Quantity::of(&amount)))
                .filter(|(_, amount)| !amount.is_zero())
                .collect()
        };
        let own_limits = counted(resources.limits);
        all_limited &= own_limits.len() == 2;
        add_all(&mut limits, &own_limits);
        add_all(&mut requests, &counted(resources.requests));
    }
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if all_limited
        && requests.iter().all(|(name, amount)| limits.get(name) == Some(amount))
        && requests.len() == 2
    {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// A condition of a pod, such as `Ready`.
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == kind)
}

/// True if the pod's `Ready` condition is true.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

/// The pod's phase, or an empty text.
pub fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// True if the pod has succeeded or failed.
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// True if the pod counts as a live replica: neither terminal nor being deleted.
pub fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && pod.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use serde_json::json;

    use super::{qos, requests};

    fn container(cpu: &str, memory: &str, policy: Option<&str>) -> serde_json::Value {
        json!({"name": "a", "restartPolicy": policy, "resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    fn total(containers: &[serde_json::Value], init: &[serde_json::Value]) -> String {
        let spec: PodSpec = serde_json::from_value(json!({"containers": containers, "initContainers": init})).unwrap();
        requests(&spec)
            .iter()
            .map(|(name, amount)| format!("{name}={amount}"))
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn requests_follow_the_rules_for_init_containers_and_sidecars() {
        let main = [container("100m", "100Mi", None), container("200m", "50Mi", None)];
        assert_eq!(total(&main, &[]), "cpu=300m memory=150Mi");
        assert_eq!(total(&main, &[container("1", "10Mi", None)]), "cpu=1 memory=150Mi");
        assert_eq!(
            total(&main, &[container("50m", "10Mi", Some("Always"))]),
            "cpu=350m memory=160Mi"
        );
        let both = [container("400m", "10Mi", Some("Always")), container("1", "10Mi", None)];
        assert_eq!(total(&main, &both), "cpu=1400m memory=160Mi");
        let late = [container("1", "10Mi", None), container("400m", "10Mi", Some("Always"))];
        assert_eq!(total(&main, &late), "cpu=1 memory=160Mi");
    }

    #[test]
    fn classes_of_service() {
        let class = |resources: serde_json::Value| {
            let spec: PodSpec =
                serde_json::from_value(json!({"containers": [{"name": "a", "resources": resources}]})).unwrap();
            qos(&spec)
        };
        assert_eq!(class(json!({})), "BestEffort");
        assert_eq!(class(json!({"requests": {"cpu": "0"}})), "BestEffort");
        assert_eq!(class(json!({"requests": {"cpu": "1"}})), "Burstable");
        let same = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(class(json!({"limits": same, "requests": same})), "Guaranteed");
        assert_eq!(
            class(json!({"limits": same, "requests": {"cpu": "500m", "memory": "1Gi"}})),
            "Burstable"
        );
        assert_eq!(
            class(json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}})),
            "Burstable"
        );
    }
}
