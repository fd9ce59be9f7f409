//! Service: one address for a set of pods. The rules of the kind are here; the server allocates
//! addresses and node ports.

pub mod families;
mod update;
pub mod validation;
mod warnings;

use k8s_openapi::api::core::v1::{LoadBalancerStatus, Service, ServicePort, ServiceSpec, ServiceStatus};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::kind::{Field, Kind, Subresource, Updates};
use crate::table::{self, Column, age_column, or};
use crate::value::invalid::Invalid;
use crate::value::names::Rule;
use crate::workload::pod::defaults::text;

impl Kind for Service {
    const ANSWERS_DELETED: bool = true;
    const UPDATES: Updates = Updates::CREATE;
    const SHORT_NAMES: &'static [&'static str] = &["svc"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Proxy, Subresource::Status];
    const NAME: Rule = Rule::Label;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Type", "core.v1.ServiceSpec.type", |service, _| kind(service).into()),
        Column::text("Cluster-IP", "core.v1.ServiceSpec.clusterIP", |service, _| {
            or(cluster_ip(service), "<none>").into()
        }),
        Column::text("External-IP", "core.v1.ServiceSpec.externalIPs", |service, _| {
            external(service).into()
        }),
        Column::text("Port(s)", "core.v1.ServiceSpec.ports", |service, _| {
            ports(service).into()
        }),
        age_column(),
        Column::wide("Selector", "core.v1.ServiceSpec.selector", |service, _| {
            table::labels(service.spec.as_ref().and_then(|spec| spec.selector.as_ref())).into()
        }),
    ];
    const FIELDS: &'static [Field<Self>] = &[
        Field::new("spec.clusterIP", |service| {
            cluster_ip(service).unwrap_or_default().to_owned()
        }),
        Field::new("spec.type", |service| kind(service).to_owned()),
    ];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        text(&mut spec.session_affinity, "None");
        text(&mut spec.type_, "ClusterIP");
        if spec.session_affinity.as_deref() == Some("ClientIP") {
            let client = spec
                .session_affinity_config
                .get_or_insert_default()
                .client_ip
                .get_or_insert_default();
            client.timeout_seconds.get_or_insert(10800);
        } else {
            spec.session_affinity_config = None;
        }
        for port in spec.ports.iter_mut().flatten() {
            self::port(port);
        }
        if is(spec, "LoadBalancer") {
            spec.allocate_load_balancer_node_ports.get_or_insert(true);
        }
        if is_reachable_from_outside(spec) {
            text(&mut spec.external_traffic_policy, "Cluster");
        }
        if needs_cluster_ip(spec) {
            text(&mut spec.internal_traffic_policy, "Cluster");
            spec.cluster_ip = spec.cluster_ip.take().filter(|address| !address.is_empty());
        }
        let status = self.status.get_or_insert_default();
        let balancer = status.load_balancer.get_or_insert_default();
        for point in balancer.ingress.iter_mut().flatten() {
            if point.ip.as_ref().is_some_and(|ip| !ip.is_empty()) {
                point.ip_mode.get_or_insert_with(|| "VIP".to_owned());
            }
        }
    }

    fn prepare_create(&mut self) {
        self.status = Some(ServiceStatus {
            load_balancer: Some(LoadBalancerStatus::default()),
            ..ServiceStatus::default()
        });
        if let Some(spec) = &mut self.spec {
            update::agree(spec, None);
        }
    }

    fn prepare_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
        if let (Some(new), Some(old)) = (&mut self.spec, &old.spec) {
            update::prepare(new, old);
        }
        let balanced = self.spec.as_ref().is_some_and(|spec| is(spec, "LoadBalancer"));
        if let (Some(status), false) = (&mut self.status, balanced) {
            status.load_balancer = Some(LoadBalancerStatus::default());
        }
    }

    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
    }

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        warnings::of(self)
    }

    fn status_warnings(&self) -> Vec<String> {
        warnings::of_status(self)
    }

    fn validate(&self) -> Vec<Invalid> {
        let spec = self.spec.as_ref();
        let mut errors = spec.map_or_else(Vec::new, |spec| validation::validate(spec, None));
        validation::annotations(&mut errors, self, None);
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        match (&self.spec, &old.spec) {
            (Some(new), Some(before)) => {
                let mut errors = validation::validate_update(new, before);
                validation::annotations(&mut errors, self, Some(old));
                errors
            }
            (_, _) => self.validate(),
        }
    }

    fn validate_status(&self, _old: &Self) -> Vec<Invalid> {
        validation::validate_status(self)
    }
}

