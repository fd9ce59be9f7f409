//! Validation of volumes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, GitRepoVolumeSource, HostPathVolumeSource, KeyToPath, NFSVolumeSource,
    ProjectedVolumeSource, ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use serde_json::Value;

use crate::kinds::persistent_volume_claim::validate_spec;
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::value::quantity::Quantity;
use crate::workload::validation::container::{field_ref, resource_ref};
use crate::workload::validation::storage::csi_driver;
use crate::workload::validation::{each, local_path, no_backsteps, one_of_or_none, required};

/// Shortest lifetime of a projected token.
const SHORTEST_TOKEN_SECONDS: i64 = 600;

/// Pod fields that files of a downward API volume may contain.
const FILE_FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

/// Validates the volumes of a pod; returns their names, each with whether it is a claim's.
pub(super) fn volumes<'a>(errors: &mut Vec<Invalid>, volumes: &'a [Volume], path: &str) -> BTreeMap<&'a str, bool> {
    let mut known = BTreeMap::new();
    for (index, volume) in volumes.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let field = format!("{path}.name");
        if required(errors, &field, Some(&volume.name)) {
            each(errors, &field, &volume.name, names::dns1123_label(&volume.name));
            let is_claim = volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
            if known.insert(volume.name.as_str(), is_claim).is_some() {
                errors.push(Invalid::duplicate(field, &volume.name));
            }
        }
        sources(errors, volume, &path);
        details(errors, volume, &path);
    }
    known
}

/// Validates that there is exactly one source.
fn sources(errors: &mut Vec<Invalid>, volume: &Volume, path: &str) {
    let Ok(Value::Object(members)) = serde_json::to_value(volume) else {
        return;
    };
    let mut sources = members.keys().filter(|name| *name != "name");
    if sources.next().is_none() {
        errors.push(Invalid::required(path, "must specify a volume type"));
    }
    for name in sources {
        errors.push(Invalid::forbidden(
            format!("{path}.{name}"),
            "may not specify more than 1 volume type",
        ));
    }
}

fn details(errors: &mut Vec<Invalid>, volume: &Volume, path: &str) {
    if let Some(host) = &volume.host_path {
        volume_path(errors, host, &format!("{path}.hostPath"));
    }
    if let Some(nfs) = &volume.nfs {
        nfs_path(errors, nfs, &format!("{path}.nfs"));
    }
    if let Some(repository) = &volume.git_repo {
        git_repository(errors, repository, &format!("{path}.gitRepo"));
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        let field = format!("{path}.persistentVolumeClaim.claimName");
        required(errors, &field, Some(&claim.claim_name));
    }
    if let Some(ephemeral) = &volume.ephemeral {
        let path = format!("{path}.ephemeral.volumeClaimTemplate");
        match &ephemeral.volume_claim_template {
            Some(template) => errors.extend(validate_spec(&template.spec, &format!("{path}.spec"))),
            None => errors.push(Invalid::required(path, "")),
        }
    }
    if let Some(csi) = &volume.csi {
        csi_driver(errors, &format!("{path}.csi.driver"), &csi.driver);
        if let Some(secret) = &csi.node_publish_secret_ref {
            let (path, name) = (format!("{path}.csi"), &secret.name);
            if required(errors, &format!("{path}.nodePublishSecretRef.name"), Some(name)) {
                // Upstream's path of it (`validateCSIVolumeSource`).
                each(errors, &format!("{path}.name"), name, names::dns1123_subdomain(name));
            }
        }
    }
    if let Some(empty) = &volume.empty_dir {
        let limit = empty.size_limit.as_ref().map(|limit| Quantity::parse(&limit.0));
        if limit.is_some_and(|limit| limit.is_err() || limit.is_ok_and(Quantity::is_negative)) {
            let detail = "SizeLimit field must be a valid resource quantity";
            errors.push(Invalid::forbidden(format!("{path}.emptyDir.sizeLimit"), detail));
        }
    }
    if let Some(image) = &volume.image {
        let field = format!("{path}.image.pullPolicy");
        let known = ["Always", "IfNotPresent", "Never"];
        one_of_or_none(errors, &field, image.pull_policy.as_deref(), &known);
    }
    if let Some(secret) = &volume.secret {
        required(
            errors,
            &format!("{path}.secret.secretName"),
            secret.secret_name.as_deref(),
        );
        mode(errors, &format!("{path}.secret.defaultMode"), secret.default_mode);
        items(errors, secret.items.as_deref(), &format!("{path}.secret.items"));
    }
    if let Some(map) = &volume.config_map {
        required(errors, &format!("{path}.configMap.name"), Some(&map.name));
        mode(errors, &format!("{path}.configMap.defaultMode"), map.default_mode);
        items(errors, map.items.as_deref(), &format!("{path}.configMap.items"));
    }
    if let Some(api) = &volume.downward_api {
        mode(errors, &format!("{path}.downwardAPI.defaultMode"), api.default_mode);
        files(errors, api.items.as_deref(), &format!("{path}.downwardAPI"));
    }
    if let Some(projected) = &volume.projected {
        self::projected(errors, projected, &format!("{path}.projected"));
    }
}

fn git_repository(errors: &mut Vec<Invalid>, source: &GitRepoVolumeSource, path: &str) {
    required(errors, &format!("{path}.repository"), Some(&source.repository));
    let (field, directory) = (
        format!("{path}.directory"),
        source.directory.as_deref().unwrap_or_default(),
    );
    if directory.starts_with('/') {
        errors.push(Invalid::value(&field, directory, "must be a relative path"));
    }
    no_backsteps(errors, &field, directory);
}

