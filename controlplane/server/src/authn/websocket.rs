//! Bearer token of a browser's WebSocket: browsers cannot set `Authorization`, so the token is
//! among the offered protocols. It is always removed: no backend may see it, and no server answers
//! with it.

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::{HeaderMap, HeaderValue};

use crate::transport::tunnel;

/// Prefix of the token's protocol; the token follows in base64url without padding.
const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";
const ENCODING: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::RequireNone),
);

/// Invalid token protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("invalid base64.bearer.authorization token encoding")]
    Encoding,
    #[error("multiple base64.bearer.authorization tokens specified")]
    Several,
    #[error("missing additional subprotocol")]
    Alone,
}

/// Removes the token from the offered protocols of a WebSocket; `None` where there is none.
pub(super) fn take_token(headers: &mut HeaderMap) -> Result<Option<String>, Refused> {
    if !tunnel::is_websocket(headers) {
        return Ok(None);
    }
    let offered: Vec<&str> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect();
    let (tokens, others): (Vec<&str>, Vec<&str>) = offered.iter().partition(|offer| offer.starts_with(PREFIX));
    let Some(encoded) = tokens.first().and_then(|token| token.strip_prefix(PREFIX)) else {
        return Ok(None);
    };
    let token = ENCODING.decode(encoded).ok();
    let token = token.and_then(|token| String::from_utf8(token).ok());
    let (count, rest) = (tokens.len(), others.join(", "));
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if count > 1 {
        return Err(Refused::Several);
    }
    let token = token.filter(|token| !token.is_empty()).ok_or(Refused::Encoding)?;
    if rest.is_empty() {
        return Err(Refused::Alone);
    }
    if let Ok(rest) = HeaderValue::from_str(&rest) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, rest);
    }
    Ok(Some(token))
}

#[cfg(test)]
mod tests {
    use http::header::UPGRADE;

    use super::*;

    /// Returns the token that was found and the remaining protocols.
    fn taken(upgrade: &str, offers: &[&str]) -> (Result<Option<String>, Refused>, Vec<String>) {
        let mut headers = HeaderMap::new();
        headers.insert("connection", HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_str(upgrade).unwrap());
        for offer in offers {
            headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(offer).unwrap());
        }
        let found = take_token(&mut headers);
        let left = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
        (found, left.map(|value| value.to_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn tokens_are_taken_out() {
        // "secret"
        let token = format!("{PREFIX}c2VjcmV0");
        let protocol = "v5.channel.k8s.io";
        let both = format!("{protocol}, {token}");
        let found = (Ok(Some("secret".to_owned())), vec![protocol.to_owned()]);
        assert_eq!(taken("websocket", &[&both]), found);
        assert_eq!(taken("WebSocket", &[&token, protocol]), found);
        assert_eq!(taken("websocket", &[protocol]), (Ok(None), vec![protocol.to_owned()]));
        assert_eq!(taken("SPDY/3.1", &[&token]), (Ok(None), vec![token.clone()]));
        assert_eq!(taken("websocket", &[&token]), (Err(Refused::Alone), vec![]));
        assert_eq!(taken("websocket", &[&token, &both]), (Err(Refused::Several), vec![]));
        for wrong in ["", "c2VjcmV0=", "c2Vj cmV0", "_w"] {
            let offer = format!("{PREFIX}{wrong}");
            assert_eq!(
                taken("websocket", &[protocol, &offer]).0,
                Err(Refused::Encoding),
                "{wrong}"
            );
        }
    }
}
