//! Validation of cluster-level kinds: nodes, service CIDRs, and devices.

use controlplane_api::find;
use serde_json::{Value, json};

use crate::refused::{refused, texts, update_refused, with};
use crate::rules::status_refused;

#[test]
fn nodes() {
    let taint = json!({"key": "a", "value": "b", "effect": "NoSchedule"});
    for (patch, expected) in [
        (
            json!({"spec": {"taints": [taint, taint]}}),
            "metadata.taints[1]: Duplicate value: {\"Key\":\"a\",\"Value\":\"b\",\"Effect\":\"NoSchedule\",\"TimeAdded\":null}: taints must be unique by key and effect pair",
        ),
        (
            json!({"spec": {"taints": [{"key": "a", "effect": ""}]}}),
            "metadata.taints[0].effect: Required value",
        ),
        (
            json!({"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24", "10.1.0.0/24"]}}),
            "spec.podCIDRs: Invalid value: [\"10.0.0.0/24\",\"10.1.0.0/24\"]: may specify no more than one CIDR for each IP family",
        ),
        (
            json!({"spec": {"podCIDR": "1.2.3", "podCIDRs": ["10.0.0.0/24"]}}),
            "spec.podCIDRs[0]: Invalid value: \"1.2.3\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        ),
        (
            json!({"status": {"allocatable": {"pods": "1500m"}}}),
            "status.allocatable.pods: Invalid value: \"1500m\": must be an integer",
        ),
        (
            json!({"status": {"declaredFeatures": ["B", "A/b"]}}),
            "status.declaredFeatures[1]: Invalid value: \"A/b\": list must be sorted alphabetically",
        ),
        (
            json!({"status": {"declaredFeatures": ["A", "A"]}}),
            "status.declaredFeatures[1]: Duplicate value: \"A\"",
        ),
        (
            json!({"status": {"declaredFeatures": ["a"]}}),
            "status.declaredFeatures[0]: Invalid value: \"a\": invalid feature name \"a\": must start with an \
             UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or \
             MyFeature/mySubFeature), and contain only alphanumeric characters and slashes",
        ),
    ] {
        refused("", "nodes", &patch, &[expected]);
    }
    let twice = json!({"type": "Hostname", "address": "node-1"});
    let row = find("", "v1", "nodes").unwrap();
    let new = with(row, &json!({"status": {"addresses": [twice, twice]}}));
    let expected = "status.addresses[1]: Duplicate value: {\"Type\":\"Hostname\",\"Address\":\"node-1\"}";
    let old = with(row, &json!({}));
    assert_eq!(
        texts(&row.validate_status(new.as_ref(), old.as_ref(), &mut Vec::new())),
        [expected]
    );
}

