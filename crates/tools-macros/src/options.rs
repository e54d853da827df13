//! What stands in `#[tool(..)]`: options that become calls on the tool's builder.

use std::time::Duration;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseBuffer, ParseStream};
use syn::{Error, Expr, ExprLit, Ident, Lit, LitInt, LitStr, Path, Result, Token, parenthesized};

const KNOWN: &str = "name, description, effect, time_out, retry, approval, strict, cpu, reads, writes, \
    outputs_to_state, crate";
const EFFECTS: [(&str, &str); 3] =
    [("pure", "Pure"), ("idempotent", "Idempotent"), ("at_most_once", "AtMostOnce")];
const APPROVALS: [(&str, &str); 3] = [("never", "Never"), ("always", "Always"), ("once", "Once")];
const PLAIN_HANDLERS: [&str; 8] =
    ["replace_values", "merge_lists", "union", "merge_maps", "sum", "max", "min", "first_wins"];

/// The options of one tool.
#[derive(Default)]
pub(crate) struct Options {
    /// In place of the function's name.
    pub(crate) name: Option<LitStr>,
    /// In place of the function's documentation.
    pub(crate) description: Option<LitStr>,
    /// In place of the path that is looked up.
    pub(crate) host: Option<Path>,
    /// The function computes, and does not wait.
    pub(crate) cpu: Option<Ident>,
    /// All else, in the order written.
    pub(crate) calls: Vec<Call>,
}

/// A call on the builder.
pub(crate) enum Call {
    Effect(Ident),
    TimeOut(Duration),
    Retry { times: usize, after: Option<Duration> },
    Approval(Ident),
    Strict,
    Reads(Vec<LitStr>),
    Writes(Vec<LitStr>),
    Output(Output),
}

/// An entry of `outputs_to_state`.
pub(crate) struct Output {
    key: LitStr,
    source: Source,
    handler: Option<Handler>,
}

enum Source {
    Field(LitStr),
    Whole,
}

enum Handler {
    /// A function of `Handler` with its arguments.
    BuiltIn(TokenStream),
    Custom(Expr),
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Options::default();
        let mut seen = Vec::new();
        each(input, |input| {
            let key = input.call(Ident::parse_any)?;
            refuse_second(&mut seen, &key)?;
            options.read(&key, input)
        })?;
        Ok(options)
    }
}

impl Options {
    fn read(&mut self, key: &Ident, input: ParseStream<'_>) -> Result<()> {
        match key.to_string().as_str() {
            "name" => self.name = Some(value(key, input)?),
            "description" => self.description = Some(value(key, input)?),
            "crate" => self.host = Some(value(key, input)?.parse_with(Path::parse_mod_style)?),
            "effect" => self.calls.push(Call::Effect(one_of(key, input, EFFECTS)?)),
            "approval" => self.calls.push(Call::Approval(one_of(key, input, APPROVALS)?)),
            "time_out" => self.calls.push(Call::TimeOut(duration(&value(key, input)?)?)),
            "retry" => self.calls.push(retry(key, input)?),
            "cpu" => self.cpu = Some(key.clone()),
            "strict" => self.calls.push(Call::Strict),
            "reads" => self.calls.push(Call::Reads(keys(key, input)?)),
            "writes" => self.calls.push(Call::Writes(keys(key, input)?)),
            "outputs_to_state" => self.calls.extend(outputs(key, input)?.into_iter().map(Call::Output)),
            unknown => {
                return Err(Error::new_spanned(
                    key,
                    format!("unknown option `{unknown}`; the options are: {KNOWN}"),
                ));
            }
        }
        Ok(())
    }
}

/// Reads entries that are separated by commas.
fn each(input: ParseStream<'_>, mut read: impl FnMut(ParseStream<'_>) -> Result<()>) -> Result<()> {
    while !input.is_empty() {
        read(input)?;
        if !input.is_empty() {
            input.parse::<Token![,]>()?;
        }
    }
    Ok(())
}

fn refuse_second(seen: &mut Vec<String>, key: &Ident) -> Result<()> {
    let name = key.to_string();
    if seen.contains(&name) {
        return Err(Error::new_spanned(key, format!("`{name}` is given twice")));
    }
    seen.push(name);
    Ok(())
}

/// `= "text"`.
fn value(key: &Ident, input: ParseStream<'_>) -> Result<LitStr> {
    let wanted = || Error::new_spanned(key, format!("write `{key} = \"..\"`"));
    input.parse::<Token![=]>().map_err(|_| wanted())?;
    input.parse().map_err(|_| wanted())
}

