//! Network policies by nftables, in tables of their own: the plan of `agent_plan::network::network_policy`
//! becomes chains, sets and elements, by raw netlink.
//!
//! ```text
//! forward    neighbour discovery, answers, a pod to itself: accept
//!            saddr ─► out ─► o<N>      an isolated pod sends: a rule goes to inward, or drop
//!            inward
//! inward     daddr ─► in ─► i<N>       an isolated pod gets: a rule accepts, or drop
//! ```
//!
//! Rules match the pods' addresses after the translation of Services and host ports, and every
//! packet in the original direction of a connection: an existing connection ends when it is no
//! longer allowed. Only forwarded packets are filtered, so the node always reaches its pods and
//! they reach it.

use std::net::IpAddr;

use agent_plan::network::network_policy::{Change, Direction, Element, Rule as Lookups, Shape};

use crate::Error;
pub use crate::nft::Watch;
use crate::nft::message::{Attributes, Batch, Family, Item, Kind, Lists, Verdict, octets, padded, verdict};
use crate::nft::rule::{End, R0, Rule};
use crate::nft::set::{CONCATENATED, Data, Field, INTERVAL, Set};
use crate::nft::socket::Socket;
use crate::nft::{self, families, remove_tables};

const FORWARD: u32 = 2;

/// IPv6 ICMP types of neighbor discovery, which conntrack does not track.
const DISCOVERY: (u8, u8) = (133, 137);

/// Constant sets and maps.
const SETS: &[Set<'static>] = &[
    Set::new("in", &[Field::Address], Data::Verdict),
    Set::new("out", &[Field::Address], Data::Verdict),
    Set::new("itself", &[Field::Address, Field::Address], Data::None),
];

/// Offset of a set's ID, since IDs must be unique within a transaction.
const OWN_SETS: u32 = 16;

/// Name of the tables of the cluster with this bridge.
pub fn table(bridge: &str) -> String {
    format!("{}_policies", nft::table(bridge))
}

/// Tables in this network namespace.
pub struct Policies {
    table: String,
    socket: Socket,
}

impl Policies {
    /// Opens a netlink socket, without changing anything.
    pub fn open(table: String) -> Result<Self, Error> {
        let socket = Socket::open().map_err(refused)?;
        Ok(Self { table, socket })
    }

    /// Subscribes to changes by other programs.
    pub fn watch(&self) -> std::io::Result<Watch> {
        Watch::open(self.socket.id(), self.table.clone())
    }

    /// Replaces the contents of the tables, in one transaction.
    pub fn refill(&self, all: &[Change]) -> Result<(), Error> {
        let mut batch = Batch::new();
        for family in families() {
            self.make(&mut batch, family);
        }
        self.write(&mut batch, all);
        self.socket.commit(batch).map_err(refused)
    }

    /// Applies incremental changes. After an error nothing has changed, and [`Policies::refill`] is
    /// required.
    pub fn change(&self, changes: &[Change]) -> Result<(), Error> {
        let mut batch = Batch::new();
        self.write(&mut batch, changes);
        self.socket.commit(batch).map_err(refused)
    }

    fn make(&self, batch: &mut Batch, family: Family) {
        let table = Attributes::new().text(1, &self.table);
        batch.add(Kind::NewTable, family, &table);
        batch.add(Kind::DeleteTable, family, &table);
        batch.add(Kind::NewTable, family, &table);
        for (number, set) in (1..).zip(SETS) {
            batch.add(Kind::NewSet, family, &set.message(&self.table, family, number));
        }
        let hook = Attributes::new().number(1, FORWARD).number(2, 0);
        let forward = table.clone().text(3, "forward").nest(4, &hook).text(7, "filter");
        batch.add(Kind::NewChain, family, &forward);
        batch.add(Kind::NewChain, family, &table.text(3, "inward"));
        let rule = || Rule::new(family);
        let accept = |rule: Rule| rule.verdict(Verdict::Accept);
        let mut add = |chain: &str, rule: Rule| self.add(batch, family, chain, &rule);
        if family.is_ipv6() {
            add("forward", accept(rule().of_icmpv6(DISCOVERY.0, DISCOVERY.1)));
        }
        add("forward", accept(rule().related()));
        add("forward", accept(rule().reply()));
        let both = rule().address(End::Source, R0);
        let both = both.address(End::Destination, R0 + rule().words());
        add("forward", accept(both.lookup("itself", R0, None)));
        let sender = rule().address(End::Source, R0).lookup("out", R0, Some(0));
        add("forward", sender);
        add("forward", rule().go("inward"));
        let receiver = rule().address(End::Destination, R0).lookup("in", R0, Some(0));
        add("inward", receiver);
    }

    fn add(&self, batch: &mut Batch, family: Family, chain: &str, rule: &Rule) {
        let whole = Attributes::new()
            .text(1, &self.table)
            .text(2, chain)
            .nest(4, rule.expressions());
        batch.add(Kind::NewRule, family, &whole);
    }

