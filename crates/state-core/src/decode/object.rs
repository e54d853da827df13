//! Reads objects only: a derived struct would also accept a list of its fields.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Reads an object as a `T`; rejects other kinds.
pub(crate) fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
    expected: &'static str,
) -> Result<T, D::Error> {
    struct ObjectOnlyVisitor<T>(&'static str, PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectOnlyVisitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(object))
        }
    }

    deserializer.deserialize_map(ObjectOnlyVisitor(expected, PhantomData))
}
