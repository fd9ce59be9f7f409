//! Services: allocation of addresses and ports.

use std::net::Ipv4Addr;

use crate::support::{Answer, Api};
use controlplane_server::{Options, Server};
use http::StatusCode;
use serde_json::{Value, json};

pub(crate) const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

pub(crate) fn service(name: &str, spec: &Value) -> Value {
    let mut spec = spec.clone();
    if spec["ports"].is_null() {
        spec["ports"] = json!([{"port": 80}]);
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test(start_paused = true)]
async fn what_every_cluster_has_is_made_anew() {
    let api = Api::start().await;
    let own = [
        "/api/v1/namespaces/default/services/kubernetes",
        "/apis/networking.k8s.io/v1/servicecidrs/kubernetes",
    ];
    for path in own {
        assert!(api.delete(path, "").await.code.is_success());
        assert_eq!(api.get(path).await.code, StatusCode::NOT_FOUND);
    }
    let rounds = tokio::time::timeout(std::time::Duration::from_secs(11), api.server.heal());
    assert!(rounds.await.is_err(), "it never ends");
    for path in own {
        assert_eq!(api.get(path).await.code, StatusCode::OK, "{path}");
    }
}

pub(crate) async fn create(api: &Api, name: &str, spec: &Value) -> Answer {
    api.post(SERVICES, &service(name, spec)).await
}

/// The addresses that are held, without the API server's own.
async fn held(api: &Api) -> Vec<String> {
    let list = api.get(ADDRESSES).await.json();
    let names = list["items"].as_array().unwrap().iter();
    names
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .filter(|name| name != "10.96.0.1")
        .collect()
}

#[tokio::test]
async fn a_service_holds_an_address_as_long_as_it_lives() {
    let api = Api::start().await;
    let created = create(&api, "web", &json!({"selector": {"app": "web"}})).await;
    assert_eq!(created.code, StatusCode::CREATED, "{}", created.text());
    let spec = &created.json()["spec"];
    let address: Ipv4Addr = spec["clusterIP"].as_str().unwrap().parse().unwrap();
    assert_eq!(spec["clusterIPs"], json!([address.to_string()]));
    assert_eq!(
        (
            &spec["ipFamilies"],
            &spec["ipFamilyPolicy"],
            &spec["internalTrafficPolicy"]
        ),
        (&json!(["IPv4"]), &json!("SingleStack"), &json!("Cluster"))
    );
    assert_eq!(held(&api).await, [address.to_string()]);
    let own = api.get(&format!("{ADDRESSES}/{address}")).await.json();
    assert_eq!(
        own["spec"]["parentRef"],
        json!({"resource": "services", "namespace": "default", "name": "web"})
    );

    let again = create(&api, "other", &json!({"clusterIP": address.to_string()})).await;
    assert_eq!(again.code, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        again.message(),
        format!(
            "Service \"other\" is invalid: spec.clusterIPs: Invalid value: [\"{address}\"]: failed to allocate IP {address}: provided IP is already allocated"
        )
    );
    let outside = create(&api, "other", &json!({"clusterIP": "192.0.2.1"})).await;
    assert!(
        outside
            .message()
            .ends_with("failed to allocate IP 192.0.2.1: the provided network does not match the current range"),
        "{}",
        outside.message()
    );

    let moved = api
        .patch(
            &format!("{SERVICES}/web"),
            "merge-patch+json",
            &json!({"spec": {"clusterIP": "10.96.7.7", "clusterIPs": ["10.96.7.7"]}}),
        )
        .await;
    assert!(
        moved.message().contains("may not change once set"),
        "{}",
        moved.message()
    );

    let gone = api.delete(&format!("{SERVICES}/web"), "").await;
    assert_eq!(gone.code, StatusCode::OK);
    assert_eq!(held(&api).await, Vec::<String>::new());
}

#[tokio::test]
async fn the_same_manifest_can_be_put_again() {
    let api = Api::start().await;
    let spec =
        json!({"type": "NodePort", "ports": [{"port": 53, "protocol": "UDP", "name": "u"}, {"port": 53, "name": "t"}]});
    let first = create(&api, "dns", &spec).await.json();
    let ports = first["spec"]["ports"].as_array().unwrap();
    assert_eq!(
        ports[0]["nodePort"], ports[1]["nodePort"],
        "one number for both protocols"
    );
    assert!((30000..=32767).contains(&ports[0]["nodePort"].as_i64().unwrap()));
    let second = api.put(&format!("{SERVICES}/dns"), &service("dns", &spec)).await;
    assert_eq!(second.code, StatusCode::OK, "{}", second.text());
    assert_eq!(second.json()["spec"], first["spec"]);
    assert_eq!(
        second.json()["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
}

#[tokio::test]
async fn a_node_port_is_one_services_until_its_type_changes() {
    let api = Api::start().await;
    let spec = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]});
    assert_eq!(create(&api, "web", &spec).await.code, StatusCode::CREATED);
    let taken = create(&api, "other", &spec).await;
    assert_eq!(
        taken.message(),
        "Service \"other\" is invalid: spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated"
    );
    // A dry run takes nothing.
    let dry = api
        .post(
            &format!("{SERVICES}?dryRun=All"),
            &service(
                "dry",
                &json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30081}]}),
            ),
        )
        .await;
    assert_eq!(dry.code, StatusCode::CREATED);
    let inner = api
        .patch(
            &format!("{SERVICES}/web"),
            "merge-patch+json",
            &json!({"spec": {"type": "ClusterIP"}}),
        )
        .await;
    assert_eq!(inner.code, StatusCode::OK, "{}", inner.text());
    assert_eq!(
        inner.json()["spec"]["ports"],
        json!([{"port": 80, "protocol": "TCP", "targetPort": 80}])
    );
    assert_eq!(inner.json()["spec"]["externalTrafficPolicy"], Value::Null);
    assert_eq!(create(&api, "other", &spec).await.code, StatusCode::CREATED);
    let next = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30081}]});
    assert_eq!(create(&api, "third", &next).await.code, StatusCode::CREATED);
}

