//! Way of a connection from a pod to another pod or a Service: name, Service, endpoints, policies,
//! nodes, and the listening socket, which the pod's node tries from inside the pod.

use anyhow::{Context as _, bail};
use http::Method;
use serde_json::Value;

use super::finding::Finding;
use super::policies::{Connection, Direction, Side, denied};
use super::service::{Endpoint, Known, number, protocol};
use super::{node, told};
use crate::client::api::{Api, is_forbidden, text_at, with_query};
use crate::client::pods::items;
use crate::client::resource::Resources;
use crate::terminal;

/// Maximum number of endpoints that are tried.
const TRIED: usize = 5;

/// Destination of a connection.
struct Destination {
    /// Text for the user.
    shown: String,
    namespace: String,
    /// State that is known before anything is tried.
    findings: Vec<Finding>,
    /// Address of the Service.
    service: Option<(String, u16)>,
    endpoints: Vec<Endpoint>,
    protocol: String,
}

/// Outcome of a connection that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Tried {
    /// Connected after this many microseconds.
    Reached(u64),
    Failed(String),
    Untried,
}

/// Explains the way from a pod to `to`, such as `service/web:80`, in a namespace. Returns whether
/// there is a problem.
pub(super) async fn run(
    api: &Api,
    resources: &Resources,
    pod: &Value,
    to: &str,
    namespace: &str,
) -> anyhow::Result<bool> {
    let (object, port) = to
        .rsplit_once(':')
        .map_or((to, None), |(object, port)| (object, Some(port)));
    let (resource, name) = resources.one(&[object.to_owned()])?;
    let target = api.get(&resource.object(namespace, &name)?).await?;
    let destination = match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => of_pod(&target, port)?,
        ("", "services") => of_service(api, target, port, pod).await?,
        _ => bail!("connections lead to pods and Services: --reach pod/NAME:PORT or service/NAME:PORT"),
    };
    let mut findings: Vec<Finding> = source(pod).into_iter().collect();
    let mut reached = Tried::Untried;
    if findings.is_empty() {
        findings.clone_from(&destination.findings);
        let (more, tried) = walk(api, pod, &destination).await?;
        findings.extend(more);
        reached = tried;
    }
    let trouble = findings.iter().any(|finding| finding.trouble);
    let (own, at) = (text_at(pod, "/metadata/name"), text_at(pod, "/metadata/namespace"));
    let verdict = match (&reached, trouble) {
        (Tried::Reached(_), false) => "it is reached",
        (Tried::Reached(_), true) => "it is reached, but not always",
        (Tried::Failed(_), _) | (Tried::Untried, true) => "it is not reached",
        (Tried::Untried, false) => "nothing keeps it from being reached",
    };
    terminal::line(terminal::bold(&format!(
        "From pod {at}/{own} to {}: {verdict}",
        destination.shown
    )))?;
    told(&findings, &[])?;
    Ok(trouble)
}

/// Reports that the pod itself cannot connect.
fn source(pod: &Value) -> Option<Finding> {
    let name = text_at(pod, "/metadata/name");
    let phase = text_at(pod, "/status/phase");
    let is_lost = text_at(pod, "/status/podIP").is_empty() || phase != "Running";
    is_lost.then(|| {
        Finding::trouble(format!("The pod {name} connects to nothing: its phase is {phase}."))
            .advise(format!("skiff why pod/{name}"))
    })
}

fn of_pod(pod: &Value, port: Option<&str>) -> anyhow::Result<Destination> {
    let (name, namespace) = (text_at(pod, "/metadata/name"), text_at(pod, "/metadata/namespace"));
    let mut findings = Vec::new();
    let ports = container_ports(pod);
    let named = |own: &&&Value| port.is_none_or(|port| text_at(own, "/name") == port);
    let found = match port.map(str::parse::<u16>) {
        Some(Ok(number)) => Some(number),
        Some(Err(_)) | None => ports.iter().find(named).and_then(|own| container_port(own)),
    };
    let found = found.with_context(|| format!("which port of pod/{name}? --reach pod/{name}:PORT"))?;
    let own = ports.iter().find(|own| container_port(own) == Some(found));
    let address = text_at(pod, "/status/podIP").to_owned();
    if address.is_empty() {
        let finding = Finding::trouble(format!("The pod {name} has no address yet."));
        findings.push(finding.advise(format!("skiff why pod/{name}")));
    }
    let endpoint = Endpoint {
        address: address.clone(),
        port: found,
        pod: name.to_owned(),
        node: text_at(pod, "/spec/nodeName").to_owned(),
        ready: true,
    };
    Ok(Destination {
        shown: format!("pod {namespace}/{name}, port {found}"),
        namespace: namespace.to_owned(),
        findings,
        service: None,
        endpoints: if address.is_empty() { Vec::new() } else { vec![endpoint] },
        protocol: own.map_or("TCP", |own| protocol(own)).to_owned(),
    })
}

