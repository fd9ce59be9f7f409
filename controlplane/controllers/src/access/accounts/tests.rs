use serde_json::from_value;

use super::*;

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
