//! Images of containers and of their image volumes, according to the pull policies.

mod secrets;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::pod::observed::{Image, Sandbox};
use agent_plan::pod::{pods, restart};
use agent_plan::{Timestamp, after};
use api::duration;
use image::Credentials;
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{info, warn};

use super::pull::secrets::keys;
use super::{Done, Worker};
use crate::client::events::Kind;
use crate::context::Context;
use crate::images::credentials::Key;
use crate::images::{Failure, shown};

/// Interval of looks whether an image that could not be pulled is present by now.
const LOOK_SECONDS: i64 = 10;

/// Image that a container needs.
#[derive(Clone)]
pub(crate) struct Wanted {
    /// Name of the volume; `None` for the container's own image.
    volume: Option<String>,
    name: String,
    policy: String,
}

/// Result of a pull.
pub(crate) struct Outcome {
    wanted: Wanted,
    image: Result<Arc<image::Image>, Failure>,
    /// Duration of the pull, without and with its wait for others; `None` if the image was present
    /// and the pod may use it.
    took: Option<(Duration, Duration)>,
}

impl Wanted {
    /// Returns the images of a container, those of its volumes first.
    fn by(pod: &Pod, container: &Container) -> Vec<Self> {
        let text = |text: &Option<String>, otherwise: &str| text.clone().unwrap_or_else(|| otherwise.to_owned());
        let volumes = pods::image_volumes(pod, container).map(|(volume, source)| Self {
            volume: Some(volume.to_owned()),
            name: text(&source.reference, ""),
            policy: text(&source.pull_policy, "IfNotPresent"),
        });
        let own = Self {
            volume: None,
            name: text(&container.image, ""),
            policy: text(&container.image_pull_policy, "IfNotPresent"),
        };
        volumes.chain([own]).collect()
    }

    /// Container of the events: an image volume belongs to the pod as a whole.
    fn subject<'a>(&self, container: &'a str) -> Option<&'a str> {
        self.volume.is_none().then_some(container)
    }
}

impl Worker {
    /// Returns whether all images of a container are present without a pull.
    pub(super) fn ensure_image(&mut self, container: &str) -> bool {
        let Some(wanted) = pods::container(&self.pod, container).map(|found| Wanted::by(&self.pod, &found)) else {
            return false;
        };
        let mut missing = Vec::new();
        self.present.remove(container);
        for wanted in wanted {
            match self.have(container, &wanted) {
                Ok(true) => {}
                Ok(false) => missing.push(wanted),
                Err(failure) => {
                    self.image_failed(container, &wanted, &failure);
                    return true;
                }
            }
        }
        if missing.is_empty() {
            self.memory(container).image = Image::Present;
            self.tell_missing_secrets();
            return true;
        }
        let delay = match self.memory(container).image {
            Image::Failed { delay, .. } => delay,
            Image::Unknown | Image::Pulling { .. } | Image::Present => 0,
        };
        self.memory(container).image = Image::Pulling { delay };
        let (context, pod, container) = (Arc::clone(&self.context), Arc::clone(&self.pod), container.to_owned());
        let own = Arc::clone(&self.pulls);
        self.tasks.spawn(async move {
            let mut outcomes = Vec::new();
            for wanted in missing {
                let outcome = fetch(&context, &own, &pod, &container, wanted).await;
                let failed = outcome.image.is_err();
                outcomes.push(outcome);
                if failed {
                    break;
                }
            }
            Done::Pulled { container, outcomes }
        });
        false
    }

    /// Records events of missing pull secrets even if nothing is pulled, as a kubelet does.
    fn tell_missing_secrets(&mut self) {
        if !secrets::are_named(&self.pod) {
            return;
        }
        let (context, pod) = (Arc::clone(&self.context), Arc::clone(&self.pod));
        self.tasks.spawn(async move {
            secrets::found(&context, &pod).await;
            Done::Changed
        });
    }

