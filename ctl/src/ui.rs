//! `skiff ui`: link that logs in a browser as the user of the kubeconfig.

use std::process::{Command, Stdio};

use anyhow::Context as _;
use http::Method;

use crate::arguments::{Place, UiOptions};
use crate::client::api::{Api, configuration, text_at};
use crate::terminal;

pub(crate) async fn run(place: &Place, options: &UiOptions) -> anyhow::Result<()> {
    let api = Api::of(place).await?;
    let answer = api.send(Method::POST, "/ui/codes", "application/json", None).await?;
    let server = configuration(&place.kubeconfig()).await?.cluster_url.to_string();
    // In the fragment, the code reaches neither logs nor proxies.
    let link = format!(
        "{}/ui/#code={}",
        server.trim_end_matches('/'),
        text_at(&answer, "/code")
    );
    terminal::write(&format!("{link}\n"))?;
    let seconds = answer
        .get("seconds")
        .and_then(serde_json::Value::as_i64)
        .unwrap_or_default();
    terminal::note(format!("the link logs in one browser, once, within {seconds} seconds"));
    let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    if has_screen && !options.no_open {
        open(&link).context("open a browser; --no-open prints the link alone")?;
    }
    Ok(())
}

/// Opens the link in the desktop's browser, if there is one.
fn open(link: &str) -> std::io::Result<()> {
    let opened = Command::new("xdg-open")
        .arg(link)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match opened {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.map(drop),
    }
}
