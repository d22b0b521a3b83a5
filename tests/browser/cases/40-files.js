// The files of a session.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { deflateSync } from "node:zlib";

import { api, dashboard, sh, test, until, withSessions, write } from "../harness.js";

const files = (id) => `#/session/${id}/files`;
const state = async (id) => (await api("GET", `/sessions/${id}`)).state;
const entry = (page, name) => page.locator(".tree").getByRole("button", { name, exact: false });

// A picture of one colour, 40 by 30.
function png() {
  const table = Array.from({ length: 256 }, (_, n) => { let c = n; for (let k = 0; k < 8; k += 1) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1; return c >>> 0; });
  const crc = (bytes) => ~bytes.reduce((c, byte) => table[(c ^ byte) & 255] ^ (c >>> 8), 0xffffffff) >>> 0;
  const chunk = (kind, data) => {
    const body = Buffer.concat([Buffer.from(kind), data]);
    const sum = Buffer.alloc(8);
    sum.writeUInt32BE(data.length, 0);
    sum.writeUInt32BE(crc(body), 4);
    return Buffer.concat([sum.subarray(0, 4), body, sum.subarray(4)]);
  };
  const head = Buffer.alloc(13);
  head.writeUInt32BE(40, 0);
  head.writeUInt32BE(30, 4);
  head.set([8, 2, 0, 0, 0], 8);
  const rows = Buffer.concat(Array.from({ length: 30 }, () => Buffer.concat([Buffer.from([0]), Buffer.alloc(120, 0x5a)])));
  return Buffer.concat([Buffer.from("89504e470d0a1a0a", "hex"), chunk("IHDR", head), chunk("IDAT", deflateSync(rows)), chunk("IEND", Buffer.alloc(0))]);
}

// A PDF of one page with one line.
function pdf(text) {
  const stream = `BT /F1 24 Tf 72 720 Td (${text}) Tj ET`;
  const objects = [
    "<< /Type /Catalog /Pages 2 0 R >>",
    "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
    `<< /Length ${stream.length} >>\nstream\n${stream}\nendstream`,
    "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
  ];
  let body = "%PDF-1.4\n";
  const offsets = objects.map((object, at) => {
    const offset = body.length;
    body += `${at + 1} 0 obj\n${object}\nendobj\n`;
    return offset;
  });
  const table = offsets.map((offset) => `${String(offset).padStart(10, "0")} 00000 n \n`).join("");
  return Buffer.from(`${body}xref\n0 6\n0000000000 65535 f \n${table}trailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n${body.length}\n%%EOF\n`);
}

// What is uploaded is named for a while; at the page's own pace that is long enough to see it on a busy machine.
const unhurried = (place, run) => dashboard(place, run, { pace: 1 });

test("tree, text, pictures and PDFs of a session that sleeps, and it goes on sleeping", () =>
  withSessions(1, (id) =>
    unhurried("", async (page) => {
      await write(id, "/workspace/notes/deep/readme.txt", Buffer.from("line one\nline two\n"));
      await write(id, "/workspace/picture.png", png());
      await write(id, "/workspace/paper.pdf", pdf("Words of the paper"));
      await write(id, "/workspace/blob.bin", Buffer.from([0, 1, 2, 255, 254, 0]));
      await write(id, "/workspace/uploads/given.txt", Buffer.from("given"));
      await write(id, "/workspace/long.txt", Buffer.from(Array.from({ length: 2500 }, (_, n) => `row ${n}\n`).join("")));
      await api("POST", `/sessions/${id}/hibernate`);
      await page.goto(`${page.url().split("#")[0]}${files(id)}`);
      await entry(page, "notes").click();
      await entry(page, "deep").click();
      assert.equal(await entry(page, "deep").getAttribute("aria-expanded"), "true");
      // Closed and opened again, also what was open in it.
      await entry(page, "notes").click();
      assert.equal(await entry(page, "deep").count(), 0);
      await entry(page, "notes").click();
      await entry(page, "deep").click();
      await entry(page, "readme.txt").click();
      const preview = page.getByRole("region", { name: "Preview" });
      await preview.getByText("line one\nline two").waitFor();
      await preview.getByText("18 B", { exact: false }).waitFor();
      await entry(page, "picture.png").click();
      const image = preview.getByRole("img", { name: "Picture picture.png" });
      await until(() => image.evaluate(({ naturalWidth }) => naturalWidth === 40), "the picture is drawn");
      await until(() => entry(page, "picture.png").locator("img.thumbnail").evaluate(({ naturalWidth }) => naturalWidth > 0), "it has a thumbnail");
      await entry(page, "paper.pdf").click();
      await preview.getByText("Words of the paper").waitFor();
      await entry(page, "blob.bin").click();
      await preview.getByText("No preview:", { exact: false }).waitFor();
      await entry(page, "uploads").click();
      await entry(page, "given.txt").getByText("attached").waitFor();
      await entry(page, "long.txt").click();
      await preview.getByText("row 999\n", { exact: false }).waitFor();
      await preview.getByRole("button", { name: "Show more lines" }).click();
      await preview.getByText("row 1999\n", { exact: false }).waitFor();
      await preview.getByRole("button", { name: "Show more lines" }).click();
      await preview.getByText("row 2499", { exact: false }).waitFor();
      assert.ok(!(await preview.textContent()).includes("more lines"));
      const [download] = await Promise.all([page.waitForEvent("download"), preview.getByRole("button", { name: "Download long.txt" }).click()]);
      assert.equal(download.suggestedFilename(), "long.txt");
      const got = await readFile(await download.path(), "utf8");
      assert.ok(got.startsWith("row 0\n") && got.endsWith("row 2499\n"));
      assert.equal(await state(id), "hibernated");
    }),
  ));

