//! Updates of Services: allocations, rejections, and the order of their errors.

use controlplane_server::Options;
use http::StatusCode;
use serde_json::{Value, json};

use crate::services::{SERVICES, create, service};
use crate::support::{Answer, Api};

async fn change(api: &Api, name: &str, spec: &Value) -> Answer {
    let path = format!("{SERVICES}/{name}");
    api.patch(&path, "merge-patch+json", &json!({"spec": spec})).await
}

/// Validation errors of a Service, without its name.
fn wrong(answer: &Answer) -> String {
    assert_eq!(answer.code, StatusCode::UNPROCESSABLE_ENTITY, "{}", answer.text());
    answer.message().split_once(" is invalid: ").unwrap().1.to_owned()
}

#[tokio::test]
async fn a_set_address_may_not_change_whatever_the_ranges_say() {
    let api = Api::start().await;
    create(&api, "web", &json!({"clusterIP": "10.96.1.1"})).await;
    create(&api, "other", &json!({"clusterIP": "10.96.1.2"})).await;
    create(&api, "headless", &json!({"clusterIP": "None", "selector": {"a": "b"}})).await;
    for (name, address) in [
        ("web", "192.0.2.1"),
        ("web", "10.96.1.2"),
        ("web", "10.96.1.3"),
        ("web", "None"),
        ("headless", "192.0.2.1"),
    ] {
        let words = format!("spec.clusterIPs[0]: Invalid value: [\"{address}\"]: may not change once set");
        let both = change(&api, name, &json!({"clusterIP": address, "clusterIPs": [address]})).await;
        assert_eq!(wrong(&both), words, "{name}");
        let one = change(&api, name, &json!({"clusterIP": address})).await;
        assert_eq!(wrong(&one), words, "{name}");
        let path = format!("{SERVICES}/{name}");
        let put = api.put(&path, &service(name, &json!({"clusterIP": address}))).await;
        assert_eq!(wrong(&put), words, "{name}");
    }
    // Invalid addresses are reported first and alone.
    let bad = change(&api, "web", &json!({"clusterIP": "10.96.1", "ports": []})).await;
    assert_eq!(
        wrong(&bad),
        "spec.clusterIPs[0]: Invalid value: \"10.96.1\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
    );
    // An address that no allocator knows is left to validation, and the rules for updates come
    // first.
    let two = change(&api, "web", &json!({"clusterIP": "192.0.2.1", "type": "Other"})).await;
    assert_eq!(
        wrong(&two),
        "[spec.clusterIPs[0]: Invalid value: [\"192.0.2.1\"]: may not change once set, spec.type: Unsupported value: \
         \"Other\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"]"
    );
}

#[tokio::test]
async fn a_name_that_becomes_an_address_asks_the_ranges() {
    let api = Api::start().await;
    create(&api, "other", &json!({"clusterIP": "10.96.1.2"})).await;
    let named = json!({"type": "ExternalName", "externalName": "example.com"});
    assert!(create(&api, "web", &named).await.code.is_success());
    for (address, because) in [
        ("192.0.2.1", "the provided network does not match the current range"),
        ("10.96.1.2", "provided IP is already allocated"),
    ] {
        let change = change(&api, "web", &json!({"type": "ClusterIP", "clusterIP": address})).await;
        assert_eq!(
            wrong(&change),
            format!("spec.clusterIPs: Invalid value: [\"{address}\"]: failed to allocate IP {address}: {because}")
        );
    }
    let changed = change(&api, "web", &json!({"type": "ClusterIP", "clusterIP": "10.96.1.3"})).await;
    assert_eq!(changed.json()["spec"]["clusterIPs"], json!(["10.96.1.3"]));
}

