//! Errors of the converter with which upstream decodes the result of a strategic merge patch.

use api::Registration;
use api::schema::{Field, Form, Schema};

/// Converter's message for an error of Go's JSON decoder.
pub(super) fn words(registration: &Registration, because: &str) -> String {
    if because.starts_with("illegal base64 data") {
        return format!("error decoding from json: {because}");
    }
    let parts = because.strip_prefix("json: cannot unmarshal ").and_then(|rest| {
        let (found, rest) = rest.split_once(" into Go struct field ")?;
        let (place, wanted) = rest.rsplit_once(" of type ")?;
        Some((found, place, wanted))
    });
    let Some((found, place, wanted)) = parts else {
        return because.to_owned();
    };
    let schema = Schema::of_kind(&registration.api_version(), registration.kind);
    let form = schema.and_then(|schema| field(schema, place)).map(|field| field.form);
    match form {
        // A type with its own `UnmarshalJSON` does not know the surrounding field.
        Some(Form::IntOrString | Form::Time | Form::MicroTime | Form::Duration | Form::Quantity)
            if !is_map(wanted) && !is_slice(wanted) =>
        {
            format!("json: cannot unmarshal {found} into Go value of type {wanted}")
        }
        form => unrestorable(go_kind(found), wanted, form),
    }
}

fn unrestorable(found: &str, wanted: &str, form: Option<Form>) -> String {
    let is_text = form == Some(Form::String);
    match found {
        _ if is_map(wanted) => format!("cannot restore map from {found}"),
        _ if is_slice(wanted) => format!("cannot restore slice from {found}"),
        "int64" if is_text => format!("cannot convert {found} to {wanted}"),
        "float64" if matches!(wanted, "int32" | "int64") => format!("cannot convert {found} to {wanted}"),
        _ if is_text => "unrecognized type: string".to_owned(),
        _ if wanted.contains('.') => format!("cannot restore struct from: {found}"),
        _ => format!("unrecognized type: {wanted}"),
    }
}

fn is_map(wanted: &str) -> bool {
    wanted.starts_with("map[") || wanted == "v1.ResourceList"
}

fn is_slice(wanted: &str) -> bool {
    wanted.starts_with("[]") || wanted == "v1.ExtraValue"
}

/// Go's kind of a JSON value that is decoded without a type.
fn go_kind(found: &str) -> &str {
    match found {
        "array" => "slice",
        "object" => "map",
        "number" => "int64",
        other if other.starts_with("number ") => "float64",
        other => other,
    }
}

/// The field at `OWNER.path.from.the.root`.
fn field(schema: Schema, place: &str) -> Option<&'static Field> {
    let (_, path) = place.split_once('.')?;
    let mut schema = Some(schema);
    let mut found = None;
    for name in path.split('.') {
        found = Some(schema?.field(name)?);
        schema = found.and_then(Field::message);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::words;

    fn say(found: &str, place: &str, wanted: &str) -> String {
        let because = format!("json: cannot unmarshal {found} into Go struct field {place} of type {wanted}");
        let pods = api::find("", "v1", "pods").unwrap();
        words(pods, &because)
    }

    fn container(field: &str) -> String {
        format!("Container.spec.containers.{field}")
    }

    #[test]
    fn what_the_converter_says_of_texts_and_structs() {
        for (found, place, wanted, expected) in [
            ("number", container("image"), "string", "cannot convert int64 to string"),
            ("bool", container("image"), "string", "unrecognized type: string"),
            (
                "number",
                container("imagePullPolicy"),
                "v1.PullPolicy",
                "cannot convert int64 to v1.PullPolicy",
            ),
            (
                "object",
                container("imagePullPolicy"),
                "v1.PullPolicy",
                "unrecognized type: string",
            ),
            (
                "bool",
                "ObjectMeta.metadata.uid".to_owned(),
                "types.UID",
                "unrecognized type: string",
            ),
            (
                "string",
                container("securityContext"),
                "v1.SecurityContext",
                "cannot restore struct from: string",
            ),
            (
                "string",
                container("command"),
                "[]string",
                "cannot restore slice from string",
            ),
            (
                "array",
                container("resources.limits"),
                "v1.ResourceList",
                "cannot restore map from slice",
            ),
        ] {
            assert_eq!(say(found, &place, wanted), expected, "{found} in {place}");
        }
    }

    #[test]
    fn what_the_converter_says_of_numbers_and_maps() {
        for (found, place, wanted, expected) in [
            (
                "number",
                "ObjectMeta.metadata.labels".to_owned(),
                "map[string]string",
                "cannot restore map from int64",
            ),
            (
                "string",
                container("ports.containerPort"),
                "int32",
                "unrecognized type: int32",
            ),
            (
                "number 1.5",
                container("ports.containerPort"),
                "int32",
                "cannot convert float64 to int32",
            ),
            (
                "bool",
                container("livenessProbe.httpGet.port"),
                "int32",
                "json: cannot unmarshal bool into Go value of type int32",
            ),
            (
                "number",
                "ObjectMeta.metadata.creationTimestamp".to_owned(),
                "string",
                "json: cannot unmarshal number into Go value of type string",
            ),
        ] {
            assert_eq!(say(found, &place, wanted), expected, "{found} in {place}");
        }
    }

    #[test]
    fn what_the_converter_says_of_the_rest() {
        let pods = api::find("", "v1", "pods").unwrap();
        let base64 = "illegal base64 data at input byte 3";
        assert_eq!(words(pods, base64), format!("error decoding from json: {base64}"));
        assert_eq!(words(pods, "something else"), "something else");
    }
}
