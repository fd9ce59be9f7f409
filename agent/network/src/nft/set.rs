//! Sets and maps.

use super::message::{Attributes, Family};

/// Data types, numbered as in nft, for its listings.
const ADDRESS: [u32; 2] = [7, 8];
const PROTOCOL: u32 = 12;
const SERVICE: u32 = 13;
const MARK: u32 = 19;
const VERDICT: u32 = 0xffff_ff00;

/// Set flags.
pub(crate) const INTERVAL: u32 = 0x4;
pub(crate) const MAP: u32 = 0x8;
pub(crate) const TIMEOUT: u32 = 0x10;
pub(crate) const EVALUATED: u32 = 0x20;
pub(crate) const CONCATENATED: u32 = 0x80;

/// Part of a key or of data.
#[derive(Clone, Copy)]
pub(crate) enum Field {
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

/// Data of a set besides its keys.
pub(crate) enum Data {
    None,
    Fields(&'static [Field]),
    Verdict,
}

/// Set or map.
pub(crate) struct Set<'a> {
    pub(crate) name: &'a str,
    pub(crate) key: &'static [Field],
    pub(crate) data: Data,
    pub(crate) flags: u32,
    /// Maximum number of elements added by packets; 0 if only transactions add elements.
    pub(crate) size: u32,
}

impl<'a> Set<'a> {
    /// Set, or a map if there is data.
    pub(crate) const fn new(name: &'a str, key: &'static [Field], data: Data) -> Self {
        let flags = if matches!(data, Data::None) { 0 } else { MAP };
        Self {
            name,
            key,
            data,
            flags,
            size: 0,
        }
    }

    /// Message that creates the set if it does not exist.
    pub(crate) fn message(&self, table: &str, family: Family, number: u32) -> Attributes {
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
        if self.size != 0 {
            whole = whole.nest(9, &Attributes::new().number(1, self.size));
        }
        whole
    }
}
