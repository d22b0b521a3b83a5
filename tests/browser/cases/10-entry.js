// Who gets in, and what the page may do.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer as createHttpServer } from "node:http";
import { createServer, connect } from "node:net";
import os from "node:os";
import path from "node:path";
import { promisify } from "node:util";

import { SKIPPED, api, dashboard, row, service, signIn, test, until, withPage, withSessions, write } from "../harness.js";

test("a wrong token shows nothing, the right one everything", () =>
  withSessions(1, (id) =>
    withPage(async (page) => {
      await page.goto(`${service.url}/ui`);
      const field = page.getByLabel("Token", { exact: true });
      for (const wrong of ["not-the-token-but-as-long-as-one-could-be", "spaces in it", "пароль", "\u202etoken"]) {
        await field.fill(wrong);
        await page.getByRole("button", { name: "Open the dashboard" }).click();
        await page.getByRole("alert").filter({ hasText: /token/ }).waitFor();
        assert.equal(await page.locator("#nav").isVisible(), false);
        assert.equal(await page.locator("tbody tr").count(), 0);
        assert.ok(await field.evaluate((node) => node === document.activeElement), "the focus is where the next one is typed");
        await field.fill("");
      }
      await signIn(page);
      await row(page, id).waitFor();
    }),
  ));

test("a token with the blanks it was copied with, entered twice over a slow connection, opens the dashboard once", () =>
  withPage(async (page) => {
    const held = [];
    await page.goto(`${service.url}/ui`);
    const field = page.getByLabel("Token", { exact: true });
    await field.fill(`  ${service.token} `);
    let slow = true;
    await page.route(/\/sessions\?/, (route) => (slow ? held.push(route) : route.continue()));
    await page.keyboard.press("Enter");
    await until(() => held.length === 1, "it is asked");
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Open the dashboard" }).click();
    // What is late is said to be, without a word of what there is not yet.
    await page.getByText("The service has not answered for a while.", { exact: true }).waitFor();
    assert.equal(held.length, 1, "it was asked once");
    slow = false;
    for (const route of held) await route.continue();
    await page.locator("#view-sessions .figure").first().waitFor();
    assert.equal(await page.locator("#sign-in").isVisible(), false);
    await until(async () => (await page.locator("#connection").textContent()) === "", "it is late no more");
  }));

test("a service that is not there when the token is entered is said, and the token need not be typed again", () =>
  withPage(async (page) => {
    await page.goto(`${service.url}/ui`);
    const field = page.getByLabel("Token", { exact: true });
    await field.fill(service.token);
    await page.route(/\/sessions\?/, (route) => route.abort());
    await page.keyboard.press("Enter");
    await page.getByRole("alert").filter({ hasText: "the service cannot be reached" }).waitFor();
    await page.unroute(/\/sessions\?/);
    await field.press("Enter");
    await page.locator("#view-sessions .figure").first().waitFor();
  }, { allowed: (text) => /ERR_FAILED/.test(text) }));

test("a session's own token is not enough", () =>
  withSessions(1, (id) =>
    withPage(async (page) => {
      const { token } = await api("POST", "/sessions", { session_id: id, attach: true });
      await page.goto(`${service.url}/ui`);
      await page.getByLabel("Token", { exact: true }).fill(token);
      await page.getByRole("button", { name: "Open the dashboard" }).click();
      await page.getByRole("alert").filter({ hasText: "not a session's" }).waitFor();
    }),
  ));

test("the token is in the page's memory alone and gone when it is loaded again", () =>
  dashboard("", async (page, context) => {
    await page.locator("#view-sessions").waitFor();
    assert.ok(!page.url().includes(service.token));
    assert.deepEqual(await context.cookies(), []);
    const kept = await page.evaluate(async () => [localStorage.length, sessionStorage.length, (await indexedDB.databases()).length, (await caches.keys()).length, document.cookie, history.state, document.getElementById("token").value]);
    assert.deepEqual(kept, [0, 0, 0, 0, "", null, ""]);
    await page.reload();
    await page.getByLabel("Token", { exact: true }).waitFor();
    assert.equal(await page.locator("tbody tr").count(), 0);
  }));

