//! Warnings about files of one volume with conflicting paths.

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Volume, VolumeProjection};

use super::COMPARED;

/// Warns about all volumes.
pub(super) fn of_volumes(warnings: &mut Vec<String>, volumes: &[Volume]) {
    for volume in volumes {
        let name = &volume.name;
        if let Some((own, items)) = volume
            .config_map
            .as_ref()
            .and_then(|own| Some((own, own.items.as_ref()?)))
        {
            let source = &own.name;
            overlaps(
                warnings,
                &of_keys(items),
                &format!("volume {name:?} (ConfigMap {source:?})"),
            );
        }
        if let Some((own, items)) = volume.secret.as_ref().and_then(|own| Some((own, own.items.as_ref()?))) {
            let source = own.secret_name.as_deref().unwrap_or_default();
            overlaps(
                warnings,
                &of_keys(items),
                &format!("volume {name:?} (Secret {source:?})"),
            );
        }
        if let Some(items) = volume.downward_api.as_ref().and_then(|own| own.items.as_ref()) {
            overlaps(warnings, &of_files(items), &format!("volume {name:?} (DownwardAPI)"));
        }
        let sources = volume.projected.iter().flat_map(|own| own.sources.iter().flatten());
        let mut all: Vec<&str> = Vec::new();
        for source in sources {
            if all.len() >= COMPARED {
                break;
            }
            if *source == VolumeProjection::default() {
                warnings.push(format!("volume {name:?} (Projected) has no sources provided"));
                continue;
            }
            let Some((what, mut paths)) = projected(source) else {
                continue;
            };
            let what = format!("volume {name:?} (Projected {what})");
            overlaps(warnings, &paths, &what);
            paths.sort_unstable();
            paths.dedup();
            let mut together = [paths.as_slice(), all.as_slice()].concat();
            together.sort_unstable();
            overlaps(warnings, &together, &what);
            all.extend(paths);
            all.sort_unstable();
            all.dedup();
        }
    }
}

/// Name of a source, and the paths of its files.
fn projected(source: &VolumeProjection) -> Option<(String, Vec<&str>)> {
    if let Some((own, items)) = source
        .config_map
        .as_ref()
        .and_then(|own| Some((own, own.items.as_ref()?)))
    {
        return Some((format!("ConfigMap {:?}", own.name), of_keys(items)));
    }
    if let Some((own, items)) = source.secret.as_ref().and_then(|own| Some((own, own.items.as_ref()?))) {
        return Some((format!("Secret {:?}", own.name), of_keys(items)));
    }
    if let Some(items) = source.downward_api.as_ref().and_then(|own| own.items.as_ref()) {
        return Some(("DownwardAPI".to_owned(), of_files(items)));
    }
    if let Some(own) = &source.service_account_token {
        return Some(("ServiceAccountToken".to_owned(), vec![own.path.as_str()]));
    }
    let own = source.cluster_trust_bundle.as_ref()?;
    let name = own.name.as_deref().or(own.signer_name.as_deref()).unwrap_or_default();
    Some((format!("ClusterTrustBundle {name:?}"), vec![own.path.as_str()]))
}

fn of_keys(items: &[KeyToPath]) -> Vec<&str> {
    items.iter().map(|item| item.path.as_str()).collect()
}

fn of_files(items: &[DownwardAPIVolumeFile]) -> Vec<&str> {
    items.iter().map(|item| item.path.as_str()).collect()
}

fn overlaps(warnings: &mut Vec<String>, paths: &[&str], what: &str) {
    let mut seen: Vec<&str> = Vec::with_capacity(paths.len());
    // Each path is compared with all before it.
    for path in paths.iter().take(COMPARED) {
        let path = path.trim_end_matches('/');
        if let Some(other) = seen.iter().find(|other| collide(other, path)) {
            let (path, other) = (shown(path), shown(other));
            warnings.push(format!("{what}: overlapping paths: {path:?} with {other:?}"));
        }
        if !seen.contains(&path) {
            seen.push(path);
        }
    }
}

/// Path, truncated for the warning.
fn shown(path: &str) -> &str {
    path.get(..path.floor_char_boundary(256)).unwrap_or(path)
}

/// True if the paths conflict. Upstream compares prefixes of texts, not of directories: `ab`
/// conflicts with `a`.
fn collide(one: &str, other: &str) -> bool {
    !one.is_empty() && !other.is_empty() && (one.starts_with(other) || other.starts_with(one))
}
