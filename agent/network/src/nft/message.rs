//! Encodes nftables messages (`linux/netfilter/nf_tables.h`). Attributes are nested, with numbers
//! in network order; keys, marks and compared data are in the order of the kernel's registers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use rtnetlink::packet_core::{NLA_F_NESTED, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST};

/// Subsystem of nftables in nfnetlink.
const SUBSYSTEM: u16 = 10;
const BEGIN: u16 = 16;
const END: u16 = 17;

/// Type of a message.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    NewTable = 0,
    DeleteTable = 2,
    NewChain = 3,
    DeleteChain = 5,
    NewRule = 6,
    DeleteRule = 8,
    NewSet = 9,
    DeleteSet = 11,
    NewElement = 12,
    DeleteElement = 14,
}

/// Maximum length of the elements in one message: an attribute's length has 16 bits.
const LONGEST_LIST: usize = 60_000;

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    V4 = 2,
    /// Bridge family: frames of any protocol.
    Bridge = 7,
    V6 = 10,
}

impl Family {
    pub(crate) const fn of(v6: bool) -> Self {
        if v6 { Self::V6 } else { Self::V4 }
    }

    pub(crate) const fn is_ipv6(self) -> bool {
        matches!(self, Self::V6)
    }

    /// Length of an address in bytes.
    pub(crate) const fn width(self) -> u32 {
        if self.is_ipv6() { 16 } else { 4 }
    }
}

/// Sequence of attributes.
#[derive(Clone, Default)]
pub(crate) struct Attributes(pub(crate) Vec<u8>);

