//! Verdict of the network policies on a connection between two pods.

use std::net::IpAddr;

use serde_json::Value;

use crate::client::api::text_at;

/// Direction of traffic from the view of the pod that policies isolate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::Egress => "Egress",
        }
    }

    /// Fields of the rules, and of the other side in them.
    const fn fields(self) -> (&'static str, &'static str) {
        match self {
            Self::Ingress => ("/spec/ingress", "from"),
            Self::Egress => ("/spec/egress", "to"),
        }
    }
}

/// Connection from one pod to another.
pub(super) struct Connection<'a> {
    pub(super) from: Side<'a>,
    pub(super) to: Side<'a>,
    pub(super) port: u16,
    pub(super) protocol: &'a str,
}

/// Pod with its namespace's labels.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub(super) pod: &'a Value,
    pub(super) namespace: Option<&'a Value>,
}

/// Names of the policies that isolate a pod, if none of them allows the connection.
pub(super) fn denied(policies: &[Value], connection: &Connection<'_>, direction: Direction) -> Option<Vec<String>> {
    let (own, other) = match direction {
        Direction::Ingress => (connection.to, connection.from),
        Direction::Egress => (connection.from, connection.to),
    };
    // Pods of the node's own network are not isolated, and a pod always reaches itself.
    let is_itself = text_at(own.pod, "/metadata/uid") == text_at(other.pod, "/metadata/uid");
    let is_own_node = direction == Direction::Ingress
        && is_on_host(other.pod)
        && text_at(own.pod, "/spec/nodeName") == text_at(other.pod, "/spec/nodeName");
    if is_on_host(own.pod) || is_itself || is_own_node {
        return None;
    }
    let isolating = policies.iter().filter(|policy| isolates(policy, own.pod, direction));
    let isolating: Vec<&Value> = isolating.collect();
    let (rules, field) = direction.fields();
    let allowed = isolating.iter().any(|policy| {
        let rules = policy.pointer(rules).and_then(Value::as_array).into_iter().flatten();
        let mut rules = rules.filter(|rule| allows_port(rule, connection));
        rules.any(|rule| allows_peer(rule.get(field), policy, other))
    });
    (!isolating.is_empty() && !allowed).then(|| {
        let name = |policy: &&Value| text_at(policy, "/metadata/name").to_owned();
        isolating.iter().map(name).collect()
    })
}

fn is_on_host(pod: &Value) -> bool {
    pod.pointer("/spec/hostNetwork").and_then(Value::as_bool) == Some(true)
}

fn isolates(policy: &Value, pod: &Value, direction: Direction) -> bool {
    let types = policy.pointer("/spec/policyTypes").and_then(Value::as_array);
    let mut types = types.into_iter().flatten();
    text_at(policy, "/metadata/namespace") == text_at(pod, "/metadata/namespace")
        && types.any(|own| own.as_str() == Some(direction.name()))
        && selects(policy.pointer("/spec/podSelector"), pod.pointer("/metadata/labels"))
}

fn filled(list: Option<&Value>) -> Option<&Vec<Value>> {
    list.and_then(Value::as_array).filter(|list| !list.is_empty())
}

fn allows_port(rule: &Value, connection: &Connection<'_>) -> bool {
    let Some(ports) = filled(rule.get("ports")) else {
        return true;
    };
    ports.iter().any(|own| {
        let number = |field: &str| own.get(field).and_then(Value::as_u64);
        let port = u64::from(connection.port);
        super::service::protocol(own) == connection.protocol
            && match own.get("port") {
                None | Some(Value::Null) => true,
                Some(Value::String(name)) => named(connection, name),
                Some(_) => {
                    let first = number("port").unwrap_or_default();
                    (first..=number("endPort").unwrap_or(first)).contains(&port)
                }
            }
    })
}

/// True if the destination's containers name this port so.
fn named(connection: &Connection<'_>, name: &str) -> bool {
    let containers = connection.to.pod.pointer("/spec/containers").and_then(Value::as_array);
    let mut ports = containers
        .into_iter()
        .flatten()
        .flat_map(|container| container.get("ports").and_then(Value::as_array).into_iter().flatten());
    ports.any(|own| {
        text_at(own, "/name") == name
            && own.get("containerPort").and_then(Value::as_u64) == Some(connection.port.into())
            && super::service::protocol(own) == connection.protocol
    })
}

fn allows_peer(peers: Option<&Value>, policy: &Value, other: Side<'_>) -> bool {
    let Some(peers) = filled(peers) else { return true };
    let addresses = other.pod.pointer("/status/podIPs").and_then(Value::as_array);
    let addresses = addresses.into_iter().flatten();
    let addresses: Vec<IpAddr> = addresses.filter_map(|own| text_at(own, "/ip").parse().ok()).collect();
    peers.iter().any(|peer| {
        if let Some(block) = peer.get("ipBlock").filter(|block| !block.is_null()) {
            let except = block.get("except").and_then(Value::as_array);
            return addresses.iter().any(|address| {
                let is_in = |range: &str| contains(range, *address);
                let mut except = except.into_iter().flatten().filter_map(Value::as_str);
                is_in(text_at(block, "/cidr")) && !except.any(is_in)
            });
        }
        let inside = match peer.get("namespaceSelector").filter(|own| !own.is_null()) {
            None => text_at(policy, "/metadata/namespace") == text_at(other.pod, "/metadata/namespace"),
            selector => selects(selector, other.namespace),
        };
        let pods = peer.get("podSelector").filter(|own| !own.is_null());
        inside && !is_on_host(other.pod) && selects(pods, other.pod.pointer("/metadata/labels"))
    })
}

