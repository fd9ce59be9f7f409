//! Reads of the past, which stock clients do not ask for: the same paths, verbs and rights as those of the present.
//!
//! | query | answer |
//! |---|---|
//! | `at=REVISION`, `at=2026-01-02T03:04:05Z`, `at=10m` (ago; also `3d`) | the object or the list as it was then; ages in tables are those of then |
//! | `history=COUNT`, of one object, also with `before=REVISION` | its versions, the newest first: `{"since": {…}, "items": [{"resourceVersion", "time", "until", "ended", "deleted", "object"}]}` |
//!
//! Users that may `get` or `list` the path now may read its past. A user that may do so in single
//! namespaces only does not see versions from before the last deletion of the namespace, or of the
//! definition of the kind: they belonged to another one. A time before the retained history is
//! answered with `410 Expired`, which tells where that begins.

use std::time::Duration;

use api::duration;
use http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use store::{At, Key, ListAt, PastError, Since};

use super::list::{Token, token};
use crate::authz::Attributes;
use crate::extensions::definitions;
use crate::ops::audit::recording::until_end;
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::info::RequestInfo;
use crate::request::object;
use crate::request::query::Query;
use crate::request::selection::Selection;
use crate::storage;
use crate::transport::negotiation::negotiate;
use crate::transport::respond::{self, Response};
use crate::transport::shape::{self, Head};

/// The most versions in one answer.
const MOST_VERSIONS: i64 = 500;

/// Answers a request for a past state; `None` for other requests.
///
/// # Errors
/// 400 for what is no point of the past, 404 when the object was not there, 410 when that is no longer known.
pub(crate) async fn answer(context: &mut Context) -> Result<Option<Response>, Failure> {
    let (at, versions) = (
        context.query.text("at").is_some(),
        context.query.text("history").is_some(),
    );
    if !at && !versions {
        return Ok(None);
    }
    let share = match (context.info.verb, context.info.named) {
        ("get", _) | ("list", false) if at != versions => context.server.limits.past(&context.user.name).await?,
        _ => {
            let message = "at and history are for reading objects: at with a get or a list, history with a get";
            return Err(Failure::bad_request(message));
        }
    };
    let response = match (context.info.verb, at) {
        ("get", true) => get(context).await?,
        ("get", false) => history(context).await?,
        (_, true) => list(context).await?,
        (_, false) => return Err(Failure::bad_request("history is of one object")),
    };
    // The share is held until the client has read the answer.
    Ok(Some(until_end(response, share)))
}

async fn get(context: &mut Context) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    let key = context.key(&context.info.name)?;
    let at = point(context)?;
    let prefix = storage::prefix(&context.registration, key.namespace());
    let hidden = hidden(context).await?;
    let list = context.store().list_at(&prefix, Some(&key), at, false).await;
    let list = list.map_err(|error| failure(context, &error))?;
    context.as_of = timestamp(list.time);
    let entry = list.entries.into_iter().find(|entry| entry.revision > hidden);
    let entry = entry.ok_or_else(|| Failure::NotFound {
        target: context.own_target(),
    })?;
    let live = context.live(entry).await?;
    let bytes = object::external(&context.registration, &live)?;
    shape::one(context, StatusCode::OK, representation, bytes).await
}