fn is(spec: &ServiceSpec, kind: &str) -> bool {
    spec.type_.as_deref() == Some(kind)
}

/// True if the service has a cluster IP or is headless.
pub fn needs_cluster_ip(spec: &ServiceSpec) -> bool {
    !is(spec, "ExternalName")
}

/// True if the service is headless.
pub fn is_headless(spec: &ServiceSpec) -> bool {
    let first = spec.cluster_ips.as_ref().and_then(|addresses| addresses.first());
    first
        .or(spec.cluster_ip.as_ref())
        .is_some_and(|address| address == "None")
}

/// True if node ports are allocated for the service.
pub fn needs_node_ports(spec: &ServiceSpec) -> bool {
    is(spec, "NodePort") || is(spec, "LoadBalancer") && spec.allocate_load_balancer_node_ports != Some(false)
}

/// True if the service has a health check node port, which tells if a node has endpoints of the
/// service.
pub fn needs_health_port(spec: &ServiceSpec) -> bool {
    is(spec, "LoadBalancer") && spec.external_traffic_policy.as_deref() == Some("Local")
}

fn is_reachable_from_outside(spec: &ServiceSpec) -> bool {
    let external = spec
        .external_ips
        .as_ref()
        .is_some_and(|addresses| !addresses.is_empty());
    is(spec, "NodePort") || is(spec, "LoadBalancer") || is(spec, "ClusterIP") && external
}

fn port(port: &mut ServicePort) {
    text(&mut port.protocol, "TCP");
    let unset = match &port.target_port {
        None => true,
        Some(IntOrString::Int(number)) => *number == 0,
        Some(IntOrString::String(name)) => name.is_empty(),
    };
    if unset {
        port.target_port = Some(IntOrString::Int(port.port));
    }
    port.node_port = port.node_port.filter(|number| *number != 0);
}

fn kind(service: &Service) -> &str {
    service
        .spec
        .as_ref()
        .and_then(|spec| spec.type_.as_deref())
        .unwrap_or_default()
}

fn cluster_ip(service: &Service) -> Option<&str> {
    service.spec.as_ref()?.cluster_ip.as_deref()
}

fn external(service: &Service) -> String {
    let Some(spec) = &service.spec else {
        return "<none>".to_owned();
    };
    let own: Vec<&str> = spec.external_ips.iter().flatten().map(String::as_str).collect();
    match spec.type_.as_deref() {
        Some("ExternalName") => spec.external_name.clone().unwrap_or_default(),
        Some("LoadBalancer") => {
            let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
            let points = balancer.and_then(|balancer| balancer.ingress.as_ref());
            let points = points
                .into_iter()
                .flatten()
                .map(|at| (at.ip.as_deref(), at.hostname.as_deref()));
            let mut all = table::addresses(points);
            all.extend(own);
            or(Some(&all.join(",")), "<pending>").to_owned()
        }
        _ => or(Some(&own.join(",")), "<none>").to_owned(),
    }
}

fn ports(service: &Service) -> String {
    let ports = service.spec.iter().filter_map(|spec| spec.ports.as_ref()).flatten();
    let texts: Vec<String> = ports
        .map(|port| {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            match port.node_port.filter(|number| *number > 0) {
                Some(node_port) => format!("{}:{node_port}/{protocol}", port.port),
                None => format!("{}/{protocol}", port.port),
            }
        })
        .collect();
    or(Some(&texts.join(",")), "<none>").to_owned()
}
