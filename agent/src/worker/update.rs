//! Volumes that follow their ConfigMaps and Secrets.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;

use agent_plan::pods;
use api::pod::References;
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::{Done, Worker};
use crate::context::Context;

impl Worker {
    /// Watches what the pod's volumes refer to, once per pod. The tasks end with the worker.
    pub(super) fn watch_sources(&mut self) {
        if self.watching {
            return;
        }
        self.watching = true;
        let pod = Arc::clone(&self.pod);
        let references = pod.spec.as_ref().map(References::of_volumes).unwrap_or_default();
        for name in references.config_maps {
            self.follow::<ConfigMap>(name);
        }
        for name in references.secrets {
            self.follow::<Secret>(name);
        }
    }

    fn follow<K>(&mut self, name: &str)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + k8s_openapi::Metadata
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let (context, pod, addresses) = (Arc::clone(&self.context), Arc::clone(&self.pod), self.pod_addresses());
        let field = format!("metadata.name={name}");
        self.tasks.spawn(async move {
            let api: Api<K> = Api::namespaced(context.parts.client.clone(), pods::namespace(&pod));
            let configuration = watcher::Config::default().fields(&field);
            let mut changes = pin!(watcher(api, configuration).default_backoff().applied_objects());
            let mut first = true;
            while let Some(change) = changes.next().await {
                if change.is_ok() && !std::mem::take(&mut first) {
                    refresh(&context, &pod, &addresses).await;
                }
            }
            Done::Changed
        });
    }
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
