//! Resources of the application for its tools, by type.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Resources of the application that tools request by type.
///
/// # Examples
/// ```
/// use stepfold_tools::Resources;
///
/// struct Clock(u64);
///
/// let resources = Resources::new().with(Clock(7));
/// assert_eq!(resources.get::<Clock>().unwrap().0, 7);
/// assert!(resources.get::<String>().is_none());
/// ```
#[derive(Clone, Default)]
pub struct Resources(Arc<HashMap<TypeId, NamedResource>>);

/// A resource with the name of its type.
type NamedResource = (&'static str, Arc<dyn Any + Send + Sync>);

impl Resources {
    /// No resources.
    pub fn new() -> Self {
        Resources::default()
    }

    /// Adds a resource; replaces one of the same type.
    #[must_use]
    pub fn with<T: Send + Sync + 'static>(mut self, resource: T) -> Self {
        // NOTE: Copies the map only if a clone exists: runs share it.
        Arc::make_mut(&mut self.0).insert(TypeId::of::<T>(), (type_name::<T>(), Arc::new(resource)));
        self
    }

    /// The resource of a type.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let (_, resource) = self.0.get(&TypeId::of::<T>())?;
        Arc::clone(resource).downcast().ok()
    }

    pub(crate) fn has(&self, id: TypeId) -> bool {
        self.0.contains_key(&id)
    }
}

impl fmt::Debug for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.values().map(|(name, _)| name)).finish()
    }
}
