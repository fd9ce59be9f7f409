//! Versions of kinds that objects define, as they come and go.

use std::convert::Infallible;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::definitions::{DEFINITIONS, TABS, define, eventually, started, tab, tabs};
use crate::support::webhook::{Reply, VALIDATING, Webhook, configure};
use crate::support::{Api, Frames};

#[tokio::test]
async fn watches_end_with_the_kind_that_they_are_of() {
    let api = started().await;
    let mut upkeep = JoinSet::new();
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

/// Does something about the definition while a tab is on its way.
type Meddle = fn(Api) -> BoxFuture<'static, ()>;

/// An API of tabs that looks after definitions, and a webhook that does something before it admits the tab `late`.
async fn meddled(meddle: Meddle) -> (Api, Webhook, JoinSet<Infallible>) {
    let api = started().await;
    let mut upkeep = JoinSet::new();
    let healed = api.server.clone();
    upkeep.spawn(async move { healed.heal().await });
    let own = api.clone();
    let hook = Webhook::start_with(Arc::new(move |review: Value| {
        let own = own.clone();
        Box::pin(async move {
            if review["request"]["name"] == "late" {
                meddle(own).await;
            }
            Reply::Review(json!({"allowed": true}))
        })
    }))
    .await;
    let mut entry = hook.entry("late.example.com");
    entry["rules"] = json!([{"operations": ["CREATE", "UPDATE"], "apiGroups": ["example.com"], "apiVersions": ["*"],
        "resources": ["tabs"]}]);
    configure(&api, VALIDATING, "late", json!([entry])).await;
    (api, hook, upkeep)
}

/// From now on sizes are 5 at most.
fn narrow(api: Api) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/maximum";
        let change = json!([{"op": "add", "path": at, "value": 5}]);
        let path = format!("{DEFINITIONS}/tabs.example.com");
        assert_eq!(api.patch(&path, "json-patch+json", &change).await.code, 200);
    })
}

fn remove(api: Api) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let path = format!("{DEFINITIONS}/tabs.example.com");
        api.delete(&path, "").await;
        if api.get(&format!("{TABS}/held")).await.code == 404 {
            eventually(&api, &path, |answer| answer.code == 404).await;
        }
    })
}

#[tokio::test]
async fn what_was_under_way_when_its_definition_changed_is_validated_by_the_new_one() {
    let (api, hook, _upkeep) = meddled(narrow).await;
    let refused = api.post(TABS, &tab("late", &json!({"size": 7}))).await;
    let message = "Tab.example.com \"late\" is invalid: spec.size: Invalid value: 7: spec.size in body should be less than or \
                   equal to 5";
    assert_eq!((refused.code.as_u16(), refused.message().as_str()), (422, message));
    let made = api.post(TABS, &tab("late", &json!({"size": 4}))).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let asked = hook.brief().len();
    assert_eq!(asked, 2, "the first was refused before the webhook was asked again");
}

#[tokio::test]
async fn what_was_under_way_when_its_definition_went_is_of_no_kind() {
    let (api, _hook, _upkeep) = meddled(remove).await;
    let gone = api.post(TABS, &tab("late", &json!({}))).await;
    assert_eq!(
        (gone.code.as_u16(), gone.text().as_str()),
        (404, "404 page not found\n")
    );
    define(&api, &tabs()).await;
    assert_eq!(api.get(TABS).await.json()["items"], json!([]), "nothing was stored");
}

#[tokio::test]
async fn nothing_that_was_under_way_is_created_while_its_definition_goes() {
    let (api, _hook, _upkeep) = meddled(remove).await;
    let mut held = tab("held", &json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    assert_eq!(api.post(TABS, &held).await.code, 201);
    let refused = api.post(TABS, &tab("late", &json!({}))).await;
    let message =
        "tabs.example.com \"late\" is forbidden: create not allowed while custom resource definition is terminating";
    assert_eq!((refused.code.as_u16(), refused.message().as_str()), (403, message));
}

#[tokio::test]
async fn a_watch_tells_all_that_came_before_its_definition_changed_and_nothing_after() {
    let (api, _hook, _upkeep) = meddled(remove).await;
    let path = format!("{TABS}?watch=true");
    let mut watching = Frames::open(&api, &path, "application/json").await;
    assert_eq!(api.post(TABS, &tab("a", &json!({}))).await.code, 201);
    narrow(api.clone()).await;
    assert_eq!(api.post(TABS, &tab("b", &json!({}))).await.code, 201);
    assert_eq!(watching.brief().await, "ADDED a");
    assert_eq!(watching.brief().await, "end");

    let mut watching = Frames::open(&api, &path, "application/json").await;
    for told in ["ADDED a", "ADDED b"] {
        assert_eq!(watching.brief().await, told);
    }
    remove(api.clone()).await;
    eventually(&api, &format!("{DEFINITIONS}/tabs.example.com"), |answer| {
        answer.code == 404
    })
    .await;
    define(&api, &tabs()).await;
    assert_eq!(api.post(TABS, &tab("c", &json!({}))).await.code, 201);
    let mut last = [watching.brief().await, watching.brief().await];
    last.sort_unstable();
    assert_eq!(last, ["DELETED a", "DELETED b"]);
    assert_eq!(watching.brief().await, "end");
}