#[tokio::test]
async fn names_and_headless_services_hold_nothing() {
    let api = Api::start().await;
    let headless = create(&api, "headless", &json!({"clusterIP": "None", "selector": {"a": "b"}})).await;
    assert_eq!(headless.code, StatusCode::CREATED, "{}", headless.text());
    assert_eq!(headless.json()["spec"]["clusterIPs"], json!(["None"]));
    let named = api
        .post(
            SERVICES,
            &json!({"metadata": {"name": "named"}, "spec": {"type": "ExternalName", "externalName": "example.com"}}),
        )
        .await;
    assert_eq!(named.code, StatusCode::CREATED, "{}", named.text());
    assert_eq!(named.json()["spec"]["clusterIP"], Value::Null);
    assert_eq!(held(&api).await, Vec::<String>::new());

    // From a name to an address and back.
    let change = json!({"spec": {"type": "ClusterIP", "externalName": null, "ports": [{"port": 80}]}});
    let changed = api
        .patch(&format!("{SERVICES}/named"), "merge-patch+json", &change)
        .await;
    assert_eq!(changed.code, StatusCode::OK, "{}", changed.text());
    assert_eq!(held(&api).await.len(), 1);
    let back = json!({"spec": {"type": "ExternalName", "externalName": "example.com"}});
    let back = api.patch(&format!("{SERVICES}/named"), "merge-patch+json", &back).await;
    assert_eq!(back.code, StatusCode::OK, "{}", back.text());
    assert_eq!(back.json()["spec"]["clusterIPs"], Value::Null);
    assert_eq!(held(&api).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn services_made_at_once_share_nothing() {
    let api = Api::start_with(|options| Options {
        service_ranges: vec!["10.96.0.0/27".parse().unwrap()],
        ..options
    })
    .await;
    // 32 addresses without the ends and the server's own.
    let spec = json!({"type": "NodePort"});
    let names: Vec<String> = (0..29).map(|index| format!("s{index}")).collect();
    let all = names.iter().map(|name| (SERVICES.to_owned(), service(name, &spec)));
    let all = api.create_at_once(all).await;
    let mut ports: Vec<i64> = Vec::new();
    for answer in &all {
        assert_eq!(answer.code, StatusCode::CREATED, "{}", answer.text());
        ports.push(answer.json()["spec"]["ports"][0]["nodePort"].as_i64().unwrap());
    }
    ports.sort_unstable();
    ports.dedup();
    assert_eq!((ports.len(), held(&api).await.len()), (29, 29));
    let full = create(&api, "full", &spec).await;
    assert_eq!(full.code, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(
        full.message(),
        "Internal error occurred: failed to allocate a serviceIP for Service \"full\": range is full"
    );
}

#[tokio::test]
async fn every_cluster_has_its_own_service() {
    let api = Api::start_with(|options| Options {
        address: "192.0.2.7:6443".to_owned(),
        ..options
    })
    .await;
    let own = api.get(&format!("{SERVICES}/kubernetes")).await.json();
    assert_eq!(own["spec"]["clusterIP"], "10.96.0.1");
    assert_eq!(
        own["spec"]["ports"],
        json!([{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}])
    );
    let endpoints = api.get("/api/v1/namespaces/default/endpoints/kubernetes").await.json();
    assert_eq!(endpoints["subsets"][0]["addresses"], json!([{"ip": "192.0.2.7"}]));
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let slice = api.get(&format!("{slices}/kubernetes")).await.json();
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.7"]));
    let ranges = api
        .get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
        .await
        .json();
    assert_eq!(ranges["spec"]["cidrs"], json!(["10.96.0.0/12"]));

    // A server that starts again with another address publishes it, and repairs lost allocations.
    create(&api, "web", &json!({"clusterIP": "10.96.0.9"})).await;
    api.delete(&format!("{ADDRESSES}/10.96.0.9"), "").await;
    let mut options = Options::new(std::sync::Arc::new(|| crate::support::START.parse().unwrap()));
    options.address = "192.0.2.8:6443".to_owned();
    let server = Server::new(api.store.clone(), options);
    server.bootstrap().await.unwrap();
    let slice = api.get(&format!("{slices}/kubernetes")).await.json();
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.8"]));
    assert_eq!(held(&api).await, ["10.96.0.9"]);
}

#[tokio::test(start_paused = true)]
async fn what_services_hold_is_repaired_now_and_then() {
    let api = Api::start().await;
    create(&api, "web", &json!({"clusterIP": "10.96.0.9"})).await;
    api.delete(&format!("{ADDRESSES}/10.96.0.9"), "").await;
    let parent = json!({"resource": "services", "namespace": "default", "name": "gone"});
    let reserved = json!({"metadata": {"name": "10.96.0.10"}, "spec": {"parentRef": parent}});
    let left = json!({
        "metadata": {"name": "10.96.0.11", "labels": {"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
        "spec": {"parentRef": parent},
    });
    for address in [reserved, left] {
        let made = api.post(ADDRESSES, &address).await;
        assert_eq!(made.code, StatusCode::CREATED, "{}", made.text());
    }
    assert_eq!(held(&api).await, ["10.96.0.10", "10.96.0.11"]);
    let rounds = tokio::time::timeout(std::time::Duration::from_secs(400), api.server.heal());
    assert!(rounds.await.is_err(), "it never ends");
    assert_eq!(held(&api).await, ["10.96.0.10", "10.96.0.9"]);
}

#[tokio::test(start_paused = true)]
async fn the_own_service_leads_to_the_server_again() {
    let api = Api::start_with(|options| Options {
        address: "192.0.2.7:6443".to_owned(),
        ..options
    })
    .await;
    let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let elsewhere = json!({"endpoints": [{"addresses": ["192.0.2.9"]}]});
    let changed = api.patch(slice, "merge-patch+json", &elsewhere).await;
    assert_eq!(changed.code, StatusCode::OK, "{}", changed.text());
    let round = tokio::time::timeout(std::time::Duration::from_secs(6), api.server.heal());
    assert!(round.await.is_err(), "it never ends");
    let slice = api.get(slice).await.json();
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.7"]));
}

#[tokio::test]
async fn what_is_accepted_may_be_warned_of() {
    let api = Api::start().await;
    let told = ["299 - \"spec.externalIPs is deprecated and may no longer be implemented in some clusters\""];
    let created = create(&api, "1st", &json!({"externalIPs": ["192.0.2.1"]})).await;
    assert_eq!(created.code, StatusCode::CREATED, "{}", created.text());
    assert_eq!(created.warnings(), told);
    let path = format!("{SERVICES}/1st");
    let change = json!({"metadata": {"labels": {"a": "b"}}});
    let changed = api.patch(&path, "merge-patch+json", &change).await;
    assert_eq!(
        (changed.code, changed.warnings()),
        (StatusCode::OK, told.map(str::to_owned).to_vec())
    );
    assert!(api.get(&path).await.warnings().is_empty());
    let mended = api
        .patch(&path, "merge-patch+json", &json!({"spec": {"externalIPs": null}}))
        .await;
    assert_eq!((mended.code, mended.warnings()), (StatusCode::OK, Vec::new()));
}

#[tokio::test]
async fn a_port_for_checks_is_to_be_had() {
    let api = Api::start().await;
    let spec =
        |port: i32| json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": port});
    let range = "provided port is not in the valid range. The range of valid ports is 30000-32767";
    for (port, because) in [
        (-1, range),
        (99999, range),
        (31234, "provided port is already allocated"),
    ] {
        if port == 31234 {
            assert!(create(&api, "first", &spec(port)).await.code.is_success());
        }
        let answer = create(&api, "other", &spec(port)).await;
        let words = format!("failed to allocate requested HealthCheck NodePort {port}: {because}");
        assert_eq!(answer.code, StatusCode::INTERNAL_SERVER_ERROR, "{port}");
        assert_eq!(answer.message(), format!("Internal error occurred: {words}"));
    }
}

#[tokio::test(start_paused = true)]
async fn what_keeps_the_own_service_from_being_made_keeps_no_server_from_its_start() {
    let api = Api::start().await;
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"services": "0"}}});
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    api.post(quotas, &quota).await;
    let counted = json!({"status": {"hard": {"services": "0"}, "used": {"services": "0"}}});
    api.patch(&format!("{quotas}/none/status"), "merge-patch+json", &counted)
        .await;
    let own = format!("{SERVICES}/kubernetes");
    api.delete(&own, "").await;
    api.server.bootstrap().await.unwrap();
    assert_eq!(api.get(&own).await.code, StatusCode::NOT_FOUND);
    // The missing object is created as soon as nothing prevents it, and so is all else that was
    // missing at the start.
    api.delete(&format!("{quotas}/none"), "").await;
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/view";
    assert_eq!(api.delete(role, "").await.code, StatusCode::OK);
    let round = std::time::Duration::from_secs(11);
    assert!(
        tokio::time::timeout(round, api.server.heal()).await.is_err(),
        "it never ends"
    );
    for path in [own.as_str(), role] {
        assert_eq!(api.get(path).await.code, StatusCode::OK, "{path}");
    }
    // Once all objects exist, a deleted role is not recreated until the next start.
    api.delete(role, "").await;
    assert!(
        tokio::time::timeout(round, api.server.heal()).await.is_err(),
        "it never ends"
    );
    assert_eq!(api.get(role).await.code, StatusCode::NOT_FOUND);
}
