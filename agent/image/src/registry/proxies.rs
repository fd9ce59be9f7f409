//! Proxies towards registries, chosen as by Go's clients (`golang.org/x/net/http/httpproxy`).

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
    // Which ports redirects lead to is not known: an entry is for all of its host.
    let Some(exceptions) = common_proxy::exceptions(&read("NO_PROXY").unwrap_or_default(), None) else {
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

#[cfg(test)]
mod tests {
    use super::*;

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
