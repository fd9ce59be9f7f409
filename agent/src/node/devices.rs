//! Devices of device plugins (`pkg/kubelet/cm/devicemanager/manager.go`).
//!
//! A plugin registers an extended resource at the agent's socket ([`registration`]), which asks it
//! for its devices ([`plugin`], [`messages`]). A pod that asks for the resource gets devices when
//! it is admitted ([`allocation`]), which a file remembers ([`checkpoint`]); its containers are
//! made with what the plugin says that goes with them ([`container`], [`cdi`]).

mod allocation;
mod cdi;
mod checkpoint;
pub(crate) mod container;
mod messages;
mod plugin;
pub(crate) mod registration;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_plan::node::devices::Ids;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;

use messages::{ContainerAllocateResponse, HEALTHY, ListAndWatchResponse, Options};
use plugin::Plugin;

/// Directory of the plugins' sockets below the kubelet's.
pub(crate) const DIRECTORY: &str = "device-plugins";
/// Time that the devices of a plugin that has ended stay in the node's capacity.
const STOP_GRACE_PERIOD: Duration = Duration::from_mins(5);

/// Devices of a container of one resource.
#[derive(Clone, Debug, PartialEq)]
struct Grant {
    ids: Ids,
    response: ContainerAllocateResponse,
}

/// By the pod's UID, the container's name and the resource.
type Grants = BTreeMap<(String, String, String), Grant>;

/// Resource of a plugin.
#[derive(Debug, Default)]
struct Resource {
    plugin: Option<Plugin>,
    options: Options,
    healthy: Ids,
    unhealthy: Ids,
    /// Number of registrations: an earlier plugin says nothing about the devices of a later one.
    registrations: u64,
    /// When the plugin ended.
    stopped: Option<Instant>,
}

impl Resource {
    fn is_expired(&self) -> bool {
        self.stopped
            .is_some_and(|stopped| stopped.elapsed() > STOP_GRACE_PERIOD)
    }
}

#[derive(Debug, Default)]
struct State {
    resources: BTreeMap<String, Resource>,
    grants: Grants,
}

/// Numbers of a resource's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    /// All devices.
    pub(crate) capacity: usize,
    /// Healthy devices.
    pub(crate) allocatable: usize,
}

/// Plugins and their devices.
#[derive(Debug)]
pub(crate) struct Devices {
    /// Directory of the plugins' sockets.
    directory: PathBuf,
    state: Mutex<State>,
    /// Held while the file is written.
    writing: Mutex<()>,
    /// Held while a pod is given devices: pods are admitted one after the other upstream, too.
    turn: tokio::sync::Mutex<()>,
    changed: watch::Sender<()>,
}