test("files are dropped in, also while the session sleeps", () =>
  withSessions(1, (id) =>
    unhurried(files(id), async (page) => {
      await api("POST", `/sessions/${id}/hibernate`);
      await write(id, "/workspace/inbox/here", Buffer.from(""));
      await page.getByRole("button", { name: "Look again" }).click();
      await entry(page, "inbox").click();
      await page.getByText("Files that are dropped here go to /workspace/inbox", { exact: false }).waitFor();
      await dropped(page, "#panel-files", [["drop me.txt", "dropped\n"]]);
      await page.locator(".transfer").getByText("8 B, uploaded").waitFor();
      await entry(page, "drop me.txt").waitFor();
      const { content } = await api("POST", `/workspaces/${id}/read`, { path: "inbox/drop me.txt" });
      assert.ok(content.startsWith("dropped"));
      assert.equal(await state(id), "hibernated");
    }),
  ));

// Drop files on an element: each [name, content]. Says whether the page took the events for itself.
const dropped = (page, selector, items) =>
  page.evaluate(
    ([selector, items]) => {
      const data = new DataTransfer();
      for (const [name, content] of items) data.items.add(new File([content], name));
      const to = document.querySelector(selector);
      return ["dragover", "drop"].map((kind) => !to.dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true })));
    },
    [selector, items],
  );

test("what would replace a file is asked about; several are listed until they are there; beside its place nothing is dropped", () =>
  withSessions(1, (id) =>
    unhurried(files(id), async (page) => {
      await write(id, "/workspace/mine.txt", Buffer.from("mine"));
      await entry(page, "mine.txt").waitFor();
      await dropped(page, "#panel-files", [["mine.txt", "theirs"], ["other.txt", "other"]]);
      const question = page.getByRole("dialog", { name: "Replace 1 file?" });
      await question.getByText("In /workspace there is already: mine.txt.").waitFor();
      await question.getByRole("button", { name: "Cancel" }).click();
      await question.waitFor({ state: "detached" });
      assert.equal((await sh(id, "cat mine.txt; ls")).stdout, "minemine.txt\n");
      await dropped(page, "#panel-files", [["mine.txt", "theirs"]]);
      await question.getByRole("button", { name: "Replace" }).click();
      await page.locator(".transfer").getByText("6 B, uploaded").waitFor();
      assert.equal((await sh(id, "cat mine.txt")).stdout, "theirs");
      // The first of several is held up, so that the others are seen to wait; one of them is cancelled while it does.
      let go = null;
      await page.route(/files\/write\?path=.*first/, (route) => (go = () => route.continue()));
      await dropped(page, "#panel-files", ["first", "second", "third"].map((name) => [name, name]));
      await page.locator(".transfer", { hasText: "third" }).getByText("waits, 5 B").waitFor();
      await page.getByRole("button", { name: "Cancel second" }).click();
      await page.locator(".transfer", { hasText: "second" }).getByText("cancelled").waitFor();
      await until(() => go, "the first is on its way");
      go();
      await page.locator(".transfer", { hasText: "third" }).getByText("5 B, uploaded").waitFor();
      assert.equal((await sh(id, "ls")).stdout, "first\nmine.txt\nthird\n");
      // The browser would open the file in place of the page.
      assert.deepEqual(await dropped(page, "header", [["beside.txt", "beside"]]), [true, true]);
      assert.equal((await sh(id, "ls | wc -l")).stdout, "3\n");
    }),
  ));

