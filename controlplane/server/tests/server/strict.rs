//! What is sent to subresources is read as strictly as objects.

use crate::support::{Api, deployment, pod};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

#[tokio::test]
async fn scale_is_read_as_strictly_as_objects() {
    let api = Api::start().await;
    api.post(DEPLOYMENTS, &deployment("web")).await;
    let path = format!("{DEPLOYMENTS}/web/scale");
    let put = |spec: Value| json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "web"}, "spec": spec});
    let cases = [
        (
            "?fieldValidation=Strict",
            put(json!({"replicaz": 1})),
            "Scale in version \"v1\" cannot be handled as a Scale: strict decoding error: unknown field \"spec.replicaz\"",
        ),
        (
            "",
            put(json!({"replicas": "x"})),
            "Scale in version \"v1\" cannot be handled as a Scale: json: cannot unmarshal string into Go struct field \
             ScaleSpec.spec.replicas of type int32",
        ),
        (
            "",
            pod("web"),
            "Pod in version \"v1\" cannot be handled as a Scale: converting (v1.Pod) to (autoscaling.Scale): unknown conversion",
        ),
    ];
    for (query, body, message) in cases {
        let answer = api.put(&format!("{path}{query}"), &body).await;
        assert_eq!((answer.code.as_u16(), answer.message().as_str()), (400, message));
    }
    let warned = api.put(&path, &put(json!({"replicas": 4, "replicaz": 1}))).await;
    assert_eq!(warned.code, 200, "{}", warned.text());
    assert_eq!(warned.warnings(), ["299 - \"unknown field \\\"spec.replicaz\\\"\""]);
    let mut other = put(json!({"replicas": 4}));
    other["metadata"]["name"] = json!("zz");
    let refused = api.put(&path, &other).await;
    assert_eq!(
        (refused.code.as_u16(), refused.message().as_str()),
        (
            400,
            "the name of the object (zz) does not match the name on the URL (web)"
        )
    );
    let misfit = json!({"spec": {"replicas": "x"}});
    let patched = api.patch(&path, "merge-patch+json", &misfit).await;
    assert_eq!(patched.code, 422, "{}", patched.text());
    assert!(
        patched.message().contains("json: cannot unmarshal string"),
        "{}",
        patched.text()
    );
    let strict = format!("{path}?fieldValidation=Strict");
    let patched = api
        .patch(&strict, "merge-patch+json", &json!({"spec": {"replicaz": 1}}))
        .await;
    assert_eq!(patched.code, 422, "{}", patched.text());
    assert!(
        patched
            .message()
            .ends_with("strict decoding error: unknown field \"spec.replicaz\""),
        "{}",
        patched.text()
    );
    let unknown = put(json!({"replicaz": 1})).to_string();
    let applied = api.apply(&path, "fieldManager=me", &unknown).await;
    assert_eq!(
        (applied.code.as_u16(), applied.message().as_str()),
        (
            500,
            "failed to create typed patch object (/web; autoscaling/v1, Kind=Scale): .spec.replicaz: field not declared in schema"
        )
    );
}

#[tokio::test]
async fn evictions_and_token_requests_are_read_as_strictly_as_objects() {
    let api = Api::start().await;
    api.post(PODS, &pod("a")).await;
    api.post(
        "/api/v1/namespaces/default/serviceaccounts",
        &json!({"metadata": {"name": "robot"}}),
    )
    .await;
    let eviction = json!({"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": "a"}, "foo": 1});
    let request = json!({"spec": {"audiences": ["a"], "foo": 1}});
    let account = "/api/v1/namespaces/default/serviceaccounts/robot/token";
    let cases = [
        (
            format!("{PODS}/a/eviction"),
            eviction,
            "Eviction in version \"v1\" cannot be handled as a Eviction: strict decoding error: unknown field \"foo\"",
            "299 - \"unknown field \\\"foo\\\"\"",
        ),
        (
            account.to_owned(),
            request,
            "TokenRequest in version \"v1\" cannot be handled as a TokenRequest: strict decoding error: unknown field \"spec.foo\"",
            "299 - \"unknown field \\\"spec.foo\\\"\"",
        ),
    ];
    for (path, body, message, warning) in cases {
        let answer = api.post(&format!("{path}?fieldValidation=Strict"), &body).await;
        assert_eq!((answer.code.as_u16(), answer.message().as_str()), (400, message));
        let answer = api.post(&path, &body).await;
        assert_eq!(
            (answer.code.as_u16(), answer.warnings()),
            (201, vec![warning.to_owned()]),
            "{}",
            answer.text()
        );
    }
    let misfit = api.post(account, &json!({"spec": {"audiences": "a"}})).await;
    assert_eq!(
        misfit.message(),
        "TokenRequest in version \"v1\" cannot be handled as a TokenRequest: json: cannot unmarshal string into Go struct \
         field TokenRequestSpec.spec.audiences of type []string"
    );
}