    fn write(&self, batch: &mut Batch, changes: &[Change]) {
        let (mut gone, mut come) = (
            Lists::new(Kind::DeleteElement, &self.table),
            Lists::new(Kind::NewElement, &self.table),
        );
        let mut last = Vec::new();
        for change in changes {
            match change {
                Change::AddSet(number, shape) => {
                    for family in families() {
                        self.add_set(batch, family, *number, *shape);
                    }
                }
                Change::AddChain(number, direction, rules) => {
                    for family in families() {
                        self.add_chain(batch, family, &chain(*direction, *number), *direction, rules);
                    }
                }
                Change::Remove(element) => {
                    for (place, item) in items(*element) {
                        gone.push(batch, place, &item);
                    }
                }
                Change::Add(element) => {
                    let before = std::mem::replace(&mut gone, Lists::new(Kind::DeleteElement, &self.table));
                    before.close(batch);
                    for (place, item) in items(*element) {
                        come.push(batch, place, &item);
                    }
                }
                Change::RemoveChain(..) | Change::RemoveSet(_) => last.push(change),
            }
        }
        gone.close(batch);
        come.close(batch);
        for family in families() {
            for change in &last {
                let named = Attributes::new().text(1, &self.table);
                match change {
                    Change::RemoveChain(direction, number) => {
                        let named = named.text(3, &chain(*direction, *number));
                        batch.add(Kind::DeleteChain, family, &named);
                    }
                    Change::RemoveSet(number) => batch.add(Kind::DeleteSet, family, &named.text(2, &set(*number))),
                    Change::AddSet(..) | Change::AddChain(..) | Change::Add(_) | Change::Remove(_) => {}
                }
            }
        }
    }

    fn add_set(&self, batch: &mut Batch, family: Family, number: u32, shape: Shape) {
        use Field::{Address, Port, Protocol};
        let name = set(number);
        let (key, flags): (&'static [Field], u32) = match shape {
            Shape::Addresses => (&[Address], 0),
            Shape::Ranges => (&[Address], INTERVAL),
            Shape::Ports => (&[Protocol, Port], INTERVAL | CONCATENATED),
            Shape::Endpoints => (&[Address, Protocol, Port], 0),
        };
        let whole = Set {
            flags,
            ..Set::new(&name, key, Data::None)
        };
        let whole = whole.message(&self.table, family, OWN_SETS.saturating_add(number));
        batch.add(Kind::NewSet, family, &whole);
    }

    fn add_chain(&self, batch: &mut Batch, family: Family, name: &str, direction: Direction, rules: &[Lookups]) {
        let whole = Attributes::new().text(1, &self.table).text(3, name);
        batch.add(Kind::NewChain, family, &whole);
        for Lookups(sets) in rules {
            let mut rule = Rule::new(family);
            for (shape, number) in sets {
                rule = look_up(rule, direction, *shape, &set(*number));
            }
            let rule = match direction {
                Direction::In => rule.verdict(Verdict::Accept),
                Direction::Out => rule.go("inward"),
            };
            self.add(batch, family, name, &rule);
        }
        self.add(batch, family, name, &Rule::new(family).verdict(Verdict::Drop));
    }
}

fn look_up(rule: Rule, direction: Direction, shape: Shape, set: &str) -> Rule {
    let peer = match direction {
        Direction::In => End::Source,
        Direction::Out => End::Destination,
    };
    let words = rule.words();
    let loaded = match shape {
        Shape::Addresses | Shape::Ranges => rule.address(peer, R0),
        Shape::Ports => rule.protocol(R0).port(R0 + 1),
        Shape::Endpoints => rule.address(peer, R0).protocol(R0 + words).port(R0 + words + 1),
    };
    loaded.lookup(set, R0, None)
}

/// Deletes the tables. Succeeds if there are none.
pub fn remove(table: &str) -> Result<(), Error> {
    remove_tables(table).map_err(refused)
}

fn refused(errno: nix::errno::Errno) -> Error {
    Error::Kernel {
        doing: "change the tables of NetworkPolicies",
        cause: errno.to_string(),
    }
}

fn set(number: u32) -> String {
    format!("s{number}")
}

fn chain(direction: Direction, number: u32) -> String {
    match direction {
        Direction::In => format!("i{number}"),
        Direction::Out => format!("o{number}"),
    }
}

/// Set element for the kernel, in each family whose sets contain it.
fn items(element: Element) -> Vec<((Family, String), Item)> {
    let own = |address: IpAddr| Family::of(address.is_ipv6());
    let protocol = |number: u8| [number, 0, 0, 0];
    match element {
        Element::Isolated(direction, address, number) => {
            let map = match direction {
                Direction::In => "in",
                Direction::Out => "out",
            };
            let led = verdict(Verdict::Goto(&chain(direction, number)));
            let item = Item::new(octets(address)).with(led);
            vec![((own(address), map.to_owned()), item)]
        }
        Element::Itself(address) => {
            let item = Item::new(octets(address).repeat(2));
            vec![((own(address), "itself".to_owned()), item)]
        }
        Element::Address(number, address) => vec![((own(address), set(number)), Item::new(octets(address)))],
        Element::Range(number, first, last) => {
            let place = (own(first), set(number));
            let begin = Item::new(octets(first));
            let end = after(octets(last)).map(|next| (place.clone(), Item::behind(next)));
            [(place, begin)].into_iter().chain(end).collect()
        }
        Element::Ports(number, kind, first, last) => families()
            .map(|family| {
                let key = |port: u16| [protocol(kind.number()), padded(port)].concat();
                let item = Item::new(key(first)).up_to(key(last));
                ((family, set(number)), item)
            })
            .collect(),
        Element::Endpoint(number, address, kind, port) => {
            let key = [octets(address), protocol(kind.number()).to_vec(), padded(port).to_vec()].concat();
            vec![((own(address), set(number)), Item::new(key))]
        }
    }
}

/// Next key, or `None` after the last one.
fn after(mut key: Vec<u8>) -> Option<Vec<u8>> {
    for byte in key.iter_mut().rev() {
        let (next, over) = byte.overflowing_add(1);
        *byte = next;
        if !over {
            return Some(key);
        }
    }
    None
}
