// People who use a keyboard, a screen reader, a narrow screen, a dark one, or want nothing to move.

import assert from "node:assert/strict";

import { api, dashboard, picture, row, service, signIn, test, until, violations, withPage, withSessions, write } from "../harness.js";

const active = (page) => page.evaluate(() => document.activeElement?.getAttribute("aria-label") ?? document.activeElement?.textContent.trim());

test("everything can be reached with the keyboard", () =>
  withSessions(1, (id) =>
    withPage(async (page) => {
      await page.goto(`${service.url}/ui`);
      await until(async () => (await page.evaluate(() => document.activeElement?.id)) === "token", "the focus is in the field");
      await page.keyboard.type(service.token);
      await page.keyboard.press("Enter");
      await row(page, id).waitFor();
      await until(async () => (await page.evaluate(() => document.activeElement.id)) === "main", "the focus is in the content");
      // Tabs: one stop, arrows between them.
      await page.getByRole("tab", { name: "Sessions" }).focus();
      await page.keyboard.press("ArrowRight");
      assert.equal(await active(page), "Workspace");
      await until(async () => (await page.getByRole("tab", { name: "Workspace", exact: true }).getAttribute("aria-selected")) === "true", "it is selected");
      await page.keyboard.press("End");
      assert.equal(await active(page), "Runtimes and policy");
      await page.keyboard.press("ArrowRight");
      assert.equal(await active(page), "Sessions");
      await until(async () => (await page.locator("#nav [role=tab]").evaluateAll((tabs) => tabs.map(({ tabIndex }) => tabIndex))).join() === "0,-1,-1,-1", "one is in the tab order");
      // A dialog keeps the focus and gives it back.
      await page.getByRole("button", { name: "Open a session" }).focus();
      await page.keyboard.press("Enter");
      await page.getByRole("dialog").waitFor();
      for (let at = 0; at < 12; at += 1) {
        await page.keyboard.press("Tab");
        // Between the last and the first the browser itself has the focus.
        assert.ok(await page.evaluate(() => document.activeElement === document.body || document.activeElement.closest("dialog") !== null));
      }
      await page.keyboard.press("Escape");
      await page.getByRole("dialog").waitFor({ state: "detached" });
      assert.equal(await active(page), "Open a session");
      // From a row into its terminal, a command, its tabs.
      await row(page, id).getByRole("link").focus();
      await page.keyboard.press("Enter");
      await until(async () => (await page.evaluate(() => document.activeElement?.id)) === "command", "the focus is in the terminal");
      await page.keyboard.type("echo typed");
      await page.keyboard.press("Enter");
      await page.locator(".command .how").filter({ hasText: "exit 0" }).waitFor();
      await page.getByRole("tab", { name: "Terminal" }).focus();
      await page.keyboard.press("ArrowRight");
      await page.locator("#panel-files .tree").waitFor();
      assert.equal(await active(page), "Files");
      await page.locator("#skip").focus();
      await page.keyboard.press("Enter");
      assert.equal(await page.evaluate(() => document.activeElement.id), "main");
    }),
  ));

test("landmarks, headings, live regions and names are there", () =>
  withSessions(1, (id) =>
    dashboard("", async (page) => {
      await row(page, id).waitFor();
      for (const role of ["banner", "navigation", "main"]) assert.equal(await page.getByRole(role).count(), 1, role);
      assert.equal(await page.getByRole("heading", { level: 1 }).textContent(), "sandboxd");
      assert.ok((await page.locator('[aria-live="polite"]').count()) >= 1);
      await page.getByRole("table", { name: "Open sessions" }).waitFor();
      assert.equal(await page.locator("button:not([aria-label])").evaluateAll((buttons) => buttons.filter(({ textContent, offsetParent }) => offsetParent && !textContent.trim()).length), 0);
      assert.equal(await page.locator("html").getAttribute("lang"), "en");
    }),
  ));

