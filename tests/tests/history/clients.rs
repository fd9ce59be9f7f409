//! Clients that write and read a few objects, all of them the same ones, until the server dies.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, StatusCode};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use tests::http::{Connection, Target};

use crate::record::{Change, Outcome, Read, Record, State, Write};

/// Path of the objects.
pub(crate) const PATH: &str = "/api/v1/namespaces/default/configmaps";
/// Tells them from what the control plane makes there itself.
pub(crate) const SELECTOR: &str = "labelSelector=history";
/// Few, so that the writers meet.
const OBJECTS: u64 = 6;

/// Writer with its connection and the last state that it read of each object.
struct Writer {
    connection: Connection,
    record: Arc<Record>,
    known: BTreeMap<String, State>,
    number: u64,
    writes: u64,
}

/// Writes until the server is killed.
pub(crate) async fn write(target: Target, record: Arc<Record>, number: u64) -> anyhow::Result<()> {
    let mut random = StdRng::seed_from_u64(number);
    let Some(connection) = connect(&target, &record).await? else {
        return Ok(());
    };
    let mut writer = Writer {
        connection,
        record,
        known: BTreeMap::new(),
        number,
        writes: 0,
    };
    loop {
        let name = format!("object-{}", random.random_range(0..OBJECTS));
        let known = writer.known.get(&name).map(|state| state.revision);
        let change = match (random.random_range(0..10), known) {
            (0..=4, Some(from)) => Change::Update { from },
            (5..=7, _) => Change::Patch,
            (8, from) => Change::Delete { from },
            (9, _) => Change::Delete { from: None },
            _ => Change::Create,
        };
        if !writer.change(&name, change, random.random()).await? {
            return Ok(());
        }
        // Every other time, the next update starts from the changes that other writers made
        // meanwhile.
        if random.random() && !writer.look(&name).await? {
            return Ok(());
        }
    }
}

