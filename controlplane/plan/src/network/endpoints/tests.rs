//! Pods and Services, and the endpoints for them.

use std::fmt::Write as _;
use std::sync::Arc;

use expect_test::expect;
use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::{plan_endpoints, plan_mirror, plan_slices};
use crate::pod::Pod;
use crate::step::{Plan, Step};

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn service(spec: &Value) -> Service {
    let metadata = json!({ "name": "web", "namespace": "default", "uid": "s", "labels": { "app": "web" } });
    read(json!({ "metadata": metadata, "spec": spec }))
}

/// A Service that targets the port named `http` of its pods.
fn named() -> Service {
    service(&json!({
        "clusterIP": "10.96.0.9", "selector": { "app": "web" },
        "ports": [{ "name": "http", "port": 80, "protocol": "TCP", "targetPort": "http" }],
    }))
}

fn pod(number: u32, port: u32, ready: bool) -> Pod {
    let ready = if ready { "True" } else { "False" };
    read(json!({
        "metadata": {
            "name": format!("p{number:04}"), "namespace": "default", "uid": format!("u{number}"), "labels": { "app": "web" },
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{ "name": "c", "ports": [{ "name": "http", "containerPort": port, "protocol": "TCP" }] }],
        },
        "status": {
            "podIP": format!("10.0.{}.{}", number / 250, number % 250), "conditions": [{ "type": "Ready", "status": ready }],
        },
    }))
}

fn slices(service: &Service, pods: &[Pod], there: &[EndpointSlice]) -> Plan {
    let plan = slices_on(&[], service, pods, there);
    let mut steps = plan.stages.iter().flatten();
    assert!(!steps.any(|step| matches!(step, Step::Event(_))), "{plan}");
    plan
}

/// Node `n1` is in `zone-of-n1`, and so on.
fn slices_on(nodes: &[Arc<Node>], service: &Service, pods: &[Pod], slices: &[EndpointSlice]) -> Plan {
    let pods: Vec<&Pod> = pods.iter().collect();
    let slices: Vec<&EndpointSlice> = slices.iter().collect();
    let zone = |node: &str| (node != "gone").then(|| format!("zone-of-{node}"));
    plan_slices(service, &pods, &slices, &zone, nodes)
}

/// Applies a plan to slices and returns the result.
fn after(plan: Plan, mut before: Vec<EndpointSlice>) -> Vec<EndpointSlice> {
    for step in plan.stages.into_iter().flatten() {
        match step {
            Step::Create { body, .. } => {
                let mut slice: EndpointSlice = read(*body);
                slice.metadata.name = Some(format!("web-{}", before.len()));
                before.push(slice);
            }
            Step::Patch { target, body, .. } => {
                let slice = before
                    .iter_mut()
                    .find(|slice| slice.metadata.name.as_ref() == Some(&target.name));
                let slice = slice.unwrap();
                slice.endpoints = Some(read(body["endpoints"].clone()));
                slice.ports = Some(read(body["ports"].clone()));
            }
            Step::Delete { target, .. } => before.retain(|slice| slice.metadata.name.as_ref() != Some(&target.name)),
            Step::Event(_) => {}
            Step::Look(_) | Step::Measure(_) => panic!("{step}"),
        }
    }
    before
}

/// `3000:10.0.0.1,10.0.0.2` for each slice.
fn shown(slices: &[EndpointSlice]) -> Vec<String> {
    let mut shown: Vec<String> = slices
        .iter()
        .map(|slice| {
            let ports: Vec<String> = slice
                .ports
                .iter()
                .flatten()
                .map(|port| port.port.unwrap().to_string())
                .collect();
            let addresses = slice
                .endpoints
                .iter()
                .flatten()
                .flat_map(|endpoint| endpoint.addresses.clone());
            format!("{}:{}", ports.join("+"), addresses.collect::<Vec<_>>().join(","))
        })
        .collect();
    shown.sort();
    shown
}

