use std::sync::{Mutex, PoisonError};

use super::*;
use crate::machinery::driver::testing::context_on;

const GROUP: &str = "/apis/wardle.example.com/v1";
const ALPHA: &str = "/apis/wardle.example.com/v1alpha1";

/// A server with an aggregated API server for flunders, which supports only single deletions, and
/// another one that may be down.
struct Wardle {
    flunders: Vec<&'static str>,
    /// Of a kind that only a version has which the group does not prefer.
    fischers: Vec<&'static str>,
    is_third_up: bool,
    conditions: Value,
    is_finalized: bool,
}

impl Wardle {
    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let group = |name: &str| {
            let versions = if name == "apps" {
                &["v1"][..]
            } else {
                &["v1", "v1alpha1"]
            };
            let versions: Vec<Value> = versions.iter().map(|own| json!({ "version": own })).collect();
            json!({ "name": name, "versions": versions, "preferredVersion": { "version": "v1" } })
        };
        let resource = |name: &str| {
            json!({ "name": name, "namespaced": true, "kind": "Flunder", "singularName": "",
            "verbs": ["get", "list", "delete"] })
        };
        let resources = |names: &[&str]| {
            json!({ "groupVersion": "wardle.example.com/v1",
            "resources": names.iter().map(|name| resource(name)).collect::<Vec<_>>() })
        };
        let flunders = format!("{GROUP}/namespaces/ns/flunders");
        let fischers = format!("{ALPHA}/namespaces/ns/fischers");
        match (method.as_str(), path) {
            ("GET", "/apis") => (
                200,
                json!({ "groups": [group("apps"), group("wardle.example.com"), group("third.example.com")] }),
            ),
            ("GET", GROUP) => (200, resources(&["flunders", "flunders/status"])),
            ("GET", ALPHA) => (200, resources(&["flunders", "fischers"])),
            ("GET" | "DELETE", own) if own == fischers => {
                if method == "DELETE" {
                    self.fischers.clear();
                }
                let items = self.fischers.iter().map(|name| json!({ "metadata": { "name": name } }));
                (200, json!({ "items": items.collect::<Vec<_>>() }))
            }
            ("GET", "/apis/third.example.com/v1alpha1") => (200, resources(&[])),
            ("GET", "/apis/third.example.com/v1") if self.is_third_up => (200, resources(&[])),
            ("GET", "/apis/third.example.com/v1") => (503, json!({ "code": 503, "message": "away" })),
            ("GET", own) if own == flunders => {
                let items = self.flunders.iter().map(|name| json!({ "metadata": { "name": name } }));
                (200, json!({ "items": items.collect::<Vec<_>>() }))
            }
            ("DELETE", own) if own == flunders => (
                405,
                json!({ "kind": "Status", "code": 405, "reason": "MethodNotAllowed", "message": "no" }),
            ),
            ("DELETE", own) => {
                self.flunders.retain(|name| !own.ends_with(&format!("/{name}")));
                (200, json!({}))
            }
            ("PATCH", _) => {
                let said: Value = serde_json::from_slice(body).unwrap();
                self.conditions = said["status"]["conditions"].clone();
                (200, json!({}))
            }
            ("PUT", "/api/v1/namespaces/ns/finalize") => {
                self.is_finalized = true;
                (200, json!({}))
            }
            ("GET", "/api/v1/namespaces/ns") => (200, json!({ "metadata": { "name": "ns", "uid": "u" }, "spec": {} })),
            _ => (200, json!({ "items": [], "metadata": {} })),
        }
    }
}

#[tokio::test]
async fn objects_that_other_servers_serve_go_with_their_namespace() {
    let wardle = Arc::new(Mutex::new(Wardle {
        flunders: vec!["a", "b"],
        fischers: vec!["c"],
        is_third_up: false,
        conditions: Value::Null,
        is_finalized: false,
    }));
    let server = wardle.clone();
    let context = context_on(Caches::new(), move |method, uri, body| {
        let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
        server.answer(method, uri.path(), body)
    });
    let going = json!({ "metadata": { "name": "ns", "uid": "u" }, "spec": { "finalizers": ["kubernetes"] } });
    let going: Namespace = serde_json::from_value(going).unwrap();
    let look = || wardle.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(!empty(&context, &going).await, "of the third server nothing is known");
    assert_eq!(look().flunders, Vec::<&str>::new());
    assert_eq!(look().fischers, Vec::<&str>::new());
    let said = look().conditions[0].clone();
    assert_eq!(
        (&said["type"], &said["reason"]),
        (&json!("NamespaceDeletionDiscoveryFailure"), &json!("DiscoveryFailed"))
    );
    assert_eq!(
        said["message"],
        "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: \
         third.example.com/v1: stale GroupVersion discovery: third.example.com/v1"
    );
    assert!(!look().is_finalized);
    look().is_third_up = true;
    assert!(empty(&context, &going).await);
    assert!(look().is_finalized);
}
