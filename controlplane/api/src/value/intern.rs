//! Interned strings of custom kinds, which live as long as the process.
//!
//! Names of built-in kinds are constants, and the names of a kind are used for every request. Those
//! of kinds that objects define are kept here, once each, and are never freed. Only users who may
//! define kinds add to them, and each definition adds its own names (at most 253 bytes each) once,
//! however often it is written: the leak is a fraction of what the writes themselves leave in the
//! ledger's history.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
static LISTS: Mutex<BTreeSet<&'static [&'static str]>> = Mutex::new(BTreeSet::new());

/// Interns a string.
pub fn text(text: &str) -> &'static str {
    let mut known = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(own) = known.get(text) {
        return own;
    }
    let own: &'static str = Box::leak(text.into());
    known.insert(own);
    own
}

/// Interns a list of strings.
pub fn list(texts: &[String]) -> &'static [&'static str] {
    let list: Vec<&'static str> = texts.iter().map(|own| text(own)).collect();
    let mut known = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(own) = known.get(list.as_slice()) {
        return own;
    }
    let own: &'static [&'static str] = Box::leak(list.into());
    known.insert(own);
    own
}
