//! The deviations of a result from the protocol, for the trace.

/// What is told of one result at most.
pub(super) const MAX_DEVIATIONS: usize = 8;

/// What a server did that the protocol does not say.
#[derive(Debug, Default)]
pub(crate) struct ProtocolDeviations(pub(super) Vec<String>);

impl ProtocolDeviations {
    pub(crate) fn add(&mut self, what: impl Into<String>) {
        let what = what.into();
        if self.0.len() < MAX_DEVIATIONS && !self.0.contains(&what) {
            self.0.push(what);
        }
    }

    /// All of it, for a person; none if there was nothing.
    pub(crate) fn text(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.join("; "))
    }
}
