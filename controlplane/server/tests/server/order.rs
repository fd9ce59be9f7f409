//! Order of JSON members, as in Go's output, for readers without a parser.

use crate::support::Api;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn failures_begin_with_what_they_are() {
    let api = Api::start().await;
    let failure = api.get(&format!("{CONFIG_MAPS}/b")).await.text();
    assert_eq!(
        failure.trim_end(),
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"configmaps \"b\" not found","reason":"NotFound","details":{"name":"b","kind":"configmaps"},"code":404}"#
    );
}