impl Devices {
    /// Reads what an earlier agent has written: resources of its plugins have no devices until the
    /// plugins register again.
    pub(crate) fn open(directory: PathBuf) -> Self {
        let mut state = State::default();
        match checkpoint::read(&directory.join(checkpoint::NAME)) {
            Ok((grants, registered)) => {
                state.grants = grants;
                let stopped = || Resource {
                    stopped: Some(Instant::now()),
                    ..Resource::default()
                };
                state.resources = registered.into_iter().map(|name| (name, stopped())).collect();
            }
            Err(error) => warn!(%error, "the devices of containers could not be read"),
        }
        Self {
            directory,
            state: Mutex::new(state),
            writing: Mutex::new(()),
            turn: tokio::sync::Mutex::new(()),
            changed: watch::Sender::new(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies of changes of the counts.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Counts the devices of each resource: none five minutes after its plugin has ended
    /// (`GetCapacity`).
    pub(crate) fn counts(&self) -> BTreeMap<String, Count> {
        let mut state = self.state();
        let count = |(name, resource): (&String, &mut Resource)| {
            if resource.is_expired() {
                resource.unhealthy.clear();
            }
            let allocatable = resource.healthy.len();
            let capacity = allocatable.saturating_add(resource.unhealthy.len());
            let count = Count { capacity, allocatable };
            (name.clone(), count)
        };
        state.resources.iter_mut().map(count).collect()
    }

    /// Notes a plugin; returns the number of its registration.
    fn register(&self, name: &str, plugin: Plugin, options: Options) -> u64 {
        let mut state = self.state();
        let resource = state.resources.entry(name.to_owned()).or_default();
        resource.plugin = Some(plugin);
        resource.options = options;
        resource.stopped = None;
        resource.registrations = resource.registrations.saturating_add(1);
        resource.registrations
    }

    /// Applies a list of devices; `false` if a later plugin has registered meanwhile.
    fn update(&self, name: &str, registration: u64, list: ListAndWatchResponse) -> bool {
        let mut state = self.state();
        let resource = state.resources.get_mut(name);
        let Some(resource) = resource.filter(|resource| resource.registrations == registration) else {
            return false;
        };
        let (healthy, unhealthy): (Vec<_>, Vec<_>) =
            list.devices.into_iter().partition(|device| device.health == HEALTHY);
        resource.healthy = healthy.into_iter().map(|device| device.id).collect();
        resource.unhealthy = unhealthy.into_iter().map(|device| device.id).collect();
        drop(state);
        self.changed.send_replace(());
        true
    }

    /// Notes that a plugin has ended: its devices are unhealthy.
    fn stop(&self, name: &str, registration: u64) {
        let mut state = self.state();
        let resource = state.resources.get_mut(name);
        let Some(resource) = resource.filter(|resource| resource.registrations == registration) else {
            return;
        };
        resource.plugin = None;
        resource.stopped = Some(Instant::now());
        let mut healthy = std::mem::take(&mut resource.healthy);
        resource.unhealthy.append(&mut healthy);
        drop(state);
        self.changed.send_replace(());
    }

    /// Frees the devices of a pod.
    pub(crate) fn release(&self, pod: &str) {
        self.state().grants.retain(|(known, _, _), _| known != pod);
    }

    /// Frees the devices of all pods except these.
    pub(crate) fn retain(&self, pods: &BTreeSet<String>) {
        self.state().grants.retain(|(known, _, _), _| pods.contains(known));
    }

    /// True if a container has devices.
    pub(crate) fn has(&self, pod: &str, container: &str) -> bool {
        let state = self.state();
        let mut keys = state.grants.keys();
        keys.any(|(known, of, _)| known == pod && of == container)
    }

    /// Writes the file.
    async fn save(self: &Arc<Self>) -> io::Result<()> {
        let own = Arc::clone(self);
        crate::confined::aside(move || {
            let _turn = own.writing.lock().unwrap_or_else(PoisonError::into_inner);
            let state = own.state();
            let grants = state.grants.clone();
            let resources = state.resources.iter().filter(|(_, resource)| !resource.is_expired());
            let ids = |resource: &Resource| resource.healthy.iter().cloned().collect();
            let registered = resources.map(|(name, resource)| (name.clone(), ids(resource)));
            let registered: BTreeMap<String, Vec<String>> = registered.collect();
            drop(state);
            checkpoint::write(&own.directory.join(checkpoint::NAME), &grants, registered)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::messages::Device;
    use super::*;

    fn list(devices: &[(&str, &str)]) -> ListAndWatchResponse {
        let devices = devices.iter().map(|(id, health)| Device {
            id: (*id).to_owned(),
            health: (*health).to_owned(),
        });
        ListAndWatchResponse {
            devices: devices.collect(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn devices_of_a_plugin_that_ended_are_unhealthy_and_then_gone() {
        let folder = tempfile::tempdir().unwrap();
        let devices = Arc::new(Devices::open(folder.path().to_owned()));
        let counts = |devices: &Devices| {
            let count = devices.counts().remove("example.com/x");
            count.map(|count| (count.capacity, count.allocatable))
        };
        assert_eq!(counts(&devices), None);
        devices
            .state()
            .resources
            .entry("example.com/x".to_owned())
            .or_default()
            .registrations = 1;
        assert!(devices.update("example.com/x", 1, list(&[("a", "Healthy"), ("b", "Unhealthy")])));
        assert_eq!(counts(&devices), Some((2, 1)));
        assert!(!devices.update("example.com/x", 0, list(&[])), "an earlier plugin");
        devices.save().await.unwrap();
        devices.stop("example.com/x", 0);
        assert_eq!(counts(&devices), Some((2, 1)), "an earlier plugin");
        devices.stop("example.com/x", 1);
        assert_eq!(counts(&devices), Some((2, 0)));
        tokio::time::advance(STOP_GRACE_PERIOD + Duration::from_secs(1)).await;
        assert_eq!(counts(&devices), Some((0, 0)));
        // The file says that there is such a plugin, which has to register again.
        let next = Devices::open(folder.path().to_owned());
        assert_eq!(counts(&next), Some((0, 0)));
        devices.save().await.unwrap();
        assert_eq!(counts(&Devices::open(folder.path().to_owned())), None);
    }

    #[test]
    fn devices_are_freed_with_their_pods() {
        let folder = tempfile::tempdir().unwrap();
        let devices = Devices::open(folder.path().to_owned());
        for pod in ["u", "v", "w"] {
            let key = [pod, "c", "example.com/x"].map(str::to_owned);
            let (ids, response) = (Ids::new(), ContainerAllocateResponse::default());
            devices.state().grants.insert(key.into(), Grant { ids, response });
        }
        assert!(devices.has("u", "c") && !devices.has("u", "d"));
        devices.release("u");
        devices.retain(&BTreeSet::from(["v".to_owned()]));
        assert!(!devices.has("u", "c") && devices.has("v", "c") && !devices.has("w", "c"));
    }
}