test("the token can be forgotten", () =>
  dashboard("", async (page) => {
    await page.getByRole("button", { name: "Forget the token" }).click();
    await page.getByLabel("Token", { exact: true }).waitFor();
    assert.equal(await page.locator("#view-sessions").isVisible(), false);
  }));

test("a token that stops being one ends what is shown, whatever is asked on it", () =>
  dashboard("#/runtimes", async (page) => {
    await page.getByRole("article").first().waitFor();
    await page.getByRole("tab", { name: "Sessions" }).click();
    await page.locator("#view-sessions .figure").first().waitFor();
    await page.getByRole("button", { name: "Open a session" }).click();
    await page.getByRole("dialog").waitFor();
    await page.route(/\/sessions\?/, (route) => route.continue({ headers: { ...route.request().headers(), "x-sandbox-token": "another-token-that-the-service-does-not-have" } }));
    await page.getByText("The service does not take this token any more.").waitFor();
    assert.equal(await page.locator("#view-sessions").isVisible(), false);
    assert.equal(await page.locator("tbody tr, article, dialog").count(), 0, "nothing of it is in the page");
    assert.ok(await page.getByLabel("Token", { exact: true }).evaluate((field) => field === document.activeElement));
  }));

test("a page that is open while the service is upgraded says so, and is loaded again when it is told to", () =>
  dashboard("", async (page, context) => {
    const outdated = page.getByText("The service was upgraded");
    // It has learnt what it is the page of together with the policy.
    await page.locator(".tile", { hasText: "Runtimes allowed" }).locator(".figure", { hasText: /\d/ }).waitFor();
    assert.equal(await outdated.isVisible(), false);
    await page.route(/\/ui$/, async (route) => {
      const response = await route.fetch();
      await route.fulfill({ response, headers: { ...response.headers(), etag: '"another"' } });
    });
    await context.setOffline(true);
    await page.getByText("The service cannot be reached; trying again").waitFor();
    await context.setOffline(false);
    await outdated.waitFor();
    await page.unroute(/\/ui$/);
    await page.getByRole("button", { name: "Load it again" }).click();
    await page.getByLabel("Token", { exact: true }).waitFor();
    assert.equal(await outdated.isVisible(), false);
  }, { allowed: (text) => /ERR_INTERNET_DISCONNECTED/.test(text) }));

