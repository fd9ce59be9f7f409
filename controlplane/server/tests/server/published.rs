//! Definitions as their projects publish them, and the projects' own examples: `published/` has them,
//! converted from YAML to JSON and otherwise unchanged, with the licenses. They are of
//! kubernetes-sigs/gateway-api at 4564255a, cert-manager/cert-manager at 2d0d7f7f, metallb/metallb at
//! 7938d3f8, and prometheus-operator/kube-prometheus at 4d719f1d, all on GitHub.

use flate2::read::GzDecoder;
use serde_json::Value;

use crate::definitions::DEFINITIONS;
use crate::support::Api;

const MANAGER: &str = "fieldManager=test&force=true";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";

/// Texts of the rules that the project's wrong examples break.
const BROKEN: [(&str, &str); 6] = [
    (
        "gateway/hostname-tcp",
        "hostname must not be specified for protocols ['TCP', 'UDP']",
    ),
    (
        "gateway/invalid-tls-mode",
        "tls mode must be Terminate for protocol HTTPS",
    ),
    (
        "gateway/tlsconfig-tcp",
        "tls must not be specified for protocols ['HTTP', 'TCP', 'UDP']",
    ),
    (
        "httproute/httproute-portless-service",
        "Must have port for Service reference",
    ),
    (
        "httproute/invalid-filter-duplicate",
        "RequestHeaderModifier filter cannot be repeated",
    ),
    ("tlsroute/invalid-hostname", "Hostnames must be valid based on RFC-1123"),
];

fn published(bytes: &[u8]) -> Value {
    serde_json::from_reader(GzDecoder::new(bytes)).unwrap()
}

fn list<'a>(published: &'a Value, part: &str) -> &'a [Value] {
    published[part].as_array().unwrap()
}

/// Applies definitions twice: the second time changes nothing.
async fn define_twice(api: &Api, definitions: &[Value]) {
    for definition in definitions {
        let path = format!("{DEFINITIONS}/{}", definition["metadata"]["name"].as_str().unwrap());
        let first = api.apply(&path, MANAGER, definition).await;
        assert!(first.code.is_success(), "{path}: {}", first.text());
        let again = api.apply(&path, MANAGER, definition).await;
        assert_eq!(again.code, 200, "{path}: {}", again.text());
        let generation = |object: Value| object["metadata"]["generation"].as_i64().unwrap();
        assert_eq!(generation(again.json()), generation(first.json()), "{path}");
    }
}

/// Path of the objects of an example's kind; those with a namespace are all in one.
fn path(definitions: &[Value], example: &Value) -> String {
    let version = example["apiVersion"].as_str().unwrap();
    let group = version.split('/').next().unwrap();
    let is_own = |own: &&Value| own["spec"]["group"] == group && own["spec"]["names"]["kind"] == example["kind"];
    let definition = definitions.iter().find(is_own).unwrap();
    let plural = definition["spec"]["names"]["plural"].as_str().unwrap();
    match definition["spec"]["scope"].as_str() {
        Some("Namespaced") => format!("/apis/{version}/namespaces/default/{plural}"),
        _ => format!("/apis/{version}/{plural}"),
    }
}

fn placed(example: &Value) -> Value {
    let mut example = example.clone();
    example["metadata"].as_object_mut().unwrap().remove("namespace");
    example
}

async fn create_each(api: &Api, definitions: &[Value], examples: &[Value]) {
    for example in examples {
        let path = path(definitions, example);
        let made = api.post(&path, &placed(example)).await;
        assert_eq!(made.code, 201, "{example}: {}", made.text());
        let name = example["metadata"]["name"].as_str().unwrap();
        let gone = api.delete(&format!("{path}/{name}"), "").await;
        assert_eq!(gone.code, 200, "{}", gone.text());
    }
}

/// Creates the wrong examples of a channel in vain.
async fn refuse_each(api: &Api, definitions: &[Value], invalid: &Value, channel: &str) {
    for (name, examples) in invalid.as_object().unwrap() {
        let Some(name) = name.strip_prefix(channel) else {
            continue;
        };
        for example in examples.as_array().unwrap() {
            let answer = api.post(&path(definitions, example), &placed(example)).await;
            assert_eq!(answer.code, 422, "{name}: {}", answer.text());
            for (_, text) in BROKEN.iter().filter(|(own, _)| *own == name) {
                assert!(answer.message().contains(text), "{name}: {}", answer.text());
            }
        }
    }
}

#[tokio::test]
async fn the_definitions_of_gateway_api_are_taken_and_its_rules_asked() {
    let api = Api::start().await;
    let all = published(include_bytes!("published/gateway-api.json.gz"));
    let standard = list(&all, "definitions");
    define_twice(&api, standard).await;
    create_each(&api, standard, list(&all, "examples")).await;
    refuse_each(&api, standard, &all["invalid"], "standard/").await;

    for policy in list(&all, "policies") {
        let path = if policy["kind"] == "ValidatingAdmissionPolicy" {
            POLICIES
        } else {
            BINDINGS
        };
        let made = api.post(path, policy).await;
        assert_eq!(made.code, 201, "{}", made.text());
    }
    let experimental = list(&all, "experimental");
    let name = experimental[0]["metadata"]["name"].as_str().unwrap();
    let refused = api
        .apply(&format!("{DEFINITIONS}/{name}"), MANAGER, &experimental[0])
        .await;
    let words = "Installing experimental CRDs on top of standard channel CRDs is prohibited by default";
    assert!(refused.message().contains(words), "{}", refused.text());
    for policy in list(&all, "policies") {
        let path = if policy["kind"] == "ValidatingAdmissionPolicy" {
            POLICIES
        } else {
            BINDINGS
        };
        let name = policy["metadata"]["name"].as_str().unwrap();
        assert_eq!(api.delete(&format!("{path}/{name}"), "").await.code, 200);
    }
    define_twice(&api, experimental).await;
    create_each(&api, experimental, list(&all, "experimental_examples")).await;
    refuse_each(&api, experimental, &all["invalid"], "experimental/").await;
}

#[tokio::test]
async fn the_definitions_of_metallb_are_taken_with_its_examples() {
    let api = Api::start().await;
    let all = published(include_bytes!("published/metallb.json.gz"));
    define_twice(&api, list(&all, "definitions")).await;
    create_each(&api, list(&all, "definitions"), list(&all, "examples")).await;
}

#[tokio::test]
async fn the_definitions_of_cert_manager_are_taken() {
    let all = published(include_bytes!("published/cert-manager.json.gz"));
    define_twice(&Api::start().await, list(&all, "definitions")).await;
}

#[tokio::test]
async fn the_definitions_of_kube_prometheus_are_taken() {
    let all = published(include_bytes!("published/kube-prometheus.json.gz"));
    define_twice(&Api::start().await, list(&all, "definitions")).await;
}
