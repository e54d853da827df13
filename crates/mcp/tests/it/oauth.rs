//! Servers that want the user to sign in.

use std::sync::{Arc, Mutex};

use expect_test::expect;
use serde_json::{Value, json};
use stepfold_mcp::{CredentialFile, CredentialStore, McpError, McpServer, OAuth, OAuthCredentials, SignIn};
use stepfold_tools::{AnsweredRequest, InputResponse};

use crate::authority::{Authority, browse};
use crate::kit::{line, line_of, offered};
use crate::questions::{accepted, asking, until_question};

/// Credentials that the test can look at and change.
#[derive(Clone, Default)]
struct Known(Arc<Mutex<Option<OAuthCredentials>>>);

impl CredentialStore for Known {
    fn load(&self) -> Result<Option<OAuthCredentials>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn save(&self, now: Option<&OAuthCredentials>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        *self.0.lock().unwrap() = now.cloned();
        Ok(())
    }
}

impl Known {
    fn json(&self) -> Value {
        serde_json::to_value(self.0.lock().unwrap().as_ref()).unwrap()
    }

    /// Makes the access token one that expired long ago.
    fn expire(&self) {
        let mut known = self.json();
        known["received_at"] = json!(1);
        *self.0.lock().unwrap() = serde_json::from_value(known).unwrap();
    }
}

/// A user who agrees, and comes back in a browser.
fn agrees() -> SignIn {
    SignIn::browser(|page| {
        let page = page.to_owned();
        tokio::spawn(async move {
            let (back, _) = browse(&page).await;
            browse(&back.unwrap()).await;
        });
    })
}

fn server(authority: &Authority, oauth: OAuth) -> McpServer {
    McpServer::http("shop", authority.url()).prefix("").oauth(oauth).build().unwrap()
}

async fn fault(server: &McpServer) -> String {
    let error = server.start().await.unwrap_err();
    assert!(matches!(error, McpError::Unauthorized { .. }), "{error:?}");
    assert!(!format!("{error:?}").contains("acc3ss"), "{error:?}");
    error.to_string()
}

