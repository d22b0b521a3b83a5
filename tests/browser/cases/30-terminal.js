// The terminal of a session, and what a sandbox can write into it.

import assert from "node:assert/strict";
import { connect, createServer } from "node:net";

import { api, dashboard, killSandboxOf, service, sh, signIn, test, until, withPage, withSessions } from "../harness.js";

const open = (id, part = "terminal") => `#/session/${id}/${part}`;

async function enter(page, line) {
  const before = await page.locator(".command").count();
  await page.getByLabel("Command", { exact: true }).fill(line);
  await page.keyboard.press("Enter");
  const block = page.locator(".command").nth(before);
  await block.waitFor();
  return block;
}

const ends = (block, text) => block.locator(".how").filter({ hasText: text }).waitFor();

test("commands run, each a process of its own, with their streams and their status", () =>
  withSessions(1, (id) =>
    dashboard(open(id), async (page) => {
      await page.getByText("Every command is a process of its own").waitFor();
      const hello = await enter(page, "echo out; echo err >&2; exit 3");
      await ends(hello, "exit 3");
      assert.equal(await hello.locator(".stdout").textContent(), "out\n");
      assert.equal(await hello.locator(".stderr").textContent(), "err\n");
      await ends(await enter(page, "cd /tmp"), "exit 0");
      const where = await enter(page, "pwd");
      await ends(where, "exit 0");
      assert.equal(await where.locator("pre").textContent(), "/workspace\n");
      // Earlier lines come back, and what was being written does as well.
      const field = page.getByLabel("Command", { exact: true });
      await field.fill("not sent");
      const lines = [];
      for (const key of ["ArrowUp", "ArrowUp", "ArrowUp", "ArrowUp", "ArrowDown", "ArrowDown", "ArrowDown"]) {
        await page.keyboard.press(key);
        lines.push(await field.inputValue());
      }
      assert.deepEqual(lines, ["pwd", "cd /tmp", "echo out; echo err >&2; exit 3", "echo out; echo err >&2; exit 3", "cd /tmp", "pwd", "not sent"]);
      await until(async () => (await page.locator("#announcer").textContent()).includes("Command ended: exit 0"), "the end is announced");
    }),
  ));

test("a command of several lines is one, and comes back as it was", () =>
  withSessions(1, (id) =>
    dashboard(open(id), async (page) => {
      const field = page.getByLabel("Command", { exact: true });
      await field.fill("for n in 1 2");
      for (const line of ["do echo $n", "done"]) {
        await page.keyboard.press("Shift+Enter");
        await page.keyboard.type(line);
      }
      await page.keyboard.press("Enter");
      const block = page.locator(".command");
      await ends(block, "exit 0");
      assert.equal(await block.locator("pre").textContent(), "1\n2\n");
      await ends(await enter(page, "echo last"), "exit 0");
      // In a text of several lines the arrows go through these first.
      const values = [];
      for (const key of ["ArrowUp", "ArrowUp", "ArrowUp", "ArrowUp", "ArrowDown", "ArrowDown", "ArrowDown"]) {
        await page.keyboard.press(key);
        values.push((await field.inputValue()).split("\n")[0]);
      }
      assert.deepEqual(values, ["echo last", "for n in 1 2", "for n in 1 2", "for n in 1 2", "for n in 1 2", "for n in 1 2", "echo last"]);
    }),
  ));

test("bytes that are no text do not fill the page with elements", () =>
  withSessions(1, (id) =>
    dashboard(open(id), async (page) => {
      const zeros = await enter(page, "head -c 150000 /dev/zero; echo");
      await ends(zeros, "exit 0");
      assert.match(await zeros.locator("pre").textContent(), /^(\^@×\d+)+\n$/);
      // Each mark is one of its own.
      const mixed = await enter(page, "yes $(printf 'x\\001') | tr -d '\\n' | head -c 150000; echo end");
      await ends(mixed, "exit 0");
      assert.ok((await mixed.locator("pre").textContent()).endsWith("x^Ax^Aend\n"));
      const marks = await page.locator("pre .mark").count();
      assert.ok(marks > 1000 && marks < 5000, `${marks} marks`);
    }),
  ));

