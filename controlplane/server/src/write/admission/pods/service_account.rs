//! `ServiceAccount`: every pod runs as an account of its namespace, and finds that account's token in its containers.

use std::collections::BTreeSet;
use std::time::Duration;

use api::Object;
use api::pod::as_container;
use k8s_openapi::api::core::v1::{
    ConfigMapProjection, Container, DownwardAPIProjection, DownwardAPIVolumeFile, EnvVar, KeyToPath,
    LocalObjectReference, ObjectFieldSelector, Pod, PodSpec, ProjectedVolumeSource, ServiceAccount,
    ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
};
use store::{Key, Prefix};

use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::write::admission::{Part, Review};

const DEFAULT: &str = "default";
const MIRROR: &str = "kubernetes.io/config.mirror";
const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME: &str = "kube-api-access-";
/// Seconds that the mounted token is promised to live; the odd seven marks it as one that admission asked for.
const TOKEN_SECONDS: i64 = 3607;
/// Time that a pod waits for the account `default`, which a controller creates when it sees the
/// namespace.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Waits briefly for the account of a new pod when it is `default`.
pub(crate) async fn await_account(context: &Context, object: &dyn Object) {
    let Some(pod) = object.as_any().downcast_ref::<Pod>() else {
        return;
    };
    if !context.server.options.admits("ServiceAccount") {
        return;
    }
    let wanted = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
    if wanted.is_some_and(|wanted| !wanted.is_empty() && wanted != DEFAULT) || is_mirror(pod) {
        return;
    }
    let Ok(key) = account_key(context, DEFAULT) else { return };
    if context.store().get(&key).is_some() {
        return;
    }
    let prefix = Prefix::namespace("", "serviceaccounts", &context.info.namespace);
    let arrival = async {
        let mut changes = context.store().watch(&prefix, context.store().revision()).ok()?;
        while context.store().get(&key).is_none() {
            changes.next().await.ok()?;
        }
        Some(())
    };
    // Admission looks the account up itself in either case.
    drop(tokio::time::timeout(TIMEOUT, arrival).await);
}

/// Gives a new pod its account, the account's token and its secrets for pulling images.
pub(in crate::write::admission) fn admit(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    if !review.is_new() {
        return Ok(());
    }
    let Some(pod) = object.as_any_mut().downcast_mut::<Pod>() else {
        return Ok(());
    };
    let refused = if is_mirror(pod) {
        check_mirror(pod)
    } else {
        equip(review.context, pod)
    };
    refused.map_err(|because| review.forbid(object, because))
}

/// Containers that are added later may use only the Secrets that a new pod may.
pub(in crate::write::admission) fn check(review: &mut Review<'_>, object: &dyn Object) -> Result<(), Failure> {
    if review.part != Part::EphemeralContainers {
        return Ok(());
    }
    let spec = object.as_any().downcast_ref::<Pod>().and_then(|pod| pod.spec.as_ref());
    let Some(spec) = spec else { return Ok(()) };
    let context = review.context;
    let refuse = |because| review.forbid(object, because);
    let Some(name) = spec.service_account_name.as_deref().filter(|name| !name.is_empty()) else {
        let pod = object.metadata().name.as_deref().unwrap_or_default();
        let namespace = &context.info.namespace;
        return Err(refuse(format!(
            "no service account specified for pod {namespace}/{pod}"
        )));
    };
    let account = account(context, name).map_err(refuse)?;
    if !limits_secrets(&account) {
        return Ok(());
    }
    let allowed = Allowed::by(&account, name);
    for own in spec.ephemeral_containers.iter().flatten() {
        let container = as_container(own);
        // Upstream answers with the bare text here.
        limit_container("ephemeral container", &container, &allowed)
            .map_err(|message| Failure::Unexpected { message })?;
    }
    Ok(())
}

fn is_mirror(pod: &Pod) -> bool {
    pod.metadata
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(MIRROR))
}

