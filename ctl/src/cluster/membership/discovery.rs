//! Discovery of a cluster by a bootstrap token and the hash of its CA, as in kubeadm
//! (`cmd/kubeadm/app/discovery/token/token.go`):
//!
//! 1. `kube-public/cluster-info` is read from a server that is not trusted yet.
//! 2. The CA in it must have the hash, and the token must have signed it.
//! 3. It is read again from a server with a certificate of the CA.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::{digest, hmac};
use serde_json::Value;
use time::OffsetDateTime;

use crate::client::api::{self, Api, Refused};

/// Path of the `ConfigMap`.
pub(crate) const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
const PORT: u16 = 6443;
/// Longest time to wait for the signature of a new token.
const SIGNING: Duration = Duration::from_secs(3);

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    host: String,
    port: u16,
}

impl Endpoint {
    /// Parses `HOST`, `HOST:PORT`, `[V6]:PORT` or any of them as a URL.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let bare = text.trim_start_matches("https://").trim_end_matches('/');
        let wrong = || anyhow!("{text:?} is not HOST:PORT");
        let (host, port) = match bare.parse::<IpAddr>() {
            Ok(address) => (address.to_string(), PORT),
            Err(_) => match bare.rsplit_once(':') {
                Some((host, port)) if !bare.ends_with(']') => {
                    (host.to_owned(), port.parse().map_err(|_wrong| wrong())?)
                }
                Some(_) | None => (bare.to_owned(), PORT),
            },
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let plain = |letter: char| letter.is_ascii_alphanumeric() || ".-:".contains(letter);
        ensure!(!host.is_empty() && host.chars().all(plain) && port != 0, wrong());
        Ok(Self { host, port })
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// True if the address is only reachable from the server's machine.
    pub(crate) fn is_this_machine(&self) -> bool {
        let address = self.host.parse::<IpAddr>();
        self.host == "localhost" || address.is_ok_and(|address| address.is_loopback() || address.is_unspecified())
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{self}")
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

/// Bootstrap token: `ID.SECRET`.
pub(crate) struct Token {
    pub(crate) id: String,
    pub(crate) secret: String,
}

/// True for a valid token ID.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == 6 && is_plain(text)
}

fn is_plain(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

impl Token {
    pub(crate) fn new(id: &str, secret: &str) -> Self {
        Self {
            id: id.to_owned(),
            secret: secret.to_owned(),
        }
    }

    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let parts = text.split_once('.');
        let parts = parts.filter(|(id, secret)| is_id(id) && secret.len() == 16 && is_plain(secret));
        let (id, secret) = parts.context("the token is not of the form abcdef.0123456789abcdef")?;
        Ok(Self::new(id, secret))
    }

    /// True if a detached JSON Web Signature (RFC 7515, appendix F) was made with this token.
    fn has_signed(&self, content: &str, signature: &str) -> bool {
        let verified = || {
            let (header, tag) = signature.split_once("..")?;
            let says: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
            if says.get("alg")? != "HS256" || says.get("kid")? != self.id.as_str() {
                return None;
            }
            let key = hmac::Key::new(hmac::HMAC_SHA256, self.secret.as_bytes());
            let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
            hmac::verify(&key, signed.as_bytes(), &URL_SAFE_NO_PAD.decode(tag).ok()?).ok()
        };
        verified().is_some()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.id, self.secret)
    }
}

/// Content of `kube-public/cluster-info`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClusterInfo {
    kubeconfig: String,
    data: BTreeMap<String, String>,
    server: String,
    /// CA certificate (PEM).
    pub(crate) authority: Vec<u8>,
}

/// Identity and validity of a CA.
struct Authority {
    pin: String,
    der: Vec<u8>,
    /// Unix time in seconds.
    from: i64,
    until: i64,
}

