//! The environment variables of Services: those of the Service `kubernetes` for all containers,
//! those of the pod's namespace unless `enableServiceLinks` is false.

use std::net::IpAddr;

use crate::network::proxy::{Name, Port, Service};

/// The Service `kubernetes`, whose variables every container gets.
const EVERYBODYS: (&str, &str) = ("default", "kubernetes");

/// Returns the variables of a pod's containers. `services` are in the order of their keys.
pub fn variables<'a>(
    services: impl Iterator<Item = (&'a Name, &'a Service)>,
    namespace: &str,
    links: bool,
) -> Vec<(String, String)> {
    let mut chosen: Vec<(&str, &Service)> = Vec::new();
    let mut everybodys = None;
    for (name, service) in services {
        let (place, name) = name.parts();
        if service.cluster_ips.is_empty() {
            continue;
        }
        if (place, name) == EVERYBODYS {
            everybodys = Some((name, service));
        } else if links && place == namespace {
            chosen.push((name, service));
        }
    }
    // A Service of that name in the pod's own namespace takes precedence.
    let hidden = chosen.iter().any(|(name, _)| *name == EVERYBODYS.1);
    chosen.extend(everybodys.filter(|_| !hidden));
    let each = chosen.into_iter();
    each.flat_map(|(name, service)| of_service(name, service)).collect()
}

fn of_service(name: &str, service: &Service) -> Vec<(String, String)> {
    let (Some(host), [first, further @ ..]) = (service.cluster_ips.first(), &*service.ports) else {
        return Vec::new();
    };
    let name = spelled(name);
    let mut variables = vec![
        (format!("{name}_SERVICE_HOST"), host.to_string()),
        (format!("{name}_SERVICE_PORT"), first.port.to_string()),
    ];
    for port in [first].into_iter().chain(further) {
        if !port.name.is_empty() {
            let key = format!("{name}_SERVICE_PORT_{}", spelled(&port.name));
            variables.push((key, port.port.to_string()));
        }
    }
    variables.push((format!("{name}_PORT"), url(*host, first)));
    for port in [first].into_iter().chain(further) {
        let protocol = port.protocol.name();
        let prefix = format!("{name}_PORT_{}_{protocol}", port.port);
        variables.extend([
            (prefix.clone(), url(*host, port)),
            (format!("{prefix}_PROTO"), protocol.to_lowercase()),
            (format!("{prefix}_PORT"), port.port.to_string()),
            (format!("{prefix}_ADDR"), host.to_string()),
        ]);
    }
    variables
}

fn url(host: IpAddr, port: &Port) -> String {
    let host = match host {
        IpAddr::V4(host) => host.to_string(),
        IpAddr::V6(host) => format!("[{host}]"),
    };
    format!("{}://{host}:{}", port.protocol.name().to_lowercase(), port.port)
}

fn spelled(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    fn service(namespace: &str, name: &str, address: &str, ports: &serde_json::Value) -> (Name, Service) {
        let service = json!({"metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": address, "ports": ports}});
        Service::new(&serde_json::from_value(service).unwrap())
    }

    fn shown(services: &[(Name, Service)], namespace: &str, links: bool) -> String {
        let services = services.iter().map(|(name, service)| (name, service));
        let variables = variables(services, namespace, links);
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
