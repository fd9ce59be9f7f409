//! Bearer tokens. The registry names the token server, which is as untrusted as the registry.

use std::collections::BTreeSet;

use http_auth::parser::ChallengeParser;
use reqwest::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{StatusCode, Url};
use serde::Deserialize;

/// Maximum size of an answer. Tokens have a few thousand bytes.
pub(crate) const LIMIT: u64 = 64 << 10;
/// Maximum length of a URL in an error.
const SHOWN: usize = 300;

/// No token was issued.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The realm is not a URL, or would receive credentials unencrypted.
    #[error("failed to fetch token: the realm {0:?} cannot be asked")]
    Realm(String),
    /// The token server returned an error.
    #[error("failed to fetch {kind} token: unexpected status from GET request to {url}: {status}")]
    Status {
        /// `anonymous` or `oauth`.
        kind: &'static str,
        /// URL of the token server.
        url: String,
        /// Status of the answer.
        status: StatusCode,
    },
    /// The answer holds no token.
    #[error("failed to fetch token: the answer is none")]
    Format,
}

/// Authentication challenge of a registry (`WWW-Authenticate`).
pub(crate) struct Challenge {
    realm: String,
    service: Option<String>,
    scope: String,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

/// Returns the first Bearer challenge.
pub(crate) fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    let texts = headers.get_all(WWW_AUTHENTICATE).iter();
    let all = texts
        .filter_map(|text| text.to_str().ok())
        .flat_map(ChallengeParser::new);
    let mut bearers = all
        .filter_map(Result::ok)
        .filter(|challenge| challenge.scheme.eq_ignore_ascii_case("Bearer"));
    bearers.find_map(|challenge| {
        let value = |name: &str| {
            let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        Some(Challenge {
            realm: value("realm")?,
            service: value("service"),
            scope: value("scope").unwrap_or_default(),
        })
    })
}

impl Challenge {
    /// URL that requests a token to read a repository, and for the other scopes of the challenge.
    /// Only an unencrypted registry may name an unencrypted token server.
    pub(crate) fn url(&self, repository: &str, plain: bool) -> Result<Url, TokenError> {
        let refused = || TokenError::Realm(self.realm.chars().take(SHOWN).collect());
        let mut url = self.realm.parse::<Url>().map_err(|_invalid| refused())?;
        if url.scheme() != "https" && !(plain && url.scheme() == "http") {
            return Err(refused());
        }
        let own = format!("repository:{repository}:pull");
        let scopes: BTreeSet<&str> = self.scope.split_whitespace().chain([own.as_str()]).collect();
        url.query_pairs_mut()
            .extend_pairs(scopes.iter().map(|scope| ("scope", scope)))
            .extend_pairs(self.service.iter().map(|service| ("service", service)));
        Ok(url)
    }
}

/// URL truncated for errors.
pub(crate) fn shown(url: &Url) -> String {
    url.as_str().chars().take(SHOWN).collect()
}

/// Parses an answer into the `Authorization` header with its token.
pub(crate) fn read(answer: &[u8]) -> Result<HeaderValue, TokenError> {
    let answer: Answer = serde_json::from_slice(answer).map_err(|_invalid| TokenError::Format)?;
    let token = if answer.token.is_empty() {
        answer.access_token
    } else {
        answer.token
    };
    if token.is_empty() {
        return Err(TokenError::Format);
    }
    HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_invalid| TokenError::Format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_tokens_is_read() {
        let read = |texts: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for text in texts {
                headers.append(WWW_AUTHENTICATE, HeaderValue::from_static(text));
            }
            challenge(&headers)
        };
        let asked = |text: &'static str, plain: bool| {
            let url = read(&[text]).unwrap().url("team/app", plain);
            url.map(|url| url.to_string()).map_err(|error| error.to_string())
        };
        let query = "scope=repository%3Ateam%2Fapp%3Apull";
        assert_eq!(
            asked(
                r#"Bearer realm="https://auth.example/token",service="registry.example""#,
                false
            ),
            Ok(format!("https://auth.example/token?{query}&service=registry.example"))
        );
        let scope = r#"Bearer realm="https://y/t",scope="repository:team/app:pull repository:team/base:pull""#;
        assert_eq!(
            asked(scope, false),
            Ok(format!("https://y/t?{query}&scope=repository%3Ateam%2Fbase%3Apull"))
        );
        let plain = r#"bearer Realm="http://127.0.0.1/t?a=b""#;
        assert_eq!(asked(plain, true), Ok(format!("http://127.0.0.1/t?a=b&{query}")));
        asked(plain, false).unwrap_err();
        asked(r#"Bearer realm="file:///etc/shadow""#, true).unwrap_err();
        asked(r#"Bearer realm="x""#, true).unwrap_err();
        assert!(read(&[r#"Basic realm="x""#]).is_none());
        assert!(read(&[r#"Bearer service="x""#]).is_none());
        assert!(read(&[r#"Basic realm="x""#, r#"Bearer realm="https://y""#]).is_some());
        assert!(read(&[]).is_none());
    }

    #[test]
    fn tokens_go_by_two_names() {
        for (answer, wanted) in [
            (r#"{"token":"a","access_token":"b","expires_in":60}"#, Some("Bearer a")),
            (r#"{"access_token":"b"}"#, Some("Bearer b")),
            ("{}", None),
            (r#"{"token":"\n"}"#, None),
            ("no", None),
        ] {
            let found = read(answer.as_bytes()).ok();
            assert_eq!(found.as_ref().and_then(|found| found.to_str().ok()), wanted, "{answer}");
        }
    }
}