#[tokio::test]
async fn a_user_signs_in_once() {
    let authority = Authority::start().await;
    let known = Known::default();
    let first = server(&authority, OAuth::new().credentials(known.clone()).sign_in(agrees()));
    assert_eq!(line(&first, "echo", json!({"text": "hi"})).await, "Succeeded: hi");
    expect![[r#"
        register stepfold as client-1
        page for client-1 with scope `read`
        token by authorization_code for client-1
        call of echo
    "#]]
    .assert_eq(&authority.log());

    let second = server(&authority, OAuth::new().credentials(known.clone()));
    assert_eq!(line(&second, "echo", json!({"text": "ho"})).await, "Succeeded: ho");
    assert_eq!(authority.log(), "call of echo\n");
    let scopes: Vec<String> = known.load().unwrap().unwrap().scopes().map(str::to_owned).collect();
    assert_eq!(scopes, ["read"]);

    second.sign_out().await.unwrap();
    assert_eq!(known.json(), Value::Null);
}

#[tokio::test]
async fn a_missing_user_is_an_error_that_says_what_to_do() {
    let authority = Authority::start().await;
    let lonely = server(&authority, OAuth::new().advice("run `shop sign-in`"));
    assert_eq!(
        fault(&lonely).await,
        "MCP server `shop` requires authorization: not signed in with scope `read`; run `shop sign-in`"
    );
    lonely.sign_in(&agrees()).await.unwrap();
    lonely.start().await.unwrap();

    let without = McpServer::http("shop", authority.url()).build().unwrap();
    let error = fault(&without).await;
    assert!(error.contains("set a valid bearer token, or OAuth"), "{error}");
    let error = without.sign_in(&agrees()).await.unwrap_err().to_string();
    assert_eq!(error, "MCP server `shop` requires authorization: OAuth is not set");
}

#[tokio::test]
async fn a_client_is_registered_before_or_by_its_document() {
    let authority = Authority::start().await;
    authority.state().client = Some(("shop".to_owned(), "cl13nt".to_owned()));
    let known = Known::default();
    let oauth = OAuth::new().client("shop", Some("cl13nt".to_owned())).credentials(known.clone());
    server(&authority, oauth.clone().sign_in(agrees())).start().await.unwrap();
    // Another process refreshes with the secret.
    known.expire();
    server(&authority, oauth).start().await.unwrap();
    expect![[r#"
        page for shop with scope `read`
        token by authorization_code for shop:cl13nt
        token by refresh_token for shop:cl13nt
    "#]]
    .assert_eq(&authority.log());

    let authority = Authority::start().await;
    authority.state().takes_documents = true;
    let oauth = OAuth::new().client_metadata_url("https://example.com/client.json").sign_in(agrees());
    server(&authority, oauth.scopes(["all"])).start().await.unwrap();
    expect![[r#"
        page for https://example.com/client.json with scope `all read`
        token by authorization_code for https://example.com/client.json
    "#]]
    .assert_eq(&authority.log());
}

#[tokio::test]
async fn a_way_back_with_another_state_is_not_taken() {
    let authority = Authority::start().await;
    let forged = SignIn::redirect("http://127.0.0.1:1/callback", |page| async move {
        let (back, _) = browse(&page).await;
        Some(back.unwrap().replace("state=", "state=x"))
    });
    assert_eq!(
        fault(&server(&authority, OAuth::new().sign_in(forged))).await,
        "MCP server `shop` requires authorization: the sign-in failed: the `state` of the redirect is not that of the request; try again"
    );
    assert!(!authority.log().contains("token by"));

    // Any page can send a browser to a port of this machine: the one that is waited for is still taken.
    let disturbed = SignIn::browser(|page| {
        let page = page.to_owned();
        tokio::spawn(async move {
            let (back, _) = browse(&page).await;
            let back = back.unwrap();
            for other in [back.replace("state=", "state=x"), back.replace("/callback", "/other")] {
                assert!(browse(&other).await.1.starts_with("HTTP/1.1 400 "));
            }
            assert!(browse(&back).await.1.ends_with("You can close this page."));
        });
    });
    server(&authority, OAuth::new().sign_in(disturbed)).start().await.unwrap();
}

#[tokio::test]
async fn a_sign_in_that_does_not_happen_is_an_error() {
    let authority = Authority::start().await;
    authority.state().refuses = true;
    assert_eq!(
        fault(&server(&authority, OAuth::new().sign_in(agrees()))).await,
        "MCP server `shop` requires authorization: the sign-in failed: the authorization server refused it with `access_denied`: not today"
    );
    let unwilling = SignIn::redirect("http://127.0.0.1:1/callback", |_| async { None });
    assert_eq!(
        fault(&server(&authority, OAuth::new().sign_in(unwilling))).await,
        "MCP server `shop` requires authorization: the user did not sign in"
    );
    let asleep = SignIn::browser(|_| {}).timeout(std::time::Duration::from_millis(1));
    let error = fault(&server(&authority, OAuth::new().sign_in(asleep))).await;
    assert!(error.ends_with("no sign-in within 1ms; try again"), "{error}");
}

/// A page that a browser would run, and a document about another server.
#[tokio::test]
async fn a_server_cannot_send_the_user_anywhere() {
    let authority = Authority::start().await;
    authority.state().page = Some("javascript:alert(1)".to_owned());
    let never = SignIn::browser(|page| panic!("{page}"));
    let error = fault(&server(&authority, OAuth::new().sign_in(never.clone()))).await;
    assert!(error.contains("invalid address of the authorization server"), "{error}");
    authority.state().page = None;
    authority.state().is_of_another = true;
    let error = fault(&server(&authority, OAuth::new().sign_in(never))).await;
    assert!(error.contains("resource mismatch"), "{error}");
}

#[tokio::test]
async fn a_token_that_expired_or_was_revoked_is_refreshed() {
    let authority = Authority::start().await;
    let known = Known::default();
    let shop = server(&authority, OAuth::new().credentials(known.clone()).sign_in(agrees()));
    shop.start().await.unwrap();
    authority.log();

    known.expire();
    assert_eq!(line(&shop, "echo", json!({"text": "hi"})).await, "Succeeded: hi");
    assert_eq!(authority.log(), "token by refresh_token for client-1\ncall of echo\n");
    // What was given instead is what is kept.
    assert_eq!(known.json()["refresh_token"], "refr3sh-2");

    authority.state().access.clear();
    assert_eq!(line(&shop, "echo", json!({"text": "ho"})).await, "Succeeded: ho");
    assert_eq!(authority.log(), "token by refresh_token for client-1\ncall of echo\n");

    // With the refresh token gone, too, the user signs in again, and the call continues.
    authority.state().access.clear();
    authority.state().refresh.clear();
    assert_eq!(line(&shop, "echo", json!({"text": "he"})).await, "Succeeded: he");
    expect![[r#"
        token by refresh_token for client-1
        register stepfold as client-2
        page for client-2 with scope `read`
        token by authorization_code for client-2
        call of echo
    "#]]
    .assert_eq(&authority.log());
}

/// Nothing was done, so the call is not an unknown one; and an authorization server that repeats a secret is not repeated.
#[tokio::test]
async fn a_refresh_that_fails_is_a_failed_call_that_shows_no_secret() {
    let authority = Authority::start().await;
    let known = Known::default();
    let shop = server(&authority, OAuth::new().credentials(known.clone()).sign_in(agrees()));
    shop.start().await.unwrap();
    known.expire();
    let words = json!({"error": "server_error", "error_description": "refr3sh-1 is not known to acc3ss-1"});
    authority.state().fails = Some((500, words.to_string()));
    let said = line(&shop, "echo", json!({"text": "hi"})).await;
    assert!(said.starts_with("Failed(Error): MCP server `shop` was not called: "), "{said}");
    assert!(!said.contains("refr3sh") && !said.contains("acc3ss"), "{said}");

    let credentials = known.load().unwrap().unwrap();
    let shown =
        format!("{credentials:?} {shop:?} {:?}", OAuth::new().client("shop", Some("cl13nt".to_owned())));
    assert!(!["acc3ss", "refr3sh", "cl13nt"].iter().any(|secret| shown.contains(secret)), "{shown}");
    assert!(shown.contains("read"), "{shown}");
}

#[tokio::test]
async fn a_call_that_needs_more_scopes_continues_after_the_sign_in() {
    let authority = Authority::start().await;
    authority.state().scope_of_calls = Some("write");
    let shop = server(&authority, OAuth::new().sign_in(agrees()));
    let tools = offered(&shop).await;
    authority.log();
    // Two calls at once: the user is asked once.
    let one = asking(&tools, "other", Vec::new()).finish();
    let other = asking(&tools, "other", Vec::new()).finish();
    let (one, other) = tokio::join!(one, other);
    assert!(one.outcomes[0].succeeded() && other.outcomes[0].succeeded(), "{one:?} {other:?}");
    let mut log: Vec<String> = authority.log().lines().map(str::to_owned).collect();
    log.sort();
    assert_eq!(
        log,
        [
            "call of other",
            "call of other",
            "page for client-2 with scope `read write`",
            "register stepfold as client-2",
            "token by authorization_code for client-2",
        ]
    );
}

/// A server that is never content.
#[tokio::test]
async fn a_user_is_not_asked_for_ever() {
    let authority = Authority::start().await;
    authority.state().scope_of_calls = Some("read write");
    let shop = server(&authority, OAuth::new().sign_in(agrees()));
    let said = line(&shop, "echo", json!({"text": "hi"})).await;
    assert_eq!(
        said,
        "Failed(Error): MCP server `shop` refused the call: it wants more authorization each time"
    );
    assert_eq!(authority.log().matches("page for").count(), 3);
}

#[tokio::test]
async fn a_call_that_cannot_be_authorized_here_waits_and_continues_in_another_process() {
    let authority = Authority::start().await;
    let known = Known::default();
    let oauth = OAuth::new().credentials(known.clone()).advice("run `shop sign-in`");
    let here = server(&authority, oauth.clone());
    here.sign_in(&agrees()).await.unwrap();
    authority.state().scope_of_calls = Some("write");
    let requests = until_question(asking(&offered(&here).await, "other", Vec::new())).await;
    assert_eq!(
        (requests[0].label.as_str(), requests[0].message.as_str()),
        (
            "sign_in",
            "MCP server `shop` requires authorization: not signed in with scope `write`; run `shop sign-in`. Approve after the sign-in."
        )
    );
    // Nothing of it is a secret: it is stored with the run.
    assert!(!format!("{requests:?}").contains("acc3ss"), "{requests:?}");

    // Approved too early.
    let again = vec![accepted(&requests[0], json!({}))];
    let second = until_question(asking(&offered(&here).await, "other", again.clone())).await;
    assert_eq!(second[0].label, "sign_in.2");

    // Signed in with what is wanted, by another process.
    server(&authority, oauth.clone().scopes(["write"])).sign_in(&agrees()).await.unwrap();
    let mut answered = again;
    answered.push(accepted(&second[0], json!({})));
    let there = server(&authority, oauth);
    let outcome = asking(&offered(&there).await, "other", answered).finish().await.outcomes.remove(0);
    assert_eq!(line_of(&outcome), "Succeeded: other is done");

    let declined = InputResponse::Decline { reason: "no".to_owned() };
    let answered = vec![AnsweredRequest::new(requests[0].clone(), declined)];
    let outcome = asking(&offered(&there).await, "other", answered).finish().await.outcomes.remove(0);
    assert_eq!(
        line_of(&outcome),
        "Failed(Error): MCP server `shop` was not called: the user does not authorize it"
    );
}

#[test]
fn a_file_of_credentials_is_its_owners() {
    let folder = tempfile::tempdir().unwrap();
    let file = CredentialFile::in_folder(folder.path().join("deep"), "https://mcp.example.com/mcp");
    let name = file.path().file_name().unwrap().to_str().unwrap();
    let stem = name.strip_suffix(".json");
    assert!(stem.is_some_and(|stem| stem.starts_with("mcp-example-com-")), "{name}");
    assert_ne!(
        file.path(),
        CredentialFile::in_folder(folder.path().join("deep"), "https://mcp.example.com/other").path()
    );
    assert!(file.load().unwrap().is_none());
    file.save(None).unwrap();

    let stored = json!({"version": 1, "client_id": "c", "access_token": "acc3ss"});
    let credentials: OAuthCredentials = serde_json::from_value(stored.clone()).unwrap();
    file.save(Some(&credentials)).unwrap();
    assert_eq!(serde_json::to_value(file.load().unwrap().unwrap()).unwrap(), stored);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let lock = file.lock().unwrap();
    let beside = std::fs::File::open(format!("{}.lock", file.path().display())).unwrap();
    assert!(beside.try_lock().is_err());
    drop(lock);
    beside.try_lock().unwrap();

    std::fs::write(file.path(), r#"{"access_token": "acc3ss", 7}"#).unwrap();
    let error = file.load().unwrap_err().to_string();
    assert!(error.ends_with("invalid JSON; delete the file and sign in again") && !error.contains("acc3ss"));
    file.save(None).unwrap();
    assert!(file.load().unwrap().is_none());
}

#[test]
fn oauth_is_for_a_url_without_a_token() {
    let fault = |builder: stepfold_mcp::McpServerBuilder| builder.build().unwrap_err().to_string();
    let program = McpServer::command("shop", ["x"]).oauth(OAuth::new());
    assert_eq!(
        fault(program),
        "invalid MCP server `shop`: OAuth is for a server at a URL, and this is a command"
    );
    let both = McpServer::http("shop", "https://example.com").bearer_token("t").oauth(OAuth::new());
    assert_eq!(fault(both), "invalid MCP server `shop`: a bearer token and OAuth exclude each other");
}
