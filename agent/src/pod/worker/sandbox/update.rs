//! Updates of volumes: ConfigMaps, Secrets, the pod's own labels and annotations, and tokens that
//! are renewed.

use std::sync::Arc;
use std::time::Duration;

use agent_plan::pod::pods;
use agent_plan::volume::tokens::ProjectedToken;
use api::pod::References;
use futures::FutureExt;
use futures::future::{BoxFuture, pending, select_all};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use volume::Turns;

use crate::client::events;
use crate::client::objects::{Kind, Object, Seen};
use crate::context::Context;
use crate::pod::worker::{Done, Worker};

/// Maximum number of watched objects of one pod.
const WATCHED: usize = 64;
/// Interval between reads of objects that are not watched, and of what drivers' volumes need.
const RESYNC_INTERVAL: Duration = Duration::from_mins(1);
/// Time until the next attempt after a failure, and until a token is requested again after a failed
/// renewal.
const RETRY: Duration = Duration::from_mins(1);

impl Worker {
    /// Starts to watch the objects of the pod's volumes, once per pod.
    pub(super) fn follow_sources(&mut self) {
        if !self.sources.is_empty() {
            return;
        }
        let Some(spec) = &self.pod.spec else { return };
        let references = References::of_volumes(spec);
        let namespace = pods::namespace(&self.pod);
        let config_maps = references.config_maps.iter().map(|name| (Kind::ConfigMap, name));
        let secrets = references.secrets.iter().map(|name| (Kind::Secret, name));
        let objects = config_maps
            .chain(secrets)
            .take(WATCHED)
            .filter_map(|(kind, name)| self.context.objects.follow(kind, namespace, name));
        let followed = |object: Arc<Object>| {
            let changes = object.changes();
            (object, changes)
        };
        self.sources = objects.map(followed).collect();
    }

    /// Releases the objects, so that the next pod that shows them need not wait.
    pub(in crate::pod::worker) fn leave_sources(&mut self) {
        for (object, _) in self.sources.drain(..) {
            self.context.objects.leave(object);
        }
    }

    /// True if the volumes show more objects than are watched.
    fn shows_more(&self) -> bool {
        let references = self.pod.spec.as_ref().map(References::of_volumes).unwrap_or_default();
        references.config_maps.len() + references.secrets.len() > self.sources.len()
    }

    /// Updates volumes for a newer version of the pod: files may contain its labels and
    /// annotations.
    pub(in crate::pod::worker) fn update_volumes(&self, before: &Pod) {
        let (old, new) = (&before.metadata, &self.pod.metadata);
        let same = old.labels == new.labels && old.annotations == new.annotations;
        if !same {
            self.tell_of_itself();
        }
    }

    /// Rewrites downward API files: they may contain the pod's labels, annotations and resources.
    pub(in crate::pod::worker) fn tell_of_itself(&self) {
        if self.watching && tells_of_itself(&self.pod) {
            self.stale.notify_one();
        }
    }

    /// Keeps the volumes up to date, once per pod. The task ends with the worker.
    pub(in crate::pod::worker) fn watch_sources(&mut self) {
        if std::mem::replace(&mut self.watching, true) {
            return;
        }
        self.follow_sources();
        let renews = !ProjectedToken::of_volumes(&self.pod).is_empty();
        // Volumes of drivers are expanded, and mounted again.
        let looks = self.shows_more() || super::claims::has_mounted(&self.context, pods::uid(&self.pod));
        if self.sources.is_empty() && !renews && !looks && !tells_of_itself(&self.pod) {
            return;
        }
        let (context, addresses) = (Arc::clone(&self.context), self.pod_addresses());
        // Not the pod itself: this task would keep an old version.
        let uid = pods::uid(&self.pod).to_owned();
        let (stale, turns) = (Arc::clone(&self.stale), Arc::clone(&self.turns));
        let mut changes: Vec<_> = self.sources.iter().map(|(_, changes)| changes.clone()).collect();
        self.tasks.spawn(async move {
            let mut wait = renews.then(|| until_renewal(&context, &uid));
            loop {
                if looks {
                    wait = Some(wait.map_or(RESYNC_INTERVAL, |wait| wait.min(RESYNC_INTERVAL)));
                }
                tokio::select! {
                    () = any(&mut changes) => {}
                    () = stale.notified() => {}
                    // Tokens may be over, or not be valid yet.
                    () = context.stepped.notified() => {}
                    () = crate::pod::worker::sleep_for(wait) => {}
                }
                let known = context.known_pod(&uid).into_iter().collect();
                let Some(pod) = context.allocations.given(known).pop() else {
                    // The pod is gone, and its worker is about to end.
                    return Done::Changed;
                };
                // Boxed: the task mostly waits, and there is one for each pod.
                let refreshed = Box::pin(refresh(&context, &pod, &addresses, &turns)).await;
                wait = if refreshed {
                    renews.then(|| until_renewal(&context, &uid).max(RETRY))
                } else {
                    Some(RETRY)
                };
            }
        });
    }
}

/// True if a volume has files with fields of the pod (downward API).
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

/// Returns the time until a token of the pod must be renewed. A restarted agent has no tokens and
/// requests them.
fn until_renewal(context: &Context, uid: &str) -> Duration {
    let renew_at = context.tokens.renew_at(uid);
    let left = renew_at.map(|at| at.duration_since(context.now()));
    left.and_then(|left| Duration::try_from(left).ok()).unwrap_or_default()
}

/// Waits until one of the objects changes.
async fn any(changes: &mut [watch::Receiver<Seen>]) {
    let waits: Vec<BoxFuture<'_, ()>> = changes.iter_mut().map(|change| changed(change).boxed()).collect();
    if waits.is_empty() {
        return pending().await;
    }
    select_all(waits).await;
}

async fn changed(change: &mut watch::Receiver<Seen>) {
    if change.changed().await.is_err() {
        // The watch ends only with its holders.
        pending::<()>().await;
    }
}

async fn refresh(context: &Context, pod: &Pod, addresses: &[std::net::IpAddr], turns: &Arc<Turns>) -> bool {
    let refreshed = super::prepare::volumes(context, pod, addresses, turns).await;
    let Err(failure) = refreshed else { return true };
    // As upstream, which mounts them again from time to time, unless the pod is to end.
    if pod.metadata.deletion_timestamp.is_none() && pods::terminal_phase(pod).is_none() {
        for message in &failure.messages {
            let recorder = &context.recorder;
            recorder.pod(pod, None, events::Kind::Warning, failure.reason, message.clone());
        }
    }
    let message = failure.into_message();
    tracing::warn!(
        pod = pods::name(pod),
        message,
        "volumes could not be brought up to date"
    );
    false
}
