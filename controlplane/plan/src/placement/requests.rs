//! Resources that a pod requests from its node.

use std::collections::BTreeMap;

use crate::pod::Pod;

/// Default requests for scoring, for a container without any (`DefaultMilliCPURequest`,
/// `DefaultMemoryRequest`).
const UNASKED_CPU_MILLI: i64 = 100;
const UNASKED_MEMORY: i64 = 200 * 1024 * 1024;

/// A host port: protocol, address (`0.0.0.0` for all), number.
pub type HostPort = (String, String, i32);

/// Amounts of resources: CPU in thousandths, everything else in whole units. The resources that every node and nearly every pod
/// has are fields, because each node's are read for each pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resources {
    cpu: i64,
    memory: i64,
    pods: i64,
    others: BTreeMap<String, i64>,
}

impl Resources {
    /// The amount of a resource, 0 if there is none.
    #[inline]
    pub fn get(&self, resource: &str) -> i64 {
        match resource {
            "cpu" => self.cpu,
            "memory" => self.memory,
            "pods" => self.pods,
            other => self.others.get(other).copied().unwrap_or(0),
        }
    }

    /// Adds to an amount.
    pub fn add(&mut self, resource: &str, amount: i64) {
        let own = match resource {
            "cpu" => &mut self.cpu,
            "memory" => &mut self.memory,
            "pods" => &mut self.pods,
            other => match self.others.get_mut(other) {
                Some(own) => own,
                None => self.others.entry(other.to_owned()).or_default(),
            },
        };
        *own = own.saturating_add(amount);
    }

    /// Adds all amounts, `sign` times; sums of zero are removed.
    pub fn add_all(&mut self, amounts: &Self, sign: i64) {
        for (resource, amount) in amounts.iter() {
            self.add(resource, amount.saturating_mul(sign));
        }
        self.others.retain(|_, amount| *amount != 0);
    }

    /// All amounts that are not zero.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        let own = [("cpu", self.cpu), ("memory", self.memory), ("pods", self.pods)];
        let others = self
            .others
            .iter()
            .map(|(resource, amount)| (resource.as_str(), *amount));
        own.into_iter().chain(others).filter(|(_, amount)| *amount != 0)
    }
}

impl<'a> FromIterator<(&'a str, i64)> for Resources {
    fn from_iter<I: IntoIterator<Item = (&'a str, i64)>>(amounts: I) -> Self {
        let mut all = Self::default();
        for (resource, amount) in amounts {
            all.add(resource, amount);
        }
        all
    }
}

/// Resource requests of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodRequests {
    /// Amounts by resource.
    pub requests: Resources,
    /// Milli-CPUs for scoring, never zero.
    pub scored_cpu: i64,
    /// Bytes for scoring, never zero.
    pub scored_memory: i64,
    /// Host ports that it binds.
    pub ports: Vec<HostPort>,
}

/// A quantity as a number: CPU in thousandths, everything else in whole units.
pub(super) fn amount(resource: &str, quantity: api::quantity::Quantity) -> i64 {
    if resource == "cpu" {
        quantity.milli()
    } else {
        quantity.value()
    }
}

impl PodRequests {
    /// Returns the requests of a pod.
    pub fn of(pod: &Pod) -> Self {
        let Some(spec) = pod.spec.as_ref() else {
            return Self::default();
        };
        let requested = api::pod::requests(spec);
        let amounts = requested
            .iter()
            .map(|(resource, quantity)| (resource.as_str(), amount(resource, *quantity)));
        let requests: Resources = amounts.filter(|(_, amount)| *amount != 0).collect();
        let containers = spec.containers.iter();
        let asks = |name: &'static str| {
            move |container: &&k8s_openapi::api::core::v1::Container| {
                let requests = container
                    .resources
                    .as_ref()
                    .and_then(|resources| resources.requests.as_ref());
                requests.is_some_and(|requests| requests.contains_key(name))
            }
        };
        let own = api::pod::level::own(spec).and_then(|own| own.requests.as_ref());
        let unasked = |name| {
            // Pod-level requests stand for all containers.
            if own.is_some_and(|own| own.contains_key(name)) {
                return 0;
            }
            let count = containers.clone().filter(|container| !asks(name)(container)).count();
            i64::try_from(count).unwrap_or(i64::MAX)
        };
        let scored_cpu = requests
            .get("cpu")
            .saturating_add(unasked("cpu").saturating_mul(UNASKED_CPU_MILLI));
        let scored_memory = requests
            .get("memory")
            .saturating_add(unasked("memory").saturating_mul(UNASKED_MEMORY));
        let sidecars = spec
            .init_containers
            .iter()
            .flatten()
            .filter(|container| api::pod::is_sidecar(container));
        let ports = spec
            .containers
            .iter()
            .chain(sidecars)
            .flat_map(|container| container.ports.iter().flatten());
        let ports = ports.filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let address = port
                .host_ip
                .clone()
                .filter(|address| !address.is_empty() && address != "::");
            Some((
                port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                address.unwrap_or_else(|| "0.0.0.0".to_owned()),
                number,
            ))
        });
        Self {
            scored_cpu,
            scored_memory,
            ports: ports.collect(),
            requests,
        }
    }
}

/// True if two host ports conflict.
pub(super) fn conflict(a: &HostPort, b: &HostPort) -> bool {
    a.0 == b.0 && a.2 == b.2 && (a.1 == b.1 || a.1 == "0.0.0.0" || b.1 == "0.0.0.0")
}

#[cfg(test)]
mod tests {
    use super::Resources;

    #[test]
    fn amounts_that_are_taken_back_leave_nothing() {
        let all: Resources = [
            ("pods", 1),
            ("example.com/disk", 0),
            ("example.com/gpu", 2),
            ("cpu", 250),
        ]
        .into_iter()
        .collect();
        let shown: Vec<(&str, i64)> = all.iter().collect();
        assert_eq!(shown, [("cpu", 250), ("pods", 1), ("example.com/gpu", 2)]);
        let mut sum = Resources::default();
        for sign in [1, 1, -1] {
            sum.add_all(&all, sign);
        }
        assert_eq!(
            (sum.get("cpu"), sum.get("example.com/gpu"), sum.get("memory")),
            (250, 2, 0)
        );
        sum.add_all(&all, -1);
        assert_eq!(sum, Resources::default());
    }
}
