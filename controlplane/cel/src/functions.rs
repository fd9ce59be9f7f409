//! Functions of Kubernetes' environment (`k8s.io/apiserver/pkg/cel/environment/base.go`), one file
//! per library.

mod authorizer;
mod format;
mod lists;
mod names;
mod net;
mod optional;
mod quantity;
mod regex;
mod semver;
mod standard;
mod strings;
mod url;

use std::collections::BTreeMap;
use std::sync::Arc;

use ::regex::Regex;

pub(crate) use format::check_literal as check_format;
pub(crate) use lists::sum_of;
pub(crate) use names::all as format_names;
pub(crate) use regex::compile as compile_regex;
pub(crate) use standard::add;

use crate::value::{Error, Value};

/// A function of its arguments; a receiver is the first one.
pub(crate) type Function = for<'a> fn(&mut Context<'_>, &[Value<'a>]) -> Result<Value<'a>, Error>;

/// Most bytes of strings and lists that one evaluation may allocate.
const MAX_ALLOCATED: usize = 32 * 1024 * 1024;

/// State that functions share during one evaluation.
pub(crate) struct Context<'p> {
    allocated: usize,
    /// Patterns of literals in the program.
    known: &'p BTreeMap<String, Regex>,
    /// Patterns compiled during the evaluation.
    met: BTreeMap<String, Arc<Regex>>,
}

impl<'p> Context<'p> {
    pub(crate) fn new(known: &'p BTreeMap<String, Regex>) -> Self {
        Self {
            allocated: 0,
            known,
            met: BTreeMap::new(),
        }
    }

    /// Charges strings or items that are about to be allocated.
    pub(crate) fn allocate(&mut self, size: usize) -> Result<(), Error> {
        self.allocated = self.allocated.saturating_add(size);
        if self.allocated > MAX_ALLOCATED {
            return Err(Error::Cost);
        }
        Ok(())
    }

    fn text<'a>(&mut self, text: String) -> Result<Value<'a>, Error> {
        self.allocate(text.len())?;
        Ok(Value::from(text))
    }
}

/// Looks up a function by its name.
pub(crate) fn find(name: &str) -> Option<Function> {
    standard::find(name)
        .or_else(|| strings::find(name))
        .or_else(|| lists::find(name))
        .or_else(|| regex::find(name))
        .or_else(|| url::find(name))
        .or_else(|| net::find(name))
        .or_else(|| quantity::find(name))
        .or_else(|| semver::find(name))
        .or_else(|| names::find(name))
        .or_else(|| optional::find(name))
        .or_else(|| authorizer::find(name))
}
