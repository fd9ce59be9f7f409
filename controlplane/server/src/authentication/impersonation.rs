//! `Impersonate-…` headers: who may, acts as somebody else.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName};

use crate::authorization::Attributes;
use crate::failure::Failure;
use crate::identity::{AUTHENTICATED, UNAUTHENTICATED, User};
use crate::path::percent_decode;
use crate::request::RequestInfo;
use crate::server::Shared;

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
const EXTRA: &str = "impersonate-extra-";
const GROUP_OF_EXTRAS: &str = "authentication.k8s.io";

/// Whom the caller wants to be taken for; nothing when he does not ask. The headers are taken out of the request.
///
/// # Errors
/// 403 when he may not, 500 for headers that name no user (as upstream answers them).
pub(crate) fn impersonated(shared: &Shared, caller: &User, headers: &mut HeaderMap) -> Result<Option<User>, Failure> {
    let Some(wanted) = Wanted::take(headers)? else {
        return Ok(None);
    };
    for info in wanted.requests() {
        shared.authorizer.check(caller, &Attributes::of(&info, ""))?;
    }
    Ok(Some(wanted.user()))
}

/// What the headers say.
#[derive(Debug, Default)]
struct Wanted {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl Wanted {
    fn take(headers: &mut HeaderMap) -> Result<Option<Self>, Failure> {
        // By far the most requests have none of them.
        if !headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
            return Ok(None);
        }
        let text = |name: &HeaderName| -> Vec<String> {
            let values = headers.get_all(name).iter();
            values
                .filter_map(|value| value.to_str().ok())
                .map(str::to_owned)
                .collect()
        };
        let mut wanted = Self {
            name: text(&USER).into_iter().next().unwrap_or_default(),
            uid: text(&UID).into_iter().next().unwrap_or_default(),
            groups: text(&GROUP),
            extra: BTreeMap::new(),
        };
        let mut names: Vec<HeaderName> = headers
            .keys()
            .filter(|name| name.as_str().starts_with(EXTRA))
            .cloned()
            .collect();
        for name in &names {
            let key = unescaped(name.as_str().strip_prefix(EXTRA).unwrap_or_default());
            wanted.extra.entry(key).or_default().extend(text(name));
        }
        if wanted.name.is_empty() && (!wanted.groups.is_empty() || !wanted.extra.is_empty() || !wanted.uid.is_empty()) {
            let found = wanted
                .requests()
                .into_iter()
                .map(|info| info.name)
                .collect::<Vec<_>>()
                .join(" ");
            return Err(Failure::internal(format!(
                "requested [{found}] without impersonating a user"
            )));
        }
        names.extend([USER, GROUP, UID]);
        for name in names {
            headers.remove(name);
        }
        Ok((!wanted.name.is_empty()).then_some(wanted))
    }

    fn account(&self) -> Option<(&str, &str)> {
        self.name.strip_prefix("system:serviceaccount:")?.split_once(':')
    }

    /// Everything that the caller must be allowed to take on.
    fn requests(&self) -> Vec<RequestInfo> {
        let ask = |group: &str, resource: &str, name: &str| RequestInfo {
            is_resource: true,
            verb: "impersonate",
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            named: true,
            ..RequestInfo::default()
        };
        let mut requests = Vec::new();
        match self.account() {
            Some((namespace, name)) => requests.push(RequestInfo {
                namespace: namespace.to_owned(),
                ..ask("", "serviceaccounts", name)
            }),
            None if self.name.is_empty() => {}
            None => requests.push(ask("", "users", &self.name)),
        }
        requests.extend(self.groups.iter().map(|group| ask("", "groups", group)));
        for (key, values) in &self.extra {
            requests.extend(values.iter().map(|value| RequestInfo {
                subresource: key.clone(),
                ..ask(GROUP_OF_EXTRAS, "userextras", value)
            }));
        }
        if !self.uid.is_empty() {
            requests.push(ask(GROUP_OF_EXTRAS, "uids", &self.uid));
        }
        requests
    }

    fn user(self) -> User {
        let mut groups = match self.account() {
            // Whose groups are not given has those that its token would give it.
            Some((namespace, name)) if self.groups.is_empty() => User::account(namespace, name).groups,
            Some(_) | None => self.groups.clone(),
        };
        let has = |wanted: &[&str]| groups.iter().any(|group| wanted.contains(&group.as_str()));
        if self.name == User::anonymous().name {
            if !has(&[UNAUTHENTICATED]) {
                groups.push(UNAUTHENTICATED.to_owned());
            }
        } else if !has(&[AUTHENTICATED, UNAUTHENTICATED]) {
            groups.push(AUTHENTICATED.to_owned());
        }
        User {
            name: self.name,
            groups,
            uid: self.uid,
            extra: self.extra,
        }
    }
}

/// The key of an extra is percent-encoded, since it stands in a header's name; what does not decode stays as it is.
fn unescaped(key: &str) -> String {
    percent_decode(key.as_bytes())
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .unwrap_or_else(|| key.to_owned())
}
