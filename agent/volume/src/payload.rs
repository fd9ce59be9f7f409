//! Contents of volumes that come from the API.

pub(crate) mod atomic;

use std::collections::BTreeMap;

use agent_plan::container::environment::{self, ReferenceError, Sources, Surroundings};
use agent_plan::volume::tokens::ProjectedToken;
use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Pod, Volume, VolumeProjection};

/// Files by path within the volume.
pub(crate) type Payload = BTreeMap<String, File>;

/// File of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) contents: Vec<u8>,
    pub(crate) mode: u32,
    /// Owner, if not root.
    pub(crate) owner: Option<u32>,
}

/// The contents cannot be assembled.
#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    /// A referenced object is missing.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The object does not have the key.
    #[error("{missing} key: {key}")]
    NoKey {
        /// Beginning of upstream's message.
        missing: &'static str,
        /// The key.
        key: String,
    },
    /// A path leads outside of the volume.
    #[error("invalid path {0:?}: it must be relative, without \"..\"")]
    Path(String),
    /// The service account token is missing.
    #[error("no token of the pod's service account")]
    NoToken,
    /// The pod exceeds the limit of such contents.
    #[error("the files of the pod's volumes exceed {} MiB", MOST >> 20)]
    TooLarge,
    /// The kind of source is not supported.
    #[error("an unsupported projected source")]
    Unsupported,
    /// More than one source failed.
    #[error("[{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<Self>),
}

impl PayloadError {
    fn of(mut problems: Vec<Self>) -> Result<(), Self> {
        match problems.pop() {
            None => Ok(()),
            Some(only) if problems.is_empty() => Err(only),
            Some(last) => {
                problems.push(last);
                Err(Self::Several(problems))
            }
        }
    }
}

const DEFAULT_MODE: i32 = 0o644;

/// Maximum size of such contents in all volumes of a pod: each volume may show the same megabyte
/// many times.
pub(crate) const MOST: usize = 64 << 20;

/// Payload that is being assembled.
struct Gathered<'a> {
    files: Payload,
    /// Remaining bytes of the pod's limit.
    left: &'a mut usize,
}

/// Payload of a volume; `None` for a volume of another kind.
pub(crate) fn build(
    pod: &Pod,
    volume: &Volume,
    sources: &Sources,
    surroundings: &Surroundings,
    left: &mut usize,
) -> Result<Option<Payload>, PayloadError> {
    let mut payload = Gathered {
        files: Payload::new(),
        left,
    };
    if let Some(source) = &volume.config_map {
        let reference = Reference {
            name: &source.name,
            optional: source.optional,
            items: source.items.as_deref(),
        };
        config_map(&reference, source.default_mode, sources, &mut payload)?;
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        let reference = Reference {
            name,
            optional: source.optional,
            items: source.items.as_deref(),
        };
        secret(&reference, source.default_mode, sources, &mut payload)?;
    } else if let Some(source) = &volume.downward_api {
        downward(
            pod,
            source.items.as_deref(),
            source.default_mode,
            surroundings,
            &mut payload,
        )?;
    } else if let Some(source) = &volume.projected {
        let mut problems = Vec::new();
        for projection in source.sources.iter().flatten() {
            let projected = project(
                pod,
                projection,
                source.default_mode,
                sources,
                surroundings,
                &mut payload,
            );
            problems.extend(projected.err());
        }
        PayloadError::of(problems)?;
    } else {
        return Ok(None);
    }
    Ok(Some(payload.files))
}

impl Gathered<'_> {
    /// Counts bytes before they are copied.
    fn take(&mut self, bytes: usize) -> Result<(), PayloadError> {
        *self.left = self.left.checked_sub(bytes).ok_or(PayloadError::TooLarge)?;
        Ok(())
    }
}

struct Reference<'a> {
    name: &'a str,
    optional: Option<bool>,
    items: Option<&'a [KeyToPath]>,
}

fn project(
    pod: &Pod,
    projection: &VolumeProjection,
    mode: Option<i32>,
    sources: &Sources,
    surroundings: &Surroundings,
    payload: &mut Gathered<'_>,
) -> Result<(), PayloadError> {
    if let Some(source) = &projection.config_map {
        let reference = Reference {
            name: &source.name,
            optional: source.optional,
            items: source.items.as_deref(),
        };
        config_map(&reference, mode, sources, payload)
    } else if let Some(source) = &projection.secret {
        let reference = Reference {
            name: &source.name,
            optional: source.optional,
            items: source.items.as_deref(),
        };
        secret(&reference, mode, sources, payload)
    } else if let Some(source) = &projection.downward_api {
        downward(pod, source.items.as_deref(), mode, surroundings, payload)
    } else if let Some(source) = &projection.service_account_token {
        let token = sources
            .tokens
            .get(&ProjectedToken::of(source))
            .ok_or(PayloadError::NoToken)?;
        let owner = common_user(pod);
        let group = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.security_context.as_ref()?.fs_group);
        // Readable by its owner, and by a group only if the pod has an `fsGroup`, whose members may
        // read all volumes.
        let mode = if owner.is_some() || group.is_some() {
            Some(0o600)
        } else {
            mode
        };
        insert(payload, &source.path, token.clone().into_bytes(), mode)?.owner = owner;
        Ok(())
    } else {
        Err(PayloadError::Unsupported)
    }
}

