use std::collections::BTreeMap;

use serde_json::json;

use super::*;

#[derive(Default)]
struct Listed {
    incomplete: bool,
    services: BTreeMap<Name, Arc<Service>>,
    slices: BTreeMap<Name, Arc<Slice>>,
}

impl Listed {
    fn with(mut self, name: &str, spec: &serde_json::Value, endpoints: &serde_json::Value) -> Self {
        let service = json!({"metadata": {"namespace": "shop", "name": name}, "spec": spec});
        let (place, service) = Service::new(&serde_json::from_value(service).unwrap());
        self.services.insert(place, Arc::new(service));
        let metadata = json!({"namespace": "shop", "name": name, "labels": {"kubernetes.io/service-name": name}});
        let slice = json!({"addressType": "IPv4", "endpoints": endpoints, "metadata": metadata,
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]});
        let (place, slice) = Slice::new(&serde_json::from_value(slice).unwrap(), "n1").unwrap();
        self.slices.insert(place, Arc::new(slice));
        self
    }

    fn shop() -> Self {
        let ports =
            json!([{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
        Self::default()
            .with(
                "web",
                &json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"], "ports": ports}),
                &json!([{"addresses": ["10.244.0.5"]}]),
            )
            .with(
                "db",
                &json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": ports}),
                &json!([{"addresses": ["10.244.0.5"], "hostname": "db-0", "conditions": {"ready": true}},
                    {"addresses": ["10.244.0.6"]},
                    {"addresses": ["10.244.0.9"], "hostname": "db-2", "conditions": {"ready": false}}]),
            )
            .with("none", &json!({"clusterIP": "None", "ports": ports}), &json!([]))
            .with(
                "out",
                &json!({"type": "ExternalName", "externalName": "Www.Example.ORG."}),
                &json!([]),
            )
    }
}

impl Directory for Listed {
    fn is_complete(&self) -> bool {
        !self.incomplete
    }

    fn service(&self, name: &Name) -> Option<Arc<Service>> {
        self.services.get(name).cloned()
    }

    fn slices(&self, service: &Name) -> Vec<Arc<Slice>> {
        self.slices.get(service).cloned().into_iter().collect()
    }

    fn has_namespace(&self, namespace: &str) -> bool {
        self.services.keys().any(|own| own.namespace() == namespace)
    }

    fn at(&self, address: IpAddr) -> Vec<Name> {
        let has = |name: &&Name| {
            let slices = &self.slices[*name];
            let endpoints = slices.endpoints.iter();
            self.services[*name].cluster_ips.contains(&address)
                || endpoints.into_iter().any(|endpoint| endpoint.address == address)
        };
        self.services.keys().filter(has).cloned().collect()
    }
}

fn shown(name: &str, kind: Kind) -> String {
    match answer(&Listed::shop(), "cluster.local", name, kind) {
        Answer::Foreign => "forwarded".to_owned(),
        Answer::Unknown => "unknown".to_owned(),
        Answer::NoSuchName => "no such name".to_owned(),
        Answer::Records { own, additional } => {
            let own = own.into_iter().map(|data| match data {
                Data::Address(address) => address.to_string(),
                Data::Alias(name) => format!("alias {name}"),
                Data::Pointer(name) => format!("pointer {name}"),
                Data::Location { weight, port, target } => format!("0 {weight} {port} {target}"),
                Data::Text(text) => format!("{text:?}"),
            });
            let additional = additional
                .into_iter()
                .map(|(name, address)| format!("+ {name} {address}"));
            own.chain(additional).collect::<Vec<_>>().join("; ")
        }
    }
}

#[test]
fn names_are_answered_as_the_specification_says() {
    let cases = [
        ("web.shop.svc.cluster.local", Kind::A, "10.96.0.7"),
        ("web.shop.svc.cluster.local", Kind::Aaaa, "fd00::7"),
        ("web.shop.svc.cluster.local", Kind::Other, ""),
        (
            "_http._tcp.web.shop.svc.cluster.local",
            Kind::Srv,
            "0 100 80 web.shop.svc.cluster.local; + web.shop.svc.cluster.local 10.96.0.7; + web.shop.svc.cluster.local fd00::7",
        ),
        ("_http._udp.web.shop.svc.cluster.local", Kind::Srv, "no such name"),
        ("_tcp.web.shop.svc.cluster.local", Kind::Srv, ""),
        ("_sctp.web.shop.svc.cluster.local", Kind::A, "no such name"),
        ("10-244-0-5.web.shop.svc.cluster.local", Kind::A, "10.244.0.5"),
        ("db.shop.svc.cluster.local", Kind::A, "10.244.0.5; 10.244.0.6"),
        ("db.shop.svc.cluster.local", Kind::Aaaa, ""),
        ("db-0.db.shop.svc.cluster.local", Kind::A, "10.244.0.5"),
        ("db-2.db.shop.svc.cluster.local", Kind::A, "no such name"),
        ("10-244-0-6.db.shop.svc.cluster.local", Kind::A, "10.244.0.6"),
        (
            "_dns._udp.db.shop.svc.cluster.local",
            Kind::Srv,
            "0 50 53 10-244-0-6.db.shop.svc.cluster.local; 0 50 53 db-0.db.shop.svc.cluster.local; \
             + 10-244-0-6.db.shop.svc.cluster.local 10.244.0.6; + db-0.db.shop.svc.cluster.local 10.244.0.5",
        ),
        ("none.shop.svc.cluster.local", Kind::A, "no such name"),
        ("out.shop.svc.cluster.local", Kind::A, "alias www.example.org"),
        ("x.out.shop.svc.cluster.local", Kind::A, "no such name"),
        ("10-244-0-5.shop.pod.cluster.local", Kind::A, "10.244.0.5"),
        ("fd00--5.shop.pod.cluster.local", Kind::Aaaa, "fd00::5"),
        ("what.shop.pod.cluster.local", Kind::A, "no such name"),
        (
            "5.0.244.10.in-addr.arpa",
            Kind::Ptr,
            "pointer db-0.db.shop.svc.cluster.local",
        ),
        (
            "7.0.96.10.in-addr.arpa",
            Kind::Ptr,
            "pointer web.shop.svc.cluster.local",
        ),
        ("8.8.8.8.in-addr.arpa", Kind::Ptr, "forwarded"),
        ("96.10.in-addr.arpa", Kind::Ptr, "forwarded"),
        (
            "7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa",
            Kind::Ptr,
            "pointer web.shop.svc.cluster.local",
        ),
        ("dns-version.cluster.local", Kind::Txt, "\"1.1.0\""),
        ("cluster.local", Kind::A, ""),
        ("shop.svc.cluster.local", Kind::A, ""),
        ("void.svc.cluster.local", Kind::A, "no such name"),
        ("a.b.c.d.e.svc.cluster.local", Kind::A, "no such name"),
        ("other.cluster.local", Kind::A, "no such name"),
        ("notcluster.local", Kind::A, "forwarded"),
        ("example.org", Kind::A, "forwarded"),
    ];
    for (name, kind, expected) in cases {
        assert_eq!(shown(name, kind), expected, "{name} {kind:?}");
    }
}

#[test]
fn no_name_is_absent_before_all_are_known() {
    let listed = Listed {
        incomplete: true,
        ..Listed::default()
    };
    let asked = |name, kind| answer(&listed, "cluster.local", name, kind);
    assert_eq!(asked("web.shop.svc.cluster.local", Kind::A), Answer::Unknown);
    assert_eq!(asked("shop.svc.cluster.local", Kind::A), Answer::Unknown);
    assert_eq!(asked("7.0.96.10.in-addr.arpa", Kind::Ptr), Answer::Unknown);
    assert_eq!(asked("example.org", Kind::A), Answer::Foreign);
}

#[test]
fn labels_of_addresses_do_not_end_with_a_dash() {
    let slice = json!({"addressType": "IPv6", "endpoints": [{"addresses": ["fd00::5"]}, {"addresses": ["fd00:1::"]}],
        "metadata": {"namespace": "shop", "name": "s", "labels": {"kubernetes.io/service-name": "web"}}});
    let (_, slice) = Slice::new(&serde_json::from_value(slice).unwrap(), "n1").unwrap();
    let labels: Vec<String> = slice.endpoints.iter().map(label).collect();
    assert_eq!(labels, ["fd00--5", "fd00-1--0"]);
}
