//! Contents of the Node object.

use std::collections::BTreeMap;

use agent_plan::Timestamp;
use agent_plan::network::node_routes::Routed;
use agent_plan::node::eviction::Pressure;
use agent_plan::node::reserve::Amounts;
use api::go::architecture;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeFeatures,
    NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeSpec, NodeStatus, NodeSwapStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value, json};

use crate::context::Context;
use crate::networking::announcing;

/// Type of the condition that a firewall of the node drops pods' traffic; present only after it was
/// true.
pub(super) const BLOCKED: &str = "PodTrafficBlocked";
/// Type of the condition that routes to other nodes' pods are missing.
const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";
/// Annotation for cloud controller managers with the node's own addresses.
const PROVIDED: &str = "alpha.kubernetes.io/provided-node-ip";
/// Annotation for CSI drivers: volumes are attached by the controller.
const ATTACHED_BY_CONTROLLERS: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Annotation with the machine's ID, which distinguishes machines of one name.
const INSTANCE: &str = "skiff.dev/instance-id";
/// Annotation with the CIDRs of the pods' addresses, which the control plane allocates again if it
/// can.
const USED: &str = "skiff.dev/pod-cidrs";
/// Annotation with the addresses of the node's name server: endpoints of `kube-system/kube-dns`.
const NAME_SERVERS: &str = "skiff.dev/name-servers";
/// Annotation with the ranges of the node's links, on which it can announce load balancers'
/// addresses, and which are no pods'.
const LINKS: &str = "skiff.dev/links";
/// Reasons of [`NETWORK_UNAVAILABLE`].
const UNREACHED: &str = "NodesUnreached";
const NOT_CREATED: &str = "NoRouteCreated";
const IMAGES: usize = 50;
const NAMES_PER_IMAGE: usize = 5;
/// Kubelet version that the agent implements.
pub(crate) const VERSION: &str = "v1.36.0";

/// Declared features of the node (`status.declaredFeatures`), sorted.
const DECLARED: [&str; 4] = [
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// Returns the Node for the registration.
pub(super) fn node(context: &Context) -> Node {
    let name = &context.config.node_name;
    let architecture = architecture();
    let mut labels = BTreeMap::from([
        ("beta.kubernetes.io/arch".to_owned(), architecture.to_owned()),
        ("beta.kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("kubernetes.io/arch".to_owned(), architecture.to_owned()),
        ("kubernetes.io/hostname".to_owned(), name.clone()),
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
    ]);
    let registration = &context.config.registration;
    labels.extend(registration.labels.clone());
    let mut annotations = BTreeMap::from([(ATTACHED_BY_CONTROLLERS.to_owned(), "true".to_owned())]);
    annotations.extend(
        context
            .config
            .instance_id
            .iter()
            .map(|id| (INSTANCE.to_owned(), id.clone())),
    );
    if registration.external_cloud {
        let own: Vec<String> = context.config.addresses.iter().map(ToString::to_string).collect();
        annotations.insert(PROVIDED.to_owned(), own.join(","));
    }
    let used = context.allocated_ranges();
    annotations.extend(used.map(|ranges| (USED.to_owned(), ranges.to_string())));
    annotations.extend(announcing::links(context).map(|links| (LINKS.to_owned(), links)));
    let ranges = context.config.pod_cidr.iter().flat_map(network::Ranges::iter);
    let ranges: Vec<String> = ranges.map(|range| range.to_string()).collect();
    Node {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            pod_cidr: ranges.first().cloned(),
            pod_cidrs: Some(ranges).filter(|ranges| !ranges.is_empty()),
            provider_id: registration.provider_id.clone(),
            taints: Some(registration.all_taints()),
            ..NodeSpec::default()
        }),
        // As upstream's `initialNode`: no pod range that has an address of the machine suits it.
        status: Some(NodeStatus {
            addresses: Some(addresses(context)),
            ..NodeStatus::default()
        }),
    }
}

fn addresses(context: &Context) -> Vec<NodeAddress> {
    let own = context.config.addresses.iter();
    let own = own.map(|address| ("InternalIP", address.to_string()));
    let all = own.chain([("Hostname", context.config.node_name.clone())]);
    all.map(|(kind, address)| NodeAddress {
        address,
        type_: kind.to_owned(),
    })
    .collect()
}

