//! Devices for the containers of a pod that is admitted (`Allocate`,
//! `pkg/kubelet/cm/devicemanager/manager.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_plan::node::devices::{Choice, Ids, Request, choose, complete};
use agent_plan::pod::pods;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::messages::Options;
use super::plugin::Plugin;
use super::{Devices, Grant};

/// A container's request, and the plugin that it is for.
struct Chosen {
    choice: Choice,
    plugin: Option<Plugin>,
    options: Options,
    held: Ids,
}

impl Devices {
    /// Gives devices to the containers of a pod that lack theirs; the error says why it cannot have
    /// them. Main containers use the devices of init containers again, except those of sidecars.
    pub(crate) async fn allocate(self: &Arc<Self>, pod: &Pod) -> Result<(), String> {
        if pods::all_containers(pod).all(|container| self.asked(container).is_empty()) {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        let mut reusable: BTreeMap<String, Ids> = BTreeMap::new();
        for container in pods::all_containers(pod) {
            let ends = pods::is_init(pod, &container.name) && !pods::is_sidecar(container);
            for (resource, wanted) in self.asked(container) {
                let key = (pods::uid(pod).to_owned(), container.name.clone(), resource.clone());
                let reusable = reusable.entry(resource).or_default();
                let mut given = self.give(key, wanted, reusable).await?;
                if ends {
                    reusable.append(&mut given);
                } else {
                    reusable.retain(|id| !given.contains(id));
                }
            }
        }
        let saved = self.save().await;
        saved.map_err(|error| format!("failed to write checkpoint file: {error}"))
    }

    /// Amounts of plugins' resources that a container asks for.
    pub(super) fn asked(&self, container: &Container) -> Vec<(String, usize)> {
        let state = self.state();
        let of_plugin = |name: &str| {
            let known = state.resources.get(name);
            known.is_some_and(|known| !known.is_expired()) || state.grants.keys().any(|(_, _, of)| of == name)
        };
        let resources = container.resources.as_ref();
        let limits = resources.and_then(|resources| resources.limits.as_ref());
        let limits = limits.into_iter().flatten().filter(|(name, _)| of_plugin(name));
        let amount = |text| usize::try_from(Quantity::of(text).value()).unwrap_or(0);
        limits.map(|(name, text)| (name.clone(), amount(text))).collect()
    }

    /// Gives devices of one resource to a container; returns them.
    async fn give(&self, key: (String, String, String), wanted: usize, reusable: &Ids) -> Result<Ids, String> {
        let Chosen {
            choice,
            plugin,
            options,
            held,
        } = self.choose(&key, wanted, reusable)?;
        let unknown = || format!("unknown Device Plugin {}", key.2);
        let ids = match choice {
            Choice::Held => return Ok(held),
            Choice::Chosen(ids) => ids,
            Choice::Open { chosen, free, missing } => {
                let mut preferred = Ids::new();
                if options.get_preferred_allocation_available {
                    let (available, must) = (free.union(&chosen).cloned(), chosen.iter().cloned());
                    let plugin = plugin.as_ref().ok_or_else(unknown)?;
                    let asking = plugin.preferred(available.collect(), must.collect(), wanted);
                    preferred = asking.await?.into_iter().collect();
                }
                complete(chosen, &free, missing, &preferred)
            }
        };
        let plugin = plugin.ok_or_else(unknown)?;
        let response = plugin.allocate(ids.iter().cloned().collect()).await?;
        let grant = Grant {
            ids: ids.clone(),
            response,
        };
        self.state().grants.insert(key, grant);
        Ok(ids)
    }

    fn choose(&self, key: &(String, String, String), wanted: usize, reusable: &Ids) -> Result<Chosen, String> {
        let (pod, container, resource) = key;
        let state = self.state();
        let known = state.resources.get(resource).filter(|known| !known.is_expired());
        let all = state.grants.iter().filter(|((_, _, of), _)| of == resource);
        let in_use: Ids = all.flat_map(|(_, grant)| grant.ids.iter().cloned()).collect();
        let held = state.grants.get(key).map(|grant| &grant.ids);
        let choice = choose(&Request {
            resource,
            pod,
            container,
            wanted,
            held,
            reusable,
            healthy: known.map(|known| &known.healthy),
            in_use: &in_use,
        });
        Ok(Chosen {
            choice: choice.map_err(|error| error.to_string())?,
            plugin: known.and_then(|known| known.plugin.clone()),
            options: known.map(|known| known.options.clone()).unwrap_or_default(),
            held: held.cloned().unwrap_or_default(),
        })
    }
}