    /// True if the image is present and need not be pulled.
    fn have(&mut self, container: &str, wanted: &Wanted) -> Result<bool, Failure> {
        let Wanted { name, policy, .. } = wanted;
        // First: an invalid name is reported before anything else.
        let found = self.context.parts.images.resolve(name)?;
        if policy == "Always" {
            return Ok(false);
        }
        if let Some(image) = found {
            // The pod keeps its access to an image that it has used.
            let before = match &wanted.volume {
                Some(volume) => self.volume_images.get(volume),
                None => self.images.get(container),
            };
            let own = before.is_some_and(|before| before.id == image.id);
            if !own && !self.context.pull_records.are_everybodys(&image, name) {
                return Ok(false);
            }
            self.present(container, wanted, image);
            return Ok(true);
        }
        if policy == "Never" {
            return Err(absent(name));
        }
        Ok(false)
    }

    /// Ends the back-off of images that have been imported, or pulled for another pod, as a kubelet
    /// notices when it synchronizes the pod; returns when to look again.
    pub(super) fn look_for_images(&mut self, now: Timestamp) -> Option<Timestamp> {
        if self.view.sandbox == Sandbox::Removed {
            return None;
        }
        let waits = self.view.memory.iter().filter_map(|(container, memory)| {
            let Image::Failed { until, name, .. } = &memory.image else {
                return None;
            };
            (*until > now).then(|| (container.clone(), name.clone()))
        });
        let waits: Vec<(String, String)> = waits.collect();
        let mut again = None;
        for (container, name) in waits {
            if !self.is_present(&container, &name) {
                again = Some(after(now, LOOK_SECONDS));
            } else if let Image::Failed { until, .. } = &mut self.memory(&container).image {
                *until = now;
            }
        }
        again
    }

    /// True if an image of a container is present and not pulled again for it.
    fn is_present(&self, container: &str, name: &str) -> bool {
        let wanted = pods::container(&self.pod, container).map(|found| Wanted::by(&self.pod, &found));
        let mut wanted = wanted.into_iter().flatten().filter(|wanted| wanted.name == name);
        let image = || self.context.parts.images.resolve(name).ok().flatten();
        wanted.all(|wanted| wanted.policy != "Always")
            && image().is_some_and(|image| self.context.pull_records.are_everybodys(&image, name))
    }

    /// Records that an image is present and need not be pulled.
    fn present(&mut self, container: &str, wanted: &Wanted, image: Arc<image::Image>) {
        let name = &wanted.name;
        let text = format!("Container image \"{name}\" already present on machine and can be accessed by the pod");
        let own = wanted.subject(container).is_some();
        self.present.entry(container.to_owned()).or_default().push((own, text));
        self.keep(container, wanted, image);
    }

    /// Records events of present images of a container that is about to start.
    pub(super) fn tell_present(&mut self, container: &str) {
        for (own, text) in self.present.remove(container).unwrap_or_default() {
            let recorder = &self.context.recorder;
            recorder.pod(&self.pod, own.then_some(container), Kind::Normal, "Pulled", text);
        }
    }

    fn keep(&mut self, container: &str, wanted: &Wanted, image: Arc<image::Image>) {
        match &wanted.volume {
            Some(volume) => self.volume_images.insert(volume.clone(), image),
            None => self.images.insert(container.to_owned(), image),
        };
    }

    /// Resets the image state of containers whose image has changed.
    pub(super) fn forget_images(&mut self, before: &Pod) {
        let before: BTreeMap<&str, _> = pods::all_containers(before)
            .map(|container| (container.name.as_str(), &container.image))
            .collect();
        let changed: Vec<String> = pods::all_containers(&self.pod)
            .filter(|container| {
                before
                    .get(container.name.as_str())
                    .is_some_and(|old| **old != container.image)
            })
            .map(|container| container.name.clone())
            .collect();
        for container in changed {
            let memory = self.memory(&container);
            // Failures of the previous image do not count.
            memory.back_off = restart::BackOff::default();
            // A pull in progress continues, and its result is checked then.
            if !matches!(memory.image, Image::Pulling { .. }) {
                memory.image = Image::Unknown;
            }
        }
    }

