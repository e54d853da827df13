//! Expands the macro: the unchanged function, and a function that starts the tool.
//!
//! All generated code is inside that second function, so only its name is added to the user's module, and
//! parameter types resolve as in the signature.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Ident, Item, ItemFn, LitStr, Path, ReturnType, Safety, Signature};

use crate::docs;
use crate::errors::CompileErrors;
use crate::host;
use crate::options::ToolOptions;
use crate::parameter::{self, DefaultValue, ExtractorParameter, ToolArgument, ToolParameter};

/// Expands `#[tool(options)] item`.
pub(crate) fn tool(options: TokenStream, item: &TokenStream) -> TokenStream {
    let mut function = match parse_function(item) {
        Ok(function) => function,
        Err(error) => {
            let error = error.into_compile_error();
            return quote!(#error #item);
        }
    };
    let mut errors = CompileErrors::default();
    let options = errors.keep(syn::parse2::<ToolOptions>(options));
    check_signature(&function.sig, &mut errors);
    if let (Some(_), Some(cpu)) =
        (function.sig.asyncness, options.as_ref().and_then(|options| options.cpu.as_ref()))
    {
        errors.at(cpu, "`cpu` needs a plain `fn`: an `async fn` runs in the run's own task, not on a thread");
    }
    let parameters = parameter::take(&mut function.sig.inputs, &mut errors);
    let description = description(&function, options.as_ref(), &mut errors);
    // NOTE: The function is emitted in any case, so that its callers compile.
    match (errors.into_error(), options) {
        (None, Some(options)) => {
            let companion = CompanionFunction::new(&function, &options, &parameters, description).tokens();
            quote! {
                // Arguments are owned and the choice of `async` says where the tool runs, whatever the body does.
                #[allow(clippy::needless_pass_by_value, clippy::unused_async)]
                #function
                #companion
            }
        }
        (error, _) => {
            let error = error.map(syn::Error::into_compile_error);
            quote!(#error #function)
        }
    }
}

fn parse_function(item: &TokenStream) -> syn::Result<ItemFn> {
    let error = match syn::parse2(item.clone()) {
        Ok(function) => return Ok(function),
        Err(error) => error,
    };
    match syn::parse2::<Item>(item.clone()) {
        Ok(item) => {
            Err(syn::Error::new_spanned(item, "expected a function: `#[tool]` turns a function into a tool"))
        }
        Err(_) => Err(error),
    }
}

fn check_signature(signature: &Signature, errors: &mut CompileErrors) {
    if !signature.generics.params.is_empty() {
        errors.at(&signature.generics, "a tool function cannot be generic: a tool has one JSON Schema");
    }
    if let Safety::Unsafe(word) = &signature.safety {
        errors.at(word, "a tool function cannot be unsafe: a model decides when it is called");
    }
    if let Some(dots) = &signature.variadic {
        errors.at(dots, "a tool function cannot be variadic: a tool has a fixed list of parameters");
    }
}

/// The tool's description for the model.
fn description(function: &ItemFn, options: Option<&ToolOptions>, errors: &mut CompileErrors) -> LitStr {
    let name = &function.sig.ident;
    if let Some(description) = options.and_then(|options| options.description.clone()) {
        return description;
    }
    if let Some(attribute) = docs::unreadable(&function.attrs) {
        let message = "the macro cannot read this documentation: write it as a doc comment, or set `description = \"..\"`";
        errors.at(attribute, message);
    }
    let text = docs::description(&function.attrs);
    // NOTE: Options that could not be parsed may contain a description.
    if text.is_empty() && options.is_some() {
        let message = "missing description: write a doc comment that tells the model what the tool does and \
            when to use it, or set `description = \"..\"`";
        errors.at(name, message);
    }
    LitStr::new(&text, name.span())
}

/// The function that starts the tool.
struct CompanionFunction<'a> {
    function: &'a ItemFn,
    options: &'a ToolOptions,
    parameters: &'a [ToolParameter],
    description: LitStr,
    host: Path,
}

impl<'a> CompanionFunction<'a> {
    fn new(
        function: &'a ItemFn,
        options: &'a ToolOptions,
        parameters: &'a [ToolParameter],
        description: LitStr,
    ) -> Self {
        let host = options.host.clone().unwrap_or_else(host::path);
        CompanionFunction { function, options, parameters, description, host }
    }

    fn tokens(&self) -> TokenStream {
        let CompanionFunction { function, options, description, host, .. } = self;
        let (name, visibility) = (&function.sig.ident, &function.vis);
        let companion = format_ident!("{}_tool", name.unraw(), span = name.span());
        let tool_name =
            options.name.clone().unwrap_or_else(|| LitStr::new(&name.unraw().to_string(), name.span()));
        let doc = format!("Starts the tool that calls [`{name}`]; `.build()` checks it.");
        let conditions = function.attrs.iter().filter(|attribute| attribute.path().is_ident("cfg"));
        let constructor = match (function.sig.asyncness, &options.cpu) {
            (Some(_), _) => quote!(new),
            (None, None) => quote!(blocking),
            (None, Some(_)) => quote!(cpu),
        };
        let (assertions, arguments, closure) = (self.assertions(), self.arguments(), self.closure());
        let calls = &options.calls;
        let state_bindings = self.state_bindings();
        quote! {
            #(#conditions)*
            #[doc = #doc]
            #visibility fn #companion() -> #host::ToolBuilder {
                #arguments
                #assertions
                #host::Tool::#constructor(#tool_name, #description, #closure) #(#state_bindings)* #(#calls)*
            }
        }
    }

    fn plain_arguments(&self) -> impl Iterator<Item = &'a ToolArgument> {
        self.parameters.iter().filter_map(|parameter| match parameter {
            ToolParameter::Argument(argument) => Some(&**argument),
            ToolParameter::Extractor(_) => None,
        })
    }

    /// One line for each parameter, so that a type error points at the parameter.
    fn assertions(&self) -> TokenStream {
        let private = self.private();
        let lines = self.parameters.iter().map(|parameter| match parameter {
            ToolParameter::Argument(argument) => {
                let ty = &argument.ty;
                quote_spanned!(ty.span()=> #private::argument::<#ty>();)
            }
            ToolParameter::Extractor(ExtractorParameter { ty, .. }) => {
                quote_spanned!(ty.span()=> #private::extractor::<#ty>();)
            }
        });
        quote!(#(#lines)*)
    }

    /// The struct of the arguments, if the function has arguments.
    fn arguments(&self) -> Option<TokenStream> {
        self.plain_arguments().next()?;
        let private = self.private();
        // NOTE: The user's crate need not depend on serde and schemars.
        let (serde, schemars) = (text(&quote!(#private::serde)), text(&quote!(#private::schemars)));
        let name = arguments_name();
        let fields = self.plain_arguments().map(|argument| {
            let ToolArgument { name, ty, attributes, default, .. } = argument;
            let default = default.as_ref().map(|default| default_attribute(name, default));
            quote!(#(#attributes)* #default #name: #ty)
        });
        let deerrors = self.plain_arguments().filter_map(default_function);
        Some(quote! {
            #[derive(#private::serde::Deserialize, #private::schemars::JsonSchema)]
            #[serde(crate = #serde)]
            #[schemars(crate = #schemars)]
            struct #name { #(#fields),* }
            #(#deerrors)*
        })
    }

    /// The closure that the tool calls: it takes extractors and passes their contents to the function.
    fn closure(&self) -> TokenStream {
        let CompanionFunction { function, host, .. } = self;
        let private = self.private();
        // NOTE: Hygienic names, which cannot collide with the user's.
        let arguments = Ident::new("arguments", Span::mixed_site());
        let extracted = |index: usize| format_ident!("extracted{index}", span = Span::mixed_site());
        let ty = arguments_name();
        let all = self.plain_arguments().next().map(|_| quote!(#host::Args(#arguments): #host::Args<#ty>));
        let others = self.parameters.iter().enumerate().filter_map(|(index, parameter)| {
            let ToolParameter::Extractor(ExtractorParameter { ty, .. }) = parameter else { return None };
            let name = extracted(index);
            Some(quote!(#name: #ty))
        });
        let parameters = all.into_iter().chain(others);
        let passed = self.parameters.iter().enumerate().map(|(index, parameter)| match parameter {
            ToolParameter::Argument(argument) => {
                let name = &argument.name;
                quote!(#arguments.#name)
            }
            ToolParameter::Extractor(ExtractorParameter { is_borrowed, .. }) => {
                let (borrow, name) = (is_borrowed.then(|| quote!(&)), extracted(index));
                quote!(#borrow #name)
            }
        });
        let name = &function.sig.ident;
        let call = quote!(#name(#(#passed),*));
        if function.sig.asyncness.is_none() {
            let outcome = self.outcome(&call);
            return quote!(move |#(#parameters),*| { #outcome });
        }
        let outcome = self.outcome(&quote!(#call.await));
        let future = Ident::new("__future", name.span());
        let future = quote_spanned! {name.span()=>
            let #future = async move { #outcome };
            #private::future(#future)
        };
        quote!(move |#(#parameters),*| { #future })
    }

    /// The function's return value as a `Result`; type errors point at the return type.
    fn outcome(&self, call: &TokenStream) -> TokenStream {
        let private = self.private();
        let span = match &self.function.sig.output {
            ReturnType::Type(_, ty) => ty.span(),
            ReturnType::Default => self.function.sig.ident.span(),
        };
        // NOTE: Inherent methods win over those of the trait `Plain`: a `Result` under any alias is recognised
        // by its type.
        let returned = Ident::new("__returned", span);
        quote_spanned! {span=>
            #[allow(unused_imports)]
            use #private::Plain as _;
            let #returned = #private::Returned(#call);
            #returned.outcome()
        }
    }

    fn state_bindings(&self) -> impl Iterator<Item = TokenStream> {
        self.plain_arguments().filter_map(|argument| {
            let binding = argument.binding.as_ref()?;
            let (key, name) = (&binding.key, argument.name.unraw().to_string());
            Some(if binding.is_visible {
                quote!(.default_from_state(#key, #name))
            } else {
                quote!(.input_from_state(#key, #name))
            })
        })
    }

    /// The path of the items of `stepfold-tools` that only this macro uses.
    fn private(&self) -> Path {
        let mut path = self.host.clone();
        path.segments.push(Ident::new("__private", Span::call_site()).into());
        path
    }
}

fn arguments_name() -> Ident {
    format_ident!("__ToolArguments")
}

fn default_name(argument: &Ident) -> Ident {
    format_ident!("__default_{}", argument.unraw())
}

fn default_attribute(name: &Ident, default: &DefaultValue) -> Attribute {
    match default {
        DefaultValue::OfType => syn::parse_quote!(#[serde(default)]),
        DefaultValue::Expression(_) => {
            // NOTE: `serde` takes the path of a function here, not an expression.
            let function = default_name(name).to_string();
            syn::parse_quote!(#[serde(default = #function)])
        }
    }
}

fn default_function(argument: &ToolArgument) -> Option<TokenStream> {
    let Some(DefaultValue::Expression(expression)) = &argument.default else { return None };
    let (name, ty) = (default_name(&argument.name), &argument.ty);
    Some(quote_spanned!(expression.span()=> fn #name() -> #ty { #expression }))
}

/// The tokens as a string without spaces between them.
fn text(tokens: &TokenStream) -> String {
    tokens.to_token_stream().to_string().replace(' ', "")
}
