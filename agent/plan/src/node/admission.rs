//! Admission of pods to the node. A pod that the node rejects has failed, with a reason that names
//! the cause.

mod bounds;
mod node;
pub mod preemption;
mod room;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{AppArmorProfile, Node, Pod, PodSpec};

use crate::node::eviction::{self, Pressure};
use crate::node::shutdown;
use crate::pod::pods;
use crate::pod::termination::Rejection;
pub use node::{asks_for_labels, suits};
pub use room::room;

/// Safe sysctls: namespaced, and without effect on other pods.
const SAFE_SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// Resources and state of the node that admission looks at.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Maximum number of pods.
    pub pods: i64,
    /// Amounts in thousandths, by resource.
    pub allocatable: BTreeMap<String, i64>,
    /// The node's other pods.
    pub others: Vec<Arc<Pod>>,
    /// The Node object, once it has been read.
    pub node: Option<Arc<Node>>,
    /// Conditions of pressure that the node has.
    pub pressures: BTreeSet<Pressure>,
    /// True while the node shuts down.
    pub shutting_down: bool,
    /// True if the kernel supports `AppArmor`.
    pub app_armor: bool,
}

/// Returns the pods to preempt before the node has room for this one, if any, or the rejection of
/// the pod.
pub fn check(pod: &Pod, host: &Host) -> Result<Vec<Arc<Pod>>, Rejection> {
    let Some(spec) = pod.spec.as_ref() else {
        return Ok(Vec::new());
    };
    let critical = eviction::is_critical(pod);
    let going = host.shutting_down.then(shutdown::refusal);
    let refused = going
        .or_else(|| eviction::refusal(pod, &host.pressures))
        .or_else(|| sysctls(spec))
        .or_else(|| (!host.app_armor).then(|| app_armor(spec)).flatten())
        .or_else(|| operating_system(pod))
        // A critical pod may preempt others, unless something else prevents its admission.
        .or_else(|| (!critical).then(|| room(spec, host)).flatten())
        .or_else(|| host.node.as_ref().and_then(|own| node::labels(spec, own)))
        .or_else(|| ports(spec, host))
        .or_else(|| host.node.as_ref().and_then(|own| node::taints(pod, own)))
        .or_else(|| bounds::too_much(spec))
        .or_else(|| unsupported(spec));
    match refused {
        Some(refused) => Err(refused),
        None if critical => preemption::victims(pod, host, &room::missing(spec, host)),
        None => Ok(Vec::new()),
    }
}

fn rejection(reason: impl Into<Cow<'static, str>>, message: impl std::fmt::Display) -> Rejection {
    Rejection {
        reason: reason.into(),
        message: format!("Pod was rejected: {message}"),
    }
}

/// Rejection of a pod that cannot have its plugins' devices (`unexpectedAdmissionError`,
/// `pkg/kubelet/cm/admission/errors.go`).
pub fn without_devices(why: &str) -> Rejection {
    let message = format!("Allocate failed due to {why}, which is unexpected");
    rejection("UnexpectedAdmissionError", message)
}

/// The API server rejects such pods too, but may have admitted one before this agent's version.
fn unsupported(spec: &PodSpec) -> Option<Rejection> {
    let found = api::pod::unsupported(spec).into_iter().next()?;
    Some(rejection("UnexpectedAdmissionError", found))
}

fn sysctls(spec: &PodSpec) -> Option<Rejection> {
    let sysctls = spec.security_context.as_ref()?.sysctls.as_ref()?;
    sysctls.iter().find_map(|sysctl| {
        let name = sysctl.name.replace('/', ".");
        // The value must not inject a second setting.
        let plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, ' ' | '\t' | '-' | ',');
        let why = if !SAFE_SYSCTLS.contains(&name.as_str()) || !sysctl.value.chars().all(plain) {
            "not allowlisted"
        } else if spec.host_network == Some(true) && name.starts_with("net.") {
            "not allowed with host net enabled"
        } else if spec.host_ipc == Some(true) && name.starts_with("kernel.") {
            "not allowed with host ipc enabled"
        } else {
            return None;
        };
        Some(rejection(
            "SysctlForbidden",
            format!("forbidden sysctl: {name:?} {why}"),
        ))
    })
}

fn app_armor(spec: &PodSpec) -> Option<Rejection> {
    let confines = |profile: Option<&AppArmorProfile>| profile.is_some_and(|profile| profile.type_ != "Unconfined");
    let pod = spec
        .security_context
        .as_ref()
        .and_then(|own| own.app_armor_profile.as_ref());
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let asked = confines(pod)
        || containers.any(|container| {
            let own = container.security_context.as_ref();
            confines(own.and_then(|own| own.app_armor_profile.as_ref()))
        });
    asked.then(|| {
        rejection(
            "AppArmor",
            "Cannot enforce AppArmor: AppArmor is not enabled on the host",
        )
    })
}

