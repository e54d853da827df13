//! TOML as JSON that knows its lines: each fault is found by its path and shown by its place.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use stepfold::state_core::json_schema::ValueType;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::LineFault;
use super::form::TIME_PATTERN;
use super::schema::nearest;

/// A step on the way to a value: the name of a field, or the number of an item as text.
type Path = Vec<String>;

/// A TOML document.
pub(crate) struct Document {
    text: String,
    json: Value,
    /// The table that paths begin at.
    inside: Path,
    /// Where the key (or the item) of each path stands.
    places: BTreeMap<Path, Range<usize>>,
    faults: Vec<LineFault>,
    /// What was left out because it did not fit.
    dropped: Vec<Path>,
    /// The paths of all faults that have one.
    noted: Vec<Path>,
}

impl Document {
    /// Reads as much as can be read.
    pub(crate) fn parse(text: String) -> Self {
        let (places, faults) = (BTreeMap::new(), Vec::new());
        let (dropped, noted) = (Vec::new(), Vec::new());
        let (json, inside) = (Value::Null, Vec::new());
        let mut document = Document { text, json, inside, places, faults, dropped, noted };
        let text = document.text.clone();
        let (table, errors) = DeTable::parse_recoverable(&text);
        for error in errors {
            document.fault_at(error.span().map_or(0, |span| span.start), error.message().trim_end());
        }
        document.json = document.table(table.get_ref(), &mut Vec::new());
        document
    }

    fn table(&mut self, table: &DeTable<'_>, path: &mut Path) -> Value {
        let mut fields = Map::new();
        for (name, value) in table {
            path.push(name.get_ref().to_string());
            self.places.insert(path.clone(), name.span());
            let value = self.value(value, path);
            fields.insert(name.get_ref().to_string(), value);
            path.pop();
        }
        Value::Object(fields)
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>, path: &mut Path) -> Value {
        match value.get_ref() {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Boolean(truth) => Value::Bool(*truth),
            DeValue::Integer(number) => {
                let read = i64::from_str_radix(number.as_str(), number.radix()).ok();
                self.number(read.map(Value::from), value.span().start)
            }
            DeValue::Float(number) => {
                let read = number.as_str().parse::<f64>().ok().and_then(serde_json::Number::from_f64);
                self.number(read.map(Value::Number), value.span().start)
            }
            DeValue::Datetime(time) => Value::String(time.to_string()),
            DeValue::Array(items) => {
                let mut values = Vec::new();
                for (place, item) in items.iter().enumerate() {
                    path.push(place.to_string());
                    self.places.insert(path.clone(), item.span());
                    values.push(self.value(item, path));
                    path.pop();
                }
                Value::Array(values)
            }
            DeValue::Table(table) => self.table(table, path),
            // The kinds of TOML values are all here.
            #[allow(unreachable_patterns, reason = "the library may mark the kinds as open")]
            _ => Value::Null,
        }
    }

    fn number(&mut self, read: Option<Value>, start: usize) -> Value {
        read.unwrap_or_else(|| {
            self.fault_at(start, "this number has no JSON form: it is infinite, none, or beyond 64 bits");
            Value::Null
        })
    }

    /// The form that the document fills in, given its schema. What does not fit is a fault, and left out: so the rest
    /// can be looked at as well. None where nothing is left.
    pub(crate) fn form<F: DeserializeOwned>(&mut self, schema: &Value) -> Option<F> {
        // What was meant can only be guessed where it is no TOML.
        if !self.faults.is_empty() {
            return None;
        }
        let mut json = std::mem::take(&mut self.json);
        let schema = chosen(schema, &json);
        self.drop_unknown(&schema, &mut json, &mut Vec::new());
        self.drop_misfits(&schema, &mut json);
        self.json = json;
        match serde_json::from_value(self.json.clone()) {
            Ok(form) => Some(form),
            Err(error) => {
                // Whatever the schema found is the better word for it.
                if self.faults.is_empty() {
                    self.fault_at(0, &error.to_string());
                }
                None
            }
        }
    }

    /// Fields that the form does not have.
    fn drop_unknown(&mut self, schema: &Value, json: &mut Value, path: &mut Path) {
        match json {
            Value::Object(fields) => {
                let known = schema.get("properties").and_then(Value::as_object);
                let others = schema.get("additionalProperties");
                let mut unknown = Vec::new();
                for (name, value) in fields.iter_mut() {
                    path.push(name.clone());
                    match (known.and_then(|known| known.get(name)), others) {
                        (None, Some(Value::Bool(false))) => unknown.push(name.clone()),
                        (Some(schema), _) | (None, Some(schema)) => self.drop_unknown(schema, value, path),
                        (None, None) => {}
                    }
                    path.pop();
                }
                for name in unknown {
                    fields.shift_remove(&name);
                    let names = known.into_iter().flat_map(Map::keys).map(String::as_str);
                    let message = format!("there is no `{name}` here{}", nearest(&name, names));
                    path.push(name);
                    self.fault(path, message);
                    path.pop();
                }
            }
            Value::Array(items) => {
                let Some(schemas) = schema.get("prefixItems").and_then(Value::as_array) else { return };
                for ((place, item), schema) in items.iter_mut().enumerate().zip(schemas) {
                    path.push(place.to_string());
                    self.drop_unknown(schema, item, path);
                    path.pop();
                }
            }
            _ => {}
        }
    }