async fn list(context: &mut Context) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    let selection = Selection::read(&context.registration, &context.query)?;
    let limit = context.query.number("limit")?.filter(|limit| *limit > 0);
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let after = context.query.text("continue").map(Token::parse).transpose()?;
    let asked = point(context)?;
    let mut at = asked;
    let after = after.map(|(first, after)| {
        // A relative time would be evaluated anew for each page, so the first page's revision is
        // used.
        if let ListAt::Exactly(revision) = first {
            at = At::Revision(revision);
        }
        after
    });
    let prefix = storage::prefix(&context.registration, &context.info.namespace);
    let everything = selection.is_everything();
    let hidden = hidden(context).await?;
    let list = context.store().list_at(&prefix, None, at, !everything).await;
    let list = list.map_err(|error| failure(context, &error))?;
    context.as_of = timestamp(match asked {
        At::Time(time) => time,
        At::Revision(_) => list.time,
    });
    let mut entries = list.entries;
    entries.retain(|entry| entry.revision > hidden && after.as_ref().is_none_or(|after| entry.key > *after));
    let mut count = entries.len();
    if everything {
        entries.truncate(limit);
    }
    let mut lives = context.lives(entries).await?;
    if !everything {
        lives.retain(|live| selection.matches(live));
        count = lives.len();
        lives.truncate(limit);
    }
    let remaining = count.saturating_sub(limit);
    let end: Option<&Key> = lives.last().map(|live| &live.entry().key).filter(|_| remaining > 0);
    let head = Head {
        revision: list.revision,
        remainder: token(i64::try_from(list.revision).unwrap_or(i64::MAX), end),
        remaining: Some(remaining).filter(|count| everything && *count > 0),
    };
    let items = lives.iter().map(|live| object::external(&context.registration, live));
    let items = items.collect::<Result<_, _>>()?;
    shape::list(context, representation, &head, items).await
}

async fn history(context: &mut Context) -> Result<Response, Failure> {
    let key = context.key(&context.info.name)?;
    let number = |name: &str| context.query.number(name);
    let count = number("history")?.unwrap_or(0).clamp(1, MOST_VERSIONS);
    let before = number("before")?.map_or(u64::MAX, |before| u64::try_from(before).unwrap_or(0));
    let count = usize::try_from(count).unwrap_or(1);
    let hidden = hidden(context).await?;
    let versions = context.store().versions(&key, before, count).await;
    let mut versions = versions.map_err(|error| failure(context, &error))?;
    versions.retain(|version| version.revision > hidden);
    let since = context.store().since().await;
    let since = since.map_err(|error| failure(context, &error))?;
    if versions.is_empty() {
        return Err(Failure::NotFound {
            target: context.own_target(),
        });
    }
    let entries = versions.iter().map(|version| {
        let (revision, bytes) = (version.revision, version.bytes.clone());
        context.store().entry_of(&key, revision, bytes)
    });
    let lives = context.lives(entries.collect()).await?;
    let mut items = Vec::with_capacity(versions.len());
    for (version, live) in versions.iter().zip(&lives) {
        let object = object::external(&context.registration, live)?;
        items.push(json!({
            "resourceVersion": version.revision.to_string(),
            "time": time(version.began),
            "until": version.until.map(|until| until.to_string()),
            "ended": time(version.ended),
            "deleted": version.deleted,
            "object": serde_json::from_slice::<Value>(&object).map_err(Failure::internal)?,
        }));
    }
    let since = json!({"resourceVersion": since.revision.to_string(), "time": time(since.time)});
    let answer = json!({"since": since, "items": items});
    Ok(respond::json(StatusCode::OK, respond::encode(&answer)))
}

/// Revision up to which the past is hidden from the user: that of the last deletion of the namespace,
/// or of the definition of the kind. Older versions belong to another namespace or kind of the same
/// name, to which access to the current one does not extend. Nothing is hidden from a user that may
/// read the resource in all namespaces.
async fn hidden(context: &Context) -> Result<u64, Failure> {
    let info = &context.info;
    if info.namespace.is_empty() {
        return Ok(0);
    }
    let everywhere = RequestInfo {
        namespace: String::new(),
        ..info.clone()
    };
    let asked = Attributes::of(&everywhere, "");
    if context.server.authorizer.decide(&context.user, &asked).is_allowed() {
        return Ok(0);
    }
    let row = &context.registration;
    let definition = row.is_defined().then(|| definitions::key(row)).flatten();
    let mut hidden = 0;
    let namespace = Key::new("", "namespaces", "", &info.namespace).ok();
    for key in namespace.into_iter().chain(definition) {
        let deleted = context.store().deleted(&key).await;
        hidden = deleted.map_err(|error| failure(context, &error))?.max(hidden);
    }
    Ok(hidden)
}

/// Point of the past in the query.
fn point(context: &Context) -> Result<At, Failure> {
    if context.query.text("resourceVersion").is_some() {
        return Err(Failure::bad_request("at and resourceVersion exclude each other"));
    }
    read_point(&context.query, context.now())
}