/// `= "word"`, one of a few words, as the variant that it stands for.
fn one_of(key: &Ident, input: ParseStream<'_>, words: [(&str, &str); 3]) -> Result<Ident> {
    let word = value(key, input)?;
    let Some((_, variant)) = words.iter().find(|(known, _)| *known == word.value()) else {
        let known = words.map(|(known, _)| format!("\"{known}\"")).join(", ");
        return Err(Error::new_spanned(&word, format!("unknown {key}; it is one of {known}")));
    };
    Ok(Ident::new(variant, word.span()))
}

/// `"500ms"`, `"2s"`, `"1m"`.
fn duration(text: &LitStr) -> Result<Duration> {
    let value = text.value();
    let digits = value.trim_end_matches(|character: char| !character.is_ascii_digit());
    let count = digits.parse::<u64>().ok();
    let read = match &value[digits.len()..] {
        "ms" => count.map(Duration::from_millis),
        "s" => count.map(Duration::from_secs),
        "m" => count.and_then(|count| count.checked_mul(60)).map(Duration::from_secs),
        _ => None,
    };
    read.ok_or_else(|| {
        Error::new_spanned(text, "not a time; write a whole number and its unit: \"500ms\", \"2s\" or \"1m\"")
    })
}

/// `(times = 3, after = "100ms")`.
fn retry(key: &Ident, input: ParseStream<'_>) -> Result<Call> {
    let wanted =
        || Error::new_spanned(key, "write `retry(times = 3)` or `retry(times = 3, after = \"100ms\")`");
    let content = in_parentheses(input).map_err(|_| wanted())?;
    let (mut times, mut after) = (None, None);
    let mut seen = Vec::new();
    each(&content, |input| {
        let key = input.parse::<Ident>().map_err(|_| wanted())?;
        refuse_second(&mut seen, &key)?;
        if key == "times" {
            input.parse::<Token![=]>().map_err(|_| wanted())?;
            times = Some(input.parse::<LitInt>()?.base10_parse()?);
        } else if key == "after" {
            after = Some(duration(&value(&key, input)?)?);
        } else {
            return Err(Error::new_spanned(
                &key,
                format!("unknown option `{key}` of `retry`; the options are: times, after"),
            ));
        }
        Ok(())
    })?;
    Ok(Call::Retry { times: times.ok_or_else(wanted)?, after })
}

/// `("key", "user:key")`.
fn keys(key: &Ident, input: ParseStream<'_>) -> Result<Vec<LitStr>> {
    let wanted =
        || Error::new_spanned(key, format!("write `{key}(\"key\", \"user:key\")`, with keys of the state"));
    let content = in_parentheses(input).map_err(|_| wanted())?;
    let mut keys = Vec::new();
    each(&content, |input| {
        keys.push(input.parse().map_err(|_| wanted())?);
        Ok(())
    })?;
    if keys.is_empty() { Err(wanted()) } else { Ok(keys) }
}

/// `(key = "field", "user:key" = whole, key("field", handler = "union"))`.
fn outputs(key: &Ident, input: ParseStream<'_>) -> Result<Vec<Output>> {
    let content = in_parentheses(input).map_err(|_| {
        Error::new_spanned(
            key,
            "write `outputs_to_state(state_key = \"field of the result\", other_key = whole)`",
        )
    })?;
    let mut outputs: Vec<Output> = Vec::new();
    each(&content, |input| {
        let output: Output = input.parse()?;
        if outputs.iter().any(|earlier| earlier.key.value() == output.key.value()) {
            return Err(Error::new_spanned(
                &output.key,
                format!("the key \"{}\" is given twice", output.key.value()),
            ));
        }
        outputs.push(output);
        Ok(())
    })?;
    Ok(outputs)
}

impl Parse for Output {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let key = if input.peek(LitStr) {
            input.parse()?
        } else {
            let name = input.call(Ident::parse_any).map_err(|error| {
                Error::new(
                    error.span(),
                    "expected a key of the state: a name, or a string such as \"user:name\"",
                )
            })?;
            LitStr::new(&name.unraw().to_string(), name.span())
        };
        if input.peek(Token![=]) {
            input.parse::<Token![=]>()?;
            return Ok(Output { key, source: input.parse()?, handler: None });
        }
        let content = in_parentheses(input).map_err(|_| {
            let text = "say what is written to the key: `key = \"field\"`, `key = whole` or `key(\"field\", handler = \"union\")`";
            Error::new_spanned(&key, text)
        })?;
        let source = content.parse()?;
        let handler = if content.is_empty() { None } else { Some(handler(&content)?) };
        Ok(Output { key, source, handler })
    }
}

impl Parse for Source {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if input.peek(LitStr) {
            return Ok(Source::Field(input.parse()?));
        }
        match input.parse::<Ident>() {
            Ok(word) if word == "whole" => Ok(Source::Whole),
            Ok(word) => Err(Error::new_spanned(
                word,
                "expected a field of the result, such as \"documents\", or `whole`",
            )),
            Err(error) => Err(Error::new(
                error.span(),
                "expected a field of the result, such as \"documents\", or `whole`",
            )),
        }
    }
}