impl ClusterInfo {
    pub(crate) fn read(map: &Value) -> anyhow::Result<Self> {
        let data = map.get("data").cloned().unwrap_or_default();
        let data: BTreeMap<String, String> = serde_json::from_value(data).unwrap_or_default();
        let kubeconfig = data
            .get("kubeconfig")
            .context("there is no kubeconfig in kube-public/cluster-info")?;
        let parsed: Value =
            serde_yaml::from_str(kubeconfig).context("read the kubeconfig in kube-public/cluster-info")?;
        let text = |name: &str| api::text_at(&parsed, &format!("/clusters/0/cluster/{name}")).to_owned();
        let authority = STANDARD.decode(text("certificate-authority-data"));
        Ok(Self {
            kubeconfig: kubeconfig.clone(),
            server: text("server"),
            authority: authority.context("read the authority in kube-public/cluster-info")?,
            data,
        })
    }

    pub(crate) fn endpoint(&self) -> anyhow::Result<Endpoint> {
        Endpoint::parse(&self.server)
    }

    pub(crate) fn is_signed_for(&self, token: &Token) -> bool {
        self.data.contains_key(&format!("jws-kubeconfig-{}", token.id))
    }

    /// Returns the hash of the CA's public key, as kubeadm pins it
    /// (`cmd/kubeadm/app/util/pubkeypin/pubkeypin.go`).
    pub(crate) fn pin(&self) -> anyhow::Result<String> {
        Ok(self.parse_authority()?.pin)
    }

    fn parse_authority(&self) -> anyhow::Result<Authority> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(&self.authority).context("read the cluster's authority")?;
        let certificate = pem.parse_x509().context("read the cluster's authority")?;
        let hash = digest::digest(&digest::SHA256, certificate.public_key().raw);
        Ok(Authority {
            pin: format!("sha256:{}", crate::cluster::hex(hash.as_ref())),
            from: certificate.validity().not_before.timestamp(),
            until: certificate.validity().not_after.timestamp(),
            der: pem.contents,
        })
    }

    fn is_of(&self, token: &Token, at: &Endpoint) -> anyhow::Result<()> {
        let Some(signature) = self.data.get(&format!("jws-kubeconfig-{}", token.id)) else {
            bail!(
                "the cluster at {at} has no token {}: it was mistyped or has expired; make another one there with `skiff token \
                 create`",
                token.id
            )
        };
        ensure!(
            token.has_signed(&self.kubeconfig, signature),
            "the token {} has another secret than the one given here: it was mistyped; nothing was told to the server at {at}",
            token.id
        );
        Ok(())
    }
}

/// Cluster that has been verified.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) endpoint: Endpoint,
    pub(crate) authority: Vec<u8>,
    /// Difference of this machine's clock and the server's.
    pub(crate) difference: Option<String>,
}

