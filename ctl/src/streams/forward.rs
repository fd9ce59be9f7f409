//! `skiff port-forward`: each local connection becomes a separate stream to the pod.

use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::session::until_interrupted;
use crate::arguments::{ForwardOptions, Place};
use crate::client::api::{Api, refused};
use crate::client::pods;
use crate::terminal;

/// Maximum number of concurrent connections; further ones wait.
const TOGETHER: usize = 256;

/// Forwards until it is interrupted.
pub(crate) async fn run(place: &Place, options: &ForwardOptions) -> anyhow::Result<()> {
    let api = Api::of(place).await?;
    let namespace = &options.scope.namespace;
    let pod = pods::one(&api, namespace, &options.target).await?;
    let mut listeners = Vec::new();
    for text in &options.ports {
        let (local, remote) = ports(text)?;
        let listener = TcpListener::bind(SocketAddr::new(options.address, local)).await;
        let listener = listener.with_context(|| format!("listen on {}:{local}", options.address))?;
        terminal::line(format!("Forwarding from {} -> {remote}", listener.local_addr()?))?;
        listeners.push((listener, remote));
    }
    let pods = api.pods(namespace);
    let accepting = listeners
        .iter()
        .map(|(listener, remote)| accept(listener, *remote, &pods, &pod));
    until_interrupted(futures::future::try_join_all(accepting).map(|ended| ended.map(drop))).await
}

/// `8080`, `8080:80`, `:80`
fn ports(text: &str) -> anyhow::Result<(u16, u16)> {
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    let number = |text: &str| text.parse::<u16>().with_context(|| format!("{text:?} is no port"));
    let remote = number(remote)?;
    if remote == 0 {
        bail!("the port of the pod cannot be 0");
    }
    Ok((if local.is_empty() { 0 } else { number(local)? }, remote))
}

async fn accept(listener: &TcpListener, remote: u16, pods: &kube::Api<Pod>, pod: &str) -> anyhow::Result<()> {
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < TOGETHER => {
                let (stream, _) = accepted.context("accept a connection")?;
                terminal::note(format!("Handling connection for {}", listener.local_addr()?.port()));
                connections.push(carry(stream, remote, pods, pod));
            }
            Some(carried) = connections.next(), if !connections.is_empty() => {
                // A failed connection does not end the others.
                if let Err(error) = carried {
                    terminal::note(format!("{} {error:#}", terminal::red("error:")));
                }
            }
        }
    }
}

type Pod = k8s_openapi::api::core::v1::Pod;

async fn carry(mut stream: TcpStream, remote: u16, pods: &kube::Api<Pod>, pod: &str) -> anyhow::Result<()> {
    let mut forwarder = pods.portforward(pod, &[remote]).await.map_err(refused)?;
    let failed = forwarder.take_error(remote);
    let mut behind = forwarder.take_stream(remote).context("no stream came")?;
    let copied = copy_bidirectional(&mut stream, &mut behind).await;
    drop(behind);
    // Either side may disconnect at any time.
    drop(copied);
    if let Some(failed) = failed
        && let Some(Some(message)) = failed.now_or_never()
    {
        bail!("forwarding port {remote} to pod {pod}: {message}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::ports;

    #[test]
    fn ports_are_read() {
        let read = |text: &str| ports(text).ok();
        assert_eq!(read("80"), Some((80, 80)));
        assert_eq!(read("8080:80"), Some((8080, 80)));
        assert_eq!(read(":80"), Some((0, 80)));
        for text in ["", "a", "1:", "1:2:3", "70000", "80:0"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