async fn connect(target: &Target, record: &Record) -> anyhow::Result<Option<Connection>> {
    match target.connect().await {
        Ok(connection) => Ok(Some(connection)),
        Err(_) if record.may_break() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a last change that every watcher sees, and tells its revision.
pub(crate) async fn last(target: &Target, record: &Arc<Record>) -> anyhow::Result<u64> {
    let mut writer = Writer {
        connection: target.connect().await?,
        record: Arc::clone(record),
        known: BTreeMap::new(),
        number: u64::MAX,
        writes: 0,
    };
    let name = "object-0";
    writer.change(name, Change::Delete { from: None }, false).await?;
    writer.change(name, Change::Create, true).await?;
    let state = writer.known.get(name).context("the last change")?;
    Ok(state.revision)
}

/// Makes one more change, which is not recorded: a watcher that saw the last change before it was
/// known to be the last sees this one.
pub(crate) async fn nudge(target: &Target) -> anyhow::Result<()> {
    let body = json!({"data": {"patched": "after the end"}}).to_string();
    let path = format!("{PATH}/object-0");
    let kind = "application/merge-patch+json";
    let (status, answer) = target.connect().await?.send(Method::PATCH, &path, kind, body).await?;
    anyhow::ensure!(
        status == StatusCode::OK,
        "{status}: {}",
        String::from_utf8_lossy(&answer)
    );
    Ok(())
}

impl Writer {
    /// Asks for a change and notes what came of it; false when the connection broke.
    async fn change(&mut self, name: &str, change: Change, left: bool) -> anyhow::Result<bool> {
        self.writes += 1;
        let token = format!("{}-{}", self.number, self.writes);
        let (method, path, kind, body) = request(name, &change, &token, left, self.known.get(name));
        let began = self.record.now();
        let answer = self.connection.send(method, &path, kind, body.to_string()).await;
        let outcome = match answer {
            Ok((status, answer)) => {
                let answer: Value = serde_json::from_slice(&answer)?;
                outcome(&change, status, &answer).with_context(|| format!("{status}: {answer}"))?
            }
            Err(_) if self.record.may_break() => (Outcome::Unknown, None),
            Err(error) => return Err(error),
        };
        let (outcome, state) = outcome;
        match (&outcome, state) {
            (_, Some(state)) => drop(self.known.insert(name.to_owned(), state)),
            (Outcome::Deleted(_) | Outcome::Absent, None) => drop(self.known.remove(name)),
            _ => {}
        }
        let broken = outcome == Outcome::Unknown;
        self.record.wrote(Write {
            name: name.to_owned(),
            token,
            change,
            began,
            ended: self.record.now(),
            outcome,
        });
        Ok(!broken)
    }

    /// Reads one object; false when the connection broke.
    async fn look(&mut self, name: &str) -> anyhow::Result<bool> {
        let began = self.record.now();
        let answer = self
            .connection
            .call(Method::GET, &format!("{PATH}/{name}"), Bytes::new())
            .await;
        let state = match answer {
            Ok((StatusCode::OK, answer)) => Some(State::read(&serde_json::from_slice(&answer)?)?),
            Ok((StatusCode::NOT_FOUND, _)) => None,
            Ok((status, answer)) => anyhow::bail!("{status}: {}", String::from_utf8_lossy(&answer)),
            Err(_) if self.record.may_break() => return Ok(false),
            Err(error) => return Err(error),
        };
        match &state {
            Some(state) => drop(self.known.insert(name.to_owned(), state.clone())),
            None => drop(self.known.remove(name)),
        }
        let name = name.to_owned();
        self.record.saw(began, Read::Get { name, state });
        Ok(true)
    }
}

fn request(
    name: &str,
    change: &Change,
    token: &str,
    left: bool,
    known: Option<&State>,
) -> (Method, String, &'static str, Value) {
    let one = format!("{PATH}/{name}");
    let side = if left { "left" } else { "right" };
    let labels = json!({"history": "yes", "side": side});
    let json = "application/json";
    match change {
        Change::Create => {
            let data = json!({"token": token, "count": "0"});
            let body = json!({"metadata": {"name": name, "labels": labels}, "data": data});
            (Method::POST, PATH.to_owned(), json, body)
        }
        Change::Update { from } => {
            let count = known.map_or(0, |state| state.count) + 1;
            let patched = known.map_or("", |state| &state.patched);
            let data = json!({"token": token, "count": count.to_string(), "patched": patched});
            let metadata = json!({"name": name, "labels": labels, "resourceVersion": from.to_string()});
            (Method::PUT, one, json, json!({"metadata": metadata, "data": data}))
        }
        Change::Patch => {
            let body = json!({"metadata": {"labels": labels}, "data": {"patched": token}});
            (Method::PATCH, one, "application/merge-patch+json", body)
        }
        Change::Delete { from } => {
            let mut body = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
            if let (Some(from), Some(body)) = (from, body.as_object_mut()) {
                body.insert("preconditions".to_owned(), json!({"resourceVersion": from.to_string()}));
            }
            (Method::DELETE, one, json, body)
        }
    }
}

fn outcome(change: &Change, status: StatusCode, answer: &Value) -> anyhow::Result<(Outcome, Option<State>)> {
    let reason = answer.pointer("/reason").and_then(Value::as_str);
    Ok(match (status, reason) {
        (StatusCode::OK, _) if matches!(change, Change::Delete { .. }) => {
            let uid = answer
                .pointer("/details/uid")
                .and_then(Value::as_str)
                .context("a uid")?;
            (Outcome::Deleted(uid.to_owned()), None)
        }
        (StatusCode::OK | StatusCode::CREATED, _) => {
            let state = State::read(answer)?;
            (Outcome::Done(state.revision), Some(state))
        }
        (StatusCode::NOT_FOUND, Some("NotFound")) => (Outcome::Absent, None),
        (StatusCode::CONFLICT, Some("AlreadyExists")) => (Outcome::Exists, None),
        (StatusCode::CONFLICT, Some("Conflict")) => (Outcome::Conflict, None),
        _ => anyhow::bail!("no answer to {change:?}"),
    })
}

/// Lists until the server is killed, with or without pages.
pub(crate) async fn read(target: Target, record: Arc<Record>, number: u64) -> anyhow::Result<()> {
    let Some(mut connection) = connect(&target, &record).await? else {
        return Ok(());
    };
    let limit = if number.is_multiple_of(2) { "" } else { "&limit=2" };
    loop {
        let began = record.now();
        match list(&mut connection, limit).await {
            Ok(read) => record.saw(began, read),
            Err(_) if record.may_break() => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// A consistent list.
pub(crate) async fn list(connection: &mut Connection, limit: &str) -> anyhow::Result<Read> {
    let mut states = BTreeMap::new();
    let mut next = String::new();
    loop {
        let path = format!("{PATH}?{SELECTOR}{limit}{next}");
        let page = connection.expect(Method::GET, &path, Bytes::new()).await?;
        let page: Value = serde_json::from_slice(&page)?;
        for item in page.pointer("/items").and_then(Value::as_array).context("items")? {
            let state = State::read(item)?;
            states.insert(state.name.clone(), state);
        }
        let text = |pointer| {
            page.pointer(pointer)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
        };
        if let Some(token) = text("/metadata/continue") {
            next = format!("&continue={token}");
            continue;
        }
        let revision = text("/metadata/resourceVersion").context("a revision")?.parse()?;
        return Ok(Read::List { revision, states });
    }
}
