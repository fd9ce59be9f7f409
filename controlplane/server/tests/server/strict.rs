//! Strict decoding of subresources, as of objects.

use crate::definitions::{TABS, define, tabs};
use crate::support::{Api, deployment, pod};
use http::Method;
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

/// Manifest from upstream's own test of field validation.
const TWICE: &str = "apiVersion: apps/v1
kind: Deployment
metadata:
  name: dupename
  name: web
  unknownMeta: metaVal
  labels:
    app: nginx
spec:
  unknown1: val1
  paused: true
  paused: false
  selector:
    matchLabels:
      app: nginx
  template:
    metadata:
      labels:
        app: nginx
    spec:
      containers:
      - name: nginx
        image: nginx:latest
        imagePullPolicy: Always
        imagePullPolicy: Never
";

#[tokio::test]
async fn yaml_says_on_which_lines_keys_are_again() {
    let api = Api::start().await;
    let yaml = [("content-type", "application/yaml")];
    let post = async |validation: &str| {
        let path = format!("{DEPLOYMENTS}?dryRun=All&fieldValidation={validation}");
        api.request(Method::POST, &path, &yaml, TWICE).await
    };
    let lines = [
        r#"line 5: key "name" already set in map"#,
        r#"line 12: key "paused" already set in map"#,
        r#"line 25: key "imagePullPolicy" already set in map"#,
    ];
    let unknown = [
        r#"unknown field "metadata.unknownMeta""#,
        r#"unknown field "spec.unknown1""#,
    ];
    let strict = post("Strict").await;
    assert_eq!(
        (strict.code.as_u16(), strict.message()),
        (
            400,
            format!(
                "Deployment in version \"v1\" cannot be handled as a Deployment: strict decoding error: yaml: unmarshal \
                 errors:\n  {}, {}",
                lines.join("\n  "),
                unknown.join(", ")
            )
        )
    );
    let said = |texts: &[&str]| -> Vec<String> {
        let quoted = texts.iter().map(|text| text.replace('"', "\\\""));
        quoted.map(|text| format!("299 - \"{text}\"")).collect()
    };
    let warned = post("Warn").await;
    assert_eq!(
        warned.warnings(),
        said(&[&lines[..], &unknown[..]].concat()),
        "{}",
        warned.text()
    );
    let ignored = post("Ignore").await;
    assert_eq!((ignored.code.as_u16(), ignored.warnings()), (201, Vec::new()));
    let applied = "{\n\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"m\"},\n\"data\": {\"a\": \"b\",\n\"a\": \"c\"}}";
    let path = "/api/v1/namespaces/default/configmaps/m";
    let answer = api.apply(path, "fieldManager=me&fieldValidation=Strict", applied).await;
    assert_eq!(
        (answer.code.as_u16(), answer.message().as_str()),
        (
            400,
            "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 4: key \"a\" already \
             set in map"
        )
    );
    let answer = api.apply(path, "fieldManager=me", applied).await;
    assert_eq!(
        (answer.code.as_u16(), answer.warnings()),
        (201, said(&[r#"line 4: key "a" already set in map"#]))
    );
}

#[tokio::test]
async fn operations_of_json_patches_have_no_other_members() {
    let api = Api::start().await;
    api.post(DEPLOYMENTS, &deployment("web")).await;
    let body = r#"[{"op": "replace", "path": "/spec/replicas", "value": 1, "foo": "bar"}, {"op": "add", "path": "/spec/x",
        "path": "/spec/paused", "value": true}]"#;
    let headers = [("content-type", "application/json-patch+json")];
    let patch = async |validation: &str| {
        let path = format!("{DEPLOYMENTS}/web?fieldValidation={validation}");
        api.request(Method::PATCH, &path, &headers, body).await
    };
    let expected =
        r#"strict decoding error: json patch unknown field "[0].foo", json patch duplicate field "[1].path""#;
    let strict = patch("Strict").await;
    assert_eq!(strict.code, 422, "{}", strict.text());
    assert!(strict.message().ends_with(expected), "{}", strict.message());
    let warned = patch("Warn").await;
    assert_eq!(
        warned.warnings(),
        [
            r#"299 - "json patch unknown field \"[0].foo\"""#,
            r#"299 - "json patch duplicate field \"[1].path\"""#
        ]
    );
    assert!(patch("Ignore").await.warnings().is_empty());
}

#[tokio::test]
async fn options_are_told_in_upstreams_order() {
    let api = Api::start().await;
    api.post(PODS, &pod("a")).await;
    let refused = api
        .delete(&format!("{PODS}/a"), r#"{"propagationPolicy":"Some"}"#)
        .await;
    assert_eq!(
        refused.message(),
        "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Some\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
    );
    for (options, expected) in [
        (
            r#"{"gracePeriodSeconds":"now"}"#,
            "json: cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds of type int64",
        ),
        (
            r#"{"preconditions":{"uid":1}}"#,
            "json: cannot unmarshal number into Go struct field Preconditions.preconditions.uid of type types.UID",
        ),
    ] {
        let refused = api.delete(&format!("{PODS}/a"), options).await;
        let told = refused.message();
        assert_eq!((refused.code.as_u16(), told.as_str()), (400, expected), "{options}");
    }
    let refused = api.post(&format!("{PODS}?fieldValidation=Some"), &pod("b")).await;
    assert_eq!(
        refused.message(),
        "CreateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"Some\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
    );
}

/// A custom resource with an embedded object, as in upstream's own test of field validation.
const EMBEDDING: &str = r#"{
    "apiVersion": "example.com/v1", "kind": "Tab", "metadata": {"name": "x", "name": "a", "unknownMeta": "y"},
    "spec": {
        "none": 1, "none": 2, "color": "red", "color": "blue", "ports": [{"name": "p", "zzz": 1}],
        "inner": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "unknownToo": 1}}
    }
}"#;

#[tokio::test]
async fn embedded_objects_have_metadata() {
    let api = Api::start().await;
    let mut definition = tabs();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["inner"] = json!({
        "type": "object", "x-kubernetes-embedded-resource": true, "properties": {"metadata": {"type": "object"}},
    });
    define(&api, &definition).await;
    let path = format!("{TABS}?fieldValidation=Strict");
    let strict = api
        .request(Method::POST, &path, &[("content-type", "application/json")], EMBEDDING)
        .await;
    let wanted = [
        r#"duplicate field "metadata.name""#,
        r#"duplicate field "spec.none""#,
        r#"duplicate field "spec.color""#,
        r#"unknown field "metadata.unknownMeta""#,
        r#"unknown field "spec.none""#,
        r#"unknown field "spec.ports[0].zzz""#,
        r#"unknown field "spec.inner.metadata.unknownToo""#,
    ];
    let wanted = format!("strict decoding error: {}", wanted.join(", "));
    assert!(strict.message().ends_with(&wanted), "{}", strict.text());
    let mut applied = json!({
        "apiVersion": "example.com/v1", "kind": "Tab", "metadata": {"name": "b"},
        "spec": {"inner": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "labels": {"a": "b"}}}},
    });
    let path = format!("{TABS}/b");
    let made = api.apply(&path, "fieldManager=me", &applied).await;
    assert_eq!(made.code, 201, "{}", made.text());
    assert_eq!(made.json()["spec"]["inner"], applied["spec"]["inner"]);
    applied["spec"]["inner"]["metadata"] = json!({"name": "m"});
    let changed = api.apply(&path, "fieldManager=me", &applied).await.json();
    assert_eq!(changed["spec"]["inner"]["metadata"]["labels"]["a"], Value::Null);
}
