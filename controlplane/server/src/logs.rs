//! Where the `log` subresource gets containers' output from: the agent of the pod's node.

use axum::body::Body;
use futures::future::BoxFuture;
use thiserror::Error;

/// What to ask an agent for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRequest {
    /// The node's name: what its certificate must say.
    pub node_name: String,
    /// Address or host name to connect to.
    pub node_address: String,
    /// Port of the agent.
    pub port: u16,
    /// `/containerLogs/NAMESPACE/POD/CONTAINER?follow=true`
    pub path_and_query: String,
}

/// Why there is no output.
#[derive(Debug, Error)]
pub enum LogError {
    /// The agent cannot be reached or is not who it should be.
    #[error("dial {node}: {because}")]
    Unreachable {
        /// The node's name.
        node: String,
        /// What went wrong.
        because: String,
    },
}

/// Fetches output; the body streams.
pub trait LogSource: Send + Sync {
    /// Asks the agent. The answer's status is the agent's own.
    fn logs(&self, request: LogRequest) -> BoxFuture<'static, Result<http::Response<Body>, LogError>>;
}
