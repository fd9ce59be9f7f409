//! Messages about failed connections, in Go's words, which clients know.

use std::io;
use std::net::SocketAddr;

use k8s_openapi::jiff::Timestamp;
use rustls_pki_types::UnixTime;

/// No connection to an address.
pub(crate) fn refused(address: SocketAddr, error: &io::Error) -> String {
    // The time that was set here is over; the kernel's own end of patience has a number.
    if error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none() {
        return format!("dial tcp {address}: i/o timeout");
    }
    format!("dial tcp {address}: connect: {}", plain(error))
}

/// No TLS over a connection.
pub(crate) fn unsecured(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return "EOF".to_owned();
    }
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(why)) => {
            format!("tls: failed to verify certificate: x509: {}", flaw(why))
        }
        Some(rustls::Error::InvalidMessage(_)) => "tls: first record does not look like a TLS handshake".to_owned(),
        Some(other) => format!("tls: {other}"),
        None => plain(error),
    }
}

fn flaw(why: &rustls::CertificateError) -> String {
    use rustls::CertificateError;
    if let CertificateError::NotValidForNameContext { expected, presented } = why {
        return misnamed(&expected.to_str(), presented);
    }
    if matches!(why, CertificateError::UnknownIssuer | CertificateError::BadSignature) {
        "certificate signed by unknown authority".to_owned()
    } else if let CertificateError::ExpiredContext { time, not_after } = why {
        untimely(*time, "after", *not_after)
    } else if let CertificateError::NotValidYetContext { time, not_before } = why {
        untimely(*time, "before", *not_before)
    } else {
        why.to_string()
    }
}

/// `CertificateInvalidError` of Go's `crypto/x509/verify.go`, of the reason `Expired`.
fn untimely(now: UnixTime, relation: &str, limit: UnixTime) -> String {
    let written = |time: UnixTime| {
        let second = i64::try_from(time.as_secs()).ok();
        second
            .and_then(|second| Timestamp::from_second(second).ok())
            .unwrap_or(Timestamp::MAX)
    };
    let (now, limit) = (written(now), written(limit));
    format!("certificate has expired or is not yet valid: current time {now} is {relation} {limit}")
}

/// `HostnameError` of Go's `crypto/x509/verify.go`. The names are as the library writes them: `DnsName("web")`.
fn misnamed(wanted: &str, presented: &[String]) -> String {
    let of = |kind: &str| {
        let names = presented.iter().filter_map(|name| name.strip_prefix(kind));
        let names = names.map(|name| name.trim_matches(['(', ')', '"']));
        names.collect::<Vec<_>>().join(", ")
    };
    let is_address = wanted.parse::<std::net::IpAddr>().is_ok();
    let names = of(if is_address { "IpAddress" } else { "DnsName" });
    match (is_address, names.is_empty()) {
        (true, true) => format!("cannot validate certificate for {wanted} because it doesn't contain any IP SANs"),
        (false, true) => format!("certificate is not valid for any names, but wanted to match {wanted}"),
        (_, false) => format!("certificate is valid for {names}, not {wanted}"),
    }
}

/// A connection that broke off before the answer came.
pub(crate) fn broken(error: &hyper::Error) -> String {
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        return "EOF".to_owned();
    }
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.map_or_else(|| error.to_string(), plain)
}

/// The kernel's error text in Go's form: without the number, and in lowercase.
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    if error.raw_os_error().is_none() {
        return text;
    }
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_in_gos_words() {
        let address: SocketAddr = "10.0.0.1:10250".parse().unwrap();
        let of = |code| refused(address, &io::Error::from_raw_os_error(code));
        assert_eq!(of(111), "dial tcp 10.0.0.1:10250: connect: connection refused");
        assert_eq!(of(113), "dial tcp 10.0.0.1:10250: connect: no route to host");
        assert_eq!(of(110), "dial tcp 10.0.0.1:10250: connect: connection timed out");
        let late = io::Error::from(io::ErrorKind::TimedOut);
        assert_eq!(refused(address, &late), "dial tcp 10.0.0.1:10250: i/o timeout");
        let six: SocketAddr = "[fd00::7]:80".parse().unwrap();
        let refusal = refused(six, &io::Error::from_raw_os_error(111));
        assert_eq!(refusal, "dial tcp [fd00::7]:80: connect: connection refused");
        let flawed = |why| unsecured(&io::Error::other(rustls::Error::InvalidCertificate(why)));
        assert_eq!(
            flawed(rustls::CertificateError::UnknownIssuer),
            "tls: failed to verify certificate: x509: certificate signed by unknown authority"
        );
        let at = |second| UnixTime::since_unix_epoch(std::time::Duration::from_secs(second));
        let (time, not_after) = (at(1_790_000_000), at(1_700_000_000));
        assert_eq!(
            flawed(rustls::CertificateError::ExpiredContext { time, not_after }),
            "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: \
             current time 2026-09-21T14:13:20Z is after 2023-11-14T22:13:20Z"
        );
    }
}
