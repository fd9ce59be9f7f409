//! IP addresses and CIDRs (`k8s.io/apiserver/pkg/cel/library/ip.go` and `cidr.go`).

use std::net::IpAddr;

use api::cidr::Cidr;

use super::Function;
use super::standard::one;
use crate::value::{Error, Value};

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "ip" => |_, args| match args {
            [Value::String(text)] => address(text).map(Value::Ip).map_err(Error::new),
            [Value::Cidr(cidr)] => Ok(Value::Ip(cidr.address)),
            _ => Err(Error::overload()),
        },
        "isIP" => |_, args| text(args, |text| Ok(Value::Bool(address(text).is_ok()))),
        "ip.isCanonical" => |_, args| {
            text(args, |text| {
                let found = address(text).map_err(Error::new)?;
                Ok(Value::Bool(found.to_string() == text))
            })
        },
        "family" => |_, args| of(args, |ip| Value::Int(if ip.is_ipv4() { 4 } else { 6 })),
        "isUnspecified" => |_, args| of(args, |ip| Value::Bool(ip.is_unspecified())),
        "isLoopback" => |_, args| of(args, |ip| Value::Bool(ip.is_loopback())),
        "isLinkLocalMulticast" => |_, args| of(args, |ip| Value::Bool(link_local_multicast(ip))),
        "isLinkLocalUnicast" => |_, args| of(args, |ip| Value::Bool(link_local_unicast(ip))),
        "isGlobalUnicast" => |_, args| of(args, |ip| Value::Bool(global_unicast(ip))),
        "cidr" => |_, args| text(args, |text| range(text).map(Value::Cidr)),
        "isCIDR" => |_, args| text(args, |text| Ok(Value::Bool(range(text).is_ok()))),
        "containsIP" => |_, args| match args {
            [Value::Cidr(cidr), Value::Ip(ip)] => Ok(Value::Bool(cidr.contains(*ip))),
            [Value::Cidr(cidr), Value::String(text)] => {
                Ok(Value::Bool(cidr.contains(address(text).map_err(Error::new)?)))
            }
            _ => Err(Error::overload()),
        },
        "containsCIDR" => |_, args| match args {
            [Value::Cidr(cidr), Value::Cidr(other)] => Ok(Value::Bool(cidr.covers(*other))),
            [Value::Cidr(cidr), Value::String(text)] => Ok(Value::Bool(cidr.covers(range(text)?))),
            _ => Err(Error::overload()),
        },
        "prefixLength" => |_, args| match args {
            [Value::Cidr(cidr)] => Ok(Value::Int(cidr.prefix.into())),
            _ => Err(Error::overload()),
        },
        "masked" => |_, args| match args {
            [Value::Cidr(cidr)] => Ok(Value::Cidr(cidr.network_range())),
            _ => Err(Error::overload()),
        },
        _ => return None,
    })
}

fn text<'a>(args: &[Value<'a>], run: impl FnOnce(&str) -> Result<Value<'a>, Error>) -> Result<Value<'a>, Error> {
    one(args, |value| run(value.as_str().ok_or_else(Error::overload)?))
}

fn of<'a>(args: &[Value<'a>], run: impl FnOnce(IpAddr) -> Value<'a>) -> Result<Value<'a>, Error> {
    one(args, |value| match value {
        Value::Ip(ip) => Ok(run(*ip)),
        _ => Err(Error::overload()),
    })
}

fn address(text: &str) -> Result<IpAddr, String> {
    if text.contains('%') {
        return Err(format!("IP address {text:?} with zone value is not allowed"));
    }
    let parsed: IpAddr = text.parse().map_err(|_form| {
        format!(
            "IP Address {text:?} parse error during conversion from string: ParseAddr({text:?}): unable to parse IP"
        )
    })?;
    if matches!(parsed, IpAddr::V6(six) if six.to_ipv4_mapped().is_some()) {
        return Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed"));
    }
    Ok(parsed)
}

fn range(text: &str) -> Result<Cidr, Error> {
    const PREFIX: &str = "network address parse error during conversion from string: ";
    let refuse = |why: &str| Error::new(format!("{PREFIX}{PREFIX}netip.ParsePrefix({text:?}): {why}"));
    let (address, length) = text.rsplit_once('/').ok_or_else(|| refuse("no '/'"))?;
    if address.contains('%') {
        return Err(refuse("IPv6 zones cannot be present in a prefix"));
    }
    let parsed: IpAddr = address
        .parse()
        .map_err(|_form| refuse(&format!("ParseAddr({address:?}): unable to parse IP")))?;
    let plain = !length.is_empty() && length.chars().all(|c| c.is_ascii_digit());
    if !plain || length.len() > 1 && length.starts_with('0') {
        return Err(refuse(&format!("bad bits after slash: {length:?}")));
    }
    let found = length.parse().ok().and_then(|length| Cidr::new(parsed, length));
    let found = found.ok_or_else(|| refuse("prefix length out of range"))?;
    if matches!(parsed, IpAddr::V6(six) if six.to_ipv4_mapped().is_some()) {
        return Err(Error::new(format!(
            "{PREFIX}IPv4-mapped IPv6 address {text:?} is not allowed"
        )));
    }
    Ok(found)
}

fn link_local_multicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(four) => four.octets().starts_with(&[224, 0, 0]),
        IpAddr::V6(six) => six.segments().first().is_some_and(|first| first & 0xff0f == 0xff02),
    }
}

fn link_local_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.is_unicast_link_local(),
    }
}

/// Go's `netip.Addr.IsGlobalUnicast`.
fn global_unicast(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(four) if four.is_broadcast());
    !(broadcast || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || link_local_unicast(ip))
}
