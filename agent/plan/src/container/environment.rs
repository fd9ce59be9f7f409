//! A container's environment and arguments, and the objects that both refer to.

mod file;
mod variables;

use std::borrow::Cow;
use std::collections::BTreeMap;

use api::value::invalid::quoted;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, EnvFromSource, EnvVar, EnvVarSource, Pod, ResourceFieldSelector, Secret,
};

pub use file::{File, Files, wanted};
pub use variables::{Environment, LONGEST_VALUE, MOST_BYTES, MOST_VARIABLES, expand, expand_all, expand_known};

use crate::container::files;
use crate::pod::pods;
use crate::resources;
use crate::volume::claims::Backing;
use crate::volume::tokens::ProjectedToken;

/// Objects that a pod refers to. An absent entry was looked up and not found.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// By name, in the pod's namespace.
    pub config_maps: BTreeMap<String, ConfigMap>,
    /// By name, in the pod's namespace.
    pub secrets: BTreeMap<String, Secret>,
    /// The files of `fileKeyRef` variables.
    pub files: Files,
    /// Tokens of the pod's service account.
    pub tokens: BTreeMap<ProjectedToken, String>,
    /// Volumes behind the pod's claims, by the volume's name. One that is mounted already may be
    /// missing.
    pub claims: BTreeMap<String, Backing>,
}

/// The node's contribution to a container's environment.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// `status.podIP`, once known.
    pub pod_addresses: Vec<String>,
    /// `status.hostIP`.
    pub host_addresses: Vec<String>,
    /// The node's hostname in the kernel.
    pub hostname: String,
    /// The cluster's domain.
    pub cluster_domain: String,
    /// The node's allocatable resources in thousandths: the values for a container without a limit.
    pub allocatable: BTreeMap<String, i64>,
    /// The environment variables of Services.
    pub services: Vec<(String, String)>,
}

/// An unresolvable reference. The text is the container's waiting message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The object does not exist.
    #[error("{kind} \"{name}\" not found")]
    NotFound {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The key does not exist in the object.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    NoKey {
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        /// The pod's namespace.
        namespace: String,
        /// The object's name.
        name: String,
        /// The key.
        key: String,
    },
    /// The container does not have this variable.
    #[error("missing value for {0}")]
    Variable(String),
    /// The field is not supported.
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    /// The pod does not have the container.
    #[error("container {0} not found")]
    Container(String),
    /// The resource is not supported.
    #[error("unsupported container resource : {0}")]
    Resource(String),
    /// The file is malformed.
    #[error("{0}")]
    File(String),
    /// References expand to more than `execve` accepts.
    #[error("argument list too long: references expand to more than {LONGEST_VALUE} bytes")]
    TooLong,
    /// There are more variables than `execve` accepts.
    #[error("argument list too long: more than {MOST_VARIABLES} environment variables or {MOST_BYTES} bytes of them")]
    TooMany,
    /// The source is not supported by this node.
    #[error("environment variable {0} has a source that this node does not support")]
    Source(String),
}

/// Builds the variables that references of a container may name, in order: those of Services, then
/// `envFrom`, then `env`; a later value replaces an earlier one in its place
/// (`makeEnvironmentVariables`, `pkg/kubelet/kubelet_pods.go`).
pub fn own(
    pod: &Pod,
    container: &Container,
    sources: &Sources,
    surroundings: &Surroundings,
) -> Result<Environment, ReferenceError> {
    let mut own = Environment::default();
    for (name, value) in &surroundings.services {
        own.set(name, value)?;
    }
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        set_all(&mut own, prefix, from, sources)?;
    }
    for variable in container.env.iter().flatten() {
        if let Some(value) = value_of(pod, container, variable, &own, sources, surroundings)? {
            own.set(&variable.name, &value)?;
        }
    }
    Ok(own)
}

