// What sessions left behind: the workspaces that are kept.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";

import { api, dashboard, service, test, until, withSessions, write } from "../harness.js";

const kept = (page, id) => page.locator("#view-kept tbody tr", { has: page.getByText(id, { exact: true }) });
const listed = async (id) => (await api("GET", `/workspaces?session=${id}`)).workspaces[0];
const open = async (id) => (await api("GET", "/sessions")).sessions.some(({ session_id }) => session_id === id);

test("kept workspaces are listed with what is known of them, and their files looked at without waking anybody", () =>
  withSessions(
    2,
    (closed, asleep) =>
      dashboard("#/kept", async (page) => {
        await write(closed, "/workspace/notes/left.txt", Buffer.from("left behind\n"));
        await write(asleep, "/workspace/dreams.txt", Buffer.from("of sheep\n"));
        await kept(page, closed).getByText("open", { exact: true }).waitFor();
        await api("DELETE", `/sessions/${closed}`);
        await api("POST", `/sessions/${asleep}/hibernate`);
        await kept(page, closed).getByText("closed", { exact: true }).waitFor();
        await kept(page, asleep).getByText("asleep", { exact: true }).waitFor();
        const { runtime, access, files, disk_bytes, last_opened } = await listed(closed);
        assert.ok(disk_bytes > 0 && files === 1);
        const row = await kept(page, closed).innerText();
        for (const text of [closed, runtime, access, "of 300 MiB", "1"]) assert.ok(row.includes(text), `${text} in ${row}`);
        const at = await kept(page, closed).locator("time").getAttribute("datetime");
        assert.equal(at, new Date(last_opened * 1000).toISOString());
        await page.getByText(/^\d+ workspaces, last opened first; .* on disk$/).waitFor();
        for (const [id, names, text] of [[closed, ["notes", "left.txt"], "left behind"], [asleep, ["dreams.txt"], "of sheep"]]) {
          await kept(page, id).getByRole("link", { name: `Files of ${id}` }).click();
          for (const name of names) await page.locator(".tree").getByRole("button", { name }).click();
          await page.locator(".preview pre").getByText(text).waitFor();
          await page.getByRole("tab", { name: "Kept workspaces" }).click();
        }
        assert.equal(await open(closed), false);
        assert.equal((await api("GET", `/sessions/${asleep}`)).state, "hibernated");
      }),
  ));

test("a kept workspace is purged after a question, closed or open, and gone from the disk", () =>
  withSessions(2, (closed, running) =>
    dashboard("#/kept", async (page) => {
      await write(closed, "/workspace/left.txt", Buffer.from("left behind\n"));
      await api("DELETE", `/sessions/${closed}`);
      await kept(page, closed).getByText("closed", { exact: true }).waitFor();
      const directory = (id) => existsSync(`${service.state}/workspaces/${id}`);
      assert.ok(directory(closed) && directory(running));
      const ask = async (id, words) => {
        await kept(page, id).getByRole("button", { name: `Purge the workspace of ${id}` }).click();
        const dialog = page.getByRole("dialog", { name: `Purge the workspace of ${id}?` });
        await dialog.getByText(words, { exact: false }).waitFor();
        return dialog;
      };
      await (await ask(closed, "Its files are deleted")).getByRole("button", { name: "Cancel" }).click();
      assert.equal((await listed(closed)).state, "closed");
      // The question is about what is there when it is answered.
      await (await ask(closed, "Its files are deleted")).getByRole("button", { name: "Purge it" }).click();
      await kept(page, closed).waitFor({ state: "detached" });
      assert.ok(!directory(closed) && (await listed(closed)) === undefined);
      assert.equal(await open(closed), false, "nobody was woken for it");
      await until(async () => (await page.evaluate(() => document.activeElement?.id)) === "kept-title", "the focus goes to the title");
      await (await ask(running, "Its session is open")).getByRole("button", { name: "Purge it" }).click();
      await kept(page, running).waitFor({ state: "detached" });
      assert.ok(!directory(running) && !(await open(running)));
    }),
  ));

test("one that is opened between the list and the answer is not deleted under its session", () =>
  withSessions(1, (id) =>
    dashboard("#/kept", async (page) => {
      await write(id, "/workspace/left.txt", Buffer.from("left behind\n"));
      await api("DELETE", `/sessions/${id}`);
      await kept(page, id).getByText("closed", { exact: true }).waitFor();
      await kept(page, id).getByRole("button", { name: /^Purge/ }).click();
      await api("POST", "/sessions", { session_id: id, attach: true });
      await page.getByRole("button", { name: "Purge it" }).click();
      await page.locator("#notes").getByText(`Session exists: ${id}`).waitFor();
      assert.equal((await api("POST", `/workspaces/${id}/ls`, { path: "." })).length, 1);
      await kept(page, id).getByText("open", { exact: true }).waitFor();
    }),
  ));

test("kept workspaces of more than a page; and none at all", () =>
  dashboard("#/kept", async (page) => {
    const ids = Array.from({ length: 27 }, (_, at) => `kept-${process.pid}-${at}`);
    try {
      for (const id of ids) {
        await api("POST", "/sessions", { session_id: id, runtime: "base" });
        await api("DELETE", `/sessions/${id}`);
      }
      const { total } = await api("GET", "/workspaces?limit=1");
      await page.getByText(`1 to 25 of ${total} workspaces`, { exact: false }).waitFor();
      assert.ok(await page.getByRole("button", { name: "Newer" }).isDisabled());
      assert.equal(await page.locator("#view-kept tbody th").first().textContent(), ids.at(-1));
      await page.getByRole("button", { name: "Older" }).click();
      await page.getByText(`26 to ${Math.min(total, 50)} of ${total} workspaces`, { exact: false }).waitFor();
    } finally {
      for (const id of ids) await api("DELETE", `/workspaces/${id}`);
    }
    // The page that was looked at is not there any more: the last that is.
    const { total } = await api("GET", "/workspaces?limit=1");
    assert.ok(total <= 25, `other cases left ${total} workspaces`);
    if (total > 0) await page.getByText(`${total} workspace`, { exact: false }).waitFor();
    // As the service answers where nothing is kept.
    await page.route(/\/workspaces\?/, (route) => route.fulfill({ json: { workspaces: [], total: 0, skip: 0, limit: 25, disk_bytes: 0, disk_inodes: 0 } }));
    await page.getByText("Nothing is kept.").waitFor();
    assert.equal(await page.locator("#view-kept table").isVisible(), false);
  }));