/// Returns the patch of annotations that announces the node's name server and links; `None` if it
/// is up to date.
pub(super) fn untold(context: &Context, node: &Node) -> Option<Value> {
    let wanted = [
        (NAME_SERVERS, context.names.told()),
        (LINKS, announcing::links(context)),
    ];
    let annotations = node.metadata.annotations.as_ref();
    let differs =
        |(name, wanted): &(&str, Option<String>)| annotations.and_then(|all| all.get(*name)) != wanted.as_ref();
    let changes = wanted.into_iter().filter(differs);
    let changes: BTreeMap<&str, Option<String>> = changes.collect();
    (!changes.is_empty()).then(|| json!({"metadata": {"annotations": changes}}))
}

/// True if the Node belongs to another machine, which joined with the same name while this one was
/// away and is Ready: two would assign the same addresses to pods. The first node of a cluster is
/// identified by its state directory, even after a move to another machine.
pub(super) fn is_anothers(context: &Context, known: &Node) -> bool {
    let config = &context.config;
    let own = config.instance_id.as_ref().filter(|_| config.pod_cidr.is_none());
    own.is_some_and(|own| is_of_other(own, known))
}

fn is_of_other(own: &str, known: &Node) -> bool {
    let annotations = known.metadata.annotations.as_ref();
    let other = annotations
        .and_then(|all| all.get(INSTANCE))
        .is_some_and(|known| known != own);
    let conditions = known
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    other
        && conditions
            .into_iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns the status at `now`; `Err` is why the node is not ready.
pub(super) fn status(context: &Context, old: &NodeStatus, ready: &Result<(), String>, now: Timestamp) -> NodeStatus {
    let machine = &context.machine;
    let texts = |amounts: &Amounts| -> BTreeMap<String, Quantity> {
        let each = amounts.iter();
        each.map(|(name, amount)| (name.clone(), amount.to_text())).collect()
    };
    let info = context.parts.runtime.info();
    let extended = extended(old);
    // Those of a cloud take precedence (`NodeAddress`, `pkg/kubelet/nodestatus/setters.go`).
    let stated = old
        .addresses
        .clone()
        .filter(|_| context.config.registration.external_cloud);
    let stated = stated.filter(|addresses| !addresses.is_empty());
    let (in_use, known) = (context.drivers.in_use(), old.volumes_in_use.as_ref());
    let mut allocatable = texts(&context.allocatable);
    let mut capacity = texts(&machine.capacity(context.config.max_pods));
    allocatable.extend(extended.clone());
    capacity.extend(extended);
    for (resource, count) in context.devices.counts() {
        allocatable.insert(resource.clone(), Quantity(count.allocatable.to_string()));
        capacity.insert(resource, Quantity(count.capacity.to_string()));
    }
    NodeStatus {
        addresses: Some(stated.unwrap_or_else(|| addresses(context))),
        allocatable: Some(allocatable),
        capacity: Some(capacity),
        conditions: Some(conditions(context, old, ready, now)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint {
                port: context.config.port.into(),
            }),
        }),
        declared_features: Some(DECLARED.map(str::to_owned).to_vec()),
        features: Some(NodeFeatures {
            supplemental_groups_policy: Some(true),
        }),
        images: Some(images(context)),
        runtime_handlers: Some(vec![NodeRuntimeHandler {
            features: Some(NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(true),
                user_namespaces: Some(context.parts.runtime.lacks_users().is_none()),
            }),
            name: Some(String::new()),
        }]),
        node_info: Some(NodeSystemInfo {
            architecture: architecture().to_owned(),
            boot_id: machine.boot_id.clone(),
            container_runtime_version: format!("{}://{}", info.name, info.version),
            kernel_version: machine.kernel.clone(),
            kubelet_version: VERSION.to_owned(),
            machine_id: machine.machine_id.clone(),
            operating_system: "linux".to_owned(),
            os_image: machine.os_image.clone(),
            swap: (machine.swap_bytes > 0).then_some(NodeSwapStatus {
                capacity: Some(machine.swap_bytes),
            }),
            system_uuid: machine.system_uuid.clone(),
            ..NodeSystemInfo::default()
        }),
        // An empty list removes the one that is there.
        volumes_in_use: Some(in_use).filter(|in_use| !in_use.is_empty() || known.is_some()),
        ..NodeStatus::default()
    }
}

fn images(context: &Context) -> Vec<ContainerImage> {
    let mut images = context.parts.images.list();
    images.sort_by(|one, other| other.size.cmp(&one.size).then_with(|| one.id.cmp(&other.id)));
    let shown = images.iter().take(IMAGES).map(|image| {
        let names: Vec<String> = image
            .digests
            .iter()
            .chain(&image.names)
            .take(NAMES_PER_IMAGE)
            .cloned()
            .collect();
        ContainerImage {
            names: Some(names),
            size_bytes: Some(i64::try_from(image.size).unwrap_or(i64::MAX)),
        }
    });
    shown.collect()
}

