// Activity and facts of a session; runtimes and policy.

import assert from "node:assert/strict";

import { api, dashboard, processesOf, service, sh, test, until, withSessions, write } from "../harness.js";

test("activity: what was done by whomever, live, with filters, and never what was written or read", () =>
  withSessions(1, (id) =>
    dashboard("", async (page) => {
      await sh(id, "echo secret-output; exit 4");
      await write(id, "/workspace/kept.txt", Buffer.from("secret-content"));
      await page.goto(`${page.url().split("#")[0]}#/session/${id}/activity`);
      const rows = page.locator("#panel-activity tbody tr");
      await rows.filter({ hasText: "kept.txt" }).getByText("write", { exact: true }).waitFor();
      await rows.filter({ hasText: "exit 4" }).waitFor();
      await page.getByText("1 to 2 of 2").waitFor();
      // An agent's operation while one looks.
      await fetch(`${service.url}/sessions/${id}/files/stat`, {
        method: "POST",
        headers: { "X-Sandbox-Token": service.token, "X-Sandbox-Agent": "clerk <7>" },
        body: JSON.stringify({ path: "/workspace/kept.txt" }),
      });
      await rows.filter({ hasText: "clerk <7>" }).waitFor();
      assert.ok(!(await page.locator("#panel-activity").textContent()).includes("secret-content"));
      await page.getByLabel("Operation", { exact: true }).selectOption("write");
      await page.getByText("1 to 1 of 1").waitFor();
      await page.getByLabel("Operation", { exact: true }).selectOption("");
      await page.getByLabel("Outcome").selectOption("true");
      await until(async () => (await rows.allTextContents()).join().includes("exit 4") && (await rows.count()) === 1, "what failed is shown alone");
      await page.getByLabel("Outcome").selectOption("");
      await page.getByLabel("Find").last().fill("nothing has this");
      await page.getByText("No operation matches.").waitFor();
      await page.getByLabel("Find").last().fill("");
      await page.getByText("1 to 3 of 3").waitFor();
    }),
  ));

test("activity of more than a page, with a hostile target", () =>
  withSessions(1, (id) =>
    dashboard(`#/session/${id}/activity`, async (page) => {
      for (let at = 0; at < 55; at += 1) await api("POST", `/sessions/${id}/files/stat`, { path: `/workspace` });
      await write(id, "/workspace/<b>\u202ex\u0007", Buffer.from("1"));
      await page.getByText("1 to 50 of 56").waitFor();
      const target = await page.locator("#panel-activity .target").first().textContent();
      assert.ok(target.includes("<b>") && !/[\u202e\u0007]/.test(target), target);
      await page.getByRole("button", { name: "Older" }).focus();
      await page.keyboard.press("Enter");
      await page.getByText("51 to 56 of 56").waitFor();
      assert.ok(await page.getByRole("button", { name: "Older" }).isDisabled());
      assert.equal(await page.evaluate(() => document.activeElement.textContent), "Older", "the focus is not lost");
      await page.keyboard.press("Enter");
      await page.getByRole("button", { name: "Newer" }).click();
      await page.getByText("1 to 50 of 56").waitFor();
      // What is not of today has its day.
      assert.match(await page.locator("#panel-activity time").first().textContent(), /^\d\d:\d\d:\d\d$/);
      await page.route(/\/operations\?/, async (route) => {
        const response = await route.fetch();
        const told = await response.json();
        told.operations = told.operations.map((row) => ({ ...row, id: row.id + 1e6, at: Date.UTC(2026, 0, 31, 12) / 1000 }));
        await route.fulfill({ response, json: told });
      });
      await until(async () => /^31 Jan, \d\d:\d\d:\d\d$/.test(await page.locator("#panel-activity time").first().textContent()), "the day");
    }),
  ));

test("facts of a session", () =>
  withSessions(
    1,
    (id) =>
      dashboard(`#/session/${id}/info`, async (page) => {
        const facts = page.locator("#panel-info dl");
        const has = (text) => until(async () => (await facts.textContent()).includes(text), text);
        await has("running: its processes run");
        await has("no network");
        await has("umbrella");
        await api("POST", `/sessions/${id}/hibernate`);
        await has("what it installed is kept");
        await page.locator("#panel-info .line").first().waitFor();
      }),
    { tenant: "umbrella" },
  ));

test("runtimes and the policy in force are shown, and there is no form", () =>
  dashboard("#/runtimes", async (page) => {
    const policy = await api("GET", "/policy");
    for (const { alias, description, image } of policy.runtimes) {
      const card = page.getByRole("article").filter({ has: page.getByRole("heading", { name: alias, exact: true }) });
      await card.getByText(description, { exact: true }).waitFor();
      await card.getByText(image, { exact: true }).waitFor();
      const facts = await card.locator("dl").evaluate((list) => Object.fromEntries([...list.querySelectorAll("dt")].map((term) => [term.textContent, term.nextElementSibling.textContent])));
      const { mem_limit: memory, cpus, pids_limit: processes, network_mode: network } = policy.runtimes.find((runtime) => runtime.alias === alias);
      assert.deepEqual([facts.Memory, facts.CPUs, facts.Processes, facts.Network], [memory.replace(/g$/, " GiB").replace(/m$/, " MiB"), `${cpus}`, `${processes}`, network]);
    }
    const base = page.getByRole("article").filter({ has: page.getByRole("heading", { name: "base", exact: true }) });
    await base.getByText("default", { exact: true }).waitFor();
    await base.getByText(/^ready, [\d.]+ MiB on disk$/).waitFor();
    const where = page.getByRole("region", { name: "Where these values are set" });
    for (const text of ["/etc/sandboxd/sandboxd.toml", "SANDBOXD_RUNTIMES", "There is no form here", "sandboxctl policy set"]) await where.getByText(text, { exact: false }).first().waitFor();
    assert.equal(await page.locator("#view-runtimes input, #view-runtimes select, #view-runtimes form").count(), 0);
    for (const [setting, value] of Object.entries(policy)) {
      if (setting === "runtimes") continue;
      const row = page.locator("#view-runtimes tbody tr", { has: page.getByText(setting, { exact: true }) });
      const words = value === null || (Array.isArray(value) && value.length === 0) ? "none" : Array.isArray(value) ? value.join(", ") : String(value);
      const seconds = typeof value === "number" && /(_timeout|_ttl|_after)$/.test(setting);
      const unit = seconds ? / s($|, which is \d+ (min|h|d) )/ : setting === "max_read_bytes" ? / bytes, which is [\d.]+ MiB$/ : null;
      const told = await row.locator("td").textContent();
      assert.equal(unit ? told.replace(/ .*/s, "") : told, words, setting);
      if (unit) assert.match(told, unit, setting);
    }
  }));

