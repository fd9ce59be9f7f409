//! Validation of network kinds: one change of a fixture and its errors.

use controlplane_api::{Object, find};
use serde_json::{Value, json};

use crate::refused::{refused, update_refused, with};

pub(crate) const GROUP: &str = "networking.k8s.io";

type Case<'a> = (Value, &'a [&'a str]);

pub(crate) fn all(group: &str, plural: &str, cases: &[Case<'_>]) {
    for (patch, expected) in cases {
        refused(group, plural, patch, expected);
    }
}

/// An Ingress with one path.
fn path(path: &Value) -> Value {
    json!({"spec": {"rules": [{"http": {"paths": [path]}}]}})
}

fn backend(backend: &Value) -> Value {
    json!({"spec": {"defaultBackend": backend}})
}

#[test]
fn ingresses() {
    let web = json!({"service": {"name": "web", "port": {"number": 80}}});
    let at = |text: &str, kind: &str| path(&json!({"path": text, "pathType": kind, "backend": web}));
    let wildcard = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    let star = format!("spec.rules[0].host: Invalid value: \"foo.*\": {wildcard}");
    let tls = format!("spec.tls[0].hosts[0]: Invalid value: \"*\": {wildcard}");
    all(
        GROUP,
        "ingresses",
        &[
            (
                json!({"spec": {"rules": null, "tls": null}}),
                &["spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"],
            ),
            (
                path(&json!({"path": "/", "backend": web})),
                &["spec.rules[0].http.paths[0].pathType: Required value: pathType must be specified"],
            ),
            (
                at("", "Prefix"),
                &["spec.rules[0].http.paths[0].path: Invalid value: \"\": must be an absolute path"],
            ),
            (at("", "ImplementationSpecific"), &[]),
            (
                at("/a//../%2F..", "Exact"),
                &[
                    "spec.rules[0].http.paths[0].path: Invalid value: \"/a//../%2F..\": must not contain '//'",
                    "spec.rules[0].http.paths[0].path: Invalid value: \"/a//../%2F..\": must not contain '/../'",
                    "spec.rules[0].http.paths[0].path: Invalid value: \"/a//../%2F..\": must not contain '%2F'",
                ],
            ),
            (
                at("/a/.", "Prefix"),
                &["spec.rules[0].http.paths[0].path: Invalid value: \"/a/.\": cannot end with '/.'"],
            ),
            (
                at("/", "Regex"),
                &[
                    "spec.rules[0].http.paths[0].pathType: Unsupported value: \"Regex\": supported values: \"Exact\", \"ImplementationSpecific\", \"Prefix\"",
                ],
            ),
            (
                json!({"spec": {"rules": [{"http": {"paths": []}}]}}),
                &["spec.rules[0].http.paths: Required value"],
            ),
            (
                json!({"spec": {"rules": [{"host": "127.0.0.1"}]}}),
                &["spec.rules[0].host: Invalid value: \"127.0.0.1\": must be a DNS name, not an IP address"],
            ),
            (json!({"spec": {"rules": [{"host": "foo.*"}]}}), &[&star]),
            (json!({"spec": {"tls": [{"hosts": ["*"]}]}}), &[&tls]),
        ],
    );
}

#[test]
fn ingress_backends() {
    all(
        GROUP,
        "ingresses",
        &[
            (
                backend(&json!({})),
                &["spec.defaultBackend: Invalid value: \"\": resource or service backend is required"],
            ),
            (
                backend(&json!({"service": {"name": "", "port": {"number": 80}}})),
                &["spec.defaultBackend.service.name: Required value"],
            ),
            (
                backend(&json!({"service": {"name": "web"}})),
                &["spec.defaultBackend: Required value: port name or number is required"],
            ),
            (
                backend(&json!({"service": {"name": "web", "port": {"name": "a", "number": 1}}})),
                &["spec.defaultBackend: Invalid value: \"\": cannot set both port name & port number"],
            ),
            (
                backend(&json!({"service": {"name": "web", "port": {"number": 65536}}})),
                &[
                    "spec.defaultBackend.service.port.number: Invalid value: 65536: must be between 1 and 65535, inclusive",
                ],
            ),
            (
                backend(
                    &json!({"service": {"name": "a", "port": {"number": 1}}, "resource": {"kind": "K", "name": "n"}}),
                ),
                &["spec.defaultBackend: Invalid value: \"\": cannot set both resource and service backends"],
            ),
            (
                backend(&json!({"resource": {"kind": "", "name": "a/b"}})),
                &[
                    "spec.defaultBackend.resource.kind: Required value",
                    "spec.defaultBackend.resource.name: Invalid value: \"a/b\": may not contain '/'",
                ],
            ),
            (
                json!({"metadata": {"annotations": {"kubernetes.io/ingress.class": "other"}}}),
                &[
                    "annotations.kubernetes.io/ingress.class: Invalid value: \"other\": must match `ingressClassName` when both are specified",
                ],
            ),
        ],
    );
}

#[test]
fn ingress_classes() {
    all(
        GROUP,
        "ingressclasses",
        &[
            (
                json!({"spec": {"controller": null}}),
                &["spec.controller: Required value"],
            ),
            (
                json!({"spec": {"controller": "nginx"}}),
                &[
                    "spec.controller: Invalid value: \"nginx\": must be a domain-prefixed path (such as \"acme.io/foo\")",
                ],
            ),
            (
                json!({"spec": {"controller": "a.io/b c"}}),
                &[
                    "spec.controller: Invalid value: \"b c\": Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')",
                ],
            ),
            (
                json!({"spec": {"parameters": {"scope": "Namespace"}}}),
                &["spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace'"],
            ),
            (
                json!({"spec": {"parameters": {"namespace": "a"}}}),
                &["spec.parameters.namespace: Forbidden: `parameters.scope` is set to 'Cluster'"],
            ),
            (
                json!({"spec": {"parameters": {"scope": "World"}}}),
                &["spec.parameters.scope: Unsupported value: \"World\": supported values: \"Cluster\", \"Namespace\""],
            ),
        ],
    );
    let changed = ["spec.controller: Invalid value: \"a.io/b\": field is immutable"];
    update_refused(
        GROUP,
        "ingressclasses",
        &json!({"spec": {"controller": "a.io/b"}}),
        &changed,
    );
}

fn subset(address: &Value, ports: &Value) -> Value {
    json!({"subsets": [{"addresses": [address], "ports": ports}]})
}

#[test]
fn endpoints() {
    let good = json!({"ip": "10.0.0.1"});
    let at = |ip: &str| subset(&json!({"ip": ip}), &json!([]));
    all(
        "",
        "endpoints",
        &[
            (
                json!({"subsets": [{"ports": []}]}),
                &["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"],
            ),
            (
                at("2001:4860:4860::8888x"),
                &[
                    "subsets[0].addresses[0].ip: Invalid value: \"2001:4860:4860::8888x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                ],
            ),
            (
                at("127.0.0.1"),
                &[
                    "subsets[0].addresses[0].ip: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
                ],
            ),
            (
                at("169.254.169.254"),
                &[
                    "subsets[0].addresses[0].ip: Invalid value: \"169.254.169.254\": may not be in the link-local range (169.254.0.0/16, fe80::/10)",
                ],
            ),
            (
                at("224.0.0.1"),
                &[
                    "subsets[0].addresses[0].ip: Invalid value: \"224.0.0.1\": may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
                ],
            ),
            (
                at("0.0.0.0"),
                &["subsets[0].addresses[0].ip: Invalid value: \"0.0.0.0\": may not be unspecified (0.0.0.0)"],
            ),
            (
                subset(&good, &json!([{"port": 80}, {"name": "a", "port": 81}])),
                &["subsets[0].ports[0].name: Required value"],
            ),
            (
                subset(&good, &json!([{"port": 66000, "protocol": "SCTP"}])),
                &["subsets[0].ports[0].port: Invalid value: 66000: must be between 1 and 65535, inclusive"],
            ),
        ],
    );
}

#[test]
fn endpoint_slices() {
    let endpoint = |endpoint: Value| json!({"endpoints": [endpoint]});
    let hints = vec![json!({"name": "z"}); 9];
    all(
        "discovery.k8s.io",
        "endpointslices",
        &[
            (
                endpoint(json!({"addresses": ["127.0.0.1"]})),
                &[
                    "endpoints[0].addresses[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
                ],
            ),
            (
                endpoint(json!({"addresses": ["10.0.0.01", "2001:DB8::1"]})),
                &[
                    "endpoints[0].addresses[0]: Invalid value: \"10.0.0.01\": must not have leading 0s",
                    "endpoints[0].addresses: Invalid value: \"2001:DB8::1\": must be an IPv4 address",
                ],
            ),
            (
                json!({"addressType": "IPv6", "endpoints": [{"addresses": ["2001:DB8::1", "::ffff:1.2.3.4"]}]}),
                &[
                    "endpoints[0].addresses[0]: Invalid value: \"2001:DB8::1\": must be in canonical form (\"2001:db8::1\")",
                    "endpoints[0].addresses[1]: Invalid value: \"::ffff:1.2.3.4\": must not be an IPv4-mapped IPv6 address",
                ],
            ),
            (
                json!({"addressType": "FQDN", "endpoints": [{"addresses": ["localhost"]}]}),
                &[
                    "endpoints[0].addresses[0]: Invalid value: \"localhost\": should be a domain with at least two segments separated by dots",
                ],
            ),
            (
                endpoint(json!({"addresses": ["10.0.0.1"], "hints": {"forZones": [{"name": "a"}, {"name": "a"}]}})),
                &["endpoints[0].hints.forZones[1].name: Duplicate value: \"a\""],
            ),
            (
                endpoint(json!({"addresses": ["10.0.0.1"], "hints": {"forZones": hints}})),
                &["endpoints[0].hints.forZones: Too many: 9: must have at most 8 items"],
            ),
            (
                json!({"ports": [{"name": "a", "port": 1}, {"name": "a", "port": 2}]}),
                &["ports[1].name: Duplicate value: \"a\""],
            ),
        ],
    );
}

#[test]
fn services_take_no_address_that_is_the_nodes_own() {
    let addresses = ["127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "192.0.2.1"];
    refused(
        "",
        "services",
        &json!({"spec": {"externalIPs": addresses}}),
        &[
            "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
            "spec.externalIPs[1]: Invalid value: \"0.0.0.0\": may not be unspecified (0.0.0.0)",
            "spec.externalIPs[2]: Invalid value: \"169.254.1.1\": may not be in the link-local range (169.254.0.0/16, fe80::/10)",
            "spec.externalIPs[3]: Invalid value: \"224.0.0.1\": may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        ],
    );
    refused(
        "",
        "services",
        &json!({"spec": {"type": "ExternalName", "externalName": "a.example", "clusterIP": "10.96.3.3", "ports": null}}),
        &["spec.clusterIPs: Forbidden: may not be set for ExternalName services"],
    );
    let modes =
        json!({"service.kubernetes.io/topology-aware-hints": "auto", "service.kubernetes.io/topology-mode": "Auto"});
    refused(
        "",
        "services",
        &json!({"metadata": {"annotations": modes}}),
        &[
            "metadata.annotations[service.kubernetes.io/topology-mode]: Invalid value: \"Auto\": must match annotations[service.kubernetes.io/topology-aware-hints] when both are specified",
        ],
    );
    let key = "service.beta.kubernetes.io/load-balancer-source-ranges";
    refused(
        "",
        "services",
        &json!({"metadata": {"annotations": {key: "10.0.0.0/8, 10.0.0.1/8"}}}),
        &[
            &format!("metadata.annotations[{key}]: Forbidden: may only be used when `type` is 'LoadBalancer'"),
            &format!(
                "metadata.annotations[{key}]: Invalid value: \"10.0.0.1/8\": must not have bits set beyond the prefix length"
            ),
        ],
    );
}

#[test]
fn endpoints_that_were_let_in_may_stay() {
    let row = find("discovery.k8s.io", "v1", "endpointslices").unwrap();
    let of = |address: &str, label: &str| {
        let slice = json!({"addressType": "IPv6", "endpoints": [{"addresses": [address]}], "metadata": {"labels": {"a": label}}});
        with(row, &slice)
    };
    let old = of("2001:DB8::1", "x");
    let errors = |new: Box<dyn Object>| row.validate_update(new.as_ref(), old.as_ref(), &mut Vec::new());
    assert!(errors(of("2001:DB8::1", "y")).is_empty());
    assert_eq!(errors(of("2001:DB8::2", "y")).len(), 1);
}

#[test]
fn a_slices_labels_count_for_its_generation_and_its_annotations_do_not() {
    let row = find("discovery.k8s.io", "v1", "endpointslices").unwrap();
    let generation = |metadata: Value| {
        let of = |metadata: &Value| {
            let slice = json!({"addressType": "IPv4", "endpoints": [], "metadata": metadata});
            with(row, &slice)
        };
        let (old, mut new) = (of(&json!({"generation": 1})), of(&metadata));
        row.prepare_update(new.as_mut(), old.as_ref());
        new.metadata().generation
    };
    assert_eq!(generation(json!({"annotations": {"a": "b"}})), Some(1));
    assert_eq!(generation(json!({"labels": {"a": "b"}})), Some(2));
}