test("the page is its own: policy, headers, no other origin, no injected script", async () => {
  const answer = await fetch(`${service.url}/ui`);
  const policy = answer.headers.get("content-security-policy");
  for (const part of ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"]) assert.ok(policy.includes(part), part);
  assert.ok(!policy.includes("unsafe"));
  assert.equal(answer.headers.get("x-content-type-options"), "nosniff");
  assert.equal(answer.headers.get("referrer-policy"), "no-referrer");
  assert.equal((await fetch(`${service.url}/ui/none.js`)).status, 404);
  await dashboard(
    "",
    async (page) => {
      const refused = await page.evaluate(async () => {
        const inline = document.createElement("script");
        const outcomes = [];
        const attempt = (what) => {
          try {
            what();
            outcomes.push("done");
          } catch {
            outcomes.push("refused");
          }
        };
        attempt(() => (inline.textContent = "globalThis.injected = 1"));
        attempt(() => (document.createElement("div")["inner" + "HTML"] = "<b>x</b>"));
        // Out of the reach of the test's own evaluation, which the browser lets pass.
        await new Promise((resolve) => setTimeout(() => resolve(attempt(() => (0, globalThis["ev" + "al"])("globalThis.injected = 2")))));
        const elsewhere = await fetch("http://127.0.0.1:9/", { mode: "no-cors" }).then(() => "done", () => "refused");
        return [...outcomes, elsewhere, globalThis.injected ?? "nothing"];
      });
      assert.deepEqual(refused, ["refused", "refused", "refused", "refused", "nothing"]);
    },
    { allowed: (text) => /Content Security Policy|TrustedHTML|TrustedScript|Trusted Type|violates the following/.test(text) },
  );
});

// As `ssh -L` does it: a port of this machine leads to the unix socket. What was asked there and answered is noted.
async function forward(run) {
  const seen = [];
  const server = createServer((client) => {
    const upstream = connect(service.socket);
    client.pipe(upstream).pipe(client);
    const asked = [];
    client.on("data", (bytes) => asked.push(...(bytes.toString("latin1").match(/^[A-Z]+ \/\S*(?= HTTP\/1\.1\r$)/gm) ?? [])));
    upstream.on("data", (bytes) => {
      for (const [, status] of bytes.toString("latin1").matchAll(/^HTTP\/1\.1 (\d+) /gm)) seen.push(`${asked.shift()} ${status}`);
    });
    client.on("error", () => upstream.destroy());
    upstream.on("error", () => client.destroy());
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    return await run(`http://127.0.0.1:${server.address().port}`, seen);
  } finally {
    server.close();
  }
}

test("over a forwarded unix socket that knows its peer no token is asked for", () =>
  withSessions(1, (id) =>
    forward((url) =>
      withPage(
        async (page) => {
          await page.goto(`${url}/ui`);
          await row(page, id).waitFor();
          await page.getByText("No token needed: uid=0").waitFor();
          assert.equal(await page.getByLabel("Token", { exact: true }).isVisible(), false);
          assert.equal(await page.getByRole("button", { name: "Forget the token" }).isVisible(), false);
          await row(page, id).getByRole("button", { name: `Hibernate ${id}` }).click();
          await row(page, id).getByText("hibernated", { exact: true }).waitFor();
        },
        { url },
      ),
    ),
  ));

// A server of somebody else: each answer is this page.
async function elsewhere(html, run) {
  const server = createHttpServer((_, answer) => answer.setHeader("Content-Type", "text/html").end(html));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    return await run(server.address().port);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

// What a page of somebody else tries with whatever leads to the service, in a browser whose user needs no token there.
const ATTACK = async (to) => {
  const told = {};
  const attempt = async (what, trying) => (told[what] = await trying().catch((error) => `refused: ${error.message}`));
  const body = JSON.stringify({ session_id: "theirs", runtime: "base" });
  await attempt("read", async () => (await fetch(`${to}/sessions`)).text());
  await attempt("sent", async () => (await fetch(`${to}/sessions`, { method: "POST", mode: "no-cors", body })).type);
  await attempt("typed", async () => (await fetch(`${to}/sessions`, { method: "POST", mode: "no-cors", headers: { "Content-Type": "text/plain" }, body })).type);
  await attempt("deleted", async () => (await fetch(`${to}/sessions/mine?purge=true`, { method: "DELETE" })).status);
  const element = (tag, properties) =>
    new Promise((resolve) => {
      const node = Object.assign(document.createElement(tag), properties, { onload: () => resolve("loaded"), onerror: () => resolve("refused") });
      document.body.append(node);
      setTimeout(() => resolve("nothing"), 60_000);
    });
  await attempt("script", () => element("script", { src: `${to}/sessions` }));
  await attempt("its script", () => element("script", { src: `${to}/ui/app.js` }));
  await attempt("picture", () => element("img", { src: `${to}/ui/icon.svg` }));
  await attempt("frame", async () => {
    await element("iframe", { src: `${to}/ui`, name: "framed" });
    return globalThis.frames.framed.document === undefined ? "other" : "readable";
  });
  // A form, which needs nobody's leave.
  const form = Object.assign(document.createElement("form"), { method: "POST", action: `${to}/sessions`, enctype: "text/plain", target: "framed" });
  form.append(Object.assign(document.createElement("input"), { name: '{"session_id": "theirs", "runtime": "base", "tenant": "', value: '"}' }));
  document.body.append(form);
  form.submit();
  await new Promise((resolve) => setTimeout(resolve, 500));
  return told;
};

// `ssh -L` of OpenSSH, with a server of this test's own: as docs/operating.md says it.
async function tunnel(run) {
  const sshd = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].find(existsSync);
  if (!sshd) return null;
  const home = await mkdtemp(path.join(os.tmpdir(), "ssh-"));
  const at = (name) => path.join(home, name);
  const keygen = promisify(execFile);
  for (const name of ["host", "user"]) await keygen("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-f", at(name)]);
  const [server, local] = await Promise.all([freePort(), freePort()]);
  const lines = [
    `ListenAddress 127.0.0.1:${server}`, `HostKey ${at("host")}`, `AuthorizedKeysFile ${at("user.pub")}`, "PidFile none", "StrictModes no", "UsePAM no",
    "PasswordAuthentication no", "PermitRootLogin prohibit-password", "AllowTcpForwarding local", "AllowStreamLocalForwarding local",
  ];
  await writeFile(at("sshd_config"), `${lines.join("\n")}\n`);
  // Where it lets its unprivileged half live; the distribution's unit makes it.
  const made = await mkdir("/run/sshd", { recursive: true, mode: 0o755 });
  const client = ["-N", "-i", at("user"), "-p", `${server}`, "-o", "StrictHostKeyChecking=no", "-o", `UserKnownHostsFile=${at("known")}`, "-o", "ExitOnForwardFailure=yes"];
  const said = [];
  const processes = [];
  const begin = (program, argv) => {
    const process = spawn(program, argv, { stdio: ["ignore", "ignore", "pipe"] });
    process.stderr.on("data", (text) => said.push(`${program}: ${text}`));
    processes.push(process);
    return process;
  };
  try {
    begin(sshd, ["-D", "-e", "-f", at("sshd_config")]);
    await until(() => answers(server), "sshd listens");
    begin("ssh", [...client, "-F", "none", "-L", `${local}:${service.socket}`, "root@127.0.0.1"]);
    await until(() => answers(local), `ssh listens: ${said.join("")}`);
    return await run(`http://localhost:${local}`);
  } catch (error) {
    error.message += `\n${said.join("")}`;
    throw error;
  } finally {
    for (const process of processes.reverse()) process.kill("SIGTERM");
    await rm(home, { recursive: true, force: true });
    if (made) await rm(made, { recursive: true, force: true });
  }
}

const answers = (port) =>
  new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1", () => resolve(socket.destroy() && true));
    socket.on("error", () => resolve(false));
  });

