//! Warnings about duplicate ports.

use k8s_openapi::api::core::v1::ContainerPort;

use super::COMPARED;

/// Port with the path of its field.
pub(super) struct Place<'a> {
    port: &'a ContainerPort,
    field: String,
}

/// Warns about the ports of one more container.
pub(super) fn of_container<'a>(
    warnings: &mut Vec<String>,
    ports: Option<&'a Vec<ContainerPort>>,
    path: &str,
    all: &mut Vec<Place<'a>>,
) {
    for (index, port) in ports.into_iter().flatten().enumerate() {
        let field = format!("{path}.ports[{index}]");
        let (address, host) = (address(port), port.host_port.unwrap_or(0));
        if !address.is_empty() && host == 0 {
            let shown = format!(
                "{{Name:{} HostPort:0 ContainerPort:{} Protocol:{} HostIP:{address}}}",
                port.name.as_deref().unwrap_or_default(),
                port.container_port,
                port.protocol.as_deref().unwrap_or_default(),
            );
            warnings.push(format!("{field}: hostIP set without hostPort: {shown}"));
        }
        // Each port is compared with all before it.
        if all.len() >= COMPARED {
            continue;
        }
        for other in all.iter().filter(|other| same(other.port, port)) {
            if let Some(how) = conflict(other.port, port) {
                let other = &other.field;
                warnings.push(format!("{field}: {how} port definition with {other}"));
            }
        }
        all.push(Place { port, field });
    }
}

fn address(port: &ContainerPort) -> &str {
    port.host_ip.as_deref().unwrap_or_default()
}

fn same(one: &ContainerPort, other: &ContainerPort) -> bool {
    one.container_port == other.container_port && one.protocol == other.protocol
}

fn conflict(one: &ContainerPort, other: &ContainerPort) -> Option<&'static str> {
    let hosts = [one.host_port.unwrap_or(0), other.host_port.unwrap_or(0)];
    let addresses = [address(one), address(other)];
    let [first, second] = hosts;
    let same_host = first == second;
    let [left, right] = addresses;
    if left == right && same_host {
        Some("duplicate")
    } else if hosts.contains(&0) {
        Some("overlapping")
    } else if same_host && left.is_empty() != right.is_empty() {
        Some("dangerously ambiguous")
    } else {
        None
    }
}
