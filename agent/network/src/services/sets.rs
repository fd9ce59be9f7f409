//! The sets and maps of a table.

use super::message::{Attributes, Family};

/// Types of data, in nft's numbers, for its listings.
const ADDRESS: [u32; 2] = [7, 8];
const PROTOCOL: u32 = 12;
const SERVICE: u32 = 13;
const MARK: u32 = 19;
const VERDICT: u32 = 0xffff_ff00;

/// Properties of sets.
const INTERVAL: u32 = 0x4;
const MAP: u32 = 0x8;
const TIMEOUT: u32 = 0x10;
const EVALUATED: u32 = 0x20;
const CONCATENATED: u32 = 0x80;

/// Clients that are remembered at once; the next one is led by chance.
const CLIENTS: u32 = 65_536;

/// A part of a key or of data.
#[derive(Clone, Copy)]
enum Field {
    Address,
    Protocol,
    Port,
    Mark,
}

impl Field {
    fn kind(self, family: Family) -> u32 {
        let [v4, v6] = ADDRESS;
        match self {
            Self::Address if family.is_ipv6() => v6,
            Self::Address => v4,
            Self::Protocol => PROTOCOL,
            Self::Port => SERVICE,
            Self::Mark => MARK,
        }
    }

    const fn width(self, family: Family) -> u32 {
        match self {
            Self::Address => family.width(),
            Self::Protocol | Self::Port | Self::Mark => 4,
        }
    }
}

/// What a set holds besides keys.
enum Data {
    None,
    Fields(&'static [Field]),
    Verdict,
}

/// A set or map.
pub(super) struct Set {
    pub(super) name: &'static str,
    key: &'static [Field],
    data: Data,
    flags: u32,
}

const fn set(name: &'static str, key: &'static [Field], data: Data) -> Set {
    let flags = if matches!(data, Data::None) { 0 } else { MAP };
    Set { name, key, data, flags }
}

/// The map that packets fill; it outlives the agent.
pub(super) const AFFINITY: &str = "affinity";

/// The sets and maps of a table.
pub(super) const SETS: &[Set] = {
    use Field::{Address, Mark, Port, Protocol};
    const MARKED: Data = Data::Fields(&[Mark]);
    const ENDPOINT: Data = Data::Fields(&[Address, Port]);
    &[
        set("front", &[Address, Protocol, Port], MARKED),
        set("outer", &[Address, Protocol, Port], MARKED),
        set("outer_local", &[Address, Protocol, Port], MARKED),
        set("node_ports", &[Protocol, Port], MARKED),
        set("node_ports_local", &[Protocol, Port], MARKED),
        set("cluster_ips", &[Address], Data::None),
        // The second part is a number; nft has no name for one of the kernel's own order but this.
        set("slots", &[Mark, Mark], ENDPOINT),
        set("hairpins", &[Mark, Address, Address], Data::None),
        set("members", &[Mark, Address, Port], Data::None),
        Set {
            flags: INTERVAL | CONCATENATED,
            ..set("sources", &[Mark, Address], Data::None)
        },
        set("classes", &[Mark], Data::Verdict),
        set("timeouts", &[Mark], Data::Verdict),
        Set {
            flags: MAP | TIMEOUT | EVALUATED,
            ..set(AFFINITY, &[Mark, Address], ENDPOINT)
        },
    ]
};

impl Set {
    /// What makes it, if it is not there.
    pub(super) fn message(&self, table: &str, family: Family, number: u32) -> Attributes {
        let kind = |fields: &[Field]| fields.iter().fold(0, |all, field| all << 6 | field.kind(family));
        let width = |fields: &[Field]| fields.iter().map(|field| field.width(family)).sum();
        let mut whole = Attributes::new()
            .text(1, table)
            .text(2, self.name)
            .number(3, self.flags)
            .number(4, kind(self.key))
            .number(5, width(self.key))
            .number(10, number);
        match self.data {
            Data::None => {}
            Data::Verdict => whole = whole.number(6, VERDICT),
            Data::Fields(fields) => whole = whole.number(6, kind(fields)).number(7, width(fields)),
        }
        if self.flags & CONCATENATED != 0 {
            let fields = self.key.iter().fold(Attributes::new(), |all, field| {
                all.nest(1, &Attributes::new().number(1, field.width(family)))
            });
            whole = whole.nest(9, &Attributes::new().nest(2, &fields));
        }
        if self.flags & TIMEOUT != 0 {
            whole = whole.nest(9, &Attributes::new().number(1, CLIENTS));
        }
        whole
    }
}
