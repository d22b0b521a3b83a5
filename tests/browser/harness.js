// What the cases share: a browser, a page that is signed in, the service asked as a client asks it.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";

const modules = process.env.BROWSER_MODULES;
const require = createRequire(path.join(modules, "package.json"));
const { chromium } = require("playwright-core");
const axeSource = await readFile(require.resolve("axe-core/axe.min.js"), "utf8");
const PAGE_FILES = new URL("../../src/daemon/src/dashboard/page/", import.meta.url);

export const service = JSON.parse(process.env.BROWSER_SERVICE);
export const screenshots = path.join(modules, "screenshots");
export const cases = [];
let browser = null;

// What is waited for comes within this, in milliseconds, or the case fails: long enough for a machine that does much else. A case
// that looks for how fast something is measures that.
const PATIENCE = 60_000;

// What a case gives back that could not show what it is there for, and why.
export const SKIPPED = (why) => ({ skipped: why });

export function test(title, run) {
  cases.push({ title, run });
}

export async function start() {
  await rm(screenshots, { recursive: true, force: true });
  await mkdir(screenshots, { recursive: true });
  const executablePath = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
  assert.ok(executablePath, "chromium is not installed");
  const args = ["--disable-dev-shm-usage", "--disable-background-networking"];
  // Names that somebody else lets point at this machine: a site's, and a neighbour's in a network.
  args.push("--host-resolver-rules=MAP *.evil.example 127.0.0.1, MAP neighbour 127.0.0.1");
  browser = await chromium.launch({ executablePath, args });
}

export async function end() {
  await browser?.close();
}

// Ask the API; the parsed answer of 2xx, else an error.
export async function api(method, route, body, { raw = false, expect } = {}) {
  const bytes = body instanceof Uint8Array;
  const response = await fetch(service.url + route, {
    method,
    headers: { "X-Sandbox-Token": service.token },
    body: body === undefined ? undefined : bytes ? body : JSON.stringify(body),
  });
  if (expect) assert.equal(response.status, expect, `${method} ${route}`);
  else assert.ok(response.ok, `${method} ${route}: ${response.status} ${await response.clone().text()}`);
  if (raw) return Buffer.from(await response.arrayBuffer());
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

let made = 0;
let failures = 0;

// An open session of a fresh name; closed with its files when the case is over.
export async function withSessions(number, run, { runtime = "base", tenant = null } = {}) {
  const ids = [];
  try {
    for (let at = 0; at < number; at += 1) {
      made += 1;
      const id = `b${made}-${process.pid}`;
      await api("POST", "/sessions", { session_id: id, runtime, tenant });
      ids.push(id);
    }
    return await run(...ids);
  } finally {
    const gone = (path) => fetch(service.url + path, { method: "DELETE", headers: { "X-Sandbox-Token": service.token } });
    // One that the case has closed has left its files.
    for (const id of ids) if ((await gone(`/sessions/${id}?purge=true`)).status === 404) await gone(`/workspaces/${id}`);
  }
}

export const sh = (id, line) => api("POST", `/sessions/${id}/run`, { argv: ["sh", "-c", line], run_id: run_id() });
export const write = (id, file, bytes) => api("POST", `/sessions/${id}/files/write?path=${encodeURIComponent(file)}`, bytes);

const run_id = () => randomBytes(16).toString("hex");

// Processes of this machine with a text in their arguments, and which signals they have a handler for.
export async function processesOf(text) {
  const found = [];
  for (const pid of (await readdir("/proc")).filter((entry) => /^\d+$/.test(entry))) {
    const command = await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "");
    if (!command.includes(text)) continue;
    const status = await readFile(`/proc/${pid}/status`, "utf8").catch(() => "");
    const caught = BigInt(`0x${/^SigCgt:\s*(\w+)$/m.exec(status)?.[1] ?? 0}`);
    found.push({ pid: Number(pid), awaits: (signal) => ((caught >> BigInt(os.constants.signals[signal] - 1)) & 1n) === 1n });
  }
  return found;
}

