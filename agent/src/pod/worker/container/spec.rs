//! OCI configuration of a container, assembled from all of its sources.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_plan::container::{environment, oci, user};
use agent_plan::pod::pods;
use api::pod::References;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use runtime::{ContainerSpec, Stdin};

use super::plan::Plan;
use super::unstarted::{Failure, named};
use crate::client::sources;
use crate::context::Context;
use crate::networking::services;
use crate::node::devices::container::Extras;
use crate::pod::worker::create_within;

/// Maximum size of a seccomp profile.
const PROFILE_BYTES: u64 = 1 << 20;

/// Inputs of a container's configuration besides its plan.
struct Gathered {
    sources: environment::Sources,
    surroundings: environment::Surroundings,
    /// Paths of the images that are mounted as volumes.
    shown: BTreeMap<String, PathBuf>,
    pid_of: Option<String>,
    /// What comes with its devices.
    extras: Extras,
}

pub(in crate::pod::worker) async fn specification(plan: &Arc<Plan>) -> Result<ContainerSpec, Failure> {
    let gathered = gather(plan).await?;
    let plan = Arc::clone(plan);
    // The input is untrusted: it may be long, and the file systems that it is read from and bound
    // from may block.
    let assembled = common::task::spawn_blocking(move || assemble(&plan, gathered)).await;
    assembled.unwrap_or_else(|error| Err(Failure::creation(error.to_string())))
}

/// Returns the configuration of a container whose inputs are in the agent's own file systems only.
pub(super) async fn own_specification(plan: &Plan) -> Result<ContainerSpec, Failure> {
    assemble(plan, gather(plan).await?)
}

async fn gather(plan: &Plan) -> Result<Gathered, Failure> {
    let Plan { context, pod, .. } = plan;
    let pid_of = plan.target.clone().transpose().map_err(Failure::configuration)?;
    let container = &*of(plan)?;
    let references = References::of_container(container);
    let sources = if references.is_empty() {
        environment::Sources::default()
    } else {
        let (client, objects) = (&context.parts.client, &context.objects);
        let fetched = sources::fetch(client, objects, pods::namespace(pod), &references).await;
        fetched.map_err(|error| Failure::configuration(error.told()))?
    };
    let surroundings = services::surroundings(context, pod, &plan.addresses).await;
    let surroundings = surroundings.map_err(Failure::configuration)?;
    let extras = Box::pin(context.devices.prepare(pod, container)).await;
    let mut extras = extras.map_err(Failure::configuration)?;
    add_volumes(context, pod, container, &mut extras).map_err(Failure::configuration)?;
    Ok(Gathered {
        sources,
        surroundings,
        shown: super::image_volumes::mount(plan).await?,
        pid_of,
        extras,
    })
}

/// Adds the block devices of claims (`makeBlockVolumes`, `pkg/kubelet/kubelet_pods.go`).
fn add_volumes(context: &Context, pod: &Pod, container: &Container, extras: &mut Extras) -> Result<(), String> {
    for device in container.volume_devices.iter().flatten() {
        let (name, path) = (&device.name, &device.device_path);
        if !path.starts_with('/') {
            return Err(format!("error DevicePath `{path}` must be an absolute path"));
        }
        let missing = || {
            format!(
                "cannot find volume {name:?} to pass into container {:?}",
                container.name
            )
        };
        let link = context.volumes.device(pods::uid(pod), name).ok_or_else(missing)?;
        let volume = pods::volumes(pod).iter().find(|volume| volume.name == *name);
        let claim = volume.and_then(|volume| volume.persistent_volume_claim.as_ref());
        let read_only = claim.is_some_and(|claim| claim.read_only == Some(true));
        extras.add_device(path, &link, if read_only { "r" } else { "rwm" });
    }
    Ok(())
}

fn of(plan: &Plan) -> Result<Cow<'_, Container>, Failure> {
    let missing = || Failure::configuration(format!("container {} not found in the pod", plan.container));
    pods::container(&plan.pod, &plan.container).ok_or_else(missing)
}

