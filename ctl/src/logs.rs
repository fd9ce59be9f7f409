//! `skiff logs`.

use anyhow::{Context as _, bail};
use futures::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};
use serde_json::Value;

use crate::api::{Api, text_at, with_query};
use crate::arguments::{LogsOptions, Place};
use crate::resource::Resources;
use crate::terminal;

pub(crate) async fn run(place: &Place, options: &LogsOptions) -> anyhow::Result<()> {
    let api = Api::of(place).await?;
    let pods = pods(&api, options).await?;
    if pods.is_empty() {
        bail!("no pods found in {} namespace", options.scope.namespace);
    }
    let several = pods.len() > 1;
    if options.follow {
        let logs = pods.iter().map(|pod| print(&api, pod, options, several));
        futures::future::try_join_all(logs).await?;
        return Ok(());
    }
    for pod in &pods {
        print(&api, pod, options, several).await?;
    }
    Ok(())
}

/// The names of the pods that are meant.
async fn pods(api: &Api, options: &LogsOptions) -> anyhow::Result<Vec<String>> {
    let namespace = &options.scope.namespace;
    if let Some(selector) = &options.selector {
        return list(api, namespace, selector).await;
    }
    let target = options.target.as_deref().unwrap_or_default();
    let Some((kind, name)) = target.split_once('/') else {
        return Ok(vec![target.to_owned()]);
    };
    let resource = Resources::discover(api).await?.find(kind)?;
    if resource.group.is_empty() && resource.plural == "pods" {
        return Ok(vec![name.to_owned()]);
    }
    // Whatever selects pods by labels.
    let owner = api.get(&resource.object(namespace, name)?).await?;
    let labels = owner
        .pointer("/spec/selector/matchLabels")
        .or_else(|| owner.pointer("/spec/selector"));
    let labels = labels
        .and_then(Value::as_object)
        .with_context(|| format!("{target} selects no pods"))?;
    let selector: Vec<String> = labels
        .iter()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    let mut pods = list(api, namespace, &selector.join(",")).await?;
    if pods.len() > 1 {
        terminal::note(format!(
            "Found {} pods, using pod/{}",
            pods.len(),
            pods.first().map_or("", String::as_str)
        ));
        pods.truncate(1);
    }
    Ok(pods)
}

async fn list(api: &Api, namespace: &str, selector: &str) -> anyhow::Result<Vec<String>> {
    let path = with_query(
        &format!("/api/v1/namespaces/{namespace}/pods"),
        &[("labelSelector", Some(selector))],
    );
    let list = api.get(&path).await?;
    let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
    Ok(items.map(|pod| text_at(pod, "/metadata/name").to_owned()).collect())
}

async fn print(api: &Api, pod: &str, options: &LogsOptions, prefixed: bool) -> anyhow::Result<()> {
    let flag = |set: bool| set.then_some("true");
    let tail = options.tail.map(|lines| lines.to_string());
    let path = with_query(
        &format!("/api/v1/namespaces/{}/pods/{pod}/log", options.scope.namespace),
        &[
            ("container", options.container.as_deref()),
            ("follow", flag(options.follow)),
            ("previous", flag(options.previous)),
            ("timestamps", flag(options.timestamps)),
            ("tailLines", tail.as_deref()),
        ],
    );
    let stream = api
        .stream(&path, false)
        .await
        .with_context(|| format!("the log of {pod}"))?;
    copy(
        stream,
        &if prefixed {
            format!("[pod/{pod}] ")
        } else {
            String::new()
        },
    )
    .await
}

/// Copies line by line, a line of any length piece by piece.
async fn copy(stream: impl AsyncBufRead + Unpin, prefix: &str) -> anyhow::Result<()> {
    const PIECE: u64 = 64 << 10;
    let mut stream = stream;
    let mut begins = true;
    loop {
        let mut piece = Vec::new();
        if (&mut stream).take(PIECE).read_until(b'\n', &mut piece).await? == 0 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&piece);
        terminal::write(&if begins {
            format!("{prefix}{text}")
        } else {
            text.into_owned()
        })?;
        begins = piece.ends_with(b"\n");
    }
}
