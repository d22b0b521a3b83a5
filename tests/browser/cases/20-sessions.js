// The view of all sessions.

import assert from "node:assert/strict";

import { api, dashboard, row, sh, test, until, withSessions } from "../harness.js";

const state = async (id) => (await api("GET", "/sessions")).sessions.find(({ session_id }) => session_id === id)?.state;

test("a session is opened in the dialog, which says where ceilings come from", () =>
  dashboard("", async (page) => {
    const id = `made-${process.pid}`;
    await page.getByRole("button", { name: "Open a session" }).click();
    const dialog = page.getByRole("dialog", { name: "Open a session" });
    await dialog.getByText("belong to the runtime").waitFor();
    await dialog.getByText(/processes, no network/).waitFor();
    await dialog.getByLabel("Runtime").selectOption("base");
    await dialog.getByText("The bare Debian base", { exact: false }).waitFor();
    // What the service would refuse does not leave the dialog, and neither does what it does refuse.
    await dialog.getByLabel("Session id").fill("../up");
    await dialog.getByRole("button", { name: "Open it" }).click();
    assert.ok(await dialog.getByLabel("Session id").evaluate((field) => !field.validity.valid));
    await dialog.getByLabel("Session id").fill(id);
    await dialog.getByLabel("Tenant").fill("acme");
    await dialog.getByRole("button", { name: "Open it" }).click();
    await dialog.waitFor({ state: "detached" });
    await row(page, id).getByText("acme", { exact: true }).waitFor();
    await row(page, id).getByText("running", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Open a session" }).click();
    await dialog.getByLabel("Session id").fill(id);
    await dialog.getByRole("button", { name: "Open it" }).click();
    await dialog.getByRole("alert").filter({ hasText: `Session exists: ${id}` }).waitFor();
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "detached" });
    await api("DELETE", `/sessions/${id}?purge=true`);
    await row(page, id).waitFor({ state: "detached" });
  }));

test("hibernate, wake, terminate and purge do what they say, the last two after a question", () =>
  withSessions(2, (first, second) =>
    dashboard("", async (page) => {
      await row(page, first).getByRole("button", { name: `Hibernate ${first}` }).click();
      await row(page, first).getByText("hibernated", { exact: true }).waitFor();
      assert.equal(await state(first), "hibernated");
      await row(page, first).getByRole("button", { name: `Wake ${first}` }).click();
      await row(page, first).getByText("running", { exact: true }).waitFor();
      assert.equal(await state(first), "running");

      await row(page, first).getByRole("button", { name: `Purge ${first}` }).click();
      await page.getByRole("dialog", { name: `Purge ${first}?` }).getByRole("button", { name: "Cancel" }).click();
      assert.equal(await state(first), "running");
      await row(page, first).getByRole("button", { name: `Purge ${first}` }).click();
      await page.getByRole("button", { name: "Purge it" }).click();
      await row(page, first).waitFor({ state: "detached" });
      // It leaves the table when it begins to close.
      await until(async () => (await api("GET", `/workspaces?session=${first}`)).total === 0, "its files are gone");

      await row(page, second).getByRole("button", { name: `Terminate ${second}` }).click();
      await page.getByRole("button", { name: "Terminate it" }).click();
      await row(page, second).waitFor({ state: "detached" });
      await api("POST", `/workspaces/${second}/ls`, { path: "." }, { expect: 200 });
      await api("POST", "/sessions", { session_id: second, attach: true });
    }),
  ));

test("what is refused is said, and stays until it is put away", () =>
  withSessions(1, (id) =>
    dashboard("", async (page) => {
      const { token } = await api("POST", "/sessions", { session_id: id, attach: true });
      assert.ok(token);
      const run = api("POST", `/sessions/${id}/run`, { argv: ["sleep", "4"], run_id: "0".repeat(32) });
      await row(page, id).getByRole("button", { name: `Hibernate ${id}` }).click();
      const note = page.locator("#notes").getByText(`Session ${id} is at work`, { exact: false });
      await note.waitFor();
      assert.equal(await state(id), "running");
      await page.getByRole("button", { name: "Dismiss" }).click();
      await note.waitFor({ state: "detached" });
      await run;
    }),
  ));

