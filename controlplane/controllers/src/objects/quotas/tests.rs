use std::sync::{Mutex, PoisonError};

use super::*;
use crate::machinery::driver::testing::context_on;

/// A server that charges the quota one more object with each list, as in a namespace with constant
/// changes.
#[derive(Default)]
struct Busy {
    revision: u64,
    used: u64,
    /// The amounts of `status.hard`.
    hard: Option<u64>,
    lists: u64,
}

impl Busy {
    fn quota(&self) -> Value {
        let mut quota = json!({
            "metadata": { "name": "q", "namespace": "ns", "uid": "u", "resourceVersion": self.revision.to_string() },
            "spec": { "hard": { "count/configmaps": "2000" } },
        });
        if let Some(hard) = self.hard {
            let one = |amount: u64| json!({ "count/configmaps": amount.to_string() });
            quota["status"] = json!({ "hard": one(hard), "used": one(self.used) });
        }
        quota
    }

    fn answer(&mut self, method: &Method, path: &str, query: &str, body: &[u8]) -> (u16, Value) {
        if path.ends_with("/configmaps") {
            self.lists += 1;
            // There were five objects at the revision of the quota; one is added now.
            assert!(
                query.contains("resourceVersion=7&resourceVersionMatch=Exact"),
                "{query}"
            );
            let items: Vec<Value> = (0..5)
                .map(|at| json!({ "metadata": { "name": at.to_string() } }))
                .collect();
            self.used += 1;
            self.revision += 1;
            return (200, json!({ "metadata": { "resourceVersion": "7" }, "items": items }));
        }
        if *method == Method::PUT {
            let put: Value = serde_json::from_slice(body).unwrap();
            let current = self.revision.to_string();
            if put["metadata"]["resourceVersion"] != current {
                return (
                    409,
                    json!({ "kind": "Status", "code": 409, "reason": "Conflict", "message": "stale" }),
                );
            }
            let number = |field: &str| put["status"][field]["count/configmaps"].as_str().unwrap().parse();
            (self.hard, self.used) = (Some(number("hard").unwrap()), number("used").unwrap());
            self.revision += 1;
            return (200, put);
        }
        if path.ends_with("/q") {
            return (200, self.quota());
        }
        let revision = self.revision.to_string();
        (
            200,
            json!({ "metadata": { "resourceVersion": revision }, "items": [self.quota()] }),
        )
    }
}

#[tokio::test]
async fn a_quota_is_counted_in_a_namespace_that_is_never_at_rest() {
    // The limit changed, and three objects too many were charged.
    let busy = Arc::new(Mutex::new(Busy {
        revision: 7,
        used: 8,
        hard: Some(1000),
        lists: 0,
    }));
    let server = busy.clone();
    let context = context_on(Caches::new(), move |method, uri, body| {
        let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
        server.answer(method, uri.path(), uri.query().unwrap_or_default(), body)
    });
    let counted = count(&context, &Key::new("ns", "q")).await;
    assert!(matches!(counted, Ok(Counted::First)));
    let busy = busy.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(
        (busy.hard, busy.used, busy.lists),
        (Some(2000), 6, 1),
        "five, and the one that came"
    );
}

#[tokio::test]
async fn the_last_count_holds_while_an_aggregated_server_is_away() {
    let caches = Caches::new();
    let service = json!({ "metadata": { "name": "v1.away.example.com" }, "spec": {
        "group": "away.example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
        "service": { "name": "s", "namespace": "ns" } } });
    caches
        .api_services
        .replace(vec![serde_json::from_value(service).unwrap()], 1, 1);
    let context = context_on(caches, |method, uri, _body| {
        let names = [
            "count/as.away.example.com",
            "count/bs.away.example.com",
            "count/configmaps",
        ];
        let of = |amounts: [&'static str; 3]| names.into_iter().zip(amounts).collect::<BTreeMap<_, _>>();
        let quota = json!({
            "metadata": { "name": "q", "namespace": "ns", "uid": "u", "resourceVersion": "7" },
            "spec": { "hard": of(["9", "9", "9"]) },
            "status": { "hard": of(["9", "9", "9"]), "used": of(["4", "0", "1"]) },
        });
        let version = json!({ "groupVersion": "away.example.com/v1", "version": "v1" });
        match (method.as_str(), uri.path()) {
            ("GET", "/apis") => {
                let group = json!({ "name": "away.example.com", "versions": [version], "preferredVersion": version });
                (200, json!({ "groups": [group] }))
            }
            ("GET", "/apis/away.example.com/v1") => (503, json!({ "kind": "Status", "code": 503 })),
            ("GET", path) if path.ends_with("/configmaps") => {
                (200, json!({ "items": [{ "metadata": { "name": "a" } }] }))
            }
            ("GET", path) if path.ends_with("/q") => (200, quota),
            ("GET", _) => (200, json!({ "metadata": { "resourceVersion": "7" }, "items": [quota] })),
            (method, path) => panic!("{method} {path}: nothing has changed"),
        }
    });
    let counted = count(&context, &Key::new("ns", "q")).await;
    assert!(matches!(counted, Ok(Counted::Partly)), "it is soon tried again");
}

#[tokio::test]
async fn objects_of_kinds_that_definitions_make_are_counted() {
    let served = |name: &str, storage: bool| json!({ "name": name, "served": true, "storage": storage });
    let definition = json!({
        "metadata": { "name": "tabs.example.com" },
        "spec": { "group": "example.com", "scope": "Namespaced", "names": { "plural": "tabs", "kind": "Tab" },
            "versions": [served("v1", false), served("v2", true)] },
        "status": { "conditions": [{ "type": "Established", "status": "True" }] },
    });
    let put = Arc::new(Mutex::new(Value::Null));
    let kept = put.clone();
    let caches = Caches::new();
    caches
        .definitions
        .replace(vec![serde_json::from_value(definition).unwrap()], 1, 1);
    let context = context_on(caches, move |method, uri, body| {
        let quota = json!({
            "metadata": { "name": "q", "namespace": "ns", "uid": "u", "resourceVersion": "7" },
            "spec": { "hard": { "count/tabs.example.com": "9", "count/others.example.com": "9" } },
        });
        let answer = match (method.as_str(), uri.path()) {
            ("GET", "/apis/example.com/v2/namespaces/ns/tabs") => json!({ "items": [{}, {}, {}] }),
            ("PUT", _) => {
                let quota: Value = serde_json::from_slice(body).unwrap();
                *kept.lock().unwrap_or_else(PoisonError::into_inner) = quota.clone();
                quota
            }
            ("GET", path) if path.ends_with("/q") => quota,
            _ => json!({ "metadata": { "resourceVersion": "7" }, "items": [quota] }),
        };
        (200, answer)
    });
    assert!(matches!(
        count(&context, &Key::new("ns", "q")).await,
        Ok(Counted::First)
    ));
    let put = put.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(
        put["status"]["used"],
        json!({ "count/tabs.example.com": "3", "count/others.example.com": "0" })
    );
}
