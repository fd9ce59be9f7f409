use serde_json::{from_value, json};

use super::*;

fn pod(name: &str, revision: &str, nominated: &str) -> Pod {
    from_value(json!({
        "metadata": { "name": name, "namespace": "ns", "uid": name, "resourceVersion": revision },
        "spec": { "containers": [] },
        "status": { "nominatedNodeName": nominated },
    }))
    .unwrap()
}

#[tokio::test]
async fn what_an_earlier_scheduler_promised_holds() {
    let caches = Caches::new();
    let scheduler = Scheduler::listen(&caches);
    caches.pods.replace(vec![pod("a", "1", "n1"), pod("b", "2", "")], 2, 1);
    let promised = |uid| scheduler.lock().board.promised_node(uid).map(str::to_owned);
    assert_eq!((promised("a").as_deref(), promised("b")), (Some("n1"), None));
    // What the status says later is the echo of what this one decided.
    scheduler.lock().board.disappoint("a");
    caches.pods.apply(pod("a", "3", "n1"), false);
    assert_eq!(promised("a"), None);
}