test("figures: capacity, tenants' shares, memory, processes, runtimes", () =>
  withSessions(
    2,
    (first, second) =>
      dashboard("", async (page) => {
        await row(page, first).waitFor();
        const capacity = page.locator(".tile", { hasText: "sandboxes in use" });
        // What an earlier case has closed may be on its way out.
        const health = await until(async () => {
          const now = await api("GET", "/healthz");
          const text = await capacity.innerText();
          return text.includes(`${now.sessions} of ${now.limit}`) && text.includes(`${now.open_sessions} sessions open, asleep or not, of ${now.open_limit} at most`) && now;
        }, "the figures of the service");
        await page.locator(".shares").getByText("globex: 2", { exact: false }).waitFor();
        await page.locator(".tile", { hasText: "Runtimes allowed" }).getByText(/python.*; a request names one/).waitFor();
        const { sessions } = await api("GET", "/sessions?usage=true");
        const pids = await until(async () => Number(await page.locator(".tile", { hasText: "Processes" }).locator(".figure").textContent()), "processes are counted");
        assert.ok(pids >= sessions.filter(({ usage }) => usage?.pids).length);
        // Lines of what was grow by a point with each look.
        const points = () => page.locator(".tile .line polyline").first().evaluate((line) => line.getAttribute("points").split(" ").length);
        const before = await points();
        await until(async () => (await points()) > before, "the line grows");
        assert.equal(await page.locator(".tile", { hasText: "Runtimes allowed" }).locator(".figure").textContent(), `${health.runtimes.length}`);
        await row(page, second).waitFor();
      }),
    { tenant: "globex" },
  ));

test("what each session uses is what the service measures, and what it does not measure is said to be so", () =>
  withSessions(1, (id) =>
    dashboard("", async (page) => {
      // A processor's work, which every host measures, and its processes.
      // It goes on until its session is closed.
      sh(id, "sleep 280 & sleep 280 & while :; do head -c 300000000 /dev/zero | sha256sum > /dev/null; done").catch(() => {});
      const cells = row(page, id).locator("td");
      const [memory, cpu, pids] = [cells.nth(4), cells.nth(5), cells.nth(6)];
      await until(async () => parseFloat(await cpu.textContent()) > 1, "its work is seen");
      await until(async () => Number(await pids.textContent()) >= 4, "its processes are counted");
      const usage = await until(async () => {
        const { usage } = (await api("GET", "/sessions?usage=true")).sessions.find(({ session_id }) => session_id === id);
        return usage.cpu_percent > 0 && usage.pids >= 4 && usage;
      }, "the service says so");
      // The line goes up where there was work, and is of as many looks as there were.
      const line = cpu.locator(".line polyline");
      const heights = async () => (await line.getAttribute("points")).split(" ").map((point) => Number(point.split(",")[1]));
      await until(async () => (await heights()).length > 2 && new Set(await heights()).size > 1, "the line moves");
      const tile = page.locator(".tile", { hasText: "Memory in use" });
      await page.goto(`${page.url().split("#")[0]}#/session/${id}/info`);
      const info = page.locator("#panel-info");
      if (usage.memory_bytes === null) {
        assert.equal(await tile.locator(".figure").textContent(), "–");
        await info.getByText("not measured here: this host has no memory controller", { exact: false }).waitFor();
        await page.getByRole("tab", { name: "Sessions" }).click();
        await tile.getByText("not measured here: this host has no memory controller", { exact: false }).waitFor();
        assert.equal(await memory.textContent(), "not measured");
        assert.equal(await memory.locator(".line:visible, .gauge:visible").count(), 0, "no line is drawn of nothing");
      } else {
        await info.getByText(/^[\d.]+ [KMG]iB( of [\d.]+ [KMG]iB|, without a ceiling)/).waitFor();
        await page.getByRole("tab", { name: "Sessions" }).click();
        assert.match(await memory.textContent(), /^[\d.]+ [KMG]iB/);
        assert.match(await tile.locator(".figure").textContent(), /^[\d.]+ [KMG]iB$/);
      }
      return usage.memory_bytes === null ? "memory is not measured on this host" : "memory is measured";
    }),
  ));

