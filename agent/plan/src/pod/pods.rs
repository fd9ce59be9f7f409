//! Accessors of a pod's specification.

use std::borrow::Cow;

use api::pod::as_container;
use api::pod::ending;
pub use api::pod::ending::Group;
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerStatus, EphemeralContainer, ImageVolumeSource, Pod, PodSpec, Volume,
};

/// Restart policy of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// After every exit.
    Always,
    /// After an exit code other than 0.
    OnFailure,
    /// Never.
    Never,
}

impl Policy {
    /// True if a container that exited with `code` is restarted.
    pub fn restarts(self, code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => code != 0,
            Self::Never => false,
        }
    }

    fn parse(text: Option<&str>) -> Self {
        match text {
            Some("OnFailure") => Self::OnFailure,
            Some("Never") => Self::Never,
            _ => Self::Always,
        }
    }
}

/// Copy of the pod that is kept while it runs: without `managedFields`, which the agent does not
/// read. A copy, because a decoded object's lists have spare capacity and a clone's have none.
pub fn kept(mut pod: Pod) -> Pod {
    pod.metadata.managed_fields = None;
    pod.clone()
}

/// The main containers of a pod.
pub fn main_containers(pod: &Pod) -> &[Container] {
    pod.spec.as_ref().map_or(&[], |spec| spec.containers.as_slice())
}

/// The init containers, which are started one by one before the main ones.
pub fn init_containers(pod: &Pod) -> &[Container] {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.init_containers.as_deref())
        .unwrap_or(&[])
}

/// All containers, init containers first.
pub fn all_containers(pod: &Pod) -> impl DoubleEndedIterator<Item = &Container> {
    init_containers(pod).iter().chain(main_containers(pod))
}

/// The ephemeral containers, added to debug a running pod.
pub fn ephemeral_containers(pod: &Pod) -> &[EphemeralContainer] {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.ephemeral_containers.as_deref())
        .unwrap_or(&[])
}

/// The volumes of a pod.
pub fn volumes(pod: &Pod) -> &[Volume] {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.volumes.as_deref())
        .unwrap_or(&[])
}

/// Returns the image volumes that a container mounts, by name and in the pod's order.
pub fn image_volumes<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> impl Iterator<Item = (&'a str, &'a ImageVolumeSource)> {
    let shown = |name: &str| container.volume_mounts.iter().flatten().any(|mount| mount.name == name);
    volumes(pod)
        .iter()
        .filter_map(|volume| Some((volume.name.as_str(), volume.image.as_ref()?)))
        .filter(move |(volume, _)| shown(volume))
}

/// Returns a container by its name, including ephemeral ones.
pub fn container<'a>(pod: &'a Pod, name: &str) -> Option<Cow<'a, Container>> {
    let own = all_containers(pod).find(|container| container.name == name);
    let added = || {
        ephemeral_containers(pod)
            .iter()
            .find(|container| container.name == name)
    };
    own.map(Cow::Borrowed)
        .or_else(|| added().map(|added| Cow::Owned(as_container(added))))
}

/// Returns the target container of an ephemeral container.
pub fn target<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    let own = ephemeral_containers(pod)
        .iter()
        .find(|container| container.name == name)?;
    own.target_container_name.as_deref().filter(|target| !target.is_empty())
}

/// True if the name is that of an ephemeral container.
pub fn is_ephemeral(pod: &Pod, name: &str) -> bool {
    ephemeral_containers(pod).iter().any(|container| container.name == name)
}

/// True for an init container that keeps running beside the main containers.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// True if the container is a sidecar of the pod: a main container may have the same restart
/// policy, which does not make it one.
pub fn is_sidecar_of(pod: &Pod, container: &Container) -> bool {
    is_sidecar(container) && is_init(pod, &container.name)
}

/// True if the name is that of an init container.
pub fn is_init(pod: &Pod, name: &str) -> bool {
    init_containers(pod).iter().any(|container| container.name == name)
}

/// The pod's restart policy.
pub fn policy(pod: &Pod) -> Policy {
    Policy::parse(pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()))
}

/// Returns the restart policy of a container: its own, or the pod's; `OnFailure` for an init
/// container of a pod with `Always`, `Never` for an ephemeral one.
pub fn container_policy(pod: &Pod, container: &Container) -> Policy {
    policy_in(pod, group(pod, &container.name), container)
}

fn policy_in(pod: &Pod, group: Group, container: &Container) -> Policy {
    if group == Group::Ephemeral {
        return Policy::Never;
    }
    if let Some(own) = container.restart_policy.as_deref() {
        return Policy::parse(Some(own));
    }
    let policy = policy(pod);
    if policy == Policy::Always && group == Group::Init {
        Policy::OnFailure
    } else {
        policy
    }
}

/// True if a container that exited with `code` is restarted: its restart rules take precedence over
/// its policy.
pub fn restarts(pod: &Pod, container: &Container, code: i32) -> bool {
    restarts_in(pod, group(pod, &container.name), container, code)
}

/// Same as [`restarts`] with a known group, which saves a search through all containers.
pub fn restarts_in(pod: &Pod, group: Group, container: &Container, code: i32) -> bool {
    ending::rule(container, code).is_some() || policy_in(pod, group, container).restarts(code)
}

