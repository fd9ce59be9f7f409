//! The v3 documents in gnostic's protobuf: an independent decoder must read the same as in JSON.

use controlplane_api::{KINDS, openapi};
use prost::Message;
use serde_json::{Map, Value, json};

macro_rules! message {
    ($name:ident { $($field:ident: $kind:ty = $tag:literal $($form:ident)+;)* }) => {
        #[derive(Clone, PartialEq, prost::Message)]
        struct $name { $(#[prost($($form,)+ tag = $tag)] $field: $kind,)* }
    };
}

/// Messages that are an entry of a map.
macro_rules! named {
    ($($name:ident of $value:ty;)*) => {
        $(message!($name { name: String = "1" string; value: Option<$value> = "2" message optional; });)*
    };
}

message!(Document {
    openapi: String = "1" string;
    info: Option<Info> = "2" message optional;
    paths: Option<Paths> = "4" message optional;
    components: Option<Components> = "5" message optional;
});
message!(Info { title: String = "1" string; version: String = "6" string; });
message!(Paths { path: Vec<NamedPathItem> = "1" message repeated; });
message!(Components {
    schemas: Option<Schemas> = "1" message optional;
    security_schemes: Option<SecuritySchemes> = "7" message optional;
});
message!(SecuritySchemes { all: Vec<NamedSecurityScheme> = "1" message repeated; });
message!(SecuritySchemeOr { scheme: Option<SecurityScheme> = "1" message optional; });
message!(SecurityScheme {
    kind: String = "1" string;
    description: String = "2" string;
    name: String = "3" string;
    place: String = "4" string;
});
message!(PathItem {
    get: Option<Operation> = "4" message optional;
    put: Option<Operation> = "5" message optional;
    post: Option<Operation> = "6" message optional;
    delete: Option<Operation> = "7" message optional;
    options: Option<Operation> = "8" message optional;
    head: Option<Operation> = "9" message optional;
    patch: Option<Operation> = "10" message optional;
    parameters: Vec<ParameterOr> = "13" message repeated;
});
message!(Operation {
    tags: Vec<String> = "1" string repeated;
    description: String = "3" string;
    id: String = "5" string;
    parameters: Vec<ParameterOr> = "6" message repeated;
    body: Option<BodyOr> = "7" message optional;
    responses: Option<Responses> = "8" message optional;
    extensions: Vec<NamedAny> = "13" message repeated;
});
message!(ParameterOr { parameter: Option<Parameter> = "1" message optional; });
message!(Parameter {
    name: String = "1" string;
    place: String = "2" string;
    description: String = "3" string;
    required: bool = "4" bool;
    schema: Option<SchemaOr> = "10" message optional;
});
message!(BodyOr { body: Option<Body> = "1" message optional; });
message!(Body {
    description: String = "1" string;
    content: Option<Content> = "2" message optional;
    required: bool = "3" bool;
});
message!(Responses { all: Vec<NamedResponse> = "2" message repeated; });
message!(ResponseOr { response: Option<Answer> = "1" message optional; });
message!(Answer { description: String = "1" string; content: Option<Content> = "3" message optional; });
message!(Content { all: Vec<NamedMedia> = "1" message repeated; });
message!(Media { schema: Option<SchemaOr> = "1" message optional; });
message!(Schemas { all: Vec<NamedSchema> = "1" message repeated; });
message!(SchemaOr { schema: Option<Box<Schema>> = "1" message optional boxed; reference: Option<Reference> = "2" message optional; });
message!(Reference { to: String = "1" string; });
message!(Any { yaml: String = "2" string; });
message!(Items { all: Vec<SchemaOr> = "1" message repeated; });
message!(Additional { schema: Option<SchemaOr> = "1" message optional; is: Option<bool> = "2" bool optional; });
message!(DefaultValue {
    number: Option<f64> = "1" double optional;
    is: Option<bool> = "2" bool optional;
    text: Option<String> = "3" string optional;
});
message!(Schema {
    unique: bool = "20" bool;
    required: Vec<String> = "23" string repeated;
    choices: Vec<Any> = "24" message repeated;
    kind: String = "25" string;
    all_of: Vec<SchemaOr> = "26" message repeated;
    one_of: Vec<SchemaOr> = "27" message repeated;
    any_of: Vec<SchemaOr> = "28" message repeated;
    items: Option<Items> = "30" message optional;
    properties: Option<Schemas> = "31" message optional;
    additional: Option<Additional> = "32" message optional;
    default: Option<DefaultValue> = "33" message optional;
    description: String = "34" string;
    format: String = "35" string;
    extensions: Vec<NamedAny> = "36" message repeated;
});
named! {
    NamedPathItem of PathItem;
    NamedSecurityScheme of SecuritySchemeOr;
    NamedResponse of ResponseOr;
    NamedMedia of Media;
    NamedSchema of SchemaOr;
    NamedAny of Any;
}

/// Members of JSON that are not empty.
#[derive(Default)]
struct Members(Map<String, Value>);

impl Members {
    fn set(&mut self, name: &str, value: Option<Value>) {
        self.0.extend(value.map(|value| (name.to_owned(), value)));
    }

    fn text(&mut self, name: &str, text: &str) {
        self.set(name, (!text.is_empty()).then(|| text.into()));
    }

    fn flag(&mut self, name: &str, is: bool) {
        self.set(name, is.then_some(Value::Bool(true)));
    }

    fn list(&mut self, name: &str, list: impl Iterator<Item = Value>) {
        let list: Vec<_> = list.collect();
        self.set(name, (!list.is_empty()).then(|| list.into()));
    }

    fn extensions(&mut self, all: &[NamedAny]) {
        for one in all {
            self.set(&one.name, one.value.as_ref().map(any));
        }
    }
}

fn any(any: &Any) -> Value {
    serde_yaml::from_str(&any.yaml).expect("it is YAML")
}

fn schema(of: &SchemaOr) -> Value {
    let mut members = Members::default();
    if let Some(reference) = &of.reference {
        members.text("$ref", &reference.to);
        return members.0.into();
    }
    let of = of.schema.as_ref().expect("a schema or a reference");
    members.flag("uniqueItems", of.unique);
    members.list("required", of.required.iter().map(|name| json!(name)));
    members.list("enum", of.choices.iter().map(any));
    members.text("type", &of.kind);
    members.list("allOf", of.all_of.iter().map(schema));
    members.list("oneOf", of.one_of.iter().map(schema));
    members.list("anyOf", of.any_of.iter().map(schema));
    members.set(
        "items",
        of.items
            .as_ref()
            .map(|items| schema(items.all.first().expect("an item"))),
    );
    members.set("properties", of.properties.as_ref().map(schemas));
    let additional = of.additional.as_ref();
    members.set(
        "additionalProperties",
        additional.map(|own| own.schema.as_ref().map_or(json!(own.is), schema)),
    );
    members.set("default", of.default.as_ref().map(default));
    members.text("description", &of.description);
    members.text("format", &of.format);
    members.extensions(&of.extensions);
    members.0.into()
}

fn default(value: &DefaultValue) -> Value {
    match value {
        DefaultValue {
            number: Some(number), ..
        } => json!(number),
        DefaultValue { is: Some(is), .. } => json!(is),
        DefaultValue { text: Some(text), .. } => json!(text),
        DefaultValue { .. } => json!({}),
    }
}

fn schemas(all: &Schemas) -> Value {
    let entry = |one: &NamedSchema| (one.name.clone(), schema(one.value.as_ref().expect("a schema")));
    all.all.iter().map(entry).collect::<Map<_, _>>().into()
}

fn content(content: &Content) -> Value {
    let entry = |one: &NamedMedia| {
        let of = one.value.as_ref().expect("a media type").schema.as_ref();
        (one.name.clone(), json!({"schema": schema(of.expect("a schema"))}))
    };
    content.all.iter().map(entry).collect::<Map<_, _>>().into()
}

fn parameter(one: &ParameterOr) -> Value {
    let one = one.parameter.as_ref().expect("a parameter");
    let mut members = Members::default();
    members.text("name", &one.name);
    members.text("in", &one.place);
    members.text("description", &one.description);
    members.flag("required", one.required);
    members.set("schema", one.schema.as_ref().map(schema));
    members.0.into()
}

fn operation(one: &Operation) -> Value {
    let mut members = Members::default();
    members.list("tags", one.tags.iter().map(|tag| json!(tag)));
    members.text("description", &one.description);
    members.text("operationId", &one.id);
    members.list("parameters", one.parameters.iter().map(parameter));
    members.set(
        "requestBody",
        one.body.as_ref().and_then(|body| body.body.as_ref()).map(|body| {
            let mut members = Members::default();
            members.text("description", &body.description);
            members.set("content", body.content.as_ref().map(content));
            members.flag("required", body.required);
            members.0.into()
        }),
    );
    let responses = one.responses.as_ref().map(|responses| {
        let entry = |one: &NamedResponse| {
            let response = one
                .value
                .as_ref()
                .and_then(|one| one.response.as_ref())
                .expect("an answer");
            let mut members = Members::default();
            members.text("description", &response.description);
            members.set("content", response.content.as_ref().map(content));
            (one.name.clone(), Value::from(members.0))
        };
        responses.all.iter().map(entry).collect::<Map<_, _>>().into()
    });
    members.set("responses", responses);
    members.extensions(&one.extensions);
    members.0.into()
}

fn path(item: &PathItem) -> Value {
    let mut members = Members::default();
    for (name, one) in [
        ("get", &item.get),
        ("put", &item.put),
        ("post", &item.post),
        ("delete", &item.delete),
        ("options", &item.options),
        ("head", &item.head),
        ("patch", &item.patch),
    ] {
        members.set(name, one.as_ref().map(operation));
    }
    members.list("parameters", item.parameters.iter().map(parameter));
    members.0.into()
}

fn document(document: &Document) -> Value {
    let info = document.info.as_ref().expect("a title");
    let paths = document.paths.as_ref().expect("paths").path.iter();
    let paths: Map<_, _> = paths
        .map(|one| (one.name.clone(), path(one.value.as_ref().expect("a path"))))
        .collect();
    let components = document.components.as_ref().expect("components");
    let schemes = components.security_schemes.as_ref().expect("schemes").all.iter();
    let schemes: Map<_, _> = schemes
        .map(|one| {
            let scheme = one
                .value
                .as_ref()
                .and_then(|one| one.scheme.as_ref())
                .expect("a scheme");
            let mut members = Members::default();
            members.text("type", &scheme.kind);
            members.text("description", &scheme.description);
            members.text("name", &scheme.name);
            members.text("in", &scheme.place);
            (one.name.clone(), Value::from(members.0))
        })
        .collect();
    json!({
        "openapi": document.openapi,
        "info": {"title": info.title, "version": info.version},
        "paths": paths,
        "components": {
            "schemas": schemas(components.schemas.as_ref().expect("schemas")),
            "securitySchemes": schemes,
        },
    })
}

/// Defaults in the form of the messages: numbers are floating point, and lists have no form of
/// their own.
fn floating(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if let Some(default) = members.get_mut("default") {
                if default.is_number() {
                    *default = json!(default.as_f64());
                } else if default.is_array() {
                    *default = json!({});
                }
            }
            members.values_mut().for_each(floating);
        }
        Value::Array(items) => items.iter_mut().for_each(floating),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_document_is_whole() {
    for path in openapi::documents(KINDS) {
        let mut wanted = openapi::v3_document(KINDS, &path).expect("the group version is served");
        floating(&mut wanted);
        let bytes = openapi::v3_protobuf(KINDS, &path).expect("the group version is served");
        let read = Document::decode(&bytes[..]).expect("the document is gnostic's");
        assert_eq!(document(&read), wanted, "{path}");
    }
    assert!(openapi::v3_protobuf(KINDS, "apis/none/v1").is_none());
}
