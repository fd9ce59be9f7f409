//! Redirects of registries and of those who make their tokens.

use reqwest::header::LOCATION;
use reqwest::{Response, StatusCode, Url};

/// Longest chain, as Go's client has it (`net/http/client.go`).
const LONGEST: usize = 10;

/// A redirect that is not followed.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// There is no end of them.
    #[error("stopped after {LONGEST} redirects")]
    TooMany,
    /// Its `Location` is missing, or no address of HTTP.
    #[error("{0} response has no Location that can be asked")]
    Location(StatusCode),
}

/// Those of one request.
#[derive(Default)]
pub(crate) struct Redirects(usize);

impl Redirects {
    /// The address that an answer redirects to.
    pub(crate) fn next(&mut self, response: &Response) -> Result<Option<Url>, RedirectError> {
        let status = response.status();
        if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let next = location.and_then(|location| response.url().join(location).ok());
        let next = next.filter(|next| ["http", "https"].contains(&next.scheme()));
        let next = next.ok_or(RedirectError::Location(status))?;
        self.0 += 1;
        if self.0 > LONGEST {
            return Err(RedirectError::TooMany);
        }
        Ok(Some(next))
    }
}
