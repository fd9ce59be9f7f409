//! Services by nftables, in tables of their own: the plan of `agent_plan::network::proxy` becomes elements
//! of maps, by raw netlink.
//!
//! Every update is one transaction of a few elements. The tables are never listed: after a start,
//! an error or a change by another program they are emptied and filled again in one transaction,
//! which existing connections survive.

pub mod announce;
mod route;
mod sets;
mod skeleton;
mod tracking;

use std::collections::BTreeSet;
use std::net::IpAddr;

use agent_plan::network::proxy::{Change, Datagrams, Element, Key, Value};
use nix::errno::Errno;

pub use crate::nft::Watch;
use crate::nft::message::{Batch, Family, Item, Kind, Lists, Verdict, octets, padded, value, verdict};
use crate::nft::socket::Socket;
use crate::nft::{self, conntrack, families, remove_tables};
use crate::{Cidr, Error, Served};
use skeleton::Skeleton;

/// Name of the tables, and the addresses of pods, Services and node ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the tables, unique in this network namespace.
    pub table: String,
    /// Pods of this node, if known. Traffic from other sources is masqueraded.
    pub pods: Option<Served>,
    /// CIDRs of Services: pods' packets to addresses in them without a Service are rejected.
    pub services: Vec<Cidr>,
    /// Node addresses that serve node ports; if empty, all but those of the loopback.
    pub node_ports: Vec<Cidr>,
}

impl Config {
    /// Distinguishes connections of this table from those of another cluster on the same machine.
    fn tag(&self) -> u32 {
        tag(&self.table)
    }

    /// Adds the node's own route to Services of its pods' families, where no other leads there, such
    /// as its default route.
    pub fn reach(&self) -> Result<(), Error> {
        let Some(pods) = &self.pods else { return Ok(()) };
        let ranges = self.services.iter();
        let mut ranges = ranges.filter(|range| pods.ranges.of_family(range.is_ipv6()).is_some());
        ranges.try_for_each(|range| route::reach(*range, &pods.interface))
    }
}

/// Tag of a table's connections, in the bits [`TAG`] of their marks.
pub(crate) fn tag(table: &str) -> u32 {
    let hash = table.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    1 + hash % 255
}

/// Bits of a mark that hold the tag.
pub(crate) const TAG: u32 = 0xff;

/// Name of the tables of the cluster with this bridge.
pub fn table(bridge: &str) -> String {
    format!("{}_services", nft::table(bridge))
}

/// Chains that are created when a group first needs them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Made {
    Class(u8),
    Timeout(u32),
}

/// Tables in this network namespace.
pub struct Services {
    config: Config,
    socket: Socket,
    made: BTreeSet<(Family, Made)>,
}

impl Services {
    /// Opens a netlink socket, without changing anything.
    pub fn open(config: Config) -> Result<Self, Error> {
        Ok(Self {
            config,
            socket: Socket::open().map_err(refused)?,
            made: BTreeSet::new(),
        })
    }

    /// Current configuration.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Sets other ranges, effective at the next [`Services::refill`].
    pub fn configure(&mut self, config: Config) {
        self.config = config;
    }

    /// Subscribes to changes by other programs.
    pub fn watch(&self) -> std::io::Result<Watch> {
        Watch::open(self.socket.id(), self.config.table.clone())
    }

    /// Replaces the contents of the tables.
    pub fn refill<I: Iterator<Item = (Element, Value)>>(&mut self, elements: impl Fn() -> I) -> Result<(), Error> {
        let emptied = self.fill(false, elements());
        // The tables are from another version or another program.
        emptied.or_else(|_refused| self.fill(true, elements()))
    }

    fn fill(&mut self, fresh: bool, elements: impl Iterator<Item = (Element, Value)>) -> Result<(), Error> {
        let mut batch = Batch::new();
        self.made.clear();
        for family in families() {
            let config = &self.config;
            let batch = &mut batch;
            Skeleton { config, family, batch }.make(fresh);
        }
        let all = elements.map(|(element, value)| Change::Add(element, value));
        self.write(&mut batch, all);
        self.commit(batch)?;
        tracking::make_room();
        self.config.reach()
    }

    /// Applies incremental changes. After an error nothing has changed, and [`Services::refill`] is
    /// required.
    pub fn change(&mut self, changes: &[Change]) -> Result<(), Error> {
        let mut batch = Batch::new();
        self.write(&mut batch, changes.iter().copied());
        self.commit(batch)
    }

    fn commit(&mut self, batch: Batch) -> Result<(), Error> {
        let done = self.socket.commit(batch).map_err(refused);
        if done.is_err() {
            self.made.clear();
        }
        done
    }