/// A pod that only mirrors one from a node's disk must not gain anything by it.
fn check_mirror(pod: &Pod) -> Result<(), String> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    if spec
        .service_account_name
        .as_deref()
        .is_some_and(|name| !name.is_empty())
    {
        return Err("a mirror pod may not reference service accounts".to_owned());
    }
    if !api::pod::References::of(spec).secrets.is_empty() {
        return Err("a mirror pod may not reference secrets".to_owned());
    }
    let sources = |volume: &Volume| volume.projected.clone().and_then(|projected| projected.sources);
    let mut sources = spec.volumes.iter().flatten().filter_map(sources).flatten();
    if sources.any(|source| source.service_account_token.is_some()) {
        return Err("a mirror pod may not use ServiceAccountToken volume projections".to_owned());
    }
    Ok(())
}

fn account_key(context: &Context, name: &str) -> Result<Key, store::InvalidKey> {
    Key::new("", "serviceaccounts", &context.info.namespace, name)
}

fn account(context: &Context, name: &str) -> Result<ServiceAccount, String> {
    let namespace = &context.info.namespace;
    let lookup = |cause: &str| format!("error looking up service account {namespace}/{name}: {cause}");
    let entry = account_key(context, name)
        .ok()
        .and_then(|key| context.store().get(&key))
        .ok_or_else(|| lookup(&format!("serviceaccount {name:?} not found")))?;
    serde_json::from_slice(&entry.bytes).map_err(|error| lookup(&error.to_string()))
}

/// True if an annotation limits the pods of the account to the Secrets that it lists.
fn limits_secrets(account: &ServiceAccount) -> bool {
    let annotations = account.metadata.annotations.as_ref();
    let enforce = annotations.and_then(|annotations| annotations.get(ENFORCE));
    enforce.is_some_and(|value| matches!(value.as_str(), "1" | "t" | "T" | "true" | "TRUE" | "True"))
}

fn equip(context: &Context, pod: &mut Pod) -> Result<(), String> {
    let spec = pod.spec.get_or_insert_default();
    let name = spec.service_account_name.clone().filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| DEFAULT.to_owned());
    spec.service_account_name = Some(name.clone());
    spec.service_account = Some(name.clone());
    let account = account(context, &name)?;
    let mounts = spec.automount_service_account_token;
    if mounts.or(account.automount_service_account_token).unwrap_or(true) {
        mount_token(spec);
    }
    if spec.image_pull_secrets.as_ref().is_none_or(Vec::is_empty) {
        spec.image_pull_secrets = account.image_pull_secrets.clone().filter(|secrets| !secrets.is_empty());
    }
    if limits_secrets(&account) {
        limit_secrets(spec, &account, &name)?;
    }
    Ok(())
}

fn mount_token(spec: &mut PodSpec) {
    let volumes = spec.volumes.iter().flatten();
    let known = volumes
        .map(|volume| &volume.name)
        .find(|name| name.starts_with(VOLUME))
        .cloned();
    let name = known
        .clone()
        .unwrap_or_else(|| api::names::generate(VOLUME, rand::random()));
    let mut needed = false;
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let mounts = container.volume_mounts.get_or_insert_default();
        if mounts.iter().all(|mount| mount.mount_path != MOUNT_PATH) {
            needed = true;
            mounts.push(VolumeMount {
                name: name.clone(),
                mount_path: MOUNT_PATH.to_owned(),
                read_only: Some(true),
                ..VolumeMount::default()
            });
        }
    }
    if known.is_none() && needed {
        spec.volumes.get_or_insert_default().push(Volume {
            name,
            projected: Some(access()),
            ..Volume::default()
        });
    }
}