#[test]
fn ranges_and_addresses_of_services() {
    const GROUP: &str = "networking.k8s.io";
    for (cidrs, expected) in [
        (json!([]), "spec.cidrs: Required value: at least one CIDR required"),
        (
            json!(["10.0.0.0"]),
            "spec.cidrs[0]: Invalid value: \"10.0.0.0\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        ),
        (
            json!(["10.0.0.1/24"]),
            "spec.cidrs[0]: Invalid value: \"10.0.0.1/24\": must not have bits set beyond the prefix length",
        ),
        (
            json!(["10.0.0.0/24", "10.1.0.0/24"]),
            "spec.cidrs: Invalid value: [\"10.0.0.0/24\",\"10.1.0.0/24\"]: may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
        ),
    ] {
        refused(GROUP, "servicecidrs", &json!({"spec": {"cidrs": cidrs}}), &[expected]);
    }
    for (patch, expected) in [
        (
            json!({"metadata": {"name": "ten"}}),
            "metadata.name: Invalid value: \"ten\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ),
        (
            json!({"metadata": {"name": "10.0.0.01"}}),
            "metadata.name: Invalid value: \"10.0.0.01\": must not have leading 0s",
        ),
        (
            json!({"metadata": {"name": "2001:DB8::1"}}),
            "metadata.name: Invalid value: \"2001:DB8::1\": must be in canonical form (\"2001:db8::1\")",
        ),
        (
            json!({"spec": {"parentRef": {"resource": ""}}}),
            "spec.parentRef.resource: Required value",
        ),
        (
            json!({"spec": {"parentRef": {"name": "a/b"}}}),
            "spec.parentRef.name: Invalid value: \"a/b\": may not contain '/'",
        ),
    ] {
        refused(GROUP, "ipaddresses", &patch, &[expected]);
    }
    let own = json!({"spec": {"parentRef": {"name": "other"}}});
    let expected = "spec.parentRef: Invalid value: {\"Group\":\"\",\"Resource\":\"services\",\"Namespace\":\"kube-system\",\"Name\":\"other\"}: field is immutable";
    update_refused(GROUP, "ipaddresses", &own, &[expected]);
}

#[test]
fn devices() {
    const GROUP: &str = "resource.k8s.io";
    let claim = |request| json!({"spec": {"devices": {"requests": [request]}}});
    let exactly = |own| claim(json!({"name": "gpu", "exactly": own}));
    for (plural, patch, expected) in [
        (
            "resourceclaims",
            claim(json!({"name": "gpu"})),
            "spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required",
        ),
        (
            "resourceclaims",
            exactly(json!({"deviceClassName": ""})),
            "spec.devices.requests[0].exactly.deviceClassName: Required value",
        ),
        (
            "resourceclaims",
            exactly(json!({"deviceClassName": "c", "count": -1})),
            "spec.devices.requests[0].exactly.count: Invalid value: -1: must be greater than zero",
        ),
        (
            "resourceclaims",
            exactly(json!({"deviceClassName": "c", "allocationMode": "Some"})),
            "spec.devices.requests[0].exactly.allocationMode: Unsupported value: \"Some\": supported values: \"All\", \"ExactCount\"",
        ),
        (
            "resourceclaims",
            json!({"spec": {"devices": {"constraints": [{"requests": ["other"], "matchAttribute": "a.b/c"}]}}}),
            "spec.devices.constraints[0].requests[0]: Invalid value: \"other\": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
        ),
        (
            "deviceclasses",
            json!({"spec": {"selectors": [{}]}}),
            "spec.selectors[0].cel: Required value",
        ),
        (
            "resourceslices",
            json!({"spec": {"nodeName": null}}),
            "spec: Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
        ),
        (
            "resourceslices",
            json!({"spec": {"devices": [{"name": "a"}, {"name": "a"}]}}),
            "spec.devices[1]: Duplicate value: \"a\"",
        ),
    ] {
        refused(GROUP, plural, &patch, &[expected]);
    }
    let other = json!({"spec": {"driver": "other.example.com"}});
    let expected = "spec.driver: Invalid value: \"other.example.com\": field is immutable";
    update_refused(GROUP, "resourceslices", &other, &[expected]);
    let other = claim(json!({"name": "cpu", "exactly": {"deviceClassName": "c"}}));
    let spec = r#"{"devices":{"requests":[{"exactly":{"allocationMode":"ExactCount","count":1,"deviceClassName":"c"},"name":"cpu"}]}}"#;
    let expected = format!("spec: Invalid value: {spec}: field is immutable");
    update_refused(GROUP, "resourceclaims", &other, &[&expected]);
}

#[test]
fn slices_and_classes_of_devices() {
    for (plural, patch, expected) in [
        (
            "resourceslices",
            json!({"spec": {"nodeName": null, "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "zone", "operator": "In", "values": ["a/b"]},
            ]}]}}}),
            "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values[0]: Invalid value: \"a/b\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
        ),
        (
            "resourceslices",
            json!({"spec": {"devices": vec![json!({"name": "a"}); 129]}}),
            "spec.devices: Too many: 129: must have at most 128 items",
        ),
        (
            "deviceclasses",
            json!({"spec": {"config": [{"opaque": {"driver": "a.b", "parameters": "text"}}]}}),
            "spec.config[0].opaque.parameters: Invalid value: \"<value omitted>\": must be a valid JSON object",
        ),
        (
            "deviceclasses",
            json!({"spec": {"config": [{"opaque": {"driver": "a.b", "parameters": {"a": "b".repeat(10 << 10)}}}]}}),
            "spec.config[0].opaque.parameters: Too long: may not be more than 10240 bytes",
        ),
    ] {
        refused("resource.k8s.io", plural, &patch, &[expected]);
    }
}

#[test]
fn devices_of_a_slice_say_what_they_are() {
    let check = |device: &Value, expected: &[&str]| {
        let mut own = json!({"name": "a"});
        own.as_object_mut().unwrap().extend(device.as_object().unwrap().clone());
        let expected: Vec<String> = expected.iter().map(|text| format!("spec.devices[0]{text}")).collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        let slice = json!({"spec": {"devices": [own]}});
        refused("resource.k8s.io", "resourceslices", &slice, &expected);
    };
    let attribute = |value: Value, expected: &[&str]| {
        let expected: Vec<String> = expected.iter().map(|text| format!(".attributes[a]{text}")).collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        check(&json!({"attributes": {"a": value}}), &expected);
    };
    for version in ["1.0.0", "0.10.2-a-1.0+0x.01"] {
        attribute(json!({"version": version}), &[]);
    }
    for version in ["1.0", "01.0.0", "1.0.0-01", "1.0.0+"] {
        let wrong =
            format!(".version: Invalid value: {version:?}: must be a string compatible with semver.org spec 2.0.0");
        attribute(json!({"version": version}), &[&wrong]);
    }
    attribute(
        json!({}),
        &[": Invalid value: \"\": exactly one value must be specified"],
    );
    attribute(
        json!({"int": 1, "string": "x".repeat(65)}),
        &[
            ".string: Too long: may not be more than 64 bytes",
            &format!(
                ": Invalid value: {{\"IntValue\":1,\"BoolValue\":null,\"StringValue\":\"{}\",\"VersionValue\":null,\"IntValues\":null,\"BoolValues\":null,\"StringValues\":null,\"VersionValues\":null}}: exactly one value must be specified",
                "x".repeat(65)
            ),
        ],
    );
    let numbered: Value = (0..33).map(|n| (format!("a.b/c{n}"), json!({"int": n}))).collect();
    check(
        &json!({"attributes": numbered}),
        &[": Invalid value: 33: the total number of attributes and capacities must not exceed 32"],
    );
    check(
        &json!({"capacity": {"/a": {"value": "1"}, "b/": {"value": "1"}}}),
        &[
            ".capacity: Invalid value: \"\": the domain must not be empty",
            ".capacity: Invalid value: \"\": the name must not be empty",
        ],
    );
    check(
        &json!({"taints": [{"key": "a", "effect": "Never"}]}),
        &[".taints[0].effect: Unsupported value: \"Never\": supported values: \"NoExecute\", \"NoSchedule\", \"None\""],
    );
    check(
        &json!({"allNodes": true}),
        &[
            ": Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
        ],
    );
}

