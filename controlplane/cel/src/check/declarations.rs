//! Types of all functions, as a table in text: `receiver: name(arguments) -> result`, with the
//! receiver only for member functions. Capital letters are type parameters; a line with
//! `comparable`, `summable` or `number` stands for one line for each type of that group, or for
//! each pair of them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::functions;
use crate::types::Type;

/// An overload of a function.
#[derive(Debug)]
pub(crate) struct Overload {
    pub(crate) member: bool,
    /// Receiver first.
    pub(crate) arguments: Vec<Type>,
    pub(crate) result: Type,
}

const TABLE: &str = "
_?_:_(bool, A, A) -> A
_&&_(bool, bool) -> bool
_||_(bool, bool) -> bool
!_(bool) -> bool
@not_strictly_false(bool) -> bool
_==_(A, A) -> bool
_!=_(A, A) -> bool
_+_(bytes, bytes) -> bytes
_+_(double, double) -> double
_+_(duration, duration) -> duration
_+_(duration, timestamp) -> timestamp
_+_(timestamp, duration) -> timestamp
_+_(int, int) -> int
_+_(list<A>, list<A>) -> list<A>
_+_(string, string) -> string
_+_(uint, uint) -> uint
_/_(double, double) -> double
_/_(int, int) -> int
_/_(uint, uint) -> uint
_%_(int, int) -> int
_%_(uint, uint) -> uint
_*_(double, double) -> double
_*_(int, int) -> int
_*_(uint, uint) -> uint
-_(double) -> double
-_(int) -> int
_-_(double, double) -> double
_-_(duration, duration) -> duration
_-_(int, int) -> int
_-_(timestamp, duration) -> timestamp
_-_(timestamp, timestamp) -> duration
_-_(uint, uint) -> uint
_<_(ordered, ordered) -> bool
_<=_(ordered, ordered) -> bool
_>_(ordered, ordered) -> bool
_>=_(ordered, ordered) -> bool
_[_](list<A>, int) -> A
_[_](map<A, B>, A) -> B
_[_](optional<list<V>>, int) -> optional<V>
_[_](optional<map<K, V>>, K) -> optional<V>
_[?_](list<V>, int) -> optional<V>
_[?_](optional<list<V>>, int) -> optional<V>
_[?_](map<K, V>, K) -> optional<V>
_[?_](optional<map<K, V>>, K) -> optional<V>
@in(A, list<A>) -> bool
@in(A, map<A, B>) -> bool
size(bytes) -> int
bytes: size() -> int
size(list<A>) -> int
list<A>: size() -> int
size(map<A, B>) -> int
map<A, B>: size() -> int
size(string) -> int
string: size() -> int
type(A) -> type<A>
bool(bool) -> bool
bool(string) -> bool
bytes(bytes) -> bytes
bytes(string) -> bytes
double(double) -> double
double(int) -> double
double(string) -> double
double(uint) -> double
duration(duration) -> duration
duration(int) -> duration
duration(string) -> duration
dyn(A) -> dyn
int(int) -> int
int(double) -> int
int(duration) -> int
int(string) -> int
int(timestamp) -> int
int(uint) -> int
string(string) -> string
string(bool) -> string
string(bytes) -> string
string(double) -> string
string(duration) -> string
string(int) -> string
string(timestamp) -> string
string(uint) -> string
string(net.IP) -> string
string(net.CIDR) -> string
timestamp(timestamp) -> timestamp
timestamp(int) -> timestamp
timestamp(string) -> timestamp
uint(uint) -> uint
uint(double) -> uint
uint(int) -> uint
uint(string) -> uint
string: contains(string) -> bool
string: endsWith(string) -> bool
string: startsWith(string) -> bool
matches(string, string) -> bool
string: matches(string) -> bool
clocked: getFullYear
clocked: getMonth
clocked: getDayOfYear
clocked: getDayOfMonth
clocked: getDate
clocked: getDayOfWeek
clocked: getHours
clocked: getMinutes
clocked: getSeconds
clocked: getMilliseconds
duration: getHours() -> int
duration: getMinutes() -> int
duration: getSeconds() -> int
duration: getMilliseconds() -> int
string: charAt(int) -> string
string: indexOf(string) -> int
string: indexOf(string, int) -> int
string: lastIndexOf(string) -> int
string: lastIndexOf(string, int) -> int
string: lowerAscii() -> string
string: replace(string, string) -> string
string: replace(string, string, int) -> string
string: split(string) -> list<string>
string: split(string, int) -> list<string>
string: substring(int) -> string
string: substring(int, int) -> string
string: trim() -> string
string: upperAscii() -> string
string: format(list<dyn>) -> string
jsonpatch.escapeKey(string) -> string
strings.quote(string) -> string
list<string>: join() -> string
list<string>: join(string) -> string
list<comparable>: isSorted() -> bool
list<summable>: sum() -> summable
list<comparable>: max() -> comparable
list<comparable>: min() -> comparable
list<A>: indexOf(A) -> int
list<A>: lastIndexOf(A) -> int
list<T>: slice(int, int) -> list<T>
list<list<T>>: flatten() -> list<T>
list<dyn>: flatten(int) -> list<dyn>
list<comparable>: sort() -> list<comparable>
@sortByAssociatedKeys(list<T>, list<comparable>) -> list<T>
lists.range(int) -> list<int>
list<T>: reverse() -> list<T>
list<T>: distinct() -> list<T>
sets.contains(list<T>, list<T>) -> bool
sets.equivalent(list<T>, list<T>) -> bool
sets.intersects(list<T>, list<T>) -> bool
cel.@mapInsert(map<K, V>, K, V) -> map<K, V>
cel.@mapInsert(map<K, V>, map<K, V>) -> map<K, V>
string: find(string) -> string
string: findAll(string) -> list<string>
string: findAll(string, int) -> list<string>
url(string) -> kubernetes.URL
isURL(string) -> bool
kubernetes.URL: getScheme() -> string
kubernetes.URL: getHost() -> string
kubernetes.URL: getHostname() -> string
kubernetes.URL: getPort() -> string
kubernetes.URL: getEscapedPath() -> string
kubernetes.URL: getQuery() -> map<string, list<string>>
ip(string) -> net.IP
isIP(string) -> bool
ip.isCanonical(string) -> bool
net.IP: family() -> int
net.IP: isUnspecified() -> bool
net.IP: isLoopback() -> bool
net.IP: isLinkLocalMulticast() -> bool
net.IP: isLinkLocalUnicast() -> bool
net.IP: isGlobalUnicast() -> bool
cidr(string) -> net.CIDR
isCIDR(string) -> bool
net.CIDR: containsIP(string) -> bool
net.CIDR: containsIP(net.IP) -> bool
net.CIDR: containsCIDR(string) -> bool
net.CIDR: containsCIDR(net.CIDR) -> bool
net.CIDR: ip() -> net.IP
net.CIDR: prefixLength() -> int
net.CIDR: masked() -> net.CIDR
quantity(string) -> kubernetes.Quantity
isQuantity(string) -> bool
sign(kubernetes.Quantity) -> int
kubernetes.Quantity: isGreaterThan(kubernetes.Quantity) -> bool
kubernetes.Quantity: isLessThan(kubernetes.Quantity) -> bool
kubernetes.Quantity: compareTo(kubernetes.Quantity) -> int
kubernetes.Quantity: asApproximateFloat() -> double
kubernetes.Quantity: asInteger() -> int
kubernetes.Quantity: isInteger() -> bool
kubernetes.Quantity: add(kubernetes.Quantity) -> kubernetes.Quantity
kubernetes.Quantity: add(int) -> kubernetes.Quantity
kubernetes.Quantity: sub(kubernetes.Quantity) -> kubernetes.Quantity
kubernetes.Quantity: sub(int) -> kubernetes.Quantity
semver(string) -> kubernetes.Semver
semver(string, bool) -> kubernetes.Semver
isSemver(string) -> bool
isSemver(string, bool) -> bool
kubernetes.Semver: isGreaterThan(kubernetes.Semver) -> bool
kubernetes.Semver: isLessThan(kubernetes.Semver) -> bool
kubernetes.Semver: compareTo(kubernetes.Semver) -> int
kubernetes.Semver: major() -> int
kubernetes.Semver: minor() -> int
kubernetes.Semver: patch() -> int
format.named(string) -> optional<kubernetes.NamedFormat>
kubernetes.NamedFormat: validate(string) -> optional<list<string>>
optional.of(V) -> optional<V>
optional.ofNonZeroValue(V) -> optional<V>
optional.none() -> optional<V>
optional<V>: value() -> V
optional<V>: hasValue() -> bool
optional<V>: or(optional<V>) -> optional<V>
optional<V>: orValue(V) -> V
optional.unwrap(list<optional<V>>) -> list<V>
list<optional<V>>: unwrapOpt() -> list<V>
list<T>: first() -> optional<T>
list<T>: last() -> optional<T>
kubernetes.authorization.Authorizer: path(string) -> kubernetes.authorization.PathCheck
kubernetes.authorization.Authorizer: group(string) -> kubernetes.authorization.GroupCheck
kubernetes.authorization.Authorizer: serviceAccount(string, string) -> kubernetes.authorization.Authorizer
kubernetes.authorization.GroupCheck: resource(string) -> kubernetes.authorization.ResourceCheck
kubernetes.authorization.ResourceCheck: subresource(string) -> kubernetes.authorization.ResourceCheck
kubernetes.authorization.ResourceCheck: namespace(string) -> kubernetes.authorization.ResourceCheck
kubernetes.authorization.ResourceCheck: name(string) -> kubernetes.authorization.ResourceCheck
kubernetes.authorization.ResourceCheck: fieldSelector(string) -> kubernetes.authorization.ResourceCheck
kubernetes.authorization.ResourceCheck: labelSelector(string) -> kubernetes.authorization.ResourceCheck
kubernetes.authorization.PathCheck: check(string) -> kubernetes.authorization.Decision
kubernetes.authorization.ResourceCheck: check(string) -> kubernetes.authorization.Decision
kubernetes.authorization.Decision: errored() -> bool
kubernetes.authorization.Decision: error() -> string
kubernetes.authorization.Decision: allowed() -> bool
kubernetes.authorization.Decision: reason() -> string
";

