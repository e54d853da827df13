//! The deviations of a result from the protocol, for the trace.

/// The limit on the deviations of one result that are kept.
pub(super) const MAX_DEVIATIONS: usize = 8;

/// The deviations of a result from the protocol.
#[derive(Debug, Default)]
pub(crate) struct ProtocolDeviations(pub(super) Vec<String>);

impl ProtocolDeviations {
    pub(crate) fn add(&mut self, what: impl Into<String>) {
        let what = what.into();
        if self.0.len() < MAX_DEVIATIONS && !self.0.contains(&what) {
            self.0.push(what);
        }
    }

    /// All deviations in one line, for the trace; `None` if there are none.
    pub(crate) fn text(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.join("; "))
    }
}