test("a file without anything in it, and one that comes slowly, are said to be that", () =>
  withSessions(1, (id) =>
    unhurried(files(id), async (page) => {
      await write(id, "/workspace/empty.txt", Buffer.from(""));
      await write(id, "/workspace/some.txt", Buffer.from("some"));
      await entry(page, "empty.txt").click();
      await page.locator(".preview").getByText("Nothing is in this file.").waitFor();
      let go = null;
      await page.route(/\/workspaces\/.*\/read$/, (route) => (go = () => route.continue()));
      await entry(page, "some.txt").click();
      const content = page.locator(".preview .content");
      await until(async () => (await content.evaluate((node) => `${node.ariaBusy} ${getComputedStyle(node, "::before").content}`)) === 'true "Loading…"', "it is loading");
      await until(() => go, "it is asked for");
      go();
      await content.getByText("some", { exact: true }).waitFor();
      assert.equal(await content.getAttribute("aria-busy"), null);
    }),
  ));

test("50 MB go up with progress and come down again, the same bytes", () =>
  withSessions(1, (id) =>
    unhurried(files(id), async (page) => {
      const size = 50 * 1024 * 1024;
      const bytes = Buffer.alloc(size);
      for (let at = 0; at < size; at += 4096) bytes.writeUInt32LE(at * 2654435761 % 4294967296, at);
      const big = path.join(os.tmpdir(), "big.bin");
      await writeFile(big, bytes);
      await page.evaluate(() => {
        const seen = (globalThis.seen = new Set());
        const look = () => document.querySelectorAll(".transfer [role=progressbar]").forEach((bar) => seen.add(bar.getAttribute("aria-valuenow")));
        new MutationObserver(look).observe(document.body, { subtree: true, childList: true, attributes: true, attributeFilter: ["aria-valuenow"] });
      });
      await page.getByLabel("Files to upload").setInputFiles(big);
      await page.locator(".transfer").getByText("50.0 MiB, uploaded").waitFor();
      const seen = await page.evaluate(() => [...globalThis.seen].map(Number));
      assert.ok(seen.length > 5 && seen.at(-1) === 100, `progress was seen at ${seen}`);
      const sums = (await sh(id, "sha256sum big.bin; ls -A")).stdout;
      const digest = createHash("sha256").update(bytes).digest("hex");
      assert.equal(sums, `${digest}  big.bin\nbig.bin\n`);
      await entry(page, "big.bin").click();
      await page.getByText("No preview: over 8.0 MiB", { exact: false }).waitFor();
      const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download big.bin" }).click()]);
      assert.ok((await readFile(await download.path())).equals(bytes));
      await page.getByText(/^5\d\.\d MiB of 300 MiB on disk/).waitFor();
      const meter = page.getByRole("meter", { name: "Disk in use" });
      assert.ok(Number(await meter.getAttribute("aria-valuenow")) >= 16);
      return `50 MiB in ${seen.length} steps of progress`;
    }),
  ));

test("a large file goes in and out where the sandbox's user is not root", () =>
  withSessions(
    1,
    (id) =>
      unhurried(files(id), async (page) => {
        const buffer = Buffer.alloc(9 * 1024 * 1024, "large ");
        for (const round of [1, 2]) {
          await page.getByLabel("Files to upload").setInputFiles({ name: "large.bin", mimeType: "application/octet-stream", buffer });
          if (round === 2) await page.getByRole("button", { name: "Replace" }).click();
          await page.locator(".transfer:last-child").getByText("9.0 MiB, uploaded").waitFor();
          // It stays for a while, and is not taken for the next.
          await page.locator(".transfers").evaluate((list) => list.replaceChildren());
        }
        assert.equal((await sh(id, "id -u; ls -A; wc -c < large.bin")).stdout, `10001\nlarge.bin\n${buffer.length}\n`);
        await entry(page, "large.bin").click();
        const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download large.bin" }).click()]);
        assert.ok((await readFile(await download.path())).equals(buffer));
      }),
    { runtime: "python" },
  ));

test("an upload that is cancelled or too large leaves nothing", () =>
  withSessions(1, (id) =>
    unhurried(files(id), async (page) => {
      const over = path.join(os.tmpdir(), "over.bin");
      await writeFile(over, Buffer.alloc(50 * 1024 * 1024 + 1));
      await page.getByLabel("Files to upload").setInputFiles(over);
      await page.locator(".transfer").getByText("sandboxctl cp copies larger ones", { exact: false }).waitFor();
      const slow = path.join(os.tmpdir(), "slow.bin");
      await writeFile(slow, Buffer.alloc(40 * 1024 * 1024));
      await page.evaluate(() => {
        // Hold the second piece back until it is cancelled.
        const send = XMLHttpRequest.prototype.send;
        let number = 0;
        XMLHttpRequest.prototype.send = function (body) {
          number += 1;
          if (number !== 2) send.call(this, body);
          else this.abort = () => this.onabort();
        };
      });
      await page.getByLabel("Files to upload").setInputFiles(slow);
      await until(async () => (await sh(id, "ls -A")).stdout.includes(".upload-"), "the first piece is there");
      await page.getByRole("button", { name: "Cancel slow.bin" }).click();
      await page.locator(".transfer").getByText("cancelled").waitFor();
      await until(async () => (await sh(id, "ls -A")).stdout === "", "nothing is left");
    }),
  ));

