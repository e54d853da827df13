//! Sources that a reply cites.

use serde_json::Value;

use super::{Extras, Message};

/// The extra of a message or a part that holds the citations, in the provider's form.
pub const CITATIONS: &str = "citations";

/// A source that a reply cites, with the fields that the provider reports.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::chat::{CITATIONS, Message};
///
/// let citations =
///     json!([{"type": "url_citation", "url": "https://x.test", "title": "Stalls", "start_index": 0, "end_index": 4}]);
/// let message = Message::assistant("area 3").with_extra(CITATIONS, citations);
/// let citation = &message.citations()[0];
/// assert_eq!((citation.url.as_deref(), citation.title.as_deref()), (Some("https://x.test"), Some("Stalls")));
/// assert_eq!((citation.start, citation.end), (Some(0), Some(4)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Citation {
    /// The URL of the source.
    pub url: Option<String>,
    /// The title of the source.
    pub title: Option<String>,
    /// The quoted text.
    pub text: Option<String>,
    /// The start of the citing text in the reply, or of the cited text in the source; units depend on the
    /// provider.
    pub start: Option<u64>,
    /// The end of that text.
    pub end: Option<u64>,
}

impl Message {
    /// The sources that the message and its parts cite, in order.
    pub fn citations(&self) -> Vec<Citation> {
        let all = [self.extras()].into_iter().chain(self.parts().iter().map(|part| &part.extras));
        let lists = all.filter_map(|extras: &Extras| extras.get(CITATIONS)?.as_array());
        lists.flatten().map(Citation::read).collect()
    }
}

impl Citation {
    fn read(value: &Value) -> Self {
        // Some providers wrap the citation, and some send only its URL.
        let inner = ["url_citation", "web", "citation"].iter().find_map(|name| value.get(*name));
        let fields = inner.unwrap_or(value);
        let text = |names: &[&str]| {
            let found = names.iter().find_map(|name| fields.get(*name)?.as_str());
            found.map(str::to_owned)
        };
        let number = |names: &[&str]| names.iter().find_map(|name| fields.get(*name)?.as_u64());
        Citation {
            url: value.as_str().map(str::to_owned).or_else(|| text(&["url", "uri", "source"])),
            title: text(&["title", "document_title", "filename"]),
            text: text(&["cited_text", "text", "snippet"]),
            start: number(&[
                "start_index",
                "start_char_index",
                "start_page_number",
                "start_block_index",
                "index",
            ]),
            end: number(&["end_index", "end_char_index", "end_page_number", "end_block_index"]),
        }
    }
}
