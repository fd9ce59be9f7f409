//! A container's image, as its pull policy says.

use std::sync::Arc;

use agent_plan::observed::Image;
use agent_plan::{after, pods, restart};
use image::Credentials;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Done, Worker};
use crate::context::Context;
use crate::events::Kind;
use crate::images::Failure;

impl Worker {
    /// Answers whether the image is settled at once.
    pub(super) fn ensure_image(&mut self, container: &str) -> bool {
        let Some(wanted) = pods::container(&self.pod, container) else {
            return false;
        };
        let name = wanted.image.clone().unwrap_or_default();
        let policy = wanted
            .image_pull_policy
            .clone()
            .unwrap_or_else(|| "IfNotPresent".to_owned());
        if policy != "Always" {
            match self.context.parts.images.resolve(&name) {
                Ok(Some(image)) => {
                    let message =
                        format!("Container image \"{name}\" already present on machine and can be accessed by the pod");
                    self.context
                        .recorder
                        .pod(&self.pod, Some(container), Kind::Normal, "Pulled", message);
                    self.images.insert(container.to_owned(), image);
                    self.memory(container).image = Image::Present;
                    return true;
                }
                Ok(None) if policy == "Never" => {
                    let message = format!("Container image \"{name}\" is not present with pull policy of Never");
                    self.image_failed(
                        container,
                        &Failure {
                            reason: "ErrImageNeverPull".to_owned(),
                            message,
                        },
                    );
                    return true;
                }
                Ok(None) => {}
                Err(failure) => {
                    self.image_failed(container, &failure);
                    return true;
                }
            }
        }
        let delay = match self.memory(container).image {
            Image::Failed { delay, .. } => delay,
            Image::Unknown | Image::Pulling { .. } | Image::Present => 0,
        };
        self.memory(container).image = Image::Pulling { delay };
        self.context.recorder.pod(
            &self.pod,
            Some(container),
            Kind::Normal,
            "Pulling",
            format!("Pulling image \"{name}\""),
        );
        let (context, pod, container) = (Arc::clone(&self.context), Arc::clone(&self.pod), container.to_owned());
        self.tasks.spawn(async move {
            let begun = Instant::now();
            let outcome = pull(&context, &pod, &name).await;
            Done::Pulled {
                container,
                outcome,
                took: begun.elapsed(),
            }
        });
        false
    }

    pub(super) fn pulled(
        &mut self,
        container: &str,
        outcome: Result<Arc<image::Image>, Failure>,
        took: std::time::Duration,
    ) {
        match outcome {
            Ok(image) => {
                let name = pods::container(&self.pod, container).and_then(|container| container.image.clone());
                let name = name.unwrap_or_default();
                let took = seconds(took);
                info!(pod = %self.id(), image = name, took, "pulled");
                let message = format!(
                    "Successfully pulled image \"{name}\" in {took} ({took} including waiting). Image size: {} bytes.",
                    image.size
                );
                self.context
                    .recorder
                    .pod(&self.pod, Some(container), Kind::Normal, "Pulled", message);
                self.images.insert(container.to_owned(), image);
                self.memory(container).image = Image::Present;
            }
            Err(failure) => self.image_failed(container, &failure),
        }
    }

    fn image_failed(&mut self, container: &str, failure: &Failure) {
        let name = pods::container(&self.pod, container).and_then(|container| container.image.clone());
        let name = name.unwrap_or_default();
        warn!(pod = %self.id(), image = name, reason = failure.reason, message = failure.message, "no image");
        let delay = match self.memory(container).image {
            Image::Failed { delay, .. } | Image::Pulling { delay } => delay,
            Image::Unknown | Image::Present => 0,
        };
        let delay = restart::next_pull_delay(delay);
        let until = after(self.context.now(), delay);
        let recorder = self.context.recorder.clone();
        match failure.reason.as_str() {
            "InvalidImageName" => {
                recorder.pod(
                    &self.pod,
                    Some(container),
                    Kind::Warning,
                    "InspectFailed",
                    failure.message.clone(),
                );
            }
            "ErrImageNeverPull" => {
                recorder.pod(
                    &self.pod,
                    Some(container),
                    Kind::Warning,
                    "ErrImageNeverPull",
                    failure.message.clone(),
                );
            }
            _ => {
                let message = format!("Failed to pull image \"{name}\": {}", failure.message);
                recorder.pod(&self.pod, Some(container), Kind::Warning, "Failed", message);
            }
        }
        recorder.pod(
            &self.pod,
            Some(container),
            Kind::Warning,
            "Failed",
            format!("Error: {}", failure.reason),
        );
        self.memory(container).image = Image::Failed {
            until,
            delay,
            reason: failure.reason.clone(),
            message: failure.message.clone(),
            waiting: false,
        };
    }

    /// Once a failed pull was shown, the wait for the next one is.
    pub(super) fn show_pull_back_off(&mut self) {
        let mut waits = Vec::new();
        for (container, memory) in &mut self.view.memory {
            if let Image::Failed {
                waiting,
                reason,
                message,
                ..
            } = &mut memory.image
                && !*waiting
                && reason == "ErrImagePull"
            {
                *waiting = true;
                waits.push((container.clone(), message.clone()));
            }
        }
        for (container, message) in waits {
            let name = pods::container(&self.pod, &container).and_then(|container| container.image.clone());
            let name = name.unwrap_or_default();
            let text = format!("Back-off pulling image \"{name}\": ErrImagePull: {message}");
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

fn seconds(took: std::time::Duration) -> String {
    if took.as_millis() < 1000 {
        format!("{}ms", took.as_millis())
    } else {
        format!("{:.3}s", took.as_secs_f64())
    }
}

async fn pull(context: &Context, pod: &Pod, name: &str) -> Result<Arc<image::Image>, Failure> {
    let credentials = credentials(context, pod, name).await;
    let _permit = context.pulls.acquire().await;
    context.parts.images.pull(name, &credentials).await
}

async fn credentials(context: &Context, pod: &Pod, name: &str) -> Vec<Credentials> {
    let mut all = Vec::new();
    let references = pod
        .spec
        .iter()
        .flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    let api: Api<Secret> = Api::namespaced(context.parts.client.clone(), pods::namespace(pod));
    for reference in references {
        let Ok(Some(secret)) = api.get_opt(&reference.name).await else {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                reference.name
            );
            context
                .recorder
                .pod(pod, None, Kind::Warning, "FailedToRetrieveImagePullSecret", message);
            continue;
        };
        for key in [".dockerconfigjson", ".dockercfg"] {
            let Some(data) = secret.data.as_ref().and_then(|data| data.get(key)) else {
                continue;
            };
            match Credentials::for_image(&data.0, name) {
                Ok(found) => all.extend(found),
                Err(error) => warn!(
                    secret = reference.name,
                    error = image::chain(&error),
                    "a pull secret is malformed"
                ),
            }
        }
    }
    all
}