// What leads to the service, and can be cut as a restart does it: whoever is connected is not any more, and for a while nobody else gets in.
async function restartable(run) {
  const clients = new Set();
  const { port: to } = new URL(service.url);
  let there = true;
  const server = createServer((client) => {
    if (!there) return client.destroy();
    const upstream = connect(to, "127.0.0.1");
    for (const [each, other] of [[client, upstream], [upstream, client]]) each.on("error", () => other.destroy()).on("close", () => other.destroy());
    clients.add(client);
    return client.pipe(upstream).pipe(client);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const away = () => {
    there = false;
    for (const each of clients) each.destroy();
  };
  try {
    return await run(`http://127.0.0.1:${server.address().port}`, { away, back: () => (there = true) });
  } finally {
    away();
    server.close();
  }
}

test("a service that restarts while a command runs: what broke off is said, the page goes on, and so does the session", () =>
  withSessions(1, (id) =>
    restartable((url, { away, back }) =>
      withPage(async (page) => {
        await signIn(page, open(id), url);
        const block = await enter(page, "echo begun; sleep 250");
        await block.locator(".stdout").getByText("begun").waitFor();
        await page.getByLabel("Command", { exact: true }).fill("being written");
        away();
        await ends(block, "the connection to the service broke off, and with it the command");
        const trouble = page.locator("#connection");
        await trouble.getByText(/^The service cannot be reached; trying again\. What is shown is of \d\d:\d\d:\d\d\.$/).waitFor();
        await page.getByRole("tab", { name: "Info" }).click();
        await page.locator("#panel-info").getByText("running: its processes run").waitFor();
        back();
        await until(async () => (await trouble.textContent()) === "", "it is found again");
        await page.getByRole("tab", { name: "Terminal" }).click();
        // Nothing that was on the page is gone.
        await block.locator(".stdout").getByText("begun").waitFor();
        assert.equal(await page.getByLabel("Command", { exact: true }).inputValue(), "being written");
        await ends(await enter(page, "echo again"), "exit 0");
        await until(async () => (await sh(id, "cat /proc/[0-9]*/comm | grep -c sleep")).stdout === "0\n", "the command is stopped");
      }, { url, allowed: (text) => /ERR_/.test(text) }),
    ),
  ));

test("output comes while a command runs, others run beside it, and it is stopped with all it started", () =>
  withSessions(1, (id) =>
    dashboard(open(id), async (page) => {
      const long = await enter(page, "echo begun; sleep 600 & sleep 600; echo never");
      await long.locator(".stdout").getByText("begun").waitFor();
      await ends(await enter(page, "echo beside"), "exit 0");
      await until(async () => /^running, \d+ s$/.test(await long.locator(".how").textContent()), "how long it has run");
      await long.getByRole("button", { name: /^Stop echo begun/ }).focus();
      await page.keyboard.press("Enter");
      await ends(long, "stopped");
      assert.equal(await page.evaluate(() => document.activeElement.id), "command", "the focus goes to the next command");
      assert.ok(!(await long.textContent()).includes("never\n"));
      assert.equal((await sh(id, "cat /proc/[0-9]*/comm | grep -c sleep")).stdout, "0\n");
    }),
  ));

test("whoever leaves the page leaves nothing running", () =>
  withSessions(1, async (id) => {
    await dashboard(open(id), async (page) => {
      await (await enter(page, "echo begun; sleep 600")).locator(".stdout").getByText("begun").waitFor();
    });
    await until(async () => (await sh(id, "cat /proc/[0-9]*/comm | grep -c sleep")).stdout === "0\n", "the command is stopped");
  }));

test("a terminal is kept while one looks at something else", () =>
  withSessions(2, (first, second) =>
    dashboard(open(first), async (page) => {
      await ends(await enter(page, "echo of the first"), "exit 0");
      await page.getByRole("tab", { name: "Sessions" }).click();
      await page.getByRole("link", { name: `Open workspace of ${second}` }).click();
      await page.getByRole("heading", { name: `Session ${second}` }).waitFor();
      assert.equal(await page.locator(".command").count(), 0);
      await page.goBack();
      await page.getByRole("link", { name: `Open workspace of ${first}` }).click();
      await page.locator(".command").getByText("of the first", { exact: true }).waitFor();
    }),
  ));

test("output that comes in pieces is whole", () =>
  withSessions(1, (id) =>
    dashboard(open(id), async (page) => {
      const block = await enter(page, "printf x; sleep 0.3; echo; sleep 0.3; echo; sleep 0.3; printf '\\303'; sleep 0.3; printf '\\244\\n'; sleep 0.3; seq 3");
      await ends(block, "exit 0");
      assert.equal(await block.locator("pre").textContent(), "x\n\nä\n1\n2\n3\n");
      assert.ok(await block.getByText("The beginning of its output is not shown").isHidden());
      // More lines than are kept, fewer characters.
      const long = await enter(page, "seq 6000");
      await ends(long, "exit 0");
      await long.getByText("The beginning of its output is not shown").waitFor();
      const lines = (await long.locator("pre").textContent()).split("\n");
      assert.ok(lines.length <= 5001 && lines.at(-2) === "6000", `${lines.length}`);
    }),
  ));

test("output of megabytes does not stay on the page", () =>
  withSessions(1, (id) =>
    dashboard(open(id), async (page) => {
      const block = await enter(page, "yes 0123456789012345678901234567890123456789 | head -c 9000000; echo; echo the end");
      await ends(block, "exit 0");
      await block.getByText("The beginning of its output is not shown").waitFor();
      const text = await block.locator("pre").textContent();
      assert.ok(text.endsWith("the end\n") && text.length <= 200_000, `${text.length} characters`);
      const limited = await enter(page, "yes | head -c 20000000");
      await ends(limited, "stopped: its output passed");
    }),
  ));

// What a sandbox may write: HTML, escapes, marks that turn the text around, bytes that are no text.
const HOSTILE = '<img src=x onerror="globalThis.owned=1"><script>globalThis.owned=2</script>';

test("output from inside is shown as text alone, with what is hidden in it named", () =>
  withSessions(1, (id) =>
    dashboard(open(id), async (page) => {
      const line = `printf '%s' '${HOSTILE}'; printf '\\033[31mred\\007 \\342\\200\\256gpj.exe\\342\\200\\254 \\342\\200\\213z \\377\\n'`;
      const block = await enter(page, line);
      await ends(block, "exit 0");
      const text = await block.locator("pre").textContent();
      assert.ok(text.startsWith(HOSTILE), text);
      assert.ok(text.includes("^[[31mred^G U+202Egpj.exeU+202C U+200Bz \ufffd"), text);
      assert.equal(await block.locator("pre img, pre script").count(), 0);
      assert.equal(await block.locator("pre .mark").first().textContent(), "^[");
      assert.equal(await page.evaluate(() => globalThis.owned ?? null), null);
      assert.ok((await block.locator("code").first().textContent()).includes("<img src=x"));
      assert.ok(!/[\u202a-\u202e\u200b\u001b]/.test(await page.locator("body").innerText()));
    }),
  ));

test("a session that is closed while its workspace is shown is said to be, and takes no command", () =>
  withSessions(1, (id) =>
    dashboard(open(id), async (page) => {
      await ends(await enter(page, "echo alive > f"), "exit 0");
      await api("DELETE", `/sessions/${id}`);
      await page.getByText("This session is not open").waitFor();
      const field = page.getByLabel("Command", { exact: true });
      assert.ok((await field.isDisabled()) && !(await field.isEditable()));
      assert.ok(await field.evaluate((node) => node === document.activeElement), "the focus is not lost");
      for (const name of ["Terminate", "Purge", "Wake"]) assert.ok(await page.getByRole("button", { name, exact: true }).isDisabled(), name);
      await until(async () => (await page.locator("#announcer").textContent()).includes(`Session ${id} is closed now`), "it is announced");
      // Its files are kept, and still there to look at.
      await page.getByRole("tab", { name: "Files" }).click();
      await page.locator(".tree").getByRole("button", { name: "f" }).waitFor();
      assert.equal(await page.getByRole("button", { name: "Upload files" }).isVisible(), false);
      await api("POST", "/sessions", { session_id: id, attach: true });
      await page.getByText("This session is not open").waitFor({ state: "hidden" });
    }),
  ));

test("a sandbox that dies while it is shown is shown asleep, and the next command wakes it", () =>
  withSessions(1, (id) =>
    dashboard(open(id), async (page) => {
      const badge = page.locator("#view-workspace .badge").first();
      await until(async () => (await badge.textContent()) === "running", "it runs");
      const mark = `600.${process.pid}`;
      const block = await enter(page, `echo begun; sleep ${mark}`);
      await block.locator(".stdout").getByText("begun").waitFor();
      await killSandboxOf(mark);
      await ends(block, `The sandbox of session ${id} has ended`);
      await until(async () => (await badge.textContent()) === "hibernated", "it is asleep");
      await until(async () => (await page.locator("#announcer").textContent()).includes(`Session ${id} is hibernated now`), "it is announced");
      await ends(await enter(page, "echo again"), "exit 0");
      await until(async () => (await badge.textContent()) === "running", "it is awake");
    }),
  ));

test("a session is put to sleep, woken, terminated and purged from its workspace as well", () =>
  withSessions(1, (id) =>
    dashboard(open(id), async (page) => {
      const badge = page.locator("#view-workspace .badge").first();
      const press = (name) => page.locator("#view-workspace").getByRole("button", { name, exact: true }).click();
      const is = (state) => until(async () => (await badge.textContent()) === state, state);
      await ends(await enter(page, "echo kept > f"), "exit 0");
      await press("Hibernate");
      await is("hibernated");
      assert.equal((await api("GET", `/sessions/${id}`)).state, "hibernated");
      await press("Wake");
      await is("running");
      await press("Terminate");
      await page.getByRole("dialog", { name: `Terminate ${id}?` }).getByRole("button", { name: "Terminate it" }).click();
      await is("closed");
      const focused = await page.evaluate(() => document.activeElement.textContent);
      assert.equal(focused, "Terminate", "the focus is not lost with what it did");
      assert.equal((await api("POST", `/workspaces/${id}/ls`, { path: "." })).length, 1);
      await api("POST", "/sessions", { session_id: id, attach: true });
      await is("running");
      await press("Purge");
      await page.getByRole("dialog", { name: `Purge ${id}?` }).getByRole("button", { name: "Purge it" }).click();
      await is("closed");
      await until(async () => (await api("GET", `/workspaces?session=${id}`)).total === 0, "its files are gone");
    }),
  ));

test("no session selected, and one that never was", () =>
  dashboard("#/workspace", async (page) => {
    await page.getByRole("heading", { name: "No session is selected" }).waitFor();
    await page.goto(`${page.url().split("#")[0]}#/session/never-was/terminal`);
    await page.getByText("This session is not open").waitFor();
    await page.getByRole("link", { name: "Go to the sessions" }).waitFor({ state: "detached" });
    await page.getByRole("tab", { name: "Files", exact: true }).click();
    await page.getByText("No workspace for session: never-was").waitFor();
    assert.equal(await page.locator("#panel-files .tree").isVisible(), false);
    // What is no view is none, whatever else it is called.
    for (const place of ["constructor", "%E0%A4%A", "session"]) {
      await page.goto(`${page.url().split("#")[0]}#/${place}`);
      await page.locator("main > section:visible").waitFor();
    }
    await page.getByRole("tab", { name: "Sessions" }).click();
    await page.locator("#view-sessions").waitFor();
  }));