/// User that all containers of the pod run as, if the pod sets one.
fn common_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let default = spec.security_context.as_ref().and_then(|context| context.run_as_user);
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut users = containers.map(|container| {
        let own = container
            .security_context
            .as_ref()
            .and_then(|context| context.run_as_user);
        own.or(default)
    });
    let first = users.next()??;
    let same = users.all(|user| user == Some(first));
    u32::try_from(first).ok().filter(|_| same)
}

fn config_map(
    reference: &Reference<'_>,
    mode: Option<i32>,
    sources: &Sources,
    payload: &mut Gathered<'_>,
) -> Result<(), PayloadError> {
    let Some(object) = sources.config_maps.get(reference.name) else {
        return absent("configmap", reference);
    };
    let text = object
        .data
        .iter()
        .flatten()
        .map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    let binary = object
        .binary_data
        .iter()
        .flatten()
        .map(|(key, value)| (key.clone(), value.0.clone()));
    let missing = "configmap references non-existent config";
    select(missing, text.chain(binary).collect(), reference, mode, payload)
}

fn secret(
    reference: &Reference<'_>,
    mode: Option<i32>,
    sources: &Sources,
    payload: &mut Gathered<'_>,
) -> Result<(), PayloadError> {
    let Some(object) = sources.secrets.get(reference.name) else {
        return absent("secret", reference);
    };
    let data = object
        .data
        .iter()
        .flatten()
        .map(|(key, value)| (key.clone(), value.0.clone()));
    let missing = "references non-existent secret";
    select(missing, data.collect(), reference, mode, payload)
}

fn absent(kind: &'static str, reference: &Reference<'_>) -> Result<(), PayloadError> {
    if reference.optional == Some(true) {
        return Ok(());
    }
    Err(ReferenceError::NotFound {
        kind,
        name: reference.name.to_owned(),
    }
    .into())
}

fn select(
    missing: &'static str,
    data: BTreeMap<String, Vec<u8>>,
    reference: &Reference<'_>,
    mode: Option<i32>,
    payload: &mut Gathered<'_>,
) -> Result<(), PayloadError> {
    let Some(items) = reference.items.filter(|items| !items.is_empty()) else {
        for (key, contents) in data {
            payload.take(contents.len())?;
            insert(payload, &key, contents, mode)?;
        }
        return Ok(());
    };
    for item in items {
        match data.get(&item.key) {
            Some(contents) => {
                payload.take(contents.len())?;
                insert(payload, &item.path, contents.clone(), item.mode.or(mode))?;
            }
            None if reference.optional == Some(true) => {}
            None => {
                let key = item.key.clone();
                return Err(PayloadError::NoKey { missing, key });
            }
        }
    }
    Ok(())
}

fn downward(
    pod: &Pod,
    items: Option<&[DownwardAPIVolumeFile]>,
    mode: Option<i32>,
    surroundings: &Surroundings,
    payload: &mut Gathered<'_>,
) -> Result<(), PayloadError> {
    for item in items.unwrap_or(&[]) {
        let text = if let Some(field) = &item.field_ref {
            environment::field_value(pod, &field.field_path, surroundings)?
        } else if let Some(reference) = &item.resource_field_ref {
            environment::resource_value(pod, None, reference, surroundings)?
        } else {
            String::new()
        };
        payload.take(text.len())?;
        insert(payload, &item.path, text.into_bytes(), item.mode.or(mode))?;
    }
    Ok(())
}

/// Adds a file at a path, cleaned as by `validatePayload` of `pkg/volume/util/atomic_writer.go`.
fn insert<'p>(
    payload: &'p mut Gathered<'_>,
    path: &str,
    contents: Vec<u8>,
    mode: Option<i32>,
) -> Result<&'p mut File, PayloadError> {
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let name = parts.join("/");
    let confined = !name.is_empty()
        && path.len() <= 4096
        && !path.contains('\0')
        && !path.starts_with('/')
        && !name.starts_with("..")
        && !parts.contains(&"..");
    if !confined {
        return Err(PayloadError::Path(path.to_owned()));
    }
    let mode = u32::try_from(mode.unwrap_or(DEFAULT_MODE)).unwrap_or(0o644) & 0o777;
    let file = File {
        contents,
        mode,
        owner: None,
    };
    Ok(payload.files.entry(name).insert_entry(file).into_mut())
}
