//! Garbage collection of unused images when their disk is nearly full.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::node::collection::{self, Policy, Records};
use agent_plan::pod::pods;
use image::Image;
use tokio::time::Instant;
use tracing::{info, warn};

use super::signals;
use crate::client::events::Kind;
use crate::context::Context;

const INTERVAL: Duration = Duration::from_mins(5);

/// Image garbage collector, with the times of last use.
pub(super) struct Collector {
    policy: Policy,
    records: Records,
    next: Option<Instant>,
    failed: bool,
}

impl Collector {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
            records: Records::default(),
            next: None,
            failed: false,
        }
    }

    /// Removes images if it is due and their disk is nearly full.
    pub(super) async fn turn(&mut self, context: &Arc<Context>) {
        let now = Instant::now();
        if self.policy.high >= 100 || self.next.is_some_and(|next| now < next) {
            return;
        }
        self.next = Some(now + INTERVAL);
        match self.collect(context).await {
            Ok(()) => self.failed = false,
            Err(message) => {
                warn!(message, "images could not be collected");
                // A single failure is not reported.
                if std::mem::replace(&mut self.failed, true) {
                    context.node_event(Kind::Warning, "ImageGCFailed", message);
                }
            }
        }
    }

    async fn collect(&mut self, context: &Arc<Context>) -> Result<(), String> {
        let in_use = in_use(context).await?;
        self.note(context, &in_use);
        let Some(disk) = signals::disk(&context.image_directory()) else {
            return Ok(());
        };
        let (capacity, available) = (disk.space.capacity, disk.space.available);
        if capacity == 0 {
            let message = "invalid capacity 0 on image filesystem";
            context.node_event(Kind::Warning, "InvalidDiskCapacity", message.to_owned());
            return Err(message.to_owned());
        }
        let bytes = |amount: i64| u64::try_from(amount).unwrap_or(0);
        let Some(wanted) = self.policy.surplus(bytes(capacity), bytes(available)) else {
            return Ok(());
        };
        let freed = self.free(context, &in_use, wanted).await?;
        if freed >= wanted {
            return Ok(());
        }
        let message = collection::shortage(bytes(capacity), bytes(available), freed);
        context.node_event(Kind::Warning, "FreeDiskSpaceFailed", message.clone());
        Err(message)
    }

    /// Removes every unused image.
    pub(super) async fn remove_all_unused(&mut self, context: &Arc<Context>) {
        let freed = match in_use(context).await {
            Ok(in_use) => {
                self.note(context, &in_use);
                self.free(context, &in_use, u64::MAX).await
            }
            Err(error) => Err(error),
        };
        if let Err(message) = freed {
            warn!(message, "unused images could not be removed");
        }
    }

    fn note(&mut self, context: &Context, in_use: &BTreeSet<String>) {
        let images = context.parts.images.list();
        let ids = images.iter().map(|image| image.id.as_str());
        self.records.note(ids, in_use, context.now());
    }

    /// Removes unused images until so much is free; returns how much that is.
    async fn free(&self, context: &Arc<Context>, in_use: &BTreeSet<String>, wanted: u64) -> Result<u64, String> {
        let images = context.parts.images.list();
        let pinned: BTreeSet<&str> = images
            .iter()
            .filter(|image| image.pinned)
            .map(|image| image.id.as_str())
            .collect();
        let mut unused = self.records.unused(in_use, self.policy.youth, context.now());
        unused.retain(|id| !pinned.contains(id.as_str()));
        let (mut freed, mut failures) = (0_u64, Vec::new());
        for id in unused {
            if freed >= wanted {
                break;
            }
            match context.parts.images.discard(&id).await {
                Ok(bytes) => {
                    info!(image = id, bytes, "removed to make room");
                    context.started.image_removed();
                    freed = freed.saturating_add(bytes);
                }
                Err(error) => failures.push(error.to_string()),
            }
        }
        if failures.is_empty() {
            return Ok(freed);
        }
        let failures = failures.join(", ");
        Err(format!(
            "wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image deletion: [{failures}]"
        ))
    }
}

/// Removes unused images; those that were imported on the node only if `all`. Returns them with the
/// bytes that each freed.
pub(crate) async fn prune(context: &Context, all: bool) -> Result<Vec<(Arc<Image>, u64)>, String> {
    let in_use = in_use(context).await?;
    let mut removed = Vec::new();
    for image in context.parts.images.list() {
        if in_use.contains(&image.id) || (image.pinned && !all) {
            continue;
        }
        let bytes = context.parts.images.discard(&image.id).await;
        let bytes = bytes.map_err(|error| format!("remove image {}: {error}", image.id))?;
        info!(image = image.id, bytes, "removed because nobody uses it");
        removed.push((image, bytes));
    }
    Ok(removed)
}

/// Returns the IDs of images that containers use, or are about to.
async fn in_use(context: &Context) -> Result<BTreeSet<String>, String> {
    let sandboxes = context.parts.runtime.sandboxes().await;
    let sandboxes = sandboxes.map_err(|error| image::chain(&error))?;
    let images = context.parts.images.list();
    let mut ids = BTreeSet::new();
    for container in sandboxes.iter().flat_map(|sandbox| &sandbox.containers) {
        ids.extend(container.annotations.get(crate::images::ID).cloned());
        let shown = container.annotations.get(crate::images::SHOWN);
        ids.extend(shown.into_iter().flat_map(|ids| ids.split(',')).map(str::to_owned));
        let own = images.iter().filter(|image| {
            let name = &container.image_id;
            image.id == *name || image.digests.contains(name)
        });
        ids.extend(own.map(|image| image.id.clone()));
    }
    for pod in context.known_pods() {
        if pods::terminal_phase(&pod).is_some() {
            continue;
        }
        let names = pods::all_containers(&pod).map(|container| container.image.as_deref());
        let added = pods::ephemeral_containers(&pod);
        let added = added.iter().map(|container| container.image.as_deref());
        let shown = pods::volumes(&pod).iter().filter_map(|volume| volume.image.as_ref());
        let shown = shown.map(|image| image.reference.as_deref());
        for name in names.chain(added).chain(shown).flatten() {
            let found = context.parts.images.resolve(name).ok().flatten();
            ids.extend(found.map(|image| image.id.clone()));
        }
    }
    Ok(ids)
}
