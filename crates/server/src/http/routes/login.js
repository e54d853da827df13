// Swaps the token of the address for a cookie, and removes it from the address.
const token = new URLSearchParams(location.hash.slice(1)).get("token");
if (token) {
  history.replaceState(null, "", location.pathname);
  const headers = { "authorization": `Bearer ${token}`, "content-type": "application/json" };
  const said = document.getElementById("state");
  fetch("/api/v1/login", { method: "POST", headers }).then((response) => {
    said.textContent = response.ok ? "This browser is logged in." : "The token is unknown: was the server started again?";
  });
}
