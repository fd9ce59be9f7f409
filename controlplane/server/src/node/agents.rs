//! Interface to the nodes' agents, which serve logs, run commands in containers and forward ports.

use std::time::Duration;

use axum::body::Body;
use futures::future::BoxFuture;
use http::response::Parts;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

/// Address of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// Node name, which the agent's certificate must contain.
    pub node: String,
    /// Address or host name to connect to.
    pub address: String,
    /// Port of the agent.
    pub port: u16,
}

/// A connection in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<Io: AsyncRead + AsyncWrite + Send + Unpin> Stream for Io {}

/// Answer of an agent.
pub enum Answer {
    /// An answer with its body. The status is the agent's own.
    Whole(http::Response<Body>),
    /// Switch of protocols: the answer's head, and the connection from there on.
    Switched(Parts, Box<dyn Stream>),
}

/// Failure to reach an agent, in Go's words.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The agent cannot be reached or does not prove its identity.
    #[error("{because}")]
    Unreachable {
        /// Cause of the failure.
        because: String,
    },
    /// The agent was reached but did not answer.
    #[error("{because}")]
    Silent {
        /// Cause of the failure.
        because: String,
    },
}

/// The time that the connection for a request may take, among the request's extensions.
#[derive(Debug, Clone, Copy)]
pub struct Within(pub Duration);

/// Asks agents.
pub trait Agents: Send + Sync {
    /// Sends a request, whose URI is path and query, over a new connection; the answer's body
    /// streams.
    fn ask(&self, agent: Agent, request: http::Request<Body>) -> BoxFuture<'static, Result<Answer, AgentError>>;
}
