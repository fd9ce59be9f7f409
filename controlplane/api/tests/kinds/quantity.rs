//! Amounts as upstream reads and writes them.

use controlplane_api::quantity::{Quantity, QuantityError};
use proptest::prelude::*;

use crate::table;

#[test]
fn texts_become_canonical_as_upstream() {
    let cases = "
        0 | 0
        0.5 | 500m
        1000m | 1
        1.5Gi | 1536Mi
        1024 | 1024
        1024Ki | 1Mi
        0.1m | 100u
        1e3 | 1e3
        1E3 | 1e3
        1000 | 1k
        1E | 1E
        100Ki | 100Ki
        0.5Ki | 512
        1.1Ki | 1126400m
        1.0001Ki | 1024102400u
        -1.5 | -1500m
        +2 | 2
        .5 | 500m
        5. | 5
        0.0000000001 | 1n
        9999999999999999999999 | 9223372036854775807
        1e-3 | 1e-3
        12e8 | 1200e6
        0Mi | 0
        1e999999999 | 9223372036854775807
        0.00000000000000000000000000001 | 1n
        128974848 | 128974848
        129M | 129M
        123Mi | 123Mi";
    for case in table(cases) {
        assert_eq!(Quantity::parse(case[0]).unwrap().to_string(), case[1], "{}", case[0]);
    }
}

#[test]
fn texts_that_are_no_quantities() {
    for text in [
        "", "x", "1x", "--1", "1..2", "1 Gi", "Gi", "1ki", "1e", "1.2.3", ".", "１", "1Gi ", "0x10", "1e1.5",
    ] {
        assert!(Quantity::parse(text).is_err(), "{text}");
    }
    assert_eq!(Quantity::parse("1ki"), Err(QuantityError::Suffix));
}

#[test]
fn amounts_round_away_from_zero() {
    let value = |text: &str| Quantity::parse(text).unwrap().value();
    assert_eq!((value("1m"), value("-1m"), value("1001m"), value("2")), (1, -1, 2, 2));
    assert_eq!(Quantity::parse("100u").unwrap().milli(), 1);
    assert!(Quantity::parse("1Gi").unwrap() > Quantity::parse("1G").unwrap());
    let half = Quantity::parse("0.5").unwrap();
    assert_eq!(Quantity::parse("500m").unwrap().plus(half).to_string(), "1");
    assert_eq!(
        Quantity::parse("1Gi")
            .unwrap()
            .minus(Quantity::parse("1Mi").unwrap())
            .to_string(),
        "1023Mi"
    );
}

proptest! {
    #[test]
    fn canonical_text_keeps_the_amount(number in 0_i64..1_000_000_000, suffix in "(n|u|m|k|M|G|Ki|Mi|Gi|e3|e-3|)") {
        let quantity = Quantity::parse(&format!("{number}{suffix}")).unwrap();
        let again = Quantity::parse(&quantity.to_string()).unwrap();
        prop_assert_eq!(quantity, again);
        prop_assert_eq!(quantity.to_string(), again.to_string());
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[+-]?[0-9.]{0,60}[a-zA-Z]{0,3}[-+]?[0-9]{0,25}") {
        if let Ok(quantity) = Quantity::parse(&text) {
            prop_assert!(quantity.milli() == 0 || !quantity.is_zero());
            prop_assert_eq!(Quantity::parse(&quantity.to_string()).unwrap(), quantity);
        }
    }
}
