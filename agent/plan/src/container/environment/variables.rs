//! Variables, and texts that refer to them. All of it is untrusted, so its growth is bounded by
//! what `execve` accepts: references multiply, and an image's configuration has room for a million
//! names.

use std::collections::BTreeMap;

use super::ReferenceError;

/// Longest string that the kernel accepts in `execve`.
pub const LONGEST_VALUE: usize = 128 << 10;
/// Total size of arguments and environment that the kernel accepts, whatever its limits.
pub const MOST_BYTES: usize = 6 << 20;
/// More than any real container has; each costs more than its bytes.
pub const MOST_VARIABLES: usize = 1 << 16;

/// Variables in the order in which they were first set.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: Vec<(String, String)>,
    /// Index of each variable, by its name.
    places: BTreeMap<String, usize>,
    bytes: usize,
}

impl Environment {
    /// Returns the value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        let place = self.places.get(name)?;
        self.variables.get(*place).map(|(_, value)| value.as_str())
    }

    /// Sets a variable; an existing one keeps its place.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ReferenceError> {
        let known = self.places.get(name).copied();
        let old = known.and_then(|place| self.variables.get_mut(place));
        let (before, added) = match &old {
            Some((_, old)) => (old.len(), value.len()),
            None => (0, name.len() + value.len() + 2),
        };
        let bytes = (self.bytes - before).saturating_add(added);
        if bytes > MOST_BYTES {
            return Err(ReferenceError::TooMany);
        }
        if let Some((_, old)) = old {
            value.clone_into(old);
        } else if self.variables.len() < MOST_VARIABLES {
            self.places.insert(name.to_owned(), self.variables.len());
            self.variables.push((name.to_owned(), value.to_owned()));
        } else {
            return Err(ReferenceError::TooMany);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.variables.iter();
        all.map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// Replaces `$(NAME)` by the variable's value and `$$` by `$`; unknown references are kept.
pub fn expand(text: &str, variables: &Environment) -> Result<String, ReferenceError> {
    replace(text, |name| Ok(variables.get(name)))
}

/// Expands the words of a command, within what `execve` accepts.
pub fn expand_all(words: &[String], variables: &Environment) -> Result<Vec<String>, ReferenceError> {
    let mut left = MOST_BYTES;
    let expanded = words.iter().map(|word| {
        let word = expand(word, variables)?;
        left = left.checked_sub(word.len()).ok_or(ReferenceError::TooMany)?;
        Ok(word)
    });
    expanded.collect()
}

/// Like [`expand`], for a path, which must not contain a reference to an unknown or empty variable.
pub fn expand_known(text: &str, variables: &Environment) -> Result<String, ReferenceError> {
    replace(text, |name| {
        match variables.get(name).filter(|value| !value.is_empty()) {
            Some(value) => Ok(Some(value)),
            None => Err(ReferenceError::Variable(name.to_owned())),
        }
    })
}

fn replace<'v>(
    text: &str,
    lookup: impl Fn(&str) -> Result<Option<&'v str>, ReferenceError>,
) -> Result<String, ReferenceError> {
    // A text that is too long without its references is left to the kernel's limit.
    let longest = LONGEST_VALUE.max(text.len());
    let mut expanded = String::new();
    let mut push = |piece: &str| {
        if expanded.len() + piece.len() > longest {
            return Err(ReferenceError::TooLong);
        }
        expanded.push_str(piece);
        Ok(())
    };
    let (mut rest, mut ends) = (text, true);
    while let Some((before, after)) = rest.split_once('$') {
        push(before)?;
        // A reference without a closing parenthesis here means none further on: the search is not
        // repeated.
        let reference = after.strip_prefix('(').filter(|_| ends);
        let reference = reference.map(|after| after.split_once(')'));
        if let Some(after) = after.strip_prefix('$') {
            push("$")?;
            rest = after;
        } else if let Some(Some((name, after))) = reference {
            if let Some(value) = lookup(name)? {
                push(value)?;
            } else {
                push("$(")?;
                push(name)?;
                push(")")?;
            }
            rest = after;
        } else {
            ends = ends && reference.is_none();
            push("$")?;
            rest = after;
        }
    }
    push(rest)?;
    Ok(expanded)
}
