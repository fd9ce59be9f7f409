//! `skiff token`: bootstrap tokens of joining machines, as Secrets of `kube-system`.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::discovery::{self, ClusterInfo, Endpoint, Token};
use crate::arguments::{Place, TokenCommand, TokenOptions};
use crate::client::api::{self, Api, text_at, with_query};
use crate::terminal;

const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const TYPE: &str = "bootstrap.kubernetes.io/token";
/// Group that may request certificates of nodes: kubeadm's
/// (`cmd/kubeadm/app/constants/constants.go`).
const GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
/// Longest time to wait for the signature of a new token.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn run(place: &Place, command: &TokenCommand) -> anyhow::Result<()> {
    let api = Api::of(place).await?;
    match command {
        TokenCommand::Create(options) => create(place, &api, options).await,
        TokenCommand::List => list(&api).await,
        TokenCommand::Delete { tokens } => {
            for token in tokens {
                let id = token.split_once('.').map_or(token.as_str(), |(id, _)| id);
                ensure!(
                    discovery::is_id(id),
                    "{id:?} is no token's id: six small letters and digits"
                );
                let path = format!("{SECRETS}/bootstrap-token-{id}");
                api.send(Method::DELETE, &path, "application/json", None).await?;
                terminal::line(format!("bootstrap token {id:?} deleted"))?;
            }
            Ok(())
        }
    }
}

async fn create(place: &Place, api: &Api, options: &TokenOptions) -> anyhow::Result<()> {
    let info = api
        .get(discovery::CLUSTER_INFO)
        .await
        .context("read kube-public/cluster-info")?;
    let info = ClusterInfo::read(&info)?;
    let endpoint = match &options.server {
        Some(given) => Endpoint::parse(given)?,
        None => info.endpoint()?,
    };
    is_named(place, &endpoint).await?;
    let token = Token::new(&letters(6)?, &letters(16)?);
    let mut data = json!({
        "token-id": token.id, "token-secret": token.secret, "auth-extra-groups": GROUP,
        "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
    });
    let mut add = |key: &str, value: String| {
        if let Some(data) = data.as_object_mut() {
            data.insert(key.to_owned(), value.into());
        }
    };
    if let Some(text) = &options.description {
        add("description", text.clone());
    }
    if options.ttl > 0 {
        let end = (OffsetDateTime::now_utc() + Duration::from_secs(options.ttl)).replace_nanosecond(0)?;
        add("expiration", end.format(&Rfc3339)?);
    }
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": TYPE, "stringData": data,
        "metadata": {"name": format!("bootstrap-token-{}", token.id), "namespace": "kube-system"},
    });
    api.send(Method::POST, SECRETS, "application/json", Some(&secret))
        .await?;
    // From then on the printed command works.
    let signed = async {
        while !ClusterInfo::read(&api.get(discovery::CLUSTER_INFO).await?)?.is_signed_for(&token) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::Ok(())
    };
    let signed = tokio::time::timeout(TIMEOUT, signed).await;
    signed
        .context("the controllers have not signed kube-public/cluster-info with the new token; are they running?")??;
    terminal::line(format!(
        "skiff join {endpoint} --token {token} --ca-hash {}",
        info.pin()?
    ))
}

