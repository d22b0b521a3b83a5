// The service, asked as any client asks it. The token is in this module's memory and nowhere else.

let token = null;
let onUnauthorized = () => {};

export function setToken(value) {
  token = value;
}

export function whenUnauthorized(listener) {
  onUnauthorized = listener;
}

// An answer that is not 2xx, in the service's words; or none at all, with the status 0.
export class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

function words(status, body) {
  const detail = body?.detail;
  if (typeof detail === "string") return detail;
  if (Array.isArray(detail)) return detail.map(({ loc, msg }) => `${loc.slice(1).join(".") || loc[0]}: ${msg}`).join("; ");
  return detail?.message ?? `the service answered ${status}`;
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  return new Refusal(response.status, words(response.status, body));
}

function headers(more) {
  return token === null ? { ...more } : { "X-Sandbox-Token": token, ...more };
}

// Addresses are relative to the page's own, so that a prefix of a proxy is kept.
const address = (path) => new URL(path.replace(/^\//, ""), document.baseURI);

// The browser's words for a connection that fails are for nobody.
function lost(error, words) {
  if (error.name === "TimeoutError") return new Refusal(0, "the service did not answer in time");
  return error instanceof TypeError ? new Refusal(0, words) : error;
}

// Ask, and give the answer to `take`. What takes longer than `within` milliseconds fails.
async function answer(method, path, { json, body, signal, accept, within } = {}, take) {
  const asWhom = token;
  const signals = [signal, within && AbortSignal.timeout(within)].filter(Boolean);
  try {
    const response = await fetch(address(path), {
      method,
      signal: signals.length > 1 ? AbortSignal.any(signals) : signals[0],
      body: json === undefined ? body : JSON.stringify(json),
      headers: headers({
        ...(json === undefined ? {} : { "Content-Type": "application/json" }),
        ...(accept ? { Accept: accept } : {}),
      }),
      cache: "no-store",
      credentials: "omit",
      referrerPolicy: "no-referrer",
    });
    // An answer to a token that was given up already says nothing of the one there is.
    if (response.status === 401 && asWhom === token) onUnauthorized();
    if (!response.ok) throw await refusal(response);
    return await take(response);
  } catch (error) {
    throw lost(error, "the service cannot be reached");
  }
}

export const ask = (method, path, options) => answer(method, path, options, (response) => response);

// What only looks is not waited for without end.
const LOOKS = 60_000;

export const get = (path, options) => answer("GET", path, { within: LOOKS, ...options }, (response) => response.json());
export const text = (path, options) => answer("GET", path, { within: LOOKS, ...options }, (response) => response.text());

export function post(path, json, options) {
  return answer("POST", path, { json, ...options }, (response) => (response.status === 204 ? null : response.json()));
}

// What looks by a body: files and directories of a workspace.
export const look = (path, json, options) => post(path, json, { within: LOOKS, ...options });

// Say when something was the last time, for whoever measures. The browser would keep every time that it is told.
export function mark(what) {
  performance.clearMarks(what);
  performance.mark(what);
}

// The open sessions, and as whom a request without a token was let in.
export function sessions(signal, within) {
  return answer("GET", "sessions?usage=true", { signal, within }, async (response) => {
    const list = await response.json();
    mark("sessions-answered");
    return { list, peer: response.headers.get("x-sandbox-peer") };
  });
}

// Which edition of this page the service has.
export async function edition() {
  const response = await fetch(address("ui"), { method: "HEAD", cache: "no-store", credentials: "omit" });
  return response.headers.get("etag");
}

export const session = (id, rest = "") => `sessions/${encodeURIComponent(id)}${rest}`;
export const workspace = (id, rest) => `workspaces/${encodeURIComponent(id)}/${rest}`;

export function runId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function fromBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

// The events of a stream, each as { event, data }.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    let end = rest.indexOf("\n\n");
    while (end >= 0) {
      const event = { event: "message", data: "" };
      for (const line of rest.slice(0, end).split("\n")) {
        const [field, ...value] = line.split(": ");
        if (field === "event" || field === "data") event[field] = value.join(": ");
      }
      if (event.data) yield event;
      rest = rest.slice(end + 2);
      end = rest.indexOf("\n\n");
    }
  }
}

const BROKEN_OFF = "the connection to the service broke off, and with it the command";

// Run a command; `output` gets each piece of bytes as it comes. Returns how it ended. Whoever aborts `signal` stops it.
export async function run(id, argv, { run_id = runId(), output = () => {}, signal } = {}) {
  const options = { json: { argv, run_id }, signal, accept: "text/event-stream" };
  const response = await ask("POST", session(id, "/run"), options);
  try {
    for await (const { event, data } of events(response)) {
      if (event === "stdout" || event === "stderr") output(event, fromBase64(data));
      else if (event === "exit") return JSON.parse(data);
      else if (event === "error") throw new Refusal(0, words(0, JSON.parse(data)));
    }
  } catch (error) {
    throw lost(error, BROKEN_OFF);
  }
  throw new Refusal(0, BROKEN_OFF);
}

// Send bytes to a file, saying how far it is. `fetch` does not tell that.
export function upload(path, bytes, { progress, signal }) {
  return new Promise((resolve, reject) => {
    const asWhom = token;
    const request = new XMLHttpRequest();
    request.open("POST", address(path));
    for (const [header, value] of Object.entries(headers())) request.setRequestHeader(header, value);
    request.upload.onprogress = ({ loaded }) => progress(loaded);
    request.onerror = () => reject(new Refusal(0, "the connection broke off"));
    request.onabort = () => reject(new DOMException("cancelled", "AbortError"));
    request.onload = () => {
      if (request.status < 300) return resolve();
      let body = null;
      try {
        body = JSON.parse(request.responseText);
      } catch {
        // Not the service's own words; the status has to do.
      }
      if (request.status === 401 && asWhom === token) onUnauthorized();
      return reject(new Refusal(request.status, words(request.status, body)));
    };
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(bytes);
  });
}
