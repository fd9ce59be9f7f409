//! Ranges of addresses for Services.

use http::StatusCode;
use serde_json::json;

use crate::services::{SERVICES, create};
use crate::support::{Answer, Api};

const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";

#[tokio::test]
async fn another_range_gives_addresses_too() {
    let api = Api::start().await;
    let range = json!({"metadata": {"name": "extra"}, "spec": {"cidrs": ["198.51.100.0/24"]}});
    let made = api.post(RANGES, &range).await;
    assert_eq!(made.code, StatusCode::CREATED, "{}", made.text());
    assert_eq!(made.json()["status"]["conditions"][0]["type"], "Ready");
    let web = create(&api, "web", &json!({"clusterIP": "198.51.100.9"})).await;
    assert_eq!(web.code, StatusCode::CREATED, "{}", web.text());
}

/// Checks the error for an address that is not in any ready range.
fn not_in_range(made: &Answer, address: &str) {
    assert_eq!(made.code, StatusCode::UNPROCESSABLE_ENTITY, "{}", made.text());
    let because = "the provided network does not match the current range";
    let detail = format!("failed to allocate IP {address}: {because}");
    assert!(made.text().contains(&detail), "{}", made.text());
}

#[tokio::test]
async fn a_range_that_goes_gives_no_addresses() {
    let api = Api::start().await;
    let range = json!({"metadata": {"name": "extra", "finalizers": ["example.com/held"]}, "spec": {"cidrs": ["198.51.100.0/24"]}});
    assert_eq!(api.post(RANGES, &range).await.code, StatusCode::CREATED);
    let first = create(&api, "first", &json!({"clusterIP": "198.51.100.9"})).await;
    assert_eq!(first.code, StatusCode::CREATED, "{}", first.text());
    api.delete(&format!("{RANGES}/extra"), "").await;
    let held = api.get(&format!("{RANGES}/extra")).await.json();
    assert!(held["metadata"]["deletionTimestamp"].is_string(), "{held}");
    not_in_range(
        &create(&api, "second", &json!({"clusterIP": "198.51.100.10"})).await,
        "198.51.100.10",
    );
    // A Service keeps its address, and another object may provide the same range.
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let kept = api
        .patch(&format!("{SERVICES}/first"), "merge-patch+json", &labels)
        .await;
    assert_eq!(kept.code, StatusCode::OK, "{}", kept.text());
    let range = json!({"metadata": {"name": "again"}, "spec": {"cidrs": ["198.51.100.0/24"]}});
    assert_eq!(api.post(RANGES, &range).await.code, StatusCode::CREATED);
    let second = create(&api, "second", &json!({"clusterIP": "198.51.100.10"})).await;
    assert_eq!(second.code, StatusCode::CREATED, "{}", second.text());
}

#[tokio::test]
async fn a_range_that_is_not_ready_gives_no_addresses() {
    let api = Api::start().await;
    let range = json!({"metadata": {"name": "extra"}, "spec": {"cidrs": ["198.51.100.0/24"]}});
    assert_eq!(api.post(RANGES, &range).await.code, StatusCode::CREATED);
    let not = json!({"type": "Ready", "status": "False", "reason": "Test", "lastTransitionTime": null});
    let status = json!({"status": {"conditions": [not]}});
    let path = format!("{RANGES}/extra/status");
    let told = api.patch(&path, "merge-patch+json", &status).await;
    assert_eq!(told.code, StatusCode::OK, "{}", told.text());
    not_in_range(
        &create(&api, "web", &json!({"clusterIP": "198.51.100.9"})).await,
        "198.51.100.9",
    );
}

#[tokio::test]
async fn the_servers_own_range_goes_like_the_others() {
    let api = Api::start().await;
    api.patch(
        &format!("{RANGES}/kubernetes"),
        "merge-patch+json",
        &json!({"metadata": {"finalizers": ["example.com/held"]}}),
    )
    .await;
    api.delete(&format!("{RANGES}/kubernetes"), "").await;
    not_in_range(
        &create(&api, "web", &json!({"clusterIP": "10.96.0.9"})).await,
        "10.96.0.9",
    );
}
