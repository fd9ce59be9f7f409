//! GET of many objects: selectors, pages over one snapshot, and the semantics of `resourceVersion`.

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::{DecodeError, Engine};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use store::{Key, ListAt, ListError};

use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::object::{self, Live};
use crate::request::query::Query;
use crate::request::selection::Selection;
use crate::storage;
use crate::transport::body::syntax;
use crate::transport::negotiation::negotiate;
use crate::transport::respond::Response;
use crate::transport::shape::{self, Head};

/// Number of entries scanned in one step when selectors filter.
const STEP: usize = 500;
const EXPIRED_CONTINUE: &str = "The provided continue parameter is too old to display a consistent list result. You can \
start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of \
the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or \
deleted between the time the first chunk was returned and now may show up in the list.";

/// A page.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) head: Head,
    pub(crate) entries: Vec<Live>,
}

/// Start of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Window {
    at: ListAt,
    after: Option<Key>,
    limit: Option<usize>,
    continued: bool,
    /// The revision that must have been reached.
    not_older_than: Option<u64>,
}

/// Contents of a continue token, which is opaque to clients.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Token {
    #[serde(default)]
    v: String,
    /// Revision of the snapshot; [`NEWEST`] for the latest.
    #[serde(default)]
    rv: i64,
    /// The last key of the page before.
    #[serde(default)]
    start: String,
}

const TOKEN_VERSION: &str = "meta.k8s.io/v1";
const NEWEST: i64 = -1;

impl Token {
    /// Parses a token from a client, which may have modified it.
    pub(crate) fn parse(text: &str) -> Result<(ListAt, Key), Failure> {
        let invalid = |because: &str| {
            Failure::bad_request(format!("invalid continue token: continue key is not valid: {because}"))
        };
        let bytes = URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|error| invalid(&misspelt(&error)))?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|error| invalid(&syntax::words(&bytes, &error)))?;
        if token.v != TOKEN_VERSION {
            let version = &token.v;
            return Err(invalid(&format!(
                "server does not recognize this encoded version {version}"
            )));
        }
        let at = match u64::try_from(token.rv) {
            Ok(0) => {
                return Err(invalid(
                    "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
                ));
            }
            Ok(revision) => ListAt::Exactly(revision),
            Err(_negative) => ListAt::Latest,
        };
        if token.start.is_empty() {
            return Err(invalid("encoded start key empty (version meta.k8s.io/v1)"));
        }
        let after = Key::parse(&token.start).map_err(|_error| invalid(&token.start))?;
        Ok((at, after))
    }
}

/// Go's error message for text that is not base64.
fn misspelt(error: &DecodeError) -> String {
    let at = match error {
        DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => *at,
        DecodeError::InvalidLength(length) => length.saturating_sub(1),
        DecodeError::InvalidPadding => 0,
    };
    format!("illegal base64 data at input byte {at}")
}

/// Answers a list.
pub(crate) async fn list(context: &mut Context) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    let page = page(context).await?;
    let registration = &context.registration;
    let items: Vec<Bytes> = page
        .entries
        .iter()
        .map(|live| object::external(registration, live))
        .collect::<Result<_, _>>()?;
    shape::list(context, representation, &page.head, items).await
}

/// The page that the query asks for.
pub(crate) async fn page(context: &Context) -> Result<Page, Failure> {
    let selection = Selection::read(&context.registration, &context.query)?;
    let window = window(&context.query)?;
    if let Some(requested) = window.not_older_than {
        context.fresh(requested).await?;
    }
    if window.at == ListAt::Latest
        && window.after.is_none()
        && let Some(key) = only_key(context, &selection)
    {
        return single(context, &selection, &key).await;
    }
    collect(context, &selection, window).await
}

/// The only key that can match, where namespace and name are given.
pub(crate) fn only_key(context: &Context, selection: &Selection) -> Option<Key> {
    let name = selection.name()?;
    let cluster = context.registration.scope == api::kind::Scope::Cluster;
    if !cluster && context.info.namespace.is_empty() {
        return None;
    }
    let namespace = if cluster { "" } else { &context.info.namespace };
    storage::key(&context.registration, namespace, name)
}

async fn single(context: &Context, selection: &Selection, key: &Key) -> Result<Page, Failure> {
    // The revision is read first: a change after it is seen again by a watch from it, never missed.
    let revision = context.store().revision();
    let live = match context.store().get(key) {
        Some(entry) => Some(context.live(entry).await?).filter(|live| selection.matches(live)),
        None => None,
    };
    let revision = live
        .as_ref()
        .map_or(revision, |live| revision.max(live.entry().revision));
    Ok(Page {
        head: Head {
            revision,
            remainder: None,
            remaining: None,
        },
        entries: live.into_iter().collect(),
    })
}