/// Builds the environment of the container's program: the image's, then its `own`.
pub fn build(
    pod: &Pod,
    image: &[String],
    own: &Environment,
    surroundings: &Surroundings,
) -> Result<Environment, ReferenceError> {
    let mut all = Environment::default();
    for variable in image {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        all.set(name, value)?;
    }
    if all.get("PATH").is_none() && own.get("PATH").is_none() {
        all.set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")?;
    }
    let hostname = files::told_hostname(pod, &surroundings.cluster_domain, &surroundings.hostname);
    all.set("HOSTNAME", &hostname)?;
    for (name, value) in own.iter() {
        all.set(name, value)?;
    }
    Ok(all)
}

/// Expands references in the command of an exec probe: only to the values that `env` states, as
/// they are (`ExpandContainerCommandOnlyStatic`, `pkg/kubelet/container/helpers.go`).
pub fn probe_command(container: &Container, words: &[String]) -> Result<Vec<String>, ReferenceError> {
    let mut stated = Environment::default();
    for variable in container.env.iter().flatten() {
        stated.set(&variable.name, variable.value.as_deref().unwrap_or_default())?;
    }
    expand_all(words, &stated)
}

/// Sets all variables of an `envFrom` source.
fn set_all(own: &mut Environment, prefix: &str, from: &EnvFromSource, sources: &Sources) -> Result<(), ReferenceError> {
    let mut set = |key: &str, value: &str| {
        let name = format!("{prefix}{key}");
        if name.is_empty() || name.contains('=') {
            Ok(())
        } else {
            own.set(&name, value)
        }
    };
    let missing = |kind: &'static str, name: &str, optional: Option<bool>| match optional {
        Some(true) => Ok(()),
        Some(false) | None => Err(ReferenceError::NotFound {
            kind,
            name: name.to_owned(),
        }),
    };
    if let Some(reference) = &from.config_map_ref {
        let Some(object) = sources.config_maps.get(&reference.name) else {
            return missing("configmap", &reference.name, reference.optional);
        };
        return object
            .data
            .iter()
            .flatten()
            .try_for_each(|(key, value)| set(key, value));
    }
    let Some(reference) = &from.secret_ref else {
        return Ok(());
    };
    let Some(object) = sources.secrets.get(&reference.name) else {
        return missing("secret", &reference.name, reference.optional);
    };
    let mut entries = object.data.iter().flatten();
    entries.try_for_each(|(key, value)| set(key, &text(&value.0)))
}

/// Unicode's last private-use characters: the runtimes map each to its low byte.
const BYTES: u32 = 0x10_ff00;

/// Converts bytes to text; bytes that are not UTF-8 become characters from [`BYTES`] on.
fn text(value: &[u8]) -> String {
    let mut text = String::with_capacity(value.len());
    let escaped = |byte: &u8| char::from_u32(BYTES + u32::from(*byte));
    for chunk in value.utf8_chunks() {
        for character in chunk.valid().chars() {
            if u32::from(character) < BYTES {
                text.push(character);
            } else {
                text.extend(character.encode_utf8(&mut [0; 4]).as_bytes().iter().filter_map(escaped));
            }
        }
        text.extend(chunk.invalid().iter().filter_map(escaped));
    }
    text
}

fn value_of(
    pod: &Pod,
    container: &Container,
    variable: &EnvVar,
    known: &Environment,
    sources: &Sources,
    surroundings: &Surroundings,
) -> Result<Option<String>, ReferenceError> {
    let Some(source) = &variable.value_from else {
        return expand(variable.value.as_deref().unwrap_or_default(), known).map(Some);
    };
    if let Some(field) = &source.field_ref {
        return field_value(pod, &field.field_path, surroundings).map(Some);
    }
    if let Some(reference) = &source.resource_field_ref {
        return resource_value(pod, Some(container), reference, surroundings).map(Some);
    }
    key_value(pod, &variable.name, source, sources)
}