const SUMMABLE: &[&str] = &["int", "uint", "double", "duration"];
const COMPARABLE: &[&str] = &[
    "int",
    "uint",
    "double",
    "bool",
    "duration",
    "timestamp",
    "string",
    "bytes",
];
const NUMBERS: &[&str] = &["int", "uint", "double"];

/// Names of library types.
const OPAQUE: &[&str] = &[
    "kubernetes.URL",
    "net.IP",
    "net.CIDR",
    "kubernetes.Quantity",
    "kubernetes.Semver",
    "kubernetes.NamedFormat",
    "kubernetes.authorization.Authorizer",
    "kubernetes.authorization.PathCheck",
    "kubernetes.authorization.GroupCheck",
    "kubernetes.authorization.ResourceCheck",
    "kubernetes.authorization.Decision",
];

type Table = BTreeMap<String, Vec<Overload>>;

/// Overloads of a function.
pub(crate) fn overloads(function: &str) -> Option<&'static [Overload]> {
    static DECLARED: LazyLock<Table> = LazyLock::new(table);
    DECLARED.get(function).map(Vec::as_slice)
}

fn table() -> Table {
    let mut declared = Table::new();
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        for line in expanded(line) {
            if let Some((name, overload)) = parse(&line) {
                declared.entry(name).or_default().push(overload);
            }
        }
    }
    for name in functions::format_names() {
        let overload = Overload {
            member: false,
            arguments: Vec::new(),
            result: Type::Opaque("kubernetes.NamedFormat"),
        };
        declared.insert(format!("format.{name}"), vec![overload]);
    }
    declared
}