/// Blocks.
fn assemble(plan: &Plan, gathered: Gathered) -> Result<ContainerSpec, Failure> {
    let Gathered {
        mut sources,
        surroundings,
        shown,
        pid_of,
        extras,
    } = gathered;
    let Plan { context, pod, .. } = plan;
    let container = &*of(plan)?;
    let spec = pod
        .spec
        .as_ref()
        .ok_or_else(|| Failure::configuration("the pod has no specification".to_owned()))?;
    sources.files = super::mounts::files(plan, container);
    let configuration = plan.image.config.config().clone().unwrap_or_default();
    let extras = extras.resolved().map_err(Failure::creation)?;
    let image = image_of(plan, &extras);
    let volumes = oci::volumes(configuration.volumes().iter().flatten());
    let volumes = volumes.map_err(|error| Failure::creation(error.to_string()))?;
    let variables = environment::own(pod, container, &sources, &surroundings)
        .map_err(|error| Failure::configuration(error.to_string()))?;
    let user = user_of(plan, spec, container, configuration.user().as_deref())?;
    let labels = context.se_linux.labels(pod, container, &plan.sandbox);
    let labels = labels.map_err(|why| Failure::creation(format!("failed to generate container spec: {why}")))?;
    let file_label = labels.as_ref().map(|labels| labels.mount.as_str());
    let own = super::mounts::mounts(plan, container, &variables, &shown, file_label)?;
    // Volumes cover what comes with devices.
    let devices = extras.nodes(pod).map_err(Failure::creation)?;
    let nodes = devices.iter().filter_map(oci::Device::mount);
    let mounts: Vec<oci::Mount> = extras.mounts().chain(own).chain(nodes).collect();
    let abilities = context.abilities();
    let seccomp = seccomp_file(context, pod, container)?;
    let app_armor = context.app_armor.profile(pod, container).map_err(unarmoured)?;
    let inputs = oci::Inputs {
        pod,
        container,
        image: &image,
        sources: &sources,
        surroundings: &surroundings,
        mounts: &mounts,
        devices: &devices,
        abilities: &abilities,
        seccomp: seccomp.as_deref(),
        app_armor: app_armor.as_deref(),
        se_linux: labels.as_ref(),
    };
    let mut spec = oci::build(&inputs).map_err(|error| unbuilt(&error))?;
    if !extras.annotations.is_empty() {
        spec.set_annotations(Some(extras.annotations.into_iter().collect()));
    }
    let made = |logs: &Path| create_within(context, logs, &container.name);
    let logs = context.config.logs.place(pod, made);
    let logs = logs.map_err(|error| Failure::creation(error.to_string()))?;
    let logs = logs.join(&container.name);
    Ok(ContainerSpec {
        id: format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple()),
        name: container.name.clone(),
        attempt: plan.attempt,
        image: container.image.clone().unwrap_or_default(),
        image_id: plan.image.image_id().to_owned(),
        layers: plan.image.layers.clone(),
        snapshot: plan.image.snapshot.clone(),
        spec,
        volumes,
        user,
        pid_of,
        stdin: stdin(container),
        log_path: logs.join(format!("{}.log", plan.attempt)),
        annotations: annotations(plan),
    })
}

/// Configuration of the image, with the variables that come with devices.
fn image_of(plan: &Plan, extras: &Extras) -> oci::Image {
    let configuration = plan.image.config.config().clone().unwrap_or_default();
    let own = configuration.env().clone().unwrap_or_default();
    oci::Image {
        entrypoint: configuration.entrypoint().clone().unwrap_or_default(),
        command: configuration.cmd().clone().unwrap_or_default(),
        environment: own.into_iter().chain(extras.environment()).collect(),
        working_directory: configuration.working_dir().clone(),
    }
}

fn unarmoured(why: impl std::fmt::Display) -> Failure {
    let what = "failed to get container spec opts: failed to generate apparmor spec opts";
    Failure::creation(format!("{what}: {why}"))
}

fn unbuilt(error: &oci::SpecError) -> Failure {
    match error {
        oci::SpecError::Reference(_) => Failure::configuration(error.to_string()),
        oci::SpecError::NoCommand
        | oci::SpecError::WorkingDirectory(_)
        | oci::SpecError::Seccomp(_)
        | oci::SpecError::Volumes(..)
        | oci::SpecError::Invalid(_) => Failure::creation(error.to_string()),
    }
}

/// Annotations with the images of a container.
fn annotations(plan: &Plan) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([(crate::images::ID.to_owned(), plan.image.id.clone())]);
    if !plan.volume_images.is_empty() {
        let ids: Vec<&str> = plan.volume_images.values().map(|image| image.id.as_str()).collect();
        all.insert(crate::images::SHOWN.to_owned(), ids.join(","));
    }
    all
}

fn stdin(container: &Container) -> Stdin {
    match (container.stdin, container.stdin_once) {
        (Some(true), Some(true)) => Stdin::Once,
        (Some(true), _) => Stdin::Open,
        (_, _) => Stdin::Closed,
    }
}

/// Reads the localhost seccomp profile of a container.
fn seccomp_file(context: &Context, pod: &Pod, container: &Container) -> Result<Option<Vec<u8>>, Failure> {
    let Some(file) = oci::localhost_profile(pod, container) else {
        return Ok(None);
    };
    let profiles = context.config.state_directory.join("seccomp");
    let text = crate::confined::below(&profiles, file, PROFILE_BYTES).map_err(|error| {
        let path = profiles.join(file);
        let why = if error.kind() == std::io::ErrorKind::NotFound {
            format!("open {}: no such file or directory", path.display())
        } else {
            error.to_string()
        };
        let what = format!("cannot load seccomp profile \"{}\": {why}", path.display());
        Failure::creation(format!("failed to create container: {what}"))
    })?;
    Ok(Some(text))
}

fn user_of(plan: &Plan, spec: &PodSpec, container: &Container, image: Option<&str>) -> Result<runtime::User, Failure> {
    let Plan { context, pod, .. } = plan;
    let mut user = user::build(spec, container, image)
        .map_err(|error| Failure::configuration(named(&error, pod, &container.name)))?;
    user.supplementary.extend(context.volumes.groups(pods::uid(pod)));
    Ok(runtime::User {
        user: user.user,
        group: user.group,
        supplementary: user.supplementary,
        must_not_be_root: user.must_not_be_root,
        strict_groups: user.strict_groups,
    })
}
