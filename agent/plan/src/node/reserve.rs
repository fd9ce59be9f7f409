//! Allocatable resources: the capacity without the operator's reservations and the hard eviction
//! thresholds.

use std::collections::BTreeMap;

use api::quantity::{Quantity, QuantityError};

use crate::node::eviction::{Signal, Thresholds};

/// Amounts by resource.
pub type Amounts = BTreeMap<String, Quantity>;

/// Invalid reservation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReservation {
    /// The text is not `RESOURCE=AMOUNT`.
    #[error("{0:?} is not of the form RESOURCE=AMOUNT")]
    Form(String),
    /// The resource cannot be reserved.
    #[error("cannot reserve {0:?} resource")]
    Resource(String),
    /// The amount is invalid.
    #[error("the amount of {0:?}")]
    Quantity(String, #[source] QuantityError),
    /// The quantity is negative.
    #[error("resource quantity for {0:?} cannot be negative: {1}")]
    Negative(String, Quantity),
}

/// Parses `cpu=100m,memory=1Gi,ephemeral-storage=1Gi`.
pub fn parse(text: &str) -> Result<Amounts, InvalidReservation> {
    let mut all = Amounts::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (name, amount) = word
            .split_once('=')
            .ok_or_else(|| InvalidReservation::Form(word.to_owned()))?;
        if !matches!(name, "cpu" | "memory" | "ephemeral-storage") {
            return Err(InvalidReservation::Resource(name.to_owned()));
        }
        let quantity = Quantity::parse(amount);
        let quantity = quantity.map_err(|source| InvalidReservation::Quantity(name.to_owned(), source))?;
        if quantity.is_negative() {
            return Err(InvalidReservation::Negative(name.to_owned(), quantity));
        }
        all.insert(name.to_owned(), quantity);
    }
    Ok(all)
}

/// Returns the allocatable part of a capacity. Huge pages are subtracted from memory: nothing else
/// can use them.
pub fn allocatable(capacity: &Amounts, reserved: &[Amounts], thresholds: &Thresholds) -> Amounts {
    let pages = capacity.iter().filter(|(name, _)| name.starts_with("hugepages-"));
    let pages = pages.fold(Quantity::ZERO, |sum, (_, amount)| sum.plus(*amount));
    let free = |name: &str, all: Quantity| match name {
        "memory" => thresholds.held_back(Signal::MemoryAvailable, all.value()),
        "ephemeral-storage" => thresholds.held_back(Signal::NodefsAvailable, all.value()),
        _ => 0,
    };
    let each = capacity.iter().map(|(name, all)| {
        let kept = reserved.iter().filter_map(|own| own.get(name));
        let mut left = kept.fold(*all, |left, own| left.minus(*own));
        left = left.minus(Quantity::units(free(name, *all)));
        if name == "memory" {
            left = left.minus(pages);
        }
        (name.clone(), left.max(Quantity::ZERO))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_get_what_is_left() {
        let capacity: Amounts = [
            ("cpu", "4"),
            ("memory", "8Gi"),
            ("ephemeral-storage", "100Gi"),
            ("hugepages-2Mi", "1Gi"),
            ("pods", "110"),
        ]
        .into_iter()
        .map(|(name, amount)| (name.to_owned(), Quantity::parse(amount).unwrap()))
        .collect();
        let thresholds = Thresholds {
            all: Thresholds::parse("memory.available<100Mi,nodefs.available<10%", "", "", "").unwrap(),
            transition: 0,
            longest_grace: 0,
        };
        let reserved = [
            parse("cpu=100m,memory=924Mi").unwrap(),
            parse("cpu=400m,memory=1Gi,ephemeral-storage=10Gi").unwrap(),
        ];
        let shown = |reserved: &[Amounts]| {
            let left = allocatable(&capacity, reserved, &thresholds);
            let shown = left.iter().map(|(name, amount)| format!("{name}={amount}"));
            shown.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            shown(&reserved),
            "cpu=3500m ephemeral-storage=80Gi hugepages-2Mi=1Gi memory=5Gi pods=110"
        );
        assert_eq!(
            shown(&[parse("memory=9Gi").unwrap()]),
            "cpu=4 ephemeral-storage=90Gi hugepages-2Mi=1Gi memory=0 pods=110"
        );
        for (text, expected) in [
            ("gpu=1", "cannot reserve \"gpu\" resource"),
            ("cpu", "\"cpu\" is not of the form RESOURCE=AMOUNT"),
            ("cpu=-1", "resource quantity for \"cpu\" cannot be negative: -1"),
            ("cpu=x", "the amount of \"cpu\""),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), expected);
        }
    }
}