/// Expands a line with a group into a line for each type.
fn expanded(line: &str) -> Vec<String> {
    for (group, types) in [("summable", SUMMABLE), ("comparable", COMPARABLE)] {
        if line.contains(group) {
            return types.iter().map(|one| line.replace(group, one)).collect();
        }
    }
    if let Some(name) = line.strip_suffix("(ordered, ordered) -> bool") {
        let mut lines: Vec<String> = COMPARABLE
            .iter()
            .map(|one| format!("{name}({one}, {one}) -> bool"))
            .collect();
        for left in NUMBERS {
            for right in NUMBERS.iter().filter(|right| *right != left) {
                lines.push(format!("{name}({left}, {right}) -> bool"));
            }
        }
        return lines;
    }
    if let Some(name) = line.strip_prefix("clocked: ") {
        return vec![
            format!("timestamp: {name}() -> int"),
            format!("timestamp: {name}(string) -> int"),
        ];
    }
    vec![line.to_owned()]
}

fn parse(line: &str) -> Option<(String, Overload)> {
    let (head, result) = line.rsplit_once(" -> ")?;
    // `_?_:_` contains a colon, too, but no space after it.
    let (receiver, call) = head
        .split_once(": ")
        .map_or((None, head), |(receiver, call)| (Some(receiver), call));
    let (name, arguments) = call.split_once('(')?;
    let mut types: Vec<Type> = receiver.map(named).into_iter().collect::<Option<_>>()?;
    types.extend(all_named(arguments.strip_suffix(')')?)?);
    let overload = Overload {
        member: receiver.is_some(),
        arguments: types,
        result: named(result)?,
    };
    Some((name.to_owned(), overload))
}