const NAMES = ["<img src=x onerror=globalThis.owned=1>.txt", "invoice\u202efdp.exe", "two\nlines", "tab\tand\u001b[31m", "zero\u200bwidth", "\u05d0\u05d1\u05d2 rtl", "'; rm -rf \"$HOME\" #", "..."];
// Marks that are stacked on a letter until they reach the lines above and below.
const STACKED = `z${"\u0301\u0316".repeat(60)}`;

test("names from inside are shown as text, each for itself, and can be opened and fetched", () =>
  withSessions(1, (id) =>
    unhurried(files(id), async (page) => {
      for (const name of NAMES) await write(id, `/workspace/hostile/${name}`, Buffer.from(`in ${NAMES.indexOf(name)}`));
      await page.getByRole("button", { name: "Look again" }).click();
      await entry(page, "hostile").click();
      await until(async () => (await page.locator(".entries .entries .entry").count()) === NAMES.length, "all of them are listed");
      const shown = (await page.locator(".entries .entries .name").allTextContents()).join("|");
      for (const text of ["<img src=x onerror=globalThis.owned=1>.txt", "invoiceU+202Efdp.exe", "two^Jlines", "tab^Iand^[[31m", "zeroU+200Bwidth"]) assert.ok(shown.includes(text), `${text} in ${shown}`);
      assert.ok(!/[\u202e\u200b\u001b\n]/.test(shown));
      assert.equal(await page.evaluate(() => globalThis.owned ?? null), null);
      assert.equal(await page.locator(".tree .name img").count(), 0);
      assert.equal(await page.locator(".tree .name").first().evaluate((node) => [node.tagName, getComputedStyle(node).unicodeBidi].join()), "BDI,isolate");
      for (const [at, name] of NAMES.entries()) {
        const visible = name.replace("\u202e", "U+202E").replace("\n", "^J").replace("\t", "^I").replace("\u001b", "^[").replace("\u200b", "U+200B");
        await page.locator(".entries .entries .entry", { has: page.getByText(visible, { exact: true }) }).click();
        await page.locator(".preview pre").getByText(`in ${at}`, { exact: true }).waitFor();
        const [download] = await Promise.all([page.waitForEvent("download"), page.locator(".preview").getByRole("button", { name: /^Download/ }).click()]);
        assert.ok(!/[\u202e\u200b\u001b\n/<>]/.test(download.suggestedFilename()), download.suggestedFilename());
      }
      // Where a name is drawn no other is.
      const above = page.locator(".entries .entries .entry").filter({ hasText: "U+200B" });
      await page.mouse.move(0, 0);
      await page.locator(".tree [aria-current]").evaluate((node) => node.removeAttribute("aria-current"));
      const before = await above.screenshot();
      await write(id, `/workspace/hostile/${STACKED}`, Buffer.from("stacked"));
      await page.getByRole("button", { name: "Look again" }).click();
      await until(async () => (await page.locator(".entries .entries .entry").count()) === NAMES.length + 1, "it is listed");
      await page.mouse.move(0, 0);
      assert.ok(before.equals(await above.screenshot()), "a name is drawn over another");
      const large = "'; touch owned #\u202e$(touch owned).bin";
      const file = { name: large, mimeType: "application/octet-stream", buffer: Buffer.alloc(9 * 1024 * 1024, 7) };
      await page.getByLabel("Files to upload").setInputFiles(file);
      await page.locator(".transfer").getByText("9.0 MiB, uploaded").waitFor();
      assert.equal((await sh(id, "ls -A; find . -name owned | wc -l; cat hostile/*.bin | wc -c")).stdout, "hostile\n0\n9437184\n");
    }),
  ));

test("the tree follows what happens in the session", () =>
  withSessions(1, (id) =>
    dashboard(files(id), async (page) => {
      await page.locator(".tree").getByText("Nothing is in here.").waitFor();
      await sh(id, "echo 1 > appears");
      await entry(page, "appears").waitFor();
      await sh(id, "rm appears");
      await entry(page, "appears").waitFor({ state: "detached" });
    }),
  ));