    /// Removals come before additions.
    fn write(&mut self, batch: &mut Batch, changes: impl Iterator<Item = Change>) {
        let table = self.config.table.clone();
        let v6 = families().any(Family::is_ipv6);
        let (mut gone, mut come) = (
            Lists::new(Kind::DeleteElement, &table),
            Lists::new(Kind::NewElement, &table),
        );
        let mut removing = true;
        for change in changes {
            let (element, value) = match change {
                Change::Remove(element) => (element, None),
                Change::Add(element, value) => (element, Some(value)),
            };
            if element.v6 && !v6 {
                continue;
            }
            let family = Family::of(element.v6);
            let (set, item) = item(element.key, value);
            match value {
                None => gone.push(batch, (family, set), &item),
                Some(value) => {
                    if std::mem::take(&mut removing) {
                        let before = std::mem::replace(&mut gone, Lists::new(Kind::DeleteElement, &table));
                        before.close(batch);
                    }
                    self.prepare(batch, family, value);
                    come.push(batch, (family, set), &item);
                }
            }
        }
        gone.close(batch);
        come.close(batch);
    }

    /// Creates the chains to which a value refers.
    fn prepare(&mut self, batch: &mut Batch, family: Family, value: Value) {
        let made = match value {
            Value::Mark(mark) => Made::Class(mark.to_be_bytes().last().copied().unwrap_or_default()),
            Value::Seconds(seconds) => Made::Timeout(seconds),
            Value::Nothing | Value::Endpoint(..) => return,
        };
        if self.made.insert((family, made)) {
            let config = &self.config;
            let mut skeleton = Skeleton { config, family, batch };
            match made {
                Made::Class(class) => skeleton.add_class(class),
                Made::Timeout(seconds) => skeleton.add_timeout(seconds),
            }
        }
    }
}

/// Deletes conntrack entries of UDP flows to outdated endpoints.
pub fn forget(datagrams: &Datagrams) -> Result<(), Error> {
    conntrack::forget_those(&|flow| {
        let stale = |from| datagrams.is_stale(flow.to, from, flow.only_leaves());
        flow.from.is_some_and(stale)
    })
}

/// Deletes the tables. Succeeds if there are none.
pub fn remove(table: &str) -> Result<(), Error> {
    match remove_tables(table) {
        // A kernel without nftables has no tables.
        Err(Errno::EPROTONOSUPPORT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT) => Ok(()),
        done => done.map_err(refused),
    }
}

fn refused(errno: Errno) -> Error {
    Error::Kernel {
        doing: "change the tables of Services",
        cause: errno.to_string(),
    }
}

/// Map element for the kernel, and its map. A removal needs the key alone.
fn item(key: Key, data: Option<Value>) -> (&'static str, Item) {
    let (set, item) = match key {
        Key::Front(address, protocol, port) => ("front", at(Some(address), protocol.number(), port)),
        Key::Outer(address, protocol, port) => ("outer", at(Some(address), protocol.number(), port)),
        Key::OuterLocal(address, protocol, port) => ("outer_local", at(Some(address), protocol.number(), port)),
        Key::NodePort(protocol, port) => ("node_ports", at(None, protocol.number(), port)),
        Key::NodePortLocal(protocol, port) => ("node_ports_local", at(None, protocol.number(), port)),
        Key::ClusterIp(address) => ("cluster_ips", octets(address)),
        Key::Slot(group, number) => ("slots", [group.to_ne_bytes(), number.to_ne_bytes()].concat()),
        Key::Hairpin(group, address) => ("hairpins", [of(group, address), octets(address)].concat()),
        Key::Source(group, first, last) => {
            let item = Item::new(of(group, first)).up_to(of(group, last));
            return ("sources", item);
        }
        Key::Member(group, address, port) => ("members", [of(group, address), padded(port).to_vec()].concat()),
        Key::Timeout(group) => ("timeouts", group.to_ne_bytes().to_vec()),
    };
    let item = Item::new(item);
    let item = match data {
        None | Some(Value::Nothing) => item,
        Some(Value::Mark(mark)) => item.with(skeleton::mark(mark)),
        Some(Value::Endpoint(address, port)) => {
            let endpoint = [octets(address), padded(port).to_vec()].concat();
            item.with(value(&endpoint))
        }
        Some(Value::Seconds(seconds)) => item.with(verdict(Verdict::Goto(&skeleton::timeout(seconds)))),
    };
    (set, item)
}

fn of(group: u32, address: IpAddr) -> Vec<u8> {
    [group.to_ne_bytes().to_vec(), octets(address)].concat()
}

fn at(address: Option<IpAddr>, protocol: u8, port: u16) -> Vec<u8> {
    let address = address.map(octets).unwrap_or_default();
    [address, vec![protocol, 0, 0, 0], padded(port).to_vec()].concat()
}
