//! Constant part of the tables: maps, chains and rules, the same for any number of Services.
//!
//! ```text
//! mark of a connection while it is looked up    flags 4 bits . group of endpoints 20 bits . class 8 bits
//! mark of a connection that was led             flags 4 bits . group of endpoints 20 bits . the table's own tag
//!
//! prerouting   own     from pods of this node: lookup; what else is in the range of Services ends here
//!              any     from anywhere else: lookup
//! output               from the node: lookup
//! lookup               address, protocol, port ─► front, outer, node_ports ─► mark ─► service
//! service              sources? ─► policy_local? ─► choose ─► sticky? ─► classes: mark's class ─► n<N>, refuse, drop
//! n<N>                 group . random number below N ─► slots ─► destination
//! postrouting          of led connections: masquerade where the answer would not come back this way
//! learn                after the choice: aff has group . client ─► endpoint for as long as t<SECONDS> says
//! ```
//!
//! No map holds verdicts per Service, so the kernel's work for an update does not grow with their
//! number: at each change it walks all elements of changed verdict maps.
//!
//! Several clusters may share a network namespace. The pods of each one are served by its own
//! table, since `own` precedes every `any`; traffic from elsewhere is served by the table that was
//! created last among those with the address.

use agent_plan::network::proxy::{GROUP, flags, slots};

use super::Config;
use super::sets::{AFFINITY, SETS};
use crate::Cidr;
use crate::nft::message::{Attributes, Batch, Family, Item, Kind, Verdict, value, verdict};
use crate::nft::rule::{End, R0, Rule};

const PREROUTING: u32 = 0;
const INPUT: u32 = 1;
const OUTPUT: u32 = 3;
const POSTROUTING: u32 = 4;

/// Bits of a mark that hold the size class of a group, replaced by the tag later.
const CLASS: u32 = 0xff;
/// Register that no lookup uses.
const SPARE: u32 = R0 + 15;

/// Regular chains.
const CHAINS: &[&str] = &[
    "lookup",
    "service",
    "policy_local",
    "choose",
    "sticky",
    "learn",
    "refuse",
];

/// Base chains: name, type, hook, priority. Among NAT chains of one hook, the first translation is
/// final.
const HOOKS: &[(&str, &str, u32, i32)] = &[
    ("own", "nat", PREROUTING, -101),
    ("any", "nat", PREROUTING, -100),
    ("output", "nat", OUTPUT, -100),
    ("postrouting", "nat", POSTROUTING, 100),
    // Before source NAT.
    ("led_on", "filter", POSTROUTING, 90),
    ("led_in", "filter", INPUT, 90),
];

/// Encodes the table of one family.
pub(super) struct Skeleton<'a> {
    pub(super) config: &'a Config,
    pub(super) family: Family,
    pub(super) batch: &'a mut Batch,
}

