//! Impersonation by `Impersonate-…` headers.

mod modes;

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::authn::identity::User;
use crate::authz::Attributes;
use crate::request::failure::Failure;
use crate::request::info::RequestInfo;
use crate::request::path::percent_decode;
use crate::server::shared::Shared;
use modes::Mode;

/// Header with the name of the impersonated user.
pub(crate) const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
const EXTRA: &str = "impersonate-extra-";

/// Impersonated user.
#[derive(Debug, Clone)]
pub(crate) struct Impersonated {
    pub(crate) user: User,
    /// Constrained verb that allowed it, if any, for the audit log.
    pub(crate) constraint: Option<String>,
}

/// User that the caller impersonates; `None` without such headers. The headers are removed from the
/// request, which is described by `info` and, for non-resource requests, by its path.
///
/// # Errors
/// 400 for headers that name no user, 403 when he may not: with what stands in the way of the first mode that applies.
pub(crate) fn impersonated(
    shared: &Shared,
    caller: &User,
    (info, segments): (&RequestInfo, &[String]),
    headers: &mut HeaderMap,
) -> Result<Option<Impersonated>, Failure> {
    let Some(wanted) = Wanted::take(headers)? else {
        return Ok(None);
    };
    let path = if info.is_resource {
        String::new()
    } else {
        format!("/{}", segments.join("/"))
    };
    let request = Attributes::of(info, &path);
    let mut first = None;
    for mode in Mode::ALL.into_iter().filter(|mode| mode.applies(&wanted, caller)) {
        match mode.check(&shared.authorizer, caller, &wanted, &request) {
            Ok(()) => return Ok(Some(mode.impersonate(wanted))),
            Err(failure) => drop(first.get_or_insert(failure)),
        }
    }
    Err(first.unwrap_or_else(|| Failure::internal("all impersonation modes failed")))
}

fn is_header(name: &HeaderName) -> bool {
    name.as_str().starts_with("impersonate-")
}

/// Impersonation headers of a request.
pub(crate) fn headers_of(headers: &HeaderMap) -> HeaderMap {
    let own = headers.iter().filter(|(name, _)| is_header(name));
    own.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Replaces the impersonation headers of a request by those of its session, if that has any.
pub(super) fn set_headers(headers: &mut HeaderMap, own: HeaderMap) {
    if own.is_empty() {
        return;
    }
    let names: Vec<HeaderName> = headers.keys().filter(|name| is_header(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
    headers.extend(own);
}

/// Contents of the impersonation headers.
#[derive(Debug, Default)]
struct Wanted {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl Wanted {
    fn take(headers: &mut HeaderMap) -> Result<Option<Self>, Failure> {
        // Fast path: most requests have none of the headers.
        if !headers.keys().any(is_header) {
            return Ok(None);
        }
        let text = |name: &HeaderName| headers.get_all(name).iter().map(text).collect::<Result<Vec<_>, _>>();
        let mut wanted = Self {
            name: text(&USER)?.into_iter().next().unwrap_or_default(),
            uid: text(&UID)?.into_iter().next().unwrap_or_default(),
            groups: text(&GROUP)?,
            extra: BTreeMap::new(),
        };
        let mut names: Vec<HeaderName> = headers
            .keys()
            .filter(|name| name.as_str().starts_with(EXTRA))
            .cloned()
            .collect();
        for name in &names {
            let key = unescaped(name.as_str().strip_prefix(EXTRA).unwrap_or_default());
            wanted.extra.entry(key).or_default().extend(text(name)?);
        }
        if wanted.name.is_empty() && !wanted.is_only_a_name() {
            let found = wanted.go_text();
            return Err(Failure::bad_request(format!(
                "requested {found} without impersonating a user name"
            )));
        }
        names.extend([USER, GROUP, UID]);
        for name in names {
            headers.remove(name);
        }
        Ok((!wanted.name.is_empty()).then_some(wanted))
    }

    /// True if only a user name is given, so that the server fills in groups, uid and extras.
    fn is_only_a_name(&self) -> bool {
        self.uid.is_empty() && self.groups.is_empty() && self.extra.is_empty()
    }

    /// Go's format of upstream's struct.
    fn go_text(&self) -> String {
        let list = |texts: &[String]| {
            let texts: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
            format!("[]string{{{}}}", texts.join(", "))
        };
        let groups = if self.groups.is_empty() {
            "[]string(nil)".to_owned()
        } else {
            list(&self.groups)
        };
        let extra = if self.extra.is_empty() {
            "map[string][]string(nil)".to_owned()
        } else {
            let members = self.extra.iter();
            let members: Vec<String> = members
                .map(|(key, values)| format!("{key:?}:{}", list(values)))
                .collect();
            format!("map[string][]string{{{}}}", members.join(", "))
        };
        format!(
            "&user.DefaultInfo{{Name:{:?}, UID:{:?}, Groups:{groups}, Extra:{extra}}}",
            self.name, self.uid
        )
    }
}

/// Value of a header, which must be UTF-8. An invalid one is an error: without it another user
/// would be impersonated.
fn text(value: &HeaderValue) -> Result<String, Failure> {
    let text = std::str::from_utf8(value.as_bytes());
    text.map(str::to_owned)
        .map_err(|_not_text| Failure::bad_request("impersonation headers must be UTF-8"))
}

/// Decodes the key of an extra, which is percent-encoded in the header's name; an invalid one stays
/// as it is.
fn unescaped(key: &str) -> String {
    percent_decode(key.as_bytes())
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .unwrap_or_else(|| key.to_owned())
}
