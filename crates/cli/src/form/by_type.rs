//! Forms with two alternatives, such as a text or a table.

/// Implements `Deserialize` for a form with alternatives that the type of the value tells apart.
// NOTE: An untagged enum of serde would report a fault inside an alternative as "did not match any variant".
macro_rules! by_type {
    ($form:ident, $types:literal, $($kind:ident => $variant:path),+) => {
        impl<'de> serde::Deserialize<'de> for $form {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct ByType;

                impl<'de> serde::de::Visitor<'de> for ByType {
                    type Value = $form;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($types)
                    }

                    $(by_type!(@ $kind $variant);)+
                }

                deserializer.deserialize_any(ByType)
            }
        }
    };
    (@ text $variant:path) => {
        fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
            Ok($variant(text.to_owned()))
        }
    };
    (@ list $variant:path) => {
        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
            serde::Deserialize::deserialize(serde::de::value::SeqAccessDeserializer::new(items)).map($variant)
        }
    };
    (@ table $variant:path) => {
        fn visit_map<A: serde::de::MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
            serde::Deserialize::deserialize(serde::de::value::MapAccessDeserializer::new(fields)).map($variant)
        }
    };
}

pub(super) use by_type;