fn operating_system(pod: &Pod) -> Option<Rejection> {
    let other = |name: Option<&str>| name.is_some_and(|name| name != "linux");
    let label = pod.metadata.labels.as_ref();
    let label = label.and_then(|labels| labels.get("kubernetes.io/os"));
    if other(label.map(String::as_str)) {
        let why = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return Some(rejection("PodOSSelectorNodeLabelDoesNotMatch", why));
    }
    let spec = pod.spec.as_ref();
    other(spec.and_then(|spec| spec.os.as_ref()).map(|os| os.name.as_str())).then(|| {
        let why = "Failed to admit pod as the OS field doesn't match node OS";
        rejection("PodOSNotSupported", why)
    })
}

/// Returns the pods that use resources of the node now.
fn active(host: &Host) -> impl Iterator<Item = &PodSpec> {
    active_pods(host).filter_map(|pod| pod.spec.as_ref())
}

fn active_pods(host: &Host) -> impl Iterator<Item = &Arc<Pod>> {
    host.others.iter().filter(|pod| api::pod::is_active(pod))
}

fn ports(spec: &PodSpec, host: &Host) -> Option<Rejection> {
    let key = |port: &k8s_openapi::api::core::v1::ContainerPort| {
        let address = port
            .host_ip
            .clone()
            .filter(|address| !address.is_empty() && address != "::");
        (
            port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            port.host_port,
            address.filter(|address| address != "0.0.0.0"),
        )
    };
    let taken: Vec<_> = active(host).flat_map(pods::host_ports).map(key).collect();
    let mut wanted = pods::host_ports(spec).map(key);
    let clash = wanted.any(|(protocol, port, address)| {
        taken.iter().any(|(other_protocol, other_port, other_address)| {
            let overlaps = address.is_none() || other_address.is_none() || address == *other_address;
            protocol == *other_protocol && port == *other_port && overlaps
        })
    });
    let what = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    clash.then(|| rejection("NodePorts", what))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        Pod {
            spec: Some(serde_json::from_value(spec).unwrap()),
            ..Pod::default()
        }
    }

    fn asking(cpu: &str, port: i32, address: &str) -> Pod {
        pod(json!({"containers": [{
            "name": "a", "resources": {"requests": {"cpu": cpu}},
            "ports": [{"containerPort": 80, "hostPort": port, "hostIP": address}],
        }]}))
    }

    fn host(others: Vec<Pod>) -> Host {
        Host {
            pods: 2,
            allocatable: BTreeMap::from([("cpu".to_owned(), 2000), ("memory".to_owned(), 1 << 40)]),
            others: others.into_iter().map(Arc::new).collect(),
            ..Host::default()
        }
    }

    fn says(pod: &Pod, host: &Host) -> String {
        let refused = check(pod, host).err();
        refused.map_or_else(String::new, |found| format!("{}: {}", found.reason, found.message))
    }

    #[test]
    fn pods_of_other_systems_are_refused() {
        let of = |label: &str, more: serde_json::Value| {
            let mut spec = json!({"containers": [{"name": "a"}]});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let mut pod = pod(spec);
            pod.metadata.labels = Some(BTreeMap::from([("kubernetes.io/os".to_owned(), label.to_owned())]));
            says(&pod, &host(Vec::new()))
        };
        assert_eq!(of("linux", json!({"os": {"name": "linux"}})), "");
        assert_eq!(
            of("linux", json!({"os": {"name": "windows"}})),
            "PodOSNotSupported: Pod was rejected: Failed to admit pod as the OS field doesn't match node OS"
        );
        assert_eq!(
            of("plan9", json!({})),
            "PodOSSelectorNodeLabelDoesNotMatch: Pod was rejected: Failed to admit pod as the `kubernetes.io/os` label \
             doesn't match node label"
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_in_upstreams_words() {
        let (one, two) = (asking("1500m", 1, ""), asking("600m", 2, ""));
        assert_eq!(says(&one, &host(Vec::new())), "");
        assert_eq!(
            says(&two, &host(vec![one.clone()])),
            "OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu, requested: 600, used: 1500, capacity: 2000"
        );
        let mut gone = one.clone();
        gone.status = Some(serde_json::from_value(json!({"phase": "Failed"})).unwrap());
        assert_eq!(says(&two, &host(vec![gone])), "");
        let small = asking("1m", 3, "");
        assert_eq!(
            says(&small, &host(vec![small.clone(), two])),
            "OutOfpods: Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2"
        );
    }

    #[test]
    fn what_others_say_that_the_node_has_is_counted() {
        let asks = |resource: &str, amount: &str| {
            pod(json!({"containers": [{"name": "a", "resources": {"requests": {resource: amount}}}]}))
        };
        let status = json!({"status": {"allocatable": {"example.com/dongle": "2"}}});
        let host = Host {
            node: Some(Arc::new(serde_json::from_value(status).unwrap())),
            ..host(vec![asks("example.com/dongle", "1")])
        };
        assert_eq!(says(&asks("example.com/dongle", "1"), &host), "");
        assert_eq!(
            says(&asks("example.com/dongle", "2"), &host),
            "OutOfexample.com/dongle: Pod was rejected: Node didn't have enough resource: example.com/dongle, requested: 2, \
             used: 1, capacity: 2"
        );
        assert_eq!(says(&asks("example.com/elsewhere", "9"), &host), "");
        assert!(says(&asks("hugepages-1Gi", "1Gi"), &host).starts_with("OutOfhugepages-1Gi: "));
    }

    #[test]
    fn devices_that_are_missing_are_told_in_upstreams_words() {
        let why = "requested number of devices unavailable for nvidia.com/gpu. Requested: 1, Available: 0";
        let rejection = without_devices(why);
        let message = format!("Pod was rejected: Allocate failed due to {why}, which is unexpected");
        assert_eq!(
            (&*rejection.reason, rejection.message),
            ("UnexpectedAdmissionError", message)
        );
    }

    #[test]
    fn a_node_that_goes_down_takes_nothing() {
        let going = Host {
            shutting_down: true,
            ..host(Vec::new())
        };
        assert_eq!(
            says(&asking("1m", 1, ""), &going),
            "NodeShutdown: Pod was rejected: Pod was rejected as the node is shutting down."
        );
    }

    #[test]
    fn a_port_of_the_node_has_one_owner() {
        let clash = "NodePorts: Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
        for (first, second, expected) in [
            ((80, ""), (80, ""), clash),
            ((80, ""), (80, "10.0.0.1"), clash),
            ((80, "10.0.0.1"), (80, "10.0.0.2"), ""),
            ((80, ""), (81, ""), ""),
        ] {
            let taken = host(vec![asking("1m", first.0, first.1)]);
            assert_eq!(
                says(&asking("1m", second.0, second.1), &taken),
                expected,
                "{first:?} {second:?}"
            );
        }
    }

    #[test]
    fn attack_19_only_safe_sysctls_with_plain_values_are_set() {
        let with = |name: &str, value: &str, network: bool| {
            let sysctls = json!([{"name": name, "value": value}]);
            let spec = json!({"containers": [], "hostNetwork": network, "securityContext": {"sysctls": sysctls}});
            says(&pod(spec), &host(Vec::new()))
        };
        assert_eq!(with("net.ipv4.ip_local_port_range", "1024 65535", false), "");
        assert_eq!(
            with("kernel.msgmax", "1", false),
            "SysctlForbidden: Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted"
        );
        assert!(with("kernel.shm_rmid_forced", "1+kernel.core_pattern=x", false).starts_with("SysctlForbidden"));
        assert!(with("net.ipv4.tcp_syncookies", "1", true).ends_with("not allowed with host net enabled"));
    }

    #[test]
    fn what_cannot_be_enforced_is_refused() {
        let profile = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
        let confined = pod(json!({"containers": [{"name": "a", "securityContext": profile}]}));
        assert!(says(&confined, &host(Vec::new())).starts_with("AppArmor: Pod was rejected: Cannot enforce AppArmor"));
        let confining = Host {
            app_armor: true,
            ..host(Vec::new())
        };
        assert_eq!(says(&confined, &confining), "");
        let many = vec![json!({"name": "a"}); 513];
        let many = says(&pod(json!({"containers": many})), &host(Vec::new()));
        assert_eq!(
            many,
            "UnexpectedAdmissionError: Pod was rejected: more than 512 containers"
        );
        let parts = vec![json!({"name": "v", "mountPath": "/a", "subPath": "b"}); 1025];
        let parts = says(
            &pod(json!({"containers": [{"name": "a", "volumeMounts": parts}]})),
            &host(Vec::new()),
        );
        assert!(parts.ends_with("more than 1024 mounts of parts of volumes"), "{parts}");
        let class = pod(json!({"containers": [], "resourceClaims": [{"name": "gpu"}]}));
        assert!(says(&class, &host(Vec::new())).contains("spec.resourceClaims"));
    }
}
