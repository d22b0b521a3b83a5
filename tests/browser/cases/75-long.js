// A page that is open for days: thousands of updates in a minute, of sessions that come and go.

import assert from "node:assert/strict";

import { dashboard, until, test } from "../harness.js";

// How many looks before the first count, and until the last.
const SETTLED = 300;
const LOOKS = 2500;

// In place of the service, in the page: sessions whose figures change with each look, one of which is another every third time.
// The time between two looks is none.
const FAST = () => {
  const real = globalThis.fetch.bind(globalThis);
  const timer = globalThis.setTimeout.bind(globalThis);
  globalThis.looked = 0;
  globalThis.setTimeout = (what, after, ...rest) => timer(what, after === 2000 && globalThis.fast ? 0 : after, ...rest);
  globalThis.fetch = (address, options) => {
    if (!String(address).endsWith("/sessions?usage=true")) return real(address, options);
    if (!globalThis.fast) return new Promise(() => {});
    const look = (globalThis.looked += 1);
    const sessions = Array.from({ length: 12 }, (_, at) => ({
      session_id: at === 0 ? `s-${Math.floor(look / 3)}` : `s-of-${at}`,
      runtime: "base",
      tenant: `t${(at + look) % 7}`,
      state: "running",
      tier: (at + look) % 5 ? "running" : "frozen",
      alive: true,
      created_at: 1,
      last_activity: 1,
      idle_seconds: look + at,
      usage: { memory_bytes: (1 << 20) * ((look * at) % 97), memory_limit_bytes: 1 << 27, cpu_percent: (look * at) % 100, pids: at },
    }));
    return Promise.resolve(new Response(JSON.stringify({ sessions, limit: 50, open_limit: 60, tenant_limit: 10 })));
  };
};

test(`${LOOKS} updates leave the page as large as it was`, () =>
  dashboard("", async (page, context) => {
    await page.evaluate(FAST);
    const devtools = await context.newCDPSession(page);
    await devtools.send("Performance.enable");
    const count = async () => {
      await page.evaluate(() => (globalThis.fast = false));
      // What was on its way has come, and messages have gone.
      await page.waitForTimeout(300);
      for (let at = 0; at < 3; at += 1) await devtools.send("HeapProfiler.collectGarbage");
      const { metrics } = await devtools.send("Performance.getMetrics");
      const of = (name) => metrics.find((metric) => metric.name === name).value;
      const entries = await page.evaluate(() => performance.getEntriesByType("mark").length + performance.getEntriesByType("resource").length);
      return { nodes: of("Nodes"), listeners: of("JSEventListeners"), heap: of("JSHeapUsedSize"), entries };
    };
    const looks = async (number) => {
      await page.evaluate(() => {
        globalThis.fast = true;
        document.dispatchEvent(new Event("visibilitychange"));
      });
      await until(() => page.evaluate((until) => globalThis.looked >= until, number), `${number} looks`, 300_000);
    };
    await looks(SETTLED);
    const before = await count();
    await looks(SETTLED + LOOKS);
    const after = await count();
    const told = Object.keys(before).map((what) => `${what} ${before[what]} then ${after[what]}`).join(", ");
    assert.ok(after.nodes <= before.nodes + 200, told);
    assert.ok(after.listeners <= before.listeners + 40, told);
    assert.ok(after.heap <= before.heap + 1_000_000, told);
    assert.ok(after.entries <= before.entries + 300, told);
    return told;
  }, { viewport: { width: 1000, height: 300 }, pace: 1 }));
