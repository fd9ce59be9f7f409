//! Choice of a Service's endpoints: `CategorizeEndpoints` of upstream's `pkg/proxy/topology.go`.

use super::Node;
use super::object::{Endpoint, Place};

/// An endpoint and its port.
pub(super) type Target<'a> = (&'a Endpoint, u16);

/// The chosen endpoints of a Service's port.
#[derive(Debug, Default)]
pub(super) struct Chosen<'a> {
    /// For the traffic policy `Cluster`.
    pub(super) cluster: Vec<Target<'a>>,
    /// For the traffic policy `Local`.
    pub(super) local: Vec<Target<'a>>,
    /// True if the cluster has an endpoint to use.
    pub(super) any: bool,
}

/// Chooses the endpoints for the policies that the Service uses. Terminating endpoints are used
/// where none is ready.
pub(super) fn choose<'a>(endpoints: &[Target<'a>], uses: Uses, node: &Node) -> Chosen<'a> {
    let mut chosen = Chosen::default();
    let ready = |(endpoint, _): &Target<'_>| endpoint.ready;
    let ending = |(endpoint, _): &Target<'_>| endpoint.serving && endpoint.terminating;
    if uses.cluster {
        let mode = mode(endpoints, node);
        let near = |(endpoint, _): &Target<'_>| mode.admits(endpoint, node);
        chosen.cluster = filtered(endpoints, |target| ready(target) && near(target));
        if chosen.cluster.is_empty() {
            chosen.cluster = filtered(endpoints, ending);
        }
        chosen.any = !chosen.cluster.is_empty();
    }
    if uses.local {
        let own = |(endpoint, _): &Target<'_>| endpoint.place == Place::Here;
        chosen.any |= endpoints.iter().any(|target| ready(target) || ending(target));
        chosen.local = filtered(endpoints, |target| own(target) && ready(target));
        if chosen.local.is_empty() {
            chosen.local = filtered(endpoints, |target| own(target) && !ready(target) && ending(target));
        }
    }
    chosen
}

/// Traffic policies that a Service uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uses {
    pub(super) cluster: bool,
    pub(super) local: bool,
}

fn filtered<'a>(endpoints: &[Target<'a>], which: impl Fn(&Target<'a>) -> bool) -> Vec<Target<'a>> {
    endpoints.iter().filter(|target| which(target)).copied().collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Anywhere,
    SameNode,
    SameZone,
}

impl Mode {
    fn admits(self, endpoint: &Endpoint, node: &Node) -> bool {
        match self {
            Self::Anywhere => true,
            Self::SameNode => for_node(endpoint, node),
            Self::SameZone => for_zone(endpoint, node),
        }
    }
}

fn for_node(endpoint: &Endpoint, node: &Node) -> bool {
    let hints = endpoint.details.as_ref();
    hints.is_some_and(|hints| hints.nodes.contains(&node.name))
}

fn for_zone(endpoint: &Endpoint, node: &Node) -> bool {
    let hints = endpoint.details.as_ref();
    let zone = node.zone.as_ref();
    hints.is_some_and(|hints| zone.is_some_and(|zone| hints.zones.contains(zone)))
}

/// Hints apply if every ready endpoint has some and one of them is for this node.
fn mode(endpoints: &[Target<'_>], node: &Node) -> Mode {
    let ready = || {
        endpoints
            .iter()
            .map(|(endpoint, _)| *endpoint)
            .filter(|known| known.ready)
    };
    let hinted = |endpoint: &Endpoint| endpoint.details.as_ref().is_some_and(|hints| !hints.nodes.is_empty());
    if ready().all(hinted) && ready().any(|endpoint| for_node(endpoint, node)) {
        return Mode::SameNode;
    }
    let hinted = |endpoint: &Endpoint| endpoint.details.as_ref().is_some_and(|hints| !hints.zones.is_empty());
    if ready().all(hinted) && ready().any(|endpoint| for_zone(endpoint, node)) {
        return Mode::SameZone;
    }
    Mode::Anywhere
}