/// True if a label selector matches; an absent one matches all.
fn selects(selector: Option<&Value>, labels: Option<&Value>) -> bool {
    let Some(selector) = selector else { return true };
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
    let wanted = selector.get("matchLabels").and_then(Value::as_object);
    let mut wanted = wanted.into_iter().flatten();
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    let mut expressions = expressions.into_iter().flatten();
    wanted.all(|(key, value)| label(key) == value.as_str())
        && expressions.all(|expression| {
            let own = label(text_at(expression, "/key"));
            let values = expression.get("values").and_then(Value::as_array);
            let mut values = values.into_iter().flatten().filter_map(Value::as_str);
            match text_at(expression, "/operator") {
                "In" => own.is_some_and(|own| values.any(|value| value == own)),
                "NotIn" => own.is_none_or(|own| values.all(|value| value != own)),
                "Exists" => own.is_some(),
                "DoesNotExist" => own.is_none(),
                _ => false,
            }
        })
}

/// True if a CIDR contains an address.
fn contains(range: &str, address: IpAddr) -> bool {
    let Some((network, length)) = range.split_once('/') else {
        return false;
    };
    let (Ok(network), Ok(length)) = (network.parse::<IpAddr>(), length.parse::<u32>()) else {
        return false;
    };
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let rest = 32_u32.saturating_sub(length);
            network.to_bits().checked_shr(rest) == address.to_bits().checked_shr(rest)
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let rest = 128_u32.saturating_sub(length);
            network.to_bits().checked_shr(rest) == address.to_bits().checked_shr(rest)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Connection, Direction, Side, denied};

    fn pod(name: &str, namespace: &str, address: &str) -> Value {
        json!({"metadata": {"name": name, "uid": name, "namespace": namespace, "labels": {"app": name}},
            "spec": {"nodeName": "n1", "containers": [{"ports": [{"name": "web", "containerPort": 80}]}]},
            "status": {"podIPs": [{"ip": address}]}})
    }

    /// Returns whether a policy on `b` keeps `a` of another namespace away from its port 80.
    fn keeps_away(rules: &Value) -> bool {
        let policy = json!({"metadata": {"name": "p", "namespace": "y"},
            "spec": {"podSelector": {"matchLabels": {"app": "b"}}, "policyTypes": ["Ingress"], "ingress": rules}});
        let (a, b) = (pod("a", "x", "10.244.0.5"), pod("b", "y", "fd00::6"));
        let labels = json!({"team": "x"});
        let side = |pod| Side {
            pod,
            namespace: Some(&labels),
        };
        let connection = Connection {
            from: side(&a),
            to: side(&b),
            port: 80,
            protocol: "TCP",
        };
        let policies = [policy];
        assert_eq!(denied(&policies, &connection, Direction::Egress), None);
        let told = denied(&policies, &connection, Direction::Ingress);
        assert!(told.as_ref().is_none_or(|names| names == &["p"]), "{told:?}");
        told.is_some()
    }

    #[test]
    fn a_policy_allows_what_its_rules_say() {
        let team = json!({"matchExpressions": [{"key": "team", "operator": "In", "values": ["x"]}]});
        let from = |peer: Value| json!([{"from": [peer]}]);
        let ports = |port: Value| json!([{"ports": [port]}]);
        for (rules, away) in [
            (json!([]), true),
            (json!([{}]), false),
            (from(json!({"podSelector": {}})), true),
            (from(json!({"podSelector": {}, "namespaceSelector": team})), false),
            (
                from(json!({"podSelector": {"matchLabels": {"app": "c"}}, "namespaceSelector": team})),
                true,
            ),
            (
                from(json!({"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}})),
                true,
            ),
            (from(json!({"ipBlock": {"cidr": "10.244.0.0/16"}})), false),
            (
                from(json!({"ipBlock": {"cidr": "10.244.0.0/16", "except": ["10.244.0.4/31"]}})),
                true,
            ),
            (from(json!({"ipBlock": {"cidr": "0.0.0.0/0"}})), false),
            (from(json!({"ipBlock": {"cidr": "::/0"}})), true),
            (ports(json!({"port": 80, "protocol": "TCP"})), false),
            (ports(json!({"port": 80, "protocol": "UDP"})), true),
            (ports(json!({"port": 79, "endPort": 81})), false),
            (ports(json!({"port": "web"})), false),
            (ports(json!({"port": "other"})), true),
        ] {
            assert_eq!(keeps_away(&rules), away, "{rules}");
        }
    }
}