impl Attributes {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        self.push(kind, value);
        self
    }

    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        let mut value = value.as_bytes().to_vec();
        value.push(0);
        self.bytes(kind, &value)
    }

    pub(crate) fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(crate) fn nest(self, kind: u16, inner: &Self) -> Self {
        self.bytes(kind | NLA_F_NESTED, &inner.0)
    }

    /// Lengths fit into 16 bits: lists of elements are split before.
    fn push(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(value.len().saturating_add(4)).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Value of a register or an element.
pub(crate) fn value(bytes: &[u8]) -> Attributes {
    Attributes::new().bytes(1, bytes)
}

/// Verdict of a rule.
#[derive(Clone, Copy)]
pub(crate) enum Verdict<'a> {
    Drop,
    Accept,
    Return,
    Goto(&'a str),
    Jump(&'a str),
}

/// Encodes a verdict as data.
pub(crate) fn verdict(verdict: Verdict<'_>) -> Attributes {
    let (code, chain): (i32, _) = match verdict {
        Verdict::Drop => (0, None),
        Verdict::Accept => (1, None),
        Verdict::Jump(chain) => (-3, Some(chain)),
        Verdict::Goto(chain) => (-4, Some(chain)),
        Verdict::Return => (-5, None),
    };
    let said = Attributes::new().bytes(1, &code.to_be_bytes());
    let said = chain.map_or(said.clone(), |chain| said.text(2, chain));
    Attributes::new().nest(2, &said)
}

/// Bytes of an address.
pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Encodes a port as a part of a key.
pub(crate) fn padded(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

/// Element of a set or map.
pub(crate) struct Item {
    key: Vec<u8>,
    key_end: Option<Vec<u8>>,
    data: Option<Attributes>,
    flags: u32,
}

/// Flag of the element that ends an interval.
const INTERVAL_END: u32 = 1;

impl Item {
    pub(crate) const fn new(key: Vec<u8>) -> Self {
        Self {
            key,
            key_end: None,
            data: None,
            flags: 0,
        }
    }

    /// End of an interval, in sets whose keys have one part: the first key after it.
    pub(crate) fn behind(key: Vec<u8>) -> Self {
        Self {
            flags: INTERVAL_END,
            ..Self::new(key)
        }
    }

    pub(crate) fn up_to(self, key_end: Vec<u8>) -> Self {
        Self {
            key_end: Some(key_end),
            ..self
        }
    }

    pub(crate) fn with(self, data: Attributes) -> Self {
        Self {
            data: Some(data),
            ..self
        }
    }

    fn write(&self, list: &mut Attributes) {
        let mut own = Attributes::new().nest(1, &value(&self.key));
        if self.flags != 0 {
            own = own.number(3, self.flags);
        }
        if let Some(data) = &self.data {
            own = own.nest(2, data);
        }
        if let Some(end) = &self.key_end {
            own = own.nest(10, &value(end));
        }
        list.push(1 | NLA_F_NESTED, &own.0);
    }
}

/// Batch of messages: an atomic transaction.
pub(crate) struct Batch {
    bytes: Vec<u8>,
    sequence: u32,
    /// Offset of the last message.
    last: usize,
}

impl Batch {
    pub(crate) fn new() -> Self {
        let mut batch = Self {
            bytes: Vec::new(),
            sequence: 0,
            last: 0,
        };
        batch.message(BEGIN, 0, 0, SUBSYSTEM, &Attributes::new());
        batch
    }

    fn message(&mut self, kind: u16, flags: u16, family: u8, about: u16, attributes: &Attributes) {
        self.sequence += 1;
        self.last = self.bytes.len();
        let length = u32::try_from(attributes.len().saturating_add(20)).unwrap_or(u32::MAX);
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | NLM_F_REQUEST).to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend([family, 0]);
        self.bytes.extend(about.to_be_bytes());
        self.bytes.extend(&attributes.0);
    }

    pub(crate) fn add(&mut self, kind: Kind, family: Family, attributes: &Attributes) {
        let flags = match kind {
            Kind::NewTable | Kind::NewChain | Kind::NewSet | Kind::NewElement => NLM_F_CREATE,
            Kind::NewRule => NLM_F_CREATE | NLM_F_APPEND,
            Kind::DeleteTable | Kind::DeleteChain | Kind::DeleteRule | Kind::DeleteSet | Kind::DeleteElement => 0,
        };
        self.message(SUBSYSTEM << 8 | kind as u16, flags, family as u8, 0, attributes);
    }

    /// Bytes to send, and the sequence number of the message that the kernel acknowledges after the
    /// commit. Older kernels do not acknowledge the end of a batch, so it is the last message
    /// within.
    pub(crate) fn finish(mut self) -> (Vec<u8>, u32) {
        let acknowledged = self.sequence;
        let flags = self.last.saturating_add(6);
        if let Some(byte) = self
            .bytes
            .get_mut(flags..)
            .and_then(|flags| flags.first_chunk_mut::<2>())
        {
            *byte = (u16::from_ne_bytes(*byte) | NLM_F_ACK).to_ne_bytes();
        }
        self.message(END, 0, 0, SUBSYSTEM, &Attributes::new());
        (self.bytes, acknowledged)
    }
}

/// Elements being added to a transaction, a list for each set. They are encoded immediately: there
/// may be very many.
pub(crate) struct Lists<'a> {
    kind: Kind,
    table: &'a str,
    open: BTreeMap<(Family, Cow<'a, str>), Attributes>,
}

impl<'a> Lists<'a> {
    pub(crate) const fn new(kind: Kind, table: &'a str) -> Self {
        Self {
            kind,
            table,
            open: BTreeMap::new(),
        }
    }

    pub(crate) fn push(&mut self, batch: &mut Batch, (family, set): (Family, impl Into<Cow<'a, str>>), item: &Item) {
        let set = set.into();
        let list = self.open.entry((family, set.clone())).or_default();
        item.write(list);
        if list.len() > LONGEST_LIST {
            let whole = std::mem::take(list);
            self.write(batch, (family, &set), &whole);
        }
    }

    pub(crate) fn close(mut self, batch: &mut Batch) {
        for (place, list) in std::mem::take(&mut self.open) {
            if !list.is_empty() {
                self.write(batch, (place.0, &place.1), &list);
            }
        }
    }

    fn write(&self, batch: &mut Batch, (family, set): (Family, &str), list: &Attributes) {
        let whole = Attributes::new().text(1, self.table).text(2, set).nest(3, list);
        batch.add(self.kind, family, &whole);
    }
}
