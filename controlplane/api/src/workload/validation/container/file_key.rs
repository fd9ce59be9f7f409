//! Validation of environment variables from files in the pod's volumes.

use k8s_openapi::api::core::v1::{EnvVar, FileKeySelector, PodSpec};

use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::{each, local_path, required};

/// Maximum length of a key.
const KEY: usize = 128;

/// Validates a file key selector.
pub(super) fn selector(errors: &mut Vec<Invalid>, selector: &FileKeySelector, path: &str) {
    let field = format!("{path}.key");
    if required(errors, &field, Some(&selector.key)) {
        each(errors, &field, &selector.key, names::environment_name(&selector.key));
        if selector.key.len() > KEY {
            errors.push(Invalid::too_long(field, KEY));
        }
    }
    let field = format!("{path}.volumeName");
    if required(errors, &field, Some(&selector.volume_name)) {
        each(
            errors,
            &field,
            &selector.volume_name,
            names::dns1123_label(&selector.volume_name),
        );
    }
    local_path(errors, &format!("{path}.path"), &selector.path);
}

/// Validates the volumes: they must be `emptyDir` volumes of the pod.
pub(in crate::workload::validation) fn volumes(errors: &mut Vec<Invalid>, spec: &PodSpec, path: &str) {
    let main = spec.containers.iter().map(|container| &container.env);
    let initial = spec.init_containers.iter().flatten().map(|container| &container.env);
    let added = spec
        .ephemeral_containers
        .iter()
        .flatten()
        .map(|container| &container.env);
    let lists: [(&str, Vec<&Option<Vec<EnvVar>>>); 3] = [
        ("containers", main.collect()),
        ("initContainers", initial.collect()),
        ("ephemeralContainers", added.collect()),
    ];
    for (list, containers) in lists {
        for (number, variables) in containers.into_iter().enumerate() {
            for (index, variable) in variables.iter().flatten().enumerate() {
                let selector = variable
                    .value_from
                    .as_ref()
                    .and_then(|source| source.file_key_ref.as_ref());
                let Some(name) = selector
                    .map(|selector| &selector.volume_name)
                    .filter(|name| !name.is_empty())
                else {
                    continue;
                };
                let field = format!("{path}.{list}[{number}].env[{index}].valueFrom.fileKeyRef.volumeName");
                match spec.volumes.iter().flatten().find(|volume| volume.name == *name) {
                    None => errors.push(Invalid::not_found(field, name)),
                    Some(volume) if volume.empty_dir.is_none() => {
                        errors.push(Invalid::value(
                            field,
                            name,
                            "referenced volume must be of type emptyDir",
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
    }
}
