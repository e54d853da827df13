//! A subscriber of `tracing` that keeps spans.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span;

/// Keeps the spans that it is told of.
#[derive(Clone, Default)]
pub(crate) struct Spans(Arc<Mutex<Vec<Seen>>>);

#[derive(Default)]
struct Seen {
    name: &'static str,
    parent: Option<u64>,
    fields: BTreeMap<&'static str, String>,
    is_closed: bool,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

impl tracing::Subscriber for Spans {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("stepfold_agent_loop")
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let mut spans = self.0.lock().unwrap();
        let parent = attributes.parent().map(span::Id::into_u64);
        let mut seen = Seen { name: attributes.metadata().name(), parent, ..Seen::default() };
        attributes.record(&mut seen);
        spans.push(seen);
        span::Id::from_u64(spans.len() as u64)
    }

    fn record(&self, id: &span::Id, values: &span::Record<'_>) {
        values.record(&mut self.0.lock().unwrap()[usize::try_from(id.into_u64()).unwrap() - 1]);
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}

    fn try_close(&self, id: span::Id) -> bool {
        self.0.lock().unwrap()[usize::try_from(id.into_u64()).unwrap() - 1].is_closed = true;
        true
    }
}

impl Spans {
    /// The spans of a run, numbered.
    pub(crate) async fn of<R>(run: impl IntoFuture<Output = R>) -> String {
        let spans = Spans::default();
        let _guard = tracing::subscriber::set_default(spans.clone());
        let _ = run.await;
        spans.text()
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (index, span) in self.0.lock().unwrap().iter().enumerate() {
            let parent = span.parent.map_or(String::new(), |parent| format!(" in {parent}"));
            let open = if span.is_closed { "" } else { ", still open" };
            text += &format!("{} {}{parent}{open}\n", index + 1, span.name);
            for (name, value) in &span.fields {
                text += &format!("  {name} = {value}\n");
            }
        }
        text
    }
}
