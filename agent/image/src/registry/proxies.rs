//! Proxies towards registries, chosen as by Go's clients (`golang.org/x/net/http/httpproxy`). Other
//! than for reqwest, an entry of `NO_PROXY` may begin with `*.` or end with a port, and `*` is for
//! addresses, too. The port is passed over: the entry is for all of the host.

use reqwest::{ClientBuilder, NoProxy, Proxy};

type Make = fn(String) -> reqwest::Result<Proxy>;

/// Goes through the environment's proxies; `variable` reads it.
pub(super) fn through(
    builder: ClientBuilder,
    variable: impl Fn(&str) -> Option<String>,
) -> reqwest::Result<ClientBuilder> {
    let read = |name: &str| {
        let values = [variable(name), variable(&name.to_ascii_lowercase())];
        values.into_iter().flatten().find(|value| !value.is_empty())
    };
    let mut builder = builder.no_proxy();
    let Some(exceptions) = exceptions(&read("NO_PROXY").unwrap_or_default()) else {
        return Ok(builder);
    };
    let kinds: [(&str, Make); 3] = [
        ("HTTP_PROXY", Proxy::http::<String>),
        ("HTTPS_PROXY", Proxy::https::<String>),
        ("ALL_PROXY", Proxy::all::<String>),
    ];
    for (name, make) in kinds {
        if let Some(url) = read(name) {
            builder = builder.proxy(make(url)?.no_proxy(NoProxy::from_string(&exceptions)));
        }
    }
    Ok(builder)
}

/// Entries of `NO_PROXY` in reqwest's form; `None` if everything is excepted.
fn exceptions(text: &str) -> Option<String> {
    let entries: Vec<&str> = text.split(',').map(|entry| bare(entry.trim())).collect();
    (!entries.contains(&"*")).then(|| entries.join(","))
}

fn bare(entry: &str) -> &str {
    let entry = entry.strip_prefix("*.").unwrap_or(entry);
    let host = match entry.rsplit_once(':') {
        Some((host, _port)) if !host.contains(':') || host.ends_with(']') => host,
        Some(_) | None => entry,
    };
    host.trim_matches(['[', ']'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_are_read_as_by_gos_clients() {
        for (text, expected) in [
            ("", Some("")),
            (
                "localhost, 10.0.0.0/8,.corp.example",
                Some("localhost,10.0.0.0/8,.corp.example"),
            ),
            (
                "*.corp.example,registry.example:5000",
                Some("corp.example,registry.example"),
            ),
            ("fd30::/16,fd31::1,[fd32::1]:5000", Some("fd30::/16,fd31::1,fd32::1")),
            ("10.0.0.1,*", None),
        ] {
            assert_eq!(exceptions(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_proxy_needs_no_scheme() {
        drop(common_tls::provider().install_default());
        for proxy in ["proxy.example:3128", "http://user:password@proxy.example:3128", ""] {
            let variable = |name: &str| (name == "https_proxy").then(|| proxy.to_owned());
            let builder = through(reqwest::Client::builder(), variable);
            assert!(builder.and_then(ClientBuilder::build).is_ok(), "{proxy}");
        }
    }
}
