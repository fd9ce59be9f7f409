//! Secret: data for pods that is not shown.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use crate::kind::{Column, Field, Kind};
use crate::pod::defaults::text;
use crate::table::age_column;

impl Kind for Secret {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Type", "What the data is for.", |secret, _| secret.type_.clone().into()),
        Column::integer("Data", "Number of entries.", |secret, _| {
            secret.data.iter().flatten().count().into()
        }),
        age_column(),
    ];
    const FIELDS: &'static [Field<Self>] = &[Field {
        label: "type",
        value: |secret| secret.type_.clone().unwrap_or_default(),
    }];

    fn set_defaults(&mut self) {
        text(&mut self.type_, "Opaque");
        // Texts are for writing only: they are kept as data.
        for (key, value) in self.string_data.take().into_iter().flatten() {
            self.data
                .get_or_insert_default()
                .insert(key, ByteString(value.into_bytes()));
        }
    }
}
