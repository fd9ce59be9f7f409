//! Requests to a node's agent, for all that reaches the cluster's network.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use http::Request;
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::core::v1::{Container, Node, NodeAddress, NodeStatus, PodSpec};
use store::{Key, Store};

use crate::node::agents::{Agent, AgentError, Agents, Answer};
use crate::request::failure::Failure;
use crate::transport::respond::Response;

/// Port of an agent unless its Node names another one.
const AGENT_PORT: u16 = 10250;
/// Bytes of an agent's failure that are passed on.
const WORDS: usize = 10 * 1024;

/// Agent's message about a failure.
pub(crate) async fn words(answer: Response) -> String {
    match Limited::new(answer.into_body(), WORDS).collect().await {
        Ok(collected) => String::from_utf8_lossy(&collected.to_bytes()).trim().to_owned(),
        Err(_too_long) => String::new(),
    }
}

/// Ways into the cluster's network: the store has addresses, the nodes' agents reach them.
pub(crate) struct Network {
    pub(crate) store: Store,
    pub(crate) agents: Option<Arc<dyn Agents>>,
}

impl Network {
    /// Sends a request to the agent of a node. The caller reports failures of the connection.
    pub(crate) async fn ask(
        &self,
        node: &str,
        request: Request<Body>,
        told: impl FnOnce(&Agent, AgentError) -> Failure,
    ) -> Result<Answer, Failure> {
        let Some(agents) = &self.agents else {
            return Err(Failure::Unavailable {
                message: "this server has no way to the nodes' agents".into(),
            });
        };
        let agent = of_node(&self.store, node)?;
        let asked = agents.ask(agent.clone(), request).await;
        asked.map_err(|error| told(&agent, error))
    }
}

/// A connection that was to switch protocols and did not come about.
pub(crate) fn undialed(error: &AgentError) -> Failure {
    let message = match error {
        AgentError::Unreachable { because } => format!("error dialing backend: {because}"),
        // The head of an answer was begun to be read.
        AgentError::Silent { because } if because == "EOF" => "unexpected EOF".to_owned(),
        AgentError::Silent { because } => because.clone(),
    };
    Failure::Unexpected { message }
}

/// Requested container, or the only one.
pub(crate) fn container(spec: &PodSpec, pod: &str, wanted: Option<&str>) -> Result<String, Failure> {
    let names = |containers: &[Container]| containers.iter().map(|own| own.name.clone()).collect::<Vec<_>>();
    let (plain, init) = (
        names(&spec.containers),
        names(spec.init_containers.as_deref().unwrap_or_default()),
    );
    let Some(wanted) = wanted else {
        return match plain.as_slice() {
            [only] => Ok(only.clone()),
            [] => Err(Failure::bad_request(format!(
                "a container name must be specified for pod {pod}"
            ))),
            several => {
                let mut text = format!(
                    "a container name must be specified for pod {pod}, choose one of: [{}]",
                    several.join(" ")
                );
                if !init.is_empty() {
                    text.extend([" or one of the init containers: [", &init.join(" "), "]"]);
                }
                Err(Failure::bad_request(text))
            }
        };
    };
    let ephemeral = spec.ephemeral_containers.iter().flatten().any(|own| own.name == wanted);
    if ephemeral || plain.iter().chain(&init).any(|own| own == wanted) {
        return Ok(wanted.to_owned());
    }
    Err(Failure::bad_request(format!(
        "container {wanted} is not valid for pod {pod}"
    )))
}

fn unknown(addresses: &[NodeAddress]) -> Failure {
    let known = addresses
        .iter()
        .map(|known| format!("{{{} {}}}", known.type_, known.address));
    let known = known.collect::<Vec<_>>().join(" ");
    Failure::Unexpected {
        message: format!("no preferred addresses found; known addresses: [{known}]"),
    }
}

/// The node's addresses, without its names.
pub(crate) fn addresses(store: &Store, node: &str) -> Result<Vec<IpAddr>, Failure> {
    let all = status(store, node)?.addresses.unwrap_or_default();
    let all = all.iter().filter_map(|address| address.address.parse::<IpAddr>().ok());
    Ok(all.map(|address| address.to_canonical()).collect())
}

fn status(store: &Store, node: &str) -> Result<NodeStatus, Failure> {
    let missing = || Failure::NotFound {
        target: crate::request::failure::Target {
            resource: crate::request::failure::GroupResource::new("", "nodes"),
            name: node.to_owned(),
        },
    };
    let key = Key::new("", "nodes", "", node).map_err(|_error| missing())?;
    let entry = store.get(&key).ok_or_else(missing)?;
    let node = serde_json::from_slice::<Node>(&entry.bytes).map_err(Failure::internal)?;
    Ok(node.status.unwrap_or_default())
}

/// Address of the node's agent.
pub(crate) fn of_node(store: &Store, node: &str) -> Result<Agent, Failure> {
    let status = status(store, node)?;
    let addresses = status.addresses.unwrap_or_default();
    let preferred = ["InternalIP", "Hostname", "InternalDNS", "ExternalIP", "ExternalDNS"];
    let address = preferred
        .iter()
        .find_map(|kind| addresses.iter().find(|address| address.type_ == *kind))
        .map(|address| address.address.clone())
        .ok_or_else(|| unknown(&addresses))?;
    let port = status
        .daemon_endpoints
        .and_then(|endpoints| endpoints.kubelet_endpoint)
        .map(|endpoint| endpoint.port);
    let port = port
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port > 0)
        .unwrap_or(AGENT_PORT);
    Ok(Agent {
        node: node.to_owned(),
        address,
        port,
    })
}