fn container_ports(pod: &Value) -> Vec<&Value> {
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
    let ports = containers
        .into_iter()
        .flatten()
        .filter_map(|own| own.get("ports")?.as_array());
    ports.flatten().collect()
}

fn container_port(port: &Value) -> Option<u16> {
    port.get("containerPort")?.as_u64()?.try_into().ok()
}

async fn of_service(api: &Api, service: Value, port: Option<&str>, pod: &Value) -> anyhow::Result<Destination> {
    let known = Known::read(api, service).await?;
    let service = &known.service;
    let (name, namespace) = (
        text_at(service, "/metadata/name"),
        text_at(service, "/metadata/namespace"),
    );
    let is_meant = |own: &&Value| {
        port.is_none_or(|port| {
            text_at(own, "/name") == port || number(own).map(|own| own.to_string()).as_deref() == Some(port)
        })
    };
    let found = known.ports().find(is_meant);
    let external = text_at(service, "/spec/type") == "ExternalName";
    if let (Some(port), None, false) = (port, found, external) {
        let all: Vec<String> = known.ports().filter_map(number).map(|own| own.to_string()).collect();
        bail!("service/{name} has no port {port}, but {}", all.join(", "));
    }
    let own = found.and_then(number).unwrap_or_default();
    let mut findings = vec![named(pod, name, namespace)];
    findings.extend(known.explain());
    let mut endpoints = found.map(|port| known.endpoints(port)).unwrap_or_default();
    endpoints.retain(|endpoint| endpoint.ready);
    let address = text_at(service, "/spec/clusterIP");
    let has_address = !matches!(address, "" | "None");
    Ok(Destination {
        shown: format!("service {namespace}/{name}, port {own}"),
        namespace: namespace.to_owned(),
        service: has_address.then(|| (address.to_owned(), own)),
        findings,
        endpoints,
        protocol: found.map_or("TCP", protocol).to_owned(),
    })
}

/// Tells by which name the pod finds the Service.
fn named(pod: &Value, name: &str, namespace: &str) -> Finding {
    let host = pod.pointer("/spec/hostNetwork").and_then(Value::as_bool) == Some(true);
    let policy = text_at(pod, "/spec/dnsPolicy");
    let asks = match policy {
        "ClusterFirst" => !host,
        policy => policy == "ClusterFirstWithHostNet",
    };
    let short = if text_at(pod, "/metadata/namespace") == namespace {
        name.to_owned()
    } else {
        format!("{name}.{namespace}")
    };
    if asks {
        return Finding::note(format!("The pod finds it by the name {short}."));
    }
    let on_host = if host { " on the node's network" } else { "" };
    Finding::note(format!(
        "The pod finds it by its address only, not by the name {short}."
    ))
    .fact(format!(
        "With dnsPolicy {policy}{on_host} it does not ask the cluster's name server."
    ))
    .advise("set dnsPolicy to ClusterFirst, or to ClusterFirstWithHostNet beside hostNetwork")
}

/// Walks the way to each endpoint, and tries it.
async fn walk(api: &Api, pod: &Value, to: &Destination) -> anyhow::Result<(Vec<Finding>, Tried)> {
    let mut found = Vec::new();
    let own = text_at(pod, "/metadata/namespace");
    let mut policies = policies(api, own).await?;
    if to.namespace != own {
        policies.extend(self::policies(api, &to.namespace).await?);
    }
    let mut nodes: Vec<&str> = vec![text_at(pod, "/spec/nodeName")];
    let mut best = Tried::Untried;
    for endpoint in to.endpoints.iter().take(TRIED) {
        let target = match endpoint.pod.as_str() {
            "" => None,
            name => api
                .get(&format!("/api/v1/namespaces/{}/pods/{name}", to.namespace))
                .await
                .ok(),
        };
        let forbidding = match &target {
            Some(target) => forbidden(api, &policies, (pod, target), endpoint.port, &to.protocol).await,
            None => Vec::new(),
        };
        let tried = attempt(api, pod, (&endpoint.address, endpoint.port), &to.protocol).await?;
        if !matches!(best, Tried::Reached(_)) {
            best = tried.clone();
        }
        found.push(judged(endpoint, &tried, &forbidding));
        if !endpoint.node.is_empty() && !nodes.contains(&endpoint.node.as_str()) {
            nodes.push(&endpoint.node);
        }
    }
    for name in nodes.iter().filter(|name| !name.is_empty()) {
        // Without permission to read nodes, these findings are omitted.
        if let Ok(node) = api.get(&format!("/api/v1/nodes/{name}")).await {
            found.extend(node::blocks(&node));
        }
    }
    if let Some((address, port)) = &to.service {
        let tried = attempt(api, pod, (address, *port), &to.protocol).await?;
        found.extend(of_address(&format!("{address}:{port}"), &tried, &best));
        best = tried;
    }
    if best == Tried::Untried && !to.endpoints.is_empty() {
        found.push(Finding::note(if to.protocol == "TCP" {
            "No connection was tried: that takes the right to create nodes/proxy, and an agent that answers.".to_owned()
        } else {
            format!(
                "No connection was tried: that is done for TCP alone, not for {}.",
                to.protocol
            )
        }));
    }
    Ok((found, best))
}