impl Skeleton<'_> {
    /// Creates the table, or empties the existing one except for session affinity. `fresh`:
    /// replaces a table of another version.
    pub(super) fn make(&mut self, fresh: bool) {
        let table = Attributes::new().text(1, &self.config.table);
        self.batch.add(Kind::NewTable, self.family, &table);
        if fresh {
            self.batch.add(Kind::DeleteTable, self.family, &table);
            self.batch.add(Kind::NewTable, self.family, &table);
        }
        for (number, set) in (1..).zip(SETS) {
            let set = set.message(&self.config.table, self.family, number);
            self.batch.add(Kind::NewSet, self.family, &set);
        }
        for (name, kind, hook, priority) in HOOKS {
            let hook = Attributes::new().number(1, *hook).bytes(2, &priority.to_be_bytes());
            let chain = table.clone().text(3, name).nest(4, &hook).text(7, kind);
            self.batch.add(Kind::NewChain, self.family, &chain);
        }
        for name in CHAINS {
            self.add_chain(name);
        }
        if !fresh {
            self.batch.add(Kind::DeleteRule, self.family, &table);
            for set in SETS.iter().filter(|set| set.name != AFFINITY) {
                let all = table.clone().text(2, set.name);
                self.batch.add(Kind::DeleteElement, self.family, &all);
            }
        }
        self.fill();
    }

    pub(super) fn add_chain(&mut self, name: &str) {
        let chain = Attributes::new().text(1, &self.config.table).text(3, name);
        self.batch.add(Kind::NewChain, self.family, &chain);
    }

    fn rule(&self) -> Rule {
        Rule::new(self.family)
    }

    fn add(&mut self, chain: &str, rule: &Rule) {
        let whole = Attributes::new()
            .text(1, &self.config.table)
            .text(2, chain)
            .nest(4, rule.expressions());
        self.batch.add(Kind::NewRule, self.family, &whole);
    }

    fn ranges(&self) -> (Option<Cidr>, Vec<Cidr>) {
        let v6 = self.family.is_ipv6();
        let pods = self.config.pods.as_ref().and_then(|pods| pods.ranges.of_family(v6));
        let services = self.config.services.iter();
        (pods, services.filter(|range| range.is_ipv6() == v6).copied().collect())
    }

    fn fill(&mut self) {
        let (pods, services) = self.ranges();
        if let Some(pods) = pods {
            let of_pods = self.rule().within(End::Source, pods, true);
            self.add("own", &of_pods.clone().verdict(Verdict::Jump("lookup")));
            // Part of the last chain, so that another proxy on the machine can handle addresses
            // that are not ours.
            for range in services {
                let unknown = of_pods.clone().within(End::Destination, range, true);
                self.add("postrouting", &unknown.verdict(Verdict::Drop));
            }
            self.add("any", &of_pods.verdict(Verdict::Return));
        }
        self.add("any", &self.rule().go("lookup"));
        self.add("output", &self.rule().go("lookup"));
        self.fill_lookup();
        self.fill_service(pods);
        self.fill_postrouting(pods);
        self.fill_learning();
        let refused = self.rule().of_protocol(6).reset();
        self.add("refuse", &refused);
        self.add("refuse", &self.rule().unreachable());
    }

    /// `address . protocol . port`, or without the address.
    fn key(&self, address: bool) -> Rule {
        Self::key_after(self.rule(), address)
    }

    fn key_after(rule: Rule, address: bool) -> Rule {
        let from = R0 + if address { rule.words() } else { 0 };
        let rule = if address {
            rule.address(End::Destination, R0)
        } else {
            rule
        };
        rule.protocol(from).port(from + 1)
    }

    fn fill_lookup(&mut self) {
        let led = |rule: Rule, map: &str| rule.lookup(map, R0, Some(R0)).set_mark(R0).go("service");
        self.add("lookup", &led(self.key(true), "front"));
        let own = self
            .rule()
            .address(End::Destination, R0)
            .lookup("cluster_ips", R0, None);
        self.add("lookup", &own.go("refuse"));
        // No Service hides the pods' own addresses, including that of their name server.
        let (pods, _) = self.ranges();
        let others = match pods {
            Some(pods) => self.rule().within(End::Destination, pods, false),
            None => self.rule(),
        };
        self.add("lookup", &led(Self::key_after(others, true), "outer"));
        let v6 = self.family.is_ipv6();
        let loopback = Cidr {
            address: if v6 {
                std::net::Ipv6Addr::LOCALHOST.into()
            } else {
                std::net::Ipv4Addr::LOCALHOST.into()
            },
            prefix: if v6 { 128 } else { 8 },
        };
        let ranges = self.config.node_ports.iter().filter(|range| range.is_ipv6() == v6);
        let mut ranges: Vec<(Cidr, bool)> = ranges.map(|range| (*range, true)).collect();
        if self.config.node_ports.is_empty() {
            ranges.push((loopback, false));
        }
        for (range, inside) in ranges {
            let at = self
                .rule()
                .within(End::Destination, range, inside)
                .locally(End::Destination);
            let at = at.protocol(R0).port(R0 + 1);
            self.add("lookup", &led(at, "node_ports"));
        }
    }

    fn fill_service(&mut self, pods: Option<Cidr>) {
        let asks = |rule: Rule| rule.mark(R0, GROUP).address(End::Source, R0 + 1);
        let strangers = asks(self.rule().marked(flags::RANGES)).missing("sources", R0);
        self.add("service", &strangers.verdict(Verdict::Drop));
        self.add("service", &self.rule().marked(flags::LOCAL).go("policy_local"));
        self.add("service", &self.rule().go("choose"));

        if let Some(pods) = pods {
            let inner = self.rule().within(End::Source, pods, true);
            let inner = inner.change_mark(R0, !flags::LOCAL, 0).go("choose");
            self.add("policy_local", &inner);
        }
        let own = self.rule().locally(End::Source);
        let own = own.change_mark(R0, !flags::LOCAL, flags::MASQUERADE).go("choose");
        self.add("policy_local", &own);
        for (address, map) in [(true, "outer_local"), (false, "node_ports_local")] {
            let outer = self.key(address).lookup(map, R0, Some(R0));
            self.add("policy_local", &outer.set_mark(R0).go("choose"));
        }
        self.add("policy_local", &self.rule().verdict(Verdict::Drop));

        self.add("choose", &self.rule().marked(flags::AFFINITY).go("sticky"));
        let by_class = self.rule().mark(R0, CLASS).lookup("classes", R0, Some(0));
        self.add("choose", &by_class);
        let known = asks(self.rule()).lookup(AFFINITY, R0, Some(R0 + 1));
        let known = self.led(known.lookup("members", R0, None)).lead(R0 + 1);
        self.add("sticky", &known);
        // Its endpoint may be gone.
        self.add("sticky", &asks(self.rule()).unlearn(AFFINITY, (R0, R0)));
        self.add("sticky", &by_class);
    }

    /// Replaces the class in the mark with the tag.
    fn led(&self, rule: Rule) -> Rule {
        rule.change_mark(SPARE, !CLASS, self.config.tag())
    }

    fn fill_postrouting(&mut self, pods: Option<Cidr>) {
        let chain = "postrouting";
        let others = self.rule().not_marked_as(CLASS, self.config.tag());
        self.add(chain, &others.verdict(Verdict::Return));
        self.add(chain, &self.rule().untranslated().verdict(Verdict::Return));
        self.add(chain, &self.rule().marked(flags::MASQUERADE).masquerade());
        let words = self.rule().words();
        let itself = self.rule().mark(R0, GROUP).address(End::Source, R0 + 1);
        let itself = itself.address(End::Destination, R0 + 1 + words);
        self.add(chain, &itself.lookup("hairpins", R0, None).masquerade());
        if let Some(pods) = pods {
            let stranger = self.rule().unmarked(flags::LOCAL).within(End::Source, pods, false);
            self.add(chain, &stranger.masquerade());
        }
    }

    fn fill_learning(&mut self) {
        for chain in ["led_on", "led_in"] {
            let sticky = flags::AFFINITY | self.config.tag();
            let begun = self.rule().marked_as(flags::AFFINITY | CLASS, sticky).new_connection();
            self.add(chain, &begun.go("learn"));
        }
        let by_group = self.rule().mark(R0, GROUP).lookup("timeouts", R0, Some(0));
        self.add("learn", &by_group);
    }

    fn add_verdict(&mut self, class: u8, said: Verdict<'_>) {
        let mut lists = crate::nft::message::Lists::new(Kind::NewElement, &self.config.table);
        let key = u32::from(class).to_ne_bytes().to_vec();
        let item = Item::new(key).with(verdict(said));
        lists.push(self.batch, (self.family, "classes"), &item);
        lists.close(self.batch);
    }

    /// Creates the selection of an endpoint in groups of a class.
    pub(super) fn add_class(&mut self, class: u8) {
        match class {
            agent_plan::network::proxy::REFUSE => self.add_verdict(class, Verdict::Goto("refuse")),
            agent_plan::network::proxy::DROP => self.add_verdict(class, Verdict::Drop),
            _ => {
                let chain = format!("n{}", slots(class));
                self.add_chain(&chain);
                let rule = self.led(self.rule()).mark(R0, GROUP).random(R0 + 1, slots(class));
                self.add(&chain, &rule.lookup("slots", R0, Some(R0)).lead(R0));
                self.add_verdict(class, Verdict::Goto(&chain));
            }
        }
    }

    /// Creates session affinity with this timeout.
    pub(super) fn add_timeout(&mut self, seconds: u32) {
        let chain = timeout(seconds);
        self.add_chain(&chain);
        let rule = self.rule().mark(R0, GROUP).address(End::Source, R0 + 1);
        let data = R0 + 1 + rule.words();
        let rule = rule.address(End::Destination, data);
        let port = data + rule.words();
        self.add(&chain, &rule.port(port).learn(AFFINITY, (R0, data), seconds));
    }
}

/// Name of the chain for session affinity with this timeout.
pub(super) fn timeout(seconds: u32) -> String {
    format!("t{seconds}")
}

/// Encodes a mark as data.
pub(super) fn mark(mark: u32) -> Attributes {
    value(&mark.to_ne_bytes())
}
