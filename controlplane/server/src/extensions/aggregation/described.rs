//! OpenAPI documents of the servers behind Services (`pkg/controllers/{openapi,openapiv3}`): those of v3 are
//! proxied, by what their index says; that of v2 becomes a part of this server's.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::ETAG;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::Instant;

use super::proxy::{Get, get};
use super::{Remote, prefix};
use crate::authn::identity::User;
use crate::discovery::openapi::described::Described;
use crate::server::blocking;
use crate::server::shared::Shared;
use crate::transport::compress;

/// The time between two looks at the documents of a server.
const INTERVAL: Duration = Duration::from_mins(1);
/// The time that a document may take. Upstream gives a minute, but reads only one server's at a time.
const LIMIT: Duration = Duration::from_secs(20);
/// Bytes of an index, and of a document of v2.
const INDEX_BYTES: usize = 1 << 20;
const BYTES: usize = 32 << 20;

/// Keeps the documents of all available servers for as long as it is polled.
pub(crate) async fn run(shared: &Arc<Shared>) -> Infallible {
    let mut own = shared.store.last_change(&prefix());
    loop {
        own.mark_unchanged();
        let remotes = shared.aggregation.remotes().into_iter();
        let available: Vec<Arc<Remote>> = remotes.filter(|remote| remote.is_available).collect();
        let looks = available.iter().map(|remote| look(shared, remote));
        futures::future::join_all(looks).await;
        let gone = if available.is_empty() {
            own.changed().await.is_err()
        } else {
            tokio::select! {
                changed = own.changed() => changed.is_err(),
                () = tokio::time::sleep(INTERVAL) => false,
            }
        };
        if gone {
            // The store is closed: nothing changes any more.
            std::future::pending::<()>().await;
        }
    }
}

/// Reads the documents of a server again if they are due.
async fn look(shared: &Shared, remote: &Remote) {
    let known = {
        let described = shared.aggregation.described.read();
        described
            .unwrap_or_else(PoisonError::into_inner)
            .get(&remote.name)
            .cloned()
    };
    let now = Instant::now();
    if known.as_ref().is_some_and(|known| now < known.due) {
        return;
    }
    let mut read = known.as_deref().cloned().unwrap_or_else(|| Described {
        group: remote.group.clone(),
        version: remote.version.clone(),
        v3: BTreeMap::new(),
        v2: None,
        due: now,
    });
    // What cannot be read stays what it was.
    read.due = now + INTERVAL;
    for outcome in [
        index(shared, remote, &mut read).await,
        whole(shared, remote, &mut read).await,
    ] {
        if let Err(because) = outcome {
            tracing::debug!(name = remote.name, because, "an OpenAPI document cannot be read");
        }
    }
    let mut described = shared
        .aggregation
        .described
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    described.insert(remote.name.clone(), Arc::new(read));
}

async fn ask(
    shared: &Shared,
    remote: &Remote,
    (path, tag, bytes): (&str, Option<&str>, usize),
) -> Result<http::Response<Bytes>, String> {
    let user = User {
        name: "system:aggregator".to_owned(),
        ..User::default()
    };
    let limits = (LIMIT, bytes);
    let asked = Get {
        path,
        user: &user,
        tag,
        limits,
    };
    get(shared, remote, asked).await
}

#[derive(Deserialize)]
struct Index {
    paths: BTreeMap<String, Path>,
}

#[derive(Deserialize)]
struct Path {
    #[serde(rename = "serverRelativeURL")]
    url: String,
}

/// Reads the index of v3. Documents of groups that the server has no `APIService` for are left out: requests for those
/// groups do not reach it.
async fn index(shared: &Shared, remote: &Remote, read: &mut Described) -> Result<(), String> {
    let answer = ask(shared, remote, ("/openapi/v3", None, INDEX_BYTES)).await?;
    match answer.status() {
        StatusCode::OK => {
            let index: Index = serde_json::from_slice(answer.body()).map_err(|error| error.to_string())?;
            let (group, version) = (&remote.group, &remote.version);
            let of_group = Some(format!("apis/{group}")).filter(|_| !api::KINDS.iter().any(|row| row.group == group));
            let own = [of_group, Some(format!("apis/{group}/{version}"))];
            let paths = index.paths.into_iter();
            let paths = paths.filter(|(path, _)| own.iter().flatten().any(|own| own == path));
            read.v3 = paths.map(|(path, own)| (path, own.url)).collect();
            Ok(())
        }
        StatusCode::NOT_FOUND => {
            read.v3.clear();
            Ok(())
        }
        status => Err(format!("/openapi/v3: {status}")),
    }
}

/// Reads the document of v2.
async fn whole(shared: &Shared, remote: &Remote, read: &mut Described) -> Result<(), String> {
    let tag = read
        .v2
        .as_ref()
        .map(|(tag, _)| tag.as_str())
        .filter(|tag| tag.starts_with('"'));
    let answer = ask(shared, remote, ("/openapi/v2", tag, BYTES)).await?;
    match answer.status() {
        StatusCode::NOT_MODIFIED => Ok(()),
        StatusCode::OK => {
            let compressed = async {
                serde_json::from_slice::<IgnoredAny>(answer.body()).map_err(|error| error.to_string())?;
                let tag = answer.headers().get(ETAG).and_then(|tag| tag.to_str().ok());
                let tag = tag.map_or_else(|| crate::discovery::openapi::hash([answer.body()]), str::to_owned);
                Ok::<_, String>(compress::gzip(answer.body()).map(|compressed| (tag, compressed)))
            };
            read.v2 = blocking::apart(answer.body().len(), compressed).await?;
            Ok(())
        }
        StatusCode::NOT_FOUND => {
            read.v2 = None;
            Ok(())
        }
        status => Err(format!("/openapi/v2: {status}")),
    }
}
