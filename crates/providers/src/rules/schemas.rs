//! The schemas that a server accepts, as data.

use super::names::NameRules;

/// The schemas that a server accepts, of the parameters of tools and of replies. Others are sent in a form that it
/// accepts, which says the same or less, and never more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemaRules {
    /// The names of properties; all if `None`.
    pub(crate) keys: Option<NameRules>,
    /// The keywords; all if `None`.
    pub(crate) keywords: Option<&'static [&'static str]>,
    /// Whether the parameters of a tool name their properties, if only none.
    pub(crate) needs_properties: bool,
    /// Whether alternatives name their types themselves, as `anyOf` only.
    pub(crate) types_in_alternatives: bool,
    /// The limit on the nesting of a schema.
    pub(crate) max_levels: usize,
    /// The limit on the tools of a request.
    pub(crate) max_tools: usize,
    /// Whether the schema of a reply has to be one of an object.
    pub(crate) object_replies: bool,
}

impl SchemaRules {
    /// OpenAI: any name of a property; the schema of a reply is one of an object.
    //
    // OpenAI's guide of structured outputs: "the root level object of a schema must be an object, and not use anyOf"
    // (quoted in github.com/juspay/neurolink/pull/1691). API reference, `tools`: "A max of 128 functions are supported."
    pub const OPENAI: Self = SchemaRules {
        keys: None,
        keywords: None,
        needs_properties: true,
        types_in_alternatives: false,
        max_levels: 64,
        max_tools: 128,
        object_replies: true,
    };

    /// A server on this machine, which generates replies by a grammar: any JSON.
    pub const LOCAL: Self = SchemaRules {
        needs_properties: false,
        max_tools: usize::MAX,
        object_replies: false,
        ..SchemaRules::OPENAI
    };

    /// The common subset of all servers, for gateways and unknown servers: as OpenAI, with the names of properties that
    /// Anthropic accepts.
    pub const COMMON: Self =
        SchemaRules { keys: Some(NameRules::ANTHROPIC_KEYS), max_tools: usize::MAX, ..SchemaRules::OPENAI };

    /// Anthropic.
    pub const ANTHROPIC: Self =
        SchemaRules { needs_properties: false, object_replies: false, ..SchemaRules::COMMON };

    /// Gemini, by its fields for JSON Schema: some keywords only.
    //
    // pub.dev/documentation/googleapis, `responseJsonSchema`: "While the full JSON Schema may be sent, not all features are
    // supported. Specifically, only the following properties are supported", `enum` "for strings and numbers". Defaults are
    // ignored (hexdocs.pm/geminix, Geminix.V1beta.Schema). References are written out, so that none has fields beside it.
    pub const GEMINI: Self = SchemaRules {
        keywords: Some(&[
            "type",
            "format",
            "title",
            "description",
            "default",
            "enum",
            "items",
            "prefixItems",
            "minItems",
            "maxItems",
            "minimum",
            "maximum",
            "anyOf",
            "oneOf",
            "properties",
            "additionalProperties",
            "required",
            "propertyOrdering",
        ]),
        needs_properties: false,
        // NOTE: Its parser accepts a hundred levels of JSON, and each level of a schema needs several.
        max_levels: 24,
        max_tools: 512,
        object_replies: false,
        ..SchemaRules::OPENAI
    };

    /// Moonshot (Kimi), which accepts a subset: types are inside of alternatives, and every required property is
    /// a known one.
    //
    // platform.kimi.ai/docs/api/tool-use: "The number of functions in tools currently cannot exceed 128."
    // github.com/vercel/ai/pull/18921 (`type` beside `anyOf`, tuples, `items: false`, unknown required properties),
    // github.com/MoonshotAI/kimi-cli/issues/2061 (words beside `$ref`).
    pub const MOONSHOT: Self = SchemaRules {
        keywords: Some(&[
            "type",
            "format",
            "pattern",
            "title",
            "description",
            "default",
            "enum",
            "items",
            "prefixItems",
            "minItems",
            "maxItems",
            "minLength",
            "maxLength",
            "minimum",
            "maximum",
            "anyOf",
            "properties",
            "additionalProperties",
            "required",
        ]),
        types_in_alternatives: true,
        ..SchemaRules::OPENAI
    };
}
