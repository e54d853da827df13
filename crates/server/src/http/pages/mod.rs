//! Pages for browsers: the studio, which is embedded, and adk-web, from a folder.

pub(super) mod adk_web;
pub(super) mod studio;
