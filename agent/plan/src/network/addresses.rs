//! Choice of the addresses to report.

use std::net::IpAddr;

/// Returns the first address of each family: first that of the given family, then that of the other
/// one.
pub fn of_each_family(addresses: &[IpAddr], v6_first: bool) -> Vec<IpAddr> {
    let of = |v6: bool| addresses.iter().find(move |address| address.is_ipv6() == v6);
    of(v6_first).into_iter().chain(of(!v6_first)).copied().collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    #[test]
    fn there_is_one_of_each_family_at_most() {
        let check = |addresses: &str, v6_first, expected: &str| {
            let parse =
                |text: &str| -> Vec<IpAddr> { text.split_whitespace().map(|one| one.parse().unwrap()).collect() };
            let found = super::of_each_family(&parse(addresses), v6_first);
            assert_eq!(found, parse(expected), "{addresses}, {v6_first}");
        };
        check("", false, "");
        check("10.0.0.1 127.0.0.1", false, "10.0.0.1");
        check("10.0.0.1 127.0.0.1", true, "10.0.0.1");
        check("fd00::1 10.0.0.1 fd00::2 10.0.0.2", false, "10.0.0.1 fd00::1");
        check("10.0.0.1 10.0.0.2 fd00::1", true, "fd00::1 10.0.0.1");
        check("fd00::1", false, "fd00::1");
    }
}
