//! Outside of classes: groups, flags, repetitions, escapes.

use super::{PatternError, class, consumed, first, literal};

const MISSING_ARGUMENT: &str = "missing argument to repetition operator";
const BAD_REPEAT_SIZE: &str = "invalid repeat count";
const BAD_PERL: &str = "invalid or unsupported Perl syntax";
const BAD_CAPTURE: &str = "invalid named capture";

/// The most that a repetition, and those in it together, may repeat.
const MAX_REPEAT: u64 = 1000;

/// The same expression for the engine.
pub(super) fn translate(pattern: &str) -> Result<String, PatternError> {
    let mut parser = Parser {
        whole: pattern,
        rest: pattern,
        out: String::with_capacity(pattern.len() * 2),
        groups: Vec::new(),
        group: Group::default(),
        last_repeat: None,
    };
    while !parser.rest.is_empty() {
        parser.step()?;
    }
    if !parser.groups.is_empty() {
        return Err(PatternError::new("missing closing )", pattern));
    }
    Ok(parser.out)
}

/// A group that is open.
#[derive(Default)]
struct Group {
    /// Repetitions within the last term, if there is a term to repeat.
    last: Option<u64>,
    /// The most of all terms.
    most: u64,
}

struct Parser<'a> {
    whole: &'a str,
    rest: &'a str,
    out: String,
    /// The groups around the innermost one.
    groups: Vec<Group>,
    group: Group,
    /// Rest of the text at the repetition that has just been read.
    last_repeat: Option<&'a str>,
}

impl<'a> Parser<'a> {
    fn step(&mut self) -> Result<(), PatternError> {
        let before = self.rest;
        let last_repeat = self.last_repeat.take();
        let Some((character, after)) = first(before) else {
            return Ok(());
        };
        self.rest = after;
        match character {
            '(' if after.starts_with('?') => self.perl(before)?,
            '(' => self.open("(?:"),
            '|' => {
                self.out.push('|');
                self.group.last = None;
            }
            ')' => self.close()?,
            '^' | '$' | '.' => {
                self.out.push(character);
                self.term(1);
            }
            '[' => {
                self.rest = class::class(before, &mut self.out)?;
                self.term(1);
            }
            '*' | '+' | '?' => {
                self.out.push(character);
                self.repeated(before, last_repeat, None)?;
            }
            '{' => match counts(after) {
                None => self.literal('{'),
                Some((least, most, after)) => {
                    self.rest = after;
                    let is_bad = least > MAX_REPEAT || most.is_some_and(|most| most > MAX_REPEAT || least > most);
                    if is_bad {
                        return Err(PatternError::new(BAD_REPEAT_SIZE, consumed(before, after)));
                    }
                    self.out.push_str(consumed(before, after));
                    self.repeated(before, last_repeat, Some(most.unwrap_or(least)))?;
                }
            },
            '\\' => self.escape(before)?,
            other => self.literal(other),
        }
        Ok(())
    }

    /// A term that repeats what is in it so often.
    fn term(&mut self, weight: u64) {
        self.group.last = Some(weight);
        self.group.most = self.group.most.max(weight);
    }

    fn literal(&mut self, character: char) {
        literal(&mut self.out, character);
        self.term(1);
    }

    fn open(&mut self, text: &str) {
        self.out.push_str(text);
        self.groups.push(std::mem::take(&mut self.group));
    }

    fn close(&mut self) -> Result<(), PatternError> {
        let Some(around) = self.groups.pop() else {
            return Err(PatternError::new("unexpected )", self.whole));
        };
        let weight = std::mem::replace(&mut self.group, around).most.max(1);
        self.out.push(')');
        self.term(weight);
        Ok(())
    }

