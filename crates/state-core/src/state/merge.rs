//! Merges one new value into one current value: pure, and validated before anything is stored.
//!
//! The cost of the check depends on the new value. Only three cases check the whole value: a custom handler,
//! a list with rules of its own (unique items, for example; not its length), and `merge_maps` into an object
//! with fixed fields.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Number, Value};

use super::error::{HandlerError, StateError};
use super::handler::{CustomHandler, Handler, MergeRule};
use super::value::{StoredValue, ValueContent};
use crate::depth;
use crate::faults::{Issue, Issues};
use crate::json_schema::{ValueKinds, ValueType};
use crate::list::List;

/// The parameters of a merge: the key, the handler, and the type of the result.
pub(crate) struct KeyMerge<'a> {
    pub(crate) key: &'a str,
    pub(crate) value_type: &'a ValueType,
    pub(crate) handler: &'a Handler,
}

impl KeyMerge<'_> {
    /// Merges the values. The current value is unchanged.
    pub(crate) fn merge(&self, current: Option<&StoredValue>, new: Value) -> Result<StoredValue, StateError> {
        let incoming = self.prepare(new)?;
        match &self.handler.0 {
            MergeRule::ReplaceValues => Ok(StoredValue::from(incoming)),
            MergeRule::FirstWins => Ok(current
                .filter(|stored| !stored.view().is_null())
                .cloned()
                .unwrap_or_else(|| incoming.into())),
            MergeRule::MergeLists => self.merge_lists(current, incoming, None),
            MergeRule::KeepLast(count) => self.merge_lists(current, incoming, Some(*count)),
            MergeRule::Union => self.union(current, incoming),
            MergeRule::UpsertBy(field) => self.upsert(current, incoming, field),
            MergeRule::MergeMaps => self.merge_maps(current, incoming),
            MergeRule::Sum => self.scalar(current, &incoming, add),
            MergeRule::Max => {
                self.scalar(current, &incoming, |current, new| pick(current, new, Ordering::Less))
            }
            MergeRule::Min => {
                self.scalar(current, &incoming, |current, new| pick(current, new, Ordering::Greater))
            }
            MergeRule::Custom(custom) => self.custom(custom, current, incoming),
        }
    }

    /// Checks a new value as far as possible without the current one, and normalises it for storage: a list
    /// for list handlers.
    pub(crate) fn prepare(&self, new: Value) -> Result<Value, StateError> {
        if let Some(fault) = self.handler.fault() {
            return Err(self.merge_error(fault.to_owned()));
        }
        let incoming = match &self.handler.0 {
            MergeRule::MergeLists | MergeRule::KeepLast(_) | MergeRule::Union => {
                return self.prepare_items(new);
            }
            MergeRule::UpsertBy(field) => return self.prepare_objects(new, field),
            _ => new,
        };
        self.check_depth(&incoming)?;
        match &self.handler.0 {
            MergeRule::ReplaceValues | MergeRule::FirstWins => self.check_whole(&incoming)?,
            MergeRule::Sum | MergeRule::Max | MergeRule::Min
                if !self.value_type.kinds().contains(ValueKinds::of_value(&incoming)) =>
            {
                self.check_whole(&incoming)?;
            }
            // NOTE: Null may be a value of the type, but it is not a number, and the fold would fail.
            MergeRule::Sum | MergeRule::Max | MergeRule::Min if incoming.is_null() => {
                return Err(self.merge_error(
                    "expected a number, found null; write null with replace_values".to_owned(),
                ));
            }
            MergeRule::MergeMaps if !incoming.is_object() => {
                return Err(self
                    .merge_error(format!("expected an object, found {}", ValueKinds::of_value(&incoming))));
            }
            // NOTE: The new fields of any other object may be partial, so it is checked as a whole, after the merge.
            MergeRule::MergeMaps if self.value_type.is_open_map() => self.check_whole(&incoming)?,
            _ => {}
        }
        Ok(incoming)
    }

    fn prepare_items(&self, new: Value) -> Result<Value, StateError> {
        // NOTE: Null is one item of a list. If the type also allows null itself, the author may mean that.
        let is_nullable_null = new.is_null() && self.value_type.kinds().contains(ValueKinds::NULL);
        let (items, was_bare) = as_list(new);
        self.check_depth(&items)?;
        self.value_type.check_items(&items).map_err(|mut faults| {
            if was_bare {
                faults = faults.map_paths(|path| path.replacen("$[0]", "$", 1));
            }
            if is_nullable_null {
                faults.push(Issue::new("$", "write null with replace_values"));
            }
            self.type_error(faults)
        })?;
        Ok(items)
    }

    /// Objects merged by a field may be partial, so only the field is checked here. A bare null is the new
    /// value, where the type allows it.
    fn prepare_objects(&self, new: Value, field: &str) -> Result<Value, StateError> {
        if new.is_null() && self.value_type.kinds().contains(ValueKinds::NULL) {
            return Ok(new);
        }
        let (items, _) = as_list(new);
        self.check_depth(&items)?;
        for (index, item) in items.as_array().into_iter().flatten().enumerate() {
            if item.get(field).is_none() {
                return Err(self
                    .merge_error(format!("expected an object with field \"{field}\" for new item {index}")));
            }
        }
        Ok(items)
    }

    fn merge_lists(
        &self,
        current: Option<&StoredValue>,
        new: Value,
        keep: Option<usize>,
    ) -> Result<StoredValue, StateError> {
        let (mut items, was_list) = current_items(current);
        items.extend(into_items(new).into_iter().map(Arc::new));
        if let Some(count) = keep {
            items.keep_last(count);
        }
        self.finish_list(items, was_list)
    }

    fn union(&self, current: Option<&StoredValue>, new: Value) -> Result<StoredValue, StateError> {
        let (current_list, was_list) = current_items(current);
        let mut items = current_list.clone();
        let new: Vec<Arc<Value>> = into_items(new).into_iter().map(Arc::new).collect();
        // NOTE: For one item, a scan costs less than a set of all current items.
        if new.len() == 1 {
            items.extend(new.into_iter().filter(|item| !current_list.iter().any(|known| known == item)));
        } else {
            let mut seen: HashSet<&Value> = current_list.iter().map(|item| &**item).collect();
            items.extend(new.iter().filter(|item| seen.insert(item)).cloned());
        }
        self.finish_list(items, was_list)
    }

    fn upsert(
        &self,
        current: Option<&StoredValue>,
        new: Value,
        field: &str,
    ) -> Result<StoredValue, StateError> {
        if new.is_null() {
            return Ok(StoredValue::from(new));
        }
        let (current_list, was_list) = current_items(current);
        let mut items = current_list.clone();
        let new = into_items(new);
        let mut lookup = ObjectLookup::new(&current_list, field, &new);
        for (index, item) in new.into_iter().enumerate() {
            let id = item.get(field).cloned().unwrap_or_default();
            if let Some(place) = lookup.find(&id) {
                let merged = merge_fields(&items[place], item);
                items.set(place, Arc::new(self.checked_item(merged, index)?));
            } else {
                lookup.insert(id, items.len());
                items.push(Arc::new(self.checked_item(item, index)?));
            }
        }
        self.finish_list(items, was_list)
    }

    /// Checks an item merged from a partial one.
    fn checked_item(&self, item: Value, index: usize) -> Result<Value, StateError> {
        let wrapped = Value::Array(vec![item]);
        self.value_type.check_items(&wrapped).map_err(|faults| {
            self.type_error(faults.map_paths(|path| path.replacen("[0]", &format!("[{index}]"), 1)))
        })?;
        Ok(into_items(wrapped).pop().unwrap_or_default())
    }

    /// Checks the properties of the list as a whole: whether the key can hold a list, and the list's own rules.
    fn finish_list(&self, items: List<Arc<Value>>, was_list: bool) -> Result<StoredValue, StateError> {
        let stored = StoredValue::list(items);
        let length = stored.view().len().unwrap_or_default();
        let may_be_rejected = self.value_type.may_reject_list_of(length);
        if !was_list || may_be_rejected || !self.value_type.kinds().contains(ValueKinds::ARRAY) {
            // NOTE: The only writes to a list that cost its whole length (docs/decisions/state.md).
            self.check_whole(&stored.view().to_json())?;
        }
        Ok(stored)
    }

    fn merge_maps(&self, current: Option<&StoredValue>, new: Value) -> Result<StoredValue, StateError> {
        let mut merged = match current.map(|stored| stored.view().to_json()) {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(fields)) => fields,
            Some(other) => {
                return Err(self.merge_error(format!(
                    "expected an object as the current value, found {}",
                    ValueKinds::of_value(&other)
                )));
            }
        };
        if let Value::Object(fields) = new {
            merged.extend(fields);
        }
        let merged = Value::Object(merged);
        if !self.value_type.is_open_map() {
            self.check_whole(&merged)?;
        }
        Ok(StoredValue::from(merged))
    }

    fn scalar(
        &self,
        current: Option<&StoredValue>,
        new: &Value,
        combine: impl Fn(&Value, &Value) -> Result<Value, HandlerError>,
    ) -> Result<StoredValue, StateError> {
        let neutral = Value::Null;
        let current = current.and_then(|stored| stored.view().as_json()).unwrap_or(&neutral);
        let merged = combine(current, new).map_err(|source| self.merge_error_of(source))?;
        self.check_whole(&merged)?;
        Ok(StoredValue::from(merged))
    }

    fn custom(
        &self,
        custom: &CustomHandler,
        current: Option<&StoredValue>,
        new: Value,
    ) -> Result<StoredValue, StateError> {
        let Some(merge) = &custom.merge else {
            return Err(self.merge_error("no function is registered for this name".to_owned()));
        };
        let current = current.map(|stored| stored.view().to_json());
        let merged = merge(current.as_ref(), new).map_err(|source| self.merge_error_of(source))?;
        // NOTE: The function could return anything.
        self.check_depth(&merged)?;
        self.check_whole(&merged)?;
        Ok(StoredValue::from(merged))
    }

    pub(crate) fn check_whole(&self, value: &Value) -> Result<(), StateError> {
        self.value_type.check(value).map_err(|faults| self.type_error(faults))
    }

    pub(crate) fn check_depth(&self, value: &Value) -> Result<(), StateError> {
        if depth::exceeds(value, depth::MAX_DEPTH) {
            return Err(StateError::TooDeep { key: self.key.to_owned() });
        }
        Ok(())
    }

    fn type_error(&self, faults: Issues) -> StateError {
        StateError::WrongType { key: self.key.to_owned(), expected: self.value_type.to_string(), faults }
    }

    fn merge_error(&self, message: String) -> StateError {
        self.merge_error_of(HandlerError::from(message))
    }

    fn merge_error_of(&self, source: HandlerError) -> StateError {
        StateError::Merge { key: self.key.to_owned(), handler: self.handler.to_string(), source }
    }
}