// Memory is measured where the kernel has its controller, which the host of these tests may lack: then the service's own answer
// gets the figures that it would have.
test("memory is shown against the session's own ceiling", () =>
  withSessions(2, (first, second) =>
    dashboard("", async (page) => {
      let used = 300;
      await page.route(/\/sessions\?usage=true$/, async (route) => {
        const response = await route.fetch();
        const list = await response.json();
        for (const { session_id, usage } of list.sessions) {
          if (session_id === first) Object.assign(usage, { memory_bytes: used << 20, memory_limit_bytes: 1 << 30 });
          if (session_id === second) Object.assign(usage, { memory_bytes: 100 << 20, memory_limit_bytes: null });
        }
        await route.fulfill({ response, json: list });
      });
      await row(page, first).getByText("300 MiB of 1.0 GiB").waitFor();
      const meter = row(page, first).getByRole("meter", { name: `Memory of ${first}` });
      assert.equal(await meter.getAttribute("aria-valuenow"), "29");
      used = 960;
      await row(page, first).getByText("960 MiB of 1.0 GiB").waitFor();
      assert.deepEqual([await meter.getAttribute("aria-valuenow"), await meter.getAttribute("data-level")], ["94", "high"]);
      await row(page, second).getByText("100 MiB", { exact: true }).waitFor();
      assert.equal(await row(page, second).getByRole("meter").count(), 0);
      await page.locator(".tile", { hasText: "Memory in use" }).getByText("1.0 GiB", { exact: true }).waitFor();
      const points = () => row(page, first).locator(".line polyline").first().evaluate((line) => line.getAttribute("points").split(" ").length);
      await until(async () => (await points()) > 2, "the line grows");
      await page.getByRole("columnheader", { name: "Memory" }).getByRole("button").click();
      assert.equal(await page.locator("#view-sessions tbody th").first().textContent(), first);
      await page.getByRole("link", { name: `Open workspace of ${first}` }).click();
      await page.getByRole("tab", { name: "Info" }).click();
      await page.locator("#panel-info").getByText("960 MiB of 1.0 GiB").waitFor();
    }),
  ));

test("filters and sorting", () =>
  withSessions(3, (first, second, third) => withSessions(1, () =>
    dashboard("", async (page) => {
      const shown = () => page.locator("#view-sessions tbody th").allTextContents();
      await row(page, third).waitFor();
      await page.getByLabel("Find").fill(second);
      assert.deepEqual(await shown(), [second]);
      await page.getByText(/^1 of \d+ sessions shown$/).waitFor();
      await page.getByLabel("Find").fill("");
      await api("POST", `/sessions/${first}/hibernate`);
      await row(page, first).getByText("hibernated", { exact: true }).waitFor();
      await page.getByLabel("State").selectOption("hibernated");
      assert.ok((await shown()).includes(first) && !(await shown()).includes(second));
      await page.getByLabel("State").selectOption("");
      for (const [label, value] of [["Tenant", "initech"], ["Runtime", "base"]]) {
        await page.getByLabel(label, { exact: true }).selectOption(value);
        for (const id of [first, second, third]) assert.ok((await shown()).includes(id), `${id} with ${label} ${value}`);
        for (const other of (await api("GET", "/sessions")).sessions.filter(({ tenant, runtime }) => (label === "Tenant" ? tenant : runtime) !== value)) assert.ok(!(await shown()).includes(other.session_id));
        await page.getByLabel(label, { exact: true }).selectOption("");
      }
      const heading = page.getByRole("columnheader", { name: "Session" });
      await heading.getByRole("button").click();
      assert.equal(await heading.getAttribute("aria-sort"), "ascending");
      const up = await shown();
      assert.deepEqual(up, [...up].sort());
      await heading.getByRole("button").click();
      assert.equal(await heading.getAttribute("aria-sort"), "descending");
      assert.deepEqual(await shown(), [...up].reverse());
    }),
  { tenant: "hooli" }), { tenant: "initech" }));

