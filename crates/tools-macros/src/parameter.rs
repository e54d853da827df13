//! Classifies the parameters of a tool function: arguments, which the model sends, and extractors.

use syn::ext::IdentExt;
use syn::punctuated::Punctuated;
use syn::{Attribute, Error, Expr, FnArg, Ident, LitStr, Meta, Pat, PatType, Result, Token, Type};

use crate::errors::CompileErrors;

/// The extractors of `stepfold-tools`, recognised by the last segment of their path.
// NOTE: A macro sees tokens and not types: an alias of an extractor must be marked `#[extract]`.
const EXTRACTORS: [&str; 6] = ["Args", "RawArgs", "FromState", "StateWriter", "Resource", "ToolContext"];
/// The extractors that take all arguments.
const WHOLE_ARGUMENTS: [&str; 2] = ["Args", "RawArgs"];
/// The maximum number of extractors that the function API supports.
const MAX_EXTRACTORS: usize = 8;

/// A parameter of the function, in source order.
pub(crate) enum ToolParameter {
    Argument(Box<ToolArgument>),
    Extractor(ExtractorParameter),
}

/// A parameter that becomes a field of the arguments.
pub(crate) struct ToolArgument {
    pub(crate) name: Ident,
    pub(crate) ty: Type,
    /// Documentation, and attributes for serde or schemars.
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) default: Option<DefaultValue>,
    pub(crate) binding: Option<StateBinding>,
}

/// The value of an argument that the model omits.
pub(crate) enum DefaultValue {
    OfType,
    Expression(Expr),
}

/// The state key that an argument is read from.
pub(crate) struct StateBinding {
    pub(crate) key: LitStr,
    /// Whether the model sees the argument too; its value then takes precedence.
    pub(crate) is_visible: bool,
}

/// A parameter that is extracted from the call's context.
pub(crate) struct ExtractorParameter {
    /// The type without `&`.
    pub(crate) ty: Box<Type>,
    /// Whether the function borrows it.
    pub(crate) is_borrowed: bool,
}

/// The helper attributes of one parameter.
#[derive(Default)]
struct HelperAttributes {
    forwarded: Vec<Attribute>,
    default: Option<DefaultValue>,
    binding: Option<StateBinding>,
    is_extractor: bool,
    /// An attribute that only an argument may have.
    argument_only: Option<Attribute>,
}

/// Parses the parameters, and removes the attributes that only the macro understands.
pub(crate) fn take(
    inputs: &mut Punctuated<FnArg, Token![,]>,
    errors: &mut CompileErrors,
) -> Vec<ToolParameter> {
    let mut parameters = Vec::new();
    for input in inputs.iter_mut() {
        match input {
            FnArg::Receiver(receiver) => {
                errors.at(receiver, "a tool function cannot be a method: pass the value as a `Resource`");
            }
            FnArg::Typed(input) => {
                let helpers = HelperAttributes::take(&mut input.attrs, errors);
                parameters.extend(
                    errors
                        .keep(ToolParameter::new(input, helpers))
                        .map(|parameter| (parameter, input.clone())),
                );
            }
        }
    }
    check_together(&parameters, errors);
    parameters.into_iter().map(|(parameter, _)| parameter).collect()
}

fn check_together(parameters: &[(ToolParameter, PatType)], errors: &mut CompileErrors) {
    let has_arguments =
        parameters.iter().any(|(parameter, _)| matches!(parameter, ToolParameter::Argument(_)));
    let mut extractors = usize::from(has_arguments);
    for (parameter, input) in parameters {
        let ToolParameter::Extractor(extractor) = parameter else { continue };
        if has_arguments && is_one_of(&extractor.ty, &WHOLE_ARGUMENTS) {
            let message = "conflicting parameters: this extractor takes all arguments, so the function cannot have others";
            errors.at(input, message);
        }
        extractors += 1;
        if extractors > MAX_EXTRACTORS {
            let message = format!(
                "too many extractors: expected at most {MAX_EXTRACTORS} (all plain arguments count as one)"
            );
            errors.at(input, format!("{message}; combine some in an `Extract` of your own"));
        }
    }
}

