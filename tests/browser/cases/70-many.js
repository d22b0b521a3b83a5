// Many sessions: real ones, most of them asleep.

import assert from "node:assert/strict";

import { api, dashboard, service, test, until, violations, withPage } from "../harness.js";

// The first view is to be complete so soon after the answer with 200 sessions, in milliseconds.
const WITHIN = 200;
const names = (number) => Array.from({ length: number }, (_, at) => `many-${String(at).padStart(3, "0")}`);

// Open those of `ids` that are not; the service hibernates the idlest to make room.
async function open(ids) {
  const { sessions } = await api("GET", "/sessions");
  const there = new Set(sessions.map(({ session_id }) => session_id));
  const missing = ids.filter((id) => !there.has(id));
  const one = async () => {
    for (let id = missing.shift(); id; id = missing.shift()) await api("POST", "/sessions", { session_id: id, tenant: `t${Number(id.slice(5)) % 9}` });
  };
  await Promise.all([one(), one(), one(), one()]);
}

async function firstView(page) {
  await page.locator("tbody tr").first().waitFor();
  return page.evaluate(() => {
    // The first answer that was taken, and when its rows were in the page and laid out.
    const [answered] = performance.getEntriesByName("sessions-answered").slice(-1);
    const [shown] = performance.getEntriesByName("sessions-shown").slice(-1);
    const [painted] = performance.getEntriesByName("sessions-painted").slice(-1);
    return { made: shown.startTime - answered.startTime, painted: painted.startTime - answered.startTime };
  });
}

test("the first view of 200 sessions is complete within 200 ms of their answer", async () => {
  await open(names(200));
  const times = [];
  // What else the machine does meanwhile is not the page's doing: there are a few looks, until one was left alone.
  const left = () => times.every(({ painted, work }) => Math.min(painted, work) >= WITHIN);
  for (let look = 0; look < 5 || (look < 15 && left()); look += 1) {
    await withPage(async (page, context) => {
      const devtools = await context.newCDPSession(page);
      await devtools.send("Performance.enable", { timeDomain: "threadTicks" });
      const worked = async () => (await devtools.send("Performance.getMetrics")).metrics.find(({ name }) => name === "TaskDuration").value * 1000;
      // The first answer alone is measured, so that the looks that follow do not overwrite its marks.
      await page.addInitScript(() => {
        const mark = performance.mark.bind(performance);
        performance.clearMarks = () => {};
        const seen = new Set();
        let signedIn = false;
        performance.mark = (name) => {
          if (name === "sessions-answered") signedIn = true;
          if (seen.has(name) || !signedIn) return undefined;
          seen.add(name);
          const made = mark(name);
          // Laid out and painted: the frame after the one in which the rows were put in.
          if (name === "sessions-shown") requestAnimationFrame(() => setTimeout(() => mark("sessions-painted")));
          return made;
        };
      });
      await page.goto(`${service.url}/ui`);
      await page.getByLabel("Token", { exact: true }).fill(service.token);
      const before = await worked();
      await page.getByRole("button", { name: "Open the dashboard" }).click();
      await until(() => page.evaluate(() => performance.getEntriesByName("sessions-painted").length > 0), "it is painted");
      const work = (await worked()) - before;
      assert.ok((await page.locator("tbody tr").count()) >= 200);
      times.push({ ...(await firstView(page)), work });
    }, { pace: 1 });
  }
  times.sort((a, b) => a.painted - b.painted);
  const median = times[Math.floor(times.length / 2)].painted;
  const best = times[0].painted;
  const work = Math.min(...times.map(({ work }) => work));
  const all = times.map(({ made, painted, work }) => `${made.toFixed(0)}/${painted.toFixed(0)}/${work.toFixed(0)}`).join(", ");
  const told = `best ${best.toFixed(0)} ms, median ${median.toFixed(0)} ms, ${work.toFixed(0)} ms of a processor; made, painted, processor: ${all}`;
  // If no look was left alone the time counts that the page itself had a processor, from the click until all of it was painted.
  assert.ok(Math.min(best, work) < WITHIN, told);
  return told;
});

test("500 sessions in the table: found, sorted, updated, without a fault of axe's", async () => {
  await open(names(500));
  return dashboard("", async (page) => {
    await until(async () => (await page.locator("tbody tr").count()) >= 500, "all rows are there");
    await page.locator("#sessions-shown").getByText(/^5\d\d sessions$/).waitFor();
    await page.locator(".shares").getByText("and 5 others", { exact: false }).waitFor();
    const took = await page.evaluate(() => {
      const field = document.getElementById("filter-text");
      const begun = performance.now();
      field.value = "many-49";
      field.dispatchEvent(new Event("input"));
      document.body.getBoundingClientRect();
      return performance.now() - begun;
    });
    assert.equal(await page.locator("tbody tr").count(), 10);
    await page.getByLabel("Find").fill("");
    await page.getByRole("columnheader", { name: "Session" }).getByRole("button").click();
    await page.getByRole("columnheader", { name: "Session" }).getByRole("button").click();
    assert.equal(await page.locator("#view-sessions tbody th").nth(0).textContent(), "many-499");
    // The looks go on, and rows stay the same elements.
    const node = await page.locator("tbody tr").nth(250).elementHandle();
    for (const what of ["one more look", "and another"]) {
      const last = () => page.evaluate(() => performance.getEntriesByName("sessions-shown")[0]?.startTime ?? 0);
      const before = await last();
      await until(async () => (await last()) > before, what);
    }
    assert.ok(await node.evaluate((row) => row.isConnected));
    assert.deepEqual(await violations(page), []);
    return `filtered in ${took.toFixed(0)} ms`;
  }, { pace: 1 });
});

test("the many are closed again", async () => {
  const ids = names(500);
  const one = async () => {
    for (let id = ids.shift(); id; id = ids.shift()) await fetch(`${service.url}/sessions/${id}?purge=true`, { method: "DELETE", headers: { "X-Sandbox-Token": service.token } });
  };
  await Promise.all([one(), one(), one(), one()]);
  const { sessions } = await api("GET", "/sessions");
  assert.equal(sessions.filter(({ session_id }) => session_id.startsWith("many-")).length, 0);
});
