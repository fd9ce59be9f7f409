//! Signing requests from their creation to their end, in a whole cluster in this process.

#![allow(clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use server::User;
use tests::cluster::Cluster;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
const NODE_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const NODE: &str = include_str!("../../controlplane/api/tests/requests/node.pem");
const JANE: &str = include_str!("../../controlplane/api/tests/requests/jane.pem");

/// A user asks for a certificate.
async fn ask(cluster: &Cluster, user: User, name: &str, signer: &str, pem: &str) {
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": name },
        "spec": {
            "request": STANDARD.encode(pem), "signerName": signer, "usages": ["client auth", "digital signature"],
        },
    });
    let body = request.to_string().into_bytes();
    let request = http::Request::post(REQUESTS).header("content-type", "application/json");
    let request = request.body(body).expect("a request");
    let made: Value = cluster.client(user, "tests").request(request).await.expect("created");
    assert_eq!(made["status"], json!({}));
}

async fn status(cluster: &Cluster, name: &str, wanted: &str) -> Value {
    cluster
        .eventually(wanted, || async {
            let found = cluster.get(&format!("{REQUESTS}/{name}")).await;
            let status = &found["status"];
            let kinds = status["conditions"].as_array().into_iter().flatten();
            let mut kinds: Vec<&str> = kinds.filter_map(|condition| condition["type"].as_str()).collect();
            if status["certificate"].is_string() {
                kinds.push("Issued");
            }
            if kinds.join(",") == wanted {
                Ok(status.clone())
            } else {
                Err(found)
            }
        })
        .await
}

async fn approve(cluster: &Cluster, name: &str) {
    let path = format!("{REQUESTS}/{name}/approval");
    let mut object = cluster.get(&path).await;
    object["status"]["conditions"] = json!([{ "type": "Approved", "status": "True", "reason": "KubectlApprove" }]);
    let approved = cluster.request("PUT", &path, "application/json", &object).await;
    approved.expect("approved");
}

/// The user that an issued certificate is of.
fn user_of(status: &Value) -> User {
    let pem = STANDARD
        .decode(status["certificate"].as_str().expect("a certificate"))
        .expect("base64");
    let der = rustls::pki_types::CertificateDer::from_pem_slice(&pem).expect("PEM");
    server::authn::pki::client(&der).expect("a user").0
}

#[tokio::test(start_paused = true)]
async fn nodes_get_certificates_and_others_are_asked_about() {
    let cluster = Cluster::builder().start().await;
    // Groups of bootstrap tokens, as `skiff token create` and kubeadm create them.
    let token = "system:bootstrappers:kubeadm:default-node-token";
    let joining = User::new("system:bootstrap:abcdef", ["system:bootstrappers", token]);
    let agent = User::new("system:node:n1", ["system:nodes"]);
    let rbac = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": { "name": "ask" },
        "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": "system:node-bootstrapper" },
        "subjects": [{ "apiGroup": rbac, "kind": "Group", "name": "dev" }],
    });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    cluster.create(bindings, &binding).await;
    ask(&cluster, joining, "first", NODE_CLIENT, NODE).await;
    let issued = status(&cluster, "first", "Approved,Issued").await;
    let user = user_of(&issued);
    assert_eq!(
        (user.name.as_str(), user.is_in("system:nodes")),
        ("system:node:n1", true)
    );
    let message = "Auto approving kubelet client certificate after SubjectAccessReview.";
    assert_eq!(issued["conditions"][0]["message"], message);
    assert_eq!(issued["conditions"][0]["reason"], "AutoApproved");
    ask(&cluster, agent, "next", NODE_CLIENT, NODE).await;
    let issued = status(&cluster, "next", "Approved,Issued").await;
    let message = "Auto approving self kubelet client certificate after SubjectAccessReview.";
    assert_eq!(issued["conditions"][0]["message"], message);

    let jane = || User::new("jane", ["dev"]);
    ask(&cluster, jane(), "stolen", NODE_CLIENT, NODE).await;
    ask(&cluster, jane(), "jane", CLIENT, JANE).await;
    ask(&cluster, jane(), "unfit", NODE_CLIENT, JANE).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    for name in ["stolen", "jane", "unfit"] {
        assert_eq!(
            cluster.get(&format!("{REQUESTS}/{name}")).await["status"],
            json!({}),
            "{name}"
        );
    }
    approve(&cluster, "jane").await;
    let user = user_of(&status(&cluster, "jane", "Approved,Issued").await);
    assert_eq!(user.groups, ["dev", "ops", "qa", "system:authenticated"]);
    approve(&cluster, "unfit").await;
    let failed = status(&cluster, "unfit", "Approved,Failed").await;
    assert_eq!(failed["conditions"][1]["reason"], "SignerValidationFailure");
    assert_eq!(
        failed["conditions"][1]["message"],
        "subject organization is not system:nodes"
    );

    tokio::time::sleep(Duration::from_mins(61)).await;
    let names = async || {
        let left = cluster.list(REQUESTS).await;
        left.iter()
            .map(|left| left["metadata"]["name"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["stolen"], "what is over is forgotten");
    tokio::time::sleep(Duration::from_hours(24)).await;
    assert_eq!(names().await, Vec::<Value>::new(), "and what nobody decides");
}