test("the briefing as a model reads it, and the log of a build", () =>
  dashboard("#/runtimes", async (page) => {
    const { runtimes } = await api("GET", "/runtimes");
    for (const { alias } of runtimes) {
      const { briefing } = await api("GET", `/runtimes/${alias}/briefing`);
      const card = page.getByRole("article").filter({ has: page.getByRole("heading", { name: alias, exact: true }) });
      await card.getByRole("button", { name: "Briefing as a model reads it" }).click();
      await card.locator("pre").first().getByText((briefing ?? "None: no catalogue").slice(0, 60), { exact: false }).waitFor();
    }
    // What is built here has a log, or says that it was not built here; what is not has none to ask for.
    const python = page.getByRole("article").filter({ has: page.getByRole("heading", { name: "python", exact: true }) });
    await python.getByRole("button", { name: "Log of its build" }).click();
    const answer = await fetch(`${service.url}/runtimes/python/log`, { headers: { "X-Sandbox-Token": service.token } });
    const told = answer.ok ? (await answer.text()).trim().split("\n")[0] : (await answer.json()).detail;
    await until(async () => (await python.locator("pre").nth(1).textContent()).includes(told.slice(0, 40)), told);
    const base = page.getByRole("article").filter({ has: page.getByRole("heading", { name: "base", exact: true }) });
    assert.equal(await base.getByRole("button", { name: "Log of its build" }).isVisible(), false);
  }));

test("a build is followed while it goes on: its step, its log line by line, and its end", () =>
  dashboard("#/runtimes", async (page) => {
    const card = page.getByRole("article").filter({ has: page.getByRole("heading", { name: "slow", exact: true }) });
    const badge = card.locator(".badge[data-state]");
    await card.getByText("not here yet; made when it is first needed").waitFor();
    await card.getByRole("button", { name: "Log of its build" }).click();
    const log = card.getByLabel("Log of its build: slow");
    await log.getByText("was not built here", { exact: false }).waitFor();
    const opened = api("POST", "/sessions", { session_id: `slow-${process.pid}`, runtime: "slow" });
    const refused = opened.then(() => null, (error) => error);
    const lines = async () => (await log.textContent()).match(/^line \d+ of/gm)?.length ?? 0;
    // It waits after its first and its second line until it is told to go on.
    const goOn = async () => {
      // What started it has the same words among its arguments, and does not wait for the signal.
      const shell = await until(async () => {
        const [one, ...others] = (await processesOf(service.build)).filter(({ awaits }) => awaits("SIGUSR1"));
        return others.length === 0 && one;
      }, "its shell is found");
      process.kill(shell.pid, "SIGUSR1");
    };
    const comes = (look, what) => until(look, what).catch(async (error) => assert.fail(`${error.message}: ${await card.innerText()}; the session: ${await Promise.race([refused, "is waited for"])}`));
    try {
      await comes(async () => (await badge.textContent()) === "building", "it is being built");
      await comes(() => card.getByText(/^building, step \d+ of \d+/).count(), "its step is told");
      await comes(async () => (await lines()) === 1, "its first line");
      // Without anybody asking for it, more of it; the text is as it was sent, what was marked in it stays marked, and the card is the
      // same element.
      const node = await card.elementHandle();
      await log.evaluate((text) => getSelection().selectAllChildren(text));
      const marked = await page.evaluate(() => getSelection().toString());
      await goOn();
      await comes(async () => (await lines()) === 2, "its second line");
      assert.ok((await page.evaluate(() => getSelection().toString())).startsWith(marked.trim()), "what was marked");
      await goOn();
      await comes(async () => (await badge.textContent()) === "ready", "it is ready");
      await comes(async () => (await lines()) === 15, "all of its lines");
      assert.ok(await node.evaluate((card) => card.isConnected));
      // What a build writes is text, as what a session writes.
      assert.ok((await log.textContent()).includes("<img src=x onerror=globalThis.owned=1>^[[31m"));
      assert.deepEqual([await log.locator("img").count(), await page.evaluate(() => globalThis.owned ?? null)], [0, null]);
      await card.getByText(/^ready, [\d.]+ [KMG]?i?B on disk$/).waitFor();
    } finally {
      await opened.catch(() => {});
      await api("DELETE", `/sessions/slow-${process.pid}?purge=true`).catch(() => {});
    }
  }));
