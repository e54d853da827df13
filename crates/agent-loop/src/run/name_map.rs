//! Values by the names of a few tools or models: a sorted list, since a node of a map has room for eleven, and each
//! session that a host keeps has two of these.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NameMap<V>(Vec<(Arc<str>, V)>);

impl<V> Default for NameMap<V> {
    fn default() -> Self {
        NameMap(Vec::new())
    }
}

impl<V> NameMap<V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn place(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| (**other).cmp(name))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&V> {
        self.place(name).ok().map(|place| &self.0[place].1)
    }

    /// In the order of the names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    /// The value of a name; the default one if there is none yet.
    pub(crate) fn entry(&mut self, name: impl AsRef<str> + Into<Arc<str>>) -> &mut V
    where
        V: Default,
    {
        let place = self.place(name.as_ref()).unwrap_or_else(|place| {
            self.0.insert(place, (name.into(), V::default()));
            place
        });
        &mut self.0[place].1
    }
}

impl<V: Serialize> Serialize for NameMap<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for NameMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let sorted = std::collections::BTreeMap::deserialize(deserializer)?;
        Ok(NameMap(sorted.into_iter().collect()))
    }
}
