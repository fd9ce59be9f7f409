//! Validation errors of webhook configurations, in upstream's words.

use serde_json::{Value, json};

use crate::refused::refused;

const GROUP: &str = "admissionregistration.k8s.io";

fn webhook(more: &Value) -> Value {
    let mut webhook = json!({
        "name": "a.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": {"url": "https://example.com/a"},
    });
    webhook
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    webhook
}

fn both(more: &Value, expected: &[&str]) {
    for plural in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        refused(GROUP, plural, &json!({"webhooks": [webhook(more)]}), expected);
    }
}

#[test]
fn a_webhook_says_who_is_asked_and_how() {
    const FORM: &str = "; desired format: https://host[/path]";
    both(&json!({}), &[]);
    both(
        &json!({"name": "a.b"}),
        &[
            "webhooks[0].name: Invalid value: \"a.b\": should be a domain with at least three segments separated by dots",
        ],
    );
    both(
        &json!({"name": "", "sideEffects": "Some", "failurePolicy": "x", "matchPolicy": "y", "timeoutSeconds": 31}),
        &[
            "webhooks[0].name: Required value",
            "webhooks[0].failurePolicy: Unsupported value: \"x\": supported values: \"Fail\", \"Ignore\"",
            "webhooks[0].matchPolicy: Unsupported value: \"y\": supported values: \"Equivalent\", \"Exact\"",
            "webhooks[0].sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
            "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
        ],
    );
    both(
        &json!({"sideEffects": "", "admissionReviewVersions": []}),
        &[
            "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun",
            "webhooks[0].admissionReviewVersions: Required value: must specify one of v1, v1beta1",
        ],
    );
    both(
        &json!({"admissionReviewVersions": ["v2", "v2"]}),
        &[
            "webhooks[0].admissionReviewVersions[1]: Invalid value: \"v2\": duplicate version",
            "webhooks[0].admissionReviewVersions: Invalid value: [\"v2\",\"v2\"]: must include at least one of v1, v1beta1",
        ],
    );
    both(
        &json!({"clientConfig": {}}),
        &["webhooks[0].clientConfig: Required value: exactly one of url or service is required"],
    );
    let url = "webhooks[0].clientConfig.url: Invalid value:";
    both(
        &json!({"clientConfig": {"url": "http://u@example.com/a?b=c#d"}}),
        &[
            &format!("{url} \"http\": 'https' is the only allowed URL scheme{FORM}"),
            &format!("{url} \"u\": user information is not permitted in the URL"),
            &format!("{url} \"d\": fragments are not permitted in the URL"),
            &format!("{url} \"b=c\": query parameters are not permitted in the URL"),
        ],
    );
    both(
        &json!({"clientConfig": {"service": {"namespace": "", "name": "a", "port": 0, "path": "/a//B"}}}),
        &[
            "webhooks[0].clientConfig.service.namespace: Required value",
            "webhooks[0].clientConfig.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive",
            "webhooks[0].clientConfig.service.path: Invalid value: \"/a//B\": segment[1] may not be empty",
            "webhooks[0].clientConfig.service.path: Invalid value: \"/a//B\": segment[2]: a lowercase RFC 1123 subdomain \
             must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric \
             character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ],
    );
}

#[test]
fn a_rule_names_what_a_webhook_is_asked_about() {
    let rule = |rule: &Value| json!({"rules": [rule]});
    let rules = "webhooks[0].rules[0]";
    both(
        &rule(&json!({})),
        &[
            &format!("{rules}.operations: Required value"),
            &format!("{rules}.apiGroups: Required value"),
            &format!("{rules}.apiVersions: Required value"),
            &format!("{rules}.resources: Required value"),
        ],
    );
    both(
        &rule(
            &json!({"operations": ["*", "GET"], "apiGroups": ["*", "apps"], "apiVersions": [""], "scope": "x",
            "resources": ["*", "pods", "pods/*", "pods/log", "*/log", "*/*"]}),
        ),
        &[
            &format!(
                "{rules}.operations: Invalid value: [\"*\",\"GET\"]: if '*' is present, must not specify other operations"
            ),
            &format!(
                "{rules}.operations[1]: Unsupported value: \"GET\": supported values: \"*\", \"CONNECT\", \"CREATE\", \
                 \"DELETE\", \"UPDATE\""
            ),
            &format!(
                "{rules}.apiGroups: Invalid value: [\"*\",\"apps\"]: if '*' is present, must not specify other API groups"
            ),
            &format!("{rules}.apiVersions[0]: Required value"),
            &format!(
                "{rules}.resources[3]: Invalid value: \"pods/log\": if 'pods/*' is present, must not specify pods/log"
            ),
            &format!(
                "{rules}.resources: Invalid value: [\"*\",\"pods\",\"pods/*\",\"pods/log\",\"*/log\",\"*/*\"]: if '*/*' is \
                 present, must not specify other resources"
            ),
            &format!(
                "{rules}.resources: Invalid value: [\"*\",\"pods\",\"pods/*\",\"pods/log\",\"*/log\",\"*/*\"]: if '*' is \
                 present, must not specify other resources without subresources"
            ),
            &format!("{rules}.scope: Unsupported value: \"x\": supported values: \"*\", \"Cluster\", \"Namespaced\""),
        ],
    );
}

#[test]
fn names_of_one_configuration_differ() {
    let twice = json!({"webhooks": [webhook(&json!({})), webhook(&json!({"reinvocationPolicy": "x"}))]});
    let policy = "webhooks[1].reinvocationPolicy: Unsupported value: \"x\": supported values: \"IfNeeded\", \"Never\"";
    let name = "webhooks[1].name: Duplicate value: \"a.example.com\"";
    refused(GROUP, "mutatingwebhookconfigurations", &twice, &[policy, name]);
    refused(GROUP, "validatingwebhookconfigurations", &twice, &[name]);
}
