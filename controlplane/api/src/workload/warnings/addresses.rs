//! Warnings about IP addresses and CIDRs that are not in canonical form.

use std::net::IpAddr;

use crate::value::cidr::Cidr;

/// Warns about a valid address.
pub(crate) fn of_address(warnings: &mut Vec<String>, text: &str, field: &str) {
    let Ok(address) = text.parse::<IpAddr>() else { return };
    if address.is_ipv6() && address.to_string() != text {
        warnings.push(format!(
            "{field}: IPv6 address {text:?} should be in RFC 5952 canonical format (\"{address}\")"
        ));
    }
}

/// Warns about a valid CIDR.
pub(crate) fn of_range(warnings: &mut Vec<String>, text: &str, field: &str) {
    let Ok(range) = text.parse::<Cidr>() else { return };
    let (all, one) = (range.network_range(), Cidr::whole(range.address));
    if all != range {
        warnings.push(format!(
            "{field}: CIDR value {text:?} is ambiguous in this context (should be \"{all}\" or \"{one}\"?)"
        ));
    } else if range.is_ipv6() && range.to_string() != text {
        warnings.push(format!(
            "{field}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format (\"{range}\")"
        ));
    }
}
