//! Proxies between a client and the API server, chosen as by Go's clients: the kubeconfig's
//! `proxy-url`, else `HTTPS_PROXY` of the environment unless `NO_PROXY` names the server
//! (`golang.org/x/net/http/httpproxy`). This machine itself is never asked through a proxy of the
//! environment.
//!
//! kube's own choice compares `NO_PROXY` with the proxy instead of the server, and takes an entry
//! that it cannot read for a failure.

use std::net::IpAddr;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use tower::{BoxError, Service, ServiceExt as _};

/// Connection that failed, perhaps on the way to or through a proxy.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ConnectError(BoxError);

/// Proxy of a kind that is not supported.
#[derive(Debug, thiserror::Error)]
#[error("the proxy {0} is neither http:// nor socks5://")]
struct Unsupported(Uri);

/// Connector that goes through a proxy where there is one.
#[derive(Clone, Debug)]
pub struct Connector {
    direct: HttpConnector,
    /// The kubeconfig's proxy.
    given: Option<Uri>,
}

impl Connector {
    /// Connects with `direct`: to the kubeconfig's proxy if one is `given`.
    pub fn new(direct: HttpConnector, given: Option<Uri>) -> Self {
        Self { direct, given }
    }
}

impl Service<Uri> for Connector {
    type Response = <HttpConnector as Service<Uri>>::Response;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<Self::Response, ConnectError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let (direct, proxy) = (self.direct.clone(), chosen(self.given.as_ref(), &server));
        Box::pin(async move { connect(direct, proxy, server).await.map_err(ConnectError) })
    }
}

async fn connect(
    direct: HttpConnector,
    proxy: Option<Intercept>,
    server: Uri,
) -> Result<<HttpConnector as Service<Uri>>::Response, BoxError> {
    let Some(proxy) = proxy else {
        return Ok(direct.oneshot(server).await?);
    };
    let uri = proxy.uri().clone();
    match uri.scheme_str() {
        Some("http") => {
            let tunnel = Tunnel::new(uri, direct);
            let tunnel = match proxy.basic_auth() {
                Some(auth) => tunnel.with_auth(auth.clone()),
                None => tunnel,
            };
            Ok(tunnel.oneshot(server).await?)
        }
        Some("socks5" | "socks5h") => {
            let socks = SocksV5::new(uri, direct);
            let socks = match proxy.raw_auth() {
                Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
                None => socks,
            };
            Ok(socks.oneshot(server).await?)
        }
        _ => Err(Unsupported(uri).into()),
    }
}

/// Reads a kubeconfig. The `proxy_url` of the result is the kubeconfig's own alone.
pub async fn configuration(kubeconfig: Kubeconfig) -> Result<kube::Config, KubeconfigError> {
    let given = proxy_url(&kubeconfig);
    let given = given
        .map(str::parse)
        .transpose()
        .map_err(KubeconfigError::ParseProxyUrl)?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.proxy_url = given;
    Ok(config)
}

/// The `proxy-url` of the current context's cluster.
fn proxy_url(kubeconfig: &Kubeconfig) -> Option<&str> {
    let current = kubeconfig.current_context.as_deref()?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == current)?;
    let name = &context.context.as_ref()?.cluster;
    let cluster = kubeconfig.clusters.iter().find(|cluster| cluster.name == *name)?;
    cluster
        .cluster
        .as_ref()?
        .proxy_url
        .as_deref()
        .filter(|url| !url.is_empty())
}

/// The kubeconfig's own proxy.
pub fn given(kubeconfig: &Kubeconfig) -> Option<Uri> {
    proxy_url(kubeconfig)?.parse().ok()
}

/// The proxy on the way to a server, without credentials; `given` is the kubeconfig's.
pub fn towards(given: Option<&Uri>, server: &Uri) -> Option<Uri> {
    Some(chosen(given, server)?.uri().clone())
}

fn chosen(given: Option<&Uri>, server: &Uri) -> Option<Intercept> {
    if let Some(given) = given {
        return Matcher::builder().all(given.to_string()).build().intercept(server);
    }
    let read = |names: [&str; 2]| {
        let mut values = names.into_iter().filter_map(|name| std::env::var(name).ok());
        values.find(|value| !value.is_empty()).unwrap_or_default()
    };
    let (proxy, exceptions) = (read(["HTTPS_PROXY", "https_proxy"]), read(["NO_PROXY", "no_proxy"]));
    of_environment(&proxy, &exceptions, server)
}

