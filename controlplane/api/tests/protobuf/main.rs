//! Protobuf bodies: output of an independent encoder, malformed bodies, and round trips of every
//! message.

mod examples;
#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod independent;
mod malformed;
#[cfg(test)]
mod newer;
#[cfg(test)]
mod round_trips;
mod stock;

use controlplane_api::protobuf::{self, MAGIC};
use k8s_pb::api::core::v1 as core;
use k8s_pb::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_pb::apimachinery::pkg::runtime::{TypeMeta, Unknown};
use prost::Message as _;
use serde_json::Value;

/// A body as a stock client writes it.
fn body(api_version: &str, kind: &str, message: &impl prost::Message) -> Vec<u8> {
    let unknown = Unknown {
        type_meta: Some(TypeMeta {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_owned()),
        }),
        raw: Some(message.encode_to_vec()),
        content_encoding: Some(String::new()),
        content_type: Some(String::new()),
    };
    let mut body = MAGIC.to_vec();
    body.extend(unknown.encode_to_vec());
    body
}

fn decoded(api_version: &str, kind: &str, message: &impl prost::Message) -> Value {
    let decoded = protobuf::decode(&body(api_version, kind, message)).expect("the body is well-formed");
    assert_eq!(
        (decoded.api_version.as_str(), decoded.kind.as_str()),
        (api_version, kind)
    );
    decoded.json
}

#[expect(clippy::unnecessary_wraps, reason = "prost wants an Option in every field")]
fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn container() -> core::Container {
    use k8s_pb::apimachinery::pkg::api::resource::Quantity;
    use k8s_pb::apimachinery::pkg::util::intstr::IntOrString;
    core::Container {
        name: some("nginx"),
        image: some("nginx:1.14.2"),
        ports: vec![core::ContainerPort {
            name: some(""),
            host_port: Some(0),
            container_port: Some(80),
            protocol: some(""),
            host_ip: some(""),
        }],
        resources: Some(core::ResourceRequirements {
            limits: [("cpu".to_owned(), Quantity { string: some("500m") })].into(),
            ..Default::default()
        }),
        readiness_probe: Some(core::Probe {
            handler: Some(core::ProbeHandler {
                http_get: Some(core::HttpGetAction {
                    path: some("/"),
                    port: Some(IntOrString {
                        r#type: Some(1),
                        int_val: Some(0),
                        str_val: some("http"),
                    }),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            period_seconds: Some(0),
            ..Default::default()
        }),
        stdin: Some(false),
        ..Default::default()
    }
}

fn deployment() -> k8s_pb::api::apps::v1::Deployment {
    use k8s_pb::api::apps::v1 as apps;
    use k8s_pb::apimachinery::pkg::util::intstr::IntOrString;
    apps::Deployment {
        metadata: Some(meta::ObjectMeta {
            name: some("nginx"),
            namespace: some(""),
            uid: some(""),
            generation: Some(0),
            creation_timestamp: Some(meta::Time::default()),
            labels: [
                ("app".to_owned(), "nginx".to_owned()),
                ("empty".to_owned(), String::new()),
            ]
            .into(),
            ..Default::default()
        }),
        spec: Some(apps::DeploymentSpec {
            replicas: Some(0),
            min_ready_seconds: Some(0),
            paused: Some(false),
            strategy: Some(apps::DeploymentStrategy {
                r#type: some("RollingUpdate"),
                rolling_update: Some(apps::RollingUpdateDeployment {
                    max_surge: Some(IntOrString {
                        r#type: Some(0),
                        int_val: Some(-1),
                        str_val: some(""),
                    }),
                    max_unavailable: None,
                }),
            }),
            template: Some(core::PodTemplateSpec {
                metadata: None,
                spec: Some(core::PodSpec {
                    containers: vec![container()],
                    volumes: vec![core::Volume {
                        name: some("data"),
                        volume_source: Some(core::VolumeSource {
                            empty_dir: Some(core::EmptyDirVolumeSource::default()),
                            ..Default::default()
                        }),
                    }],
                    ..Default::default()
                }),
            }),
            ..Default::default()
        }),
        status: Some(apps::DeploymentStatus::default()),
    }
}
