use controlplane_plan::step::Step;
use serde_json::{Value, json};

use super::*;
use crate::machinery::driver::testing::context_on;

const GROUP: &str = "/apis/wardle.example.com/v1";

/// A server with flunders behind a Service; its events are told once.
struct Wardle {
    events: Vec<Value>,
}

impl Wardle {
    fn answer(&mut self, path: &str, query: &str) -> (u16, Value) {
        let version = json!({ "version": "v1" });
        let row = |name: &str, verbs: &[&str]| json!({ "name": name, "namespaced": true, "kind": "Flunder", "singularName": "", "verbs": verbs });
        match path {
            "/apis" => {
                let group = json!({ "name": "wardle.example.com", "versions": [version], "preferredVersion": version });
                (200, json!({ "groups": [group] }))
            }
            GROUP => {
                let rows = [
                    row("flunders", &["delete", "get", "list", "watch"]),
                    row("readings", &["get", "list"]),
                ];
                (
                    200,
                    json!({ "groupVersion": "wardle.example.com/v1", "resources": rows }),
                )
            }
            _ if path != format!("{GROUP}/flunders") => (404, json!({ "code": 404, "message": path })),
            _ if query.contains("watch=true") => {
                let quiet = json!({ "type": "BOOKMARK", "object": flunder("none", "none", "7", &Value::Null) });
                (200, self.events.pop().unwrap_or(quiet))
            }
            _ => {
                let owner = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone" }]);
                let items = [
                    flunder("one", "one", "5", &owner),
                    flunder("double", "map", "6", &owner),
                ];
                (200, json!({ "metadata": { "resourceVersion": "7" }, "items": items }))
            }
        }
    }
}

fn flunder(name: &str, uid: &str, revision: &str, owners: &Value) -> Value {
    json!({
        "apiVersion": "wardle.example.com/v1",
        "kind": "Flunder",
        "metadata": {
            "name": name, "namespace": "ns", "uid": uid, "resourceVersion": revision, "ownerReferences": owners,
        },
    })
}

fn planned(garbage: &Garbage, uid: &str) -> Vec<String> {
    let plan = garbage.plan(&Key::new("", uid), None, Timestamp::UNIX_EPOCH);
    let steps = plan.stages.iter().flatten().map(|step| match step {
        Step::Look(target) => format!("look {} {}", target.resource.plural, target.name),
        Step::Delete { target, .. } => format!("delete {} {}", target.resource.plural, target.name),
        step @ (Step::Create { .. } | Step::Patch { .. } | Step::Measure(_) | Step::Event(_)) => format!("{step:?}"),
    });
    steps.collect()
}

/// Waits until an object is to be examined.
async fn woken(queue: &Queue<Key>, uid: &str) {
    let woken = async {
        loop {
            let key = queue.next().await;
            queue.done(&key);
            if key.name == uid {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), woken)
        .await
        .unwrap_or_else(|_| panic!("{uid} is not examined"));
}

fn learn(garbage: &Garbage, uid: &str) {
    let target = Target {
        resource: controlplane_plan::step::CONFIG_MAPS,
        namespace: "ns".into(),
        name: uid.into(),
        uid: uid.into(),
    };
    garbage.learn(&target, false, Timestamp::UNIX_EPOCH);
}

#[tokio::test]
async fn objects_of_other_servers_own_and_are_owned() {
    let caches = Caches::new();
    let (garbage, queue, defined) = listen(&caches);
    let service = json!({ "metadata": { "name": "v1.wardle.example.com", "resourceVersion": "1" }, "spec": {
        "groupPriorityMinimum": 1, "versionPriority": 1, "service": { "name": "s", "namespace": "ns" } } });
    caches
        .api_services
        .replace(vec![serde_json::from_value(service).unwrap()], 1, 1);
    let owner = json!({ "apiVersion": "wardle.example.com/v1", "kind": "Flunder", "name": "one", "uid": "one" });
    let map = json!({ "metadata": {
        "name": "map", "namespace": "ns", "uid": "map", "resourceVersion": "2", "ownerReferences": [owner] } });
    caches
        .config_maps
        .replace(vec![serde_json::from_value(map).unwrap()], 2, 1);
    let server = Arc::new(Mutex::new(Wardle { events: Vec::new() }));
    let answering = server.clone();
    let context = context_on(caches, move |_method, uri, _body| {
        locked(&answering).answer(uri.path(), uri.query().unwrap_or_default())
    });
    assert_eq!(planned(&garbage, "map"), Vec::<String>::new(), "no such kind is known");
    let mut following = JoinSet::new();
    following.spawn(defined.follow(context));

    woken(&queue, "one").await;
    assert_eq!(planned(&garbage, "one"), ["look configmaps gone"]);
    learn(&garbage, "gone");
    assert_eq!(planned(&garbage, "one"), ["delete flunders one"]);
    // What shows itself under the uid of another object is not taken for it.
    assert_eq!(planned(&garbage, "map"), Vec::<String>::new());

    locked(&server)
        .events
        .push(json!({ "type": "DELETED", "object": flunder("one", "one", "8", &Value::Null) }));
    woken(&queue, "map").await;
    assert_eq!(planned(&garbage, "map"), ["look flunders one"]);
    learn(&garbage, "one");
    assert_eq!(planned(&garbage, "map"), ["delete configmaps map"]);
}
