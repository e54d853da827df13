//! The model: sessions as lists of events, each with what it is after erasures.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_json::{Map, Value, json};
use stepfold_session_scopes::{Digest, Event, SessionKey};

/// The number of items that a list is left with.
pub(super) const WINDOW: usize = 2;

/// A write to a session, or to its user.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// To the number of the session.
    Add(i64),
    /// To its list.
    Push(String),
    /// To its list, of which the last items are left.
    PushLast(String),
    /// Its value without a schema.
    Replace(String),
    Remove(&'static str),
    /// To the list of the user.
    ForUser(String),
}

impl Change {
    fn key(&self) -> &'static str {
        match self {
            Change::Add(_) => "n",
            Change::Push(_) | Change::PushLast(_) => "list",
            Change::Replace(_) => "free",
            Change::Remove(key) => key,
            Change::ForUser(_) => "user:list",
        }
    }

    fn apply(&self, values: &mut Map<String, Value>) {
        match self {
            Change::Add(more) => {
                let before = values.get("n").and_then(Value::as_i64).unwrap_or(0);
                values.insert("n".to_owned(), json!(before + more));
            }
            Change::Push(item) => match values.get_mut("list").and_then(Value::as_array_mut) {
                Some(list) => list.push(json!(item)),
                None => drop(values.insert("list".to_owned(), json!([item]))),
            },
            Change::PushLast(item) => {
                Change::Push(item.clone()).apply(values);
                let list = values.get_mut("list").and_then(Value::as_array_mut).unwrap();
                list.drain(..list.len().saturating_sub(WINDOW));
            }
            Change::Replace(text) => drop(values.insert("free".to_owned(), json!(text))),
            Change::Remove(key) => drop(values.remove(*key)),
            Change::ForUser(_) => {}
        }
    }

    fn marker(&self) -> Option<&String> {
        match self {
            Change::Push(text) | Change::PushLast(text) | Change::Replace(text) | Change::ForUser(text) => {
                Some(text)
            }
            Change::Add(_) | Change::Remove(_) => None,
        }
    }
}

/// An event, which forks share.
#[derive(Clone, Debug)]
pub(super) struct ModelEvent {
    pub(super) id: String,
    /// The number of the session that it was appended to.
    owner: u64,
    text: Option<String>,
    changes: Vec<Change>,
    rewound_to: Option<u64>,
    pub(super) is_erased: bool,
}

impl ModelEvent {
    /// The texts of its messages.
    pub(super) fn text(&self) -> Option<&str> {
        let text = self.text.as_deref()?;
        Some(if self.is_erased { Event::ERASED } else { text })
    }

    fn apply(&self, values: &mut Map<String, Value>) {
        for change in &self.changes {
            match self.is_erased {
                true => Change::Remove(change.key()).apply(values),
                false => change.apply(values),
            }
        }
    }

    /// Its keys, each with whether it lists a removal.
    pub(super) fn written(&self) -> Vec<(&'static str, bool)> {
        let is_removal = |change: &Change| self.is_erased || matches!(change, Change::Remove(_));
        self.changes.iter().map(|change| (change.key(), is_removal(change))).collect()
    }
}

/// The content of a session.
#[derive(Clone, Debug)]
pub(super) struct ModelSession {
    pub(super) number: u64,
    /// The number of the session that was created with its first values.
    first: u64,
    parent: Option<u64>,
    /// The id of its origin, which a fork names also after the origin was deleted.
    origin: Option<String>,
    pub(super) events: Vec<Rc<RefCell<ModelEvent>>>,
    /// The values at each version, from 0.
    pub(super) values: Vec<Map<String, Value>>,
    /// The visible versions at each version.
    pub(super) visible: Vec<Vec<u64>>,
    /// The digests that were read at each version.
    pub(super) heads: Vec<Option<Digest>>,
    pub(super) oldest: u64,
    pub(super) labels: BTreeMap<String, u64>,
    /// The texts of waiting messages by their position.
    pub(super) inbox: BTreeMap<u64, String>,
}