async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

test("through ssh -L, as the documentation says it", () =>
  withSessions(1, async (id) => {
    const done = await tunnel((url) =>
      withPage(
        async (page) => {
          await page.goto(`${url}/ui#/session/${id}/terminal`);
          await page.getByText("No token needed: uid=0").waitFor();
          await page.getByLabel("Command", { exact: true }).fill("echo through the tunnel");
          await page.keyboard.press("Enter");
          await page.locator(".command .stdout").getByText("through the tunnel").waitFor();
          return "ssh";
        },
        { url },
      ),
    );
    return done ?? SKIPPED("sshd is not installed; the other cases forward the socket themselves");
  }));

test("pages of others, in the browser of whoever forwards the socket, get nothing and do nothing", () =>
  withSessions(1, (id) =>
    forward((url, seen) =>
      elsewhere("<!doctype html><title>evil</title>", async (port) => {
        const before = JSON.stringify((await api("GET", "/sessions")).sessions.map(({ session_id }) => session_id));
        // Of another site; of the same host but another port, which browsers call the same site.
        for (const origin of [`http://www.evil.example:${port}`, `http://127.0.0.1:${port}`, `http://localhost:${port}`]) {
          await withPage(
            async (page) => {
              seen.length = 0;
              await page.goto(origin);
              const told = await page.evaluate(ATTACK, url);
              for (const what of ["read", "deleted"]) assert.ok(String(told[what]).startsWith("refused"), `${origin}: ${what}: ${told[what]}`);
              assert.equal(told.script, "refused", origin);
              assert.equal(told["its script"], "refused", origin);
              assert.equal(told.picture, "refused", origin);
              // The browser shows an empty page of nobody's in place of the dashboard.
              for (const frame of page.frames()) assert.equal(await frame.locator("#sign-in, #nav").count(), 0, origin);
              // What the browser let through to the service was refused there.
              const asked = seen.filter((line) => /^[A-Z]+ \/sessions/.test(line));
              assert.ok(asked.length >= 3 && asked.every((line) => / 40[15]$/.test(line)), `${origin}: ${seen.join("; ")}`);
            },
            { elsewhere: true, allowed: () => true, pace: 1 },
          );
        }
        assert.equal(JSON.stringify((await api("GET", "/sessions")).sessions.map(({ session_id }) => session_id)), before);
        // The control: the same from the service's own page is done.
        await withPage(
          async (page) => {
            await page.goto(`${url}/ui`);
            await row(page, id).waitFor();
            assert.equal(await page.evaluate(async () => (await fetch("sessions", { method: "POST", body: '{"runtime": "none-such"}' })).status), 400);
          },
          { url, allowed: () => true },
        );
      }),
    ),
  ));