#[test]
fn a_slice_from_before_a_rule_can_be_changed() {
    let row = find("resource.k8s.io", "v1", "resourceslices").unwrap();
    let slice = |version: &str, generation: i64| {
        let devices = json!([{"name": "a", "attributes": {"v": {"version": version}}}]);
        with(
            row,
            &json!({"spec": {"devices": devices, "pool": {"generation": generation}}}),
        )
    };
    for (version, expected) in [("1", 0), ("2", 1)] {
        let (old, new) = (slice("1", 1), slice(version, 2));
        let errors = row.validate_update(new.as_ref(), old.as_ref(), &mut Vec::new());
        assert_eq!(errors.len(), expected, "{version} {errors:?}");
    }
}

#[test]
fn statuses_of_device_claims() {
    let consumer = |name: &str| json!({"resource": "pods", "name": name, "uid": "u"});
    let result =
        |request: &str, pool: &str| json!({"request": request, "driver": "a.b", "pool": pool, "device": "gpu-0"});
    for (status, expected) in [
        (
            json!({"reservedFor": [consumer("a")]}),
            vec!["status.reservedFor: Forbidden: may not be specified when `allocated` is not set"],
        ),
        (
            json!({"allocation": {}, "reservedFor": [consumer("a"), consumer("")]}),
            vec![
                "status.reservedFor[1].name: Required value",
                "status.reservedFor[1]: Duplicate value: \"u\"",
            ],
        ),
        (
            json!({"allocation": {}, "reservedFor": vec![consumer("a"); 257]}),
            vec!["status.reservedFor: Too many: 257: must have at most 256 items"],
        ),
        (
            json!({"allocation": {"devices": {"results": [result("gpu", "pool"), result("cpu", "")]}}}),
            vec![
                "status.allocation.devices.results[1].request: Invalid value: \"cpu\": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
                "status.allocation.devices.results[1].pool: Required value",
            ],
        ),
        (
            json!({"allocation": {"devices": {"config": [
                {"source": "FromPod", "requests": ["gpu"], "opaque": {"driver": "a.b", "parameters": {"a": 1}}},
            ]}}}),
            vec![
                "status.allocation.devices.config[0].source: Unsupported value: \"FromPod\": supported values: \"FromClaim\", \"FromClass\"",
            ],
        ),
        (
            json!({"allocation": {"devices": {"results": [result("gpu", "pool")]}}, "devices": [
                {"driver": "a.b", "pool": "pool", "device": "gpu-0", "conditions": [{"type": "Ready", "status": "True"}],
                    "data": "text", "networkData": {"ips": ["10.0.0.1", "10.0.0.1/8"]}},
                {"driver": "a.b", "pool": "pool", "device": "gpu-1"},
                {"driver": "a.b", "pool": "pool", "device": "gpu-1"},
            ]}),
            vec![
                "status.devices[0].conditions[0].lastTransitionTime: Required value",
                "status.devices[0].conditions[0].reason: Required value",
                "status.devices[0].data: Invalid value: \"<value omitted>\": must be a valid JSON object",
                "status.devices[0].networkData.ips[0]: Invalid value: \"10.0.0.1\": must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)",
                "status.devices[1]: Invalid value: {\"Driver\":\"a.b\",\"Pool\":\"pool\",\"Device\":\"gpu-1\",\"ShareID\":\"\"}: must be an allocated device in the claim",
                "status.devices[2]: Invalid value: {\"Driver\":\"a.b\",\"Pool\":\"pool\",\"Device\":\"gpu-1\",\"ShareID\":\"\"}: must be an allocated device in the claim",
                "status.devices[2]: Duplicate value: {\"Driver\":\"a.b\",\"Pool\":\"pool\",\"Device\":\"gpu-1\",\"ShareID\":\"\"}",
            ],
        ),
        (
            json!({"allocation": {"nodeSelector": {"nodeSelectorTerms": []}}}),
            vec![
                "status.allocation.nodeSelector.nodeSelectorTerms: Required value: must have at least one node selector term",
            ],
        ),
    ] {
        status_refused(
            "resource.k8s.io",
            "resourceclaims",
            &json!({ "status": status }),
            &expected,
        );
    }
}
