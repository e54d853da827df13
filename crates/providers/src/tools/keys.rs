//! Names of properties on the wire, and back: only those that the server refuses are renamed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserializer as _;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use stepfold_state_core::json_schema::subschemas_mut;

use crate::rules::names::{NameRules, wire_name};

/// Renames the properties of a schema that the server refuses, at every depth, and returns their names. Descriptions
/// mention the original names.
pub(super) fn rename(rules: &NameRules, schema: &mut Value) -> RenamedKeys {
    let keys = RenamedKeys::of(rules, schema);
    if !keys.is_plain() {
        keys.rename(rules, schema);
    }
    keys
}

/// The names of properties that differ on the wire, by their places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RenamedKeys {
    /// The names of this object, by those on the wire.
    names: BTreeMap<String, String>,
    /// In its properties, by their names.
    properties: BTreeMap<String, RenamedKeys>,
    /// In its other properties.
    others: Option<Box<RenamedKeys>>,
    /// In the items of a list.
    items: Option<Box<RenamedKeys>>,
}

impl RenamedKeys {
    /// Collects the names of a schema without references.
    fn of(rules: &NameRules, schema: &Value) -> Self {
        let mut keys = RenamedKeys::default();
        let Some(fields) = schema.as_object() else { return keys };
        let names = |keyword: &str| fields.get(keyword).and_then(Value::as_array).into_iter().flatten();
        names("required").filter_map(Value::as_str).for_each(|name| keys.name(rules, name));
        for (name, others) in fields.get("dependentRequired").and_then(Value::as_object).into_iter().flatten()
        {
            keys.name(rules, name);
            others
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .for_each(|name| keys.name(rules, name));
        }
        for (name, inside) in fields.get("dependentSchemas").and_then(Value::as_object).into_iter().flatten()
        {
            keys.name(rules, name);
            keys.merge(RenamedKeys::of(rules, inside));
        }
        for (name, inside) in fields.get("properties").and_then(Value::as_object).into_iter().flatten() {
            keys.name(rules, name);
            keys.properties.entry(name.clone()).or_default().merge(RenamedKeys::of(rules, inside));
        }
        for inside in
            fields.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(Map::values)
        {
            keys.add_other(RenamedKeys::of(rules, inside));
        }
        for keyword in ["additionalProperties", "unevaluatedProperties"] {
            fields.get(keyword).into_iter().for_each(|inside| keys.add_other(RenamedKeys::of(rules, inside)));
        }
        let one =
            ["items", "contains", "unevaluatedItems"].into_iter().filter_map(|keyword| fields.get(keyword));
        for inside in one.chain(names("prefixItems")) {
            keys.add_item(RenamedKeys::of(rules, inside));
        }
        let same = ["not", "if", "then", "else"].into_iter().filter_map(|keyword| fields.get(keyword));
        for inside in same.chain(["anyOf", "oneOf", "allOf"].into_iter().flat_map(names)) {
            keys.merge(RenamedKeys::of(rules, inside));
        }
        keys
    }

    fn name(&mut self, rules: &NameRules, name: &str) {
        if let Cow::Owned(wired) = wire_name(rules, name) {
            self.names.insert(wired, name.to_owned());
        }
    }

    fn add_other(&mut self, keys: RenamedKeys) {
        if !keys.is_plain() {
            self.others.get_or_insert_default().merge(keys);
        }
    }

    fn add_item(&mut self, keys: RenamedKeys) {
        if !keys.is_plain() {
            self.items.get_or_insert_default().merge(keys);
        }
    }

    fn merge(&mut self, more: RenamedKeys) {
        self.names.extend(more.names);
        for (name, keys) in more.properties {
            self.properties.entry(name).or_default().merge(keys);
        }
        more.others.into_iter().for_each(|keys| self.add_other(*keys));
        more.items.into_iter().for_each(|keys| self.add_item(*keys));
    }

    /// Whether all names are the same on the wire.
    pub(crate) fn is_plain(&self) -> bool {
        self.names.is_empty()
            && self.properties.values().all(RenamedKeys::is_plain)
            && self.others.is_none()
            && self.items.is_none()
    }

    /// The names in the value of a property.
    fn inside(&self, name: &str) -> Option<&RenamedKeys> {
        self.properties.get(name).or(self.others.as_deref()).filter(|keys| !keys.is_plain())
    }

    fn wire_key<'a>(&'a self, name: &'a str) -> &'a str {
        // NOTE: A linear search: few names differ.
        self.names.iter().find(|(_, original)| *original == name).map_or(name, |(wired, _)| wired)
    }

    /// A value with the names on the wire.
    pub(crate) fn to_wire(&self, value: &Value) -> Value {
        match value {
            Value::Object(fields) => self.fields_to_wire(fields).into(),
            Value::Array(items) => match &self.items {
                Some(keys) => items.iter().map(|item| keys.to_wire(item)).collect(),
                None => value.clone(),
            },
            _ => value.clone(),
        }
    }

