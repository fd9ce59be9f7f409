//! Lists and sets (`k8s.io/apiserver/pkg/cel/library/lists.go`, `cel-go/ext/lists.go`,
//! `cel-go/ext/sets.go`).

use std::cmp::Ordering;

use super::standard::{add, two};
use super::{Context, Function};
use crate::types::Type;
use crate::value::json::List;
use crate::value::{Error, Value};

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "isSorted" => is_sorted,
        "sum" => sum_of(&Type::Int),
        "min" => |_, args| extreme(args, "min", Ordering::Greater),
        "max" => |_, args| extreme(args, "max", Ordering::Less),
        "slice" => slice,
        "flatten" => flatten,
        "sort" => |context, args| match args {
            [Value::List(list)] => sorted(context, list, list),
            _ => Err(Error::overload()),
        },
        "@sortByAssociatedKeys" => |context, args| match args {
            [Value::List(list), Value::List(keys)] => sorted(context, list, keys),
            _ => Err(Error::overload()),
        },
        "lists.range" => range,
        "reverse" => reverse,
        "distinct" => distinct,
        "sets.contains" => |_, args| sets(args, |left, right| Ok(Value::Bool(holds(left, right)))),
        "sets.equivalent" => |_, args| {
            sets(args, |left, right| {
                Ok(Value::Bool(holds(left, right) && holds(right, left)))
            })
        },
        "sets.intersects" => |_, args| {
            sets(args, |left, right| {
                Ok(Value::Bool(
                    left.iter().any(|item| right.iter().any(|other| item.equals(other))),
                ))
            })
        },
        "cel.@mapInsert" => insert,
        _ => return None,
    })
}

fn only_list<'l, 'a>(args: &'l [Value<'a>]) -> Result<&'l List<'a>, Error> {
    match args {
        [Value::List(list)] => Ok(list),
        _ => Err(Error::overload()),
    }
}

/// Charges a list of values and creates it.
fn made<'a>(context: &mut Context<'_>, items: Vec<Value<'a>>) -> Result<Value<'a>, Error> {
    context.allocate(items.len().saturating_mul(size_of::<Value<'_>>()))?;
    Ok(Value::from(items))
}

fn is_sorted<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let items = only_list(args)?.to_vec()?;
    for (left, right) in items.iter().zip(items.iter().skip(1)) {
        if left.compare(right)?.is_gt() {
            return Ok(Value::Bool(false));
        }
    }
    Ok(Value::Bool(true))
}

/// The sum function for items of a type.
pub(crate) fn sum_of(items: &Type) -> Function {
    match items {
        Type::Uint => |context, args| sum(context, args, Value::Uint(0)),
        Type::Double => |context, args| sum(context, args, Value::Double(0.0)),
        Type::Duration => |context, args| sum(context, args, Value::Duration(0)),
        _ => |context, args| sum(context, args, Value::Int(0)),
    }
}

fn sum<'a>(context: &mut Context<'_>, args: &[Value<'a>], zero: Value<'a>) -> Result<Value<'a>, Error> {
    let list = only_list(args)?;
    let mut total: Option<Value<'a>> = None;
    for item in list.iter() {
        let item = item?;
        total = Some(match total {
            Some(total) => add(context, total, &item)?,
            None => item,
        });
    }
    Ok(total.unwrap_or(zero))
}

fn extreme<'a>(args: &[Value<'a>], name: &str, prefer: Ordering) -> Result<Value<'a>, Error> {
    let mut found: Option<Value<'a>> = None;
    for item in only_list(args)?.iter() {
        let item = item?;
        let better = match &found {
            Some(found) => found.compare(&item)? == prefer,
            None => true,
        };
        if better {
            found = Some(item);
        }
    }
    found.ok_or_else(|| Error::new(format!("{name} called on empty list")))
}

pub(super) fn index_of<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    two(args, |list, item| {
        let Value::List(list) = list else {
            return Err(Error::overload());
        };
        let place = list.to_vec()?.iter().position(|other| other.equals(item));
        Ok(place.map_or(Value::Int(-1), Value::length))
    })
}

pub(super) fn last_index_of<'a>(_: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    two(args, |list, item| {
        let Value::List(list) = list else {
            return Err(Error::overload());
        };
        let place = list.to_vec()?.iter().rposition(|other| other.equals(item));
        Ok(place.map_or(Value::Int(-1), Value::length))
    })
}