test("axe would find something", () =>
  dashboard("", async (page) => {
    await page.evaluate(() => {
      const image = document.createElement("img");
      const faint = document.createElement("p");
      faint.textContent = "hardly to be read";
      faint.style.color = "#eee";
      faint.style.background = "#fff";
      document.getElementById("main").append(image, faint);
    });
    const found = (await violations(page)).map((text) => text.split(":")[0]);
    assert.ok(found.includes("image-alt") && found.includes("color-contrast"), found.join());
  }));

// Each view and each state of one that looks different. `id` is a session with files, `closed` one that has left some.
async function eachView(page, id, closed, look) {
  const base = page.url().split("#")[0];
  await page.getByRole("tab", { name: "Sessions" }).click();
  await row(page, id).waitFor();
  await look("sessions");
  await page.getByRole("button", { name: "Open a session" }).click();
  await page.getByRole("dialog").waitFor();
  await look("create");
  await page.keyboard.press("Escape");
  await row(page, id).getByRole("button", { name: /^Purge/ }).click();
  await page.getByRole("dialog").waitFor();
  await look("purge");
  await page.keyboard.press("Escape");
  // Without any session, and without the service: as it would answer, and does not.
  await page.route(/\/sessions\?usage=true$/, async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: { ...(await response.json()), sessions: [] } });
  });
  await page.getByText("No session is open.").waitFor();
  await look("sessions-empty");
  await page.unroute(/\/sessions\?usage=true$/);
  await row(page, id).waitFor();
  await page.route(/\/sessions\?usage=true$/, (route) => route.fulfill({ status: 503, json: { detail: "The disk is not there" } }));
  await page.getByText(/The service answers: The disk is not there. What is shown is of \d\d:\d\d:\d\d\./).waitFor();
  await look("sessions-error");
  await page.unroute(/\/sessions\?usage=true$/);
  await until(async () => (await page.locator("#connection").textContent()) === "", "the service is found again");
  await page.goto(`${base}#/workspace`);
  await page.getByRole("heading", { name: "No session is selected" }).waitFor();
  await look("workspace-none");
  await page.goto(`${base}#/session/${closed}/terminal`);
  await page.getByText("This session is not open").waitFor();
  await look("workspace-closed");
  await page.goto(`${base}#/kept`);
  await page.locator("#view-kept tbody tr").first().waitFor();
  await look("kept");
  await page.goto(`${base}#/session/${id}/terminal`);
  for (const line of ["printf 'id  city      population\\n 1  Suva         93970\\n 2  Nadi         71048\\n'", "ls /nowhere", "printf 'hidden: \\033[31m \\342\\200\\256gpj.exe\\n'"]) {
    await page.getByLabel("Command", { exact: true }).fill(line);
    await page.keyboard.press("Enter");
  }
  await until(async () => (await page.locator(".command .how").allTextContents()).every((text) => text.includes("exit")), "the commands have ended");
  await look("terminal");
  await page.goto(`${base}#/session/${id}/files`);
  await page.locator(".tree").getByRole("button", { name: "notes.txt" }).click();
  await page.locator(".preview pre").waitFor();
  await until(async () => (await page.locator(".quota").textContent()).includes("on disk"), "the quota");
  await look("files");
  await page.goto(`${base}#/session/${id}/activity`);
  await page.locator("#panel-activity tbody tr").first().waitFor();
  await look("activity");
  await page.goto(`${base}#/session/${id}/info`);
  await page.locator("#panel-info dd").first().waitFor();
  await look("info");
  await page.goto(`${base}#/runtimes`);
  await page.getByRole("article").first().waitFor();
  await page.locator("#view-runtimes tbody tr").first().waitFor();
  const briefing = page.getByRole("article").first().getByRole("button", { name: "Briefing as a model reads it" });
  await briefing.click();
  await until(async () => (await page.getByRole("article").first().locator("pre").first().textContent()) !== "", "the briefing");
  await look("runtimes");
  await page.locator("#policy-title").scrollIntoViewIfNeeded();
  await look("policy");
}