struct Verdict {
    name: &'static str,
    holds: bool,
    reason: &'static str,
    message: String,
}

fn firewall(blocked: Option<String>, old: &NodeStatus) -> Option<Verdict> {
    let was_blocked = old.conditions.iter().flatten().any(|known| known.type_ == BLOCKED);
    (blocked.is_some() || was_blocked).then(|| Verdict {
        name: BLOCKED,
        holds: blocked.is_some(),
        reason: if blocked.is_some() {
            "FirewallDrops"
        } else {
            "FirewallPasses"
        },
        message: blocked.unwrap_or_else(|| "what pods send and get is forwarded".to_owned()),
    })
}

/// Condition that a cloud's route controller sets
/// (`cloud-provider/controllers/route/route_controller.go`), for routes that the node manages
/// itself. A restarted agent keeps the previous condition until it knows better.
fn routes(routed: Routed, old: &NodeStatus) -> Option<Verdict> {
    let mut known = old.conditions.iter().flatten();
    let before = known.find(|known| known.type_ == NETWORK_UNAVAILABLE);
    let is_own = |known: &NodeCondition| matches!(known.reason.as_deref(), Some(UNREACHED | NOT_CREATED));
    let failed = match routed {
        // What is left of a time when the node made them.
        Routed::Elsewhere if before.is_some_and(is_own) => false,
        Routed::Elsewhere => return None,
        Routed::Pending => before.is_none_or(|known| known.status != "False"),
        Routed::Done => false,
        // Keeps no pods away: one node that is not reached would otherwise stop all others.
        Routed::Partly(why) => {
            return Some(Verdict {
                name: NETWORK_UNAVAILABLE,
                holds: false,
                reason: UNREACHED,
                message: why,
            });
        }
        Routed::Failed => true,
    };
    let (reason, message) = if failed {
        (NOT_CREATED, "RouteController failed to create a route")
    } else {
        ("RouteCreated", "RouteController created a route")
    };
    Some(Verdict {
        name: NETWORK_UNAVAILABLE,
        holds: failed,
        reason,
        message: message.to_owned(),
    })
}

fn conditions(context: &Context, old: &NodeStatus, ready: &Result<(), String>, now: Timestamp) -> Vec<NodeCondition> {
    let verdict = |name, holds: bool, reasons: [&'static str; 2], messages: [&str; 2]| Verdict {
        name,
        holds,
        reason: if holds { reasons[0] } else { reasons[1] },
        message: if holds { messages[0] } else { messages[1] }.to_owned(),
    };
    let pressures = context.pressures.borrow().clone();
    let verdicts = [
        verdict(
            "MemoryPressure",
            pressures.contains(&Pressure::Memory),
            ["KubeletHasInsufficientMemory", "KubeletHasSufficientMemory"],
            [
                "kubelet has insufficient memory available",
                "kubelet has sufficient memory available",
            ],
        ),
        verdict(
            "DiskPressure",
            pressures.contains(&Pressure::Disk),
            ["KubeletHasDiskPressure", "KubeletHasNoDiskPressure"],
            ["kubelet has disk pressure", "kubelet has no disk pressure"],
        ),
        verdict(
            "PIDPressure",
            pressures.contains(&Pressure::Pid),
            ["KubeletHasInsufficientPID", "KubeletHasSufficientPID"],
            [
                "kubelet has insufficient PID available",
                "kubelet has sufficient PID available",
            ],
        ),
        Verdict {
            name: "Ready",
            holds: ready.is_ok(),
            reason: if ready.is_ok() {
                "KubeletReady"
            } else {
                "KubeletNotReady"
            },
            message: ready
                .clone()
                .err()
                .unwrap_or_else(|| "kubelet is posting ready status".to_owned()),
        },
    ];
    firewall(context.blocked.borrow().clone(), old)
        .into_iter()
        .chain(routes(context.routed.borrow().clone(), old))
        .chain(verdicts)
        .map(|verdict| {
            let status = if verdict.holds { "True" } else { "False" };
            let before = old
                .conditions
                .iter()
                .flatten()
                .find(|known| known.type_ == verdict.name && known.status == status);
            NodeCondition {
                type_: verdict.name.to_owned(),
                status: status.to_owned(),
                reason: Some(verdict.reason.to_owned()),
                message: Some(verdict.message),
                last_heartbeat_time: Some(Time(now)),
                last_transition_time: before
                    .and_then(|known| known.last_transition_time.clone())
                    .or(Some(Time(now))),
            }
        })
        .collect()
}