impl ToolParameter {
    fn new(input: &PatType, helpers: HelperAttributes) -> Result<Self> {
        let (ty, is_borrowed) = match &*input.ty {
            Type::Reference(reference) if reference.mutability.is_none() => (&*reference.elem, true),
            other => (other, false),
        };
        if helpers.is_extractor || is_one_of(ty, &EXTRACTORS) {
            if let Some(attribute) = helpers.argument_only {
                return Err(Error::new_spanned(
                    attribute,
                    "invalid attribute: only an argument may have it, and this parameter is an extractor",
                ));
            }
            return Ok(ToolParameter::Extractor(ExtractorParameter {
                ty: Box::new(ty.clone()),
                is_borrowed,
            }));
        }
        let name = argument_name(&input.pat)?;
        check_argument_type(&input.ty)?;
        let HelperAttributes { forwarded: attributes, default, binding, .. } = helpers;
        let argument = ToolArgument { name, ty: ty.clone(), attributes, default, binding };
        Ok(ToolParameter::Argument(Box::new(argument)))
    }
}

fn is_one_of(ty: &Type, names: &[&str]) -> bool {
    let Type::Path(path) = ty else { return false };
    path.path.segments.last().is_some_and(|last| names.iter().any(|name| last.ident == name))
}

fn argument_name(pattern: &Pat) -> Result<Ident> {
    match pattern {
        Pat::Ident(name) if name.by_ref.is_none() && name.subpat.is_none() => Ok(name.ident.clone()),
        other => {
            let message = "an argument needs a name, which the model uses: destructure the value in the body";
            Err(Error::new_spanned(other, message))
        }
    }
}

fn check_argument_type(ty: &Type) -> Result<()> {
    let message = match ty {
        Type::ImplTrait(_) => "an argument cannot be `impl Trait`: its JSON Schema is derived from one type",
        Type::Reference(_) => {
            "an argument must be owned, such as `String` instead of `&str`; a custom extractor is marked `#[extract]`"
        }
        _ => return Ok(()),
    };
    Err(Error::new_spanned(ty, message))
}

impl HelperAttributes {
    fn take(attributes: &mut Vec<Attribute>, errors: &mut CompileErrors) -> Self {
        let mut helpers = HelperAttributes::default();
        for attribute in std::mem::take(attributes) {
            match helpers.read(&attribute) {
                Ok(true) => {}
                Ok(false) => attributes.push(attribute),
                Err(error) => {
                    errors.keep::<()>(Err(error));
                }
            }
        }
        helpers
    }

    /// Parses the attribute if it belongs to this macro.
    fn read(&mut self, attribute: &Attribute) -> Result<bool> {
        let Some(name) = attribute.path().get_ident().map(IdentExt::unraw) else { return Ok(false) };
        match name.to_string().as_str() {
            "doc" => {
                self.forwarded.push(attribute.clone());
                return Ok(true);
            }
            "extract" => {
                attribute.meta.require_path_only()?;
                reject_duplicate(self.is_extractor, attribute)?;
                self.is_extractor = true;
                return Ok(true);
            }
            "serde" | "schemars" => self.forwarded.push(attribute.clone()),
            "default" => {
                reject_duplicate(self.default.is_some(), attribute)?;
                self.default = Some(default_value(attribute)?);
            }
            "from_state" | "default_from_state" => {
                reject_duplicate(self.binding.is_some(), attribute)?;
                self.binding = Some(StateBinding {
                    key: state_key(attribute, &name)?,
                    is_visible: name == "default_from_state",
                });
            }
            _ => return Ok(false),
        }
        self.argument_only.get_or_insert_with(|| attribute.clone());
        Ok(true)
    }
}

fn reject_duplicate(is_second: bool, attribute: &Attribute) -> Result<()> {
    if is_second {
        Err(Error::new_spanned(attribute, "duplicate attribute: the parameter already has one of this kind"))
    } else {
        Ok(())
    }
}

fn default_value(attribute: &Attribute) -> Result<DefaultValue> {
    match &attribute.meta {
        Meta::Path(_) => Ok(DefaultValue::OfType),
        Meta::List(list) => list.parse_args().map(DefaultValue::Expression),
        Meta::NameValue(_) => Err(Error::new_spanned(
            attribute,
            "invalid attribute: expected `#[default]` or `#[default(expression)]`",
        )),
    }
}

fn state_key(attribute: &Attribute, name: &Ident) -> Result<LitStr> {
    let expected = |_| {
        Error::new_spanned(
            attribute,
            format!("invalid attribute: expected `#[{name}(\"key\")]` with a key of the state"),
        )
    };
    attribute.meta.require_list().map_err(expected)?.parse_args().map_err(expected)
}