fn slice<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let [Value::List(list), Value::Int(start), Value::Int(end)] = args else {
        return Err(Error::overload());
    };
    let refuse = |why: String| Err(Error::new(format!("cannot slice({start}, {end}), {why}")));
    let (Ok(from), Ok(to)) = (usize::try_from(*start), usize::try_from(*end)) else {
        return refuse("negative indexes not supported".to_owned());
    };
    if from > to {
        return refuse("start index must be less than or equal to end index".to_owned());
    }
    if to > list.len() {
        return refuse(format!("list is length {}", list.len()));
    }
    let items = list.iter().skip(from).take(to - from).collect::<Result<Vec<_>, _>>()?;
    made(context, items)
}

fn flatten<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let (list, depth) = match args {
        [Value::List(list)] => (list, 1),
        [Value::List(list), Value::Int(depth)] => (list, *depth),
        _ => return Err(Error::overload()),
    };
    if depth < 0 {
        return Err(Error::new("level must be non-negative"));
    }
    let mut flat = Vec::new();
    flatten_into(context, list, depth, &mut flat)?;
    made(context, flat)
}

fn flatten_into<'a>(
    context: &mut Context<'_>,
    list: &List<'a>,
    depth: i64,
    out: &mut Vec<Value<'a>>,
) -> Result<(), Error> {
    for item in list.iter() {
        match item? {
            Value::List(inner) if depth > 0 => flatten_into(context, &inner, depth - 1, out)?,
            other => {
                context.allocate(1)?;
                out.push(other);
            }
        }
    }
    Ok(())
}

fn sorted<'a>(context: &mut Context<'_>, list: &List<'a>, keys: &List<'a>) -> Result<Value<'a>, Error> {
    if list.len() != keys.len() {
        return Err(Error::new(format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} \
             elements respectively",
            list.len(),
            keys.len()
        )));
    }
    let mut pairs: Vec<_> = keys.to_vec()?.into_iter().zip(list.to_vec()?).collect();
    if let Some((first, _)) = pairs.first() {
        for (key, _) in &pairs {
            if key.type_name() != first.type_name() {
                return Err(Error::new("list elements must have the same type"));
            }
            if !matches!(key, Value::Double(number) if number.is_nan()) {
                key.compare(key)
                    .map_err(|_overload| Error::new("list elements must be comparable"))?;
            }
        }
    }
    pairs.sort_by(|(left, _), (right, _)| left.compare(right).unwrap_or(Ordering::Equal));
    made(context, pairs.into_iter().map(|(_, item)| item).collect())
}

fn range<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let [Value::Int(end)] = args else {
        return Err(Error::overload());
    };
    let length = usize::try_from(*end).unwrap_or(0);
    context.allocate(length.saturating_mul(size_of::<Value<'_>>()))?;
    Ok(Value::from((0..*end).map(Value::Int).collect::<Vec<_>>()))
}

fn reverse<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let mut items = only_list(args)?.to_vec()?;
    items.reverse();
    made(context, items)
}

fn distinct<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let mut unique: Vec<Value<'a>> = Vec::new();
    for item in only_list(args)?.iter() {
        let item = item?;
        if !unique.iter().any(|known| known.equals(&item)) {
            unique.push(item);
        }
    }
    made(context, unique)
}

fn sets<'a>(
    args: &[Value<'a>],
    run: impl FnOnce(&[Value<'a>], &[Value<'a>]) -> Result<Value<'a>, Error>,
) -> Result<Value<'a>, Error> {
    match args {
        [Value::List(left), Value::List(right)] => run(&left.to_vec()?, &right.to_vec()?),
        _ => Err(Error::overload()),
    }
}

fn holds(all: &[Value<'_>], part: &[Value<'_>]) -> bool {
    part.iter().all(|item| all.iter().any(|other| item.equals(other)))
}

fn insert<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    match args {
        [Value::Map(map), key, value] => {
            context.allocate(2 * size_of::<Value<'_>>())?;
            let key = key
                .to_key()
                .ok_or_else(|| Error::new(format!("unsupported key type: {}", key.type_name())))?;
            map.clone().insert(key, value.clone()).map(Value::Map)
        }
        [Value::Map(map), Value::Map(more)] => {
            let mut map = map.clone();
            for key in more.keys() {
                context.allocate(2 * size_of::<Value<'_>>())?;
                if let Some(value) = more.get(&key) {
                    map = map.insert(key, value?)?;
                }
            }
            Ok(Value::Map(map))
        }
        _ => Err(Error::overload()),
    }
}