/// Fails unless the API server's certificate names the host: nodes that join check it.
async fn is_named(place: &Place, endpoint: &Endpoint) -> anyhow::Result<()> {
    let host = endpoint.host();
    if endpoint.is_this_machine() {
        bail!(
            "other machines cannot reach {endpoint}: start the cluster with `skiff up --advertise ADDRESS` (the control plane's \
             --advertise or SKIFF_ADVERTISE), or name the server by --server"
        );
    }
    let mut config = api::configuration(&place.kubeconfig()).await?;
    config.cluster_url = endpoint
        .url()
        .parse()
        .with_context(|| format!("{endpoint} is no address"))?;
    if let Err(why) = api::listens(config.proxy_url.as_ref(), &config.cluster_url).await {
        terminal::note(format!(
            "From this machine no API server answers at {endpoint} ({why})."
        ));
        return Ok(());
    }
    match Api::new(config)?.text("/readyz").await {
        Err(error) if discovery::is_other_name(&error) => bail!(
            "the API server's certificate does not name {host}: start the cluster with `skiff up --advertise {host}` (the control \
             plane's --advertise or SKIFF_ADVERTISE)"
        ),
        // Readiness is not checked here.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Returns random lower-case letters and digits.
fn letters(count: usize) -> anyhow::Result<String> {
    const ALL: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut random = [0; 64];
    let filled = SystemRandom::new().fill(&mut random);
    filled.map_err(|_unspecified| anyhow!("the machine gives no random bytes"))?;
    // Bytes from 252 on would make some letters more frequent than others.
    let bytes = random.iter().filter(|byte| **byte < 252);
    let letters = bytes.filter_map(|byte| ALL.get(usize::from(byte % 36)).copied());
    let letters: String = letters.take(count).map(char::from).collect();
    ensure!(letters.len() == count, "the random bytes are not random");
    Ok(letters)
}

async fn list(api: &Api) -> anyhow::Result<()> {
    let field = format!("type={TYPE}");
    let secrets = api
        .get(&with_query(SECRETS, &[("fieldSelector", Some(&field))]))
        .await?;
    let items = secrets.get("items").and_then(Value::as_array);
    let now = OffsetDateTime::now_utc();
    let heads = ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"].map(str::to_owned);
    let rows = items.into_iter().flatten().map(|secret| row(secret, now).to_vec());
    let rows: Vec<Vec<String>> = std::iter::once(heads.to_vec()).chain(rows).collect();
    terminal::write(&terminal::columns(&rows))
}

/// Formats a token as `kubeadm token list` does (`cmd/kubeadm/app/cmd/token.go`).
fn row(secret: &Value, now: OffsetDateTime) -> [String; 6] {
    let value = |key: &str| {
        let bytes = STANDARD
            .decode(text_at(secret, &format!("/data/{key}")))
            .unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let or = |text: String, other: &str| if text.is_empty() { other.to_owned() } else { text };
    let expires = value("expiration");
    let left = OffsetDateTime::parse(&expires, &Rfc3339).map(|end| (end - now).whole_seconds());
    let ttl = match left {
        Err(_) if expires.is_empty() => "<forever>".to_owned(),
        Ok(left) if left > 0 => span(left),
        Ok(_) | Err(_) => "<invalid>".to_owned(),
    };
    let usages = ["authentication", "signing"].into_iter();
    let usages: Vec<&str> = usages
        .filter(|usage| value(&format!("usage-bootstrap-{usage}")) == "true")
        .collect();
    [
        format!("{}.{}", value("token-id"), value("token-secret")),
        ttl,
        or(expires, "<never>"),
        or(usages.join(","), "<none>"),
        or(value("description"), "<none>"),
        or(value("auth-extra-groups"), "<none>"),
    ]
}

/// Formats a duration in its largest unit.
fn span(seconds: i64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_shown_with_what_they_are_for() {
        let now = OffsetDateTime::parse("2026-01-01T00:00:00Z", &Rfc3339).unwrap();
        for (data, shown) in [
            (
                json!({"token-id": "abcdef", "token-secret": "0123456789abcdef", "auth-extra-groups": GROUP,
                    "usage-bootstrap-signing": "true", "usage-bootstrap-authentication": "true",
                    "expiration": "2026-01-02T00:00:00Z"}),
                format!("abcdef.0123456789abcdef 24h 2026-01-02T00:00:00Z authentication,signing <none> {GROUP}"),
            ),
            (
                json!({"token-id": "abcdef", "token-secret": "x", "usage-bootstrap-signing": "true", "description": "rack"}),
                "abcdef.x <forever> <never> signing rack <none>".to_owned(),
            ),
            (
                json!({"token-id": "abcdef", "token-secret": "x", "expiration": "2025-12-31T00:00:00Z"}),
                "abcdef.x <invalid> 2025-12-31T00:00:00Z <none> <none> <none>".to_owned(),
            ),
        ] {
            let encoded = data.as_object().unwrap().iter();
            let encoded = encoded.map(|(key, value)| (key.clone(), STANDARD.encode(value.as_str().unwrap()).into()));
            let secret = json!({"data": encoded.collect::<serde_json::Map<_, _>>()});
            assert_eq!(row(&secret, now).join(" "), shown);
        }
    }
}