    /// Values that the form does not take.
    fn drop_misfits(&mut self, schema: &Value, json: &mut Value) {
        let Ok(checker) = ValueType::of_schema(schema.clone()) else {
            unreachable!("the schema of the form is one; a test reads it");
        };
        let Err(faults) = checker.check(json) else { return };
        let mut misfits = Vec::new();
        for fault in &faults {
            let path = steps(&fault.path);
            let message = in_words(schema, &path, &fault.message);
            let is_item = path.last().is_some_and(|step| step.parse::<usize>().is_ok());
            // An item of a list that lacks something is looked at as far as it goes.
            let is_kept = is_item && message.ends_with("is a required property");
            self.fault(&path, message);
            if !is_kept {
                misfits.push(path);
            }
        }
        for path in &misfits {
            remove(json, path);
        }
        drop_nulls(json);
        self.dropped.extend(misfits);
    }

    /// Whether there is a field of this name at the top.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.json.get(name).is_some()
    }

    /// Whether nothing at all stands there, although it could be read.
    pub(crate) fn is_empty(&self) -> bool {
        self.faults.is_empty() && self.json.as_object().is_some_and(Map::is_empty)
    }

    /// Does this with a table of the document as if it were all of it.
    pub(crate) fn within<T>(&mut self, table: &[&str], act: impl FnOnce(&mut Self) -> T) -> T {
        let inside = self.path(table);
        let outside = std::mem::replace(&mut self.inside, inside);
        let done = act(self);
        self.inside = outside;
        done
    }

    fn path(&self, steps: &[impl AsRef<str>]) -> Path {
        self.inside.iter().cloned().chain(steps.iter().map(|step| step.as_ref().to_owned())).collect()
    }

    /// Whether something at or below a path was left out because it did not fit.
    pub(crate) fn is_broken(&self, path: &[&str]) -> bool {
        let path = self.path(path);
        self.dropped.iter().any(|dropped| dropped.iter().zip(&path).all(|(dropped, step)| dropped == step))
    }

    /// The names in a table, in the order in which they stand in the file.
    pub(crate) fn names(&self, table: &[&str]) -> Vec<String> {
        let table = self.path(table).iter().try_fold(&self.json, step_into).and_then(Value::as_object);
        table.into_iter().flat_map(Map::keys).cloned().collect()
    }

    /// Notes a fault at a path, or as near to it as there is something.
    pub(crate) fn fault(&mut self, path: &[impl AsRef<str>], message: impl Into<String>) {
        let mut path = self.path(path);
        self.noted.push(path.clone());
        let start = loop {
            match self.places.get(&path) {
                Some(place) => break place.start,
                None if path.is_empty() => break 0,
                None => drop(path.pop()),
            }
        };
        self.fault_at(start, &message.into());
    }

    /// Whether a fault was noted at or below a path.
    pub(crate) fn has_fault_in(&self, path: &[&str]) -> bool {
        let path = self.path(path);
        self.noted.iter().any(|noted| noted.starts_with(&path))
    }

    fn fault_at(&mut self, start: usize, message: &str) {
        let before = self.text.get(..start).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let fault = LineFault { file: None, line, column, message: message.to_owned() };
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    pub(crate) fn faults(&self) -> &[LineFault] {
        &self.faults
    }

    /// The faults, in the order of the file.
    pub(crate) fn into_faults(mut self) -> Vec<LineFault> {
        self.faults.sort_by_key(|fault| (fault.line, fault.column));
        self.faults
    }
}

fn step_into<'a>(value: &'a Value, step: &String) -> Option<&'a Value> {
    match value {
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        value => value.get(step),
    }
}

