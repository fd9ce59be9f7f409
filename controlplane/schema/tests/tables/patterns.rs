//! RE2's syntax.

use controlplane_schema::pattern::compile;

fn check(pattern: &str, yes: &[&str], no: &[&str]) {
    let compiled = compile(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
    for text in yes {
        assert!(compiled.is_match(text), "{pattern} should match {text:?}");
    }
    for text in no {
        assert!(!compiled.is_match(text), "{pattern} should not match {text:?}");
    }
}

#[test]
fn expressions_mean_what_re2_means() {
    check(r"^\d+$", &["1"], &["٣", ""]);
    check(r"^\w+$", &["a_1"], &["é"]);
    check(r"^[\w-]+$", &["a-b"], &["é"]);
    check(r"^[^\d]$", &["a", "\n", "é"], &["1"]);
    check(r"\bé", &["aé"], &["é"]);
    check(r"a\Bb", &["ab"], &["a b"]);
    check(r"^[[:alpha:]]+$", &["ab"], &["a1", "é"]);
    check(r"^[a[]$", &["a", "["], &["b"]);
    check(r"^[a&&b]$", &["&", "a"], &["c"]);
    check(r"^[]a]$", &["]", "a"], &["b"]);
    check(r"^[a-]$", &["-", "a"], &["b"]);
    check(r"^[+--]$", &["+", ",", "-"], &["."]);
    check(r"^x{,2}$", &["x{,2}"], &["xx"]);
    check(r"^{$", &["{"], &["x"]);
    check(r"^a{2}$", &["aa"], &["a"]);
    check(r"^(?i)ab$", &["AB"], &["AC"]);
    check(r"^(?P<name>a)(?<other>b)$", &["ab"], &["a"]);
    check(r"^\Qa.b\E+$", &["a.b", "a.bb"], &["aab"]);
    check(r"^\pL\p{Greek}\P{Lu}\p{^Lu}$", &["aαbb"], &["1αbb", "aαBb"]);
    check(r"^\x41\x{e9}\101\.\/\<$", &["AéA./<"], &["A"]);
    check(
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        &["a.b-c"],
        &["-a", "A"],
    );
    check(r"^a.b$", &["axb", "aéb"], &["a\nb"]);
    check(r"(?s)^a.b$", &["a\nb"], &[]);
    check(r"(?m)^b$", &["a\nb\nc"], &["ab"]);
    check(r"^b$", &["b"], &["b\n"]);
}

#[test]
fn errors_are_gos() {
    for (pattern, error) in [
        ("a(b", "missing closing ): `a(b`"),
        ("a)b", "unexpected ): `a)b`"),
        ("a[b", "missing closing ]: `[b`"),
        ("[b-a]", "invalid character class range: `b-a`"),
        ("*a", "missing argument to repetition operator: `*`"),
        ("a|*", "missing argument to repetition operator: `*`"),
        ("a**", "invalid nested repetition operator: `**`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        ("((a{100}){11})", "invalid repeat count: `{11}`"),
        ("a{2,1}", "invalid repeat count: `{2,1}`"),
        ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        ("(?<=a)b", "invalid named capture: `(?<=a)b`"),
        ("(?P<n-m>a)", "invalid named capture: `(?P<n-m>`"),
        (r"\1", "invalid escape sequence: `\\1`"),
        (r"a\Z", "invalid escape sequence: `\\Z`"),
        (r"\C", "invalid escape sequence: `\\C`"),
        (r"\", "trailing backslash at end of expression: ``"),
        (r"\pX", "invalid character class range: `\\pX`"),
        ("[[:word]", "missing closing ]: `[[:word]`"),
        ("[[:foo:]]", "invalid character class range: `[:foo:]`"),
    ] {
        let found = compile(pattern).map(|_| ()).map_err(|error| error.to_string());
        if pattern == "[[:word]" {
            assert!(found.is_ok(), "{pattern}: a class of its letters");
            continue;
        }
        assert_eq!(found, Err(format!("error parsing regexp: {error}")), "{pattern}");
    }
}

#[test]
fn expressions_that_are_too_large_end_in_an_error() {
    let deep = format!("{}a{}", "(".repeat(2_000), ")".repeat(2_000));
    assert!(compile(&deep).is_err());
    let large = r"(\pL{100}\pN{100}){9}".repeat(20);
    assert!(compile(&large).is_err());
    let backtracking = compile("^(a+)+$").expect("an expression");
    assert!(!backtracking.is_match(&format!("{}b", "a".repeat(100_000))));
}