/// `, handler = "union"` or `, handler = an_expression()`.
fn handler(input: ParseStream<'_>) -> Result<Handler> {
    input.parse::<Token![,]>()?;
    let key: Ident = input.parse()?;
    if key != "handler" {
        return Err(Error::new_spanned(
            &key,
            format!("unknown option `{key}` of an output; the only one is: handler"),
        ));
    }
    input.parse::<Token![=]>()?;
    let handler = match input.parse()? {
        Expr::Lit(ExprLit { lit: Lit::Str(name), .. }) => built_in_handler(&name)?,
        expression => Handler::Custom(expression),
    };
    if input.peek(Token![,]) {
        input.parse::<Token![,]>()?;
    }
    Ok(handler)
}

/// A handler by the name under which it is stored.
fn built_in_handler(name: &LitStr) -> Result<Handler> {
    let text = name.value();
    if PLAIN_HANDLERS.contains(&text.as_str()) {
        let function = Ident::new(&text, name.span());
        return Ok(Handler::BuiltIn(quote!(#function())));
    }
    let parameter = |start: &str| text.strip_prefix(start)?.strip_suffix(')').filter(|text| !text.is_empty());
    if let Some(field) = parameter("upsert_by(") {
        return Ok(Handler::BuiltIn(quote!(upsert_by(#field))));
    }
    if let Some(count) = parameter("keep_last(").and_then(|count| count.parse::<usize>().ok()) {
        return Ok(Handler::BuiltIn(quote!(keep_last(#count))));
    }
    let known = PLAIN_HANDLERS.join(", ");
    let message = format!(
        "unknown handler; the names are: {known}, upsert_by(field), keep_last(n); for one of your own, give an \
         expression instead of a string"
    );
    Err(Error::new_spanned(name, message))
}

fn in_parentheses(input: ParseStream<'_>) -> Result<ParseBuffer<'_>> {
    let content;
    parenthesized!(content in input);
    Ok(content)
}

impl Call {
    /// The call as tokens, to be written after a builder.
    pub(crate) fn tokens(&self, host: &Path) -> TokenStream {
        match self {
            Call::Effect(effect) => quote!(.effect(#host::Effect::#effect)),
            Call::TimeOut(time_out) => {
                let time_out = duration_tokens(*time_out);
                quote!(.time_out(#time_out))
            }
            Call::Retry { times, after: None } => quote!(.retry(#host::Retry::times(#times))),
            Call::Retry { times, after: Some(after) } => {
                let after = duration_tokens(*after);
                quote!(.retry(#host::Retry::times(#times).after(#after)))
            }
            Call::Approval(approval) => quote!(.approval(#host::Approval::#approval)),
            Call::Strict => quote!(.strict()),
            Call::Reads(keys) => quote!(.reads([#(#keys),*])),
            Call::Writes(keys) => quote!(.writes([#(#keys),*])),
            Call::Output(output) => output.tokens(host),
        }
    }
}

impl Output {
    fn tokens(&self, host: &Path) -> TokenStream {
        let key = &self.key;
        let source = match &self.source {
            Source::Field(field) => field.to_token_stream(),
            Source::Whole => quote!(#host::Source::Whole),
        };
        match &self.handler {
            None => quote!(.output_to_state(#key, #source)),
            Some(Handler::Custom(handler)) => quote!(.output_to_state_with(#key, #source, #handler)),
            Some(Handler::BuiltIn(handler)) => {
                quote!(.output_to_state_with(#key, #source, #host::state_core::state::Handler::#handler))
            }
        }
    }
}

fn duration_tokens(duration: Duration) -> TokenStream {
    let (seconds, nanoseconds) = (duration.as_secs(), duration.subsec_nanos());
    quote!(::core::time::Duration::new(#seconds, #nanoseconds))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proc_macro2::Span;
    use syn::LitStr;

    #[test]
    fn durations_have_a_whole_number_and_a_unit() {
        let read = |text: &str| super::duration(&LitStr::new(text, Span::call_site())).ok();
        assert_eq!(read("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(read("2s"), Some(Duration::from_secs(2)));
        assert_eq!(read("1m"), Some(Duration::from_secs(60)));
        for wrong in
            ["", "2", "s", "2 s", "2.5s", "-1s", "2h", "99999999999999999999s", "999999999999999999m"]
        {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn built_in_handlers_go_by_their_stored_names() {
        let knows = |text: &str| super::built_in_handler(&LitStr::new(text, Span::call_site())).is_ok();
        assert!(["union", "upsert_by(id)", "keep_last(3)"].into_iter().all(knows));
        assert!(!["", "unoin", "upsert_by", "upsert_by()", "keep_last(x)"].into_iter().any(knows));
    }
}