    /// True if the container's image has changed since the pull was requested.
    fn is_outdated(&self, container: &str, wanted: &Wanted) -> bool {
        let named = pods::container(&self.pod, container).and_then(|found| found.image.clone());
        wanted.volume.is_none() && named.as_ref() != Some(&wanted.name)
    }

    pub(super) fn pulled(&mut self, container: &str, outcomes: Vec<Outcome>) {
        if outcomes
            .iter()
            .any(|outcome| self.is_outdated(container, &outcome.wanted))
        {
            self.memory(container).image = Image::Unknown;
            return;
        }
        for Outcome { wanted, image, took } in outcomes {
            match (image, took) {
                (Ok(image), None) => self.present(container, &wanted, image),
                (Ok(image), Some((took, whole))) => {
                    self.context.pull_times.count(image.size, whole);
                    let (name, took, whole) = (&wanted.name, told(took), told(whole));
                    info!(pod = %self.id(), image = name, took, "pulled");
                    let text = format!(
                        "Successfully pulled image \"{name}\" in {took} ({whole} including waiting). Image size: {} bytes.",
                        image.size
                    );
                    let recorder = &self.context.recorder;
                    recorder.pod(&self.pod, wanted.subject(container), Kind::Normal, "Pulled", text);
                    self.keep(container, &wanted, image);
                }
                (Err(failure), _) => return self.image_failed(container, &wanted, &failure),
            }
        }
        self.memory(container).image = Image::Present;
    }

    fn image_failed(&mut self, container: &str, wanted: &Wanted, failure: &Failure) {
        let Wanted { name, .. } = wanted;
        warn!(pod = %self.id(), image = shown(name), reason = failure.reason, message = failure.message, "no image");
        // Pulling is a part of the start, as in the kubelet.
        self.context.started.container(&self.pod, container);
        self.context
            .started
            .container_failed(&self.pod, container, &failure.reason);
        let delay = match self.memory(container).image {
            Image::Failed { delay, .. } | Image::Pulling { delay } => delay,
            Image::Unknown | Image::Present => 0,
        };
        let delay = restart::next_pull_delay(delay);
        let until = after(self.context.now(), delay);
        let (reason, text) = match failure.reason.as_str() {
            "InvalidImageName" => ("InspectFailed", failure.message.clone()),
            "ErrImageNeverPull" => ("ErrImageNeverPull", failure.message.clone()),
            _ => (
                "Failed",
                format!("Failed to pull image \"{}\": {}", shown(name), failure.message),
            ),
        };
        let recorder = &self.context.recorder;
        recorder.pod(&self.pod, wanted.subject(container), Kind::Warning, reason, text);
        let text = format!("Error: {}", failure.reason);
        recorder.pod(&self.pod, Some(container), Kind::Warning, "Failed", text);
        self.memory(container).image = Image::Failed {
            until,
            delay,
            reason: failure.reason.clone(),
            message: failure.message.clone(),
            name: name.clone(),
            waiting: false,
        };
    }

    /// Shows the back-off of the next pull, after the failed one was shown.
    pub(super) fn show_pull_back_off(&mut self) {
        let mut waits = Vec::new();
        for (container, memory) in &mut self.view.memory {
            if let Image::Failed {
                waiting, reason, name, ..
            } = &mut memory.image
                && !*waiting
                && reason == "ErrImagePull"
            {
                *waiting = true;
                waits.push((container.clone(), name.clone()));
            }
        }
        for (container, name) in waits {
            // The cause is in the status only (`pkg/kubelet/images/image_manager.go`, `pullImage`).
            let text = format!("Back-off pulling image \"{name}\"");
            self.context
                .recorder
                .pod(&self.pod, Some(&container), Kind::Normal, "BackOff", text);
            let text = "Error: ImagePullBackOff".to_owned();
            self.context
                .recorder
                .pod(&self.pod, Some(&container), Kind::Warning, "Failed", text);
        }
    }
}