/// Parses types separated by commas.
fn all_named(text: &str) -> Option<Vec<Type>> {
    let mut found = Vec::new();
    let mut start = 0;
    let mut depth = 0_usize;
    for (at, character) in text.char_indices().chain([(text.len(), ',')]) {
        match character {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                let one = text.get(start..at)?.trim();
                if !one.is_empty() {
                    found.push(named(one)?);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    Some(found)
}

/// Parses a type.
pub(crate) fn named(text: &str) -> Option<Type> {
    if let Some((outer, inner)) = text.strip_suffix('>').and_then(|text| text.split_once('<')) {
        let mut inner = all_named(inner)?.into_iter();
        let first = inner.next()?;
        return Some(match outer {
            "list" => Type::list(first),
            "optional" => Type::optional(first),
            "type" => Type::Type(first.into()),
            _ => Type::map(first, inner.next()?),
        });
    }
    Some(match text {
        "dyn" => Type::Dyn,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "timestamp" | "google.protobuf.Timestamp" => Type::Timestamp,
        "duration" | "google.protobuf.Duration" => Type::Duration,
        "null_type" => Type::Null,
        _ => {
            if let Some(name) = OPAQUE.iter().find(|name| **name == text) {
                return Some(Type::Opaque(name));
            }
            let mut characters = text.chars();
            let first = characters.next().filter(char::is_ascii_uppercase)?;
            return characters.next().is_none().then_some(Type::Param(first));
        }
    })
}

/// The type that an identifier denotes.
pub(crate) fn type_identifier(name: &str) -> Option<Type> {
    let of = match name {
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "optional_type" => Type::optional(Type::Dyn),
        "type" => Type::Type(Type::Dyn.into()),
        "timestamp" | "duration" => return None,
        _ => named(name).filter(|found| !matches!(found, Type::Param(_) | Type::Dyn))?,
    };
    Some(Type::Type(of.into()))
}
