// Runs the cases one after another in one browser, each in a context of its own, and counts.

import { readdir } from "node:fs/promises";

import { cases, end, start } from "./harness.js";

for (const file of (await readdir(new URL("cases", import.meta.url))).sort()) await import(`./cases/${file}`);

const texts = process.argv.slice(2);
const wanted = cases.filter(({ title }) => texts.length === 0 || texts.some((text) => title.includes(text)));
let passed = 0;
let failed = 0;
let skipped = 0;
const begun = performance.now();
try {
  await start();
  for (const { title, run } of wanted) {
    const from = performance.now();
    try {
      const told = await run();
      if (told?.skipped) {
        skipped += 1;
        console.log(`  SKIPPED ${title}: ${told.skipped}`);
        continue;
      }
      passed += 1;
      console.log(`  ok      ${title} (${((performance.now() - from) / 1000).toFixed(1)} s)${told ? `: ${told}` : ""}`);
    } catch (error) {
      failed += 1;
      console.log(`  FAILED  ${title}\n${String(error.stack ?? error).replace(/^/gm, "          ")}`);
    }
  }
} finally {
  await end();
}
if (wanted.length === 0) failed += 1;
console.log(`browser: ${passed} passed, ${failed} failed${skipped ? `, ${skipped} skipped` : ""}, in ${((performance.now() - begun) / 1000).toFixed(0)} s`);
process.exitCode = failed ? 1 : 0;
