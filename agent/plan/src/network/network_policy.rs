//! Network policies: allowed traffic of this node's pods, as chains of rules and the sets that they
//! look up.
//!
//! ```text
//! in, out     address of an isolated pod of this node ─► chain of its profile
//! profile     the rules of all policies that select a pod, in one direction; pods with the same rules share a chain
//! rule        peers? . ports? ─► accept; both are sets, shared by all rules that name the same
//! ```
//!
//! A pod that is added or removed costs one element per set of peers that it belongs to; rules
//! change only with policies.

mod object;
mod peers;
mod pod;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

pub use object::Policy;
use peers::Set;
pub use pod::{Labels, NamedPort, Pod};

use crate::network::proxy::Protocol;

/// Namespace and name of a policy.
pub type PolicyName = (String, String);

/// Direction of traffic from the pod's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// `Ingress`
    In,
    /// `Egress`
    Out,
}

/// A change in the API. A deleted object is `None`.
#[derive(Clone, Debug)]
pub enum Input {
    /// A network policy.
    Policy(PolicyName, Option<Arc<Policy>>),
    /// A namespace's labels.
    Namespace(String, Option<Labels>),
    /// A pod by its uid.
    Pod(String, Option<Arc<Pod>>),
}

/// The shape of a set's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Addresses.
    Addresses,
    /// Ranges of addresses.
    Ranges,
    /// Protocols with ranges of ports.
    Ports,
    /// Addresses with a protocol and a port.
    Endpoints,
}

/// A rule of a chain: all of its lookups must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule(pub Vec<(Shape, u32)>);

/// An element of a map or set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// A pod of this node that is isolated in a direction, and its chain.
    Isolated(Direction, IpAddr, u32),
    /// A pod, which may always reach itself.
    Itself(IpAddr),
    /// An address of a set.
    Address(u32, IpAddr),
    /// The first and last address of a range of a set.
    Range(u32, IpAddr, IpAddr),
    /// A protocol with its first and last port.
    Ports(u32, Protocol, u16, u16),
    /// A port of a pod.
    Endpoint(u32, IpAddr, Protocol, u16),
}

impl Element {
    /// Returns the number of the element's set, if it is one of peers or ports.
    const fn set(&self) -> Option<u32> {
        match self {
            Self::Isolated(..) | Self::Itself(_) => None,
            Self::Address(set, _) | Self::Range(set, ..) | Self::Ports(set, ..) | Self::Endpoint(set, ..) => Some(*set),
        }
    }
}

/// A change of the kernel's tables. Those of one update belong in one transaction, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a set.
    AddSet(u32, Shape),
    /// Adds a chain, which drops by default.
    AddChain(u32, Direction, Vec<Rule>),
    /// Removes an element.
    Remove(Element),
    /// Adds an element.
    Add(Element),
    /// Removes a chain and its rules.
    RemoveChain(Direction, u32),
    /// Removes a set and its elements.
    RemoveSet(u32),
}

/// A rule, by the contents of its sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Lookups(Vec<Arc<Set>>);

/// The rules of one direction.
type Profile = (Direction, Vec<Lookups>);

/// Numbers of the kernel's sets and chains, with reference counts.
#[derive(Debug)]
struct Used {
    number: u32,
    users: usize,
}

/// The chains of a pod of this node.
type Chains = BTreeMap<Direction, Profile>;

/// State of the policies.
#[derive(Debug, Default)]
pub struct Policies {
    namespaces: BTreeMap<String, Labels>,
    pods: BTreeMap<String, Arc<Pod>>,
    /// Pods by address: a reused address may still belong to an ended pod for a while.
    holders: BTreeMap<IpAddr, BTreeSet<String>>,
    known: BTreeMap<PolicyName, Arc<Policy>>,
    /// The isolated pods of this node, by uid.
    isolated: BTreeMap<String, Chains>,
    chains: BTreeMap<Profile, Used>,
    sets: BTreeMap<Arc<Set>, Used>,
    next: u32,
}

/// Chains and sets that a change adds and removes.
#[derive(Default)]
struct Turnover {
    come: Vec<Change>,
    fresh: Vec<Arc<Set>>,
    left: Vec<Profile>,
}

impl Policies {
    /// True if there is no policy.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The number of policies.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Forgets pods and namespaces, which are listed again when a policy needs them.
    pub fn forget_peers(&mut self) -> Vec<Change> {
        let pods = self.pods.keys().map(|uid| Input::Pod(uid.clone(), None));
        let names = self.namespaces.keys().map(|name| Input::Namespace(name.clone(), None));
        let all = pods.chain(names).collect();
        self.update(all)
    }

    /// The uids of all known pods.
    pub fn pods(&self) -> impl Iterator<Item = &str> {
        self.pods.keys().map(String::as_str)
    }

