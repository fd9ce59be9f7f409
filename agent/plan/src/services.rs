//! The environment variables by which a container finds Services: the server's own for all, those of its namespace for
//! pods that want them.

use k8s_openapi::api::core::v1::{Service, ServicePort};

/// Whose Service `kubernetes` every container is told of.
const EVERYBODYS: (&str, &str) = ("default", "kubernetes");

/// The variables of a pod's containers. `services` are in the order of their keys.
pub fn variables<'a>(
    services: impl Iterator<Item = &'a Service>,
    namespace: &str,
    links: bool,
) -> Vec<(String, String)> {
    let mut chosen: Vec<&Service> = Vec::new();
    let mut everybodys = None;
    for service in services {
        let place = service.metadata.namespace.as_deref().unwrap_or_default();
        let name = service.metadata.name.as_deref().unwrap_or_default();
        if address(service).is_none() {
            continue;
        }
        if (place, name) == EVERYBODYS {
            everybodys = Some(service);
        } else if links && place == namespace {
            chosen.push(service);
        }
    }
    // A Service of that name in the pod's own namespace stands for the server's.
    let hidden = chosen
        .iter()
        .any(|service| service.metadata.name.as_deref() == Some(EVERYBODYS.1));
    chosen.extend(everybodys.filter(|_| !hidden));
    chosen.into_iter().flat_map(of_service).collect()
}

/// The Service's address, if it has one that can be spoken to.
pub fn address(service: &Service) -> Option<&str> {
    let address = service.spec.as_ref()?.cluster_ip.as_deref()?;
    (!address.is_empty() && address != "None").then_some(address)
}

fn of_service(service: &Service) -> Vec<(String, String)> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref());
    let (Some(host), Some([first, further @ ..])) = (address(service), ports) else {
        return Vec::new();
    };
    let name = spelled(service.metadata.name.as_deref().unwrap_or_default());
    let mut variables = vec![
        (format!("{name}_SERVICE_HOST"), host.to_owned()),
        (format!("{name}_SERVICE_PORT"), first.port.to_string()),
    ];
    for port in [first].into_iter().chain(further) {
        if let Some(own) = port.name.as_deref().filter(|own| !own.is_empty()) {
            variables.push((format!("{name}_SERVICE_PORT_{}", spelled(own)), port.port.to_string()));
        }
    }
    variables.push((format!("{name}_PORT"), url(host, first)));
    for port in [first].into_iter().chain(further) {
        let protocol = protocol(port);
        let prefix = format!("{name}_PORT_{}_{}", port.port, protocol.to_uppercase());
        variables.extend([
            (prefix.clone(), url(host, port)),
            (format!("{prefix}_PROTO"), protocol.to_lowercase()),
            (format!("{prefix}_PORT"), port.port.to_string()),
            (format!("{prefix}_ADDR"), host.to_owned()),
        ]);
    }
    variables
}

fn protocol(port: &ServicePort) -> &str {
    let protocol = port.protocol.as_deref().unwrap_or_default();
    if protocol.is_empty() { "TCP" } else { protocol }
}

fn url(host: &str, port: &ServicePort) -> String {
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    format!("{}://{host}:{}", protocol(port).to_lowercase(), port.port)
}

fn spelled(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    fn service(namespace: &str, name: &str, address: &str, ports: &serde_json::Value) -> Service {
        serde_json::from_value(json!({"metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": address, "ports": ports}}))
        .unwrap()
    }

    fn shown(services: &[Service], namespace: &str, links: bool) -> String {
        let variables = variables(services.iter(), namespace, links);
        let all = variables.iter().map(|(name, value)| format!("{name}={value}\n"));
        all.collect::<Vec<_>>().concat()
    }

    #[test]
    fn the_server_is_for_all_and_neighbours_for_those_who_want_them() {
        let services = [
            service(
                "default",
                "kubernetes",
                "10.96.0.1",
                &json!([{"name": "https", "port": 443}]),
            ),
            service("team", "headless", "None", &json!([{"port": 1}])),
            service(
                "team",
                "my-db",
                "10.96.0.9",
                &json!([{"port": 53, "protocol": "UDP"}, {"name": "x-y", "port": 54}]),
            ),
        ];
        expect![[r"
            KUBERNETES_SERVICE_HOST=10.96.0.1
            KUBERNETES_SERVICE_PORT=443
            KUBERNETES_SERVICE_PORT_HTTPS=443
            KUBERNETES_PORT=tcp://10.96.0.1:443
            KUBERNETES_PORT_443_TCP=tcp://10.96.0.1:443
            KUBERNETES_PORT_443_TCP_PROTO=tcp
            KUBERNETES_PORT_443_TCP_PORT=443
            KUBERNETES_PORT_443_TCP_ADDR=10.96.0.1
        "]]
        .assert_eq(&shown(&services, "team", false));
        assert_eq!(shown(&services, "other", true), shown(&services, "team", false));
        expect![[r"
            MY_DB_SERVICE_HOST=10.96.0.9
            MY_DB_SERVICE_PORT=53
            MY_DB_SERVICE_PORT_X_Y=54
            MY_DB_PORT=udp://10.96.0.9:53
            MY_DB_PORT_53_UDP=udp://10.96.0.9:53
            MY_DB_PORT_53_UDP_PROTO=udp
            MY_DB_PORT_53_UDP_PORT=53
            MY_DB_PORT_53_UDP_ADDR=10.96.0.9
            MY_DB_PORT_54_TCP=tcp://10.96.0.9:54
            MY_DB_PORT_54_TCP_PROTO=tcp
            MY_DB_PORT_54_TCP_PORT=54
            MY_DB_PORT_54_TCP_ADDR=10.96.0.9
        "]]
        .assert_eq(&shown(&services[1..], "team", true));
    }
}
