// The pictures of the documentation, of sessions that look like somebody's. `docs/` has them as WebP (`cwebp -q 80 -m 6`).
//
// Memory is measured where the kernel has its controller. These pictures are of a host that has one: its figures are made up.

import assert from "node:assert/strict";

import { api, dashboard, picture, row, sh, signIn, test, until, write } from "../harness.js";

const SESSIONS = [
  { session_id: "chat-4812", tenant: "acme" },
  { session_id: "report-q3", tenant: "acme" },
  { session_id: "clone-7f3a", tenant: "globex" },
  { session_id: "notes.maria", tenant: "globex" },
  { session_id: "s-01c9e77ab0214d5f", tenant: null },
];
const CLOSED = ["chat-4790", "import-0917"];

async function measured(page) {
  let look = 0;
  await page.route(/\/sessions\?usage=true$/, async (route) => {
    const response = await route.fetch();
    if (!response.ok()) return route.fulfill({ response });
    const list = await response.json();
    look += 1;
    for (const [at, { usage }] of list.sessions.entries()) {
      if (usage) Object.assign(usage, { memory_limit_bytes: 1 << 30, memory_bytes: Math.round((96 + 180 * at + 60 * Math.sin((look + 3 * at) / 3)) * (1 << 20)) });
    }
    return route.fulfill({ response, json: list });
  });
  await page.route(/\/policy$/, async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: { ...(await response.json()), unenforced_limits: [] } });
  });
}

test("pictures, with a session that is frozen, and goes on when it is woken", async () => {
  for (const session_id of CLOSED) {
    await api("POST", "/sessions", { session_id, runtime: "base" });
    await write(session_id, "/workspace/summary.md", Buffer.from("# Summary\n"));
    await api("DELETE", `/sessions/${session_id}`);
  }
  for (const session of SESSIONS) await api("POST", "/sessions", { ...session, runtime: "base" });
  try {
    for (const id of ["report-q3", "notes.maria"]) await api("POST", `/sessions/${id}/hibernate`);
    await write("chat-4812", "/workspace/quakes.csv", Buffer.from("depth,count\nshallow,334\ndeep,399\nmedium,267\n"));
    await write("chat-4812", "/workspace/charts/by-depth.txt", Buffer.from("deep    ################\nshallow #############\nmedium  ###########\n"));
    await write("chat-4812", "/workspace/uploads/quakes-2026.xlsx", Buffer.alloc(48_000, 7));
    const busy = sh("chat-4812", "for i in $(seq 14); do head -c 200000000 /dev/zero | sha256sum >/dev/null; sleep 1; done");
    await dashboard(
      "",
      async (page) => {
        await measured(page);
        await page.reload();
        await signIn(page);
        await row(page, "chat-4812").waitFor();
        await until(async () => (await page.locator(".tile .line polyline").nth(1).getAttribute("points")).split(" ").length > 8, "there is a line");
        const badge = row(page, "clone-7f3a").locator(".badge");
        await until(async () => (await badge.textContent()) === "frozen", "it is held still");
        for (const colorScheme of ["light", "dark"]) {
          await page.emulateMedia({ colorScheme });
          await picture(page, `docs-sessions-${colorScheme}`);
        }
        await page.emulateMedia({ colorScheme: "light" });
        await row(page, "clone-7f3a").getByRole("button", { name: "Wake clone-7f3a" }).click();
        await until(async () => (await badge.textContent()) === "running", "it goes on");
        const sleep = row(page, "clone-7f3a").getByRole("button", { name: "Hibernate clone-7f3a" });
        assert.equal(await sleep.count(), 1, "one of the two is hidden");
        await until(async () => (await badge.textContent()) === "frozen", "it is held still again");
        await sleep.click();
        await until(async () => (await badge.textContent()) === "hibernated", "it sleeps");
        await page.getByRole("link", { name: "Open workspace of chat-4812" }).click();
        for (const line of ["sort -t, -k2 -n quakes.csv", "ls -l /workspace && cat missing.txt", "id -un; uname -s"]) {
          const before = await page.locator(".command").count();
          await page.getByLabel("Command", { exact: true }).fill(line);
          await page.keyboard.press("Enter");
          await page.locator(".command").nth(before).locator(".how").filter({ hasText: "exit" }).waitFor();
        }
        await picture(page, "docs-terminal");
        await page.getByRole("tab", { name: "Files", exact: true }).click();
        await page.locator(".tree").getByRole("button", { name: "charts" }).click();
        await page.locator(".tree").getByRole("button", { name: "by-depth.txt" }).click();
        await page.locator(".preview pre").waitFor();
        await picture(page, "docs-files");
        await page.getByRole("tab", { name: "Kept workspaces" }).click();
        await page.locator("#view-kept tbody tr").nth(SESSIONS.length).waitFor();
        await picture(page, "docs-kept");
        await page.getByRole("tab", { name: "Runtimes and policy" }).click();
        await page.getByRole("article").first().getByRole("button", { name: "Briefing as a model reads it" }).click();
        await until(async () => (await page.getByRole("article").first().locator("pre").first().textContent()) !== "", "the briefing");
        await picture(page, "docs-runtimes");
      },
      { viewport: { width: 1200, height: 760 }, reducedMotion: "reduce" },
    );
    // It ends with its session.
    busy.catch(() => {});
  } finally {
    for (const { session_id } of SESSIONS) await api("DELETE", `/sessions/${session_id}?purge=true`).catch(() => {});
    for (const id of CLOSED) await api("DELETE", `/workspaces/${id}`).catch(() => {});
  }
});
