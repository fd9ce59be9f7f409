//! One-time codes and browser sessions. Only digests of secrets are kept, in memory: a restart ends
//! every session.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use k8s_openapi::jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::authn::identity::User;

/// Seconds within which a code must be used.
pub(crate) const CODE_LIFETIME: i64 = 60;
/// Seconds that a session lasts without a request.
pub(crate) const IDLE: i64 = 30 * 60;
/// Seconds that a session lasts in all.
const LONGEST: i64 = 12 * 60 * 60;
/// Limits of codes and sessions per user and in total; the stalest ones are dropped first.
const CODES: (usize, usize) = (4, 256);
const SESSIONS: (usize, usize) = (16, 256);

type Digest = [u8; 32];

/// Credential of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Credential {
    pub(crate) proof: Proof,
    /// Impersonation headers of the request for the code: each request of the session has them, so that
    /// the right to them is checked, and the impersonating user is recorded, as without a session.
    pub(crate) impersonation: HeaderMap,
    /// First second in which the proof is no longer valid, if that is known.
    pub(crate) until: Option<i64>,
}

/// Proof of identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Proof {
    /// User that a certificate authenticated.
    User(User),
    /// A bearer token, which is checked again with each request, and the name of its user.
    Token(String, String),
}

impl Credential {
    /// Name of the authenticated user.
    pub(crate) fn owner(&self) -> &str {
        match &self.proof {
            Proof::User(user) => &user.name,
            Proof::Token(_, name) => name,
        }
    }

    /// End of a code or session that begins now: that of the proof at the latest.
    fn end(&self, now: i64, seconds: i64) -> i64 {
        let end = now.saturating_add(seconds);
        self.until.map_or(end, |until| until.min(end))
    }
}

#[derive(Debug)]
struct Entry {
    digest: Digest,
    credential: Credential,
    /// Second of the last use.
    used: i64,
    /// Second after which it is of no use.
    until: i64,
}

/// Entries, the stalest first. So few that a walk over them is cheap.
#[derive(Debug, Default)]
struct Entries(VecDeque<Entry>);

impl Entries {
    fn put(&mut self, entry: Entry, (of_one, of_all): (usize, usize)) {
        let owner = entry.credential.owner();
        let own = self.0.iter().filter(|other| other.credential.owner() == owner).count();
        let stalest = if own >= of_one {
            self.0.iter().position(|other| other.credential.owner() == owner)
        } else {
            (self.0.len() >= of_all).then_some(0)
        };
        if let Some(stalest) = stalest {
            self.0.remove(stalest);
        }
        self.0.push_back(entry);
    }

    fn take(&mut self, digest: &Digest) -> Option<Entry> {
        let place = self.0.iter().position(|entry| entry.digest == *digest)?;
        self.0.remove(place)
    }

    fn expire(&mut self, now: i64, idle: i64) {
        self.0.retain(|entry| now < entry.until && now < entry.used + idle);
    }
}

/// Codes and sessions of one server.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<(Entries, Entries)>);

impl Sessions {
    /// A code by which one browser gets a session.
    pub(crate) fn code(&self, credential: Credential, now: Timestamp) -> String {
        let (secret, digest) = secret();
        let now = now.as_second();
        let (codes, _) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        codes.expire(now, CODE_LIFETIME);
        let entry = Entry {
            digest,
            until: credential.end(now, CODE_LIFETIME),
            credential,
            used: now,
        };
        codes.put(entry, CODES);
        secret
    }

    /// The identity behind a code, once.
    pub(crate) fn redeem(&self, code: &str, now: Timestamp) -> Option<Credential> {
        let (codes, _) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        codes.expire(now.as_second(), CODE_LIFETIME);
        Some(codes.take(&digest(code))?.credential)
    }

    /// A new session's secret.
    pub(crate) fn open(&self, credential: Credential, now: Timestamp) -> String {
        let (secret, digest) = secret();
        let now = now.as_second();
        let (_, sessions) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.expire(now, IDLE);
        let entry = Entry {
            digest,
            until: credential.end(now, LONGEST),
            credential,
            used: now,
        };
        sessions.put(entry, SESSIONS);
        secret
    }

    /// The identity of a session, which is renewed by it.
    pub(crate) fn find(&self, secret: &str, now: Timestamp) -> Option<Credential> {
        let now = now.as_second();
        let (_, sessions) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.expire(now, IDLE);
        let mut entry = sessions.take(&digest(secret))?;
        entry.used = now;
        let credential = entry.credential.clone();
        sessions.0.push_back(entry);
        Some(credential)
    }

    /// Ends a session; one that is over is no failure.
    pub(crate) fn close(&self, secret: &str) {
        let (_, sessions) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.take(&digest(secret));
    }
}

/// Secret of 256 random bits, and its digest.
fn secret() -> (String, Digest) {
    let secret = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
    let digest = digest(&secret);
    (secret, digest)
}

fn digest(secret: &str) -> Digest {
    Sha256::digest(secret).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn user(name: &str) -> Credential {
        Credential {
            proof: Proof::User(User::new(name, [])),
            impersonation: HeaderMap::new(),
            until: None,
        }
    }

    #[test]
    fn a_code_opens_one_session_within_its_time() {
        let sessions = Sessions::default();
        let code = sessions.code(user("a"), at(100));
        assert_eq!(sessions.redeem("other", at(100)), None);
        assert_eq!(sessions.redeem(&code, at(159)), Some(user("a")));
        assert_eq!(sessions.redeem(&code, at(159)), None, "a used code");
        let late = sessions.code(user("a"), at(100));
        assert_eq!(sessions.redeem(&late, at(160)), None, "an expired code");
    }

    #[test]
    fn sessions_end_when_idle_when_old_and_when_closed() {
        let sessions = Sessions::default();
        let idle = sessions.open(user("a"), at(0));
        assert_eq!(sessions.find(&idle, at(IDLE - 1)), Some(user("a")));
        assert_eq!(sessions.find(&idle, at(2 * IDLE - 2)), Some(user("a")), "use renews it");
        assert_eq!(sessions.find(&idle, at(3 * IDLE - 2)), None);
        let old = sessions.open(user("a"), at(0));
        let uses = (1..LONGEST / 60).filter(|minute| sessions.find(&old, at(minute * 60)).is_some());
        assert_eq!(uses.count(), 719);
        assert_eq!(sessions.find(&old, at(LONGEST)), None);
        let closed = sessions.open(user("a"), at(0));
        sessions.close(&closed);
        assert_eq!(sessions.find(&closed, at(0)), None);
    }

    #[test]
    fn who_opens_many_sessions_ends_his_own() {
        let sessions = Sessions::default();
        let first = sessions.open(user("first"), at(0));
        let many: Vec<String> = (0..1000).map(|_| sessions.open(user("many"), at(0))).collect();
        assert!(sessions.find(&first, at(0)).is_some());
        let left = many.iter().filter(|secret| sessions.find(secret, at(0)).is_some());
        assert_eq!(left.count(), SESSIONS.0);
        for other in 0..1000 {
            sessions.open(user(&other.to_string()), at(0));
            sessions.code(user(&other.to_string()), at(0));
        }
        let held = sessions.0.lock().unwrap();
        assert_eq!((held.0.0.len(), held.1.0.len()), (CODES.1, SESSIONS.1));
    }
}
