//! Volumes that follow their ConfigMaps and Secrets, and the pod's own labels and annotations.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;

use agent_plan::pods;
use api::pod::References;
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::{Done, Worker};
use crate::context::Context;

/// Versions of the objects that volumes were made from.
pub(crate) type Seen = BTreeSet<String>;

impl Worker {
    /// Watches what the pod's volumes refer to, once per pod; of what was seen already nothing is news. The tasks end with the
    /// worker. One of them does all the writing: it does not matter how many changes it is told of at once.
    pub(super) fn watch_sources(&mut self, seen: &Seen) {
        if self.watching {
            return;
        }
        self.watching = true;
        let pod = Arc::clone(&self.pod);
        let references = pod.spec.as_ref().map(References::of_volumes).unwrap_or_default();
        if references.is_empty() && !tells_of_itself(&pod) {
            return;
        }
        for name in references.config_maps {
            self.follow::<ConfigMap>(name, seen);
        }
        for name in references.secrets {
            self.follow::<Secret>(name, seen);
        }
        let (context, addresses, stale) = (Arc::clone(&self.context), self.pod_addresses(), Arc::clone(&self.stale));
        self.tasks.spawn(async move {
            loop {
                stale.notified().await;
                let newest = context.known_pod(pods::uid(&pod));
                refresh(&context, newest.as_ref().unwrap_or(&pod), &addresses).await;
            }
        });
    }

    /// A newer version of the pod: files may tell of its labels and annotations.
    pub(super) fn update_volumes(&self, before: &Pod) {
        let (old, new) = (&before.metadata, &self.pod.metadata);
        let same = old.labels == new.labels && old.annotations == new.annotations;
        if !same && self.watching && tells_of_itself(&self.pod) {
            self.stale.notify_one();
        }
    }

    fn follow<K>(&mut self, name: &str, seen: &Seen)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + k8s_openapi::Metadata
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let (context, pod, stale) = (
            Arc::clone(&self.context),
            Arc::clone(&self.pod),
            Arc::clone(&self.stale),
        );
        let field = format!("metadata.name={name}");
        let seen = seen.clone();
        self.tasks.spawn(async move {
            let api: Api<K> = Api::namespaced(context.parts.client.clone(), pods::namespace(&pod));
            let configuration = watcher::Config::default().fields(&field);
            let mut changes = pin!(watcher(api, configuration).default_backoff());
            let known = |object: &K| {
                object
                    .meta()
                    .resource_version
                    .as_ref()
                    .is_some_and(|own| seen.contains(own))
            };
            while let Some(change) = changes.next().await {
                match change {
                    Ok(Event::InitApply(object) | Event::Apply(object)) if known(&object) => {}
                    Ok(Event::InitApply(_) | Event::Apply(_) | Event::Delete(_)) => stale.notify_one(),
                    Ok(Event::Init | Event::InitDone) | Err(_) => {}
                }
            }
            Done::Changed
        });
    }
}

/// Whether a volume has files about the pod itself.
fn tells_of_itself(pod: &Pod) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let mut told = volumes.map(|volume| {
        let projected = volume
            .projected
            .iter()
            .flat_map(|projected| projected.sources.iter().flatten());
        volume.downward_api.is_some() || projected.into_iter().any(|source| source.downward_api.is_some())
    });
    told.any(|told| told)
}

async fn refresh(context: &Context, pod: &Pod, addresses: &[std::net::IpAddr]) {
    if let Err(failure) = super::prepare::volumes(context, pod, addresses).await {
        let message = failure.into_message();
        tracing::warn!(
            pod = pods::name(pod),
            message,
            "volumes could not be brought up to date"
        );
    }
}
