//! Texts of definitions that live as long as the process.
//!
//! Kinds of the program are constants, and the names of a kind are read wherever a request is looked at. Those of kinds
//! that are defined by objects are kept here, each once, and never freed. Only who may define kinds adds to them, and each
//! definition adds its own names (at most 253 bytes each) once, however often it is written: what is leaked is a fraction of
//! what the writes themselves leave in the ledger's history.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
static LISTS: Mutex<BTreeSet<&'static [&'static str]>> = Mutex::new(BTreeSet::new());

/// The one copy of a text.
pub fn text(text: &str) -> &'static str {
    let mut known = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(own) = known.get(text) {
        return own;
    }
    let own: &'static str = Box::leak(text.into());
    known.insert(own);
    own
}

/// The one copy of a list of texts.
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
