//! Ingress: routing rules for external HTTP traffic to Services.

use k8s_openapi::api::networking::v1::{Ingress, IngressSpec};

mod validation;

use crate::kind::{Kind, Subresource};
use crate::table::{self, Column, age_column};
use crate::value::invalid::Invalid;
use crate::workload::warnings::has_annotation;

impl Kind for Ingress {
    const SHORT_NAMES: &'static [&'static str] = &["ing"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text(
            "Class",
            "The name of the IngressClass resource that should be used for additional configuration",
            |ingress, _| {
                let spec = ingress.spec.as_ref();
                let class = spec.and_then(|spec| spec.ingress_class_name.as_deref());
                class.unwrap_or("<none>").into()
            },
        ),
        Column::text(
            "Hosts",
            "Hosts that incoming requests are matched against before the ingress rule",
            |ingress, _| hosts(ingress.spec.as_ref()).into(),
        ),
        Column::text(
            "Address",
            "Address is a list containing ingress points for the load-balancer",
            |ingress, _| address(ingress).into(),
        ),
        Column::text("Ports", "Ports of TLS configurations that open", |ingress, _| {
            let tls = ingress.spec.as_ref().and_then(|spec| spec.tls.as_ref());
            tls.map_or("80", |tls| if tls.is_empty() { "80" } else { "80, 443" })
                .into()
        }),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        self.spec.get_or_insert_default();
    }

    fn prepare_create(&mut self) {
        self.status = Some(no_status());
    }

    crate::kept_apart!();

    fn warnings(&self, old: Option<&Self>) -> Vec<String> {
        let class = self.spec.as_ref().and_then(|spec| spec.ingress_class_name.as_ref());
        let is_old = has_annotation(&self.metadata, "kubernetes.io/ingress.class") && class.is_none();
        let message =
            "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead";
        (is_old && old.is_none())
            .then(|| message.to_owned())
            .into_iter()
            .collect()
    }

    fn status_warnings(&self) -> Vec<String> {
        validation::status_warnings(self)
    }

    fn validate(&self) -> Vec<Invalid> {
        validation::create(self)
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let spec = self.spec.clone().unwrap_or_default();
        validation::validate(&spec, old.spec.as_ref())
    }

    fn validate_status(&self, old: &Self) -> Vec<Invalid> {
        validation::status(self, old)
    }

    crate::spec_alone!();
}

/// `status: {loadBalancer: {}}`, as upstream writes it.
fn no_status() -> k8s_openapi::api::networking::v1::IngressStatus {
    k8s_openapi::api::networking::v1::IngressStatus {
        load_balancer: Some(k8s_openapi::api::networking::v1::IngressLoadBalancerStatus::default()),
    }
}

/// `*`, or up to three hosts and, if rules follow the third, the number of rules less three.
fn hosts(spec: Option<&IngressSpec>) -> String {
    let rules = spec.and_then(|spec| spec.rules.as_deref()).unwrap_or_default();
    let mut hosts: Vec<&str> = Vec::new();
    let mut more = false;
    for rule in rules {
        more |= hosts.len() == 3;
        hosts.extend(rule.host.as_deref().filter(|host| !more && !host.is_empty()));
    }
    match (hosts.is_empty(), more) {
        (true, _) => "*".to_owned(),
        (false, true) => format!("{} + {} more...", hosts.join(","), rules.len().saturating_sub(3)),
        (false, false) => hosts.join(","),
    }
}

fn address(ingress: &Ingress) -> String {
    let status = ingress.status.as_ref();
    let balancer = status.and_then(|status| status.load_balancer.as_ref());
    let points = balancer
        .and_then(|balancer| balancer.ingress.as_deref())
        .unwrap_or_default();
    let points = points
        .iter()
        .map(|point| (point.ip.as_deref(), point.hostname.as_deref()));
    table::addresses(points).join(",")
}