async fn collect(context: &Context, selection: &Selection, window: Window) -> Result<Page, Failure> {
    let prefix = storage::prefix(&context.registration, &context.info.namespace);
    let everything = selection.is_everything();
    let mut after = window.after.clone();
    let mut at = window.at;
    let mut entries = Vec::new();
    loop {
        let missing = window.limit.map(|limit| limit - entries.len());
        // Without a limit, or with selectors, pages inside must still be of one snapshot.
        let step = if everything {
            missing
        } else {
            missing.map(|missing| missing.max(STEP))
        };
        let listed = context.store().list(&prefix, at, after.as_ref(), step).await;
        let list = listed.map_err(|error| list_failure(&error, &window, after.as_ref()))?;
        at = ListAt::Exactly(list.revision);
        let mut left = list.entries.len();
        for live in context.lives(list.entries).await? {
            left -= 1;
            after = Some(live.entry().key.clone());
            if everything || selection.matches(&live) {
                entries.push(live);
            }
            if window.limit == Some(entries.len()) {
                break;
            }
        }
        let remaining = list.remaining + left;
        let full = window.limit == Some(entries.len());
        if remaining == 0 || full {
            let remainder = (remaining > 0)
                .then(|| token(i64::try_from(list.revision).unwrap_or(NEWEST), after.as_ref()))
                .flatten();
            let remaining = Some(remaining).filter(|count| everything && *count > 0);
            return Ok(Page {
                head: Head {
                    revision: list.revision,
                    remainder,
                    remaining,
                },
                entries,
            });
        }
    }
}

fn list_failure(error: &ListError, window: &Window, after: Option<&Key>) -> Failure {
    match error {
        ListError::Expired { .. } if window.continued => Failure::Expired {
            message: EXPIRED_CONTINUE.into(),
            remainder: token(NEWEST, after),
        },
        ListError::Expired { .. } => Failure::expired("The resourceVersion for the provided list is too old."),
        ListError::Future { revision, newest } => Failure::TooLargeResourceVersion {
            requested: *revision,
            current: *newest,
        },
        ListError::Failed(_) => Failure::internal(error),
    }
}

pub(crate) fn token(revision: i64, after: Option<&Key>) -> Option<String> {
    let token = Token {
        v: TOKEN_VERSION.to_owned(),
        rv: revision,
        start: after?.as_str().to_owned(),
    };
    Some(URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).ok()?))
}

fn window(query: &Query) -> Result<Window, Failure> {
    validate(query)?;
    // Lists ignore the timeout, but it must be a number.
    query.number("timeoutSeconds")?;
    let limit = query
        .number("limit")?
        .filter(|limit| *limit > 0)
        .and_then(|limit| usize::try_from(limit).ok());
    if let Some(text) = query.text("continue") {
        let (at, after) = Token::parse(text)?;
        if query.text("resourceVersion").is_some_and(|version| version != "0") {
            return Err(Failure::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        return Ok(Window {
            at,
            after: Some(after),
            limit,
            continued: true,
            not_older_than: None,
        });
    }
    let latest = Window {
        at: ListAt::Latest,
        after: None,
        limit,
        continued: false,
        not_older_than: None,
    };
    let Some(requested) = revision(query)? else {
        return Ok(latest);
    };
    let exact = match query.text("resourceVersionMatch") {
        Some("Exact") => true,
        Some(_) => false,
        // By default a limit makes the revision exact, unless it is 0.
        None => limit.is_some() && requested > 0,
    };
    let at = if exact {
        ListAt::Exactly(requested)
    } else {
        ListAt::Latest
    };
    Ok(Window {
        at,
        not_older_than: Some(requested),
        ..latest
    })
}

/// The query's `resourceVersion`.
pub(crate) fn revision(query: &Query) -> Result<Option<u64>, Failure> {
    query
        .text("resourceVersion")
        .map(|text| {
            text.parse().map_err(|_error| {
                Failure::bad_request(format!(
                    "invalid resource version: strconv.ParseUint: parsing {text:?}: invalid syntax"
                ))
            })
        })
        .transpose()
}

fn validate(query: &Query) -> Result<(), Failure> {
    let mut found = Vec::new();
    if query.get("sendInitialEvents").is_some() {
        found.push(api::Invalid::forbidden(
            "sendInitialEvents",
            "sendInitialEvents is forbidden for list",
        ));
    }
    if let Some(wanted) = query.text("resourceVersionMatch") {
        let forbid = |detail: &str| api::Invalid::forbidden("resourceVersionMatch", detail);
        if query.text("resourceVersion").is_none() {
            found.push(forbid(
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        if query.text("continue").is_some() {
            found.push(forbid("resourceVersionMatch is forbidden when continue is provided"));
        }
        if !matches!(wanted, "Exact" | "NotOlderThan") {
            found.push(api::Invalid::not_supported(
                "resourceVersionMatch",
                wanted,
                &["Exact", "NotOlderThan", ""],
            ));
        }
        if wanted == "Exact" && query.text("resourceVersion") == Some("0") {
            found.push(forbid(
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ));
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    Err(Failure::invalid("meta.k8s.io", "ListOptions", "", &found))
}