#[tokio::test]
async fn a_port_of_the_same_name_keeps_its_node_port() {
    let api = Api::start().await;
    let spec = json!({"type": "NodePort", "ports": [{"name": "a", "port": 80, "nodePort": 30001},
        {"name": "b", "port": 81, "nodePort": 30002}]});
    create(&api, "web", &spec).await;
    let ports = json!([{"name": "a", "port": 8080}, {"name": "b", "port": 81, "protocol": "UDP"}]);
    let changed = change(&api, "web", &json!({"ports": ports})).await.json();
    let numbers = |changed: &Value| {
        let ports = changed["spec"]["ports"].as_array().unwrap().clone();
        ports.iter().map(|port| port["nodePort"].as_i64()).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&changed), [Some(30001), Some(30002)]);
    // One port is removed while the type changes: the other is released too.
    let inner = json!({"type": "ClusterIP", "ports": [{"name": "a", "port": 80, "nodePort": 30001}]});
    let inner = change(&api, "web", &inner).await;
    assert_eq!(inner.code, StatusCode::OK, "{}", inner.text());
    assert_eq!(numbers(&inner.json()), [None]);
    create(&api, "other", &spec).await;
    let taken = json!({"ports": [{"port": 80, "nodePort": 30001}]});
    assert_eq!(
        wrong(&change(&api, "web", &taken).await),
        "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"
    );
    let twice =
        json!({"ports": [{"name": "a", "port": 80, "nodePort": 30001}, {"name": "b", "port": 81, "nodePort": 30001}]});
    let twice = change(&api, "other", &twice).await;
    assert_eq!(
        (twice.code, twice.message()),
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            "duplicate nodePort: {TCP 30001}".to_owned()
        )
    );
    let outside = json!({"type": "NodePort", "sessionAffinity": "x", "ports": [{"port": 80, "nodePort": 1}]});
    assert_eq!(
        wrong(&create(&api, "third", &outside).await),
        "spec.ports[0].nodePort: Invalid value: 1: provided port is not in the valid range. The range of valid ports is \
         30000-32767"
    );
}