/// A list unchanged, any other value as a list of one item; and whether it was wrapped.
fn as_list(value: Value) -> (Value, bool) {
    match value {
        Value::Array(_) => (value, false),
        bare => (Value::Array(vec![bare]), true),
    }
}

fn into_items(list: Value) -> Vec<Value> {
    match list {
        Value::Array(items) => items,
        bare => vec![bare],
    }
}

/// The current items, and whether they were a list of the declared type: absent and null count as empty, any
/// other value is wrapped and must be checked as an item.
fn current_items(current: Option<&StoredValue>) -> (List<Arc<Value>>, bool) {
    match current.map(|stored| &stored.0) {
        None => (List::new(), true),
        Some(ValueContent::List(items)) => (items.clone(), true),
        Some(ValueContent::Json(value)) if value.is_null() => (List::new(), true),
        Some(ValueContent::Json(value)) => (std::iter::once(Arc::clone(value)).collect(), false),
    }
}

/// Finds the object with an id: by a linear search, or by an index of all ids that are searched.
struct ObjectLookup<'a> {
    list: &'a List<Arc<Value>>,
    field: &'a str,
    index: Option<HashMap<Value, usize>>,
}

impl<'a> ObjectLookup<'a> {
    fn new(list: &'a List<Arc<Value>>, field: &'a str, new: &[Value]) -> Self {
        // NOTE: For one object, a scan costs less than an index of the list.
        let index = (new.len() > 1).then(|| {
            let sought: HashSet<&Value> = new.iter().filter_map(|item| item.get(field)).collect();
            let mut index = HashMap::new();
            for (place, item) in list.iter().enumerate() {
                if let Some(id) = item.get(field).filter(|id| sought.contains(id)) {
                    // The first of several objects with one id is used.
                    index.entry(id.clone()).or_insert(place);
                }
            }
            index
        });
        ObjectLookup { list, field, index }
    }

