//! A container that is to be started, and one that was.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use agent_plan::pod::observed::Instance;
use k8s_openapi::api::core::v1::{ContainerUser, Pod};
use tokio::sync::RwLock;

use crate::context::Context;

/// Running container.
pub(crate) struct Started {
    pub(in crate::pod::worker) instance: Instance,
    /// ID of its sandbox.
    pub(in crate::pod::worker) sandbox: String,
    /// User of the first process when it started.
    pub(in crate::pod::worker) user: Option<ContainerUser>,
}

/// Everything that the start of a container needs.
pub(in crate::pod::worker) struct Plan {
    pub(in crate::pod::worker) context: Arc<Context>,
    pub(in crate::pod::worker) pod: Arc<Pod>,
    pub(in crate::pod::worker) sandbox: String,
    pub(in crate::pod::worker) image: Arc<image::Image>,
    /// Images of the container's image volumes, by the volumes' names.
    pub(in crate::pod::worker) volume_images: BTreeMap<String, Arc<image::Image>>,
    pub(in crate::pod::worker) addresses: Vec<IpAddr>,
    pub(in crate::pod::worker) container: String,
    pub(in crate::pod::worker) attempt: u32,
    /// Held while the container is created: its sandbox is not removed meanwhile.
    pub(in crate::pod::worker) creation_lock: Arc<RwLock<()>>,
    /// Instance whose PID namespace the container joins.
    pub(super) target: Option<Result<String, String>>,
}
