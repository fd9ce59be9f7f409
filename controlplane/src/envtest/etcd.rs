//! `etcd` for tests: serves its health, and names a directory for the API server's objects.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::Router;
use axum::routing::get;
use clap::{ArgAction, Parser};
use server::authn::pki;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tracing::info;

/// The path at which the API server finds out where its objects are.
const DATA_DIR: &str = "/skiff/data-dir";
/// Bytes of the longest answer to that.
const LONGEST: u64 = 16 << 10;
/// The time that the answer may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Stands in for etcd in tests: the API server keeps its objects in SQLite, in the directory that this names.
#[derive(Debug, Parser)]
#[command(name = "etcd", version, args_override_self = true)]
pub struct Etcd {
    /// Path to the data directory
    #[arg(long, default_value = "default.etcd")]
    data_dir: PathBuf,
    /// List of URLs to listen on for client traffic
    #[arg(long, value_delimiter = ',', default_value = "http://localhost:2379")]
    listen_client_urls: Vec<String>,
    /// Accepted without effect: there is one address for clients, and there are no peers
    #[arg(long, value_name = "URLS", aliases = ["listen-peer-urls", "initial-advertise-peer-urls", "name"], action = ArgAction::Append)]
    advertise_client_urls: Vec<String>,
    /// Accepted without effect: what is acknowledged is on the disk. Not shown: envtest passes on what is.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    unsafe_no_fsync: Option<bool>,
}

impl Etcd {
    /// Answers until it is dropped.
    ///
    /// # Errors
    /// When a URL cannot be listened on.
    pub async fn run(self) -> anyhow::Result<()> {
        pki::private_directory(&self.data_dir)?;
        let place = std::path::absolute(&self.data_dir).context("find the data directory")?;
        let place = place.into_os_string().into_string();
        let place =
            place.map_err(|path| anyhow::anyhow!("the data directory's name is no text: {}", path.display()))?;
        let router = Router::new()
            .route("/health", get(async || r#"{"health":"true","reason":""}"#))
            .route(DATA_DIR, get(async || place))
            .fallback(async || (axum::http::StatusCode::NOT_FOUND, "404 page not found\n"));
        let mut servers = JoinSet::new();
        for url in &self.listen_client_urls {
            let address = host(url)?;
            let listener = TcpListener::bind(address).await;
            let listener = listener.with_context(|| format!("listen on {url}"))?;
            info!(url, "serving");
            servers.spawn(axum::serve(listener, router.clone()).into_future());
        }
        match servers.join_next().await {
            Some(ended) => Ok(ended??),
            None => bail!("--listen-client-urls names no URL"),
        }
    }
}

/// Host and port of an address in plain HTTP.
fn host(url: &str) -> anyhow::Result<&str> {
    let address = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    address.with_context(|| format!("{url} does not begin with http://: etcd's clients are served without TLS only"))
}

/// The data directory of the etcd at one of these URLs.
///
/// # Errors
/// When none of them answers, or one that does not belong to this program.
pub(super) fn data_dir(urls: &[String]) -> anyhow::Result<PathBuf> {
    let mut failure = anyhow::anyhow!("--etcd-servers must be specified");
    for url in urls {
        match ask(url) {
            Ok(directory) => return Ok(directory),
            Err(error) => failure = error.context(format!("ask the etcd at {url} where the objects are")),
        }
    }
    Err(failure)
}

fn ask(url: &str) -> anyhow::Result<PathBuf> {
    let address = host(url)?;
    let mut stream = connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(stream, "GET {DATA_DIR} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(LONGEST).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let found = head.lines().next().is_some_and(|status| status.contains(" 200 "));
    if !found || !Path::new(body).is_absolute() {
        bail!(
            "it is no etcd of Skiff's, and Skiff keeps its objects in no other: start the `etcd` that `skiff test-assets` \
             puts beside this program"
        );
    }
    Ok(PathBuf::from(body))
}

fn connect(address: &str) -> anyhow::Result<TcpStream> {
    let mut failure = None;
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.map_or_else(|| anyhow::anyhow!("{address} is no address"), Into::into))
}
