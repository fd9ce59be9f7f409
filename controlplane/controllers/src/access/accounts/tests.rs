use serde_json::from_value;

use super::*;
use crate::machinery::driver::testing::context_on;

/// Plan for an old enough Secret of this account: `look`, `delete`, or the time of the next sync.
fn planned(secrets: &TokenSecrets) -> String {
    let now = "2026-01-02T00:00:00Z".parse().unwrap();
    let plan = secrets.plan(&Key::new("ns", "token"), None, now);
    let steps = plan.stages.iter().flatten();
    let steps: Vec<&str> = steps
        .map(|step| match step {
            Step::Look(_) => "look",
            Step::Delete { .. } => "delete",
            Step::Create { .. } | Step::Patch { .. } | Step::Measure(_) | Step::Event(_) => "other",
        })
        .collect();
    steps.join(" ")
}

#[tokio::test]
async fn a_token_goes_only_after_the_server_said_that_its_account_is_gone() {
    for wanted in [None, Some("u1")] {
        let caches = Arc::new(Caches::new());
        let mut secret = json!({
            "metadata": {
                "name": "token", "namespace": "ns", "uid": "s", "resourceVersion": "3",
                "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": { ACCOUNT_NAME: "robot" },
            },
            "type": TOKEN,
        });
        if let Some(wanted) = wanted {
            secret["metadata"]["annotations"][ACCOUNT_UID] = wanted.into();
        }
        caches.secrets.replace(vec![from_value(secret).unwrap()], 3, 1);
        let secrets = TokenSecrets {
            caches,
            certificate: "pem".into(),
            sign: Arc::new(|_, _, _, _| None),
            asked: Mutex::default(),
        };
        let account = Target {
            resource: SERVICE_ACCOUNTS,
            namespace: "ns".to_owned(),
            name: "robot".to_owned(),
            uid: wanted.unwrap_or_default().to_owned(),
        };
        assert_eq!(planned(&secrets), "look");
        secrets.learn(&account, true, Timestamp::UNIX_EPOCH);
        assert_eq!(planned(&secrets), "", "the cache is behind");
        assert_eq!(planned(&secrets), "look");
        secrets.learn(&account, false, Timestamp::UNIX_EPOCH);
        assert_eq!(planned(&secrets), "delete");
    }
}

#[test]
fn a_bootstrap_token_goes_when_it_has_expired() {
    let check = |end: &str, expected: (usize, Option<u64>)| {
        let secret: Contents = from_value(json!({ "data": { "expiration": STANDARD.encode(end) } })).unwrap();
        let mut plan = Plan::default();
        plan_bootstrap(&secret, "2026-01-02T00:00:00Z".parse().unwrap(), &mut plan);
        let again = plan.again.map(|again| again.as_secs());
        assert_eq!((plan.stages.len(), again), expected, "{end}");
    };
    check("", (0, None));
    check("2026-01-02T00:01:00Z", (0, Some(60)));
    check("2026-01-02T00:00:00Z", (1, None));
    check("2026-01-01T00:00:00Z", (1, None));
    check("tomorrow", (1, None));
    check("9999-12-31T23:59:59Z", (0, Some(251_634_895_200)));
}

#[tokio::test]
async fn an_unused_token_that_its_account_lists_is_marked() {
    for (listed, mounted, expected) in [("token", "", 1), ("other", "", 0), ("token", "token", 0)] {
        let caches = Caches::new();
        let secret = json!({
            "metadata": {
                "name": "token", "namespace": "ns", "uid": "s", "resourceVersion": "3",
                "creationTimestamp": "2025-01-01T00:00:00Z", "annotations": { ACCOUNT_NAME: "robot" },
                "labels": { "kubernetes.io/legacy-token-last-used": "2025-12-31" },
            },
            "type": TOKEN,
        });
        caches.secrets.replace(vec![from_value(secret).unwrap()], 3, 1);
        let marks = Arc::new(Mutex::new(Vec::new()));
        let seen = marks.clone();
        let context = context_on(caches, move |method, uri, body| {
            let answer = match (method.as_str(), uri.path().rsplit('/').next().unwrap()) {
                ("GET", "robot") => json!({
                    "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {}, "secrets": [{ "name": listed }],
                }),
                ("GET", "pods") => json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [{ "spec": {
                    "containers": [], "volumes": [{ "name": "v", "secret": { "secretName": mounted } }],
                }}]}),
                ("GET", "kube-apiserver-legacy-service-account-token-tracking") => {
                    json!({ "metadata": {}, "data": { "since": "2026-01-01" } })
                }
                _ => {
                    seen.lock()
                        .unwrap()
                        .push(serde_json::from_slice::<Value>(body).unwrap());
                    json!({ "metadata": {} })
                }
            };
            (200, answer)
        });
        legacy_tokens::clean(&context, &context.client.clone()).await.unwrap();
        let body = json!({ "metadata": { "uid": "s", "labels": {
            "kubernetes.io/legacy-token-invalid-since": "2027-01-15",
        }}});
        assert_eq!(*marks.lock().unwrap(), vec![body; expected], "{listed} {mounted}");
    }
}
