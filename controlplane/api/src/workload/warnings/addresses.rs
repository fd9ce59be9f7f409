//! Warnings about IP addresses and CIDRs that are not in canonical form.

use std::net::IpAddr;

use crate::workload::validation::{first, range};

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
    let Some((address, length)) = range(text) else { return };
    let whole = if address.is_ipv4() { 32 } else { 128 };
    let begin = first(address, length);
    if begin != address {
        warnings.push(format!(
            "{field}: CIDR value {text:?} is ambiguous in this context (should be \"{begin}/{length}\" or \
             \"{address}/{whole}\"?)"
        ));
    } else if address.is_ipv6() && format!("{address}/{length}") != text {
        warnings.push(format!(
            "{field}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format (\"{address}/{length}\")"
        ));
    }
}