test("updates are live and leave what stands still alone", () =>
  withSessions(2, (first, second) =>
    dashboard("", async (page) => {
      // What a session uses is drawn from its first figures on.
      for (const id of [first, second]) await row(page, id).locator(".line").first().waitFor({ state: "attached" });
      const node = await row(page, first).elementHandle();
      await row(page, second).getByRole("link", { name: `Open workspace of ${second}` }).focus();
      await page.evaluate(() => {
        globalThis.added = 0;
        new MutationObserver((list) => (globalThis.added += list.reduce((sum, { addedNodes, removedNodes }) => sum + [...addedNodes, ...removedNodes].filter(({ nodeType }) => nodeType === 1).length, 0))).observe(document.querySelector("#view-sessions tbody"), { childList: true, subtree: true });
      });
      // Whoever marks a text has it marked still, and what is on the page does not jump about.
      await page.evaluate((id) => {
        const name = [...document.querySelectorAll("#view-sessions tbody th")].find((cell) => cell.textContent === id);
        getSelection().selectAllChildren(name);
        globalThis.jumps = [];
        const place = ({ x, y, width, height }) => [x, y, width, height].map(Math.round).join(" ");
        const source = ({ node, previousRect, currentRect }) => `${node?.nodeName} ${node?.textContent?.slice(0, 40)}: ${place(previousRect)} to ${place(currentRect)}`;
        new PerformanceObserver((list) => globalThis.jumps.push(...list.getEntries().map(({ value, sources }) => `${value}: ${sources.map(source).join("; ")}`))).observe({ type: "layout-shift" });
      }, first);
      const idle = row(page, first).locator("td").nth(3);
      const before = await idle.textContent();
      await until(async () => (await idle.textContent()) !== before, "idle time goes on");
      assert.equal(await page.evaluate(() => globalThis.added), 0, "no element is made or removed by an update");
      assert.ok(await node.evaluate((row) => row.isConnected));
      assert.equal(await page.evaluate(() => getSelection().toString()), first);
      assert.deepEqual(await page.evaluate(() => globalThis.jumps), []);
      await withSessions(1, async (third) => {
        await row(page, third).waitFor();
        assert.ok(await row(page, second).getByRole("link").evaluate((link) => link === document.activeElement), "the focus stays");
      });
      assert.ok(await node.evaluate((row) => row.isConnected));
    }, { pace: 1 }),
  ));

// The service's answer with other figures, as `change` makes of it.
async function instead(page, change) {
  await page.route(/\/sessions\?usage=true$/, async (route) => {
    const response = await route.fetch();
    const list = await response.json();
    change(list);
    await route.fulfill({ response, json: list });
  });
}

test("figures as long as they get do not make a row jump", () =>
  withSessions(1, (id) =>
    dashboard("", async (page) => {
      await row(page, id).locator(".line").first().waitFor({ state: "attached" });
      const heights = new Set();
      for (const seconds of [9, 59, 3599, 35_000_000]) {
        await instead(page, ({ sessions }) => sessions.forEach((info) => Object.assign(info, { idle_seconds: seconds, usage: info.usage && { ...info.usage, cpu_percent: seconds % 1600, pids: seconds % 9999 } })));
        const last = await page.evaluate(() => performance.getEntriesByName("sessions-shown")[0].startTime);
        await until(() => page.evaluate((last) => performance.getEntriesByName("sessions-shown")[0]?.startTime > last + 600, last), "two more looks");
        heights.add((await row(page, id).boundingBox()).height);
        await page.unroute(/\/sessions\?usage=true$/);
      }
      assert.equal(heights.size, 1, [...heights].join());
    }),
  ));

