//! Checks of `baseline` about the node: its namespaces, paths, ports, and addresses that probes
//! reach.

use k8s_openapi::api::core::v1::{HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction};

use super::{Contained, Finding, Pod, containers, finding, plural, quoted, sorted};

pub(super) fn host_namespaces(pod: &Pod<'_>) -> Option<Finding> {
    let shared = [
        (pod.spec.host_network, "hostNetwork=true"),
        (pod.spec.host_pid, "hostPID=true"),
        (pod.spec.host_ipc, "hostIPC=true"),
    ];
    let shared: Vec<&str> = shared
        .iter()
        .filter(|(set, _)| *set == Some(true))
        .map(|(_, text)| *text)
        .collect();
    (!shared.is_empty()).then(|| finding("host namespaces", shared.join(", ")))
}

pub(super) fn host_paths(pod: &Pod<'_>) -> Option<Finding> {
    let volumes = pod
        .spec
        .volumes
        .iter()
        .flatten()
        .filter(|volume| volume.host_path.is_some());
    let names: Vec<&str> = volumes.map(|volume| volume.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        let detail = format!("{} {}", plural(names.len(), "volume", "volumes"), quoted(&names));
        finding("hostPath volumes", detail)
    })
}

pub(super) fn host_ports(pod: &Pod<'_>) -> Option<Finding> {
    let taken = |container: &Contained<'_>| -> Vec<String> {
        let ports = container
            .container
            .into_iter()
            .flat_map(|container| container.ports.iter().flatten());
        let taken = ports.filter_map(|port| port.host_port.filter(|number| *number != 0));
        taken.map(|number| number.to_string()).collect()
    };
    let names = pod.named(|container| !taken(container).is_empty());
    let ports: Vec<String> = pod.containers().flat_map(|container| taken(&container)).collect();
    (!names.is_empty()).then(|| {
        let ports = sorted(ports.iter().map(String::as_str));
        let detail = format!(
            "{} {} {} {}",
            containers(&names),
            plural(names.len(), "uses", "use"),
            plural(ports.len(), "hostPort", "hostPorts"),
            ports.join(", ")
        );
        finding("hostPort", detail)
    })
}

pub(super) fn hosts(pod: &Pod<'_>) -> Option<Finding> {
    let asked = |container: &Contained<'_>| -> Vec<String> {
        let Some(container) = container.container else {
            return Vec::new();
        };
        let probes = [
            &container.liveness_probe,
            &container.readiness_probe,
            &container.startup_probe,
        ];
        let probes = probes.into_iter().flatten().map(
            |Probe {
                 http_get, tcp_socket, ..
             }| (http_get, tcp_socket),
        );
        let hooks = container
            .lifecycle
            .iter()
            .flat_map(|lifecycle| [&lifecycle.post_start, &lifecycle.pre_stop]);
        let hooks = hooks.flatten().map(
            |LifecycleHandler {
                 http_get, tcp_socket, ..
             }| (http_get, tcp_socket),
        );
        let hosts = probes.chain(hooks).flat_map(|(http, tcp)| {
            let http = http.as_ref().and_then(|HTTPGetAction { host, .. }| host.clone());
            let tcp = tcp.as_ref().and_then(|TCPSocketAction { host, .. }| host.clone());
            [http, tcp].into_iter().flatten()
        });
        hosts.filter(|host| !host.is_empty()).collect()
    };
    let names = sorted(pod.named(|container| !asked(container).is_empty()).into_iter());
    let hosts: Vec<String> = pod.containers().flat_map(|container| asked(&container)).collect();
    (!names.is_empty()).then(|| {
        let hosts = sorted(hosts.iter().map(String::as_str));
        let detail = format!(
            "{} {} {} {}",
            containers(&names),
            plural(names.len(), "uses", "use"),
            plural(hosts.len(), "probe or lifecycle host", "probe or lifecycle hosts"),
            quoted(&hosts)
        );
        finding("probe or lifecycle host", detail)
    })
}
