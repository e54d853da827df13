//! The sign-in of a user: a page is shown, and the browser is redirected to an address with a code.

use std::future::Future;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The longest head of a request that is read.
// NOTE: Any local process may connect.
const HEAD_BYTES: u64 = 16 * 1024;

/// The timeout of a request of a browser.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

type VisitFuture = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

/// The method to open the page of an authorization server for a user, and to receive the redirect.
#[derive(Clone)]
pub struct SignIn {
    method: SignInMethod,
    timeout: Duration,
}

#[derive(Clone)]
enum SignInMethod {
    Browser { port: u16, show: Arc<dyn Fn(&str) + Send + Sync> },
    Redirect { address: String, visit: Arc<dyn Fn(String) -> VisitFuture + Send + Sync> },
}

impl SignIn {
    /// Signs in by a browser on this machine: `show` is given the page to open. The browser is redirected to a port of the
    /// loopback interface, any free port by default.
    pub fn browser(show: impl Fn(&str) + Send + Sync + 'static) -> Self {
        SignIn::by(SignInMethod::Browser { port: 0, show: Arc::new(show) })
    }

    /// Signs in by a function of the program. The browser is redirected to `address`; `visit` gets the page and returns the
    /// whole redirect address, or `None` if the user refuses.
    ///
    /// # Examples
    /// ```
    /// use stepfold_mcp::SignIn;
    ///
    /// # fn line() -> Option<String> { None }
    /// let sign_in = SignIn::redirect("http://127.0.0.1:7777/callback", |page| async move {
    ///     println!("please visit {page}, then paste the address that the browser ends at");
    ///     line()
    /// });
    /// ```
    pub fn redirect<F, Fut>(address: impl Into<String>, visit: F) -> Self
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<String>> + Send + 'static,
    {
        SignIn::by(SignInMethod::Redirect {
            address: address.into(),
            visit: Arc::new(move |page| Box::pin(visit(page))),
        })
    }

    fn by(method: SignInMethod) -> Self {
        SignIn { method, timeout: Duration::from_secs(300) }
    }

    /// Sets the port of the redirect address, for clients that are registered with it.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        if let SignInMethod::Browser { port: known, .. } = &mut self.method {
            *known = port;
        }
        self
    }

    /// Sets how long the user may take; five minutes by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Prepares the redirect, whose address is part of the page's.
    pub(super) async fn begin(&self) -> Result<PendingSignIn, String> {
        match &self.method {
            SignInMethod::Redirect { address, .. } => {
                Ok(PendingSignIn { sign_in: self.clone(), listener: None, redirect: address.clone() })
            }
            SignInMethod::Browser { port, .. } => {
                // NOTE: Loopback only: the code in the redirect must not be reachable from other machines (RFC 8252).
                let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).await;
                let listener =
                    bound.map_err(|error| format!("port {port} of 127.0.0.1 cannot be opened: {error}"))?;
                let address = listener.local_addr().map_err(|error| error.to_string())?;
                let redirect = format!("http://{address}/callback");
                Ok(PendingSignIn { sign_in: self.clone(), listener: Some(listener), redirect })
            }
        }
    }
}

impl std::fmt::Debug for SignIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignIn").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// A sign-in that is ready to receive its redirect.
pub(super) struct PendingSignIn {
    sign_in: SignIn,
    listener: Option<TcpListener>,
    /// The redirect address.
    pub(super) redirect: String,
}

impl PendingSignIn {
    /// Shows the page, and waits for the whole redirect address.
    pub(super) async fn finish(self, page: String) -> Result<String, String> {
        let PendingSignIn { sign_in, listener, redirect } = self;
        let back = async {
            match (&sign_in.method, listener) {
                (SignInMethod::Browser { show, .. }, Some(listener)) => {
                    let state = query(&page, "state");
                    show(&page);
                    Some(wait_for_redirect(&listener, &redirect, state.as_deref()).await)
                }
                (SignInMethod::Redirect { visit, .. }, _) => visit(page).await,
                (SignInMethod::Browser { .. }, None) => None,
            }
        };
        let late = |_| format!("no sign-in within {:?}; try again", sign_in.timeout);
        let back = tokio::time::timeout(sign_in.timeout, back).await.map_err(late)?;
        back.ok_or_else(|| "the user did not sign in".to_owned())
    }
}

/// A parameter of an address.
pub(super) fn query(address: &str, name: &str) -> Option<String> {
    let address = Url::parse(address).ok()?;
    address.query_pairs().find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
}

/// Waits for the redirect with this state. Other requests are rejected: any page could send one.
async fn wait_for_redirect(listener: &TcpListener, redirect: &str, state: Option<&str>) -> String {
    let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
    loop {
        tokio::select! {
            Some(address) = receiver.recv() => return address,
            Ok((stream, _)) = listener.accept() => {
                let (sender, redirect, state) = (sender.clone(), redirect.to_owned(), state.map(str::to_owned));
                // NOTE: A connection that sends nothing must not block others.
                tokio::spawn(async move {
                    let serve_browser = serve_browser(stream, &redirect, state.as_deref());
                    if let Ok(Some(address)) = tokio::time::timeout(REQUEST_TIMEOUT, serve_browser).await {
                        let _ = sender.send(address).await;
                    }
                });
            }
        }
    }
}

/// Answers a browser; returns the address if it is the expected redirect.
async fn serve_browser(mut stream: TcpStream, redirect: &str, state: Option<&str>) -> Option<String> {
    let mut head = Vec::new();
    let mut limited = (&mut stream).take(HEAD_BYTES);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if limited.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let address = String::from_utf8(head).ok().and_then(|head| {
        let path = head.strip_prefix("GET ")?.split(' ').next()?;
        Some(Url::parse(redirect).ok()?.join(path).ok()?.to_string())
    });
    let is_it = |address: &String| {
        address.split('?').next() == Some(redirect) && query(address, "state").as_deref() == state
    };
    let address = address.filter(is_it);
    let (status, words) = match &address {
        Some(address) if query(address, "error").is_some() => ("200 OK", "The sign-in was refused."),
        Some(_) => ("200 OK", "You can close this page."),
        None => ("400 Bad Request", "This is not the sign-in that is waited for."),
    };
    let response = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{words}",
        words.len()
    );
    let _ = stream.write_all(response.as_bytes()).await;
    let _ = stream.shutdown().await;
    address
}