/// Formats whole milliseconds as Go does.
fn told(took: Duration) -> String {
    let milliseconds = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
    duration::text(milliseconds.saturating_mul(1_000_000))
}

async fn fetch(context: &Context, own: &Semaphore, pod: &Pod, container: &str, wanted: Wanted) -> Outcome {
    let keys = keys(context, pod, &wanted.name).await;
    if let Some(image) = held(context, &wanted, &keys).transpose() {
        let took = None;
        return Outcome { wanted, image, took };
    }
    let text = format!("Pulling image \"{}\"", wanted.name);
    let recorder = &context.recorder;
    recorder.pod(pod, wanted.subject(container), Kind::Normal, "Pulling", text);
    let waits = Instant::now();
    // A single pod does not queue before all others.
    let _turn = own.acquire().await;
    let _permit = context.pulls.acquire().await;
    let begun = Instant::now();
    let image = pull(context, &wanted.name, &keys).await;
    context.operations.note("pull_image", begun.elapsed(), image.is_err());
    Outcome {
        wanted,
        image,
        took: Some((begun.elapsed(), waits.elapsed())),
    }
}

/// Failure for an image that is absent with the pull policy `Never`.
fn absent(name: &str) -> Failure {
    Failure {
        reason: "ErrImageNeverPull".to_owned(),
        message: format!("Container image \"{name}\" is not present with pull policy of Never"),
    }
}

/// Returns an image that was pulled with credentials before, for a pod that has them.
fn held(context: &Context, wanted: &Wanted, keys: &[(Key, Credentials)]) -> Result<Option<Arc<image::Image>>, Failure> {
    let Wanted { name, policy, .. } = wanted;
    if policy == "Always" {
        return Ok(None);
    }
    let Some(image) = context.parts.images.resolve(name)? else {
        // It may have been removed since.
        return if policy == "Never" { Err(absent(name)) } else { Ok(None) };
    };
    let own: Vec<Key> = keys.iter().map(|(key, _)| key.clone()).collect();
    if context.pull_records.admit(&image, name, &own) {
        return Ok(Some(image));
    }
    // A pod without access does not learn that the image is present.
    if policy == "Never" { Err(absent(name)) } else { Ok(None) }
}

/// Pulls with the pod's keys, the node's credentials, or anonymously if none is accepted; records the
/// key that was used. What the node's credentials open is for all pods, as with the kubelet
/// (`pkg/kubelet/images/image_manager.go`).
async fn pull(context: &Context, name: &str, keys: &[(Key, Credentials)]) -> Result<Arc<image::Image>, Failure> {
    let images = &context.parts.images;
    let mut shown: Vec<Credentials> = keys.iter().map(|(_, credentials)| credentials.clone()).collect();
    shown.extend(secrets::of_node(context, name).await);
    let mut intent = None;
    if !keys.is_empty() {
        let before = images.resolve(name).ok().flatten();
        let before = before.as_ref().map(|image| image.id.as_str());
        let written = context.pull_records.intend(name, before).await;
        let failed = |error: std::io::Error| Failure {
            reason: "ErrImagePull".to_owned(),
            message: format!("Failed to record image pull intent for container image {name:?}: {error}"),
        };
        intent = Some(written.map_err(failed)?);
    }
    let image::Pulled {
        image: pulled,
        opened_by,
    } = match images.pull(name, &shown).await {
        Ok(pulled) => pulled,
        Err(failure) => {
            if let Some(intent) = intent
                && let Err(error) = context.pull_records.failed(intent).await
            {
                warn!(%error, "it could not be written down that a pull failed");
            }
            return Err(failure);
        }
    };
    let key = keys
        .iter()
        .find(|(_, credentials)| Some(credentials) == opened_by.as_ref());
    let key = key.map(|(key, _)| key);
    let listed = images.list();
    let present = |id: &str| listed.iter().any(|image| image.id == id);
    if let Err(error) = context
        .pull_records
        .learn((&pulled.id, name), key, intent, present)
        .await
    {
        warn!(%error, "it could not be written down who may use an image");
    }
    Ok(pulled)
}
