//! A container's environment, its arguments, and what both may refer to.

mod file;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVar, EnvVarSource, Pod, Secret};

pub use file::{File, Files, wanted};

use crate::claims::Backing;
use crate::tokens::TokenWish;
use crate::{pods, resources};

/// What a pod refers to besides itself. An absent entry was looked up and not found.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// By name, in the pod's namespace.
    pub config_maps: BTreeMap<String, ConfigMap>,
    /// By name, in the pod's namespace.
    pub secrets: BTreeMap<String, Secret>,
    /// The files that variables name.
    pub files: Files,
    /// Tokens of the pod's account.
    pub tokens: BTreeMap<TokenWish, String>,
    /// What is behind the pod's volumes that are claims, by the volume's name. One that is mounted already may be missing.
    pub claims: BTreeMap<String, Backing>,
}

/// What the node contributes to a container's environment.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// `status.podIP`, once known.
    pub pod_addresses: Vec<String>,
    /// `status.hostIP`.
    pub host_addresses: Vec<String>,
    /// The node's allocatable resources in thousandths: what a container without a limit is told.
    pub allocatable: BTreeMap<String, i64>,
    /// The variables that tell of Services.
    pub services: Vec<(String, String)>,
}

/// A reference that leads nowhere. The text is the container's waiting message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// No such object.
    #[error("{kind} \"{name}\" not found")]
    NotFound {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// No such key in it.
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
    /// A secret whose value is no text cannot be an environment variable.
    #[error("the value of key {key} in Secret {name} is not UTF-8 text")]
    NotText {
        /// The secret's name.
        name: String,
        /// The key.
        key: String,
    },
    /// A variable that the container does not have.
    #[error("missing value for {0:?}")]
    Variable(String),
    /// A field that cannot be referred to.
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    /// A resource that cannot be referred to.
    #[error("unsupported container resource : {0}")]
    Resource(String),
    /// A file that does not say what it should.
    #[error("{0}")]
    File(String),
    /// A source that this node does not know.
    #[error("environment variable {0} has a source that this node does not support")]
    Source(String),
}

/// The environment in order: the image's, then that of Services, then `envFrom`, then `env`; a later value replaces an earlier one in its place.
pub fn build(
    pod: &Pod,
    container: &Container,
    image: &[String],
    sources: &Sources,
    surroundings: &Surroundings,
) -> Result<Vec<(String, String)>, ReferenceError> {
    let mut own = Environment::default();
    for (name, value) in &surroundings.services {
        own.set(name.clone(), value.clone());
    }
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        for (key, value) in from_object(from, sources)? {
            let name = format!("{prefix}{key}");
            if !name.is_empty() && !name.contains('=') {
                own.set(name, value);
            }
        }
    }
    for variable in container.env.iter().flatten() {
        if let Some(value) = value_of(pod, container, variable, &own, sources, surroundings)? {
            own.set(variable.name.clone(), value);
        }
    }
    let mut all = Environment::default();
    for variable in image {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        all.set(name.to_owned(), value.to_owned());
    }
    if all.get("PATH").is_none() && own.get("PATH").is_none() {
        all.set(
            "PATH".to_owned(),
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        );
    }
    all.set("HOSTNAME".to_owned(), pods::hostname(pod));
    for (name, value) in own.variables {
        all.set(name, value);
    }
    Ok(all.variables)
}

/// Replaces `$(NAME)` by the variable's value and `$$` by `$`; an unknown reference stays as it is.
pub fn expand(text: &str, variables: &[(String, String)]) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            expanded.push('$');
            rest = after;
        } else if let Some((name, after)) = after.strip_prefix('(').and_then(|after| after.split_once(')')) {
            if let Some((_, value)) = variables.iter().find(|(known, _)| known == name) {
                expanded.push_str(value);
            } else {
                expanded.push_str("$(");
                expanded.push_str(name);
                expanded.push(')');
            }
            rest = after;
        } else {
            expanded.push('$');
            rest = after;
        }
    }
    expanded.push_str(rest);
    expanded
}

/// The same for a path, which an unknown reference makes meaningless.
pub fn expand_known(text: &str, variables: &[(String, String)]) -> Result<String, ReferenceError> {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('$') {
        rest = after;
        if let Some(after) = after.strip_prefix('$') {
            rest = after;
        } else if let Some((name, after)) = after.strip_prefix('(').and_then(|after| after.split_once(')')) {
            if !variables.iter().any(|(known, _)| known == name) {
                return Err(ReferenceError::Variable(name.to_owned()));
            }
            rest = after;
        }
    }
    Ok(expand(text, variables))
}

#[derive(Default)]
struct Environment {
    variables: Vec<(String, String)>,
}

impl Environment {
    fn get(&self, name: &str) -> Option<&str> {
        self.variables
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    fn set(&mut self, name: String, value: String) {
        match self.variables.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.variables.push((name, value)),
        }
    }
}

fn from_object(
    from: &k8s_openapi::api::core::v1::EnvFromSource,
    sources: &Sources,
) -> Result<Vec<(String, String)>, ReferenceError> {
    if let Some(reference) = &from.config_map_ref {
        return match sources.config_maps.get(&reference.name) {
            Some(object) => Ok(object.data.clone().unwrap_or_default().into_iter().collect()),
            None if reference.optional == Some(true) => Ok(Vec::new()),
            None => Err(ReferenceError::NotFound {
                kind: "configmap",
                name: reference.name.clone(),
            }),
        };
    }
    let Some(reference) = &from.secret_ref else {
        return Ok(Vec::new());
    };
    match sources.secrets.get(&reference.name) {
        Some(object) => object
            .data
            .iter()
            .flatten()
            .map(|(key, value)| text(&reference.name, key, &value.0))
            .collect(),
        None if reference.optional == Some(true) => Ok(Vec::new()),
        None => Err(ReferenceError::NotFound {
            kind: "secret",
            name: reference.name.clone(),
        }),
    }
}

fn text(secret: &str, key: &str, value: &[u8]) -> Result<(String, String), ReferenceError> {
    match std::str::from_utf8(value) {
        Ok(value) => Ok((key.to_owned(), value.to_owned())),
        Err(_) => Err(ReferenceError::NotText {
            name: secret.to_owned(),
            key: key.to_owned(),
        }),
    }
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
        return Ok(Some(expand(
            variable.value.as_deref().unwrap_or_default(),
            &known.variables,
        )));
    };
    if let Some(field) = &source.field_ref {
        return field_value(pod, &field.field_path, surroundings).map(Some);
    }
    if let Some(reference) = &source.resource_field_ref {
        let other = reference
            .container_name
            .as_deref()
            .and_then(|name| pods::container(pod, name));
        let divisor = reference.divisor.as_ref().map(|divisor| divisor.0.as_str());
        return resources::field(
            other.as_deref().unwrap_or(container),
            &reference.resource,
            divisor,
            &surroundings.allocatable,
        )
        .map(Some)
        .ok_or_else(|| ReferenceError::Resource(reference.resource.clone()));
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
        Some(value) => text(&reference.name, &reference.key, &value.0).map(|(_, value)| Some(value)),
        None if reference.optional == Some(true) => Ok(None),
        None if object.is_none() => Err(ReferenceError::NotFound {
            kind: "secret",
            name: reference.name.clone(),
        }),
        None => Err(no_key("Secret", &reference.name, &reference.key)),
    }
}

/// The value of a field of the pod, as the downward API gives it.
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
        .map(|(key, value)| format!("{key}=\"{}\"", escape(value)))
        .collect();
    lines.join("\n")
}

fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
