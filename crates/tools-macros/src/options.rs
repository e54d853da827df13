//! Parses the arguments of `#[tool(..)]`: a few options of the macro, and calls on the tool's builder.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, Ident, LitStr, Path, Result, Token, parenthesized, token};

/// The options of one tool.
#[derive(Default)]
pub(crate) struct ToolOptions {
    /// Replaces the function's name.
    pub(crate) name: Option<LitStr>,
    /// Replaces the function's documentation.
    pub(crate) description: Option<LitStr>,
    /// Replaces the resolved path of `stepfold-tools`.
    pub(crate) host: Option<Path>,
    /// The function is CPU-bound and runs on a thread.
    pub(crate) cpu: Option<Ident>,
    /// Other options, in source order.
    pub(crate) calls: Vec<BuilderCall>,
}

/// A call on the builder: `option(arguments)` is `.option(arguments)`, and `option` alone is `.option()`. The
/// compiler reports unknown methods and invalid arguments at this span.
pub(crate) struct BuilderCall {
    method: Ident,
    arguments: Punctuated<Expr, Token![,]>,
}

impl Parse for ToolOptions {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = ToolOptions::default();
        while !input.is_empty() {
            let key = input.call(Ident::parse_any)?;
            options.read(&key, input)?;
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

impl ToolOptions {
    fn read(&mut self, key: &Ident, input: ParseStream<'_>) -> Result<()> {
        match key.to_string().as_str() {
            "name" => set(&mut self.name, key, text(key, input)?),
            "description" => set(&mut self.description, key, text(key, input)?),
            "crate" => set(&mut self.host, key, text(key, input)?.parse_with(Path::parse_mod_style)?),
            "cpu" => set(&mut self.cpu, key, key.clone()),
            _ => {
                // NOTE: Every other option is a method of the builder, so that the macro needs no list of them
                // and the compiler reports faults at the option.
                self.calls.push(BuilderCall { method: key.clone(), arguments: arguments(key, input)? });
                Ok(())
            }
        }
    }
}

fn set<T>(slot: &mut Option<T>, key: &Ident, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::new_spanned(key, format!("duplicate option `{key}`"))),
    }
}

/// `= "text"`.
fn text(key: &Ident, input: ParseStream<'_>) -> Result<LitStr> {
    let expected = || Error::new_spanned(key, format!("invalid option `{key}`: expected `{key} = \"..\"`"));
    input.parse::<Token![=]>().map_err(|_| expected())?;
    input.parse().map_err(|_| expected())
}

/// `(expression, expression)`, or no arguments.
fn arguments(key: &Ident, input: ParseStream<'_>) -> Result<Punctuated<Expr, Token![,]>> {
    if input.peek(token::Paren) {
        let content;
        parenthesized!(content in input);
        return content.parse_terminated(Expr::parse, Token![,]);
    }
    if input.is_empty() || input.peek(Token![,]) {
        return Ok(Punctuated::new());
    }
    let message = format!(
        "invalid option `{key}`: expected `{key}(..)`, which calls `.{key}(..)` on the tool's builder; only `name`, \
         `description` and `crate` are written with `=`"
    );
    Err(Error::new_spanned(key, message))
}

impl ToTokens for BuilderCall {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let BuilderCall { method, arguments } = self;
        tokens.extend(quote!(.#method(#arguments)));
    }
}
