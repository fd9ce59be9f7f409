//! Service: one address for many pods. Stored; no address is allocated and no proxy serves it yet, so `clusterIP` stays
//! empty unless the client set it: an address that nothing answers would be worse than none.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::invalid::Invalid;
use crate::kind::{Column, Field, Kind, Subresource, Updates};
use crate::names::{self, Rule};
use crate::pod::defaults::text;
use crate::table::{self, age_column, or};
use crate::validation::metadata::labels;
use crate::validation::{self, each, one_of, port_or_name, required};

impl Kind for Service {
    const UPDATES: Updates = Updates::CREATE;
    const SHORT_NAMES: &'static [&'static str] = &["svc"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Proxy, Subresource::Status];
    const NAME: Rule = Rule::Label1035;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Type", "How the service is reached.", |service, _| kind(service).into()),
        Column::text("Cluster-IP", "Address inside the cluster.", |service, _| {
            or(cluster_ip(service), "<none>").into()
        }),
        Column::text("External-IP", "Addresses outside the cluster.", |service, _| {
            external(service).into()
        }),
        Column::text("Port(s)", "Ports of the service.", |service, _| ports(service).into()),
        age_column(),
        Column::wide("Selector", "Which pods belong.", |service, _| {
            table::labels(service.spec.as_ref().and_then(|spec| spec.selector.as_ref())).into()
        }),
    ];
    const FIELDS: &'static [Field<Self>] = &[
        Field {
            label: "spec.clusterIP",
            value: |service| cluster_ip(service).unwrap_or_default().to_owned(),
        },
        Field {
            label: "spec.type",
            value: |service| kind(service).to_owned(),
        },
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
        }
        for port in spec.ports.iter_mut().flatten() {
            self::port(port);
        }
        let kind = spec.type_.as_deref().unwrap_or_default();
        if kind == "LoadBalancer" {
            spec.allocate_load_balancer_node_ports.get_or_insert(true);
        }
        if kind == "NodePort" || kind == "LoadBalancer" {
            text(&mut spec.external_traffic_policy, "Cluster");
        }
        if kind != "ExternalName" {
            inside(spec);
        }
    }

    crate::spec_and_status!();

    fn validate(&self) -> Vec<Invalid> {
        let Some(spec) = &self.spec else {
            return vec![Invalid::required("spec", "")];
        };
        let mut errors = Vec::new();
        let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
        one_of(&mut errors, "spec.type", spec.type_.as_deref(), &kinds);
        one_of(
            &mut errors,
            "spec.sessionAffinity",
            spec.session_affinity.as_deref(),
            &["ClientIP", "None"],
        );
        errors.extend(labels(spec.selector.as_ref(), "spec.selector"));
        let ports = spec.ports.as_deref().unwrap_or_default();
        let headless = spec.cluster_ip.as_deref() == Some("None");
        if spec.type_.as_deref() == Some("ExternalName") {
            let name = spec.external_name.as_deref().unwrap_or_default();
            if required(&mut errors, "spec.externalName", Some(name)) {
                each(&mut errors, "spec.externalName", name, names::dns1123_subdomain(name));
            }
        } else if ports.is_empty() && !headless {
            errors.push(Invalid::required("spec.ports", ""));
        }
        if let Some(address) = spec
            .cluster_ip
            .as_deref()
            .filter(|address| !address.is_empty() && *address != "None")
            && address.parse::<IpAddr>().is_err()
        {
            let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            errors.push(Invalid::value("spec.clusterIPs[0]", address, detail));
        }
        all_ports(&mut errors, ports);
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = self.validate();
        let (Some(new), Some(old)) = (&self.spec, &old.spec) else {
            return errors;
        };
        let inside = |spec: &ServiceSpec| spec.type_.as_deref() != Some("ExternalName");
        let set = old.cluster_ip.as_ref().is_some_and(|address| !address.is_empty());
        if inside(new) && inside(old) && set && new.cluster_ip != old.cluster_ip {
            let value = serde_json::to_string(&new.cluster_ips.clone().unwrap_or_default()).unwrap_or_default();
            errors.push(Invalid::rendered(
                "spec.clusterIPs[0]",
                value,
                "may not change once set",
            ));
        }
        errors
    }
}

fn all_ports(errors: &mut Vec<Invalid>, ports: &[ServicePort]) {
    let (mut named, mut numbered) = (BTreeSet::new(), BTreeSet::new());
    for (index, item) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        let name = item.name.as_deref().unwrap_or_default();
        let field = format!("{path}.name");
        if name.is_empty() {
            if ports.len() > 1 {
                errors.push(Invalid::required(field, ""));
            }
        } else {
            each(errors, &field, name, names::dns1123_label(name));
            if !named.insert(name) {
                errors.push(Invalid::duplicate(field, name));
            }
        }
        validation::port(errors, &format!("{path}.port"), item.port);
        one_of(
            errors,
            &format!("{path}.protocol"),
            item.protocol.as_deref(),
            &["SCTP", "TCP", "UDP"],
        );
        if let Some(target) = &item.target_port {
            port_or_name(errors, &format!("{path}.targetPort"), target);
        }
        if let Some(number) = item
            .node_port
            .filter(|number| *number != 0 && !(30000..=32767).contains(number))
        {
            let detail = "provided port is not in the valid range. The range of valid ports is 30000-32767";
            errors.push(Invalid::value(format!("{path}.nodePort"), number, detail));
        }
        if !numbered.insert((item.port, item.protocol.as_deref())) {
            let value = serde_json::to_string(item).unwrap_or_default();
            let mut error = Invalid::duplicate(path, "");
            error.value = Some(value);
            errors.push(error);
        }
    }
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
}

/// Defaults of a service that has an address inside the cluster.
fn inside(spec: &mut ServiceSpec) {
    text(&mut spec.internal_traffic_policy, "Cluster");
    text(&mut spec.ip_family_policy, "SingleStack");
    if spec.ip_families.as_ref().is_none_or(Vec::is_empty) {
        spec.ip_families = Some(vec!["IPv4".to_owned()]);
    }
    if let Some(address) = spec.cluster_ip.as_ref().filter(|address| !address.is_empty()) {
        let addresses = spec.cluster_ips.get_or_insert_default();
        if addresses.is_empty() {
            addresses.push(address.clone());
        }
    }
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
            let mut all: Vec<&str> = points
                .into_iter()
                .flatten()
                .filter_map(|at| at.ip.as_deref().or(at.hostname.as_deref()))
                .collect();
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
