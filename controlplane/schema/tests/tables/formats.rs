//! Formats of strings.

use serde_json::json;

use super::{lines, read};

#[test]
fn strings_have_the_formats_that_upstream_checks() {
    for (format, yes, no) in [
        ("date", "2024-02-29,2006-01-02", "2023-02-29,2006-1-2,x"),
        (
            "date-time",
            "2014-12-15T19:30:20.000Z,2014-12-15t19:30:20+01:00",
            "2014-12-15,2014-12-15T25:00:00Z",
        ),
        ("datetime", "2014-12-15T19:30:20Z", "2014"),
        ("duration", "1h,1m30s,-1.5h,0,22 ns,3 days", "1,x,1 y"),
        ("ipv4", "10.0.0.1,010.0.0.1,::ffff:1.2.3.4", "10.0.0,256.0.0.1,::1"),
        ("ipv6", "::1,fe80::1", "10.0.0.1,fe80::1%eth0"),
        ("cidr", "10.0.0.0/8,::/0,010.0.0.0/8", "10.0.0.0,10.0.0.0/33"),
        (
            "mac",
            "01:23:45:67:89:ab,0123.4567.89ab,01-23-45-67-89-ab",
            "01:23:45,0123:4567:89ab",
        ),
        (
            "uri",
            "http://example.com/a?b,/path,mailto:a@b,urn:x:y",
            "example.com/a,http://a b/,:x",
        ),
        ("email", "a@example.com,A B <a@example.com>", "a,@example.com,a@,a@b..c"),
        ("hostname", "example.com,a", "-a,a_b,a..b"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        (
            "uuid4",
            "123e4567-e89b-42d3-a456-426614174000",
            "123e4567-e89b-12d3-a456-426614174000",
        ),
        ("isbn", "0321751043,978-0321751041", "0321751044,1"),
        ("isbn10", "0321751043,3401013319,080442957X", "978-0321751041"),
        ("creditcard", "4111-1111-1111-1111", "4111111111111112,1"),
        ("ssn", "111-22-3333", "111223333,1"),
        ("hexcolor", "#FFFFFF,fff", "#ffff,x"),
        ("byte", "aGVsbG8=,YWJj", "aGVsbG8,?"),
        ("bsonobjectid", "507f1f77bcf86cd799439011", "507f"),
        ("k8s-short-name", "a-b", "A,a.b"),
        ("k8s-long-name", "a-b.c", "A,-a"),
        ("password", "x", ""),
        ("no-such-format", "x,1", ""),
    ] {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string", "format": format}}});
        let schema = controlplane_schema::Structural::new(&schema).expect("structural");
        for text in yes.split(',') {
            assert_eq!(
                lines(&schema.validate(&json!({ "a": text }), None)),
                "",
                "{format} {text}"
            );
        }
        for text in no.split(',').filter(|text| !text.is_empty()) {
            let wanted = format!("a: Invalid value: {text:?}: a in body must be of type {format}: {text:?}");
            assert_eq!(lines(&schema.validate(&json!({ "a": text }), None)), wanted);
        }
    }
    let rgb = read("{type: object, properties: {a: {type: string, format: rgbcolor}}}");
    let rgb = controlplane_schema::Structural::new(&rgb).expect("structural");
    assert!(rgb.validate(&json!({"a": "rgb(0, 255,1)"}), None).is_empty());
    assert!(!rgb.validate(&json!({"a": "rgb(0,256,1)"}), None).is_empty());
}