/// True if a container is restarted after a failed probe: whatever its exit code, unless its policy
/// is `Never`.
pub fn revives(pod: &Pod, container: &str) -> bool {
    let found = self::container(pod, container);
    found.is_some_and(|found| container_policy(pod, &found) != Policy::Never)
}

/// True if all containers are restarted when this one exits with `code`.
pub fn restarts_all(container: &Container, code: i32) -> bool {
    ending::rule(container, code).is_some_and(ending::restarts_all)
}

/// True if the pod has a rule that may restart all of its containers.
pub fn may_restart_all(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(ending::may_restart_all)
}

/// Returns the group of a container.
pub fn group(pod: &Pod, name: &str) -> Group {
    if is_ephemeral(pod, name) {
        Group::Ephemeral
    } else if is_init(pod, name) {
        Group::Init
    } else {
        Group::Main
    }
}

/// Returns the grace period in seconds of a pod that is not deleted. A negative one counts as a
/// second.
pub fn grace(pod: &Pod) -> i64 {
    match pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds) {
        None => 30,
        Some(..0) => 1,
        Some(seconds) => seconds,
    }
}

/// Returns the grace period in seconds of a pod that is being deleted.
pub fn deletion_grace(pod: &Pod) -> Option<i64> {
    pod.metadata.deletion_timestamp.as_ref()?;
    Some(pod.metadata.deletion_grace_period_seconds.unwrap_or_else(|| grace(pod)))
}

/// `namespace`, empty when missing.
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// `name`, empty when missing.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// `uid`, empty when missing.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Returns the stored statuses of a group of containers.
pub fn stored_statuses(pod: &Pod, group: Group) -> &[ContainerStatus] {
    let of_group = pod.status.as_ref().and_then(|status| match group {
        Group::Main => status.container_statuses.as_deref(),
        Group::Init => status.init_container_statuses.as_deref(),
        Group::Ephemeral => status.ephemeral_container_statuses.as_deref(),
    });
    of_group.unwrap_or_default()
}

/// Returns the stored status of a container.
pub fn stored_status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let initial = status.init_container_statuses.iter().flatten();
    initial
        .chain(status.container_statuses.iter().flatten())
        .chain(status.ephemeral_container_statuses.iter().flatten())
        .find(|status| status.name == name)
}

/// True if the pod is on the host network.
pub fn host_network(spec: &PodSpec) -> bool {
    spec.host_network.unwrap_or(false)
}

/// Returns the host ports of a pod's main containers and sidecars.
pub fn host_ports(spec: &PodSpec) -> impl Iterator<Item = &ContainerPort> {
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|container| is_sidecar(container));
    let ports = spec.containers.iter().chain(sidecars);
    ports
        .flat_map(|container| container.ports.iter().flatten())
        .filter(|port| port.host_port.is_some_and(|port| port != 0))
}

/// Returns the hostname inside the pod: `hostnameOverride`, `spec.hostname` or the pod's name, at
/// most 63 characters (`GeneratePodHostNameAndDomain`, `pkg/kubelet/kubelet_pods.go`).
pub fn hostname(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    let whole = spec.and_then(|spec| spec.hostname_override.as_deref());
    let own = || spec?.hostname.as_deref().filter(|hostname| !hostname.is_empty());
    let wanted = whole.or_else(own).unwrap_or_else(|| name(pod));
    let short: String = wanted.chars().take(63).collect();
    short.trim_end_matches(['-', '.']).to_owned()
}

/// Returns the domain of a pod that has a subdomain, in a cluster with this domain. A
/// `hostnameOverride` has no domain.
pub fn domain(pod: &Pod, cluster: &str) -> Option<String> {
    let spec = pod.spec.as_ref().filter(|spec| spec.hostname_override.is_none())?;
    let subdomain = spec.subdomain.as_deref()?;
    (!subdomain.is_empty()).then(|| format!("{subdomain}.{}.svc.{cluster}", namespace(pod)))
}

/// Returns the phase that the API has for the pod if it is terminal, which is final.
pub fn terminal_phase(pod: &Pod) -> Option<&str> {
    let phase = pod.status.as_ref()?.phase.as_deref()?;
    matches!(phase, "Succeeded" | "Failed").then_some(phase)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    #[test]
    fn a_grace_period_below_zero_is_a_second() {
        for (given, expected) in [(json!(null), 30), (json!(0), 0), (json!(-1), 1), (json!(7), 7)] {
            let text = json!({"metadata": {}, "spec": {"containers": [], "terminationGracePeriodSeconds": given}});
            let pod: Pod = serde_json::from_value(text).unwrap();
            assert_eq!(super::grace(&pod), expected);
        }
    }

    #[test]
    fn a_pod_is_kept_without_what_nobody_reads() {
        let text = json!({
            "metadata": {"name": "p", "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]},
            "spec": {"containers": [{"name": "a", "command": ["sh"]}]},
        });
        let decoded: Pod = serde_json::from_str(&text.to_string()).unwrap();
        let room = |pod: &Pod| super::main_containers(pod)[0].command.as_ref().unwrap().capacity();
        assert!(room(&decoded) > 1, "decoding leaves room");
        let spec = decoded.spec.clone();
        let kept = super::kept(decoded);
        assert_eq!((&kept.spec, room(&kept)), (&spec, 1));
        assert_eq!(kept.metadata.managed_fields, None);
    }
}