    fn find(&self, id: &Value) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(id).copied(),
            None => self.list.iter().position(|item| item.get(self.field) == Some(id)),
        }
    }

    fn insert(&mut self, id: Value, place: usize) {
        if let Some(index) = &mut self.index {
            index.insert(id, place);
        }
    }
}

/// The current object, overwritten by the fields of the new one.
fn merge_fields(current: &Value, new: Value) -> Value {
    match (current, new) {
        (Value::Object(current), Value::Object(new)) => {
            let mut merged = current.clone();
            merged.extend(new);
            Value::Object(merged)
        }
        (_, new) => new,
    }
}

fn add(current: &Value, new: &Value) -> Result<Value, HandlerError> {
    let new = number(new)?;
    if current.is_null() {
        return Ok(Value::Number(new.clone()));
    }
    let current = number(current)?;
    let sum = match (current.as_i128(), new.as_i128()) {
        // NOTE: The sum of two 64-bit integers always fits `i128`.
        (Some(current), Some(new)) => integer(current + new),
        _ => current.as_f64().zip(new.as_f64()).and_then(|(current, new)| Number::from_f64(current + new)),
    };
    sum.map(Value::Number).ok_or_else(|| HandlerError::new("the sum does not fit 64 bits"))
}

fn integer(value: i128) -> Option<Number> {
    i64::try_from(value).map(Number::from).or_else(|_| u64::try_from(value).map(Number::from)).ok()
}