/// True for extended resources, whose amount is set by others where no device plugin has registered
/// them.
fn is_extended(resource: &str) -> bool {
    resource.contains('/') && !resource.contains("kubernetes.io/")
}

/// Extended resources in the Node's capacity: all of them are allocatable.
fn extended(old: &NodeStatus) -> BTreeMap<String, Quantity> {
    let capacity = old.capacity.iter().flatten();
    let extended = capacity.filter(|(resource, _)| is_extended(resource));
    extended
        .map(|(resource, amount)| (resource.clone(), amount.clone()))
        .collect()
}

/// Extended resources that are allocatable and no longer in the capacity.
pub(super) fn withdrawn(old: &NodeStatus) -> Vec<String> {
    let capacity = extended(old);
    let given = old.allocatable.iter().flatten().map(|(resource, _)| resource);
    given
        .filter(|resource| is_extended(resource) && !capacity.contains_key(*resource))
        .cloned()
        .collect()
}

/// Returns the last heartbeat of a status.
pub(super) fn heartbeat(status: &NodeStatus) -> Timestamp {
    let ready = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "Ready");
    ready
        .and_then(|ready| ready.last_heartbeat_time.as_ref())
        .map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// True if two statuses are equal except for times. Fields and conditions of other writers are ignored.
pub(super) fn same(old: &NodeStatus, new: &NodeStatus) -> bool {
    let own = |known: &NodeCondition| new.conditions.iter().flatten().any(|own| own.type_ == known.type_);
    let bare = |status: &NodeStatus| {
        let mut status = NodeStatus {
            addresses: status.addresses.clone(),
            allocatable: status.allocatable.clone(),
            capacity: status.capacity.clone(),
            conditions: status.conditions.clone(),
            daemon_endpoints: status.daemon_endpoints.clone(),
            declared_features: status.declared_features.clone(),
            features: status.features.clone(),
            images: status.images.clone().filter(|images| !images.is_empty()),
            node_info: status.node_info.clone(),
            runtime_handlers: status.runtime_handlers.clone(),
            volumes_in_use: status.volumes_in_use.clone().filter(|volumes| !volumes.is_empty()),
            ..NodeStatus::default()
        };
        for handler in status.runtime_handlers.iter_mut().flatten() {
            // The default handler has no name.
            handler.name = handler.name.take().filter(|name| !name.is_empty());
        }
        if let Some(conditions) = &mut status.conditions {
            conditions.retain(own);
        }
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
            condition.last_transition_time = None;
        }
        status
    };
    bare(old) == bare(new)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Node, NodeStatus};
    use serde_json::json;

    use super::{BTreeMap, Routed, extended, is_of_other, routes, withdrawn};

    #[test]
    fn a_node_is_anothers_while_that_is_ready() {
        for (instance, ready, expected) in [
            (Some("other"), "True", true),
            (Some("other"), "Unknown", false),
            (Some("own"), "True", false),
            (None, "True", false),
        ] {
            let node: Node = serde_json::from_value(json!({
                "metadata": {"annotations": instance.map(|id| json!({"skiff.dev/instance-id": id}))},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            }))
            .unwrap();
            assert_eq!(is_of_other("own", &node), expected, "{instance:?} {ready}");
        }
    }

    #[test]
    fn nodes_without_routes_are_named_and_keep_no_pods_away() {
        let why = "10.42.1.0/24: this node has no way to its address".to_owned();
        let unreached = ["b", "c", "d", "e", "f"].map(|node| (node.to_owned(), why.clone()));
        let told = routes(Routed::of(&BTreeMap::from(unreached)), &NodeStatus::default()).unwrap();
        assert!(!told.holds && told.reason == "NodesUnreached", "{}", told.reason);
        assert!(
            told.message
                .contains(&format!("on: b ({why}), c ({why}), d ({why}), 2 more")),
            "{}",
            told.message
        );
        let done = routes(Routed::of(&BTreeMap::new()), &NodeStatus::default()).unwrap();
        assert_eq!((done.holds, done.reason), (false, "RouteCreated"));
    }

    #[test]
    fn what_others_say_that_a_node_has_may_be_given_to_pods() {
        let old: NodeStatus = serde_json::from_value(json!({
            "capacity": {"cpu": "2", "hugepages-1Gi": "0", "kubernetes.io/x": "1", "example.com/dongle": "4"},
            "allocatable": {"cpu": "2", "example.com/dongle": "3", "example.com/gone": "1", "kubernetes.io/y": "1"},
        }))
        .unwrap();
        assert_eq!(json!(extended(&old)), json!({"example.com/dongle": "4"}));
        assert_eq!(withdrawn(&old), ["example.com/gone"]);
    }
}