#[test]
fn pods_whose_port_has_another_number_stand_in_a_slice_of_their_own() {
    let pods = [pod(1, 3000, true), pod(2, 3001, true), pod(3, 3000, false)];
    let made = after(slices(&named(), &pods, &[]), Vec::new());
    assert_eq!(shown(&made), ["3000:10.0.0.1,10.0.0.3", "3001:10.0.0.2"]);
    let endpoint = made[0].endpoints.as_ref().unwrap().first().unwrap();
    assert_eq!(endpoint.zone.as_deref(), Some("zone-of-n1"));
    let labels = json!({
        "app": "web", "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    });
    assert_eq!(json!(made[0].metadata.labels), labels);
    assert!(slices(&named(), &pods, &made).is_empty());
}

#[test]
fn ready_endpoints_are_hinted_as_the_traffic_distribution_says() {
    let with = |distribution: &str, annotations: Value| {
        let mut own = json!(named());
        own["spec"]["trafficDistribution"] = json!(distribution);
        own["metadata"]["annotations"] = annotations;
        read::<Service>(own)
    };
    let pods = [pod(1, 80, true), pod(2, 80, false)];
    let hints = |service: &Service| {
        let made = after(slices(service, &pods, &[]), Vec::new());
        assert!(slices(service, &pods, &made).is_empty());
        let plain = slices(&named(), &pods, &made);
        let endpoints = made[0].endpoints.as_ref().unwrap();
        let hinted = endpoints[0].hints.is_some();
        assert_eq!(plain.is_empty(), !hinted, "hints go with the distribution: {plain}");
        assert_eq!(endpoints[1].hints, None, "an endpoint that is not ready has none");
        json!(endpoints[0].hints)
    };
    let zones = json!([{ "name": "zone-of-n1" }]);
    for close in ["PreferClose", "PreferSameZone"] {
        assert_eq!(hints(&with(close, json!({}))), json!({ "forZones": zones }));
    }
    let both = json!({ "forNodes": [{ "name": "n1" }], "forZones": zones });
    assert_eq!(hints(&with("PreferSameNode", json!({}))), both);
    assert_eq!(hints(&named()), json!(null));
}

#[test]
fn zones_get_endpoints_by_their_share_of_the_cpu() {
    let node = |name: &str, cpu: &str| {
        Arc::new(read::<Node>(json!({
            "metadata": { "name": name, "labels": { "topology.kubernetes.io/zone": format!("zone-of-{name}") } },
            "status": { "allocatable": { "cpu": cpu }, "conditions": [{ "type": "Ready", "status": "True" }] },
        })))
    };
    let bare = Arc::new(read::<Node>(
        json!({ "metadata": { "name": "bare" }, "status": node("", "1").status }),
    ));
    let table = expect![[r"
        1+1, 3+1 pods -> n2 n1 n1 | n2; TopologyAwareHintsEnabled: Topology Aware Hints has been enabled, addressType: IPv4
        1+1, 4+0 pods -> n2 n2 n1 n1; TopologyAwareHintsEnabled: Topology Aware Hints has been enabled, addressType: IPv4
        3+1, 2+2 pods -> n1 n1 | n1 n2; TopologyAwareHintsEnabled: Topology Aware Hints has been enabled, addressType: IPv4
        1+1, 1+0 pods -> -; TopologyAwareHintsDisabled: Insufficient number of endpoints (1 endpoints, 2 zones), addressType: IPv4
        1+1000, 1+1 pods -> - | -; TopologyAwareHintsDisabled: Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (2 endpoints, 2 zones), addressType: IPv4
        1, 1+1 pods -> - | -; TopologyAwareHintsDisabled: Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4
        1+1+bare, 1+1 pods -> - | -; TopologyAwareHintsDisabled: Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4
    "]];
    let mut lines = String::new();
    let two = |first, second| vec![node("n1", first), node("n2", second)];
    for (named, nodes, pods) in [
        ("1+1", two("1", "1"), [3, 1]),
        ("1+1", two("1", "1"), [4, 0]),
        ("3+1", two("3", "1"), [2, 2]),
        ("1+1", two("1", "1"), [1, 0]),
        ("1+1000", two("1", "1000"), [1, 1]),
        ("1", vec![node("n1", "1")], [1, 1]),
        ("1+1+bare", [two("1", "1"), vec![bare.clone()]].concat(), [1, 1]),
    ] {
        let mut own = self::named();
        let annotation = "service.kubernetes.io/topology-mode".to_owned();
        own.metadata.annotations = Some([(annotation, "Auto".to_owned())].into());
        own.spec.as_mut().unwrap().traffic_distribution = Some("PreferSameZone".to_owned());
        let mut all = Vec::new();
        for (name, count) in ["n1", "n2"].into_iter().zip(pods) {
            for _ in 0..count {
                let mut pod = pod(u32::try_from(all.len()).unwrap() + 1, 80, true);
                pod.node = name.into();
                all.push(pod);
            }
        }
        let plan = slices_on(&nodes, &own, &all, &[]);
        let Some(Step::Event(event)) = plan.stages.last().and_then(|stage| stage.first()).cloned() else {
            panic!("{plan}");
        };
        let made = after(plan, Vec::new());
        let again = slices_on(&nodes, &own, &all, &made);
        let changes = again
            .stages
            .iter()
            .flatten()
            .filter(|step| !matches!(step, Step::Event(_)));
        assert_eq!(changes.count(), 0, "{again}");
        let shown = |zone: &str| -> Vec<String> {
            let endpoints = made[0].endpoints.iter().flatten();
            let own = endpoints.filter(|endpoint| endpoint.zone.as_deref() == Some(zone));
            let hint = own.map(|endpoint| endpoint.hints.as_ref().and_then(|hints| hints.for_zones.clone()));
            hint.map(|zones| zones.map_or("-".to_owned(), |zones| zones[0].name.replace("zone-of-", "")))
                .collect()
        };
        let zones = ["zone-of-n1", "zone-of-n2"].map(|zone| shown(zone).join(" "));
        let zones = zones.into_iter().filter(|zone| !zone.is_empty()).collect::<Vec<_>>();
        let [first, second] = pods;
        let (zones, reason, message) = (zones.join(" | "), event.reason, event.message);
        writeln!(lines, "{named}, {first}+{second} pods -> {zones}; {reason}: {message}").unwrap();
    }
    table.assert_eq(&lines);
}

#[test]
fn pods_of_nodes_that_are_gone_are_no_endpoints_unless_all_are_published() {
    let mut lost = pod(2, 80, true);
    let made = after(slices(&named(), &[pod(1, 80, true), lost.clone()], &[]), Vec::new());
    assert_eq!(shown(&made), ["80:10.0.0.1,10.0.0.2"]);
    lost.node = "gone".into();
    let pods = [pod(1, 80, true), lost];
    let plan = slices(&named(), &pods, &made);
    assert_eq!(plan.to_string(), "patch EndpointSlice web-0");
    assert_eq!(shown(&after(plan, made)), ["80:10.0.0.1"]);
    let mut all = named();
    all.spec.as_mut().unwrap().publish_not_ready_addresses = Some(true);
    let made = after(slices(&all, &pods, &[]), Vec::new());
    assert_eq!(shown(&made), ["80:10.0.0.1,10.0.0.2"]);
    let endpoints = made[0].endpoints.as_ref().unwrap();
    assert_eq!(endpoints[1].zone, None);
}

#[test]
fn a_service_without_pods_has_one_empty_slice_and_it_is_used_again() {
    let empty = after(slices(&named(), &[], &[]), Vec::new());
    assert_eq!(shown(&empty), [":"]);
    assert!(slices(&named(), &[], &empty).is_empty());
    let plan = slices(&named(), &[pod(1, 80, true)], &empty);
    assert_eq!(plan.to_string(), "patch EndpointSlice web-0");
    let one = after(plan, empty);
    assert_eq!(shown(&one), ["80:10.0.0.1"]);
    let plan = slices(&named(), &[], &one);
    assert_eq!(shown(&after(plan, one)), [":"]);
}

#[test]
fn a_slice_holds_a_hundred_and_pods_stay_where_they_are() {
    let pods: Vec<Pod> = (1..=150).map(|number| pod(number, 80, true)).collect();
    let made = after(slices(&named(), &pods, &[]), Vec::new());
    let sizes = |slices: &[EndpointSlice]| -> Vec<usize> {
        slices
            .iter()
            .map(|slice| slice.endpoints.as_ref().unwrap().len())
            .collect()
    };
    assert_eq!(sizes(&made), [100, 50]);
    // An endpoint of the first slice goes, another comes: it fills the free place, and the other
    // slice is left alone.
    let mut changed = pods[1..].to_vec();
    changed.push(pod(151, 80, true));
    let plan = slices(&named(), &changed, &made);
    assert_eq!(plan.to_string(), "patch EndpointSlice web-0");
    let made = after(plan, made);
    assert_eq!(sizes(&made), [100, 50]);
    // Without the others the second slice goes.
    let few = &changed[..50];
    assert_eq!(
        slices(&named(), few, &made).to_string(),
        "patch EndpointSlice web-0, delete EndpointSlice web-1"
    );
}

#[test]
fn slices_of_an_earlier_service_of_the_name_go() {
    let mut made = after(slices(&named(), &[pod(1, 80, true)], &[]), Vec::new());
    made[0].metadata.owner_references.as_mut().unwrap()[0].uid = "before".to_owned();
    let plan = slices(&named(), &[pod(1, 80, true)], &made);
    assert_eq!(
        plan.to_string(),
        "create EndpointSlice web-, delete EndpointSlice web-0"
    );
}

#[test]
fn endpoints_keep_those_that_are_not_ready_apart() {
    let pods = [
        pod(2, 3000, true),
        pod(1, 3000, true),
        pod(3, 3000, false),
        pod(4, 3001, true),
    ];
    let pods: Vec<&Pod> = pods.iter().collect();
    let plan = plan_endpoints(Some(&named()), &pods, None);
    let [Step::Create { body, .. }] = plan.stages[0].as_slice() else {
        panic!("{plan}")
    };
    let labels = json!({ "app": "web", "endpoints.kubernetes.io/managed-by": "endpoint-controller" });
    assert_eq!(body["metadata"], json!({ "name": "web", "labels": labels }));
    let mut made: Endpoints = read((**body).clone());
    let ips = |addresses: &Option<Vec<_>>| -> Vec<String> {
        let addresses: &Option<Vec<k8s_openapi::api::core::v1::EndpointAddress>> = addresses;
        addresses.iter().flatten().map(|address| address.ip.clone()).collect()
    };
    let subsets = made.subsets.clone().unwrap();
    assert_eq!(subsets.len(), 2);
    assert_eq!(ips(&subsets[0].addresses), ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(ips(&subsets[0].not_ready_addresses), ["10.0.0.3"]);
    assert_eq!(ips(&subsets[1].addresses), ["10.0.0.4"]);
    assert!(plan_endpoints(Some(&named()), &pods, Some(&made)).is_empty());
    // A label that the Service does not have is removed.
    made.metadata
        .labels
        .as_mut()
        .unwrap()
        .insert("own".to_owned(), "1".to_owned());
    let plan = plan_endpoints(Some(&named()), &pods, Some(&made));
    let [Step::Patch { body, .. }] = plan.stages[0].as_slice() else {
        panic!("{plan}")
    };
    assert_eq!(body["metadata"]["labels"]["own"], Value::Null);
    // Without the Service they are deleted.
    assert_eq!(plan_endpoints(None, &[], Some(&made)).stages.len(), 1);
}

#[test]
fn endpoints_without_pods_or_without_ports() {
    let none = plan_endpoints(Some(&named()), &[], None);
    let [Step::Create { body, .. }] = none.stages[0].as_slice() else {
        panic!("{none}")
    };
    assert_eq!(body["subsets"], Value::Null);
    let headless = service(&json!({ "clusterIP": "None", "selector": { "app": "web" } }));
    let plan = plan_endpoints(Some(&headless), &[&pod(1, 80, true)], None);
    let [Step::Create { body, .. }] = plan.stages[0].as_slice() else {
        panic!("{plan}")
    };
    assert_eq!(body["metadata"]["labels"]["service.kubernetes.io/headless"], "");
    assert_eq!(body["subsets"][0]["addresses"][0]["ip"], "10.0.0.1");
    assert_eq!(body["subsets"][0].get("ports"), None);
}

#[test]
fn endpoints_hold_a_thousand_addresses_the_ready_ones_first() {
    let pods: Vec<Pod> = (1..=1200).map(|number| pod(number, 80, number <= 700)).collect();
    let pods: Vec<&Pod> = pods.iter().collect();
    let plan = plan_endpoints(Some(&named()), &pods, None);
    let [Step::Create { body, .. }] = plan.stages[0].as_slice() else {
        panic!("{plan}")
    };
    assert_eq!(
        body["metadata"]["annotations"],
        json!({ "endpoints.kubernetes.io/over-capacity": "truncated" })
    );
    let count = |field: &str| body["subsets"][0][field].as_array().map(Vec::len);
    assert_eq!((count("addresses"), count("notReadyAddresses")), (Some(700), Some(300)));
    let made: Endpoints = read((**body).clone());
    assert!(plan_endpoints(Some(&named()), &pods, Some(&made)).is_empty());
}

fn by_hand() -> Endpoints {
    read(json!({
        "metadata": {
            "name": "web", "namespace": "default", "uid": "e", "labels": { "own": "1" },
            "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "x" },
        },
        "subsets": [{
            "addresses": [{ "ip": "10.1.2.3" }], "notReadyAddresses": [{ "ip": "FD00::07" }],
            "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
        }],
    }))
}

#[test]
fn endpoints_that_people_write_become_slices() {
    let bare = service(&json!({ "clusterIP": "10.96.0.9", "ports": [{ "port": 80 }] }));
    let mut endpoints = by_hand();
    let plan = plan_mirror("web", Some(&endpoints), Some(&bare), &[]);
    let made = after(plan, Vec::new());
    assert_eq!(shown(&made), ["80:10.1.2.3", "80:fd00::7"]);
    let metadata = &made[0].metadata;
    assert_eq!(json!(metadata.annotations), json!({ "note": "x" }));
    let manager = &metadata.labels.as_ref().unwrap()["endpointslice.kubernetes.io/managed-by"];
    assert_eq!(manager, "endpointslicemirroring-controller.k8s.io");
    assert_eq!(metadata.owner_references.as_ref().unwrap()[0].kind, "Endpoints");
    let all: Vec<&EndpointSlice> = made.iter().collect();
    assert!(plan_mirror("web", Some(&endpoints), Some(&bare), &all).is_empty());
    // Another port: the slices are reused.
    endpoints.subsets.as_mut().unwrap()[0].ports.as_mut().unwrap()[0].port = 81;
    let plan = plan_mirror("web", Some(&endpoints), Some(&bare), &all);
    assert_eq!(plan.to_string(), "patch EndpointSlice web-0, patch EndpointSlice web-1");
    for (service, endpoints) in [
        (Some(&named()), Some(&endpoints)),
        (None, Some(&endpoints)),
        (Some(&bare), None),
    ] {
        let plan = plan_mirror("web", endpoints, service, &all);
        assert_eq!(
            plan.to_string(),
            "delete EndpointSlice web-0, delete EndpointSlice web-1"
        );
    }
}

#[test]
fn endpoints_that_say_so_are_not_mirrored() {
    let bare = service(&json!({ "clusterIP": "10.96.0.9", "ports": [{ "port": 80 }] }));
    let mut endpoints = by_hand();
    let skip = ("endpointslice.kubernetes.io/skip-mirror".to_owned(), "true".to_owned());
    endpoints.metadata.labels = Some([skip].into());
    assert!(plan_mirror("web", Some(&endpoints), Some(&bare), &[]).is_empty());
}

#[test]
fn addresses_above_the_limit_are_not_mirrored_and_that_is_told() {
    let bare = service(&json!({ "clusterIP": "10.96.0.9", "ports": [{ "port": 80 }] }));
    let addresses = |count: u32| -> Vec<Value> {
        let ip = |number: u32| json!({ "ip": format!("10.1.{}.{}", number / 250, number % 250) });
        (0..count).map(ip).collect()
    };
    let told = |count: u32| {
        let metadata = json!({ "name": "web", "namespace": "default", "uid": "e" });
        let endpoints: Endpoints = read(json!({
            "metadata": metadata, "subsets": [{ "addresses": addresses(count), "ports": [{ "port": 80 }] }],
        }));
        let plan = plan_mirror("web", Some(&endpoints), Some(&bare), &[]);
        let events = plan
            .stages
            .iter()
            .flatten()
            .filter(|step| matches!(step, Step::Event(_)));
        events.map(Step::to_string).collect::<Vec<_>>()
    };
    assert_eq!(told(1000), Vec::<String>::new());
    assert_eq!(
        told(1002),
        [
            "event TooManyAddressesToMirror: A max of 1000 addresses can be mirrored to EndpointSlices per Endpoints subset. 2 \
          addresses were skipped"
        ]
    );
}