    /// Returns the uids of this node's pods that have one of these addresses.
    pub fn holders(&self, addresses: &[IpAddr]) -> BTreeSet<String> {
        let holders = addresses.iter().filter_map(|address| self.holders.get(address));
        let here = |uid: &&String| self.pods.get(*uid).is_some_and(|pod| pod.here);
        holders.flatten().filter(here).cloned().collect()
    }

    /// The names of all known namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.namespaces.keys().map(String::as_str)
    }

    /// The names of all policies.
    pub fn names(&self) -> impl Iterator<Item = &PolicyName> {
        self.known.keys()
    }

    /// Applies changes, and returns the kernel changes that follow.
    pub fn update(&mut self, inputs: Vec<Input>) -> Vec<Change> {
        let (profiled, addresses) = self.concerned(&inputs);
        let known: Vec<Arc<Set>> = self.sets.keys().filter(|set| set.follows_pods()).cloned().collect();
        let mut before = self.elements(&known, &addresses);
        let isolated = self.isolations(profiled.iter());
        for input in inputs {
            self.take(input);
        }
        let mut turnover = Turnover::default();
        for uid in &profiled {
            self.profile(uid, &mut turnover);
        }
        let (chains_gone, sets_gone) = self.release(turnover.left);
        // Their sets are removed as a whole.
        before.retain(|element| element.set().is_none_or(|set| !sets_gone.contains(&set)));
        let after = self.elements(&known, &addresses);
        let isolated_now = self.isolations(profiled.iter());
        let mut changes = turnover.come;
        let gone = before.difference(&after).chain(isolated.difference(&isolated_now));
        changes.extend(gone.copied().map(Change::Remove));
        changes.extend(turnover.fresh.iter().flat_map(|set| self.filling(set)).map(Change::Add));
        let come = after.difference(&before).chain(isolated_now.difference(&isolated));
        changes.extend(come.copied().map(Change::Add));
        changes.extend(chains_gone);
        changes.extend(sets_gone.into_iter().map(Change::RemoveSet));
        changes
    }

    /// Returns the complete contents of the tables.
    pub fn all(&self) -> Vec<Change> {
        let sets = self.sets.iter();
        let mut all: Vec<Change> = sets
            .clone()
            .map(|(set, used)| Change::AddSet(used.number, set.shape()))
            .collect();
        let chains = self.chains.iter();
        all.extend(
            chains.map(|((direction, rules), used)| Change::AddChain(used.number, *direction, self.rules(rules))),
        );
        all.extend(sets.flat_map(|(set, _)| self.filling(set)).map(Change::Add));
        all.extend(self.isolations(self.isolated.keys()).into_iter().map(Change::Add));
        all
    }

    /// Returns the pods whose profile may change, and the addresses that sets may gain or lose.
    fn concerned(&self, inputs: &[Input]) -> (BTreeSet<String>, BTreeSet<IpAddr>) {
        let mut pods = BTreeSet::new();
        let mut profiled = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        for input in inputs {
            match input {
                Input::Pod(uid, pod) => {
                    pods.insert(uid.clone());
                    addresses.extend(pod.iter().flat_map(|pod| pod.addresses.iter().copied()));
                }
                Input::Namespace(name, labels) => {
                    if self.namespaces.get(name) != labels.as_ref() {
                        let inside = self.pods.iter().filter(|(_, pod)| *pod.namespace == **name);
                        pods.extend(inside.map(|(uid, _)| uid.clone()));
                    }
                }
                Input::Policy((namespace, _), _) => {
                    let inside = self
                        .pods
                        .iter()
                        .filter(|(_, pod)| pod.here && *pod.namespace == **namespace);
                    profiled.extend(inside.map(|(uid, _)| uid.clone()));
                }
            }
        }
        let known = pods.iter().filter_map(|uid| self.pods.get(uid));
        addresses.extend(known.flat_map(|pod| pod.addresses.iter().copied()));
        profiled.extend(pods);
        (profiled, addresses)
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Policy(name, Some(policy)) => drop(self.known.insert(name, policy)),
            Input::Policy(name, None) => drop(self.known.remove(&name)),
            Input::Namespace(name, Some(labels)) => drop(self.namespaces.insert(name, labels)),
            Input::Namespace(name, None) => drop(self.namespaces.remove(&name)),
            Input::Pod(uid, pod) => {
                let before = self.pods.remove(&uid);
                for address in before.iter().flat_map(|pod| &pod.addresses) {
                    if let Some(holders) = self.holders.get_mut(address) {
                        holders.remove(&uid);
                        if holders.is_empty() {
                            self.holders.remove(address);
                        }
                    }
                }
                let Some(pod) = pod else { return };
                for address in &pod.addresses {
                    self.holders.entry(*address).or_default().insert(uid.clone());
                }
                self.pods.insert(uid, pod);
            }
        }
    }

    /// Assigns a pod of this node the chains of the policies that select it.
    fn profile(&mut self, uid: &str, turnover: &mut Turnover) {
        let mut wanted = Chains::new();
        if let Some(pod) = self.pods.get(uid).filter(|pod| pod.here) {
            let from = (pod.namespace.to_string(), String::new());
            let own = self.known.range(from..);
            let own = own.take_while(|((namespace, _), _)| **namespace == *pod.namespace);
            for (_, policy) in own.filter(|(_, policy)| policy.selects(pod)) {
                for direction in [Direction::In, Direction::Out] {
                    if let Some(rules) = policy.rules(direction, pod) {
                        let profile = wanted.entry(direction).or_insert_with(|| (direction, Vec::new()));
                        profile.1.extend(rules.into_iter().map(Lookups));
                    }
                }
            }
        }
        for profile in wanted.values_mut() {
            profile.1.sort();
            profile.1.dedup();
            self.acquire(profile, turnover);
        }
        let before = if wanted.is_empty() {
            self.isolated.remove(uid)
        } else {
            self.isolated.insert(uid.to_owned(), wanted)
        };
        turnover.left.extend(before.into_iter().flat_map(BTreeMap::into_values));
    }

    fn number(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    fn acquire(&mut self, profile: &Profile, turnover: &mut Turnover) {
        if let Some(chain) = self.chains.get_mut(profile) {
            chain.users += 1;
            return;
        }
        for set in profile.1.iter().flat_map(|rule| &rule.0) {
            if let Some(used) = self.sets.get_mut(set) {
                used.users += 1;
                continue;
            }
            let number = self.number();
            self.sets.insert(Arc::clone(set), Used { number, users: 1 });
            turnover.come.push(Change::AddSet(number, set.shape()));
            turnover.fresh.push(Arc::clone(set));
        }
        let number = self.number();
        let chain = Change::AddChain(number, profile.0, self.rules(&profile.1));
        turnover.come.push(chain);
        self.chains.insert(profile.clone(), Used { number, users: 1 });
    }

    /// Releases chains, and their sets unless other chains use them.
    fn release(&mut self, left: Vec<Profile>) -> (Vec<Change>, BTreeSet<u32>) {
        let (mut chains, mut sets) = (Vec::new(), BTreeSet::new());
        for profile in left {
            let Some(chain) = self.chains.get_mut(&profile) else {
                continue;
            };
            chain.users = chain.users.saturating_sub(1);
            if chain.users > 0 {
                continue;
            }
            let gone = self.chains.remove(&profile);
            chains.extend(gone.map(|chain| Change::RemoveChain(profile.0, chain.number)));
            for set in profile.1.iter().flat_map(|rule| &rule.0) {
                let Some(used) = self.sets.get_mut(set) else { continue };
                used.users = used.users.saturating_sub(1);
                if used.users == 0 {
                    sets.extend(self.sets.remove(set).map(|used| used.number));
                }
            }
        }
        (chains, sets)
    }

    fn rules(&self, rules: &[Lookups]) -> Vec<Rule> {
        let numbered = |set: &Arc<Set>| self.sets.get(set).map(|used| (set.shape(), used.number));
        rules
            .iter()
            .map(|rule| Rule(rule.0.iter().filter_map(numbered).collect()))
            .collect()
    }

    /// Returns the elements of sets for the pods with these addresses.
    fn elements(&self, sets: &[Arc<Set>], addresses: &BTreeSet<IpAddr>) -> BTreeSet<Element> {
        let mut all = BTreeSet::new();
        for address in addresses {
            let holders = self.holders.get(address).into_iter().flatten();
            for pod in holders.filter_map(|uid| self.pods.get(uid)) {
                let labels = self.namespaces.get(&*pod.namespace);
                for set in sets {
                    let Some(used) = self.sets.get(set) else { continue };
                    all.extend(set.of_pod(used.number, pod, labels, *address));
                }
            }
        }
        all
    }

    /// All elements of a set.
    fn filling(&self, set: &Arc<Set>) -> BTreeSet<Element> {
        let Some(used) = self.sets.get(set) else {
            return BTreeSet::new();
        };
        let of_pods = self.pods.values().filter(|_| set.follows_pods()).flat_map(|pod| {
            let labels = self.namespaces.get(&*pod.namespace);
            let addresses = pod.addresses.iter();
            addresses.flat_map(move |address| set.of_pod(used.number, pod, labels, *address))
        });
        set.fixed(used.number).into_iter().chain(of_pods).collect()
    }

    /// Returns the elements for the isolated pods of this node themselves.
    fn isolations<'a>(&self, uids: impl Iterator<Item = &'a String>) -> BTreeSet<Element> {
        let mut all = BTreeSet::new();
        for uid in uids {
            let (Some(pod), Some(chains)) = (self.pods.get(uid), self.isolated.get(uid)) else {
                continue;
            };
            for address in &pod.addresses {
                all.insert(Element::Itself(*address));
                for (direction, profile) in chains {
                    let number = self.chains.get(profile).map(|chain| chain.number);
                    all.extend(number.map(|number| Element::Isolated(*direction, *address, number)));
                }
            }
        }
        all
    }
}
