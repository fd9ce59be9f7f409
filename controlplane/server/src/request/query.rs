//! Query parameters: decoded pairs, with upstream's parsing of booleans and numbers.

use std::time::Duration;

use api::duration;

use crate::request::failure::Failure;
use crate::request::path::percent_decode;

/// Decoded pairs in the order in which they were sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Parses `a=1&b=x%20y`.
    ///
    /// # Errors
    /// 400 for a malformed escape or bytes that are not UTF-8.
    pub fn parse(raw: Option<&str>) -> Result<Self, Failure> {
        let mut pairs = Vec::new();
        for pair in raw.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((decode(name)?, decode(value)?));
        }
        Ok(Self { pairs })
    }

    /// The first value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| value.as_str())
    }

    /// A parameter's value unless it is absent or empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// Values of a parameter.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs
            .iter()
            .filter(move |(own, _)| own == name)
            .map(|(_, value)| value.as_str())
    }

    /// A boolean as `meta/v1` converts it: absent, `false` and `0` are false, anything else is true.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| {
            let value = value.to_ascii_lowercase();
            value != "false" && value != "0"
        })
    }

    /// Like [`Query::flag`], but `None` when the parameter is absent.
    pub fn optional_flag(&self, name: &str) -> Option<bool> {
        self.get(name).map(|_| self.flag(name))
    }

    /// The time that the client would wait for an answer, where it says one.
    ///
    /// # Errors
    /// 400 with Go's error message for an invalid one.
    pub fn timeout(&self) -> Result<Option<Duration>, Failure> {
        let wrong = |error| Failure::bad_request(format!("invalid timeout specified in the request URL - {error}"));
        let timeout = self.text("timeout").map(duration::parse).transpose().map_err(wrong)?;
        let timeout = timeout.and_then(|nanoseconds| u64::try_from(nanoseconds).ok());
        Ok(timeout.filter(|timeout| *timeout > 0).map(Duration::from_nanos))
    }

    /// A whole number.
    ///
    /// # Errors
    /// 400 with Go's error message for an invalid one.
    pub fn number(&self, name: &str) -> Result<Option<i64>, Failure> {
        self.text(name)
            .map(|value| {
                value.parse().map_err(|_error| {
                    Failure::bad_request(format!("strconv.ParseInt: parsing {value:?}: invalid syntax"))
                })
            })
            .transpose()
    }
}

fn decode(raw: &str) -> Result<String, Failure> {
    let spaced = raw.replace('+', " ");
    percent_decode(spaced.as_bytes())
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| Failure::bad_request(format!("invalid URL escape in query parameter {raw:?}")))
}