/// The token, the authority that the server's certificate is of, and the pod's namespace.
fn access() -> ProjectedVolumeSource {
    let token = ServiceAccountTokenProjection {
        path: "token".to_owned(),
        expiration_seconds: Some(TOKEN_SECONDS),
        audience: None,
    };
    let certificate = ConfigMapProjection {
        name: "kube-root-ca.crt".to_owned(),
        items: Some(vec![KeyToPath {
            key: "ca.crt".to_owned(),
            path: "ca.crt".to_owned(),
            mode: None,
        }]),
        optional: None,
    };
    let namespace = DownwardAPIProjection {
        items: Some(vec![DownwardAPIVolumeFile {
            path: "namespace".to_owned(),
            field_ref: Some(ObjectFieldSelector {
                api_version: Some("v1".to_owned()),
                field_path: "metadata.namespace".to_owned(),
            }),
            ..DownwardAPIVolumeFile::default()
        }]),
    };
    ProjectedVolumeSource {
        default_mode: Some(0o644),
        sources: Some(vec![
            VolumeProjection {
                service_account_token: Some(token),
                ..VolumeProjection::default()
            },
            VolumeProjection {
                config_map: Some(certificate),
                ..VolumeProjection::default()
            },
            VolumeProjection {
                downward_api: Some(namespace),
                ..VolumeProjection::default()
            },
        ]),
    }
}

/// The Secrets that an account names.
struct Allowed<'a> {
    secrets: BTreeSet<&'a str>,
    /// Suffix of the message that rejects another volume.
    denied: String,
}

impl<'a> Allowed<'a> {
    fn by(account: &'a ServiceAccount, name: &str) -> Self {
        let secrets = account.secrets.iter().flatten();
        Self {
            secrets: secrets.filter_map(|secret| secret.name.as_deref()).collect(),
            denied: format!("is not allowed because service account {name} does not reference that secret"),
        }
    }
}

fn limit_secrets(spec: &PodSpec, account: &ServiceAccount, name: &str) -> Result<(), String> {
    let allowed = Allowed::by(account, name);
    let denied = &allowed.denied;
    for volume in spec.volumes.iter().flatten() {
        let secret = volume.secret.as_ref().and_then(|source| source.secret_name.as_deref());
        if let Some(secret) = secret.filter(|secret| !allowed.secrets.contains(secret)) {
            return Err(format!("volume with secret.secretName={secret:?} {denied}"));
        }
    }
    let init = spec
        .init_containers
        .iter()
        .flatten()
        .map(|container| ("init container", container));
    for (kind, container) in init.chain(spec.containers.iter().map(|container| ("container", container))) {
        limit_container(kind, container, &allowed)?;
    }
    let pull: Vec<&LocalObjectReference> = account.image_pull_secrets.iter().flatten().collect();
    for (index, secret) in spec.image_pull_secrets.iter().flatten().enumerate() {
        if !pull.contains(&secret) {
            let secret = &secret.name;
            return Err(format!(
                "imagePullSecrets[{index}].name={secret:?} is not allowed because service account {name} does not reference \
                 that imagePullSecret"
            ));
        }
    }
    Ok(())
}

fn limit_container(kind: &str, container: &Container, allowed: &Allowed<'_>) -> Result<(), String> {
    let Allowed { secrets, denied } = allowed;
    let named = |variable: &EnvVar| {
        let source = variable.value_from.as_ref()?.secret_key_ref.as_ref()?;
        Some((variable.name.clone(), source.name.clone()))
    };
    for (variable, secret) in container.env.iter().flatten().filter_map(named) {
        if !secrets.contains(secret.as_str()) {
            return Err(format!(
                "{kind} {} with envVar {variable} referencing secret.secretName={secret:?} {denied}",
                container.name
            ));
        }
    }
    for secret in container
        .env_from
        .iter()
        .flatten()
        .filter_map(|from| from.secret_ref.as_ref())
    {
        if !secrets.contains(secret.name.as_str()) {
            return Err(format!(
                "{kind} {} with envFrom referencing secret.secretName={:?} {denied}",
                container.name, secret.name
            ));
        }
    }
    Ok(())
}
