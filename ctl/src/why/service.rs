//! Findings for a Service: its address, its endpoints, and the pods that should be among them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::finding::Finding;
use super::{pod, told, verdict, warnings};
use crate::client::api::{Api, text_at, with_query};
use crate::client::pods::items;
use crate::terminal;

/// Maximum number of pods that are explained; others are likely to have the same problem.
const EXPLAINED: usize = 3;
/// Label of Services that another proxy serves.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// Service with what it leads to.
pub(super) struct Known {
    pub(super) service: Value,
    /// Its EndpointSlices.
    slices: Vec<Value>,
    /// Pods that it selects; `None` without a selector.
    pods: Option<Vec<Value>>,
}

/// Endpoint for one of a Service's ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Endpoint {
    pub(super) address: String,
    pub(super) port: u16,
    /// Name of its pod, or nothing.
    pub(super) pod: String,
    pub(super) node: String,
    pub(super) ready: bool,
}

/// Returns whether there is a problem.
pub(super) async fn run(api: &Api, service: Value) -> anyhow::Result<bool> {
    let selector = format!("involvedObject.uid={}", text_at(&service, "/metadata/uid"));
    let namespace = text_at(&service, "/metadata/namespace").to_owned();
    let events = warnings(api, &namespace, &selector).await?;
    let events: Vec<&Value> = events.iter().collect();
    let known = Known::read(api, service).await?;
    let findings = known.explain();
    let trouble = findings.iter().any(|finding| finding.trouble);
    terminal::line(terminal::bold(&format!("{}: {}", known.headline(), verdict(trouble))))?;
    told(&findings, &events)?;
    if trouble {
        for own in known.unready().into_iter().take(EXPLAINED) {
            terminal::line("")?;
            pod::tell(api, own).await?;
        }
    }
    Ok(trouble)
}

impl Known {
    pub(super) async fn read(api: &Api, service: Value) -> anyhow::Result<Self> {
        let (namespace, name) = (
            text_at(&service, "/metadata/namespace"),
            text_at(&service, "/metadata/name"),
        );
        let of = format!("kubernetes.io/service-name={name}");
        let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
        let slices = api
            .get(&with_query(&path, &[("labelSelector", Some(of.as_str()))]))
            .await?;
        let slices = items(&slices).cloned().collect();
        let pods = match selector(&service) {
            None => None,
            Some(labels) => {
                let path = format!("/api/v1/namespaces/{namespace}/pods");
                let found = api
                    .get(&with_query(&path, &[("labelSelector", Some(labels.as_str()))]))
                    .await?;
                Some(items(&found).cloned().collect())
            }
        };
        Ok(Self { service, slices, pods })
    }

    fn headline(&self) -> String {
        let (namespace, name) = (
            text_at(&self.service, "/metadata/namespace"),
            text_at(&self.service, "/metadata/name"),
        );
        let kind = text_at(&self.service, "/spec/type");
        let address = match text_at(&self.service, "/spec/clusterIP") {
            "" => text_at(&self.service, "/spec/externalName"),
            "None" => "headless",
            address => address,
        };
        format!("Service {namespace}/{name} ({kind}, {address})")
    }

    pub(super) fn ports(&self) -> impl Iterator<Item = &Value> {
        let ports = self.service.pointer("/spec/ports").and_then(Value::as_array);
        ports.into_iter().flatten()
    }

    /// Returns the endpoints for a port of the Service.
    pub(super) fn endpoints(&self, port: &Value) -> Vec<Endpoint> {
        let mut found = BTreeSet::new();
        for slice in self
            .slices
            .iter()
            .filter(|slice| text_at(slice, "/addressType") != "FQDN")
        {
            let mut ports = slice.get("ports").and_then(Value::as_array).into_iter().flatten();
            let same =
                |own: &&Value| text_at(own, "/name") == text_at(port, "/name") && protocol(own) == protocol(port);
            let Some(number) = ports.find(same).and_then(number) else {
                continue;
            };
            let endpoints = slice.get("endpoints").and_then(Value::as_array).into_iter().flatten();
            for endpoint in endpoints {
                let address = text_at(endpoint, "/addresses/0").to_owned();
                found.insert(Endpoint {
                    address,
                    port: number,
                    pod: text_at(endpoint, "/targetRef/name").to_owned(),
                    node: text_at(endpoint, "/nodeName").to_owned(),
                    ready: is_ready(endpoint),
                });
            }
        }
        found.into_iter().collect()
    }

    /// Endpoints that are ready, whatever their ports.
    fn ready(&self) -> impl Iterator<Item = &Value> {
        let all = self.slices.iter().flat_map(|slice| {
            let endpoints = slice.get("endpoints").and_then(Value::as_array);
            endpoints.into_iter().flatten()
        });
        all.filter(|own| is_ready(own))
    }

    /// Pods that it selects and that are not among its ready endpoints.
    fn unready(&self) -> Vec<&Value> {
        let ready: BTreeSet<&str> = self.ready().map(|own| text_at(own, "/targetRef/name")).collect();
        let is_out = |own: &&Value| !ready.contains(text_at(own, "/metadata/name"));
        self.pods.iter().flatten().filter(is_out).collect()
    }

