//! Strings (`cel-go/ext/strings.go`, version 2, and members of the standard library). Positions
//! count code points.

use super::format::format;
use super::{Context, Function};
use crate::value::{Error, Value};

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "contains" => |_, args| texts(args, |text, part| text.contains(part)),
        "startsWith" => |_, args| texts(args, |text, part| text.starts_with(part)),
        "endsWith" => |_, args| texts(args, |text, part| text.ends_with(part)),
        "charAt" => char_at,
        "indexOf" => index_of,
        "lastIndexOf" => last_index_of,
        "lowerAscii" => |context, args| mapped(context, args, str::to_ascii_lowercase),
        "upperAscii" => |context, args| mapped(context, args, str::to_ascii_uppercase),
        "trim" => |context, args| mapped(context, args, |text| text.trim().to_owned()),
        "jsonpatch.escapeKey" => |context, args| mapped(context, args, escaped_key),
        "strings.quote" => |context, args| mapped(context, args, quoted),
        "replace" => replace,
        "split" => split,
        "substring" => substring,
        "join" => join,
        "format" => format,
        _ => return None,
    })
}

fn texts<'a>(args: &[Value<'a>], holds: fn(&str, &str) -> bool) -> Result<Value<'a>, Error> {
    match args {
        [Value::String(text), Value::String(part)] => Ok(Value::Bool(holds(text, part))),
        _ => Err(Error::overload()),
    }
}

fn mapped<'a>(context: &mut Context<'_>, args: &[Value<'a>], run: fn(&str) -> String) -> Result<Value<'a>, Error> {
    match args {
        [Value::String(text)] => context.text(run(text)),
        _ => Err(Error::overload()),
    }
}

/// Escapes a key for a JSON patch path (`k8s.io/apiserver/pkg/cel/library/jsonpatch.go`).
fn escaped_key(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn out_of_range(index: i64) -> Error {
    Error::new(format!("index out of range: {index}"))
}

/// Byte offset of a code point; the end is valid too.
fn place(text: &str, index: i64) -> Result<usize, Error> {
    let wanted = usize::try_from(index).map_err(|_sign| out_of_range(index))?;
    text.char_indices()
        .map(|(at, _)| at)
        .chain([text.len()])
        .nth(wanted)
        .ok_or_else(|| out_of_range(index))
}

fn char_at<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let [Value::String(text), Value::Int(index)] = args else {
        return Err(Error::overload());
    };
    let at = place(text, *index)?;
    let found = text.get(at..).and_then(|rest| rest.chars().next());
    Ok(Value::from(found.map(String::from).unwrap_or_default()))
}

fn index_of<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let (text, part, offset) = match args {
        [Value::List(_), _] => return super::lists::index_of(context, args),
        [Value::String(text), Value::String(part)] => (text, part, 0),
        [Value::String(text), Value::String(part), Value::Int(offset)] => (text, part, *offset),
        _ => return Err(Error::overload()),
    };
    if part.is_empty() {
        return Ok(Value::Int(offset));
    }
    if offset < 0 {
        return Err(out_of_range(offset));
    }
    let Ok(from) = place(text, offset) else {
        return Ok(Value::Int(-1));
    };
    let found = text.get(from..).and_then(|rest| rest.find(&**part));
    Ok(found.map_or(Value::Int(-1), |at| {
        Value::length(text.get(..from + at).map_or(0, |head| head.chars().count()))
    }))
}

fn last_index_of<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let (text, part, offset) = match args {
        [Value::List(_), _] => return super::lists::last_index_of(context, args),
        [Value::String(text), Value::String(part)] => (text, part, None),
        [Value::String(text), Value::String(part), Value::Int(offset)] => (text, part, Some(*offset)),
        _ => return Err(Error::overload()),
    };
    let length = text.chars().count();
    if part.is_empty() {
        return Ok(offset.map_or_else(|| Value::length(length), Value::Int));
    }
    let end = match offset {
        Some(offset) if offset < 0 => return Err(out_of_range(offset)),
        Some(offset) => match usize::try_from(offset).ok().filter(|offset| *offset < length) {
            // The match may begin at the offset and extend beyond it.
            Some(_) => (place(text, offset)? + part.len()).min(text.len()),
            None => return Ok(Value::Int(-1)),
        },
        None => text.len(),
    };
    let found = (0..=end)
        .rev()
        .find_map(|end| text.get(..end))
        .and_then(|head| head.rfind(&**part));
    Ok(found.map_or(Value::Int(-1), |at| {
        Value::length(text.get(..at).map_or(0, |head| head.chars().count()))
    }))
}

/// `strings.quote`
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

fn replace<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let (text, old, new, limit) = match args {
        [Value::String(text), Value::String(old), Value::String(new)] => (text, old, new, -1),
        [
            Value::String(text),
            Value::String(old),
            Value::String(new),
            Value::Int(limit),
        ] => (text, old, new, *limit),
        _ => return Err(Error::overload()),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let count = text.matches(&**old).take(limit).count();
    context.allocate(text.len().saturating_add(count.saturating_mul(new.len())))?;
    Ok(Value::from(text.replacen(&**old, new, limit)))
}

fn split<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let (text, separator, limit) = match args {
        [Value::String(text), Value::String(separator)] => (text, separator, -1),
        [Value::String(text), Value::String(separator), Value::Int(limit)] => (text, separator, *limit),
        _ => return Err(Error::overload()),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if limit == 0 {
        return Ok(Value::from(Vec::new()));
    }
    let count = if separator.is_empty() {
        text.chars().count()
    } else {
        text.matches(&**separator).count() + 1
    };
    context.allocate(text.len() + count.min(limit).saturating_mul(64))?;
    let parts: Vec<Value<'a>> = if separator.is_empty() {
        // Splits between all code points, without the empty strings at both ends.
        let mut parts = Vec::new();
        let mut rest: &str = text;
        while let Some(first) = rest.chars().next() {
            let width = if parts.len() + 1 == limit {
                rest.len()
            } else {
                first.len_utf8()
            };
            let (part, tail) = rest.split_at_checked(width).unwrap_or((rest, ""));
            parts.push(Value::from(part.to_owned()));
            rest = tail;
        }
        parts
    } else {
        text.splitn(limit, &**separator)
            .map(|part| Value::from(part.to_owned()))
            .collect()
    };
    Ok(Value::from(parts))
}

fn substring<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let (text, start, end) = match args {
        [Value::String(text), Value::Int(start)] => (text, place(text, *start)?, text.len()),
        [Value::String(_), Value::Int(start), Value::Int(end)] if start > end => {
            return Err(Error::new(format!(
                "invalid substring range. start: {start}, end: {end}"
            )));
        }
        [Value::String(text), Value::Int(start), Value::Int(end)] => (text, place(text, *start)?, place(text, *end)?),
        _ => return Err(Error::overload()),
    };
    context.text(text.get(start..end).unwrap_or_default().to_owned())
}

fn join<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let (list, separator) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::String(separator)] => (list, &**separator),
        _ => return Err(Error::overload()),
    };
    let mut joined = String::new();
    for (index, item) in list.iter().enumerate() {
        let item = item?;
        let Some(text) = item.as_str() else {
            return Err(Error::new(format!("join: invalid input: {}", item.type_name())));
        };
        let separator = if index == 0 { "" } else { separator };
        context.allocate(separator.len() + text.len())?;
        joined.push_str(separator);
        joined.push_str(text);
    }
    Ok(Value::from(joined))
}