fn read_point(query: &Query, now: Timestamp) -> Result<At, Failure> {
    let text = query.text("at").unwrap_or_default();
    let invalid = || {
        let example = "a revision, a time such as 2026-01-02T03:04:05Z, or how long ago, such as 10m, 2h30m or 3d";
        Failure::bad_request(format!("Invalid value: {text:?}: at must be {example}"))
    };
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map(At::Revision).map_err(|_error| invalid());
    }
    let (now, ago) = (now.as_millisecond(), ago(text));
    let time = match ago {
        Some(ago) => now.saturating_sub(i64::try_from(ago.as_millis()).unwrap_or(i64::MAX)),
        None => text.parse::<Timestamp>().map_err(|_error| invalid())?.as_millisecond(),
    };
    if time > now {
        return Err(Failure::bad_request(format!(
            "Invalid value: {text:?}: at is in the future"
        )));
    }
    Ok(At::Time(u64::try_from(time).unwrap_or(0)))
}

/// A duration as Go writes it, or whole days.
fn ago(text: &str) -> Option<Duration> {
    if let Some(days) = text.strip_suffix('d') {
        let hours = days.parse::<u32>().ok()?.checked_mul(24)?;
        return Some(Duration::from_hours(hours.into()));
    }
    if text.starts_with(['-', '+']) {
        return None;
    }
    let nanoseconds = u64::try_from(duration::parse(text).ok()?).ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

/// Formats a time; `None` for one that was not recorded.
fn timestamp(milliseconds: u64) -> Option<Timestamp> {
    let milliseconds = i64::try_from(milliseconds).ok().filter(|time| *time > 0)?;
    Timestamp::from_millisecond(milliseconds).ok()
}

fn time(milliseconds: u64) -> Option<String> {
    timestamp(milliseconds).map(|time| format!("{time:.3}"))
}

fn failure(context: &Context, error: &PastError) -> Failure {
    match error {
        PastError::Before { since } => Failure::expired(before(*since)),
        PastError::Future { .. } => Failure::bad_request(error.to_string()),
        PastError::NotKept => Failure::bad_request(format!("the past of {} is not kept", context.resource())),
        PastError::TooLarge => {
            let fewer = if context.info.named {
                "fewer versions"
            } else {
                "one namespace"
            };
            Failure::TooManyParts {
                message: format!("{error}; ask for {fewer}"),
            }
        }
        PastError::Failed(source) => {
            tracing::error!(error = &**source as &dyn std::error::Error, "read the past");
            Failure::internal(format!("read the past: {source}"))
        }
    }
}

fn before(since: Since) -> String {
    let revision = since.revision;
    match time(since.time) {
        Some(time) => format!("The past is known from {time} on (revision {revision})."),
        None => format!("The past is known from revision {revision} on."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_of_the_past_are_read() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let read = |text: &str| {
            let query = Query::parse(Some(&format!("at={text}"))).unwrap();
            read_point(&query, now).map_err(|failure| failure.to_string())
        };
        let of = |text: &str| At::Time(u64::try_from(text.parse::<Timestamp>().unwrap().as_millisecond()).unwrap());
        assert_eq!(read("17"), Ok(At::Revision(17)));
        assert_eq!(read("10m"), Ok(of("2026-01-02T02:54:05Z")));
        assert_eq!(read("1h30m"), Ok(of("2026-01-02T01:34:05Z")));
        assert_eq!(read("3d"), Ok(of("2025-12-30T03:04:05Z")));
        assert_eq!(read("2026-01-02T04:00:00.5%2B01:00"), Ok(of("2026-01-02T03:00:00.5Z")));
        assert_eq!(read("1900-01-01T00:00:00Z"), Ok(At::Time(0)));
        assert_eq!(read("99999999d"), Ok(At::Time(0)));
        for wrong in [
            "99999999999999999999",
            "-10m",
            "yesterday",
            "2026-01-02",
            "d",
            "2027-01-01T00:00:00Z",
        ] {
            read(wrong).unwrap_err();
        }
    }
}
