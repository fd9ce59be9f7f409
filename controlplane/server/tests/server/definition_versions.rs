//! Versions of kinds that objects define, as they come and go.

use serde_json::json;

use crate::definitions::{DEFINITIONS, TABS, define, eventually, started, tab, tabs};
use crate::support::{Api, Frames};

#[tokio::test]
async fn watches_end_with_the_kind_that_they_are_of() {
    let api = started().await;
    let mut upkeep = tokio::task::JoinSet::new();
    let healed = api.server.clone();
    upkeep.spawn(async move { healed.heal().await });
    assert_eq!(api.post(TABS, &tab("a", &json!({}))).await.code, 201);
    let mut watching = Frames::open(&api, &format!("{TABS}?watch=true"), "application/json").await;
    assert_eq!(watching.brief().await, "ADDED a");
    assert_eq!(
        api.delete(&format!("{DEFINITIONS}/tabs.example.com"), "").await.code,
        200
    );
    assert_eq!(watching.brief().await, "DELETED a");
    assert_eq!(watching.brief().await, "end");
    let gone = eventually(&api, &format!("{TABS}/a"), |answer| answer.code == 404).await;
    assert_eq!(gone.text(), "404 page not found\n");
    let gone = api.post(TABS, &tab("b", &json!({}))).await;
    assert_eq!(
        (gone.code.as_u16(), gone.text().as_str()),
        (404, "404 page not found\n")
    );
}

#[tokio::test]
async fn watches_end_when_their_version_is_served_no_more_or_otherwise() {
    let api = Api::start().await;
    let mut two = tabs();
    let mut second = two["spec"]["versions"][0].clone();
    (second["name"], second["storage"]) = (json!("v2"), json!(false));
    two["spec"]["versions"].as_array_mut().unwrap().push(second);
    define(&api, &two).await;
    let path = "/apis/example.com/v2/namespaces/default/tabs";
    let mut watching = Frames::open(&api, &format!("{path}?watch=true"), "application/json").await;
    // A change that does not affect serving ends no watches.
    let definition = format!("{DEFINITIONS}/tabs.example.com");
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(api.patch(&definition, "merge-patch+json", &labels).await.code, 200);
    assert_eq!(api.post(TABS, &tab("a", &json!({}))).await.code, 201);
    assert_eq!(watching.brief().await, "ADDED a");
    let unserved = json!([{"op": "replace", "path": "/spec/versions/1/served", "value": false}]);
    assert_eq!(api.patch(&definition, "json-patch+json", &unserved).await.code, 200);
    assert_eq!(watching.brief().await, "end");
    assert_eq!(api.get(path).await.text(), "404 page not found\n");
    assert_eq!(api.get(TABS).await.code, 200);
}

#[tokio::test]
async fn paths_that_a_kind_does_not_have_are_told_as_upstream_tells_them() {
    let api = started().await;
    for path in [
        "/apis/example.com/v1/tabs/a",
        "/apis/example.com/v1/namespaces/default/others",
    ] {
        let answer = api.get(path).await;
        assert_eq!(
            (answer.code.as_u16(), answer.text().as_str()),
            (404, "404 page not found\n"),
            "{path}"
        );
    }
    let answer = api.get(&format!("{TABS}/a/none")).await;
    assert_eq!(answer.message(), "tabs.example.com \"a\" not found");
}
