use super::*;

#[test]
fn references_are_expanded_as_elsewhere() {
    let known = [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "$(A)".to_owned())];
    for (text, expected) in [
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y$(A)z"),
        ("$$(A)", "$(A)"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$A $", "$A $"),
        ("$(A", "$(A"),
        ("$$$$", "$$"),
    ] {
        assert_eq!(expand(text, &known), expected, "{text}");
    }
}