async fn policies(api: &Api, namespace: &str) -> anyhow::Result<Vec<Value>> {
    let path = format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies");
    match api.get(&path).await {
        Ok(all) => Ok(items(&all).cloned().collect()),
        Err(error) if is_forbidden(&error) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns a text for each direction in which policies forbid the connection.
async fn forbidden(
    api: &Api,
    policies: &[Value],
    (from, to): (&Value, &Value),
    port: u16,
    protocol: &str,
) -> Vec<String> {
    let mut labels = Vec::new();
    for pod in [from, to] {
        let path = format!("/api/v1/namespaces/{}", text_at(pod, "/metadata/namespace"));
        let namespace = api.get(&path).await.ok();
        labels.push(namespace.and_then(|namespace| namespace.pointer("/metadata/labels").cloned()));
    }
    let mut labels = labels.iter().map(Option::as_ref);
    let mut namespace = || labels.next().flatten();
    let connection = Connection {
        from: Side {
            pod: from,
            namespace: namespace(),
        },
        to: Side {
            pod: to,
            namespace: namespace(),
        },
        port,
        protocol,
    };
    let directions = [(Direction::Egress, "egress", from), (Direction::Ingress, "ingress", to)];
    let told = directions.into_iter().filter_map(|(direction, name, own)| {
        let names = denied(policies, &connection, direction)?;
        Some(format!(
            "For {name} of pod {} no rule allows it in {}.",
            text_at(own, "/metadata/name"),
            names.join(", ")
        ))
    });
    told.collect()
}

/// Has the pod's node try a connection.
async fn attempt(api: &Api, pod: &Value, (address, port): (&str, u16), protocol: &str) -> anyhow::Result<Tried> {
    if protocol != "TCP" {
        return Ok(Tried::Untried);
    }
    let to = if address.contains(':') {
        format!("[{address}]:{port}")
    } else {
        format!("{address}:{port}")
    };
    let path = format!(
        "/api/v1/nodes/{}/proxy/reach/{}/{}",
        text_at(pod, "/spec/nodeName"),
        text_at(pod, "/metadata/namespace"),
        text_at(pod, "/metadata/name")
    );
    let path = with_query(&path, &[("to", Some(to.as_str()))]);
    Ok(match api.send(Method::POST, &path, "application/json", None).await {
        Ok(answer) => match answer.get("error").and_then(Value::as_str) {
            Some(error) => Tried::Failed(error.to_owned()),
            None => Tried::Reached(answer.get("micros").and_then(Value::as_u64).unwrap_or_default()),
        },
        Err(_) => Tried::Untried,
    })
}

/// Explains the outcome at an endpoint.
fn judged(endpoint: &Endpoint, tried: &Tried, forbidding: &[String]) -> Finding {
    let (port, pod) = (endpoint.port, &endpoint.pod);
    let address = if endpoint.address.contains(':') {
        format!("[{}]:{port}", endpoint.address)
    } else {
        format!("{}:{port}", endpoint.address)
    };
    let place = if pod.is_empty() {
        address
    } else {
        format!("{address} (pod {pod})")
    };
    let with = |finding: Finding| {
        forbidding
            .iter()
            .fold(finding, |finding, text| finding.fact(text.as_str()))
    };
    match tried {
        Tried::Reached(micros) => {
            let finding = with(Finding::note(format!(
                "{place} accepts connections, after {micros} µs."
            )));
            if forbidding.is_empty() {
                finding
            } else {
                finding.advise("nothing enforces NetworkPolicies here: see --network-policies of the node's agent")
            }
        }
        Tried::Failed(error) if error == "connection refused" => Finding::trouble(format!(
            "Nothing listens at {place}: the connection is refused."
        ))
        .advise("have its program listen at that port, and at all addresses (0.0.0.0 or ::), not only at the loopback"),
        Tried::Failed(_) | Tried::Untried if !forbidding.is_empty() => with(Finding::trouble(format!(
            "NetworkPolicies forbid connections to {place}."
        )))
        .advise("allow it by a rule of one of these policies, or of another one"),
        Tried::Failed(error) => Finding::trouble(format!("No connection to {place}: {error}."))
            .advise("packets are lost on the way: see the nodes (skiff why node/NAME), their firewalls and routes"),
        Tried::Untried => Finding::note(format!("{place} is a ready endpoint.")),
    }
}

/// Explains the outcome at a Service's address, beside that at its endpoints.
fn of_address(address: &str, tried: &Tried, endpoints: &Tried) -> Option<Finding> {
    match (tried, endpoints) {
        (Tried::Reached(micros), _) => Some(Finding::note(format!(
            "Its address {address} accepts connections, after {micros} µs."
        ))),
        (Tried::Failed(error), Tried::Reached(_)) => {
            let finding = Finding::trouble(format!(
                "Its address {address} leads nowhere, though endpoints are reached: {error}."
            ));
            Some(finding.advise("see whether the node's agent serves Services (--service-proxy), and its log"))
        }
        // The endpoints tell why.
        (Tried::Failed(_), Tried::Failed(_) | Tried::Untried) | (Tried::Untried, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Endpoint, Tried, judged, named, of_address, of_pod, source};

    #[test]
    fn the_way_ends_where_the_connection_does() {
        let endpoint = Endpoint {
            address: "10.244.0.6".to_owned(),
            port: 80,
            pod: "b".to_owned(),
            node: "n1".to_owned(),
            ready: true,
        };
        let policy = ["For ingress of pod b no rule allows it in closed.".to_owned()];
        let refused = Tried::Failed("connection refused".to_owned());
        let late = Tried::Failed("i/o timeout".to_owned());
        for (tried, forbidding, trouble, words) in [
            (&Tried::Reached(200), &[][..], false, "10.244.0.6:80 (pod b) accepts"),
            (&Tried::Reached(200), &policy[..], false, "nothing enforces"),
            (&refused, &[], true, "Nothing listens at 10.244.0.6:80"),
            (&late, &[], true, "i/o timeout"),
            (&late, &policy[..], true, "in closed."),
            (&Tried::Untried, &policy[..], true, "NetworkPolicies forbid"),
            (&Tried::Untried, &[], false, "ready endpoint"),
        ] {
            let found = judged(&endpoint, tried, forbidding);
            let text = found.text(&[]);
            assert!(
                found.trouble == trouble && text.contains(words),
                "{words:?} is not in: {text}"
            );
        }
        let found = of_address("10.96.0.7:80", &late, &Tried::Reached(1)).unwrap();
        assert!(found.trouble && found.text(&[]).contains("--service-proxy"));
        assert_eq!(of_address("10.96.0.7:80", &refused, &refused), None);
    }

    #[test]
    fn a_pods_port_is_found_by_its_name_and_a_service_by_its() {
        let ports = json!([{"name": "web", "containerPort": 8080}, {"containerPort": 53, "protocol": "UDP"}]);
        let mut pod = json!({"metadata": {"name": "b", "namespace": "shop"},
            "spec": {"dnsPolicy": "ClusterFirst", "containers": [{"ports": ports}]},
            "status": {"podIP": "10.244.0.6", "phase": "Running"}});
        for (port, number, protocol) in [
            (None, 8080, "TCP"),
            (Some("web"), 8080, "TCP"),
            (Some("53"), 53, "UDP"),
            (Some("9"), 9, "TCP"),
        ] {
            let found = of_pod(&pod, port).unwrap();
            let [endpoint] = &*found.endpoints else {
                panic!("{port:?}")
            };
            assert_eq!((endpoint.port, found.protocol.as_str()), (number, protocol));
        }
        assert!(of_pod(&pod, Some("other")).is_err());
        assert_eq!(source(&pod), None);
        assert!(named(&pod, "web", "shop").text(&[]).contains("by the name web."));
        assert!(named(&pod, "web", "other").text(&[]).contains("by the name web.other."));
        pod["spec"]["hostNetwork"] = json!(true);
        assert!(named(&pod, "web", "shop").text(&[]).contains("ClusterFirstWithHostNet"));
        pod["status"] = json!({"phase": "Pending"});
        assert!(source(&pod).unwrap().text(&[]).contains("Pending"));
    }
}
