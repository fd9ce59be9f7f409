//! Validation errors of network policies.

use serde_json::{Value, json};

use crate::networks::{GROUP, all};

fn rule(peer: &Value, port: &Value) -> Value {
    json!({"spec": {"ingress": [{"from": [peer], "ports": [port]}], "egress": null}})
}

#[test]
fn peers_of_network_policies() {
    let port = json!({"port": 80});
    let of = |peer: &Value| rule(peer, &port);
    all(
        GROUP,
        "networkpolicies",
        &[
            (
                of(&json!({})),
                &["spec.ingress[0].from[0]: Required value: must specify a peer"],
            ),
            (
                of(&json!({"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}})),
                &["spec.ingress[0].from[0]: Forbidden: may not specify both ipBlock and another peer"],
            ),
            (
                of(&json!({"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}})),
                &[
                    "spec.ingress[0].from[0].namespaceSelector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                ],
            ),
            (
                of(&json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Is", "values": []}]}})),
                &[
                    "spec.ingress[0].from[0].podSelector.matchExpressions[0].operator: Invalid value: \"Is\": not a valid selector operator",
                ],
            ),
        ],
    );
}

#[test]
fn blocks_of_network_policies() {
    let port = json!({"port": 80});
    let of = |peer: &Value| rule(peer, &port);
    all(
        GROUP,
        "networkpolicies",
        &[
            (
                of(&json!({"ipBlock": {"cidr": ""}})),
                &["spec.ingress[0].from[0].ipBlock.cidr: Required value"],
            ),
            (
                of(&json!({"ipBlock": {"cidr": "192.168.5.6"}})),
                &[
                    "spec.ingress[0].from[0].ipBlock.cidr: Invalid value: \"192.168.5.6\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
                ],
            ),
            (
                of(
                    &json!({"ipBlock": {"cidr": "192.168.8.0/24", "except": ["192.168.9.1/24", "192.168.8.0/24", "192.168.8.8/30"]}}),
                ),
                &[
                    "spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"192.168.9.1/24\": must not have bits set beyond the prefix length",
                    "spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"192.168.9.1/24\": must be a strict subset of `cidr`",
                    "spec.ingress[0].from[0].ipBlock.except[1]: Invalid value: \"192.168.8.0/24\": must be a strict subset of `cidr`",
                ],
            ),
            (
                of(&json!({"ipBlock": {"cidr": "010.0.0.0/8"}})),
                &[
                    "spec.ingress[0].from[0].ipBlock.cidr: Invalid value: \"010.0.0.0/8\": must not have leading 0s in IP or prefix length",
                ],
            ),
            (
                of(&json!({"ipBlock": {"cidr": "10.0.0.0/08"}})),
                &[
                    "spec.ingress[0].from[0].ipBlock.cidr: Invalid value: \"10.0.0.0/08\": must not have leading 0s in IP or prefix length",
                ],
            ),
            (
                of(&json!({"ipBlock": {"cidr": "10.0.0.1/8"}})),
                &[
                    "spec.ingress[0].from[0].ipBlock.cidr: Invalid value: \"10.0.0.1/8\": must not have bits set beyond the prefix length",
                ],
            ),
            (
                of(&json!({"ipBlock": {"cidr": "::ffff:10.0.0.0/104"}})),
                &[
                    "spec.ingress[0].from[0].ipBlock.cidr: Invalid value: \"::ffff:10.0.0.0/104\": must not have an IPv4-mapped IPv6 address",
                ],
            ),
            (
                of(&json!({"ipBlock": {"cidr": "fd00::/64", "except": ["fd00::1:0/112"]}})),
                &[],
            ),
        ],
    );
}

#[test]
fn ports_of_network_policies() {
    let peer = json!({"podSelector": {}});
    let on = |port: &Value| rule(&peer, port);
    all(
        GROUP,
        "networkpolicies",
        &[
            (
                on(&json!({"protocol": "ICMP"})),
                &[
                    "spec.ingress[0].ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"TCP\", \"UDP\", \"SCTP\"",
                ],
            ),
            (
                on(&json!({"port": 123_456})),
                &["spec.ingress[0].ports[0].port: Invalid value: 123456: must be between 1 and 65535, inclusive"],
            ),
            (
                on(&json!({"port": 32000, "endPort": 31000})),
                &["spec.ingress[0].ports[0].endPort: Invalid value: 32000: must be greater than or equal to `port`"],
            ),
            (
                on(&json!({"port": "dns", "endPort": 53})),
                &[
                    "spec.ingress[0].ports[0].endPort: Invalid value: 53: may not be specified when `port` is non-numeric",
                ],
            ),
            (
                on(&json!({"endPort": 53})),
                &[
                    "spec.ingress[0].ports[0].endPort: Invalid value: 53: may not be specified when `port` is not specified",
                ],
            ),
            (
                json!({"spec": {"policyTypes": ["foo"]}}),
                &["spec.policyTypes[0]: Unsupported value: \"foo\": supported values: \"Ingress\", \"Egress\""],
            ),
            (
                json!({"spec": {"policyTypes": ["Ingress", "Egress", "Ingress"]}}),
                &[
                    "spec.policyTypes: Invalid value: [\"Ingress\",\"Egress\",\"Ingress\"]: may not specify more than two policyTypes",
                ],
            ),
        ],
    );
}