    /// An object with the names on the wire.
    pub(crate) fn fields_to_wire(&self, fields: &Map<String, Value>) -> Map<String, Value> {
        let wired = fields.iter().map(|(name, value)| {
            let value = self.inside(name).map_or_else(|| value.clone(), |keys| keys.to_wire(value));
            (self.wire_key(name).to_owned(), value)
        });
        wired.collect()
    }

    /// Restores the original names in a JSON text; all other bytes of its values stay. `None` if it is not JSON.
    pub(crate) fn restored(&self, text: &str) -> Option<String> {
        let mut out = String::with_capacity(text.len());
        self.write(text, &mut out)?;
        Some(out)
    }

    fn write(&self, text: &str, out: &mut String) -> Option<()> {
        let text = text.trim();
        match (text.as_bytes().first()?, &self.items) {
            (b'{', _) => {
                let mut json = serde_json::Deserializer::from_str(text);
                let fields = json.deserialize_map(FieldVisitor).ok()?;
                json.end().ok()?;
                out.push('{');
                for (at, (name, value)) in fields.into_iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { "," });
                    let name = self.names.get(&name).unwrap_or(&name);
                    out.push_str(&serde_json::to_string(name).ok()?);
                    out.push(':');
                    match self.inside(name) {
                        Some(keys) => keys.write(value.get(), out)?,
                        None => out.push_str(value.get()),
                    }
                }
                out.push('}');
            }
            (b'[', Some(keys)) => {
                let mut json = serde_json::Deserializer::from_str(text);
                let items = json.deserialize_seq(ItemVisitor).ok()?;
                json.end().ok()?;
                out.push('[');
                for (at, item) in items.into_iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { "," });
                    keys.write(item.get(), out)?;
                }
                out.push(']');
            }
            _ => out.push_str(serde_json::from_str::<&RawValue>(text).ok()?.get()),
        }
        Some(())
    }

    fn rename(&self, rules: &NameRules, schema: &mut Value) {
        let Some(fields) = schema.as_object_mut() else { return };
        for keyword in ["default", "const"] {
            if let Some(value) = fields.get_mut(keyword) {
                *value = self.to_wire(value);
            }
        }
        for keyword in ["enum", "examples"] {
            if let Some(Value::Array(values)) = fields.get_mut(keyword) {
                for value in values.iter_mut() {
                    *value = self.to_wire(value);
                }
            }
        }
        if !self.names.is_empty() {
            // NOTE: It is about the original names.
            fields.remove("propertyNames");
        }
        rename_lists(rules, fields);
        for (keyword, inside) in subschemas_mut(fields) {
            // Properties are renamed below, with their names.
            if keyword != "properties" {
                self.keys_of(keyword).rename(rules, inside);
            }
        }
        if let Some(Value::Object(properties)) = fields.get_mut("properties") {
            let renamed = std::mem::take(properties).into_iter().map(|(name, mut inside)| {
                self.properties.get(&name).unwrap_or(&PLAIN).rename(rules, &mut inside);
                match wire_name(rules, &name) {
                    Cow::Borrowed(_) => (name, inside),
                    Cow::Owned(wired) => {
                        describe(&name, &mut inside);
                        (wired, inside)
                    }
                }
            });
            *properties = renamed.collect();
        }
    }

    /// The names in a subschema other than a property.
    fn keys_of(&self, keyword: &str) -> &RenamedKeys {
        match keyword {
            "additionalProperties" | "unevaluatedProperties" | "patternProperties" => {
                self.others.as_deref().unwrap_or(&PLAIN)
            }
            "items" | "prefixItems" | "contains" | "unevaluatedItems" => {
                self.items.as_deref().unwrap_or(&PLAIN)
            }
            _ => self,
        }
    }
}

static PLAIN: RenamedKeys =
    RenamedKeys { names: BTreeMap::new(), properties: BTreeMap::new(), others: None, items: None };

/// Renames properties in lists of names.
fn rename_lists(rules: &NameRules, fields: &mut Map<String, Value>) {
    let wired = |name: &str| wire_name(rules, name).into_owned();
    let rename = |names: &mut Value| {
        for name in names.as_array_mut().into_iter().flatten() {
            if let Value::String(text) = name {
                *text = wired(text);
            }
        }
    };
    fields.get_mut("required").into_iter().for_each(rename);
    if let Some(Value::Object(all)) = fields.get_mut("dependentRequired") {
        all.values_mut().for_each(rename);
    }
    for keyword in ["dependentRequired", "dependentSchemas"] {
        if let Some(Value::Object(all)) = fields.get_mut(keyword) {
            *all = std::mem::take(all).into_iter().map(|(name, value)| (wired(&name), value)).collect();
        }
    }
}

/// Adds the original name of a renamed property to its description.
fn describe(name: &str, schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    let description = match fields.get("description").and_then(Value::as_str) {
        Some(words) => format!("`{name}`: {words}"),
        None => format!("`{name}`"),
    };
    fields.insert("description".to_owned(), json!(description));
}

/// Reads an object without reading its values.
struct FieldVisitor;

impl<'de> Visitor<'de> for FieldVisitor {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(fields)
    }
}

/// Reads a list without reading its items.
struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(items)
    }
}
