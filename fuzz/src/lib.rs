//! Bodies of the fuzz targets. cargo-fuzz runs these with the coverage of the compiler, `tests/tests/fuzz.rs`
//! (which includes this file) replays the corpus and what becomes of it by chance. Nothing may panic.

use std::time::Duration;

use api::protobuf;
use api::quantity::Quantity;
use api::selector::{FieldSelector, LabelSelector};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

pub use image::fuzzing::manifest as manifests;
pub use network::fuzzing::plugin as plugins;
pub use server::fuzzing::{frames as upgrades, patch as patches, request as requests, token as tokens};

/// No input may take longer; machines under load included.
pub const SLOWEST: Duration = Duration::from_secs(5);

/// An object: defaults are set once and for all, and what is written is read again.
///
/// # Panics
/// When an object changes by being written and read.
pub fn json_objects(bytes: &[u8]) {
    let meta: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let text = |name: &str| meta.get(name).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let Some(registration) = api::find_kind(group, version, text("kind")) else {
        return;
    };
    let Ok((mut object, _unknown)) = registration.decode_reporting(bytes) else {
        return;
    };
    registration.set_defaults(&mut *object);
    let json = object.to_json();
    let mut again = registration.decode(&json).expect("what was written is read");
    registration.set_defaults(&mut *again);
    assert_eq!(
        String::from_utf8_lossy(&again.to_json()),
        String::from_utf8_lossy(&json)
    );
    registration.prepare_create(&mut *object);
    drop(registration.validate(&*object));
    drop(registration.validate_update(&*object, &*again, &mut Vec::new()));
    drop(registration.row(&*object, Timestamp::UNIX_EPOCH));
    drop(registration.fields(&*object));
    drop(protobuf::encode(text("apiVersion"), text("kind"), &json));
}

/// An object in YAML.
pub fn yaml_objects(bytes: &[u8]) {
    if let Ok(yaml) = api::yaml::to_json(bytes) {
        json_objects(yaml.value.to_string().as_bytes());
    }
}

/// An object in protobuf: what is read is written and read as the same.
///
/// # Panics
/// When it is another one then.
pub fn protobuf_objects(bytes: &[u8]) {
    let Ok(decoded) = protobuf::decode(bytes) else {
        return;
    };
    if let Ok(body) = protobuf::encode(&decoded.api_version, &decoded.kind, decoded.json.to_string().as_bytes()) {
        let again = protobuf::decode(&body).expect("what was written is read");
        assert_eq!(again.json, decoded.json);
    }
    json_objects(decoded.json.to_string().as_bytes());
}

/// Selectors and quantities.
///
/// # Panics
/// When a quantity is another one after it was written.
pub fn selectors(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let labels = [("tier".to_owned(), "front".to_owned())].into();
    drop(LabelSelector::parse(&text).map(|selector| selector.matches(&labels)));
    drop(FieldSelector::parse(&text).map(|selector| selector.matches(|_label| Some("front"))));
    if let Ok(quantity) = Quantity::parse(&text) {
        let written = quantity.to_text();
        assert_eq!(
            Quantity::parse(&written.0).map(Quantity::milli).ok(),
            Some(quantity.milli()),
            "{written:?}"
        );
    }
}

/// Lines of a container's log, and the options of who reads it.
///
/// # Panics
/// When a line grows.
pub fn log_lines(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let pairs: Vec<(String, String)> = text
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let options = agent_plan::container::log::Options::parse(&pairs, Timestamp::UNIX_EPOCH).unwrap_or_default();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if let Some(record) = agent_plan::container::log::parse(line) {
            let mut out = Vec::new();
            options.render(&record, true, &mut out);
            assert!(out.len() <= line.len() + 1, "{line:?} became {out:?}");
        }
    }
}

/// Nothing of a layer leaves its folder: the one beside it stays as it is.
///
/// # Panics
/// When something came beside it.
pub fn layers(bytes: &[u8]) {
    let home = tempfile::tempdir().expect("a folder");
    let target = home.path().join("layer");
    std::fs::create_dir(&target).expect("a folder");
    std::fs::write(home.path().join("outside"), "as it was").expect("a file");
    image::fuzzing::layer(bytes, &target);
    assert_eq!(
        std::fs::read_to_string(home.path().join("outside")).ok().as_deref(),
        Some("as it was")
    );
    let beside = std::fs::read_dir(home.path()).map(Iterator::count).unwrap_or_default();
    assert_eq!(beside, 2, "something came beside the layer's folder");
}

/// Frames of SPDY from a client.
pub fn spdy(bytes: &[u8]) {
    wait(agent::fuzzing::spdy(bytes));
}

/// Frames of WebSocket from a client.
pub fn websocket(bytes: &[u8]) {
    wait(agent::fuzzing::websocket(bytes));
}

fn wait(reading: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(SLOWEST, reading)
            .await
            .expect("the reader comes to an end");
    });
}