    /// Returns all findings, in the order in which a client's connection meets them.
    pub(super) fn explain(&self) -> Vec<Finding> {
        let kind = text_at(&self.service, "/spec/type");
        if kind == "ExternalName" {
            let name = text_at(&self.service, "/spec/externalName");
            let finding = Finding::note(format!(
                "It is only another name for {name}: clients ask that host itself."
            ));
            return vec![finding];
        }
        let mut found = Vec::new();
        let deleted = text_at(&self.service, "/metadata/deletionTimestamp");
        if !deleted.is_empty() {
            found.push(Finding::note(format!("It is being deleted, since {deleted}.")));
        }
        let labels = self.service.pointer("/metadata/labels");
        if let Some(proxy) = labels.and_then(|labels| labels.get(PROXY_NAME)).and_then(Value::as_str) {
            let finding = Finding::note(format!("Another proxy serves it: {proxy}."));
            found.push(finding.fact(format!("The agents leave Services with the label {PROXY_NAME} alone.")));
        }
        found.extend(self.balancer());
        found.extend(self.selection());
        if found.iter().all(|finding| !finding.trouble) {
            found.extend(self.ports().filter_map(|port| self.port(port)));
            found.extend(self.locality());
        }
        found
    }

    fn balancer(&self) -> Option<Finding> {
        let ingress = self.service.pointer("/status/loadBalancer/ingress");
        let has_one = ingress.and_then(Value::as_array).is_some_and(|all| !all.is_empty());
        if text_at(&self.service, "/spec/type") != "LoadBalancer" || has_one {
            return None;
        }
        let finding = Finding::trouble("It has no address of a load balancer (status.loadBalancer).");
        Some(match text_at(&self.service, "/spec/loadBalancerClass") {
            "" => finding.advise(
                "see its warnings; without any, give the cluster addresses: `skiff up --load-balancer-addresses nodes`, or ranges",
            ),
            class => finding.advise(format!("see whether the controller of the class {class} runs")),
        })
    }

    /// Reports missing endpoints, and pods that are not ready.
    fn selection(&self) -> Option<Finding> {
        let ready = self.ready().count();
        let Some(pods) = &self.pods else {
            return (ready == 0).then(|| {
                Finding::trouble("It has no selector, and no ready endpoint was made by hand.").advise(
                    "give it spec.selector, or create an EndpointSlice with the label kubernetes.io/service-name",
                )
            });
        };
        let labels = selector(&self.service).unwrap_or_default();
        if pods.is_empty() {
            let finding = Finding::trouble(format!(
                "No pod of its namespace has the labels that it selects: {labels}."
            ));
            return Some(finding.advise("compare spec.selector with `kubectl get pods --show-labels`"));
        }
        if ready == 0 {
            let finding = Finding::trouble(format!("None of its {} pods is a ready endpoint.", pods.len()));
            return Some(finding.advise("connections are refused until one is: see its pods below"));
        }
        let unready = self.unready().len();
        (unready > 0).then(|| {
            let finding = Finding::note(format!("{unready} of its {} pods get no connections.", pods.len()));
            finding.advise("they are not ready: skiff why pod/NAME")
        })
    }

    /// Reports a port to which no endpoint belongs, or that its pods do not mention.
    fn port(&self, port: &Value) -> Option<Finding> {
        let shown = number(port).map_or_else(|| "?".to_owned(), |number| number.to_string());
        let target = port.get("targetPort");
        if !self.endpoints(port).iter().any(|endpoint| endpoint.ready) {
            let finding = Finding::trouble(format!("Its port {shown} leads nowhere: no ready endpoint has it."));
            return Some(match target.and_then(Value::as_str) {
                Some(name) => finding
                    .fact(format!("Its targetPort {name:?} is the name of a container's port."))
                    .advise(
                        "name the port in the pod's containers (ports.name, and the same protocol), or give its number",
                    ),
                None => finding.advise("compare the names and protocols of its ports with those of its EndpointSlices"),
            });
        }
        let wanted = target.and_then(Value::as_u64)?;
        let pods = self.pods.as_ref()?;
        let declared: BTreeSet<u64> = pods.iter().flat_map(declared).collect();
        (!declared.is_empty() && !declared.contains(&wanted)).then(|| {
            let all: Vec<String> = declared.iter().map(u64::to_string).collect();
            Finding::note(format!(
                "Its port {shown} leads to port {wanted}, which no container names."
            ))
            .fact(format!("They name {}.", all.join(", ")))
            .advise("that is allowed; but see whether targetPort is right")
        })
    }