#[tokio::test]
async fn families_are_the_allocators_and_nobody_manages_them() {
    let api = Api::start().await;
    for (spec, words) in [
        (
            json!({"ipFamilies": ["IPv6"]}),
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (
            json!({"clusterIP": "fd00::1"}),
            "spec.clusterIPs[0]: Invalid value: [\"fd00::1\"]: IPv6 is not configured on this cluster",
        ),
        (
            json!({"clusterIP": "fd00::1", "ipFamilies": ["IPv4"]}),
            "spec.clusterIPs[0]: Invalid value: \"fd00::1\": expected an IPv4 value as indicated by `ipFamilies[0]`",
        ),
        (
            json!({"ipFamilyPolicy": "RequireDualStack"}),
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
        ),
        (
            json!({"clusterIP": "10.96.1.1", "clusterIPs": ["10.96.1.1", "fd00::1"]}),
            "[spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when \
             multiple cluster IPs are specified, spec.clusterIPs[1]: Invalid value: [\"10.96.1.1\",\"fd00::1\"]: IPv6 is \
             not configured on this cluster]",
        ),
    ] {
        assert_eq!(wrong(&create(&api, "web", &spec).await), words, "{spec}");
    }
    let free = create(&api, "free", &json!({"clusterIP": "None"})).await.json();
    assert_eq!(
        (&free["spec"]["ipFamilies"], &free["spec"]["ipFamilyPolicy"]),
        (&json!(["IPv4", "IPv6"]), &json!("RequireDualStack"))
    );
    let managed = free["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"].as_object();
    let managed: Vec<&str> = managed.unwrap().keys().map(String::as_str).collect();
    let own = [
        "f:clusterIP",
        "f:internalTrafficPolicy",
        "f:ports",
        "f:sessionAffinity",
        "f:type",
    ];
    assert_eq!(managed, own);
    // Removing the second family requires the matching policy.
    let less = change(&api, "free", &json!({"ipFamilies": ["IPv4"]})).await;
    assert_eq!(
        wrong(&less),
        "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary IP family"
    );
    let less = change(&api, "free", &json!({"ipFamilyPolicy": "SingleStack"})).await;
    assert_eq!(less.json()["spec"]["ipFamilies"], json!(["IPv4"]), "{}", less.text());
}

/// Policy and families of a Service, whose addresses must be of those families.
fn shown(service: &Value) -> String {
    let spec = &service["spec"];
    let addresses = spec["clusterIPs"].as_array().cloned().unwrap_or_default();
    let six = |address: &Value| address.as_str().unwrap().starts_with("fd00:10:96::");
    let families = addresses
        .iter()
        .map(|address| if six(address) { "IPv6" } else { "IPv4" });
    assert_eq!(json!(families.collect::<Vec<_>>()), spec["ipFamilies"], "{service}");
    assert_eq!(addresses.first(), Some(&spec["clusterIP"]));
    format!("{} {}", spec["ipFamilyPolicy"].as_str().unwrap(), spec["ipFamilies"])
}

#[tokio::test]
async fn services_of_both_families_get_and_lose_the_second_address() {
    let ranges = vec!["10.96.0.0/16".parse().unwrap(), "fd00:10:96::/112".parse().unwrap()];
    let api = Api::start_with(|options| Options {
        service_ranges: ranges,
        ..options
    })
    .await;
    let range = api
        .get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
        .await
        .json();
    assert_eq!(range["spec"]["cidrs"], json!(["10.96.0.0/16", "fd00:10:96::/112"]));
    for (name, spec, expected) in [
        ("single", json!({}), "SingleStack [\"IPv4\"]"),
        ("six", json!({"ipFamilies": ["IPv6"]}), "SingleStack [\"IPv6\"]"),
        (
            "named",
            json!({"clusterIP": "fd00:10:96::77"}),
            "SingleStack [\"IPv6\"]",
        ),
        (
            "both",
            json!({"ipFamilyPolicy": "PreferDualStack"}),
            "PreferDualStack [\"IPv4\",\"IPv6\"]",
        ),
        (
            "turned",
            json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6"]}),
            "RequireDualStack [\"IPv6\",\"IPv4\"]",
        ),
    ] {
        let made = create(&api, name, &spec).await;
        assert_eq!(made.code, StatusCode::CREATED, "{}", made.text());
        assert_eq!(shown(&made.json()), expected, "{spec}");
    }

    let more = change(&api, "single", &json!({"ipFamilyPolicy": "RequireDualStack"})).await;
    assert_eq!(shown(&more.json()), "RequireDualStack [\"IPv4\",\"IPv6\"]");
    let second = more.json()["spec"]["clusterIPs"][1].as_str().unwrap().to_owned();
    let held = format!("/apis/networking.k8s.io/v1/ipaddresses/{second}");
    let address = api.get(&held).await.json();
    let family = "ipaddress.kubernetes.io/ip-family";
    assert_eq!(address["metadata"]["labels"][family], "IPv6");
    let first = more.json()["spec"]["clusterIP"].clone();
    for (wanted, words) in [
        (
            json!({"clusterIPs": [first, "fd00:10:96::99"]}),
            "spec.clusterIPs[1]: Invalid value: [ADDRESS,\"fd00:10:96::99\"]: may not change once set",
        ),
        (
            json!({"clusterIPs": [first]}),
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary cluster IP",
        ),
    ] {
        let words = words.replace("ADDRESS", &first.to_string());
        assert_eq!(wrong(&change(&api, "single", &wanted).await), words, "{wanted}");
    }
    let less = change(&api, "single", &json!({"ipFamilyPolicy": "SingleStack"})).await;
    assert_eq!(shown(&less.json()), "SingleStack [\"IPv4\"]");
    assert_eq!(api.get(&held).await.code, StatusCode::NOT_FOUND);
    let chosen = json!({"ipFamilyPolicy": "PreferDualStack", "clusterIPs": [first, "fd00:10:96::99"]});
    let chosen = change(&api, "single", &chosen).await;
    assert_eq!(
        chosen.json()["spec"]["clusterIPs"][1],
        "fd00:10:96::99",
        "{}",
        chosen.text()
    );
}
