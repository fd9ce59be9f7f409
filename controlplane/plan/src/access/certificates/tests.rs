use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-02T00:00:00Z";

fn request(signer: &str, pem: &str, user: &str, status: &Value) -> CertificateSigningRequest {
    let mut request: CertificateSigningRequest = serde_json::from_value(json!({
        "metadata": { "name": "r", "creationTimestamp": "2026-01-01T12:00:00Z" },
        "spec": {
            "request": "", "signerName": signer, "username": user, "usages": ["client auth", "digital signature"],
        },
        "status": status,
    }))
    .unwrap();
    request.spec.request.0 = pem.as_bytes().to_vec();
    request
}

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

const NODE: &str = include_str!("../../../../api/tests/requests/node.pem");
const SERVING: &str = include_str!("../../../../api/tests/requests/serving.pem");
const OWN_SERVING: &str = include_str!("../../../../api/tests/requests/serving-own.pem");
const AS_SERVER: &str = include_str!("../../../../api/tests/requests/node-as-server.pem");
const JANE: &str = include_str!("../../../../api/tests/requests/jane.pem");

fn decided(kind: &str, at: &str) -> Value {
    json!({ "conditions": [{ "type": kind, "status": "True", "lastUpdateTime": at }] })
}

#[test]
fn agents_are_approved_by_what_they_may() {
    let pending = json!({});
    let asked = |signer: &str, pem: &str, user: &str| plan(&request(signer, pem, user, &pending), &[], now()).0;
    assert_eq!(
        asked(NODE_CLIENT, NODE, "system:node:n1"),
        Act::Approve(vec![RENEWAL, FIRST])
    );
    assert_eq!(
        asked(NODE_CLIENT, NODE, "system:bootstrap:abcdef"),
        Act::Approve(vec![FIRST])
    );
    assert_eq!(asked(NODE_CLIENT, JANE, "jane"), Act::Rest, "not a node's name");
    assert_eq!(asked(CLIENT, JANE, "jane"), Act::Rest);
}

#[test]
fn what_a_node_shows_is_approved_for_its_name_alone() {
    let asked = |pem: &str, user: &str| {
        let mut request = request(NODE_SERVING, pem, user, &json!({}));
        request.spec.usages = Some(vec!["server auth".to_owned(), "digital signature".to_owned()]);
        plan(&request, &[], now()).0
    };
    assert_eq!(asked(OWN_SERVING, "system:node:n1"), Act::Approve(vec![OWN_SERVER]));
    assert_eq!(
        asked(SERVING, "system:node:n1"),
        Act::Rest,
        "people look at addresses first"
    );
    assert_eq!(
        asked(OWN_SERVING, "system:node:n2"),
        Act::Rest,
        "in another node's name"
    );
}

#[test]
fn what_is_approved_is_signed_once() {
    let approved = decided("Approved", NOW);
    let act = |signer: &str, pem: &str, status: &Value| plan(&request(signer, pem, "u", status), &[], now()).0;
    assert_eq!(
        act(CLIENT, JANE, &approved),
        Act::Sign(Request::parse(JANE.as_bytes()).unwrap())
    );
    assert_eq!(act(NODE_CLIENT, JANE, &approved), Act::Fail(Unfit::Organization));
    assert_eq!(act("example.com/own", JANE, &approved), Act::Rest, "somebody else's");
    let mut issued = approved.clone();
    issued["certificate"] = json!("eA==");
    assert_eq!(act(CLIENT, JANE, &issued), Act::Rest);
    assert_eq!(act(CLIENT, JANE, &decided("Denied", NOW)), Act::Rest);
    assert_eq!(act(CLIENT, JANE, &decided("Failed", NOW)), Act::Rest);
}

#[test]
fn nobody_becomes_the_api_server_as_a_node() {
    let node = "system:node:kubernetes.default.svc";
    let asked = |user: &str, status: &Value| plan(&request(NODE_CLIENT, AS_SERVER, user, status), &[], now()).0;
    for user in ["system:bootstrap:abcdef", node] {
        assert_eq!(asked(user, &json!({})), Act::Rest, "{user}");
    }
    // The request was already decided.
    assert!(matches!(asked(node, &decided("Approved", NOW)), Act::Sign(_)));
    let server = ["api.example.com".to_owned()];
    for name in [
        "kubernetes",
        "kubernetes.default",
        "web.default.svc",
        "web.default.svc.cluster.local",
        "localhost",
        "api.example.com",
        "API.example.com.",
        "*.example.com",
        "*.default",
    ] {
        assert!(is_the_servers(name, &server), "{name}");
    }
    for name in ["n1", "node.example.com", "svc", "kubernetes.example.com"] {
        assert!(!is_the_servers(name, &server), "{name}");
    }
}

#[test]
fn no_node_shows_the_api_servers_name_whoever_approved_it() {
    let asked = |server: &[String], status: &Value| {
        let mut request = request(NODE_SERVING, OWN_SERVING, "system:node:n1", status);
        request.spec.usages = Some(vec!["server auth".to_owned(), "digital signature".to_owned()]);
        plan(&request, server, now()).0
    };
    let (here, elsewhere) = (["n1".to_owned()], ["n2".to_owned()]);
    let approved = decided("Approved", NOW);
    assert_eq!(asked(&here, &json!({})), Act::Rest);
    assert_eq!(asked(&here, &approved), Act::Fail(Unfit::TheServers));
    assert_eq!(asked(&elsewhere, &json!({})), Act::Approve(vec![OWN_SERVER]));
    assert!(matches!(asked(&elsewhere, &approved), Act::Sign(_)));
}

#[test]
fn attack_times_near_the_end_of_time_are_no_end_of_the_controller() {
    let last = "9999-12-30T21:59:59Z";
    for kind in ["Denied", "Failed", "Approved"] {
        let (act, left) = plan(&request("example.com/own", JANE, "u", &decided(kind, last)), &[], now());
        assert_eq!(act, Act::Rest, "{kind}");
        assert!(left.is_some(), "{kind}");
    }
    let mut young = request("example.com/own", JANE, "u", &json!({}));
    young.metadata.creation_timestamp = serde_json::from_value(json!(last)).unwrap();
    assert!(plan(&young, &[], now()).1.is_some());
}

#[test]
fn requests_are_forgotten() {
    let left = |status: &Value| plan(&request("example.com/own", JANE, "u", status), &[], now());
    assert_eq!(left(&json!({})), (Act::Rest, Some(Duration::from_hours(12))));
    let recent = "2026-01-01T23:30:00Z";
    let half = (Act::Rest, Some(Duration::from_mins(30)));
    let old = "2026-01-01T22:00:00Z";
    for kind in ["Denied", "Failed"] {
        assert_eq!(left(&decided(kind, recent)), half, "{kind}");
        assert_eq!(left(&decided(kind, old)), (Act::Delete, None), "{kind}");
    }
    let waiting = left(&decided("Approved", old));
    assert_eq!(
        waiting,
        (Act::Rest, Some(Duration::from_hours(22))),
        "it waits for its signer"
    );
    let forgotten = left(&decided("Approved", "2025-12-31T23:00:00Z"));
    assert_eq!(forgotten, (Act::Delete, None), "its signer does not come");
    let issued = |at: &str| {
        let mut status = decided("Approved", at);
        status["certificate"] = json!("eA==");
        status
    };
    assert_eq!(left(&issued(recent)), half);
    assert_eq!(left(&issued(old)), (Act::Delete, None));
    let mut going = request(CLIENT, JANE, "u", &issued(old));
    going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    assert_eq!(plan(&going, &[], now()), (Act::Rest, None));
}