impl ModelSession {
    pub(super) fn new(number: u64, values: Map<String, Value>) -> Self {
        ModelSession {
            number,
            first: number,
            parent: None,
            origin: None,
            events: Vec::new(),
            values: vec![values],
            visible: vec![Vec::new()],
            heads: vec![None],
            oldest: 0,
            labels: BTreeMap::new(),
            inbox: BTreeMap::new(),
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.events.len() as u64
    }

    fn add(&mut self, event: ModelEvent) {
        let version = self.version() + 1;
        let base = usize::try_from(event.rewound_to.unwrap_or(version - 1)).unwrap();
        let (mut values, mut visible) = (self.values[base].clone(), self.visible[base].clone());
        event.apply(&mut values);
        visible.push(version);
        self.events.push(Rc::new(RefCell::new(event)));
        self.values.push(values);
        self.visible.push(visible);
        self.heads.push(None);
    }

    pub(super) fn append(&mut self, id: String, text: Option<String>, changes: Vec<Change>) {
        let (owner, rewound_to, is_erased) = (self.number, None, false);
        self.add(ModelEvent { id, owner, text, changes, rewound_to, is_erased });
    }

    pub(super) fn rewind(&mut self, id: String, to: u64) {
        let (owner, text, changes, is_erased) = (self.number, None, Vec::new(), false);
        self.add(ModelEvent { id, owner, text, changes, rewound_to: Some(to), is_erased });
    }

    pub(super) fn fork(&self, id: &str, number: u64, at: u64) -> Self {
        let (events, states) = (usize::try_from(at).unwrap(), usize::try_from(at).unwrap() + 1);
        ModelSession {
            number,
            first: self.first,
            parent: Some(self.number),
            origin: Some(id.to_owned()),
            events: self.events[..events].to_vec(),
            values: self.values[..states].to_vec(),
            visible: self.visible[..states].to_vec(),
            heads: self.heads[..states].to_vec(),
            labels: BTreeMap::new(),
            inbox: BTreeMap::new(),
            oldest: self.oldest,
        }
    }

    /// A session of its own, made of the events of this one.
    pub(super) fn imported(&self, number: u64) -> Self {
        let mut made = ModelSession::new(number, self.values[0].clone());
        for event in &self.events {
            made.add(ModelEvent { owner: number, ..event.borrow().clone() });
        }
        ModelSession { labels: self.labels.clone(), ..made }
    }

    /// The events that retention has left, with their versions.
    pub(super) fn left(&self) -> impl Iterator<Item = (u64, &Rc<RefCell<ModelEvent>>)> {
        (1..).zip(&self.events).skip(usize::try_from(self.oldest).unwrap())
    }

    pub(super) fn erased(&self) -> impl Iterator<Item = u64> {
        self.left().filter(|(_, event)| event.borrow().is_erased).map(|(version, _)| version)
    }

    /// Erases events; returns how many had their content.
    pub(super) fn erase(&self, versions: &BTreeSet<u64>) -> Option<u64> {
        let range = self.oldest + 1..=self.version();
        if !versions.iter().all(|version| range.contains(version)) {
            return None;
        }
        let event = |version: &u64| &self.events[usize::try_from(*version).unwrap() - 1];
        let erased = versions.iter().map(|version| !event(version).replace_with(erased).is_erased);
        Some(erased.filter(|is_new| *is_new).count() as u64)
    }

    fn add_markers(&self, markers: &mut BTreeSet<String>) {
        for (_, event) in self.left() {
            let event = event.borrow();
            if !event.is_erased {
                markers.extend(event.text.clone());
                markers.extend(event.changes.iter().filter_map(Change::marker).cloned());
            }
        }
        let values = self.values.iter().skip(usize::try_from(self.oldest).unwrap());
        for values in values {
            markers.extend(values.get("free").and_then(Value::as_str).map(str::to_owned));
            let list = values.get("list").and_then(Value::as_array).into_iter().flatten();
            markers.extend(list.filter_map(Value::as_str).map(str::to_owned));
        }
        markers.extend(self.origin.clone());
        markers.extend(self.labels.keys().cloned());
        markers.extend(self.inbox.values().cloned());
    }
}

fn erased(event: &mut ModelEvent) -> ModelEvent {
    let mut left = event.clone();
    left.is_erased = true;
    left
}

/// The content of a store.
#[derive(Default)]
pub(super) struct Model {
    pub(super) sessions: BTreeMap<SessionKey, ModelSession>,
    /// The lists of users.
    pub(super) users: BTreeMap<String, Vec<String>>,
    pub(super) next: u64,
}

impl Model {
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The sessions that go with one: its forks, theirs, and all that share an event or the first values of
    /// theirs, or did before retention.
    pub(super) fn family(&self, key: &SessionKey) -> BTreeSet<SessionKey> {
        let mut numbers = BTreeSet::from([self.sessions[key].number]);
        loop {
            let before = numbers.len();
            for session in self.sessions.values() {
                let has_first = numbers.contains(&session.first);
                let has_shared = session.events.iter().any(|event| numbers.contains(&event.borrow().owner));
                if has_first || has_shared || session.parent.is_some_and(|parent| numbers.contains(&parent)) {
                    numbers.insert(session.number);
                }
            }
            if numbers.len() == before {
                break;
            }
        }
        let of = self.sessions.iter().filter(|(_, session)| numbers.contains(&session.number));
        of.map(|(key, _)| key.clone()).collect()
    }

    /// All content that must still be there.
    pub(super) fn markers(&self) -> BTreeSet<String> {
        let mut markers: BTreeSet<String> = self.users.values().flatten().cloned().collect();
        for (key, session) in &self.sessions {
            markers.insert(key.id.as_str().to_owned());
            session.add_markers(&mut markers);
        }
        markers
    }

    /// Each session with its origin, and the sessions that its events were appended to.
    pub(super) fn histories(&self) -> Vec<String> {
        let owners = |session: &ModelSession| {
            session.events.iter().map(|event| event.borrow().owner).collect::<Vec<_>>()
        };
        let of = |(key, session): (&SessionKey, &ModelSession)| {
            let ModelSession { number, parent, oldest, .. } = session;
            format!("{} is {number}, from {parent:?}, after {oldest}: {:?}", key.id, owners(session))
        };
        self.sessions.iter().map(of).collect()
    }
}
