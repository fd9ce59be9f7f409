//! Field selectors.

use super::SelectorError;

/// A conjunction of requirements on fields.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FieldSelector {
    requirements: Vec<(String, bool, String)>,
}

impl FieldSelector {
    /// Parses the text of a query parameter: `a=b,c==d,e!=f`; a backslash escapes `,`, `=` and
    /// itself.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for term in split(text, ',') {
            if term.is_empty() {
                continue;
            }
            let bad = || SelectorError::Term {
                text: text.to_owned(),
                term: term.clone(),
            };
            let (label, equal, value) = if let Some((label, value)) = term.split_once("!=") {
                (label, false, value)
            } else if let Some((label, value)) = term.split_once("==") {
                (label, true, value)
            } else {
                let (label, value) = term.split_once('=').ok_or_else(bad)?;
                (label, true, value)
            };
            requirements.push((label.to_owned(), equal, unescape(value).ok_or_else(bad)?));
        }
        Ok(Self { requirements })
    }

    /// Names of the fields in the selector.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.requirements.iter().map(|(label, _, _)| label.as_str())
    }

    /// Selector with other names for the fields.
    #[must_use]
    pub fn renamed(mut self, name: impl Fn(&str) -> String) -> Self {
        for (label, _, _) in &mut self.requirements {
            *label = name(label);
        }
        self
    }

    /// Value that a field must equal, if any: turns a list by name into a get.
    pub fn exact(&self, label: &str) -> Option<&str> {
        let found = self
            .requirements
            .iter()
            .find(|(name, equal, _)| name == label && *equal);
        found.map(|(_, _, value)| value.as_str())
    }

    /// True if fields satisfy every requirement; a field that `value` does not know is empty.
    pub fn matches<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements
            .iter()
            .all(|(label, equal, wanted)| (value(label).unwrap_or_default() == wanted) == *equal)
    }

    /// True if every object matches.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }
}

fn split(text: &str, at: char) -> Vec<String> {
    let (mut terms, mut term, mut escaped) = (Vec::new(), String::new(), false);
    for c in text.chars() {
        if c == at && !escaped {
            terms.push(std::mem::take(&mut term));
        } else {
            term.push(c);
        }
        escaped = c == '\\' && !escaped;
    }
    terms.push(term);
    terms
}

/// Resolves escapes. None if a special character is not escaped, or another one is.
fn unescape(text: &str) -> Option<String> {
    let mut plain = String::new();
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => plain.push(characters.next().filter(|next| ['\\', ',', '='].contains(next))?),
            ',' | '=' => return None,
            c => plain.push(c),
        }
    }
    Some(plain)
}
