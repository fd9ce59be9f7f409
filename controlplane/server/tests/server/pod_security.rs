//! Pod Security Standards by the labels of namespaces.

use std::sync::Arc;

use crate::support::{Api, Kept, deployment, pod};
use controlplane_server::ops::audit::Sink;
use http::StatusCode;
use serde_json::{Value, json};

const NAMESPACES: &str = "/api/v1/namespaces";

async fn namespace(api: &Api, labels: &Value) {
    let made = api
        .post(NAMESPACES, &json!({"metadata": {"name": "n", "labels": labels}}))
        .await;
    assert_eq!(made.code, StatusCode::CREATED, "{}", made.text());
    api.account("n", "default").await;
}

const FINDINGS: &str = "allowPrivilegeEscalation != false (container \"c\" must set \
securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"c\" must set \
securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"c\" must set \
securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set \
securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")";

#[tokio::test]
async fn pods_that_do_not_fit_are_refused_and_what_makes_them_is_warned_of() {
    let api = Api::start().await;
    namespace(&api, &json!({"pod-security.kubernetes.io/enforce": "restricted"})).await;
    let refused = api.post("/api/v1/namespaces/n/pods", &pod("p")).await;
    assert_eq!(refused.code, StatusCode::FORBIDDEN);
    assert_eq!(
        refused.message(),
        format!("pods \"p\" is forbidden: violates PodSecurity \"restricted:latest\": {FINDINGS}")
    );
    let made = api
        .post("/apis/apps/v1/namespaces/n/deployments", &deployment("d"))
        .await;
    assert_eq!(made.code, StatusCode::CREATED, "{}", made.text());
    let warnings = made.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let quoted = warnings[0].replace("\\\"", "\"");
    let findings = FINDINGS.replace("container \"c\"", "container \"nginx\"");
    assert_eq!(
        quoted,
        format!("299 - \"would violate PodSecurity \"restricted:latest\": {findings}\""),
        "the whole text"
    );
}

#[tokio::test]
async fn who_scales_is_not_warned_of_what_was_there() {
    let kept = Arc::new(Kept::default());
    let sink: Arc<dyn Sink> = Arc::<Kept>::clone(&kept);
    let api = Api::start_with(|mut options| {
        options.audit = Some(sink);
        options
    })
    .await;
    let labels =
        json!({"pod-security.kubernetes.io/warn": "restricted", "pod-security.kubernetes.io/audit": "restricted"});
    namespace(&api, &labels).await;
    let deployments = "/apis/apps/v1/namespaces/n/deployments";
    let made = api.post(deployments, &deployment("d")).await;
    assert_eq!((made.code, made.warnings().len()), (StatusCode::CREATED, 1));
    let noted = || {
        let text = format!("{:?}", kept.0.lock().unwrap());
        text.matches("audit-violations").count()
    };
    let before = noted();
    let replicas = json!({"spec": {"replicas": 5}});
    let scaled = api
        .patch(&format!("{deployments}/d/scale"), "merge-patch+json", &replicas)
        .await;
    assert_eq!((scaled.code, scaled.warnings().len()), (StatusCode::OK, 0));
    assert_eq!(noted(), before);
    let whole = api
        .patch(&format!("{deployments}/d"), "merge-patch+json", &replicas)
        .await;
    assert_eq!(whole.warnings().len(), 1, "the object itself is looked at");
}

#[tokio::test]
async fn warn_alone_lets_pods_in() {
    let api = Api::start().await;
    namespace(&api, &json!({"pod-security.kubernetes.io/warn": "baseline"})).await;
    let mut host = pod("p");
    host["spec"]["hostNetwork"] = json!(true);
    let made = api.post("/api/v1/namespaces/n/pods", &host).await;
    assert_eq!(made.code, StatusCode::CREATED, "{}", made.text());
    assert_eq!(
        made.warnings(),
        ["299 - \"would violate PodSecurity \\\"baseline:latest\\\": host namespaces (hostNetwork=true)\""]
    );
    let ready = json!({"status": {"phase": "Running"}});
    let status = api
        .patch("/api/v1/namespaces/n/pods/p/status", "merge-patch+json", &ready)
        .await;
    assert_eq!((status.code, status.warnings().len()), (StatusCode::OK, 0));
}

#[tokio::test]
async fn who_tightens_a_namespace_is_told_of_its_pods() {
    let api = Api::start().await;
    namespace(&api, &json!({})).await;
    for name in ["b", "a"] {
        api.post("/api/v1/namespaces/n/pods", &pod(name)).await;
    }
    let label = |level: &str| json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}});
    let path = format!("{NAMESPACES}/n");
    let tight = api.patch(&path, "merge-patch+json", &label("restricted")).await;
    assert_eq!(tight.code, StatusCode::OK, "{}", tight.text());
    assert_eq!(
        tight.warnings(),
        [
            "299 - \"existing pods in namespace \\\"n\\\" violate the new PodSecurity enforce level \\\"restricted:latest\\\"\"",
            "299 - \"a (and 1 other pod): allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, \
             seccompProfile\"",
        ]
    );
    let loose = api.patch(&path, "merge-patch+json", &label("baseline")).await;
    assert!(loose.warnings().is_empty(), "{:?}", loose.warnings());
    let unknown = api.patch(&path, "merge-patch+json", &label("strict")).await;
    assert_eq!(unknown.code, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        unknown.message(),
        "Namespace \"n\" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"strict\": must be \
         one of privileged, baseline, restricted"
    );
}
