//! Bodies that stock kubectl 1.33 sent, compared with the JSON that 1.31 sent for the same
//! commands.

use std::fs;
use std::path::Path;

use controlplane_api::protobuf;
use serde_json::Value;

#[test]
fn stock_bodies_read_as_the_json_of_older_clients() {
    let folder = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("tests/protobuf/bodies");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "bin") {
            let mut expected: Value = serde_json::from_slice(&fs::read(path.with_extension("json")).unwrap()).unwrap();
            drop_nulls(&mut expected);
            let decoded = protobuf::decode(&fs::read(&path).unwrap()).unwrap();
            assert_eq!(decoded.json, expected, "{}", path.display());
            count += 1;
        }
    }
    assert!(count >= 15, "only {count} bodies");
}

/// Drops nulls: Go writes `null` for unset times, lists and maps.
fn drop_nulls(value: &mut Value) {
    if let Value::Object(members) = value {
        members.retain(|_, member| !member.is_null());
        members.values_mut().for_each(drop_nulls);
    } else if let Value::Array(items) = value {
        items.iter_mut().for_each(drop_nulls);
    }
}
