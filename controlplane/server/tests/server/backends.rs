//! Logs, streams and proxies, by what the node's agent answers, or does not.

use crate::support::{Api, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn one_output_alone_cannot_be_asked_for() {
    let api = Api::start().await;
    api.post(PODS, &pod("a")).await;
    for stream in ["Stdout", "All", ""] {
        let answer = api.get(&format!("{PODS}/a/log?stream={stream}")).await;
        assert_eq!(
            (answer.code.as_u16(), answer.message().as_str()),
            (
                422,
                "PodLogOptions \"a\" is invalid: stream: Forbidden: may not be specified"
            )
        );
    }
}
