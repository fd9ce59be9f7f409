//! Bodies that are rejected.

use controlplane_api::protobuf::{self, MAGIC, ProtobufError};
use k8s_pb::apimachinery::pkg::runtime::{RawExtension, TypeMeta, Unknown};
use proptest::prelude::*;
use prost::Message as _;

use crate::{body, core, deployment, meta, some};

#[test]
fn malformed_bodies_are_errors() {
    let rows: [(&[u8], &str); 8] = [
        (
            b"{}",
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
        ),
        (b"k8s\0\x0a", "unexpected EOF"),
        (b"k8s\0\x0a\xff\xff\xff\xff\x0f", "unexpected EOF"),
        (
            b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "proto: integer overflow",
        ),
        (b"k8s\0\x0b", "proto: illegal wireType 3"),
        (b"k8s\0\x00\x00", "proto: illegal tag 0"),
        (b"k8s\0\x08\x01", "proto: wrong wireType = 0 for field Unknown"),
        (
            b"k8s\0\x0a\x04\x12\x02\xc3\x28",
            "proto: field kind contains invalid UTF-8",
        ),
    ];
    for (bytes, text) in rows {
        assert_eq!(protobuf::decode(bytes).unwrap_err().to_string(), text, "{bytes:?}");
    }
    let error = protobuf::decode(&body("v9", "Thing", &core::Pod::default())).unwrap_err();
    assert_eq!(error.to_string(), r#"no kind "Thing" is registered for version "v9""#);
    // A string where the pod's metadata belongs.
    let wrong = meta::Status {
        metadata: None,
        code: None,
        status: some("x"),
        ..Default::default()
    };
    assert!(protobuf::decode(&body("v1", "Pod", &wrong)).is_err());
    let late = meta::ObjectMeta {
        creation_timestamp: Some(meta::Time {
            seconds: Some(i64::MAX),
            nanos: None,
        }),
        ..Default::default()
    };
    let error = protobuf::decode(&body(
        "v1",
        "Pod",
        &core::Pod {
            metadata: Some(late),
            ..Default::default()
        },
    ))
    .unwrap_err();
    assert_eq!(error.to_string(), "field creationTimestamp has no valid time");
}

#[test]
fn attack_24_deep_and_wide_bodies_are_refused() {
    // Embedded bodies: each level is one List in a List.
    let mut inner = MAGIC.to_vec();
    for _ in 0..100 {
        let list = meta::List {
            metadata: None,
            items: vec![RawExtension { raw: Some(inner) }],
        };
        inner = body("v1", "List", &list);
    }
    assert!(matches!(protobuf::decode(&inner), Err(ProtobufError::TooDeep)));
    let wide = core::Pod {
        spec: Some(core::PodSpec {
            containers: vec![core::Container::default(); 400_000],
            ..Default::default()
        }),
        ..Default::default()
    };
    assert!(matches!(
        protobuf::decode(&body("v1", "Pod", &wide)),
        Err(ProtobufError::TooMany)
    ));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(protobuf::decode(&bytes).is_err());
        let mut wrapped = MAGIC.to_vec();
        wrapped.extend(&bytes);
        drop(protobuf::decode(&wrapped));
        let unknown = Unknown {
            type_meta: Some(TypeMeta { api_version: some("v1"), kind: some("Pod") }),
            raw: Some(bytes),
            ..Default::default()
        };
        let mut wrapped = MAGIC.to_vec();
        wrapped.extend(unknown.encode_to_vec());
        drop(protobuf::decode(&wrapped));
    }

    #[test]
    fn no_spoiled_deployment_makes_it_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = body("apps/v1", "Deployment", &deployment());
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        drop(protobuf::decode(&bytes));
        bytes.truncate(cut.index(bytes.len()));
        drop(protobuf::decode(&bytes));
    }
}