/// Discovers the cluster at an address, by a token and the hash of its CA.
pub(crate) async fn discover(endpoint: Endpoint, token: &Token, pin: &str) -> anyhow::Result<Found> {
    let url: http::Uri = endpoint
        .url()
        .parse()
        .with_context(|| format!("{endpoint} is no address"))?;
    if let Err(why) = api::listens(None, &url).await {
        bail!("no API server answers at {endpoint} ({why})");
    }
    let mut config = kube::Config::new(url.clone());
    config.accept_invalid_certs = true;
    let server = Api::new(config)?;
    let begun = tokio::time::Instant::now();
    let (info, authority, date) = loop {
        let (map, date) = server
            .get_dated(CLUSTER_INFO)
            .await
            .map_err(|error| unheard(&endpoint, &error))?;
        let info = ClusterInfo::read(&map)?;
        let authority = info.parse_authority()?;
        // For another cluster, the token's signature proves nothing.
        ensure!(
            authority.pin.eq_ignore_ascii_case(pin),
            "the API server at {endpoint} is of another cluster than the line is for: its authority is {}, not {pin}",
            authority.pin
        );
        if info.is_signed_for(token) || begun.elapsed() > SIGNING {
            info.is_of(token, &endpoint)?;
            break (info, authority, date);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let now = OffsetDateTime::now_utc();
    if let Some(trouble) = clock_trouble(now, date, authority.from, authority.until) {
        bail!(trouble);
    }
    let mut config = kube::Config::new(url);
    config.root_cert = Some(vec![authority.der]);
    let again = Api::new(config)?.get(CLUSTER_INFO).await;
    let again = again.map_err(|error| untrusted(&endpoint, now, date, error))?;
    ensure!(
        ClusterInfo::read(&again)?.kubeconfig == info.kubeconfig,
        "the API server at {endpoint} says something else than what answered before: somebody is between it and this machine"
    );
    Ok(Found {
        endpoint,
        authority: info.authority,
        difference: difference(now, date),
    })
}

/// Returns the difference of this machine's clock and that of a server, which need not be trusted.
pub(crate) async fn clock_against(endpoint: &Endpoint) -> anyhow::Result<Option<String>> {
    let url: http::Uri = endpoint.url().parse()?;
    if let Err(why) = api::listens(None, &url).await {
        bail!("no API server answers at {endpoint} ({why})");
    }
    let mut config = kube::Config::new(url);
    config.accept_invalid_certs = true;
    let answer = Api::new(config)?.get_dated(CLUSTER_INFO).await;
    let (_, date) = answer.map_err(|error| unheard(endpoint, &error))?;
    Ok(difference(OffsetDateTime::now_utc(), date))
}

fn unheard(endpoint: &Endpoint, error: &anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<Refused>() {
        Some(refused) => {
            anyhow!("the server at {endpoint} does not show kube-public/cluster-info to nodes that join: {refused}")
        }
        None => match endpoint
            .url()
            .parse()
            .ok()
            .and_then(|url| common_proxy::towards(None, &url))
        {
            Some(proxy) => anyhow!(
                "no API server answers at {endpoint} through the proxy {proxy} that HTTPS_PROXY names ({error:#}); NO_PROXY={} \
                 leaves it out",
                endpoint.host()
            ),
            None => anyhow!("what answers at {endpoint} is no API server: {error:#}"),
        },
    }
}

/// Explains why a server that knows the token is not trusted.
fn untrusted(
    endpoint: &Endpoint,
    now: OffsetDateTime,
    date: Option<OffsetDateTime>,
    error: anyhow::Error,
) -> anyhow::Error {
    let host = endpoint.host();
    if is_other_name(&error) {
        return anyhow!(
            "the API server's certificate does not name {host}: start the cluster with `skiff up --advertise {host}`, or take an \
             address that it names"
        );
    }
    let text = format!("{error:#}");
    let about_time = text.contains("not valid yet") || text.contains("expired");
    match about_time.then(|| difference(now, date)).flatten() {
        Some(difference) => {
            anyhow!("the API server's certificate is not valid by this machine's clock, {difference}: set it")
        }
        None => error.context(format!(
            "the cluster's authority does not vouch for the server at {endpoint}"
        )),
    }
}

/// True if a server's certificate is for other names.
pub(crate) fn is_other_name(error: &anyhow::Error) -> bool {
    format!("{error:#}").contains("not valid for name")
}

/// Explains that a certificate is not valid by this machine's clock, and how far the clock differs
/// from the server's.
fn clock_trouble(now: OffsetDateTime, date: Option<OffsetDateTime>, from: i64, until: i64) -> Option<String> {
    let what = match now.unix_timestamp() {
        second if second < from => "not yet valid",
        second if second > until => "not valid any more",
        _ => return None,
    };
    let told = match difference(now, date) {
        Some(difference) => format!("by this machine's clock, {difference}: set it"),
        None => "and this machine's clock goes as the server's".to_owned(),
    };
    Some(format!("the certificate of the cluster's authority is {what} {told}"))
}

/// Returns how far this machine's clock differs from the server's, if it is more than the latency.
fn difference(now: OffsetDateTime, date: Option<OffsetDateTime>) -> Option<String> {
    let ahead = (now - date?).whole_seconds();
    let (seconds, side) = (ahead.unsigned_abs(), if ahead < 0 { "behind" } else { "ahead of" });
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    (seconds > 5).then(|| {
        format!(
            "which is {hours} h {minutes} min {} s {side} the server's",
            seconds % 60
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_a_host_and_a_port() {
        for (text, shown) in [
            ("10.0.0.1:6444", Some("10.0.0.1:6444")),
            ("10.0.0.1", Some("10.0.0.1:6443")),
            ("https://k8s.example.com:443/", Some("k8s.example.com:443")),
            ("fd30::1", Some("[fd30::1]:6443")),
            ("[fd30::1]", Some("[fd30::1]:6443")),
            ("https://[fd30::1]:7", Some("[fd30::1]:7")),
            ("", None),
            ("host:", None),
            ("host:0", None),
            ("host:99999", None),
            ("a/b:1", None),
            ("user@host:1", None),
        ] {
            let parsed = Endpoint::parse(text).map(|endpoint| endpoint.to_string());
            assert_eq!(parsed.ok().as_deref(), shown, "{text}");
        }
    }

    #[test]
    fn only_the_token_signs() {
        // From upstream's test (staging/src/k8s.io/cluster-bootstrap/token/jws/jws_test.go).
        let content = "Hello from the other side. I must have called a thousand times.";
        let signature = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8";
        for (id, secret, content, signature, valid) in [
            ("joshua", "my voice is my passcode", content, signature, true),
            ("joshua", "my voice is my password", content, signature, false),
            ("joshub", "my voice is my passcode", content, signature, false),
            ("joshua", "my voice is my passcode", "Hello", signature, false),
            ("joshua", "my voice is my passcode", content, &signature[1..], false),
            ("joshua", "my voice is my passcode", content, "..", false),
            ("joshua", "my voice is my passcode", content, "", false),
        ] {
            assert_eq!(
                Token::new(id, secret).has_signed(content, signature),
                valid,
                "{id} {secret} {signature}"
            );
        }
    }

    #[test]
    fn tokens_have_an_id_and_a_secret() {
        for (text, good) in [
            ("abcdef.0123456789abcdef", true),
            ("abcdef.0123456789abcde", false),
            ("abcde.0123456789abcdef", false),
            ("ABCDEF.0123456789abcdef", false),
            ("abcdef0123456789abcdef", false),
            ("", false),
        ] {
            assert_eq!(Token::parse(text).is_ok(), good, "{text}");
        }
    }

    #[test]
    fn a_clock_that_is_off_is_told_of_with_the_difference() {
        let at = |second: i64| OffsetDateTime::from_unix_timestamp(second).unwrap();
        let told = |now: i64, server: Option<i64>| clock_trouble(at(now), server.map(at), 100_000, 200_000);
        let authority = "the certificate of the cluster's authority is";
        for (now, server, expected) in [
            (150_000, Some(90_000), None),
            (
                99_000,
                Some(110_042),
                Some("not yet valid by this machine's clock, which is 3 h 4 min 2 s behind the server's: set it"),
            ),
            (
                203_700,
                Some(200_000),
                Some(
                    "not valid any more by this machine's clock, which is 1 h 1 min 40 s ahead of the server's: set it",
                ),
            ),
            (
                201_000,
                Some(200_999),
                Some("not valid any more and this machine's clock goes as the server's"),
            ),
            (
                99_000,
                None,
                Some("not yet valid and this machine's clock goes as the server's"),
            ),
        ] {
            let expected = expected.map(|text| format!("{authority} {text}"));
            assert_eq!(told(now, server), expected, "{now} {server:?}");
        }
    }
}