    /// Reports policies by which some nodes do not reach it.
    fn locality(&self) -> Vec<Finding> {
        let nodes: BTreeSet<String> = self
            .ports()
            .flat_map(|port| self.endpoints(port))
            .filter(|endpoint| endpoint.ready && !endpoint.node.is_empty())
            .map(|endpoint| endpoint.node)
            .collect();
        let nodes = nodes.into_iter().collect::<Vec<_>>().join(", ");
        let policies = [
            ("internalTrafficPolicy", "Pods reach it on these nodes only"),
            (
                "externalTrafficPolicy",
                "It is reached from outside by these nodes only",
            ),
        ];
        let local = policies.into_iter().filter(|(field, _)| {
            let own = self.service.get("spec").and_then(|spec| spec.get(*field));
            own.and_then(Value::as_str) == Some("Local")
        });
        let finding = |(field, what): (&str, &str)| {
            Finding::note(format!("{what}: {nodes}.")).fact(format!("Its {field} is Local."))
        };
        local.map(finding).collect()
    }
}

fn is_ready(endpoint: &Value) -> bool {
    endpoint.pointer("/conditions/ready").and_then(Value::as_bool) != Some(false)
}

/// Returns the selector as text; `None` if it selects nothing.
fn selector(service: &Value) -> Option<String> {
    let labels = service.pointer("/spec/selector").and_then(Value::as_object)?;
    let each = labels.iter();
    let each: Vec<String> = each
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    (!each.is_empty()).then(|| each.join(","))
}

/// Number of a port.
pub(super) fn number(port: &Value) -> Option<u16> {
    port.get("port").and_then(Value::as_u64)?.try_into().ok()
}

/// Protocol of a port, TCP by default.
pub(super) fn protocol(port: &Value) -> &str {
    match text_at(port, "/protocol") {
        "" => "TCP",
        protocol => protocol,
    }
}

/// Port numbers that a pod's containers declare.
fn declared(pod: &Value) -> impl Iterator<Item = u64> {
    let containers = ["/spec/containers", "/spec/initContainers"];
    let containers = containers
        .into_iter()
        .flat_map(move |path| pod.pointer(path).and_then(Value::as_array).into_iter().flatten());
    let ports = containers.flat_map(|own| own.get("ports").and_then(Value::as_array).into_iter().flatten());
    ports.filter_map(|port| port.get("containerPort").and_then(Value::as_u64))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Known;

    fn pod(name: &str, port: u16) -> Value {
        let ports = json!([{"name": "http", "containerPort": port}]);
        json!({"metadata": {"name": name}, "spec": {"containers": [{"ports": ports}]}})
    }

    fn slice(ready: bool, port: u16) -> Value {
        json!({"addressType": "IPv4", "ports": [{"name": "", "port": port, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.244.0.5"], "nodeName": "n1", "targetRef": {"name": "web-1"},
                "conditions": {"ready": ready}}]})
    }

    #[test]
    fn a_service_tells_where_its_connections_end() {
        let plain =
            json!({"type": "ClusterIP", "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]});
        let with = |field: &str, value: Value| {
            let mut spec = plain.clone();
            spec[field] = value;
            spec
        };
        let named = json!([{"port": 80, "targetPort": "web"}]);
        let (ready, unready) = (slice(true, 8080), slice(false, 8080));
        let placeholder = json!({"addressType": "IPv4", "ports": null, "endpoints": null});
        let pods = || Some(vec![pod("web-1", 8080)]);
        for (spec, slice, pods, trouble, words) in [
            (plain.clone(), &ready, pods(), false, ""),
            (plain.clone(), &placeholder, Some(vec![]), true, "app=web"),
            (plain.clone(), &unready, pods(), true, "None of its 1 pods"),
            (
                plain.clone(),
                &ready,
                Some(vec![pod("web-1", 80)]),
                false,
                "which no container names",
            ),
            (with("selector", Value::Null), &placeholder, None, true, "no selector"),
            (with("selector", Value::Null), &ready, None, false, ""),
            (with("ports", named), &slice(true, 1), pods(), false, ""),
            (
                with("type", json!("LoadBalancer")),
                &ready,
                pods(),
                true,
                "no address of a load balancer",
            ),
            (
                with("internalTrafficPolicy", json!("Local")),
                &ready,
                pods(),
                false,
                "these nodes only: n1.",
            ),
            (
                json!({"type": "ExternalName", "externalName": "example.org"}),
                &placeholder,
                None,
                false,
                "example.org",
            ),
        ] {
            let known = Known {
                service: json!({"spec": spec}),
                slices: vec![slice.clone()],
                pods,
            };
            let found = known.explain();
            let text: String = found.iter().map(|finding| finding.text(&[])).collect();
            assert_eq!(found.iter().any(|finding| finding.trouble), trouble, "{spec}: {text}");
            assert!(text.contains(words), "{words:?} is not in: {text}");
            assert_eq!(text.is_empty(), words.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_port_that_no_endpoint_has_is_told() {
        let ports = json!([{"name": "a", "port": 80, "targetPort": "web"}]);
        let known = Known {
            service: json!({"spec": {"selector": {"app": "web"}, "ports": ports}}),
            slices: vec![slice(true, 8080)],
            pods: Some(vec![pod("web-1", 8080)]),
        };
        let found = known.explain();
        let text = found[0].text(&[]);
        assert!(found[0].trouble && text.contains("port 80 leads nowhere"), "{text}");
        assert!(text.contains("\"web\" is the name of a container's port"), "{text}");
    }
}