/// Validates a path of an NFS server.
pub(crate) fn nfs_path(errors: &mut Vec<Invalid>, nfs: &NFSVolumeSource, path: &str) {
    required(errors, &format!("{path}.server"), Some(&nfs.server));
    required(errors, &format!("{path}.path"), Some(&nfs.path));
    if !nfs.path.starts_with('/') {
        let detail = "must be an absolute path";
        errors.push(Invalid::value(format!("{path}.path"), &nfs.path, detail));
    }
}

/// Validates a host path.
pub(crate) fn volume_path(errors: &mut Vec<Invalid>, host: &HostPathVolumeSource, path: &str) {
    let field = format!("{path}.path");
    if required(errors, &field, Some(&host.path)) {
        no_backsteps(errors, &field, &host.path);
    }
    let kinds = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    one_of_or_none(errors, &format!("{path}.type"), host.type_.as_deref(), &kinds);
}

fn projected(errors: &mut Vec<Invalid>, projected: &ProjectedVolumeSource, whole: &str) {
    mode(errors, &format!("{whole}.defaultMode"), projected.default_mode);
    let mut taken = BTreeSet::new();
    for (index, source) in projected.sources.iter().flatten().enumerate() {
        let path = format!("{whole}.sources[{index}]");
        let set = [
            source.secret.is_some(),
            source.config_map.is_some(),
            source.downward_api.is_some(),
            source.service_account_token.is_some(),
            source.cluster_trust_bundle.is_some(),
            source.pod_certificate.is_some(),
        ];
        match set.into_iter().filter(|set| *set).count() {
            0 => errors.push(Invalid::required(path.as_str(), "must specify a volume type")),
            1 => {}
            _ => errors.push(Invalid::forbidden(
                path.as_str(),
                "may not specify more than 1 volume type per source",
            )),
        }
        if let Some(secret) = &source.secret {
            required(errors, &format!("{path}.secret.name"), Some(&secret.name));
            items(errors, secret.items.as_deref(), &format!("{path}.secret.items"));
        }
        if let Some(map) = &source.config_map {
            required(errors, &format!("{path}.configMap.name"), Some(&map.name));
            items(errors, map.items.as_deref(), &format!("{path}.configMap.items"));
        }
        if let Some(api) = &source.downward_api {
            files(errors, api.items.as_deref(), &format!("{path}.downwardAPI"));
        }
        if let Some(token) = &source.service_account_token {
            self::token(errors, token, whole, &format!("{path}.serviceAccountToken"));
        }
        for (name, file) in paths(source) {
            if !file.is_empty() && !taken.insert(file.to_owned()) {
                errors.push(Invalid::value(whole, name, "conflicting duplicate paths"));
            }
        }
    }
}

/// Paths of a source's files, each with the text that upstream shows for a duplicate.
fn paths(source: &VolumeProjection) -> Vec<(&str, &str)> {
    let (secret, map) = (source.secret.as_ref(), source.config_map.as_ref());
    let secrets = secret.map(|secret| (&secret.name, secret.items.iter().flatten()));
    let maps = map.map(|map| (&map.name, map.items.iter().flatten()));
    let keys = [secrets, maps].into_iter().flatten();
    let keys = keys.flat_map(|(name, items)| items.map(|item| (name.as_str(), item.path.as_str())));
    let api = source.downward_api.iter().flat_map(|api| api.items.iter().flatten());
    keys.chain(api.map(|file| (file.path.as_str(), file.path.as_str())))
        .collect()
}

/// Validates a service account token projection. Upstream reports errors with the path of the
/// volume.
fn token(errors: &mut Vec<Invalid>, token: &ServiceAccountTokenProjection, whole: &str, path: &str) {
    let field = format!("{path}.expirationSeconds");
    let seconds = token.expiration_seconds.unwrap_or(SHORTEST_TOKEN_SECONDS);
    if seconds < SHORTEST_TOKEN_SECONDS {
        errors.push(Invalid::value(
            field,
            seconds,
            "may not specify a duration less than 10 minutes",
        ));
    } else if seconds > 1 << 32 {
        errors.push(Invalid::value(
            field,
            seconds,
            "may not specify a duration larger than 2^32 seconds",
        ));
    }
    local_path(errors, &format!("{whole}.path"), &token.path);
}

fn items(errors: &mut Vec<Invalid>, items: Option<&[KeyToPath]>, path: &str) {
    for (index, item) in items.unwrap_or_default().iter().enumerate() {
        required(errors, &format!("{path}[{index}].key"), Some(&item.key));
        local_path(errors, &format!("{path}[{index}].path"), &item.path);
        mode(errors, &format!("{path}[{index}].mode"), item.mode);
    }
}

fn files(errors: &mut Vec<Invalid>, files: Option<&[DownwardAPIVolumeFile]>, path: &str) {
    for file in files.unwrap_or_default() {
        local_path(errors, &format!("{path}.path"), &file.path);
        mode(errors, &format!("{path}.mode"), file.mode);
        match (&file.field_ref, &file.resource_field_ref) {
            (Some(field), None) => field_ref::validate(errors, field, &format!("{path}.fieldRef"), FILE_FIELDS),
            (None, Some(resource)) => resource_ref(errors, resource, &format!("{path}.resourceFieldRef"), true),
            (Some(_), Some(_)) => {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.push(Invalid::value(path, "resource", detail));
            }
            (None, None) => errors.push(Invalid::required(
                path,
                "one of fieldRef and resourceFieldRef is required",
            )),
        }
    }
}

fn mode(errors: &mut Vec<Invalid>, field: &str, mode: Option<i32>) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        errors.push(Invalid::value(
            field,
            mode,
            "must be a number between 0 and 0777 (octal), both inclusive",
        ));
    }
}