/// The new value if the comparison with the current one gives `wanted`, otherwise the current one.
fn pick(current: &Value, new: &Value, wanted: Ordering) -> Result<Value, HandlerError> {
    let ordering = match (current, new) {
        (Value::Null, Value::Number(_) | Value::String(_)) => wanted,
        (Value::String(current), Value::String(new)) => current.cmp(new),
        (Value::Number(current), Value::Number(new)) => compare(current, new),
        (current, new) => {
            let (new, current) = (ValueKinds::of_value(new), ValueKinds::of_value(current));
            return Err(HandlerError::from(format!(
                "expected two numbers or two strings, found {new} and the current {current}"
            )));
        }
    };
    Ok(if ordering == wanted { new.clone() } else { current.clone() })
}

fn number(value: &Value) -> Result<&Number, HandlerError> {
    match value {
        Value::Number(number) => Ok(number),
        other => Err(HandlerError::from(format!("expected a number, found {}", ValueKinds::of_value(other)))),
    }
}

/// Compares exactly, including integers that have no exact float.
fn compare(left: &Number, right: &Number) -> Ordering {
    match (left.as_i128(), right.as_i128()) {
        // NOTE: A JSON number is a 64-bit integer or a float, so the defaults below are never used.
        (Some(left), Some(right)) => left.cmp(&right),
        (Some(left), None) => compare_mixed(left, right.as_f64().unwrap_or_default()),
        (None, Some(right)) => compare_mixed(right, left.as_f64().unwrap_or_default()).reverse(),
        (None, None) => left.as_f64().unwrap_or_default().total_cmp(&right.as_f64().unwrap_or_default()),
    }
}

fn compare_mixed(integer: i128, float: f64) -> Ordering {
    // A float outside the range of 64-bit integers saturates, and still compares correctly.
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and only the integer part is needed")]
    let whole = float.floor() as i128;
    integer.cmp(&whole).then(if float.fract() == 0.0 { Ordering::Equal } else { Ordering::Less })
}