test("a name that its owner lets point at this machine is nobody's who is known here", () =>
  withSessions(1, (id) =>
    forward(async (url) => {
      const { port } = new URL(url);
      const look = (name, see) => withPage(see, { url: `http://${name}:${port}`, allowed: () => true });
      for (const name of ["rebind.evil.example", "neighbour"]) {
        await look(name, async (page) => {
          await page.goto(`http://${name}:${port}/ui`);
          await page.getByLabel("Token", { exact: true }).waitFor();
          const asked = await page.evaluate(async () => {
            const run = { method: "POST", body: '{"runtime": "base", "session_id": "theirs"}' };
            return [(await fetch("sessions")).status, (await fetch("sessions", run)).status, (await fetch("policy")).status];
          });
          assert.deepEqual(asked, [401, 401, 401], name);
        });
      }
      for (const name of ["localhost", "box.localhost", "127.0.0.1"]) {
        await look(name, async (page) => {
          await page.goto(`http://${name}:${port}/ui`);
          await row(page, id).waitFor();
        });
      }
    }),
  ));

test("whoever knows what a file of a workspace is called cannot have the browser show it as a page", () =>
  withSessions(1, (id) =>
    forward((url) =>
      withPage(
        async (page, context) => {
          await write(id, "/workspace/evil.html", Buffer.from('<!doctype html><script>globalThis.owned = 1; fetch("/sessions")</script><h1>evil</h1>'));
          await write(id, "/workspace/evil.svg", Buffer.from('<svg xmlns="http://www.w3.org/2000/svg" onload="globalThis.owned = 2"><text>evil</text></svg>'));
          await write(id, "/workspace/evil.png", Buffer.from("<html><script>globalThis.owned = 3</script>"));
          await page.goto(`${url}/ui#/session/${id}/files`);
          for (const [name, shown] of [["evil.html", "<h1>evil</h1>"], ["evil.svg", "<text>evil</text>"], ["evil.png", "The browser cannot show this as a picture."]]) {
            await page.locator(".tree").getByRole("button", { name }).click();
            await page.locator(".preview").getByText(shown, { exact: false }).waitFor();
            const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: `Download ${name}` }).click()]);
            assert.equal(download.suggestedFilename(), name);
          }
          assert.equal(context.pages().length, 1, "no page was opened");
          assert.equal(page.frames().length, 1);
          assert.ok(page.url().endsWith(`/ui#/session/${id}/files`));
          assert.equal(await page.evaluate(() => globalThis.owned ?? null), null);
          // Even a form of the page's own origin, if there were one, gets bytes to keep.
          const answer = await page.evaluate(async (route) => {
            const response = await fetch(route, { method: "POST", body: '{"path": "/workspace/evil.html"}' });
            return [response.status, response.headers.get("content-type"), response.headers.get("content-disposition"), response.headers.get("x-content-type-options"), response.headers.get("content-security-policy")];
          }, `sessions/${id}/files/read`);
          assert.deepEqual(answer, [200, "application/octet-stream", "attachment", "nosniff", "default-src 'none'; frame-ancestors 'none'; sandbox"]);
        },
        { url, allowed: () => true },
      ),
    ),
  ));

test("all that the page loads is below 150 KB, from its own service, once", () =>
  withPage(async (page) => {
    const sizes = new Map();
    const loads = [];
    page.on("response", (response) => {
      // What asks which edition there is gets none of it.
      if (response.request().method() === "GET" && /^\/ui(\/[a-z]+\.(js|css))?$/.test(new URL(response.url()).pathname)) loads.push(response.body().then((body) => sizes.set(response.url(), body.length)));
    });
    await signIn(page);
    for (const view of ["Workspace", "Kept workspaces", "Runtimes and policy"]) await page.getByRole("tab", { name: view, exact: true }).click();
    await Promise.all(loads);
    const bytes = [...sizes.values()].reduce((sum, size) => sum + size, 0);
    assert.ok(sizes.size > 15 && sizes.size === loads.length, `${sizes.size} files in ${loads.length} answers`);
    assert.ok(bytes < 150_000, `${bytes} bytes`);
    return `${bytes} bytes`;
  }));
