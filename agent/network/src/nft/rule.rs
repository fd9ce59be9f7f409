//! Builds rules as lists of expressions on the kernel's 32-bit registers. A rule ends for a packet
//! when an expression has no value for it or a comparison fails.

use std::net::IpAddr;

use super::message::{Attributes, Family, Verdict, octets, value, verdict};
use crate::Cidr;

/// Register 0 of the 16 32-bit registers. An IPv6 address takes four.
pub(crate) const R0: u32 = 8;

/// Conntrack keys.
const CT_STATE: u32 = 0;
const CT_DIRECTION: u32 = 1;
const CT_STATUS: u32 = 2;
const CT_MARK: u32 = 3;

const META_L4PROTO: u32 = 16;

/// Address types (`fib`).
const FIB_TYPE: u32 = 3;
const FIB_SOURCE: u32 = 1;
const FIB_DESTINATION: u32 = 2;
const LOCAL: u32 = 2;

const EQUAL: u32 = 0;
const UNEQUAL: u32 = 1;
const AT_MOST: u32 = 3;
const AT_LEAST: u32 = 5;

const ICMPV6: u8 = 58;

/// Flag for random source ports: concurrent connections get different ones.
const FULLY_RANDOM: u32 = 0x10;

/// Source or destination of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Source,
    Destination,
}

/// Rule under construction.
#[derive(Clone)]
pub(crate) struct Rule {
    family: Family,
    expressions: Attributes,
}

impl Rule {
    pub(crate) const fn new(family: Family) -> Self {
        Self {
            family,
            expressions: Attributes::new(),
        }
    }

    pub(crate) const fn expressions(&self) -> &Attributes {
        &self.expressions
    }

    fn with(mut self, name: &str, data: &Attributes) -> Self {
        let expression = Attributes::new().text(1, name).nest(2, data);
        self.expressions = self.expressions.nest(1, &expression);
        self
    }

    /// Number of registers of an address.
    pub(crate) const fn words(&self) -> u32 {
        self.family.width() / 4
    }

    fn conntrack(self, key: u32, register: u32) -> Self {
        self.with("ct", &Attributes::new().number(1, register).number(2, key))
    }

    fn mask(self, register: u32, mask: u32, flip: u32) -> Self {
        let data = Attributes::new()
            .number(1, register)
            .number(2, register)
            .number(3, 4)
            .nest(4, &value(&mask.to_ne_bytes()))
            .nest(5, &value(&flip.to_ne_bytes()));
        self.with("bitwise", &data)
    }

    fn compare(self, register: u32, how: u32, with: &[u8]) -> Self {
        let data = Attributes::new()
            .number(1, register)
            .number(2, how)
            .nest(3, &value(with));
        self.with("cmp", &data)
    }

    /// Loads the connection mark, or some bits of it.
    pub(crate) fn mark(self, register: u32, mask: u32) -> Self {
        self.conntrack(CT_MARK, register).mask(register, mask, 0)
    }

    /// Stores a register in the connection mark.
    pub(crate) fn set_mark(self, register: u32) -> Self {
        self.with("ct", &Attributes::new().number(2, CT_MARK).number(4, register))
    }

    /// Keeps some bits of the mark and sets others.
    pub(crate) fn change_mark(self, register: u32, keep: u32, set: u32) -> Self {
        self.conntrack(CT_MARK, register)
            .mask(register, keep & !set, set)
            .set_mark(register)
    }

    /// Matches connections with one of these bits in their mark.
    pub(crate) fn marked(self, bits: u32) -> Self {
        self.mark(R0, bits).compare(R0, UNEQUAL, &[0; 4])
    }

    /// Matches connections with none of these bits in their mark.
    pub(crate) fn unmarked(self, bits: u32) -> Self {
        self.mark(R0, bits).compare(R0, EQUAL, &[0; 4])
    }

    /// Matches connections whose mark has these bits under the mask.
    pub(crate) fn marked_as(self, mask: u32, bits: u32) -> Self {
        self.mark(R0, mask).compare(R0, EQUAL, &bits.to_ne_bytes())
    }

    /// Matches connections whose mark differs from these bits under the mask.
    pub(crate) fn not_marked_as(self, mask: u32, bits: u32) -> Self {
        self.mark(R0, mask).compare(R0, UNEQUAL, &bits.to_ne_bytes())
    }

    /// Matches connections without destination NAT.
    pub(crate) fn untranslated(self) -> Self {
        self.conntrack(CT_STATUS, R0)
            .mask(R0, 1 << 5, 0)
            .compare(R0, EQUAL, &[0; 4])
    }

    /// Matches the first packets of connections.
    pub(crate) fn new_connection(self) -> Self {
        self.conntrack(CT_STATE, R0)
            .mask(R0, 1 << 3, 0)
            .compare(R0, UNEQUAL, &[0; 4])
    }

    /// Matches packets related to existing connections, such as ICMP errors.
    pub(crate) fn related(self) -> Self {
        self.conntrack(CT_STATE, R0)
            .mask(R0, 1 << 2, 0)
            .compare(R0, UNEQUAL, &[0; 4])
    }

    /// Matches packets of the reply direction.
    pub(crate) fn reply(self) -> Self {
        self.conntrack(CT_DIRECTION, R0).compare(R0, EQUAL, &[1])
    }

    /// Matches ICMP for IPv6 of these types.
    pub(crate) fn of_icmpv6(self, first: u8, last: u8) -> Self {
        let rule = self.of_protocol(ICMPV6).payload(R0, 2, 0, 1);
        rule.compare(R0, AT_LEAST, &[first]).compare(R0, AT_MOST, &[last])
    }