const SIZES = { wide: { width: 1280, height: 900 }, narrow: { width: 360, height: 740 } };
for (const colorScheme of ["light", "dark"]) {
  for (const [size, viewport] of Object.entries(SIZES)) {
    test(`axe finds nothing in any view, ${colorScheme} and ${size}, and nothing is cut off`, () =>
      withSessions(1, (closed) =>
        withSessions(
          1,
          (other) =>
            withSessions(
              1,
              (id) =>
                withPage(
                  async (page) => {
                    const found = [];
                    const views = [];
                    const look = async (view) => {
                      views.push(view);
                      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
                      if (wide > 0) found.push(`${view} is ${wide} pixels too wide`);
                      found.push(...(await violations(page)).map((text) => `${view}: ${text}`));
                      await picture(page, `${view}-${colorScheme}${size === "narrow" ? "-narrow" : ""}`);
                    };
                    await write(closed, "/workspace/left.txt", Buffer.from("left behind\n"));
                    await api("DELETE", `/sessions/${closed}`);
                    await write(id, "/workspace/notes.txt", Buffer.from(`deep quakes are the most\nsee chart.png\n${"x".repeat(300)}\n`));
                    await write(id, "/workspace/data/cities.csv", Buffer.from("id,city\n1,Suva\n"));
                    await api("POST", `/sessions/${other}/hibernate`);
                    await page.goto(`${service.url}/ui`);
                    await page.getByLabel("Token", { exact: true }).waitFor();
                    await look("sign-in");
                    await page.getByLabel("Token", { exact: true }).fill("wrong");
                    await page.keyboard.press("Enter");
                    await page.getByRole("alert").filter({ hasText: "does not take" }).waitFor();
                    await look("sign-in-refused");
                    await signIn(page);
                    // Two looks at the sessions, so that there is a line to draw.
                    const points = () => page.locator(".tile .line polyline").nth(1).evaluate((line) => line.getAttribute("points").split(" ").length);
                    await until(async () => (await points()) > 2, "there is a line");
                    await eachView(page, id, closed, look);
                    assert.deepEqual(found, []);
                    return `${views.length} views`;
                  },
                  { colorScheme, viewport },
                ),
              { tenant: "acme" },
            ),
          { tenant: "globex" },
        ),
      ));
  }
}

for (const width of [1440, 1280, 1024, 800, 360]) {
  test(`the table of sessions fits a page of ${width} pixels, with its last button`, () =>
    withSessions(
      1,
      (id) =>
        dashboard(
          "",
          async (page) => {
            // With figures as long as they get, whatever this host measures.
            await page.route(/\/sessions\?usage=true$/, async (route) => {
              const response = await route.fetch();
              const list = await response.json();
              for (const { usage } of list.sessions) if (usage) Object.assign(usage, { memory_bytes: 1010 << 20, memory_limit_bytes: 2047 << 20, cpu_percent: 1234, pids: 10_240 });
              await route.fulfill({ response, json: list });
            });
            if (width > 960) await row(page, id).getByText("1010 MiB of 2.0 GiB").waitFor();
            await row(page, id).getByRole("button", { name: /^Purge/ }).waitFor();
            await until(async () => (await row(page, id).locator(".line").count()) > 0, "what it uses is drawn");
            const over = await page.evaluate(() => {
              const region = document.querySelector("#view-sessions .scroll");
              const cells = [...region.querySelectorAll("tbody td")].filter((cell) => cell.offsetParent && cell.scrollWidth > cell.clientWidth + 1);
              return [region.scrollWidth - region.clientWidth, ...cells.map((cell) => `${cell.className}: ${cell.textContent.slice(0, 40)}`)];
            });
            assert.deepEqual(over, [0]);
          },
          { viewport: { width, height: 800 } },
        ),
      { tenant: "a-tenant-with-a-long-name" },
    ));
}

test("nothing moves for whoever wants so", () =>
  withSessions(1, (id) =>
    dashboard(
      "",
      async (page) => {
        await row(page, id).waitFor();
        const moving = await page.evaluate(() => [...document.querySelectorAll("*")].filter((node) => parseFloat(getComputedStyle(node).transitionDuration) > 0 || getComputedStyle(node).animationName !== "none").length);
        assert.equal(moving, 0);
      },
      { reducedMotion: "reduce" },
    ),
  ));
