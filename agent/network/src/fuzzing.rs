//! Fuzzing entry point: parses arbitrary bytes as plugins' output.

/// Parses the bytes as a plugin's result, as its error, and as a network configuration.
pub fn plugin(bytes: &[u8]) {
    crate::cni::fuzzing::read(bytes);
    ranges(std::str::from_utf8(bytes).unwrap_or_default());
}

fn ranges(text: &str) {
    if let Ok(range) = text.parse::<crate::Cidr>() {
        assert!(range.contains(range.gateway()) && range.contains(range.last()));
        assert_eq!(range.network_range().at(range.offset()), range);
    }
    if let Ok(ranges) = text.parse::<crate::Ranges>() {
        assert_eq!(ranges.to_string().parse(), Ok(ranges));
    }
}