fn key_value(
    pod: &Pod,
    variable: &str,
    source: &EnvVarSource,
    sources: &Sources,
) -> Result<Option<String>, ReferenceError> {
    let no_key = |kind: &'static str, name: &str, key: &str| ReferenceError::NoKey {
        kind,
        namespace: pods::namespace(pod).to_owned(),
        name: name.to_owned(),
        key: key.to_owned(),
    };
    if let Some(reference) = &source.config_map_key_ref {
        let object = sources.config_maps.get(&reference.name);
        let value = object.and_then(|object| object.data.as_ref()?.get(&reference.key).cloned());
        return match value {
            Some(value) => Ok(Some(value)),
            None if reference.optional == Some(true) => Ok(None),
            None if object.is_none() => Err(ReferenceError::NotFound {
                kind: "configmap",
                name: reference.name.clone(),
            }),
            None => Err(no_key("ConfigMap", &reference.name, &reference.key)),
        };
    }
    if let Some(selector) = &source.file_key_ref {
        return file::value(selector, &sources.files);
    }
    let Some(reference) = &source.secret_key_ref else {
        return Err(ReferenceError::Source(variable.to_owned()));
    };
    let object = sources.secrets.get(&reference.name);
    match object.and_then(|object| object.data.as_ref()?.get(&reference.key)) {
        Some(value) => Ok(Some(text(&value.0))),
        None if reference.optional == Some(true) => Ok(None),
        None if object.is_none() => Err(ReferenceError::NotFound {
            kind: "secret",
            name: reference.name.clone(),
        }),
        None => Err(no_key("Secret", &reference.name, &reference.key)),
    }
}

/// Returns the value of a container's resource for the downward API. Without a name, the container is
/// the `own` one.
pub fn resource_value(
    pod: &Pod,
    own: Option<&Container>,
    reference: &ResourceFieldSelector,
    surroundings: &Surroundings,
) -> Result<String, ReferenceError> {
    let name = reference.container_name.as_deref().unwrap_or_default();
    let own = own.filter(|_| name.is_empty()).map(Cow::Borrowed);
    let container = own.or_else(|| pods::container(pod, name));
    let container = container.ok_or_else(|| ReferenceError::Container(name.to_owned()))?;
    let divisor = reference.divisor.as_ref().map(|divisor| divisor.0.as_str());
    let value = resources::field(pod, &container, &reference.resource, divisor, &surroundings.allocatable);
    value.ok_or_else(|| ReferenceError::Resource(reference.resource.clone()))
}

/// Returns the value of a field of the pod for the downward API.
pub fn field_value(pod: &Pod, path: &str, surroundings: &Surroundings) -> Result<String, ReferenceError> {
    let metadata = &pod.metadata;
    let spec = pod.spec.as_ref();
    if let Some((map, key)) = subscript(path) {
        let entries = match map {
            "metadata.labels" => metadata.labels.as_ref(),
            "metadata.annotations" => metadata.annotations.as_ref(),
            _ => return Err(ReferenceError::Field(path.to_owned())),
        };
        return Ok(entries
            .and_then(|entries| entries.get(key))
            .cloned()
            .unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => pods::name(pod).to_owned(),
        "metadata.namespace" => pods::namespace(pod).to_owned(),
        "metadata.uid" => pods::uid(pod).to_owned(),
        "metadata.labels" => lines(metadata.labels.as_ref()),
        "metadata.annotations" => lines(metadata.annotations.as_ref()),
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        "spec.serviceAccountName" => spec
            .and_then(|spec| spec.service_account_name.clone())
            .unwrap_or_default(),
        "status.podIP" => surroundings.pod_addresses.first().cloned().unwrap_or_default(),
        "status.podIPs" => surroundings.pod_addresses.join(","),
        "status.hostIP" => surroundings.host_addresses.first().cloned().unwrap_or_default(),
        "status.hostIPs" => surroundings.host_addresses.join(","),
        other => return Err(ReferenceError::Field(other.to_owned())),
    })
}

fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, key) = path.strip_suffix("']")?.split_once("['")?;
    Some((map, key))
}

fn lines(entries: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = entries
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", quoted(value)))
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests;