/// The schema as it is for this value: where it has alternatives, the one of the value's type. So a fault is one of
/// the form that was meant, and not that nothing fits.
fn chosen(schema: &Value, value: &Value) -> Value {
    let mut schema = match schema.get("anyOf").and_then(Value::as_array) {
        None => schema.clone(),
        Some(branches) => match branches.iter().find(|branch| is_of(branch, value)) {
            Some(branch) => branch.clone(),
            None => {
                json!({"type": branches.iter().filter_map(|branch| branch.get("type")).collect::<Vec<_>>()})
            }
        },
    };
    match value {
        Value::Object(fields) => {
            let chosen_fields = fields.iter().filter_map(|(name, value)| {
                let named = schema.get("properties").and_then(|known| known.get(name));
                let field =
                    named.or_else(|| schema.get("additionalProperties").filter(|any| any.is_object()));
                Some((name.clone(), chosen(field?, value)))
            });
            let chosen_fields: Vec<_> = chosen_fields.collect();
            if !chosen_fields.is_empty() && schema.get("properties").is_none() {
                schema["properties"] = json!({});
            }
            for (name, field) in chosen_fields {
                schema["properties"][name] = field;
            }
        }
        Value::Array(items) => {
            if let Some(any) = schema.get("items").filter(|_| !items.is_empty()) {
                schema["prefixItems"] = items.iter().map(|item| chosen(any, item)).collect();
            }
        }
        _ => {}
    }
    schema
}

/// Whether a schema is for values of this type.
fn is_of(schema: &Value, value: &Value) -> bool {
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    schema.get("type").is_some_and(|of| of == name)
}

/// The steps of a JSON path such as `$.tools.count.command[0]` or `$["a b"]`.
fn steps(path: &str) -> Path {
    let mut steps = Vec::new();
    let mut rest = path.strip_prefix('$').unwrap_or(path);
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix("[\"") {
            let (name, behind) = quoted.split_once("\"]").unwrap_or((quoted, ""));
            steps.push(name.replace("\\\"", "\""));
            rest = behind;
        } else if let Some(number) = rest.strip_prefix('[') {
            let (number, behind) = number.split_once(']').unwrap_or((number, ""));
            steps.push(number.to_owned());
            rest = behind;
        } else {
            let name = rest.strip_prefix('.').unwrap_or(rest);
            let end = name.find(['.', '[']).unwrap_or(name.len());
            steps.push(name[..end].to_owned());
            rest = &name[end..];
        }
    }
    steps
}

/// A fault of the schema's, in words that say what to write instead.
fn in_words(schema: &Value, path: &[String], message: &str) -> String {
    if message.contains(TIME_PATTERN) {
        return "this is no time; write one such as 500ms, 30s or 2m".to_owned();
    }
    let schema = path.iter().try_fold(schema, |schema, step| {
        let named = schema.get("properties").and_then(|fields| fields.get(step));
        let item = || schema.get("prefixItems")?.get(step.parse::<usize>().ok()?);
        named.or_else(|| schema.get("additionalProperties")).or_else(item)
    });
    let branches = schema.and_then(|schema| schema.get("oneOf")).and_then(Value::as_array);
    let choices = branches.into_iter().flatten().filter_map(|branch| branch.get("const")?.as_str());
    let choices: Vec<&str> = choices.collect();
    if choices.is_empty() { message.to_owned() } else { format!("this is none of {}", choices.join(", ")) }
}

/// Leaves out the items that were removed, so that the rest of their lists is looked at. TOML has no null of its own.
fn drop_nulls(json: &mut Value) {
    match json {
        Value::Array(items) => {
            items.retain(|item| !item.is_null());
            items.iter_mut().for_each(drop_nulls);
        }
        Value::Object(fields) => fields.values_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn remove(json: &mut Value, path: &[String]) {
    let Some((last, way)) = path.split_last() else { return };
    let parent = way.iter().try_fold(json, |json, step| match json {
        Value::Object(fields) => fields.get_mut(step),
        Value::Array(items) => items.get_mut(step.parse::<usize>().ok()?),
        _ => None,
    });
    match parent {
        Some(Value::Object(fields)) => drop(fields.shift_remove(last)),
        // Items keep their places, for the faults behind them.
        Some(Value::Array(items)) => {
            if let Some(item) = last.parse::<usize>().ok().and_then(|place| items.get_mut(place)) {
                *item = Value::Null;
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_its_steps() {
        assert_eq!(steps("$"), Path::new());
        assert_eq!(steps("$.tools.count[0]"), ["tools", "count", "0"]);
        assert_eq!(steps(r#"$.state["user:name"].type"#), ["state", "user:name", "type"]);
    }

    #[test]
    fn a_fault_has_its_line() {
        let mut document = Document::parse("name = \"ä\"\n\n[state.\"a.b\"]\ntype = 1\n".to_owned());
        document.fault(&["state", "a.b", "type"], "x");
        document.fault(&["state", "a.b", "handler"], "y");
        let places: Vec<_> = document.faults().iter().map(|fault| (fault.line, fault.column)).collect();
        assert_eq!(places, [(4, 1), (3, 8)]);
    }
}