fn of_environment(proxy: &str, exceptions: &str, server: &Uri) -> Option<Intercept> {
    let host = server.host()?.trim_matches(['[', ']']);
    if host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()) {
        return None;
    }
    let port = server.port_u16().unwrap_or(443).to_string();
    let exceptions = self::exceptions(exceptions, Some(port.as_str()))?;
    let matcher = Matcher::builder().https(proxy).no(exceptions).build();
    matcher.intercept(server)
}

/// Entries of `NO_PROXY` in the form that hyper-util's matcher and reqwest know; `None` if everything
/// is excepted. Those for other ports are left out, unless `port` is not known.
pub fn exceptions(text: &str, port: Option<&str>) -> Option<String> {
    let entries = text.split(',').filter_map(|entry| without_port(entry.trim(), port));
    let entries: Vec<&str> = entries.collect();
    // The matcher takes this for names alone.
    (!entries.contains(&"*")).then(|| entries.join(","))
}

fn without_port<'a>(entry: &'a str, port: Option<&str>) -> Option<&'a str> {
    let entry = entry.strip_prefix("*.").unwrap_or(entry);
    let host = match entry.rsplit_once(':') {
        Some((host, own)) if !host.contains(':') || host.ends_with(']') => {
            Some(host).filter(|_| port.is_none_or(|port| port == own))?
        }
        Some(_) | None => entry,
    };
    Some(host.trim_matches(['[', ']']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environments_proxy_is_asked_unless_no_proxy_names_the_server() {
        let proxy = "http://proxy.example:3128";
        for (proxy, exceptions, server, asked) in [
            (proxy, "", "https://10.0.0.1:6443", true),
            ("proxy.example:3128", "", "https://plane.example:6443", true),
            (
                "http://user:pa%40ss@proxy.example:3128",
                "",
                "https://plane.example",
                true,
            ),
            ("", "", "https://10.0.0.1:6443", false),
            (proxy, "", "https://127.0.0.1:6443", false),
            (proxy, "", "https://[::1]:6443", false),
            (proxy, "", "https://localhost:6443", false),
            (proxy, "*", "https://10.0.0.1:6443", false),
            (proxy, "192.168.0.0/16, 10.0.0.0/8", "https://10.0.0.1:6443", false),
            (proxy, "192.168.0.0/16,", "https://10.0.0.1:6443", true),
            (proxy, "10.0.0.1:6443", "https://10.0.0.1:6443", false),
            (proxy, "10.0.0.1:443", "https://10.0.0.1:6443", true),
            (proxy, "fd30::/16", "https://[fd30::1]:6443", false),
            (proxy, "[fd30::1]:6443", "https://[fd30::1]:6443", false),
            (proxy, "fd30::1", "https://[fd30::1]:6443", false),
            (proxy, "*.example", "https://plane.example:6443", false),
            (proxy, ".example", "https://plane.example:6443", false),
            (proxy, "plane.example:443", "https://plane.example", false),
            (proxy, "lane.example", "https://plane.example:6443", true),
            (proxy, "not a name!,::", "https://plane.example:6443", true),
        ] {
            let found = of_environment(proxy, exceptions, &server.parse().unwrap());
            let found = found.map(|found| found.uri().to_string());
            let expected = asked.then(|| "http://proxy.example:3128/".to_owned());
            assert_eq!(found, expected, "{proxy:?} {exceptions:?} {server}");
        }
    }

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
            assert_eq!(exceptions(text, None).as_deref(), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn the_kubeconfigs_proxy_is_the_current_clusters() {
        let kubeconfig = |current: &str| {
            let cluster = |name: &str, proxy: &str| {
                format!("{{name: {name}, cluster: {{server: 'https://10.0.0.1:6443', proxy-url: '{proxy}'}}}}")
            };
            let context = |name: &str| format!("{{name: of-{name}, context: {{cluster: {name}, user: u}}}}");
            let text = format!(
                "{{apiVersion: v1, kind: Config, current-context: {current}, clusters: [{}, {}], contexts: [{}, {}], \
                 users: [{{name: u, user: {{token: t}}}}]}}",
                cluster("a", "socks5://proxy:1"),
                cluster("b", ""),
                context("a"),
                context("b")
            );
            configuration(Kubeconfig::from_yaml(&text).unwrap())
        };
        let proxied = kubeconfig("of-a").await.unwrap();
        let found = towards(proxied.proxy_url.as_ref(), &proxied.cluster_url);
        assert_eq!(found.unwrap().to_string(), "socks5://proxy:1/");
        assert_eq!(kubeconfig("of-b").await.unwrap().proxy_url, None);
    }
}