// Kill the init of the sandbox in which a command with this mark in its arguments runs, from the host.
export async function killSandboxOf(mark) {
  const status = async (pid) => Object.fromEntries((await readFile(`/proc/${pid}/status`, "utf8")).split("\n").map((line) => line.split(":\t")));
  for (const { pid } of await processesOf(mark)) {
    let at = pid;
    let its = await status(at);
    while (its.NSpid.split("\t").length > 1 && its.NSpid.split("\t").at(-1) !== "1") {
      at = Number(its.PPid);
      its = await status(at);
    }
    if (its.NSpid.split("\t").length > 1) return process.kill(at, "SIGKILL");
  }
  throw new Error(`no sandbox runs ${mark}`);
}

// A page in a context of its own. Whatever it asks of anybody but the service, each line of its console that complains and each
// exception fails the case.
// With `elsewhere` it is a page of somebody else, which asks whom it likes. Its looks come `pace` times as often as they would.
export async function withPage(run, { url = service.url, allowed = () => false, elsewhere = false, pace = 4, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, acceptDownloads: true, ...options });
  const wrong = [];
  const own = new URL(url).origin;
  context.on("request", (request) => {
    const to = request.url();
    if (!elsewhere && !to.startsWith(`${own}/`) && !to.startsWith(`blob:${own}/`) && !to.startsWith("data:image/")) wrong.push(`asks ${to}`);
  });
  await context.addInitScript((times) => {
    const timer = globalThis.setTimeout.bind(globalThis);
    globalThis.setTimeout = (what, after, ...rest) => timer(what, after >= 1000 ? after / times : after, ...rest);
  }, pace);
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("pageerror", (error) => wrong.push(`exception: ${error.stack}`));
  page.on("console", (message) => {
    if (!["error", "warning"].includes(message.type())) return;
    // The browser notes each answer that is no success; the cases look at what the page makes of it.
    if (/Failed to load resource: the server responded with a status of \d+/.test(message.text())) return;
    if (!allowed(message.text())) wrong.push(`console: ${message.text()}`);
  });
  // For work on the page: its files from the disk, with the headers of the service.
  if (process.env.BROWSER_PAGE === "disk" && !elsewhere) {
    await context.route(/\/ui(\/[a-z.]+)?$/, async (route) => {
      const name = new URL(route.request().url()).pathname.replace(/^\/ui\/?/, "") || "index.html";
      const response = await route.fetch().catch(() => null);
      // A name that only the browser knows.
      if (response === null) return route.continue();
      return route.fulfill({ response, body: await readFile(new URL(name, PAGE_FILES)) });
    });
  }
  try {
    const told = await run(page, context);
    assert.deepEqual(wrong, []);
    return told;
  } catch (error) {
    // How it looked then.
    failures += 1;
    await picture(page, `failed-${failures}`).catch(() => {});
    if (wrong.length) error.message += `\nthe page: ${wrong.join("\n")}`;
    throw error;
  } finally {
    // A stand-in that is about to answer has nobody to answer any more.
    for (const each of [page, context]) await each.unrouteAll({ behavior: "ignoreErrors" }).catch(() => {});
    await context.close();
  }
}

export async function signIn(page, place = "", url = service.url) {
  await page.goto(`${url}/ui${place}`);
  await page.getByLabel("Token", { exact: true }).fill(service.token);
  await page.getByRole("button", { name: "Open the dashboard" }).click();
  await page.locator("#sign-in").waitFor({ state: "hidden" });
}

// A page that is signed in.
export const dashboard = (place, run, options) =>
  withPage(async (page, context) => {
    await signIn(page, place);
    return run(page, context);
  }, options);

export const row = (page, id) => page.locator("#view-sessions tbody tr", { has: page.getByText(id, { exact: true }) });

// Wait until `look` says something true.
export async function until(look, what, within = PATIENCE) {
  const last = performance.now() + within;
  for (;;) {
    const found = await look();
    if (found) return found;
    assert.ok(performance.now() < last, `not within ${within} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

// What axe has against the page as it is.
export async function violations(page) {
  if (!(await page.evaluate(() => "axe" in globalThis))) await page.evaluate(axeSource);
  const found = await page.evaluate(async () => {
    const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.slice(0, 3).map(({ html, failureSummary }) => `${html.slice(0, 160)} (${failureSummary})`).join("; ")}`);
  });
  return found;
}

export async function picture(page, name) {
  await page.screenshot({ path: path.join(screenshots, `${name}.png`) });
}