    /// After a repetition's operator: what may follow it, and whether there was something to repeat.
    fn repeated(
        &mut self,
        before: &'a str,
        last_repeat: Option<&'a str>,
        count: Option<u64>,
    ) -> Result<(), PatternError> {
        if let Some(after) = self.rest.strip_prefix('?') {
            self.rest = after;
            self.out.push('?');
        }
        if let Some(last) = last_repeat {
            let both = consumed(last, self.rest);
            return Err(PatternError::new("invalid nested repetition operator", both));
        }
        let Some(weight) = self.group.last else {
            return Err(PatternError::new(MISSING_ARGUMENT, consumed(before, self.rest)));
        };
        let weight = weight.saturating_mul(count.unwrap_or(1).max(1));
        if count.is_some_and(|count| count >= 2) && weight > MAX_REPEAT {
            return Err(PatternError::new(BAD_REPEAT_SIZE, consumed(before, self.rest)));
        }
        self.term(weight);
        self.last_repeat = Some(before);
        Ok(())
    }

    /// `(?flags)`, `(?flags:` and `(?P<name>`
    fn perl(&mut self, before: &'a str) -> Result<(), PatternError> {
        let after = self.rest.get(1..).unwrap_or_default();
        if let Some(name) = after.strip_prefix("P<").or_else(|| after.strip_prefix('<')) {
            let Some((name, after)) = name.split_once('>') else {
                return Err(PatternError::new(BAD_CAPTURE, before));
            };
            let is_word = |character: char| character.is_ascii_alphanumeric() || character == '_';
            if name.is_empty() || !name.chars().all(is_word) {
                return Err(PatternError::new(BAD_CAPTURE, consumed(before, after)));
            }
            self.rest = after;
            self.open("(?:");
            return Ok(());
        }
        let mut rest = after;
        let (mut is_negative, mut saw_flag) = (false, false);
        while let Some((character, after)) = first(rest) {
            rest = after;
            match character {
                'i' | 'm' | 's' | 'U' => saw_flag = true,
                '-' if !is_negative => (is_negative, saw_flag) = (true, false),
                ':' | ')' if !is_negative || saw_flag => {
                    self.rest = rest;
                    let text = consumed(before, rest);
                    if character == ':' {
                        self.open(text);
                    } else if text != "(?)" {
                        self.out.push_str(text);
                    }
                    return Ok(());
                }
                _ => break,
            }
        }
        Err(PatternError::new(BAD_PERL, consumed(before, rest)))
    }

    fn escape(&mut self, before: &'a str) -> Result<(), PatternError> {
        let Some((character, after)) = first(self.rest) else {
            return Err(PatternError::new("trailing backslash at end of expression", ""));
        };
        let known = match character {
            'A' => Some("\\A"),
            'z' => Some("\\z"),
            'b' => Some("(?-u:\\b)"),
            'B' => Some("(?-u:\\B)"),
            other => class::perl(other),
        };
        if let Some(known) = known {
            self.rest = after;
            self.out.push_str(known);
            self.term(1);
        } else if character == 'Q' {
            let (quoted, after) = after.split_once("\\E").unwrap_or((after, ""));
            self.rest = after;
            quoted.chars().for_each(|character| self.literal(character));
        } else if matches!(character, 'p' | 'P') {
            self.rest = class::unicode(before, &mut self.out)?;
            self.term(1);
        } else {
            let (character, after) = class::escaped(before)?;
            self.rest = after;
            self.literal(character);
        }
        Ok(())
    }
}

/// `n}`, `n,}` or `n,m}`: what is anything else stands for itself.
fn counts(text: &str) -> Option<(u64, Option<u64>, &str)> {
    let (least, rest) = number(text)?;
    if let Some(after) = rest.strip_prefix('}') {
        return Some((least, Some(least), after));
    }
    let rest = rest.strip_prefix(',')?;
    if let Some(after) = rest.strip_prefix('}') {
        return Some((least, None, after));
    }
    let (most, rest) = number(rest)?;
    Some((least, Some(most), rest.strip_prefix('}')?))
}

fn number(text: &str) -> Option<(u64, &str)> {
    let rest = text.trim_start_matches(|character: char| character.is_ascii_digit());
    let digits = consumed(text, rest);
    if digits.is_empty() || (digits.len() > 1 && digits.starts_with('0')) {
        return None;
    }
    Some((digits.parse().unwrap_or(u64::MAX), rest))
}