    /// Loads an address.
    pub(crate) fn address(self, end: End, register: u32) -> Self {
        let offset = match (self.family, end) {
            (Family::V4 | Family::Bridge, End::Source) => 12,
            (Family::V4 | Family::Bridge, End::Destination) => 16,
            (Family::V6, End::Source) => 8,
            (Family::V6, End::Destination) => 24,
        };
        let width = self.family.width();
        self.payload(register, 1, offset, width)
    }

    /// Loads the destination port. For packets without ports the rule ends, or a lookup finds
    /// nothing for their protocol.
    pub(crate) fn port(self, register: u32) -> Self {
        self.payload(register, 2, 2, 2)
    }

    fn payload(self, register: u32, base: u32, offset: u32, length: u32) -> Self {
        let data = Attributes::new()
            .number(1, register)
            .number(2, base)
            .number(3, offset)
            .number(4, length);
        self.with("payload", &data)
    }

    pub(crate) fn protocol(self, register: u32) -> Self {
        self.with("meta", &Attributes::new().number(1, register).number(2, META_L4PROTO))
    }

    /// Matches this protocol.
    pub(crate) fn of_protocol(self, number: u8) -> Self {
        self.protocol(R0).compare(R0, EQUAL, &[number])
    }

    /// Matches addresses inside, or outside, of the range.
    pub(crate) fn within(self, end: End, range: Cidr, inside: bool) -> Self {
        let mask = mask(range);
        let width = self.family.width();
        let data = Attributes::new()
            .number(1, R0)
            .number(2, R0)
            .number(3, width)
            .nest(4, &value(&mask))
            .nest(5, &value(&vec![0; mask.len()]));
        let how = if inside { EQUAL } else { UNEQUAL };
        let rule = self.address(end, R0).with("bitwise", &data);
        rule.compare(R0, how, &octets(range.network()))
    }

    /// Matches addresses of the node itself.
    pub(crate) fn locally(self, end: End) -> Self {
        let which = match end {
            End::Source => FIB_SOURCE,
            End::Destination => FIB_DESTINATION,
        };
        let data = Attributes::new().number(1, R0).number(2, FIB_TYPE).number(3, which);
        self.with("fib", &data).compare(R0, EQUAL, &LOCAL.to_ne_bytes())
    }

    /// Looks up the key in the registers from this one on; the result goes to `to`.
    pub(crate) fn lookup(self, set: &str, from: u32, to: Option<u32>) -> Self {
        let data = Attributes::new().text(1, set).number(2, from);
        let data = to.map_or(data.clone(), |to| data.number(3, to));
        self.with("lookup", &data)
    }

    /// Matches packets that are not in the set.
    pub(crate) fn missing(self, set: &str, from: u32) -> Self {
        self.with("lookup", &Attributes::new().text(1, set).number(2, from).number(5, 1))
    }

    /// Loads a random number below `modulus`.
    pub(crate) fn random(self, register: u32, modulus: u32) -> Self {
        let data = Attributes::new().number(1, register).number(2, modulus).number(3, 1);
        self.with("numgen", &data)
    }

    /// Updates or adds an element of a dynamic map.
    pub(crate) fn learn(self, map: &str, (key, data): (u32, u32), seconds: u32) -> Self {
        let milliseconds = u64::from(seconds) * 1000;
        let data = Attributes::new()
            .text(1, map)
            .number(3, 1)
            .number(4, key)
            .number(5, data)
            .bytes(6, &milliseconds.to_be_bytes());
        self.with("dynset", &data)
    }

    /// Deletes an element of a dynamic map.
    pub(crate) fn unlearn(self, map: &str, (key, data): (u32, u32)) -> Self {
        let data = Attributes::new()
            .text(1, map)
            .number(3, 2)
            .number(4, key)
            .number(5, data);
        self.with("dynset", &data)
    }

    /// Destination NAT to the address in the registers from this one on, with the port after it.
    pub(crate) fn lead(self, register: u32) -> Self {
        let data = Attributes::new()
            .number(1, 1)
            .number(2, self.family as u32)
            .number(3, register)
            .number(5, register + self.words());
        self.with("nat", &data)
    }

    pub(crate) fn masquerade(self) -> Self {
        self.with("masq", &Attributes::new().number(1, FULLY_RANDOM))
    }

    /// Rejects a TCP connection with a reset.
    pub(crate) fn reset(self) -> Self {
        self.with("reject", &Attributes::new().number(1, 1).bytes(2, &[0]))
    }

    /// Rejects with ICMP "port unreachable".
    pub(crate) fn unreachable(self) -> Self {
        let code = if self.family.is_ipv6() { 4 } else { 3 };
        self.with("reject", &Attributes::new().number(1, 0).bytes(2, &[code]))
    }

    pub(crate) fn verdict(self, said: Verdict<'_>) -> Self {
        let data = Attributes::new().number(1, 0).nest(2, &verdict(said));
        self.with("immediate", &data)
    }

    pub(crate) fn go(self, chain: &str) -> Self {
        self.verdict(Verdict::Goto(chain))
    }
}

/// Network prefix of a range as bytes.
fn mask(range: Cidr) -> Vec<u8> {
    let width: u8 = if range.is_ipv6() { 128 } else { 32 };
    let host = u32::from(width.saturating_sub(range.prefix));
    let bits = u128::MAX.checked_shl(host).unwrap_or_default();
    match range.address {
        IpAddr::V4(_) => {
            let [.., a, b, c, d] = bits.to_be_bytes();
            vec![a, b, c, d]
        }
        IpAddr::V6(_) => bits.to_be_bytes().to_vec(),
    }
}