test("a row stays under the pointer that is about to press its button, however its figures change", () =>
  withSessions(3, (first, second, third) =>
    dashboard("", async (page) => {
      const ids = [first, second, third];
      const shown = async () => (await page.locator("#view-sessions tbody th").allTextContents()).filter((id) => ids.includes(id));
      let order = ids;
      await instead(page, ({ sessions }) => sessions.forEach((info) => (info.idle_seconds = 1000 * (1 + order.indexOf(info.session_id)))));
      const heading = page.getByRole("columnheader", { name: "Idle" }).getByRole("button");
      await heading.click();
      await until(async () => (await shown()).join() === [third, second, first].join(), "they are sorted");
      await row(page, second).hover();
      order = [third, second, first];
      const idle = row(page, first).locator("td").nth(3);
      await until(async () => (await idle.textContent()) === "50 min", "its figure is another");
      assert.deepEqual(await shown(), [third, second, first]);
      await heading.hover();
      await until(async () => (await shown()).join() === [first, second, third].join(), "they are sorted again");
    }),
  ));

test("no session that matches is said, and all are a button away", () =>
  withSessions(1, (id) =>
    dashboard("", async (page) => {
      await row(page, id).waitFor();
      await page.getByLabel("Find").fill("nothing has this");
      await page.getByText("No session matches.").waitFor();
      assert.equal(await page.getByRole("table", { name: "Open sessions" }).count(), 0);
      await page.getByRole("button", { name: "Show all of them" }).click();
      await row(page, id).waitFor();
      assert.equal(await page.getByLabel("Find").inputValue(), "");
      assert.ok(await page.getByLabel("Find").evaluate((field) => field === document.activeElement));
    }),
  ));

test("sessions that end at once are all announced; one that is another under the same name is shown as it is", () =>
  withSessions(2, (first, second) =>
    dashboard("", async (page) => {
      await row(page, second).waitFor();
      await instead(page, (list) => {
        list.sessions = list.sessions.filter(({ session_id }) => session_id !== second);
        for (const info of list.sessions) if (info.session_id === first) Object.assign(info, { created_at: info.created_at + 1, tenant: "newcomer", runtime: "other" });
      });
      for (const text of ["newcomer", "other"]) await row(page, first).getByText(text, { exact: true }).waitFor();
      await page.unroute(/\/sessions\?usage=true$/);
      await row(page, second).waitFor();
      await instead(page, (list) => (list.sessions = []));
      await until(async () => {
        const said = await page.locator("#announcer").textContent();
        return said.includes(`Session ${first} is closed`) && said.includes(`Session ${second} is closed`);
      }, "both are announced");
    }),
  ));

test("a session that ends while it is shown leaves the table, is announced, and hands the focus on", () =>
  withSessions(1, (id) =>
    dashboard("", async (page) => {
      await row(page, id).getByRole("button", { name: `Purge ${id}` }).focus();
      await api("DELETE", `/sessions/${id}?purge=true`);
      await row(page, id).waitFor({ state: "detached" });
      await until(async () => (await page.locator("#announcer").textContent()).includes(`Session ${id} is closed`), "it is announced");
      assert.ok(await page.locator("#open-session").evaluate((node) => node === document.activeElement));
    }),
  ));

test("a service that is not there is said, and found again", () =>
  dashboard("", async (page, context) => {
    await page.locator("#view-sessions .figure").first().waitFor();
    await context.setOffline(true);
    await page.getByText("The service cannot be reached; trying again").waitFor();
    await context.setOffline(false);
    await until(async () => (await page.locator("#connection").textContent()) === "", "it is found again");
  }, { allowed: (text) => /ERR_INTERNET_DISCONNECTED/.test(text) }));
