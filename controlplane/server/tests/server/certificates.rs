//! Signing requests: authorization of approvers and signers, and requests that are forbidden to
//! all.

use crate::support::rights::{as_user, binding, give, jane, role, user};
use crate::support::{Api, START};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use controlplane_server::User;
use serde_json::{Value, json};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const JANE: &str = include_str!("../../../api/tests/requests/jane.pem");
const MASTERS: &str = include_str!("../../../api/tests/requests/masters.pem");

fn request(name: &str, signer: &str, pem: &str) -> Value {
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"request": STANDARD.encode(pem), "signerName": signer, "usages": ["client auth"]}})
}

/// Grants jane a verb on requests of `signers`.
async fn allow(api: &Api, name: &str, verb: &str, signers: &str) {
    let rules = json!([
        {"apiGroups": ["certificates.k8s.io"], "verbs": ["get", "update", "patch"],
            "resources": ["certificatesigningrequests/approval", "certificatesigningrequests/status"]},
        {"apiGroups": ["certificates.k8s.io"], "verbs": [verb], "resources": ["signers"], "resourceNames": [signers]},
    ]);
    give(api, "", "clusterroles", &role("ClusterRole", name, &rules)).await;
    let bound = binding(
        "ClusterRoleBinding",
        name,
        &format!("ClusterRole/{name}"),
        &user("jane"),
    );
    give(api, "", "clusterrolebindings", &bound).await;
}

#[tokio::test]
async fn nobody_becomes_an_administrator_by_asking() {
    let api = Api::start().await;
    let signer = "kubernetes.io/kube-apiserver-client";
    let refused = api.post(REQUESTS, &request("r", signer, MASTERS)).await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.message(),
        "certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: use of kubernetes.io/kube-apiserver-client signer \
         with system:masters group is not allowed"
    );
    let others = api.post(REQUESTS, &request("r", "example.com/own", MASTERS)).await;
    assert_eq!(others.code, 201, "{}", others.text());
}

#[tokio::test]
async fn attack_22_a_node_asks_for_itself_alone() {
    let api = Api::start().await;
    let node = User::new("system:node:n1", ["system:nodes"]);
    let refusal = "certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: ";
    for signer in [
        "kubernetes.io/kubelet-serving",
        "kubernetes.io/kube-apiserver-client-kubelet",
    ] {
        let mut other = request("r", signer, JANE);
        let refused = as_user(&api, &node, "POST", REQUESTS, &other).await;
        assert_eq!(
            (refused.code.as_u16(), refused.message()),
            (
                403,
                format!("{refusal}can only create a node CSR with CN=system:node:n1")
            )
        );
        other["spec"]["request"] = json!(STANDARD.encode("x"));
        let refused = as_user(&api, &node, "POST", REQUESTS, &other).await;
        let because = "unable to parse csr: PEM block type must be CERTIFICATE REQUEST";
        assert_eq!(
            (refused.code.as_u16(), refused.message()),
            (403, format!("{refusal}{because}"))
        );
    }
    let plain = request("r", "kubernetes.io/kube-apiserver-client", JANE);
    let others = as_user(&api, &node, "POST", REQUESTS, &plain).await;
    assert_eq!(others.code, 201, "{}", others.text());
}

#[tokio::test]
async fn approving_needs_the_right_for_the_signer() {
    let api = Api::start().await;
    for (name, signer) in [("a", "example.com/own"), ("b", "example.org/own")] {
        assert_eq!(api.post(REQUESTS, &request(name, signer, JANE)).await.code, 201);
    }
    allow(&api, "approver", "approve", "example.com/*").await;
    let approve = async |name: &str| {
        let path = format!("{REQUESTS}/{name}/approval");
        let mut object = api.get(&path).await.json();
        object["status"]["conditions"] = json!([{"type": "Approved", "status": "True", "reason": "KubectlApprove"}]);
        as_user(&api, &jane(), "PUT", &path, &object).await
    };
    let approved = approve("a").await;
    assert_eq!(approved.code, 200, "{}", approved.text());
    let condition = approved.json()["status"]["conditions"][0].clone();
    let when = condition["lastUpdateTime"].as_str().unwrap();
    assert!(when >= START && condition["lastTransitionTime"] == when, "{condition}");
    let refused = approve("b").await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.message(),
        "certificatesigningrequests.certificates.k8s.io \"b\" is forbidden: user not permitted to approve requests with \
         signerName \"example.org/own\""
    );
}

#[tokio::test]
async fn signing_needs_the_right_for_the_signer() {
    let api = Api::start().await;
    assert_eq!(
        api.post(REQUESTS, &request("a", "example.com/own", JANE)).await.code,
        201
    );
    allow(&api, "signer", "sign", "example.com/other").await;
    let path = format!("{REQUESTS}/a/status");
    let failed = json!({"status": {"conditions": [{"type": "Failed", "status": "True"}]}});
    let refused = as_user(&api, &jane(), "PATCH", &path, &failed).await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.message(),
        "certificatesigningrequests.certificates.k8s.io \"a\" is forbidden: user not permitted to sign requests with \
         signerName \"example.com/own\""
    );
    // Changes that do not touch the certificate need only the right to write the status.
    let nothing = as_user(
        &api,
        &jane(),
        "PATCH",
        &path,
        &json!({"metadata": {"labels": {"a": "b"}}}),
    )
    .await;
    assert_eq!(nothing.code, 200, "{}", nothing.text());
    let path = format!("{REQUESTS}/a");
    let mut object = api.get(&path).await.json();
    object["spec"]["usages"] = json!(["server auth"]);
    let whole = api.put(&path, &object).await.json();
    assert_eq!(
        whole["spec"]["usages"],
        json!(["client auth"]),
        "what was asked for stays"
    );
}
